"""Typed keys and values as JSON, both ways. Pure.

Numbers, truth values and text are JSON's own; bytes are base64; decimals, dates, times and
timestamps are text, ISO 8601 (``2026-01-31T12:00:00.000001Z``, without the Z where they have no
zone, with as many digits as they need); a decimal may be a number, too; floats that are no numbers
are ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``. Structs are objects, lists arrays, maps arrays of
pairs. What comes out goes in again as the same.
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clog.storage.errors import InvalidInputError
from clog.storage.objects.conforming import Unreadable
from clog.storage.objects.layout import is_listed

_Convert = Callable[[Any], Any]
_FINER: Final = re.compile(r"[.,]\d{6}\d*?[1-9]")
"""In text of a time: more than microseconds, which Python would cut off."""
_FAR: Final = re.compile(r"-\d{4,}-|\d{5,}-|0000-")
"""What text of a day begins with that no calendar of Python's has."""
_TIME: Final = re.compile(r"(\d\d):(\d\d):(\d\d)\.(\d{9})")


class _Literal(float):
    """``NaN`` or ``Infinity`` without quotes, which is no JSON, and what many write."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a field twice, so what is meant is not certain")
    return found


_DECODERS: Final = {
    exact: json.JSONDecoder(
        object_pairs_hook=_once,
        parse_float=Decimal if exact else None,
        parse_constant=_Literal,
    )
    for exact in (False, True)
}


def parsed_json(data: str | bytes, *kinds: pa.DataType) -> Any:
    """Returns what JSON holds, for `from_json` to make values of these types of parts of it.

    Raises:
        ValueError: it is no JSON, or an object in it has a field twice.
    """
    if isinstance(data, bytes):
        data = data.decode(json.detect_encoding(data), "surrogatepass")
    return _DECODERS[any(map(_has_decimals, kinds))].decode(data)


@lru_cache(maxsize=256)
def _has_decimals(kind: pa.DataType) -> bool:
    fields = [kind.field(i).type for i in range(kind.num_fields)]
    return pa.types.is_decimal(kind) or any(map(_has_decimals, fields))


def column_json(column: pa.Array) -> list[Any]:
    """Returns the values of a column as JSON has them."""
    to_json = _writer(column.type)
    return [None if value is None else to_json(value) for value in _listed(column)]


def _listed(column: pa.Array) -> list[Any]:
    """Returns Python's values, with text for times of which Python has none."""
    if not _has_nanoseconds(column.type):
        try:
            values: list[Any] = column.to_pylist()
        except (OverflowError, ValueError):
            pass
        else:
            return values
    return [_of_scalar(scalar) for scalar in column]


@lru_cache(maxsize=256)
def _has_nanoseconds(kind: pa.DataType) -> bool:
    fields = [kind.field(i).type for i in range(kind.num_fields)]
    return kind == pa.time64("ns") or any(map(_has_nanoseconds, fields))


def _of_scalar(scalar: pa.Scalar) -> Any:
    kind, types = scalar.type, pa.types
    if not scalar.is_valid:
        return None
    if types.is_struct(kind):
        return {field.name: _of_scalar(scalar[i]) for i, field in enumerate(kind)}
    if is_listed(kind):
        inner = [_of_scalar(one) for one in scalar.values]
        return [tuple(pair.values()) for pair in inner] if types.is_map(kind) else inner
    if kind == pa.time64("ns"):
        whole, fraction = divmod(scalar.value, 1_000_000_000)
        clock = time(whole // 3600, whole // 60 % 60, whole % 60)
        return f"{clock.isoformat()}.{fraction:09}"
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        unit: Any = kind.unit if types.is_timestamp(kind) else "D"
        zone = "Z" if types.is_timestamp(kind) and kind.tz else ""
        return f"{np.datetime64(scalar.value, unit)}{zone}"


def from_json(value: Any, kind: pa.DataType) -> Any:
    """Returns the value that JSON stands for; what is no such value is returned as it is, or as
    `Unreadable`, for `Log.append` to refuse by its record and field.
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
        value = parsed_json(text, kind)
    except ValueError:
        value = text
    found = from_json(value, kind)
    if isinstance(found, str | Unreadable):
        raise InvalidInputError(f"a key is not a {kind}; write it as clog consume --json shows it")
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
        return lambda v: v if isinstance(v, str) else v.isoformat()
    return lambda v: v


def _float_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _timestamp_json(value: Any) -> str:
    if isinstance(value, str):
        return value
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
        (types.is_timestamp, lambda v: _timestamp(v, kind)),
        (types.is_date, _date),
        (types.is_time, lambda v: _time(v, kind)),
    )
    return next((read for test, read in table if test(kind)), _number)


def _number(value: Any) -> Any:
    """Returns what needs no reading; a number as the float that it would be."""
    return float(value) if isinstance(value, Decimal | _Literal) else value


def _date(value: Any) -> Any:
    if not isinstance(value, str):
        return _number(value)
    try:
        return np.datetime64(value, "D") if _FAR.match(value) else date.fromisoformat(value)
    except ValueError:
        return Unreadable("is not an ISO 8601 date, such as 2026-01-31")


def _time(value: Any, kind: pa.DataType) -> Any:
    if not isinstance(value, str):
        return _number(value)
    try:
        found = time.fromisoformat(value)
    except ValueError:
        return Unreadable("is not an ISO 8601 time of day, such as 12:00:00.000001")
    if not _FINER.search(value):
        return found
    if kind.unit != "ns" or not (digits := _TIME.fullmatch(value)):
        return Unreadable(f"does not fit {kind}")
    hours, minutes, seconds, fraction = map(int, digits.groups())
    whole = (hours * 60 + minutes) * 60 + seconds
    return np.timedelta64(whole * 1_000_000_000 + fraction, "ns")


def _map(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, dict):
        value = list(value.items())
    if not isinstance(value, list) or not all(isinstance(p, list | tuple) for p in value):
        return value
    kinds = kind.key_type, kind.item_type
    return [tuple(map(from_json, pair, kinds)) if len(pair) == 2 else pair for pair in value]


def _base64(value: Any) -> Any:
    if not isinstance(value, str):
        return _number(value)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return Unreadable("is not base64, the form of bytes in JSON")


def _float(value: Any) -> Any:
    if isinstance(value, str):
        if value in ("NaN", "Infinity", "-Infinity"):
            return float(value)
        return Unreadable('is text, and no number, nor "NaN", "Infinity" or "-Infinity"')
    found = _number(value)
    if isinstance(found, float) and math.isinf(found) and not isinstance(value, _Literal):
        return Unreadable("is larger than a float can be")
    return found


def _decimal(value: Any) -> Any:
    try:
        return Decimal(value) if isinstance(value, str) else value
    except InvalidOperation:
        return Unreadable("is text that is not a decimal")


def _timestamp(value: Any, kind: pa.DataType) -> Any:
    if not isinstance(value, str):
        return _number(value)
    try:
        if kind.unit == "ns" or _FAR.match(value):  # With all of its digits, of UTC or no zone.
            return np.datetime64(value.removesuffix("Z"), kind.unit)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(value)
        found = found if found.tzinfo is None else found.astimezone(UTC)
    except ValueError:
        return Unreadable("is not an ISO 8601 time, such as 2026-01-31T12:00:00Z")
    except OverflowError:
        return Unreadable("is before the year 1 or after the year 9999 in UTC")
    return Unreadable(f"does not fit {kind}") if _FINER.search(value) else found
