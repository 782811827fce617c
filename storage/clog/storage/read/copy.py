"""The contents of pieces of an object, for another one that replaces it: row groups that can be
copied as they are, and the records of the rest.

A row group is copied with what the new footer needs (`objects.composing`): metadata, sizes and
nulls as stated; timestamps, offsets, horizons and struct keys are decoded. The key index's block is
copied, too; without one the keys are read. A row group is not copied if it differs in anything from
what would be written now: the schema, to the last field; the codec; an unknown field of the
metadata; sizes that are not stated (Arrow states them since version 19); bounds of floats that
leave out a NaN, as releases before 0.3.0 wrote them. Nor is a small one, which would stay small for
ever, nor a large one, which would make looking up a key expensive.

A row group can be copied if all of its rows stay, with the timestamps and horizons that they have
in it:

- it belongs to one partition, and the piece covers all of it;
- the caller need not look at any of its rows, or leave one out;
- none of its rows is dead: dead bytes disappear with the next rewrite (FORMAT.md §5.4);
- the object has the log's present schema (FORMAT.md §12);
- the chunk overrides no timestamps (LogAppendTime), nor gives a horizon to one of its tombstones: a
  rewrite stores both;
- the sizes and tombstones that its footer states do not contradict the chunk's.

The object is fetched whole, in one request, if half of its rows are wanted, or it is small;
otherwise everything is decoded.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.column_kinds import stored_kind
from clog.storage.config.units import Compression
from clog.storage.env import dataclass
from clog.storage.format.chunks import FOOTER_SUM_BYTES, Chunk, ObjectRef, Rows
from clog.storage.format.documents import NONE
from clog.storage.format.log_info import LogSchema
from clog.storage.keys import key_index
from clog.storage.keys.hashing import key_bytes
from clog.storage.numpy_arrays import parquet, to_numpy
from clog.storage.objects.composing import CopiedGroup, RawColumn, file_without_rows
from clog.storage.objects.reader import (
    I64,
    TAIL_BYTES,
    WHOLE_BYTES,
    Reader,
    Struct,
    check_rows,
    fetch_whole,
    read_footer,
)
from clog.storage.objects.writer import (
    GROUP_BYTES,
    GROUP_BYTES_MIN,
    GROUP_ROWS,
    RECORD_OVERHEAD,
    ChunkStats,
    nan_in,
)
from clog.storage.read.scan import ReadPiece, dead_rows_of, open_run, read_pieces
from clog.storage.store.contract import HeldObject, Store
from clog.storage.types.columns import (
    DELETE_HORIZON,
    DELETED,
    OFFSET,
    Kind,
    Layout,
    column_types,
    inner_fields,
    is_listed,
    layout_of,
    lone_floats,
)

CODECS: Final = {"none": 0, "snappy": 1, "zstd": 6, "lz4": 7}
"""Parquet's numbers of the codecs that a log may be configured with."""
_FILE_FIELDS: Final = frozenset({1, 2, 3, 4, 6, 7})
_GROUP_FIELDS: Final = frozenset({1, 2, 3, 5, 6, 7})
_CHUNK_FIELDS: Final = frozenset({2, 3, 4, 5, 6, 7})
_COLUMN_FIELDS: Final = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 13, 16})
"""The fields that are understood: of the file, a row group, a column chunk, its metadata."""
_STATISTICS: Final = 12
"""Of a column chunk's metadata."""
_FIELD_ID: Final = 9
"""Of a column in the schema; older objects of bytes have none."""
_ENCODINGS: Final = frozenset({0, 2, 3, 4, 5, 6, 7, 8, 9})

Portion = tuple[int, Callable[[], Iterator[pa.RecordBatch | CopiedGroup]]]
"""The number of its live rows, of whole chunks, and what reads it."""


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """A piece of a chunk; ``decoded``: the chunk's rows that must be decoded, None for no rows."""

    piece: ReadPiece
    chunk: Chunk
    decoded: Rows | None = None

    @property
    def may_hold_copies(self) -> bool:
        is_large = self.chunk.size_bytes >= GROUP_BYTES_MIN
        return is_large and self.piece.append_time_ms == NONE

    def must_decode(self, first: int, rows: int) -> bool:
        """Returns whether rows of the object, all in the piece, must be decoded."""
        at = first - self.chunk.first_row
        return self.decoded is not None and bool(self.decoded[at : at + rows].any())


