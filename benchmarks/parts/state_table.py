"""Measures a state table, and the embedded stores that it could be kept in.

    python benchmarks/parts/state_table.py --keys 1000000 --gets 20000 --folder /var/tmp/state-bench
    python benchmarks/parts/state_table.py --folds 12 --keys 1000000
    python benchmarks/parts/state_table.py --stores --keys 1000000        # decision 0004

The table: building it from a log, opening it from its file, `get` of random keys (median and 99th
percentile), `get_many`, and a refresh of a tail of 1 % of the keys; each beside what the machine
does without a table: reading the log plainly, and a `dict`.

With ``--folds`` the room that the table takes in its place: of the build, and of so many refreshes
of 15 % of the keys each, CPU time, how far the process's memory rose, and the most bytes that the
folder had.

The stores hold the same rows, entered in batches sorted by key. Loading is in CPU time, since a
busy machine stretches the other. Those that are not installed are left out.
"""

import argparse
import os
import shutil
import sqlite3
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.machine import memory_mb

from clog.storage import Log, StateTable

BATCH = 200_000


def keys_of(first: int, end: int) -> list[bytes]:
    """In no order, like ids."""
    return [b"key-%016x" % (i * 0x9E3779B97F4A7C15 % 2**64) for i in range(first, end)]


def values_of(count: int, size: int, seed: int) -> list[bytes]:
    block = np.random.default_rng(seed).bytes(count * size)
    return [block[i * size : (i + 1) * size] for i in range(count)]


def make_log(path: Path, keys: int, value_bytes: int) -> Log:
    if (path / "_clog").exists():
        return Log.open(str(path))
    log = Log.create(str(path), partitions=4)
    for first in range(0, keys, BATCH):
        some = keys_of(first, min(keys, first + BATCH))
        columns = {"key": some, "value": values_of(len(some), value_bytes, first)}
        log.append(pa.table({name: pa.array(v, pa.binary()) for name, v in columns.items()}))
    return log


def timed(what: str, act, count: int | None = None):
    wall, cpu = time.perf_counter(), time.process_time()
    result = act()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    rate = f", {count / cpu:,.0f} a second of CPU" if count else ""
    print(f"{what}: {wall:.3f} s, {cpu:.3f} s of CPU{rate}")
    return result


