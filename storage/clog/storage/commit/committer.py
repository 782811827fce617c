"""The commit loop: create version N+1 if absent, and handle every reply, or none (COMMIT.md §2).

The committer starts from the *tip*, the newest commit its tracker knows. `commit` asks a *prepare*
function for the change to make to that tip, and asks again if another commit came first. So all
conflict rules are in the prepare functions, and they read only the tip's head.

A snapshot is due (K3) when the edits carried since the last one weigh as much as the snapshot. Each
commit with a version divisible by 4 carries all edits since, so then neither costs more than the
other, however large.

Whoever loses a race commits what waits of others along with its own, or asks those that wait for a
turn (`JoinsOthers`); correctness does not depend on it. `StoreClock` keeps a clock that is years
ahead from committing: commit times never go back.

A writer whose log is deleted under it leaves files in a folder that no one reads: pages, an edit, a
snapshot, objects, and the commit itself. `Committer.withdraw` deletes exactly these, since other
files there may belong to a log that is being restored (COMMIT.md §1).

Deleting anything takes a commit first, and a full disk has no room for one. So the cleaner keeps a
*reserve* in the folder of a log on a local disk, a file of at most `RESERVE_BYTES`. A process that
frees space and finds no room deletes the reserve and uses its space (COMMIT.md §5); one that
writes records does not.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Protocol, TypeVar

from clog.storage.commit.tip import Block, RecentEdits, Tip, block_body, read_block
from clog.storage.commit.versions import replay
from clog.storage.env import Clock, Ids, ManualClock, dataclass
from clog.storage.errors import (
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    TransactionFencedError,
    UnsupportedFilesystemError,
)
from clog.storage.format import documents
from clog.storage.format.columns import PartitionColumns, with_rest
from clog.storage.format.commits import (
    HINT_STRIDE,
    Commit,
    Edit,
    EditRecord,
    Head,
    SnapshotRef,
    advance,
    carried_from,
    edit_of,
    encode_commit,
    read_commit,
    stored_edit,
    up_to_date,
)
from clog.storage.format.cuts import CutLogsAt
from clog.storage.format.manifest import (
    PAGE_BYTES_MAX,
    Manifest,
    named_snapshot,
    read_named_snapshot,
    write_snapshot,
)
from clog.storage.format.transactions import PositionsAt
from clog.storage.format.writers import WriterPages, page_out_if_full
from clog.storage.store.contract import (
    ObjectExistsError,
    Store,
    StoreFullError,
    StoreRefusedError,
    WrappingStore,
)
from clog.storage.store.local import LocalStore

APPEND = "append"
"""The operation of a commit that appends."""
LOSSES_MAX = 200
"""Lost races after which a commit gives up."""
CREATES_MAX = 5
"""Creates of one version while its outcome stays unknown."""
_BACKOFF_MS = 4
_BACKOFF_MS_MAX = 500
SNAPSHOT_EDIT_BYTES_MIN = 16 << 10
"""Edits since the snapshot must weigh at least this much before a new one is worth it."""
DEFERRED_EDIT_BYTES_MAX = 1 << 20
"""Edits since the snapshot must weigh more than this before an append rewrites many pages."""
GONE = (NotFoundError, CorruptionError, FileNotFoundError)
"""Raised if something is damaged or has expired."""
REFUSALS = (*GONE, InvalidInputError, TransactionFencedError)
"""From a prepare function, final only if its tip is recent enough (COMMIT.md, K2)."""
HARMLESS = (StoreUnavailableError, FileNotFoundError, CorruptionError, InvalidInputError)
"""If a snapshot fails with these, the commit continues without it."""
_PREFIX_DIGITS = 8
"""Of a commit id: enough to distinguish concurrent writers."""
RIVAL_MS = 10_000
"""A rival committed at most this long before the newest commit."""
SKEW_MS_MAX = 300_000
"""The cleaner refuses to work with clocks that differ by more."""
_LISTED_MS = 3_600_000
"""An object that is not listed this long after it was written is not late but swept, which happens
after a day.
"""
AHEAD_MS_MAX = 900_000
"""A clock further ahead of the store's commits nothing: the cleaner would wait that long."""
RESERVE_BYTES = 1 << 20
"""Room for a few hundred commits of a small log, or for a single one of a large log."""
DATA_BYTES_MIN = 64 << 10
"""A log with less data has no reserve."""

