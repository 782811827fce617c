"""Columns of any type: a log's schema as Arrow's, parts of it, and data stored under an earlier one
(FORMAT.md §12).

Key and value are bytes, or have the types of the log's schema: those of `column_kinds`, and
structs, lists and maps of them. `schema_of` makes a schema of what a user gives. Layouts are not
part of it: large strings, views and dictionaries count as the values they hold. Types that Parquet
does not store as they are, are refused.

*Leaf*: a column of an object in Parquet, named by its path with dots (``value.price``). Only the
requested leaves of a struct are read; if none is requested, the cheapest one, which shows whether
the struct is null.

*Frame*: rows that are read on request, through Arrow's own interface: pandas, Polars, DuckDB and
everything else that accepts Arrow's streams accept one as it is.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import lru_cache
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clog.storage.column_kinds import (
    DECIMAL_DIGITS_MAX,
    in_spark,
    kind_named,
    numbers_in,
    stored_kind,
    widens,
    word_of,
)
from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError, MissingPackageError
from clog.storage.format.log_info import (
    DEPTH_MAX,
    FIRST_ID,
    KEY_ID,
    LIST,
    MAP,
    OWN_PREFIX,
    STRUCT,
    VALUE_ID,
    LogSchema,
    SchemaField,
    schema_problem,
)
from clog.storage.numpy_arrays import scalar, to_numpy, validity_of
from clog.storage.types.names import alike
from clog.storage.types.rows import TableColumns

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

OFFSET = "offset"
DELETE_HORIZON = "delete_horizon"
DELETED: Final = f"{OWN_PREFIX}_deleted"
"""A column of objects with table columns: which rows' values are null; absent if none is."""
RECORD_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field(
            "headers",
            pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
        ),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
    ]
)
"""A record of a log of bytes without an offset. A null value is a tombstone (S4); timestamps are
never null.
"""
REWRITTEN_SCHEMA = pa.schema(
    [*RECORD_SCHEMA, pa.field(OFFSET, pa.int64()), pa.field(DELETE_HORIZON, pa.int64())]
)
"""A record with its offset. ``delete_horizon``: ms since 1970, null if none is set (S23)."""
FIELD_ID: Final = b"PARQUET:field_id"
COLUMN_IDS: Final = {
    "key": KEY_ID,
    "value": VALUE_ID,
    "headers": 3,
    "timestamp": 7,
    "offset": 2147483540,
    "delete_horizon": 8,
}
"""Field ids of the columns that every log has. Part of the format."""
_HEADER_IDS: Final = (4, 5, 6)
BYTES: Final = pa.schema([("key", pa.binary()), ("value", pa.binary())])
"""The schema of a log that was created without one."""
SHOWN_ROWS: Final = 10
"""How many rows a notebook shows."""
Sizes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ColumnTypes:
    """The columns of a log's records: as they are appended and, with offsets, as rewritten; and
    these as they are ``stored``, with the names that fields have in objects.
    """

    records: pa.Schema
    rewritten: pa.Schema
    stored: pa.Schema

    @property
    def key(self) -> pa.DataType:
        return self.records.field("key").type

    @property
    def value(self) -> pa.DataType:
        return self.records.field("value").type


class Kind(Enum):
    """The columns that a log's objects have."""

    BYTES = auto()
    TYPED = auto()
    """Key and value have the types of a schema."""
    TABLE = auto()
    """The columns of key and value are the object's own (FORMAT.md §22)."""

    def own(self, name: str) -> str:
        """Returns the name in objects of a column of records other than key and value."""
        return f"{OWN_PREFIX}_{name}" if self is Kind.TABLE else name


