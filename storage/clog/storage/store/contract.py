"""What clog requires of a filesystem, and the names that all stores share.

A store holds immutable objects under one root. Paths are relative to the root, ``/``-separated,
and never lead out of it. Every implementation guarantees these axioms (COMMIT.md §1), and
`clog.storage.store.conformance` checks them:

A1 *Complete.* A reader sees an object whole or not at all, whatever happens to its writer.
A2 *Exclusive create.* Of all creates of one path at most one succeeds, and its bytes stay.
A3 *Read after write.* A read that begins after a write returned sees it; a read that begins
   after a create was refused sees the winner, or nothing while the winner is still under way.
   Nothing is cached, neither presence nor absence.
A4 *Listing.* A listing shows every object that exists from its beginning to its end; those that
   are written or deleted in between may be listed or not.
A5 *Deletion.* Deleting an object that does not exist succeeds.

`Store` says which errors its operations raise. After `ObjectExistsError` or `StoreUnavailableError`
from ``create`` the caller reads the object back: when a client repeats a request whose reply was
lost, the repeat is refused because the first one succeeded.

Requests to an object store take long, so reads go `ahead`, calls to many logs run `together`, and
objects that nobody reads before a commit names them need not be waited for one by one (`Puts`).
On local disks calls run when their result is needed, in the caller's thread.
"""

import builtins
import errno
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Literal, Protocol, TypeVar

from clog.storage.env import Shared, attribute, dataclass, register
from clog.storage.errors import InvalidInputError, StoreUnavailableError

REQUESTS_FEW = 4
"""This many requests for one object go out together: no unneeded byte is read to save one."""
COALESCE_GAP_BYTES = 1 << 20
"""Ranges closer than this are one request: 1 MiB takes about as long as a round trip."""


_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp", re.DOTALL)


class ObjectExistsError(FileExistsError):
    """A create was refused because the object exists, possibly one's own: read it back."""


class StoreRefusedError(StoreUnavailableError):
    """The store will not do this; the same call fails until somebody changes something outside: a
    permission, a clock, a limit, a link.

    Attributes:
        certain: whether it is certain that nothing was written. A client that repeats requests by
            itself reports only the last reply: an earlier request may have succeeded.
    """

    def __init__(self, message: str, *, certain: bool = False) -> None:
        super().__init__(message)
        self.certain = certain


class StoreFullError(StoreUnavailableError):
    """The disk is full, or a quota is used up, and nothing was written."""


class OnlyRequestError(Exception):
    """A create failed at its only request, as ``__cause__`` says: if refused, it wrote nothing."""


class ProbeAgainError(Exception):
    """A create succeeded on an endpoint that has changed since it was probed."""


Failure = Literal[
    "absent", "no bucket", "no place", "exists", "no create",
    "denied", "no credentials", "wrong clock", "past the end", "full", "too large",
]  # fmt: skip
"""The meanings of errors of clients and servers, in words common to all stores."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One entry of a listing.

    Attributes:
        path: relative to the root.
        size_bytes: the size of the object.
        modified_ms: when it was written, by the store's clock, often in whole seconds.
    """

    path: str
    size_bytes: int
    modified_ms: int


