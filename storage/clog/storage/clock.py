"""Time as an argument: the only module that asks the operating system what time it is.

Everything else takes a `Clock`. `SystemClock` is real time, `ManualClock` moves when it is told
to, so that tests wait for a week of retention in no time.
"""

import time
from typing import Protocol

from clog.storage.errors import InvalidInputError


class Clock(Protocol):
    """Where clog takes times from."""

    def now_ms(self) -> int:
        """Returns the wall clock: ms since 1970, UTC. May jump, also backwards."""
        ...

    def now_us(self) -> int:
        """Returns the wall clock: µs since 1970, UTC."""
        ...

    def monotonic_ms(self) -> int:
        """Returns the ms since some fixed moment; never goes back. For durations and deadlines."""
        ...

    def sleep_ms(self, ms: int) -> None:
        """Waits for ``ms`` milliseconds."""
        ...


class SystemClock:
    """The clock of this host."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def sleep_ms(self, ms: int) -> None:
        time.sleep(ms / 1000)


class ManualClock:
    """A clock that moves when `advance` or `sleep_ms` is called, and at no other time.

    >>> clock = ManualClock(now_ms=1_000)
    >>> clock.advance(500)
    >>> clock.now_ms(), clock.monotonic_ms()
    (1500, 500)
    """

    __slots__ = ("_elapsed_ms", "_start_ms")

    def __init__(self, now_ms: int = 0) -> None:
        self._start_ms = now_ms
        self._elapsed_ms = 0

    def advance(self, ms: int) -> None:
        """Moves the clock forward by ``ms`` milliseconds.

        Raises:
            InvalidInputError: ``ms`` is negative.
        """
        if ms < 0:
            raise InvalidInputError(f"the clock cannot go back by {-ms} ms; advance by 0 or more")
        self._elapsed_ms += ms

    def now_ms(self) -> int:
        return self._start_ms + self._elapsed_ms

    def now_us(self) -> int:
        return self.now_ms() * 1_000

    def monotonic_ms(self) -> int:
        return self._elapsed_ms

    def sleep_ms(self, ms: int) -> None:
        self.advance(ms)
