"""The state of an application, restored from a log: points of players, summed up in two ways.

    python examples/tables/state_restore.py [folder]

The input is a log of points; the state is a compacted log, `totals`.

1. `foreachBatch`, with the state in the memory of the driver. After a crash it is read from the
   table. Each batch's totals are one append that carries the batch's number: the log takes it once,
   and a restored application knows which batch its state has seen.
2. `transformWithState`, with the state in Spark's state store, which a lost or incompatible
   checkpoint takes along. The query also appends, in the same commit, up to where the input is in
   the totals. A new query starts with the table as its initial state, and there. (Spark's
   transformWithState in Python needs the package protobuf.)
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from clog.connector import upsert_batches
from clog.storage import Log

POSITION = "#position"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Totals:
    """The state in memory, and its log."""

    def __init__(self, url: str) -> None:
        self._log = Log.open(url)
        rows = self._log.table().to_arrow().to_pylist()
        values = {row["key"].decode(): json.loads(row["value"]) for row in rows}
        self.totals = {player: value["total"] for player, value in values.items()}
        self._batch = max((value["batch"] for value in values.values()), default=-1)

    def each_batch(self, points: DataFrame, batch_id: int) -> None:
        if batch_id <= self._batch:
            return  # Appended before the crash, which Spark does not know of.
        sums = points.groupBy("player").sum("points").collect()
        self.totals |= {player: self.totals.get(player, 0) + more for player, more in sums}
        changed = {player: {"total": self.totals[player], "batch": batch_id} for player, _ in sums}
        self._log.append(
            [{"key": player, "value": json.dumps(value)} for player, value in changed.items()],
            producer=("totals", batch_id),
        )


def points_of(spark: SparkSession, folder: str, position: str = "earliest") -> DataFrame:
    """The input stream."""
    stream = spark.readStream.format("clog").option("startingOffsets", position)
    columns = ("string(key) AS player", "bigint(string(value)) AS points", "partition", "offset")
    return stream.load(f"{folder}/points").selectExpr(*columns)


def run_batches(spark: SparkSession, folder: str, *, crash: bool = False) -> dict[str, int]:
    """Sums up what is new in the driver's memory; with ``crash`` it dies after the append."""
    totals = Totals(f"{folder}/totals")

    def each_batch(points: DataFrame, batch_id: int) -> None:
        totals.each_batch(points, batch_id)
        if crash:
            raise KeyError("crashed after the append")

    writer = points_of(spark, folder).writeStream.foreachBatch(each_batch)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    return totals.totals


class Summing(StatefulProcessor):
    """A player's total in Spark's state store."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "total long")

    def handleInitialState(self, _key: Any, initial: Row, _timers: Any) -> None:  # noqa: N802
        self._total.update((initial.total,))

    def handleInputRows(self, key: Any, rows: Iterator[Row], _timers: Any) -> Iterator[Row]:  # noqa: N802
        total = self._total.get()[0] if self._total.exists() else 0
        following: dict[int, int] = {}
        for row in rows:
            total += row.points
            following[row.partition] = max(following.get(row.partition, 0), row.offset + 1)
        self._total.update((total,))
        yield Row(player=key[0], total=total, following=json.dumps(following))


def run_states(spark: SparkSession, folder: str, checkpoint: str) -> None:
    """Sums up what is new in Spark's state store; a new checkpoint begins with the table."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    url = f"{folder}/states"
    known = states_in(url)
    start = dict.fromkeys(map(str, Log.open(f"{folder}/points").start_offsets()), 0)
    position = start | json.loads(known.pop(POSITION, "{}"))
    initial = spark.read.format("clog").option("view", "table").load(url)
    initial = initial.where(f"player <> '{POSITION}'")
    initial = initial.selectExpr("player", "bigint(total) AS total")

    upsert = upsert_batches(url, "player")

    def each_batch(changed: DataFrame, batch_id: int) -> None:
        rows = changed.collect()
        for row in rows:
            for p, offset in json.loads(row.following).items():
                position[p] = max(position[p], offset)
        totals = [(row.player, str(row.total)) for row in rows]
        records = [*totals, (POSITION, json.dumps(position))]
        frame = changed.sparkSession.createDataFrame(records, "player string, total string")
        upsert(frame, batch_id)

    totals = (
        points_of(spark, folder, json.dumps(position))
        .groupBy("player")
        .transformWithState(
            Summing(),
            outputStructType="player string, total long, following string",
            outputMode="Update",
            timeMode="None",
            initialState=initial.groupBy("player"),
        )
    )
    writer = totals.writeStream.outputMode("update").foreachBatch(each_batch)
    writer = writer.option("checkpointLocation", f"{folder}/{checkpoint}")
    writer.trigger(availableNow=True).start().awaitTermination()


def states_in(url: str) -> dict[str, str]:
    """The table: totals as text, and the position."""
    rows = Log.open(url).table().to_arrow().to_pylist()
    return {row["player"]: row["total"] for row in rows}


def score(folder: str, **points: int) -> None:
    records = [{"key": player, "value": str(more)} for player, more in points.items()]
    Log.open(f"{folder}/points").append(records)


def main(spark: SparkSession, folder: str) -> tuple[dict[str, int], dict[str, str]]:
    for name in ("points", "totals"):
        Log.create(f"{folder}/{name}", partitions=2)
    schema = pa.schema({"player": pa.string(), "total": pa.string()})
    Log.create(f"{folder}/states", partitions=2, schema=schema, key="player")
    score(folder, ann=3, bob=5)
    try:
        run_batches(spark, folder, crash=True)
    except Exception as e:  # noqa: BLE001
        print(f"{type(e).__name__}: a batch was appended, and Spark does not know")
    run_states(spark, folder, "first")
    score(folder, ann=4, bob=1, eve=1)
    in_memory = run_batches(spark, folder)  # repeats the batch, then takes the new points
    run_states(spark, folder, "second")  # the first checkpoint is lost
    in_spark = states_in(f"{folder}/states")
    print(f"in memory: {in_memory}\nin the state store: {in_spark}")
    return in_memory, in_spark


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        session = SparkSession.builder.master("local[2]").getOrCreate()
        main(session, sys.argv[1] if len(sys.argv) > 1 else temporary)
