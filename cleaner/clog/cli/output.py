r"""The output of the command line: by rich for people, as JSON for machines, errors on one line.

Colours are dropped if the output is not a terminal or ``NO_COLOR`` is set; none carries meaning.

*Untrusted text*: keys, values, headers, ids, paths, configs and errors about them come from anyone
who may write to a log. A terminal obeys the control characters in them: it sets its title,
overwrites lines, or answers as if the user typed; and those that change the direction of writing
make one text look like another. So on a terminal each of them except line feed and TAB is shown as
six characters, ``\u001b``, which in JSON is the same string. Files and pipes get it unchanged.
"""

import json
import os
import re
import select
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
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
_REPORT_MS = 60_000
"""How often progress is reported where no bar shows it."""
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters, ends of lines and paragraphs, and overrides and isolates of direction."""

ERRORS_AS: ContextVar[Literal["text", "json"]] = ContextVar("ERRORS_AS", default="text")
"""How errors are printed: lines for people, or one JSON object."""

_HINTS = {
    "not_found": 'check the URL and the name; "clog ls" lists logs',
    "version_expired": '"clog describe" shows the readable versions, "clog verify" what is missing',
    "offset_out_of_range": '"clog describe URL offsets" shows the existing ranges',
    "already_exists": 'check the log with "clog describe"',
    "commit_state_unknown": 'check with "clog describe"; with --producer-id, produce again',
    "unsupported_filesystem": "--single-writer, where no other process ever writes to the log",
    "store_unavailable": "check the URL and its --option settings, then try again",
    "corruption": '"clog verify" shows the extent; delete nothing',
}
"""The next step on the command line, by kind of error, for messages without one."""
NO_ROOM = "free space on the log's disk, or raise its quota"
_IN_SHELL = {
    "open it with Log.open, pass exist_ok=True to open it if it exists": "use it",
    'Log.create or "clog create"': '"clog create"',
    "open with single_writer=True": "give --single-writer",
    "by Log.evolve or clog alter --schema": 'with "clog alter --schema"',
    "(Log.delete_records)": "(clog alter --delete-records)",
    "(Log.give_offsets, clog mirror --end)": "(clog mirror --end)",
    "nest it: storage_options={": "nest it in $CLOG_STORAGE_OPTIONS: {",
}
"""What a remedy in Python is in a shell: messages of the library name the former."""


class SafeFormatter(Formatter):
    """Log messages for standard error, which may be a terminal."""

    def __init__(self, formatter: Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: LogRecord) -> str:
        """Formats a message as the other formatter does."""
        return shown_on(sys.stderr, self._formatter.format(record))


class JsonFormatter(Formatter):
    """Log messages as lines of JSON."""

    def format(self, record: LogRecord) -> str:
        """Returns ``time`` (UTC), ``level``, ``logger``, ``message``; ``error``, if any."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class WarningFormatter(Formatter):
    """Warnings of a command that sets up no logging: lines, or JSON if errors are."""

    def format(self, record: LogRecord) -> str:
        """Formats a message as `ERRORS_AS` says."""
        text = super().format(record)
        if ERRORS_AS.get() == "json":
            text = json.dumps({"warning": {"message": text}}, ensure_ascii=False)
        return shown_on(sys.stderr, text)


@cache
def _safe_console() -> "type[Console]":
    """Makes the class on first use: `clog --help` must not wait for rich."""
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        """Emits its own colours and cursor movements, but none found in the text."""

        def render(
            self, renderable: "RenderableType", options: "ConsoleOptions | None" = None
        ) -> "Iterable[Segment]":
            segments = super().render(renderable, options)
            if not self.is_terminal:
                return segments
            return (s if s.control else Segment(shown(s.text), s.style) for s in segments)

        def on_broken_pipe(self) -> None:
            """Leaves the error to the caller: rich would end the process."""
            raise  # noqa: PLE0704 - rich calls this in its except clause

    return SafeConsole


def stdout() -> "Console":
    """Returns a console on the current standard output: tests and pipes replace it."""
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
    """Returns a table without lines; columns in ``right`` are right-aligned, in ``folds`` wrap."""
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
    """Prints a table on standard output, at least as wide as its columns that do not wrap: a
    truncated number is another number.
    """
    console = stdout()
    wide = console.options.update(max_width=_TABLE_WIDTH_MAX)
    folds = any(not column.no_wrap for column in made.columns)
    needed = console.measure(made, options=wide)
    console.width = max(console.width, needed.minimum if folds else needed.maximum)
    console.print(made)


