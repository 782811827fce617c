"""A world: a home log and two others, whose clock, faults, processes and users follow from a seed.

Each step is one public operation (`operations.py`), by one process, through a handle that may be
old. After it the world looks at what was committed, version by version, and asks the model whether
that is what the step should have done: all of it if the call returned, all or nothing of each
append if it failed. Then it asks some of everything that can be asked (`questions.py`).
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from model import COMMITTED, Columns, Deal, LogModel, Record, read_as

from clog.storage import Log, ManualClock
from clog.storage.env import SeededIds, SystemClock
from clog.storage.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    StoreUnavailableError,
)
from clog.storage.format.commits import edit_of, read_commit
from clog.storage.store import memory, open_store
from clog_testing.crash import inside
from clog_testing.faults import CrashAt, CrashedError, FaultKind, FaultyStore, RandomFaults

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
PLACES = ("home", "east", "west")
_WORLDS = count()
_HARMLESS = (FaultKind.FAIL_AFTER, FaultKind.REPEAT)
_FAILURES = (StoreUnavailableError, CommitStateUnknownError, CommitConflictError)


class WrongError(AssertionError):
    """The log and the model differ."""


@dataclass
class Unit:
    """What one append gives to one log: there as a whole or not at all."""

    place: str
    rows: Sequence[tuple[int | None, Any, Any, int | None]]
    """Partition, key, value, timestamp; None: the log chooses."""
    deal: Deal | None = None
    is_found: bool = False
    settles: bool | None = None
    """Whether it must be there, where something else says so."""


@dataclass
class Process:
    """A process: its view of each store, through which its calls fail, and its handles."""

    stores: dict[str, FaultyStore]
    handles: dict[str, list[Log]] = field(default_factory=dict)


class World:
    """The state of one; ``trace`` has a line for each step."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.ids = SeededIds(seed)
        self.clock = ManualClock(now_ms=START_MS)
        self.folder = folder
        self.number = next(_WORLDS)
        self.logs: dict[str, LogModel] = {}
        self.gone: list[LogModel] = []
        self.processes = [self._process() for _ in range(2)]
        self.deals: dict[tuple[str, str, int, int], Deal] = {}
        self.kept: list[Any] = []
        """What lives on, as questions.Kept."""
        self.open: list[Any] = []
        """Transactions that were begun, as operations.Begun."""
        self.cuts: dict[str, Any] = {}
        self.trace: list[str] = []
        self.done: list[str] = []
        """The names of the operations, in order, for the count of pairs."""
        self.expected: list[Unit] = []
        self.failed = False

    def url(self, place: str) -> str:
        """Returns the URL of a place."""
        return f"memory://world-{self.number}/{place}"

    def place_of(self, url: str) -> str:
        """Returns the place of a URL."""
        return url.rpartition("/")[2]

    def _process(self) -> Process:
        return Process({p: FaultyStore(open_store(self.url(p)), clock=self.clock) for p in PLACES})

    # --- Handles

    def fresh(self, place: str) -> Log:
        """Opens the log of a place as an observer without faults."""
        return Log.open(self.url(place), clock=self.clock, ids=self.ids)

    def handle(self, process: Process, place: str) -> Log:
        """Returns an old handle of the log at a place, or opens a new one."""
        known = [log for log in process.handles.get(place, ()) if log.id == self.logs[place].log_id]
        if known and self.random.random() < 0.7:
            return self.random.choice(known)
        log = Log.open(process.stores[place], clock=self.clock, ids=self.ids)
        process.handles.setdefault(place, []).append(log)
        return log

    # --- A step

    @contextmanager
    def calling(self, process: Process) -> Iterator[None]:
        """Makes calls of a process, of which some go wrong; tells by ``failed`` whether it ended
        with an error of the store. A crash takes the process's handles.
        """
        self.failed = False
        chance = self.random.random()
        if chance < 0.06:
            self._plan(process, CrashAt(self.random.randrange(1, 14), self._when()))
        elif chance < 0.12:
            seed = self.random.randrange(1 << 30)
            self._plan(process, RandomFaults(seed, self.random.choice((0.05, 0.3)), _HARMLESS))
        elif chance < 0.14:
            seed = self.random.randrange(1 << 30)
            self._plan(process, RandomFaults(seed, 0.5, (FaultKind.FAIL_BEFORE,)))
        try:
            yield
        except CrashedError:
            self.failed = True
            self.processes[self.processes.index(process)] = self._process()
            self.open = [begun for begun in self.open if begun.process is not process]
            self.trace.append("    the process is gone")
        except _FAILURES as e:
            if chance >= 0.14:
                raise
            self.failed = True
            self.trace.append(f"    failed: {type(e).__name__}")
        finally:
            for store in process.stores.values():
                store.plan = RandomFaults(0, 0)

    def _plan(self, process: Process, plan: Any) -> None:
        for store in process.stores.values():
            store.calls.clear()
            store.plan = plan

    def _when(self) -> Any:
        return self.random.choice(("before", "after", "lost_reply", "denied"))

    def expect(self, place: str, rows: Any, deal: Deal | None = None) -> Unit:
        """Notes what the step is about to append."""
        unit = Unit(place, rows, deal)
        self.expected.append(unit)
        return unit

    def observe(self) -> None:
        """Looks at each log's commits since the last step, and checks what they appended."""
        for place, model in self.logs.items():
            self._observe(place, model)
        for unit in self.expected:
            wrong = unit.settles is not None and unit.rows and unit.is_found != unit.settles
            check(not wrong, "positions and records are not in one commit: {}", unit)
        if not self.failed:
            missing = [unit for unit in self.expected if not unit.is_found and unit.rows]
            check(not missing, "a call returned, but nothing was appended: {}", missing)
        self.expected = []

    def observe_table(self, place: str, shown: Mapping[Any, Any]) -> None:
        """Compares a table that a step has in its hands, after a look at what it committed."""
        self._observe(place, self.logs[place])
        model = self.logs[place]
        wanted, doubtful = model.table(model.version), model.doubtful(model.version)
        wrong = [
            key
            for key in shown.keys() | wanted.keys()
            if shown.get(key) != wanted.get(key) and not (key in doubtful and not shown.get(key))
        ]
        check(not wrong, "a state store of {} differs in {}", place, wrong)

    def _observe(self, place: str, model: LogModel) -> None:
        log = self.fresh(place)
        check(log.id == model.log_id, "{} has another log", place)
        store = inside(open_store(self.url(place)))
        tip = log.version
        for version in range(model.version + 1, tip + 1):
            commit = read_commit(store, version)
            edit = edit_of(store, commit.record)
            ends = tuple(commit.head.partitions.end)
            before = model.ends[-1][1]
            model.ends.append((version, ends))
            for joining in edit.unended:
                self._deal(joining.entry.name)
            new = _read(log, before, ends) if ends != before else []
            if new:
                self._attribute(place, model, version, new)
            for ending in edit.ends:
                deal = self._deal(ending.name)
                check(
                    deal.outcome in (None, ending.outcome),
                    "{} ended as {} and as {}",
                    deal.name,
                    deal.outcome,
                    ending.outcome,
                )
                deal.outcome = ending.outcome
                deal.ends.setdefault(model.log_id, version)
            model.raise_start(version, tuple(commit.head.partitions.start))
            model.version = version
        with suppress(StopIteration):
            check(
                log.end_offsets() == dict(enumerate(model.ends[-1][1])), "end offsets of {}", place
            )

    def _deal(self, name: Any) -> Deal:
        key = (name.home, name.id, name.epoch, name.number)
        if key not in self.deals:
            self.deals[key] = Deal((name.id, name.epoch, name.number))
        return self.deals[key]

    def deal(self, home: str, t: Any) -> Deal:
        """Returns the model of a transaction that was begun in a log."""
        key = (home, t.id, t.epoch, t.number)
        return self.deals.setdefault(key, Deal((t.id, t.epoch, t.number)))

    def _attribute(self, place: str, model: LogModel, version: int, new: list[Any]) -> None:
        for unit in self.expected:
            values = _matched(unit, new, model.columns[-1][1])
            if unit.place == place and not unit.is_found and values is not None:
                unit.is_found = True
                deal = unit.deal
                if deal is not None and not _is_undecided(self, place, version, deal):
                    deal.outcome = COMMITTED
                    deal.ends[model.log_id] = version
                model.records += [
                    Record(p, offset, key, value, time, version, deal)
                    for (p, offset, key, _, time), value in zip(new, values, strict=True)
                ]
                return
        raise WrongError(f"version {version} of {place} appended what nobody asked for: {new}")

    # --- Time

    def later(self, ms: int) -> None:
        """Lets time pass."""
        self.clock.advance(ms)


