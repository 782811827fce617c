"""Decodes keys and values one by one: JSON, Avro, Protobuf, or plain bytes and text; and derives
columns from the schemas of schema registries, Kafka Connect and Debezium.

A decoder takes bytes and the wanted type, and returns a Python value that `Log.append` accepts;
whether it fits the type is checked later, for many at once. If the bytes cannot be decoded, it
raises an `UndecodableError`, whose text is the reason and contains none of the bytes.

A schema with which values were written defines their column: a `Written` is that column, and how
its values are read. Types without a column, such as unions of several types, recursive records and
records without fields, are refused: a few bytes of such a type could also expand to a value of
unbounded size.

Bytes from a schema registry's serialisers begin with a zero byte and four bytes of the schema's id;
in Protobuf the *indexes* follow, of the message in its file and of messages nested in it.
Confluent's client asks the registry once for each id; a registered schema never changes.
A value with an unknown id is undecodable. A registry that does not answer says nothing about
values: that is a separate error, so that an outage does not turn a topic into dead letters.
So are too many unknown ids: the values were not written with this registry.
"""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from functools import partial
from io import BytesIO
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from clog.storage import InvalidInputError, SourceUnavailableError
from clog.storage.spi import dataclass, from_extra, from_json, parsed_json, redact

_FIELDS_MAX: Final = 4000
"""In a schema: a log has at most 1000; a change has its row twice, and its source."""
_DEPTH_MAX: Final = 8
_FIXED_BYTES_MAX: Final = 1024
"""As in logs, which refuse what has more: a stranger's schema takes no memory before that."""
HEADER_BYTES: Final = 5
"""The size of a registry's header: a zero byte, and four of the schema's id."""
DIGITS_MAX: Final = 38
AVRO, PROTOBUF = "AVRO", "PROTOBUF"
"""The registry's names for kinds of schemas."""
UNKNOWN_MAX: Final = 1000
"""How many ids may be unknown to the registry."""
_INDEXES_MAX: Final = 64
"""How deep messages may be nested; Protobuf itself reads 100 levels."""
_CLIENT: Final = ("confluent_kafka", "attr", "attrs", "authlib", "cachetools", "httpx", "orjson")
"""What the registry's client imports."""
_NOT_FOUND: Final = 404
_REFUSED: Final = (401, 403)

Fix = Callable[[Any], Any]
"""Converts a non-null value to one that its column accepts."""


class UndecodableError(Exception):
    """Bytes that cannot be decoded; the text gives the reason."""


class Decode(Protocol):
    """Decodes bytes into a Python value for a type of the log; raises `UndecodableError`."""

    def __call__(self, data: bytes, kind: pa.DataType, /) -> Any:
        """Returns the value."""


@dataclass(frozen=True, slots=True)
class Column:
    """The column for values of one type.

    Attributes:
        kind: the column's type.
        fix: converts a decoded value for the column; None: it needs no conversion.
        nullable: whether a value may be missing.
        fields, depth: the number of fields, nested ones included, and how deep they are nested.
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
        column: the column for these values.
        read: decodes bytes into a value that the column accepts; may raise any exception.
    """

    column: Column
    read: Callable[[bytes], Any]


def json_values(data: bytes, kind: pa.DataType) -> Any:
    """Decodes JSON; types that JSON lacks have the form that ``clog consume --json`` prints.

    Args:
        data: UTF-8; a schema registry's header before it is skipped.
        kind: the log's type for the value.

    Raises:
        UndecodableError: the data is not JSON, or null.

    >>> json_values(b'{"price": 3}', pa.struct([("price", pa.int64())]))
    {'price': 3}
    """
    return there(from_json(json_document(data, kind), kind))


def json_document(data: bytes, kind: pa.DataType) -> Any:
    """Returns a parsed JSON document, with or without a registry's header; see `json_values`."""
    try:
        return parsed_json(_text(data[HEADER_BYTES:] if data[:1] == b"\0" else data), kind)
    except json.JSONDecodeError as e:
        raise UndecodableError(f"is not JSON: {e.msg} at character {e.pos}") from None
    except RecursionError:
        raise UndecodableError("is JSON that is nested too deeply") from None
    except ValueError as e:
        raise UndecodableError(f"is not readable JSON: {e}") from None