@dataclass(frozen=True, slots=True)
class Layout:
    """How records lie in a log's objects: as the columns that they have. In logs with table columns
    it is `layout.TableLayout`.
    """

    schema: LogSchema | None

    @property
    def kind(self) -> Kind:
        return Kind.BYTES if self.schema is None else Kind.TYPED

    def path(self, leaf: str) -> str:
        """Returns the path in new objects of a column of records, or of a field of one."""
        return leaf

    @property
    def key_columns(self) -> list[str]:
        """The names of the key's columns in new objects."""
        return ["key"]

    def is_content(self, column: str) -> bool:
        """Returns whether a column of objects is, or is of, the key or the value."""
        return column in ("key", "value")

    def stored(self, records: pa.Schema, absent: Collection[str] = ()) -> pa.Schema:
        """Returns records' columns as new objects have them: with field ids, without absent ones
        (`DELETED` among them).
        """
        there = (with_ids(field) for field in records if field.name not in absent)
        return pa.schema([f.with_nullable(f.name not in ("timestamp", OFFSET)) for f in there])

    def flattened(self, records: pa.Table, names: Collection[str]) -> pa.Table:
        """Returns the columns of records that have these names in objects."""
        return records.select(names)

    def keys(self, rows: pa.Table) -> pa.Array:
        """Returns the keys of rows of an object, in one array."""
        return rows.column("key").combine_chunks()

    def records(self, rows: pa.Table) -> pa.Table:
        """Returns the rows of an object as records, with the fields that it has for them."""
        return rows

    def of(self, stored: pa.Schema) -> "ObjectColumns":
        """Returns the columns of an object."""
        return ObjectColumns(stored)