class Store(Protocol):
    """A root and the objects under it. Picklable, and safe to use from many threads.

    Its guarantees, such as that of all creates of one path at most one succeeds, are in the
    docstring of `clog.storage.store.contract`; `clog.storage.store.conformance` checks them.

    The errors of all operations:

    - the builtin ``FileNotFoundError``, only from reads: no such object;
    - `ObjectExistsError`, only from ``create``: the object exists, or another create was under way;
    - `StoreUnavailableError`: the filesystem failed; after a ``create`` its outcome is unknown;
    - `StoreRefusedError`, a subclass: it is not permitted, or not possible there; the outcome of
      earlier attempts is unknown, unless the refusal is ``certain``;
    - `StoreFullError`, another: there is no room, and nothing was written;
    - `NotFoundError`: the bucket does not exist;
    - `InvalidInputError`: a path that leads out of the root, a wrong option, a missing package;
    - `UnsupportedFilesystemError`, only from ``create``: A2 is not available. Reads never need it.
    """

    @property
    def url(self) -> str:
        """The root, without secrets: fit for messages."""
        ...

    @property
    def create_is_proven(self) -> bool:
        """Whether creates are known to be exclusive here (A2), not only requested as such: servers
        that speak S3 may check and write in two steps; then two creates at the same time both
        succeed, and the last one stays.
        """
        ...

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Returns the bytes ``[start, end)`` of an object, by default all, in one request.

        ``start`` and ``end`` may be past the end of the object. An empty range costs no request,
        so it does not show whether the object exists.

        Raises:
            FileNotFoundError: there is no such object; its ``filename`` is the path.
        """
        ...

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        """Returns the bytes of several half-open ranges of the object ``path``, in their order.

        Costs one request for each range that `coalesce` returns.

        Raises:
            FileNotFoundError: there is no such object.
        """
        ...

    def begin(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """Begins a call on this store, and returns a function that waits for its result.

        Where requests take long the call is under way when this returns; elsewhere this returns the
        call itself, which is made when its result is asked for. For few calls at a time:
        `clog.storage.store.contract`.
        """
        ...

    def put(self, path: str, data: bytes | memoryview) -> None:
        """Writes ``data`` as the object ``path``, replacing an existing one.

        For unique names, and for the hint, whose content decides nothing.
        """
        ...

    def create(self, path: str, data: bytes) -> None:
        """Writes ``data`` as the object ``path`` if it does not exist, completely, and for one
        caller only (A2).

        Raises:
            ObjectExistsError: the object exists, or was created at the same time.
            StoreUnavailableError: whether it was written is unknown.
            UnsupportedFilesystemError: the filesystem cannot guarantee A2.
        """
        ...

    def delete(self, path: str) -> None:
        """Deletes the object ``path``, if it exists."""
        ...

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yields the objects whose path begins with ``prefix``, in no order; no temporary files."""
        ...

    def list_temporary(self, prefix: str) -> Iterator[StoredObject]:
        """Yields what unfinished writes have left below a folder, for the sweep to delete.

        ``prefix`` ends with a slash. Only names that a store gives its temporary files, and none in
        a folder behind a symbolic link.
        """
        ...

    def forget_old(self, prefix: str, begun_ms: int) -> bool:
        """Makes the filesystem discard what it keeps of deleted and overwritten objects whose path
        begins with ``prefix``, and of unfinished uploads that began before ``begun_ms``. Returns
        whether the filesystem supports this: False where it is not known here what the filesystem
        keeps, if anything.

        Raises:
            StoreRefusedError: permission is denied, or an object is locked.
        """
        ...


def check_path(path: str) -> str:
    """Returns the path itself; raises if it is empty, absolute, or has an element like ``..``."""
    if "\\" not in path and "\0" not in path and ":" not in path.partition("/")[0]:
        inside = f"/{path}/"
        if "//" not in inside and "/./" not in inside and "/../" not in inside:
            return path
    raise InvalidInputError(f"path {path!r} does not name an object under the root; use a/b/c")


def check_prefix(prefix: str) -> str:
    """Returns the prefix itself, if every path that begins with it can be under a root."""
    if prefix:
        check_path(prefix.removesuffix("/"))
    return prefix


def check_range(start: int | None, end: int | None) -> tuple[int, int | None]:
    """Returns the range with its start filled in; raises if it counts from the end."""
    if (start is not None and start < 0) or (end is not None and end < 0):
        raise InvalidInputError(f"range [{start}, {end}) has an offset below 0; use offsets from 0")
    return start or 0, end


def is_temporary(path: str) -> bool:
    """Returns whether the name is that of a write under way, as made by `temporary_name`."""
    return _TEMPORARY.fullmatch(path.rpartition("/")[2]) is not None


def temporary_name(name: str, write_id: str) -> str:
    """Returns the name that a file has while it is being written, in the same folder."""
    return f".{name}.{write_id}.tmp"


