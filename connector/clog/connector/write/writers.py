"""The batch write and the streaming write: one commit for a DataFrame or a micro-batch.

A batch write with ``txnAppId`` and ``txnVersion`` happens once, as in Delta: a version at or below
the last one is skipped. Nothing is taken from the streaming query it may run in: two writes in one
``foreachBatch`` are two writes.

A micro-batch is in the log once (S78): the log remembers the last batch of each writer. The writer
is the query, by its id (which is in the checkpoint), or has the name given by ``writerId`` or
``txnAppId``. Spark does not give `commit` the query's id, so the tasks send it. Only append mode:
in complete mode each batch would be the whole result (``docs/decisions/0023-complete-mode.md``).

*Is this the log that the query has written to* (S47)? Spark's checkpoint remembers nothing about a
sink, so each query leaves its writer entry with its first batch or, if that has no rows, an entry
with sequence -1. A query that comes with a later batch and has no entry did not write to this log,
and is refused: readers would never know what is missing. If there was no log, the one that the
query has created when it began remains, empty: a batch's number is known only at its commit.

*Does a repeated batch have the same rows*? Spark runs a batch again, under its number, when it does
not know that it was committed; the log keeps its first rows. If these differ, even if no row is
left, it is an error, unless ``failOnChangedBatch`` is false: the checkpoint was restored or copied,
and the rows of another batch would be lost; the query is not deterministic; or its source was
cleaned since (``docs/decisions/0028-a-batch-that-runs-again.md``). The hashes that are compared
first depend on the order of rows, which a shuffle does not repeat: if they differ, rows are read.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from clog.connector.options import WriteOptions
from clog.connector.schema import shallow
from clog.connector.write.write_task import (
    Answers,
    TaskIds,
    Written,
    delete_of_new,
    plan_write,
    write_task,
)
from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError, LogReplacedError, NotFoundError, OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.connector.write.write_task import WritePlan
    from clog.storage.append import AppendResult
    from clog.storage.commit.appends import Writer
    from clog.storage.format.log_info import LogSchema, SchemaField
    from clog.storage.format.manifest import Manifest
    from clog.storage.log import Log
    from clog.storage.objects.writer import DataObject
    from clog.storage.transactions.deferred import TransactionResult

_Place = tuple[int, Mapping[int, tuple[int, int]]]
"""A version, and the range of offsets in it by partition."""
_LOGGER = logging.getLogger("clog.connector")
_WAYS = (
    "if records of the source were cleaned since the batch first ran (superseded or expired"
    " ones, once the version that it was planned at had expired) or the query returns other"
    " rows each time it runs, keep the first rows: start it once with failOnChangedBatch=false"
    " on this checkpoint; if the checkpoint was restored or copied, continue with the newest"
    " one; a new checkpoint with another writerId appends everything again"
)
"""The causes of a changed batch, and what to do about each."""
_COMPARED = ("key", "value", "headers")
"""Timestamps are taken from the clock if the query gives none."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The number of rows, and the sum of their hashes, which does not depend on their order."""

    count: int
    total: int


def check_repeated(
    log: "Log",
    first: "AppendResult",
    writer: "Writer",
    objects: Sequence["DataObject"],
    *,
    fail: bool,
) -> None:
    """Raises, or warns unless ``fail``, if a batch that the log already has now has other rows."""
    entry = log.handle.find_writer(writer.kind, writer.writer_id)
    number = f"{'txnVersion' if writer.query_id is None else 'batch'} {writer.sequence}"
    what = f"{number} of {writer.writer_id!r} is in {log.url} already"
    if entry is not None and entry.sequence > writer.sequence:
        problem = f"or was skipped: a later one, {entry.sequence}, is there"
    elif entry is None or entry.content == writer.content:
        problem = None
    elif fail:
        problem = _difference(log, partial(_place_of, first), objects)
    else:
        problem = "with other rows, or in another order"
    if problem is None:
        _LOGGER.info("%s", what)
    elif fail:
        raise InvalidInputError(f"{what}, {problem}; nothing was appended; {_WAYS}")
    else:
        _LOGGER.warning("%s, %s; the first rows are kept, the new ones dropped", what, problem)


