"""What fits a schema, and how what does not is refused (S62)."""

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pytest

from clog.storage.errors import InvalidInputError
from clog.storage.types.conform import conform, from_python

VALUE = pa.field(
    "value",
    pa.struct(
        [
            pa.field("n", pa.int32(), nullable=False),
            ("p", pa.float32()),
            ("s", pa.string()),
            ("l", pa.list_(pa.struct([pa.field("q", pa.int8(), nullable=False)]))),
            ("m", pa.map_(pa.string(), pa.int64())),
            ("t", pa.timestamp("ms", "UTC")),
            ("naive", pa.timestamp("us")),
            ("d", pa.decimal128(6, 2)),
            ("b", pa.bool_()),
            ("x", pa.binary()),
            ("h", pa.float16()),
            ("day", pa.date32()),
            ("c", pa.time32("ms")),
        ]
    ),
)
GOOD = {
    "n": 1,
    "p": 1.5,
    "s": "x",
    "l": [{"q": 1}, None],
    "m": {"a": 1},
    "t": dt.datetime(2020, 1, 1),
    "naive": dt.datetime(2020, 1, 1),
    "d": decimal.Decimal("1.25"),
    "b": True,
    "x": b"\0",
    "h": 0.5,
    "day": dt.date(2020, 1, 1),
    "c": dt.time(1, 2, 3, 4000),
}
READ = GOOD | {"m": [("a", 1)], "t": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}
EMPTY = dict.fromkeys(GOOD)


PART = pa.struct([("q", pa.int64())])


def test_dicts_become_the_schemas_columns():
    """Missing fields are null, and so are missing values."""
    made = from_python([GOOD, None, {"n": 2}], VALUE)
    made.validate(full=True)
    assert made.type == VALUE.type
    assert made.to_pylist() == [READ, None, EMPTY | {"n": 2}]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"n": None}, "record 1 has no value.n, which is NOT NULL"),
        ({}, "record 1 has no value.n, which is NOT NULL"),
        ({"n": 2**40}, "record 1 has a value.n that does not fit int32"),
        ({"n": True}, "record 1 has a value.n of type bool; the log's schema says int32"),
        ({"n": "1"}, "record 1 has a value.n of type str; the log's schema says int32"),
        ({"n": 1.5}, "record 1 has a value.n of type float; the log's schema says int32"),
        ({"n": 1, "zz": 3}, "record 1 has the field value.zz, which is not in the log's schema"),
        ({"n": 1, "l": [{"q": 9}, {"q": 999}]}, "a value.l.element.q that does not fit int8"),
        ({"n": 1, "l": [{"q": None}]}, "record 1 has no value.l.element.q, which is NOT NULL"),
        ({"n": 1, "l": [{"z": 1}]}, "record 1 has the field value.l.element.z"),
        ({"n": 1, "l": 3}, "record 1 has a value.l of type int"),
        ({"n": 1, "m": {"a": "b"}}, "record 1 has a value.m.value of type str"),
        ({"n": 1, "m": [("a",)]}, "record 1 has a value.m that is not a map"),
        ({"n": 1, "t": dt.datetime(2020, 1, 1, 0, 0, 0, 5)}, "a value.t that does not fit"),
        ({"n": 1, "naive": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}, "a value.naive with a time"),
        ({"n": 1, "m": {None: 1}}, "record 1 has no value.m.key, which is NOT NULL"),
        ({"n": 1, "m": [1, 2]}, "record 1 has a value.m that is not a map"),
        ({"n": 1, "l": np.array(5)}, "record 1 has a value.l that is an array without dimensions"),
        ({"n": 1, "h": 70000.0}, "record 1 has a value.h that does not fit halffloat"),
        ({"n": 1, "day": dt.datetime(2020, 1, 1, 12)}, "a value.day of type datetime"),
        ({"n": 1, "c": dt.time(1, 2, 3, 4)}, "record 1 has a value.c that does not fit time32[ms]"),
        ({"n": 1, "c": dt.time(1, tzinfo=dt.UTC)}, "record 1 has a value.c with a time zone"),
        ({"n": 1, "d": 1.5}, "record 1 has a value.d of type float"),
        ({"n": 1, "d": decimal.Decimal("1.257")}, "record 1 has a value.d that does not fit"),
        ({"n": 1, "s": b"x"}, "record 1 has a value.s of type bytes; the log's schema says string"),
        ({"n": 1, "s": "\ud800"}, "record 1 has a value.s that does not fit string"),
        ({"n": 1, "p": 1e300}, "record 1 has a value.p that does not fit float"),
        ({"n": 1, "x": 7}, "record 1 has a value.x of type int; the log's schema says binary"),
        ("x", "record 1 has a value of type str; the log's schema says struct"),
    ],
)
def test_a_dict_that_does_not_fit_is_refused(bad, message):
    """S62: which record, which field, what was there, what is allowed."""
    with pytest.raises(InvalidInputError) as refused:
        from_python([GOOD, bad], VALUE)
    assert message in str(refused.value)
    assert str(refused.value).endswith("nothing was appended")


