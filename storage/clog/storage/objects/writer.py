"""Writing data objects: one writer a task, for all partitions, in bounded memory (FORMAT.md §5).

1. `ObjectWriter.add` keeps the Arrow batches it is given. Before their records would exceed
   ``object_bytes``, what is kept becomes one object.
2. An object's rows are ordered by partition, in each partition by the order of `add`.
3. The object is put under a name nobody has seen. Crash: an orphan, swept later.

A rewritten object may be *composed* of encoded records and of row groups *copied* as they lie in
another one (§5.1): pages do not know where in a file they are, so bytes, checksums and encodings
stay, and the new footer, put together from those of the parts, says where they lie now. That takes
a twentieth of the CPU of decoding and encoding. The source is there as a whole, its checksum
verified. `RowGroupSource` takes what the new footer needs: metadata, sizes and nulls as stated;
timestamps, offsets, horizons and keys that are structs are decoded. The key index's block comes
along; where there is none its keys are read.

All row groups have the same columns. What a copied one lacks is made: an ``offset`` column where
the object is not dense any more, a run of a few bytes; headers or horizons that are null. What the
object does not need is left behind.

A group is not copied where anything about it is not as it would be written now: the schema, to the
last field; the codec; a field of the metadata that nobody here knows; sizes that are not stated
(Arrow states them since 19). Nor is a small one, which would stay small for ever, nor a large one,
which would make a look-up of a key expensive.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import takewhile
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from clog.storage.config.definitions import ZSTD, Compression
from clog.storage.errors import InvalidInputError
from clog.storage.format.chunks import FOOTER_SUM_BYTES, ObjectRef
from clog.storage.format.codec import NONE
from clog.storage.format.documents import data_path
from clog.storage.format.log_info import LogSchema
from clog.storage.keys import key_index
from clog.storage.keys.hashing import key_bytes
from clog.storage.numpy_arrays import null, parquet, scalar, to_arrow, to_numpy
from clog.storage.objects.encoding import (
    GROUP_BYTES,
    GROUP_BYTES_MIN,
    GROUP_ROWS,
    Rows,
    absent_columns,
    encoded,
    is_typed,
    parquet_of,
    parquet_writer,
    stored_schema,
)
from clog.storage.objects.footer import (
    I64,
    LIST,
    MAGIC,
    STRUCT,
    TAIL_BYTES,
    Reader,
    Struct,
    read_footer,
    written,
)
from clog.storage.objects.layout import (
    DELETE_HORIZON,
    OFFSET,
    RECORD_OVERHEAD,
    ChunkStats,
    DataObject,
    check_rows,
    column_types,
    leaf_sizes,
    record_sizes,
)
from clog.storage.objects.reader import WHOLE_BYTES
from clog.storage.store.contract import Store

CODECS: Final = {"none": 0, "snappy": 1, "zstd": 6, "lz4": 7}
"""Parquet's numbers of the codecs that logs may be configured for."""
_FILE_FIELDS: Final = frozenset({1, 2, 3, 4, 6, 7})
_GROUP_FIELDS: Final = frozenset({1, 2, 3, 5, 6, 7})
_CHUNK_FIELDS: Final = frozenset({2, 3, 4, 5, 6, 7})
_COLUMN_FIELDS: Final = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 13, 16})
"""Those that are understood: of the file, a row group, a column chunk, its metadata."""
_FIELD_ID: Final = 9
"""Of a column in the schema; objects from before they were given have none."""
_ENCODINGS: Final = frozenset({0, 2, 3, 4, 5, 6, 7, 8, 9})

_Ints = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class RawColumn:
    """A column chunk: its metadata, whose places begin at ``start``, and its pages."""

    metadata: Struct
    start: int
    pages: memoryview


