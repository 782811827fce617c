"""A file that is given up where a disk is full, so that what makes room can be committed
(COMMIT.md §5).

Whoever deletes commits first, and on a disk without a free byte nobody can commit. So the cleaner
keeps a file of at most `RESERVE_BYTES` in the folder of a log on a local disk: whoever is to make
room and finds none deletes it, and does his work in its place. Who is to write records does not.
"""

import hashlib
from collections.abc import Callable
from typing import TypeVar

from clog.storage.format import documents
from clog.storage.store.contract import Store, StoreFullError, WrappingStore
from clog.storage.store.local import LocalStore

RESERVE_BYTES = 1 << 20
"""Room for a few hundred commits of a small log; one of a large log may have as much."""
DATA_BYTES_MIN = 64 << 10
"""A log with less data has no reserve."""

_T = TypeVar("_T")


def keep_reserve(store: Store, *, data_bytes: int) -> None:
    """Makes the reserve of a log's folder on a disk: as large as the log's data, up to
    `RESERVE_BYTES`. One that is there stays, unless the log has outgrown it by far; where there is
    little data there is nothing to give.

    Raises:
        StoreFullError: there is no room for it.
    """
    if data_bytes < DATA_BYTES_MIN or not _is_on_disk(store):
        return
    size_bytes = min(data_bytes, RESERVE_BYTES)
    if 2 * (_size_bytes(store) or 0) < size_bytes:
        # Bytes that no file system makes less of.
        store.put(documents.RESERVE, hashlib.shake_256(b"clog").digest(size_bytes))


def give_up_reserve(store: Store) -> bool:
    """Deletes the reserve of a log's folder; tells whether there was one."""
    if not _is_on_disk(store) or _size_bytes(store) is None:
        return False
    store.delete(documents.RESERVE)
    return True


def with_reserve(store: Store, step: Callable[[], _T]) -> _T:
    """Does a step that makes room, or leads to it; once more, without the reserve, where there is
    no room for it.

    Raises:
        StoreFullError: there is none without it, either.
    """
    try:
        return step()
    except StoreFullError:
        if not give_up_reserve(store):
            raise
        return step()


def _is_on_disk(store: Store) -> bool:
    while isinstance(store, WrappingStore):
        store = store.inner
    return isinstance(store, LocalStore)


def _size_bytes(store: Store) -> int | None:
    """Returns the size of the reserve, None where there is none."""
    found = (f.size_bytes for f in store.list(documents.RESERVE) if f.path == documents.RESERVE)
    return next(found, None)
