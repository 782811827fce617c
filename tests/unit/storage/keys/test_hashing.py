"""Key hashes are those of xxHash and BLAKE2, for any layout of the keys (S19)."""

from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from clog.storage.errors import InvalidInputError
from clog.storage.keys.hashing import ALGORITHMS, hash_keys

SEEDS = st.integers(0, 2**64 - 1)
KEYS = st.lists(st.binary(max_size=300) | st.binary(max_size=20), max_size=40)
_HALF = 2**64


def as_integers(hashes) -> list[int]:
    assert hashes.dtype == np.uint64
    assert hashes.shape[1] == 2
    return [hi * _HALF + lo for hi, lo in hashes.tolist()]


@given(KEYS, SEEDS)
def test_the_default_is_xxh3_128(keys, seed):
    """S19: high half first."""
    found = as_integers(hash_keys(pa.array(keys, pa.binary()), seed=seed))
    assert found == [xxhash.xxh3_128_intdigest(k, seed) for k in keys]


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32, 2**64 - 1])
def test_every_short_length(seed):
    """Short keys are hashed together, by other code: all lengths, bytes and carries."""
    random = np.random.default_rng(seed)
    keys = [bytes([b]) * length for length in range(20) for b in (0, 1, 127, 128, 255)]
    keys += [random.bytes(length) for length in range(20) for _ in range(50)]
    check(keys, seed)


@given(st.tuples(st.integers(1, 17), st.integers(1, 17)), st.lists(st.booleans()), SEEDS)
def test_short_keys_of_one_or_two_lengths(lengths, which, seed):
    """Those of one length are read at a stride, unless others are between them."""
    keys = [bytes(range(i, i + lengths[first])) for i, first in enumerate(which)]
    check(keys, seed)


def check(keys, seed):
    found = as_integers(hash_keys(pa.array(keys, pa.binary()), seed=seed))
    assert found == [xxhash.xxh3_128_intdigest(k, seed) for k in keys]


@given(KEYS, SEEDS)
def test_blake2b_is_keyed_with_the_seed(keys, seed):
    """S19: the cryptographic choice."""
    found = as_integers(hash_keys(pa.array(keys, pa.binary()), seed=seed, algorithm="blake2b"))
    expected = [blake2b(k, digest_size=16, key=seed.to_bytes(8, "big")).digest() for k in keys]
    assert found == [int.from_bytes(d, "big") for d in expected]


@given(KEYS, st.integers(0, 50), st.integers(0, 50))
@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_layout_does_not_matter(type_, algorithm, keys, first, length):
    """A slice hashes as its keys do, with narrow and with wide offsets."""
    part = pa.array(keys, type_).slice(first, length)
    alone = pa.array(keys[first : first + length], pa.binary())
    assert (
        hash_keys(part, seed=9, algorithm=algorithm).tolist()
        == hash_keys(alone, seed=9, algorithm=algorithm).tolist()
    )


@pytest.mark.parametrize("rows", [8191, 8192, 8193, 20_000])
def test_no_key_is_lost_between_slices(rows):
    """The loop works in slices of 8192 keys."""
    keys = [b"%d" % i for i in range(rows)]
    found = as_integers(hash_keys(pa.array(keys, pa.binary()), seed=1))
    assert found == [xxhash.xxh3_128_intdigest(k, 1) for k in keys]


@pytest.mark.parametrize("width_bits", [1, 8, 63, 64, 65, 127, 128])
def test_a_narrow_hash_keeps_the_low_bits(width_bits):
    """S19: what the tests of collisions rely on."""
    keys = pa.array([b"%d" % i for i in range(500)], pa.binary())
    whole = as_integers(hash_keys(keys, seed=1))
    narrow = as_integers(hash_keys(keys, seed=1, width_bits=width_bits))
    assert narrow == [h % 2**width_bits for h in whole]


def test_8_bits_collide_and_128_do_not():
    """S19: the width is the protection."""
    keys = pa.array([b"%d" % i for i in range(5000)], pa.binary())
    assert len(set(as_integers(hash_keys(keys, seed=1, width_bits=8)))) == 256
    assert len(set(as_integers(hash_keys(keys, seed=1)))) == 5000


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_another_seed_gives_other_hashes(algorithm):
    """S19: keys that collide cannot be prepared in advance."""
    keys = pa.array([b"a", b"b", b""], pa.binary())
    one, other = (hash_keys(keys, seed=s, algorithm=algorithm) for s in (1, 2))
    assert not (one == other).any()


def test_a_null_key_is_a_bug_of_the_caller():
    """Null keys are never mapped (S21); hashing one would invent a key."""
    with pytest.raises(AssertionError, match="null keys"):
        hash_keys(pa.array([b"a", None], pa.binary()), seed=1)


def test_an_unknown_algorithm_is_refused():
    """And the valid ones are listed."""
    with pytest.raises(InvalidInputError, match="xxh3_128 or blake2b"):
        hash_keys(pa.array([b"a"], pa.binary()), seed=1, algorithm="md5")
