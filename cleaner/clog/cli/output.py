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
from collections.abc import Iterable
from contextvars import ContextVar
from datetime import UTC, datetime
from logging import Formatter, LogRecord
from typing import IO, TYPE_CHECKING, Any, Literal

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

if TYPE_CHECKING:
    from rich.table import Table

_TABLE_WIDTH_MAX = 10_000
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


class SafeConsole(Console):
    """A console that adds its own colours and cursor movements, and lets none of others through."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Renders an object as segments of safe text."""
        segments = super().render(renderable, options)
        if not self.is_terminal:
            return segments
        return (s if s.control else Segment(shown(s.text), s.style) for s in segments)

    def on_broken_pipe(self) -> None:
        """Leaves it to whoever runs the command: rich would end the process."""
        raise  # noqa: PLE0704 - rich calls this where it caught the error


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


def stdout() -> Console:
    """Returns a console on standard output as it is now: tests and pipes exchange it."""
    return SafeConsole(highlight=False, emoji=False, markup=False)


def stderr() -> Console:
    """Returns a console on standard error."""
    return SafeConsole(stderr=True, highlight=False, emoji=False, markup=False)


def print_table(table: "Table") -> None:
    """Prints a table on standard output, as wide as it is: a number that is cut is another
    number.
    """
    console = stdout()
    wide = console.options.update(max_width=_TABLE_WIDTH_MAX)
    console.width = max(console.width, console.measure(table, options=wide).maximum)
    console.print(table)


def say(text: str) -> None:
    """Prints text for people on standard output, not wrapped, so that it can be copied and
    pasted.
    """
    stdout().print(text, soft_wrap=True)


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    sys.stdout.write(shown_on(sys.stdout, text) + "\n")


def print_json_line(value: Any) -> None:
    """Prints one line of JSON lines on standard output."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    sys.stdout.write(shown_on(sys.stdout, text) + "\n")


def print_error(message: str, kind: str | None = None) -> None:
    """Prints the error in one line on standard error, and the next step where there is one to
    name; as `ERRORS_AS` says.
    """
    form = ERRORS_AS.get()
    if form == "log":
        logging.getLogger("clog.cli").error(message)
        return
    if form == "json":
        error = {"kind": str(kind or "failed"), "message": message, "next": _HINTS.get(kind or "")}
        text = json.dumps({"error": {k: v for k, v in error.items() if v}}, ensure_ascii=False)
        sys.stderr.write(shown_on(sys.stderr, text) + "\n")
        return
    console = stderr()
    console.print(Text.assemble(("error: ", "bold red"), (message, "red")), soft_wrap=True)
    if hint := _HINTS.get(kind or ""):
        console.print(Text(f"next: {hint}", style="dim"), soft_wrap=True)


def print_note(text: str) -> None:
    """Prints on standard error what is no error; as `ERRORS_AS` says."""
    form = ERRORS_AS.get()
    if form == "log":
        logging.getLogger("clog.cli").info(text)
    elif form == "json":
        line = json.dumps({"note": {"message": text}}, ensure_ascii=False)
        sys.stderr.write(shown_on(sys.stderr, line) + "\n")
    else:
        stderr().print(text, style="dim", soft_wrap=True)


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


def duration(ms: int) -> str:
    """Returns a length of time in its two largest units.

    >>> duration(900), duration(61_000), duration(90_000_000)
    ('900 ms', '1 min 1 s', '1 d 1 h')
    """
    if ms < 1000:
        return f"{ms} ms"
    parts: list[tuple[int, str]] = []
    rest = ms // 1000
    for unit, seconds in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, rest = divmod(rest, seconds)
        if amount or parts:
            parts.append((amount, unit))
        if len(parts) == 2:
            break
    return " ".join(f"{amount} {unit}" for amount, unit in parts if amount)


def moment(time_ms: int) -> str:
    """Returns epoch milliseconds as UTC; beyond the years that a calendar has, the number.

    >>> moment(0)
    '1970-01-01 00:00:00Z'
    """
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
