"""A table and what happens to it afterwards: the snapshot and the stream that follows it.

Both are told one version of the log: the snapshot shows it (``asOfVersion``), the stream starts
after it (``sinceVersion``). So no record is in both or in neither, whatever is appended or cleaned
before either of them runs, and a tombstone that was removed in between is noticed (S41). The
version must be kept until both have run for the first time: for ``file.delete.delay.ms``, a day.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The latest value of each key at a version, and the stream of all records after it.

    ``offsets``: by partition where the stream begins.
    """

    table: "DataFrame"
    stream: "DataFrame"
    version: int
    offsets: dict[int, int]


def snapshot_and_stream(spark: "SparkSession", url: str, **options: object) -> Snapshot:
    """The table view of a log now, and the stream that follows it, without gap or overlap.

    Nothing is read yet. Opens the log here, on the driver: at most 5 requests.

    Args:
        spark: the session.
        url: the log.
        options: of both reads, but for those that say where they start, end or are.

    Raises:
        OptionError: an option is unknown, or says that.
        NotFoundError: there is no log.
    """
    from clog.connector.batch_reader import check_batch
    from clog.connector.option_values import as_text
    from clog.connector.options import read_options
    from clog.connector.planned import bounds, partitions_read
    from clog.connector.stream_reader import check_stream
    from clog.storage.log import Log

    given = {name: as_text(value) for name, value in options.items()}
    log = Log.open(read_options({**given, "path": url}).location.store())
    head, version = log.handle.tip.head, log.handle.tip.version
    of_table = {**given, "view": "table", "asOfVersion": str(version)}
    of_stream = {**given, "sinceVersion": str(version)}
    check_batch(read_options({**of_table, "path": url}))
    settings = read_options({**of_stream, "path": url})
    check_stream(settings)
    starts = bounds(head, partitions_read(head, settings.partitions, url=log.url))[1]
    return Snapshot(
        spark.read.format("clog").options(**of_table).load(url),
        spark.readStream.format("clog").options(**of_stream).load(url),
        version,
        starts,
    )
