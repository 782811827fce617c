"""Crash enumeration: a scenario killed before and after each of its store calls (COMMIT.md §3).

1. Run the scenario once, counting its calls.
2. For each call, on a fresh copy of the same beginning: run it again, with the process killed
   before the call, killed after it, or with the call's reply lost; a create also refused, as if
   another one were under way that never ends.
3. What the dead process left is handed to the test, which reopens it.

Complete, not random: there is no crash point between two calls, as only calls leave anything.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal, get_args

import xxhash

from clog.storage.errors import ClogError
from clog.storage.paths import COMMITS, DATA, LATEST, PAGES, SNAPSHOTS
from clog.storage.store import open_store
from clog.storage.store.base import Store
from clog.storage.testing.faults import Call, CrashAt, CrashedError, FaultyStore

When = Literal["before", "after", "lost_reply", "refused"]
_NUMBERS = count()


@dataclass(frozen=True, slots=True)
class CrashRun:
    """One run that was hit.

    Attributes:
        call: the call that was hit.
        when: how.
        point: the crash point of COMMIT.md §3 that this is: ``C1`` … ``C7``; empty for reads
            before anything was written.
        store: what is left, without the fault.
        result: what the scenario returned; None where it did not.
        error: what it raised, if it was not killed.
        killed: whether it was.
    """

    call: Call
    when: When
    point: str
    store: Store
    result: object
    error: ClogError | None
    killed: bool

    def __str__(self) -> str:
        return f"{self.point} {self.when} {self.call.operation} {self.call.path}"


def crash_runs(
    begin: Callable[[Store], None], act: Callable[[Store], object]
) -> Iterator[CrashRun]:
    """Every run of ``act`` that can be hit, each on what ``begin`` made.

    Both must do the same at each run: give them seeded ids and a manual clock.
    """
    template = memory_store()
    begin(template)
    first = FaultyStore(copy_of(template))
    act(first)
    for call in first.calls:
        for when in get_args(When):
            if when == "refused" and call.operation != "create":
                continue
            inner = copy_of(template)
            hit = FaultyStore(inner, CrashAt(call.index, when))
            result, error, killed = None, None, False
            try:
                result = act(hit)
            except CrashedError:
                killed = True
            except ClogError as e:
                error = e
            point = crash_point(first.calls, call.index, done=when in ("after", "lost_reply"))
            yield CrashRun(call, when, point, inner, result, error, killed)


def crash_point(calls: Sequence[Call], index: int, *, done: bool) -> str:
    """The name that COMMIT.md §3 gives to a crash at a call; ``done``: the store did it."""
    kinds = [_kind(call) for call in calls]
    last = next((kind for kind in reversed(kinds[: index + done]) if kind), "")
    following = next((kind for kind in kinds[index + done :] if kind), "")
    if last in (COMMITS, LATEST):
        return "C6" if kinds[index] == COMMITS else "C7"
    if kinds[index] == COMMITS:
        return "C5"
    if last in (PAGES, SNAPSHOTS):
        return "C4" if last == SNAPSHOTS else "C3"
    if following == DATA:
        return "C1"
    return "C2" if last else ""


def _kind(call: Call) -> str:
    """What a call writes; empty where it does not."""
    if call.operation not in ("put", "create"):
        return ""
    known = (DATA, SNAPSHOTS, COMMITS, LATEST)
    return next((kind for kind in known if call.path.startswith(kind)), PAGES)


def memory_store() -> Store:
    """A store of its own in the memory of this process."""
    return open_store(f"memory://clog-testing-{next(_NUMBERS)}/log")


def copy_of(store: Store) -> Store:
    """All objects of a store in a fresh one."""
    copy = memory_store()
    for found in store.list(""):
        copy.put(found.path, store.get(found.path))
    return copy


def contents(store: Store) -> str:
    """What a store holds, as one hash: equal where two runs left the same behind."""
    hasher = xxhash.xxh3_128()
    for path in sorted(found.path for found in store.list("")):
        data = store.get(path)
        hasher.update(f"{path} {len(data)} ".encode())
        hasher.update(data)
    return hasher.hexdigest()


def discard(store: Store) -> None:
    """Deletes all objects of a store."""
    for found in list(store.list("")):
        store.delete(found.path)
