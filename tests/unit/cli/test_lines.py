"""Lines to records and back."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.cli.lines import format_jsonl, format_text, parse_jsonl, parse_text
from clog.storage import InvalidInputError
from clog.storage.read.scan import READ_SCHEMA

MAX_US = 253_402_300_799_999_999  # the last microsecond of the year 9999

binary = st.none() | st.binary(max_size=6) | st.text(max_size=6).map(str.encode)
header = st.fixed_dictionaries({"key": st.text(max_size=3), "value": binary})
records = st.lists(
    st.fixed_dictionaries(
        {
            "partition": st.integers(0, 3),
            "offset": st.integers(0, 1 << 60),
            "timestamp": st.integers(0, MAX_US),
            "key": binary,
            "value": binary,
            "headers": st.none() | st.lists(header, min_size=1, max_size=2),
        }
    ),
    min_size=1,
    max_size=5,
)


def batch(rows):
    return pa.RecordBatch.from_pylist(rows, schema=READ_SCHEMA)


def row(**changes):
    plain = {"partition": 0, "offset": 7, "timestamp": 1_500_001, "key": b"k", "value": b"v"}
    return plain | {"headers": None} | changes


@given(records)
def test_json_lines_lose_nothing(rows):
    """Any record is restored: null and empty (S4), bytes that are not text, headers,
    microseconds.
    """
    lines = [line.rstrip(b"\n") for line in format_jsonl(batch(rows))]
    assert all(b"\n" not in line for line in lines)
    parsed = parse_jsonl(lines, first=1)
    assert parsed.keys == [r["key"] for r in rows]
    assert parsed.values == [r["value"] for r in rows]
    assert parsed.headers == [r["headers"] for r in rows]
    assert parsed.timestamps_us == [r["timestamp"] for r in rows]
    assert parsed.partitions == [r["partition"] for r in rows]


def test_a_json_line_reads_well():
    """Text is text, bytes that are not text are base64, absent headers are absent."""
    (line,) = format_jsonl(batch([row(value=b"\xff", headers=[{"key": "h", "value": None}])]))
    assert json.loads(line) == {
        "partition": 0,
        "offset": 7,
        "timestamp": "1970-01-01T00:00:01.500001Z",
        "key": "k",
        "value_b64": "/w==",
        "headers": [{"key": "h", "value": None}],
    }
    assert b"headers" not in next(format_jsonl(batch([row()])))


def test_a_timestamp_beyond_the_calendar_is_a_number():
    """ISO 8601 ends with the year 9999; epoch milliseconds continue."""
    (line,) = format_jsonl(batch([row(timestamp=MAX_US + 1)]))
    assert json.loads(line)["timestamp"] == (MAX_US + 1) // 1000


@given(st.lists(st.tuples(st.binary(min_size=1), st.none() | st.binary()), min_size=1))
def test_text_lines_come_back_where_text_can_say_it(pairs):
    """Without TAB in keys and line feeds, key, value and tombstone can be told apart (S4)."""
    pairs = [
        (key.replace(b"\t", b"_").replace(b"\n", b"_"), value and value.replace(b"\n", b"_"))
        for key, value in pairs
    ]
    rows = [row(key=key, value=value) for key, value in pairs]
    lines = [line.removesuffix(b"\n") for line in format_text(batch(rows))]
    parsed = parse_text(lines)
    assert list(zip(parsed.keys, parsed.values, strict=True)) == pairs


def test_an_empty_value_is_no_tombstone():
    """A key and a TAB is an empty value, a key alone a tombstone (S4); further TABs belong to the
    value.
    """
    parsed = parse_text([b"a\t", b"a", b"a\tb\tc", b"\tv"])
    assert parsed.values == [b"", None, b"b\tc", b"v"]
    assert parsed.keys == [b"a", b"a", b"a", b""]


def test_a_null_marker_says_null_on_both_sides():
    """Keys and values that equal it are null, and null is written as it."""
    parsed = parse_text([b"NULL\tv", b"k\tNULL", b"k\tNULLS"], null_marker=b"NULL")
    assert parsed.keys == [None, b"k", b"k"]
    assert parsed.values == [b"v", None, b"NULLS"]
    lines = format_text(batch([row(key=None), row(value=None)]), null_marker=b"NULL")
    assert list(lines) == [b"NULL\tv\n", b"k\tNULL\n"]


def test_text_has_more_columns_when_asked():
    """In any order; a null value at the end of a line is left out with its TAB."""
    headers = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    fields = ("partition", "offset", "timestamp", "headers", "key", "value")
    (line,) = format_text(batch([row(headers=headers)]), fields)
    assert line == b"0\t7\t1970-01-01T00:00:01.500001Z\ta=1,b=\tk\tv\n"
    rows = [row(), row(value=None)]
    assert [*format_text(batch(rows), ("value", "offset"))] == [b"v\t7\n", b"\t7\n"]
    assert [*format_text(batch(rows), ("offset", "value"))] == [b"7\tv\n", b"7\n"]
    assert [*format_text(batch(rows), ("value",))] == [b"v\n", b"\n"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "it is not JSON"),
        (b"[1]", "it is not a JSON object"),
        (b'{"key": "k"}', "give either value or value_b64"),
        (b'{"key": "k", "key_b64": "aw==", "value": null}', "give either key or key_b64"),
        (b'{"key": 1, "value": null}', "key is not a string or null"),
        (b'{"key_b64": "?", "value": null}', "key_b64 is not base64"),
        (b'{"key_b64": null, "value": null}', "key_b64 is not base64"),
        (b'{"key": "k", "value": null, "valeu": 1}', "unknown fields ['valeu']"),
        (b'{"key": "k", "value": null, "partition": "0"}', "partition is not an integer"),
        (b'{"key": "k", "value": null, "timestamp": 1.5}', "timestamp is neither"),
        (b'{"key": "k", "value": null, "timestamp": "noon"}', "noon"),
        (b'{"key": "k", "value": null, "headers": {"a": "b"}}', "headers is not a list"),
        (b'{"key": "k", "value": null, "headers": [{"key": "a"}]}', "give either value"),
        (b'{"key": "\\ud800", "value": null}', "surrogates not allowed"),
        (b'{"key": "k", "value": null, "timestamp": 9223372036854776}', "is above 92233720368547"),
        (b'{"key": "k", "value": null, "timestamp": -%d}' % 10**16, "is before 1970"),
        (b'{"key": "k", "value": "", "headers": [{"key": "\\ud800", "value": ""}]}', "surrogates"),
        (b'{"key": ' + b"[" * 100_000, "nested too deeply"),
        (b"\xff", "can't decode"),
    ],
)
def test_a_wrong_json_line_is_named_by_its_number(line, why):
    """The error says which record and why."""
    good = b'{"key": "k", "value": null}'
    with pytest.raises(InvalidInputError, match="record 12 of the input") as caught:
        parse_jsonl([good, good, line], first=10)
    assert why in str(caught.value)


def test_times_may_be_numbers_or_iso():
    """Epoch milliseconds; ISO 8601 with a zone; without one it is UTC; null is none."""
    lines = [
        b'{"key": "k", "value": "v", "timestamp": %s}' % timestamp
        for timestamp in (b"1500", b'"1970-01-01T01:00:01.5+01:00"', b'"1970-01-01T00:00:01.5"')
    ]
    parsed = parse_jsonl([*lines, b'{"key": "k", "value": "v", "timestamp": null}'], first=1)
    assert parsed.timestamps_us == [1_500_000, 1_500_000, 1_500_000, None]


def test_columns_that_nobody_gave_are_null():
    """The log fills timestamps in where there are none, and null headers cost nothing."""
    table = parse_text([b"a\tb"]).to_arrow()
    assert table.to_pylist() == [{"key": b"a", "value": b"b", "headers": None, "timestamp": None}]
    full = parse_jsonl(
        [b'{"key":"a","value":"b","timestamp":1,"headers":[{"key":"h","value":"w"}]}'], first=1
    )
    assert full.to_arrow().to_pylist()[0]["headers"] == [{"key": "h", "value": b"w"}]
