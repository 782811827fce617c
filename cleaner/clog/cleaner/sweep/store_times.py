"""When commits were written, by the store's clock.

A commit's own time is its committer's, and never below its parent's: where a writer's clock is days
behind, or one was ahead once, it says nothing about age. What is deleted because it is old goes by
the store's times, which are one clock. A manual clock is unrelated to them: beside one, commits
are as old as they say.
"""

from clog.cleaner.sweep.clock_skew import is_comparable
from clog.storage.commit.handle import Handle
from clog.storage.commit.versions import try_read
from clog.storage.format import paths
from clog.storage.store.base import Store


def written_ms(handle: Handle, store: Store, version: int) -> int | None:
    """Returns when a commit was written, None where it is gone; one LIST of one name, or a GET."""
    if is_comparable(handle.clock):
        found = store.list(paths.commit_path(version))
        return next((commit.modified_ms for commit in found), None)
    commit = try_read(store, version)
    return None if commit is None else commit.record.time_ms


def newest_by(handle: Handle, store: Store, time_ms: int) -> int:
    """Returns the newest version written at or before the time, 0 when there is none, by halving:
    what is gone with its block is older than any that is left.
    """
    low, high = 0, handle.tip.version
    while low < high:
        middle = (low + high + 1) // 2
        at_ms = written_ms(handle, store, middle)
        low, high = (middle, high) if at_ms is None or at_ms <= time_ms else (low, middle - 1)
    return low
