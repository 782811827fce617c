"""P2: what is dead in each sealed segment (S21, S23), and whether each removed row may be removed.

*Judging* reads only what can be dead, and of that only the keys; values only where tombstones may
be removed, or get their horizon while their chunk is marked. By their offsets alone it judges
chunks in the range of the last map. Control records and records of aborted transactions (S22, S24)
are not rows here.

*The recheck* looks at each row that is about to be left out, as it was read, using nothing of
judging but the map: a fault in masks or row numbers could drop a live row while every sum is right.
If it fails, nothing is committed, and the partition is uncleanable (S28).

*Index filter*: which clean chunks hold none of the keys of a map, by their objects' key indexes,
which have no false negatives: of a chunk for which it says "none", no row is superseded.

cleaner/PASS.md says what is checked, why that is enough, and what it costs.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from enum import StrEnum
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.cleaner.passes.offset_map import FoundDead, KeyHasher, KeyMap, MappedRange
from clog.cleaner.selection import earliest_horizon_ms
from clog.cleaner.threads import ALONE, CleanerThreads
from clog.storage.env import dataclass
from clog.storage.errors import CorruptionError
from clog.storage.format.chunks import Chunk, Segment
from clog.storage.format.documents import NONE
from clog.storage.format.log_info import LogSchema
from clog.storage.keys.key_index import IndexHashes, distinct, index_hashes
from clog.storage.numpy_arrays import Mask, Offsets, scalar, to_arrow, to_numpy
from clog.storage.read.scan import (
    DELETE_HORIZON,
    open_run,
    piece_of,
    presence_column,
    read_pieces,
    stored_index,
)
from clog.storage.readers import NOTHING_HELD, HeldTombstones
from clog.storage.store.contract import Store, ahead

KEYS_MAX = 1 << 20
"""The most distinct dirty keys that are noted: 8 MiB."""
IN_VAIN_MAX = 4
"""The most answers "maybe" in excess of those that say "none"."""


class IndexFilter:
    """The keys of one map, and the answers about them.

    Args:
        seed: the log's.
        chunks: those that it may be asked about; if none has an index, nothing is noted.

    Attributes:
        count: the number of chunks found to hold none.
    """

    def __init__(self, seed: int, chunks: Iterable[Chunk]) -> None:
        self._seed = seed
        self._is_wanted = any(c.object.index_bytes for c in chunks)
        self._lock = threading.Lock()
        self._in_vain = 0
        self.count = 0
        self.begin()

    def begin(self) -> None:
        """Forgets the keys, to make room for those of another map."""
        self._noted: IndexHashes | None = np.zeros(0, np.uint64) if self._is_wanted else None
        self._fresh: list[IndexHashes] = []
        self._fresh_keys = 0

    def note(self, keys: pa.Array) -> None:
        """Adds keys of the map; several threads may call it."""
        if self._notes_nothing:
            return
        hashes = index_hashes(keys, seed=self._seed)
        with self._lock:
            if not self._notes_nothing:
                self._fresh.append(hashes)
                self._fresh_keys += len(keys)
                if self._fresh_keys > KEYS_MAX:
                    self._merge()

    @property
    def _notes_nothing(self) -> bool:
        return self._noted is None

    def holds_none(self, store: Store, chunk: Chunk) -> bool:
        """Returns whether it is certain that no key of the map is in the chunk; one request."""
        with self._lock:
            if self._fresh:
                self._merge()
        asks = chunk.object.index_bytes and self._in_vain <= IN_VAIN_MAX + self.count
        if self._noted is None or not asks:
            return False
        index = stored_index(store, chunk.object)
        is_in_vain = index is None or index.may_hold_any(self._noted)
        with self._lock:
            self._in_vain += is_in_vain
            self.count += not is_in_vain
        return not is_in_vain

    def _merge(self) -> None:
        assert self._noted is not None, "fresh keys are merged before they are too many"
        merged = distinct(np.concatenate((self._noted, *self._fresh)))
        self._noted = merged if len(merged) <= KEYS_MAX else None
        self._fresh, self._fresh_keys = [], 0


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What becomes of each row, and how many are dropped for which reason.

    Attributes:
        keep: rows that stay.
        new_horizon: kept tombstones whose delete horizon this pass sets: the latest of their key,
            mapped, and without a horizon so far (S23).
        expired: tombstones, latest of their key, that are dropped because their horizon has come.
        superseded: rows that are dropped because the map has a higher offset for their key.
        invalid: rows that are dropped because they have no key.
    """

    keep: Mask
    new_horizon: Mask
    expired: Mask
    superseded: int
    invalid: int

    @property
    def expired_tombstones(self) -> int:
        """The number of rows that are `expired`."""
        return int(np.count_nonzero(self.expired))

    @property
    def dropped(self) -> int:
        """The number of rows that are dropped."""
        return self.superseded + self.expired_tombstones + self.invalid


