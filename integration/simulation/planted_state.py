"""Bugs to plant in state stores; see `planted`."""

from limits import Patch

from clog.state.store import StateStore
from clog.state.table import Follower, position_of


def others_skipped(patch: Patch) -> None:
    """What a store commits is entered where its file stands, whatever came in between (V6)."""

    def enter(self, version, ranges, rows):
        del version, ranges
        with self._lock, self._telling(), self._locked():
            self._move(position_of(self.handle.tip), rows)

    patch(Follower, "enter", enter)


def not_followed(patch: Patch) -> None:
    """Who takes an id up goes on from the file as it is (F1)."""
    take_over = StateStore.take_over

    def hasty(self):
        self.refresh = lambda: None
        try:
            take_over(self)
        finally:
            del self.refresh

    patch(StateStore, "take_over", hasty)


def rollback_keeps(patch: Patch) -> None:
    """What is rolled back is shown, and committed with what comes next (F2)."""
    rollback = StateStore.rollback

    def keep(self):
        changes = self._changes
        rollback(self)
        self._changes = changes

    patch(StateStore, "rollback", keep)


def old_positions_held(patch: Patch) -> None:
    """A store goes on from the positions that it knew before it took the id up (S54)."""
    take_over = StateStore.take_over

    def early(self):
        known = self.positions
        take_over(self)
        self._holding._positions = known

    patch(StateStore, "take_over", early)


STATE_BUGS = {
    "store skips what others wrote": others_skipped,
    "store takes over without following": not_followed,
    "store keeps what it rolled back": rollback_keeps,
    "store goes on from old positions": old_positions_held,
}
"""By name."""
