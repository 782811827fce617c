"""The kinds of columns of typed logs: one row each, from which everything else is derived
(FORMAT.md §12.1).

A *kind* is a type without inner fields, with a *word* in the format; those of ``decimal`` and
``fixed`` contain numbers. Its row (`Kind`) gives its Arrow type, its values in Python and JSON, how
many bytes a value counts, the kinds it may widen to, its canonical bytes in a key, and the words of
Delta, Iceberg and Spark. A new kind is a new row here, and a new family if its values are of a new
sort. Structs, lists and maps are not kinds: the package `types` walks through them.

*Python's values* of Python's own classes that fit as they are become arrays without ``pa.array``,
which imports pandas if it is installed; Arrow converts or refuses the others.

*JSON.* Numbers, truth values and text are JSON's own; bytes are base64; decimals, dates, times and
timestamps are text, in ISO 8601 (``2026-01-31T12:00:00.000001Z``, without the Z if they have no
zone, with as many digits as they need); a decimal may also be a number; floats that are not finite
are ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``. Values that are written can be read back.
"""

import base64
import binascii
import datetime as dt
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, DefaultContext, InvalidOperation
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clog.storage.env import dataclass
from clog.storage.numpy_arrays import dtype_of, of_bytes, of_numbers, to_arrow, validity

DECIMAL_DIGITS_MAX: Final = 76
KEY_DIGITS_MAX: Final = 38
"""Most digits of a decimal in a key (16 canonical bytes), and in the decimals of all libraries."""
NUMBER_BYTES: Final = 8
"""Bytes that a number, truth value, date or time counts, of any width. Part of the format."""
DECIMAL_BYTES: Final = 16

_types = pa.types
_EPOCH_UTC: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH: Final = _EPOCH_UTC.replace(tzinfo=None)
_EPOCH_DAYS: Final = _EPOCH.toordinal()
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_PER_MICROSECOND: Final = {"us": 1, "ns": 1000}
_EXACT_FLOATS: Final = range(-(1 << 53), (1 << 53) + 1)
_FINER: Final = re.compile(r"[.,]\d{6}\d*?[1-9]")
"""In the text of a time: digits below microseconds, which Python would cut off."""
_FAR: Final = re.compile(r"-\d{4,}-|\d{5,}-|0000-")
"""The beginning of the text of a day that Python's calendar does not have."""
_TIME: Final = re.compile(r"(\d\d):(\d\d):(\d\d)\.(\d{9})")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """In place of a value that cannot be read; ``why`` continues "has a value.n that …"."""

    why: str


class JsonConstant(float):
    """``NaN`` or ``Infinity`` without quotes, which is not JSON, but written by many."""


class _OtherError(Exception):
    """A value that Arrow must convert or refuse."""


