"""Local files: what the system calls do to the axioms when they fail."""

import errno
import os
import stat

import pytest

from clog.storage import InvalidInputError, StoreUnavailableError
from clog.storage.store import open_store
from clog.storage.store.base import ObjectExistsError, StoreRefusedError


@pytest.fixture
def store(tmp_path):
    return open_store(f"{tmp_path}/log")


def fails_with(code):
    def call(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    return call


def test_a_lost_reply_to_a_link_is_a_success(store, monkeypatch):
    """NFS repeats the request and reports our own link: the count of links tells."""
    link = os.link

    def twice(source, target):
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    store.create("object", b"1")
    assert store.get("object") == b"1"
    with pytest.raises(ObjectExistsError):
        store.create("object", b"2")
    assert list(store.list_temporary()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", ["write", "fsync", "replace", "link"])
def test_a_failing_disk_is_unavailable_and_leaves_nothing(store, monkeypatch, call, code):
    """Neither an object, whole or in part, nor a temporary file."""
    monkeypatch.setattr(os, call, fails_with(code))
    for write in (store.put, store.create):
        if (call, write) in (("replace", store.create), ("link", store.put)):
            continue
        with pytest.raises(StoreUnavailableError, match="retry later") as raised:
            write("folder/object", b"1")
        assert not isinstance(raised.value, StoreRefusedError)
    monkeypatch.undo()
    assert list(store.list("")) == []
    assert list(store.list_temporary()) == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_denied_permission_is_refused(store, monkeypatch, code):
    """Nothing was written, and repeating would not help."""
    monkeypatch.setattr(os, "open", fails_with(code))
    for operation in (
        lambda: store.get("object"),
        lambda: store.put("object", b"1"),
        lambda: store.create("object", b"1"),
    ):
        with pytest.raises(StoreRefusedError, match="check the owner and mode"):
            operation()


def test_a_file_in_the_way_is_refused(store):
    """Repeating would not help, and nothing can have been written."""
    store.put("file", b"1")
    for write in (store.put, store.create):
        with pytest.raises(StoreRefusedError, match="a file is in the way"):
            write("file/object", b"1")


def test_writes_are_on_disk_when_they_return(store, monkeypatch):
    """First the file, then the folder with its name: A1 also where the power fails."""
    synced = []
    fsync = os.fsync

    def record(fd):
        synced.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        fsync(fd)

    store.put("a", b"")
    monkeypatch.setattr(os, "fsync", record)
    store.put("a", b"1")
    store.create("b", b"1")
    assert synced == ["file", "folder"] * 2
    store.create("new/folder/c", b"1")  # new: into the root; folder: into new
    assert synced[4:] == ["folder", "folder", "file", "folder"]


def test_fsync_can_be_left_out(tmp_path, monkeypatch):
    """A storage option, where a power failure may cost the newest commits."""
    monkeypatch.setattr(os, "fsync", fails_with(errno.EIO))
    store = open_store(f"{tmp_path}/log", {"fsync": False})
    store.create("a/b", b"1")
    store.put("a/c", b"1")
    with pytest.raises(InvalidInputError, match="fsync is a str; allowed: true or false"):
        open_store(f"{tmp_path}/log", {"fsync": "no"})


def test_a_killed_writer_leaves_a_temporary_file_only(store, monkeypatch):
    """No object shows, and the listing of temporary files finds it for the sweep."""

    class KilledError(BaseException):
        pass

    def killed(*args):
        raise KilledError

    monkeypatch.setattr(os, "link", killed)
    monkeypatch.setattr(os, "unlink", killed)
    with pytest.raises(KilledError):
        store.create("a/object", b"1")
    monkeypatch.undo()
    assert list(store.list("")) == []
    (left,) = store.list_temporary()
    assert left.path.startswith("a/.object.")
    store.delete(left.path)
    assert list(store.list_temporary()) == []
    store.create("a/object", b"2")


def test_a_root_below_a_file_is_empty_and_cannot_be_written(tmp_path):
    """As an object of an object store has nothing below it."""
    (tmp_path / "file").write_bytes(b"1")
    store = open_store(f"{tmp_path}/file/log")
    with pytest.raises(FileNotFoundError):
        store.get("object")
    assert list(store.list("")) == []
    with pytest.raises(StoreUnavailableError):
        store.create("object", b"1")


def test_messages_do_not_name_temporary_files(store, monkeypatch):
    """The path is the object's, the place is the log's URL."""
    monkeypatch.setattr(os, "link", fails_with(errno.EIO))
    with pytest.raises(StoreUnavailableError) as raised:
        store.create("a/object", b"1")
    assert str(raised.value) == (
        f"create of 'a/object' in {store.url} failed: OSError: Input/output error; retry later"
    )
