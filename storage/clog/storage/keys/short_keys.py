"""xxh3_128 and xxh3_64 of many short keys at once, bit for bit what the library says of each.

A call of the library for each key makes a Python object of each key and of each digest: 100 ns and
more, of which the hash itself is a few. Keys of 4 to 16 bytes, which most are (numbers, names, hex
ids), need no loop inside: each is two words that overlap, so NumPy takes every step for all rows.

Names are those of the published algorithm (XXH3, version 0.8, frozen): lengths 4 to 8 and 9 to 16.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

LENGTH_MIN: Final = 4
LENGTH_MAX: Final = 16

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
"""Words of the algorithm's secret, by their place."""
_PRIME32_2 = 0x85EBCA77
_PRIME64_1 = 0x9E3779B185EBCA87
_PRIME64_2 = 0xC2B2AE3D27D4EB4F
_PRIME_MX1 = np.uint64(0x165667919E3779F9)
_PRIME_MX2 = np.uint64(0x9FB21C651E98DF25)
_LOWER = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def hash_short(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    seed: int,
) -> tuple[Words, Words]:
    """Returns the high and low words of the hashes of ``data[start:start + length]``, each of
    `LENGTH_MIN` to `LENGTH_MAX` bytes.
    """
    high, low = np.empty(len(starts), np.uint64), np.empty(len(starts), np.uint64)
    for of_class, is_in in ((_up_to_8, lengths <= 8), (_up_to_16, lengths > 8)):
        rows = np.flatnonzero(is_in)
        if len(rows) == len(starts):
            return of_class(data, starts, lengths, seed)
        if len(rows):
            high[rows], low[rows] = of_class(data, starts[rows], lengths[rows], seed)
    return high, low


def hash_short_64(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> Words:
    """Returns the xxh3_64 with seed 0 of ``data[start:start + length]``, as `hash_short`."""
    hashes = np.empty(len(starts), np.uint64)
    for of_class, is_in in ((_up_to_8_64, lengths <= 8), (_up_to_16_64, lengths > 8)):
        rows = np.flatnonzero(is_in)
        if len(rows) == len(starts):
            return of_class(data, starts, lengths)
        if len(rows):
            hashes[rows] = of_class(data, starts[rows], lengths[rows])
    return hashes


def both_ends(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    word: str,
) -> tuple[npt.NDArray[np.unsignedinteger], npt.NDArray[np.unsignedinteger]]:
    """Returns the first word (``<u4`` or ``<u8``) and the last one of each key, which has at least
    one; not to be written to.
    """
    size = np.dtype(word).itemsize
    # The word that begins at each byte.
    words = np.ndarray((max(0, len(data) - size + 1),), word, data, strides=(1,))
    begin, end, width = int(starts[0]), int(starts[-1]) + 1, int(lengths[0])
    if end - begin == width * (len(starts) - 1) + 1 and bool((lengths == width).all()):
        # One stride for all: they are read where they lie.
        apart = width - size
        return words[begin:end:width], words[begin + apart : end + apart : width]
    return words[starts], words[starts + lengths - size]


def _up_to_8(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    seed: int,
) -> tuple[Words, Words]:
    seed ^= int.from_bytes((seed & 0xFFFFFFFF).to_bytes(4, "little"), "big") << 32
    first, last = both_ends(data, starts, lengths, "<u4")
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
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    seed: int,
) -> tuple[Words, Words]:
    first, last = both_ends(data, starts, lengths, "<u8")
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
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> Words:
    first, last = both_ends(data, starts, lengths, "<u4")
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
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> Words:
    first, last = both_ends(data, starts, lengths, "<u8")
    low = first ^ _word(_SECRET[24] ^ _SECRET[32])
    high = last ^ _word(_SECRET[40] ^ _SECRET[48])
    upper, lower = _product(low, high)
    upper ^= lower
    upper += low.byteswap()
    upper += high
    upper += lengths.view(np.uint64)
    return _avalanche(upper)


def _rotated(words: Words, bits: int) -> Words:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _word(number: int) -> np.uint64:
    return np.uint64(number & _ALL)


def _product(a: Words, b: Words | np.uint64) -> tuple[Words, Words]:
    """Returns the high and low word of the 128-bit products."""
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


def _avalanche(words: Words) -> Words:
    words ^= words >> np.uint64(37)
    words *= _PRIME_MX1
    words ^= words >> _HALF
    return words
