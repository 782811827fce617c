"""Functions for ``foreachBatch``: appends of small batches, upserts, and several writes of one
batch, each exactly once.

All are made with the options of a streaming write and called as Spark calls them, with a DataFrame
and the batch's number. ``foreachBatch`` is at least once: a batch can run again after it was
written, and a function that writes twice can die in between. So the log remembers the last batch
of each query, as it does for the sink (`writers`): by the query's id, which Spark puts among the
properties of the thread that runs the batch, or by the name in ``writerId``. Spark Connect has no
such property, and needs the name.

*Appends* (`append_batches`) are those of a sink, but for small batches, which the driver writes:
``docs/decisions/0059-small-batches-are-appended-by-the-driver.md``.

*Upserts* (`upsert_batches`) are such appends, for output mode update, which Spark refuses for
Python sinks: the rows that changed, as the changelog of a table. A record is a row of a typed log:
its key columns are the record's key, the others its value, each with its type. They are the fields
of a struct if the log's key or value is one, else a single column. Names of columns are
case-insensitive, like Spark's. The first batch creates the log, with these columns.

*Transactions* (`transact_batches`) write DataFrames of a batch to one or more logs, all or nothing:
each batch is one transaction, whose id is the query's, with the batch's number as its sequence.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812

from clog.connector.opened_logs import opened, types_of
from clog.connector.options import texts_of, write_options
from clog.connector.write.write_task import (
    QUERY_ID,
    RUN_ID,
    Answers,
    TaskIds,
    Written,
    local_property,
    opened_or_created,
    plan_write,
    write_task,
    written_by_tasks,
)
from clog.connector.write.writers import (
    ClogStreamWriter,
    check_repeated_transaction,
    check_stream_write,
)
from clog.storage.env import dataclass
from clog.storage.errors import (
    InvalidInputError,
    LogReplacedError,
    NotFoundError,
    OptionError,
    TransactionFencedError,
)
from clog.storage.store.opening import redact
from clog.storage.types.names import folded, spellings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from clog.connector.options import Location, WriteOptions
    from clog.connector.schema import LogTypes
    from clog.connector.write.write_task import WritePlan
    from clog.storage import Transaction
    from clog.storage.log import Log
    from clog.storage.objects.writer import DataObject

TIMEOUT_MS = 3_600_000
ROWS_MAX, BYTES_MAX = 200_000, 32 << 20
"""After a batch with more rows, tasks write the next one."""
_TOO_LARGE = "maxResultSize"
_logs: dict[tuple["Location", str], "Log"] = {}
"""By home and id: handles that hold the id of a transaction, separate from those for other uses."""
_done: dict[tuple[type, "Location", str], tuple[str, int]] = {}
"""By way, log and id: the last run and batch, to notice two writes of one batch."""


def append_batches(url: str, **options: object) -> "Callable[[DataFrame, int], None]":
    """Returns a function for ``foreachBatch`` that appends each batch to a log exactly once, as
    ``writeStream.format("clog")`` does, but takes two thirds of the time for small batches, which
    the driver writes. Large ones are written by tasks.

    The log knows the query by its id, as it does with a sink: either can continue as the other.

    Args:
        url: the log; the first batch creates it.
        options: those of a streaming write, such as ``partitions``, ``keyColumns`` or ``writerId``.

    Raises:
        OptionError: an option is unknown, or is not one of a streaming write.

    >>> rates = spark.readStream.format("rate").load().selectExpr("'a' AS key", "'1' AS value")
    >>> append = append_batches("help-of-append-batches", partitions=1)
    >>> writer = rates.writeStream.foreachBatch(append)
    """
    return _Appends(url, options)


def upsert_batches(
    url: str,
    keys: str | Sequence[str],
    *,
    values: Sequence[str] | None = None,
    deleted: "str | Column | None" = None,
    **options: object,
) -> "Callable[[DataFrame, int], None]":
    """Returns a function for ``foreachBatch`` that upserts each batch into a log exactly once. The
    rows of an aggregation in output mode update make the log the changelog of its table.

    A batch has one row for each key; if a key has several rows, any of them may win.

    Args:
        url: the log, a typed one; the first batch creates it.
        keys: the column or columns that make the record's key.
        values: the columns that make the value; None: all others.
        deleted: a condition; a row that meets it becomes a tombstone. So does a row whose value is
            a single column that is null.
        options: those of a streaming write, such as ``partitions`` or ``writerId``.

    Raises:
        OptionError: an option is unknown, or is not one of a streaming write, or ``keyColumns``
            does not name ``keys``.

    >>> upsert = upsert_batches("help-of-upsert", keys="word", writerId="word-counts")
    >>> upsert(spark.createDataFrame([("tea", 3)], "word string, count int"), 0)
    """
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    return _Upserts(url, names, values, deleted, options)


def transact_batches(
    url: str,
    each_batch: "Callable[[DataFrame, BatchTransaction, int], None]",
    *,
    timeout_ms: int = TIMEOUT_MS,
    **options: object,
) -> "Callable[[DataFrame, int], None]":
    """Returns a function for ``foreachBatch`` that calls ``each_batch(df, transaction, batch_id)``:
    what this writes to the transaction is committed once, when it returns, all or nothing.

    Args:
        url: the home of the transactions; the first batch creates it.
        each_batch: what to do with each batch.
        timeout_ms: how long a batch may take at most, up to a day.
        options: those of a streaming write, for all logs. If ``writerId`` is given, it is the id of
            the transactions; a new checkpoint, whose batches count from 0 again, needs another one.

    Raises:
        OptionError: an option is unknown, or is not one of a streaming write.
        InvalidInputError: ``writerId`` cannot be the id of a transaction.

    >>> def each_batch(df, transaction, batch_id):
    ...     transaction.write(df, "help-of-ledger")
    ...     transaction.write(df.where("value > 2"), "help-of-alerts")
    >>> transact = transact_batches("help-of-ledger", each_batch, writerId="invoices")
    >>> transact(spark.createDataFrame([("ann", "3")], "key string, value string"), 0)
    """
    return _Transactions(url, each_batch, timeout_ms, options)


class _Writes:
    """A function for ``foreachBatch``. Raises if it cannot tell the query, or if the batch was
    already written in this run, by another function: it would be dropped as a repetition.
    """

    def __init__(self, url: str, options: Mapping[str, object]) -> None:
        self._given = texts_of(options)
        self._options = write_options({**self._given, "path": url})
        check_stream_write(self._options)
        self._name = self._options.writer_id or self._options.txn_app_id

    def __call__(self, df: "DataFrame", batch_id: int) -> None:
        url = redact(self._options.location.url)
        if type(batch_id) is not int or not 0 <= batch_id < 1 << 63:
            raise InvalidInputError(
                f"batch_id={batch_id!r:.80} of a write to {url} is not the number of a micro-batch;"
                " allowed: integers from 0 to 2^63 - 1; pass the second argument of the function"
                " given to foreachBatch"
            )
        query_id = local_property(df, QUERY_ID) or self._name
        if query_id is None:
            raise InvalidInputError(
                f"a write to {url} cannot tell its streaming query: call it in foreachBatch; with"
                " Spark Connect, whose foreachBatch does not identify the query, give the query a"
                ' name, such as writerId="orders": the same name at each restart, and another one'
                " with a new checkpoint"
            )
        run_id = local_property(df, RUN_ID) or ""
        writer_id = self._name or query_id
        place = type(self), self._options.location, writer_id
        if run_id and _done.get(place) == (run_id, batch_id):
            raise InvalidInputError(
                f"batch {batch_id} of {writer_id!r} was already written to {url} in this run; the"
                " second write would be dropped as a repetition of the first; write everything at"
                ' once, or give each its own writerId, such as writerId="totals"'
            )
        self._write(df, TaskIds(query_id, batch_id))
        _done[place] = run_id, batch_id

    def _write(self, df: "DataFrame", task: TaskIds) -> None:
        """Writes a batch, unless the log has it already."""
        raise NotImplementedError


class _Appends(_Writes):
    """Made by `append_batches`. The driver collects the rows of a batch after a small one, and
    writes the object itself; tasks write the first batch of a run, one after a large one, as nobody
    knows yet how many rows it has, and one that Spark does not let a driver collect. All objects
    are committed together, in the order of Spark's partitions: after a crash before that, orphans
    are left and the batch runs again; after a crash later, the log has it, and returns the first
    result.
    """

    _kind = "stream"

    def __init__(self, url: str, options: Mapping[str, object]) -> None:
        super().__init__(url, options)
        self._is_small = False

    def _write(self, df: "DataFrame", task: TaskIds) -> None:
        self._append(df, self._options, task)

    def _append(self, df: "DataFrame", options: "WriteOptions", task: TaskIds) -> None:
        assert task.batch_id is not None, "each batch has a number"
        writer = ClogStreamWriter(options, df.schema, overwrite=False, kind=self._kind)
        rows = _collected(df) if self._is_small else None
        if rows is not None:
            written = [write_task(writer.plan, iter(rows.to_batches()), task)]
        else:
            written = _by_tasks(df, writer.plan, task)
        writer.commit(written, task.batch_id)
        objects = Answers(tuple(written)).objects
        size = sum(obj.ref.size_bytes for obj in objects)
        self._is_small = sum(obj.ref.rows for obj in objects) <= ROWS_MAX and size <= BYTES_MAX


def _collected(df: "DataFrame") -> "pa.Table | None":
    """Returns the rows of a batch; None if Spark does not let the driver have that many."""
    try:
        return df.toArrow()
    except Exception as e:
        if _TOO_LARGE not in str(e):
            raise
        return None


def _by_tasks(df: "DataFrame", plan: "WritePlan", task: TaskIds) -> list[Written]:
    """Writes a batch by tasks; a batch without tasks still has an answer, as in Spark's sinks."""
    written = written_by_tasks(df, plan) or [write_task(plan, iter(()), task)]
    return [replace(w, query_id=task.query_id, batch_id=task.batch_id) for w in written]


