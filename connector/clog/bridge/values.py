"""Keys and values in bytes, decoded one by one: JSON, Avro, or what they are; and what Kafka
Connect and Debezium say of their columns. Pure.

A decoder takes bytes and the type that is wanted, and returns a value of Python's as `Log.append`
takes it; whether it fits the type is seen later, for many at once. One that cannot be decoded is an
`UndecodableError`, whose text is the reason and holds nothing of the bytes.

What was written with a schema that can be read tells its own column: a `Written` is the field that
such a schema makes, and how its values are read. Types that have no column, such as unions of
several, records within themselves and records without a field, are refused: their bytes could also
hold more than their length, without end.
"""

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from functools import partial
from io import BytesIO
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from clog.storage.env import dataclass, from_extra
from clog.storage.errors import InvalidInputError
from clog.storage.format.log_info import DEPTH_MAX, FIELDS_MAX, FIXED_BYTES_MAX
from clog.storage.types.conform import from_json, parsed_json

_FIELDS_MAX: Final = 4 * FIELDS_MAX
"""Within a schema: a change has a row twice, and says where it is from."""
HEADER_BYTES: Final = 5
"""Of a registry's header: a zero byte, and four of the schema's id."""
DIGITS_MAX: Final = 38

Fix = Callable[[Any], Any]
"""Makes the value that a column takes of one that is there."""


class UndecodableError(Exception):
    """Bytes that cannot be decoded; the text gives the reason."""


class Decode(Protocol):
    """Makes a Python value of bytes, for a type of the log; raises `UndecodableError`."""

    def __call__(self, data: bytes, kind: pa.DataType, /) -> Any:
        """Returns the value."""


@dataclass(frozen=True, slots=True)
class Column:
    """What values of one type become.

    Attributes:
        kind: the column's type.
        fix: what is still to be done to a value; None: nothing.
        nullable: whether it may be missing.
        fields, depth: how many there are within, and within one another.
    """

    kind: pa.DataType
    fix: Fix | None = None
    nullable: bool = False
    fields: int = 1
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Written:
    """A schema with which values were written.

    Attributes:
        column: what they become.
        read: makes a value of the bytes, as the column takes it; it raises anything.
    """

    column: Column
    read: Callable[[bytes], Any]


def json_values(data: bytes, kind: pa.DataType) -> Any:
    """Decodes JSON; types that JSON lacks are written as ``clog consume --json`` prints them.

    Args:
        data: UTF-8; a schema registry's header before it is skipped.
        kind: the type that the log has for it.

    Raises:
        UndecodableError: it is not JSON, or it is null.

    >>> json_values(b'{"price": 3}', pa.struct([("price", pa.int64())]))
    {'price': 3}
    """
    return there(from_json(json_document(data, kind), kind))


def json_document(data: bytes, kind: pa.DataType) -> Any:
    """Returns what JSON holds, behind a registry's header or not; see `json_values`."""
    try:
        return parsed_json(_text(data[HEADER_BYTES:] if data[:1] == b"\0" else data), kind)
    except json.JSONDecodeError as e:
        raise UndecodableError(f"is no JSON: {e.msg} at character {e.pos}") from None
    except RecursionError:
        raise UndecodableError("is JSON that is nested too deep") from None
    except ValueError as e:
        raise UndecodableError(f"is no JSON that can be read: {e}") from None


def plain_keys(data: bytes, kind: pa.DataType) -> Any:
    """Decodes a key: text and bytes are what they are, anything else is JSON."""
    types = pa.types
    if types.is_binary(kind) or types.is_fixed_size_binary(kind):
        return data
    return _text(data) if types.is_string(kind) else json_values(data, kind)


def avro_values(schema: Any = None, *, by_id: Mapping[int, Any] | None = None) -> Decode:
    """Returns a decoder of Avro, without a file's header.

    Args:
        schema: the schema with which all values were written, in its JSON form.
        by_id: the schemas by their ids in a registry: each value then begins with Confluent's
            header, a zero byte and four bytes of the id.

    Raises:
        InvalidInputError: not exactly one of the two is given, or it is not an Avro schema; or
            fastavro is not installed.

    >>> avro_values("long")(bytes([6]), pa.int64())  # fastavro is an extra; doctest: +SKIP
    3
    """
    if (schema is None) == (by_id is None):
        raise InvalidInputError("give one schema of Avro, or schemas by their ids")
    given = {None: schema} if by_id is None else dict(by_id)
    try:
        parsed = {number: parsed_avro(one, {}) for number, one in given.items()}
    except InvalidInputError:
        raise
    except Exception as e:
        raise InvalidInputError(f"this is not an Avro schema: {e}") from e

    def decode(data: bytes, kind: pa.DataType) -> Any:  # noqa: ARG001 - a schema says the types
        number, body = (None, data) if by_id is None else headed(data)
        if number not in parsed:
            raise UndecodableError(f"has the schema id {number}, and no schema was given for it")
        try:
            return there(read_avro(parsed[number], body))
        except UndecodableError as e:
            raise UndecodableError(f"{e}{_hint(data, number)}") from None

    return decode


