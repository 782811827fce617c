"""Measures what many micro-batches leave behind: the manifest, opening it, reading one partition.

    python benchmarks/parts/micro_batches.py --batches 20000 --spark-batches 300
    python benchmarks/parts/micro_batches.py --batches 20000 --spark-batches 300 --coalesce-every 0

The first batches come from a Spark stream, the others from the code that Spark's tasks and driver
run for each batch, without Spark around it. With ``--coalesce-every N`` the cleaner does a round
after each N batches; 0: never, the figures without coalescing. A local folder without fsync, a
second of the log's clock between batches.

Printed in so many lines: version, chunks in the manifest, bytes of the newest snapshot
with its pages, and from cold (a new handle) requests and milliseconds of opening, of loading the
whole manifest, and of reading the last partition.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from clog.cleaner import Cleaner
from clog.connector.options import write_options
from clog.connector.write.write_task import TaskIds, plan_write, write_task
from clog.connector.write.writers import ClogStreamWriter
from clog.storage import Log
from clog.storage.format import documents
from clog.storage.format.manifest import read_snapshot
from clog.storage.store import open_store
from clog_testing.counting import CountingStore
from clog_testing.crash import inside

COLUMNS = ("batches", "version", "chunks", "manifest KB", "data MB")
COSTS = ("open", "manifest", "read a partition")


def by_spark(url: str, args: argparse.Namespace) -> None:
    """A stream of so many batches."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").getOrCreate()
    spark.conf.set("spark.sql.shuffle.partitions", args.tasks)
    stream = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=args.rows, numPartitions=args.tasks, startTimestamp=1_000_000)
        .load()
        .selectExpr("string(value % 5000) key", "repeat(string(value), 8) value")
    )
    query = (
        stream.writeStream.format("clog")
        .option("checkpointLocation", f"{url}-checkpoint")
        .option("storage.fsync", "false")
        .start(url)
    )
    while query.lastProgress is None or query.lastProgress["batchId"] < args.spark_batches - 1:
        time.sleep(0.2)
    query.stop()
    spark.stop()


def by_commit_code(url: str, args: argparse.Namespace) -> Iterator[int]:
    """The other batches, as tasks and driver do each; yields the number of those done."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    schema = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
    options = write_options({"path": url, "storage.fsync": "false"})
    writer = ClogStreamWriter(options, schema, overwrite=False)
    rng = np.random.default_rng(args.seed)
    for batch in range(args.spark_batches, args.batches):
        plan = plan_write(options, schema)
        written = []
        for task in range(args.tasks):
            keys = [b"%d" % key for key in rng.integers(0, 5000, args.rows // args.tasks)]
            rows = {"key": pa.array(keys, pa.binary()), "value": pa.array(keys, pa.binary())}
            records = pa.RecordBatch.from_pydict(rows)
            written.append(write_task(plan, iter([records]), TaskIds("query", batch, task)))
        writer.commit(written, batch)
        yield batch + 1


def measured(url: str, partitions: int) -> list[str]:
    """A row of the table."""
    store = CountingStore(open_store(url))
    log, opening = timed(store, lambda: Log.open(store))
    manifest, loading = timed(store, log.handle.manifest)
    _, reading = timed(store, lambda: sum(b.num_rows for b in log.read(partition=partitions - 1)))
    snapshot = log.handle.tip.head.snapshot
    size = 0
    if snapshot is not None:
        pages = read_snapshot(inside(store), snapshot.version).pages
        held = [documents.snapshot_path(snapshot.version), *(page.path for page in pages)]
        size = sum(len(inside(store).get(path)) for path in held)
    chunks = sum(1 for _ in manifest.chunks())
    data_mb = sum(found.size_bytes for found in inside(store).list(documents.DATA)) / 1e6
    return [f"{log.version}", f"{chunks}", f"{size / 1e3:.0f}", f"{data_mb:.1f}"] + [
        f"{requests} GET {ms:.0f} ms" for requests, ms in (opening, loading, reading)
    ]


def timed(store: CountingStore, run) -> tuple[object, tuple[int, float]]:
    """What ran returned; its requests and milliseconds."""
    start = time.perf_counter()
    with store.count() as counts:
        result = run()
    return result, (counts.total(), (time.perf_counter() - start) * 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--spark-batches", type=int, default=0)
    parser.add_argument("--partitions", type=int, default=32)
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--rows", type=int, default=320)
    parser.add_argument("--policy", default="compact")
    parser.add_argument("--coalesce-every", type=int, default=200)
    parser.add_argument("--lines", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="clog-micro-batches-"))
    url = str(folder / "log")
    config = {"cleanup.policy": args.policy}
    log = Log.create(url, args.partitions, config, storage_options={"fsync": False})
    cleaner, cleaning_s, step = Cleaner(log), 0.0, max(1, args.batches // args.lines)
    print(" | ".join((*COLUMNS, *COSTS)), flush=True)
    try:
        if args.spark_batches:
            by_spark(url, args)
        started = time.perf_counter()
        for done in by_commit_code(url, args):
            if args.coalesce_every and done % args.coalesce_every == 0:
                begun = time.perf_counter()
                cleaner.run_once()
                cleaning_s += time.perf_counter() - begun
            if done % step == 0:
                print(" | ".join((f"{done}", *measured(url, args.partitions))), flush=True)
        taken_s = time.perf_counter() - started
        print(f"{taken_s:.0f} s, {cleaning_s:.0f} s of them in the cleaner's rounds")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
