"""Plans and reads of a log: which rows of which objects contain a range of offsets, and their
records.

A *plan* is a list of pieces (`ReadPiece`), plain data at one version: a task reads it without the
manifest. Records come in offset order, each once; compaction's gaps cost nothing. ``start`` and
``end`` of a piece exclude offsets below the low watermark or beyond the planned end, even if their
rows still exist (S36). A chunk's bitmap of dead rows excludes rows, and so does its mask if
`Hidden` says so (FORMAT.md §5.4, §13).

A reader that reads repeatedly keeps the key indexes of objects (`KeyIndexCache`). An index is
fetched in one request with the Parquet footer behind it, so that reading rows no longer needs the
footer. For an object without an index the keys are read, once, to make one in memory.

When the indexes of all objects of a version are *warm*, finding out where a key may be costs no
request, and reading its row costs one, wherever it is. (An index says "maybe" for an absent key
less than once in four million times.)

A *run* is a list of pieces of small objects, of which a log has thousands if nobody coalesces.
Their indexes are joined and searched in one step: searching each separately takes a tenth of a
millisecond. Runs begin at the oldest piece, so when a log grows only the last one changes.

What callers may ask for, and what it resolves to (S1, S38, S39), follows the reading; `footprints`
returns what a read would take.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum, StrEnum, auto
from functools import lru_cache, partial
from itertools import pairwise
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clog.storage.commit.handle import Handle
from clog.storage.commit.versions import reading
from clog.storage.config.log_config import STRATEGY, LogConfig
from clog.storage.env import Shared, dataclass
from clog.storage.errors import CorruptionError, InvalidInputError, OffsetOutOfRangeError
from clog.storage.format.chunks import (
    Bitmap,
    Chunk,
    DeadRows,
    ObjectRef,
    Rows,
    Segment,
    files_of,
    read_bitmap,
)
from clog.storage.format.commits import Head
from clog.storage.format.documents import DEAD_SUFFIX, MASK_SUFFIX, NONE
from clog.storage.format.log_info import LogSchema
from clog.storage.format.manifest import Manifest
from clog.storage.keys import key_index
from clog.storage.keys.hashing import key_bytes
from clog.storage.keys.key_index import (
    BLOCK_ROWS,
    DamagedIndexError,
    IndexHashes,
    KeyIndex,
    Mask,
    index_hashes,
)
from clog.storage.numpy_arrays import (
    Offsets,
    null,
    picked,
    repeated,
    to_arrow,
    to_numpy,
)
from clog.storage.objects.orders import Ordering
from clog.storage.objects.reader import (
    BATCH_ROWS,
    WHOLE_BYTES,
    Choose,
    Footprint,
    footprint,
    open_ranges,
    read_rows,
)
from clog.storage.store.contract import Store, WrappingStore, ahead
from clog.storage.types.columns import (
    RECORD_SCHEMA,
    Records,
    arrow_schema,
    cheapest_leaf,
    projected,
)


@dataclass(frozen=True, slots=True)
class MarkedChunk:
    """Rows left out of the chunk ``[first_row, first_row + rows)``: those in any bitmap."""

    bitmaps: tuple[DeadRows | Bitmap, ...]
    first_row: int
    rows: int


class Hidden(Enum):
    """Which rows are left out of a chunk."""

    DEAD = auto()
    """The dead rows, which nobody sees."""
    SUPERSEDED = auto()
    """Also those that its mask marks as superseded."""
    ALL = auto()
    """Also those that its mask marks as tombstones."""

    def of(self, chunk: Chunk) -> tuple[DeadRows | Bitmap, ...]:
        """Returns the bitmaps of a chunk that mark these rows."""
        mask = chunk.mask if self is not Hidden.DEAD else None
        superseded = mask.superseded if mask else None
        tombstones = mask.tombstones if mask and self is Hidden.ALL else None
        return tuple(b for b in (chunk.dead, superseded, tombstones) if b is not None)


def left_out(store: Store, marked: MarkedChunk) -> Rows:
    """Returns the rows of a chunk that are left out; one request per bitmap that is not inline."""
    rows = np.zeros(marked.rows, np.bool_)
    for bitmap in marked.bitmaps:
        rows |= read_bitmap(store, bitmap, marked.rows)
    return rows


READ_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        RECORD_SCHEMA.field("headers"),
    ]
)
"""The columns of a log of bytes; `read_schema` returns those of any log."""
COLUMNS = tuple(READ_SCHEMA.names)
DELETE_HORIZON = "delete_horizon"
"""A column that only the cleaner asks for: the time in ms from which the tombstone may be removed,
null if none is set (S23). If asked for without the value, other rows than tombstones may have one.
"""
_OFFSET_END = 1 << 63
"""Beyond all offsets."""
_Range = TypeVar("_Range", Segment, Chunk)
_base, _next = attrgetter("base"), attrgetter("next")


@lru_cache(maxsize=64)
def read_schema(schema: LogSchema | None, columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Returns the schema of columns that are read from a log: given by name, fields of structs also
    by path (``value.price``), and `DELETE_HORIZON`.
    """
    own = arrow_schema(schema)
    fields = [own.field(f.name) if f.name in own.names else f for f in READ_SCHEMA]
    horizon = pa.field(DELETE_HORIZON, pa.int64())
    return projected(pa.schema([*fields, horizon]), columns)


