"""Measures what the changes of few keys cost beside reading the table (`Log.changes`, net).

    python benchmarks/parts/changes.py --keys 10000000

Rows are narrow (an integer, one of five cities, an integer), in eight partitions, from ten appends,
on the local disk. 1,000 rows are upserted: neighbours, in eight groups, and spread at random. Each
candidate takes its turn in every round, after one to warm up; seconds are those of the CPU.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from clog.storage import Log

CHANGED = 1000
COLUMNS = pa.schema([("id", pa.int64()), ("city", pa.string()), ("minutes", pa.int64())])
CITIES = pa.array(["Riga", "Oslo", "Bern", "Kyiv", "Rome"])


def put(log, ids, random):
    cities = CITIES.take(pa.array(random.integers(0, len(CITIES), len(ids))))
    minutes = random.integers(0, 1_000_000, len(ids))
    log.append(pa.table([pa.array(ids), cities, pa.array(minutes)], schema=COLUMNS))


def places(count, random):
    """The keys that change, by how they lie."""
    step = count // 8
    groups = [np.arange(i * step, i * step + CHANGED // 8) for i in range(8)]
    return {
        "neighbours": np.arange(count // 2, count // 2 + CHANGED),
        "eight groups": np.concatenate(groups),
        "at random": random.choice(count, CHANGED, replace=False),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        log = Log.create(str(Path(folder) / "log"), key="id", like=COLUMNS, partitions=8)
        for ids in np.array_split(np.arange(options.keys), 10):
            put(log, ids, random)
        asked = {}
        for name, ids in places(options.keys, random).items():
            since = log.table().version
            put(log, ids, random)
            asked[name] = since, log.table().version
        seconds = {name: [] for name in ("table", *asked)}
        for _ in range(1 + options.rounds):
            opened = Log.open(log.url)
            for name, times in seconds.items():
                started = time.process_time()
                if name == "table":
                    rows, expected = opened.table().to_arrow().num_rows, options.keys
                else:
                    since, until = asked[name]
                    changed = opened.changes(since=since, until=until).to_arrow()
                    kinds = changed["_change_type"].to_pylist()
                    rows, expected = kinds.count("update_postimage"), CHANGED
                times.append(time.process_time() - started)
                assert abs(rows - expected) <= 1  # a row may be written as it was
    whole = statistics.median(seconds["table"][1:])
    for name, times in seconds.items():
        taken = statistics.median(times[1:])
        print(f"{name:14} {taken:6.2f} s of CPU   1/{whole / taken:.0f} of the table")


if __name__ == "__main__":
    main()
