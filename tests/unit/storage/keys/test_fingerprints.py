"""Words of keys: as their docstring computes them, the same whatever other keys are hashed."""

from hashlib import shake_256

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from clog.storage.keys.hashing import fingerprints_of

ALL = 2**64
SEEDS = st.integers(0, ALL - 1)
KEYS = st.lists(st.binary(min_size=4, max_size=16) | st.binary(max_size=40), max_size=40)
SHORT = range(4, 17)


def words_of(keys, seed):
    found = fingerprints_of(pa.array(keys, pa.binary()), seed=seed)
    assert found.shape == (len(keys), 2)
    return [tuple(pair) for pair in found.tolist()]


def secrets(seed, length):
    """p, q, and the two of the length."""
    drawn = shake_256(seed.to_bytes(8, "big")).digest(8 * 36)
    word = [int.from_bytes(drawn[i : i + 8], "little") for i in range(0, len(drawn), 8)]
    return word[0] | 1, word[1] | 1, word[2 + length], word[19 + length]


def expected(key, seed):
    if len(key) not in SHORT:
        return divmod(xxhash.xxh3_128_intdigest(key, seed), ALL)
    size = 8 if len(key) >= 8 else 4
    p, q, a, b = secrets(seed, len(key))
    last = int.from_bytes(key[-size:], "little") ^ b
    return ((int.from_bytes(key[:size], "little") ^ a) * p + last * q) % ALL, last


def key_of(words, seed, length):
    """The key again: each step is undone."""
    p, q, a, b = secrets(seed, length)
    size = 8 if length >= 8 else 4
    first = ((words[0] - words[1] * q) * pow(p, -1, ALL) % ALL) ^ a
    key = bytearray(length)
    key[:size] = first.to_bytes(8, "little")[:size]
    key[-size:] = (words[1] ^ b).to_bytes(8, "little")[:size]
    return bytes(key)


@given(KEYS, SEEDS)
def test_the_words_are_those_of_the_docstring(keys, seed):
    """Short and long keys mixed; the long ones have the hash of S19."""
    assert words_of(keys, seed) == [expected(key, seed) for key in keys]


@given(st.integers(4, 16), st.integers(4, 16), st.lists(st.booleans(), max_size=9), SEEDS)
def test_one_length_and_two(length, other, which, seed):
    """Keys of one length are read at a stride, unless others are between them."""
    keys = [bytes(range(i, i + (length if first else other))) for i, first in enumerate(which)]
    assert words_of(keys, seed) == [expected(key, seed) for key in keys]


@given(st.binary(min_size=4, max_size=16), SEEDS)
def test_a_short_key_can_be_had_back(key, seed):
    """So two of one length never share both words, whatever the seed."""
    assert key_of(words_of([key], seed)[0], seed, len(key)) == key


@given(KEYS, st.integers(0, 50), st.integers(0, 50))
@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary()], ids=str)
def test_the_layout_does_not_matter(type_, keys, first, length):
    """A slice has the words of its keys, with narrow and with wide offsets."""
    part = pa.array(keys, type_).slice(first, length)
    alone = words_of(keys[first : first + length], 9)
    assert [tuple(pair) for pair in fingerprints_of(part, seed=9).tolist()] == alone


@pytest.mark.parametrize(
    "key",
    [
        lambda i: b"%016d" % i,
        lambda i: b"%x" % (i + 4096),
        lambda i: (i << 48).to_bytes(8, "little"),
        lambda i: i.to_bytes(12, "big"),
        lambda i: b"user-%05d" % i,
    ],
)
def test_the_upper_bits_are_spread(key):
    """Keys that count up, at either end, do not cluster: a look-up by the upper 12 bits finds a few
    of 4096.
    """
    found = fingerprints_of(pa.array([key(i) for i in range(4096)]), seed=1)[:, 0]
    assert np.bincount((found >> np.uint64(52)).astype(np.int64)).max() <= 16


@pytest.mark.parametrize("key", [b"abcd", b"0123456789abcdef", b"", b"x" * 17])
def test_another_seed_gives_other_words(key):
    """S19: keys that share their words or upper bits cannot be prepared."""
    (one,), (other,) = words_of([key], 1), words_of([key], 2)
    assert one[0] != other[0]
    assert one[1] != other[1]
