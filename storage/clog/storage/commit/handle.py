"""A handle on a log: the newest version it knows, kept fresh with one GET, and the manifest once
someone needs it.

Everything that changes the handle runs under its lock, so threads may share it. What it knows is
replaced in single steps (`Tip`), so it stays usable after an interrupt, and in a forked child.

Group commit: appends that wait on one handle at the same time become one commit (COMMIT.md §2,
decision 0010).

Q1. An append enters the queue and waits for the queue's lock. If it has an outcome by the time it
    gets the lock, it is finished.
Q2. The holder of the lock leads: it takes a group, the appends that have waited longest, up to a
    bound, and commits their edits as one. Each is prepared on the head that the ones before it
    leave, so offsets, rolls and duplicates are as if each had been committed alone.
Q3. Each append gets its own part of the result or its own error. A refused append fails alone, and
    only the newest version can refuse it. A statement about an append (it is a duplicate) is valid
    once the group is committed, because its tip then was. If the commit fails the append is
    prepared again; if there was nothing to commit, it fails too.
Q4. All appends of a commit with an unknown outcome report it. A group's outcomes are one value,
    replaced in a single step; from the preparation until the outcome is known they say "unknown".
    So wherever a leader is interrupted, the appends that were on their way to the store report
    that, none is committed twice, and the others are still in the queue, where the next holder of
    the lock leads.

There are no extra threads and no waiting for company: a lone append is a group of one.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import field, replace
from functools import partial
from typing import Any, NoReturn, TypeVar, cast

from clog.storage.commit.combining import Combiner, OperationOutcome, is_crowded
from clog.storage.commit.committer import (
    REFUSALS,
    Committer,
    LostRaceError,
    NothingToCommit,
    Prepare,
    committers_of,
)
from clog.storage.commit.proposals import APPEND, Proposed, Waits, joined, paths_of
from clog.storage.commit.tip import Tip, check_open, standing_log
from clog.storage.commit.versions import (
    expiring,
    file_missing,
    is_of_history,
    manifest_at,
    manifest_of,
    replay,
    version_asked,
)
from clog.storage.env import Clock, Ids, Shared, SystemClock, dataclass, register
from clog.storage.errors import (
    ClogError,
    CommitStateUnknownError,
    InvalidInputError,
    UnsupportedFormatError,
    VersionExpiredError,
)
from clog.storage.format.chunks import Append
from clog.storage.format.commits import HINT_STRIDE, Commit, Edit, advance, edit_of
from clog.storage.format.manifest import Manifest, unpage
from clog.storage.format.transactions import WriterEntry
from clog.storage.format.writers import WriterPages, find_writer
from clog.storage.store.contract import Store, StoreRefusedError
from clog.storage.store.failures import without_secret_ones
from clog.storage.store.opening import Reach

GROUP_APPENDS_MAX = 64
"""Appends in one commit, hence new writers in one head."""
GROUP_CHUNKS_MAX = 4096
"""Chunks in one commit, unless a single append has more: a commit stays one small PUT."""

_LOGGER = logging.getLogger("clog.storage")

_T = TypeVar("_T")
_Nothing = TypeVar("_Nothing", bound=NothingToCommit)
_Commit = Callable[["_Group"], Commit | NothingToCommit]


@dataclass(frozen=True, slots=True)
class Appended:
    """One append's part of the commit that contains it."""

    version: int
    edit: Edit


