"""`clog cleaner --live`: what the daemon does, in the terminal, four times a second."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from clog.cli.output import count, counted, duration, size, stderr

if TYPE_CHECKING:
    from clog.cleaner.monitor import Activity, LogState, Monitor

REFRESHES_A_SECOND = 4


def watching(monitor: "Monitor") -> AbstractContextManager[Live]:
    """Shows the view, as long as the block lasts; on standard error, as passes may go to the
    other.
    """
    return Live(
        get_renderable=lambda: view(monitor),
        console=stderr(),
        refresh_per_second=REFRESHES_A_SECOND,
        transient=True,
    )


def view(monitor: "Monitor") -> Group:
    """Returns the passes under way, and the logs."""
    now_ms = monitor.clock.monotonic_ms()
    passes = Table(box=None, pad_edge=False)
    for name in ("log", "partition", "dirty", "why", "phase", "done", "rate", "ETA"):
        passes.add_column(name, no_wrap=name != "log", overflow="fold")
    activities = monitor.activities()
    for activity in activities:
        passes.add_row(*_pass_row(activity, now_ms))
    logs = Table(box=None, pad_edge=False)
    for name in ("log", "dirtiest", "passes", "removed", "size", "state"):
        logs.add_column(name, no_wrap=name != "log", overflow="fold")
    for url, state in monitor.logs().items():
        logs.add_row(*_log_row(url, state))
    idle = Text(f"idle, looked {duration(now_ms - monitor.round_ms)} ago", style="dim")
    return Group(passes if activities else idle, Text(), logs)


def remaining_ms(activity: "Activity", now_ms: int) -> int | None:
    """Returns how long the phase of a pass will take at its rate so far; None before it has one."""
    progress = activity.progress
    done, total = progress.records_done, progress.records_total
    if not 0 < done <= total:
        return None
    return int((now_ms - progress.phase_began_ms) * (total - done) / done)


def _pass_row(activity: "Activity", now_ms: int) -> tuple[str, ...]:
    progress, chosen = activity.progress, activity.candidate
    done, total = progress.records_done, progress.records_total
    share = done / total if total else 0.0
    spent_ms = max(1, now_ms - activity.began_ms)
    left_ms = remaining_ms(activity, now_ms)
    left = "" if left_ms is None else duration(left_ms)
    return (
        activity.url,
        str(chosen.partition),
        f"{chosen.bounds.dirty_ratio:.2f}",
        chosen.reason.value,
        progress.phase,
        f"{min(share, 1):.0%}",
        f"{progress.bytes_moved / 1e3 / spent_ms:.1f} MB/s",
        left,
    )


def _log_row(url: str, state: "LogState") -> tuple[str, ...]:
    dirtiest = max((p.dirty_ratio for p in state.partitions), default=0.0)
    uncleanable = sum(p.uncleanable is not None for p in state.partitions)
    totals = state.totals
    words = state.error or (
        f"{counted(uncleanable, 'partition')} uncleanable" if uncleanable else "well"
    )
    removed = totals["records_read"] - totals["records_written"]
    sizes = f"{size(totals['size_bytes_before'])} -> {size(totals['size_bytes_after'])}"
    return url, f"{dirtiest:.2f}", count(totals["passes"]), count(removed), sizes, words
