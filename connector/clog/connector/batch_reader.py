"""The batch read: a plan at one version, made once and valid until its objects are swept.

Spark plans a DataFrame at its first action and keeps that plan for good; so a plan is exact at its
version, and fails when that version has expired rather than to mix two.

There is no `pushFilters`: Spark 4.1 to 4.3 stores the filtered plan where other uses of the same
DataFrame find it, and returns wrong rows without an error (SPARK-58551). Options prune instead.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from clog.connector.option_values import EARLIEST, LATEST, Position, Times
from clog.connector.options import ReadOptions
from clog.connector.partitions import LogPartition, TablePartition
from clog.connector.planned import batch_partitions, table_partitions
from clog.connector.schema import check_read_schema
from clog.connector.shallow import shallow, shallow_iterator
from clog.storage.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa


class ClogReader(DataSourceReader):
    """Reads records or the table view, in Arrow batches."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_batch(options)
        check_read_schema(schema)
        self._options = options
        self._schema = schema

    @shallow
    def partitions(self) -> Sequence[InputPartition]:
        """The plan, at the newest version."""
        from clog.storage.log import Log

        options = self._options
        log = Log.open(options.location.store())
        plan = table_partitions if options.view == "table" else batch_partitions
        return plan(log.handle.store, log.handle.manifest(), options)

    @shallow_iterator
    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Batches of one partition. Spark makes an `InputPartition(None)` of an empty plan: it has
        none.
        """
        from clog.connector.reading import log_batches, table_view_batches

        if isinstance(partition, LogPartition):
            yield from log_batches(partition, self._schema)
        elif isinstance(partition, TablePartition):
            yield from table_view_batches(partition, self._schema)


def check_batch(options: ReadOptions) -> None:
    """Options that a batch read refuses, as Spark's Kafka source does."""
    _refuse(options.starting, "latest", LATEST, option="startingOffsets", meaning="latest")
    _refuse(options.ending, "earliest", EARLIEST, option="endingOffsets", meaning="earliest")
    if options.view == "table" and (options.starting is not None or options.ending != "latest"):
        raise OptionError(
            'view "table" is the whole log at its newest version: it takes neither startingOffsets'
            ' nor endingOffsets; read view "log" between offsets'
        )


def _refuse(
    position: Position | Times | None, word: str, number: int, *, option: str, meaning: str
) -> None:
    numbers = position.values() if isinstance(position, Mapping) else ()
    if position == word or number in numbers:
        raise OptionError(
            f'option "{option}" cannot be {meaning} ({number}) in a batch read: nothing would be'
            " read; give offsets"
        )