class Handle(Shared):
    """One log, followed.

    Attributes:
        standing: the log's identity and its root (S47).
        store: the log's own folder.
        clock, ids: the sources of times and random ids.
        reach: opens the roots of other logs that this one names.
        tip: the newest commit it knows.
    """

    @staticmethod
    def checked(given: object) -> "Handle":
        """Returns it; raises if it is something else, such as a URL."""
        if not isinstance(given, Handle):
            raise InvalidInputError(
                f"Log(…) takes no {type(given).__name__}; open a log with Log.open, or create one"
                " with Log.create"
            )
        return given

    def __init__(
        self, root: Store, *, clock: Clock, ids: Ids, reach: Callable[[str], Store] | None = None
    ) -> None:
        self.reach = reach or Reach()
        self.standing = standing_log(root)
        self.store = self.standing.store
        self.clock = clock
        self.ids = ids
        self._tip = Tip(self.standing, clock=clock)
        # Taken now, although the committer is made at the first commit.
        self._first_id, self._ahead_ms = ids.new_id(), clock.now_ms() - clock.monotonic_ms()
        self._made: tuple[Committer, Combiner] | None = None
        self._manifest: Manifest | None = None
        super().__init__()
        self._appends = AppendQueue(self._commit_appends)
        _warn_unless_proven(self.store)

    def __reduce__(self) -> NoReturn:
        """Raises: storage options may be secrets, and another process needs its own handle."""
        raise InvalidInputError(
            f"{self.store.url} is open in this process, and an open log cannot be pickled; pass"
            " its URL and storage options, and call Log.open in the process that uses it"
        )

    @property
    def tip(self) -> Commit:
        return self._tip.commit

    @property
    def writer_pages(self) -> WriterPages:
        """The pages of older writers that it read or wrote recently."""
        return self._committer.writer_pages

    @property
    def _committer(self) -> Committer:
        return self._committing[0]

    @property
    def _committing(self) -> tuple[Committer, Combiner]:
        if (made := self._made) is None:
            with self._lock:
                made = self._made = self._made or self._make_committer()
        return made

    def _make_committer(self) -> tuple[Committer, Combiner]:
        tip, clock, ids = self._tip, self.clock, self.ids
        committer = Committer(tip, self._first_id, self._ahead_ms, clock=clock, ids=ids)
        committer.others = combiner = Combiner(committer, tip, clock=clock, ids=ids)
        return committer, combiner

    @property
    def planned(self) -> tuple[int, str]:
        """The version last planned for a read, and its commit's id; initially the tip's."""
        read = self._manifest
        if read is None:
            tip = self.tip
            return tip.version, tip.record.commit_id
        return read.version, read.commit_id

    def planned_for(self, offsets: Mapping[int, int]) -> tuple[int, str]:
        """Returns `planned`, or the tip's if the offsets are beyond that version."""
        read = self._manifest
        if read is None or read.head.partitions.end_before(offsets):
            return self.tip.version, self.tip.record.commit_id
        return self.planned

    def refresh(self) -> Commit:
        """Looks for newer versions; one GET if there is none. Returns the tip."""
        with self._lock:
            return self._tip.refresh()

    def recent(self, *, settled: bool = False) -> Commit:
        """Returns the tip; looks for newer versions only if the last look is minutes old, so that
        no decision rests on an ancient one. ``settled``: the tip must be certain to have been
        committed, as no commit upon it will prove that.
        """
        # Without the lock if no request is needed: another thread may hold it during a commit.
        if self._tip.is_recent(settled=settled):
            return self.tip
        with self._lock:
            return self._tip.recently(settled=settled)

    def find_writer(self, kind: str, writer_id: str) -> WriterEntry | None:
        """Returns the writer's entry at a settled tip, or at a newer version if a page that the tip
        needs is gone (COMMIT.md §5).
        """
        return self.with_pages(
            self.recent(settled=True),
            lambda tip: find_writer(self.writer_pages, tip.head, kind, writer_id),
        )

    def end_pending(self, writers: Collection[tuple[str, str]]) -> Commit:
        """Ends the appends of these writers, given as kind and id, that others could still commit
        and a LIST shows; returns the tip. Ends nothing if this process may not commit.
        """
        with self._lock:
            self._tip.refresh()
            with suppress(StoreRefusedError, UnsupportedFormatError):
                self._committing[1].end(writers)
            return self.tip

    def committers(self) -> int:
        """Returns how many writers are known to have committed in the 10 s before the tip."""
        with self._lock:
            return committers_of(self.tip, self._tip.recent.known)

    def waits(self) -> Waits | None:
        """Returns how long appends wait for others, None if unknown, or if no writers have combined
        yet; otherwise one LIST, or two.
        """
        with self._lock, suppress(StoreRefusedError):
            if self.tip.head.combined is not None:
                return self._committing[1].waits()
        return None

    def with_pages(self, tip: Commit, read: Callable[[Commit], _T]) -> _T:
        """Returns what ``read`` finds in a tip and its pages of older writers; reads a newer
        version if a page is gone that only the older one needs (COMMIT.md §5).
        """
        try:
            return read(tip)
        except FileNotFoundError as e:
            newest = self.refresh()
            if newest is tip:
                raise self._missing(e) from e
            return read(newest)

    def has_committed(self, version: int, commit_id: str) -> bool:
        """Returns whether this commit made the version in this log's history; at most 2 GET."""
        with self._lock, self.standing.unless_gone():
            return is_of_history(self.store, self.tip, version, commit_id)

    def opened_anew(self) -> "Handle":
        """Returns a handle on the log that is at the same root now."""
        return Handle(self.standing.root, clock=self.clock, ids=self.ids, reach=self.reach)

    def commit(self, prepare: Prepare[_Nothing], *, operation: str) -> Commit | _Nothing:
        """Commits a change to the tip that the handle knows (`Committer.commit`)."""
        with self._lock:
            return self._committer.commit(prepare, operation=operation)

    def take_owed_snapshot(self) -> None:
        """Makes empty commits until one of them names a snapshot, if one is due that appends leave
        to others (COMMIT.md, K3): at most eight, as with other writers all of them may miss; then
        the cleaner's next round tries again.
        """
        with self._lock:
            for _ in range(2 * HINT_STRIDE):
                if not self._committer.owes_snapshot():
                    return
                self._committer.commit(lambda _tip, _ms: Edit(), operation="snapshot")

    def withdraw(self, written: Iterable[str]) -> None:
        """Deletes files that will not be committed, if the log is gone (`Committer.withdraw`)."""
        with self._lock:
            self._committer.withdraw(written)

    def append(
        self,
        prepare: Prepare[_Nothing],
        *,
        chunks: int,
        proposed: Callable[[], Proposed] | None = None,
        alone: bool = False,
    ) -> Appended | _Nothing:
        """Commits an append to the tip that the handle knows, together with those that wait at the
        same time (`AppendQueue.append`), unless it must be ``alone``. If many processes write and
        it is ``proposed``, any of them may commit it.
        """
        try:
            if not alone:
                return self._appends.append(prepare, chunks=chunks, proposed=proposed)
            done = self.commit(prepare, operation=APPEND)
            if not isinstance(done, Commit):
                return done
            # The whole edit: an append with given offsets never includes those of others.
            return Appended(done.version, edit_of(self.store, done.record))
        except FileNotFoundError as e:  # The committer has made sure that the version is recent.
            raise self._missing(e) from e

    def _commit_appends(self, group: "_Group") -> Commit | NothingToCommit:
        """Commits appends: directly if no one else is about to, otherwise as `combining` does."""
        with self._lock:
            committer, combiner = self._committing
            tip, lost = self.tip, False
            if tip.head.combined is None or not is_crowded(tip, self.clock.now_ms()):
                try:
                    return committer.commit(group.prepare, operation=APPEND, losses_max=1)
                except LostRaceError:
                    lost = True
            return combiner.append(group, lost=lost)

    def manifest(self) -> Manifest:
        """Returns the whole manifest at the tip, from the last one if all edits since were seen."""
        # As in `recent`: what is known of a settled tip needs neither a request nor the lock.
        known, view = self._manifest, self._tip.settled
        if known is not None and view is not None and known.version == view.version:
            return known
        with self._lock, self.standing.unless_gone():
            self._tip.settle()
            tip = self.tip
            if self._manifest is None or self._manifest.version != tip.version:
                try:
                    self._manifest = self._manifest_at_tip(tip)
                except VersionExpiredError:
                    self.standing.check()
                    raise
            return self._manifest

    def manifest_at(self, version: int) -> Manifest:
        """Returns the manifest at an older version; one GET beyond reading it."""
        with self._lock, self.standing.unless_gone():
            if version == self.tip.version:
                return self.manifest()
            manifest = manifest_at(self.store, version, self.tip)
            check_open(self.store, version)
            return manifest

    def manifest_asked(self, tip: Commit, at: Any, at_time_ms: int | None, name: str) -> Manifest:
        """Returns the manifest of a version that a caller gives by number or by cut, as ``name``,
        or by time; that of the tip if it gives none.
        """
        in_log = getattr(at, "_manifest_in", None)
        of_cut: Manifest | None = None if in_log is None else in_log(self)
        number = at if of_cut is None else of_cut.version
        version = version_asked(self.store, tip, number, at_time_ms, name)
        return self.manifest_at(version) if of_cut is None else of_cut

    def _missing(self, gone: FileNotFoundError) -> ClogError:
        return file_missing(self.store, self.tip.version, gone, remedy="try again")

    def _manifest_at_tip(self, tip: Commit) -> Manifest:
        known = self._manifest
        with expiring(self.store, tip.version):
            if known is not None:
                since = self._tip.recent.after(known.version)
                if since is not None:
                    return replay(self.store, known, since, tip)
            manifest = unpage(self.store, manifest_of(self.store, tip, self._tip.read))
            if self._tip.is_stale():
                check_open(self.store, tip.version)
            return manifest


