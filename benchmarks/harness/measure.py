"""Rounds, and what comes out of them.

All candidates of a comparison run once in each round, so that a disturbed moment of the machine
hits all of them; what counts is the ratio within a round. The first round warms up and is
thrown away.
"""

import json
import multiprocessing
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

CLOG = "clog"
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate's figures.

    Attributes:
        what: the comparison that it belongs to.
        who: the candidate; those that start with "clog" are ours.
        values: one for each round.
        lower: whether less is better.
        note: what the reader must know of this row.
    """

    what: str
    who: str
    unit: str
    values: list[float]
    lower: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """How a cost grows: one candidate's points (x, y)."""

    what: str
    who: str
    x: str
    unit: str
    points: list[tuple[float, float]]


@dataclass(slots=True)
class Result:
    """What one scenario found."""

    rows: list[Row] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def compare(
        self,
        what: str,
        unit: str,
        candidates: Mapping[str, Callable[[], float]],
        *,
        rounds: int,
        lower: bool = False,
        warm: bool = True,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """Runs each candidate once a round; it returns its figure. Each round has an order of its
        own: what a candidate leaves behind, as memory that is free but not given back, helps or
        hinders the next. Stopped early, it keeps the rounds that are complete.
        """
        if warm:
            for candidate in candidates.values():
                candidate()
        found: dict[str, list[float]] = {who: [] for who in candidates}
        try:
            for number in range(rounds):
                for who in random.Random(f"{what} {number}").sample([*candidates], len(candidates)):
                    found[who].append(candidates[who]())
                    print(f"  {what}: {who}: {found[who][-1]:,.4g} {unit}", flush=True)
        finally:
            complete = min(len(values) for values in found.values())
            for who, values in found.items() if complete else ():
                note = (notes or {}).get(who, "")
                self.rows.append(Row(what, who, unit, values[:complete], lower, note))

    def add(self, what: str, who: str, unit: str, value: float, **more: object) -> None:
        """A figure that is counted, not timed: it is the same in each round."""
        self.rows.append(Row(what, who, unit, [float(value)], **more))
        print(f"  {what}: {who}: {value:,.4g} {unit}", flush=True)

    def save(self, path: Path, **about: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**about, **asdict(self)}, indent=1) + "\n")


def seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def rate(count: float, act: Callable[[], object]) -> Callable[[], float]:
    """A candidate: so many a second."""
    return lambda: count / seconds(act)


def timed(act: Callable[[], object], unit_s: float = 1.0) -> Callable[[], float]:
    """A candidate: how long it takes, in seconds or a part of them (`unit_s`)."""
    return lambda: seconds(act) / unit_s


def cpu_ms(act: Callable[[], object]) -> Callable[[], float]:
    """A candidate: the CPU time of all threads of this process, in ms."""

    def measured() -> float:
        start = time.process_time()
        act()
        return (time.process_time() - start) * 1e3

    return measured


def in_child(act: Callable[..., Found], *arguments: object) -> Found:
    """Calls it in a fresh process, so that memory, imports and caches are its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(act, *arguments).result()
