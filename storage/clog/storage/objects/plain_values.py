"""Python's own values as arrays of a schema's types, without ``pa.array``, which imports pandas
where it is installed (`numpy_arrays`).

Only what fits as it is, and is of Python's own classes: for anything else there is no array, and
whoever asks leaves it to Arrow, which converts it or says why it does not.
"""

import datetime as dt
import decimal
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clog.storage.numpy_arrays import dtype_of, of_bytes, of_numbers, to_arrow, validity

_EPOCH_UTC: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH: Final = _EPOCH_UTC.replace(tzinfo=None)
_EPOCH_DAYS: Final = _EPOCH.toordinal()
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_PER_MICROSECOND: Final = {"us": 1, "ns": 1000}
_EXACT_FLOATS: Final = range(-(1 << 53), (1 << 53) + 1)


class _OtherError(Exception):
    """A value that is Arrow's to convert, or to refuse."""


def of_plain(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """Returns an array of a type that is not nested, null where a value is None; None where a value
    is not of one of Python's classes for it, or does not fit as it is.
    """
    found = _maker(kind)
    if found is None or not found[0].issuperset(map(type, values)):
        return None
    try:
        return found[1](values, kind)
    except (_OtherError, UnicodeEncodeError):
        return None


@lru_cache(256)
def _maker(kind: pa.DataType) -> tuple[frozenset[type], Callable[..., pa.Array]] | None:
    """Returns the classes of values of a type, None's among them, and what makes their array: once
    for each type, as values of a state store come one by one.
    """
    types = pa.types
    table: Sequence[tuple[Any, tuple[type, ...], Callable[..., pa.Array]]] = (
        (types.is_boolean, (bool,), _truths),
        (types.is_integer, (int,), _numbers),
        (types.is_float64, (float, int), _floats),
        (types.is_string, (str,), _octets),
        (types.is_binary, (bytes, bytearray, str), _octets),
        (types.is_fixed_size_binary, (bytes, bytearray), _fixed),
        (types.is_decimal, (decimal.Decimal, int), _decimals),
        (types.is_date32, (dt.date, np.datetime64), _dates),
        (types.is_timestamp, (dt.datetime, np.datetime64), _timestamps),
        (types.is_time64, (dt.time, np.timedelta64), _times),
    )
    found = ((classes, make) for test, classes, make in table if test(kind))
    return next(((frozenset((*classes, type(None))), make) for classes, make in found), None)


@lru_cache(64)
def _bounds(kind: pa.DataType) -> tuple[int, int]:
    bounds = np.iinfo(dtype_of(kind))
    return int(bounds.min), int(bounds.max)


def _numbers(numbers: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    low, high = _bounds(kind)
    there = [number for number in numbers if number is not None]
    if there and not (low <= min(there) and max(there) <= high):
        raise _OtherError
    return of_numbers(numbers, kind)


def _truths(values: Sequence[bool | None], _kind: pa.DataType) -> pa.Array:
    valid = np.array([value is not None for value in values], np.bool_)
    return to_arrow(np.array(values, np.bool_), valid=valid)


def _floats(values: Sequence[float | int | None], _kind: pa.DataType) -> pa.Array:
    if any(type(value) is int and value not in _EXACT_FLOATS for value in values):
        raise _OtherError
    valid = np.array([value is not None for value in values], np.bool_)
    numbers = [0.0 if value is None else value for value in values]  # -0.0 is false, too.
    return to_arrow(np.array(numbers, np.float64), valid=valid)


def _octets(values: Sequence[bytes | str | None], kind: pa.DataType) -> pa.Array:
    return of_bytes([v.encode() if isinstance(v, str) else v for v in values], kind)


def _fixed(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    if any(value is not None and len(value) != kind.byte_width for value in values):
        raise _OtherError
    return _wide([value or bytes(kind.byte_width) for value in values], values, kind)


def _decimals(values: Sequence[decimal.Decimal | int | None], kind: pa.DataType) -> pa.Array:
    width, end = kind.bit_width // 8, 10**kind.precision
    unscaled = [0 if value is None else _unscaled(value, kind.scale) for value in values]
    if any(not -end < number < end for number in unscaled):
        raise _OtherError
    numbers = [number.to_bytes(width, "little", signed=True) for number in unscaled]
    return _wide(numbers, values, kind)


def _unscaled(value: decimal.Decimal | int, scale: int) -> int:
    if isinstance(value, int):
        return int(value * 10**scale)
    sign, digits, exponent = value.as_tuple()
    if isinstance(exponent, str) or not 0 <= exponent + scale <= 2 * decimal.DefaultContext.prec:
        raise _OtherError  # No number; digits that it has no room for; or a number of many zeros.
    number = int("".join(map(str, digits)) + "0" * (exponent + scale))
    return -number if sign else number


def _wide(fields: Sequence[bytes], values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Returns an array of fields of the same length, null where a value is None."""
    buffers = [validity(values), pa.py_buffer(b"".join(fields))]
    return pa.Array.from_buffers(kind, len(fields), buffers)


def _dates(values: Sequence[dt.date | np.datetime64 | None], kind: pa.DataType) -> pa.Array:
    days = [
        None
        if v is None
        else _in_unit(v, "M8[D]")
        if isinstance(v, np.datetime64)
        else v.toordinal() - _EPOCH_DAYS
        for v in values
    ]
    return _numbers(days, kind)


def _timestamps(
    values: Sequence[dt.datetime | np.datetime64 | None], kind: pa.DataType
) -> pa.Array:
    numbers = [
        None
        if v is None
        else _in_unit(v, f"M8[{kind.unit}]")
        if isinstance(v, np.datetime64)
        else _since_epoch(v) * _per_microsecond(kind)
        for v in values
    ]
    return _numbers(numbers, kind)


def _in_unit(value: np.datetime64 | np.timedelta64, unit: str) -> int:
    """Returns how many of a unit a time of NumPy's is."""
    if np.isnat(value):
        raise _OtherError
    found = value.astype(unit)
    if found.astype(value.dtype) != value:  # Finer than the unit, or too far for it.
        raise _OtherError
    return int(found.astype(np.int64))


def _since_epoch(value: dt.datetime) -> int:
    """Returns microseconds; of a time without a zone as if it were UTC's."""
    if value.tzinfo is None:
        return (value - _EPOCH) // _MICROSECOND
    if value.utcoffset() is None:
        raise _OtherError
    return (value - _EPOCH_UTC) // _MICROSECOND


def _times(values: Sequence[dt.time | np.timedelta64 | None], kind: pa.DataType) -> pa.Array:
    per = _per_microsecond(kind)
    numbers = [
        None
        if v is None
        else _in_unit(v, f"m8[{kind.unit}]")
        if isinstance(v, np.timedelta64)
        else _since_midnight(v) * per
        for v in values
    ]
    return _numbers(numbers, kind)


def _since_midnight(value: dt.time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _per_microsecond(kind: pa.DataType) -> int:
    per = _PER_MICROSECOND.get(kind.unit)
    if per is None:
        raise _OtherError
    return per
