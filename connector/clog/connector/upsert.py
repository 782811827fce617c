"""Update mode: the rows that changed in a micro-batch, appended as a changelog, exactly once.

Spark refuses output mode update for Python sinks, but not for ``foreachBatch``. There a batch can
run again after its rows were appended (a crash before Spark noted it), so the append carries the
query's id and the batch's number as ``txnAppId`` and ``txnVersion``. A changelog is useless without
its earlier batches: a run that finds another log than the one it wrote to fails, and one that finds
no earlier batch logs a warning. It cannot fail, as a query may upsert only some batches (S47).

A record of the changelog is a row of a typed log: its key columns are the record's key, the others
its value, each with its type. They are the fields of a struct if the log's key or value is one,
else a single column. Names of columns are case-insensitive, like Spark's. The first batch creates
the log, with these columns.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812

from clog.connector.opened_logs import types_of
from clog.connector.options import texts_of, write_options
from clog.connector.write.write_task import QUERY_ID, RUN_ID, local_property, opened_or_created
from clog.connector.write.writers import introduce, is_known
from clog.storage.env import dataclass
from clog.storage.errors import (
    InvalidInputError,
    LogReplacedError,
    OptionError,
)
from clog.storage.store.opening import redact
from clog.storage.types.names import folded, spellings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from clog.connector.options import WriteOptions
    from clog.connector.schema import LogTypes
    from clog.storage.commit.proposals import Writer
    from clog.storage.log import Log

_LOGGER = logging.getLogger("clog.connector")


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
        url: the log, a typed one; the first batch creates it.
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
        options: further options of the write, such as ``partitions`` or ``config.<name>``.

    Raises:
        InvalidInputError: a column does not exist; no query is known; a second upsert of the batch
            into this log does not have its own name; the log is one of bytes, or compares a header.
        OptionError: a column cannot be a key, or the option ``keyColumns`` does not name ``keys``.
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
    given = {"failonchangedbatch": "true", **given}
    given |= {"path": url, "txnappid": app_id, "txnversion": str(batch_id)}
    _done[(url, app_id)] = _Done(run_id, batch_id, _append(columns, given, last))


def _append(columns: "_Columns", given: Mapping[str, str], last: _Done | None) -> str:
    """Appends, and returns the id of the log; raises as `upsert` does."""
    from clog.storage.commit.proposals import Writer

    writer = Writer(given["txnappid"], "txn", int(given["txnversion"]))
    log = _checked_log(write_options(given), writer, last, columns)
    log_id, types = log.handle.standing.log_id, types_of(log.handle)
    assert types is not None, "the log was checked"
    to_log = {**given, "logid": log_id}
    columns.typed(types).write.format("clog").mode("append").options(**to_log).save()
    if writer.sequence == 0:
        introduce(log, writer)  # It may have no rows, and the next batch must find an entry.
    return log_id


def _checked_log(
    settings: "WriteOptions",
    writer: "Writer",
    last: _Done | None,
    columns: "_Columns",
) -> "Log":
    """Returns the log to write to, created if necessary; makes one request the first time."""
    from clog.storage.config.log_config import LogConfig

    def check(types: "LogTypes | None") -> None:
        if types is None:
            raise InvalidInputError(
                f"{redact(settings.location.name)} is a log of bytes, but the rows of an upsert"
                " have typed columns; nothing was upserted; upsert into a new log, which the first"
                " batch creates (docs/upgrading.md says how to convert one), or append records"
                " with a key and a value of bytes"
            )

    wanted = None if settings.key_columns is None else [folded(k) for k in settings.key_columns]
    if wanted not in (None, [folded(k) for k in columns.keys]):
        raise OptionError(
            f'option "keyColumns" is {", ".join(settings.key_columns or ())}, but the keys of the'
            f" upsert are {', '.join(columns.keys)}; name these"
        )
    log = opened_or_created(settings, check, rows=columns.df.schema, keys=columns.keys)
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

    def typed(self, types: "LogTypes") -> "DataFrame":
        """Returns the batch as records of a log with these types."""
        key, value = (
            _typed(self.df, columns, types.schema.field(name))
            for name, columns in (("key", self.keys), ("value", self.values))
        )
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
    own = spellings(tuple(inner.name for inner in field.type))
    names = [own.get(c) or own.get(folded(c)) for c in columns]
    is_whole = names == [None] and isinstance(df.schema[columns[0]].dataType, T.StructType)
    if is_whole:
        return cols[0]
    return F.struct(*(col.alias(n or c) for col, n, c in zip(cols, names, columns, strict=True)))


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


def _quoted(name: str) -> str:
    """Returns the name of a column, quoted for an expression."""
    return f"`{name.replace('`', '``')}`"
