"""Two Spark jobs with state write two logs in transactions, while their driver, and the cleaners of
the logs, are killed at random moments; named cuts are taken, kept for a while and dropped.

    python integration/kill/jobs.py [--minutes 15] [--url URL | --s3 versitygw] [--seed S]

See README.md in this folder.
"""

import sys
import time
from collections import Counter
from typing import Any

from jobs_driver import CLICKS, COUNTING, COUNTS, ECHO, LOGS, SUMMING, opened, rows_of
from oracle import broken_invariants
from processes import paused
from siege import DRIVER, Siege, left_of, sweep
from stage import options, play
from world import IN_DOUBT, World

from clog.cleaner import Cleaner
from clog.storage import Cut, Log, drop_snapshot, snapshot, snapshots
from clog.storage.diagnostics.verify import verify_log

CLEANERS = ("cleaner-1", "cleaner-2")
JOBS = (COUNTING, SUMMING)
PARTITIONS = 2
ROWS = 40
UNLUCKY = 0.1
CUTS, CUTS_MAX = 0.2, 4
"""How often a cut is taken, for each kill; so many are kept."""
_COMMON = {"segment.bytes": "64k", "file.delete.delay.ms": "20s"}
CONFIG = {
    CLICKS: {**_COMMON, "cleanup.policy": ""},  # A batch that is done again finds what it had.
    COUNTS: {**_COMMON, "min.cleanable.dirty.ratio": "0.2", "delete.retention.ms": "60s"},
    ECHO: {**_COMMON, "min.cleanable.dirty.ratio": "0.2", "delete.retention.ms": "60s"},
}
Table = dict[str, str]


