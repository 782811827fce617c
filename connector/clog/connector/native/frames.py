"""The log's records and its table as DataFrames over its own objects, by Spark's own Parquet scan.

D1. Scan the objects with the columns that are asked for, as the log's types.
D2. Take hidden rows out: an anti join with their blocks (`rows`) and a bit for each row. Spark's
    estimate of the size stays that of the scan, so small tables are still broadcast.
D3. Where columns say a row's place in the log, join the blocks of places.

Filters and column pruning go through both joins into the scan.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import LongType, StructField, StructType

from clog.connector.native.files import FILE, ROW, scan
from clog.connector.native.rows import (
    HIDDEN_BITS,
    NAME_BITS,
    PLACE_BITS,
    ROW_BITS,
    FileNumbers,
    hidden_rows,
    places,
)
from clog.connector.table_columns import TableColumns
from clog.storage.format.chunks import NONE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from clog.storage.numpy_arrays import Mask
    from clog.storage.read.scan import ReadPiece

_PLACE_COLUMNS = frozenset({"partition", "offset", "timestampType"})


@dataclass(frozen=True, slots=True)
class Scanned:
    """What is scanned: the log's ``folder`` as the JVM names it, of each object by its path the
    rows that are hidden, and the pieces of the log, where their places matter.
    """

    folder: str
    hidden: "Mapping[str, Mask | None]"
    pieces: "Sequence[ReadPiece] | None"


def records(spark: "SparkSession", what: Scanned, schema: StructType, topic: str) -> "DataFrame":
    """Returns the columns of ``schema`` of the rows that are not hidden.

    Raises:
        CannotScanError: Spark's scan cannot read this.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    if not what.hidden:
        return spark.createDataFrame([], schema)
    names = {path: path.rpartition("/")[2] for path in what.hidden}
    numbers = FileNumbers.of(names.values())
    stored = [f for f in schema if f.name in ("key", "value", "headers", "timestamp")]
    if what.pieces is not None:
        stored.append(StructField("offset", LongType()))
    frame = scan(spark, [f"{what.folder}/{path}" for path in what.hidden], StructType(stored))
    masks = {names[path]: mask for path, mask in what.hidden.items() if mask is not None}
    if masks:
        words = spark.createDataFrame(hidden_rows(numbers, masks))
        bit = F.call_function("bit_get", F.col("hidden"), _low(HIDDEN_BITS).cast("int"))
        is_hidden = (_block(numbers, HIDDEN_BITS) == F.col("block")) & (bit == 1)
        frame = frame.join(F.broadcast(words), is_hidden, "left_anti")
    made: dict[str, Column] = {"topic": F.lit(topic)}
    if what.pieces is not None:
        found = places(numbers, [(names[piece.object.path], piece) for piece in what.pieces])
        place = spark.createDataFrame(found)
        is_there = (
            (_block(numbers, PLACE_BITS) == F.col("block"))
            & (F.col(ROW) >= F.col("first_row"))
            & (F.col(ROW) < F.col("end_row"))
        )
        offset = F.coalesce(F.col(ROW) + F.col("delta"), F.col("offset"))
        frame = frame.join(F.broadcast(place), is_there).withColumn("offset", offset)
        frame = frame.where((F.col("offset") >= F.col("start")) & (F.col("offset") < F.col("end")))
        made["timestampType"] = F.col("append_time").isNotNull().cast("int")
        if "timestamp" in schema.names:
            made["timestamp"] = F.coalesce("append_time", "timestamp")
    return frame.select(*(made.get(f.name, F.col(f.name)).alias(f.name) for f in schema))


def rows_of_table(records: "DataFrame", table: TableColumns, schema: StructType) -> "DataFrame":
    """Returns plain columns of a table's records."""
    from pyspark.sql import functions as F  # noqa: N812

    columns = []
    for field in schema:
        name = table.own(field.name) or field.name
        of_key = F.col("key").getField(name) if table.key_is_struct else F.col("key")
        column = of_key if name in table.key else F.col("value").getField(name)
        columns.append(column.alias(field.name))
    return records.select(*columns)


def needs_places(schema: StructType, pieces: "Sequence[ReadPiece]") -> bool:
    """Tells whether a column says what lies in no object."""
    overridden = any(piece.append_time_ms != NONE for piece in pieces)
    asked = {*_PLACE_COLUMNS, "timestamp"} if overridden else _PLACE_COLUMNS
    return any(f.name in asked for f in schema)


def _block(numbers: FileNumbers, bits: int) -> "Column":
    """Returns the number of a row's block, as `rows` makes it."""
    from pyspark.sql import functions as F  # noqa: N812

    number = F.shiftrightunsigned(FILE, numbers.shift).bitwiseAND((1 << NAME_BITS) - 1)
    return F.shiftleft(number, ROW_BITS) + F.shiftright(ROW, bits)


def _low(bits: int) -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(ROW).bitwiseAND((1 << bits) - 1)