def _matched(unit: Unit, new: list[Any], columns: Columns | None) -> list[Any] | None:
    """Returns the values of a unit, as they were appended, in the order of what is read; None if
    that is not the unit.
    """
    left = list(unit.rows)
    values = []
    for p, _, key, value, time in new:
        fits = (r for r in left if r[0] in (None, p) and r[1] == key and r[3] in (None, time))
        row = next(fits, None)
        if row is None or not same(read_as(row[2], columns), value):
            return None
        left.remove(row)
        values.append(row[2])
    return None if left else values


def _is_undecided(world: World, place: str, version: int, deal: Deal) -> bool:
    store = inside(open_store(world.url(place)))
    edit = edit_of(store, read_commit(store, version).record)
    names = [(j.entry.name.id, j.entry.name.epoch, j.entry.name.number) for j in edit.unended]
    return deal.name in names


def _read(log: Log, start: Sequence[int], end: Sequence[int]) -> list[Any]:
    """Returns the records of these ranges: partition, offset, key, value, timestamp."""
    starts = {p: max(a, log.start_offsets()[p]) for p, a in enumerate(start) if a < end[p]}
    found = []
    for batch in log.read(
        start=starts, end={p: end[p] for p in starts}, isolation="read_uncommitted"
    ):
        found += rows_of(batch)
    return [row for row in found if row[0] in starts]


