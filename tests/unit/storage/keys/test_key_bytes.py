"""The canonical bytes of keys, as FORMAT.md §12.3 specifies them."""

import datetime as dt
import struct
from decimal import Decimal as D  # noqa: N817
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.storage.keys.hashing import (
    PARTITIONERS,
    fingerprints_of,
    hash_keys,
    key_bytes,
    key_of_bytes,
    partitions_for,
)

PAIR = pa.struct([("n", pa.int16()), ("s", pa.string())])
PRICE = pa.struct([("d", pa.date32()), ("p", pa.decimal128(9, 2)), ("ok", pa.bool_())])
NESTED = pa.struct([("p", PAIR), ("u", pa.uint8()), ("b", pa.binary())])
EPOCH = dt.datetime(1970, 1, 1)


def one(key, kind):
    (found,) = key_bytes(pa.array([key], kind)).to_pylist()
    return found


@pytest.mark.parametrize(
    ("key", "kind", "expected"),
    [
        ("é", pa.string(), "c3a9"),
        ("", pa.string(), ""),
        (b"\0\xff", pa.binary(), "00ff"),
        (b"ab", pa.binary(2), "6162"),
        (5, pa.int8(), "8000000000000005"),
        (5, pa.int64(), "8000000000000005"),
        (-1, pa.int32(), "7fffffffffffffff"),
        (-(2**63), pa.int64(), "0000000000000000"),
        (255, pa.uint8(), "00000000000000ff"),
        (2**64 - 1, pa.uint64(), "ffffffffffffffff"),
        (EPOCH, pa.timestamp("ms"), "8000000000000000"),
        (EPOCH + dt.timedelta(seconds=1), pa.timestamp("us", "UTC"), "80000000000f4240"),
        (dt.date(1970, 1, 2), pa.date32(), "8000000000000001"),
        (dt.date(1, 1, 1), pa.date32(), "7ffffffffff506c6"),
        (True, pa.bool_(), "01"),
        (False, pa.bool_(), "00"),
        (D("1.5"), pa.decimal128(2, 1), "8000000000000000000000000000000f"),
        (D("-0.01"), pa.decimal128(38, 2), "7fffffffffffffffffffffffffffffff"),
        (D(10**38 - 1), pa.decimal128(38), f"{10**38 - 1 + 2**127:032x}"),
        (D(1 - 10**38), pa.decimal128(38), f"{1 - 10**38 + 2**127:032x}"),
        ({"d": EPOCH.date(), "p": None, "ok": True}, PRICE, f"01{1 << 63:016x}000101"),
        ({"d": None, "p": D(1), "ok": False}, PRICE, f"0001{(1 << 127) + 100:032x}0100"),
        ({"n": 1, "s": "x"}, PAIR, "01800000000000000101780000"),
        ({"n": None, "s": ""}, PAIR, "00010000"),
        ({"n": None, "s": "a\0b"}, PAIR, "00016100ff620000"),
        ({"p": None, "u": 1, "b": b""}, NESTED, "00010000000000000001010000"),
        ({"p": {"n": None, "s": None}, "u": None, "b": None}, NESTED, "0100000000"),
    ],
)
def test_the_bytes_are_the_specified_ones(key, kind, expected):
    """S61: independent of Arrow and of Python."""
    assert one(key, kind).hex() == expected


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.int32(), PAIR, pa.bool_(), pa.decimal128(9, 2)], ids=str
)
def test_a_missing_key_has_none(kind):
    """In slices too: Arrow's arrays may start anywhere in their buffers."""
    somes = {pa.string(): "x", pa.int32(): 7, PAIR: {"n": 1, "s": "x"}, pa.bool_(): True}
    some = somes.get(kind, D("7.25"))
    array = pa.array([some, None, some, None, some], kind)
    expected = [one(some, kind), None, one(some, kind)]
    for found in (key_bytes(array.slice(2)), key_bytes(array)[2:], key_bytes(array[:3])):
        assert found.to_pylist() == expected
        found.validate(full=True)
    assert key_bytes(array.slice(0, 0)).to_pylist() == []


