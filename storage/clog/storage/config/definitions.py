"""The table of a log's configs: names, types, defaults, ranges, and how people write values.

Names, units and defaults are those of Kafka's topic configs, so that what people know carries over;
where a default differs the definition says why. Names and values are part of the format: a log
stores its overrides as ``name -> string``. The cleaner's own settings hold for a process, not for a
log, and stand there.

Times, sizes and moments are written as ``1d``, ``64m``, ``2026-01-31T12:00:00Z``. A bare number is
milliseconds, or bytes. Sizes are powers of 1024. ``m`` is minutes of a time, mebi of a size. What a
config is, its name says: ``….ms`` is a time, ``….bytes`` a size.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType

from clog.storage.views import FORMATS

LONG_MAX = (1 << 63) - 1
_INT_MAX = (1 << 31) - 1
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
ZSTD_LEVEL = 2
"""Leaves a fifth less of half-random values than level 1 at the same speed; level 3, which is
Kafka's default, leaves 2 to 8 % less than this and takes 1.6 times as long.
"""

_DURATIONS = 'a time such as "500ms", "10s", "15m", "12h" or "1d"'
"""What must be given, for messages; `SIZES` and `_MOMENTS`, too."""
SIZES = 'a number of bytes such as "1048576", "512k", "64m" or "1g"'
_MOMENTS = 'milliseconds since 1970, or ISO 8601 such as "2026-01-31T12:00:00Z"'
_UNLIMITED = "unlimited"

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
"""Of milliseconds: 2^63 has as many."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Compression:
    """A codec of ``compression.type``, and its level where it has levels."""

    codec: str
    level: int | None = None


