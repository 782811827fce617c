"""Measures a state store beside RocksDB, and beside what it must do at least.

    python benchmarks/parts/state_store.py --keys 1000000

Each line is a ratio of one run: `get` of random keys beside ``rocksdict``'s; a commit of 1,000
changes beside the same puts into RocksDB with its write-ahead log and one bare append of 1,000
records, over so many that the store has entered what waits into its file twice; opening after the
process was killed; and a restore without the disk beside reading the same log, record by record of
every key, into RocksDB. All but the opening is in CPU time, of all threads: a busy machine
stretches the other.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from state_table import keys_of, make_log, values_of

from clog.storage import Log, StateStore

CHANGES = 1_000
ROUNDS = 130


def cpu_s(act: Callable[[], object]) -> float:
    """Returns the CPU seconds that something takes."""
    began = time.process_time()
    act()
    return time.process_time() - began


def median_get_us(get: Callable[[bytes], Any], asked: list[bytes]) -> float:
    """Returns the median of the CPU time of one look-up."""
    taken = []
    for key in asked:
        began = time.process_time_ns()
        get(key)
        taken.append(time.process_time_ns() - began)
    return statistics.median(taken) / 1000


def rocks(folder: Path) -> Any:
    """Opens RocksDB, with its write-ahead log, as it comes."""
    from rocksdict import Options, Rdict

    options = Options(raw_mode=True)
    options.create_if_missing(True)
    return Rdict(str(folder), options)


def load(database: Any, log: Log) -> None:
    """Enters all records of a log, as a restore from a changelog topic does."""
    from rocksdict import WriteBatch

    for batch in log.read(columns=["key", "value"]):
        some = WriteBatch(raw_mode=True)
        pairs = zip(*(batch.column(n).to_pylist() for n in ("key", "value")), strict=True)
        for key, value in pairs:
            some.put(key, value)
        database.write(some)


def put_all(put: Callable[[bytes, bytes], None], rows: list[tuple[bytes, bytes]]) -> None:
    for key, value in rows:
        put(key, value)


def changes_of(keys: int, round_: int) -> list[tuple[bytes, bytes]]:
    """Returns new values of keys from all over the state."""
    step = max(1, keys // CHANGES)
    chosen = [keys_of(i, i + 1)[0] for i in range(round_ % step, step * CHANGES, step)]
    return list(zip(chosen, values_of(len(chosen), 100, 10_000 + round_), strict=True))


def commits(store: StateStore, database: Any, bare: Log, keys: int) -> list[tuple[float, float]]:
    """Returns by round the CPU seconds of a commit, and those of RocksDB's puts and a bare
    append.
    """
    taken = []
    for i in range(ROUNDS):
        rows = changes_of(keys, i)
        columns = zip(("key", "value"), zip(*rows, strict=True), strict=True)
        table = pa.table({name: pa.array(column) for name, column in columns})

        def committed(rows: list[tuple[bytes, bytes]] = rows) -> None:
            put_all(store.put, rows)
            store.commit()

        ours = cpu_s(committed)
        theirs = cpu_s(lambda rows=rows: put_all(database.put, rows))
        append = cpu_s(lambda table=table: bare.append(table))
        taken.append((ours, theirs + append))
    return taken


def killed(url: str, cache: Path) -> None:
    """Commits in a process that ends as killed."""
    code = (
        "import os, sys; from clog.storage import StateStore\n"
        "s = StateStore(sys.argv[1], sys.argv[2], 'bench')\n"
        "s.put('killed', '1'); s.commit(); s.put('killed', '2'); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, url, str(cache)], check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--gets", type=int, default=20_000)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp())
    log = make_log(folder / "log", given.keys, 100)
    cache = folder / "cache"

    def restore() -> StateStore:
        shutil.rmtree(cache, ignore_errors=True)
        return StateStore(str(folder / "log"), cache, "bench")

    database = rocks(folder / "rocks")
    ours, theirs = cpu_s(lambda: restore().close()), cpu_s(lambda: load(database, log))
    print(f"restore of {given.keys:,} keys: {ours:.2f} s of CPU; {theirs:.2f} s into RocksDB")
    print(f"restore ÷ reading the log into RocksDB: {ours / theirs:.2f}")
    numbers = [i * 7919 % given.keys for i in range(given.gets)]
    asked = [keys_of(i, i + 1)[0] for i in numbers]
    with StateStore(str(folder / "log"), cache, "bench") as store:
        gets = [median_get_us(get, asked) for get in (store.get, database.get)]
        print(f"get, median: {gets[0]:.1f} µs, RocksDB {gets[1]:.1f} µs: {gets[0] / gets[1]:.2f}")
        bare = Log.create(str(folder / f"bare-{os.getpid()}"), partitions=4)
        taken = commits(store, database, bare, given.keys)
        ours, theirs = (1e3 * sum(column) / ROUNDS for column in zip(*taken, strict=True))
        print(f"commit of {CHANGES}, mean: {ours:.1f} ms; RocksDB + append {theirs:.1f} ms")
        middle = statistics.median(mine / other for mine, other in taken)
        print(f"commit of {CHANGES} ÷ (RocksDB + append): {ours / theirs:.2f}, median {middle:.2f}")
    killed(str(folder / "log"), cache)
    wall, cpu = time.perf_counter(), time.process_time()
    with StateStore(str(folder / "log"), cache, "bench") as store:
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert store.get("killed") == b"1"
    print(f"opening after a kill: {1e3 * wall:.0f} ms, {1e3 * cpu:.0f} ms of CPU")
    database.close()
    if given.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
