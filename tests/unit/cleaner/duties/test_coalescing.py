"""Coalescing and trimming: the layout changes, the records do not."""

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work, layout
from clog.cleaner.duties.layout import (
    LOOSE_OBJECTS_MIN,
    WAIT_MS_MAX,
    candidate_runs,
    coalesce,
    trim,
)
from clog.cleaner.duties.sweep import sweep_released
from clog.cleaner.passes.rewriter import is_shared
from clog.storage import CorruptionError, Log, ManualClock
from clog.storage.env import SeededIds
from clog.storage.store import open_store
from clog_testing.counting import CountingStore
from clog_testing.crash import inside
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore


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
    """Offsets, order, values, tombstones and timestamps are the same as before, under every policy
    (S1, S26, S31).
    """
    log = make(store, clock, cleanup_policy=policy)
    fill(log, clock, 40)
    before = records(log)
    assert log.describe()["objects"] == 40
    coalesce(Work(log.handle, clock.now_ms()))
    assert log.describe()["objects"] == 3
    assert records(log) == before
    assert records(Log.open(store, clock=clock)) == before
    assert not [r for r in candidate_runs(log.handle.manifest()) if any(map(is_shared, r.chunks))]


def test_each_object_is_read_once_for_all_partitions(store, clock):
    log = make(store, clock)
    fill(log, clock, 40)
    log.handle.manifest()
    with store.count() as counted:
        coalesce(Work(log.handle, clock.now_ms()))
    reads = counted["get"] + counted["get_ranges"]
    assert reads <= 40 + 2  # the objects, the block's file, one look for what is loose and young
    assert counted["list"] == 0
    assert counted["put"] <= 3 + 1  # an object a partition, and the hint


def test_it_waits_until_enough_objects_are_loose(store, clock):
    log = make(store, clock)
    fill(log, clock, LOOSE_OBJECTS_MIN - 1)
    assert coalesce(Work(log.handle, clock.now_ms())) == []
    fill(log, clock, 1, start=99)
    assert coalesce(Work(log.handle, clock.now_ms()))


def test_a_shared_object_waits_no_longer_than_the_bound(store, clock):
    """A quiet log's objects are coalesced too, within a bounded time."""
    log = make(store, clock)
    fill(log, clock, 2)
    clock.advance(WAIT_MS_MAX)
    assert coalesce(Work(log.handle, clock.now_ms()))
    clock.advance(WAIT_MS_MAX)
    assert coalesce(Work(log.handle, clock.now_ms())) == []


def test_appends_meanwhile_neither_wait_nor_are_lost(store, clock):
    """S30: the append wins, coalescing rebases."""
    log = make(store, clock)
    other = Log.open(store, clock=clock)
    fill(log, clock, 40)
    before = records(log)
    log.handle.manifest()
    fill(other, clock, 3, start=70)
    assert coalesce(Work(log.handle, clock.now_ms()))
    after = records(log)
    assert {p: rows[: len(before[p])] for p, rows in after.items()} == before
    assert after == records(other)
    assert sum(map(len, after.values())) == 43 * 6


@pytest.mark.nightly
def test_a_record_is_rewritten_a_logarithmic_number_of_times(store, clock):
    """Chunks grow like a binary counter: 32 rounds rewrite each record 6 times at most, not 32
    times, and leave at most 6 chunks in each partition.
    """
    log = make(store, clock)
    rewritten = 0
    for i in range(32):
        fill(log, clock, LOOSE_OBJECTS_MIN, start=i * LOOSE_OBJECTS_MIN)
        done = coalesce(Work(log.handle, clock.now_ms()))
        rewritten += sum(c.rows for run in done for c in run.chunks)
    total = sum(log.end_offsets().values())
    assert 2 * total < rewritten <= 6 * total
    assert all(len(s.chunks) <= 6 for (s,) in log.handle.manifest().segments)


def test_chunks_that_share_nothing_are_taken_with_their_neighbours(store, clock, monkeypatch):
    """For writers that give each partition its own objects: a bounded part of them is merged each
    time. One chunk of each partition would become itself again, forever.
    """
    log = make(store, clock)
    for i in range(12):
        for p in range(3):
            log.append([{"key": f"k{i}", "value": f"v{i}-{j}"} for j in range(4)], partition=p)
    before = records(log)
    object_bytes = log.handle.manifest().segments[0][0].chunks[0].size_bytes
    monkeypatch.setattr(layout, "ROUND_BYTES_MAX", 3 * object_bytes)
    commits = log.version
    assert coalesce(Work(log.handle, clock.now_ms()), force=True)
    assert log.version - commits < 3 * 12
    assert records(log) == before
    assert not loose_objects(log)


def test_a_damaged_object_keeps_no_others(store, clock):
    """S28: everything else is rewritten, trimmed, cleaned and swept as if it were whole, round by
    round; the round reports the damage when it ends.
    """
    log = make(store, clock, cleanup_policy="compact", file_delete_delay_ms=0)
    for p in range(3):
        for keys in ("ab", "cd", "ef", "gh"):
            log.append([{"key": key, "value": "1"} for key in keys], partition=p)
    log.roll()
    fill(log, clock, LOOSE_OBJECTS_MIN)
    segments = log.handle.manifest().segments
    damaged = {segments[1][0].chunks[0].object.path, segments[0][1].chunks[9].object.path}
    for path in damaged:
        inside(store).put(path, b"\0" * 100)
    log.delete_records({0: 3, 1: 1, 2: 3})
    for _ in range(2):
        with pytest.raises(CorruptionError, match="is damaged"):
            Cleaner(log).run_once(force=True)
        clock.advance(1)
    log.handle.refresh()
    manifest = log.handle.manifest()
    assert manifest.first_dirty == (8, 1, 8)
    assert list(manifest.uncleanable) == [1]
    bases = [next(c.base for s in segments for c in s.chunks) for segments in manifest.segments]
    assert bases == [3, 0, 3]
    assert {c.object.path for _, c in manifest.chunks() if is_shared(c)} < damaged
    assert manifest.head.oldest_readable > 0


