"""What the next round over a log would do, without doing it: nothing is written, not even a probe
of the clocks.

Everything but the passes is exact: each step is applied to the manifest in memory, and the next one
looks at what it made. Passes are shown as they are planned: which range is mapped, which segments
are looked at. What dies in them is known only when their keys are read, and so is what is
coalesced, freed of dead rows and released after them; these are said as of before the passes.
What is gathered (`layout`) is part of the passes, and said with them alone. Merges are those
before and after coalescing, which leaves a chunk for every ``object.bytes`` of a run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from clog.cleaner.duties import layout
from clog.cleaner.duties.layout import (
    Room,
    Run,
    candidate_runs,
    due_merges,
    due_trims,
    gatherable,
    is_due,
    is_worth_coalescing,
    mergeable,
    parts_of,
    size_bytes_of,
)
from clog.cleaner.duties.retention import (
    Expired,
    due_cuts,
    edit_of,
    expired,
    idle_partitions,
    is_resting,
)
from clog.cleaner.duties.sweep import due_objects, not_held
from clog.cleaner.passes.judge import JudgedChunk, JudgedSegment
from clog.cleaner.passes.rewriter import RewritePolicy, grouped
from clog.cleaner.selection import Candidate, candidates
from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import NO_DEFAULTS, LogConfig, with_defaults
from clog.storage.format.chunks import Segment
from clog.storage.format.commits import Edit
from clog.storage.format.log_info import DEAD_ROWS
from clog.storage.format.manifest import Manifest, apply
from clog.storage.readers import Holds, read_holds


@dataclass(frozen=True, slots=True)
class PlannedRewrite:
    """Chunks that are read and written anew, less what lies below the log start."""

    partition: int
    base_offset: int
    next_offset: int
    chunks: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedPass:
    """A pass: it maps the keys of ``map_records``, and looks at the keys of ``segments`` of so many
    records and bytes; at most that much is written again. By their bytes of now
    ``segments_merged`` are left of them; fewer, as their bytes after cleaning count (S25).
    ``records_marked`` of these segments are dead already. Of chunks of ``markable_records`` the
    pass only marks what dies, where it is little: the others it rewrites.
    """

    partition: int
    reason: str
    dirty_ratio: float
    first_dirty_offset: int
    first_uncleanable_offset: int
    map_records: int
    segments: int
    segments_merged: int
    records: int
    size_bytes: int
    records_marked: int
    markable_records: int


@dataclass(frozen=True, slots=True)
class PlannedMerge:
    """Neighbouring segments become one, without any reading or writing of their chunks."""

    partition: int
    base_offset: int
    next_offset: int
    segments: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """All of a round. ``materialised`` is rewritten without its dead rows (S46); ``deleted`` are
    paths of objects. ``resting`` are partitions that would have a pass, but for one that failed
    lately (S28). ``coalesced_first`` is coalesced before the passes, ``coalesced`` after them.
    """

    sealed: Sequence[int]
    cuts: Sequence[Expired]
    trims: Sequence[PlannedRewrite]
    coalesced_first: Sequence[PlannedRewrite]
    passes: Sequence[PlannedPass]
    resting: Sequence[int]
    materialised: Sequence[PlannedRewrite]
    coalesced: Sequence[PlannedRewrite]
    merged: Sequence[PlannedMerge]
    deleted: Sequence[str]
    deleted_bytes: int


def plan_round(
    handle: Handle,
    *,
    now_ms: int,
    force: bool = False,
    compaction: bool = True,
    defaults: Mapping[str, str] = NO_DEFAULTS,
) -> PlannedRound:
    """Plans the next round, from the newest version; costs the requests of opening it.
    ``compaction`` and ``defaults`` are the process's (S45).
    """
    handle.refresh()
    manifest = handle.manifest()
    config = with_defaults(manifest.head.config, defaults)
    holds = read_holds(handle, config, now_ms=now_ms)
    sealed = idle_partitions(manifest.head, now_ms=now_ms, defaults=defaults)
    if sealed:
        manifest = _after(manifest, Edit(seal=tuple((p, 0) for p in sealed)), now_ms)
    cuts = due_cuts(manifest, config, now_ms=now_ms)
    if cuts:
        manifest = _after(manifest, edit_of(cuts, jitter_ms=lambda: 0), now_ms)
    eligible, resting = _eligible(
        manifest, config, holds, now_ms, force=force, compaction=compaction
    )
    policy = RewritePolicy(config, DEAD_ROWS in manifest.head.log.features.read, now_ms)
    merges = mergeable(manifest, config, lambda s: len(s.chunks))
    merged = manifest
    if merges:
        merged = _after(manifest, Edit(replace=tuple(due_merges(manifest, config))), now_ms)
    first, runs = _coalesced(handle, merged, eligible, now_ms)
    merges += mergeable(merged, config, _chunks_after(runs, config))
    dead = layout.due_purges(manifest, config, now_ms=now_ms)
    due = due_objects(manifest, config, now_ms=now_ms)
    deleted = not_held(due, config, holds, now_ms=now_ms)
    return PlannedRound(
        sealed=sealed,
        cuts=expired(cuts),
        trims=[_rewrite(run) for run in due_trims(manifest)],
        coalesced_first=[_rewrite(run) for run in first],
        passes=[_pass(manifest, c, policy) for c in eligible],
        resting=resting,
        materialised=[_rewrite(run) for run in dead],
        coalesced=[_rewrite(run) for run in runs],
        merged=[_merge(p, segments) for p, segments in merges],
        deleted=[r.path for r in deleted],
        deleted_bytes=sum(r.size_bytes for r in deleted),
    )


def _coalesced(
    handle: Handle, manifest: Manifest, eligible: Sequence[Candidate], now_ms: int
) -> tuple[list[Run], list[Run]]:
    """Returns what is coalesced before the passes, and after them."""
    shared, runs = gatherable(manifest, eligible), candidate_runs(manifest)
    if is_due(handle, shared, now_ms=now_ms):
        if Room().take(size_bytes_of(shared)):
            gathered = {c.identity for run in shared for c in run.chunks}
            runs = parts_of(runs, lambda c: c.identity not in gathered)
        elif is_worth_coalescing(shared):
            return runs, []
    return [], runs if is_due(handle, runs, now_ms=now_ms) else []


def _eligible(
    manifest: Manifest,
    config: LogConfig,
    holds: Holds,
    now_ms: int,
    *,
    force: bool,
    compaction: bool,
) -> tuple[list[Candidate], list[int]]:
    """Returns what would have a pass, and the partitions that would but rest."""
    if not (compaction or force):
        return [], []
    found = candidates(manifest, config, now_ms=now_ms, force=force, holds=holds)
    if force:  # An operator need not wait.
        return found, []
    resting = {c.partition for c in found if is_resting(manifest, c.partition, now_ms=now_ms)}
    return [c for c in found if c.partition not in resting], sorted(resting)


def _after(manifest: Manifest, edit: Edit, now_ms: int) -> Manifest:
    return apply(manifest, edit, commit_id="", time_ms=max(now_ms, manifest.time_ms))


def _rewrite(run: Run) -> PlannedRewrite:
    return PlannedRewrite(
        partition=run.partition,
        base_offset=run.base,
        next_offset=run.next,
        chunks=len(run.chunks),
        records=sum(c.rows for c in run.chunks),
        size_bytes=_size_bytes(run),
    )


def _chunks_after(coalesced: Sequence[Run], config: LogConfig) -> Callable[[Segment], int]:
    """Returns how many chunks a segment has when these are coalesced."""
    fewer = {
        run.chunks[0].identity: len(run.chunks) - -(-_size_bytes(run) // config.object_bytes)
        for run in coalesced
    }
    return lambda s: len(s.chunks) - sum(fewer.get(c.identity, 0) for c in s.chunks)


def _size_bytes(run: Run) -> int:
    return sum(c.size_bytes for c in run.chunks)


def _merge(p: int, segments: Sequence[Segment]) -> PlannedMerge:
    return PlannedMerge(
        partition=p,
        base_offset=segments[0].base,
        next_offset=segments[-1].next,
        segments=len(segments),
        records=sum(s.rows for s in segments),
        size_bytes=sum(s.size_bytes for s in segments),
    )


def _pass(manifest: Manifest, chosen: Candidate, policy: RewritePolicy) -> PlannedPass:
    b = chosen.bounds
    sealed = [s for s in manifest.segments[b.partition][:-1] if s.next <= b.first_uncleanable]
    unread = (JudgedSegment(s, tuple(map(JudgedChunk, s.chunks))) for s in sealed)
    return PlannedPass(
        partition=b.partition,
        reason=chosen.reason.value,
        dirty_ratio=b.dirty_ratio,
        first_dirty_offset=b.first_dirty,
        first_uncleanable_offset=b.first_uncleanable,
        map_records=sum(s.rows for s in sealed if s.next > b.first_dirty),
        segments=len(sealed),
        segments_merged=len(list(grouped(unread, policy.config, covered=b.first_uncleanable))),
        records=sum(s.rows for s in sealed),
        size_bytes=sum(s.size_bytes for s in sealed),
        records_marked=sum(s.dead_rows for s in sealed),
        markable_records=sum(
            c.live_rows for s in sealed for c in s.chunks if policy.may_mark_in(c)
        ),
    )
