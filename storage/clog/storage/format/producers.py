"""Writer entries: who committed what last, for appends that must not happen twice (design: exactly
once).

The head holds the recent ones; older ones are in pages. None is ever forgotten: a stream that was
stopped for a year may come back.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from clog.storage.format.edits import AppendedBy, PagedWriters, WriterEntry
from clog.storage.format.head import WRITERS_MAX, Head, with_writers
from clog.storage.format.transactions import PositionsAt, read_positions
from clog.storage.format.writer_pages import WriterPages, writer_hash
from clog.storage.store.base import Store


def find_writer(pages: WriterPages, head: Head, kind: str, writer_id: str) -> WriterEntry | None:
    """Returns the writer's entry; where it is not in the head and there are older ones, a GET for
    each level of pages that is not kept.
    """
    for entry in head.writers:
        if entry.key == (kind, writer_id):
            return entry
    if head.older_writers is None:
        return None
    return pages.find(head.older_writers, head.log.key_seed, kind, writer_id)


def count_writers(pages: WriterPages, head: Head) -> int:
    """Returns how many writers are remembered; where there are older ones, a GET for each page in
    which a writer of the head may have an entry, too, and which is not kept.
    """
    root, seed = head.older_writers, head.log.key_seed
    if root is None:
        return len(head.writers)
    homes = pages.homes(root, (writer_hash(seed, *entry.key) for entry in head.writers))
    beside = {older.key for page in set(homes.values()) for older in pages.entries(page)}
    return root.count + sum(entry.key not in beside for entry in head.writers)


def page_out_if_full(
    pages: WriterPages, head: Head, added: Sequence[AppendedBy], *, new_id: Callable[[], str]
) -> PagedWriters | None:
    """Writes pages with those who must leave the head where these writers come to it; None where
    there is room.

    The oldest leave, as many as there are too many. With them go those of the older half whose page
    is written anyway: while there are few writers the page is the same for all, and is written once
    for many of them.
    """
    writers = with_writers(head.writers, added)
    over = len(writers) - WRITERS_MAX
    oldest = writers[: len(writers) - max(WRITERS_MAX // 2, len(added))]
    if over <= 0 or not oldest:
        return None
    seed, root = head.log.key_seed, head.older_writers
    left = list(range(len(oldest)))
    if root is not None:
        hashes = [writer_hash(seed, *entry.key) for entry in oldest]
        homes = pages.homes(root, hashes)
        written = {homes[hashed] for hashed in hashes[:over]}
        left = [i for i in left if homes[hashes[i]] in written]
    root = pages.add(
        root,
        (with_positions_inline(pages.store, oldest[i]) for i in left),
        seed=seed,
        new_id=new_id,
    )
    return PagedWriters(root, tuple(left))


def with_positions_inline(store: Store, entry: WriterEntry) -> WriterEntry:
    """Returns the entry as pages hold it: the sweep looks for documents of positions in heads alone
    (FORMAT.md §11.1). One GET where it has one.
    """
    state = entry.transaction
    if state is None or not isinstance(state.positions, PositionsAt):
        return entry
    inline = replace(state, positions=read_positions(store, state.positions))
    return replace(entry, transaction=inline)
