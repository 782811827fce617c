"""By which rules `upsert` makes texts of rows for a log of bytes, and what the log keeps of them.

Encoding 2 is FORMAT.md §19: exact, and of nothing but the values (`row_texts`). Encoding 1 is what
release 0.1.0 did: Spark's own ``cast`` and ``to_json``, here always in one named time zone.

A log that is empty gets the rules with its first upsert. One that has records, but no rules, may
have keys of 0.1.0: where their text would be another one now, each would get a second row, so
nothing is written until the caller says which rules hold. Where it is the same, nothing is said or
kept.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812

from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError, OptionError, UnsupportedFormatError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from clog.storage.format.log_info import RowTexts
    from clog.storage.log import Log

Fields = Sequence[tuple[str, T.DataType]]
"""Names and types of columns."""
_LOGGER = logging.getLogger("clog.connector")
_told: set[tuple[str, str]] = set()
ENCODING, TIME_ZONE = "encoding", "encodingTimeZone"
SPARKS, EXACT = 1, 2
"""The encodings: that of 0.1.0, and that of FORMAT.md §19."""
READY_JSON = "clog.raw-json"
"""The one field of a struct that stands for JSON that is ready, a variant's."""
_PLAIN_DIGITS = 6
"""Java writes a decimal of more digits behind the point with an exponent where it is small."""
_SIMPLE = (
    *(T.StringType, T.BinaryType, T.BooleanType, T.IntegralType, T.DecimalType, T.FloatType),
    *(T.DoubleType, T.DateType, T.TimestampType, T.TimestampNTZType),
)
"""What Arrow has a type for that `row_texts` knows, beside what is nested."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options of an upsert say of the rules."""

    encoding: int | None = None
    time_zone: str | None = None


@dataclass(frozen=True, slots=True)
class _Change:
    """A column whose text in 0.1.0 is not that of today: both, of one value as an example."""

    column: str
    kind: str
    before: str
    now: str


def asked_of(given: dict[str, str]) -> Asked:
    """Takes the options about the rules out of those given, whose names are lowered."""
    text, zone = given.pop(ENCODING.lower(), None), given.pop(TIME_ZONE.lower(), None)
    if text not in (None, "1", "2"):
        raise OptionError(f'option "{ENCODING}" has the value {text!r}; it must be 1 or 2')
    if (text == "1") != (zone is not None):
        raise OptionError(
            f'options "{ENCODING}" and "{TIME_ZONE}" go together where the first is 1: give the'
            " time zone of the sessions that wrote to the log, such as Europe/Berlin; texts of"
            " encoding 2 have no zone"
        )
    return Asked(None if text is None else int(text), zone)


def check_rows(keys: Fields, values: Fields) -> None:
    """Raises if a key column cannot be compared as a text, or a name stands for more."""
    for name, kind in keys:
        if (refused := _no_key(kind)) is not None:
            raise InvalidInputError(
                f"key column {name} is or has a {refused}, of which equal ones may have several"
                " texts; make keys of other columns, or of its parts"
            )
    for name, kind in (*keys, *values):
        if any(isinstance(t, T.StructType) and t.names == [READY_JSON] for t in _within(kind)):
            raise InvalidInputError(
                f"column {name} is or has a struct with the one field {READY_JSON}, a name that"
                " clog keeps for the JSON of variants; rename the field"
            )


def _within(kind: T.DataType) -> Iterator[T.DataType]:
    """Yields a type and all that are inside it."""
    yield kind
    for inner in _parts(kind):
        yield from _within(inner)


def _parts(kind: T.DataType) -> list[T.DataType]:
    if isinstance(kind, T.StructType):
        return [f.dataType for f in kind]
    if isinstance(kind, T.ArrayType):
        return [kind.elementType]
    return [kind.keyType, kind.valueType] if isinstance(kind, T.MapType) else []


def _no_key(kind: T.DataType) -> str | None:
    """Returns the type that makes a key of this one impossible; None where it is possible."""
    # In older releases of Spark, which are refused later, one is missing.
    times = (T.TimeType, T.YearMonthIntervalType, T.DayTimeIntervalType)
    good = (*_SIMPLE, *times, T.StructType, T.ArrayType)
    return next((t.typeName() for t in _within(kind) if not isinstance(t, good)), None)


