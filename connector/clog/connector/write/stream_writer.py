"""The streaming write: each micro-batch is in the log once.

The log remembers the last batch of each writer. The writer is the query, by its id (which is in
the checkpoint), or has the name that ``writerId`` or ``txnAppId`` gives. Spark runs a batch again
when it does not know that it was committed, with the same number: the log then answers with what
is there (`changed_batch`). `commit` learns no query id from Spark, so the tasks send it.

Only the append mode: in complete mode each batch would be the whole result, see
``docs/decisions/0023-complete-mode.md``.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from clog.connector.options.settings import WriteOptions
from clog.connector.shallow import shallow
from clog.connector.write.changed_batch import check_repeated
from clog.connector.write.known_query import check_known, introduce
from clog.connector.write.write_task import (
    TaskIds,
    Written,
    answers_of,
    content_of,
    delete_of_new,
    log_of,
    objects_of,
    plan_write,
    write_task,
)
from clog.storage.errors import InvalidInputError, OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.storage.commit.idempotence import Writer


class ClogStreamWriter(DataSourceStreamArrowWriter):
    """Appends micro-batches, each exactly once."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidInputError(
                "output mode complete is refused: each batch would append the whole result again;"
                ' use outputMode("append"), or clog.connector.upsert in foreachBatch'
            )
        if options.txn_version is not None:
            raise OptionError(
                'option "txnVersion" is for batch writes: a stream numbers its own batches;'
                " omit it, and give writerId if the log should know the query by a name"
            )
        self._options = options
        self._plan = plan_write(options, schema, creates_later=True)

    @shallow
    def write(self, iterator: Iterator["pa.RecordBatch"]) -> Written:
        """Writes a task's rows."""
        return write_task(self._plan, iterator, TaskIds.current())

    @shallow
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Appends the objects of all tasks at once, unless this batch is in the log already.

        Raises:
            InvalidInputError: another query, a later batch, or this one with other rows was
                committed by this writer; the log's config refuses a record.
            CommitStateUnknownError: the rows may be in the log; running the batch again is safe.
        """
        answers = answers_of(messages)
        if not objects_of(answers) and batchId:
            return  # An empty batch leaves no trace: run again, it is as harmless.
        log, objects = log_of(self._plan.location, answers)
        writer = self._writer(answers, batchId)
        if not objects:
            introduce(log, writer)
            return
        fail = self._options.fail_on_changed_batch is not False
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
        """Deletes what was written for a log that is not made; never raises (see `write_task`)."""
        delete_of_new(self._plan.location, messages)

    def _writer(self, answers: Sequence[Written], batch_id: int) -> "Writer":
        from clog.storage.commit.idempotence import Writer

        queries = {answer.query_id for answer in answers}
        assert len(queries) == 1, f"tasks of several queries in one batch: {queries}"
        (query_id,) = queries
        assert query_id is not None, "Spark tells each task of a stream its query"
        name = self._options.writer_id or self._options.txn_app_id or query_id
        content = content_of(answers)
        return Writer(name, "stream", batch_id, query_id=query_id, content=content)
