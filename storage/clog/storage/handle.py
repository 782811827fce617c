"""A handle on a log: the newest version it knows, kept fresh by one GET, and the manifest when
somebody needs it.

Everything that changes the handle runs under its lock, so several threads may share it.
"""

import threading

from clog.storage.clock import Clock
from clog.storage.commit import Committer, Prepare
from clog.storage.commits import Commit
from clog.storage.follower import Follower
from clog.storage.ids import Ids
from clog.storage.manifest import Manifest
from clog.storage.snapshots import unpage
from clog.storage.store.base import Store
from clog.storage.timeline import check_open, expiring, manifest_at, manifest_of, replay


class Handle:
    """One log, followed.

    Attributes:
        store, clock, ids: what it works with.
        tip: the newest commit it knows.
    """

    def __init__(self, store: Store, *, clock: Clock, ids: Ids) -> None:
        self.store = store
        self.clock = clock
        self.ids = ids
        self._follower = Follower(store, clock=clock)
        self._committer = Committer(self._follower, clock=clock, ids=ids)
        self._manifest: Manifest | None = None
        self._lock = threading.RLock()

    @property
    def tip(self) -> Commit:
        return self._follower.tip

    def refresh(self) -> Commit:
        """Looks for newer versions; one GET when there is none. Returns the tip."""
        with self._lock:
            return self._follower.refresh()

    def recent(self) -> Commit:
        """The tip; looks for newer versions only where the last look is minutes old, so that what
        is decided from it is not ancient.
        """
        with self._lock:
            return self._follower.refresh() if self._follower.is_stale() else self._follower.tip

    def commit(self, prepare: Prepare, *, operation: str) -> Commit:
        """Commits a change from the tip the handle knows (`commit.Committer.commit`)."""
        with self._lock:
            return self._committer.commit(prepare, operation=operation)

    def manifest(self) -> Manifest:
        """The manifest at the tip, whole. From the one known before where the handle saw all edits
        since.

        Raises:
            VersionExpiredError: the tip is so old that it is not readable any more.
        """
        with self._lock:
            tip = self.tip
            if self._manifest is None or self._manifest.version != tip.version:
                self._manifest = self._manifest_at_tip(tip)
            return self._manifest

    def manifest_at(self, version: int) -> Manifest:
        """The manifest at an older version; one GET more than reading it.

        Raises:
            VersionExpiredError: it is not readable any more, or not yet there.
        """
        with self._lock:
            if version == self.tip.version:
                return self.manifest()
            manifest = manifest_at(self.store, version, self.tip)
            check_open(self.store, version)
            return manifest

    def _manifest_at_tip(self, tip: Commit) -> Manifest:
        known = self._manifest
        with expiring(self.store, tip.version):
            if known is not None:
                since = self._follower.recent.after(known.version)
                if since is not None:
                    return replay(self.store, known, since, tip)
            manifest = unpage(self.store, manifest_of(self.store, tip, self._follower.read))
            if self._follower.is_stale():
                check_open(self.store, tip.version)
            return manifest
