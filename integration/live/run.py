"""A log of many millions of records that a Spark stream still writes, two streams that follow it,
and `clog cleaner` beside them. At the end all is counted, and compared with what must be there.

    python integration/live/run.py                                  # 20 million records
    python integration/live/run.py --records 300000 --seconds 20    # a look

See README.md in this folder.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from cleaner_process import CleanerProcess
from pyspark.sql.streaming import StreamingQuery
from rich.console import Console
from rich.table import Table
from sequence import SLICE, expected_table, fold, records
from streams import FromStart, KeepUp, session, write

from clog.storage import Log

LOG_CONFIG = {"segment.bytes": 64 << 20, "segment.ms": 20_000}


def main() -> int:
    args = _arguments()
    console, work = Console(), Path(tempfile.mkdtemp(prefix="clog-live-", dir=args.work))
    try:
        facts, wrong = _run(args, work, console)
    finally:
        shutil.rmtree(work)
    table = Table("what", "value")
    for name, value in facts.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    console.print(table)
    for text in wrong:
        console.print(f"WRONG: {text}")
    return 1 if wrong else 0


def _run(
    args: argparse.Namespace, work: Path, console: Console
) -> tuple[dict[str, object], list[str]]:
    url = str(work / "log")
    log = Log.create(url, args.partitions, LOG_CONFIG, storage_options={"fsync": False})
    began = time.monotonic()
    for start in range(0, args.records, SLICE):
        log.append(records(start, min(start + SLICE, args.records), args.keys))
    facts: dict[str, object] = {
        "records there at first": args.records,
        "keys": args.keys,
        "appended in s": round(time.monotonic() - began, 1),
    }
    console.print(facts)
    spark = session()
    cleaner = CleanerProcess(url, work)
    try:
        keep_up = KeepUp(log.end_offsets())
        from_start = FromStart(np.full(args.keys, -1, np.int64))
        keep_up.start(spark, url, work)
        from_start.start(spark, url, work, batch=args.batch)
        writer = write(spark, url, work, first=args.records, keys=args.keys, rate=args.rate)
        queries = (writer, keep_up.query, from_start.query)
        _wait(args, log, cleaner, queries, lambda: from_start.records, console)
        batches = (writer.lastProgress or {}).get("batchId", 0)
        writer.stop()
        for query in (keep_up.query, from_start.query):
            query.processAllAvailable()
            query.stop()
        facts |= _of_the_cleaner(cleaner)
        facts["SIGTERM to end, s"] = round(cleaner.stop(), 1)
        troubles = cleaner.troubles
    finally:
        cleaner.kill()
        spark.stop()
    facts["micro-batches of the writer"] = batches
    more, wrong = _compared(log, keep_up, from_start, args)
    return facts | more, wrong + [f"the cleaner said: {text}" for text in troubles]


def _wait(
    args: argparse.Namespace,
    log: Log,
    cleaner: CleanerProcess,
    queries: Iterable[StreamingQuery],
    read: Callable[[], int],
    console: Console,
) -> None:
    """Until the time is over and the stream has written, however slowly its workers start; raises
    what a query failed of.
    """
    began, end = time.monotonic(), 0
    while time.monotonic() - began < args.seconds or end <= args.records:
        time.sleep(10)
        for query in queries:
            if (failure := query.exception()) is not None:
                raise failure
        end = sum(log.end_offsets().values())
        console.print(
            f"{time.monotonic() - began:.0f} s: end {end:,}, {len(cleaner.passes)} passes,"
            f" from the start {read():,} read"
        )


def _of_the_cleaner(cleaner: CleanerProcess) -> dict[str, object]:
    passes = [line["stats"] for line in cleaner.passes]

    def total(name: str) -> int:
        return sum(stats[name] for stats in passes)

    return {
        "passes": len(passes),
        "not complete": sum(not line["complete"] for line in cleaner.passes),
        "records removed": total("records_removed"),
        "tombstones stamped": total("tombstones_stamped"),
        "passes read MB": total("bytes_read") // 1_000_000,
        "passes wrote MB": total("bytes_written") // 1_000_000,
        "passes took s": round((total("index_ms") + total("clean_ms")) / 1000, 1),
        "peak memory of the cleaner, MiB": round(cleaner.peak_mib()),
        "requests of the cleaner": int(cleaner.metric("clog_store_requests_total")),
        "/readyz": cleaner.get("readyz"),
    }


def _compared(
    log: Log,
    keep_up: KeepUp,
    from_start: FromStart,
    args: argparse.Namespace,
) -> tuple[dict[str, object], list[str]]:
    """What the readers saw, and what is there, against what must be."""
    ends = log.end_offsets()
    count = sum(ends.values())
    read, missing, twice = keep_up.problems(ends)
    expected = expected_table(count, args.keys)
    table = np.full(args.keys, -1, np.int64)
    alive = fold(table, log.table().to_batches())
    described = log.describe()
    left = sum(d["records"] for d in described["partition_details"])
    facts = {
        "records ever appended": count,
        "records of the stream": count - args.records,
        "stream that keeps up: read": read,
        "stream that keeps up: missing": missing,
        "stream that keeps up: twice": twice,
        "stream from the start: read": from_start.records,
        "stream from the start: keys that differ": int((from_start.table != expected).sum()),
        "table: keys": alive,
        "table: keys that differ": int((table != expected).sum()),
        "records left in the log": left,
        "stored MB, of the newest version": described["object_bytes"] // 1_000_000,
        "stored MB, waiting to be deleted": described["released_bytes"] // 1_000_000,
        "objects": described["objects"],
    }
    must_be_none = [name for name in facts if name.endswith((": missing", ": twice", "differ"))]
    wrong = [f"{name}: {facts[name]:,}" for name in must_be_none if facts[name]]
    if count == args.records:
        wrong.append("the stream wrote nothing")
    return facts, wrong


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=int, default=20_000_000, help="there at first")
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rate", type=int, default=10_000, help="records of a micro-batch")
    parser.add_argument("--batch", type=int, default=1_000_000, help="of the stream from the start")
    parser.add_argument("--seconds", type=float, default=240, help="that the stream writes")
    parser.add_argument("--work", help="folder for everything (default: the system's)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
