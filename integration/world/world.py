"""A world: a home log and two others, whose clock, faults, processes and users follow from a seed.

Each step is one public operation (`operations.py`), by one process, through a handle that may be
old. After it the world looks at what was committed, version by version, and asks the model whether
that is what the step should have done: all of it if the call returned, all or nothing of each
append if it failed. Then it asks some of everything that can be asked (`questions.py`).
"""

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import combinations, count
from pathlib import Path
from typing import Any, NamedTuple

from kinds import Columns, read_as
from model import COMMITTED, Deal, LogModel, Record

from clog.storage import Log, ManualClock
from clog.storage.env import SeededIds, SystemClock
from clog.storage.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    InvalidInputError,
    StoreUnavailableError,
)
from clog.storage.format import documents
from clog.storage.format.commits import edit_of, read_commit
from clog.storage.store import memory, open_store
from clog_testing.crash import inside
from clog_testing.faults import (
    Call,
    CrashAt,
    CrashedError,
    FaultKind,
    FaultyStore,
    RandomFaults,
)

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
PLACES = ("home", "east", "west")
_WORLDS = count()
_HARMLESS = (FaultKind.FAIL_AFTER, FaultKind.REPEAT)
_FAILURES = (StoreUnavailableError, CommitStateUnknownError, CommitConflictError)
HEADER = "seq"
"""The header that may say which record of a key wins."""


class WrongError(AssertionError):
    """The log and the model differ."""


class Row(NamedTuple):
    """A record as it is asked for, or read; None: the log chooses."""

    partition: int | None
    key: Any
    value: Any
    time_ms: int | None = None
    order: int | None = None
    offset: int | None = None


@dataclass
class Unit:
    """What one append gives to one log: there as a whole or not at all."""

    place: str
    rows: Sequence[Row] | None
    """None: whatever comes, by one who is looked after otherwise."""
    deal: Deal | None = None
    is_found: bool = False
    settles: bool | None = None
    """Whether it must be there, where something else says so."""


@dataclass
class Process:
    """A process: its view of each store, through which its calls fail, and its handles."""

    stores: dict[str, FaultyStore]
    handles: dict[str, list[Log]] = field(default_factory=dict)


@dataclass(frozen=True)
class InterruptAt:
    """Ctrl-C at a call of the store: the process lives on, with the handles that it has."""

    index: int

    def fault(self, call: Call) -> None:
        """Raises at the call with this number, before it is made."""
        if call.index == self.index:
            raise KeyboardInterrupt


