"""Transactions over several logs and visible ones, against what must be true of any order of
events, with the cleaner running (S48 to S53).

Holders begin, append, commit, abort and die in the middle of commits; others take ids over, finish
what was left, abort by hand; clocks pass timeouts; cleaners clean; logs cannot be reached for a
while. Each record has a value of its own, so that what a reader sees tells which transactions he
sees. At each step:

- no reader sees a record of a transaction that was not begun to be committed, or was aborted;
- what was seen once stays: no outcome is taken back, and no record is lost;
- a holder that was told that it committed, or did not, was told the truth.

At the end, once all timeouts have passed and somebody came by, nothing is undecided, and each
transaction is in all of its logs, whole, or in none.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from clog.cleaner import Cleaner
from clog.storage import InvalidInputError, Log, ManualClock, NotFoundError
from clog.storage.env import SeededIds
from clog.storage.errors import ClogError, CommitStateUnknownError
from clog.storage.format.commits import Head
from clog.storage.transactions import ids
from clog.storage.transactions.several import finish_all
from clog_testing.crash import discard, memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

LOGS, HOLDERS = 3, 2
TIMEOUT_MS = 10_000
NOTHING = Faults()
KINDS = (FaultKind.FAIL_BEFORE, FaultKind.FAIL_AFTER)
STEP = st.tuples(
    st.sampled_from(
        [
            *("begin", "begin visible", "append", "append", "commit", "commit", "abort"),
            *("die in commit", "away", "finish", "abort by hand", "pass", "clean", "plain"),
        ]
    ),
    st.integers(0, HOLDERS - 1),
    st.integers(0, LOGS - 1),
    st.integers(1, 4),
    st.sampled_from(KINDS),
)


@dataclass
class Tried:
    """One transaction, as far as the world knows it."""

    handle: object
    rows: dict[int, list[str]] = field(default_factory=dict)
    may_commit: bool = False
    told: bool | None = None


class World:
    """Three logs, and the processes that work on them. The first log is every home."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.ids = iter(SeededIds(n) for n in range(1, 10_000))
        self.stores = [memory_store() for _ in range(LOGS)]
        config = {"segment.bytes": 90, "delete.retention.ms": 1000, "min.cleanable.dirty.ratio": 0}
        for store in self.stores:
            Log.create(store, 1, config, clock=self.clock, ids=next(self.ids))
        self.tried: list[Tried] = []
        self.plain: list[set[str]] = [set() for _ in range(LOGS)]
        self.seen: list[set[str]] = [set() for _ in range(LOGS)]
        self.values = iter(range(10**6))
        self.holders: list[tuple[list[FaultyStore], list[Log]]] = []
        for _ in range(HOLDERS):
            faulty = [FaultyStore(store, clock=self.clock) for store in self.stores]
            self.holders.append((faulty, self.opened(faulty)))
        self.current: list[Tried | None] = [None] * HOLDERS

    def opened(self, stores) -> list[Log]:
        return [Log.open(store, clock=self.clock, ids=next(self.ids)) for store in stores]

    def act(self, what, holder, at, number, kind) -> None:
        logs = self.holders[holder][1]
        current = self.current[holder]
        if what in ("begin", "begin visible"):
            self.begin(holder, logs, visible=what == "begin visible")
        elif what == "append" and current is not None:
            self.append(current, logs, at)
        elif what == "commit" and current is not None:
            self.commit(current)
        elif what == "abort" and current is not None:
            self.abort(current)
        elif what == "die in commit" and current is not None:
            self.die(holder, at, number, kind)
        elif what == "away":
            self.away(holder, at, kind)
        elif what == "finish":
            finish_all(self.opened(self.stores)[at].handle)
        elif what == "abort by hand":
            self.abort_by_hand(at)
        elif what == "pass":
            self.clock.advance(TIMEOUT_MS // 2)
        elif what == "clean":
            log = self.opened(self.stores)[at]
            log.roll()
            Cleaner([log], clock=self.clock).run_once(force=True)
        elif what == "plain":
            (value,) = self.rows(1)
            self.opened(self.stores)[at].append([{"key": value, "value": value}])
            self.plain[at].add(value)

    def begin(self, holder, logs, *, visible) -> None:
        try:
            t = logs[0].transaction("job", TIMEOUT_MS, visible=visible)
        except ClogError:
            self.reopen(holder)
            return
        self.current[holder] = Tried(t)
        self.tried.append(self.current[holder])

    def reopen(self, holder) -> None:
        faulty = [FaultyStore(store, clock=self.clock) for store in self.stores]
        self.holders[holder] = faulty, self.opened(faulty)
        self.current[holder] = None

    def rows(self, count) -> list[str]:
        return [f"v{next(self.values)}" for _ in range(count)]

    def append(self, tried, logs, at) -> None:
        values = self.rows(2)
        try:
            rows = [{"key": value, "value": value} for value in values]
            tried.handle.append(rows, log=logs[at])
        except ClogError:
            return
        tried.rows.setdefault(at, []).extend(values)

    def commit(self, tried) -> None:
        tried.may_commit = True
        try:
            tried.handle.commit()
        except CommitStateUnknownError:
            return
        except InvalidInputError:
            return  # It has ended before, or an append of it is in doubt.
        except ClogError:
            return
        assert tried.told is not False, "committed, after it was said that it was not"
        tried.told = True

    def abort(self, tried) -> None:
        try:
            tried.handle.abort()
        except ClogError:
            return
        assert tried.told is not True, "aborted, after it was said that it was committed"
        tried.told = False

    def die(self, holder, at, number, kind) -> None:
        faulty, _ = self.holders[holder]
        faulty[at].plan = Faults(Fault(kind, "create", "*/commits/*", nth=number, times=99))
        self.commit(self.current[holder])
        self.reopen(holder)

    def away(self, holder, at, kind) -> None:
        """A log fails for the length of one commit, and its holder tries again."""
        faulty, _ = self.holders[holder]
        current = self.current[holder]
        if current is None:
            return
        faulty[at].plan = Faults(Fault(kind, "create", "*/commits/*", times=9))
        self.commit(current)
        faulty[at].plan = NOTHING
        self.commit(current)

    def abort_by_hand(self, at) -> None:
        try:
            self.opened(self.stores)[at].abort_transaction("job")
        except (NotFoundError, InvalidInputError):
            return

    def check(self) -> None:
        for at, log in enumerate(self.opened(self.stores)):
            seen = set(values(log))
            assert len(seen) == len(list(values(log))), "a record is there twice"
            assert self.seen[at] <= seen, f"lost: {self.seen[at] - seen}"
            assert self.plain[at] <= seen | hidden(log), "a plain append is lost"
            self.seen[at] = seen
            for tried in self.tried:
                mine = seen & set(tried.rows.get(at, ()))
                assert not mine or tried.may_commit, f"dirty read of {mine}"
                assert not mine or tried.told is not False, f"aborted read of {mine}"
                assert len(mine) in (0, len(tried.rows.get(at, ()))), f"a part: {mine}"

    def settle(self) -> None:
        self.clock.advance(2 * TIMEOUT_MS)
        for _ in range(2):
            for log in self.opened(self.stores):
                assert [w for w in finish_all(log.handle) if w.is_stuck] == []
        self.check()
        logs = self.opened(self.stores)
        assert [e for log in logs for e in log.handle.tip.head.unended if e.first] == []
        for at in range(LOGS):
            assert self.plain[at] <= self.seen[at]
        for tried in self.tried:
            found = {at: set(rows) <= self.seen[at] for at, rows in tried.rows.items()}
            assert len(set(found.values())) <= 1, f"in some logs alone: {found}"
            if found and tried.told is not None:
                assert set(found.values()) == {tried.told}
        for store in self.stores:
            check_log(store, every_version=False)
            discard(store)


def values(log, isolation="read_committed") -> Iterator[str]:
    for batch in log.read(isolation=isolation):
        yield from (value.decode() for value in batch.column("value").to_pylist())


def hidden(log) -> set[str]:
    """What is beyond the stable offset."""
    return set(values(log, "read_uncommitted")) - set(values(log))


LOAD = settings(
    max_examples=2 * settings().max_examples // 5,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
STEPS = st.lists(STEP, min_size=5, max_size=30)


@settings(LOAD, derandomize=False)
@given(steps=STEPS)
def test_all_or_nothing_whatever_happens(steps):
    """S48, S50, S51, S53: atomic, isolated, nothing lost, no late outcome for another one."""
    world = World()
    for step in steps:
        world.act(*step)
        world.check()
    world.settle()


def dirty_reads(monkeypatch):
    """S51: readers do not stop at the last stable offset."""
    monkeypatch.setattr(Head, "stable_offset", lambda head, p: head.partitions.end[p])


def ends_of_others(monkeypatch):
    """S48: a takeover treats what was left open as committed."""
    monkeypatch.setattr(ids, "ABORTED", "committed")


@pytest.mark.parametrize(
    "bug", [dirty_reads, pytest.param(ends_of_others, marks=pytest.mark.nightly)]
)
def test_planted_bugs_are_noticed(bug, monkeypatch):
    """Each removes one safeguard, and some order of events shows it."""
    bug(monkeypatch)

    @settings(LOAD, max_examples=1500, phases=[Phase.generate], database=None)
    @given(steps=STEPS)
    def run(steps):
        world = World()
        for step in steps:
            world.act(*step)
            world.check()
        world.settle()

    with pytest.raises((AssertionError, ClogError, ExceptionGroup)):
        run()
