"""The options of ``format("clog")``: one table, from which parsing, error messages and the
README's table come.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Definition:
    """An option: where it counts (``read``: batch and stream; ``stream``, ``batch``: that read
    only; ``write``), what it is
    without being given, and what it does.
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
        "`log`: every record; `table`: the latest value of each key, tombstones left out; `latest`:"
        " the latest record of each key that changed since the start, tombstones included",
    ),
    Definition(
        "asOfVersion",
        "batch",
        "newest",
        "with `view=table`: the version of the log that is shown, as far back as versions are kept",
    ),
    Definition(
        "asOfTimestamp",
        "batch",
        "newest",
        "likewise, milliseconds since 1970: the newest version committed by then",
    ),
    Definition(
        "startingOffsets",
        "read",
        "stream: latest, batch: earliest",
        "`earliest`, `latest` (stream only) or JSON that names each partition,"
        ' `{"0": 23, "1": -2}`, also as `{"<log>": {…}}`; -2 is earliest, -1 latest (stream only).'
        " Counts for a new query; afterwards the checkpoint does",
    ),
    Definition(
        "endingOffsets",
        "batch",
        "latest",
        "`latest` or JSON as above, exclusive; -1 is latest",
    ),
    Definition(
        "startingTimestamp",
        "read",
        "none",
        "milliseconds since 1970: starts at the first record that is not earlier; beats"
        " `startingOffsetsByTimestamp`, which beats `startingOffsets`",
    ),
    Definition(
        "endingTimestamp",
        "batch",
        "none",
        "likewise the end, exclusive; `latest` where no record is that late; beats"
        " `endingOffsetsByTimestamp`, which beats `endingOffsets`",
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
        "where no record is as late as a starting timestamp: `error`, or `latest`: start at the"
        " end",
    ),
    Definition(
        "sinceVersion",
        "stream, `view=latest`",
        "none",
        "starts after a version of the log that is still kept: with what was appended since",
    ),
    Definition(
        "failOnDataLoss",
        "read",
        "true",
        "whether offsets that are gone (retention, deleteRecords), a tombstone that a stream missed"
        " or a partition that it reads no more stop the query; `false`: warn, and go on from what"
        " there is",
    ),
    Definition(
        "maxOffsetsPerTrigger",
        "stream",
        "none",
        "at most so many offsets in a batch, shared among partitions in proportion to what they"
        " have, at least 1 for each that has any",
    ),
    Definition(
        "minOffsetsPerTrigger",
        "stream",
        "none",
        "no batch before so many offsets are there, or `maxTriggerDelay` has passed since the last"
        " one; the first batch of a run does not wait, nor does `availableNow`",
    ),
    Definition("maxTriggerDelay", "stream", "15m", "see `minOffsetsPerTrigger`"),
    Definition(
        "maxBytesPerTrigger",
        "stream",
        "none",
        "about so many bytes of records (uncompressed) in a batch, `64m`, oldest commits first; at"
        " least one record",
    ),
    Definition(
        "pollInterval",
        "stream",
        "1s",
        "at least so long between two looks at the log, each of which costs one request",
    ),
    Definition("minPartitions", "read", "none", "at least about so many Spark tasks"),
    Definition("maxRecordsPerPartition", "read", "none", "at most so many offsets in a Spark task"),
    Definition("includeHeaders", "read", "false", "adds the column `headers`"),
    Definition(
        "columns",
        "read",
        "all",
        "names, separated by commas: reads only these; a subset in `.schema(…)` does the same",
    ),
    Definition(
        "keys",
        "read",
        "all",
        'JSON list of strings: reads only records with these keys, `["order-1", "order-2"]`; of'
        " large objects the key index says which rows, or only the keys are read first",
    ),
    Definition("keysBase64", "read", "all", "likewise for binary keys, each in Base64"),
    Definition(
        "partitions",
        "read, write",
        "all; 4",
        "read: the partitions to read, `0,2`; write: how many partitions a log that does not"
        " exist yet gets (for good)",
    ),
    Definition(
        "config.<name>",
        "write",
        "none",
        "Kafka topic config of a log that does not exist yet, such as `config.cleanup.policy`",
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
        "batch: with `txnVersion`, writes at or below the last version are skipped, as in Delta;"
        " stream: same as `writerId`",
    ),
    Definition("txnVersion", "write (batch)", "none", "rising number of the write, see `txnAppId`"),
    Definition("topic", "read, write", "none", "checked only: must be the log's name"),
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
        "one storage option, lower-case; `true`, `false` and JSON objects or lists are understood",
    ),
    Definition(
        "singleWriter",
        "read, write",
        "false",
        "allows a filesystem without exclusive create; only one process may write then",
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
    "timestampasof": (_DELTA, "give asOfTimestamp, milliseconds since 1970, with view=table"),
    "maxfilespertrigger": (_DELTA, "give maxOffsetsPerTrigger or maxBytesPerTrigger"),
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
