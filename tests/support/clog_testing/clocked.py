"""A store whose objects bear the times of a given clock, so that ages are tested by advancing it;
and a clock that, unlike a manual one, claims to tell the time of day.
"""

from collections.abc import Iterator
from dataclasses import replace

from clog.storage.env import Clock
from clog.storage.store.contract import Store, StoredObject, WrappingStore


class WallClock:
    """A clock that claims to tell the time of day, ``by_ms`` off a manual one; else as that one."""

    def __init__(self, right: Clock, by_ms: int = 0) -> None:
        self.right, self.by_ms = right, by_ms
        self.monotonic_ms, self.sleep_ms = right.monotonic_ms, right.sleep_ms

    def now_ms(self) -> int:
        return self.right.now_ms() + self.by_ms

    def now_us(self) -> int:
        return self.now_ms() * 1000


class ClockedStore(WrappingStore):
    """Passes everything on; ``modified_ms`` of what is written through it is the clock's time."""

    def __init__(self, inner: Store, clock: Clock) -> None:
        super().__init__(inner)
        self._clock = clock
        self._modified_ms: dict[str, int] = {}

    def put(self, path: str, data: bytes | memoryview) -> None:
        self.inner.put(path, data)
        self._modified_ms[path] = self._clock.now_ms()

    def create(self, path: str, data: bytes) -> None:
        self.inner.create(path, data)
        self._modified_ms[path] = self._clock.now_ms()

    def list(self, prefix: str) -> Iterator[StoredObject]:
        for found in self.inner.list(prefix):
            modified_ms = self._modified_ms.get(found.path, found.modified_ms)
            yield replace(found, modified_ms=modified_ms)
