"""Chunks, the atoms of a manifest: the objects that they lie in, their bitmaps, and the JSON of all
of these (FORMAT.md §3.3, §4, §5.4, §13).

A *chunk* is a run of rows of one data object, bound to the offsets ``[base, next)`` of one
partition. Its *identity* is (object, first row): the same rows keep it, whatever is trimmed off or
set for them. What a manifest says of an object is enough to read it without asking the store
anything first.

A *bitmap* has one bit for each row of a chunk, in one zlib stream. A short one is *inline*, in the
manifest; a longer one is a *bitmap file* of its own, written once, which lives and dies with its
chunk. A chunk may have up to three:

- *Dead rows*, which nobody sees any more, though their bytes are still there. Later ones of the
  chunk take their place, and hold them, too.
- Its *mask*: the rows that a later record of their key superseded, and the tombstones, as no table
  shows them. A chunk with a mask is *covered*: whatever came before the offset up to which its
  partition is covered was compared with it. Masks decide nothing that keys do not; who ignores them
  gets the same table.

The last functions read single values of JSON, as the format allows them. They raise TypeError or
ValueError; who reads the document names the errors.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from clog.storage.errors import CorruptionError
from clog.storage.format.documents import check_inside, dead_path
from clog.storage.store.contract import Store

NONE = -1
"""Stands for "none" in a column of numbers that are never negative. Part of the format."""
FOOTER_SUM_BYTES: Final = 16
"""An object's bytes before its Parquet footer: the footer's XXH3-128. Part of the format."""
INLINE_BYTES_MAX = 1024
"""A longer bitmap is a file: every snapshot repeats what is inline."""
TIME_MS_MAX = (1 << 63) - 1
"""The latest time there is: what would lie beyond counts as this (FORMAT.md §5.3)."""
_INTEGERS = 1 << 63
_OVERHEAD = 12
"""What each record counts, whatever is in it (FORMAT.md §3.3)."""
_CHECKSUM = re.compile("[0-9a-f]{32}")
_PARTITION = re.compile("0|[1-9][0-9]{0,9}")

Rows = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One immutable Parquet object (FORMAT.md §3.3).

    ``size_bytes`` and ``footer_bytes`` let a reader fetch exactly the ranges it needs; ``checksum``
    is XXH3-128 of all bytes, in hex; ``stamp`` a version its writer had read before it wrote;
    ``dense`` means that offsets run without gap from each chunk's base, so there is no ``offset``
    column. ``index_bytes`` is the size of its key index, 0 where it has none.
    """

    path: str
    size_bytes: int
    footer_bytes: int
    checksum: str
    rows: int
    stamp: int
    dense: bool
    index_bytes: int = 0

    @property
    def tail(self) -> tuple[int, int]:
        """The bytes from the key index on: it, the footer's checksum, the footer."""
        rest = self.index_bytes + FOOTER_SUM_BYTES + self.footer_bytes
        return self.size_bytes - rest, self.size_bytes


@dataclass(frozen=True, slots=True)
class BitmapFile:
    """Where a bitmap is that is not inline; ``checksum`` is XXH3-128 of all its bytes, in hex."""

    path: str
    size_bytes: int
    checksum: str


class AnyBitmap(Protocol):
    """``rows`` of a chunk's rows have their bit set; ``bitmap`` is the zlib stream itself where it
    is inline.
    """

    @property
    def rows(self) -> int: ...

    @property
    def bitmap(self) -> bytes | BitmapFile: ...


@dataclass(frozen=True, slots=True)
class Bitmap:
    """As `AnyBitmap` says, and nothing more."""

    rows: int
    bitmap: bytes | BitmapFile


@dataclass(frozen=True, slots=True)
class DeadRows:
    """``rows`` of a chunk's rows are dead, the first of them since ``since_ms``.

    ``bitmap`` is the zlib stream itself where it is inline.
    """

    rows: int
    since_ms: int
    bitmap: bytes | BitmapFile


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
        pairs = (old.superseded, self.superseded), (old.tombstones, self.tombstones)
        counts = ([0 if bitmap is None else bitmap.rows for bitmap in pair] for pair in pairs)
        return all(was <= now <= chunk_rows for was, now in counts)


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


def files_of(*bitmaps: AnyBitmap | None) -> dict[str, int]:
    """Returns path -> bytes of those that are files."""
    files = (b.bitmap for b in bitmaps if b is not None)
    return {f.path: f.size_bytes for f in files if isinstance(f, BitmapFile)}


def write_bitmap(store: Store, rows: Rows, path: Callable[[], str]) -> Bitmap:
    """Stores a bitmap, one element for each row of its chunk; a PUT where it is not inline, to a
    ``path`` that nobody has.
    """
    data = zlib.compress(np.packbits(rows, bitorder="little").tobytes(), 9)
    count = int(np.count_nonzero(rows))
    if len(data) <= INLINE_BYTES_MAX:
        return Bitmap(count, data)
    file = BitmapFile(path(), len(data), xxhash.xxh3_128_hexdigest(data))
    store.put(file.path, data)
    return Bitmap(count, file)


def write_dead_rows(
    store: Store, dead: Rows, *, since_ms: int, stamp: int, new_id: Callable[[], str]
) -> DeadRows:
    """Stores the dead rows of a chunk, one element for each of its rows; a PUT where they are not
    inline.

    ``stamp``: a version that was read before (FORMAT.md §6).
    """
    written = write_bitmap(store, dead, lambda: dead_path(stamp, new_id()))
    return DeadRows(written.rows, since_ms, written.bitmap)


