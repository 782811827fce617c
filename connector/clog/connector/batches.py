"""For ``foreachBatch``: the DataFrames of a micro-batch, written once to one or more logs, all or
nothing; and small batches, appended by the driver.

``foreachBatch`` is at least once: a batch can run again after it was written, and a function that
writes twice can die in between. `transaction` turns it into one transaction of the log, under the
name of the job, with the batch's number as its sequence:

J1. It claims the id, once for each driver: a driver that was replaced is fenced.
J2. If the number is that of the last committed batch, nothing is written again. The frames still
    run, unless ``failOnChangedBatch`` is false, to check that they have the rows that were
    committed; otherwise different rows would be dropped unnoticed (`writers`).
J3. Each `BatchTransaction.write` runs the DataFrame; its tasks write objects, as those of a sink do
    (`write_task`), and answer with what they made.
J4. The end of the ``with`` block commits all objects together or, if they belong to several logs,
    prepares these and decides in the home (COMMIT.md §9). A crash before that leaves orphans, or
    records undecided until the next driver claims the id, and the batch runs again; later, J2.

A sink in Python sends a batch to Python workers on the executors, and its commit to another process
on the driver, which costs some 60 ms for a batch of any size. In ``foreachBatch`` the driver has
both the batch and Python. `append_batches` makes the same append as the sink (`writers`): once for
each query and batch, in the order of Spark's partitions.

A1. The first batch of a run, and one after a large batch, is written by tasks, which is best for
    large ones: nobody knows yet how many rows it has.
A2. After a small batch the driver collects the rows, and writes the object itself. If they are more
    than Spark lets a driver collect (``spark.driver.maxResultSize``), tasks write them.
A3. All objects are committed together. After a crash before that, orphans are left and the batch
    runs again; after a crash later, the log has it, and returns the first result.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from clog.connector.opened_logs import opened
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
from clog.storage.errors import (
    InvalidInputError,
    LogReplacedError,
    NotFoundError,
    TransactionFencedError,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from clog.connector.options import Location, WriteOptions
    from clog.connector.write.write_task import WritePlan
    from clog.storage import Transaction, TransactionResult
    from clog.storage.log import Log
    from clog.storage.objects.writer import DataObject

TIMEOUT_MS = 3_600_000
_logs: dict[tuple["Location", str], "Log"] = {}
"""By place and job: handles that hold an id, separate from those for other uses."""
_done: dict[tuple["Location", str], tuple[str, int]] = {}
"""By place and job: the last run and batch, to notice two transactions of one batch."""


class BatchTransaction:
    """The transaction of one micro-batch, made by `transaction` and used in its ``with`` block."""

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
        self._is_running = False
        self._run_id = ""
        self._written: dict[str, tuple[Log, list[DataObject]]] = {}
        self._content = hashlib.blake2b(digest_size=16)

    @property
    def is_done(self) -> bool:
        """Whether the batch was already committed, so that nothing is written."""
        return self._is_done

    @property
    def result(self) -> "TransactionResult":
        """The version and the offsets, once it is committed."""
        return self._real.result

    def write(self, df: "DataFrame", url: str) -> None:
        """Writes the rows of a DataFrame, which has the sink's columns; nobody sees them before the
        transaction is committed. If the batch is already done, compares them with the committed
        rows, or runs nothing if ``failOnChangedBatch`` is false.

        Args:
            df: the rows.
            url: the log, the home or any other; the first batch creates it.

        Raises:
            InvalidInputError: a column is missing or has a wrong type; this is a second transaction
                of the batch; the call is outside of the ``with`` block.
        """
        if not self._is_running:
            raise InvalidInputError(
                f"batch {self._batch_id} of job {self._real.id!r} is written outside the with"
                " block of its transaction, which no longer commits anything; write inside the"
                " block: with transaction(…) as t: t.write(df, url)"
            )
        settings = write_options({**self._options, "path": url})
        self._run_id = local_property(df, RUN_ID) or ""
        mine = self._run_id, self._batch_id
        if self.is_done and self._run_id and _done.get((self._location, self._real.id)) == mine:
            raise InvalidInputError(
                f"job {self._real.id!r} has already committed batch {self._batch_id} in this run,"
                " so a second transaction of the batch would be dropped as a repetition; write"
                " everything in one, or give each its own job name"
            )
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
        self._is_running = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_running = False
        content = self._content.hexdigest()
        if not self.is_done:
            self._real.note_content(content)
        elif error is None and self._written:
            first, rows = self._real.result, [*self._written.values()]
            check_repeated_transaction(self._home, self._real.id, first, rows, content)
        try:
            self._real.__exit__(kind, error, trace)
        except NotFoundError:
            _logs.pop((self._location, self._real.id), None)  # Another log may be there.
            raise
        if not self.is_done and error is None:
            _done[self._location, self._real.id] = self._run_id, self._batch_id

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


def transaction(
    job: str,
    batch_id: int,
    *,
    home: str,
    timeout_ms: int = TIMEOUT_MS,
    options: Mapping[str, object] | None = None,
) -> BatchTransaction:
    """Begins the transaction of a micro-batch, for a ``with`` statement in ``foreachBatch``: its
    writes are committed once, at the end of the block, all or nothing.

    Args:
        job: names the streaming query across its restarts; with a new checkpoint use another name,
            because its batches count from 0 again.
        batch_id: the second argument of the function given to ``foreachBatch``.
        home: the URL of the log; the first batch creates it.
        timeout_ms: how long the batch may take at most, up to a day.
        options: further options of the write, such as ``partitions`` or ``config.<name>``.

    Raises:
        InvalidInputError: ``job`` or ``batch_id`` is invalid; the log already has a later batch of
            the job.
        LogReplacedError: the log was deleted since the previous batch. The next call creates it
            anew, or continues in the one that is there.
        TransactionFencedError: another driver has taken over the job.

    >>> def each_batch(df, batch_id):
    ...     with transaction("invoices", batch_id, home="help-of-ledger") as t:
    ...         t.write(df, "help-of-ledger")
    >>> each_batch(spark.createDataFrame([("ann", "3")], "key string, value string"), 0)
    """
    from clog.storage.transactions.ids import check_id

    check_id(job)
    if type(batch_id) is not int or not 0 <= batch_id < 1 << 63:
        raise InvalidInputError(
            f"batch_id={batch_id!r:.80} of job {job!r} is not the number of a micro-batch;"
            " allowed: integers from 0 to 2^63 - 1; pass the second argument of the function"
            " given to foreachBatch"
        )
    given = texts_of(options)
    settings = write_options({**given, "path": home})
    place = settings.location, job
    try:
        log = _held_log(settings, job)
        real = log.transaction(job, timeout_ms, sequence=batch_id)
    except (TransactionFencedError, NotFoundError):
        _logs.pop(place, None)  # A restarted query takes the job back.
        raise
    return BatchTransaction(log, real, settings.location, given, batch_id)


def _held_log(settings: "WriteOptions", job: str) -> "Log":
    from clog.storage.log import Log

    place = settings.location, job
    if place not in _logs:
        _logs[place] = Log(opened_or_created(settings).handle.opened_anew())
        return _logs[place]
    log = _logs[place]
    try:
        log.handle.standing.check()
        log.handle.recent()
    except NotFoundError as e:
        raise LogReplacedError(
            f"the home of job {job!r} is not the log that this process wrote the job's batches"
            f" to: {e}; to write all of them again, start the query with a new checkpoint and"
            " another job name; to continue with this batch in the log that exists now, or in a"
            " new one, start it unchanged"
        ) from e
    return log


ROWS_MAX, BYTES_MAX = 200_000, 32 << 20
"""After a batch with more rows, tasks write the next one."""
_TOO_LARGE = "maxResultSize"


class BatchAppender:
    """A function for ``foreachBatch``, made by `append_batches`."""

    def __init__(self, url: str, options: Mapping[str, object]) -> None:
        self._options = write_options({**texts_of(options), "path": url})
        check_stream_write(self._options)
        self._name = self._options.writer_id or self._options.txn_app_id
        self._is_small = False

    def __call__(self, df: "DataFrame", batch_id: int) -> None:
        """Appends the rows of a batch, unless the log has them already."""
        query_id = local_property(df, QUERY_ID) or self._name
        if query_id is None:
            raise InvalidInputError(
                "append_batches cannot tell its streaming query: give its result to foreachBatch;"
                " with Spark Connect, whose foreachBatch does not identify the query, give the"
                ' query a name, such as writerId="orders": the same name at each restart, and'
                " another one with a new checkpoint"
            )
        writer = ClogStreamWriter(self._options, df.schema, overwrite=False)
        task = TaskIds(query_id, batch_id)
        rows = _collected(df) if self._is_small else None
        if rows is not None:
            written = [write_task(writer.plan, iter(rows.to_batches()), task)]
        else:
            written = _by_tasks(df, writer.plan, task)
        writer.commit(written, batch_id)
        objects = [obj for answer in written for obj in answer.objects]
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


def append_batches(url: str, **options: object) -> BatchAppender:
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
    return BatchAppender(url, options)
