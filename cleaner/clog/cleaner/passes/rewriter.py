"""P3 and P4: which chunks of a pass are left, marked or rewritten, and writing what stays of them.

P3. Whether a chunk is left, marked or rewritten (`RewritePolicy`), and which neighbouring segments
    become one (`grouped`, S25). Pure.
P4. One group becomes one segment (S26), and bitmaps are written (`Rewriter`).

*Marked*: a chunk in which little died stays and gets a bitmap of its dead rows, which are invisible
from the commit on; their bytes go when it is rewritten (S46). A chunk is rewritten as soon as that
is cheaper, `REWRITE_FACTOR` × dead × delay ≥ live × left, and where there is another reason to.

*Conservation*: each run is counted three times, what the manifest says is there, what was judged
dead, what was written; and each removed row is checked again (`judge`). If the sums differ, nothing
is committed (`CorruptionError`). What is written here is an orphan until it is committed.

cleaner/PASS.md has the reasons, and how groups are made.
"""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TypeVar

import numpy as np
import pyarrow as pa

from clog.cleaner.passes.judge import Action, GroupRecheck, Judge, JudgedChunk, JudgedSegment
from clog.cleaner.passes.offset_map import EVERY_BYTES, give_back
from clog.cleaner.selection import (
    PassPlan,
    PassStats,
    earliest_horizon_ms,
    in_doubt,
    is_loose,
    is_purge_due,
    is_shared,
)
from clog.cleaner.threads import Call, CleanerThreads
from clog.storage.config.log_config import LogConfig
from clog.storage.env import dataclass
from clog.storage.errors import CorruptionError
from clog.storage.format.chunks import Chunk, DeadMark, Replacement, read_bitmap, write_dead_rows
from clog.storage.format.documents import NONE
from clog.storage.numpy_arrays import Mask, Offsets, to_arrow, to_numpy
from clog.storage.objects.composing import CopiedGroup, write_rewritten
from clog.storage.objects.writer import rewritten_chunk
from clog.storage.read.copy import Portion, Wanted, open_portions
from clog.storage.read.scan import COLUMNS, DELETE_HORIZON, open_run, piece_of, presence_column
from clog.storage.store.contract import Store, ahead

_RETENTION_SHARE = 10
"""Merged records are within one ``segment.ms``, or within ``retention.ms`` divided by this."""


_T = TypeVar("_T")

AT_COMMIT = -2
"""Represents a horizon that the commit sets; never committed."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What one segment, or several neighbours together, have: bytes and chunks, the offset after
    the last, the earliest first timestamp and the latest timestamp.

    Timestamps may go back from one segment to the next (S9): the span of neighbours is that of all
    of them, not from the first one on.
    """

    size_bytes: int
    chunks: int
    next: int
    first_ms: int
    last_ms: int

    @property
    def span_ms(self) -> int:
        return self.last_ms - self.first_ms

    def joined(self, after: "Extent") -> "Extent":
        """Returns what it has together with the neighbour after it."""
        return Extent(
            self.size_bytes + after.size_bytes,
            self.chunks + after.chunks,
            after.next,
            min(self.first_ms, after.first_ms),
            max(self.last_ms, after.last_ms),
        )