class RowGroupSource:
    """The row groups of an object, all of whose bytes are given.

    Args:
        compression: the copies' codec.
        key_seed: the log's; if given, copies come with a block of the key index.
        schema: the log's; row groups with an earlier one are not copied.
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
        self._layout = layout_of(schema)
        self._groups = read_footer(
            footer, rows=ref.rows, pages_end=pages_end, kind=self._layout.kind
        )
        tree = Reader(footer[:-TAIL_BYTES]).struct()
        self._structs: list[Struct] = tree[4][1][1]
        types = column_types(schema)
        self._schema = self._layout.stored(types.stored)
        self._key_is_struct = pa.types.is_struct(types.key)
        paths = (path for group in self._groups[:1] for path, _, _ in group.pages)
        names = {path.partition(".")[0] for path in paths}
        self._names = _columns_of(tree, names, self._schema, self._layout)
        self._file = parquet().ParquetFile(pa.BufferReader(data), pre_buffer=False)
        index = self._data[pages_end : ref.size_bytes - ref.footer_bytes - FOOTER_SUM_BYTES]
        blocks = key_index.blocks_of(index) if ref.index_bytes else []
        rows = [group.rows for group in self._groups]
        self._blocks = [b for _, b in blocks] if [n for n, _ in blocks] == rows else None

    @property
    def rows(self) -> list[int]:
        """The number of rows of each row group."""
        return [group.rows for group in self._groups]

    def copied(self, number: int, partition: int, base: int) -> CopiedGroup | None:
        """Returns a row group; None if it must be decoded.

        ``base``: the offset of its first row, if the object has no offsets.
        """
        columns = self._columns(number)
        if columns is None:
            return None
        rows = self._groups[number].rows
        if rows > GROUP_ROWS:
            return None
        try:
            tombstones = self._tombstones(number, columns, rows)
            if tombstones is None:
                return None
            size_bytes = self._record_bytes(number, columns, rows)
            if size_bytes is None or not GROUP_BYTES_MIN <= size_bytes <= 2 * GROUP_BYTES:
                return None
            if self._bounds_lack_nan(number):
                return None
            facts = self._facts(number, rows, base)
            block = self._block(number)
        except (pa.ArrowException, OSError, ValueError):
            return None  # Decoding it reports what is wrong.
        if facts is None:
            return None
        times, offsets, horizons = facts
        absent = {OFFSET} if self._layout.kind.own(OFFSET) not in columns else set()
        absent |= {DELETE_HORIZON} if horizons == (NONE, NONE) else set()
        absent |= {DELETED} if not tombstones else set()
        headers = columns.get(self._layout.kind.own("headers"), ())
        absent |= {"headers"} if _holds_none(headers) else set()
        stats = ChunkStats(partition, rows, size_bytes, *times, tombstones, *offsets, *horizons)
        return CopiedGroup(columns, stats, frozenset(absent), block)

    def _columns(self, number: int) -> dict[str, list[RawColumn]] | None:
        """Returns the column chunks by name; None if one is not understood."""
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

    def _tombstones(
        self, number: int, columns: Mapping[str, Sequence[RawColumn]], rows: int
    ) -> int | None:
        """Returns in how many rows the value is null; None if it is not stated."""
        if self._layout.kind is not Kind.TABLE:
            return _nulls(columns["value"][0], self._sizes("value")[0][1], rows)
        if DELETED not in columns:
            return 0
        table = self._file.read_row_group(number, columns=[DELETED], use_threads=False)
        return int(pc.sum(table.column(DELETED)).as_py() or 0)

    def _sizes(self, name: str) -> list[tuple[int | None, int]]:
        """Returns the counts of a column's leaves, as `leaf_sizes` does."""
        if self._layout.is_content(name):
            return [*leaf_sizes(self._schema.field(name))]
        return [(None, 0)] * 2 if name == self._layout.kind.own("headers") else []

    def _record_bytes(
        self, number: int, columns: Mapping[str, Sequence[RawColumn]], rows: int
    ) -> int | None:
        """Returns the sum of the rows' record sizes; None if a column does not state its size."""
        total = rows * RECORD_OVERHEAD
        decoded: list[str] = []
        if self._key_is_struct:
            total += pc.sum(pc.binary_length(key_bytes(self._keys(number)))).as_py() or 0
            decoded = self._layout.key_columns
        for name, leaves in columns.items():
            if name in decoded:
                continue
            for column, (width, level) in zip(leaves, self._sizes(name), strict=False):
                content = _content(column) if width is None else _present(column, level)
                if content is None:
                    return None
                total += content * (1 if width is None else width)
        return total

    def _keys(self, number: int) -> pa.Array:
        names = self._layout.key_columns
        return self._layout.keys(
            self._file.read_row_group(number, columns=names, use_threads=False)
        )

    def _bounds_lack_nan(self, number: int) -> bool:
        """Returns whether a column of floats has a NaN, and bounds, which leave it out."""
        chunks = zip(self._groups[number].pages, self._structs[number][1][1][1], strict=True)
        bounded = {path for (path, _, _), chunk in chunks if _STATISTICS in chunk[3][1]}
        floats = [path for path in lone_floats(self._schema) if path in bounded]
        if not floats:
            return False
        return bool(nan_in(self._file.read_row_group(number, columns=floats, use_threads=False)))

    def _facts(
        self, number: int, rows: int, base: int
    ) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]] | None:
        """Returns bounds of timestamps, offsets and horizons; None if they are inconsistent."""
        own = {name: self._layout.kind.own(name) for name in ("timestamp", OFFSET, DELETE_HORIZON)}
        names = [name for name in own if own[name] in self._names]
        table = self._file.read_row_group(
            number, columns=[own[name] for name in names], use_threads=False
        ).rename_columns(names)
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
            given := to_numpy(table.column(DELETE_HORIZON).drop_null())
        ):
            horizons = int(given.min()), int(given.max())
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