def parsed_avro(schema: Any, named: dict[str, Any]) -> Any:
    """Returns a schema of Avro as fastavro takes it, where ``named`` has those that it refers to;
    what it names goes there. Raises anything.
    """
    with from_extra("avro", "Avro", "fastavro"):
        import fastavro
    return fastavro.parse_schema(_without_uuid(schema), named_schemas=named)


def read_avro(parsed: Any, body: bytes) -> Any:
    """Returns the value in bytes of this schema; UndecodableError: none, or bytes are left over."""
    import fastavro

    buffer = BytesIO(body)
    try:
        value: Any = fastavro.schemaless_reader(buffer, parsed, None)
        why = "bytes are left over" if buffer.read(1) else None
    except Exception as e:  # noqa: BLE001 - any bytes may come, and they raise anything
        value, why = None, type(e).__name__
    if why is not None:
        raise UndecodableError(f"is no Avro of this schema: {why}")
    return value


def there(value: Any) -> Any:
    """Returns a value, unless it is null inside of its encoding."""
    if value is None:  # It would delete the key.
        raise UndecodableError("is null inside of its encoding, which is no tombstone")
    return value


def headed(data: bytes) -> tuple[int, bytes]:
    """Returns the schema's id in a registry's header, and what comes behind it."""
    if not _has_header(data):
        raise UndecodableError("has no header with a schema id")
    return int.from_bytes(data[1:HEADER_BYTES], "big"), data[HEADER_BYTES:]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        raise UndecodableError(f"is no UTF-8 at byte {e.start}") from None


def _hint(data: bytes, number: int | None) -> str:
    """Returns what to do about the header of a registry that nobody said was there."""
    if number is not None or not _has_header(data):
        return ""
    found, _ = headed(data)
    return (
        f"; it begins as values of a schema registry do, with the schema id {found}: give the"
        f" schema by its id (--avro-schema {found}=FILE, avro_values(by_id=…))"
    )


def _has_header(data: bytes) -> bool:
    return len(data) >= HEADER_BYTES and data[0] == 0


