"""What pieces of an object hold, for another that takes their place: row groups that can be copied
as they are, and the records of the rest.

A row group can be copied where all of its rows stay, with the timestamps and horizons that they
have in it:

- it is of one partition, and the piece covers all of it;
- no row of it is to be looked at or left out by who asks;
- no row of it is dead: dead bytes are gone with the next rewrite (FORMAT.md §5.4);
- the object is of the log's present schema (FORMAT.md §12);
- the chunk overrides no timestamps (LogAppendTime), nor gives a horizon to a tombstone that is in
  it: both become real in a rewrite;
- what its footer states of sizes and tombstones does not contradict the chunk's own.

The object is fetched whole, in one request, where half of its rows are wanted, or it is small;
else all is decoded.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain

import numpy as np
import pyarrow as pa

from clog.storage.config.definitions import Compression
from clog.storage.format.chunks import Chunk, Rows
from clog.storage.format.codec import NONE
from clog.storage.objects.encoding import GROUP_BYTES_MIN
from clog.storage.objects.reader import WHOLE_BYTES, fetch_whole
from clog.storage.objects.writer import CopiedGroup, RowGroupSource
from clog.storage.read.scan import ReadPiece, dead_rows_of, open_run, read_pieces
from clog.storage.store.contract import Store, WrappingStore

Portion = tuple[int, Callable[[], Iterator[pa.RecordBatch | CopiedGroup]]]
"""How many live rows it has, of whole chunks, and what reads it."""


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """A piece of a chunk; ``decoded`` are the chunk's rows that have to be decoded, None: none."""

    piece: ReadPiece
    chunk: Chunk
    decoded: Rows | None = None

    @property
    def may_hold_copies(self) -> bool:
        is_large = self.chunk.size_bytes >= GROUP_BYTES_MIN
        return is_large and self.piece.append_time_ms == NONE

    def must_decode(self, first: int, rows: int) -> bool:
        """Tells whether rows of the object, all in the piece, have to be decoded."""
        at = first - self.chunk.first_row
        return self.decoded is not None and bool(self.decoded[at : at + rows].any())


class _HeldObject(WrappingStore):
    """A store of which one object is in memory, and its chunks' bitmaps once they are read."""

    def __init__(self, inner: Store, path: str, data: bytes) -> None:
        super().__init__(inner)
        self._path = path
        self._data = data
        self._others: dict[str, bytes] = {}

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        if path == self._path:
            return self._data[start:end]
        if path not in self._others:
            self._others[path] = self.inner.get(path, start, end)
        return self._others[path]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        assert path == self._path
        return [self._data[start:end] for start, end in ranges]


def read_or_copy(
    store: Store,
    wanted: Sequence[Wanted],
    *,
    columns: Sequence[str],
    compression: Compression,
    key_seed: int,
) -> Iterator[pa.RecordBatch | CopiedGroup]:
    """Fetches pieces of one object; returns what yields what they hold, in the order of their rows:
    groups that are copied, and batches as `read_pieces` makes them.

    Raises:
        FileNotFoundError, CorruptionError: as `read_pieces`, also later.
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
    """Fetches pieces of one object; returns what yields what they hold, as `read_or_copy`, in
    portions that may be read at once. They are of whole row groups, which have at least
    ``rows_min`` rows together; None: as large as may be.

    Raises:
        FileNotFoundError, CorruptionError: as `read_pieces`, also by reading a portion.
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
    held = _HeldObject(store, ref.path, data)
    try:
        source = RowGroupSource(data, ref, compression, key_seed, pieces[0].schema)
    except (pa.ArrowException, OSError, ValueError):
        # Who decodes says what is wrong with it.
        return [(live_rows, partial(read_pieces, held, pieces, columns=columns))]
    dead = dead_rows_of(held, pieces)
    found = [_copies(source, w, mask) for w, mask in zip(wanted, dead, strict=True)]
    # Who keeps a small part of an object shall not keep all of it in memory.
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
    """Returns the groups that are copied, with their first rows in the object."""
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
    """Tells whether the piece delivers all of the group, as it is."""
    stats = group.stats
    if stats.first_offset < piece.start or stats.last_offset >= piece.end:
        return False
    given = piece.horizon != NONE and stats.first_offset < piece.up_to
    return not (given and stats.tombstones)


def _rows_of(piece: ReadPiece, first: int, end: int) -> list[ReadPiece]:
    """Returns the part of a piece that is rows ``[first, end)`` of its object; nothing for none."""
    if first == end:
        return []
    if not piece.object.dense:
        return [replace(piece, first_row=first, rows=end - first)]
    base = piece.base + first - piece.first_row
    next_ = base + end - first
    return [replace(piece, first_row=first, rows=end - first, base=base, start=base, end=next_)]
