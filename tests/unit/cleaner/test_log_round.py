"""A log among others: what applies to all of them, which comes first, and which waits."""

import re
from pathlib import Path

import pytest

from clog.cleaner import Cleaner, log_round
from clog.cleaner.duties.layout import SEGMENTS_MIN
from clog.cleaner.log_round import REST_MS_MAX, CleanerSettings, LogRound, Rest
from clog.cleaner.threads import Throttle
from clog.storage import Log
from clog.storage.env import SeededIds
from clog.storage.errors import StoreUnavailableError, UnsupportedFormatError
from clog.storage.format import log_info
from clog_testing.crash import discard, inside, memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

DAY_MS = 86_400_000


def test_every_duty_is_told_among_the_steps_of_a_round(make_log, clock):
    """By its name, and none that there is no more."""
    made = LogRound(make_log(), clock, Throttle(None, clock), CleanerSettings())
    duties = {duty.name for duty in (*made._maintaining, *made._ending)}
    readme = (Path(__file__).parents[3] / "cleaner/README.md").read_text()
    steps = readme.split("## A round\n")[1].split("\nA pass first")[0]
    assert set(re.findall(r"\(`([a-z]+)`", steps)) == duties


@pytest.fixture
def other(clock):
    """Another log in another store."""
    made = memory_store()
    config = {"segment.bytes": 3 * 14}
    yield Log.create(made, 1, config, clock=clock, ids=SeededIds(77))
    discard(made)


def test_the_most_urgent_of_all_logs_is_first(make_log, put, other, clock):
    """S15: overdue before dirty, and the dirtiest first, whichever log it is of."""
    log = make_log(2, min_cleanable_dirty_ratio=0.1)
    put(log, "a=1 b=1 c=1", partition=0)
    log.roll()
    Cleaner(log).run_once(force=True)
    put(log, "a=2 b=2 c=2", partition=0)  # ratio 0.5
    put(log, "a=1 b=1 a=2", partition=1)  # ratio 1
    log.roll()
    put(other, "a=1 b=1 c=1")
    other.roll()
    Cleaner(other).run_once(force=True)
    put(other, "a=2")
    other.roll()
    clock.advance(10)
    other.alter({"max.compaction.lag.ms": 5})
    done = []
    Cleaner([log, other], on_pass=lambda of, r: done.append((of is other, r.partition))).run_once()
    assert done == [(True, 0), (False, 1), (False, 0)]


def test_two_cleaners_waste_a_group(make_log, put, store, open_log, there, clock):
    """S30: a cleaner that finds its sources changed has wasted one group, leaves the partition
    alone for a while, and breaks nothing.
    """
    log = make_log(min_cleanable_dirty_ratio=0)
    put(log, "a=1 b=1 b=2 c=1 d=1 d=2 e=1 e=2 f=1")
    log.roll()
    faster, done = Cleaner(open_log()), []
    meanwhile = Fault(
        FaultKind.MEANWHILE,
        "create",
        "*/commits/*",
        run=lambda: done.extend(faster.run_once()),
    )
    slower = Cleaner(open_log(FaultyStore(store, Faults(meanwhile))))
    before = {found.path for found in inside(store).list("data/")}
    (result,) = slower.run_once()
    assert not result.complete
    assert [r.complete for r in done] == [True]
    log.handle.refresh()
    alive = {c.object.path for _, c in log.handle.manifest().chunks()}
    written = {found.path for found in inside(store).list("data/")} - before
    assert len(written - alive) == 1
    check_log(store)
    assert there(log) == "0:a=1 2:b=2 3:c=1 5:d=2 7:e=2 8:f=1"
    put(log, "a=2 b=3 c=2")
    log.roll()
    assert slower.run_once() == []
    clock.advance(15_000)
    assert [r.complete for r in slower.run_once()] == [True]


def test_a_log_that_fails_waits_longer_each_time():
    """S28: 15 s at first, doubled each time up to 5 minutes, randomly reduced by up to half."""
    for chance, share in ((0.0, 1.0), (1.0, 0.5)):
        rest, waits = Rest(), []
        for _ in range(7):
            rest.failed(1000, lambda chance=chance: chance)
            waits.append(rest.until_ms - 1000)
        full = [15_000, 30_000, 60_000, 120_000, 240_000, REST_MS_MAX, REST_MS_MAX]
        assert waits == [share * ms for ms in full]
        rest.succeeded()
        rest.failed(0, lambda: 0.0)
        assert rest.until_ms == 15_000


