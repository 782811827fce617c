"""Tables of results: Markdown, from the files that scenarios wrote."""

import importlib
import inspect
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.measure import CLOG
from harness.plots import draw
from harness.readme import LATER, side_by_side
from harness.results import RATIO, base_of, load, median_ratio, pair, ratios, short

REMARKS = Path(__file__).parent.parent / "remarks.md"
FIGURES = """# All figures of the benchmarks

`python benchmarks/run.py` generates this page from `benchmarks/results/`; do not edit it.
[Benchmarks](../docs/benchmarks.md) says what the figures mean, and where clog loses.
Below each table are its command, the machine, the versions and the sizes."""
SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)([.?!][)\"*_]*)\s+")


@dataclass(frozen=True, slots=True)
class Target:
    """The least ratio that clog wants to reach beside a peer."""

    scenario: str
    what: str
    peer: str
    least: float
    ours: str = CLOG


READ_LOG, READ_TABLE = "clog, read_log", "clog, read_table"
TARGETS = (
    Target("spark_streams", "source, 100 B", "Apache Kafka", 2),
    Target("spark_streams", "source, 1024 B", "Apache Kafka", 2),
    Target("spark_streams", "sink, 100 B", "Apache Kafka", 1),
    Target("spark_streams", "sink, 1024 B", "Apache Kafka", 1),
    Target("spark_parquet", "read, stored columns", "Parquet files (floor)", 0.65),
    Target("spark_parquet", "read, stored columns", "Parquet files (floor)", 0.93, READ_LOG),
    Target("spark_parquet", "read, all columns", "Parquet files (floor)", 0.65),
    Target("spark_parquet", "write", "Parquet files (floor)", 0.5),
    Target("kafka_cleaning", "cleaning, 100 B, never cleaned", "Apache Kafka", 3),
    Target(
        "kafka_cleaning",
        "clock with two threads of cleaning, 100 B, never cleaned",
        "Apache Kafka",
        3,
    ),
    Target("kafka_cleaning", "cleaning, 100 B, half clean", "Apache Kafka", 1.5),
    Target("kafka_cleaning", "cleaning, 1024 B, never cleaned", "Apache Kafka", 2.3),
    Target(
        "kafka_cleaning",
        "clock with two threads of cleaning, 1024 B, never cleaned",
        "Apache Kafka",
        2.5,
    ),
    Target("kafka_cleaning", "cleaning, 1024 B, half clean", "Apache Kafka", 1.7),
    Target("kafka_cleaning", f"{LATER}, 100 B, 10 % uniform updates", "Apache Kafka", 1.2),
    Target("kafka_cleaning", f"{LATER}, 100 B, 10 % local updates", "Apache Kafka", 1.2),
    Target("kafka_cleaning", f"{LATER}, 1024 B, 10 % uniform updates", "Apache Kafka", 1.2),
    Target("kafka_cleaning", f"{LATER}, 1024 B, 10 % local updates", "Apache Kafka", 1.2),
    Target("kafka_mirror", "topic into a log, 100 B", "bare consumer", 0.55),
    Target("kafka_mirror", "topic into a log, 1024 B", "bare consumer", 0.55),
    Target("kafka_mirror", "clock of topic into a log, 100 B", "bare consumer", 0.7),
    Target("kafka_mirror", "clock of topic into a log, 1024 B", "bare consumer", 0.7),
    Target("kafka_mirror", "log into a topic, 100 B", "bare producer", 0.5),
    Target("kafka_mirror", "log into a topic, 1024 B", "bare producer", 0.5),
    Target("spark_tables", "upsert of 20 rows", "Delta Lake", 10),
    Target("spark_tables", "upsert of 20 rows", "Delta Lake, deletion vectors", 10),
    Target("spark_tables", "table read", "Delta Lake", 0.95, READ_TABLE),
    Target("spark_tables", "table read", "Delta Lake, deletion vectors", 1.5, READ_TABLE),
    Target("spark_tables", "count()", "Delta Lake", 1, "clog, count_table"),
    Target("spark_tables", "one key", "Delta Lake", 3, READ_TABLE),
    Target("spark_latency", "micro-batch, median", "noop (floor)", 0.95, "clog, append_batches"),
    Target("spark_latency", "copy, median", "Apache Kafka", 0.9),
    Target("table_libraries", "table read, Python", "delta-rs", 1),
    Target("table_libraries", "CPU of table read, Python", "delta-rs", 1.1),
    Target("state_stores", "get, 1,000,000 keys", "RocksDB", 1),
    Target("state_stores", "get, 300,000 keys", "RocksDB", 0.4),
    Target("state_stores", "restore, 1,000,000 keys", "RocksDB, replayed", 2),
    Target("pypaimon_table", "table read", "PyPaimon", 1),
    Target("live_table", "table read, Python", "delta-rs, a Delta table", 1),
    Target("live_table", "table read, Python", "DuckDB, arg_max", 1),
    Target("live_table", "CPU of table read, noise", "delta-rs, 8 files", 0.65),
    Target("live_table", "CPU of table read, noise", "delta-rs, 8 files", 0.85, "clog, cleaned"),
)


