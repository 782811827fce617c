"""The kinds of values of configs, and how people write times, sizes and moments.

They are written as ``1d``, ``64m``, ``2026-01-31T12:00:00Z``. A bare number is milliseconds or
bytes. Sizes use powers of 1024. ``m`` means minutes in a time and mebi in a size. The name of a
config says which one it is: ``….ms`` is a time, ``….bytes`` a size. This is the same for the
configs of logs (`log_config`) and for the settings of processes.
"""

import re
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from clog.storage.env import dataclass

LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
ZSTD_LEVEL = 2
"""Half-random values become a fifth smaller than with level 1, at the same speed. Level 3, Kafka's
default, makes them another 2 to 8 % smaller and takes 1.6 times as long.
"""

_DURATIONS = 'a time such as "500ms", "10s", "15m", "12h" or "1d"'
"""What to give, for messages, like `SIZES` and `_MOMENTS`."""
SIZES = 'a number of bytes such as "1048576", "512k", "64m" or "1g"'
_MOMENTS = 'milliseconds since 1970, or ISO 8601 such as "2026-01-31T12:00:00Z"'
_UNLIMITED = "unlimited"
MOMENTS = frozenset(
    [
        "committed_ms",
        "completed_ms",
        "created_ms",
        "delete_horizon_ms",
        "expires_ms",
        "held_until_ms",
        "largest_timestamp",
        "modified_ms",
        "requested_ms",
        "since_ms",
        "started_ms",
        "time_ms",
        "until_ms",
    ]
)
"""Fields shown to people that are times in ms since 1970; other fields in ms are durations."""

