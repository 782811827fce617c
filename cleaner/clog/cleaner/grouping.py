"""Step 3 of a pass: neighbouring segments that fit one together (S25). Pure.

Sizes are upper bounds of what is left after cleaning, so a merged segment never exceeds ``segment.bytes``, and two half-empty ones merge in the pass that empties them
(Kafka takes the sizes before).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from clog.cleaner.judging import JudgedChunk, JudgedSegment
from clog.storage.chunks import NONE


@dataclass(frozen=True, slots=True)
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
        """Something died, it merges, or a tombstone's horizon finds no place beside the one the chunk has."""
        return len(self.segments) > 1 or any(c.dead or needs_own_horizon(c) for c in self.chunks)


def needs_own_horizon(c: JudgedChunk) -> bool:
    """Whether a horizon must go into the rows: the chunk's one place is taken by an earlier pass, whose horizon stays (S23)."""
    return c.stamps and c.chunk.horizon != NONE


def grouped(
    segments: Sequence[JudgedSegment], *, segment_bytes: int, segment_chunks: int
) -> list[Group]:
    """All segments in order, each in one group; a group's bytes and chunks stay within a segment's limits."""
    groups: list[list[JudgedSegment]] = []
    size = count = 0
    for s in segments:
        fits = size + s.size_bytes_max <= segment_bytes and count + len(s.chunks) <= segment_chunks
        if groups and fits:
            groups[-1].append(s)
        else:
            groups.append([s])
            size = count = 0
        size += s.size_bytes_max
        count += len(s.chunks)
    return [Group(tuple(g)) for g in groups]
