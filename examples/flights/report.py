"""What the run left behind, in words and pictures.

All of it is read from the log, so a second run prints the same.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dataset import Counts
from rich.console import Console
from rich.table import Table

from clog.cli.describe import bar, legend
from clog.storage import Log

COLOURS = {
    "clean": "#2e8b57",
    "cleanable": "#e6a700",
    "uncleanable": "#a05195",
    "active": "#2f7ed8",
}


def totals(log: Log) -> dict[str, Any]:
    """Sums over the log's history and what is left of it."""
    commits = list(log.history())
    appends = [c for c in commits if c.operation == "append"]
    passes = [c for c in commits if c.operation == "clean" and c.first_dirty]
    state = log.describe()
    details = state["partition_details"]
    last_append = max((c.version for c in appends), default=-1)
    return {
        "micro_batches": len(appends),
        "appended_records": sum(c.records for c in appends),
        "appended_tombstones": sum(c.tombstones for c in appends),
        "appended_bytes": sum(c.size_bytes for c in appends),
        "appended_object_bytes": sum(c.object_bytes for c in appends),
        "passes": len(passes),
        "passes_during": sum(1 for c in passes if c.version < last_append),
        "records": sum(d["records"] for d in details),
        "tombstones": sum(d["tombstones"] for d in details),
        "bytes": sum(d["size_bytes"] for d in details),
        "object_bytes": state["object_bytes"],
        "segments": sum(d["segments"] for d in details),
    }


def layout(log: Log) -> list[dict[str, Any]]:
    """Of each partition what `describe` says, and its segments."""
    return [
        {**detail, "segment_list": [asdict(s) for s in log.segments(detail["partition"])]}
        for detail in log.describe()["partition_details"]
    ]


def remember(log: Log, path: Path, *, anew: bool) -> list[dict[str, Any]]:
    """The layout as the stream left it, before the last clean; kept in a file for runs that append
    nothing."""
    if anew or not path.exists():
        path.write_text(json.dumps(layout(log)))
    return json.loads(path.read_text())


def show(
    console: Console,
    log: Log,
    counts: Counts,
    left_by_stream: list[dict[str, Any]],
    table: dict[str, dict[str, Any]],
    busiest: Sequence[tuple[str, int, float]],
    differences: Sequence[str],
) -> None:
    t = totals(log)
    console.rule("[bold]the data set")
    for text, number in (
        ("flights in the data set", counts.flights),
        ("left out: no departure time (cancelled)", counts.without_departure_time),
        ("   of these also without a tail number (all that have none)", counts.without_tail_number),
        ("legs in the stream", counts.legs),
        ("   by aircraft", counts.aircraft),
        (
            "   aircraft without a master record: model is null",
            counts.aircraft_without_master_record,
        ),
        (
            "   legs to airports without one: position is null",
            counts.legs_to_airports_without_master_record,
        ),
        (
            "   legs that share their minute with another: order of the source",
            counts.legs_at_a_time_shared_with_another,
        ),
    ):
        console.print(f"  {text:<68}{number:>9,}")
    console.rule("[bold]the log")
    console.print(_sizes(t))
    console.print(
        f"  {t['micro_batches']} micro-batches; {t['passes']} passes of the cleaner,"
        f" {t['passes_during']} of them while the stream was appending"
    )
    gone = t["appended_tombstones"] - t["tombstones"]
    console.print(
        f"  {t['appended_tombstones']:,} tombstones appended, {gone:,} of them physically gone"
    )
    for title, partitions in (
        ("as the stream and the cleaner beside it left it:", left_by_stream),
        ("after the last clean:", layout(log)),
    ):
        console.print(f"\n  {title}")
        for p in partitions:
            kept = f"  {p['records']:,} records in {p['segments']} segments"
            console.print("  ", p["partition"], " ", bar(p, 40), kept, sep="", highlight=False)
    console.print()
    console.print(legend())
    console.rule("[bold]the latest position of each aircraft (view=table)")
    console.print(f"  {len(table):,} aircraft; the first five:")
    for tail in sorted(table)[:5]:
        leg = ", ".join(f"{name} {value}" for name, value in table[tail].items())
        console.print(f"  {tail}  {leg}", soft_wrap=True, highlight=False)
    console.print("  the airports that most of them flew to last:")
    for dest, aircraft, delay in busiest:
        console.print(f"  {dest}  {aircraft:,} aircraft, mean delay {delay} minutes")
    if differences:
        console.print(
            f"[bold red]DIFFERS from the independent computation in {len(differences)} places"
        )
        for line in differences[:10]:
            console.print(f"  {line}", soft_wrap=True)
    else:
        console.print(
            f"[bold green]EQUAL to the table computed without clog: {len(table):,} aircraft"
        )


def _sizes(t: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=True)
    for name in ("", "appended", "left", "removed"):
        table.add_column(name, justify="right" if name else "left")
    for name, before, after in (
        ("records", t["appended_records"], t["records"]),
        ("record bytes", t["appended_bytes"], t["bytes"]),
        ("bytes in the store", t["appended_object_bytes"], t["object_bytes"]),
    ):
        share = 100 * (before - after) / before if before else 0.0
        table.add_row(name, f"{before:,}", f"{after:,}", f"{before - after:,} ({share:.1f} %)")
    return table


def picture(path: Path, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """A PNG: each segment along its partition's offsets, coloured by the part of the log it is in,
    before and after the last clean."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    figure, panels = plt.subplots(2, 1, figsize=(11, 2 + 0.9 * len(before)), sharex=True)
    panels[0].set_title("as the stream and the cleaner beside it left the log", loc="left")
    panels[1].set_title("after the last clean", loc="left")
    for axes, partitions in zip(panels, (before, after), strict=True):
        for p in partitions:
            for s in p["segment_list"]:
                _segment(axes, p, s)
        axes.set_yticks([p["partition"] for p in partitions])
        axes.set_ylabel("partition")
        axes.invert_yaxis()
    panels[1].set_xlabel(
        "offset; the dark line under a segment is the share of its offsets that still has a record"
    )
    handles = [Patch(color=colour, label=name) for name, colour in COLOURS.items()]
    figure.legend(handles=handles, ncol=4, loc="upper right", frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _segment(axes: Any, partition: dict[str, Any], s: dict[str, Any]) -> None:
    if s["active"]:
        part = "active"
    elif s["clean"]:
        part = "clean"
    else:
        young = s["next_offset"] > partition["first_uncleanable_offset"]
        part = "uncleanable" if young else "cleanable"
    p, base = partition["partition"], s["base_offset"]
    width = s["next_offset"] - base
    axes.barh(p, width, left=base, height=0.6, color=COLOURS[part], edgecolor="white")
    axes.barh(p + 0.38, s["records"], left=base, height=0.09, color="#333333")
