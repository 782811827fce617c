"""One pass of the cleaner over one partition, which `selection` chose.

Vocabulary: *clean* ``[log start, first dirty)``, *dirty* ``[first dirty, first uncleanable)``,
*covered*: up to where the map reaches.

P1. `build_map`: key hash -> last offset, over the dirty sealed range, until the map is full (S18,
    S20); what it supersedes is noted, and the next map continues: up to `MAPS_MAX` feed a rewrite.
P2. `judge`: what is dead in each sealed segment that begins in the covered range (S21, S23).
P3. `rewriter`: chunks are left, marked or rewritten, and neighbours joined into groups (S25).
P4. `rewriter`: what stays of a group is written as one segment (S26), and bitmaps of dead rows.
P5. `commit_pass` of the group, if its chunks are still exactly those judged, or `rebase` finds the
    same rows elsewhere. After a crash before it there are orphans; after it, progress.
P6. With the last group: the first dirty offset, and horizons of tombstones in chunks left alone.

P2 to P5 proceed group by group, oldest first: when a tombstone gets its horizon, every older value
of its key is gone. The pass stops at the first group whose sources changed; the next one maps the
same range again. Horizons count from the commit that sets them, and never change. A pass over one
stretch of a partition sets none, nor the first dirty offset: `commit_covered` does both afterwards.

cleaner/PASS.md has each of these at length, and why it is safe.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields, replace
from operator import attrgetter
from typing import Self

from clog.cleaner.masks import MaskCarrier
from clog.cleaner.passes.judge import IndexFilter, Judge, JudgedSegment
from clog.cleaner.passes.offset_map import (
    FOUND_BYTES_MAX,
    FoundDead,
    KeyHasher,
    Ranking,
    build_map,
    empty_map,
)
from clog.cleaner.passes.ordered import SoleTombstones, completed, with_orders, without_late
from clog.cleaner.passes.rewriter import (
    AT_COMMIT,
    Group,
    RewritePolicy,
    Rewriter,
    Written,
    grouped,
    last_expired,
    new_horizons_in,
)
from clog.cleaner.selection import (
    PassPlan,
    PassResult,
    PassStats,
    Stretch,
    earliest_horizon_ms,
    latest_horizon_ms,
)
from clog.cleaner.threads import (
    CleanerThreads,
    MeteredStore,
    NotedStore,
    StoppedError,
    Throttle,
)
from clog.storage.commit.handle import Handle
from clog.storage.commit.versions import file_missing
from clog.storage.config.log_config import LogConfig, order_text
from clog.storage.env import Clock, dataclass
from clog.storage.errors import CorruptionError
from clog.storage.format.chunks import TIME_MS_MAX, Chunk, ChunkHorizon, DeadMark, Replacement
from clog.storage.format.commits import Commit, Edit
from clog.storage.format.documents import NONE
from clog.storage.format.manifest import Manifest, apply
from clog.storage.read.cleanable import cleanable_bounds
from clog.storage.read.scan import ordering_of
from clog.storage.store.contract import Store


class SourcesChangedError(Exception):
    """Another writer changed what was about to be replaced."""


def rebase(edit: Edit, partition: int, planned: Manifest, now: Manifest) -> Edit:
    """Returns a pass's edit as it applies now; SourcesChangedError: more than places changed."""
    before, after = _Chunks.of(planned, partition), _Chunks.of(now, partition)
    bases = {s.base for s in now.segments[partition]}
    ends = {s.next for s in now.segments[partition]}
    if not (
        all(r.base in bases and r.next in ends for r in edit.replace)
        and all(_is_marked_as_planned(mark, before, after) for mark in edit.dead)
    ):
        raise SourcesChangedError
    moved = (h for given in edit.horizons for h in _horizons(given, before, after))
    horizons = {(h.object_path, h.first_row): h for h in moved}
    return replace(
        edit,
        replace=tuple(_replacement(r, before, after) for r in edit.replace),
        horizons=tuple(horizons.values()),
    )


@dataclass(frozen=True, slots=True)
class _Chunks:
    """The chunks of a partition, in offset order and by identity."""

    ordered: Sequence[Chunk]
    known: Mapping[tuple[str, int], Chunk]

    @classmethod
    def of(cls, manifest: Manifest, partition: int) -> Self:
        ordered = [c for s in manifest.segments[partition] for c in s.chunks]
        return cls(ordered, {c.identity: c for c in ordered})

    def within(self, base: int, end: int) -> Sequence[Chunk]:
        """Returns the chunks that reach into a range."""
        first = bisect_right(self.ordered, base, key=attrgetter("next"))
        return self.ordered[first : bisect_left(self.ordered, end, key=attrgetter("base"))]

    def at(self, place: ChunkHorizon | DeadMark) -> Chunk | None:
        return self.known.get((place.object_path, place.first_row))


