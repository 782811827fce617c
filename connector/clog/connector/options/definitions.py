"""The options of ``format("clog")``: one table, from which parsing, error messages and the
README's table come.
"""

from dataclasses import dataclass


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

SPARKS_OWN = frozenset(
    ("paths", "checkpointlocation", "queryname", "owner", "provider", "location", "outputmode")
)
"""Options that Spark adds or keeps beside those of the source."""
SPARKS_PREFIXES = ("option.", "__")

_KAFKA, _DELTA = "Spark's Kafka source", "Delta Lake"
FOREIGN = {
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
FOREIGN_PREFIXES = {
    "kafka.": (_KAFKA, "clog has no broker: leave it out"),
    "kafkaconsumer.": (_KAFKA, "the store's client retries: leave it out"),
    "fetchoffset.": (_KAFKA, "the store's client retries: leave it out"),
}