def read_or_copy(
    store: Store,
    wanted: Sequence[Wanted],
    *,
    columns: Sequence[str],
    compression: Compression,
    key_seed: int,
) -> Iterator[pa.RecordBatch | CopiedGroup]:
    """Fetches pieces of one object; returns an iterator of their contents, in the order of their
    rows: groups that are copied, and batches as `read_pieces` makes them.
    """
    portions = open_portions(
        store, wanted, columns=columns, compression=compression, key_seed=key_seed
    )
    return chain.from_iterable(read() for _, read in portions)


def open_portions(
    store: Store,
    wanted: Sequence[Wanted],
    *,
    columns: Sequence[str],
    compression: Compression,
    key_seed: int,
    rows_min: int | None = None,
) -> list[Portion]:
    """Fetches pieces of one object; returns their contents as `read_or_copy` does, but in portions
    that may be read in parallel. Each has whole row groups, with at least ``rows_min`` rows
    together; None: as large as possible.
    """
    wanted = [w for w in wanted if w.piece.rows]
    pieces = [w.piece for w in wanted]
    live_rows = sum(w.chunk.live_rows for w in wanted)
    if not pieces:
        return []
    if not any(w.may_hold_copies for w in wanted) or not _is_fetched_whole(pieces):
        batches = open_run(store, pieces, columns)
        return [(live_rows, lambda: batches)]
    ref = pieces[0].object
    data = fetch_whole(store, ref)
    held = HeldObject(store, ref.path, data)
    try:
        source = RowGroupSource(data, ref, compression, key_seed, pieces[0].schema)
    except (pa.ArrowException, OSError, ValueError):
        # Decoding it reports what is wrong.
        return [(live_rows, partial(read_pieces, held, pieces, columns=columns))]
    dead = dead_rows_of(held, pieces)
    found = [_copies(source, w, mask) for w, mask in zip(wanted, dead, strict=True)]
    # A small part of an object must not keep all of it in memory.
    is_part = 2 * sum(g.stored_bytes for copies in found for _, g in copies) < len(data)
    portions: list[Portion] = []
    for w, mask, copies in zip(wanted, dead, found, strict=True):
        first, end = w.piece.first_row, w.piece.first_row + w.piece.rows
        ends = [*((at, group) for at, group in copies), (end, None)]
        for until, group in ends:
            for start, behind in _portions(source, (first, until), rows_min):
                gone = _count(mask, start - w.piece.first_row, behind - start)
                read = partial(read_pieces, held, _rows_of(w.piece, start, behind), columns=columns)
                portions.append((behind - start - gone, read))
            if group is not None:
                copy = group.detached() if is_part else group
                portions.append((group.num_rows, partial(iter, [copy])))
                first = until + group.num_rows
    return portions


def _count(mask: Rows | None, start: int, rows: int) -> int:
    return 0 if mask is None else int(np.count_nonzero(mask[start : start + rows]))


def _portions(
    source: RowGroupSource, rows: tuple[int, int], rows_min: int | None
) -> Iterator[tuple[int, int]]:
    """Yields rows of the object in portions that end with a row group."""
    start, end = rows
    if rows_min is not None:
        for behind in accumulate(source.rows):
            if start + rows_min <= behind < end:
                yield start, behind
                start = behind
    if start < end:
        yield start, end


def _is_fetched_whole(pieces: Sequence[ReadPiece]) -> bool:
    ref, rows = pieces[0].object, sum(piece.rows for piece in pieces)
    return ref.size_bytes <= WHOLE_BYTES or 2 * rows >= ref.rows


