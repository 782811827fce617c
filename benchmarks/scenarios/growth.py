"""How costs grow with history: clog beside delta-rs and PyIceberg, one small append after another.

Each append is a commit of 20 rows of 100 bytes to a folder on the local disk. Nothing is cleaned,
compacted or expired, and nothing is synced to the disk (clog would, by default). A point is the
median of the appends since the previous point. Opening is that of a process that has just started:
it finds the newest version and its files. The peers stop earlier, because their growth is visible
by then.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from harness.measure import Line, Result

from clog.storage import Log
from scenarios.table_libraries import Changes, ClogTable, DeltaTable, IcebergTable

TITLE = "Growth with history"
ENVIRONMENT = "tables"
ENGINE = "Python"
SIZES = {
    "smallest": {"commits": 8, "peer_commits": 4},
    "quick": {"commits": 500, "peer_commits": 100},
    "full": {"commits": 10_000, "peer_commits": 500},
}
KEYS = 100_000


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    clog = ClogTable(folder / "clog", {"fsync": False})
    delta = DeltaTable(folder / "delta")
    iceberg = IcebergTable(folder / "iceberg")
    ours, theirs = size["commits"], size["peer_commits"]
    _grow(result, "clog", clog.fill, clog.upsert, lambda: _open_clog(folder / "clog"), ours)
    _grow(result, "delta-rs", delta.fill, delta.append, lambda: _open_delta(delta), theirs)
    opening = iceberg.reopen
    _grow(result, "PyIceberg", iceberg.fill, iceberg.append, opening, theirs)


def _open_clog(folder: Path) -> None:
    log = Log.open(str(folder))
    assert log.segments(0)


def _open_delta(table: DeltaTable) -> None:
    from deltalake import DeltaTable as Table

    assert Table(str(table.folder)).file_uris()


def _grow(
    result: Result,
    who: str,
    first: Callable,
    append: Callable,
    reopen: Callable[[], None],
    commits: int,
) -> None:
    changes = Changes(KEYS)
    first(changes.next())
    appends: list[tuple[float, float]] = []
    opens: list[tuple[float, float]] = []
    taken: list[float] = []
    points = _points(commits)
    for number in range(1, commits + 1):
        rows = changes.next()
        start = time.perf_counter()
        append(rows)
        taken.append((time.perf_counter() - start) * 1e3)
        if number in points:
            appends.append((number, statistics.median(taken)))
            opens.append((number, statistics.median(_open_ms(reopen) for _ in range(3))))
            taken.clear()
    for what, found in (("append", appends), ("open and list all files", opens)):
        result.lines.append(Line(f"{what} by number of commits", who, "commits", "ms", found))
        print(f"  {what}: {who}: {found[0][1]:.3g} to {found[-1][1]:.3g} ms", flush=True)


def _open_ms(reopen: Callable[[], None]) -> float:
    start = time.perf_counter()
    reopen()
    return (time.perf_counter() - start) * 1e3


def _points(commits: int) -> set[int]:
    """About six a decade."""
    found = {commits}
    point = 4.0
    while point < commits:
        found.add(round(point))
        point *= 1.45
    return found