def _numbers(numbers: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    low, high = _bounds(kind)
    there = [number for number in numbers if number is not None]
    if there and not (low <= min(there) and max(there) <= high):
        raise _OtherError
    return of_numbers(numbers, kind)


@lru_cache(64)
def _bounds(kind: pa.DataType) -> tuple[int, int]:
    bounds = np.iinfo(dtype_of(kind))
    return int(bounds.min), int(bounds.max)


def _truths(values: Sequence[bool | None], _kind: pa.DataType) -> pa.Array:
    valid = np.array([value is not None for value in values], np.bool_)
    return to_arrow(np.array(values, np.bool_), valid=valid)


def _floats(values: Sequence[float | int | None], kind: pa.DataType) -> pa.Array:
    is_exact = kind == pa.float64()
    if not is_exact or any(type(v) is int and v not in _EXACT_FLOATS for v in values):
        raise _OtherError
    valid = np.array([value is not None for value in values], np.bool_)
    numbers = [0.0 if value is None else value for value in values]  # Keeps -0.0, which is false.
    return to_arrow(np.array(numbers, np.float64), valid=valid)


def _octets(values: Sequence[bytes | str | None], kind: pa.DataType) -> pa.Array:
    return of_bytes([v.encode() if isinstance(v, str) else v for v in values], kind)


def _fixed(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    if any(value is not None and len(value) != kind.byte_width for value in values):
        raise _OtherError
    return _wide([value or bytes(kind.byte_width) for value in values], values, kind)


def _decimals(values: Sequence[Decimal | int | None], kind: pa.DataType) -> pa.Array:
    width, end = kind.bit_width // 8, 10**kind.precision
    unscaled = [0 if value is None else _unscaled(value, kind.scale) for value in values]
    if any(not -end < number < end for number in unscaled):
        raise _OtherError
    numbers = [number.to_bytes(width, "little", signed=True) for number in unscaled]
    return _wide(numbers, values, kind)


def _unscaled(value: Decimal | int, scale: int) -> int:
    if isinstance(value, int):
        return int(value * 10**scale)
    sign, digits, exponent = value.as_tuple()
    if isinstance(exponent, str) or not 0 <= exponent + scale <= 2 * DefaultContext.prec:
        raise _OtherError  # Not a number, too many decimal places, or too many zeros.
    if len(digits) > DECIMAL_DIGITS_MAX:
        raise _OtherError  # Python refuses integers of thousands of digits.
    number = int("".join(map(str, digits)) + "0" * (exponent + scale))
    return -number if sign else number


def _wide(fields: Sequence[bytes], values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Returns an array of fields of equal length, null where a value is None."""
    buffers = [validity(values), pa.py_buffer(b"".join(fields))]
    return pa.Array.from_buffers(kind, len(fields), buffers)


def _dates(values: Sequence[dt.date | np.datetime64 | None], kind: pa.DataType) -> pa.Array:
    return _times_of(values, "M8[D]", lambda v: v.toordinal() - _EPOCH_DAYS, kind)


def _timestamps(
    values: Sequence[dt.datetime | np.datetime64 | None], kind: pa.DataType
) -> pa.Array:
    return _times_of(
        values, f"M8[{kind.unit}]", lambda v: _since_epoch(v) * _per_microsecond(kind), kind
    )


def _times(values: Sequence[dt.time | np.timedelta64 | None], kind: pa.DataType) -> pa.Array:
    per = _per_microsecond(kind)
    return _times_of(values, f"m8[{kind.unit}]", lambda v: _since_midnight(v) * per, kind)


def _times_of(
    values: Sequence[Any], unit: str, number_of: Callable[[Any], int], kind: pa.DataType
) -> pa.Array:
    """Returns an array of times: Python's by the function, NumPy's as numbers of the unit."""
    numbers: list[int | None] = []
    for value in values:
        if value is None:
            numbers.append(None)
        elif isinstance(value, np.generic):
            numbers.append(_in_unit(value, unit))
        else:
            numbers.append(number_of(value))
    return _numbers(numbers, kind)


def _in_unit(value: Any, unit: str) -> int:
    try:
        found = value.astype(unit)
        is_other = np.isnat(value) or found.astype(value.dtype) != value
    except OverflowError:  # Since NumPy 2.5; before that, a wrong number.
        raise _OtherError from None
    if is_other:  # Not a time, finer than the unit, or out of its range.
        raise _OtherError
    return int(found.astype(np.int64))


def is_nat(value: object) -> bool:
    """Returns whether a value is the "not a time" of NumPy or pandas, which differs from itself."""
    is_time = isinstance(value, np.datetime64 | np.timedelta64 | dt.datetime)
    return is_time and bool(value != value)  # noqa: PLR0124


def _since_epoch(value: dt.datetime) -> int:
    """Returns microseconds; a time without a zone is taken as UTC."""
    if value.tzinfo is None:
        return (value - _EPOCH) // _MICROSECOND
    if value.utcoffset() is None:
        raise _OtherError
    return (value - _EPOCH_UTC) // _MICROSECOND


def _since_midnight(value: dt.time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _per_microsecond(kind: pa.DataType) -> int:
    per = _PER_MICROSECOND.get(kind.unit)
    if per is None:
        raise _OtherError
    return per


def _same(value: Any) -> Any:
    return value


def _base64_json(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _float_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _iso_json(value: Any) -> str:
    return value if isinstance(value, str) else str(value.isoformat())


def _timestamp_json(value: Any) -> str:
    if isinstance(value, str):
        return value
    # Python's own times have no nanoseconds: a time with some is of pandas, which prints them.
    spec = "nanoseconds" if getattr(value, "nanosecond", 0) else "microseconds"
    return str(value.isoformat(timespec=spec)).replace("+00:00", "Z")


def _number(value: Any, _kind: pa.DataType | None = None) -> Any:
    """Returns a value that needs no reading; exact or unquoted numbers become plain floats."""
    return float(value) if isinstance(value, Decimal | JsonConstant) else value


def _base64_of(value: Any, _kind: pa.DataType) -> Any:
    if not isinstance(value, str):
        return _number(value)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return Unreadable("is not base64, the form of bytes in JSON")


def _float_of(value: Any, _kind: pa.DataType) -> Any:
    if isinstance(value, str):
        if value in ("NaN", "Infinity", "-Infinity"):
            return float(value)
        return Unreadable('is text, but neither a number nor "NaN", "Infinity" or "-Infinity"')
    found = _number(value)
    if isinstance(found, float) and math.isinf(found) and not isinstance(value, JsonConstant):
        return Unreadable("is larger than a float can be")
    return found


def _decimal_of(value: Any, _kind: pa.DataType) -> Any:
    try:
        return Decimal(value) if isinstance(value, str) else value
    except InvalidOperation:
        return Unreadable("is text that is not a decimal")


def _date_of(value: Any, _kind: pa.DataType) -> Any:
    if not isinstance(value, str):
        return _number(value)
    try:
        return np.datetime64(value, "D") if _FAR.match(value) else dt.date.fromisoformat(value)
    except ValueError:
        return Unreadable("is not an ISO 8601 date, such as 2026-01-31")


def _time_of(value: Any, kind: pa.DataType) -> Any:
    if not isinstance(value, str):
        return _number(value)
    try:
        found = dt.time.fromisoformat(value)
    except ValueError:
        return Unreadable("is not an ISO 8601 time of day, such as 12:00:00.000001")
    if not _FINER.search(value):
        return found
    if kind.unit != "ns" or not (digits := _TIME.fullmatch(value)):
        return Unreadable(f"does not fit {kind}")
    hours, minutes, seconds, fraction = map(int, digits.groups())
    whole = (hours * 60 + minutes) * 60 + seconds
    return np.timedelta64(whole * 1_000_000_000 + fraction, "ns")


def _timestamp_of(value: Any, kind: pa.DataType) -> Any:
    if not isinstance(value, str):
        return _number(value)
    try:
        if kind.unit == "ns" or _FAR.match(value):  # With all digits, in UTC or without a zone.
            return np.datetime64(value.removesuffix("Z"), kind.unit)
    except ValueError:
        pass
    try:
        found = dt.datetime.fromisoformat(value)
        found = found if found.tzinfo is None else found.astimezone(dt.UTC)
    except ValueError:
        return Unreadable("is not an ISO 8601 time, such as 2026-01-31T12:00:00Z")
    except OverflowError:
        return Unreadable("is before the year 1 or after the year 9999 in UTC")
    return Unreadable(f"does not fit {kind}") if _FINER.search(value) else found


_Test = Callable[[pa.DataType], bool]
_INTEGERS: Final = (int, np.integer)
_NUMBERS: Final = (_types.is_integer, _types.is_floating)
_TEXTS: Final = (_types.is_string, _types.is_large_string, _types.is_string_view)
_OCTETS: Final = (_types.is_binary, _types.is_large_binary, _types.is_binary_view)


@dataclass(frozen=True, slots=True)
class Family:
    """The common properties of values of one sort.

    ``taken``: Arrow's types that can hold the same values. ``classes``: Python's classes that may
    be given. ``make`` makes an array of values that are all of the ``exact`` classes or None.
    """

    taken: tuple[_Test, ...]
    classes: tuple[type, ...]
    exact: tuple[type, ...]
    make: Callable[[Any, pa.DataType], pa.Array]
    to_json: Callable[[Any], Any] = _same
    from_json: Callable[[Any, pa.DataType], Any] = _number


_TRUTH: Final = Family((), (bool, np.bool_), (bool,), _truths)
_INTEGER: Final = Family(_NUMBERS, _INTEGERS, (int,), _numbers)
FLOAT: Final = Family(
    _NUMBERS, (float, np.floating, *_INTEGERS), (float, int), _floats, _float_json, _float_of
)
DECIMAL: Final = Family(
    (_types.is_integer, _types.is_decimal),
    *((Decimal, *_INTEGERS), (Decimal, int), _decimals),
    *(str, _decimal_of),
)
_DATES: Final = (dt.date, np.datetime64)
DATE: Final = Family((_types.is_date,), _DATES, _DATES, _dates, _iso_json, _date_of)
_CLOCK: Final = (dt.time, np.timedelta64)
TIME: Final = Family((_types.is_time,), _CLOCK, _CLOCK, _times, _iso_json, _time_of)
_STAMPS: Final = (dt.datetime, np.datetime64)
TIMESTAMP: Final = Family(
    (_types.is_timestamp,), _STAMPS, _STAMPS, _timestamps, _timestamp_json, _timestamp_of
)
TEXT: Final = Family(_TEXTS, (str,), (str,), _octets)
_BINARY: Final = Family(
    (*_TEXTS, *_OCTETS, _types.is_fixed_size_binary),
    *((bytes, bytearray, memoryview, str), (bytes, bytearray, str), _octets),
    *(_base64_json, _base64_of),
)
_FIXED: Final = Family(
    (_types.is_binary,),
    *((bytes, bytearray, memoryview), (bytes, bytearray), _fixed),
    *(_base64_json, _base64_of),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of column.

    Attributes:
        word: its word in the format, or a pattern if that contains numbers.
        arrow: its type, or the function that makes the type from the numbers.
        delta, iceberg, spark: its word there, with places for the numbers; None if it has none. Of
            several kinds that are the same for Spark, Spark writes the first.
        key: how its canonical bytes are made (`keys.hashing`); None if keys cannot have it.
        widens_to: the words of the kinds that have all of its values, as in Iceberg; a decimal
            widens to those of more digits.
        size: the bytes that a value counts, part of the format; None for the bytes it has.
        made_as: the type that Python's values become first, so that finer ones are noticed.
        stands_in: the ``type`` in the schema of a key's field of this kind, which only the feature
            ``typed-keys`` allows: a reader that does not know the feature can then read the schema,
            and refuses the log by the feature's name.
    """

    word: str
    family: Family
    arrow: pa.DataType | Callable[..., pa.DataType]
    delta: str | None = None
    iceberg: str | None = None
    spark: str | None = None
    key: str | None = None
    widens_to: tuple[str, ...] = ()
    size: int | None = NUMBER_BYTES
    made_as: pa.DataType | None = None
    stands_in: str | None = None

    def size_of(self, kind: pa.DataType) -> int | None:
        """Returns the bytes that a value of this type counts; None for the bytes it has."""
        return int(kind.byte_width) if self is _FIXED_KIND else self.size


_SIGNED: Final = ("int8", "int16", "int32", "int64")
_UNSIGNED: Final = ("uint8", "uint16", "uint32", "uint64")
_MS, _US, _NS = (pa.timestamp(unit) for unit in ("ms", "us", "ns"))
_MS_UTC, _US_UTC, _NS_UTC = (pa.timestamp(unit, "UTC") for unit in ("ms", "us", "ns"))
_ZONED: Final = ("timestamp", "timestamptz", "Timestamp", "signed")
_LOCAL: Final = ("timestamp_ntz", "timestamp", "TimestampNTZ", "signed")

KINDS: Final = (
    Kind("bool", _TRUTH, pa.bool_(), "boolean", "boolean", "Boolean", "truth", stands_in="uint8"),
    Kind("int8", _INTEGER, pa.int8(), "byte", "int", "Byte", "signed", _SIGNED[1:]),
    Kind("int16", _INTEGER, pa.int16(), "short", "int", "Short", "signed", _SIGNED[2:]),
    Kind("int32", _INTEGER, pa.int32(), "integer", "int", "Integer", "signed", _SIGNED[3:]),
    Kind("int64", _INTEGER, pa.int64(), "long", "long", "Long", "signed"),
    Kind("uint8", _INTEGER, pa.uint8(), "short", None, "Short", "unsigned", _UNSIGNED[1:]),
    Kind("uint16", _INTEGER, pa.uint16(), "integer", None, "Integer", "unsigned", _UNSIGNED[2:]),
    Kind("uint32", _INTEGER, pa.uint32(), "long", None, "Long", "unsigned", _UNSIGNED[3:]),
    Kind("uint64", _INTEGER, pa.uint64(), None, None, "Decimal(20,0)", "unsigned"),
    Kind("float32", FLOAT, pa.float32(), "float", "float", "Float", None, ("float64",),
         made_as=pa.float64()),
    Kind("float64", FLOAT, pa.float64(), "double", "double", "Double"),
    Kind("float16", FLOAT, pa.float16(), None, None, "Float", made_as=pa.float64()),
    Kind("date", DATE, pa.date32(), "date", "date", "Date", "signed", stands_in="int32"),
    Kind("time(ms)", TIME, pa.time32("ms"), made_as=pa.time64("us")),
    Kind("time(us)", TIME, pa.time64("us"), None, "time"),
    Kind("time(ns)", TIME, pa.time64("ns")),
    Kind("timestamp(us)", TIMESTAMP, _US, *_LOCAL),
    Kind("timestamp(ms)", TIMESTAMP, _MS, *_LOCAL, made_as=_US),
    Kind("timestamp(ns)", TIMESTAMP, _NS, None, "timestamp_ns", *_LOCAL[2:]),
    Kind("timestamp(us,utc)", TIMESTAMP, _US_UTC, *_ZONED),
    Kind("timestamp(ms,utc)", TIMESTAMP, _MS_UTC, *_ZONED, made_as=_US_UTC),
    Kind("timestamp(ns,utc)", TIMESTAMP, _NS_UTC, None, "timestamptz_ns", *_ZONED[2:]),
    Kind("string", TEXT, pa.string(), "string", "string", "String", "octets", size=None),
    Kind("binary", _BINARY, pa.binary(), "binary", "binary", "Binary", "octets", size=None),
    Kind(r"decimal\(([1-9]|[12]\d|3[0-8]),\d\d?\)", DECIMAL, pa.decimal128,
         "decimal({},{})", "decimal({}, {})", "Decimal({},{})", "wide",
         size=DECIMAL_BYTES, stands_in="fixed(16)"),
    Kind(r"decimal\((39|[4-9]\d),\d\d?\)", DECIMAL, pa.decimal256, size=DECIMAL_BYTES),
    Kind(r"fixed\([1-9]\d{0,5}\)", _FIXED, pa.binary, "binary", "fixed[{}]", "Binary", "octets"),
)  # fmt: skip
*_, _DECIMAL_KIND, _WIDE_KIND, _FIXED_KIND = KINDS
_BY_WORD: Final = {kind.word: kind for kind in KINDS if not callable(kind.arrow)}
_BY_ARROW: Final = {kind.arrow: kind for kind in KINDS if not callable(kind.arrow)}


def numbers_in(word: str) -> tuple[int, ...]:
    """Returns the numbers in a word."""
    return tuple(map(int, re.findall(r"\d+", word)))


@lru_cache(256)
def kind_named(word: str) -> Kind | None:
    """Returns the kind of this word; None if there is none: a struct, a list, a map."""
    if (found := _BY_WORD.get(word)) is not None:
        return found
    return next((k for k in KINDS if callable(k.arrow) and re.fullmatch(k.word, word)), None)


@lru_cache(256)
def kind_of(kind: pa.DataType) -> Kind | None:
    """Returns the kind of one of Arrow's types; None if no kind is stored as that type."""
    if (found := _BY_ARROW.get(kind)) is not None:
        return found
    if _types.is_decimal(kind):
        return _DECIMAL_KIND if kind.precision <= KEY_DIGITS_MAX else _WIDE_KIND
    return _FIXED_KIND if _types.is_fixed_size_binary(kind) else None


def stored_kind(kind: pa.DataType) -> Kind:
    """Returns the kind of a type that must have one."""
    found = kind_of(kind)
    assert found is not None, f"{kind} is not a type that a log's schema can have"
    return found


def takes(kind: pa.DataType, given: pa.DataType) -> bool:
    """Returns whether values of the given type can be values of the kind of this type."""
    found = kind_of(kind)
    if found is None:
        return False
    if found.family is TIMESTAMP and _types.is_timestamp(given):
        # Times without a zone are taken as UTC, but a zone is not dropped.
        return bool(kind.tz is not None or given.tz is None)
    return any(test(given) for test in found.family.taken)


def word_of(kind: pa.DataType) -> str | None:
    """Returns the word of one of Arrow's types; None if Parquet does not store it as it is."""
    found = kind_of(kind)
    if found is None or not callable(found.arrow):
        return None if found is None else found.word
    if found is _FIXED_KIND:
        return f"fixed({kind.byte_width})" if kind.byte_width else None
    return f"decimal({kind.precision},{kind.scale})" if kind.scale >= 0 else None


def word_for(engine: str, word: str) -> str | None:
    """Returns the word of ``delta``, ``iceberg`` or ``spark`` for the kind of a word, or None."""
    found = kind_named(word)
    theirs: str | None = None if found is None else getattr(found, engine)
    return None if theirs is None else theirs.format(*numbers_in(word))


@lru_cache(256)
def in_spark(word: str) -> pa.DataType | None:
    """Returns the Arrow type with which Spark gets columns of the kind of a word, or None."""
    theirs = word_for("spark", word)
    if theirs is not None and (digits := numbers_in(theirs)):
        return pa.decimal128(*digits)
    return next((k.arrow for k in KINDS if theirs is not None and k.spark == theirs), None)


def widens(old: str, new: str) -> bool:
    """Returns whether every value of the old kind is also one of the new, wider kind."""
    if old.startswith("decimal") and new.startswith("decimal"):
        (digits, scale), (more, same) = numbers_in(old), numbers_in(new)
        return scale == same and digits < more
    found = kind_named(old)
    return found is not None and new in found.widens_to


def of_plain(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """Returns an array of a type, null where a value is None. Returns None if a value is not of one
    of Python's own classes for it, or does not fit as it is.
    """
    found = _exact(kind)
    if found is None or not found[0].issuperset(map(type, values)):
        return None
    try:
        return found[1](values, kind)
    except (_OtherError, UnicodeEncodeError):
        return None


@lru_cache(256)
def _exact(kind: pa.DataType) -> tuple[frozenset[type], Callable[..., pa.Array]] | None:
    """Returns the exact classes, None's too, and the function for their array, once per type."""
    found = kind_of(kind)
    if found is None:
        return None
    return frozenset((*found.family.exact, type(None))), found.family.make
