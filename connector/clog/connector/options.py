"""The options of ``format("clog")``: one table, from which error messages and the README's table
come, and typed settings made of their texts.

An unknown name is refused, and the error suggests the nearest valid one: a misspelled
``startingOffset`` that was silently ignored would read the wrong data. Options that Spark adds for
itself are passed over. Names are matched regardless of case (Spark lowers them); values keep
theirs. Settings are plain data that may travel to executors; what is secret in them never shows.
"""

import json
import os.path
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from clog.connector import option_values as values
from clog.connector.option_values import Position, Since, Times
from clog.storage.config import definitions
from clog.storage.errors import OptionError
from clog.storage.store.opening import redact

if TYPE_CHECKING:
    from clog.storage.log import Log
    from clog.storage.store.contract import Store


@dataclass(frozen=True, slots=True)
class Definition:
    """An option: where it counts (``read``: batch and stream; ``stream``, ``batch``: that read
    only; ``write``), its default, and what it does.
    """

    name: str
    use: str
    default: str
    doc: str


DEFINITIONS = (
    Definition("path", "read, write", "required", "URL of the log, any fsspec URL or a local path"),
    Definition(
        "view",
        "batch",
        "log",
        "`log`: every record; `table`: the latest value of each key, without deleted keys;"
        " `latest`: the latest record of each key that changed since the start, tombstones"
        " included",
    ),
    Definition(
        "asOfVersion",
        "batch",
        "newest",
        "with `view=table`: the version of the log to show; it must still be readable",
    ),
    Definition(
        "asOfTimestamp",
        "batch",
        "newest",
        "with `view=table`: shows the newest version committed by this time, in"
        " milliseconds since 1970",
    ),
    Definition(
        "isolation",
        "read",
        "read_committed",
        "`read_committed`: up to the first record of a transaction that has not ended;"
        " `read_uncommitted`, with `view=log`: records of such transactions, too, which may be"
        " aborted later",
    ),
    Definition(
        "startingOffsets",
        "read",
        "stream: latest, batch: earliest",
        "`earliest`, `latest` (stream only) or JSON that names each partition,"
        ' `{"0": 23, "1": -2}`, also as `{"<log>": {…}}` or `{"<log>": "earliest"}`; -2 is'
        " earliest, -1 latest (stream only). Applies to a new query; after that, the"
        " checkpoint decides",
    ),
    Definition(
        "endingOffsets",
        "batch",
        "latest",
        "`latest` or JSON as above, exclusive; -1 is latest. An end before the start, or among"
        " records of an open transaction, is an error",
    ),
    Definition(
        "startingTimestamp",
        "read",
        "none",
        "milliseconds since 1970: start at the first record that is not earlier; takes"
        " precedence over `startingOffsetsByTimestamp`, which takes precedence over"
        " `startingOffsets`",
    ),
    Definition(
        "endingTimestamp",
        "batch",
        "none",
        "milliseconds since 1970: end before the first record that is not earlier; `latest`"
        " where no record is that late; takes precedence over `endingOffsetsByTimestamp`,"
        " which takes precedence over `endingOffsets`",
    ),
    Definition(
        "startingOffsetsByTimestamp",
        "read",
        "none",
        'as `startingTimestamp`, in JSON by partition: `{"0": 1767225600000}`, also as'
        ' `{"<log>": {…}}`',
    ),
    Definition(
        "endingOffsetsByTimestamp",
        "batch",
        "none",
        "as `endingTimestamp`, in JSON by partition",
    ),
    Definition(
        "startingOffsetsByTimestampStrategy",
        "read",
        "error",
        "what to do where no record is as late as a starting timestamp: `error`, or"
        " `latest`: start at the end",
    ),
    Definition(
        "sinceVersion",
        "stream, `view=latest`",
        "none",
        "start after this version of the log, with what was appended since; it must still"
        " be readable",
    ),
    Definition(
        "failOnDataLoss",
        "read",
        "true",
        "what to do when offsets are gone (retention, deleteRecords) or not there, a stream"
        " missed a tombstone, a partition is no longer read, or another log is at the path:"
        " `true` fails the query, `false` warns and goes on with what there is",
    ),
    Definition(
        "maxOffsetsPerTrigger",
        "stream",
        "none",
        "maximum number of offsets per batch, shared among partitions in proportion to what"
        " they have, with at least 1 for each that has any",
    ),
    Definition(
        "minOffsetsPerTrigger",
        "stream",
        "none",
        "minimum number of offsets per batch; a smaller batch starts only when"
        " `maxTriggerDelay` has passed since the last one. The first batch of a run does not"
        " wait, nor does `availableNow`",
    ),
    Definition("maxTriggerDelay", "stream", "15m", "maximum wait for `minOffsetsPerTrigger`"),
    Definition(
        "maxBytesPerTrigger",
        "stream",
        "none",
        "approximate maximum of uncompressed record bytes per batch, such as `64m`; oldest"
        " commits first, at least one record",
    ),
    Definition(
        "pollInterval",
        "stream",
        "1s",
        "minimum interval between polls of the log; each costs one request. Set `0s` in tests that"
        " call `processAllAvailable()`",
    ),
    Definition("minPartitions", "read", "none", "minimum number of Spark tasks, approximately"),
    Definition(
        "maxRecordsPerPartition",
        "read",
        "none",
        "maximum number of offsets per Spark task",
    ),
    Definition("includeHeaders", "read", "false", "adds the column `headers`"),
    Definition(
        "columns",
        "read",
        "all",
        "comma-separated names: read only these columns; a subset in `.schema(…)` does the same",
    ),
    Definition(
        "keys",
        "read",
        "all",
        'JSON list of strings: read only records with these keys, `["order-1", "order-2"]`; of a'
        " typed log each as `clog get` takes it, a number as its digits; large objects are searched"
        " by their key index, or by their keys alone",
    ),
    Definition("keysBase64", "read", "all", "the same for binary keys, each in Base64"),
    Definition(
        "partitions",
        "read, write",
        "all; 4",
        "read: the partitions to read, `0,2`; write: number of partitions of a log that the"
        " write creates; it cannot be changed later",
    ),
    Definition(
        "keyColumns",
        "write",
        "none",
        "comma-separated columns of the DataFrame: a log that the write creates is typed, has these"
        " for its key and the others for its value, and its table is shown as plain columns",
    ),
    Definition(
        "config.<name>",
        "write",
        "none",
        "Kafka topic config of a log that the write creates, such as `config.cleanup.policy`",
    ),
    Definition(
        "writerId",
        "write (stream)",
        "the query's id",
        "name under which the log remembers the last batch; another query may not use it",
    ),
    Definition(
        "txnAppId",
        "write",
        "none",
        "batch: with `txnVersion`, a write at or below the last version is skipped, as in"
        " Delta; stream: the same as `writerId`",
    ),
    Definition(
        "txnVersion",
        "write (batch)",
        "none",
        "number of the write, which must rise; see `txnAppId`",
    ),
    Definition(
        "failOnChangedBatch",
        "write",
        "stream: true, batch: false",
        "what to do when the log already has this batch (or this `txnVersion`) with other"
        " rows, or has a later one (batch) or none of those before it (stream): `true`"
        " fails, `false` warns and keeps the rows that are there. `upsert` sets it",
    ),
    Definition("topic", "read, write", "none", "only checked: must be the log's name"),
    Definition(
        "storage_options",
        "read, write",
        "{}",
        'JSON for the filesystem: `{"key": "…", "secret": "…", "client_kwargs": {…}}`',
    ),
    Definition(
        "storage.<name>",
        "read, write",
        "none",
        "one storage option, in lower case; `true`, `false` and JSON objects or lists are"
        " understood",
    ),
    Definition(
        "logId",
        "read, write",
        "any",
        "the id of the log that is meant: another one at the path, since it was deleted and"
        " recreated, is refused. `snapshot_and_stream` and `upsert` set it",
    ),
    Definition(
        "readerId",
        "stream",
        "none",
        "the name of a reader of the log: after each batch the query records how far it has read,"
        " at most every ten seconds; `clog readers` lists it. The checkpoint decides where the"
        " query continues",
    ),
    Definition(
        "readerHold",
        "stream",
        "0s",
        "for how long after each word of it the cleaner waits for the reader that `readerId` names,"
        " so that it misses no delete: as far as the log's `reader.hold.max.ms` allows",
    ),
    Definition(
        "singleWriter",
        "read, write",
        "false",
        "allow a filesystem without exclusive create; only one process may write then",
    ),
)

