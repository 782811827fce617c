"""Whether the daemon does its work, and if not, why."""

from clog.cleaner.cleaner import Cleaner

FAILURES_MAX = 3
"""Rounds in a row that may fail before a log makes the daemon unhealthy."""
STALLED_MS = 900_000
"""So long without a byte, a round's beginning or its end: something hangs."""


def ailments(cleaner: Cleaner) -> list[str]:
    """Returns why the daemon is not well; empty when it is. A partition that is uncleanable is no
    reason, nor is a damaged object: to start again would not mend it, and end the passes of all
    other logs (metrics, `clog describe` and what is logged tell of it).
    """
    found = [
        f"{url}: {state.failures} rounds failed in a row, the last with {state.error}"
        for url, state in cleaner.monitor.logs().items()
        if state.failures >= FAILURES_MAX
    ]
    idle_ms = cleaner.monitor.clock.monotonic_ms() - cleaner.moved_ms
    if idle_ms > STALLED_MS + cleaner.backoff_ms:
        found.append(f"nothing was read, written or looked at for {idle_ms // 1000} s")
    return found