@dataclass(frozen=True, slots=True, eq=False)
class CopiedGroup:
    """Rows of one partition as they lie in an object, and what the next one needs to know of them.

    ``columns`` are its leaves by the column's name; ``block`` is that of the key index, None where
    none is wanted.
    """

    columns: Mapping[str, Sequence[RawColumn]]
    stats: ChunkStats
    absent: frozenset[str]
    block: bytes | None

    @property
    def num_rows(self) -> int:
        return self.stats.rows

    @property
    def stored_bytes(self) -> int:
        """Of its pages."""
        return sum(len(c.pages) for columns in self.columns.values() for c in columns)

    def detached(self) -> "CopiedGroup":
        """Returns it with pages of its own: the object that it is from can go."""
        columns = {
            name: [replace(c, pages=memoryview(bytes(c.pages))) for c in columns]
            for name, columns in self.columns.items()
        }
        return replace(self, columns=columns)


class RowGroupSource:
    """The row groups of an object of which all bytes are given.

    Args:
        compression: what the copies are to have.
        key_seed: the log's; then they come with a block of the key index.
        schema: the log's; what is of an earlier one is not copied.

    Raises:
        ValueError: its footer or its key index contradicts the format.
    """

    def __init__(
        self,
        data: bytes,
        ref: ObjectRef,
        compression: Compression,
        key_seed: int | None,
        schema: LogSchema | None = None,
    ) -> None:
        pages_end = ref.tail[0]
        footer = data[-ref.footer_bytes :]
        self._data = memoryview(data)
        self._codec = CODECS.get(compression.codec)
        self._key_seed = key_seed
        self._groups = read_footer(
            footer, rows=ref.rows, pages_end=pages_end, typed=schema is not None
        )
        tree = Reader(footer[:-TAIL_BYTES]).struct()
        self._structs: list[Struct] = tree[4][1][1]
        self._schema = stored_schema(column_types(schema).rewritten, ())
        paths = (path for group in self._groups[:1] for path, _, _ in group.pages)
        self._names = _columns_of(tree, {path.partition(".")[0] for path in paths}, self._schema)
        self._file = parquet().ParquetFile(pa.BufferReader(data), pre_buffer=False)
        index = self._data[pages_end : ref.size_bytes - ref.footer_bytes - FOOTER_SUM_BYTES]
        blocks = key_index.blocks_of(index) if ref.index_bytes else []
        rows = [group.rows for group in self._groups]
        self._blocks = [b for _, b in blocks] if [n for n, _ in blocks] == rows else None

    @property
    def rows(self) -> list[int]:
        """How many each row group has."""
        return [group.rows for group in self._groups]

    def copied(self, number: int, partition: int, base: int) -> CopiedGroup | None:
        """Returns a row group; None where it has to be decoded.

        ``base``: the offset of its first row, where the object has no offsets.
        """
        columns = self._columns(number)
        if columns is None:
            return None
        rows = self._groups[number].rows
        tombstones = _nulls(columns["value"][0], self._sizes("value")[0][1], rows)
        if tombstones is None or rows > GROUP_ROWS:
            return None
        try:
            size_bytes = self._record_bytes(number, columns, rows)
            if size_bytes is None or not GROUP_BYTES_MIN <= size_bytes <= 2 * GROUP_BYTES:
                return None
            facts = self._facts(number, rows, base)
            block = self._block(number)
        except (pa.ArrowException, OSError, ValueError):
            return None  # Who decodes says what is wrong with it.
        if facts is None:
            return None
        times, offsets, horizons = facts
        absent = {OFFSET} if OFFSET not in columns else set()
        absent |= {DELETE_HORIZON} if horizons == (NONE, NONE) else set()
        absent |= {"headers"} if _holds_no_headers(columns) else set()
        stats = ChunkStats(partition, rows, size_bytes, *times, tombstones, *offsets, *horizons)
        return CopiedGroup(columns, stats, frozenset(absent), block)

    def _columns(self, number: int) -> dict[str, list[RawColumn]] | None:
        """Returns the column chunks by name; None where one is not understood."""
        struct, group = self._structs[number], self._groups[number]
        if not self._names or not struct.keys() <= _GROUP_FIELDS:
            return None
        columns: dict[str, list[RawColumn]] = {name: [] for name in self._names}
        for (path, start, end), chunk in zip(group.pages, struct[1][1][1], strict=True):
            metadata: Struct = chunk[3][1]
            known = chunk.keys() <= _CHUNK_FIELDS and metadata.keys() <= _COLUMN_FIELDS
            if not known or metadata[4][1] != self._codec:
                return None
            if 2 not in metadata or not _ENCODINGS.issuperset(metadata[2][1][1]):
                return None
            columns[path.partition(".")[0]].append(
                RawColumn(metadata, start, self._data[start:end])
            )
        return columns

    def _sizes(self, name: str) -> list[tuple[int | None, int]]:
        """Returns what the leaves of a column count, as `leaf_sizes`."""
        if name in ("key", "value"):
            return [*leaf_sizes(self._schema.field(name))]
        return [(None, 0)] * 2 if name == "headers" else []

    def _record_bytes(
        self, number: int, columns: Mapping[str, Sequence[RawColumn]], rows: int
    ) -> int | None:
        """Returns the sum of the rows' record sizes; None where a column does not state its own."""
        total = rows * RECORD_OVERHEAD
        for name, leaves in columns.items():
            if name == "key" and pa.types.is_struct(self._schema.field(name).type):
                total += pc.sum(pc.binary_length(key_bytes(self._keys(number)))).as_py() or 0
                continue
            for column, (width, level) in zip(leaves, self._sizes(name), strict=False):
                content = _content(column) if width is None else _present(column, level)
                if content is None:
                    return None
                total += content * (1 if width is None else width)
        return total

    def _keys(self, number: int) -> pa.Array:
        table = self._file.read_row_group(number, columns=["key"], use_threads=False)
        return table.column("key").combine_chunks()

    def _facts(
        self, number: int, rows: int, base: int
    ) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]] | None:
        """Returns the first and the largest timestamp, the first and the last offset, the least and
        the greatest horizon; None where they are not as they are to be.

        Raises:
            ValueError: the format forbids them.
        """
        names = [name for name in ("timestamp", OFFSET, DELETE_HORIZON) if name in self._names]
        table = self._file.read_row_group(number, columns=names, use_threads=False)
        if table.num_rows != rows:
            return None
        for batch in table.to_batches():
            check_rows(batch)
        times = to_numpy(table.column("timestamp").cast(pa.int64())) // 1000
        offsets, horizons = (base, base + rows - 1), (NONE, NONE)
        if OFFSET in names:
            stored = to_numpy(table.column(OFFSET))
            if stored[0] < 0 or (np.diff(stored) <= 0).any():
                return None
            offsets = int(stored[0]), int(stored[-1])
        if DELETE_HORIZON in names and len(
            own := to_numpy(table.column(DELETE_HORIZON).drop_null())
        ):
            horizons = int(own.min()), int(own.max())
            if horizons[0] < 0:
                return None  # It counts as null (FORMAT.md §5.3).
        return (int(times[0]), int(times.max())), offsets, horizons

    def _block(self, number: int) -> bytes | None:
        if self._key_seed is None:
            return None
        if self._blocks is not None:
            return self._blocks[number]
        keys = self._keys(number)
        hashes = key_index.index_hashes(keys, seed=self._key_seed)
        return key_index.encode_block(len(keys), hashes)


