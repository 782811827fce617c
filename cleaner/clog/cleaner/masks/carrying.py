"""Masks carried over by rewrites (FORMAT.md §13): a row that was superseded stays so, wherever it
lies.

A chunk that takes the place of others gets the bits of their rows, by offset, in the same edit:
its keys need not be compared again. It is decided in K2, from the manifest that the commit goes
upon: bits may have been set since the rewrite was planned. Where a chunk that goes has no mask, the
one that comes has none either.

Cost: nothing where no chunk that goes has a bit; else the column `offset` of those that have, and
of those that come, where they have one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Literal

import numpy as np

from clog.storage.format.bitmaps.bitmap import Bitmap, read_bitmap, write_bitmap
from clog.storage.format.bitmaps.masks import ChunkMask, MaskMark
from clog.storage.format.chunks import Chunk
from clog.storage.format.edits import Edit, Replacement
from clog.storage.format.manifest import Manifest
from clog.storage.format.paths import mask_path
from clog.storage.format.schema import LogSchema
from clog.storage.numpy_arrays import Offsets, to_numpy
from clog.storage.objects.reader import BATCH_ROWS, open_ranges
from clog.storage.store.base import Store

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
        """Returns the edit with the masks of its new chunks."""
        if not now.covered:
            return edit
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
        """Returns the bits of a chunk's rows that those of the others had."""
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
    """Returns the offset of each row of a chunk, the dead ones counted; read where the object has
    a column of them. ``schema`` is the log's, without which no typed object opens.
    """
    if chunk.object.dense:
        return np.arange(chunk.base, chunk.base + chunk.rows, dtype=np.int64)
    read = open_ranges(
        store, chunk.object, [(chunk.first_row, chunk.rows)], columns=("offset",), schema=schema
    )
    return np.concatenate([to_numpy(batch.column(0)) for _, batch in read(BATCH_ROWS)])


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
