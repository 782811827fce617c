"""Tables of logs in which the record with the highest order wins, not the last one (`orders`).

The dirty part is mapped as usual, and each key of the clean part, which occurs once in it, is
compared while it is delivered. If that is not enough, for a slice or with too many dirty keys:

O1. Map the plan's own rows, key -> highest order and its offset, until the map is full.
O2. Compare all other rows of the partition that may have these keys.
O3. Deliver the rows that are left, and continue after the last one mapped.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.keys.hashing import Fingerprints, fingerprints_of, key_bytes
from clog.storage.keys.key_index import index_hashes
from clog.storage.keys.latest import LatestKeys, Ranks, counted, ranks_of
from clog.storage.numpy_arrays import Offsets, of_bytes, to_arrow, to_numpy
from clog.storage.objects.orders import Ordering
from clog.storage.read.lookup import of_keys, pieces_of_keys
from clog.storage.read.scan import (
    KeyIndexCache,
    ReadPiece,
    Run,
    in_order,
    ordering_of,
    pieces_within,
    plan_range,
    presence_column,
    read_pieces,
)
from clog.storage.store.contract import Store

if TYPE_CHECKING:
    from clog.storage.format.manifest import Manifest
    from clog.storage.read.table import TablePlan

_ASKED_MAX: Final = 4096
"""For at most this many keys the rest of a partition is searched by its key indexes."""
Rows = tuple[Fingerprints, Offsets, Ranks]
"""For each row its key's fingerprint, its offset and its rank."""
Deliver = Callable[
    [Store, "TablePlan", Sequence[ReadPiece], Offsets, Sequence[str]], Iterator[pa.RecordBatch]
]


