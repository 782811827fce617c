"""Tables of logs in which the record with the highest order wins, not the last one (`orders`).

The dirty part is mapped as usual, and each key of the clean part, which occurs once in it, is
compared while it is delivered. If that is not enough, for a slice or with too many dirty keys:

O1. Map the plan's own rows, key -> highest order and its offset, until the map is full.
O2. Compare all other rows of the partition that may have these keys.
O3. Deliver the rows that are left, and continue after the last one mapped.

The map (`BestKeys`) keeps the row with the highest order of each key, and of equals the last one.
It sorts its rows when it is queried or full. It is also compared with rows elsewhere: one that
beats an entry removes it, and one that is no suspect lets the rows of its key count. A row takes
`ROW_BYTES`, and temporarily half of that again.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clog.storage.keys.hashing import Fingerprints, fingerprints_of, key_bytes
from clog.storage.keys.key_index import index_hashes
from clog.storage.numpy_arrays import Mask, Offsets, of_bytes, to_arrow, to_numpy
from clog.storage.objects.orders import Ordering
from clog.storage.read.lookup import of_keys, pieces_of_keys
from clog.storage.read.scan import (
    KeyIndexCache,
    ReadPiece,
    Run,
    cut,
    in_order,
    ordering_of,
    pieces_from,
    plan_range,
    presence_column,
    read_pieces,
)
from clog.storage.store.contract import Store

if TYPE_CHECKING:
    from clog.storage.format.manifest import Manifest
    from clog.storage.read.table import TablePlan

ROW_BYTES: Final = 48
_ASKED_MAX: Final = 4096
"""For at most this many keys the rest of a partition is searched by its key indexes."""
_COUNTS, _BEATEN = 1, 2
_HIGHEST_BYTE: Final = 7 if sys.byteorder == "little" else 0
Rows = tuple[Fingerprints, Offsets, Offsets, Mask]
"""For each row its key's fingerprint, its order and offset, and whether it is no suspect."""
Deliver = Callable[
    [Store, "TablePlan", Sequence[ReadPiece], Offsets, Sequence[str]], Iterator[pa.RecordBatch]
]


