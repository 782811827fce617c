"""Following a log: the newest version one knows, and how to believe what a probe says (COMMIT.md
§4, §6).
"""

from clog.storage.clock import Clock
from clog.storage.commits import Commit
from clog.storage.recent import RecentEdits
from clog.storage.store.base import Store
from clog.storage.timeline import FOLLOW_STEPS_MAX, Found, find_newest, is_closed, try_read

TRUST_MS = 600_000
"""After so long without a look, ask whether the block was closed before a probe is trusted. Commits
are deleted only a day after they were newest.
"""


class Follower:
    """The newest commit of one log that is known here. Not safe for threads.

    Attributes:
        tip: that commit.
        recent: the edits up to it.
        read: commits read on the way to it at the last opening, by version.
    """

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self.store = store
        self._clock = clock
        found = find_newest(store)
        self.read = found.read
        self.tip = found.read[min(found.read)]
        self.recent = RecentEdits(self.tip)
        self._take(found)

    def see(self, tip: Commit) -> None:
        """Takes a newer commit as the tip."""
        self.recent.see(tip)
        self.tip = tip

    def looked(self) -> None:
        """Notes that the tip was found genuine just now."""
        self._looked_ms = self._times()

    def refresh(self) -> Commit:
        """Looks for newer versions; one GET when there is none. Returns the tip."""
        for _ in range(FOLLOW_STEPS_MAX):
            newer = try_read(self.store, self.tip.version + 1)
            if self.is_stale() and is_closed(self.store, self.tip.version + 1) is not None:
                break
            self.looked()
            if newer is None:
                return self.tip
            self.see(newer)
        self.open_anew()
        return self.tip

    def open_anew(self) -> None:
        """Searches the newest version from the hint on."""
        found = find_newest(self.store)
        self.read = found.read
        self._take(found)

    def is_stale(self) -> bool:
        """Whether the last look is so old that the block may have been closed since."""
        then, now = self._looked_ms, self._times()
        return max(now[0] - then[0], now[1] - then[1]) > TRUST_MS

    def _take(self, found: Found) -> None:
        # Those read on the way carry edits, too: with them, what is known already may connect with
        # the tip.
        for version in sorted(found.read):
            if version > self.tip.version:
                self.see(found.read[version])
        self.see(found.tip)
        self.looked()

    def _times(self) -> tuple[int, int]:
        # The monotonic clock stands still while a machine sleeps, the wall clock may be set back.
        return self._clock.monotonic_ms(), self._clock.now_ms()
