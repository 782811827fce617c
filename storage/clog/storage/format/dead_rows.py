"""Dead-row bitmaps: rows of a chunk that nobody sees any more, though their bytes are still there
(FORMAT.md §5.4).

A bitmap is one bit for each row of its chunk, in one zlib stream. A short one is *inline*, in the
manifest; a longer one is a *bitmap file* of its own, written once, which lives and dies with its
chunk. A later bitmap of the chunk takes its place, and holds its rows, too.

Not here: which rows are dead, and when a chunk is rewritten without them (cleaner).
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from clog.storage.errors import CorruptionError
from clog.storage.format.paths import check_inside, dead_path
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
    data = zlib.compress(np.packbits(dead, bitorder="little").tobytes(), 9)
    rows = int(np.count_nonzero(dead))
    if len(data) <= INLINE_BYTES_MAX:
        return DeadRows(rows, since_ms, data)
    path = dead_path(stamp, new_id())
    store.put(path, data)
    return DeadRows(rows, since_ms, BitmapFile(path, len(data), xxhash.xxh3_128_hexdigest(data)))


def read_dead_rows(store: Store, dead: DeadRows, chunk_rows: int) -> Rows:
    """Returns which of the chunk's rows are dead; one GET where the bitmap is not inline.

    Raises:
        FileNotFoundError: the bitmap's file is gone.
        CorruptionError: its bytes are not those that the manifest describes.
    """
    if isinstance(dead.bitmap, bytes):
        return _unpacked(dead.bitmap, dead, chunk_rows, f"a bitmap of {store.url}")
    file = dead.bitmap
    where = f"{file.path} of {store.url}"
    data = store.get(file.path, 0, file.size_bytes + 1)
    if len(data) != file.size_bytes:
        raise CorruptionError(f"{where} has {len(data)} bytes, expected {file.size_bytes}")
    checksum = xxhash.xxh3_128_hexdigest(data)
    if checksum != file.checksum:
        raise CorruptionError(f"{where} has xxh3_128 {checksum}, expected {file.checksum}")
    return _unpacked(data, dead, chunk_rows, where)


def dead_rows_to_json(dead: DeadRows) -> dict[str, Any]:
    """Returns the JSON that stands in edits, snapshots and pages."""
    out: dict[str, Any] = {"rows": dead.rows, "since_ms": dead.since_ms}
    if isinstance(dead.bitmap, bytes):
        return {**out, "bits": dead.bitmap.hex()}
    file = dead.bitmap
    return {**out, "path": file.path, "bytes": file.size_bytes, "xxh3_128": file.checksum}


def dead_rows_from_json(value: dict[str, Any], *, where: str) -> DeadRows:
    """Reads what `dead_rows_to_json` made.

    Raises:
        CorruptionError: it violates the format.
    """
    rows, since_ms = value["rows"], value["since_ms"]
    if type(rows) is not int or type(since_ms) is not int or rows < 1:
        raise CorruptionError(f"{where} has a bitmap of {rows!r} dead rows since {since_ms!r}")
    if "bits" in value:
        return DeadRows(rows, since_ms, bytes.fromhex(value["bits"]))
    path, size = check_inside(value["path"], where=where), value["bytes"]
    if type(size) is not int:
        raise CorruptionError(f"{where} has a bitmap of {size!r} bytes")
    return DeadRows(rows, since_ms, BitmapFile(path, size, str(value["xxh3_128"])))


def _unpacked(data: bytes, dead: DeadRows, chunk_rows: int, where: str) -> Rows:
    stream = zlib.decompressobj()
    expected = (chunk_rows + 7) // 8
    try:
        packed = stream.decompress(data, expected + 1)
    except zlib.error as e:
        raise CorruptionError(f"{where} does not inflate: {e}") from e
    if len(packed) != expected or not stream.eof or stream.unused_data:
        raise CorruptionError(f"{where} is not the bitmap of {chunk_rows} rows")
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    if bits[chunk_rows:].any() or np.count_nonzero(bits) != dead.rows:
        raise CorruptionError(
            f"{where} marks {np.count_nonzero(bits)} of {chunk_rows} rows, expected {dead.rows}"
        )
    return bits[:chunk_rows].view(np.bool_)
