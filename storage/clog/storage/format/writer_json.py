"""The JSON of writer entries, and of references to the pages of older ones (FORMAT.md §3.4)."""

from collections.abc import Iterator
from typing import Any

from clog.storage.format.chunks import natural, whole
from clog.storage.format.edits import AppendedBy, PagedWriters, PageRef, WriterEntry
from clog.storage.format.paths import check_inside
from clog.storage.format.transactions import (
    PARTICIPANT,
    TRANSACTION,
    TransactionState,
    state_from_json,
    state_to_json,
)

WRITER_ID_BYTES_MAX = 1024
"""The head repeats the ids of recent writers in each commit. Part of the format."""
WRITER_LEVEL_MAX = 8
"""Levels of pages of older writers, above the lowest. Part of the format."""


def writer_to_json(entry: WriterEntry) -> list[Any]:
    """Returns a writer's entry as in the head."""
    return [*_named(entry), entry.version, *_state_json(entry)]


def writer_from_json(value: list[Any]) -> WriterEntry:
    """Reads what `writer_to_json` made; what an entry of another kind has more is ignored."""
    writer_id, kind, query_id, sequence, content, version, *more = value
    if not all(isinstance(text, str) for text in (writer_id, kind)):
        raise TypeError("a writer's id and kind are text")
    if not 1 <= len(writer_id.encode()) <= WRITER_ID_BYTES_MAX:
        raise ValueError(f"a writer's id has {len(writer_id.encode())} bytes")
    if not all(text is None or isinstance(text, str) for text in (query_id, content)):
        raise TypeError("a writer's query id and content are text, or null")
    state = _state_from_json(kind, more)
    named = (writer_id, kind, query_id, whole(sequence), content)
    return WriterEntry(*named, natural(version), state)


def _state_from_json(kind: str, more: list[Any]) -> TransactionState | None:
    if kind == PARTICIPANT:
        epoch, number = whole(more[0]["epoch"]), whole(more[0]["number"])
        return TransactionState(epoch, number, forced=more[0].get("forced") is True)
    return state_from_json(more[0], where="a writer's entry") if kind == TRANSACTION else None


def _named(entry: WriterEntry) -> list[Any]:
    return [entry.writer_id, entry.kind, entry.query_id, entry.sequence, entry.content]


def _state_json(entry: WriterEntry) -> list[Any]:
    state = entry.transaction
    if state is None:
        return []
    if entry.kind == PARTICIPANT:
        forced = {"forced": True} if state.forced else {}
        return [{"epoch": state.epoch, "number": state.number, **forced}]
    return [state_to_json(state)]


def appended_by_to_json(by: AppendedBy) -> list[Any]:
    """Returns an entry as in ``writers`` of an edit."""
    return [*_named(by.entry), by.first, by.next, *_state_json(by.entry)]


def appended_by_from_json(value: dict[str, Any], version: int) -> Iterator[AppendedBy]:
    """Yields the entries in ``writers`` of the edit of a version; who reads it names the errors."""
    objects = len(value["add"]["objects"]) if "add" in value else 0
    for w in value.get("writers", ()):
        named, (first, end), state = w[:5], w[5:7], w[7:]
        if not 0 <= whole(first) <= whole(end) <= objects:
            raise ValueError(f"objects [{first}, {end}) of {objects} have a writer")
        yield AppendedBy(writer_from_json([*named, version, *state]), first, end)


def page_to_json(page: PageRef) -> dict[str, Any]:
    """Returns a reference to the root of the pages of older writers."""
    return {
        "path": page.path,
        "bytes": page.size_bytes,
        "count": page.count,
        "level": page.level,
    }


def page_from_json(value: dict[str, Any] | None, where: str) -> PageRef | None:
    """Reads what `page_to_json` made; None for null."""
    return None if value is None else _page_from_json(value, where)


def _page_from_json(value: dict[str, Any], where: str) -> PageRef:
    path, level = check_inside(value["path"], where=where), whole(value["level"])
    if not 0 <= level <= WRITER_LEVEL_MAX:
        raise ValueError(f"pages of level {level}; allowed: 0 to {WRITER_LEVEL_MAX}")
    return PageRef(path, natural(value["bytes"]), natural(value["count"]), level)


def paged_to_json(paged: PagedWriters) -> dict[str, Any]:
    """Returns ``older_writers`` of an edit."""
    return {**page_to_json(paged.root), "left": list(paged.left)}


def paged_from_json(value: dict[str, Any], where: str) -> PagedWriters:
    """Reads what `paged_to_json` made."""
    root, left = _page_from_json(value, where), tuple(map(natural, value["left"]))
    if not isinstance(value["left"], list) or list(left) != sorted({*left}):
        raise ValueError(f"places {list(left)}, which are not ascending")
    return PagedWriters(root, left)
