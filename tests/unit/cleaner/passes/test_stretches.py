"""A partition in stretches: where it is divided, and that the result is that of one pass."""

import random
from itertools import pairwise

import pytest

from clog.cleaner import Cleaner, selection
from clog.cleaner.log_round import CleanerSettings, LogRound
from clog.cleaner.passes import run_pass
from clog.cleaner.passes.offset_map import MappedRange
from clog.cleaner.passes.run_pass import PassProgress
from clog.cleaner.selection import PassResult, PassStats
from clog.cleaner.threads import CleanerThreads, Throttle
from clog.storage import Log
from clog.storage.env import SeededIds
from clog_testing.crash import copy_of, discard
from clog_testing.invariants import check_log
from clog_testing.model import rows_in

MAP_BYTES = 1 << 16
LOST = PassResult(0, 0, 0, PassStats(), complete=False)
"""The result of a stretch that nobody does."""


@pytest.fixture
def log_round(clock):
    """A round over a log; its cleaner may do single steps of it."""
    return lambda log: LogRound(log, clock, Throttle(None, clock), CleanerSettings())


@pytest.fixture
def in_stretches(log_round, open_log):
    """Cleans a partition in this many stretches, in the given order, each as another process would,
    and ends the pass; returns what was done, and in how many stretches.
    """

    def clean(log, count, order=range, map_bytes=MAP_BYTES):
        plan = log_round(log).plan(0, force=True)
        size_bytes = sum(s.size_bytes for s in plan.sealed)
        task_bytes = -(-size_bytes // count)
        parts = run_pass.stretches(plan, task_bytes=task_bytes, count_max=count)
        done = [[LOST] for _ in parts]
        for i in order(len(parts)):
            result = log_round(open_log()).clean(
                0, CleanerThreads(1, map_bytes), PassProgress(), force=True, stretch=parts[i]
            )
            done[i].append(result or LOST)
        return run_pass.commit_covered(log.handle, plan, done) if parts else LOST, len(parts)

    return clean


def decided(log):
    """What a pass decides: records, the first dirty offset, the tombstones' horizons."""
    log.handle.refresh()
    manifest = log.handle.manifest()
    chunks = [c for s in manifest.segments[0] for c in s.chunks]
    horizons = [(c.horizon, c.up_to) for c in chunks if c.horizon != -1]
    return rows_in(log.read()), manifest.first_dirty, sorted(set(horizons))


def backwards(count):
    return reversed(range(count))


def fill(log, put, seed=1, rounds=12):
    made = random.Random(seed)
    for turn in range(rounds):
        keys = [made.choice("abcdefgh") for _ in range(made.randrange(1, 5))]
        put(log, " ".join(k if made.random() < 0.3 else f"{k}={turn % 10}" for k in keys))
    log.roll()


@pytest.mark.parametrize(("count", "turned"), [(2, True), (3, False), (8, True)])
def test_it_ends_as_by_one_pass(make_log, put, store, clock, in_stretches, count, turned):
    """S20, S21, S23: whatever the order in which stretches are done, records, the first dirty
    offset and horizons are those of one pass; also a second time, with a clean part and horizons
    that have passed.
    """
    log = make_log(delete_retention_ms=5000)
    fill(log, put)
    other_store = copy_of(store)
    other = Log.open(other_store, clock=clock, ids=SeededIds(9))
    for seed in (2, 3):
        Cleaner(other).run_once(force=True)
        order = backwards if turned else range
        result, parts = in_stretches(log, count, order)
        assert result.complete
        assert 2 <= parts <= count
        assert decided(log) == decided(other)
        check_log(store, every_version=False)
        clock.advance(6000)
        for each in (log, other):
            fill(each, put, seed)
    discard(other_store)


def test_one_that_is_missing_ends_nothing(make_log, put, there, store, clock, in_stretches):
    """S23: as long as an older value may be there no tombstone has a horizon, and the first dirty
    offset stays; the next pass finds less to do, and finishes it. Nothing reappears.
    """
    log = make_log(delete_retention_ms=0)
    put(log, "a=1 b=1 c=1 d=1 e=1 f=1 a b=2 c d e f")
    log.roll()
    result, parts = in_stretches(log, 4, lambda n: range(1, n))
    assert (result.complete, parts) == (False, 4)
    assert there(log) == "0:a=1 1:b=1 2:c=1 6:a 7:b=2 8:c 9:d 10:e 11:f"
    log.handle.refresh()
    manifest = log.handle.manifest()
    assert manifest.first_dirty == (0,)
    assert {c.horizon for s in manifest.segments[0] for c in s.chunks} == {-1}
    clock.advance(1000)
    result, _ = in_stretches(log, 4, backwards)
    assert result.complete
    assert there(log) == "6:a 7:b=2 8:c 9:d 10:e 11:f"
    clock.advance(1000)
    Cleaner(log).run_once(force=True)
    assert there(log) == "7:b=2"
    check_log(store)


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 12))]
)
def test_no_value_comes_back(make_log, put, store, clock, in_stretches, seed):
    """S21, S23: stretches in any order, some of them lost, some repeated, maps that fill up,
    appends and time in between: the table stays what the appends say, at each readable version.
    """
    made, expected = random.Random(seed), {}
    log = make_log(delete_retention_ms=made.choice([0, 3000]))
    for turn in range(6):
        for _ in range(made.randrange(3, 9)):
            key, value = made.choice("abcdefgh"), f"{turn}"
            put(log, key if made.random() < 0.3 else f"{key}={value}")
            row = rows_in(log.read())[-1][2]
            expected[row.key] = row.value
        log.roll()
        clock.advance(made.choice([0, 2000, 4000]))

        def some(n, made=made):
            each = [*range(n), made.randrange(n)] if n else []
            made.shuffle(each)
            return each[: made.randrange(1, n + 2)]

        in_stretches(log, made.choice([2, 3, 5]), some, made.choice([MAP_BYTES, 4 * 24]))
        table = {r.key: r.value for _, _, r in rows_in(log.table().to_batches())}
        assert table == {k: v for k, v in expected.items() if v is not None}
    check_log(store)