def _replacement(r: Replacement, planned: _Chunks, now: _Chunks) -> Replacement:
    before, after = planned.within(r.base, r.next), now.within(r.base, r.next)
    kept = {c.identity for c in r.chunks}
    stay = all(
        c.is_but_for_its_mask(now.known.get(c.identity)) for c in before if c.identity in kept
    )
    if not (stay and _has_same_rows(before, after)):
        raise SourcesChangedError
    return replace(r, sources=tuple(c.identity for c in after))


def _horizons(h: ChunkHorizon, planned: _Chunks, now: _Chunks) -> Iterator[ChunkHorizon]:
    """Yields the same horizon for the chunks in which the rows are now."""
    chunk = planned.at(h)
    assert chunk is not None, "what gets a horizon was judged"
    there = now.within(chunk.base, chunk.next)
    if now.at(h) is None:
        base = min((c.base for c in there), default=chunk.base)
        end = max((c.next for c in there), default=chunk.next)
        if not _has_same_rows(planned.within(base, end), there):
            raise SourcesChangedError
    for c in there:
        if c.horizon != NONE:
            raise SourcesChangedError
        yield ChunkHorizon(h.partition, *c.identity, h.horizon_ms, h.up_to)


def _has_same_rows(before: Sequence[Chunk], after: Sequence[Chunk]) -> bool:
    """Returns whether chunks hold all rows of the earlier ones, with their horizons."""
    if before == after:
        return True
    had, have = _horizons_of(before), _horizons_of(after)
    is_new = have and not (had and had[0] <= have[0] and have[-1] <= had[-1])
    return not is_new and sum(c.live_rows for c in before) == sum(c.live_rows for c in after)


def _horizons_of(chunks: Sequence[Chunk]) -> list[int]:
    """Returns the earliest and the latest horizon of each chunk, in order."""
    both = (ms for c in chunks for ms in (earliest_horizon_ms(c), latest_horizon_ms(c)))
    return sorted(ms for ms in both if ms != NONE)


def _is_marked_as_planned(mark: DeadMark, planned: _Chunks, now: _Chunks) -> bool:
    """Returns whether the chunk still exists with the dead rows that it had when it was judged."""
    before, after = planned.at(mark), now.at(mark)
    return before is not None and after is not None and before.dead == after.dead


def ending(edit: Edit, plan: PassPlan, covered: int, horizons: Iterable[ChunkHorizon]) -> Edit:
    """Returns the edit plus the end of a pass (P6): first dirty offset, horizons, markers (S24)."""
    p, manifest = plan.partition, plan.manifest
    markers = [m for m in manifest.markers if m.partition == p and m.offset < covered]
    return replace(
        edit,
        first_dirty={p: covered} if covered != manifest.first_dirty[p] else {},
        horizons=tuple(horizons),
        marked=tuple((p, m.offset, AT_COMMIT) for m in markers if m.horizon_ms == NONE),
        unmarked=tuple(m.place for m in markers if m.may_go(plan.now_ms)),
    )


def commit_pass(
    handle: Handle,
    planned: Manifest,
    partition: int,
    edit: Edit,
    *,
    operation: str,
    delete_retention_ms: int,
    store: Store | None = None,
    gone: tuple[SoleTombstones, KeyHasher] | None = None,
) -> Commit:
    """Commits an edit of one partition that was planned at ``planned`` and whose objects are
    stamped with that version. The first dirty offset never goes back; delete horizons count from
    the commit. ``store``: the handle's, perhaps wrapped. ``gone``: the tombstones that it
    removes, where the last record need not win.
    """
    carrier = MaskCarrier(store or handle.store, planned.version, handle.ids.new_id)

    def prepare(tip: Commit, time_ms: int) -> Edit:
        if (edit.replace or edit.dead) and tip.head.may_be_swept(planned.version):
            raise SourcesChangedError
        now = handle.manifest()
        if order_text(planned.head.config) != order_text(now.head.config):
            raise SourcesChangedError
        if gone and not gone[0].left_alone(handle.store, now, partition, gone[1]):
            raise SourcesChangedError
        is_changed = tip.head.partitions.changed[partition] > planned.version
        fitting = rebase(edit, partition, planned, now) if is_changed else edit
        fitting = _with_present_markers(fitting, now)
        dated = _with_horizons(fitting, commit_ms=time_ms, delete_retention_ms=delete_retention_ms)
        made = replace(dated, first_dirty=_not_back(edit, now))
        if gone or now.orders_removed:
            made = with_orders(made, now, partition, gone and gone[0])
        return tried(made, now, carrier, time_ms=time_ms)

    return handle.commit(prepare, operation=operation)


