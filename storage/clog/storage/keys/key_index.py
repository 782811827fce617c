"""Key index of a data object: which blocks of its rows may hold a key (FORMAT.md §5.5). Pure.

It is a set of truncated key hashes for each *block* of rows, in the form of an immutable quotient
filter: hashes are sorted, their highest bits say which of ``2^bits`` *buckets* they are in, and it
stores the next 24 bits, and how many hashes each bucket has. With two to four hashes per bucket
that is 3.3 to 3.5 bytes per key, and an absent key is reported as present with a chance of less
than 2^-22 per block. That is low enough to look up the 100,000 dirty keys of a pass together; a
filter with a chance of 1 % or 0.4 % would be useless for that (decision 0007).

Hashes use the log's seed (S19). An index only saves work: where it says "maybe", keys are compared;
without an index, keys are read.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from clog.storage.env import dataclass
from clog.storage.keys.hashing import hash_keys

BLOCK_ROWS = 1 << 15
"""Rows of a block unless something else bounds it."""

SUM_BYTES: Final = 16
VERSION: Final = 1

_KEPT_BITS: Final = 24
_BITS_MAX: Final = 32
_ASKED_MAX: Final = 1 << 18
_HEADER: Final = struct.Struct("<IIB")
"""Rows of the block, hashes in it, bits of a bucket's number."""

IndexHashes = NDArray[np.uint64]
Mask = NDArray[np.bool_]


_NOWHERE: Final = np.zeros(0, np.intp)


class DamagedIndexError(ValueError):
    """The bytes are not those that were written."""


def index_hashes(keys: pa.Array, *, seed: int) -> IndexHashes:
    """Returns the upper 64 bits of each key's hash; nulls are left out."""
    return np.ascontiguousarray(hash_keys(keys.drop_null(), seed=seed)[:, 0])