def file_without_rows(schema: pa.Schema, compression: Compression) -> Struct:
    """Returns the footer of a file of this schema that has no rows."""
    sink = pa.BufferOutputStream()
    parquet_writer(sink, schema, compression).close()
    data = sink.getvalue().to_pybytes()
    length = int.from_bytes(data[-TAIL_BYTES:-4], "little")
    return Reader(data[-TAIL_BYTES - length : -TAIL_BYTES]).struct()


def _columns_of(tree: Struct, names: Collection[str], schema: pa.Schema) -> list[str]:
    """Returns the names of the columns; none where the file is not one of ours, to the last field
    of its schema.
    """
    elements: list[Struct] = tree[2][1][1]
    present = [name for name in schema.names if name in names]
    ours = file_without_rows(pa.schema([schema.field(n) for n in present]), Compression("none"))
    columns: list[Struct] = ours[2][1][1]
    nameless = [{n: v for n, v in column.items() if n != _FIELD_ID} for column in columns]
    is_ours = elements in (columns, nameless) and ours[7] == tree.get(7)
    return present if is_ours and tree.keys() <= _FILE_FIELDS else []


def _content(column: RawColumn) -> int | None:
    """Returns the bytes of all values of a column of bytes; None where they are not stated."""
    _, stated = column.metadata.get(16, (0, {}))
    kind, content = stated.get(1, (I64, -1))
    return content if kind == I64 and content >= 0 else None


