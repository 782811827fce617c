"""The main job: a year of flights into a log, cleaned meanwhile, a stream and a table out of it.

    ./demo                  runs it, or goes on where it was stopped
    ./demo --fresh          starts over
    ./demo --url s3://…     the same with the log elsewhere

See README.md in this folder.
"""

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import job
import oracle
import report
from dataset import SCHEMA, Counts, prepare
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from clog.cleaner import Cleaner
from clog.storage import AlreadyExistsError, Log

PARTITIONS = 4
STARTS_MAX = 5
TOO_SLOW = "Python worker failed to connect back"
CONFIG = {
    # A micro-batch brings about 200 KB a partition, so a segment holds a handful of them.
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.3",
    # A day each, where readers may be away for a night; here nobody is away for longer than this.
    "delete.retention.ms": "5000",
    "file.delete.delay.ms": "20000",
    # Spark shows the table with this column beside those of the value.
    "table.key.columns": "tail",
}


def main() -> int:
    args = _arguments()
    work = Path(args.work).resolve()
    url = args.url or str(work / "log")
    console = Console()
    if args.fresh:
        _start_over(url, work)
    work.mkdir(parents=True, exist_ok=True)
    with console.status("preparing the flights"):
        counts = prepare(work / "legs", args.until)
    log = _log(url)
    before = sum(log.end_offsets().values())
    spark = _spark(work)
    try:
        with _cleaner(url, work):
            _stream(spark, log, url, work, counts, console)
        appended = sum(log.end_offsets().values()) - before
        left_by_stream = report.remember(log, work / "left-by-stream.json", anew=appended > 0)
        _finish(log, console)
        table, busiest = _table(spark, url)
    finally:
        spark.stop()
    differences = oracle.differences(table, args.until)
    report.show(console, log, counts, left_by_stream, table, busiest, differences)
    report.picture(work / "log.png", left_by_stream, report.layout(log))
    console.print(
        f"this run appended {appended:,} records; picture: {work / 'log.png'}", soft_wrap=True
    )
    return 1 if differences else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="demo", description="A year of flights through a clog log."
    )
    parser.add_argument("--url", help="where the log is: any fsspec URL (default: WORK/log)")
    parser.add_argument(
        "--work", default="flights-run", help="folder for the rest (default: flights-run)"
    )
    parser.add_argument("--fresh", action="store_true", help="delete log and checkpoints first")
    parser.add_argument(
        "--until",
        default="2014-01-01",
        metavar="DAY",
        help="only flights before this day (default: the whole year)",
    )
    return parser.parse_args()


def _start_over(url: str, work: Path) -> None:
    import fsspec

    fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    if fs.exists(path):
        fs.rm(path, recursive=True)
    for name in ("legs", "checkpoints", "cleaner.jsonl", "left-by-stream.json", "log.png"):
        target = work / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def _log(url: str) -> Log:
    try:
        return Log.create(url, partitions=PARTITIONS, config=CONFIG, schema=SCHEMA)
    except AlreadyExistsError:
        return Log.open(url)


def _spark(work: Path) -> SparkSession:
    # Spark's workers run this Python, and find the example's modules.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    # Spark's own worker concatenates frames in a way that pandas warns of, once a micro-batch.
    os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    spark = (
        SparkSession.builder.appName("flights")
        .master("local[2]")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def _cleaner(url: str, work: Path) -> Iterator[None]:
    """`clog cleaner` in a process of its own, one JSON line a pass; stopped as an operator
    would."""
    command = [
        str(Path(sys.executable).with_name("clog")),
        "cleaner",
        url,
        "--json",
        "--config",
        "log.cleaner.backoff.ms=1000",
    ]
    with (work / "cleaner.jsonl").open("a") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=60)


