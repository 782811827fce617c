"""Many processes that append to one log as fast as they can: how many commits get through, and does
everybody get a share?

    python benchmarks/parts/contention.py                  # 1, 8, 32 and 80 processes
    python benchmarks/parts/contention.py --processes 32 --seconds 20
    python benchmarks/parts/contention.py --threads 32     # threads of one process, on one Log

Each process appends one record at a time, each append a commit, to a log in a local folder. Printed
are commits in a second, the appends of the slowest, the median and the fastest, and how long an
append took. *slowest / median* is what decides (decision 0095): a third at least with 32.
"""

import argparse
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from clog.storage import Log


def main() -> int:
    args = _arguments()
    table = Table(*("who", "appends/s", "commits/s", "slowest", "median", "fastest"))
    for name in ("slowest / median", "append p50 ms", "p99 ms"):
        table.add_column(name, justify="right")
    for count in args.processes:
        table.add_row(f"{count} processes", *_measured(count, args, _in_processes))
    for count in args.threads:
        table.add_row(f"{count} threads", *_measured(count, args, _in_threads))
    Console(width=120).print(table)
    return 0


def _measured(count: int, args: argparse.Namespace, run) -> list[str]:
    folder = Path(tempfile.mkdtemp(prefix="clog-contention-", dir=args.work))
    try:
        log = Log.create(str(folder / "log"), partitions=1)
        took = run(str(folder / "log"), count, args.seconds)
        version = log.version
    finally:
        shutil.rmtree(folder)
    shares = sorted(map(len, took))
    everything = sorted(s for one in took for s in one)
    median = statistics.median(shares)
    return [
        f"{len(everything) / args.seconds:.0f}",
        f"{version / args.seconds:.0f}",
        *(str(shares[0]), f"{median:.0f}", str(shares[-1])),
        f"{shares[0] / median:.2f}" if median else "-",
        *(f"{1000 * _quantile(everything, q):.0f}" for q in (0.5, 0.99)),
    ]


def _quantile(values: list[float], q: float) -> float:
    return values[min(len(values) - 1, int(q * len(values)))] if values else 0.0


def _in_processes(url: str, count: int, seconds: float) -> list[list[float]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "clog.storage", "pyarrow.parquet"])
    gate, found = context.Barrier(count), context.Queue()
    writers = [
        context.Process(target=_write, args=(url, gate, found, seconds, i)) for i in range(count)
    ]
    for writer in writers:
        writer.start()
    took = [found.get() for _ in writers]
    for writer in writers:
        writer.join()
    return took


def _write(url: str, gate, found, seconds: float, name: int) -> None:
    log = Log.open(url)
    gate.wait()
    found.put(_append_for(log, seconds, name))


def _in_threads(url: str, count: int, seconds: float) -> list[list[float]]:
    log, took = Log.open(url), []

    def run(name: int) -> None:
        took.append(_append_for(log, seconds, name))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def _append_for(log: Log, seconds: float, name: int) -> list[float]:
    took, end = [], time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        log.append([{"key": f"k{name}", "value": "v" * 100}])
        took.append(time.monotonic() - began)
    return took


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 8, 32, 80])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 32])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--work", help="a folder for the log")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
