"""Values that a schema registry's serialisers wrote, as columns: Avro and Protobuf.

Each begins with a zero byte and four bytes of its schema's id; in Protobuf follow the *indexes* of
the message in its file, and the messages in that. Confluent's client asks the registry, each id
once, and a schema that is known there never changes.

What the registry does not know makes a value undecodable. A registry that does not answer says
nothing about values: that is an error of its own, so that no outage makes dead letters of a topic.
So it is with too many ids that are not known: these are no values of this registry.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clog.bridge.values import (
    Column,
    UndecodableError,
    Written,
    decimal_of,
    fixed_of,
    headed,
    list_of,
    map_of,
    meaning_of,
    parsed_avro,
    read_avro,
    struct_of,
    there,
)
from clog.storage.env import install_extra
from clog.storage.errors import InvalidInputError, SourceUnavailableError
from clog.storage.store.opening import redact

AVRO: Final = "AVRO"
PROTOBUF: Final = "PROTOBUF"
UNKNOWN_MAX: Final = 1000
"""So many ids may be unknown to the registry."""
_INDEXES_MAX: Final = 64
"""Messages within messages; Protobuf itself reads 100 levels."""
_NOT_FOUND: Final = 404
_REFUSED: Final = (401, 403)


class Registry:
    """Asks a schema registry; of one thread at a time.

    Args:
        url: where it is; a list of addresses with commas between is taken, too.
        options: of confluent-kafka's ``SchemaRegistryClient``, such as ``basic.auth.user.info``.
    """

    def __init__(self, url: str, options: Mapping[str, object]) -> None:
        try:
            import confluent_kafka.schema_registry as library
        except ImportError as e:
            raise InvalidInputError(
                f"a schema registry needs its client: {install_extra('registry')}"
            ) from e
        if "@" in url:
            raise InvalidInputError(
                "the address of a schema registry has no user in it; give basic.auth.user.info as"
                " an option of the registry"
            )
        self.url = redact(url)
        self._error = library.SchemaRegistryError
        try:
            self._client: Any = library.SchemaRegistryClient.new_client({**options, "url": url})
        except (AttributeError, TypeError, ValueError) as e:
            raise InvalidInputError(
                f"the options of the schema registry {self.url} are refused; they are those of"
                " confluent-kafka's SchemaRegistryClient"
            ) from e
        self._known: dict[tuple[str, int], Any] = {}
        self._parsed: dict[tuple[str, int, tuple[int, ...]], Written | str] = {}
        self._unknown = 0

    def latest(self, subject: str, kind: str) -> Written | None:
        """Returns what the newest schema of a subject makes; None: there is none."""
        found = self._asked(partial(self._client.get_latest_version, subject, **_form(kind)))
        if found is None:
            return None
        if type(found.schema_id) is not int:
            raise InvalidInputError(f"{self.url} has no id of the newest schema of {subject}")
        self._known.setdefault((kind, found.schema_id), found.schema)
        try:
            return self.written(kind, found.schema_id, (0,) if kind == PROTOBUF else ())
        except UndecodableError as e:
            raise InvalidInputError(f"the newest schema of subject {subject} {e}") from None

    def written(self, kind: str, number: int, indexes: tuple[int, ...] = ()) -> Written:
        """Returns what a schema makes. One request, the first time.

        Raises:
            UndecodableError: it is not known, or has no columns.
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
        """Returns what a schema makes, or why it makes nothing."""
        if (kind, number) not in self._known:
            ask = partial(self._client.get_schema, number, **_form(kind))
            self._known[kind, number] = self._asked(ask)
            self._unknown += self._known[kind, number] is None
            if self._unknown > UNKNOWN_MAX:
                raise InvalidInputError(
                    f"{UNKNOWN_MAX} schema ids are not known to {self.url}: the topic's values have"
                    " their schemas elsewhere, or no registry's header; check --registry and"
                    " --decode"
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
            return f"has the schema id {number}, whose rules clog does not follow"
        try:
            return self._avro(schema) if kind == AVRO else self._protobuf(schema, indexes)
        except SourceUnavailableError:
            raise
        except RecursionError:
            why = "it is nested too deep"
        except InvalidInputError as e:
            why = str(e)
        except Exception as e:  # noqa: BLE001 - any text may be registered
            why = f"it cannot be read ({type(e).__name__})"
        return f"has the schema id {number}, which makes no columns: {why}"

    def _avro(self, schema: Any) -> Written:
        named: dict[str, Any] = {}
        for _, one in self._references(schema, {}):
            parsed_avro(json.loads(one.schema_str), named)
        parsed = parsed_avro(json.loads(schema.schema_str), named)
        column = _avro_column(parsed, named, ())
        fix = column.fix or _as_it_is
        return Written(column, lambda body: fix(there(read_avro(parsed, body))))

    def _protobuf(self, schema: Any, indexes: tuple[int, ...]) -> Written:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        pool = descriptor_pool.DescriptorPool()
        files = self._references(schema, _form(PROTOBUF))
        told = descriptor_pb2.FileDescriptorProto()
        for name, one in (*files, ("clog.value", schema)):
            told.ParseFromString(base64.b64decode(one.schema_str, validate=True))
            told.name = name
            for needed in told.dependency:
                _add_well_known(pool, needed)
            pool.Add(told)
        names, inner = [told.package] if told.package else [], told.message_type
        for i in indexes:
            if not 0 <= i < len(inner):
                raise InvalidInputError(f"it has {len(inner)} messages where number {i} is named")
            names.append(inner[i].name)
            inner = inner[i].nested_type
        found = pool.FindMessageTypeByName(".".join(names))
        column = _message_column(found, ())
        make, read = message_factory.GetMessageClass(found), column.fix
        assert read is not None, "a message is read by its fields"
        return Written(Column(column.kind), lambda body: read(make.FromString(body)))

    def _references(self, schema: Any, form: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
        """Yields what a schema refers to, by name, before what refers to it, each once."""
        done: set[str] = set()

        def visit(one: Any, depth: int) -> Iterator[tuple[str, Any]]:
            if depth > _INDEXES_MAX:
                raise InvalidInputError("its references are nested too deep")
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
        """Returns an answer of the registry; None: it knows no such thing."""
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
        except Exception as e:  # noqa: BLE001 - of three HTTP clients, by the release
            why = type(e).__name__
        raise SourceUnavailableError(
            f"the schema registry {self.url} did not answer ({why}); check the address, then run it"
            " again"
        )


def _form(kind: str) -> dict[str, str]:
    return {"fmt": "serialized"} if kind == PROTOBUF else {}


def framed(registry: Registry, kind: str, data: bytes) -> tuple[Written, bytes]:
    """Returns with which schema bytes were written, and what comes behind their header."""
    number, body = headed(data)
    if kind != PROTOBUF:
        return registry.written(kind, number), body
    indexes, body = _indexes(body)
    return registry.written(kind, number, indexes), body


def _indexes(body: bytes) -> tuple[tuple[int, ...], bytes]:
    """Returns which message of a file it is, and what is behind: varints, or 0 for the first."""
    count, at = _varint(body, 0)
    if count == 0:
        return (0,), body[at:]
    if not 0 < count <= _INDEXES_MAX:
        raise UndecodableError(f"names a message by {count} numbers")
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
    raise UndecodableError("has no numbers of a message behind the schema's id")


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
"""Logical types whose values fastavro makes Python's."""


def _avro_column(schema: Any, named: Mapping[str, Any], above: tuple[str, ...]) -> Column:
    """Returns what values of a schema of Avro become."""
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise InvalidInputError("a union of several types has no column")
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
        raise InvalidInputError(f"the type {name:.80} has itself within, and so no column")
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
    """Returns what numbers, texts and bytes become that mean something; None: they do not."""
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
    """Adds what Protobuf itself brings, where a file depends on it."""
    from importlib import import_module

    from google.protobuf import descriptor_pb2

    if not name.startswith("google/protobuf/") or "/" in name.removeprefix("google/protobuf/"):
        return
    try:
        module = import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2")
    except ImportError:
        raise InvalidInputError(f"it needs {name:.80}, which Protobuf does not bring") from None
    told = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(told)
    for needed in told.dependency:
        _add_well_known(pool, needed)
    pool.Add(told)


def _message_column(message: Any, above: tuple[str, ...]) -> Column:
    """Returns what messages become; its fix reads a message."""
    name = message.full_name
    if name in above:
        raise InvalidInputError(f"the message {name:.80} has itself within, and so no column")
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
    readers = [(f.name, f.has_presence, column.fix or _as_it_is) for f, column in fields]

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
        fix = item.fix or _as_it_is
        return replace(made, fix=lambda some: [(k, fix(v)) for k, v in some.items()])
    one = _lone_column(field, above)
    if _is_repeated(field):
        fix = one.fix or _as_it_is
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
    """Tells whether a field is a list; Protobuf 7 says so otherwise than those before."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)


def _as_it_is(value: Any) -> Any:
    return value


def _stamp(message: Any) -> Any:
    """Returns a time to the nanosecond, or what fits no column."""
    ns = message.seconds * 1_000_000_000 + message.nanos
    return np.datetime64(ns, "ns") if -(2**63) < ns < 2**63 else str(ns)