def _present(column: RawColumn, level: int) -> int | None:
    """Returns how many values of a leaf of this definition level are there; None where it is not
    stated.
    """
    levels = _levels(column)
    if len(levels) != level + 1 or min(levels) < 0 or sum(levels) != column.metadata[5][1]:
        return None
    return levels[-1]


def _nulls(leaf: RawColumn, level: int, rows: int) -> int | None:
    """Returns in how many rows the column of a leaf is null; None where it is not stated."""
    entries = _levels(leaf, of=2)[:1] or [leaf.metadata[5][1]]
    if _present(leaf, level) is None or entries != [rows]:
        return None
    return _levels(leaf)[0]


def _holds_no_headers(columns: Mapping[str, Sequence[RawColumn]]) -> bool:
    leaves = columns.get("headers", ())
    return all(sum(_levels(leaf)[1:]) == 0 and len(_levels(leaf)) > 0 for leaf in leaves)


def _levels(column: RawColumn, *, of: int = 3) -> list[int]:
    """Returns how many values there are of each definition level, or repetition level (2); nothing
    where none is stated.
    """
    _, stated = column.metadata.get(16, (0, {}))
    _, (_, levels) = stated.get(of, (0, (0, [])))
    counts: list[int] = levels
    return counts


Part = Rows | CopiedGroup
Together = Callable[[Sequence[tuple[Callable[[], Any], int]]], Iterable[Any]]
"""Makes calls, each with the bytes that it is about, maybe by several threads; returns their
results in order.
"""


class Composition:
    """The parts of an object, all of one partition, in the order of their offsets.

    Args:
        schema: of rewritten records of the log.

    Attributes:
        stats: of all rows.
        dense: whether their offsets run without gap.
    """

    def __init__(self, parts: Sequence[Part], schema: pa.Schema) -> None:
        self._parts = parts
        self._schema = schema
        every = [part.stats if isinstance(part, CopiedGroup) else _only(part) for part in parts]
        self.stats = reduce(_joined, every)
        self.dense = self.stats.last_offset - self.stats.first_offset + 1 == self.stats.rows

    def encoded(
        self, compression: Compression, key_seed: int | None, together: Together
    ) -> tuple[bytes, int, int]:
        """Returns the object's bytes; those of the footer and of the key index among them. Takes
        the records out of the parts, which are encoded ``together``.
        """
        schema = stored_schema(self._schema, self._absent())
        seed = key_seed if self.stats.size_bytes > WHOLE_BYTES else None
        file = file_without_rows(schema, compression)
        pages: list[bytes | memoryview] = [MAGIC]
        groups: list[Struct] = []
        blocks: list[bytes] = []
        at = len(MAGIC)
        calls = [
            (partial(_groups_of, part, schema, compression, seed), _record_bytes(part))
            for part in self._parts
        ]
        for made, indexed in together(calls):
            blocks += indexed
            for rows, columns in made:
                groups.append(_placed(rows, columns, at))
                pages += [column.pages for column in columns]
                at += sum(len(column.pages) for column in columns)
        index = key_index.of_blocks(blocks) if seed is not None and at > WHOLE_BYTES else b""
        tree = written({**file, 3: (I64, self.stats.rows), 4: (LIST, (STRUCT, groups))})
        footer = tree + len(tree).to_bytes(4, "little") + MAGIC
        # One of ours, or a bug of ours.
        read_footer(footer, rows=self.stats.rows, pages_end=at, typed=is_typed(schema))
        data = b"".join((*pages, index, xxhash.xxh3_128_digest(footer), footer))
        return data, len(footer), len(index)

    def _absent(self) -> set[str]:
        absent = {"headers", "delete_horizon"}
        for part in self._parts:
            absent &= part.absent if isinstance(part, CopiedGroup) else absent_columns(part)
        return absent | ({OFFSET} if self.dense else set())


def in_order(calls: Sequence[tuple[Callable[[], Any], int]]) -> Iterator[Any]:
    """Makes the calls one after the other."""
    return (call() for call, _ in calls)


