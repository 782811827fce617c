"""Bitmaps: one bit for each row of a chunk, in one zlib stream (FORMAT.md §5.4).

A short one is *inline*, in the manifest; a longer one is a *bitmap file* of its own, written once,
which lives and dies with its chunk.

Not here: what the bits mean (`dead_rows`, `masks`).
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from clog.storage.errors import CorruptionError
from clog.storage.format.paths import check_inside
from clog.storage.store.base import Store

INLINE_BYTES_MAX = 1024
"""A longer bitmap is a file: every snapshot repeats what is inline."""

Rows = npt.NDArray[np.bool_]


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


def files_of(*bitmaps: AnyBitmap | None) -> dict[str, int]:
    """Returns path -> bytes of those that are files."""
    files = (b.bitmap for b in bitmaps if b is not None)
    return {f.path: f.size_bytes for f in files if isinstance(f, BitmapFile)}


def bitmap_to_json(bitmap: AnyBitmap) -> dict[str, Any]:
    """Returns the JSON that stands in edits, snapshots and pages."""
    file = bitmap.bitmap
    if isinstance(file, bytes):
        return {"rows": bitmap.rows, "bits": file.hex()}
    sizes = {"bytes": file.size_bytes, "xxh3_128": file.checksum}
    return {"rows": bitmap.rows, "path": file.path, **sizes}


def bitmap_from_json(value: dict[str, Any], *, where: str) -> Bitmap:
    """Reads what `bitmap_to_json` made.

    Raises:
        CorruptionError: it violates the format.
    """
    rows = value["rows"]
    if type(rows) is not int or rows < 1:
        raise CorruptionError(f"{where} has a bitmap of {rows!r} rows")
    if "bits" in value:
        return Bitmap(rows, bytes.fromhex(value["bits"]))
    path, size = check_inside(value["path"], where=where), value["bytes"]
    if type(size) is not int:
        raise CorruptionError(f"{where} has a bitmap of {size!r} bytes")
    return Bitmap(rows, BitmapFile(path, size, str(value["xxh3_128"])))


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
