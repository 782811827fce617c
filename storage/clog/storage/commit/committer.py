"""The commit loop: create version N+1 if absent, and an answer to every reply and to none
(COMMIT.md §2).

The committer starts from the *tip*, the newest commit its tracker knows. `commit` asks a *prepare*
function what to change given the tip; when another commit came first it asks again. So all rules
about conflicts are in the prepare functions, and read the tip's head only.

Not here: what an append or a clean needs (`append`, cleaner), how the newest version is found
    (`versions`, `tip_tracker`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from clog.storage.clock import Clock
from clog.storage.commit.due_snapshots import HARMLESS, OwedSnapshots, due_edits, paged_bytes
from clog.storage.commit.store_clock import StoreClock
from clog.storage.commit.tip_tracker import TipTracker
from clog.storage.commit.turns import Turns
from clog.storage.commit.versions import Block, block_body, read_block, replay
from clog.storage.commit.withdrawal import NotedWrites, check_there, files_of, withdraw
from clog.storage.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    TransactionFencedError,
)
from clog.storage.format import documents, paths
from clog.storage.format.columns import PartitionColumns, with_rest
from clog.storage.format.commits import (
    HINT_STRIDE,
    Commit,
    EditRecord,
    carried_from,
    encode_commit,
    read_commit,
    stored_edit,
)
from clog.storage.format.edits import Edit
from clog.storage.format.head import Head, SnapshotRef, advance, check_writable
from clog.storage.format.producers import page_out_if_full
from clog.storage.format.snapshots import PAGE_BYTES_MAX, read_named_snapshot, write_snapshot
from clog.storage.format.writer_pages import WriterPages
from clog.storage.ids import Ids
from clog.storage.store.base import (
    ObjectExistsError,
    Store,
    StoreFullError,
    StoreRefusedError,
)

LOSSES_MAX = 200
"""Lost races after which a commit gives up."""
CREATES_MAX = 5
"""Creates of one version while its outcome stays unknown."""
BACKOFF_MS = 4
BACKOFF_MS_MAX = 500
SNAPSHOT_EDIT_BYTES_MIN = 16 << 10
"""Edits since the snapshot weigh at least so much before they are worth a new one."""
DEFERRED_EDIT_BYTES_MAX = 1 << 20
"""Edits since the snapshot weigh so much before an append rewrites many pages itself."""

GONE = (NotFoundError, CorruptionError, FileNotFoundError)
"""What is raised where something is damaged, or expired."""
REFUSALS = (*GONE, InvalidInputError, TransactionFencedError)
"""What a prepare function raises for good only where its tip is new enough (COMMIT.md, K2)."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class NothingToCommit:
    """The log needs no change. A subclass says why, to a caller that asks."""


_Nothing = TypeVar("_Nothing", bound=NothingToCommit)

Prepare = Callable[[Commit, int], Edit | _Nothing]
"""From the tip and the commit time in ms, the edit to commit, or that there is none."""


