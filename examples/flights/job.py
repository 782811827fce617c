"""The two streaming queries: flights into the log, and a live count out of it.

The key is the tail number, the value the latest leg, in columns. An aircraft that has not been seen
for 60 days of event time gets a tombstone, decided in the stream: when the watermark passes its
last departure by 60 days, or when it comes back after a longer gap (then the tombstone stands
before the new leg).

The state is kept by shard of tail numbers, not by tail number: a call of the Python function for
each aircraft in each micro-batch would be some 100,000 calls, a call for each shard is a few
hundred, and inside a shard pandas does the work.
"""

import json
from collections.abc import Iterator
from typing import Any

import pandas as pd
from dataset import UNSEEN_MS, VALUE
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

WATERMARK = "1 hour"
"""Later than any two files overlap: equal times at the border of two files are not late."""

SHARDS = 4

LEG = (
    "tail string, departed timestamp, origin string, dest string,"
    " lat double, lon double, delay_minutes int, model string"
)
_COLUMNS = ["tail", "departed", *(name for name in VALUE if name != "departed")]
ROW = f"{LEG}, gone boolean, timestamp timestamp"


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
            legs_and_tombstones, ROW, "seen string", "append", GroupStateTimeout.EventTimeTimeout
        )
    )
    leg = F.when(~F.col("gone"), F.struct(*VALUE))
    return (
        records.select(F.col("tail").alias("key"), leg.alias("value"), "timestamp")
        .writeStream.format("clog")
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
    """The legs and tombstones (rows that are gone) of one shard in one micro-batch, by tail number
    in event-time order; the state is {tail: last departure in ms}."""
    seen: dict[str, int] = json.loads(state.get[0]) if state.exists else {}
    legs = _in_order(list(batches))
    gone: list[tuple[str, int, float]] = []  # Before which leg: the order of records is that.
    for i, (tail, at_ms) in enumerate(zip(legs["tail"], legs["at_ms"], strict=True)):
        if at_ms - seen.get(tail, at_ms) > UNSEEN_MS:
            gone.append((tail, seen[tail] + UNSEEN_MS, i - 0.5))
        seen[tail] = at_ms
    watermark_ms = state.getCurrentWatermarkMs()
    unseen = [tail for tail, at_ms in seen.items() if at_ms + UNSEEN_MS < watermark_ms]
    gone.extend((tail, seen.pop(tail) + UNSEEN_MS, len(legs)) for tail in unseen)
    state.update((json.dumps(seen),))
    if seen:
        state.setTimeoutTimestamp(max(min(seen.values()) + UNSEEN_MS, watermark_ms) + 1)
    tombstones = pd.DataFrame(gone, columns=["tail", "at_ms", "place"]).assign(gone=True)
    rows = pd.concat([legs.assign(place=range(len(legs)), gone=False), tombstones])
    rows = rows.sort_values("place", kind="stable")
    rows["timestamp"] = pd.to_datetime(rows.at_ms.astype("int64"), unit="ms")
    rows["gone"] = rows.gone.astype(bool)
    yield rows[[*_COLUMNS, "gone", "timestamp"]]


def _in_order(batches: list[pd.DataFrame]) -> pd.DataFrame:
    """The legs in event-time order, with their departures in ms; none where the call is a timeout
    and brings no rows."""
    legs = pd.concat(batches) if batches else pd.DataFrame(columns=_COLUMNS)
    legs = legs.sort_values("departed", kind="stable")
    return legs.assign(at_ms=[int(t.timestamp() * 1000) for t in legs.departed])
