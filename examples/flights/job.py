"""The two streaming queries: flights into the log, and a live count out of it.

The key is the tail number, the value the latest leg as JSON. An aircraft that has not been seen for
60 days of event time gets a tombstone, decided in the stream: when the watermark passes its last
departure by 60 days, or when it comes back after a longer gap (then the tombstone stands before the
new leg).

The state is kept by shard of tail numbers, not by tail number: a call of the Python function for
each aircraft in each micro-batch would be some 100,000 calls, a call for each shard is a few
hundred, and inside a shard pandas does the work.
"""

import json
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

UNSEEN_MS = 60 * 86_400_000
WATERMARK = "1 hour"
"""Later than any two files overlap: equal times at the border of two files are not late."""

SHARDS = 4

LEG = (
    "tail string, departed timestamp, origin string, dest string,"
    " lat double, lon double, delay_minutes int, model string"
)
RECORD = "key string, value string, timestamp timestamp"
_FIELDS = ["origin", "dest", "lat", "lon", "delay_minutes", "model"]


def write_flights(
    spark: SparkSession, source: str, url: str, checkpoint: str, options: dict[str, str]
) -> StreamingQuery:
    """Starts the query that appends legs and tombstones; ends when all files are in."""
    legs = (
        spark.readStream.schema(LEG)
        .option("maxFilesPerTrigger", 1)
        .option("pathGlobFilter", "legs-*.parquet")
        .parquet(source)
        .withWatermark("departed", WATERMARK)
    )
    records = (
        legs.withColumn("shard", F.pmod(F.hash("tail"), F.lit(SHARDS)))
        .groupBy("shard")
        .applyInPandasWithState(
            legs_and_tombstones, RECORD, "seen string", "append", GroupStateTimeout.EventTimeTimeout
        )
    )
    return (
        records.writeStream.format("clog")
        .option("path", url)
        .option("checkpointLocation", checkpoint)
        .options(**options)
        .queryName("flights")
        .trigger(availableNow=True)
        .start()
    )


def follow(spark: SparkSession, url: str, checkpoint: str) -> StreamingQuery:
    """Starts the query that follows the log and counts what passes, by kind of record."""
    seen: DataFrame = (
        spark.readStream.format("clog").option("startingOffsets", "earliest").load(url)
    )
    kind = F.when(F.col("value").isNull(), "tombstones").otherwise("legs").alias("kind")
    return (
        seen.groupBy(kind)
        .count()
        .writeStream.format("memory")
        .queryName("live")
        .outputMode("complete")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="1 second")
        .start()
    )


def legs_and_tombstones(
    _shard: Any, batches: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """The records of one shard in one micro-batch, by tail number in event-time order; the state is
    {tail: last departure in ms}."""
    seen: dict[str, int] = json.loads(state.get[0]) if state.exists else {}
    out: list[tuple[str, str | None, int]] = []
    for tail, at_ms, leg in _in_order(list(batches)):
        if at_ms - seen.get(tail, at_ms) > UNSEEN_MS:
            out.append((tail, None, seen[tail] + UNSEEN_MS))
        out.append((tail, json.dumps({**leg, "departed_ms": at_ms}, sort_keys=True), at_ms))
        seen[tail] = at_ms
    watermark_ms = state.getCurrentWatermarkMs()
    unseen = [tail for tail, at_ms in seen.items() if at_ms + UNSEEN_MS < watermark_ms]
    out.extend((tail, None, seen.pop(tail) + UNSEEN_MS) for tail in unseen)
    state.update((json.dumps(seen),))
    if seen:
        state.setTimeoutTimestamp(max(min(seen.values()) + UNSEEN_MS, watermark_ms) + 1)
    frame = pd.DataFrame(out, columns=["key", "value", "timestamp"])
    frame["timestamp"] = pd.to_datetime(frame.timestamp, unit="ms")
    yield frame


def _in_order(batches: list[pd.DataFrame]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """(tail number, departure in ms, leg) in event-time order; none where the call is a timeout and
    brings no rows."""
    if not batches:
        return
    legs = pd.concat(batches).sort_values("departed", kind="stable")
    times = legs.departed.map(lambda t: int(t.timestamp() * 1000))
    fields = legs[_FIELDS].astype(object).where(legs[_FIELDS].notna(), None)
    yield from zip(legs["tail"], times, fields.to_dict("records"), strict=True)
