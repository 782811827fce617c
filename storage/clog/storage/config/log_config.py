"""A log's configs, one row each: the overrides, the values in effect, suggestions for wrong names.

Names, units and defaults are those of Kafka's topic configs, so that what people know carries over;
where a default differs, its row says why. Names and values are part of the format: a log stores its
*overrides*, canonical strings by Kafka's names; `LogConfig` has the values in effect with them
(S42: it is made from the head at each use). Configs that contradict each other are refused where
they are combined (S43), an invalid value as soon as it is given. The cleaner's own settings are for
a process, not for a log, and are defined there.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, get_args

from clog.storage.config import units
from clog.storage.config.units import (
    DAY_MS,
    HOUR_MS,
    INT_MAX,
    LONG_MAX,
    ZSTD_LEVEL,
    Choice,
    Compression,
    Integer,
    Kind,
    Names,
    Positive,
    Ratio,
    SetOf,
    Text,
    Value,
)
from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError
from clog.storage.view_formats import FORMATS

_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_SHOWN_MAX = 60
STRATEGY = "compaction.strategy"
OFFSET, TIMESTAMP, HEADER = "offset", "timestamp", "header"
"""The values of ``compaction.strategy``."""
NO_DEFAULTS: Mapping[str, str] = MappingProxyType({})
"""The defaults of a process that sets none (S45)."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One config, from its row in `LogConfig`. ``name`` is Kafka's, or ours if Kafka has none."""

    name: str
    kind: Kind
    default: Value
    doc: str
    broker: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The configs in effect for a log. Each has one row here: its possible values, its default, its
    effect, with the unit, and Kafka's broker-level names for it with the factor from their unit,
    the one that takes precedence first. Its name in Kafka has dots.
    """

    cleanup_policy: Annotated[
        frozenset[str],
        SetOf(("compact", "delete")),
        "what cleaning removes: superseded records (compact), old records (delete); empty ="
        " nothing",
        {"log.cleanup.policy": 1},
    ] = frozenset({"compact"})  # Kafka's is delete; for that alone nobody needs clog
    min_cleanable_dirty_ratio: Annotated[
        float,
        Ratio(),
        "a partition is cleaned when the dirty share of its cleanable bytes exceeds this",
        {"log.cleaner.min.cleanable.ratio": 1},
    ] = 0.5
    min_compaction_lag_ms: Annotated[
        int,
        Integer(0),
        "minimum ms for which a record stays after its timestamp, even if superseded",
        {"log.cleaner.min.compaction.lag.ms": 1},
    ] = 0
    max_compaction_lag_ms: Annotated[
        int,
        Integer(1),
        "ms after which a record becomes eligible for cleaning, whatever the dirty ratio",
        {"log.cleaner.max.compaction.lag.ms": 1},
    ] = LONG_MAX
    compaction_strategy: Annotated[
        str,
        Choice((OFFSET, TIMESTAMP, HEADER)),
        "which record of a key wins: the last one, or the one with the highest timestamp or header",
    ] = OFFSET
    compaction_strategy_header: Annotated[
        str,
        Text(),
        "name of the header that compaction.strategy=header compares: 8 bytes, big-endian",
    ] = ""
    compaction_late: Annotated[
        str,
        Choice(("keep", "drop")),
        "what to do with a record that arrives after a tombstone of a higher order was removed,"
        " if its key has no other record",
    ] = "keep"
    compaction_late_scope: Annotated[
        str,
        Choice(("key", "log")),
        "whether values of the header are comparable only within a key, or also across keys,"
        " which dropping late records requires",
    ] = "key"
    delete_retention_ms: Annotated[
        int,
        Integer(0),
        "minimum ms for which a tombstone stays after the first pass over it",
        {"log.cleaner.delete.retention.ms": 1},
    ] = DAY_MS
    segment_bytes: Annotated[
        int,
        Integer(14),  # as in Kafka before 4.0, which requires 1 MiB: small logs and tests want less
        "bytes of records at which the active segment rolls",
        {"log.segment.bytes": 1},
    ] = 1 << 30
    segment_ms: Annotated[
        int,
        Integer(1),
        "ms after which the active segment rolls",
        {"log.roll.ms": 1, "log.roll.hours": HOUR_MS},
    ] = 7 * DAY_MS
    segment_jitter_ms: Annotated[
        int,
        Integer(0),
        "maximum random ms subtracted from segment.ms, so that partitions roll at different times",
        {"log.roll.jitter.ms": 1, "log.roll.jitter.hours": HOUR_MS},
    ] = 0
    segment_chunks: Annotated[
        int,
        Integer(1, INT_MAX),
        "number of chunks at which the active segment rolls, as Kafka's does when its index is"
        " full",
    ] = 1024
    retention_ms: Annotated[
        int,
        Integer(-1),
        "ms after a segment's newest timestamp until it is deleted, under policy delete; -1 ="
        " never",
        {"log.retention.ms": 1, "log.retention.minutes": 60_000, "log.retention.hours": HOUR_MS},
    ] = 7 * DAY_MS
    retention_bytes: Annotated[
        int,
        Integer(-1),
        "bytes of a partition above which old segments are deleted, under policy delete; -1 = no"
        " limit",
        {"log.retention.bytes": 1},
    ] = -1
    file_delete_delay_ms: Annotated[
        int,
        Integer(0),
        "ms for which a replaced data object stays readable",
        {"log.segment.delete.delay.ms": 1},
    ] = DAY_MS  # Kafka's is 60 s; here planned reads and time travel depend on it (S27)
    dead_rows_delay_ms: Annotated[
        int,
        Integer(0),
        "ms for which a few dead rows of a chunk may stay, hidden, until a rewrite removes their"
        " bytes; 0 = rewrite immediately",
    ] = 7 * DAY_MS  # as segment.ms; part of the bound on erasure (S46)
    reader_hold_max_ms: Annotated[
        int,
        Integer(0),
        "maximum ms for which named readers can delay the removal of a tombstone or a version, at"
        " most max.compaction.lag.ms; 0 = not at all",
    ] = 0
    max_message_bytes: Annotated[
        int,
        Integer(0, INT_MAX),
        "size of the largest record accepted, in bytes, including 12 of overhead",
        {"message.max.bytes": 1},
    ] = 1_048_588
    message_timestamp_type: Annotated[
        str,
        Choice(("CreateTime", "LogAppendTime")),
        "whether a record's timestamp is the producer's or the time of the commit",
        {"log.message.timestamp.type": 1},
    ] = "CreateTime"
    message_timestamp_before_max_ms: Annotated[
        int,
        Integer(0),
        "maximum ms by which a producer's timestamp may precede the commit",
        {"log.message.timestamp.before.max.ms": 1},
    ] = LONG_MAX
    message_timestamp_after_max_ms: Annotated[
        int,
        Integer(0),
        "maximum ms by which a producer's timestamp may follow the commit",
        {"log.message.timestamp.after.max.ms": 1},
    ] = HOUR_MS
    compression_type: Annotated[
        str, Choice(("zstd", "lz4", "snappy", "none")), "codec of new data objects"
    ] = "zstd"  # Kafka's is producer, which does not exist here
    compression_zstd_level: Annotated[
        int,
        Integer(1, 22),
        "level of compression.type=zstd; a higher one is slower and compresses better",
    ] = ZSTD_LEVEL  # Kafka's is 3
    object_bytes: Annotated[
        int,
        Integer(1, INT_MAX),
        "bytes of records after which a writing task starts another data object",
    ] = 64 << 20
    table_publish: Annotated[
        frozenset[str],
        SetOf(("none", *FORMATS)),
        "formats in which the cleaner publishes the table for other engines; none = it does not",
    ] = frozenset({"none"})
    table_publish_interval_ms: Annotated[
        int, Integer(0), "minimum ms between two publications of a changing log; 0 = in each round"
    ] = 60_000
    table_publish_columns: Annotated[
        frozenset[str],
        SetOf(("none", "headers", "timestamp")),
        "what published tables show of each record beside the table's columns; none = nothing",
    ] = frozenset({"none"})
    table_masks: Annotated[
        str,
        Choice(("false", "true")),
        "true: the cleaner records which rows are superseded, as in a published log, so that tables"
        " are read without comparing keys",
    ] = "false"
    partitioner: Annotated[
        str,
        Choice(("xxh3", "murmur2")),
        "how keys are assigned to partitions, fixed when the log is created; murmur2 is Kafka's",
    ] = "xxh3"
    table_key_columns: Annotated[
        tuple[str, ...],
        Names(),
        "names of the key columns of a typed log; Spark then reads and writes its table as plain"
        " columns: these and the fields of the value",
    ] = ()

    @classmethod
    def from_overrides(cls, overrides: Mapping[str, str]) -> "LogConfig":
        """Returns the configs with these overrides, and defaults for the rest.

        Raises:
            InvalidInputError: an override is wrong, or two contradict each other (S43).
        """
        return _from_overrides(tuple(sorted(overrides.items())))

    @staticmethod
    def parsed(given: Mapping[str, object]) -> dict[str, str]:
        """Returns overrides as canonical strings (`parse_overrides`)."""
        return parse_overrides(given)

    @staticmethod
    def why_not(name: str) -> str | None:
        """Returns why a topic's config has no counterpart here; None if it has one."""
        if why := POINTLESS.get(name):
            return f"it has no effect here: {why}"
        return None if name in DEFINITIONS else "clog has no equivalent"

    @property
    def compact(self) -> bool:
        """Whether superseded records are removed, so that every record needs a key (S5)."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether retention by time and size applies (S33)."""
        return "delete" in self.cleanup_policy

    @property
    def published_formats(self) -> list[str]:
        """The formats in which the table is published (S63)."""
        return sorted(self.table_publish - {"none"})

    @property
    def log_append_time(self) -> bool:
        """Whether a record's timestamp is the time of its commit (S9)."""
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def compression(self) -> Compression:
        """The compression of new data objects."""
        is_zstd = self.compression_type == "zstd"
        return Compression(self.compression_type, self.compression_zstd_level if is_zstd else None)

    @property
    def effective_segment_ms(self) -> int:
        """Age at which the active segment rolls: no record stays in it past its deadline (S7)."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms

    @property
    def is_ordered(self) -> bool:
        """Whether a record other than the last one of a key may win (S56)."""
        return self.compaction_strategy != OFFSET

    def as_dict(self) -> dict[str, str]:
        """Returns every config as its canonical string, by Kafka's name."""
        return {name: _text(getattr(self, _attribute(name))) for name in DEFINITIONS}


