"""Measures what key indexes spare: one key looked up, and a pass over few neighbouring dirty keys.

    python benchmarks/parts/key_lookup.py --keys 2000000

The log is clean, of one partition, on the local disk; values have 80 random bytes. Requests and
bytes are those that reach the store. The pass is run twice on copies of the log, with 1 % of the
keys dirty, all neighbours: as it is, and without asking indexes. Keys are UUIDs as text, spread
evenly, and "user-%012d" in order, which compress best.
"""

import argparse
import shutil
import statistics
import tempfile
import time
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa

from clog.cleaner import Cleaner
from clog.cleaner.passes import judge
from clog.storage import Log
from clog.storage.store import open_store
from clog_testing.counting import CountingStore

BATCH = 200_000
KEYS_MAX = judge.KEYS_MAX


def keys_of(shape, start, end):
    if shape == "in order":
        return [f"user-{i:012d}" for i in range(start, end)]
    spread = 0x9E3779B97F4A7C15F39CC0605CEDC835
    return [str(uuid.UUID(int=i * spread % (1 << 128))) for i in range(start, end)]


def put(log, keys, random):
    values = random.bytes(80 * len(keys))
    records = {
        "key": pa.array([key.encode() for key in keys], pa.binary()),
        "value": pa.array([values[80 * i : 80 * i + 80] for i in range(len(keys))], pa.binary()),
    }
    log.append(pa.table(records))


def fill(url, shape, count):
    """A clean log, each object of which was rewritten: every batch holds its first key twice."""
    random = np.random.default_rng(1)
    sizes = {"segment.bytes": 32 << 20, "object.bytes": 32 << 20}
    config = {"min.cleanable.dirty.ratio": 0, "dead.rows.delay.ms": 0, **sizes}
    log = Log.create(url, partitions=1, config=config)
    for start in range(0, count, BATCH):
        keys = keys_of(shape, start, min(start + BATCH, count))
        put(log, [keys[0], *keys], random)
    log.roll()
    Cleaner(log).run_once(force=True)


def look_up(url, shape, count):
    store = CountingStore(open_store(url))
    log = Log.open(store)
    chunks = [c for _, c in log.handle.manifest().chunks()]
    index_bytes = sum(c.object.index_bytes for c in chunks)
    size_mb = sum(c.object.size_bytes for c in chunks) / 1e6
    print(
        f"{shape}: {len(chunks)} objects, {size_mb:.0f} MB, indexes {index_bytes / 1e6:.1f} MB,"
        f" {index_bytes / count:.2f} bytes a key"
    )
    random = np.random.default_rng(2)
    asked = [keys_of(shape, i, i + 1)[0] for i in random.integers(0, count, 50).tolist()]
    absent = [key + "x" for key in asked]
    for name, keys in (("cold", asked[:1]), ("warm", asked[1:]), ("nowhere", absent)):
        before, times = store.counts.total(), []
        bytes_before = store.bytes_in
        for key in keys:
            started = time.perf_counter()
            found = log.table().get(key)
            times.append(time.perf_counter() - started)
            assert (found is None) == (name == "nowhere")
        print(
            f"  {name:8} {(store.counts.total() - before) / len(keys):5.2f} requests,"
            f" {(store.bytes_in - bytes_before) / len(keys) / 1e3:9.1f} kB,"
            f" median {statistics.median(times) * 1e3:.2f} ms"
        )


def clean(url, shape, count):
    for name, keys_max in (("with indexes", KEYS_MAX), ("without", -1)):
        copy = f"{url}-copy"
        shutil.copytree(url, copy)
        judge.KEYS_MAX = keys_max
        log = Log.open(copy)
        first = count // 3
        put(log, keys_of(shape, first, first + count // 100), np.random.default_rng(3))
        log.roll()
        cpu = time.process_time()
        (result,) = Cleaner(log).run_once(force=True)
        stats = result.stats
        print(
            f"  pass {name:13} {stats.bytes_read / 1e6:7.1f} MB read,"
            f" {stats.bytes_written / 1e6:.1f} MB written, {stats.chunks_untouched} chunks unread,"
            f" {time.process_time() - cpu:.2f} s of CPU"
        )
        assert stats.records_superseded == count // 100
        shutil.rmtree(copy)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=2_000_000)
    options = parser.parse_args()
    for shape in ("UUIDs", "in order"):
        with tempfile.TemporaryDirectory() as folder:
            url = str(Path(folder) / "log")
            fill(url, shape, options.keys)
            look_up(url, shape, options.keys)
            clean(url, shape, options.keys)


if __name__ == "__main__":
    main()
