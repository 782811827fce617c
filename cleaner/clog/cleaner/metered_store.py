"""A store that counts the bytes of a pass, and slows it down to the operator's limit (S29)."""

import builtins
import threading
from collections.abc import Sequence

from clog.storage.clock import Clock
from clog.storage.store.base import Store
from clog.storage.store.wrapping import WrappingStore


class Throttle:
    """So many bytes per second for all cleaner threads together; None: no limit.

    A caller that is ahead of the rate sleeps until it is not; time that nobody used is not saved
    up for longer than a second.
    """

    def __init__(self, bytes_per_second: float | None, clock: Clock) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._free_at_ms = float(clock.monotonic_ms())
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        """Accounts for so many bytes; sleeps when they came too early."""
        if self._rate is None:
            return
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            free_at_ms = max(self._free_at_ms, now_ms - 1000) + size_bytes * 1000 / self._rate
            self._free_at_ms = free_at_ms
        if free_at_ms > now_ms:
            self._clock.sleep_ms(int(free_at_ms - now_ms))


class MeteredStore(WrappingStore):
    """Passes everything on; counts and throttles bytes read and written."""

    def __init__(self, inner: Store, throttle: Throttle) -> None:
        super().__init__(inner)
        self._throttle = throttle
        self.bytes_read = 0
        self.bytes_written = 0

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        data = self.inner.get(path, start, end)
        self._read(len(data))
        return data

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        parts = self.inner.get_ranges(path, ranges)
        self._read(sum(map(len, parts)))
        return parts

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._throttle.take(len(data))
        self.inner.put(path, data)
        self.bytes_written += len(data)

    def _read(self, size_bytes: int) -> None:
        self.bytes_read += size_bytes
        self._throttle.take(size_bytes)
