"""A partition that is too large for one pass, cleaned in *stretches* by several at once.

A stretch are neighbouring whole segments of the cleanable range. What cleans one is a pass like any
other (`run_pass`), and shares no state with those of the other stretches: it maps the whole dirty
part for itself, judges the segments of its own by that, and commits group by group. That costs the
dirty keys once more for each stretch; so there are `STRETCHES_MAX` at most.

Its commits take away what is dead, and that needs no order: a record that a later one supersedes is
dead whenever it goes, and a tombstone whose horizon has come has outlived all that it deletes since
it got that horizon. What needs order is the horizon itself (S23): it counts from when the last
older value of the key is gone, and that may lie in another stretch. So a pass over a stretch sets
none, and the first dirty offset stays. Once all are done `commit_covered` does both, up to where
the shortest of their maps goes, in one commit. Where a stretch stops, fails or is lost that commit
does not come: the next pass maps the same range again, and finds less to do.

*Witness.* Each pass rechecks the rows that go, and its sums are those of its own segments
(`recheck`): so together they are those of the partition.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from clog.cleaner.compaction.commit_pass import AT_COMMIT, commit_pass
from clog.cleaner.compaction.group_cleaner import ending
from clog.cleaner.compaction.pass_plan import PassPlan, Stretch
from clog.cleaner.compaction.rebase import SourcesChangedError
from clog.cleaner.compaction.stats import PassResult, PassStats
from clog.storage.commit.handle import Handle
from clog.storage.format.chunks import NONE
from clog.storage.format.edits import ChunkHorizon, Edit

STRETCHES_MAX = 8
"""Parts of one partition: each reads all of its dirty keys."""


def stretches(plan: PassPlan, *, task_bytes: int, count_max: int) -> list[Stretch]:
    """Cuts a partition with more than ``task_bytes`` in the segments that a pass would go through;
    empty where it is not cut: it is no larger, or one segment, or ``count_max`` is 1.
    """
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
    """Ends the pass over a partition whose stretches were cleaned, each by some passes, if the last
    of each came to its end; returns what they did together.
    """
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
    """Adds what another pass over the same partition did."""
    for each in fields(stats):
        mine, its = getattr(stats, each.name), getattr(other, each.name)
        together = max(mine, its) if each.name == "map_utilization" else mine + its
        setattr(stats, each.name, together)


def _commit(handle: Handle, plan: PassPlan, covered: int) -> bool:
    """Commits the end of the pass at the newest version; False where the partition is another by
    then.
    """
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
    """Yields the horizon of each chunk with tombstones that may have none yet. One that has a
    horizon of its own had none to get: the pass rewrote those that had (`rewrite_policy`).
    """
    for segment in plan.sealed:
        if segment.base >= covered:
            return
        for c in segment.chunks:
            if c.tombstones and c.next > plan.dirty[0] and c.horizon == NONE:
                yield ChunkHorizon(plan.partition, *c.identity, AT_COMMIT, covered)
