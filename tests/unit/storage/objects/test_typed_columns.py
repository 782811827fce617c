"""Sizes, leaves and reading as another type."""

import pyarrow as pa
import pytest

from clog.storage.errors import InvalidInputError
from clog.storage.types.columns import (
    as_type,
    cheapest_leaf,
    leaves_of,
    projected,
    settled,
    value_sizes,
)
from clog.storage.types.stored import can_read

INNER = pa.struct([("c", pa.string()), ("d", pa.int64())])
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.struct([("a", pa.string()), ("b", INNER), ("i", pa.int8())])),
    ]
)
LISTS = pa.list_(pa.struct([("q", pa.int32()), ("s", pa.string())]))
MAPS = pa.map_(pa.string(), pa.int16())


@pytest.mark.parametrize(
    ("values", "kind", "sizes"),
    [
        (["", "é", None], pa.string(), [0, 2, 0]),
        ([b"ab", None], pa.binary(2), [2, 0]),
        ([1, None], pa.int8(), [8, 0]),
        ([1, None], pa.int64(), [8, 0]),
        ([1.5], pa.float32(), [8]),
        ([True], pa.bool_(), [8]),
        ([None, 1], pa.decimal128(4, 1), [0, 16]),
        ([{"c": "xy", "d": 1}, {"c": None, "d": None}, None], INNER, [10, 0, 0]),
        ([[{"q": 1, "s": "abc"}, None], None, [], [{"q": None, "s": "z"}]], LISTS, [11, 0, 0, 1]),
        ([{"a": 1}.items(), None, {"bc": None, "d": 2}.items()], MAPS, [9, 0, 11]),
    ],
)
def test_what_values_count(values, kind, sizes):
    """FORMAT.md §12.2: the same in a slice, and under a wider type."""
    array = pa.array([list(v) if hasattr(v, "mapping") else v for v in values], kind)
    assert value_sizes(array).tolist() == sizes
    assert value_sizes(array.slice(1)).tolist() == sizes[1:]
    assert value_sizes(array.slice(len(array))).tolist() == []


def test_an_earlier_types_values_are_read_as_a_later_one():
    """S61: wider numbers, missing fields null, also in lists and maps, whatever the slice."""
    early = pa.struct([("n", pa.int32()), ("l", LISTS), ("m", MAPS)])
    late_lists = pa.list_(pa.struct([("q", pa.int64()), ("s", pa.string()), ("z", pa.bool_())]))
    late = pa.struct(
        [
            *(("n", pa.int64()), ("l", late_lists)),
            *(("m", pa.map_(pa.string(), pa.int64())), ("x", INNER)),
        ]
    )
    rows = [
        {"n": 1, "l": [{"q": 2, "s": "a"}, None], "m": [("k", 3)]},
        None,
        {"n": None, "l": None, "m": None},
        {"n": 4, "l": [], "m": []},
    ]
    read = [
        {"n": 1, "l": [{"q": 2, "s": "a", "z": None}, None], "m": [("k", 3)], "x": None},
        None,
        {"n": None, "l": None, "m": None, "x": None},
        {"n": 4, "l": [], "m": [], "x": None},
    ]
    assert can_read(early, late)
    assert not can_read(late, early)
    for start in range(len(rows)):
        found = as_type(pa.array(rows, early).slice(start), late)
        found.validate(full=True)
        assert found.type == late
        assert found.to_pylist() == read[start:]


@pytest.mark.parametrize(
    ("stored", "kind", "readable"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int64(), pa.int32(), False),
        (pa.uint8(), pa.int64(), False),
        (pa.float32(), pa.float64(), True),
        (pa.int32(), pa.float64(), False),
        (pa.string(), pa.binary(), False),
        (pa.decimal128(4, 2), pa.decimal128(9, 2), True),
        (pa.decimal128(4, 2), pa.decimal128(9, 3), False),
        (pa.timestamp("ms"), pa.timestamp("us"), False),
        (pa.list_(pa.int8()), pa.list_(pa.int16()), True),
        (pa.list_(pa.int8()), MAPS, False),
        (INNER, pa.string(), False),
        (pa.struct([pa.field("c", pa.string(), nullable=False)]), INNER, True),
        (pa.struct([("c", pa.string())]), pa.struct([pa.field("c", pa.string(), False)]), False),
        (pa.struct([("old", pa.string())]), INNER, False),
        (INNER, pa.struct([*INNER, pa.field("r", pa.int8(), nullable=False)]), False),
    ],
)
def test_only_what_evolution_makes_is_read(stored, kind, readable):
    """FORMAT.md §12.4: anything else is damage."""
    assert can_read(stored, kind) is readable


def test_columns_are_named_by_paths():
    """A struct has only the fields that are named; all of it where it is named itself."""
    found = projected(SCHEMA, ["value.b.c", "key", "value.i"])
    assert found.names == ["value", "key"]
    inner = pa.struct([("c", pa.string())])
    assert found.field("value").type == pa.struct([("b", inner), ("i", pa.int8())])
    for both in (["value", "value.i"], ["value.i", "value"]):
        assert projected(SCHEMA, both).field("value") == SCHEMA.field("value")


@pytest.mark.parametrize("path", ["x", "value.x", "value.b.x", "key.x", "value.a.x", ""])
def test_a_path_that_names_nothing_is_refused(path):
    with pytest.raises(InvalidInputError, match=r"no column|no fields"):
        projected(SCHEMA, [path])


def test_the_cheapest_leaf_tells_where_a_struct_is_null():
    """What is not stored yet needs no more than that."""
    value = SCHEMA.field("value")
    assert cheapest_leaf(value) == "value.i"
    assert leaves_of(value, projected(SCHEMA, ["value.b.c"]).field("value").type) == ("value.b.c",)
    assert leaves_of(value, pa.struct([("new", pa.int8())])) == ("value.i",)
    new_inside = pa.struct([("b", pa.struct([("new", pa.int8())]))])
    assert leaves_of(value, new_inside) == ("value.b.d",)
    assert leaves_of(SCHEMA.field("key"), pa.string()) == ("key",)


def test_what_is_not_null_has_values_under_nulls():
    """Parquet's writer counts those as missing."""
    required = pa.struct(
        [
            pa.field("n", pa.int32(), nullable=False),
            pa.field("i", INNER, nullable=False),
            pa.field("l", LISTS, nullable=False),
            pa.field("m", MAPS, nullable=False),
            pa.field("s", pa.string(), nullable=False),
        ]
    )
    full = {"n": 1, "i": {"c": "x", "d": 2}, "l": [{"q": 1, "s": "y"}], "m": [("a", 1)], "s": "z"}
    array = pa.array([None, full, None], required)
    for part in (array, array.slice(1), pa.array([[full], None, [None]], pa.list_(required))):
        found = settled(part)
        assert found.to_pylist() == part.to_pylist()
        found.validate(full=True)
    assert [child.null_count for child in (settled(array).field(i) for i in range(5))] == [0] * 5
