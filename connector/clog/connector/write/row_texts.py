"""Rows of plain columns as the texts that a log of bytes holds (FORMAT.md §19, encoding 2).

Spark's own ``cast`` and ``to_json`` depend on the session's time zone and the version of Java, and
truncate times to milliseconds, so two keys may become one. Therefore the texts are made here, from
Arrow's columns, in the task that writes them: exact, and dependent on nothing but the values. Arrow
kernels make whole columns; Python handles single values only where they are rare: floats far from
one, years beyond 9999. Types that Arrow does not have are already texts (`upsert`).
"""

import base64
import re
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from clog.connector.options import READY_JSON
from clog.storage.errors import InvalidInputError
from clog.storage.numpy_arrays import null

_DAY_US = 86_400_000_000
_YEARS_0_TO_9999 = (-719_528, 2_932_897)
"""Days since 1970, a half-open range: only dates in it have Arrow's text."""
_TEXT = pa.large_binary()
_NULL = null(_TEXT)
_SHORT = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r"}


def as_texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the batch with its columns ``key`` and ``value`` as texts."""
    made = [_alone(batch.column(name), is_key=name == "key") for name in ("key", "value")]
    return pa.RecordBatch.from_arrays(made, ["key", "value"])


def _alone(column: pa.Array, *, is_key: bool) -> pa.Array:
    kind = column.type
    if types.is_nested(kind):
        return _json(column, is_key=is_key)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return column
    return _plain(column, is_key=is_key)


def _json(column: pa.Array, *, is_key: bool) -> pa.Array:
    """Returns a column's values as JSON; null where they are null."""
    kind = column.type
    if types.is_struct(kind):
        if kind.names == [READY_JSON]:
            return _bytes(column.flatten()[0])
        return _json_structs(column, is_key=is_key)
    if types.is_list(kind) or types.is_large_list(kind):
        elements = _or_null(_json(column.flatten(), is_key=is_key))
        return _concat(b"[", _joined(column, elements), b"]")
    if types.is_map(kind):
        key = pa.field("key", kind.key_type, nullable=False)
        as_list = column.cast(pa.list_(pa.struct([key, kind.item_field])))
        keys, items = as_list.flatten().flatten()
        pairs = _concat(_map_keys(keys), b":", _or_null(_json(items, is_key=is_key)))
        return _concat(b"{", _joined(as_list, pairs), b"}")
    if types.is_string(kind) or types.is_large_string(kind):
        return _quoted(_bytes(column), is_key=is_key)
    if types.is_binary(kind) or types.is_large_binary(kind):
        texts = [None if v is None else base64.b64encode(v) for v in column.to_pylist()]
        return _concat(b'"', pa.array(texts, _TEXT), b'"')
    texts = _plain(column, is_key=is_key, is_json=True)
    if types.is_floating(kind):
        finite = pc.is_finite(column)
        return pc.if_else(finite, texts, _concat(b'"', texts, b'"'))
    is_time = types.is_date(kind) or types.is_timestamp(kind)
    return _concat(b'"', texts, b'"') if is_time else texts


def _json_structs(column: pa.Array, *, is_key: bool) -> pa.Array:
    parts: list[bytes | pa.Array] = []
    names = _quoted(pa.array([n.encode() for n in column.type.names], _TEXT))
    for name, field in zip(names.to_pylist(), column.flatten(), strict=True):
        parts += [(b"," if parts else b"{") + name + b":", _or_null(_json(field, is_key=is_key))]
    if not parts:
        parts = [pa.array([b"{"] * len(column), _TEXT)]
    return pc.if_else(column.is_valid(), _concat(*parts, b"}"), _NULL)


def _map_keys(keys: pa.Array) -> pa.Array:
    """Returns keys of maps as JSON strings, dates and times as numbers, as ``to_json`` does."""
    kind = keys.type
    if types.is_date(kind):
        keys = keys.cast(pa.int32())
    elif types.is_timestamp(kind):
        keys = keys.cast(pa.int64())
    elif types.is_binary(kind):
        return _json(keys, is_key=False)
    return _quoted(_bytes(_alone(keys, is_key=False)))


