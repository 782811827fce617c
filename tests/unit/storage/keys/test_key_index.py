"""The key index of a data object (FORMAT.md §5.5)."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from clog.storage.env import SeededIds
from clog.storage.keys.key_index import DamagedIndexError, decode, encode, joined
from clog.storage.objects import writer
from clog.storage.objects.composing import write_rewritten
from clog.storage.store import open_store
from clog.storage.types.columns import RECORD_SCHEMA

SEED = 0x0123456789ABCDEF
_numbers = itertools.count()


def hashes(count, seed=1):
    return np.random.default_rng(seed).integers(0, 1 << 64, count, dtype=np.uint64)


@given(st.lists(st.lists(st.integers(0, (1 << 64) - 1), max_size=40), max_size=4))
def test_every_key_is_found_in_its_block(blocks):
    """No existing key is ever missed (S19), however few there are, or how similar."""
    index = decode(encode([(len(b) + 1, np.array(b, np.uint64)) for b in blocks]))
    row = 0
    for block in blocks:
        for value in block:
            ranges = index.rows_of(np.array([value], np.uint64))
            assert any(start <= row < end for start, end in ranges)
        row += len(block) + 1


def test_absent_keys_are_rarely_taken_for_present_ones():
    """At most 1 in 2^22: of the 5 million looked up, 0.6 are expected to be."""
    index = decode(encode([(1 << 17, hashes(1 << 17))]))
    asked = [hashes(1 << 20, seed) for seed in range(2, 7)]
    wrong = sum(len(some) - index.missing(0, some) for some in asked)
    assert wrong <= 8
    assert not index.may_hold_any(hashes(100, seed=9))


def test_size_of_an_index():
    """3.25 to 3.5 bytes per key, and those of a repeated key only once."""
    for count in (1 << 16, (1 << 17) - 1):
        some = hashes(count)
        size = len(encode([(2 * count, np.concatenate((some, some)))]))
        assert 3.24 * count < size < 3.51 * count


def test_rows_of_a_key_are_those_of_its_blocks():
    """Neighbouring blocks are fetched as one range."""
    a, b, c = hashes(300, 1), hashes(300, 2), hashes(300, 3)
    index = decode(encode([(400, a), (300, b), (300, c), (300, a)]))
    assert index.rows_of(b) == [(400, 700)]
    assert index.rows_of(np.concatenate((a[:1], b[:1]))) == [(0, 700), (1000, 1300)]
    assert index.rows_of(hashes(3, 9)) == []


def test_damage_is_noticed():
    """Any changed byte, and what violates the format under a valid checksum."""
    data = encode([(10, hashes(10))])
    for i in range(len(data)):
        with pytest.raises(DamagedIndexError):
            decode(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
    for body in (data[16:-1], data[16:] + b"\0", b"\1" + b"\xff" * 20):
        with pytest.raises(DamagedIndexError):
            decode(xxhash.xxh3_128_digest(body) + body)


def test_an_index_of_another_version_is_ignored():
    """FORMAT.md §5.5."""
    body = b"\2 what a later version says"
    assert decode(xxhash.xxh3_128_digest(body) + body) is None


def made(count, **options):
    table = pa.table(
        {
            "key": pa.array([b"key-%d" % i if i % 7 else None for i in range(count)], pa.binary()),
            "value": pa.array([b"v"] * count, pa.binary()),
            "headers": pa.nulls(count, RECORD_SCHEMA.field("headers").type),
            "timestamp": pa.array([5] * count, pa.timestamp("us", "UTC")),
            "offset": pa.array(range(0, 2 * count, 2), pa.int64()),
        }
    )
    store = open_store(f"memory://test_key_index/{next(_numbers)}")
    (obj,) = write_rewritten(
        store, table.to_batches(), partition=0, stamp=1, new_id=SeededIds(1).new_id, **options
    )
    return store, obj


def test_a_rewritten_object_carries_its_index(monkeypatch):
    """Between its pages and its footer's checksum: from the bytes alone, as FORMAT.md §5.5 says."""
    monkeypatch.setattr(writer, "WHOLE_BYTES", 0)
    monkeypatch.setattr(writer, "GROUP_ROWS", 100)
    store, obj = made(250, key_seed=SEED)
    data = store.get(obj.ref.path)
    start, end = obj.ref.tail
    index = data[start : start + obj.ref.index_bytes]
    assert end == len(data) == start + obj.ref.index_bytes + 16 + obj.ref.footer_bytes
    assert xxhash.xxh3_128_digest(index[16:]) == index[:16]
    found, at = [], 17
    while at < len(index):
        rows, count = (int.from_bytes(index[at + i : at + i + 4], "little") for i in (0, 4))
        bits = index[at + 8]
        counts = index[at + 9 :][: 1 << bits]
        high = index[at + 9 + len(counts) :][: 2 * count]
        low = index[at + 9 + len(counts) + 2 * count :][:count]
        bucket = [b for b, times in enumerate(counts) for _ in range(times)]
        kept = [
            int.from_bytes(high[2 * i : 2 * i + 2], "little") << 8 | low[i] for i in range(count)
        ]
        found.append((rows, bits, list(zip(bucket, kept, strict=True))))
        at += 9 + len(counts) + 3 * count
    assert [rows for rows, _, _ in found] == [100, 100, 50]
    for i in range(1, 250):
        rows, bits, entries = found[i // 100]
        value = xxhash.xxh3_128_intdigest(b"key-%d" % i, seed=SEED) >> 64
        place = (value >> (64 - bits), value >> (40 - bits) & 0xFFFFFF)
        assert (place in entries) == (i % 7 != 0)
        assert entries == sorted(set(entries))


def test_who_gets_no_index(monkeypatch):
    """An object that is fetched whole in any case, and one for which the log's seed is
    not given.
    """
    assert made(250, key_seed=SEED)[1].ref.index_bytes == 0
    monkeypatch.setattr(writer, "WHOLE_BYTES", 0)
    assert made(250)[1].ref.index_bytes == 0
    assert made(250, key_seed=SEED)[1].ref.index_bytes > 0


@pytest.mark.parametrize("data", [b"", b"x" * 15, xxhash.xxh3_128_digest(b"")])
def test_an_index_that_is_too_short(data):
    """Even if its checksum, that of nothing, is right."""
    with pytest.raises(DamagedIndexError, match=f"has {len(data)} bytes"):
        decode(data)


def test_joined_indexes_say_what_each_says():
    """Block by block, of present and of absent hashes; rows are numbered on from one to
    the next.
    """
    hashes = np.random.default_rng(1).integers(0, 1 << 63, 3000, np.uint64)
    parts = [[hashes[:1]], [hashes[1:900], hashes[900:1000]], [hashes[:0]], [hashes[1000:2000]]]
    single = [decode(encode([(max(1, len(h)), h) for h in blocks])) for blocks in parts]
    together = joined(single)
    found = set(zip(*(numbers.tolist() for numbers in together.hits(hashes)), strict=True))
    expected, first = set(), 0
    for index in single:
        expected |= {(n, b + first) for n, b in zip(*index.hits(hashes), strict=True)}
        first += len(index.shifts)
    assert found == expected
    assert len(found) >= 2000
    assert together.edges.tolist() == [0, 1, 900, 1000, 1001, 2001]
    assert together.rows_in(np.array([0, 1, 3])) == [(0, 900), (1000, 1001)]
