"""Typed keys and values as JSON, both ways. Pure.

Numbers, truth values and text are JSON's own; bytes are base64; decimals, dates, times and
timestamps are text, ISO 8601 (``2026-01-31T12:00:00.000001Z``, without the Z where they have no
zone); floats that are no numbers are ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``. Structs are
objects, lists arrays, maps arrays of pairs. What comes out goes in again as the same.
"""

import base64
import binascii
import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from clog.storage.errors import InvalidInputError

_Convert = Callable[[Any], Any]


def column_json(column: pa.Array) -> list[Any]:
    """Returns the values of a column as JSON has them."""
    to_json = _writer(column.type)
    return [None if value is None else to_json(value) for value in column.to_pylist()]


def from_json(value: Any, kind: pa.DataType) -> Any:
    """Returns the value that JSON stands for; what is no such value is returned as it is, for
    `Log.append` to refuse by its record and field.
    """
    return None if value is None else _reader(kind)(value)


def key_from_text(text: str, kind: pa.DataType) -> Any:
    """Returns the key that a text on the command line stands for: text itself, else JSON, in which
    no quotes are needed around one value.

    Raises:
        InvalidInputError: it is no such key.
    """
    if pa.types.is_string(kind):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    found = from_json(value, kind)
    if isinstance(found, str):
        raise InvalidInputError(f"a key is no {kind}; write it as clog consume --json shows it")
    return found


@lru_cache(maxsize=256)
def _writer(kind: pa.DataType) -> _Convert:
    """Returns what makes JSON of a value that is there."""
    types = pa.types
    if types.is_struct(kind):
        fields = [(field.name, _writer(field.type)) for field in kind]
        return lambda v: {n: None if v[n] is None else w(v[n]) for n, w in fields}
    if types.is_map(kind):
        key, item = _writer(kind.key_type), _writer(kind.item_type)
        return lambda v: [[key(k), None if x is None else item(x)] for k, x in v]
    if types.is_list(kind):
        inner = _writer(kind.value_type)
        return lambda v: [None if x is None else inner(x) for x in v]
    if types.is_binary(kind) or types.is_fixed_size_binary(kind):
        return lambda v: base64.b64encode(v).decode()
    if types.is_floating(kind):
        return _float_json
    if types.is_decimal(kind):
        return str
    if types.is_timestamp(kind):
        return _timestamp_json
    if types.is_date(kind) or types.is_time(kind):
        return lambda v: v.isoformat()
    return lambda v: v


def _float_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _timestamp_json(value: Any) -> str:
    # Python's own times have no nanoseconds: who has some is of pandas, and prints them.
    spec = "nanoseconds" if getattr(value, "nanosecond", 0) else "microseconds"
    return str(value.isoformat(timespec=spec)).replace("+00:00", "Z")


@lru_cache(maxsize=256)
def _reader(kind: pa.DataType) -> _Convert:
    """Returns what makes a value of JSON that is not null."""
    types = pa.types
    if types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        return lambda v: (
            {n: from_json(x, fields[n]) if n in fields else x for n, x in v.items()}
            if isinstance(v, dict)
            else v
        )
    if types.is_map(kind):
        return lambda v: _map(v, kind)
    if types.is_list(kind):
        inner = kind.value_type
        return lambda v: [from_json(x, inner) for x in v] if isinstance(v, list) else v
    table: tuple[tuple[Callable[[pa.DataType], bool], _Convert], ...] = (
        (types.is_binary, _base64),
        (types.is_fixed_size_binary, _base64),
        (types.is_floating, _float),
        (types.is_decimal, _decimal),
        (types.is_timestamp, _nanoseconds if _unit(kind) == "ns" else _timestamp),
        (types.is_date, _by(date.fromisoformat)),
        (types.is_time, _by(time.fromisoformat)),
    )
    return next((read for test, read in table if test(kind)), lambda v: v)


def _unit(kind: pa.DataType) -> str | None:
    """Returns the unit of a timestamp; None for any other type."""
    return kind.unit if pa.types.is_timestamp(kind) else None


def _nanoseconds(value: Any) -> Any:
    """Returns a time with all of its digits, where it is UTC or names no zone."""
    try:
        return np.datetime64(value.removesuffix("Z"), "ns") if isinstance(value, str) else value
    except ValueError:
        return _timestamp(value)


def _by(parse: Callable[[str], Any]) -> _Convert:
    def read(value: Any) -> Any:
        try:
            return parse(value) if isinstance(value, str) else value
        except ValueError:
            return value

    return read


def _map(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, dict):
        value = list(value.items())
    if not isinstance(value, list) or not all(isinstance(p, list | tuple) for p in value):
        return value
    kinds = kind.key_type, kind.item_type
    return [tuple(map(from_json, pair, kinds)) if len(pair) == 2 else pair for pair in value]


def _base64(value: Any) -> Any:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else value
    except binascii.Error:
        return 0  # Of no class that bytes have: refused with its place.


def _float(value: Any) -> Any:
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def _decimal(value: Any) -> Any:
    try:
        return Decimal(value) if isinstance(value, str) else value
    except InvalidOperation:
        return value


def _timestamp(value: Any) -> Any:
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value
    is_aware = isinstance(found, datetime) and found.tzinfo is not None
    return found.astimezone(UTC) if is_aware else found