def plain_keys(data: bytes, kind: pa.DataType) -> Any:
    """Decodes a key: text and bytes are taken as they are, anything else is JSON."""
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
        InvalidInputError: not exactly one of the two is given, one is not an Avro schema, or
            fastavro is not installed.

    >>> avro_values("long")(bytes([6]), pa.int64())  # fastavro is an extra; doctest: +SKIP
    3
    """
    if (schema is None) == (by_id is None):
        raise InvalidInputError("give one Avro schema, or schemas by their ids")
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
            raise UndecodableError(f"has the schema id {number}, for which no schema was given")
        try:
            return there(read_avro(parsed[number], body))
        except UndecodableError as e:
            raise UndecodableError(f"{e}{_hint(data, number)}") from None

    return decode


def parsed_avro(schema: Any, named: dict[str, Any]) -> Any:
    """Returns an Avro schema parsed by fastavro. ``named`` has the types that it refers to; its own
    named types are added. May raise any exception.
    """
    with from_extra("avro", "Avro", "fastavro"):
        import fastavro
    return fastavro.parse_schema(_without_uuid(schema), named_schemas=named)


def read_avro(parsed: Any, body: bytes) -> Any:
    """Decodes a value of this schema; UndecodableError if it is invalid or bytes are left over."""
    import fastavro

    buffer = BytesIO(body)
    try:
        value: Any = fastavro.schemaless_reader(buffer, parsed, None)
        why = "bytes are left over" if buffer.read(1) else None
    except Exception as e:  # noqa: BLE001 - arbitrary bytes may raise anything
        value, why = None, type(e).__name__
    if why is not None:
        raise UndecodableError(f"is not Avro of this schema: {why}")
    return value


def there(value: Any) -> Any:
    """Returns the value; raises if it is null inside its encoding."""
    if value is None:  # A null would delete the key.
        raise UndecodableError("is an encoded null, which is not a tombstone")
    return value


def headed(data: bytes) -> tuple[int, bytes]:
    """Returns the schema's id in a registry's header, and the bytes after the header."""
    if not _has_header(data):
        raise UndecodableError("has no header with a schema id")
    return int.from_bytes(data[1:HEADER_BYTES], "big"), data[HEADER_BYTES:]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        raise UndecodableError(f"is not UTF-8 at byte {e.start}") from None


def _hint(data: bytes, number: int | None) -> str:
    """Returns what to do about a registry's header that was not expected; "" if there is none."""
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
    """Returns a schema in which UUIDs are strings, as they are stored."""
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
    """Returns the column of records with these fields; raises if there are none."""
    columns: dict[str, Column] = {}
    count = 1
    for name, column in fields:
        columns[name] = column
        count += column.fields
        if count > _FIELDS_MAX:  # Each use of a named type counts again.
            raise InvalidInputError(f"{what} contains more than {_FIELDS_MAX} fields")
    if not columns:
        raise InvalidInputError(f"{what} has no fields, so it cannot be a column")
    kind = pa.struct(
        [pa.field(name, one.kind, nullable=one.nullable) for name, one in columns.items()]
    )
    fixes = {name: one.fix for name, one in columns.items() if one.fix is not None}
    return _around(kind, partial(_fixed_struct, fixes) if fixes else None, *columns.values())


def _around(kind: pa.DataType, fix: Fix | None, *inner: Column) -> Column:
    """Returns the column of a type with inner columns; raises if no log can have it."""
    depth = 1 + max(one.depth for one in inner)
    if depth > _DEPTH_MAX + 1:  # A row in a change is one level deeper than in a log.
        raise InvalidInputError(f"fields are nested more than {_DEPTH_MAX} deep")
    return Column(kind, fix, fields=1 + sum(one.fields for one in inner), depth=depth)


