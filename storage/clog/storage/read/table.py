"""Tables: the latest value of each key at one version, whatever the cleaner has or has not done;
and what changed since an offset.

A *plan* (`TablePlan`) holds the pieces of one partition. *Clean* are those in which a table shows
each key once: below the first dirty offset, and at the beginning as far as chunks have masks
(FORMAT.md §13), whichever reach further. What a mask says is left out. The rest is *dirty*; masks
there count for nothing. A plan may be *a slice* for one task of several: a run of pieces, and
``later``, the dirty pieces that follow, which are mapped and not delivered.

Reading a plan:

T1. Map the dirty part: key -> last offset, reading only its keys (`hashing`: 128 bits of each).
T2. Clean part: a record stays when the map does not know its key. Where there are masks no value
    is asked for whether it is a tombstone, and without a dirty part no key.
T3. Dirty part: exactly the records at the map's offsets stay. Objects without any are not read
    again. Their keys are kept from T1 if the budget has room for them beside the map: what is over
    drops all of them, and they are read again.
T4. Tombstones go, and so do records without a key.

Where what is to be mapped has more keys than the map's budget, the plan is done *map-full by
map-full*: exact, in bounded memory, and records are delivered once, in offset order.

U1. Map the plan's own records from an offset on, until the map is full (`LatestKeys`: of different
    keys).
U2. Read the keys of all that is dirty after them: the records that it finds are superseded.
U3. Deliver the others, and go on after the last one mapped.

So with R records of its own and room for C, the keys of the dirty part are read R/C + 2 times at
most, and memory is the map's and half of it again.

The map (`LatestKeys`) finds the last offset of each key of a run of records by sorting. It takes
rows, each the fingerprint of a key (`hashing`) and its offset, into a room of so many rows, and
*settles* them when it is asked or the room is full:

L1. Each row becomes one number: the upper bits of its fingerprint, and its place in the room. NumPy
    sorts numbers several times as fast as it looks anything up, and rows of one key come to lie
    side by side, in the order of their offsets.
L2. Of neighbours with the same 128 bits the first is superseded. Where other keys share the upper
    bits and lie in between, which is rare, these few rows are compared by all their bits.
L3. The numbers of the others stay, sorted: they are the index. A *directory* of about as many
    places as keys says where those with the same uppermost bits begin; from there on their rows are
    looked at one by one. All 128 bits decide, always.
L4. If the room is full, rows that are superseded leave it, and the others close up, in their order.

Beside `offset_map`, which a pass of the cleaner fills: that one holds 24 bytes a key whatever the
number of rows, and a key that is there already always fits (S18, S20). This one needs 40 bytes a
row, and 20 more for a moment, and is filled twice as fast (``benchmarks/parts/offset_map.py``;
decision 0008). A room that is three quarters full when it was settled counts as full.

Where the record with the highest order wins, not the last one: `ordered`.

*Changes* are the same view of a range of offsets, in which nothing is clean but what has masks, and
tombstones stay: applied to the state at its start it gives the state now, if no tombstone was
removed in between (`missed_deletes`, S41).

*Small views*, of several partitions at once, in memory: a fresh object holds rows of all of them,
and is read once for all.

N1. Read all rows of all plans, object by object.
N2. Put them in the order of partitions and offsets.
N3. In each partition keep the last row of each key.

What a plan holds as clean needs no care of its own: its keys are different, and what the dirty part
supersedes comes before it in N2.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter, is_
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clog.storage.commit.versions import reading
from clog.storage.errors import InvalidInputError
from clog.storage.format.chunks import Chunk, Segment
from clog.storage.format.log_info import LogSchema
from clog.storage.format.manifest import Manifest
from clog.storage.keys.hashing import Fingerprints, fingerprints_of
from clog.storage.numpy_arrays import Mask, Offsets, to_arrow, to_numpy
from clog.storage.objects.orders import Ordering
from clog.storage.read.lookup import (
    answered,
    answered_key,
    asked_keys,
    latest_of_keys,
)
from clog.storage.read.ordered import best_of, best_of_keys, ordered_batches
from clog.storage.read.scan import (
    COLUMNS,
    Hidden,
    KeyIndexCache,
    ReadPiece,
    Run,
    check_start,
    columns_asked,
    ordering_of,
    piece_of,
    pieces_from,
    plan_range,
    presence_column,
    read_pieces,
    read_schema,
)
from clog.storage.store.contract import Store
from clog.storage.types.columns import SHOWN_ROWS, Frame, arrow_schema, html, shaped
from clog.storage.types.rows import Shown, TableColumns

ROW_BYTES: Final = 40
"""Memory for a row of room; while it settles half of it again."""
_Numbers = NDArray[np.uint64]
_Places = NDArray[np.int64]
_WHOLE = np.dtype("V16")
_PART_ROWS: Final = 1 << 16


class LatestKeys:
    """Fingerprints of a key -> last offset, of a bounded number of rows.

    Attributes:
        latest_offset: the last offset that was put, -1 where none was.
    """

    __slots__ = (
        "_directory",
        "_index",
        "_mask",
        "_offsets",
        "_rows",
        "_settled",
        "_words",
        "latest_offset",
    )

    def __init__(self, room: int) -> None:
        """Makes an empty map with room for so many rows, at least 1."""
        assert 1 <= room < 1 << 32
        self._words = np.empty((room, 2), np.uint64)
        self._offsets = np.empty(room, np.int64)
        self._mask = np.uint64((1 << max(1, (room - 1).bit_length())) - 1)
        self.clear()

    @classmethod
    def within(cls, memory_bytes: int, *, rows: int) -> Self:
        """Makes a map for so many rows, or for as many as the memory has room for."""
        return cls(max(1, min(memory_bytes // ROW_BYTES, rows)))

    def clear(self) -> None:
        """Forgets everything."""
        self._rows = self._settled = 0
        self._index = np.empty(0, np.uint64)
        self._directory: NDArray[np.uint32] | None = None
        self.latest_offset = -1

    def put(self, words: Fingerprints, offsets: Offsets) -> int:
        """Takes rows in order until there is no room, and returns how many it took; offsets
        increase, also from one call to the next.
        """
        room, taken = len(self._offsets), 0
        while taken < len(offsets):
            if self._rows == room:
                self._settle()
                if 4 * len(self._index) > 3 * room:
                    break
                self._close_up()
            more = min(len(offsets) - taken, room - self._rows)
            self._words[self._rows : self._rows + more] = words[taken : taken + more]
            self._offsets[self._rows : self._rows + more] = offsets[taken : taken + more]
            self._rows, taken = self._rows + more, taken + more
            self.latest_offset = int(offsets[taken - 1])
        return taken

    def last_offsets(self) -> Offsets:
        """Returns the last offset of each key, ascending."""
        self._settle()
        return self._offsets[: self._rows].compress(self._is_last())

    def last_rows(self) -> _Places:
        """Returns which of the rows that were put those of `last_offsets` are, as long as none left
        the room.
        """
        self._settle()
        return np.flatnonzero(self._is_last())

    def get(self, words: Fingerprints) -> Offsets:
        """Returns the last offset of each key, -1 where it is not known."""
        rows, known = self._find(words)
        return np.where(known, self._offsets.take(rows), -1)

    def knows(self, words: Fingerprints) -> Mask:
        """Tells whether each key is known."""
        return self._find(words)[1]

    def _settle(self) -> None:
        """Does L1 to L3; nothing where no row came since."""
        if self._settled == self._rows:
            return
        self._directory = None
        index, mask, kept, start = self._numbers(), self._mask, 0, 0
        while start < len(index):
            # Parts that stay in the processor's cache; none ends between rows that may be a key's.
            edge = index[min(start + _PART_ROWS, len(index)) - 1]
            end = int(np.searchsorted(index, edge | mask, side="right"))
            part = index[start:end]
            tied = (part[1:] ^ part[:-1]) <= mask
            part = part.compress(_last_of_key(_take(self._words, part & mask), tied))
            index[kept : kept + len(part)] = part
            kept, start = kept + len(part), end
        self._index, self._settled = index[:kept], self._rows

    def _numbers(self) -> _Numbers:
        """Returns the rows as sorted numbers: their place in the bits of the mask, their key's bits
        above.
        """
        numbers: _Numbers = self._words[: self._rows, 0] & ~self._mask
        numbers |= np.arange(self._rows, dtype=np.uint64)
        numbers.sort()
        return numbers

    def _is_last(self) -> Mask:
        """Tells whether each row is the last of its key, where all are settled."""
        last = np.zeros(self._rows, np.bool_)
        last[(self._index & self._mask).view(np.int64)] = True
        return last

    def _close_up(self) -> None:
        """Does L4, where all rows are settled."""
        last, rows = self._is_last(), 0
        for start in range(0, self._rows, _PART_ROWS):
            part = slice(start, min(start + _PART_ROWS, self._rows))
            some = np.flatnonzero(last[part])
            end = rows + len(some)
            self._words[rows:end] = _take(self._words[part], some)
            self._offsets[rows:end] = self._offsets[part].take(some)
            rows = end
        self._rows, self._settled = rows, 0

    def _find(self, words: Fingerprints) -> tuple[_Places, Mask]:
        """Returns the row of each key's last offset, any row where the key is not known, and
        whether it is.
        """
        self._settle()
        rows, known = np.zeros(len(words), np.int64), np.zeros(len(words), np.bool_)
        if len(self._index):
            for start in range(0, len(words), _PART_ROWS):
                part = slice(start, start + _PART_ROWS)
                rows[part], known[part] = self._look_up(words[part])
        return rows, known

    def _look_up(self, words: Fingerprints) -> tuple[_Places, Mask]:
        """Does for a part what `_find` does for all."""
        if self._directory is None:
            self._directory = _directory(self._index)
        first = np.ascontiguousarray(words[:, 0])
        at = self._directory.take(_bucket(first, len(self._directory))).astype(np.int64)
        rows, known, further = self._compare(at, first, words)
        at = at.take(further) + 1
        while len(further):
            rows[further], known[further], on = self._compare(
                at, first.take(further), _take(words, further)
            )
            further, at = further.take(on), at.take(on) + 1
        return rows, known

    def _compare(
        self, at: _Places, first: _Numbers, words: Fingerprints
    ) -> tuple[_Places, Mask, _Places]:
        """Returns the rows at these places of the index, whether they are those of the words, and
        which are not and may be further on.
        """
        there = self._index.take(at)
        rows = (there & self._mask).view(np.int64)
        same = _equal(_take(self._words, rows), words)
        # Further on while the upper bits are not larger than those that are asked for.
        may_follow = (there <= (first | self._mask)) & (at < len(self._index) - 1)
        may_follow &= ~same
        return rows, same, np.flatnonzero(may_follow)


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What one partition's view, or a slice of it, is made of: plain data, read without the
    manifest.

    ``seed`` is the log's own, so that keys which collide cannot be prepared (S19). ``tombstones``:
    they stay. ``later``: dirty pieces after the slice. ``order``: what wins, where it is not the
    last record (`ordered`); then ``later`` are all other pieces of the partition.
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


_Known = tuple[LogSchema | None, tuple[Chunk, ...], list[ReadPiece]]


class KnownPieces:
    """The pieces of a partition's segments as they were last planned: the next version has most of
    them still, and a segment that grew has them for its beginning.
    """

    def __init__(self) -> None:
        self._before: dict[int, _Known] = {}
        self._now: dict[int, _Known] = {}

    def next_version(self) -> None:
        """Begins a plan: segments that are in none of the last two are forgotten."""
        self._before, self._now = self._now, {}

    def of(self, partition: int, schema: LogSchema | None, segment: Segment) -> list[ReadPiece]:
        """Returns the pieces of all chunks of a segment, read by the log's schema, without what
        their masks hide.
        """
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
    """Returns the plan of one partition's view at the manifest's version, without what lies below
    ``log_start``, where that is later than the version's own (S36). ``known``: from the plans of
    the partition's other versions.
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
    """Returns the offset below which all chunks of a partition have masks, and whether none has
    beyond it; 0 where the first one has none.
    """
    if not (manifest.covered and manifest.covered[partition]):
        return 0, True
    chunks = (c for segment in manifest.segments[partition] for c in segment.chunks)
    below = 0
    for chunk in chunks:
        if chunk.mask is None:
            return below, all(c.mask is None for c in chunks)
        below = chunk.next
    return below, True


