"""How long a micro-batch takes at a trigger of one second: clog beside Kafka, Delta Lake and
Parquet.

Spark's own `rate` source makes 1,000 records of 100 bytes a second. A figure is the time from the
trigger to the batch's commit, including the checkpoint's two files; the first five batches of each
run do not count. Runs follow each other, in a different order in each round. `append_batches` is
clog with `foreachBatch`, beside `noop`, Spark's sink that writes nothing. `copy` also reads from
the same kind of store: a stream from clog to clog, and from Kafka to Kafka.
"""

import random
import statistics
from pathlib import Path
from typing import Any

from harness.measure import Result, Row
from harness.spark import DELTA_CONFIG, batch_times_ms, session
from peers.environments import VERSIONS
from peers.kafka import Broker

TITLE = "Micro-batches at a trigger each second"
ENVIRONMENT = "spark"
ENGINE = "Spark"
SIZES = {
    "smallest": {"batches": 2, "rounds": 1, "skip": 1},
    "quick": {"batches": 10, "rounds": 1, "skip": 5},
    "full": {"batches": 15, "rounds": 3, "skip": 5},
}
DRIVER, NOTHING = "clog, append_batches", "noop (floor)"
FLOOR = "Parquet files (floor)"
COPY = "copy"
RECORD = (
    "encode(substring(md5(string(value % 20000)), 1, 16), 'utf-8') AS key",
    "encode(rpad(md5(string(value)), 84, 'x'), 'utf-8') AS value",
)


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    result.versions |= {"Apache Kafka": VERSIONS["kafka"], "Delta Lake": VERSIONS["delta"]}
    with Broker(folder / "broker") as broker, session("spark", DELTA_CONFIG) as spark:
        _make(spark, folder, broker.address)
        found: dict[tuple[str, str], list[list[float]]] = {}
        for number in range(size["rounds"]):
            streams = [*_streams(spark, folder, broker.address, number)]
            random.Random(number).shuffle(streams)
            # Copies go last: they read what the others wrote.
            streams.sort(key=lambda stream: stream[0][0] == COPY)
            for (what, who), stream, options in streams:
                place = folder / f"checkpoint-{number}-{what}-{who}"
                writer = _writer(stream, who, options)
                writer = writer.option("checkpointLocation", str(place))
                times = batch_times_ms(writer, size["batches"], size["skip"])
                found.setdefault((what, who), []).append(times)
                print(f"  {what}: {who}: {len(times)} batches {sorted(times)}", flush=True)
    for share, name in ((50, "median"), (99, "99th percentile")):
        for (what, who), rounds in found.items():
            values = [statistics.quantiles(r, n=100, method="inclusive")[share - 1] for r in rounds]
            result.rows.append(Row(f"{what}, {name}", who, "ms", values, lower=True))
    result.rows.sort(key=lambda row: row.what)


def _format(who: str) -> str:
    formats = {"Apache Kafka": "kafka", "Delta Lake": "delta", FLOOR: "parquet", NOTHING: "noop"}
    return formats.get(who, who)


def _writer(stream: Any, who: str, options: dict[str, str]) -> Any:
    if who != DRIVER:
        return stream.writeStream.format(_format(who)).options(**options)
    from clog.connector import append_batches

    return stream.writeStream.foreachBatch(append_batches(options["path"]))


def _make(spark: Any, folder: Path, address: str) -> None:
    """What the copies read: one record; the rest comes while they run."""
    one = spark.range(1).selectExpr("id AS value").selectExpr(*RECORD)
    one.write.format("clog").mode("append").save(str(folder / "from"))
    options = {"kafka.bootstrap.servers": address, "topic": "from"}
    one.write.format("kafka").options(**options).save()


def _streams(spark: Any, folder: Path, address: str, number: int) -> Any:
    """(what, who), the stream and the sink's options."""

    def made() -> Any:
        rate = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
        return rate.selectExpr(*RECORD)

    kafka = {"kafka.bootstrap.servers": address}
    yield ("micro-batch", NOTHING), made(), {}
    yield ("micro-batch", DRIVER), made(), {"path": str(folder / "from")}
    yield ("micro-batch", FLOOR), made(), {"path": str(folder / f"p{number}")}
    yield ("micro-batch", "clog"), made(), {"path": str(folder / "from")}
    yield ("micro-batch", "Apache Kafka"), made(), {**kafka, "topic": "from"}
    yield ("micro-batch", "Delta Lake"), made(), {"path": str(folder / f"d{number}")}
    limited = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "900"}
    clog = spark.readStream.format("clog").options(**limited).option("columns", "key,value")
    yield (COPY, "clog"), clog.load(str(folder / "from")), {"path": str(folder / f"c{number}")}
    theirs = spark.readStream.format("kafka").options(**kafka, **limited)
    theirs = theirs.option("subscribe", "from").load().select("key", "value")
    yield (COPY, "Apache Kafka"), theirs, {**kafka, "topic": f"copy-{number}"}
