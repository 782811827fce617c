"""Transactions over several logs beside a model that has nothing to do: a dict for each log, to
which a transaction that is committed adds what it wrote there, and one that is not adds nothing.

One job writes to three logs, transaction after transaction. Any log may be away for the length of
one commit or abort, from its first or a later request on; the job may die, and goes on from the
positions that are committed with its transactions; others append, clean, and let time pass. At each
step each log's table shows nothing that the model lacks. At the end all logs can be reached, time
has passed and somebody comes by: then each table is the model's dict, and nothing is undecided.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from clog.cleaner import Cleaner
from clog.storage import Log, ManualClock
from clog.storage.env import SeededIds
from clog.storage.errors import (
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    InvalidInputError,
    StoreUnavailableError,
)
from clog.storage.format import commits
from clog.storage.format.commits import Head
from clog.storage.format.transactions import ABORTED
from clog.storage.transactions.several import finish_all
from clog_testing.crash import discard, memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

LOGS = 3
TIMEOUT_MS = 10_000
LOG = st.integers(0, LOGS - 1)
AWAY = st.none() | st.tuples(LOG, st.integers(1, 3))
STEP = st.one_of(
    *(st.tuples(st.just("write"), LOG) for _ in range(3)),
    *(st.tuples(st.just("commit"), at) for at in (st.none(), AWAY)),
    st.tuples(st.just("abort"), AWAY),
    st.tuples(st.just("give up"), st.integers(1, LOGS - 1)),
    st.tuples(st.just("die"), st.none()),
    st.tuples(st.sampled_from(["plain", "clean"]), LOG),
    st.tuples(st.just("pass"), st.none()),
)
STEPS = st.lists(STEP, min_size=8, max_size=30)


@dataclass
class Work:
    """A transaction of the job: its serial number, and what it wrote, by log."""

    transaction: object
    serial: int
    wrote: list[dict[str, str]] = field(default_factory=lambda: [{} for _ in range(LOGS)])


class Job:
    """The job, and the model of what it has done."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.seeds = iter(range(1, 10_000))
        self.stores = [memory_store() for _ in range(LOGS)]
        config = {"segment.bytes": 90, "delete.retention.ms": 1000, "min.cleanable.dirty.ratio": 0}
        for store in self.stores:
            Log.create(store, 1, config, clock=self.clock, ids=SeededIds(next(self.seeds)))
        self.others = self.opened(self.stores)
        self.model: list[dict[str, str]] = [{} for _ in range(LOGS)]
        self.numbers = iter(range(1, 10_000))
        self.work: Work | None = None
        self.die()

    def opened(self, stores) -> list[Log]:
        seeds = self.seeds
        return [Log.open(s, clock=self.clock, ids=SeededIds(next(seeds))) for s in stores]

    def die(self) -> None:
        """The process starts again, with nothing but what is committed."""
        self.faulty = [FaultyStore(store, clock=self.clock) for store in self.stores]
        self.logs = self.opened(self.faulty)
        if self.work is not None:
            self.logs[0].transaction("job", TIMEOUT_MS)  # What was on its way comes no more.
            done = self.logs[0].positions("job").get(self.logs[0].id, {}).get(0, 0)
            self.ended(is_committed=done == self.work.serial)

    def ended(self, *, is_committed: bool) -> None:
        for shown, wrote in zip(self.model, self.work.wrote, strict=True):
            shown.update(wrote if is_committed else {})
        self.work = None

    def act(self, what: str, at) -> None:
        if what == "write":
            self.write(at)
        elif what in ("commit", "abort") and self.work is not None:
            if at is not None:
                rule = Fault(FaultKind.FAIL_BEFORE, "create", "*/commits/*", nth=at[1], times=99)
                self.faulty[at[0]].plan = Faults(rule)
            self.commit() if what == "commit" else self.abort()
            for store in self.faulty:
                store.plan = Faults()
        elif what == "give up":
            self.act("commit", (0, 2))  # All others have their records, and the home is away.
            self.act("abort", (at, 1))
        elif what == "die":
            self.die()
        elif what == "plain":
            serial = next(self.numbers)
            self.others[at].append([{"key": f"plain {serial % 2}", "value": str(serial)}])
            self.model[at][f"plain {serial % 2}"] = str(serial)
        elif what == "clean":
            self.others[at].roll()
            Cleaner([self.others[at]], clock=self.clock).run_once(force=True)
        elif what == "pass":
            self.clock.advance(TIMEOUT_MS // 2)

    def write(self, at: int) -> None:
        if self.work is None:
            serial = next(self.numbers)
            transaction = self.logs[0].transaction("job", TIMEOUT_MS)
            transaction.positions(self.logs[0], {0: serial}, missed_deletes=True)
            self.work = Work(transaction, serial)
        work, number = self.work, next(self.numbers)
        key, value = f"{work.serial} {number % 2}", str(number)
        try:
            work.transaction.append([{"key": key, "value": value}], log=self.logs[at])
        except ClogError:
            return  # It took too long, or a commit of it is in doubt: there is more to do first.
        work.wrote[at][key] = value

    def commit(self) -> None:
        try:
            self.work.transaction.commit()
        except (CommitStateUnknownError, CommitConflictError, StoreUnavailableError):
            return  # It is tried again, aborted, or left by a process that dies.
        except ClogError:
            self.ended(is_committed=False)
            return
        self.ended(is_committed=True)

    def abort(self) -> None:
        try:
            self.work.transaction.abort()
        except InvalidInputError:
            self.ended(is_committed=True)
        except ClogError:
            return
        else:
            self.ended(is_committed=False)

    def tables(self) -> list[dict[str, str]]:
        return [
            {
                key.decode(): value.decode()
                for batch in log.table().to_batches()
                for key, value in zip(
                    *(batch.column(name).to_pylist() for name in ("key", "value")), strict=True
                )
            }
            for log in self.others
        ]

    def check(self) -> None:
        """What was committed is shown, or will be; of what is not committed nothing is."""
        for at, shown in enumerate(self.tables()):
            unsure = {} if self.work is None else self.work.wrote[at]
            for key, value in shown.items():
                if key.startswith("plain"):
                    assert self.model[at].get(key) is not None, f"{key} was never written"
                else:
                    assert value in (self.model[at].get(key), unsure.get(key)), f"{key}: {value}"

    def settle(self) -> None:
        """All logs can be reached, all timeouts pass, and a cleaner comes by."""
        if self.work is not None:
            self.commit()
        if self.work is not None:
            self.die()
        self.clock.advance(2 * TIMEOUT_MS)
        for _ in range(2):
            for log in self.others:
                log.handle.refresh()
                waiting = [left.reason for left in finish_all(log.handle)]
                assert waiting == []
        assert self.tables() == self.model
        assert [log.handle.refresh().head.unended for log in self.others] == [()] * LOGS
        for store in self.stores:
            check_log(store, every_version=False)
            discard(store)


def run(steps) -> None:
    job = Job()
    for what, at in steps:
        job.act(what, at)
        job.check()
    job.settle()


@settings(
    max_examples=3 * settings().max_examples // 10,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(steps=STEPS)
def test_tables_are_what_the_transactions_wrote(steps):
    """S48, S50, S53: all logs or none, nothing early, nothing lost, and nothing waits forever."""
    run(steps)


def forgotten_abort(monkeypatch):
    """X5: the home keeps no outcome of what was aborted, whoever waits for it."""
    ended = commits.ended

    def forgetful(unended, ending):
        left = ended(unended, ending)
        is_abort = ending.outcome == ABORTED
        return tuple(e for e in left if not (is_abort and e.name == ending.name))

    monkeypatch.setattr(commits, "ended", forgetful)


def dirty_tables(monkeypatch):
    """S51: readers do not stop at the last stable offset."""
    monkeypatch.setattr(Head, "stable_offset", lambda self, p: self.partitions.end[p])


@pytest.mark.parametrize(
    "bug", [pytest.param(forgotten_abort, marks=pytest.mark.nightly), dirty_tables]
)
def test_planted_bugs_are_found(bug, monkeypatch):
    """Each removes one safeguard, and some order of events shows it: the first is that a home which
    drops what it aborted leaves a participant waiting forever.
    """
    bug(monkeypatch)

    @settings(
        max_examples=400,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(steps=STEPS)
    def find(steps):
        run(steps)

    with pytest.raises((AssertionError, ClogError, ExceptionGroup)):
        find()
