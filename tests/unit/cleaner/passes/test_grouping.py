"""Which neighbours merge."""

from dataclasses import replace

import numpy as np

from clog.cleaner.passes.judge import Action, JudgedChunk, JudgedSegment, Removed
from clog.cleaner.passes.rewriter import grouped, needs_own_horizon
from clog.storage.config.log_config import LogConfig
from clog.storage.format.chunks import Chunk, Segment
from clog_testing.histories import object_of


def segment(base, rows, dead=0, size_bytes=100, times=(0, 0)):
    """A judged segment of one chunk."""
    place = (0, rows, base, base + rows, size_bytes)
    chunk = Chunk(object_of(rows, f"{base:032x}"), *place, *times, 0, 1)
    action = Action.REWRITE if dead else Action.KEEP
    return JudgedSegment(
        Segment(base, base + rows, 0, (chunk,)),
        (JudgedChunk(chunk, Removed(superseded=dead), action=action),),
    )


def config(segment_bytes=100, **more):
    named = {name.replace("_", "."): str(value) for name, value in more.items()}
    return LogConfig.from_overrides({"segment.bytes": str(segment_bytes), **named})


def bases(segments, covered=1000, **given):
    groups = grouped(segments, config(**given), covered=covered)
    return [[s.segment.base for s in g.segments] for g in groups]


def test_what_fits_merges():
    """S25: neighbours merge while their bytes stay at or below segment.bytes."""
    segments = [segment(0, 10, size_bytes=60), segment(10, 10, size_bytes=40)]
    assert bases(segments, segment_bytes=100) == [[0, 10]]
    assert bases(segments, segment_bytes=99) == [[0], [10]]


def test_what_is_to_expire_merges_by_time():
    """S33: with ``delete`` only what is within one segment.ms, or a tenth of retention.ms."""
    times = (0, 500), (400, 900), (1000, 1001), (990, 2000)
    segments = [segment(10 * i, 10, size_bytes=1, times=times[i]) for i in range(4)]
    retained = {"cleanup_policy": "compact,delete", "segment_ms": 1000}
    assert bases(segments, **retained, retention_ms=10_000) == [[0, 10], [20], [30]]
    assert bases(segments, **retained, retention_ms=10_010) == [[0, 10, 20], [30]]
    assert bases(segments, **retained, retention_ms=20_000) == [[0, 10, 20, 30]]
    assert bases(segments, **retained, retention_ms=-1) == [[0, 10, 20, 30]]
    assert bases(segments, segment_ms=1000, retention_ms=10_000) == [[0, 10, 20, 30]]


def test_the_span_is_that_of_all_where_timestamps_go_back():
    """S33: a segment whose records are older than those before it widens the span of the group."""
    times = (5000, 5000), (4500, 4600), (5400, 5600)
    segments = [segment(10 * i, 10, size_bytes=1, times=times[i]) for i in range(3)]
    retained = {"cleanup_policy": "compact,delete", "segment_ms": 1000, "retention_ms": 10_000}
    assert bases(segments, **retained) == [[0, 10], [20]]
    assert bases(segments, **{**retained, "retention_ms": 11_000}) == [[0, 10, 20]]


def test_sizes_after_cleaning_count():
    """S25: half-empty segments merge in the pass that empties them (Kafka takes sizes before)."""
    segments = [segment(0, 10, dead=5), segment(10, 10, dead=5), segment(20, 10, dead=1)]
    assert bases(segments) == [[0, 10], [20]]


def test_only_neighbours_merge():
    """S1: order never changes: a large segment between small ones separates them."""
    segments = [segment(0, 10, 9), segment(10, 10), segment(20, 10, 9), segment(30, 10, 9)]
    assert bases(segments) == [[0], [10], [20, 30]]


def test_a_segment_beyond_the_map_is_alone():
    """S13: what was not covered stays dirty, and so would what is merged with it."""
    segments = [segment(0, 10, 9), segment(10, 10, 9), segment(20, 10, 9)]
    assert bases(segments, covered=25) == [[0, 10], [20]]


def test_what_needs_work():
    """S25: a lone segment of which nothing is to be rewritten is left alone."""
    groups = grouped([segment(0, 10), segment(10, 10, 1)], config(), covered=100)
    assert [g.needs_work for g in groups] == [False, True]
    (merged,) = grouped([segment(0, 5), segment(5, 5)], config(200), covered=100)
    assert merged.needs_work
    assert (merged.base, merged.next) == (0, 10)


def test_groups_come_one_by_one():
    """Memory: a group is yielded as soon as the next segment does not fit it."""
    taken = []

    def segments():
        for base in range(0, 40, 10):
            taken.append(base)
            yield segment(base, 10)

    next(grouped(segments(), config(), covered=100))
    assert taken == [0, 10]


def test_a_horizon_without_a_place():
    """S23: the chunk has one place, and what is there stays."""
    (judged,) = segment(0, 2).chunks
    marked = JudgedChunk(judged.chunk, new_horizon=np.array([True, False]))
    assert not needs_own_horizon(marked)
    taken = replace(judged.chunk, horizon=5, up_to=1)
    assert needs_own_horizon(JudgedChunk(taken, new_horizon=np.array([False, True])))
    assert not needs_own_horizon(JudgedChunk(taken))