def decide_retention(
    *,
    offsets: Offsets,
    superseded: Mask,
    key_valid: Mask,
    is_tombstone: Mask,
    delete_horizon_ms: Offsets,
    latest_offset: int,
    now_ms: int,
    held: HeldTombstones = NOTHING_HELD,
) -> Verdict:
    """Decides for each row; the first line that fits counts (S21, S23)::

        offset > map's last offset                    keep    unknown, even without a key
        no key                                        drop    invalid
        map has a higher offset for the key           drop    superseded
        tombstone, horizon come, held by a reader     keep
        tombstone, horizon set and now_ms >= horizon  drop    expired tombstone
        tombstone, horizon not set                    keep    and set it
        anything else                                 keep

    A tombstone is a row with a key and a null value; an empty value is a value. So a tombstone
    survives the first pass that sees it as the latest of its key, whatever the clock says, and a
    horizon is never set again.

    Args:
        offsets: those of the rows, in any order.
        superseded: whether the map has a higher offset for the row's key.
        key_valid: whether the row has a key.
        is_tombstone: whether the row's value is null.
        delete_horizon_ms: set by an earlier pass; -1 if none was.
        latest_offset: the last offset that the map covers.
        now_ms: time of the pass.
        held: tombstones that readers hold back (S64).
    """
    mapped = offsets <= latest_offset
    invalid = mapped & ~key_valid
    latest_tombstone = mapped & key_valid & is_tombstone & ~superseded
    is_set = delete_horizon_ms >= 0
    expired = latest_tombstone & is_set & (delete_horizon_ms <= now_ms)
    if held != NOTHING_HELD:
        expired &= ~held.mask(offsets, delete_horizon_ms)
    return Verdict(
        keep=~(invalid | superseded | expired),
        new_horizon=latest_tombstone & ~is_set,
        expired=expired,
        superseded=int(np.count_nonzero(superseded)),
        invalid=int(np.count_nonzero(invalid)),
    )


