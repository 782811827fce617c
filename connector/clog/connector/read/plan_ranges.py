"""Plans a read on the driver, at one version: from options to input partitions, which are plain
data and complete, so that a task asks for objects and nothing else.

A plan begins with *ranges* of offsets (batch, stream) or with *views*: `table`, the latest value of
each key, and `latest`, the latest record of each key that changed since a position. Offsets that
are missing fail it, or are skipped with a warning (S38, S41). What it has in `ReadPiece`s is dealt
out to tasks. A fresh object holds rows of all partitions, so reading a recent range partition by
partition opens each object once for each partition. Therefore:

D1. Pieces are ordered by object; objects such that in each partition offsets still rise from task
    to task and inside a task. So a job that writes back what it read keeps the order of each
    partition (S44). Where no order of the objects suits all partitions (an object of which only
    parts are left), the order is partition by partition.
D2. The list is cut into runs of about equal size; a piece larger than that is cut too, where its
    offsets are dense.

Small partitions of a view share a task. A large one becomes several tasks, each of which delivers
a *slice*: a run of its pieces. A slice needs the keys of all dirty pieces from its own on, to know
what is superseded; therefore a slice has at least a quarter as many rows as the dirty part, unless
``minPartitions`` asks for more. So however large the partition, no clean row costs more than four
reads of a dirty key, and the dirty part's own slices read its keys three and a half times (2.5 to
map them, 1 to deliver them).

Nothing here knows a key of a record: a plan is as large as the list of objects.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from clog.connector.opened_logs import try_open, types_of
from clog.connector.options import Location, ReadOptions
from clog.connector.positions import Position, Since, Times, check_all_named, resolve
from clog.connector.schema import (
    LogTypes,
    TableColumns,
    check_read_schema,
    needs_types,
    read_schema,
    table_read,
    table_schema,
    typed_columns,
)
from clog.storage.errors import NotFoundError, OffsetOutOfRangeError, OptionError
from clog.storage.read.table import missed_deletes

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from clog.storage.commit.handle import Handle
    from clog.storage.format.commits import Head
    from clog.storage.format.manifest import Manifest
    from clog.storage.read.scan import Isolation, ReadPiece
    from clog.storage.read.table import TablePlan
    from clog.storage.store.contract import Store


_LOGGER = logging.getLogger("clog.connector")

TASK_BYTES = 64 << 20
"""Stored bytes that are worth a task of their own."""

TASK_ROWS = 1_000_000
"""Likewise rows: small records compress well and still take their time, but a Python task costs
Spark as much as some 100,000 of them (``benchmarks/scenarios/spark_parquet.py``).
"""

_PARALLEL_ROWS_MIN = 10_000
"""A range of fewer rows for each partition does not gain from running in parallel."""

SLICES_OF_DIRTY = 4
"""A slice has at least this part of the dirty rows."""


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """Pieces of the log with this id to be read in this order, planned at ``version``.

    ``seed`` is the log's, for its key indexes. ``follow``: an object that is gone meanwhile is
    looked for in the newest version (streams); else the version has expired (batch). ``keys``: only
    records with one of these; None: all.
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
    """Slices of a view, each of one partition of the log with this id, of these keys or of all.
    ``table``: where rows are to be delivered, not records.
    """

    location: Location
    log_id: str
    plans: tuple["TablePlan", ...]
    keys: tuple[bytes, ...] | None = field(default=None, repr=False)
    table: TableColumns | None = None


def asked_schema(options: ReadOptions, types: LogTypes | None) -> "StructType":
    """Returns the columns of a read without ``.schema(…)`` of a log with these types.

    Raises:
        OptionError: ``columns`` names one that does not exist.
        InvalidInputError: a type that Spark has not.
    """
    headers = options.include_headers
    if types is not None and options.view == "table" and not headers:
        rows = table_schema(types, options.columns)
        if rows is not None:
            return rows
    typed = None if types is None else types.schema
    return read_schema(options.columns, include_headers=headers, typed=typed)


