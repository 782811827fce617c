"""Tables: the latest value of each key at one version, whatever the cleaner has or has not done
(S27); and the latest records since an offset.

A *plan* (`TablePlan`) holds the pieces of one partition. Those in which a table shows each key once
are *clean*: below the first dirty offset, or from the beginning up to the first chunk without a
mask (FORMAT.md §13), whichever reaches further. Rows that a mask marks are left out. The rest is
*dirty*; masks there are ignored. A plan may be *a slice* for one task of several: a run of pieces,
and ``later``, the dirty pieces that follow, which are mapped but not delivered.

T1. Map the dirty part: key -> last offset, reading only its keys (`latest`: 128 bits of each); map
    by map, if the budget has no room for all of them (`_of_many_maps`).
T2. Clean part: a record stays if the map does not know its key. With masks, or if chunks count no
    tombstones, no values are read to find these; with masks and no dirty part, no keys are read.
T3. Dirty part: exactly the records at the map's offsets stay. Objects without any are not read
    again; keys and small objects are kept from T1, if the budget has room for all of them.
T4. Tombstones are left out, and so are records without a key.

The *latest* records are the same view of a range of offsets, in which only what has masks is clean,
and tombstones stay: applied to the state at its start they give the state now, if no tombstone was
removed in between (`missed_deletes`, S41). If the record with the highest order wins, instead of
the last one (S56), see `ordered`; views of fresh objects that partitions share are read together
(`small_view_batches`).
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.commit.handle import Handle
from clog.storage.commit.versions import reading
from clog.storage.config.log_config import LogConfig
from clog.storage.env import Shared, dataclass
from clog.storage.errors import InvalidInputError
from clog.storage.format.chunks import Chunk, Segment
from clog.storage.format.commits import Head
from clog.storage.format.log_info import LogSchema
from clog.storage.format.manifest import Manifest
from clog.storage.keys.hashing import Fingerprints, fingerprints_of
from clog.storage.keys.latest import ROW_BYTES, LatestKeys, last_rows
from clog.storage.numpy_arrays import Offsets, picked, to_arrow, to_numpy
from clog.storage.objects.orders import Ordering
from clog.storage.objects.reader import WHOLE_BYTES
from clog.storage.read.filters import Pruned, RowFilter, lazy_frame
from clog.storage.read.lookup import answered, answered_key, asked_keys, latest_of_keys, listed_keys
from clog.storage.read.ordered import best_of, best_of_keys, ordered_batches
from clog.storage.read.scan import (
    COLUMNS,
    Hidden,
    KeyIndexCache,
    ReadPiece,
    Run,
    check_start,
    columns_asked,
    in_order,
    ordering_of,
    piece_of,
    pieces_within,
    plan_range,
    presence_column,
    read_pieces,
    read_schema,
)
from clog.storage.store.contract import ConcurrentStore, Store, WrappingStore
from clog.storage.types.columns import (
    SHOWN_ROWS,
    Frame,
    arrow_schema,
    check_held,
    html,
    package,
    rows_of,
    shaped,
)
from clog.storage.types.rows import KEY_COLUMNS, Shown, TableColumns

if TYPE_CHECKING:
    import polars as pl


class HasTable:
    """A log, which is often asked for what only its table has: the error names that."""

    if not TYPE_CHECKING:  # A checker knows better than to ask.

        def __getattr__(self, name: str) -> Any:
            hint = ""
            if not name.startswith("_") and hasattr(Table, name):
                hint = f"; its table has: log.table().{name}"
            elif name in ("add", "insert", "produce", "put", "send", "update", "upsert", "write"):
                hint = "; log.append(rows) adds rows, each of which replaces that of its key"
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{hint}",
                name=name,
                obj=self,
            )

        def __len__(self) -> int:
            raise TypeError(
                "a log has no length: len(log.table()) counts its keys, and log.describe() has the"
                " number of records"
            )

        def __bool__(self) -> bool:
            return True


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The parts of one partition's view, or of a slice of it: plain data, read without the
    manifest.

    ``seed`` is the log's, so that colliding keys cannot be prepared (S19). ``tombstones``: keep
    them. ``later``: dirty pieces after the slice. ``order``: what decides which record wins, unless
    the last one does (`ordered`); then ``later`` has all other pieces of the partition. ``where``:
    the rows that are wanted; row groups that their keys rule out are not mapped.
    """

    partition: int
    version: int
    seed: int
    schema: LogSchema | None
    clean: tuple[ReadPiece, ...]
    dirty: tuple[ReadPiece, ...]
    tombstones: bool = False
    later: tuple[ReadPiece, ...] = ()
    order: Ordering | None = None
    where: RowFilter | None = None

    @property
    def by_key(self) -> Pruned | None:
        """What need not be mapped."""
        return None if self.where is None else self.where.by_key

    @property
    def wanted(self) -> Pruned | None:
        """What need not be delivered."""
        return None if self.where is None else self.where.wanted

    @property
    def own(self) -> tuple[ReadPiece, ...]:
        """The pieces whose rows it delivers, in their order."""
        return (*self.clean, *self.dirty)

    def parts(self, runs: Sequence[tuple[ReadPiece, ...]]) -> "list[TablePlan]":
        """Returns plans that deliver the same rows in the same order, each those of a run: the
        runs have all its own pieces, whole or cut, in their order. It has no ``order``, by which
        each part would need all that others read.
        """
        assert self.order is None, "the last record of a key must win"
        first_dirty = self.dirty[0].start if self.dirty else self.own[-1].end if self.own else 0
        parts: list[TablePlan] = []
        later = self.later
        for run in reversed(runs):
            clean = tuple(piece for piece in run if piece.start < first_dirty)
            dirty = run[len(clean) :]
            parts.append(replace(self, clean=clean, dirty=dirty, later=later))
            later = (*dirty, *later)
        return parts[::-1]


