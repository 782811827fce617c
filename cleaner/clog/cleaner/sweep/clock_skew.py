"""Whether this machine's clock can be trusted: it is compared with the store's, by the mtime of an
object just written, and with the log's newest commit (COMMIT.md §5).

A wrong clock would remove tombstones before their horizon, expire segments, and delete objects that
readers still need. A manual clock is never compared: it is unrelated to the store's.
"""

from clog.storage.commit.handle import Handle
from clog.storage.commit.store_clock import (
    SKEW_MS_MAX,
    ClockSkewError,
    is_comparable,
    store_now_ms,
)

__all__ = ["SKEW_MS_MAX", "ClockSkewError", "check_clock", "is_comparable"]


def check_clock(handle: Handle, *, now_ms: int, dry_run: bool = False) -> None:
    """Compares the clocks; costs a PUT, a LIST of one name and a DELETE. A dry run writes nothing,
    so it only looks at the newest commit's time.

    Raises:
        ClockSkewError: they differ by more than `SKEW_MS_MAX`.
    """
    behind_ms = handle.tip.record.time_ms - now_ms
    if behind_ms > SKEW_MS_MAX:
        hint = "or, if it is right and a writer's was ahead, run: clog reset-times URL"
        raise ClockSkewError(_refusal(handle, now_ms, "the newest commit", behind_ms, hint))
    if dry_run:
        return
    store_ms = store_now_ms(handle.store, clock=handle.clock, ids=handle.ids)
    if store_ms is not None and abs(store_ms - now_ms) > SKEW_MS_MAX:
        hint = "or the store's if that one is wrong (compare both with `date -u`)"
        raise ClockSkewError(_refusal(handle, now_ms, "the store", store_ms - now_ms, hint))


def _refusal(handle: Handle, now_ms: int, other: str, ahead_ms: int, hint: str) -> str:
    return (
        f"the clocks differ by {abs(ahead_ms)} ms, more than {SKEW_MS_MAX}: this machine's says"
        f" {now_ms} ms, {other} of {handle.store.url} says {now_ms + ahead_ms};"
        f" nothing was changed; set this machine's clock (NTP), {hint}"
    )
