"""Results as the scenarios wrote them, and the ratios that follow from them."""

import json
import statistics
from pathlib import Path
from typing import Any

from harness.measure import CLOG

FLOOR = "(floor)"
RATIO = "clog ÷ other"
"""How the column of ratios is headed, in every table and picture."""


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the results by scenario."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return {result["scenario"]: result for result in found}


def ratios(row: dict[str, Any], base: dict[str, Any]) -> list[float]:
    """Returns how many times better `base` is, round by round."""
    pairs = zip(base["values"], row["values"], strict=True)
    return [(theirs / ours if row["lower"] else ours / theirs) for ours, theirs in pairs]


def base_of(result: dict[str, Any], what: str, ours: str = CLOG) -> dict[str, Any] | None:
    """Returns the row that others are compared with: clog's, else the floor's; or that of one of
    clog's calls.
    """
    rows = [row for row in result["rows"] if row["what"] == what]
    named = [row for row in rows if row["who"] == ours]
    floors = [row for row in rows if FLOOR in row["who"] and ours == CLOG]
    return next(iter(named + floors), None)


def fallen(
    now: dict[str, dict[str, Any]], before: dict[str, dict[str, Any]], *, by: float = 0.1
) -> list[tuple[str, str, str, float, float]]:
    """Returns the rows in which clog does worse beside others than it did, by more than this part:
    scenario, what, who, and the median ratios before and now.
    """
    found = []
    for scenario, result in now.items():
        for row in result["rows"]:
            pairs = [pair(of, scenario, row["what"], row["who"]) for of in (before, now)]
            if row["who"] == CLOG or None in pairs:
                continue
            was, is_now = (
                statistics.median(ratios(peer, base)) for base, peer in filter(None, pairs)
            )
            if is_now < (1 - by) * was:
                found.append((scenario, row["what"], row["who"], was, is_now))
    return found


def pair(
    results: dict[str, dict[str, Any]], scenario: str, what: str, peer: str, ours: str = CLOG
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Returns clog's row, that of one of its calls, and the peer's; None where one of them was not
    measured.
    """
    result = results.get(scenario)
    base = base_of(result, what, ours) if result else None
    if result is None or base is None:
        return None
    theirs = [row for row in result["rows"] if (row["what"], row["who"]) == (what, peer)]
    return (base, theirs[0]) if theirs else None


def median_ratio(row: dict[str, Any], base: dict[str, Any]) -> float:
    """Returns the median of `ratios`."""
    return statistics.median(ratios(row, base))


def short(value: float) -> str:
    """Returns three digits, more where they are before the point."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