def _record_bytes(part: Part) -> int:
    return part.stats.size_bytes if isinstance(part, CopiedGroup) else int(part.sizes.sum())


def _only(rows: Rows) -> ChunkStats:
    (stats,) = rows.chunks()
    return stats


def _joined(first: ChunkStats, after: ChunkStats) -> ChunkStats:
    assert first.partition == after.partition
    assert first.last_offset < after.first_offset
    given = [low for low in (first.horizon_min, after.horizon_min) if low != NONE]
    return ChunkStats(
        partition=first.partition,
        rows=first.rows + after.rows,
        size_bytes=first.size_bytes + after.size_bytes,
        first_timestamp_ms=first.first_timestamp_ms,
        max_timestamp_ms=max(first.max_timestamp_ms, after.max_timestamp_ms),
        tombstones=first.tombstones + after.tombstones,
        first_offset=first.first_offset,
        last_offset=after.last_offset,
        horizon_min=min(given, default=NONE),
        horizon_max=max(first.horizon_max, after.horizon_max),
    )


def _groups_of(
    part: Part, schema: pa.Schema, compression: Compression, seed: int | None
) -> tuple[list[tuple[int, list[RawColumn]]], list[bytes]]:
    """Returns the row groups of a part, as rows and columns in the schema's order; their blocks of
    a key index.
    """
    if isinstance(part, CopiedGroup):
        blocks = [] if part.block is None else [part.block]
        return [(part.num_rows, _completed(part, schema, compression))], blocks
    parquet, blocks = parquet_of(part, schema, compression, seed)
    return list(_row_groups(parquet)), blocks


def _completed(part: CopiedGroup, schema: pa.Schema, compression: Compression) -> list[RawColumn]:
    """Returns the columns of the schema: those that the group has, and those that are made."""
    missing = [field for field in schema if field.name not in part.columns]
    columns = dict(part.columns)
    if missing:
        low, high = part.stats.first_offset, part.stats.last_offset
        arrays = [
            to_arrow(np.arange(low, high + 1, dtype=np.int64))
            if field.name == OFFSET
            else pa.nulls(part.num_rows, field.type)
            for field in missing
        ]
        table = pa.Table.from_arrays(arrays, schema=pa.schema(missing))
        sink = pa.BufferOutputStream()
        with parquet_writer(sink, table.schema, compression) as writer:
            writer.write_table(table, row_group_size=table.num_rows)
        ((_, made),) = _row_groups(memoryview(sink.getvalue()))
        for column in made:
            name = column.metadata[3][1][1][0].decode()
            columns[name] = [*columns.get(name, ()), column]
    return [column for field in schema for column in columns[field.name]]


def _row_groups(parquet: memoryview) -> Iterator[tuple[int, list[RawColumn]]]:
    """Yields the rows and columns of the row groups of a file that was just written."""
    length = int.from_bytes(parquet[-TAIL_BYTES:-4], "little")
    tree = Reader(bytes(parquet[-TAIL_BYTES - length : -TAIL_BYTES])).struct()
    for group in tree[4][1][1]:
        columns = []
        for chunk in group[1][1][1]:
            metadata: Struct = chunk[3][1]
            start, size = metadata[9][1], metadata[7][1]  # No dictionary comes before the data.
            columns.append(RawColumn(metadata, start, parquet[start : start + size]))
        yield group[3][1], columns


def _placed(rows: int, columns: Sequence[RawColumn], at: int) -> Struct:
    """Returns the row group whose first page is the byte ``at``."""
    chunks: list[Struct] = []
    first = at
    for column in columns:
        metadata = dict(column.metadata)
        for place in metadata.keys() & {9, 11}:
            kind, where = metadata[place]
            if place == 9 or where > 0:
                metadata[place] = kind, where - column.start + at
        chunks.append({2: (I64, 0), 3: (STRUCT, metadata)})
        at += len(column.pages)
    unpacked = sum(column.metadata[6][1] for column in columns)
    return {
        1: (LIST, (STRUCT, chunks)),
        2: (I64, unpacked),
        3: (I64, rows),
        5: (I64, first),
        6: (I64, at - first),
    }


