"""Passes that take an hour: what else a cleaner with one thread does meanwhile, and what comes
next.
"""

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.cleaner import FoundLogs
from clog.cleaner.log_round import CleanerSettings
from clog.storage import Log
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog_testing.crash import discard, inside, memory_store

HOUR_MS = 3_600_000
PASSES = 20


@pytest.fixture
def long(make_log, put, clock):
    """A log of 20 dirty partitions; the records of the last one are so much older."""

    def make(older_ms=0, **config):
        log = make_log(PASSES, min_cleanable_dirty_ratio=0, **config)
        for p in range(PASSES):
            age_ms = older_ms if p == PASSES - 1 else 0
            put(log, "a=1 a=2", partition=p, timestamp=clock.now_ms() - age_ms)
        return log

    return make


@pytest.fixture
def other(clock):
    """Another log in another store."""
    made = memory_store()
    yield Log.create(made, 2, {"segment.bytes": 3 * 14}, clock=clock, ids=SeededIds(77))
    discard(made)


@pytest.fixture(params=["run", "run_once"])
def work(request, clock):
    """Passes of an hour each over logs, by a daemon or in one round, until a check after each says
    that it is enough: what was cleaned, as (log, partition).
    """

    def work(logs, look=lambda _hour: False):
        done, start_ms = [], clock.now_ms()

        def on_pass(log, result):
            done.append((log, result.partition))
            clock.advance(HOUR_MS)
            look_around()

        def look_around():
            hour = (clock.now_ms() - start_ms) // HOUR_MS
            if look(hour) or hour > PASSES:
                cleaner.stop()
            return FoundLogs()

        settings = CleanerSettings(retention_check_ms=300_000)
        cleaner = Cleaner(logs, on_pass=on_pass, settings=settings, find=look_around)
        getattr(cleaner, request.param)()
        look_around()
        return done

    return work


class FirstSeen:
    """Checks each hour whether something has happened, and records the first hour at
    which it had.
    """

    def __init__(self, happened):
        self._happened = happened
        self.hour = None

    def __call__(self, hour):
        if self.hour is None and self._happened():
            self.hour = hour
        return self.hour is not None


def test_retention_of_another_log_goes_on(long, other, put, work):
    """S29, S32: two hours of retention are over after four passes at most, not after twenty."""
    other.alter({"cleanup.policy": "delete", "retention.ms": 2 * HOUR_MS})
    put(other, "a=1 b=1 a=2")
    log = long()
    log.roll()
    gone = FirstSeen(lambda: other.handle.refresh().head.partitions.start[0] == 3)
    work([log, other], gone)
    assert gone.hour is not None
    assert gone.hour <= 4


def test_retention_of_the_log_itself_goes_on(long, work):
    """S29, S32: also of partitions that wait for their own pass."""
    log = long(cleanup_policy="compact,delete", retention_ms=2 * HOUR_MS)
    log.roll()
    gone = FirstSeen(lambda: sum(log.handle.refresh().head.partitions.start) > 0)
    work([log], gone)
    assert gone.hour is not None
    assert gone.hour <= 4


def test_sealing_and_sweeping_go_on(long, put, work, store):
    """S8, S27: a segment is sealed, and what was replaced is deleted, between passes."""
    log = long(file_delete_delay_ms=2 * HOUR_MS)
    log.roll()
    log.alter({"segment.ms": 2 * HOUR_MS})
    put(log, "x=1", partition=PASSES - 1)
    segments = len(log.segments(PASSES - 1))
    sealed = FirstSeen(lambda: log.handle.refresh() and len(log.segments(PASSES - 1)) > segments)
    before = {found.path for found in inside(store).list("data/")}
    swept = FirstSeen(lambda: before - {found.path for found in inside(store).list("data/")})

    def look(hour):
        return sealed(hour) and swept(hour)

    work([log], look)
    assert sealed.hour is not None
    assert swept.hour is not None
    assert (sealed.hour <= 4, swept.hour <= 5) == (True, True)


def test_what_becomes_overdue_is_next(long, work):
    """S15: the most urgent partition is chosen again before each pass: the last of twenty equal
    ones, overdue after two hours, is cleaned fourth at the latest.
    """
    log = long(older_ms=28 * HOUR_MS, max_compaction_lag_ms=30 * HOUR_MS)
    log.roll()
    done = [partition for _, partition in work([log], lambda hour: hour == 4)]
    assert done[0] != PASSES - 1
    assert PASSES - 1 in done[1:]


def test_what_becomes_overdue_in_another_log_is_next(long, other, put, work):
    """S15: over all logs."""
    put(other, "a=1", partition=1)
    other.roll()
    other.alter({"min.cleanable.dirty.ratio": 1, "max.compaction.lag.ms": 2 * HOUR_MS})
    log = long()
    log.roll()
    assert (other, 1) in work([log, other], lambda hour: hour == 4)[1:]


@pytest.fixture
def greedy(make_log, put, work):
    """Works until a check says that it is enough, beside a log that is dirtier than any other again
    after each of its passes.
    """
    log = make_log(min_cleanable_dirty_ratio=0)

    def dirty():
        put(log, " ".join(f"a={n}" for n in range(12)))
        log.roll()

    def beside(other, look):
        def look_on(hour):
            dirty()
            return look(hour)

        return work([log, other], look_on)

    dirty()
    return beside


@pytest.fixture
def once_clean(other, put, clock):
    """The other log, cleaned once: it contains a tombstone whose horizon is set."""
    other.alter({"min.cleanable.dirty.ratio": 0, "delete.retention.ms": 1000})
    put(other, "a=1 b=1 c=1 d=1 b")
    other.roll()
    Cleaner(other).run_once(force=True)
    return other


@pytest.mark.parametrize("work", ["run"], indirect=True)
def test_tombstones_that_wait_too_long_are_next(greedy, once_clean, clock):
    """S16, S46: a day after their horizon a dirtier log no longer comes first."""
    clock.advance(30 * HOUR_MS)
    assert (once_clean, 0) in greedy(once_clean, lambda hour: hour == 4)


@pytest.mark.parametrize("work", ["run"], indirect=True)
def test_what_follows_passes_does_not_wait_for_one(greedy, once_clean, put, clock):
    """S30, S46: a log whose pass is never the most urgent is swept, coalesced and purged all the
    same.
    """
    orphan = documents.data_path(0, "0" * 32)
    once_clean.handle.store.put(orphan, b"never committed")
    clock.advance(80 * HOUR_MS)
    once_clean.alter({"delete.retention.ms": 10**12})
    put(once_clean, "e=1")
    once_clean.roll()
    swept = FirstSeen(lambda: orphan not in {o.path for o in once_clean.handle.store.list("data/")})
    greedy(once_clean, swept)
    assert swept.hour is not None
    assert swept.hour <= 4