class Committer:
    """Commits to one log. Not safe for threads; pickles nothing.

    Attributes:
        writer_pages: the pages of older writers that were read or written of late.
    """

    def __init__(self, tracker: TipTracker, *, clock: Clock, ids: Ids) -> None:
        self._tracker = tracker
        self._store = NotedWrites(tracker.store)
        self.writer_pages = WriterPages(self._store)
        self._clock = clock
        self._ids = ids
        self._turns = Turns(clock=clock, ids=ids)
        self._store_clock = StoreClock(tracker.store, clock=clock, ids=ids)
        self._owed = OwedSnapshots(tracker.store)

    def commit(self, prepare: Prepare[_Nothing], *, operation: str) -> Commit | _Nothing:
        """Makes the change and returns its commit; or what ``prepare`` returned in its place.

        Raises:
            CommitConflictError: other writers came first too many times.
            CommitStateUnknownError: whether the commit happened cannot be found out now.
            ClockSkewError: this machine's clock is far ahead of the store's.
        """
        self._store.written.clear()
        try:
            return self._commit(prepare, operation)
        except NotFoundError:
            self.withdraw(self._store.written)
            raise

    def withdraw(self, written: Iterable[str]) -> None:
        """Deletes files that nobody will commit, where the log is gone (`withdrawal.withdraw`)."""
        self._tracker.doubt()  # Else what was written may look like news.
        withdraw(self._tracker.log, self._tracker.tip, written)

    def _commit(self, prepare: Prepare[_Nothing], operation: str) -> Commit | _Nothing:
        newest = self._turns.yield_turn() or self._tracker.is_stale()
        if newest:
            self._tracker.refresh()
        else:
            self._tracker.confirm()
        for losses in range(LOSSES_MAX):
            if losses:
                self._turns.saw(self._tracker.recent.known)
                self._turns.wait_after_loss(losses)
                self._tracker.refresh()
            commit = self._asked(prepare, operation, newest=newest, lost=losses > 0)
            if isinstance(commit, NothingToCommit):
                return commit
            self._turns.begin_try()
            began = self._tracker.now()
            winner = create_commit(self._store, commit, clock=self._clock, ids=self._ids)
            self._turns.end_try(won=winner is Created.OURS)
            if winner is Created.OURS:
                self._tracker.made(commit, began)
                self._turns.saw(self._tracker.recent.known)
                self._hint()  # K6
                return commit
            if winner is Created.NOWHERE:
                self._store.written += files_of(commit)
                self._deny(commit)
            if isinstance(winner, Commit) and winner.parent == commit.parent:
                self._tracker.see_winner(winner)
            else:
                self._tracker.open_anew()
        raise CommitConflictError(
            f"{operation} on {self._store.url} lost {LOSSES_MAX} commit races, the last to version"
            f" {self._tracker.tip.version}; use fewer writers at once, or larger batches"
        )

    def _asked(
        self, prepare: Prepare[_Nothing], operation: str, *, newest: bool, lost: bool
    ) -> Commit | _Nothing:
        """Asks what to commit; of a tip that is perhaps not the ``newest`` that the call could
        find, twice before it says no. ``lost``: the tip was found after a lost race.
        """
        tip, newest = self._tracker.tip, newest or lost
        try:
            commit = self._prepared(prepare, operation)
            if isinstance(commit, NothingToCommit):
                if lost:
                    self._tracker.lost()
                self._tracker.settle()  # Only a version that was committed may say so.
                if self._tracker.tip is not tip:
                    return self._prepared(prepare, operation)
            return commit
        except REFUSALS as e:
            if not newest or self._tracker.is_stale():
                self._tracker.refresh()  # What refused it may have changed.
            if self._tracker.tip is tip and isinstance(e, GONE):
                self._tracker.open_anew()  # Or have expired in this moment, with the tip.
            if self._tracker.tip.version == tip.version:
                if isinstance(e, FileNotFoundError | CorruptionError):
                    self._tracker.log.check()
                raise
            return self._prepared(prepare, operation)

    def _prepared(self, prepare: Prepare[_Nothing], operation: str) -> Commit | _Nothing:
        """Does K2 and K3: returns the commit as it is to be created, where there is one."""
        tip = self._tracker.tip
        check_writable(tip.head.log, where=self._store.url)
        version = tip.version + 1
        self._store_clock.check(newest_ms=tip.record.time_ms)
        time_ms = max(self._clock.now_ms(), tip.record.time_ms)
        edit = prepare(tip, time_ms)  # K2
        if isinstance(edit, NothingToCommit):
            return edit
        if edit.reset_times:
            time_ms = self._clock.now_ms()
        new_id = self._ids.new_id
        paged = page_out_if_full(self.writer_pages, tip.head, edit.writers, new_id=new_id)
        edit = edit if paged is None else replace(edit, older_writers=paged)
        head = advance(tip.head, edit, version=version, time_ms=time_ms)
        head = replace(head, partitions=self._columns(tip, head))  # K3
        if version % HINT_STRIDE == 0 and (snapshot := self._snapshot(operation)) is not None:
            head = replace(head, snapshot=snapshot)
        commit_id = self._turns.new_id()
        stored = stored_edit(self._store, edit, commit_id=commit_id)
        parent = tip.record.commit_id
        record = EditRecord(version, commit_id, time_ms, operation, stored, parent, made=edit)
        last_snapshot = -1 if head.snapshot is None else head.snapshot.version
        first = carried_from(version, snapshot_version=last_snapshot)
        earlier = self._tracker.edits_from(first) if first < version else []
        return Commit(record, parent, tuple(earlier), head)

    def _columns(self, tip: Commit, head: Head) -> PartitionColumns:
        """Returns the columns as the head after the tip is to hold them."""
        before, after, new_id = tip.head.partitions, head.partitions, self._ids.new_id
        try:
            return with_rest(self._store, before, after, version=tip.version, new_id=new_id)
        except StoreUnavailableError:
            return after  # Longer than it might be, and as true.

    def _deny(self, commit: Commit) -> None:
        """Raises the error of a commit whose block has no file; it was created all the same, so
        that nobody knows what became of it while nobody can say which log stands there.
        """
        self._tracker.doubt()  # Where it cannot be asked now, what was written may look like news.
        log, version = self._tracker.log, commit.version
        _patiently(
            lambda: check_there(log, version - 1), self._store, version, self._clock, self._ids
        )
        raise CorruptionError(
            f"{paths.block_path(commit.version)} of {self._store.url} is missing; nobody can say"
            f" whether version {commit.version} was committed"
        )

    def _hint(self) -> None:
        version = self._tracker.tip.version
        if version % HINT_STRIDE == 0:
            try:
                self._store.put(paths.LATEST, documents.body_json({"version": version}))
            except StoreUnavailableError:
                pass  # The next multiple of 4 writes it; until then opening takes more probes.

    def _snapshot(self, operation: str) -> SnapshotRef | None:
        """Returns a snapshot of the tip when one is due; None when not, or when it fails.

        An append leaves one for which many pages are rewritten to the commits of the cleaner, which
        changed what is in them (`owes_snapshot`).
        """
        tip = self._tracker.tip
        last = tip.head.snapshot
        since = self._tracker.edits_from(0 if last is None else last.version + 1)
        due = due_edits(self._tracker.recent, since, last, bytes_min=SNAPSHOT_EDIT_BYTES_MIN)
        if due is None:
            return None
        try:
            base = read_named_snapshot(self._store, last) if last else None
            may_leave_it = operation == "append" and due.weight <= DEFERRED_EDIT_BYTES_MAX
            if may_leave_it and base and paged_bytes(self._store, base, since) > PAGE_BYTES_MAX:
                return None
            manifest = replay(self._store, base, since, tip)
            return write_snapshot(self._store, manifest, new_id=self._ids.new_id)
        except HARMLESS:
            return None  # Readers tell of damage; records that can be kept are kept.

    def owes_snapshot(self) -> bool:
        """Tells whether a snapshot is due that appends leave to others. No request where the edits
        since the last one are not known here, or none is due; else one GET, once for a snapshot.
        """
        return self._owed.is_owed(
            self._tracker.recent,
            self._tracker.tip.head.snapshot,
            bytes_min=SNAPSHOT_EDIT_BYTES_MIN,
            paged_min=PAGE_BYTES_MAX,
        )


