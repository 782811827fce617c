"""Measures the offset map beside what the machine allows for the same rows.

    python benchmarks/parts/offset_map.py --rows 4000000 --keys 1000000 --repeat 5

All candidates run once per round, in turn, so that a disturbed moment of the machine hits all of
them; what counts is the ratio to `put`, taken within each round. Rates are in million rows a
second, as median and range over the rounds. The peers compute the last offset of each key, in as
much memory as they like:

- `hash keys`: what a row costs before it reaches the map.
- `LatestKeys`: what the table view does: rows sorted in one piece, 40 bytes each.
- `argsort + reduceat`: NumPy sorts one word of the hash and takes the maximum of each group.
- `arrow group_by max`: Arrow's hash aggregation over both words, one thread.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from clog.cleaner.passes.offset_map import SLOT_BYTES, OffsetMap
from clog.storage.keys.hashing import hash_keys
from clog.storage.keys.latest import LatestKeys


def argsort_reduceat(hashes, offsets):
    order = np.argsort(hashes[:, 1])
    words = hashes[order, 1]
    starts = np.flatnonzero(np.concatenate([[True], words[1:] != words[:-1]]))
    return np.maximum.reduceat(offsets[order], starts)


def arrow_group_by(hashes, offsets):
    table = pa.table(
        {
            "high": np.ascontiguousarray(hashes[:, 0]),
            "low": np.ascontiguousarray(hashes[:, 1]),
            "offset": offsets,
        }
    )
    return table.group_by(["high", "low"], use_threads=False).aggregate([("offset", "max")])


def candidates(rows: int, keys: int, memory_bytes: int) -> dict[str, tuple[int, Callable]]:
    """Name -> (rows it handles, what to time). Every put fills an empty map."""
    ids = np.random.default_rng(1).integers(0, keys, rows)
    names = pa.array([b"key-%012d" % i for i in range(keys)], type=pa.binary())
    hashes = hash_keys(names, seed=1)[ids]
    offsets = np.arange(rows, dtype=np.int64)
    hashed = names.take(pa.array(ids[: rows // 4]))
    absent = np.random.default_rng(2).integers(0, 1 << 64, (rows // 4, 2), dtype=np.uint64)
    distinct = len(np.unique(ids))

    # The smallest map that holds all keys: filled to 0.9.
    usual = OffsetMap(memory_bytes=memory_bytes)
    full_bytes = SLOT_BYTES * (distinct * 10 // 9 + 2)
    full = OffsetMap(memory_bytes=full_bytes)
    assert usual.put(hashes, offsets) == full.put(hashes, offsets) == rows
    assert len(usual) == len(full) == distinct
    shares = [distinct / each.slots for each in (usual, full)]
    print(f"{rows} rows, {distinct} keys; filled {shares[0]:.2f} and {shares[1]:.2f}")

    def put(target: OffsetMap) -> None:
        target.clear()
        target.put(hashes, offsets)

    latest = LatestKeys(rows)

    def put_latest() -> None:
        latest.clear()
        latest.put(hashes, offsets)
        latest.last_offsets()

    put_latest()
    return {
        "put": (rows, lambda: put(usual)),
        "put, map full": (rows, lambda: put(full)),
        "get": (rows, lambda: usual.get(hashes)),
        "get, map full": (rows, lambda: full.get(hashes)),
        "get absent": (len(absent), lambda: usual.get(absent)),
        "get absent, map full": (len(absent), lambda: full.get(absent)),
        "latest_keys put": (rows, put_latest),
        "latest_keys get": (rows, lambda: latest.get(hashes)),
        "latest_keys get absent": (len(absent), lambda: latest.get(absent)),
        "hash keys": (len(hashed), lambda: hash_keys(hashed, seed=1)),
        "argsort + reduceat": (rows, lambda: argsort_reduceat(hashes, offsets)),
        "arrow group_by max": (rows, lambda: arrow_group_by(hashes, offsets)),
    }


def measure(timed: dict[str, tuple[int, Callable]], repeat: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(repeat):
        for name, (rows, run) in timed.items():
            start = time.perf_counter()
            run()
            rates[name].append(rows / (time.perf_counter() - start) / 1e6)
    return rates


def report(rates: dict[str, list[float]]) -> None:
    print(f"{'':24}{'M rows/s':>10}{'range':>16}{'put = 1':>10}{'range':>16}")
    for name, all_rates in rates.items():
        ratios = [rate / put for rate, put in zip(all_rates, rates["put"], strict=True)]
        cells = [name.ljust(24)]
        for values in (all_rates, ratios):
            cells.append(f"{statistics.median(values):10.2f}")
            cells.append(f"{min(values):.2f}-{max(values):.2f}".rjust(16))
        print("".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--memory-bytes", type=int, default=128 << 20)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    report(measure(candidates(args.rows, args.keys, args.memory_bytes), args.repeat))


if __name__ == "__main__":
    main()
