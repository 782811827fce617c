"""The encoding of keys and values of a log in the file of a state table, as bytes.

Those of a log of bytes are kept as they are. In a typed log, keys are their canonical bytes, which
sort as the keys do, and values are *row bytes*, which no other module and no other release needs to
know: 00 for null, else 01 and

1. for types of fixed width: the value in Arrow's form;
2. for text and bytes: their length (4 bytes) and themselves;
3. for a struct: its fields; for a list or a map: the number of elements (4 bytes), and those.

They are written for all rows of a batch together, and read one by one, when they are looked up.
"""

import datetime as dt
import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.errors import InvalidInputError
from clog.storage.format.log_info import LogSchema
from clog.storage.keys.hashing import key_bytes, key_of_bytes
from clog.storage.numpy_arrays import null, of_bytes, scalar, to_arrow, to_numpy, validity_of
from clog.storage.read.lookup import answered, asked_keys, asked_prefix
from clog.storage.types.columns import column_types, elements, entries_type, is_listed, list_lengths
from clog.storage.types.conform import from_python

_LENGTH: Final = struct.Struct("<I")
_NUMBERS: Final = {
    kind: struct.Struct(f"<{code}")
    for kind, code in {
        pa.int8(): "b",
        pa.int16(): "h",
        pa.int32(): "i",
        pa.int64(): "q",
        pa.uint8(): "B",
        pa.uint16(): "H",
        pa.uint32(): "I",
        pa.uint64(): "Q",
        pa.float32(): "f",
        pa.float64(): "d",
    }.items()
}


