"""The table in README.md: a line for each headline, between two marks.

It shows every target (`report.TARGETS`), and what clog loses as well.
"""

import importlib
import statistics
from pathlib import Path
from typing import Any

from harness.report import TARGETS
from harness.results import RATIO, median_ratio, pair, short

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
MORE = (
    ("spark_latency", "copy, median", "Apache Kafka"),
    ("spark_streams", "full table, 100 B", "Apache Kafka"),
    ("spark_tables", "table read", "Delta Lake"),
    ("table_libraries", "upsert of 20 rows, Python", "delta-rs"),
    ("table_libraries", "table read, Python", "delta-rs"),
    ("table_libraries", "one key, Python", "delta-rs"),
    ("requests", "requests, upsert of 20 rows", "delta-rs"),
    ("write_amplification", "write amplification, commits of 1 s", "Apache Kafka"),
    ("write_amplification", "write amplification, commits of 60 s", "Apache Kafka"),
    ("pypaimon_table", "upsert of 20 rows, PyPaimon", "PyPaimon"),
)
"""(scenario, what, peer)."""


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
    lines = [f"| what | engine | clog | other | | {RATIO} |", "|---|---|--:|---|--:|--:|"]
    wanted = [(t.scenario, t.what, t.peer) for t in TARGETS]
    for scenario, what, peer in (*wanted, *MORE):
        rows = pair(results, scenario, what, peer)
        if rows is None:
            continue
        ours, theirs = rows
        engine = importlib.import_module(f"scenarios.{scenario}").ENGINE
        figures = [short(statistics.median(row["values"])) for row in rows]
        ratio = short(median_ratio(theirs, ours))
        cells = (f"{what}, {ours['unit']}", engine, figures[0], peer, figures[1], ratio)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