def rows_of(batch: Any) -> list[tuple[int, int, Any, Any, int]]:
    """Returns the records of a batch of `Log.read`: partition, offset, key, value, time."""
    return [
        (r["partition"], r["offset"], r["key"], r["value"], _ms(r["timestamp"]))
        for r in batch.to_pylist()
    ]


def _ms(time: datetime) -> int:
    return round((time - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)


def same(one: Any, other: Any) -> bool:
    """Compares two values exactly, NaN as equal to itself, 1 and 1.0 as different."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, float) and isinstance(other, float):
        return repr(one) == repr(other)
    return type(one) is type(other) and bool(one == other)


def check(holds: bool, text: str, *about: Any) -> None:  # noqa: FBT001 - what is checked
    """Raises `WrongError` unless something holds."""
    if not holds:
        raise WrongError(text.format(*about))


@contextmanager
def virtual_time(clock: ManualClock) -> Iterator[None]:
    """Has the files of memory stores bear this clock's time, and the system's clock tell it."""
    made: Callable[..., Any] = memory._file  # noqa: SLF001 - its time is not an argument

    def file(fs: Any, name: str, data: bytes | memoryview) -> Any:
        new = made(fs, name, data)
        new.modified = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
        return new

    real = {name: getattr(SystemClock, name) for name in ("now_ms", "now_us", "monotonic_ms")}
    memory._file = file  # noqa: SLF001
    for name in real:
        setattr(SystemClock, name, lambda _, name=name: getattr(clock, name)())
    try:
        yield
    finally:
        memory._file = made  # noqa: SLF001
        for name, method in real.items():
            setattr(SystemClock, name, method)
