"""The threads of a cleaner, what those without a pass do for the others, and the stores they use.

Where fewer partitions are dirty than there are threads, a pass lets the others work ahead: hash the
keys of the next objects, judge and decode the next chunk while it encodes one, write the next
group. It takes the results in order, so what is committed, and when, is the same.

- Passes come first: nothing is begun ahead while one waits for a thread.
- What was done ahead and nobody has taken yet holds at most `AHEAD_BYTES` for each thread but the
  first, all passes together.
- Who would wait for another thread takes up what comes next meanwhile.
- With one thread nothing is begun ahead: each call is made when its result is asked for.

`MeteredStore` counts the bytes of a pass, slows it down to the operator's limit (S29), and ends it
when the cleaner is to stop: between two requests, so within seconds. A sweep likewise: it may have
very many objects to list and to delete. The group under way is lost by that; its objects are
orphans.
"""

import builtins
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

import numpy as np

from clog.storage.commit.handle import Handle
from clog.storage.env import Clock, enough_memory
from clog.storage.errors import InvalidInputError
from clog.storage.format import documents
from clog.storage.store.contract import (
    Store,
    StoredObject,
    StoreFullError,
    WrappingStore,
    begin_in_thread,
)

AHEAD_BYTES = 128 << 20
WORTH_BYTES = 1 << 20
"""What moves less is not worth a thread."""
MORE_MEMORY = (
    "give the cleaner more, or decrease log.cleaner.dedupe.buffer.size or log.cleaner.threads"
)
"""What helps where there is too little."""
SLOT_BYTES = 24
"""An entry of an offset map."""
RANKED_SLOT_BYTES = 32
"""One of a map that compares orders."""
# The home slot is computed in 64 bits: 32 of the hash times the number of slots.
_SLOTS_MAX = (1 << 32) - 1

_T = TypeVar("_T")
Call = tuple[Callable[[], _T], int]
"""What is to be done, and the bytes that it holds until its result is taken."""


def map_slots(memory_bytes: int, load_factor: float = 0.9, *, slot_bytes: int = SLOT_BYTES) -> int:
    """Returns how many slots an offset map of so much memory has (S18)."""
    # Below 1 at least one slot stays empty; it ends the search for a hash below all others.
    if not 0.0 < load_factor < 1.0:
        raise InvalidInputError(
            f"log.cleaner.io.buffer.load.factor={load_factor} is outside (0, 1); "
            "use the default 0.9"
        )
    slots = memory_bytes // slot_bytes
    if (capacity := int(slots * load_factor)) < 1:
        raise InvalidInputError(
            f"an offset map of {memory_bytes} bytes holds {capacity} entries of "
            f"{slot_bytes} bytes at load factor {load_factor}, at least 1 is needed; "
            "increase log.cleaner.dedupe.buffer.size or decrease log.cleaner.threads"
        )
    if slots > _SLOTS_MAX:
        raise InvalidInputError(
            f"an offset map of {memory_bytes} bytes has {slots} slots, at most {_SLOTS_MAX} "
            "can be addressed; decrease log.cleaner.dedupe.buffer.size or increase "
            "log.cleaner.threads"
        )
    return slots


