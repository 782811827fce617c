"""This machine's clock beside the store's (COMMIT.md K2, §5; decision 0012).

Times of commits never go back, so one commit from a clock that is years ahead makes all later ones
as late. Hence a handle whose clock is ahead of the newest commit, or of where the monotonic clock
says that it should be, asks the store for the time before it commits, once: from then on the
monotonic clock tells what time it is there. A manual clock is
unrelated to the store's, and never compared.
"""

from contextlib import suppress

from clog.storage.clock import Clock, ManualClock
from clog.storage.errors import StoreUnavailableError, UnsupportedFilesystemError
from clog.storage.format import paths
from clog.storage.ids import Ids
from clog.storage.store.base import Store, StoreRefusedError

SKEW_MS_MAX = 300_000
"""Clocks that differ by more make the cleaner refuse to work."""
LISTED_MS = 3_600_000
"""What is not listed so long after it was written is not late, but swept: the sweep takes it after
a day.
"""
AHEAD_MS_MAX = 900_000
"""A clock that is so far ahead of the store's commits nothing: the cleaner would wait as long."""


class ClockSkewError(StoreUnavailableError):
    """This machine's clock and the store's differ too much to tell how old anything is."""


def is_comparable(clock: Clock) -> bool:
    """Tells whether the clock claims to tell the time of day."""
    return not isinstance(clock, ManualClock)


def store_now_ms(store: Store, *, clock: Clock, ids: Ids) -> int | None:
    """Returns the store's time, from an object just written, where that is listed already; a PUT, a
    LIST of one name and a DELETE. Who sleeps until the object is swept asks again.
    """
    while True:
        path = f"{paths.CLOCKS}{ids.new_id()}"
        monotonic_ms, now_ms = clock.monotonic_ms(), clock.now_ms()
        store.put(path, b"clock")
        try:
            store_ms = next((found.modified_ms for found in store.list(path)), None)
        finally:
            with suppress(StoreUnavailableError):  # The sweep takes what is left.
                store.delete(path)
        slept_ms = max(clock.monotonic_ms() - monotonic_ms, clock.now_ms() - now_ms)
        if store_ms is not None or slept_ms < LISTED_MS:
            return store_ms


class StoreClock:
    """The store's time as far as it is known here. Not safe for threads."""

    def __init__(self, store: Store, *, clock: Clock, ids: Ids) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._first_ahead_ms = clock.now_ms() - clock.monotonic_ms()
        self._ahead_of_monotonic_ms: int | None = None

    def check(self, *, newest_ms: int) -> None:
        """Checks that this machine's clock is not far ahead, where the newest commit is not of now,
        or the clock was set forward.

        Raises:
            ClockSkewError: a commit would be of a time that the store has not reached for long.
            StoreUnavailableError: the store cannot be asked now.
        """
        if not is_comparable(self._clock):
            return
        now_ms, known_ms = self._clock.now_ms(), self._ahead_of_monotonic_ms
        # Where commits follow closely, the newest one is as far ahead as the clock that made it.
        since_ms = self._first_ahead_ms if known_ms is None else known_ms
        is_steady = now_ms - self._clock.monotonic_ms() - since_ms <= AHEAD_MS_MAX
        if is_steady and (known_ms is not None or now_ms - newest_ms <= AHEAD_MS_MAX):
            return
        try:
            store_ms = store_now_ms(self._store, clock=self._clock, ids=self._ids)
        except (StoreRefusedError, UnsupportedFilesystemError):
            store_ms = None  # Who may not list, or where no times are told, has to be believed.
        # Only from here on: whoever slept before the answer would take days for the store's lead.
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        if store_ms is not None and now_ms - store_ms > AHEAD_MS_MAX:
            raise ClockSkewError(
                f"this machine's clock is {now_ms - store_ms} ms ahead of the store's, more than"
                f" {AHEAD_MS_MAX}: here it is {now_ms} ms, at {self._store.url} {store_ms};"
                " nothing was committed; set this machine's clock (NTP),"
                " or the store's if that one is wrong (compare both with `date -u`)"
            )
        self._ahead_of_monotonic_ms = (now_ms if store_ms is None else store_ms) - monotonic_ms