def agreed_rules(
    log: "Log", asked: Asked, keys: Fields, values: Fields, zone_check: "DataFrame"
) -> "RowTexts":
    """Returns the rules of a log, which it keeps from now on if it is empty, or if the options
    say them. One commit at the first upsert of these keys; a request each time where nothing is
    kept. Raises where texts would be other ones than those that are there.
    """
    from clog.storage.administration import keep_row_texts
    from clog.storage.format.log_info import RowTexts

    names = json_names(keys)
    kept = log.handle.tip.head.row_texts or log.handle.refresh().head.row_texts
    if kept is None and asked.encoding is None and any(log.handle.tip.head.partitions.end):
        _check_same_texts(log.url, keys, values)
        return RowTexts(EXACT)
    if kept is None and asked.time_zone is not None:
        _check_zone(zone_check, asked.time_zone)
    if kept is None or (names is not None and kept.spelled(names) is None):
        kept = keep_row_texts(log.handle, asked.encoding or EXACT, asked.time_zone, names)
    _check_rules(log.url, asked, kept)
    own = None if names is None else kept.spelled(names)
    if own is not None and names is not None and _lowered(own) != _lowered(names):
        raise InvalidInputError(
            f"the keys of the upsert are {', '.join(names)}, but those in {log.url} have the order"
            f" {', '.join(own)}, and another order makes other keys; name them in this one"
        )
    return kept


def json_names(fields: Fields) -> tuple[str, ...] | None:
    """Returns the names in the JSON object that columns become; None where they become none."""
    if len(fields) > 1:
        return tuple(name for name, _ in fields)
    kind = fields[0][1]
    return tuple(kind.names) if isinstance(kind, T.StructType) else None


def row_of(
    df: "DataFrame", columns: Sequence[str], names: tuple[str, ...] | None = None
) -> "Column":
    """Returns columns as the one of which a task makes a text; ``names`` are those in JSON."""
    fields = [df.schema[c] for c in columns]
    whole = [prepared(F.col(quoted(f.name)), f.dataType, alone=len(fields) == 1) for f in fields]
    if len(fields) == 1:
        return whole[0] if names is None else _renamed(whole[0], fields[0].dataType, names)
    return F.struct(*(c.alias(n) for c, n in zip(whole, names or columns, strict=True)))


def prepared(column: "Column", kind: T.DataType, *, alone: bool = True) -> "Column":
    """Returns a column with texts in place of what Arrow has no type for here: intervals and times
    of day, whose texts depend on nothing, and variants, of which only Spark knows the JSON.
    """

    def inner(type_of_it: T.DataType) -> "Callable[[Column], Column]":
        return lambda c: prepared(c, type_of_it, alone=False)

    if all(_parts(t) or isinstance(t, (*_SIMPLE, T.StructType)) for t in _within(kind)):
        return column
    if isinstance(kind, T.StructType):
        fields = [inner(f.dataType)(column.getField(f.name)).alias(f.name) for f in kind]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(kind, T.ArrayType):
        return F.transform(column, inner(kind.elementType))
    if isinstance(kind, T.MapType):
        keys = F.transform(F.map_keys(column), inner(kind.keyType))
        return F.map_from_arrays(keys, F.transform(F.map_values(column), inner(kind.valueType)))
    if isinstance(kind, T.VariantType):
        text = F.to_json(column, {"timeZone": "UTC"})
        return text if alone else F.when(text.isNotNull(), F.struct(text.alias(READY_JSON)))
    return column.cast("string")


def sparks_text(
    df: "DataFrame", columns: Sequence[str], zone: str | None, names: tuple[str, ...] | None = None
) -> "Column":
    """Returns the text that 0.1.0 made of columns; ``zone``: in it, not in the session's."""
    cols = [F.col(quoted(c)) for c in columns]
    # Null fields stay: a consumer must see that a field is null now.
    how = {"ignoreNullFields": "false"} | ({} if zone is None else {"timeZone": zone})
    if len(cols) > 1:
        return F.to_json(
            F.struct(*(c.alias(n) for c, n in zip(cols, names or columns, strict=True))), how
        )
    kind = df.schema[columns[0]].dataType
    if isinstance(kind, T.StructType | T.ArrayType | T.MapType):
        whole = cols[0] if names is None else _renamed(cols[0], kind, names)
        return F.to_json(whole, how)
    if isinstance(kind, T.TimestampType) and zone is not None:
        # A cast knows no zone but the session's.
        form = {**how, "timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS"}
        text = F.get_json_object(F.to_json(F.struct(cols[0].alias("t")), form), "$.t")
        return F.regexp_replace(text, r"\.?0+$", "")
    return cols[0] if isinstance(kind, T.BinaryType | T.StringType) else cols[0].cast("string")


def has_other_texts(*sides: Fields) -> bool:
    """Tells whether the texts of 0.1.0 are others than those of today, of keys or of values."""
    return any(_changes(fields) for fields in sides)


