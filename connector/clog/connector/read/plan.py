"""Plans a read on the driver, at one version: input partitions, which are plain and complete data,
so that a task requests objects and nothing else.

A plan's `ReadPiece`s are dealt out to tasks. A fresh object has rows of all partitions, so reading
a recent range partition by partition would open each object once for each partition. Therefore:

D1. Pieces are ordered by object, and objects so that in each partition offsets still rise from task
    to task and inside a task. So a job that writes back what it read keeps the order of each
    partition (S44). If no order of the objects suits all partitions (because only parts of an
    object are left), the order is partition by partition.
D2. The list is cut into runs of about equal size; a larger piece is cut too, if its offsets are
    dense.

Small partitions of a view share a task. A large one becomes several tasks, each of which delivers
a *slice*: a run of its pieces. A slice needs the keys of all dirty pieces from its own on, to know
what is superseded; therefore a slice has at least a quarter as many rows as the dirty part, unless
``minPartitions`` asks for more tasks. So however large the partition, no clean row costs more than
four reads of a dirty key, and the dirty part's own slices read its keys three and a half times (2.5
to map them, 1 to deliver them).

Plans know no record's key: a plan is as large as the list of objects.

`Losses` are what a read cannot have: offsets, deletes, partitions or a whole log that are gone, and
ends that do not exist or are not decided (S38, S41, S47, S51). With ``failOnDataLoss`` the read
fails; without, it logs a warning and continues with what there is.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import InputPartition

from clog.connector.options import Location, ReadOptions
from clog.connector.positions import Position, Since, Times, check_all_named, resolve
from clog.connector.schema import TableColumns
from clog.storage.env import dataclass
from clog.storage.errors import (
    ClogError,
    LogReplacedError,
    NotFoundError,
    OffsetOutOfRangeError,
    OptionError,
)
from clog.storage.read.scan import missed_deletes

if TYPE_CHECKING:
    from clog.connector.positions import Planned
    from clog.storage.commit.handle import Handle
    from clog.storage.format.commits import Head
    from clog.storage.format.manifest import Manifest
    from clog.storage.read.changes import Changes
    from clog.storage.read.scan import ReadPiece
    from clog.storage.read.table import TablePlan

TASK_BYTES = 64 << 20
"""Stored bytes that are worth a task of their own."""
TASK_ROWS = 1_000_000
"""The same in rows: small records compress well and still take time, but starting a Python task
costs as much as some 100,000 of them (``benchmarks/scenarios/spark_parquet.py``).
"""
_PARALLEL_ROWS_MIN = 10_000
"""A range with fewer rows per partition does not gain from running in parallel."""
_Plan = TypeVar("_Plan")
SLICES_OF_DIRTY = 4
"""A slice has at least this part of the dirty rows."""


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """Pieces of the log with this id, to be read in this order, planned at ``version``.

    ``seed`` is the log's, for its key indexes. ``follow``: an object that has been deleted is
    looked for in the newest version (streams); otherwise the version has expired (batch). ``keys``:
    only records with one of these; None: all.
    """

    location: Location
    log_id: str
    version: int
    seed: int
    pieces: tuple["ReadPiece", ...]
    follow: bool
    fail_on_data_loss: bool
    keys: tuple[bytes, ...] | None = field(default=None, repr=False)
    uncommitted: bool = False


@dataclass(frozen=True)
class TablePartition(InputPartition):
    """Slices of a view, each of one partition of the log with this id, for these keys or all.
    ``table`` is set if rows of the table are delivered instead of records.
    """

    location: Location
    log_id: str
    plans: tuple["TablePlan", ...]
    keys: tuple[bytes, ...] | None = field(default=None, repr=False)
    table: TableColumns | None = None


@dataclass(frozen=True, slots=True)
class RowsPartition(InputPartition):
    """Rows of the table at a version, as inserts."""

    view: TablePartition
    version: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class ChangesPartition(InputPartition):
    """Changes of the table of the log with this id; ``table`` as in `TablePartition`."""

    location: Location
    log_id: str
    splits: tuple["Changes", ...]
    table: TableColumns | None = None


def partitions_read(head: "Head", wanted: Sequence[int] | None, *, url: str) -> tuple[int, ...]:
    """Returns the partitions to read: those wanted, or all."""
    count = head.log.partitions
    if wanted is None:
        return tuple(range(count))
    if unknown := [p for p in wanted if p >= count]:
        raise OptionError(
            f'option "partitions" names {unknown}, but {url} has partitions 0 to {count - 1}'
        )
    return tuple(wanted)


def offset_bounds(
    head: "Head", parts: Sequence[int], *, uncommitted: bool = False
) -> tuple[dict[int, int], dict[int, int]]:
    """Returns the log start offsets of these partitions, and the offsets where readers end: the
    last stable offsets (S51), or with ``uncommitted`` the end offsets.
    """
    start, end = head.partitions.start, head.partitions.end
    ends = {p: end[p] if uncommitted else head.stable_offset(p) for p in parts}
    return {p: start[p] for p in parts}, ends


def positions(
    handle: "Handle",
    parts: Sequence[int],
    position: Position | Times | Since,
    *,
    option: str,
    uncommitted: bool = False,
) -> dict[int, int]:
    """Returns the offset that a position names in each partition; for a version, its end offset.
    Opening a version costs requests; so do times, because the chunks that may contain the first
    record that is late enough are read.
    """
    if isinstance(position, Since):
        return offset_bounds(handle.manifest_at(position.version).head, parts)[1]
    store, manifest = handle.store, handle.manifest()
    lows, highs = offset_bounds(manifest.head, parts, uncommitted=uncommitted)
    if not isinstance(position, Times):
        return resolve(position, lows, highs, option=f"{option}Offsets")
    times = dict.fromkeys(parts, position.ms) if isinstance(position.ms, int) else position.ms
    check_all_named(times, parts, option=f"{option}OffsetsByTimestamp")
    from clog.storage.read.lookup import for_times

    found = for_times(store, manifest, times)
    late = [p for p in parts if found[p] is None]
    if late and not position.or_latest:
        raise OptionError(
            f"partitions {late} of {store.url} have no record at or after the {option} timestamp"
            f" ({times[late[0]]} for partition {late[0]}); give an earlier one, or set"
            f" {option}OffsetsByTimestampStrategy=latest to begin at the end of those"
        )
    offsets = {p: found[p] for p in parts}
    return {p: highs[p] if offset is None else offset for p, offset in offsets.items()}


def pieces_of(
    manifest: "Manifest", ranges: Mapping[int, tuple[int, int]], *, uncommitted: bool
) -> dict[int, list["ReadPiece"]]:
    """Returns the pieces in half-open ranges by partition, also of ``uncommitted`` records."""
    from clog.storage.read.scan import Isolation, plan_range

    isolation = Isolation.UNCOMMITTED if uncommitted else Isolation.COMMITTED
    return {
        p: list(plan_range(manifest, p, start, end, isolation=isolation))
        for p, (start, end) in ranges.items()
    }


def log_partitions(
    manifest: "Manifest",
    ranges: Mapping[int, tuple[int, int]],
    options: ReadOptions,
    *,
    follow: bool,
) -> list[LogPartition]:
    """Returns input partitions for half-open ranges of offsets."""
    tasks = deal(
        pieces_of(manifest, ranges, uncommitted=options.uncommitted),
        min_tasks=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    log = manifest.head.log
    return [
        LogPartition(
            *(options.location, log.log_id, manifest.version, log.key_seed),
            pieces=task,
            follow=follow,
            fail_on_data_loss=options.fail_on_data_loss,
            keys=options.keys,
            uncommitted=options.uncommitted,
        )
        for task in tasks
    ]


def view_partitions(
    all_plans: Sequence["TablePlan"], options: ReadOptions, log_id: str, table: TableColumns | None
) -> list[TablePartition]:
    """Returns the plans of a view as tasks, which deliver rows of the table, or records."""
    plans = [plan for plan in all_plans if plan.clean or plan.dirty]
    wanted, at_most = options.min_partitions or 1, options.max_records_per_partition
    rows = sum(_own_rows(plan) for plan in plans)
    tasks = max(wanted, _worth_tasks({p.partition: p.own for p in plans}))
    rows_each = min(at_most or rows, -(-rows // tasks))
    if options.keys is None or options.min_partitions is not None:
        plans = [
            part
            for plan in plans
            for part in slices(
                plan, min_tasks=-(-wanted * _own_rows(plan) // max(1, rows)), max_records=at_most
            )
        ]
    # No slices if keys are looked up: each would also look for them in everything that follows it.
    return [
        TablePartition(options.location, log_id, tuple(run), options.keys, table)
        for run in _shared(plans, rows_each, _own_rows)
    ]


def changes_partitions(
    splits: Sequence["Changes"], options: ReadOptions, log_id: str, table: TableColumns | None
) -> list[ChangesPartition]:
    """Returns changes as tasks; those of a key are in one."""
    splits = [split for split in splits if split.rows]
    rows = sum(split.rows for split in splits)
    busy = min(len(splits), rows // _PARALLEL_ROWS_MIN)
    tasks = max(options.min_partitions or 1, -(-rows // TASK_ROWS), busy)
    rows_each = max(1, min(options.max_records_per_partition or rows, -(-rows // tasks)))
    parts = [part for split in splits for part in _parts(split, rows_each)]
    return [
        ChangesPartition(options.location, log_id, tuple(run), table)
        for run in _shared(parts, rows_each, attrgetter("rows"))
    ]


def _parts(split: "Changes", rows_each: int) -> list["Changes"]:
    if split.is_whole:
        return [split]
    own = {split.partition: split.news.own}
    return split.parts(deal(own, max_tasks=1, max_records=rows_each, by_row=True))


def slices(
    plan: "TablePlan", *, min_tasks: int = 1, max_records: int | None = None
) -> list["TablePlan"]:
    """Returns the plan as plans for several tasks, which deliver the same rows in the same order;
    as one plan if the last record need not win, since each task would need all that others read.
    """
    if plan.order is not None:
        return [plan]
    dirty_rows = sum(piece.rows for piece in plan.dirty)
    max_tasks = max(1, min_tasks, SLICES_OF_DIRTY * _own_rows(plan) // max(1, dirty_rows))
    runs = deal(
        {plan.partition: plan.own},
        min_tasks=min_tasks,
        max_records=max_records,
        max_tasks=max_tasks,
        by_row=True,
    )
    return plan.parts(runs)


def _shared(
    plans: Sequence[_Plan], rows_each: int, rows_of: Callable[[_Plan], int]
) -> Iterator[list[_Plan]]:
    """Yields groups of neighbours with at most that many rows each."""
    run: list[_Plan] = []
    room = rows_each
    for plan in plans:
        if run and rows_of(plan) > room:
            yield run
            run, room = [], rows_each
        run.append(plan)
        room -= rows_of(plan)
    if run:
        yield run


def _own_rows(plan: "TablePlan") -> int:
    return sum(piece.rows for piece in plan.own)


def deal(
    pieces: Mapping[int, Sequence["ReadPiece"]],
    *,
    min_tasks: int | None = None,
    max_records: int | None = None,
    max_tasks: int | None = None,
    by_row: bool = False,
) -> list[tuple["ReadPiece", ...]]:
    """Returns pieces by partition, in offset order, dealt out to tasks; at least one piece each.

    ``max_tasks`` is exceeded if ``max_records`` requires it. ``by_row``: pieces of cleaned objects
    are cut too. The offsets of a part are then unknown, so a plan of which the rest may be planned
    anew must not use it.
    """
    ordered = _by_object(pieces)
    rows = sum(piece.rows for piece in ordered)
    if not rows:
        return []
    tasks = max(_worth_tasks(pieces), min(min_tasks or 1, rows))
    tasks = min(tasks, max_tasks or tasks)
    rows_each = -(-rows // tasks)
    if max_records is not None:
        rows_each = min(rows_each, max_records)
    return [tuple(run) for run in _runs(ordered, rows_each, by_row=by_row)]


def _worth_tasks(pieces: Mapping[int, Sequence["ReadPiece"]]) -> int:
    """Returns how many tasks the pieces by partition are worth; 0 for no rows."""
    rows = sum(piece.rows for run in pieces.values() for piece in run)
    stored = sum(
        piece.object.size_bytes * piece.rows // max(1, piece.object.rows)
        for run in pieces.values()
        for piece in run
    )
    busy = sum(1 for run in pieces.values() if run)
    by_size = max(-(-rows // TASK_ROWS), -(-stored // TASK_BYTES))
    return max(by_size, min(busy, rows // _PARALLEL_ROWS_MIN))


def _runs(
    pieces: Iterable["ReadPiece"], rows_each: int, *, by_row: bool
) -> Iterator[list["ReadPiece"]]:
    run: list[ReadPiece] = []
    room = rows_each
    for whole in pieces:
        piece = whole
        while piece.rows > room and (by_row or piece.object.dense):
            first, piece = _cut(piece, room)
            run.append(first)
            yield run
            run, room = [], rows_each
        if run and piece.rows > room:
            yield run
            run, room = [], rows_each
        run.append(piece)
        room -= piece.rows
        if room <= 0:
            yield run
            run, room = [], rows_each
    if run:
        yield run


def _cut(piece: "ReadPiece", rows: int) -> tuple["ReadPiece", "ReadPiece"]:
    """Cuts a piece in two. The offset of a row is known only in a dense piece."""
    if not piece.object.dense:
        rest = replace(piece, first_row=piece.first_row + rows, rows=piece.rows - rows)
        return replace(piece, rows=rows), rest
    middle = piece.base + rows
    first = replace(piece, rows=rows, end=middle)
    rest = replace(
        piece, first_row=piece.first_row + rows, rows=piece.rows - rows, base=middle, start=middle
    )
    return first, rest


def _by_object(pieces: Mapping[int, Sequence["ReadPiece"]]) -> list["ReadPiece"]:
    """Returns the pieces in D1's order: a topological order of objects, by their partitions."""
    plan = {p: [piece for piece in pieces[p] if piece.rows] for p in sorted(pieces)}
    held: dict[str, list[ReadPiece]] = {}
    successors: dict[str, set[str]] = {}
    waits: dict[str, int] = {}
    for partition in plan.values():
        before = ""
        for piece in partition:
            path = piece.object.path
            held.setdefault(path, []).append(piece)
            waits.setdefault(path, 0)
            if before not in ("", path) and path not in successors.setdefault(before, set()):
                successors[before].add(path)
                waits[path] += 1
            before = path
    rank = {path: i for i, path in enumerate(held)}
    ready = [(rank[path], path) for path, count in waits.items() if count == 0]
    heapify(ready)
    order = []
    while ready:
        _, path = heappop(ready)
        order.append(path)
        for successor in successors.get(path, ()):
            waits[successor] -= 1
            if waits[successor] == 0:
                heappush(ready, (rank[successor], successor))
    if len(order) < len(held):
        return [piece for partition in plan.values() for piece in partition]
    return [p for path in order for p in sorted(held[path], key=lambda p: p.first_row)]


