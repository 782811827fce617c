"""Keys and values that are given for a typed log, made those of its schema, or refused (S62).

Given as Arrow's arrays they may have another layout, a narrower or wider type of numbers, fewer
nullable fields or another order of fields; each value is checked, none is changed but floats that
are rounded to 32 or 16 bits. Python's values are made arrays first (`python_values`).

A refusal names the first record, the field, what is there (its type, never the value), and what is
allowed.
"""

from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.errors import InvalidInputError
from clog.storage.numpy_arrays import to_numpy
from clog.storage.objects.typed_columns import (
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