_Known = tuple[LogSchema | None, tuple[Chunk, ...], list[ReadPiece]]


class KnownPieces:
    """The pieces of a partition's segments as they were last planned: the next version still has
    most of them, and a segment that grew begins with them.
    """

    def __init__(self) -> None:
        self._before: dict[int, _Known] = {}
        self._now: dict[int, _Known] = {}

    def next_version(self) -> None:
        """Begins a plan; forgets segments that were in neither of the last two."""
        self._before, self._now = self._now, {}

    def of(self, partition: int, schema: LogSchema | None, segment: Segment) -> list[ReadPiece]:
        """Returns the pieces of all chunks of a segment, without rows that their masks hide."""
        known, chunks, pieces = self._before.get(segment.base, (schema, (), []))
        is_other = len(chunks) > len(segment.chunks) or known != schema
        if is_other or not all(map(is_, chunks, segment.chunks)):
            chunks, pieces = (), []
        added = segment.chunks[len(chunks) :]
        if added:
            shown = (chunk for chunk in added if not chunk.aborted)
            made = (
                piece_of(partition, c, c.base, c.next, schema, hidden=Hidden.ALL) for c in shown
            )
            pieces = [*pieces, *(piece for piece in made if piece.start < piece.end)]
        self._now[segment.base] = schema, segment.chunks, pieces
        return pieces


def plan_table(
    manifest: Manifest, partition: int, log_start: int = 0, known: KnownPieces | None = None
) -> TablePlan:
    """Returns the plan of one partition's view at the manifest's version, without offsets below
    ``log_start``, if that is after the version's own (S36). ``known``: pieces from plans of the
    partition's other versions.
    """
    whole, schema = None, manifest.head.log.schema
    if known is not None:
        known.next_version()
        whole = partial(known.of, partition, schema)
    end = manifest.head.stable_offset(partition)
    start = min(max(manifest.head.partitions.start[partition], log_start), end)
    masked, is_whole = masked_below(manifest, partition)
    dirty = min(max(manifest.first_dirty[partition], masked, start), end)
    return TablePlan(
        partition,
        manifest.version,
        manifest.head.log.key_seed,
        schema,
        tuple(plan_range(manifest, partition, start, dirty, whole=whole, hidden=Hidden.ALL)),
        tuple(plan_range(manifest, partition, dirty, end, whole=whole if is_whole else None)),
        order=ordering_of(manifest, partition),
    )