def _plain(column: pa.Array, *, is_key: bool, is_json: bool = False) -> pa.Array:
    """Returns the texts of strings, numbers, truth values, dates and times, without quotes."""
    kind = column.type
    if types.is_floating(kind):
        return _float_texts(column, is_key=is_key)
    if types.is_date(kind):
        days = column.cast(pa.int32())
        return _time_texts(days, days, pa.date32(), _date_text)
    if types.is_timestamp(kind):
        return _timestamp_texts(column, is_json=is_json)
    texts = _bytes(column if types.is_string(kind) else column.cast(pa.string()))
    if types.is_decimal(kind) and pc.any(pc.match_substring(texts, b"E")).as_py():
        # Without an exponent.
        texts = pa.array(
            [v and format(Decimal(v.decode()), "f").encode() for v in texts.to_pylist()], _TEXT
        )
    return texts


def _timestamp_texts(column: pa.Array, *, is_json: bool) -> pa.Array:
    micros = column.cast(pa.int64())
    nulls = micros.is_null().to_numpy(zero_copy_only=False)
    days = pa.array(np.floor_divide(_numbers(micros), _DAY_US), mask=nulls)
    texts = _time_texts(days, micros, pa.timestamp("us"), _timestamp_text)
    if not is_json:
        return pc.replace_substring_regex(texts, rb"\.?0+$", b"", max_replacements=1)
    texts = pc.replace_substring(texts, b" ", b"T")
    texts = pc.replace_substring_regex(texts, rb"(\.[0-9]{3})000$", rb"\1")
    return texts if column.type.tz is None else _concat(texts, b"Z")


def _time_texts(
    days: pa.Array, values: pa.Array, kind: pa.DataType, text_of: Callable[[int], str]
) -> pa.Array:
    """Returns Arrow's texts of dates or times, or ``text_of``'s outside of years 0 to 9999."""
    first, after = _YEARS_0_TO_9999
    is_far = pc.or_(pc.less(days, first), pc.greater_equal(days, after))
    is_far = pc.coalesce(is_far, pa.scalar(value=False))
    near = pc.if_else(is_far, pa.scalar(0, values.type), values)
    texts = _bytes(near.cast(kind).cast(pa.string()))
    if not pc.any(is_far).as_py():
        return texts
    far = [text_of(v).encode() for v in values.filter(is_far).to_pylist()]
    return pc.replace_with_mask(texts, is_far, pa.array(far, _TEXT))


