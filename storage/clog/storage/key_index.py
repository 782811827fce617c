"""Key index of a data object: which blocks of its rows may hold a key (FORMAT.md §5.5). Pure.

It is a set of truncated key hashes for each *block* of rows, in the shape of a quotient filter that
never changes: hashes are sorted, their highest bits say which of ``2^bits`` *buckets* they are in,
the next 24 bits are kept, and for each bucket how many there are. With two to four hashes in a
bucket that is 3.3 to 3.5 bytes a key, and an absent key is taken for one that is there with a
chance of less than 2^-22 a block: low enough to ask for the 100,000 dirty keys of a pass at once,
for which a filter with a chance of 1 % or 0.4 % is of no use (decision 0005).

Hashes are those of the log's seed (S19). An index only spares work: where it says "maybe", keys are
compared; without one, keys are read.

Not here: where it lies in its object (`object_encoding`), who keeps it (`key_lookup`).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from clog.storage.key_hash import hash_keys

BLOCK_ROWS = 1 << 17
"""Rows of a block where nothing else bounds it."""

SUM_BYTES: Final = 16
VERSION: Final = 1

_KEPT_BITS: Final = 24
_BITS_MAX: Final = 32
_HEADER: Final = struct.Struct("<IIB")
"""Rows of the block, hashes in it, bits of the bucket's number."""

Hashes = NDArray[np.uint64]
Mask = NDArray[np.bool_]


class DamagedIndexError(ValueError):
    """The bytes are not those that were written."""


def index_hashes(keys: pa.Array, *, seed: int) -> Hashes:
    """The upper 64 bits of each key's hash; nulls are left out."""
    return np.ascontiguousarray(hash_keys(keys.drop_null(), seed=seed)[:, 0])


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Rows ``[start, end)``. Bucket *b* has the hashes ``[first[b], first[b + 1])``."""

    start: int
    end: int
    bits: int
    first: NDArray[np.uint32]
    high: NDArray[np.uint16]
    low: NDArray[np.uint8]

    def may_hold(self, hashes: Hashes) -> Mask:
        """Compares each hash with all of its bucket, all of them together."""
        values = _truncated(hashes, self.bits)
        bucket = (values >> np.uint64(_KEPT_BITS)).astype(np.intp)
        wanted = values.astype(np.uint32) & np.uint32((1 << _KEPT_BITS) - 1)
        begin = self.first[bucket].astype(np.intp)
        counts = self.first[bucket + 1].astype(np.intp) - begin
        of = np.repeat(np.arange(len(hashes)), counts)
        at = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts - begin, counts)
        kept = self.high[at].astype(np.uint32) << np.uint32(8) | self.low[at]
        found = np.zeros(len(hashes), np.bool_)
        found[of[kept == wanted[of]]] = True
        return found


@dataclass(frozen=True, slots=True, eq=False)
class KeyIndex:
    """The index of one object."""

    blocks: tuple[_Block, ...]

    @property
    def rows(self) -> int:
        """Rows of the object."""
        return self.blocks[-1].end if self.blocks else 0

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return sum(b.first.nbytes + b.high.nbytes + b.low.nbytes for b in self.blocks)

    def rows_of(self, hashes: Hashes) -> list[tuple[int, int]]:
        """Half-open ranges of rows, ascending and apart, outside of which no key has one of the
        hashes.
        """
        found: list[tuple[int, int]] = []
        for block in self.blocks:
            if not block.may_hold(hashes).any():
                continue
            if found and found[-1][1] == block.start:
                found[-1] = (found[-1][0], block.end)
            else:
                found.append((block.start, block.end))
        return found

    def may_hold_any(self, hashes: Hashes) -> bool:
        """Whether a key of the object may have one of the hashes."""
        return any(block.may_hold(hashes).any() for block in self.blocks)


def encode(blocks: Sequence[tuple[int, Hashes]]) -> bytes:
    """The index of an object: for each block its rows and the hashes of its keys, in any order."""
    parts = [bytes([VERSION])]
    for rows, hashes in blocks:
        distinct = np.unique(hashes)
        bits = max(0, len(distinct).bit_length() - 2)
        values = _truncated(distinct, bits)
        values = values[np.append(True, np.diff(values) != 0)[: len(values)]]
        buckets = (values >> np.uint64(_KEPT_BITS)).astype(np.intp)
        counts = np.bincount(buckets, minlength=1 << bits)
        parts.append(_HEADER.pack(rows, len(values), bits))
        # A bucket of more than 255 hashes, of two to four: not in the age of the universe.
        parts.append(counts.astype(np.uint8).tobytes())
        parts.append((values >> np.uint64(8)).astype("<u2").tobytes())
        parts.append(values.astype(np.uint8).tobytes())
    body = b"".join(parts)
    return xxhash.xxh3_128_digest(body) + body


def decode(data: bytes | memoryview) -> KeyIndex | None:
    """The index that `encode` made; None for one of a version that is not known.

    Raises:
        DamagedIndexError: the bytes are not those that were written.
    """
    view = memoryview(data)
    if xxhash.xxh3_128_digest(view[SUM_BYTES:]) != bytes(view[:SUM_BYTES]):
        raise DamagedIndexError("the xxh3_128 of its key index is not the one stored before it")
    if view[SUM_BYTES] != VERSION:
        return None
    try:
        return KeyIndex(tuple(_blocks(view)))
    except (struct.error, ValueError) as e:
        raise DamagedIndexError(f"its key index contradicts the format: {e}") from e


def _blocks(view: memoryview) -> Any:
    at, row = SUM_BYTES + 1, 0
    while at < len(view):
        rows, hashes, bits = _HEADER.unpack_from(view, at)
        if bits > _BITS_MAX:
            raise ValueError(f"a bucket's number has {bits} bits")
        at += _HEADER.size
        counts = np.frombuffer(view, np.uint8, 1 << bits, at)
        at += len(counts)
        high = np.frombuffer(view, "<u2", hashes, at)
        at += high.nbytes
        low = np.frombuffer(view, np.uint8, hashes, at)
        at += hashes
        first = np.zeros(len(counts) + 1, np.uint32)
        np.cumsum(counts, out=first[1:])
        if first[-1] != hashes:
            raise ValueError(f"{first[-1]} hashes are counted, {hashes} stored")
        yield _Block(row, row + rows, bits, first, high, low)
        row += rows


def _truncated(hashes: Hashes, bits: int) -> Hashes:
    """The highest bits: those of the bucket and those that are kept."""
    return hashes >> np.uint64(64 - bits - _KEPT_BITS)