_T = TypeVar("_T")


class ClockSkewError(StoreUnavailableError):
    """This machine's clock and the store's differ too much to judge the age of anything."""


@dataclass(frozen=True, slots=True)
class NothingToCommit:
    """The log needs no change. A subclass says why, for callers that want to know."""


_Nothing = TypeVar("_Nothing", bound=NothingToCommit)


class LostRaceError(CommitConflictError):
    """Other commits came first as often as the caller allows."""


class JoinsOthers(Protocol):
    """Commits the proposals of others along with an edit (`combining`)."""

    owes: bool
    """Whether the next commit may have to end a proposal of this handle."""

    def ask_for_a_turn(self, tip: Commit, *, takes_ms: int) -> bool:
        """Asks the combining authors to let a version pass, for as long as a try takes; returns
        whether there are any.
        """
        ...

    def with_others(self, tip: Commit, edit: Edit, time_ms: int, *, lost: bool) -> Edit:
        """Returns the edit with the proposals of others and what this author owes; ``lost``: after
        a lost race.
        """
        ...

    def is_crowded(self, tip: Commit) -> bool:
        """Returns whether others wait for the next commit."""
        ...


Prepare = Callable[[Commit, int], Edit | _Nothing]
"""Given the tip and the commit time in ms, returns the edit to commit, or that there is none."""


class Created(Enum):
    """The outcome of a create that succeeded according to the store."""

    OURS = "the version is this commit"
    SLEPT = "the block was closed in the meantime: the file will never be read"
    NOWHERE = "the block has no file: the log was deleted"


