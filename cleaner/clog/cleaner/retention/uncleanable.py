"""Partitions that cannot be cleaned for now: recorded with the reason, and retried with back-off
(S28).
"""

from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    StoreUnavailableError,
)
from clog.storage.format.commits import Commit
from clog.storage.format.edits import Edit, Uncleanable
from clog.storage.format.manifest import Manifest

BACKOFF_MS = 15_000
"""Default of ``log.cleaner.backoff.ms``; a partition that failed waits so long at first."""
RETRY_MS_MAX = 3_600_000
"""A partition that keeps failing is tried again at least this often."""

PASSING_TROUBLE = (
    StoreUnavailableError,
    CommitConflictError,
    CommitStateUnknownError,
    MemoryError,
)
"""What the store, other writers and a machine that is too small do to a pass. It says nothing about
the partition, so it makes none uncleanable: the round fails, and the log is tried again with
back-off.
"""


def is_resting(manifest: Manifest, partition: int, *, now_ms: int) -> bool:
    """Tells whether a partition that failed still waits: 15 s, doubled by every further failure, an
    hour at most. Pure.
    """
    found = manifest.uncleanable.get(partition)
    if found is None:
        return False
    return now_ms - found.time_ms < min(RETRY_MS_MAX, BACKOFF_MS << min(found.attempts - 1, 10))


def set_uncleanable(handle: Handle, partition: int, reason: str | None, *, now_ms: int) -> None:
    """Notes in the log why a partition cannot be cleaned; None: that it can be again."""

    def prepare(_tip: Commit, _ms: int) -> Edit | NothingToCommit:
        before = handle.manifest().uncleanable.get(partition)
        if reason is None:
            if before is None:
                return NothingToCommit()
            return Edit(uncleanable={partition: None})
        attempts = before.attempts + 1 if before else 1
        return Edit(uncleanable={partition: Uncleanable(reason, now_ms, attempts)})

    handle.commit(prepare, operation="clean")
