"""The batch write: one commit for the whole DataFrame.

With ``txnAppId`` and ``txnVersion`` it happens once, as in Delta: a version at or below the last
one is skipped. Nothing is taken from the streaming query it may run in: two writes in one
``foreachBatch`` are two writes.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from clog.connector.options.settings import WriteOptions
from clog.connector.shallow import shallow
from clog.connector.write.changed_batch import check_repeated
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


class ClogWriter(DataSourceArrowWriter):
    """Appends a DataFrame."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidInputError(
                f"mode overwrite is refused: log {options.location.name!r} keeps its records for"
                ' its readers; use .mode("append"), after "clog delete-records" if the old records'
                " should go"
            )
        if options.writer_id is not None:
            raise OptionError(
                'option "writerId" is for streams; a batch write happens once with "txnAppId" and'
                ' "txnVersion"'
            )
        if (options.txn_app_id is None) != (options.txn_version is None):
            raise OptionError(
                'options "txnAppId" and "txnVersion" are given together or not at all'
            )
        self._options = options
        self._plan = plan_write(options, schema, creates_later=True)

    @shallow
    def write(self, iterator: Iterator["pa.RecordBatch"]) -> Written:
        """Writes a task's rows."""
        return write_task(self._plan, iterator, TaskIds.current())

    @shallow
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Appends the objects of all tasks at once.

        Raises:
            InvalidInputError: the log's config refuses a record, or it has this transaction with
                other rows, and ``failOnChangedBatch``; nothing is appended.
            CommitStateUnknownError: the rows may be in the log.
        """
        answers = answers_of(messages)
        if not objects_of(answers) and self._plan.new is None:
            return
        log, objects = log_of(self._plan.location, answers)
        if not objects:
            return
        writer = self._writer(content_of(answers))
        result = log.append_objects(objects, writer)
        if result.duplicate and writer is not None:
            fail = bool(self._options.fail_on_changed_batch)
            check_repeated(log, result, writer, objects, fail=fail)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Deletes what was written for a log that is not made; never raises (see `write_task`)."""
        delete_of_new(self._plan.location, messages)

    def _writer(self, content: str) -> "Writer | None":
        from clog.storage.commit.idempotence import Writer

        options = self._options
        if options.txn_app_id is None or options.txn_version is None:
            return None
        return Writer(options.txn_app_id, "txn", options.txn_version, content=content)
