"""Bars with the time that is left, on standard error, where that is a terminal."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table

from clog.cli.output import duration, stderr
from clog.cli.views.daemon_view import REFRESHES_A_SECOND, remaining_ms

if TYPE_CHECKING:
    from clog.cleaner.monitor import Monitor


@contextmanager
def watching_passes(monitor: "Monitor") -> Iterator[Live | None]:
    """Shows the passes of a cleaner as long as the block lasts: a bar for each, phase by phase."""
    console = stderr()
    if not console.is_terminal:
        yield None
        return
    with Live(
        get_renderable=lambda: bars(monitor),
        console=console,
        refresh_per_second=REFRESHES_A_SECOND,
        transient=True,
    ) as live:
        yield live


def bars(monitor: "Monitor") -> Table:
    """Returns a row for each pass under way: partition, phase, bar, percent, time left."""
    now_ms = monitor.clock.monotonic_ms()
    table = Table(box=None, pad_edge=False, show_header=False)
    for activity in monitor.activities():
        done, total = activity.progress.records_done, activity.progress.records_total
        left_ms = remaining_ms(activity, now_ms)
        table.add_row(
            f"partition {activity.candidate.partition}: {activity.progress.phase}",
            ProgressBar(total=max(total, 1), completed=done, width=40),
            f"{done / max(total, 1):.0%}",
            "" if left_ms is None else f"{duration(left_ms)} left",
        )
    return table


@contextmanager
def tracking(verb: str) -> Iterator[Callable[[Sequence[str]], Iterable[str]]]:
    """Yields a function that yields the same things again, with a bar meanwhile."""
    console = stderr()
    with Progress(
        *_columns(), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        yield lambda things: progress.track(things, description=verb)


@contextmanager
def counting(verb: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yields a function that is told how much more was done, of ``total`` where it is known."""
    console = stderr()
    with Progress(
        *_columns(), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(verb, total=total)
        yield lambda more: progress.advance(task, more)


def _columns() -> tuple[Any, ...]:
    return ("{task.description}", BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
