"""The table in README.md: a line for each headline, between two marks.

A choice of what each scenario measures, with what clog loses; docs/benchmarks.md has every figure.
"""

import importlib
import statistics
from pathlib import Path
from typing import Any

from harness.results import RATIO, median_ratio, pair, short

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
COMMIT_A_MINUTE = "write amplification, commits of 60 s"
HEADLINES = (
    ("streaming source, 100 B", "spark_streams", "source, 100 B", "Apache Kafka"),
    ("streaming sink, 100 B", "spark_streams", "sink, 100 B", "Apache Kafka"),
    ("latest value of each key", "spark_streams", "full table, 100 B", "Apache Kafka"),
    ("micro-batch, log to log", "spark_latency", "copy, median", "Apache Kafka"),
    ("upsert of 20 rows", "spark_tables", "upsert of 20 rows", "Delta Lake, deletion vectors"),
    ("read of a table", "spark_tables", "table read", "Delta Lake"),
    ("batch read", "spark_parquet", "read, stored columns", "Parquet files (floor)"),
    ("batch write", "spark_parquet", "write", "Parquet files (floor)"),
    ("first cleaning, 100 B", "kafka_cleaning", "cleaning, 100 B, never cleaned", "Apache Kafka"),
    ("later cleaning, 1 KiB", "kafka_cleaning", "cleaning, 1024 B, half clean", "Apache Kafka"),
    ("read of a table, published", "live_table", "table read, Python", "delta-rs, a Delta table"),
    ("read of a table, not cleaned", "table_libraries", "table read, Python", "delta-rs"),
    ("look-up of a key", "table_libraries", "one key, Python", "delta-rs"),
    ("upsert of 20 rows", "pypaimon_table", "upsert of 20 rows, PyPaimon", "PyPaimon"),
    ("requests of such an upsert", "requests", "requests, upsert of 20 rows", "delta-rs"),
    (
        "write amplification, a commit a minute",
        "write_amplification",
        COMMIT_A_MINUTE,
        "Apache Kafka",
    ),
)
"""(as the table calls it, scenario, what, peer)."""


def write_table(readme: Path, results: dict[str, dict[str, Any]]) -> None:
    """Replaces what is between the marks.

    Raises:
        ValueError: the marks are not there.
    """
    before, begin, rest = readme.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{readme} has no {BEGIN} … {END}")
    readme.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}")


def table(results: dict[str, dict[str, Any]]) -> str:
    """Returns a line for each headline that was measured: the engine, both figures, the ratio."""
    lines = [
        f"| what | engine | clog | compared with | it has | {RATIO} |",
        "|---|---|--:|---|--:|--:|",
    ]
    for title, scenario, what, peer in HEADLINES:
        rows = pair(results, scenario, what, peer)
        if rows is None:
            continue
        ours, theirs = rows
        engine = importlib.import_module(f"scenarios.{scenario}").ENGINE
        figures = [short(statistics.median(row["values"])) for row in rows]
        ratio = short(median_ratio(theirs, ours))
        cells = (f"{title}, {ours['unit']}", engine, figures[0], peer, figures[1], ratio)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
