"""What `Log.append` accepts becomes one table of one schema, or is refused with the reason."""

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest

from clog.storage import InvalidInputError
from clog.storage.objects.records import to_records
from clog.storage.types.columns import RECORD_SCHEMA

NOW_US = 1_700_000_000_123_456
HEADERS = RECORD_SCHEMA.field("headers").type


def records(data):
    return to_records(data, now_us=NOW_US)[0]


def micros(table):
    return table.column("timestamp").cast(pa.int64()).to_pylist()


def test_dicts():
    """Text is UTF-8, everything else is unchanged; no headers are null, however they were given."""
    table = records(
        [
            {"key": "ü", "value": None},
            {"key": None, "value": b"", "headers": []},
            {"key": bytearray(b"k"), "value": memoryview(b"v"), "headers": {"a": "b", "c": None}},
            {"key": "", "value": "x", "headers": [{"key": "h", "value": b"1"}, ("h", "2")]},
        ]
    )
    assert table.schema == RECORD_SCHEMA
    assert table.column("key").to_pylist() == ["ü".encode(), None, b"k", b""]
    assert table.column("value").to_pylist() == [None, b"", b"v", b"x"]
    assert table.column("headers").to_pylist() == [
        None,
        None,
        [{"key": "a", "value": b"b"}, {"key": "c", "value": None}],
        [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}],
    ]
    assert micros(table) == [NOW_US] * 4


@pytest.mark.parametrize(
    ("given", "expected_us"),
    [
        (0, 0),
        (1_700_000_000_001, 1_700_000_000_001_000),
        (datetime(2023, 11, 14, 22, 13, 20, 123457, tzinfo=UTC), 1_700_000_000_123_457),
        (datetime(2023, 11, 14, 22, 13, 20, 999_999), 1_700_000_000_999_999),
        (datetime(2023, 11, 14, 23, 0, tzinfo=timezone(timedelta(hours=1))), 1_699_999_200_000_000),
        (None, NOW_US),
    ],
)
def test_timestamps_of_dicts(given, expected_us):
    """Epoch ms or datetime, to the microsecond; one without a zone is UTC."""
    assert micros(records([{"key": "a", "value": "b", "timestamp": given}])) == [expected_us]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1_700_000_000_000]),
        pa.array([1_700_000_000], pa.timestamp("s")),
        pa.array([1_700_000_000_000], pa.timestamp("ms", "Europe/Berlin")),
        pa.array([1_700_000_000_000_000_999], pa.timestamp("ns", "UTC")),
        pa.array([1_700_000_000_000_000_999], pa.timestamp("ns")),
    ],
)
def test_timestamps_of_tables(column):
    table = pa.table({"key": ["a"], "value": ["b"], "timestamp": column})
    assert micros(records(table)) == [1_700_000_000_000_000]


def test_whether_all_timestamps_were_given():
    """One that is filled in from the clock is not part of the caller's record."""
    rows = [{"key": "a", "value": "b", "timestamp": 1}, {"key": "a", "value": "b"}]
    assert to_records(rows[:1], now_us=NOW_US)[1]
    assert not to_records(rows, now_us=NOW_US)[1]
    assert not to_records(pa.table({"key": ["a"], "value": ["b"]}), now_us=NOW_US)[1]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_types_of_keys_and_values(kind):
    table = pa.table({"value": pa.array(["b", None], kind), "key": pa.array(["a", ""], kind)})
    assert records(table).column("key").to_pylist() == [b"a", b""]
    assert records(table).column("value").to_pylist() == [b"b", None]


def test_null_columns():
    table = pa.table({"key": ["a"], "value": pa.nulls(1), "headers": pa.nulls(1)})
    assert records(table).column("value").to_pylist() == [None]
    assert records(table).column("headers").to_pylist() == [None]


def test_no_rows():
    assert records([]).num_rows == 0
    assert records(pa.table({"key": pa.array([], pa.binary()), "value": pa.nulls(0)})).num_rows == 0


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"key": ["a"]}, r"columns \['value'\] are missing"),
        ({"key": ["a"], "value": ["b"], "topic": ["t"]}, r"unknown columns \['topic'\]"),
        ({"key": [1.5], "value": ["b"]}, "column key has type double; it must be binary or string"),
        ({"key": ["a"], "value": ["b"], "timestamp": ["now"]}, "column timestamp has type string"),
        ({"key": ["a"], "value": ["b"], "timestamp": [-1]}, "before 1970"),
        ({"key": ["a"], "value": ["b"], "timestamp": [2**62]}, "above"),
        (
            {"key": ["a"], "value": ["b"], "timestamp": pa.array([2**60], pa.timestamp("s"))},
            "above",
        ),
        ({"key": ["a"], "value": ["b"], "headers": [1]}, "column headers has type int64"),
    ],
)
def test_tables_that_are_no_records(columns, words):
    with pytest.raises(InvalidInputError, match=words):
        records(pa.table(columns))


def test_a_name_that_comes_twice():
    """Arrow allows it; which of the two is meant is unclear."""
    column = pa.array(["a"])
    with pytest.raises(InvalidInputError, match="are not unique"):
        records(pa.Table.from_arrays([column] * 3, names=["key", "value", "key"]))


def test_more_than_one_array_holds():
    """Records are one Arrow array for each column: beyond 2 GiB the error says to append parts.
    These bytes are zeros that nobody touches.
    """
    ends = pa.py_buffer(np.array([0, 3 << 30]))
    data = pa.py_buffer(np.zeros(3 << 30, np.uint8))
    large = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, data])
    with pytest.raises(InvalidInputError, match="value holds more than 2 GiB; append"):
        records(pa.table({"key": ["a"], "value": large}))


@pytest.mark.parametrize(
    ("record", "what"),
    [
        ({"key": "\ud800", "value": ""}, "a key"),
        ({"key": "k", "value": "ab\udfff"}, "a value"),
        ({"key": "k", "value": "", "headers": [("\ud800", b"")]}, "a header name"),
        ({"key": "k", "value": "", "headers": [("h", "\ud800")]}, "a header"),
    ],
)
def test_text_that_is_none(record, what):
    """Half a surrogate pair has no UTF-8: the error names the record, but not its contents."""
    with pytest.raises(InvalidInputError, match=f"record 1 has {what} that is not valid text"):
        records([{"key": "k", "value": "v"}, record])
