"""The streaming read: where the query is, what the next batch contains, which tasks read it.

One process holds one reader for the life of a query; tasks get other instances and only use `read`.
Spark asks an idle source about 45 times a second what is new; the reader checks the log once in
``pollInterval``, with one request, and answers from what it knows in between.

Whether the log at the URL is the one that the query's offsets refer to (S47): a log's identity is
its id, not its path, and two histories of an id (a folder that was restored from a copy) differ in
the commit at the version that the offsets were planned at. Offsets mean nothing in another log:
the query fails, or continues from that log's start.

A query records its position in the log, under the name given by ``readerId`` (S64). Only the
checkpoint decides where it continues, so a failure to record the position is just a warning.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from clog.connector.opened_logs import Loaded, check_log_id, opened_if_typed, readable, table_shown
from clog.connector.options import ReadOptions
from clog.connector.positions import (
    ChangesOffsets,
    Planned,
    Since,
    StreamOffsets,
    by_partition_json,
    initial_json,
    parse_offsets,
)
from clog.connector.read.batch_reader import of_the_logs_keys
from clog.connector.read.plan import (
    LogPartition,
    Losses,
    log_partitions,
    offset_bounds,
    partitions_read,
    positions,
)
from clog.connector.schema import shallow, shallow_iterator
from clog.storage.env import Clock, SystemClock
from clog.storage.errors import (
    ClogError,
    LogReplacedError,
    NotFoundError,
    OptionError,
    StoreUnavailableError,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.storage.commit.handle import Handle
    from clog.storage.format.commits import Head
    from clog.storage.format.log_info import LogSchema
    from clog.storage.format.manifest import Manifest
    from clog.storage.readers import NamedReader


_LOGGER = logging.getLogger("clog.connector")

_POLL_SLACK_MS = 50
"""A trigger as long as the poll interval fires a little early as often as late: it should get a
fresh answer in both cases.
"""

OUTAGE_MS_MAX = 60_000
"""This long a store that does not answer counts as nothing new; after that the query fails."""

_NO_LIMIT_ROWS = 2**62


def check_stream(options: ReadOptions) -> None:
    """Raises if a stream refuses one of the options."""
    if options.view not in ("log", "changes"):
        raise OptionError(
            f'view "{options.view}" is for batch reads; use spark.read, or view "log", which'
            ' streams every record, or "changes"'
        )
    if options.changes is not None and options.changes.until is not None:
        raise OptionError(
            'options "endingVersion" and "endingTimestamp" are for batch reads: a stream has no'
            " end; leave them out"
        )
    if {options.as_of_version, options.as_of_ms, options.as_of_cut} != {None}:
        raise OptionError(
            'options "asOfVersion", "asOfTimestamp" and "asOfCut" are for view "table"; a stream'
            ' starts after a version with "sinceVersion"'
        )
    if options.ending is not None:
        raise OptionError(
            'options "endingOffsets", "endingTimestamp" and "endingOffsetsByTimestamp" are for'
            " batch reads: a stream has no end; leave them out; trigger(availableNow=True) ends"
            " at the present end"
        )


class ClogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log as a stream, in Arrow batches."""

    def __init__(
        self,
        options: ReadOptions,
        schema: StructType,
        loaded: Loaded | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        check_stream(options)
        if (handle := opened_if_typed(options, schema)) is not None:
            self._loaded = loaded
            self._check_shown(handle, schema)
            # The names of a schema of the user's own mean what they mean when the query starts.
            loaded = loaded or Loaded.of(handle.tip.head)
        self._loaded = loaded
        self._position = _ReaderPosition(options)
        self._options = self._of_keys = options
        self._schema = schema
        self._clock = clock or SystemClock()
        self._handle: Handle | None = None
        self._polled_ms = self._answered_ms = 0
        self._admitted_ms: int | None = None
        self._target: dict[int, int] | None = None
        self._first: StreamOffsets | None = None
        self._is_compared = False
        self._checked: LogSchema | None = None

    @shallow
    def initialOffset(self) -> dict[str, Any]:
        """Returns a symbolic offset, which the first `latestOffset` resolves once and for all."""
        return initial_json(self._options.starting or "latest")

    @shallow
    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns a limit that says whether batches are limited; Spark passes it to `latestOffset`,
        or `ReadAllAvailable` if the trigger requires it. Spark has no class for all the limits in
        `Admission`, so this one represents them.
        """
        admission = self._options.admission
        most = admission.max_offsets or _NO_LIMIT_ROWS
        return ReadMaxRows(most) if admission.is_limited else ReadAllAvailable()

    @shallow
    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end: later appends are for the next run."""
        self._target = self._ends(self._polled())

    @shallow
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns where the next batch ends; ``start`` itself, unchanged, if there is nothing to
        read.

        There is always a first batch, even an empty one: it makes durable where the query began.
        """
        head = self._polled()
        is_limited = not isinstance(limit, ReadAllAvailable)
        at = parse_offsets(start)
        if at is None or not self._is_same_log(at):
            begin = self._begin if at is None else self._begin_again
            first = self._first = self._first or begin(head)
            end = not_before(self._ends(head), first.next, head)
            end = self._admitted(first.next, end) if is_limited else end
            self._admitted_ms = self._clock.monotonic_ms()
            return StreamOffsets(end, first.version, first.next, self._planned()).to_json()
        starts = self._starts(at, head)
        end = not_before(self._ends(head), starts, head)
        if is_limited:
            if self._waits(starts, end):
                return start
            end = self._admitted(starts, end)
        if end == at.next:
            return start
        self._admitted_ms = self._clock.monotonic_ms()
        left_out = {p: offset for p, offset in at.known.items() if p not in end}
        return StreamOffsets(end, at.version, planned=self._planned(), left_out=left_out).to_json()

    @shallow
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Returns the last seen end offsets, for the query's progress; makes no request."""
        if self._handle is None:
            return None
        return by_partition_json(self._ends(self._handle.tip.head))

    @shallow
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Returns the plan of a batch, which is new or runs again."""
        at, to = parse_offsets(start), parse_offsets(end)
        assert to is not None, "an end is never symbolic"
        starts = at.known if at is not None and to.start is None else to.start
        assert starts is not None, "the first offsets of a log say where the query began in it"
        if not self._is_same_log(to):
            return []  # Its records are gone with their log.
        try:
            manifest = self._manifest_of(to)
        except LogReplacedError:
            self._open_replacement()
            if not self._is_same_log(to):
                return []
            manifest = self._manifest_of(to)
        handle = self._opened()
        # Not the old version's bounds: what was deleted since then is gone (S36).
        ranges = self._ranges(handle.tip.head, starts, to.next)
        if not self._options.uncommitted:
            manifest = decided(handle, manifest, ranges)
        read = {p: offset for p, offset in starts.items() if p in to.next}
        self._losses().check_deletes(manifest, read, since_version=to.version)
        manifest, _ = readable(handle, manifest, self._schema, self._loaded)
        return log_partitions(manifest, ranges, self._of_keys, follow=True)

    @shallow_iterator
    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yields batches of one partition, in a task."""
        from clog.connector.read.task_read import log_batches

        assert isinstance(partition, LogPartition)
        yield from log_batches(partition, self._schema)

    @shallow
    def commit(self, end: dict[str, Any]) -> None:
        """Stores the position in the log if there is a ``readerId``; the checkpoint is Spark's."""
        if self._options.reader_id is not None:
            self._position.note(self._opened(), parse_offsets(end))

    @shallow
    def stop(self) -> None:
        """Stores the last position in the log, if that was not done yet."""
        self._position.end()

    def _opened(self) -> "Handle":
        if self._handle is None:
            from clog.storage.log import Log

            handle = Log.open(self._options.location.store(), clock=self._clock).handle
            # All that depends on the log, here: a restart calls other methods than a first start.
            check_log_id(handle, self._options.log_id)
            self._check_columns(handle)
            partitions_read(handle.tip.head, self._options.partitions, url=handle.store.url)
            self._of_keys = of_the_logs_keys(handle, self._options)
            self._handle = handle
            self._handle.recent(settled=True)  # Its id is written to the checkpoint.
            self._polled_ms = self._answered_ms = self._clock.monotonic_ms()
        return self._handle

    def _is_same_log(self, offsets: StreamOffsets | ChangesOffsets) -> bool:
        """Returns whether the offsets are of this log; if not, raises or warns."""
        planned, handle = offsets.planned, self._opened()
        if planned is None:
            return True
        if self._is_compared and planned.log_id == handle.tip.head.log.log_id:
            return True
        is_same = self._losses().is_planned_log(handle, planned)
        self._is_compared = self._is_compared or is_same
        return is_same

    def _open_replacement(self) -> None:
        """Opens the log that has replaced the one that was read."""
        self._handle, self._first, self._is_compared = None, None, False
        is_target_fixed, self._target = self._target is not None, None
        handle = self._opened()
        if is_target_fixed:
            self._target = self._ends(handle.tip.head)

    def _planned(self) -> Planned:
        """Returns the version at which a batch is planned now."""
        tip, name = self._opened().tip, self._options.location.name
        return Planned(name, tip.head.log.log_id, tip.version, tip.record.commit_id)

    def _manifest_of(self, offsets: StreamOffsets) -> "Manifest":
        """Returns the manifest of the version a batch was planned at; the newest if it expired."""
        handle, planned = self._opened(), offsets.planned
        if planned is None:
            return handle.manifest()
        try:
            return handle.manifest_at(planned.version)
        except NotFoundError as e:  # It expired, or this copy of the log does not have it yet.
            if isinstance(e, LogReplacedError):
                raise
            handle.standing.check()
            manifest = handle.manifest()
            _LOGGER.warning(
                "%s; the batch that was planned at it runs again from version %d, without records"
                " that were superseded and cleaned since",
                *(e, manifest.version),
            )
            return manifest

    def _polled(self) -> "Head":
        """Returns the head as of at most a poll interval ago."""
        handle = self._opened()
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._polled_ms + _POLL_SLACK_MS < self._options.poll_interval_ms:
            return handle.tip.head
        self._polled_ms = now_ms
        try:
            handle.refresh()
            self._answered_ms = now_ms
        except LogReplacedError:
            self._open_replacement()
            return self._opened().tip.head
        except StoreUnavailableError as e:
            # An error here ends the query, and a momentary failure of the store must not.
            if now_ms - self._answered_ms > OUTAGE_MS_MAX:
                raise
            _LOGGER.warning("%s does not respond; retrying: %s", handle.store.url, e)
        self._check_columns(handle)
        return handle.tip.head

    def _check_columns(self, handle: "Handle") -> None:
        """Raises if a column has evolved since the read was loaded; looks once at each schema."""
        schema = handle.tip.head.log.schema
        if schema is None or schema != self._checked:
            self._check_shown(handle, self._schema)
            self._checked = schema

    def _check_shown(self, handle: "Handle", schema: StructType) -> None:
        table_shown(handle, schema, self._loaded, is_table=False)

    def _begin(self, head: "Head") -> StreamOffsets:
        """Returns where a new query begins, checked."""
        handle, parts = self._opened(), self._parts(head)
        starting = self._options.starting or "latest"
        version = starting.version if isinstance(starting, Since) else handle.tip.version
        starts = positions(handle, parts, starting, option="starting")
        starts = {p: self._available(head, p, offset) for p, offset in starts.items()}
        if self._target is not None:
            # "latest" is resolved after the end was fixed: records may have been appended between.
            self._target = {p: max(end, starts[p]) for p, end in self._target.items()}
        return StreamOffsets(starts, version, starts)

    def _begin_again(self, head: "Head") -> StreamOffsets:
        """Returns where a query continues in a log that replaced the offsets' log: at its start."""
        starts = offset_bounds(head, self._parts(head))[0]
        return StreamOffsets(starts, self._opened().tip.version, starts)

    def _waits(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> bool:
        """Returns whether there is too little for a batch (``minOffsetsPerTrigger``)."""
        admission = self._options.admission
        if admission.min_offsets is None or self._admitted_ms is None or self._target is not None:
            return False
        if self._clock.monotonic_ms() - self._admitted_ms >= admission.max_delay_ms:
            return False
        return sum(max(0, end - starts[p]) for p, end in ends.items()) < admission.min_offsets

    def _admitted(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
        """Returns the ends of a batch within the limits."""
        admission = self._options.admission
        end = limited(starts, ends, admission.max_offsets)
        if admission.max_bytes is None:
            return end
        return limited_bytes(self._opened().manifest(), starts, end, admission.max_bytes)

    def _parts(self, head: "Head") -> tuple[int, ...]:
        return partitions_read(head, self._options.partitions, url=self._opened().store.url)

    def _ends(self, head: "Head") -> dict[int, int]:
        if self._target is not None:
            return self._target
        return self._bounds(head, self._parts(head))[1]

    def _bounds(self, head: "Head", parts: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        return offset_bounds(head, parts, uncommitted=self._options.uncommitted)

    def _starts(self, at: StreamOffsets, head: "Head") -> dict[int, int]:
        """Returns where the next batch starts: at the log start in partitions that the checkpoint
        does not know or in which it is below; `partitions` decides whether that is allowed.
        """
        parts, known = self._parts(head), at.known
        self._losses().check_partitions(at.next, parts)
        lows, highs = self._bounds(head, parts)
        starts = {p: max(low, known.get(p, low)) for p, low in lows.items()}
        for p, offset in starts.items():
            if offset > highs[p]:
                self._available(head, p, offset)
        return starts

    def _ranges(
        self, head: "Head", starts: Mapping[int, int], ends: Mapping[int, int]
    ) -> dict[int, tuple[int, int]]:
        ranges = {}
        for p, end in ends.items():
            start = starts.get(p, head.partitions.start[p])
            if start == end:
                continue
            start = self._available(head, p, start)
            if end > head.partitions.end[p]:
                self._available(head, p, end)
            # If the end is below the start, the log was recreated, and the batch began with it.
            ranges[p] = (start if start < end else head.partitions.start[p], end)
        return ranges

    def _available(self, head: "Head", p: int, offset: int) -> int:
        there = head.partitions
        return self._losses().start(p, offset, there.start[p], there.end[p])

    def _losses(self) -> Losses:
        return Losses(self._opened().store.url, self._options.fail_on_data_loss)


class RefusedStreamReader(ClogStreamReader):
    """Stands for a reader that could not be made: what Spark calls first raises the cause. Which
    method that is depends on the checkpoint, the trigger and the release, so none is named here.
    """

    def __init__(self, cause: Exception) -> None:
        self._cause = cause

    def __getattribute__(self, name: str) -> Any:
        """Returns a method that raises the cause in place of any that Spark calls."""
        if name.startswith("_") or name == "stop":
            return super().__getattribute__(name)
        cause = self._cause

        def refuse(*_args: Any, **_kwargs: Any) -> Any:
            raise cause.with_traceback(None) from None

        return refuse

    def stop(self) -> None:
        """Does nothing: Spark's worker calls it last, and would show its error as the only one."""


def limited(
    starts: Mapping[int, int], ends: Mapping[int, int], max_offsets: int | None
) -> dict[int, int]:
    """Returns the ends of a batch of at most about ``max_offsets`` offsets, by partition; all of
    ``ends`` for None.

    The limit is shared in proportion to what each partition has. Each partition that has anything
    gets at least 1, so that none starves; with more such partitions than the limit, the batch is
    larger than the limit. An end below its start (data that is gone) is kept as it is.

    >>> limited({0: 0, 1: 0, 2: 5}, {0: 90, 1: 1, 2: 5}, 10)
    {0: 9, 1: 1, 2: 5}
    """
    backlog = {p: max(0, end - starts[p]) for p, end in ends.items()}
    total = sum(backlog.values())
    if max_offsets is None or total <= max_offsets:
        return dict(ends)
    return {
        p: starts[p] + max(1, backlog[p] * max_offsets // total) if backlog[p] else end
        for p, end in ends.items()
    }


def limited_bytes(
    manifest: "Manifest", starts: Mapping[int, int], ends: Mapping[int, int], max_bytes: int
) -> dict[int, int]:
    """Returns the ends of a batch of about ``max_bytes`` bytes of records, not beyond ``ends``.

    Chunks are taken in the order of their commits, so that no partition starves; of the last one
    as many offsets as fit, estimated from its bytes. At least one offset is taken.
    """
    from clog.storage.read.scan import within

    waiting = sorted(
        (chunk.version, p, max(chunk.base, starts[p]), min(chunk.next, end), chunk)
        for p, end in ends.items()
        for segment in within(manifest.segments[p], starts[p], end)
        for chunk in within(segment.chunks, starts[p], end)
    )
    at = {p: min(starts[p], end) for p, end in ends.items()}
    room = max_bytes
    for _, p, first, until, chunk in waiting:
        span = chunk.next - chunk.base
        size = chunk.size_bytes * (until - first) // span
        if size > room:
            part = room * span // max(1, chunk.size_bytes)
            if room == max_bytes:
                part = max(1, part)
            if part:
                at[p] = first + part
            return at
        at[p] = until
        room -= size
    return dict(ends)


def not_before(
    ends: Mapping[int, int], starts: Mapping[int, int] | None, head: "Head"
) -> dict[int, int]:
    """Returns the ends of a batch, none before its start, which may be undecided (S51)."""
    there, known = head.partitions.end, starts or {}
    return {
        p: max(end, start) if (start := known.get(p, end)) <= there[p] else end
        for p, end in ends.items()
    }


def decided(
    handle: "Handle", manifest: "Manifest", ranges: Mapping[int, tuple[int, int]]
) -> "Manifest":
    """Returns a manifest in which all records of a stream's batch are decided: the given one, or
    the newest if the batch was planned with ``read_uncommitted``.
    """
    if not _undecided(manifest.head, ranges):
        return manifest
    head, url = handle.refresh().head, handle.store.url
    if late := _undecided(head, ranges):
        p = late[0]
        raise OptionError(
            'option "isolation" is read_committed, but the batch that runs again was planned with'
            f" read_uncommitted: it ends at offset {ranges[p][1]} of partition {p} of {url}, whose"
            f" records are decided up to {head.stable_offset(p)}; start the query again with"
            " read_uncommitted, or once the transactions there have ended:"
            f' "clog describe {url} transactions" lists them'
        )
    return handle.manifest()


def _undecided(head: "Head", ranges: Mapping[int, tuple[int, int]]) -> list[int]:
    """Returns the partitions in which some of these offsets are undecided (S51)."""
    ends = head.partitions.end
    return [p for p, (_, end) in ranges.items() if min(end, ends[p]) > head.stable_offset(p)]


class _ReaderPosition:
    """The recorded position of one query; does nothing without a name."""

    def __init__(self, options: ReadOptions) -> None:
        self._name = options.reader_id
        self._hold_ms = options.reader_hold_ms
        self._holds_most = self._hold_ms is None and options.view == "changes"
        self._reader: NamedReader | None = None

    def note(self, handle: "Handle", at: StreamOffsets | ChangesOffsets | None) -> None:
        """Notes the end of a finished batch; makes at most one PUT in ten seconds."""
        if self._name is None or at is None or at.planned is None:
            return
        planned = at.planned
        if planned.log_id != handle.standing.log_id:
            return  # Another log is there now.
        try:
            self._of(handle, self._name).commit_at(at.next, planned.version, planned.commit_id)
        except (ClogError, OSError) as e:
            self._warn(e)

    def end(self) -> None:
        """Stores the position if that was not done yet."""
        try:
            if self._reader is not None:
                self._reader.flush()
        except (ClogError, OSError) as e:
            self._warn(e)

    def _of(self, handle: "Handle", name: str) -> "NamedReader":
        from clog.storage.readers import holding_reader, most_held_ms

        if self._reader is None or self._reader.handle is not handle:
            hold_ms = most_held_ms(handle) if self._holds_most else self._hold_ms or 0
            self._reader = holding_reader(handle, name, hold_ms)
        return self._reader

    def _warn(self, error: Exception) -> None:
        _LOGGER.warning(
            "the position of reader %s was not recorded in its log: %s", self._name, error
        )
