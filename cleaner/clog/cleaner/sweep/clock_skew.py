"""Whether this machine's clock can be trusted: it is compared with the store's, by the mtime of an
object just written, and with the log's newest commit (COMMIT.md §5).

A wrong clock would remove tombstones before their horizon, expire segments, and delete objects that
readers still need. So a cleaner takes the time from a `WatchedClock`, which looks again as soon as
the clock may have become wrong. A manual clock is never compared: it is unrelated to the store's.
"""

from clog.storage.clock import Clock
from clog.storage.commit.handle import Handle
from clog.storage.commit.store_clock import (
    SKEW_MS_MAX,
    ClockSkewError,
    is_comparable,
    store_now_ms,
)

__all__ = ["SKEW_MS_MAX", "ClockSkewError", "WatchedClock", "check_clock", "is_comparable"]

LOOK_MS = 600_000
"""The clock is compared with the store's this often."""


class WatchedClock:
    """The wall clock, for what one log's cleaner decides by it. Safe for threads."""

    def __init__(self, handle: Handle, clock: Clock) -> None:
        self._handle = handle
        self._clock = clock
        self._looked: tuple[int, int] | None = None

    def now_ms(self) -> int:
        """Returns the time. Compares it with the store's each `LOOK_MS`, and whenever the monotonic
        clock tells that it may be wrong by more than `SKEW_MS_MAX`: it was set since the last look,
        in one step or in many, or the machine slept.

        Raises:
            ClockSkewError: they differ by more than that.
        """
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        if is_comparable(self._clock) and self._is_due(now_ms, monotonic_ms):
            ahead_ms = check_clock(self._handle, now_ms=now_ms)
            self._looked = monotonic_ms, now_ms - ahead_ms
        return now_ms

    def _is_due(self, now_ms: int, monotonic_ms: int) -> bool:
        if self._looked is None:
            return True
        looked_ms, store_ms = self._looked
        since_ms = monotonic_ms - looked_ms
        return since_ms >= LOOK_MS or abs(now_ms - store_ms - since_ms) > SKEW_MS_MAX


def check_clock(handle: Handle, *, now_ms: int, dry_run: bool = False) -> int:
    """Compares the clocks; costs a PUT, a LIST of one name and a DELETE. A dry run writes nothing,
    so it only looks at the newest commit's time. Returns by how much this machine's is ahead of the
    store's, 0 where that is not known.

    Raises:
        ClockSkewError: they differ by more than `SKEW_MS_MAX`.
    """
    behind_ms = handle.tip.record.time_ms - now_ms
    if behind_ms > SKEW_MS_MAX:
        hint = "or, if it is right and a writer's was ahead, run: clog reset-times URL"
        raise ClockSkewError(_refusal(handle, now_ms, "the newest commit", behind_ms, hint))
    if dry_run:
        return 0
    store_ms = store_now_ms(handle.store, clock=handle.clock, ids=handle.ids)
    if store_ms is None:
        return 0
    if abs(store_ms - now_ms) > SKEW_MS_MAX:
        hint = "or the store's if that one is wrong (compare both with `date -u`)"
        raise ClockSkewError(_refusal(handle, now_ms, "the store", store_ms - now_ms, hint))
    return now_ms - store_ms


def _refusal(handle: Handle, now_ms: int, other: str, ahead_ms: int, hint: str) -> str:
    return (
        f"the clocks differ by {abs(ahead_ms)} ms, more than {SKEW_MS_MAX}: this machine's says"
        f" {now_ms} ms, {other} of {handle.store.url} says {now_ms + ahead_ms};"
        f" nothing was changed; set this machine's clock (NTP), {hint}"
    )