ZSTD = Compression("zstd", ZSTD_LEVEL)
Value = int | float | str | frozenset[str] | tuple[str, ...]
"""A parsed value: integers and floats of numbers, text of a choice, a set of a list, names."""


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
    """One of some words, in any case."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetOf:
    """Any of some words, in any order and case, or none."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """Names in an order, each once, or none."""


Kind = Integer | Ratio | Positive | Choice | SetOf | Names


@dataclass(frozen=True, slots=True)
class Definition:
    """One config.

    Attributes:
        name: Kafka's name, or ours where Kafka has none.
        kind: type and range.
        default: what holds when the log does not set it.
        doc: what it does, with the unit.
        broker: Kafka's broker-level names of the same thing -> factor from their unit to ours, the
            one that takes precedence first.
    """

    name: str
    kind: Kind
    default: Value
    doc: str
    broker: Mapping[str, int] = field(default_factory=dict)

    @property
    def attribute(self) -> str:
        """The name as a Python attribute."""
        return self.name.replace(".", "_")


_ALL = (
    Definition(
        "cleanup.policy",
        SetOf(("compact", "delete")),
        frozenset({"compact"}),  # Kafka's is delete; who wants only that needs no clog
        "what may be removed: superseded records (compact), old ones (delete); empty = nothing",
        {"log.cleanup.policy": 1},
    ),
    Definition(
        "min.cleanable.dirty.ratio",
        Ratio(),
        0.5,
        "a partition is cleaned when its dirty share of the cleanable bytes is above this",
        {"log.cleaner.min.cleanable.ratio": 1},
    ),
    Definition(
        "min.compaction.lag.ms",
        Integer(0),
        0,
        "ms for which a record stays after its timestamp, superseded or not",
        {"log.cleaner.min.compaction.lag.ms": 1},
    ),
    Definition(
        "max.compaction.lag.ms",
        Integer(1),
        LONG_MAX,
        "ms after which a record becomes eligible for cleaning, whatever the dirty ratio",
        {"log.cleaner.max.compaction.lag.ms": 1},
    ),
    Definition(
        "delete.retention.ms",
        Integer(0),
        _DAY_MS,
        "ms for which a tombstone stays after the first pass that met it",
        {"log.cleaner.delete.retention.ms": 1},
    ),
    Definition(
        "segment.bytes",
        Integer(14),  # as Kafka's before 4.0, which asks for 1 MiB: small logs and tests want less
        1 << 30,
        "bytes of records at which the active segment rolls",
        {"log.segment.bytes": 1},
    ),
    Definition(
        "segment.ms",
        Integer(1),
        7 * _DAY_MS,
        "ms after which the active segment rolls",
        {"log.roll.ms": 1, "log.roll.hours": _HOUR_MS},
    ),
    Definition(
        "segment.jitter.ms",
        Integer(0),
        0,
        "maximum random ms taken off segment.ms, so that partitions roll at different times",
        {"log.roll.jitter.ms": 1, "log.roll.jitter.hours": _HOUR_MS},
    ),
    Definition(
        "segment.chunks",
        Integer(1, _INT_MAX),
        1024,
        "chunks at which the active segment rolls, as Kafka's does when its index is full",
    ),
    Definition(
        "retention.ms",
        Integer(-1),
        7 * _DAY_MS,
        "ms after a segment's newest timestamp until it goes, under policy delete; -1 = never",
        {
            "log.retention.ms": 1,
            "log.retention.minutes": 60_000,
            "log.retention.hours": _HOUR_MS,
        },
    ),
    Definition(
        "retention.bytes",
        Integer(-1),
        -1,
        "bytes of a partition above which old segments go, under policy delete; -1 = no limit",
        {"log.retention.bytes": 1},
    ),
    Definition(
        "file.delete.delay.ms",
        Integer(0),
        _DAY_MS,  # Kafka's is 60 s; here planned reads and time travel rest on it (S27)
        "ms for which a replaced data object stays readable",
        {"log.segment.delete.delay.ms": 1},
    ),
    Definition(
        "dead.rows.delay.ms",
        Integer(0),
        7 * _DAY_MS,  # as segment.ms; a part of the bound on erasure (S46)
        "ms for which a few dead rows of a chunk may stay, hidden, until a rewrite removes their"
        " bytes; 0 = rewrite at once",
    ),
    Definition(
        "reader.hold.max.ms",
        Integer(0),
        0,
        "maximum ms for which named readers may keep a tombstone or a version that could go, never"
        " longer than max.compaction.lag.ms; 0 = not at all",
    ),
    Definition(
        "max.message.bytes",
        Integer(0, _INT_MAX),
        1_048_588,
        "largest record accepted, in bytes with its overhead of 12",
        {"message.max.bytes": 1},
    ),
    Definition(
        "message.timestamp.type",
        Choice(("CreateTime", "LogAppendTime")),
        "CreateTime",
        "whether a record's timestamp is the producer's or the time of the commit",
        {"log.message.timestamp.type": 1},
    ),
    Definition(
        "message.timestamp.before.max.ms",
        Integer(0),
        LONG_MAX,
        "ms by which a producer's timestamp may lie before the commit",
        {"log.message.timestamp.before.max.ms": 1},
    ),
    Definition(
        "message.timestamp.after.max.ms",
        Integer(0),
        _HOUR_MS,
        "ms by which a producer's timestamp may lie after the commit",
        {"log.message.timestamp.after.max.ms": 1},
    ),
    Definition(
        "compression.type",
        Choice(("zstd", "lz4", "snappy", "none")),
        "zstd",  # Kafka's is producer: there is none here
        "codec of new data objects",
    ),
    Definition(
        "compression.zstd.level",
        Integer(1, 22),
        ZSTD_LEVEL,  # Kafka's is 3
        "level of compression.type=zstd; a higher one takes longer and leaves fewer bytes",
    ),
    Definition(
        "object.bytes",
        Integer(1, _INT_MAX),
        64 << 20,
        "bytes of records after which a writing task starts another data object",
    ),
    Definition(
        "table.publish",
        SetOf(("none", *FORMATS)),
        frozenset({"none"}),
        "formats in which the cleaner publishes the table for other engines; none = not at all",
    ),
    Definition(
        "table.publish.interval.ms",
        Integer(0),
        60_000,
        "minimum ms between two publications of a log that changes; 0 = each round",
    ),
    Definition(
        "partitioner",
        Choice(("xxh3", "murmur2")),
        "xxh3",
        "how keys are assigned to partitions, fixed when the log is created; murmur2 is Kafka's",
    ),
    Definition(
        "table.key.columns",
        Names(),
        (),
        "names of the key's columns in a typed log; Spark then reads and writes its table as plain"
        " columns: these and the fields of the value",
    ),
)
DEFINITIONS: Mapping[str, Definition] = MappingProxyType({d.name: d for d in _ALL})
"""Every config by name."""
BROKER_NAMES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {broker: (d.name, factor) for d in _ALL for broker, factor in d.broker.items()}
)
"""Kafka's broker-level name -> (our name, factor from its unit to ours)."""
SUCCESSORS: Mapping[str, str] = MappingProxyType(
    {
        "delete.and.compact": "cleanup.policy=compact,delete of each log",
        "log.cleaner.enabled": "log.cleaner.enable of the daemon",
        "log.cleanup.interval.mins": "log.retention.check.interval.ms of the daemon, in ms",
        "log.cleanup.policy": "cleanup.policy of each log",
        "log.file.size": "segment.bytes of each log",
        "log.retention.hours.per.topic": "retention.ms of each log, in ms",
        "log.retention.size": "retention.bytes of each log",
        "log.roll.hours.per.topic": "segment.ms of each log, in ms",
        "log.retention.bytes.per.topic": "retention.bytes of each log",
        "log.segment.bytes.per.topic": "segment.bytes of each log",
    }
)
"""Names from Kafka's past, and names that are often taken for one -> what to set today."""
POINTLESS: Mapping[str, str] = MappingProxyType(
    {
        "flush.messages": "every commit is durable",
        "flush.ms": "every commit is durable",
        "index.interval.bytes": "there are no index files",
        "min.insync.replicas": "the filesystem replicates",
        "preallocate": "nothing is written in place",
        "segment.index.bytes": "there are no index files; segment.chunks rolls in their place",
        "unclean.leader.election.enable": "there are no leaders",
    }
)
"""Kafka's topic configs that mean nothing here -> why."""


