"""Spark's options, all strings, made typed settings.

An unknown name is refused, and the error suggests the nearest valid one: a misspelled
``startingOffset`` that was silently ignored would read the wrong data. Options that Spark adds for
itself are passed over. Names are matched regardless of case (Spark lowers them); values keep
theirs.

Not here: whether offsets exist (`offsets`), what a column may be (`schema`).
"""

import json
import os.path
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from clog.connector.options import parsing as values
from clog.connector.options.definitions import (
    FOREIGN,
    FOREIGN_PREFIXES,
    NAMES,
    SPARKS_OWN,
    SPARKS_PREFIXES,
)
from clog.connector.options.location import Location
from clog.connector.options.parsing import Position, Since, Times
from clog.storage.config import units
from clog.storage.errors import OptionError

_T = TypeVar("_T")


MAX_TRIGGER_DELAY_MS = 900_000
"""Default of ``maxTriggerDelay``, as in Spark's Kafka source."""
ROW_TEXTS = "__rowTexts"
"""An option of `upsert` alone: ``key`` and ``value`` are rows, of which the task makes texts."""


_ISOLATION: tuple[Literal["read_committed"], Literal["read_uncommitted"]] = (
    "read_committed",
    "read_uncommitted",
)


@dataclass(frozen=True, slots=True)
class Admission:
    """The limits of a stream's batches; None: no limit.

    ``max_bytes`` counts bytes of records, uncompressed. ``max_delay_ms`` bounds the wait for
    ``min_offsets``.
    """

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = MAX_TRIGGER_DELAY_MS
    max_bytes: int | None = None

    @property
    def is_limited(self) -> bool:
        """Whether there is anything to decide."""
        return not (self.max_offsets is self.min_offsets is self.max_bytes is None)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Settings of a read; see `definitions` for each."""

    location: Location
    view: Literal["log", "table", "latest"]
    as_of_version: int | None
    as_of_ms: int | None
    starting: Position | Times | Since | None
    ending: Position | Times | None
    fail_on_data_loss: bool
    admission: Admission
    poll_interval_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    include_headers: bool
    columns: tuple[str, ...] | None
    partitions: tuple[int, ...] | None
    keys: tuple[bytes, ...] | None = field(repr=False)
    log_id: str | None = None
    reader_id: str | None = None
    reader_hold_ms: int = 0
    uncommitted: bool = False


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Settings of a write; see `definitions` for each."""

    location: Location
    partitions: int | None
    config: Mapping[str, str] = field(default_factory=dict)
    writer_id: str | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None
    fail_on_changed_batch: bool | None = None
    key_columns: tuple[str, ...] | None = None
    log_id: str | None = None
    row_texts: bool = False


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Reads the settings for `streamReader` and `reader`.

    Raises:
        OptionError: an option is unknown or has a wrong value, or there is no path.
    """
    given = _Given(options)
    location = given.location()
    isolation = given.parsed("isolation", values.choice(*_ISOLATION), _ISOLATION[0])
    uncommitted = isolation != _ISOLATION[0]
    view: Literal["log", "table", "latest"]
    view = given.parsed("view", values.choice("log", "table", "latest"), "log")
    if uncommitted and view != "log":
        raise OptionError(
            f'option "isolation" is read_uncommitted, but view={view} shows what is committed'
            " alone; leave one of them out"
        )
    return ReadOptions(
        location=location,
        view=view,
        as_of_version=given.parsed("asOfVersion", values.natural, None),
        as_of_ms=given.parsed("asOfTimestamp", units.time_ms, None),
        starting=_starting(given, location.name),
        ending=_ending(given, location.name),
        fail_on_data_loss=given.parsed("failOnDataLoss", values.boolean, default=True),
        admission=_admission(given),
        poll_interval_ms=given.parsed("pollInterval", units.duration_ms, 1000),
        min_partitions=given.parsed("minPartitions", values.positive, None),
        max_records_per_partition=given.parsed("maxRecordsPerPartition", values.positive, None),
        include_headers=given.parsed("includeHeaders", values.boolean, default=False),
        columns=given.parsed("columns", values.names, None),
        partitions=given.parsed("partitions", values.partitions, None),
        keys=_keys(given),
        log_id=given.parsed("logId", values.text, None),
        reader_id=given.parsed("readerId", values.reader_name, None),
        reader_hold_ms=given.parsed("readerHold", units.duration_ms, 0),
        uncommitted=uncommitted,
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Reads the settings for `streamWriter` and `writer`.

    Raises:
        OptionError: as `read_options`.
    """
    given = _Given(options)
    return WriteOptions(
        location=given.location(),
        partitions=given.parsed("partitions", values.positive, None),
        config=given.below("config."),
        writer_id=given.parsed("writerId", values.text, None),
        txn_app_id=given.parsed("txnAppId", values.text, None),
        txn_version=given.parsed("txnVersion", values.natural, None),
        fail_on_changed_batch=given.parsed("failOnChangedBatch", values.boolean, default=None),
        key_columns=given.parsed("keyColumns", values.names, None),
        log_id=given.parsed("logId", values.text, None),
        row_texts=given.parsed(ROW_TEXTS, values.boolean, default=False),
    )