def quoted(name: str) -> str:
    """Returns the name of a column as an expression takes it."""
    return f"`{name.replace('`', '``')}`"


def _renamed(whole: "Column", kind: T.DataType, names: tuple[str, ...]) -> "Column":
    assert isinstance(kind, T.StructType), "only a struct has names"
    if tuple(kind.names) == names:
        return whole
    fields = [whole.getField(f).alias(n) for f, n in zip(kind.names, names, strict=True)]
    return F.when(whole.isNotNull(), F.struct(*fields))


def _lowered(names: Sequence[str]) -> list[str]:
    return [name.lower() for name in names]


def _check_rules(url: str, asked: Asked, kept: "RowTexts") -> None:
    if kept.encoding not in (SPARKS, EXACT):
        raise UnsupportedFormatError(
            f"{url} has texts of encoding {kept.encoding}, which this clog does not know; upgrade"
            " clog"
        )
    for option, wanted, has in (
        (ENCODING, asked.encoding, kept.encoding),
        (TIME_ZONE, asked.time_zone, kept.time_zone),
    ):
        if wanted not in (None, has):
            raise OptionError(
                f'option "{option}" is {wanted}, but the texts in {url} have {has}, which cannot'
                " change; leave the option out, or write to a new log"
            )


def _check_zone(df: "DataFrame", zone: str) -> None:
    """Raises if Spark does not know a time zone: what a log keeps it keeps for good."""
    from pyspark.errors import PySparkException

    one = df.sparkSession.range(1)
    try:
        one.select(F.to_utc_timestamp(F.lit("2000-01-01"), F.lit(zone))).collect()
    except PySparkException:
        raise OptionError(
            f'option "{TIME_ZONE}" is {zone!r}, which is no time zone that Spark knows; name one'
            " such as Europe/Berlin or +05:30"
        ) from None


def _check_same_texts(url: str, keys: Fields, values: Fields) -> None:
    """Raises if keys have other texts than 0.1.0 wrote; warns once where values have."""
    for change in _changes(keys):
        raise InvalidInputError(
            f"nothing was upserted into {url}: it has records of an earlier release, whose text of"
            f" key column {change.column}, {change.kind}, was another one: {change.before}, now"
            f" {change.now}; every key would get a second row; set {ENCODING}=1 and"
            f" {TIME_ZONE}=<that of the sessions that wrote it> in the options of upsert to keep"
            f" the old texts; or {ENCODING}=2, if no upsert has written these keys here, or into a"
            " new log"
        )
    for change in _changes(values):
        if (url, change.column) not in _told:
            _told.add((url, change.column))
            _LOGGER.warning(
                "upsert into %s: value column %s, %s, has another text than earlier releases wrote:"
                " %s, now %s",
                *(url, change.column, change.kind, change.before, change.now),
            )


def _changes(fields: Fields) -> list[_Change]:
    is_json = len(fields) > 1
    found = [_change(name, kind, is_json=is_json) for name, kind in fields]
    return [change for change in found if change is not None]


def _change(path: str, kind: T.DataType, *, is_json: bool) -> _Change | None:
    """Returns how a column's text has changed; None where it has not."""
    if isinstance(kind, T.StructType):
        inner = (_change(f"{path}.{f.name}", f.dataType, is_json=True) for f in kind)
        return next((change for change in inner if change is not None), None)
    if isinstance(kind, T.ArrayType):
        return _change(f"{path}.element", kind.elementType, is_json=True)
    if isinstance(kind, T.MapType):
        return _change(f"{path}.value", kind.valueType, is_json=True) or (
            _change(f"{path}.key", kind.keyType, is_json=False)
            if isinstance(kind.keyType, T.FractionalType)
            else None
        )
    texts = None
    if isinstance(kind, T.TimestampType):
        texts = ("2025-11-02 01:30:00, in a session in New York", "2025-11-02 05:30:00, in UTC")
        if is_json:
            texts = ("2025-11-02T01:30:00.123-04:00", "2025-11-02T05:30:00.123456Z")
    elif isinstance(kind, T.TimestampNTZType) and is_json:
        texts = ("2025-11-02T01:30:00.123", "2025-11-02T01:30:00.123456")
    elif isinstance(kind, T.DecimalType) and is_json and kind.scale > _PLAIN_DIGITS:
        texts = ("1E-10", format(1e-10, f".{kind.scale}f"))
    elif isinstance(kind, T.DoubleType):
        texts = ("1.9999999999999998E23, on Java 17", "2.0E23")
    elif isinstance(kind, T.FloatType):
        texts = ("9.1778944E7, on Java 17", "9.177894E7")
    return None if texts is None else _Change(path, kind.simpleString(), *texts)
