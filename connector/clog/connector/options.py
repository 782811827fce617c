"""The options of ``format("clog")``: one table with a row for each, from which names, values, the
errors about them and the README's table come; and the typed settings that are made from them.

An unknown name is refused, and the error suggests the nearest valid one: a misspelled
``startingOffset`` that was silently ignored would read the wrong data. Options that Spark adds for
itself are ignored. Names are matched regardless of case (Spark lowers them); values keep theirs.
Settings are plain data that may be sent to executors; secrets in them are never shown.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from clog.connector.positions import Position, Since, Times, parse_position, parse_times
from clog.storage.config import units
from clog.storage.env import dataclass
from clog.storage.errors import OptionError
from clog.storage.store.opening import absolute, redact

if TYPE_CHECKING:
    from clog.storage.log import Log
    from clog.storage.store.contract import Store

_SPARKS_OWN = frozenset(
    ("paths", "checkpointlocation", "queryname", "owner", "provider", "location", "outputmode")
)
"""Options that Spark adds or keeps beside those of the source."""
_SPARKS_PREFIXES = ("option.", "__")
_KAFKA, _DELTA, _ICEBERG = "Spark's Kafka source", "Delta Lake", "Iceberg"
_SPARK = "Spark's catalogs"
_OTHERS: tuple[tuple[str, str, str], ...] = (
    ("subscribe subscribePattern", _KAFKA, "a source reads one log: give its URL as path"),
    ("assign", _KAFKA, "give the log's URL as path, and partitions=0,2 for some of its partitions"),
    ("groupIdPrefix", _KAFKA, "there are no consumer groups: leave it out"),
    ("versionAsOf", _DELTA, "give asOfVersion with view=table"),
    (
        *("timestampAsOf", _DELTA),
        "give asOfTimestamp with view=table: ISO 8601, or ms since 1970",
    ),
    ("maxFilesPerTrigger", _DELTA, "give maxOffsetsPerTrigger or maxBytesPerTrigger"),
    ("readChangeFeed readChangeData", _DELTA, "give view=changes"),
    (
        *("ignoreDeletes ignoreChanges skipChangeCommits dataChange optimizeWrite", _DELTA),
        "it has no effect here: leave it out",
    ),
    ("withEventTimeOrder", _DELTA, "records come in the order of their offsets: leave it out"),
    (
        *("schemaTrackingLocation schemaLocation", _DELTA),
        "the log keeps its own schema: leave it out",
    ),
    (
        *("overwriteSchema", _DELTA),
        'mergeSchema=true adds columns and widens numbers, "clog alter" renames and drops them',
    ),
    (
        *("replaceWhere partitionOverwriteMode", _DELTA),
        "mode append replaces the rows of the same keys, and a null value deletes one",
    ),
    ("snapshot-id", _ICEBERG, "give asOfVersion with view=table"),
    ("as-of-timestamp", _ICEBERG, "give asOfTimestamp with view=table"),
    (
        *("start-snapshot-id end-snapshot-id", _ICEBERG),
        "give view=changes with startingVersion, endingVersion",
    ),
    ("stream-from-timestamp", _ICEBERG, "give startingTimestamp"),
    ("merge-schema", _ICEBERG, "give mergeSchema"),
    ("computeUpdates", _SPARK, "view=changes has both images of an update: leave it out"),
)
"""Options of other formats that have no effect here: whose they are, and what to do instead."""
_SPELT = {name.lower(): name for names, *_ in _OTHERS for name in names.split()}
_FOREIGN = {name.lower(): about for names, *about in _OTHERS for name in names.split()}
_FOREIGN_PREFIXES = {
    "kafka.": (_KAFKA, "clog has no broker: leave it out"),
    "kafkaconsumer.": (_KAFKA, "the store's client retries: leave it out"),
    "fetchoffset.": (_KAFKA, "the store's client retries: leave it out"),
    "delta.": (_DELTA, 'a log that the write creates takes its configs as "config.<name>"'),
    "hoodie.": ("Hudi", "keyColumns names the columns of the key"),
}

CATALOG_FORGETS = (
    "Spark's catalog keeps neither LOCATION nor OPTIONS of a table USING clog. For a name that"
    " lasts, install pyspark-clog-jvm and CREATE TABLE clog.default.orders USING clog LOCATION '…',"
    " or publish the log, \"clog publish URL\", and CREATE TABLE orders USING delta LOCATION '…'."
    " Without either, name columns in CREATE TABLE orders (key BINARY, value BINARY) USING clog,"
    " and give options where it is used, SELECT … FROM orders WITH (path='…'), INSERT INTO orders"
    " WITH (path='…'), CREATE TEMPORARY VIEW latest AS SELECT … FROM orders WITH (path='…')"
)


class Unset(str):
    """What the README says of an option that has no value unless it is given."""

    __slots__ = ()


_NONE = Unset("none")


@dataclass(frozen=True, slots=True)
class Option:
    """An option: where it applies (``read``: batch and stream; ``stream``, ``batch``: only that
    kind of read; ``write``), its default, how its text is parsed, and what it does.

    ``parse`` raises ValueError with the words that follow "it must be " in the message.
    ``setting`` is the field of `ReadOptions` and `WriteOptions` that holds the value unchanged.
    ``of_log``: ``parse`` takes the log's name, too. ``of_write``: how a write parses it, if it has
    a different meaning there.
    """

    name: str
    use: str
    default: str
    parse: Callable[..., Any] | None
    doc: str
    setting: str = ""
    of_log: bool = False
    of_write: Callable[..., Any] | None = None

    @property
    def is_of_reads(self) -> bool:
        """Whether a read takes it."""
        return not self.use.startswith("write")

    @property
    def is_of_writes(self) -> bool:
        """Whether a write takes it."""
        return "write" in self.use


def _text(value: str) -> str:
    if not value:
        raise ValueError("a non-empty string")
    return value


def _reader_name(value: str) -> str:
    from clog.storage.errors import InvalidInputError
    from clog.storage.readers import check_name

    try:
        return check_name(value)
    except InvalidInputError:
        raise ValueError("1 to 128 characters of A-Z a-z 0-9 . _ -, not a dot first") from None


def _choice(*words: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(" or ".join(words))
        return value.lower()

    return parse


def _cut(value: str) -> tuple[str, str]:
    home, mark, name = value.rpartition("#")
    if not (home and mark and name):
        raise ValueError("HOME_URL#NAME")
    return home, name


def _boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.lower() == "true"


def _deduplication(value: str) -> bool:
    """Returns whether each change is wanted."""
    modes = ("none", "dropCarryovers", "netChanges")
    if value.lower() not in map(str.lower, modes):
        raise ValueError(" or ".join(modes))
    return value.lower() == "none"


def _whole(least: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        is_number = value.isascii() and value.isdigit() and len(value) <= len(f"{units.LONG_MAX}")
        if not is_number or not least <= int(value) <= units.LONG_MAX:
            raise ValueError(f"a whole number from {least} to {units.LONG_MAX}")
        return int(value)

    return parse


_natural, _positive = _whole(0), _whole(1)


def _column_names(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("names of columns, each once, separated by commas")
    return names


def _partition_numbers(value: str) -> tuple[int, ...]:
    numbers = [part.strip() for part in value.strip("[]").split(",")]
    if not all(n.isascii() and n.isdigit() for n in numbers):
        raise ValueError('partition numbers separated by commas, such as "0,2"')
    return tuple(sorted({int(n) for n in numbers}))


def _json_object(value: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        # The value may contain secrets: it must not get into the message through `_shown`.
        raise OptionError('option "storage_options" is not a JSON object; its value is not shown')
    return parsed


def _some_bytes(value: str) -> int:
    number = units.size_bytes(value)
    if number == 0:
        raise ValueError(units.SIZES)
    return number


def _keys(value: str) -> tuple[bytes, ...]:
    try:
        return tuple(key.encode() for key in _texts(value, "keys"))
    except UnicodeEncodeError:
        raise OptionError(
            'option "keys" holds half of a surrogate pair, which is not text; give binary keys in'
            ' "keysBase64"'
        ) from None


def _keys_base64(value: str) -> tuple[bytes, ...]:
    texts = _texts(value, "keysBase64")
    try:
        return tuple(b64decode(key, validate=True) for key in texts)
    except ValueError:
        raise OptionError('option "keysBase64" holds a string that is not Base64') from None


def _texts(value: str, name: str) -> list[str]:
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    if isinstance(parsed, list) and parsed and all(isinstance(key, str) for key in parsed):
        return parsed
    # Keys are data: they must not get into the message through `_shown`.
    raise OptionError(
        f'option "{name}" is not a JSON list of strings, such as ["a", "b"]; its value is not shown'
    )


DEFINITIONS = (
    Option(
        *("path", "read, write", Unset("required"), None),
        "URL of the log, any fsspec URL or a local path",
    ),
    Option(
        *("view", "read", "log", _choice("log", "changes", "table", "latest")),
        "`log`: every record; `changes`: inserted, deleted and updated rows of the table, with"
        " their images before and after; batch only: `table`: the latest value of each key, without"
        " deleted keys; `latest`: the latest record of each key that changed since the start,"
        " tombstones included",
        "view",
    ),
    Option(
        *("asOfVersion", "batch", Unset("newest"), _natural),
        "with `view=table`: the version of the log to show; it must still be readable",
        "as_of_version",
    ),
    Option(
        *("asOfTimestamp", "batch", Unset("newest"), units.time_ms),
        "with `view=table`: shows the newest version committed by this time, in milliseconds"
        " since 1970",
        "as_of_ms",
    ),
    Option(
        *("asOfCut", "batch", Unset("newest"), _cut),
        "with `view=table`: `HOME_URL#NAME`, shows the log's version in this named cut of the home"
        " log at that URL",
        "as_of_cut",
    ),
    Option(
        *("isolation", "read", "read_committed", _choice("read_committed", "read_uncommitted")),
        "`read_committed`: up to the first record of a transaction that has not ended;"
        " `read_uncommitted`, with `view=log`: records of such transactions, too, which may be"
        " aborted later",
    ),
    Option(
        *("startingOffsets", "read", Unset("stream: latest, batch: earliest"), parse_position),
        '`earliest`, `latest` (stream only) or JSON that names each partition, `{"0": 23, "1":'
        ' -2}`, also as `{"<log>": {…}}` or `{"<log>": "earliest"}`; -2 is earliest, -1 latest'
        " (stream only). Applies to a new query; after that, the checkpoint decides",
        of_log=True,
    ),
    Option(
        *("endingOffsets", "batch", Unset("latest"), parse_position),
        "`latest` or JSON as above, exclusive; -1 is latest. An end before the start, or among"
        " records of an open transaction, is an error",
        of_log=True,
    ),
    Option(
        *("startingTimestamp", "read", _NONE, units.time_ms),
        "milliseconds since 1970: start at the first record that is not earlier; takes precedence"
        " over `startingOffsetsByTimestamp`, which takes precedence over `startingOffsets`",
    ),
    Option(
        *("endingTimestamp", "batch", _NONE, units.time_ms),
        "milliseconds since 1970: end before the first record that is not earlier; `latest` where"
        " no record is that late; takes precedence over `endingOffsetsByTimestamp`, which takes"
        " precedence over `endingOffsets`",
    ),
    Option(
        *("startingOffsetsByTimestamp", "read", _NONE, parse_times),
        'as `startingTimestamp`, in JSON by partition: `{"0": 1767225600000}`, also as `{"<log>":'
        " {…}}`",
        of_log=True,
    ),
    Option(
        *("endingOffsetsByTimestamp", "batch", _NONE, parse_times),
        "as `endingTimestamp`, in JSON by partition",
        of_log=True,
    ),
    Option(
        *("startingOffsetsByTimestampStrategy", "read", "error", _choice("error", "latest")),
        "what to do where no record is as late as a starting timestamp: `error`, or `latest`:"
        " start at the end",
    ),
    Option(
        *("sinceVersion", "stream, `view=latest`, `view=changes`", _NONE, _natural),
        "start after this version of the log, with what was appended since; it must still be"
        " readable",
    ),
    Option(
        *("startingVersion", "`view=changes`", Unset("stream: the whole table"), _natural),
        "the first version whose changes are read; the one before it must still be readable. A"
        " stream without a start begins with all rows of the newest version, as inserts",
    ),
    Option(
        *("endingVersion", "batch, `view=changes`", Unset("newest"), _natural),
        "the last version whose changes are read",
    ),
    Option(
        *("startingBoundInclusive", "`view=changes`", "true", _boolean),
        "`false`: start after the version or time that is given",
    ),
    Option(
        *("endingBoundInclusive", "batch, `view=changes`", "true", _boolean),
        "`false`: end before the version or time that is given",
    ),
    Option(
        *("deduplicationMode", "`view=changes`", "dropCarryovers", _deduplication),
        "`dropCarryovers`, `netChanges`: at most one change of each key, in a stream of each key in"
        " a batch; `none`: each change, with its own version",
        "is_each",
    ),
    Option(
        *("failOnDataLoss", "read", "true", _boolean),
        "what to do when offsets are gone (retention, deleteRecords) or not there, a stream"
        " missed a tombstone, a partition is no longer read, or another log is at the path:"
        " `true` fails the query, `false` warns and continues with what exists",
        "fail_on_data_loss",
    ),
    Option(
        *("maxOffsetsPerTrigger", "stream", _NONE, _positive),
        "maximum number of offsets per batch, shared among partitions in proportion to what they"
        " have, with at least 1 for each that has any",
    ),
    Option(
        *("minOffsetsPerTrigger", "stream", _NONE, _positive),
        "minimum number of offsets per batch; a smaller batch starts only when `maxTriggerDelay`"
        " has passed since the last one. The first batch of a run does not wait, nor does"
        " `availableNow`",
    ),
    Option(
        *("maxTriggerDelay", "stream", "15m", units.duration_ms),
        "maximum wait for `minOffsetsPerTrigger`",
    ),
    Option(
        *("maxBytesPerTrigger", "stream", _NONE, _some_bytes),
        "approximate maximum of uncompressed record bytes per batch, such as `64m`; oldest"
        " commits first, at least one record",
    ),
    Option(
        *("pollInterval", "stream", "1s", units.duration_ms),
        "minimum interval between polls of the log; each costs one request. Set `0s` in tests"
        " that call `processAllAvailable()`",
        "poll_interval_ms",
    ),
    Option(
        *("minPartitions", "read", _NONE, _positive),
        "minimum number of Spark tasks, approximately",
        "min_partitions",
    ),
    Option(
        *("maxRecordsPerPartition", "read", _NONE, _positive),
        "maximum number of offsets per Spark task",
        "max_records_per_partition",
    ),
    Option(
        *("includeHeaders", "read", "false", _boolean),
        "adds the column `headers`",
        "include_headers",
    ),
    Option(
        *("columns", "read", Unset("all"), _column_names),
        "comma-separated names: read only these columns; a subset in `.schema(…)` does the same",
        "columns",
    ),
    Option(
        *("keys", "read", Unset("all"), _keys),
        'JSON list of strings: read only records with these keys, `["order-1", "order-2"]`; of a'
        " typed log each as `clog consume --key` takes it, a number as its digits; large objects"
        " are searched by their key index, or by their keys alone",
    ),
    Option(
        *("keysBase64", "read", Unset("all"), _keys_base64),
        "the same for binary keys, each in Base64",
    ),
    Option(
        *("partitions", "read, write", Unset("all; 4"), _partition_numbers),
        "read: the partitions to read, `0,2`; write: number of partitions of a log that the write"
        " creates, which cannot change later",
        "partitions",
        of_write=_positive,
    ),
    Option(
        *("keyColumns", "write", _NONE, _column_names),
        "comma-separated columns of the DataFrame: a log that the write creates is typed, with"
        " these as its key and the others as its value, and its table is shown as plain columns",
        "key_columns",
    ),
    Option(
        *("mergeSchema", "write", "false", _boolean),
        "whether a write adds columns of the DataFrame, and fields in them, that a typed log lacks,"
        " and widens numbers to its types; a column of a narrower type stays as it is",
        "merge_schema",
    ),
    Option(
        *("config.<name>", "write", _NONE, None),
        "Kafka topic config for a log that the write creates, such as `config.cleanup.policy`",
    ),
    Option(
        *("writerId", "write (stream)", Unset("the query's id"), _text),
        "name under which the log remembers the last batch; another query may not use it",
        "writer_id",
    ),
    Option(
        *("txnAppId", "write", _NONE, _text),
        "batch: with `txnVersion`, a write at or below the last version is skipped, as in Delta;"
        " stream: the same as `writerId`",
        "txn_app_id",
    ),
    Option(
        *("txnVersion", "write (batch)", _NONE, _natural),
        "number of the write, which must increase; see `txnAppId`",
        "txn_version",
    ),
    Option(
        *("failOnChangedBatch", "write", Unset("stream: true, batch: false"), _boolean),
        "what to do when the log already has this batch (or this `txnVersion`) with other rows,"
        " or has a later one (batch) or none of those before it (stream): `true` fails, `false`"
        " warns and keeps the existing rows",
        "fail_on_changed_batch",
    ),
    Option(*("topic", "read, write", _NONE, None), "only checked: must be the log's name"),
    Option(
        *("storage_options", "read, write", "{}", _json_object),
        'JSON for the filesystem: `{"key": "…", "secret": "…", "client_kwargs": {…}}`',
    ),
    Option(
        *("storage.<name>", "read, write", _NONE, None),
        "one storage option, in lower case; `true`, `false` and JSON objects or lists are"
        " understood",
    ),
    Option(
        *("logId", "read, write", Unset("any"), _text),
        "the id of the intended log: a different log at the path, after it was deleted and"
        " recreated, is refused. `snapshot_and_stream` and `upsert_batches` set it",
        "log_id",
    ),
    Option(
        *("readerId", "stream", _NONE, _reader_name),
        "the name of a reader of the log: after each batch the query records how far it has read,"
        " at most every ten seconds; `clog describe URL readers` lists it. The checkpoint decides"
        " where the query continues",
        "reader_id",
    ),
    Option(
        *("readerHold", "stream", Unset("0s; with `view=changes` the most"), units.duration_ms),
        "how long after each report the cleaner waits for the reader that `readerId` names, so"
        " that it misses no delete and its version stays readable; at most the log's"
        " `reader.hold.max.ms`",
        "reader_hold_ms",
    ),
    Option(
        *("singleWriter", "read, write", "false", _boolean),
        "allow a filesystem without exclusive create; only one process may write then",
    ),
)

NAMES = tuple(option.name for option in DEFINITIONS if "<" not in option.name)
_BY_NAME = {option.name: option for option in DEFINITIONS}


@dataclass(frozen=True, slots=True)
class Location:
    """A log's URL with the options that open its filesystem.

    ``storage_options`` is JSON, so that a location can be compared and be the key of a cache.
    Neither it nor the URL (which may contain a password) is part of the repr: partitions and commit
    messages contain locations.
    """

    url: str = field(repr=False)
    storage_options: str = field(default="{}", repr=False)
    single_writer: bool = False

    @property
    def name(self) -> str:
        """The last part of the path, which Kafka would call the topic.

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
        """Returns a store at the log's root."""
        from clog.storage.store import open_store

        return open_store(self.url, self.options(), single_writer=self.single_writer)

    def log(self) -> "Log":
        """Opens the log there, as `Log.open` does."""
        from clog.storage.log import Log

        return Log.open(self.store(), self.options(), single_writer=self.single_writer)

    def store_of(self, log_id: str) -> "Store":
        """Returns the store of the files of the log with this id (S47)."""
        from clog.storage.commit.tip import store_of

        return store_of(self.store(), log_id)


