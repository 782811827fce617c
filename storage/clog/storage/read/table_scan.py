"""Reading a table: the latest value of each key at one version, whatever the cleaner has or has not
done.

The part below the first dirty offset has each key once, so:

T1. Map the dirty part: key -> last offset, reading only its keys (`fingerprints`: 128 bits of
    each).
T2. Clean part: a record stays when the map does not know its key. Where there are masks
    (`table_plan`) no value is asked for whether it is a tombstone, and without a dirty part no key.
T3. Dirty part: exactly the records at the map's offsets stay. Objects without any are not read
    again. Their keys are kept from T1 if the budget has room for them beside the map
    (`kept_keys`).
T4. Tombstones go, and so do records without a key.

Where what is to be mapped has more keys than the map's budget, the plan is done *map-full by
map-full*: exact, in bounded memory, and records are delivered once, in offset order.

U1. Map the plan's own records from an offset on, until the map is full (`latest_keys`: of different
    keys).
U2. Read the keys of all that is dirty after them: the records that it finds are superseded.
U3. Deliver the others, and go on after the last one mapped.

So with R records of its own and room for C, the keys of the dirty part are read R/C + 2 times at
most, and memory is the map's and half of it again.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

import numpy as np
import pyarrow as pa

from clog.storage.commit.versions import file_missing
from clog.storage.keys.fingerprints import Fingerprints, fingerprints_of
from clog.storage.numpy_arrays import Offsets, to_arrow, to_numpy
from clog.storage.objects.typed_columns import shaped
from clog.storage.read.kept_keys import KeptKeys
from clog.storage.read.latest_keys import ROW_BYTES, LatestKeys
from clog.storage.read.scan import (
    COLUMNS,
    ReadPiece,
    pieces_from,
    presence_column,
    read_pieces,
    read_schema,
)
from clog.storage.read.table_plan import TablePlan
from clog.storage.store.base import Store

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
    try:
        rows = sum(piece.rows for piece in (*plan.dirty, *plan.later))
        latest = LatestKeys.within(map_bytes, rows=rows)
        # None where not all rows have room: those that leave it would not be found among the keys.
        keys = KeptKeys(map_bytes - rows * ROW_BYTES if "key" in columns else 0)
        if _map(store, (*plan.dirty, *plan.later), latest, plan.seed, keys) is None:
            batches = _of_one_map(store, plan, latest, columns, keys)
        else:
            batches = _of_many_maps(store, plan, latest, columns)
        for batch in batches:
            if batch.num_rows:
                yield shaped(batch, schema)
    except FileNotFoundError as e:
        raise file_missing(store, plan.version, e) from e


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
