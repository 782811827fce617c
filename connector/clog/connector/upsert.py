"""Update mode: the rows that changed in a micro-batch, appended as a changelog, exactly once.

Spark refuses output mode update for Python sinks, but not for ``foreachBatch``. There a batch can
run again after its rows were appended (a crash before Spark noted it), so the append carries the
query's id and the batch's number as ``txnAppId`` and ``txnVersion``. A changelog is useless without
its earlier batches: a run that finds another log than the one it wrote to fails, and one that finds
no earlier batch logs a warning. It cannot fail, as a query may upsert only some batches (S47).

A record of the changelog is a row: its key columns are the record's key, the others its value. In a
log of bytes both are texts: a single column of string or binary type is used as it is, one of
another type becomes its text; a struct, an array, a map, or several columns become JSON.
In a typed log columns keep their types: they are the fields of a struct if the log's key or value
is one, else a single column. Names of columns are case-insensitive, like Spark's. JSON spells them
as the DataFrame does, and in keys as the first upsert did.

*The rules of texts.* Encoding 2 is FORMAT.md §19: exact, and dependent on nothing but the values
(`row_texts`). Encoding 1 is what release 0.1.0 did: Spark's own ``cast`` and ``to_json``, here
always in one named time zone.

An empty log gets its rules with the first upsert. A log with records but no rules may have keys of
0.1.0: if their texts would be different now, each key would get a second row, so nothing is written
until the caller says which rules apply. If the texts are the same, nothing is reported or stored.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812

from clog.connector.opened_logs import types_of
from clog.connector.options import READY_JSON, ROW_TEXTS, texts_of, write_options
from clog.connector.write.write_task import QUERY_ID, RUN_ID, local_property, opened_or_created
from clog.connector.write.writers import introduce, is_known
from clog.storage.env import dataclass
from clog.storage.errors import (
    InvalidInputError,
    LogReplacedError,
    OptionError,
    UnsupportedFormatError,
)
from clog.storage.store.opening import redact
from clog.storage.types.names import folded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from clog.connector.options import WriteOptions
    from clog.connector.schema import LogTypes
    from clog.storage.commit.proposals import Writer
    from clog.storage.format.log_info import RowTexts
    from clog.storage.log import Log

_Fields = Sequence[tuple[str, T.DataType]]
"""Names and types of columns."""
_LOGGER = logging.getLogger("clog.connector")
_warned: set[tuple[str, str]] = set()
_ENCODING, _TIME_ZONE = "encoding", "encodingTimeZone"
_SPARKS, _EXACT = 1, 2
"""The encodings: that of 0.1.0, and that of FORMAT.md §19."""
_PLAIN_DIGITS = 6
"""Java writes a small decimal with more digits after the point than this with an exponent."""
_SIMPLE = (
    *(T.StringType, T.BinaryType, T.BooleanType, T.IntegralType, T.DecimalType, T.FloatType),
    *(T.DoubleType, T.DateType, T.TimestampType, T.TimestampNTZType),
)
"""The types, other than nested ones, that Arrow has and `row_texts` knows."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """The rules that the options of an upsert ask for."""

    encoding: int | None = None
    time_zone: str | None = None


@dataclass(frozen=True, slots=True)
class _Change:
    """A column whose text differs from that of 0.1.0: both texts of an example value."""

    column: str
    kind: str
    before: str
    now: str


@dataclass(frozen=True, slots=True)
class _Done:
    """The last call: its run, its batch, and the log it wrote to."""

    run_id: str
    batch_id: int
    log_id: str


_done: dict[tuple[str, str], _Done] = {}
"""By URL and app id: to notice two calls with the same name, and a log that was recreated."""


def upsert(
    df: "DataFrame",
    url: str,
    keys: str | Sequence[str],
    *,
    batch_id: int,
    values: Sequence[str] | None = None,
    deleted: "str | Column | None" = None,
    name: str | None = None,
    query_id: str | None = None,
    options: Mapping[str, object] | None = None,
) -> None:
    """Appends the rows of a micro-batch to a log, once; for use in ``foreachBatch``.

    Args:
        df: the batch, with one row for each key; if a key has several rows, any of them may win.
        url: the log; the first batch creates it, with bytes, or with types if the option
            ``keyColumns`` is given, which must name ``keys``.
        keys: the column or columns that make the record's key.
        batch_id: the second argument of the function given to ``foreachBatch``.
        values: the columns that make the value; None: all others.
        deleted: a condition; a row that meets it becomes a tombstone. So does a row whose value is
            a single column that is null.
        name: distinguishes two upserts of one batch into one log.
        query_id: names the streaming query across its restarts; None: its id, which Spark provides.
            Spark Connect does not, and pickles the function before there is a query: give a name of
            your own there, and a different one with a new checkpoint, because its batches count
            from 0 again.
        options: further options of the write, such as ``partitions`` or ``config.<name>``; and
            ``encoding`` with ``encodingTimeZone``, for a log of bytes that has keys of 0.1.0: 1 to
            continue with the texts of that release, in this time zone.

    Raises:
        InvalidInputError: a column does not exist, or cannot be a key; no query is known; a second
            upsert of the batch into this log does not have its own name; the log has keys of 0.1.0
            whose text would be different now, or compares a header.
        OptionError: ``encoding`` or ``encodingTimeZone`` are not the log's.
        InvalidInputError, LogReplacedError: the batch, or a later one, is already in the log with
            other rows; the log was deleted and recreated since this run's last batch. Neither is
            raised if the option ``failOnChangedBatch`` is false.

    >>> def each_batch(df, batch_id):
    ...     upsert(df, "help-of-upsert", "word", batch_id=batch_id, query_id="word-counts")
    >>> each_batch(spark.createDataFrame([("tea", 3)], "word string, count int"), 0)
    """
    columns = _columns(df, [keys] if isinstance(keys, str) else list(keys), values, deleted)
    run_id = local_property(df, RUN_ID) or ""
    app_id = _app_id(query_id or local_property(df, QUERY_ID), name, url)
    last = _done.get((url, app_id))
    last = None if last is None or last.run_id != run_id else last
    if run_id and last is not None and last.batch_id == batch_id:
        raise InvalidInputError(
            f"batch {batch_id} is upserted into {redact(url)} twice; the second upsert would be"
            " dropped as a repetition of the first; give each upsert its own name (name=…)"
        )
    given = texts_of(options)
    asked = _asked_of(given)
    given = {"failonchangedbatch": "true", **given}
    given |= {"path": url, "txnappid": app_id, "txnversion": str(batch_id)}
    _done[(url, app_id)] = _Done(run_id, batch_id, _append(columns, given, asked, last))


def _append(
    columns: "_Columns", given: Mapping[str, str], asked: _Asked, last: _Done | None
) -> str:
    """Appends, and returns the id of the log; raises as `upsert` does."""
    from clog.storage.commit.proposals import Writer

    writer = Writer(given["txnappid"], "txn", int(given["txnversion"]))
    log = _checked_log(write_options(given), writer, asked, last, columns)
    log_id = log.handle.standing.log_id
    types = types_of(log.handle)
    to_log = {**given, "logid": log_id}
    if types is not None:
        _write(columns.typed(types), to_log)
    else:
        rules = _agreed_rules(log, asked, *columns.fields(), columns.df)
        _write_texts(columns, rules, to_log, is_repeated=_is_repeated(log, writer))
    if writer.sequence == 0:
        introduce(log, writer)  # It may have no rows, and the next batch must find an entry.
    return log_id


def _write_texts(
    columns: "_Columns", rules: "RowTexts", given: Mapping[str, str], *, is_repeated: bool
) -> None:
    """Appends to a log of bytes. A batch that is already there may be one of 0.1.0, in progress at
    the upgrade: it has other rows only if they differ in that release's texts, too.
    """
    if rules.encoding == _SPARKS:
        _write(columns.sparks_texts(rules), given)
        return
    exact = {**given, ROW_TEXTS: "true"}
    if not (is_repeated and _has_other_texts(*columns.fields())):
        _write(columns.rows(rules), exact)
        return
    try:
        _write(columns.rows(rules), exact)
    except Exception as changed:  # noqa: BLE001 -- Spark's, of some kind, around ours
        try:
            _write(columns.sparks_texts(rules), given)
        except Exception:  # noqa: BLE001 -- the first one describes the rows as they are
            raise changed from None


def _write(records: "DataFrame", given: Mapping[str, str]) -> None:
    records.write.format("clog").mode("append").options(**given).save()


def _is_repeated(log: "Log", writer: "Writer") -> bool:
    entry = log.handle.find_writer(writer.kind, writer.writer_id)
    return entry is not None and entry.sequence == writer.sequence


def _checked_log(
    settings: "WriteOptions",
    writer: "Writer",
    asked: _Asked,
    last: _Done | None,
    columns: "_Columns",
) -> "Log":
    """Returns the log to write to, created if necessary; makes one request the first time."""
    from clog.storage.config.log_config import LogConfig

    def check(types: "LogTypes | None") -> None:
        if types is None and asked.encoding != _SPARKS:
            check_rows(*columns.fields())
        if types is not None and asked.encoding is not None:
            raise OptionError(
                f'option "{_ENCODING}" concerns keys as text, but'
                f" {redact(settings.location.name)} is a typed log; leave the option out"
            )

    wanted = None if settings.key_columns is None else [folded(k) for k in settings.key_columns]
    if wanted not in (None, [folded(k) for k in columns.keys]):
        raise OptionError(
            f'option "keyColumns" is {", ".join(settings.key_columns or ())}, but the keys of the'
            f" upsert are {', '.join(columns.keys)}; name these"
        )
    log = opened_or_created(settings, check, rows=columns.df.schema)
    if header := LogConfig.from_overrides(log.handle.tip.head.config).compaction_strategy_header:
        raise InvalidInputError(
            f"{log.url} compares the header {header!r} (compaction.strategy=header), but rows of"
            " an upsert have no headers; nothing was appended; upsert into a log with the"
            " strategy offset, or append records with a column headers in foreachBatch"
        )
    log_id = log.handle.standing.log_id
    if last is not None and last.log_id != log_id and settings.fail_on_changed_batch:
        raise LogReplacedError(
            f"{log.url} was deleted and recreated since batch {last.batch_id} was upserted into it"
            f" (its id was {last.log_id}, now it is {log_id}); nothing was appended; start the"
            " query with a new checkpoint to write all of it, or set failOnChangedBatch=false to"
            " continue here with this batch"
        )
    if writer.sequence and not is_known(log, writer):
        _LOGGER.warning(
            "%s has none of the batches before batch %d of %r: none was upserted, or they were"
            " upserted elsewhere or under another name, or the log was deleted and recreated;"
            " continuing",
            *(log.url, writer.sequence, writer.writer_id),
        )
    return log


def _app_id(query_id: str | None, name: str | None, url: str) -> str:
    if query_id is None:
        raise InvalidInputError(
            f"upsert into {redact(url)} cannot tell its streaming query; call it in foreachBatch;"
            " with Spark Connect, whose foreachBatch does not identify the query, give the query"
            ' a name, such as query_id="word-counts": the same name at each restart, and another'
            " one with a new checkpoint"
        )
    return query_id if name is None else f"{query_id}/{name}"


@dataclass(frozen=True, slots=True)
class _Columns:
    """A batch with only the columns of keys and values, and the names of each; ``deleted`` is a
    condition on the batch as it was given.
    """

    df: "DataFrame"
    keys: tuple[str, ...]
    values: tuple[str, ...]
    deleted: "Column | None"
    whole: "DataFrame"

    def fields(self) -> "tuple[_Fields, _Fields]":
        """Returns the names and types of the key columns, and of the value columns."""
        kinds = {f.name: f.dataType for f in self.df.schema}
        keys, values = ([(c, kinds[c]) for c in some] for some in (self.keys, self.values))
        return keys, values

    def typed(self, types: "LogTypes") -> "DataFrame":
        """Returns the batch as records of a log with these types."""
        key, value = (
            _typed(self.df, columns, types.schema.field(name))
            for name, columns in (("key", self.keys), ("value", self.values))
        )
        return self._records(key, value)

    def rows(self, rules: "RowTexts") -> "DataFrame":
        """Returns the batch as rows, which the task that writes them turns into texts."""
        return self._records(
            _row_of(self.df, self.keys, self._spelled(rules)), _row_of(self.df, self.values)
        )

    def sparks_texts(self, rules: "RowTexts") -> "DataFrame":
        """Returns the batch as records with the texts of 0.1.0."""
        zone = rules.time_zone
        return self._records(
            _sparks_text(self.df, self.keys, zone, self._spelled(rules)),
            _sparks_text(self.df, self.values, zone),
        )

    def _spelled(self, rules: "RowTexts") -> tuple[str, ...] | None:
        names = _json_names(self.fields()[0])
        return None if names is None else rules.spelled(names) or names

    def _records(self, key: "Column", value: "Column") -> "DataFrame":
        if self.deleted is not None:
            value = _without(value, self.deleted)
        return self.whole.select(key.alias("key"), value.alias("value"))


def _columns(
    df: "DataFrame",
    keys: Sequence[str],
    values: Sequence[str] | None,
    deleted: "str | Column | None",
) -> _Columns:
    keys = _named(df, keys, "key")
    values = _named(
        df, [c for c in df.columns if c not in keys] if values is None else values, "value"
    )
    condition = F.expr(deleted) if isinstance(deleted, str) else deleted
    own = df.select(*(F.col(_quoted(c)) for c in (*keys, *values)))
    return _Columns(own, tuple(keys), tuple(values), condition, df)


def _typed(df: "DataFrame", columns: Sequence[str], field: "pa.Field") -> "Column":
    """Returns columns as a typed log has them: as one struct of fields, or as a single column."""
    import pyarrow as pa

    cols = [F.col(_quoted(c)) for c in columns]
    if not pa.types.is_struct(field.type):
        if len(columns) > 1:
            raise InvalidInputError(
                f"the {field.name} of the log is {field.type}, which is a single column, but"
                f" {', '.join(columns)} are {len(columns)}; name one"
            )
        return cols[0]
    fields = {folded(inner.name) for inner in field.type}
    is_whole = len(columns) == 1 and folded(columns[0]) not in fields
    if is_whole and isinstance(df.schema[columns[0]].dataType, T.StructType):
        return cols[0]
    return F.struct(*cols)


def _named(df: "DataFrame", columns: Sequence[str], role: str) -> list[str]:
    """Returns columns as the DataFrame spells them: case matters only if two differ in it alone."""
    there = {name.lower(): name for name in df.columns} | {name: name for name in df.columns}
    missing = [c for c in columns if c not in there and c.lower() not in there]
    found = [there.get(c, there.get(c.lower(), c)) for c in columns]
    twice = sorted({c for c in found if found.count(c) > 1})
    if not columns or missing:
        what = f"{role} columns {missing} do not exist" if columns else f"no {role} column is left"
    elif twice:
        what = f"{role} columns {', '.join(twice)} are named twice"
    else:
        return found
    raise InvalidInputError(f"{what}; the DataFrame has {', '.join(df.columns)}")


def _without(value: "Column", deleted: "Column") -> "Column":
    return F.when(~F.coalesce(deleted, F.lit(False)), value)  # noqa: FBT003


def _asked_of(given: dict[str, str]) -> _Asked:
    """Takes the options about the rules out of the given ones, whose names are lowered."""
    text, zone = given.pop(_ENCODING.lower(), None), given.pop(_TIME_ZONE.lower(), None)
    if text not in (None, "1", "2"):
        raise OptionError(f'option "{_ENCODING}" has the value {text!r}; it must be 1 or 2')
    if (text == "1") != (zone is not None):
        raise OptionError(
            f'options "{_ENCODING}" and "{_TIME_ZONE}" go together where the first is 1: give the'
            " time zone of the sessions that wrote to the log, such as Europe/Berlin; texts of"
            " encoding 2 have no zone"
        )
    return _Asked(None if text is None else int(text), zone)


def check_rows(keys: _Fields, values: _Fields) -> None:
    """Raises if a key column cannot be compared as a text, or a name is ambiguous."""
    for name, kind in keys:
        if (refused := _no_key(kind)) is not None:
            raise InvalidInputError(
                f"key column {name} is or has a {refused}, for which equal values may have"
                " different texts; use other columns as keys, or parts of it"
            )
    for name, kind in (*keys, *values):
        if any(isinstance(t, T.StructType) and t.names == [READY_JSON] for t in _within(kind)):
            raise InvalidInputError(
                f"column {name} is or has a struct with the one field {READY_JSON}, a name that"
                " clog reserves for the JSON of variants; rename the field"
            )


def _within(kind: T.DataType) -> Iterator[T.DataType]:
    """Yields a type and all types inside it."""
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
    """Returns the type that makes a key of this type impossible; None if it is possible."""
    # Older releases of Spark, which are refused later, lack one of these.
    times = (T.TimeType, T.YearMonthIntervalType, T.DayTimeIntervalType)
    good = (*_SIMPLE, *times, T.StructType, T.ArrayType)
    return next((t.typeName() for t in _within(kind) if not isinstance(t, good)), None)


def _agreed_rules(
    log: "Log", asked: _Asked, keys: _Fields, values: _Fields, zone_check: "DataFrame"
) -> "RowTexts":
    """Returns a log's rules; stores them if the log is empty or the options give them."""
    from clog.storage.administration import keep_row_texts
    from clog.storage.format.log_info import RowTexts

    names = _json_names(keys)
    kept = log.handle.tip.head.row_texts or log.handle.refresh().head.row_texts
    if kept is None and asked.encoding is None and any(log.handle.tip.head.partitions.end):
        _check_same_texts(log.url, keys, values)
        return RowTexts(_EXACT)
    if kept is None and asked.time_zone is not None:
        _check_zone(zone_check, asked.time_zone)
    if kept is None or (names is not None and kept.spelled(names) is None):
        kept = keep_row_texts(log.handle, asked.encoding or _EXACT, asked.time_zone, names)
    _check_rules(log.url, asked, kept)
    own = None if names is None else kept.spelled(names)
    if own is not None and names is not None and _lowered(own) != _lowered(names):
        raise InvalidInputError(
            f"the keys of the upsert are {', '.join(names)}, but those in {log.url} have the"
            f" order {', '.join(own)}, and another order makes other keys; use that order"
        )
    return kept