def _with_present_markers(edit: Edit, now: Manifest) -> Edit:
    """Returns the edit without markers that are gone or have got their horizon elsewhere. Pure."""
    if not (edit.marked or edit.unmarked):
        return edit
    there = {m.place: m.horizon_ms for m in now.markers}
    marked = (mark for mark in edit.marked if there.get(mark[:2]) == NONE)
    unmarked = (place for place in edit.unmarked if there.get(place, NONE) != NONE)
    return replace(edit, marked=tuple(marked), unmarked=tuple(unmarked))


def _with_horizons(edit: Edit, *, commit_ms: int, delete_retention_ms: int) -> Edit:
    """Returns the edit with the horizons that a commit at that time sets. Pure."""
    horizon_ms = min(commit_ms + delete_retention_ms, TIME_MS_MAX)
    return replace(
        edit,
        horizons=tuple(
            replace(h, horizon_ms=horizon_ms) if h.horizon_ms == AT_COMMIT else h
            for h in edit.horizons
        ),
        marked=tuple(
            (p, offset, horizon_ms if ms == AT_COMMIT else ms) for p, offset, ms in edit.marked
        ),
        replace=tuple(
            replace(
                r,
                chunks=tuple(
                    replace(c, horizon=horizon_ms) if c.horizon == AT_COMMIT else c
                    for c in r.chunks
                ),
            )
            for r in edit.replace
        ),
    )


def tried(edit: Edit, now: Manifest, carrier: MaskCarrier, *, time_ms: int) -> Edit:
    """Returns the edit with its new chunks' masks; raises if it would make the log unreadable."""
    if now.covered:
        edit = carrier.with_masks(edit, now)
    apply(now, edit, commit_id="", time_ms=time_ms)
    return edit


def _not_back(edit: Edit, now: Manifest) -> dict[int, int]:
    config = LogConfig.from_overrides(now.head.config)
    return {
        p: max(to, cleanable_bounds(now, p, config, now_ms=now.time_ms).first_dirty)
        for p, to in edit.first_dirty.items()
    }


MAPPING = "mapping"
CLEANING = "cleaning"


@dataclass(slots=True)
class PassProgress:
    """A pass under way.

    Attributes:
        stats: its counts so far.
        phase: `MAPPING` the dirty keys, then `CLEANING` segment by segment.
        phase_began_ms: when it began, by the monotonic time of the pass's clock.
        records_total: records that the phase goes through.
        records_judged: those that were judged.
    """

    stats: PassStats = field(default_factory=PassStats)
    phase: str = MAPPING
    phase_began_ms: int = 0
    records_total: int = 0
    records_judged: int = 0
    _store: MeteredStore | None = None

    @property
    def records_done(self) -> int:
        """How many of ``records_total`` are done."""
        return self.stats.map_records if self.phase == MAPPING else self.records_judged

    @property
    def moved_ms(self) -> int | None:
        """When the pass last moved a byte or began a phase; None if that is not known here."""
        return max(self.phase_began_ms, self._store.moved_ms) if self._store else None

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written so far."""
        return self._store.bytes_read + self._store.bytes_written if self._store else 0

    def begin_mapping(self, store: MeteredStore, *, records_total: int, now_ms: int) -> None:
        """Begins P1; the bytes that the store counts from now on are this pass's."""
        self._store, self.records_total, self.phase_began_ms = store, records_total, now_ms

    def begin_cleaning(self, *, records_total: int, now_ms: int) -> None:
        """Begins P2, and with it P3 to P6."""
        self.phase, self.records_total, self.phase_began_ms = CLEANING, records_total, now_ms


MAPS_MAX = 8
"""The most maps that feed one rewrite."""


