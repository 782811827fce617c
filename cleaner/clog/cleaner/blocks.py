"""Closing blocks: old commits are deleted, a block of versions at a time (COMMIT.md §4).

A create if absent is safe only where nothing was deleted. So before any commit of a block goes,
the block's file names them all, for good: who slept, and creates one of them again, looks there
and learns that it did not happen.

1. A block may be closed when nobody is to read a version of it or before it: the log says so, or
   its last one was replaced longer than ``file.delete.delay.ms`` ago; when a snapshot of its last
   version or a later one was read back whole, and its youngest commit is older than a day. Blocks
   are closed from the oldest on, as who opens a log from cold counts on it. Where the log did not
   say so, that is committed first, as only appends would never say it. (B0: some versions are no
   longer readable, nothing is missing.)
2. Its file is created. (B1: after a crash it says the truth, and nothing is missing yet.)
3. The commits of all closed blocks are deleted, those that sleepers left there, too. (B2: after a
   crash some are left; the next run goes on.)

Snapshots go with the sweep (`leftovers`). A block's file is never deleted.
"""

from collections.abc import Mapping
from itertools import pairwise

from clog.cleaner.clock_skew import check_clock, is_comparable
from clog.cleaner.sweep import ORPHAN_AGE_MS, Swept, raise_oldest
from clog.storage import documents, paths
from clog.storage.commits import Commit, read_commit
from clog.storage.config import NO_DEFAULTS, with_defaults
from clog.storage.errors import CorruptionError
from clog.storage.handle import Handle
from clog.storage.snapshots import read_snapshot, unpage
from clog.storage.store.base import ObjectExistsError, Store
from clog.storage.timeline import first_open_version, is_closed


def close_blocks(
    handle: Handle,
    *,
    now_ms: int,
    age_ms: int = ORPHAN_AGE_MS,
    dry_run: bool = False,
    defaults: Mapping[str, str] = NO_DEFAULTS,
    store: Store | None = None,
) -> Swept:
    """Closes the blocks that are due, and deletes the commits of all that are closed. ``defaults``
    are the process's (S45); ``store`` is the handle's own, perhaps metered.

    Costs up to 3 GET where no block was closed and none is due; else a GET for every second commit
    of a block, the snapshot with its pages, a PUT, perhaps a commit, and a LIST of the commits.

    Raises:
        ClockSkewError: this machine's clock and the store's differ too much.
        CorruptionError: the snapshot cannot be read: nothing was deleted.
    """
    if is_comparable(handle.clock):
        check_clock(handle, now_ms=now_ms, dry_run=dry_run)
    tip, store = handle.refresh(), store or handle.store
    delay_ms = with_defaults(tip.head.config, defaults).file_delete_delay_ms
    first = end = first_open_version(store)
    while _is_due(store, tip, end, young_ms=now_ms - age_ms, readable_ms=now_ms - delay_ms):
        end += paths.BLOCK_VERSIONS
    if end > first and not _has_snapshot(handle, tip):
        end = first  # Others were faster, by days: the next run closes what is left.
    if end > first and not dry_run:
        raise_oldest(handle, end)  # B0
        end = _close_all(store, first, end)
    if end == 0:
        return Swept((), 0)
    old = [
        found
        for found in store.list(paths.COMMITS)
        if (version := paths.version_of(found.path)) is not None and version < end
    ]
    if not dry_run:
        for found in old:
            store.delete(found.path)  # B2
    return Swept(tuple(o.path for o in old), sum(o.size_bytes for o in old))


def _is_due(store: Store, tip: Commit, first: int, *, young_ms: int, readable_ms: int) -> bool:
    """Step 1, but for reading the snapshot: whether the commits are older than ``young_ms``, and
    were replaced before ``readable_ms``.
    """
    end = first + paths.BLOCK_VERSIONS
    snapshot = tip.head.snapshot
    if snapshot is None or snapshot.version < end - 1 or tip.version < end:
        return False
    try:
        if read_commit(store, end - 1).record.time_ms >= young_ms:
            return False
        if tip.head.oldest_readable >= end:
            return True
        return read_commit(store, end).record.time_ms < readable_ms
    except FileNotFoundError:
        return False  # Another cleaner is closing it.


def _has_snapshot(handle: Handle, tip: Commit) -> bool:
    """Whether the tip's snapshot is there, whole; it may be gone when the tip is old."""
    assert tip.head.snapshot is not None
    version, store = tip.head.snapshot.version, handle.store
    try:
        unpage(store, read_snapshot(store, version))
    except FileNotFoundError as e:
        if handle.refresh() is not tip:
            return False
        raise CorruptionError(
            f"the head of version {tip.version} of {store.url} names snapshot {version}, which is"
            f" not whole: {e}; no commit was deleted"
        ) from e
    return True


def _close_all(store: Store, first: int, end: int) -> int:
    """Step 2 for the blocks of ``[first, end)``; returns up to where they are closed."""
    for block in range(first, end, paths.BLOCK_VERSIONS):
        if not _close(store, block):
            return block
    return end


def _close(store: Store, first: int) -> bool:
    """Step 2; False where another cleaner is at it."""
    ids: dict[str, str] = {}
    try:
        for version in range(first + 1, first + paths.BLOCK_VERSIONS, 2):
            commit = read_commit(store, version)
            ids[str(version - 1)] = str(commit.parent)
            ids[str(version)] = commit.record.commit_id
    except FileNotFoundError:
        return False
    try:
        store.create(paths.block_path(first), documents.encode("gc", {"block": first, "ids": ids}))
    except ObjectExistsError:
        # Closed by another cleaner, or by ourselves: a commit never changes, nor does its id.
        there = is_closed(store, first)
        if there is None:
            return False  # Refused while another create was under way: the next run looks again.
        if there != {int(version): commit_id for version, commit_id in ids.items()}:
            if not _has_its_commits(store, first):
                return False  # They are being deleted, and a sleeper's stands for one of them.
            raise CorruptionError(
                f"{paths.block_path(first)} of {store.url} names other commits than there are;"
                " no commit was deleted"
            ) from None
    return True  # B1


def _has_its_commits(store: Store, first: int) -> bool:
    """Whether all commits of a block are there, each of them the next one's parent."""
    try:
        commits = [
            read_commit(store, version)
            for version in range(first, first + paths.BLOCK_VERSIONS + 1)
        ]
    except FileNotFoundError:
        return False
    return all(b.parent == a.record.commit_id for a, b in pairwise(commits))
