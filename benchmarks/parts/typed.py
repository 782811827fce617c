"""What do typed columns cost, beside the same rows as JSON in bytes and as plain Parquet?

CPU seconds of the process, medians of alternating runs, one partition, on a local disk: appending
and scanning rows of ten columns, reading two of them, reading the table, cleaning it when half of
its rows were written again. Table and pass stand beside blobs as long as the typed values count,
too.
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
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clog.cleaner import Cleaner
from clog.storage import Log
from clog.storage.types.columns import value_sizes

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


def lines(table: pa.Table) -> pa.Array:
    """The same rows as text, as long as they count in columns: fewer digits, no names."""
    rounded = {"price": 2, "weight": 3}
    texts = []
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if name in rounded:
            column = pc.round(column, rounded[name])
        texts.append((column.cast(pa.int64()) if name == "seen" else column).cast(pa.string()))
    return pc.binary_join_element_wise(*texts, ",")


def len_of(texts: pa.Array) -> float:
    return float(pc.mean(pc.binary_length(texts)).as_py())


def read_all(batches: Iterable[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def made(folder: Path, name: str, rows: pa.Table, schema: dict[str, pa.DataType] | None) -> Log:
    """A log that holds the rows, and every other one twice, in segments that are sealed."""
    shutil.rmtree(folder / name, ignore_errors=True)
    log = Log.create(str(folder / name), 1, schema=schema)
    log.append(rows)
    log.append(rows.take(np.arange(0, rows.num_rows, 2)))
    log.roll()
    return log


def passes(runs: int, logs: dict[str, Callable[[], Log]]) -> dict[str, float]:
    """CPU seconds of a pass over each log, made anew each time."""
    taken: dict[str, list[float]] = {name: [] for name in logs}
    for _ in range(runs):
        for name, make in logs.items():
            cleaner = Cleaner(make())
            begun = time.process_time()
            (done,) = cleaner.run_once(force=True)
            taken[name].append(time.process_time() - begun)
            assert done.stats.records_superseded > 0
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


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
    short = lines(table)
    print(f"a value counts {value_sizes(value).mean():.0f} B, as a line {len_of(short):.0f} B")
    rows, texts, same = (pa.table({"key": keys, "value": v}) for v in (value, words, short))
    flat = table.add_column(0, "key", keys)
    folder = Path(tempfile.mkdtemp())
    try:
        schema = {"key": pa.string(), "value": value.type}
        typed = Log.create(str(folder / "typed"), 1, schema=schema)
        blobs = Log.create(str(folder / "blobs"), 1)
        sized = Log.create(str(folder / "sized"), 1)
        typed.append(rows), blobs.append(texts), sized.append(same)
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
                "table: blobs of that size": lambda: sized.table().to_arrow(),
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
        seconds |= passes(
            given.runs,
            {
                "pass: typed": lambda: made(folder, "a", rows, schema),
                "pass: JSON bytes": lambda: made(folder, "b", texts, None),
                "pass: blobs of that size": lambda: made(folder, "c", same, None),
            },
        )
    finally:
        shutil.rmtree(folder)
    for name, taken in seconds.items():
        print(f"{name:<28}{taken:8.3f} s  {given.rows / taken / 1e6:6.2f} million rows/s")
    for name, one, other in (
        ("append, typed ÷ plain Parquet", "append: plain Parquet", "append: typed"),
        ("append, typed ÷ JSON bytes", "append: JSON bytes", "append: typed"),
        ("scan, typed ÷ JSON bytes", "scan: JSON bytes", "scan: typed"),
        ("scan, typed ÷ plain Parquet", "scan: plain Parquet", "scan: typed"),
        ("two of ten ÷ all", "scan: typed", "two of ten: typed"),
        ("table, typed ÷ JSON bytes", "table: JSON bytes", "table: typed"),
        ("table, typed ÷ blobs", "table: blobs of that size", "table: typed"),
        ("pass, typed ÷ JSON bytes", "pass: JSON bytes", "pass: typed"),
        ("pass, typed ÷ blobs", "pass: blobs of that size", "pass: typed"),
    ):
        print(f"{name:<32}{seconds[one] / seconds[other]:6.2f}")


if __name__ == "__main__":
    main()
