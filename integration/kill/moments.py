"""Kills at random moments: everything runs at once, somebody dies, and is back at once."""

import random
import time
from collections.abc import Callable

from processes import Child, RunError
from report import Result
from rounds import Rounds
from world import LOGS

SWEEP_AGE_MS = 30_000
"""Longer than a batch of Spark takes on a busy machine; an older one would be refused."""
GO_ON_S = 3
BATCH_WITHIN_S = 600
AT_WORK = 0.75
"""So often the driver has done a batch since it was started when it is killed; else it may still be
about to run again what the one before it left."""
DRIVER_FAILURES_MAX = 5
VICTIMS = {"driver and JVM": (0, 1), "JVM": (1,), "Python driver": (0,)}


class Moments:
    """All programs of a run, running."""

    def __init__(self, rounds: Rounds, programs: set[str]) -> None:
        self._rounds = rounds
        starts: dict[str, Callable[[], Child]] = {
            "writer-0": lambda: rounds.writer("writer-0", 250),
            "writer-1": lambda: rounds.writer("writer-1", 250),
            "cleaner": rounds.cleaner,
            "sweeper": lambda: rounds.sweeper("both", SWEEP_AGE_MS),
            "driver": self._driver,
        }
        self._starts = {n: s for n, s in starts.items() if n.partition("-")[0] in programs}
        self._failures = 0
        self._batches_before = 0

    def run(self, kills: int) -> list[Result]:
        """Kills so often, lets all go on for a while, and stops them.

        Raises:
            RunError: a program died by itself.
        """
        results = {n: Result(n.partition("-")[0], f"random moments ({n})") for n in self._starts}
        children = {name: start() for name, start in self._starts.items()}
        rng = self._rounds.random
        try:
            for i in range(kills):
                self._rounds.tell(f"random moments, {i + 1} of {kills}")
                time.sleep(rng.uniform(0.2, 2.5))
                self._look(children)
                name = rng.choice(sorted(children))
                self._kill(children[name], rng)
                results[name].kills += 1
                children[name] = self._starts[name]()
            if "driver" in children:
                self._wait_for_batch(children["driver"])
            time.sleep(GO_ON_S)
            self._look(children)
            self._stop(children)
        finally:
            for child in children.values():
                child.end()
        return [result for result in results.values() if result.kills]

    def _driver(self) -> Child:
        self._batches_before = self._batches()
        return self._rounds.driver()

    def _kill(self, child: Child, rng: random.Random) -> None:
        if child.name != "driver":
            child.kill()
            child.wait(10)
            return
        while child.is_running and not self._rounds.pids.exists():
            time.sleep(0.1)
        if rng.random() < AT_WORK:
            self._wait_for_batch(child)
        time.sleep(rng.uniform(0.0, 3.0))
        pids = [int(pid) for pid in self._rounds.pids.read_text().split()]
        child.kill(*(pids[i] for i in rng.choice(sorted(VICTIMS.values()))))
        if child.wait(30) is None:
            child.kill()
            child.wait(10)

    def _wait_for_batch(self, child: Child) -> None:
        """Until the driver has committed a batch since it was started."""
        deadline = time.monotonic() + BATCH_WITHIN_S
        while child.is_running and self._batches() == self._batches_before:
            if time.monotonic() > deadline:
                raise RunError(f"no batch within {BATCH_WITHIN_S} s: {child.last_words()}")
            time.sleep(0.1)

    def _batches(self) -> int:
        world = self._rounds.world
        return sum(world.batches_of_spark(name)[0] for name in LOGS)

    def _look(self, children: dict[str, Child]) -> None:
        """Starts a driver again that failed."""
        for name, child in children.items():
            if not child.is_running:
                self._forgive(name, RunError(f"{name} ended by itself: {child.last_words()}"))
                children[name] = self._starts[name]()

    def _stop(self, children: dict[str, Child]) -> None:
        """A driver that fails over it is started again: one that does a batch and stops."""
        for name, child in children.items():
            try:
                child.stop()
            except RunError as e:
                self._forgive(name, e)
                children[name] = self._starts[name]()
                self._wait_for_batch(children[name])
                children[name].stop()

    def _forgive(self, name: str, failure: RunError) -> None:
        """Spark's driver fails when the JVM before it was not gone yet, or when its workers lose it
        while it stops; nobody else may fail.

        Raises:
            RunError: the failure, when it is not such a one.
        """
        if name != "driver" or self._failures == DRIVER_FAILURES_MAX:
            raise failure
        self._failures += 1
