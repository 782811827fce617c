"""A handle on a log: the newest version it knows, kept fresh by one GET, and the manifest when
somebody needs it.

Everything that changes the handle runs under its lock, so several threads may share it. What it
knows is replaced by single steps (`Tip`), so who interrupted it may go on with it, and so
may a forked child.

Group commit: appends that wait on one handle at the same time become one commit (COMMIT.md §2,
decision 0010).

Q1. An append queues what prepares it, and waits for the lock of the queue. Where it is done by
    then, that was all.
Q2. Who holds the lock leads: takes the group, the appends that have waited longest, up to a bound,
    and commits their edits as one. Each is prepared against the head as those before it leave it,
    so offsets, rolls and duplicates are as if they had been committed one after the other.
Q3. Each append gets its own part, or its own error: one that is refused fails alone, and only the
    newest version refuses. What is said of an append (it is a duplicate) holds once the group is
    committed: then its tip was, and those before it in the group are. Where that fails it is asked
    again; where nothing was to be committed, it fails as well.
Q4. An outcome that is unknown is told to all that were in the commit. What a group says of its
    members is one value, which is replaced by a single step: from when they are prepared until
    their outcome is known it says that this is unknown. So wherever a leader is interrupted, those
    that were on their way to the store are told so, none of them is committed twice, and the others
    are still in the queue: the next one that holds the lock leads.

No threads of its own, no waiting for company: a lone append is a group of one, and costs what it
did. Nothing says that somebody leads but the lock, which an interrupt releases (`env`).
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import field, replace
from typing import NoReturn, TypeVar, cast

from clog.storage.commit.combining import Combiner, OperationOutcome, is_crowded
from clog.storage.commit.committer import (
    LOSSES_MAX,
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
)
from clog.storage.env import Clock, Ids, Shared, dataclass, register
from clog.storage.errors import (
    ClogError,
    CommitStateUnknownError,
    InvalidInputError,
    UnsupportedFormatError,
    VersionExpiredError,
)
from clog.storage.format.chunks import Append
from clog.storage.format.commits import HINT_STRIDE, Commit, Edit, advance, edit_of
from clog.storage.format.log_info import PROPOSALS
from clog.storage.format.manifest import Manifest, unpage
from clog.storage.format.transactions import WriterEntry
from clog.storage.format.writers import WriterPages, find_writer
from clog.storage.store.contract import Store, StoreRefusedError
from clog.storage.store.opening import Reach

GROUP_APPENDS_MAX = 64
"""Appends in one commit: as many writers may enter the head at once."""
GROUP_CHUNKS_MAX = 4096
"""Chunks in one commit, but for an append that has more: a commit stays one small PUT."""

_LOGGER = logging.getLogger("clog.storage")

_T = TypeVar("_T")
_Nothing = TypeVar("_Nothing", bound=NothingToCommit)
_Commit = Callable[["_Group"], Commit | NothingToCommit]


@dataclass(frozen=True, slots=True)
class Appended:
    """One append's own part of the commit that holds it."""

    version: int
    edit: Edit


