"""Conversion of keys and values that are given for a typed log to its schema, or their refusal
(S62); and typed columns as Python's values and as JSON. Pure.

*Arrow's arrays* may have another layout, a narrower or wider type of numbers, fewer nullable fields
or another order of fields. Each value is checked, and none is changed except floats, which are
rounded to 32 or 16 bits.

*Python's values* are first made arrays, as described in `column_kinds`. Their classes are checked
before that: Arrow drops parts of some values that do not fit its type, and crashes on others.

*Keys to look up* are converted the same way, to canonical bytes. A struct key is a tuple of its
fields, which can be a key of a dict; it may also be looked up as a dict.

*JSON*: structs are objects, lists arrays, maps arrays of pairs; the rest depends on the kind.

A refusal names the first record, the field, what was found (its type, never the value), and what is
allowed.
"""

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.column_kinds import (
    DATE,
    DECIMAL,
    FLOAT,
    TIME,
    TIMESTAMP,
    JsonConstant,
    Unreadable,
    is_nat,
    of_plain,
    stored_kind,
    takes,
    widens,
    word_of,
)
from clog.storage.errors import InvalidInputError
from clog.storage.numpy_arrays import of_lists, to_arrow, to_numpy, validity_of
from clog.storage.types.columns import (
    elements,
    entries_type,
    is_listed,
    list_lengths,
    rebuilt_lists,
    rebuilt_structs,
    settled,
)


class UnfitError(Exception):
    """A value that does not fit: its index among its siblings, and the reason."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(at, what)
        self.at = at
        self.what = what


def conform(column: pa.Array, field: pa.Field, path: str | None = None) -> pa.Array:
    """Returns a column of records in the field's type; raises InvalidInputError if unfit, which
    calls the column by ``path``, if that is given.
    """
    try:
        return conformed(column, field, path)
    except UnfitError as e:
        raise refusal(e) from None


def conformed(column: pa.Array, field: pa.Field, path: str | None = None) -> pa.Array:
    """Returns a column of records in the field's type; raises UnfitError."""
    path = field.name if path is None else path
    fitted = fit(_plain(column), field.type, path)
    if not field.nullable:
        _check_present(fitted, None, path)
    if _has_required(field.type):
        _check_required(fitted, path)
        fitted = settled(fitted)
    _check_leaves(fitted, path)
    return fitted


def _child(path: str, name: str) -> str:
    """Returns the path of a field; those of a table's row begin with no name of their own."""
    return f"{path}.{name}" if path else name


def _a(path: str) -> str:
    return f"{'an' if path[:1].lower() in {*'aeiou'} else 'a'} {path}"


def type_problem(given: pa.DataType, kind: pa.DataType, path: str) -> str | None:
    """Returns why the type alone keeps its values from fitting a field; None if they may fit."""
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
    if given == kind or types.is_null(given) or (not nested and takes(kind, given)):
        return None
    return f"{path} has type {given}; the log's schema says {kind}"


def united(now: pa.DataType, then: pa.DataType, path: str) -> pa.DataType:
    """Returns that of two types of numbers, texts or times which has the values of both; raises if
    neither has.
    """
    before, after = word_of(now), word_of(then)
    if before is not None and after is not None and widens(before, after):
        return then
    if problem := type_problem(then, now, path):
        raise InvalidInputError(problem)
    return now


def refusal(unfit: UnfitError) -> InvalidInputError:
    """Returns the error for a record that does not fit."""
    return InvalidInputError(f"record {unfit.at} {unfit.what}; nothing was appended")