def reopening(handle: Handle, reopen: Callable[..., Any]) -> Callable[[], Any]:
    """Returns how another process opens the log: by its URL and the storage options that are not
    secret. Secrets come from where the filesystem finds them (environment, role, profile).

    Raises:
        InvalidInputError: it was opened with a custom store or clock, or with secrets in its URL.
    """
    reach, url = handle.reach, handle.standing.root.url
    has_own = type(handle.clock) is not SystemClock
    if not isinstance(reach, Reach) or reach.protocol is None or has_own or "***" in url:
        raise InvalidInputError(
            f"the log at {url} cannot be pickled: it was opened with a custom store or clock, or"
            " with secrets in its URL; open it where it is used"
        )
    options, single_writer = without_secret_ones(reach.options), reach.single_writer
    return partial(reopen, url, options, single_writer=single_writer)


def _warn_unless_proven(store: Store) -> None:
    """Logs a warning if two writers might overwrite each other's commits (COMMIT.md §1, A2)."""
    if not store.create_is_proven:
        _LOGGER.warning(
            "%s: a short test of this server's conditional writes passed, which is no proof; if"
            " it checks and writes in two steps, concurrent writers can break the log; test it"
            ' longer with "clog verify URL --store"',
            store.url,
        )


_UNKNOWN = CommitStateUnknownError(
    "this append was part of a commit whose thread was interrupted, and its outcome is unknown;"
    " read the log before you repeat it"
)
_Outcome = Appended | NothingToCommit | Exception


