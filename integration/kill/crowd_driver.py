"""A Spark driver of a crowd: a query that writes into the log.

    python crowd_driver.py WORLD PIDS

PIDS is the file for the pids of the driver and of its JVM; it is there once the query runs. Told to
stop, it ends the query, and does what that has begun.
"""

import json

from crowded import CROWD, SPARK, SPARK_ROWS
from driver import TASKS, drive
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from world import World

from clog.connector import ClogDataSource

EVERY = "5 seconds"


def main() -> None:
    drive(ClogDataSource, begin, finish)


def begin(spark: SparkSession, world: World) -> list[StreamingQuery]:
    return [stream(spark, world).trigger(processingTime=EVERY).start(world.url_of(CROWD))]


def finish(spark: SparkSession, world: World) -> None:
    """A batch that was cut off is in the log or not: what is begun is done."""
    once = stream(spark, world).trigger(availableNow=True).start(world.url_of(CROWD))
    once.awaitTermination()


def stream(spark: SparkSession, world: World) -> DataStreamWriter:
    name = F.concat(F.lit(f"{SPARK}/"), F.col("value").cast("string"))
    value = F.concat(F.lit(f"{SPARK}:"), F.col("value").cast("string"), F.lit(":0"))
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", SPARK_ROWS)
        .option("numPartitions", TASKS)
        .load()
        .select(name.alias("key"), value.alias("value"))
    )
    return (
        rows.writeStream.format("clog")
        .option("writerId", SPARK)
        .option("storage_options", json.dumps(world.storage_options))
        .option("checkpointLocation", str(world.checkpoint(CROWD)))
    )


if __name__ == "__main__":
    main()
