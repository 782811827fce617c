"""`view=table` in Spark beside what one would write without it, a `groupBy` over the same log, and
beside reading all of the log.

The records of 100 bytes are in one partition, of which the first half is clean and the second
dirty. All read the columns key and value into the sink `noop`.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from harness.measure import Result, rate
from harness.spark import session
from parts.table_view import make_log

TITLE = "The table view in Spark"
ENVIRONMENT = "own"
ENGINE = "Spark"
SIZES = {
    "smallest": {"records": 2_000, "keys": 500, "rounds": 1},
    "quick": {"records": 1_000_000, "keys": 250_000, "rounds": 3},
    "full": {"records": 4_000_000, "keys": 1_000_000, "rounds": 5},
}


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    url = make_log(folder / "log", size["records"], size["keys"]).url
    with session() as spark:
        load = partial(_load, spark, url)
        frames = {
            "clog": lambda: load(view="table", columns="key,value"),
            "groupBy over the log": lambda: _grouped(load(columns="key,value,offset")),
            "reading the log (floor)": lambda: load(columns="key,value"),
        }
        assert frames["clog"]().count() == frames["groupBy over the log"]().count()
        candidates = {
            who: rate(size["records"] / 1e3, partial(_read, frame)) for who, frame in frames.items()
        }
        result.compare("table", "thousand records/s", candidates, rounds=size["rounds"])


def _load(spark: Any, url: str, **options: str) -> Any:
    return spark.read.format("clog").options(**options).load(url)


def _read(frame: Callable[[], Any]) -> None:
    frame().write.format("noop").mode("overwrite").save()


def _grouped(log: Any) -> Any:
    from pyspark.sql.functions import max_by

    latest = log.groupBy("key").agg(max_by("value", "offset").alias("value"))
    return latest.where("value is not null")
