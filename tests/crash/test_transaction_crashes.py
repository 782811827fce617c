"""Crash enumeration of transactions (COMMIT.md §9): every call of the store, before and after.

The holder dies at each of its calls, or lives on with a reply that was lost. Whoever takes the id
up next sees all of the transaction or nothing, knows which by its positions, and does what is left:
the log then holds each record once.
"""

from collections import Counter

import pytest

from clog.storage import (
    CommitStateUnknownError,
    InvalidInputError,
    Log,
    ManualClock,
    TransactionFencedError,
)
from clog.storage.env import Clock, SeededIds
from clog_testing.crash import crash_runs, discard, unlike
from clog_testing.invariants import check_log

CLOCK: Clock = ManualClock(now_ms=5_000)
BEFORE, JOB = ["0"], ["1", "2", "3"]
SOURCE_PARTITIONS = 200
"""This many positions are a separate document."""


def begin(store):
    """A log whose next version is not divisible by 4; the id was used before."""
    log = Log.create(store, SOURCE_PARTITIONS, clock=ManualClock(5_000), ids=SeededIds(1))
    with log.transaction("job") as t:
        t.append([{"key": "k", "value": "0"}], partition=0)
        t.positions(log, {0: 1})


def reopen(store, seed):
    return Log.open(store, clock=ManualClock(5_000), ids=SeededIds(seed))


def job(log, large):
    """One run of a copy job: continues from the positions, and copies what is left, if anything."""
    t = log.transaction("job")
    done = log.positions("job")[log.id][0]
    if done == 1:
        for value in JOB:
            t.append([{"key": "k", "value": value}], partition=int(value) % 2)
        t.positions(log, dict.fromkeys(range(SOURCE_PARTITIONS if large else 1), 4))
    return t


def values(log):
    return sorted(v.decode() for b in log.read() for v in b.column("value").to_pylist())


def run(log, large):
    job(log, large).commit()


@pytest.mark.parametrize("large", [False, True], ids=["small positions", "a document"])
def test_every_crash_leaves_all_or_nothing(large):
    """S48, S49, S54, C11 to C13: the next holder finds out from the positions, and does
    the rest.
    """
    seen = Counter()
    for crash in unlike(crash_runs(begin, lambda store: run(reopen(store, 2), large))):
        log = reopen(crash.store, 3)
        found = values(log)
        assert found in (BEFORE, BEFORE + JOB), str(crash)
        happened = found != BEFORE
        assert (log.positions("job")[log.id][0] == 4) == happened, str(crash)
        if crash.error is None and not crash.killed:
            assert happened, str(crash)
        elif crash.error is not None and not isinstance(crash.error, CommitStateUnknownError):
            assert not happened, f"{crash}: {crash.error}"
        seen[crash.point, happened] += 1
        job(log, large).commit()
        assert values(log) == BEFORE + JOB, str(crash)
        check_log(crash.store, every_version=False)
        discard(crash.store)
    points = {point for point, _ in seen}
    assert {"C1", "C2", "C5", "C6", "C7"} <= points, seen
    assert {happened for _, happened in seen} == {True, False}


def test_every_lost_reply_is_told_when_it_is_committed_again():
    """C13, H-T12: the same holder, still alive, calls commit until it gets a result: it is there
    once.
    """
    repeated = Counter()

    def act(store):
        t = job(reopen(store, 2), large=False)
        try:
            return t, t.commit()
        except CommitStateUnknownError:
            repeated["commit"] += 1
            return t, t.commit()

    for crash in crash_runs(begin, act):
        if crash.result is not None:
            log = reopen(crash.store, 3)
            assert values(log) == BEFORE + JOB, str(crash)
            t, result = crash.result
            assert result == t.result
            ends = log.end_offsets()
            assert {p: end for p, (_, end) in result.offsets.items()} == {
                p: ends[p] for p in (0, 1)
            }
        discard(crash.store)


def test_every_takeover_beside_a_holder_that_lives():
    """S48, C18: whatever happened to the takeover, the holder commits everything, or knows that it
    is fenced.
    """
    outcomes = Counter()
    for crash in crash_runs(begin, lambda store: reopen(store, 4).transaction("job")):
        log = reopen(crash.store, 2)
        slow = job(log, large=False)
        other = reopen(crash.store, 5)
        if crash.point == "C6":
            other.transaction("job")
        try:
            slow.commit()
            outcomes["committed"] += 1
            assert values(log) == BEFORE + JOB
        except TransactionFencedError:
            outcomes["fenced"] += 1
            assert values(log) == BEFORE
        with pytest.raises((InvalidInputError, TransactionFencedError)):
            slow.append([{"key": "k", "value": "late"}])
        discard(crash.store)
    assert min(outcomes["committed"], outcomes["fenced"]) > 0, outcomes
