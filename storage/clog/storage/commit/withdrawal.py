"""Taking back what was written into the folder of a log which is not there any more (COMMIT.md §1).

Whoever works on a log that somebody deletes writes into a folder that nobody looks into: pages, an
edit, a snapshot, objects, and the commit itself. All of that goes again, and nothing else, as what
else is there may be a log that is being restored.
"""

from collections.abc import Iterable
from contextlib import suppress

from clog.storage.commit.identity import StandingLog
from clog.storage.commit.versions import no_commits, read_block, read_hint, try_read
from clog.storage.errors import NotFoundError, StoreUnavailableError
from clog.storage.format import paths
from clog.storage.format.commits import Commit
from clog.storage.format.transactions import PositionsAt
from clog.storage.store.base import Store
from clog.storage.store.wrapping import WrappingStore


class NotedWrites(WrappingStore):
    """Passes everything on, and knows what was written.

    Attributes:
        written: the paths, since somebody last emptied it.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.written: list[str] = []

    def put(self, path: str, data: bytes | memoryview) -> None:
        self.written.append(path)
        self.inner.put(path, data)

    def create(self, path: str, data: bytes) -> None:
        self.inner.create(path, data)
        self.written.append(path)  # What is there already is another's.


def withdraw(log: StandingLog, tip: Commit, written: Iterable[str]) -> None:
    """Deletes files that nobody will commit, where the log in whose folder they are does not stand
    any more, as far as possible; ``tip`` is its newest version that is known. None to 4 GET where
    it stands, and nothing else.
    """
    try:
        check_there(log, tip.version)
    except NotFoundError:
        for path in dict.fromkeys(written):
            with suppress(StoreUnavailableError):
                log.store.delete(path)
    except StoreUnavailableError:
        pass  # Nobody can say; the caller's own error is told.


def check_there(log: StandingLog, version: int) -> None:
    """Raises if the log is gone, or all of it that ``_clog/log`` leads to.

    Raises:
        LogReplacedError: another log stands at the root (S47).
        NotFoundError: none does, or nothing is left of it but ``_clog/log``.
    """
    log.check()
    store = log.store
    # Where all but the file of a closed block is there, the hint is.
    if not (try_read(store, version) or read_block(store, version) or read_hint(store)):
        raise no_commits(store)


def files_of(commit: Commit) -> list[str]:
    """Returns the paths of a commit, and of what its edit names that was written before."""
    found = [paths.commit_path(commit.version)]
    if (edit := commit.record.made) is None:
        return found
    chunks = [c for _, c in edit.add.chunks] if edit.add is not None else []
    chunks += [c for r in edit.replace for c in r.chunks]
    found += (c.object.path for c in chunks)
    states = (by.entry.transaction for by in edit.writers)
    positions = (state.positions for state in states if state is not None)
    found += (at.path for at in positions if isinstance(at, PositionsAt))
    return found
