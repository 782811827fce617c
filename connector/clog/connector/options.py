"""Spark's options, all strings, made typed settings.

A name that is not known is refused with the nearest one that is: a misspelled ``startingOffset``
that is silently ignored reads the wrong data. Options that Spark adds for itself are passed over.
Names count without case (Spark lowers them), values keep it.

Not here: whether offsets exist (`offsets`), what a column may be (`schema`).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from clog.connector.location import Location
from clog.connector.option_definitions import (
    FOREIGN,
    NAMES,
    SPARKS_OWN,
    SPARKS_PREFIXES,
)
from clog.storage.errors import OptionError

EARLIEST, LATEST = -2, -1
Position = Literal["earliest", "latest"] | Mapping[int, int]
"""Where to start or end: everywhere alike, or by partition, where -2 is earliest and -1 latest."""

_T = TypeVar("_T")
_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Settings of a read; see `option_definitions` for each."""

    location: Location
    view: Literal["log", "table"]
    starting: Position | None
    ending: Position
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    poll_interval_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    include_headers: bool
    columns: tuple[str, ...] | None
    partitions: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Settings of a write; see `option_definitions` for each."""

    location: Location
    partitions: int | None
    config: Mapping[str, str] = field(default_factory=dict)
    writer_id: str | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Settings for `streamReader` and `reader`.

    Raises:
        OptionError: an option is unknown or has a wrong value, or there is no path.
    """
    given = _Given(options)
    location = given.location()
    return ReadOptions(
        location=location,
        view=given.parsed("view", _choice("log", "table"), "log"),
        starting=given.parsed("startingOffsets", _position(location.name), None),
        ending=given.parsed("endingOffsets", _position(location.name), "latest"),
        fail_on_data_loss=given.parsed("failOnDataLoss", _boolean, default=True),
        max_offsets_per_trigger=given.parsed("maxOffsetsPerTrigger", _positive, None),
        poll_interval_ms=given.parsed("pollInterval", _duration_ms, 1000),
        min_partitions=given.parsed("minPartitions", _positive, None),
        max_records_per_partition=given.parsed("maxRecordsPerPartition", _positive, None),
        include_headers=given.parsed("includeHeaders", _boolean, default=False),
        columns=given.parsed("columns", _names, None),
        partitions=given.parsed("partitions", _partitions, None),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Settings for `streamWriter` and `writer`.

    Raises:
        OptionError: as `read_options`.
    """
    given = _Given(options)
    return WriteOptions(
        location=given.location(),
        partitions=given.parsed("partitions", _positive, None),
        config=given.below("config."),
        writer_id=given.parsed("writerId", _text, None),
        txn_app_id=given.parsed("txnAppId", _text, None),
        txn_version=given.parsed("txnVersion", _natural, None),
    )


class _Given:
    """The options as they were given, names lowered and checked."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        _check_names(self._values)

    def parsed(self, name: str, parse: Callable[[str], _T], default: _T) -> _T:
        """The value of an option, or its default.

        Raises:
            OptionError: the value is wrong; names the option and what is allowed.
        """
        value = self._values.get(name.lower())
        if value is None:
            return default
        try:
            return parse(value.strip())
        except OptionError:
            raise
        except ValueError as e:
            must = f"it must be {e}"
            raise OptionError(f'option "{name}" has the value {_shown(value)}; {must}') from None

    def below(self, prefix: str) -> dict[str, str]:
        found = self._values.items()
        return {name[len(prefix) :]: value for name, value in found if name.startswith(prefix)}

    def location(self) -> Location:
        url = self._values.get("path")
        if "paths" in self._values:
            raise OptionError("several paths were given; a source reads one log: load(path)")
        if not url:
            raise OptionError(
                'option "path" is missing: give the URL of the log, .load("s3://bucket/orders").'
                " Spark's catalog drops the options of a table USING clog; use a temporary view"
                " (CREATE TEMPORARY VIEW orders USING clog OPTIONS (path '…')) instead"
            )
        storage: dict[str, Any] = self.parsed("storage_options", _json_object, {})
        storage |= {name: _loose(v) for name, v in self.below("storage.").items()}
        single = self.parsed("singleWriter", _boolean, default=False)
        location = Location(_absolute(url), json.dumps(storage, sort_keys=True), single)
        topic = self._values.get("topic")
        if topic is not None and topic != location.name:
            raise OptionError(
                f'option "topic" is {_shown(topic)}, but the log at this path is {location.name!r};'
                " a path holds one log: leave topic out, or give the other log's path"
            )
        return location


def _check_names(given: Mapping[str, str]) -> None:
    known = {name.lower() for name in NAMES}
    for name in given:
        if name in known or name in SPARKS_OWN:
            continue
        if name.startswith((*SPARKS_PREFIXES, "config.", "storage.")):
            continue
        if name in FOREIGN or name.startswith("kafka."):
            hint = FOREIGN.get(name, "clog has no broker: leave it out")
            raise OptionError(f'option "{name}" belongs to Spark\'s Kafka source; {hint}')
        from clog.storage.nearest import nearest

        near = nearest(name, [*NAMES, "config.cleanup.policy", "storage.key"])
        remedy = f'did you mean "{near}"?' if near else f"known are {', '.join(NAMES)}"
        raise OptionError(f'unknown option "{name}"; {remedy}')


def _absolute(url: str) -> str:
    # A task may run in another folder than the driver.
    return url if ":" in url else str(Path(url).absolute())


def _shown(value: str) -> str:
    # A value may be a secret given under the wrong name: never whole.
    return repr(value) if len(value) <= 24 else repr(value[:20] + "…")


# Parsers raise ValueError with what the value must be: the message goes on from "it must be ".


def _text(value: str) -> str:
    if not value:
        raise ValueError("a text that is not empty")
    return value


def _choice(*words: Any) -> Callable[[str], Any]:
    def parse(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(" or ".join(words))
        return value.lower()

    return parse


def _boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.lower() == "true"


def _natural(value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise ValueError("a whole number, 0 or more")
    return int(value)


def _positive(value: str) -> int:
    if not (value.isascii() and value.isdigit()) or int(value) == 0:
        raise ValueError("a whole number, 1 or more")
    return int(value)


def _duration_ms(value: str) -> int:
    number = value.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = value[len(number) :].strip()
    if not (number.isascii() and number.isdigit()) or unit not in _UNITS_MS:
        raise ValueError('a time such as "500ms", "10s" or "15m"')
    return int(number) * _UNITS_MS[unit]


def _names(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("names of columns, each once, separated by commas")
    return names


def _partitions(value: str) -> tuple[int, ...]:
    must = 'partition numbers separated by commas, such as "0,2"'
    numbers = [part.strip() for part in value.strip("[]").split(",")]
    if not all(n.isascii() and n.isdigit() for n in numbers):
        raise ValueError(must)
    return tuple(sorted({int(n) for n in numbers}))


def _json_object(value: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        # The value may hold secrets: it must not get into the message through _shown.
        raise OptionError('option "storage_options" is not a JSON object; its value is not shown')
    return parsed


def _loose(value: str) -> Any:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _position(log_name: str) -> Callable[[str], Position]:
    must = (
        'earliest, latest, or JSON by partition such as {"0": 23, "1": -2};'
        " -2 is earliest, -1 latest"
    )

    def parse(value: str) -> Position:
        if value.lower() == "earliest":
            return "earliest"
        if value.lower() == "latest":
            return "latest"
        try:
            parsed = json.loads(value)
        except ValueError:
            raise ValueError(must) from None
        if isinstance(parsed, dict) and list(parsed) == [log_name]:
            parsed = parsed[log_name]  # Kafka's form: by topic first.
        if not isinstance(parsed, dict) or not parsed:
            raise ValueError(must)
        position: dict[int, int] = {}
        for p, offset in parsed.items():
            if not (p.isascii() and p.isdigit()) or type(offset) is not int or offset < EARLIEST:
                raise ValueError(must)
            position[int(p)] = offset
        return dict(sorted(position.items()))

    return parse