_ALL_ROWS = 4096
_ONE_OF = 32
_ASKED_ROWS = 1 << 14
"""This many keys are looked up together: a call costs more than a few of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Unexplained:
    """Rows that are removed for a reason that only their keys can show."""

    offsets: Offsets
    keys: pa.Array


class Recheck:
    """The recheck of one pass, for all threads that work on it.

    Args:
        offset_map: the last of the pass.
        mapped: the range that it covers.
        hasher: makes the hashes of all.
        log_start: below it all is dead (S37).
        now_ms: the pass's start.
        held: tombstones that readers hold back.
    """

    def __init__(
        self,
        offset_map: KeyMap,
        mapped: MappedRange,
        hasher: KeyHasher,
        *,
        log_start: int,
        now_ms: int,
        held: HeldTombstones = NOTHING_HELD,
    ) -> None:
        self._map = offset_map
        self._mapped = mapped
        self._hasher = hasher
        self._log_start = log_start
        self._now_ms = now_ms
        self._held = held
        self._lock = threading.Lock()
        self._by_offset = 0
        self._seen = 0
        self._latest = 0

    def unexplained(
        self, rows: pa.RecordBatch, gone: Mask, found: Mask | None = None
    ) -> Unexplained:
        """Returns the removed rows to be looked up by key: unexplained ones, and the sample."""
        places, by_offset = self._without_keys(rows, gone, found)
        places = np.concatenate((self._sample(by_offset), places))
        offsets = to_numpy(rows.column("offset")).take(places)
        return Unexplained(offsets, rows.column("key").take(to_arrow(places)))

    def check_unread(self, partition: int, rows: pa.RecordBatch, gone: Mask) -> None:
        """Checks removed rows of the range of which no key was read; otherwise like `check`."""
        places, _ = self._without_keys(rows, gone, None)
        if places.size:
            raise _alive(partition, rows.column("offset")[int(places[0])].as_py())

    def check_keys(self, partition: int, rows: Sequence[Unexplained]) -> None:
        """Checks that the map has a higher offset for each key that is not null."""
        if not rows:
            return
        offsets = np.concatenate([some.offsets for some in rows])
        keys = pa.concat_arrays([some.keys for some in rows])
        if keys.null_count:
            offsets, keys = offsets[to_numpy(keys.is_valid())], keys.drop_null()
        dead = self._map.superseded(self._hasher(keys), offsets)
        if not dead.all():
            raise _alive(partition, int(offsets[~dead].min()))

    def count(self, offsets: Offsets, key_valid: Mask, latest: Mask) -> None:
        """Counts the rows of the range that have a key, and those that the map has as the latest of
        theirs.
        """
        in_range = (self._mapped.start <= offsets) & (offsets < self._mapped.end)
        self.count_chunk(
            int(np.count_nonzero(key_valid & in_range)), int(np.count_nonzero(latest & in_range))
        )

    def count_chunk(self, rows: int, latest: int) -> None:
        """Adds such counts of a chunk that is in the range."""
        with self._lock:
            self._seen += rows
            self._latest += latest

    def check_range(self, partition: int) -> None:
        """Compares the counts with the map, after all of its range was judged."""
        where = f"[{self._mapped.start}, {self._mapped.end}) of partition {partition}"
        if self._seen != self._mapped.records:
            raise CorruptionError(
                f"{self._seen} records with a key were judged in {where}, but the map was built"
                f" from {self._mapped.records}; the pass stops here"
            )
        if self._latest != (latest := self._mapped.latest_judged()):
            raise CorruptionError(
                f"there are {latest} keys in {where}, but {self._latest} of their"
                " records would have been kept; the pass stops here"
            )

    def _without_keys(
        self, rows: pa.RecordBatch, gone: Mask, found: Mask | None
    ) -> tuple[Offsets, Offsets]:
        """Returns which rows are removed whatever their keys, and which by their offsets."""
        places = np.flatnonzero(gone if found is None else gone & ~found)
        offsets = to_numpy(rows.column("offset")).take(places)
        if offsets.size and offsets[0] < self._log_start:
            below = int(np.searchsorted(offsets, self._log_start))
            places, offsets = places[below:], offsets[below:]
        outdated = self._mapped.is_outdated(offsets)
        if outdated.all():
            return places[:0], places
        by_offset, places = places.compress(outdated), places.compress(~outdated)
        if DELETE_HORIZON in rows.schema.names and places.size:
            horizon = to_numpy(
                pc.fill_null(rows.column(DELETE_HORIZON), scalar(self._now_ms + 1, pa.int64()))
            )
            expired = to_numpy(rows.column("value").is_null()) & (horizon <= self._now_ms)
            if self._held != NOTHING_HELD:
                expired = expired & ~self._held.mask(to_numpy(rows.column("offset")), horizon)
            places = places[~expired.take(places)]
        return places, by_offset

    def _sample(self, by_offset: Offsets) -> Offsets:
        """Returns which of the rows that are removed by their offsets are also looked up."""
        with self._lock:
            before, self._by_offset = self._by_offset, self._by_offset + len(by_offset)
        all_of = max(0, _ALL_ROWS - before)
        return np.concatenate((by_offset[:all_of], by_offset[all_of::_ONE_OF]))


class GroupRecheck:
    """The recheck of the rows that are removed from one group, for all threads that work on it.

    Args:
        recheck: that of the pass.
        partition: theirs.
    """

    def __init__(self, recheck: Recheck, partition: int) -> None:
        self._recheck = recheck
        self._partition = partition
        self._lock = threading.Lock()
        self._waiting: list[Unexplained] = []

    def check(self, rows: pa.RecordBatch, gone: Mask, found: Mask | None = None) -> None:
        """Checks rows that are removed, some of them only in `finish`: offset and key, value and
        `DELETE_HORIZON` where tombstones may be removed.

        Args:
            rows: in offset order.
            gone: which of them are removed.
            found: which of them an earlier map of the pass found superseded.
        """
        some = self._recheck.unexplained(rows, gone, found)
        with self._lock:
            self._waiting.append(some)
            if sum(len(waiting.offsets) for waiting in self._waiting) < _ASKED_ROWS:
                return
            asked, self._waiting = self._waiting, []
        self._recheck.check_keys(self._partition, asked)

    def finish(self) -> None:
        """Checks what `check` left, before the group is committed, once all threads are done."""
        asked, self._waiting = self._waiting, []
        self._recheck.check_keys(self._partition, asked)


def _alive(partition: int, offset: int) -> CorruptionError:
    return CorruptionError(
        f"the record at offset {offset} of partition {partition} would have been removed, but it"
        " is not known to be dead; nothing was changed"
    )


_KEYS_SHARE = 4
"""About this share (1/4) of an object's bytes is fetched and held to judge its keys."""
_FEW = 4
"""If less than one row in this many goes, the chunk may only be marked (`rewriter`), and is not
read again: the recheck looks those rows up here.
"""