class Committer:
    """Commits to one log. Not safe for threads. ``first_id``: the ids of its commits share its
    prefix; ``ahead_ms``: the lead of the wall clock over the monotonic one when the log
    was opened (`StoreClock`).

    Attributes:
        writer_pages: the pages of older writers that were read or written recently.
        others: commits the proposals of others too; None: they are left alone.
    """

    def __init__(self, tip: Tip, first_id: str, ahead_ms: int, *, clock: Clock, ids: Ids) -> None:
        self._tip = tip
        self._store = _NotedWrites(tip.log.store)
        self.writer_pages = WriterPages(self._store)
        self._clock = clock
        self._ids = ids
        self._prefix = first_id[:_PREFIX_DIGITS]
        self._store_clock = StoreClock(tip.log.store, ahead_ms, clock=clock, ids=ids)
        self.others: JoinsOthers | None = None
        self._base: Manifest | None = None  # Of the last snapshot that was asked for.

    def commit(
        self,
        prepare: Prepare[_Nothing],
        *,
        operation: str,
        losses_max: int = LOSSES_MAX,
        lost: bool = False,
    ) -> Commit | _Nothing:
        """Commits the change and returns the commit, or what ``prepare`` returned instead of an
        edit. ``lost``: the tip was found after a lost race.

        Raises:
            LostRaceError: other writers came first too many times.
            CommitStateUnknownError: whether the commit happened cannot be determined now.
            ClockSkewError: this machine's clock is far ahead of the store's.
        """
        self._store.written.clear()
        try:
            return self._commit(prepare, operation, losses_max, lost=lost)
        except NotFoundError:
            self.withdraw(self._store.written)
            raise

    def known_as(self, commit_id: str) -> None:
        """Gives its commit ids the prefix of this one: so they tell who commits."""
        self._prefix = commit_id[:_PREFIX_DIGITS]

    def withdraw(self, written: Iterable[str]) -> None:
        """Deletes files that will not be committed, as far as possible, if the log in whose folder
        they are is gone. If it is there, this makes at most 4 GET and deletes nothing.
        """
        self._tip.doubt()  # Otherwise the leftovers may look like newer versions.
        log = self._tip.log
        try:
            log.check_there(self._tip.commit.version)
        except NotFoundError:
            for path in dict.fromkeys(written):
                with suppress(StoreUnavailableError):
                    log.store.delete(path)
        except StoreUnavailableError:
            pass  # Unknown; the caller raises its own error.

    def _commit(
        self,
        prepare: Prepare[_Nothing],
        operation: str,
        losses_max: int,
        *,
        lost: bool,
    ) -> Commit | _Nothing:
        tip = self._tip
        # Others combine: on an older tip, this commit would read their proposals in vain.
        newest = (operation != APPEND and self._combine(tip.commit)) or tip.is_stale()
        began_ms = self._clock.monotonic_ms()
        if newest:
            tip.refresh()
        else:
            tip.confirm()
        for losses in range(losses_max):
            if losses:
                now_ms = self._clock.monotonic_ms()
                began_ms, took_ms = now_ms, now_ms - began_ms
                if not self._asks_for_a_turn(took_ms):
                    _back_off(losses, self._clock, self._ids)
                tip.refresh()
            commit = self._asked(prepare, operation, newest=newest, lost=lost or losses > 0)
            if isinstance(commit, NothingToCommit):
                return commit
            began = tip.now()
            outcome = create_commit(self._store, commit, clock=self._clock, ids=self._ids)
            if outcome is Created.OURS:
                tip.made(commit, began)
                self._hint()  # K6
                if (commit.version + 1) % HINT_STRIDE == 0 and self._leaves_snapshot(operation):
                    with suppress(ClogError, FileNotFoundError):  # It was committed.
                        self._snapshot(operation)
                return commit
            if outcome is Created.NOWHERE:
                self._store.written += _files_of(commit)
                self._deny(commit)
            tip.lost_to(outcome if isinstance(outcome, Commit) else None)
        raise LostRaceError(
            f"{operation} on {self._store.url} lost {losses_max} commit races, the last to version"
            f" {tip.commit.version}; use fewer writers at once, or larger batches"
        )

    def _combine(self, tip: Commit) -> bool:
        """Returns whether writers combine at the moment."""
        others = self.others
        return tip.head.combined is not None and others is not None and others.is_crowded(tip)

    def _asks_for_a_turn(self, took_ms: int) -> bool:
        """Returns whether combining authors were asked to let a version pass; ``took_ms``: the
        duration of the last try.
        """
        tip, others = self._tip.commit, self.others
        if others is None or tip.head.combined is None:
            return False
        return others.ask_for_a_turn(tip, takes_ms=took_ms)

    def _asked(
        self, prepare: Prepare[_Nothing], operation: str, *, newest: bool, lost: bool
    ) -> Commit | _Nothing:
        """Asks what to commit; accepts a refusal only by a tip that is not old or ``lost``."""
        tip, newest = self._tip.commit, newest or lost
        try:
            commit = self._prepared(prepare, operation, lost=lost)
            if isinstance(commit, NothingToCommit):
                self._tip.settle(lost=lost)  # Only a committed version may say so.
                if self._tip.commit is not tip:
                    return self._prepared(prepare, operation, lost=lost)
            return commit
        except REFUSALS as e:
            if not newest or self._tip.is_stale():
                self._tip.refresh()  # The reason for the refusal may be gone.
            if self._tip.commit is tip and isinstance(e, GONE):
                self._tip.open_anew()  # It may have expired just now, together with the tip.
            if self._tip.commit.version == tip.version:
                if isinstance(e, FileNotFoundError | CorruptionError):
                    self._tip.log.check()
                raise
            return self._prepared(prepare, operation, lost=lost)

    def _prepared(
        self, prepare: Prepare[_Nothing], operation: str, *, lost: bool
    ) -> Commit | _Nothing:
        """Does K2 and K3: returns the commit to create, if there is one."""
        tip = self._tip.commit
        tip.head.log.check_writable(where=self._store.url)
        version = tip.version + 1
        self._store_clock.check(newest_ms=tip.record.time_ms)
        time_ms = max(self._clock.now_ms(), tip.record.time_ms)
        edit = prepare(tip, time_ms)  # K2
        if isinstance(edit, NothingToCommit):
            return edit
        others = self.others
        if others is not None and (lost or tip.head.combined or edit.combined or others.owes):
            edit = others.with_others(tip, edit, time_ms, lost=lost)
        if edit.reset_times:
            time_ms = self._clock.now_ms()
        edit = up_to_date(edit, tip.head)
        new_id = self._ids.new_id
        if edit.writers:
            paged = page_out_if_full(self.writer_pages, tip.head, edit.writers, new_id=new_id)
            edit = edit if paged is None else replace(edit, older_writers=paged)
        head = advance(tip.head, edit, version=version, time_ms=time_ms)
        head = replace(head, partitions=self._columns(tip, head))  # K3
        if version % HINT_STRIDE == 0:
            is_left = self._leaves_snapshot(operation)
            snapshot = self._left_snapshot() if is_left else self._snapshot(operation)
            head = head if snapshot is None else replace(head, snapshot=snapshot)
        commit_id = self._prefix + new_id()[_PREFIX_DIGITS:]
        stored = stored_edit(self._store, edit, commit_id=commit_id)
        parent = tip.record.commit_id
        record = EditRecord(version, commit_id, time_ms, operation, stored, parent, made=edit)
        last_snapshot = -1 if head.snapshot is None else head.snapshot.version
        first = carried_from(version, snapshot_version=last_snapshot)
        earlier = self._tip.edits_from(first) if first < version else []
        return Commit(record, parent, tuple(earlier), head)

    def _columns(self, tip: Commit, head: Head) -> PartitionColumns:
        """Returns the columns as the next head will hold them."""
        before, after, new_id = tip.head.partitions, head.partitions, self._ids.new_id
        try:
            return with_rest(self._store, before, after, version=tip.version, new_id=new_id)
        except StoreUnavailableError:
            return after  # Longer than necessary, but equally correct.

    def _deny(self, commit: Commit) -> None:
        """Raises the error for a commit that was created although its block has no file."""
        self._tip.doubt()  # If the store does not answer now, the file may look like news later.
        log, version = self._tip.log, commit.version
        _patiently(
            lambda: log.check_there(version - 1), self._store, version, self._clock, self._ids
        )
        raise CorruptionError(
            f"{documents.block_path(commit.version)} of {self._store.url} is missing, so it is"
            f" unknown whether version {commit.version} was committed"
        )

    def _hint(self) -> None:
        version = self._tip.commit.version
        if version % HINT_STRIDE == 0:
            try:
                self._store.put(documents.LATEST, documents.body_json({"version": version}))
            except StoreUnavailableError:
                pass  # The next multiple of 4 writes it; until then, opening takes more probes.

    def _snapshot(self, operation: str) -> SnapshotRef | None:
        """Returns a snapshot of the tip if one is due; None if not, or if it fails. An append
        leaves a snapshot that rewrites many pages to the cleaner, whose commits changed them
        (`owes_snapshot`).
        """
        tip = self._tip.commit
        last = tip.head.snapshot
        since = self._tip.edits_from(0 if last is None else last.version + 1)
        weight = _due_edits(self._tip.recent, since, last)
        if weight is None:
            return None
        try:
            base = read_named_snapshot(self._store, last) if last else None
            may_leave_it = operation == APPEND and weight <= DEFERRED_EDIT_BYTES_MAX
            if may_leave_it and base and _paged_bytes(self._store, base, since) > PAGE_BYTES_MAX:
                return None
            manifest = replay(self._store, base, since, tip)
            return write_snapshot(self._store, manifest, new_id=self._ids.new_id)
        except HARMLESS:
            return None  # Readers report the damage; new records are kept all the same.

    def _leaves_snapshot(self, operation: str) -> bool:
        """Returns whether a snapshot should not delay the next commit, because others wait for it
        and not too much must be carried until later. The snapshot is then written after the
        commit, and a later commit names it.
        """
        tip = self._tip.commit
        if operation != APPEND or not self._combine(tip):
            return False
        last = tip.head.snapshot
        since = self._tip.recent.after(-1 if last is None else last.version) or ()
        return sum(map(self._tip.recent.weight, since)) <= DEFERRED_EDIT_BYTES_MAX

    def _left_snapshot(self) -> SnapshotRef | None:
        """Returns the snapshot of four versions ago, if one is due and was left for this commit;
        one GET.
        """
        tip = self._tip.commit
        last, version = tip.head.snapshot, tip.version - HINT_STRIDE
        since = self._tip.edits_from(0 if last is None else last.version + 1)
        left = next((record for record in since if record.version == version), None)
        if left is None or _due_edits(self._tip.recent, since, last) is None:
            return None
        try:
            return named_snapshot(self._store, version, left.commit_id)
        except HARMLESS:
            return None

    def owes_snapshot(self) -> bool:
        """Returns whether a snapshot is due that appends leave to others. No request if the edits
        since the last one are unknown here or none is due; otherwise one GET per snapshot.
        """
        recent, last = self._tip.recent, self._tip.commit.head.snapshot
        since = None if last is None else recent.after(last.version)
        if last is None or since is None or _due_edits(recent, since, last) is None:
            return False
        store = self._tip.log.store
        try:
            if self._base is None or self._base.version != last.version:
                self._base = read_named_snapshot(store, last)
            return _paged_bytes(store, self._base, since) > PAGE_BYTES_MAX
        except HARMLESS:
            return False


