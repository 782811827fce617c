"""Bugs to plant in every client of a history: the checkers must notice (`run.py --planted`)."""

from collections.abc import Callable

from clog.storage import cuts
from clog.storage.commit import committer
from clog.storage.commit.tip import Tip
from clog.storage.format.commits import read_commit

READS_FIRST = "reads before it holds the id"


class Create:
    """A store, and whether a create was refused or got no reply."""

    def __init__(self, store) -> None:
        self._store, self.in_doubt = store, False

    def __getattr__(self, name):
        return getattr(self._store, name)

    def create(self, path, data) -> None:
        try:
            self._store.create(path, data)
        except Exception:
            self.in_doubt = True
            raise


def own_commit_taken_for_anothers() -> None:
    """A commit whose reply was lost, or that the client repeated, is read back and taken for
    another's, so what is in it is committed again (COMMIT.md, K4).
    """
    create = committer._create  # noqa: SLF001

    def blind(store, commit, clock, ids):
        seen = Create(store)
        winner = create(seen, commit, clock, ids)
        return read_commit(store, commit.version) if winner is None and seen.in_doubt else winner

    committer._create = blind  # noqa: SLF001


def reads_are_old() -> None:
    """A look for newer versions finds none every other time."""
    refresh, looks = Tip.refresh, [0]

    def lazy(self, **given):
        looks[0] += 1
        return self.commit if looks[0] % 2 else refresh(self, **given)

    Tip.refresh = lazy


def reads_before_it_holds() -> None:
    """A worker reads the counter before it takes the id over: another may count in between. This is
    a wrong use of transactions (docs/transactions.md), done by `clients.Worker`.
    """


def cut_at_the_newest() -> None:
    """A cut is the newest version of each log (S74)."""
    cuts.consistent = lambda bounds, _shown, _firsts: dict(bounds)


BUGS: dict[str, Callable[[], None]] = {
    "own commit taken for another's": own_commit_taken_for_anothers,
    "reads are old": reads_are_old,
    READS_FIRST: reads_before_it_holds,
    "cut at the newest versions": cut_at_the_newest,
}
OF_TRANSACTIONS = (READS_FIRST, "cut at the newest versions")
"""The others are found in histories of one log."""
