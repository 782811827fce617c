"""Pictures of results: how clog compares, and how costs grow; the same for the same results."""

from pathlib import Path
from typing import Any

from harness.measure import CLOG
from harness.results import RATIO, base_of, median_ratio

BETTER, WORSE = "#2a7f62", "#b5483a"
COLOURS = {"clog": BETTER, "Delta Lake": "#3b6fb6", "delta-rs": "#3b6fb6", "PyIceberg": "#8a5fb0"}
COUNTED = ("on disk", "memory", "CPU", "bytes, ")


def draw(results: dict[str, dict[str, Any]], folder: Path) -> list[tuple[str, str]]:
    """Writes the pictures; returns the name and the title of each."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "clog", "font.size": 9, "svg.fonttype": "none"})
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    bars = _bars(results)
    made = [_ratios(bars, folder)] if bars else []
    for result in results.values():
        made += [_growth(what, result, folder) for what in _whats(result)]
    return made


def _bars(results: dict[str, dict[str, Any]]) -> list[tuple[str, float]]:
    found = []
    for result in results.values():
        for row in result["rows"]:
            base = base_of(result, row["what"])
            if base is None or base["who"] != CLOG or row["who"].startswith(CLOG):
                continue
            if row["what"].startswith(COUNTED) or 0 in row["values"] + base["values"]:
                continue
            label = f"{row['what']} · {row['who']}"
            found.append((label, median_ratio(row, base)))
    return found


def _ratios(bars: list[tuple[str, float]], folder: Path) -> tuple[str, str]:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 0.9 + 0.19 * len(bars)), layout="constrained")
    names, values = [b[0] for b in reversed(bars)], [b[1] for b in reversed(bars)]
    axes.barh(
        range(len(values)),
        [value - 1 for value in values],
        left=1,
        color=[BETTER if value >= 1 else WORSE for value in values],
    )
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_ylim(-0.7, len(names) - 0.3)
    title = f"{RATIO} (above 1: clog is better)"
    axes.set_xlabel(title)
    return _save(figure, folder, "ratios", title)


def _whats(result: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(line["what"] for line in result["lines"]))


def _growth(what: str, result: dict[str, Any], folder: Path) -> tuple[str, str]:
    from matplotlib import pyplot as plt

    lines = [line for line in result["lines"] if line["what"] == what]
    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    for line in lines:
        x, y = zip(*line["points"], strict=True)
        colour = COLOURS.get(line["who"])
        axes.plot(x, y, label=line["who"], color=colour, marker=".", markersize=3, linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(lines[0]["x"])
    axes.set_ylabel(f"{what}, {lines[0]['unit']}", fontsize=8)
    axes.legend(fontsize=7)
    return _save(figure, folder, "".join(c if c.isalnum() else "-" for c in what), what)


def _save(figure: Any, folder: Path, name: str, title: str) -> tuple[str, str]:
    from matplotlib import pyplot as plt

    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)
    return f"{name}.svg", title
