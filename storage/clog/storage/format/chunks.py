"""Chunks and the objects they lie in: the atoms of a manifest, and their JSON columns (FORMAT.md
§3.3, §4).

A *chunk* is a run of rows of one data object, bound to the offsets ``[base, next)`` of one
partition. Its *identity* is (object, first row): the same rows keep it, whatever is trimmed off or
set for them.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clog.storage.errors import CorruptionError
from clog.storage.format.bitmaps.bitmap import files_of
from clog.storage.format.bitmaps.masks import ChunkMask
from clog.storage.format.dead_rows import DeadRows
from clog.storage.format.object_ref import ObjectRef
from clog.storage.format.paths import check_inside

NONE = -1
"""Stands for "none" in a column of numbers that are never negative. Part of the format."""
_INTEGERS = 1 << 63
_CHECKSUM = re.compile("[0-9a-f]{32}")
_PARTITION = re.compile("0|[1-9][0-9]{0,9}")
_OVERHEAD = 12
"""What each record counts, whatever is in it (FORMAT.md §3.3)."""
TIME_MS_MAX = (1 << 63) - 1
"""The latest time there is: what would lie beyond counts as this (FORMAT.md §5.3)."""


@dataclass(frozen=True, slots=True)
class TransactionName:
    """Names one transaction (FORMAT.md §11.2); ``home`` is the id of the log that decides."""

    home: str
    id: str
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows ``[first_row, first_row + rows)`` of ``object``, covering offsets ``[base, next)``.

    ``size_bytes`` is the sum of record sizes; ``version`` the newest commit the rows came in by;
    ``append_time_ms`` their timestamp under LogAppendTime. ``horizon_min``/``horizon_max`` bound
    the delete horizons of tombstones in it; ``horizon`` is the one of tombstones below ``up_to``
    that carry none of their own (S23). All of these are of all its rows, the dead ones, too.
    ``undecided`` names the transaction that has not ended, None for any other chunk; ``aborted``:
    of one that was aborted, so that nobody ever sees its rows.
    """

    object: ObjectRef
    first_row: int
    rows: int
    base: int
    next: int
    size_bytes: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    tombstones: int
    version: int
    append_time_ms: int = NONE
    horizon_min: int = NONE
    horizon_max: int = NONE
    horizon: int = NONE
    up_to: int = NONE
    dead: DeadRows | None = None
    undecided: TransactionName | None = None
    aborted: bool = False
    mask: ChunkMask | None = None

    @property
    def identity(self) -> tuple[str, int]:
        return (self.object.path, self.first_row)

    @property
    def live_rows(self) -> int:
        if self.aborted:
            return 0
        return self.rows if self.dead is None else self.rows - self.dead.rows

    @property
    def live_bytes(self) -> int:
        """Record bytes of the rows that are not dead, by their share of the rows: what a dead one
        weighs is not known, only its key was read when it was marked.
        """
        return self.size_bytes * self.live_rows // self.rows

    @property
    def tombstones_left(self) -> int:
        """Tombstones among the rows that are not dead, at least: which of these were tombstones is
        not known.
        """
        return max(0, self.tombstones - (self.rows - self.live_rows))

    @property
    def files(self) -> dict[str, int]:
        """Path -> bytes of the files that live while this chunk does: its object, its bitmaps."""
        files = {self.object.path: self.object.size_bytes, **files_of(self.dead)}
        return files if self.mask is None else {**files, **self.mask.files}

    def is_but_for_its_mask(self, other: "Chunk | None") -> bool:
        """Tells whether another chunk is the same, whatever their masks are."""
        return other is not None and replace(self, mask=other.mask) == other