def check_repeated_transaction(
    home: "Log",
    writer_id: str,
    first: "TransactionResult",
    rows: Sequence[tuple["Log", Sequence["DataObject"]]],
    content: str,
) -> None:
    """Raises if a query's last committed batch, with the result ``first``, now has other rows in
    any of the logs that it writes to. Reads nothing if ``content`` is what the home has kept.
    """
    from clog.storage.format.transactions import TRANSACTION, TransactionName
    from clog.storage.transactions.several import found_part

    entry = home.handle.find_writer(TRANSACTION, writer_id)
    assert entry is not None, "the id was taken up"
    assert entry.transaction is not None, "entries of ids have a state"
    done = entry.transaction.committed
    if done is None or entry.content in (None, content):
        return
    name = TransactionName(home.id, writer_id, done.epoch, done.number)

    def rows_first(log: "Log") -> _Place:
        return (first.version, first.offsets) if log is home else found_part(log.handle, name)

    for log, objects in rows:
        problem = _difference(log, partial(rows_first, log), objects)
        if problem is not None:
            raise InvalidInputError(
                f"batch {entry.sequence} of {writer_id!r} is in {log.url} already, {problem};"
                f" nothing was written; {_WAYS}"
            )


def _difference(
    log: "Log", first: Callable[[], _Place], objects: Sequence["DataObject"]
) -> str | None:
    """Returns how the rows now differ from the first ones; None if they do not."""
    try:
        version, offsets = first()
    except NotFoundError as e:
        return f"perhaps with other rows: {e}"
    log.handle.refresh()  # The rows may have a newer schema than this process knows.
    try:
        there = log.handle.manifest_at(version)
        columns = _rounded_as(log.handle.tip.head.log.schema, there.head.log.schema)
        before = _summed(_rows_at(log, there, offsets), columns)
    except (NotFoundError, FileNotFoundError):
        return f"perhaps with other rows: {_expired(version)}"
    now = _summed(_rows_of(log, objects), columns)
    if before == now:
        return None
    return f"with other rows: {before.count} in version {version}, {now.count} now"


def _rounded_as(newest: "LogSchema | None", then: "LogSchema | None") -> "pa.Schema":
    """Returns the newest columns, with floats for doubles that were floats then."""
    from clog.storage.types.columns import arrow_schema

    # The first rows were rounded for these.
    kinds = {} if then is None else {field.id: field.kind for _, field in then.walk()}

    def as_then(field: "SchemaField") -> "SchemaField":
        was_float = (kinds.get(field.id), field.kind) == ("float32", "float64")
        kind = "float32" if was_float else field.kind
        return replace(field, kind=kind, fields=tuple(map(as_then, field.fields)))

    if newest is None:
        return arrow_schema(None)
    return arrow_schema(replace(newest, key=as_then(newest.key), value=as_then(newest.value)))


def _place_of(first: "AppendResult") -> _Place:
    if not first.offsets:
        raise NotFoundError(_expired(first.version))
    return first.version, first.offsets


def _expired(version: int) -> str:
    return f"version {version}, which has it, expired"


def _rows_at(
    log: "Log", manifest: "Manifest", offsets: Mapping[int, tuple[int, int]]
) -> Iterable["pa.RecordBatch"]:
    """Returns an append's rows, at its version, where none of them has been cleaned."""
    from clog.storage.read.scan import Isolation, plan_range, read_pieces

    ranges = offsets.items()
    newest = log.handle.tip.head.log.schema  # The rows to compare are written under this one.
    pieces = [
        replace(piece, schema=newest)
        for p, (start, end) in ranges
        for piece in plan_range(manifest, p, start, end, isolation=Isolation.UNCOMMITTED)
    ]
    return read_pieces(log.handle.store, pieces, columns=_COMPARED)