_BYTES_MAX: Final = 1 << 30
"""One array of Arrow's holds 2 GiB."""


class KeptKeys:
    """The keys of rows, in the order in which they came."""

    __slots__ = ("_free_bytes", "_parts")

    def __init__(self, budget_bytes: int) -> None:
        self._free_bytes = min(budget_bytes, _BYTES_MAX)
        self._parts: list[pa.Array] = []

    def keep(self, keys: pa.Array) -> None:
        """Keeps the keys of more rows, if there is room."""
        self._free_bytes -= keys.nbytes
        if self._free_bytes >= 0:
            # Copied: a slice, of an object's rows those of one partition, holds all its batch.
            self._parts.append(pa.concat_arrays([keys]))
        else:
            self._parts.clear()

    def take(self, rows: Offsets) -> pa.Array | None:
        """Returns the keys of these rows, which ascend, None where not all were kept; nothing is
        kept any longer.
        """
        parts, self._parts = self._parts, []
        if not parts:
            return None
        ends = np.cumsum([len(part) for part in parts])
        found, first, low = [], 0, 0
        for part, end, high in zip(parts, ends, np.searchsorted(rows, ends), strict=True):
            found.append(part.take(to_arrow(rows[low:high] - first)))
            first, low = end, high
        return pa.concat_arrays(found)


