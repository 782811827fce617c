"""Update mode: the rows that changed in a micro-batch, appended as a changelog, exactly once.

Spark refuses output mode update for Python sinks, but not for ``foreachBatch``. There a batch can
run again after its rows were appended (a crash before Spark noted it), so the append carries the
query's id and the batch's number as ``txnAppId`` and ``txnVersion``. A changelog is worth what its
earlier batches are: a run that finds another log than it wrote to fails, and one that finds none of
the batches before is warned. It cannot fail: who upserts some batches only is no error (S47).

A record of the changelog is a row: its key columns are the record's key, the others its value. In a
log of bytes both are texts (`write.text_rules`): one column of string or binary type stands for
itself, one of another type is its text; a struct, an array, a map, or several columns become JSON.
In a typed log columns are what they are: fields of a struct, where the log's key or value is one,
else a single column. Names of columns have no case, as Spark's: those of JSON are spelled as the
DataFrame has them, in keys as the first upsert did.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from clog.connector.opened_logs import types_of
from clog.connector.options import ROW_TEXTS, texts_of, write_options
from clog.connector.write.text_rules import (
    ENCODING,
    SPARKS,
    Asked,
    agreed_rules,
    asked_of,
    check_rows,
    has_other_texts,
    json_names,
    quoted,
    row_of,
    sparks_text,
)
from clog.connector.write.write_task import QUERY_ID, RUN_ID, local_property, opened_or_created
from clog.connector.write.writers import introduce, is_known
from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError, LogReplacedError, OptionError
from clog.storage.store.opening import redact

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from clog.connector.options import WriteOptions
    from clog.connector.schema import LogTypes
    from clog.storage.commit.proposals import Writer
    from clog.storage.format.log_info import RowTexts
    from clog.storage.log import Log

    _Fields = Sequence[tuple[str, DataType]]

_LOGGER = logging.getLogger("clog.connector")


@dataclass(frozen=True, slots=True)
class _Done:
    """The last call: its run, its batch, and the log it wrote to."""

    run_id: str
    batch_id: int
    log_id: str


_done: dict[tuple[str, str], _Done] = {}
"""By URL and app id: to notice two calls that bear one name, and a log that was recreated."""


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
        url: the log; the first batch creates it: of bytes, or typed with the option
            ``keyColumns``, which has to name ``keys``.
        keys: the column or columns that make the record's key.
        batch_id: the second argument of the function given to ``foreachBatch``.
        values: the columns that make the value; None: all others.
        deleted: a condition; a row that meets it becomes a tombstone. So does a row whose value is
            one column that is null.
        name: tells two upserts of one batch into one log apart.
        query_id: what names the streaming query across its restarts; None: its id, which Spark
            tells. Spark Connect does not, and pickles the function before there is a query: give a
            name of your own there, and another one with a new checkpoint, because its batches count
            from 0 again.
        options: further options of the write, such as ``partitions`` or ``config.<name>``; and
            ``encoding`` with ``encodingTimeZone``, for a log of bytes that has keys of 0.1.0: 1 to
            go on with the texts of that release, in this time zone.

    Raises:
        InvalidInputError: a column does not exist, or is no key; no query is known; a second upsert
            of the batch into this log has no name of its own; the log has keys of 0.1.0 whose text
            would be another one now, or compares a header.
        OptionError: ``encoding`` or ``encodingTimeZone`` are not the log's.
        InvalidInputError, LogReplacedError: the batch, or a later one, is in the log already with
            other rows; the log was deleted and recreated since this run's last batch. Neither,
            where an option says that ``failOnChangedBatch`` is false.

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
    asked = asked_of(given)
    given = {"failonchangedbatch": "true", **given}
    given |= {"path": url, "txnappid": app_id, "txnversion": str(batch_id)}
    _done[(url, app_id)] = _Done(run_id, batch_id, _append(columns, given, asked, last))


def _append(columns: "_Columns", given: Mapping[str, str], asked: Asked, last: _Done | None) -> str:
    """Appends, and returns the id of the log; raises as `upsert`."""
    from clog.storage.commit.proposals import Writer

    writer = Writer(given["txnappid"], "txn", int(given["txnversion"]))
    log = _checked_log(write_options(given), writer, asked, last, columns)
    log_id = log.handle.standing.log_id
    types = types_of(log.handle)
    to_log = {**given, "logid": log_id}
    if types is not None:
        _write(columns.typed(types), to_log)
    else:
        rules = agreed_rules(log, asked, *columns.fields(), columns.df)
        _write_texts(columns, rules, to_log, is_repeated=_is_repeated(log, writer))
    if writer.sequence == 0:
        introduce(log, writer)  # Perhaps it has no rows, and the next batch is to find something.
    return log_id


def _write_texts(
    columns: "_Columns", rules: "RowTexts", given: Mapping[str, str], *, is_repeated: bool
) -> None:
    """Appends to a log of bytes. A batch that is there already may be one of 0.1.0, which was under
    way at the upgrade: it has other rows only if it has by that release's texts, too.
    """
    if rules.encoding == SPARKS:
        _write(columns.sparks_texts(rules), given)
        return
    exact = {**given, ROW_TEXTS: "true"}
    if not (is_repeated and has_other_texts(*columns.fields())):
        _write(columns.rows(rules), exact)
        return
    try:
        _write(columns.rows(rules), exact)
    except Exception as changed:  # noqa: BLE001 -- Spark's, of some kind, around ours
        try:
            _write(columns.sparks_texts(rules), given)
        except Exception:  # noqa: BLE001 -- the first one tells of the rows as they are
            raise changed from None


def _write(records: "DataFrame", given: Mapping[str, str]) -> None:
    records.write.format("clog").mode("append").options(**given).save()


def _is_repeated(log: "Log", writer: "Writer") -> bool:
    entry = log.handle.find_writer(writer.kind, writer.writer_id)
    return entry is not None and entry.sequence == writer.sequence


def _checked_log(
    settings: "WriteOptions",
    writer: "Writer",
    asked: Asked,
    last: _Done | None,
    columns: "_Columns",
) -> "Log":
    """Returns the log to write to, made if there is none; one request the first time."""
    from clog.storage.config.log_config import LogConfig

    def check(types: "LogTypes | None") -> None:
        if types is None and asked.encoding != SPARKS:
            check_rows(*columns.fields())
        if types is not None and asked.encoding is not None:
            raise OptionError(
                f'option "{ENCODING}" is about texts, but {redact(settings.location.name)} is a'
                " typed log, whose keys are what they are; leave the option out"
            )

    wanted = None if settings.key_columns is None else [k.lower() for k in settings.key_columns]
    if wanted not in (None, [k.lower() for k in columns.keys]):
        raise OptionError(
            f'option "keyColumns" is {", ".join(settings.key_columns or ())}, but the keys of the'
            f" upsert are {', '.join(columns.keys)}; name these"
        )
    log = opened_or_created(settings, check, rows=columns.df.schema)
    if header := LogConfig.from_overrides(log.handle.tip.head.config).compaction_strategy_header:
        raise InvalidInputError(
            f"{log.url} compares the header {header!r} (compaction.strategy=header), and rows of an"
            " upsert have no headers; nothing was appended; upsert into a log with the strategy"
            " offset, or append records with a column headers in foreachBatch"
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
            "%s has none of the batches before batch %d of %r: none was upserted, or it was"
            " elsewhere or under another name, or the log was deleted and recreated; continuing",
            *(log.url, writer.sequence, writer.writer_id),
        )
    return log


def _app_id(query_id: str | None, name: str | None, url: str) -> str:
    if query_id is None:
        raise InvalidInputError(
            f"upsert into {redact(url)} cannot tell its streaming query; call it in foreachBatch;"
            " with Spark Connect, whose foreachBatch knows no query, give the query a name of"
            ' your own, such as query_id="word-counts": the same at each restart, and another one'
            " with a new checkpoint"
        )
    return query_id if name is None else f"{query_id}/{name}"


@dataclass(frozen=True, slots=True)
class _Columns:
    """A batch with the columns of keys and values alone, and those that make either; ``deleted`` is
    a condition of the batch as it was given.
    """

    df: "DataFrame"
    keys: tuple[str, ...]
    values: tuple[str, ...]
    deleted: "Column | None"
    whole: "DataFrame"

    def fields(self) -> "tuple[_Fields, _Fields]":
        """Returns the names and types of the columns of keys, and of values."""
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
        """Returns the batch as rows of which the task that writes them makes texts."""
        return self._records(
            row_of(self.df, self.keys, self._spelled(rules)), row_of(self.df, self.values)
        )

    def sparks_texts(self, rules: "RowTexts") -> "DataFrame":
        """Returns the batch as records with the texts of 0.1.0."""
        zone = rules.time_zone
        return self._records(
            sparks_text(self.df, self.keys, zone, self._spelled(rules)),
            sparks_text(self.df, self.values, zone),
        )

    def _spelled(self, rules: "RowTexts") -> tuple[str, ...] | None:
        names = json_names(self.fields()[0])
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
    from pyspark.sql import functions as F  # noqa: N812

    keys = _named(df, keys, "key")
    values = _named(
        df, [c for c in df.columns if c not in keys] if values is None else values, "value"
    )
    condition = F.expr(deleted) if isinstance(deleted, str) else deleted
    own = df.select(*(F.col(quoted(c)) for c in (*keys, *values)))
    return _Columns(own, tuple(keys), tuple(values), condition, df)


def _typed(df: "DataFrame", columns: Sequence[str], field: "pa.Field") -> "Column":
    """Returns what columns are in a typed log: fields, or a struct that stands for all."""
    import pyarrow as pa
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructType

    cols = [F.col(quoted(c)) for c in columns]
    if not pa.types.is_struct(field.type):
        if len(columns) > 1:
            raise InvalidInputError(
                f"the {field.name} of the log is {field.type}, which is one column, and"
                f" {', '.join(columns)} are {len(columns)}; name one"
            )
        return cols[0]
    fields = {inner.name.lower() for inner in field.type}
    is_whole = len(columns) == 1 and columns[0].lower() not in fields
    if is_whole and isinstance(df.schema[columns[0]].dataType, StructType):
        return cols[0]
    return F.struct(*cols)


def _named(df: "DataFrame", columns: Sequence[str], role: str) -> list[str]:
    """Returns columns as the DataFrame spells them: names have no case, unless two need it."""
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
    from pyspark.sql import functions as F  # noqa: N812

    return F.when(~F.coalesce(deleted, F.lit(False)), value)  # noqa: FBT003