class Handle(Shared):
    """One log, followed.

    Attributes:
        standing: which log this is, and the root it stands at (S47).
        store: the log's own folder.
        clock, ids: what it works with.
        reach: opens the roots of other logs that this one names.
        tip: the newest commit it knows.
    """

    def __init__(
        self, root: Store, *, clock: Clock, ids: Ids, reach: Callable[[str], Store] | None = None
    ) -> None:
        self.reach = reach or Reach()
        self.standing = standing_log(root)
        self.store = self.standing.store
        self.clock = clock
        self.ids = ids
        self._tip = Tip(self.standing, clock=clock)
        # Noted now, for a committer that is made with the first commit.
        self._first_id, self._ahead_ms = ids.new_id(), clock.now_ms() - clock.monotonic_ms()
        self._made: tuple[Committer, Combiner] | None = None
        self._manifest: Manifest | None = None
        super().__init__()
        self._appends = AppendQueue(self._commit_appends)
        _warn_unless_proven(self.store)

    def __reduce__(self) -> NoReturn:
        """Raises: options may be secrets, and another process has a handle of its own."""
        raise InvalidInputError(
            f"{self.store.url} is open in this process, and what is open cannot be pickled; pass"
            " its URL and storage options, and call Log.open with them where it is used"
        )

    @property
    def tip(self) -> Commit:
        return self._tip.commit

    @property
    def writer_pages(self) -> WriterPages:
        """The pages of older writers that it read or wrote of late."""
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
        """The version that was planned last, to be read, and its commit's id; first the tip's."""
        read = self._manifest
        if read is None:
            tip = self.tip
            return tip.version, tip.record.commit_id
        return read.version, read.commit_id

    def planned_for(self, offsets: Mapping[int, int]) -> tuple[int, str]:
        """Returns as `planned`; the tip's where offsets are beyond what was planned."""
        read = self._manifest
        if read is None or read.head.partitions.end_before(offsets):
            return self.tip.version, self.tip.record.commit_id
        return self.planned

    def refresh(self) -> Commit:
        """Looks for newer versions; one GET when there is none. Returns the tip."""
        with self._lock:
            return self._tip.refresh()

    def recent(self, *, settled: bool = False) -> Commit:
        """Returns the tip; looks for newer versions only where the last look is minutes old, so
        that what is decided from it is not ancient. ``settled``: it must have been committed for
        sure, since nothing is committed upon it that would show.
        """
        # Without the lock where nothing is to be asked: another thread may hold it for a commit.
        if self._tip.is_recent(settled=settled):
            return self.tip
        with self._lock:
            return self._tip.recently(settled=settled)

    def find_writer(self, kind: str, writer_id: str) -> WriterEntry | None:
        """Returns the writer's entry at the tip, which was committed for sure; at a newer version
        where a page that the tip needs is gone (COMMIT.md §5).
        """
        return self.with_pages(
            self.recent(settled=True),
            lambda tip: find_writer(self.writer_pages, tip.head, kind, writer_id),
        )

    def end_pending(self, writers: Collection[tuple[str, str]]) -> Commit:
        """Returns the tip, upon which nothing of these writers, given as kind and id, is pending
        that others may commit, as far as a LIST shows it. Who may not commit ends nothing.
        """
        with self._lock:
            if PROPOSALS in self._tip.refresh().head.log.features:
                with suppress(StoreRefusedError, UnsupportedFormatError):
                    self._committing[1].end(writers)
            return self.tip

    def committers(self) -> int:
        """Returns how many committed in the 10 s before the newest commit, as far as is known."""
        with self._lock:
            return committers_of(self.tip, self._tip.recent.known)

    def waits(self) -> Waits | None:
        """Returns how long appends wait for others, None: nobody can say; one LIST, or two."""
        with self._lock, suppress(StoreRefusedError):
            if PROPOSALS in self.tip.head.log.features:
                return self._committing[1].waits()
        return None

    def with_pages(self, tip: Commit, read: Callable[[Commit], _T]) -> _T:
        """Returns what is read of a tip and its pages of older writers; of a newer version, where a
        page is gone that newer ones need no more (COMMIT.md §5).
        """
        try:
            return read(tip)
        except FileNotFoundError as e:
            newest = self.refresh()
            if newest is tip:
                raise self._missing(e) from e
            return read(newest)

    def has_committed(self, version: int, commit_id: str) -> bool:
        """Tells whether this commit made the version, in this log's history; 2 GET at most."""
        with self._lock, self.standing.unless_gone():
            return is_of_history(self.store, self.tip, version, commit_id)

    def opened_anew(self) -> "Handle":
        """Returns a handle on the log that stands there now."""
        return Handle(self.standing.root, clock=self.clock, ids=self.ids, reach=self.reach)

    def commit(self, prepare: Prepare[_Nothing], *, operation: str) -> Commit | _Nothing:
        """Commits a change from the tip the handle knows (`Committer.commit`)."""
        with self._lock:
            return self._committer.commit(prepare, operation=operation)

    def take_owed_snapshot(self) -> None:
        """Makes commits that change nothing until one of them names a snapshot, where one is due
        that appends leave to others (COMMIT.md, K3): at most eight, where others commit meanwhile
        and all may miss; then the next round of the cleaner tries again.
        """
        with self._lock:
            for _ in range(2 * HINT_STRIDE):
                if not self._committer.owes_snapshot():
                    return
                self._committer.commit(lambda _tip, _ms: Edit(), operation="snapshot")

    def withdraw(self, written: Iterable[str]) -> None:
        """Deletes files that nobody will commit, where the log is gone (`Committer.withdraw`)."""
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
        """Commits an append from the tip the handle knows, together with those that wait at the
        same time (`AppendQueue.append`), unless it must be ``alone``; by whichever process does so
        first where many write, and it is ``proposed``.
        """
        try:
            if not alone:
                return self._appends.append(prepare, chunks=chunks, proposed=proposed)
            done = self.commit(prepare, operation=APPEND)
            if not isinstance(done, Commit):
                return done
            # Whole: nobody is taken along where offsets are given.
            return Appended(done.version, edit_of(self.store, done.record))
        except FileNotFoundError as e:  # At a version that is new enough, as the committer saw to.
            raise self._missing(e) from e

    def _commit_appends(self, group: "_Group") -> Commit | NothingToCommit:
        """Commits appends: at once, where nobody else is about to; else as `combining` does it."""
        with self._lock:
            committer, combiner = self._committing
            tip, lost = self.tip, False
            may_propose = PROPOSALS in tip.head.log.features
            if tip.head.combined is None or not is_crowded(tip, self.clock.now_ms()):
                most = 1 if may_propose else LOSSES_MAX
                try:
                    return committer.commit(group.prepare, operation=APPEND, losses_max=most)
                except LostRaceError:
                    lost = True
                    if not may_propose:
                        raise
            return combiner.append(group, lost=lost)

    def manifest(self) -> Manifest:
        """Returns the manifest at the tip, whole, from the one before where all edits were seen."""
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
        """Returns the manifest at an older version; one GET more than reading it."""
        with self._lock, self.standing.unless_gone():
            if version == self.tip.version:
                return self.manifest()
            manifest = manifest_at(self.store, version, self.tip)
            check_open(self.store, version)
            return manifest

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