MAP_BYTES = 128 << 20
"""Default budget of the map, as ``log.cleaner.dedupe.buffer.size``: room for 3.3 million rows."""


def table_batches(
    store: Store, plan: TablePlan, *, columns: Sequence[str] = COLUMNS, map_bytes: int = MAP_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yields the view of one partition, as batches of these columns (`read_schema`).

    Raises:
        VersionExpiredError: an object of this version was deleted: the plan is older than
            ``file.delete.delay.ms``.
        CorruptionError: an object is damaged, or gone though the log needs it.
    """
    schema = read_schema(plan.schema, tuple(columns))
    with reading(store, plan.version):
        rows = sum(piece.rows for piece in (*plan.dirty, *plan.later))
        latest = LatestKeys.within(map_bytes, rows=rows)
        # None where not all rows have room: those that leave it would not be found among the keys.
        keys = KeptKeys(map_bytes - rows * ROW_BYTES if "key" in columns else 0)
        if plan.order is not None:
            batches = ordered_batches(store, plan, _at, columns, map_bytes=map_bytes)
        elif _map(store, (*plan.dirty, *plan.later), latest, plan.seed, keys) is None:
            batches = _of_one_map(store, plan, latest, columns, keys)
        else:
            batches = _of_many_maps(store, plan, latest, columns)
        for batch in batches:
            if batch.num_rows:
                yield shaped(batch, schema)


def _map(
    store: Store,
    pieces: Sequence[ReadPiece],
    latest: LatestKeys,
    seed: int,
    keys: KeptKeys | None = None,
) -> int | None:
    """Maps the keys of the pieces, until the map is full; the first offset that has no room any
    more, None where all have.
    """
    for fingerprints, offsets in _fingerprinted(store, pieces, seed, keys):
        taken = latest.put(fingerprints, offsets)
        if taken < len(offsets):
            return int(offsets[taken])
    return None


def _fingerprinted(
    store: Store, pieces: Sequence[ReadPiece], seed: int, keys: KeptKeys | None = None
) -> Iterator[tuple[Fingerprints, Offsets]]:
    """Yields the words of the keys there are in the pieces, and their offsets."""
    for batch in read_pieces(store, pieces, columns=("offset", "key")):
        rows = present(batch, "key")
        if keys is not None:
            keys.keep(rows.column("key"))
        yield fingerprints_of(rows.column("key"), seed=seed), to_numpy(rows.column("offset"))


def _of_one_map(
    store: Store, plan: TablePlan, latest: LatestKeys, columns: Sequence[str], keys: KeptKeys
) -> Iterator[pa.RecordBatch]:
    """Yields the records of a plan whose dirty keys are all mapped."""
    kept = keys.take(latest.last_rows())
    yield from _unknown(store, plan, latest, columns)
    yield from _at(store, plan, plan.dirty, latest.last_offsets(), columns, keys=kept)


def _of_many_maps(
    store: Store, plan: TablePlan, latest: LatestKeys, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yields the records of a plan that has too many dirty keys for the map, map-full by
    map-full.
    """
    dirty = (*plan.dirty, *plan.later)
    rest = [piece for piece in (*plan.clean, *plan.dirty) if piece.rows]
    while rest:
        latest.clear()
        full_at = _map(store, rest, latest, plan.seed)
        last = latest.last_offsets()
        alive = np.ones(len(last), np.bool_)
        after = pieces_from(dirty, latest.latest_offset + 1)
        for fingerprints, _ in _fingerprinted(store, after, plan.seed):
            superseded = latest.get(fingerprints)
            alive[np.searchsorted(last, superseded[superseded >= 0])] = False
        yield from _at(store, plan, rest, last[alive], columns)
        rest = [] if full_at is None else pieces_from(rest, full_at)


def _unknown(
    store: Store, plan: TablePlan, latest: LatestKeys, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yields the records of the clean part whose key the map does not know (T2); where there are
    masks, and nothing is dirty, no key is needed for that.
    """
    is_dirty = bool(plan.dirty or plan.later)
    for is_masked, pieces in groupby(plan.clean, attrgetter("is_masked")):
        needed = {*columns, "key"} if is_dirty or not is_masked else {*columns}
        if not is_masked:
            needed.add(presence_column("value", plan.schema, columns))
        for batch in read_pieces(store, list(pieces), columns=_in_order(needed)):
            rows = batch if is_masked else present(present(batch, "key"), "value")
            if is_dirty:
                known = latest.knows(fingerprints_of(rows.column("key"), seed=plan.seed))
                rows = rows.filter(to_arrow(~known)) if known.any() else rows
            yield rows


def _at(
    store: Store,
    plan: TablePlan,
    pieces: Sequence[ReadPiece],
    last: Offsets,
    columns: Sequence[str],
    *,
    keys: pa.Array | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the records of the pieces at these offsets (T3); ``keys``: theirs, where they are
    known, not to be read again.
    """
    wanted = {*columns, "offset"}
    if not plan.tombstones:
        wanted.add(presence_column("value", plan.schema, columns))
    wanted -= {"key"} if keys is not None else set()
    ends = np.array([(piece.start, piece.end) for piece in pieces], np.int64).reshape(-1, 2)
    low, high = np.searchsorted(last, ends).T
    read = [piece for piece, some in zip(pieces, low < high, strict=True) if some]
    for batch in read_pieces(store, read, columns=_in_order(wanted)):
        offsets = to_numpy(batch.column("offset"))
        first, end = np.searchsorted(last, [offsets[0], offsets[-1] + 1])
        rows = _rows_at(batch, offsets, last[first:end])
        if keys is not None:
            arrays = [*rows.columns, keys.slice(first, end - first)]
            schema = rows.schema.append(read_schema(plan.schema).field("key"))
            rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
        yield rows if plan.tombstones else present(rows, "value")


def _in_order(columns: Iterable[str]) -> list[str]:
    return sorted(columns, key=lambda path: (COLUMNS.index(path.partition(".")[0]), path))


def _rows_at(batch: pa.RecordBatch, offsets: Offsets, wanted: Offsets) -> pa.RecordBatch:
    """Returns the rows at these offsets, which are there."""
    if len(wanted) == len(offsets):
        return batch
    without_gap = offsets[-1] - offsets[0] + 1 == len(offsets)
    at = to_arrow(wanted - offsets[0] if without_gap else np.searchsorted(offsets, wanted))
    rows = [
        column.slice(0, len(at)) if column.null_count == len(column) else column.take(at)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(rows, schema=batch.schema)


def present(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """Returns the rows that are not null in the column; all for no name."""
    if not batch.column(name).null_count:
        return batch
    return batch.filter(batch.column(name).is_valid())


class Table(Frame):
    """The latest value of each key at one version. From `Log.changes`: the latest record of each
    key that changed, with a null value where it was deleted.

    Nothing is read until you ask for it, and each call reads again.

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
    ) -> None:
        """Shows what the plans say, read by way of the log's ``indexes``; ``ends`` are its
        offsets, ``schema`` the log's at the version, ``rows`` its plain columns, if it is to show
        them; ``origin`` makes it of the log, ``at`` its version.
        """
        self._indexes = indexes
        self._plans = plans
        self._runs: list[list[Run]] | None = None
        self._typed = schema
        self._rows = rows
        self._origin = origin
        self._ends = ends
        self.version = version

    def __repr__(self) -> str:
        return f"Table({self._indexes.url!r}, version={self.version})"

    @property
    def offsets(self) -> dict[int, int]:
        """By partition, the offset at which to continue reading: the table contains everything
        before it, and nothing after.
        """
        return dict(self._ends)

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns how another process makes it: of the log, opened there, at the same version."""
        if self._origin is None:
            raise InvalidInputError(
                f"changes of {self._indexes.url} cannot be pickled; pass what to_arrow() returns"
            )
        return partial(self._origin, at=self.version), ()

    def get(self, key: Any) -> Any:
        """Returns the value of a key, or None if it has none. If writers put the key in several
        partitions, the value with the latest timestamp counts.

        Keys and values are bytes; a key given as text is encoded as UTF-8. In a typed log they are
        Python values of their types: a struct is a dict, as a key a tuple or a dict.

        Once the log's key indexes are in memory, this costs one request, or none if the key does
        not exist.

        Raises:
            VersionExpiredError: the version has expired.
            CorruptionError: the log needs an object that is gone or damaged.
        """
        return next(iter(self.get_many([key]).values()), None)

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Returns the values of those keys that have one, as `get` does; keys that are structs as
        tuples.

        Raises:
            VersionExpiredError: the version has expired.
            CorruptionError: the log needs an object that is gone or damaged.
        """
        rows = self.of_keys(keys).sort_by("timestamp")
        pairs = zip(*(answered(rows.column(name)) for name in ("key", "value")), strict=True)
        return {answered_key(key): value for key, value in pairs if value is not None}

    def of_keys(self, keys: Iterable[Any]) -> pa.Table:
        """Returns the rows of these keys alone, with all columns, in no order; raises as `get`."""
        return self.of_key_bytes(asked_keys(keys, self._typed))

    def of_key_bytes(self, wanted: Sequence[bytes]) -> pa.Table:
        """Does what `of_keys` does, where canonical bytes (FORMAT.md) of the keys are wanted."""
        batches: list[pa.RecordBatch] = []
        with reading(self._indexes, self.version):
            if self._runs is None:
                pieces = [(*plan.later, *plan.clean, *plan.dirty) for plan in self._plans]
                self._indexes.load([piece for some in pieces for piece in some])
                self._runs = [self._indexes.runs(some) for some in pieces]
            for plan, runs in zip(self._plans, self._runs, strict=True):
                if plan.order is None:
                    found = latest_of_keys(self._indexes, runs, wanted)
                else:
                    found = best_of_keys(self._indexes, runs, wanted, plan)
                batches += (b if plan.tombstones else present(b, "value") for b in found)
        return pa.Table.from_batches(batches, read_schema(self._typed))

    @property
    def schema(self) -> pa.Schema:
        """The columns, and their types: of a table whose key columns have names these and the
        fields of the value, else those of records.
        """
        return self._schema_of(None)

    def to_batches(self, *, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields record batches with partition, offset, timestamp, key, value and headers, or with
        these ``columns``. Of a typed log, ``value.price`` names a field of a struct, and no other
        is read. A table whose key columns have names has these and the fields of the value instead,
        unless columns of records are asked for.

        Memory holds the map and what is decoded of one object at a time.

        Raises:
            VersionExpiredError: the version expired while it was read.
            CorruptionError: the log needs an object that is gone or damaged.
            InvalidInputError: a column does not exist.
        """
        shown = self._shown(columns)
        for plan in self._plans:
            batches = table_batches(self._indexes, plan, columns=shown.paths)
            yield from batches if shown.rows is None else map(shown.of, batches)

    def _schema_of(self, columns: Sequence[str] | None) -> pa.Schema:
        return self._shown(columns).schema

    def _shown(self, columns: Sequence[str] | None) -> Shown:
        if self._rows is not None:
            of_rows = self._rows.shown(arrow_schema(self._typed), columns)
            if of_rows is not None:
                return of_rows
        paths = columns_asked(self._typed, columns)
        return Shown(read_schema(self._typed, paths), paths)

    def __len__(self) -> int:
        """Returns the number of rows; as far as they are not cleaned, their keys are read."""
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


def plan_changes(manifest: Manifest, partition: int, start: int, *, url: str) -> TablePlan:
    """Returns the plan of one partition's changes from the offset on, as far as all is decided."""
    check_start(manifest.head, partition, start, url=url)
    end = manifest.head.stable_offset(partition)
    order = ordering_of(manifest, partition)
    dirty = max(start, min(masked_below(manifest, partition)[0], end))
    clean = plan_range(manifest, partition, start, dirty, hidden=Hidden.SUPERSEDED)
    changed = plan_range(manifest, partition, dirty, end)
    # What came before may win over what came since, which then changed nothing.
    beside = plan_range(manifest, partition, 0, start) if order and (clean or changed) else ()
    version, log = manifest.version, manifest.head.log
    own = (partition, version, log.key_seed, log.schema, tuple(clean), tuple(changed))
    return TablePlan(*own, tombstones=True, later=tuple(beside), order=order)


def changes_batches(
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
    plans = [plan_changes(manifest, p, start, url=store.url) for p, start in starts.items()]
    for plan in plans:
        yield from table_batches(store, plan, columns=columns, map_bytes=map_bytes)


class Tables:
    """Tables of one log; ``seed`` is the log's."""

    def __init__(self, store: Store, *, seed: int) -> None:
        self._indexes = KeyIndexCache(store, seed=seed)
        self._last: tuple[Manifest, object, Table] | None = None
        self._pieces: defaultdict[int, KnownPieces] = defaultdict(KnownPieces)

    def at(
        self,
        manifest: Manifest,
        parts: Sequence[int],
        starts: Sequence[int],
        *,
        rows: TableColumns | None,
        origin: Callable[..., Table],
    ) -> Table:
        """Returns the table of these partitions at the manifest's version, without what lies below
        ``starts``, the log start offsets of now, by partition, as these ``rows``.
        """
        head = manifest.head
        asked, known = (parts, starts, rows), self._last
        if known is not None and known[0] is manifest and known[1] == asked:
            return known[2]
        plans = [plan_table(manifest, p, starts[p], self._pieces[p]) for p in parts]
        shown = {p: max(head.stable_offset(p), starts[p]) for p in parts}
        schema = manifest.head.log.schema
        own: dict[str, Any] = {"schema": schema, "rows": rows, "origin": origin}
        table = Table(self._indexes, manifest.version, plans, shown, **own)
        self._last = manifest, asked, table
        return table

    def changes(self, manifest: Manifest, ranges: Mapping[int, tuple[int, int]]) -> Table:
        """Returns what changed in the range of offsets of each partition."""
        url, schema = self._indexes.url, manifest.head.log.schema
        plans = [plan_changes(manifest, p, start, url=url) for p, (start, _) in ranges.items()]
        ends = {p: end for p, (_, end) in ranges.items()}
        return Table(self._indexes, manifest.version, plans, ends, schema=schema)


def small_view_batches(
    store: Store, plans: Sequence[TablePlan], *, columns: Sequence[str] = COLUMNS
) -> Iterator[pa.RecordBatch]:
    """Yields the views of plans of different partitions, in their order, as batches of these
    columns (`read_schema`). Memory holds all their rows, superseded ones too.
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
    for rows in table.to_batches():  # One, or none.
        partitions, offsets = (to_numpy(rows.column(name)) for name in ("partition", "offset"))
        order = np.lexsort((offsets, partitions))
        ordered, partitions = rows.take(to_arrow(order)), partitions[order]
        for plan in plans:
            start, end = np.searchsorted(partitions, [plan.partition, plan.partition + 1])
            latest = _latest(ordered.slice(int(start), int(end - start)), plan)
            if latest.num_rows:
                yield shaped(latest, wanted)


def _latest(rows: pa.RecordBatch, plan: TablePlan) -> pa.RecordBatch:
    """Returns the last row of each key, of a partition's rows."""
    rows = rows.filter(rows.column("key").is_valid())
    if plan.order is not None:
        rows = best_of(rows, plan.order, plan.seed)
    elif rows.num_rows:
        latest = LatestKeys(rows.num_rows)
        fingerprints = fingerprints_of(rows.column("key"), seed=plan.seed)
        taken = latest.put(fingerprints, to_numpy(rows.column("offset")))
        assert taken == rows.num_rows, "there is room for each row"
        rows = rows.take(to_arrow(latest.last_rows()))
    return rows if plan.tombstones else rows.filter(rows.column("value").is_valid())


def _last_of_key(words: Fingerprints, tied: Mask) -> Mask:
    """Returns which of the rows, in the order of their numbers, are the last of their key;
    ``tied``: rows that share the upper bits with the next one.
    """
    last = np.ones(len(words), np.bool_)
    np.logical_not(_equal(words[1:], words[:-1]), out=last[:-1])
    mixed = tied & last[:-1]
    if mixed.any():
        group = np.concatenate(([0], np.cumsum(~tied)))
        some = np.flatnonzero(np.isin(group, group[:-1][mixed]))
        order = some[np.lexsort((some, words[some, 1], words[some, 0]))]
        last[order[:-1]] = ~_equal(words[order[1:]], words[order[:-1]])
        last[order[-1]] = True
    return last


def _directory(numbers: _Numbers) -> NDArray[np.uint32]:
    """Returns, by uppermost bits, the first of the sorted numbers that has them or larger ones; the
    last one where none has.
    """
    buckets = 1 << len(numbers).bit_length()
    filled = np.bincount(_bucket(numbers, buckets), minlength=buckets)
    first = np.empty(buckets, np.uint32)
    np.cumsum(filled, dtype=np.uint32, out=first)
    np.subtract(first, filled, out=first, casting="unsafe")
    return np.minimum(first, np.uint32(len(numbers) - 1), out=first)


def _bucket(numbers: _Numbers, buckets: int) -> _Places:
    """Returns the uppermost bits of each; so many that there are ``buckets``, a power of two."""
    shifted: _Numbers = numbers >> np.uint64(65 - buckets.bit_length())
    return shifted.view(np.int64)


def _take(words: Fingerprints, rows: NDArray[np.integer]) -> Fingerprints:
    """Returns the rows, each in one step."""
    whole = np.ascontiguousarray(words).view(_WHOLE).ravel()
    return whole.take(rows.view(np.int64), mode="clip").view(np.uint64).reshape(-1, 2)


def _equal(some: Fingerprints, others: Fingerprints) -> Mask:
    equal: Mask = (some[:, 0] == others[:, 0]) & (some[:, 1] == others[:, 1])
    return equal
