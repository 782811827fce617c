"""Measures what a commit to a few of many partitions writes and costs.

    python benchmarks/parts/many_partitions.py --partitions 100,2048,10000

A log in memory, whose partitions are in random states (offsets, sizes, times, jitter). Then commits
of an append to some partitions each, one record to each. For a commit: bytes, by what they are
(`hints` and the files of blocks are left out), and CPU time: the median, and the mean, which has
snapshots and columns in it, too.
"""

import argparse
import statistics
import time
from collections import Counter

import numpy as np
import pyarrow as pa

from clog.storage import Log, ManualClock
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.store import open_store
from clog.storage.store.contract import WrappingStore

KINDS = {
    "commit": documents.COMMITS,
    "columns": documents.COLUMNS,
    "snapshots": documents.SNAPSHOTS,
    "pages": documents.PAGES,
    "objects": documents.DATA,
}
FILL_COMMITS = 100


class ByKind(WrappingStore):
    """Counts the bytes that are written, by what they are."""

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.written: Counter[str] = Counter()

    def put(self, path, data) -> None:
        self._count(path, data)
        self.inner.put(path, data)

    def create(self, path, data) -> None:
        self._count(path, data)
        self.inner.create(path, data)

    def _count(self, path, data) -> None:
        for kind, folder in KINDS.items():
            if f"/{folder}" in path:
                self.written[kind] += len(data)


def append(log: Log, rng: np.random.Generator, parts: np.ndarray, value_bytes: int) -> None:
    log.handle.clock.advance(int(rng.integers(0, 2_000)))
    values = [b"v" * n for n in rng.integers(0, value_bytes, len(parts))]
    keys = [b"%08x" % n for n in rng.integers(0, 1 << 32, len(parts))]
    table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    log.append(table, partition=parts)


def filled(store, partitions: int, rng: np.random.Generator) -> Log:
    """Each partition got records at two times, and was rolled between."""
    clock, ids = ManualClock(1_700_000_000_000), SeededIds(1)
    config = {"segment.jitter.ms": 3_600_000}
    log = Log.create(store, partitions, config, clock=clock, ids=ids)
    for rounds in range(2):
        for some in np.array_split(rng.permutation(partitions), FILL_COMMITS):
            append(log, rng, np.repeat(some, rng.integers(1, 40, len(some))), 300)
        if rounds == 0:
            log.roll()
    return log


def one(partitions: int, args: argparse.Namespace) -> None:
    rng = np.random.default_rng(1)
    store = ByKind(open_store(f"memory://many-partitions-{partitions}"))
    log = filled(store, partitions, rng)
    store.written.clear()
    cpu_ms, commit_bytes = [], []
    for _ in range(args.commits):
        parts = rng.integers(0, partitions, args.touched)
        before, begin = store.written["commit"], time.process_time()
        append(log, rng, parts, 30)
        cpu_ms.append((time.process_time() - begin) * 1e3)
        commit_bytes.append(store.written["commit"] - before)
    each = {kind: round(n / args.commits) for kind, n in store.written.items()}
    cpu = f"{statistics.median(cpu_ms):.1f} ms (median), {statistics.mean(cpu_ms):.1f} (mean)"
    print(
        f"{partitions:6} partitions  commit {round(statistics.median(commit_bytes)):7} B (median)"
        f"  all {sum(each.values()):7} B (mean: "
        + ", ".join(f"{kind} {each.get(kind, 0)}" for kind in KINDS)
        + f")  CPU {cpu}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--partitions", default="100,256,257,2048,10000")
    parser.add_argument("--touched", type=int, default=10)
    parser.add_argument("--commits", type=int, default=400)
    args = parser.parse_args()
    for partitions in args.partitions.split(","):
        one(int(partitions), args)


if __name__ == "__main__":
    main()
