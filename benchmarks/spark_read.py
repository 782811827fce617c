"""Measures reading a log in Spark beside Parquet files with the same rows, columns and codec.

    python benchmarks/spark_read.py --rows 4000000 --repeat 7

Both go to the sink `noop` on local[2], in turn within each round, so that a disturbed moment of the
machine hits both; what counts is the ratio within each round. `stored` reads the columns that an
object stores, `all` those of Spark's Kafka source: the others are constants for a log and must be
made, shipped and thrown away for every row. `source` is a Python data source that ships ready-made
batches: what Spark's API itself leaves over.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa

VALUE_WORDS, WORD_BYTES = 4, 21
BATCH_ROWS = 16_384
STORED = ("key", "value", "timestamp")


def records(rows):
    """Records of about 100 bytes that compress by about 2.5."""
    random = np.random.default_rng(1)
    letters = random.integers(97, 123, (5000, WORD_BYTES), dtype=np.uint8)
    values = letters[random.integers(0, 5000, (rows, VALUE_WORDS))].reshape(rows, -1)
    keys = np.char.add("key-", np.char.zfill(random.integers(0, 10**9, rows).astype("U"), 12))
    offsets = np.arange(rows + 1, dtype=np.int32) * values.shape[1]
    value = pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(values.tobytes())]
    )
    return pa.table({"key": pa.array(keys).cast(pa.binary()), "value": value})


def make(folder, rows):
    """The log, in 8 objects; returns its URL."""
    from clog.storage import Log

    url = f"{folder}/orders"
    log = Log.create(url, partitions=4)
    table = records(rows)
    for start in range(0, rows, -(-rows // 8)):
        log.append(table.slice(start, -(-rows // 8)))
    return url


def ready_made(rows):
    """A source whose batches cost nothing to make; made here, so that workers get it by value."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def partitions(self):
            return [InputPartition(i) for i in range(8)]

        def read(self, partition):  # noqa: ARG002
            key, value = pa.array([b"k" * 16], pa.binary()), pa.array([b"v" * 84], pa.binary())
            stamp = pa.array([1], pa.timestamp("us", "UTC"))
            arrays = [a.take(pa.array(np.zeros(BATCH_ROWS, int))) for a in (key, value, stamp)]
            batch = pa.RecordBatch.from_arrays(arrays, list(STORED))
            for start in range(0, rows // 8, BATCH_ROWS):
                yield batch.slice(0, min(BATCH_ROWS, rows // 8 - start))

    class Source(DataSource):
        @classmethod
        def name(cls):
            return "ready_made"

        def schema(self):
            return "key binary, value binary, timestamp timestamp"

        def reader(self, schema):  # noqa: ARG002
            return Reader()

    return Source


def session():
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.parquet.compression.codec", "zstd").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def seconds(frame):
    start = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = make(folder, args.rows)
        spark = session()
        spark.dataSource.register(ready_made(args.rows))
        log = spark.read.format("clog")
        for name, frame in {
            "all": log.load(url),
            "stored": log.option("columns", ",".join(STORED)).load(url),
        }.items():
            frame.write.parquet(f"{folder}/{name}")
        frames = {
            "parquet, stored": lambda: spark.read.parquet(f"{folder}/stored"),
            "clog, stored": lambda: log.option("columns", ",".join(STORED)).load(url),
            "source, stored": lambda: spark.read.format("ready_made").load(),
            "parquet, all": lambda: spark.read.parquet(f"{folder}/all"),
            "clog, all": lambda: spark.read.format("clog").load(url),
        }
        for frame in frames.values():
            seconds(frame())  # Warm: classes, workers, page cache.
        rounds = [{n: seconds(f()) for n, f in frames.items()} for _ in range(args.repeat)]
        spark.stop()
    for name in frames:
        rates = sorted(args.rows / r[name] / 1e6 for r in rounds)
        base = f"parquet, {name.partition(', ')[2]}"
        ratios = sorted(r[base] / r[name] for r in rounds)
        print(
            f"{name:16} {statistics.median(rates):6.2f} M rows/s"
            f" ({rates[0]:.2f} to {rates[-1]:.2f}),"
            f" {statistics.median(ratios):.2f} of parquet ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
