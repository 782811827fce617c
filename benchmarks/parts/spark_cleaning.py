"""Cleans a log of 64 partitions, one of them ten times the others, by one cleaner and by the tasks
of a Spark cluster of several worker processes.

    python benchmarks/parts/spark_cleaning.py --records 20000 --workers 2

Each way cleans a copy of the same log: as many records as said in each partition but one, of
100 B, their keys drawn from half as many, in segments of 1 MiB. Told are wall time, CPU time of all
processes (a machine that does other things beside makes walls longer, not CPU), and the most bytes
of new objects that waited for their commit at once, by the times of files and commits: the extra
space that a round takes, beside what waits for ``file.delete.delay.ms`` in any case. Spark's own
start is not in it, nor is that of its Python workers: a round over another log comes before.

With ``--sleep-ms`` each request to the store takes so much longer, in every way: that models a
store far away, and shows what goes on at once on a machine that has not a core for each worker.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyspark

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.machine import cpu_seconds
from harness.spark import session

from clog.cleaner import Cleaner
from clog.jobs import clean_with_spark
from clog.storage import Log
from clog.storage.commit.tip import try_read
from clog.storage.format import documents
from clog.storage.format.commits import edit_of
from clog.storage.store import open_store
from clog.storage.store.contract import WrappingStore

PARTITIONS = 64
LARGE = 10
RECORD_BYTES = 100
CONFIG = {"segment.bytes": 1 << 20, "min.cleanable.dirty.ratio": 0.1}


class Far(WrappingStore):
    """Answers each request so many seconds later."""

    def __init__(self, inner, seconds: float) -> None:
        super().__init__(inner)
        self.seconds = seconds

    def get(self, path, start=None, end=None):
        time.sleep(self.seconds)
        return super().get(path, start, end)

    def get_ranges(self, path, ranges):
        time.sleep(self.seconds)
        return super().get_ranges(path, ranges)

    def put(self, path, data):
        time.sleep(self.seconds)
        super().put(path, data)

    def create(self, path, data):
        time.sleep(self.seconds)
        super().create(path, data)


def make(folder: str, records: int) -> None:
    """A log whose partition 7 has ten times the records of each other."""
    log, made = Log.create(folder, PARTITIONS, CONFIG), np.random.default_rng(1)
    for p in range(PARTITIONS):
        count = records * (LARGE if p == 7 else 1)
        for at in range(0, count, 10_000):
            n = min(10_000, count - at)
            keys = [b"%012d" % k for k in made.integers(0, count // 2, n)]
            values = [made.bytes(RECORD_BYTES - 12) for _ in range(n)]
            rows = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
            log.append(pa.table(rows), partition=p)
    log.roll()


def waiting_bytes(folder: str, since: int, began_s: float) -> int:
    """The most bytes of objects that were written since a time and not yet committed."""
    handle = Log.open(folder).handle
    base = Path(folder, "_clog", handle.standing.log_id)
    changes: list[tuple[float, int]] = []
    for version in range(since, handle.tip.version + 1):
        commit = try_read(handle.store, version)
        assert commit is not None
        edit = edit_of(handle.store, commit.record)
        written = {c.object.path: c.object.size_bytes for r in edit.replace for c in r.chunks}
        committed_s = (base / documents.commit_path(version)).stat().st_mtime
        for path, size_bytes in written.items():
            written_s = (base / path).stat().st_mtime
            if written_s >= began_s:  # Else it was there before, and is referred to again.
                changes += [(written_s, size_bytes), (committed_s, -size_bytes)]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def measure(what: str, source: str, clean: Callable[[Log], object], sleep_s: float) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = f"{place}/log"
        shutil.copytree(source, folder)
        log = Log.open(Far(open_store(folder), sleep_s) if sleep_s else folder)
        since, began_s = log.handle.tip.version + 1, time.time()
        cpu, wall = cpu_seconds(), time.perf_counter()
        results = clean(log)
        wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
        assert len(results) == PARTITIONS
        assert all(r.complete for r in results)
        left = sum(1 for batch in Log.open(folder).read() for _ in range(batch.num_rows))
        waited = waiting_bytes(folder, since, began_s)
        written = sum(r.stats.bytes_written for r in results)
    print(
        f"{what:44} wall {wall:7.1f} s  CPU {cpu:7.1f} s  waiting {waited / 1e6:6.2f} of"
        f" {written / 1e6:.0f} MB written  {left} records left",
        flush=True,
    )


def use_spark_below(place: str) -> None:
    """Worker processes write beside Spark, so it is one of their own."""
    home = Path(place, "spark")
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        (home / path.name).symlink_to(path)
    os.environ["SPARK_HOME"] = str(home)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sleep-ms", type=float, default=0)
    args = parser.parse_args()
    sleep_s = args.sleep_ms / 1000
    with tempfile.TemporaryDirectory() as place:
        source, small = f"{place}/source", f"{place}/small"
        make(source, args.records)
        make(small, 100)
        large_bytes = args.records * LARGE * RECORD_BYTES
        measure("one cleaner, one thread", source, lambda log: Cleaner(log).run_once(), sleep_s)
        threads = args.workers
        measure(
            f"one cleaner, {threads} threads",
            source,
            lambda log: Cleaner(log, threads=threads).run_once(),
            sleep_s,
        )
        use_spark_below(place)
        cluster = {
            "spark.master": f"local-cluster[{args.workers},1,1024]",
            "spark.executor.memory": "512m",
        }
        with session(config=cluster) as spark:
            clean_with_spark(spark, small, tasks=threads)
            for what, task_bytes in (("", 1 << 40), (", the large one in parts", large_bytes // 4)):
                measure(
                    f"Spark, {threads} workers{what}",
                    source,
                    lambda log, size=task_bytes: clean_with_spark(
                        spark, log, tasks=threads, task_bytes=size
                    ),
                    sleep_s,
                )


if __name__ == "__main__":
    main()