class RowCodec:
    """Keys and values of logs with one schema; None: bytes."""

    def __init__(self, schema: LogSchema | None) -> None:
        self.schema = schema
        self._types = None if schema is None else column_types(schema)

    def keys(self, keys: Iterable[Any]) -> list[bytes]:
        """Returns the bytes of keys that are looked up."""
        return asked_keys(keys, self.schema)

    def stored_key(self, key: Any) -> bytes:
        """Returns the bytes of one key that is looked up; raises as `keys`."""
        if self._types is None and type(key) is bytes:
            return key
        return self.keys((key,))[0]

    def prefix(self, prefix: Any) -> bytes:
        """Returns the bytes with which all keys with a prefix begin."""
        return asked_prefix(prefix, self.schema)

    def key(self, data: bytes) -> Any:
        """Returns a key as users see it."""
        return data if self._types is None else key_of_bytes(data, self._types.key)

    def value(self, data: bytes) -> Any:
        """Returns a value as users see it."""
        return data if self._types is None else _read(memoryview(data), 0, self._types.value)[0]

    def stored_value(self, value: Any) -> bytes:
        """Returns the bytes of a value to store."""
        if value is None:
            raise InvalidInputError("a value to put is None; delete the key instead")
        if self._types is None:
            return _octets(value)
        made: bytes = row_bytes(from_python([value], self._types.records.field("value")))[0].as_py()
        return made

    def records(self, keys: list[bytes], values: list[bytes | None]) -> dict[str, pa.Array]:
        """Returns the columns of records with these keys and values, None: a tombstone."""
        if self._types is None:
            return {"key": of_bytes(keys), "value": of_bytes(values)}
        decoded = [None if value is None else self.value(value) for value in values]
        types = self._types.records
        named = [_with_names(self.key(key), self._types.key) for key in keys]
        return {
            "key": from_python(named, types.field("key")),
            "value": from_python(decoded, types.field("value")),
        }

    def columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a batch with its keys and values as bytes."""
        if self._types is None:
            return batch
        made = {"key": key_bytes(batch.column("key")), "value": row_bytes(batch.column("value"))}
        names = batch.schema.names
        arrays = [made[name] if name in made else batch.column(name) for name in names]
        return pa.RecordBatch.from_arrays(arrays, names=names)


def _octets(value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as e:
            raise InvalidInputError(
                f"a value to put is not valid text: a lone surrogate at character {e.start}; pass"
                " binary data as bytes"
            ) from None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidInputError(
        f"a value to put has type {type(value).__name__}; it must be bytes or str"
    )


def _with_names(key: Any, kind: pa.DataType) -> Any:
    """Returns a key as users see it, with names for the fields of tuples."""
    if not pa.types.is_struct(kind) or key is None:
        return key
    return {f.name: _with_names(part, f.type) for f, part in zip(kind, key, strict=True)}


def row_bytes(values: pa.Array) -> pa.Array:
    """Returns the row bytes of values; null for null."""
    return pc.binary_join_element_wise(_constant(b"\x01"), *_contents(values), _constant(b""))


def _contents(values: pa.Array) -> list[pa.Array]:
    """Returns the bytes that follow 01, in parts; null where the value is null."""
    kind = values.type
    if pa.types.is_struct(kind):
        parts = [_with_mark(field) for field in values.flatten()]
        return [pc.if_else(values.is_valid(), parts[0], null(pa.binary())), *parts[1:]]
    if is_listed(kind):
        lengths = list_lengths(values)
        ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        flat = _with_mark(elements(values))
        valid = values.is_valid()
        lists = pa.ListArray.from_arrays(to_arrow(ends), flat)
        counts = pc.if_else(valid, _lengths(lengths), null(pa.binary()))
        return [counts, pc.binary_join(lists, _constant(b""))]
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        octets = values.cast(pa.binary())
        lengths = to_numpy(pc.fill_null(pc.binary_length(octets), scalar(0, pa.int32())))
        return [_lengths(lengths), octets]
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    width = values.type.byte_width
    data = values.buffers()[1].slice(values.offset * width, len(values) * width)
    buffers = [validity_of(values), data]
    return [pa.Array.from_buffers(pa.binary(width), len(values), buffers).cast(pa.binary())]


def _with_mark(values: pa.Array) -> pa.Array:
    return pc.fill_null(row_bytes(values), _constant(b"\x00"))


def _lengths(lengths: np.ndarray[Any, Any]) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(lengths, "<u4"))
    return pa.Array.from_buffers(pa.binary(4), len(lengths), [None, data]).cast(pa.binary())


def _constant(text: bytes) -> pa.Scalar:
    return of_bytes([text])[0]


def _read(data: memoryview, at: int, kind: pa.DataType) -> tuple[Any, int]:
    """Returns the value that begins at ``at``, and where it ends."""
    if not data[at]:
        return None, at + 1
    return _reader_of(kind)(data, at + 1)


@lru_cache(maxsize=1024)
def _reader_of(kind: pa.DataType) -> Callable[[memoryview, int], tuple[Any, int]]:
    """Returns a function that reads a value of this type that is not null."""
    if (number := _NUMBERS.get(kind)) is not None:
        return lambda data, at: (number.unpack_from(data, at)[0], at + number.size)
    if pa.types.is_struct(kind):
        fields = [(field.name, field.type) for field in kind]
        return lambda data, at: _read_struct(data, at, fields)
    if is_listed(kind):
        return lambda data, at: _read_list(data, at, kind)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return lambda data, at: _read_text(data, at, is_text=pa.types.is_string(kind))
    if pa.types.is_boolean(kind):
        return lambda data, at: (bool(data[at]), at + 1)
    return lambda data, at: _read_other(data, at, kind)


def _read_struct(
    data: memoryview, at: int, fields: list[tuple[str, pa.DataType]]
) -> tuple[dict[str, Any], int]:
    found = {}
    for name, kind in fields:
        found[name], at = _read(data, at, kind)
    return found, at


def _read_list(data: memoryview, at: int, kind: pa.DataType) -> tuple[list[Any], int]:
    (count,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    found = []
    for _ in range(count):
        element, at = _read(data, at, entries_type(kind))
        found.append(tuple(element.values()) if pa.types.is_map(kind) else element)
    return found, at


def _read_text(data: memoryview, at: int, *, is_text: bool) -> tuple[str | bytes, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    octets = bytes(data[at : at + length])
    return (octets.decode() if is_text else octets), at + length


def _read_other(data: memoryview, at: int, kind: pa.DataType) -> tuple[Any, int]:
    end = at + kind.byte_width
    buffers = [None, pa.py_buffer(bytes(data[at:end]))]
    if pa.types.is_timestamp(kind) and kind.tz and kind.unit != "ns":  # Zones import pandas.
        (plain,) = answered(pa.Array.from_buffers(pa.timestamp(kind.unit), 1, buffers))
        return plain.replace(tzinfo=dt.UTC), end  # A schema has no other zone.
    return answered(pa.Array.from_buffers(kind, 1, buffers))[0], end