_LOGGER = logging.getLogger("clog.connector")


@dataclass(frozen=True, slots=True)
class Losses:
    """What to do about losses in the log at a URL: fail if ``fails``, else warn. ``is_final``: the
    read cannot continue in another log.
    """

    url: str
    fails: bool
    is_final: bool = False

    def start(self, partition: int, start: int, low: int, high: int) -> int:
        """Returns ``start`` if it is in ``[low, high]``; else the log start."""
        if low <= start <= high:
            return start
        if start < low:
            what = f"is below the log start offset {low}: {low - start} offsets are gone"
        else:
            what = f"is beyond the end offset {high}: the log may have been deleted and recreated"
        self._lost(
            f"offset {start} of partition {partition} of {self.url} {what}",
            f"readable are [{low}, {high}); set failOnDataLoss=false to continue at {low}",
            f"; continuing at {low}",
            partial(OffsetOutOfRangeError, partition=partition, offset=start, start=low, end=high),
        )
        return low

    def end(self, partition: int, end: int, low: int, high: int) -> int:
        """Returns ``end``, exclusive, if it is in that range; else the nearer of the two."""
        if low <= end <= high:
            return end
        nearest = low if end < low else high
        if end < low:
            what = f"is below the log start offset {low}: all records before it are deleted"
        else:
            what = f"is beyond the end offset {high}: {end - high} offsets do not exist"
        self._lost(
            f"ending offset {end} of partition {partition} of {self.url} {what}",
            f"readable are [{low}, {high}), -1 stands for its end; set failOnDataLoss=false to"
            " read what exists",
            f"; reading up to {nearest}",
            partial(OffsetOutOfRangeError, partition=partition, offset=end, start=low, end=high),
        )
        return nearest

    def decided_end(self, partition: int, end: int, low: int, decided: int) -> int:
        """Returns where undecided records begin: an end among them would hide them."""
        self._lost(
            f"ending offset {end} of partition {partition} of {self.url} is beyond the decided"
            f" records: records from offset {decided} on wait for the end of a transaction",
            f'read again once it has ended ("clog describe {self.url} transactions" lists it),'
            f" give -1 or at most {decided}, or set isolation=read_uncommitted",
            f"; reading up to {decided}",
            partial(OffsetOutOfRangeError, partition=partition, offset=end, start=low, end=decided),
        )
        return decided

    def check_partitions(self, known: Mapping[int, int], read: Collection[int]) -> None:
        """Reports a partition that a stream no longer reads, as Kafka's source does."""
        if left := {p: known[p] for p in sorted(known) if p not in read}:
            self._lost(
                f"this stream was at {left} of partitions of {self.url} that it no longer reads:"
                ' option "partitions" excludes them, or the log was deleted and recreated',
                "read them again, or set failOnDataLoss=false to continue without them",
            )

    def check_deletes(
        self, manifest: "Manifest", starts: Mapping[int, int], *, since_version: int
    ) -> None:
        """Reports if a stream that began at this version and is at ``starts`` may have missed a
        delete (S41): a tombstone that it has not reached yet was removed since it began, so it may
        know a value of that key, and will never learn that it was deleted.
        """
        missed = missed_deletes(manifest.tombstones_removed, starts, since_version)
        if missed:
            self._lost(
                f"tombstones up to offset {max(missed.values())} of partitions {sorted(missed)}"
                f" of {self.url} were removed before this stream, at"
                f" { ({p: starts[p] for p in sorted(missed)}) }, read them: its result may lack"
                " deletes",
                "start again from the table view, or set failOnDataLoss=false to continue without"
                " them; a longer delete.retention.ms prevents it",
            )

    def has_id(self, handle: "Handle", log_id: str) -> bool:
        """Returns whether the log that a batch was planned at is still there; if not, raises or
        warns.
        """
        if handle.standing.log_id == log_id:
            return True
        self._lost_log(
            f"the log at {self.url} that this stream has read was deleted and recreated (its id"
            f" was {log_id}, now it is {handle.standing.log_id})"
        )
        return False

    def is_planned_log(self, handle: "Handle", planned: "Planned") -> bool:
        """Returns whether offsets were planned at this log, in at most two GETs."""
        there, name = handle.standing.log_id, Location(self.url).name
        if there != planned.log_id:
            recreated = "the log was deleted and recreated, or " if planned.log == name else ""
            self._lost_log(
                f"{self.url} is not the log that this stream has read, {planned.log!r}:"
                f" {recreated}the query was given another path (the log's id was"
                f" {planned.log_id}, now it is {there})"
            )
            return False
        if _commit_id(handle, planned.version) in (planned.commit_id, None):
            return True
        self._lost_log(
            f"version {planned.version} of {self.url} is not the one that this stream has read: the"
            " log was restored from a copy, or the query was given the path of one"
        )
        return False

    def _lost_log(self, message: str) -> None:
        remedy = (
            "if the path was changed, change it back; otherwise start the query with a new"
            " checkpoint"
        )
        if not self.is_final:
            remedy += (
                ", or set failOnDataLoss=false to continue at the start of the log that is there"
            )
        self._lost(
            message,
            remedy,
            "; continuing at the start of that log",
            LogReplacedError,
        )

    def _lost(
        self,
        message: str,
        remedy: str,
        continuing: str = "",
        error: Callable[[str], ClogError] = NotFoundError,
    ) -> None:
        if self.fails:
            raise error(f"{message}; {remedy}")
        _LOGGER.warning("%s%s (failOnDataLoss=false)", message, continuing)


def _commit_id(handle: "Handle", version: int) -> str | None:
    """Returns the id of a version's commit, "" if it never existed, None if that is unknown."""
    from clog.storage.commit.tip import is_closed, try_read

    tip = handle.tip
    if version >= tip.version:
        return tip.record.commit_id if version == tip.version else ""
    with handle.standing.unless_gone():
        closed = is_closed(handle.store, version)
    if closed is not None:
        return closed.get(version, "")
    commit = try_read(handle.store, version)
    return None if commit is None else commit.record.commit_id
