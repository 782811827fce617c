"""Rewritten objects: records of one partition that have their offsets, and row groups copied
unchanged from another object (FORMAT.md §5.1).

Pages do not know where in a file they are, so bytes, checksums and encodings of a copied row group
stay, and the new footer, composed from those of the parts, says where they are now. That takes a
twentieth of the CPU of decoding and encoding.

All row groups have the same columns. Those that a copied one lacks are made: an ``offset`` column
if the object is no longer dense, a run of a few bytes; headers or horizons that are null. Columns
that the object does not need are left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from clog.storage.config.units import ZSTD, Compression
from clog.storage.env import dataclass
from clog.storage.format.documents import NONE
from clog.storage.format.log_info import LogSchema
from clog.storage.keys import key_index
from clog.storage.numpy_arrays import to_arrow
from clog.storage.objects.reader import (
    BINARY,
    FALSE,
    I16,
    I64,
    LIST,
    MAGIC,
    SET,
    STRUCT,
    TAIL_BYTES,
    TRUE,
    WHOLE_BYTES,
    Reader,
    Struct,
    read_footer,
)
from clog.storage.objects.writer import (
    OBJECT_BYTES,
    ChunkStats,
    DataObject,
    ObjectWriter,
    Rows,
    absent_columns,
    parquet_of,
    parquet_writer,
)
from clog.storage.store.contract import Store
from clog.storage.types.columns import DELETED, OFFSET, Layout

_GATHER_ROWS = 1 << 14
_GATHER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RawColumn:
    """A column chunk: its metadata, whose positions begin at ``start``, and its pages."""

    metadata: Struct
    start: int
    pages: memoryview


@dataclass(frozen=True, slots=True, eq=False)
class CopiedGroup:
    """Rows of one partition as stored in an object, and what the next object needs to know of them.

    ``columns`` are its leaves by the column's name; ``block`` is that of the key index, None if
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
    def record_bytes(self) -> int:
        """The sum of its record sizes."""
        return self.stats.size_bytes

    @property
    def stored_bytes(self) -> int:
        """The size of its pages."""
        return sum(len(c.pages) for columns in self.columns.values() for c in columns)

    def detached(self) -> "CopiedGroup":
        """Returns it with copies of its pages, so that its object can be freed."""
        columns = {
            name: [replace(c, pages=memoryview(bytes(c.pages))) for c in columns]
            for name, columns in self.columns.items()
        }
        return replace(self, columns=columns)


Part = Rows | CopiedGroup
Together = Callable[[Sequence[tuple[Callable[[], Any], int]]], Iterable[Any]]
"""Makes calls, each given with the bytes it handles, perhaps in several threads; returns their
results in order.
"""


def in_order(calls: Sequence[tuple[Callable[[], Any], int]]) -> Iterator[Any]:
    """Makes the calls one after the other."""
    return (call() for call, _ in calls)


