"""Kills the holder of a transaction id, who takes it over, the cleaner and the sweeper, while three
logs take part in each transaction: at each step of COMMIT.md §9, in each log, and at random.

    python integration/kill/transactions.py [--rounds 1] [--random 20] [--seed S] [--url URL | --s3]

See README.md in this folder.
"""

import argparse
import random
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import transacted
from processes import Child, RunError, paused
from report import Result
from settle import sweep, unneeded
from stage import Stage, options_of_points, play
from switch import environment_of
from transacted import HOME, LOGS, PARTICIPANTS

from clog.cleaner import Cleaner
from clog_testing.killing import KillPoint

HOLDERS = ("holder", "rival")
HIT_WITHIN_S = 300
TIMEOUT_MS = 8000
SETTLES_WITHIN_S = 120
"""Once the timeout has passed."""
SWEEP_AGE_MS = 30_000
LOOK_EVERY = 5
SETS = 0.15
COMMITS, DATA = "_clog/{}/commits/*", "_clog/{}/data/*"
UNDECIDED, DECIDED = "undecided", "decided"


@dataclass(frozen=True, slots=True)
class Step:
    """A named point.

    Attributes:
        victim: who dies: ``holder``, ``successor`` or ``cleaner``.
        name: as the report shows it.
        log: in which log.
        when, operation: as of a `KillPoint`.
        place: that of `steps` right before it.
        spread: the ``nth`` transaction of the process to die in is drawn from so many.
        committed: whether the transaction is committed then; None: another one's was under way.
        left: what another holder leaves before.
    """

    victim: str
    name: str
    log: str
    when: str
    place: str
    operation: str = "create"
    spread: int = 3
    first: int = 1
    committed: bool | None = None
    left: str = ""

    def point(self, ids: dict[str, str], rng: random.Random) -> KillPoint:
        nth = self.first + rng.randrange(self.spread)
        if not self.place:  # An object of the log: one for each transaction.
            return KillPoint("after", "put", DATA.format(ids[self.log]), nth=nth)
        since = ("place", f"{self.place} {self.log} {nth}")
        return KillPoint(self.when, self.operation, COMMITS.format(ids[self.log]), since=since)


def _around(
    victim: str,
    place: str,
    log: str,
    left: str = "",
    *,
    name: str | None = None,
    first: int = 1,
    committed: bool = False,
    decides: bool = False,
) -> Iterator[Step]:
    """Before and after the commit of a step. ``decides``: it is the one that commits all."""
    for when in ("before", "after"):
        yield Step(
            *(victim, f"{when} {name or place} in {log}", log, when, place),
            spread=1 if left or place == "takeover" else 3,
            first=first,
            committed=None if left else committed or (decides and when == "after"),
            left=left,
        )


def _steps() -> Iterator[Step]:
    for log in LOGS:
        yield Step("holder", f"after the object of {log}", log, "after", "", committed=False)
    yield from _around("holder", "takeover", HOME)
    yield from _around("holder", "X1", HOME)
    for log in PARTICIPANTS:
        yield from _around("holder", "X2", log)
    yield from _around("holder", "X3", HOME, decides=True)
    for log in PARTICIPANTS:
        yield from _around("holder", "X4", log, committed=True)
    yield from _around("holder", "X1", HOME, first=2, name="X5, with the next X1,")
    for left in (UNDECIDED, DECIDED):
        yield from _around("successor", "takeover", HOME, left)
        for log in PARTICIPANTS:
            yield from _around("successor", "X4 for another", log, left)
        yield from _around("successor", "X5", HOME, left)
    for left in (UNDECIDED, DECIDED):
        if left == UNDECIDED:
            yield from _around("cleaner", "X3 as an abort", HOME, left)
        for log in PARTICIPANTS:
            yield from _around("cleaner", "X4 for another", log, left)
        yield from _around("cleaner", "X5", HOME, left)


