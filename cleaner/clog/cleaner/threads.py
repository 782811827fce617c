"""The threads of a cleaner, what those without a pass do for the others, and the stores they use.

If fewer partitions are dirty than there are threads, a pass lets the others work ahead: hash the
keys of the next objects, judge and decode the next chunk while it encodes one, write the next
group. It takes the results in order, so what is committed, and when, is the same.

- Passes come first: no work is begun ahead while one waits for a thread.
- Results of work ahead that have not been taken yet hold at most `AHEAD_BYTES` for each thread but
  the first, all passes together.
- A thread that would wait for another one does the next piece of work in the meantime.
- With one thread no work is begun ahead: each call is made when its result is asked for.

Cleaners beside each other, one for each store (`daemon.by_store`), share the threads, the memory of
work ahead and the limit. A pass begins in its turn (`Turns`); a turn whose store is silent is lent,
so that it keeps none from another store. Such a pass goes on when its store answers, and until it
ends there is one more of them, with its map.

`MeteredStore` counts the bytes of a pass, slows it down to the operator's limit (S29), and ends it
when the cleaner is to stop: between two requests, so within seconds. The same holds for a sweep,
which may have very many objects to list and to delete. The group under way is lost by that; its
objects are orphans. `RequestMeter` counts the requests of a whole process, for its metrics.
"""

import builtins
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import islice, tee
from typing import Generic, TypeVar

import numpy as np

from clog.storage.commit.handle import Handle
from clog.storage.env import Clock, enough_memory
from clog.storage.errors import InvalidInputError, StoreUnavailableError
from clog.storage.format import documents
from clog.storage.store.contract import (
    Store,
    StoredObject,
    StoreFullError,
    WrappingStore,
    begin_in_thread,
    coalesce,
)

AHEAD_BYTES = 128 << 20
WORTH_BYTES = 1 << 20
"""Work on fewer bytes is not worth a thread."""
MORE_MEMORY = (
    "give the cleaner more memory, or decrease log.cleaner.dedupe.buffer.size or"
    " log.cleaner.threads"
)
"""What helps if there is too little."""
SLOT_BYTES = 24
"""The size of an entry of an offset map."""
# The home slot is computed in 64 bits: 32 of the hash times the number of slots.
_SLOTS_MAX = (1 << 32) - 1

_T = TypeVar("_T")
_Item = TypeVar("_Item")
Call = tuple[Callable[[], _T], int]
"""What is to be done, and the bytes that it holds until its result is taken."""


def map_slots(memory_bytes: int, load_factor: float = 0.9) -> int:
    """Returns how many slots an offset map with that much memory has (S18)."""
    # Below 1 at least one slot stays empty; it ends the search for a hash below all others.
    if not 0.0 < load_factor < 1.0:
        raise InvalidInputError(
            f"log.cleaner.io.buffer.load.factor={load_factor} is outside (0, 1); "
            "use the default 0.9"
        )
    slots = memory_bytes // SLOT_BYTES
    if (capacity := int(slots * load_factor)) < 1:
        raise InvalidInputError(
            f"an offset map of {memory_bytes} bytes holds {capacity} entries of {SLOT_BYTES}"
            f" bytes at load factor {load_factor}, but needs at least 1; increase"
            " log.cleaner.dedupe.buffer.size or decrease log.cleaner.threads"
        )
    if slots > _SLOTS_MAX:
        raise InvalidInputError(
            f"an offset map of {memory_bytes} bytes has {slots} slots, but at most {_SLOTS_MAX}"
            " can be addressed; decrease log.cleaner.dedupe.buffer.size or increase"
            " log.cleaner.threads"
        )
    return slots


class Turns:
    """What cleaners beside each other share: ``count`` threads, and the bytes of work ahead.

    Attributes:
        sharers: how many they are.
        bytes_left: of work ahead; changed within ``lock``.
    """

    def __init__(self, count: int) -> None:
        self.sharers = 0
        self.bytes_left = (count - 1) * AHEAD_BYTES
        self.lock = threading.Lock()
        self._freed = threading.Condition(self.lock)
        self._count = count
        self._taken: Counter[CleanerThreads] = Counter()
        self._lent: set[CleanerThreads] = set()
        self._passes_waiting = 0

    def take(self, whose: "CleanerThreads", wait_s: float) -> bool:
        """Takes a turn for a pass, if one is free within that time."""
        with self.lock:
            self._passes_waiting += 1
            is_free = self._freed.wait_for(self._is_free, wait_s)
            self._passes_waiting -= 1
            self._taken[whose] += is_free
            return is_free

    def take_ahead(self, whose: "CleanerThreads") -> bool:
        """Takes a turn for work ahead, if one is free that no pass waits for."""
        with self.lock:
            is_free = not self._passes_waiting and self._is_free()
            self._taken[whose] += is_free
            return is_free

    def give(self, whose: "CleanerThreads") -> None:
        """Gives a turn back."""
        with self.lock:
            self._taken[whose] -= 1
            self._freed.notify_all()

    def lend(self, whose: "CleanerThreads", *, is_lent: bool) -> None:
        """Lends all turns of one to the others, or ends that."""
        with self.lock:
            (self._lent.add if is_lent else self._lent.discard)(whose)
            self._freed.notify_all()

    def _is_free(self) -> bool:
        counted = sum(n for whose, n in self._taken.items() if whose not in self._lent)
        return counted < self._count


