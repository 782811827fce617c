"""Small sealed segments of logs that do not compact."""

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties.layout import SEGMENTS_MIN
from clog_testing.invariants import check_log

CONFIG = {"segment_bytes": 14 * 100, "segment_chunks": 2, "retention_ms": -1}


@pytest.mark.parametrize("policy", ["delete", ""])
def test_segments_sealed_by_their_chunks_merge(make_log, put, there, clean, store, policy):
    """Design: the manifest follows the data: no longer a segment for each segment.chunks batches;
    offsets and records are unchanged.
    """
    log = make_log(cleanup_policy=policy, **CONFIG)
    put(log, "a=1 b=1 " * SEGMENTS_MIN + "c=1")
    before = there(log)
    assert len(log.segments(0)) == SEGMENTS_MIN + 1
    log.alter({"segment.chunks": "100"})
    clean(log)
    assert [s.base_offset for s in log.segments(0)] == [0, 2 * SEGMENTS_MIN]
    assert there(log) == before
    version = log.version
    Cleaner(log).run_once()
    assert log.version == version


@pytest.mark.parametrize(
    ("config", "left"),
    [
        ({}, 2),
        ({"segment_bytes": 14 * 8}, 3),
        ({"segment_bytes": 14 * 7}, SEGMENTS_MIN * 2 + 1),
        ({"cleanup_policy": "compact", "min_compaction_lag_ms": 1000}, SEGMENTS_MIN * 2 + 1),
    ],
)
def test_what_merges(make_log, put, clock, store, config, left):
    """As much as fits one segment by its bytes, if it is worth a commit; in a log that compacts,
    passes merge.
    """
    log = make_log(**{"cleanup_policy": "delete", **CONFIG, **config})
    for i in range(SEGMENTS_MIN * 2):
        put(log, f"a={i % 10}", timestamp=clock.now_ms())
        log.roll()
    log.alter({"segment.chunks": "100"})
    Cleaner(log).run_once()
    check_log(store, every_version=False)
    assert len(log.segments(0)) == left


def test_the_grain_of_retention_stays(make_log, put, clock, store):
    """S32: a segment spans segment.ms at most, so that time retention deletes as it would have."""
    log = make_log(**{"cleanup_policy": "delete", **CONFIG}, segment_ms=10_000)
    for _ in range(SEGMENTS_MIN * 2):
        put(log, "a=1", timestamp=clock.now_ms())
        log.roll()
        clock.advance(10_000 // (SEGMENTS_MIN - 1))
    log.alter({"segment.chunks": "100"})
    Cleaner(log).run_once()
    spans = [s.next_offset - s.base_offset for s in log.segments(0)]
    assert spans == [SEGMENTS_MIN, SEGMENTS_MIN, 0]


def test_the_grain_is_that_of_all_where_timestamps_go_back(make_log, put, clock, store):
    """S32: older records in a later segment widen the span too: they would stay as long as the
    newest.
    """
    log = make_log(**{"cleanup_policy": "delete", **CONFIG}, segment_ms=10_000)
    newest_ms = clock.now_ms()
    for i in range(SEGMENTS_MIN * 2):
        put(log, "a=1", timestamp=newest_ms - 20_000 * (i >= SEGMENTS_MIN))
        log.roll()
    log.alter({"segment.chunks": "100"})
    Cleaner(log).run_once()
    spans = [s.next_offset - s.base_offset for s in log.segments(0)]
    assert spans == [SEGMENTS_MIN, SEGMENTS_MIN, 0]
