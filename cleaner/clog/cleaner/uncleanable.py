"""Partitions that cannot be cleaned for now: marked with the reason, and retried with back-off
(S28).
"""

from clog.storage.commit import Answer
from clog.storage.commits import Commit
from clog.storage.edits import Edit, Uncleanable
from clog.storage.handle import Handle
from clog.storage.manifest import Manifest

BACKOFF_MS = 15_000
"""Default of ``log.cleaner.backoff.ms``; a partition that failed waits so long at first."""
RETRY_MS_MAX = 3_600_000
"""A partition that keeps failing is tried again at least this often."""


def is_resting(manifest: Manifest, partition: int, *, now_ms: int) -> bool:
    """Whether a partition that failed still waits: 15 s, doubled by every further failure, an hour
    at most. Pure.
    """
    found = manifest.uncleanable.get(partition)
    if found is None:
        return False
    return now_ms - found.time_ms < min(RETRY_MS_MAX, BACKOFF_MS << min(found.attempts - 1, 10))


def mark(handle: Handle, partition: int, reason: str | None, *, now_ms: int) -> None:
    """Marks a partition uncleanable; None clears its mark, where it has one."""

    def prepare(_tip: Commit, _ms: int) -> Edit:
        before = handle.manifest().uncleanable.get(partition)
        if reason is None:
            if before is None:
                raise Answer(None)
            return Edit(uncleanable={partition: None})
        attempts = before.attempts + 1 if before else 1
        return Edit(uncleanable={partition: Uncleanable(reason, now_ms, attempts)})

    try:
        handle.commit(prepare, operation="clean")
    except Answer:
        pass
