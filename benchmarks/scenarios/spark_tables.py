"""A table of keys in Spark: upserts of 20 rows, reading all of the table, and one key.

Each store starts with the same rows, each key once. An upsert replaces 20 keys at random: clog
appends them and, except where the table says so, syncs them to the disk; Delta Lake runs `MERGE`
and syncs nothing. The upserts stay in the tables, so the reads that follow see what they left
behind. `count_table` asks the log for the number of rows, without Spark. clog is read before and
after a pass of the cleaner, by `format("clog")` and by Spark's own scan (`read_table`), for which a
round of the cleaner has made masks. Parquet is the floor: the rows as they were at the beginning,
in files that cannot be updated.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import data
from harness.measure import Result, rate, timed
from harness.spark import DELTA_CONFIG, drain, session
from peers.environments import VERSIONS

TITLE = "Upserts and table reads in Spark"
ENVIRONMENT = "spark"
ENGINE = "Spark"
SIZES = {
    "smallest": {"rows": 2_000, "record_bytes": 100, "rounds": 1},
    "quick": {"rows": 1_000_000, "record_bytes": 100, "rounds": 3},
    "full": {"rows": 10_000_000, "record_bytes": 100, "rounds": 5},
}
UPSERT_ROWS = 20
NATIVE = "clog, read_table"
ANEW = f"{NATIVE}, planned anew"
DELTAS = {"Delta Lake": "false", "Delta Lake, deletion vectors": "true"}
SCHEMA = "key binary, value binary"


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    rows = size["rows"]
    result.versions |= {"Delta Lake": VERSIONS["delta"]}
    data.write_parquet(folder / "parquet", data.batches(rows, rows, size["record_bytes"]))
    with session("spark", DELTA_CONFIG) as spark:
        tables = _Tables(spark, folder, rows)
        tables.make()
        _upserts(tables, result, size["rounds"])
        tables.mask()
        _reads(tables, result, size["rounds"], "table read")
        _counts(tables, result, size["rounds"])
        _lookups(tables, result, size["rounds"])
        tables.clean()
        _reads(tables, result, size["rounds"], "table read, after cleaning and OPTIMIZE")


class _Tables:
    """One table for each store."""

    def __init__(self, spark: Any, folder: Path, rows: int) -> None:
        self.spark = spark
        self.folder = folder
        self.rows = rows
        self.random = random.Random(1)

    def url(self, who: str) -> str:
        return str(self.folder / who)

    def make(self) -> None:
        frame = self.spark.read.schema(SCHEMA).parquet(self.url("parquet"))
        frame.write.format("clog").mode("append").save(self.url("clog"))
        for who, vectors in DELTAS.items():
            self.spark.sql(
                f"CREATE TABLE delta.`{self.url(who)}` ({SCHEMA}) USING delta"
                f" TBLPROPERTIES ('delta.enableDeletionVectors' = '{vectors}')"
            )
            frame.write.format("delta").mode("append").save(self.url(who))

    def some_keys(self, count: int) -> list[bytes]:
        import numpy as np

        ids = self.random.sample(range(self.rows), count)
        return data.keys(np.array(ids)).to_pylist()

    def changes(self) -> Any:
        changed = [(bytearray(key), bytearray(b"changed")) for key in self.some_keys(UPSERT_ROWS)]
        return self.spark.createDataFrame(changed, SCHEMA)

    def append(self, *, synced: bool) -> None:
        writer = self.changes().write.format("clog").mode("append")
        writer.option("storage.fsync", str(synced).lower()).save(self.url("clog"))

    def merge(self, who: str) -> Callable[[], None]:
        def act() -> None:
            self.changes().createOrReplaceTempView("changes")
            self.spark.sql(
                f"MERGE INTO delta.`{self.url(who)}` t USING changes s ON t.key = s.key"
                " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            ).collect()

        return act

    def table(self, who: str) -> Any:
        if who in (NATIVE, ANEW):
            from clog.connector import native, read_table

            if who == ANEW:
                native.forget()
            return read_table(self.spark, self.url("clog"), columns="key,value")
        if who == "clog":
            reader = self.spark.read.format("clog").option("columns", "key,value")
            return reader.option("view", "table").load(self.url(who))
        if who == "parquet":
            return self.spark.read.schema(SCHEMA).parquet(self.url(who))
        return self.spark.read.format("delta").load(self.url(who))

    def look_up(self, who: str) -> None:
        key = self.some_keys(1)[0]
        if who == "clog":
            reader = self.spark.read.format("clog").option("keys", f'["{key.decode()}"]')
            found = reader.option("view", "table").load(self.url(who)).collect()
        elif who == NATIVE:
            from clog.connector import read_table

            found = read_table(self.spark, self.url("clog"), keys=[key.decode()]).collect()
        else:
            found = self.table(who).where(f"key = X'{key.hex()}'").collect()
        assert len(found) == 1

    def mask(self) -> None:
        """Does what the cleaner's daemon does every few seconds."""
        from clog.cleaner import Cleaner
        from clog.storage import Log

        log = Log.open(self.url("clog"))
        log.alter({"table.masks": "true"})
        Cleaner(log).run_once()

    def clean(self) -> None:
        from clog.cleaner import Cleaner
        from clog.storage import Log

        log = Log.open(self.url("clog"))
        log.roll()
        Cleaner(log).run_once(force=True)
        for who in DELTAS:
            self.spark.sql(f"OPTIMIZE delta.`{self.url(who)}`").collect()


