"""Taking turns without a lock: when to try to commit beside others (COMMIT.md §2, decision 0011).

All who commit to a log see the same thing: who committed of late. The ids of one handle's commits
begin alike, with its *prefix*, so the prefixes of the newest commits count the *rivals*. Everybody
waits a random part of the same *window*, the time that one try takes for each rival:

- a loser waits so long before it follows and tries again, and less the more often it has lost: who
  waits longer for each loss loses more and more to those who have just won;
- a winner that lost of late waits so long, too, counted from when it won, before the next try:
  the others get in.

Who has not lost for a while does not wait: nobody else commits then. Nothing here decides anything.
"""

from collections.abc import Sequence

from clog.storage.clock import Clock
from clog.storage.format.commits import EditRecord
from clog.storage.ids import Ids

PREFIX_DIGITS = 8
"""Of a commit's id: enough to tell apart who commits at once."""
RIVAL_MS = 10_000
"""A rival committed so long before the newest commit, or later."""
TRY_MS_MIN = 4
"""A try is taken to last so long at least: a loser never comes back at once."""
WINDOW_MS_MAX = 2_000


class Turns:
    """When one handle tries to commit. Not safe for threads."""

    def __init__(self, *, clock: Clock, ids: Ids) -> None:
        self._clock = clock
        self._ids = ids
        self._prefix = ids.new_id()[:PREFIX_DIGITS]
        self._seen: dict[str, int] = {}
        self._version = -1
        self._try_ms = 0.0
        self._began_ms = 0
        self._won_ms: int | None = None
        self._lost_ms: int | None = None

    def new_id(self) -> str:
        """Returns the id of an attempt to commit, which begins with the prefix."""
        return self._prefix + self._ids.new_id()[PREFIX_DIGITS:]

    def saw(self, records: Sequence[EditRecord]) -> None:
        """Notes who made the newest commits, oldest first."""
        for record in reversed(records):
            if record.version <= self._version:
                break
            prefix = record.commit_id[:PREFIX_DIGITS]
            self._seen[prefix] = max(record.time_ms, self._seen.get(prefix, 0))
        newest = records[-1]
        self._version = max(self._version, newest.version)
        oldest_ms = newest.time_ms - RIVAL_MS
        self._seen = {
            p: at for p, at in self._seen.items() if at >= oldest_ms and p != self._prefix
        }

    def begin_try(self) -> None:
        """Notes that a try begins."""
        self._began_ms = self._clock.monotonic_ms()

    def end_try(self, *, won: bool) -> None:
        """Notes how a try ended."""
        now_ms = self._clock.monotonic_ms()
        took_ms = now_ms - self._began_ms
        self._try_ms += (took_ms - self._try_ms) / 4 if self._try_ms else took_ms
        if won:
            self._won_ms = now_ms
        else:
            self._lost_ms = now_ms

    def yield_turn(self) -> bool:
        """Waits before the first try of a commit, where this handle has just won beside others, to
        whom it lost of late. Whether it did.
        """
        if self._won_ms is None or self._lost_ms is None or not self._seen:
            return False
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._lost_ms > RIVAL_MS:
            return False
        wait_ms = int(self._ids.uniform() * self._window_ms()) - (now_ms - self._won_ms)
        if wait_ms <= 0:
            return False
        self._clock.sleep_ms(wait_ms)
        return True

    def wait_after_loss(self, losses: int) -> None:
        """Waits before a try that follows so many lost ones."""
        self._clock.sleep_ms(int(self._ids.uniform() * self._window_ms() / losses))

    def _window_ms(self) -> float:
        rivals = max(1, len(self._seen))
        return min(WINDOW_MS_MAX, rivals * max(TRY_MS_MIN, self._try_ms))
