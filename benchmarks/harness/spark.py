"""Spark as all scenarios run it: two threads, one shuffle partition each, zstd everywhere."""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from peers.environments import jars

CORES = 2
START_S, BATCH_MAX_S = 60, 5
DELTA_CONFIG = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.databricks.delta.snapshotPartitions": str(CORES),
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


@contextmanager
def session(peers: str | None = None, config: Mapping[str, str] | None = None) -> Iterator[Any]:
    """A local session with the jars of a profile; stopped at the end."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.session.timeZone": "UTC",
        **({"spark.jars": ",".join(map(str, jars(peers).iterdir()))} if peers else {}),
        **(config or {}),
    }
    builder = SparkSession.builder.master(f"local[{CORES}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def drain(frame: Any) -> None:
    """Makes every row of a DataFrame, and throws it away; Delta Lake refuses the sink `noop`."""
    frame._jdf.queryExecution().toRdd().count()  # noqa: SLF001


def batch_seconds(writer: Any) -> float:
    """Runs a stream over all there is; the seconds of its batches, without the query's start."""
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(p.durationMs["triggerExecution"] for p in query.recentProgress) / 1e3


def batch_times_ms(writer: Any, batches: int, skip: int) -> list[float]:
    """Runs a stream at a trigger each second; how long its batches with rows took, but the first
    ones.
    """
    query = writer.trigger(processingTime="1 second").start()
    end = time.monotonic() + START_S + BATCH_MAX_S * (skip + batches)
    found: list[Any] = []
    while len(found) < skip + batches:
        if query.exception() is not None:
            raise query.exception()
        if time.monotonic() > end:
            raise TimeoutError(f"{len(found)} batches instead of {skip + batches}")
        time.sleep(0.2)
        found = [p for p in query.recentProgress if p.numInputRows > 0]
    query.stop()
    return [float(p.durationMs["triggerExecution"]) for p in found[skip:]]