def test_where_it_is_cut(make_log, put, log_round):
    """A partition is divided at segments, into parts of about the same size: no more than allowed,
    none if one task is enough.
    """
    log = make_log()
    put(log, " ".join(f"k{i % 10}=1" for i in range(31)))
    plan = log_round(log).plan(0, force=True)
    assert len(plan.sealed) > 8

    def cut(task_bytes, count_max):
        found = run_pass.stretches(plan, task_bytes=task_bytes, count_max=count_max)
        assert all(a.end == b.start for a, b in pairwise(found))
        if found:
            assert (found[0].start, found[-1].end) == (0, plan.dirty[1])
        own = [selection.PassPlan(*_fields(plan), part).sealed for part in found]
        assert not found or [s for some in own for s in some] == plan.sealed
        return [len(some) for some in own]

    size_bytes = sum(s.size_bytes for s in plan.sealed)
    assert cut(size_bytes, 8) == []
    assert cut(size_bytes - 1, 1) == []
    assert cut(size_bytes - 1, 8) == [8, 7]
    assert cut(1, 3) == [5, 5, 5]
    assert len(cut(1, 100)) == run_pass.STRETCHES_MAX


def _fields(plan):
    return plan.manifest, plan.candidate, plan.config, plan.now_ms, plan.held


def test_the_sums_are_those_of_the_stretch(make_log, put, there, in_stretches, monkeypatch):
    """Conservation, and the recheck (S28): one that would drop a live row is refused, by the sums
    over its own segments.
    """
    log = make_log()
    put(log, "a=1 b=1 c=1 d=1 e=1 f=1 a=2 b=2 c=2 d=2")
    log.roll()
    before = there(log)
    original = MappedRange.superseded

    def superseded(self, chunk):
        """One more row in the last segments; what is computed from offsets alone agrees."""
        found = original(self, chunk)
        return found | (chunk.base >= 9)

    with monkeypatch.context() as broken:
        broken.setattr(MappedRange, "superseded", superseded)
        broken.setattr(MappedRange, "is_outdated", lambda self, offsets: offsets >= 0)
        in_stretches(log, 2, lambda n: [n - 1])
    assert there(log) == before
    log.handle.refresh()
    reason = log.handle.manifest().uncleanable[0].reason
    assert "would have been kept" in reason or "it is not known to be dead" in reason