def _rows_of(log: "Log", objects: Iterable["DataObject"]) -> Iterable["pa.RecordBatch"]:
    """Yields the rows of objects that are not committed."""
    from clog.storage.objects.reader import read_rows

    store, schema = log.handle.store, log.handle.tip.head.log.schema
    for obj in objects:
        yield from read_rows(store, obj.ref, 0, obj.ref.rows, columns=_COMPARED, schema=schema)


def _summed(batches: Iterable["pa.RecordBatch"], rounded: "pa.Schema") -> _Rows:
    import xxhash

    count = total = 0
    for batch in batches:
        count += batch.num_rows
        columns = {name: batch.column(name) for name in _COMPARED}
        columns |= {f.name: columns[f.name].cast(f.type, safe=False) for f in rounded}
        values = (columns[name].to_pylist() for name in _COMPARED)
        for row in zip(*values, strict=True):
            total += xxhash.xxh3_128_intdigest(repr(row).encode())
    return _Rows(count, total % (1 << 128))


class ClogWriter(DataSourceArrowWriter):
    """Appends a DataFrame."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidInputError(
                f"mode overwrite is refused: log {options.location.name!r} keeps its records for"
                ' its readers; use .mode("append"), after "clog alter --delete-records" if the old'
                " records should be removed"
            )
        if options.writer_id is not None:
            raise OptionError(
                'option "writerId" is for streams; a batch write is made idempotent by "txnAppId"'
                ' and "txnVersion"'
            )
        if (options.txn_app_id is None) != (options.txn_version is None):
            raise OptionError(
                'options "txnAppId" and "txnVersion" must be given together or not at all'
            )
        self._options = options
        self._plan = plan_write(options, schema, creates_later=True)

    @shallow
    def write(self, iterator: Iterator["pa.RecordBatch"]) -> Written:
        """Writes a task's rows."""
        return write_task(self._plan, iterator, TaskIds.current())

    @shallow
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Appends the objects of all tasks together."""
        answers = Answers.of(messages)
        objects, writer = answers.objects, self._writer(answers.content)
        fail = bool(self._options.fail_on_changed_batch)
        repeats = writer if fail else None  # Otherwise it may have no rows this time.
        if not objects and self._plan.new is None and repeats is None:
            return
        log = answers.log(self._plan.location)
        if not objects and (repeats is None or not is_there(log, repeats)):
            return
        result = log.append_objects(objects, writer)
        if result.duplicate and writer is not None:
            check_repeated(log, result, writer, objects, fail=fail)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Deletes objects for a log that was not created; never raises (see `write_task`)."""
        delete_of_new(self._plan.location, messages)

    def _writer(self, content: str) -> "Writer | None":
        from clog.storage.commit.appends import Writer

        options = self._options
        if options.txn_app_id is None or options.txn_version is None:
            return None
        return Writer(options.txn_app_id, "txn", options.txn_version, content=content)


def introduce(log: "Log", writer: "Writer") -> None:
    """Commits an entry for a query whose first batch has no rows, unless it has one."""
    from clog.storage.commit.appends import BEFORE_THE_FIRST

    if not is_known(log, writer):
        log.append_objects([], replace(writer, sequence=BEFORE_THE_FIRST, content=None))


def check_known(log: "Log", writer: "Writer", *, fail: bool) -> None:
    """Raises, or warns, if the log has no entry of a query that is past its first batch."""
    if is_known(log, writer):
        return
    message = (
        f"{log.url} has none of the batches before batch {writer.sequence} of"
        f" {writer.writer_id!r}: the log was deleted and recreated, or the query wrote elsewhere"
        " before (another path, format or writerId)"
    )
    if fail:
        # Not deleted: another writer may have appended since, and have reported success.
        empty = " to the log that is there, which is empty: a query creates one when it starts"
        raise LogReplacedError(
            f"{message}; nothing was appended{'' if log.version else empty}; start the query with a"
            " new checkpoint to write all of it, or set failOnChangedBatch=false to continue here"
            " with this batch"
        )
    _LOGGER.warning("%s; continuing with this batch (failOnChangedBatch=false)", message)