@dataclass(frozen=True, slots=True)
class Admission:
    """The limits of a stream's batches; None is no limit.

    ``max_bytes`` counts bytes of records, uncompressed. ``max_delay_ms`` bounds the wait for
    ``min_offsets``.
    """

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 900_000
    max_bytes: int | None = None

    @property
    def is_limited(self) -> bool:
        """Whether there is any limit."""
        return not (self.max_offsets is self.min_offsets is self.max_bytes is None)


@dataclass(frozen=True, slots=True)
class Bound:
    """Where changes begin or end: after this version, or after the newest one committed by this
    time.
    """

    version: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ChangesRange:
    """Which changes are read: those after ``since``, up to ``until``."""

    since: Bound | None = None
    until: Bound | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Settings of a read; see `DEFINITIONS` for each."""

    location: Location
    view: Literal["log", "changes", "table", "latest"]
    as_of_version: int | None
    as_of_ms: int | None
    as_of_cut: tuple[str, str] | None
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
    reader_hold_ms: int | None = None
    uncommitted: bool = False
    changes: ChangesRange | None = None
    is_each: bool = False

    @property
    def is_table(self) -> bool:
        """Whether rows of the table are shown, if the log has key columns with names."""
        return self.view in ("table", "changes")


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
    merge_schema: bool = False


def texts_of(options: Mapping[str, object] | None) -> dict[str, str]:
    """Returns options of one of our functions as Spark would pass them, with names lowered."""
    return {
        name.lower(): json.dumps(value)
        if isinstance(value, bool | Mapping | list | tuple)
        else str(value)
        for name, value in (options or {}).items()
    }


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Reads the settings for `streamReader` and `reader`; raises `OptionError`."""
    given = _Given(options)
    location = given.location()
    rows = [option for option in DEFINITIONS if option.is_of_reads and option.parse is not None]
    got = {row.name: given.value(row.name, log_name=location.name) for row in rows}
    uncommitted = got["isolation"] == "read_uncommitted"
    if uncommitted and got["view"] != "log":
        raise OptionError(
            f'option "isolation" is read_uncommitted, but view={got["view"]} shows only committed'
            " records; leave one of them out"
        )
    changes = _changes_asked(given, got)
    return ReadOptions(
        location=location,
        starting=None if changes else _starting(got),
        ending=None if changes else _ending(got),
        changes=changes,
        admission=_admission(got),
        keys=_all_keys(got["keys"], got["keysBase64"]),
        uncommitted=uncommitted,
        **{row.setting: got[row.name] for row in rows if row.setting},
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Reads the settings for `streamWriter` and `writer`; raises `OptionError`."""
    given = _Given(options)
    rows = [option for option in DEFINITIONS if option.is_of_writes and option.setting]
    return WriteOptions(
        location=given.location(),
        config=given.below("config."),
        **{row.setting: given.value(row.name, of_write=True) for row in rows},
    )


class _Given:
    """The options as they were given, with names lowered and checked."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._texts = {name.lower(): value for name, value in options.items()}
        _check_names(self._texts)

    def value(self, name: str, *, log_name: str = "", of_write: bool = False) -> Any:
        """Returns the value of an option, or its default, or None if it has none."""
        row = _BY_NAME[name]
        text = self._texts.get(name.lower())
        if text is None and isinstance(row.default, Unset):
            return None
        parse = (row.of_write if of_write else None) or row.parse
        assert parse is not None, "an option without a parser is read by `location` or `below`"
        text = row.default if text is None else text.strip()
        try:
            return parse(text, log_name) if row.of_log else parse(text)
        except OptionError:
            raise
        except ValueError as e:
            raise OptionError(
                f'option "{name}" has the value {_shown(text)}; it must be {e}'
            ) from None

    def has(self, name: str) -> bool:
        return name.lower() in self._texts

    def below(self, prefix: str) -> dict[str, str]:
        found = self._texts.items()
        return {name[len(prefix) :]: value for name, value in found if name.startswith(prefix)}

    def location(self) -> Location:
        url, topic = self._texts.get("path"), self._texts.get("topic")
        if "paths" in self._texts:
            raise OptionError("several paths were given; a source reads one log: load(path)")
        if not url:
            raise OptionError(
                'option "path" is missing: give the URL of the log, .load("s3://bucket/orders");'
                ' to write a DataFrame, .save("s3://bucket/orders") instead of saveAsTable. '
                + CATALOG_FORGETS
            )
        storage: dict[str, Any] = self.value("storage_options")
        storage |= {name: _loose(v) for name, v in self.below("storage.").items()}
        single = self.value("singleWriter")
        location = Location(_absolute(url), json.dumps(storage, sort_keys=True), single)
        if topic is not None and topic != location.name:
            raise OptionError(
                f'option "topic" is {_shown(topic)}, but the log at this path is'
                f" {location.name!r}; a path has one log: omit topic, or give the other log's"
                " path"
            )
        return location


def _shown(value: str) -> str:
    # A value may be a secret given under the wrong name, so it is never shown in full.
    return repr(value) if len(value) <= 24 else repr(value[:20] + "…")


def _loose(value: str) -> Any:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _starting(got: Mapping[str, Any]) -> Position | Times | Since | None:
    """Returns where to start, with Kafka's precedence; a version excludes any other start."""
    at = _first(got["startingTimestamp"], got["startingOffsetsByTimestamp"])
    offsets, version = got["startingOffsets"], got["sinceVersion"]
    if version is None:
        or_latest = got["startingOffsetsByTimestampStrategy"] == "latest"
        return offsets if at is None else Times(at, or_latest=or_latest)
    if at is not None or offsets is not None:
        raise OptionError(
            f'option "sinceVersion" is {version}, and starting offsets or timestamps are given too;'
            " give only one of them"
        )
    return Since(version)


def _ending(got: Mapping[str, Any]) -> Position | Times | None:
    """Returns where to end, in the same way; at the latest offset if no record is that late."""
    at = _first(got["endingTimestamp"], got["endingOffsetsByTimestamp"])
    return got["endingOffsets"] if at is None else Times(at, or_latest=True)


def _first(one: Any, other: Any) -> Any:
    return other if one is None else one


_OF_CHANGES = (
    *("startingVersion", "endingVersion", "startingBoundInclusive", "endingBoundInclusive"),
    "deduplicationMode",
)
_NOT_OF_CHANGES = (
    *("startingOffsets", "endingOffsets", "startingOffsetsByTimestamp"),
    *("endingOffsetsByTimestamp", "keys", "keysBase64", "asOfVersion", "asOfTimestamp", "asOfCut"),
)


def _changes_asked(given: "_Given", got: Mapping[str, Any]) -> ChangesRange | None:
    """Returns which changes view `changes` reads; None in another view."""
    is_changes = got["view"] == "changes"
    for name in _NOT_OF_CHANGES if is_changes else _OF_CHANGES:
        if not given.has(name):
            continue
        if is_changes:
            raise OptionError(
                f'option "{name}" is not for view "changes", which starts and ends by version or'
                ' time: give "startingVersion" or "startingTimestamp", and filter by key with where'
            )
        raise OptionError(
            f'option "{name}" is for view "changes"; view "{got["view"]}" starts after a version'
            ' with "sinceVersion"'
        )
    if not is_changes:
        return None
    if not got["failOnDataLoss"]:
        raise OptionError(
            'option "failOnDataLoss" is false, but changes cannot be had without the rows before'
            " them; leave it out"
        )
    since = _bound(given, got, ("startingVersion", "sinceVersion", "startingTimestamp"))
    until = _bound(given, got, ("endingVersion", "endingTimestamp"))
    first, last = (None if bound is None else bound.version for bound in (since, until))
    if first is not None and last is not None and first > last:
        raise OptionError(
            f"changes from version {first + 1} on cannot end with version {last}; give an"
            ' "endingVersion" that is not before "startingVersion"'
        )
    return ChangesRange(since, until)


def _bound(given: "_Given", got: Mapping[str, Any], names: Sequence[str]) -> Bound | None:
    """Returns what one of these options names; a bound lies after its version or time."""
    asked = [name for name in names if given.has(name)]
    if not asked:
        return None
    if len(asked) > 1:
        raise OptionError(f'options "{asked[0]}" and "{asked[1]}" are both given; give one of them')
    (name,) = asked
    if name == "sinceVersion":
        return Bound(version=got[name])
    is_start = name.startswith("starting")
    inclusive = got["startingBoundInclusive" if is_start else "endingBoundInclusive"]
    at = got[name] - (is_start == inclusive)
    return Bound(version=at) if name.endswith("Version") else Bound(time_ms=at)


def _admission(got: Mapping[str, Any]) -> Admission:
    least, most = got["minOffsetsPerTrigger"], got["maxOffsetsPerTrigger"]
    if least is not None and most is not None and least > most:
        raise OptionError(
            f'option "minOffsetsPerTrigger" is {least}, above "maxOffsetsPerTrigger", {most}; lower'
            " the first or raise the second"
        )
    return Admission(
        max_offsets=most,
        min_offsets=least,
        max_delay_ms=got["maxTriggerDelay"],
        max_bytes=got["maxBytesPerTrigger"],
    )


def _all_keys(*given: tuple[bytes, ...] | None) -> tuple[bytes, ...] | None:
    if given == (None, None):
        return None
    return tuple(sorted({key for keys in given for key in keys or ()}))


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
            raise OptionError(f'option "{_SPELT.get(name, name)}" belongs to {owner}; {instead}')
        from clog.storage.config.log_config import did_you_mean

        near = did_you_mean(name, [*NAMES, "config.cleanup.policy", "storage.key"])
        remedy = f'did you mean "{near}"?' if near else f"known are {', '.join(NAMES)}"
        raise OptionError(f'unknown option "{name}"; {remedy}')


def _absolute(url: str) -> str:
    # A task's working directory may differ from the driver's.
    return url if ":" in url else absolute(url)
