"""Maps PostgreSQL's types to columns of logs, and converts values from the text that the server
prints (docs/guests/databases.md).

Both sources, the COPY of the first load and the stream, give each value as *text*: every type has
one, even those of extensions, and it is exact in a session with the settings `SESSION`. So both use
the same conversion from text to Arrow, and give equal values.

A *form* is how a type is kept: an Arrow type, and a function that converts arrays of texts to it. A
type without a row in `_FORMS` is kept as its text. A domain is kept like its base type, an array as
lists of its elements' form.

A value that does not fit the form (NaN in ``numeric(9,2)``, an array with other dimensions than
declared) is refused, never altered; the remedy is to keep that column as text. Infinite dates and
timestamps become the largest and smallest numbers, which DuckDB reads as infinite.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.bridge.capturing.tables import Form, TablePlan, UnfitError
from clog.storage import InvalidInputError
from clog.storage.spi import dataclass, to_arrow, to_numpy

if TYPE_CHECKING:
    from clog.bridge.capturing.tables import Column

SESSION: Final[Mapping[str, str]] = {
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "extra_float_digits": "3",
    "quote_all_identifiers": "off",
    "search_path": "pg_catalog",
    "row_security": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "jit": "off",  # To compile a look at the catalogue takes ten times as long as to look.
}
"""The settings of sessions whose texts are read here. From a table with row security either all
rows are read, as the stream has them, or there is an error. A load has no time limit.
"""
DECIMAL_DIGITS_MAX: Final = 38
"""With more digits, many readers have no decimals, or round them."""
_VARHDRSZ: Final = 4
_DIMENSIONS_MAX: Final = 6
"""PostgreSQL's own limit."""
_INTERVALS: Final = "as text, ISO 8601: P1DT2H"


def session_options() -> str:
    """Returns `SESSION` as the parameter ``options`` of a connection."""
    escaped = ((name, re.sub(r"([\\ ])", r"\\\1", value)) for name, value in SESSION.items())
    return " ".join(f"-c {name}={value}" for name, value in escaped)


