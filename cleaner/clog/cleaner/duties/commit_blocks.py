"""Closing blocks: old commits are deleted, a block of versions at a time (COMMIT.md §4).

A create if absent is safe only where nothing was deleted. So before any commit of a block is
deleted, the block's file names them all, permanently: a writer that slept and creates one of them
again reads that file and learns that its commit did not happen.

G1. A block may be closed when no reader may read a version of it or before it any more: the log
    says so, or its last version was replaced more than ``file.delete.delay.ms`` ago and no reader
    holds it; when a snapshot of its last version or a later one has been read back whole; and when
    its youngest commit is older than a day. Blocks are closed oldest first, as opening a log from
    cold relies on that. If the log did not say so, that is committed first, as appends alone would
    never say it. (B0: some versions are no longer readable, nothing is missing.)
G2. Its file, which was made before its first commit and says that the block is open, is overwritten
    with the ids. (B1: after a crash it says the truth, and nothing is missing yet.)
G3. The commits of all closed blocks are deleted in the order of their versions, including those
    that late writers left there. (B2: after a crash some are left; the next run continues.)

The sweep deletes snapshots (`duties.sweep`). A block's file is never deleted.
"""

from functools import cache
from itertools import pairwise

from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import (
    ORPHAN_AGE_MS,
    Swept,
    Track,
    check_clock,
    raise_oldest,
    written_ms,
)
from clog.storage.commit.committer import is_comparable
from clog.storage.commit.handle import Handle
from clog.storage.commit.tip import block_body, first_open_version, read_block
from clog.storage.errors import CorruptionError
from clog.storage.format import documents
from clog.storage.format.commits import Commit, read_commit
from clog.storage.format.manifest import read_named_snapshot, unpage
from clog.storage.readers import read_holds
from clog.storage.store.contract import Store


def close_blocks(
    work: Work, *, age_ms: int = ORPHAN_AGE_MS, dry_run: bool = False, track: Track = iter
) -> Swept:
    """Closes the blocks that are due, and deletes the commits of all closed blocks.

    Costs up to 3 GET if no block was closed and none is due; else a GET for every second commit of
    a block, the snapshot with its pages, a PUT, perhaps a commit, and a LIST of the commits.
    """
    handle, store = work.handle, work.store
    if is_comparable(handle.clock):
        check_clock(handle, now_ms=work.now_ms, dry_run=dry_run)
    tip = handle.refresh()
    with handle.standing.unless_gone():
        first = first_open_version(store)
    end = _due_end(work, first, young_ms=work.now_ms - age_ms)
    if end > first and not _has_snapshot(handle, tip):
        end = first  # Other cleaners were faster, by days: the next run closes the rest.
    if end > first and not dry_run:
        readable = documents.block_of(raise_oldest(handle, end))  # B0; a view may need some.
        end = _close_all(store, first, max(first, min(end, readable)))
    if end == 0:
        return Swept((), 0)
    old = sorted(
        (
            found
            for found in store.list(documents.COMMITS)
            if (version := documents.version_of(found.path)) is not None and version < end
        ),
        key=lambda found: found.path,
    )
    if not dry_run:
        for path in track([found.path for found in old]):
            store.delete(path)  # B2
    return Swept.of(old)


def _due_end(work: Work, first: int, *, young_ms: int) -> int:
    """Does G1, except for the snapshot; returns the end of the blocks that may be closed (S64)."""
    config, now_ms = work.config, work.now_ms
    holds = cache(lambda: read_holds(work.handle, config, now_ms=now_ms))

    def is_due(end: int) -> bool:
        tip = work.handle.tip
        snapshot, pinned = tip.head.snapshot, tip.head.lowest_needed()
        if snapshot is None or snapshot.version < end - 1 or tip.version < end:
            return False
        if pinned is not None and pinned < end:
            return False
        last_ms, next_ms = (written_ms(work.handle, work.store, v) for v in (end - 1, end))
        if last_ms is None or next_ms is None or last_ms >= young_ms:
            return False  # If one is gone, another cleaner is closing the block.
        due_ms = next_ms + config.file_delete_delay_ms
        return tip.head.oldest_readable >= end or (
            due_ms < now_ms and not holds().keeps_version(end, due_ms, now_ms=now_ms)
        )

    while is_due(first + documents.BLOCK_VERSIONS):
        first += documents.BLOCK_VERSIONS
    return first


def _has_snapshot(handle: Handle, tip: Commit) -> bool:
    """Returns whether the tip's snapshot is there, whole; it may be gone if the tip is old."""
    assert tip.head.snapshot is not None
    version, store = tip.head.snapshot.version, handle.store
    try:
        unpage(store, read_named_snapshot(store, tip.head.snapshot))
    except FileNotFoundError as e:
        if handle.refresh() is not tip:
            return False
        raise CorruptionError(
            f"the head of version {tip.version} of {store.url} names snapshot {version}, which"
            f" cannot be read: {e}; no commit was deleted"
        ) from e
    return True


def _close_all(store: Store, first: int, end: int) -> int:
    """Does G2 for the blocks of ``[first, end)``; returns up to where they are closed."""
    for block in range(first, end, documents.BLOCK_VERSIONS):
        if not _close(store, block):
            return block
    return end


def _close(store: Store, first: int) -> bool:
    """Does G2; returns False if another cleaner is doing it."""
    ids: dict[int, str] = {}
    try:
        for version in range(first + 1, first + documents.BLOCK_VERSIONS, 2):
            commit = read_commit(store, version)
            ids[version - 1] = str(commit.parent)
            ids[version] = commit.record.commit_id
    except FileNotFoundError:
        return False
    block = read_block(store, first)
    if block is None:
        return False  # The log was deleted.
    if block.ids is None:
        # The block was open after all its commits had been read, so they are the committed ones;
        # any other cleaner that closes it names the same.
        store.put(documents.block_path(first), documents.encode("block", block_body(first, ids)))
    elif block.ids != ids:
        if not _has_its_commits(store, first):
            return False  # They are being deleted, and one is a late writer's.
        raise CorruptionError(
            f"{documents.block_path(first)} of {store.url} does not name the commits that exist;"
            " no commit was deleted"
        )
    return True  # B1


def _has_its_commits(store: Store, first: int) -> bool:
    """Returns whether all commits of a block are there, each of them the next one's parent."""
    try:
        commits = [
            read_commit(store, version)
            for version in range(first, first + documents.BLOCK_VERSIONS + 1)
        ]
    except FileNotFoundError:
        return False
    return all(b.parent == a.record.commit_id for a, b in pairwise(commits))
