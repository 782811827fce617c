"""A Spark driver of two jobs with state: one counts the records of each key, one adds up their
numbers. What changed in a batch goes into two logs, in one transaction.

    python jobs_driver.py WORLD PIDS

PIDS is the file for the pids of the driver and of its JVM; it is there once the queries run. Told
to stop, it ends the queries, and works off all there is.
"""

import json

from driver import drive
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from world import World

from clog.connector import BatchTransaction, ClogDataSource, transact_batches
from clog.storage import Log

CLICKS, COUNTS, ECHO = "clicks", "counts", "echo"
LOGS = (CLICKS, COUNTS, ECHO)
COUNTING, SUMMING = "counting", "summing"
KEYS, STEP = 150, 7919
EVERY = "8 seconds"
TIMEOUT_MS = 600_000


def main() -> None:
    drive(ClogDataSource, begin, finish)


def opened(world: World, name: str) -> Log:
    return Log.open(world.url_of(name), world.storage_options)


def rows_of(start: int, count: int) -> list[dict[str, object]]:
    """Records of the input from number ``start`` on: each follows from its number alone."""
    return [{"key": f"k{n * STEP % KEYS}", "value": str(n)} for n in range(start, start + count)]


def begin(spark: SparkSession, world: World) -> list[StreamingQuery]:
    return [job.trigger(processingTime=EVERY).start() for job in jobs(spark, world)]


def finish(spark: SparkSession, world: World) -> None:
    for job in jobs(spark, world):
        job.trigger(availableNow=True).start().awaitTermination()


def jobs(spark: SparkSession, world: World) -> list[DataStreamWriter]:
    counted = F.count("*")
    summed = F.sum(F.col("value").cast("string").cast("long"))
    return [job(spark, world, COUNTING, counted), job(spark, world, SUMMING, summed)]


def job(spark: SparkSession, world: World, name: str, of_each: Column) -> DataStreamWriter:
    """A query that keeps one value for each key, and writes those that changed."""
    given = {"storage_options": json.dumps(world.storage_options)}

    def write(batch: DataFrame, transaction: BatchTransaction, _: int) -> None:
        for log in (COUNTS, ECHO):
            transaction.write(batch, world.url_of(log))

    read = spark.readStream.format("clog").options(startingOffsets="earliest", **given)
    clicks = read.load(world.url_of(CLICKS))
    state = clicks.groupBy(F.col("key").cast("string").alias("key")).agg(of_each.alias("value"))
    key = F.concat(F.lit(f"{name}/"), F.col("key")).alias("key")
    changed = state.select(key, F.col("value").cast("string").alias("value"))
    home = world.url_of(COUNTS)
    transact = transact_batches(home, write, timeout_ms=TIMEOUT_MS, writerId=name, **given)
    written = changed.writeStream.outputMode("update").foreachBatch(transact)
    return written.option("checkpointLocation", str(world.checkpoint(name)))


if __name__ == "__main__":
    main()
