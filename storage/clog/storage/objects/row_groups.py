"""Row groups that go from one data object into another as they lie there, without decoding
(FORMAT.md §5.1).

A row group's pages do not know where in a file they are: their bytes, checksums and encodings stay,
and the footer of the new object says where they lie now. That takes a twentieth of the CPU of
decoding and encoding them.

1. The object is there as a whole, and its checksum was verified: a copy gives its bytes a new one.
2. `RowGroupSource` reads the footer (`footer` has checked it) and takes what the new object's
   footer needs of it: each column's metadata, the sizes of keys, values and headers, and how many
   values are null. Of typed columns they follow from how many values each leaf has. Timestamps,
   offsets and horizons are decoded, which is little, and keys that are structs.
3. The key index's block comes along; where there is none its keys are read.

A group is not copied, but left to who decodes, where anything about it is not as this module's own
writer makes it now: the schema, to the last field, and of a typed log the present one; the codec;
a field of the metadata that nobody here knows, such as a Bloom filter; sizes that are not stated
(Arrow states them since 19).
Nor is a small one: copied again and again, it would stay small for ever. Nor a large one, which
would make a look-up of a key expensive.

Not here: which groups may be copied (`read.row_groups`), the new object (`composing`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.config.compression import Compression
from clog.storage.format.chunks import NONE
from clog.storage.format.object_ref import FOOTER_SUM_BYTES, ObjectRef
from clog.storage.format.schema import LogSchema
from clog.storage.keys import key_index
from clog.storage.keys.key_bytes import key_bytes
from clog.storage.numpy_arrays import to_numpy
from clog.storage.objects.arrow_types import column_types
from clog.storage.objects.data_object import (
    DELETE_HORIZON,
    OFFSET,
    RECORD_OVERHEAD,
    ChunkStats,
    check_rows,
)
from clog.storage.objects.encoding import (
    GROUP_BYTES,
    GROUP_BYTES_MIN,
    GROUP_ROWS,
    parquet_writer,
    stored_schema,
)
from clog.storage.objects.footer import TAIL_BYTES, read_footer
from clog.storage.objects.thrift_compact import I64, Reader, Struct
from clog.storage.objects.typed_columns import leaf_sizes

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
        import pyarrow.parquet as pq

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
        self._file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
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