@dataclass(slots=True)
class Run(Stage):
    """All rounds, at named points and at random moments, of transactions with this timeout."""

    timeout_ms: int
    _ids: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self._ids = {name: transacted.opened(self.world, name).id for name in LOGS}

    def holder(self, name: str, pause_ms: int, environment: dict[str, str] | None = None) -> Child:
        given = [name, str(pause_ms), str(self.timeout_ms)]
        return self.start("transactor", name, given, environment)

    def cleaner(self, environment: dict[str, str] | None = None) -> Child:
        return self.start("cleaner", "cleaner", [*LOGS], environment)

    def sweeper(self) -> Child:
        return self.start("sweeper", "sweeper", ["both", str(SWEEP_AGE_MS), *LOGS], None)

    def at(self, step: Step, rounds: int) -> Result:
        """Kills at a step, so often."""
        result = Result(step.victim, step.name + (f", what was left {step.left}" * bool(step.left)))
        for i in range(rounds):
            self.tell(f"{result.program}: {result.name}, {i + 1} of {rounds}")
            with self._cleaner(runs=step.victim == "holder") as cleaner:
                if step.left:
                    self._leave(step.left)
                self._kill_at(step.victim, step.point(self._ids, self.random), step.name)
                result.kills += 1
                with paused(cleaner):
                    found = self._problems(step)
            found += self.settle(takes_over=step.victim == "successor")
            result.problems += [f"after kill {i + 1}: {problem}" for problem in found]
        return result

    def settle(self, *, takes_over: bool = False) -> list[str]:
        """Lets a cleaner, or the next holder, end what was left; tells what is wrong then."""
        deadline = time.monotonic() + self.timeout_ms / 1000 + SETTLES_WITHIN_S
        child: Child | None = None
        try:
            while transacted.undecided(self.world) and time.monotonic() < deadline:
                if child is None:
                    child = self.holder("rival", 100) if takes_over else self.cleaner()
                if not child.is_running:
                    raise RunError(f"{child.name} ended by itself: {child.last_words()}")
                time.sleep(0.1)
        finally:
            if child is not None:
                child.end()
        return transacted.problems(self.world, HOLDERS, is_settled=True)

    def _problems(self, step: Step) -> list[str]:
        found = transacted.problems(self.world, HOLDERS)
        if step.committed is not None:
            told = transacted.acknowledged(self.world, HOLDERS)
            committed = transacted.position(self.world) - told
            if committed != int(step.committed):
                found.append(f"{committed} transactions that nobody was told of are committed")
        return found

    def _leave(self, state: str) -> None:
        """Has a holder die right before or right after it decides."""
        when = "before" if state == UNDECIDED else "after"
        step = Step("holder", f"leaving it {state}", HOME, when, "X3", spread=1)
        self._kill_at("holder", step.point(self._ids, self.random), step.name)

    def _kill_at(self, victim: str, point: KillPoint, name: str) -> None:
        self.hits.unlink(missing_ok=True)
        environment = environment_of(point, self.hits)
        if victim == "cleaner":
            child = self.cleaner(environment)
        else:
            child = self.holder(HOLDERS[victim == "successor"], 0, environment)
        child.wait_for_death(self.hits, HIT_WITHIN_S, where=f"{name}, {point}")

    @contextmanager
    def _cleaner(self, *, runs: bool) -> Iterator[list[Child]]:
        children = [self.cleaner()] if runs else []
        try:
            yield children
        finally:
            for child in children:
                child.end()

    def moments(self, kills: int, minutes: float, slower: float) -> list[Result]:
        """Kills at random moments, so often or for so long, while two holders take the id from each
        other, and clocks are set.
        """
        starts = {
            "holder": lambda: self.holder("holder", 50),
            "rival": lambda: self.holder("rival", 50),
            "cleaner": self.cleaner,
            "sweeper": self.sweeper,
        }
        results = {name: Result(name, "random moments") for name in starts}
        children = {name: start() for name, start in starts.items()}
        deadline = time.monotonic() + 60 * minutes
        try:
            for i in range(kills):
                if time.monotonic() > deadline:
                    break
                self.tell(f"random moments, {i + 1} of {kills}")
                time.sleep(slower * self.random.uniform(0.2, 3.0))
                name = self.random.choice(sorted(children))
                if not children[name].is_running:
                    raise RunError(f"{name} ended by itself: {children[name].last_words()}")
                children[name].end()
                results[name].kills += 1
                if i % LOOK_EVERY == LOOK_EVERY - 1:
                    with paused([c for c in children.values() if c.name != name]):
                        look = partial(transacted.problems, self.world, HOLDERS)
                        results[name].problems += self.patiently(look)
                children[name] = starts[name]()
                if self.random.random() < SETS:
                    self.set_clock(self.random.choice(sorted(children)))
        finally:
            for child in children.values():
                child.end()
            self.set_clocks_right()
        return list(results.values())

    def end(self) -> tuple[list[Result], list[str]]:
        """The last lines of the report, and facts of the run."""
        once = Result("all", "in the end: nothing undecided, all logs agree, invariants hold")
        look = partial(transacted.final_problems, self.world, HOLDERS)
        once.problems = self.patiently(self.settle) + self.patiently(look)
        cleaned = Result("all", "after a last cleaning: the same")
        cleaned.problems = self.patiently(self._cleaned_problems)
        swept = Result("all", "after a last sweep: nothing is left that no version needs")
        swept.problems, count = self.patiently(self._swept_problems)
        committed = self.patiently(partial(transacted.position, self.world))
        once.problems += ["no transaction was committed"] * (not committed)
        told = f"{committed:,} transactions of {len(LOGS)} logs, each in all of them"
        return [once, cleaned, swept], [f"{told}; {count:,} objects swept in the end"]

    def _cleaned_problems(self) -> list[str]:
        log = transacted.opened(self.world, "cleaned")
        log.roll()
        Cleaner(log, dedupe_buffer_bytes=1 << 20).run_once(force=True)
        return transacted.problems(self.world, HOLDERS, is_settled=True)

    def _swept_problems(self) -> tuple[list[str], int]:
        """What is wrong after a last sweep, and how many objects went."""
        logs = {name: transacted.opened(self.world, name) for name in LOGS}
        count = sum(map(sweep, logs.values()))
        left = [f"{name}: {path} is left" for name, log in logs.items() for path in unneeded(log)]
        return left + transacted.problems(self.world, HOLDERS, is_settled=True), count


def main() -> int:
    parser = options_of_points("Kill everybody in transactions of three logs.", rounds=1)
    most = "of kills at random moments, at most (default: no limit)"
    parser.add_argument("--minutes", type=float, default=float("inf"), help=most)
    timeout = f"of a transaction (default: {TIMEOUT_MS})"
    parser.add_argument("--timeout-ms", type=int, default=TIMEOUT_MS, help=timeout)
    args = parser.parse_args()
    return play(args, transacted.create, lambda *stage: _run(Run(*stage, args.timeout_ms), args))


def _run(run: Run, args: argparse.Namespace) -> tuple[list[Result], list[str]]:
    results: list[Result] = []
    try:
        for step in _steps():
            if re.search(args.match, f"{step.victim}: {step.name}, {step.left}"):
                results.append(run.at(step, args.rounds))
                if results[-1].problems:
                    return results, []
        if args.random:
            results += run.moments(args.random, args.minutes, args.slower)
        run.tell("settling")
        last, facts = run.end()
    except RunError as e:
        return [*results, Result("run", "stopped", problems=[str(e)])], []
    return results + last, facts


if __name__ == "__main__":
    sys.exit(main())