def test_a_time_of_pandas_that_does_not_fit_is_refused():
    """S62: one nanosecond does not fit the column's microseconds."""
    bad = {"n": 1, "naive": pytest.importorskip("pandas").Timestamp(1)}
    with pytest.raises(
        InvalidInputError, match=r"a value\.naive that does not fit timestamp\[us\]"
    ):
        from_python([GOOD, bad], VALUE)


def arrow(*rows):
    return pa.Table.from_pylist([{"value": row} for row in rows]).column("value").combine_chunks()


def broken_text():
    """Two strings, as Arrow lets anyone make them."""
    offsets, octets = np.array([0, 1, 3], np.int32), b"a\xff\xfe"
    return pa.StringArray.from_buffers(2, pa.py_buffer(offsets), pa.py_buffer(octets))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (arrow({"n": 1}), [{"n": 1}]),
        (arrow({"n": 1.0}), [{"n": 1}]),
        (arrow({"s": "x", "n": 1}), [{"n": 1, "s": "x"}]),
        (arrow({"n": 1, "l": [{"q": 3}]}), [{"n": 1, "l": [{"q": 3}]}]),
        (arrow({"n": 1, "l": []}), [{"n": 1, "l": []}]),
        (arrow({"n": 1, "d": 3}), [{"n": 1, "d": decimal.Decimal("3.00")}]),
        (arrow({"n": 1, "x": "é"}), [{"n": 1, "x": "é".encode()}]),
        (arrow({"n": 1, "t": dt.datetime(2020, 1, 1)}), [{"n": 1, "t": READ["t"]}]),
        (arrow({"n": 1, "p": None, "s": None}), [{"n": 1}]),
        (pa.nulls(2), [None, None]),
        (
            pa.array(
                [{"n": 1, "s": "a"}, None], pa.struct([("n", pa.int64()), ("s", pa.large_string())])
            ),
            [{"n": 1, "s": "a"}, None],
        ),
        (
            pa.StructArray.from_arrays(
                [pa.array([1, 1]), pa.array(["a", "a"]).dictionary_encode()], ["n", "s"]
            ),
            [{"n": 1, "s": "a"}] * 2,
        ),
        *(
            (
                pa.StructArray.from_arrays(
                    [pa.array([1, 1]), pa.array([[{"q": 1}], None, [{"q": 2}, None]], kind)[1:]],
                    ["n", "l"],
                ),
                [{"n": 1}, {"n": 1, "l": [{"q": 2}, None]}],
            )
            for kind in (pa.list_view(PART), pa.large_list_view(PART), pa.large_list(PART))
        ),
    ],
)
def test_arrow_data_may_have_another_layout(given, expected):
    """What holds the same values is accepted, whatever its layout, width or order of fields."""
    full = [None if row is None else EMPTY | row for row in expected]
    for array, rows in ((given, full), (pa.concat_arrays([given, given])[1:], (full * 2)[1:])):
        made = conform(array, VALUE)
        made.validate(full=True)
        assert made.to_pylist() == rows


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (arrow({"n": 1}, {"n": 2**33}), "record 1 has a value.n that does not fit int32"),
        (arrow({"n": 1}, {"n": 1.5}), "record 1 has a value.n that does not fit int32"),
        (arrow({"n": 1}, None, {"n": None}), "record 2 has no value.n, which is NOT NULL"),
        (arrow(None, {"n": 1, "s": 3}), "record 1 has a value.s of type int64"),
        (arrow(None, {"n": 1, "zz": 3}), "record 1 has the field value.zz"),
        (
            arrow({"n": 1, "l": [{"q": 2}] * 3}, {"n": 1, "l": []}, {"n": 1, "l": [{"q": 700}]}),
            "record 2 has a value.l.element.q that does not fit int8",
        ),
        (arrow({"n": 1, "p": 1.0}, {"n": 1, "p": 1e300}), "1 has a value.p that does not fit"),
        (
            arrow({"n": 1, "naive": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}),
            "a value.naive of type timestamp",
        ),
        (pa.array([3]), "record 0 has a value of type int64"),
        (
            arrow({"n": 1}, {"n": 1, "m": [{"key": None, "value": 1}]}),
            "record 1 has no value.m.key, which is NOT NULL",
        ),
        (
            arrow({"n": 1, "m": [{"key": "a", "value": 1}, None]}),
            "record 0 has no value.m.key, which is NOT NULL",
        ),
        (arrow({"n": 1, "h": 2048}, {"n": 1, "h": 2049}), "record 1 has a value.h that does not"),
        (arrow({"n": 1, "h": 0.1}, {"n": 1, "h": 1e6}), "record 1 has a value.h that does not"),
        (
            pa.StructArray.from_arrays([pa.array([1, 1]), broken_text()], ["n", "s"]),
            "record 1 has a value.s that is not valid UTF-8",
        ),
    ],
)
def test_arrow_data_that_does_not_fit_is_refused(given, message):
    """S62: the first such record by its number, also in nested lists."""
    with pytest.raises(InvalidInputError) as refused:
        conform(given, VALUE)
    assert message in str(refused.value)


def test_a_message_never_shows_a_value():
    """Values may be secrets."""
    for bad in ({"n": "s3cret"}, {"n": 1, "s": b"s3cret"}, {"n": 1, "l": ["s3cret"]}):
        with pytest.raises(InvalidInputError) as refused:
            from_python([bad], VALUE)
        assert "s3cret" not in str(refused.value)