def fixed_of(size: object) -> pa.DataType:
    """Returns the type of values with this many bytes; raises if no column has it."""
    if type(size) is not int or not 0 < size <= _FIXED_BYTES_MAX:
        raise InvalidInputError(
            f"a column cannot have values of a fixed size of {size!s:.20} bytes"
        )
    return pa.binary(size)


def list_of(element: Column) -> Column:
    """Returns the column of lists of these elements."""
    kind = pa.list_(pa.field("element", element.kind, nullable=element.nullable))
    fix = element.fix
    return _around(kind, None if fix is None else lambda v: [_fixed(fix, x) for x in v], element)


def map_of(key: Column, item: Column) -> Column:
    """Returns the column of maps with these keys and values."""
    kind = pa.map_(key.kind, pa.field("value", item.kind, nullable=item.nullable))
    if key.fix is None and item.fix is None:
        return _around(kind, None, key, item)
    key_fix, item_fix = key.fix or _same, item.fix or _same
    fix = lambda v: [(key_fix(k), _fixed(item_fix, x)) for k, x in _pairs(v)]  # noqa: E731
    return _around(kind, fix, key, item)


def _pairs(value: Any) -> Iterable[Any]:
    return value.items() if isinstance(value, Mapping) else value


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
"""The columns of numbers and texts with a special meaning, by the name of their schema."""
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
    """Returns the column for a schema name of Connect's or Debezium's; None: no special meaning."""
    return _MEANINGS.get(name) if isinstance(name, str) else None


def decimal_of(precision: object, scale: object) -> pa.DataType:
    """Returns the type of decimals; raises if none has this many digits."""
    digits = DIGITS_MAX if precision is None else int(str(precision))
    return pa.decimal128(digits, int(str(scale or 0)))


def connect_column(schema: Any) -> Column:
    """Returns the column for a schema in Connect's JSON; raises InvalidInputError if none fits."""
    try:
        return _connect(schema)
    except RecursionError:
        raise InvalidInputError("the schema is nested too deeply") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
        if isinstance(e, InvalidInputError):
            raise
        raise InvalidInputError("the schema is not one of Kafka Connect's") from None


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
    """Returns a decimal of Connect's, given as a number or as the bytes of its unscaled value."""
    if not isinstance(value, str):
        return Decimal(value) if isinstance(value, int) else value
    try:
        unscaled = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
        return Decimal(f"{unscaled}E{-scale}")
    except ValueError:
        return value


