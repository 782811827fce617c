"""One pass of the cleaner over one partition.

Vocabulary: *clean* ``[log start, first dirty)``, *dirty* ``[first dirty, first uncleanable)``,
*covered*: up to where the map goes.

P1. `build_map`: key hash -> last offset, over the dirty sealed range, until the map is full (S18,
    S20). Then what it supersedes is noted, a bit a row, and the next map goes on where it ended: up
    to `MAPS_MAX` maps feed one rewrite, since writing costs far more than reading keys again. A
    crash loses the notes, the next pass starts from the same offset: so their number is bounded.
P2. `judge`: what is dead in each sealed segment that begins in the covered range, from the keys
    alone (S21, S23).
P3. `rewrite_policy`: chunks in which little died are to be marked, those in which more did,
    rewritten. `grouping`: neighbours that fit one segment together (S25).
P4. `rewriter`: the records of a group that stay, written as one segment (S26). A group of one
    segment of which nothing is to be rewritten is left alone. `bitmaps`: those of dead rows.
P5. `commit_pass` of the group: the new segment for its sources, bitmaps for its chunks, if these
    are still exactly those judged. Crash before: orphans. After: progress.
P6. With the last group: the first dirty offset, and the horizons of tombstones in chunks left
    alone.

P2 to P5 go on group by group, so that memory and the extra space in the store are about one
group's; one for each thread, where the cleaner has several and they have no pass of their own
(`threads`).

*Safety.* Groups are committed oldest first. So when a tombstone gets its horizon (P5 or P6) every
older value of its key is gone, and when a later pass finds its horizon passed it may go without
bringing one back. The pass stops at the first group whose sources changed: what is after it keeps
its tombstones, and the first dirty offset stays, so the next pass maps the same range again.
Whatever was committed is right by itself. Sources that were only coalesced are no reason to stop
(`rebase`), unless they were swept, too, before the pass came to them (`file_missing`).

Not here: which partition (`selection`), what happens to the replaced objects (`sweep`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from clog.cleaner.compaction.bitmaps import BitmapWriter
from clog.cleaner.compaction.build_map import KeyHasher, build_map, empty_map
from clog.cleaner.compaction.commit_pass import commit_pass
from clog.cleaner.compaction.group_cleaner import GroupCleaner, Publish
from clog.cleaner.compaction.grouping import grouped
from clog.cleaner.compaction.index_filter import IndexFilter
from clog.cleaner.compaction.judge import Judge, JudgedSegment
from clog.cleaner.compaction.mapped_range import FOUND_BYTES_MAX, FoundDead
from clog.cleaner.compaction.offset_map import SLOT_BYTES
from clog.cleaner.compaction.pass_plan import PassPlan
from clog.cleaner.compaction.pass_progress import PassProgress
from clog.cleaner.compaction.recheck import Recheck
from clog.cleaner.compaction.rewrite_policy import RewritePolicy
from clog.cleaner.compaction.rewriter import Rewriter
from clog.cleaner.compaction.stats import PassResult, PassStats
from clog.cleaner.metered_store import GatheredStore, MeteredStore, Throttle
from clog.cleaner.threads import CleanerThreads
from clog.storage.clock import Clock
from clog.storage.commit.handle import Handle
from clog.storage.commit.versions import file_missing
from clog.storage.errors import CorruptionError
from clog.storage.format.edits import Edit
from clog.storage.format.features import DEAD_ROWS
from clog.storage.format.manifest import Manifest
from clog.storage.store.base import Store

MAPS_MAX = 8
"""Maps that feed one rewrite."""


@dataclass(frozen=True, slots=True)
class PassTools:
    """What a pass works with.

    Args:
        threads: the cleaner's; they say what its map may take (S18), and do a part of it.
        throttle: that of all threads (S29); it also tells when to stop.
        hasher: with a seed of its own (S19).
        clock: for durations.
        new_id: names objects.
        progress: kept up to date.
        check_clock: raises where the wall clock, by which horizons are set, has become wrong.
    """

    threads: CleanerThreads
    throttle: Throttle
    hasher: KeyHasher
    clock: Clock
    new_id: Callable[[], str]
    progress: PassProgress = field(default_factory=PassProgress)
    check_clock: Callable[[], object] = lambda: None


def run_pass(handle: Handle, plan: PassPlan, tools: PassTools) -> PassResult:
    """Cleans one partition as planned, committing group by group; returns what it did.

    Raises:
        CorruptionError: an object is damaged, or gone though the partition needs it.
    """
    stats = tools.progress.stats

    def publish(edit: Edit, counts: PassStats) -> None:
        tools.check_clock()  # Hours may have gone by, and the commit sets horizons.
        commit_published(handle, plan, edit, counts, stats)

    try:
        covered, complete = execute_pass(handle.store, plan, tools, publish)
    except FileNotFoundError as e:
        error = file_missing(handle.store, plan.manifest.version, e)
        if isinstance(error, CorruptionError):
            raise error from e
        handle.refresh()
        covered, complete = plan.dirty[0], False  # Others replaced it, and swept.
    return finished(plan, covered, stats, complete=complete, after=handle.manifest())


def execute_pass(
    store: Store, plan: PassPlan, tools: PassTools, publish: Publish
) -> tuple[int, bool]:
    """Does all steps; what is ready to be committed goes to ``publish``. Returns up to where the
    map went, and whether all of it was cleaned.
    """
    p, manifest, config, dirty = plan.partition, plan.manifest, plan.config, plan.dirty
    progress, clock = tools.progress, tools.clock
    stats, metered = progress.stats, MeteredStore(store, tools.throttle)
    reading = GatheredStore(metered, plan.gathered) if plan.gathered else metered
    started_ms = clock.monotonic_ms()
    records = sum(s.rows for s in manifest.segments[p][:-1] if dirty[0] < s.next <= dirty[1])
    progress.begin_mapping(metered, records_total=records, now_ms=started_ms)
    judge = _mapped(reading, plan, tools)
    covered = judge.mapped.end
    mapped_ms = clock.monotonic_ms()
    sealed = [s for s in plan.sealed if s.base < covered]
    progress.begin_cleaning(records_total=sum(s.rows for s in sealed), now_ms=mapped_ms)
    may_mark = DEAD_ROWS in manifest.head.log.features.read
    policy = RewritePolicy(config, may_mark, plan.now_ms, plan.gathered.keys())
    judged = (
        judge.with_horizons(reading, p, policy.decided(judge.judge_segment(reading, p, s)))
        for s in sealed
    )
    counted = progress.counted(_rechecked(judged, judge.recheck, p))
    groups = grouped(counted, config, covered=covered)
    rewriter = _rewriter(reading, plan, tools, judge)
    bitmap_writer = BitmapWriter(metered, p, manifest.version, plan.now_ms, tools.new_id)
    group_cleaner = GroupCleaner(
        plan=plan,
        covered=covered,
        rewriter=rewriter,
        bitmap_writer=bitmap_writer,
        publish=publish,
        stopping=tools.throttle.stopping,
        threads=tools.threads,
    )
    complete = group_cleaner.clean(groups)
    if plan.stretch is not None:  # They get them once all stretches are done.
        stats.tombstones_stamped += group_cleaner.horizons_set
    stats.chunks_untouched = judge.index_filter.count
    stats.segments_before = len(sealed)
    stats.size_bytes_before = sum(s.size_bytes for s in sealed)
    stats.bytes_read, stats.bytes_written = metered.bytes_read, metered.bytes_written
    stats.index_ms = mapped_ms - started_ms
    stats.clean_ms = clock.monotonic_ms() - mapped_ms
    return covered, complete


def _mapped(store: Store, plan: PassPlan, tools: PassTools) -> Judge:
    """Does P1: returns a judge with the last map of the pass, and what those before it found
    dead.
    """
    p, manifest, (first, end) = plan.partition, plan.manifest, plan.dirty
    stats = tools.progress.stats
    offset_map, found = empty_map(manifest, p, plan.dirty, tools.threads.map_bytes), FoundDead()
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
        )
        used = offset_map.entries * SLOT_BYTES / tools.threads.map_bytes
        stats.map_utilization = max(stats.map_utilization, used)
        judge = Judge(
            *(offset_map, mapped, found, tools.hasher, log_start, first, plan.now_ms),
            index_filter=index_filter,
            schema=manifest.head.log.schema,
            held=plan.held,
            threads=tools.threads,
        )
        if mapped.end == end or stats.maps == MAPS_MAX or found.size_bytes > FOUND_BYTES_MAX:
            return judge
        for segment in sealed:
            if segment.base < mapped.end:
                judge.find_dead(store, p, segment)
        at = mapped.end
        offset_map.clear()
        index_filter.begin()


def _rewriter(store: Store, plan: PassPlan, tools: PassTools, judge: Judge) -> Rewriter:
    manifest, config = plan.manifest, plan.config
    return Rewriter(
        store=store,
        partition=plan.partition,
        config=config,
        stamp=manifest.version,
        key_seed=manifest.head.log.key_seed,
        schema=manifest.head.log.schema,
        up_to=judge.mapped.end,
        recheck=judge.recheck,
        found=judge.found,
        new_id=tools.new_id,
        threads=tools.threads,
        dates=plan.stretch is None,
    )


def _rechecked(
    judged: Iterable[JudgedSegment], recheck: Recheck, partition: int
) -> Iterator[JudgedSegment]:
    """Yields the segments; after the last one what the map has of their range must add up."""
    yield from judged
    recheck.check_range(partition)


def commit_published(
    handle: Handle, plan: PassPlan, edit: Edit, counts: PassStats, stats: PassStats
) -> None:
    """Commits what an execution published (P5), and counts it.

    Raises:
        SourcesChangedError: the plan does not hold any more.
    """
    commit_pass(
        *(handle, plan.manifest, plan.partition, edit),
        operation="clean",
        delete_retention_ms=plan.config.delete_retention_ms,
        lies_elsewhere=bool(plan.gathered),
    )
    stats.add_records(counts)
    stats.groups_committed += 1


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
