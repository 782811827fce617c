"""Segments, and the rules by which replacements change them (FORMAT.md §3.3). Pure."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from clog.storage.errors import CorruptionError
from clog.storage.format.chunks import NONE, Chunk, TransactionName
from clog.storage.format.columns import CREATED_MS, END, START, Row
from clog.storage.format.dead_rows import DeadRows
from clog.storage.format.edits import Replacement


@dataclass(frozen=True, slots=True)
class Segment:
    """Offsets ``[base, next)`` of one partition.

    ``created_ms`` is the time of the commit that brought its first chunk, -1 while it is empty.
    """

    base: int
    next: int
    created_ms: int
    chunks: tuple[Chunk, ...]

    @property
    def rows(self) -> int:
        """Records that a reader sees, below the log start or not."""
        return sum(c.live_rows for c in self.chunks)

    @property
    def dead_rows(self) -> int:
        """Rows marked dead whose bytes are still there."""
        return sum(c.rows - c.live_rows for c in self.chunks)

    @property
    def size_bytes(self) -> int:
        """Record bytes of the rows that are not dead (decision 0006)."""
        return sum(c.live_bytes for c in self.chunks)

    @property
    def max_timestamp_ms(self) -> int:
        """Largest timestamp of its records; its commit time where it has none (S11)."""
        return max((c.max_timestamp_ms for c in self.chunks), default=self.created_ms)

    @property
    def first_timestamp_ms(self) -> int:
        return self.chunks[0].first_timestamp_ms if self.chunks else self.created_ms


def index_at(segments: tuple[Segment, ...], offset: int) -> int:
    """Returns the index of the segment that covers the offset; the first one for anything below."""
    return max(0, bisect_right(segments, offset, key=lambda s: s.base) - 1)


def check_order(segment: Segment, *, after: list[Segment], partition: int) -> None:
    """Raises unless a segment comes after the one before it, and its chunks lie in it, in order.

    Raises:
        ValueError: it does not, or they do not.
    """
    edges = [segment.base, *(at for c in segment.chunks for at in (c.base, c.next)), segment.next]
    if segment.base < 0 or edges != sorted(edges):
        raise ValueError(f"partition {partition}: chunks at {edges[1:-1]} in [{segment.base}, …")
    if after and after[-1].next > segment.base:
        raise ValueError(f"partition {partition}: two segments have offset {segment.base}")


def check_follow(segments: Sequence[Segment], partition: int) -> None:
    """Raises where there is a gap between two segments.

    Raises:
        ValueError: there is one.
    """
    for before, after in pairwise(segments):
        if before.next != after.base:
            raise ValueError(
                f"partition {partition}: segment [{before.base}, {before.next}) is followed by one"
                f" at {after.base}"
            )


def check_places(partition: int, paged: Sequence[tuple[int, int]], mine: Sequence[Segment]) -> None:
    """Raises unless the ranges that pages have, and the segments after them, follow one another.

    Raises:
        ValueError: they do not.
    """
    ranges = [*paged, (mine[0].base, mine[0].base)]
    for (base, end), (after, _) in pairwise(ranges):
        if not base < end == after:
            raise ValueError(
                f"pages of partition {partition} have [{base}, {end}), and go on at {after}"
            )
    check_follow(mine, partition)


def check_active(partition: int, row: Row, active: Segment) -> None:
    """Raises unless the active segment is that of which a head has the row.

    Raises:
        ValueError: it is not.
    """
    chunks = active.chunks
    first_ms = chunks[0].first_timestamp_ms if chunks else NONE
    sums = sum(c.size_bytes for c in chunks), len(chunks), first_ms
    found = active.next, active.base, *sums, active.created_ms
    if found != row[END : CREATED_MS + 1] or row[START] > active.next:
        raise ValueError(
            f"the active segment of partition {partition} is {found}, in the head {row}"
        )


def check_tiling(r: Replacement, touched: tuple[Segment, ...]) -> None:
    """Raises unless the chunks, and the segments where there are any, tile the range."""
    edges = [r.base, *(offset for c in r.chunks for offset in (c.base, c.next)), r.next]
    if r.base >= r.next or edges != sorted(edges):
        raise CorruptionError(
            f"partition {r.partition}: chunks of a replacement do not lie in order in"
            f" [{r.base}, {r.next})"
        )
    if r.segments is None:
        return
    ends = [r.base, *(end for _, end, _ in r.segments)]
    bases = [*(base for base, _, _ in r.segments), r.next]
    empty = any(base >= end for base, end, _ in r.segments)
    if empty or ends != bases or (touched[0].base, touched[-1].next) != (r.base, r.next):
        raise CorruptionError(
            f"partition {r.partition}: segments {r.segments} do not tile [{r.base}, {r.next})"
        )


def with_marks(r: Replacement, inside: list[Chunk]) -> list[Chunk]:
    """Returns the new chunks; those that were there before keep their marks, and their
    masks where they have as many rows.
    """
    if any(c.undecided for c in inside):
        raise CorruptionError(
            f"partition {r.partition}: a replacement of [{r.base}, {r.next}) changes a chunk that"
            " is undecided"
        )
    marked = {c.identity: c for c in inside if c.dead is not None or c.aborted}
    before = {c.identity: c for c in inside}
    objects = {c.object.path for c in marked.values()}
    made = []
    for c in r.chunks:
        old = marked.get(c.identity)
        if (old is None and c.object.path in objects) or (old is not None and old.rows != c.rows):
            raise CorruptionError(
                f"partition {r.partition}: a replacement refers to a part of {c.object.path},"
                " which has dead rows, or was aborted"
            )
        marks = (None, False) if old is None else (old.dead, old.aborted)
        same = before.get(c.identity)
        mask = same.mask if same is not None and same.rows == c.rows else None
        made.append(replace(c, dead=marks[0], aborted=marks[1], mask=mask))
    return made


def decided(segment: Segment, name: TransactionName, *, aborted: bool) -> Segment:
    """Returns the segment after the end of a transaction."""
    if all(c.undecided != name for c in segment.chunks):
        return segment
    chunks = tuple(
        replace(c, undecided=None, aborted=aborted) if c.undecided == name else c
        for c in segment.chunks
    )
    return replace(segment, chunks=chunks)


def may_follow(dead: DeadRows, c: Chunk) -> bool:
    """Tells whether these dead rows may take the place of those that the chunk has."""
    if c.undecided is not None or c.aborted:
        return False
    before = c.dead or dead
    return before.rows <= dead.rows < c.rows and before.since_ms == dead.since_ms


def check_kept(r: Replacement, inside: list[Chunk]) -> None:
    """Raises unless a replacement in the active segment keeps every record."""
    before, after = (
        (sum(c.rows for c in chunks), sum(c.size_bytes for c in chunks))
        for chunks in (inside, r.chunks)
    )
    if before != after:
        raise CorruptionError(
            f"partition {r.partition}: a replacement in the active segment has {after[0]} records"
            f" of {after[1]} bytes, it takes away {before[0]} of {before[1]}"
        )


def cut(
    chunks: list[Chunk], tiles: tuple[tuple[int, int, int], ...], partition: int
) -> list[Segment]:
    """Returns the chunks, cut into the given segments; a chunk lies in exactly one."""
    made, at = [], 0
    for base, end, created_ms in tiles:
        mine = []
        while at < len(chunks) and chunks[at].next <= end:
            if chunks[at].base < base:
                break
            mine.append(chunks[at])
            at += 1
        made.append(Segment(base, end, created_ms, tuple(mine)))
    if at != len(chunks):
        raise CorruptionError(f"partition {partition}: chunks do not fit the segments {tiles}")
    return made


def with_times_reset(segment: Segment, time_ms: int) -> Segment:
    """Returns the segment with no time later than ``time_ms``: what a clock that was far ahead has
    left is set back (FORMAT.md §3.2, ``reset_times``).
    """
    chunks = tuple(_chunk(c, time_ms) for c in segment.chunks)
    return replace(segment, created_ms=min(segment.created_ms, time_ms), chunks=chunks)


def _chunk(c: Chunk, time_ms: int) -> Chunk:
    if c.append_time_ms > time_ms:
        c = replace(c, append_time_ms=time_ms, first_timestamp_ms=time_ms, max_timestamp_ms=time_ms)
    if c.dead is not None and c.dead.since_ms > time_ms:
        c = replace(c, dead=replace(c.dead, since_ms=time_ms))
    return c
