"""The views made input partitions, on the driver: `table`, the latest value of each key at one
version, and `latest`, the latest record of each key that changed since a position.

Small partitions share a task. A large one becomes several tasks, each of which delivers a *slice*:
a run of its pieces. A slice needs the keys of all dirty pieces from its own on, to know what is
superseded; therefore a slice has at least a quarter as many rows as the dirty part, unless
``minPartitions`` asks for more. So however large the partition, no clean row costs more than four
reads of a dirty key, and the dirty part's own slices read its keys three and a half times (2.5 to
map them, 1 to deliver them).

Nothing here knows a key: a plan is as large as the list of objects.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from clog.connector.options.parsing import Since
from clog.connector.options.settings import ReadOptions
from clog.connector.read.data_loss import available_start, check_tombstones
from clog.connector.read.deal_tasks import deal, worth_tasks
from clog.connector.read.input_partitions import TablePartition
from clog.connector.read.plan_ranges import offset_bounds, partitions_read, positions, since
from clog.connector.table_columns import TableColumns

if TYPE_CHECKING:
    from clog.storage.commit.handle import Handle
    from clog.storage.format.manifest import Manifest
    from clog.storage.read.scan import ReadPiece
    from clog.storage.read.table_plan import TablePlan

SLICES_OF_DIRTY = 4
"""A slice has at least this part of the dirty rows."""


def view_partitions(
    handle: "Handle", options: ReadOptions, table: TableColumns | None
) -> list[TablePartition]:
    """Returns the plan of a view, as tasks, which deliver rows of the table, or records; raises as
    `view_plans`.
    """
    plans = [plan for plan in view_plans(handle, options) if plan.clean or plan.dirty]
    wanted, at_most = options.min_partitions or 1, options.max_records_per_partition
    rows = sum(_own_rows(plan) for plan in plans)
    tasks = max(wanted, worth_tasks({p.partition: (*p.clean, *p.dirty) for p in plans}))
    rows_each = min(at_most or rows, -(-rows // tasks))
    if options.keys is None or options.min_partitions is not None:
        plans = [
            part
            for plan in plans
            for part in slices(
                plan,
                min_tasks=-(-wanted * _own_rows(plan) // max(1, rows)),
                max_records=at_most,
            )
        ]
    # Without slices where keys are looked up: one would look for them in all that follows it, too.
    return [
        TablePartition(options.location, handle.standing.log_id, tuple(run), options.keys, table)
        for run in _shared(plans, rows_each)
    ]


def view_plans(handle: "Handle", options: ReadOptions) -> list["TablePlan"]:
    """Returns the plan of each partition's view.

    Raises:
        VersionExpiredError: ``asOfVersion`` or ``asOfTimestamp`` is before the oldest readable
            version, or ``sinceVersion`` is.
        OffsetOutOfRangeError, NotFoundError: of `latest`: offsets or tombstones after the position
            are gone, and ``failOnDataLoss``.
    """
    return _table(handle, options) if options.view == "table" else _latest(handle, options)


def view_manifest(handle: "Handle", options: ReadOptions) -> "Manifest":
    """Returns the manifest at the version that a view shows.

    Raises:
        VersionExpiredError: as `view_plans`.
    """
    from clog.storage.read.as_of import version_asked

    asked = options.as_of_version, options.as_of_ms
    return handle.manifest_at(version_asked(handle.store, handle.tip, *asked))


def slices(
    plan: "TablePlan", *, min_tasks: int = 1, max_records: int | None = None
) -> list["TablePlan"]:
    """Returns the plan as plans for several tasks, which deliver the same in the same order."""
    dirty_rows = sum(piece.rows for piece in plan.dirty)
    own = (*plan.clean, *plan.dirty)
    max_tasks = max(1, min_tasks, SLICES_OF_DIRTY * _own_rows(plan) // max(1, dirty_rows))
    runs = deal(
        {plan.partition: own},
        min_tasks=min_tasks,
        max_records=max_records,
        max_tasks=max_tasks,
        by_row=True,
    )
    first_dirty = plan.dirty[0].start if plan.dirty else own[-1].end if own else 0
    parts: list[TablePlan] = []
    later: tuple[ReadPiece, ...] = ()
    for run in reversed(runs):
        clean = tuple(piece for piece in run if piece.start < first_dirty)
        dirty = run[len(clean) :]
        parts.append(replace(plan, clean=clean, dirty=dirty, later=later))
        later = (*dirty, *later)
    return parts[::-1]


def _shared(plans: Sequence["TablePlan"], rows_each: int) -> Iterator[list["TablePlan"]]:
    """Yields neighbours put together while they have no more rows than that."""
    run: list[TablePlan] = []
    room = rows_each
    for plan in plans:
        if run and _own_rows(plan) > room:
            yield run
            run, room = [], rows_each
        run.append(plan)
        room -= _own_rows(plan)
    if run:
        yield run


def _own_rows(plan: "TablePlan") -> int:
    return sum(piece.rows for piece in (*plan.clean, *plan.dirty))


def _table(handle: "Handle", options: ReadOptions) -> list["TablePlan"]:
    from clog.storage.read.table_plan import plan_table

    manifest, newest = view_manifest(handle, options), handle.tip.head
    parts = partitions_read(newest, options.partitions, url=handle.store.url)
    # Not the old version's starts: what was deleted since is gone (S36).
    lows, _ = offset_bounds(newest, parts)
    return [plan_table(manifest, p, low) for p, low in lows.items()]


def _latest(handle: "Handle", options: ReadOptions) -> list["TablePlan"]:
    from clog.storage.read.changes import plan_changes

    manifest, url = handle.manifest(), handle.store.url
    parts = partitions_read(manifest.head, options.partitions, url=url)
    starts, version = _position(handle, parts, options)
    lows, highs = offset_bounds(manifest.head, parts)
    starts = {
        p: available_start(
            *(p, starts[p], lows[p], highs[p]), url=url, fail_on_data_loss=options.fail_on_data_loss
        )
        for p in parts
    }
    # A reader that begins at the log start has no state in which a key could be left over.
    check_tombstones(
        manifest,
        {p: start for p, start in starts.items() if start > lows[p]},
        since_version=version,
        url=url,
        fail_on_data_loss=options.fail_on_data_loss,
    )
    return [plan_changes(manifest, p, start, url=url) for p, start in starts.items()]


def _position(
    handle: "Handle", parts: Sequence[int], options: ReadOptions
) -> tuple[dict[int, int], int]:
    """Returns where the slice begins, and the version up to which removed tombstones do not matter.
    An offset alone does not tell: then each that was removed at or above it counts.
    """
    position = options.starting or "earliest"
    if isinstance(position, Since):
        return since(handle, position, parts), position.version
    return positions(handle.store, handle.manifest(), parts, position, option="starting"), 0
