"""Keys are placed in partitions as Kafka's are (murmur2) or by xxh3, and those without a key in
turn.
"""

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from clog.storage.errors import InvalidInputError
from clog.storage.keys.hashing import PARTITIONERS, murmur2, partitions_for

KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def murmur2_of_one(key: bytes) -> int:
    """Kafka's algorithm as it is described, one key at a time; unsigned."""
    mask = 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for i in range(0, whole, 4):
        k = int.from_bytes(key[i : i + 4], "little") * 0x5BD1E995 & mask
        k = (k ^ k >> 24) * 0x5BD1E995 & mask
        h = (h * 0x5BD1E995 & mask) ^ k
    if key[whole:]:
        h = (h ^ int.from_bytes(key[whole:], "little")) * 0x5BD1E995 & mask
    h = (h ^ h >> 13) * 0x5BD1E995 & mask
    return h ^ h >> 15


def test_murmur2_gives_kafkas_numbers():
    """The vectors of Kafka's own tests, signed as Java shows them."""
    found = murmur2(pa.array(KAFKA_VECTORS, pa.binary())).astype(np.int32)
    assert dict(zip(KAFKA_VECTORS, found.tolist(), strict=True)) == KAFKA_VECTORS


@given(st.lists(st.binary(max_size=70) | st.binary(max_size=5), max_size=60))
@example([])
@example([b""])
@example([b"", b"\xff\xfe\xfd\xfc\xfb"])
@example([b"a" * n for n in range(64)])
@example([b"a" * 300, *[b"b" * 8] * 20])
def test_murmur2_of_many_keys_is_that_of_each(keys):
    """All at once and one at a time agree, whatever lengths are side by side."""
    assert murmur2(pa.array(keys, pa.binary())).tolist() == [murmur2_of_one(k) for k in keys]


@given(st.lists(st.none() | st.binary(max_size=20)), st.integers(0, 20), st.integers(0, 20))
@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize("algorithm", PARTITIONERS)
def test_a_slice_goes_where_its_keys_go(type_, algorithm, keys, first, length):
    """The offset of an Arrow slice, nulls and the width of offsets change nothing."""
    array = pa.array(keys, type_)
    part = partitions_for(array.slice(first, length), partitions=5, algorithm=algorithm)
    alone = partitions_for(
        pa.array(keys[first : first + length], pa.binary()), partitions=5, algorithm=algorithm
    )
    assert part.tolist() == alone.tolist()


@pytest.mark.parametrize("partitions", [1, 3, 50, 2**31 - 1])
def test_murmur2_partitions_are_kafkas(partitions):
    """Its sign bit is masked off, not negated."""
    found = partitions_for(
        pa.array(KAFKA_VECTORS, pa.binary()), partitions=partitions, algorithm="murmur2"
    )
    assert found.dtype == np.int32
    assert found.tolist() == [(h & 0x7FFFFFFF) % partitions for h in KAFKA_VECTORS.values()]


@pytest.mark.parametrize("partitions", [1, 3, 50, 2**31 - 1])
def test_xxh3_partitions_are_the_unsigned_remainder(partitions):
    """Part of the format: xxh3_64 with seed 0; also beyond one slice of keys."""
    keys = [b"", *(b"key-%d" % i for i in range(5000))]
    found = partitions_for(pa.array(keys, pa.binary()), partitions=partitions, algorithm="xxh3")
    assert found.dtype == np.int32
    assert found.tolist() == [xxhash.xxh3_64_intdigest(k) % partitions for k in keys]


def test_xxh3_partitions_are_pinned():
    """Keys stay where they are: a log written today is read by every later release."""
    keys = pa.array([b"", b"a", b"user-42", b"x" * 300], pa.binary())
    assert partitions_for(keys, partitions=1000, algorithm="xxh3").tolist() == [138, 719, 621, 492]


@pytest.mark.parametrize("algorithm", PARTITIONERS)
def test_null_keys_go_round_robin_from_start(algorithm):
    """Keys in between do not disturb the turn; an empty key is a key (S4)."""
    keys = pa.array([None, b"k", None, b"", None, None], pa.binary())
    found = partitions_for(keys, partitions=3, algorithm=algorithm, start=7).tolist()
    assert [found[i] for i in (0, 2, 4, 5)] == [1, 2, 0, 1]
    with_keys = partitions_for(
        pa.array([b"k", b""], pa.binary()), partitions=3, algorithm=algorithm
    )
    assert [found[1], found[3]] == with_keys.tolist()


@pytest.mark.parametrize("algorithm", PARTITIONERS)
def test_keys_spread_evenly(algorithm):
    """No partition of 7 gets more than 5 % off its share of 70 000 similar keys."""
    keys = pa.array([b"user-%08d" % i for i in range(70_000)], pa.binary())
    counts = np.bincount(partitions_for(keys, partitions=7, algorithm=algorithm), minlength=7)
    assert counts.min() > 9_500
    assert counts.max() < 10_500


def test_an_unknown_algorithm_is_refused():
    """And the valid ones are listed."""
    with pytest.raises(InvalidInputError, match="xxh3 or murmur2"):
        partitions_for(pa.array([b"k"], pa.binary()), partitions=1, algorithm="crc32")


@pytest.mark.parametrize("lengths", [(4, 8), (9, 16), (4, 16), (16, 16), (0, 30)])
@pytest.mark.parametrize("skipped", [0, 3])
def test_many_short_keys_are_hashed_as_the_library_does(lengths, skipped):
    """A key goes to the partition of its xxh3_64, however many are hashed together."""
    rng = np.random.default_rng(sum(lengths))
    keys = [rng.bytes(int(n)) for n in rng.integers(*lengths, 9_000, endpoint=True)]
    expected = [xxhash.xxh3_64_intdigest(key) % 977 for key in keys[skipped:]]
    array = pa.array(keys, pa.binary()).slice(skipped)
    assert partitions_for(array, partitions=977, algorithm="xxh3").tolist() == expected