def ordered_batches(
    store: Store, plan: "TablePlan", at: Deliver, columns: Sequence[str], *, map_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yields the records shown by a plan with an order; ``at`` reads those at given offsets."""
    order, seed = plan.order, plan.seed
    assert order is not None, "else the last record wins"
    best = _map_of(plan.dirty, map_bytes)
    if (
        plan.later
        or plan.tombstones
        or _put_pieces(store, plan.dirty, best, order, seed)[0] is not None
    ):
        own = [*plan.clean, *plan.dirty]
        found = _winners(store, own, plan.later, order, seed=seed, map_bytes=map_bytes)
        for pieces, offsets in found:
            yield from at(store, plan, pieces, offsets, columns)
        return
    presence = presence_column("value", plan.schema, columns)
    needed = {*columns, "offset", "key", presence, order.column}
    for batch in read_pieces(store, plan.clean, columns=in_order(needed)):
        rows = batch.filter(batch.column("key").is_valid())
        words, offsets, ranks = _compared(rows, order, seed)
        best.compare(words, offsets, ranks)
        stays = to_arrow(~best.superseded(words, offsets))
        yield rows.filter(pc.and_(stays, rows.column("value").is_valid()))
    yield from at(store, plan, plan.dirty, best.counted_offsets(), columns)


def _map_of(pieces: Sequence[ReadPiece], map_bytes: int) -> LatestKeys:
    rows = sum(piece.rows for piece in pieces)
    return LatestKeys.within(map_bytes, rows=rows, is_ranked=True)


def _ordered_rows(
    store: Store, pieces: Sequence[ReadPiece], order: Ordering, seed: int
) -> Iterator[tuple[pa.Array, Rows]]:
    """Yields the keys in the pieces, and the data by which their rows are compared."""
    for batch in read_pieces(store, pieces, columns=in_order(["offset", "key", order.column])):
        rows = batch.filter(batch.column("key").is_valid())
        yield rows.column("key"), _compared(rows, order, seed)


def _compared(rows: pa.RecordBatch, order: Ordering, seed: int) -> Rows:
    """Returns the data by which rows with keys are compared."""
    orders, offsets = order.values(rows), to_numpy(rows.column("offset"))
    words = fingerprints_of(rows.column("key"), seed=seed)
    return words, offsets, ranks_of(orders, ~order.suspects(orders, offsets))


def _put_pieces(
    store: Store, pieces: Sequence[ReadPiece], best: LatestKeys, order: Ordering, seed: int
) -> tuple[int | None, list[pa.Array]]:
    """Does O1; returns the first offset without room (None: all fit), and the keys, if few."""
    keys: list[pa.Array] = []
    few = sum(piece.rows for piece in pieces) <= _ASKED_MAX
    for some, rows in _ordered_rows(store, pieces, order, seed):
        taken = best.put(*rows)
        if few:
            keys.append(key_bytes(some))
        if taken < len(rows[1]):
            return int(rows[1][taken]), keys
    return None, keys


def _winners(
    store: Store,
    own: Sequence[ReadPiece],
    beside: Sequence[ReadPiece],
    order: Ordering,
    *,
    seed: int,
    map_bytes: int,
) -> Iterator[tuple[list[ReadPiece], Offsets]]:
    """Yields own pieces with their offsets that win over all, also over ``beside`` (O1 to O3)."""
    best = _map_of(own, map_bytes)
    rest = [piece for piece in own if piece.rows]
    while rest:
        best.clear()
        full_at, keys = _put_pieces(store, rest, best, order, seed)
        before = pieces_within(own, 0, rest[0].start)
        others = [*beside, *before, *([] if full_at is None else pieces_within(rest, full_at))]
        if keys:
            wanted = pa.concat_arrays(keys).unique().to_pylist()
            others = list(pieces_of_keys(store, others, wanted, seed))
        for _, rows in _ordered_rows(store, others, order, seed):
            best.compare(*rows)
        yield rest, best.counted_offsets()
        rest = [] if full_at is None else pieces_within(rest, full_at)


def best_of_keys(
    indexes: KeyIndexCache, runs: Sequence[Run], keys: Sequence[bytes], plan: "TablePlan"
) -> Iterator[pa.RecordBatch]:
    """Yields the winning record of each of the keys (their canonical bytes) in the pieces of a plan
    and those beside it, including tombstones, as batches of `read_schema`; leaves out winners
    beside the plan, which come before its own pieces.
    """
    assert plan.order is not None, "else the last record wins"
    own = [*plan.clean, *plan.dirty]
    start = own[0].start if own and plan.later else 0
    wanted = of_bytes(list(set(keys)))
    hashes = index_hashes(wanted, seed=indexes.seed)
    found: list[pa.RecordBatch] = []
    for run in runs:
        for hit in indexes.hits(run, hashes):
            parts = hit.parts(np.ones(len(hit.numbers), np.bool_))
            found += [of_keys(batch, wanted) for batch in read_pieces(indexes, parts)]
    if not any(batch.num_rows for batch in found):
        return
    for batch in pa.Table.from_batches(found).combine_chunks().to_batches():
        rows = best_of(batch, plan.order, indexes.seed)
        yield rows.filter(to_arrow(to_numpy(rows.column("offset")) >= start))


def best_of(rows: pa.RecordBatch, order: Ordering, seed: int) -> pa.RecordBatch:
    """Returns the winning row of each key among rows of a partition that have keys."""
    best = LatestKeys(max(1, rows.num_rows), is_ranked=True)
    best.put(*_compared(rows, order, seed))
    shown = to_arrow(best.counted_offsets())
    return rows.filter(pc.is_in(rows.column("offset"), value_set=shown))


def late_keys(store: Store, manifest: "Manifest") -> dict[int, pa.Array]:
    """Returns the keys (their canonical bytes), by partition, of which no record counts, because
    all are late, and late ones are dropped. Memory holds the keys of suspects.
    """
    found, seed = {}, manifest.head.log.key_seed
    for p in {p for p, _, _ in manifest.orders_removed}:
        order, end = ordering_of(manifest, p), manifest.head.stable_offset(p)
        if order is None or not order.removed:
            continue
        late: set[bytes] = set()
        suspects = plan_range(manifest, p, order.removed[0][1], end)
        for keys, (_, _, ranks) in _ordered_rows(store, suspects, order, seed):
            late.update(key_bytes(keys.filter(to_arrow(~counted(ranks)))).to_pylist())
        everything = plan_range(manifest, p, 0, end) if late else []
        for keys, (_, _, ranks) in _ordered_rows(store, everything, order, seed):
            late.difference_update(key_bytes(keys.filter(to_arrow(counted(ranks)))).to_pylist())
        if late:
            found[p] = of_bytes(list(late))
    return found


def without_keys(rows: pa.RecordBatch, keys: pa.Array | None) -> pa.RecordBatch:
    """Returns the rows without those that have one of the keys (their canonical bytes)."""
    if keys is None:
        return rows
    known = rows.column("key").is_valid()
    has = pc.and_(known, pc.is_in(key_bytes(rows.column("key")), value_set=keys))
    return rows.filter(pc.invert(has))
