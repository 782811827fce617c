"""Arrow's types of a log's columns: of bytes, or those of its schema (FORMAT.md §5.1, §12.1).

`schema_of` makes a schema of what a user gives. Layouts are none of it: large strings, views and
dictionaries are what they hold. What Parquet does not store as it is, is refused.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any, Final

import pyarrow as pa

from clog.storage.errors import InvalidInputError
from clog.storage.format.schema import (
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
from clog.storage.objects.data_object import RECORD_SCHEMA, REWRITTEN_SCHEMA

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
