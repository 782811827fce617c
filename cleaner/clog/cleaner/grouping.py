"""Step 3 of a pass: neighbouring segments that fit one together (S25). Pure.

Sizes are those after cleaning, so that two half-empty segments merge in the pass that empties them
(Kafka takes the sizes before). They are estimated: `rewriting` cuts what turns out too large.

Where retention deletes by time, too, neighbours merge only while their records are of one time: a
segment expires by its newest record, so one that takes in all that comes would never (S33; Kafka's
does). What is merged expires at most that much later.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from clog.cleaner.judging import Fate, JudgedChunk, JudgedSegment
from clog.storage.config import LogConfig

RETENTION_SHARE = 10
"""What merges is of one ``segment.ms``, or of ``retention.ms`` divided by this."""


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
        return len(self.segments) > 1 or any(c.fate is Fate.REWRITTEN for c in self.chunks)


def grouped(
    segments: Iterable[JudgedSegment], config: LogConfig, *, covered: int
) -> Iterator[Group]:
    """All segments in order, each in one group, as they come: only one group is held at a time.

    A segment that the map covers in part stays alone: merged, what is clean of its neighbours
    would count as dirty (S13).
    """
    span_ms_max = _span_ms_max(config)
    group: list[JudgedSegment] = []
    size_bytes = first_ms = last_ms = 0
    for s in segments:
        size_bytes += s.size_bytes_left
        first_ms = min(first_ms, s.segment.first_timestamp_ms)
        last_ms = max(last_ms, s.segment.max_timestamp_ms)
        fits = (
            size_bytes <= config.segment_bytes
            and last_ms - first_ms <= span_ms_max
            and s.segment.next <= covered
        )
        if group and not fits:
            yield Group(tuple(group))
            group = []
        if not group:
            size_bytes = s.size_bytes_left
            first_ms, last_ms = s.segment.first_timestamp_ms, s.segment.max_timestamp_ms
        group.append(s)
    if group:
        yield Group(tuple(group))


def _span_ms_max(config: LogConfig) -> float:
    if not config.delete or config.retention_ms < 0:
        return math.inf
    return max(config.effective_segment_ms, config.retention_ms // RETENTION_SHARE)