def neighbours(
    items: Iterable[_T], extent_of: Callable[[_T], Extent], fits: Callable[[Extent], bool]
) -> Iterator[list[_T]]:
    """Yields all items in order, in runs of neighbours that fit together; holds one run."""
    run: list[_T] = []
    whole: Extent | None = None
    for item in items:
        extent = extent_of(item)
        joined = extent if whole is None else whole.joined(extent)
        if run and not fits(joined):
            yield run
            run, joined = [], extent
        run.append(item)
        whole = joined
    if run:
        yield run


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Neighbouring segments that become one."""

    segments: tuple[JudgedSegment, ...]

    @property
    def base(self) -> int:
        return self.segments[0].segment.base

    @property
    def next(self) -> int:
        return self.segments[-1].segment.next

    @property
    def chunks(self) -> tuple[JudgedChunk, ...]:
        return tuple(c for s in self.segments for c in s.chunks)

    @property
    def needs_work(self) -> bool:
        """Whether it merges segments, or one of its chunks is to be rewritten."""
        return len(self.segments) > 1 or any(c.action is Action.REWRITE for c in self.chunks)


def grouped(
    segments: Iterable[JudgedSegment], config: LogConfig, *, covered: int
) -> Iterator[Group]:
    """Yields all segments in order, each in one group, as they come.

    A segment that the map covers only in part stays alone: if it were merged, what is clean of its
    neighbours would count as dirty (S13).
    """
    span_ms_max = _span_ms_max(config)

    def fits(together: Extent) -> bool:
        return (
            together.size_bytes <= config.segment_bytes
            and together.span_ms <= span_ms_max
            and together.next <= covered
        )

    return (Group(tuple(run)) for run in neighbours(segments, _extent_left, fits))


def _extent_left(s: JudgedSegment) -> Extent:
    """Returns what a segment has after cleaning; its number of chunks does not matter to a pass."""
    first_ms, last_ms = s.segment.first_timestamp_ms, s.segment.max_timestamp_ms
    return Extent(s.size_bytes_left, len(s.chunks), s.segment.next, first_ms, last_ms)


def _span_ms_max(config: LogConfig) -> float:
    if not config.delete or config.retention_ms < 0:
        return math.inf
    return max(config.effective_segment_ms, config.retention_ms // _RETENTION_SHARE)


REWRITE_FACTOR = 3
"""Writing this many bytes is worth one dead byte, stored and read for ``dead.rows.delay.ms``: in
the long run at most this many times what died is written, or what is due anyway.
"""


@dataclass(frozen=True, slots=True)
class RewritePolicy:
    """What decides besides the chunk.

    Args:
        config: the log's effective configs.
        now_ms: the pass's start.
    """

    config: LogConfig
    now_ms: int

    def action(self, c: JudgedChunk) -> Action:
        """Returns the action for a chunk by itself; its neighbours may have it rewritten."""
        if c.chunk.aborted or needs_own_horizon(c) or in_doubt(c.chunk, now_ms=self.now_ms):
            return Action.REWRITE
        if not c.removed.total:
            return Action.KEEP
        return Action.MARK if self.is_little(c) else Action.REWRITE

    def may_mark_in(self, chunk: Chunk) -> bool:
        """Returns whether a few dead rows of the chunk may be marked."""
        return (
            self.config.dead_rows_delay_ms > 0
            and not is_loose(chunk, self.config)
            and not is_purge_due(chunk, self.config, now_ms=self.now_ms)
        )

    def is_little(self, c: JudgedChunk) -> bool:
        """Returns whether so little of a chunk died that it is marked."""
        return (
            self.may_mark_in(c.chunk)
            and not c.removed.trimmed
            and not self._was_late(c)
            and not self._is_worth_it(c)
        )

    def _is_worth_it(self, c: JudgedChunk) -> bool:
        """Returns whether rewriting now is cheaper than later, in rows."""
        delay_ms = self.config.dead_rows_delay_ms
        marked = c.chunk.dead
        age_ms = 0 if marked is None else max(0, self.now_ms - marked.since_ms)
        dead = c.chunk.rows - c.rows_left
        return REWRITE_FACTOR * dead * delay_ms >= c.rows_left * (delay_ms - age_ms)

    def _was_late(self, c: JudgedChunk) -> bool:
        """Returns whether a removed tombstone could have been removed long ago."""
        late_ms = self.now_ms - earliest_horizon_ms(c.chunk)
        return bool(c.removed.expired) and late_ms >= self.config.dead_rows_delay_ms


def needs_own_horizon(c: JudgedChunk) -> bool:
    """Returns whether an earlier pass's horizon occupies the chunk's place for one (S23)."""
    return c.sets_horizons and c.chunk.horizon != NONE


_PORTION_BYTES = 4 << 20
"""At least this many record bytes of a chunk are decoded together by one of several threads."""
_READ = (*(name for name in COLUMNS if name != "partition"), DELETE_HORIZON)
_RECHECKED = ("offset", "key", "value", DELETE_HORIZON)

_Part = tuple[Offsets, pa.RecordBatch | CopiedGroup | None]
"""What stays of a part of a chunk, None for nothing, and the offsets of what gets its horizon."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written of a group: its replacement, if it `needs_work`, and bitmaps; and how many
    records that concerns.
    """

    replaced: tuple[Replacement, ...]
    dead: tuple[DeadMark, ...]
    counts: PassStats


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Writes groups of one pass; objects are stamped with the version at which it was planned.

    Args:
        judge: the pass's: up to where its map reaches, what earlier ones found, and its recheck.
        threads: decode the next chunk while one is encoded.
    """

    store: Store
    plan: PassPlan
    judge: Judge
    new_id: Callable[[], str]
    threads: CleanerThreads

    def write(self, group: Group) -> Written:
        """Writes the replacement of a group, and bitmaps; in several threads if some are free."""
        counts = PassStats()
        replaced = (self.rewrite(group, counts),) if group.needs_work else ()
        marked = [c for c in group.chunks if c.action is Action.MARK]
        counts.records_marked += sum(c.removed.total for c in marked)
        return Written(replaced, tuple(map(self._mark, marked)), counts)

    def rewrite(self, group: Group, stats: PassStats) -> Replacement:
        """Rewrites a group, counts its records, and returns its replacement once it is written."""
        merged = len(group.segments) > 1
        limit = self.plan.config.object_bytes
        chunks: list[Chunk] = []
        recheck = GroupRecheck(self.judge.recheck, self.plan.partition)
        for is_rewritten, pairs in groupby(_decided(group, self.plan.config), key=itemgetter(0)):
            run = [c for _, c in pairs]
            if is_rewritten:
                # No object may be larger than the segment that it must fit into.
                size_bytes = min(limit, self.plan.config.segment_bytes) if merged else limit
                chunks.extend(self._write_run(run, size_bytes, recheck, stats))
                for c in run:
                    _count(c, stats)
            else:
                chunks.extend(self._kept(c) for c in run)
                stats.tombstones_stamped += sum(map(new_horizons_in, run))
        recheck.finish()
        return Replacement(
            partition=self.plan.partition,
            base=group.base,
            next=group.next,
            sources=tuple(c.chunk.identity for c in group.chunks),
            chunks=tuple(chunks),
            segments=_tiles(group, chunks, self.plan.config),
        )

    def held_bytes(self, group: Group) -> int:
        """Returns about how many bytes are held while a group is rewritten: an object's records,
        also encoded, and the object that they are read from; 0 if nothing is rewritten.
        """
        if not group.needs_work:
            return 0
        rewritten = [c for is_rewritten, c in _decided(group, self.plan.config) if is_rewritten]
        left = sum(c.size_bytes_left for c in rewritten)
        read_bytes = max((c.chunk.object.size_bytes for c in rewritten), default=0)
        return 2 * min(left, self.plan.config.object_bytes) + read_bytes

    def _kept(self, c: JudgedChunk) -> Chunk:
        return self._dated(c.chunk) if c.sets_horizons else c.chunk

    def _dated(self, chunk: Chunk) -> Chunk:
        if self.plan.stretch is not None:
            return chunk  # Chunks get them once all stretches are done.
        return replace(chunk, horizon=AT_COMMIT, up_to=self.judge.mapped.end)

    def _write_run(
        self, run: Sequence[JudgedChunk], object_bytes: int, recheck: GroupRecheck, stats: PassStats
    ) -> list[Chunk]:
        dated: list[Offsets] = []
        with closing(self._retained(run, recheck, dated)) as retained:
            objects = write_rewritten(
                self.store,
                retained,
                partition=self.plan.partition,
                stamp=self.plan.manifest.version,
                key_seed=self.plan.manifest.head.log.key_seed,
                schema=self.plan.manifest.head.log.schema,
                new_id=self.new_id,
                compression=self.plan.config.compression,
                object_bytes=object_bytes,
                encoders=self.threads.count,
                together=self.threads.together,
            )
        before = sum(c.chunk.live_rows for c in run)
        removed = sum(c.removed.total for c in run)
        written = sum(obj.ref.rows for obj in objects)
        if before - removed != written:
            first, last = run[0].chunk, run[-1].chunk
            raise CorruptionError(
                f"partition {self.plan.partition} has {before} records in"
                f" [{first.base}, {last.next}); {removed} were to be removed and"
                f" {written} were written, so {before - removed - written} are"
                " unaccounted for; nothing was changed"
            )
        stats.tombstones_stamped += sum(map(len, dated))
        version = max(c.chunk.version for c in run)
        chunks = [rewritten_chunk(obj, version=version) for obj in objects]
        return [self._dated(c) if _holds_any(c, dated) else c for c in chunks]

    def _retained(
        self, run: Sequence[JudgedChunk], recheck: GroupRecheck, dated: list[Offsets]
    ) -> Generator[pa.RecordBatch | CopiedGroup, None, None]:
        """Yields the rows that stay; adds the offsets of those that get their horizon."""
        calls = self._calls(run, recheck)
        with self.threads.in_turn(calls, settled=lambda parts: [*parts]) as turns:
            for turn in turns:
                for here, part in turn():
                    dated.append(here)
                    if part is not None:
                        yield part

    def _calls(
        self, run: Sequence[JudgedChunk], recheck: GroupRecheck
    ) -> Iterator[Call[Iterable[_Part]]]:
        """Yields calls that make of portions of the chunks what stays; requests are made ahead."""
        read_bytes = 0
        opened = ahead(self.store, ((partial(self._opened, c), _fetched_bytes(c)) for c in run))
        for c, portions in zip(run, opened, strict=True):
            read_bytes += c.chunk.size_bytes if c.rows_left else 0
            if read_bytes >= EVERY_BYTES:
                give_back()
                read_bytes = 0
            at = 0
            for rows, read in portions:
                held_bytes = c.chunk.size_bytes * rows // c.chunk.rows
                yield partial(self._retained_of, c, read, at, recheck), held_bytes
                at += rows

    def _opened(self, c: JudgedChunk) -> list[Portion]:
        """Fetches what has to be looked at of a chunk; returns the portions that read it."""
        plan, schema = self.plan, self.plan.manifest.head.log.schema
        piece = piece_of(plan.partition, c.chunk, c.chunk.base, c.chunk.next, schema)
        if c.rows_left == 0:
            if c.removed.trimmed == c.removed.total:
                return []  # Rows below the log start need not be read.
            tombstone = presence_column("value", schema, ())
            horizons = (tombstone, DELETE_HORIZON) if c.removed.expired else ()
            batches = open_run(self.store, [piece], ("offset", "key", *horizons))
            return [(c.chunk.live_rows, lambda: batches)]
        rows_min = None
        if self.threads.count > 1:
            rows_min = _PORTION_BYTES * c.chunk.rows // c.chunk.size_bytes
        return open_portions(
            self.store,
            [Wanted(piece, c.chunk, self._changed_rows(c))],
            columns=_READ,
            compression=plan.config.compression,
            key_seed=plan.manifest.head.log.key_seed,
            rows_min=rows_min,
        )

    def _changed_rows(self, c: JudgedChunk) -> Mask | None:
        """Returns which rows of a chunk, including dead ones, go or get horizons; None: none."""
        changed = np.zeros(c.chunk.live_rows, np.bool_)
        for mask in (None if c.keep is None else ~c.keep, c.new_horizon):
            if mask is not None:
                changed |= mask
        if c.chunk.dead is None or not changed.any():
            return changed if changed.any() else None
        rows = ~read_bitmap(self.store, c.chunk.dead, c.chunk.rows)
        rows[rows] = changed
        return rows

    def _retained_of(
        self,
        c: JudgedChunk,
        read: Callable[[], Iterator[pa.RecordBatch | CopiedGroup]],
        at: int,
        recheck: GroupRecheck,
    ) -> Iterator[_Part]:
        """Yields what stays from the ``at``-th live row on, and offsets that get horizons."""
        for part, here in _placed(read(), at):
            if c.rows_left == 0:
                self._recheck(c.chunk, part, np.ones(part.num_rows, np.bool_), here, recheck)
                continue
            left, dated = part, _dated_in(c, part, here)
            if isinstance(part, pa.RecordBatch) and c.keep is not None and not c.keep[here].all():
                keep = c.keep[here]
                self._recheck(c.chunk, part.select(_RECHECKED), ~keep, here, recheck)
                left = part.filter(to_arrow(keep))
            yield dated, left if left.num_rows else None

    def _recheck(
        self, chunk: Chunk, batch: pa.RecordBatch, gone: Mask, here: slice, recheck: GroupRecheck
    ) -> None:
        found = self.judge.found.of(chunk)
        recheck.check(batch, gone, None if found is None else found[here])

    def _mark(self, c: JudgedChunk) -> DeadMark:
        """Writes the bitmap of a chunk that is to be marked."""
        assert c.keep is not None, "a marked chunk keeps some rows and loses others"
        plan, chunk, before = self.plan, c.chunk, c.chunk.dead
        dead = np.zeros(chunk.rows, np.bool_)
        if before is not None:
            dead |= read_bitmap(self.store, before, chunk.rows)
        dead[np.flatnonzero(~dead)[~c.keep]] = True
        if np.count_nonzero(dead) != chunk.rows - c.rows_left:
            raise CorruptionError(
                f"partition {plan.partition} has {c.rows_left} live records in"
                f" [{chunk.base}, {chunk.next}), {np.count_nonzero(~dead)} after marking;"
                " nothing was changed"
            )
        written = write_dead_rows(
            self.store,
            dead,
            since_ms=plan.now_ms if before is None else before.since_ms,
            stamp=plan.manifest.version,
            new_id=self.new_id,
        )
        return DeadMark(plan.partition, *chunk.identity, written)


