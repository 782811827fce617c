"""Bugs to plant: each takes one safeguard out of clog, and the simulation must notice.

A bug replaces one function of clog, or of the disk, by one that lacks what the name says; clog
itself knows nothing of it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import actors
import disk
import keepers
from limits import Patch, patching
from world import BEGINNINGS, beginning

import clog.cleaner.group_work
import clog.cleaner.judging
import clog.cleaner.passes
import clog.cleaner.rebasing
import clog.cleaner.relayout
import clog.cleaner.rewriting
import clog.cleaner.sweep
import clog.cleaner.upkeep
import clog.storage.append
import clog.storage.commit
import clog.storage.follower
from clog.cleaner.rebasing import SourcesChangedError
from clog.storage import paths
from clog.storage.chunks import NONE
from clog.storage.commit import Answer
from clog.storage.commits import encode_commit, read_commit
from clog.storage.edits import Edit
from clog.storage.errors import StoreUnavailableError
from clog.storage.store.base import ObjectExistsError
from clog.storage.testing.faults import FaultyStore

cleaner, storage = clog.cleaner, clog.storage


def block_file_not_read(patch: Patch) -> None:
    """After its create a committer does not ask whether the block was closed (COMMIT.md step 5)."""
    patch(storage.commit, "is_closed", lambda _store, _version: None)


def conflict_not_read_back(patch: Patch) -> None:
    """A create that is refused was another's, without looking: a repeated request is (step 4)."""
    create = storage.commit._create

    def blind(store, commit, clock, ids):
        try:
            store.create(paths.commit_path(commit.version), encode_commit(commit))
        except ObjectExistsError:
            return read_commit(store, commit.version)
        except StoreUnavailableError:
            return create(store, commit, clock, ids)
        return None

    patch(storage.commit, "_create", blind)


def abort_deletes(patch: Patch) -> None:
    """A sink whose commit failed deletes its objects: the commit may have happened."""

    def abort(self, objects):
        for obj in objects:
            self.store.delete(obj.path)

    patch(actors.Sink, "abort", abort)


def delete_before_commit(patch: Patch) -> None:
    """Released objects go before `oldest_readable` is raised (W5 before W4)."""

    def sweep(handle, *, now_ms, **_):
        manifest = handle.manifest()
        config = storage.config.LogConfig.from_overrides(manifest.head.config)
        due = cleaner.sweep.due_objects(manifest, config, now_ms=now_ms)
        for released in due:
            handle.store.delete(released.path)
        if due:
            cleaner.sweep.raise_oldest(handle, max(r.version for r in due))
            gone = tuple(r.path for r in due)
            handle.commit(lambda _tip, _ms: Edit(forget=gone), operation="sweep")

    _patch_sweep_released(patch, sweep)


def horizon_recomputed(patch: Patch) -> None:
    """Each pass stamps a tombstone anew: it never goes, or goes too late (S23)."""
    judge = cleaner.judging.survivors

    def forgetful(**given):
        horizon = given["delete_horizon_ms"]
        given["delete_horizon_ms"] = horizon * 0 + NONE
        return judge(**given)

    patch(cleaner.judging, "survivors", forgetful)


def map_end_off_by_one(patch: Patch) -> None:
    """A map that is full is said to cover the record that did not fit (S20)."""
    build = cleaner.passes.build_map

    def generous(store, manifest, partition, dirty, **more):
        mapped = build(store, manifest, partition, dirty, **more)
        mapped.end += mapped.end < dirty[1]
        return mapped

    patch(cleaner.passes, "build_map", generous)


def changed_sources_ignored(patch: Patch) -> None:
    """A pass, or a coalescing, commits though others changed its sources."""
    patch(cleaner.rebasing, "_has_same_rows", lambda *_: True)
    patch(cleaner.relayout, "_is_as_planned", lambda *_: True)


def checkpoint_moves(patch: Patch) -> None:
    """A pass goes on after a group whose sources changed, and moves the first dirty offset."""
    commit = cleaner.passes.commit_planned

    def go_on(handle, planned, partition, edit, **more):
        try:
            return commit(handle, planned, partition, edit, **more)
        except SourcesChangedError:
            moves = Edit(first_dirty=edit.first_dirty)
            return commit(handle, planned, partition, moves, **more)

    patch(cleaner.passes, "commit_planned", go_on)