def masked_below(manifest: Manifest, partition: int) -> tuple[int, bool]:
    """Returns the offset below which all chunks have masks, and whether no later chunk has one."""
    if not (manifest.covered and manifest.covered[partition]):
        return 0, True
    chunks = (c for segment in manifest.segments[partition] for c in segment.chunks)
    below = 0
    for chunk in chunks:
        if chunk.mask is None:
            return below, all(c.mask is None for c in chunks)
        below = chunk.next
    return below, True


class Kept(WrappingStore, Shared):
    """What a plan's first read keeps for its second: small objects as they were fetched, and keys,
    batch by batch in the order of offsets. If they do not all fit, nothing is kept. It is a store
    that does not request again what it has.

    Attributes:
        are_all: whether everything fits so far.
    """

    def __init__(self, inner: Store, budget_bytes: int) -> None:
        WrappingStore.__init__(self, inner)
        Shared.__init__(self)
        self._free_bytes = budget_bytes
        self._objects: dict[tuple[str, int, int], bytes] = {}
        self._keys: deque[tuple[int, pa.Array]] = deque()
        self.are_all = budget_bytes > 0

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        if start != 0 or end is None or end > WHOLE_BYTES:
            return self.inner.get(path, start, end)
        data = self._objects.pop((path, start, end), None)
        if data is None:
            data = self.inner.get(path, start, end)
            with self._lock:
                if self._has_room(len(data)):
                    self._objects[path, start, end] = data
        return data

    def keep_keys(self, batch: pa.RecordBatch) -> None:
        """Keeps the keys of some rows, if there is room."""
        keys = batch.column("key")
        with self._lock:
            if not self._has_room(keys.nbytes):
                return
            if keys.get_total_buffer_size() > 2 * keys.nbytes:
                # Copied: a slice (one partition's rows of an object) keeps its whole batch alive.
                keys = pa.concat_arrays([keys])
            self._keys.append((batch.column("offset")[0].as_py(), keys))

    def keys_at(self, first: int) -> pa.Array:
        """Removes and returns the keys of the batch at an offset, and removes those before it."""
        while True:
            at, keys = self._keys.popleft()
            if at == first:
                return keys

    def _has_room(self, size_bytes: int) -> bool:
        self._free_bytes -= size_bytes
        if self._free_bytes < 0:
            self.are_all = False
            self._objects.clear()
            self._keys.clear()
        return self.are_all


MAP_BYTES = 128 << 20
"""Default budget of the map, as ``log.cleaner.dedupe.buffer.size``: room for 3.3 million rows."""


