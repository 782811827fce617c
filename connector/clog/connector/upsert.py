"""Update mode: the rows that changed in a micro-batch, appended as a changelog, exactly once.

Spark refuses output mode update for Python sinks, but not for ``foreachBatch``. There a batch can
run again after its rows were appended (a crash before Spark noted it), so the append carries the
query's id and the batch's number as ``txnAppId`` and ``txnVersion``. A changelog is worth what its
earlier batches are: a run that finds another log than it wrote to fails, and one that finds none of
the batches before is warned. It cannot fail: who upserts some batches only is no error (S47).

A record of the changelog is a row: its key columns are the record's key, the others its value. In a
log of bytes one column of string or binary type stands for itself, one of another type is cast to
string; a struct, an array, a map, or several columns become JSON. In a typed log columns are what
they are: fields of a struct, where the log's key or value is one, else a single column.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clog.connector.micro_batch import QUERY_ID, RUN_ID, local_property
from clog.connector.options.parsing import as_text
from clog.connector.options.settings import write_options
from clog.storage.errors import InvalidInputError, LogReplacedError, OptionError
from clog.storage.store.urls import redact

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from clog.connector.options.settings import WriteOptions
    from clog.connector.table_columns import LogTypes
    from clog.storage.commit.idempotence import Writer
    from clog.storage.log import Log

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
        options: further options of the write, such as ``partitions`` or ``config.<name>``.

    Raises:
        InvalidInputError: a column does not exist; no query is known; a second upsert of the batch
            into this log has no name of its own.
        InvalidInputError, LogReplacedError: the batch, or a later one, is in the log already with
            other rows; the log was deleted and recreated since this run's last batch. Neither,
            where an option says that ``failOnChangedBatch`` is false.
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
    given = {name.lower(): as_text(value) for name, value in (options or {}).items()}
    given = {"failonchangedbatch": "true", **given}
    given |= {"path": url, "txnappid": app_id, "txnversion": str(batch_id)}
    _done[(url, app_id)] = _Done(run_id, batch_id, _append(columns, given, last))


def _append(columns: "_Columns", given: Mapping[str, str], last: _Done | None) -> str:
    """Appends, and returns the id of the log; raises as `upsert`."""
    from clog.connector.opened_logs import types_of
    from clog.connector.write.known_query import introduce
    from clog.storage.commit.idempotence import Writer

    writer = Writer(given["txnappid"], "txn", int(given["txnversion"]))
    log = _checked_log(write_options(given), writer, last, columns)
    log_id = log.handle.standing.log_id
    records = columns.records(types_of(log.handle))
    records.write.format("clog").mode("append").options(**{**given, "logid": log_id}).save()
    if writer.sequence == 0:
        introduce(log, writer)  # Perhaps it has no rows, and the next batch is to find something.
    return log_id


def _checked_log(
    settings: "WriteOptions", writer: "Writer", last: _Done | None, columns: "_Columns"
) -> "Log":
    """Returns the log to write to; makes it where there is none. One request, but for the first
    call in a process.

    Raises:
        LogReplacedError: it is not the one that the last batch was written to, unless
            ``failOnChangedBatch`` is false.
        OptionError: ``keyColumns`` are others than the keys.
    """
    from clog.connector.opened_logs import opened_or_created
    from clog.connector.write.known_query import is_known

    if settings.key_columns not in (None, columns.keys):
        raise OptionError(
            f'option "keyColumns" is {", ".join(settings.key_columns or ())}, but the keys of the'
            f" upsert are {', '.join(columns.keys)}; name these"
        )
    log = opened_or_created(settings, rows=columns.df.schema)
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
            " with Spark Connect, whose foreachBatch is told of no query, give the query a name of"
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

    def records(self, types: "LogTypes | None") -> "DataFrame":
        """Returns the batch as records of a log with these types."""
        made = []
        for name, columns in (("key", self.keys), ("value", self.values)):
            if types is None:
                made.append(_one(self.df, columns))
            else:
                made.append(_typed(self.df, columns, types.schema.field(name)))
        key, value = made
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

    if values is None:
        values = [c for c in df.columns if c not in keys]
    for role, columns in (("key", keys), ("value", values)):
        _check_columns(df, columns, role)
    condition = F.expr(deleted) if isinstance(deleted, str) else deleted
    own = df.select(*(F.col(f"`{c}`") for c in (*keys, *values)))
    return _Columns(own, tuple(keys), tuple(values), condition, df)


def _typed(df: "DataFrame", columns: Sequence[str], field: "pa.Field") -> "Column":
    """Returns what columns are in a typed log: a struct's fields, unless the one that there is
    stands for all of it.
    """
    import pyarrow as pa
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructType

    quoted = [F.col(f"`{c}`") for c in columns]
    if not pa.types.is_struct(field.type):
        if len(columns) > 1:
            raise InvalidInputError(
                f"the {field.name} of the log is {field.type}, which is one column, and"
                f" {', '.join(columns)} are {len(columns)}; name one"
            )
        return quoted[0]
    fields = {inner.name.lower() for inner in field.type}
    is_whole = len(columns) == 1 and columns[0].lower() not in fields
    if is_whole and isinstance(df.schema[columns[0]].dataType, StructType):
        return quoted[0]
    return F.struct(*quoted)


def _check_columns(df: "DataFrame", columns: Sequence[str], role: str) -> None:
    missing = [c for c in columns if c not in df.columns]
    if missing or not columns:
        what = f"{role} columns {missing} do not exist" if columns else f"no {role} column is left"
        raise InvalidInputError(f"{what}; the DataFrame has {', '.join(df.columns)}")


def _one(df: "DataFrame", columns: Sequence[str]) -> "Column":
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

    quoted = [F.col(f"`{c}`") for c in columns]
    whole = quoted[0] if len(columns) == 1 else F.struct(*quoted)
    kind = StructType() if len(columns) > 1 else df.schema[columns[0]].dataType
    if isinstance(kind, StructType | ArrayType | MapType):
        # Null fields stay: a consumer must see that a field is null now.
        return F.to_json(whole, {"ignoreNullFields": "false"})
    return whole if isinstance(kind, BinaryType | StringType) else whole.cast("string")


def _without(value: "Column", deleted: "Column") -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    return F.when(~F.coalesce(deleted, F.lit(False)), value)  # noqa: FBT003
