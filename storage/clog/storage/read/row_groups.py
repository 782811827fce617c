"""What pieces of an object hold, for another that takes their place: row groups that can be copied
as they are, and the records of the rest.

A row group can be copied where all of its rows stay, with the timestamps and horizons that they
have in it:

- it is of one partition, and the piece covers all of it;
- no row of it is dead: dead bytes are gone with the next rewrite (FORMAT.md §5.4);
- keys and values are bytes: typed columns (FORMAT.md §12) may be of an older schema of the log's;
- the chunk overrides no timestamps (LogAppendTime), nor gives a horizon to a tombstone that is in
  it: both become real in a rewrite;
- what its footer states of sizes and tombstones does not contradict the chunk's own.

The object is fetched whole, in one request, where half of its rows are wanted, or it is small;
else all is decoded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import pyarrow as pa

from clog.storage.config.compression import Compression
from clog.storage.format.chunks import NONE, Chunk
from clog.storage.format.dead_rows import Rows
from clog.storage.objects.encoding import GROUP_BYTES_MIN
from clog.storage.objects.reader import WHOLE_BYTES, fetch_whole
from clog.storage.objects.row_groups import CopiedGroup, RowGroupSource
from clog.storage.read.scan import ReadPiece, dead_rows_of, read_pieces
from clog.storage.store.base import Store
from clog.storage.store.wrapping import WrappingStore

_Placed = tuple[ReadPiece, Chunk]


class _HeldObject(WrappingStore):
    """A store of which one object is in memory."""

    def __init__(self, inner: Store, path: str, data: bytes) -> None:
        super().__init__(inner)
        self._path = path
        self._data = data

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._data[start:end] if path == self._path else self.inner.get(path, start, end)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        if path != self._path:
            return self.inner.get_ranges(path, ranges)
        return [self._data[start:end] for start, end in ranges]


def read_or_copy(
    store: Store,
    placed: Sequence[_Placed],
    *,
    columns: Sequence[str],
    compression: Compression,
    key_seed: int,
) -> Iterator[pa.RecordBatch | CopiedGroup]:
    """Yields what pieces of one object hold, each with its chunk, in the order of their rows:
    copied groups first, then batches as `read_pieces` does.

    Raises:
        FileNotFoundError, CorruptionError: as `read_pieces`.
    """
    pieces = [piece for piece, _ in placed]
    if not any(_may_hold_copies(*pair) for pair in placed) or not _is_fetched_whole(pieces):
        yield from read_pieces(store, pieces, columns=columns)
        return
    ref = pieces[0].object
    data = fetch_whole(store, ref)
    left: list[ReadPiece] = []
    try:
        source = RowGroupSource(data, ref, compression, key_seed)
    except (pa.ArrowException, OSError, ValueError):
        left = pieces  # Who decodes says what is wrong with it.
    else:
        for (piece, chunk), dead in zip(placed, dead_rows_of(store, pieces), strict=True):
            copies = _copies(source, piece, chunk, dead)
            yield from (group for _, group in copies)
            left += _rest(piece, [(first, group.num_rows) for first, group in copies])
    yield from read_pieces(_HeldObject(store, ref.path, data), left, columns=columns)


def _may_hold_copies(piece: ReadPiece, chunk: Chunk) -> bool:
    is_large = chunk.size_bytes >= GROUP_BYTES_MIN
    return is_large and piece.append_time_ms == NONE and piece.schema is None


def _is_fetched_whole(pieces: Sequence[ReadPiece]) -> bool:
    ref, rows = pieces[0].object, sum(piece.rows for piece in pieces)
    return ref.size_bytes <= WHOLE_BYTES or 2 * rows >= ref.rows


def _copies(
    source: RowGroupSource, piece: ReadPiece, chunk: Chunk, dead: Rows | None
) -> list[tuple[int, CopiedGroup]]:
    """Returns the groups that are copied, with their first rows in the object."""
    found: list[tuple[int, CopiedGroup]] = []
    if not _may_hold_copies(piece, chunk):
        return found
    ends = list(accumulate(source.rows))
    for number, (rows, end) in enumerate(zip(source.rows, ends, strict=True)):
        first = end - rows
        at = first - piece.first_row
        if at < 0 or end > piece.first_row + piece.rows or rows == 0:
            continue
        if dead is not None and dead[at : at + rows].any():
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
    """Tells whether the piece delivers all of the group, as it is."""
    stats = group.stats
    if stats.first_offset < piece.start or stats.last_offset >= piece.end:
        return False
    given = piece.horizon != NONE and stats.first_offset < piece.up_to
    return not (given and stats.tombstones)


def _rest(piece: ReadPiece, copied: Sequence[tuple[int, int]]) -> Iterator[ReadPiece]:
    """Yields the parts of a piece beside the ranges of rows that are copied."""
    at = piece.first_row
    for first, rows in [*copied, (piece.first_row + piece.rows, 0)]:
        if at < first:
            yield _rows_of(piece, at, first - at)
        at = first + rows


def _rows_of(piece: ReadPiece, first: int, rows: int) -> ReadPiece:
    base = piece.base + first - piece.first_row
    if not piece.object.dense:
        return replace(piece, first_row=first, rows=rows)
    return replace(piece, first_row=first, rows=rows, base=base, start=base, end=base + rows)
