"""What do typed columns cost, beside the same rows as JSON in bytes and as plain Parquet?

CPU seconds of the process, medians of alternating runs, one partition, on a local disk: appending
and scanning rows of ten columns, reading two of them, reading the table.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clog.storage import Log

TWO = ["value.price", "value.quantity"]


def columns(rows: int) -> pa.Table:
    """Rows as a shop has them."""
    random = np.random.default_rng(1)
    days = random.integers(0, 10**9, rows) + 1_700_000_000_000_000
    return pa.table(
        {
            "id": random.integers(0, 1 << 40, rows),
            "price": random.random(rows) * 1000,
            "quantity": random.integers(0, 100, rows).astype(np.int32),
            "city": random.choice(["Riga", "Oslo", "Bonn", "Graz", "Lyon"], rows),
            "customer": [f"customer {n}" for n in random.integers(0, 50_000, rows)],
            "paid": random.random(rows) < 0.5,
            "seen": days.astype("M8[us]"),
            "weight": random.random(rows),
            "shelf": random.integers(0, 1000, rows),
            "note": [f"{n:x}{n * n:x}" for n in random.integers(0, 1 << 30, rows).tolist()],
        }
    )


def read_all(batches: Iterable[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def measured(runs: int, steps: dict[str, Callable[[], object]]) -> dict[str, float]:
    """CPU seconds of each step."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(runs):
        for name, step in steps.items():
            begun = time.process_time()
            step()
            taken[name].append(time.process_time() - begun)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--rows", type=int, default=300_000)
    given = parser.parse_args()
    pa.set_cpu_count(1)  # Plain Parquet would decode columns in parallel otherwise.
    table = columns(given.rows)
    keys = pa.array([f"order-{n}" for n in range(given.rows)])
    fields = [column.combine_chunks() for column in table.columns]
    value = pa.StructArray.from_arrays(fields, fields=list(table.schema))
    words = pa.array([json.dumps(row, default=str) for row in table.to_pylist()])
    rows, texts = (pa.table({"key": keys, "value": v}) for v in (value, words))
    flat = table.add_column(0, "key", keys)
    folder = Path(tempfile.mkdtemp())
    try:
        schema = {"key": pa.string(), "value": value.type}
        typed = Log.create(str(folder / "typed"), 1, schema=schema)
        blobs = Log.create(str(folder / "blobs"), 1)
        typed.append(rows), blobs.append(texts)
        file = folder / "plain.parquet"
        pq.write_table(flat, file, compression="zstd")
        seconds = measured(
            given.runs,
            {
                "scan: typed": lambda: read_all(typed.read()),
                "scan: JSON bytes": lambda: read_all(blobs.read()),
                "scan: plain Parquet": lambda: pq.read_table(file, use_threads=False),
                "two of ten: typed": lambda: read_all(typed.read(columns=TWO)),
                "table: typed": lambda: typed.table().to_arrow(),
                "table: JSON bytes": lambda: blobs.table().to_arrow(),
            },
        )
        seconds |= measured(
            given.runs,
            {
                "append: typed": lambda: typed.append(rows),
                "append: JSON bytes": lambda: blobs.append(texts),
                "append: plain Parquet": lambda: pq.write_table(flat, file, compression="zstd"),
            },
        )
    finally:
        shutil.rmtree(folder)
    for name, taken in seconds.items():
        print(f"{name:<24}{taken:8.3f} s  {given.rows / taken / 1e6:6.2f} million rows/s")
    for name, one, other in (
        ("append, typed ÷ plain Parquet", "append: plain Parquet", "append: typed"),
        ("append, typed ÷ JSON bytes", "append: JSON bytes", "append: typed"),
        ("scan, typed ÷ JSON bytes", "scan: JSON bytes", "scan: typed"),
        ("scan, typed ÷ plain Parquet", "scan: plain Parquet", "scan: typed"),
        ("two of ten ÷ all", "scan: typed", "two of ten: typed"),
        ("table, typed ÷ JSON bytes", "table: JSON bytes", "table: typed"),
    ):
        print(f"{name:<32}{seconds[one] / seconds[other]:6.2f}")


if __name__ == "__main__":
    main()