class Registry:
    """Asks a schema registry; for one thread at a time.

    Args:
        url: its address, or several, separated by commas.
        options: confluent-kafka's for ``SchemaRegistryClient``, such as ``basic.auth.user.info``.
    """

    def __init__(self, url: str, options: Mapping[str, object]) -> None:
        with from_extra("registry", "a schema registry", *_CLIENT):
            import confluent_kafka.schema_registry as library
        if "@" in url:
            raise InvalidInputError(
                "the address of a schema registry cannot contain a user; give"
                " basic.auth.user.info as an option of the registry"
            )
        self.url = redact(url)
        self._error = library.SchemaRegistryError
        try:
            self._client: Any = library.SchemaRegistryClient.new_client({**options, "url": url})
        except (AttributeError, TypeError, ValueError) as e:
            raise InvalidInputError(
                f"the options of the schema registry {self.url} are rejected; give those of"
                " confluent-kafka's SchemaRegistryClient"
            ) from e
        self._known: dict[tuple[str, int], Any] = {}
        self._parsed: dict[tuple[str, int, tuple[int, ...]], Written | str] = {}
        self._unknown = 0

    def latest(self, subject: str, kind: str) -> Written | None:
        """Returns the newest schema of a subject; None if there is none."""
        found = self._asked(partial(self._client.get_latest_version, subject, **_form(kind)))
        if found is None:
            return None
        if type(found.schema_id) is not int:
            raise InvalidInputError(
                f"{self.url} does not return an id of the newest schema of {subject}"
            )
        self._known.setdefault((kind, found.schema_id), found.schema)
        try:
            return self.written(kind, found.schema_id, (0,) if kind == PROTOBUF else ())
        except UndecodableError as e:
            raise InvalidInputError(f"the newest schema of subject {subject} {e}") from None

    def written(self, kind: str, number: int, indexes: tuple[int, ...] = ()) -> Written:
        """Returns the schema with this id. One request, the first time.

        Raises:
            UndecodableError: the schema is unknown, or has no columns.
            SourceUnavailableError: the registry does not answer.
        """
        place = (kind, number, indexes)
        if place not in self._parsed:
            self._parsed[place] = self._made(*place)
        found = self._parsed[place]
        if isinstance(found, str):
            raise UndecodableError(found)
        return found

    def _made(self, kind: str, number: int, indexes: tuple[int, ...]) -> Written | str:
        """Returns the schema with this id, or why it cannot be used."""
        if (kind, number) not in self._known:
            ask = partial(self._client.get_schema, number, **_form(kind))
            self._known[kind, number] = self._asked(ask)
            self._unknown += self._known[kind, number] is None
            if self._unknown > UNKNOWN_MAX:
                raise InvalidInputError(
                    f"{UNKNOWN_MAX} schema ids are unknown to {self.url}: the schemas of the"
                    " topic's values are elsewhere, or the values have no registry header; check"
                    " --registry and --decode"
                )
        schema = self._known[kind, number]
        if schema is None:
            return f"has the schema id {number}, which the registry does not have"
        if (schema.schema_type or AVRO) != kind:
            return f"has the schema id {number}, of {schema.schema_type}"
        if schema.rule_set is not None and (
            getattr(schema.rule_set, "domain_rules", None)
            or getattr(schema.rule_set, "encoding_rules", None)
        ):
            return f"has the schema id {number}, whose rules clog does not support"
        try:
            return self._avro(schema) if kind == AVRO else self._protobuf(schema, indexes)
        except SourceUnavailableError:
            raise
        except RecursionError:
            why = "it is nested too deeply"
        except InvalidInputError as e:
            why = str(e)
        except Exception as e:  # noqa: BLE001 - any text may be registered
            why = f"it cannot be read ({type(e).__name__})"
        return f"has the schema id {number}, which cannot become columns: {why}"

    def _avro(self, schema: Any) -> Written:
        named: dict[str, Any] = {}
        for _, one in self._references(schema, {}):
            parsed_avro(json.loads(one.schema_str), named)
        parsed = parsed_avro(json.loads(schema.schema_str), named)
        column = _avro_column(parsed, named, ())
        fix = column.fix or _same
        return Written(column, lambda body: fix(there(read_avro(parsed, body))))

    def _protobuf(self, schema: Any, indexes: tuple[int, ...]) -> Written:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        pool = descriptor_pool.DescriptorPool()
        files = self._references(schema, _form(PROTOBUF))
        proto = descriptor_pb2.FileDescriptorProto()
        for name, one in (*files, ("clog.value", schema)):
            proto.ParseFromString(base64.b64decode(one.schema_str, validate=True))
            proto.name = name
            for needed in proto.dependency:
                _add_well_known(pool, needed)
            pool.Add(proto)
        names, inner = [proto.package] if proto.package else [], proto.message_type
        for i in indexes:
            if not 0 <= i < len(inner):
                raise InvalidInputError(
                    f"it has {len(inner)} messages, but number {i} is requested"
                )
            names.append(inner[i].name)
            inner = inner[i].nested_type
        found = pool.FindMessageTypeByName(".".join(names))
        column = _message_column(found, ())
        make, read = message_factory.GetMessageClass(found), column.fix
        assert read is not None, "a message is only read through its fields"
        return Written(Column(column.kind), lambda body: read(make.FromString(body)))

    def _references(self, schema: Any, form: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
        """Yields the schemas that a schema refers to, with names, dependencies first, each once."""
        done: set[str] = set()

        def visit(one: Any, depth: int) -> Iterator[tuple[str, Any]]:
            if depth > _INDEXES_MAX:
                raise InvalidInputError("its references are nested too deeply")
            for reference in one.references or ():
                if reference.name in done:
                    continue
                done.add(reference.name)
                place = (reference.subject, reference.version)
                found = self._asked(partial(self._client.get_version, *place, **form))
                if found is None:
                    raise InvalidInputError(f"it refers to {place}, which the registry lacks")
                yield from visit(found.schema, depth + 1)
                yield reference.name, found.schema

        yield from visit(schema, 0)

    def _asked(self, ask: Any) -> Any:
        """Returns an answer of the registry; None if it says "not found"."""
        try:
            return ask()
        except self._error as e:
            if e.http_status_code == _NOT_FOUND:
                return None
            if e.http_status_code in _REFUSED:
                raise InvalidInputError(
                    f"the schema registry {self.url} refuses to answer ({e.http_status_code});"
                    " check its options, such as basic.auth.user.info"
                ) from None
            why = f"it says {e.http_status_code}"
        except Exception as e:  # noqa: BLE001 - one of three HTTP clients, depending on the release
            why = type(e).__name__
        raise SourceUnavailableError(
            f"the schema registry {self.url} did not answer ({why}); check the address, then run it"
            " again"
        )


def _form(kind: str) -> dict[str, str]:
    return {"fmt": "serialized"} if kind == PROTOBUF else {}


def framed(registry: Registry, kind: str, data: bytes) -> tuple[Written, bytes]:
    """Returns the schema with which bytes were written, and the bytes after their header."""
    number, body = headed(data)
    if kind != PROTOBUF:
        return registry.written(kind, number), body
    indexes, body = _indexes(body)
    return registry.written(kind, number, indexes), body


def _indexes(body: bytes) -> tuple[tuple[int, ...], bytes]:
    """Returns the indexes of a message in its file (varints, or 0 for the first), and the rest."""
    count, at = _varint(body, 0)
    if count == 0:
        return (0,), body[at:]
    if not 0 < count <= _INDEXES_MAX:
        raise UndecodableError(f"gives {count} numbers for a message")
    found = []
    for _ in range(count):
        index, at = _varint(body, at)
        found.append(index)
    return tuple(found), body[at:]


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i in range(10):
        if at + i >= len(body):
            break
        value |= (body[at + i] & 127) << 7 * i
        if body[at + i] < 128:
            return (value >> 1) ^ -(value & 1), at + i + 1
    raise UndecodableError("has no message numbers after the schema id")


_AVRO: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL: Final = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}
"""Logical types whose values fastavro converts to Python's."""


