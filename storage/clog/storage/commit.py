"""The commit loop: create version N+1 if absent, and an answer to every reply and to none (COMMIT.md §2).

The committer holds its *tip*, the newest commit it knows. `commit` asks a *prepare* function what to change given the tip; when another commit
came first it asks again. So all rules about conflicts are in the prepare functions, and read the tip's head only.

Not here: what an append or a clean needs (`append`, cleaner), how the newest version is found (`timeline`).
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
    StoreUnavailableError,
)
from clog.storage.head import WRITERS_MAX, SnapshotRef, advance
from clog.storage.ids import Ids
from clog.storage.snapshots import read_snapshot, write_snapshot
from clog.storage.store.base import ObjectExistsError, Store
from clog.storage.timeline import find_newest, is_closed, replay
from clog.storage.writers import page_out

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
    """Raised by a prepare function that needs no commit: ``value`` is the result (a duplicate, nothing to do)."""

    def __init__(self, value: object) -> None:
        super().__init__(value)
        self.value = value


Prepare = Callable[[Commit, int], Edit]
"""From the tip and the commit time in ms, the edit to commit. Raises `Answer` when there is nothing to commit."""


class Committer:
    """Commits to one log. Not safe for threads; pickles nothing."""

    def __init__(self, store: Store, tip: Commit, *, clock: Clock, ids: Ids) -> None:
        self.store = store
        self.clock = clock
        self.ids = ids
        self.tip = tip
        self._since: list[EditRecord] = [*tip.earlier, tip.record]

    def see(self, tip: Commit) -> None:
        """Takes a newer commit as the tip."""
        if tip.version == self.tip.version + 1:
            self._since.append(tip.record)
        elif tip.version > self.tip.version:
            self._since = [*tip.earlier, tip.record]
        self.tip = tip

    def edits_after(self, version: int) -> list[EditRecord] | None:
        """The edits from ``version`` + 1 to the tip where this handle holds all of them, else None. No request."""
        if version < self._since[0].version - 1:
            return None
        return [record for record in self._since if record.version > version]

    def commit(self, prepare: Prepare, *, operation: str) -> Commit:
        """Makes the change and returns its commit.

        Raises:
            CommitConflictError: other writers came first too many times.
            CommitStateUnknownError: whether the commit happened cannot be found out now.
            Answer: from ``prepare``.
        """
        for losses in range(LOSSES_MAX):
            if losses:
                self._back_off(losses)
            commit = self._prepared(prepare, operation)
            winner = self._create(commit)
            if winner.record.commit_id != commit.record.commit_id:
                self.see(winner)
                continue
            if not self._is_genuine(commit):  # step 5
                self.see(find_newest(self.store).tip)
                continue
            self.see(commit)
            self._hint()  # step 6
            return commit
        raise CommitConflictError(
            f"{operation} on {self.store.url} lost {LOSSES_MAX} races, the last against version"
            f" {self.tip.version}; fewer writers at once, or larger batches, would help"
        )

    def _prepared(self, prepare: Prepare, operation: str) -> Commit:
        """Steps 2 and 3: the commit as it is to be created."""
        tip = self.tip
        version = tip.version + 1
        time_ms = max(self.clock.now_ms(), tip.record.time_ms)
        edit = prepare(tip, time_ms)  # step 2
        edit = self._with_room_for_writers(edit)
        head = advance(tip.head, edit, version=version, time_ms=time_ms)
        if version % HINT_STRIDE == 0 and (snapshot := self._snapshot()) is not None:  # step 3
            head = replace(head, snapshot=snapshot)
        commit_id = self.ids.new_id()
        stored = stored_edit(self.store, edit, commit_id=commit_id)
        record = EditRecord(version, commit_id, time_ms, operation, stored)
        last_snapshot = -1 if head.snapshot is None else head.snapshot.version
        first = carried_from(version, snapshot_version=last_snapshot)
        earlier = tuple(r for r in self._edits_from(first) if r.version >= first)
        return Commit(record, tip.record.commit_id, earlier, head)

    def _create(self, commit: Commit) -> Commit:
        """Step 4. Returns the commit that is version N+1: ours, or the one that came first."""
        path = paths.commit_path(commit.version)
        data = encode_commit(commit)
        cause: Exception | None = None
        for attempt in range(CREATES_MAX):
            if attempt:
                self._back_off(attempt)
            try:
                self.store.create(path, data)
                return commit
            except (ObjectExistsError, StoreUnavailableError) as e:
                # A conflict may be with ourselves: a client repeats a request whose reply was lost.
                cause = e
            try:
                return read_commit(self.store, commit.version)
            except FileNotFoundError:
                continue  # Not there: the same version again, never another one.
            except StoreUnavailableError as e:
                cause = e
        raise CommitStateUnknownError(
            f"commit {commit.version} of {self.store.url} may have happened: {cause};"
            " read the log before you repeat it"
        ) from cause

    def _is_genuine(self, commit: Commit) -> bool:
        ids = self._patiently(lambda: is_closed(self.store, commit.version), commit.version)
        return ids is None or ids.get(commit.version) == commit.record.commit_id

    def _patiently(self, read: Callable[[], _T], version: int) -> _T:
        cause: Exception | None = None
        for attempt in range(CREATES_MAX):
            if attempt:
                self._back_off(attempt)
            try:
                return read()
            except StoreUnavailableError as e:
                cause = e
        raise CommitStateUnknownError(
            f"commit {version} of {self.store.url} was made but could not be checked: {cause};"
            " read the log before you repeat it"
        ) from cause

    def _hint(self) -> None:
        if self.tip.version % HINT_STRIDE == 0:
            try:
                self.store.put(paths.LATEST, body_json({"version": self.tip.version}))
            except StoreUnavailableError:
                pass  # The next multiple of 4 writes it; until then opening probes a little further.

    def _edits_from(self, first: int) -> list[EditRecord]:
        """Edits from a version up to the tip; reads the commits that carry those which this handle has not seen."""
        known = self._since
        while known[0].version > first:
            # The newest commit before what is known that carries several: a multiple of 4, or an even one.
            before = known[0].version - 1
            commit = read_commit(self.store, before)
            known = [*commit.earlier, commit.record, *known]
        self._since = known
        return known

    def _snapshot(self) -> SnapshotRef | None:
        """A snapshot of the tip when the edits since the last one outweigh it; None when not, or when it fails."""
        last = self.tip.head.snapshot
        floor = 0 if last is None else last.version + 1
        since = [r for r in self._edits_from(floor) if r.version >= floor]
        weight = sum(len(body_json(r.stored)) for r in since)
        if weight <= max(SNAPSHOT_EDIT_BYTES_MIN, last.size_bytes if last else 0):
            return None
        try:
            base = read_snapshot(self.store, last.version) if last else None
            ref = write_snapshot(
                self.store, replay(self.store, base, since, self.tip), new_id=self.ids.new_id
            )
        except (StoreUnavailableError, FileNotFoundError):
            return None
        self._since = [r for r in self._since if r.version > ref.version] or self._since[-1:]
        return ref

    def _with_room_for_writers(self, edit: Edit) -> Edit:
        head = self.tip.head
        if edit.writer is None or len(head.writers) < WRITERS_MAX:
            return edit
        return replace(edit, older_writers=page_out(self.store, head, new_id=self.ids.new_id))

    def _back_off(self, attempt: int) -> None:
        ceiling = min(BACKOFF_MS_MAX, BACKOFF_MS << min(attempt, 10))
        self.clock.sleep_ms(int(self.ids.uniform() * ceiling))