OBJECT_BYTES = 64 << 20
"""Default of ``object_bytes``: record bytes of one object, before compression."""

_GATHER_ROWS = 1 << 14
_GATHER_BYTES = 4 << 20
_OBJECT_BYTES_MAX = 1 << 30  # Arrow's binary arrays end at 2 GiB.


_Records = tuple[pa.RecordBatch, _Ints, _Ints]
"""Records, the partition of each and its size."""


class ObjectWriter:
    """Turns records into data objects of about ``object_bytes``; one task's, used once.

    It holds at most the records of one object, a row group of them in the order of partitions, and
    the encoded object.

    Args:
        store: where to.
        stamp: a version of the log that was read before (FORMAT.md §6).
        new_id: draws a name that nobody has drawn.
        partitions: how many the log has.
        compression: of the object's pages.
        object_bytes: record bytes of an object, at most 1 GiB; a larger record is alone in its own.
        schema: the log's; None: keys and values are bytes.
        rewritten: records have their offsets (`ColumnTypes.rewritten`, whose ``delete_horizon`` may
            be missing), in rising order in each partition.
        key_seed: the log's; then large objects get a key index. None: they get none.
        encoders: rewritten records are encoded in so many parts, ``together``.
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
        key_seed: int | None = None,
        encoders: int = 1,
        together: Together = in_order,
    ) -> None:
        self._encoders = encoders
        self._together = together
        self._store = store
        self._stamp = stamp
        self._new_id = new_id
        self._partitions = partitions
        self._compression = compression
        self._object_bytes = min(object_bytes, _OBJECT_BYTES_MAX)
        self._key_seed = key_seed
        types = column_types(schema)
        self._schema_id = NONE if schema is None else schema.id
        self._schema = types.rewritten if rewritten else types.records
        self._is_rewritten = rewritten
        self._kept: list[_Records | CopiedGroup] = []
        self._kept_bytes = 0
        self._objects: list[DataObject] = []

    @property
    def columns(self) -> pa.Schema:
        """What records must be that it takes."""
        return self._schema

    def add(self, records: pa.Table | pa.RecordBatch, partition: _Ints) -> None:
        """Takes records, ``partition[i]`` being that of row i; may put objects.

        Raises:
            InvalidInputError: other columns or types than the schema's, a timestamp that is null or
                negative, a partition that does not exist. Nothing of ``records`` is taken.
            StoreUnavailableError: an object could not be put.
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
        batches = _conforming(records, self._schema)
        at = 0
        for batch in batches:
            self._keep(batch, partition[at : at + batch.num_rows])
            at += batch.num_rows

    def copy(self, group: CopiedGroup) -> None:
        """Takes a row group of a rewritten object, undecoded; may put objects. Its offsets are
        higher than those before.
        """
        assert self._is_rewritten, "fresh objects hold records of several partitions"
        if self._kept and self._kept_bytes + group.stats.size_bytes > self._object_bytes:
            self._flush()
        self._kept.append(group)
        self._kept_bytes += group.stats.size_bytes

    def finish(self) -> list[DataObject]:
        """Puts what is left; returns all objects, in the order of their records."""
        self._flush()
        return self._objects

    def _keep(self, batch: pa.RecordBatch, partition: _Ints) -> None:
        sizes = record_sizes(batch)
        until = np.cumsum(sizes)
        start, before = 0, 0
        while start < batch.num_rows:
            room = self._object_bytes - self._kept_bytes
            end = int(np.searchsorted(until, before + room, side="right"))
            if end <= start and self._kept:
                self._flush()
                continue
            end = max(end, start + 1)
            piece = batch.slice(start, end - start)
            # astype copies, for the caller may use its array again, and makes it signed.
            self._kept.append((piece, partition[start:end].astype(np.int32), sizes[start:end]))
            self._kept_bytes += int(until[end - 1]) - before
            start, before = end, int(until[end - 1])

    def _flush(self) -> None:
        if not self._kept:
            return
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        parts: list[Part] = []
        while kept:
            parts.append(_next_part(kept))  # The records go as they are encoded.
        self._objects.append(self._put_one(parts))

    def _put_one(self, parts: list[Part]) -> DataObject:
        if self._encoders > 1:
            parts = [p for part in parts for p in _split(part, self._encoders)]
        first = parts[0]
        if len(parts) == 1 and isinstance(first, Rows):
            chunks = first.chunks()
            facts = None if self._is_rewritten else first.facts()
            dense = first.dense
            made: tuple[bytes | memoryview, int, int] = encoded(
                first, self._compression, self._key_seed
            )
        else:
            composition = Composition(parts, self._schema)
            chunks, facts, dense = (composition.stats,), None, composition.dense
            made = composition.encoded(self._compression, self._key_seed, self._together)
        data, footer_bytes, index_bytes = made
        path = data_path(self._stamp, self._new_id())
        self._store.put(path, data)
        return DataObject(
            path=path,
            size_bytes=len(data),
            footer_bytes=footer_bytes,
            checksum=xxhash.xxh3_128_hexdigest(data),
            rows=sum(chunk.rows for chunk in chunks),
            stamp=self._stamp,
            chunks=chunks,
            facts=facts,
            dense=dense,
            index_bytes=index_bytes,
            schema_id=self._schema_id,
        )


