"""Which rows of the scanned files count, and what their offsets are, as small tables that Spark
joins with the scan.

A scanned row is known by its file's name and by its number in the file. Both make one integer, the
number of its *block* of rows: Spark's own hash of the name, of which as many bits are taken as
tell the files apart, and then the row's number without its lowest bits.

- *Hidden rows*: for each block of 64 rows of which any is hidden a word with their bits.
- *Places*: for each block of 4,096 rows, the pieces of the log that have rows in it.

Nothing here knows Spark; what it does with the tables is in `frames`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

from clog.connector.native.reasons import CannotScanError
from clog.storage.format.chunks import NONE
from clog.storage.numpy_arrays import to_arrow

if TYPE_CHECKING:
    from clog.storage.numpy_arrays import Mask, Offsets
    from clog.storage.read.scan import ReadPiece

NAME_BITS, ROW_BITS = 38, 25
HIDDEN_BITS, PLACE_BITS = 6, 12
"""Of a row's number in a block of hidden rows, and in one of places."""
BLOCKS_MAX = 4 << 20
"""A table of more is not sent to all executors."""
ROWS_MAX = 1 << (ROW_BITS + HIDDEN_BITS)
_HASH_SEED = 42
_NONE = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class FileNumbers:
    """Numbers that tell files apart: ``NAME_BITS`` bits of the hash of their names, without the
    lowest ``shift``.
    """

    numbers: Mapping[str, int]
    shift: int

    @classmethod
    def of(cls, names: Iterable[str]) -> "FileNumbers":
        """Returns numbers for these files.

        Raises:
            CannotScanError: no bits of their hashes tell them apart.
        """
        hashes = {name: xxhash.xxh64_intdigest(name.encode(), seed=_HASH_SEED) for name in names}
        for shift in range(64 - NAME_BITS):
            numbers = {n: (h >> shift) & ((1 << NAME_BITS) - 1) for n, h in hashes.items()}
            if len(set(numbers.values())) == len(numbers):
                return cls(numbers, shift)
        raise CannotScanError("it has too many objects; let the cleaner put small ones together")

    def block(self, name: str, rows: int) -> int:
        """Returns the number of the first block of a file with so many rows.

        Raises:
            CannotScanError: its rows have no room.
        """
        if rows > ROWS_MAX:
            raise CannotScanError(f"it has an object of more than {ROWS_MAX:,} rows")
        return self.numbers[name] << ROW_BITS


def hidden_rows(files: FileNumbers, masks: "Mapping[str, Mask]") -> pa.Table:
    """Returns the hidden rows of each file: ``block``, ``hidden``.

    Raises:
        CannotScanError: too many blocks have some.
    """
    blocks, words = [], []
    for name, mask in masks.items():
        packed = np.packbits(mask, bitorder="little")
        padded = np.zeros(-(-len(packed) // 8) * 8, np.uint8)
        padded[: len(packed)] = packed
        word = padded.view("<i8")
        some = np.flatnonzero(word)
        blocks.append(files.block(name, len(mask)) + some)
        words.append(word[some])
    return _checked({"block": to_arrow(_joined(blocks)), "hidden": to_arrow(_joined(words))})


def places(files: FileNumbers, pieces: "Iterable[tuple[str, ReadPiece]]") -> pa.Table:
    """Returns where rows of each file lie in the log: in a ``block`` rows ``[first_row, end_row)``
    are of a ``partition``, and their offsets ``delta`` more than their numbers, or, where that is
    null, in the file; of those ``[start, end)`` are read. ``append_time``: their timestamp, null
    where the file has it.

    Raises:
        CannotScanError: there are too many blocks.
    """
    rows: list[tuple[int, ...]] = []
    blocks: list[Offsets] = []
    for name, piece in pieces:
        if not piece.rows:
            continue
        low, high = piece.first_row, piece.first_row + piece.rows
        some = np.arange(low >> PLACE_BITS, ((high - 1) >> PLACE_BITS) + 1, dtype=np.int64)
        blocks.append(files.block(name, high) + some)
        offset = piece.base - low if piece.object.dense else _NONE
        append_us = _NONE if piece.append_time_ms == NONE else piece.append_time_ms * 1000
        place = (low, high, piece.partition, offset, piece.start, piece.end, append_us)
        rows.append((len(some), *place))
    counts, *columns = np.array(rows, np.int64).reshape(-1, 8).T
    first, end, partition, delta, start, stop, time_us = (np.repeat(c, counts) for c in columns)
    return _checked(
        {
            "block": to_arrow(_joined(blocks)),
            "first_row": to_arrow(first),
            "end_row": to_arrow(end),
            "partition": to_arrow(partition.astype(np.int32)),
            "delta": to_arrow(delta, valid=delta != _NONE),
            "start": to_arrow(start),
            "end": to_arrow(stop),
            "append_time": to_arrow(time_us, pa.timestamp("us", "UTC"), valid=time_us != _NONE),
        }
    )


def _joined(parts: "Sequence[Offsets]") -> "Offsets":
    return np.concatenate([np.empty(0, np.int64), *parts])


def _checked(columns: Mapping[str, pa.Array]) -> pa.Table:
    if len(columns["block"]) > BLOCKS_MAX:
        raise CannotScanError(f"it takes more than {BLOCKS_MAX:,} blocks of rows to say which")
    return pa.table(dict(columns))
