"""A warm micro-batch from a log to a log, beside one of a Python source and sink that do nothing.

Three streams get one record each in turn: one from a source that detects a new record by the length
of a file to a sink that discards it, and two from clog to clog, with a short and a long history of
commits. A figure is Spark's `triggerExecution`: from asking what is new until the batch is recorded
as done. *Over a floor of nothing* is the difference within each round.
"""

import shutil
from pathlib import Path
from typing import Any

from harness.measure import Result, Row
from harness.spark import session

TITLE = "What clog adds to a micro-batch"
ENVIRONMENT = "own"
ENGINE = "Spark"
SIZES = {
    "smallest": {"batches": 2, "skip": 1, "commits": 20},
    "quick": {"batches": 30, "skip": 10, "commits": 1_000},
    "full": {"batches": 200, "skip": 20, "commits": 10_000},
}
FEW = 10
FLOOR = "nothing (floor)"
CONFIG = {"spark.sql.streaming.pollingDelay": "100ms"}
"""Two queries are idle while the third one runs; Spark's default asks them 45 times a second."""


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    counter = folder / "counter"
    counter.touch()
    few, many = (make_logs(folder, commits) for commits in (FEW, size["commits"]))
    with session(config=CONFIG) as spark:
        spark.dataSource.register(hollow_source(counter))
        streams = {
            "clog": _Stream(spark, "clog", few, lambda: append(few)),
            FLOOR: _Stream(spark, "nothing", counter, lambda: grow(counter)),
            f"clog, {size['commits']:,} commits": _Stream(
                spark, "clog", many, lambda: append(many)
            ),
        }
        for stream in [*streams.values()] * size["skip"]:
            stream.batch_ms()
        candidates = {who: stream.batch_ms for who, stream in streams.items()}
        try:
            result.compare("micro-batch", "ms", candidates, rounds=size["batches"], lower=True)
        finally:
            _add_difference(result)
        for stream in streams.values():
            stream.query.stop()


def _add_difference(result: Result) -> None:
    values = {row.who: row.values for row in result.rows}
    if not values:
        return  # Stopped before the first round was complete.
    over = [ours - theirs for ours, theirs in zip(values["clog"], values[FLOOR], strict=True)]
    result.rows.append(Row("over a floor of nothing", "clog", "ms", over, lower=True))


class _Stream:
    """A query that goes on as fast as it can."""

    def __init__(self, spark: Any, kind: str, place: Path, feed: Any) -> None:
        self.feed = feed
        self.seen = -1
        source = spark.readStream.format(kind)
        if kind == "clog":
            source = source.option("pollInterval", "0s")
        self.query = (
            source.load(str(place))
            .select("key", "value")
            .writeStream.format(kind)
            .option("checkpointLocation", f"{place}-checkpoint")
            .trigger(processingTime="0 seconds")
            .start(f"{place}-copy")
        )
        self.query.processAllAvailable()

    def batch_ms(self) -> float:
        """Feeds it, and waits for its next batch with rows."""
        self.feed()
        while True:
            self.query.processAllAvailable()
            last = self.query.lastProgress
            if last is not None and last.batchId > self.seen and last.numInputRows:
                self.seen = last.batchId
                return float(last.durationMs["triggerExecution"])


def make_logs(folder: Path, commits: int) -> Path:
    """Two logs with so many commits, the source and the target; returns where the first one is."""
    from clog.storage import Log

    place = folder / f"log-{commits}"
    log = Log.create(str(place), partitions=1, storage_options={"fsync": False})
    for i in range(commits):
        log.append([{"key": f"key-{i % 100}", "value": "value"}])
    shutil.copytree(place, f"{place}-copy")
    return place


def append(place: Path) -> None:
    from clog.storage import Log

    Log.open(str(place)).append([{"key": "key", "value": "value"}])


def grow(counter: Path) -> None:
    with counter.open("ab") as file:
        file.write(b".")


def hollow_source(counter: Path) -> Any:
    """A source that has a record more whenever the file ``counter`` has a byte more, and a sink.
    Classes are made in functions, so that workers get them by value.
    """
    from pyspark.sql.datasource import DataSource

    reader, writer = _hollow_reader(counter), _hollow_writer()

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


def _hollow_reader(counter: Path) -> Any:
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

            start, end = partition.value
            key = pa.array([b"key"] * (end - start), pa.binary())
            yield pa.RecordBatch.from_arrays([key, key], names=["key", "value"])

    return Reader


def _hollow_writer() -> Any:
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