def table_batches(
    store: Store, plan: TablePlan, *, columns: Sequence[str] = COLUMNS, map_bytes: int = MAP_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yields the view of one partition, as batches of these columns.
    Raises VersionExpiredError if the plan is so old that an object was deleted.
    """
    schema, where = read_schema(plan.schema, tuple(columns)), plan.where
    needed = columns if where is None else where.with_paths(columns)
    with reading(store, plan.version):
        rows = sum(piece.rows for piece in (*plan.dirty, *plan.later))
        latest = LatestKeys.within(map_bytes, rows=rows)
        kept = Kept(store, map_bytes - rows * ROW_BYTES)
        if plan.order is not None:
            batches = ordered_batches(store, plan, rows_at, needed, map_bytes=map_bytes)
        elif _map_all(store, plan, latest, needed, kept):
            batches = _of_one_map(store, plan, latest, needed, kept if kept.are_all else None)
        else:
            batches = _of_many_maps(store, plan, latest, needed)
        for batch in batches:
            rows = batch if where is None else where.kept(batch)
            if rows.num_rows:
                yield shaped(rows, schema)


def _map_all(
    store: Store, plan: TablePlan, latest: LatestKeys, columns: Sequence[str], kept: Kept
) -> bool:
    """Maps all dirty keys, and keeps what T3 reads; returns False if the map has no room."""
    keep = kept.keep_keys if "key" in columns else None
    return (
        _map(kept, plan, plan.dirty, latest, keep) is None
        and _map(store, plan, plan.later, latest) is None
    )


def _map(
    store: Store,
    plan: TablePlan,
    pieces: Sequence[ReadPiece],
    latest: LatestKeys,
    keep: Callable[[pa.RecordBatch], None] | None = None,
) -> int | None:
    """Maps keys until the map is full; returns the first offset without room, None if all fit."""
    for fingerprints, offsets in _fingerprinted(store, plan, pieces, keep):
        taken = latest.put(fingerprints, offsets)
        if taken < len(offsets):
            return int(offsets[taken])
    return None


def _fingerprinted(
    store: Store,
    plan: TablePlan,
    pieces: Sequence[ReadPiece],
    keep: Callable[[pa.RecordBatch], None] | None = None,
) -> Iterator[tuple[Fingerprints, Offsets]]:
    """Yields the fingerprints of the keys in the pieces, and their offsets."""
    for batch in read_pieces(store, pieces, columns=("offset", "key"), pruning=plan.by_key):
        if keep is not None:
            keep(batch)
        rows = present(batch, "key")
        yield fingerprints_of(rows.column("key"), seed=plan.seed), to_numpy(rows.column("offset"))


def _of_one_map(
    store: Store, plan: TablePlan, latest: LatestKeys, columns: Sequence[str], kept: Kept | None
) -> Iterator[pa.RecordBatch]:
    """Yields the records of a plan whose dirty keys are all mapped."""
    yield from _unknown(store, plan, latest, columns)
    yield from rows_at(store, plan, plan.dirty, latest.last_offsets(), columns, kept=kept)


def _of_many_maps(
    store: Store, plan: TablePlan, latest: LatestKeys, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yields the records of a plan with too many dirty keys for the map, map by map: exactly, each
    once, in offset order. One with R records of its own and a map with room for C reads the keys of
    the dirty part at most R/C + 2 times.

    U1. Map the plan's own records from an offset on, until the map is full (`LatestKeys`).
    U2. Read the keys of all dirty records after them: the mapped records with these are superseded.
    U3. Deliver the others, and continue after the last one mapped.
    """
    dirty = (*plan.dirty, *plan.later)
    rest = [piece for piece in (*plan.clean, *plan.dirty) if piece.rows]
    while rest:
        latest.clear()
        full_at = _map(store, plan, rest, latest)
        last = latest.last_offsets()
        alive = np.ones(len(last), np.bool_)
        after = pieces_within(dirty, latest.latest_offset + 1)
        for fingerprints, _ in _fingerprinted(store, plan, after):
            superseded = latest.get(fingerprints)
            alive[np.searchsorted(last, superseded[superseded >= 0])] = False
        yield from rows_at(store, plan, rest, last[alive], columns)
        rest = [] if full_at is None else pieces_within(rest, full_at)


def _unknown(
    store: Store, plan: TablePlan, latest: LatestKeys, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yields the clean records whose key the map does not know (T2); masks alone need no keys."""
    is_dirty = bool(plan.dirty or plan.later)
    for is_masked, pieces in groupby(plan.clean, attrgetter("is_masked")):
        read = list(pieces)
        needed = {*columns, "key"} if is_dirty or not is_masked else {*columns}
        if not is_masked:
            needed.update(_presence(plan, read, columns))
        for batch in read_pieces(store, read, columns=in_order(needed), pruning=plan.wanted):
            rows = batch if is_masked else _without_tombstones(present(batch, "key"))
            if not is_dirty:
                yield rows
                continue
            known = latest.knows(fingerprints_of(rows.column("key"), seed=plan.seed))
            yield from picked(rows, np.flatnonzero(~known))


def rows_at(
    store: Store,
    plan: TablePlan,
    pieces: Sequence[ReadPiece],
    last: Offsets,
    columns: Sequence[str],
    *,
    kept: Kept | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the records of the pieces at these offsets, which exist, ascending (T3); ``kept`` is
    not read again.
    """
    ends = np.array([(piece.start, piece.end) for piece in pieces], np.int64).reshape(-1, 2)
    low, high = np.searchsorted(last, ends).T
    read = [piece for piece, some in zip(pieces, low < high, strict=True) if some]
    for batch in _batches_at(store, plan, read, columns, kept):
        offsets = to_numpy(batch.column("offset"))
        first, end = np.searchsorted(last, [offsets[0], offsets[-1] + 1])
        is_whole = end - first == len(offsets)
        for rows in (batch,) if is_whole else picked(batch, _places_of(offsets, last[first:end])):
            yield rows if plan.tombstones else _without_tombstones(rows)


def _batches_at(
    store: Store,
    plan: TablePlan,
    pieces: Sequence[ReadPiece],
    columns: Sequence[str],
    kept: Kept | None,
) -> Iterator[pa.RecordBatch]:
    """Yields what is needed of the pieces' rows, kept or read."""
    presence = () if plan.tombstones else _presence(plan, pieces, columns)
    needed = {*columns, *presence, "offset"}
    has_keys = kept is not None and "key" in needed
    asked = needed - {"key"} if has_keys else needed
    if has_keys and asked <= {"partition", "offset"}:
        asked = {*asked, "timestamp"}  # If nothing is read, batches end elsewhere.
    for batch in read_pieces(kept or store, pieces, columns=in_order(asked), pruning=plan.wanted):
        if kept is None or not has_keys:
            yield batch
            continue
        keys = kept.keys_at(batch.column("offset")[0].as_py())
        schema = batch.schema.append(read_schema(plan.schema).field("key"))
        yield pa.RecordBatch.from_arrays([*batch.columns, keys], schema=schema)


def _presence(
    plan: TablePlan, pieces: Sequence[ReadPiece], columns: Sequence[str]
) -> tuple[str, ...]:
    """Returns the column that shows tombstones in the pieces; nothing if there are none."""
    if any(piece.holds_tombstones for piece in pieces):
        return (presence_column("value", plan.schema, columns),)
    return ()


def _without_tombstones(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the rows that have a value: all if no column was read for `_presence`."""
    return present(rows, "value") if "value" in rows.schema.names else rows


def _places_of(offsets: Offsets, wanted: Offsets) -> Offsets:
    """Returns the places of the wanted offsets, all of which exist, in the ascending offsets."""
    without_gap = offsets[-1] - offsets[0] + 1 == len(offsets)
    return wanted - offsets[0] if without_gap else np.searchsorted(offsets, wanted)


def present(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """Returns the rows that are not null in the column; all rows if it has no name."""
    if not batch.column(name).null_count:
        return batch
    return batch.filter(batch.column(name).is_valid())


class Table(Frame):
    """The latest value of each key at one version. From `Log.latest`: the latest record of each
    key that changed, with a null value if it was deleted.

    Nothing is read until you ask for it, and each call reads again.

    >>> from clog.storage import Log
    >>> rows = [{"id": 1, "city": "Riga"}, {"id": 2, "city": "Oslo"}]
    >>> log = Log.create("memory://help-of-rows", key="id", like=rows)
    >>> version = log.append(rows).version
    >>> table = log.table()
    >>> table.get(1), table.get_many([2, 3])
    ({'city': 'Riga'}, {2: {'city': 'Oslo'}})
    >>> table.of_keys([2]).num_rows
    1
    >>> table.to_polars(lazy=True).select("city").collect().to_series().sort().to_list()
    ['Oslo', 'Riga']
    >>> sum(batch.num_rows for batch in table.to_batches(columns=["city"]))
    2

    Threads may share it.

    Attributes:
        version: the version it shows.
    """

    def __init__(
        self,
        indexes: KeyIndexCache,
        version: int,
        plans: Sequence[TablePlan],
        ends: Mapping[int, int],
        *,
        schema: LogSchema | None,
        rows: TableColumns | None = None,
        origin: "Callable[..., Table] | None" = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        """Shows the plans' rows, read through the log's ``indexes``; ``ends`` are its offsets,
        ``schema`` is the log's at the version, ``rows`` are the plain columns, if it shows them;
        ``origin`` makes it from the log, ``at`` its version; ``columns``: those it has.
        """
        self._indexes = indexes
        self._plans = plans
        self._runs: list[list[Run]] | None = None
        self._typed = schema
        self._rows = rows
        self._origin = origin
        self._ends = ends
        self._columns = columns
        self.version = version

    def narrowed(
        self, where: pc.Expression | list[Any] | None, columns: Sequence[str] | None
    ) -> "Table":
        """Returns its rows that match ``where``, with these ``columns`` (`Log.table`)."""
        of = RowFilter.joined(self._plans[0].where, where, self._typed, self._rows)
        plans = [replace(plan, where=of) for plan in self._plans]
        origin = self._origin and partial(self._origin, filter=where, columns=columns)
        own: dict[str, Any] = {"rows": self._rows, "origin": origin, "columns": columns}
        table = Table(self._indexes, self.version, plans, self._ends, schema=self._typed, **own)
        table._shown(None)  # Raises if a column does not exist.
        return table

    def __repr__(self) -> str:
        return f"Table({self._indexes.url!r}, version={self.version})"

    def __dir__(self) -> list[str]:
        """Lists the names for users."""
        return [name for name in super().__dir__() if name not in ("narrowed", "of_key_bytes")]

    @property
    def offsets(self) -> dict[int, int]:
        """By partition, the offset at which to continue reading: the table contains everything
        before it, and nothing after.
        """
        return dict(self._ends)

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns how another process makes it: from the log, at the same version or cut."""
        if self._origin is None:
            raise InvalidInputError(
                f"latest records of {self._indexes.url} cannot be pickled; pass what to_arrow()"
                " returns"
            )
        return self._origin, ()

    def get(self, key: Any) -> Any:
        """Returns the value of a key, or None if it has none. If writers put the key in several
        partitions, the value with the latest timestamp counts.

        Keys and values are bytes; a key given as text is encoded as UTF-8. In a typed log they are
        Python values of their types: a struct is a dict, or in a key a tuple or a dict.

        Once the log's key indexes are in memory, this costs one request, or none if the key does
        not exist.

        Raises:
            VersionExpiredError: the version has expired.
            CorruptionError: the log needs an object that is gone or damaged.
        """
        return next(iter(self.get_many([key]).values()), None)

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Returns the values of those keys that have one, as `get` does; struct keys are returned
        as tuples.

        Raises:
            VersionExpiredError: the version has expired.
            CorruptionError: the log needs an object that is gone or damaged.
        """
        rows = self.of_keys(keys).sort_by("timestamp")
        pairs = zip(*(answered(rows.column(name)) for name in ("key", "value")), strict=True)
        return {answered_key(key): value for key, value in pairs if value is not None}

    def of_keys(self, keys: Iterable[Any]) -> pa.Table:
        """Returns the rows of these keys, with all columns, in no order; raises as `get` does."""
        return self.of_key_bytes(asked_keys(listed_keys(keys), self._typed))

    def of_key_bytes(self, wanted: Sequence[bytes], columns: Sequence[str] = COLUMNS) -> pa.Table:
        """Does what `of_keys` does; ``wanted`` has canonical bytes (FORMAT.md) of the keys,
        ``columns`` are key, value and others.
        """
        batches: list[pa.RecordBatch] = []
        is_last = all(plan.order is None and plan.where is None for plan in self._plans)
        asked = tuple(columns) if is_last else COLUMNS
        with reading(self._indexes, self.version):
            if self._runs is None:
                pieces = [(*plan.later, *plan.clean, *plan.dirty) for plan in self._plans]
                self._indexes.load([piece for some in pieces for piece in some])
                self._runs = [self._indexes.runs(some) for some in pieces]
            for plan, runs in zip(self._plans, self._runs, strict=True):
                if plan.order is None:
                    found = latest_of_keys(self._indexes, runs, wanted, asked)
                else:
                    found = best_of_keys(self._indexes, runs, wanted, plan)
                shown = (b if plan.tombstones else present(b, "value") for b in found)
                batches += map(plan.where.kept, shown) if plan.where else shown
        return pa.Table.from_batches(batches, read_schema(self._typed, asked)).select(columns)

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types: if the key columns have names, these and the fields of the
        value, else the columns of records.
        """
        return self._schema_of(None)

    def to_batches(self, *, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields record batches with partition, offset, timestamp, key, value and headers, or with
        these ``columns``. In a typed log, ``value.price`` names a field of a struct, and reads only
        that. A table whose key columns have names has these and the fields of the value instead,
        unless columns of records are asked for.

        Memory holds the map and the decoded part of one object at a time.

        Raises:
            VersionExpiredError: the version expired while it was read.
            CorruptionError: the log needs an object that is gone or damaged.
            InvalidInputError: a column does not exist.
        """
        return self._batches(self._indexes, columns)

    def to_arrow(self, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns all rows, with all ``columns`` or these, in memory. If objects are large, a
        thread decodes beside the caller.
        """
        pieces = (p for plan in self._plans for p in (*plan.clean, *plan.dirty))
        is_large = any(piece.object.size_bytes > WHOLE_BYTES for piece in pieces)
        store = ConcurrentStore(self._indexes) if is_large else self._indexes
        return pa.Table.from_batches(self._batches(store, columns), self._schema_of(columns))

    def _batches(self, store: Store, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        shown = self._shown(columns)
        for plan in self._plans:
            batches = table_batches(store, plan, columns=shown.paths)
            yield from batches if shown.rows is None else map(shown.of, batches)

    @overload
    def to_polars(
        self, *, columns: Sequence[str] | None = None, lazy: Literal[False] = False
    ) -> "pl.DataFrame": ...

    @overload
    def to_polars(
        self, *, columns: Sequence[str] | None = None, lazy: Literal[True]
    ) -> "pl.LazyFrame": ...

    def to_polars(
        self, *, columns: Sequence[str] | None = None, lazy: bool = False
    ) -> "pl.DataFrame | pl.LazyFrame":
        """Returns a ``polars.DataFrame`` with all ``columns`` or these; needs polars. If ``lazy``,
        it is read when collected: only the columns, and by statistics the rows, of its query.
        """
        if not lazy:
            return super().to_polars(columns=columns)
        package("polars", "Table.to_polars()")
        schema = self._schema_of(columns)
        check_held(schema, "Polars")
        return lazy_frame(schema, lambda w, names: self.narrowed(w, names or columns).to_batches())

    def _schema_of(self, columns: Sequence[str] | None) -> pa.Schema:
        return self._shown(columns).schema

    def _shown(self, columns: Sequence[str] | None) -> Shown:
        columns = self._columns if columns is None else columns
        if self._rows is not None:
            of_rows = self._rows.shown(arrow_schema(self._typed), columns)
            if of_rows is not None:
                return of_rows
        paths = columns_asked(self._typed, columns)
        return Shown(read_schema(self._typed, paths), paths)

    def __len__(self) -> int:
        """Returns the number of rows; reads the keys of those that are not cleaned yet."""
        counted = (table_batches(self._indexes, p, columns=("partition",)) for p in self._plans)
        return sum(batch.num_rows for batches in counted for batch in batches)

    def __bool__(self) -> bool:
        """Returns True: whether there are rows is a question for ``len``, which reads."""
        return True

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields the rows as dicts."""
        return (row for batch in self.to_batches() for row in batch.to_pylist())

    def _repr_html_(self) -> str:
        batches: list[pa.RecordBatch] = []
        for batch in self.to_batches():
            batches.append(batch)
            if sum(b.num_rows for b in batches) > SHOWN_ROWS:
                break
        table = pa.Table.from_batches(batches, self.schema)
        more = f"the first {SHOWN_ROWS} rows" if table.num_rows > SHOWN_ROWS else ""
        return html(table, repr(self), more)


def rows_shown(head: Head) -> TableColumns | None:
    """Returns the plain columns that tables show at a version's head; None: those of records."""
    if KEY_COLUMNS not in head.config:
        return None
    return rows_of(head.log.schema, LogConfig.from_overrides(head.config).table_key_columns)


def plan_latest(manifest: Manifest, partition: int, start: int, *, url: str) -> TablePlan:
    """Returns the plan of one partition's latest records from the offset on, up to the stable
    offset.
    """
    check_start(manifest.head, partition, start, url=url)
    end = manifest.head.stable_offset(partition)
    order = ordering_of(manifest, partition)
    dirty = max(start, min(masked_below(manifest, partition)[0], end))
    clean = plan_range(manifest, partition, start, dirty, hidden=Hidden.SUPERSEDED)
    changed = plan_range(manifest, partition, dirty, end)
    # An earlier record may win over a later one, which then changed nothing.
    beside = plan_range(manifest, partition, 0, start) if order and (clean or changed) else ()
    version, log = manifest.version, manifest.head.log
    own = (partition, version, log.key_seed, log.schema, tuple(clean), tuple(changed))
    return TablePlan(*own, tombstones=True, later=tuple(beside), order=order)


def latest_batches(
    store: Store,
    manifest: Manifest,
    starts: Mapping[int, int],
    *,
    columns: Sequence[str] = COLUMNS,
    map_bytes: int = MAP_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yields the latest record of each key changed from ``starts`` (an offset by partition) on,
    partition by partition, as batches of these columns of `read_schema`; records without a key are
    left out.
    """
    plans = [plan_latest(manifest, p, start, url=store.url) for p, start in starts.items()]
    for plan in plans:
        yield from table_batches(store, plan, columns=columns, map_bytes=map_bytes)


class Tables:
    """Tables of one log."""

    def __init__(self, handle: Handle) -> None:
        self.indexes = KeyIndexCache(handle.store, seed=handle.tip.head.log.key_seed)
        self._last: tuple[Manifest, object, Table] | None = None
        self._pieces: defaultdict[int, KnownPieces] = defaultdict(KnownPieces)

    def at(
        self,
        manifest: Manifest,
        parts: Sequence[int],
        starts: Sequence[int],
        *,
        origin: Callable[..., Table],
    ) -> Table:
        """Returns the table of these partitions at the manifest's version, without offsets below
        ``starts``, the current log start offsets by partition.
        """
        head, rows = manifest.head, rows_shown(manifest.head)
        asked, known = (parts, starts), self._last
        if known is not None and known[0] is manifest and known[1] == asked:
            return known[2]
        plans = [plan_table(manifest, p, starts[p], self._pieces[p]) for p in parts]
        shown = {p: max(head.stable_offset(p), starts[p]) for p in parts}
        schema = manifest.head.log.schema
        own: dict[str, Any] = {"schema": schema, "rows": rows, "origin": origin}
        table = Table(self.indexes, manifest.version, plans, shown, **own)
        self._last = manifest, asked, table
        return table

    def latest(self, manifest: Manifest, ranges: Mapping[int, tuple[int, int]]) -> Table:
        """Returns the latest records in the range of offsets of each partition."""
        url, schema = self.indexes.url, manifest.head.log.schema
        plans = [plan_latest(manifest, p, start, url=url) for p, (start, _) in ranges.items()]
        ends = {p: end for p, (_, end) in ranges.items()}
        return Table(self.indexes, manifest.version, plans, ends, schema=schema)


def small_view_batches(
    store: Store, plans: Sequence[TablePlan], *, columns: Sequence[str] = COLUMNS
) -> Iterator[pa.RecordBatch]:
    """Yields the views of plans for different partitions; memory holds all their rows. Each object
    is read once for all plans; in each partition the last row of each key stays, by offset. Clean
    parts need no other treatment: their keys are all different, and dirty rows come after them.
    """
    assert not any(plan.later for plan in plans), "a slice needs the keys of what follows it"
    typed = plans[0].schema
    orders = (plan.order.column for plan in plans[:1] if plan.order is not None)
    presence = presence_column("value", typed, columns)
    needed = (*columns, "partition", "offset", "key", presence, *orders)
    schema, wanted = (read_schema(typed, tuple(some)) for some in (needed, columns))
    pieces = [piece for plan in plans for piece in (*plan.clean, *plan.dirty)]
    pieces.sort(key=lambda piece: (piece.object.path, piece.first_row))
    batches = read_pieces(store, pieces, columns=needed)
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    for rows in table.to_batches():  # One batch, or none.
        partitions, offsets = (to_numpy(rows.column(name)) for name in ("partition", "offset"))
        order = np.lexsort((offsets, partitions))
        ordered, partitions = rows.take(to_arrow(order)), partitions[order]
        for plan in plans:
            start, end = np.searchsorted(partitions, [plan.partition, plan.partition + 1])
            latest = _latest(ordered.slice(int(start), int(end - start)), plan)
            if latest.num_rows:
                yield shaped(latest, wanted)


def _latest(rows: pa.RecordBatch, plan: TablePlan) -> pa.RecordBatch:
    """Returns the last row of each key among a partition's rows."""
    rows = rows.filter(rows.column("key").is_valid())
    if plan.order is not None:
        rows = best_of(rows, plan.order, plan.seed)
    elif rows.num_rows:
        rows = rows.take(to_arrow(last_rows(rows.column("key"), seed=plan.seed)))
    return rows if plan.tombstones else rows.filter(rows.column("value").is_valid())