_DAY: Final = {"ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_LISTS: Final = (list, tuple, np.ndarray)
_VIEWS: Final = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def _plain(array: pa.Array) -> pa.Array:
    """Returns the values of a dictionary, a large list, runs or an extension in a plain layout."""
    kind, types = array.type, pa.types
    if types.is_dictionary(kind):  # Arrow cannot cast one of views, or take from views.
        values, plain = array.dictionary, _VIEWS.get(kind.value_type)
        return _plain((values.cast(plain) if plain else values).take(array.indices))
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return _of_list_views(array)
    if types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return array.cast(pa.list_(kind.value_field))
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(array.storage)
    if types.is_run_end_encoded(kind):
        return _plain(pc.run_end_decode(array))
    return array


def fit(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Returns the array in the type, without checking NOT NULL."""
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
    """Returns the path of a list's elements; for a map, whose fields have names, its own path."""
    return f"{path}.element" if pa.types.is_list(kind) else path


def _fit_structs(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    given = {field.name: i for i, field in enumerate(array.type)}
    known = [field.name for field in kind]
    if len(given) < array.type.num_fields:
        raise UnfitError(_first_valid(array), f"has {_a(path)} with a field twice")
    if unknown := sorted(given.keys() - set(known)):
        raise unknown_field(_first_valid(array), _child(path, unknown[0]), known)
    flat = array.flatten() if array.null_count else [array.field(i) for i in given.values()]
    fields = [
        fit(_plain(flat[given[field.name]]), field.type, _child(path, field.name))
        if field.name in given
        else pa.nulls(len(array), field.type)
        for field in kind
    ]
    return rebuilt_structs(array, kind, fields)


def _cast(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Returns values without fields in the type, if that can hold the same values."""
    if not takes(kind, array.type):
        if array.null_count == len(array):
            return pa.nulls(len(array), kind)
        raise wrong_type(_first_valid(array), path, str(array.type), kind)
    try:
        return _converted(array, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError):
        at = _first_failing(array, kind)
        raise UnfitError(at, f"has {_a(path)} that does not fit {kind}") from None


def _converted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns the values in the type; raises if one does not fit."""
    if pa.types.is_float16(kind) and pa.types.is_integer(array.type):
        array = array.cast(pa.float32())
        if not _narrow(array, kind).cast(array.type).equals(array):
            raise OverflowError
    if pa.types.is_floating(array.type) and pa.types.is_floating(kind):
        return _narrow(array, kind)
    if pa.types.is_integer(array.type) and pa.types.is_decimal(kind):
        array = array.cast(pa.decimal128(20, 0))  # Arrow requires room for all integers.
    return array.cast(kind)


def _narrow(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns floats of this type; raises if a finite one would become infinite."""
    narrow = array.cast(kind, safe=False)
    overflows = pc.and_(_is_infinite(narrow), pc.invert(_is_infinite(array)))
    if pc.any(overflows).as_py():
        raise OverflowError
    return narrow


def _is_infinite(floats: pa.Array) -> pa.Array:
    # Not all of Arrow's releases support this for halves.
    halves = pa.types.is_float16(floats.type)
    return pc.is_inf(floats.cast(pa.float32()) if halves else floats)


def _first_failing(array: pa.Array, kind: pa.DataType) -> int:
    """Returns the index of the first value that cannot be converted, by bisection."""
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


def _first_valid(array: pa.Array) -> int:
    """Returns the index of the first value that is not null; 0 if all are null."""
    return int(np.argmax(to_numpy(array.is_valid()))) if len(array) else 0


def outside(unfit: UnfitError, lengths: np.ndarray[Any, Any]) -> UnfitError:
    """Returns the same error with the index of the list that contains the value."""
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
    """Raises if a NOT NULL field is null where its parent is not."""
    if pa.types.is_struct(array.type):
        for i, field in enumerate(array.type):
            child, name = array.field(i), _child(path, field.name)
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
    """Raises if a string is not UTF-8, a time is not of a day, or a decimal has too many digits."""
    kind = array.type
    if pa.types.is_struct(kind):
        for field, child in zip(kind, array.flatten(), strict=True):
            _check_leaves(child, _child(path, field.name))
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
            raise UnfitError(at, f"has {_a(path)} that is not valid UTF-8") from None
    elif pa.types.is_time(kind):
        numbers = array.view(pa.int32() if pa.types.is_time32(kind) else pa.int64())
        _check_range(numbers, 0, _DAY[kind.unit] - 1, f"has {_a(path)} that is not a time of day")
    elif pa.types.is_decimal(kind):
        most = Decimal((0, (9,) * kind.precision, -kind.scale))
        _check_range(array, most.copy_negate(), most, f"has {_a(path)} that does not fit {kind}")


def _check_range(array: pa.Array, low: Any, high: Any, what: str) -> None:
    found = pc.min_max(array).as_py()
    if found["min"] is not None and not low <= found["min"] <= found["max"] <= high:
        values = enumerate(array.to_pylist())
        raise UnfitError(next(i for i, v in values if v is not None and not low <= v <= high), what)


def check_pairs(pairs: pa.Array, kind: pa.DataType, path: str) -> None:
    """Checks the entries for a list or a map: Arrow crashes on a null pair or key of a map."""
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
    """Returns the error for a value with a field that the schema does not have."""
    return UnfitError(
        at,
        f"has the field {path}, which is not in the log's schema; there it has {', '.join(names)}"
        " (add it by Log.evolve or clog alter --schema, or leave it out)",
    )


def wrong_type(at: int, path: str, found: str, kind: pa.DataType) -> UnfitError:
    """Returns the error for a value of this type."""
    return UnfitError(at, f"has {_a(path)} of type {found}; the log's schema says {kind}")


def from_python(values: Sequence[Any], field: pa.Field, path: str | None = None) -> pa.Array:
    """Returns a column of records, given as Python's values, in the field's type."""
    try:
        return _column(values, field, path)
    except UnfitError as e:
        raise refusal(e) from None


def unrounded(values: pa.Array | Sequence[Any], field: pa.Field) -> pa.Array:
    """Returns Arrow's or Python's values as a column of records, but floats as doubles: an append
    rounds them, for the columns that there are then. Raises UnfitError if one does not fit.
    """
    column = _column(values, field)
    kind = _with_doubles(field.type)
    if kind == field.type:
        return column
    return _column(values, field.with_type(kind))


def _column(values: pa.Array | Sequence[Any], field: pa.Field, path: str | None = None) -> pa.Array:
    if not isinstance(values, pa.Array):
        values = made_of_python(values, field.type, field.name if path is None else path)
    return conformed(values, field, path)


def _with_doubles(kind: pa.DataType) -> pa.DataType:
    """Returns the type with doubles in place of narrower floats."""

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(_with_doubles(field.type))

    if pa.types.is_struct(kind):
        return pa.struct([inner(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, inner(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(inner(kind.value_field))
    return pa.float64() if pa.types.is_floating(kind) else kind


def fitted(
    values: pa.Array | Sequence[Any], field: pa.Field, *, rounded: bool = True
) -> tuple[pa.Array, dict[int, str]]:
    """Returns those of Arrow's or Python's values that fit a field, in its type and in their order;
    and for the others, by index, why they do not fit. These are found by bisection. Not
    ``rounded``: floats are doubles (`unrounded`).
    """
    made_of = _column if rounded else unrounded
    parts: list[pa.Array] = []
    unfit: dict[int, str] = {}
    waiting = [(0, len(values))]
    while waiting:
        low, high = waiting.pop()
        try:
            parts.append(made_of(values[low:high], field))
        except UnfitError as e:
            middle = (low + high) // 2
            if middle == low:
                unfit[low] = e.what
            else:
                waiting += [(middle, high), (low, middle)]
    return pa.concat_arrays(parts or [made_of([], field)]), unfit


def made_of_python(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    """Returns Python's values as an array of the type, without checking NOT NULL."""
    return fit(_made(values, kind, path), kind, path)


def _made(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    """Returns Python's values as an array of the type, or of one that `fit` accepts for it."""
    if not pa.types.is_nested(kind) and stored_kind(kind).family in (DATE, TIME, TIMESTAMP):
        values = [None if is_nat(value) else value for value in values]
    _check_classes(values, kind, path)
    if pa.types.is_struct(kind):
        return _made_structs(values, kind, path)
    if is_listed(kind):
        return _made_lists(values, kind, path)
    return _made_leaves(values, kind, path)


def _made_leaves(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    found = stored_kind(kind)
    target = found.made_as or kind
    if found.family in (DATE, TIME, TIMESTAMP):
        _check_times(values, kind, path)
    if found.family is TIMESTAMP and (made := of_plain(values, kind)) is not None:
        return made  # Also NumPy's of ms, which may be in far years.
    if found.family is FLOAT:
        _check_whole(values, kind, path)
    elif found.family is DECIMAL:  # Arrow makes no decimals of NumPy's integers.
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
                raise UnfitError(at, f"has {_a(path)} that does not fit {kind}") from None
        raise InvalidInputError(f"the values of {path} do not fit {kind} together") from e


def _made_structs(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    names = [field.name for field in kind]
    _check_names(values, names, path)
    fields = [
        made_of_python(
            [None if v is None else v.get(f.name) for v in values], f.type, _child(path, f.name)
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
                raise UnfitError(wrong[0], f"has {_a(path)} that is not a map")
            parts = [
                made_of_python([pair[i] for pair in flat], field.type, _child(path, field.name))
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
    """Raises if the class of a value does not belong to the type; Arrow accepts some of these."""
    if pa.types.is_struct(kind):
        allowed: tuple[type, ...] = (Mapping,)
    elif is_listed(kind):
        allowed = (*_LISTS, Mapping) if pa.types.is_map(kind) else _LISTS
    else:
        allowed = stored_kind(kind).family.classes
    classes = set(map(type, values))
    wrong = {c for c in classes if not issubclass(c, (type(None), *allowed))}
    if not pa.types.is_boolean(kind):
        wrong |= {c for c in classes if issubclass(c, (bool, np.bool_))}
    if pa.types.is_date32(kind):
        wrong |= {c for c in classes if issubclass(c, dt.datetime)}
    if wrong:
        at = next(i for i, value in enumerate(values) if type(value) in wrong)
        if isinstance(values[at], Unreadable):
            raise UnfitError(at, f"has {_a(path)} that {values[at].why}")
        raise wrong_type(at, path, type(values[at]).__name__, kind)
    for at, value in enumerate(values):
        if isinstance(value, np.ndarray) and not value.ndim:
            raise UnfitError(at, f"has {_a(path)} that is an array without dimensions, not a list")


def _check_whole(values: Sequence[Any], kind: pa.DataType, path: str) -> None:
    """Raises if a float of this width cannot hold an integer exactly; only floats are rounded."""
    narrow = np.dtype(f"f{kind.bit_width // 8}").type
    for at, value in enumerate(values):
        if isinstance(value, int | np.integer):
            try:
                fits = int(narrow(float(value))) == value
            except OverflowError:
                fits = False
            if not fits:
                raise UnfitError(at, f"has {_a(path)} that does not fit {kind}")


def _check_times(values: Sequence[Any], kind: pa.DataType, path: str) -> None:
    """Raises if Arrow would drop a part of a time: a zone, or the nanoseconds of pandas."""
    zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    whole = not (pa.types.is_timestamp(kind) and kind.unit == "ns")
    for at, value in enumerate(values):
        if not zoned and getattr(value, "tzinfo", None) is not None:
            raise UnfitError(at, f"has {_a(path)} with a time zone; the log's schema says {kind}")
        if whole and getattr(value, "nanosecond", None):
            raise UnfitError(at, f"has {_a(path)} that does not fit {kind}")


def _check_names(values: Sequence[Any], names: Sequence[str], path: str) -> None:
    known = set(names)
    for at, value in enumerate(values):
        if value is not None and (unknown := [n for n in value if n not in known]):
            raise unknown_field(at, _child(path, unknown[0]), names)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a field twice, so its value is ambiguous")
    return found


_DECODERS: Final = {
    exact: json.JSONDecoder(
        object_pairs_hook=_once, parse_float=Decimal if exact else None, parse_constant=JsonConstant
    )
    for exact in (False, True)
}


def parsed_json(data: str | bytes, *kinds: pa.DataType) -> Any:
    """Returns parsed JSON, of parts of which `from_json` can make values of these types."""
    if isinstance(data, bytes):
        data = data.decode(json.detect_encoding(data), "surrogatepass")
    return _DECODERS[any(map(_has_decimals, kinds))].decode(data)


@lru_cache(maxsize=256)
def _has_decimals(kind: pa.DataType) -> bool:
    fields = [kind.field(i).type for i in range(kind.num_fields)]
    return pa.types.is_decimal(kind) or any(map(_has_decimals, fields))


def column_json(column: pa.Array) -> list[Any]:
    """Returns the values of a column as JSON."""
    to_json = _writer(column.type)
    return [None if value is None else to_json(value) for value in _listed(column)]


def _listed(column: pa.Array) -> list[Any]:
    """Returns Python's values, with text for times that Python cannot represent."""
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
        clock = dt.time(whole // 3600, whole // 60 % 60, whole % 60)
        return f"{clock.isoformat()}.{fraction:09}"
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        unit: Any = kind.unit if types.is_timestamp(kind) else "D"
        zone = "Z" if types.is_timestamp(kind) and kind.tz else ""
        return f"{np.datetime64(scalar.value, unit)}{zone}"


def from_json(value: Any, kind: pa.DataType) -> Any:
    """Returns the value that JSON stands for. Anything else is returned as it is, or as
    `Unreadable`, so that `Log.append` can refuse it with its record and field.
    """
    return None if value is None else _reader(kind)(value)


def key_from_text(text: str, kind: pa.DataType) -> Any:
    """Returns the key that a text stands for: the text itself, or JSON, or a bare value."""
    if pa.types.is_string(kind):
        return text
    try:
        value = parsed_json(text, kind)
    except ValueError:
        value = text
    found = from_json(value, kind)
    if isinstance(found, str | Unreadable):
        raise InvalidInputError(f"a key has type {kind}; write it as clog consume --json shows it")
    return found


@lru_cache(maxsize=256)
def _writer(kind: pa.DataType) -> Callable[[Any], Any]:
    """Returns the function that makes JSON of a value that is not null."""
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
    to_json: Callable[[Any], Any] = stored_kind(kind).family.to_json
    return to_json


@lru_cache(maxsize=256)
def _reader(kind: pa.DataType) -> Callable[[Any], Any]:
    """Returns the function that makes a value of JSON that is not null."""
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
    read = stored_kind(kind).family.from_json
    return lambda v: read(v, kind)


def _map(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, dict):
        value = list(value.items())
    if not isinstance(value, list) or not all(isinstance(p, list | tuple) for p in value):
        return value
    kinds = kind.key_type, kind.item_type
    return [tuple(map(from_json, pair, kinds)) if len(pair) == 2 else pair for pair in value]


def _of_list_views(views: pa.Array) -> pa.Array:
    """Returns list views as lists; Arrow's own cast gives wrong results for slices of them."""
    kind = pa.list_(views.type.value_field)
    lengths = pc.fill_null(pc.list_value_length(views), 0)
    offsets = np.concatenate(([0], np.cumsum(to_numpy(lengths)))).astype(np.int32)
    own = [validity_of(views), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(views), own, children=[views.flatten()])