def _avro_column(schema: Any, named: Mapping[str, Any], above: tuple[str, ...]) -> Column:
    """Returns the column for an Avro schema."""
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise InvalidInputError("a union of several types cannot be a column")
        found = _avro_column(others[0], named, above)
        return replace(found, nullable=len(schema) > 1)
    if isinstance(schema, str):
        if schema in _AVRO:
            return Column(_AVRO[schema])
        if schema not in named:
            raise InvalidInputError(f"the type {schema:.80} has no column")
        schema = named[schema]
    kind, name = schema["type"], schema.get("name")
    if name is not None and name in above:
        raise InvalidInputError(f"the type {name:.80} contains itself, so it cannot be a column")
    if kind in ("record", "error"):
        return struct_of(
            ((f["name"], _avro_column(f["type"], named, (*above, name))) for f in schema["fields"]),
            f"the record {name:.80}",
        )
    if kind == "array":
        return list_of(_avro_column(schema["items"], named, above))
    if kind == "map":
        return map_of(Column(pa.string()), _avro_column(schema["values"], named, above))
    return _avro_leaf(schema) or _avro_column(kind, named, above)


def _avro_leaf(schema: Mapping[str, Any]) -> Column | None:
    """Returns the column for a logical, fixed or named type; None if it is a plain one."""
    logical = schema.get("logicalType")
    if logical == "decimal":
        return Column(decimal_of(schema["precision"], schema.get("scale")))
    if logical in _LOGICAL:
        return Column(_LOGICAL[logical])
    if schema["type"] == "fixed":
        return Column(fixed_of(schema["size"]))
    return meaning_of(schema.get("connect.name"))