class Connection(Protocol):
    """The part of psycopg2's connection that is used here."""

    def cursor(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Type:
    """A row of pg_type; ``kind`` b, d, e, c, r, m: base, domain, enum, composite, (multi)range."""

    oid: int
    name: str
    is_builtin: bool
    kind: str
    base: int
    typmod: int
    dimensions: int
    element: int
    delimiter: str
    is_array: bool


_TYPES_SQL: Final = """
WITH RECURSIVE needed(oid) AS (
  SELECT unnest(%s::oid[])
  UNION
  SELECT unnest(ARRAY[t.typbasetype, t.typelem])
  FROM pg_catalog.pg_type t JOIN needed n ON n.oid = t.oid
)
SELECT t.oid::bigint, t.typname::text, t.typnamespace = 'pg_catalog'::regnamespace,
  t.typtype::text, t.typbasetype::bigint, t.typtypmod, t.typndims, t.typelem::bigint,
  t.typdelim::text, t.typinput = 'array_in'::regproc
FROM pg_catalog.pg_type t JOIN needed n ON n.oid = t.oid
"""


def plan_of(
    connection: Connection,
    columns: Sequence["Column"],
    *,
    what: str,
    text: Collection[str] = (),
) -> TablePlan:
    """Returns how the columns of the table ``what``, ``schema.table``, are kept; those named in
    ``text`` are kept as text. One query.

    Raises:
        InvalidInputError: the server no longer knows a type.
    """
    with connection.cursor() as cursor:
        cursor.execute(_TYPES_SQL, ([c.type_oid for c in columns],))
        types = {row[0]: Type(*row) for row in cursor.fetchall()}
    return plan_from(types, columns, what=what, text=text)


def plan_from(
    types: Mapping[int, Type], columns: Sequence["Column"], *, what: str, text: Collection[str]
) -> TablePlan:
    """Returns how columns of these types are kept."""
    forms, fields = [], []
    for column in columns:
        if column.type_oid not in types:
            raise InvalidInputError(
                f"{what}.{column.name} has a type with the oid {column.type_oid}, which the"
                f" server does not list; leave the column out (--mask {what}.{column.name}=drop)"
            )
        form = _form(types, column.type_oid, column.typmod, column.ndims)
        if column.name in text:
            form = _as_text("as text, as requested")
        elif column.in_key and (pa.types.is_floating(form.arrow) or pa.types.is_list(form.arrow)):
            form = _as_text(f"as text: a key cannot be {form.arrow}")
        forms.append(form)
        fields.append(pa.field(column.name, form.arrow, nullable=not column.in_key))
    return TablePlan(what, pa.schema(fields), tuple(forms))


def _form(types: Mapping[int, Type], oid: int, typmod: int, dimensions: int) -> Form:
    """Returns the form of a type, which may be composed of others."""
    kind = types[oid]
    if kind.kind == "d":
        inner = typmod if kind.typmod < 0 else kind.typmod
        return _form(types, kind.base, inner, dimensions or kind.dimensions)
    if kind.is_array:
        element = types[kind.element]
        if kind.delimiter != ",":
            return _as_text(f"as text: {element.name}[] is written differently from other arrays")
        return _lists(_form(types, kind.element, typmod, 0), max(1, dimensions))
    if kind.kind == "e":
        return _as_text("")
    if kind.kind in _KINDS:
        return _as_text(f"as text: a {_KINDS[kind.kind]}")
    if not kind.is_builtin:
        return _as_text("" if kind.name == "citext" else f"as text: {kind.name}")
    if kind.name == "numeric":
        return _numeric(typmod)
    return _FORMS.get(kind.name) or _as_text(f"as text: {kind.name}")


_KINDS: Final = {"c": "composite", "r": "range", "m": "multirange"}


# Texts.


def _as_text(note: str) -> Form:
    return Form(pa.string(), _texts, note, plain=True)


def _texts(texts: pa.Array) -> pa.Array:
    try:
        return texts.view(pa.binary()).cast(pa.string())
    except pa.ArrowException:
        raise UnfitError("text that is not UTF-8, as a database in SQL_ASCII may") from None


def _cast_to(kind: pa.DataType) -> Form:
    return Form(kind, lambda texts: texts.cast(kind), plain=True)


# Numbers, booleans, bytes.


def _numeric(typmod: int) -> Form:
    """Returns the form of a numeric; its scale may be negative, or above its precision."""
    if typmod < _VARHDRSZ:
        return _as_text("as text: a numeric without precision can have any number of digits")
    packed = typmod - _VARHDRSZ
    digits, scale = packed >> 16, ((packed & 0x7FF) ^ 1024) - 1024
    digits, scale = max(digits - min(scale, 0), scale), max(scale, 0)
    if digits > DECIMAL_DIGITS_MAX:
        return _as_text(f"as text: more than {DECIMAL_DIGITS_MAX} digits")
    kind = pa.decimal128(digits, scale)

    def made(texts: pa.Array) -> pa.Array:
        try:
            return texts.cast(kind)
        except pa.ArrowException:
            raise UnfitError(f"something that is not a number, or too long for {kind}") from None

    return Form(kind, made, plain=True)


def _truths(texts: pa.Array) -> pa.Array:
    found = pc.equal(texts, "t")
    others = pc.and_not(pc.not_equal(texts, "f"), found)
    if pc.any(others).as_py():
        raise UnfitError("something that is not a boolean")
    return found


def _octets(texts: pa.Array) -> pa.Array:
    """Converts texts with a prefix and two hexadecimal digits per byte to bytes."""
    offsets = _offsets(texts)
    lengths = np.diff(offsets)
    there = lengths > 0
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    starts = offsets[:-1][there]
    if ((lengths[there] < 2) | (lengths[there] % 2 == 1)).any() or not (
        (data[starts] == ord("\\")).all() and (data[starts + 1] == ord("x")).all()
    ):
        raise UnfitError("bytes that are not written in hex")
    digits = _HEX[data[offsets[0] : offsets[-1]]]
    kept = np.ones(len(digits), np.bool_)
    kept[starts - offsets[0]] = kept[starts + 1 - offsets[0]] = False
    digits = digits[kept]
    if (digits > 15).any():
        raise UnfitError("bytes that are not written in hex")
    octets = (digits[0::2] << 4) | digits[1::2]
    ends = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(np.where(there, lengths // 2 - 1, 0), out=ends[1:])
    buffers = [_validity(texts), pa.py_buffer(ends), pa.py_buffer(octets)]
    return pa.Array.from_buffers(pa.binary(), len(texts), buffers)


def _offsets(texts: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Returns where texts begin and end in their buffer; nulls have length 0."""
    if not len(texts):
        return np.zeros(1, np.int32)
    return np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, 4 * texts.offset)


def _validity(texts: pa.Array) -> pa.Buffer | None:
    """Returns the bits that say which texts are not null, or None if all are."""
    if not texts.null_count:
        return None
    return pa.py_buffer(np.packbits(to_numpy(texts.is_valid()), bitorder="little"))


_HEX: Final = np.full(256, 255, np.uint8)
for _i, _c in enumerate(b"0123456789abcdef"):
    _HEX[_c] = _i


# Dates and timestamps.

_PLAIN_DATE: Final = r"^\d{4}-\d\d-\d\d$"
_PLAIN_TIME: Final = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?(\+00)?$"
_MOMENT: Final = re.compile(
    r"(\d{4,7})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?)?( BC)?"
)
_DAY_US: Final = 86_400_000_000


def _moments(kind: pa.DataType) -> Form:
    """Returns the form of dates or timestamps; Arrow reads those with four-digit years."""
    is_date = pa.types.is_date(kind)
    plain, unit = (_PLAIN_DATE, _DAY_US) if is_date else (_PLAIN_TIME, 1)
    dtype = np.int32 if is_date else np.int64

    def made(texts: pa.Array) -> pa.Array:
        try:
            return texts.cast(kind)
        except pa.ArrowException:
            pass  # Some are of another kind.
        regular = pc.match_substring_regex(texts, plain)
        found = pc.if_else(regular, texts, pa.nulls(1, pa.string())[0]).cast(kind)
        others = np.flatnonzero(to_numpy(pc.and_kleene(texts.is_valid(), pc.invert(regular))))
        numbers = np.array(to_numpy(pc.coalesce(found, pa.nulls(1, kind)[0])), dtype)
        most = int(np.iinfo(dtype).max)
        for i in others.tolist():
            numbers[i] = _far(texts[i].as_py(), unit, most)
        return to_arrow(numbers, kind, valid=to_numpy(texts.is_valid()))

    return Form(kind, made, plain=True)


def _far(text: str, unit_us: int, most: int) -> int:
    """Returns a moment in a year with more than four digits or BC, or an infinite one."""
    if text in ("infinity", "-infinity"):
        return -most if text[0] == "-" else most
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise UnfitError("a date or a timestamp that is not written as ISO 8601")
    year, month, day, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:6])
    days = _days(1 - year if found[8] else year, month, day)
    in_day = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000
    moment = (days * _DAY_US + in_day + int((found[7] or "").ljust(6, "0"))) // unit_us
    if not -most < moment < most:
        raise UnfitError("a timestamp after January 294247, beyond 64 bits")
    return moment


def _days(year: int, month: int, day: int) -> int:
    """Returns days since 1970 in the Gregorian calendar, for any year."""
    # Years begin in March here: the leap day is the last day.
    y, m = (year - 1, month + 9) if month < 3 else (year, month - 3)
    return 365 * y + y // 4 - y // 100 + y // 400 + (153 * m + 2) // 5 + day - 1 - 719_468


# Arrays.

_NOT_SIMPLE: Final = r'["\\]|^\[|\{.*\{'
_PART: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([^{},"\\]+)|([{},])', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
Nested = list[Any]


def _lists(element: Form, dimensions: int) -> Form:
    """Returns the form of arrays with this many dimensions."""
    kind = element.arrow
    for _ in range(dimensions):
        kind = pa.list_(kind)
    notes = [element.note, "lower bounds of arrays other than 1 are not kept"]

    def made(texts: pa.Array) -> pa.Array:
        if dimensions == 1 and not pc.any(pc.match_substring_regex(texts, _NOT_SIMPLE)).as_py():
            lengths, parts = _split(texts)
            levels: list[Any] = [lengths]
        else:
            levels, leaves = _flattened(texts.to_pylist(), dimensions)
            parts = pa.array(leaves, pa.string())
        array = element.made(parts)
        for level in reversed(levels[1:]):
            array = _list_array(level, array, None)
        return _list_array(levels[0], array, _validity(texts))

    return Form(kind, made, "; ".join(filter(None, notes)))


def _split(texts: pa.Array) -> tuple[np.ndarray[Any, Any], pa.Array]:
    """Returns the lengths and elements of arrays without quotes."""
    if not pc.all(pc.match_substring_regex(texts, r"^\{[^{}]*\}$"), min_count=0).as_py():
        raise UnfitError("something that is not an array")
    inner = pc.utf8_trim(texts, "{}")
    split = pc.split_pattern(pc.coalesce(inner, ""), ",")
    lengths = to_numpy(pc.list_value_length(split)).astype(np.int64)
    is_empty = to_numpy(pc.equal(pc.binary_length(pc.coalesce(inner, "")), 0))
    parts = split.flatten()
    if is_empty.any():
        kept = np.ones(len(parts), np.bool_)
        kept[(np.cumsum(lengths) - 1)[is_empty]] = False
        parts = parts.filter(to_arrow(kept))
        lengths = lengths - is_empty
    return lengths, pc.if_else(pc.equal(parts, "NULL"), pa.nulls(1, pa.string())[0], parts)


def _list_array(lengths: Any, values: pa.Array, nulls: pa.Buffer | None) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [nulls, pa.py_buffer(offsets)]
    kind = pa.list_(values.type)
    return pa.Array.from_buffers(kind, len(lengths), buffers, children=[values])


def _flattened(texts: list[str | None], dimensions: int) -> tuple[list[list[int]], list[Any]]:
    """Returns the lengths of lists, level by level, and the elements of the innermost ones."""
    lists: list[Nested] = [[] if text is None else _parsed(text) for text in texts]
    levels = []
    for depth in range(dimensions):
        levels.append([len(inner) for inner in lists])
        lists = [part for inner in lists for part in inner]
        wanted = depth + 1 < dimensions
        if any(isinstance(part, list) != wanted for part in lists):
            raise UnfitError(f"an array without the {dimensions} dimensions declared")
    return levels, lists


def _parsed(text: str) -> Nested:
    """Returns the elements of an array in the server's notation."""
    if text.startswith("["):  # It has lower bounds.
        text = text[text.find("=") + 1 :]
    top: Nested = []
    stack = [top]
    for quoted, plain, mark in _parts(text):
        if mark == "{":
            inner: Nested = []
            stack[-1].append(inner)
            stack.append(inner)
        elif mark == "}":
            stack.pop()
        elif not mark:
            stack[-1].append(quoted if plain is None else None if plain == "NULL" else plain)
        if not 1 <= len(stack) <= _DIMENSIONS_MAX + 1:
            break
    if len(stack) != 1 or len(top) != 1 or not isinstance(top[0], list):
        raise UnfitError("something that is not an array")
    return top[0]


def _parts(text: str) -> Iterator[tuple[str | None, str | None, str]]:
    at = 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None:
            raise UnfitError("something that is not an array")
        at = found.end()
        quoted = found[1]
        if quoted is not None and "\\" in quoted:
            quoted = _ESCAPED.sub(r"\1", quoted)
        yield quoted, found[2], found[3] or ""


_FORMS: Final[Mapping[str, Form]] = {
    "bool": Form(pa.bool_(), _truths, plain=True),
    "int2": _cast_to(pa.int16()),
    "int4": _cast_to(pa.int32()),
    "int8": _cast_to(pa.int64()),
    "oid": _cast_to(pa.int64()),
    "float4": _cast_to(pa.float32()),
    "float8": _cast_to(pa.float64()),
    "text": _as_text(""),
    "varchar": _as_text(""),
    "bpchar": _as_text("with its trailing blanks"),
    "char": _as_text(""),
    "name": _as_text(""),
    "bytea": Form(pa.binary(), _octets),
    "date": _moments(pa.date32()),
    "timestamp": _moments(pa.timestamp("us")),
    "timestamptz": _moments(pa.timestamp("us", "UTC")),
    "time": _as_text("as text: not all readers support times of day, and none 24:00:00"),
    "interval": _as_text(_INTERVALS),
    "json": _as_text(""),
    "jsonb": _as_text(""),
    "uuid": _as_text("as text"),
    "money": _as_text("as text, as the database's lc_monetary prints it"),
}