class Jobs(Siege):
    """The processes of two jobs; who appends their input is the run itself."""

    names = (*CLEANERS, DRIVER)
    holds = "both logs show the same, in each cut, too"
    holds_in_the_end = "both logs show what was counted and summed of all input"
    kills_apart_s = (2.0, 12.0)
    looks_apart_s = 150
    first_look_s = 75

    def __init__(self, *stage: Any) -> None:
        super().__init__(*stage)
        self.sent = self.taken = self.read_again = self.done = 0
        self.cuts: dict[str, Table] = {}
        self.wrong: list[str] = []

    def program_of(self, name: str) -> tuple[str, list[str]]:
        return ("jobs_driver", [str(self.pids)]) if name == DRIVER else ("cleaner", [*LOGS])

    def begin(self) -> None:
        self._send()
        super().begin()

    def strike(self) -> None:
        self._send()
        name = self.random.choice(self.names)
        if (name != DRIVER or self._has_moved()) and self.kill(name):
            self.start_child(name)
        if self.random.random() < CUTS:
            try:
                self._cut()
            except IN_DOUBT as e:
                self.tell(f"no cut: {e}")

    def look(self) -> list[str]:
        with paused([c for c in self.children.values() if c.is_running]):
            return self._found()

    def stop(self) -> None:
        self._send()
        self.wait_for_driver()
        for name in (DRIVER, *CLEANERS):
            self.stop_child(name)

    def problems(self) -> list[str]:
        right = expected(self.sent)
        found = self._found()
        for name in (COUNTS, ECHO):
            shown = table_of(opened(self.world, name))
            if wrong := _differing(shown, right):
                first = f"{wrong[0]} is {shown.get(wrong[0])}, not {right.get(wrong[0])}"
                found.append(f"{name}: {len(wrong)} of {len(right)} keys differ: {first}")
        return found

    def swept_problems(self) -> list[str]:
        for cut in snapshots(self.world.url_of(COUNTS), self.world.storage_options):
            self._drop(str(cut.name))
        self.cuts.clear()
        for name in LOGS:
            log = opened(self.world, name)
            log.roll()
            Cleaner(log).run_once(force=True)
            sweep(opened(self.world, name))
        return self.problems() + broken_invariants(self.world, LOGS)

    def missed(self) -> list[str]:
        return super().missed() + ["no cut was read again"] * (not self.read_again)

    def facts(self) -> list[str]:
        batches = " and ".join(str(self.world.batches_of_spark(job)[0]) for job in JOBS)
        told = f"{self.sent * ROWS:,} records sent; {batches} micro-batches"
        told += f"; {self.taken} cuts taken, read again {self.read_again} times"
        told += f"; {self.failures} drivers failed at their start"
        return [told, *(f"{name}: {left_of(opened(self.world, name))}" for name in LOGS)]

    def _has_moved(self) -> bool:
        """Tells whether the driver has done a batch of a job since it was killed, or is unlucky."""
        done = sum(self.world.batches_of_spark(job)[0] for job in JOBS)
        if done == self.done and self.random.random() >= UNLUCKY:
            return False
        self.done = done
        return True

    def _send(self) -> None:
        """Appends some input, once, whatever happens to the replies."""
        while True:
            try:
                log = opened(self.world, CLICKS)
                log.append(rows_of(self.sent * ROWS, ROWS), producer=("clicks", self.sent))
                break
            except IN_DOUBT as e:
                self.tell(f"again: {e}")
                time.sleep(1)
        self.sent += 1

    def _cut(self) -> None:
        """Takes a named cut while all work, reads one that is kept once more, and drops one."""
        home, given = self.world.url_of(COUNTS), self.world.storage_options
        name = f"cut-{self.taken}"
        self.taken += 1  # Whether it is taken or in doubt: no name comes twice.
        cut = snapshot(home, name, 3_600_000, given)
        self.cuts[name] = self._shown(cut)
        for one in snapshots(home, given):
            if one.name in self.cuts and self.random.random() < 0.5:
                self.read_again += 1
                if self._shown(one) != self.cuts[one.name]:
                    self.wrong.append(f"{one.name} shows something else than at first")
        if len(self.cuts) > CUTS_MAX:
            self._drop(self.random.choice(sorted(self.cuts)))

    def _drop(self, name: str) -> None:
        drop_snapshot(self.world.url_of(COUNTS), name, self.world.storage_options)
        self.cuts.pop(name, None)

    def _shown(self, cut: Cut) -> Table:
        """What both logs show in a cut."""
        if len(cut.logs) == 1:  # The first transaction makes the other one a member.
            return {}
        counts, echo = (table_of(opened(self.world, name), cut) for name in (COUNTS, ECHO))
        if wrong := _differing(counts, echo):
            first = f"{wrong[0]} is {counts.get(wrong[0])} and {echo.get(wrong[0])}"
            self.wrong.append(f"{len(wrong)} keys differ in {cut.name}: {first}")
        return counts

    def _found(self) -> list[str]:
        stores = {name: self.world.store(name) for name in LOGS}
        found = [
            f"{name}: {f.check} {f.where}: {f.message}"
            for name, store in stores.items()
            for f in verify_log(store).findings
        ]
        self._shown(snapshot(self.world.url_of(COUNTS), None, None, self.world.storage_options))
        return found + self.wrong


def _differing(one: Table, other: Table) -> list[str]:
    return sorted(k for k in one.keys() | other.keys() if one.get(k) != other.get(k))


def table_of(log: Log, at: Cut | None = None) -> Table:
    rows = log.table(at=at).to_arrow(columns=["key", "value"]).to_pylist()
    return {row["key"].decode(): row["value"].decode() for row in rows}


def expected(sent: int) -> Table:
    """What the jobs make of all input: how often each key came, and the sum of its numbers."""
    counts: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for row in rows_of(0, sent * ROWS):
        counts[str(row["key"])] += 1
        sums[str(row["key"])] += int(str(row["value"]))
    told = {f"{COUNTING}/{key}": str(count) for key, count in counts.items()}
    return told | {f"{SUMMING}/{key}": str(total) for key, total in sums.items()}


def create(world: World) -> None:
    for name in LOGS:
        Log.create(world.url_of(name), PARTITIONS, CONFIG[name], world.storage_options)


def main() -> int:
    args = options(
        "Two Spark jobs with state, everybody killed at random moments.", minutes=15
    ).parse_args()
    return play(args, create, lambda *stage: Jobs(*stage).run(args.minutes, args.slower))


if __name__ == "__main__":
    sys.exit(main())
