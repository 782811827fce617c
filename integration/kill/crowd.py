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
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import crowded
from crowd_author import write
from crowded import CROWD, name_of, opened
from processes import POLL_S, RunError, handles, paused
from report import Result
from siege import DRIVER, ENDS_WITHIN_S, Siege, left_of, sweep
from stage import options, play

from clog.cleaner import Cleaner

PROCESSES = multiprocessing.get_context("forkserver")
SLEEPS = 0.2
"""One of so many victims is not killed but stopped, for as long as `SLEEPS_S`."""
SLEEPS_S = (2.0, 75.0)
CLEANER = "cleaner"
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


class Crowd(Siege):
    """The processes of a crowd: authors, and as its children who works beside them."""

    names = (DRIVER, CLEANER)
    holds = "each append once, or in doubt"
    holds_in_the_end = "each append once; table and log agree"
    kills_apart_s = (1.0, 5.0)
    looks_apart_s = 150
    first_look_s = 75

    def __init__(self, *stage: Any, authors: int, pause_ms: int) -> None:
        super().__init__(*stage)
        self.pause_ms = pause_ms
        self.sleeps = self.memory_kb = 0
        self.authors: dict[str, Author] = {}
        self.author_names = [name_of(number) for number in range(authors)]

    def begin(self) -> None:
        PROCESSES.set_forkserver_preload(["crowd_author", "s3fs", "pyarrow.parquet"])
        for name in self.author_names:
            self._start_author(name)
        super().begin()

    def program_of(self, name: str) -> tuple[str, list[str]]:
        return ("crowd_driver", [str(self.pids)]) if name == DRIVER else ("cleaner", [CROWD])

    def end(self) -> None:
        for author in self.authors.values():
            author.end()
        super().end()

    def strike(self) -> None:
        self._wake(time.monotonic())
        if self.random.random() < OTHERS_DIE:
            name = self.random.choice(self.names)
            if self.kill(name):
                self.start_child(name)
        else:
            self._strike(self.authors[self.random.choice(self.author_names)])

    def who_is_interrupted(self) -> int | None:
        pid = self.authors[self.random.choice(self.author_names)].process.pid or 0
        return pid if handles(pid, signal.SIGTERM) else None

    def who_has_a_clock(self) -> list[str]:
        return [*super().who_has_a_clock(), *self.author_names]

    def _start_author(self, name: str) -> None:
        process = PROCESSES.Process(
            target=write, args=(self.world, name, self.pause_ms, self.clock_of(name))
        )
        process.start()
        self.authors[name] = Author(name, process)

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

    def _wake(self, now: float) -> None:
        for author in self.authors.values():
            if author.wakes_at is not None and author.wakes_at <= now:
                author.signal(signal.SIGCONT)
                author.wakes_at = None

    def check_alive(self) -> None:
        for author in self.authors.values():
            if not author.process.is_alive():
                said = (self.work / f"{author.name}.out").read_text(errors="replace")
                raise RunError(f"{author.name} ended by itself: {said[-1500:]}")
        super().check_alive()

    def look(self) -> list[str]:
        self._weigh()
        with ExitStack() as stack:
            for author in self.authors.values():
                author.signal(signal.SIGSTOP)
                if author.wakes_at is None:
                    stack.callback(author.signal, signal.SIGCONT)
            stack.enter_context(paused([c for c in self.children.values() if c.is_running]))
            return crowded.problems(self.world, self.author_names)

    def stop(self) -> None:
        """Ends the authors, the driver, then the cleaner."""
        self._wake(float("inf"))
        deadline = time.monotonic() + ENDS_WITHIN_S
        for author in self.authors.values():
            while not handles(author.process.pid or 0, signal.SIGTERM):
                self.check_alive()
                time.sleep(POLL_S)
        for author in self.authors.values():
            author.signal(signal.SIGTERM)
        for author in self.authors.values():
            author.process.join(max(1, deadline - time.monotonic()))
            if author.process.exitcode != 0:
                raise RunError(f"{author.name} did not stop: {author.process.exitcode}")
        self.wait_for_driver()
        for name in self.names:
            self.stop_child(name)

    def problems(self) -> list[str]:
        return crowded.problems(self.world, self.author_names, ended=True)

    def swept_problems(self) -> list[str]:
        log = opened(self.world)
        log.roll()
        Cleaner(log).run_once(force=True)
        sweep(opened(self.world))
        return self.problems()

    def _weigh(self) -> None:
        """Notes how much memory the authors have, each page divided among who share it (Linux)."""
        total = 0
        for author in self.authors.values():
            with suppress(OSError):
                rollup = Path(f"/proc/{author.process.pid}/smaps_rollup").read_text()
                total += next(int(x.split()[1]) for x in rollup.splitlines() if x[:4] == "Pss:")
        self.memory_kb = max(self.memory_kb, total)

    def missed(self) -> list[str]:
        return super().missed() + ["nobody was interrupted"] * (not self.interrupts)

    def facts(self) -> list[str]:
        told = [crowded.told(self.world, name) for name in self.author_names]
        done = sum(len(one.done) for one in told)
        doubt = sum(len(one.in_doubt) for one in told)
        refused = sum(len(one.refused) for one in told)
        batches = self.world.batches_of_spark(CROWD)[0]
        rate, memory_mib = done / self.took_s, self.memory_kb / 1024
        facts = [f"{done:,} appends acknowledged, {rate:.1f} a second", f"{doubt} in doubt"]
        facts += [f"{refused} refused", f"{batches} micro-batches"]
        more = [f"{self.sleeps} sleeps", f"{self.failures} drivers failed at their start"]
        more += [f"the authors had {memory_mib:,.0f} MiB in all"]
        return ["; ".join(facts), "; ".join(more), left_of(opened(self.world))]


def main() -> int:
    parser = options("Many authors of one log, killed and stopped at random.", minutes=10)
    parser.add_argument("--authors", type=int, default=64, help="processes that append")
    pause = "between an author's appends, on average (default: 2000)"
    parser.add_argument("--pause-ms", type=int, default=2000, help=pause)
    args = parser.parse_args()

    def run(*stage: Any) -> tuple[list[Result], list[str]]:
        return Crowd(*stage, authors=args.authors, pause_ms=args.pause_ms).run(
            args.minutes, args.slower
        )

    return play(args, crowded.create, run)


if __name__ == "__main__":
    sys.exit(main())
