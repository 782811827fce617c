"""Measures what a transaction adds to a micro-batch that is written in ``foreachBatch``.

    python benchmarks/parts/batch_transactions.py --batches 100
    python benchmarks/parts/batch_transactions.py --batches 10 --s3

Each round writes the same rows in each of four ways, in turn: appended to one log, in a transaction
to one log, appended to two logs, in a transaction over two logs. The appends are idempotent, by
``txnAppId`` and ``txnVersion``, as a batch that may run again needs; two of them can be torn.

Printed are medians of a batch: wall time, CPU time of Spark with all of its workers, and within a
round the time beyond the appends to as many logs. With ``--s3`` an S3 server (moto) has the logs,
and counts the requests; its times say nothing.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.machine import cpu_seconds
from harness.spark import session
from scenarios.requests import make_bucket, s3fs_options, server

WAYS = {
    "append, one log": None,
    "transaction, one log": "append, one log",
    "appends, two logs": None,
    "transaction, two logs": "appends, two logs",
}
"""And what each is compared with."""
SKIP = 10
"""Rounds that warm up."""
Batch = Callable[[int], None]


def batches(df: Any, root: str, options: dict[str, Any]) -> dict[str, Batch]:
    """What does a batch of this number, by way; each has logs of its own."""
    from clog.connector import transact_batches

    halves = [df.where(f"half = {half}").drop("half") for half in (0, 1)]
    whole = df.drop("half")
    urls = {way: [f"{root}/{n}-{log}" for log in "ab"] for n, way in enumerate(WAYS)}

    def append(rows: Any, url: str, number: int) -> None:
        writer = rows.write.format("clog").mode("append").options(**options)
        writer.option("txnAppId", "job").option("txnVersion", number).save(url)

    def appended(number: int) -> None:
        append(whole, urls["append, one log"][0], number)

    def appended_twice(number: int) -> None:
        for rows, url in zip(halves, urls["appends, two logs"], strict=True):
            append(rows, url, number)

    def transacted(way: str) -> Batch:
        def write(_: Any, t: Any, _number: int) -> None:
            for rows, url in zip([whole] if "one" in way else halves, urls[way], strict=False):
                t.write(rows, url)

        transact = transact_batches(urls[way][0], write, writerId="job", **options)
        return lambda number: transact(whole, number)

    deferred, over_two = transacted("transaction, one log"), transacted("transaction, two logs")
    return dict(zip(WAYS, (appended, deferred, appended_twice, over_two), strict=True))


@contextmanager
def stores(folder: Path, *, on_s3: bool) -> Iterator[tuple[str, dict[str, Any], Callable]]:
    """Where logs go, with which options, and what counts requests since it was last asked."""
    if not on_s3:
        yield str(folder), {"storage.fsync": "false"}, dict
        return
    with server() as (address, count):
        make_bucket(address)
        yield "s3://bucket", {"storage_options": json.dumps(s3fs_options(address))}, count


def measured(run: Batch, number: int, count: Callable) -> tuple[float, float, dict[str, int]]:
    """Wall and CPU milliseconds of a batch, and its requests."""
    count()
    cpu_s, start = cpu_seconds(), time.perf_counter()
    run(number)
    wall_ms = (time.perf_counter() - start) * 1e3
    cpu_ms = (cpu_seconds() - cpu_s) * 1e3
    requests = {name: n for name, n in count().items() if name.isupper()}
    return wall_ms, cpu_ms, requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--s3", action="store_true", help="count requests")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="clog-batch-transactions-"))
    found: dict[str, list] = {way: [] for way in WAYS}
    try:
        with session() as spark, stores(folder, on_s3=args.s3) as (root, options, count):
            ids = spark.range(0, args.rows, 1, args.tasks)
            df = ids.selectExpr(
                "string(id) key", "repeat(string(id), 20) value", "id % 2 half"
            ).localCheckpoint()
            ways = batches(df, root, options)
            for number in range(SKIP + args.batches):
                for way, run in ways.items():
                    figures = measured(run, number, count)
                    if number >= SKIP:
                        found[way].append(figures)
    finally:
        shutil.rmtree(folder)
    Console(width=130).print(table_of(found))


def table_of(found: dict[str, list]) -> Table:
    table = Table("way", "wall ms", "CPU ms", "+ wall ms", "+ CPU ms", "requests of the last batch")
    for way, figures in found.items():
        against = found.get(WAYS[way] or "")
        row = [f"{statistics.median(f[i] for f in figures):.0f}" for i in (0, 1)]
        for i in (0, 1) if against else ():
            over = [ours[i] - theirs[i] for ours, theirs in zip(figures, against, strict=True)]
            row.append(f"{statistics.median(over):+.0f}")
        requests = ", ".join(f"{n} {name}" for name, n in sorted(figures[-1][2].items()))
        table.add_row(way, *row, *[""] * (4 - len(row)), requests)
    return table


if __name__ == "__main__":
    main()