def _json_names(fields: _Fields) -> tuple[str, ...] | None:
    """Returns the names in the JSON object that columns become; None if they become no object."""
    if len(fields) > 1:
        return tuple(name for name, _ in fields)
    kind = fields[0][1]
    return tuple(kind.names) if isinstance(kind, T.StructType) else None


def _row_of(
    df: "DataFrame", columns: Sequence[str], names: tuple[str, ...] | None = None
) -> "Column":
    """Returns columns as one, which a task turns into a text; ``names`` are those in JSON."""
    fields = [df.schema[c] for c in columns]
    whole = [_prepared(F.col(_quoted(f.name)), f.dataType, alone=len(fields) == 1) for f in fields]
    if len(fields) == 1:
        return whole[0] if names is None else _renamed(whole[0], fields[0].dataType, names)
    return F.struct(*(c.alias(n) for c, n in zip(whole, names or columns, strict=True)))


def _prepared(column: "Column", kind: T.DataType, *, alone: bool = True) -> "Column":
    """Returns a column with texts in place of intervals, times of day and variants."""

    def inner(type_of_it: T.DataType) -> "Callable[[Column], Column]":
        return lambda c: _prepared(c, type_of_it, alone=False)

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


def _sparks_text(
    df: "DataFrame", columns: Sequence[str], zone: str | None, names: tuple[str, ...] | None = None
) -> "Column":
    """Returns the text that 0.1.0 made of columns, in ``zone`` instead of the session's zone."""
    cols = [F.col(_quoted(c)) for c in columns]
    # Null fields are kept: a consumer must see that a field is null now.
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
        # A cast only uses the session's zone.
        form = {**how, "timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS"}
        text = F.get_json_object(F.to_json(F.struct(cols[0].alias("t")), form), "$.t")
        return F.regexp_replace(text, r"\.?0+$", "")
    return cols[0] if isinstance(kind, T.BinaryType | T.StringType) else cols[0].cast("string")


