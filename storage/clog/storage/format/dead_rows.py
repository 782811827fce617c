"""Dead rows: rows of a chunk that nobody sees any more, though their bytes are still there
(FORMAT.md §5.4).

A `bitmaps.bitmap` says which. A later one of the chunk takes its place, and holds its rows, too.

Not here: which rows are dead, and when a chunk is rewritten without them (cleaner).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clog.storage.errors import CorruptionError
from clog.storage.format.bitmaps.bitmap import (
    BitmapFile,
    Rows,
    bitmap_from_json,
    bitmap_to_json,
    write_bitmap,
)
from clog.storage.format.paths import dead_path
from clog.storage.store.base import Store


@dataclass(frozen=True, slots=True)
class DeadRows:
    """``rows`` of a chunk's rows are dead, the first of them since ``since_ms``.

    ``bitmap`` is the zlib stream itself where it is inline.
    """

    rows: int
    since_ms: int
    bitmap: bytes | BitmapFile


def write_dead_rows(
    store: Store, dead: Rows, *, since_ms: int, stamp: int, new_id: Callable[[], str]
) -> DeadRows:
    """Stores the dead rows of a chunk, one element for each of its rows; a PUT where they are not
    inline.

    ``stamp``: a version that was read before (FORMAT.md §6).
    """
    written = write_bitmap(store, dead, lambda: dead_path(stamp, new_id()))
    return DeadRows(written.rows, since_ms, written.bitmap)


def dead_rows_to_json(dead: DeadRows) -> dict[str, Any]:
    """Returns the JSON that stands in edits, snapshots and pages."""
    return {**bitmap_to_json(dead), "since_ms": dead.since_ms}


def dead_rows_from_json(value: dict[str, Any], *, where: str) -> DeadRows:
    """Reads what `dead_rows_to_json` made.

    Raises:
        CorruptionError: it violates the format.
    """
    bitmap, since_ms = bitmap_from_json(value, where=where), value["since_ms"]
    if type(since_ms) is not int:
        raise CorruptionError(f"{where} has dead rows since {since_ms!r}")
    return DeadRows(bitmap.rows, since_ms, bitmap.bitmap)
