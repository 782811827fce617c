"""A table and what happens to it afterwards: the snapshot and the stream that follows it.

Both are given one version of the log: the snapshot shows it (``asOfVersion``), the stream starts
after it (``sinceVersion``). So each record is in exactly one of them, whatever is appended or
cleaned before they run, and a tombstone that was removed in between is noticed (S41). The version
must stay readable until both have run for the first time: it does for ``file.delete.delay.ms``, a
day by default. Both are given the log's id as well (``logId``), since a version means nothing in a
log that was made in its place (S47).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The latest value of each key at a version, and the stream of all records after it.

    Attributes:
        table: a DataFrame with a row for each key.
        stream: a streaming DataFrame of the records that came later.
        version: the version of the table.
        offsets: by partition, where the stream begins.
    """

    table: "DataFrame"
    stream: "DataFrame"
    version: int
    offsets: dict[int, int]


def snapshot_and_stream(spark: "SparkSession", url: str, **options: object) -> Snapshot:
    """Returns the table view of a log now, and the stream that follows it, without gap or overlap.

    Nothing is read yet. Opens the log here, on the driver: at most 5 requests.

    Args:
        spark: the session.
        url: the log.
        options: options of both reads, except the path and where they start and end.

    Raises:
        OptionError: an option is unknown, or is one of those.
        NotFoundError: there is no log at this URL.
    """
    from clog.connector.options.parsing import as_text
    from clog.connector.options.settings import read_options
    from clog.connector.read.batch_reader import check_batch
    from clog.connector.read.plan_ranges import offset_bounds, partitions_read
    from clog.connector.read.stream_reader import check_stream
    from clog.storage.log import Log

    given = {name: as_text(value) for name, value in options.items()}
    log = Log.open(read_options({**given, "path": url}).location.store())
    head, version = log.handle.tip.head, log.handle.tip.version
    meant = {**given, "logId": log.handle.standing.log_id}
    of_table = {**meant, "view": "table", "asOfVersion": str(version)}
    of_stream = {**meant, "sinceVersion": str(version)}
    check_batch(read_options({**of_table, "path": url}))
    settings = read_options({**of_stream, "path": url})
    check_stream(settings)
    starts = offset_bounds(head, partitions_read(head, settings.partitions, url=log.url))[1]
    return Snapshot(
        spark.read.format("clog").options(**of_table).load(url),
        spark.readStream.format("clog").options(**of_stream).load(url),
        version,
        starts,
    )