class _NotedWrites(WrappingStore):
    """Passes everything on, and remembers what was ``written`` since that list was cleared."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.written: list[str] = []

    def put(self, path: str, data: bytes | memoryview) -> None:
        self.written.append(path)
        self.inner.put(path, data)

    def create(self, path: str, data: bytes) -> None:
        self.inner.create(path, data)
        self.written.append(path)  # Not before: an existing file belongs to someone else.


def _files_of(commit: Commit) -> list[str]:
    """Returns the paths of a commit and of the files that were written for its edit."""
    found = [documents.commit_path(commit.version)]
    if (edit := commit.record.made) is None:
        return found
    chunks = [c for _, c in edit.add.chunks] if edit.add is not None else []
    chunks += [c for r in edit.replace for c in r.chunks]
    found += (c.object.path for c in chunks)
    states = (by.entry.transaction for by in edit.writers)
    positions = (state.positions for state in states if state is not None)
    found += (at.path for at in positions if isinstance(at, PositionsAt))
    cuts = (cut.logs for cut in edit.cuts.values() if cut is not None)
    found += (at.path for at in cuts if isinstance(at, CutLogsAt))
    return found


def _due_edits(
    recent: RecentEdits, since: Sequence[EditRecord], last: SnapshotRef | None
) -> int | None:
    """Returns the bytes of the edits since the last snapshot if a new one is due, else None."""
    weight = sum(recent.weight(record) for record in since)
    carried = weight * len(since) // (2 * HINT_STRIDE)
    is_due = weight > SNAPSHOT_EDIT_BYTES_MIN and carried > (last.size_bytes if last else 0)
    return weight if is_due else None


def _paged_bytes(store: Store, base: Manifest, since: Sequence[EditRecord]) -> int:
    """Returns the bytes of the pages that applying the edits would rewrite."""
    touched = {p for record in since for p in edit_of(store, record).rewritten_partitions()}
    return sum(page.size_bytes for page in base.pages if touched & page.ranges.keys())


def create_commit(store: Store, commit: Commit, *, clock: Clock, ids: Ids) -> Commit | Created:
    """Does K4 and K5: creates the commit's version. Returns the outcome, or the commit that came
    first.
    """
    version, ours = commit.version, commit.record.commit_id
    if version == documents.block_of(version):
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
    """Makes the file of a block, unless it exists, before the block's first commit."""
    path = documents.block_path(first)
    data = documents.encode("block", block_body(first))
    cause: Exception | None = None
    for attempt in range(CREATES_MAX):
        _back_off(attempt, clock, ids)
        try:
            store.create(path, data)
            return
        except ObjectExistsError as e:
            cause = e  # Perhaps because of a create that never completes.
        if read_block(store, first) is not None:
            return
    raise StoreUnavailableError(
        f"the store refuses to create {path} of {store.url} because it exists, but it does not"
        f" exist; nothing was committed; try again later: {cause}"
    ) from cause


