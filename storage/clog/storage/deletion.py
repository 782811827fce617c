"""Deleting a log (COMMIT.md §1).

D1. Delete ``_clog/log``: from now on no log stands here, for whoever opens or looks again.
D2. Delete the files of its published views, of which there would be no rows any more, and those of
    its folder.

A crash between the two leaves files of a log that does not stand anywhere. Deleting again, at a
root without a log, does D2 for them. What only a creator can have left, which may be about to
create its log, is not touched; nor is a view of another log that is created meanwhile.

Not here: stopping writers. One that goes on is told at its next commit, or within seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from clog.storage.commit.identity import read_log_file
from clog.storage.errors import NotFoundError
from clog.storage.format import paths
from clog.storage.publications.removal import ViewFiles, published_files
from clog.storage.store.base import Store, StoredObject, is_temporary

OF_A_CREATION = frozenset({paths.commit_path(0), paths.block_path(0)})
"""What a creator writes before it creates ``_clog/log``."""
OF_A_FIRST_WRITE = f"{paths.DATA}{0:020}-"
"""How the objects are named that may stand in its folder before."""


@dataclass(frozen=True, slots=True)
class Doomed:
    """What deletion means at a root; ``log_id`` is None where no log stands there any more."""

    log_id: str | None
    files: tuple[StoredObject, ...]

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return sum(f.size_bytes for f in self.files)


def doomed(root: Store) -> Doomed:
    """Returns the files of the log that stands at a root; where there is none, of those that were
    deleted before. Costs a LIST of the folders, and the requests of `published_files`.

    Raises:
        NotFoundError: there is neither.
    """
    return _doomed(root, published_files(root))


def _doomed(root: Store, views: list[ViewFiles]) -> Doomed:
    try:
        return _of_log(root, read_log_file(root).log_id, views)
    except NotFoundError:
        left = (*_files_of(views), *_leftovers(root))
        if not left:
            raise
        return Doomed(None, left)


def is_creation(names: Iterable[str]) -> bool:
    """Tells whether a folder with these files holds only what a creator writes before it creates
    ``_clog/log``.
    """
    return all(name in OF_A_CREATION or name.startswith(OF_A_FIRST_WRITE) for name in names)


def delete_log(root: Store) -> Doomed:
    """Deletes what `doomed` returns, and returns it. Costs a request for each file.

    Raises:
        NotFoundError: there is nothing to delete.
    """
    views = published_files(root)
    found = _doomed(root, views)
    if found.log_id is not None:
        root.delete(paths.LOG_FILE)  # D1
        # What was written until now; but another log may stand here already, and be published.
        gone = {found.log_id, *(view.log_id for view in views)}
        views = [view for view in published_files(root) if view.log_id in gone]
        found = _of_log(root, found.log_id, views)
    # Objects first: what is left of a log is never taken for what a first write makes.
    for file in sorted(found.files, key=lambda file: f"/{paths.DATA}" not in file.path):
        root.delete(file.path)  # D2
    return found


def _of_log(root: Store, log_id: str, views: list[ViewFiles]) -> Doomed:
    folder = paths.folder_of(log_id) + "/"
    inside = (*root.list(folder), *root.list_temporary(folder))
    return Doomed(log_id, (*_files_of(views), *inside))


def _files_of(views: list[ViewFiles]) -> tuple[StoredObject, ...]:
    return tuple(file for view in views for file in view.files)


def _leftovers(root: Store) -> list[StoredObject]:
    folders: dict[str, list[StoredObject]] = {}
    for file in [*root.list(paths.FOLDERS), *root.list_temporary(paths.FOLDERS)]:
        log_id, _, rest = file.path.removeprefix(paths.FOLDERS).partition("/")
        if rest and paths.is_log_id(log_id):
            folders.setdefault(log_id, []).append(file)
    return [
        f for log_id, files in folders.items() if not _is_creation(log_id, files) for f in files
    ]


def _is_creation(log_id: str, files: list[StoredObject]) -> bool:
    skip = len(paths.folder_of(log_id)) + 1
    return is_creation(f.path[skip:] for f in files if not is_temporary(f.path))
