"""Commits as documents: they are restored in full, and nothing damaged is accepted (FORMAT.md
§3.1).
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.storage.env import SeededIds
from clog.storage.errors import CorruptionError, UnsupportedFormatError
from clog.storage.format import commits, documents
from clog.storage.format.commits import (
    Commit,
    Edit,
    EditRecord,
    carried_from,
    edit_of,
    encode_commit,
    read_commit,
    stored_edit,
)
from clog.storage.format.documents import decode, encode
from clog.storage.store import open_store
from clog_testing.histories import any_edits, append_edit, applied, fresh_manifest

_names = SeededIds(11)
PATH = documents.commit_path(6)


@pytest.fixture
def store():
    return open_store(f"memory://{_names.new_id()}")


def commit_six(store):
    """Version 6, an append, which carries version 5."""
    manifest, records = fresh_manifest(), []
    for version in range(1, 7):
        edit = append_edit(manifest, {0: 2, 1: 3}, SeededIds(version).new_id())
        manifest = applied(manifest, edit)
        stored = stored_edit(store, edit, commit_id=f"{version:032x}")
        record = EditRecord(version, f"{version:032x}", 1_000 + version, "append", stored)
        records.append(record)
    return Commit(records[5], records[4].commit_id, (records[4],), manifest.head)


def test_a_commit_comes_back(store):
    """With what it carries and its head."""
    commit = commit_six(store)
    store.put(PATH, encode_commit(commit))
    found = read_commit(store, 6)
    assert found == commit
    assert found.version == 6


@given(any_edits(), st.booleans())
def test_an_edit_comes_back_inline_and_from_a_document(edit, aside):
    """FORMAT.md §3.3: `edit_at` is read with one more request."""
    store = open_store(f"memory://{_names.new_id()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "INLINE_EDIT_BYTES_MAX", 0 if aside else 1 << 30)
        stored = stored_edit(store, edit, commit_id="c" * 32)
    assert stored.keys() == ({"edit_at"} if aside else {"edit"})
    record = EditRecord(7, "c" * 32, 1, "append", stored)
    assert edit_of(store, record) == edit


def test_a_commit_under_another_name_is_corruption(store):
    """FORMAT.md §3.1: its version equals the name."""
    store.put(documents.commit_path(7), encode_commit(commit_six(store)))
    with pytest.raises(CorruptionError, match="holds version 6"):
        read_commit(store, 7)


@pytest.mark.parametrize("carried", [(), (3, 5), (4, 3, 5), (3, 4), (5, 5)])
def test_a_commit_that_readers_could_not_use_is_never_made(store, carried):
    """FORMAT.md §3.1: an even version carries the one before it, without gaps, up to its parent."""
    six = commit_six(store)
    made = {v: replace(six.earlier[0], version=v, commit_id=f"{v:032x}") for v in (3, 4, 5)}
    with pytest.raises(CorruptionError, match="would carry the edits of versions"):
        encode_commit(replace(six, earlier=tuple(made[v] for v in carried)))
    with pytest.raises(CorruptionError, match="would carry the edits of versions"):
        encode_commit(replace(six, parent="f" * 32))


def test_another_kind_under_the_name_is_corruption(store):
    """A snapshot, for example."""
    store.put(PATH, encode("snapshot", {}))
    with pytest.raises(CorruptionError, match="kind='snapshot'"):
        read_commit(store, 6)


def test_a_commit_of_a_newer_format_is_refused(store):
    """With the remedy."""
    data = encode_commit(commit_six(store)).replace(b'"format":1', b'"format":2')
    store.put(PATH, data)
    with pytest.raises(UnsupportedFormatError, match="upgrade clog"):
        read_commit(store, 6)


def test_a_missing_commit_is_not_found(store):
    """Not there yet, or no longer: the caller knows."""
    with pytest.raises(FileNotFoundError):
        read_commit(store, 6)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "commits/../../x"])
def test_an_edit_elsewhere_is_corruption(store, path):
    """FORMAT.md §1: no path leaves the root."""
    sound = decode("commit", encode_commit(commit_six(store)), where="x")
    sound["edit_at"] = {"path": path, "bytes": 9}
    store.put(PATH, encode("commit", sound))
    with pytest.raises(CorruptionError, match="not a path in the log's folder"):
        read_commit(store, 6)


def test_an_edit_document_that_was_cut_is_corruption(store, monkeypatch):
    """Its envelope shows it, whatever `bytes` says."""
    monkeypatch.setattr(commits, "INLINE_EDIT_BYTES_MAX", 0)
    record = EditRecord(1, "c" * 32, 1, "x", stored_edit(store, Edit(start={0: 1}), commit_id="c"))
    path = record.stored["edit_at"]["path"]
    whole = store.get(path)
    for data in (whole[:-1], whole + b" "):
        store.put(path, data)
        with pytest.raises(CorruptionError):
            edit_of(store, record)


@pytest.mark.parametrize(
    ("version", "snapshot", "first"),
    [
        *((0, -1, 0), (1, -1, 1), (2, -1, 1), (3, -1, 3), (4, -1, 0), (6, -1, 5), (8, -1, 0)),
        *((8, 3, 4), (8, 7, 8), (12, 7, 8), (10, 7, 9), (11, 7, 11), (1024, 1019, 1020)),
    ],
)
def test_what_a_commit_carries(version, snapshot, first):
    """FORMAT.md §3.1: all since the snapshot, the one before, or none."""
    assert carried_from(version, snapshot_version=snapshot) == first
