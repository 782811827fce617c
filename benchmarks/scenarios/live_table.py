"""The table of a log that is published and cleaned, read from Python: `to_arrow()` beside delta-rs'
read of the same rows from a Delta table of its own, delta-rs' read of the published view, and
DuckDB's `arg_max` over the log's objects; and what masks and publishing cost writers. DuckDB also
reads the rows from one Parquet file, without a log. delta-rs returns views of the pages that it
decoded; *its bytes copied* is another call, which returns arrays, as clog does.

The log gets a million records, each key once, in 8 appends, then 50 appends of 1,000 existing keys.
All read into one Arrow table and may use both cores. *No masks* is the same log before its cleaner
has run: all keys are compared. The publication is that of 1,000 changed keys, with masks, as a
round of the cleaner makes it.

*Noise*: values of 100 random bytes do not compress, so that decoding them covers nothing else. Two
million keys of 16 bytes come in 8 appends, then 20 of them in each of 10 upserts; delta-rs reads
the rows of these appends from a table of 8 files. *Cleaned* is the log after a forced round.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
from harness import data
from harness.measure import Result, cpu_ms, rate, timed

from clog.cleaner import Cleaner
from clog.storage import Log
from clog.storage.store import open_store
from clog_testing.counting import CountingStore

TITLE = "The live table, from Python"
ENVIRONMENT = "tables"
ENGINE = "Python"
SIZES = {
    "smallest": {"keys": 2_000, "noise": 2_000, "upserts": 3, "changed": 20, "rounds": 1},
    "quick": {"keys": 200_000, "noise": 400_000, "upserts": 10, "changed": 1_000, "rounds": 3},
    "full": {"keys": 1_000_000, "noise": 2_000_000, "upserts": 50, "changed": 1_000, "rounds": 7},
}
RECORD_BYTES, APPENDS = 100, 8
NOISE_BYTES, NOISE_UPSERTS, NOISE_CHANGED = 100, 10, 20


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    bare, masked = _Filled(folder / "bare", size), _Filled(folder / "masked", size)
    masked.log.alter({"table.masks": "true"})
    Cleaner(masked.log).run_once()
    assert masked.log.table().to_arrow().num_rows == size["keys"]
    masked.log.publish("delta")
    delta = masked.as_delta(folder / "delta")
    parquet = masked.as_parquet(folder / "rows.parquet")
    columns = ["key", "value"]
    readers = {
        "clog": lambda: masked.log.table().to_arrow(columns=columns),
        "clog, all columns": lambda: masked.log.table().to_arrow(),
        "clog, no masks": lambda: bare.log.table().to_arrow(columns=columns),
        "delta-rs, a Delta table": lambda: _delta_rs(delta),
        "delta-rs, its bytes copied": lambda: _copied(delta),
        "delta-rs, the published view": lambda: _delta_rs(masked.folder),
        "DuckDB, arg_max": lambda: _arg_max(masked),
        "DuckDB, a Parquet file": lambda: _duckdb(f"read_parquet('{parquet}')"),
    }
    for who, read in readers.items():
        assert read().num_rows == size["keys"], who
    what, keys = "table read, Python", size["keys"] / 1e6
    found = {who: rate(keys, read) for who, read in readers.items()}
    result.compare(what, "million rows/s", found, rounds=size["rounds"])
    cpu = {who: cpu_ms(read) for who, read in readers.items()}
    result.compare(f"CPU of {what}", "ms", cpu, rounds=size["rounds"], lower=True)
    _upserts(bare, masked, result, size["rounds"])
    _publications(masked, result, size["rounds"])
    _noise(folder / "noise", size["noise"], result, size["rounds"])


def _noise(folder: Path, keys: int, result: Result, rounds: int) -> None:
    """Reads of a table whose values do not compress."""
    from deltalake import WriterProperties, write_deltalake

    random = np.random.default_rng(1)

    def rows(ids: np.ndarray) -> pa.Table:
        return pa.table({"key": data.keys(ids), "value": data.noise(random, len(ids), NOISE_BYTES)})

    delta, zstd = folder / "delta", WriterProperties(compression="ZSTD")
    options, config = {"fsync": False}, {"min.cleanable.dirty.ratio": 0}
    names = ("bare", "clean")
    logs = [Log.create(str(folder / n), 1, config=config, storage_options=options) for n in names]
    for ids in np.array_split(np.arange(keys), APPENDS):
        appended = rows(ids)
        write_deltalake(str(delta), appended, mode="append", writer_properties=zstd)
        for log in logs:
            log.append(appended)
    for _ in range(NOISE_UPSERTS):
        changed = rows(random.choice(keys, NOISE_CHANGED, replace=False))
        for log in logs:
            log.append(changed)
    logs[1].roll()
    assert Cleaner(logs[1]).run_once(force=True)
    columns = ["key", "value"]
    readers = {
        "clog": lambda: Log.open(str(folder / "bare")).table().to_arrow(columns=columns),
        "clog, cleaned": lambda: Log.open(str(folder / "clean")).table().to_arrow(columns=columns),
        "delta-rs, 8 files": lambda: _delta_rs(delta),
    }
    for who, read in readers.items():
        assert read().num_rows == keys, who
    cpu = {who: cpu_ms(read) for who, read in readers.items()}
    what = "CPU of table read, noise"
    result.compare(what, "ms", cpu, rounds=rounds, lower=True)


class _Filled:
    """A log of one partition, with each key and then some changed."""

    def __init__(self, folder: Path, size: dict[str, int]) -> None:
        self.folder, self.size = folder, size
        self.random = np.random.default_rng(1)
        self.store = CountingStore(open_store(str(folder), {"fsync": False}))
        self.log = Log.create(self.store, 1)
        keys = size["keys"]
        for ids in np.array_split(np.arange(keys), APPENDS):
            self.log.append(self.rows(ids))
        for _ in range(size["upserts"]):
            self.append()

    def rows(self, ids: np.ndarray) -> pa.Table:
        values = data.values(self.random, len(ids), RECORD_BYTES)
        return pa.table({"key": data.keys(ids), "value": values})

    def append(self) -> None:
        size = self.size
        self.log.append(self.rows(self.random.integers(0, size["keys"], size["changed"])))

    def as_delta(self, folder: Path) -> Path:
        """Writes the table's rows to a Delta table."""
        from deltalake import WriterProperties, write_deltalake

        rows = self.log.table().to_arrow(columns=["key", "value", "timestamp"])
        zstd = WriterProperties(compression="ZSTD")
        write_deltalake(str(folder), rows, writer_properties=zstd)
        return folder

    def as_parquet(self, path: Path) -> Path:
        """Writes the table's keys and values to one Parquet file."""
        import pyarrow.parquet as pq

        pq.write_table(
            self.log.table().to_arrow(columns=["key", "value"]), path, compression="zstd"
        )
        return path

    def objects(self) -> list[str]:
        """Returns the paths of the log's objects, in the order of offsets."""
        folder = self.folder / "_clog" / self.log.id
        chunks = self.log.handle.manifest().chunks()
        return [str(folder / path) for path in {c.object.path: c for _, c in chunks}]


