"""The work of a read task: it turns pieces of objects into Arrow batches as Spark wants them.

Small batches are combined to about 10,000 rows, as an object may have a few rows of each of many
partitions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from clog.connector.opened_logs import Loaded, readable
from clog.connector.read.plan import (
    ChangesPartition,
    LogPartition,
    Losses,
    RowsPartition,
    TablePartition,
    pieces_of,
)
from clog.connector.schema import (
    CHANGES,
    TableColumns,
    arrow_schema,
    canonical,
    stored_columns,
    without_changes,
)
from clog.storage.commit.versions import file_missing
from clog.storage.errors import ClogError, CorruptionError
from clog.storage.numpy_arrays import of_bytes, repeated_text, to_arrow, to_numpy
from clog.storage.read.scan import ReadPiece, read_pieces
from clog.storage.read.table import TablePlan, small_view_batches, table_batches
from clog.storage.store.contract import Store
from clog.storage.types.columns import as_type

GATHER_ROWS = 8192
"""Batches are combined until they have this many rows."""
GATHER_BYTES = 32 << 20
"""Or this many bytes."""
SMALL_ROWS = 100_000
"""Views with at most this many rows together are read at the same time."""
SMALL_BYTES = 4 << 20
"""And at most this many stored bytes."""
CREATE_TIME, LOG_APPEND_TIME = 0, 1
"""Kafka's numbers in ``timestampType``."""


