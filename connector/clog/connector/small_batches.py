"""Micro-batches appended by the driver: what a Python sink costs Spark, twice over, small batches
do not need.

A sink in Python takes a batch to Python workers on the executors, and its commit to another process
on the driver: some 60 ms of a batch of any size. In ``foreachBatch`` the driver has the batch in
hand, and Python. `append_batches` makes the same append of it as the sink does (`writers`): once
for each query and batch, in the order of Spark's partitions.

A1. The first batch of a run, and one after a large batch, is written by tasks, as large ones are
    best: nobody knows how many rows it has.
A2. After a small one the driver collects the rows, and writes the object itself. If they are more
    than Spark lets a driver collect (``spark.driver.maxResultSize``), tasks write them.
A3. All objects are committed at once. Crash before: orphans, and the batch runs again; after: the
    log has it, and returns the first result.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from clog.connector.options import texts_of, write_options
from clog.connector.write.write_task import (
    QUERY_ID,
    TaskIds,
    Written,
    local_property,
    write_task,
    written_by_tasks,
)
from clog.connector.write.writers import ClogStreamWriter, check_stream_write
from clog.storage.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from clog.connector.write.write_task import WritePlan

ROWS_MAX, BYTES_MAX = 200_000, 32 << 20
"""A batch of more makes the next one be written by tasks."""
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
                " with Spark Connect, whose foreachBatch is told of no query, give the query a name"
                ' of your own, such as writerId="orders": the same at each restart, and another one'
                " with a new checkpoint"
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
        self._is_small = sum(obj.rows for obj in objects) <= ROWS_MAX and size <= BYTES_MAX


def _collected(df: "DataFrame") -> "pa.Table | None":
    """Returns the rows of a batch; None where Spark does not let the driver have so many."""
    try:
        return df.toArrow()
    except Exception as e:
        if _TOO_LARGE not in str(e):
            raise
        return None


def _by_tasks(df: "DataFrame", plan: "WritePlan", task: TaskIds) -> list[Written]:
    """Writes a batch by tasks; one without any has an answer all the same, as in Spark's sinks."""
    written = written_by_tasks(df, plan) or [write_task(plan, iter(()), task)]
    return [replace(w, query_id=task.query_id, batch_id=task.batch_id) for w in written]


def append_batches(url: str, **options: object) -> BatchAppender:
    """Returns a function for ``foreachBatch`` that appends each batch to a log, exactly once, as
    ``writeStream.format("clog")`` does, and small batches in two thirds of its time: the driver
    writes them. Large ones are written by tasks.

    The query is known to the log by its id, as that of a sink: it can go on as the other.

    Args:
        url: the log; the first batch creates it.
        options: those of a streaming write, such as ``partitions``, ``keyColumns`` or ``writerId``.

    Raises:
        OptionError: an option is unknown, or none of a streaming write.
    """
    return BatchAppender(url, options)
