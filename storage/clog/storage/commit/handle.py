"""A handle on a log: the newest version it knows, kept fresh by one GET, and the manifest when
somebody needs it.

Everything that changes the handle runs under its lock, so several threads may share it. What it
knows is replaced by single steps (`TipTracker`), so who interrupted it may go on with it, and so
may a forked child.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn, TypeVar

from clog.storage import forks
from clog.storage.clock import Clock
from clog.storage.commit.append_queue import Appended, AppendQueue
from clog.storage.commit.committer import Committer, NothingToCommit, Prepare
from clog.storage.commit.identity import standing_log
from clog.storage.commit.tip_tracker import TipTracker
from clog.storage.commit.versions import (
    check_open,
    expiring,
    file_missing,
    is_of_history,
    manifest_at,
    manifest_of,
    replay,
)
from clog.storage.errors import ClogError, InvalidInputError, VersionExpiredError
from clog.storage.format.commits import HINT_STRIDE, Commit
from clog.storage.format.edits import Edit, WriterEntry
from clog.storage.format.manifest import Manifest
from clog.storage.format.producers import find_writer
from clog.storage.format.snapshots import unpage
from clog.storage.ids import Ids
from clog.storage.store.base import Store
from clog.storage.store.reach import Reach

_LOGGER = logging.getLogger("clog.storage")

_T = TypeVar("_T")
_Nothing = TypeVar("_Nothing", bound=NothingToCommit)


class Handle:
    """One log, followed.

    Attributes:
        standing: which log this is, and the root it stands at (S47).
        store: the log's own folder.
        clock, ids: what it works with.
        reach: opens the roots of other logs that this one names.
        writer_pages: the pages of older writers that it read or wrote of late.
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
        self._tracker = TipTracker(self.standing, clock=clock)
        self._committer = Committer(self._tracker, clock=clock, ids=ids)
        self.writer_pages = self._committer.writer_pages
        self._manifest: Manifest | None = None
        self._lock = forks.lock()
        self._appends = AppendQueue(lambda prepare: self.commit(prepare, operation="append"))
        _warn_unless_proven(self.store)

    def __reduce__(self) -> NoReturn:
        """Raises: options may be secrets, and another process has a handle of its own."""
        raise InvalidInputError(
            f"{self.store.url} is open in this process, and what is open cannot be pickled; pass"
            " its URL and storage options, and call Log.open with them where it is used"
        )

    @property
    def tip(self) -> Commit:
        return self._tracker.tip

    @property
    def planned_version(self) -> int:
        """The version that was planned last, to be read; the tip's before the first."""
        return self.planned[0]

    @property
    def planned(self) -> tuple[int, str]:
        """The version of `planned_version`, and the id of its commit."""
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
            return self._tracker.refresh()

    def recent(self, *, settled: bool = False) -> Commit:
        """Returns the tip; looks for newer versions only where the last look is minutes old, so
        that what is decided from it is not ancient. ``settled``: it must have been committed for
        sure, since nothing is committed upon it that would show.

        Raises:
            LogReplacedError: the log was deleted and recreated (`TipTracker.confirm`).
        """
        tracker = self._tracker
        if tracker.is_stale():
            return self.refresh()
        # Without the lock where nothing is to be asked: another thread may hold it for a commit.
        if tracker.is_due() or (settled and not tracker.is_settled):
            with self._lock:
                tracker.confirm()
                if settled:
                    tracker.settle()
        return tracker.tip

    def find_writer(self, kind: str, writer_id: str) -> WriterEntry | None:
        """Returns the writer's entry at the tip, which was committed for sure; at a newer version
        where a page that the tip needs is gone (COMMIT.md §5).
        """
        return self.with_pages(
            self.recent(settled=True),
            lambda tip: find_writer(self.writer_pages, tip.head, kind, writer_id),
        )

    def with_pages(self, tip: Commit, read: Callable[[Commit], _T]) -> _T:
        """Returns what is read of a tip and its pages of older writers; of a newer version, where a
        page is gone that newer ones need no more (COMMIT.md §5).

        Raises:
            CorruptionError: the newest version needs it.
        """
        try:
            return read(tip)
        except FileNotFoundError as e:
            newest = self.refresh()
            if newest is tip:
                raise self._missing(e) from e
            return read(newest)

    def has_committed(self, version: int, commit_id: str) -> bool:
        """Tells whether the version was made by this commit: else the log is another one, or was
        restored from a copy. None to 2 GET.
        """
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
        """Deletes files that nobody will commit, where the log is gone (`withdrawal.withdraw`)."""
        with self._lock:
            self._committer.withdraw(written)

    def append(self, prepare: Prepare[_Nothing], *, chunks: int) -> Appended | _Nothing:
        """Commits an append from the tip the handle knows, together with those that wait at the
        same time (`append_queue.AppendQueue.append`).

        Raises:
            CorruptionError: a page of older writers is missing.
        """
        try:
            return self._appends.append(prepare, chunks=chunks)
        except FileNotFoundError as e:  # At a version that is new enough, as the committer saw to.
            raise self._missing(e) from e

    def manifest(self) -> Manifest:
        """Returns the manifest at the tip, whole. From the one known before where the handle saw
        all edits since.

        Raises:
            VersionExpiredError: the tip is so old that it is not readable any more.
            LogReplacedError, NotFoundError: its documents are gone, as the log was deleted.
        """
        with self._lock, self.standing.unless_gone():
            self._tracker.settle()
            tip = self.tip
            if self._manifest is None or self._manifest.version != tip.version:
                try:
                    self._manifest = self._manifest_at_tip(tip)
                except VersionExpiredError:
                    self.standing.check()
                    raise
            return self._manifest

    def manifest_at(self, version: int) -> Manifest:
        """Returns the manifest at an older version; one GET more than reading it.

        Raises:
            VersionExpiredError: it is not readable any more, or not yet there.
        """
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
                since = self._tracker.recent.after(known.version)
                if since is not None:
                    return replay(self.store, known, since, tip)
            manifest = unpage(self.store, manifest_of(self.store, tip, self._tracker.read))
            if self._tracker.is_stale():
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
