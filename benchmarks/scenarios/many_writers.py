"""Many writers of one log: clog's own code, run in virtual time.

A writer appends ten rows of 100 bytes, waits for a second on average (a Poisson process), and
appends again. A request takes 80 to 130 ms, one in a hundred three to six times as long; the time
that code takes is not counted. Counted is what begins after the first ten seconds. *Longest*, in
medians, is the longest append divided by the median. *Racing* are writers that may not propose.
*Beside others* means beside a cleaner that works all the time and one more writer, each of whose
requests takes a second.
"""

from pathlib import Path

from harness.crowd import Crowd, Found, measure
from harness.measure import Line, Result

TITLE = "Many writers of one log"
ENVIRONMENT = "own"
ENGINE = "Python"
SIZES = {
    "smallest": {"writers_max": 8, "seconds": 3, "racing_max": 1},
    "quick": {"writers_max": 64, "seconds": 10, "racing_max": 8},
    "full": {"writers_max": 1000, "seconds": 20, "racing_max": 64},
}
WRITERS = (1, 8, 64, 200, 1000)
MANY = 200


def run(size: dict[str, int], folder: Path, result: Result) -> None:  # noqa: ARG001
    seconds, most = size["seconds"], size["writers_max"]
    counts = [n for n in WRITERS if n <= most]
    ways = {
        "clog": {n: measure(Crowd(n, seconds)) for n in counts},
        "clog, racing": {
            n: measure(Crowd(n, seconds, combine=False)) for n in counts if n <= size["racing_max"]
        },
    }
    for who, found in ways.items():
        for n, one in found.items():
            add(result, f"{n} writers", who, one)
        for what, unit, figure in LINES:
            points = [(n, figure(one)) for n, one in found.items()]
            result.lines.append(Line(what, who, "writers", unit, points))
    if most < MANY:
        return
    kinds = {
        "16 partitions": Crowd(MANY, seconds, partitions=16),
        "`producer=`": Crowd(MANY, seconds, producers=True),
        "16 partitions, `producer=`": Crowd(MANY, seconds, partitions=16, producers=True),
        "beside others": Crowd(MANY - 1, seconds, busy=True),
    }
    for name, crowd in kinds.items():
        one = measure(crowd)
        add(result, f"{MANY} writers, {name}", "clog", one)
        if one.slow:
            worst = max(one.slow) / 1000
            result.add(f"{MANY} writers, {name}: the slow one", "clog", "s, longest", worst)
            longest = max(one.rounds, default=0) / 1000
            result.add(f"{MANY} writers, {name}: a round", "clog", "s, longest", longest)
            let_in = max((took for _, took, _ in one.commits), default=0) / 1000
            what = f"{MANY} writers, {name}: a commit of the cleaner"
            result.add(what, "clog", "s, longest", let_in)


LINES = (
    ("append by number of writers, p99", "s", lambda found: found.quantile(0.99) / 1000),
    ("appends by number of writers", "a second", lambda found: found.rate),
)


def add(result: Result, what: str, who: str, found: Found) -> None:
    kinds = ", ".join(f"{found.each(kind):.3g} {kind}" for kind in sorted(found.requests))
    result.add(f"{what}: appends", who, "a second", found.rate, note=kinds)
    result.add(f"{what}: an append", who, "s, p50", found.quantile(0.5) / 1000, lower=True)
    result.add(f"{what}: nearly all", who, "s, p99", found.quantile(0.99) / 1000, lower=True)
    result.add(f"{what}: longest", who, "medians", found.unfair, lower=True)
