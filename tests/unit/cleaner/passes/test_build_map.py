"""The map of a pass: its memory, and where it stops."""

import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.cleaner.passes import run_pass
from clog.cleaner.passes.offset_map import SLOT_BYTES, KeyHasher, OffsetMap, build_map, empty_map
from clog.cleaner.selection import PassStats
from clog.storage import InvalidInputError


@pytest.fixture
def mapped():
    """(the map, the offset it covers the dirty range up to, the counts)."""

    def mapped(log, end, slots=1000, start=0):
        offset_map, stats = OffsetMap(memory_bytes=slots * SLOT_BYTES), PassStats()
        manifest = log.handle.manifest()
        made = build_map(
            *(log.handle.store, manifest, 0, (start, end)),
            offset_map=offset_map,
            hasher=KeyHasher(7),
            stats=stats,
        )
        return offset_map, made.end, stats

    return mapped


def last(offset_map, *keys):
    hashes = KeyHasher(7)(pa.array([k.encode() for k in keys], pa.binary()))
    return offset_map.get(hashes).tolist()


def test_the_dirty_range_alone(make_log, put, mapped):
    """S18: keys of the range, each with its last offset; what is before or after is not there."""
    log = make_log()
    put(log, "a=1 b=1 c=1 b=2 d=1 a=2 e=1")
    offset_map, covered, stats = mapped(log, 6, start=1)
    assert last(offset_map, *"abcde") == [5, 3, 2, 4, -1]
    assert (covered, offset_map.latest_offset) == (6, 5)
    assert (stats.map_records, stats.map_entries) == (5, 4)


def test_where_a_full_map_stops(make_log, put, mapped):
    """S20: at the first key that does not fit; a known one always fits."""
    log = make_log()
    put(log, "a=1 b=1 a=2 c=1 b=2")
    offset_map, covered, _ = mapped(log, 5, slots=3)  # of which 2 are filled
    assert (covered, offset_map.latest_offset) == (3, 2)
    assert last(offset_map, *"abc") == [2, 1, -1]


def test_gaps_and_null_keys_are_covered(make_log, put, mapped, clean):
    """S20 (KAFKA-8764): the end of the range without keys does not delay the pass."""
    log = make_log(cleanup_policy="delete", segment_bytes=1000)
    put(log, "a=1")
    log.append([{"key": None, "value": "x"}] * 3)
    log.roll()
    offset_map, covered, stats = mapped(log, 4)
    assert (covered, offset_map.latest_offset) == (4, 3)
    assert (stats.map_records, stats.map_entries) == (4, 1)
    assert mapped(log, 9)[1] == 9


def test_a_share_that_holds_no_key(make_log):
    """S18: the buffer is shared by the threads, 24 bytes an entry, 0.9 of them filled."""
    log = make_log()
    Cleaner(log, threads=4, dedupe_buffer_bytes=4 * 48)
    with pytest.raises(InvalidInputError, match=r"decrease log\.cleaner\.threads"):
        Cleaner(log, threads=5, dedupe_buffer_bytes=4 * 48)


def test_the_memory_of_a_pass(make_log, put, monkeypatch):
    """S18: a pass has its thread's share, no more; and no more than its records can use."""
    made = []

    def counted(*args, **how):
        offset_map = empty_map(*args, **how)
        made.append(offset_map.nbytes)
        return offset_map

    monkeypatch.setattr(run_pass, "empty_map", counted)
    log = make_log(2)
    for p in range(2):
        put(log, "a=1 a=2", partition=p)
    log.roll()
    results = Cleaner(log, threads=2, dedupe_buffer_bytes=240).run_once(force=True)
    assert made == [120, 120]
    assert [r.stats.map_utilization for r in results] == [1 / 5, 1 / 5]
    put(log, "a=3 a=4 a=5")
    log.roll()
    Cleaner(log, threads=2, dedupe_buffer_bytes=1 << 30).run_once(force=True)
    assert made[2:] == [2 * 4 * SLOT_BYTES]
