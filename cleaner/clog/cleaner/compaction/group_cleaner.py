"""P4 to P6: groups are rewritten and marked, by several threads where there are any to spare, and
published one after the other.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import tee

from clog.cleaner.compaction.bitmaps import BitmapWriter
from clog.cleaner.compaction.commit_pass import AT_COMMIT
from clog.cleaner.compaction.grouping import Group
from clog.cleaner.compaction.pass_plan import PassPlan
from clog.cleaner.compaction.rebase import SourcesChangedError
from clog.cleaner.compaction.rewriter import Rewriter, last_expired, new_horizons_in
from clog.cleaner.compaction.stats import PassStats
from clog.cleaner.metered_store import StoppedError
from clog.cleaner.threads import ALONE, CleanerThreads
from clog.storage.format.chunks import NONE, Chunk
from clog.storage.format.edits import ChunkHorizon, DeadMark, Edit, Replacement

MARKS_MAX = 64
"""So many bitmaps are committed together, where no rewritten group takes them along."""

Publish = Callable[[Edit, PassStats], None]
"""Takes an edit that is ready to be committed, and the counts of its records; may raise
`SourcesChangedError`.
"""


@dataclass(frozen=True, slots=True)
class _Written:
    """What was made of a group; ``replaced`` is empty where it stays."""

    replaced: tuple[Replacement, ...]
    dead: tuple[DeadMark, ...]
    counts: PassStats


@dataclass(slots=True, kw_only=True)
class GroupCleaner:
    """Works on the groups of one pass.

    Args:
        covered: up to where the map went.
        threads: write the next groups meanwhile.

    Attributes:
        edit, counts: what is published next, and of how many records.
        horizons: of chunks that are left as they are.
        horizons_set: of how many tombstones.
    """

    plan: PassPlan
    covered: int
    rewriter: Rewriter
    bitmap_writer: BitmapWriter
    publish: Publish
    stopping: Callable[[], bool]
    threads: CleanerThreads = ALONE
    edit: Edit = field(default_factory=Edit)
    counts: PassStats = field(default_factory=PassStats)
    horizons: list[ChunkHorizon] = field(default_factory=list)
    horizons_set: int = 0

    def clean(self, groups: Iterable[Group]) -> bool:
        """Cleans all groups, and ends the pass; returns False when it stopped before that."""
        mine, theirs = tee(groups)
        calls = (
            (partial(self._written, group), self.rewriter.held_bytes(group)) for group in theirs
        )
        try:
            with self.threads.in_turn(calls) as turns:
                for group, turn in zip(mine, turns, strict=False):
                    if self.stopping():
                        raise StoppedError
                    if group.needs_work or len(self.edit.dead) >= MARKS_MAX:
                        self._publish()  # P5
                    self._take(group, turn())  # P4
            self._finish()  # P5 and P6
        except StoppedError:
            return self._stop()
        except SourcesChangedError:
            return False
        return True

    def _written(self, group: Group) -> _Written:
        """Writes what takes a group's place, and bitmaps; of several groups at once, where threads
        are free.
        """
        counts = PassStats()
        replaced = (self.rewriter.rewrite(group, counts),) if group.needs_work else ()
        return _Written(replaced, self.bitmap_writer.write(group, counts), counts)

    def _take(self, group: Group, written: _Written) -> None:
        """Makes a group part of what is published next."""
        edit = replace(self.edit, dead=(*self.edit.dead, *written.dead))
        if written.replaced:
            edit = replace(edit, replace=written.replaced)
        else:
            changed = [c for c in group.chunks if c.sets_horizons]
            self.horizons.extend(self._horizon(c.chunk) for c in changed)
            self.horizons_set += sum(map(new_horizons_in, changed))
        if (expired := last_expired(group)) != NONE:
            removed = {self.plan.partition: expired}  # Groups come in the order of offsets.
            edit = replace(edit, tombstones_removed=removed)
        self.edit = edit
        self.counts.add_records(written.counts)

    def _horizon(self, chunk: Chunk) -> ChunkHorizon:
        place = (self.plan.partition, chunk.object.path, chunk.first_row)
        return ChunkHorizon(*place, AT_COMMIT, self.covered)

    def _finish(self) -> None:
        """Publishes the last group; with it goes what ends the pass, unless that waits for other
        stretches.
        """
        if self.plan.stretch is None:
            self.counts.tombstones_stamped += self.horizons_set
            self.edit = ending(self.edit, self.plan, self.covered, self.horizons)
        self._publish()

    def _stop(self) -> bool:
        """Commits what is written already, so that it is not wasted; returns False."""
        try:
            self._publish()
        except SourcesChangedError:
            pass
        return False

    def _publish(self) -> None:
        edit, counts = self.edit, self.counts
        self.edit, self.counts = Edit(), PassStats()
        if edit != Edit():
            self.publish(edit, counts)


def ending(edit: Edit, plan: PassPlan, covered: int, horizons: Iterable[ChunkHorizon]) -> Edit:
    """Returns the edit with what ends a pass (P6): the first dirty offset, the horizons of chunks
    that are left as they are, and what becomes of markers (S24).
    """
    p, manifest = plan.partition, plan.manifest
    markers = [m for m in manifest.markers if m.partition == p and m.offset < covered]
    return replace(
        edit,
        first_dirty={p: covered} if covered != manifest.first_dirty[p] else {},
        horizons=tuple(horizons),
        marked=tuple((p, m.offset, AT_COMMIT) for m in markers if m.horizon_ms == NONE),
        unmarked=tuple(m.place for m in markers if m.may_go(plan.now_ms)),
    )
