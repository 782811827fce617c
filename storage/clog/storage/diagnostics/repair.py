"""Repairs a history written by two writers, into a copy with the longest sound part of it.

A store that checks first and then writes lets two creates of one version succeed, and the last one
stays (COMMIT.md §1, A2). Its author continues from it, the other writer from its own commit, which
nobody can read any more: from there on commits do not follow one another.

H1. Read all commits except those of closed blocks; those that cannot be read count as missing. If
    files of blocks were lost, the commits show what was in them (`_Blocks`).
H2. From the newest commit walk back by ``parent``. If another commit is in a version's place, the
    right one is rebuilt: a later commit carries its edit (FORMAT.md §3.1), which turns the previous
    head into its head. The result must lead to the head of the following commit. A commit that
    carries less than it should, because the carried edits had a gap, gets what it lacks.
H3. If that fails, too, the history cannot reach the newest version: walk again, from the version
    at which it failed. Verify the result, except the rows; if that finds something, such as a
    snapshot of the other history, continue from before that snapshot.
H4. Copy everything that belongs to this history, and at the end the file that makes a log: an
    interrupted copy is not a log.
H5. Verify the copy, including its rows.

The broken log is only read: what was left out is still there. The store of the copy should be one
with exclusive creates.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from clog.storage.commit.tip import Block, block_body, read_block, standing_log, store_of
from clog.storage.commit.versions import manifest_of
from clog.storage.diagnostics.verify import (
    VerifyReport,
    history_findings,
    segment_findings,
    verify_log,
)
from clog.storage.env import dataclass
from clog.storage.errors import (
    AlreadyExistsError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
)
from clog.storage.format import documents
from clog.storage.format.commits import (
    HINT_STRIDE,
    Commit,
    EditRecord,
    Head,
    advance,
    carried_from,
    edit_of,
    encode_commit,
    goes_back_in_time,
    lacks_edits,
    read_commit,
    with_columns,
)
from clog.storage.format.documents import body_json
from clog.storage.format.manifest import read_snapshot, unpage
from clog.storage.store.contract import Store, StoredObject, WrappingStore, not_found

_FOLLOWS = (
    *("log", "config", "config_epoch", "orphan_floor", "oldest_readable", "partitions"),
    *("writers", "older_writers"),
)
"""What an edit derives from the previous head; the snapshot is each committer's choice."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A commit that is not in the copy, and what it did; None if it cannot be read."""

    version: int
    operation: str | None


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The result of a repair: the copy's newest version, and how it differs from the log.

    Attributes:
        rebuilt: versions for which the log has another writer's commit, or one that carries less
            than it should.
        left_out: the commits that lead to nothing sound.
        blocks: the first versions of blocks whose files were lost, and are made anew.
        verified: the result of `verify_log` for the copy.
    """

    url: str
    copy: str
    version: int
    rebuilt: tuple[int, ...]
    left_out: tuple[LeftOut, ...]
    blocks: tuple[int, ...]
    verified: VerifyReport


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The first version after closed blocks, and of each block without a readable file.

    Without its file a reader cannot know which of a block's commits were made: it may have been
    closed, and then they were being deleted, and committers that slept may have left some of their
    own (COMMIT.md §4). But all the remaining files together show it:

    - blocks are closed from the oldest on, so those before a closed one were closed;
    - the block of the newest version was never closed: its commits are genuine;
    - any other block that has all its commits needs no file: they follow one another to the newest
      version, or are left out. A block that lacks any was closed, unless an open one comes before
      it; the rest of it is left out.
    """

    first_open: int
    lost: tuple[int, ...]

    def files(self) -> Mapping[str, bytes]:
        """Returns, by path, the files that replace the lost ones in a copy."""
        return {
            documents.block_path(first): documents.encode(
                "block", block_body(first, {} if first < self.first_open else None)
            )
            for first in self.lost
        }