def coalesce(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the requests that fetch these ranges: ordered, disjoint, with gaps of at least 1 MiB.
    If there are more than `REQUESTS_FEW`, the smallest gaps are read, too, until there are that
    few, or twice the bytes would be read.

    >>> coalesce([(4_000_000, 4_000_010), (0, 10), (20, 30), (7, 7)])
    [(0, 30), (4000000, 4000010)]
    """
    merged: list[tuple[int, int]] = []
    for start, end in sorted(check_range(*bounds) for bounds in ranges):
        assert end is not None
        if end <= start:
            continue
        if merged and start - merged[-1][1] < COALESCE_GAP_BYTES:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return _fewer(merged) if len(merged) > REQUESTS_FEW else merged


def _fewer(requests: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns fewer requests, by also reading the smallest gaps between them."""
    room = sum(end - start for start, end in requests)
    gaps = sorted((b[0] - a[1], i) for i, (a, b) in enumerate(pairwise(requests), 1))
    filled: set[int] = set()
    for gap, i in gaps[: len(requests) - REQUESTS_FEW]:
        room -= gap
        if room < 0:
            break
        filled.add(i)
    first = [i for i in range(len(requests)) if i not in filled]
    ends = [*(i - 1 for i in first[1:]), len(requests) - 1]
    return [(requests[i][0], requests[j][1]) for i, j in zip(first, ends, strict=True)]


def bytes_of(
    ranges: Sequence[tuple[int, int]], fetched: Sequence[tuple[int, bytes]]
) -> list[bytes]:
    """Returns the bytes of each range, given ``(start, bytes)`` of each request of `coalesce`."""
    found = []
    for start, end in ranges:
        base, data = 0, b""
        if start < end:
            base, data = max(piece for piece in fetched if piece[0] <= start)
        is_all = start == base and end - base >= len(data)
        found.append(data if is_all else data[start - base : end - base])
    return found


CALLS_MAX = 16
BYTES_MAX = 32 << 20
DELETES_MAX = 128
TOGETHER_MAX = 256
"""A call that changes a log spends most of its time waiting, and uses little memory."""
_CALLS_FIRST = 4

_T = TypeVar("_T")


def ahead(
    store: Store, calls: Iterable[tuple[Callable[[], _T], int]], *, calls_max: int = CALLS_MAX
) -> Iterator[_T]:
    """Yields what the calls return, or raises what they raise, in their order. Each is paired with
    the number of bytes that it fetches, if known. ``calls_max``: under way at the same time; more
    than `CALLS_MAX` is for small answers that are all needed.

    At first only a few are under way: a reader that stops early has requested little too much. The
    fetched bytes that nobody has taken yet are at most `BYTES_MAX`, or those of one call.

    The store decides whether a begun call is under way immediately (`Store.begin`): where requests
    are short, a call runs when its result is needed, unless the reader wraps the store in a
    `ConcurrentStore`, so that decoding happens ahead, too. A thread ends soon after its last call;
    no forked child misses one, and no process waits for one.
    """
    begun: deque[tuple[Callable[[], _T], int]] = deque()
    held = taken = 0
    waiting = iter(calls)
    following = next(waiting, None)

    def begin(call: Callable[[], _T], size_bytes: int, *, is_alone: bool) -> None:
        nonlocal following, held
        following = next(waiting, None)
        is_alone = is_alone and following is None and not begun
        begun.append((call if is_alone else store.begin(call), size_bytes))
        held += size_bytes

    while begun or following is not None:
        room = calls_max if calls_max > CALLS_MAX else min(CALLS_MAX, _CALLS_FIRST * (taken + 1))
        while following is not None and len(begun) < room:
            if begun and held + following[1] > BYTES_MAX:
                break
            begin(*following, is_alone=True)
        result, size_bytes = begun.popleft()
        held -= size_bytes
        taken += 1
        found = result()
        if not begun and following is not None:
            begin(*following, is_alone=False)
        yield found


def delete_all(store: Store, paths: Iterable[str]) -> Iterator[str]:
    """Deletes files, and yields each deleted path; many at a time where requests take long."""

    def delete(path: str) -> str:
        store.delete(path)
        return path

    return ahead(store, ((partial(delete, path), 0) for path in paths), calls_max=DELETES_MAX)


def together(calls: Sequence[tuple[Store, Callable[[], _T]]]) -> list[_T | Exception]:
    """Returns what each call returns or raises, in their order. Each is paired with the store that
    it works on, and no two work on the same log: where requests take long they are under way at the
    same time, elsewhere one follows the other. All have ended when it returns, unless an interrupt
    ends the waiting: those under way then continue as if their process had been slow.
    """
    done: list[_T | Exception] = []
    for first in range(0, len(calls), TOGETHER_MAX):
        some = calls[first : first + TOGETHER_MAX]
        begun = [call if len(calls) == 1 else store.begin(call) for store, call in some]
        for result in begun:
            try:
                done.append(result())
            except Exception as e:  # noqa: BLE001 - the others continue
                done.append(e)
    return done


class Puts:
    """Objects being written, which exist once `settle` has returned; for one thread.

    Where requests take long, at most `TOGETHER_MAX` are under way, and at most `BYTES_MAX`, or a
    single one. An object that could not be put is kept, and put again at the next wait. After an
    interrupt those under way continue: they become objects that nobody names.
    """

    def __init__(self) -> None:
        self._under_way: list[_Put] = []

    def put(self, store: Store, path: str, data: bytes | memoryview) -> None:
        """Begins to put an object once there is room; raises if an earlier one was not put."""
        held = sum(one.size_bytes for one in self._under_way)
        if len(self._under_way) >= TOGETHER_MAX or held + len(data) > BYTES_MAX:
            self.settle()
        call = partial(store.put, path, data)
        wait = store.begin(call)
        if wait is call:
            call()
        else:
            self._under_way.append(_Put(call, wait, len(data)))

    def settle(self) -> None:
        """Waits until all are written; raises if one failed, and the next call puts it again."""
        failed: list[Exception] = []
        for one in list(self._under_way):
            try:
                one.wait()
            except Exception as e:  # noqa: BLE001 - the others are waited for
                one.wait = one.again
                failed.append(e)
            else:
                self._under_way.remove(one)
        if failed:
            raise failed[0]

    @contextmanager
    def forgotten_on_error(self) -> Iterator[None]:
        """Forgets the puts begun in the block if it raises: nothing will name these objects."""
        before = list(self._under_way)
        try:
            yield
        except BaseException:
            self._under_way = [one for one in self._under_way if one in before]
            raise


@dataclass(slots=True, eq=False)
class _Put:
    again: Callable[[], None]
    wait: Callable[[], None]
    size_bytes: int


def begin_in_thread(call: Callable[[], _T]) -> Callable[[], _T]:
    """Begins a call in a thread, and returns a function that waits for its result."""
    future: Future[_T] = Future()
    _THREADS.begin(partial(_settle, future, call))
    return future.result


def _settle(future: "Future[_T]", call: Callable[[], _T]) -> None:
    try:
        found = call()
    except BaseException as e:  # noqa: BLE001 - raised to the caller that waits
        future.set_exception(e)
        del future, call  # The error's traceback has this frame, which would hold both for long.
    else:
        future.set_result(found)


_IDLE_S = 0.5
"""A thread waits so long for its next call."""


class _Threads(Shared):
    """The threads of begun calls. After its call a thread waits a moment for the next: Arrow's
    allocator gives the memory of a new thread anew, page by page. ``_idle`` counts the threads
    that wait without a call that is promised to them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.after_fork()
        register(self)

    def after_fork(self) -> None:
        """Begins with no threads: a forked child has none of its parent's."""
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = 0

    def begin(self, call: Callable[[], None]) -> None:
        with self._lock:
            is_idle = self._idle > 0
            self._idle -= is_idle  # First: after an interrupt, a thread waits for a later call.
        if not is_idle:
            Thread(target=self._run, name="clog-ahead", daemon=True).start()
        self._calls.put(call)

    def _run(self) -> None:
        calls = self._calls
        call = calls.get()
        while True:
            call()
            del call  # What it holds is not held while the thread waits.
            with self._lock:
                if calls is not self._calls:
                    return  # The call has forked, and this is the child.
                self._idle += 1
            try:
                call = calls.get(timeout=_IDLE_S)
            except Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        return
                call = calls.get()  # It is promised.


_THREADS = _Threads()


class WrappingStore:
    """Passes all operations to ``inner``."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    url: str = attribute("inner.url")

    @property
    def create_is_proven(self) -> bool:
        return self.inner.create_is_proven

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        return self.inner.get(path, start, end)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        return self.inner.get_ranges(path, ranges)

    def begin(self, call: Callable[[], Any]) -> Callable[[], Any]:
        return self.inner.begin(call)

    def put(self, path: str, data: bytes | memoryview) -> None:
        self.inner.put(path, data)

    def create(self, path: str, data: bytes) -> None:
        self.inner.create(path, data)

    def delete(self, path: str) -> None:
        self.inner.delete(path)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self.inner.list(prefix)

    def list_temporary(self, prefix: str) -> Iterator[StoredObject]:
        return self.inner.list_temporary(prefix)

    def forget_old(self, prefix: str, begun_ms: int) -> bool:
        return self.inner.forget_old(prefix, begun_ms)


class HeldObject(WrappingStore):
    """A store that keeps one object in memory, verified, and the bitmaps of its chunks once they
    have been read.
    """

    def __init__(self, inner: Store, path: str, data: bytes) -> None:
        super().__init__(inner)
        self.path = path
        self.data = data
        self._others: dict[str, bytes] = {}

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        if path == self.path:
            return self.data[start:end]
        if path not in self._others:
            self._others[path] = self.inner.get(path, start, end)
        return self._others[path]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        assert path == self.path
        return [self.data[start:end] for start, end in ranges]


def not_found(path: str, url: str) -> FileNotFoundError:
    """Returns the builtin error that reads of an absent object raise; ``filename`` is the path."""
    return FileNotFoundError(errno.ENOENT, f"no such object in {url}", path)


class Within(WrappingStore):
    """The folder ``folder`` of ``inner``. Its URL remains that of ``inner``, by which users know
    the log. Errors name the folder, so that an operator finds the file.
    """

    def __init__(self, inner: Store, folder: str) -> None:
        super().__init__(inner)
        self.folder = check_path(folder)
        self._prefix = f"{folder}/"

    def __repr__(self) -> str:
        return f"Within({self.inner!r}, {self._prefix!r})"

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        try:
            return self.inner.get(self._whole(path), start, end)
        except FileNotFoundError:
            raise not_found(path, f"{self.url}/{self.folder}") from None

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        try:
            return self.inner.get_ranges(self._whole(path), ranges)
        except FileNotFoundError:
            raise not_found(path, f"{self.url}/{self.folder}") from None

    def put(self, path: str, data: bytes | memoryview) -> None:
        self.inner.put(self._whole(path), data)

    def create(self, path: str, data: bytes) -> None:
        self.inner.create(self._whole(path), data)

    def delete(self, path: str) -> None:
        self.inner.delete(self._whole(path))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self._relative(self.inner.list(self._prefix + check_prefix(prefix)))

    def list_temporary(self, prefix: str) -> Iterator[StoredObject]:
        return self._relative(self.inner.list_temporary(self._prefix + check_prefix(prefix)))

    def forget_old(self, prefix: str, begun_ms: int) -> bool:
        return self.inner.forget_old(self._prefix + check_prefix(prefix), begun_ms)

    def _whole(self, path: str) -> str:
        return self._prefix + check_path(path)

    def _relative(self, found: Iterator[StoredObject]) -> Iterator[StoredObject]:
        return (replace(f, path=f.path.removeprefix(self._prefix)) for f in found)


class Decoding(partial[_T]):
    """A call that works on what was fetched, and makes no request."""


class ConcurrentStore(WrappingStore, Shared):
    """Any store, for callers that need all results: a thread decodes beside them. It fetches
    nothing, and is one: each has memory of its own, which is given page by page.
    """

    def __init__(self, inner: Store) -> None:
        WrappingStore.__init__(self, inner)
        Shared.__init__(self)
        self._is_busy = False

    def begin(self, call: Callable[[], Any]) -> Callable[[], Any]:
        with self._lock:
            if self._is_busy or not isinstance(call, Decoding):
                return self.inner.begin(call)
            self._is_busy = True
        return begin_in_thread(partial(self._run, call))

    def _run(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        finally:
            with self._lock:
                self._is_busy = False
