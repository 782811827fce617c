"""Plain Python values as arrays, as Arrow itself would make them."""

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clog.storage.column_kinds import of_plain

INTEGERS = st.integers(-(2**70), 2**70) | st.sampled_from(
    [
        edge + by
        for width in (7, 8, 15, 31, 63, 64)
        for edge in (2**width, -(2**width))
        for by in (-1, 0)
    ]
)
ZONES = st.sampled_from([None, dt.UTC, dt.timezone(dt.timedelta(hours=-7, minutes=30))])
TIMES = st.datetimes(dt.datetime(1700, 1, 2), dt.datetime(2200, 1, 1), timezones=ZONES)
CASES = {
    pa.bool_(): st.booleans(),
    **dict.fromkeys((pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64()), INTEGERS),
    pa.float64(): st.floats() | st.integers(-(2**54), 2**54),
    pa.string(): st.text(st.characters(codec="utf-8")),
    pa.binary(): st.binary() | st.binary().map(bytearray) | st.text(max_size=3),
    pa.binary(2): st.binary(min_size=2, max_size=2) | st.binary(max_size=3),
    pa.decimal128(5, 2): st.decimals(allow_nan=None) | st.decimals(-999, 999, places=2) | INTEGERS,
    pa.decimal128(38, 0): st.decimals(places=0, allow_nan=False) | INTEGERS,
    pa.decimal256(60, 4): st.decimals(-(10**9), 10**9, places=4) | INTEGERS,
    pa.date32(): st.dates(),
    pa.timestamp("us"): TIMES,
    pa.timestamp("us", "UTC"): TIMES,
    pa.timestamp("ns", "Europe/Rome"): TIMES,
    pa.time64("us"): st.times(),
    pa.time64("ns"): st.times(),
}


@pytest.mark.parametrize("kind", CASES, ids=str)
@settings(max_examples=3 * settings().max_examples // 5, deadline=None)
@given(data=st.data())
def test_an_array_is_what_arrow_makes(kind, data):
    """Or there is none, and Arrow is used: never another value, nor one that Arrow refuses."""
    values = data.draw(st.lists(st.none() | CASES[kind], max_size=4))
    made = of_plain(values, kind)
    if made is None:
        return
    made.validate(full=True)
    assert made.type == kind
    assert made.equals(pa.array(values, kind)) or "nan" in str(values)


PLAIN = [
    (pa.bool_(), [True, None, False]),
    (pa.int8(), [-128, 127, None]),
    (pa.uint64(), [2**64 - 1]),
    (pa.float64(), [1.5, 2, None, float("inf")]),
    (pa.string(), ["", "\U0001f600", None]),
    (pa.binary(), [b"\0", bytearray(b"x"), "x", None]),
    (pa.binary(2), [b"ab", None]),
    (pa.decimal128(5, 2), [decimal.Decimal("-1.5"), decimal.Decimal("999.99"), 3, None]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    (pa.timestamp("us", "UTC"), [dt.datetime(2020, 1, 1), dt.datetime(1969, 1, 1, tzinfo=dt.UTC)]),
    (pa.time64("us"), [dt.time(23, 59, 59, 999_999), None]),
    (pa.int32(), []),
    (pa.int32(), [None, None]),
]


@pytest.mark.parametrize(("kind", "values"), PLAIN, ids=str)
def test_plain_values_need_no_arrow(kind, values):
    """What most records hold."""
    assert of_plain(values, kind).equals(pa.array(values, kind))


def test_a_zero_keeps_its_sign():
    """No value is changed, and Arrow takes both for equal."""
    assert str(of_plain([-0.0, 0.0], pa.float64())[0]) == "-0.0"


def repr_of(part):
    """A name for a case that is the same in each process, unlike an address."""
    return str(part) if isinstance(part, pa.DataType) else type(part[0]).__name__


OTHER = [
    *((pa.int8(), [128]), (pa.uint8(), [-1]), (pa.int64(), [np.int64(1)]), (pa.int64(), [True])),
    *((pa.float64(), [2**53 + 1]), (pa.float64(), [np.float32(1)]), (pa.string(), ["\ud800"])),
    *((pa.binary(2), [b"abc"]), (pa.binary(), [memoryview(b"x")])),
    *((pa.decimal128(5, 2), [decimal.Decimal(text)]) for text in ("1000", "0.001", "NaN", "1E+99")),
    *((pa.decimal128(5, 2), [1000]), (pa.date32(), [dt.datetime(2020, 1, 1)])),
    (pa.timestamp("ns"), [dt.datetime(2500, 1, 1)]),
    (pa.timestamp("us"), [np.datetime64("NaT", "us")]),
    (pa.list_(pa.int8()), [[1]]),
]


@pytest.mark.parametrize(("kind", "values"), OTHER, ids=repr_of)
def test_anything_else_is_left_to_arrow(kind, values):
    """Other classes, and what has to be refused with a reason."""
    assert of_plain(values, kind) is None
