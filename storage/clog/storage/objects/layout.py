"""Data objects as values, and their columns of any type (FORMAT.md §5, §12.1).

A *data object* is one immutable Parquet file. Its rows are ordered by partition; the rows of one
partition in it are a *chunk*. A fresh object is *dense*: it has no offsets, they are given at
commit as base of the chunk + row number. A *rewritten* one holds records that have their offsets;
it has an ``offset`` column unless they run without gap.

*Leaf*: a column of an object as Parquet has it, named by its path with dots (``value.price``). Of a
struct only those leaves are read that are asked for; where none is, the cheapest, which tells
whether the struct is null.

Key and value have Arrow's types of bytes, or those of the log's schema. `schema_of` makes a schema
of what a user gives. Layouts are none of it: large strings, views and dictionaries are what they
hold. What Parquet does not store as it is, is refused.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clog.storage.errors import InvalidInputError
from clog.storage.format.chunks import Chunk, ObjectRef
from clog.storage.format.codec import NONE
from clog.storage.format.log_info import (
    DECIMAL_DIGITS_MAX,
    DEPTH_MAX,
    FIRST_ID,
    KEY_ID,
    LIST,
    MAP,
    STRUCT,
    VALUE_ID,
    LogSchema,
    SchemaField,
    schema_problem,
)
from clog.storage.keys.hashing import key_bytes
from clog.storage.numpy_arrays import scalar, to_numpy, validity_of

NUMBER_BYTES: Final = 8
"""What a number, truth value, date or time counts, whatever its width. Part of the format."""
DECIMAL_BYTES: Final = 16

Sizes = NDArray[np.int64]


def value_sizes(values: pa.Array) -> Sizes:
    """Returns the bytes that each value counts, 0 for null: as many under every later schema."""
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
    each = NUMBER_BYTES
    if types.is_fixed_size_binary(kind):
        each = kind.byte_width
    elif types.is_decimal(kind):
        each = DECIMAL_BYTES
    if not values.null_count:
        return np.full(len(values), each, np.int64)
    return to_numpy(values.is_valid()) * np.int64(each)


def leaf_sizes(field: pa.Field, level: int = 0) -> Iterator[tuple[int | None, int]]:
    """Yields, for each leaf of a field below the definition level, what `value_sizes` counts for a
    value that is there, None: its bytes, and its own definition level.
    """
    kind, types = field.type, pa.types
    level += field.nullable
    if types.is_struct(kind):
        for inner in kind:
            yield from leaf_sizes(inner, level)
    elif types.is_map(kind):
        yield from leaf_sizes(kind.key_field, level + 1)
        yield from leaf_sizes(kind.item_field, level + 1)
    elif types.is_list(kind):
        yield from leaf_sizes(kind.value_field, level + 1)
    elif types.is_binary(kind) or types.is_string(kind):
        yield None, level
    elif types.is_fixed_size_binary(kind):
        yield kind.byte_width, level
    else:
        yield DECIMAL_BYTES if types.is_decimal(kind) else NUMBER_BYTES, level


def is_listed(kind: pa.DataType) -> bool:
    """Tells whether it is a list or a map, which is a list of pairs."""
    return bool(pa.types.is_list(kind) or pa.types.is_map(kind))


def elements(lists: pa.Array) -> pa.Array:
    """Returns what is in lists, or the pairs of maps, one after the other; not what lies under
    nulls.
    """
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


def of_list_views(views: pa.Array) -> pa.Array:
    """Returns views of lists as lists: Arrow's cast takes slices of them for what they are not."""
    kind = pa.list_(views.type.value_field)
    lengths = pc.fill_null(pc.list_value_length(views), 0)
    offsets = np.concatenate(([0], np.cumsum(to_numpy(lengths)))).astype(np.int32)
    own = [validity_of(views), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(views), own, children=[views.flatten()])


def rebuilt_lists(lists: pa.Array, kind: pa.DataType, flat: pa.Array) -> pa.Array:
    """Returns lists, or maps, of this type, as long and null as those given; ``flat`` is what is in
    them.
    """
    offsets = np.concatenate(([0], np.cumsum(list_lengths(lists)))).astype(np.int32)
    return pa.Array.from_buffers(
        kind, len(lists), [validity_of(lists), pa.py_buffer(offsets)], children=[flat]
    )


def rebuilt_structs(structs: pa.Array, kind: pa.DataType, fields: Sequence[pa.Array]) -> pa.Array:
    """Returns structs of this type with these fields, null where those given are."""
    children = [pa.concat_arrays([f]) if f.offset else f for f in fields]
    return pa.Array.from_buffers(kind, len(structs), [validity_of(structs)], children=children)