def repair_log(root: Store, copy: Store) -> RepairReport:
    """Writes the longest sound history of a broken log into an empty store; changes nothing else.

    Costs a GET for each object, a PUT for each that is copied, and the verification of the copy.
    Raises InvalidInputError if the history is sound, CorruptionError if no part of it is.
    """
    standing = standing_log(root)
    store = standing.store
    listed = [documents.version_of(found.path) for found in store.list(documents.COMMITS)]
    versions = sorted(version for version in listed if version is not None)
    blocks = _blocks_of(store, versions)
    stored = _commits(store, [version for version in versions if version >= blocks.first_open])
    files = {version: commit for version, commit in stored.items() if commit is not None}
    if not files:
        raise NotFoundError(f"no log with a readable commit is at {store.url}")
    broken = _Broken(store, files, blocks)
    history = broken.longest()
    ids = {version: commit.record.commit_id for version, commit in history.items()}
    left_out = tuple(
        LeftOut(version, None if commit is None else commit.record.operation)
        for version, commit in sorted(stored.items())
        if commit is None or ids.get(version) != commit.record.commit_id
    )
    rebuilt = tuple(v for v in sorted(history) if history[v] is not files.get(v))
    if not left_out and not rebuilt and not blocks.lost:
        raise InvalidInputError(
            f"the history of {store.url} is sound: nothing to repair; where objects are damaged,"
            " restore them from a back-up"
        )
    if next(iter(copy.list("")), None) is not None:
        raise AlreadyExistsError(f"{copy.url} is not empty; choose an empty place")
    _copy(_Chosen(broken, history), store_of(copy, standing.log_id), history, blocks)
    copy.put(documents.LOG_FILE, root.get(documents.LOG_FILE))
    verified = verify_log(copy)
    return RepairReport(store.url, copy.url, max(history), rebuilt, left_out, blocks.lost, verified)


def _blocks_of(store: Store, versions: Collection[int]) -> _Blocks:
    """Returns what block files and commits say about blocks; a LIST, and a GET for each block."""
    there: dict[int, Block] = {}
    for stored in store.list(documents.BLOCKS):
        first = documents.version_of(stored.path)
        if first is not None and first == documents.block_of(first):
            with suppress(CorruptionError):
                if (block := read_block(store, first)) is not None:
                    there[first] = block
    known = {*versions}
    newest, step = documents.block_of(max(versions, default=0)), documents.BLOCK_VERSIONS
    closed = [first for first, block in there.items() if block.ids is not None]
    at = max(closed, default=-step) + step
    while at < newest and at not in there and not {*range(at, at + step)} <= known:
        at += step
    return _Blocks(at, tuple(first for first in range(0, newest + 1, step) if first not in there))


def _commits(store: Store, versions: Sequence[int]) -> dict[int, Commit | None]:
    """Returns the commits by version, with all columns; None for those that cannot be read."""
    found: dict[int, Commit | None] = {}
    for version in versions:
        before = found.get(version - 1)
        known = [] if before is None else [(before.version, before.head.partitions)]
        try:
            commit = read_commit(store, version)
            found[version] = replace(commit, head=with_columns(store, commit.head, *known))
        except (CorruptionError, FileNotFoundError):
            found[version] = None
    return found