def _upserts(tables: _Tables, result: Result, rounds: int) -> None:
    result.compare(
        "upsert of 20 rows",
        "ms",
        {
            "clog": timed(lambda: tables.append(synced=True), 1e-3),
            "clog, not synced": timed(lambda: tables.append(synced=False), 1e-3),
            **{who: timed(tables.merge(who), 1e-3) for who in DELTAS},
        },
        rounds=rounds,
        lower=True,
    )


def _reads(tables: _Tables, result: Result, rounds: int, what: str) -> None:
    def of(who: str) -> Callable[[], float]:
        return rate(tables.rows / 1e6, lambda: drain(tables.table(who)))

    assert tables.table("clog").count() == tables.rows
    result.compare(
        what,
        "million rows/s",
        {
            "Parquet files (floor)": of("parquet"),
            "clog": of("clog"),
            NATIVE: of(NATIVE),
            ANEW: of(ANEW),
            **{who: of(who) for who in DELTAS},
        },
        rounds=rounds,
    )
    for who in ("clog", *DELTAS):
        result.add(f"on disk, {what}", who, "MB", data.size_mb(Path(tables.url(who))), lower=True)


def _counts(tables: _Tables, result: Result, rounds: int) -> None:
    def of(who: str) -> Callable[[], float]:
        return timed(lambda: tables.table(who).count(), 1e-3)

    who = {"Parquet files (floor)": "parquet", "clog": "clog", NATIVE: NATIVE, ANEW: ANEW}
    candidates = {name: of(table) for name, table in who.items()}
    candidates["clog, count_table"] = timed(lambda: _count(tables), 1e-3)
    candidates |= {delta: of(delta) for delta in DELTAS}
    result.compare("count()", "ms", candidates, rounds=rounds, lower=True)


def _count(tables: _Tables) -> None:
    from clog.connector import count_table

    assert count_table(tables.url("clog")) == tables.rows


def _lookups(tables: _Tables, result: Result, rounds: int) -> None:
    result.compare(
        "one key",
        "ms",
        {
            "Parquet files (floor)": timed(lambda: tables.look_up("parquet"), 1e-3),
            "clog": timed(lambda: tables.look_up("clog"), 1e-3),
            NATIVE: timed(lambda: tables.look_up(NATIVE), 1e-3),
            **{who: timed(lambda who=who: tables.look_up(who), 1e-3) for who in DELTAS},
        },
        rounds=rounds,
        lower=True,
    )