def _placed(
    parts: Iterable[pa.RecordBatch | CopiedGroup], at: int
) -> Iterator[tuple[pa.RecordBatch | CopiedGroup, slice]]:
    """Yields the parts, and where they are among the live rows of their chunk."""
    for part in parts:
        yield part, slice(at, at + part.num_rows)
        at += part.num_rows


def _count(c: JudgedChunk, stats: PassStats) -> None:
    """Counts the records of a chunk that is replaced."""
    stats.records_read += c.chunk.live_rows
    stats.records_written += c.rows_left
    stats.records_trimmed += c.removed.trimmed
    stats.records_superseded += c.removed.superseded
    stats.tombstones_expired += c.removed.expired
    stats.records_without_key += c.removed.without_key


def _fetched_bytes(c: JudgedChunk) -> int:
    """Returns at most how many bytes of a chunk are fetched."""
    return c.chunk.object.size_bytes * c.chunk.rows // c.chunk.object.rows if c.rows_left else 0


def _dated_in(c: JudgedChunk, part: pa.RecordBatch | CopiedGroup, here: slice) -> Offsets:
    """Returns offsets of tombstones that get horizons now; for a copied group its first one."""
    if isinstance(part, CopiedGroup):
        # If others than undated ones get one, nothing is copied (`_changed_rows`).
        return np.full(part.stats.tombstones if c.undated else 0, part.stats.first_offset)
    dated = None if c.new_horizon is None else c.new_horizon[here]
    if c.undated:
        dated = to_numpy(part.column("value").is_null())
        if c.keep is not None:
            dated = dated & c.keep[here]
    offsets = to_numpy(part.column("offset"))
    return offsets[:0] if dated is None else offsets[dated]


