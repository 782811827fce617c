"""Measures what a warm micro-batch from a log to a log takes, beside one of a Python source and
sink that do nothing, and whether it grows with a log's history.

    python benchmarks/micro_batch.py --batches 200 --commits 10000

Three queries run on local[2] and get one record each in turn: `nothing`, and clog from and to logs
with 10 and with ``--commits`` commits. What is printed is Spark's own ``triggerExecution``, the
time from asking the source to noting the commit: median and quartiles, the difference and the ratio
within each round.
"""

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path

from spark_local import session

from clog.storage import Log

WARM_UP = 15


def nothing(counter):
    """A source that has a record more whenever the file ``counter`` has a byte more, and a sink.
    Its classes are made in functions, so that workers get them by value.
    """
    from pyspark.sql.datasource import DataSource

    reader, writer = reader_of_nothing(counter), writer_of_nothing()

    class Source(DataSource):
        @classmethod
        def name(cls):
            return "nothing"

        def schema(self):
            return "key binary, value binary"

        def streamReader(self, schema):  # noqa: ARG002, N802
            return reader()

        def streamWriter(self, schema, overwrite):  # noqa: ARG002, N802
            return writer()

    return Source


def reader_of_nothing(counter):
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

    class Reader(DataSourceStreamReader):
        def initialOffset(self):  # noqa: N802
            return {"0": 0}

        def latestOffset(self, start=None, limit=None):  # noqa: ARG002, N802
            return {"0": counter.stat().st_size}

        def partitions(self, start, end):
            return [InputPartition((start["0"], end["0"]))]

        def read(self, partition):
            import pyarrow as pa

            key = pa.repeat(pa.scalar(b"key", pa.binary()), partition.value[1] - partition.value[0])
            yield pa.RecordBatch.from_arrays([key, key], names=["key", "value"])

    return Reader


def writer_of_nothing():
    from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

    class Writer(DataSourceStreamArrowWriter):
        def write(self, iterator):
            for _ in iterator:
                pass
            return WriterCommitMessage()

        def commit(self, messages, batchId):  # noqa: N803
            pass

        def abort(self, messages, batchId):  # noqa: N803
            pass

    return Writer


def log_with(folder, commits):
    """Two logs with so many commits: a source and a target."""
    log = Log.create(f"{folder}/from-{commits}", partitions=1)
    for i in range(commits):
        log.append([{"key": f"key-{i % 100}", "value": "value"}])
    shutil.copytree(f"{folder}/from-{commits}", f"{folder}/to-{commits}")
    return log


def started(spark, folder, kind, **where):
    """A query of this format that goes on as fast as it can."""
    source = spark.readStream.format(kind).options(**where.get("source", {}))
    return (
        source.load(where.get("path"))
        .select("key", "value")
        .writeStream.format(kind)
        .option("checkpointLocation", f"{folder}/checkpoint-{where['name']}")
        .trigger(processingTime="0 seconds")
        .start(where.get("target", f"{folder}/nowhere"))
    )


def milliseconds(query):
    """Of its batches with rows."""
    return [p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows]


def measured(spark, folder, args):
    """Milliseconds of each batch by query, in the same rounds."""
    counter = Path(folder, "counter")
    counter.touch()
    spark.dataSource.register(nothing(counter))

    def count():
        with counter.open("ab") as file:
            file.write(b".")

    names, feeds = ["nothing"], [count]
    queries = [started(spark, folder, "nothing", name="nothing")]
    for commits in (10, args.commits):
        log = log_with(folder, commits)
        names.append(f"clog, {commits} commits")
        feeds.append(lambda log=log: log.append([{"key": "key", "value": "value"}]))
        queries.append(
            started(
                *(spark, folder, "clog"), name=commits, source={"pollInterval": "0s"},
                path=log.url, target=f"{folder}/to-{commits}",
            )
        )  # fmt: skip
    for query in queries:
        query.processAllAvailable()
    for _ in range(WARM_UP + args.batches):
        for feed, query in zip(feeds, queries, strict=True):
            before = len(milliseconds(query))
            feed()
            while len(milliseconds(query)) == before and query.isActive:
                query.processAllAvailable()
    times = {n: milliseconds(q)[-args.batches :] for n, q in zip(names, queries, strict=True)}
    for query in queries:
        query.stop()
    return times


def quartiles(numbers):
    low, median, high = statistics.quantiles(numbers, n=4)
    return f"{median:.2f} ({low:.2f} to {high:.2f})".replace(".00", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--commits", type=int, default=10_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spark = session()
        times = measured(spark, folder, args)
        spark.stop()
    base, short, long = times.values()
    for name, numbers in times.items():
        print(f"{name:22} {quartiles(numbers)} ms")
    print(f"clog over nothing      {quartiles([b - a for a, b in zip(base, short)])} ms")  # noqa: B905
    print(f"long history / short   {quartiles([b / a for a, b in zip(short, long)])}")  # noqa: B905


if __name__ == "__main__":
    main()
