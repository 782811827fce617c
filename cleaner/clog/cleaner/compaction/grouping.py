"""P3, second half: neighbouring segments that fit one together (S25). Pure.

Sizes are those after cleaning, so that two half-empty segments merge in the pass that empties them
(Kafka takes the sizes before). They are estimated: `rewriter` cuts what turns out too large.

Where retention deletes by time, too, neighbours merge only while their records are of one time: a
segment expires by its newest record, so one that takes in all that comes would never (S33; Kafka's
does). What is merged expires at most that much later.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from clog.cleaner.compaction.judge import Action, JudgedChunk, JudgedSegment
from clog.storage.config.log_config import LogConfig

RETENTION_SHARE = 10
"""What merges is of one ``segment.ms``, or of ``retention.ms`` divided by this."""


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Extent:
    """What one segment has, or neighbours have together: bytes and chunks, the offset after the
    last, the earliest first timestamp and the latest of all.

    Timestamps may go back from one segment to the next (S9): the span of neighbours is that of all
    of them, not from the first one on.
    """

    size_bytes: int
    chunks: int
    next: int
    first_ms: int
    last_ms: int

    @property
    def span_ms(self) -> int:
        return self.last_ms - self.first_ms

    def joined(self, after: "Extent") -> "Extent":
        """Returns what it has together with the neighbour after it."""
        return Extent(
            self.size_bytes + after.size_bytes,
            self.chunks + after.chunks,
            after.next,
            min(self.first_ms, after.first_ms),
            max(self.last_ms, after.last_ms),
        )


def neighbours(
    items: Iterable[_T], extent_of: Callable[[_T], Extent], fits: Callable[[Extent], bool]
) -> Iterator[list[_T]]:
    """Yields all items in order, in runs of as many neighbours as fit together, as they come: only
    one run is held at a time. What does not fit by itself is alone.
    """
    run: list[_T] = []
    whole: Extent | None = None
    for item in items:
        extent = extent_of(item)
        joined = extent if whole is None else whole.joined(extent)
        if run and not fits(joined):
            yield run
            run, joined = [], extent
        run.append(item)
        whole = joined
    if run:
        yield run


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Neighbouring segments that become one."""

    segments: tuple[JudgedSegment, ...]

    @property
    def base(self) -> int:
        return self.segments[0].segment.base

    @property
    def next(self) -> int:
        return self.segments[-1].segment.next

    @property
    def chunks(self) -> tuple[JudgedChunk, ...]:
        return tuple(c for s in self.segments for c in s.chunks)

    @property
    def needs_work(self) -> bool:
        """It merges, or a chunk of it is to be rewritten."""
        return len(self.segments) > 1 or any(c.action is Action.REWRITE for c in self.chunks)


def grouped(
    segments: Iterable[JudgedSegment], config: LogConfig, *, covered: int
) -> Iterator[Group]:
    """Yields all segments in order, each in one group, as they come.

    A segment that the map covers in part stays alone: merged, what is clean of its neighbours
    would count as dirty (S13).
    """
    span_ms_max = _span_ms_max(config)

    def fits(together: Extent) -> bool:
        return (
            together.size_bytes <= config.segment_bytes
            and together.span_ms <= span_ms_max
            and together.next <= covered
        )

    return (Group(tuple(run)) for run in neighbours(segments, _extent_left, fits))


def _extent_left(s: JudgedSegment) -> Extent:
    """Returns what a segment has after cleaning; how many chunks does not matter to a pass."""
    first_ms, last_ms = s.segment.first_timestamp_ms, s.segment.max_timestamp_ms
    return Extent(s.size_bytes_left, len(s.chunks), s.segment.next, first_ms, last_ms)


def _span_ms_max(config: LogConfig) -> float:
    if not config.delete or config.retention_ms < 0:
        return math.inf
    return max(config.effective_segment_ms, config.retention_ms // RETENTION_SHARE)