@dataclass(frozen=True, slots=True)
class PassTools:
    """What a pass works with.

    Args:
        threads: the cleaner's; they say how much memory its map may use (S18), and do a part of it.
        throttle: the one of all threads (S29); it also says when to stop.
        hasher: has its own seed (S19).
        clock: measures durations.
        new_id: names objects.
        progress: kept up to date.
        check_clock: raises if the wall clock, by which horizons are set, has become wrong.
    """

    threads: CleanerThreads
    throttle: Throttle
    hasher: KeyHasher
    clock: Clock
    new_id: Callable[[], str]
    progress: PassProgress = field(default_factory=PassProgress)
    check_clock: Callable[[], object] = lambda: None


_MARKS_MAX = 64
"""This many bitmaps are committed together if no rewritten group takes them along."""


def run_pass(handle: Handle, plan: PassPlan, tools: PassTools) -> PassResult:
    """Cleans one partition as planned, committing group by group; returns the result."""
    stats, noted = tools.progress.stats, NotedStore(handle.store)
    try:
        with noted.leaves_room(handle):
            settled = _settled(handle, noted, plan, tools)
            covered, complete = _execute_pass(handle, noted, settled, tools)
    except SourcesChangedError:
        covered, complete = plan.dirty[0], False
    except FileNotFoundError as e:
        error = file_missing(handle.store, plan.manifest.version, e)
        if isinstance(error, CorruptionError):
            raise error from e
        handle.refresh()
        covered, complete = plan.dirty[0], False  # Another cleaner replaced it, and swept.
    return finished(plan, covered, stats, complete=complete, after=handle.manifest())


def _ranking(plan: PassPlan) -> Ranking | None:
    """Returns how records are compared, if the last one of a key need not win."""
    manifest, p = plan.manifest, plan.partition
    order = ordering_of(manifest, p)
    if order is None:
        return None
    return Ranking(order, manifest.orders_removed_of(p), order.drops_late)


def _settled(handle: Handle, store: Store, plan: PassPlan, tools: PassTools) -> PassPlan:
    """Returns the plan once late records that are to be dropped have been dropped."""
    ranking = _ranking(plan)
    if ranking is None or not ranking.stops:
        return plan
    settled = without_late(
        *(handle, MeteredStore(store, tools.throttle), plan),
        ranking=ranking,
        hasher=tools.hasher,
        threads=tools.threads,
        stats=tools.progress.stats,
    )
    if settled is None:
        raise SourcesChangedError
    return settled


def _execute_pass(
    handle: Handle, store: Store, plan: PassPlan, tools: PassTools
) -> tuple[int, bool]:
    """Does all steps; returns up to where the map reached, and whether all was done."""
    p, manifest, (first, end) = plan.partition, plan.manifest, plan.dirty
    progress, stats = tools.progress, tools.progress.stats
    metered = MeteredStore(store, tools.throttle)
    records = sum(s.rows for s in manifest.segments[p][:-1] if first < s.next <= end)
    started_ms = tools.clock.monotonic_ms()
    progress.begin_mapping(metered, records_total=records, now_ms=started_ms)
    judge = _mapped(metered, plan, tools)  # P1
    covered, mapped_ms = judge.mapped.end, tools.clock.monotonic_ms()
    sealed = [s for s in plan.sealed if s.base < covered]
    progress.begin_cleaning(records_total=sum(s.rows for s in sealed), now_ms=mapped_ms)
    policy = RewritePolicy(plan.config, plan.now_ms)
    rewriter = Rewriter(metered, plan, judge, tools.new_id, tools.threads)
    sole = judge.held if isinstance(judge.held, SoleTombstones) else None
    pending = _Pending(
        handle=handle, store=store, plan=plan, tools=tools, covered=covered, sole=sole
    )

    def judged() -> Iterator[JudgedSegment]:
        """Yields each segment when it is asked for: the masks of all would not fit into memory."""
        for segment in sealed:
            yield judge.judge_segment(metered, p, segment, policy.action)  # P2
            progress.records_judged += segment.rows
        judge.recheck.check_range(p)

    complete = False
    try:
        groups = grouped(judged(), plan.config, covered=covered)  # P3
        with tools.threads.each(groups, rewriter.write, rewriter.held_bytes) as each:
            for group, write in each:
                if tools.throttle.stopping():
                    raise StoppedError
                if group.needs_work or len(pending.edit.dead) >= _MARKS_MAX:
                    pending.commit()  # P5, of the groups before this one
                pending.add(group, write())  # P4
        pending.end()  # P5 of the last groups, and P6
        complete = True
    except StoppedError:
        with suppress(SourcesChangedError):  # Do not waste what is already written.
            pending.commit()
    except SourcesChangedError:
        pass  # The next pass maps the same range again.
    stats.chunks_untouched = judge.index_filter.count
    stats.segments_before = len(sealed)
    stats.size_bytes_before = sum(s.size_bytes for s in sealed)
    stats.bytes_read, stats.bytes_written = metered.bytes_read, metered.bytes_written
    stats.index_ms = mapped_ms - started_ms
    stats.clean_ms = tools.clock.monotonic_ms() - mapped_ms
    return covered, complete