def plain_bytes(key, kind):
    """What the document specifies, without Arrow."""
    if pa.types.is_struct(kind):
        return b"".join(
            b"\0" if key[f.name] is None else b"\1" + inside(plain_bytes(key[f.name], f.type), f)
            for f in kind
        )
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    return struct.pack(">Q", key if pa.types.is_unsigned_integer(kind) else key + (1 << 63))


def inside(found, field):
    is_open = pa.types.is_string(field.type) or pa.types.is_binary(field.type)
    return found.replace(b"\0", b"\0\xff") + b"\0\0" if is_open else found


def struct_keys():
    text = st.text(st.sampled_from("\0\1aé"), max_size=3) | st.none()
    pair = st.fixed_dictionaries({"n": st.integers(-3, 3) | st.none(), "s": text})
    octets = st.binary(max_size=3) | st.none()
    number = st.integers(0, 255) | st.none()
    return st.fixed_dictionaries({"p": pair | st.none(), "u": number, "b": octets})


def sort_key(key, kind):
    if key is None:
        return (0,)
    if pa.types.is_struct(kind):
        return (1, *(sort_key(key[f.name], f.type) for f in kind))
    return (1, key.encode() if isinstance(key, str) else key)


@given(st.lists(struct_keys(), min_size=2, max_size=20))
def test_different_keys_differ_and_sort_alike(keys):
    """S61: as the keys do, null first."""
    found = key_bytes(pa.array(keys, NESTED)).to_pylist()
    assert found == [plain_bytes(key, NESTED) for key in keys]
    ordered = sorted(range(len(keys)), key=lambda i: sort_key(keys[i], NESTED))
    for a, b in pairwise(ordered):
        assert (found[a] == found[b]) == (keys[a] == keys[b])
        assert found[a] <= found[b]


def price_keys():
    days = st.dates() | st.none()
    prices = st.decimals(-(10**7) + 1, 10**7 - 1, places=2) | st.none()
    return st.fixed_dictionaries({"d": days, "p": prices, "ok": st.booleans() | st.none()})


@given(st.lists(price_keys(), min_size=2, max_size=20))
def test_dates_decimals_and_truth_values_sort_alike_and_come_back(keys):
    """FORMAT.md §12.3, ``typed-keys``: null first, and the keys are known by their bytes."""
    found = key_bytes(pa.array(keys, PRICE)).to_pylist()
    tuples = [tuple(key[field.name] for field in PRICE) for key in keys]
    assert [key_of_bytes(octets, PRICE) for octets in found] == tuples
    ordered = sorted(range(len(keys)), key=lambda i: sort_key(keys[i], PRICE))
    for a, b in pairwise(ordered):
        assert (found[a] == found[b]) == (keys[a] == keys[b])
        assert found[a] <= found[b]


@given(st.lists(st.integers(-(10**9), 10**9), max_size=20))
def test_a_decimal_of_more_digits_is_the_same_key(keys):
    """S61: its scale stays."""
    prices = [D(key).scaleb(-2) for key in keys]
    narrow, wide = pa.array(prices, pa.decimal128(12, 2)), pa.array(prices, pa.decimal128(38, 2))
    assert key_bytes(narrow).equals(key_bytes(wide))


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20))
def test_a_wider_integer_is_the_same_key(keys):
    """S61: widening a key does not move it to another partition and changes no hash."""
    narrow, wide = pa.array(keys, pa.int32()), pa.array(keys, pa.int64())
    assert key_bytes(narrow).equals(key_bytes(wide))
    assert (hash_keys(narrow, seed=3) == hash_keys(wide, seed=3)).all()


def test_a_string_is_hashed_and_placed_as_its_utf8():
    """S61: by each existing hash."""
    texts = ["", "a", "order-17", "é" * 40]
    strings, octets = pa.array(texts), pa.array([text.encode() for text in texts], pa.binary())
    assert (hash_keys(strings, seed=5) == hash_keys(octets, seed=5)).all()
    assert (fingerprints_of(strings, seed=5) == fingerprints_of(octets, seed=5)).all()
    for algorithm in PARTITIONERS:
        placed = [partitions_for(k, partitions=7, algorithm=algorithm) for k in (strings, octets)]
        assert (placed[0] == placed[1]).all()
