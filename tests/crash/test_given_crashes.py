"""Crash enumeration of a mirror (COMMIT.md §13): every call of the store, before and after.

The mirror dies at each of its calls, or lives on with a reply that was lost. Whoever goes on begins
where the log ends; then each record of the source is at its offset, once, and nothing else is.
"""

from collections import Counter

import pytest

from clog.storage import CommitStateUnknownError, InvalidInputError, Log, ManualClock
from clog.storage.env import SeededIds
from clog_testing.crash import crash_runs, discard
from clog_testing.invariants import check_log

TOPIC = "kafka:cluster/topic"
SOURCE = {0: [2, 3, 7, 8, 12], 1: [100, 101]}
"""Offsets of its records. Missing ones never had a record that counts."""
ENDS, STARTS = {0: 16, 1: 105}, {0: 3, 1: 100}
FIRST = {0: ([2, 3], 5), 1: ([], 0)}
"""What was mirrored before: records, and the end."""
LOGS = ({p: offsets for p, (offsets, _) in FIRST.items()}, {0: [3, 7, 8, 12], 1: [100, 101]})
"""The records before and after the rest came, by partition, above the log start."""


def begin(store):
    log = Log.create(
        store, 2, clock=ManualClock(5_000), ids=SeededIds(1), features=["given-offsets"]
    )
    commit(log, {p: offsets for p, (offsets, _) in FIRST.items()}, {0: 5}, {})


def reopen(store, seed):
    return Log.open(store, clock=ManualClock(5_000), ids=SeededIds(seed))


def commit(log, offsets, ends, starts):
    with log.transaction("mirror") as t:
        t.cover(ends, start=starts)
        for p, mine in offsets.items():
            rows = [{"key": f"k{offset % 3}", "value": str(offset)} for offset in mine]
            t.append(rows, p, offsets=mine)
        t.positions(TOPIC, {p: (end, "7") for p, end in ends.items()})
    return t


def mirror(log):
    """Continues from where the log ends, and adopts the source's start."""
    at = log.end_offsets()
    left = {p: [o for o in offsets if o >= at[p]] for p, offsets in SOURCE.items()}
    return commit(log, left, ENDS, STARTS)


def held(log):
    """The offsets that the log has, by partition; each record contains its own."""
    found = {}
    for p in SOURCE:
        batches = list(log.read(p))
        found[p] = [o for b in batches for o in b.column("offset").to_pylist()]
        values = [int(v) for b in batches for v in b.column("value").to_pylist()]
        assert values == found[p]
    return found


def test_every_crash_leaves_a_mirror_that_goes_on():
    """S75, C1 to C7: records, ends, start and position are there together, or none of them."""
    seen = Counter()
    for crash in crash_runs(begin, lambda store: mirror(reopen(store, 2))):
        log = reopen(crash.store, 3)
        happened = log.end_offsets() == ENDS
        assert held(log) == LOGS[happened], str(crash)
        ends = ENDS if happened else {p: end for p, (_, end) in FIRST.items()}
        position = {p: end for p, end in ends.items() if happened or p == 0}
        assert log.end_offsets() == ends, str(crash)
        assert log.start_offsets() == (STARTS if happened else {0: 0, 1: 0}), str(crash)
        assert log.positions("mirror") == {TOPIC: position}, str(crash)
        if crash.error is None and not crash.killed:
            assert happened, str(crash)
        elif crash.error is not None and not isinstance(crash.error, CommitStateUnknownError):
            assert not happened, f"{crash}: {crash.error}"
        seen[crash.point, happened] += 1
        mirror(log)
        assert held(log) == LOGS[1], str(crash)
        assert (log.end_offsets(), log.start_offsets()) == (ENDS, STARTS), str(crash)
        check_log(crash.store, every_version=False)
        discard(crash.store)
    assert {"C1", "C2", "C5", "C6", "C7"} <= {point for point, _ in seen}, seen
    assert {happened for _, happened in seen} == {True, False}


def test_every_lost_reply_of_a_producer_is_answered():
    """H-B20, C6: it repeats its sequence with the same offsets, and gets the result of the first
    try; the log is not behind itself.
    """

    def append(store, seed):
        rows = [{"key": "k", "value": str(offset)} for offset in (9, 14)]
        return reopen(store, seed).append(rows, 0, ("m", 1), offsets=[9, 14])

    told = Counter()
    for crash in crash_runs(begin, lambda store: append(store, 2)):
        again = append(crash.store, 3)
        assert again.offsets in ({0: (9, 15)}, {}), str(crash)
        assert held(reopen(crash.store, 4))[0] == [2, 3, 9, 14], str(crash)
        told[again.duplicate] += 1
        discard(crash.store)
    assert min(told[True], told[False]) > 0, told


def test_every_crash_of_the_end_leaves_one_kind_of_log():
    """S75: it accepts offsets, or assigns them, never both."""
    seen = Counter()
    for crash in crash_runs(begin, lambda store: reopen(store, 2).give_offsets()):
        log = reopen(crash.store, 3)
        row = [{"key": "k", "value": "5"}]
        ended = not log.describe()["takes_offsets"]
        if ended:
            with pytest.raises(InvalidInputError, match="has assigned offsets itself since"):
                mirror(log)
            assert log.append(row, 0).offsets == {0: (5, 6)}
        else:
            with pytest.raises(InvalidInputError, match="takes its offsets from its source"):
                log.append(row, 0)
            mirror(log)
        seen[ended] += 1
        log.give_offsets()
        check_log(crash.store, every_version=False)
        discard(crash.store)
    assert min(seen[True], seen[False]) > 0, seen
