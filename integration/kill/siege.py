"""What a soak and a crowd share: all at once for some time, killed at random moments, stopped and
looked at now and then; then everybody comes to an end, and all is cleaned and swept.
"""

import os
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import suppress
from typing import Any

from processes import Child, RunError, handles
from report import Result
from stage import Stage

from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_orphans, sweep_released
from clog.storage import Log
from clog.storage.format import documents

DRIVER = "driver"
"""The child that has a JVM, which dies with it."""
ENDS_WITHIN_S = 900
DRIVER_STARTS_WITHIN_S = 300
DRIVER_FAILURES_MAX = 60
"""Some where the server is away; one that fails always reaches this soon."""
LONG_MIN = 30
"""In so many minutes all has happened that a run is for."""
SETS, INTERRUPTS = 0.15, 0.4
"""How often a clock is set, and who lives on after it is interrupted, for each kill."""


class Siege(Stage, ABC):
    """The processes of a run.

    Attributes:
        names: of the children, which are programs of this folder.
        holds, holds_in_the_end: what a look finds where all is right.
        living: those that take an interrupt, and work on with the same handle.
        kills_apart_s, looks_apart_s, first_look_s: how often.
        pids: the file of the driver's pids; it is there once its queries run.
    """

    names: tuple[str, ...]
    living: tuple[str, ...] = ()
    holds: str
    holds_in_the_end: str
    kills_apart_s: tuple[float, float]
    looks_apart_s: float
    first_look_s: float

    def __init__(self, *stage: Any) -> None:
        super().__init__(*stage)
        self.pids = self.work / "driver.pids"
        self.kills: Counter[str] = Counter()
        self.looks = self.failures = self.interrupts = self.sets = 0
        self.took_s, self.slower = 0.0, 1.0
        self.children: dict[str, Child] = {}

    def run(self, minutes: float, slower: float) -> tuple[list[Result], list[str]]:
        """Kills for so long, each time so many times as long after, and looks again and again; then
        lets all come to their end.
        """
        self.slower = slower
        try:
            return self._run(minutes)
        except RunError as e:
            return [Result("run", "stopped", problems=[str(e)])], []

    def _run(self, minutes: float) -> tuple[list[Result], list[str]]:
        looked = Result("all", f"at random moments, all stopped: {self.holds}")
        ended = Result("all", f"in the end: {self.holds_in_the_end}")
        swept = Result("all", "after a last cleaning and sweep: the same, and nothing is left over")
        try:
            began = time.monotonic()
            self.begin()
            self._kill_until(began + 60 * minutes, looked)
            self.took_s = time.monotonic() - began
            self.set_clocks_right()
            if not looked.problems:
                self.tell("coming to an end")
                self.stop()
                ended.problems = self.patiently(self.problems)
                swept.problems = self.patiently(self.swept_problems)
                ended.problems += self.missed() if minutes >= LONG_MIN else []
        finally:
            self.end()
        killed = [Result(name, "random moments", n) for name, n in sorted(self.kills.items())]
        told = f"{self.looks} looks; {self.interrupts} interrupts; {self.sets} clocks set"
        return [*killed, looked, ended, swept], [told, *self.patiently(self.facts)]

    def _kill_until(self, deadline: float, looked: Result) -> None:
        look_at = time.monotonic() + self.first_look_s
        while time.monotonic() < deadline and not looked.problems:
            time.sleep(self.slower * self.random.uniform(*self.kills_apart_s))
            self.check_alive()
            self.strike()
            self._bother()
            if time.monotonic() > look_at:
                self.looks += 1
                self.tell(f"look {self.looks}, after {self.kills.total()} kills")
                looked.problems += self.patiently(self.look)
                look_at = time.monotonic() + self.looks_apart_s

    def _bother(self) -> None:
        """Interrupts somebody who lives on, and sets the clock of somebody, now and then."""
        if self.random.random() < INTERRUPTS and (pid := self.who_is_interrupted()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
                self.interrupts += 1
        if self.random.random() < SETS and (names := self.who_has_a_clock()):
            self.set_clock(self.random.choice(names))
            self.sets += 1

    def who_is_interrupted(self) -> int | None:
        """Returns the pid of one who takes an interrupt, and not only soon: that is said last."""
        if not self.living:
            return None
        pid = self.children[self.random.choice(self.living)].process.pid
        return pid if handles(pid, signal.SIGTERM) else None

    def who_has_a_clock(self) -> list[str]:
        """Returns the names of those whose clock can be set: JVMs have their own."""
        return [name for name in self.names if name != DRIVER]

    def kill(self, name: str) -> bool:
        """Kills a child; false for a driver that has only just started: somebody else is next."""
        child = self.children[name]
        if name == DRIVER:
            if not self.pids.exists():
                return False
            child.kill(*(int(pid) for pid in self.pids.read_text().split()))
        else:
            child.kill()
        child.wait(30)
        child.end_session()
        self.kills[name] += 1
        return True

    def begin(self) -> None:
        """Starts everybody."""
        for name in self.names:
            self.start_child(name)

    def check_alive(self) -> None:
        """Starts again who may fail, a driver above all: Spark does, when the JVM before it was not
        gone yet.

        Raises:
            RunError: a process died by itself.
        """
        for name, child in list(self.children.items()):
            if child.is_running:
                continue
            if not self.may_fail(child) or self.failures == DRIVER_FAILURES_MAX:
                raise RunError(f"{name} ended by itself: {child.last_words()}")
            self.failures += 1
            self.start_child(name)

    def missed(self) -> list[str]:
        """Returns what a long run is for, and did not do."""
        found = [f"{name} was never killed" for name in self.names if not self.kills[name]]
        found += ["nobody was interrupted"] * bool(self.living and not self.interrupts)
        return found + ["no clock was set"] * bool(self.who_has_a_clock() and not self.sets)

    def may_fail(self, child: Child) -> bool:
        """Tells whether who ended by itself is started again, as a supervisor would."""
        return child.name == DRIVER

    def stop_child(self, name: str) -> None:
        """Lets a child come to its end, a driver that fails at it once more."""
        while True:
            try:
                self.children[name].stop(ENDS_WITHIN_S)
                del self.children[name]  # It shall not be missed.
                return
            except RunError:
                if name != DRIVER or self.failures >= DRIVER_FAILURES_MAX:
                    raise
            self.failures += 1
            self.start_child(name)
            self.wait_for_driver()

    def wait_for_driver(self) -> None:
        """Returns once the driver's queries run, or after a while."""
        deadline = time.monotonic() + DRIVER_STARTS_WITHIN_S
        while not self.pids.exists() and time.monotonic() < deadline:
            self.check_alive()
            time.sleep(0.2)

    def end(self) -> None:
        """Leaves nobody behind, whatever happened."""
        for child in self.children.values():
            child.end()

    def start_child(self, name: str) -> None:
        """Starts a child, the driver with no file of pids yet."""
        if name == DRIVER:
            self.pids.unlink(missing_ok=True)
        program, arguments = self.program_of(name)
        self.children[name] = self.start(program, name, arguments)

    @abstractmethod
    def program_of(self, name: str) -> tuple[str, list[str]]:
        """Returns a child's program and its arguments."""

    @abstractmethod
    def strike(self) -> None:
        """Kills somebody, and starts it again."""

    @abstractmethod
    def look(self) -> list[str]:
        """Returns what is wrong while all stand still."""

    @abstractmethod
    def stop(self) -> None:
        """Lets all come to their end."""

    @abstractmethod
    def problems(self) -> list[str]:
        """Returns what is wrong in the end."""

    @abstractmethod
    def swept_problems(self) -> list[str]:
        """Cleans and sweeps as if a day had passed; returns what is wrong then."""

    @abstractmethod
    def facts(self) -> list[str]:
        """Returns what the run was, in lines."""


def left_of(log: Log) -> str:
    """Tells what is left of a log."""
    objects = sum(1 for _ in log.handle.store.list(documents.DATA))
    left = sum(s.records for p in range(log.partitions) for s in log.segments(p))
    given = sum(log.end_offsets().values())
    return (
        f"version {log.version:,}; of {given:,} offsets {left:,} records left, in"
        f" {objects:,} objects"
    )


def sweep(log: Log) -> None:
    """Sweeps a log as if a day had passed."""
    handle = log.handle
    sweep_released(Work(handle, handle.clock.now_ms()))
    sweep_orphans(Work(handle, handle.clock.now_ms() + 1), age_ms=0)
