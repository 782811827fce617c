"""Many seeds: run, counted, and remembered between sittings."""

import gc
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path

from planted import planted
from planted_deals import CUT_BUGS, DEAL_BUGS
from planted_erasures import ERASURE_BUGS
from planted_mirrors import MIRROR_BUGS
from planted_orders import ORDER_BUGS
from planted_proposals import PROPOSAL_BUGS
from planted_state import STATE_BUGS
from world import (
    SEVERAL,
    SPECIAL_EVERY,
    World,
    is_of_authors,
    is_of_cuts,
    is_of_erasures,
    is_of_mirrors,
    is_of_orders,
    is_of_states,
    is_ordered,
    world_of,
)

_FAILURES_MAX = 100


@dataclass
class Tally:
    """What seeds have shown.

    Attributes:
        next: the first seed that was not run.
        lengths: how many runs had so many calls.
        failures: (seed, what was broken).
    """

    next: int = 0
    seeds: int = 0
    cpu_s: float = 0.0
    marks: Counter = field(default_factory=Counter)
    lengths: Counter = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path | None, *, first: int) -> "Tally":
        """What the file remembers; where there is none, nothing."""
        if path is None or not path.exists():
            return cls(next=first)
        known = json.loads(path.read_text())
        lengths = {int(length): times for length, times in known.pop("lengths").items()}
        marks, failures = Counter(known.pop("marks")), [tuple(f) for f in known.pop("failures")]
        return cls(**known, marks=marks, lengths=Counter(lengths), failures=failures)

    def save(self, path: Path) -> None:
        """Whole or not at all."""
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(self.__dict__))
        fresh.replace(path)

    def add(self, other: "Tally") -> None:
        """What the seeds after these have shown, too."""
        self.next = other.next
        self.seeds += other.seeds
        self.cpu_s += other.cpu_s
        self.marks.update(other.marks)
        self.lengths.update(other.lengths)
        self.failures = (self.failures + other.failures)[:_FAILURES_MAX]

    def report(self) -> str:
        """One line."""
        lengths = sorted(self.lengths.elements())
        median = lengths[len(lengths) // 2] if lengths else 0
        rate = self.seeds / self.cpu_s if self.cpu_s else 0.0
        return (
            f"{self.seeds} seeds, {len(self.failures)} failed; median {median} store calls;"
            f" {self.cpu_s / 3600:.2f} CPU-hours, {rate:.1f} seeds a CPU-second"
        )


def run_one(seed: int) -> tuple[World, str | None]:
    """The world after its run, and what was broken."""
    world = world_of(seed)
    try:
        world.run()
    except Exception as e:
        return world, f"{type(e).__name__}: {e}"
    return world, None


def is_of_deals(seed: int) -> bool:
    """Whether its world is made for transactions over several logs."""
    return seed % SPECIAL_EVERY in SEVERAL


KINDS = {
    "transactions": is_of_deals,
    "authors": is_of_authors,
    "ordered": is_ordered,
    "orders": is_of_orders,
    "erasures": is_of_erasures,
    "cuts": is_of_cuts,
    "mirrors": is_of_mirrors,
    "states": is_of_states,
}
"""Worlds that are made for something, by what that is."""
_MADE_FOR = {
    "transactions": DEAL_BUGS,
    "authors": PROPOSAL_BUGS,
    "orders": ORDER_BUGS,
    "erasures": ERASURE_BUGS,
    "cuts": CUT_BUGS,
    "mirrors": MIRROR_BUGS,
    "states": STATE_BUGS,
}


def run_chunk(seeds: tuple[int, int, str | None]) -> Tally:
    """Runs seeds from one to before the other; only those of one of `KINDS`, if that is asked."""
    first, end, only = seeds
    tally = Tally(next=end)
    gc.set_threshold(50_000)  # A world has many small objects, and soon ends.
    started_s = time.process_time()
    for seed in range(first, end):
        if only is not None and not KINDS[only](seed):
            continue
        world, failure = run_one(seed)
        tally.seeds += 1
        tally.marks.update(world.marks)
        tally.lengths[len(world.trace)] += 1
        if failure is not None:
            tally.failures.append((seed, failure))
    tally.cpu_s = time.process_time() - started_s
    return tally


def find(name: str, *, first: int, seeds: int, enough: int) -> tuple[list[int], int, str]:
    """Plants a bug, and runs up to so many seeds from the first on, until enough of them find it:
    those of the worlds that are made for what it is one of.

    Returns the seeds that found it, how many ran, and what the first of them says.
    """
    found: list[int] = []
    message = ""
    ran = 0
    with planted(name):
        made = [KINDS[kind] for kind, bugs in _MADE_FOR.items() if name in bugs]
        asked = made[0] if made else lambda _seed: True
        for seed in islice(filter(asked, count(first)), seeds):
            _, failure = run_one(seed)
            ran += 1
            if failure is not None:
                found.append(seed)
                message = message or failure
            if len(found) == enough:
                break
    return found, ran, message


def command(seed: int) -> str:
    """How to see a seed again."""
    return f"seed {seed}: python integration/simulation/run.py --seed {seed} --trace"
