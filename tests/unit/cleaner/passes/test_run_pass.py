"""One pass: what stays, what is removed, and what it does to segments and tombstones."""

import numpy as np
import pyarrow as pa
import pytest

from clog.cleaner import Cleaner, log_round
from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_orphans, sweep_released
from clog.cleaner.passes import rewriter, run_pass
from clog.cleaner.passes.offset_map import SLOT_BYTES, KeyHasher
from clog.storage import Log, ManualClock, StoreUnavailableError
from clog.storage.env import SeededIds
from clog.storage.objects.composing import RewritingWriter
from clog.storage.objects.records import to_records
from clog_testing.crash import memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log
from clog_testing.model import rows_in

DAY_MS = 86_400_000


def entries(count):
    """Memory for a map that holds this many keys."""
    return (count * 10 // 9 + 1) * SLOT_BYTES


@pytest.fixture
def one_map(monkeypatch):
    """Each map is rewritten by itself."""
    monkeypatch.setattr(run_pass, "MAPS_MAX", 1)


def horizons(log):
    return [c.horizon_max if c.horizon == -1 else c.horizon for c in chunks(log)]


def chunks(log):
    return [c for s in log.handle.manifest().segments[0][:-1] for c in s.chunks]


def test_the_latest_of_each_key_stays(make_log, put, clean, there):
    """S1, S21: older records of a key are removed; offsets, order and values of the others stay."""
    log = make_log()
    put(log, "a=1 b=1 a=2 c=1 b=2 a=3")
    log.roll()
    result = clean(log)
    assert there(log) == "3:c=1 4:b=2 5:a=3"
    assert (result.first_dirty_offset, result.next_dirty_offset) == (0, 6)
    assert result.stats.records_superseded == 3
    assert log.end_offsets() == {0: 6}
    assert log.start_offsets() == {0: 0}


def test_the_active_segment_is_not_touched(make_log, put, clean, there, bases):
    """S10: neither its records nor, because of its records, those before it."""
    log = make_log()
    put(log, "a=1 b=1 c=1 a=2 a=3")
    assert bases(log) == [0, 3]
    clean(log)
    assert there(log) == "0:a=1 1:b=1 2:c=1 3:a=2 4:a=3"
    assert log.handle.manifest().first_dirty == (3,)


def test_young_segments_are_not_touched(make_log, put, clean, there, clock):
    """S11: from the first segment with a record younger than min.compaction.lag.ms on, nothing is
    cleaned, not even later segments with old records.
    """
    log = make_log(min_compaction_lag_ms=1000)
    now = clock.now_ms()
    put(log, "a=1 a=2 a=3", timestamp=now - 1000)
    put(log, "a=4 a=5", timestamp=now - 5000)
    put(log, "a=6", timestamp=now - 999)
    put(log, "a=7 a=8 a=9", timestamp=now - 5000)
    log.roll()
    clean(log)
    assert there(log) == "2:a=3 3:a=4 4:a=5 5:a=6 6:a=7 7:a=8 8:a=9"
    clock.advance(1)
    clean(log)
    assert there(log) == "8:a=9"


def test_a_tombstone_takes_two_passes(make_log, put, clean, there, clock):
    """S23: the first pass drops the older values and sets the horizon; one at that time
    removes it, one before does not."""
    log = make_log(delete_retention_ms=1000)
    put(log, "a=1 b=1 a")
    log.roll()
    first = clean(log)
    assert there(log) == "1:b=1 2:a"
    assert first.stats.tombstones_stamped == 1
    assert horizons(log) == [clock.now_ms() + 1000]
    clock.advance(999)
    assert clean(log) == []
    assert there(log) == "1:b=1 2:a"
    clock.advance(1)
    second = clean(log)
    assert there(log) == "1:b=1"
    assert second.stats.tombstones_expired == 1
    assert log.handle.manifest().tombstones_removed[0][0::2] == (0, 2)


def test_a_horizon_counts_from_after_the_look(make_log, put, store, clock, open_log):
    """S23: a pass that was delayed before it looked may meet a tombstone that is younger than the
    time at which the delay started.
    """
    log = make_log(delete_retention_ms=1000)
    put(log, "a=1 b=1")

    def meanwhile():
        clock.advance(5000)
        put(log, "a")
        log.roll()

    faulty = FaultyStore(store)
    hit = Cleaner(open_log(faulty))
    faulty.plan = Faults(Fault(FaultKind.MEANWHILE, "get", run=meanwhile))
    plan = hit._log_rounds[0].plan(0, force=True)
    assert plan.manifest.head.partitions.end == (3,)
    assert plan.now_ms == clock.now_ms()


def test_no_retention_takes_two_passes_too(make_log, put, clean, there):
    """S23: delete.retention.ms=0 still keeps the tombstone through the first pass."""
    log = make_log(delete_retention_ms=0)
    put(log, "a=1 b=1 a")
    log.roll()
    clean(log)
    assert there(log) == "1:b=1 2:a"
    clean(log)
    assert there(log) == "1:b=1"


def test_a_horizon_is_set_once(make_log, put, clean, there, clock):
    """S23, peer bug 12 (KAFKA-8522): later passes and later configs do not move it, nor does the
    record's own time."""
    log = make_log(delete_retention_ms=1000)
    put(log, "a=1 b=1 a", timestamp=5)
    log.roll()
    clean(log)
    first = horizons(log)
    log.alter({"delete.retention.ms": DAY_MS})
    for _ in range(3):
        clock.advance(300)
        put(log, "b=2 c=3 c=4")
        log.roll()
        clean(log)
        assert horizons(log)[0] == first[0]
    clock.advance(100)
    clean(log)
    assert "a" not in there(log).replace("=", ":").split(":")


@pytest.mark.usefixtures("one_map")
def test_tombstones_in_chunks_that_are_left_alone(make_log, put, clean, there, clock):
    """S23: a chunk in which nothing died gets its horizon in the manifest, for the tombstones that
    the map covered; the second one takes its place, and the first goes into the rows."""
    log = make_log(delete_retention_ms=1000, segment_bytes=DAY_MS)
    log.append([{"key": k, "value": None} for k in "abcd"])
    log.roll()
    result = clean(log, dedupe_buffer_bytes=entries(2))
    (chunk,) = chunks(log)
    assert (chunk.horizon, chunk.up_to) == (clock.now_ms() + 1000, 2)
    assert result.stats.bytes_written == 0
    clock.advance(500)
    clean(log)
    (chunk,) = chunks(log)
    assert (chunk.horizon, chunk.horizon_min, chunk.horizon_max) == (
        clock.now_ms() + 1000,
        *[clock.now_ms() + 500] * 2,
    )
    clock.advance(500)
    log.append([{"key": "x", "value": "1"}])
    log.roll()
    clean(log)
    assert there(log) == "2:c 3:d 4:x=1"


def test_a_tombstone_that_was_superseded_hides_no_delete(make_log, put, clean, there, clock):
    """S41: it is removed with the pass that sees the newer value, and readers need not be
    informed.
    """
    log = make_log(delete_retention_ms=0)
    put(log, "a=1 a b=1 a=2")
    log.roll()
    clean(log)
    clean(log)
    assert there(log) == "2:b=1 3:a=2"
    assert log.handle.manifest().tombstones_removed == ()


def test_an_empty_value_is_no_tombstone(make_log, clean, clock):
    """S4: nor is an empty key no key."""
    log = make_log(delete_retention_ms=0)
    log.append([{"key": "", "value": ""}, {"key": "a", "value": ""}, {"key": "", "value": ""}])
    log.roll()
    clean(log)
    clean(log)
    assert [(o, r.key, r.value) for _, o, r in rows_in(log.read())] == [
        (1, b"a", b""),
        (2, b"", b""),
    ]


@pytest.mark.usefixtures("one_map")
def test_a_map_that_is_full_stops_at_an_exact_offset(make_log, put, clean, there, open_log):
    """S20, peer bug 10 (redpanda #16952, #14410): a partition with more keys than the map in one
    segment is cleaned map by map, and a restart in between keeps what was done."""
    log = make_log(segment_bytes=DAY_MS)
    put(log, "a=1 b=1 a=2 c=1 b=2 d=1 c=2 a=3")
    log.roll()
    result = clean(log, dedupe_buffer_bytes=entries(2))
    assert (result.first_dirty_offset, result.next_dirty_offset) == (0, 3)
    assert there(log) == "1:b=1 2:a=2 3:c=1 4:b=2 5:d=1 6:c=2 7:a=3"
    result = clean(open_log(), dedupe_buffer_bytes=entries(2))
    assert (result.first_dirty_offset, result.next_dirty_offset) == (3, 5)
    assert there(log) == "2:a=2 3:c=1 4:b=2 5:d=1 6:c=2 7:a=3"
    for _ in range(2):
        clean(open_log(), dedupe_buffer_bytes=entries(2))
    assert there(log) == "4:b=2 5:d=1 6:c=2 7:a=3"
    assert log.handle.manifest().first_dirty == (8,)


def test_several_maps_feed_one_rewrite(make_log, put, clean, there, monkeypatch):
    """S20: what each map finds dead is noted, in the clean part as well, and rewritten once; if
    that many maps do not reach the end, the pass stops at the exact offset of the last.
    """
    monkeypatch.setattr(run_pass, "MAPS_MAX", 3)
    log = make_log(segment_bytes=DAY_MS)
    put(log, "a=0 b=0 c=0 d=0 e=0")
    log.roll()
    clean(log)
    put(log, "a=1 b=1 a=2 c=1 b=2 d=1 c=2 a=3 e=1")
    log.roll()
    result = clean(log, dedupe_buffer_bytes=entries(2))
    # The maps hold a b | c b | d c; the fourth would hold a e.
    assert (result.first_dirty_offset, result.next_dirty_offset) == (5, 12)
    stats = result.stats
    assert (stats.maps, stats.map_entries, stats.records_superseded) == (3, 6, 7)
    assert there(log) == "4:e=0 7:a=2 9:b=2 10:d=1 11:c=2 12:a=3 13:e=1"
    assert clean(log, dedupe_buffer_bytes=entries(2)).stats.maps == 1
    assert there(log) == "9:b=2 10:d=1 11:c=2 12:a=3 13:e=1"


def test_tombstones_under_several_maps(make_log, put, clean, there, clock):
    """S20, S23: a tombstone that a later map supersedes is removed at once and gets no horizon; the
    others get one horizon, whichever map saw them, and are removed together.
    """
    log = make_log(segment_bytes=DAY_MS, delete_retention_ms=1000)
    put(log, "a b c=1 a=2 d c")
    log.roll()
    result = clean(log, dedupe_buffer_bytes=entries(2))
    assert (result.stats.maps, result.stats.tombstones_stamped) == (3, 3)
    assert there(log) == "1:b 3:a=2 4:d 5:c"
    assert log.handle.manifest().tombstones_removed == ()
    clock.advance(1000)
    clean(log, dedupe_buffer_bytes=entries(2))
    assert there(log) == "3:a=2"


def test_no_further_map_where_the_notes_are_full(make_log, put, clean, monkeypatch):
    """S18: the notes of dead rows are bounded, so memory does not grow with the log."""
    monkeypatch.setattr(run_pass, "FOUND_BYTES_MAX", 0)
    log = make_log(segment_bytes=DAY_MS)
    put(log, "a=1 a=2 b=1 c=1 c=2 d=1 e=1 f=1")
    log.roll()
    result = clean(log, dedupe_buffer_bytes=entries(2))
    # The notes of the first map make the second one the last.
    assert (result.stats.maps, result.next_dirty_offset) == (2, 6)


@pytest.mark.usefixtures("one_map")
def test_a_partial_map_stamps_what_it_saw(make_log, put, clean, there, clock):
    """S20, S23: a tombstone beyond the map keeps its whole retention from the pass that sees it."""
    log = make_log(segment_bytes=DAY_MS, delete_retention_ms=1000)
    put(log, "a b c=1 c=2 b=2 d")
    log.roll()
    clean(log, dedupe_buffer_bytes=entries(2))  # covers a, b
    clock.advance(1000)
    clean(log, dedupe_buffer_bytes=entries(2))  # c, b; a has expired, b's tombstone is superseded
    assert there(log) == "3:c=2 4:b=2 5:d"
    clean(log, dedupe_buffer_bytes=entries(2))
    clock.advance(999)
    clean(log)
    assert there(log) == "3:c=2 4:b=2 5:d"
    clock.advance(1)
    clean(log)
    assert there(log) == "3:c=2 4:b=2"


@pytest.mark.usefixtures("one_map")
def test_a_segment_beyond_the_map_stays_alone(make_log, put, clean, bases):
    """S13, S20: merged, the clean part before it would count as dirty."""
    log = make_log(segment_bytes=4 * 14)
    put(log, "a=1 a=2 a=3 a=4 b=1 c=1 d=1 e=1")
    log.roll()
    clean(log, dedupe_buffer_bytes=entries(2))
    assert bases(log) == [0, 4, 8]
    clean(log)
    assert bases(log) == [0, 4, 8]


def test_the_highest_offsets_are_removed(make_log, put, clean, there, clock):
    """S3, peer bug 8 (redpanda #8698, quix #1017): the end stays, and readers reach it."""
    log = make_log(delete_retention_ms=0)
    put(log, "a=1 b=1 c=1 a b c")
    log.roll()
    clean(log)
    clean(log)
    assert there(log) == ""
    assert log.end_offsets() == {0: 6}
    assert list(log.read(start=6)) == []
    put(log, "a=2")
    assert there(log) == "6:a=2"


def test_a_segment_that_is_emptied_stays_as_a_range(make_log, put, clean, there, bases, clock):
    """S1, S26: its offsets stay covered (KAFKA-9157), and it merges with its neighbour."""
    log = make_log()
    put(log, "a=1 b=1 c=1 a=2 b=2 c=2")
    log.roll()
    clean(log)
    assert there(log) == "3:a=2 4:b=2 5:c=2"
    assert bases(log) == [0, 6]
    assert [s.records for s in log.segments(0)] == [3, 0]


def test_a_merged_segment(make_log, put, clean, bases):
    """S25, S26: neighbours merge while what is left of them fits segment.bytes; base offset of the
    first, largest timestamp of what is left."""
    log = make_log()
    put(log, "a=1 b=1", timestamp=9000)
    put(log, "c=1", timestamp=5000)
    put(log, "a=2 b=2 d=1 e=1 f=1 g=1", timestamp=7000)
    log.roll()
    assert bases(log) == [0, 3, 6, 9]
    clean(log)
    # c | a b d | e f g: the first two do not fit one segment of 3 records.
    assert bases(log) == [0, 3, 6, 9]
    assert log.segments(0)[0].largest_timestamp == 5000
    put(log, "a=3 b=3 d=2", timestamp=8000)
    log.roll()
    clean(log)
    # c | - | e f g | a b d
    assert bases(log) == [0, 6, 9, 12]
    assert [s.records for s in log.segments(0)] == [1, 3, 3, 0]
    assert all(s.size_bytes <= 42 for s in log.segments(0))


def test_a_merge_that_turns_out_too_large_is_cut(make_log, clean, bases, there):
    """S25, peer bug 13 (KAFKA-20036): sizes are estimated by rows; where values differ, the output
    overflows into a second segment instead of failing."""
    log = make_log(segment_bytes=400, object_bytes=100)
    for keys in ("abcd", "efgh"):
        for key in keys:
            log.append([{"key": key, "value": "x" * (250 if key in "ae" else 1)}])
        log.roll()
    for key in "bcdfgh":
        log.append([{"key": key, "value": "2"}])
    log.roll()
    clean(log)
    assert [s.records for s in log.segments(0)[:-1]] == [1, 7]
    assert all(s.size_bytes <= 400 for s in log.segments(0))
    assert [o for _, o, _ in rows_in(log.read())] == [0, 4, *range(8, 14)]


def test_nothing_died_nothing_is_written(make_log, put, clean, there):
    """S25: a segment in which nothing died and that merges with none is not rewritten; only the
    first dirty offset moves, by one commit, and only keys are read.
    """
    log = make_log()
    put(log, "a=1 b=1 c=1")
    log.roll()
    before = log.handle.manifest()
    result = clean(log)
    after = log.handle.manifest()
    assert after.segments == before.segments
    assert (after.version, after.first_dirty) == (before.version + 1, (3,))
    assert (result.stats.records_read, result.stats.bytes_written) == (0, 0)


def test_a_clean_part_without_the_dirty_keys_is_not_rewritten(make_log, put, clean):
    """Cost: what is rewritten are chunks with dead rows (and small ones beside them)."""
    log = make_log(object_bytes=100)  # nothing is small
    put(log, "a=1 b=1 c=1 d=1 e=1 f=1")
    log.roll()
    clean(log)
    objects = [c.object for c in chunks(log)]
    put(log, "d=2 e=2 f=2")
    log.roll()
    result = clean(log)
    assert result.stats.records_removed == 3
    assert [c.object for c in chunks(log)][:3] == objects[:3]


@pytest.mark.usefixtures("one_map")
def test_merged_segments_are_clean_only_if_all_are(make_log, put, clean, there):
    """Peer bug 11: what a pass did not cover stays dirty, whatever is next to it."""
    log = make_log(segment_bytes=DAY_MS)
    put(log, "a=1 b=1")
    log.roll()
    clean(log)
    put(log, "a=2 c=1")
    log.roll()
    put(log, "b=2 c=2")
    log.roll()
    clean(log, dedupe_buffer_bytes=entries(2))
    assert log.handle.manifest().first_dirty == (4,)
    assert [s.clean for s in log.segments(0)] == [True, False, False]
    clean(log)
    assert there(log) == "2:a=2 4:b=2 5:c=2"


def test_headers_and_times_stay(make_log, clean):
    """S26: also those of LogAppendTime, which is a property of the chunk before."""
    log = make_log(message_timestamp_type="LogAppendTime", segment_bytes=DAY_MS)
    headers = [("h", b"1"), ("h", None)]
    log.append([{"key": k, "value": "1", "timestamp": 5, "headers": headers} for k in "ab"])
    log.handle.clock.advance(1000)
    log.append([{"key": "a", "value": "2", "timestamp": 5, "headers": headers}])
    log.roll()
    before = rows_in(log.read())
    assert before[0][2].timestamp_ms + 1000 == before[2][2].timestamp_ms
    clean(log)
    assert rows_in(log.read()) == before[1:]
    assert [c.append_time_ms for c in chunks(log)] == [-1]


def test_null_keys_go_with_the_first_pass(make_log, clean, there):
    """S42: records that came without a key under policy delete are dropped by the first pass that
    covers them, and counted; the earlier checkpoint stays.
    """
    log = make_log(segment_bytes=DAY_MS)
    log.append([{"key": "a", "value": "1"}, {"key": "a", "value": "2"}])
    log.roll()
    clean(log)
    log.alter({"cleanup.policy": "delete"})
    log.append(
        [{"key": None, "value": "x"}, {"key": "b", "value": "1"}, {"key": None, "value": None}]
    )
    log.roll()
    assert clean(log) == []
    log.alter({"cleanup.policy": "compact"})
    assert log.handle.manifest().first_dirty == (2,)
    result = clean(log)
    assert there(log) == "1:a=2 3:b=1"
    assert result.stats.records_without_key == 2
    assert result.first_dirty_offset == 2


def test_only_null_keys(make_log, clean):
    """S42: a dirty part without any key has an empty map, and is cleaned all the same."""
    log = make_log(cleanup_policy="delete", segment_bytes=DAY_MS)
    log.append([{"key": None, "value": "x"}])
    log.roll()
    log.alter({"cleanup.policy": "compact"})
    assert clean(log).stats.records_without_key == 1
    assert list(log.read()) == []


def test_records_below_the_log_start_are_dead(make_log, put, clean, there):
    """S37: they are not copied, and do not supersede anything."""
    log = make_log(segment_bytes=DAY_MS)
    put(log, "a=1 b=1 c=1 a=2 d=1")
    log.roll()
    log.delete_records({0: 2})
    result = clean(log)
    assert there(log) == "2:c=1 3:a=2 4:d=1"
    assert sum(c.rows for c in chunks(log)) == 3
    assert result.next_dirty_offset == 5


def test_a_collision_of_hashes_loses_a_key(make_log, put, there, monkeypatch):
    """S19, peer bug 17: keys are compared by hash alone, and its width is the protection: with 8
    bits some of 100 keys are lost, with 128 none.
    """
    left = {}
    for width in (8, 128):
        log = make_log_of_its_own()
        log.append([{"key": f"k{i}", "value": "v"} for i in range(100)])
        log.roll()
        monkeypatch.setattr(
            log_round, "KeyHasher", lambda seed, _, w=width: KeyHasher(seed, width_bits=w)
        )
        Cleaner(log).run_once(force=True)
        left[width] = len(rows_in(log.read()))
    assert left[8] < 100
    assert left[128] == 100


def make_log_of_its_own():
    return Log.create(memory_store(), 1, clock=ManualClock(now_ms=1_000_000_000), ids=SeededIds(1))


def test_the_seed_decides_nothing(put, there, monkeypatch):
    """S19: each pass draws its own, and no result depends on it."""
    seeds = []

    def hasher(seed, _):
        seeds.append(seed)
        return KeyHasher(seed)

    monkeypatch.setattr(log_round, "KeyHasher", hasher)
    log = make_log_of_its_own()
    for _ in range(3):
        put(log, "a=1 b=1 a=2")
        log.roll()
        Cleaner(log).run_once(force=True)
    assert len(set(seeds)) == 3
    assert there(log) == "7:b=1 8:a=2"


def meanwhile(open_log, store, run, nth=1):
    """The log, opened so that something else happens before its nth commit."""
    fault = Fault(FaultKind.MEANWHILE, "create", "*commits*", nth, run=run)
    return open_log(FaultyStore(store, Faults(fault)))


def test_an_append_meanwhile(make_log, put, clean, there, open_log, store):
    """S30, peer bug 16: when a commit of both collides the append wins, the pass rebases and
    replaces its own inputs only."""
    log = make_log()
    put(log, "a=1 b=1 a=2")
    log.roll()
    hit = meanwhile(open_log, store, lambda: put(open_log(), "a=3 c=1"))
    result = clean(hit)
    assert there(log) == "1:b=1 2:a=2 3:a=3 4:c=1"
    assert result.next_dirty_offset == 3


def test_another_cleaner_meanwhile(make_log, put, clean, there, open_log, store):
    """Peer bug 16 (AutoMQ #296): a pass that finds its inputs replaced stops, and nothing is lost;
    the first dirty offset does not decrease.
    """
    log = make_log()
    put(log, "a=1 b=1 a=2")
    log.roll()
    first = log.handle.manifest()
    hit = meanwhile(open_log, store, lambda: clean(open_log()))
    result = clean(hit)
    assert (result.first_dirty_offset, result.next_dirty_offset) == (0, 0)
    assert result.stats.records_removed == 0
    assert there(log) == "1:b=1 2:a=2"
    assert first.first_dirty == (0,)
    assert log.handle.manifest().first_dirty == (3,)
    assert clean(open_log()) == []


def test_sources_that_are_swept_meanwhile(make_log, put, clean, open_log, store, clock):
    """S28: a pass that does not find what another cleaner has replaced simply stops: the partition
    is not marked for it.
    """
    log = make_log(file_delete_delay_ms=0)
    put(log, "a=1 b=1 a=2")
    log.roll()

    def clean_and_sweep():
        clean(open_log())
        clock.advance(1)
        sweep_released(Work(open_log().handle, clock.now_ms()))

    fault = Fault(FaultKind.MEANWHILE, "get*", "*/data/*", nth=2, run=clean_and_sweep)
    slow = open_log(FaultyStore(store, Faults(fault)))
    result = clean(slow)
    assert (result.complete, result.next_dirty_offset) == (False, 0)
    assert slow.handle.manifest().uncleanable == {}


def test_a_slower_cleaner_does_not_set_the_first_dirty_offset_back(
    make_log, put, clean, open_log, store
):
    """S12: a pass that had nothing to rewrite commits after one that went further."""
    log = make_log()
    put(log, "a=1 b=1 c=1")
    log.roll()

    def further():
        put(open_log(), "d=1 e=1 f=1")
        open_log().roll()
        clean(open_log())

    hit = meanwhile(open_log, store, further)
    clean(hit)
    assert log.handle.refresh()
    assert log.handle.manifest().first_dirty == (6,)


def test_records_are_deleted_meanwhile(make_log, put, there, open_log, store):
    """S30, S36: deleteRecords between plan and commit; the pass continues."""
    log = make_log()
    put(log, "a=1 b=1 a=2 c=1 b=2 d=1")
    log.roll()
    hit = meanwhile(open_log, store, lambda: open_log().delete_records({0: 4}))
    Cleaner(hit).run_once(force=True)
    check_log(store)
    assert there(log) == "4:b=2 5:d=1"
    assert log.handle.manifest().first_dirty == (6,)


def test_retention_meanwhile(make_log, put, there, open_log, store, clock):
    """S30: missing segments cannot be replaced; the pass stops before them."""
    log = make_log(cleanup_policy="compact,delete", retention_ms=1000)
    put(log, "a=1 b=1 a=2", timestamp=clock.now_ms() - 900)
    put(log, "c=1 b=2 d=1")
    log.roll()

    def expire():
        clock.advance(500)
        Cleaner(open_log()).run_once()

    hit = meanwhile(open_log, store, expire)
    Cleaner(hit).run_once(force=True)
    check_log(store)
    assert there(log) == "3:c=1 4:b=2 5:d=1"


def test_a_pass_that_slept_past_the_floor(make_log, put, there, open_log, store, clock):
    """COMMIT.md §5: objects below the orphan floor may be gone; such a commit is refused."""
    log = make_log()
    put(log, "a=1 b=1 a=2")
    log.roll()

    def sleep():
        put(open_log(), "c=1")
        clock.advance(2 * DAY_MS)
        swept = sweep_orphans(Work(open_log().handle, clock.now_ms()))
        assert len(swept.objects) == 1

    result = Cleaner(meanwhile(open_log, store, sleep)).run_once(force=True)
    assert result[0].next_dirty_offset == 0
    check_log(store)
    assert there(log) == "0:a=1 1:b=1 2:a=2 3:c=1"
    Cleaner(open_log()).run_once(force=True)
    check_log(store)
    assert there(log) == "1:b=1 2:a=2 3:c=1"


def test_groups_are_committed_one_by_one(make_log, put, open_log, store, there):
    """S20, S28: progress is kept: what was committed before a pass failed is done."""
    log = make_log()
    put(log, "a=1 b=1 b=2 c=1 d=1 d=2 e=1 e=2 f=1")
    log.roll()
    reads_fail = Faults(Fault(FaultKind.FAIL_BEFORE, "get*", "*/data/*", times=100))
    faulty = FaultyStore(store)
    # Reads begin to fail with the first commit, which is that of the first group.
    faulty.plan = Faults(
        Fault(
            FaultKind.MEANWHILE,
            "create",
            "*commits*",
            run=lambda: setattr(faulty, "plan", reads_fail),
        )
    )
    with pytest.raises(StoreUnavailableError, match="failed as planned"):
        Cleaner(open_log(faulty)).run_once(force=True)
    check_log(store)
    assert there(log) == "0:a=1 2:b=2 3:c=1 4:d=1 5:d=2 6:e=1 7:e=2 8:f=1"
    assert log.handle.manifest().first_dirty == (0,)
    Cleaner(open_log()).run_once(force=True)
    assert there(log) == "0:a=1 2:b=2 3:c=1 5:d=2 7:e=2 8:f=1"


def test_a_shared_object_is_written_apart(make_log, clean, open_log):
    """What a group rewrites of an object with other partitions' rows no longer keeps it alive."""
    log = make_log(2, segment_bytes=DAY_MS)
    log.append(
        [{"key": k, "value": "1"} for k in "abab"], partition=np.array([0, 0, 1, 1], np.int32)
    )
    log.append([{"key": "a", "value": "2"}], partition=0)
    log.roll()
    clean(log)
    assert all(c.rows == c.object.rows for c in chunks(log))


def test_what_is_read_must_be_what_the_manifest_says(make_log, put, store, monkeypatch):
    """Conservation: if read, removed and written do not add up the commit is refused, and the
    partition is marked.
    """
    log = make_log()
    put(log, "a=1 b=1 a=2")
    log.roll()
    real = rewriter.write_rewritten
    monkeypatch.setattr(rewriter, "write_rewritten", lambda s, b, **kw: real(s, list(b)[:-1], **kw))
    assert Cleaner(log).run_once(force=True) == []
    check_log(store)
    mark = log.handle.manifest().uncleanable[0]
    assert "CorruptionError" in mark.reason
    assert "so 1 are unaccounted for" in mark.reason
    assert len(rows_in(log.read())) == 3


def test_old_versions_are_as_they_were(make_log, put, clean, there):
    """S27: a version before the pass reads as before, while its objects are kept."""
    log = make_log()
    put(log, "a=1 b=1 a=2 b")
    log.roll()
    version = log.version
    before = log.table().to_arrow()
    for _ in range(3):
        put(log, "b=7 a")
        log.roll()
        clean(log)
    assert log.table(at=version).to_arrow() == before


def test_a_pass_over_a_million_offsets_reads_keys_only(make_log, clean):
    """Cost: values of a segment in which nothing died are never read."""
    log = make_log(segment_bytes=1 << 30, object_bytes=1 << 30)
    values = np.random.default_rng(1).bytes(1 << 22)
    size = 1 << 12
    rows = [{"key": f"k{i:04d}", "value": values[i * size : (i + 1) * size]} for i in range(1024)]
    log.append(to_records(rows, now_us=5)[0])
    log.roll()
    result = clean(log)
    assert result.stats.bytes_read < 100_000
    assert result.stats.bytes_written == 0


@pytest.fixture
def copied(monkeypatch):
    """Row groups of 8 rows, copied however small they are; the rows are unchanged."""
    if int(pa.__version__.split(".")[0]) < 19:
        pytest.skip("Arrow states the sizes of columns since 19; without them nothing is copied")
    monkeypatch.setattr("clog.storage.objects.writer.GROUP_ROWS", 8)
    monkeypatch.setattr("clog.storage.objects.writer.GROUP_BYTES_MIN", 1)
    monkeypatch.setattr("clog.storage.read.copy.GROUP_BYTES_MIN", 1)
    found = []
    real = RewritingWriter.copy
    monkeypatch.setattr(
        RewritingWriter, "copy", lambda self, g: (found.append(g.num_rows), real(self, g))[1]
    )
    return found


def neighbours_updated(log):
    """The first 30 of 64 records of one chunk die; all but one are in the first row groups."""
    rows = [{"key": f"k{i:02}", "value": f"{i}"} for i in range(64)]
    log.append(rows, partition=0)
    log.roll()
    log.append([{"key": f"k{i:02}", "value": "new"} for i in (*range(29), 63)], partition=0)
    log.roll()


def test_row_groups_of_which_all_stays_are_copied(make_log, clean, there, copied):
    """S26: in a rewritten chunk, where neighbours died; the others are not decoded."""
    log = make_log(segment_bytes="10000")
    neighbours_updated(log)
    result = clean(log)
    expected = " ".join(f"{i}:k{i:02}={i}" for i in range(29, 63))
    assert there(log).startswith(expected)
    assert (result.stats.records_superseded, result.stats.records_written) == (30, 64)
    # Of the first chunk rows 32 to 55, of the second 30: its groups have 8 and the rest.
    assert copied == [8, 8, 8, 8, 8, 8, 6]


def test_a_copy_of_a_row_that_goes_is_refused(make_log, monkeypatch, store, copied):
    """Conservation: copied rows are counted as written (a cleaner that copies too much)."""
    log = make_log(segment_bytes="10000")
    neighbours_updated(log)
    monkeypatch.setattr(rewriter.Rewriter, "_changed_rows", lambda self, c: None)
    assert Cleaner(log).run_once(force=True) == []
    check_log(store)
    assert "unaccounted for" in log.handle.manifest().uncleanable[0].reason
    assert copied


def test_tombstones_that_get_their_horizon_are_decoded(make_log, clean, there, clock, copied):
    """S23: their offsets are checked; row groups beside them are copied, and they are removed in
    time.
    """
    log = make_log(segment_bytes="10000", delete_retention_ms="1000")
    log.append([{"key": f"k{i:02}", "value": f"{i}"} for i in range(32)], partition=0)
    log.roll()
    gone = [{"key": f"k{i:02}", "value": None} for i in range(10)]
    log.append([*gone, *({"key": f"n{i:02}", "value": "1"} for i in range(22))], partition=0)
    log.roll()
    clean(log)
    assert copied
    clock.advance(1001)
    clean(log)
    assert "k09" not in there(log)
    assert there(log).split()[0] == "10:k10=10"