@dataclass(frozen=True, slots=True, eq=False)
class KeyIndex:
    """The index of one object, with the hashes of all its blocks one after the other.

    ``edges`` are the first rows of the blocks, then the number of all rows; ``shifts`` reduce a
    hash to its bucket and stored bits; ``buckets`` says where a block's buckets begin in ``first``,
    and ``first`` where a bucket's hashes begin in ``high`` and ``low``.
    """

    edges: NDArray[np.int64]
    shifts: NDArray[np.uint64]
    buckets: NDArray[np.int64]
    first: NDArray[np.uint32]
    high: NDArray[np.uint16]
    low: NDArray[np.uint8]

    @property
    def rows(self) -> int:
        """Rows of the object."""
        return int(self.edges[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""
        return self.first.nbytes + self.high.nbytes + self.low.nbytes

    def rows_of(self, hashes: IndexHashes) -> list[tuple[int, int]]:
        """Returns ascending half-open ranges of rows, outside of which no key has the hashes."""
        return self.rows_in(np.unique(self.hits(hashes)[1]))

    def rows_in(self, blocks: NDArray[np.intp]) -> list[tuple[int, int]]:
        """Returns the rows of ascending blocks as ascending half-open ranges with gaps between."""
        found: list[tuple[int, int]] = []
        for block in blocks:
            start, end = self.edges[block : block + 2].tolist()
            if found and found[-1][1] == start:
                start = found.pop()[0]
            found.append((start, end))
        return found

    def hits(self, hashes: IndexHashes) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Returns which hash may be in which block, as two arrays of indexes, pair by pair."""
        numbers, blocks, first = [_NOWHERE], [_NOWHERE], 0
        for mask in self.asked(hashes):
            number, block = np.nonzero(mask)
            numbers.append(number + first)
            blocks.append(block)
            first += len(mask)
        return np.concatenate(numbers), np.concatenate(blocks)

    def may_hold_any(self, hashes: IndexHashes) -> bool:
        """Returns whether a key of the object may have one of the hashes."""
        return any(mask.any() for mask in self.asked(hashes))

    def missing(self, block: int, hashes: IndexHashes) -> int:
        """Returns how many of the hashes are not in the block."""
        return sum(int(np.count_nonzero(~mask[:, block])) for mask in self.asked(hashes))

    def asked(self, hashes: IndexHashes) -> Iterator[Mask]:
        """Yields which of these hashes each block may have, shape (hashes, blocks), in parts."""
        at_once = max(1, _ASKED_MAX // max(1, len(self.shifts)))
        for start in range(0, len(hashes), at_once):
            yield self._ask(hashes[start : start + at_once])

    def _ask(self, hashes: IndexHashes) -> Mask:
        """Returns which hashes each block may have, by comparing them with their buckets."""
        values = (hashes[:, None] >> self.shifts).ravel()
        bucket = (values >> np.uint64(_KEPT_BITS)).astype(np.int64)
        bucket += np.tile(self.buckets, len(hashes))
        wanted = values.astype(np.uint32) & np.uint32((1 << _KEPT_BITS) - 1)
        begin = self.first[bucket].astype(np.int64)
        counts = self.first[bucket + 1].astype(np.int64) - begin
        of = np.repeat(np.arange(len(values)), counts)
        at = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts - begin, counts)
        kept = self.high[at].astype(np.uint32) << np.uint32(8) | self.low[at]
        found = np.zeros(len(values), np.bool_)
        found[of[kept == wanted[of]]] = True
        return found.reshape(len(hashes), len(self.shifts))


def joined(indexes: Sequence[KeyIndex]) -> KeyIndex:
    """Returns one index with the blocks of the indexes of several objects, in order."""
    ends = np.cumsum([0, *(len(index.high) for index in indexes)], dtype=np.uint32)
    buckets = np.cumsum([0, *(len(index.first) - 1 for index in indexes)])
    pairs = list(zip(indexes, ends, buckets, strict=False))
    rows = np.concatenate([np.diff(index.edges) for index in indexes])
    return KeyIndex(
        edges=np.append(0, np.cumsum(rows)),
        shifts=np.concatenate([index.shifts for index in indexes]),
        buckets=np.concatenate([index.buckets + bucket for index, _, bucket in pairs]),
        first=np.append(
            np.concatenate([index.first[:-1] + end for index, end, _ in pairs]), ends[-1]
        ),
        high=np.concatenate([index.high for index in indexes]),
        low=np.concatenate([index.low for index in indexes]),
    )


def distinct(hashes: IndexHashes) -> IndexHashes:
    """Returns each hash once, sorted; ``numpy.unique`` takes up to forty times as long."""
    ordered = np.sort(hashes)
    return ordered[_is_first(ordered)]


def _is_first(ordered: IndexHashes) -> Mask:
    """Returns whether each of the sorted hashes differs from the one before."""
    return np.append(True, np.diff(ordered) != 0)[: len(ordered)]


def encode(blocks: Sequence[tuple[int, IndexHashes]]) -> bytes:
    """Returns the index of an object, given the rows and key hashes of its blocks."""
    return of_blocks([encode_block(rows, hashes) for rows, hashes in blocks])


def encode_block(rows: int, hashes: IndexHashes) -> bytes:
    """Returns one block of an index."""
    different = distinct(hashes)
    bits = max(0, len(different).bit_length() - 2)
    values = _truncated(different, bits)
    values = values[_is_first(values)]
    buckets = (values >> np.uint64(_KEPT_BITS)).astype(np.intp)
    counts = np.bincount(buckets, minlength=1 << bits)
    parts = (
        _HEADER.pack(rows, len(values), bits),
        # Of two to four on average, over 255 hashes in a bucket: not in the age of the universe.
        counts.astype(np.uint8).tobytes(),
        (values >> np.uint64(8)).astype("<u2").tobytes(),
        values.astype(np.uint8).tobytes(),
    )
    return b"".join(parts)


def of_blocks(blocks: Iterable[bytes]) -> bytes:
    """Returns the index with these blocks."""
    body = b"".join([bytes([VERSION]), *blocks])
    return xxhash.xxh3_128_digest(body) + body


def blocks_of(data: bytes | memoryview) -> list[tuple[int, bytes]]:
    """Returns the rows and bytes of each block of an index; none for an unknown version."""
    view = memoryview(data)
    if decode(view) is None:
        return []
    found, at = [], SUM_BYTES + 1
    while at < len(view):
        rows, hashes, bits = _HEADER.unpack_from(view, at)
        end = at + _HEADER.size + (1 << bits) + 3 * hashes
        found.append((rows, bytes(view[at:end])))
        at = end
    return found


def decode(data: bytes | memoryview) -> KeyIndex | None:
    """Returns the index in these bytes, None for an unknown version; raises DamagedIndexError."""
    view = memoryview(data)
    if len(view) <= SUM_BYTES:
        raise DamagedIndexError(f"its key index has {len(view)} bytes")
    if xxhash.xxh3_128_digest(view[SUM_BYTES:]) != bytes(view[:SUM_BYTES]):
        raise DamagedIndexError("the xxh3_128 of its key index does not match the stored one")
    if view[SUM_BYTES] != VERSION:
        return None
    try:
        return _joined(list(_blocks(view)))
    except (struct.error, ValueError) as e:
        raise DamagedIndexError(f"its key index violates the format: {e}") from e


_Block = tuple[int, int, NDArray[np.uint8], NDArray[np.uint16], NDArray[np.uint8]]
"""Rows, bits of a bucket's number, hashes in each bucket, and the two parts of the stored bits."""


def _blocks(view: memoryview) -> Iterator[_Block]:
    at = SUM_BYTES + 1
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
        if (counted := int(counts.sum())) != hashes:
            raise ValueError(f"{counted} hashes are counted, {hashes} stored")
        yield rows, bits, counts, high, low


def _joined(blocks: Sequence[_Block]) -> KeyIndex:
    counts = np.concatenate([np.zeros(1, np.uint8), *(b[2] for b in blocks)])
    return KeyIndex(
        edges=np.cumsum([0, *(b[0] for b in blocks)]),
        shifts=np.array([64 - b[1] - _KEPT_BITS for b in blocks], np.uint64),
        buckets=np.cumsum([0, *(len(b[2]) for b in blocks)])[:-1],
        first=np.cumsum(counts, dtype=np.uint32),
        high=np.concatenate([np.zeros(0, np.uint16), *(b[3] for b in blocks)]),
        low=np.concatenate([np.zeros(0, np.uint8), *(b[4] for b in blocks)]),
    )


def _truncated(hashes: IndexHashes, bits: int) -> IndexHashes:
    """Returns the highest bits: those of the bucket and those that are stored."""
    return hashes >> np.uint64(64 - bits - _KEPT_BITS)