def _has_other_texts(*sides: _Fields) -> bool:
    """Returns whether any texts of keys or values differ from those of 0.1.0."""
    return any(_changes(fields) for fields in sides)


def _quoted(name: str) -> str:
    """Returns the name of a column, quoted for an expression."""
    return f"`{name.replace('`', '``')}`"


def _renamed(whole: "Column", kind: T.DataType, names: tuple[str, ...]) -> "Column":
    assert isinstance(kind, T.StructType), "only a struct has names"
    if tuple(kind.names) == names:
        return whole
    fields = [whole.getField(f).alias(n) for f, n in zip(kind.names, names, strict=True)]
    return F.when(whole.isNotNull(), F.struct(*fields))


def _lowered(names: Sequence[str]) -> list[str]:
    return [name.lower() for name in names]


def _check_rules(url: str, asked: _Asked, kept: "RowTexts") -> None:
    if kept.encoding not in (_SPARKS, _EXACT):
        raise UnsupportedFormatError(
            f"{url} has texts of encoding {kept.encoding}, which this clog does not know; upgrade"
            " clog"
        )
    for option, wanted, has in (
        (_ENCODING, asked.encoding, kept.encoding),
        (_TIME_ZONE, asked.time_zone, kept.time_zone),
    ):
        if wanted not in (None, has):
            raise OptionError(
                f'option "{option}" is {wanted}, but the texts in {url} have {has}, which cannot'
                " change; leave the option out, or write to a new log"
            )


