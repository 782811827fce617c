"""Step 5 of a pass: committing what it made of its plan, if the plan still holds (COMMIT.md §2).

A change of a partition that was planned at version N may be committed at a later one when nothing
but appends, seals and other offsets came since, or coalescing (`rebasing`), and no sweep can have
taken the objects it wrote. Else it stops, and nothing is lost: the next pass plans anew.
"""

from dataclasses import replace

from clog.cleaner.rebasing import SourcesChangedError, rebased
from clog.storage.bounds import bounds
from clog.storage.commits import Commit
from clog.storage.config import LogConfig
from clog.storage.edits import Edit
from clog.storage.handle import Handle
from clog.storage.manifest import Manifest, apply


def commit_planned(
    handle: Handle, planned: Manifest, partition: int, edit: Edit, *, operation: str
) -> Commit:
    """Commits an edit of one partition that was planned at ``planned``, and whose objects are
    stamped with its version. The first dirty offset never goes back.

    Raises:
        SourcesChangedError: the plan does not hold any more; nothing was committed.
        CorruptionError: the edit contradicts the manifest; nothing was committed.
    """

    def prepare(tip: Commit, time_ms: int) -> Edit:
        if (edit.replace or edit.dead) and objects_may_be_gone(planned, tip):
            raise SourcesChangedError
        now = handle.manifest()
        is_changed = tip.head.partitions.changed[partition] > planned.version
        fitting = rebased(edit, partition, planned, now) if is_changed else edit
        return tried(replace(fitting, first_dirty=_not_back(edit, now)), now, time_ms=time_ms)

    return handle.commit(prepare, operation=operation)


def objects_may_be_gone(planned: Manifest, tip: Commit) -> bool:
    """Whether objects stamped with the planned version are below the sweep's floor: it took too
    long.
    """
    return planned.version < tip.head.orphan_floor


def tried(edit: Edit, now: Manifest, *, time_ms: int) -> Edit:
    """The edit, if it fits: one that does not would be refused by every reader, for ever.

    Raises:
        CorruptionError: it contradicts the manifest.
    """
    apply(now, edit, commit_id="", time_ms=time_ms)
    return edit


def _not_back(edit: Edit, now: Manifest) -> dict[int, int]:
    config = LogConfig.from_overrides(now.head.config)
    return {
        p: max(to, bounds(now, p, config, now_ms=now.time_ms).first_dirty)
        for p, to in edit.first_dirty.items()
    }
