"""The bytes of a data object: records in the order of partitions, their row groups, the key index,
and what a commit needs to know of them (FORMAT.md §5).

1. Row groups end after 4 MiB or 32768 rows, or, to let a partition be read alone, where a
   partition ends, once they hold 1 MiB: tiny partitions share one, a large one shares none. A row
   group is also what one key that is looked up costs. Four times as large they make an object
   smaller by 0.3 %, and it is neither written nor read faster.
2. Between the last page and the footer, where Parquet readers do not look: the key index, whose
   blocks are the row groups, and the footer's checksum. An object that is fetched whole in any case
   (`WHOLE_BYTES`) gets no index.

Encodings are measured, on keys with JSON, with random and with three distinct values: dictionaries
make random and JSON data larger and up to a fifth slower, and gain a tenth only where values come
from a short list, so there are none; deltas for timestamps and offsets cost nothing. Statistics are
kept where they prune. The Arrow schema is left out: the Parquet types determine it, and it would be
half of a small object's footer.
"""

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from clog.storage.config.definitions import Compression
from clog.storage.format.codec import NONE
from clog.storage.keys import key_index
from clog.storage.numpy_arrays import (
    of_any_width,
    of_one_width,
    parquet,
    scalar,
    to_arrow,
    to_numpy,
)
from clog.storage.objects.footer import TAIL_BYTES
from clog.storage.objects.layout import (
    DELETE_HORIZON,
    OFFSET,
    ChunkStats,
    ObjectFacts,
    lone_leaves,
    with_ids,
)
from clog.storage.objects.reader import WHOLE_BYTES

GROUP_BYTES = 4 << 20
GROUP_BYTES_MIN = 1 << 20
GROUP_ROWS = key_index.BLOCK_ROWS

_CHECKSUM_BYTES = 16
_ROOM_BYTES = 1 << 14
"""For what a file has beside its records, which is all of a small one."""

_Ints = np.ndarray[Any, Any]


class Rows:
    """Records of one object, and the order they go to it; None: as they are."""

    def __init__(self, records: pa.Table, partition: _Ints, sizes: _Ints) -> None:
        self.order = _order(partition)
        # One array for each column: gathering rows from many would copy them all each time.
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
            assert (steps > 0).all(), "offsets of rewritten records must rise"
            self.dense = bool((steps == 1).all())

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

    def facts(self) -> ObjectFacts:
        return ObjectFacts(
            null_keys=self.records.column("key").null_count,
            largest_record_bytes=int(self.sizes.max()),
            min_timestamp_ms=int(self.timestamps_ms.min()),
            max_timestamp_ms=int(self.timestamps_ms.max()),
        )

    def split(self, count: int) -> "list[Rows]":
        """Returns the records, whose order stays, in at most so many parts of whole row groups."""
        assert self.order is None, "rewritten records are of one partition"
        ends = [end for _, end in self._groups()]
        edges = sorted({0, *(ends[len(ends) * (i + 1) // count - 1] for i in range(count))})
        return [
            Rows(
                self.records.slice(start, end - start),
                self.partition[start:end],
                self.sizes[start:end],
            )
            for start, end in pairwise(edges)
        ]

    def consume(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yields the row groups with the columns of the schema, once: what was yielded is let
        go.
        """
        left, self.records = self.records.select(schema.names), None
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
    """Returns the object's bytes; those of the footer and of the key index among them. Takes the
    records out of ``rows``.

    ``key_seed``: that of the index's hashes, None: no index.
    """
    # Compressed, records of so few bytes need no index.
    seed = key_seed if rows.sizes.sum() > WHOLE_BYTES else None
    schema = stored_schema(rows.records.schema, absent_columns(rows))
    made, index = _Made(rows.records.nbytes), b""
    sink = pa.PythonFile(made, mode="w")
    with parquet_writer(sink, schema, compression) as writer:
        blocks = _write_groups(writer, rows, schema, seed)
        # Written in its place at once: to put it there later would copy all pages.
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


def _order(partition: _Ints) -> _Ints | None:
    """Returns the rows by partition, each partition's as they came; None where they are so
    already.
    """
    if not (np.diff(partition) < 0).any():
        return None
    # NumPy sorts 16 bits by radix, several times faster.
    narrow = partition.astype(np.uint16) if int(partition.max()) < 1 << 16 else partition
    return np.argsort(narrow, kind="stable")


def parquet_of(
    rows: Rows, schema: pa.Schema, compression: Compression, key_seed: int | None
) -> tuple[memoryview, list[bytes]]:
    """Returns the records' columns of this schema as a Parquet file; for each row group its block
    of a key index, unless the seed is None. Takes the records out of ``rows``.
    """
    made = _Made(rows.records.nbytes)
    with parquet_writer(pa.PythonFile(made, mode="w"), schema, compression) as writer:
        blocks = _write_groups(writer, rows, schema, key_seed)
    return made.value(), blocks


class _Made:
    """A file that is being written, in memory.

    It asks at once for as much as the records have, which is seldom less than they take encoded,
    and of which the system gives what is written. A stream of Arrow's begins small, and copies all
    that it has whenever it grows: on a busy machine encoding 50 MB took 1.3 to 1.8 times the CPU.
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
        """Returns what was written."""
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
            keys = group.column("key").combine_chunks()
            hashes = key_index.index_hashes(keys, seed=key_seed)
            blocks.append(key_index.encode_block(group.num_rows, hashes))
    return blocks


def parquet_writer(sink: Any, schema: pa.Schema, compression: Compression) -> Any:
    """Returns a writer of Parquet with the encodings, statistics and checksums of data objects."""
    return parquet().ParquetWriter(
        sink,
        schema,
        compression=compression.codec,
        compression_level=compression.level,
        use_dictionary=False,
        column_encoding={
            name: "DELTA_BINARY_PACKED"
            for name in ("timestamp", OFFSET, DELETE_HORIZON)
            if name in schema.names
        },
        write_statistics=_with_statistics(schema),
        write_page_checksum=True,
        store_schema=False,
    )


def is_typed(schema: pa.Schema) -> bool:
    """Tells whether these are columns of a typed log."""
    return any(field.type != pa.binary() for field in schema if field.name in ("key", "value"))


def _with_statistics(schema: pa.Schema) -> list[str]:
    """Returns the columns, by path, that have statistics: where they prune."""
    names = [name for name in ("timestamp", OFFSET) if name in schema.names]
    if not is_typed(schema):
        return names  # Of a log of bytes they would say nothing, and be long.
    return names + [path for name in ("key", "value") for path in lone_leaves(schema.field(name))]


def stored_schema(schema: pa.Schema, absent: Collection[str]) -> pa.Schema:
    """Returns a schema of records as it is stored: with field ids, without the columns that say
    nothing.
    """
    return pa.schema(
        [
            with_ids(field).with_nullable(field.name not in ("timestamp", OFFSET))
            for field in schema
            if field.name not in absent
        ]
    )


def absent_columns(rows: Rows) -> set[str]:
    """Returns the columns that say nothing: all null, or to be computed."""
    records = rows.records
    absent = {OFFSET} if rows.dense else set()
    for name in ("headers", DELETE_HORIZON):
        if name in records.schema.names and records.column(name).null_count == records.num_rows:
            absent.add(name)
    return absent
