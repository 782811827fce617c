"""A Spark driver of a soak: a query that writes laps into the log, and one that copies the log.

    python soak_driver.py WORLD PIDS

PIDS is the file for the pids of the driver and of its JVM; it is there once the queries run. Told
to stop, it ends the first query, and copies all that is left.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from driver import TASKS, session
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from soaked import COPY, KEYS, PADDING, SOAK, SPARK, STEP, TOMBSTONE_EVERY
from world import World

from clog.connector import ClogDataSource

EVERY = "10 seconds"


def main() -> None:
    world, pids = World.load(sys.argv[1]), Path(sys.argv[2])
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    spark = session(world)
    spark.dataSource.register(ClogDataSource)
    jvm = spark.sparkContext._gateway.proc.pid  # noqa: SLF001 - it is to be killed
    pids.write_text(f"{os.getpid()} {jvm}")
    writing = start(world, laps(spark), SOAK)
    copying = start(world, copied(spark, world), COPY)
    while not stopping:
        time.sleep(0.1)
        for query in (writing, copying):
            if (failure := query.exception()) is not None:
                raise failure
    writing.stop()
    copying.stop()
    # A batch that was cut off is in the log or not: what is begun is done first.
    finish(world, laps(spark), SOAK)
    finish(world, copied(spark, world), COPY)
    spark.stop()


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


def start(world: World, writer: DataStreamWriter, log: str) -> StreamingQuery:
    return into(world, writer, log).trigger(processingTime=EVERY).start(world.url_of(log))


def finish(world: World, writer: DataStreamWriter, log: str) -> None:
    """Runs what was begun again, and copies all there is."""
    into(world, writer, log).trigger(availableNow=True).start(world.url_of(log)).awaitTermination()


if __name__ == "__main__":
    main()
