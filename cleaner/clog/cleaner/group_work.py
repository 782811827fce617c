"""Steps 4 to 6 of a pass: groups are rewritten, marked and published, one after the other.

*Sources that were coalesced meanwhile.* Rows of sealed segments only ever become fewer. So where
the range of a group has as many live rows as when it was planned, and segments still meet its ends,
it has the same rows, whatever objects they lie in now: the map holds for them. The group is judged
once more, as it lies now, by the same map, and what the pass found dead in it with earlier maps is
carried over. The sum of step 2 (`witness`) is that of the first judging; the rows that go are asked
each time. What was written for the group is an orphan.

That happens where two cleaners work on one log: one coalesces what the other cleans. A chunk is
coalesced O(log) times, each time larger, so after `AGAIN_MAX` such groups in one another something
else is wrong, and the pass stops as it does for any other change of its sources.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from clog.cleaner.committing import SourcesChangedError
from clog.cleaner.fates import FateRules
from clog.cleaner.grouping import Group, grouped
from clog.cleaner.judging import Judge
from clog.cleaner.marking import Marker
from clog.cleaner.metered_store import StoppedError
from clog.cleaner.pass_plan import PassPlan
from clog.cleaner.rewriting import Rewriter, last_expired, stamped_in
from clog.cleaner.stats import PassStats
from clog.storage.chunks import NONE, Chunk
from clog.storage.edits import ChunkHorizon, Edit
from clog.storage.manifest import Manifest, Segment
from clog.storage.store.base import Store

MARKS_MAX = 64
"""So many bitmaps are committed together, where no rewritten group takes them along."""
AGAIN_MAX = 8
"""So often a group is judged once more."""

Publish = Callable[[PassPlan, Edit, PassStats], None]
"""Takes an edit that is ready to be committed, the plan by whose manifest it was made, and the
counts of its records; may raise `SourcesChangedError`.
"""
_Range = tuple[int, int]


@dataclass(slots=True)
class _Waiting:
    """What is published next: its edit, its counts, and the ranges of its groups."""

    edit: Edit = field(default_factory=Edit)
    counts: PassStats = field(default_factory=PassStats)
    ranges: list[_Range] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class GroupWorker:
    """Works on the groups of one pass.

    Args:
        plan: with the manifest from which the groups were judged.
        covered: up to where the map went.
        again: how many workers this one is called by.

    Attributes:
        waiting: what is published next.
        horizons: of chunks that are left as they are, with the ranges of their groups and the
            counts of tombstones.
    """

    store: Store
    plan: PassPlan
    covered: int
    judge: Judge
    rules: FateRules
    rewriter: Rewriter
    marker: Marker
    publish: Publish
    stopping: Callable[[], bool]
    again: int = 0
    waiting: _Waiting = field(default_factory=_Waiting)
    horizons: list[tuple[_Range, ChunkHorizon, int]] = field(default_factory=list)

    def clean(self, groups: Iterable[Group]) -> bool:
        """All groups, and what a pass ends with; False when it stopped before that."""
        try:
            self.work(groups)
            self.finish()  # steps 5 and 6
        except StoppedError:
            return self._stop()
        except SourcesChangedError:
            return False
        return True

    def work(self, groups: Iterable[Group]) -> None:
        """Works on groups; the last one waits to be published."""
        for group in groups:
            if self.stopping():
                raise StoppedError
            if group.needs_work or len(self.waiting.edit.dead) >= MARKS_MAX:
                self.flush()  # step 5
            self._take(group)  # step 4

    def _take(self, group: Group) -> None:
        waiting, where = self.waiting, (group.base, group.next)
        if group.needs_work:
            replacement = self.rewriter.rewrite(group, waiting.counts)
            waiting.edit = replace(waiting.edit, replace=(replacement,))
        else:
            self.horizons.extend(
                (where, self._horizon(c.chunk), stamped_in(c)) for c in group.chunks if c.stamps
            )
        dead = self.marker.mark(group, waiting.counts)
        waiting.edit = replace(waiting.edit, dead=(*waiting.edit.dead, *dead))
        if (expired := last_expired(group)) != NONE:
            removed = {self.plan.partition: expired}  # Groups come in the order of offsets.
            waiting.edit = replace(waiting.edit, tombstones_removed=removed)
        if group.needs_work or dead:
            waiting.ranges.append(where)

    def _horizon(self, chunk: Chunk) -> ChunkHorizon:
        place = (self.plan.partition, chunk.object.path, chunk.first_row)
        return ChunkHorizon(*place, self.rewriter.horizon_ms, self.covered)

    def flush(self) -> None:
        """Publishes what waits; what was coalesced meanwhile, as it lies now."""
        waiting, self.waiting = self.waiting, _Waiting()
        try:
            self._publish(waiting.edit, waiting.counts)
        except SourcesChangedError as e:
            worker = self._once_more(e, waiting.ranges)
            worker.flush()
            self.horizons.extend(worker.horizons)

    def finish(self) -> None:
        """Publishes the last group, with the first dirty offset and all horizons."""
        waiting, p = self.waiting, self.plan.partition
        waiting.counts.tombstones_stamped += sum(stamped for _, _, stamped in self.horizons)
        moves = {p: self.covered} if self.covered != self.plan.manifest.first_dirty[p] else {}
        horizons = tuple(h for _, h, _ in self.horizons)
        try:
            edit = replace(waiting.edit, first_dirty=moves, horizons=horizons)
            self._publish(edit, waiting.counts)
        except SourcesChangedError as e:
            stamped = (where for where, _, _ in self.horizons)
            self._once_more(e, [*waiting.ranges, *stamped]).finish()

    def _stop(self) -> bool:
        """What is written already is not wasted."""
        try:
            self._publish(self.waiting.edit, self.waiting.counts)
        except SourcesChangedError:
            pass
        return False

    def _publish(self, edit: Edit, counts: PassStats) -> None:
        if edit != Edit():
            self.publish(self.plan, edit, counts)

    def _once_more(self, error: SourcesChangedError, ranges: Iterable[_Range]) -> "GroupWorker":
        """A worker that has worked on the ranges as they are now.

        Raises:
            SourcesChangedError: more has changed than where their rows lie.
        """
        now, before, p = error.now, self.plan.manifest, self.plan.partition
        if now is None or self.again == AGAIN_MAX or now.first_dirty[p] != before.first_dirty[p]:
            raise error
        found = []
        for where in sorted(set(ranges)):
            segments = segments_of_same_rows(before, now, p, where)
            if segments is None:
                raise error
            chunks = [c for s in segments for c in s.chunks]
            self.judge.found.move(chunks_in(before, p, where), chunks)
            found.append(segments)
        judge = replace(self.judge)
        worker = replace(
            self,
            plan=replace(self.plan, manifest=now),
            judge=judge,
            rewriter=replace(self.rewriter, stamp=now.version, witness=judge.witness),
            marker=replace(self.marker, stamp=now.version),
            again=self.again + 1,
            waiting=_Waiting(),
            horizons=[],
        )
        worker.work(group for segments in found for group in worker.groups(segments))
        return worker

    def groups(self, segments: Iterable[Segment]) -> Iterator[Group]:
        """Segments, judged and grouped."""
        p, judge, rules = self.plan.partition, self.judge, self.rules
        judged = (rules.decided(judge.judge_segment(self.store, p, s)) for s in segments)
        segment_bytes = self.plan.config.segment_bytes
        return grouped(judged, segment_bytes=segment_bytes, covered=self.covered)


def segments_of_same_rows(
    before: Manifest, now: Manifest, partition: int, where: _Range
) -> list[Segment] | None:
    """The sealed segments of a range that have the rows that it had before; None where it has not,
    or they do not meet its ends. Pure.
    """
    base, end = where
    segments = [s for s in now.segments[partition][:-1] if base <= s.base and s.next <= end]
    rows = sum(c.live_rows for c in chunks_in(before, partition, where))
    meets = segments and segments[0].base == base and segments[-1].next == end
    return segments if meets and sum(s.rows for s in segments) == rows else None


def chunks_in(manifest: Manifest, partition: int, where: _Range) -> list[Chunk]:
    """The chunks that begin in a range. Pure."""
    segments = manifest.segments[partition]
    return [c for s in segments for c in s.chunks if where[0] <= c.base < where[1]]