def _without_uuid(schema: Any) -> Any:
    """Returns a schema in which UUIDs are the strings that they are stored as."""
    if isinstance(schema, list):
        return [_without_uuid(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    is_uuid = schema.get("logicalType") == "uuid"
    return {
        name: _without_uuid(part)
        for name, part in schema.items()
        if not (is_uuid and name == "logicalType")
    }


def struct_of(fields: Iterable[tuple[str, Column]], what: str) -> Column:
    """Returns the column of records that have these fields; raises if they have none."""
    columns: dict[str, Column] = {}
    count = 1
    for name, column in fields:
        columns[name] = column
        count += column.fields
        if count > _FIELDS_MAX:  # Types that are named twice have twice as many within.
            raise InvalidInputError(f"{what} has more than {_FIELDS_MAX} fields within")
    if not columns:
        raise InvalidInputError(f"{what} has no fields, and so no column")
    kind = pa.struct(
        [pa.field(name, one.kind, nullable=one.nullable) for name, one in columns.items()]
    )
    fixes = {name: one.fix for name, one in columns.items() if one.fix is not None}
    return _around(kind, partial(_fixed_struct, fixes) if fixes else None, *columns.values())


def _around(kind: pa.DataType, fix: Fix | None, *inner: Column) -> Column:
    """Returns the column of what has others within; raises if no log can have it."""
    depth = 1 + max(one.depth for one in inner)
    if depth > DEPTH_MAX + 1:  # A row within a change is one deeper than in a log.
        raise InvalidInputError(f"fields are nested more than {DEPTH_MAX} deep")
    return Column(kind, fix, fields=1 + sum(one.fields for one in inner), depth=depth)


def fixed_of(size: object) -> pa.DataType:
    """Returns the type of so many bytes; raises if there is none."""
    if type(size) is not int or not 0 < size <= FIXED_BYTES_MAX:
        raise InvalidInputError(f"no column has values of a fixed size of {size!s:.20} bytes")
    return pa.binary(size)


def list_of(element: Column) -> Column:
    """Returns the column of lists."""
    kind = pa.list_(pa.field("element", element.kind, nullable=element.nullable))
    fix = element.fix
    return _around(kind, None if fix is None else lambda v: [_fixed(fix, x) for x in v], element)


def map_of(key: Column, item: Column) -> Column:
    """Returns the column of maps."""
    kind = pa.map_(key.kind, pa.field("value", item.kind, nullable=item.nullable))
    if key.fix is None and item.fix is None:
        return _around(kind, None, key, item)
    key_fix, item_fix = key.fix or _same, item.fix or _same
    fix = lambda v: [(key_fix(k), _fixed(item_fix, x)) for k, x in _pairs(v)]  # noqa: E731
    return _around(kind, fix, key, item)


def _pairs(value: Any) -> Iterable[Any]:
    return value.items() if isinstance(value, Mapping) else value


def _same(value: Any) -> Any:
    return value


def _fixed(fix: Fix, value: Any) -> Any:
    return None if value is None else fix(value)


def _fixed_struct(fixes: Mapping[str, Fix], value: Any) -> Any:
    return {name: _fixed(fixes[name], one) if name in fixes else one for name, one in value.items()}


def _times(kind: pa.DataType, number: type, unit: str) -> Column:
    return Column(kind, lambda v: number(v, unit) if type(v) is int else v)


_ZONED: Final = pa.timestamp("us", "UTC")
_DAYS: Final = _times(pa.date32(), np.datetime64, "D")
_CONNECT: Final = "org.apache.kafka.connect.data"
_DEBEZIUM: Final = "io.debezium.time"
_MEANINGS: Final = {
    f"{_CONNECT}.Date": _DAYS,
    f"{_CONNECT}.Time": _times(pa.time32("ms"), np.timedelta64, "ms"),
    f"{_CONNECT}.Timestamp": _times(pa.timestamp("ms", "UTC"), np.datetime64, "ms"),
    f"{_DEBEZIUM}.Date": _DAYS,
    f"{_DEBEZIUM}.Time": _times(pa.time32("ms"), np.timedelta64, "ms"),
    f"{_DEBEZIUM}.MicroTime": _times(pa.time64("us"), np.timedelta64, "us"),
    f"{_DEBEZIUM}.NanoTime": _times(pa.time64("ns"), np.timedelta64, "ns"),
    f"{_DEBEZIUM}.Timestamp": _times(pa.timestamp("ms"), np.datetime64, "ms"),
    f"{_DEBEZIUM}.MicroTimestamp": _times(pa.timestamp("us"), np.datetime64, "us"),
    f"{_DEBEZIUM}.NanoTimestamp": _times(pa.timestamp("ns"), np.datetime64, "ns"),
    f"{_DEBEZIUM}.ZonedTimestamp": Column(_ZONED, lambda v: from_json(v, _ZONED)),
}
"""What a number or a text means, by the name that its schema has."""
_NUMBERS: Final = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
}


def meaning_of(name: object) -> Column | None:
    """Returns what values of this name of Connect's or Debezium's mean; None: what they are."""
    return _MEANINGS.get(name) if isinstance(name, str) else None


def decimal_of(precision: object, scale: object) -> pa.DataType:
    """Returns the type of decimals; raises if there is none of so many digits."""
    digits = DIGITS_MAX if precision is None else int(str(precision))
    return pa.decimal128(digits, int(str(scale or 0)))


def connect_column(schema: Any) -> Column:
    """Returns what Connect's JSON becomes by the schema beside it; InvalidInputError: nothing."""
    try:
        return _connect(schema)
    except RecursionError:
        raise InvalidInputError("the schema is nested too deep") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
        if isinstance(e, InvalidInputError):
            raise
        raise InvalidInputError("the schema is none of Kafka Connect's") from None


def _connect(schema: Any) -> Column:
    kind, name = schema["type"], schema.get("name")
    if kind == "struct":
        fields = ((one["field"], _connect(one)) for one in schema["fields"])
        found = struct_of(fields, "a struct")
    elif kind == "array":
        found = list_of(_connect(schema["items"]))
    elif kind == "map":
        found = map_of(_connect(schema["keys"]), _connect(schema["values"]))
    elif name == f"{_CONNECT}.Decimal":
        parameters = schema["parameters"]
        scale = int(parameters["scale"])
        found = Column(
            decimal_of(parameters.get("connect.decimal.precision"), scale),
            partial(_decimal, scale=scale),
        )
    elif kind == "bytes":
        found = Column(pa.binary(), lambda v: from_json(v, pa.binary()))
    else:
        found = meaning_of(name) or Column(_NUMBERS[kind])
    return replace(found, nullable=bool(schema.get("optional")))


def _decimal(value: Any, *, scale: int) -> Any:
    """Returns a decimal of Connect's: the bytes of a number without its point, or that number."""
    if not isinstance(value, str):
        return Decimal(value) if isinstance(value, int) else value
    try:
        unscaled = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
        return Decimal(f"{unscaled}E{-scale}")
    except ValueError:
        return value