class Created(Enum):
    """What became of a create that the store says succeeded."""

    OURS = "the version is this commit"
    SLEPT = "its block was deleted meanwhile: a file that nobody will ever read"
    NOWHERE = "its block has no file: the log was deleted"


def create_commit(store: Store, commit: Commit, *, clock: Clock, ids: Ids) -> Commit | Created:
    """Does K4 and K5: creates the commit's version. Returns what became of it; where another commit
    came first, that one.

    Raises:
        CommitStateUnknownError: whether it happened cannot be found out now.
    """
    version, ours = commit.version, commit.record.commit_id
    if version == paths.block_of(version):
        _open_block(store, version, clock, ids)
    winner = _create(store, commit, clock, ids)
    if winner is not None:
        return winner
    block = _patiently(lambda: _block_of(store, version), store, version, clock, ids)  # K5
    if block is None:
        return Created.NOWHERE
    if block.ids is not None:
        return Created.OURS if block.ids.get(version) == ours else Created.SLEPT
    if store.create_is_proven:
        return Created.OURS
    found = _patiently(lambda: read_commit(store, version), store, version, clock, ids)
    return Created.OURS if found.record.commit_id == ours else found


def _open_block(store: Store, first: int, clock: Clock, ids: Ids) -> None:
    """Makes the file of a block before the block's first commit, unless it is there.

    Raises:
        StoreUnavailableError: it cannot be made now; nothing was committed.
    """
    path = paths.block_path(first)
    data = documents.encode("block", block_body(first))
    cause: Exception | None = None
    for attempt in range(CREATES_MAX):
        back_off(attempt, clock, ids)
        try:
            store.create(path, data)
            return
        except ObjectExistsError as e:
            cause = e  # Perhaps by a create that never ends.
        if read_block(store, first) is not None:
            return
    raise StoreUnavailableError(
        f"{path} of {store.url} is refused as if it were there, and it is not; nothing was"
        f" committed; try again later: {cause}"
    ) from cause


