"""P3, first half: whether a chunk is left, marked or rewritten. Pure.

A chunk in which little died stays, and gets a *bitmap* of its dead rows: they are invisible with
the commit, their bytes go when the chunk is rewritten (storage/decisions/0006). Rewritten is

- a chunk in which more died than 1 of `REWRITE_FACTOR` + 1 of its rows, older dead rows counted;
- one that shares its object or is small: rewriting it is cheap, and due for the layout's sake;
- one with rows below the log start: they are trimmed;
- one with a tombstone whose horizon passed longer than ``dead.rows.delay.ms`` ago: its bytes do
  not wait twice as long (S46);
- one whose bitmap has waited ``dead.rows.delay.ms`` (`dead_row_purge`);
- one whose dead rows may or may not be its tombstones, long after their horizon (S16);
- one in which a tombstone's horizon finds no place beside the one that its chunk has (S23).
"""

from dataclasses import dataclass, replace

from clog.cleaner.compaction.judge import Action, JudgedChunk, JudgedSegment
from clog.cleaner.compaction.layout import is_loose
from clog.cleaner.compaction.selection import earliest_horizon_ms, in_doubt
from clog.storage.config.log_config import LogConfig
from clog.storage.format.chunks import NONE, Chunk

REWRITE_FACTOR = 10
"""Rewriting is worth it up to so many rows written for one that goes. Fewer dead rows wait until
more come, at most ``dead.rows.delay.ms``: so what is written in the long run is at most so many
times what died, or the whole once in the delay.
"""


@dataclass(frozen=True, slots=True)
class RewritePolicy:
    """What decides beside the chunk.

    Args:
        config: what holds for the log.
        may_mark: whether the log announced dead rows (FORMAT.md §5.4).
        now_ms: the pass's start.
    """

    config: LogConfig
    may_mark: bool
    now_ms: int

    def decided(self, segment: JudgedSegment) -> JudgedSegment:
        """Returns the segment with the actions of its chunks."""
        chunks = tuple(replace(c, action=self.action(c)) for c in segment.chunks)
        return replace(segment, chunks=chunks)

    def action(self, c: JudgedChunk) -> Action:
        """Returns what becomes of a chunk by itself; its neighbours may have it rewritten
        (`rewriter`).
        """
        if needs_own_horizon(c) or in_doubt(c.chunk, now_ms=self.now_ms):
            return Action.REWRITE
        if not c.removed.total:
            return Action.KEEP
        return Action.MARK if self._is_little(c) else Action.REWRITE

    def may_mark_in(self, chunk: Chunk) -> bool:
        """Tells whether a few dead rows of the chunk may be marked."""
        return (
            self.may_mark
            and self.config.dead_rows_delay_ms > 0
            and not is_loose(chunk, self.config)
            and not is_due(chunk, self.config, now_ms=self.now_ms)
        )

    def _is_little(self, c: JudgedChunk) -> bool:
        return (
            self.may_mark_in(c.chunk)
            and not c.removed.trimmed
            and not self._was_late(c)
            and c.rows_left > REWRITE_FACTOR * (c.chunk.rows - c.rows_left)
        )

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