class _Upserts(_Appends):
    """Made by `upsert_batches`."""

    _kind = "txn"
    """As in logs of earlier releases, whose queries continue."""

    def __init__(
        self,
        url: str,
        keys: tuple[str, ...],
        values: Sequence[str] | None,
        deleted: "str | Column | None",
        options: Mapping[str, object],
    ) -> None:
        super().__init__(url, options)
        self._keys, self._values, self._deleted = keys, values, deleted
        wanted = self._options.key_columns
        if wanted is not None and [*map(folded, wanted)] != [*map(folded, keys)]:
            raise OptionError(
                f'option "keyColumns" is {", ".join(wanted)}, but the keys of the upsert are'
                f" {', '.join(keys)}; name these"
            )

    def _write(self, df: "DataFrame", task: TaskIds) -> None:
        columns = _columns(df, self._keys, self._values, self._deleted)
        log = self._checked_log(columns)
        types = types_of(log.handle)
        assert types is not None, "the log was checked"
        into = replace(self._options, log_id=log.handle.standing.log_id)
        self._append(columns.typed(types), into, task)

    def _checked_log(self, columns: "_Columns") -> "Log":
        """Returns the log to write to, created if necessary."""
        from clog.storage.config.log_config import LogConfig

        def check(types: "LogTypes | None") -> None:
            if types is None:
                raise InvalidInputError(
                    f"{redact(self._options.location.name)} is a log of bytes, but the rows of an"
                    " upsert have typed columns; nothing was upserted; upsert into a new log, which"
                    " the first batch creates (docs/upgrading.md says how to convert one), or"
                    " append records with a key and a value of bytes"
                )

        log = opened_or_created(self._options, check, rows=columns.df.schema, keys=columns.keys)
        config = LogConfig.from_overrides(log.handle.tip.head.config)
        if header := config.compaction_strategy_header:
            raise InvalidInputError(
                f"{log.url} compares the header {header!r} (compaction.strategy=header), but rows"
                " of an upsert have no headers; nothing was appended; upsert into a log with the"
                " strategy offset, or append records with a column headers in foreachBatch"
            )
        return log


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
    there = spellings(tuple(df.columns))
    found = [there.get(c) or there.get(folded(c), c) for c in columns]
    missing = [c for c in found if c not in there]
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