_SCALARS: Final = {
    1: pa.float64(),
    2: pa.float32(),
    3: pa.int64(),
    4: pa.uint64(),
    5: pa.int32(),
    6: pa.uint64(),
    7: pa.uint32(),
    8: pa.bool_(),
    9: pa.string(),
    12: pa.binary(),
    13: pa.uint32(),
    15: pa.int32(),
    16: pa.int64(),
    17: pa.int32(),
    18: pa.int64(),
}
"""Columns of Protobuf's scalar types, by their numbers in descriptors."""
_ENUM: Final = 14
_WRAPPED: Final = "google.protobuf."
_STAMP: Final = pa.timestamp("ns", "UTC")


def _add_well_known(pool: Any, name: str) -> None:
    """Adds a file that Protobuf itself provides, with its dependencies."""
    from importlib import import_module

    from google.protobuf import descriptor_pb2

    if not name.startswith("google/protobuf/") or "/" in name.removeprefix("google/protobuf/"):
        return
    try:
        module = import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2")
    except ImportError:
        raise InvalidInputError(f"it needs {name:.80}, which Protobuf does not include") from None
    proto = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(proto)
    for needed in proto.dependency:
        _add_well_known(pool, needed)
    pool.Add(proto)


def _message_column(message: Any, above: tuple[str, ...]) -> Column:
    """Returns the column for messages; its fix reads a message."""
    name = message.full_name
    if name in above:
        raise InvalidInputError(f"the message {name:.80} contains itself, so it cannot be a column")
    if name == f"{_WRAPPED}Timestamp":
        return Column(_STAMP, _stamp)
    above = (*above, name)
    fields = []

    def columns() -> Iterator[tuple[str, Column]]:
        for field in message.fields:
            fields.append((field, _field_column(field, above)))
            yield field.name, fields[-1][1]

    found = struct_of(columns(), f"the message {name:.80}")
    if (
        name.startswith(_WRAPPED)
        and name.endswith("Value")
        and list(message.fields_by_name) == ["value"]
    ):
        return replace(fields[0][1], fix=lambda m: m.value)
    readers = [(f.name, f.has_presence, column.fix or _same) for f, column in fields]

    def read(m: Any) -> dict[str, Any]:
        return {
            name: None if optional and not m.HasField(name) else fix(getattr(m, name))
            for name, optional, fix in readers
        }

    return replace(found, fix=read)


def _field_column(field: Any, above: tuple[str, ...]) -> Column:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key, value = (inner.fields_by_name[name] for name in ("key", "value"))
        item = _lone_column(value, above)
        made = map_of(_lone_column(key, above), item)
        fix = item.fix or _same
        return replace(made, fix=lambda some: [(k, fix(v)) for k, v in some.items()])
    one = _lone_column(field, above)
    if _is_repeated(field):
        fix = one.fix or _same
        return replace(list_of(one), fix=lambda some: [fix(x) for x in some])
    return replace(one, nullable=field.has_presence)


def _lone_column(field: Any, above: tuple[str, ...]) -> Column:
    if field.message_type is not None:
        return _message_column(field.message_type, above)
    if field.type == _ENUM:
        names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        return Column(pa.string(), lambda number: names.get(number, str(number)))
    return Column(_SCALARS[field.type])


def _is_repeated(field: Any) -> bool:
    """Returns whether a field is a list; Protobuf 7 has another attribute for it."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)


def _same(value: Any) -> Any:
    return value


def _stamp(message: Any) -> Any:
    """Returns a time to the nanosecond; a text, which fits no column, if it is out of range."""
    ns = message.seconds * 1_000_000_000 + message.nanos
    return np.datetime64(ns, "ns") if -(2**63) < ns < 2**63 else str(ns)
