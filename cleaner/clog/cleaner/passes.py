"""One pass of the cleaner over one partition.

Vocabulary: *clean* ``[log start, first dirty)``, *dirty* ``[first dirty, first uncleanable)``, *covered*: the dirty range as far as the map goes.

1. `mapping`: key hash -> last offset, over the dirty sealed range, until the map is full (S18, S20).
2. `judging`: what is dead in each sealed segment that begins in the covered range, from the keys alone (S21, S23).
3. `grouping`: neighbours that fit one segment together (S25). A segment in which nothing died and that merges with none is left alone.
4. `rewriting`: the survivors of a group, written as one segment (S26).
5. Commit of the group: its segments for the new one, if its sources are still exactly those judged. Crash before: orphans. After: progress.
6. With the last group: the first dirty offset, and the horizons of tombstones in chunks left alone.

*Safety.* Groups are committed oldest first. So when a tombstone is stamped (5 or 6) every older value of its key is gone, and when a later pass finds
its horizon passed it may go without bringing one back. Steps 4 and 5 stop at the first group whose sources changed: what is after it keeps its
tombstones, and the first dirty offset stays, so the next pass maps the same range again. Whatever was committed is right by itself.

Not here: which partition (`selection`), what happens to the replaced objects (`sweep`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from clog.cleaner.grouping import Group, grouped
from clog.cleaner.judging import Judge, JudgedSegment, judge_segment
from clog.cleaner.mapping import KeyHasher, build_map
from clog.cleaner.metered_store import MeteredStore, Throttle
from clog.cleaner.rewriting import Rewriter
from clog.cleaner.selection import Candidate
from clog.cleaner.stats import PassResult, PassStats
from clog.storage.chunks import NONE
from clog.storage.commits import Commit
from clog.storage.config import LogConfig
from clog.storage.edits import ChunkHorizon, Edit, Replacement
from clog.storage.handle import Handle
from clog.storage.manifest import Manifest
from clog.storage.offset_map import OffsetMap


class SourcesChangedError(Exception):
    """Somebody else changed what the pass was about to replace: it stops there, and nothing is lost."""


@dataclass(frozen=True, slots=True)
class PassTools:
    """What a pass works with: its share of the map's memory (S18), the throttle of all threads (S29), its seed (S19)."""

    offset_map: OffsetMap
    throttle: Throttle
    hasher: KeyHasher


def run_pass(handle: Handle, candidate: Candidate, tools: PassTools, *, now_ms: int) -> PassResult:
    """Cleans one partition; returns what it did. ``now_ms`` is the pass's start: horizons count from it (S23)."""
    manifest = handle.manifest()
    p = candidate.partition
    clock = handle.clock
    stats = PassStats()
    store = MeteredStore(handle.store, tools.throttle)
    started_ms = clock.monotonic_ms()
    config = LogConfig.from_overrides(manifest.head.config)
    dirty = (candidate.bounds.first_dirty, candidate.bounds.first_uncleanable)
    tools.offset_map.clear()
    covered = build_map(store, manifest, p, dirty, tools.offset_map, tools.hasher, stats)
    mapped_ms = clock.monotonic_ms()
    log_start = manifest.head.partitions.start[p]
    judge = Judge(tools.offset_map, tools.hasher, log_start, now_ms)
    sealed = [s for s in manifest.segments[p][:-1] if s.base < covered]
    judged = [judge_segment(store, p, s, judge) for s in sealed]
    groups = grouped(
        judged, segment_bytes=config.segment_bytes, segment_chunks=config.segment_chunks
    )
    stats.segments_before = len(sealed)
    stats.size_bytes_before = sum(s.size_bytes for s in sealed)
    rewriter = Rewriter(
        store=store,
        partition=p,
        judge=judge,
        config=config,
        stamp=manifest.version,
        horizon_ms=now_ms + config.delete_retention_ms,
        new_id=handle.ids.new_id,
        stats=stats,
    )
    done = _Pass(handle, manifest, p, stats).commit_groups(groups, rewriter, covered)
    after = [s for s in handle.manifest().segments[p][:-1] if s.base < covered]
    stats.segments_after = len(after)
    stats.size_bytes_after = sum(s.size_bytes for s in after)
    stats.bytes_read, stats.bytes_written = store.bytes_read, store.bytes_written
    stats.index_ms = mapped_ms - started_ms
    stats.clean_ms = clock.monotonic_ms() - mapped_ms
    return PassResult(p, dirty[0], covered if done else dirty[0], stats)


