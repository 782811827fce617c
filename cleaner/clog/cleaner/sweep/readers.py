"""Positions of readers that nobody told anything of for long (FORMAT.md §18).

A document says itself when it may be forgotten. One that cannot be read says nothing: it stays
until somebody forgets it by its name, as it may be a newer release's.
"""

from clog.storage.format import paths
from clog.storage.readers.documents import StrayReaderError, stored_reader
from clog.storage.store.base import Store, StoredObject


def expired_readers(store: Store, *, before_ms: int) -> list[StoredObject]:
    """Returns the documents that expired before a time, and were written before it; a LIST, and a
    GET for each that was.
    """
    old = (found for found in store.list(paths.READERS) if found.modified_ms < before_ms)
    return [found for found in old if _is_expired(store, found.path, before_ms)]


def _is_expired(store: Store, path: str, before_ms: int) -> bool:
    name = paths.reader_name_of(path)
    if name is None:
        return False
    try:
        return stored_reader(store, name).expires_ms < before_ms
    except (FileNotFoundError, StrayReaderError):
        return False