@dataclass(slots=True, eq=False)
class _Waiting:
    """One append until it has an outcome; ``group``: the last one it was in."""

    prepare: Prepare[NothingToCommit]
    chunks: int
    proposed: Callable[[], Proposed] | None = None
    group: "_Group | None" = None

    @property
    def outcome(self) -> _Outcome | None:
        return None if self.group is None else self.group.outcomes.get(self)


class AppendQueue(Shared):
    """The appends of one handle. Safe for threads."""

    def __init__(self, commit: _Commit) -> None:
        self._commit = commit
        super().__init__()
        self._waiting: dict[_Waiting, None] = {}
        self._is_led = False
        register(self)

    def after_fork(self) -> None:
        """Forgets, in a forked child, the appends of threads that do not exist there."""
        self._waiting, self._is_led = {}, False

    def append(
        self,
        prepare: Prepare[_Nothing],
        *,
        chunks: int,
        proposed: Callable[[], Proposed] | None = None,
    ) -> Appended | _Nothing:
        """Commits an append of that many chunks, perhaps together with others; returns its own
        part, or what ``prepare`` returned instead of an edit.
        """
        mine = _Waiting(prepare, chunks, proposed)
        try:
            self._waiting[mine] = None
            with self._lock:
                self._lead(mine)
        finally:
            self._waiting.pop(mine, None)  # One step in C, which no interrupt can precede.
        outcome = mine.outcome
        if isinstance(outcome, Exception):
            raise copy(outcome) if outcome is _UNKNOWN else outcome
        return cast("Appended | _Nothing", outcome)

    def _lead(self, mine: _Waiting) -> None:
        """Commits groups until an append has its outcome; within another append, only itself."""
        is_inner, self._is_led = self._is_led, True
        try:
            while mine.outcome is None:
                group = _Group([mine] if is_inner else self._first())
                for one in group.members:
                    one.group = group
                group.commit(self._commit)
        finally:
            self._is_led = is_inner

    def _first(self) -> list[_Waiting]:
        """Returns the next group; it stays queued, as its leader may be interrupted."""
        group: list[_Waiting] = []
        chunks = 0
        for one in list(self._waiting):  # Copied in one step, as other threads queue.
            if one.outcome is not None:
                continue
            chunks += one.chunks
            if group and (chunks > GROUP_CHUNKS_MAX or len(group) == GROUP_APPENDS_MAX):
                break
            group.append(one)
        return group


