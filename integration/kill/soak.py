"""Everything at once on one typed log, for an hour, everybody killed at random moments.

    python integration/kill/soak.py [--minutes 60] [--seed S] [--url URL | --s3]

See README.md in this folder.
"""

import argparse
import shutil
import sys
import time
from collections import Counter
from typing import Any

import soaked
from processes import Child, RunError, paused
from report import Result
from soak_host import store_of
from soaked import APPENDING, LOGS, SOAK
from stage import Stage, options, play

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_orphans, sweep_released
from clog.storage.format import documents

PAUSE_MS = 400
KILLS_APART_S = (1.0, 6.0)
LOOKS_APART_S = 240
LOSES_DISK = 0.3
DELETES = 0.1
DRIVER_STARTS_WITHIN_S = 300
DRIVER_FAILURES_MAX = 20
ENDS_WITHIN_S = 900
CLEANERS = ("cleaner-1", "cleaner-2")
HOST, DRIVER, AUDITOR = "host", "driver", "auditor"


class Soak(Stage):
    """The processes of a soak."""

    def __init__(self, *stage: Any, is_local: bool) -> None:
        super().__init__(*stage)
        self.is_local = is_local
        self.pids = self.work / "driver.pids"
        self.kills: Counter[str] = Counter()
        self.looks = self.disks = self.deleted = self.failures = 0
        self.children: dict[str, Child] = {}

    def run(self, minutes: float) -> tuple[list[Result], list[str]]:
        """Kills for so long, and looks again and again; then lets all come to their end.

        Raises:
            RunError: a process died by itself.
        """
        looked = Result("all", "at random moments, all stopped: nothing stale, all tables equal")
        ended = Result("all", "in the end: tables, views, copy and state are what was sent")
        swept = Result("all", "after a last cleaning and sweep: the same, and nothing is left over")
        try:
            for name in (*APPENDING, *CLEANERS, HOST, AUDITOR, DRIVER):
                self._start(name)
            self._kill_until(time.monotonic() + 60 * minutes, looked)
            if not looked.problems:
                self.tell("coming to an end")
                self._stop()
                ended.problems = self._final_problems()
                swept.problems = self._swept_problems()
        finally:
            for child in self.children.values():
                child.end()
        killed = [Result(name, "random moments", n) for name, n in sorted(self.kills.items())]
        return [*killed, looked, ended, swept], self._facts()

    def _start(self, name: str) -> None:
        if name in APPENDING:
            program, arguments = "soak_producer", [name, str(PAUSE_MS)]
        elif name in CLEANERS:
            program, arguments = "cleaner", [*LOGS]
        elif name == HOST:
            program, arguments = "soak_host", [str(self.work / HOST)]
        elif name == AUDITOR:
            program, arguments = "soak_auditor", []
        else:
            self.pids.unlink(missing_ok=True)
            program, arguments = "soak_driver", [str(self.pids)]
        self.children[name] = self.start(program, name, arguments)

    def _kill_until(self, deadline: float, looked: Result) -> None:
        look_at = time.monotonic() + LOOKS_APART_S / 4
        while time.monotonic() < deadline and not looked.problems:
            time.sleep(self.random.uniform(*KILLS_APART_S))
            self._check_alive()
            self._kill(self.random.choice(sorted(self.children)))
            if self.random.random() < DELETES:
                self._delete_records()
            if time.monotonic() > look_at:
                self.looks += 1
                self.tell(f"look {self.looks}, after {self.kills.total()} kills")
                with paused([c for c in self.children.values() if c.is_running]):
                    looked.problems += soaked.problems(self.world, is_local=self.is_local)
                look_at = time.monotonic() + LOOKS_APART_S

    def _kill(self, name: str) -> None:
        child = self.children[name]
        if name == DRIVER:
            if not self.pids.exists():
                return  # It has only just started; somebody else is next.
            child.kill(*(int(pid) for pid in self.pids.read_text().split()))
        else:
            child.kill()
        child.wait(30)
        child.end_session()
        self.kills[name] += 1
        if name == HOST and self.random.random() < LOSES_DISK:
            shutil.rmtree(self.work / HOST, ignore_errors=True)
            self.disks += 1
        self._start(name)

    def _check_alive(self) -> None:
        """Starts a driver again that failed: Spark does, when the JVM before it was not gone yet;
        nobody else may fail.
        """
        for name, child in list(self.children.items()):
            if child.is_running:
                continue
            if name != DRIVER or self.failures == DRIVER_FAILURES_MAX:
                raise RunError(f"{name} ended by itself: {child.last_words()}")
            self.failures += 1
            self._start(name)

    def _delete_records(self) -> None:
        """Deletes a part of what a partition has, below what is undecided."""
        log = soaked.opened(self.world, SOAK)
        p = self.random.randrange(soaked.PARTITIONS)
        start, end = log.start_offsets()[p], log.stable_offsets()[p]
        before = start + int((end - start) * self.random.random() * 0.9)
        log.delete_records({p: before})
        self.deleted += before > start

    def _stop(self) -> None:
        """Ends producers with a whole lap, then who follows them, then the cleaners."""
        deadline = time.monotonic() + DRIVER_STARTS_WITHIN_S
        while not self.pids.exists() and time.monotonic() < deadline:
            self._check_alive()
            time.sleep(0.2)
        for name in (*APPENDING, DRIVER, HOST, AUDITOR, *CLEANERS):
            self.children[name].stop(ENDS_WITHIN_S)

    def _final_problems(self) -> list[str]:
        log = soaked.opened(self.world, SOAK)
        for view in ("delta", "iceberg"):
            log.publish(view)
        with store_of(self.world, self.work / HOST) as store:
            state = dict(store.scan())
        with store_of(self.world, self.work / "another-host") as store:
            if dict(store.scan()) != state:
                return ["the state on an empty disk is not that of the host's disk"]
        return soaked.final_problems(self.world, state, is_local=self.is_local)

    def _swept_problems(self) -> list[str]:
        """Cleans and sweeps as if a day had passed."""
        found = []
        for name in LOGS:
            log = soaked.opened(self.world, name)
            log.roll()
            Cleaner(log, dedupe_buffer_bytes=1 << 20).run_once(force=True)
        log = soaked.opened(self.world, SOAK)
        for view in ("delta", "iceberg"):
            log.publish(view)
        right = soaked.expected(self.world)
        if soaked.table_of(log) != right:
            found.append("the table is not what was sent")
        for name in LOGS:
            handle = soaked.opened(self.world, name).handle
            sweep_released(Work(handle, handle.clock.now_ms()))
            sweep_orphans(Work(handle, handle.clock.now_ms() + 1), age_ms=0)
        return found + soaked.problems(self.world, is_local=self.is_local)

    def _facts(self) -> list[str]:
        facts = [f"{self.looks} looks", f"{self.disks} disks of the host lost"]
        facts += [f"{self.deleted} times records were deleted below an offset"]
        facts += [f"{self.failures} drivers failed at their start"]
        facts = ["; ".join(facts)]
        for name in LOGS:
            log = soaked.opened(self.world, name)
            objects = sum(1 for _ in log.handle.store.list(documents.DATA))
            left = sum(s.records for p in range(log.partitions) for s in log.segments(p))
            given = sum(log.end_offsets().values())
            facts.append(
                f"{name}: version {log.version:,}; of {given:,} offsets {left:,} records left, in"
                f" {objects:,} objects"
            )
        sent = ", ".join(f"{soaked.told(self.world, p):,} of {p}" for p in soaked.PRODUCERS)
        return [*facts, f"records sent to {SOAK}: {sent}"]


def main() -> int:
    parser = options("Everything at once, killed for an hour.")
    parser.add_argument("--minutes", type=float, default=60, help="of kills (default: 60)")
    args = parser.parse_args()
    is_local = not (args.s3 or args.url)
    return play(args, soaked.create, lambda *stage: _run(Soak(*stage, is_local=is_local), args))


def _run(soak: Soak, args: argparse.Namespace) -> tuple[list[Result], list[str]]:
    try:
        return soak.run(args.minutes)
    except RunError as e:
        return [Result("run", "stopped", problems=[str(e)])], []


if __name__ == "__main__":
    sys.exit(main())