def duration_ms(text: str) -> int:
    """Reads a time, in milliseconds.

    >>> duration_ms("1d"), duration_ms("10 seconds"), duration_ms("1.5h")
    (86400000, 10000, 5400000)

    Raises:
        ValueError: it is none, or no whole number of milliseconds.
    """
    return _quantity(text, _UNITS_MS, _DURATIONS)


def size_bytes(text: str) -> int:
    """Reads a number of bytes.

    >>> size_bytes("64m"), size_bytes("1.5 KiB"), size_bytes("7")
    (67108864, 1536, 7)

    Raises:
        ValueError: it is none, or no whole number.
    """
    return _quantity(text, {unit: 1 << shift for unit, shift in _SHIFTS.items()}, SIZES)


def time_ms(text: str) -> int:
    """Reads a moment, in milliseconds since 1970, rounded down; UTC where it names no zone.

    >>> time_ms("1500"), time_ms("1970-01-01T00:00:01.5"), time_ms("1970-01-02")
    (1500, 1500, 86400000)

    Raises:
        ValueError: it is none.
    """
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(_MOMENTS) from None
    since = (when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH
    # Whole arithmetic: a float of microseconds since 1970 is not exact.
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def config_number(name: str, text: str, *, low: int, high: int) -> int | None:
    """Reads a config's number that is written with a unit, or as ``unlimited``; None where its
    name tells of no unit. ``low`` and ``high`` are the smallest and largest value it may have.

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
    """Returns a config's value as people read it, and as it may be given.

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


def must(name: str) -> str:
    """Returns what units a config takes, for messages; empty where it takes none."""
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
