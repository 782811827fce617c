"""Coalescing and trimming: the layout changes, the records do not."""

import pytest

from clog.cleaner.coalescing import (
    LOOSE_OBJECTS_MIN,
    WAIT_MS_MAX,
    candidate_runs,
    coalesce,
)
from clog.cleaner.layout import is_shared
from clog.cleaner.trimming import trim
from clog.storage import Log, ManualClock
from clog.storage.ids import SeededIds
from clog.storage.store import open_store
from clog.storage.testing.counting import CountingStore
from clog.storage.testing.faults import Fault, FaultKind, Faults, FaultyStore


@pytest.fixture
def clock():
    return ManualClock(1_000_000)


@pytest.fixture
def store(tmp_path):
    return CountingStore(open_store(str(tmp_path / "log"), {"fsync": False}))


def make(store, clock, **config):
    config = {"cleanup.policy": "delete", **{k.replace("_", "."): v for k, v in config.items()}}
    return Log.create(store, partitions=3, config=config, clock=clock, ids=SeededIds(1))


def fill(log, clock, batches, start=0):
    for i in range(start, start + batches):
        rows = [
            {"key": f"k{(7 * i + j) % 30}", "value": None if j == 3 else f"v{i}-{j}"}
            for j in range(6)
        ]
        log.append(rows)
        clock.advance(100)


def records(log):
    return {p: [row for b in log.read(p) for row in b.to_pylist()] for p in range(log.partitions)}


@pytest.mark.parametrize("policy", ["delete", "compact", "compact,delete", ""])
def test_objects_of_many_micro_batches_become_few_and_the_records_stay(store, clock, policy):
    """Offsets, order, values, tombstones and timestamps are those from before, under every policy
    (S1, S26, S31)."""
    log = make(store, clock, cleanup_policy=policy)
    fill(log, clock, 40)
    before = records(log)
    assert log.describe()["objects"] == 40
    coalesce(log.handle, store, now_ms=clock.now_ms())
    assert log.describe()["objects"] == 3
    assert records(log) == before
    assert records(Log.open(store, clock=clock)) == before
    assert not [r for r in candidate_runs(log.handle.manifest()) if any(map(is_shared, r.chunks))]


def test_each_object_is_read_once_for_all_partitions(store, clock):
    log = make(store, clock)
    fill(log, clock, 40)
    log.handle.manifest()
    with store.count() as counted:
        coalesce(log.handle, store, now_ms=clock.now_ms())
    reads = counted["get"] + counted["get_ranges"]
    assert reads <= 40 + 2  # the objects, the block's gc file, one look for what is loose and young
    assert counted["list"] == 0
    assert counted["put"] <= 3 + 1  # an object a partition, and the hint


def test_it_waits_until_enough_objects_are_loose(store, clock):
    log = make(store, clock)
    fill(log, clock, LOOSE_OBJECTS_MIN - 1)
    assert coalesce(log.handle, store, now_ms=clock.now_ms()) == []
    fill(log, clock, 1, start=99)
    assert coalesce(log.handle, store, now_ms=clock.now_ms())


def test_a_shared_object_waits_no_longer_than_the_bound(store, clock):
    """A quiet log's objects are coalesced, too, within a bounded time."""
    log = make(store, clock)
    fill(log, clock, 2)
    clock.advance(WAIT_MS_MAX)
    assert coalesce(log.handle, store, now_ms=clock.now_ms())
    clock.advance(WAIT_MS_MAX)
    assert coalesce(log.handle, store, now_ms=clock.now_ms()) == []


def test_appends_meanwhile_neither_wait_nor_are_lost(store, clock):
    """S30: the append wins, coalescing rebases."""
    log = make(store, clock)
    other = Log.open(store, clock=clock)
    fill(log, clock, 40)
    before = records(log)
    log.handle.manifest()
    fill(other, clock, 3, start=70)
    assert coalesce(log.handle, store, now_ms=clock.now_ms())
    after = records(log)
    assert {p: rows[: len(before[p])] for p, rows in after.items()} == before
    assert after == records(other)
    assert sum(map(len, after.values())) == 43 * 6


def test_a_record_is_rewritten_a_logarithmic_number_of_times(store, clock):
    """Chunks grow as a binary counter does: 32 rounds rewrite each record 6 times at most, not 32
    times, and leave at most 6 chunks in each partition."""
    log = make(store, clock)
    rewritten = 0
    for i in range(32):
        fill(log, clock, LOOSE_OBJECTS_MIN, start=i * LOOSE_OBJECTS_MIN)
        done = coalesce(log.handle, store, now_ms=clock.now_ms())
        rewritten += sum(c.rows for run in done for c in run.chunks)
    total = sum(log.end_offsets().values())
    assert 2 * total < rewritten <= 6 * total
    assert all(len(s.chunks) <= 6 for (s,) in log.handle.manifest().segments)


def test_a_fast_writer_neither_starves_it_nor_keeps_it(store, clock):
    """S30: three races are lost to as many new objects each; it ends all the same, and the next
    call takes those."""
    log = make(store, clock)
    other = Log.open(store, clock=clock)
    fill(log, clock, 40)
    more = Fault(
        FaultKind.MEANWHILE,
        "create",
        "*commits*",
        times=3,
        run=lambda: fill(other, clock, 40, start=100 * other.version),
    )
    hit = Log.open(FaultyStore(store, Faults(more)), clock=clock)
    assert sum(r.next for r in coalesce(hit.handle, store, now_ms=clock.now_ms())) == 40 * 6
    assert len(loose_objects(other)) == 3 * 40 + 3  # and the three made, too small to rest
    assert coalesce(other.handle, store, now_ms=clock.now_ms())
    assert loose_objects(log) == set()
    assert records(log) == records(other)


def loose_objects(log):
    log.handle.refresh()
    return {c.object.path for r in candidate_runs(log.handle.manifest()) for c in r.chunks}


def test_log_append_time_stays_what_it_was(store, clock):
    log = make(store, clock, **{"message.timestamp.type": "LogAppendTime"})
    fill(log, clock, 40)
    before = records(log)
    assert coalesce(log.handle, store, now_ms=clock.now_ms())
    assert records(log) == before


def test_the_replaced_objects_are_released(store, clock):
    """S27: they stay readable until their delay is over; the sweep knows them without a listing."""
    log = make(store, clock)
    fill(log, clock, 40)
    version = log.version
    coalesce(log.handle, store, now_ms=clock.now_ms())
    assert len(log.handle.manifest().released) == 40
    assert log.table(at=version).to_arrow().num_rows == log.table().to_arrow().num_rows


def test_records_below_the_low_watermark_are_trimmed_under_every_policy(store, clock):
    """S37: physically absent from every object that a chunk refers to."""
    log = make(store, clock)
    fill(log, clock, 10)
    log.roll()
    before = records(log)
    log.delete_records({0: 7, 1: 3})
    assert trim(log.handle, store)
    after = records(log)
    assert after[0] == [r for r in before[0] if r["offset"] >= 7]
    assert after[1] == [r for r in before[1] if r["offset"] >= 3]
    assert after[2] == before[2]
    lowest = {p: min(c.base for q, c in log.handle.manifest().chunks() if q == p) for p in (0, 1)}
    assert lowest == {0: 7, 1: 3}
    assert trim(log.handle, store) == []


def test_the_active_segment_is_not_trimmed(store, clock):
    log = make(store, clock)
    fill(log, clock, 2)
    log.delete_records({0: 1})
    assert trim(log.handle, store) == []
