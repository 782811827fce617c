"""Versions that named cuts need (FORMAT.md §20): what nobody needs any more is let go.

A keep goes when its time is up, and so does a cut in its home. One that a crash has left has no cut
in its home: there it goes once it is old, elsewhere when its home has neither a cut nor a keep of
its id. Where the home cannot be read nothing is guessed: the keep stays, as `Log.describe` shows.
"""

import logging
from collections.abc import Iterable
from functools import cache

from clog.cleaner.duties import Work
from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.cuts import OPERATION
from clog.storage.errors import ClogError
from clog.storage.format.commits import Commit, Edit, Head
from clog.storage.transactions.several import open_other

LEFT_AGE_MS = 86_400_000
"""Whoever names a cut has done so, as a rule; a cut whose keep is gone is refused."""
_LOGGER = logging.getLogger(__name__)


def let_go(work: Work) -> int:
    """Takes keeps away that nobody needs, and in a home cuts whose time is up; returns how many
    went. For keeps of other homes those of opening each; a commit where something goes.
    """
    handle = work.handle
    left = frozenset(_left(handle))

    def prepare(tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        head = tip.head
        over = {cut_id for cut_id, keep in head.kept.items() if keep.is_over(time_ms)}
        cuts = [name for name, cut in head.cuts.items() if cut.is_over(time_ms)]
        kept = over | _unnamed(head, time_ms) | (left & head.kept.keys())
        if not (kept or cuts):
            return NothingToCommit()
        return Edit(kept=dict.fromkeys(sorted(kept)), cuts=dict.fromkeys(cuts))

    done = handle.commit(prepare, operation=OPERATION)
    return len(done.record.made.kept) if isinstance(done, Commit) and done.record.made else 0


def _unnamed(head: Head, time_ms: int) -> set[str]:
    """Returns the old keeps of this home that no cut has."""
    named = {cut.cut_id for cut in head.cuts.values()}
    return {
        cut_id
        for cut_id, keep in head.kept.items()
        if keep.home == head.log.log_id
        and cut_id not in named
        and time_ms - keep.time_ms > LEFT_AGE_MS
    }


def _left(handle: Handle) -> Iterable[str]:
    """Yields the keeps of other homes that these know nothing of."""

    @cache
    def known(home_id: str, url: str) -> frozenset[str | None] | None:
        try:
            head = open_other(handle, url, home_id).tip.head
        except (ClogError, FileNotFoundError) as e:
            _LOGGER.warning(
                "%s keeps versions for cuts of %s, which cannot be read: %s; if it is gone for good"
                " drop them there: clog snapshot %s --drop NAME --force",
                *(handle.store.url, url, e, handle.store.url),
            )
            return None
        return frozenset({*head.kept, *(cut.cut_id for cut in head.cuts.values())})

    for cut_id, keep in handle.tip.head.kept.items():
        if keep.home != handle.standing.log_id:
            there = known(keep.home, keep.home_url)
            if there is not None and cut_id not in there:
                yield cut_id
