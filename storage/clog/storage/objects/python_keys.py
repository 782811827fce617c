"""Keys as Python's values: those that a user asks for, and those that are answered with.

A key that is a struct is a tuple of its fields, which can stand in a dict; it may be asked for as a
dict, too.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from clog.storage.errors import InvalidInputError
from clog.storage.format.schema import LogSchema
from clog.storage.keys.key_bytes import key_bytes
from clog.storage.objects.arrow_types import column_types
from clog.storage.objects.conforming import UnfitError
from clog.storage.objects.python_values import made_of_python


def asked_keys(keys: Iterable[Any], schema: LogSchema | None) -> list[bytes]:
    """Returns the canonical bytes of keys that are asked for.

    Raises:
        InvalidInputError: a key of another type than the log's, or text that UTF-8 cannot hold.
    """
    if schema is None:
        return [bytes_of(key) for key in keys]
    kind = column_types(schema).key
    return _bytes_of([_with_names(key, kind) for key in keys], kind)


def _bytes_of(given: list[Any], kind: pa.DataType) -> list[bytes]:
    try:
        made = key_bytes(made_of_python(given, kind, "key"))
    except UnfitError as e:
        raise InvalidInputError(f"key {e.at} of those asked for {e.what}") from None
    if made.null_count:
        raise InvalidInputError("a key that is asked for is None; records without a key have none")
    listed: list[bytes] = made.to_pylist()
    return listed


def asked_prefix(prefix: Any, schema: LogSchema | None) -> bytes:
    """Returns what the canonical bytes of all keys with a prefix begin with: of text and bytes the
    prefix itself, of structs that of the first fields, which are given as a tuple.

    Raises:
        InvalidInputError: such keys have no prefixes, or others.
    """
    kind = None if schema is None else column_types(schema).key
    is_octets = kind is None or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)
    if prefix is None:
        return b""
    if isinstance(prefix, str) and (is_octets or pa.types.is_string(kind)):
        return bytes_of(prefix)
    if isinstance(prefix, (bytes, bytearray, memoryview)) and is_octets:
        return bytes(prefix)
    if isinstance(prefix, tuple) and kind is not None and pa.types.is_struct(kind):
        first = pa.struct(list(kind)[: len(prefix)])
        (found,) = _bytes_of([_with_names(prefix, first)], first)
        return found
    raise InvalidInputError(
        f"a prefix of type {type(prefix).__name__} is asked for, but keys are of type {kind};"
        " prefixes are of text and bytes, and of structs the first fields, as a tuple"
    )


def bytes_of(key: Any) -> bytes:
    """Returns a key that is asked for, of a log of bytes.

    Raises:
        InvalidInputError: it is neither bytes nor text.
    """
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    if not isinstance(key, str):
        raise InvalidInputError(
            f"a key of type {type(key).__name__} is asked for; it must be bytes or str"
        )
    try:
        return key.encode()
    except UnicodeEncodeError as e:
        raise InvalidInputError(
            "a key that is asked for is not valid text: a lone surrogate at character"
            f" {e.start}; pass binary data as bytes"
        ) from None


def answered(column: pa.Array) -> list[Any]:
    """Returns keys or values as Python's.

    Raises:
        InvalidInputError: a time that Python has no value for.
    """
    try:
        found: list[Any] = column.to_pylist()
    except OverflowError:
        raise InvalidInputError(
            "a time that is asked for is before the year 1 or after the year 9999, which Python has"
            " no value for; read it as Arrow's, with to_arrow()"
        ) from None
    return found


def answered_key(key: Any) -> Any:
    """Returns a key as Arrow lists it, as one that can stand in a dict."""
    return tuple(map(answered_key, key.values())) if isinstance(key, Mapping) else key


def _with_names(key: Any, kind: pa.DataType) -> Any:
    """Returns a key with names for the fields of tuples."""
    if not (pa.types.is_struct(kind) and isinstance(key, tuple)):
        return key
    if len(key) != kind.num_fields:
        names = [field.name for field in kind]
        raise InvalidInputError(f"a key of {len(key)} fields is asked for; the log's has {names}")
    return {f.name: _with_names(part, f.type) for f, part in zip(kind, key, strict=True)}