def _stream(
    spark: SparkSession, log: Log, url: str, work: Path, counts: Counts, console: Console
) -> None:
    """Runs both queries until all flights are in and counted."""
    checkpoints = work / "checkpoints"
    writer = _running(
        lambda: job.write_flights(spark, str(work / "legs"), url, str(checkpoints / "flights"), {})
    )
    follower = _running(lambda: job.follow(spark, url, str(checkpoints / "live")))
    columns = (
        TextColumn("{task.description:<23}"),
        BarColumn(bar_width=16),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        rows = [
            progress.add_task(name, total=counts.legs, note="")
            for name in ("flights into the log", "log into the live count")
        ]
        cleaning = progress.add_task("cleaner", total=None, note="")
        while writer.isActive or _seen(follower) < sum(log.end_offsets().values()):
            end = sum(log.end_offsets().values())
            progress.update(rows[0], completed=min(end, counts.legs), note=f"{end:,} offsets")
            live = _live(spark)
            progress.update(
                rows[1],
                completed=min(sum(live.values()), counts.legs),
                note=" ".join(f"{n:,} {kind}" for kind, n in sorted(live.items())),
            )
            passes = _passes(work)
            note = f"{len(passes)} passes, {sum(passes):,} records removed"
            progress.update(cleaning, note=note)
            _raise_if_failed(writer, follower)
            time.sleep(1)
        _raise_if_failed(writer, follower)
        for row in rows:
            progress.update(row, completed=counts.legs)
    follower.stop()


def _running(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """The query, once its source is there. Spark gives Python ten seconds to start; a busy machine
    may need longer, so a query that died of that is started again."""
    for left in reversed(range(STARTS_MAX)):
        query = start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(0.2)
        failure = query.exception()
        if failure is not None and (left == 0 or TOO_SLOW not in str(failure)):
            raise failure
        if failure is None:
            break
    return query


def _live(spark: SparkSession) -> dict[str, int]:
    return {row["kind"]: row["count"] for row in spark.table("live").collect()}


def _seen(follower: StreamingQuery) -> int:
    """The sum of the offsets up to which the follower has read; less than that many records, once
    the cleaner was there first."""
    last = follower.lastProgress
    if not last or not last["sources"][0]["endOffset"]:
        return -1
    end = last["sources"][0]["endOffset"]
    offsets = json.loads(end) if isinstance(end, str) else end
    return sum(n for p, n in offsets.items() if p.isdigit())


def _passes(work: Path) -> list[int]:
    """Records removed by each pass so far."""
    lines = (work / "cleaner.jsonl").read_text().splitlines()
    return [json.loads(line)["stats"]["records_removed"] for line in lines if line.endswith("}")]


def _raise_if_failed(*queries: StreamingQuery) -> None:
    for query in queries:
        if (failure := query.exception()) is not None:
            raise failure


def _finish(log: Log, console: Console) -> None:
    """What an operator does who wants it clean now: seal, clean; and again when the last tombstones
    may go."""
    cleaner = Cleaner(log)
    log.roll()
    cleaner.run_once(force=True)
    with console.status("waiting until the last tombstones may go (delete.retention.ms)"):
        while horizons := [
            d["delete_horizon_ms"]
            for d in log.describe()["partition_details"]
            if d["tombstones"] and d["delete_horizon_ms"] is not None
        ]:
            time.sleep(max(0.0, min(horizons) / 1000 - time.time()) + 0.1)
            cleaner.run_once(force=True)


def _table(
    spark: SparkSession, url: str
) -> tuple[dict[str, dict[str, object]], list[tuple[str, int, float]]]:
    """The latest leg of each aircraft, by its tail number, and where most of them are: airport,
    aircraft, the mean delay of their last departures."""
    latest = spark.read.format("clog").option("view", "table")
    legs = latest.load(url).selectExpr("* EXCEPT (departed)", "unix_millis(departed) departed_ms")
    rows = [row.asDict() for row in legs.collect()]
    # Only these columns are fetched.
    at = latest.option("columns", "dest,delay_minutes").load(url).groupBy("dest")
    busiest = at.agg(F.count("*").alias("aircraft"), F.round(F.avg("delay_minutes"), 1))
    first = busiest.orderBy(F.desc("aircraft"), "dest").limit(3).collect()
    return {row.pop("tail"): row for row in rows}, [tuple(row) for row in first]


if __name__ == "__main__":
    sys.exit(main())
