"""The configs of a topic, as those of the log that mirrors it. Pure.

Taken over is what somebody set for the topic, and of what the broker has for all topics that which
decides how long records stay: a topic is ``cleanup.policy=delete`` unless it says otherwise, and a
log ``compact``. What has no counterpart is listed, and why.

Not taken over: the type of timestamps. A log with ``LogAppendTime`` would give each record the time
of its own commit, in place of that which it has in the topic.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from clog.bridge.topic import Setting
from clog.storage.config.log_config import (
    DEFINITIONS,
    POINTLESS,
    LogConfig,
    check_known,
    parse_overrides,
)
from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError

STAY: Final = (
    "cleanup.policy",
    "delete.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "retention.bytes",
    "retention.ms",
)
"""Taken over from the broker's defaults, too."""
DEFAULTS: Final = MappingProxyType({"partitioner": "murmur2"})
"""Of a log that is made: after a cut-over, Kafka's keys go on to the partitions they are in."""
_ANOTHER: Final = MappingProxyType(
    {
        "message.timestamp.type": "records keep the times that they have in the topic",
        "compression.type": "the log's own default stays",
        "remote.storage.enable": "all of a log is on its filesystem",
    }
)
"""Why a value is not taken over, of configs whose name means something here."""
_CODECS: Final = MappingProxyType(
    {"uncompressed": "none", "lz4": "lz4", "snappy": "snappy", "zstd": "zstd"}
)


@dataclass(frozen=True, slots=True)
class Taken:
    """Configs of a log.

    Attributes:
        config: as `Log.create` takes them.
        left: those of the topic that have no counterpart, and why.
    """

    config: Mapping[str, str]
    left: Mapping[str, str]


def taken_over(settings: Mapping[str, Setting], own: Mapping[str, str]) -> Taken:
    """Returns the configs of the log for a topic with these; ``own`` are the user's, and win."""
    config: dict[str, str] = {}
    left: dict[str, str] = {}
    for name, setting in sorted(settings.items()):
        if name in own or not (setting.is_own or name in STAY):
            continue
        try:
            found = _counterpart(name, setting.value)
        except InvalidInputError as e:
            left[name] = str(e)
        else:
            if found != LogConfig().as_dict()[name]:
                config[name] = found
    return Taken({**DEFAULTS, **config, **parse_overrides(own)}, left)


def _counterpart(name: str, value: str) -> str:
    """Returns a config of a topic as a log has it, or raises why there is none."""
    if name == "compression.type" and value in _CODECS:
        return _CODECS[value]
    if why := _ANOTHER.get(name):
        raise InvalidInputError(why)
    if why := POINTLESS.get(name):
        raise InvalidInputError(f"it means nothing here: {why}")
    if name not in DEFINITIONS:
        raise InvalidInputError("clog has nothing like it")
    return parse_overrides({name: value})[name]


def users_own(given: Mapping[str, object]) -> dict[str, str]:
    """Returns the user's configs of the log; raises where one would spoil the mirror."""
    for name in given:
        check_known(name)
    own = parse_overrides(given)
    if LogConfig.from_overrides(own).log_append_time:
        raise InvalidInputError(
            "message.timestamp.type=LogAppendTime would give each record the time of its commit in"
            " place of its own; leave it out"
        )
    return own