def checked(c: Chunk) -> Chunk:
    """Returns the chunk, whose rows must be some of its object's, and its numbers possible.

    Raises:
        ValueError: they are not.
    """
    times = (c.first_timestamp_ms, c.max_timestamp_ms, c.append_time_ms)
    least = min(*times, c.horizon_min, c.horizon_max, c.horizon, c.up_to)
    if not (0 <= c.first_row < c.first_row + c.rows <= c.object.rows and c.base >= 0):
        raise ValueError(
            f"a chunk from offset {c.base} on has rows [{c.first_row}, {c.first_row + c.rows}) of"
            f" the {c.object.rows} of {c.object.path}"
        )
    if c.rows > c.next - c.base:
        raise ValueError(f"a chunk has {c.rows} rows for offsets [{c.base}, {c.next})")
    if c.size_bytes < _OVERHEAD * c.rows or not 0 <= c.tombstones <= c.rows:
        raise ValueError(
            f"a chunk of {c.rows} rows has {c.size_bytes} bytes, {c.tombstones} tombstones"
        )
    if least < NONE or c.version < 0:
        raise ValueError(f"a chunk of version {c.version} has the number {least}, below {NONE}")
    return c


def object_json(ref: ObjectRef) -> dict[str, Any]:
    """Returns an object's own fields; `chunk columns` are added beside them."""
    index = {"index": ref.index_bytes} if ref.index_bytes else {}
    return {
        "path": ref.path,
        "bytes": ref.size_bytes,
        "footer": ref.footer_bytes,
        "xxh3_128": ref.checksum,
        "rows": ref.rows,
        "stamp": ref.stamp,
        "dense": ref.dense,
        **index,
    }


def object_from_json(value: dict[str, Any], *, where: str) -> ObjectRef:
    """Returns the object that `object_json` described."""
    return ObjectRef(
        path=check_inside(value["path"], where=where),
        size_bytes=natural(value["bytes"]),
        footer_bytes=natural(value["footer"]),
        checksum=checksum_from(value["xxh3_128"]),
        rows=natural(value["rows"]),
        stamp=natural(value["stamp"]),
        dense=flag(value["dense"]),
        index_bytes=natural(value.get("index", 0)),
    )


def natural(value: object) -> int:
    """Returns the value, which must be an integer of 64 bits and not negative."""
    if (number := whole(value)) < 0:
        raise ValueError(f"{number}, where no number is below 0")
    return number


def partition_of(text: str) -> int:
    """Returns the partition that is the key of an object: a number without leading zeros."""
    if not _PARTITION.fullmatch(text):
        raise ValueError(f"no partition: {text!r:.80}")
    return int(text)


def text_from(value: object) -> str:
    """Returns the value, which must be text."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r:.80}")
    return value


def checksum_from(value: object) -> str:
    """Returns the value, which must be an XXH3-128, or an id, in hex."""
    if not isinstance(value, str) or not _CHECKSUM.fullmatch(value):
        raise ValueError(f"a checksum or id that is not 32 hex digits: {value!r:.80}")
    return value


def flag(value: object) -> bool:
    """Returns the value, which must be true or false."""
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, found {value!r:.80}")
    return value


def whole(value: object) -> int:
    """Returns the value, which must be an integer of 64 bits: JSON has floats, booleans and longer
    ones, the format has not.
    """
    if type(value) is not int:
        raise TypeError(f"expected an integer, found {value!r}")
    if not -_INTEGERS <= value < _INTEGERS:
        raise ValueError("an integer of more than 64 bits")
    return value


def horizon_from(value: object) -> int:
    """Reads a delete horizon; one beyond all time is `TIME_MS_MAX` (FORMAT.md §5.3)."""
    if type(value) is not int:
        raise TypeError(f"expected an integer, found {value!r}")
    return min(value, TIME_MS_MAX)


def columns_of(rows: Iterable[Sequence[Any]], names: Sequence[str]) -> dict[str, list[Any]]:
    """Returns the rows as columns; the names give the order of each row."""
    transposed = list(zip(*rows, strict=True))
    if not transposed:
        return {name: [] for name in names}
    return {name: list(column) for name, column in zip(names, transposed, strict=True)}


def rows_of(columns: dict[str, Any], names: Sequence[str]) -> Iterable[tuple[Any, ...]]:
    """Returns the columns as rows.

    Raises:
        CorruptionError: columns of different lengths.
    """
    lists = [columns[name] for name in names]
    if not all(isinstance(column, list) for column in lists):
        raise CorruptionError(f"columns that are no lists, among {', '.join(names)}")
    if len({len(column) for column in lists}) > 1:
        lengths = {name: len(columns[name]) for name in names}
        raise CorruptionError(f"columns of different lengths: {lengths}")
    return zip(*lists, strict=True)