class _Given:
    """The options as they were given, names lowered and checked."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        _check_names(self._values)

    def parsed(self, name: str, parse: Callable[[str], _T], default: _T) -> _T:
        """Returns the value of an option, or its default.

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
            raise OptionError(
                f'option "{name}" has the value {values.shown(value)}; {must}'
            ) from None

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
                " Spark's catalog keeps no options of a table USING clog: name its columns in"
                " CREATE TABLE orders (key BINARY, value BINARY) USING clog, and give options where"
                " it is used, SELECT … FROM orders WITH (path='…'), INSERT INTO orders WITH"
                " (path='…'), CREATE TEMPORARY VIEW latest AS SELECT … FROM orders WITH (path='…');"
                ' to write a DataFrame, .save("s3://bucket/orders") instead of saveAsTable'
            )
        storage: dict[str, Any] = self.parsed("storage_options", values.json_object, {})
        storage |= {name: values.loose(v) for name, v in self.below("storage.").items()}
        single = self.parsed("singleWriter", values.boolean, default=False)
        location = Location(_absolute(url), json.dumps(storage, sort_keys=True), single)
        topic = self._values.get("topic")
        if topic is not None and topic != location.name:
            raise OptionError(
                f'option "topic" is {values.shown(topic)}, but the log at this path is'
                f" {location.name!r}; a path holds one log: omit topic, or give the other"
                " log's path"
            )
        return location


def _starting(given: "_Given", log_name: str) -> Position | Times | Since | None:
    """Reads where to start, in Kafka's precedence: a timestamp, timestamps by partition, offsets.
    Kafka knows no version: with one, another start is refused.
    """
    or_latest = given.parsed(
        "startingOffsetsByTimestampStrategy", values.choice("error", "latest"), "error"
    )
    time_ms = given.parsed("startingTimestamp", units.time_ms, None)
    times_ms = given.parsed("startingOffsetsByTimestamp", values.times_ms(log_name), None)
    offsets = given.parsed("startingOffsets", values.position(log_name), None)
    at = time_ms if time_ms is not None else times_ms
    version = given.parsed("sinceVersion", values.natural, None)
    if version is None:
        return offsets if at is None else Times(at, or_latest=or_latest == "latest")
    if at is not None or offsets is not None:
        raise OptionError(
            f'option "sinceVersion" is {version}, and starting offsets or timestamps are given too;'
            " give only one of them"
        )
    return Since(version)


def _ending(given: "_Given", log_name: str) -> Position | Times | None:
    """Reads where to end, in the same precedence; where no record is that late, the end is the
    latest.
    """
    time_ms = given.parsed("endingTimestamp", units.time_ms, None)
    times_ms = given.parsed("endingOffsetsByTimestamp", values.times_ms(log_name), None)
    offsets = given.parsed("endingOffsets", values.position(log_name), None)
    at = time_ms if time_ms is not None else times_ms
    return offsets if at is None else Times(at, or_latest=True)


def _admission(given: "_Given") -> Admission:
    least = given.parsed("minOffsetsPerTrigger", values.positive, None)
    most = given.parsed("maxOffsetsPerTrigger", values.positive, None)
    if least is not None and most is not None and least > most:
        raise OptionError(
            f'option "minOffsetsPerTrigger" is {least}, above "maxOffsetsPerTrigger", {most}; lower'
            " the first or raise the second"
        )
    return Admission(
        max_offsets=most,
        min_offsets=least,
        max_delay_ms=given.parsed("maxTriggerDelay", units.duration_ms, MAX_TRIGGER_DELAY_MS),
        max_bytes=given.parsed("maxBytesPerTrigger", values.size_bytes, None),
    )


def _keys(given: "_Given") -> tuple[bytes, ...] | None:
    text = given.parsed("keys", values.keys, None)
    binary = given.parsed("keysBase64", values.keys_base64, None)
    if text is None and binary is None:
        return None
    return tuple(sorted({*(text or ()), *(binary or ())}))


def _check_names(given: Mapping[str, str]) -> None:
    known = {name.lower() for name in NAMES}
    for name in given:
        if name in known or name in SPARKS_OWN:
            continue
        if name.startswith((*SPARKS_PREFIXES, "config.", "storage.")):
            continue
        prefix = name.partition(".")[0] + "."
        if foreign := FOREIGN.get(name) or FOREIGN_PREFIXES.get(prefix):
            owner, instead = foreign
            raise OptionError(f'option "{name}" belongs to {owner}; {instead}')
        from clog.storage.config.did_you_mean import did_you_mean

        near = did_you_mean(name, [*NAMES, "config.cleanup.policy", "storage.key"])
        remedy = f'did you mean "{near}"?' if near else f"known are {', '.join(NAMES)}"
        raise OptionError(f'unknown option "{name}"; {remedy}')


def _absolute(url: str) -> str:
    # A task may run in another folder than the driver.
    return url if ":" in url else str(Path(os.path.expanduser(url)).absolute())  # noqa: PTH111
