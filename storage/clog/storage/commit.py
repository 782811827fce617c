"""The commit loop: create version N+1 if absent, and an answer to every reply and to none
(COMMIT.md §2).

The committer starts from the *tip*, the newest commit its follower knows. `commit` asks a *prepare*
function what to change given the tip; when another commit came first it asks again. So all rules
about conflicts are in the prepare functions, and read the tip's head only.

Not here: what an append or a clean needs (`append`, cleaner), how the newest version is found
    (`timeline`, `follower`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from clog.storage import paths
from clog.storage.clock import Clock
from clog.storage.commits import (
    HINT_STRIDE,
    Commit,
    EditRecord,
    carried_from,
    encode_commit,
    read_commit,
    stored_edit,
)
from clog.storage.documents import body_json
from clog.storage.edits import Edit
from clog.storage.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedFormatError,
)
from clog.storage.follower import Follower
from clog.storage.head import WRITE_FEATURES, Head, SnapshotRef, advance
from clog.storage.ids import Ids
from clog.storage.snapshots import read_snapshot, write_snapshot
from clog.storage.store.base import ObjectExistsError, Store, StoreRefusedError
from clog.storage.timeline import is_closed, replay
from clog.storage.writers import page_out_if_full

LOSSES_MAX = 200
"""Lost races after which a commit gives up."""
CREATES_MAX = 5
"""Creates of one version while its outcome stays unknown."""
BACKOFF_MS = 4
BACKOFF_MS_MAX = 500
SNAPSHOT_EDIT_BYTES_MIN = 16 << 10
"""Edits since the snapshot weigh at least so much before they are worth a new one."""

_T = TypeVar("_T")


class Answer(Exception):  # noqa: N818 - it is no error
    """Raised by a prepare function that needs no commit: ``value`` is the result (a duplicate,
    nothing to do).
    """

    def __init__(self, value: object) -> None:
        super().__init__(value)
        self.value = value


Prepare = Callable[[Commit, int], Edit]
"""From the tip and the commit time in ms, the edit to commit. Raises `Answer` when there is nothing
to commit.
"""


class Committer:
    """Commits to one log. Not safe for threads; pickles nothing."""

    def __init__(self, follower: Follower, *, clock: Clock, ids: Ids) -> None:
        self._follower = follower
        self._store = follower.store
        self._clock = clock
        self._ids = ids

    def commit(self, prepare: Prepare, *, operation: str) -> Commit:
        """Makes the change and returns its commit.

        Raises:
            CommitConflictError: other writers came first too many times.
            CommitStateUnknownError: whether the commit happened cannot be found out now.
            Answer: from ``prepare``.
        """
        if self._follower.is_stale():
            self._follower.refresh()
        for losses in range(LOSSES_MAX):
            if losses:
                back_off(losses, self._clock, self._ids)
                self._follower.refresh()
            tip = self._follower.tip
            try:
                commit = self._prepared(prepare, operation)
            except (InvalidInputError, NotFoundError, CorruptionError, FileNotFoundError):
                # What refused it may have changed, and the block of an old tip may be closed: only
                # the newest version may say no.
                if self._follower.refresh() is tip:
                    raise
                continue
            winner = create_commit(self._store, commit, clock=self._clock, ids=self._ids)
            if winner is None:
                self._follower.see(commit)
                self._follower.looked()
                self._hint()  # step 6
                return commit
            if winner is commit:
                self._follower.open_anew()
            else:
                self._follower.see(winner)
        raise CommitConflictError(
            f"{operation} on {self._store.url} lost {LOSSES_MAX} races, the last against version"
            f" {self._follower.tip.version}; fewer writers at once, or larger batches, would help"
        )

    def _prepared(self, prepare: Prepare, operation: str) -> Commit:
        """Steps 2 and 3: the commit as it is to be created."""
        tip = self._follower.tip
        _check_writable(tip.head, self._store.url)
        version = tip.version + 1
        time_ms = max(self._clock.now_ms(), tip.record.time_ms)
        edit = prepare(tip, time_ms)  # step 2
        page = page_out_if_full(self._store, tip.head, edit.writer, new_id=self._ids.new_id)
        edit = edit if page is None else replace(edit, older_writers=page)
        head = advance(tip.head, edit, version=version, time_ms=time_ms)
        if version % HINT_STRIDE == 0 and (snapshot := self._snapshot()) is not None:  # step 3
            head = replace(head, snapshot=snapshot)
        commit_id = self._ids.new_id()
        stored = stored_edit(self._store, edit, commit_id=commit_id)
        record = EditRecord(version, commit_id, time_ms, operation, stored, made=edit)
        last_snapshot = -1 if head.snapshot is None else head.snapshot.version
        first = carried_from(version, snapshot_version=last_snapshot)
        earlier = self._follower.recent.since(self._store, first) if first < version else []
        return Commit(record, tip.record.commit_id, tuple(earlier), head)

    def _hint(self) -> None:
        version = self._follower.tip.version
        if version % HINT_STRIDE == 0:
            try:
                self._store.put(paths.LATEST, body_json({"version": version}))
            except StoreUnavailableError:
                pass  # The next multiple of 4 writes it; until then opening takes more probes.

    def _snapshot(self) -> SnapshotRef | None:
        """A snapshot of the tip when the edits since the last one outweigh it; None when not, or
        when it fails.

        Each commit whose version is divisible by 4 carries all edits since the snapshot. A new one
        is due when what was carried since
        weighs as much as it: then neither costs more than the other, however large.
        """
        recent, tip = self._follower.recent, self._follower.tip
        last = tip.head.snapshot
        since = recent.since(self._store, 0 if last is None else last.version + 1)
        weight = sum(recent.weight(record) for record in since)
        carried = weight * len(since) // (2 * HINT_STRIDE)
        if weight <= SNAPSHOT_EDIT_BYTES_MIN or carried <= (last.size_bytes if last else 0):
            return None
        try:
            base = read_snapshot(self._store, last.version) if last else None
            manifest = replay(self._store, base, since, tip)
            return write_snapshot(self._store, manifest, new_id=self._ids.new_id)
        except (StoreUnavailableError, FileNotFoundError, CorruptionError):
            return None  # Readers tell of damage; records that can be kept are kept.


def _check_writable(head: Head, url: str) -> None:
    unknown = set(head.log.write_features) - WRITE_FEATURES
    if unknown:
        raise UnsupportedFormatError(
            f"{url} uses the features {sorted(unknown)}, which this clog may read but not write;"
            " upgrade clog"
        )


def create_commit(store: Store, commit: Commit, *, clock: Clock, ids: Ids) -> Commit | None:
    """Steps 4 and 5: creates the commit's version. None when that made it so, else the commit that
    came first; ``commit`` itself when we slept while the block was deleted, and made a file that
    nobody will ever read.

    Raises:
        CommitStateUnknownError: whether it happened cannot be found out now.
    """
    winner = _create(store, commit, clock, ids)
    if winner is not None:
        return winner
    version, ours = commit.version, commit.record.commit_id
    closed = _patiently(lambda: is_closed(store, version), store, version, clock, ids)  # step 5
    if closed is not None:
        return None if closed.get(version) == ours else commit
    if store.create_is_proven:
        return None
    found = _patiently(lambda: read_commit(store, version), store, version, clock, ids)
    return None if found.record.commit_id == ours else found


def _create(store: Store, commit: Commit, clock: Clock, ids: Ids) -> Commit | None:
    """Step 4."""
    path = paths.commit_path(commit.version)
    data = encode_commit(commit)
    cause: Exception | None = None
    for attempt in range(CREATES_MAX):
        back_off(attempt, clock, ids)
        try:
            store.create(path, data)
            return None
        except (ObjectExistsError, StoreUnavailableError) as e:
            # A conflict may be with ourselves: a client repeats a request whose reply was lost.
            if attempt == 0 and isinstance(e, StoreRefusedError):
                raise  # Nothing was written, for sure.
            cause = e
        try:
            found = read_commit(store, commit.version)
        except FileNotFoundError:
            continue  # Not there: the same version again, never another one.
        except (StoreUnavailableError, CorruptionError) as e:
            cause = e
            continue
        return None if found.record.commit_id == commit.record.commit_id else found
    raise _unknown(store, commit.version, cause) from cause


def _patiently(read: Callable[[], _T], store: Store, version: int, clock: Clock, ids: Ids) -> _T:
    """What a read says, after a commit was made: giving up leaves its state unknown."""
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
        f"commit {version} of {store.url} may have happened: {cause};"
        " read the log before you repeat it"
    )


def back_off(attempt: int, clock: Clock, ids: Ids) -> None:
    """Sleeps for a random while that grows with the attempt; not at all before the first, which is
    0.
    """
    if attempt:
        ceiling = min(BACKOFF_MS_MAX, BACKOFF_MS << min(attempt, 10))
        clock.sleep_ms(int(ids.uniform() * ceiling))
