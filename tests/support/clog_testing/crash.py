"""Crash enumeration: a scenario killed before and after each of its store calls (COMMIT.md §3).

Y1. Run the scenario once, counting its calls.
Y2. For each call, on a fresh copy of the same beginning: run it again, with the process killed
    before the call, killed after it, or with the call's reply lost; a create also refused, as if
    another one were under way that never ends, and done but denied. Who is killed before a call, or
    after one that only reads, leaves what was there after the last write: a copy of that.
Y3. What the dead process left is handed to the test, which reopens it.

Complete, not random: there is no crash point between two calls, as only calls leave anything.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import get_args

import xxhash

from clog.storage.commit.tip import standing_log
from clog.storage.errors import ClogError
from clog.storage.format.commits import Edit
from clog.storage.format.documents import (
    BLOCKS,
    COLUMNS,
    COMMITS,
    DATA,
    LATEST,
    LOG_FILE,
    PAGES,
    SNAPSHOTS,
)
from clog.storage.log import Log
from clog.storage.store import open_store
from clog.storage.store.contract import Store, Within
from clog_testing.faults import DONE, Call, CrashAt, CrashedError, FaultyStore, When

_WAYS: tuple[When, ...] = get_args(When)
_OF_CREATES = ("refused", "denied")
_READS = ("get", "get_ranges", "list")
_OF_K3 = {COLUMNS: "C10", PAGES: "C3", SNAPSHOTS: "C4"}
_NUMBERS = count()


@dataclass(frozen=True, slots=True)
class CrashRun:
    """One run that was hit.

    Attributes:
        call: the call that was hit.
        when: how.
        point: the crash point of COMMIT.md §3 that this is: ``C1`` … ``C10``; empty for reads
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

    @property
    def done(self) -> bool:
        """Whether the store did the call."""
        return self.when in DONE

    def __str__(self) -> str:
        return f"{self.point} {self.when} {self.call.operation} {self.call.path}"


def crash_runs(
    begin: Callable[[Store], None], act: Callable[[Store], object], *, copies: bool = True
) -> Iterator[CrashRun]:
    """Yields every run of ``act`` that can be hit, each on what ``begin`` made.

    Both must do the same at each run: give them seeded ids and a manual clock. Give ``copies`` as
    false where something else than the store is left of a process that is killed, such as a file,
    and where files say at which URL they lie.
    """
    template = memory_store()
    begin(template)
    first = FaultyStore(copy_of(template))
    act(first)
    written: Store | None = None
    for call, when in _hits(first.calls):
        result, error, killed = None, None, True
        adds_nothing = when == "before" or (when == "after" and call.operation in _READS)
        if written is not None and adds_nothing:
            inner = copy_of(written)  # What the kill before this one left.
        else:
            inner, killed = copy_of(template), False
            try:
                result = act(FaultyStore(inner, CrashAt(call.index, when)))
            except CrashedError:
                killed = True
            except ClogError as e:
                error = e
            # Who notes its own death, and goes on to tell of it, must run each time.
            copies = copies and (killed or when not in ("before", "after"))
            if when in ("before", "after"):
                if written is not None:
                    discard(written)
                written = copy_of(inner) if copies else None
        point = crash_point(first.calls, call.index, done=when in DONE)
        yield CrashRun(call, when, point, inner, result, error, killed)


def _hits(calls: Iterable[Call]) -> Iterator[tuple[Call, When]]:
    """Yields each call with each way in which it can be hit."""
    for call in calls:
        for when in _WAYS:
            if call.operation == "create" or when not in _OF_CREATES:
                yield call, when


def unlike(runs: Iterable[CrashRun]) -> Iterator[CrashRun]:
    """Yields the runs that ended otherwise than all before them: many leave the same behind, byte
    by byte, as those that are killed after one call or before the next. Discards the others.
    """
    ended = set()
    for run in runs:
        is_duplicate = getattr(run.result, "duplicate", None)
        told = (run.killed, run.result is None, is_duplicate, type(run.error))
        how = (run.point, *told, contents(run.store))
        if how in ended:
            discard(run.store)
            continue
        ended.add(how)
        yield run


def crash_point(calls: Sequence[Call], index: int, *, done: bool) -> str:
    """Returns the name that COMMIT.md §3 gives to a crash at a call; ``done``: the store did it."""
    kinds = [_kind(call) for call in calls]
    last = next((kind for kind in reversed(kinds[: index + done]) if kind), "")
    following = next((kind for kind in kinds[index + done :] if kind), "")
    if last == LOG_FILE:
        return "C9"
    if last == COMMITS and LOG_FILE in kinds:
        return "C8"
    if last in (COMMITS, LATEST):
        return "C6" if kinds[index] == COMMITS else "C7"
    if kinds[index] in (BLOCKS, COMMITS) or last == BLOCKS:
        return "C5"
    if last in _OF_K3:
        return _OF_K3[last]
    if following == DATA:
        return "C1"
    return "C2" if last else ""


def _kind(call: Call) -> str:
    """Returns what a call writes; empty where it does not."""
    if call.operation not in ("put", "create"):
        return ""
    if call.path == LOG_FILE:
        return LOG_FILE
    known = (DATA, COLUMNS, SNAPSHOTS, BLOCKS, COMMITS, LATEST)
    return next((kind for kind in known if f"/{kind}" in call.path), PAGES)


def inside(root: Store) -> Store:
    """Returns the folder of the log at a root, as a store: where all its files are but one."""
    return standing_log(root).store


def memory_store() -> Store:
    """Makes a store of its own in the memory of this process."""
    return open_store(f"memory://clog-testing-{next(_NUMBERS)}/log")


class Folder(Within):
    """A folder with a URL of its own, as each of several logs has."""

    def __init__(self, inner: Store, name: str) -> None:
        super().__init__(inner, name)
        self.name = name

    @property
    def url(self) -> str:  # type: ignore[override]
        """The root, without secrets."""
        return f"{self.inner.url}/{self.name}"


def copy_of(store: Store) -> Store:
    """Copies all objects of a store to a fresh one."""
    copy = memory_store()
    for found in store.list(""):
        copy.put(found.path, store.get(found.path))
    return copy


def contents(store: Store) -> str:
    """Returns what a store holds, as one hash: equal where two runs left the same behind."""
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


def expire(log: Log) -> None:
    """Has all that a log holds expire, and deletes it, as retention and the sweep do."""
    log.roll()
    handle = log.handle
    ends = dict(enumerate(handle.tip.head.partitions.end))
    handle.commit(lambda *_: Edit(start=ends, drop=ends), operation="retention")
    handle.commit(lambda tip, _: Edit(oldest_readable=tip.version), operation="sweep")
    for released in handle.manifest().released:
        handle.store.delete(released.path)