class CleanerThreads:
    """A number of threads, and the memory of their maps.

    Args:
        count: the number of threads.
        map_bytes: the memory of the map of one pass.
        turns: those of the cleaners beside this one.
    """

    def __init__(self, count: int, map_bytes: int, turns: Turns | None = None) -> None:
        self.count = count
        self.map_bytes = map_bytes
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._free = count
        self._passes_waiting = 0
        self.turns = turns or Turns(count)
        self.turns.sharers += 1

    def takes_turn(self) -> bool:
        """Takes the turn for a pass, unless cleaners beside this one have all, also soon."""
        return self.turns.sharers == 1 or self.turns.take(self, NAP_MS / 1000)

    def ends_turn(self) -> None:
        """Gives the turn back."""
        if self.turns.sharers > 1:
            self.turns.give(self)

    def lend(self, *, is_lent: bool) -> None:
        """Lets cleaners beside this one have its turns while its store is silent."""
        self.turns.lend(self, is_lent=is_lent)

    def check_share(self) -> None:
        """Raises InvalidInputError if a thread's share of memory holds no key (S18), and
        OutOfMemoryError if there is less memory than that.
        """
        with enough_memory(f"a map of {self.map_bytes} bytes", MORE_MEMORY):
            np.zeros(map_slots(self.map_bytes) * SLOT_BYTES, dtype=np.uint8)

    @contextmanager
    def of_a_pass(self) -> Iterator[None]:
        """Takes a thread for a pass; waits until one that works ahead for another pass is done. A
        single thread is the caller's and is not taken: so no Ctrl-C can leave it taken.
        """
        if self.count == 1:
            yield
            return
        with self._lock:
            self._passes_waiting += 1
            self._freed.wait_for(lambda: self._free)
            self._passes_waiting -= 1
            self._free -= 1
        try:
            yield
        finally:
            self._end()

    @contextmanager
    def in_turn(
        self, calls: Iterable[Call[_T]], *, settled: Callable[[_T], _T] = lambda result: result
    ) -> Iterator[Iterator[Callable[[], _T]]]:
        """Gives an iterator that yields a function for each call, which returns its result or
        raises its error and must be called before the next one is requested.

        ``settled`` turns a result into one that stays valid until it is taken, such as the list of
        an iterator. At the end, calls still under way are waited for and dropped.
        """
        turns = deque[_Turn[_T]]()
        try:
            yield self._results(turns, iter(calls), settled)
        finally:
            for turn in turns:
                turn.drop()

    @contextmanager
    def each(
        self, items: Iterable[_Item], do: Callable[[_Item], _T], size_of: Callable[[_Item], int]
    ) -> Iterator[Iterator[tuple[_Item, Callable[[], _T]]]]:
        """Gives an iterator of the items, each with a function that returns what ``do`` makes of it
        (`in_turn`) and that may hold ``size_of`` it; with one thread, an item is asked for when the
        one before it is done.
        """
        mine, theirs = tee(items)
        with self.in_turn((partial(do, item), size_of(item)) for item in theirs) as turns:
            yield zip(mine, turns, strict=False)

    def together(self, calls: Sequence[Call[_T]]) -> Iterator[_T]:
        """Yields the results of the calls, in their order; free threads make some of them."""
        with self.in_turn(calls) as turns:
            for turn in turns:
                yield turn()

    def _results(
        self, turns: "deque[_Turn[_T]]", coming: Iterator[Call[_T]], settled: Callable[[_T], _T]
    ) -> Iterator[Callable[[], _T]]:
        while True:
            room = self.count - len(turns)
            turns.extend(_Turn(self, *call, settled) for call in islice(coming, room))
            if not turns:
                return
            for turn in [*turns][1:]:
                turn.begin()
            first = turns.popleft()
            yield partial(first.result, turns)

    def begin(self, call: Callable[[], _T], size_bytes: int) -> Callable[[], _T] | None:
        """Begins a call in a free thread; None: none is free, it is too small, or enough began."""
        with self._lock:
            can = self._free > 0 and not self._passes_waiting and size_bytes >= WORTH_BYTES
            if not can or not self.took(size_bytes):
                return None
            if not (self.turns.sharers == 1 or self.turns.take_ahead(self)):
                self.gave(size_bytes)
                return None
            self._free -= 1

        def run() -> _T:
            try:
                return call()
            finally:
                self._end()
                self.ends_turn()

        try:
            return begin_in_thread(run)
        except RuntimeError:  # The system gives no more threads.
            self.gave(size_bytes)
            self._end()
            self.ends_turn()
            return None

    def took(self, size_bytes: int) -> bool:
        """Takes room for work ahead if there is that much; returns whether it did."""
        with self.turns.lock:
            if size_bytes > self.turns.bytes_left:
                return False
            self.turns.bytes_left -= size_bytes
            return True

    def gave(self, size_bytes: int) -> None:
        """Gives the room back."""
        with self.turns.lock:
            self.turns.bytes_left += size_bytes

    def _end(self) -> None:
        with self._lock:
            self._free += 1
            self._freed.notify()


