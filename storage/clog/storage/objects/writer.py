"""Writes data objects: one writer per task, for all partitions, in bounded memory (FORMAT.md §5).

A *data object* is one immutable Parquet file. Its rows are ordered by partition; the rows of one
partition in it are a *chunk*. A fresh object is *dense*: it has no offsets, which are assigned at
the commit as base of the chunk + row number. A *rewritten* one (`composing`) contains records that
have their offsets; it has an ``offset`` column unless they have no gaps.

1. `ObjectWriter.add` keeps the Arrow batches it gets. Before their records would exceed
   ``object_bytes``, the kept batches become one object.
2. An object's rows are ordered by partition, in each partition by the order of `add`.
3. Row groups end after 4 MiB or 32768 rows or, so that a partition can be read alone, at the end of
   a partition once they have 1 MiB: tiny partitions share one, a large one shares none. Looking up
   a key costs one row group, too. Row groups four times as large make an object smaller by 0.3 %,
   and it is neither written nor read faster.
4. Between the last page and the footer, where Parquet readers do not look, are the key index, whose
   blocks are the row groups, and the footer's checksum. An object that is fetched whole in any case
   (`WHOLE_BYTES`) gets no index.
5. The object is put under a new name. A crash leaves an orphan, which is swept later.

Encodings were measured on keys with JSON, with random and with three distinct values. Dictionaries
make random and JSON data larger and up to a fifth slower, and gain a tenth only if values come from
a short list, so none are used; deltas for timestamps and offsets cost nothing. Statistics are kept
where they help pruning, but not of floats with a NaN: Arrow leaves it out of their least and
greatest value, which others take for bounds of all. The Arrow schema is left out: the Parquet types
determine it, and it would be half of a small object's footer.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from clog.storage.config.units import ZSTD, Compression
from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError, StoreUnavailableError
from clog.storage.format.chunks import OBJECT, Chunk, ObjectRef
from clog.storage.format.documents import (
    BESIDE,
    NONE,
    Int,
    Natural,
    Text,
    columns,
    data_path,
    maybe,
    row,
)
from clog.storage.format.log_info import LogSchema
from clog.storage.keys import key_index
from clog.storage.keys.hashing import key_bytes
from clog.storage.numpy_arrays import (
    null,
    of_any_width,
    of_one_width,
    parquet,
    scalar,
    to_arrow,
    to_numpy,
)
from clog.storage.objects.orders import rows_without_order
from clog.storage.objects.reader import TAIL_BYTES, WHOLE_BYTES
from clog.storage.store.contract import Puts, Store, StoreFullError
from clog.storage.types.columns import (
    DELETE_HORIZON,
    DELETED,
    OFFSET,
    Kind,
    Layout,
    column_types,
    layout_of,
    lone_floats,
    lone_leaves,
    renamed,
    value_sizes,
)

GROUP_BYTES = 4 << 20
GROUP_BYTES_MIN = 1 << 20
GROUP_ROWS = key_index.BLOCK_ROWS
_CHECKSUM_BYTES = 16
_ROOM_BYTES = 1 << 14
"""For what a file has besides its records, which is almost all of a small file."""
OBJECT_BYTES = 64 << 20
"""Default of ``object_bytes``: record bytes of one object, before compression."""
_OBJECT_BYTES_MAX = 1 << 30  # Arrow's binary arrays end at 2 GiB.
RECORD_OVERHEAD = 12
"""Bytes added to a record's content: offset 8, size 4 (Kafka's). Part of the format."""
_OF_BYTES = layout_of(None)
_Ints = np.ndarray[Any, Any]
_Records = tuple[pa.RecordBatch, _Ints, _Ints]
"""Records, with the partition and the size of each."""


@dataclass(frozen=True, slots=True)
class ChunkStats:
    """One partition's rows in one object; ``size_bytes`` is the sum of their record sizes.

    Offsets (the first and the last row's) are set for records that come with theirs, the bounds of
    delete horizons for rewritten ones; -1: none.
    """

    partition: Annotated[Natural, "p"]
    rows: Natural
    size_bytes: Annotated[Natural, "bytes"]
    first_timestamp_ms: Annotated[Natural, "first_ms"]
    max_timestamp_ms: Annotated[Natural, "max_ms"]
    tombstones: Natural
    first_offset: int = NONE
    last_offset: int = NONE
    horizon_min: int = NONE
    horizon_max: int = NONE


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What a commit checks against the config at commit, not that at writing (S5, S6, S9)."""

    null_keys: Natural
    largest_record_bytes: Natural
    min_timestamp_ms: Int
    max_timestamp_ms: Int
    order_header: Text = ""
    without_order: Natural = 0
    """Records whose header of that name is missing, or is not an order (S56)."""


@dataclass(frozen=True, slots=True)
class DataObject:
    """A written object that is not committed yet, with everything that a commit needs to know.

    ``ref`` is what a manifest keeps of it, and a reader needs; ``chunks`` are in the order of their
    rows; ``facts`` are those of fresh records, None for rewritten ones; ``schema_id`` says under
    which of its log's schemas it was written, -1 for bytes, and ``made_for`` is that schema, unless
    another process wrote it: its records were made, and perhaps rounded, for these types.
    """

    ref: Annotated[ObjectRef, OBJECT, BESIDE]
    chunks: Annotated[tuple[ChunkStats, ...], columns(ChunkStats)]
    facts: Annotated[ObjectFacts | None, maybe(row(ObjectFacts))]
    schema_id: Annotated[Int, "schema"] = NONE
    made_for: LogSchema | None = field(default=None, compare=False, repr=False)

    @property
    def is_given(self) -> bool:
        """Whether its records came with their offsets."""
        return self.chunks[0].first_offset != NONE


@contextmanager
def given_back(store: Store, objects: Sequence[DataObject]) -> Iterator[None]:
    """Deletes objects if the block fails because the disk is full: no sweep would for a day."""
    try:
        yield
    except StoreFullError:
        discard(store, objects)
        raise


def discard(store: Store, objects: Sequence[DataObject]) -> None:
    """Deletes objects that nobody has committed, or ever will, as far as possible."""
    with suppress(StoreUnavailableError):  # The sweep deletes the rest.
        for obj in objects:
            store.delete(obj.ref.path)


def rewritten_chunk(obj: DataObject, *, version: int) -> Chunk:
    """Returns the only chunk of a rewritten object.

    ``version``: the newest commit that its rows came with.
    """
    (stats,) = obj.chunks
    return Chunk(
        object=obj.ref,
        first_row=0,
        rows=obj.ref.rows,
        base=stats.first_offset,
        next=stats.last_offset + 1,
        size_bytes=stats.size_bytes,
        first_timestamp_ms=stats.first_timestamp_ms,
        max_timestamp_ms=stats.max_timestamp_ms,
        tombstones=stats.tombstones,
        version=version,
        horizon_min=stats.horizon_min,
        horizon_max=stats.horizon_max,
    )


class ObjectWriter:
    """Turns the records of one task into data objects of about ``object_bytes``; used once.

    It holds at most the records of one object, a row group of them in the order of partitions, and
    the encoded object.

    Args:
        store: where objects are put.
        stamp: a version of the log that was read before (FORMAT.md §6).
        new_id: draws a unique name.
        partitions: how many the log has.
        compression: of the object's pages.
        object_bytes: record bytes of an object, at most 1 GiB; a larger record gets its own object.
        schema: the log's; None: keys and values are bytes.
        rewritten: records have their offsets (`ColumnTypes.rewritten`, whose ``delete_horizon`` may
            be missing), in rising order in each partition.
        given: fresh records come with their offsets (FORMAT.md §16).
        key_seed: the log's; large objects then get a key index. None: they get none.
        order_header: the header by which the log compares records of a key; empty: none.
        puts: these put objects, which exist once they have settled; None: each is put immediately.
    """

    def __init__(
        self,
        store: Store,
        *,
        stamp: int,
        new_id: Callable[[], str],
        partitions: int,
        schema: LogSchema | None = None,
        compression: Compression = ZSTD,
        object_bytes: int = OBJECT_BYTES,
        rewritten: bool = False,
        given: bool = False,
        key_seed: int | None = None,
        order_header: str = "",
        puts: Puts | None = None,
    ) -> None:
        self._store = store
        self._put_at = store.put if puts is None else partial(puts.put, store)
        self._stamp = stamp
        self._new_id = new_id
        self._partitions = partitions
        self._compression = compression
        self._object_bytes = min(object_bytes, _OBJECT_BYTES_MAX)
        self._key_seed = key_seed
        self._order_header = order_header
        types = column_types(schema)
        self._made_for = schema
        self._layout = layout_of(schema)
        self._schema = types.rewritten if rewritten or given else types.records
        self._stored = self._schema
        if types.stored is not types.rewritten:
            self._stored = pa.schema([types.stored.field(name) for name in self._schema.names])
        self._given = types.records if given else None
        self._is_rewritten = rewritten
        self._kept: list[_Records] = []
        self._kept_bytes = 0
        self._objects: list[DataObject] = []

    @property
    def columns(self) -> pa.Schema:
        """The schema that added records must have."""
        return self._given or self._schema

    def add(
        self, records: pa.Table | pa.RecordBatch, partition: _Ints, offsets: _Ints | None = None
    ) -> None:
        """Adds records; ``partition[i]`` is the partition of row i, and ``offsets[i]`` its offset
        if offsets are given; may put objects.

        Raises:
            InvalidInputError: columns or types differ from the schema's, a timestamp is null or
                negative, a partition does not exist. None of ``records`` is added.
            StoreUnavailableError: an object could not be put; if the disk is full, those before it
                are deleted.
        """
        if len(partition) != records.num_rows:
            raise InvalidInputError(
                f"got {len(partition)} partitions for {records.num_rows} records;"
                " give one for each record"
            )
        if not len(partition):
            return
        low, high = int(partition.min()), int(partition.max())
        if low < 0 or high >= self._partitions:
            raise InvalidInputError(
                f"the records name partitions {low} to {high}, but {self._store.url} has"
                f" partitions 0 to {self._partitions - 1}"
            )
        if offsets is not None:
            records = records.append_column(OFFSET, to_arrow(offsets))
        at = 0
        for batch in _conforming(records, self._schema):
            if self._stored is not self._schema:
                batch = renamed(batch, self._stored)  # noqa: PLW2901
            self._keep(batch, partition[at : at + batch.num_rows])
            at += batch.num_rows

    def finish(self) -> list[DataObject]:
        """Puts the rest; returns all objects, in the order of their records."""
        self._flush()
        return self._objects

    def _keep(self, batch: pa.RecordBatch, partition: _Ints) -> None:
        sizes = record_sizes(batch)
        until = np.cumsum(sizes)
        start, before = 0, 0
        while start < batch.num_rows:
            room = self._object_bytes - self._kept_bytes
            end = int(np.searchsorted(until, before + room, side="right"))
            if end <= start and self._kept_bytes:
                self._flush()
                continue
            end = max(end, start + 1)
            piece = batch.slice(start, end - start)
            # astype copies, as the caller may reuse its array, and makes it signed.
            self._kept.append((piece, partition[start:end].astype(np.int32), sizes[start:end]))
            self._kept_bytes += int(until[end - 1]) - before
            start, before = end, int(until[end - 1])

    def _flush(self) -> None:
        """Puts the kept records."""
        if self._kept:
            self._put_rows(self._taken())

    def _taken(self) -> "Rows":
        """Returns the kept records and releases them: they are freed as they are encoded."""
        batches, partitions, sizes = zip(*self._kept, strict=True)
        self._kept, self._kept_bytes = [], 0
        records = pa.Table.from_batches(batches)
        of_all = np.concatenate(partitions), np.concatenate(sizes)
        return Rows(records, *of_all, self._layout)

    def _put_rows(self, rows: "Rows") -> None:
        chunks = rows.chunks()
        facts = None if self._is_rewritten else rows.facts(self._order_header)
        made = encoded(rows, self._compression, self._key_seed)
        self._put(made, chunks, facts, dense=rows.dense)

    def _put(
        self,
        made: tuple[bytes | memoryview, int, int],
        chunks: tuple[ChunkStats, ...],
        facts: ObjectFacts | None,
        *,
        dense: bool,
    ) -> None:
        data, footer_bytes, index_bytes = made
        path = data_path(self._stamp, self._new_id())
        with given_back(self._store, self._objects):
            self._put_at(path, data)
        self._objects.append(
            DataObject(
                ObjectRef(
                    path=path,
                    size_bytes=len(data),
                    footer_bytes=footer_bytes,
                    checksum=xxhash.xxh3_128_hexdigest(data),
                    rows=sum(chunk.rows for chunk in chunks),
                    stamp=self._stamp,
                    dense=dense,
                    index_bytes=index_bytes,
                ),
                *(chunks, facts, NONE if self._made_for is None else self._made_for.id),
                self._made_for,
            )
        )


def _conforming(records: pa.Table | pa.RecordBatch, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Returns the records as batches of exactly this schema."""
    names = list(records.schema.names)
    types = {field.name: field.type for field in records.schema}
    if DELETE_HORIZON in schema.names:
        types.setdefault(DELETE_HORIZON, schema.field(DELETE_HORIZON).type)
    if len(names) != len(set(names)) or types != {field.name: field.type for field in schema}:
        raise InvalidInputError(
            f"records have the columns {_named(records.schema)}; required: {_named(schema)}"
        )
    timestamps = records.column("timestamp")
    if timestamps.null_count:
        raise InvalidInputError(
            f"{timestamps.null_count} of {records.num_rows} records have no timestamp;"
            " give each record one, such as the time of the append"
        )
    lowest = pc.min(timestamps.cast(pa.int64())).as_py()
    if lowest < 0:
        raise InvalidInputError(
            f"timestamp {lowest} µs is before 1970; timestamps cannot be negative"
        )
    batches = records.to_batches() if isinstance(records, pa.Table) else [records]
    return [
        pa.RecordBatch.from_arrays([_column(batch, field) for field in schema], schema=schema)
        for batch in batches
    ]


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(field.name)
    if field.name == "headers":
        # No headers become null: the column must not differ from an absent one.
        empty = pc.equal(pc.list_value_length(column), scalar(0, pa.int32()))
        if pc.any(empty).as_py():
            return pc.if_else(empty, null(field.type), column)
    return column


def _named(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def record_sizes(records: pa.Table | pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns each record's size: 12 + key + value + each header's key and value; in a typed log
    those of the key's canonical bytes, and of `value_sizes`.

    This is the size in ``segment.bytes``, ``retention.bytes`` and ``max.message.bytes``: it depends
    only on the record, not on compression or neighbours. Needs the columns key, value, headers.
    """
    if isinstance(records, pa.Table):
        parts = [record_sizes(batch) for batch in records.to_batches()]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)
    sizes = np.full(records.num_rows, RECORD_OVERHEAD, np.int64)
    sizes += _lengths(key_bytes(records.column("key")))
    sizes += value_sizes(records.column("value"))
    headers = records.column("headers")
    if headers.null_count < len(headers):
        sizes += _header_sizes(headers)
    return sizes


def _lengths(values: pa.Array) -> np.ndarray[Any, Any]:
    """Returns the length in bytes of each binary or string, 0 for null."""
    lengths = pc.binary_length(values)
    return to_numpy(pc.fill_null(lengths, scalar(0, lengths.type)))


def _header_sizes(headers: pa.Array) -> np.ndarray[Any, Any]:
    counts = to_numpy(pc.fill_null(pc.list_value_length(headers), scalar(0, pa.int32())))
    # flatten() leaves out entries under null lists and around a slice, as the counts do.
    entries = headers.flatten()
    sizes = np.zeros(len(entries) + 1, np.int64)
    np.cumsum(
        _lengths(pc.struct_field(entries, "key")) + _lengths(pc.struct_field(entries, "value")),
        out=sizes[1:],
    )
    ends = np.cumsum(counts, dtype=np.int64)
    per_record: np.ndarray[Any, Any] = sizes[ends] - sizes[ends - counts]
    return per_record


class Rows:
    """Records of one object, and their order in it; None: the given one."""

    def __init__(
        self, records: pa.Table, partition: _Ints, sizes: _Ints, layout: Layout = _OF_BYTES
    ) -> None:
        self.layout = layout
        self.order = partition_order(partition)
        # One array per column: gathering rows from several would copy them all each time.
        self.records = records if self.order is None else records.combine_chunks()
        self.partition = self.ordered(partition)
        self.sizes = self.ordered(sizes)
        self.starts = np.concatenate(([0], np.flatnonzero(np.diff(self.partition)) + 1))
        self.timestamps_ms = self.ordered(int64_of(records.column("timestamp"))) // 1000
        self.offsets: _Ints | None = None
        self.dense = True
        if OFFSET in records.schema.names:
            self.offsets = self.ordered(int64_of(records.column(OFFSET)))
            steps = np.diff(self.offsets)
            steps[self.starts[1:] - 1] = 1
            assert (steps > 0).all(), "given offsets must increase"
            self.dense = bool((steps == 1).all())

    @property
    def record_bytes(self) -> int:
        """The sum of its record sizes."""
        return int(self.sizes.sum())

    def ordered(self, values: _Ints) -> _Ints:
        return values if self.order is None else values[self.order]

    def chunks(self) -> tuple[ChunkStats, ...]:
        starts = self.starts
        ends = np.append(starts[1:], len(self.sizes))
        tombstones = self.ordered(to_numpy(self.records.column("value").is_null()))
        columns = [
            self.partition[starts],
            ends - starts,
            np.add.reduceat(self.sizes, starts),
            self.timestamps_ms[starts],
            np.maximum.reduceat(self.timestamps_ms, starts),
            np.add.reduceat(tombstones, starts, dtype=np.int64),
        ]
        if self.offsets is not None:
            columns += [self.offsets[starts], self.offsets[ends - 1], *self._horizons()]
        return tuple(
            ChunkStats(*values)
            for values in zip(*(column.tolist() for column in columns), strict=True)
        )

    def _horizons(self) -> tuple[_Ints, _Ints]:
        column = pc.fill_null(self.records.column(DELETE_HORIZON), scalar(NONE, pa.int64()))
        values = self.ordered(to_numpy(column))
        counts = values >= 0  # A negative one counts as null (FORMAT.md §5.3).
        latest = np.iinfo(np.int64).max
        low = np.minimum.reduceat(np.where(counts, values, latest), self.starts)
        high = np.maximum.reduceat(np.where(counts, values, NONE), self.starts)
        return np.where(np.logical_or.reduceat(counts, self.starts), low, NONE), high

    def facts(self, order_header: str) -> ObjectFacts:
        return ObjectFacts(
            null_keys=self.records.column("key").null_count,
            largest_record_bytes=int(self.sizes.max()),
            min_timestamp_ms=int(self.timestamps_ms.min()),
            max_timestamp_ms=int(self.timestamps_ms.max()),
            order_header=order_header,
            without_order=(
                len(rows_without_order(self.records, order_header)) if order_header else 0
            ),
        )

    def split(self, count: int) -> "list[Rows]":
        """Returns the records, in their order, in at most ``count`` parts of whole row groups."""
        assert self.order is None, "rewritten records are of one partition"
        ends = [end for _, end in self._groups()]
        edges = sorted({0, *(ends[len(ends) * (i + 1) // count - 1] for i in range(count))})
        return [
            Rows(
                self.records.slice(start, end - start),
                self.partition[start:end],
                self.sizes[start:end],
                self.layout,
            )
            for start, end in pairwise(edges)
        ]

    def consume(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yields the row groups with the columns of an object, once, and releases them."""
        left, self.records = self.layout.flattened(self.records, schema.names), None
        if self.order is not None:
            left = pa.table([of_one_width(column) for column in left.columns], left.schema.names)
        for start, end in self._groups():
            if self.order is None:
                group, left = left.slice(0, end - start), left.slice(end - start)
            else:
                group = left.take(to_arrow(self.order[start:end]))
            columns = zip(group.columns, schema, strict=True)
            made = [c if c.type == f.type else of_any_width(c) for c, f in columns]
            yield pa.Table.from_arrays(made, schema=schema)

    def _groups(self) -> list[tuple[int, int]]:
        """Returns the half-open row ranges of the row groups."""
        until = np.cumsum(self.sizes)
        total = len(until)
        made = []
        start = 0
        while start < total:
            before = int(until[start - 1]) if start else 0
            full = int(np.searchsorted(until, before + GROUP_BYTES, side="right"))
            end = min(max(full, start + 1), start + GROUP_ROWS)
            enough = int(np.searchsorted(until, before + GROUP_BYTES_MIN)) + 1
            next_chunk = int(np.searchsorted(self.starts, max(enough, start + 1)))
            if next_chunk < len(self.starts):
                end = min(end, int(self.starts[next_chunk]))
            made.append((start, end))
            start = end
        return made


def encoded(
    rows: Rows, compression: Compression, key_seed: int | None
) -> tuple[memoryview, int, int]:
    """Returns the object's bytes, and how many are the footer's and the key index's. Takes the
    records out of ``rows``.

    ``key_seed``: the seed of the index's hashes; None: no index.
    """
    # So few bytes of records, compressed, need no index.
    seed = key_seed if rows.sizes.sum() > WHOLE_BYTES else None
    layout = rows.layout
    schema = layout.stored(rows.records.schema, absent_columns(rows))
    with_nan = {layout.path(path) for path in nan_in(rows.records)}
    made, index = _Made(rows.records.nbytes), b""
    sink = pa.PythonFile(made, mode="w")
    with parquet_writer(sink, schema, compression, layout, with_nan) as writer:
        blocks = _write_groups(writer, rows, schema, seed)
        # Written in its place right away: inserting it later would copy all pages.
        if blocks and sink.tell() > WHOLE_BYTES:
            index = key_index.of_blocks(blocks)
        sink.write(index + bytes(_CHECKSUM_BYTES))
    data = made.value()
    footer = data[-int.from_bytes(data[-TAIL_BYTES:-4], "little") - TAIL_BYTES :]
    end = len(data) - len(footer)
    data[end - _CHECKSUM_BYTES : end] = xxhash.xxh3_128_digest(footer)
    return data, len(footer), len(index)


def int64_of(column: pa.ChunkedArray) -> _Ints:
    """Returns the column's values; timestamps in their unit."""
    return to_numpy(column.cast(pa.int64()))


def partition_order(partition: _Ints) -> _Ints | None:
    """Returns the rows ordered by partition, stably; None: they already are."""
    if not (np.diff(partition) < 0).any():
        return None
    # NumPy sorts 16 bits by radix, several times faster.
    narrow = partition.astype(np.uint16) if int(partition.max()) < 1 << 16 else partition
    return np.argsort(narrow, kind="stable")


def parquet_of(
    rows: Rows, schema: pa.Schema, compression: Compression, key_seed: int | None
) -> tuple[memoryview, list[bytes]]:
    """Returns the records' columns of this schema as a Parquet file, and each row group's block of
    a key index, unless the seed is None. Takes the records out of ``rows``.
    """
    layout, made = rows.layout, _Made(rows.records.nbytes)
    with_nan = {layout.path(path) for path in nan_in(rows.records)}
    sink = pa.PythonFile(made, mode="w")
    with parquet_writer(sink, schema, compression, layout, with_nan) as writer:
        blocks = _write_groups(writer, rows, schema, key_seed)
    return made.value(), blocks


class _Made:
    """A file that is being written, in memory.

    It allocates the records' size right away, which is seldom less than they take encoded; the
    system only provides the part that is written. An Arrow stream begins small, and copies all of
    it whenever it grows: on a busy machine encoding 50 MB took 1.3 to 1.8 times the CPU.
    """

    def __init__(self, size_bytes: int) -> None:
        self._data = np.empty(size_bytes + _ROOM_BYTES, np.uint8)
        self._end = 0
        self.closed = False

    def write(self, part: bytes | pa.Buffer) -> int:
        end = self._end + len(part)
        if end > len(self._data):
            grown = np.empty(2 * end, np.uint8)
            grown[: self._end] = self._data[: self._end]
            self._data = grown
        self._data[self._end : end] = np.frombuffer(part, np.uint8)
        self._end = end
        return len(part)

    def value(self) -> memoryview:
        """Returns the written bytes."""
        return self._data.data[: self._end]

    def tell(self) -> int:
        return self._end

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def _write_groups(writer: Any, rows: Rows, schema: pa.Schema, key_seed: int | None) -> list[bytes]:
    blocks = []
    for group in rows.consume(schema):
        writer.write_table(group, row_group_size=group.num_rows)
        if key_seed is not None:
            hashes = key_index.index_hashes(rows.layout.keys(group), seed=key_seed)
            blocks.append(key_index.encode_block(group.num_rows, hashes))
    return blocks


def parquet_writer(
    sink: Any,
    schema: pa.Schema,
    compression: Compression,
    layout: Layout,
    with_nan: Collection[str] = (),
) -> Any:
    """Returns a Parquet writer with the encodings, statistics and checksums of data objects;
    ``with_nan``: the paths of the schema's columns that have a NaN.
    """
    deltas = map(layout.kind.own, ("timestamp", OFFSET, DELETE_HORIZON))
    bounded = _with_statistics(schema, layout)
    return parquet().ParquetWriter(
        sink,
        schema,
        compression=compression.codec,
        compression_level=compression.level,
        use_dictionary=False,
        column_encoding={name: "DELTA_BINARY_PACKED" for name in deltas if name in schema.names},
        write_statistics=[path for path in bounded if path not in with_nan],
        write_page_checksum=True,
        store_schema=False,
    )


def nan_in(rows: pa.Table) -> set[str]:
    """Returns the paths of the columns outside lists and maps in which there is a NaN."""
    found = set()
    for path in lone_floats(rows.schema):
        top, *below = path.split(".")
        column = rows.column(top)
        values = (pc.struct_field(column, below) if below else column).drop_null()
        if any(np.isnan(to_numpy(chunk)).any() for chunk in values.chunks):
            found.add(path)
    return found


def _with_statistics(schema: pa.Schema, layout: Layout) -> list[str]:
    """Returns the columns, by path, that have statistics because these help pruning."""
    names = [name for name in map(layout.kind.own, ("timestamp", OFFSET)) if name in schema.names]
    if layout.kind is Kind.BYTES:
        return names  # Those of keys and values would be long and useless.
    content = (field for field in schema if layout.is_content(field.name))
    return names + [path for field in content for path in lone_leaves(field)]


def absent_columns(rows: Rows) -> set[str]:
    """Returns the columns that are not stored because they are all null, or computed."""
    records = rows.records
    absent = {OFFSET} if rows.dense else set()
    for name in ("headers", DELETE_HORIZON):
        if name in records.schema.names and records.column(name).null_count == records.num_rows:
            absent.add(name)
    return absent | (set() if records.column("value").null_count else {DELETED})