def log_batches(partition: LogPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Returns batches of the partition's records, in the columns of ``schema``."""
    as_spark = _Converter(schema, partition.location.name, partition.pieces)
    records = _records(partition, _with_key(as_spark.needed, partition.keys), schema)
    return _gathered(map(as_spark, _of_keys(records, partition.keys)))


def table_slice_batches(partition: TablePartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Returns batches of slices of a view, in the columns of ``schema``."""
    plans, keys, table = partition.plans, partition.keys, partition.table
    pieces = [piece for plan in plans for piece in (*plan.clean, *plan.dirty)]
    asked = schema if table is None else table.as_records(schema)
    as_spark = _Converter(asked, partition.location.name, pieces)
    records = _of_plans(partition, _with_key(as_spark.needed, keys))
    batches: Iterable[pa.RecordBatch] = map(as_spark, _of_keys(records, keys))
    if table is not None:
        batches = (table.rows_of(batch, schema) for batch in batches)
    return _gathered(batches)


def change_batches(partition: ChangesPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yields batches of changes, in the columns of ``schema``."""
    from clog.storage.read.changes import changes_batches

    store, table = partition.location.store_of(partition.log_id), partition.table
    shown = without_changes(schema)
    sides = [plan for s in partition.splits for plan in (s.before, s.news, s.left) if plan]
    pieces = [piece for plan in sides for piece in (*plan.clean, *plan.dirty)]
    asked = shown if table is None else table.as_records(shown)
    as_spark = _Converter(asked, partition.location.name, pieces)

    def batches() -> Iterator[pa.RecordBatch]:
        for split in partition.splits:
            for batch in changes_batches(store, split, columns=as_spark.needed):
                rows = as_spark(batch)
                rows = rows if table is None else table.rows_of(rows, shown)
                yield _with_changes(rows, [batch.column(name) for name in CHANGES], schema)

    return _gathered(batches())


def inserted_batches(partition: RowsPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yields batches of rows as inserts, in the columns of ``schema``."""
    time = pa.scalar(partition.time_ms * 1000, pa.timestamp("us", "UTC"))
    for rows in table_slice_batches(partition.view, without_changes(schema)):
        own = (pa.scalar("insert"), pa.scalar(partition.version, pa.int64()), time)
        yield _with_changes(rows, [pa.repeat(value, rows.num_rows) for value in own], schema)


def _with_changes(
    rows: pa.RecordBatch, changes: Sequence[pa.Array], schema: StructType
) -> pa.RecordBatch:
    """Returns rows of the table with columns of `CHANGES`, in the columns of ``schema``."""
    own = dict(zip(CHANGES, changes, strict=True))
    of_table = iter(rows.columns)
    given = arrow_schema(schema)
    arrays = [own[f.name.lower()] if f.name.lower() in own else next(of_table) for f in given]
    return pa.RecordBatch.from_arrays(arrays, schema=given)


def found_batches(
    rows: pa.Table,
    pieces: Sequence[ReadPiece],
    topic: str,
    schema: StructType,
    table: TableColumns | None,
) -> Iterator[pa.RecordBatch]:
    """Yields records of pieces in memory as columns of ``schema``, or the table's rows."""
    as_spark = _Converter(schema if table is None else table.as_records(schema), topic, pieces)
    for batch in map(as_spark, rows.to_batches()):
        yield batch if table is None else table.rows_of(batch, schema)


def _of_plans(partition: TablePartition, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields the views' records: together if partitions are small, else one view after another."""
    store = partition.location.store_of(partition.log_id)
    try:
        plans = [_searched(store, plan, partition.keys) for plan in partition.plans]
        if len(plans) > 1 and _are_small(plans):
            yield from small_view_batches(store, plans, columns=columns)
            return
        for plan in plans:
            yield from table_batches(store, plan, columns=columns)
    except FileNotFoundError as e:
        raise _missing(partition.plans[0].version, store, e) from e


def _searched(store: Store, plan: TablePlan, keys: Sequence[bytes] | None) -> TablePlan:
    parts = (plan.clean, plan.dirty, plan.later)
    clean, dirty, later = (_pieces(store, pieces, keys, plan.seed) for pieces in parts)
    return replace(plan, clean=clean, dirty=dirty, later=later)


def _are_small(plans: Sequence[TablePlan]) -> bool:
    """Returns whether memory may hold all rows of these views."""
    pieces = [piece for plan in plans for piece in (*plan.clean, *plan.dirty)]
    rows = sum(piece.rows for piece in pieces)
    size = sum(piece.object.size_bytes * piece.rows // piece.object.rows for piece in pieces)
    return rows <= SMALL_ROWS and size <= SMALL_BYTES and not any(plan.later for plan in plans)


def _with_key(columns: list[str], keys: Sequence[bytes] | None) -> list[str]:
    return columns if keys is None or "key" in columns else [*columns, "key"]


def _pieces(
    store: Store, pieces: Sequence[ReadPiece], keys: Sequence[bytes] | None, seed: int
) -> tuple[ReadPiece, ...]:
    if keys is None:
        return tuple(pieces)
    from clog.storage.read.lookup import pieces_of_keys

    return tuple(pieces_of_keys(store, pieces, keys, seed))


def _of_keys(
    batches: Iterable[pa.RecordBatch], keys: Sequence[bytes] | None
) -> Iterable[pa.RecordBatch]:
    if keys is None:
        return batches
    from clog.storage.read.lookup import of_keys

    wanted = of_bytes(keys)
    return (found for batch in batches if (found := of_keys(batch, wanted)).num_rows)


def _missing(version: int, store: Store, gone: FileNotFoundError) -> ClogError:
    remedy = (
        "load() again, or create the temporary view USING clog anew: both keep the version of their"
        " first action"
    )
    return file_missing(store, version, gone, remedy=remedy)


def _records(
    partition: LogPartition, columns: Sequence[str], schema: StructType
) -> Iterator[pa.RecordBatch]:
    store = partition.location.store_of(partition.log_id)
    pieces: Sequence[ReadPiece] = partition.pieces
    if not partition.follow:
        try:
            pieces = _pieces(store, pieces, partition.keys, partition.seed)
            yield from read_pieces(store, pieces, columns=columns)
        except FileNotFoundError as e:
            raise _missing(partition.version, store, e) from e
        return
    # Where each partition continues: records must not be yielded again from another object.
    following: dict[int, int] = {}
    columns = [*columns, *(name for name in ("partition", "offset") if name not in columns)]
    version = partition.version
    while pieces:
        try:
            wanted = _pieces(store, pieces, partition.keys, partition.seed)
            for batch in read_pieces(store, wanted, columns=columns):
                yield batch
                p = batch.column("partition")[-1].as_py()
                following[p] = batch.column("offset")[-1].as_py() + 1
            return
        except FileNotFoundError as e:
            newer = _planned_again(partition, pieces, following, schema)
            if newer is None:
                return
            error = _missing(newer.version, store, e)
            if newer.version == version or isinstance(error, CorruptionError):
                raise error from e
            version, pieces = newer.version, newer.pieces


def _planned_again(
    partition: LogPartition,
    pieces: Sequence[ReadPiece],
    following: Mapping[int, int],
    schema: StructType,
) -> LogPartition | None:
    """Plans the rest of the pieces from the newest version, or raises; None if the log is gone."""
    from clog.storage.log import Log

    handle = Log.open(partition.location.store()).handle
    losses = Losses(handle.store.url, partition.fail_on_data_loss)
    if not losses.has_id(handle, partition.log_id):
        return None
    planned = next((piece.schema for piece in pieces if piece.schema is not None), None)
    loaded = None if planned is None else Loaded(planned)
    manifest, _ = readable(handle, handle.manifest(), schema, loaded)
    heads = manifest.head.partitions
    rest: list[ReadPiece] = []
    starts: dict[int, int] = {}
    for piece in pieces:
        p = piece.partition
        start = max(piece.start, following.get(p, piece.start))
        if start < piece.end:
            start = losses.start(p, start, heads.start[p], heads.end[p])
            starts.setdefault(p, start)
            ranges = {p: (start, piece.end)}
            rest += pieces_of(manifest, ranges, uncommitted=partition.uncommitted)[p]
    # The plan knew its version's tombstones; some removed since then may be in this range.
    losses.check_deletes(manifest, starts, since_version=partition.version)
    return replace(partition, version=manifest.version, pieces=tuple(rest))


class _Converter:
    """Makes Spark's columns from storage's columns `needed`."""

    def __init__(self, schema: StructType, topic: str, pieces: Sequence[ReadPiece]) -> None:
        self._given = arrow_schema(schema)
        self._schema = arrow_schema(canonical(schema))
        self._topic = topic
        self.needed = stored_columns(canonical(schema))
        kinds = {piece.append_time_ms >= 0 for piece in pieces}
        self._kind = LOG_APPEND_TIME if kinds == {True} else CREATE_TIME
        self._append_times: list[tuple[int, int, int]] = []
        if len(kinds) > 1 and "timestampType" in self._schema.names:
            # The log's `message.timestamp.type` was changed: offsets show which records have which.
            self._append_times = [
                (piece.partition, piece.start, piece.end)
                for piece in pieces
                if piece.append_time_ms >= 0
            ]
            self.needed += [name for name in ("partition", "offset") if name not in self.needed]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for field in self._schema:
            if field.name == "topic":
                arrays.append(repeated_text(self._topic, batch.num_rows))
            elif field.name == "timestampType":
                arrays.append(self._timestamp_types(batch))
            else:
                arrays.append(as_type(batch.column(field.name), field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._given)

    def _timestamp_types(self, batch: pa.RecordBatch) -> pa.Array:
        kinds = np.full(batch.num_rows, self._kind, np.int32)
        if self._append_times:
            offsets, partitions = (to_numpy(batch.column(n)) for n in ("offset", "partition"))
            for p, start, end in self._append_times:
                kinds[(partitions == p) & (offsets >= start) & (offsets < end)] = LOG_APPEND_TIME
        return to_arrow(kinds)


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        if held and (rows + batch.num_rows > GATHER_ROWS or size_bytes > GATHER_BYTES):
            yield _one(held)
            held, rows, size_bytes = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
    if held:
        yield _one(held)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches).combine_chunks()
    (batch,) = table.to_batches()
    return batch