def _date_text(day: int) -> str:
    """Returns the date of a day since 1970 as Java does: any year, proleptic Gregorian."""
    # Eras of 400 years, each beginning on the first of March.
    era, of_era = divmod(day + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    year += era * 400 + (month <= 2)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{of_year - (153 * shifted + 2) // 5 + 1:02d}"


def _timestamp_text(micros: int) -> str:
    day, of_day = divmod(micros, _DAY_US)
    seconds, micros = divmod(of_day, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{_date_text(day)} {clock}.{micros:06d}"


def _float_texts(column: pa.Array, *, is_key: bool) -> pa.Array:
    """Returns the shortest text of each number that round-trips, in the form of Java 19 and newer:
    always with a point, and with an exponent below 0.001 and from 10,000,000 on.
    """
    numbers = _numbers(column)
    if is_key:
        numbers = numbers + numbers.dtype.type(0)  # -0.0 and 0.0 are one key.
    texts = _bytes(pa.array(numbers).cast(pa.string()))
    size = np.abs(numbers)
    is_near = pa.array((size >= 0.001) & (size < 1e7))
    lacks_point = pc.invert(pc.match_substring(texts, b"."))
    texts = pc.if_else(pc.and_(is_near, lacks_point), _concat(texts, b".0"), texts)
    is_odd = pc.or_(pc.invert(is_near), pc.match_substring(texts, b"e"))
    if pc.any(is_odd).as_py():
        odd = zip(
            texts.filter(is_odd).to_pylist(),
            numbers[is_odd.to_numpy(zero_copy_only=False)],
            strict=True,
        )
        made = [_java_text(text.decode(), number).encode() for text, number in odd]
        texts = pc.replace_with_mask(texts, is_odd, pa.array(made, _TEXT))
    return pc.if_else(column.is_valid(), texts, _NULL)


_NOT_FINITE = {"nan": "NaN", "-nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _java_text(shortest: str, number: np.floating) -> str:
    """Returns the text of one number; ``shortest`` has as few digits as round-trip."""
    if shortest in _NOT_FINITE:
        return _NOT_FINITE[shortest]
    sign, digits, exponent = Decimal(shortest).normalize().as_tuple()
    assert isinstance(exponent, int), "a number is finite"
    minus = "-" if sign else ""
    if digits == (0,):
        return f"{minus}0.0"
    if len(digits) == 1:
        # Java takes the nearest with two digits even if one would do: 4.9E-324.
        _, digits, exponent = Decimal(f"{float(number):.1e}").as_tuple()
        assert isinstance(exponent, int), "a number is finite"
    text = "".join(map(str, digits))
    point = len(text) + exponent
    if not -3 < point <= 7:
        return f"{minus}{text[0]}.{text[1:].rstrip('0') or '0'}E{point - 1}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{text.rstrip('0')}"
    text = text.ljust(point, "0")
    return f"{minus}{text[:point]}.{text[point:].rstrip('0') or '0'}"


def _quoted(texts: pa.Array, *, is_key: bool = False) -> pa.Array:
    """Returns strings as JSON, escaped as Jackson does, everything else unchanged."""
    try:
        texts.cast(pa.large_string())
    except pa.ArrowInvalid:
        if is_key:
            raise InvalidInputError(
                "a key has a string that is not UTF-8, and its JSON could equal that of another;"
                " cast the column to binary, or clean it"
            ) from None
        given = texts.to_pylist()
        fixed = [None if v is None else v.decode(errors="replace").encode() for v in given]
        texts = pa.array(fixed, _TEXT)
    if pc.any(pc.match_substring_regex(texts, rb'[\x00-\x1f"\\]')).as_py():
        for plain in (b"\\", b'"'):
            texts = pc.replace_substring(texts, plain, b"\\" + plain)
        joined = b"".join(v for v in texts.to_pylist() if v is not None)
        for control in sorted({ord(c) for c in re.findall(rb"[\x00-\x1f]", joined)}):
            escaped = _SHORT.get(control, b"\\u%04X" % control)
            texts = pc.replace_substring(texts, bytes([control]), escaped)
    return _concat(b'"', texts, b'"')


def _joined(lists: pa.Array, elements: pa.Array) -> pa.Array:
    """Returns the elements of each list, of which ``elements`` has the texts, joined by commas."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    made = pa.ListArray.from_arrays(pa.array(offsets), elements)
    texts = pc.binary_join(made, pa.scalar(b",", _TEXT))
    return pc.if_else(lists.is_valid(), texts, _NULL)


def _concat(*parts: bytes | pa.Array) -> pa.Array:
    """Returns texts concatenated; null where one of them is."""
    given = [pa.scalar(p, _TEXT) if isinstance(p, bytes) else p for p in parts]
    return pc.binary_join_element_wise(*given, pa.scalar(b"", _TEXT))


def _or_null(texts: pa.Array) -> pa.Array:
    return texts.fill_null(b"null")


def _bytes(texts: pa.Array) -> pa.Array:
    return texts.cast(_TEXT)


def _numbers(column: pa.Array) -> np.ndarray:
    """Returns numbers, with 0 for null."""
    numbers: np.ndarray = column.fill_null(0).to_numpy(zero_copy_only=False)
    return numbers
