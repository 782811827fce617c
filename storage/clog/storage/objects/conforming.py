"""Keys and values that are given for a typed log, made those of its schema, or refused (S62).

*Arrow's arrays* may have another layout, a narrower or wider type of numbers, fewer nullable fields
or another order of fields; each value is checked, none is changed but floats that are rounded to
32 or 16 bits.

*Python's values* are made arrays first. Their classes are checked before: Arrow drops of some what
its type has no room for, and ends the process over others. What fits as it is, and is of Python's
own classes, is made without ``pa.array``, which imports pandas where it is installed; the rest is
Arrow's to convert or to refuse.

*Keys that are asked for* go the same way, to canonical bytes. A key that is a struct is a tuple of
its fields, which can stand in a dict; it may be asked for as a dict, too.

A refusal names the first record, the field, what is there (its type, never the value), and what is
allowed.
"""

import datetime as dt
import decimal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.errors import InvalidInputError
from clog.storage.format.log_info import LogSchema
from clog.storage.keys.hashing import key_bytes
from clog.storage.numpy_arrays import (
    dtype_of,
    of_bytes,
    of_lists,
    of_numbers,
    to_arrow,
    to_numpy,
    validity,
)
from clog.storage.objects.layout import (
    column_types,
    elements,
    entries_type,
    is_listed,
    list_lengths,
    of_list_views,
    rebuilt_lists,
    rebuilt_structs,
    settled,
)


class UnfitError(Exception):
    """A value that does not fit: the number of it among those around it, and why."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(at, what)
        self.at = at
        self.what = what


def conform(column: pa.Array, field: pa.Field) -> pa.Array:
    """Returns a column of records as the field's type.

    Raises:
        InvalidInputError: a value that does not fit it.
    """
    try:
        return conformed(column, field)
    except UnfitError as e:
        raise refusal(e) from None


def conformed(column: pa.Array, field: pa.Field) -> pa.Array:
    """Returns a column of records as the field's type.

    Raises:
        UnfitError: a value that does not fit it.
    """
    fitted = fit(_plain(column), field.type, field.name)
    if not field.nullable:
        _check_present(fitted, None, field.name)
    if _has_required(field.type):
        _check_required(fitted, field.name)
        fitted = settled(fitted)
    _check_leaves(fitted, field.name)
    return fitted


def type_problem(given: pa.DataType, kind: pa.DataType, path: str) -> str | None:
    """Returns why no values of a type fit a field, by their type alone; None where they may."""
    types = pa.types
    if types.is_struct(given) and types.is_struct(kind):
        there = {field.name: field for field in kind}
        names = [field.name for field in given]
        if unknown := [name for name in names if name not in there]:
            return (
                f"{path}.{unknown[0]} is not in the log's schema; there it has {', '.join(there)}"
            )
        missing = [f.name for f in kind if not f.nullable and f.name not in names]
        if missing:
            return f"{path}.{missing[0]} is missing, which is NOT NULL"
        problems = (type_problem(f.type, there[f.name].type, f"{path}.{f.name}") for f in given)
        return next(filter(None, problems), None)
    if is_listed(given) and is_listed(kind) and types.is_map(given) == types.is_map(kind):
        return type_problem(entries_type(given), entries_type(kind), _inside(path, kind))
    nested = types.is_nested(given) or types.is_nested(kind)
    if given == kind or types.is_null(given) or (not nested and _is_kindred(given, kind)):
        return None
    return f"{path} has type {given}; the log's schema says {kind}"


def refusal(unfit: UnfitError) -> InvalidInputError:
    """Returns the error of a record that does not fit."""
    return InvalidInputError(f"record {unfit.at} {unfit.what}; nothing was appended")


_DAY: Final = {"ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_VIEWS: Final = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def _plain(array: pa.Array) -> pa.Array:
    """Returns the values of a dictionary, a large list, runs or an extension in the plain layout:
    what they are stored as.
    """
    kind, types = array.type, pa.types
    if types.is_dictionary(kind):  # Arrow casts none of views, and takes nothing from views.
        values, plain = array.dictionary, _VIEWS.get(kind.value_type)
        return _plain((values.cast(plain) if plain else values).take(array.indices))
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return of_list_views(array)
    if types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return array.cast(pa.list_(kind.value_field))
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(array.storage)
    if types.is_run_end_encoded(kind):
        return _plain(pc.run_end_decode(array))
    return array


def fit(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Returns the array as the type; whether what is NOT NULL is there is not looked at.

    Raises:
        UnfitError: a value that does not fit it.
    """
    if array.type == kind:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        return _fit_structs(array, kind, path)
    if is_listed(kind) and is_listed(array.type):
        inner, flat = entries_type(kind), elements(array)
        try:
            fitted = fit(_plain(flat), inner, _inside(path, kind))
            check_pairs(fitted, kind, path)
        except UnfitError as e:
            raise outside(e, list_lengths(array)) from None
        return rebuilt_lists(array, kind, fitted)
    return _cast(array, kind, path)


