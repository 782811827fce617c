"""The daemon's config, under the names that a Kafka broker has for it (S45).

Two kinds of names. ``log.cleaner.threads`` and its like are about the process. The others, such as
``log.retention.hours``, are defaults for logs that do not set the config themselves; only those
count here that the cleaner alone reads. What writers must know too is a log's own affair:
a default in this process would not reach them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from clog.storage.config.definitions import (
    BROKER_NAMES,
    DEFINITIONS,
    SUCCESSORS,
    Choice,
    Integer,
    Kind,
    Positive,
    Value,
)
from clog.storage.config.did_you_mean import did_you_mean
from clog.storage.config.log_config import LogConfig, parse_overrides, parse_value
from clog.storage.errors import InvalidInputError
from clog.storage.keys.hashing import ALGORITHMS

OF_THE_CLEANER = frozenset(
    {
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "max.compaction.lag.ms",
        "delete.retention.ms",
        "segment.ms",
        "segment.jitter.ms",
        "retention.ms",
        "retention.bytes",
        "file.delete.delay.ms",
    }
)
"""A log's configs that only the cleaner reads."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A config of the process: its type, its default, what it does."""

    kind: Kind
    default: Value | None
    doc: str


SETTINGS: Mapping[str, Setting] = {
    "log.cleaner.enable": Setting(
        Choice(("true", "false")), "true", "whether logs are compacted; retention goes on without"
    ),
    "log.cleaner.threads": Setting(Integer(1, 1024), 1, "partitions cleaned at once"),
    "log.cleaner.dedupe.buffer.size": Setting(
        Integer(1), 128 << 20, "bytes of all offset maps together"
    ),
    "log.cleaner.io.max.bytes.per.second": Setting(
        Positive(), None, "bytes read and written a second, at most"
    ),
    "log.cleaner.backoff.ms": Setting(
        Integer(0), 15_000, "ms of sleep when there was nothing to clean"
    ),
    "log.retention.check.interval.ms": Setting(
        Integer(1), 300_000, "ms between looks at retention"
    ),
    "log.cleaner.hash.algorithm": Setting(
        Choice(ALGORITHMS), "xxh3_128", "hash of keys; Kafka's is always MD5"
    ),
}
POINTLESS: Mapping[str, str] = {
    "log.cleaner.io.buffer.size": "objects are read by row group",
    "log.cleaner.io.buffer.load.factor": "it is 0.9",
    "log.index.size.max.bytes": "there are no index files",
    "log.flush.interval.messages": "every commit is durable",
    "log.flush.interval.ms": "every commit is durable",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """What holds for the daemon. ``defaults`` are configs by a log's own names."""

    compaction: bool
    threads: int
    dedupe_buffer_bytes: int
    io_bytes_per_second: float | None
    backoff_ms: int
    retention_check_ms: int
    hash_algorithm: str
    defaults: Mapping[str, str] = field(default_factory=dict)


def broker_config(given: Mapping[str, object]) -> BrokerConfig:
    """Reads configs by a broker's names.

    Where several name one thing, as ``log.retention.ms``, ``.minutes`` and ``.hours`` do, the
    finest unit wins, as in Kafka.

    Raises:
        InvalidInputError: a name that is none (the nearest is named), or that does not belong to a
            daemon; a value out of range; defaults that contradict each other.
    """
    values = {name: setting.default for name, setting in SETTINGS.items()}
    defaults: dict[str, str] = {}
    ranks: dict[str, int] = {}
    for name, value in given.items():
        if name in SETTINGS:
            setting = SETTINGS[name]
            values[name] = parse_value(name, setting.kind, value, doc=setting.doc)
        elif name in BROKER_NAMES and (ours := BROKER_NAMES[name][0]) in OF_THE_CLEANER:
            rank = list(DEFINITIONS[ours].broker).index(name)
            parsed = _in_our_unit(name, value)
            if rank < ranks.get(ours, len(BROKER_NAMES)):
                defaults[ours], ranks[ours] = parsed, rank
        else:
            raise InvalidInputError(_refused(name))
    try:
        LogConfig.from_overrides(defaults)
    except InvalidInputError as e:
        raise InvalidInputError(f"the daemon's defaults contradict each other: {e}") from None
    return BrokerConfig(
        compaction=values["log.cleaner.enable"] == "true",
        threads=_integer(values["log.cleaner.threads"]),
        dedupe_buffer_bytes=_integer(values["log.cleaner.dedupe.buffer.size"]),
        io_bytes_per_second=_number(values["log.cleaner.io.max.bytes.per.second"]),
        backoff_ms=_integer(values["log.cleaner.backoff.ms"]),
        retention_check_ms=_integer(values["log.retention.check.interval.ms"]),
        hash_algorithm=str(values["log.cleaner.hash.algorithm"]),
        defaults=defaults,
    )


def _in_our_unit(name: str, value: object) -> str:
    """Returns the canonical text of a default by a broker's name, in the unit of the log's
    config.
    """
    ours, factor = BROKER_NAMES[name]
    if factor != 1:
        given = parse_value(name, Integer(-1), value, doc=DEFINITIONS[ours].doc)
        assert isinstance(given, int)
        value = given if given < 0 else given * factor  # -1 is no limit in every unit
    try:
        return parse_overrides({ours: value})[ours]
    except InvalidInputError as e:
        raise InvalidInputError(f"{name}: {e}") from None


def _refused(name: str) -> str:
    """Returns why a name is no config of the daemon, and which one was probably meant."""
    if name in POINTLESS:
        return f'config "{name}" has no meaning here: {POINTLESS[name]}; leave it out'
    if name in SUCCESSORS and name not in BROKER_NAMES:
        return f'config "{name}" is an old name; today it is {SUCCESSORS[name]}'
    if name in BROKER_NAMES:
        ours = BROKER_NAMES[name][0]
        return (
            f'config "{name}" concerns writers, too, and a default of the cleaner would not reach'
            f" them; set {ours} on each log"
        )
    if name in DEFINITIONS:
        brokers = [b for b in DEFINITIONS[name].broker if name in OF_THE_CLEANER]
        instead = f"; the default of all logs is {brokers[0]} here" if brokers else ""
        return f'config "{name}" is a log\'s own: change it with "clog alter"{instead}'
    valid = [*SETTINGS, *(b for b, (ours, _) in BROKER_NAMES.items() if ours in OF_THE_CLEANER)]
    meant = did_you_mean(name, valid)
    if meant is not None:
        return f'unknown config "{name}"; did you mean {meant}?'
    return f'unknown config "{name}"; valid names are {", ".join(sorted(valid))}'


def _integer(value: object) -> int:
    assert isinstance(value, int)
    return value


def _number(value: object) -> float | None:
    assert value is None or isinstance(value, float)
    return value