def _block_of(store: Store, version: int) -> Block | None:
    """Returns the version's block; None if it or, at its first commit, the one before is gone."""
    if (
        version
        and version == documents.block_of(version)
        and read_block(store, version - 1) is None
    ):
        return None
    return read_block(store, version)


def _create(store: Store, commit: Commit, clock: Clock, ids: Ids) -> Commit | None:
    """Does K4."""
    path = documents.commit_path(commit.version)
    data = encode_commit(commit)
    cause: Exception | None = None
    refused = True
    for attempt in range(CREATES_MAX):
        _back_off(attempt, clock, ids)
        try:
            store.create(path, data)
            return None
        except (ObjectExistsError, StoreUnavailableError) as e:
            # The conflict may be with ourselves, and a refusal may follow a success: clients
            # repeat a request whose reply was lost.
            if attempt == 0 and (isinstance(e, StoreFullError) or _is_certain(e)):
                raise
            refused = refused and isinstance(e, StoreRefusedError)
            cause = e
        try:
            found = read_commit(store, commit.version)
        except FileNotFoundError:
            continue  # Not there: try the same version again, never another one.
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
    """Returns the result of a read after a commit; giving up leaves the outcome unknown."""
    cause: Exception | None = None
    for attempt in range(CREATES_MAX):
        _back_off(attempt, clock, ids)
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


