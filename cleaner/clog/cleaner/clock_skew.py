"""Whether this machine's clock can be trusted: it is compared with the store's, by the mtime of an
object just written, and with the log's newest commit (COMMIT.md §5).

A wrong clock would remove tombstones before their horizon, expire segments, and delete objects
that readers still need. A manual clock is never compared: it has nothing to do with the store's.
"""

from clog.storage.clock import Clock, ManualClock
from clog.storage.errors import StoreUnavailableError
from clog.storage.handle import Handle

SKEW_MS_MAX = 300_000
"""Clocks that differ by more make maintenance refuse to work."""


class ClockSkewError(StoreUnavailableError):
    """This machine's clock and the store's differ too much to tell how old anything is."""


def is_comparable(clock: Clock) -> bool:
    """Whether the clock claims to tell the time of day."""
    return not isinstance(clock, ManualClock)


def check_clock(handle: Handle, *, now_ms: int, dry_run: bool = False) -> None:
    """Compares the clocks; costs a PUT, a LIST of one name and a DELETE. A dry run writes nothing,
    so it only looks at the newest commit's time.

    Raises:
        ClockSkewError: they differ by more than `SKEW_MS_MAX`.
    """
    behind_ms = handle.tip.record.time_ms - now_ms
    if behind_ms > SKEW_MS_MAX:
        hint = "if this one is right, a writer's was ahead: wait until it has passed"
        raise ClockSkewError(_refusal(handle, now_ms, "the newest commit", behind_ms, hint))
    if dry_run:
        return
    path = f"_clog/clock-{handle.ids.new_id()}"
    handle.store.put(path, b"clock")
    try:
        stamps = [found.modified_ms for found in handle.store.list(path)]
    finally:
        handle.store.delete(path)
    for modified_ms in stamps:
        if abs(modified_ms - now_ms) > SKEW_MS_MAX:
            hint = "or the store's, if that one is wrong (compare both with `date -u`)"
            raise ClockSkewError(_refusal(handle, now_ms, "the store", modified_ms - now_ms, hint))


def _refusal(handle: Handle, now_ms: int, other: str, ahead_ms: int, hint: str) -> str:
    return (
        f"the clocks differ by {abs(ahead_ms)} ms, more than {SKEW_MS_MAX}: here it is {now_ms} ms,"
        f" {other} of {handle.store.url} says {now_ms + ahead_ms}; nothing was changed. Set this"
        f" machine's clock (NTP), {hint}"
    )
