"""The state of a stream in Spark: clog's state store in `foreachBatch` beside Spark's own store.

Both keep the latest value of each key of a stream of Parquet files, one for each micro-batch: the
first has every key, each later one some that changed. Spark's is `max_by` in its RocksDB state
store, with changelog checkpoints, in update mode to `noop`; clog's is a `StateStore` on the driver,
which puts the rows of the batch and commits. A figure is the time from the trigger to the batch's
commit, including the checkpoint's files; runs follow each other, after a warm-up to `noop`. Only
clog's state can be read as a table meanwhile, and only clog syncs its files.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import data
from harness.measure import Result, Row
from harness.spark import session

TITLE = "The state of a stream in Spark"
ENVIRONMENT = "spark"
ENGINE = "Spark"
SIZES = {
    "smallest": {"keys": 500, "changes": 100, "batches": 2},
    "quick": {"keys": 50_000, "changes": 1_000, "batches": 8},
    "full": {"keys": 300_000, "changes": 1_000, "batches": 30},
}
SKIPPED, RECORD_BYTES = 1, 100
ROCKS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
SCHEMA = "number bigint, key binary, value binary"


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    from pyspark.sql import functions

    from clog.storage import Log, StateStore

    _write(folder / "files", size)
    Log.create(str(folder / "log"), partitions=2)
    with (
        session(config=ROCKS) as spark,
        StateStore(str(folder / "log"), folder / "cache", "bench") as store,
    ):

        def put(frame: Any, _: int) -> None:
            store.put_many(frame.toArrow())
            store.commit()

        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
        stream = source.parquet(str(folder / "files"))
        latest = stream.groupBy("key").agg(functions.max_by("value", "number"))
        writers = {
            "clog": stream.select("key", "value").writeStream.foreachBatch(put),
            "Spark, RocksDB": latest.writeStream.outputMode("update").format("noop"),
        }
        _times(stream.writeStream.format("noop").option("checkpointLocation", str(folder / "warm")))
        found = {}
        for who, writer in writers.items():
            place = str(folder / f"checkpoint-{len(found)}")
            found[who] = _times(writer.option("checkpointLocation", place))
        assert sum(1 for _ in store.scan()) == size["keys"]
    parts = {
        f"batch of {size['keys']:,} new keys": slice(1),
        f"batch of {size['changes']:,} changed keys": slice(1 + SKIPPED, None),
    }
    for what, part in parts.items():
        for who, times in found.items():
            result.rows.append(Row(what, who, "ms", times[part], lower=True))


def _write(folder: Path, size: dict[str, int]) -> None:
    """A file of all keys, then files of some, in the order of their times."""
    random = np.random.default_rng(1)
    folder.mkdir()
    number = 0
    for file in range(1 + SKIPPED + size["batches"]):
        count = size["changes"] if file else size["keys"]
        ids = random.choice(size["keys"], count, replace=False) if file else np.arange(count)
        numbers = pa.array(range(number, number + count), pa.int64())
        columns = {"key": data.keys(ids), "value": data.values(random, count, RECORD_BYTES)}
        path = folder / f"{file:05}.parquet"
        pq.write_table(pa.table({"number": numbers, **columns}), path, compression="zstd")
        os.utime(path, (1_700_000_000 + file,) * 2)
        number += count


def _times(writer: Any) -> list[float]:
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [p for p in query.recentProgress if p.numInputRows]
    return [float(p.durationMs["triggerExecution"]) for p in batches]
