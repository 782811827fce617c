"""The history of a log: what each commit that is still there did, for people and reports."""

from collections.abc import Iterator
from dataclasses import dataclass

from clog.storage.commit.versions import first_open_version
from clog.storage.format.commits import Commit, EditRecord, edit_of, read_commit
from clog.storage.format.edits import Edit
from clog.storage.store.base import Store


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """One commit.

    Attributes:
        version: the version that it made.
        time_ms: when, in ms since 1970.
        operation: what it did: ``append``, ``clean``, ``alter`` …
        records: how many it appended.
        tombstones: how many of these have a null value.
        size_bytes: record bytes of these.
        object_bytes: size of the data objects that hold them.
        writers: the producers, streams and transactional writers among those that appended.
        first_dirty: by partition, where the next pass begins, if the commit moved that: the last
            commit of a pass does.
    """

    version: int
    time_ms: int
    operation: str
    records: int
    tombstones: int
    size_bytes: int
    object_bytes: int
    writers: tuple[str, ...]
    first_dirty: dict[int, int]


def history(store: Store, tip: Commit, start: int) -> Iterator[CommitInfo]:
    """Yields commits from ``start`` (or the first open block) to the tip, oldest first; one GET
    each, and a few to find the closed blocks.
    """
    for version in range(max(start, first_open_version(store)), tip.version + 1):
        try:
            record = read_commit(store, version).record
        except FileNotFoundError:
            continue  # Deleted with its block.
        yield info_of(record, edit_of(store, record))


def info_of(record: EditRecord, edit: Edit) -> CommitInfo:
    """Returns what a commit did."""
    chunks = [c for _, c in edit.add.chunks] if edit.add else []
    return CommitInfo(
        version=record.version,
        time_ms=record.time_ms,
        operation=record.operation,
        records=sum(c.rows for c in chunks),
        tombstones=sum(c.tombstones for c in chunks),
        size_bytes=sum(c.size_bytes for c in chunks),
        object_bytes=sum({c.object.path: c.object.size_bytes for c in chunks}.values()),
        writers=tuple(by.entry.writer_id for by in edit.writers),
        first_dirty=dict(edit.first_dirty),
    )
