"""A table of keys from Python, without Spark: clog beside delta-rs, PyIceberg and DuckDB.

Each starts with the same rows, each key once, in a folder on the local disk. An upsert replaces 20
keys at random: clog appends them, delta-rs runs its merge, PyIceberg its upsert (with a catalog in
SQLite). clog syncs its files to the disk, the others do not; *not synced* is clog without that. The
upserts stay in the tables, so a table read sees what they left behind; all read the keys and the
values into one Arrow table and may use both cores. One key is looked up in a table that is open,
after a check for a newer version. DuckDB reads one Parquet file of the rows as they were at the
beginning, which cannot be updated.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from harness import data
from harness.measure import Result, cpu_ms, rate, timed

from clog.storage import Log

TITLE = "Upserts and table reads from Python"
ENVIRONMENT = "tables"
ENGINE = "Python"
SIZES = {
    "smallest": {"rows": 2_000, "record_bytes": 100, "rounds": 1},
    "quick": {"rows": 500_000, "record_bytes": 100, "rounds": 3},
    "full": {"rows": 2_000_000, "record_bytes": 100, "rounds": 5},
}
UPSERT_ROWS = 20


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    rows = size["rows"]
    start = pa.concat_tables(data.batches(rows, rows, size["record_bytes"])).combine_chunks()
    tables = {
        "clog": ClogTable(folder / "clog"),
        "clog, not synced": ClogTable(folder / "unsynced", {"fsync": False}),
        "delta-rs": DeltaTable(folder / "delta"),
        "PyIceberg": IcebergTable(folder / "iceberg"),
    }
    for table in tables.values():
        table.fill(start)
    changes = Changes(rows)
    result.compare(
        "upsert of 20 rows, Python",
        "ms",
        {who: timed(upserting(table, changes), 1e-3) for who, table in tables.items()},
        rounds=size["rounds"],
        lower=True,
    )
    readers = tables | {"DuckDB, a Parquet file": ParquetFile(folder / "rows.parquet", start)}
    reads = {who: reading(table, rows) for who, table in readers.items()}
    what, rounds = "table read, Python", size["rounds"]
    found = {who: rate(rows / 1e6, read) for who, read in reads.items()}
    result.compare(what, "million rows/s", found, rounds=rounds)
    cpu = {who: cpu_ms(read) for who, read in reads.items()}
    result.compare(f"CPU of {what}", "ms", cpu, rounds=rounds, lower=True)
    for what, act in {
        "count, Python": lambda table: counting(table, rows),
        "one key, Python": lambda table: looking_up(table, changes),
    }.items():
        asked = {who: timed(act(table), 1e-3) for who, table in readers.items()}
        result.compare(what, "ms", asked, rounds=rounds, lower=True)
    for who, table in tables.items():
        mb = data.size_mb(table.folder)
        result.add("on disk after the upserts", who, "MB", mb, lower=True)


def upserting(table: "ClogTable | DeltaTable | IcebergTable", changes: "Changes") -> Callable:
    return lambda: table.upsert(changes.next())


def reading(table: Any, rows: int) -> Callable:
    def act() -> None:
        assert table.read().num_rows == rows

    return act


def counting(table: Any, rows: int) -> Callable:
    def act() -> None:
        assert table.count() == rows

    return act


def looking_up(table: Any, changes: "Changes") -> Callable:
    def act() -> None:
        assert table.get(changes.next().column("key")[0].as_py()) is not None

    return act


class Changes:
    """20 keys that exist, at random, with new values."""

    def __init__(self, keys: int, count: int = UPSERT_ROWS) -> None:
        self._keys = keys
        self._count = count
        self._random = random.Random(1)

    def next(self) -> pa.Table:
        ids = self._random.sample(range(self._keys), self._count)
        value = pa.array([b"changed %d" % self._random.randrange(10**9) for _ in ids], pa.binary())
        return pa.table({"key": data.keys(np.array(ids)), "value": value})


class ClogTable:
    def __init__(self, folder: Path | str, options: dict[str, object] | None = None) -> None:
        self.folder = folder
        self._log = Log.create(str(folder), partitions=1, storage_options=options)

    def fill(self, table: pa.Table) -> None:
        self._log.append(table)

    def upsert(self, changes: pa.Table) -> None:
        self._log.append(changes)

    def read(self) -> pa.Table:
        return self._log.table().to_arrow(columns=["key", "value"])

    def count(self) -> int:
        return len(self._log.table())

    def get(self, key: bytes) -> bytes | None:
        return self._log.table().get(key)


class DeltaTable:
    def __init__(self, folder: Path | str, options: dict[str, str] | None = None) -> None:
        self.folder = folder
        self._options = options

    def fill(self, table: pa.Table) -> None:
        from deltalake import DeltaTable, WriterProperties, write_deltalake

        zstd = WriterProperties(compression="ZSTD")
        write_deltalake(
            str(self.folder),
            table,
            mode="append",
            storage_options=self._options,
            writer_properties=zstd,
        )
        self._table = DeltaTable(str(self.folder), storage_options=self._options)

    def append(self, table: pa.Table) -> None:
        from deltalake import WriterProperties, write_deltalake

        zstd = WriterProperties(compression="ZSTD")
        write_deltalake(self._table, table, mode="append", writer_properties=zstd)

    def upsert(self, changes: pa.Table) -> None:
        self._table.update_incremental()
        merge = self._table.merge(changes, "t.key = s.key", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def read(self) -> pa.Table:
        self._table.update_incremental()
        return pa.table(self._table.to_pyarrow_table())

    def count(self) -> int:
        self._table.update_incremental()
        return self._table.count()

    def get(self, key: bytes) -> bytes | None:
        from deltalake import QueryBuilder

        self._table.update_incremental()
        query = f"SELECT value FROM t WHERE key = X'{key.hex()}'"
        found = pa.table(QueryBuilder().register("t", self._table).execute(query).read_all())
        return found.column("value")[0].as_py()


class IcebergTable:
    def __init__(self, folder: Path, warehouse: str | None = None, **options: str) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._catalog = SqlCatalog(
            "benchmark",
            uri=f"sqlite:///{folder}/catalog.db",
            warehouse=warehouse or f"file://{folder}/warehouse",
            **options,
        )

    def fill(self, table: pa.Table) -> None:
        self._catalog.create_namespace("n")
        properties = {"write.parquet.compression-codec": "zstd"}
        self._table = self._catalog.create_table("n.t", table.schema, properties=properties)
        self._table.append(table)

    def append(self, table: pa.Table) -> None:
        self._table.append(table)

    def reopen(self) -> None:
        """Loads the table and lists its files, as a process does that has just started."""
        assert list(self._catalog.load_table("n.t").scan().plan_files())

    def upsert(self, changes: pa.Table) -> None:
        self._table.upsert(changes, join_cols=["key"])

    def read(self) -> pa.Table:
        return self._table.scan().to_arrow()

    def count(self) -> int:
        return self._table.scan().count()

    def get(self, key: bytes) -> bytes | None:
        from pyiceberg.expressions import EqualTo

        found = self._table.scan(row_filter=EqualTo("key", key)).to_arrow()
        return found.column("value")[0].as_py()


class ParquetFile:
    """Rows that nobody updates, which DuckDB reads."""

    def __init__(self, path: Path, rows: pa.Table) -> None:
        import pyarrow.parquet as pq

        pq.write_table(rows, path, compression="zstd")
        self._source = f"read_parquet('{path}')"

    def read(self) -> pa.Table:
        return self._asked("key, value")

    def count(self) -> int:
        return self._asked("count(*) AS rows").column("rows")[0].as_py()

    def get(self, key: bytes) -> bytes | None:
        found = self._asked("value", f"WHERE key = unhex('{key.hex()}')")
        return found.column("value")[0].as_py()

    def _asked(self, what: str, where: str = "") -> pa.Table:
        import duckdb

        return pa.table(duckdb.sql(f"SELECT {what} FROM {self._source} {where}").arrow())
