"""Key hashes: 128 bits that stand for a key in the offset map (S18, S19).

Keys are compared by hash alone, as in Kafka. With N distinct keys in one map the chance that any
two share a 128-bit hash is about N² / 2^129: 10^-21 for a billion keys. That holds against an
adversary, too, as long as the seed is unknown when the keys are chosen: each pass draws its own. If
that is not enough, choose ``blake2b``, a keyed cryptographic hash, at a tenth of the speed.

Slices of some thousand keys stay in the processor's cache from Arrow to digest. Where all of one
have 4 to 16 bytes they are hashed together (`short_keys`), else one by one.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b
from itertools import repeat

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from clog.storage.errors import InvalidInputError
from clog.storage.keys.key_bytes import key_bytes
from clog.storage.keys.short_keys import LENGTH_MAX, LENGTH_MIN, hash_short

ALGORITHMS = ("xxh3_128", "blake2b")
_SLICE_KEYS = 8192
_DIGEST_BYTES = 16


def hash_keys(
    keys: pa.Array, *, seed: int, width_bits: int = 128, algorithm: str = "xxh3_128"
) -> NDArray[np.uint64]:
    """Returns the hash of each key: an ``(n, 2)`` array, high half first.

    Args:
        keys: of any type that keys have, without nulls.
        seed: in ``[0, 2**64)``; the same seed gives the same hashes on every machine.
        width_bits: how many of the low bits are kept, 1 to 128. Less than 128 is for tests that
            show what the width is for.
        algorithm: one of `ALGORITHMS`.

    Raises:
        InvalidInputError: an algorithm that is none.
    """
    assert keys.null_count == 0, "null keys are not hashed; filter them"
    assert 0 < width_bits <= 8 * _DIGEST_BYTES
    if algorithm not in _HASHES:
        raise InvalidInputError(f'unknown key hash "{algorithm}"; use {" or ".join(ALGORITHMS)}')
    of_slice = _HASHES[algorithm]
    hashes = np.empty((len(keys), 2), np.uint64)
    for first in range(0, len(keys), _SLICE_KEYS):
        some = key_bytes(keys.slice(first, _SLICE_KEYS))
        of_slice(some, seed, hashes[first : first + _SLICE_KEYS])
    if width_bits < 128:
        mask = (1 << width_bits) - 1
        hashes &= np.array([mask >> 64, mask & (1 << 64) - 1], np.uint64)
    return hashes


def contents(keys: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Returns the bytes of the keys, one after the other, and where each begins; the last entry is
    the end.
    """
    _, offsets, data = keys.buffers()
    wide = 8 if pa.types.is_large_binary(keys.type) else 4
    ends = np.frombuffer(
        offsets, f"<i{wide}", count=len(keys) + 1, offset=keys.offset * wide
    ).astype(np.int64)
    first = int(ends[0])
    size = int(ends[-1]) - first
    stored = np.frombuffer(data, np.uint8, count=size, offset=first) if size else _NOTHING
    return stored, ends - first


def _xxh3(keys: pa.Array, seed: int, out: NDArray[np.uint64]) -> None:
    data, ends = contents(keys)
    starts, lengths = ends[:-1], np.diff(ends)
    is_short = (lengths >= LENGTH_MIN) & (lengths <= LENGTH_MAX)
    if is_short.all():
        out[:, 0], out[:, 1] = hash_short(data, starts, lengths, seed)
    else:
        out[:] = _words(map(xxhash.xxh3_128_digest, _objects(keys), repeat(seed)))


def _blake2b(keys: pa.Array, seed: int, out: NDArray[np.uint64]) -> None:
    keyed = blake2b(digest_size=_DIGEST_BYTES, key=seed.to_bytes(8, "big"))

    def digest(key: bytes) -> bytes:
        hasher = keyed.copy()  # sparing the set-up is worth a third of the time
        hasher.update(key)
        return hasher.digest()

    out[:] = _words(map(digest, _objects(keys)))


def _objects(keys: pa.Array) -> list[bytes]:
    objects: list[bytes] = keys.to_pylist()  # As fast as by NumPy, which would import pandas.
    return objects


def _words(digests: Iterable[bytes]) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2)


_NOTHING = np.empty(0, np.uint8)
_HASHES: dict[str, Callable[[pa.Array, int, NDArray[np.uint64]], None]] = {
    "xxh3_128": _xxh3,
    "blake2b": _blake2b,
}