def _back_off(attempt: int, clock: Clock, ids: Ids) -> None:
    """Sleeps for a random time that grows with the attempt; not before attempt 0."""
    if attempt:
        ceiling = min(_BACKOFF_MS_MAX, _BACKOFF_MS << min(attempt, 10))
        clock.sleep_ms(int(ids.uniform() * ceiling))


def committers_of(commit: Commit, records: Sequence[EditRecord]) -> int:
    """Returns how many writers committed, or had others commit for them, in the 10 s before the
    newest commit, according to these newest records.
    """
    oldest_ms = commit.record.time_ms - RIVAL_MS
    answers = () if commit.head.combined is None else commit.head.combined.authors
    who = {a.author[:_PREFIX_DIGITS] for a in answers if a.time_ms >= oldest_ms}
    who |= {r.commit_id[:_PREFIX_DIGITS] for r in records if r.version and r.time_ms >= oldest_ms}
    return len(who)


def is_comparable(clock: Clock) -> bool:
    """Returns whether the clock claims to show the time of day."""
    return not isinstance(clock, ManualClock)


def store_now_ms(store: Store, *, clock: Clock, ids: Ids) -> int | None:
    """Returns the store's time, taken from an object just written, or None if that is not listed
    yet; a PUT, a LIST of one name and a DELETE. Asks again if it slept until the object was swept.
    """
    while True:
        path = f"{documents.CLOCKS}{ids.new_id()}"
        monotonic_ms, now_ms = clock.monotonic_ms(), clock.now_ms()
        store.put(path, b"clock")
        try:
            store_ms = next((found.modified_ms for found in store.list(path)), None)
        finally:
            with suppress(StoreUnavailableError):  # The sweep removes what is left.
                store.delete(path)
        slept_ms = max(clock.monotonic_ms() - monotonic_ms, clock.now_ms() - now_ms)
        if store_ms is not None or slept_ms < _LISTED_MS:
            return store_ms