_UNITS_MS = {
    **dict.fromkeys(("", "ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400_000),
}
_SHIFTS = {
    **dict.fromkeys(("", "b"), 0),
    **{unit + end: 10 * i for i, unit in enumerate("kmgt", 1) for end in ("", "b", "ib")},
}
_SHOWN_MS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
_SHOWN_BYTES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_QUANTITY = re.compile(r"(\d{1,30}(?:\.\d{1,30})?) *([a-z]*)", re.ASCII)
_DIGITS_MAX = 19
"""The most digits of milliseconds, as 2^63 has."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Compression:
    """A codec of ``compression.type``, and its level if it has levels."""

    codec: str
    level: int | None = None


ZSTD = Compression("zstd", ZSTD_LEVEL)
Value = int | float | str | frozenset[str] | tuple[str, ...]
"""A parsed value: numbers are integers or floats, choices text, sets frozensets, names tuples."""


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number in ``[low, high]``, both included."""

    low: int
    high: int = LONG_MAX


@dataclass(frozen=True, slots=True)
class Ratio:
    """A real number in ``[0, 1]``."""


@dataclass(frozen=True, slots=True)
class Positive:
    """A real number above 0."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these words, in any case."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetOf:
    """Any of these words, in any order and case, or none."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """Names in an order, each once, or none."""


@dataclass(frozen=True, slots=True)
class Text:
    """Any text, or none."""


Kind = Integer | Ratio | Positive | Choice | SetOf | Names | Text


def duration_ms(text: str) -> int:
    """Reads a duration, in milliseconds.

    >>> duration_ms("1d"), duration_ms("10 seconds"), duration_ms("1.5h")
    (86400000, 10000, 5400000)

    Raises:
        ValueError: it is not a duration, or not a whole number of milliseconds.
    """
    return _quantity(text, _UNITS_MS, _DURATIONS)


def size_bytes(text: str) -> int:
    """Reads a number of bytes.

    >>> size_bytes("64m"), size_bytes("1.5 KiB"), size_bytes("7")
    (67108864, 1536, 7)

    Raises:
        ValueError: it is not a size, or not a whole number of bytes.
    """
    return _quantity(text, {unit: 1 << shift for unit, shift in _SHIFTS.items()}, SIZES)


def time_ms(text: str) -> int:
    """Reads a moment, in milliseconds since 1970, rounded down; UTC if it names no zone.

    >>> time_ms("1500"), time_ms("1970-01-01T00:00:01.5"), time_ms("1970-01-02")
    (1500, 1500, 86400000)

    Raises:
        ValueError: it is not a moment.
    """
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(_MOMENTS) from None
    since = (when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH
    # In integers: a float of microseconds since 1970 is not exact.
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def config_number(name: str, text: str, *, low: int, high: int) -> int | None:
    """Reads a config's number that is written with a unit, or as ``unlimited``; returns None if the
    config's name has no unit. ``low`` and ``high`` are its smallest and largest allowed value.

    >>> config_number("segment.ms", "1d", low=1, high=(1 << 63) - 1)
    86400000
    >>> config_number("retention.bytes", "unlimited", low=-1, high=(1 << 63) - 1)
    -1

    Raises:
        ValueError: it has a unit that does not fit.
    """
    if not _is_time(name) and not _is_size(name):
        return None
    if text.strip().lower() == _UNLIMITED:
        return -1 if low == -1 else high
    return duration_ms(text) if _is_time(name) else size_bytes(text)


def config_text(name: str, value: str) -> str:
    """Returns a config's value as people read it, in a form that may also be given.

    >>> config_text("segment.ms", "604800000"), config_text("retention.bytes", "-1")
    ('7d', 'unlimited')
    >>> config_text("max.message.bytes", "1048588"), config_text("cleanup.policy", "compact")
    ('1048588', 'compact')
    """
    if not (_is_time(name) or _is_size(name)) or not value.removeprefix("-").isdigit():
        return value
    number = int(value)
    if number in (-1, (1 << 63) - 1):
        return _UNLIMITED
    for unit, factor in _SHOWN_MS if _is_time(name) else _SHOWN_BYTES:
        if number and number % factor == 0:
            return f"{number // factor}{unit}"
    return f"{number}ms" if _is_time(name) and number else value


def duration(ms: int) -> str:
    """Returns a duration in its two largest units.

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
    """Returns epoch milliseconds as text in UTC, or as a number outside the calendar's years.

    >>> moment(0)
    '1970-01-01 00:00:00Z'
    """
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def time_beside(name: str, value: Any) -> str:
    """Returns the text to add after the value of a field that is a time in ms; empty for others.

    >>> time_beside("until_ms", 1000), time_beside("lag_ms", 61_000), time_beside("lag_ms", 7)
    (' (1970-01-01 00:00:01Z)', ' (1 min 1 s)', '')
    """
    if value and name in MOMENTS:
        return f" ({moment(value)})"
    is_long = value and name.endswith("_ms") and value >= 1000
    return f" ({duration(value)})" if is_long else ""


def with_times(value: Any) -> str:
    """Returns a value's repr, in which each time in milliseconds is followed by a readable form."""
    held = ((f.name, getattr(value, f.name)) for f in fields(value) if f.repr)
    shown = (f"{name}={one!r}{time_beside(name, one)}" for name, one in held)
    return f"{type(value).__qualname__}({', '.join(shown)})"


def must(name: str) -> str:
    """Returns which units a config takes, for messages; empty if it takes none."""
    if _is_time(name):
        return f", or {_DURATIONS}"
    return f", or {SIZES}" if _is_size(name) else ""


def _quantity(text: str, units: dict[str, int], must: str) -> int:
    match = _QUANTITY.fullmatch(text.strip().lower())
    if match is None or match[2] not in units:
        raise ValueError(must)
    whole, _, fraction = match[1].partition(".")
    scaled = int(whole + fraction) * units[match[2]]
    if scaled % 10 ** len(fraction):
        raise ValueError(must)
    return int(scaled // 10 ** len(fraction))


def _is_time(name: str) -> bool:
    return name.endswith(".ms")


def _is_size(name: str) -> bool:
    return "bytes" in name.split(".") or name.endswith("buffer.size")
