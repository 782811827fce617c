"""Liveness: who opens the log, or looks for newer versions, while others commit at each request.

What a search may cost follows from how far it had to go, however fast others are (COMMIT.md §6).
All of it is one turn: no other actor comes in between but the rival, and nothing goes wrong.
"""

import json
from math import ceil, log2

from actors import Actor

from clog.storage import Log
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.store.contract import WrappingStore

_RIVAL_COMMITS_MAX = 40
"""Far more than a search that is in time meets; one that chases makes as many requests."""


class _Raced(WrappingStore):
    """Counts reads, and has a rival commit before each read of a commit."""

    def __init__(self, inner, rival) -> None:
        super().__init__(inner)
        self.reads = 0
        self._rival = rival

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        self.reads += 1
        if documents.COMMITS in path:
            self._rival()
        return self.inner.get(path, start, end)


class Chased(Actor):
    """Opens the log, and looks once for newer versions."""

    works_on_log = False

    def act(self) -> None:
        disk, oracle = self.site.disk, self.oracle
        if not self.site.logs.is_stable or self.world.roll(3):
            return
        ids = SeededIds(self.world.roll(1 << 40))
        self._rival, self._commits_left = Log.open(disk, clock=self.clock, ids=ids), 0
        known = documents.LATEST in oracle.store
        hint = json.loads(oracle.store.get(documents.LATEST))["version"] if known else 0
        if oracle.is_closed(hint):
            return
        raced = _Raced(disk, self._rival_commits)
        self._commits_left = _RIVAL_COMMITS_MAX
        log = Log.open(raced, clock=self.clock, ids=ids)
        found = log.handle.tip.version
        self._check(raced, 1, hint, found)
        raced.reads, self._commits_left = 0, _RIVAL_COMMITS_MAX
        newest = log.handle.refresh().version
        self._check(raced, 7, found, newest)

    def _check(self, raced: _Raced, beside: int, start: int, found: int) -> None:
        far = found - start
        most = beside + (4 + 2 * ceil(log2(far)) if far >= 4 else 5)
        assert raced.reads <= most, f"{raced.reads} reads from {start} to {found}, allowed: {most}"

    def _rival_commits(self) -> None:
        if self._commits_left:
            self._commits_left -= 1
            retention_ms = 1_800_000 * (1 + self._commits_left % 2)
            self._rival.alter({"delete.retention.ms": retention_ms})
