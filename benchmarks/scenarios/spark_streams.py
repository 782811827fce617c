"""Streaming source and sink: clog beside Spark's Kafka connector, Delta Lake and plain Parquet.

*Sink* is a stream from Parquet files into each store, in one micro-batch; *source* is a stream of
what was written, into nothing. Rates are those of the batches, without the query's start. *Full
table* is what an application reads that starts with nothing: the newest record of each key, from
the beginning of the log; Kafka's records are grouped by key in Spark, as its users do. All compress
with zstd; only clog syncs its files before it commits. Kafka's producer has a larger `batch.size`
and `linger.ms` than by default; the broker runs beside Spark's two threads, on the same cores.
"""

import shutil
from pathlib import Path
from typing import Any

from harness import data
from harness.measure import Result, rate
from harness.spark import DELTA_CONFIG, batch_seconds, drain, session
from peers.environments import VERSIONS
from peers.kafka import Broker

TITLE = "Streaming source and sink in Spark"
ENVIRONMENT = "spark"
ENGINE = "Spark"
SIZES = {
    "smallest": {"rows": 2_000, "rows_1k": 500, "rounds": 1},
    "quick": {"rows": 500_000, "rows_1k": 100_000, "rounds": 2},
    "full": {"rows": 3_000_000, "rows_1k": 400_000, "rounds": 3},
}
SCHEMA = "key binary, value binary"
PRODUCER = {
    "kafka.compression.type": "zstd",
    "kafka.batch.size": str(256 << 10),
    "kafka.linger.ms": "20",
}


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    result.versions |= {"Apache Kafka": VERSIONS["kafka"], "Delta Lake": VERSIONS["delta"]}
    with Broker(folder / "broker") as broker, session("spark", DELTA_CONFIG) as spark:
        for record_bytes, rows in ((100, size["rows"]), (1024, size["rows_1k"])):
            place = folder / f"records-{record_bytes}"
            tables = data.batches(rows, rows, record_bytes)
            data.write_parquet(place / "input", tables)
            stores = _Stores(spark, place, broker.address, f"records-{record_bytes}")
            _sinks(stores, result, rows, record_bytes, size["rounds"])
            _sources(stores, result, rows, record_bytes, size["rounds"])
            _full_tables(stores, result, rows, record_bytes, size["rounds"])
            shutil.rmtree(place)


class _Stores:
    """Where each round's sinks write; the sources read the last round's."""

    def __init__(self, spark: Any, folder: Path, address: str, name: str) -> None:
        self.spark = spark
        self.folder = folder
        self.address = address
        self.name = name
        self.round = 0

    def place(self, who: str) -> str:
        return str(self.folder / f"{who}-{self.round}")

    def write(self, who: str, options: dict[str, str]) -> float:
        stream = self.spark.readStream.schema(SCHEMA).parquet(str(self.folder / "input"))
        checkpoint = self.folder / f"checkpoint-{who}-{self.round}"
        writer = stream.writeStream.format(who).options(**options)
        return batch_seconds(writer.option("checkpointLocation", str(checkpoint)))

    def read(self, stream: Any, columns: tuple[str, ...] = ()) -> float:
        checkpoint = self.folder / "checkpoint-source"
        shutil.rmtree(checkpoint, ignore_errors=True)
        frame = stream.select(*columns) if columns else stream
        writer = frame.writeStream.format("noop")
        return batch_seconds(writer.option("checkpointLocation", str(checkpoint)))


def _sinks(stores: _Stores, result: Result, rows: int, record_bytes: int, rounds: int) -> None:
    def parquet() -> float:
        stores.round += 1
        return rows / stores.write("parquet", {"path": stores.place("parquet")}) / 1e3

    def to(who: str) -> float:
        return rows / stores.write(who, {"path": stores.place(who)}) / 1e3

    def kafka() -> float:
        topic = f"{stores.name}-{stores.round}"
        options = {"kafka.bootstrap.servers": stores.address, "topic": topic, **PRODUCER}
        return rows / stores.write("kafka", options) / 1e3

    result.compare(
        f"sink, {record_bytes} B",
        "thousand records/s",
        {
            "Parquet files (floor)": parquet,
            "clog": lambda: to("clog"),
            "Apache Kafka": kafka,
            "Delta Lake": lambda: to("delta"),
        },
        rounds=rounds,
    )


def _sources(stores: _Stores, result: Result, rows: int, record_bytes: int, rounds: int) -> None:
    topic = f"{stores.name}-{stores.round}"

    def each(seconds: float) -> float:
        return rows / seconds / 1e3

    def clog(**options: str) -> float:
        stream = stores.spark.readStream.format("clog").option("startingOffsets", "earliest")
        return each(stores.read(stream.options(**options).load(stores.place("clog"))))

    def kafka(*columns: str) -> float:
        options = {"kafka.bootstrap.servers": stores.address, "subscribe": topic}
        stream = stores.spark.readStream.format("kafka").options(**options)
        return each(stores.read(stream.option("startingOffsets", "earliest").load(), columns))

    def parquet() -> float:
        stream = stores.spark.readStream.schema(SCHEMA).parquet(stores.place("parquet"))
        return each(stores.read(stream))

    def delta() -> float:
        return each(
            stores.read(stores.spark.readStream.format("delta").load(stores.place("delta")))
        )

    result.compare(
        f"source, {record_bytes} B",
        "thousand records/s",
        {
            "Parquet files (floor)": parquet,
            "clog": lambda: clog(columns="key,value"),
            "clog, all columns": clog,
            "Apache Kafka": lambda: kafka("key", "value"),
            "Apache Kafka, all columns": kafka,
            "Delta Lake": delta,
        },
        rounds=rounds,
    )


def _full_tables(
    stores: _Stores, result: Result, rows: int, record_bytes: int, rounds: int
) -> None:
    """Each key is there once, so both end with as many rows as there are records."""
    from pyspark.sql.functions import expr

    topic = f"{stores.name}-{stores.round}"

    def clog() -> None:
        options = {"view": "table", "columns": "key,value"}
        drain(stores.spark.read.format("clog").options(**options).load(stores.place("clog")))

    def kafka() -> None:
        options = {"kafka.bootstrap.servers": stores.address, "subscribe": topic}
        records = stores.spark.read.format("kafka").options(**options).load()
        drain(records.groupBy("key").agg(expr("max_by(value, struct(partition, offset))")))

    result.compare(
        f"full table, {record_bytes} B",
        "thousand records/s",
        {"clog": rate(rows / 1e3, clog), "Apache Kafka": rate(rows / 1e3, kafka)},
        rounds=rounds,
    )
