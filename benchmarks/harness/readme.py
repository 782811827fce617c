"""The table of headlines in docs/benchmarks.md, and a few of its lines in README.md, between marks.

A choice of what each scenario measures, with what clog loses; benchmarks/results.md has every
figure.
"""

import importlib
import statistics
from collections.abc import Collection
from pathlib import Path
from typing import Any

from harness.results import RATIO, median_ratio, pair, short

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
COMMIT_A_MINUTE = "write amplification, commits of 60 s"
NATIVE = "clog, read_table"
LATER = "core, all that follows counted in of cleaning"
HEADLINES = (
    ("streaming source, 100 B", "spark_streams", "source, 100 B", "Apache Kafka"),
    ("streaming sink, 100 B", "spark_streams", "sink, 100 B", "Apache Kafka"),
    ("latest value of each key", "spark_streams", "full table, 100 B", "Apache Kafka"),
    ("micro-batch, log to log", "spark_latency", "copy, median", "Apache Kafka"),
    (
        "micro-batch into a log, `append_batches`",
        *("spark_latency", "micro-batch, median", "noop (floor)", "clog, append_batches"),
    ),
    ("upsert of 20 rows", "spark_tables", "upsert of 20 rows", "Delta Lake, deletion vectors"),
    ("read of a table, `read_table`", "spark_tables", "table read", "Delta Lake", NATIVE),
    (
        "read of a table, `read_table`",
        *("spark_tables", "table read", "Delta Lake, deletion vectors", NATIVE),
    ),
    ("count, `count_table`", "spark_tables", "count()", "Delta Lake", "clog, count_table"),
    ("one key, `read_table`", "spark_tables", "one key", "Delta Lake", NATIVE),
    (
        "batch read, `read_log`",
        *("spark_parquet", "read, stored columns", "Parquet files (floor)", "clog, read_log"),
    ),
    ("batch write", "spark_parquet", "write", "Parquet files (floor)"),
    ("first cleaning, 100 B", "kafka_cleaning", "cleaning, 100 B, never cleaned", "Apache Kafka"),
    ("first cleaning, 1 KiB", "kafka_cleaning", "cleaning, 1024 B, never cleaned", "Apache Kafka"),
    ("later cleaning, 1 KiB", "kafka_cleaning", "cleaning, 1024 B, half clean", "Apache Kafka"),
    (
        "a tenth of the keys updated, reads and purge included, 1 KiB",
        *("kafka_cleaning", f"{LATER}, 1024 B, 10 % local updates", "Apache Kafka"),
    ),
    ("read of a table, published", "live_table", "table read, Python", "delta-rs, a Delta table"),
    ("read of a table, not cleaned", "table_libraries", "table read, Python", "delta-rs"),
    ("CPU of that read", "table_libraries", "CPU of table read, Python", "delta-rs"),
    (
        "CPU of a read, values that do not compress",
        *("live_table", "CPU of table read, noise", "delta-rs, 8 files"),
    ),
    ("look-up of a key", "table_libraries", "one key, Python", "delta-rs"),
    ("the same", "table_libraries", "one key, Python", "DuckDB, a Parquet file"),
    ("upsert of 20 rows", "pypaimon_table", "upsert of 20 rows, PyPaimon", "PyPaimon"),
    ("requests of such an upsert", "requests", "requests, upsert of 20 rows", "delta-rs"),
    (
        "write amplification, a commit a minute",
        *("write_amplification", COMMIT_A_MINUTE, "Apache Kafka"),
    ),
    ("mirror of a topic, 100 B", "kafka_mirror", "topic into a log, 100 B", "bare consumer"),
    ("`get` of a state store, 1,000,000 keys", "state_stores", "get, 1,000,000 keys", "RocksDB"),
    ("the same, 300,000 keys", "state_stores", "get, 300,000 keys", "RocksDB"),
    ("its restore, 1,000,000 keys", "state_stores", "restore, 1,000,000 keys", "RocksDB, replayed"),
)
"""(as the table calls it, scenario, what, peer, and the call of clog's where it has several)."""
FIRST = (
    ("streaming source, 100 B", "Apache Kafka"),
    ("micro-batch, log to log", "Apache Kafka"),
    ("upsert of 20 rows", "Delta Lake, deletion vectors"),
    ("read of a table, `read_table`", "Delta Lake"),
    ("first cleaning, 1 KiB", "Apache Kafka"),
    ("a tenth of the keys updated, reads and purge included, 1 KiB", "Apache Kafka"),
    ("look-up of a key", "delta-rs"),
    ("mirror of a topic, 100 B", "bare consumer"),
)
"""Those of the README: for each use one, and the worst of all."""
SIDE_BY_SIDE = """## Side by side

*Engine* is the system that ran both candidates of a row.
*Floor* is plain Parquet without any table format.
*Later cleaning* is that of a log whose older half is already clean."""


def write_table(readme: Path, results: dict[str, dict[str, Any]]) -> None:
    """Replaces what is between the marks.

    Raises:
        ValueError: the marks are not there.
    """
    before, begin, rest = readme.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{readme} has no {BEGIN} … {END}")
    readme.write_text(f"{before}{BEGIN}\n{table(results, FIRST)}\n{END}{after}")


def side_by_side(results: dict[str, dict[str, Any]]) -> str:
    """Returns the part of the page of benchmarks with all headlines; nothing without results."""
    lines = table(results)
    return f"{SIDE_BY_SIDE}\n\n{lines}" if lines.count("\n") > 1 else ""


def table(
    results: dict[str, dict[str, Any]], only: Collection[tuple[str, str]] | None = None
) -> str:
    """Returns a line for each headline that was measured, or for each of ``only`` (title, peer):
    the engine, both figures, the ratio.
    """
    lines = [
        f"| what | engine | clog | compared with | it has | {RATIO} |",
        "|---|---|--:|---|--:|--:|",
    ]
    for title, scenario, what, *who in HEADLINES:
        if only is not None and (title, who[0]) not in only:
            continue
        rows = pair(results, scenario, what, *who)
        if rows is None:
            continue
        ours, theirs = rows
        engine = importlib.import_module(f"scenarios.{scenario}").ENGINE
        figures = [short(statistics.median(row["values"])) for row in rows]
        ratio = short(median_ratio(theirs, ours))
        cells = (f"{title}, {ours['unit']}", engine, figures[0], who[0], figures[1], ratio)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