def in_order(columns: Iterable[str]) -> list[str]:
    """Returns columns, or fields of structs by path, in the order of `COLUMNS`."""
    return sorted(columns, key=lambda path: (COLUMNS.index(path.partition(".")[0]), path))


def columns_asked(schema: LogSchema | None, columns: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the columns that a user asks for; None: all."""
    if isinstance(columns, str) or (columns is not None and not columns):
        raise InvalidInputError(f"columns={columns!r}; give a list of at least one name")
    asked = COLUMNS if columns is None else tuple(columns)
    if DELETE_HORIZON in asked:
        raise InvalidInputError(f"there is no column {DELETE_HORIZON!r}")
    read_schema(schema, asked)
    return asked


def presence_column(name: str, schema: LogSchema | None, columns: Sequence[str]) -> str:
    """Returns a column that shows where another is null: one that is read, or the cheapest."""
    read = (path for path in columns if path.partition(".")[0] == name)
    return next(read, None) or cheapest_leaf(read_schema(schema).field(name))


@dataclass(frozen=True, slots=True)
class ReadPiece:
    """Rows of one object with records of one partition; only offsets in ``[start, end)`` are
    delivered.

    ``base`` is the offset of ``first_row`` if the object is dense; ``schema`` is the log's, with
    which it is read; ``marked`` has the rows of its chunk that are left out, also by the mask if it
    ``is_masked``. No value is null unless it ``holds_tombstones``.
    """

    partition: int
    object: ObjectRef
    first_row: int
    rows: int
    base: int
    start: int
    end: int
    schema: LogSchema | None = None
    append_time_ms: int = NONE
    horizon: int = NONE
    up_to: int = NONE
    marked: MarkedChunk | None = None
    is_masked: bool = False
    holds_tombstones: bool = True


class Pruning(Protocol):
    """Leaves out pieces, and row groups of their object, before they are read (`filters`)."""

    def pieces(self, pieces: Sequence[ReadPiece]) -> Sequence[ReadPiece]: ...

    def chosen_of(self, run: Sequence[ReadPiece]) -> Choose | None: ...


class Isolation(StrEnum):
    """What a reader sees of open transactions (S40, S55): nothing from the first record of one on,
    or everything that was not aborted.
    """

    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


def end_offset(head: Head, partition: int, isolation: Isolation = Isolation.COMMITTED) -> int:
    """Returns the offset at which readers of the partition end (S51)."""
    if isolation is Isolation.UNCOMMITTED:
        return head.partitions.end[partition]
    return head.stable_offset(partition)


def plan_range(
    manifest: Manifest,
    partition: int,
    start: int,
    end: int,
    *,
    isolation: Isolation = Isolation.COMMITTED,
    whole: Callable[[Segment], Sequence[ReadPiece]] | None = None,
    hidden: Hidden = Hidden.DEAD,
) -> list[ReadPiece]:
    """Returns the pieces of offsets ``[start, end)`` of a partition, in offset order. The range is
    cut to what the isolation shows, and empty if it ends before it begins. ``whole`` may know the
    pieces of a segment inside the range; ``hidden`` says which rows are left out. No piece has
    aborted records.
    """
    start = max(start, manifest.head.partitions.start[partition])
    end = max(start, min(end, end_offset(manifest.head, partition, isolation)))
    schema = manifest.head.log.schema
    pieces: list[ReadPiece] = []
    for segment in within(manifest.segments[partition], start, end):
        if whole is not None and start <= segment.base and segment.next <= end:
            pieces += whole(segment)
            continue
        chunks = within(segment.chunks, start, end)
        shown = (chunk for chunk in chunks if not chunk.aborted)
        cut_to_range = (piece_of(partition, c, start, end, schema, hidden=hidden) for c in shown)
        pieces += (piece for piece in cut_to_range if piece.start < piece.end)
    return pieces


def within(ranges: tuple[_Range, ...], start: int, end: int) -> tuple[_Range, ...]:
    """Returns those of the ordered ranges that have offsets in ``[start, end)``."""
    low = bisect_right(ranges, start, key=_next)
    return ranges[low : bisect_left(ranges, end, lo=low, key=_base)]


def piece_of(
    partition: int,
    chunk: Chunk,
    start: int,
    end: int,
    schema: LogSchema | None = None,
    *,
    hidden: Hidden = Hidden.DEAD,
) -> ReadPiece:
    """Returns the part of a chunk that contains ``[start, end)``, for rows of the schema."""
    first_row, rows, base = chunk.first_row, chunk.rows, chunk.base
    bitmaps = hidden.of(chunk)
    end = min(end, chunk.next)
    if chunk.object.dense:
        end = min(end, base + rows)  # After its rows the chunk may cover a gap.
        skip = max(0, start - base)
        rows = max(0, min(rows, end - base) - skip)
        first_row, base = first_row + skip, base + skip
    return ReadPiece(
        partition=partition,
        object=chunk.object,
        first_row=first_row,
        rows=rows,
        base=base,
        start=max(start, chunk.base),
        end=end,
        schema=schema,
        append_time_ms=chunk.append_time_ms,
        horizon=chunk.horizon,
        up_to=chunk.up_to,
        marked=MarkedChunk(bitmaps, chunk.first_row, chunk.rows) if bitmaps else None,
        is_masked=chunk.mask is not None and hidden is not Hidden.DEAD,
        holds_tombstones=chunk.tombstones > 0,
    )


def pieces_within(
    pieces: Iterable[ReadPiece], start: int, end: int = _OFFSET_END
) -> list[ReadPiece]:
    """Returns the parts of the pieces in ``[start, end)``."""
    inside = (p for p in pieces if p.start < end and start < p.end)
    return [cut(p, max(p.start, start), min(p.end, end)) for p in inside]


def cut(piece: ReadPiece, start: int, end: int) -> ReadPiece:
    """Returns the part of a piece that delivers ``[start, end)``, which is within its range."""
    if not piece.object.dense:
        return replace(piece, start=start, end=end)
    return replace(
        piece,
        first_row=piece.first_row + start - piece.base,
        rows=end - start,
        base=start,
        start=start,
        end=end,
    )


def ordering_of(manifest: Manifest, partition: int) -> Ordering | None:
    """Returns how records of a key are compared at this version; None: the last one wins."""
    if STRATEGY not in manifest.head.config:
        return None
    order = Ordering.of(LogConfig.from_overrides(manifest.head.config))
    return order and order.within(manifest.orders_removed_of(partition))


def missed_deletes(
    removed: Sequence[tuple[int, int, int]], starts: Mapping[int, int], since_version: int
) -> dict[int, int]:
    """Returns the highest offset of a tombstone removed since a version, at or above ``starts``."""
    missed: dict[int, int] = {}
    for p, version, offset in removed:
        if version > since_version and p in starts and offset >= starts[p]:
            missed[p] = max(offset, missed.get(p, offset))
    return missed


def read_pieces(
    store: Store,
    pieces: Sequence[ReadPiece],
    *,
    columns: Sequence[str] = COLUMNS,
    pruning: Pruning | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the records of the pieces, in their order, as batches of `read_schema`, with all its
    columns or these; leaves out some of those that ``pruning`` rules out.

    Neighbouring pieces of one object are read together, with at most 2 requests, plus one for each
    bitmap of dead rows that is not inline.

    Raises:
        FileNotFoundError: an object is gone; what was yielded so far is correct.
        CorruptionError: bytes contradict the manifest.
    """
    if pruning is not None:
        pieces = pruning.pieces(pieces)
    calls = (
        (partial(open_run, store, run, columns, pruning), _fetched_bytes(run))
        for run in runs_of(pieces)
    )
    for batches in ahead(store, calls):
        yield from batches


def open_run(
    store: Store, run: Sequence[ReadPiece], columns: Sequence[str], pruning: Pruning | None = None
) -> Iterator[pa.RecordBatch]:
    """Fetches neighbouring pieces of an object; returns an iterator of their records."""
    ref, wanted = run[0].object, stored_columns(run, columns)
    dead, schema = dead_rows_of(store, run), run[0].schema
    ranges = [(piece.first_row, piece.rows) for piece in run]
    choose = None if pruning is None else pruning.chosen_of(run)
    batches = (
        open_ranges(store, ref, ranges, columns=wanted, schema=schema, choose=choose)
        if wanted
        else partial(_counted, run)
    )

    def decoded() -> Iterator[pa.RecordBatch]:
        schema = read_schema(run[0].schema, tuple(columns))
        for i, at, batch in batches(BATCH_ROWS):
            yield from _records(run[i], batch, at, schema, dead[i])

    return decoded()


def _counted(
    run: Sequence[ReadPiece], batch_rows: int
) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """Yields batches with as many rows as the pieces have, and none of their columns."""
    for i, piece in enumerate(run):
        for at in range(0, piece.rows, batch_rows):
            rows = pa.nulls(min(batch_rows, piece.rows - at))
            yield i, at, pa.RecordBatch.from_arrays([rows], [""])


def _fetched_bytes(run: Sequence[ReadPiece]) -> int:
    """Returns how many bytes are fetched for the pieces at most, up to a part of a row group."""
    ref = run[0].object
    return ref.size_bytes * sum(piece.rows for piece in run) // max(1, ref.rows)


def dead_rows_of(store: Store, run: Sequence[ReadPiece]) -> list[Rows | None]:
    """Returns the rows of each piece that are left out; one request per bitmap not inline."""
    masks = {m: left_out(store, m) for m in {p.marked for p in run} if m}
    return [
        masks[p.marked][p.first_row - p.marked.first_row :][: p.rows] if p.marked else None
        for p in run
    ]


def stored_columns(run: Sequence[ReadPiece], columns: Sequence[str]) -> list[str]:
    """Returns the columns of neighbouring pieces' object that are read for these columns."""
    ours = (*RECORD_SCHEMA.names, DELETE_HORIZON)
    stored = [path for path in columns if path.partition(".")[0] in ours]
    return stored if run[0].object.dense else [*stored, "offset"]


def runs_of(pieces: Sequence[ReadPiece]) -> Iterator[list[ReadPiece]]:
    """Yields neighbouring pieces of one object together."""
    run: list[ReadPiece] = []
    for piece in pieces:
        if piece.rows == 0:
            continue
        if run and (run[0].object != piece.object or run[-1].first_row >= piece.first_row):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def _records(
    piece: ReadPiece, batch: pa.RecordBatch, at: int, schema: pa.Schema, dead: Rows | None
) -> Iterator[pa.RecordBatch]:
    """Yields the piece's rows among those from its row ``at`` on, with the columns of a read."""
    rows, stored = batch.num_rows, None
    if not piece.object.dense:
        stored = to_numpy(batch.column("offset"))
        if rows and (stored[0] < 0 or (np.diff(stored) <= 0).any()):
            raise CorruptionError(f"offsets in {piece.object.path} do not increase")

    def offsets() -> Offsets:
        if stored is not None:
            return stored
        return np.arange(piece.base + at, piece.base + at + rows, dtype=np.int64)

    made: Mapping[str, Any] = {
        "partition": lambda: repeated(piece.partition, rows, pa.int32()),
        "offset": lambda: to_arrow(offsets()),
        "timestamp": lambda: _timestamps(piece, batch),
        DELETE_HORIZON: lambda: _horizons(piece, batch, offsets()),
    }
    arrays = [made[name]() if name in made else batch.column(name) for name in schema.names]
    out = pa.RecordBatch.from_arrays(arrays, schema=schema)
    low, high = 0, rows
    if stored is not None:  # Pieces of dense objects are already cut to their rows.
        low, high = np.searchsorted(stored, [piece.start, piece.end]).tolist()
    if dead is None:
        yield from (out.slice(low, high - low),) if low < high else ()
    else:
        yield from picked(out, low + np.flatnonzero(~dead[at + low : at + high]))


def read_records(
    store: Store,
    manifest: Manifest,
    ranges: Mapping[int, tuple[int, int]],
    *,
    columns: Sequence[str],
    isolation: Isolation = Isolation.COMMITTED,
    pruning: Pruning | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the records of half-open offset ranges, partition by partition."""
    # Never planned anew: a value that was cleaned since then would be missing, and the newer one is
    # beyond the end.
    with reading(store, manifest.version, why=" while it was read", remedy="read again"):
        pieces = [
            piece
            for p, (start, end) in ranges.items()
            for piece in plan_range(manifest, p, start, end, isolation=isolation)
        ]
        yield from read_pieces(store, pieces, columns=columns, pruning=pruning)


def records(
    handle: Handle,
    partition: int | None,
    start: int | Mapping[int, int] | None,
    end: int | Mapping[int, int] | None,
    *,
    isolation: str,
    where: pc.Expression | list[Any] | None,
    columns: Sequence[str] | None,
) -> Records:
    """Returns the records that `Log.read` describes, as of the handle's tip."""
    from clog.storage.read.filters import RowFilter

    shown = isolation_named(isolation)
    manifest = handle.manifest()
    head, url = manifest.head, handle.store.url
    bounds = ranges(head, partition, start, end, url=url, isolation=shown)
    asked = columns_asked(head.log.schema, columns)
    schema = read_schema(head.log.schema, asked)
    if where is None:
        batches = read_records(handle.store, manifest, bounds, columns=asked, isolation=shown)
        return Records(schema, batches, repr(url))
    wanted = RowFilter.of(where, head.log.schema)
    own: dict[str, Any] = {"columns": wanted.with_paths(asked), "pruning": wanted.wanted}
    batches = read_records(handle.store, manifest, bounds, isolation=shown, **own)
    return Records(schema, wanted.of_batches(batches, schema), repr(url))


def _timestamps(piece: ReadPiece, batch: pa.RecordBatch) -> pa.Array:
    if piece.append_time_ms == NONE:
        return batch.column("timestamp")
    return repeated(piece.append_time_ms * 1000, batch.num_rows, pa.timestamp("us", "UTC"))


def _horizons(piece: ReadPiece, batch: pa.RecordBatch, offsets: np.ndarray[Any, Any]) -> pa.Array:
    """Returns the row's own horizon, else the chunk's for tombstones below ``up_to`` (§5.3)."""
    own = batch.column(DELETE_HORIZON)
    if own.null_count < len(own):
        own = pc.if_else(pc.greater_equal(own, 0), own, null(own.type))
    if piece.horizon == NONE:
        return own
    of_chunk = offsets < piece.up_to
    if "value" in batch.schema.names:
        of_chunk &= to_numpy(batch.column("value").is_null())
    horizon = np.full(len(offsets), piece.horizon, np.int64)
    return pc.coalesce(own, to_arrow(horizon, valid=of_chunk))


CACHE_BYTES = 128 << 20
"""Memory for indexes: those of about 25 million keys."""
SMALL_ROWS = 4096
"""A larger object is searched by itself: copying its index would cost more than it saves."""
RUN_PIECES = 256
"""Pieces of small objects that are searched in one step."""
RUNS_MAX = 1024

_Joined = tuple[KeyIndex, NDArray[np.intp]]
"""The index of several objects, and where the blocks of each begin."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Pieces that are searched in one step; a single piece uses its own index."""

    pieces: tuple[ReadPiece, ...]
    joined: _Joined | None


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """A piece that may have keys: pairs of the number of the key and a block of the index, in which
    the rows of the object begin at ``first_row``.
    """

    piece: ReadPiece
    numbers: NDArray[np.intp]
    blocks: NDArray[np.intp]
    index: KeyIndex
    first_row: int

    def parts(self, asked: Mask) -> list[ReadPiece]:
        """Returns the parts of the piece for those pairs, in order; they have other keys, too."""
        ranges = self.index.rows_in(np.unique(self.blocks[asked]))
        first = self.first_row
        return list(_parts(self.piece, [(low - first, high - first) for low, high in ranges]))


@dataclass(frozen=True, slots=True)
class _Tail:
    """The bytes of an object from ``start`` to its end."""

    start: int = 0
    data: bytes = b""


_UNKNOWN: tuple[KeyIndex | None, _Tail] = (None, _Tail())


class KeyIndexCache(WrappingStore, Shared):
    """The key indexes of a log's objects; beyond ``cache_bytes`` drops the least recently used.

    It is a store that answers from memory for the ends of objects, and for bitmaps.
    Threads may share it.

    Attributes:
        cached_bytes: the memory in use.
    """

    def __init__(self, inner: Store, *, seed: int, cache_bytes: int = CACHE_BYTES) -> None:
        WrappingStore.__init__(self, inner)
        Shared.__init__(self)
        self.seed = seed
        self._cache_bytes = cache_bytes
        self._known: OrderedDict[str, tuple[KeyIndex | None, _Tail]] = OrderedDict()
        self.cached_bytes = 0
        self._joined: OrderedDict[tuple[str, ...], _Joined] = OrderedDict()

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        _, tail = self._known.get(path, _UNKNOWN)
        if path.endswith((DEAD_SUFFIX, MASK_SUFFIX)) and not tail.data:
            tail = _Tail(0, self.inner.get(path, 0, end))
            self._keep(path, None, tail)
        if tail.data and start is not None and end is not None and start >= tail.start:
            return tail.data[start - tail.start : end - tail.start]
        return self.inner.get(path, start, end)

    def of(self, obj: ObjectRef, cuts: Sequence[int] = (), *, schema: LogSchema | None) -> KeyIndex:
        """Returns the object's index; unless it is in memory, one GET, or a read of its keys.

        Args:
            obj: the object.
            cuts: rows at which chunks begin: an index that is made here separates them.
            schema: the log's.

        Raises:
            FileNotFoundError: the object is gone.
            CorruptionError: its bytes differ from the manifest's description.
        """
        with self._lock:
            index, tail = self._known.get(obj.path, (None, None))
            if index is not None:
                self._known.move_to_end(obj.path)
                return index
        if tail is None:
            tail = _Tail() if obj.size_bytes <= WHOLE_BYTES else self._fetched(obj)
            index = self._stored(obj, tail)
            tail = _Tail(tail.start + obj.index_bytes, tail.data[obj.index_bytes :])
            self._keep(obj.path, index, tail)
        if index is None:
            index = self._made(obj, cuts, schema)
            self._keep(obj.path, index, tail)
        return index

    def load(self, pieces: Sequence[ReadPiece]) -> None:
        """Makes the indexes of their objects warm, with requests ahead (`store.contract`). Indexes
        made here separate the pieces, so that a key of one partition causes no reads for another.
        """
        unknown = {
            piece.object.path: piece
            for piece in pieces
            if self._known.get(piece.object.path, _UNKNOWN)[0] is None
        }
        cuts: dict[str, list[int]] = defaultdict(list)
        for piece in pieces if unknown else ():
            if piece.object.path in unknown:
                cuts[piece.object.path] += (piece.first_row, piece.first_row + piece.rows)
        calls = (
            (
                partial(self.of, piece.object, cuts[path], schema=piece.schema),
                asked_bytes(piece.object),
            )
            for path, piece in unknown.items()
        )
        for _ in ahead(self, calls):
            pass

    def parts(self, piece: ReadPiece, hashes: IndexHashes) -> Iterator[ReadPiece]:
        """Yields the parts of a piece that may have a key with one of the hashes."""
        yield from _parts(piece, self.of(piece.object, schema=piece.schema).rows_of(hashes))

    def runs(self, pieces: Sequence[ReadPiece]) -> list[Run]:
        """Returns the pieces in runs that are searched together, reusing known joined indexes."""
        made: list[Run] = []
        small: list[ReadPiece] = []
        for piece in pieces:
            is_small = piece.object.rows <= SMALL_ROWS
            if small and (not is_small or len(small) == RUN_PIECES):
                made.append(self._run(small))
                small = []
            if is_small:
                small.append(piece)
            else:
                made.append(Run((piece,), None))
        return [*made, self._run(small)] if small else made

    def hits(self, run: Run, hashes: IndexHashes) -> Iterator[Hit]:
        """Yields the pieces of a run that may have one of the hashes, newest first."""
        if run.joined is None:
            index = self.of(run.pieces[0].object, schema=run.pieces[0].schema)
            starts = np.zeros(1, np.intp)
        else:
            index, starts = run.joined
        numbers, blocks = index.hits(hashes)
        owners = np.searchsorted(starts, blocks, side="right") - 1
        for n in np.unique(owners)[::-1]:
            mine = owners == n
            first_row = int(index.edges[starts[n]])
            yield Hit(run.pieces[n], numbers[mine], blocks[mine], index, first_row)

    def _run(self, pieces: list[ReadPiece]) -> Run:
        key = tuple(piece.object.path for piece in pieces)
        with self._lock:
            known = self._joined.get(key)
        if known is None:
            indexes = [self.of(piece.object, schema=piece.schema) for piece in pieces]
            starts = np.cumsum([0, *(len(index.shifts) for index in indexes)])[:-1]
            known = key_index.joined(indexes), starts
        with self._lock:
            self._joined[key] = known
            self._joined.move_to_end(key)
            while len(self._joined) > RUNS_MAX:
                self._joined.popitem(last=False)
        return Run(tuple(pieces), known)

    def _fetched(self, obj: ObjectRef) -> _Tail:
        start, end = obj.tail
        data = self.inner.get(obj.path, start, end) if start >= 0 else b""
        if len(data) != end - start:
            raise _damaged(self, obj, f"it has {start + len(data)} bytes, expected {end}")
        return _Tail(start, data)

    def _stored(self, obj: ObjectRef, tail: _Tail) -> KeyIndex | None:
        if not obj.index_bytes or not tail.data:
            return None
        return _decoded(self, obj, memoryview(tail.data)[: obj.index_bytes])

    def _made(self, obj: ObjectRef, cuts: Sequence[int], schema: LogSchema | None) -> KeyIndex:
        """Makes the index of an object that has none."""
        batches = read_rows(self, obj, 0, obj.rows, columns=("key",), schema=schema)
        keys = pa.chunked_array([key_bytes(batch.column(0)) for batch in batches], pa.binary())
        edges = sorted({0, obj.rows, *cuts, *range(0, obj.rows, BLOCK_ROWS)})
        blocks = []
        for start, end in pairwise(edges):
            block = keys.slice(start, end - start).combine_chunks()
            blocks.append((end - start, index_hashes(block, seed=self.seed)))
        index = key_index.decode(key_index.encode(blocks))
        assert index is not None, "an index that was just written has a known version"
        return index

    def _keep(self, path: str, index: KeyIndex | None, tail: _Tail) -> None:
        with self._lock:
            self.cached_bytes -= _size_bytes(self._known.pop(path, _UNKNOWN))
            self._known[path] = (index, tail)
            self.cached_bytes += _size_bytes((index, tail))
            while self.cached_bytes > self._cache_bytes and len(self._known) > 1:
                self.cached_bytes -= _size_bytes(self._known.popitem(last=False)[1])
            if len(self._known) == 1:
                self.cached_bytes = _size_bytes((index, tail))  # Whatever an interrupt left.


def stored_index(store: Store, obj: ObjectRef) -> KeyIndex | None:
    """Returns an object's key index, in one request; None if its version is unknown."""
    start = max(0, obj.tail[0])
    return _decoded(store, obj, store.get(obj.path, start, start + obj.index_bytes))


def _decoded(store: Store, obj: ObjectRef, data: bytes | memoryview) -> KeyIndex | None:
    try:
        index = key_index.decode(data)
    except DamagedIndexError as e:
        raise _damaged(store, obj, str(e)) from e
    if index is not None and index.rows != obj.rows:
        raise _damaged(store, obj, f"its key index has {index.rows} rows, expected {obj.rows}")
    return index


def _parts(piece: ReadPiece, ranges: Sequence[tuple[int, int]]) -> Iterator[ReadPiece]:
    """Yields the parts of a piece that are in the ranges of rows."""
    end = piece.first_row + piece.rows
    for low, high in ranges:
        first, last = max(low, piece.first_row), min(high, end)
        if first >= last:
            continue
        if not piece.object.dense:
            yield replace(piece, first_row=first, rows=last - first)
            continue
        base = piece.base + first - piece.first_row
        yield cut(piece, base, base + last - first)


def asked_bytes(obj: ObjectRef) -> int:
    """Returns how many bytes are fetched for an object's index at most."""
    start, end = obj.tail
    return end - max(0, start) if obj.index_bytes else obj.size_bytes


def _size_bytes(known: tuple[KeyIndex | None, _Tail]) -> int:
    index, tail = known
    return len(tail.data) + (0 if index is None else index.nbytes)


def _damaged(store: Store, obj: ObjectRef, what: str) -> CorruptionError:
    return CorruptionError(
        f"{obj.path} of {store.url} is damaged: {what}; keep the file, restore it from a copy"
    )


EARLIEST = -2
LATEST = -1


def isolation_named(isolation: object) -> Isolation:
    """Returns the isolation level (S40)."""
    if isolation not in tuple(Isolation):
        raise InvalidInputError(f"isolation={isolation!r}; allowed: {', '.join(Isolation)}")
    return Isolation(str(isolation))


def partitions_named(head: Head, partition: int | None, *, url: str) -> tuple[int, ...]:
    """Returns the partition, or all for None."""
    count = head.log.partitions
    if partition is None:
        return tuple(range(count))
    if isinstance(partition, Mapping):
        raise InvalidInputError("partition must be a number; give offsets by partition as start=…")
    if type(partition) is not int or not 0 <= partition < count:
        raise InvalidInputError(
            f"partition {partition!r} does not exist in {url}; it has partitions 0 to {count - 1}"
        )
    return (partition,)


def by_partition(
    head: Head, value: int | Mapping[int, int], what: str, *, url: str
) -> dict[int, int]:
    """Returns a number for each partition, from a number for all or numbers by partition."""
    if isinstance(value, Mapping):
        for p, number in value.items():
            partitions_named(head, p, url=url)
            _whole(number, what)
        return dict(value)
    _whole(value, what)
    return dict.fromkeys(range(head.log.partitions), value)


def ranges(
    head: Head,
    partition: int | None,
    start: int | Mapping[int, int] | None,
    end: int | Mapping[int, int] | None,
    *,
    url: str,
    isolation: Isolation = Isolation.COMMITTED,
) -> dict[int, tuple[int, int]]:
    """Returns the half-open ranges by partition, checked (S38), up to the isolation's end."""
    parts = partitions_named(head, partition, url=url)
    starts = {} if start is None else by_partition(head, start, "start", url=url)
    ends = {} if end is None else by_partition(head, end, "end", url=url)
    out = {}
    for p in parts:
        low = starts.get(p, head.partitions.start[p])
        check_start(head, p, low, url=url)
        high = max(low, end_offset(head, p, isolation))
        out[p] = (low, min(ends.get(p, high), high))
    return out


def check_start(head: Head, partition: int, offset: int, *, url: str) -> None:
    """Raises unless the offset, which may be a gap, is in [log start, end]."""
    low, high = head.partitions.start[partition], head.partitions.end[partition]
    if not low <= offset <= high:
        side = (
            f"below the log start offset {low}" if offset < low else f"beyond the end offset {high}"
        )
        raise OffsetOutOfRangeError(
            f'offset {offset} of partition {partition} is {side} of {url}; start at "earliest"'
            f" ({low}), or at any offset in [{low}, {high}]",
            partition=partition,
            offset=offset,
            start=low,
            end=high,
        )


def _whole(number: object, what: str) -> None:
    if type(number) is not int:
        raise InvalidInputError(f"{what} {number!r} is not an integer")


def footprints(
    store: Store, pieces: Sequence[ReadPiece], *, columns: Sequence[str]
) -> Iterator[Footprint]:
    """Yields what `read_pieces` would take for the pieces; one request for each run of pieces."""
    for run in runs_of(pieces):
        ref, wanted = run[0].object, stored_columns(run, columns)
        ranges = [(piece.first_row, piece.rows) for piece in run]
        found = footprint(store, ref, ranges, columns=wanted, schema=run[0].schema)
        if not wanted:
            found = replace(found, row_groups=0, fetched_bytes=0)
        files = files_of(*(b for p in run if p.marked for b in p.marked.bitmaps))
        yield replace(found, fetched_bytes=found.fetched_bytes + sum(files.values()))
