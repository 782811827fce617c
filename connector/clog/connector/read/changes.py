"""Changes of a log's table, with the rows that they replaced: batch and stream (S83, S84).

The core plans the changes between two versions as *splits*, which tasks read without the log's
metadata; here they get tasks, columns and, in a stream, versions.

A stream is at a *version*. A batch has the changes from there to a later version: the newest one,
or with limits the last one whose appends fit, but at least the next that has any. So no batch parts
the images of a pair, and one that runs again reads the same two versions. A stream without a start
begins with the *rows* of one version, as inserts, in batches by the offsets of their records.

A batch follows each version that a poll finds, with or without changes, so that the stream's
version is no older than its last poll. For longer pauses ``readerId`` keeps it. Where it has
expired the query fails, since nobody knows any more what it would have to take back.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from clog.connector.opened_logs import (
    Loaded,
    check_log_id,
    opened_if_typed,
    readable,
    table_shown,
)
from clog.connector.options import Admission, Bound, ReadOptions
from clog.connector.positions import ChangesOffsets, Planned, parse_changes
from clog.connector.read.plan import (
    ChangesPartition,
    Losses,
    RowsPartition,
    changes_partitions,
    offset_bounds,
    partitions_read,
    view_partitions,
)
from clog.connector.read.stream_reader import ClogStreamReader, limited, limited_bytes
from clog.connector.schema import shallow, shallow_iterator, without_changes
from clog.storage.env import Clock
from clog.storage.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.storage.commit.handle import Handle
    from clog.storage.format.manifest import Manifest
    from clog.storage.read.table import TablePlan


class ChangesReader(DataSourceReader):
    """Reads the changes between two versions, in Arrow batches; planned once."""

    def __init__(
        self, options: ReadOptions, schema: StructType, loaded: Loaded | None = None
    ) -> None:
        if options.changes is None or options.changes.since is None:
            raise OptionError(
                'a batch read of view "changes" starts with "startingVersion" or'
                ' "startingTimestamp"; view "table" shows all rows of a version'
            )
        self._options, self._schema, self._loaded = options, schema, loaded
        opened_if_typed(options, without_changes(schema))

    @shallow
    def partitions(self) -> Sequence[InputPartition]:
        """Returns the plan: the range is resolved now."""
        from clog.storage.log import Log

        options, bounds = self._options, self._options.changes
        assert bounds is not None, "another view"
        assert bounds.since is not None, "checked when it was made"
        handle = Log.open(options.location.store()).handle
        check_log_id(handle, options.log_id)
        since, until = _version_of(handle, bounds.since), bounds.until
        last = handle.tip.version if until is None else _version_of(handle, until)
        before, after = handle.manifest_at(since), handle.manifest_at(last)
        if since > last:
            raise OptionError(
                f"the changes of {handle.store.url} after version {since} cannot end with version"
                f" {last}; give an end that is not before the start"
            )
        # What was deleted since then is not shown (S36, S81).
        starts = zip(after.head.partitions.start, handle.tip.head.partitions.start, strict=True)
        hidden = [(then, max(then, now)) for then, now in starts]
        own: dict[str, Any] = {"loaded": self._loaded, "hidden": hidden}
        return planned_changes(handle, before, after, options, self._schema, **own)

    @shallow_iterator
    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yields batches of one partition, which is None in Spark's task for an empty plan."""
        from clog.connector.read.task_read import change_batches

        if isinstance(partition, ChangesPartition):
            yield from change_batches(partition, self._schema)