@dataclass(slots=True, kw_only=True)
class _Pending:
    """What a pass has written and has yet to commit.

    Args:
        store: the handle's, wrapped.
        covered: up to where the map reaches.
        sole: the tombstones that may be removed, where the last record need not win.

    Attributes:
        edit, counts: what is committed next, and the counts of its records.
        horizons: those of chunks that are left as they are.
        horizons_set: the number of tombstones that get them.
        removed: the highest offset of a tombstone that was removed.
    """

    handle: Handle
    store: Store
    plan: PassPlan
    tools: PassTools
    covered: int
    sole: SoleTombstones | None
    edit: Edit = field(default_factory=Edit)
    counts: PassStats = field(default_factory=PassStats)
    horizons: list[ChunkHorizon] = field(default_factory=list)
    horizons_set: int = 0
    removed: int = NONE

    def add(self, group: Group, written: Written) -> None:
        """Adds a group to what is committed next."""
        p, edit = self.plan.partition, replace(self.edit, dead=(*self.edit.dead, *written.dead))
        if written.replaced:
            edit = replace(edit, replace=written.replaced)
        else:
            changed = [c for c in group.chunks if c.sets_horizons]
            places = (c.chunk.identity for c in changed)
            self.horizons += (ChunkHorizon(p, *at, AT_COMMIT, self.covered) for at in places)
            self.horizons_set += sum(map(new_horizons_in, changed))
        if (expired := last_expired(group)) != NONE:
            edit = replace(edit, tombstones_removed={p: expired})  # Groups come in offset order.
        self.edit = edit
        self.counts.add_records(written.counts)

    def commit(self) -> None:
        """Does P5, if there is anything to commit."""
        edit, counts, plan, tools, gone = self.edit, self.counts, self.plan, self.tools, None
        self.edit, self.counts = Edit(), PassStats()
        if edit == Edit():
            return
        if self.sole is not None and edit.tombstones_removed:
            last = edit.tombstones_removed[plan.partition]
            gone, self.removed = (self.sole.between(self.removed, last), tools.hasher), last
        tools.check_clock()  # Hours may have passed, and the commit sets horizons.
        commit_pass(
            *(self.handle, plan.manifest, plan.partition, edit),
            operation="clean",
            delete_retention_ms=plan.config.delete_retention_ms,
            store=self.store,
            gone=gone,
        )
        tools.progress.stats.add_records(counts)
        tools.progress.stats.groups_committed += 1

    def end(self) -> None:
        """Does P5 of what is left, and P6, unless other stretches come first."""
        if self.plan.stretch is None:
            self.counts.tombstones_stamped += self.horizons_set
            self.edit = ending(self.edit, self.plan, self.covered, self.horizons)
        self.commit()
        if self.plan.stretch is not None:  # Chunks get them once all stretches are done.
            self.tools.progress.stats.tombstones_stamped += self.horizons_set


def _mapped(store: Store, plan: PassPlan, tools: PassTools) -> Judge:
    """Does P1: returns a judge with the last map and what earlier maps found dead."""
    p, manifest, (first, end) = plan.partition, plan.manifest, plan.dirty
    stats = tools.progress.stats
    ranking, found = _ranking(plan), FoundDead()
    memory = tools.threads.map_bytes
    offset_map = empty_map(manifest, p, plan.dirty, memory, is_ranked=ranking is not None)
    log_start, at = manifest.head.partitions.start[p], first
    sealed = plan.sealed
    clean = (c for s in sealed for c in s.chunks if c.next <= first)
    index_filter = IndexFilter(manifest.head.log.key_seed, clean)
    judged = (sealed[0].base, sealed[-1].next) if sealed else (end, end)
    while True:
        mapped = build_map(
            *(store, manifest, p, (at, end)),
            offset_map=offset_map,
            hasher=tools.hasher,
            stats=stats,
            index_filter=index_filter,
            threads=tools.threads,
            judged=judged,
            ranking=ranking,
        )
        held = plan.held
        if ranking is not None:
            held = completed(
                *(store, plan, mapped),
                ranking=ranking,
                hasher=tools.hasher,
                index_filter=index_filter,
                stats=stats,
            )
        used = len(offset_map) * offset_map.row_bytes / memory
        stats.map_utilization = max(stats.map_utilization, used)
        judge = Judge(
            *(offset_map, mapped, found, tools.hasher, log_start, first, plan.now_ms),
            index_filter=index_filter,
            schema=manifest.head.log.schema,
            held=held,
            threads=tools.threads,
        )
        if (
            mapped.end == end
            or ranking is not None
            or stats.maps == MAPS_MAX
            or found.size_bytes > FOUND_BYTES_MAX
        ):
            return judge
        for segment in sealed:
            if segment.base < mapped.end:
                judge.find_dead(store, p, segment)
        at = mapped.end
        offset_map.clear()
        index_filter.begin()


