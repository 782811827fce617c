"""Rows that a read leaves out of a chunk: by its bitmap of dead rows, by its mask (FORMAT.md §5.4,
§13).
"""

from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from clog.storage.format.bitmaps.bitmap import Bitmap, Rows, read_bitmap
from clog.storage.format.chunks import Chunk
from clog.storage.format.dead_rows import DeadRows
from clog.storage.store.base import Store


@dataclass(frozen=True, slots=True)
class MarkedChunk:
    """The rows that are left out of the chunk that is rows ``[first_row, first_row + rows)`` of its
    object: those that any of the bitmaps has.
    """

    bitmaps: tuple[DeadRows | Bitmap, ...]
    first_row: int
    rows: int


class Hidden(Enum):
    """Which rows are left out of a chunk."""

    DEAD = auto()
    """Those that nobody sees."""
    SUPERSEDED = auto()
    """As well those that its mask says were superseded."""
    ALL = auto()
    """As well those that its mask says are tombstones."""

    def of(self, chunk: Chunk) -> tuple[DeadRows | Bitmap, ...]:
        """Returns the bitmaps of a chunk that say which."""
        mask = chunk.mask if self is not Hidden.DEAD else None
        superseded = mask.superseded if mask else None
        tombstones = mask.tombstones if mask and self is Hidden.ALL else None
        return tuple(b for b in (chunk.dead, superseded, tombstones) if b is not None)


def left_out(store: Store, marked: MarkedChunk) -> Rows:
    """Returns which rows of a chunk are left out; one request for each bitmap that is not inline.

    Raises:
        FileNotFoundError: a bitmap is gone.
        CorruptionError: its bytes are not those that the manifest describes.
    """
    rows = np.zeros(marked.rows, np.bool_)
    for bitmap in marked.bitmaps:
        rows |= read_bitmap(store, bitmap, marked.rows)
    return rows