@dataclass(slots=True)
class Removed:
    """How many rows are removed, and why. ``last_expired`` is the highest offset of a tombstone
    removed because its horizon has come, or -1 (S41): a superseded one hides no delete.
    """

    superseded: int = 0
    expired: int = 0
    without_key: int = 0
    trimmed: int = 0
    last_expired: int = NONE

    @property
    def total(self) -> int:
        return self.superseded + self.expired + self.without_key + self.trimmed


class Action(StrEnum):
    """What a pass does with a chunk: leave it, mark its dead rows, or rewrite it."""

    KEEP = "keep"
    MARK = "mark"
    REWRITE = "rewrite"


@dataclass(frozen=True, slots=True, eq=False)
class JudgedChunk:
    """A chunk and what becomes of its rows, except those that were dead before.

    ``keep`` is None if all rows stay or none does; ``new_horizon`` says which tombstones get their
    horizon in this pass, None if none do. In an ``undated`` chunk all tombstones that stay do, and
    which these are was not read. ``action`` is decided by `rewriter`.
    """

    chunk: Chunk
    removed: Removed = field(default_factory=Removed)
    keep: Mask | None = None
    new_horizon: Mask | None = None
    undated: bool = False
    action: Action = Action.KEEP

    @property
    def rows_left(self) -> int:
        return self.chunk.live_rows - self.removed.total

    @property
    def size_bytes_left(self) -> int:
        """Record bytes of what stays, estimated by the share of rows: only keys were read."""
        return self.chunk.size_bytes * self.rows_left // self.chunk.rows

    @property
    def sets_horizons(self) -> bool:
        return self.undated or self.new_horizon is not None


@dataclass(frozen=True, slots=True, eq=False)
class JudgedSegment:
    """A segment and what becomes of its chunks."""

    segment: Segment
    chunks: tuple[JudgedChunk, ...]

    @property
    def size_bytes_left(self) -> int:
        """Record bytes of what stays, estimated."""
        return sum(c.size_bytes_left for c in self.chunks)


