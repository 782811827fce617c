"""Functions for users of Spark, in addition to ``format("clog")``.

*A stream beside a table* (`beside_table`). Spark plans a table that a stream is joined with once,
when the query starts; it then shows that version until the query ends. In ``foreachBatch`` the
table is read anew for each batch, at the newest version of that moment, and stays at it for
everything done with the batch. A repeated batch may see a newer version than the first time.

*Reads by Spark's own scan* (`read_table`, `read_log`), and counts without one (`count_table`,
`count_log`), are in `native`.

*What the options of a batch read leave out* (`explain`): Spark's own ``explain`` does not know it.
It is for information only: a read gives the same rows whatever was pruned.

*How far a streaming query is behind* (`lag`). A Python source cannot report its own metrics, but
the progress contains the offsets: their difference is what Spark's Kafka source calls
``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest``.

*A table and its later changes* (`snapshot_and_stream`). Both get one version of the log: the
snapshot shows it (``asOfVersion``), the stream starts after it (``sinceVersion``). So each record
is in exactly one of them, whatever is appended or cleaned before they run, and the removal of a
tombstone in between is noticed (S41). The version must stay readable until both have run for the
first time: it does for ``file.delete.delay.ms``, a day by default. Both also get the log's id
(``logId``), since a version means nothing in a log that was created in its place (S47).
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clog.connector.options import read_options, texts_of
from clog.storage.env import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from clog.connector.read.batch_reader import BatchRead
    from clog.storage.format.manifest import Manifest
    from clog.storage.objects.reader import Footprint
    from clog.storage.read.scan import ReadPiece


def beside_table(
    url: str, each_batch: "Callable[[DataFrame, DataFrame, int], None]", **options: object
) -> "Callable[[DataFrame, int], None]":
    """Returns a function for ``foreachBatch``, which calls ``each_batch(df, table, batch_id)`` with
    the table view of a log as of the beginning of the batch. Costs one request per batch, plus
    reading the part of the table that the batch uses.

    Args:
        url: the log.
        each_batch: what to do with a batch and the table.
        options: further options of the table's read, such as ``columns`` or ``keys``.

    Raises:
        OptionError: an option is unknown, or is ``view`` or a version.

    >>> def enrich(df, table, batch_id):
    ...     df.join(table, "key").write.format("noop").mode("append").save()
    >>> each_batch = beside_table("memory://help-of-accounts", enrich, columns="key,value")
    """
    from clog.connector.read.batch_reader import check_batch
    from clog.storage.errors import OptionError

    given = texts_of(options)
    if own := {"view", "asofversion", "asoftimestamp", "path"} & given.keys():
        raise OptionError(f"options {sorted(own)} are set by beside_table; leave them out")
    settings = read_options({**given, "view": "table", "path": url})
    check_batch(settings)

    def with_table(df: "DataFrame", batch_id: int) -> None:
        from clog.connector.opened_logs import opened

        version = opened(settings.location).handle.refresh().version
        of_table = {**given, "view": "table", "asofversion": str(version)}
        table = df.sparkSession.read.format("clog").options(**of_table).load(url)
        each_batch(df, table, batch_id)

    return with_table


def read_table(
    spark: "SparkSession", url: str, version: int | None = None, **options: object
) -> "DataFrame":
    """Returns the latest value of each key at a version of a log, read by Spark's own scan.

    The columns are ``key``, ``value`` and ``timestamp``, and ``headers`` with ``includeHeaders``;
    a log with ``table.key.columns`` has its plain columns.

    Args:
        spark: the session.
        url: the log.
        version: of the log; None: the newest.
        options: of ``format("clog")`` with ``view=table``, such as ``columns`` (``partition`` and
            ``offset`` can be asked for, too), ``keys`` or ``partitions``.

    Raises:
        OptionError: an option is unknown, or is ``view``, ``path`` or ``asOfVersion``.
        NotFoundError: there is no log at this URL, or the version does not exist yet.
        VersionExpiredError: the version is no longer readable.

    >>> from clog.storage import Log
    >>> rows = [{"id": 1, "city": "Riga"}, {"id": 2, "city": "Oslo"}]
    >>> _ = Log.create("help-of-read-table", key="id", like=rows).append(rows)
    >>> read_table(spark, "help-of-read-table").where("id = 2").first().city
    'Oslo'
    """
    from clog.connector.native import table_frame

    return table_frame(spark, url, version, options)


def read_log(spark: "SparkSession", url: str, **options: object) -> "DataFrame":
    """Returns the records of a log as of now, read by Spark's own scan; the columns are those of
    ``format("clog")``.

    Args:
        spark: the session.
        url: the log.
        options: of ``format("clog")`` with ``view=log``, such as ``startingOffsets`` or
            ``columns``.

    Raises:
        OptionError: an option is unknown, or is ``view`` or ``path``.
        NotFoundError: there is no log at this URL.
        OffsetOutOfRangeError: a start or an end is gone or does not exist yet, and
            ``failOnDataLoss`` is set.

    >>> from clog.storage import Log
    >>> log = Log.create("help-of-read-log", partitions=1)
    >>> _ = log.append([{"key": "tea", "value": "2.50"}, {"key": "tea", "value": "2.80"}])
    >>> bytes(read_log(spark, log.url, columns="offset,value").where("offset = 1").first().value)
    b'2.80'
    """
    from clog.connector.native import log_frame

    return log_frame(spark, url, options)


def count_table(url: str, version: int | None = None, **options: object) -> int:
    """Returns how many rows `read_table` has. Reads no rows where masks say which rows count, and
    only keys elsewhere. Needs no session; Spark's own ``count()`` scans.

    Args:
        url: the log.
        version: of the log; None: the newest.
        options: those of `read_table`.

    Raises:
        OptionError: an option is unknown, or is ``view``, ``path`` or ``asOfVersion``.
        NotFoundError: there is no log at this URL, or the version does not exist yet.
        VersionExpiredError: the version is no longer readable.

    >>> from clog.storage import Log
    >>> log = Log.create("memory://help-of-count-table", partitions=1)
    >>> _ = log.append([{"key": "tea", "value": "2.50"}, {"key": "tea", "value": "2.80"}])
    >>> count_table(log.url)
    1
    """
    from clog.connector.native import table_count

    return table_count(url, version, options)


def count_log(url: str, **options: object) -> int:
    """Returns how many records `read_log` has; reads no rows. Needs no session.

    Args:
        url: the log.
        options: those of `read_log`, except ``keys``.

    Raises:
        OptionError: an option is unknown, or is ``view``, ``path``, ``keys`` or ``keysBase64``.
        NotFoundError: there is no log at this URL.
        OffsetOutOfRangeError: a start or an end is gone or does not exist yet, and
            ``failOnDataLoss`` is set.

    >>> from clog.storage import Log
    >>> log = Log.create("memory://help-of-count-log", partitions=1)
    >>> _ = log.append([{"key": "tea", "value": "2.50"}, {"key": "tea", "value": "2.80"}])
    >>> count_log(log.url)
    2
    """
    from clog.connector.native import log_count

    return log_count(url, options)


@dataclass(frozen=True, slots=True)
class Share:
    """How many things a read fetches, and how many there are.

    Attributes:
        read: how many it fetches.
        total: how many there are.
    """

    read: int
    total: int

    def __str__(self) -> str:
        return f"{self.read:,} of {self.total:,}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a read would fetch from a log at one version; `str` prints it.

    Attributes:
        url: the log.
        version: the version that would be read.
        partitions: the share of partitions.
        segments: the share of segments that hold records.
        objects: the share of data objects.
        row_groups: the share of row groups of the objects that are read.
        size_bytes: the share of the bytes of all the version's objects, including those for the
            search for ``keys``.
    """

    url: str
    version: int
    partitions: Share
    segments: Share
    objects: Share
    row_groups: Share
    size_bytes: Share

    def __str__(self) -> str:
        shares = {
            "partitions": self.partitions,
            "segments": self.segments,
            "objects": self.objects,
            "row groups": self.row_groups,
            "bytes": self.size_bytes,
        }
        lines = [f"{name:<10}  {share}" for name, share in shares.items()]
        return "\n".join((f"{self.url} at version {self.version} reads", *lines))