class World:
    """The state of one; ``trace`` has a line for each step."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
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
        self.tried: Counter[str] = Counter()
        """How often each operation was begun."""
        self.done: list[str] = []
        """The names of the operations, in order, for the count of pairs."""
        self.expected: list[Unit] = []
        self.late: list[Unit] = []
        """What failed with an unknown outcome: another writer may still commit the request."""
        self.changed: set[str] = set()
        """Where the last step made a commit."""
        self.failed = False
        self._observers: dict[str, Log] = {}
        self.broker: Any = None
        """A topic of Kafka."""
        self.older: set[str] = set()
        """The ids of the logs of earlier releases that were there."""
        self.ticks = 0
        """The last order of a record that must not be late."""
        self.backup: Any = None
        """A copy of all files, and what is known of them."""

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

    def observer(self, place: str) -> Log:
        """Returns what has watched the log of a place for long; now and then a new one."""
        known = self._observers.get(place)
        if known is None or known.id != self.logs[place].log_id or self.random.random() < 0.1:
            known = self._observers[place] = self.fresh(place)
        return known

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
    def calling(self, process: Process, *, is_sound: bool = False) -> Iterator[None]:
        """Makes calls of a process, of which some go wrong unless all ``is_sound``; tells by
        ``failed`` whether it ended with an error of the store. A crash takes the process's handles.
        """
        self.failed = False
        chance = 1 if is_sound else self.random.random()
        if chance < 0.06:
            self._plan(process, CrashAt(self.random.randrange(1, 14), self._when()))
        elif chance < 0.12:
            seed = self.random.randrange(1 << 30)
            self._plan(process, RandomFaults(seed, self.random.choice((0.05, 0.3)), _HARMLESS))
        elif chance < 0.14:
            seed = self.random.randrange(1 << 30)
            self._plan(process, RandomFaults(seed, 0.5, (FaultKind.FAIL_BEFORE,)))
        elif chance < 0.17:
            self._plan(process, InterruptAt(self.random.randrange(1, 14)))
        try:
            yield
        except KeyboardInterrupt:
            self.failed = True
            self.trace.append("    interrupted")
        except CrashedError:
            self.failed = True
            self.processes[self.processes.index(process)] = self._process()
            self.open = [begun for begun in self.open if begun.process is not process]
            self.trace.append("    the process is gone")
        except InvalidInputError as e:
            if "append again" not in str(e):  # A change of the log came between.
                raise
            self.failed = True
        except _FAILURES as e:
            if chance >= 0.17:
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

    def observe(self, *, done: bool = True) -> None:
        """Looks at each log's commits since the last step, and checks what they appended; a step
        that was not ``done`` may have appended nothing.
        """
        self.changed = set()
        for place in self.logs:
            self.look(place)
        for unit in self.expected:
            wrong = unit.settles is not None and unit.rows and unit.is_found != unit.settles
            check(not wrong, "positions and records are not in one commit: {}", unit)
        if not self.failed and done:
            missing = [unit for unit in self.expected if not unit.is_found and unit.rows]
            check(not missing, "a call returned, but nothing was appended: {}", missing)
        if self.failed:
            self.late += [unit for unit in self.expected if not unit.is_found and unit.rows]
        self.expected = []

    def observe_table(self, place: str, shown: Mapping[Any, Any]) -> None:
        """Compares a table that a step has in its hands, after a look at what it committed."""
        self.look(place)
        model = self.logs[place]
        compare(
            f"a state store of {place}",
            shown,
            model.table(model.version),
            model.doubtful(model.version),
        )

    def look(self, place: str) -> None:
        """Looks at a log's commits since it was last looked at."""
        model = self.logs[place]
        log = self.observer(place)
        check(log.id == model.log_id, "{} has another log", place)
        store = inside(open_store(self.url(place)))
        known, tip = model.version, log.version
        for version in range(known + 1, tip + 1):
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
        if tip > known:
            self.changed.add(place)
            ends = dict(enumerate(model.ends[-1][1]))
            check(log.end_offsets() == ends, "end offsets of {}: {}", place, ends)
            stable, wanted = log.stable_offsets(), dict(enumerate(model.stable(tip)))
            check(stable == wanted, "stable offsets of {}: {}, not {}", place, stable, wanted)

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
        asked = [u for u in (*self.expected, *self.late) if u.place == place]
        asked = [u for u in asked if not (u.is_found and u.rows)]
        several = (some for size in range(1, 4) for some in combinations(asked, size))
        for units in several:
            parts = _matched(units, new, model.columns[-1][1])
            if parts is None:
                continue
            for unit in units:
                unit.is_found = True
                deal = unit.deal
                if deal is not None and not _is_undecided(self, place, version, deal):
                    deal.outcome = COMMITTED
                    deal.ends[model.log_id] = version
            model.records += [
                Record(
                    *(row.partition, row.offset, row.key, value),
                    *(row.time_ms, row.order, version, unit.deal),
                )
                for row, (unit, value) in zip(new, parts, strict=True)
            ]
            if model.is_hashed:
                homes = {(r.key, r.partition) for r in model.records if r.key is not None}
                many = len(homes) > len({key for key, _ in homes})
                check(not many, "a key of {} is in two partitions: {}", place, homes)
            return
        raise WrongError(f"version {version} of {place} appended what nobody asked for: {new[:3]}")

    # --- Time

    def later(self, ms: int) -> None:
        """Lets time pass."""
        self.clock.advance(ms)

    # --- Copies of everything

    def back_up(self) -> None:
        """Copies the files of all logs, and what the model knows of them."""
        known = copy.deepcopy((self.logs, self.deals, self.cuts, self.late))
        self.backup = (dict(self._files()), known)

    def restore(self) -> None:
        """Stops everything, and puts the copy in the place of all logs."""
        files, known = self.backup
        store = self._files()
        for name in list(store):
            del _filesystem()[name]
        _filesystem().update(files)
        self.gone += self.logs.values()
        self.logs, self.deals, self.cuts, self.late = copy.deepcopy(known)
        self.processes = [self._process() for _ in self.processes]
        self.open, self._observers = [], {}

    def end(self) -> None:
        """Leaves nothing behind."""
        for kept in self.kept:
            if hasattr(kept.made, "close"):
                kept.made.close()
        for name in self._files():
            del _filesystem()[name]

    def _files(self) -> dict[str, Any]:
        root = f"/world-{self.number}/"
        return {name: file for name, file in _filesystem().items() if name.startswith(root)}