def read_bitmap(store: Store, bitmap: AnyBitmap, chunk_rows: int) -> Rows:
    """Returns which of the chunk's rows have their bit; one GET where the bitmap is not inline.

    Raises:
        FileNotFoundError: the bitmap's file is gone.
        CorruptionError: its bytes are not those that the manifest describes.
    """
    if isinstance(bitmap.bitmap, bytes):
        return _unpacked(bitmap.bitmap, bitmap.rows, chunk_rows, f"a bitmap of {store.url}")
    file = bitmap.bitmap
    where = f"{file.path} of {store.url}"
    data = store.get(file.path, 0, file.size_bytes + 1)
    if len(data) != file.size_bytes:
        raise CorruptionError(f"{where} has {len(data)} bytes, expected {file.size_bytes}")
    checksum = xxhash.xxh3_128_hexdigest(data)
    if checksum != file.checksum:
        raise CorruptionError(f"{where} has xxh3_128 {checksum}, expected {file.checksum}")
    return _unpacked(data, bitmap.rows, chunk_rows, where)


def _unpacked(data: bytes, rows: int, chunk_rows: int, where: str) -> Rows:
    stream = zlib.decompressobj()
    expected = (chunk_rows + 7) // 8
    try:
        packed = stream.decompress(data, expected + 1)
    except zlib.error as e:
        raise CorruptionError(f"{where} does not inflate: {e}") from e
    if len(packed) != expected or not stream.eof or stream.unused_data:
        raise CorruptionError(f"{where} is not the bitmap of {chunk_rows} rows")
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    if bits[chunk_rows:].any() or np.count_nonzero(bits) != rows:
        raise CorruptionError(
            f"{where} marks {np.count_nonzero(bits)} of {chunk_rows} rows, expected {rows}"
        )
    return bits[:chunk_rows].view(np.bool_)


def dead_rows_to_json(dead: DeadRows) -> dict[str, Any]:
    """Returns the JSON that stands in edits, snapshots and pages."""
    return {**_bitmap_to_json(dead), "since_ms": dead.since_ms}


def dead_rows_from_json(value: dict[str, Any], *, where: str) -> DeadRows:
    """Reads what `dead_rows_to_json` made.

    Raises:
        CorruptionError: it violates the format.
    """
    bitmap, since_ms = _bitmap_from_json(value, where), value["since_ms"]
    if type(since_ms) is not int:
        raise CorruptionError(f"{where} has dead rows since {since_ms!r}")
    return DeadRows(bitmap.rows, since_ms, bitmap.bitmap)


def mask_to_json(mask: ChunkMask) -> dict[str, Any]:
    """Returns the JSON that stands in edits, snapshots and pages."""
    parts = {"superseded": mask.superseded, "tombstones": mask.tombstones}
    return {name: _bitmap_to_json(part) for name, part in parts.items() if part is not None}


def mask_from_json(value: dict[str, Any], *, where: str) -> ChunkMask:
    """Reads what `mask_to_json` made.

    Raises:
        CorruptionError: it violates the format.
    """
    superseded, tombstones = (
        _bitmap_from_json(value[name], where) if name in value else None
        for name in ("superseded", "tombstones")
    )
    return ChunkMask(superseded, tombstones)


def _bitmap_to_json(bitmap: AnyBitmap) -> dict[str, Any]:
    file = bitmap.bitmap
    if isinstance(file, bytes):
        return {"rows": bitmap.rows, "bits": file.hex()}
    sizes = {"bytes": file.size_bytes, "xxh3_128": file.checksum}
    return {"rows": bitmap.rows, "path": file.path, **sizes}


def _bitmap_from_json(value: dict[str, Any], where: str) -> Bitmap:
    rows = value["rows"]
    if type(rows) is not int or rows < 1:
        raise CorruptionError(f"{where} has a bitmap of {rows!r} rows")
    if "bits" in value:
        return Bitmap(rows, bytes.fromhex(value["bits"]))
    path, size = check_inside(value["path"], where=where), value["bytes"]
    if type(size) is not int:
        raise CorruptionError(f"{where} has a bitmap of {size!r} bytes")
    return Bitmap(rows, BitmapFile(path, size, str(value["xxh3_128"])))


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


def whole(value: object) -> int:
    """Returns the value, which must be an integer of 64 bits: JSON has floats, booleans and longer
    ones, the format has not.
    """
    if type(value) is not int:
        raise TypeError(f"expected an integer, found {value!r}")
    if not -_INTEGERS <= value < _INTEGERS:
        raise ValueError("an integer of more than 64 bits")
    return value


def natural(value: object) -> int:
    """Returns the value, which must be an integer of 64 bits and not negative."""
    if (number := whole(value)) < 0:
        raise ValueError(f"{number}, where no number is below 0")
    return number


def horizon_from(value: object) -> int:
    """Reads a delete horizon; one beyond all time is `TIME_MS_MAX` (FORMAT.md §5.3)."""
    if type(value) is not int:
        raise TypeError(f"expected an integer, found {value!r}")
    return min(value, TIME_MS_MAX)


def flag(value: object) -> bool:
    """Returns the value, which must be true or false."""
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, found {value!r:.80}")
    return value


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


def partition_of(text: str) -> int:
    """Returns the partition that is the key of an object: a number without leading zeros."""
    if not _PARTITION.fullmatch(text):
        raise ValueError(f"no partition: {text!r:.80}")
    return int(text)
