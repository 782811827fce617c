"""Masks of superseded rows: the rows of a chunk that no table shows. They are brought up to date
with appends (`keep_masks`), and carried through rewrites (`MaskCarrier`).

M1. Find out which rows the newest records of a partition supersede: among themselves (M1a), and in
    older chunks, where their key indexes say that a key may be (M1b).
M2. Commit the masks, if the chunks are still there with those that they had; what another writer
    changed since is left to the next round.

A rewrite carries the bits of the rows that it replaces, by offset, in the same edit, so no key is
compared again. A chunk becomes covered only after all chunks below it were compared with it.
cleaner/PASS.md says what this costs, and why it is safe; FORMAT.md §13 what is stored.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from operator import attrgetter
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.commit.versions import reading
from clog.storage.config.log_config import order_text
from clog.storage.env import dataclass
from clog.storage.format.chunks import (
    Bitmap,
    Chunk,
    ChunkMask,
    MaskMark,
    Replacement,
    Rows,
    read_bitmap,
    write_bitmap,
)
from clog.storage.format.commits import Commit, Edit
from clog.storage.format.documents import mask_path
from clog.storage.format.log_info import LogSchema
from clog.storage.format.manifest import Manifest, apply
from clog.storage.keys.hashing import key_bytes
from clog.storage.keys.key_index import index_hashes
from clog.storage.keys.latest import last_rows
from clog.storage.numpy_arrays import Mask, Offsets, to_arrow, to_numpy
from clog.storage.objects.reader import BATCH_ROWS, open_ranges
from clog.storage.read.scan import KeyIndexCache, piece_of, presence_column
from clog.storage.store.contract import Store

_Kind = Literal["superseded", "tombstones"]


@dataclass(slots=True)
class MaskCarrier:
    """Carries masks over for one rewrite; what it made for a commit that lost its race serves the
    next one.

    Args:
        stamp: a version that was read before anything is written (FORMAT.md §6).
    """

    store: Store
    stamp: int
    new_id: Callable[[], str]
    _made: dict[tuple[Chunk, tuple[Chunk, ...]], ChunkMask] = field(default_factory=dict)

    def with_masks(self, edit: Edit, now: Manifest) -> Edit:
        """Returns the edit with the masks of its new chunks, if the log has masks."""
        schema = now.head.log.schema
        marks = [
            MaskMark(r.partition, *chunk.identity, self._carried(chunk, sources, schema))
            for r in edit.replace
            for chunk, sources in _covered(r, now)
        ]
        return replace(edit, masks=(*edit.masks, *marks)) if marks else edit

    def _carried(
        self, chunk: Chunk, sources: tuple[Chunk, ...], schema: LogSchema | None
    ) -> ChunkMask:
        known = self._made.get((chunk, sources))
        if known is None:
            superseded = self._bits(chunk, sources, schema, "superseded")
            known = ChunkMask(superseded, self._bits(chunk, sources, schema, "tombstones"))
            self._made[chunk, sources] = known
        return known

    def _bits(
        self, chunk: Chunk, sources: Sequence[Chunk], schema: LogSchema | None, kind: _Kind
    ) -> Bitmap | None:
        """Returns the bits of a chunk's rows, taken from the chunks that it replaces."""
        had = [(c, bits) for c in sources if (bits := getattr(c.mask, kind)) is not None]
        if not had:
            return None
        set_at = [
            offsets_of(self.store, c, schema)[read_bitmap(self.store, b, c.rows)] for c, b in had
        ]
        offsets = offsets_of(self.store, chunk, schema)
        rows = np.isin(offsets, np.concatenate(set_at), assume_unique=True)
        if not rows.any():
            return None
        return write_bitmap(self.store, rows, lambda: mask_path(self.stamp, self.new_id()))


