"""Many processes that append to one log, killed and stopped at random, while a Spark stream writes
to it, too, and a cleaner cleans it.

    python integration/kill/crowd.py [--authors 64] [--minutes 10] [--s3 versitygw] [--seed S]

See README.md in this folder.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import crowded
from crowd_author import write
from crowded import CROWD, name_of, opened
from processes import POLL_S, Child, RunError, handles, paused
from report import Result
from stage import Stage, options, play

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_orphans, sweep_released
from clog.storage.format import documents

PROCESSES = multiprocessing.get_context("forkserver")
KILLS_APART_S = (1.0, 5.0)
SLEEPS = 0.2
"""One of so many victims is not killed but stopped, for as long as `SLEEPS_S`."""
SLEEPS_S = (2.0, 75.0)
LOOKS_APART_S = 150
ENDS_WITHIN_S = 900
FAILURES_MAX = 20
DRIVER, CLEANER = "driver", "cleaner"
OTHERS = (DRIVER, CLEANER)
OTHERS_DIE = 0.05


@dataclass(slots=True)
class Author:
    """A process that appends."""

    name: str
    process: ForkServerProcess
    wakes_at: float | None = None

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, number)

    def end(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


class Crowd(Stage):
    """The processes of a crowd."""

    def __init__(self, *stage: Any, authors: int, pause_ms: int) -> None:
        super().__init__(*stage)
        self.names = [name_of(number) for number in range(authors)]
        self.pause_ms = pause_ms
        self.pids = self.work / "driver.pids"
        self.kills: Counter[str] = Counter()
        self.looks = self.sleeps = self.failures = self.memory_kb = 0
        self.authors: dict[str, Author] = {}
        self.others: dict[str, Child] = {}

    def run(self, minutes: float) -> tuple[list[Result], list[str]]:
        """Kills for so long, and looks again and again; then lets all come to their end.

        Raises:
            RunError: a process died by itself.
        """
        looked = Result("all", "at random moments, all stopped: each append once, or in doubt")
        ended = Result("all", "in the end: each append once; table and log agree")
        swept = Result("all", "after a last cleaning and sweep: the same, and nothing is left over")
        PROCESSES.set_forkserver_preload(["crowd_author", "s3fs", "pyarrow.parquet"])
        began = time.monotonic()
        try:
            for name in self.names:
                self._start_author(name)
            for name in OTHERS:
                self._start_other(name)
            self._kill_until(began + 60 * minutes, looked)
            took_s = time.monotonic() - began
            if not looked.problems:
                self.tell("coming to an end")
                self._stop()
                ended.problems = self._problems()
                swept.problems = self._swept_problems()
        finally:
            for one in (*self.authors.values(), *self.others.values()):
                one.end()
        killed = [Result(name, "random moments", n) for name, n in sorted(self.kills.items())]
        return [*killed, looked, ended, swept], self._facts(took_s)

    def _start_author(self, name: str) -> None:
        process = PROCESSES.Process(target=write, args=(self.world, name, self.pause_ms))
        process.start()
        self.authors[name] = Author(name, process)

    def _start_other(self, name: str) -> None:
        if name == DRIVER:
            self.pids.unlink(missing_ok=True)
            self.others[name] = self.start("crowd_driver", name, [str(self.pids)])
        else:
            self.others[name] = self.start("cleaner", name, [CROWD])

    def _kill_until(self, deadline: float, looked: Result) -> None:
        look_at = time.monotonic() + LOOKS_APART_S / 2
        while (now := time.monotonic()) < deadline and not looked.problems:
            time.sleep(self.random.uniform(*KILLS_APART_S))
            self._check_alive()
            self._wake(now)
            if self.random.random() < OTHERS_DIE:
                self._kill_other(self.random.choice(OTHERS))
            else:
                self._strike(self.authors[self.random.choice(self.names)])
            if time.monotonic() > look_at:
                self.looks += 1
                self.tell(f"look {self.looks}, after {self.kills.total()} kills")
                self._weigh()
                looked.problems += self._look()
                look_at = time.monotonic() + LOOKS_APART_S

    def _strike(self, author: Author) -> None:
        """Kills an author, and starts it again; or has it sleep."""
        if self.random.random() < SLEEPS:
            if author.wakes_at is None:
                author.signal(signal.SIGSTOP)
                author.wakes_at = time.monotonic() + self.random.uniform(*SLEEPS_S)
                self.sleeps += 1
            return
        author.end()
        self.kills[crowded.kind_of(author.name)] += 1
        self._start_author(author.name)

    def _kill_other(self, name: str) -> None:
        child = self.others[name]
        if name == DRIVER:
            if not self.pids.exists():
                return  # It has only just started; somebody else is next.
            child.kill(*(int(pid) for pid in self.pids.read_text().split()))
        else:
            child.kill()
        child.wait(30)
        child.end_session()
        self.kills[name] += 1
        self._start_other(name)

    def _wake(self, now: float) -> None:
        for author in self.authors.values():
            if author.wakes_at is not None and author.wakes_at <= now:
                author.signal(signal.SIGCONT)
                author.wakes_at = None

    def _check_alive(self) -> None:
        """Starts a driver again that failed: Spark does, when the JVM before it was not gone yet;
        nobody else may fail.
        """
        for author in self.authors.values():
            if not author.process.is_alive():
                said = (self.work / f"{author.name}.out").read_text(errors="replace")
                raise RunError(f"{author.name} ended by itself: {said[-1500:]}")
        for name, child in list(self.others.items()):
            if child.is_running:
                continue
            if name != DRIVER or self.failures == FAILURES_MAX:
                raise RunError(f"{name} ended by itself: {child.last_words()}")
            self.failures += 1
            self._start_other(name)

    def _look(self) -> list[str]:
        with ExitStack() as stack:
            for author in self.authors.values():
                author.signal(signal.SIGSTOP)
                if author.wakes_at is None:
                    stack.callback(author.signal, signal.SIGCONT)
            stack.enter_context(paused([c for c in self.others.values() if c.is_running]))
            return crowded.problems(self.world, self.names)

    def _stop(self) -> None:
        """Ends the authors, the driver, then the cleaner."""
        self._wake(float("inf"))
        deadline = time.monotonic() + ENDS_WITHIN_S
        for author in self.authors.values():
            while not handles(author.process.pid or 0, signal.SIGTERM):
                self._check_alive()
                time.sleep(POLL_S)
        for author in self.authors.values():
            author.signal(signal.SIGTERM)
        for author in self.authors.values():
            author.process.join(max(1, deadline - time.monotonic()))
            if author.process.exitcode != 0:
                raise RunError(f"{author.name} did not stop: {author.process.exitcode}")
        while not self.pids.exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        for name in OTHERS:
            self.others[name].stop(ENDS_WITHIN_S)

    def _problems(self) -> list[str]:
        return crowded.problems(self.world, self.names, ended=True)

    def _swept_problems(self) -> list[str]:
        """Cleans and sweeps as if a day had passed."""
        log = opened(self.world)
        log.roll()
        Cleaner(log).run_once(force=True)
        handle = opened(self.world).handle
        sweep_released(Work(handle, handle.clock.now_ms()))
        sweep_orphans(Work(handle, handle.clock.now_ms() + 1), age_ms=0)
        return self._problems()

    def _weigh(self) -> None:
        """Notes how much memory the authors have, each page divided among who share it (Linux)."""
        total = 0
        for author in self.authors.values():
            with suppress(OSError):
                rollup = Path(f"/proc/{author.process.pid}/smaps_rollup").read_text()
                total += next(int(x.split()[1]) for x in rollup.splitlines() if x[:4] == "Pss:")
        self.memory_kb = max(self.memory_kb, total)

    def _facts(self, took_s: float) -> list[str]:
        told = [crowded.told(self.world, name) for name in self.names]
        done = sum(len(one.done) for one in told)
        doubt = sum(len(one.in_doubt) for one in told)
        refused = sum(len(one.refused) for one in told)
        log = opened(self.world)
        objects = sum(1 for _ in log.handle.store.list(documents.DATA))
        left = sum(s.records for p in range(log.partitions) for s in log.segments(p))
        batches = self.world.batches_of_spark(CROWD)[0]
        rate, memory_mib = done / took_s, self.memory_kb / 1024
        given = sum(log.end_offsets().values())
        facts = [f"{done:,} appends acknowledged, {rate:.1f} a second", f"{doubt} in doubt"]
        facts += [f"{refused} refused", f"{batches} micro-batches"]
        more = [f"{self.looks} looks", f"{self.sleeps} sleeps"]
        more += [f"{self.failures} drivers failed at their start"]
        more += [f"the authors had {memory_mib:,.0f} MiB in all"]
        left_in = f"of {given:,} offsets {left:,} records left, in {objects:,} objects"
        return ["; ".join(facts), "; ".join(more), f"version {log.version:,}; {left_in}"]


def main() -> int:
    parser = options("Many authors of one log, killed and stopped at random.")
    parser.add_argument("--authors", type=int, default=64, help="processes that append")
    parser.add_argument("--minutes", type=float, default=10, help="of kills (default: 10)")
    pause = "between an author's appends, on average (default: 2000)"
    parser.add_argument("--pause-ms", type=int, default=2000, help=pause)
    args = parser.parse_args()

    def run(*stage: Any) -> tuple[list[Result], list[str]]:
        crowd = Crowd(*stage, authors=args.authors, pause_ms=args.pause_ms)
        try:
            return crowd.run(args.minutes)
        except RunError as e:
            return [Result("run", "stopped", problems=[str(e)])], []

    return play(args, crowded.create, run)


if __name__ == "__main__":
    sys.exit(main())