ALONE = CleanerThreads(1, 0)
"""For callers without other threads: everything is done in turn."""


class _Turn(Generic[_T]):
    """A call that waits for its turn, is under way, or is done."""

    def __init__(
        self,
        threads: CleanerThreads,
        call: Callable[[], _T],
        size_bytes: int,
        settled: Callable[[_T], _T],
    ) -> None:
        self._threads = threads
        self._call = call
        self._size_bytes = size_bytes
        self._settled = settled
        self._begun: Callable[[], _T] | None = None
        self._is_done = threading.Event()

    def begin(self) -> None:
        """Lets another thread do it, if one is free."""
        if self._begun is None:
            self._begun = self._threads.begin(self._done, self._size_bytes)

    def result(self, others: Iterable["_Turn[_T]"]) -> _T:
        """Returns the result, in its turn; does others while another thread is working on it."""
        if self._begun is None:
            return self._call()
        for other in others:
            if self._is_done.is_set():
                break
            other.do()
        try:
            return self._begun()
        finally:
            self._threads.gave(self._size_bytes)

    def do(self) -> None:
        """Does it here and now, before its turn, if no thread does and its result has room."""
        if self._begun is not None or not self._threads.took(self._size_bytes):
            return
        future = Future[_T]()
        self._begun = future.result
        try:
            future.set_result(self._done())
        except Exception as e:  # noqa: BLE001 - raised in its turn
            future.set_exception(e)

    def drop(self) -> None:
        """Waits for what is under way."""
        if self._begun is not None:
            self._is_done.wait()
            self._threads.gave(self._size_bytes)

    def _done(self) -> _T:
        try:
            return self._settled(self._call())
        finally:
            self._is_done.set()


NAP_MS = 250
"""The longest sleep before checking whether to stop."""
_LONGEST_NAP_MS = 1 << 53


class StoppedError(Exception):
    """The cleaner is to stop."""


def nap(clock: Clock, ms: int, stopping: Callable[[], bool]) -> None:
    """Sleeps that long, or until the cleaner is to stop."""
    while ms > 0 and not stopping():
        clock.sleep_ms(min(NAP_MS, ms))
        ms -= NAP_MS


class Throttle:
    """A number of bytes per second for all cleaner threads together; None: no limit.

    A caller that is ahead of the rate sleeps until it is not; unused time is not saved up for
    longer than a second.

    Args:
        pace: that of the throttles with which this one has the rate together.

    Attributes:
        stopping: whether the cleaner is to stop.
        moved_ms: when a request was last accounted for, by the clock's monotonic time.
    """

    def __init__(
        self,
        bytes_per_second: float | None,
        clock: Clock,
        stopping: Callable[[], bool] = lambda: False,
        *,
        pace: "Pace | None" = None,
    ) -> None:
        self.stopping = stopping
        self.moved_ms = clock.monotonic_ms()
        self._rate = bytes_per_second
        self._clock = clock
        self.pace = pace or Pace(self.moved_ms)

    def take(self, size_bytes: int) -> None:
        """Accounts for that many bytes; sleeps if they came too early."""
        self.moved_ms = self._clock.monotonic_ms()
        if self._rate is not None:
            self._wait(size_bytes, self._rate)
        if self.stopping():
            raise StoppedError

    def _wait(self, size_bytes: int, rate: float) -> None:
        with self.pace.lock:
            now_ms = self._clock.monotonic_ms()
            free_at_ms = max(self.pace.free_at_ms, now_ms - 1000) + size_bytes * 1000 / rate
            self.pace.free_at_ms = free_at_ms
        # At a rate near 0 it never becomes free.
        nap(self._clock, int(min(free_at_ms - now_ms, _LONGEST_NAP_MS)), self._is_napping)

    def _is_napping(self) -> bool:
        """Notes that a nap is no silence; returns whether it must end."""
        self.moved_ms = self._clock.monotonic_ms()
        return self.stopping()