def test_defaults_of_the_cleaner(make_log, put, other, clock):
    """S45: the cleaner's defaults apply where the log sets nothing; its own config takes
    precedence.
    """
    log = make_log(cleanup_policy="delete")
    other.alter({"cleanup.policy": "delete", "retention.ms": 10_000})
    for each in (log, other):
        put(each, "a=1 b=1 a=2")
        each.roll()
    clock.advance(1001)
    settings = CleanerSettings(defaults={"retention.ms": "1000"})
    Cleaner([log, other], settings=settings).run_once()
    assert (log.start_offsets(), other.start_offsets()) == ({0: 3}, {0: 0})


def test_the_default_jitter_is_that_of_sealed_segments(make_log, put, clock):
    """S7, S45: log.roll.jitter.ms, for what the cleaner seals."""
    log = make_log()
    put(log, "a=1")
    clock.advance(1001)
    defaults = {"segment.ms": "1000", "segment.jitter.ms": "1000"}
    Cleaner(log, settings=CleanerSettings(defaults=defaults)).run_once()
    assert len(log.segments(0)) == 2
    assert log.handle.tip.head.partitions.jitter_ms[0] > 0


def test_defaults_that_contradict_a_log(make_log, put, there):
    """S43, S45: its own config takes precedence here too."""
    log = make_log(max_compaction_lag_ms=10, min_cleanable_dirty_ratio=0)
    put(log, "a=1 b=1 a=2")
    log.roll()
    settings = CleanerSettings(defaults={"min.compaction.lag.ms": str(DAY_MS)})
    Cleaner(log, settings=settings).run_once()
    assert there(log) == "1:b=1 2:a=2"


def test_one_default_that_contradicts_drops_no_other(make_log, put, clock, caplog):
    """S43, S45: the others apply; the one that does not is reported, once."""
    log = make_log(max_compaction_lag_ms=10, cleanup_policy="compact,delete")
    put(log, "a=1 b=1 a=2")
    log.roll()
    clock.advance(1001)
    defaults = {"min.compaction.lag.ms": str(DAY_MS), "retention.ms": "1000", "segment.ms": "5"}
    cleaner = Cleaner(log, settings=CleanerSettings(defaults=defaults))
    for _ in range(2):
        cleaner.run_once()
    assert log.start_offsets() == {0: 3}
    told = [r.getMessage() for r in caplog.records if "is not applied" in r.getMessage()]
    assert len(told) == 1
    assert f"min.compaction.lag.ms={DAY_MS}" in told[0]


def test_cleaning_can_be_switched_off(make_log, put, clock, there):
    """S45: log.cleaner.enable=false means no passes; sealing and retention continue."""
    log = make_log(cleanup_policy="compact,delete", retention_ms=1000, min_cleanable_dirty_ratio=0)
    put(log, "a=1 b=1 a=2")
    log.roll()
    cleaner = Cleaner(log, settings=CleanerSettings(compaction=False))
    assert cleaner.run_once() == []
    assert there(log) == "0:a=1 1:b=1 2:a=2"
    clock.advance(1001)
    cleaner.run_once()
    assert log.start_offsets() == {0: 3}


def test_retention_has_an_interval(make_log, put, clock):
    """S45: log.retention.check.interval.ms."""
    log = make_log(cleanup_policy="delete", retention_ms=1000)
    cleaner = Cleaner(log, settings=CleanerSettings(retention_check_ms=5000))
    cleaner.run_once()
    put(log, "a=1 b=1 a=2")
    log.roll()
    clock.advance(4999)
    cleaner.run_once()
    assert log.start_offsets() == {0: 0}
    clock.advance(1)
    cleaner.run_once()
    assert log.start_offsets() == {0: 3}


def until_a_pass(logs):
    cleaner = Cleaner(logs, on_pass=lambda *_: cleaner.stop())
    cleaner.run()