def settled(array: pa.Array) -> pa.Array:
    """Returns the array with values, any, for what is NOT NULL and lies under a null: Parquet's
    writer looks at it.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        fields = [
            settled(child) if field.nullable else _there(settled(child))
            for field, child in ((kind.field(i), array.field(i)) for i in range(kind.num_fields))
        ]
        return rebuilt_structs(array, kind, fields)
    if is_listed(kind):
        return rebuilt_lists(array, kind, settled(elements(array)))
    return array


def _there(array: pa.Array) -> pa.Array:
    """Returns the array without nulls: what lies where they were."""
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


def entries_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type of what is in a list or a map."""
    if pa.types.is_map(kind):
        return pa.struct([kind.key_field, kind.item_field])
    return kind.value_type


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns what was stored under an earlier schema as this type of a later one, or as the part
    of it that is wanted: fields that are missing are null, others are left out.

    Raises:
        pa.ArrowInvalid: a number that does not fit.
    """
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        places = {field.name: i for i, field in enumerate(array.type)}
        fields = [
            as_type(array.field(places[field.name]), field.type)
            if field.name in places
            else settled(pa.nulls(len(array), field.type))  # To be written by a pass.
            for field in kind
        ]
        return rebuilt_structs(array, kind, fields)
    if is_listed(kind):
        return rebuilt_lists(array, kind, as_type(elements(array), entries_type(kind)))
    if pa.types.is_timestamp(kind):  # Only a reader with a coarser unit asks for another.
        return pc.cast(array, options=pc.CastOptions(kind, allow_time_truncate=True))
    return array.cast(kind)


def shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns these columns of a batch, of structs the fields that the schema has; those of an
    earlier one as they are under a later one.
    """
    arrays = [as_type(batch.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def can_read(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Tells whether what has the stored type can be read as the other: as the same, or a later
    schema's.
    """
    if stored == kind:
        return True
    types = pa.types
    if types.is_struct(stored) and types.is_struct(kind):
        later = {field.name: field for field in kind}
        missing = later.keys() - {field.name for field in stored}
        return all(later[name].nullable for name in missing) and all(
            field.name in later
            and later[field.name].nullable >= field.nullable
            and can_read(field.type, later[field.name].type)
            for field in stored
        )
    if (types.is_list(stored) and types.is_list(kind)) or (
        types.is_map(stored) and types.is_map(kind)
    ):
        return can_read(entries_type(stored), entries_type(kind))
    if types.is_decimal(stored) and types.is_decimal(kind):
        return bool(stored.scale == kind.scale and stored.precision < kind.precision)
    numeric = (types.is_signed_integer, types.is_unsigned_integer, types.is_floating)
    same = any(test(stored) and test(kind) for test in numeric)
    return same and bool(stored.bit_width < kind.bit_width)


@lru_cache(maxsize=256)
def leaves_of(stored: pa.Field, wanted: pa.DataType) -> tuple[str, ...]:
    """Returns the columns of an object, by path, to be read of a stored field for what is wanted of
    it; a path stands for all leaves below. Of a map the keys are read in any case.
    """
    if pa.types.is_list(stored.type) and pa.types.is_list(wanted):
        return _leaves_inside(stored, "list", "element", wanted.value_type)
    if pa.types.is_map(stored.type) and pa.types.is_map(wanted):
        inside = _leaves_inside(stored, "key_value", "value", wanted.item_type)
        return inside if inside == (stored.name,) else (f"{stored.name}.key_value.key", *inside)
    if not (pa.types.is_struct(stored.type) and pa.types.is_struct(wanted)):
        return (stored.name,)
    asked = {field.name: field.type for field in wanted}
    found = [
        f"{stored.name}.{leaf}"
        for field in stored.type
        if field.name in asked
        for leaf in leaves_of(field, asked[field.name])
    ]
    return tuple(found) if found else (cheapest_leaf(stored),)


def _leaves_inside(stored: pa.Field, level: str, name: str, wanted: pa.DataType) -> tuple[str, ...]:
    """Returns those of what a list or a map holds; its own path where it is all of it. ``level`` is
    what Parquet has between.
    """
    kind = stored.type
    inner = kind.item_field if pa.types.is_map(kind) else kind.value_field
    found = leaves_of(inner.with_name(name), wanted)
    return (
        (stored.name,)
        if found == (name,)
        else tuple(f"{stored.name}.{level}.{leaf}" for leaf in found)
    )


@lru_cache(maxsize=256)
def cheapest_leaf(field: pa.Field) -> str:
    """Returns the path that costs least to read of those that tell where a field is null."""
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
    """Returns the paths of the leaves of a field that are in no list or map."""
    if pa.types.is_struct(field.type):
        return [f"{field.name}.{path}" for inner in field.type for path in lone_leaves(inner)]
    return [] if is_listed(field.type) else [field.name]


def projected(schema: pa.Schema, columns: Iterable[str]) -> pa.Schema:
    """Returns the columns of a schema by name or, of structs, by the paths of fields with dots: of
    those only what is named. What is in a list is called ``element``, in a map ``value``.

    Raises:
        InvalidInputError: a path that names nothing.
    """
    tree: dict[str, Any] = {}
    for path in columns:
        node = tree
        *above, last = path.split(".")
        for name in above:
            below = node.setdefault(name, {})
            node = below if below is not None else {}  # All of it is wanted already.
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


RECORD_OVERHEAD = 12
"""Bytes a record counts beside its content: offset 8, size 4 (Kafka's). Part of the format."""

OFFSET = "offset"
DELETE_HORIZON = "delete_horizon"

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
"""A record of a log of bytes that has no offset yet. A null value is a tombstone (S4), timestamps
are never null.
"""

REWRITTEN_SCHEMA = pa.schema(
    [
        *RECORD_SCHEMA,
        pa.field(OFFSET, pa.int64()),
        pa.field(DELETE_HORIZON, pa.int64()),
    ]
)
"""A record that has one. ``delete_horizon``: ms since 1970, null where none is set (S23)."""


@dataclass(frozen=True, slots=True)
class ChunkStats:
    """One partition's rows in one object; ``size_bytes`` is the sum of their record sizes.

    Offsets (the first and the last row's) and the bounds of delete horizons are those of rewritten
    records; -1: none.
    """

    partition: int
    rows: int
    size_bytes: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    tombstones: int
    first_offset: int = NONE
    last_offset: int = NONE
    horizon_min: int = NONE
    horizon_max: int = NONE


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What a commit checks against the config of then, not the one at writing (S5, S6, S9)."""

    null_keys: int
    largest_record_bytes: int
    min_timestamp_ms: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class DataObject:
    """An object that was written and is not committed yet: all that a commit needs of it.

    ``footer_bytes`` includes the 8-byte tail; ``index_bytes`` is the size of the key index, 0 for
    none; ``checksum`` is XXH3-128 of all bytes, in hex;
    ``stamp`` a version that was read before the first byte was written; ``chunks`` are in the order
    of their rows; ``facts`` are those of fresh records, None of rewritten ones; ``schema_id`` says
    which of its log's schemas it was written under, -1 for bytes.
    """

    path: str
    size_bytes: int
    footer_bytes: int
    checksum: str
    rows: int
    stamp: int
    chunks: tuple[ChunkStats, ...]
    facts: ObjectFacts | None
    dense: bool
    index_bytes: int = 0
    schema_id: int = NONE

    @property
    def ref(self) -> ObjectRef:
        """What a manifest keeps of it, and a reader needs."""
        return ObjectRef(
            *(self.path, self.size_bytes, self.footer_bytes, self.checksum),
            *(self.rows, self.stamp, self.dense, self.index_bytes),
        )


def rewritten_chunk(obj: DataObject, *, version: int) -> Chunk:
    """Returns the chunk that is all of a rewritten object.

    ``version``: the newest commit its rows came in by.
    """
    (stats,) = obj.chunks
    return Chunk(
        object=obj.ref,
        first_row=0,
        rows=obj.rows,
        base=stats.first_offset,
        next=stats.last_offset + 1,
        size_bytes=stats.size_bytes,
        first_timestamp_ms=stats.first_timestamp_ms,
        max_timestamp_ms=stats.max_timestamp_ms,
        tombstones=stats.tombstones,
        version=version,
        horizon_min=stats.horizon_min,
        horizon_max=stats.horizon_max,
    )


def record_sizes(records: pa.Table | pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the bytes each record counts: 12 + key + value + for each header its key and value;
    of a typed log the key's canonical bytes, and what `value_sizes` says.

    This is the size in ``segment.bytes``, ``retention.bytes`` and ``max.message.bytes``: it depends
    on the record alone, not on compression or neighbours. Needs the columns key, value, headers.
    """
    if isinstance(records, pa.Table):
        parts = [record_sizes(batch) for batch in records.to_batches()]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)
    sizes = np.full(records.num_rows, RECORD_OVERHEAD, np.int64)
    sizes += _lengths(key_bytes(records.column("key")))
    sizes += value_sizes(records.column("value"))
    headers = records.column("headers")
    if headers.null_count < len(headers):
        sizes += _header_sizes(headers)
    return sizes


def check_rows(rows: pa.RecordBatch) -> None:
    """Raises if stored rows hold what the format forbids, in those columns that are there.

    Raises:
        ValueError: they do (FORMAT.md §5.1).
    """
    names = rows.schema.names
    if "timestamp" in names and rows.num_rows:
        times = rows.column("timestamp")
        if times.null_count or to_numpy(times.view(pa.int64())).min() < 0:
            raise ValueError("it has timestamps that are null or before 1970")
    if OFFSET in names and rows.column(OFFSET).null_count:
        raise ValueError("it has rows without offsets")
    if "headers" in names and rows.column("headers").null_count < rows.num_rows:
        pairs = rows.column("headers").flatten()
        if pairs.null_count or pairs.field(0).null_count:
            raise ValueError("it has headers that are null or have no key")


def _lengths(values: pa.Array) -> np.ndarray[Any, Any]:
    """Returns the bytes of each binary or string, 0 for null."""
    lengths = pc.binary_length(values)
    return to_numpy(pc.fill_null(lengths, scalar(0, lengths.type)))


def _header_sizes(headers: pa.Array) -> np.ndarray[Any, Any]:
    counts = to_numpy(pc.fill_null(pc.list_value_length(headers), scalar(0, pa.int32())))
    # flatten() leaves out what lies under null lists and around a slice, as the counts do.
    entries = headers.flatten()
    sizes = np.zeros(len(entries) + 1, np.int64)
    np.cumsum(
        _lengths(pc.struct_field(entries, "key")) + _lengths(pc.struct_field(entries, "value")),
        out=sizes[1:],
    )
    ends = np.cumsum(counts, dtype=np.int64)
    per_record: np.ndarray[Any, Any] = sizes[ends] - sizes[ends - counts]
    return per_record


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

_PLAIN: Final = {
    "bool": pa.bool_(),
    **{f"int{n}": getattr(pa, f"int{n}")() for n in (8, 16, 32, 64)},
    **{f"uint{n}": getattr(pa, f"uint{n}")() for n in (8, 16, 32, 64)},
    **{f"float{n}": getattr(pa, f"float{n}")() for n in (16, 32, 64)},
    "date": pa.date32(),
    "time(ms)": pa.time32("ms"),
    **{f"time({unit})": pa.time64(unit) for unit in ("us", "ns")},
    **{f"timestamp({unit})": pa.timestamp(unit) for unit in ("ms", "us", "ns")},
    **{f"timestamp({unit},utc)": pa.timestamp(unit, "UTC") for unit in ("ms", "us", "ns")},
    "string": pa.string(),
    "binary": pa.binary(),
}
_NAMES: Final = {kind: name for name, kind in _PLAIN.items()}


@dataclass(frozen=True, slots=True)
class ColumnTypes:
    """The columns of a log's records: as they are handed over and, with offsets, rewritten."""

    records: pa.Schema
    rewritten: pa.Schema

    @property
    def key(self) -> pa.DataType:
        return self.records.field("key").type

    @property
    def value(self) -> pa.DataType:
        return self.records.field("value").type


_OF_BYTES: Final = ColumnTypes(RECORD_SCHEMA, REWRITTEN_SCHEMA)


@lru_cache(maxsize=64)
def column_types(schema: LogSchema | None) -> ColumnTypes:
    """Returns the types of a log's columns; of a typed one with the field ids of its schema."""
    if schema is None:
        return _OF_BYTES
    own = {"key": _arrow_field(schema.key), "value": _arrow_field(schema.value)}
    fields = [own.get(field.name) or with_ids(field) for field in REWRITTEN_SCHEMA]
    rewritten = pa.schema(fields)
    return ColumnTypes(pa.schema([rewritten.field(n) for n in RECORD_SCHEMA.names]), rewritten)


def arrow_schema(schema: LogSchema | None) -> pa.Schema:
    """Returns the schema as users see it: of key and value, without field ids."""
    if schema is None:
        return BYTES
    return pa.schema([_arrow_field(field, with_ids=False) for field in (schema.key, schema.value)])


def schema_of(given: Mapping[str, Any] | pa.Schema) -> LogSchema | None:
    """Returns the first schema of a log; None where it is that of a log of bytes.

    Raises:
        InvalidInputError: fields other than key and value, a type that cannot be stored, or that
            a key cannot have.
    """
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
        raise InvalidInputError(f"the schema cannot be that of a log: {problem}")
    return None if arrow_schema(schema) == BYTES else schema


def schema_field(
    field: pa.Field, new_id: Callable[[], int], path: str, *, id_: int | None = None
) -> SchemaField:
    """Returns a field of Arrow's as one of a log's schema; it and those inside get new ids.

    Raises:
        InvalidInputError: a type that cannot be stored.
    """
    if path.count(".") >= DEPTH_MAX:
        raise InvalidInputError(f"{path} is nested more than {DEPTH_MAX} deep")
    own = new_id() if id_ is None else id_
    kind = _without_layout(field.type)
    required = not field.nullable
    inner: tuple[tuple[str, pa.Field], ...] = ()
    if pa.types.is_struct(kind):
        name, inner = STRUCT, tuple((f.name, f) for f in kind)
    elif pa.types.is_map(kind):
        name, inner = MAP, (("key", kind.key_field), ("value", kind.item_field))
    elif pa.types.is_list(kind):
        name, inner = LIST, (("element", kind.value_field),)
    else:
        name = _name_of(kind, path)
    fields = tuple(schema_field(f.with_name(n), new_id, f"{path}.{n}") for n, f in inner)
    return SchemaField(field.name, own, name, required, fields)


def _without_layout(kind: pa.DataType) -> pa.DataType:
    """Returns the plain type of what holds the same values in another layout."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _without_layout(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_large_list(kind) or types.is_list_view(kind) or types.is_large_list_view(kind):
        return pa.list_(kind.value_field)
    if types.is_timestamp(kind) and kind.tz is not None and kind.tz.upper() in ("UTC", "+00:00"):
        return pa.timestamp(kind.unit, "UTC")
    return kind


def _name_of(kind: pa.DataType, path: str) -> str:
    if (name := _NAMES.get(kind)) is not None:
        return name
    if pa.types.is_decimal(kind) and kind.scale >= 0:
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width:
        return f"fixed({kind.byte_width})"
    raise InvalidInputError(
        f"{path} has type {kind}, which Parquet does not store as it is; {_instead(kind)}"
    )


def _instead(kind: pa.DataType) -> str:
    if isinstance(kind, pa.BaseExtensionType):
        return f"use {kind.storage_type}, as which its values are kept, and are taken"
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
    """Returns the type of a field, with the ids of those inside where they are asked for.

    Raises:
        InvalidInputError: a decimal that cannot be.
    """
    inner = [_arrow_field(f, with_ids=with_ids) for f in field.fields]
    if field.kind == STRUCT:
        return pa.struct(inner)
    if field.kind == LIST:
        return pa.list_(inner[0])
    if field.kind == MAP:
        return pa.map_(inner[0], inner[1])
    if (plain := _PLAIN.get(field.kind)) is not None:
        return plain
    first, *more = map(int, re.findall(r"\d+", field.kind))
    if field.kind.startswith("fixed"):
        return pa.binary(first)
    (scale,) = more
    if not scale <= first <= DECIMAL_DIGITS_MAX:
        raise InvalidInputError(
            f"{field.kind} is not a decimal; one has 1 to {DECIMAL_DIGITS_MAX} digits in all"
        )
    return pa.decimal128(first, scale) if first <= 38 else pa.decimal256(first, scale)


def with_ids(field: pa.Field) -> pa.Field:
    """Returns a column with its field id and those inside: those that it has, or else its own."""
    if _id_of(field) is not None:
        return field
    if field.name == "headers":
        element, *pair = (str(i).encode() for i in _HEADER_IDS)
        header = [f.with_metadata({FIELD_ID: i}) for f, i in zip(_header(), pair, strict=True)]
        kind = pa.list_(pa.field("element", pa.struct(header), metadata={FIELD_ID: element}))
        field = field.with_type(kind)
    return field.with_metadata({FIELD_ID: str(COLUMN_IDS[field.name]).encode()})


def _header() -> Iterator[pa.Field]:
    yield from RECORD_SCHEMA.field("headers").type.value_type


def other_ids(stored: pa.Field, field: pa.Field, above: str = "") -> list[str]:
    """Returns the paths of fields, of a stored one and those inside, that have other ids."""
    path = f"{above}{field.name}"
    wrong = [] if _id_of(stored) == _id_of(field) else [path]
    later = {inner.name: inner for inner in _inside(field.type)}
    for inner in _inside(stored.type):
        wrong += other_ids(inner, later[inner.name], f"{path}.")
    return wrong


def has_ids(field: pa.Field) -> bool:
    """Tells whether it, or a field inside, has an id."""
    return _id_of(field) is not None or any(map(has_ids, _inside(field.type)))


def _id_of(field: pa.Field) -> bytes | None:
    found: bytes | None = (field.metadata or {}).get(FIELD_ID)
    return found


def _inside(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field.with_name("element")] if pa.types.is_list(kind) else []
