"""Step 5 of a pass: committing what it made of its plan, if the plan still holds (COMMIT.md §2).

A change of a partition that was planned at version N may be committed at a later one when nothing
but appends, seals and other offsets came since: the chunks it replaces are those that were judged,
their horizons included, the chunks it stamps have no horizon yet, and no sweep can have taken the
objects it wrote. Else it stops, and nothing is lost: the next pass plans anew.
"""

from dataclasses import replace

from clog.storage.bounds import bounds
from clog.storage.chunks import NONE, Chunk
from clog.storage.commits import Commit
from clog.storage.config import LogConfig
from clog.storage.edits import ChunkHorizon, DeadMark, Edit, Replacement
from clog.storage.handle import Handle
from clog.storage.manifest import Manifest, apply


class SourcesChangedError(Exception):
    """Somebody else changed what was about to be replaced.

    Attributes:
        now: the manifest in which it is seen; None where the sweep may have taken new objects.
    """

    def __init__(self, now: Manifest | None = None) -> None:
        super().__init__()
        self.now = now


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
        if tip.head.partitions.changed[partition] > planned.version and not (
            all(_is_as_planned(r, planned, now) for r in edit.replace)
            and all(_is_unstamped(h, now) for h in edit.horizons)
            and all(_is_marked_as_planned(mark, planned, now) for mark in edit.dead)
        ):
            raise SourcesChangedError(now)
        return tried(replace(edit, first_dirty=_not_back(edit, now)), now, time_ms=time_ms)

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


def _is_as_planned(r: Replacement, planned: Manifest, now: Manifest) -> bool:
    """Whether the chunks in the range are those that were judged, and segments still meet its
    ends.
    """
    before, after = (
        [c for s in m.segments[r.partition] for c in s.chunks if r.base <= c.base < r.next]
        for m in (planned, now)
    )
    segments = now.segments[r.partition]
    return (
        before == after
        and any(s.base == r.base for s in segments)
        and any(s.next == r.next for s in segments)
    )


def _is_unstamped(h: ChunkHorizon, now: Manifest) -> bool:
    c = _chunk_at(now, h)
    return c is not None and c.horizon == NONE


def _is_marked_as_planned(mark: DeadMark, planned: Manifest, now: Manifest) -> bool:
    """Whether the chunk is there, with the dead rows that it had when it was judged."""
    before, after = _chunk_at(planned, mark), _chunk_at(now, mark)
    return before is not None and after is not None and before.dead == after.dead


def _chunk_at(manifest: Manifest, at: ChunkHorizon | DeadMark) -> Chunk | None:
    identity = (at.object_path, at.first_row)
    chunks = (c for s in manifest.segments[at.partition] for c in s.chunks)
    return next((c for c in chunks if c.identity == identity), None)