class CleanerThreads:
    """So many threads, and the memory of their maps.

    Args:
        count: how many.
        map_bytes: of the map of one pass.
    """

    def __init__(self, count: int, map_bytes: int) -> None:
        self.count = count
        self.map_bytes = map_bytes
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._free = count
        self._passes_waiting = 0
        self._bytes_left = (count - 1) * AHEAD_BYTES

    def check_share(self) -> None:
        """Raises InvalidInputError where a thread's share of memory holds no key (S18), and
        OutOfMemoryError where there is not as much.
        """
        with enough_memory(f"a map of {self.map_bytes} bytes", MORE_MEMORY):
            np.zeros(map_slots(self.map_bytes) * SLOT_BYTES, dtype=np.uint8)

    @contextmanager
    def of_a_pass(self) -> Iterator[None]:
        """Takes a thread for a pass; waits until one that works ahead for another is done. The only
        one is the caller's and is not taken: no Ctrl-C can leave it so.
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
        """Gives an iterator that yields, for each call, what returns its result, or raises its
        error; to be called before the next one is asked for.

        ``settled`` makes of a result what holds when it is taken later, such as a list of an
        iterator. At the end what is still under way is waited for, and dropped.
        """
        turns = deque[_Turn[_T]]()
        try:
            yield self._results(turns, iter(calls), settled)
        finally:
            for turn in turns:
                turn.drop()

    def together(self, calls: Sequence[Call[_T]]) -> Iterator[_T]:
        """Yields what the calls return, in their order; free threads make some of them."""
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
        """Begins a call in a free thread; None: none is, it is not worth it, or too much began."""
        with self._lock:
            can = self._free > 0 and not self._passes_waiting and size_bytes >= WORTH_BYTES
            if not can or not self._took(size_bytes):
                return None
            self._free -= 1

        def run() -> _T:
            try:
                return call()
            finally:
                self._end()

        try:
            return begin_in_thread(run)
        except RuntimeError:  # The system gives no more of them.
            self.gave(size_bytes)
            self._end()
            return None

    def took(self, size_bytes: int) -> bool:
        """Takes room for what is done ahead, if there is as much."""
        with self._lock:
            return self._took(size_bytes)

    def gave(self, size_bytes: int) -> None:
        """Gives it back."""
        with self._lock:
            self._bytes_left += size_bytes

    def _took(self, size_bytes: int) -> bool:
        if size_bytes > self._bytes_left:
            return False
        self._bytes_left -= size_bytes
        return True

    def _end(self) -> None:
        with self._lock:
            self._free += 1
            self._freed.notify()


ALONE = CleanerThreads(1, 0)
"""For who has no other threads: everything is done in turn."""


class _Turn(Generic[_T]):
    """A call that waits for its turn, is under way, or done."""

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
        """Has it done by another thread, if one is free."""
        if self._begun is None:
            self._begun = self._threads.begin(self._done, self._size_bytes)

    def result(self, others: Iterable["_Turn[_T]"]) -> _T:
        """Returns the result, in its turn; while it is under way elsewhere others are done."""
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
        """Does it here and now, before its turn, if nobody does and its result has room."""
        if self._begun is not None or not self._threads.took(self._size_bytes):
            return
        future = Future[_T]()
        self._begun = future.result
        try:
            future.set_result(self._done())
        except Exception as e:  # noqa: BLE001 - it is raised in its turn
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
"""Nobody sleeps longer without a look at whether to stop."""
_LONGEST_NAP_MS = 1 << 53


class StoppedError(Exception):
    """The cleaner is to stop."""


def nap(clock: Clock, ms: int, stopping: Callable[[], bool]) -> None:
    """Sleeps, or until the cleaner is to stop."""
    while ms > 0 and not stopping():
        clock.sleep_ms(min(NAP_MS, ms))
        ms -= NAP_MS


class Throttle:
    """So many bytes per second for all cleaner threads together; None: no limit.

    A caller that is ahead of the rate sleeps until it is not; time that nobody used is not saved
    up for longer than a second.

    Attributes:
        stopping: whether the cleaner is to stop.
        moved_ms: when a request was last accounted for, by the clock's monotonic time.
    """

    def __init__(
        self,
        bytes_per_second: float | None,
        clock: Clock,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.stopping = stopping
        self.moved_ms = clock.monotonic_ms()
        self._rate = bytes_per_second
        self._clock = clock
        self._free_at_ms = float(clock.monotonic_ms())
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        """Accounts for so many bytes; sleeps when they came too early."""
        self.moved_ms = self._clock.monotonic_ms()
        if self._rate is not None:
            self._wait(size_bytes, self._rate)
        if self.stopping():
            raise StoppedError

    def _wait(self, size_bytes: int, rate: float) -> None:
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            free_at_ms = max(self._free_at_ms, now_ms - 1000) + size_bytes * 1000 / rate
            self._free_at_ms = free_at_ms
        # At a rate near 0 it is never free again.
        nap(self._clock, int(min(free_at_ms - now_ms, _LONGEST_NAP_MS)), self.stopping)


class MeteredStore(WrappingStore):
    """Passes everything on; counts and throttles bytes read and written.

    Attributes:
        bytes_read, bytes_written: so far.
        moved_ms: when the last of them did, by the monotonic time of the throttle's clock.
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
        with self._lock:  # Reads go ahead in threads (`store.contract`), so do parts of a pass.
            self.bytes_read += size_bytes
        self._take(size_bytes)

    def _take(self, size_bytes: int) -> None:
        self._throttle.take(size_bytes)
        self.moved_ms = self._throttle.moved_ms


class NotedStore(WrappingStore):
    """Passes everything on, and knows which objects were written through it."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._written: list[str] = []

    def put(self, path: str, data: bytes | memoryview) -> None:
        self.inner.put(path, data)
        if documents.stamp_of(path) is not None:
            self._written.append(path)

    @contextmanager
    def leaves_room(self, handle: Handle) -> Iterator[None]:
        """Deletes the objects that the block wrote and did not commit, if it ends as the disk is
        full: no sweep would for a day, and what makes room begins with a commit. The error says
        that the last commit did not happen, and nobody else knows of these objects.
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


class GatheredStore(WrappingStore):
    """Passes everything on but reads of objects that are in memory, which are no requests."""

    def __init__(self, inner: Store, objects: Mapping[str, bytes]) -> None:
        super().__init__(inner)
        self._objects = objects

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        if (data := self._objects.get(path)) is not None:
            return data[start:end]
        return self.inner.get(path, start, end)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        if (data := self._objects.get(path)) is not None:
            return [data[start:end] for start, end in ranges]
        return self.inner.get_ranges(path, ranges)