def explain(source: str | Mapping[str, str], **options: object) -> Explanation:
    """Explains what ``spark.read.format("clog")`` with these options would read now; needs no Spark
    session.

    Costs as much as opening the log, plus a request for each object that is read and, with
    ``keys``, the search for them.

    Args:
        source: the log's URL, or all options of the read as a mapping (with ``path``).
        options: the options of the read, as Spark takes them.

    Raises:
        OptionError: as in the read.
        NotFoundError: there is no log.

    >>> from clog.storage import Log
    >>> log = Log.create("memory://help-of-explain", partitions=1)
    >>> _ = log.append([{"key": "tea", "value": "2.50"}])
    >>> explain(log.url, columns="key").segments
    Share(read=1, total=1)
    """
    from clog.connector.read.batch_reader import BatchRead, check_batch
    from clog.storage.log import Log

    given = {"path": source} if isinstance(source, str) else dict(source)
    given |= texts_of(options)
    settings = read_options(given)
    check_batch(settings)
    return _explained(BatchRead.of(Log.open(settings.location.store()).handle, settings))


def _explained(read: "BatchRead") -> Explanation:
    from clog.connector.schema import stored_columns
    from clog.storage.read.scan import footprints

    schema, table = read.schema, read.table
    columns = stored_columns(schema if table is None else table.as_records(schema))
    if (read.options.keys is not None or read.options.view != "log") and "key" not in columns:
        columns.append("key")
    store, manifest = read.handle.store, read.manifest()
    pieces, searched = _pieces(read)
    prints = list(footprints(store, pieces, columns=columns))
    objects = {chunk.object.path for _, chunk in manifest.chunks()}
    return Explanation(
        store.url,
        manifest.version,
        Share(len({piece.partition for piece in pieces}), len(manifest.segments)),
        _segments(manifest, pieces),
        Share(len({p.path for p in prints}), len(objects)),
        Share(sum(p.row_groups for p in prints), _row_groups_total(prints)),
        Share(sum(p.fetched_bytes for p in prints) + searched, sum(manifest.files().values())),
    )


