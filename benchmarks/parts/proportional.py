"""Measures what a pass reads and writes when 1 % of a clean log changes, in both shapes.

    python benchmarks/parts/proportional.py --records 4000000
    python benchmarks/parts/proportional.py --records 1000000 --value-bytes 1000 --rounds 2

One partition, zstd, a folder of the local disk. The log is clean, each key once, in segments of
64 MiB. Then 1 % of the keys get a new value and a pass cleans:

- `neighbours`: keys that lie beside one another, so that few chunks hold a dead row;
- `spread`: keys at random, so that every chunk does: with bitmaps, and rewritten
  (``dead.rows.delay.ms=0``), which is what a log without bitmaps does.

Written are bytes of objects and bitmaps, as stored; `dead` is the dead records' share of the bytes
of their objects. `x dead` is what the pass wrote for a byte that died. Last, the records that were
clean before are read as of before the pass and after it, in turns, best of five: `read x` is the
second time ÷ the first.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from clog.cleaner import Cleaner, PassStats
from clog.storage import Log
from clog.storage.read.scan import plan_range, read_pieces

BATCH = 250_000
MB = 1e6


def rows(ids: np.ndarray, args: argparse.Namespace, rng: np.random.Generator) -> pa.Table:
    """Records of these keys; half of a value is random."""
    half = args.value_bytes // 2
    noise = rng.bytes(len(ids) * half)
    fill = b"v" * (args.value_bytes - half)
    values = [noise[i * half : (i + 1) * half] + fill for i in range(len(ids))]
    keys = pa.array([b"%016d" % i for i in ids], pa.binary())
    return pa.table({"key": keys, "value": pa.array(values, pa.binary())})


def clean_log(url: Path, args: argparse.Namespace, **config: object) -> Log:
    """Each key once, in order, cleaned."""
    given = {"segment.bytes": 64 << 20, "min.cleanable.dirty.ratio": 0, **config}
    log = Log.create(str(url), partitions=1, config=given)
    rng = np.random.default_rng(1)
    for first in range(0, args.records, BATCH):
        ids = np.arange(first, min(first + BATCH, args.records))
        log.append(rows(ids, args, rng), partition=0)
    log.roll()
    Cleaner(log).run_once(force=True)
    return log


def dirty(log: Log, args: argparse.Namespace, *, spread: bool, seed: int) -> None:
    """A new value for 1 % of the keys, sealed."""
    rng = np.random.default_rng(seed)
    count = args.records // 100
    first = int(rng.integers(0, args.records - count))
    ids = (
        rng.choice(args.records, count, replace=False)
        if spread
        else np.arange(first, first + count)
    )
    log.append(rows(ids, args, rng), partition=0)
    log.roll()


def read_ratio(log: Log, version: int, end: int) -> float:
    """Time to read the offsets below the end now ÷ at the version, the best of five each."""
    store = log.handle.store
    plans = [
        plan_range(m, 0, 0, end) for m in (log.handle.manifest_at(version), log.handle.manifest())
    ]
    best = [float("inf")] * 2
    for i in (0, 1) * 5:
        begin = time.perf_counter()
        for _ in read_pieces(store, plans[i]):
            pass
        best[i] = min(best[i], time.perf_counter() - begin)
    return best[1] / best[0]


def stored_bytes(log: Log) -> int:
    return sum(
        {c.object.path: c.object.size_bytes for _, c in log.handle.manifest().chunks()}.values()
    )


def show(name: str, stats: PassStats, dead_mb: float, size_mb: float, reading: float) -> None:
    written = stats.bytes_written / MB
    died = stats.records_superseded + stats.records_marked
    print(
        f"{name:24} read {stats.bytes_read / MB:8.1f} MB  wrote {written:8.2f} MB"
        f" ({written / size_mb:6.2%} of {size_mb:.0f} MB, {written / dead_mb:6.2f} x dead)"
        f"  died {died}  marked {stats.records_marked}"
        f"  {(stats.index_ms + stats.clean_ms) / 1000:6.2f} s  read x{reading:.2f}",
        flush=True,
    )
    assert died > 0


def one(folder: Path, args: argparse.Namespace, *, spread: bool, rewritten: bool) -> None:
    """A shape, as many rounds as asked for, each 1 %."""
    log = clean_log(folder / "log", args, **({"dead.rows.delay.ms": 0} if rewritten else {}))
    size_mb = stored_bytes(log) / MB
    version, end = log.version, args.records
    name = f"{'spread' if spread else 'neighbours'}{', rewritten' if rewritten else ''}"
    for n in range(args.rounds):
        dirty(log, args, spread=spread, seed=7 + n)
        (result,) = Cleaner(log).run_once(force=True)
        log.handle.refresh()
        show(f"{name} {n + 1}", result.stats, size_mb / 100, size_mb, read_ratio(log, version, end))
    shutil.rmtree(folder / "log")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--value-bytes", type=int, default=84)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="clog-proportional-"))
    try:
        for spread, rewritten in ((False, False), (False, True), (True, True), (True, False)):
            one(folder, args, spread=spread, rewritten=rewritten)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
