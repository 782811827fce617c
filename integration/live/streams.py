"""The Spark side: a stream that writes, one that keeps up with it, one that begins at the start."""

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from sequence import DIGITS, FACTOR, PADDING, TOMBSTONE_EVERY, fold


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # A machine that is busy with all this may take longer than 15 s to answer on a socket.
    os.environ["SPARK_AUTH_SOCKET_TIMEOUT"] = "120"
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("clog live")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "2g")
        .config("spark.python.authenticate.socketTimeout", "120s")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def write(spark: SparkSession, url: str, work: Path, *, first: int, keys: int, rate: int):
    """Appends the records from number ``first`` on, in their order, ``rate`` a second."""
    source = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rate)
        .option("numPartitions", 1)  # else numbers are dealt out to tasks, and order is lost
        .load()
        .selectExpr(f"value + {first} as n")
    )
    value = f"concat(lpad(cast(n as string), {DIGITS}, '0'), '{PADDING}')"
    records = source.selectExpr(
        f"cast(pmod(n * {FACTOR}, {keys}) as string) as key",
        f"if(n % {TOMBSTONE_EVERY} = 0, null, {value}) as value",
    )
    return (
        records.writeStream.format("clog")
        .option("checkpointLocation", str(work / "writer"))
        .trigger(processingTime="1 second")
        .start(url)
    )


@dataclass
class KeepUp:
    """Reads from ``starts`` on, and notes every offset."""

    starts: dict[int, int]
    offsets: dict[int, list[np.ndarray]] = field(default_factory=dict)
    query: StreamingQuery | None = None

    def start(self, spark: SparkSession, url: str, work: Path) -> None:
        frame = (
            spark.readStream.format("clog")
            .option("startingOffsets", json.dumps(self.starts))
            .option("columns", "partition,offset")
            .option("pollInterval", "0s")  # so that processAllAvailable sees all
            .load(url)
        )
        self.query = _each(frame, work / "keep-up", self._note)

    def problems(self, ends: dict[int, int]) -> tuple[int, int, int]:
        """(records read, missing, read more than once)."""
        read = missing = twice = 0
        for p, end in ends.items():
            seen = np.concatenate(self.offsets.get(p, [np.empty(0, np.int64)]))
            unique = np.unique(seen)
            read += len(seen)
            twice += len(seen) - len(unique)
            start = self.starts[p]
            missing += end - start - np.count_nonzero((start <= unique) & (unique < end))
        return read, missing, twice

    def _note(self, rows: pa.Table) -> None:
        partitions = rows.column("partition").to_numpy()
        offsets = rows.column("offset").to_numpy()
        for p in np.unique(partitions):
            self.offsets.setdefault(int(p), []).append(offsets[partitions == p])


@dataclass
class FromStart:
    """Reads from the log's start, while it is cleaned, and folds what it reads into a table."""

    table: np.ndarray
    records: int = 0
    query: StreamingQuery | None = None

    def start(self, spark: SparkSession, url: str, work: Path, *, batch: int) -> None:
        frame = (
            spark.readStream.format("clog")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", batch)
            .option("pollInterval", "0s")
            .option("columns", "partition,offset,key,value")
            .load(url)
            .selectExpr("partition", "offset", "key", f"substring(value, 1, {DIGITS}) as value")
        )
        self.query = _each(frame, work / "from-start", self._fold)

    def _fold(self, rows: pa.Table) -> None:
        ordered = rows.sort_by([("partition", "ascending"), ("offset", "ascending")])
        self.records += fold(self.table, ordered.to_batches())


def _each(frame: DataFrame, checkpoint: Path, take) -> StreamingQuery:
    def each_batch(df: DataFrame, _batch_id: int) -> None:
        take(df.toArrow())

    return (
        frame.writeStream.foreachBatch(each_batch)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="1 second")
        .start()
    )
