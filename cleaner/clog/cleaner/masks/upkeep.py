"""Keeping masks up with what is appended (FORMAT.md §13): a part of the cleaner's rounds, in logs
that have the feature.

The chunks of a partition that have masks are those at its beginning. A step takes new ones, in
their order, up to `STEP_ROWS`, and so many of each partition that has any:

M1. Find out which rows they supersede (`superseding`). New chunks in the clean part supersede
    nothing, and nothing in it does them: a pass has seen to that. Write bitmaps that are not
    inline.
M2. Commit the masks of the new chunks, those of older ones that got more bits, and how far the
    partition is covered, if the chunks are there with the masks that they had. What somebody else
    changed meanwhile is left for the next round.

Work is in proportion to new records: their keys, the key indexes of older objects, which stay in
memory, and the keys of blocks in which one of them may be.

Safety: only what the masks of *all* chunks below a new one were compared with makes it covered.
What is undecided is not looked at, and what was aborted wins over nothing: its chunks are covered,
and have no bit.

Where a chunk without mask is followed by one that has one, which no writer of ours brings about,
all masks of the partition go, and are made again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from clog.cleaner.masks.superseding import new_rows, superseded_in, tombstones_of
from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.commit.versions import file_missing
from clog.storage.format.bitmaps.bitmap import Bitmap, Rows, read_bitmap, write_bitmap
from clog.storage.format.bitmaps.masks import ChunkMask, MaskMark
from clog.storage.format.chunks import Chunk
from clog.storage.format.commits import Commit
from clog.storage.format.edits import Edit
from clog.storage.format.features import SUPERSEDED_ROWS
from clog.storage.format.manifest import Manifest, apply
from clog.storage.format.paths import mask_path
from clog.storage.read.key_index_cache import KeyIndexCache

STEP_ROWS = 1 << 20
"""Rows of new chunks that are judged and committed together, or those of one chunk."""


@dataclass(slots=True)
class _Step:
    """What one commit will say of some partitions."""

    marks: list[MaskMark] = field(default_factory=list)
    covered: dict[int, int] = field(default_factory=dict)
    rows: int = 0


def keep_masks(handle: Handle, indexes: KeyIndexCache) -> int:
    """Brings the masks of a log up to its newest version, in one commit or several; returns how
    many records were judged. Nothing is asked of the store where there is nothing new, or the log
    has no masks. ``indexes`` are of the handle's store, perhaps metered.

    Raises:
        CorruptionError: an object is damaged, or gone though the log needs it.
        VersionExpiredError: others replaced and swept an object meanwhile.
    """
    judged = 0
    if SUPERSEDED_ROWS not in handle.tip.head.log.features:
        return judged
    manifest = handle.manifest()
    ends = [manifest.head.stable_offset(p) for p in range(manifest.head.log.partitions)]
    while True:
        manifest = handle.manifest()
        try:
            step = _planned(manifest, ends, MaskMaker(indexes, manifest, handle.ids.new_id))
        except FileNotFoundError as e:
            raise file_missing(handle.store, manifest.version, e) from e
        if not step.covered:
            return judged
        judged += step.rows
        if not _commit(handle, manifest, step):
            return judged


def _planned(manifest: Manifest, ends: Sequence[int], maker: "MaskMaker") -> _Step:
    """Does M1 for the partitions that have new chunks, until these have `STEP_ROWS`."""
    step = _Step()
    for p, segments in enumerate(manifest.segments):
        if step.rows >= STEP_ROWS:
            break
        last = next((s.chunks[-1] for s in reversed(segments) if s.chunks), None)
        if last is None or last.mask is not None:
            continue
        chunks = [c for s in segments for c in s.chunks if c.next <= ends[p]]
        first = next((i for i, c in enumerate(chunks) if c.mask is None), len(chunks))
        if any(c.mask is not None for c in chunks[first:]):
            step.covered[p] = 0
            continue
        fresh = list(_bounded(chunks[first:], STEP_ROWS - step.rows))
        if fresh:
            step.rows += sum(c.rows for c in fresh)
            step.marks += maker.marks(p, chunks[:first], fresh)
            step.covered[p] = fresh[-1].next
    return step


def _bounded(chunks: Sequence[Chunk], rows: int) -> Iterator[Chunk]:
    """Yields as many of the chunks as have so many rows, and at least one."""
    for chunk in chunks:
        yield chunk
        rows -= chunk.rows
        if rows <= 0:
            return


@dataclass(frozen=True, slots=True)
class MaskMaker:
    """Makes masks at one version."""

    indexes: KeyIndexCache
    manifest: Manifest
    new_id: Callable[[], str]

    def marks(
        self, partition: int, older: Sequence[Chunk], fresh: Sequence[Chunk]
    ) -> list[MaskMark]:
        """Returns the masks of new chunks, and of those older ones that get more bits."""
        schema = self.manifest.head.log.schema
        first_dirty = self.manifest.first_dirty[partition]
        clean = [c for c in fresh if c.next <= first_dirty]
        dirty = [c for c in fresh[len(clean) :] if not c.aborted]
        masks = {c.identity: ChunkMask() for c in fresh}
        masks |= {
            c.identity: self._mask(None, tombstones_of(self.indexes, c, schema)) for c in clean
        }
        if dirty:
            judged = new_rows(self.indexes, dirty, schema)
            for c, superseded, tombstones in zip(
                dirty, judged.superseded, judged.tombstones, strict=True
            ):
                masks[c.identity] = self._mask(superseded, tombstones)
            start = self.manifest.head.partitions.start[partition]
            asked = [c for c in (*older, *clean) if c.next > start and not c.aborted]
            for c, rows in superseded_in(self.indexes, partition, asked, judged.keys, schema):
                before = masks.get(c.identity) or c.mask
                assert before is not None, "older chunks have masks"
                if (grown := self._with(before, c, rows)) != before:
                    masks[c.identity] = grown
        return [MaskMark(partition, *place, mask) for place, mask in masks.items()]

    def _with(self, before: ChunkMask, chunk: Chunk, rows: Rows) -> ChunkMask:
        """Returns a mask with more rows superseded; itself where it has them."""
        if before.superseded is not None:
            had = read_bitmap(self.indexes, before.superseded, chunk.rows)
            if not (rows & ~had).any():
                return before
            rows = rows | had
        return ChunkMask(self._bitmap(rows), before.tombstones)

    def _mask(self, superseded: Rows | None, tombstones: Rows) -> ChunkMask:
        return ChunkMask(
            None if superseded is None else self._bitmap(superseded), self._bitmap(tombstones)
        )

    def _bitmap(self, rows: Rows) -> Bitmap | None:
        if not np.any(rows):
            return None
        stamp = self.manifest.version
        return write_bitmap(self.indexes, rows, lambda: mask_path(stamp, self.new_id()))


def _commit(handle: Handle, planned: Manifest, step: _Step) -> bool:
    """Does M2; returns whether all of it was committed."""
    whole = False

    def prepare(tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        nonlocal whole
        now = handle.manifest()
        left = _as_planned(step, planned, now)
        if planned.version < tip.head.orphan_floor:
            left = set()
        whole = len(left) == len(step.covered)
        if not left:
            return NothingToCommit()
        edit = Edit(
            masks=tuple(mark for mark in step.marks if mark.partition in left),
            covered={p: offset for p, offset in step.covered.items() if p in left},
        )
        apply(now, edit, commit_id="", time_ms=time_ms)  # What does not fit is our own mistake.
        return edit

    handle.commit(prepare, operation="mask")
    return whole


def _as_planned(step: _Step, planned: Manifest, now: Manifest) -> set[int]:
    """Returns the partitions whose chunks are there with the masks that they had."""
    if now.version == planned.version:
        return set(step.covered)
    places: Mapping[int, set[tuple[str, int]]] = {p: set() for p in step.covered}
    for mark in step.marks:
        places[mark.partition].add(mark.place[1])
    return {
        p
        for p, named in places.items()
        if _masks(planned, p, named) == _masks(now, p, named)
        and (planned.covered[p] if planned.covered else 0) == (now.covered[p] if now.covered else 0)
    }


def _masks(
    manifest: Manifest, partition: int, places: set[tuple[str, int]]
) -> dict[tuple[str, int], tuple[int, ChunkMask | None]]:
    chunks = (c for s in manifest.segments[partition] for c in s.chunks)
    return {c.identity: (c.rows, c.mask) for c in chunks if c.identity in places}