def _pieces(read: "BatchRead") -> tuple[list["ReadPiece"], int]:
    """Returns the pieces that are read, and how many bytes were fetched to find them."""
    from clog.storage.read.lookup import is_searched, pieces_of_keys
    from clog.storage.read.scan import footprints

    store, keys = read.handle.store, read.options.keys
    pieces = [piece for piece in read.pieces() if piece.rows]
    if keys is None:
        return pieces, 0
    searched = [piece for piece in pieces if is_searched(piece)]
    unknown = [piece for piece in searched if not piece.object.index_bytes]
    tails = {p.object: p.object.tail for p in searched if p.object.index_bytes}
    prints = footprints(store, unknown, columns=("offset", "key"))
    seed = read.handle.manifest().head.log.key_seed
    found = list(pieces_of_keys(store, pieces, keys, seed))
    asked_bytes = sum(end - start for start, end in tails.values())
    return found, asked_bytes + sum(p.fetched_bytes for p in prints)


def _segments(manifest: "Manifest", pieces: list["ReadPiece"]) -> Share:
    filled = [
        (p, segment.base, segment.next)
        for p, segments in enumerate(manifest.segments)
        for segment in segments
        if segment.chunks
    ]
    starts: dict[int, list[int]] = {}
    for piece in pieces:
        starts.setdefault(piece.partition, []).append(piece.start)
    read = sum(any(base <= start < end for start in starts.get(p, ())) for p, base, end in filled)
    return Share(read, len(filled))