def is_known(log: "Log", writer: "Writer") -> bool:
    """Returns whether a query has an entry in the log; one request if the tip does not show it."""
    key = writer.kind, writer.writer_id
    if log.handle.find_writer(*key) is not None:
        return True
    log.handle.refresh()  # What this process knows of the log may be older than the entry.
    return log.handle.find_writer(*key) is not None


def is_there(log: "Log", writer: "Writer") -> bool:
    """Returns whether the log has a batch, or a later one, in one request."""
    log.handle.refresh()
    entry = log.handle.find_writer(writer.kind, writer.writer_id)
    return entry is not None and entry.sequence >= writer.sequence


def check_stream_write(options: WriteOptions) -> None:
    """Raises if a streaming write refuses one of the options."""
    if options.txn_version is not None:
        raise OptionError(
            'option "txnVersion" is for batch writes: a stream numbers its own batches; omit it,'
            " and give writerId to name the query in the log"
        )


class ClogStreamWriter(DataSourceStreamArrowWriter):
    """Appends micro-batches, each exactly once. Spark makes one to plan the tasks of a batch, and
    one to commit it, or to abort it, which does not look at the log before its method is called:
    an error earlier would be shown as "Writing job failed", in place of that of the commit.
    ``kind`` is that of the writer's entries in the log.
    """

    def __init__(
        self,
        options: WriteOptions,
        schema: StructType,
        *,
        overwrite: bool,
        plans: bool = True,
        kind: str = "stream",
    ) -> None:
        if overwrite:
            raise InvalidInputError(
                "output mode complete is refused: each batch would append the whole result again;"
                ' use outputMode("append"), or clog.connector.upsert_batches in foreachBatch'
            )
        check_stream_write(options)
        self._options = options
        self._kind = kind
        self._plan = plan_write(options, schema, creates_later=True) if plans else None

    @property
    def plan(self) -> "WritePlan":
        """What tasks need to know."""
        assert self._plan is not None, "tasks are planned where the writer plans"
        return self._plan

    @shallow
    def write(self, iterator: Iterator["pa.RecordBatch"]) -> Written:
        """Writes a task's rows."""
        return write_task(self.plan, iterator, TaskIds.current())

    @shallow
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Appends the objects of all tasks together, unless this batch is already in the log."""
        answers = Answers.of(messages)
        objects, fail = answers.objects, self._options.fail_on_changed_batch is not False
        if not objects and batchId and answers.written[0].new is not None:
            return  # There is no log.
        log = answers.log(self._options.location)
        writer = self._writer(answers, batchId)
        if not objects and not is_there(log, writer):
            if not batchId:
                introduce(log, writer)
            return  # Later ones leave no trace, so running them again with rows is harmless.
        if batchId:
            check_known(log, writer, fail=fail)
        result = log.append_objects(objects, writer)
        if result.duplicate:
            check_repeated(log, result, writer, objects, fail=fail)

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: ARG002 - Spark's
    ) -> None:
        """Deletes objects for a log that was not created; never raises (see `write_task`)."""
        delete_of_new(self._options.location, messages)

    def _writer(self, answers: Answers, batch_id: int) -> "Writer":
        from clog.storage.commit.appends import Writer

        queries = {answer.query_id for answer in answers.written}
        assert len(queries) == 1, f"tasks of several queries in one batch: {queries}"
        (query_id,) = queries
        assert query_id is not None, "Spark tells each task of a stream its query"
        name = self._options.writer_id or self._options.txn_app_id or query_id
        return Writer(name, self._kind, batch_id, query_id=query_id, content=answers.content)
