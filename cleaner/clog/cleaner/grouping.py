"""Step 3 of a pass: neighbouring segments that fit one together (S25). Pure.

Sizes are those after cleaning, so that two half-empty segments merge in the pass that empties them
(Kafka takes the sizes before). They are estimated: `rewriting` cuts what turns out too large.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from clog.cleaner.judging import Fate, JudgedChunk, JudgedSegment


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
    segments: Iterable[JudgedSegment], *, segment_bytes: int, covered: int
) -> Iterator[Group]:
    """All segments in order, each in one group, as they come: only one group is held at a time.

    A segment that the map covers in part stays alone: merged, what is clean of its neighbours
    would count as dirty (S13).
    """
    group: list[JudgedSegment] = []
    size_bytes = 0
    for s in segments:
        fits = size_bytes + s.size_bytes_left <= segment_bytes and s.segment.next <= covered
        if group and not fits:
            yield Group(tuple(group))
            group, size_bytes = [], 0
        group.append(s)
        size_bytes += s.size_bytes_left
    if group:
        yield Group(tuple(group))