class Pace:
    """When the next byte may be moved, for all throttles of one rate."""

    def __init__(self, free_at_ms: float) -> None:
        self.lock = threading.Lock()
        self.free_at_ms = free_at_ms


class MeteredStore(WrappingStore):
    """Passes everything on; counts and throttles bytes read and written.

    Attributes:
        bytes_read, bytes_written: so far.
        moved_ms: when the last of them was moved, by the monotonic time of the throttle's clock.
    """

    def __init__(self, inner: Store, throttle: Throttle) -> None:
        super().__init__(inner)
        self._throttle = throttle
        self._lock = threading.Lock()
        self.bytes_read = 0
        self.bytes_written = 0
        self.moved_ms = 0

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        data = self.inner.get(path, start, end)
        self._read(len(data))
        return data

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        parts = self.inner.get_ranges(path, ranges)
        self._read(sum(map(len, parts)))
        return parts

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._take(len(data))
        self.inner.put(path, data)
        with self._lock:
            self.bytes_written += len(data)

    def delete(self, path: str) -> None:
        self._throttle.take(0)
        self.inner.delete(path)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        for found in self.inner.list(prefix):
            self._throttle.take(0)
            yield found

    def _read(self, size_bytes: int) -> None:
        with self._lock:  # Threads read ahead (`store.contract`) and do parts of a pass.
            self.bytes_read += size_bytes
        self._take(size_bytes)

    def _take(self, size_bytes: int) -> None:
        self._throttle.take(size_bytes)
        self.moved_ms = self._throttle.moved_ms


class RequestMeter(WrappingStore):
    """Passes everything on, and counts it.

    Attributes:
        requests: by operation; ranges of one object count as the requests that fetch them.
        failures: those of them to which the filesystem did not respond as it should.
        bytes_moved: by operation.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.bytes_moved: Counter[str] = Counter()

    def __reduce__(self) -> tuple[Callable[[Store], Store], tuple[Store]]:
        """Pickles as the inner store: requests of another process cannot be counted here."""
        return _itself, (self.inner,)

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        with self._counted("get"):
            data = self.inner.get(path, start, end)
        self._moved("get", len(data))
        return data

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        with self._counted("get", len(coalesce(ranges))):
            parts = self.inner.get_ranges(path, ranges)
        self._moved("get", sum(map(len, parts)))
        return parts

    def put(self, path: str, data: bytes | memoryview) -> None:
        with self._counted("put"):
            self.inner.put(path, data)
        self._moved("put", memoryview(data).nbytes)

    def create(self, path: str, data: bytes) -> None:
        with self._counted("create"):
            self.inner.create(path, data)
        self._moved("create", len(data))

    def delete(self, path: str) -> None:
        with self._counted("delete"):
            self.inner.delete(path)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        with self._counted("list"):
            yield from self.inner.list(prefix)

    def list_temporary(self, prefix: str) -> Iterator[StoredObject]:
        with self._counted("list"):
            yield from self.inner.list_temporary(prefix)

    @contextmanager
    def _counted(self, operation: str, requests: int = 1) -> Iterator[None]:
        with self._lock:
            self.requests[operation] += requests
        try:
            yield
        except StoreUnavailableError:
            with self._lock:
                self.failures[operation] += 1
            raise

    def _moved(self, operation: str, size_bytes: int) -> None:
        with self._lock:
            self.bytes_moved[operation] += size_bytes


def _itself(store: Store) -> Store:
    return store


class NotedStore(WrappingStore):
    """Passes everything on, and remembers which objects were written through it."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._written: list[str] = []

    def put(self, path: str, data: bytes | memoryview) -> None:
        self.inner.put(path, data)
        if documents.stamp_of(path) is not None:
            self._written.append(path)

    @contextmanager
    def leaves_room(self, handle: Handle) -> Iterator[None]:
        """Deletes the objects that the block wrote and did not commit, if it ends because the disk
        is full: no sweep would for a day, and making room begins with a commit. The error says that
        the last commit did not happen, and nothing else knows of these objects.
        """
        try:
            yield
        except StoreFullError:
            handle.refresh()
            manifest = handle.manifest()
            needed = {*manifest.files(), *(r.path for r in manifest.released)}
            for path in self._written:
                if path not in needed:
                    self.inner.delete(path)
            raise