class ObjectColumns:
    """Where records are in the columns of one object; ``schema``: those that it has."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def path(self, leaf: str) -> str:
        """Returns the object's path of a column of records, or of a field of one."""
        return leaf

    def leaves(self, wanted: pa.Schema, named: pa.Schema) -> list[str]:
        """Returns the object's paths of what is read for these columns of records; ``named`` is
        `schema` with the names by which they are wanted.
        """
        there = [field for field in wanted if field.name in named.names]
        leaves = (
            leaves_of(self.schema.field(f.name), f.type, named.field(f.name).type) for f in there
        )
        return [self.path(leaf) for found in leaves for leaf in found]

    def nested(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns what was read of the object as columns of records.

        Raises:
            ValueError: a row has no key, or lacks a field that is never null.
        """
        return rows


@lru_cache(maxsize=64)
def layout_of(schema: LogSchema | None) -> Layout:
    """Returns how records lie in the objects of a log."""
    if schema is None or not schema.is_table:
        return Layout(schema)
    from clog.storage.types.layout import TableLayout  # It is made of what is here.

    return TableLayout(schema)


_OF_BYTES: Final = ColumnTypes(RECORD_SCHEMA, REWRITTEN_SCHEMA, REWRITTEN_SCHEMA)


@lru_cache(maxsize=64)
def column_types(schema: LogSchema | None) -> ColumnTypes:
    """Returns the types of a log's columns; for a typed log with the field ids of its schema."""
    if schema is None:
        return _OF_BYTES
    others = [with_ids(field) for field in REWRITTEN_SCHEMA if field.name not in ("key", "value")]
    fields = (schema.key, schema.value)
    rewritten = pa.schema([*map(_arrow_field, fields), *others])
    stored = rewritten
    if any(field.column is not None for one in fields for _, field in one.walk()):
        stored = pa.schema([*map(_arrow_field, map(_as_stored, fields)), *others])
    records = pa.schema([rewritten.field(name) for name in RECORD_SCHEMA.names])
    return ColumnTypes(records, rewritten, stored)


def _as_stored(field: SchemaField) -> SchemaField:
    inner = tuple(replace(_as_stored(one), name=one.stored_name) for one in field.fields)
    return replace(field, fields=inner)


def renamed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns a batch with the names of a schema, whose columns are the same but for these."""
    pairs = zip(batch.columns, schema, strict=True)
    arrays = [array if array.type == f.type else array.view(f.type) for array, f in pairs]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def arrow_schema(schema: LogSchema | None) -> pa.Schema:
    """Returns the schema as users see it: key and value, without field ids."""
    if schema is None:
        return BYTES
    return pa.schema([_arrow_field(field, with_ids=False) for field in (schema.key, schema.value)])


def rows_of(schema: LogSchema | None, key_columns: tuple[str, ...]) -> TableColumns | None:
    """Returns the plain columns of a log if its key columns have names."""
    return TableColumns.named(arrow_schema(schema), key_columns) if key_columns else None


def schema_of(given: Mapping[str, Any] | pa.Schema) -> LogSchema | None:
    """Returns the first schema of a log; None if it is that of a log of bytes."""
    try:
        fields = given if isinstance(given, pa.Schema) else pa.schema(list(given.items()))
    except (TypeError, AttributeError, ValueError, pa.ArrowException) as e:
        raise InvalidInputError(
            'a schema is {"key": type, "value": type} with types of pyarrow, or a pyarrow schema'
            f" of these two fields: {e}"
        ) from e
    if sorted(fields.names) != ["key", "value"]:
        raise InvalidInputError(f"the schema has the fields {fields.names}; required: key, value")
    ids = count(FIRST_ID)
    key, value = (
        schema_field(fields.field(name), lambda: next(ids), name, id_=own)
        for name, own in (("key", KEY_ID), ("value", VALUE_ID))
    )
    last_id = max(VALUE_ID, next(ids) - 1)
    schema = LogSchema(0, last_id, key, value)
    if (problem := schema_problem(schema)) is not None:
        raise InvalidInputError(f"the schema is not possible for a log: {problem}")
    return None if arrow_schema(schema) == BYTES else schema


def schema_field(
    field: pa.Field, new_id: Callable[[], int], path: str, *, id_: int | None = None
) -> SchemaField:
    """Returns an Arrow field as one of a log's schema; it and its inner fields get new ids."""
    if path.count(".") >= DEPTH_MAX:
        raise InvalidInputError(f"{path} is nested more than {DEPTH_MAX} deep")
    own = new_id() if id_ is None else id_
    kind = without_layout(field.type)
    required = not field.nullable
    inner: tuple[tuple[str, pa.Field], ...] = ()
    if pa.types.is_struct(kind):
        name, inner = STRUCT, tuple((f.name, f) for f in kind)
    elif pa.types.is_map(kind):
        name, inner = MAP, (("key", kind.key_field), ("value", kind.item_field))
    elif pa.types.is_list(kind):
        name, inner = LIST, (("element", kind.value_field),)
    elif (word := word_of(kind)) is not None:
        name = word
    else:
        raise InvalidInputError(
            f"{path} has type {kind}, which Parquet cannot store unchanged; {_instead(kind)}"
        )
    fields = tuple(schema_field(f.with_name(n), new_id, f"{path}.{n}") for n, f in inner)
    return SchemaField(field.name, own, name, required, fields)


def without_layout(kind: pa.DataType) -> pa.DataType:
    """Returns the plain type for a type that holds the same values in another layout."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return without_layout(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_large_list(kind) or types.is_list_view(kind) or types.is_large_list_view(kind):
        return pa.list_(kind.value_field)
    if types.is_timestamp(kind) and kind.tz is not None and kind.tz.upper() in ("UTC", "+00:00"):
        return pa.timestamp(kind.unit, "UTC")
    return kind


def _instead(kind: pa.DataType) -> str:
    if isinstance(kind, pa.BaseExtensionType):
        return f"use {kind.storage_type}, the type in which its values are stored"
    if pa.types.is_timestamp(kind):
        return "timestamps have the unit ms, us or ns, and no time zone or UTC"
    if pa.types.is_duration(kind):
        return "use int64"
    if pa.types.is_fixed_size_list(kind):
        return "use a list"
    if pa.types.is_time32(kind):
        return "use time32[ms]"
    if pa.types.is_date64(kind):
        return "use date32"
    return "choose another type"


def _arrow_field(field: SchemaField, *, with_ids: bool = True) -> pa.Field:
    metadata = {FIELD_ID: str(field.id).encode()} if with_ids else None
    return pa.field(field.name, arrow_type(field, with_ids=with_ids), not field.required, metadata)


def arrow_type(field: SchemaField, *, with_ids: bool = False) -> pa.DataType:
    """Returns the type of a field, with the ids of its inner fields if requested."""
    inner = [_arrow_field(f, with_ids=with_ids) for f in field.fields]
    if field.kind == STRUCT:
        return pa.struct(inner)
    if field.kind == LIST:
        return pa.list_(inner[0])
    if field.kind == MAP:
        return pa.map_(inner[0], inner[1])
    found = kind_named(field.kind)
    assert found is not None
    if not callable(found.arrow):
        return found.arrow
    numbers = numbers_in(field.kind)
    if len(numbers) == 2 and not numbers[1] <= numbers[0] <= DECIMAL_DIGITS_MAX:
        raise InvalidInputError(
            f"{field.kind} is not a valid decimal; it can have 1 to {DECIMAL_DIGITS_MAX} digits"
            " in all"
        )
    return found.arrow(*numbers)


def with_ids(field: pa.Field) -> pa.Field:
    """Returns a column with its ids: those that it has, otherwise those of the format's columns."""
    if id_of(field) is not None:
        return field
    if field.name == "headers":
        element, *pair = (str(i).encode() for i in _HEADER_IDS)
        inside = RECORD_SCHEMA.field("headers").type.value_type
        header = [f.with_metadata({FIELD_ID: i}) for f, i in zip(inside, pair, strict=True)]
        kind = pa.list_(pa.field("element", pa.struct(header), metadata={FIELD_ID: element}))
        field = field.with_type(kind)
    return field.with_metadata({FIELD_ID: str(COLUMN_IDS[field.name]).encode()})


def has_ids(field: pa.Field) -> bool:
    """Returns whether the field or an inner one has an id."""
    return id_of(field) is not None or any(map(has_ids, inner_fields(field.type)))


def id_of(field: pa.Field) -> bytes | None:
    """Returns the id of a field, in digits; None if it has none."""
    found: bytes | None = (field.metadata or {}).get(FIELD_ID)
    return found


def inner_fields(kind: pa.DataType) -> list[pa.Field]:
    """Returns the fields of a struct, a list or a map."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field.with_name("element")] if pa.types.is_list(kind) else []


def alike_fields(fields: Iterable[pa.Field], path: str = "") -> tuple[str, str] | None:
    """Returns the paths of the first two fields that engines which ignore case take for one."""
    fields = list(fields)
    for one, other in alike(field.name for field in fields):
        return f"{path}{one}", f"{path}{other}"
    inner = (alike_fields(inner_fields(field.type), f"{path}{field.name}.") for field in fields)
    return next(filter(None, inner), None)


def projected(schema: pa.Schema, columns: Iterable[str]) -> pa.Schema:
    """Returns the columns of a schema with these names. A path with dots selects a single field of
    a struct; in paths the elements of a list are ``element``, the values of a map ``value``.
    """
    tree: dict[str, Any] = {}
    for path in columns:
        node = tree
        *above, last = path.split(".")
        for name in above:
            below = node.setdefault(name, {})
            node = below if below is not None else {}  # The whole of it is already selected.
        node[last] = None
    return pa.schema([_projected(schema, name, inner, "") for name, inner in tree.items()])


def _projected(around: Any, name: str, inner: dict[str, Any] | None, above: str) -> pa.Field:
    path = f"{above}{name}"
    names = [field.name for field in around]
    if name not in names:
        raise InvalidInputError(
            f"there is no column {path!r}; {'the columns are' if not above else 'it has'}"
            f" {', '.join(names)}"
        )
    field = around.field(names.index(name))
    if inner is None:
        return field
    kind = field.type
    if pa.types.is_struct(kind):
        fields = [_projected(kind, n, i, f"{path}.") for n, i in inner.items()]
        return field.with_type(pa.struct(fields))
    if not is_listed(kind):
        raise InvalidInputError(f"column {path!r} is of type {kind} and has no fields")
    is_map = pa.types.is_map(kind)
    own = kind.item_field.with_name("value") if is_map else kind.value_field.with_name("element")
    held = [_projected(pa.struct([own]), n, i, f"{path}.") for n, i in inner.items()]
    return field.with_type(pa.map_(kind.key_field, held[0]) if is_map else pa.list_(held[0]))


@lru_cache(maxsize=256)
def leaves_of(
    stored: pa.Field, wanted: pa.DataType, named: pa.DataType | None = None
) -> tuple[str, ...]:
    """Returns the paths of the columns to read of a stored field, always the keys of a map;
    ``named``: its type with the names by which fields are wanted, if they are others.
    """
    kind, types = stored.type, pa.types
    named = kind if named is None else named
    if types.is_list(kind) and types.is_list(wanted):
        inner = kind.value_field.with_name("element")
        return _leaves_inside(stored, "list", inner, wanted.value_type, named.value_type)
    if types.is_map(kind) and types.is_map(wanted):
        inner = kind.item_field.with_name("value")
        found = _leaves_inside(stored, "key_value", inner, wanted.item_type, named.item_type)
        return found if found == (stored.name,) else (f"{stored.name}.key_value.key", *found)
    if not (types.is_struct(kind) and types.is_struct(wanted)):
        return (stored.name,)
    asked = {field.name: field.type for field in wanted}
    leaves = [
        f"{stored.name}.{leaf}"
        for field, own in zip(kind, named, strict=True)
        if own.name in asked
        for leaf in leaves_of(field, asked[own.name], own.type)
    ]
    return tuple(leaves) if leaves else (cheapest_leaf(stored),)


def _leaves_inside(
    stored: pa.Field, level: str, inner: pa.Field, wanted: pa.DataType, named: pa.DataType
) -> tuple[str, ...]:
    """Returns the leaves inside a list or map; ``level`` is Parquet's level between them."""
    found = leaves_of(inner, wanted, named)
    return (
        (stored.name,)
        if found == (inner.name,)
        else tuple(f"{stored.name}.{level}.{leaf}" for leaf in found)
    )


@lru_cache(maxsize=256)
def cheapest_leaf(field: pa.Field) -> str:
    """Returns the path that is cheapest to read of those that show where a field is null."""
    return _costs(field)[1]


def _costs(field: pa.Field) -> tuple[int, str]:
    kind = field.type
    if pa.types.is_struct(kind):
        cost, path = min(_costs(inner) for inner in kind)
        return cost, f"{field.name}.{path}"
    if is_listed(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 1 << 20, field.name
    return int(kind.bit_width), field.name


def lone_leaves(field: pa.Field) -> list[str]:
    """Returns the paths of those leaves of a field that are not in a list or map."""
    if pa.types.is_struct(field.type):
        return [f"{field.name}.{path}" for inner in field.type for path in lone_leaves(inner)]
    return [] if is_listed(field.type) else [field.name]


def lone_floats(schema: pa.Schema) -> list[str]:
    """Returns the paths of the floats that are not in a list or map."""
    leaves = (path for field in schema for path in lone_leaves(field))
    return [path for path in leaves if pa.types.is_floating(type_at(schema, path))]


def type_at(schema: pa.Schema, path: str) -> pa.DataType:
    """Returns the type of a column, or of a field of structs."""
    top, *below = path.split(".")
    kind = schema.field(top).type
    for name in below:
        kind = kind.field(name).type
    return kind


def as_type(array: pa.Array, kind: pa.DataType, named: pa.DataType | None = None) -> pa.Array:
    """Returns an array stored under an earlier schema as this type, which is of a later schema or
    part of it, or Spark's for it: missing fields become null, and fields that the type lacks are
    left out. ``named``: the array's type with the later schema's names, if they are others. Raises
    for any other type: values of a later schema may not fit an earlier one.
    """
    named = array.type if named is None else named
    if array.type == kind == named:
        return array
    if not _holds(kind, named):
        raise InvalidInputError(
            f"a column of type {named} cannot be read as {kind}, which cannot have all of its"
            " values: the schema evolved after this read was planned; read again"
        )
    return _as_type(array, kind, named)


def _as_type(array: pa.Array, kind: pa.DataType, named: pa.DataType) -> pa.Array:
    if array.type == kind == named:
        return array
    if pa.types.is_struct(kind):
        places = {field.name: i for i, field in enumerate(named)}
        fields = [
            _as_type(array.field(places[f.name]), f.type, named.field(places[f.name]).type)
            if f.name in places
            else settled(pa.nulls(len(array), f.type))  # A pass writes them.
            for f in kind
        ]
        return rebuilt_structs(array, kind, fields)
    if is_listed(kind):
        inner = _as_type(elements(array), entries_type(kind), entries_type(named))
        return rebuilt_lists(array, kind, inner)
    if pa.types.is_timestamp(kind):  # Only readers with a coarser unit get here.
        return pc.cast(array, options=pc.CastOptions(kind, allow_time_truncate=True))
    return array.cast(kind)


@lru_cache(maxsize=256)
def _holds(kind: pa.DataType, stored: pa.DataType) -> bool:
    """Returns whether a type has all values of a stored one, but for fields that it lacks."""
    types = pa.types
    if stored == kind:
        return True
    if types.is_struct(stored) and types.is_struct(kind):
        there = {field.name: field for field in stored}
        return all(_holds_field(field, there.get(field.name)) for field in kind)
    if types.is_map(stored) and types.is_map(kind):
        pairs = (kind.key_field, stored.key_field), (kind.item_field, stored.item_field)
        return all(_holds_field(*pair) for pair in pairs)
    if types.is_list(stored) and types.is_list(kind):
        return _holds_field(kind.value_field, stored.value_field)
    before, after = word_of(stored), word_of(kind)
    if before is None or after is None:
        return False
    return widens(before, after) or in_spark(before) == kind


def _holds_field(field: pa.Field, stored: pa.Field | None) -> bool:
    if stored is None:
        return bool(field.nullable)
    return bool(field.nullable >= stored.nullable) and _holds(field.type, stored.type)


def shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the columns of a batch in a schema that is perhaps a later one, with its fields."""
    arrays = [as_type(batch.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def value_sizes(values: pa.Array) -> Sizes:
    """Returns the bytes that each value counts, 0 for null; the same under every later schema."""
    kind = values.type
    types = pa.types
    if types.is_binary(kind) or types.is_string(kind):
        lengths = pc.binary_length(values)
        return to_numpy(pc.fill_null(lengths, scalar(0, lengths.type))).astype(np.int64)
    if types.is_struct(kind):
        sizes = np.zeros(len(values), np.int64)
        for field in values.flatten():
            sizes += value_sizes(field)
        return sizes
    if is_listed(kind):
        until = np.concatenate(([0], np.cumsum(value_sizes(elements(values)))))
        counts = list_lengths(values)
        ends = np.cumsum(counts)
        of_lists: Sizes = until[ends] - until[ends - counts]
        return of_lists
    return to_numpy(values.is_valid()) * np.int64(stored_kind(kind).size_of(kind) or 0)


def is_listed(kind: pa.DataType) -> bool:
    """Returns whether it is a list or a map, which is a list of pairs."""
    return bool(pa.types.is_list(kind) or pa.types.is_map(kind))


def entries_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type of the entries of a list or a map."""
    if pa.types.is_map(kind):
        return pa.struct([kind.key_field, kind.item_field])
    return kind.value_type


def elements(lists: pa.Array) -> pa.Array:
    """Returns the entries of lists or maps, one after the other, without those under nulls."""
    if pa.types.is_map(lists.type):
        buffers, at = lists.buffers()[:2], lists.offset
        kind, pairs = pa.list_(entries_type(lists.type)), [pairs_of(lists)]
        lists = pa.Array.from_buffers(kind, len(lists), buffers, offset=at, children=pairs)
    return lists.flatten()


def pairs_of(maps: pa.Array) -> pa.Array:
    """Returns the pairs that maps refer to, as structs."""
    fields = list(entries_type(maps.type))
    return pa.StructArray.from_arrays([maps.keys, maps.items], fields=fields)


def list_lengths(lists: pa.Array) -> Sizes:
    """Returns the number of elements of each list or map, 0 for null."""
    offsets = to_numpy(lists.offsets)
    lengths = np.diff(offsets).astype(np.int64)
    if lists.null_count:
        lengths[to_numpy(lists.is_null())] = 0
    return lengths


def rebuilt_lists(lists: pa.Array, kind: pa.DataType, flat: pa.Array) -> pa.Array:
    """Returns lists or maps of this type, with the lengths and nulls of ``lists``, of ``flat``."""
    offsets = np.concatenate(([0], np.cumsum(list_lengths(lists)))).astype(np.int32)
    return pa.Array.from_buffers(
        kind, len(lists), [validity_of(lists), pa.py_buffer(offsets)], children=[flat]
    )


def rebuilt_structs(structs: pa.Array, kind: pa.DataType, fields: Sequence[pa.Array]) -> pa.Array:
    """Returns structs of this type with these fields, null where ``structs`` are."""
    children = [pa.concat_arrays([f]) if f.offset else f for f in fields]
    return pa.Array.from_buffers(kind, len(structs), [validity_of(structs)], children=children)


def settled(array: pa.Array) -> pa.Array:
    """Returns the array with values in NOT NULL fields under nulls: Parquet's writer needs them."""
    kind = array.type
    if pa.types.is_struct(kind):
        fields = [
            settled(child) if field.nullable else without_nulls(settled(child))
            for field, child in ((kind.field(i), array.field(i)) for i in range(kind.num_fields))
        ]
        return rebuilt_structs(array, kind, fields)
    if is_listed(kind):
        return rebuilt_lists(array, kind, settled(elements(array)))
    return array


def without_nulls(array: pa.Array) -> pa.Array:
    """Returns the array without nulls, with the values that are stored under them."""
    if not array.null_count:
        return array
    kind, buffers = array.type, array.buffers()
    if pa.types.is_struct(kind):
        children = [array.field(i) for i in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, len(array), [None], children=children)
    if is_listed(kind):
        lists = rebuilt_lists(array, kind, elements(array))
        inner = lists.values if pa.types.is_list(kind) else pairs_of(lists)
        return pa.Array.from_buffers(kind, len(lists), [None, lists.buffers()[1]], children=[inner])
    own = [None, *buffers[1:]]
    return pa.Array.from_buffers(kind, len(array), own, offset=array.offset)


class Frame:
    """Rows that are read on request. pandas, Polars, DuckDB and everything else that accepts
    Arrow's streams accept one as it is.

    >>> from clog.storage import Log
    >>> log = Log.create("memory://help-of-frame", 1)
    >>> version = log.append([{"key": "a", "value": "1"}, {"key": "b", "value": "2"}]).version
    >>> log.read().to_arrow(columns=["offset"]).to_pydict()
    {'offset': [0, 1]}
    >>> log.table().to_pylist(columns=["key", "value"])
    [{'key': b'a', 'value': b'1'}, {'key': b'b', 'value': b'2'}]
    >>> log.table().to_pandas(columns=["key"])["key"].tolist()
    [b'a', b'b']
    >>> log.table().to_polars(columns=["offset"]).shape
    (2, 1)
    >>> log.table().to_duckdb().aggregate("count(*)").fetchall()
    [(2,)]
    >>> sum(batch.num_rows for batch in log.table().to_batches())
    2
    """

    @property
    def schema(self) -> pa.Schema:
        """The columns, and their types."""
        raise NotImplementedError

    def to_batches(self, *, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows as record batches, with all ``columns`` or these."""
        raise NotImplementedError

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Returns a capsule with the rows (Arrow's PyCapsule interface)."""
        reader = pa.RecordBatchReader.from_batches(self.schema, self.to_batches())
        return reader.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Returns a capsule with the schema."""
        return self.schema.__arrow_c_schema__()

    def __getitem__(self, column: str) -> pa.ChunkedArray:
        """Returns one column, in memory, and reads no other."""
        if not isinstance(column, str):
            raise TypeError(f"column names must be text, but {column!r} is not")
        return self.to_arrow(columns=[column]).column(0)

    def to_arrow(self, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns all rows, with all ``columns`` or these, in memory."""
        batches = list(self.to_batches(columns=columns))
        return pa.Table.from_batches(batches, self._schema_of(columns))

    def to_pylist(self, *, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Returns the rows as dicts, with all ``columns`` or these."""
        rows: list[dict[str, Any]] = self.to_arrow(columns=columns).to_pylist()
        return rows

    def to_pandas(self, *, columns: Sequence[str] | None = None) -> "pd.DataFrame":
        """Returns a ``pandas.DataFrame`` with all ``columns`` or these; needs pandas."""
        package("pandas", f"{type(self).__name__}.to_pandas()")
        frame: pd.DataFrame = self.to_arrow(columns=columns).to_pandas()
        return frame

    def to_polars(self, *, columns: Sequence[str] | None = None) -> "pl.DataFrame":
        """Returns a ``polars.DataFrame`` with all ``columns`` or these; needs polars."""
        polars = package("polars", f"{type(self).__name__}.to_polars()")
        check_held(self._schema_of(columns), "Polars")
        frame: pl.DataFrame = polars.from_arrow(self.to_arrow(columns=columns))
        return frame

    def to_duckdb(
        self, *, columns: Sequence[str] | None = None, connection: Any = None
    ) -> "duckdb.DuckDBPyRelation":
        """Returns a ``duckdb.DuckDBPyRelation`` with all ``columns`` or these, in DuckDB's default
        connection unless another ``connection`` is given; each of several threads must give one.
        Needs duckdb.
        """
        method = f"{type(self).__name__}.to_duckdb()"
        if both := alike_fields(self._schema_of(columns)):
            raise InvalidInputError(
                f"DuckDB ignores case, and would show one of the columns {both[0]!r} and"
                f" {both[1]!r} twice; read them one at a time (columns=), or rename one (to_arrow)"
            )
        engine = package("duckdb", method) if connection is None else connection
        check_held(self._schema_of(columns), "DuckDB")
        relation: duckdb.DuckDBPyRelation = engine.from_arrow(self.to_arrow(columns=columns))
        return relation

    def _schema_of(self, columns: Sequence[str] | None) -> pa.Schema:
        """Returns the schema of these columns."""
        raise NotImplementedError


class Records(Frame):
    """The records of a range of offsets, as `Log.read` returns them: an iterator over record
    batches, each of which is read once, when it is requested.

    >>> from clog.storage import Log
    >>> log = Log.create("memory://help-of-records", 1)
    >>> version = log.append([{"key": "a", "value": "1"}]).version
    >>> records = log.read()
    >>> records.schema.names
    ['partition', 'offset', 'timestamp', 'key', 'value', 'headers']
    >>> next(records).num_rows
    1
    >>> records.close()  # nothing more is fetched
    """

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], about: str) -> None:
        self._schema = schema
        self._batches = batches
        self._about = about

    def __repr__(self) -> str:
        return f"Records({self._about})"

    @property
    def schema(self) -> pa.Schema:
        """The columns, and their types."""
        return self._schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def close(self) -> None:
        """Ends reading; nothing more is yielded."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def to_batches(self, *, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows that have not been read yet, with all ``columns`` or these."""
        if columns is None:
            return self
        schema = self._schema_of(columns)
        return (shaped(batch, schema) for batch in self)

    def _schema_of(self, columns: Sequence[str] | None) -> pa.Schema:
        return self._schema if columns is None else projected(self._schema, columns)


def html(frame: pa.Table, title: str, more: str = "") -> str:
    """Returns the first rows as a table for notebooks."""
    from html import escape  # Only notebooks need it.

    head = "".join(f"<th>{escape(name)}</th>" for name in frame.schema.names)
    rows = frame.slice(0, SHOWN_ROWS).to_pylist()
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(value))}</td>" for value in row.values()) + "</tr>"
        for row in rows
    )
    return (
        f"<div><strong>{escape(title)}</strong><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>{escape(more)}</div>"
    )


def _cell(value: object) -> str:
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    text = "" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


_LACKS = {
    "Polars": (pa.types.is_decimal256,),
    "DuckDB": (pa.types.is_decimal256, pa.types.is_float16),
}
"""The types of a log that an engine does not have; it would raise, or panic, without a name."""


def check_held(schema: pa.Schema, engine: str) -> None:
    """Raises if an engine has no such type as a column, or a field of one."""

    def check(field: pa.Field, path: str) -> None:
        if any(is_lacking(field.type) for is_lacking in _LACKS[engine]):
            raise InvalidInputError(
                f"column {path} has type {field.type}, which {engine} does not have; leave it out"
                " with columns=, or use to_arrow() or to_pandas()"
            )
        for inner in inner_fields(field.type):
            check(inner, f"{path}.{inner.name}")

    for field in schema:
        check(field, field.name)


def package(name: str, method: str) -> Any:
    """Returns a Python package that a method needs; the error says what to install."""
    try:
        return import_module(name)
    except ModuleNotFoundError as e:
        if e.name != name:
            raise  # It is installed, but lacks something itself.
        raise MissingPackageError(
            f"{method} needs {name}, which is not installed; run pip install {name}", name=name
        ) from e
