"""P2: what is dead in each sealed segment (S21, S23).

Only what can be dead is read, and of it only keys; values only of chunks with tombstones that may
go, or that get their horizon while their chunk is marked: in a fresh chunk all that stay get one,
and which these are is seen when it is rewritten, values and all, and does not matter where all of
its rows stay. Chunks wholly below the log start, wholly beyond the map, or without any record that
could go are judged without reading, and so are clean ones that hold no key of the map by their key
index (`index_filter`); those of the range of the last map by their offsets (`mapped_range`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.cleaner.compaction.build_map import KeyHasher
from clog.cleaner.compaction.index_filter import IndexFilter
from clog.cleaner.compaction.mapped_range import FoundDead, MappedRange
from clog.cleaner.compaction.offset_map import OffsetMap
from clog.cleaner.compaction.recheck import Recheck, Unexplained
from clog.cleaner.compaction.record_retention import Verdict, decide_retention
from clog.cleaner.compaction.selection import earliest_horizon_ms
from clog.cleaner.threads import ALONE, CleanerThreads
from clog.storage.errors import CorruptionError
from clog.storage.format.chunks import NONE, Chunk
from clog.storage.format.schema import LogSchema
from clog.storage.format.segments import Segment
from clog.storage.numpy_arrays import Mask, scalar, to_arrow, to_numpy
from clog.storage.read.scan import (
    DELETE_HORIZON,
    open_run,
    piece_of,
    presence_column,
    read_pieces,
)
from clog.storage.readers.holds import NOTHING_HELD, HeldTombstones
from clog.storage.store.ahead import ahead
from clog.storage.store.base import Store

KEYS_SHARE = 4
"""About this share of an object's bytes is fetched and held to judge its keys."""
_FEW = 4
"""Where less than one row of so many goes the chunk may only be marked (`rewrite_policy`), and is
not read again: the recheck asks those rows here."""


@dataclass(slots=True)
class Removed:
    """How many rows go, and why. ``last_expired`` is the highest offset of a tombstone that goes
    because its horizon has come, -1 for none (S41): one that was superseded hides no delete.
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
    """What a pass does with a chunk: leaves it, marks its dead rows, or rewrites it."""

    KEEP = "keep"
    MARK = "mark"
    REWRITE = "rewrite"


@dataclass(frozen=True, slots=True, eq=False)
class JudgedChunk:
    """A chunk and what becomes of its rows, those that were dead before left out.

    ``keep`` is None when all rows stay or none does; ``new_horizon`` says which tombstones get
    their horizon by this pass, None when there are none. In an ``undated`` one all do that stay,
    and which they are was not read. ``action`` is decided by `rewrite_policy`.
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
        offset_map: the last of the pass. mapped: the range that it covers. found: what the maps
        before it found, in ranges before its own. hasher: makes the hashes of all. log_start: below
        it all is dead (S37). first_dirty: below it every tombstone has its horizon: a pass sets
        those of what it covers, and
            ``first_dirty`` is where the last complete one ended.
        now_ms: the pass's start.
        index_filter: knows of chunks below ``first_dirty`` that hold none of the map's keys.
        schema: the log's.
        held: tombstones that readers hold back.
        threads: judge the next chunks meanwhile.

    Attributes:
        recheck: hears which rows stay.
    """

    offset_map: OffsetMap
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

    def judge_segment(self, store: Store, partition: int, segment: Segment) -> JudgedSegment:
        """Judges all chunks of a segment; requests for the next ones go ahead."""
        chunks = segment.chunks
        sizes = [c.object.size_bytes * c.rows // (c.object.rows * KEYS_SHARE) for c in chunks]
        begun = (partial(self._opened, store, partition, c) for c in chunks)
        opened = ahead(store, zip(begun, sizes, strict=True))
        with self.threads.in_turn(zip(opened, sizes, strict=True)) as turns:
            return JudgedSegment(segment, tuple(turn() for turn in turns))

    def with_horizons(self, store: Store, partition: int, segment: JudgedSegment) -> JudgedSegment:
        """Returns the segment with the tombstones of chunks that are to be marked: which of those
        stay their values tell alone.
        """
        chunks = tuple(
            self._dated(store, partition, c) if c.undated and c.action is Action.MARK else c
            for c in segment.chunks
        )
        return replace(segment, chunks=chunks)

    def _dated(self, store: Store, partition: int, c: JudgedChunk) -> JudgedChunk:
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
                self.offset_map.entries
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
        """Returns, for each row, whether the map has a higher offset for its key, and whether it
        has one.
        """
        offsets, keys = to_numpy(batch.column("offset")), batch.column("key")
        if not keys.null_count:
            return self.offset_map.get(self.hasher(keys)) > offsets, np.ones(len(keys), np.bool_)
        key_valid = to_numpy(keys.is_valid())
        superseded = np.zeros(len(keys), np.bool_)
        latest = self.offset_map.get(self.hasher(keys.drop_null()))
        superseded[key_valid] = latest > offsets[key_valid]
        return superseded, key_valid

    def judge(self, batch: pa.RecordBatch, superseded: Mask, key_valid: Mask) -> Verdict:
        """Judges rows at or above the log start: a batch with offset, and with value and
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
        """Fetches what is needed to judge a chunk; returns what judges it."""
        if chunk.aborted:
            return partial(JudgedChunk, chunk)  # No row of it lives: it is dropped unread (S53).
        if chunk.next <= self.log_start:
            return partial(JudgedChunk, chunk, Removed(trimmed=chunk.live_rows))
        tombstones_count = self._tombstones_count(chunk)
        if chunk.base >= self.log_start and not (
            self._reaches(chunk)
            and (tombstones_count or self.offset_map.entries or chunk.next > self.first_dirty)
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
            chunk,
            removed,
            keep if is_mixed else None,
            new_horizon if new_horizon.any() else None,
        )

    def _recheck_unread(self, partition: int, chunk: Chunk, dead: Mask) -> None:
        offsets = np.arange(chunk.base, chunk.base + chunk.rows)
        rows = pa.RecordBatch.from_arrays([to_arrow(offsets)], names=["offset"])
        self.recheck.check_unread(partition, rows, dead)

    def _reaches(self, chunk: Chunk) -> bool:
        """Tells whether the map goes as far as the chunk."""
        return chunk.base <= self.offset_map.latest_offset

    def _holds_none(self, store: Store, chunk: Chunk) -> bool:
        """Tells whether the chunk is clean and none of its records has a key of the map."""
        return chunk.next <= self.first_dirty and self.index_filter.holds_none(store, chunk)

    def _tombstones_count(self, chunk: Chunk) -> bool:
        """Tells whether tombstones of the chunk may go or get their horizon now."""
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
    """What is to be rechecked of a chunk in which little died; nothing, once it is much."""

    live_rows: int
    gone: int = 0
    rows: list[Unexplained] = field(default_factory=list)

    def holds(self, gone: int) -> bool:
        """Tells whether it is little with so many rows more."""
        self.gone += gone
        is_little = self.gone * _FEW < self.live_rows
        if not is_little:
            self.rows.clear()
        return is_little