def check_columns(options: ReadOptions, schema: "StructType") -> "Handle | None":
    """Raises if a schema that the user gave cannot be read. Opens the log where it is no schema of
    a log of bytes, and returns its handle then.

    Raises:
        InvalidInputError: as `check_read_schema`.
    """
    if not needs_types(schema):
        check_read_schema(schema)
        return None
    handle = try_open(options.location)
    if handle is None:
        check_read_schema(schema)
    else:
        check_columns_of(handle, options, schema)
    return handle


def check_columns_of(
    handle: "Handle", options: ReadOptions, schema: "StructType"
) -> TableColumns | None:
    """Returns the table whose rows are to be shown; None where records are.

    Raises:
        InvalidInputError: the columns are not those of the log.
    """
    types = types_of(handle)
    if types is None:
        if needs_types(schema):
            check_read_schema(schema)
        return None
    table = table_read(types, schema) if options.view == "table" else None
    if table is None:
        asked = {f.name.lower() for f in schema.fields}
        check_read_schema(schema, typed_columns([f for f in types.schema if f.name in asked]))
    return table


def of_the_logs_keys(handle: "Handle", options: ReadOptions) -> ReadOptions:
    """Returns the options with keys as the log compares them: each text of ``keys`` stands for one
    of the log's type, as ``clog get`` takes it.

    Raises:
        OptionError: one stands for none.
    """
    types = types_of(handle)
    if types is None or options.keys is None:
        return options
    import pyarrow as pa

    from clog.storage.errors import InvalidInputError
    from clog.storage.objects.conforming import asked_keys
    from clog.storage.objects.typed_json import key_from_text

    kind = types.schema.field("key").type
    if pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_fixed_size_binary(kind):
        return options
    try:
        meant = [key_from_text(text.decode(), kind) for text in options.keys]
        keys = asked_keys(meant, handle.tip.head.log.schema)
    except (InvalidInputError, UnicodeDecodeError):
        raise OptionError(
            f'option "keys" has a key that is no {kind}, the type that the log has; write each as a'
            ' JSON text, ["7"], of a struct its object, ["{\\"id\\": 7}"]'
        ) from None
    return replace(options, keys=tuple(sorted(keys)))