def report(folder: Path) -> str:
    results = load(folder)
    parts = [_targets(results)]
    parts += [_scenario(result) for result in results.values()]
    return _page(parts)


def write_docs(folder: Path, root: Path) -> None:
    """Makes `docs/benchmarks.md` with the pictures that it shows, and `benchmarks/results.md`."""
    results = load(folder)
    pictures = draw(results, root / "docs" / "benchmarks")
    shown = "\n".join(f"![{title}](benchmarks/{name})" for name, title in pictures)
    parts = [REMARKS.read_text().strip(), side_by_side(results), _targets(results), shown]
    (root / "docs" / "benchmarks.md").write_text(_page(parts))
    parts = [FIGURES, *(_scenario(result) for result in results.values())]
    (root / "benchmarks" / "results.md").write_text(_page(parts))


def _page(parts: list[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _targets(results: dict[str, dict[str, Any]]) -> str:
    lines = []
    for target in TARGETS:
        rows = pair(results, target.scenario, target.what, target.peer, target.ours)
        if rows is None:
            continue
        ours, theirs = rows
        found = median_ratio(theirs, ours)
        verdict = "met" if found >= target.least else "**missed**"
        of = f"| {target.what} | {target.peer} | {target.least:g} | {found:.2f} | {verdict} |"
        lines.append(of)
    if not lines:
        return ""
    head = f"| what | other | {RATIO}, target | {RATIO}, measured | |\n|---|---|--:|--:|---|"
    return "## Targets\n\n" + "\n".join([head, *lines])


def _scenario(result: dict[str, Any]) -> str:
    module = importlib.import_module(f"scenarios.{result['scenario']}")
    text = _sentences(inspect.cleandoc(module.__doc__ or ""))
    machine = result["machine"]
    size = ", ".join(f"{k} {v:,}" for k, v in result["size"].items() if k != "name")
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    about = (
        f"`python benchmarks/run.py --only {result['scenario']}`, {result['seconds']:,} s in all:"
        f" {machine['cpu']}, {machine['cores']} cores, {machine['memory']}, {machine['system']},"
        f" load {machine['load']} at the start; {versions}; {size}."
    )
    parts = [f"## {result['title']}", text, _table(result), _lines(result)]
    parts += ["\n".join("- " + _sentences(note, "\n  ") for note in result["notes"]), about]
    return "\n\n".join(part for part in parts if part)


def _sentences(text: str, between: str = "\n") -> str:
    """Puts each sentence on a line of its own, as all documents have it."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return "\n\n".join(SENTENCE_END.sub(rf"\1{between}", paragraph) for paragraph in paragraphs)


def _table(result: dict[str, Any]) -> str:
    if not result["rows"]:
        return ""
    lines = [f"| what | who | median | lowest to highest | {RATIO} |"]
    lines.append("|---|---|--:|--:|--:|")
    before = None
    whats = list(dict.fromkeys(row["what"] for row in result["rows"]))
    for row in sorted(result["rows"], key=lambda row: whats.index(row["what"])):
        what = "" if row["what"] == before else f"{row['what']}, {row['unit']}"
        before = row["what"]
        values = row["values"]
        spread = "" if len(values) == 1 else f"{short(min(values))} to {short(max(values))}"
        who = f"{row['who']} ({row['note']})" if row["note"] else row["who"]
        cells = (what, who, short(statistics.median(values)), spread, _ratio(result, row))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _ratio(result: dict[str, Any], row: dict[str, Any]) -> str:
    base = base_of(result, row["what"])
    if base is None or base is row or base["who"] != CLOG or 0 in row["values"] + base["values"]:
        return ""
    found = ratios(row, base)
    spread = "" if len(found) == 1 else f" ({min(found):.2f} to {max(found):.2f})"
    return f"{statistics.median(found):.2f}{spread}"


def _lines(result: dict[str, Any]) -> str:
    """The first and the last point of each line; the picture has the others."""
    if not result["lines"]:
        return ""
    out = ["| what | who | at the beginning | at the end |", "|---|---|--:|--:|"]
    for line in result["lines"]:
        (x0, y0), (x1, y1) = line["points"][0], line["points"][-1]
        first = f"{short(y0)} at {x0:,.0f}"
        last = f"{short(y1)} at {x1:,.0f} {line['x']}"
        out.append(f"| {line['what']}, {line['unit']} | {line['who']} | {first} | {last} |")
    return "\n".join(out)