def test_what_lies_alone_beside_damage_stays(store, clock):
    """S28: it would become itself again, each time until the store is repaired."""
    log = make(store, clock)
    fill(log, clock, 5)
    inside(store).put(log.handle.manifest().segments[0][0].chunks[1].object.path, b"\0" * 100)
    made = []
    for _ in range(2):
        with pytest.raises(CorruptionError, match="is damaged"):
            coalesce(Work(log.handle, clock.now_ms()), force=True)
        made.append([s.chunks for segments in log.handle.manifest().segments for s in segments])
    assert made[0] == made[1]
    assert [len(segment) for segment in made[0]] == [3] * 3


def test_what_was_swept_meanwhile_is_not_damaged(store, clock):
    """Another cleaner replaced it, and its delay is over: nothing is wrong with the log."""
    log = make(store, clock, file_delete_delay_ms=0)
    fill(log, clock, 5)
    before = records(log)

    def others_go_on():
        assert coalesce(Work(log.handle, clock.now_ms()), force=True)
        assert sweep_released(Work(log.handle, clock.now_ms() + 1)).objects

    fault = Fault(FaultKind.MEANWHILE, "get*", "*/data/*", nth=2, run=others_go_on)
    slow = Log.open(FaultyStore(store, Faults(fault)), clock=clock).handle
    assert coalesce(Work(slow, clock.now_ms()), force=True) == []
    assert records(log) == before


def test_a_fast_writer_neither_starves_it_nor_keeps_it(store, clock):
    """S30: three races are lost to as many new objects each; it ends all the same, and the next
    call handles those.
    """
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
    assert sum(r.next for r in coalesce(Work(hit.handle, clock.now_ms()))) == 40 * 6
    assert len(loose_objects(other)) == 3 * 40 + 3  # and the three made, too small to rest
    assert coalesce(Work(other.handle, clock.now_ms()))
    assert loose_objects(log) == set()
    assert records(log) == records(other)


def loose_objects(log):
    log.handle.refresh()
    return {c.object.path for r in candidate_runs(log.handle.manifest()) for c in r.chunks}


def test_log_append_time_stays_what_it_was(store, clock):
    log = make(store, clock, **{"message.timestamp.type": "LogAppendTime"})
    fill(log, clock, 40)
    before = records(log)
    assert coalesce(Work(log.handle, clock.now_ms()))
    assert records(log) == before


def test_the_replaced_objects_are_released(store, clock):
    """S27: they stay readable until their delay is over; the sweep knows them without a listing."""
    log = make(store, clock)
    fill(log, clock, 40)
    version = log.version
    coalesce(Work(log.handle, clock.now_ms()))
    assert len(log.handle.manifest().released) == 40
    assert log.table(at=version).to_arrow().num_rows == log.table().to_arrow().num_rows


def test_records_below_the_low_watermark_are_trimmed_under_every_policy(store, clock):
    """S37: physically absent from every object that a chunk refers to."""
    log = make(store, clock)
    fill(log, clock, 10)
    log.roll()
    before = records(log)
    log.delete_records({0: 7, 1: 3})
    assert trim(Work(log.handle, 0))
    after = records(log)
    assert after[0] == [r for r in before[0] if r["offset"] >= 7]
    assert after[1] == [r for r in before[1] if r["offset"] >= 3]
    assert after[2] == before[2]
    lowest = {p: min(c.base for q, c in log.handle.manifest().chunks() if q == p) for p in (0, 1)}
    assert lowest == {0: 7, 1: 3}
    assert trim(Work(log.handle, 0)) == []


def test_chunks_below_the_low_watermark_are_not_read(store, clock):
    """S37: in the segment that contains it, those below it; nor where they have gaps."""
    log = make(store, clock, cleanup_policy="compact", object_bytes=200)
    for _ in range(2):
        log.append([{"key": f"k{i:02}", "value": "1"} for i in range(30)], partition=0)
    log.append([{"key": f"k{i:02}", "value": "2"} for i in range(0, 30, 2)], partition=0)
    log.roll()
    Cleaner(log).run_once(force=True)
    below, at, *_ = log.handle.manifest().segments[0][0].chunks
    assert not below.object.dense
    log.delete_records({0: at.base + 1})
    inside(store).delete(below.object.path)
    assert [r.next for r in trim(Work(log.handle, 0))] == [at.next]


def test_trimming_takes_bounded_memory(store, clock, monkeypatch):
    """S37: not the chunks of all partitions at once."""
    monkeypatch.setattr(layout, "ROUND_BYTES_MAX", 1)
    log = make(store, clock)
    for p in range(3):
        log.append([{"key": "k", "value": "1"}] * 2, partition=p)
    log.roll()
    log.delete_records(dict.fromkeys(range(3), 1))
    assert len(trim(Work(log.handle, 0))) == 3
    assert [c.operation for c in log.history()].count("trim") == 2
    assert [len(rows) for rows in records(log).values()] == [1, 1, 1]


def test_the_active_segment_is_not_trimmed(store, clock):
    log = make(store, clock)
    fill(log, clock, 2)
    log.delete_records({0: 1})
    assert trim(Work(log.handle, 0)) == []