@dataclass(frozen=True, slots=True)
class _Broken:
    """A log as it is stored: its readable commits, and its blocks."""

    store: Store
    files: Mapping[int, Commit]
    blocks: _Blocks

    def longest(self) -> dict[int, Commit]:
        """Returns the commits of the history that reaches the highest version (H2 and H3)."""
        newest = max(self.files)
        while True:
            history, failed = self._forward(self._ids_back_from(newest))
            if failed is None and not self._is_sound(history):
                ref = history[newest].head.snapshot
                named = [v for v, commit in history.items() if commit.head.snapshot == ref]
                failed = newest - 1 if ref is None else min(named) - 1
            if failed is None:
                return history
            below = [version for version in self.files if version <= failed and version < newest]
            if not below:
                raise CorruptionError(f"no part of the history of {self.store.url} is sound")
            newest = max(below)

    def _is_sound(self, history: dict[int, Commit]) -> bool:
        chosen = _Chosen(self, history)
        try:
            manifest = unpage(chosen, manifest_of(chosen, history[max(history)]))
            return not [*segment_findings(manifest), *history_findings(chosen, history, manifest)]
        except (CorruptionError, NotFoundError, FileNotFoundError):
            return False

    def _ids_back_from(self, newest: int) -> dict[int, str]:
        """Returns the commit ids from ``newest`` back to the oldest version that exists."""
        before = {
            (after.version, after.commit_id): r.commit_id
            for c in self.files.values()
            for r, after in pairwise([*c.earlier, c.record])
        }
        ids = {newest: self.files[newest].record.commit_id}
        for version in range(newest - 1, min(self.files) - 1, -1):
            after = self.files.get(version + 1)
            if after is not None and after.record.commit_id == ids[version + 1]:
                parent = after.parent
            else:
                parent = before.get((version + 1, ids[version + 1]))
            if parent is None and version in self.files:
                parent = self.files[version].record.commit_id  # The heads show if it is not.
            ids[version] = str(parent)
        return ids

    def _forward(self, ids: dict[int, str]) -> tuple[dict[int, Commit], int | None]:
        """Returns the commits of these ids, and the highest version that lacks one."""
        carried = {(r.version, r.commit_id): r for c in self.files.values() for r in c.earlier}
        history: dict[int, Commit] = {}
        failed = None
        for version in sorted(ids):
            commit, before = self.files.get(version), history.get(version - 1)
            if commit is None or commit.record.commit_id != ids[version]:
                record = carried.get((version, ids[version]))
                commit = None
                if record is not None and before is not None:
                    commit = self._rebuilt(before, record, history)
            elif before is not None:
                head = self._advanced(before, commit.record)
                if head is None or any(
                    getattr(head, name) != getattr(commit.head, name) for name in _FOLLOWS
                ):
                    commit = None
            if commit is None:
                failed = version
            else:
                history[version] = _carrying_all(commit, history) if lacks_edits(commit) else commit
        return history, failed

    def _rebuilt(
        self, before: Commit, record: EditRecord, history: dict[int, Commit]
    ) -> Commit | None:
        """Returns the commit of a carried edit; None if it does not fit the previous commit."""
        version, after = record.version, self.files.get(record.version + 1)
        head = self._advanced(before, record)
        if head is None or goes_back_in_time(self.store, before.record, record):
            return None
        if version % HINT_STRIDE == 0 and after is not None and after.parent == record.commit_id:
            head = replace(head, snapshot=after.head.snapshot)  # announced here, and kept since
        columns = None if after is None else after.head.partitions
        if (
            columns is not None
            and columns.ref is not None
            and columns.ref.version == before.version
        ):
            rest = head.partitions.over(columns.array, columns.ref)  # as the snapshot
            head = replace(head, partitions=rest)
        parent = before.record.commit_id
        made = _carrying_all(Commit(replace(record, parent=parent), parent, (), head), history)
        return None if lacks_edits(made) else made

    def _advanced(self, before: Commit, record: EditRecord) -> Head | None:
        try:
            edit = edit_of(self.store, record)
            return advance(before.head, edit, version=record.version, time_ms=record.time_ms)
        except (CorruptionError, FileNotFoundError):
            return None


def _carrying_all(commit: Commit, history: dict[int, Commit]) -> Commit:
    """Returns the commit with the edits that it should carry, if the history has them."""
    snapshot = -1 if commit.head.snapshot is None else commit.head.snapshot.version
    carried = range(carried_from(commit.version, snapshot_version=snapshot), commit.version)
    if any(version not in history for version in carried):
        return commit
    return replace(commit, earlier=tuple(history[version].record for version in carried))


class _Chosen(WrappingStore):
    """A log as it would be with another history; writes nothing."""

    def __init__(self, broken: _Broken, history: dict[int, Commit]) -> None:
        super().__init__(broken.store)
        self._history = history
        self._newest = max(history)
        self._rebuilt = {
            documents.commit_path(version): encode_commit(commit)
            for version, commit in history.items()
            if commit is not broken.files.get(version)
        }
        self._rebuilt |= broken.blocks.files()

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Reads an object as it should be; hides the hint, which may be misleading."""
        if path in self._rebuilt:
            return self._rebuilt[path][start:end]
        if not self._has(path):
            raise not_found(path, self.url)
        return self.inner.get(path, start, end)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        yield from (found for found in self.inner.list(prefix) if self._has(found.path))

    def _has(self, path: str) -> bool:
        version = documents.version_of(path)
        if path == documents.LATEST or (path.startswith(documents.COMMITS) and version is None):
            return False
        if path.startswith(documents.COMMITS):
            return version in self._history
        if path.startswith(documents.SNAPSHOTS):
            return version is not None and version <= self._newest and self._is_of(version)
        return True

    def _is_of(self, version: int) -> bool:
        commit = self._history.get(version)
        try:
            return commit is None or (
                read_snapshot(self.inner, version).commit_id == commit.record.commit_id
            )
        except (CorruptionError, FileNotFoundError):
            return False


def _copy(chosen: Store, copy: Store, history: dict[int, Commit], blocks: _Blocks) -> None:
    """Copies everything that belongs to the history (H4)."""
    for path, data in blocks.files().items():
        copy.put(path, data)
    for found in chosen.list(""):
        # A proposal is never needed, and its author writes to the log that stays as it is.
        if not found.path.startswith((documents.COMMITS, documents.PROPOSALS)):
            copy.put(found.path, chosen.get(found.path))
    for version in sorted(history, reverse=True):
        path = documents.commit_path(version)
        copy.put(path, chosen.get(path))
    copy.put(documents.LATEST, body_json({"version": max(history)}))
