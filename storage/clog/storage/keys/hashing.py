"""Keys of any type as canonical bytes, and what is computed from these: hashes, partitions and
fingerprints.

**Canonical bytes** (FORMAT.md §12.3) are hashed, compared and counted. They depend neither on a
library nor on anything that evolution changes; their order is that of the keys.

**Hashes** are 128 bits that represent a key in the offset map (S18, S19). With N keys the chance
that any two share one is about N² / 2^129, also against an adversary, as each pass draws its own
seed. Most keys are *short*, of 4 to 16 bytes: two overlapping words, so NumPy does every step of
XXH3 (0.8, frozen) for all rows of a slice, under the names of the published algorithm.

**Fingerprints** tell the keys of one read apart (decision 0008; `_spread`), in a tenth of the time
of a hash. None is stored.

**Partitions**: the hash of its key gives a record's partition; records without one go round robin.
Both algorithms are part of the format: ``xxh3``, ``xxh3_64(key) % partitions`` with seed 0, and
``murmur2``, Kafka's default partitioner, computed for all keys together, block by block.
"""

import sys
from collections.abc import Callable, Iterable
from decimal import Context, Decimal
from functools import lru_cache
from itertools import repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from clog.storage.column_kinds import stored_kind
from clog.storage.errors import InvalidInputError
from clog.storage.numpy_arrays import (
    BYTES_MAX,
    dtype_of,
    null,
    of_bytes,
    to_arrow,
    to_numpy,
)

ALGORITHMS = ("xxh3_128", "blake2b")
PARTITIONERS = ("xxh3", "murmur2")

_LENGTH_MIN: Final = 4
_LENGTH_MAX: Final = 16
_SLICE_KEYS = 8192
_PARTITIONER_SLICE_KEYS = 4096
_DIGEST_BYTES = 16
_LONE_KEYS = 16
"""If only this many keys are left in a step they are finished one by one."""

_SIGN: Final = np.uint64(1 << 63)
_NULL: Final = b"\x00"
_THERE: Final = b"\x01"
_ESCAPED: Final = b"\x00\xff"
_END: Final = b"\x00\x00"
_EXACT: Final = Context(prec=38)

_ALL = (1 << 64) - 1
_SECRET = {
    8: 0x1CAD21F72C81017C,
    16: 0xDB979083E96DD4DE,
    24: 0x1F67B3B7A4A44072,
    32: 0x78E5C0CC4EE679CB,
    40: 0x2172FFCC7DD05A82,
    48: 0x8E2443F7744608B8,
    56: 0x4C263A81E69035E0,
}
"""Words of the algorithm's secret by their offsets."""
_PRIME32_2 = 0x85EBCA77
_PRIME64_1 = 0x9E3779B185EBCA87
_PRIME64_2 = 0xC2B2AE3D27D4EB4F
_PRIME_MX1 = np.uint64(0x165667919E3779F9)
_PRIME_MX2 = np.uint64(0x9FB21C651E98DF25)
_LOWER = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

_MURMUR2_M = 0x5BD1E995
_MURMUR2_R = 24
_MURMUR2_SEED = 0x9747B28C
_LOWER_BITS = 0xFFFFFFFF

_Words = NDArray[np.uint64]
Fingerprints = NDArray[np.uint64]
_Numbers = NDArray[np.int64]


def key_bytes(keys: pa.Array) -> pa.Array:
    """Returns the canonical bytes of each key, null for null; binary keys as they are."""
    kind = keys.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return keys
    if pa.types.is_struct(kind):
        return _struct_bytes(keys)
    way = stored_kind(kind).key
    if way == "truth":
        return _number_bytes(to_numpy(keys).view(np.uint8), keys)
    if way == "wide":
        return _number_bytes(_pairs(keys), keys)
    if way == "signed":  # Their unsigned order must be that of the keys.
        words = to_numpy(keys).astype(np.int64).view(np.uint64) ^ _SIGN
        return _number_bytes(words.astype(">u8"), keys)
    if way == "unsigned":
        return _number_bytes(to_numpy(keys).astype(">u8"), keys)
    assert way == "octets", kind
    return keys.cast(pa.binary())


def _pairs(keys: pa.Array) -> NDArray[np.void]:
    """Returns decimals of 128 bits as two words each, the higher first."""
    words = np.frombuffer(keys.buffers()[1], "<u8", 2 * len(keys), 16 * keys.offset)
    pairs = words.reshape(-1, 2)[:, ::-1].astype(">u8")
    pairs[:, 0] ^= _SIGN
    return pairs.view("V16").reshape(-1)


