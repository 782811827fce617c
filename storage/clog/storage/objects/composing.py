"""A data object composed of row groups that are copied and of records that are encoded (FORMAT.md
§5).

All of an object's row groups have the same columns: those that any of its parts needs. What a
copied group lacks is made: an ``offset`` column where the object is not dense any more, which is a
run and a few bytes; headers or horizons that are null. What it has and the object does not need is
left behind.

The footer is put together from those of the parts: of each column chunk its metadata, with the
places where its pages lie now. Offset and column indexes, if there were any, are not taken along,
and nothing points to where they were.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from clog.storage.config.compression import Compression
from clog.storage.format.chunks import NONE
from clog.storage.keys import key_index
from clog.storage.numpy_arrays import to_arrow
from clog.storage.objects.data_object import OFFSET, ChunkStats
from clog.storage.objects.encoding import (
    Rows,
    absent_columns,
    is_typed,
    parquet_of,
    parquet_writer,
    stored_schema,
)
from clog.storage.objects.footer import MAGIC, TAIL_BYTES, read_footer
from clog.storage.objects.reader import WHOLE_BYTES
from clog.storage.objects.row_groups import CopiedGroup, RawColumn, file_without_rows
from clog.storage.objects.thrift_compact import I64, LIST, STRUCT, Reader, Struct, written

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