class BatchTransaction:
    """The transaction of one micro-batch, as `transact_batches` gives it to a function."""

    def __init__(
        self,
        home: "Log",
        real: "Transaction",
        location: "Location",
        options: Mapping[str, str],
        batch_id: int,
    ) -> None:
        self._home = home
        self._real = real
        self._location = location
        self._options = options
        self._batch_id = batch_id
        self._is_done = not real.is_open
        self._has_returned = False
        self._written: dict[str, tuple[Log, list[DataObject]]] = {}
        self._content = hashlib.blake2b(digest_size=16)

    @property
    def is_done(self) -> bool:
        """Whether the batch was already committed, so that nothing is written."""
        return self._is_done

    def write(self, df: "DataFrame", url: str) -> None:
        """Writes the rows of a DataFrame, which has the sink's columns; nobody sees them before the
        transaction is committed. If the batch is already done, compares them with the committed
        rows, or runs nothing if ``failOnChangedBatch`` is false.

        Args:
            df: the rows.
            url: the log, the home or any other; the first batch creates it.

        Raises:
            InvalidInputError: a column is missing or has a wrong type; the function to which the
                transaction was given has returned.
        """
        if self._has_returned:
            raise InvalidInputError(
                f"batch {self._batch_id} of {self._real.id!r} has ended, so that these rows would"
                " never be committed; write before the function given to transact_batches returns"
            )
        settings = write_options({**self._options, "path": url})
        if self.is_done and settings.fail_on_changed_batch is False:
            return
        if not self.is_done:
            self._real.append_objects([])  # Raises if it has ended, before tasks run in vain.
        plan = plan_write(settings, df.schema)
        answers = Answers(tuple(written_by_tasks(df, plan)))
        log, objects = self._log_of(settings.location, plan.log_id), answers.objects
        self._content.update(bytes.fromhex(log.id + answers.content))
        self._written.setdefault(log.id, (log, []))[1].extend(objects)
        if not self.is_done:
            self._real.append_objects(objects, log=log)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._has_returned = True
        content = self._content.hexdigest()
        if not self.is_done:
            self._real.note_content(content)
        elif error is None and self._written:
            first, rows = self._real.result, [*self._written.values()]
            check_repeated_transaction(self._home, self._real.id, first, rows, content)
        with _let_go(self._location, self._real.id, NotFoundError):
            self._real.__exit__(kind, error, trace)

    def _log_of(self, location: "Location", log_id: str) -> "Log":
        """Returns the log that tasks wrote to."""
        from clog.storage.log import Log

        is_home = location == self._location
        log = self._home if is_home else Log(opened(location).handle)
        if log.id != log_id:
            raise LogReplacedError(
                f"{log.url} was deleted and recreated while a batch was being written to it;"
                " nothing was committed; run the batch again"
            )
        return log


