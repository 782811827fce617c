"""A state store beside RocksDB, from Python: look-ups, commits, and what a lost disk costs.

`get` is the median of look-ups of random keys, beside those of `rocksdict`. A commit has 1,000
changes of keys from all over the state, beside the same puts into RocksDB with its write-ahead log
and one append of 1,000 records to a log; a figure is the mean over enough commits that the store
enters them into its file. A restore begins with an empty disk, beside putting the same log, record
by record, into RocksDB. All figures are CPU time of all threads. RocksDB alone keeps nothing that
outlives its disk.
"""

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from harness.measure import Result

from clog.storage import Log, StateStore

TITLE = "State stores beside RocksDB"
ENVIRONMENT = "quix"  # It has RocksDB.
ENGINE = "Python"
SIZES = {
    "smallest": {"keys": 2_000, "few_keys": 1_000, "gets": 50, "commits": 2, "rounds": 1},
    "quick": {"keys": 200_000, "few_keys": 50_000, "gets": 5_000, "commits": 26, "rounds": 3},
    "full": {"keys": 1_000_000, "few_keys": 300_000, "gets": 20_000, "commits": 26, "rounds": 5},
}
CHANGES, VALUE_BYTES, BATCH = 1_000, 100, 200_000
ROCKS = "RocksDB"


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    for keys in (size["keys"], size["few_keys"]):
        _State(folder / str(keys), keys).measure(size, result)


class _State:
    """A log, a store of it, and RocksDB with the same rows."""

    def __init__(self, folder: Path, keys: int) -> None:
        self.folder, self.keys = folder, keys
        self.url, self.cache = str(folder / "log"), folder / "cache"
        self.log = Log.create(self.url, partitions=4)
        for first in range(0, keys, BATCH):
            some = [_key(i) for i in range(first, min(keys, first + BATCH))]
            self.log.append(_table(some, _values(len(some), first)))
        self.number = count(1)

    def measure(self, size: dict[str, int], result: Result) -> None:
        of, rounds = f"{self.keys:,} keys", size["rounds"]
        restores = {
            "clog": lambda: _cpu_s(lambda: self._restored().close()),
            f"{ROCKS}, replayed": lambda: _cpu_s(lambda: self._replayed().close()),
        }
        result.compare(f"restore, {of}", "CPU s", restores, rounds=rounds, lower=True)
        rocks = self._replayed()
        asked = [_key(i * 7919 % self.keys) for i in range(size["gets"])]
        with self._restored() as store:
            gets = {
                "clog": lambda: _median_us(store.get, asked),
                ROCKS: lambda: _median_us(rocks.get, asked),
            }
            result.compare(f"get, {of}", "CPU µs", gets, rounds=rounds, lower=True)
            bare = Log.create(str(self.folder / "bare"), partitions=4)
            turns = {
                "clog": lambda: self._commits(size, lambda rows: _commit(store, rows)),
                f"{ROCKS}, and an append": lambda: self._commits(
                    size, lambda rows: _put_and_append(rocks, bare, rows)
                ),
            }
            what = f"commit of {CHANGES:,}, {of}"
            result.compare(what, "CPU ms", turns, rounds=rounds, lower=True)
        rocks.close()
        self._kill()
        opened = _cpu_s(lambda: StateStore(self.url, self.cache, "bench").close())
        result.add(f"opening after a kill, {of}", "clog", "CPU ms", 1e3 * opened, lower=True)

    def _restored(self) -> StateStore:
        shutil.rmtree(self.cache, ignore_errors=True)
        return StateStore(self.url, self.cache, "bench")

    def _replayed(self) -> Any:
        """RocksDB, with its write-ahead log, with all records of the log."""
        from rocksdict import Options, Rdict, WriteBatch

        options = Options(raw_mode=True)
        options.create_if_missing(True)
        database = Rdict(str(self.folder / f"rocks-{next(self.number)}"), options)
        for batch in self.log.read(columns=["key", "value"]):
            some = WriteBatch(raw_mode=True)
            pairs = zip(*(batch.column(n).to_pylist() for n in ("key", "value")), strict=True)
            for key, value in pairs:
                some.put(key, value)
            database.write(some)
        return database

    def _commits(self, size: dict[str, int], commit: Callable[[pa.Table], None]) -> float:
        """The mean of one of them, in ms."""
        step = max(1, self.keys // CHANGES)
        tables = []
        for number in range(size["commits"]):
            keys = [_key(i) for i in range(number % step, min(self.keys, step * CHANGES), step)]
            tables.append(_table(keys, _values(len(keys), next(self.number))))
        taken = [_cpu_s(lambda table=table: commit(table)) for table in tables]
        return 1e3 * statistics.mean(taken)

    def _kill(self) -> None:
        """Commits in a process that ends as killed."""
        code = (
            "import os, sys; from clog.storage import StateStore\n"
            "s = StateStore(sys.argv[1], sys.argv[2], 'bench')\n"
            "s.put('killed', '1'); s.commit(); s.put('killed', '2'); os._exit(9)"
        )
        command = [sys.executable, "-c", code, self.url, str(self.cache)]
        assert subprocess.run(command, check=False).returncode == 9


def _key(number: int) -> bytes:
    """In no order, like ids."""
    return b"key-%016x" % (number * 0x9E3779B97F4A7C15 % 2**64)


def _values(rows: int, seed: int) -> list[bytes]:
    block = np.random.default_rng(seed).bytes(rows * VALUE_BYTES)
    return [block[i : i + VALUE_BYTES] for i in range(0, len(block), VALUE_BYTES)]


def _table(keys: list[bytes], values: list[bytes]) -> pa.Table:
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def _commit(store: StateStore, rows: pa.Table) -> None:
    for key, value in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        store.put(key, value)
    store.commit()


def _put_and_append(database: Any, bare: Log, rows: pa.Table) -> None:
    for key, value in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        database.put(key, value)
    bare.append(rows)


def _cpu_s(act: Callable[[], object]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


def _median_us(get: Callable[[bytes], Any], asked: list[bytes]) -> float:
    taken = []
    for key in asked:
        began = time.process_time_ns()
        get(key)
        taken.append(time.process_time_ns() - began)
    return statistics.median(taken) / 1000
