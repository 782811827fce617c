"""Keys and values that are given for a typed log as Python's values, made arrays (S62).

Arrow drops of some values what its type has no room for, and ends the process over others: what it
is given here is checked before; and most are made arrays without it (`plain_values`). What was made
is then treated as Arrow's arrays are (`conforming`).
"""

import datetime as dt
import decimal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clog.storage.errors import InvalidInputError
from clog.storage.numpy_arrays import of_lists, to_arrow
from clog.storage.objects.conforming import (
    UnfitError,
    check_pairs,
    conformed,
    fit,
    outside,
    refusal,
    unknown_field,
    wrong_type,
)
from clog.storage.objects.plain_values import of_plain
from clog.storage.objects.typed_columns import entries_type, is_listed

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
