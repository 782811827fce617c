"""Documents that no readable version needs: snapshots, pages and edits (COMMIT.md §5, W2).

They bear no stamp, so their age is the store's. A writer that slept over a page or an edit comes
to nothing: since it was written a version was committed, the one that the writer was about to
create. A snapshot that refers to a page deleted in this way may appear; no head ever names it.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from clog.storage.commit.versions import first_open_version
from clog.storage.format import paths
from clog.storage.format.columns import INLINE_PARTITIONS_MAX
from clog.storage.format.commits import Commit, read_commit
from clog.storage.format.head import Head
from clog.storage.format.snapshots import read_snapshot
from clog.storage.format.transactions import PositionsAt
from clog.storage.format.writer_pages import WriterPages
from clog.storage.store.base import Store, StoredObject


def unneeded_documents(
    store: Store, tip: Commit, floor: int, *, before_ms: int
) -> list[StoredObject]:
    """Returns the leftover documents that were written before ``before_ms``; the tip must be
    younger, for them to be deleted.

    ``floor``: a version from before that time: what heads after it have let go was written later.

    Costs a LIST for each kind, for columns only in a log that may have some; where there is
    anything old, a GET for each snapshot that is kept, for each page of older writers that is above
    others, and one for each commit where an edit has a
    document of its own.

    Raises:
        CorruptionError: a document that tells what is needed cannot be read.
    """
    oldest = read_commit(store, tip.head.oldest_readable)
    first = -1 if oldest.head.snapshot is None else oldest.head.snapshot.version
    snapshots = {paths.version_of(found.path): found for found in store.list(paths.SNAPSHOTS)}
    old = [found for v, found in snapshots.items() if v is not None and v < first]
    pages = _before(store.list(paths.PAGES), before_ms)
    if pages:
        needed = {
            page for v in snapshots if v is not None and v >= first for page in _pages(store, v)
        }
        heads = (oldest.head, _head_at(store, floor, tip))
        needed |= _writer_pages(store, tip.head, older=heads)
        needed |= {path for head in (*heads, tip.head) for path in _positions(head)}
        old += [found for found in pages if found.path not in needed]
    if tip.head.log.partitions > INLINE_PARTITIONS_MAX:
        old += _columns_before(store, oldest)
    edits = _before(store.list(paths.EDITS), before_ms)
    if edits:
        committed = set(_committed_edits(store, tip))
        old += [found for found in edits if found.path not in committed]
    old += store.list(paths.CLOCKS)  # left by a comparison of clocks that was killed
    return _before(iter(old), before_ms)


def _before(found: Iterator[StoredObject], before_ms: int) -> list[StoredObject]:
    return [
        document
        for document in found
        if document.modified_ms < before_ms and _is_document(document.path)
    ]


def _is_document(path: str) -> bool:
    """Tells whether clog makes files of this name: a stranger's stay, wherever they are."""
    versions = paths.version_of(path), paths.columns_version_of(path)
    return versions != (None, None) or paths.is_unversioned(path)


def _pages(store: Store, version: int) -> Iterator[str]:
    try:
        yield from (page.path for page in read_snapshot(store, version).pages)
    except FileNotFoundError:
        return  # Another sweep found that nobody needs it.


def _columns_before(store: Store, oldest: Commit) -> Iterator[StoredObject]:
    """Yields the columns of versions before those that a head from the oldest one on refers to."""
    rest = oldest.head.partitions.ref
    first = oldest.version if rest is None else rest.version
    for found in store.list(paths.COLUMNS):
        version = paths.columns_version_of(found.path)
        if version is not None and version < first:
            yield found


def _positions(head: Head) -> Iterator[str]:
    """Yields the documents of positions; entries in pages have theirs inline (FORMAT.md §11.1)."""
    for entry in head.writers:
        if entry.transaction is not None and isinstance(entry.transaction.positions, PositionsAt):
            yield entry.transaction.positions.path


def _writer_pages(store: Store, newest: Head, *, older: Iterable[Head]) -> set[str]:
    pages = WriterPages(store)
    found = set() if newest.older_writers is None else {*pages.paths(newest.older_writers)}
    for root in {head.older_writers for head in older if head.older_writers is not None}:
        with suppress(FileNotFoundError):  # Another sweep found that nobody needs it.
            found.update(pages.paths(root))
    return found


def _head_at(store: Store, version: int, tip: Commit) -> Head:
    try:
        return read_commit(store, version).head
    except FileNotFoundError:
        return tip.head  # Deleted with its block, so no longer readable.


def _committed_edits(store: Store, tip: Commit) -> Iterator[str]:
    """Yields the paths of edits that a commit which is still there refers to."""
    for version in range(first_open_version(store), tip.version + 1):
        try:
            commit = read_commit(store, version)
        except FileNotFoundError:
            continue
        for record in (*commit.earlier, commit.record):
            if at := record.stored.get("edit_at"):
                yield at["path"]