@dataclass(slots=True)
class _Pass:
    """Steps 4 to 6."""

    handle: Handle
    planned: Manifest
    partition: int
    stats: PassStats

    def commit_groups(self, groups: Sequence[Group], rewriter: Rewriter, covered: int) -> bool:
        """Rewrites and commits group by group; False when the pass stopped because sources had changed."""
        work = [g for g in groups if g.needs_work]
        horizons = _horizons_left_alone(
            self.partition, groups, rewriter.horizon_ms, rewriter.judge.offset_map.latest_offset + 1
        )
        self.stats.tombstones_stamped += sum(
            c.chunk.tombstones for g in groups if not g.needs_work for c in g.chunks if c.stamps
        )
        first_dirty = self.planned.first_dirty[self.partition]
        moves = {self.partition: covered} if covered != first_dirty else {}
        try:
            for i, group in enumerate(work):
                replacement, removed = rewriter.rewrite(group)  # step 4
                is_last = i == len(work) - 1
                self._commit(  # step 5, and step 6 with the last group
                    Edit(
                        replace=(replacement,),
                        tombstones_removed={self.partition: removed} if removed != NONE else {},
                        first_dirty=moves if is_last else {},
                        horizons=horizons if is_last else (),
                    )
                )
            if not work and (moves or horizons):
                self._commit(Edit(first_dirty=moves, horizons=horizons))
        except SourcesChangedError:
            return False
        return True

    def _commit(self, edit: Edit) -> None:
        def prepare(tip: Commit, _: int) -> Edit:
            p = self.partition
            moves = {p: max(to, tip.head.partitions.start[p]) for to in edit.first_dirty.values()}
            if tip.head.partitions.changed[p] > self.planned.version:
                now = self.handle.manifest()
                if not (
                    all(_is_as_planned(r, self.planned, now) for r in edit.replace)
                    and all(_is_unstamped(h, now) for h in edit.horizons)
                ):
                    raise SourcesChangedError
                moves = {p: max(to, now.first_dirty[p]) for to in moves.values()}
            return replace(edit, first_dirty=moves)

        self.handle.commit(prepare, operation="clean")
        self.stats.groups_committed += 1


def _is_as_planned(r: Replacement, planned: Manifest, now: Manifest) -> bool:
    """Whether the chunks in the range are those that were judged, horizons included."""
    before, after = (
        [c for s in m.segments[r.partition] for c in s.chunks if r.base <= c.base < r.next]
        for m in (planned, now)
    )
    bases = {s.base for s in now.segments[r.partition]}
    return before == after and r.base in bases


def _is_unstamped(h: ChunkHorizon, now: Manifest) -> bool:
    identity = (h.object_path, h.first_row)
    chunks = (c for s in now.segments[h.partition] for c in s.chunks)
    return any(c.identity == identity and c.horizon == NONE for c in chunks)


def _horizons_left_alone(
    partition: int, groups: Sequence[Group], horizon_ms: int, up_to: int
) -> tuple[ChunkHorizon, ...]:
    left: list[JudgedSegment] = [s for g in groups if not g.needs_work for s in g.segments]
    return tuple(
        ChunkHorizon(partition, c.chunk.object.path, c.chunk.first_row, horizon_ms, up_to)
        for s in left
        for c in s.chunks
        if c.stamps
    )