NAMES = tuple(d.name for d in DEFINITIONS if "<" not in d.name)

ROW_TEXTS = "__rowTexts"
"""An option of `upsert` alone: ``key`` and ``value`` are rows, of which the task makes texts."""

_SPARKS_OWN = frozenset(
    ("paths", "checkpointlocation", "queryname", "owner", "provider", "location", "outputmode")
)
"""Options that Spark adds or keeps beside those of the source."""

_SPARKS_PREFIXES = ("option.", "__")

_KAFKA, _DELTA = "Spark's Kafka source", "Delta Lake"

_FOREIGN = {
    "subscribe": (_KAFKA, "a source reads one log: give its URL as path"),
    "subscribepattern": (_KAFKA, "a source reads one log: give its URL as path"),
    "assign": (
        _KAFKA,
        "give the log's URL as path, and partitions=0,2 for some of its partitions",
    ),
    "groupidprefix": (_KAFKA, "there are no consumer groups: leave it out"),
    "startingversion": (_DELTA, "sinceVersion is the version before the first that is read"),
    "versionasof": (_DELTA, "give asOfVersion with view=table"),
    "timestampasof": (_DELTA, "give asOfTimestamp with view=table: ISO 8601, or ms since 1970"),
    "maxfilespertrigger": (_DELTA, "give maxOffsetsPerTrigger or maxBytesPerTrigger"),
    "external": (
        "Spark's catalog.createTable",
        "run CREATE TABLE orders (key BINARY, value BINARY) USING clog, give path by WITH",
    ),
    "readchangefeed": (_DELTA, "a log is its change feed: leave it out"),
    **dict.fromkeys(
        ("ignoredeletes", "ignorechanges", "skipchangecommits", "mergeschema"),
        (_DELTA, "nothing here needs it: leave it out"),
    ),
}
"""Options of others that do not count here: whose they are, and what to do instead."""