class _Transactions(_Writes):
    """Made by `transact_batches`. It claims the id once for each driver: one that was replaced is
    fenced. When the user's function returns, all objects are committed together or, if they belong
    to several logs, these are prepared, and the home decides (COMMIT.md §9). A crash before that
    leaves orphans, or records undecided until the next driver claims the id, and the batch runs
    again. One with the number of the last committed batch writes nothing; its frames still run,
    unless ``failOnChangedBatch`` is false, to check that they have the rows that were committed:
    others would be dropped unnoticed (`writers`).
    """

    def __init__(
        self,
        url: str,
        each_batch: "Callable[[DataFrame, BatchTransaction, int], None]",
        timeout_ms: int,
        options: Mapping[str, object],
    ) -> None:
        from clog.storage.transactions.ids import check_id

        super().__init__(url, options)
        if self._name is not None:
            check_id(self._name)
        self._each_batch, self._timeout_ms = each_batch, timeout_ms

    def _write(self, df: "DataFrame", task: TaskIds) -> None:
        batch_id, location = task.batch_id, self._options.location
        writer_id = self._name or task.query_id
        assert batch_id is not None, "each batch has a number"
        assert writer_id is not None, "each batch has a query"
        with _let_go(location, writer_id, TransactionFencedError):
            with _let_go(location, writer_id, NotFoundError):
                home = self._held_log(writer_id)
                real = home.transaction(writer_id, self._timeout_ms, sequence=batch_id)
            with BatchTransaction(home, real, location, self._given, batch_id) as batch:
                self._each_batch(df, batch, batch_id)

    def _held_log(self, writer_id: str) -> "Log":
        from clog.storage.log import Log

        place = self._options.location, writer_id
        if place not in _logs:
            _logs[place] = Log(opened_or_created(self._options).handle.opened_anew())
            return _logs[place]
        log = _logs[place]
        try:
            log.handle.standing.check()
            log.handle.recent()
        except NotFoundError as e:
            raise LogReplacedError(
                f"the home of {writer_id!r} is not the log that this process wrote its batches to:"
                f" {e}; to write all of them again, start the query with a new checkpoint (and"
                " another writerId, if it has one); to continue with this batch in the log that"
                " exists now, or in a new one, start it unchanged"
            ) from e
        return log


@contextmanager
def _let_go(home: "Location", writer_id: str, kind: type[Exception]) -> Iterator[None]:
    """Drops the handle that holds an id after such an error: a query that is started again takes
    the id back, or continues in the log that is there.
    """
    try:
        yield
    except kind:
        _logs.pop((home, writer_id), None)
        raise
