"""A log's configs: reads what was given, knows what holds, and what a wrong name was meant to be.

A log stores its *overrides*, canonical strings by Kafka's names; `LogConfig` is what holds with
them (S42: it is made anew from the head at each use). Configs that contradict each other are
refused where they come together (S43), one that is wrong in itself as soon as it is given.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from clog.storage.config import definitions
from clog.storage.config.definitions import (
    BROKER_NAMES,
    DEFINITIONS,
    LONG_MAX,
    POINTLESS,
    SUCCESSORS,
    Choice,
    Compression,
    Integer,
    Kind,
    Names,
    Positive,
    Ratio,
    SetOf,
    Value,
)
from clog.storage.errors import InvalidInputError

_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_SHOWN_MAX = 60
NO_DEFAULTS: Mapping[str, str] = MappingProxyType({})
"""Of a process that has none of its own (S45)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The configs that hold for a log; the fields are those of `DEFINITIONS`, units as there."""

    cleanup_policy: frozenset[str]
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    segment_chunks: int
    retention_ms: int
    retention_bytes: int
    file_delete_delay_ms: int
    dead_rows_delay_ms: int
    reader_hold_max_ms: int
    max_message_bytes: int
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    compression_type: str
    compression_zstd_level: int
    object_bytes: int
    table_publish: frozenset[str]
    table_publish_interval_ms: int
    partitioner: str
    table_key_columns: tuple[str, ...]

    @classmethod
    def from_overrides(cls, overrides: Mapping[str, str]) -> "LogConfig":
        """Returns what holds with these overrides, defaults for the rest.

        Raises:
            InvalidInputError: an override that is wrong, or two that contradict each other (S43).
        """
        return _from_overrides(tuple(sorted(overrides.items())))

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
        """As what the table is published (S63)."""
        return sorted(self.table_publish - {"none"})

    @property
    def log_append_time(self) -> bool:
        """Whether a record's timestamp is the time of its commit (S9)."""
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def compression(self) -> Compression:
        """How new data objects are compressed."""
        is_zstd = self.compression_type == "zstd"
        return Compression(self.compression_type, self.compression_zstd_level if is_zstd else None)

    @property
    def effective_segment_ms(self) -> int:
        """Age at which the active segment rolls: no record waits in it past its deadline (S7)."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms

    def as_dict(self) -> dict[str, str]:
        """Returns every config as its canonical string, by Kafka's name."""
        return {name: _text(getattr(self, d.attribute)) for name, d in DEFINITIONS.items()}


def parse_overrides(given: Mapping[str, object]) -> dict[str, str]:
    """Returns the same configs as canonical strings; numbers may be numbers.

    Each is checked by itself: whether they fit together depends on what else the log has, so that
    is for `LogConfig.from_overrides`.

    Raises:
        InvalidInputError: a name that is no config, or a value out of its range (S43).

    >>> parse_overrides({"cleanup.policy": " Delete,compact", "segment.bytes": 1e6})
    {'cleanup.policy': 'compact,delete', 'segment.bytes': '1000000'}
    """
    return {name: _text(_parse(name, value)) for name, value in given.items()}


def with_defaults(overrides: Mapping[str, str], defaults: Mapping[str, str]) -> LogConfig:
    """Returns what holds with a log's overrides, and below them with a process's own defaults
    (S45). A default that contradicts the log's configs does not count, the others do.

    Raises:
        InvalidInputError: the overrides are wrong.
    """
    try:
        return LogConfig.from_overrides({**defaults, **overrides})
    except InvalidInputError:
        return LogConfig.from_overrides({**fitting_defaults(overrides, defaults), **overrides})


