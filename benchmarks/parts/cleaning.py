"""Measures a pass of the cleaner beside what the machine allows for the same bytes.

    python benchmarks/parts/cleaning.py --records 1000000 --keys 200000
    python benchmarks/parts/cleaning.py --records 10000000 --keys 2000000
    python benchmarks/parts/cleaning.py --records 1000000 --keys 250000 --value-bytes 1000

One thread, one partition, zstd, a folder of the local disk. The log is half dirty: its first half
was cleaned before, its second half has the same keys at random. Each round makes the log anew and
runs all candidates on it, one after the other; what counts is the ratio within a round. It is given
of wall clock and of CPU seconds: other processes disturb the second less. The map is short, so it
and its limit take `MAP_TURNS` turns in a round, whose median ratio counts.

- `map`: P1. Its limit: the key column of the dirty half, read and hashed.
- `pass`: all of it. Its limit: everything read, filtered by a mask that is there already, written.

Its memory: `cleaning_memory.py`.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from clog.cleaner import Cleaner, PassStats
from clog.cleaner.passes.offset_map import KeyHasher, build_map, empty_map
from clog.storage import Log
from clog.storage.keys.hashing import hash_keys
from clog.storage.objects.composing import write_rewritten
from clog.storage.read.scan import COLUMNS, DELETE_HORIZON, plan_range, read_pieces

BATCH = 250_000
MAP_TURNS = 5
MB = 1e6
_READ = (*(name for name in COLUMNS if name != "partition"), DELETE_HORIZON)


def fill(url: Path, args: argparse.Namespace) -> Log:
    """The log, half of it clean; returns it with the other half sealed and dirty."""
    config = {"segment.bytes": args.segment_bytes, "min.cleanable.dirty.ratio": 0}
    log = Log.create(str(url), partitions=1, config=config)
    rng = np.random.default_rng(args.seed)
    letters = np.frombuffer(b"0123456789abcdef", np.uint8)
    words = letters[rng.integers(0, 16, (1000, args.value_bytes // 2))]
    half = args.records // 2
    for start in (0, half):
        for first in range(start, start + half, BATCH):
            count = min(BATCH, start + half - first)
            ids = rng.integers(0, args.keys, count)
            digits = ids[:, None] // 10 ** np.arange(15, -1, -1) % 10
            # Half of a value is random, half repeats, as in real ones.
            heads = rng.integers(0, 256, (count, args.value_bytes // 2), np.uint8)
            tails = words[rng.integers(0, len(words), count)]
            records = {"key": binary(digits + ord("0")), "value": binary(np.hstack((heads, tails)))}
            log.append(pa.table(records), partition=0)
        log.roll()
        if start == 0:
            Cleaner(log).run_once(force=True)
    return log


def binary(rows: np.ndarray) -> pa.Array:
    """Rows of bytes, all of one length, as a column."""
    count, width = rows.shape
    offsets = pa.py_buffer(np.arange(0, (count + 1) * width, width, dtype=np.int32))
    data = pa.py_buffer(np.ascontiguousarray(rows, dtype=np.uint8))
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, data])


def map_limit(log: Log, start: int, end: int) -> int:
    """Reads and hashes the keys of a range; returns how many."""
    rows = 0
    store, manifest = log.handle.store, log.handle.manifest()
    for batch in read_pieces(store, plan_range(manifest, 0, start, end), columns=("offset", "key")):
        rows += len(hash_keys(batch.column("key"), seed=1))
    return rows


def copy_limit(log: Log, retained: np.ndarray) -> int:
    """Reads all, filters by the offsets that survive, writes; returns the rows written."""
    store, manifest = log.handle.store, log.handle.manifest()
    keep = np.zeros(log.end_offsets()[0], np.bool_)
    keep[retained] = True

    def kept():
        pieces = plan_range(manifest, 0, 0, len(keep))
        for batch in read_pieces(store, pieces, columns=_READ):
            yield batch.filter(pa.array(keep[batch.column("offset").to_numpy()]))

    objects = write_rewritten(store, kept(), partition=0, stamp=0, new_id=log.handle.ids.new_id)
    for obj in objects:
        store.delete(obj.ref.path)
    return sum(obj.ref.rows for obj in objects)


def retained_by(url: Path, folder: Path) -> np.ndarray:
    """The offsets that a pass leaves, found by a pass over a copy."""
    copy = folder / "copy"
    shutil.copytree(url, copy)
    log = Log.open(str(copy))
    Cleaner(log).run_once(force=True)
    offsets = [b.column("offset").to_numpy() for b in log.read()]
    shutil.rmtree(copy)
    return np.concatenate(offsets)


def one_round(folder: Path, args: argparse.Namespace) -> dict[str, float]:
    url = folder / "log"
    log = fill(url, args)
    manifest = log.handle.manifest()
    dirty, end = manifest.first_dirty[0], manifest.head.partitions.end[0]
    size_mb = sum(s.size_bytes for s in manifest.segments[0]) / MB
    records = sum(s.rows for s in manifest.segments[0])
    left = retained_by(url, folder)
    copy_limit(log, left[: len(left) // 100])  # warm caches for whoever comes first

    def mapped() -> None:
        build_map(
            *(log.handle.store, manifest, 0, (dirty, end)),
            offset_map=empty_map(manifest, 0, (dirty, end), 128 << 20),
            hasher=KeyHasher(1),
            stats=PassStats(),
        )

    turns = [(timed(lambda: map_limit(log, dirty, end)), timed(mapped)) for _ in range(MAP_TURNS)]
    map_limit_s, map_s = turns[-1]

    cleaner = Cleaner(Log.open(str(url)))
    results = []
    pass_s = timed(lambda: results.extend(cleaner.run_once(force=True)))
    stats = results[0].stats
    after = Log.open(str(url)).handle.manifest()
    copy_s = timed(lambda: copy_limit(log, left))
    assert len(left) == sum(s.rows for s in after.segments[0])
    return {
        "records": records,
        "MB of records": size_mb,
        "dirty records": end - dirty,
        "map, M records/s": (end - dirty) / map_s[0] / 1e6,
        "its limit, M records/s": (end - dirty) / map_limit_s[0] / 1e6,
        "map / limit, wall": statistics.median(limit[0] / its[0] for limit, its in turns),
        "map / limit, CPU": statistics.median(limit[1] / its[1] for limit, its in turns),
        "pass, M records/s": records / pass_s[0] / 1e6,
        "its limit, M records/s ": records / copy_s[0] / 1e6,
        "pass, MB/s": size_mb / pass_s[0],
        "its limit, MB/s": size_mb / copy_s[0],
        "pass / limit, wall": copy_s[0] / pass_s[0],
        "pass / limit, CPU": copy_s[1] / pass_s[1],
        "MB read": stats.bytes_read / MB,
        "MB written": stats.bytes_written / MB,
    }


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds of wall clock and of CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--value-bytes", type=int, default=72)
    parser.add_argument("--segment-bytes", type=int, default=64 << 20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rounds = []
    for _ in range(args.rounds):
        folder = Path(tempfile.mkdtemp(prefix="clog-cleaning-"))
        try:
            rounds.append(one_round(folder, args))
        finally:
            shutil.rmtree(folder)
    print(f"{'':32}{'median':>12}{'range':>22}")
    for name in rounds[0]:
        values = [r[name] for r in rounds]
        print(f"{name:32}{statistics.median(values):12.2f}{min(values):12.2f} -{max(values):9.2f}")


if __name__ == "__main__":
    main()
