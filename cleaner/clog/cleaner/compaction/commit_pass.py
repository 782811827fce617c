"""P5: committing what it made of its plan, if the plan still holds (COMMIT.md §2).

A change of a partition that was planned at version N may be committed at a later one when nothing
but appends, seals and other offsets came since, or coalescing (`rebase`), and no sweep can have
taken the objects it wrote. Else it stops, and nothing is lost: the next pass plans anew.

*Delete horizons* are set by the commit (S23). A tombstone outlives the older values of its key by
``delete.retention.ms``: whoever read one of them has that long to see the delete. The values go
with the commit of their group, which may be hours after the pass was planned, and the tombstone
gets its horizon by that commit or a later one. So its horizon is the time of the commit that sets
it plus ``delete.retention.ms``. It cannot stand in the rows, which are written before: their chunk
bears it (FORMAT.md §5.3), and until the commit `AT_COMMIT` in its place. Each attempt puts its own
time in, so one that lost a race, was rebased or waited for other tasks is no exception. Once
committed a horizon never changes.
"""

from dataclasses import replace

from clog.cleaner.compaction.rebase import SourcesChangedError, rebase
from clog.cleaner.masks.carrying import MaskCarrier
from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import LogConfig
from clog.storage.format.chunks import NONE, TIME_MS_MAX
from clog.storage.format.commits import Commit
from clog.storage.format.edits import Edit
from clog.storage.format.manifest import Manifest, apply
from clog.storage.read.cleanable import cleanable_bounds

AT_COMMIT = -2
"""Stands for a horizon that the commit sets; never committed."""


def commit_pass(
    handle: Handle,
    planned: Manifest,
    partition: int,
    edit: Edit,
    *,
    operation: str,
    delete_retention_ms: int,
    lies_elsewhere: bool = False,
) -> Commit:
    """Commits an edit of one partition that was planned at ``planned``, and whose objects bear
    it as their stamp. The first dirty offset never goes back; delete horizons count from the
    commit. ``lies_elsewhere``: rows were in other chunks in the log than in the plan even then.

    Raises:
        SourcesChangedError: the plan does not hold any more; nothing was committed.
        CorruptionError: the edit contradicts the manifest; nothing was committed.
    """
    carrier = MaskCarrier(handle.store, planned.version, handle.ids.new_id)

    def prepare(tip: Commit, time_ms: int) -> Edit:
        if (edit.replace or edit.dead) and objects_may_be_gone(planned, tip):
            raise SourcesChangedError
        now = handle.manifest()
        is_changed = tip.head.partitions.changed[partition] > planned.version
        is_moved = lies_elsewhere or is_changed
        fitting = rebase(edit, partition, planned, now) if is_moved else edit
        fitting = _with_markers_there(fitting, now)
        dated = _with_horizons(fitting, commit_ms=time_ms, delete_retention_ms=delete_retention_ms)
        made = replace(dated, first_dirty=_not_back(edit, now))
        return tried(carrier.with_masks(made, now), now, time_ms=time_ms)

    return handle.commit(prepare, operation=operation)


def _with_markers_there(edit: Edit, now: Manifest) -> Edit:
    """Returns the edit without markers that are gone, or got their horizon otherwise. Pure."""
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


def objects_may_be_gone(planned: Manifest, tip: Commit) -> bool:
    """Tells whether objects with the planned version as their stamp are below the sweep's floor: it
    took too long.
    """
    return planned.version < tip.head.orphan_floor


def tried(edit: Edit, now: Manifest, *, time_ms: int) -> Edit:
    """Returns the edit, if it fits: one that does not would be refused by every reader, for ever.

    Raises:
        CorruptionError: it contradicts the manifest.
    """
    apply(now, edit, commit_id="", time_ms=time_ms)
    return edit


def _not_back(edit: Edit, now: Manifest) -> dict[int, int]:
    config = LogConfig.from_overrides(now.head.config)
    return {
        p: max(to, cleanable_bounds(now, p, config, now_ms=now.time_ms).first_dirty)
        for p, to in edit.first_dirty.items()
    }