class BestKeys:
    """Fingerprints of keys -> the offset of the highest order, for a bounded number of rows."""

    __slots__ = ("_flags", "_is_settled", "_offsets", "_orders", "_rows", "_words")

    def __init__(self, room: int) -> None:
        self._words = np.empty((room, 2), np.uint64)
        self._orders = np.empty(room, np.int64)
        self._offsets = np.empty(room, np.int64)
        self._flags = np.empty(room, np.uint8)
        self.clear()

    @classmethod
    def within(cls, memory_bytes: int, *, rows: int) -> Self:
        """Makes a map for that many rows, or for as many as fit into the memory."""
        return cls(max(1, min(memory_bytes // ROW_BYTES, rows)))

    def clear(self) -> None:
        """Forgets everything."""
        self._rows, self._is_settled = 0, True

    def put(self, rows: Rows) -> int:
        """Adds rows in their order until there is no room, and returns how many it added."""
        words, orders, offsets, counts = rows
        room, taken = len(self._offsets), 0
        while taken < len(offsets):
            if self._rows == room:
                self._settle()
                if 4 * self._rows > 3 * room:
                    break
            some = slice(taken, min(len(offsets), taken + room - self._rows))
            here = slice(self._rows, self._rows + some.stop - taken)
            self._words[here], self._orders[here] = words[some], orders[some]
            self._offsets[here], self._flags[here] = offsets[some], counts[some] * _COUNTS
            self._rows, self._is_settled, taken = here.stop, False, some.stop
        return taken

    def ask(self, rows: Rows) -> None:
        """Compares its rows with others, which may beat them."""
        words, orders, offsets, counts = rows
        at, known = self._find(words)
        at, orders, offsets = at[known], orders[known], offsets[known]
        self._flags[at[counts[known]]] |= _COUNTS
        self._flags[at[self._loses(at, orders, offsets)]] |= _BEATEN

    def beats(self, words: Fingerprints, orders: Offsets, offsets: Offsets) -> Mask:
        """Returns which of such rows lose to its own."""
        at, known = self._find(words)
        found: Mask = known & ~self._loses(at, orders, offsets)
        return found

    def best_offsets(self) -> Offsets:
        """Returns the offsets of the winning rows, ascending."""
        self._settle()
        found: Offsets = self._offsets[: self._rows][self._flags[: self._rows] == _COUNTS]
        found.sort()
        return found

    def _loses(self, at: NDArray[np.intp], orders: Offsets, offsets: Offsets) -> Mask:
        if not self._rows:
            return np.ones(len(at), np.bool_)
        mine = self._orders.take(at)
        loses: Mask = (mine < orders) | ((mine == orders) & (self._offsets.take(at) < offsets))
        return loses

    def _settle(self) -> None:
        """Keeps the best row of each key, for one part of the words at a time to bound memory."""
        if self._is_settled:
            return
        into = BestKeys(len(self._offsets))
        part_of = self._words.view(np.uint8)[: self._rows, _HIGHEST_BYTE] >> 4
        kept = 0
        for part in np.unique(part_of):
            rows = np.flatnonzero(part_of == part)
            words = self._words.take(rows, axis=0)
            by = self._offsets.take(rows), self._orders.take(rows), words[:, 1], words[:, 0]
            order = np.lexsort(by)
            rows, words = rows.take(order), words.take(order, axis=0)
            ends = np.flatnonzero(np.append((words[1:] != words[:-1]).any(axis=1), True))
            here, best = slice(kept, kept + len(ends)), rows.take(ends)
            into._words[here] = words.take(ends, axis=0)
            into._orders[here], into._offsets[here] = (
                column.take(best) for column in (self._orders, self._offsets)
            )
            flags = self._flags.take(rows)
            into._flags[here] = np.bitwise_or.reduceat(flags, np.append(0, ends[:-1] + 1))
            kept = here.stop
        self._words, self._orders = into._words, into._orders
        self._offsets, self._flags = into._offsets, into._flags
        self._rows, self._is_settled = kept, True

    def _find(self, words: Fingerprints) -> tuple[NDArray[np.intp], Mask]:
        """Returns where each key is, and whether it exists."""
        self._settle()
        if not self._rows:
            return np.zeros(len(words), np.intp), np.zeros(len(words), np.bool_)
        first = self._words[: self._rows, 0]
        at = np.searchsorted(first, words[:, 0])
        at[at == self._rows] = 0
        known = (self._words.take(at, axis=0) == words).all(axis=1)
        # Other keys may share the first word: then they are the next ones.
        on = np.flatnonzero(~known & (first.take(at) == words[:, 0]))
        while on.size:
            at[on] += 1
            on = on[at[on] < self._rows]
            known[on] = (self._words.take(at[on], axis=0) == words[on]).all(axis=1)
            on = on[~known[on] & (first.take(at[on]) == words[on, 0])]
        at[at == self._rows] = 0
        return at, known


def ordered_batches(
    store: Store, plan: "TablePlan", at: Deliver, columns: Sequence[str], *, map_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yields the records shown by a plan with an order; ``at`` reads those at given offsets."""
    order, seed = plan.order, plan.seed
    assert order is not None, "else the last record wins"
    best = BestKeys.within(map_bytes, rows=sum(piece.rows for piece in plan.dirty))
    if plan.later or _put_pieces(store, plan.dirty, best, order, seed)[0] is not None:
        own = [*plan.clean, *plan.dirty]
        found = _winners(store, own, plan.later, order, seed=seed, map_bytes=map_bytes)
        for pieces, offsets in found:
            yield from at(store, plan, pieces, offsets, columns)
        return
    presence = presence_column("value", plan.schema, columns)
    needed = {*columns, "offset", "key", presence, order.column}
    for batch in read_pieces(store, plan.clean, columns=in_order(needed)):
        rows = batch.filter(batch.column("key").is_valid())
        words, orders, offsets, counts = _compared(rows, order, seed)
        stays = ~best.beats(words, orders, offsets)
        best.ask((words, orders, offsets, counts))
        yield rows.filter(pc.and_(to_arrow(stays), rows.column("value").is_valid()))
    yield from at(store, plan, plan.dirty, best.best_offsets(), columns)


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
    return words, orders, offsets, ~order.suspects(orders, offsets)


def _put_pieces(
    store: Store, pieces: Sequence[ReadPiece], best: BestKeys, order: Ordering, seed: int
) -> tuple[int | None, list[pa.Array]]:
    """Does O1; returns the first offset without room (None: all fit), and the keys, if few."""
    keys: list[pa.Array] = []
    few = sum(piece.rows for piece in pieces) <= _ASKED_MAX
    for some, rows in _ordered_rows(store, pieces, order, seed):
        taken = best.put(rows)
        if few:
            keys.append(key_bytes(some))
        if taken < len(rows[2]):
            return int(rows[2][taken]), keys
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
    best = BestKeys.within(map_bytes, rows=sum(piece.rows for piece in own))
    rest = [piece for piece in own if piece.rows]
    while rest:
        best.clear()
        full_at, keys = _put_pieces(store, rest, best, order, seed)
        before = [
            cut(p, p.start, min(p.end, rest[0].start)) for p in own if p.start < rest[0].start
        ]
        others = [*beside, *before, *([] if full_at is None else pieces_from(rest, full_at))]
        if keys:
            wanted = pa.concat_arrays(keys).unique().to_pylist()
            others = list(pieces_of_keys(store, others, wanted, seed))
        for _, rows in _ordered_rows(store, others, order, seed):
            best.ask(rows)
        yield rest, best.best_offsets()
        rest = [] if full_at is None else pieces_from(rest, full_at)


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
    best = BestKeys(max(1, rows.num_rows))
    best.put(_compared(rows, order, seed))
    shown = to_arrow(best.best_offsets())
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
        for keys, (_, _, _, counts) in _ordered_rows(store, suspects, order, seed):
            late.update(key_bytes(keys.filter(to_arrow(~counts))).to_pylist())
        everything = plan_range(manifest, p, 0, end) if late else []
        for keys, (_, _, _, counts) in _ordered_rows(store, everything, order, seed):
            late.difference_update(key_bytes(keys.filter(to_arrow(counts))).to_pylist())
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
