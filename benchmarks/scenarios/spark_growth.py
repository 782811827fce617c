"""How costs grow with history in Spark: clog beside Delta Lake, one small batch after another.

Each append is a batch of 20 rows of 100 bytes to a folder on the local disk. Nothing is cleaned,
compacted or optimized, and nothing is synced to the disk (clog would, by default). Delta Lake
writes its checkpoints by itself, at every tenth commit. A point is the median of the appends since
the previous point; opening plans a read of the whole table in a session without cached metadata.
"""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import data
from harness.measure import Line, Result, seconds
from harness.spark import DELTA_CONFIG, session
from peers.environments import VERSIONS

TITLE = "Growth with history in Spark"
ENVIRONMENT = "spark"
ENGINE = "Spark"
SIZES = {
    "smallest": {"commits": 3},
    "quick": {"commits": 50},
    "full": {"commits": 500},
}
ROWS, KEYS, POINTS = 20, 100_000, 10
FORMATS = {"clog": "clog", "Delta Lake": "delta"}


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    result.versions |= {"Delta Lake": VERSIONS["delta"]}
    commits = size["commits"]
    points = {max(1, commits * i // POINTS) for i in range(1, POINTS + 1)}
    with session("spark", DELTA_CONFIG) as spark:
        places = {who: str(folder / name) for who, name in FORMATS.items()}
        appends: dict[str, list[float]] = {who: [] for who in FORMATS}
        lines = {who: ([], []) for who in FORMATS}
        for number, batch in enumerate(_batches(spark, folder, commits), 1):
            for who, name in FORMATS.items():
                append = _append(batch, name, places[who])
                appends[who].append(seconds(append) * 1e3)
                if number in points:
                    _look(spark, name, places[who])  # what is first is not of the history
                    opened = seconds(lambda n=name, w=who: _look(spark, n, places[w])) * 1e3
                    lines[who][0].append((number, statistics.median(appends[who])))
                    lines[who][1].append((number, opened))
                    appends[who].clear()
    for i, what in enumerate(("append in Spark", "plan a read in Spark")):
        for who, found in lines.items():
            result.lines.append(
                Line(f"{what} by number of commits", who, "commits", "ms", found[i])
            )
            print(f"  {what}: {who}: {found[i]}", flush=True)


def _batches(spark: Any, folder: Path, commits: int) -> Any:
    """DataFrames over files, so that what is timed makes no rows."""
    tables = data.batches(ROWS * commits, KEYS, 100)
    data.write_parquet(
        folder / "parquet", (t.slice(i, ROWS) for t in tables for i in range(0, len(t), ROWS))
    )
    for number in range(commits):
        path = str(folder / "parquet" / f"{number:05}.parquet")
        yield spark.read.schema("key binary, value binary").parquet(path)


def _append(batch: Any, name: str, place: str) -> Callable[[], None]:
    writer = batch.write.format(name).mode("append")
    if name == "clog":
        writer = writer.option("storage.fsync", "false")
    return lambda: writer.save(place)


def _look(spark: Any, name: str, place: str) -> None:
    """Plans a read as a session does that has not seen the table."""
    if name == "delta":
        spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # noqa: SLF001
    frame = spark.read.format(name).load(place)
    assert frame.rdd.getNumPartitions()
