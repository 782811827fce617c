"""A store that goes wrong as planned.

A plan looks at each call, before it is made, and answers with a `Fault` or with none. Plans:
`Faults`, rules by operation, path and number of the call; `CrashAt`, for enumerating every crash
point; `RandomFaults`, by chance that follows from a seed.

What clog must survive, with nothing lost and nothing twice, and where it shows:

=============  =====================================  =========================================
kind           what happens                           what clog makes of it
=============  =====================================  =========================================
FAIL_BEFORE    not done, `StoreUnavailableError`      the error, or another attempt
FAIL_AFTER     done, `StoreUnavailableError`: a       a commit is read back and recognised
               lost reply
REFUSE         not done, `StoreRefusedError` that     the error at once: nothing was written
               is certain
REFUSE_AFTER   done, `StoreRefusedError`: a client's  a commit is read back and recognised
               repeat of what was done is refused
FULL           not done, `StoreFullError`             the error at once, and what was written for
                                                      a commit is deleted
CRASH_BEFORE   not done, the process is gone          old or new state, nothing else
CRASH_AFTER    done, the process is gone              the same
CONFLICT       a create is not done and refused, as   the same version again
               if another one were under way
REPEAT         done twice, as a client does whose     a create loses against itself, is read back
               reply was lost                         and recognised
DELAY          the clock goes on, then done           who slept learns at its commit whether the
                                                      block was closed meanwhile
MEANWHILE      ``run`` is called, then done: another  a lost race, rebased
               writer at the worst moment
TEAR_READ      half of the bytes are read             `CorruptionError`: lengths and hashes tell
=============  =====================================  =========================================

What clog refuses to survive, and so finds out or forbids:

- TEAR_WRITE, half an object under its full name (A1): reads answer `CorruptionError`, and the
  log stays as it is until somebody repairs the store. Not in `RandomFaults`.
- Two creates of one path that both succeed (A2): stores that do this are refused.
"""

import builtins
import errno
import fnmatch
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol, TypeVar

from clog.storage.env import Ids, ManualClock, SeededIds
from clog.storage.errors import StoreUnavailableError
from clog.storage.store.contract import (
    ObjectExistsError,
    Store,
    StoredObject,
    StoreFullError,
    StoreRefusedError,
    WrappingStore,
)

_T = TypeVar("_T")


class CrashedError(BaseException):
    """The process is gone; no ``except Exception`` survives it."""


class FaultKind(StrEnum):
    """What goes wrong; see the module."""

    FAIL_BEFORE = "fail_before"
    FAIL_AFTER = "fail_after"
    REFUSE = "refuse"
    REFUSE_AFTER = "refuse_after"
    FULL = "full"
    CRASH_BEFORE = "crash_before"
    CRASH_AFTER = "crash_after"
    CONFLICT = "conflict"
    REPEAT = "repeat"
    DELAY = "delay"
    MEANWHILE = "meanwhile"
    TEAR_READ = "tear_read"
    TEAR_WRITE = "tear_write"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a store: its number from 0, its operation and its path (or prefix)."""

    index: int
    operation: str
    path: str


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, and with which calls of those that match.

    Attributes:
        kind: what goes wrong.
        operation: a glob over ``get``, ``get_ranges``, ``put``, ``create``, ``delete``, ``list``.
        path: a glob over paths; ``*`` matches ``/`` too.
        nth: the first call, of those that match, to go wrong, from 1.
        times: so many calls go wrong from there on, then all is well: throttling.
        delay_ms: how long a DELAY takes.
        run: what happens in a MEANWHILE.
    """

    kind: FaultKind
    operation: str = "*"
    path: str = "*"
    nth: int = 1
    times: int = 1
    delay_ms: int = 0
    run: Callable[[], None] | None = None

    def matches(self, call: Call) -> bool:
        """Tells whether the call is of this operation and path."""
        return fnmatch.fnmatchcase(call.operation, self.operation) and fnmatch.fnmatchcase(
            call.path, self.path
        )


HAPPENED = (
    Fault(FaultKind.FAIL_AFTER, "create", "*/commits/*"),
    Fault(FaultKind.FAIL_BEFORE, "create", "*/commits/*", nth=2, times=99),
    Fault(FaultKind.FAIL_BEFORE, "get", "*/commits/*", times=99),
)
"""Rules by which it cannot be known whether a commit happened, and it did."""
NEVER_CAME = (
    Fault(FaultKind.FAIL_BEFORE, "create", "*/commits/*", times=99),
    Fault(FaultKind.FAIL_BEFORE, "get", "*/commits/*", times=99),
)
"""The same, and it did not."""


class Plan(Protocol):
    """Decides what goes wrong. May keep count; is asked once for each call, in order."""

    def fault(self, call: Call) -> Fault | None:
        """Returns what goes wrong with this call."""
        ...


class Faults:
    """The first rule that matches and is due. Each counts the calls that match it."""

    def __init__(self, *rules: Fault) -> None:
        self._rules = rules
        self._seen = [0] * len(rules)

    def fault(self, call: Call) -> Fault | None:
        due = None
        for i, rule in enumerate(self._rules):
            if rule.matches(call):
                self._seen[i] += 1
                if due is None and rule.nth <= self._seen[i] < rule.nth + rule.times:
                    due = rule
        return due