def _block_of(store: Store, version: int) -> Block | None:
    """Returns the version's block; None where the log was deleted. The first committer of a block
    made its file himself, so that of the block before tells.
    """
    if version and version == paths.block_of(version) and read_block(store, version - 1) is None:
        return None
    return read_block(store, version)


def _create(store: Store, commit: Commit, clock: Clock, ids: Ids) -> Commit | None:
    """Does K4.

    Raises:
        StoreFullError: there is no room for it.
        StoreRefusedError: for sure, or each time, and nothing was there whenever we looked.
        CommitStateUnknownError: whether it happened cannot be found out now.
    """
    path = paths.commit_path(commit.version)
    data = encode_commit(commit)
    cause: Exception | None = None
    refused = True
    for attempt in range(CREATES_MAX):
        back_off(attempt, clock, ids)
        try:
            store.create(path, data)
            return None
        except (ObjectExistsError, StoreUnavailableError) as e:
            # A conflict may be with ourselves, and a refusal come after a success: a client
            # repeats a request whose reply was lost.
            if attempt == 0 and (isinstance(e, StoreFullError) or _is_certain(e)):
                raise
            refused = refused and isinstance(e, StoreRefusedError)
            cause = e
        try:
            found = read_commit(store, commit.version)
        except FileNotFoundError:
            continue  # Not there: the same version again, never another one.
        except (StoreUnavailableError, CorruptionError) as e:
            refused, cause = False, e
            continue
        return None if found.record.commit_id == commit.record.commit_id else found
    if refused and cause is not None:
        raise cause
    raise _unknown(store, commit.version, cause) from cause


def _is_certain(error: Exception) -> bool:
    return isinstance(error, StoreRefusedError) and error.certain


def _patiently(read: Callable[[], _T], store: Store, version: int, clock: Clock, ids: Ids) -> _T:
    """Returns what a read says, after a commit was made: giving up leaves its state unknown."""
    cause: Exception | None = None
    for attempt in range(CREATES_MAX):
        back_off(attempt, clock, ids)
        try:
            return read()
        except (StoreUnavailableError, CorruptionError, FileNotFoundError) as e:
            cause = e
    raise _unknown(store, version, cause) from cause


def _unknown(store: Store, version: int, cause: Exception | None) -> CommitStateUnknownError:
    return CommitStateUnknownError(
        f"the outcome of commit {version} of {store.url} is unknown: {cause};"
        " read the log before you repeat it"
    )


def back_off(attempt: int, clock: Clock, ids: Ids) -> None:
    """Sleeps for a random while that grows with the attempt; not at all before the first, which is
    0.
    """
    if attempt:
        ceiling = min(BACKOFF_MS_MAX, BACKOFF_MS << min(attempt, 10))
        clock.sleep_ms(int(ids.uniform() * ceiling))