def _check_zone(df: "DataFrame", zone: str) -> None:
    """Raises if Spark does not know a time zone: a log keeps its zone permanently."""
    from pyspark.errors import PySparkException

    one = df.sparkSession.range(1)
    try:
        one.select(F.to_utc_timestamp(F.lit("2000-01-01"), F.lit(zone))).collect()
    except PySparkException:
        raise OptionError(
            f'option "{_TIME_ZONE}" is {zone!r}, which is not a time zone that Spark knows; give'
            " one such as Europe/Berlin or +05:30"
        ) from None


def _check_same_texts(url: str, keys: _Fields, values: _Fields) -> None:
    """Raises if keys have other texts than 0.1.0 wrote; warns once if values have."""
    for change in _changes(keys):
        raise InvalidInputError(
            f"nothing was upserted into {url}: it has records of an earlier release, which wrote"
            f" key column {change.column}, {change.kind}, differently: {change.before}, now"
            f" {change.now}; every key would get a second row; set {_ENCODING}=1 and"
            f" {_TIME_ZONE}=<that of the sessions that wrote it> in the options of upsert to keep"
            f" the old texts; or {_ENCODING}=2, if no upsert has written these keys here, or into"
            " a new log"
        )
    for change in _changes(values):
        if (url, change.column) not in _warned:
            _warned.add((url, change.column))
            _LOGGER.warning(
                "upsert into %s: value column %s, %s, is written differently from earlier"
                " releases: %s, now %s",
                *(url, change.column, change.kind, change.before, change.now),
            )


def _changes(fields: _Fields) -> list[_Change]:
    is_json = len(fields) > 1
    found = [_change(name, kind, is_json=is_json) for name, kind in fields]
    return [change for change in found if change is not None]


def _change(path: str, kind: T.DataType, *, is_json: bool) -> _Change | None:
    """Returns how a column's text has changed; None if it has not."""
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