def finished(
    plan: PassPlan, covered: int, stats: PassStats, *, complete: bool, after: Manifest
) -> PassResult:
    """Returns the result, now that the manifest has everything that was committed."""
    first_dirty, _ = plan.dirty
    left = [s for s in replace(plan, manifest=after).sealed if s.base < covered]
    stats.segments_after = len(left)
    stats.size_bytes_after = sum(s.size_bytes for s in left)
    next_dirty = covered if complete else first_dirty
    return PassResult(plan.partition, first_dirty, next_dirty, stats, complete)


STRETCHES_MAX = 8
"""The most parts of one partition: each reads all dirty keys."""


def stretches(plan: PassPlan, *, task_bytes: int, count_max: int) -> list[Stretch]:
    """Cuts a partition if the segments that a pass would go through have more than ``task_bytes``.
    Returns nothing if it is not cut: it is not larger, it is one segment, ``count_max`` is 1, or
    the last record of a key need not win.
    """
    if ordering_of(plan.manifest, plan.partition) is not None:
        return []
    sealed, (_, dirty_end) = plan.sealed, plan.dirty
    size_bytes = sum(s.size_bytes for s in sealed)
    parts = min(math.ceil(size_bytes / task_bytes), count_max, STRETCHES_MAX)
    starts, before_bytes = [0], 0
    for segment in sealed:
        if before_bytes >= len(starts) * size_bytes / max(parts, 1):
            starts.append(segment.base)
        before_bytes += segment.size_bytes
    if len(starts) < 2:
        return []
    ends = [*starts[1:], dirty_end]
    return [Stretch(*edges, dirty_end) for edges in zip(starts, ends, strict=True)]


def commit_covered(
    handle: Handle, plan: PassPlan, passes: Sequence[Sequence[PassResult]]
) -> PassResult:
    """Ends the pass over stretches, if all were cleaned; returns their results, added up."""
    first_dirty, _ = plan.dirty
    stats = PassStats()
    for result in (result for of_one in passes for result in of_one):
        _add(stats, result.stats)
    covered = min(of_one[-1].next_dirty_offset for of_one in passes)
    complete = all(of_one[-1].complete for of_one in passes) and _commit(handle, plan, covered)
    return PassResult(
        plan.partition, first_dirty, covered if complete else first_dirty, stats, complete
    )


def _add(stats: PassStats, other: PassStats) -> None:
    """Adds the counts of another pass over the same partition."""
    for each in fields(stats):
        mine, its = getattr(stats, each.name), getattr(other, each.name)
        together = max(mine, its) if each.name == "map_utilization" else mine + its
        setattr(stats, each.name, together)


def _commit(handle: Handle, plan: PassPlan, covered: int) -> bool:
    """Commits the end of the pass; returns False if the partition has changed since."""
    handle.refresh()
    now = replace(plan, manifest=handle.manifest())
    edit = ending(Edit(), now, covered, _undated(now, covered))
    if edit == Edit():
        return True
    try:
        commit_pass(
            *(handle, now.manifest, now.partition, edit),
            operation="clean",
            delete_retention_ms=plan.config.delete_retention_ms,
        )
    except SourcesChangedError:
        return False
    return True


def _undated(plan: PassPlan, covered: int) -> Iterator[ChunkHorizon]:
    """Yields the horizon of each chunk with tombstones that may not have one yet. A chunk that has
    its own horizon did not need one: the pass rewrote those that did (`rewriter`).
    """
    for segment in plan.sealed:
        if segment.base >= covered:
            return
        for c in segment.chunks:
            if c.tombstones and c.next > plan.dirty[0] and c.horizon == NONE:
                yield ChunkHorizon(plan.partition, *c.identity, AT_COMMIT, covered)
