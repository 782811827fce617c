"""A store far away, simulated: each request takes so long, on a clock that nobody waits for.

What is begun (`Store.begin`) is done at once, and its requests count from the moment at which it
was begun; whoever asks for its result is set forward to when they would have ended. So the time
that an operation would take follows from the order of its requests alone.

Others, simulated: what they do while a process waits is what its clock does when it sleeps.
"""

import builtins
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from clog.storage.env import ManualClock
from clog.storage.store.contract import Store, StoredObject, WrappingStore

_T = TypeVar("_T")


class Sleeper(ManualClock):
    """A clock that does something the next times that somebody sleeps by it: what is ``during``."""

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.during: deque[Callable[[], object]] = deque()

    def sleep_ms(self, ms: int) -> None:
        super().sleep_ms(ms)
        if self.during:
            self.during.popleft()()


class DelayingStore(WrappingStore):
    """Passes everything on; each request takes ``round_trip_ms``, those of one call of
    ``get_ranges`` together.

    Attributes:
        now_ms: the time that was taken so far.
        requests: how many there were.
        begun: when each of the calls that were begun began, and ended.
    """

    def __init__(self, inner: Store, round_trip_ms: int = 100) -> None:
        super().__init__(inner)
        self._round_trip_ms = round_trip_ms
        self.now_ms = 0
        self.requests = 0
        self.begun: builtins.list[tuple[int, int]] = []

    @property
    def most_at_once(self) -> int:
        """How many of the calls that were begun were under way together, at most."""
        return max(
            (sum(a <= at < b for a, b in self.begun) for at, _ in self.begun),
            default=0,
        )

    def begin(self, call: Callable[[], Any]) -> Callable[[], Any]:
        start = self.now_ms
        result = result_of(call)
        end, self.now_ms = self.now_ms, start
        self.begun.append((start, end))

        def wait() -> Any:
            self.now_ms = max(self.now_ms, end)
            return result()

        return wait

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        self._request()
        return self.inner.get(path, start, end)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        self._request()
        return self.inner.get_ranges(path, ranges)

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._request()
        self.inner.put(path, data)

    def create(self, path: str, data: bytes) -> None:
        self._request()
        self.inner.create(path, data)

    def delete(self, path: str) -> None:
        self._request()
        self.inner.delete(path)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self._request()
        return self.inner.list(prefix)

    def _request(self) -> None:
        self.requests += 1
        self.now_ms += self._round_trip_ms


def result_of(call: Callable[[], _T]) -> Callable[[], _T]:
    """Makes a call; returns what returns its result, or raises its error."""
    try:
        found = call()
    except Exception as e:
        error = e

        def fail() -> _T:
            raise error

        return fail
    return lambda: found
