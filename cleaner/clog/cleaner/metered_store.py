"""A store that counts the bytes of a pass, slows it down to the operator's limit (S29), and ends it
when the cleaner is to stop: between two requests, so within seconds. A sweep likewise: it may have
very many objects to list and to delete.

What is lost by that is the group under way; its objects are orphans.

Beside it one that has some objects in memory.
"""

import builtins
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from clog.storage.clock import Clock
from clog.storage.store.base import Store, StoredObject
from clog.storage.store.wrapping import WrappingStore

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
        """Accounts for so many bytes; sleeps when they came too early.

        Raises:
            StoppedError: the cleaner is to stop.
        """
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
        with self._lock:  # Reads go ahead in threads (`store.ahead`), so do parts of a pass.
            self.bytes_read += size_bytes
        self._take(size_bytes)

    def _take(self, size_bytes: int) -> None:
        self._throttle.take(size_bytes)
        self.moved_ms = self._throttle.moved_ms


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