@dataclass(slots=True)
class _Group:
    """Appends on their way to one commit.

    Attributes:
        accepted: members in the commit as last prepared, with their edits.
        declined: members that are not in it, with the reason.
        posted: members that others may commit, with their edits at the time of the proposal.
        outcomes: of members that need not be prepared again; replaced as a whole.
        refusal: the last refusal of a member, perhaps by an outdated tip.
        final: refusals are final, since the tip was looked up after the last one.
    """

    members: Sequence[_Waiting]
    accepted: list[tuple[_Waiting, Edit]] = field(default_factory=list)
    declined: list[tuple[_Waiting, NothingToCommit | Exception]] = field(default_factory=list)
    posted: Sequence[tuple[_Waiting, Edit]] = ()
    outcomes: Mapping[_Waiting, _Outcome] = field(default_factory=dict)
    refusal: Exception | None = None
    final: bool = False

    def commit(self, commit: _Commit) -> None:
        """Commits the group and gives members their outcomes, except those to be prepared again."""
        try:
            try:
                done = commit(self)
            except REFUSALS as e:
                if len(self.members) == 1 or e is not self.refusal:
                    raise  # The outcome of a commit, not a refusal: a retry would commit twice.
                self.final = True
                done = commit(self)
        except Exception as e:  # noqa: BLE001 - each member raises it in its own thread
            self._fail(e)
        else:
            outcomes: dict[_Waiting, _Outcome] = dict(self.declined)
            if isinstance(done, Commit):
                outcomes.update((one, Appended(done.version, edit)) for one, edit in self.accepted)
            elif isinstance(done, OperationOutcome):
                outcomes.update(
                    (one, Appended(done.version, part_of(done.edit, paths_of(edit))))
                    for one, edit in self.posted
                )
            self.outcomes = outcomes

    def proposed(self) -> tuple[Proposed, ...] | None:
        """Returns the proposals of the last accepted members; None if one cannot be proposed."""
        found = [one.proposed() for one, _ in self.accepted if one.proposed is not None]
        return tuple(found) if len(found) == len(self.accepted) else None

    def post(self) -> None:
        """Reduces the group to the last accepted members: from now on others may commit them, so
        they stay together and share an outcome. The other appends wait for the next group.
        """
        self.posted = tuple(self.accepted)
        self.members, self.declined = [one for one, _ in self.posted], []

    def withdraw(self) -> None:
        """Notes that others have not committed them and no longer can."""
        self.posted, self.outcomes = (), {}

    def prepare(self, tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        """Returns the edits of all members that have one, joined."""
        self.accepted, self.declined = [], []
        self.outcomes = unknown = dict.fromkeys((one for one, _ in self.posted), _UNKNOWN)
        accepted: list[tuple[_Waiting, Edit]] = []
        declined: list[tuple[_Waiting, NothingToCommit | Exception]] = []
        objects: set[str] = set()
        for one in self.members:
            try:
                edit = one.prepare(tip, time_ms)
            except Exception as e:
                if isinstance(e, REFUSALS) and not self.final:
                    self.refusal = e
                    raise
                declined.append((one, e))
                continue
            if isinstance(edit, NothingToCommit):
                declined.append((one, edit))
                continue
            mine = paths_of(edit)
            if objects & mine:
                continue  # An edit names an object once, so this append waits for the next one.
            objects |= mine
            accepted.append((one, edit))
            head = advance(tip.head, edit, version=tip.version + 1, time_ms=time_ms)
            tip = replace(tip, head=head)
        edit = joined([edit for _, edit in accepted]) if accepted else NothingToCommit()
        self.accepted, self.declined = accepted, declined
        self.outcomes = {**unknown, **dict.fromkeys((one for one, _ in accepted), _UNKNOWN)}  # Q4
        return edit

    def _fail(self, error: Exception) -> None:
        """Gives an error of the commit to its members; those declined are prepared again. If all
        were declined, they fail too, as no commit has confirmed the reasons.
        """
        declined = {one for one, _ in self.declined} if self.accepted else set()
        failed = [one for one in self.members if one not in declined]
        self.outcomes = {one: _like(error) if n else error for n, one in enumerate(failed)}


def part_of(whole: Edit, paths: Collection[str]) -> Edit:
    """Returns the part of an edit that adds these objects, those of one of its appends."""
    if whole.add is None:
        return Edit()
    chunks = tuple(pair for pair in whole.add.chunks if pair[1].object.path in paths)
    return Edit(add=Append(chunks))


def _like(error: Exception) -> Exception:
    """Returns a copy of an error for another thread: a raised error collects a traceback."""
    other = copy(error)
    other.__cause__ = error
    return other