class ChangesStreamReader(ClogStreamReader):
    """Streams changes, in Arrow batches."""

    def __init__(
        self,
        options: ReadOptions,
        schema: StructType,
        loaded: Loaded | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(options, without_changes(schema), loaded, clock=clock)
        self._shown = schema
        self._begun: ChangesOffsets | None = None
        self._until: int | None = None
        self._manifests: dict[int, Manifest] = {}

    @shallow
    def initialOffset(self) -> dict[str, Any]:
        """Returns a symbolic offset, which the first `latestOffset` resolves."""
        since = self._since
        return {"init": {"changes": None if since is None else [since.version, since.time_ms]}}

    @shallow
    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end: later versions are for the next run."""
        self._polled()
        self._until = self._opened().tip.version

    @shallow
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns where the next batch ends; ``start`` itself, unchanged, if nothing is new. There
        is always a first batch, even an empty one: it makes durable where the query began.
        """
        self._polled()
        is_limited = not isinstance(limit, ReadAllAvailable)
        at = parse_changes(start)
        if at is None:
            at = self._begun = self._begun or self._first_position()
            end = self._next(at, is_limited=is_limited) or at
            end = replace(end, since=at.since)
        else:
            self._check(at)
            # Spark has finished the batch that ended here; it calls `commit` only with the next.
            self._position.note(self._opened(), at)
            following = self._next(at, is_limited=is_limited)
            if following is None:
                return start
            end = following
        self._admitted_ms = self._clock.monotonic_ms()
        return end.to_json()

    @shallow
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Returns the plan of a batch, which is new or runs again."""
        at, to = parse_changes(start), parse_changes(end)
        assert to is not None, "an end is never symbolic"
        self._check(to)
        handle, after = self._opened(), self._manifest(to.planned.version)
        since = to.since if at is None else at.planned.version
        if since is None or (at is not None and at.is_part):
            starts = offset_bounds(after.head, tuple(to.next))[0] if at is None else at.next
            ranges = {p: (start, to.next[p]) for p, start in starts.items()}
            shown = self._options, self._shown
            return planned_rows(handle, after, ranges, *shown, loaded=self._loaded)
        before = self._manifest(since)
        shown = self._options, self._shown
        return planned_changes(handle, before, after, *shown, loaded=self._loaded)

    @shallow_iterator
    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yields batches of one partition, in a task."""
        from clog.connector.read.task_read import change_batches, inserted_batches

        if isinstance(partition, RowsPartition):
            yield from inserted_batches(partition, self._shown)
        elif isinstance(partition, ChangesPartition):
            yield from change_batches(partition, self._shown)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: `latestOffset` has stored the position."""

    @property
    def _since(self) -> Bound | None:
        assert self._options.changes is not None, "another view"
        return self._options.changes.since

    def _check_shown(self, handle: "Handle", schema: StructType) -> None:
        table_shown(handle, schema, self._loaded, is_table=True)

    def _losses(self) -> Losses:
        return Losses(self._opened().store.url, fails=True, is_final=True)

    def _open_replacement(self) -> None:
        super()._open_replacement()
        self._begun, self._manifests = None, {}
        if self._until is not None:
            self._until = self._opened().tip.version

    def _check(self, at: ChangesOffsets) -> None:
        """Raises if the offsets are of another log, or of other partitions of it."""
        self._is_same_log(at)
        parts, url = self._parts(self._opened().tip.head), self._opened().store.url
        if set(at.next) != set(parts):
            raise OptionError(
                f"this stream has read the changes of partitions {sorted(at.next)} of {url},"
                f' and option "partitions" now names {sorted(parts)}: the rows before are unknown'
                " in the others; change it back, or start the query with a new checkpoint"
            )

    def _first_position(self) -> ChangesOffsets:
        """Returns where a new query begins: with the rows of a version, or after one."""
        handle, since = self._opened(), self._since
        parts = self._parts(handle.tip.head)
        if since is None:
            version = handle.tip.version if self._until is None else self._until
            manifest = self._manifest(version)
            return self._at(manifest, offset_bounds(manifest.head, parts)[0], is_part=True)
        version = _version_of(handle, since)
        manifest = self._manifest(version)
        ends = offset_bounds(manifest.head, parts)[1]
        return replace(self._at(manifest, ends), since=version)

    def _next(self, at: ChangesOffsets, *, is_limited: bool) -> ChangesOffsets | None:
        """Returns where the batch after a position ends; None if nothing is new."""
        if at.is_part:
            manifest = self._manifest(at.planned.version)
            ends = offset_bounds(manifest.head, tuple(at.next))[1]
            until = self._admitted_rows(manifest, at.next, ends) if is_limited else ends
            return self._at(manifest, until, is_part=until != ends)
        tip, since = self._opened().tip, at.planned.version
        last = tip.version if self._until is None else min(self._until, tip.version)
        if last <= since:
            return None
        if is_limited:
            ends = self._bounds(tip.head, tuple(at.next))[1]
            if self._until is None and self._waits(at.next, ends):
                return None
            manifest = self._opened().manifest()
            last = last_within(manifest, since, last, at.next, self._options.admission)
        manifest = self._manifest(last)
        return self._at(manifest, offset_bounds(manifest.head, tuple(at.next))[1])

    def _admitted_rows(
        self, manifest: "Manifest", starts: Mapping[int, int], ends: Mapping[int, int]
    ) -> dict[int, int]:
        admission = self._options.admission
        until = limited(starts, ends, admission.max_offsets)
        if admission.max_bytes is None:
            return until
        return limited_bytes(manifest, starts, until, admission.max_bytes)

    def _at(
        self, manifest: "Manifest", offsets: Mapping[int, int], *, is_part: bool = False
    ) -> ChangesOffsets:
        name, log_id = self._options.location.name, manifest.head.log.log_id
        planned = Planned(name, log_id, manifest.version, manifest.commit_id)
        return ChangesOffsets(offsets, planned, is_part)

    def _manifest(self, version: int) -> "Manifest":
        """Returns the manifest at a version; no request for those at which the last batch began
        and ended, and for the newest.
        """
        found = self._manifests.pop(version, None)
        if found is None:
            found = self._opened().manifest_at(version)
        others = {v: self._manifests[v] for v in sorted(self._manifests)[-1:]}
        self._manifests = {**others, version: found}
        return found


def planned_changes(
    handle: "Handle",
    before: "Manifest",
    after: "Manifest",
    options: ReadOptions,
    schema: StructType,
    *,
    loaded: Loaded | None,
    hidden: Sequence[tuple[int, int]] | None = None,
) -> list[ChangesPartition]:
    """Returns the tasks for the changes between two versions; ``hidden`` as for `plan_changes`."""
    from clog.storage.read.changes import plan_changes, windows

    after, table = readable(handle, after, without_changes(schema), loaded, is_table=True)
    parts = partitions_read(after.head, options.partitions, url=handle.store.url)
    if options.is_each:
        found = windows(handle, before, after, parts, hidden=hidden)
        splits = [split for window in found for split in window]
    else:
        splits = plan_changes(before, after, parts, hidden=hidden)
    return changes_partitions(splits, options, handle.standing.log_id, table)


def planned_rows(
    handle: "Handle",
    manifest: "Manifest",
    ranges: Mapping[int, tuple[int, int]],
    options: ReadOptions,
    schema: StructType,
    *,
    loaded: Loaded | None,
) -> list[RowsPartition]:
    """Returns the tasks for the table's rows whose records have offsets in these ranges."""
    from clog.storage.read.table import plan_table

    manifest, table = readable(handle, manifest, without_changes(schema), loaded, is_table=True)
    plans = [rows_between(plan_table(manifest, p), *bounds) for p, bounds in ranges.items()]
    views = view_partitions(plans, options, handle.standing.log_id, table)
    return [RowsPartition(view, manifest.version, manifest.time_ms) for view in views]


def rows_between(plan: "TablePlan", start: int, end: int) -> "TablePlan":
    """Returns the part of a plan that delivers the rows at these offsets."""
    from clog.storage.read.scan import pieces_within

    clean, dirty = (tuple(pieces_within(own, start, end)) for own in (plan.clean, plan.dirty))
    later = pieces_within(plan.dirty, end)
    if plan.order is not None:
        # Any other record of the partition may win.
        later = [*pieces_within(plan.own, 0, start), *pieces_within(plan.own, end)]
    return replace(plan, clean=clean, dirty=dirty, later=tuple(later))


def last_within(
    manifest: "Manifest", since: int, last: int, ends: Mapping[int, int], admission: Admission
) -> int:
    """Returns the last version, up to ``last``, whose appends after version ``since`` are within
    the limits together: the first that appended anything is always taken whole. ``ends``: where
    partitions ended at that version; looks only at what lies beyond.
    """
    from clog.storage.read.scan import within

    appended: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for p, end in ends.items():
        for segment in within(manifest.segments[p], end, manifest.head.partitions.end[p]):
            for chunk in within(segment.chunks, end, segment.next):
                if since < chunk.version <= last:
                    offsets, size_bytes = appended[chunk.version]
                    span = chunk.next - chunk.base
                    appended[chunk.version] = offsets + span, size_bytes + chunk.size_bytes
    offsets = size_bytes = 0
    taken = None
    for version, (more, bigger) in sorted(appended.items()):
        offsets, size_bytes = offsets + more, size_bytes + bigger
        too_many = admission.max_offsets is not None and offsets > admission.max_offsets
        too_big = admission.max_bytes is not None and size_bytes > admission.max_bytes
        if taken is not None and (too_many or too_big):
            return taken
        taken = version
    return last


def _version_of(handle: "Handle", bound: Bound) -> int:
    """Returns the version after which changes begin, or with which they end."""
    from clog.storage.commit.versions import version_at_time

    if bound.version is not None:
        return max(0, bound.version)  # At version 0 the table is empty, as it was before.
    assert bound.time_ms is not None, "a bound has a version or a time"
    tip = handle.tip
    if tip.head.oldest_readable == 0 and bound.time_ms < handle.manifest_at(0).time_ms:
        return 0
    return version_at_time(handle.store, bound.time_ms, tip)
