"""Two tables that should be equal are compared; what is wrong is found and named."""

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.bridge.capturing.comparing import common, compared, keys_of

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("a", pa.string()),
        ("n", pa.decimal128(9, 2)),
        ("f", pa.float64()),
        ("l", pa.list_(pa.list_(pa.int32()))),
        ("t", pa.timestamp("us", "UTC")),
    ]
)
ROW = {
    "id": 1,
    "a": "x",
    "n": 1,
    "f": 0.5,
    "l": [[1, None], []],
    "t": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
}


def rows(values, *, at_once=2):
    """Returns a source of rows."""

    def hand(take):
        for i in range(0, len(values), at_once):
            part = values[i : i + at_once]
            take(pa.RecordBatch.from_pylist(part, schema=COLUMNS))

    return hand


def found(source, log, changed=(), **how):
    return compared(COLUMNS, ["id"], rows(source), rows(log, **how), changed)


def test_equal_tables_are_equal():
    """Order and batches do not matter."""
    table = [{**ROW, "id": i, "a": None if i % 3 else str(i)} for i in range(9)]
    assert found(table, table[::-1], at_once=5) == (9, 9, 0, ())


@pytest.mark.parametrize(
    "other",
    [
        {"a": "y"},
        {"a": ""},
        {"a": None},
        {"n": 2},
        {"f": 0.25},
        {"f": None},
        {"l": [[1], [None]]},
        {"l": [[None, 1], []]},
        {"l": [[1, None]]},
        {"l": []},
        {"l": None},
        {"t": dt.datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)},
    ],
)
def test_a_value_that_differs_is_named(other):
    """The key and the columns are named, but no value."""
    table = [{**ROW, "id": i} for i in range(5)]
    *_, ranges, differences = found(table, [*table[:3], {**table[3], **other}, table[4]])
    assert ranges == 1
    (difference,) = differences
    assert (difference.key, difference.why) == ("id=3", f"{next(iter(other))} differs")


def test_rows_of_one_side_are_named():
    """A row that only one side has is named with its side."""
    table = [{**ROW, "id": i} for i in range(5)]
    numbers = found(table[:3], [*table[1:3], table[4]])
    told = {(d.key, d.why) for d in numbers[3]}
    assert numbers[:3] == (3, 3, 2)
    assert told == {("id=0", "only the source has it"), ("id=4", "only the log has it")}


def test_what_changed_meanwhile_is_left_out():
    """Keys that change while both are read are on neither side."""
    table = [{**ROW, "id": i} for i in range(5)]
    one = pa.RecordBatch.from_pylist(table[1:2], schema=COLUMNS)
    changed = set(keys_of(one, ["id"]).to_pylist())
    assert found(table, [table[0], {**table[1], "a": "new"}, *table[2:]], changed) == (4, 4, 0, ())


def test_many_differences_are_counted_and_the_first_named():
    """Ten rows are named, however many differ."""
    table = [{**ROW, "id": i} for i in range(300)]
    one, other, ranges, differences = found(table, [])
    assert (one, other, len(differences)) == (300, 0, 10)
    assert 290 <= ranges <= 300


VALUES = st.dictionaries(st.integers(0, 30), st.none() | st.sampled_from("abc"), max_size=20)


@given(VALUES, VALUES)
def test_any_two_tables(one, other):
    """Tables are equal where a dictionary of theirs is."""
    sides = [[{**ROW, "id": k, "a": v} for k, v in d.items()] for d in (one, other)]
    *_, ranges, differences = found(*sides)
    assert (ranges == 0) == (one == other) == (not differences)
    wrong = {k for k in one.keys() | other.keys() if one.get(k, "") != other.get(k, "")}
    assert {d.key for d in differences} <= {f"id={k}" for k in wrong}
    assert len(differences) == min(10, len(wrong))


def test_keys_of_several_columns_are_named():
    """A key of several columns is shown with all of them; bytes as digits."""
    columns = pa.schema([("k", pa.binary()), ("l", pa.string()), ("v", pa.int32())])
    batch = pa.RecordBatch.from_pylist([{"k": b"\xff", "l": "de", "v": 1}], schema=columns)
    *_, differences = compared(columns, ["k", "l"], lambda take: take(batch), lambda take: 0, ())
    assert differences[0].key == "k=\\xff, l=de"


def test_columns_that_cannot_be_compared_are_told():
    """A log may have wider numbers; another type, and a column that is not there, are wrong."""
    source = pa.schema([("a", pa.int32()), ("b", pa.int32()), ("c", pa.int32()), ("d", "utf8")])
    log = pa.schema([("d", "utf8"), ("a", pa.int64()), ("b", "utf8"), ("e", pa.int32())])
    columns, others = common(source, log)
    assert columns == pa.schema([("a", pa.int64()), ("d", "utf8")])
    assert [one.why for one in others] == [
        "column b is string in the log, but int32 in the database",
        "the log has no column c",
    ]
