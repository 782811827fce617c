"""Batch reads and writes in Spark: clog beside Parquet files with the same rows, columns and codec.

Reads go to the sink `noop`. `stored columns` are those that an object stores, `all columns` those
of Spark's Kafka source: the others are constants for a log and are made, shipped and thrown away
for every row. Writes take their rows from Parquet files; clog alone syncs its files. `Python that
decodes nothing` and `Python that encodes nothing` ship the same batch again and again, or throw
away what they are given: what Spark's API for Python leaves over.
"""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from harness import data
from harness.measure import Result, seconds
from harness.spark import reading, session

TITLE = "Batches in Spark beside Parquet files"
ENVIRONMENT = "own"
SIZES = {
    "smallest": {"rows": 2_000, "rounds": 1},
    "quick": {"rows": 1_000_000, "rounds": 3},
    "full": {"rows": 4_000_000, "rounds": 7},
}
STORED = ("key", "value", "timestamp")
FLOOR = "Parquet files (floor)"
TASKS, BATCH_ROWS = 8, 10_000


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    rows, rounds = size["rows"], size["rounds"]
    log = make_log(folder, rows)
    with session() as spark:
        spark.dataSource.register(hollow_source(rows))
        for what in ("stored", "all"):
            options = {"columns": ",".join(STORED)} if what == "stored" else {}
            clog = partial(_load, spark, log, options)
            clog().write.parquet(str(folder / what))
            frames = {
                "clog": clog,
                FLOOR: partial(spark.read.parquet, str(folder / what)),
                "Python that decodes nothing": partial(_hollow, spark, clog().schema),
            }
            candidates = {who: reading(rows, frame) for who, frame in frames.items()}
            result.compare(f"read, {what} columns", "thousand rows/s", candidates, rounds=rounds)
        taken = spark.read.parquet(str(folder / "rows"))
        formats = {"clog": "clog", FLOOR: "parquet", "Python that encodes nothing": "hollow"}
        candidates = {
            who: partial(_written, rows, taken.write.format(name), folder / f"to-{name}")
            for who, name in formats.items()
        }
        result.compare("write", "thousand rows/s", candidates, rounds=rounds)


def make_log(folder: Path, rows: int) -> str:
    """A log of these rows, and Parquet files with them; returns the log's URL."""
    from clog.storage import Log

    log = Log.create(str(folder / "log"), partitions=4)
    data.write_parquet(folder / "rows", data.batches(rows, rows // 4, 100))
    for table in data.batches(rows, rows // 4, 100):
        log.append(table)
    return log.url


def _load(spark: Any, url: str, options: dict[str, str]) -> Any:
    return spark.read.format("clog").options(**options).load(url)


def _hollow(spark: Any, schema: Any) -> Any:
    return spark.read.format("hollow").schema(schema).load()


def _written(rows: int, writer: Any, place: Path) -> float:
    """Thousand rows a second, into a place that is not there yet."""
    shutil.rmtree(place, ignore_errors=True)
    return rows / 1e3 / seconds(lambda: writer.mode("append").save(str(place)))


def hollow_source(rows: int) -> Any:
    """A source and a sink whose batches cost nothing to make or to keep; made here, so that workers
    get them by value.
    """
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        InputPartition,
        WriterCommitMessage,
    )

    tasks, batch_rows = TASKS, BATCH_ROWS

    class Reader(DataSourceReader):
        def __init__(self, schema):
            self.schema = schema

        def partitions(self):
            return [InputPartition(i) for i in range(tasks)]

        def read(self, partition):  # noqa: ARG002
            from pyspark.sql.pandas.types import to_arrow_schema

            schema = to_arrow_schema(self.schema, timezone="UTC")
            values = {"key": b"k" * 16, "value": b"v" * 84, "topic": "log", "timestamp": 1}
            arrays = [
                pa.array([values.get(field.name, 0)] * batch_rows, field.type) for field in schema
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            for start in range(0, rows // tasks, batch_rows):
                yield batch.slice(0, min(batch_rows, rows // tasks - start))

    class Writer(DataSourceArrowWriter):
        def write(self, iterator):
            for _ in iterator:
                pass
            return WriterCommitMessage()

        def commit(self, messages):
            pass

    class Hollow(DataSource):
        @classmethod
        def name(cls):
            return "hollow"

        def reader(self, schema):
            return Reader(schema)

        def writer(self, schema, overwrite):  # noqa: ARG002
            return Writer()

    return Hollow
