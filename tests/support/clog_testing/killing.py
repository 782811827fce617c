"""A process that dies for good at a chosen call of its store: SIGKILL, no ``finally``, no goodbye.

`faults` plays a crash inside one process; here the operating system ends it. A `KillSwitch` counts
what the process does, across all of its stores, and kills at the call its `KillPoint` names. Code
may also report that it `reached` a place between calls: it counts as an operation of its own.
"""

import builtins
import fnmatch
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from clog.storage.store.contract import Store, StoredObject, WrappingStore

_T = TypeVar("_T")
When = Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class KillPoint:
    """Where the process dies.

    Attributes:
        when: before the call is made; after it was done: calls that fail do not count, reads that
            find nothing do.
        operation: ``get``, ``get_ranges``, ``put``, ``create``, ``delete``, ``list``, or one that
            the code reports.
        path: a glob over paths; ``*`` matches ``/`` too.
        nth: the first of the matching calls to die at, from 1.
        since: (operation, glob): calls count only after one of this kind was done.
        directly: only the call right after such a one counts.
    """

    when: When
    operation: str
    path: str
    nth: int = 1
    since: tuple[str, str] | None = None
    directly: bool = False


def kill_this_process() -> None:
    """Kills the process as the machine would: nothing of it runs after this."""
    os.kill(os.getpid(), signal.SIGKILL)


class KillSwitch:
    """Counts calls, and kills at the point. Safe for threads."""

    def __init__(self, point: KillPoint, kill: Callable[[], None] = kill_this_process) -> None:
        self._point = point
        self._kill = kill
        self._seen = 0
        self._armed = point.since is None
        self._lock = threading.Lock()

    def reached(self, operation: str, path: str, when: When = "after") -> None:
        """Notes a call, and kills if it is the one."""
        with self._lock:
            point = self._point
            if self._armed and when == point.when:
                self._seen += _matches((point.operation, point.path), operation, path)
                if self._seen == point.nth:
                    self._kill()
            if when == "after" and point.since is not None:
                sticks = self._armed and not point.directly
                self._armed = sticks or _matches(point.since, operation, path)


class KillingStore(WrappingStore):
    """Passes everything on, and tells the switch."""

    def __init__(self, inner: Store, switch: KillSwitch) -> None:
        super().__init__(inner)
        self._switch = switch

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._run("get", path, lambda: self.inner.get(path, start, end))

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        return self._run("get_ranges", path, lambda: self.inner.get_ranges(path, ranges))

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._run("put", path, lambda: self.inner.put(path, data))

    def create(self, path: str, data: bytes) -> None:
        self._run("create", path, lambda: self.inner.create(path, data))

    def delete(self, path: str) -> None:
        self._run("delete", path, lambda: self.inner.delete(path))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return iter(self._run("list", prefix, lambda: list(self.inner.list(prefix))))

    def _run(self, operation: str, path: str, call: Callable[[], _T]) -> _T:
        self._switch.reached(operation, path, "before")
        try:
            result = call()
        except FileNotFoundError:
            self._switch.reached(operation, path)
            raise
        self._switch.reached(operation, path)
        return result


def _matches(wanted: tuple[str, str], operation: str, path: str) -> bool:
    return operation == wanted[0] and fnmatch.fnmatchcase(path, wanted[1])
