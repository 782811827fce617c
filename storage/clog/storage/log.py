"""`Log`: one log, opened. Orchestration only: each rule is in the module that names it.

A handle follows the log: a call that answers about its state first looks for newer versions, which
    costs one GET when there is none.
Several threads may share it; it cannot be pickled (give the URL instead).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa

from clog.storage import administration, offsets
from clog.storage.append import (
    AppendRequest,
    AppendResult,
    Writer,
    check_records,
    check_writer,
    first_result,
    partitions_of,
    producer_of,
    result_of,
)
from clog.storage.as_of import version_asked
from clog.storage.changes import plan_changes
from clog.storage.clock import Clock, SystemClock
from clog.storage.commit import Answer
from clog.storage.commits import edit_of
from clog.storage.config import LogConfig
from clog.storage.create import create_log
from clog.storage.data_object import DataObject
from clog.storage.describe import SegmentInfo, describe, segment_infos
from clog.storage.errors import InvalidInputError, VersionExpiredError
from clog.storage.handle import Handle
from clog.storage.history import CommitInfo, history
from clog.storage.ids import Ids, SystemIds
from clog.storage.key_indexes import KeyIndexes
from clog.storage.manifest import Manifest
from clog.storage.object_writer import ObjectWriter
from clog.storage.reader import plan_range, read_pieces
from clog.storage.records import Appendable, to_records
from clog.storage.store import open_store
from clog.storage.store.base import Store
from clog.storage.table import Table, plan_table

PARTITIONS_MAX = 4096
"""Tested limit: heads and commits hold columns over the partitions."""


class Log:
    """A keyed changelog under one root.

    Make one with `create` or `open`; see `storage/README.md` for an example.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._indexes = KeyIndexes(handle.store, seed=handle.tip.head.log.key_seed)

    @classmethod
    def create(
        cls,
        url: str | Store,
        partitions: int = 4,
        config: Mapping[str, object] | None = None,
        storage_options: Mapping[str, object] | None = None,
        clock: Clock | None = None,
        *,
        ids: Ids | None = None,
        single_writer: bool = False,
    ) -> Self:
        """Creates a log and opens it.

        Args:
            url: any fsspec URL or local path; or a store.
            partitions: 1 to 4096, for good.
            config: Kafka's topic configs (S42, S43) and clog's own; ``cleanup.policy`` is
                ``compact`` unless given.
            storage_options: for fsspec: credentials, endpoints.
            clock: the system's, unless given; as are ``ids``.
            ids: where random ids come from.
            single_writer: the caller promises that nobody else writes, so the filesystem need not
                create exclusively.

        Raises:
            AlreadyExistsError: there is a log.
            InvalidInputError: a config that is unknown or out of range, a number of partitions that
                is.
            UnsupportedFilesystemError: the filesystem cannot create exclusively.
        """
        if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidInputError(
                f"partitions={partitions!r} is out of range; allowed: 1 to {PARTITIONS_MAX}"
            )
        store = _store(url, storage_options, single_writer=single_writer)
        clock, ids = clock or SystemClock(), ids or SystemIds()
        create_log(store, partitions=partitions, config=config or {}, clock=clock, ids=ids)
        return cls(Handle(store, clock=clock, ids=ids))

    @classmethod
    def open(
        cls,
        url: str | Store,
        storage_options: Mapping[str, object] | None = None,
        clock: Clock | None = None,
        *,
        ids: Ids | None = None,
        single_writer: bool = False,
    ) -> Self:
        """Opens a log; at most 5 requests.

        Raises:
            NotFoundError: there is none under this URL.
            UnsupportedFormatError: it was written by a newer clog.
        """
        store = _store(url, storage_options, single_writer=single_writer)
        return cls(Handle(store, clock=clock or SystemClock(), ids=ids or SystemIds()))

    def __repr__(self) -> str:
        return f"Log({self.url!r}, version={self._handle.tip.version})"

    @property
    def url(self) -> str:
        """The root, without secrets."""
        return self._handle.store.url

    @property
    def version(self) -> int:
        """The newest version."""
        return self._handle.refresh().version

    @property
    def partitions(self) -> int:
        return self._handle.tip.head.log.partitions

    @property
    def config(self) -> dict[str, str]:
        """The configuration in force, by Kafka's names: what was set, and defaults (S42)."""
        return LogConfig.from_overrides(self._handle.refresh().head.config).as_dict()

    @property
    def handle(self) -> Handle:
        """What maintenance and connectors build on; not for users."""
        return self._handle

    def append(
        self,
        data: Appendable,
        partition: int | Sequence[int] | np.ndarray[Any, Any] | None = None,
        producer: tuple[str, int] | None = None,
    ) -> AppendResult:
        """Appends records to all partitions they belong to, in one atomic commit; their order stays
        (S44).

        Args:
            data: what `records.to_records` accepts.
            partition: one for all, or one for each record; None: by the hash of the key.
            producer: (id, sequence): the same sequence again is answered with the first result and
                commits nothing.

        Raises:
            InvalidInputError: a record without key in a compacted log (S5), one too large (S6), a
                timestamp out of bounds (S9), a partition that does not exist, a producer's sequence
                that went back or came with other records. Nothing is committed.
            CommitStateUnknownError: the commit may have happened.
        """
        handle = self._handle
        records, stamped = to_records(data, now_us=handle.clock.now_us())
        if records.num_rows == 0:
            return AppendResult(handle.tip.version)
        parts = partitions_of(records, partition, handle.tip.head, url=self.url)
        writer = None if producer is None else producer_of(producer, records, stamped=stamped)
        if writer is not None:
            try:
                check_writer(handle.store, handle.recent().head, writer)
            except Answer as answer:
                return first_result(handle.store, answer.value)
        self._check_records(records)
        objects = self.object_writer()
        objects.add(records, parts)
        return self.append_objects(objects.finish(), writer)

    def object_writer(self, *, stamp: int | None = None) -> ObjectWriter:
        """A writer of fresh objects, for tasks that hand what it made to `append_objects`
        (COMMIT.md step 1).
        """
        tip = self._handle.recent()
        config = LogConfig.from_overrides(tip.head.config)
        return ObjectWriter(
            self._handle.store,
            stamp=tip.version if stamp is None else stamp,
            new_id=self._handle.ids.new_id,
            partitions=self.partitions,
            compression=config.compression,
            object_bytes=config.object_bytes,
        )

    def append_objects(
        self, objects: Sequence[DataObject], writer: Writer | None = None
    ) -> AppendResult:
        """Commits objects that tasks wrote, in this order; with ``writer``, once.

        Raises:
            as `append`; CommitConflictError: the objects are older than the sweep's floor.
        """
        handle = self._handle
        request = AppendRequest(handle.store, objects, writer, handle.ids.uniform)
        try:
            commit = handle.commit(request.prepare, operation="append")
        except Answer as answer:
            return first_result(handle.store, answer.value)
        return result_of(commit.version, edit_of(handle.store, commit.record).add)

    def read(
        self,
        partition: int | None = None,
        start: int | Mapping[int, int] | None = None,
        end: int | Mapping[int, int] | None = None,
        isolation: str = "read_uncommitted",
    ) -> Iterator[pa.RecordBatch]:
        """Records with ``start <= offset < end``, partition by partition, as batches of
        `READ_SCHEMA`.

        Args:
            partition: one, or None for all.
            start: an offset, or one by partition; None: the log start. In a gap: the next record
                there is (S1).
            end: likewise; None: the end at the time of the call.
            isolation: ``read_uncommitted`` or ``read_committed`` (S40).

        Raises:
            OffsetOutOfRangeError: a start below the log start or beyond the end (S38).
            InvalidInputError: a partition that does not exist.
            VersionExpiredError: while reading: what the call planned was cleaned and swept since,
                longer than ``file.delete.delay.ms`` ago.
        """
        if isolation not in ("read_uncommitted", "read_committed"):
            raise InvalidInputError(
                f"isolation={isolation!r}; allowed: read_uncommitted, read_committed"
            )
        self._handle.refresh()
        manifest = self._handle.manifest()
        ranges = offsets.ranges(manifest.head, partition, start, end, url=self.url)
        return self._read(manifest, ranges)

    def table(
        self, partition: int | None = None, at: int | None = None, *, at_time_ms: int | None = None
    ) -> Table:
        """The latest value of each key at a version; tombstoned keys are absent, and so is what
        was deleted since (`delete_records`, retention).

        Args:
            partition: one, or None for all.
            at: the version; None: the newest.
            at_time_ms: instead of ``at``: the newest version committed by then, ms since 1970.

        Raises:
            VersionExpiredError: below the oldest readable version, or beyond the newest.
        """
        tip = self._handle.refresh()
        manifest = self._handle.manifest_at(version_asked(self._handle.store, tip, at, at_time_ms))
        parts = offsets.partitions_named(tip.head, partition, url=self.url)
        starts, ends = tip.head.partitions.start, manifest.head.partitions.end
        plans = [plan_table(manifest, p, starts[p]) for p in parts]
        return Table(
            self._indexes, manifest.version, plans, {p: max(ends[p], starts[p]) for p in parts}
        )

    def changes(self, start: int | Mapping[int, int], partition: int | None = None) -> Table:
        """The latest record of each key changed since, tombstones included: what brings a copy of
        that position up to date. Unless it slept through a tombstone's removal (S41), which a
        `StateTable` would notice.

        Args:
            start: an offset, or one by partition, as in `Table.offsets`.
            partition: one, or None for all that ``start`` names.

        Raises:
            OffsetOutOfRangeError: a start below the log start or beyond the end (S38).
        """
        self._handle.refresh()
        manifest = self._handle.manifest()
        ranges = offsets.ranges(manifest.head, partition, start, None, url=self.url)
        plans = [plan_changes(manifest, p, first, url=self.url) for p, (first, _) in ranges.items()]
        ends = {p: end for p, (_, end) in ranges.items()}
        return Table(self._indexes, manifest.version, plans, ends)

    def start_offsets(self) -> dict[int, int]:
        """First readable offset of each partition (the low watermark)."""
        return dict(enumerate(self._handle.refresh().head.partitions.start))

    def end_offsets(self) -> dict[int, int]:
        """The offset that the next record gets (the high watermark), by partition."""
        return dict(enumerate(self._handle.refresh().head.partitions.end))

    def offsets_for_times(self, ts_ms: int | Mapping[int, int]) -> dict[int, int | None]:
        """Offset of the first record, in offset order, whose timestamp is at or after the time;
        None where no record is that late (S39).
        """
        tip = self._handle.refresh()
        times = offsets.by_partition(tip.head, ts_ms, "timestamp", url=self.url)
        return offsets.for_times(self._handle.store, self._handle.manifest(), times)

    def delete_records(self, before: Mapping[int, int]) -> dict[int, int]:
        """Raises log start offsets: records below are gone for every read planned from now on
        (S36).

        Args:
            before: by partition the first offset to keep; -1: the end offset at the start of the
                call.

        Returns:
            The low watermark of each partition named.

        Raises:
            OffsetOutOfRangeError: below -1 or beyond the end; nothing changes for any partition.
        """
        self._handle.refresh()
        return administration.delete_records(self._handle, before)

    def alter(self, config: Mapping[str, object]) -> dict[str, str]:
        """Changes configs; a value of None takes one back to its default. Returns the configuration
        in force (S42, S43).

        Raises:
            InvalidInputError: a name that is unknown, a value out of range, two that contradict
                each other; nothing changes.
        """
        self._handle.refresh()
        return administration.alter(self._handle, config)

    def roll(self, partition: int | None = None) -> list[int]:
        """Seals the active segments now, empty ones excepted. Returns the partitions in which it
        did.
        """
        tip = self._handle.refresh()
        parts = offsets.partitions_named(tip.head, partition, url=self.url)
        return administration.roll(self._handle, parts, operation="roll")

    def segments(self, partition: int) -> list[SegmentInfo]:
        """The segments of a partition in offset order, the active one last."""
        tip = self._handle.refresh()
        (p,) = offsets.partitions_named(tip.head, partition, url=self.url)
        return segment_infos(self._handle.manifest(), p)

    def history(self, start: int = 0) -> Iterator[CommitInfo]:
        """What each commit from version ``start`` on did, oldest first, as far as they are kept."""
        return history(self._handle.store, self._handle.refresh(), start=start)

    def describe(self) -> dict[str, Any]:
        """All there is to say about the log, fit for JSON."""
        self._handle.refresh()
        return describe(self._handle.manifest(), url=self.url, now_ms=self._handle.clock.now_ms())

    def _read(
        self, manifest: Manifest, ranges: Mapping[int, tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        store = self._handle.store
        try:
            for p, (start, end) in ranges.items():
                yield from read_pieces(store, plan_range(manifest, p, start, end))
        except FileNotFoundError as e:
            # Never planned anew: a value that was cleaned since would be missing, and the newer one
            # lies beyond the end.
            raise VersionExpiredError(
                f"version {manifest.version} of {self.url} expired while it was read:"
                f" {e.filename or e} is gone; read again"
            ) from e

    def _check_records(self, records: pa.Table) -> None:
        """Refuses early, and names the record (S5, S6); the commit would say it of the whole."""
        known = self._handle.tip.head.config
        try:
            check_records(records, LogConfig.from_overrides(known))
        except InvalidInputError:
            newest = self._handle.refresh().head.config
            if newest == known:
                raise
            check_records(records, LogConfig.from_overrides(newest))  # altered since (S42)


def _store(
    url: str | Store, storage_options: Mapping[str, object] | None, *, single_writer: bool
) -> Store:
    if isinstance(url, str):
        return open_store(url, storage_options, single_writer=single_writer)
    return url