def sequence_not_checked_again(patch: Patch) -> None:
    """A producer's sequence is checked before it writes, and not after a lost race (step 2)."""
    patch(storage.append, "check_writer", lambda *_: None)


def exists_then_write(patch: Patch) -> None:
    """The store asks whether an object is there, and writes then (A2)."""

    def create(self, path, data):
        there = path in self.inner
        (FaultyStore.create if there else FaultyStore.put)(self, path, data)

    patch(disk.ActorStore, "create", create)


def floor_ignored(patch: Patch) -> None:
    """The sweep of orphans takes objects of any stamp, also of appends under way (W3)."""
    blind = SimpleNamespace(**{**vars(paths), "stamp_of": lambda _path: NONE})
    patch(cleaner.sweep, "paths", blind)


def delay_ignored(patch: Patch) -> None:
    """Released objects are due at once (S27)."""
    due = cleaner.sweep.due_objects
    late_ms = 1 << 60
    patch(cleaner.sweep, "due_objects", lambda m, config, now_ms: due(m, config, now_ms=late_ms))


def other_partition_ignored(patch: Patch) -> None:
    """An object is dead when partition 0 does not refer to it any more."""
    due = cleaner.sweep.due_objects

    def narrow(manifest, config, *, now_ms):
        mine = (manifest.segments[0], *(() for _ in manifest.segments[1:]))
        return due(replace(manifest, segments=mine), config, now_ms=now_ms)

    patch(cleaner.sweep, "due_objects", narrow)


def floor_not_committed(patch: Patch) -> None:
    """The sweep chooses a floor and does not commit it: a slow append does not learn (W1)."""

    def no_need(_tip, _floor):
        raise Answer(None)

    patch(cleaner.sweep, "_raised", no_need)


def idle_handle_trusts(patch: Patch) -> None:
    """Who was idle for hours believes the first probe: the block may be closed (COMMIT.md §4)."""
    patch(storage.follower.Follower, "is_stale", lambda _self: False)


def relayout_loses_horizons(patch: Patch) -> None:
    """Coalescing writes tombstones without the horizon they have (S23)."""
    columns = tuple(name for name in cleaner.relayout.COLUMNS)
    read = cleaner.relayout.read_pieces
    patch(
        cleaner.relayout,
        "read_pieces",
        lambda store, pieces, **_: read(store, pieces, columns=columns),
    )


def removed_tombstone_not_told(patch: Patch) -> None:
    """A tombstone goes, and the manifest does not say so to readers (S41)."""
    patch(cleaner.group_work, "last_expired", lambda _group: NONE)


BUGS: dict[str, Callable[[Patch], None]] = {
    "block file not re-read after create": block_file_not_read,
    "conflict not read back": conflict_not_read_back,
    "abort deletes": abort_deletes,
    "delete before commit": delete_before_commit,
    "horizon recomputed": horizon_recomputed,
    "map end off by one": map_end_off_by_one,
    "cleaner ignores changed sources": changed_sources_ignored,
    "checkpoint moves though a group was dropped": checkpoint_moves,
    "sequence not re-checked after rebase": sequence_not_checked_again,
    "exists-then-write": exists_then_write,
    "sweep ignores floor": floor_ignored,
    "sweep ignores delay": delay_ignored,
    "sweep ignores another partition's chunks": other_partition_ignored,
    "floor not committed": floor_not_committed,
    "idle handle trusts a probe": idle_handle_trusts,
    "coalescing loses horizons": relayout_loses_horizons,
    "removed tombstone is not told": removed_tombstone_not_told,
}
"""By name; the last four are a second reader's."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The bug is there until the end of the block; older worlds have lived without it."""
    for number in range(1, BEGINNINGS + 1):
        beginning(number)
    with patching() as patch:
        BUGS[name](patch)
        yield


def _patch_sweep_released(patch: Patch, sweep) -> None:
    for module in (cleaner.sweep, cleaner.upkeep, keepers):
        patch(module, "sweep_released", sweep)