def _inside(path: str, kind: pa.DataType) -> str:
    """Returns the path of what is in a list; in a map, whose fields have names, its own."""
    return f"{path}.element" if pa.types.is_list(kind) else path


def _fit_structs(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    given = {field.name: i for i, field in enumerate(array.type)}
    known = [field.name for field in kind]
    if len(given) < array.type.num_fields:
        raise UnfitError(_first_there(array), f"has a {path} with a field twice")
    if unknown := sorted(given.keys() - set(known)):
        raise unknown_field(_first_there(array), f"{path}.{unknown[0]}", known)
    flat = array.flatten() if array.null_count else [array.field(i) for i in given.values()]
    fields = [
        fit(_plain(flat[given[field.name]]), field.type, f"{path}.{field.name}")
        if field.name in given
        else pa.nulls(len(array), field.type)
        for field in kind
    ]
    return rebuilt_structs(array, kind, fields)


def _cast(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Returns values without fields as the type, if it is one of those that hold the same."""
    if not _is_kindred(array.type, kind):
        if array.null_count == len(array):
            return pa.nulls(len(array), kind)
        raise wrong_type(_first_there(array), path, str(array.type), kind)
    try:
        return _converted(array, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError):
        at = _first_failing(array, kind)
        raise UnfitError(at, f"has a {path} that does not fit {kind}") from None


def _converted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns the values as the type. Raises where one does not fit."""
    if pa.types.is_float16(kind) and pa.types.is_integer(array.type):
        array = array.cast(pa.float32())
        if not _narrow(array, kind).cast(array.type).equals(array):
            raise OverflowError
    if pa.types.is_floating(array.type) and pa.types.is_floating(kind):
        return _narrow(array, kind)
    if pa.types.is_integer(array.type) and pa.types.is_decimal(kind):
        array = array.cast(pa.decimal128(20, 0))  # Arrow asks for room for all integers.
    return array.cast(kind)


def _narrow(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns floats of this type. Raises where a finite one would become infinite."""
    narrow = array.cast(kind, safe=False)
    overflows = pc.and_(_is_infinite(narrow), pc.invert(_is_infinite(array)))
    if pc.any(overflows).as_py():
        raise OverflowError
    return narrow


def _is_infinite(floats: pa.Array) -> pa.Array:
    # Arrow's releases do not all say it of halves.
    halves = pa.types.is_float16(floats.type)
    return pc.is_inf(floats.cast(pa.float32()) if halves else floats)


def _is_kindred(given: pa.DataType, kind: pa.DataType) -> bool:
    """Tells whether values of the one type can be the same values of the other."""
    types = pa.types
    if types.is_integer(kind):
        return bool(types.is_integer(given) or types.is_floating(given))
    if types.is_floating(kind):
        return bool(types.is_integer(given) or types.is_floating(given))
    if types.is_decimal(kind):
        return bool(types.is_integer(given) or types.is_decimal(given))
    if types.is_timestamp(kind):
        # What names no zone is UTC; but what names one is not without.
        return bool(types.is_timestamp(given) and (kind.tz is not None or given.tz is None))
    if types.is_date32(kind):
        return bool(types.is_date(given))
    if types.is_time(kind):
        return bool(types.is_time(given))
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    octets = (types.is_binary, types.is_large_binary, types.is_binary_view)
    is_text = any(test(given) for test in texts)
    if types.is_string(kind):
        return is_text
    if types.is_binary(kind):
        fixed = types.is_fixed_size_binary(given)
        return is_text or bool(fixed) or any(test(given) for test in octets)
    return bool(types.is_fixed_size_binary(kind)) and types.is_binary(given)


def _first_failing(array: pa.Array, kind: pa.DataType) -> int:
    """Returns the first value that cannot be converted, by halves."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _converted(array.slice(low, middle - low), kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError):
            high = middle
        else:
            low = middle
    return low


def _first_there(array: pa.Array) -> int:
    """Returns the first value that is not null; 0 where all are."""
    return int(np.argmax(to_numpy(array.is_valid()))) if len(array) else 0


def outside(unfit: UnfitError, lengths: np.ndarray[Any, Any]) -> UnfitError:
    """Returns the same of the list that holds the value."""
    at = int(np.searchsorted(np.cumsum(lengths), unfit.at, side="right"))
    return UnfitError(at, unfit.what)


@lru_cache(maxsize=256)
def _has_required(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(not field.nullable or _has_required(field.type) for field in kind)
    if is_listed(kind):
        inner = kind.item_field if pa.types.is_map(kind) else kind.value_field
        return not inner.nullable or _has_required(inner.type)
    return False


def _check_required(array: pa.Array, path: str) -> None:
    """Raises if a field that is NOT NULL is null where the one around it is not."""
    if pa.types.is_struct(array.type):
        for i, field in enumerate(array.type):
            child, name = array.field(i), f"{path}.{field.name}"
            if not field.nullable:
                _check_present(child, array, name)
            if _has_required(field.type):
                _check_required(array.flatten()[i], name)
    elif is_listed(array.type):
        flat = elements(array)
        try:
            if pa.types.is_list(array.type) and not array.type.value_field.nullable:
                _check_present(flat, None, f"{path}.element")
            _check_required(flat, _inside(path, array.type))
        except UnfitError as e:
            raise outside(e, list_lengths(array)) from None


def _check_leaves(array: pa.Array, path: str) -> None:
    """Raises if a string is no UTF-8, a time of no day, or a decimal of too many digits: Arrow's
    own arrays may hold any bytes, and what Parquet has no room for would be stored as another.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        for field, child in zip(kind, array.flatten(), strict=True):
            _check_leaves(child, f"{path}.{field.name}")
    elif is_listed(kind):
        try:
            _check_leaves(elements(array), _inside(path, kind))
        except UnfitError as e:
            raise outside(e, list_lengths(array)) from None
    elif pa.types.is_string(kind):
        octets = array.cast(pa.binary())
        try:
            octets.cast(kind)
        except pa.ArrowInvalid:
            at = _first_failing(octets, kind)
            raise UnfitError(at, f"has a {path} that is not valid UTF-8") from None
    elif pa.types.is_time(kind):
        numbers = array.view(pa.int32() if pa.types.is_time32(kind) else pa.int64())
        _check_range(numbers, 0, _DAY[kind.unit] - 1, f"has a {path} of no time of a day")
    elif pa.types.is_decimal(kind):
        most = Decimal((0, (9,) * kind.precision, -kind.scale))
        _check_range(array, most.copy_negate(), most, f"has a {path} that does not fit {kind}")


def _check_range(array: pa.Array, low: Any, high: Any, what: str) -> None:
    found = pc.min_max(array).as_py()
    if found["min"] is not None and not low <= found["min"] <= found["max"] <= high:
        values = enumerate(array.to_pylist())
        raise UnfitError(next(i for i, v in values if v is not None and not low <= v <= high), what)


def check_pairs(pairs: pa.Array, kind: pa.DataType, path: str) -> None:
    """Checks what is to be in a list or a map: over a map's pair or key that is null Arrow ends the
    process.

    Raises:
        UnfitError: there is one.
    """
    if pa.types.is_map(kind):
        _check_present(pairs, None, f"{path}.key")
        _check_present(pairs.field(0), None, f"{path}.key")


def _check_present(array: pa.Array, around: pa.Array | None, path: str) -> None:
    if not array.null_count:
        return
    missing = to_numpy(array.is_null())
    if around is not None:
        missing = missing & to_numpy(around.is_valid())
    if missing.any():
        raise UnfitError(int(np.argmax(missing)), f"has no {path}, which is NOT NULL")


def unknown_field(at: int, path: str, names: Sequence[str]) -> UnfitError:
    """Returns what is wrong with a value that has a field which the schema has not."""
    return UnfitError(
        at,
        f"has the field {path}, which is not in the log's schema; there it has {', '.join(names)}"
        " (add it with evolve, or leave it out)",
    )


def wrong_type(at: int, path: str, found: str, kind: pa.DataType) -> UnfitError:
    """Returns what is wrong with a value of this type."""
    return UnfitError(at, f"has a {path} of type {found}; the log's schema says {kind}")


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


_ANY_MAPPING: Final = (Mapping,)
_ANY_LIST: Final = (list, tuple, np.ndarray)
_INTEGERS: Final = (int, np.integer)
_FLOATS: Final = (float, np.floating, *_INTEGERS)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What stands in place of a value that some text does not hold; ``why`` is what is wrong with
    it, as in "has a value.n that …".
    """

    why: str


def from_python(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Returns a column of records, given as Python's values, as the field's type.

    Raises:
        InvalidInputError: a value that does not fit it.
    """
    try:
        return conformed(made_of_python(values, field.type, field.name), field)
    except UnfitError as e:
        raise refusal(e) from None


def fitting_python(values: Sequence[Any], field: pa.Field) -> tuple[pa.Array, dict[int, str]]:
    """Returns those of Python's values that fit a field, as its type and in their order; and of the
    others, by their places, why they do not. These are found by halves.
    """
    parts: list[pa.Array] = []
    unfit: dict[int, str] = {}
    waiting = [(0, len(values))]
    while waiting:
        low, high = waiting.pop()
        try:
            made = made_of_python(values[low:high], field.type, field.name)
            parts.append(conformed(made, field))
        except UnfitError as e:
            middle = (low + high) // 2
            if middle == low:
                unfit[low] = e.what
            else:
                waiting += [(middle, high), (low, middle)]
    return pa.concat_arrays(parts) if parts else pa.nulls(0, field.type), unfit


def made_of_python(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    """Returns Python's values as an array of the type; whether what is NOT NULL is there is not
    looked at.

    Raises:
        UnfitError: a value that is no such.
    """
    return fit(_made(values, kind, path), kind, path)


def _made(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    """Returns Python's values as an array of the type, or of one that `fit` takes for it."""
    _check_classes(values, kind, path)
    if pa.types.is_struct(kind):
        return _made_structs(values, kind, path)
    if is_listed(kind):
        return _made_lists(values, kind, path)
    return _made_leaves(values, kind, path)


def _made_leaves(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    target = kind
    if pa.types.is_temporal(kind):
        _check_times(values, kind, path)
    if pa.types.is_timestamp(kind) and kind.unit == "ms":
        if (made := of_plain(values, kind)) is not None:  # NumPy's, which may be far away.
            return made
        target = pa.timestamp("us", kind.tz)  # Made of ms, what is finer would be cut off.
    elif pa.types.is_time32(kind):
        target = pa.time64("us")
    elif pa.types.is_floating(kind):
        _check_whole(values, kind, path)
        target = pa.float64()
    elif pa.types.is_decimal(kind):  # Arrow makes none of NumPy's integers.
        values = [int(v) if isinstance(v, np.integer) else v for v in values]
    if (made := of_plain(values, target)) is not None:
        return made
    try:
        return pa.array(values, target)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as e:
        for at, value in enumerate(values):
            try:
                pa.array([value], target)
            except (pa.ArrowException, ValueError, TypeError, OverflowError):
                raise UnfitError(at, f"has a {path} that does not fit {kind}") from None
        raise InvalidInputError(f"the values of {path} do not fit {kind} together") from e


def _made_structs(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    names = [field.name for field in kind]
    _check_names(values, names, path)
    fields = [
        made_of_python(
            [None if v is None else v.get(f.name) for v in values], f.type, f"{path}.{f.name}"
        )
        for f in kind
    ]
    missing = to_arrow(np.array([v is None for v in values], np.bool_))
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=missing)


def _made_lists(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    lists = [v.items() if isinstance(v, Mapping) else v for v in values]
    lengths = np.array([0 if some is None else len(some) for some in lists], np.int64)
    flat = [element for some in lists if some is not None for element in some]
    inner = entries_type(kind)
    try:
        if pa.types.is_map(kind):
            if wrong := [i for i, pair in enumerate(flat) if not _is_pair(pair)]:
                raise UnfitError(wrong[0], f"has a {path} that is not a map")
            parts = [
                made_of_python([pair[i] for pair in flat], field.type, f"{path}.{field.name}")
                for i, field in enumerate(inner)
            ]
            made = pa.StructArray.from_arrays(parts, fields=list(inner))
            check_pairs(made, kind, path)
        else:
            made = made_of_python(flat, inner, f"{path}.element")
    except UnfitError as e:
        raise outside(e, lengths) from None
    return of_lists([None if some is None else range(len(some)) for some in lists], kind, made)


def _is_pair(value: object) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2


def _check_classes(values: Sequence[Any], kind: pa.DataType, path: str) -> None:
    """Raises if a value is of a class that is not the type's: Arrow takes some of them."""
    allowed = _classes(kind)
    wrong = {c for c in set(map(type, values)) if not issubclass(c, (type(None), *allowed))}
    if not pa.types.is_boolean(kind):
        wrong |= {c for c in set(map(type, values)) if issubclass(c, (bool, np.bool_))}
    if pa.types.is_date32(kind):
        wrong |= {c for c in set(map(type, values)) if issubclass(c, dt.datetime)}
    if wrong:
        at = next(i for i, value in enumerate(values) if type(value) in wrong)
        if isinstance(values[at], Unreadable):
            raise UnfitError(at, f"has a {path} that {values[at].why}")
        raise wrong_type(at, path, type(values[at]).__name__, kind)
    for at, value in enumerate(values):
        if isinstance(value, np.ndarray) and not value.ndim:
            raise UnfitError(at, f"has a {path} that is an array without dimensions, no list")


def _check_whole(values: Sequence[Any], kind: pa.DataType, path: str) -> None:
    """Raises if an integer is no float of this width: floats are rounded, integers never are."""
    narrow = np.dtype(f"f{kind.bit_width // 8}").type
    for at, value in enumerate(values):
        if isinstance(value, _INTEGERS):
            try:
                fits = int(narrow(float(value))) == value
            except OverflowError:
                fits = False
            if not fits:
                raise UnfitError(at, f"has a {path} that does not fit {kind}")


def _check_times(values: Sequence[Any], kind: pa.DataType, path: str) -> None:
    """Raises if a time has what Arrow would drop: a zone, or the nanoseconds of pandas."""
    zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    whole = not (pa.types.is_timestamp(kind) and kind.unit == "ns")
    for at, value in enumerate(values):
        if not zoned and getattr(value, "tzinfo", None) is not None:
            raise UnfitError(at, f"has a {path} with a time zone; the log's schema says {kind}")
        if whole and getattr(value, "nanosecond", None):
            raise UnfitError(at, f"has a {path} that does not fit {kind}")


def _classes(kind: pa.DataType) -> tuple[type, ...]:
    types = pa.types
    table: Iterable[tuple[Any, tuple[type, ...]]] = (
        (types.is_struct, _ANY_MAPPING),
        (types.is_map, (*_ANY_MAPPING, *_ANY_LIST)),
        (types.is_list, _ANY_LIST),
        (types.is_boolean, (bool, np.bool_)),
        (types.is_integer, _INTEGERS),
        (types.is_floating, _FLOATS),
        (types.is_decimal, (decimal.Decimal, *_INTEGERS)),
        (types.is_timestamp, (dt.datetime, np.datetime64)),
        (types.is_date, (dt.date, np.datetime64)),
        (types.is_time, (dt.time, np.timedelta64)),
        (types.is_string, (str,)),
        (types.is_binary, (bytes, bytearray, memoryview, str)),
        (types.is_fixed_size_binary, (bytes, bytearray, memoryview)),
    )
    return next(classes for test, classes in table if test(kind))


def _check_names(values: Sequence[Any], names: Sequence[str], path: str) -> None:
    known = set(names)
    for at, value in enumerate(values):
        if value is not None and (unknown := [n for n in value if n not in known]):
            raise unknown_field(at, f"{path}.{unknown[0]}", names)


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