def latencies(what: str, get, asked: list[bytes]) -> None:
    taken = []
    for key in asked:
        start = time.perf_counter_ns()
        value = get(key)
        taken.append((time.perf_counter_ns() - start) / 1e3)
        assert value is not None
    warm = sorted(taken[len(taken) // 4 :])
    print(f"{what}: median {statistics.median(warm):.1f} µs, p99 {warm[len(warm) * 99 // 100]:.1f}")


def measure_table(folder: Path, keys: int, gets: int, value_bytes: int) -> None:
    log = make_log(folder / "log", keys, value_bytes)
    cache = folder / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    url = str(folder / "log")
    timed("read the log", lambda: sum(b.num_rows for b in log.read()), keys)
    timed("build", lambda: StateTable(url, cache).close(), keys)
    size = sum(path.stat().st_size for path in cache.iterdir())
    print(f"file: {size / 1e6:,.0f} MB, {size / keys:.0f} bytes a key")
    table = timed("open from the file", lambda: StateTable(url, cache))
    rng = np.random.default_rng(1)
    asked = [keys_of(i, i + 1)[0] for i in rng.integers(0, keys, gets).tolist()]
    latencies("get", table.get, asked)
    held = dict.fromkeys(asked, b"")
    latencies("get of a dict", held.get, asked)
    timed("get_many", lambda: table.get_many(asked), gets)
    tail = max(1, keys // 100)
    changed = [keys_of(i, i + 1)[0] for i in rng.integers(0, keys, tail).tolist()]
    log.append([{"key": key, "value": b"new"} for key in changed])
    timed("refresh", table.refresh, tail)
    assert table.get(changed[0]) == b"new"
    timed("refresh of nothing", table.refresh)
    timed("scan", lambda: sum(1 for _ in table.scan()), keys)
    table.close()


def measure_folds(folder: Path, keys: int, folds: int, value_bytes: int) -> None:
    log, cache, written, tables = (
        make_log(folder / "log", keys, value_bytes),
        folder / "cache",
        [],
        [],
    )
    shutil.rmtree(cache, ignore_errors=True)
    pwrite = os.pwrite

    def noted(number, data, at):
        done = pwrite(number, data, at)
        if len(data) > 1 << 16:
            written.append(sum(path.stat().st_blocks * 512 for path in cache.iterdir()))
        return done

    def measured(what, act):
        written.clear()
        Path("/proc/self/clear_refs").write_text("5")
        before, cpu = memory_mb(peak=False), time.process_time()
        act()
        cpu = time.process_time() - cpu
        print(
            f"{what}: {cpu:.1f} s of CPU, memory {memory_mb() - before:+.0f} MiB, disk at most"
            f" {max(written) / keys:.0f} bytes a key, then"
            f" {sum(path.stat().st_blocks * 512 for path in cache.iterdir()) / keys:.0f}"
        )

    os.pwrite = noted
    measured("build", lambda: tables.append(StateTable(str(folder / "log"), cache)))
    rng = np.random.default_rng(2)
    for number in range(folds):
        some = [keys_of(i, i + 1)[0] for i in rng.choice(keys, keys * 15 // 100, replace=False)]
        columns = {"key": some, "value": values_of(len(some), value_bytes, number)}
        log.append(pa.table({name: pa.array(v, pa.binary()) for name, v in columns.items()}))
        measured("refresh of 15 %", tables[0].refresh)
    tables[0].close()


def sqlite(folder: Path):
    c = sqlite3.connect(folder / "s.sqlite3", isolation_level=None)
    for pragma in ("journal_mode = wal", "synchronous = normal", "cache_size = -65536"):
        c.execute(f"pragma {pragma}")
    c.execute("create table if not exists s (k blob primary key, v blob) without rowid")

    def put(rows):
        c.execute("begin")
        c.executemany("insert or replace into s values (?, ?)", rows)
        c.execute("commit")

    return put, lambda k: c.execute("select v from s where k = ?", (k,)).fetchone(), c.close


def lmdb(folder: Path):
    import lmdb

    env = lmdb.open(str(folder), map_size=1 << 36)

    def put(rows):
        with env.begin(write=True) as txn:
            txn.cursor().putmulti(rows)

    def get(key):
        with env.begin() as txn:
            return txn.get(key)

    return put, get, env.close


def rocksdb(folder: Path):
    from rocksdict import Options, Rdict, WriteBatch

    db = Rdict(str(folder), Options(raw_mode=True))

    def put(rows):
        batch = WriteBatch(raw_mode=True)
        for key, value in rows:
            batch.put(key, value)
        db.write(batch)

    return put, db.get, db.close


def duckdb(folder: Path):
    import duckdb

    c = duckdb.connect(str(folder / "d.duckdb"))
    c.execute("create table if not exists s (k blob primary key, v blob)")

    def put(rows):
        columns = zip(*rows, strict=True)
        c.register("staged", pa.table([pa.array(x, pa.binary()) for x in columns], ["k", "v"]))
        c.execute("insert or replace into s select * from staged")

    return put, lambda k: c.execute("select v from s where k = ?", (k,)).fetchall(), c.close


def measure_stores(folder: Path, keys: int, gets: int, value_bytes: int) -> None:
    ids = np.random.default_rng(1).integers(0, keys, gets).tolist()
    asked = [keys_of(i, i + 1)[0] for i in ids]
    for make in (sqlite, lmdb, rocksdb, duckdb):
        place = folder / make.__name__
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        try:
            put, _, close = make(place)
        except ModuleNotFoundError as e:
            print(f"{make.__name__}: {e}")
            continue
        cpu = 0.0
        for first in range(0, keys, BATCH):
            some = keys_of(first, min(keys, first + BATCH))
            rows = sorted(zip(some, values_of(len(some), value_bytes, first), strict=True))
            start = time.process_time()
            put(rows)
            cpu += time.process_time() - start
        start = time.process_time()
        close()
        cpu += time.process_time() - start
        size = sum(path.stat().st_blocks * 512 for path in place.iterdir())
        start = time.perf_counter()
        _, get, close = make(place)
        get(asked[0])
        opened = time.perf_counter() - start
        print(
            f"{make.__name__}: load {keys / cpu:,.0f} a second of CPU, {size / keys:.0f} bytes a"
            f" key, open and first get {opened * 1e3:.1f} ms"
        )
        latencies(f"{make.__name__} get", get, asked)
        close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--gets", type=int, default=20_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path("state-bench"))
    parser.add_argument("--stores", action="store_true")
    parser.add_argument("--folds", type=int, default=0)
    given = parser.parse_args()
    if given.folds:
        measure_folds(given.folder, given.keys, given.folds, given.value_bytes)
        return
    measure = measure_stores if given.stores else measure_table
    measure(given.folder, given.keys, given.gets, given.value_bytes)


if __name__ == "__main__":
    main()
