"""Batch reads and writes in Spark: clog beside Parquet files with the same rows, columns and codec.

Reads go to the sink `noop`. *Stored columns* are those that an object stores, *all columns* those
of Spark's Kafka source: the others are constants for a log, and are made, transferred and discarded
for every row. `read_log` is Spark's own scan of the log's objects, planned again for each read, as
for a new version. Writes take their rows from Parquet files; only clog syncs its files. *Python
that decodes nothing* and *Python that encodes nothing* transfer the same batch again and again, or
discard what they get: that is what Spark's Python API allows. *By CPU time* counts the time of all
processes, which is more reliable on a machine with other work.
"""

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from harness import data
from harness.machine import cpu_seconds
from harness.measure import Result, Row, seconds
from harness.spark import session

TITLE = "Batches in Spark beside Parquet files"
ENVIRONMENT = "own"
ENGINE = "Spark"
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
                "clog, read_log": partial(_native, spark, log, options),
                FLOOR: partial(spark.read.parquet, str(folder / what)),
                "Python that decodes nothing": partial(_hollow, spark, clog().schema),
            }
            reads = {who: partial(_read, frame) for who, frame in frames.items()}
            _compare(result, f"read, {what} columns", rows, reads, rounds=rounds)
        taken = spark.read.parquet(str(folder / "rows"))
        formats = {"clog": "clog", FLOOR: "parquet", "Python that encodes nothing": "hollow"}
        writes = {
            who: partial(_write, taken, name, folder / f"to-{name}")
            for who, name in formats.items()
        }
        _compare(result, "write", rows, writes, rounds=rounds)


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


def _native(spark: Any, url: str, options: dict[str, str]) -> Any:
    from clog.connector import native, read_log

    native.forget()
    return read_log(spark, url, **options)


def _hollow(spark: Any, schema: Any) -> Any:
    return spark.read.format("hollow").schema(schema).load()


def _read(frame: Callable[[], Any]) -> None:
    frame().write.format("noop").mode("overwrite").save()


def _write(taken: Any, name: str, place: Path) -> None:
    """To a place that is not there yet: removing the last one takes next to nothing."""
    shutil.rmtree(place, ignore_errors=True)
    taken.write.format(name).mode("append").save(str(place))


def _compare(
    result: Result, what: str, rows: int, acts: Mapping[str, Callable[[], None]], *, rounds: int
) -> None:
    """By time and by CPU time."""
    spent: dict[str, list[float]] = {who: [] for who in acts}

    def timed(who: str) -> float:
        cpu_s = cpu_seconds()
        elapsed_s = seconds(acts[who])
        spent[who].append(rows / 1e3 / (cpu_seconds() - cpu_s))
        return rows / 1e3 / elapsed_s

    candidates = {who: partial(timed, who) for who in acts}
    try:
        result.compare(what, "thousand rows/s", candidates, rounds=rounds)
    finally:
        complete = min(len(rates) for rates in spent.values())
        for who, rates in spent.items() if complete > 1 else ():
            unit = "thousand rows/CPU second"
            result.rows.append(Row(f"{what}, by CPU time", who, unit, rates[1:complete]))


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