def _warn_unless_proven(store: Store) -> None:
    """Logs a line where two writers might overwrite each other's commits (COMMIT.md §1, A2)."""
    if not store.create_is_proven:
        _LOGGER.warning(
            "%s: this server's conditional writes were tested, not proven; if it checks and writes"
            " in two steps, concurrent writers can break the log; test it longer with"
            ' "clog verify-store"',
            store.url,
        )


_UNKNOWN = CommitStateUnknownError(
    "this append was part of a commit whose thread was interrupted, and its outcome is unknown;"
    " read the log before you repeat it"
)
_Outcome = Appended | NothingToCommit | Exception


@dataclass(slots=True, eq=False)
class _Waiting:
    """One append, until it has an outcome; ``group``: the last one it was in."""

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
        """Forgets, in a forked child, the appends of threads that are not there."""
        self._waiting, self._is_led = {}, False

    def append(
        self,
        prepare: Prepare[_Nothing],
        *,
        chunks: int,
        proposed: Callable[[], Proposed] | None = None,
    ) -> Appended | _Nothing:
        """Commits an append of so many chunks, perhaps together with others; returns its own part,
        or what ``prepare`` returned in its place.
        """
        mine = _Waiting(prepare, chunks, proposed)
        try:
            self._waiting[mine] = None
            with self._lock:
                self._lead(mine)
        finally:
            self._waiting.pop(mine, None)  # One step, in C: no interrupt comes before it.
        outcome = mine.outcome
        if isinstance(outcome, Exception):
            raise copy(outcome) if outcome is _UNKNOWN else outcome
        return cast("Appended | _Nothing", outcome)

    def _lead(self, mine: _Waiting) -> None:
        """Commits groups until an append has its outcome; inside another append only its own."""
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
        """Returns the next group, which stays in the queue, as its leader may be interrupted."""
        group: list[_Waiting] = []
        chunks = 0
        for one in list(self._waiting):  # In one step, as others queue meanwhile.
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
        accepted: those that are in the commit as it was prepared last, with their edits.
        declined: what was said of others.
        posted: those that others may commit, with their edits of when they were proposed.
        outcomes: of those that are not to be asked again; replaced as a whole.
        refusal: what a member was refused with last; of an older tip, perhaps.
        final: a refusal holds: the tip was looked for since.
    """

    members: Sequence[_Waiting]
    accepted: list[tuple[_Waiting, Edit]] = field(default_factory=list)
    declined: list[tuple[_Waiting, NothingToCommit | Exception]] = field(default_factory=list)
    posted: Sequence[tuple[_Waiting, Edit]] = ()
    outcomes: Mapping[_Waiting, _Outcome] = field(default_factory=dict)
    refusal: Exception | None = None
    final: bool = False

    def commit(self, commit: _Commit) -> None:
        """Commits the group, and gives each member its outcome; none to those to be asked again."""
        try:
            try:
                done = commit(self)
            except REFUSALS as e:
                if len(self.members) == 1 or e is not self.refusal:
                    raise  # What became of a commit is no refusal: it would be made twice.
                self.final = True
                done = commit(self)
        except Exception as e:  # noqa: BLE001 - its members raise it, each in its own thread
            self._fail(e)
        else:
            told: dict[_Waiting, _Outcome] = dict(self.declined)
            if isinstance(done, Commit):
                told.update((one, Appended(done.version, edit)) for one, edit in self.accepted)
            elif isinstance(done, OperationOutcome):
                told.update(
                    (one, Appended(done.version, part_of(done.edit, paths_of(edit))))
                    for one, edit in self.posted
                )
            self.outcomes = told

    def proposed(self) -> tuple[Proposed, ...] | None:
        """Returns what the members propose that were accepted last; None where one cannot be."""
        found = [one.proposed() for one, _ in self.accepted if one.proposed is not None]
        return tuple(found) if len(found) == len(self.accepted) else None

    def post(self) -> None:
        """Makes those that were accepted last the group: others may commit them from now on, so
        that they stay together, and are told the same; who else was in it waits for the next one.
        """
        self.posted = tuple(self.accepted)
        self.members, self.declined = [one for one, _ in self.posted], []

    def withdraw(self) -> None:
        """Notes that nobody else can commit them any more, and nobody has."""
        self.posted, self.outcomes = (), {}

    def prepare(self, tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        """Returns the edits of all members that have one, as one."""
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
                continue  # An edit names an object once: this one has to wait.
            objects |= mine
            accepted.append((one, edit))
            head = advance(tip.head, edit, version=tip.version + 1, time_ms=time_ms)
            tip = replace(tip, head=head)
        edit = joined([edit for _, edit in accepted]) if accepted else NothingToCommit()
        self.accepted, self.declined = accepted, declined
        self.outcomes = {**unknown, **dict.fromkeys((one for one, _ in accepted), _UNKNOWN)}  # Q4
        return edit

    def _fail(self, error: Exception) -> None:
        """Tells an error of the commit to those in it; others, of whom something else was said, are
        asked again. To all where none was in it: nobody knows whether what was said is so.
        """
        declined = {one for one, _ in self.declined} if self.accepted else set()
        told = [one for one in self.members if one not in declined]
        self.outcomes = {one: _like(error) if n else error for n, one in enumerate(told)}


def part_of(whole: Edit, paths: Collection[str]) -> Edit:
    """Returns what an edit says of the objects of one append in it: others may be in it, too."""
    if whole.add is None:
        return Edit()
    chunks = tuple(pair for pair in whole.add.chunks if pair[1].object.path in paths)
    return Edit(add=Append(chunks))


def _like(error: Exception) -> Exception:
    """Returns an error for another thread: what is raised collects the trace of its raiser."""
    other = copy(error)
    other.__cause__ = error
    return other
