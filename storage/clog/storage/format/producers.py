"""Writer entries: who committed what last, for appends that must not happen twice (design: exactly
once).

The head holds the recent ones; older ones move to a page. None is ever forgotten: a stream that was
stopped for a year may come back.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from clog.storage.errors import CorruptionError
from clog.storage.format import documents
from clog.storage.format.edit_json import writer_from_json, writer_to_json
from clog.storage.format.edits import AppendedBy, PageRef, WriterEntry
from clog.storage.format.head import WRITERS_MAX, Head
from clog.storage.format.paths import page_path
from clog.storage.format.transactions import PositionsAt, read_positions
from clog.storage.store.base import Store


def find_writer(store: Store, head: Head, kind: str, writer_id: str) -> WriterEntry | None:
    """Returns the writer's entry; one GET where it is not in the head and there are older ones."""
    for entry in head.writers:
        if entry.key == (kind, writer_id):
            return entry
    if head.older_writers is None:
        return None
    return read_page(store, head.older_writers).get((kind, writer_id))


def page_out_if_full(
    store: Store, head: Head, writers: Sequence[AppendedBy], *, new_id: Callable[[], str]
) -> PageRef | None:
    """Makes room in the head where these writers would be too many: writes a page with the older
    half of the head's writers and all of the former page (`head.advance` then drops that half).
    None where there is room.
    """
    known = {entry.key for entry in head.writers}
    fresh = {by.entry.key for by in writers} - known
    if not fresh or len(known) < WRITERS_MAX:
        return None
    entries = {} if head.older_writers is None else read_page(store, head.older_writers)
    for entry in head.writers[: len(head.writers) // 2]:
        entries[entry.key] = with_positions_inline(store, entry)
    body = {"writers": [writer_to_json(entry) for entry in entries.values()]}
    data = documents.encode("page", body)
    path = page_path(new_id())
    store.put(path, data)
    return PageRef(path, len(data), len(entries))


def with_positions_inline(store: Store, entry: WriterEntry) -> WriterEntry:
    """Returns the entry as pages hold it: the sweep looks for documents of positions in heads alone
    (FORMAT.md §11.1). One GET where it has one.
    """
    state = entry.transaction
    if state is None or not isinstance(state.positions, PositionsAt):
        return entry
    inline = replace(state, positions=read_positions(store, state.positions))
    return replace(entry, transaction=inline)


def read_page(store: Store, page: PageRef) -> dict[tuple[str, str], WriterEntry]:
    """Returns the writers of a page by kind and id; one GET."""
    where = f"{page.path} of {store.url}"
    body = documents.decode("page", store.get(page.path, 0, page.size_bytes + 1), where=where)
    try:
        entries = [writer_from_json(value) for value in body["writers"]]
    except (KeyError, TypeError, ValueError) as e:
        raise CorruptionError(f"{where} violates the format: {e}") from e
    return {entry.key: entry for entry in entries}