def _split(part: Part, count: int) -> Sequence[Part]:
    return part.split(count) if isinstance(part, Rows) else [part]


def _next_part(kept: list[_Records | CopiedGroup]) -> Part:
    """Takes what comes first: a copied group, or all records up to the next one."""
    first = kept[0]
    if isinstance(first, CopiedGroup):
        del kept[0]
        return first
    some = [*takewhile(lambda part: not isinstance(part, CopiedGroup), kept)]
    del kept[: len(some)]
    batches, partitions, sizes = zip(*some, strict=True)
    return Rows(pa.Table.from_batches(batches), np.concatenate(partitions), np.concatenate(sizes))


def write_rewritten(
    store: Store,
    parts: Iterable[pa.RecordBatch | CopiedGroup],
    *,
    partition: int,
    stamp: int,
    new_id: Callable[[], str],
    schema: LogSchema | None = None,
    key_seed: int | None = None,
    compression: Compression = ZSTD,
    object_bytes: int = OBJECT_BYTES,
    encoders: int = 1,
    together: Together = in_order,
) -> list[DataObject]:
    """Writes records of one partition that have their offsets, in rising order, and row groups as
    they are.

    Batches are of `ColumnTypes.rewritten`; ``delete_horizon`` may be missing. No records make
    no object.

    Raises:
        as `ObjectWriter.add`.
    """
    writer = ObjectWriter(
        store,
        stamp=stamp,
        new_id=new_id,
        partitions=partition + 1,
        schema=schema,
        compression=compression,
        object_bytes=object_bytes,
        rewritten=True,
        key_seed=key_seed,
        encoders=encoders,
        together=together,
    )
    for some in _gathered(parts):
        if isinstance(some, CopiedGroup):
            writer.copy(some)
        else:
            writer.add(some, np.full(some.num_rows, partition, np.int32))
    return writer.finish()


def _gathered(
    parts: Iterable[pa.RecordBatch | CopiedGroup],
) -> Iterator[pa.Table | CopiedGroup]:
    """Yields the parts, small batches joined: each `ObjectWriter.add` costs half a millisecond."""
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for part in parts:
        is_full = rows >= _GATHER_ROWS or size_bytes >= _GATHER_BYTES
        if held and (is_full or isinstance(part, CopiedGroup) or part.schema != held[0].schema):
            yield pa.Table.from_batches(held).combine_chunks()
            held.clear()
            rows = size_bytes = 0
        if isinstance(part, CopiedGroup):
            yield part
            continue
        held.append(part)
        rows, size_bytes = rows + part.num_rows, size_bytes + part.nbytes
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


def _conforming(records: pa.Table | pa.RecordBatch, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Returns the records as batches of exactly this schema.

    Raises:
        InvalidInputError: they are not.
    """
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
        # No headers is null, however it was said: the column must not say more than its absence.
        empty = pc.equal(pc.list_value_length(column), scalar(0, pa.int32()))
        if pc.any(empty).as_py():
            return pc.if_else(empty, null(field.type), column)
    return column


def _named(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
