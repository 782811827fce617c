"""What the command line prints: people's output by rich, machines' as JSON, errors in one line.

Colours go when the output is no terminal or ``NO_COLOR`` is set; no meaning rests on them.
"""

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from rich.table import Table

_TABLE_WIDTH_MAX = 10_000

_HINTS = {
    "not_found": 'check the URL, or make the log with "clog create"',
    "version_expired": 'read again; if it is so again, look with "clog verify"',
    "offset_out_of_range": 'see the ranges there are with "clog offsets"',
    "already_exists": 'look at it with "clog describe"',
    "commit_state_unknown": 'look with "clog describe"; with --producer-id, produce again',
    "unsupported_filesystem": "--single-writer, where no other process ever writes to the log",
    "store_unavailable": "check the URL and its --option settings, then try again",
    "unsupported_format": "pip install --upgrade pyspark-clog",
    "corruption": 'find the extent with "clog verify"; delete nothing',
}
"""The next step on the command line, by kind of error, where the message has none."""


def stdout() -> Console:
    """A console on standard output as it is now: tests and pipes exchange it."""
    return Console(highlight=False, emoji=False, markup=False)


def stderr() -> Console:
    """A console on standard error."""
    return Console(stderr=True, highlight=False, emoji=False, markup=False)


def print_table(table: "Table") -> None:
    """A table on standard output, as wide as it is: a number that is cut is another number."""
    console = stdout()
    wide = console.options.update(max_width=_TABLE_WIDTH_MAX)
    console.width = max(console.width, console.measure(table, options=wide).maximum)
    console.print(table)


def say(text: str) -> None:
    """Text for people on standard output, not wrapped: it may be cut from there and pasted."""
    stdout().print(text, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_json_line(value: Any) -> None:
    """One line of JSON lines on standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def print_error(message: str, kind: str | None = None) -> None:
    """The error in one line on standard error, and the next step where there is one to name."""
    console = stderr()
    console.print(Text.assemble(("error: ", "bold red"), (message, "red")), soft_wrap=True)
    if hint := _HINTS.get(kind or ""):
        console.print(Text(f"next: {hint}", style="dim"), soft_wrap=True)


def count(number: int) -> str:
    """A whole number with thousands apart."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "commit"), counted(2000, "commit")
    ('1 commit', '2,000 commits')
    """
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def size(size_bytes: int) -> str:
    """Bytes as people read them.

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
    """A length of time in its two largest units.

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
    """Epoch milliseconds as UTC; beyond the years that a calendar has, the number.

    >>> moment(0)
    '1970-01-01 00:00:00Z'
    """
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
