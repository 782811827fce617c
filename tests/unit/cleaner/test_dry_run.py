"""What the next round would do, and that it does just that."""

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties.layout import SEGMENTS_MIN, WAIT_MS_MAX
from clog.cleaner.duties.retention import BACKOFF_MS
from clog.cleaner.log_round import plan_round
from clog.cli.clean import plan_lines
from clog_testing.counting import CountingStore
from clog_testing.crash import inside


def test_maintenance_is_said_exactly(make_log, put, store, clock, open_log):
    """What is sealed, cut, trimmed and deleted is what the plan said; planning writes nothing."""
    log = make_log(3, cleanup_policy="delete", retention_ms=1000, segment_ms=5000)
    put(log, "a=1 b=1 c=1 d=1 e=1 f=1", partition=0, timestamp=clock.now_ms())
    put(log, "a=1", partition=1, timestamp=clock.now_ms() + 10_000)
    put(log, "a=1 b=1 c=1 d=1", partition=2, timestamp=clock.now_ms() + 10_000)
    log.delete_records({2: 1})
    clock.advance(5001)
    counting = CountingStore(store)
    planned = plan_round(open_log(counting).handle, now_ms=clock.now_ms())
    assert counting.bytes_out == 0
    assert counting.counts["delete"] == 0
    assert planned.sealed == [0, 1, 2]
    (cut,) = planned.cuts
    assert (cut.partition, cut.start_offset, cut.records) == (0, 6, 6)
    (trim,) = planned.trims
    assert (trim.partition, trim.records) == (2, 1)
    assert planned.passes == []

    Cleaner(log).run_once()
    operations = [commit.operation for commit in log.history() if commit.operation != "append"]
    assert operations[-3:] == ["seal", "retention", "trim"]
    assert log.start_offsets() == {0: cut.start_offset, 1: 0, 2: 1}
    assert len(log.segments(2)) == len(log.segments(1)) + 1


def test_passes_are_said_as_planned(make_log, put, clock):
    """Reason, range, records to map; then the objects that are deleted when their delay is over."""
    log = make_log(2, file_delete_delay_ms=1000)
    put(log, "a=1 b=1 a=2 c=1 d=1")
    log.roll()
    (planned,) = plan_round(log.handle, now_ms=clock.now_ms()).passes
    (result,) = Cleaner(log).run_once()
    assert (planned.partition, planned.reason) == (0, "dirty")
    assert planned.first_dirty_offset == result.first_dirty_offset
    assert planned.first_uncleanable_offset == result.next_dirty_offset
    assert planned.map_records == result.stats.map_records
    assert planned.segments == result.stats.segments_before
    assert planned.size_bytes == result.stats.size_bytes_before
    clock.advance(1001)
    before = {found.path for found in log.handle.store.list("data/")}
    later = plan_round(log.handle, now_ms=clock.now_ms())
    assert later.passes == []
    Cleaner(log).run_once()
    assert set(later.deleted) == before - {f.path for f in log.handle.store.list("data/")}
    assert later.deleted


def test_what_back_off_skips_is_no_pass(make_log, put, store, clock):
    """S28: a partition whose pass failed lately rests; forced, it does not."""
    log = make_log(2)
    for p in range(2):
        put(log, "a=1 b=1 a=2", partition=p)
    log.roll()
    path = log.handle.manifest().segments[1][0].chunks[0].object.path
    inside(store).put(path, b"x")
    Cleaner(log).run_once()
    put(log, "a=3 b=3 a=4", partition=0)
    log.roll()
    planned = plan_round(log.handle, now_ms=clock.now_ms())
    assert ([p.partition for p in planned.passes], planned.resting) == ([0], [1])
    assert any("partition 1 alone" in line for line in plan_lines(planned))
    forced = plan_round(log.handle, now_ms=clock.now_ms(), force=True)
    assert ({p.partition for p in forced.passes}, forced.resting) == ({0, 1}, [])
    clock.advance(BACKOFF_MS)
    later = plan_round(log.handle, now_ms=clock.now_ms())
    assert ({p.partition for p in later.passes}, later.resting) == ({0, 1}, [])


def test_what_a_pass_merges_is_said(make_log, put, clock):
    """S25: where nothing dies as many segments are left as was said, else at most so many."""
    log = make_log()
    put(log, "a=1 b=1 c=1 d=1 e=1 f=1 g=1 h=1")
    log.alter({"segment.bytes": 6 * 14})
    for more, said, left in ("", 2, 2), ("a=2 b=2 c=2 d=2 e=2 f=2", 3, 2):
        put(log, more)
        log.roll()
        (planned,) = plan_round(log.handle, now_ms=clock.now_ms(), force=True).passes
        (result,) = Cleaner(log).run_once(force=True)
        assert planned.segments == result.stats.segments_before == 3
        assert (planned.segments_merged, result.stats.segments_after) == (said, left)


@pytest.mark.parametrize(("segment_chunks", "left"), [(8, 2), (6, 9), (2, 9)])
def test_merges_are_said_as_of_after_coalescing(make_log, clock, segment_chunks, left):
    """Small segments merge in the round in which their chunks have become few enough: as many, of
    as many records, as the plan said, and nothing where it said nothing."""
    log = make_log(2, cleanup_policy="delete", retention_ms=-1, segment_bytes=1 << 20)
    rows = [{"key": str(i), "value": "1"} for i in range(4)]
    for _ in range(SEGMENTS_MIN):
        for _ in range(3):
            log.append(rows, partition=[0, 0, 1, 1])
        log.roll()
    log.alter({"segment.chunks": segment_chunks})
    clock.advance(WAIT_MS_MAX + 1)
    planned = plan_round(log.handle, now_ms=clock.now_ms())
    assert len(planned.coalesced) == 2 * SEGMENTS_MIN
    Cleaner(log).run_once()
    merged = [(m.partition, m.base_offset, m.next_offset, m.records) for m in planned.merged]
    made = [
        (p, s.base_offset, s.next_offset, s.records)
        for p in range(2)
        for s in log.segments(p)
        if s.records > 6
    ]
    assert merged == made
    assert all(m.segments == SEGMENTS_MIN for m in planned.merged)
    assert [len(log.segments(p)) for p in range(2)] == [left, left]
