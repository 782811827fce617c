"""A handle on a log: the newest version it knows, kept fresh with one GET, and the manifest once
someone needs it.

Everything that changes the handle runs under its lock, so threads may share it. What it knows is
replaced in single steps (`Tip`), so it stays usable after an interrupt, and in a forked child.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

from clog.storage.commit.appends import Appended, AppendQueue, Group, Proposed
from clog.storage.commit.combining import Combiner, is_crowded
from clog.storage.commit.committer import (
    APPEND,
    Committer,
    LostRaceError,
    NothingToCommit,
    Prepare,
    committers_of,
)
from clog.storage.commit.proposals import Waits
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
from clog.storage.env import Clock, Ids, Shared, SystemClock, attribute
from clog.storage.errors import (
    ClogError,
    InvalidInputError,
    UnsupportedFormatError,
    VersionExpiredError,
)
from clog.storage.format.commits import HINT_STRIDE, Commit, Edit, edit_of
from clog.storage.format.manifest import Manifest, unpage
from clog.storage.format.transactions import WriterEntry
from clog.storage.format.writers import WriterPages, find_writer
from clog.storage.store.contract import Store, StoreRefusedError
from clog.storage.store.failures import without_secret_ones
from clog.storage.store.opening import Reach

_LOGGER = logging.getLogger("clog.storage")

_T = TypeVar("_T")
_Nothing = TypeVar("_Nothing", bound=NothingToCommit)


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
        self._made: tuple[Committer, Combiner, AppendQueue] | None = None
        self._manifest: Manifest | None = None
        super().__init__()
        _warn_unless_proven(self.store)

    def __reduce__(self) -> NoReturn:
        """Raises: storage options may be secrets, and another process needs its own handle."""
        raise InvalidInputError(
            f"{self.store.url} is open in this process, and an open log cannot be pickled; pass"
            " its URL and storage options, and call Log.open in the process that uses it"
        )

    tip: Commit = attribute("_tip.commit")

    @property
    def writer_pages(self) -> WriterPages:
        """The pages of older writers that it read or wrote recently."""
        return self._committer.writer_pages

    @property
    def _committer(self) -> Committer:
        return self._committing[0]

    @property
    def _appends(self) -> AppendQueue:
        return self._committing[2]

    @property
    def _committing(self) -> tuple[Committer, Combiner, AppendQueue]:
        if (made := self._made) is None:
            with self._lock:
                made = self._made = self._made or self._make_committer()
        return made

    def _make_committer(self) -> tuple[Committer, Combiner, AppendQueue]:
        tip, clock, ids = self._tip, self.clock, self.ids
        committer = Committer(tip, self._first_id, self._ahead_ms, clock=clock, ids=ids)
        committer.others = combiner = Combiner(committer, tip, clock=clock, ids=ids)
        return committer, combiner, AppendQueue(self._commit_appends)

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

    def append(self, prepare: Prepare[_Nothing], proposed: Proposed | None) -> Appended | _Nothing:
        """Commits an append to the tip that the handle knows, together with those that wait at the
        same time (`AppendQueue`). ``proposed``: the same append as other processes may commit it;
        None if only this one can, and in a commit of its own.
        """
        try:
            if proposed is not None:
                return self._appends.append(prepare, proposed)
            done = self.commit(prepare, operation=APPEND)
            return (
                Appended(done.version, edit_of(self.store, done.record))
                if isinstance(done, Commit)
                else done
            )
        except FileNotFoundError as e:  # The committer has made sure that the version is recent.
            raise self._missing(e) from e

    def _commit_appends(self, group: Group) -> Commit | NothingToCommit:
        """Commits appends: directly if no one else is about to, otherwise as `combining` does."""
        with self._lock:
            committer, combiner, _ = self._committing
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
