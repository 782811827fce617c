r"""What the command line prints: people's output by rich, machines' as JSON, errors in one line.

Colours go when the output is no terminal or ``NO_COLOR`` is set; no meaning rests on them.

*Text of others*: keys, values, headers, ids, paths, configs and errors about them come from whoever
may write to a log. A terminal obeys the control characters in them: it sets its title, overwrites
lines, answers as if somebody typed; and those that change the direction of writing make one text
look like another. So on a terminal each one but the line feed and TAB is shown as six characters,
``\u001b``, which in JSON is an equal string. Files and pipes get it as it is.
"""

import json
import logging
import os
import re
import select
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from logging import Formatter, LogRecord
from typing import IO, TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.progress import Progress
    from rich.segment import Segment
    from rich.table import Table

    from clog.storage import Log

_TABLE_WIDTH_MAX = 10_000
_TOLD_MS = 60_000
"""How often it is told how far something is, where no bar shows that."""
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters, ends of lines and paragraphs, overrides and isolates of the direction."""

ERRORS_AS: ContextVar[Literal["text", "json", "log"]] = ContextVar("ERRORS_AS", default="text")
"""How errors are printed: lines for people, one JSON object, or as log messages are."""

_HINTS = {
    "not_found": 'check the URL and the name; "clog ls" lists logs',
    "version_expired": '"clog describe" shows the readable versions, "clog verify" what is gone',
    "offset_out_of_range": 'see the ranges there are with "clog offsets"',
    "already_exists": 'look at it with "clog describe"',
    "commit_state_unknown": 'look with "clog describe"; with --producer-id, produce again',
    "unsupported_filesystem": "--single-writer, where no other process ever writes to the log",
    "store_unavailable": "check the URL and its --option settings, then try again",
    "corruption": 'find the extent with "clog verify"; delete nothing',
}
"""The next step on the command line, by kind of error, where the message has none."""


class SafeFormatter(Formatter):
    """Log messages for standard error, which may be a terminal."""

    def __init__(self, formatter: Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: LogRecord) -> str:
        """Formats a message as the other formatter does."""
        return shown_on(sys.stderr, self._formatter.format(record))


class WarningFormatter(Formatter):
    """Warnings of a command that sets up no logging: lines, or JSON where errors are."""

    def format(self, record: LogRecord) -> str:
        """Formats a message as `ERRORS_AS` says."""
        text = super().format(record)
        if ERRORS_AS.get() == "json":
            text = json.dumps({"warning": {"message": text}}, ensure_ascii=False)
        return shown_on(sys.stderr, text)


@cache
def _safe_console() -> "type[Console]":
    """Makes the class late: `clog --help` shall not wait for rich."""
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        """Adds its own colours and cursor movements, and lets none of others through."""

        def render(
            self, renderable: "RenderableType", options: "ConsoleOptions | None" = None
        ) -> "Iterable[Segment]":
            segments = super().render(renderable, options)
            if not self.is_terminal:
                return segments
            return (s if s.control else Segment(shown(s.text), s.style) for s in segments)

        def on_broken_pipe(self) -> None:
            """Leaves it to whoever runs the command: rich would end the process."""
            raise  # noqa: PLE0704 - rich calls this where it caught the error

    return SafeConsole


def stdout() -> "Console":
    """Returns a console on standard output as it is now: tests and pipes exchange it."""
    return _safe_console()(highlight=False, emoji=False, markup=False)


def stderr() -> "Console":
    """Returns a console on standard error."""
    return _safe_console()(stderr=True, highlight=False, emoji=False, markup=False)


def table(
    names: Sequence[str],
    rows: Iterable[Iterable[Any]],
    *,
    right: Collection[str] = (),
    folds: Collection[str] = (),
    title: str | None = None,
) -> "Table":
    """Returns a table without lines; columns of ``right`` end where numbers do, ``folds`` wrap."""
    from rich.table import Table

    header = any(names)
    made = Table(box=None, pad_edge=False, show_header=header, title=title, title_justify="left")
    for name in names:
        justify: Literal["left", "right"] = "right" if name in right else "left"
        made.add_column(name, justify=justify, no_wrap=name not in folds, overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def print_table(made: "Table") -> None:
    """Prints a table on standard output, as wide as its columns that do not fold: a number that is
    cut is another number.
    """
    console = stdout()
    wide = console.options.update(max_width=_TABLE_WIDTH_MAX)
    folds = any(not column.no_wrap for column in made.columns)
    needed = console.measure(made, options=wide)
    console.width = max(console.width, needed.minimum if folds else needed.maximum)
    console.print(made)


def say(text: str) -> None:
    """Prints text for people, not wrapped, so that it can be copied and pasted."""
    stdout().print(text, soft_wrap=True)


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output."""
    _write_json(sys.stdout, value, indent=2)


def print_json_line(value: Any) -> None:
    """Prints one line of JSON lines on standard output."""
    _write_json(sys.stdout, value, separators=(",", ":"))


def _write_json(stream: IO[str], value: Any, **form: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, **form)
    stream.write(shown_on(stream, text) + "\n")