@dataclass(frozen=True, slots=True)
class Judge:
    """Decides on records.

    Args:
        offset_map: the last of the pass.
        mapped: the range that it covers.
        found: what the earlier maps found, in ranges before its own.
        hasher: makes the hashes of all.
        log_start: below it all is dead (S37).
        first_dirty: where the last complete pass ended: every tombstone below it has its horizon.
        now_ms: the pass's start.
        index_filter: knows chunks below ``first_dirty`` that hold none of the map's keys.
        schema: the log's.
        held: tombstones that readers hold back.
        threads: judge the next chunks ahead.

    Attributes:
        recheck: is given the rows that stay.
    """

    offset_map: KeyMap
    mapped: MappedRange
    found: FoundDead
    hasher: KeyHasher
    log_start: int
    first_dirty: int
    now_ms: int
    index_filter: IndexFilter
    schema: LogSchema | None = None
    held: HeldTombstones = NOTHING_HELD
    threads: CleanerThreads = ALONE
    recheck: Recheck = field(init=False)

    def __post_init__(self) -> None:
        recheck = Recheck(
            *(self.offset_map, self.mapped, self.hasher),
            log_start=self.log_start,
            now_ms=self.now_ms,
            held=self.held,
        )
        object.__setattr__(self, "recheck", recheck)

    def judge_segment(
        self,
        store: Store,
        partition: int,
        segment: Segment,
        action: Callable[[JudgedChunk], Action],
    ) -> JudgedSegment:
        """Judges all chunks of a segment, and decides what becomes of them; requests for the next
        ones are made ahead.
        """
        chunks = segment.chunks
        sizes = [c.object.size_bytes * c.rows // (c.object.rows * _KEYS_SHARE) for c in chunks]
        begun = (partial(self._opened, store, partition, c) for c in chunks)
        opened = ahead(store, zip(begun, sizes, strict=True))
        with self.threads.in_turn(zip(opened, sizes, strict=True)) as turns:
            judged = [turn() for turn in turns]
        decided = (replace(c, action=action(c)) for c in judged)
        return JudgedSegment(segment, tuple(self._dated(store, partition, c) for c in decided))

    def _dated(self, store: Store, partition: int, c: JudgedChunk) -> JudgedChunk:
        """Returns the chunk; one that is to be marked, with its tombstones."""
        if not (c.undated and c.action is Action.MARK):
            return c
        assert c.keep is not None, "a marked chunk keeps some rows and loses others"
        piece = piece_of(partition, c.chunk, c.chunk.base, c.chunk.next, self.schema)
        columns = ("offset", presence_column("value", self.schema, ()))
        batches = read_pieces(store, [piece], columns=columns)
        tombstone = np.concatenate([to_numpy(b.column("value").is_null()) for b in batches])
        self._check_rows(partition, c.chunk, len(tombstone))
        new_horizon = tombstone & c.keep
        return replace(c, undated=False, new_horizon=new_horizon if new_horizon.any() else None)

    def find_dead(self, store: Store, partition: int, segment: Segment) -> None:
        """Finds what the map supersedes in a segment, for a judge with a later map."""
        for chunk in segment.chunks:
            if (
                len(self.offset_map)
                and not chunk.aborted
                and self.log_start < chunk.next
                and self._reaches(chunk)
                and not self._holds_none(store, chunk)
            ):
                self.found.add(chunk, self._superseded_rows(store, partition, chunk))

    def _superseded_rows(self, store: Store, partition: int, chunk: Chunk) -> Mask:
        if self.mapped.decides(chunk):
            return self.mapped.superseded(chunk)
        piece = piece_of(partition, chunk, chunk.base, chunk.next, self.schema)
        batches = read_pieces(store, [piece], columns=("offset", "key"))
        return np.concatenate([self._by_keys(batch)[0] for batch in batches])

    def _by_keys(self, batch: pa.RecordBatch) -> tuple[Mask, Mask]:
        """Returns for each row whether the map has a higher offset of its key, and has the key."""
        offsets, keys = to_numpy(batch.column("offset")), batch.column("key")
        if not keys.null_count:
            superseded = self.offset_map.superseded(self.hasher(keys), offsets)
            return superseded, np.ones(len(keys), np.bool_)
        key_valid = to_numpy(keys.is_valid())
        superseded = np.zeros(len(keys), np.bool_)
        hashes = self.hasher(keys.drop_null())
        superseded[key_valid] = self.offset_map.superseded(hashes, offsets[key_valid])
        return superseded, key_valid

    def judge(self, batch: pa.RecordBatch, superseded: Mask, key_valid: Mask) -> Verdict:
        """Judges rows at or above the log start: a batch with offsets, and with values and
        `DELETE_HORIZON` where tombstones count.
        """
        offsets = to_numpy(batch.column("offset"))
        tombstone = np.zeros(len(offsets), np.bool_)
        horizon = np.full(len(offsets), NONE, np.int64)
        if DELETE_HORIZON in batch.schema.names:
            tombstone = to_numpy(batch.column("value").is_null())
            horizon = to_numpy(pc.fill_null(batch.column(DELETE_HORIZON), scalar(NONE, pa.int64())))
        return decide_retention(
            offsets=offsets,
            superseded=superseded,
            key_valid=key_valid,
            is_tombstone=tombstone,
            delete_horizon_ms=horizon,
            latest_offset=self.offset_map.latest_offset,
            now_ms=self.now_ms,
            held=self.held,
        )

    def _opened(self, store: Store, partition: int, chunk: Chunk) -> Callable[[], JudgedChunk]:
        """Fetches what is needed to judge a chunk; returns a function that judges it."""
        if chunk.aborted:
            return partial(JudgedChunk, chunk)  # No row of it is live: it is dropped unread (S53).
        if chunk.next <= self.log_start:
            return partial(JudgedChunk, chunk, Removed(trimmed=chunk.live_rows))
        tombstones_count = self._tombstones_count(chunk)
        if chunk.base >= self.log_start and not (
            self._reaches(chunk)
            and (tombstones_count or len(self.offset_map) or chunk.next > self.first_dirty)
        ):
            return partial(JudgedChunk, chunk)
        is_whole = chunk.base >= self.log_start and self.found.of(chunk) is None
        if is_whole and not tombstones_count and self._holds_none(store, chunk):
            return partial(JudgedChunk, chunk)
        # A row of a fresh chunk has no horizon that could have come.
        decides = self.mapped.decides(chunk)
        if decides and (not tombstones_count or earliest_horizon_ms(chunk) == NONE):
            return partial(self._by_offsets, partition, chunk, tombstones_count=tombstones_count)
        tombstone = presence_column("value", self.schema, ())
        values = (tombstone, DELETE_HORIZON) if tombstones_count else ()
        columns = ("offset", *(() if decides else ("key",)), *values)
        piece = piece_of(partition, chunk, chunk.base, chunk.next, self.schema)
        batches = open_run(store, [piece], columns)
        return partial(self._by_rows, partition, chunk, batches)

    def _by_offsets(self, partition: int, chunk: Chunk, *, tombstones_count: bool) -> JudgedChunk:
        dead = self.mapped.superseded(chunk)
        removed = Removed(superseded=int(np.count_nonzero(dead)))
        self._recheck_unread(partition, chunk, dead)
        self.recheck.count_chunk(chunk.rows, chunk.rows - removed.total)
        keep = ~dead if 0 < removed.total < chunk.rows else None
        undated = tombstones_count and removed.total < chunk.rows
        return JudgedChunk(chunk, removed, keep, undated=undated)

    def _by_rows(
        self, partition: int, chunk: Chunk, batches: Iterator[pa.RecordBatch]
    ) -> JudgedChunk:
        removed = Removed()
        keeps: list[Mask] = []
        horizons: list[Mask] = []
        for keep, new_horizon in self._verdicts(partition, chunk, batches, removed):
            keeps.append(keep)
            horizons.append(new_horizon)
        keep, new_horizon = np.concatenate(keeps), np.concatenate(horizons)
        is_mixed = 0 < removed.total < chunk.live_rows
        return JudgedChunk(
            chunk, removed, keep if is_mixed else None, new_horizon if new_horizon.any() else None
        )

    def _recheck_unread(self, partition: int, chunk: Chunk, dead: Mask) -> None:
        offsets = np.arange(chunk.base, chunk.base + chunk.rows)
        rows = pa.RecordBatch.from_arrays([to_arrow(offsets)], names=["offset"])
        self.recheck.check_unread(partition, rows, dead)

    def _reaches(self, chunk: Chunk) -> bool:
        """Returns whether the map reaches the chunk."""
        return chunk.base <= self.offset_map.latest_offset

    def _holds_none(self, store: Store, chunk: Chunk) -> bool:
        """Returns whether the chunk is clean and none of its records has a key of the map."""
        return chunk.next <= self.first_dirty and self.index_filter.holds_none(store, chunk)

    def _tombstones_count(self, chunk: Chunk) -> bool:
        """Returns whether tombstones of the chunk may be removed or get their horizon now."""
        if chunk.tombstones == 0:
            return False
        return chunk.next > self.first_dirty or earliest_horizon_ms(chunk) <= self.now_ms

    def _verdicts(
        self, partition: int, chunk: Chunk, batches: Iterator[pa.RecordBatch], removed: Removed
    ) -> Iterator[tuple[Mask, Mask]]:
        """Yields (keep, stamp) of all live rows of the chunk, in order; counts into ``removed``."""
        known = self.mapped.superseded(chunk) if self.mapped.decides(chunk) else None
        before, few, rows = self.found.of(chunk), _FewGone(chunk.live_rows), 0
        for batch in batches:
            here = slice(rows, rows + batch.num_rows)
            rows += batch.num_rows
            if known is None:
                superseded, key_valid = self._by_keys(batch)
            else:
                superseded, key_valid = known[here], np.ones(batch.num_rows, np.bool_)
            if before is not None:
                superseded = superseded | before[here]
            below = int(np.searchsorted(to_numpy(batch.column("offset")), self.log_start))
            verdict = self.judge(batch.slice(below), superseded[below:], key_valid[below:])
            above, gone = batch.slice(below), ~verdict.keep
            if known is not None:
                self.recheck.check_unread(partition, above, gone)
            elif few.holds(int(np.count_nonzero(gone))):
                earlier = None if before is None else before[here][below:]
                few.rows.append(self.recheck.unexplained(above, gone, earlier))
            latest = key_valid[below:] & (verdict.keep | verdict.expired)
            self.recheck.count(to_numpy(above.column("offset")), key_valid[below:], latest)
            removed.trimmed += below
            removed.superseded += verdict.superseded
            removed.without_key += verdict.invalid
            removed.expired += verdict.expired_tombstones
            if (expired := np.flatnonzero(verdict.expired)).size:
                removed.last_expired = batch.column("offset")[below + int(expired[-1])].as_py()
            gone = np.zeros(below, np.bool_)
            yield np.concatenate((gone, verdict.keep)), np.concatenate((gone, verdict.new_horizon))
        self.recheck.check_keys(partition, few.rows)
        self._check_rows(partition, chunk, rows)

    def _check_rows(self, partition: int, chunk: Chunk, rows: int) -> None:
        if rows != chunk.live_rows:
            raise CorruptionError(
                f"{chunk.object.path} has {rows} records at [{chunk.base}, {chunk.next}) of"
                f" partition {partition}, but the manifest says {chunk.live_rows};"
                " nothing was changed"
            )


@dataclass(slots=True)
class _FewGone:
    """The rows to be rechecked of a chunk in which little died; empty once much has."""

    live_rows: int
    gone: int = 0
    rows: list[Unexplained] = field(default_factory=list)

    def holds(self, gone: int) -> bool:
        """Returns whether the number is still small with that many more rows."""
        self.gone += gone
        is_little = self.gone * _FEW < self.live_rows
        if not is_little:
            self.rows.clear()
        return is_little
