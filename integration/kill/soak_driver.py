"""A Spark driver of a soak: a query that writes laps into the log, and one that copies the log.

    python soak_driver.py WORLD PIDS

PIDS is the file for the pids of the driver and of its JVM; it is there once the queries run. Told
to stop, it ends the first query, and copies all that is left.
"""

import json
from typing import Any

from driver import TASKS, drive
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from soaked import COPY, KEYS, PADDING, SOAK, SPARK, STEP, TOMBSTONE_EVERY
from world import World

from clog.connector import ClogDataSource

EVERY = "10 seconds"


def main() -> None:
    drive(ClogDataSource, begin, finish)


def begin(spark: SparkSession, world: World) -> list[StreamingQuery]:
    return [
        into(world, writer, log).trigger(processingTime=EVERY).start(world.url_of(log))
        for writer, log in parts(spark, world)
    ]


def finish(spark: SparkSession, world: World) -> None:
    """Does what a batch that was cut off has begun, and copies all there is."""
    for writer, log in parts(spark, world):
        once = into(world, writer, log).trigger(availableNow=True).start(world.url_of(log))
        once.awaitTermination()


def parts(spark: SparkSession, world: World) -> tuple[tuple[DataStreamWriter, str], ...]:
    """Returns what is written into which log."""
    return (laps(spark), SOAK), (copied(spark, world), COPY)


def laps(spark: SparkSession) -> DataStreamWriter:
    """Each batch is a lap. A key never comes up in two tasks of a batch."""
    n = F.col("value")
    key = F.concat(F.lit(f"{SPARK}/"), (n * STEP % KEYS).cast("string"))
    value = F.struct(F.lit(SPARK).alias("producer"), n.alias("n"), F.lit(PADDING).alias("text"))
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", KEYS)
        .option("numPartitions", TASKS)
        .load()
        .select(key.alias("key"), F.when(n % TOMBSTONE_EVERY != 0, value).alias("value"))
    )
    return rows.writeStream.option("writerId", SPARK)


def copied(spark: SparkSession, world: World) -> DataStreamWriter:
    """What is deleted before it was copied is missing: later records of its keys are not."""
    rows = (
        spark.readStream.format("clog")
        .option("storage_options", json.dumps(world.storage_options))
        .option("failOnDataLoss", "false")
        .option("readerId", "copying")
        .load(world.url_of(SOAK))
    )
    return rows.select("key", "value").writeStream.option("writerId", "copying")


def into(world: World, writer: DataStreamWriter, log: str) -> Any:
    return (
        writer.format("clog")
        .option("storage_options", json.dumps(world.storage_options))
        .option("checkpointLocation", str(world.checkpoint(log)))
    )


if __name__ == "__main__":
    main()
