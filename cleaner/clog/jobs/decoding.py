"""Keys and values in bytes, decoded: JSON, Avro, or what they are. Pure.

A decoder takes bytes and the type that is wanted, and returns a value of Python's as `Log.append`
takes it; whether it fits the type is seen later, for many at once. One that cannot be decoded is an
`UndecodableError`, whose text is the reason and holds nothing of the bytes.
"""

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final, Protocol

import pyarrow as pa

from clog.storage.errors import InvalidInputError
from clog.storage.installation import install_extra
from clog.storage.objects.typed_json import from_json, parsed_json

_MAGIC: Final = 0
_HEADER_BYTES: Final = 5


class UndecodableError(Exception):
    """Bytes that cannot be decoded; the text gives the reason."""


class Decode(Protocol):
    """Makes a Python value of bytes, for a type of the log; raises `UndecodableError`."""

    def __call__(self, data: bytes, kind: pa.DataType, /) -> Any:
        """Returns the value."""


def json_values(data: bytes, kind: pa.DataType) -> Any:
    """Decodes JSON; types that JSON lacks are written as ``clog consume --json`` prints them.

    Args:
        data: UTF-8; a schema registry's header before it is skipped.
        kind: the type that the log has for it.

    Raises:
        UndecodableError: it is not JSON, or it is null.
    """
    try:
        value = parsed_json(_text(_without_header(data)), kind)
    except json.JSONDecodeError as e:
        raise UndecodableError(f"is no JSON: {e.msg} at character {e.pos}") from None
    except RecursionError:
        raise UndecodableError("is JSON that is nested too deep") from None
    except ValueError as e:
        raise UndecodableError(f"is no JSON that can be read: {e}") from None
    return _there(from_json(value, kind))


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
    """
    if (schema is None) == (by_id is None):
        raise InvalidInputError("give one schema of Avro, or schemas by their ids")
    try:
        import fastavro
    except ImportError as e:
        raise InvalidInputError(f"Avro needs fastavro: {install_extra('avro')}") from e
    given = {None: schema} if by_id is None else dict(by_id)
    try:
        parsed = {
            number: fastavro.parse_schema(_without_uuid(one)) for number, one in given.items()
        }
    except Exception as e:
        raise InvalidInputError(f"this is not an Avro schema: {e}") from e

    def decode(data: bytes, kind: pa.DataType) -> Any:  # noqa: ARG001 - a schema says the types
        number, body = (None, data) if by_id is None else _headed(data)
        if number not in parsed:
            raise UndecodableError(f"has the schema id {number}, and no schema was given for it")
        buffer = BytesIO(body)
        try:
            value = fastavro.schemaless_reader(buffer, parsed[number], None)
        except Exception as e:  # noqa: BLE001 - any bytes may come, and they raise anything
            what = f"is no Avro of this schema: {type(e).__name__}"
            raise UndecodableError(what + _hint(data, number)) from None
        if buffer.read(1):
            what = "is no Avro of this schema: bytes are left over"
            raise UndecodableError(what + _hint(data, number))
        return _there(value)

    return decode


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        raise UndecodableError(f"is no UTF-8 at byte {e.start}") from None


def _there(value: Any) -> Any:
    if value is None:  # It would delete the key.
        raise UndecodableError("is null inside of its encoding, which is no tombstone")
    return value


def _without_header(data: bytes) -> bytes:
    return data[_HEADER_BYTES:] if data[:1] == b"\0" else data


def _hint(data: bytes, number: int | None) -> str:
    """Returns what to do about the header of a registry that nobody said was there."""
    if number is not None or len(data) < _HEADER_BYTES or data[0] != _MAGIC:
        return ""
    found, _ = _headed(data)
    return (
        f"; it begins as values of a schema registry do, with the schema id {found}: give the"
        f" schema by its id (--avro-schema {found}=FILE, avro_values(by_id=…))"
    )


def _headed(data: bytes) -> tuple[int, bytes]:
    if len(data) < _HEADER_BYTES or data[0] != _MAGIC:
        raise UndecodableError("has no header with a schema id")
    return int.from_bytes(data[1:_HEADER_BYTES], "big"), data[_HEADER_BYTES:]


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
