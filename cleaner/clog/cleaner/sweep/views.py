"""Files of published views that no version of them names any more (FORMAT.md §14).

A publisher may sleep for any time between such a file and the version of the view that names it;
once that version is there, by whomever, he cannot create it.
"""

import logging

from clog.storage.commit.handle import Handle
from clog.storage.errors import CorruptionError, InvalidInputError
from clog.storage.format import paths
from clog.storage.publications.publish import FORMATS, foreign_table, view_of
from clog.storage.store.base import Store, StoredObject, StoreRefusedError

_LOGGER = logging.getLogger(__name__)


def unneeded_view_files(handle: Handle, store: Store, *, before_ms: int) -> list[StoredObject]:
    """Returns the files of views that were written before ``before_ms`` and that nothing names;
    only in a log that was published a LIST, and where there is anything old a LIST of each
    view and a GET for each of its versions. Those of a view that cannot be read stay.
    """
    if not handle.tip.head.pins:
        return []
    old: dict[str, list[tuple[int, StoredObject]]] = {}
    for found in store.list(paths.VIEWS):
        if (of := paths.view_of(found.path)) is not None and found.modified_ms < before_ms:
            old.setdefault(of[0], []).append((of[1], found))
    unneeded: list[StoredObject] = []
    for name, files in old.items():
        if name not in FORMATS:
            continue
        view = view_of(handle.standing, name)
        try:
            seen = view.look()
            if seen.is_foreign:
                raise foreign_table(view, url=handle.standing.root.url)
            known = {found.path: number for number, found in files if number <= seen.newest}
            unnamed = view.unnamed(seen, known)
        except (CorruptionError, InvalidInputError, StoreRefusedError) as e:
            url, why = store.url, str(e)
            _LOGGER.warning("files of the %s view of %s are not swept: %s", name, url, why)
            continue
        unneeded += [found for _, found in files if found.path in unnamed]
    return unneeded
