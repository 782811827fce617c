"""A handle on a log: the newest version it knows, kept fresh by one GET, and the manifest when somebody needs it.

Everything that changes the handle runs under its lock, so several threads may share it.
"""

import threading

from clog.storage.clock import Clock
from clog.storage.commit import Committer, Prepare
from clog.storage.commits import Commit
from clog.storage.ids import Ids
from clog.storage.manifest import Manifest
from clog.storage.snapshots import unpage
from clog.storage.store.base import Store
from clog.storage.timeline import (
    FOLLOW_STEPS_MAX,
    find_newest,
    is_closed,
    manifest_at,
    manifest_of,
    replay,
    try_read,
)

TRUST_MS = 600_000
"""After so long without a look, a handle asks whether the block it is in was closed before it trusts a probe (COMMIT.md §4)."""


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
        found = find_newest(store)
        self._read: dict[int, Commit] | None = found.read
        self._committer = Committer(store, found.tip, clock=clock, ids=ids)
        self._manifest: Manifest | None = None
        self._looked_ms = clock.monotonic_ms()
        self._lock = threading.RLock()

    @property
    def tip(self) -> Commit:
        return self._committer.tip

    def refresh(self) -> Commit:
        """Looks for newer versions; one GET when there is none. Returns the tip."""
        with self._lock:
            for _ in range(FOLLOW_STEPS_MAX):
                newer = try_read(self.store, self.tip.version + 1)
                if not self._is_trusted():
                    break
                if newer is None:
                    return self.tip
                self._committer.see(newer)
            self._open_anew()
            return self.tip

    def commit(self, prepare: Prepare, *, operation: str) -> Commit:
        """Commits a change from the tip the handle knows (`commit.Committer.commit`)."""
        with self._lock:
            return self._committer.commit(prepare, operation=operation)

    def manifest(self) -> Manifest:
        """The manifest at the tip, whole. From the one known before where the handle saw all edits since."""
        with self._lock:
            tip = self.tip
            if self._manifest is None or self._manifest.version != tip.version:
                self._manifest = self._manifest_at_tip(tip)
            return self._manifest

    def manifest_at(self, version: int) -> Manifest:
        """The manifest at an older version.

        Raises:
            VersionExpiredError: it is not readable any more, or not yet there.
        """
        with self._lock:
            if version == self.tip.version:
                return self.manifest()
            return manifest_at(self.store, version, self.tip)

    def _manifest_at_tip(self, tip: Commit) -> Manifest:
        known = self._manifest
        if known is not None:
            since = self._committer.edits_after(known.version)
            if since is not None:
                return replay(self.store, known, since, tip)
        read, self._read = self._read, None
        return unpage(self.store, manifest_of(self.store, tip, read))

    def _is_trusted(self) -> bool:
        """Whether what a probe says can be believed: commits are deleted by blocks, long after they were newest."""
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._looked_ms > TRUST_MS:
            if is_closed(self.store, self.tip.version + 1) is not None:
                return False
        self._looked_ms = now_ms
        return True

    def _open_anew(self) -> None:
        found = find_newest(self.store)
        self._committer.see(found.tip)
        self._read = found.read
        self._looked_ms = self.clock.monotonic_ms()