class StoreClock:
    """The store's time as far as it is known here; ``ahead_ms``: the lead of the wall clock over
    the monotonic one at the start. Not safe for threads.

    A single commit from a clock that is years ahead would move all later ones (K2, §5; decision
    0012). Hence a handle whose clock is ahead of the newest commit, or of what the monotonic clock
    predicts, asks the store for its time before it commits. It asks once; after that the monotonic
    clock tracks the store's time. A manual clock is never compared.
    """

    def __init__(self, store: Store, ahead_ms: int, *, clock: Clock, ids: Ids) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._first_ahead_ms = ahead_ms
        self._ahead_of_monotonic_ms: int | None = None

    def check(self, *, newest_ms: int) -> None:
        """Checks that this machine's clock is not far ahead, if the newest commit is old or the
        clock was set forward.
        """
        if not is_comparable(self._clock):
            return
        now_ms, known_ms = self._clock.now_ms(), self._ahead_of_monotonic_ms
        # Among frequent commits, the newest is only as far ahead as the clock that made it.
        since_ms = self._first_ahead_ms if known_ms is None else known_ms
        is_steady = now_ms - self._clock.monotonic_ms() - since_ms <= AHEAD_MS_MAX
        if is_steady and (known_ms is not None or now_ms - newest_ms <= AHEAD_MS_MAX):
            return
        try:
            store_ms = store_now_ms(self._store, clock=self._clock, ids=self._ids)
        except (StoreRefusedError, UnsupportedFilesystemError):
            store_ms = None  # Without rights to list, or listed times, the clock is trusted.
        # Read after the answer: time slept before it would look like the store's lag.
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        if store_ms is not None and now_ms - store_ms > AHEAD_MS_MAX:
            raise ClockSkewError(
                f"this machine's clock is {now_ms - store_ms} ms ahead of the store's, more than"
                f" {AHEAD_MS_MAX}: it shows {now_ms} ms, that of {self._store.url} {store_ms};"
                " nothing was committed; set this machine's clock (NTP), or the store's if that"
                " one is wrong (compare both with `date -u`)"
            )
        self._ahead_of_monotonic_ms = (now_ms if store_ms is None else store_ms) - monotonic_ms


def keep_reserve(store: Store, data_bytes: Callable[[], int]) -> None:
    """Makes the reserve in a log's folder on a disk: as large as the log's data, up to
    `RESERVE_BYTES`. An existing one stays unless the log has outgrown it by far. A log with little
    data gets none. Its size is asked only where that may change something.
    """
    if not is_on_disk(store) or 2 * (there_bytes := _reserve_bytes(store) or 0) >= RESERVE_BYTES:
        return
    size_bytes = min(data_bytes(), RESERVE_BYTES)
    if size_bytes >= DATA_BYTES_MIN and 2 * there_bytes < size_bytes:
        from hashlib import shake_256  # Loads OpenSSL, which few processes need.

        # Bytes that no file system can compress.
        store.put(documents.RESERVE, shake_256(b"clog").digest(size_bytes))


def give_up_reserve(store: Store) -> bool:
    """Deletes the reserve in a log's folder; returns whether there was one."""
    if not is_on_disk(store) or _reserve_bytes(store) is None:
        return False
    store.delete(documents.RESERVE)
    return True


def with_reserve(store: Store, step: Callable[[], _T]) -> _T:
    """Does a step that frees space or leads to that; gives up the reserve if the disk is full."""
    try:
        return step()
    except StoreFullError:
        if not give_up_reserve(store):
            raise
        return step()


def is_on_disk(store: Store) -> bool:
    """Returns whether a store is a folder on this machine."""
    while isinstance(store, WrappingStore):
        store = store.inner
    return isinstance(store, LocalStore)


def _reserve_bytes(store: Store) -> int | None:
    """Returns the size of the reserve, None if there is none."""
    found = (f.size_bytes for f in store.list(documents.RESERVE) if f.path == documents.RESERVE)
    return next(found, None)
