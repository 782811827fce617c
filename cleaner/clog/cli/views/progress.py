"""Bars with the time that is left, on standard error, where that is a terminal."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TimeRemainingColumn

from clog.cli.output import stderr

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clog.cleaner.monitor import Activity, Monitor


class PassesProgress(Progress):
    """A bar for each pass under way, and each of its phases: what the monitor says, whenever it is
    drawn.
    """

    def __init__(self, monitor: "Monitor", **settings: Any) -> None:
        self._monitor = monitor
        self._shown: dict[tuple[int, str], TaskID] = {}
        super().__init__(*_columns(), **settings)

    def get_renderables(self) -> "Iterable[RenderableType]":
        """Looks at the passes, and draws their bars."""
        running = {(id(a), a.progress.phase): a for a in self._monitor.activities()}
        for ended in self._shown.keys() - running.keys():
            self.remove_task(self._shown.pop(ended))
        for key, activity in running.items():
            if key not in self._shown:
                self._shown[key] = self.add_task(_what(activity), total=None)
            done, total = activity.progress.records_done, activity.progress.records_total
            self.update(self._shown[key], completed=done, total=total or None)
        return super().get_renderables()


@contextmanager
def watching_passes(monitor: "Monitor") -> Iterator[None]:
    """Shows the passes of a cleaner as long as the block lasts."""
    console = stderr()
    with PassesProgress(monitor, console=console, transient=True, disable=not console.is_terminal):
        yield


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


def _what(activity: "Activity") -> str:
    return f"partition {activity.candidate.partition}: {activity.progress.phase}"
