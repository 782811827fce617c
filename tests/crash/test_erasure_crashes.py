"""Crash enumeration of erasures (COMMIT.md §8, C37 to C43): every call of the store.

Who asks for one, or carries it out, dies at each call, or lives on with a reply that was lost. In
each case there is a request that the next rounds carry out, or none and nothing of it is left; the
others' records stay, and there is one receipt, once there is no byte of the keys any more.
"""

from collections import Counter

import pytest

from clog.cleaner import Cleaner
from clog.storage import Log, ManualClock
from clog.storage.env import SeededIds
from clog_testing.clocked import ClockedStore
from clog_testing.crash import crash_runs, discard, unlike
from clog_testing.invariants import check_log

DAY_MS = 86_400_000
START_MS = 5_000
CONFIG = {"compression.type": "none", "delete.retention.ms": 1_000, "file.delete.delay.ms": 1_000}
ERASED = (b"alice", b"elm street")


def opened(store, seed, *, days=0):
    return Log.open(store, clock=ManualClock(START_MS + days * DAY_MS), ids=SeededIds(seed))


def begin(store):
    log = Log.create(store, 1, CONFIG, clock=ManualClock(START_MS), ids=SeededIds(1))
    log.append([{"key": "alice", "value": "elm street 1"}])
    log.append([{"key": "alice", "value": "elm street 2"}, {"key": "bob", "value": "1"}])


def ask(store):
    return opened(store, 2).erase(["alice"])


def asked(store):
    begin(store)
    ask(store)


def round_of(days, seed):
    def run(store):
        Cleaner(opened(store, seed, days=days)).run_once()

    return run


def killed(store):
    asked(store)
    round_of(0, 3)(store)


def told(store):
    """Up to before the round that writes the receipt."""
    killed(store)
    round_of(1, 4)(store)


def holding(store):
    return [f.path for f in store.list("") if any(word in store.get(f.path) for word in ERASED)]


def check_done(crash, *, days):
    """Later rounds finish it: nothing is left but the receipt."""
    log = opened(crash.store, 7, days=days)
    for seed in range(4):
        days += 2
        round_of(days, 10 + seed)(crash.store)
        log = opened(crash.store, 20 + seed, days=days)
        if all(one.state == "done" for one in log.erasures()):
            break
    (one,) = log.erasures()
    assert one.state == "done", f"{crash}: {one.reason}"
    assert holding(crash.store) == [], str(crash)
    assert [row["value"] for row in log.table().to_pylist()] == [b"1"], str(crash)
    numbers = [f.path for f in crash.store.list("") if "/receipts/" in f.path]
    assert len(numbers) == 1, f"{crash}: {numbers}"
    check_log(crash.store, every_version=False)


def test_a_request_is_whole_or_nothing():
    """S68: E1 and E2; what a dead process left of an unfinished request is swept."""
    seen = Counter()
    for crash in unlike(crash_runs(begin, ask)):
        there = opened(crash.store, 5).erasures()
        seen[len(there)] += 1
        if crash.result is not None:
            assert [one.id for one in there] == [crash.result.id], str(crash)
        if there and crash.when == "after":
            check_done(crash, days=0)
        elif not there:
            clock = ManualClock(START_MS)
            store = ClockedStore(crash.store, clock)
            for days in (50_000, 2, 2):  # After the files were written, by the real clock.
                clock.advance(days * DAY_MS)
                log = Log.open(store, clock=clock, ids=SeededIds(8 + days))
                log.append([{"key": "bob", "value": "1"}])
                Cleaner(log).run_once()
            assert not [f for f in crash.store.list("") if "/erasures/" in f.path], str(crash)
            assert log.table().get("alice") == b"elm street 2"
        discard(crash.store)
    assert set(seen) == {0, 1}, seen


@pytest.mark.parametrize(
    ("beginning", "days", "seed"),
    [(asked, 0, 3), (killed, 1, 4), (told, 3, 5)],
    ids=["E3 and E4", "E6 and E4", "E5 and E7"],
)
@pytest.mark.nightly
def test_a_round_is_taken_up_by_the_next(beginning, days, seed):
    """S59: whatever step a cleaner died at, the entry says how far it is."""
    for crash in unlike(crash_runs(beginning, round_of(days, seed))):
        check_done(crash, days=days)
        discard(crash.store)
