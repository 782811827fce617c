"""Commits as values and as documents (FORMAT.md §3.1)."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from clog.storage.env import enough_memory
from clog.storage.errors import CorruptionError
from clog.storage.format import documents
from clog.storage.format.chunks import whole
from clog.storage.format.documents import check_inside, commit_path, edit_path
from clog.storage.format.edits import Edit, edit_from_json, edit_to_json
from clog.storage.format.head import Head, head_from_json, head_to_json
from clog.storage.store.contract import Store

HINT_STRIDE = 4
"""Commits whose version is divisible by this carry all edits since the snapshot, and move the hint.
Part of the format.
"""

INLINE_EDIT_BYTES_MAX = 1 << 20
"""Longer edits go to a document of their own, so that a commit stays one small PUT."""


@dataclass(frozen=True, slots=True)
class EditRecord:
    """One edit with the commit it came by, still as stored: ``{"edit": …}`` or ``{"edit_at": …}``.

    Parsed by `edit_of` when somebody applies it: an append that only carries it along does not.
    ``parent`` is the id of the version before, None where nobody said it; ``made`` is the edit
    itself where it was made here.
    """

    version: int
    commit_id: str
    time_ms: int
    operation: str
    stored: dict[str, Any]
    parent: str | None = field(default=None, compare=False)
    made: Edit | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Commit:
    """Version N: its edit, edits before it that it carries along, and the head it leaves."""

    record: EditRecord
    parent: str | None
    earlier: tuple[EditRecord, ...]
    head: Head

    @property
    def version(self) -> int:
        return self.record.version


def carried_from(version: int, *, snapshot_version: int) -> int:
    """Returns the first version whose edit a commit of ``version`` carries (FORMAT.md §3.1);
    ``version`` itself: it carries none.
    """
    if version % HINT_STRIDE == 0:
        return min(snapshot_version + 1, version)
    return version - 1 if version % 2 == 0 else version


def lacks_edits(commit: Commit) -> bool:
    """Tells whether a commit carries less than it should: readers find the rest in the commits
    before it, but for release 0.1.0, which refuses it.
    """
    snapshot = -1 if commit.head.snapshot is None else commit.head.snapshot.version
    first = carried_from(commit.version, snapshot_version=snapshot)
    return len(commit.earlier) < commit.version - first


def stored_edit(store: Store, edit: Edit, *, commit_id: str) -> dict[str, Any]:
    """Returns the edit as a commit holds it; a large one is written as a document of its own
    first.
    """
    value = edit_to_json(edit)
    body = documents.body_json(value)
    if len(body) <= INLINE_EDIT_BYTES_MAX:
        return {"edit": value}
    path = edit_path(commit_id)
    data = documents.encode_json("edit", body)
    store.put(path, data)
    return {"edit_at": {"path": path, "bytes": len(data)}}


def encode_commit(commit: Commit) -> bytes:
    """Returns the commit as a document.

    Raises:
        CorruptionError: what it carries is not what readers need; nothing may be made of it.
    """
    if _leading_to(commit) != commit.earlier or lacks_edits(commit):
        raise CorruptionError(
            f"version {commit.version}, whose snapshot is {commit.head.snapshot}, would carry the"
            f" edits of versions {[record.version for record in commit.earlier]}, which readers"
            " cannot use; it was not made; open the log anew"
        )
    carried_after = commit.earlier[0].parent if commit.earlier else None
    body = {
        **_record_json(commit.record),
        "parent": commit.parent,
        **({} if carried_after is None else {"earlier_parent": carried_after}),
        "earlier": [_record_json(record) for record in commit.earlier],
        "head": head_to_json(commit.head),
    }
    return documents.encode("commit", body)


def read_commit(store: Store, version: int) -> Commit:
    """Returns the commit of this version; one GET.

    Raises:
        FileNotFoundError: no such commit (not yet, or no longer).
        CorruptionError: it violates the format.
    """
    path = commit_path(version)
    where = f"{path} of {store.url}"
    body = documents.decode("commit", documents.fetch(store, "commit", path), where=where)
    try:
        with enough_memory(where):
            commit = Commit(
                record=_record_from_json(body, body["parent"]),
                parent=body["parent"],
                earlier=tuple(_earlier_from_json(body)),
                head=head_from_json(body["head"], where=where),
            )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise CorruptionError(f"{where} violates the format: {type(e).__name__}: {e}") from e
    if commit.version != version:
        raise CorruptionError(f"{where} holds version {commit.version}")
    return replace(commit, earlier=_leading_to(commit))


def edit_of(store: Store, record: EditRecord) -> Edit:
    """Returns the edit of a record; one GET where it is a document of its own.

    Raises:
        CorruptionError: it violates the format.
    """
    if record.made is not None:
        return record.made
    at = record.stored.get("edit_at")
    if at is None:
        value = record.stored["edit"]
    else:
        data = documents.fetch(store, "edit", at["path"], at["bytes"])
        value = documents.decode("edit", data, where=f"{at['path']} of {store.url}")
    with enough_memory(f"the edit of version {record.version} of {store.url}"):
        return edit_from_json(value, version=record.version)


def goes_back_in_time(store: Store, before: EditRecord, record: EditRecord) -> bool:
    """Tells whether a commit's time lies before its parent's, without being the repair that may;
    one GET where the edit of such a commit is a document of its own.

    Raises:
        FileNotFoundError, CorruptionError: as `edit_of`.
    """
    return record.time_ms < before.time_ms and not edit_of(store, record).reset_times


def _leading_to(commit: Commit) -> tuple[EditRecord, ...]:
    """Returns the edits that lead to a commit without a gap, of those that it carries, each by its
    id. What comes before a gap is passed over: it can be read elsewhere.
    """
    leading: list[EditRecord] = []
    version, commit_id = commit.version - 1, commit.parent
    for record in reversed(commit.earlier):
        if record.version != version or commit_id not in (None, record.commit_id):
            return tuple(reversed(leading[:-1]))  # Nobody says what the oldest one follows.
        leading.append(record)
        version, commit_id = version - 1, record.parent
    return commit.earlier


def _record_json(record: EditRecord) -> dict[str, Any]:
    return {
        "version": record.version,
        "id": record.commit_id,
        "time_ms": record.time_ms,
        "operation": record.operation,
        **record.stored,
    }


def _earlier_from_json(body: dict[str, Any]) -> Iterator[EditRecord]:
    parent = body.get("earlier_parent")
    for value in body["earlier"]:
        record = _record_from_json(value, parent)
        yield record
        parent = record.commit_id


def _record_from_json(value: dict[str, Any], parent: str | None) -> EditRecord:
    version = whole(value["version"])
    if "edit_at" in value:
        path = check_inside(value["edit_at"]["path"], where=f"version {version}")
        stored = {"edit_at": {"path": path, "bytes": whole(value["edit_at"]["bytes"])}}
    else:
        stored = {"edit": value["edit"]}
    return EditRecord(
        version=version,
        commit_id=str(value["id"]),
        time_ms=whole(value["time_ms"]),
        operation=str(value["operation"]),
        stored=stored,
        parent=parent,
    )