def test_whatever_fails_the_daemon_goes_on(make_log, put, other, there, monkeypatch):
    """S28: an unforeseen error, at any step over one log, ends neither the daemon nor the round of
    the others.
    """
    log = make_log(min_cleanable_dirty_ratio=0)
    put(log, "a=1 b=1 a=2")
    log.roll()
    for name in ("begin", "candidates", "config", "end"):
        with monkeypatch.context() as patch:
            real = getattr(LogRound, name)

            def fails(log_round, *args, real=real, name=name, **kwargs):
                if log_round.log is other:
                    raise KeyError(name)
                return real(log_round, *args, **kwargs)

            patch.setattr(LogRound, name, fails)
            put(log, "a=3 b=2 a=4")
            log.roll()
            until_a_pass([other, log])
    assert there(log) == "13:b=2 14:a=4"


def test_a_log_that_a_newer_clog_must_write_fails_its_rounds(make_log, put, monkeypatch):
    """FORMAT.md §0: even while nothing is due, so that the cleaner's operator learns of it before
    segments are due that will never be cleaned.
    """
    log = make_log()
    put(log, "a=1")
    Cleaner(log).run_once()
    with monkeypatch.context() as patch:
        feature = log_info.Feature("quill", "4", False, "")
        patch.setitem(log_info.FEATURES, "quill", feature)
        log.upgrade(["quill"])
    version = log.version
    with pytest.raises(UnsupportedFormatError, match="can read but not write"):
        Cleaner(log).run_once()
    assert log.version == version


def test_what_a_version_alone_decides_is_asked_once_for_it(make_log, put, open_log, monkeypatch):
    """R2, R5: a duty that found nothing to trim or to merge is asked again at the next version, and
    then does what is due.
    """
    log = make_log(cleanup_policy="delete")
    asked = []
    real = log_round.due_merges
    monkeypatch.setattr(log_round, "due_merges", lambda work: asked.append(work.head) or real(work))
    cleaner = Cleaner(log)
    for _ in range(3):
        cleaner.run_once()
    assert len(asked) == 1
    for _ in range(SEGMENTS_MIN + 1):
        put(log, "a=1")
        log.roll()
    log.alter({"segment.bytes": 1 << 20})
    assert len(log.handle.manifest().segments[0]) > SEGMENTS_MIN
    cleaner.run_once()
    assert len(open_log().handle.manifest().segments[0]) <= 2


def test_versions_that_come_while_a_duty_is_asked_are_asked_about(make_log, put, monkeypatch):
    """R4: others append through the same handle meanwhile; that nothing was due holds for the
    version before, and not for theirs.
    """
    log = make_log(cleanup_policy="delete", segment_bytes=1 << 20)
    real, asked = log_round.due_merges, []

    def due(work):
        found = real(work)
        if not asked:
            for _ in range(SEGMENTS_MIN + 1):
                put(log, "a=1")
                log.roll()
        asked.append(work.manifest.version)
        return found

    monkeypatch.setattr(log_round, "due_merges", due)
    Cleaner(log).run_once()
    assert len(log.handle.manifest().segments[0]) <= 2


def test_a_merge_that_failed_is_tried_in_the_next_round(make_log, put, open_log, store):
    """S28: although no version came in between."""
    log = make_log(cleanup_policy="delete", segment_bytes=1 << 20)
    for _ in range(SEGMENTS_MIN + 1):
        put(log, "a=1")
        log.roll()
    fault = Fault(FaultKind.REFUSE, "create", "*/commits/*")
    cleaner = Cleaner(open_log(FaultyStore(store, Faults(fault))))
    with pytest.raises(StoreUnavailableError):
        cleaner.run_once()
    cleaner.run_once()
    assert len(open_log().handle.manifest().segments[0]) <= 2


def test_what_another_cleaner_sealed_first_is_not_told_twice(make_log, put, open_log, store, clock):
    """R1: what was due before the commit began is not what the commit did."""
    log = make_log(segment_ms=10)
    put(log, "a=1")
    clock.advance(1000)
    told = []

    def cleaner(of, name):
        return Cleaner(of, on_maintained=lambda _, done: told.append((name, list(done.sealed))))

    faster = cleaner(open_log(), "faster").run_once
    meanwhile = Fault(FaultKind.MEANWHILE, "create", "*/commits/*", run=faster)
    cleaner(open_log(FaultyStore(store, Faults(meanwhile))), "slower").run_once()
    assert told == [("faster", [0])]
