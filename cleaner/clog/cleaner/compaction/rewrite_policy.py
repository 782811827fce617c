"""P3, first half: whether a chunk is left, marked or rewritten. Pure.

A chunk in which little died stays, and gets a *bitmap* of its dead rows: they are invisible with
the commit, their bytes go when the chunk is rewritten (docs/decisions/0006). Rewritten is

- a chunk in which so much died that rewriting it now is the cheaper way (below);
- one that shares its object or is small: rewriting it is cheap, and due for the layout's sake;
- one with rows below the log start: they are trimmed;
- one with a tombstone whose horizon passed longer than ``dead.rows.delay.ms`` ago: its bytes do
  not wait twice as long (S46);
- one whose bitmap has waited ``dead.rows.delay.ms`` (`dead_row_purge`);
- one whose dead rows may or may not be its tombstones, long after their horizon (S16);
- one that a transaction left that was aborted (S53);
- one that was gathered: its rows lie in small chunks that share their objects (`gathering`);
- one in which a tombstone's horizon finds no place beside the one that its chunk has (S23).

*Cost* (docs/decisions/0029). What rewriting now saves are the dead bytes, older ones counted:
they would be stored and read until the chunk's deadline, which is ``dead.rows.delay.ms`` after the
first of them was marked. What it takes is to write the bytes that live; but the deadline demands
that anyway, so only the share of the delay that is left counts. A chunk is rewritten if

    `REWRITE_FACTOR` × dead × delay ≥ live × left

A chunk without a bitmap has all of the delay left, one that is due has none.

Here, too, is how chunks lie in their objects: what is worth rewriting for the layout's sake alone.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from clog.cleaner.compaction.judge import Action, JudgedChunk, JudgedSegment
from clog.cleaner.compaction.selection import earliest_horizon_ms, in_doubt
from clog.storage.config.log_config import LogConfig
from clog.storage.format.chunks import NONE, Chunk

REWRITE_FACTOR = 3
"""So many bytes written are worth one that is dead, stored and read all of ``dead.rows.delay.ms``:
what is written in the long run is at most so many times what died, or what is due anyway.
"""
SMALL_SHARE = 8


@dataclass(frozen=True, slots=True)
class RewritePolicy:
    """What decides beside the chunk.

    Args:
        config: what holds for the log.
        may_mark: whether the log announced dead rows (FORMAT.md §5.4).
        now_ms: the pass's start.
        gathered: paths of objects that are in memory alone.
    """

    config: LogConfig
    may_mark: bool
    now_ms: int
    gathered: Collection[str] = frozenset()

    def decided(self, segment: JudgedSegment) -> JudgedSegment:
        """Returns the segment with the actions of its chunks."""
        chunks = tuple(replace(c, action=self.action(c)) for c in segment.chunks)
        return replace(segment, chunks=chunks)

    def action(self, c: JudgedChunk) -> Action:
        """Returns what becomes of a chunk by itself; its neighbours may have it rewritten
        (`rewriter`).
        """
        if (
            c.chunk.aborted
            or c.chunk.object.path in self.gathered
            or needs_own_horizon(c)
            or in_doubt(c.chunk, now_ms=self.now_ms)
        ):
            return Action.REWRITE
        if not c.removed.total:
            return Action.KEEP
        return Action.MARK if self.is_little(c) else Action.REWRITE

    def may_mark_in(self, chunk: Chunk) -> bool:
        """Tells whether a few dead rows of the chunk may be marked."""
        return (
            self.may_mark
            and self.config.dead_rows_delay_ms > 0
            and not is_loose(chunk, self.config)
            and not is_due(chunk, self.config, now_ms=self.now_ms)
        )

    def is_little(self, c: JudgedChunk) -> bool:
        """Tells whether so little of a chunk died that it is marked."""
        return (
            self.may_mark_in(c.chunk)
            and not c.removed.trimmed
            and not self._was_late(c)
            and not self._is_worth_it(c)
        )

    def _is_worth_it(self, c: JudgedChunk) -> bool:
        """Tells whether rewriting now is cheaper than later, in rows: what a dead one weighs is not
        known.
        """
        delay_ms = self.config.dead_rows_delay_ms
        marked = c.chunk.dead
        age_ms = 0 if marked is None else max(0, self.now_ms - marked.since_ms)
        dead = c.chunk.rows - c.rows_left
        return REWRITE_FACTOR * dead * delay_ms >= c.rows_left * (delay_ms - age_ms)

    def _was_late(self, c: JudgedChunk) -> bool:
        """Tells whether a tombstone that goes could have gone long ago."""
        late_ms = self.now_ms - earliest_horizon_ms(c.chunk)
        return bool(c.removed.expired) and late_ms >= self.config.dead_rows_delay_ms


def is_due(chunk: Chunk, config: LogConfig, *, now_ms: int) -> bool:
    """Tells whether the chunk's dead rows have waited long enough for their bytes to go."""
    return chunk.dead is not None and now_ms - chunk.dead.since_ms >= config.dead_rows_delay_ms


def needs_own_horizon(c: JudgedChunk) -> bool:
    """Tells whether the chunk's one place for a horizon is taken by an earlier pass, whose horizon
    stays (S23): it goes into the rows then, to make place.
    """
    return c.sets_horizons and c.chunk.horizon != NONE


def is_shared(chunk: Chunk) -> bool:
    """Tells whether the object holds other rows, too: then it lives as long as any of its
    chunks.
    """
    return chunk.rows != chunk.object.rows


def is_loose(chunk: Chunk, config: LogConfig) -> bool:
    """Tells whether the chunk shares its object, or is small: below 1/8 of ``object.bytes``."""
    return is_shared(chunk) or chunk.size_bytes < config.object_bytes // SMALL_SHARE