def _number_bytes(data: NDArray[Any], keys: pa.Array) -> pa.Array:
    """Returns the bytes of numbers of equal width."""
    rows, width = len(data), data.dtype.itemsize
    ends = np.arange(0, width * rows + 1, width, dtype=np.int64)
    if ends[-1] > BYTES_MAX:
        raise InvalidInputError(f"{rows} keys are too many for one call; pass them in several")
    nulls = None
    if keys.null_count:
        # A null has no bytes, as in any binary array.
        valid = to_numpy(keys.is_valid())
        data, nulls = data[valid], _bits(valid)
        ends = np.concatenate(([0], np.cumsum(width * valid, dtype=np.int64)))
    buffers = [nulls, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _struct_bytes(keys: pa.Array) -> pa.Array:
    parts = [_field_bytes(field) for field in keys.flatten()]
    joined = pc.binary_join_element_wise(*parts, _constant(b""))
    return pc.if_else(keys.is_valid(), joined, null(pa.binary()))


def _field_bytes(field: pa.Array) -> pa.Array:
    """Returns the bytes of one field of a struct, never null."""
    found = key_bytes(field)
    if pa.types.is_string(field.type) or pa.types.is_binary(field.type):
        escaped = pc.replace_substring(found, _NULL, _ESCAPED)
        parts = [_constant(_THERE), escaped, _constant(_END)]
    else:
        parts = [_constant(_THERE), found]
    joined = pc.binary_join_element_wise(*parts, _constant(b""))
    return pc.fill_null(joined, _constant(_NULL))


def _constant(text: bytes) -> pa.Scalar:
    return of_bytes([text])[0]


def _bits(truths: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(truths, bitorder="little"))


def key_of_bytes(data: bytes, kind: pa.DataType) -> Any:
    """Returns the key of this type with these canonical bytes."""
    if pa.types.is_struct(kind):
        return _struct_of_bytes(data, 0, kind)[0]
    way = stored_kind(kind).key
    if way == "octets":
        return data.decode() if pa.types.is_string(kind) else data
    number = int.from_bytes(data, "big")
    if way == "truth":
        return bool(number)
    if way == "wide":
        return Decimal(number - (1 << 127)).scaleb(-kind.scale, _EXACT)
    if way == "unsigned":
        return number
    number -= 1 << 63
    if pa.types.is_integer(kind):
        return number
    buffers = [None, pa.py_buffer(np.array([number], dtype_of(kind)))]
    return pa.Array.from_buffers(kind, 1, buffers)[0].as_py()


def _struct_of_bytes(data: bytes, at: int, kind: pa.DataType) -> tuple[tuple[Any, ...], int]:
    """Returns the fields of the struct that begins at a byte, and the end of it."""
    found: list[Any] = []
    for field in kind:
        is_there, at = data[at], at + 1
        if not is_there:
            found.append(None)
        elif pa.types.is_struct(field.type):
            inner, at = _struct_of_bytes(data, at, field.type)
            found.append(inner)
        else:
            end, after = _end_of(data, at, field.type)
            octets = data[at:end]
            if after > end:
                octets = octets.replace(_ESCAPED, b"\x00")
            found.append(key_of_bytes(octets, field.type))
            at = after
    return tuple(found), at


def _end_of(data: bytes, at: int, kind: pa.DataType) -> tuple[int, int]:
    """Returns the end of a field's bytes, and the beginning of the next field."""
    found = stored_kind(kind)
    if found.size is None:
        end = data.index(0, at)
        while data[end + 1] == 0xFF:
            end = data.index(0, end + 2)
        return end, end + len(_END)
    width = 1 if found.key == "truth" else found.size_of(kind) or 0
    return at + width, at + width


def hash_keys(
    keys: pa.Array, *, seed: int, width_bits: int = 128, algorithm: str = "xxh3_128"
) -> NDArray[np.uint64]:
    """Returns the hash of each key: an ``(n, 2)`` array, high half first, equal on every machine.
    ``width_bits`` is the number of low bits kept; fewer than 128 are for tests of the width.
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


def _xxh3_128s(keys: pa.Array, seed: int, out: NDArray[np.uint64]) -> None:
    data, starts, lengths = _layout(keys)
    if _are_short(lengths).all():
        out[:, 0], out[:, 1] = _hash_short(data, starts, lengths, seed)
    else:
        out[:] = _words(map(xxhash.xxh3_128_digest, _objects(keys), repeat(seed)))


def _blake2b(keys: pa.Array, seed: int, out: NDArray[np.uint64]) -> None:
    from hashlib import blake2b  # Loads OpenSSL, and few logs need it.

    keyed = blake2b(digest_size=_DIGEST_BYTES, key=seed.to_bytes(8, "big"))

    def digest(key: bytes) -> bytes:
        hasher = keyed.copy()  # without the set-up: a third of the time
        hasher.update(key)
        return hasher.digest()

    out[:] = _words(map(digest, _objects(keys)))


def _objects(keys: pa.Array) -> list[bytes]:
    objects: list[bytes] = keys.to_pylist()  # As fast as with NumPy, which would import pandas.
    return objects


def _words(digests: Iterable[bytes]) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2)


_HASHES: dict[str, Callable[[pa.Array, int, NDArray[np.uint64]], None]] = {
    "xxh3_128": _xxh3_128s,
    "blake2b": _blake2b,
}


def fingerprints_of(keys: pa.Array, *, seed: int) -> Fingerprints:
    """Returns the words of each key: an ``(n, 2)`` array, ``first'`` and ``last'``."""
    words = np.empty((len(keys), 2), np.uint64)
    if not len(keys):
        return words
    keys = key_bytes(keys)
    data, starts, lengths = _layout(keys)
    if lengths.min() >= _LENGTH_MIN and lengths.max() <= _LENGTH_MAX:
        _spread(data, starts, lengths, seed, words)
        return words
    is_short = _are_short(lengths)
    short, others = np.flatnonzero(is_short), np.flatnonzero(~is_short)
    if len(short):
        spread = np.empty((len(short), 2), np.uint64)
        _spread(data, starts[short], lengths[short], seed, spread)
        words[short] = spread
    words[others] = hash_keys(keys.take(to_arrow(others)), seed=seed)
    return words


def _spread(
    data: NDArray[np.uint8], starts: _Numbers, lengths: _Numbers, seed: int, out: Fingerprints
) -> None:
    """Fills in the words of one or more keys of `_LENGTH_MIN` to `_LENGTH_MAX` bytes.

    Two words and the length identify a short key, so these are not hashed but *spread*, in steps
    that can be undone, with secrets *a* and *b* per length, and odd ones *p* and *q* for all::

        last'  = last ^ b
        first' = (first ^ a) * p + last' * q    (mod 2^64)

    So different keys of one length always have different words; those of different lengths, or a
    short key and a hashed one, share them with a chance of 2^-128 (S19); and any two share the
    upper n bits of ``first'`` with a chance of about 2^-n, which nobody can prepare: these bits can
    be used for sorting and look-ups.
    """
    low, high = int(lengths.min()), int(lengths.max())
    if low < 8 <= high:
        for rows in (np.flatnonzero(lengths < 8), np.flatnonzero(lengths >= 8)):
            some = np.empty((len(rows), 2), np.uint64)
            _spread(data, starts[rows], lengths[rows], seed, some)
            out[rows] = some
        return
    p, q, a, b = _secrets(seed)
    of_length = low if low == high else lengths
    ends = _both_ends(data, starts, lengths, "<u8" if low >= 8 else "<u4")
    # NumPy 1 gives a scalar no more width than its value needs.
    first, last = (words.astype(np.uint64, copy=False) for words in ends)
    spread = first ^ a[of_length]
    spread *= p
    lasts = last ^ b[of_length]
    out[:, 1] = lasts
    lasts *= q
    np.add(spread, lasts, out=out[:, 0])


@lru_cache(maxsize=16)
def _secrets(seed: int) -> tuple[np.uint64, np.uint64, Fingerprints, Fingerprints]:
    """Returns *p* and *q*, and *a* and *b* by length."""
    lengths = _LENGTH_MAX + 1
    from hashlib import shake_256

    drawn = shake_256(seed.to_bytes(8, "big")).digest(8 * (2 + 2 * lengths))
    words = np.frombuffer(drawn, "<u8").astype(np.uint64)
    odd = words[:2] | np.uint64(1)
    return odd[0], odd[1], words[2 : 2 + lengths], words[2 + lengths :]


def partitions_for(
    keys: pa.Array, *, partitions: int, algorithm: str, start: int = 0
) -> NDArray[np.int32]:
    """Returns the partition of each record by its key; nulls go round robin from ``start`` on."""
    if algorithm not in _PARTITION_HASHES:
        raise InvalidInputError(
            f'unknown partitioner "{algorithm}"; use {" or ".join(PARTITIONERS)}'
        )
    of_keys, keys = _PARTITION_HASHES[algorithm], key_bytes(keys)
    if not keys.null_count:
        return (of_keys(keys) % partitions).astype(np.int32)
    valid = to_numpy(keys.is_valid())
    result = np.empty(len(keys), np.int32)
    result[valid] = of_keys(keys.drop_null()) % partitions
    nulls = len(keys) - np.count_nonzero(valid)
    result[~valid] = (start % partitions + np.arange(nulls)) % partitions
    return result


def _xxh3_64s(keys: pa.Array) -> NDArray[np.uint64]:
    hashes = np.empty(len(keys), np.uint64)
    for first in range(0, len(keys), _PARTITIONER_SLICE_KEYS):
        part = keys.slice(first, _PARTITIONER_SLICE_KEYS)
        out = hashes[first : first + len(part)]
        data, starts, lengths = _layout(part)
        if _are_short(lengths).all():
            out[:] = _hash_short_64(data, starts, lengths)
        else:
            digests = map(xxhash.xxh3_64_intdigest, part.to_pylist())
            out[:] = np.fromiter(digests, np.uint64, len(part))
    return hashes


def _murmur2_positive(keys: pa.Array) -> NDArray[np.uint32]:
    return murmur2(keys) & np.uint32(0x7FFFFFFF)


def murmur2(keys: pa.Array) -> NDArray[np.uint32]:
    """Returns Kafka's murmur2 of each key; read as a signed number it is what Java returns."""
    data, starts, lengths = _layout(keys)
    hashes = np.uint32(_MURMUR2_SEED) ^ lengths.astype(np.uint32)
    blocks = lengths >> 2
    if not blocks.any():
        return _murmur2_end(hashes, data, starts + lengths, lengths)
    # The little-endian word of 4 bytes that begins at each byte.
    words = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    rows = np.flatnonzero(blocks)
    step = 0
    while len(rows) > _LONE_KEYS:
        k = words[starts[rows] + 4 * step]
        hashes[rows] = (hashes[rows] * np.uint32(_MURMUR2_M)) ^ _scrambled(k)
        step += 1
        rows = rows[blocks[rows] > step]
    for row in rows.tolist():
        first = int(starts[row]) + 4 * step
        rest = words[first : first + 4 * (int(blocks[row]) - step) : 4]
        hashes[row] = _mixed(int(hashes[row]), _scrambled(rest).tolist())
    return _murmur2_end(hashes, data, starts + lengths, lengths)


def _scrambled(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Returns the part of each block's mixing that does not depend on the blocks before it."""
    k = words * np.uint32(_MURMUR2_M)
    k ^= k >> np.uint32(_MURMUR2_R)
    k *= np.uint32(_MURMUR2_M)
    return k


def _mixed(h: int, scrambled: list[int]) -> int:
    for k in scrambled:
        h = (h * _MURMUR2_M & _LOWER_BITS) ^ k
    return h


def _murmur2_end(
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
        hashes[rows] = (hashes[rows] ^ tail) * np.uint32(_MURMUR2_M)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(_MURMUR2_M)
    hashes ^= hashes >> np.uint32(15)
    return hashes


_PARTITION_HASHES: dict[str, Callable[[pa.Array], NDArray[Any]]] = {
    "xxh3": _xxh3_64s,
    "murmur2": _murmur2_positive,
}


def _layout(keys: pa.Array) -> tuple[NDArray[np.uint8], _Numbers, _Numbers]:
    """Returns the bytes of the array, and the start and the length of each key in them."""
    assert sys.byteorder == "little", "Arrow buffers are read as they lie"
    if not len(keys):
        return np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
    _, offsets, data = keys.buffers()
    wide = 8 if pa.types.is_large_binary(keys.type) else 4
    ends = np.frombuffer(offsets, f"<i{wide}", len(keys) + 1, keys.offset * wide).astype(np.int64)
    return np.frombuffer(data or b"", np.uint8), ends[:-1], np.diff(ends)


def _are_short(lengths: _Numbers) -> NDArray[np.bool_]:
    return (lengths >= _LENGTH_MIN) & (lengths <= _LENGTH_MAX)


def _hash_short(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], seed: int
) -> tuple[_Words, _Words]:
    """Returns the words of the hashes of keys of `_LENGTH_MIN` to `_LENGTH_MAX` bytes."""
    high, low = np.empty(len(starts), np.uint64), np.empty(len(starts), np.uint64)
    for of_class, is_in in ((_up_to_8, lengths <= 8), (_up_to_16, lengths > 8)):
        rows = np.flatnonzero(is_in)
        if len(rows) == len(starts):
            return of_class(data, starts, lengths, seed)
        if len(rows):
            high[rows], low[rows] = of_class(data, starts[rows], lengths[rows], seed)
    return high, low


def _hash_short_64(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> _Words:
    """Returns the xxh3_64 with seed 0 of ``data[start:start + length]``, like `_hash_short`."""
    hashes = np.empty(len(starts), np.uint64)
    for of_class, is_in in ((_up_to_8_64, lengths <= 8), (_up_to_16_64, lengths > 8)):
        rows = np.flatnonzero(is_in)
        if len(rows) == len(starts):
            return of_class(data, starts, lengths)
        if len(rows):
            hashes[rows] = of_class(data, starts[rows], lengths[rows])
    return hashes


def _up_to_8(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], seed: int
) -> tuple[_Words, _Words]:
    seed ^= int.from_bytes((seed & 0xFFFFFFFF).to_bytes(4, "little"), "big") << 32
    first, last = _both_ends(data, starts, lengths, "<u4")
    keyed = last.astype(np.uint64) << _HALF
    keyed |= first
    keyed ^= _word((_SECRET[16] ^ _SECRET[24]) + seed)
    high, low = _product(keyed, (lengths.astype(np.uint64) << np.uint64(2)) + _word(_PRIME64_1))
    high += low << np.uint64(1)
    low ^= high >> np.uint64(3)
    low ^= low >> np.uint64(35)
    low *= _PRIME_MX2
    low ^= low >> np.uint64(28)
    return _avalanche(high), low


def _up_to_16(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], seed: int
) -> tuple[_Words, _Words]:
    first, last = _both_ends(data, starts, lengths, "<u8")
    keyed = first ^ last
    keyed ^= _word((_SECRET[32] ^ _SECRET[40]) - seed)
    high, low = _product(keyed, _word(_PRIME64_1))
    low += (lengths - 1).view(np.uint64) << np.uint64(54)
    keyed = last ^ _word((_SECRET[48] ^ _SECRET[56]) + seed)
    high += keyed
    keyed &= _LOWER
    keyed *= _word(_PRIME32_2 - 1)
    high += keyed
    low ^= high.byteswap()
    mixed, low = _product(low, _word(_PRIME64_2))
    high *= _word(_PRIME64_2)
    mixed += high
    return _avalanche(mixed), _avalanche(low)


def _up_to_8_64(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> _Words:
    first, last = _both_ends(data, starts, lengths, "<u4")
    keyed = first.astype(np.uint64) << _HALF
    keyed += last
    keyed ^= _word(_SECRET[8] ^ _SECRET[16])
    keyed ^= _rotated(keyed, 49) ^ _rotated(keyed, 24)
    keyed *= _PRIME_MX2
    keyed ^= (keyed >> np.uint64(35)) + lengths.view(np.uint64)
    keyed *= _PRIME_MX2
    keyed ^= keyed >> np.uint64(28)
    return keyed


def _up_to_16_64(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> _Words:
    first, last = _both_ends(data, starts, lengths, "<u8")
    low = first ^ _word(_SECRET[24] ^ _SECRET[32])
    high = last ^ _word(_SECRET[40] ^ _SECRET[48])
    upper, lower = _product(low, high)
    upper ^= lower
    upper += low.byteswap()
    upper += high
    upper += lengths.view(np.uint64)
    return _avalanche(upper)


def _both_ends(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], word: str
) -> tuple[NDArray[np.unsignedinteger], NDArray[np.unsignedinteger]]:
    """Returns the first and last word (``<u4`` or ``<u8``) of each key, as views if possible."""
    size = np.dtype(word).itemsize
    # The word that begins at each byte.
    words = np.ndarray((max(0, len(data) - size + 1),), word, data, strides=(1,))
    begin, end, width = int(starts[0]), int(starts[-1]) + 1, int(lengths[0])
    if end - begin == width * (len(starts) - 1) + 1 and bool((lengths == width).all()):
        # One stride for all: they are read in place.
        apart = width - size
        return words[begin:end:width], words[begin + apart : end + apart : width]
    return words[starts], words[starts + lengths - size]


def _rotated(words: _Words, bits: int) -> _Words:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _word(number: int) -> np.uint64:
    return np.uint64(number & _ALL)


def _product(a: _Words, b: _Words | np.uint64) -> tuple[_Words, _Words]:
    """Returns the high and low words of the 128-bit products."""
    low, high = a & _LOWER, a >> _HALF
    b_low, b_high = b & _LOWER, b >> _HALF
    crossed = high * b_low
    high *= b_high
    high += crossed >> _HALF
    crossed &= _LOWER
    crossed += (low * b_low) >> _HALF
    low *= b_high
    crossed += low
    crossed >>= _HALF
    high += crossed
    return high, a * b


def _avalanche(words: _Words) -> _Words:
    words ^= words >> np.uint64(37)
    words *= _PRIME_MX1
    words ^= words >> _HALF
    return words