def _delta_rs(folder: Path) -> pa.Table:
    from deltalake import DeltaTable, QueryBuilder

    query = QueryBuilder().register("t", DeltaTable(str(folder)))
    return pa.table(query.execute("SELECT key, value FROM t").read_all())


def _copied(folder: Path) -> pa.Table:
    from deltalake import DeltaTable

    return DeltaTable(str(folder)).to_pyarrow_table(columns=["key", "value"])


def _duckdb(source: str) -> pa.Table:
    import duckdb

    return pa.table(duckdb.sql(f"SELECT key, value FROM {source}").arrow())


def _arg_max(log: _Filled) -> pa.Table:
    # Names of objects ascend with their versions, rows with their offsets.
    scan = f"read_parquet({log.objects()}, filename = true, file_row_number = true)"
    latest = f"SELECT key, arg_max(value, (filename, file_row_number)) value FROM {scan}"
    return _duckdb(f"({latest} GROUP BY key) WHERE value IS NOT NULL")


def _upserts(bare: _Filled, masked: _Filled, result: Result, rounds: int) -> None:
    """An upsert is an append: its requests and CPU without and with masks and a published view."""
    logs = {"clog, published and masked": masked, "clog, neither": bare}
    for who, log in logs.items():
        with log.store.count() as requests:
            for _ in range(4):
                log.append()
        count = sum(requests.values()) / 4
        result.add("requests of an upsert", who, "requests", count, lower=True)
    cpu = {who: cpu_ms(log.append) for who, log in logs.items()}
    result.compare("CPU of an upsert", "ms", cpu, rounds=10 * rounds, lower=True)


def _publications(masked: _Filled, result: Result, rounds: int) -> None:
    cleaner = Cleaner(masked.log)
    cleaner.run_once()
    masked.log.publish("delta")

    def changed() -> float:
        masked.append()
        return timed(lambda: (cleaner.run_once(), masked.log.publish("delta")), 1e-3)()

    what = f"publication of {masked.size['changed']:,} changed keys"
    result.compare(what, "ms", {"clog": changed}, rounds=rounds, lower=True)