def _filesystem() -> dict[str, Any]:
    from fsspec.implementations.memory import MemoryFileSystem

    return MemoryFileSystem.store


def _matched(
    units: Sequence[Unit], new: list[Row], columns: Columns | None
) -> list[tuple[Unit, Any]] | None:
    """Returns for each row that is read the unit that it belongs to, and its value as it was
    appended; None if these are not the rows of these units together.
    """
    if units[0].rows is None:
        return [(units[0], row.value) for row in new]
    left = [(unit, row) for unit in units for row in unit.rows or ()]
    parts = []
    for row in new:
        fits = ((unit, asked) for unit, asked in left if _is_asked(asked, row))
        found = next(fits, None)
        if found is None or not same(read_as(found[1].value, columns), row.value):
            return None
        left.remove(found)
        parts.append((found[0], found[1].value))
    return None if left else parts


def _is_asked(asked: Row, row: Row) -> bool:
    chosen = ("partition", "time_ms", "order", "offset")
    return asked.key == row.key and all(
        getattr(asked, name) in (None, getattr(row, name)) for name in chosen
    )


def _is_undecided(world: World, place: str, version: int, deal: Deal) -> bool:
    store = inside(open_store(world.url(place)))
    edit = edit_of(store, read_commit(store, version).record)
    names = [(j.entry.name.id, j.entry.name.epoch, j.entry.name.number) for j in edit.unended]
    return deal.name in names


def _read(log: Log, start: Sequence[int], end: Sequence[int]) -> list[Row]:
    """Returns the records of these ranges."""
    starts = {p: max(a, log.start_offsets()[p]) for p, a in enumerate(start) if a < end[p]}
    starts = {p: a for p, a in starts.items() if a < end[p]}
    if not starts:
        return []
    found = []
    for batch in log.read(
        start=starts, end={p: end[p] for p in starts}, isolation="read_uncommitted"
    ):
        found += rows_of(batch)
    return [row for row in found if row.partition in starts]


def rows_of(batch: Any) -> list[Row]:
    """Returns the records of a batch of `Log.read`."""
    return [
        Row(
            *(r["partition"], plain(r["key"]), r["value"], _ms(r["timestamp"])),
            *(_order(r.get("headers")), r["offset"]),
        )
        for r in batch.to_pylist()
    ]


def _order(headers: Any) -> int | None:
    values = [h["value"] for h in headers or () if h["key"] == HEADER]
    return int.from_bytes(values[-1], "big") if values else None


def plain(key: Any) -> Any:
    """Returns a key as the model has it: that of a struct is a tuple."""
    return tuple(key.values()) if isinstance(key, dict) else key


def _ms(time: datetime) -> int:
    return round((time - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)


def same(one: Any, other: Any) -> bool:
    """Compares two values exactly, NaN as equal to itself, 1 and 1.0 as different."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, float) and isinstance(other, float):
        return repr(one) == repr(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def compare(
    what: str, found: Mapping[Any, Any], wanted: Mapping[Any, Any], doubtful: set[Any]
) -> None:
    """Raises unless two tables are equal, but for keys whose erasure is under way."""
    for key in sorted(found.keys() | wanted.keys(), key=str):
        if key in doubtful and (key not in found or key not in wanted):
            continue
        check(
            key in found and key in wanted and same(found[key], wanted[key]),
            "{}: key {} is {!r} and should be {!r}",
            what,
            key,
            found.get(key, "absent"),
            wanted.get(key, "absent"),
        )


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
        with remembered():
            yield
    finally:
        memory._file = made  # noqa: SLF001
        for name, method in real.items():
            setattr(SystemClock, name, method)


@contextmanager
def remembered() -> Iterator[None]:
    """Decodes the same bytes once: many read them, and nobody changes what comes of them."""
    bodies: dict[tuple[str, bytes], Any] = {}
    real = documents.decode

    def decode(kind: str, data: bytes, *, where: str) -> Any:
        key = kind, bytes(data)
        if key not in bodies:
            bodies[key] = real(kind, data, where=where)
        return bodies[key]

    documents.decode = decode
    try:
        yield
    finally:
        documents.decode = real