def log_partitions(
    manifest: "Manifest",
    ranges: Mapping[int, tuple[int, int]],
    options: ReadOptions,
    *,
    follow: bool,
) -> list[LogPartition]:
    """Returns input partitions for half-open ranges of offsets."""
    from clog.storage.read.scan import plan_range

    pieces = {
        p: plan_range(manifest, p, start, end, isolation=isolation_of(options.uncommitted))
        for p, (start, end) in ranges.items()
    }
    tasks = deal(
        pieces,
        min_tasks=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    return [
        LogPartition(
            location=options.location,
            log_id=manifest.head.log.log_id,
            version=manifest.version,
            seed=manifest.head.log.key_seed,
            pieces=task,
            follow=follow,
            fail_on_data_loss=options.fail_on_data_loss,
            keys=options.keys,
            uncommitted=options.uncommitted,
        )
        for task in tasks
    ]


def batch_ranges(
    store: "Store", manifest: "Manifest", options: ReadOptions
) -> dict[int, tuple[int, int]]:
    """Returns the half-open ranges of offsets of a batch read, by partition.

    Raises:
        OptionError: as `positions`; a start after the end.
        OffsetOutOfRangeError: a start or an end that is gone, not there or not decided yet, and
            ``failOnDataLoss``.
    """
    parts = partitions_read(manifest.head, options.partitions, url=store.url)
    lows, highs = manifest.head.partitions.start, manifest.head.partitions.end
    starting = options.starting or "earliest"
    assert not isinstance(starting, Since), "a batch read of the log itself refuses it"
    starts = positions(store, manifest, parts, starting, option="starting")
    is_dirty = options.uncommitted
    ends = positions(
        store, manifest, parts, options.ending or "latest", option="ending", uncommitted=is_dirty
    )
    ranges = {}
    for p in parts:
        stable = highs[p] if is_dirty else manifest.head.stable_offset(p)
        if ends[p] == stable:
            # A start beyond it is a position: what lies there is not decided yet (S51).
            ends[p] = max(ends[p], min(starts[p], highs[p]))
        elif max(stable, starts[p]) < ends[p] <= highs[p]:
            ends[p] = _decided_end(
                *(p, ends[p], lows[p], max(stable, starts[p])),
                url=store.url,
                fail_on_data_loss=options.fail_on_data_loss,
            )
        # A start at the log start may be the default: then the end is of records that are deleted.
        if ends[p] < starts[p] != lows[p]:
            raise OptionError(
                f"the read of partition {p} of {store.url} starts at offset {starts[p]} and ends at"
                f" {ends[p]}: nothing lies between; give a start (startingOffsets, timestamps) that"
                " is not after the end (endingOffsets, timestamps)"
            )
        low, high = lows[p], highs[p]
        start = available_start(
            *(p, starts[p], low, high), url=store.url, fail_on_data_loss=options.fail_on_data_loss
        )
        end = _available_end(
            *(p, ends[p], low, high), url=store.url, fail_on_data_loss=options.fail_on_data_loss
        )
        ranges[p] = (start, end)
    return ranges


def view_partitions(
    handle: "Handle", options: ReadOptions, table: TableColumns | None
) -> list[TablePartition]:
    """Returns the plan of a view, as tasks, which deliver rows of the table, or records; raises as
    `view_plans`.
    """
    plans = [plan for plan in view_plans(handle, options) if plan.clean or plan.dirty]
    wanted, at_most = options.min_partitions or 1, options.max_records_per_partition
    rows = sum(_own_rows(plan) for plan in plans)
    tasks = max(wanted, _worth_tasks({p.partition: (*p.clean, *p.dirty) for p in plans}))
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


def _table(handle: "Handle", options: ReadOptions) -> list["TablePlan"]:
    from clog.storage.read.table import plan_table

    manifest, newest = view_manifest(handle, options), handle.tip.head
    parts = partitions_read(newest, options.partitions, url=handle.store.url)
    # Not the old version's starts: what was deleted since is gone (S36).
    lows, _ = offset_bounds(newest, parts)
    return [plan_table(manifest, p, low) for p, low in lows.items()]


def _latest(handle: "Handle", options: ReadOptions) -> list["TablePlan"]:
    from clog.storage.read.table import plan_changes

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


def view_manifest(handle: "Handle", options: ReadOptions) -> "Manifest":
    """Returns the manifest at the version that a view shows.

    Raises:
        VersionExpiredError: as `view_plans`.
    """
    from clog.storage.commit.versions import version_asked

    asked = options.as_of_version, options.as_of_ms
    return handle.manifest_at(version_asked(handle.store, handle.tip, *asked))


def partitions_read(head: "Head", wanted: Sequence[int] | None, *, url: str) -> tuple[int, ...]:
    """Returns the partitions that are read: those wanted, or all.

    Raises:
        OptionError: one does not exist.
    """
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
    """Returns the log start offsets of these partitions, and where their readers end: at the last
    stable offsets (S51), or with ``uncommitted`` at the end offsets.
    """
    start, end = head.partitions.start, head.partitions.end
    ends = {p: end[p] if uncommitted else head.stable_offset(p) for p in parts}
    return {p: start[p] for p in parts}, ends


def isolation_of(uncommitted: bool) -> "Isolation":  # noqa: FBT001 - it has the name
    """Returns what a read sees of transactions that have not ended."""
    from clog.storage.read.scan import Isolation

    return Isolation.UNCOMMITTED if uncommitted else Isolation.COMMITTED


def positions(
    store: "Store",
    manifest: "Manifest",
    parts: Sequence[int],
    position: Position | Times,
    *,
    option: str,
    uncommitted: bool = False,
) -> dict[int, int]:
    """Returns the offset that a position names in each partition. Times cost requests: chunks that
    may hold the first record that is late enough are read.

    Raises:
        OptionError: it does not name all partitions, or one that does not exist, or a time later
            than every record.
    """
    lows, highs = offset_bounds(manifest.head, parts, uncommitted=uncommitted)
    if not isinstance(position, Times):
        return resolve(position, lows, highs, option=f"{option}Offsets")
    times = dict.fromkeys(parts, position.ms) if isinstance(position.ms, int) else position.ms
    check_all_named(times, parts, option=f"{option}OffsetsByTimestamp")
    from clog.storage.read.scan import for_times

    found = for_times(store, manifest, times)
    late = [p for p in parts if found[p] is None]
    if late and not position.or_latest:
        raise OptionError(
            f"partitions {late} of {store.url} have no record at or after the {option} timestamp"
            f" ({times[late[0]]} for partition {late[0]}); give an earlier one, or set"
            f" {option}OffsetsByTimestampStrategy=latest to begin at the end there"
        )
    offsets = {p: found[p] for p in parts}
    return {p: highs[p] if offset is None else offset for p, offset in offsets.items()}


def since(handle: "Handle", position: Since, parts: Sequence[int]) -> dict[int, int]:
    """Returns the end offset of each partition at the version; opening that version costs requests.

    Raises:
        VersionExpiredError: it is not readable any more, or not yet there.
    """
    return offset_bounds(handle.manifest_at(position.version).head, parts)[1]


def not_before(
    ends: Mapping[int, int], starts: Mapping[int, int] | None, head: "Head"
) -> dict[int, int]:
    """Returns the ends of a batch that starts there: not before its start, which may lie among
    records that are undecided (S51).
    """
    there, known = head.partitions.end, starts or {}
    return {
        p: max(end, start) if (start := known.get(p, end)) <= there[p] else end
        for p, end in ends.items()
    }


def decided(
    handle: "Handle", manifest: "Manifest", ranges: Mapping[int, tuple[int, int]]
) -> "Manifest":
    """Returns a manifest in which all records of a stream's batch are decided: the given one, or,
    where the batch was planned with ``read_uncommitted``, the newest.

    Raises:
        OptionError: some are not decided yet; they would be skipped.
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
            f' "clog transactions {url}" lists them'
        )
    return handle.manifest()


def _undecided(head: "Head", ranges: Mapping[int, tuple[int, int]]) -> list[int]:
    """Returns the partitions in which some of these offsets are not decided (S51)."""
    ends = head.partitions.end
    return [p for p, (_, end) in ranges.items() if min(end, ends[p]) > head.stable_offset(p)]


def available_start(
    partition: int, start: int, low: int, high: int, *, url: str, fail_on_data_loss: bool
) -> int:
    """Returns ``start`` where it lies in ``[low, high]``, log start and end; else, if it may be,
    the log start.

    Raises:
        OffsetOutOfRangeError: it does not, and ``fail_on_data_loss``.
    """
    if low <= start <= high:
        return start
    if start < low:
        what = f"is below the log start offset {low}: {low - start} offsets are gone"
    else:
        what = f"is beyond the end offset {high}: the log may have been deleted and recreated"
    message = f"offset {start} of partition {partition} of {url} {what}"
    if fail_on_data_loss:
        remedy = f"readable are [{low}, {high}); set failOnDataLoss=false to continue at {low}"
        raise _out_of_range(f"{message}; {remedy}", partition, start, low, high)
    _LOGGER.warning("%s; continuing at %d (failOnDataLoss=false)", message, low)
    return low


def _available_end(
    partition: int, end: int, low: int, high: int, *, url: str, fail_on_data_loss: bool
) -> int:
    """Returns ``end``, exclusive, as `available_start` does; else the nearer of the two."""
    if low <= end <= high:
        return end
    nearest = low if end < low else high
    if end < low:
        what = f"is below the log start offset {low}: all records before it are deleted"
    else:
        what = f"is beyond the end offset {high}: {end - high} offsets are not there"
    message = f"ending offset {end} of partition {partition} of {url} {what}"
    if fail_on_data_loss:
        remedy = (
            f"readable are [{low}, {high}), -1 stands for its end; set failOnDataLoss=false to read"
            " what there is"
        )
        raise _out_of_range(f"{message}; {remedy}", partition, end, low, high)
    _LOGGER.warning("%s; reading up to %d (failOnDataLoss=false)", message, nearest)
    return nearest


def _decided_end(
    partition: int, end: int, low: int, decided: int, *, url: str, fail_on_data_loss: bool
) -> int:
    """Returns where undecided records begin, in place of an end among them, if it may be: who goes
    on at that end would never see them.
    """
    message = (
        f"ending offset {end} of partition {partition} of {url} is beyond what is decided: records"
        f" from offset {decided} on wait for the end of a transaction"
    )
    if fail_on_data_loss:
        remedy = (
            f'read again once it has ended ("clog transactions {url}" lists it), give -1 or at most'
            f" {decided}, or set isolation=read_uncommitted"
        )
        raise _out_of_range(f"{message}; {remedy}", partition, end, low, decided)
    _LOGGER.warning("%s; reading up to %d (failOnDataLoss=false)", message, decided)
    return decided


def _out_of_range(
    message: str, partition: int, offset: int, low: int, high: int
) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(message, partition=partition, offset=offset, start=low, end=high)


def check_partitions(
    known: Mapping[int, int], read: Collection[int], *, url: str, fail_on_data_loss: bool
) -> None:
    """Raises if a stream no longer reads every partition that it was reading, as Spark's Kafka
    source does.

    Raises:
        NotFoundError: it does not, and ``fail_on_data_loss``.
    """
    left = {p: known[p] for p in sorted(known) if p not in read}
    if not left:
        return
    message = (
        f"this stream was at {left} of partitions of {url} that it no longer reads: option"
        ' "partitions" excludes them, or the log was deleted and recreated'
    )
    if fail_on_data_loss:
        raise NotFoundError(
            f"{message}; read them again, or set failOnDataLoss=false to continue without them"
        )
    _LOGGER.warning("%s (failOnDataLoss=false)", message)


def check_tombstones(
    manifest: "Manifest",
    starts: Mapping[int, int],
    *,
    since_version: int,
    url: str,
    fail_on_data_loss: bool,
) -> None:
    """Raises if a stream that began at ``since_version`` and is at ``starts`` can have missed a
    delete (S41).

    It can when a tombstone that it has not reached yet was removed since it began: it may know a
    value of that key and will never hear that it is gone.

    Raises:
        NotFoundError: it can, and ``fail_on_data_loss``.
    """
    missed = missed_deletes(manifest.tombstones_removed, starts, since_version)
    if not missed:
        return
    message = (
        f"tombstones up to offset {max(missed.values())} of partitions {sorted(missed)} of {url}"
        f" were removed before this stream, at { ({p: starts[p] for p in sorted(missed)}) }, read"
        " them: deletes may be missing in what it made"
    )
    if fail_on_data_loss:
        raise NotFoundError(
            f"{message}; start again from the table view, or set failOnDataLoss=false to continue"
            " without them; a longer delete.retention.ms prevents it"
        )
    _LOGGER.warning("%s (failOnDataLoss=false)", message)


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


def deal(
    pieces: Mapping[int, Sequence["ReadPiece"]],
    *,
    min_tasks: int | None = None,
    max_records: int | None = None,
    max_tasks: int | None = None,
    by_row: bool = False,
) -> list[tuple["ReadPiece", ...]]:
    """Returns pieces by partition, in offset order, dealt out to tasks; at least one piece each.

    ``max_tasks`` is passed where ``max_records`` demands it. ``by_row``: pieces of cleaned objects
    are cut too. Which offsets a part has is not known then, so a plan that is to be made anew for
    the rest must not ask for it.
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
    """Cuts a piece in two. Only in a dense one the offset of a row is known."""
    if not piece.object.dense:
        rest = replace(piece, first_row=piece.first_row + rows, rows=piece.rows - rows)
        return replace(piece, rows=rows), rest
    middle = piece.base + rows
    first = replace(piece, rows=rows, end=middle)
    rest = replace(
        piece,
        first_row=piece.first_row + rows,
        rows=piece.rows - rows,
        base=middle,
        start=middle,
    )
    return first, rest


def _by_object(pieces: Mapping[int, Sequence["ReadPiece"]]) -> list["ReadPiece"]:
    """Does D1: returns a topological order of the objects, of several possible ones that which
    follows partitions.
    """
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
