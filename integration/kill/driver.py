"""A Spark driver with two streaming queries, one into each log, from a source that gives the same
rows again for a batch that is run again.

    python driver.py WORLD PIDS

PIDS is the file for the pids of the driver and of its JVM; it is there once the queries run.
"""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.query import StreamingQuery
from records import (
    BATCH,
    COLD_FROM,
    COLD_KEYS,
    HOT_KEYS,
    PADDING,
    SPARK,
    STEP,
    TOMBSTONE_EVERY,
)
from sink import KilledSource
from world import LOGS, World

TASKS = 2


def main() -> None:
    drive(KilledSource, lambda spark, world: [start(spark, world, log) for log in LOGS])


def drive(
    source: type[DataSource],
    begin: Callable[[SparkSession, World], Sequence[StreamingQuery]],
    finish: Callable[[SparkSession, World], None] = lambda *_: None,
) -> None:
    """Runs what the command line names: queries until SIGTERM, then what has to be finished.

    Raises:
        StreamingQueryException: a query failed.
    """
    world, pids = World.load(sys.argv[1]), Path(sys.argv[2])
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    spark = session(world)
    spark.dataSource.register(source)
    jvm = spark.sparkContext._gateway.proc.pid  # noqa: SLF001 - it is to be killed
    pids.write_text(f"{os.getpid()} {jvm}")
    queries = begin(spark, world)
    while not stopping:
        time.sleep(0.1)
        for query in queries:
            if (failure := query.exception()) is not None:
                raise failure
    for query in queries:
        query.stop()
    finish(spark, world)
    spark.stop()


def session(world: World) -> SparkSession:
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    logging.getLogger("py4j").setLevel(logging.ERROR)
    spark = (
        SparkSession.builder.appName("kill")
        .master(f"local[{TASKS},4]")
        .config("spark.sql.shuffle.partitions", TASKS)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.sql.warehouse.dir", str(Path(world.work, "warehouse")))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def rows(spark: SparkSession) -> DataFrame:
    """The records of `records.batch_of`, in SQL. A key never comes up in two tasks of a batch,
    which have no order but that of their numbers (S44).
    """
    n = F.col("value")
    name = F.concat(F.lit(f"{SPARK}:"), n.cast("string"))
    is_hot = F.floor(n / 2) % 2 == 1
    number = F.when(is_hot, n * STEP % HOT_KEYS).otherwise(COLD_FROM + n * STEP % COLD_KEYS)
    key = F.concat(F.lit(f"{SPARK}/"), number.cast("string"))
    value = F.when(n % TOMBSTONE_EVERY != 0, F.concat(name, F.lit(f":{PADDING}")))
    header = F.struct(F.lit("id").alias("key"), name.cast("binary").alias("value"))
    return (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", BATCH)
        .option("numPartitions", TASKS)
        .load()
        .select(key.alias("key"), value.alias("value"), F.array(header).alias("headers"))
    )


def start(spark: SparkSession, world: World, log: str) -> StreamingQuery:
    return (
        rows(spark)
        .writeStream.format("clog-killed")
        .option("writerId", SPARK)
        .option("storage_options", json.dumps(world.storage_options))
        .option("checkpointLocation", str(world.checkpoint(log)))
        .trigger(processingTime="200 milliseconds")
        .start(world.url_of(log))
    )


if __name__ == "__main__":
    main()