def fitting_defaults(overrides: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Returns the defaults that hold for a log: it does not set the config itself, and they do not
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
    """Raises if there is no such config.

    Raises:
        InvalidInputError: there is none; the nearest is named.
    """
    if name not in DEFINITIONS:
        raise InvalidInputError(_unknown(name, None))


def did_you_mean(name: str, valid: Iterable[str]) -> str | None:
    """Returns the valid name that was probably meant, or None when none is near.

    Case and separators do not count, so a Python or Java spelling finds the name.

    >>> did_you_mean("minCompactionLag", ["min.compaction.lag.ms", "max.compaction.lag.ms"])
    'min.compaction.lag.ms'
    """
    import difflib

    plain = {_plain(candidate): candidate for candidate in sorted(valid)}
    close = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.7)
    return plain[close[0]] if close else None


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


@lru_cache(maxsize=64)  # each append asks, and a log has few sets of configs in its life
def _from_overrides(overrides: tuple[tuple[str, str], ...]) -> LogConfig:
    values: dict[str, Any] = {d.attribute: d.default for d in DEFINITIONS.values()}
    for name, text in overrides:
        parsed = _parse(name, text)
        values[DEFINITIONS[name].attribute] = parsed
    config = LogConfig(**values)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidInputError(
            f"min.compaction.lag.ms={config.min_compaction_lag_ms} is above"
            f" max.compaction.lag.ms={config.max_compaction_lag_ms}; lower the first or raise the"
            " second"
        )
    if "none" in config.table_publish and config.published_formats:
        raise InvalidInputError(
            f"table.publish={_text(config.table_publish)} says both none and a format; leave one"
            " out"
        )
    return config


def _parse(name: str, value: object) -> Value:
    definition = DEFINITIONS.get(name)
    if definition is None:
        raise InvalidInputError(_unknown(name, value))
    return parse_value(name, definition.kind, value, doc=definition.doc)


def parse_value(name: str, kind: Kind, value: object, *, doc: str) -> Value:
    """Reads a value of a config, log's or process's; of one whose name ends with its unit, such
    as ``segment.ms``, also text with another unit (`definitions`).

    Raises:
        InvalidInputError: it is out of range (S43).
    """
    try:
        return _PARSERS[type(kind)](kind, _without_unit(name, kind, value))
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"config {name}={_shown(value)} is refused; allowed: {_allowed(kind)}"
            f"{definitions.must(name)} ({doc})"
        ) from None


def _without_unit(name: str, kind: Kind, value: object) -> object:
    if not isinstance(value, str) or not isinstance(kind, Integer | Positive) or _is_number(value):
        return value
    low, high = (kind.low, kind.high) if isinstance(kind, Integer) else (0, LONG_MAX)
    number = definitions.config_number(name, value, low=low, high=high)
    return value if number is None else number


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parse_integer(kind: Integer, value: object) -> int:
    """Reads an integer: 1e9 is one, True is none. This and its siblings raise TypeError or
    ValueError.
    """
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


def _parse_ratio(_: Ratio, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    number = float(value)
    if not 0 <= number <= 1:  # NaN is not either
        raise ValueError
    return math.fabs(number)  # no "-0.0"


def _parse_positive(_: Positive, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    number = float(value)
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


def _word(words: tuple[str, ...], given: str) -> str:
    by_lower = {word.lower(): word for word in words}
    try:
        return by_lower[given.strip().lower()]
    except KeyError:
        raise ValueError from None


_PARSERS: dict[type[Kind], Callable[[Any, object], Value]] = {
    Integer: _parse_integer,
    Ratio: _parse_ratio,
    Positive: _parse_positive,
    Choice: _parse_choice,
    SetOf: _parse_set,
    Names: _parse_names,
}


def _text(value: Value) -> str:
    """Returns the canonical string; reads back as the same value."""
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


def _unknown(name: str, value: object) -> str:
    """Returns what to say of a name that is no config (S45)."""
    text = f"unknown config {_shown(name)}"
    if name in SUCCESSORS:
        return f"{text}, an old name; today it is {SUCCESSORS[name]}"
    if name in POINTLESS:
        return f"{text}: it has no meaning here, {POINTLESS[name]}; leave it out"
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
