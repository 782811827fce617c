"""P4 for chunks in which little died: bitmaps of their dead rows.

A later bitmap takes the place of the chunk's older one: it has those rows, too, and their time. So
however often a chunk is marked, its bytes are due when those of its first dead row are.

Safety: a bitmap is committed as a rewritten group is, oldest first and only while its chunk has
the dead rows that it had when it was judged. Crash before: a file that is an orphan.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from clog.cleaner.compaction.grouping import Group
from clog.cleaner.compaction.judge import Action, JudgedChunk
from clog.cleaner.compaction.stats import PassStats
from clog.storage.errors import CorruptionError
from clog.storage.format.bitmaps.bitmap import read_bitmap
from clog.storage.format.dead_rows import write_dead_rows
from clog.storage.format.edits import DeadMark
from clog.storage.store.base import Store


@dataclass(frozen=True, slots=True)
class BitmapWriter:
    """Writes the bitmaps of one pass.

    Args:
        stamp: a version that was read before anything is written (FORMAT.md §6).
        now_ms: the pass's start: from when a first bitmap's rows wait.
    """

    store: Store
    partition: int
    stamp: int
    now_ms: int
    new_id: Callable[[], str]

    def write(self, group: Group, stats: PassStats) -> tuple[DeadMark, ...]:
        """Makes bitmaps for the chunks of a group that are to be marked; counts their dead rows."""
        marked = [c for c in group.chunks if c.action is Action.MARK]
        marks = tuple(self._marks(marked))
        stats.records_marked += sum(c.removed.total for c in marked)
        return marks

    def _marks(self, marked: Iterable[JudgedChunk]) -> Iterable[DeadMark]:
        for c in marked:
            assert c.keep is not None, "a marked chunk keeps some rows and loses others"
            chunk, before = c.chunk, c.chunk.dead
            dead = np.zeros(chunk.rows, np.bool_)
            if before is not None:
                dead |= read_bitmap(self.store, before, chunk.rows)
            dead[np.flatnonzero(~dead)[~c.keep]] = True
            if np.count_nonzero(dead) != chunk.rows - c.rows_left:
                raise CorruptionError(
                    f"partition {self.partition} has {c.rows_left} live records in"
                    f" [{chunk.base}, {chunk.next}), {np.count_nonzero(~dead)} after marking;"
                    " nothing was changed"
                )
            written = write_dead_rows(
                self.store,
                dead,
                since_ms=self.now_ms if before is None else before.since_ms,
                stamp=self.stamp,
                new_id=self.new_id,
            )
            yield DeadMark(self.partition, *chunk.identity, written)
