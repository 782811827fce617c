"""Masks: which rows of a chunk no table shows, known beforehand (FORMAT.md §13).

A mask has a bitmap of the rows that a later record of their key superseded, and one of the
tombstones. A chunk with a mask is *covered*: whatever came before the offset up to which its
partition is covered was compared with it. Masks decide nothing that keys do not; who ignores them
gets the same table.

Not here: which rows they are (cleaner), what a table makes of them (`read.table_plan`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clog.storage.errors import CorruptionError
from clog.storage.format.bitmaps.bitmap import (
    Bitmap,
    bitmap_from_json,
    bitmap_to_json,
    files_of,
)


@dataclass(frozen=True, slots=True)
class ChunkMask:
    """The rows of a chunk that tables leave out; None where there is none."""

    superseded: Bitmap | None = None
    tombstones: Bitmap | None = None

    @property
    def files(self) -> Mapping[str, int]:
        """Path -> bytes of the bitmaps that are files."""
        return files_of(self.superseded, self.tombstones)

    def may_follow(self, before: "ChunkMask | None", chunk_rows: int) -> bool:
        """Tells whether it may take the place of the mask that a chunk of so many rows has, as far
        as numbers tell.
        """
        old = before or ChunkMask()
        return all(
            _count(was) <= _count(now) <= chunk_rows
            for was, now in (
                (old.superseded, self.superseded),
                (old.tombstones, self.tombstones),
            )
        )


@dataclass(frozen=True, slots=True)
class MaskMark:
    """The mask of a chunk, in place of the one it had before, whose rows it has."""

    partition: int
    object_path: str
    first_row: int
    mask: ChunkMask

    @property
    def place(self) -> tuple[int, tuple[str, int]]:
        """The partition and the chunk's identity."""
        return self.partition, (self.object_path, self.first_row)


def mask_to_json(mask: ChunkMask) -> dict[str, Any]:
    """Returns the JSON that stands in edits, snapshots and pages."""
    parts = {"superseded": mask.superseded, "tombstones": mask.tombstones}
    return {name: bitmap_to_json(part) for name, part in parts.items() if part is not None}


def mask_from_json(value: dict[str, Any], *, where: str) -> ChunkMask:
    """Reads what `mask_to_json` made.

    Raises:
        CorruptionError: it violates the format.
    """
    superseded, tombstones = (
        bitmap_from_json(value[name], where=where) if name in value else None
        for name in ("superseded", "tombstones")
    )
    return ChunkMask(superseded, tombstones)


def check_covered(partition: int, before: int, offset: int, end: int) -> None:
    """Raises unless a partition that is covered up to ``before``, and stable up to ``end``, may be
    covered up to an offset; at 0 it has no masks.

    Raises:
        CorruptionError: it may not.
    """
    if offset and not before <= offset <= end:
        raise CorruptionError(
            f"partition {partition}: masks cover offsets up to {offset}, which lies outside of"
            f" [{before}, {end}]"
        )


def _count(bitmap: Bitmap | None) -> int:
    return 0 if bitmap is None else bitmap.rows
