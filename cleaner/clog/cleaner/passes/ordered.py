"""Passes over a partition in which the record with the highest order wins, not the last one (S56,
S57, `orders`): what they do in addition to the usual steps. ``tests/models/ordering.py`` has each
rule, and a history that breaks without it.

*The winner may be older.* After P1 the clean part is looked up (`completed`): it has at most one
row of each key of the map, which may beat those of the dirty part. Then the map has the winner of
each key, and all other rows of the key are superseded, wherever they are: judging compares offsets
alone. One map feeds a pass here.

*Tombstones* are removed only when no other record of their key is left (`SoleTombstones`). A
record that lost to one may be anywhere, and would come back: in what the pass covers, since the
pass may stop after the tombstone's group; beyond it; or appended since that was checked, for which
the commit looks once more (`SoleTombstones.left_alone`). So a tombstone to be removed is in the
clean part, where every key occurs once, and no record at or above the first dirty offset has its
key. Whatever lost to it is removed first, and the tombstone by a later pass.

*Late records.* A commit that removes tombstones leaves a pair of their highest order and the end
offset (`orders_removed`). A record at or above that offset with that order or a lower one is a
*suspect*: one of these tombstones may have been for its key. It is late if there is no other record
of its key, below the end of what the pass covers, that is not a suspect. Late records are counted;
where they are to be dropped, one commit decides that for all of them before anything else is
removed (`without_late`): afterwards nothing below that end is a suspect, and no record is removed
in favour of one that is dropped later. Readers show no suspect by itself until then, so no table
changes by it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from clog.cleaner.masks import offsets_of
from clog.cleaner.passes.judge import IndexFilter
from clog.cleaner.passes.offset_map import (
    KeyHasher,
    MappedRange,
    Ranking,
    build_map,
    empty_map,
)
from clog.cleaner.selection import PassPlan, PassStats, earliest_horizon_ms
from clog.cleaner.threads import CleanerThreads
from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import order_text
from clog.storage.env import dataclass
from clog.storage.format.chunks import Chunk, DeadMark, Replacement, read_bitmap, write_dead_rows
from clog.storage.format.commits import Commit, Edit
from clog.storage.format.manifest import Manifest, apply
from clog.storage.keys.latest import LatestKeys
from clog.storage.numpy_arrays import Mask, Offsets, scalar, to_numpy
from clog.storage.objects.orders import Pairs, decided, with_removed
from clog.storage.read.scan import (
    DELETE_HORIZON,
    Isolation,
    piece_of,
    plan_range,
    presence_column,
    read_pieces,
)
from clog.storage.readers import NOTHING_HELD, HeldTombstones
from clog.storage.store.contract import Store

TOMBSTONES_MAX = 1 << 20
"""The most tombstones that one pass removes; the next removes the others."""
_Words = npt.NDArray[np.uint64]


def completed(
    store: Store,
    plan: PassPlan,
    mapped: MappedRange,
    *,
    ranking: Ranking,
    hasher: KeyHasher,
    index_filter: IndexFilter,
    stats: PassStats,
) -> "SoleTombstones":
    """Adds to a ranked map what the clean part has of its keys, and counts late and tied records;
    returns which tombstones may be removed.
    """
    how: Any = {"ranking": ranking, "hasher": hasher}
    best = _ask_clean(store, plan, mapped, index_filter=index_filter, **how)
    sole = _sole_tombstones(store, plan, best, **how)
    stats.records_late += len(_late_offsets(mapped, best))
    stats.records_tied += best.ties
    return sole


def _ask_clean(
    store: Store,
    plan: PassPlan,
    mapped: MappedRange,
    *,
    ranking: Ranking,
    hasher: KeyHasher,
    index_filter: IndexFilter,
) -> LatestKeys:
    """Adds to the map the records of its keys below the first dirty offset; returns the map."""
    best = mapped.offset_map
    assert isinstance(best, LatestKeys), "only ranks compare orders"
    first, schema = plan.dirty[0], plan.manifest.head.log.schema
    start = plan.manifest.head.partitions.start[plan.partition]
    chunks = (c for s in plan.manifest.segments[plan.partition] for c in s.chunks)
    pieces = [
        piece_of(plan.partition, c, max(start, c.base), first, schema)
        for c in chunks
        if c.base < first
        and start < c.next
        and not c.aborted
        and not (c.next <= first and index_filter.holds_none(store, c))
    ]
    for batch in read_pieces(store, pieces, columns=ranking.columns("offset", "key")):
        rows = batch.filter(batch.column("key").is_valid())
        ranks, _ = ranking.of(rows)
        best.compare(hasher(rows.column("key")), to_numpy(rows.column("offset")), ranks)
    return best


@dataclass(frozen=True, slots=True, eq=False)
class SoleTombstones(HeldTombstones):
    """Which tombstones may be removed: those at ``offsets``, ascending, with their ``orders`` and
    the upper ``words`` of their keys' hashes; all others are held. ``asked_end``: up to where no
    other record has their keys.
    """

    held: HeldTombstones = NOTHING_HELD
    offsets: Offsets = field(default_factory=lambda: np.zeros(0, np.int64))
    orders: Offsets = field(default_factory=lambda: np.zeros(0, np.int64))
    words: _Words = field(default_factory=lambda: np.zeros(0, np.uint64))
    asked_end: int = 0

    def mask(self, offsets: Offsets, horizons_ms: Offsets) -> Mask:
        others: Mask = ~np.isin(offsets, self.offsets)
        return others | self.held.mask(offsets, horizons_ms)

    def between(self, after: int, last: int) -> "SoleTombstones":
        """Returns those at offsets in ``(after, last]``."""
        low, high = np.searchsorted(self.offsets, (after, last), side="right")
        some = slice(int(low), int(high))
        return replace(
            self, offsets=self.offsets[some], orders=self.orders[some], words=self.words[some]
        )

    def left_alone(self, store: Store, now: Manifest, partition: int, hasher: KeyHasher) -> bool:
        """Returns whether no record that came since has one of their keys."""
        words = np.sort(self.words)
        end = now.head.partitions.end[partition]
        return not any(
            np.isin(some, words).any()
            for some in _words_of(store, now, partition, (self.asked_end, end), hasher)
        )


def _sole_tombstones(
    store: Store, plan: PassPlan, best: LatestKeys, *, ranking: Ranking, hasher: KeyHasher
) -> SoleTombstones:
    """Returns the due tombstones that are the only records of their keys, going by the map."""
    p, manifest = plan.partition, plan.manifest
    end = manifest.head.partitions.end[p]
    found = [
        (rows, hasher(rows.column("key"))) for rows in _due(store, plan, ranking) if rows.num_rows
    ]
    none = SoleTombstones(held=plan.held, asked_end=end)
    if not found:
        return none
    hashes = np.concatenate([some for _, some in found])
    offsets = np.concatenate([to_numpy(rows.column("offset")) for rows, _ in found])
    orders = np.concatenate([ranking.order.values(rows) for rows, _ in found])
    alone = ~best.knows(hashes)
    alone[TOMBSTONES_MAX:] = False
    for some in _words_of(store, manifest, p, (best.latest_offset + 1, end), hasher):
        alone &= ~np.isin(hashes[:, 0], some)
    return replace(
        none, offsets=offsets[alone], orders=orders[alone], words=hashes[alone, 0].copy()
    )


def _due(store: Store, plan: PassPlan, ranking: Ranking) -> Iterator[pa.RecordBatch]:
    """Yields the tombstones of the clean part whose horizon has come."""
    p, manifest, first = plan.partition, plan.manifest, plan.dirty[0]
    schema, start = manifest.head.log.schema, manifest.head.partitions.start[p]
    columns = ranking.columns("offset", "key", presence_column("value", schema, ()), DELETE_HORIZON)
    for chunk in (c for s in plan.sealed for c in s.chunks if c.base < first and start < c.next):
        if chunk.aborted or not chunk.tombstones or not _may_be_due(chunk, plan.now_ms):
            continue
        piece = piece_of(p, chunk, max(start, chunk.base), first, schema)
        for batch in read_pieces(store, [piece], columns=columns):
            horizon = pc.fill_null(batch.column(DELETE_HORIZON), plan.now_ms + 1)
            due = pc.less_equal(horizon, scalar(plan.now_ms, pa.int64()))
            is_tombstone = pc.and_(batch.column("key").is_valid(), batch.column("value").is_null())
            yield batch.filter(pc.and_(due, is_tombstone))


def _may_be_due(chunk: Chunk, now_ms: int) -> bool:
    return 0 <= earliest_horizon_ms(chunk) <= now_ms


def _words_of(
    store: Store, manifest: Manifest, partition: int, span: tuple[int, int], hasher: KeyHasher
) -> Iterator[_Words]:
    """Yields the upper words of the hashes of keys in a range of offsets, undecided ones too."""
    pieces = plan_range(manifest, partition, *span, isolation=Isolation.UNCOMMITTED)
    for batch in read_pieces(store, pieces, columns=("offset", "key")):
        keys = batch.column("key").drop_null()
        if len(keys):
            yield hasher(keys)[:, 0]


def with_orders(edit: Edit, now: Manifest, partition: int, gone: SoleTombstones | None) -> Edit:
    """Returns the edit of a pass with the pairs that it leaves."""
    before = pairs = now.orders_removed_of(partition)
    if gone is not None and gone.offsets.size:
        pairs = with_removed(pairs, int(gone.orders.max()), now.head.partitions.end[partition])
    if partition in edit.first_dirty:
        pairs = decided(pairs, edit.first_dirty[partition])
    return edit if pairs == before else replace(edit, orders_removed={partition: pairs})


def without_late(
    handle: Handle,
    store: Store,
    plan: PassPlan,
    *,
    ranking: Ranking,
    hasher: KeyHasher,
    threads: CleanerThreads,
    stats: PassStats,
) -> PassPlan | None:
    """Drops the late records of the dirty part, as far as one map reaches, in one commit. Returns
    the plan at the version that this made, or the same plan if there is nothing to decide; None if
    another writer changed these chunks in the meantime.
    """
    if not _has_suspects(store, plan, ranking):
        return plan
    handle.refresh()
    plan = replace(plan, manifest=handle.manifest())
    p, manifest = plan.partition, plan.manifest
    offset_map = empty_map(manifest, p, plan.dirty, threads.map_bytes, is_ranked=True)
    index_filter = IndexFilter(manifest.head.log.key_seed, ())
    mapped = build_map(
        *(store, manifest, p, plan.dirty),
        offset_map=offset_map,
        hasher=hasher,
        stats=PassStats(),
        ranking=replace(ranking, stops=False),
    )
    how: Any = {"ranking": ranking, "hasher": hasher, "index_filter": index_filter}
    late = _late_offsets(mapped, _ask_clean(store, plan, mapped, **how))
    if not _commit_decided(handle, plan, mapped.end, late):
        return None
    stats.records_late += len(late)
    return replace(plan, manifest=handle.manifest())


def _has_suspects(store: Store, plan: PassPlan, ranking: Ranking) -> bool:
    if not ranking.pairs:
        return False
    pieces = plan_range(plan.manifest, plan.partition, *plan.dirty)
    batches = read_pieces(store, pieces, columns=ranking.columns("offset"))
    return any(ranking.of(batch)[1].any() for batch in batches)


def _late_offsets(mapped: MappedRange, best: LatestKeys) -> Offsets:
    """Returns the offsets of suspects whose keys have no other record, ascending."""
    parts = [
        offsets[(offsets < mapped.end) & ~best.counts(hashes)]
        for hashes, offsets in mapped.suspects
    ]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _commit_decided(handle: Handle, plan: PassPlan, covered: int, late: Offsets) -> bool:
    """Commits which records are late, and that nothing below ``covered`` is a suspect any more."""
    p, planned = plan.partition, plan.manifest
    touched = [
        c
        for s in planned.segments[p][:-1]
        for c in s.chunks
        if not c.aborted and np.searchsorted(late, c.base) < np.searchsorted(late, c.next)
    ]
    dead: list[DeadMark] = []
    emptied: list[Replacement] = []
    for chunk in touched:
        rows = np.isin(offsets_of(handle.store, chunk, planned.head.log.schema), late)
        if chunk.dead is not None:
            rows |= read_bitmap(handle.store, chunk.dead, chunk.rows)
        if rows.all():
            emptied.append(Replacement(p, chunk.base, chunk.next, (chunk.identity,), ()))
        else:
            since_ms = plan.now_ms if chunk.dead is None else chunk.dead.since_ms
            bits = write_dead_rows(
                *(handle.store, rows),
                since_ms=since_ms,
                stamp=planned.version,
                new_id=handle.ids.new_id,
            )
            dead.append(DeadMark(p, *chunk.identity, bits))

    def prepare(tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        now = handle.manifest()
        there = {c.identity: c for s in now.segments[p] for c in s.chunks}
        stay = all(c.is_but_for_its_mask(there.get(c.identity)) for c in touched)
        is_same = order_text(planned.head.config) == order_text(now.head.config)
        if not stay or not is_same or tip.head.may_be_swept(planned.version):
            return NothingToCommit()
        pairs: Mapping[int, Pairs] = {p: decided(now.orders_removed_of(p), covered)}
        edit = Edit(replace=tuple(emptied), dead=tuple(dead), orders_removed=pairs)
        apply(now, edit, commit_id="", time_ms=time_ms)  # If it does not fit, that is our bug.
        return edit

    return not isinstance(handle.commit(prepare, operation="clean"), NothingToCommit)