def offsets_of(store: Store, chunk: Chunk, schema: LogSchema | None) -> Offsets:
    """Returns the offset of each row of a chunk, including dead ones; read if the object has a
    column of offsets. ``schema`` is the log's, without which no typed object can be opened.
    """
    if chunk.object.dense:
        return np.arange(chunk.base, chunk.base + chunk.rows, dtype=np.int64)
    read = open_ranges(
        store, chunk.object, [(chunk.first_row, chunk.rows)], columns=("offset",), schema=schema
    )
    return np.concatenate([to_numpy(batch.column(0)) for _, _, batch in read(BATCH_ROWS)])


def _covered(r: Replacement, now: Manifest) -> Iterator[tuple[Chunk, tuple[Chunk, ...]]]:
    """Yields the chunks of a replacement that get a mask, and those whose rows they took over."""
    named = set(r.sources)
    there = (c for s in now.segments[r.partition] if s.base < r.next and r.base <= s.next
             for c in s.chunks)  # fmt: skip
    sources = sorted((c for c in there if c.identity in named), key=attrgetter("base"))
    kept = {c.identity: c.rows for c in sources}
    for chunk in r.chunks:
        if kept.get(chunk.identity) == chunk.rows or chunk.next > now.covered[r.partition]:
            continue
        mine = tuple(c for c in sources if c.base < chunk.next and c.next > chunk.base)
        if mine and all(c.mask is not None for c in mine):
            yield chunk, mine


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows of new chunks, chunk by chunk: which are superseded, which are tombstones; and their
    keys, each once, as canonical bytes.
    """

    superseded: Sequence[Mask]
    tombstones: Sequence[Mask]
    keys: pa.Array


def new_rows(indexes: KeyIndexCache, chunks: Sequence[Chunk], schema: LogSchema | None) -> NewRows:
    """Judges new chunks, in offset order, among themselves (M1a)."""
    read = [_column(indexes, c, "key", schema) for c in chunks]
    canonical = [key_bytes(pa.concat_arrays(some)) for some in read]
    keys = pa.chunked_array(canonical, pa.binary()).combine_chunks()
    with_key = np.flatnonzero(to_numpy(keys.is_valid()))
    last = with_key.take(last_rows(keys.drop_null(), seed=indexes.seed))
    superseded = np.ones(len(keys), np.bool_)
    superseded[last] = False
    edges = np.cumsum([c.rows for c in chunks])[:-1]
    tombstones = [_tombstones_of(indexes, c, schema) for c in chunks]
    return NewRows(np.split(superseded, edges), tombstones, keys.take(to_arrow(last)))


def _tombstones_of(store: Store, chunk: Chunk, schema: LogSchema | None) -> Mask:
    """Returns which rows of a chunk are tombstones; reads nothing if it has none."""
    if not chunk.tombstones:
        return np.zeros(chunk.rows, np.bool_)
    parts = _column(store, chunk, presence_column("value", schema, ()), schema)
    return np.concatenate([to_numpy(part.is_null()) for part in parts])


def superseded_in(
    indexes: KeyIndexCache,
    partition: int,
    older: Sequence[Chunk],
    keys: pa.Array,
    schema: LogSchema | None,
) -> Iterator[tuple[Chunk, Mask]]:
    """Yields older chunks that have any of the keys, and which of their rows have one (M1b)."""
    if not len(keys):
        return
    hashes = index_hashes(keys, seed=indexes.seed)
    by_place = {c.identity: c for c in older}
    pieces = [piece_of(partition, c, c.base, c.next, schema) for c in older]
    indexes.load(pieces)
    for run in indexes.runs(pieces):
        for hit in indexes.hits(run, hashes):
            chunk = by_place[hit.piece.object.path, hit.piece.first_row]
            wanted = keys.take(to_arrow(np.unique(hit.numbers)))
            parts = hit.parts(np.ones(len(hit.numbers), np.bool_))
            ranges = [(part.first_row, part.rows) for part in parts]
            rows = np.zeros(chunk.rows, np.bool_)
            read = open_ranges(indexes, chunk.object, ranges, columns=("key",), schema=schema)
            for i, at, batch in read(BATCH_ROWS):
                found = pc.is_in(key_bytes(batch.column(0)), value_set=wanted)
                first = ranges[i][0] - chunk.first_row + at
                rows[first : first + batch.num_rows] = to_numpy(found)
            if rows.any():
                yield chunk, rows


def _column(store: Store, chunk: Chunk, name: str, schema: LogSchema | None) -> list[pa.Array]:
    """Returns a column of all rows of a chunk, in parts."""
    ranges = [(chunk.first_row, chunk.rows)]
    read = open_ranges(store, chunk.object, ranges, columns=(name,), schema=schema)
    return [batch.column(0) for _, _, batch in read(BATCH_ROWS)]


STEP_ROWS = 1 << 20
"""Rows of new chunks that are judged and committed together; a larger chunk is taken alone."""


@dataclass(slots=True)
class _Step:
    """What one commit will say about some partitions."""

    marks: list[MaskMark] = field(default_factory=list)
    covered: dict[int, int] = field(default_factory=dict)
    rows: int = 0


def keep_masks(handle: Handle, indexes: KeyIndexCache) -> int:
    """Brings the masks of a log up to its newest version, in one commit or several; returns how
    many records were judged. Makes no request if nothing is new, or the winner of a key is not the
    last record.
    ``indexes`` are of the handle's store, perhaps metered.
    """
    judged = 0
    head = handle.tip.head
    if order_text(head.config):
        return judged
    manifest = handle.manifest()
    ends = [manifest.head.stable_offset(p) for p in range(manifest.head.log.partitions)]
    while True:
        manifest = handle.manifest()
        with reading(handle.store, manifest.version):
            step = _planned(manifest, ends, MaskMaker(indexes, manifest, handle.ids.new_id))
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
        covered = _covered_offset(manifest, p)
        fresh = list(_bounded(chunks[first:], covered, STEP_ROWS - step.rows))
        if fresh:
            step.rows += sum(c.rows for c in fresh)
            step.marks += maker.marks(p, chunks[:first], fresh)
            step.covered[p] = max(covered, fresh[-1].next)
    return step


def _covered_offset(manifest: Manifest, partition: int) -> int:
    return manifest.covered[partition] if manifest.covered else 0


def _bounded(chunks: Sequence[Chunk], covered: int, rows: int) -> Iterator[Chunk]:
    """Yields the chunks that begin below ``covered``, then one, or several with that many rows."""
    for chunk in chunks:
        if rows <= 0 and chunk.base >= covered:
            return
        yield chunk
        rows -= chunk.rows


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
            c.identity: self._mask(None, _tombstones_of(self.indexes, c, schema)) for c in clean
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
        """Returns a mask with more rows superseded; the same mask if it has them already."""
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
        if tip.head.may_be_swept(planned.version):
            left = set()
        whole = len(left) == len(step.covered)
        if not left:
            return NothingToCommit()
        edit = Edit(
            masks=tuple(mark for mark in step.marks if mark.partition in left),
            covered={p: offset for p, offset in step.covered.items() if p in left},
        )
        apply(now, edit, commit_id="", time_ms=time_ms)  # If it does not fit, that is our bug.
        return edit

    handle.commit(prepare, operation="mask")
    return whole


def _as_planned(step: _Step, planned: Manifest, now: Manifest) -> set[int]:
    """Returns the partitions whose chunks, masks and winners are as they were planned."""
    if now.version == planned.version:
        return set(step.covered)
    if order_text(now.head.config) != order_text(planned.head.config):
        return set()
    places: Mapping[int, set[tuple[str, int]]] = {p: set() for p in step.covered}
    for mark in step.marks:
        places[mark.partition].add(mark.place[1])
    return {
        p
        for p, named in places.items()
        if _masks(planned, p, named) == _masks(now, p, named)
        and _covered_offset(planned, p) == _covered_offset(now, p)
    }


def _masks(
    manifest: Manifest, partition: int, places: set[tuple[str, int]]
) -> dict[tuple[str, int], tuple[int, ChunkMask | None]]:
    chunks = (c for s in manifest.segments[partition] for c in s.chunks)
    return {c.identity: (c.rows, c.mask) for c in chunks if c.identity in places}