def say(text: str) -> None:
    """Prints text for people, unwrapped, so that it can be copied and pasted."""
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


def print_error(message: str, kind: str | None = None, hint: str | None = None) -> None:
    """Prints the error on one line, and the next step if there is one, as `ERRORS_AS` says: the
    hint, or that of its kind.
    """
    for python, shell in _IN_SHELL.items():
        message = message.replace(python, shell)
    hint = hint or _HINTS.get(kind or "")
    if ERRORS_AS.get() == "json":
        error = {"kind": str(kind or "failed"), "message": message, "next": hint}
        _write_json(sys.stderr, {"error": {k: v for k, v in error.items() if v}})
        return
    from rich.text import Text

    console = stderr()
    console.print(Text.assemble(("error: ", "bold red"), (message, "red")), soft_wrap=True)
    if hint:
        console.print(Text(f"next: {hint}", style="dim"), soft_wrap=True)


def print_note(text: str) -> None:
    """Prints on standard error a text that is not an error, as `ERRORS_AS` says."""
    if ERRORS_AS.get() == "json":
        _write_json(sys.stderr, {"note": {"message": text}})
    else:
        stderr().print(text, style="dim", soft_wrap=True)


def note_left_out(log: "Log") -> None:
    """Prints which records are left out, if any are, by the newest known version."""
    head = log.handle.tip.head
    stable = {p: head.stable_offset(p) for p in range(head.log.partitions)}
    ends = head.partitions.end
    left = ", ".join(f"{p} from {at}" for p, at in stable.items() if at < ends[p])
    if left:
        print_note(
            f'left out because of open transactions: the records of partitions {left} on; "clog'
            f' describe {log.url} transactions" shows what they wait for'
        )


def progress(*columns: Any, hidden: bool = False) -> "Progress":
    """Returns bars on standard error if that is a terminal; they disappear at the end."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

    console = stderr()
    mine = ("{task.description}", BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    is_off = hidden or not console.is_terminal
    return Progress(*(columns or mine), console=console, transient=True, disable=is_off)


@contextmanager
def tracking(verb: str) -> Iterator[Callable[[Sequence[str]], Iterable[str]]]:
    """Yields a function that yields the given things, and shows a bar while it does."""
    with progress() as shown:
        yield lambda things: shown.track(things, description=verb)


@contextmanager
def counting(verb: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with how much more was done, of ``total`` if it is known."""
    with progress() as shown:
        task = shown.add_task(verb, total=total)
        yield lambda more: shown.advance(task, more)


def each_minute(*, json: bool) -> Callable[[Callable[[], Any], Callable[[], str]], None]:
    """Returns a function that prints a JSON document or else a note, at most once a minute."""
    from clog.storage.env import SystemClock

    clock, reported_ms = SystemClock(), 0

    def emit(document: Callable[[], Any], note: Callable[[], str]) -> None:
        nonlocal reported_ms
        now_ms = clock.monotonic_ms()
        if reported_ms + _REPORT_MS <= now_ms:
            reported_ms = now_ms
            print_json_line(document()) if json else print_note(note())

    return emit


def shown(text: str) -> str:
    r"""Returns the text with its control characters escaped.

    >>> print(shown("\x1b]0;title\x07"))
    \u001b]0;title\u0007
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shown_on(stream: IO[str], text: str) -> str:
    """Returns the text as it is written to a stream: escaped if that is a terminal."""
    return shown(text) if stream.isatty() else text


def write_lines(lines: bytes) -> None:
    r"""Writes lines to standard output immediately; on a terminal escaped, with bytes that are not
    UTF-8 as ``\xff``.
    """
    out = sys.stdout
    if out.isatty():
        out.write(shown(lines.decode(errors="backslashreplace")))
    else:
        out.buffer.write(lines)
    out.flush()


def reader_has_left() -> bool:
    """Returns whether nothing reads standard output any more, and if so closes it permanently."""
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
    """Closes standard output permanently: what is still buffered is discarded."""
    try:
        fd = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, fd)
    os.close(nowhere)


def count(number: int) -> str:
    """Returns a whole number with separated thousands."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Returns a number of things, in words.

    >>> counted(1, "commit"), counted(2000, "commit")
    ('1 commit', '2,000 commits')
    """
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def size(size_bytes: int) -> str:
    """Returns a size in bytes in a unit for people.

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
    """Returns a JSON document that has each moment, beside its milliseconds, as text for people.

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