def print_error(message: str, kind: str | None = None) -> None:
    """Prints the error in one line, and the next step where there is one, as `ERRORS_AS` says."""
    form = ERRORS_AS.get()
    if form == "log":
        logging.getLogger("clog.cli").error(message)
        return
    hint = _HINTS.get(kind or "")
    if form == "json":
        error = {"kind": str(kind or "failed"), "message": message, "next": hint}
        _write_json(sys.stderr, {"error": {k: v for k, v in error.items() if v}})
        return
    from rich.text import Text

    console = stderr()
    console.print(Text.assemble(("error: ", "bold red"), (message, "red")), soft_wrap=True)
    if hint:
        console.print(Text(f"next: {hint}", style="dim"), soft_wrap=True)


def print_note(text: str) -> None:
    """Prints on standard error what is no error; as `ERRORS_AS` says."""
    form = ERRORS_AS.get()
    if form == "log":
        logging.getLogger("clog.cli").info(text)
    elif form == "json":
        _write_json(sys.stderr, {"note": {"message": text}})
    else:
        stderr().print(text, style="dim", soft_wrap=True)


def tell_left_out(log: "Log") -> None:
    """Tells what is left out, where there is something; by the newest version that is known."""
    head = log.handle.tip.head
    stable = {p: head.stable_offset(p) for p in range(head.log.partitions)}
    ends = head.partitions.end
    left = ", ".join(f"{p} from {at}" for p, at in stable.items() if at < ends[p])
    if left:
        print_note(
            f"left out, as transactions have not ended: the records of partitions {left} on;"
            f' "clog transactions {log.url}" says why they wait'
        )


def progress(*columns: Any, hidden: bool = False) -> "Progress":
    """Returns bars on standard error, where that is a terminal, gone in the end."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

    console = stderr()
    mine = ("{task.description}", BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    is_off = hidden or not console.is_terminal
    return Progress(*(columns or mine), console=console, transient=True, disable=is_off)


@contextmanager
def tracking(verb: str) -> Iterator[Callable[[Sequence[str]], Iterable[str]]]:
    """Yields a function that yields the same things again, with a bar meanwhile."""
    with progress() as shown:
        yield lambda things: shown.track(things, description=verb)


@contextmanager
def counting(verb: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yields a function that is told how much more was done, of ``total`` where it is known."""
    with progress() as shown:
        task = shown.add_task(verb, total=total)
        yield lambda more: shown.advance(task, more)


def each_minute(*, json: bool) -> Callable[[Callable[[], Any], Callable[[], str]], None]:
    """Returns what tells, once a minute at most, a document in JSON, or else a note."""
    from clog.storage.env import SystemClock

    clock, told_ms = SystemClock(), 0

    def tell(document: Callable[[], Any], note: Callable[[], str]) -> None:
        nonlocal told_ms
        now_ms = clock.monotonic_ms()
        if told_ms + _TOLD_MS <= now_ms:
            told_ms = now_ms
            print_json_line(document()) if json else print_note(note())

    return tell


def shown(text: str) -> str:
    r"""Returns the text with its control characters spelt out.

    >>> print(shown("\x1b]0;title\x07"))
    \u001b]0;title\u0007
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shown_on(stream: IO[str], text: str) -> str:
    """Returns the text as it is written to a stream: spelt out where that is a terminal."""
    return shown(text) if stream.isatty() else text


def write_lines(lines: bytes) -> None:
    r"""Writes lines to standard output at once; for a terminal spelt out, and bytes that are not
    UTF-8 as ``\xff``.
    """
    out = sys.stdout
    if out.isatty():
        out.write(shown(lines.decode(errors="backslashreplace")))
    else:
        out.buffer.write(lines)
    out.flush()


def reader_has_left() -> bool:
    """Tells whether nobody reads standard output any more, and then closes it for good."""
    try:
        fd = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(fd, 0)
    if not any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0)):
        return False
    drop_output()
    return True


def drop_output() -> None:
    """Closes standard output for good: what is still buffered goes nowhere."""
    try:
        fd = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, fd)
    os.close(nowhere)


def count(number: int) -> str:
    """Returns a whole number with thousands apart."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Returns a number of things, in words.

    >>> counted(1, "commit"), counted(2000, "commit")
    ('1 commit', '2,000 commits')
    """
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def size(size_bytes: int) -> str:
    """Returns the bytes as people read them.

    >>> size(0), size(1536), size(5 << 30)
    ('0 B', '1.5 KiB', '5.0 GiB')
    """
    value, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{size_bytes} B" if unit == "B" else f"{value:.1f} {unit}"


def dated(document: Any) -> Any:
    """Returns a JSON document that has each moment beside its milliseconds as people read it.

    >>> dated({"created_ms": 1000, "lag_ms": 1})
    {'created_ms': 1000, 'created': '1970-01-01 00:00:01Z', 'lag_ms': 1}
    """
    from clog.storage.config.units import MOMENTS, moment

    if isinstance(document, list):
        return [dated(each) for each in document]
    if not isinstance(document, dict):
        return document
    made: dict[str, Any] = {}
    for name, value in document.items():
        made[name] = dated(value)
        if name in MOMENTS and name.endswith("_ms") and value:
            made[name.removesuffix("_ms")] = moment(value)
    return made
