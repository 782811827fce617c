"""Which partition a record goes to: by its key's hash, round robin where it has none.

Both algorithms are part of the format: a log is created with one, and a key stays in its partition.

- ``xxh3``: ``xxh3_64(key) % partitions`` with seed 0, unsigned. The remainder of a good 64-bit hash
  is as even as the hash for any number of partitions that fits memory.
- ``murmur2``: ``(murmur2(key) & 0x7fffffff) % partitions``, as Kafka's default partitioner, so that
  a log and a topic with the same number of partitions hold the same keys in each.

Murmur2 is computed for all keys at once, block by block: step i mixes the i-th 4 bytes of every key
that has them. The few longest keys are finished one by one, since a step on few keys costs as much
as on many.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from clog.storage.errors import InvalidInputError
from clog.storage.keys.key_bytes import key_bytes
from clog.storage.keys.short_keys import LENGTH_MAX, LENGTH_MIN, hash_short_64
from clog.storage.numpy_arrays import to_numpy

ALGORITHMS = ("xxh3", "murmur2")
_SLICE_KEYS = 4096
_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_R = 24
_SEED = 0x9747B28C
_LONE_KEYS = 16
"""So few keys left in a step are finished one by one."""


def partitions_for(
    keys: pa.Array, *, partitions: int, algorithm: str, start: int = 0
) -> NDArray[np.int32]:
    """Returns the partition of each record, from its key.

    Args:
        keys: of any type that keys have; a null goes round robin.
        partitions: how many there are.
        algorithm: one of `ALGORITHMS`.
        start: the first null key goes to ``start % partitions``, the next to the one after it.

    Raises:
        InvalidInputError: an algorithm that is none.
    """
    if algorithm not in _HASHES:
        raise InvalidInputError(f'unknown partitioner "{algorithm}"; use {" or ".join(ALGORITHMS)}')
    of_keys, keys = _HASHES[algorithm], key_bytes(keys)
    if not keys.null_count:
        return (of_keys(keys) % partitions).astype(np.int32)
    valid = to_numpy(keys.is_valid())
    result = np.empty(len(keys), np.int32)
    result[valid] = of_keys(keys.drop_null()) % partitions
    nulls = len(keys) - np.count_nonzero(valid)
    result[~valid] = (start % partitions + np.arange(nulls)) % partitions
    return result


def _xxh3_64(keys: pa.Array) -> NDArray[np.uint64]:
    hashes = np.empty(len(keys), np.uint64)
    for first in range(0, len(keys), _SLICE_KEYS):  # Slices stay in the cache (`hashing`).
        part = keys.slice(first, _SLICE_KEYS)
        out = hashes[first : first + len(part)]
        starts, ends, data = _layout(part)
        lengths = ends - starts
        if ((lengths >= LENGTH_MIN) & (lengths <= LENGTH_MAX)).all():
            out[:] = hash_short_64(data, starts, lengths)
        else:
            digests = map(xxhash.xxh3_64_intdigest, part.to_pylist())
            out[:] = np.fromiter(digests, np.uint64, len(part))
    return hashes


def _murmur2_positive(keys: pa.Array) -> NDArray[np.uint32]:
    return murmur2(keys) & np.uint32(0x7FFFFFFF)


def murmur2(keys: pa.Array) -> NDArray[np.uint32]:
    """Returns Kafka's murmur2 of each key; as a signed number it is the one that Java shows."""
    starts, ends, data = _layout(keys)
    lengths = ends - starts
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    blocks = lengths >> 2
    if not blocks.any():
        return _finish(hashes, data, ends, lengths)
    # Every 4 bytes as a little-endian word, at every byte.
    words = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    rows = np.flatnonzero(blocks)
    step = 0
    while len(rows) > _LONE_KEYS:
        k = words[starts[rows] + 4 * step]
        hashes[rows] = (hashes[rows] * np.uint32(_M)) ^ _scrambled(k)
        step += 1
        rows = rows[blocks[rows] > step]
    for row in rows.tolist():
        first = int(starts[row]) + 4 * step
        rest = words[first : first + 4 * (int(blocks[row]) - step) : 4]
        hashes[row] = _mixed(int(hashes[row]), _scrambled(rest).tolist())
    return _finish(hashes, data, ends, lengths)


def _scrambled(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Returns what of a block does not depend on the blocks before it."""
    k = words * np.uint32(_M)
    k ^= k >> np.uint32(_R)
    k *= np.uint32(_M)
    return k


def _mixed(h: int, scrambled: list[int]) -> int:
    for k in scrambled:
        h = (h * _M & _MASK) ^ k
    return h


def _finish(
    hashes: NDArray[np.uint32],
    data: NDArray[np.uint8],
    ends: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> NDArray[np.uint32]:
    """Mixes in the last 0 to 3 bytes, and the result with itself."""
    tails = lengths & 3
    rows = np.flatnonzero(tails)
    if rows.size:
        first = (ends - tails)[rows]
        tail = data[first].astype(np.uint32)
        for byte in (1, 2):
            has = tails[rows] > byte
            tail[has] ^= data[first[has] + byte].astype(np.uint32) << np.uint32(8 * byte)
        hashes[rows] = (hashes[rows] ^ tail) * np.uint32(_M)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(_M)
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _layout(keys: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Returns where each key starts and ends in the array's bytes."""
    assert sys.byteorder == "little", "Arrow buffers are read as they lie"
    is_large = pa.types.is_large_binary(keys.type)
    _, offsets, data = keys.buffers()
    bounds: NDArray[Any] = np.frombuffer(offsets or b"", np.int64 if is_large else np.int32)
    bounds = bounds[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    return bounds[:-1], bounds[1:], np.frombuffer(data or b"", np.uint8)


_HASHES: dict[str, Callable[[pa.Array], NDArray[Any]]] = {
    "xxh3": _xxh3_64,
    "murmur2": _murmur2_positive,
}
