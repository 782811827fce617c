"""Everything at once on one typed log, for an hour, everybody killed at random moments.

    python integration/kill/soak.py [--minutes 60] [--seed S] [--url URL | --s3]

See README.md in this folder.
"""

import shutil
import sys
from typing import Any

import soaked
from processes import paused
from siege import DRIVER, Siege, left_of, sweep
from soak_host import store_of
from soaked import APPENDING, LOGS, SOAK
from stage import options, play
from world import IN_DOUBT

from clog.cleaner import Cleaner

PAUSE_MS = 400
LOSES_DISK = 0.3
DELETES = 0.1
CLEANERS = ("cleaner-1", "cleaner-2")
HOST, AUDITOR = "host", "auditor"


class Soak(Siege):
    """The processes of a soak."""

    names = (*APPENDING, *CLEANERS, HOST, AUDITOR, DRIVER)
    living = (*APPENDING, HOST)
    holds = "nothing stale, all tables equal"
    holds_in_the_end = "tables, views, copy and state are what was sent"
    kills_apart_s = (1.0, 6.0)
    looks_apart_s = 240
    first_look_s = 60

    def __init__(self, *stage: Any, is_local: bool) -> None:
        super().__init__(*stage)
        self.is_local = is_local
        self.disks = self.deleted = 0

    def program_of(self, name: str) -> tuple[str, list[str]]:
        if name in APPENDING:
            return "soak_producer", [name, str(PAUSE_MS)]
        if name in CLEANERS:
            return "cleaner", [*LOGS]
        if name == HOST:
            return "soak_host", [str(self.work / HOST)]
        if name == AUDITOR:
            return "soak_auditor", []
        return "soak_driver", [str(self.pids)]

    def strike(self) -> None:
        name = self.random.choice(sorted(self.children))
        if self.kill(name):
            if name == HOST and self.random.random() < LOSES_DISK:
                shutil.rmtree(self.work / HOST, ignore_errors=True)
                self.disks += 1
            self.start_child(name)
        if self.random.random() < DELETES:
            try:
                self._delete_records()
            except IN_DOUBT as e:
                self.tell(f"not deleted: {e}")

    def look(self) -> list[str]:
        with paused([c for c in self.children.values() if c.is_running]):
            return soaked.problems(self.world, is_local=self.is_local)

    def _delete_records(self) -> None:
        """Deletes a part of what a partition has, below what is undecided."""
        log = soaked.opened(self.world, SOAK)
        p = self.random.randrange(soaked.PARTITIONS)
        start, end = log.start_offsets()[p], log.stable_offsets()[p]
        before = start + int((end - start) * self.random.random() * 0.9)
        log.delete_records({p: before})
        self.deleted += before > start

    def stop(self) -> None:
        """Ends producers with a whole lap, then who follows them, then the cleaners."""
        self.wait_for_driver()
        for name in (*APPENDING, DRIVER, HOST, AUDITOR, *CLEANERS):
            self.stop_child(name)

    def problems(self) -> list[str]:
        log = soaked.opened(self.world, SOAK)
        for view in ("delta", "iceberg"):
            log.publish(view)
        with store_of(self.world, self.work / HOST) as store:
            state = dict(store.scan())
        with store_of(self.world, self.work / "another-host") as store:
            if dict(store.scan()) != state:
                return ["the state on an empty disk is not that of the host's disk"]
        return soaked.final_problems(self.world, state, is_local=self.is_local)

    def swept_problems(self) -> list[str]:
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
            sweep(soaked.opened(self.world, name))
        return found + soaked.problems(self.world, is_local=self.is_local)

    def facts(self) -> list[str]:
        facts = [f"{self.disks} disks of the host lost"]
        facts += [f"{self.deleted} times records were deleted below an offset"]
        facts += [f"{self.failures} drivers failed at their start"]
        facts = ["; ".join(facts)]
        facts += [f"{name}: {left_of(soaked.opened(self.world, name))}" for name in LOGS]
        sent = ", ".join(f"{soaked.told(self.world, p):,} of {p}" for p in soaked.PRODUCERS)
        return [*facts, f"records sent to {SOAK}: {sent}"]


def main() -> int:
    args = options("Everything at once, killed for an hour.", minutes=60).parse_args()
    is_local = not (args.s3 or args.url)
    return play(
        args,
        soaked.create,
        lambda *stage: Soak(*stage, is_local=is_local).run(args.minutes, args.slower),
    )


if __name__ == "__main__":
    sys.exit(main())
