"""The manifest: all segments at one version, and how an edit changes them (FORMAT.md §3.2, §3.3).

A manifest is a value: `apply` returns the next one and shares what did not change. Pure. Segments
that a snapshot keeps in pages may be left there (`Manifest.pages`): an append needs none of them,
and an edit of a paged range is refused until `snapshots.unpage` has brought it in. Which edits are
wise is the cleaner's to know.

`rolls_for` says when an append rolls the active segment (S7). Each chunk counts as one append to
its partition; the active segment is sealed before a chunk when it is not empty and

- its bytes + the chunk's would exceed ``segment.bytes``, or
- the chunk's largest timestamp − its first record's timestamp > effective ``segment.ms`` − its
  jitter, or
- it has ``segment.chunks`` chunks already (as Kafka's rolls when its index is full).
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

from clog.storage.config.log_config import LogConfig
from clog.storage.errors import CorruptionError
from clog.storage.format.chunks import (
    NONE,
    Chunk,
    MaskMark,
    TransactionName,
)
from clog.storage.format.edits import Append, ChunkHorizon, DeadMark, Edit, Replacement, Uncleanable
from clog.storage.format.head import (
    CREATED_MS,
    END,
    START,
    Head,
    PartitionColumns,
    Row,
    advance,
    first_head,
)
from clog.storage.format.transactions import (
    ABORTED,
    Ending,
    Marker,
    ended,
    find_unended,
    markers_after,
)

_Mark = TypeVar("_Mark", ChunkHorizon, DeadMark, MaskMark)


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


@dataclass(frozen=True, slots=True)
class SegmentPage:
    """Sealed segments kept in a page; ``ranges`` are the offsets it answers for, by partition."""

    path: str
    size_bytes: int
    ranges: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Released:
    """An object that lost a chunk by ``version`` (FORMAT.md §6)."""

    path: str
    size_bytes: int
    version: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """State of a log at ``version``. ``segments[p]`` are in offset order, the last one active.
    ``covered`` are the offsets below which there are masks, by partition; empty while all are 0.
    """

    version: int
    commit_id: str
    time_ms: int
    head: Head
    segments: tuple[tuple[Segment, ...], ...]
    first_dirty: tuple[int, ...]
    released: tuple[Released, ...] = ()
    tombstones_removed: tuple[tuple[int, int, int], ...] = ()
    uncleanable: Mapping[int, Uncleanable] = field(default_factory=dict)
    pages: tuple[SegmentPage, ...] = ()
    markers: tuple[Marker, ...] = ()
    covered: tuple[int, ...] = ()

    def chunks(self) -> Iterator[tuple[int, Chunk]]:
        """Yields every (partition, chunk) that is not in a page."""
        for p, segments in enumerate(self.segments):
            for segment in segments:
                for chunk in segment.chunks:
                    yield p, chunk

    def files(self, partition: int | None = None) -> dict[str, int]:
        """Returns path -> bytes of the files that live as long as its chunks do, or those of a
        partition: objects and bitmaps. What a page refers to is left out.
        """
        return {
            path: size_bytes
            for p, chunk in self.chunks()
            if partition in (None, p)
            for path, size_bytes in chunk.files.items()
        }

    def paged_below(self, partition: int) -> int:
        """Returns the offset below which segments of the partition are in pages; -1 where none
        is.
        """
        ends = [r[partition][1] for page in self.pages if partition in (r := page.ranges)]
        return max(ends, default=NONE)


def first_manifest(edit: Edit, *, commit_id: str, time_ms: int) -> Manifest:
    """Returns the manifest at version 0."""
    head = first_head(edit)
    empty = (Segment(0, 0, NONE, ()),)
    count = head.log.partitions
    return Manifest(0, commit_id, time_ms, head, (empty,) * count, (0,) * count)


def apply(manifest: Manifest, edit: Edit, *, commit_id: str, time_ms: int) -> Manifest:
    """Returns the manifest at version N+1, from that at N.

    Raises:
        CorruptionError: the edit contradicts the manifest: sources that are not there, ranges that
            do not tile, whatever `head.advance` refuses.
    """
    version = manifest.version + 1
    if time_ms < manifest.time_ms and not edit.reset_times:
        raise CorruptionError(f"version {version} is of {time_ms} ms, earlier than its parent")
    head = advance(manifest.head, edit, version=version, time_ms=time_ms)
    work = _Work(manifest, version, time_ms)
    for p, offset in edit.start.items():
        work.first_dirty[p] = max(work.first_dirty[p], offset)
    for p, _ in edit.seal:
        work.roll(p, manifest.head.partitions.end[p])
    for p, base in edit.drop.items():
        work.drop(p, base)
    for r in edit.replace:
        work.replace(r)
    work.horizons(edit.horizons)
    work.dead(edit.dead)
    for ending in edit.ends:
        work.end(ending)
    work.masks(edit.masks, edit.covered)
    for p, offset in edit.first_dirty.items():
        work.first_dirty[p] = offset
    if edit.add is not None:
        work.add(_with_undecided(edit, edit.add) if edit.unended else edit.add)
    uncleanable = {**manifest.uncleanable, **edit.uncleanable}
    made = replace(
        manifest,
        version=version,
        commit_id=commit_id,
        time_ms=time_ms,
        head=head,
        segments=tuple(work.segments),
        first_dirty=tuple(work.first_dirty),
        released=_with_released(manifest.released, work.released, edit.forget),
        tombstones_removed=_with_steps(manifest, edit, version),
        uncleanable={p: why for p, why in uncleanable.items() if why is not None},
        markers=markers_after(
            manifest.markers,
            marked=edit.marked,
            unmarked=edit.unmarked,
            starts=head.partitions.start if edit.start else None,
            fresh=work.markers,
        ),
        covered=tuple(work.covered) if any(work.covered) else (),
    )
    return _with_times_reset(made, time_ms) if edit.reset_times else made


def _with_undecided(edit: Edit, add: Append) -> Append:
    """Returns what is appended; chunks of transactions that have not ended name theirs."""
    names = {
        chunk.object.path: joining.entry.name
        for joining in edit.unended
        for _, chunk in edit.chunks_of(joining)
    }
    chunks = ((p, replace(c, undecided=names.get(c.object.path))) for p, c in add.chunks)
    return replace(add, chunks=tuple(chunks))


def _with_steps(manifest: Manifest, edit: Edit, version: int) -> tuple[tuple[int, int, int], ...]:
    """Returns the steps of S41, without those that a newer and higher one answers for: they stay
    few.
    """
    highest = edit.tombstones_removed
    kept = [
        (p, v, offset)
        for p, v, offset in manifest.tombstones_removed
        if p not in highest or offset > highest[p]
    ]
    return (*kept, *((p, version, offset) for p, offset in sorted(highest.items())))


def _with_released(
    before: tuple[Released, ...], fresh: Mapping[str, Released], forget: tuple[str, ...]
) -> tuple[Released, ...]:
    """Returns all that is released; an object counts from the newest commit that took a chunk of it
    (FORMAT.md §6). The list may be long: it is gone through once an edit.
    """
    forgotten = set(forget)
    gone = forgotten.union(fresh)
    if not gone:
        return before
    left = [r for r in before if r.path not in gone]
    return (*left, *(r for r in fresh.values() if r.path not in forgotten))


def _with_times_reset(manifest: Manifest, time_ms: int) -> Manifest:
    """Returns the manifest with no time later than ``time_ms``, but those in its objects."""
    return replace(
        manifest,
        segments=tuple(
            tuple(_segment_reset(s, time_ms) for s in mine) for mine in manifest.segments
        ),
        released=tuple(replace(r, time_ms=min(r.time_ms, time_ms)) for r in manifest.released),
        uncleanable={
            p: replace(why, time_ms=min(why.time_ms, time_ms))
            for p, why in manifest.uncleanable.items()
        },
    )


def _segment_reset(segment: Segment, time_ms: int) -> Segment:
    """Returns the segment with no time later than ``time_ms``: what a clock that was far ahead has
    left is set back (FORMAT.md §3.2, ``reset_times``).
    """
    chunks = tuple(_chunk_reset(c, time_ms) for c in segment.chunks)
    return replace(segment, created_ms=min(segment.created_ms, time_ms), chunks=chunks)


def _chunk_reset(c: Chunk, time_ms: int) -> Chunk:
    if c.append_time_ms > time_ms:
        c = replace(c, append_time_ms=time_ms, first_timestamp_ms=time_ms, max_timestamp_ms=time_ms)
    if c.dead is not None and c.dead.since_ms > time_ms:
        c = replace(c, dead=replace(c.dead, since_ms=time_ms))
    return c


class _Work:
    """The manifest while an edit is applied."""

    def __init__(self, manifest: Manifest, version: int, time_ms: int) -> None:
        self.manifest = manifest
        self.version = version
        self.time_ms = time_ms
        self.segments = list(manifest.segments)
        self.first_dirty = list(manifest.first_dirty)
        self.covered = list(manifest.covered or [0] * manifest.head.log.partitions)
        self.released: dict[str, Released] = {}
        self.unended = manifest.head.unended
        self.markers: list[Marker] = []

    def end(self, ending: Ending) -> None:
        """Decides the chunks of a transaction, and gives each of its partitions a marker."""
        name, entry = ending.name, find_unended(self.unended, ending.name)
        self.unended = ended(self.unended, ending)
        for p in sorted(() if entry is None else entry.first):
            is_aborted = ending.outcome == ABORTED
            segments = [_decided(s, name, aborted=is_aborted) for s in self.segments[p]]
            offset = segments[-1].next
            marker = Marker(p, offset, name.id, name.epoch, name.number, ending.outcome)
            segments[-1] = replace(segments[-1], next=offset + 1)
            self.segments[p] = tuple(segments)
            self.markers.append(marker)

    def drop(self, p: int, base: int) -> None:
        self._need_unpaged(p, 0)
        gone = [s for s in self.segments[p][:-1] if s.next <= base]
        self._release([c.files for s in gone for c in s.chunks])
        self.segments[p] = self.segments[p][len(gone) :]

    def roll(self, p: int, base: int) -> None:
        self.segments[p] = (*self.segments[p], Segment(base, base, NONE, ()))

    def add(self, add: Append) -> None:
        rolls = {(p, base) for p, base, _ in add.rolls}
        fresh: dict[int, list[Chunk]] = {}
        for p, chunk in add.chunks:
            if (p, chunk.base) in rolls:
                self._extend(p, fresh.pop(p, []))
                self.roll(p, chunk.base)
            fresh.setdefault(p, []).append(chunk)
        for p, chunks in fresh.items():
            self._extend(p, chunks)

    def _extend(self, p: int, chunks: list[Chunk]) -> None:
        if chunks:
            active = self.segments[p][-1]
            created_ms = self.time_ms if active.created_ms == NONE else active.created_ms
            grown = (*active.chunks, *chunks)
            segment = Segment(active.base, chunks[-1].next, created_ms, grown)
            self.segments[p] = (*self.segments[p][:-1], segment)

    def replace(self, r: Replacement) -> None:
        self._need_unpaged(r.partition, r.base)
        segments = self.segments[r.partition]
        first = _index_at(segments, r.base)
        last = _index_at(segments, max(r.base, r.next - 1))
        touched = segments[first : last + 1]
        old = [c for s in touched for c in s.chunks]
        inside = [c for c in old if r.base <= c.base and c.next <= r.next]
        reaching_in = sum(c.base < r.next and c.next > r.base for c in old)
        if tuple(c.identity for c in inside) != r.sources or reaching_in != len(inside):
            raise CorruptionError(
                f"partition {r.partition}: a replacement of [{r.base}, {r.next}) does not name"
                f" exactly the {len(inside)} chunks that are there"
            )
        _check_tiling(r, touched)
        if last == len(segments) - 1:
            _check_kept(r, inside)
        tiles = r.segments or tuple((s.base, s.next, s.created_ms) for s in touched)
        before = [c for c in old if c.next <= r.base]
        after = [c for c in old if c.base >= r.next]
        new = _with_marks(r, inside)
        made = _cut([*before, *new, *after], tiles, r.partition)
        self.segments[r.partition] = (*segments[:first], *made, *segments[last + 1 :])
        kept = {path for c in new for path in c.files}
        files = [{path: n for path, n in c.files.items() if path not in kept} for c in inside]
        self._release(files)

    def horizons(self, given: Sequence[ChunkHorizon]) -> None:
        """Gives chunks their horizons; none may have one."""

        def with_horizon(c: Chunk, h: ChunkHorizon) -> Chunk | None:
            return replace(c, horizon=h.horizon_ms, up_to=h.up_to) if c.horizon == NONE else None

        self._mark(
            given,
            with_horizon,
            "horizons are for a chunk that is not there, or has one already",
        )

    def dead(self, given: Sequence[DeadMark]) -> None:
        """Gives sealed chunks their dead rows; the file of an older bitmap is released."""
        active = {mark.partition: self.segments[mark.partition][-1].chunks for mark in given}

        def with_dead(c: Chunk, mark: DeadMark) -> Chunk | None:
            dead, before = mark.dead, c.dead or mark.dead
            fits = before.rows <= dead.rows < c.rows and before.since_ms == dead.since_ms
            if c in active[mark.partition] or c.undecided is not None or c.aborted or not fits:
                return None
            return replace(c, dead=dead)

        self._mark(
            given,
            with_dead,
            "bitmaps of dead rows are for a chunk that is not there or not sealed, or do not fit"
            " the one it has",
        )

    def masks(self, given: Sequence[MaskMark], covered: Mapping[int, int]) -> None:
        """Gives chunks their masks, then partitions the offset up to which they are covered; at 0
        all masks of the partition go. The files of older masks are released.
        """
        for p, offset in covered.items():
            before, end = self.covered[p], self.manifest.head.stable_offset(p)
            if offset and not before <= offset <= end:
                raise CorruptionError(
                    f"partition {p}: masks cover offsets up to {offset}, which lies outside of"
                    f" [{before}, {end}]"
                )
            self.covered[p] = offset

        def with_mask(c: Chunk, mark: MaskMark) -> Chunk | None:
            is_covered = c.next <= self.covered[mark.partition]
            fits = is_covered and mark.mask.may_follow(c.mask, c.rows)
            return replace(c, mask=mark.mask) if fits else None

        self._mark(
            given,
            with_mask,
            "masks are for a chunk that is not there or not covered, or do not fit the one it has",
        )
        uncovered = {p for p, offset in covered.items() if offset == 0}
        self._change(uncovered, lambda _, c: None if c.mask is None else replace(c, mask=None))

    def _mark(
        self, given: Sequence[_Mark], change: Callable[[Chunk, _Mark], Chunk | None], wrong: str
    ) -> None:
        """Puts what ``change`` makes of a chunk and its mark in the chunk's place; it must make
        something of each.
        """
        wanted = {mark.place: mark for mark in given}

        def marked(p: int, c: Chunk) -> Chunk | None:
            mark = wanted.get((p, c.identity))
            return None if mark is None else change(c, mark)

        changed = self._change({mark.partition for mark in given}, marked)
        if changed != len(given):
            raise CorruptionError(f"{len(given) - changed} of {len(given)} {wrong}")

    def _change(self, partitions: set[int], change: Callable[[int, Chunk], Chunk | None]) -> int:
        """Puts what ``change`` makes of a chunk in its place, where it makes anything; returns
        how often. The files that the chunk needs no more are released.
        """
        count, files = 0, []
        for p in partitions:
            segments = list(self.segments[p])
            for i, segment in enumerate(segments):
                made = [change(p, c) for c in segment.chunks]
                if changes := sum(c is not None for c in made):
                    chunks = tuple(new or c for new, c in zip(made, segment.chunks, strict=True))
                    segments[i] = replace(segment, chunks=chunks)
                    count += changes
                for old, new in zip(segment.chunks, made, strict=True):
                    if new is not None:
                        kept = new.files
                        files.append({path: n for path, n in old.files.items() if path not in kept})
            self.segments[p] = tuple(segments)
        self._release(files)
        return count

    def _release(self, files: list[dict[str, int]]) -> None:
        objects = {path: size for some in files for path, size in some.items()}
        for path, size in objects.items():
            self.released.pop(path, None)
            self.released[path] = Released(path, size, self.version, self.time_ms)

    def _need_unpaged(self, p: int, base: int) -> None:
        if base < self.manifest.paged_below(p):
            raise AssertionError(f"partition {p} is paged at {base}; unpage it first")


def _index_at(segments: tuple[Segment, ...], offset: int) -> int:
    """Returns the index of the segment that covers the offset; the first one for anything below."""
    return max(0, bisect_right(segments, offset, key=lambda s: s.base) - 1)


def _check_tiling(r: Replacement, touched: tuple[Segment, ...]) -> None:
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


def _check_kept(r: Replacement, inside: list[Chunk]) -> None:
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


def _with_marks(r: Replacement, inside: list[Chunk]) -> list[Chunk]:
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


def _cut(
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


def _decided(segment: Segment, name: TransactionName, *, aborted: bool) -> Segment:
    """Returns the segment after the end of a transaction."""
    if all(c.undecided != name for c in segment.chunks):
        return segment
    chunks = tuple(
        replace(c, undecided=None, aborted=aborted) if c.undecided == name else c
        for c in segment.chunks
    )
    return replace(segment, chunks=chunks)


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


def rolls_for(
    columns: PartitionColumns,
    chunks: Sequence[tuple[int, Chunk]],
    config: LogConfig,
    *,
    uniform: Callable[[], float],
) -> tuple[tuple[int, int, int], ...]:
    """Returns (partition, base, jitter_ms) of the chunks before which the active segment rolls."""
    size: dict[int, int] = {}
    count: dict[int, int] = {}
    first_ms: dict[int, int] = {}
    jitter: dict[int, int] = {}
    rolls = []
    for p, chunk in chunks:
        if p not in size:
            size[p], count[p] = columns.bytes[p], columns.chunks[p]
            first_ms[p], jitter[p] = columns.first_ms[p], columns.jitter_ms[p]
        waited_ms = chunk.max_timestamp_ms - first_ms[p]
        if count[p] and (
            size[p] + chunk.size_bytes > config.segment_bytes
            or waited_ms > config.effective_segment_ms - jitter[p]
            or count[p] >= config.segment_chunks
        ):
            size[p] = count[p] = 0
            first_ms[p] = NONE
            jitter[p] = new_jitter_ms(config, uniform=uniform)
            rolls.append((p, chunk.base, jitter[p]))
        if count[p] == 0:
            first_ms[p] = chunk.first_timestamp_ms
        size[p] += chunk.size_bytes
        count[p] += 1
    return tuple(rolls)


def new_jitter_ms(config: LogConfig, *, uniform: Callable[[], float]) -> int:
    """Returns the jitter of a new segment, drawn once: below min(``segment.jitter.ms``,
    ``segment.ms``).
    """
    return int(uniform() * min(config.segment_jitter_ms, config.segment_ms))
