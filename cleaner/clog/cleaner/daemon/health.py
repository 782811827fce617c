"""Whether the daemon goes on, and whether it looks after every log; if not, why.

Two questions, for two who ask: who starts processes again asks `ailments`, and who wants to know
that logs are kept small asks `neglects`. A store that is away, a log that may only be read and a
writer whose clock is ahead neglect a log, and to start again would mend nothing, but end the passes
of all others.
"""

from clog.cleaner.cleaner import Cleaner
from clog.cleaner.monitor import Activity

FAILURES_MAX = 3
"""Rounds in a row that may fail before a log counts as neglected."""
STALLED_MS = 900_000
"""So long without a byte, a round's beginning or its end: something hangs."""


def ailments(cleaner: Cleaner) -> list[str]:
    """Returns why the process makes no progress; empty when it does."""
    idle_ms = cleaner.monitor.clock.monotonic_ms() - cleaner.moved_ms
    if idle_ms > STALLED_MS + cleaner.backoff_ms:
        return [f"nothing was read, written or looked at for {idle_ms // 1000} s"]
    return []


def neglects(cleaner: Cleaner) -> list[str]:
    """Returns why not every log is looked after; empty when each is. A partition that is
    uncleanable is no reason: all else in its log goes on (metrics and `clog describe` tell of it).
    """
    found, unlisted = ailments(cleaner), cleaner.monitor.unlisted()
    if unlisted is None:
        found.append("it has not looked for logs yet")
    found += [f"logs below {url} are not found: {why}" for url, why in (unlisted or {}).items()]
    for url, state in cleaner.monitor.logs().items():
        if not state.opened:
            found.append(f"{url} cannot be opened: {state.error}")
        elif state.failures >= FAILURES_MAX:
            rounds = f"{state.failures} rounds failed in a row"
            found.append(f"{url}: {rounds}, the last with {state.error}")
    found += [
        f"{a.url}: the pass over partition {a.candidate.partition} hangs" for a in hanging(cleaner)
    ]
    return found


def hanging(cleaner: Cleaner) -> list[Activity]:
    """Returns the passes in which nothing has moved for long: each has a thread to itself."""
    now_ms = cleaner.monitor.clock.monotonic_ms()
    return [
        activity
        for activity in cleaner.monitor.activities()
        if (moved_ms := activity.progress.moved_ms) is not None and now_ms - moved_ms > STALLED_MS
    ]


def notices(cleaner: Cleaner) -> list[str]:
    """Returns what somebody has to look at, though every log is looked after."""
    return [
        f"{url}: the {name} view keeps {state.kept[name].objects} objects that were to be deleted"
        f" {state.kept[name].overdue_ms // 1000} s ago; publish it, or withdraw it"
        for url, state in cleaner.monitor.logs().items()
        for name in state.stuck
    ]
