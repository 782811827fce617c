"""The table in README.md: a line for each headline, between two marks.

What is a target is there (`report.TARGETS`), and what clog loses is, too.
"""

import statistics
from pathlib import Path
from typing import Any

from harness.report import TARGETS, base_of, ratios, short

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
    """Exchanges what is between the marks.

    Raises:
        ValueError: the marks are not there.
    """
    before, begin, rest = readme.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{readme} has no {BEGIN} … {END}")
    readme.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}")


def table(results: dict[str, dict[str, Any]]) -> str:
    """Both figures and how many times as good clog is, for each headline that was measured."""
    lines = ["| what | clog | beside | | clog is so many times as good |", "|---|--:|---|--:|--:|"]
    wanted = [(t.scenario, t.what, t.peer) for t in TARGETS]
    for scenario, what, peer in (*wanted, *MORE):
        result = results.get(scenario)
        ours = result and base_of(result, what)
        rows = (
            [r for r in result["rows"] if (r["what"], r["who"]) == (what, peer)] if result else []
        )
        if not ours or not rows:
            continue
        figures = [short(statistics.median(row["values"])) for row in (ours, *rows)]
        times = short(statistics.median(ratios(rows[0], ours)))
        cells = (f"{what}, {ours['unit']}", figures[0], peer, figures[1], times)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
