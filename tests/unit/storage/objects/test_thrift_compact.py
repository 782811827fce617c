"""Thrift's compact protocol: every kind of value, and invalid bytes, in bounded work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.storage.objects.composing import written
from clog.storage.objects.reader import (
    BINARY,
    DEPTH_MAX,
    FALSE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRUCT,
    TRUE,
    Reader,
    ThriftError,
)


def test_every_kind_of_value():
    """Kinds are kept, so that what was read can be written again."""
    data = bytes.fromhex(
        "11"  # field 1: true
        "12"  # field 2: false
        "13 07"  # field 3: a byte
        "14 03"  # field 4: i16, -2
        "15 ac02"  # field 5: i32, 150
        "16 ffffffffffffffffff01"  # field 6: i64, the least there is
        "17 000000000000f03f"  # field 7: a double
        "18 02 6162"  # field 8: ab
        "19 35 02 04 06"  # field 9: a list of three i32
        "1a 21 01 02"  # field 10: a set of two truth values
        "1b 01 85 01 61 02"  # field 11: a map of binary to i32
        "1c 15 02 00"  # field 12: a struct
        "0c 50 00"  # field 40, by its number: an empty struct
        "00"
    )
    reader = Reader(data + b"rest")
    with pytest.raises(ThriftError):
        Reader(data[:-1]).struct()
    assert reader.struct() == {
        1: (1, True),
        2: (2, False),
        3: (3, b"\x07"),
        4: (I16, -2),
        5: (I32, 150),
        6: (I64, -(1 << 63)),
        7: (7, bytes.fromhex("000000000000f03f")),
        8: (BINARY, b"ab"),
        9: (LIST, (I32, [1, 2, 3])),
        10: (SET, (TRUE, [True, False])),
        11: (MAP, bytes.fromhex("01 85 01 61 02")),
        12: (STRUCT, {1: (I32, 1)}),
        40: (STRUCT, {}),
    }
    assert reader.at == len(data)
    assert written(Reader(data).struct()) == data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "ends early"),
        ("15", "ends early"),
        ("1f00", "no kind 15"),
        ("18 7f 61", "127 bytes or elements do not fit into the 1 bytes"),
        ("19 f5 ffffff7f 00", "268435455 bytes or elements do not fit"),
        ("1b ffffff7f 88", "268435455 bytes or elements do not fit"),
        ("16 ffffffffffffffffffff01 00", "more than 64 bits"),
        ("16 ffffffffffffffffff02 00", "more than 64 bits"),
        ("25 02 05 02 02 00", "field 1 comes after field 2"),
        ("1c" * 200, "nested more than"),
        ("1919" * 200, "nested more than"),
    ],
)
def test_bytes_that_are_no_value(data, message):
    """A clog error, before any size in them is trusted."""
    with pytest.raises(ThriftError, match=message):
        Reader(bytes.fromhex(data)).struct()


def test_nesting_is_bounded_and_enough():
    """Parquet's own definitions nest seven deep."""
    Reader(b"\x1c" * DEPTH_MAX + b"\0" * (DEPTH_MAX + 1)).struct()
    with pytest.raises(ThriftError, match="nested"):
        Reader(b"\x1c" * (DEPTH_MAX + 1) + b"\0" * (DEPTH_MAX + 2)).struct()


INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES = st.recursive(
    st.one_of(
        st.booleans().map(lambda truth: (TRUE if truth else FALSE, truth)),
        st.tuples(st.sampled_from([I16, I32, I64]), INTEGERS),
        st.tuples(st.just(BINARY), st.binary(max_size=200)),
        st.tuples(
            st.sampled_from([LIST, SET]), st.tuples(st.just(I32), st.lists(INTEGERS, max_size=40))
        ),
        st.tuples(st.just(LIST), st.tuples(st.just(TRUE), st.lists(st.booleans(), max_size=20))),
    ),
    lambda inner: st.tuples(st.just(STRUCT), st.dictionaries(st.integers(1, 99), inner)),
    max_leaves=9,
)


@given(st.dictionaries(st.integers(1, 32_767), VALUES, max_size=6))
def test_what_is_written_is_read_again(struct):
    """Values of every kind, fields near and far from one another."""
    data = written(struct)
    reader = Reader(data)
    assert reader.struct() == struct
    assert reader.at == len(data)