def new_horizons_in(c: JudgedChunk) -> int:
    """Returns how many tombstones get their horizon now in a chunk that is not rewritten."""
    if c.undated:
        return c.chunk.tombstones  # All of its rows stay.
    return 0 if c.new_horizon is None else int(np.count_nonzero(c.new_horizon))


def last_expired(group: Group) -> int:
    """Returns the highest offset of a tombstone removed for its horizon; -1 for none (S41)."""
    return max((c.removed.last_expired for c in group.chunks), default=NONE)


def _decided(group: Group, config: LogConfig) -> list[tuple[bool, JudgedChunk]]:
    """Returns which chunks are written anew: no lone small one between others that stay."""
    must = [c.action is Action.REWRITE for c in group.chunks]
    shared = [is_shared(c.chunk) for c in group.chunks]
    would = [m or is_loose(c.chunk, config) for m, c in zip(must, group.chunks, strict=True)]
    decided = []
    for i, c in enumerate(group.chunks):
        neighbour = (i > 0 and would[i - 1]) or (i + 1 < len(would) and would[i + 1])
        decided.append((must[i] or shared[i] or (would[i] and neighbour), c))
    return decided


def _tiles(
    group: Group, chunks: Sequence[Chunk], config: LogConfig
) -> tuple[tuple[int, int, int], ...]:
    """Returns the segments that replace the group: several if it is too much (KAFKA-20036)."""
    edges = [group.base]
    if len(group.segments) > 1:
        size_bytes = count = 0
        for c in chunks:
            full = size_bytes + c.size_bytes > config.segment_bytes
            if count and (full or count >= config.segment_chunks):
                edges.append(c.base)
                size_bytes = count = 0
            size_bytes += c.size_bytes
            count += 1
    created_ms = max(s.segment.created_ms for s in group.segments)
    return tuple((base, end, created_ms) for base, end in pairwise([*edges, group.next]))


def _holds_any(chunk: Chunk, offsets: Iterable[Offsets]) -> bool:
    return any(((chunk.base <= some) & (some < chunk.next)).any() for some in offsets)