class RewritingWriter(ObjectWriter):
    """Writes rewritten records and copied row groups; encodes in parts, with ``together``."""

    def __init__(self, store: Store, *, encoders: int, together: Together, **given: Any) -> None:
        super().__init__(store, rewritten=True, **given)
        self._encoders = encoders
        self._together = together
        self._parts: list[Part] = []

    def copy(self, group: CopiedGroup) -> None:
        """Adds a row group, whose offsets must be higher than those before."""
        size_bytes = group.stats.size_bytes
        if self._kept_bytes and self._kept_bytes + size_bytes > self._object_bytes:
            self._flush()
        size_bytes += self._kept_bytes
        if self._kept:
            self._parts.append(self._taken())
        self._parts.append(group)
        self._kept_bytes = size_bytes

    def _flush(self) -> None:
        if self._kept:
            self._parts.append(self._taken())
        parts, self._parts, self._kept_bytes = self._parts, [], 0
        if self._encoders > 1:
            parts = [
                p
                for part in parts
                for p in (part.split(self._encoders) if isinstance(part, Rows) else (part,))
            ]
        if len(parts) == 1 and isinstance(parts[0], Rows):
            self._put_rows(parts[0])
        elif parts:
            whole = Composition(parts, self._stored, self._layout)
            made = whole.encoded(self._compression, self._key_seed, self._together)
            self._put(made, (whole.stats,), None, dense=whole.dense)


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
    """Writes records of one partition that have their offsets, in rising order, and unchanged row
    groups, as `ObjectWriter` does.

    Batches are of `ColumnTypes.rewritten`; ``delete_horizon`` may be missing. No object is written
    for no records. Records are encoded in ``encoders`` parts, with ``together``.
    """
    writer = RewritingWriter(
        store,
        stamp=stamp,
        new_id=new_id,
        partitions=partition + 1,
        schema=schema,
        compression=compression,
        object_bytes=object_bytes,
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


def _gathered(parts: Iterable[pa.RecordBatch | CopiedGroup]) -> Iterator[pa.Table | CopiedGroup]:
    """Yields the parts, with small batches joined: an `ObjectWriter.add` costs 0.5 ms."""
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for part in parts:
        is_full = rows >= _GATHER_ROWS or size_bytes >= _GATHER_BYTES
        if held and (is_full or isinstance(part, CopiedGroup) or part.schema != held[0].schema):
            yield _one_table(held)
            held.clear()
            rows = size_bytes = 0
        if isinstance(part, CopiedGroup):
            yield part
            continue
        held.append(part)
        rows, size_bytes = rows + part.num_rows, size_bytes + part.nbytes
    if held:
        yield _one_table(held)


def _one_table(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches)
    return table.combine_chunks() if len(batches) > 1 else table


class Composition:
    """The parts of an object, all of one partition, in the order of their offsets.

    Args:
        schema: of rewritten records of the log.
        layout: of its objects.

    Attributes:
        stats: of all rows.
        dense: whether their offsets have no gaps.
    """

    def __init__(self, parts: Sequence[Part], schema: pa.Schema, layout: Layout) -> None:
        self._parts = parts
        self._schema = schema
        self._layout = layout
        every = [part.stats if isinstance(part, CopiedGroup) else _only(part) for part in parts]
        self.stats = reduce(_joined, every)
        self.dense = self.stats.last_offset - self.stats.first_offset + 1 == self.stats.rows

    def encoded(
        self, compression: Compression, key_seed: int | None, together: Together
    ) -> tuple[bytes, int, int]:
        """Returns the object's bytes, and how many are the footer's and the key index's. Takes the
        records out of the parts, which are encoded with ``together``.
        """
        layout = self._layout
        schema = layout.stored(self._schema, self._absent())
        seed = key_seed if self.stats.size_bytes > WHOLE_BYTES else None
        file = file_without_rows(schema, compression, layout)
        pages: list[bytes | memoryview] = [MAGIC]
        groups: list[Struct] = []
        blocks: list[bytes] = []
        at = len(MAGIC)
        calls = [
            (partial(_groups_of, part, schema, layout, compression, seed), part.record_bytes)
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
        # If this fails, it is our own bug.
        read_footer(footer, rows=self.stats.rows, pages_end=at, kind=layout.kind)
        data = b"".join((*pages, index, xxhash.xxh3_128_digest(footer), footer))
        return data, len(footer), len(index)

    def _absent(self) -> set[str]:
        absent = {"headers", "delete_horizon", DELETED}
        for part in self._parts:
            absent &= part.absent if isinstance(part, CopiedGroup) else absent_columns(part)
        return absent | ({OFFSET} if self.dense else set())


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
    part: Part, schema: pa.Schema, layout: Layout, compression: Compression, seed: int | None
) -> tuple[list[tuple[int, list[RawColumn]]], list[bytes]]:
    """Returns the row groups of a part, in the schema's order, and their key index blocks."""
    if isinstance(part, CopiedGroup):
        blocks = [] if part.block is None else [part.block]
        return [(part.num_rows, _completed(part, schema, layout, compression))], blocks
    parquet, blocks = parquet_of(part, schema, compression, seed)
    return list(_row_groups(parquet)), blocks


def _completed(
    part: CopiedGroup, schema: pa.Schema, layout: Layout, compression: Compression
) -> list[RawColumn]:
    """Returns the columns of the schema: the group's own, and made ones for the rest."""
    missing = [field for field in schema if field.name not in part.columns]
    columns = dict(part.columns)
    if missing:
        low, high = part.stats.first_offset, part.stats.last_offset
        made = {
            layout.kind.own(OFFSET): to_arrow(np.arange(low, high + 1, dtype=np.int64)),
            DELETED: to_arrow(np.zeros(part.num_rows, np.bool_)),
        }
        arrays = [made.get(f.name, pa.nulls(part.num_rows, f.type)) for f in missing]
        table = pa.Table.from_arrays(arrays, schema=pa.schema(missing))
        sink = pa.BufferOutputStream()
        with parquet_writer(sink, table.schema, compression, layout) as writer:
            writer.write_table(table, row_group_size=table.num_rows)
        ((_, added),) = _row_groups(memoryview(sink.getvalue()))
        for column in added:
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


def file_without_rows(schema: pa.Schema, compression: Compression, layout: Layout) -> Struct:
    """Returns the footer of a file of this schema that has no rows."""
    sink = pa.BufferOutputStream()
    parquet_writer(sink, schema, compression, layout).close()
    data = sink.getvalue().to_pybytes()
    length = int.from_bytes(data[-TAIL_BYTES:-4], "little")
    return Reader(data[-TAIL_BYTES - length : -TAIL_BYTES]).struct()


def written(struct: Struct) -> bytes:
    """Returns the bytes of a struct, as `Reader.struct` reads it."""
    out = bytearray()
    _write(out, STRUCT, struct)
    return bytes(out)


def _write(out: bytearray, kind: int, value: Any) -> None:
    """Appends the value of a field of this kind; truth values are in the field's header."""
    if I16 <= kind <= I64:
        out += _varint_of(value << 1 ^ value >> 63)
    elif kind == BINARY:
        out += _varint_of(len(value)) + value
    elif kind == STRUCT:
        _write_fields(out, value)
    elif kind in (LIST, SET):
        of, elements = value
        few = len(elements) < 15
        out.append((len(elements) if few else 15) << 4 | of)
        out += b"" if few else _varint_of(len(elements))
        for element in elements:
            _write_element(out, of, element)
    elif kind not in (TRUE, FALSE):
        out += value


def _write_fields(out: bytearray, struct: Struct) -> None:
    before = 0
    for field, (kind, value) in sorted(struct.items()):
        near = 0 < field - before < 16
        out.append((field - before if near else 0) << 4 | kind)
        out += b"" if near else _varint_of(field << 1 ^ field >> 63)
        _write(out, kind, value)
        before = field
    out.append(0)


def _write_element(out: bytearray, kind: int, value: Any) -> None:
    """Appends an element of a container, where each truth value takes a byte."""
    if kind in (TRUE, FALSE):
        out.append(TRUE if value else FALSE)
    else:
        _write(out, kind, value)


def _varint_of(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
