"""The batch read: a plan at one version, made once and valid until its objects are swept.

Spark plans a DataFrame at its first action and keeps that plan for good; so a plan is exact at its
version, and fails when that version has expired rather than to mix two.

There is no ``pushFilters``: Spark 4.1 to 4.3 stores the filtered plan where other uses of the same
DataFrame find it, and returns wrong rows without an error (SPARK-58551). Options prune instead.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from clog.connector.opened_logs import check_meant
from clog.connector.options import ReadOptions
from clog.connector.positions import EARLIEST, LATEST, Position, Since, Times
from clog.connector.read.plan_ranges import (
    LogPartition,
    TablePartition,
    batch_ranges,
    check_columns,
    check_columns_of,
    log_partitions,
    of_the_logs_keys,
    view_partitions,
)
from clog.connector.schema import shallow, shallow_iterator
from clog.storage.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.storage.commit.handle import Handle


class ClogReader(DataSourceReader):
    """Reads records or the table view, in Arrow batches."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_batch(options)
        self._handle = check_columns(options, schema)
        self._options = options
        self._schema = schema

    def __getstate__(self) -> dict[str, Any]:
        """Returns what tasks need: they open nothing."""
        return {**self.__dict__, "_handle": None}

    @shallow
    def partitions(self) -> Sequence[InputPartition]:
        """Returns the plan, at the newest version."""
        options = self._options
        handle = self._opened()
        table = check_columns_of(handle, options, self._schema)
        check_meant(handle, options.log_id)
        options = of_the_logs_keys(handle, options)
        if options.view != "log":
            return view_partitions(handle, options, table)
        manifest = handle.manifest()
        ranges = batch_ranges(handle.store, manifest, options)
        return log_partitions(manifest, ranges, options, follow=False)

    @shallow_iterator
    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yields batches of one partition. Spark makes an `InputPartition(None)` of an empty plan:
        it has none.
        """
        from clog.connector.read.task_read import log_batches, table_slice_batches

        if isinstance(partition, LogPartition):
            yield from log_batches(partition, self._schema)
        elif isinstance(partition, TablePartition):
            yield from table_slice_batches(partition, self._schema)

    def _opened(self) -> "Handle":
        """Returns the log as it is now: the one that the columns were checked with."""
        from clog.storage.log import Log

        if self._handle is not None:
            self._handle.refresh()
            return self._handle
        return Log.open(self._options.location.store()).handle


def check_batch(options: ReadOptions) -> None:
    """Raises if an option is one that a batch read refuses, as Spark's Kafka source does."""
    _refuse(options.starting, "latest", LATEST, option="startingOffsets", meaning="latest")
    _refuse(options.ending, "earliest", EARLIEST, option="endingOffsets", meaning="earliest")
    has_end = options.ending not in (None, "latest")
    if options.view == "table" and (options.starting is not None or has_end):
        raise OptionError(
            'view "table" shows the whole log at one version, without startingOffsets or'
            ' endingOffsets; to limit offsets, use view "log", or view "latest" with a start'
        )
    if options.view == "latest" and has_end:
        raise OptionError(
            'view "latest" always ends at the newest version, because records that were the latest'
            " before it may be cleaned by now; omit endingOffsets and endingTimestamp"
        )
    if options.view == "log" and isinstance(options.starting, Since):
        raise OptionError(
            'option "sinceVersion" is for streams and for view "latest"; a batch read of view "log"'
            " takes startingOffsets"
        )
    if options.view != "table" and not (options.as_of_version is options.as_of_ms is None):
        raise OptionError(
            f'options "asOfVersion" and "asOfTimestamp" are for view "table", not "{options.view}"'
        )
    if options.as_of_version is not None and options.as_of_ms is not None:
        raise OptionError('options "asOfVersion" and "asOfTimestamp" are both given; give one')


def _refuse(
    position: Position | Times | Since | None, word: str, number: int, *, option: str, meaning: str
) -> None:
    numbers = position.values() if isinstance(position, Mapping) else ()
    if position == word or number in numbers:
        raise OptionError(
            f'option "{option}" cannot be {meaning} ({number}) in a batch read: nothing would be'
            " read; give offsets"
        )