def _row_groups_total(prints: list["Footprint"]) -> int:
    # The row groups of an object that is read in several runs count once.
    return sum({p.path: p.row_groups_total for p in prints}.values())


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one source is behind its log.

    Attributes:
        partitions: by partition, the offsets between the end of the last batch and the end of the
            log.
        log: the log's name; empty if an older clog made the last batch.
    """

    partitions: Mapping[int, int]
    log: str = ""

    @property
    def min_offsets_behind_latest(self) -> int:
        """The smallest lag of a partition; 0 without partitions."""
        return min(self.partitions.values(), default=0)

    @property
    def max_offsets_behind_latest(self) -> int:
        """The lag of the partition that is furthest behind."""
        return max(self.partitions.values(), default=0)

    @property
    def avg_offsets_behind_latest(self) -> float:
        """The mean lag of the partitions."""
        return sum(self.partitions.values()) / max(1, len(self.partitions))


def lag(progress: Any) -> list[Lag]:
    """Returns one `Lag` for each clog source of a query, in the order of its sources.

    Args:
        progress: ``query.lastProgress``, or the progress that a ``StreamingQueryListener`` gets;
            None, before the first progress, has no sources.

    >>> source = {"endOffset": {"0": 5, "1": 9, "version": 3}, "latestOffset": {"0": 7, "1": 9}}
    >>> lag({"sources": [source]})[0].max_offsets_behind_latest
    2
    """
    found = []
    for source in _field(progress, "sources") or ():
        values = (_parsed(_field(source, name)) for name in ("endOffset", "latestOffset"))
        (at, named), (latest, _) = ((_offsets(value), value) for value in values)
        if at and latest:
            behind = {p: max(0, end - at[p]) for p, end in latest.items() if p in at}
            found.append(Lag(behind, str(named.get("log", ""))))
    return found


def _field(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _parsed(value: Any) -> Mapping[str, Any]:
    """Returns the object in a JSON text; an empty one for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def _offsets(value: Mapping[str, Any]) -> dict[int, int]:
    """Returns a clog source's offsets by partition; an empty dict for other sources."""
    return {int(p): n for p, n in value.items() if p.isdigit() and type(n) is int}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The latest value of each key at a version, and the stream of all records after it.

    Attributes:
        table: a DataFrame with a row for each key.
        stream: a streaming DataFrame of the later records.
        version: the version of the table.
        offsets: by partition, where the stream begins.
    """

    table: "DataFrame"
    stream: "DataFrame"
    version: int
    offsets: dict[int, int]


def snapshot_and_stream(spark: "SparkSession", url: str, **options: object) -> Snapshot:
    """Returns the table view of a log now, and the stream that follows it, without gap or overlap.

    Reads nothing yet, but opens the log here, on the driver, in at most 5 requests.

    Args:
        spark: the session.
        url: the log.
        options: options of both reads, except the path, and those for where they start and end.

    Raises:
        OptionError: an option is unknown, or is one of these.
        NotFoundError: there is no log at this URL.

    >>> from clog.storage import Log
    >>> log = Log.create("help-of-snapshot", partitions=1)
    >>> _ = log.append([{"key": "tea", "value": "2.50"}])
    >>> accounts = snapshot_and_stream(spark, log.url)
    >>> accounts.table.count(), accounts.stream.isStreaming
    (1, True)
    """
    from clog.connector.read.batch_reader import check_batch
    from clog.connector.read.plan import offset_bounds, partitions_read
    from clog.connector.read.stream_reader import check_stream
    from clog.storage.log import Log

    given = texts_of(options)
    log = Log.open(read_options({**given, "path": url}).location.store())
    head, version = log.handle.tip.head, log.handle.tip.version
    common = {**given, "logid": log.handle.standing.log_id}
    of_table = {**common, "view": "table", "asofversion": str(version)}
    of_stream = {**common, "sinceversion": str(version)}
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