def _copies(
    source: RowGroupSource, wanted: Wanted, dead: Rows | None
) -> list[tuple[int, CopiedGroup]]:
    """Returns the groups to copy, with their first rows in the object."""
    found: list[tuple[int, CopiedGroup]] = []
    piece, chunk = wanted.piece, wanted.chunk
    if not wanted.may_hold_copies:
        return found
    end = 0
    for number, rows in enumerate(source.rows):
        first, end = end, end + rows
        at = first - piece.first_row
        if rows == 0 or at < 0 or end > piece.first_row + piece.rows:
            continue
        if wanted.must_decode(first, rows) or (dead is not None and dead[at : at + rows].any()):
            continue
        group = source.copied(number, piece.partition, piece.base + at)
        if group is not None and _stays(group, piece):
            found.append((first, group))
    stats = [group.stats for _, group in found]
    size_bytes, tombstones = sum(s.size_bytes for s in stats), sum(s.tombstones for s in stats)
    if sum(s.rows for s in stats) == chunk.rows:
        agree = (size_bytes, tombstones) == (chunk.size_bytes, chunk.tombstones)
    else:
        agree = size_bytes <= chunk.size_bytes and tombstones <= chunk.tombstones
    return found if agree else []


def _stays(group: CopiedGroup, piece: ReadPiece) -> bool:
    """Returns whether the piece delivers all of the group unchanged."""
    stats = group.stats
    if stats.first_offset < piece.start or stats.last_offset >= piece.end:
        return False
    given = piece.horizon != NONE and stats.first_offset < piece.up_to
    return not (given and stats.tombstones)


def _rows_of(piece: ReadPiece, first: int, end: int) -> list[ReadPiece]:
    """Returns the part of a piece with rows ``[first, end)`` of its object, if there is any."""
    if first == end:
        return []
    if not piece.object.dense:
        return [replace(piece, first_row=first, rows=end - first)]
    base = piece.base + first - piece.first_row
    next_ = base + end - first
    return [replace(piece, first_row=first, rows=end - first, base=base, start=base, end=next_)]


def _columns_of(
    tree: Struct, names: Collection[str], schema: pa.Schema, layout: Layout
) -> list[str]:
    """Returns the names of the columns; none if anything in the file is not like ours."""
    elements: list[Struct] = tree[2][1][1]
    present = [name for name in schema.names if name in names]
    stored = pa.schema([schema.field(name) for name in present])
    ours = file_without_rows(stored, Compression("none"), layout)
    columns: list[Struct] = ours[2][1][1]
    without = [{n: v for n, v in column.items() if n != _FIELD_ID} for column in columns]
    same = elements == columns or (layout.kind is Kind.BYTES and elements == without)
    is_ours = same and ours[7] == tree.get(7)
    return present if is_ours and tree.keys() <= _FILE_FIELDS else []


def _content(column: RawColumn) -> int | None:
    """Returns the size of all values of a column of bytes; None if it is not stated."""
    _, stated = column.metadata.get(16, (0, {}))
    kind, content = stated.get(1, (I64, -1))
    return content if kind == I64 and content >= 0 else None


def _present(column: RawColumn, level: int) -> int | None:
    """Returns how many values of a leaf have this definition level; None if it is not stated."""
    levels = _levels(column)
    if len(levels) != level + 1 or min(levels) < 0 or sum(levels) != column.metadata[5][1]:
        return None
    return levels[-1]


def _nulls(leaf: RawColumn, level: int, rows: int) -> int | None:
    """Returns in how many rows the column of a leaf is null; None if it is not stated."""
    entries = _levels(leaf, of=2)[:1] or [leaf.metadata[5][1]]
    if _present(leaf, level) is None or entries != [rows]:
        return None
    return _levels(leaf)[0]


def _holds_none(leaves: Sequence[RawColumn]) -> bool:
    """Returns whether a column is null in all rows."""
    return all(sum(_levels(leaf)[1:]) == 0 and len(_levels(leaf)) > 0 for leaf in leaves)


def _levels(column: RawColumn, *, of: int = 3) -> list[int]:
    """Returns how many values each definition (or 2: repetition) level has, if stated."""
    _, stated = column.metadata.get(16, (0, {}))
    _, (_, levels) = stated.get(of, (0, (0, [])))
    counts: list[int] = levels
    return counts


def leaf_sizes(field: pa.Field, level: int = 0) -> Iterator[tuple[int | None, int]]:
    """Yields, for each leaf of a field below the definition level, the bytes that `value_sizes`
    counts for a value that is not null (None: its length), and the leaf's definition level.
    """
    kind = field.type
    level += field.nullable
    if inside := inner_fields(kind):
        for inner in inside:
            yield from leaf_sizes(inner, level + is_listed(kind))
    else:
        yield stored_kind(kind).size_of(kind), level