When = Literal["before", "after", "lost_reply", "refused", "denied"]
DONE: tuple[When, ...] = ("after", "lost_reply", "denied")
"""Those in which the store does the call."""
_OF_WHEN: dict[When, FaultKind] = {
    "before": FaultKind.CRASH_BEFORE,
    "after": FaultKind.CRASH_AFTER,
    "lost_reply": FaultKind.FAIL_AFTER,
    "refused": FaultKind.CONFLICT,
    "denied": FaultKind.REFUSE_AFTER,
}


@dataclass(frozen=True, slots=True)
class CrashAt:
    """The process goes before or after call ``index``.

    ``lost_reply``: it stays, the call is done, and the reply is an error. ``refused``: it stays, a
    create is refused though nothing is there. ``denied``: it stays, the call is done, and the reply
    says that it may not be.
    """

    index: int
    when: When

    def fault(self, call: Call) -> Fault | None:
        return Fault(_OF_WHEN[self.when]) if call.index == self.index else None


@dataclass(slots=True)
class RandomFaults:
    """Each call goes wrong with ``probability``, in one of ``kinds``; follows from ``seed``."""

    seed: int
    probability: float
    kinds: Sequence[FaultKind] = (FaultKind.FAIL_BEFORE, FaultKind.FAIL_AFTER, FaultKind.REPEAT)
    delay_ms: int = 60_000
    _ids: Ids = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._ids = SeededIds(self.seed)

    def fault(self, call: Call) -> Fault | None:
        chance, kind = self._ids.uniform(), self._ids.uniform()
        if chance >= self.probability:
            return None
        return Fault(self.kinds[int(kind * len(self.kinds))], delay_ms=self.delay_ms)


class FaultyStore(WrappingStore):
    """Passes on what the plan lets pass.

    After a crash every further call crashes as well: the dead do not clean up. Whoever reopens
    takes ``inner``. Attribute ``calls`` is the log of all calls, faulty ones too.
    """

    def __init__(
        self, inner: Store, plan: Plan | None = None, *, clock: ManualClock | None = None
    ) -> None:
        super().__init__(inner)
        self.plan = Faults() if plan is None else plan
        self.calls: builtins.list[Call] = []
        self.crashed = False
        self._clock = clock
        self._lock = threading.Lock()

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        fault = self._next("get", path)
        data = self._run(fault, "get", path, lambda: self.inner.get(path, start, end))
        return _half(data) if _tears(fault) else data

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        fault = self._next("get_ranges", path)
        data = self._run(fault, "get_ranges", path, lambda: self.inner.get_ranges(path, ranges))
        return [_half(piece) for piece in data] if _tears(fault) else data

    def put(self, path: str, data: bytes | memoryview) -> None:
        fault = self._next("put", path)
        content = _half(bytes(data)) if _tears_write(fault) else data
        self._run(fault, "put", path, lambda: self.inner.put(path, content))

    def create(self, path: str, data: bytes) -> None:
        fault = self._next("create", path)
        content = _half(data) if _tears_write(fault) else data
        self._run(fault, "create", path, lambda: self.inner.create(path, content))

    def delete(self, path: str) -> None:
        self._run(self._next("delete", path), "delete", path, lambda: self.inner.delete(path))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        fault = self._next("list", prefix)
        return self._run(fault, "list", prefix, lambda: self.inner.list(prefix))

    def _next(self, operation: str, path: str) -> Fault | None:
        with self._lock:
            if self.crashed:
                raise CrashedError(f"{operation} of {path} after the crash")
            call = Call(len(self.calls), operation, path)
            self.calls.append(call)
            return self.plan.fault(call)

    def _run(self, fault: Fault | None, operation: str, path: str, call: Callable[[], _T]) -> _T:
        kind = None if fault is None else fault.kind
        what = f"{operation} of {path} in {self.url}"
        if kind == FaultKind.CRASH_BEFORE:
            self.crashed = True
            raise CrashedError(f"before {what}")
        if kind == FaultKind.FAIL_BEFORE:
            raise StoreUnavailableError(f"{what} failed as planned, before; retry later")
        if kind == FaultKind.CONFLICT:
            raise ObjectExistsError(errno.EEXIST, f"{what} met another, as planned", path)
        if kind == FaultKind.REFUSE:
            raise StoreRefusedError(f"{what} was refused as planned; grant it", certain=True)
        if kind == FaultKind.FULL:
            raise StoreFullError(f"{what} found no room, as planned; nothing was written")
        if fault is not None:
            self._prelude(fault, call)
        try:
            return call()
        finally:
            # Whatever the answer was, also that nothing is there: it does not arrive.
            if kind in (FaultKind.CRASH_AFTER, FaultKind.TEAR_WRITE):
                self.crashed = True
                raise CrashedError(f"after {what}")
            if kind == FaultKind.FAIL_AFTER:
                raise StoreUnavailableError(f"{what} failed as planned, after; retry later")
            if kind == FaultKind.REFUSE_AFTER:
                raise StoreRefusedError(f"{what} was refused as planned, after; grant it")

    def _prelude(self, fault: Fault, call: Callable[[], object]) -> None:
        if fault.kind == FaultKind.REPEAT:
            call()
        elif fault.kind == FaultKind.DELAY:
            assert self._clock is not None, "a DELAY needs the clock it advances"
            self._clock.advance(fault.delay_ms)
        elif fault.kind == FaultKind.MEANWHILE:
            assert fault.run is not None, "a MEANWHILE needs something to run"
            fault.run()


def _tears(fault: Fault | None) -> bool:
    return fault is not None and fault.kind == FaultKind.TEAR_READ


def _tears_write(fault: Fault | None) -> bool:
    return fault is not None and fault.kind == FaultKind.TEAR_WRITE


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]
