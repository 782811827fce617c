"""`Log`: one log, opened. Orchestration only: each rule is in the module that names it.

A handle follows the log: a call that reports its state first looks for newer versions, which costs
one GET if there are none. Reads are planned from the newest manifest and its log start offsets.
Parts that not every log needs, for tables, transactions and published views, are made on first use.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage import administration, append
from clog.storage.administration import PARTITIONS_DEFAULT, FeatureState, is_there, new_log
from clog.storage.append import AppendResult
from clog.storage.commit.appends import Writer
from clog.storage.commit.handle import Handle, reopening
from clog.storage.config.log_config import LogConfig
from clog.storage.env import Clock, Ids, SystemClock, SystemIds
from clog.storage.erasures import Erasure, ErasureRequest, delete, erase, erasures
from clog.storage.errors import AlreadyExistsError, InvalidInputError
from clog.storage.format.documents import reader_path
from clog.storage.objects.records import Appendable
from clog.storage.objects.writer import DataObject, ObjectWriter
from clog.storage.publications.publish import Publications, PublishResult, WithdrawResult
from clog.storage.read import scan
from clog.storage.read.lookup import for_times
from clog.storage.read.table import HasTable, Table, Tables
from clog.storage.readers import (
    COMMIT_INTERVAL_MS,
    EXPIRES_AFTER_MS,
    NamedReader,
    Reader,
    check_name,
    list_readers,
)
from clog.storage.store import store_at
from clog.storage.store.contract import Store
from clog.storage.store.opening import Reach
from clog.storage.types.columns import Records, arrow_schema, html
from clog.storage.types.evolve import Changes

if TYPE_CHECKING:
    from clog.storage.cuts import Cut
    from clog.storage.diagnostics.describe import CommitInfo, LogDescription, SegmentInfo
    from clog.storage.transactions.several import TransactionInfo
    from clog.storage.transactions.transaction import Holders, Transaction

_T = TypeVar("_T")
_NOT_FOR_USERS = ("handle", "object_writer", "append_objects")
_SHOWN = ("partition", "log_start_offset", "end_offset", "records", "size_bytes", "dirty_ratio")
"""What a notebook shows of each partition."""


class Log(HasTable):
    """A keyed changelog under one root, compacted as Kafka compacts a topic.

    `create` or `open` one. Every call sees the newest version: it first looks for newer commits,
    which costs one request if there are none. Threads may share a log; processes open it by URL.

    >>> log = Log.create("memory://help-of-log")
    >>> log.append([{"key": "alice", "value": "1 espresso"}]).version
    1
    >>> log.table().get("alice")
    b'1 espresso'
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = Handle.checked(handle)
        self._parts: dict[Callable[[Handle], Any], Any] = {}

    @classmethod
    def create(
        cls,
        url: str | PathLike[str] | Store,
        partitions: int = PARTITIONS_DEFAULT,
        config: Mapping[str, object] | None = None,
        storage_options: Mapping[str, object] | None = None,
        clock: Clock | None = None,
        *,
        schema: Mapping[str, Any] | pa.Schema | None = None,
        key: str | Sequence[str] | None = None,
        like: object = None,
        exist_ok: bool = False,
        features: Iterable[str] = (),
        ids: Ids | None = None,
        single_writer: bool = False,
    ) -> Self:
        """Creates a log and opens it.

        >>> rows = [{"id": 1, "city": "Riga"}, {"id": 2, "city": "Oslo"}]
        >>> trips = Log.create("memory://help-of-create", key="id", like=rows)
        >>> trips.append(rows).version
        1
        >>> trips.table().to_pylist()
        [{'id': 1, 'city': 'Riga'}, {'id': 2, 'city': 'Oslo'}]

        Args:
            url: any fsspec URL, a local path, or a store.
            partitions: their number, from 1 to 10,000; it cannot be changed later.
            config: Kafka's topic configs and clog's own; ``cleanup.policy`` defaults to compact.
            storage_options: what fsspec needs: credentials, endpoints; with a store, the options it
                was opened with, for other logs on its filesystem.
            clock: the source of times; None: the system's clock.
            schema: the Arrow types of ``key`` and ``value``, which appends are checked against and
                reads return; also in the form of ``describe()["schema"]``; None: bytes. With
                ``key``, the types of a table's columns.
            key: the column or columns of the key: rows have the columns of ``schema`` or ``like``.
            like: data with the columns of the new log: a pandas or Polars frame, an Arrow table or
                schema, a list of dicts. Fields that are NOT NULL stay so; seconds are milliseconds.
            exist_ok: if there is a log already, open it unchanged.
            features: of the format, as `upgrade` takes them, and ``given-offsets``: then records
                come with their offsets (`append`).
            ids: the source of random ids; None: the operating system.
            single_writer: promises that nobody else writes, so creates need not be exclusive.

        Raises:
            AlreadyExistsError: there is a log at this URL, unless ``exist_ok``.
            InvalidInputError: a config, schema, feature, number of partitions or URL is invalid.
            UnsupportedFilesystemError: the filesystem cannot create exclusively.
        """
        store = store_at(url, storage_options, single_writer=single_writer)
        clock, ids = clock or SystemClock(), ids or SystemIds()
        try:
            new = new_log(partitions, config or {}, schema, features, ids=ids, key=key, like=like)
            new.create(store, clock=clock, ids=ids)
        except (AlreadyExistsError, InvalidInputError) as e:
            if not (exist_ok and is_there(store, e)):
                raise
        reach = Reach.of(url, storage_options, single_writer=single_writer)
        return cls(Handle(store, clock=clock, ids=ids, reach=reach))

    @classmethod
    def open(
        cls,
        url: str | PathLike[str] | Store,
        storage_options: Mapping[str, object] | None = None,
        clock: Clock | None = None,
        *,
        ids: Ids | None = None,
        single_writer: bool = False,
    ) -> Self:
        """Opens a log; at most 5 requests. The arguments are those of `create`.

        >>> Log.create("memory://help-of-open").version
        0
        >>> Log.open("memory://help-of-open")
        Log('memory://help-of-open', version=0)

        Raises:
            NotFoundError: there is no log at this URL.
            UnsupportedFormatError: a newer clog wrote it.
        """
        store = store_at(url, storage_options, single_writer=single_writer)
        clock, ids = clock or SystemClock(), ids or SystemIds()
        reach = Reach.of(url, storage_options, single_writer=single_writer)
        return cls(Handle(store, clock=clock, ids=ids, reach=reach))

    def __repr__(self) -> str:
        return f"Log({self.url!r}, version={self._handle.tip.version})"

    def _repr_html_(self) -> str:
        described = self.describe()
        rows: list[dict[str, Any]] = [dict(d) for d in described["partition_details"]]
        parts = pa.Table.from_pylist([{name: row[name] for name in _SHOWN} for row in rows])
        return html(
            parts, repr(self), "{objects} objects, {object_bytes} bytes".format(**described)
        )

    def __dir__(self) -> list[str]:
        """Lists the attributes that are meant for users."""
        return [name for name in super().__dir__() if name not in _NOT_FOR_USERS]

    def __reduce__(self) -> tuple[Any, ...]:
        return reopening(self._handle, type(self).open), ()

    @property
    def url(self) -> str:
        """The root, without secrets."""
        return self._handle.store.url

    @property
    def id(self) -> str:
        """The log's id, which stays the same wherever the log is moved."""
        return self._handle.standing.log_id

    @property
    def version(self) -> int:
        """The newest version."""
        return self._handle.refresh().version

    @property
    def partitions(self) -> int:
        return self._handle.tip.head.log.partitions

    @property
    def schema(self) -> pa.Schema:
        """The types of key and value."""
        return arrow_schema(self._handle.refresh().head.log.schema)

    @property
    def config(self) -> dict[str, str]:
        """The configs in force, by Kafka's names, as text: those that were set, and defaults."""
        return LogConfig.from_overrides(self._handle.refresh().head.config).as_dict()

    @property
    def handle(self) -> Handle:
        """For the cleaner and connectors, not for users."""
        return self._handle

    def append(
        self,
        data: Appendable,
        partition: int | Sequence[int] | np.ndarray[Any, Any] | None = None,
        producer: tuple[str, int] | None = None,
        *,
        offsets: Sequence[int] | np.ndarray[Any, Any] | None = None,
    ) -> AppendResult:
        """Appends records to their partitions in one atomic commit; each keeps their order.

        >>> log = Log.create("memory://help-of-append", 1)
        >>> log.append([{"key": "alice", "value": "1"}, {"key": "bob", "value": "2"}]).offsets
        {0: (0, 2)}

        Args:
            data: a pyarrow Table or RecordBatch, a pandas or Polars DataFrame (the index of a
                pandas frame is left out), any other object with ``__arrow_c_stream__``, or a list
                of dicts. It has the columns, or fields:

                - ``key``: binary or string, which is stored as UTF-8; null is no key.
                - ``value``: the same; null is a tombstone, which deletes the key.
                  In a typed log both have the types of its `schema`.
                - ``headers``, optional: lists of structs with ``key`` and ``value``; in dicts also
                  (name, value) pairs, or a dict.
                - ``timestamp``, optional: a timestamp of any unit (UTC if it has no zone), a
                  datetime, or milliseconds since 1970 as an integer. Kept to the microsecond;
                  default: the time of the call.
            partition: one for all records, or one for each; None: by the hash of the key.
            producer: (id, sequence). Repeating the producer's last sequence with the same records
                commits nothing and returns the first result; the next one must be greater.
            offsets: the offset of each record, as a mirror of a topic keeps them: an array of
                integers that ascend in each partition. For a log created with the feature
                ``given-offsets``, which requires them until `give_offsets`; with a ``producer``, or
                in a transaction.

        Raises:
            InvalidInputError: a column is unknown, missing or has a wrong type; in a compacted
                log, a record has no key; a record is larger than ``max.message.bytes``; a timestamp
                is before 1970 or outside ``message.timestamp.before.max.ms`` and ``…after.max.ms``;
                a partition does not exist; a producer's sequence went back, or came with other
                records; there are more than 2 GiB of keys or of values; in a typed log, a key or
                value does not fit the schema; offsets are given although the log assigns them, or
                missing or below its end although it takes them. Nothing is committed.
            CommitConflictError: other writers were faster each time; append again.
            CommitStateUnknownError: it may be committed; with a ``producer``, append again.
        """
        return append.append(self._handle, data, partition, producer, offsets)

    def object_writer(self, *, stamp: int | None = None) -> ObjectWriter:
        """Returns a writer of fresh objects; for connectors, not for users (COMMIT.md, K1)."""
        return append.object_writer(self._handle, stamp=stamp)

    def append_objects(
        self, objects: Sequence[DataObject], writer: Writer | None = None
    ) -> AppendResult:
        """Commits objects that tasks wrote, in this order; exactly once with a ``writer``. If the
        disk is full, they are deleted. For connectors, not for users.
        """
        return append.append_objects(self._handle, objects, writer)

    def read(
        self,
        partition: int | None = None,
        start: int | Mapping[int, int] | None = None,
        end: int | Mapping[int, int] | None = None,
        isolation: str = "read_committed",
        *,
        filter: pc.Expression | list[Any] | None = None,  # noqa: A002
        columns: Sequence[str] | None = None,
    ) -> Records:
        """Returns the records with ``start <= offset < end``, partition by partition, as an
        iterator of batches of partition, offset, timestamp, key, value and headers. Arrow, pandas,
        Polars and DuckDB take it like any stream of batches.

        >>> log = Log.create("memory://help-of-read", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> log.read(columns=["offset", "key"]).to_pylist()
        [{'offset': 0, 'key': b'alice'}]

        Args:
            partition: one, or None for all.
            start: an offset, or one by partition; None: the log start. In a gap that the cleaner
                left, reading begins at the next record.
            end: an offset, or one by partition; None: the end at the time of the call.
            isolation: ``read_committed``: up to the last stable offset; ``read_uncommitted``: also
                records of transactions that have not ended.
            filter: which records: an expression of ``pyarrow.compute`` over these columns
                (``pc.field("timestamp") > t``, ``pc.field("value", "price") > 3``), or a list of
                tuples, as ``pyarrow.parquet`` takes. Objects that cannot match by their statistics
                are not read.
            columns: the columns to read, also fields of structs (``value.price``); None: all.

        Raises:
            OffsetOutOfRangeError: a start is below the log start or beyond the end.
            InvalidInputError: a partition or a column does not exist.
            VersionExpiredError: while reading: planned objects were replaced and deleted.
            CorruptionError: while reading: an object is damaged, or something else deleted it.
        """
        handle = self._handle
        handle.refresh()
        own = (handle, partition, start, end)
        return scan.records(*own, isolation=isolation, where=filter, columns=columns)

    def table(
        self,
        partition: int | None = None,
        at: "int | str | Cut | None" = None,
        *,
        at_time_ms: int | None = None,
        filter: pc.Expression | list[Any] | None = None,  # noqa: A002
        columns: Sequence[str] | None = None,
    ) -> Table:
        """Returns the latest value of each key at a version, without deleted keys and without
        records that `delete_records` or retention has removed since.

        >>> rows = [{"id": 1, "city": "Riga", "fare": 31}, {"id": 2, "city": "Oslo", "fare": 2}]
        >>> trips = Log.create("memory://help-of-table", key="id", like=rows)
        >>> trips.append(rows).version
        1
        >>> trips.table(filter=[("fare", ">", 30)], columns=["id", "city"]).to_pylist()
        [{'id': 1, 'city': 'Riga'}]

        Args:
            partition: one, or None for all.
            at: the version, or a named cut (`snapshot`) that includes this log, also by its name,
                ``month-end`` or ``HOME_URL#month-end``; None: the newest.
            at_time_ms: instead of ``at``: the newest version committed by then, in ms since 1970.
            filter: which rows: an expression of ``pyarrow.compute`` over the table's columns, or a
                list of tuples, as ``pyarrow.parquet`` takes. It applies to rows as they are at the
                version; objects that cannot match by their statistics are not read.
            columns: the columns of the table; None: all.

        Raises:
            VersionExpiredError: the version can no longer be read; the cut was dropped, or its time
                is up. `NotFoundError`: the version does not exist yet.
            InvalidInputError: a partition or a column does not exist, or the filter is invalid.
        """
        handle = self._handle
        tip, at = handle.refresh(), self._asked(at)
        manifest = handle.manifest_asked(tip, at, at_time_ms, "at")
        again = at if hasattr(at, "logs") else manifest.version
        parts = scan.partitions_named(tip.head, partition, url=handle.store.url)
        starts, origin = tip.head.partitions.start, partial(self.table, partition, again)
        table = self._part(Tables).at(manifest, parts, starts, origin=origin)
        whole = filter is None and columns is None
        return table if whole else table.narrowed(filter, columns)

    def latest(self, start: int | Mapping[int, int], partition: int | None = None) -> Table:
        """Returns the latest record of each key that changed since a position, tombstones included,
        to bring a copy as of that position up to date. If the cleaner has removed tombstones since,
        the copy misses these deletes; a `StateTable` notices that and rebuilds.

        >>> log = Log.create("memory://help-of-latest", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> log.latest({0: 0}).get("alice")
        b'1'

        Args:
            start: an offset, or one by partition, as in `Table.offsets`.
            partition: one, or None for all that ``start`` names.

        Raises:
            OffsetOutOfRangeError: a start is below the log start or beyond the end.
        """
        handle = self._handle
        handle.refresh()
        manifest = handle.manifest()
        ranges = scan.ranges(manifest.head, partition, start, None, url=handle.store.url)
        return self._part(Tables).latest(manifest, ranges)

    def changes(
        self,
        *start: object,
        since: "int | str | Cut | None" = None,
        until: "int | str | Cut | None" = None,
        since_time_ms: int | None = None,
        until_time_ms: int | None = None,
        mode: Literal["net", "each"] = "net",
    ) -> Records:
        """Returns what changed in the table between two versions, with the rows that were replaced:
        the table's columns, ``_change_type`` (``insert``, ``delete``, ``update_preimage``,
        ``update_postimage``), ``_commit_version`` and ``_commit_timestamp``.

        >>> log = Log.create("memory://help-of-changes", key="id", like=[{"id": 1, "n": 2}])
        >>> versions = [log.append([{"id": 1, "n": n}]).version for n in (2, 3)]
        >>> [(row["_change_type"], row["n"]) for row in log.changes(since=1).to_pylist()]
        [('update_preimage', 2), ('update_postimage', 3)]

        Args:
            *start: not taken: offsets belong to `latest`.
            since: a version, or a named cut (`snapshot`), as `table` takes them.
            until: the same, with its own changes; None: the newest.
            since_time_ms: instead of ``since``: the newest version committed by then.
            until_time_ms: instead of ``until``: the same.
            mode: ``net``: at most one change of a key, that of ``until``; ``each``: by each record.

        Raises:
            VersionExpiredError: a version can no longer be read; the message says what keeps one.
            InvalidInputError: ``since`` is missing, or after ``until``; the mode is unknown.
        """
        asked = (self._asked(since), since_time_ms), (self._asked(until), until_time_ms)
        from clog.storage.read.changes import changes

        return changes(self._handle, self._part(Tables).indexes, *asked, mode=mode, offsets=start)

    def start_offsets(self) -> dict[int, int]:
        """Returns the first readable offset of each partition (the low watermark).

        >>> log = Log.create("memory://help-of-start-offsets", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> log.start_offsets()
        {0: 0}
        """
        return dict(enumerate(self._handle.refresh().head.partitions.start))

    def end_offsets(self) -> dict[int, int]:
        """Returns the offset that the next record gets (the high watermark), by partition.

        >>> log = Log.create("memory://help-of-end-offsets", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> log.end_offsets()
        {0: 1}
        """
        return dict(enumerate(self._handle.refresh().head.partitions.end))

    def stable_offsets(self) -> dict[int, int]:
        """Returns the last stable offset of each partition, where ``read_committed`` ends: no
        transaction below it is undecided. Without undecided transactions, it is the end offset.

        >>> log = Log.create("memory://help-of-stable-offsets", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> log.stable_offsets()
        {0: 1}
        """
        head = self._handle.refresh().head
        return {p: head.stable_offset(p) for p in range(head.log.partitions)}

    def offsets_for_times(self, ts_ms: int | Mapping[int, int]) -> dict[int, int | None]:
        """Returns, by partition, the offset of the first record with a timestamp at or after the
        time, or None if no record is that late.

        >>> log = Log.create("memory://help-of-offsets-for-times", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> log.offsets_for_times(0)
        {0: 0}

        Args:
            ts_ms: the time, in ms since 1970, or one by partition.
        """
        handle = self._handle
        handle.refresh()
        manifest = handle.manifest()
        times = scan.by_partition(manifest.head, ts_ms, "timestamp", url=handle.store.url)
        return for_times(handle.store, manifest, times)

    def reader(
        self,
        name: str,
        *,
        expires_after_ms: int = EXPIRES_AFTER_MS,
        interval_ms: int = COMMIT_INTERVAL_MS,
        hold_ms: int = 0,
    ) -> NamedReader:
        """Returns the reader of this name. The log stores its position, and `readers` lists it.

        >>> log = Log.create("memory://help-of-reader", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> for batch in log.reader("billing").follow(poll_ms=None):
        ...     print(batch.num_rows)
        1

        Args:
            name: 1 to 128 characters of A-Z a-z 0-9 . _ -, not a dot first.
            expires_after_ms: how long after its last commit the log may forget it.
            interval_ms: minimum interval between two reports of its position to the log.
            hold_ms: how long after its last report the cleaner should wait for it, keeping the
                tombstones that it has not reached, and its version. At most ``expires_after_ms``
                and the log's ``reader.hold.max.ms``.
        """
        return NamedReader(
            *(self._handle, name),
            expires_after_ms=expires_after_ms,
            interval_ms=interval_ms,
            hold_ms=hold_ms,
        )

    def readers(self) -> list[Reader]:
        """Returns the named readers, how far each is behind, and how long until deletion overtakes
        it; a LIST, and one to three requests for each.

        >>> log = Log.create("memory://help-of-readers", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> log.reader("billing").commit({0: 0})
        True
        >>> print(*((reader.name, reader.lag_records) for reader in log.readers()))
        ('billing', 1)
        """
        config = LogConfig.from_overrides(self._handle.refresh().head.config)
        return list_readers(self._handle, config, now_ms=self._handle.clock.now_ms())

    def forget_reader(self, name: str) -> None:
        """Forgets the reader ``name`` and its position, if there is one.

        >>> log = Log.create("memory://help-of-forget-reader", 1)
        >>> log.forget_reader("billing")
        """
        self._handle.recent()  # Raises if another log has taken this one's place.
        self._handle.store.delete(reader_path(check_name(name)))

    def transaction(
        self,
        id: str,
        timeout_ms: int = 60_000,
        *,
        visible: bool = False,
        sequence: int | None = None,
    ) -> "Transaction":
        """Begins a transaction: its records and positions are committed together or not at all. A
        ``with`` statement commits it at its end, and aborts it if an exception ends the block. A
        handle's first transaction under an id takes the id over with a commit that fences the
        previous holder; so does one that begins while the last one of this handle is open.

        >>> log = Log.create("memory://help-of-transaction", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> with log.transaction("load-7") as work:
        ...     _ = work.append([{"key": "bob", "value": "2"}])
        >>> log.end_offsets()
        {0: 2}

        Args:
            id: names the work; use the same id to continue after a crash.
            timeout_ms: how long it may take at most, from 1 to 86400000.
            visible: whether its records get offsets immediately, for readers with
                ``read_uncommitted``; it can then append to this log only.
            sequence: numbers the work; the last one is not committed again (`is_open`).

        Raises:
            InvalidInputError: an argument is out of range, or the sequence went back.
            TransactionFencedError: this handle was fenced; open the log again to take the id back.
        """
        return self._holders().begin(id, timeout_ms, visible=visible, sequence=sequence)

    def transactions(self) -> "list[TransactionInfo]":
        """Returns the open transactions of this handle, and those that the log knows because its
        records are undecided or other logs wait for it; one request.

        >>> log = Log.create("memory://help-of-transactions", 1)
        >>> log.transactions()
        []
        """
        return self._holders().infos()

    def abort_transaction(self, id: str, *, force: bool = False) -> "list[TransactionInfo]":
        """Ends the undecided transactions of an id without waiting for their timeout, and returns
        them. Those that their home has committed stay so. A holder that is alive fails to commit.

        >>> log = Log.create("memory://help-of-abort-transaction", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> work = log.transaction("load-7", visible=True)
        >>> _ = work.append([{"key": "bob", "value": "2"}])
        >>> print(*(ended.id for ended in log.abort_transaction("load-7")))
        load-7

        Args:
            id: as `transactions` lists it.
            force: end it even if its home cannot be read; if the home had committed it, this log
                loses its records. In the home: even if another log cannot be reached and never
                learns the outcome.

        Raises:
            NotFoundError: no transaction is open under this id.
            InvalidInputError: it cannot be ended now; the message gives the reason.
        """
        return self._holders().abort(id, force=force)

    def markers(self, partition: int) -> list[tuple[int, str, str, int | None]]:
        """Returns the markers of ended transactions whose records were undecided: (offset, id,
        outcome, delete horizon in ms since 1970, or None until a pass has set it).

        >>> log = Log.create("memory://help-of-markers", 1)
        >>> log.markers(0)
        []

        Args:
            partition: the partition.
        """
        from clog.storage.transactions.ids import markers_of

        return markers_of(self._handle, partition)

    @overload
    def positions(self, id: str, *, marks: Literal[False] = False) -> dict[str, dict[int, int]]: ...

    @overload
    def positions(
        self, id: str, *, marks: Literal[True]
    ) -> dict[str, dict[int, tuple[int, str | None]]]: ...

    def positions(
        self, id: str, *, marks: bool = False
    ) -> dict[str, dict[int, int]] | dict[str, dict[int, tuple[int, str | None]]]:
        """Returns the next offsets to read that were committed under an id, by source (a log's id,
        or the name of another source) and partition. After a crash, begin a transaction first, so
        that requests of the former process cannot change them later.

        >>> log = Log.create("memory://help-of-positions", 1)
        >>> with log.transaction("load-7") as work:
        ...     work.positions("kafka:c/t", {0: 42})
        >>> log.positions("load-7")
        {'kafka:c/t': {0: 42}}

        Args:
            id: as of `transaction`.
            marks: return (offset, mark) for each offset; the mark is None if none was given.
        """
        holders = self._holders()
        return holders.marked_positions(id) if marks else holders.positions(id)

    def sequence(
        self, id: str, *, kind: Literal["producer", "transaction"] | None = None
    ) -> int | None:
        """Returns the sequence committed last under a producer's or a transaction's id, or None.
        First withdraws appends that an interrupted or dead process left for others to commit, so
        that a process that continues from the number is not overtaken.

        >>> log = Log.create("memory://help-of-sequence", 1)
        >>> log.append([{"key": "alice", "value": "1"}], producer=("till-3", 7)).version
        1
        >>> log.sequence("till-3")
        7

        Args:
            id: as in ``producer=(id, sequence)``, or as of `transaction`.
            kind: which of the two; needed only if both have used the id.
        """
        from clog.storage.transactions.ids import last_sequence

        return last_sequence(self._handle, id, kind)

    def delete_records(self, before: Mapping[int, int]) -> dict[int, int]:
        """Raises log start offsets, and returns those of the named partitions. Reads planned from
        now on see no records below them.

        >>> log = Log.create("memory://help-of-delete-records", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> log.delete_records({0: -1})
        {0: 1}

        Args:
            before: by partition, the first offset to keep; -1: the end offset as of the call.

        Raises:
            OffsetOutOfRangeError: an offset is below -1 or beyond the end; nothing is changed.
        """
        return administration.delete_records(self._handle, before)

    def delete(self, keys: Iterable[Any]) -> AppendResult:
        """Deletes keys by one append of tombstones, each in the partition of its key's hash only.

        >>> log = Log.create("memory://help-of-delete", key="id", like=[{"id": 1, "n": 2}])
        >>> _ = log.append([{"id": 1, "n": 2}])
        >>> log.delete([1]).version, log.table().to_pylist()
        (2, [])

        Args:
            keys: as `Table.get_many` takes them. Those that do not exist are no error.

        Raises:
            InvalidInputError: the log cannot have such a key, or takes offsets from its source;
                nothing is appended.
        """
        return delete(self._handle, keys)

    def erase(self, keys: Iterable[Any], *, notify: bool = True) -> ErasureRequest:
        """Asks for the erasure of every byte of all records that these keys have by now: values,
        headers and the keys themselves, old versions included. The cleaner's rounds carry it out;
        `erasures` shows their progress and, at the end, the receipt.

        >>> log = Log.create("memory://help-of-erase", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> request = log.erase(["alice"])
        >>> print(log.table().get("alice"))
        None

        Args:
            keys: as `Table.get` takes them; up to 100,000.
            notify: append a tombstone for each key, which tells followers, and is removed
                ``delete.retention.ms`` later. Without, the erasure ends that much sooner, and state
                tables that had read the records are rebuilt.

        Raises:
            InvalidInputError: there are no keys, too many, or keys that the log cannot have;
                ``notify`` in a log that takes offsets. Nothing is changed.
        """
        return erase(self._handle, keys, notify=notify)

    def erasures(self) -> list[Erasure]:
        """Returns the pending erasures, with what they wait for, and receipts; oldest first.

        >>> log = Log.create("memory://help-of-erasures", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> request = log.erase(["alice"])
        >>> log.erasures()[0].id == request.id
        True
        """
        return erasures(self._handle)

    def alter(self, config: Mapping[str, object]) -> dict[str, str]:
        """Changes configs and returns those in force; None resets one to its default. They apply to
        appends, reads and passes that begin later.

        >>> log = Log.create("memory://help-of-alter", 1)
        >>> log.alter({"segment.ms": "1h"})["segment.ms"]
        '3600000'

        Raises:
            InvalidInputError: a config is invalid; nothing is changed.
        """
        return administration.alter(self._handle, config)

    def evolve(
        self,
        add: Mapping[str, pa.DataType] = {},
        widen: Mapping[str, pa.DataType] = {},
        relax: Iterable[str] = (),
        *,
        rename: Mapping[str, str] = {},
        drop: Iterable[str] = (),
    ) -> pa.Schema:
        """Changes the schema of a typed log, with which all records are read then; returns it.

        >>> log = Log.create("memory://help-of-evolve", key="id", like=[{"id": 1, "n": 2}])
        >>> log.evolve(add={"note": pa.string()}, rename={"n": "count"}).field("value").type
        StructType(struct<count: int64, note: string>)

        Args:
            add: new nullable fields, by path, ``value.note``, or column: ``{"note": pa.string()}``.
            widen: wider types of the same kind: integers, floats, decimals.
            relax: fields that were NOT NULL and become nullable.
            rename: new names of fields, by path.
            drop: fields of the value; a new one of that name has none of their values.

        Raises:
            InvalidInputError: any other change, or no such field; nothing is changed.
        """
        given = Changes.given(add, widen, relax, rename, drop)
        return arrow_schema(administration.evolve(self._handle, given))

    def upgrade(self, features: Iterable[str] = ()) -> list[FeatureState]:
        """Adds features of the format, and what each log has but an older one lacks, in one commit
        and permanently, and returns all features; without ``features`` it changes nothing. Releases
        that do not know a feature refuse the log from then on.

        >>> log = Log.create("memory://help-of-upgrade")
        >>> "proposals" in [state.name for state in log.upgrade()]
        True

        Raises:
            InvalidInputError: a feature is unknown, or only for new logs.
        """
        return administration.upgrade(self._handle, features)

    def give_offsets(self) -> int:
        """Makes a log that takes offsets from its source assign them itself, permanently, as other
        logs do, and returns the version that did. From then on anyone may append to it, and appends
        with offsets are refused.

        >>> mirror = Log.create("memory://help-of-give-offsets", 1, features=["given-offsets"])
        >>> mirror.give_offsets()
        1

        Raises:
            InvalidInputError: the log is not a mirror.
        """
        return administration.give_offsets(self._handle)

    def roll(self, partition: int | None = None) -> list[int]:
        """Seals the active segments of a ``partition``, or of all, so that they can be cleaned.
        Returns the partitions in which there was something to seal.

        >>> log = Log.create("memory://help-of-roll", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> log.roll()
        [0]
        """
        return administration.roll(self._handle, partition)

    def publish(self, format: str) -> PublishResult:
        """Publishes the newest version's table as a view for other engines: ``delta`` at the log's
        own URL, ``iceberg`` at ``metadata/v<table_version>.metadata.json`` under it. The view
        refers to the log's objects and copies none. Does nothing if the version is published.

        >>> log = Log.create("memory://help-of-publish", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> log.publish("delta").version
        1

        Raises:
            InvalidInputError: the format is unknown, or has no type for a field of the schema; the
                objects lack the timestamps; another table is at the URL; a package is missing.
                Nothing is changed.
            StoreUnavailableError: the store refuses to write the view, or failed.
        """
        return self._part(Publications).publish(format)

    def withdraw(self, format: str, *, force: bool = False) -> WithdrawResult:
        """Withdraws a published view: its newest version is empty from now on, and its older
        versions expire. After at most ``file.delete.delay.ms``, the cleaner keeps nothing for it
        any more. It may be published again; while ``table.publish`` names the format, the cleaner
        does that in its next round.

        >>> log = Log.create("memory://help-of-withdraw", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> _ = log.publish("delta")
        >>> _ = log.withdraw("delta")

        Args:
            format: ``delta`` or ``iceberg``.
            force: give the view up even if the store refuses to write that version. From then on
                the view's files refer to objects that the cleaner deletes, as may a version that is
                being published at this moment.

        Raises:
            InvalidInputError: the format is unknown, or another table is at the URL.
            StoreUnavailableError: the store refuses to write the view, or failed.
            CorruptionError: the view cannot be read.
        """
        return self._part(Publications).withdraw(format, force=force)

    def segments(self, partition: int) -> "list[SegmentInfo]":
        """Returns the segments of a partition in offset order, the active one last.

        >>> log = Log.create("memory://help-of-segments", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> print(*((part.base_offset, part.active) for part in log.segments(0)))
        (0, True)
        """
        from clog.storage.diagnostics.describe import segment_infos

        return segment_infos(self._handle, partition)

    def history(self, start: int = 0) -> "Iterator[CommitInfo]":
        """Yields what each commit from version ``start`` did, oldest first; one request each.
        Commits that were swept are left out.

        >>> log = Log.create("memory://help-of-history", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> print(*(commit.operation for commit in log.history()))
        create append
        """
        from clog.storage.diagnostics.describe import history

        return history(self._handle, self._handle.refresh(), start)

    def describe(self, *, waits: bool = False) -> "LogDescription":
        """Returns the log's identity, content, and clean and dirty parts, as a dict for JSON;
        ``waits``: with how long appends wait for others to commit them, by one LIST or two.

        >>> log = Log.create("memory://help-of-describe", 1)
        >>> _ = log.append([{"key": "alice", "value": "1"}])
        >>> log.describe()["objects"]
        1
        """
        self._handle.standing.check()  # The log may be gone, even if all is known already.
        from clog.storage.diagnostics.describe import describe

        return describe(self._handle, waits=waits)

    def _holders(self) -> "Holders":
        from clog.storage.transactions.transaction import Holders

        return self._part(Holders)

    def _asked(self, at: Any) -> Any:
        """Returns a version, or a cut, also one that a text names."""
        if isinstance(at, str):
            from clog.storage.cuts import cut_asked

            at = cut_asked(self._handle, at)
        return at

    def _part(self, make: Callable[[Handle], _T]) -> _T:
        """Returns what this makes of the handle: the same each time, for all threads."""
        made: _T | None = self._parts.get(make)
        # Two threads may each make one; a single step keeps one of them.
        return self._parts.setdefault(make, make(self._handle)) if made is None else made