def _definitions() -> Iterator[Definition]:
    for f in fields(LogConfig):
        _, kind, doc, *broker = get_args(f.type)
        default: Any = f.default
        yield Definition(f.name.replace("_", "."), kind, default, doc, *broker)


DEFINITIONS: Mapping[str, Definition] = MappingProxyType({d.name: d for d in _definitions()})
"""Every config by name."""
BROKER_NAMES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {broker: (d.name, factor) for d in DEFINITIONS.values() for broker, factor in d.broker.items()}
)
"""Kafka's broker-level name -> (our name, factor from their unit to ours)."""
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
"""Names from Kafka's past, and names often mistaken for configs -> what to set today."""
POINTLESS: Mapping[str, str] = MappingProxyType(
    {
        "flush.messages": "every commit is durable",
        "flush.ms": "every commit is durable",
        "index.interval.bytes": "there are no index files",
        "min.insync.replicas": "the filesystem replicates",
        "preallocate": "nothing is written in place",
        "segment.index.bytes": "there are no index files; segment.chunks limits a segment instead",
        "unclean.leader.election.enable": "there are no leaders",
    }
)
"""Kafka's topic configs that mean nothing here -> why."""


def parse_overrides(given: Mapping[str, object]) -> dict[str, str]:
    """Returns the same configs as canonical strings; the values of numbers may be numbers.

    Each is checked on its own (S43). Whether they fit together depends on the log's other configs;
    `LogConfig.from_overrides` checks that.

    >>> parse_overrides({"cleanup.policy": " Delete,compact", "segment.bytes": 1e6})
    {'cleanup.policy': 'compact,delete', 'segment.bytes': '1000000'}
    """
    return {name: _text(_parse(name, value)) for name, value in mapping_of(given).items()}


