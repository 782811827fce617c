"""Rounds at named points: one victim dies at its point while others go on, then the world stands
still and the oracle looks. The next round starts the victim again, on what the dead one left."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import oracle
from points import SNAPSHOTS, Named, Program
from processes import Child, RunError, paused
from records import SPARK, batch_of
from report import Result
from stage import Stage
from switch import environment_of
from world import LOGS

from clog.cleaner import Cleaner
from clog.cleaner.duties.sweep import due_objects
from clog.storage.config.log_config import NO_DEFAULTS, with_defaults
from clog.storage.objects.records import to_records

HIT_WITHIN_S = 600
DRIVER_ENDS_WITHIN_S = 30
ORPHAN_AGE_MS = 500
LATE_MS = 1 << 53
"""A time at which everything that was replaced is due."""

DYING = {"driver and JVM": (0, 1), "JVM": (1,), "worker": ()}
"""Who goes with the Python worker that is at the point; places in the file of pids."""


class Rounds(Stage):
    """What is done at named points."""

    @property
    def pids(self) -> Path:
        return self.work / "driver.pids"

    def writer(self, name: str, pause_ms: int, environment: dict[str, str] | None = None) -> Child:
        return self.start("writer", name, [name, str(pause_ms)], environment)

    def cleaner(self, environment: dict[str, str] | None = None) -> Child:
        return self.start("cleaner", "cleaner", [], environment)

    def sweeper(self, what: str, age_ms: int, environment: dict[str, str] | None = None) -> Child:
        return self.start("sweeper", "sweeper", [what, str(age_ms)], environment)

    def driver(self, environment: dict[str, str] | None = None) -> Child:
        self.pids.unlink(missing_ok=True)
        return self.start("driver", "driver", [str(self.pids)], environment)

    def at_points(self, points: list[Named], rounds: int) -> Iterator[Result]:
        """All points of one program."""
        with self._bystanders(points[0].program) as bystanders:
            for named in points:
                result = Result(named.program, named.name)
                for i in range(rounds):
                    self.tell(f"{named.program}: {named.name}, {i + 1} of {rounds}")
                    self._round(named, i)
                    result.kills += 1
                    with paused(bystanders):
                        found = self._commit_problems(named)
                        found += oracle.problems(self.world, verify=i == rounds - 1)
                    result.problems += [f"after kill {i + 1}: {problem}" for problem in found]
                yield result
                if result.problems:
                    return  # What comes after would only repeat it.

    @contextmanager
    def _bystanders(self, program: Program) -> Iterator[list[Child]]:
        if program == "writer":
            children = [self.writer("writer-1", 300), self.cleaner()]
        elif program == "cleaner":
            children = [self.writer("writer-0", 200), self.writer("writer-1", 200)]
        elif program == "sweeper":
            children = [self.writer("writer-1", 200)]
        else:
            children = [self.writer("writer-1", 500), self.cleaner()]
        try:
            yield children
            for child in children:
                child.stop()
        finally:
            for child in children:
                child.kill()

    def _round(self, named: Named, i: int) -> None:
        nth = named.point.nth + self.random.randrange(named.spread)
        self.hits.unlink(missing_ok=True)
        point = replace(named.point, nth=nth)
        if named.program == "driver":
            self._driver_round(point, take=list(DYING.values())[i % len(DYING)])
            return
        environment = environment_of(point, self.hits)
        if named.program == "writer":
            child = self.writer("writer-0", 0, environment)
        elif named.program == "cleaner":
            child = self.cleaner(environment)
        else:
            self._make_garbage(named.sweep, nth)
            child = self.sweeper(named.sweep, ORPHAN_AGE_MS, environment)
        child.wait_for_death(self.hits, HIT_WITHIN_S, where=named.name)

    def _driver_round(self, point: object, take: tuple[int, ...]) -> None:
        child = self.driver(environment_of(point, self.hits, self.pids, take))
        try:
            deadline = time.monotonic() + HIT_WITHIN_S
            while not self.hits.exists():
                if not child.is_running:
                    raise RunError(f"the driver ended by itself: {child.last_words()}")
                if time.monotonic() > deadline:
                    raise RunError(f"{point} not reached within {HIT_WITHIN_S} s")
                time.sleep(0.05)
            # Without its worker a driver may go on (the task is tried again), or fail.
            if child.wait(DRIVER_ENDS_WITHIN_S if take else 5) is None:
                child.process.terminate()
                child.wait(DRIVER_ENDS_WITHIN_S)
        finally:
            child.end()

    def _commit_problems(self, named: Named) -> list[str]:
        """Whether the point is where it says: what was under way is in the log, or not."""
        if named.committed is None:
            return []
        doubted = oracle.in_doubt(self.world, SPARK if named.program == "driver" else "writer-0")
        # The driver's other query may be in doubt as well.
        if doubted == named.committed or (named.program == "driver" and doubted > 0):
            return []
        if named.point.path == SNAPSHOTS and oracle.is_in_snapshot(self.world, "writer-0"):
            return []
        return [f"a batch in doubt is in {doubted} logs, not in {int(named.committed)}"]

    def _make_garbage(self, sweep: str, objects: int) -> None:
        """At least so many replaced objects in the log that is cleaned, or orphans in both."""
        if sweep == "released":
            self._replace(objects)
            return
        for name in LOGS:
            log = self.world.open(name)
            records, _ = to_records(batch_of("nobody", 0), now_us=log.handle.clock.now_us())
            task = log.object_writer()
            task.add(records, np.zeros(records.num_rows, np.int32))
            task.finish()  # and nobody commits it

    def _replace(self, objects: int) -> None:
        """Cleans until so many objects await the sweep: a pass right after another replaces few."""
        log = self.world.open("table")
        deadline = time.monotonic() + HIT_WITHIN_S
        while time.monotonic() < deadline:
            Cleaner(log, dedupe_buffer_bytes=1 << 20).run_once(force=True)
            manifest = log.handle.manifest()
            config = with_defaults(manifest.head.config, NO_DEFAULTS)
            if len(due_objects(manifest, config, now_ms=LATE_MS)) >= objects:
                return
            time.sleep(0.2)  # The bystander writes meanwhile.
        raise RunError(f"no pass replaced {objects} objects within {HIT_WITHIN_S} s")
