"""Writer entries: who committed what last, for appends that must not happen twice (design: exactly
once).

The head holds the recent ones; older ones move to a page. None is ever forgotten: a stream that was
stopped for a year may come back.
"""

from collections.abc import Callable

from clog.storage import documents
from clog.storage.edit_json import writer_from_json, writer_to_json
from clog.storage.edits import PageRef, WriterEntry
from clog.storage.errors import CorruptionError
from clog.storage.head import WRITERS_MAX, Head
from clog.storage.paths import page_path
from clog.storage.store.base import Store


def find_writer(store: Store, head: Head, writer_id: str) -> WriterEntry | None:
    """The writer's entry; one GET where it is not in the head and there are older ones."""
    for entry in head.writers:
        if entry.writer_id == writer_id:
            return entry
    if head.older_writers is None:
        return None
    return read_page(store, head.older_writers).get(writer_id)


def page_out_if_full(
    store: Store, head: Head, writer: WriterEntry | None, *, new_id: Callable[[], str]
) -> PageRef | None:
    """Makes room in the head where this writer would be one too many: writes a page with the older
    half of the head's writers and all of the former page (`head.advance` then drops that half).
    None where there is room.
    """
    known = {entry.writer_id for entry in head.writers}
    if writer is None or writer.writer_id in known or len(known) < WRITERS_MAX:
        return None
    entries = {} if head.older_writers is None else read_page(store, head.older_writers)
    for entry in head.writers[: len(head.writers) // 2]:
        entries[entry.writer_id] = entry
    body = {"writers": [writer_to_json(entry) for entry in entries.values()]}
    data = documents.encode("page", body)
    path = page_path(new_id())
    store.put(path, data)
    return PageRef(path, len(data), len(entries))


def read_page(store: Store, page: PageRef) -> dict[str, WriterEntry]:
    """The writers of a page by id; one GET."""
    where = f"{page.path} of {store.url}"
    body = documents.decode("page", store.get(page.path, 0, page.size_bytes + 1), where=where)
    try:
        entries = [writer_from_json(value) for value in body["writers"]]
    except (KeyError, TypeError, ValueError) as e:
        raise CorruptionError(f"{where} contradicts the format: {e}") from e
    return {entry.writer_id: entry for entry in entries}