def mapping_of(given: object) -> Mapping[str, object]:
    """Returns these configs; raises if they are something else, such as a text."""
    if not isinstance(given, Mapping):
        raise InvalidInputError(
            f"config={given!r} is not a mapping; give a dict, such as"
            ' {"cleanup.policy": "delete"}'
        )
    return given


def with_defaults(overrides: Mapping[str, str], defaults: Mapping[str, str]) -> LogConfig:
    """Returns the configs with a log's overrides and, for the rest, a process's own defaults (S45).
    Defaults that contradict the log's configs are ignored.
    """
    try:
        return LogConfig.from_overrides({**defaults, **overrides})
    except InvalidInputError:
        return LogConfig.from_overrides({**fitting_defaults(overrides, defaults), **overrides})


def fitting_defaults(overrides: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Returns the defaults that apply to a log: those that it does not set itself and that do not
    contradict what it sets (S43, S45).
    """
    fitting: dict[str, str] = {}
    for name in sorted(defaults.keys() - overrides.keys()):
        tried = {**fitting, name: defaults[name]}
        try:
            LogConfig.from_overrides({**tried, **overrides})
        except InvalidInputError:
            continue
        fitting = tried
    return fitting


def check_known(name: str) -> None:
    """Raises InvalidInputError, with the nearest name, if there is no such config."""
    if name not in DEFINITIONS:
        raise InvalidInputError(_unknown(name, None))


def did_you_mean(name: str, valid: Iterable[str]) -> str | None:
    """Returns the valid name that was probably meant; None if none is near.

    Case and separators are ignored, so a Python or Java spelling finds the name.

    >>> did_you_mean("minCompactionLag", ["min.compaction.lag.ms", "max.compaction.lag.ms"])
    'min.compaction.lag.ms'
    """
    import difflib

    plain = {_plain(candidate): candidate for candidate in sorted(valid)}
    close = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.7)
    return plain[close[0]] if close else None


def _attribute(name: str) -> str:
    return name.replace(".", "_")


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


@lru_cache(maxsize=64)  # each append calls it, and a log has few sets of configs in its life
def _from_overrides(overrides: tuple[tuple[str, str], ...]) -> LogConfig:
    parsed: dict[str, Any] = {_attribute(name): _parse(name, text) for name, text in overrides}
    config = LogConfig(**parsed)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidInputError(
            f"min.compaction.lag.ms={config.min_compaction_lag_ms} is above"
            f" max.compaction.lag.ms={config.max_compaction_lag_ms}; lower the first or raise the"
            " second"
        )
    if "none" in config.table_publish and config.published_formats:
        raise InvalidInputError(
            f"table.publish={_text(config.table_publish)} has both none and a format; leave one out"
        )
    if "none" in config.table_publish_columns and len(config.table_publish_columns) > 1:
        raise InvalidInputError(
            f"table.publish.columns={_text(config.table_publish_columns)} has both none and a"
            " column; leave one out"
        )
    if problem := _order_problem(config):
        raise InvalidInputError(problem)
    return config


def _order_problem(config: LogConfig) -> str:
    """Returns what contradicts the order of records, in words; empty if nothing does (S56)."""
    strategy, header = config.compaction_strategy, config.compaction_strategy_header
    late, scope = config.compaction_late, config.compaction_late_scope
    if bool(header) != (strategy == HEADER):
        return (
            f'compaction.strategy={strategy} and compaction.strategy.header="{header}" do not go'
            " together: give the name of a header with the strategy header, and only with it"
        )
    if late == "drop" and not config.is_ordered:
        return "compaction.late=drop needs compaction.strategy=timestamp or header"
    if scope == "log" and strategy != HEADER:
        return "compaction.late.scope=log needs compaction.strategy=header"
    if late == "drop" and strategy == HEADER and scope != "log":
        return (
            "compaction.late=drop needs values that are comparable across keys, such as a"
            " source's LSN; if each key has its own sequence, the first record of a new key would"
            " be dropped; confirm with compaction.late.scope=log, or keep late records"
        )
    if config.is_ordered and config.delete:
        return (
            f"compaction.strategy={strategy} is refused with cleanup.policy=delete: retention"
            " could remove the winning record and bring an older one back"
        )
    if strategy == TIMESTAMP and config.log_append_time:
        return (
            "compaction.strategy=timestamp is refused with message.timestamp.type=LogAppendTime,"
            " which orders records by offset; use the strategy offset, or CreateTime"
        )
    if strategy == TIMESTAMP and config.message_timestamp_after_max_ms > DAY_MS:
        return (
            "compaction.strategy=timestamp is refused with"
            f" message.timestamp.after.max.ms={config.message_timestamp_after_max_ms}: a record"
            f" from the future would win until then; allowed: up to {DAY_MS} (a day)"
        )
    return ""


ORDER_CONFIGS = (
    "compaction.strategy",
    "compaction.strategy.header",
    "compaction.late",
    "compaction.late.scope",
)


def order_text(overrides: Mapping[str, str]) -> str:
    """Returns in one text what decides which record of a key is shown; empty: the last one."""
    return "|".join(f"{name}={overrides[name]}" for name in ORDER_CONFIGS if name in overrides)


def without_idle(overrides: Mapping[str, str]) -> dict[str, str]:
    """Returns the overrides without those of the order of records that have their default:
    releases that do not know these names can read a log as long as it does not have them.
    """
    idle = {name: _text(DEFINITIONS[name].default) for name in ORDER_CONFIGS}
    return {name: text for name, text in overrides.items() if idle.get(name) != text}


def _parse(name: str, value: object) -> Value:
    definition = DEFINITIONS.get(name)
    if definition is None:
        raise InvalidInputError(_unknown(name, value))
    return parse_value(name, definition.kind, value, doc=definition.doc)


def parse_value(name: str, kind: Kind, value: object, *, doc: str) -> Value:
    """Reads a value of a config of a log or a process. If the config's name ends with a unit, such
    as ``segment.ms``, the value may be text with another unit (`units`).

    Raises:
        InvalidInputError: it is out of range (S43).
    """
    try:
        return _PARSERS[type(kind)](kind, _without_unit(name, kind, value))
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"config {name}={_shown(value)} is refused; allowed: {_allowed(kind)}"
            f"{units.must(name)} ({doc})"
        ) from None


def _without_unit(name: str, kind: Kind, value: object) -> object:
    if not isinstance(value, str) or not isinstance(kind, Integer | Positive) or _is_number(value):
        return value
    low, high = (kind.low, kind.high) if isinstance(kind, Integer) else (0, LONG_MAX)
    number = units.config_number(name, value, low=low, high=high)
    return value if number is None else number


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parse_integer(kind: Integer, value: object) -> int:
    """Reads an integer, such as 1e9, but not True; raises TypeError or ValueError."""
    if isinstance(value, str):
        if not _INTEGER.fullmatch(value.strip()):
            raise ValueError
        number = int(value)
    elif isinstance(value, bool):
        raise TypeError
    elif isinstance(value, float):
        if not value.is_integer():
            raise ValueError
        number = int(value)
    else:
        number = operator.index(value)  # type: ignore[arg-type] # raises TypeError
    if not kind.low <= number <= kind.high:
        raise ValueError
    return number


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    return float(value)


def _parse_ratio(_: Ratio, value: object) -> float:
    number = _number(value)
    if not 0 <= number <= 1:  # false for NaN, too
        raise ValueError
    return math.fabs(number)  # no "-0.0"


def _parse_positive(_: Positive, value: object) -> float:
    number = _number(value)
    if not number > 0:
        raise ValueError
    return number


def _parse_choice(kind: Choice, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return _word(kind.words, value)


def _parse_set(kind: SetOf, value: object) -> frozenset[str]:
    if isinstance(value, str):
        words: Iterable[object] = value.split(",") if value.strip() else ()
    elif isinstance(value, list | tuple | set | frozenset):
        words = value
    else:
        raise TypeError
    return frozenset(_word(kind.words, str(word)) for word in words)


def _parse_names(_: Names, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",") if value.strip() else ()
    if not isinstance(value, list | tuple):
        raise TypeError
    names = tuple(str(name).strip() for name in value)
    if not all(names) or any("," in name for name in names) or len(set(names)) < len(names):
        raise ValueError
    return names


def _parse_text(_: Text, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # ValueError for a lone surrogate.
    return value


def _word(words: tuple[str, ...], given: str) -> str:
    found = {word.lower(): word for word in words}.get(given.strip().lower())
    if found is None:
        raise ValueError
    return found


_PARSERS: dict[type[Kind], Callable[[Any, object], Value]] = {
    Integer: _parse_integer,
    Ratio: _parse_ratio,
    Positive: _parse_positive,
    Choice: _parse_choice,
    SetOf: _parse_set,
    Names: _parse_names,
    Text: _parse_text,
}


def _text(value: Value) -> str:
    """Returns the canonical string, which reads back as the same value."""
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _allowed(kind: Kind) -> str:
    match kind:
        case Integer(low, high):
            return f"integers from {low} to {high}"
        case Ratio():
            return "numbers from 0 to 1"
        case Positive():
            return "numbers above 0"
        case Choice(words):
            return ", ".join(words)
        case SetOf(words):
            return f"any of {', '.join(words)}, separated by commas, or nothing"
        case Names():
            return "names, each once, separated by commas, or nothing"
        case Text():
            return "a text, or nothing"


def _unknown(name: str, value: object) -> str:
    """Returns the message about a name that is not a config (S45)."""
    text = f"unknown config {_shown(name)}"
    if name in SUCCESSORS:
        return f"{text}, an old name; use {SUCCESSORS[name]}"
    if name in POINTLESS:
        return f"{text}: it has no effect here: {POINTLESS[name]}; leave it out"
    if name in BROKER_NAMES:
        ours, factor = BROKER_NAMES[name]
        text += f" (a broker's name); did you mean {ours}?"
        if factor == 1:
            return text
        text += " its unit is ms"
        try:
            given = _parse_integer(Integer(1), value)
        except (TypeError, ValueError):
            return f"{text}: multiply by {factor}"
        return f"{text}: {given} x {factor} = {given * factor}"
    if (meant := did_you_mean(name, [*DEFINITIONS, *BROKER_NAMES])) is not None:
        return f"{text}; did you mean {BROKER_NAMES.get(meant, (meant,))[0]}?"
    return f"{text}; valid names are {', '.join(sorted(DEFINITIONS))}"


def _shown(value: object) -> str:
    shown = f'"{value}"' if isinstance(value, str) else repr(value)
    return shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}…"