_FOREIGN_PREFIXES = {
    "kafka.": (_KAFKA, "clog has no broker: leave it out"),
    "kafkaconsumer.": (_KAFKA, "the store's client retries: leave it out"),
    "fetchoffset.": (_KAFKA, "the store's client retries: leave it out"),
}

_MAX_TRIGGER_DELAY_MS = 900_000
"""Default of ``maxTriggerDelay``, as in Spark's Kafka source."""

_ISOLATION: tuple[Literal["read_committed"], Literal["read_uncommitted"]] = (
    "read_committed",
    "read_uncommitted",
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Location:
    """A log's URL with what opens its filesystem.

    ``storage_options`` is JSON, so that a location can be compared and be the key of a cache.
    Neither it nor the URL (which may hold a password) is part of the repr: partitions and commit
    messages hold locations.
    """

    url: str = field(repr=False)
    storage_options: str = field(default="{}", repr=False)
    single_writer: bool = False

    @property
    def name(self) -> str:
        """What Kafka would call the topic: the last part of the path.

        >>> Location("s3://bucket/logs/orders/").name
        'orders'
        """
        path = redact(self.url).partition("?")[0].rstrip("/")
        return path.rpartition("/")[2] or path

    def options(self) -> Mapping[str, Any]:
        """Returns the storage options, for fsspec."""
        options: dict[str, Any] = json.loads(self.storage_options)
        return options

    def store(self) -> "Store":
        """Returns a store at the root where the log stands."""
        from clog.storage.store import open_store

        return open_store(self.url, self.options(), single_writer=self.single_writer)

    def log(self) -> "Log":
        """Opens the log there; as `Log.open`."""
        from clog.storage.log import Log

        return Log.open(self.store(), self.options(), single_writer=self.single_writer)

    def store_of(self, log_id: str) -> "Store":
        """Returns the store of the files of the log with this id (S47)."""
        from clog.storage.commit.tip import store_of

        return store_of(self.store(), log_id)


@dataclass(frozen=True, slots=True)
class Admission:
    """The limits of a stream's batches; None: no limit.

    ``max_bytes`` counts bytes of records, uncompressed. ``max_delay_ms`` bounds the wait for
    ``min_offsets``.
    """

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = _MAX_TRIGGER_DELAY_MS
    max_bytes: int | None = None

    @property
    def is_limited(self) -> bool:
        """Whether there is anything to decide."""
        return not (self.max_offsets is self.min_offsets is self.max_bytes is None)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Settings of a read; see `DEFINITIONS` for each."""

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
    """Settings of a write; see `DEFINITIONS` for each."""

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
        as_of_ms=given.parsed("asOfTimestamp", definitions.time_ms, None),
        starting=_starting(given, location.name),
        ending=_ending(given, location.name),
        fail_on_data_loss=given.parsed("failOnDataLoss", values.boolean, default=True),
        admission=_admission(given),
        poll_interval_ms=given.parsed("pollInterval", definitions.duration_ms, 1000),
        min_partitions=given.parsed("minPartitions", values.positive, None),
        max_records_per_partition=given.parsed("maxRecordsPerPartition", values.positive, None),
        include_headers=given.parsed("includeHeaders", values.boolean, default=False),
        columns=given.parsed("columns", values.names, None),
        partitions=given.parsed("partitions", values.partitions, None),
        keys=_keys(given),
        log_id=given.parsed("logId", values.text, None),
        reader_id=given.parsed("readerId", values.reader_name, None),
        reader_hold_ms=given.parsed("readerHold", definitions.duration_ms, 0),
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
            raise OptionError(
                f'option "{name}" has the value {values.shown(value)}; it must be {e}'
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


def _starting(given: _Given, log_name: str) -> Position | Times | Since | None:
    """Reads where to start, in Kafka's precedence: a timestamp, timestamps by partition, offsets.
    Kafka knows no version: with one, another start is refused.
    """
    or_latest = given.parsed(
        "startingOffsetsByTimestampStrategy", values.choice("error", "latest"), "error"
    )
    time_ms = given.parsed("startingTimestamp", definitions.time_ms, None)
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


def _ending(given: _Given, log_name: str) -> Position | Times | None:
    """Reads where to end, in the same precedence; where no record is that late, the end is the
    latest.
    """
    time_ms = given.parsed("endingTimestamp", definitions.time_ms, None)
    times_ms = given.parsed("endingOffsetsByTimestamp", values.times_ms(log_name), None)
    offsets = given.parsed("endingOffsets", values.position(log_name), None)
    at = time_ms if time_ms is not None else times_ms
    return offsets if at is None else Times(at, or_latest=True)


def _admission(given: _Given) -> Admission:
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
        max_delay_ms=given.parsed(
            "maxTriggerDelay", definitions.duration_ms, _MAX_TRIGGER_DELAY_MS
        ),
        max_bytes=given.parsed("maxBytesPerTrigger", values.size_bytes, None),
    )


def _keys(given: _Given) -> tuple[bytes, ...] | None:
    text = given.parsed("keys", values.keys, None)
    binary = given.parsed("keysBase64", values.keys_base64, None)
    if text is None and binary is None:
        return None
    return tuple(sorted({*(text or ()), *(binary or ())}))


def _check_names(given: Mapping[str, str]) -> None:
    known = {name.lower() for name in NAMES}
    for name in given:
        if name in known or name in _SPARKS_OWN:
            continue
        if name.startswith((*_SPARKS_PREFIXES, "config.", "storage.")):
            continue
        prefix = name.partition(".")[0] + "."
        if foreign := _FOREIGN.get(name) or _FOREIGN_PREFIXES.get(prefix):
            owner, instead = foreign
            raise OptionError(f'option "{name}" belongs to {owner}; {instead}')
        from clog.storage.config.log_config import did_you_mean

        near = did_you_mean(name, [*NAMES, "config.cleanup.policy", "storage.key"])
        remedy = f'did you mean "{near}"?' if near else f"known are {', '.join(NAMES)}"
        raise OptionError(f'unknown option "{name}"; {remedy}')


def _absolute(url: str) -> str:
    # A task may run in another folder than the driver.
    return url if ":" in url else str(Path(os.path.expanduser(url)).absolute())  # noqa: PTH111
