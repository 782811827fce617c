"""Measures the table view of a half-dirty log beside reading the same log plainly.

    python benchmarks/parts/table_view.py --records 4000000 --keys 1000000 --repeat 5

The log has records of 100 bytes. The first half was cleaned, so that each key is in it once at
most; the second half is dirty. Both reads deliver all columns and run in turn; what counts is the
ratio within each round, as median and range. With ``--memory`` the view is made with a map that has
room for a quarter of the dirty keys, and what counts is the peak of the process.
"""

import argparse
import cProfile
import pstats
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.cleaner import Cleaner
from clog.storage import Log
from clog.storage.keys.latest import ROW_BYTES
from clog.storage.read.scan import read_pieces
from clog.storage.read.table import TablePlan, plan_table, table_batches

BATCH = 250_000
VALUE_BYTES = 84  # with a key of 16 bytes


def make_log(path: Path, records: int, keys: int) -> Log:
    if (path / "_clog").exists():
        return Log.open(str(path))
    log = Log.create(str(path), partitions=1, config={"min.cleanable.dirty.ratio": 0})
    rng = np.random.default_rng(1)
    for first in range(0, records, BATCH):
        count = min(BATCH, records - first)
        names = [b"%016x" % i for i in rng.integers(0, keys, count).tolist()]
        block = rng.bytes(count * VALUE_BYTES)
        values = [block[i * VALUE_BYTES : (i + 1) * VALUE_BYTES] for i in range(count)]
        log.append(pa.table({"key": pa.array(names), "value": pa.array(values)}))
        if first + count == records // 2:
            log.roll()
            Cleaner(log).run_once(force=True)
    return log


def read_log(log: Log) -> int:
    return sum(batch.num_rows for batch in log.read())


def read_view(log: Log) -> int:
    return sum(batch.num_rows for batch in log.table().to_batches())


def read_with_little_memory(log: Log) -> None:
    """Room for a quarter of the dirty keys; prints the peak of the process before and after."""
    plan = plan_table(log.handle.manifest(), 0)
    print(f"peak after opening: {peak_mib()} MiB")
    started = time.process_time()
    read_log(log)
    print(f"peak after reading plainly: {peak_mib()} MiB, {time.process_time() - started:.1f} s")
    keys = len(pc.unique(pa.concat_arrays(dirty_keys(log, plan))))
    budget = keys // 4 * ROW_BYTES
    print(f"{keys:,} dirty keys; the map has {budget / 2**20:.1f} MiB")
    code = f"import table_view as t; t.read_by_budget({str(log.url)!r}, {budget})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)


def dirty_keys(log: Log, plan: TablePlan) -> list[pa.Array]:
    batches = read_pieces(log.handle.store, plan.dirty, columns=("key",))
    return [batch.column("key") for batch in batches]


def read_by_budget(url: str, budget: int) -> None:
    """In a process of its own, whose peak is this read's."""
    log = Log.open(url)
    plan = plan_table(log.handle.manifest(), 0)
    started = time.process_time()
    rows = sum(b.num_rows for b in table_batches(log.handle.store, plan, map_bytes=budget))
    spent = time.process_time() - started
    print(f"view of {rows:,} keys: peak {peak_mib()} MiB, {spent:.1f} s of CPU")


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def seconds(act, log: Log) -> tuple[float, int]:
    start = time.process_time()
    rows = act(log)
    return time.process_time() - start, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("view-bench"))
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--memory", action="store_true")
    given = parser.parse_args()
    log = make_log(given.folder, given.records, given.keys)
    if given.memory:
        read_with_little_memory(log)
        return
    if given.profile:
        with cProfile.Profile() as profile:
            read_view(log)
        pstats.Stats(profile).sort_stats("tottime").print_stats(15)
        return
    plain, view = read_log(log), read_view(log)
    print(f"{plain} records there, {view} in the view; times are of CPU, one thread")
    ratios = []
    for _ in range(given.repeat):
        (plain_s, _), (view_s, _) = seconds(read_log, log), seconds(read_view, log)
        ratios.append(plain_s / view_s)
        print(f"read {plain_s:.2f} s, view {view_s:.2f} s, ratio {ratios[-1]:.2f}")
    print(f"ratio: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
