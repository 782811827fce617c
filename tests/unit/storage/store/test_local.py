"""Local files: what failing system calls do to the axioms."""

import errno
import mmap
import os
import pickle
import stat
from types import SimpleNamespace

import numpy as np
import pytest

from clog.storage import InvalidInputError, Log, StoreUnavailableError
from clog.storage.administration import delete_log
from clog.storage.objects.records import to_records
from clog.storage.store import open_store
from clog.storage.store.contract import ObjectExistsError, StoreRefusedError
from clog_testing.model import rows_in


@pytest.fixture
def store(tmp_path):
    return open_store(f"{tmp_path}/log")


def fails_with(code):
    def call(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    return call


def test_a_lost_reply_to_a_link_is_a_success(store, monkeypatch):
    """NFS repeats the request and reports clog's own link: the link count shows it."""
    link = os.link

    def twice(*names, **folders):
        link(*names, **folders)
        link(*names, **folders)

    monkeypatch.setattr(os, "link", twice)
    store.create("object", b"1")
    assert store.get("object") == b"1"
    with pytest.raises(ObjectExistsError):
        store.create("object", b"2")
    assert list(store.list_temporary("")) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", ["write", "fsync", "replace", "link"])
def test_a_failing_disk_is_unavailable_and_leaves_nothing(store, monkeypatch, call, code):
    """Neither an object, whole or in part, nor a temporary file."""
    monkeypatch.setattr(os, call, fails_with(code))
    for write in (store.put, store.create):
        if (call, write) in (("replace", store.create), ("link", store.put)):
            continue
        with pytest.raises(
            StoreUnavailableError, match=r"retry later|free some MB on its"
        ) as raised:
            write("folder/object", b"1")
        assert not isinstance(raised.value, StoreRefusedError)
    monkeypatch.undo()
    assert list(store.list("")) == []
    assert list(store.list_temporary("")) == []


def test_a_file_larger_than_the_limit_of_the_process_is_refused(store, monkeypatch):
    """Trying again would not help; the message names the limit (RLIMIT_FSIZE), nothing is left."""
    monkeypatch.setattr(os, "write", fails_with(errno.EFBIG))
    for write in (store.put, store.create):
        with pytest.raises(StoreRefusedError, match=r"ulimit -f.*lower object\.bytes") as raised:
            write("object", b"1")
        assert raised.value.certain
    assert list(store.list_temporary("")) == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_denied_permission_is_refused(store, monkeypatch, code):
    """Nothing was written, and repeating would not help."""
    monkeypatch.setattr(os, "open", fails_with(code))
    for operation in (
        lambda: store.get("object"),
        lambda: store.put("object", b"1"),
        lambda: store.create("object", b"1"),
    ):
        with pytest.raises(StoreRefusedError, match="check the owner and mode") as raised:
            operation()
    assert raised.value.certain  # of the create
    assert pickle.loads(pickle.dumps(raised.value)).certain


def fails_on_folders(monkeypatch, code):
    """fsync of files works, that of folders does not."""
    fsync = os.fsync

    def call(fd):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", call)


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EROFS])
def test_a_folder_that_is_not_synced_hides_nothing(store, monkeypatch, code):
    """The name is there already, whatever the error says: no write claims that it is not."""
    store.put("a", b"")
    fails_on_folders(monkeypatch, code)
    for path, write in (("b", store.put), ("c", store.create)):
        with pytest.raises(StoreUnavailableError) as raised:
            write(path, b"1")
        assert not getattr(raised.value, "certain", False)
        assert store.get(path) == b"1"


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EROFS])
def test_a_commit_in_a_folder_that_is_not_synced_is_there_once(tmp_path, monkeypatch, code):
    """Others see it, so it counts; the caller does not get an error that it may be repeated."""
    log = Log.create(f"{tmp_path}/log")
    objects = log.object_writer()
    records, _ = to_records([{"key": "a", "value": "1"}], now_us=0)
    objects.add(records, np.zeros(1, np.int32))
    written = objects.finish()
    fails_on_folders(monkeypatch, code)
    assert log.append_objects(written).version == 1
    assert len(rows_in(log.read())) == 1


def test_a_listing_looks_into_no_folder_without_matches(store, monkeypatch):
    """The cleaner asks for single files in the folder that has all the data, in each round."""
    for path in ("data/a", "reserve", "reserved/b"):
        store.put(path, b"1")
    looked, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: looked.append(path) or scandir(path))
    assert [found.path for found in store.list("reserve")] == ["reserve", "reserved/b"]
    assert len(looked) == 2
    assert [found.path for found in store.list("data/")] == ["data/a"]


def test_a_file_in_the_way_is_refused(store):
    """Repeating would not help, and nothing can have been written."""
    store.put("file", b"1")
    for write in (store.put, store.create):
        with pytest.raises(StoreRefusedError, match="a file has the name of a folder"):
            write("file/object", b"1")


def test_a_log_whose_url_is_a_file_is_told_by_its_url(tmp_path):
    """What a creation writes first, and where, is nothing to its caller."""
    (tmp_path / "file").touch()
    told = f"^a file has the name of a folder of {tmp_path}/file "
    with pytest.raises(StoreRefusedError, match=told):
        Log.create(tmp_path / "file")


@pytest.mark.parametrize("place", ["_clog", "_clog/inner", "below/../_clog"])
def test_no_log_is_created_among_the_files_of_another(tmp_path, place):
    """It would be deleted with them. Below the other's URL it may stand, as captured tables do."""
    outer = Log.create(tmp_path / "outer", 1)
    with pytest.raises(InvalidInputError, match="outside of it; nothing was created"):
        Log.create(f"{tmp_path}/outer/{place}")
    inner = Log.create(tmp_path / "outer" / "below", 1)
    inner.append([{"key": "a", "value": "1"}])
    delete_log(outer.handle.standing.root)
    assert len(rows_in(Log.open(inner.url).read())) == 1


def test_writes_are_on_disk_when_they_return(store, monkeypatch):
    """First the file, then the folder with its name: A1 holds after a power failure too."""
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
    """A storage option, with which a power failure may cost the newest commits."""
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

    def killed(*args, **folders):
        raise KilledError

    monkeypatch.setattr(os, "link", killed)
    monkeypatch.setattr(os, "unlink", killed)
    with pytest.raises(KilledError):
        store.create("a/object", b"1")
    monkeypatch.undo()
    assert list(store.list("")) == []
    (left,) = store.list_temporary("")
    assert left.path.startswith("a/.object.")
    store.delete(left.path)
    assert list(store.list_temporary("")) == []
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
    """The path is the object's, the location is the log's URL."""
    monkeypatch.setattr(os, "link", fails_with(errno.EIO))
    with pytest.raises(StoreUnavailableError) as raised:
        store.create("a/object", b"1")
    assert str(raised.value) == (
        f"create of 'a/object' in {store.url} failed: OSError: Input/output error; retry later"
    )


def test_links_that_lead_in_circles(tmp_path):
    """A listing ends, and enters no folder through a link; a read of such a name is refused."""
    store = open_store(str(tmp_path))
    store.put("data/x.parquet", b"1")
    (tmp_path / "data" / "again").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "self").symlink_to("self")
    (tmp_path / "data" / "nothing").symlink_to("nowhere")
    assert [found.path for found in store.list("")] == ["data/x.parquet"]
    with pytest.raises(StoreRefusedError, match=r"'data/self' in .* is a symbolic link"):
        store.get("data/self")


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_no_call_follows_a_link_below_the_root(tmp_path, depth):
    """Whichever folder of an object's path, or the object itself, is a link to another log's: each
    call is refused, and the other log stays as it is; the root itself may be a link.
    """
    other = open_store(f"{tmp_path}/other")
    other.put("_clog/data/object", b"theirs")
    (tmp_path / "log").mkdir()
    (tmp_path / "root").symlink_to("log")
    store = open_store(f"{tmp_path}/root")
    parts = ["_clog", "data", "object"]
    link = "/".join(parts[: depth + 1])
    (tmp_path / "log" / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "log" / link).symlink_to(tmp_path / "other" / link)
    path = "/".join(parts)
    calls = [
        lambda: store.get(path),
        lambda: store.get_ranges(path, [(0, 1)]),
        lambda: store.put(path, b"ours"),
        lambda: store.create(path, b"ours"),
        lambda: store.create(f"{path}s", b"ours"),
        lambda: store.delete(path),
        lambda: list(store.list("_clog/data/")),
        lambda: list(store.list_temporary("_clog/data/")),
    ]
    if depth == 2:  # The link itself is replaced, or deleted; it may be listed beside others.
        for call in calls[:2]:
            with pytest.raises(StoreRefusedError, match="symbolic link"):
                call()
        with pytest.raises(ObjectExistsError):
            calls[3]()
        assert list(store.list("_clog/data/")) == []
        store.put(path, b"ours")
        assert store.get(path) == b"ours"
    else:
        for call in calls:
            with pytest.raises(StoreRefusedError, match=f"'{link}' in .* is a symbolic link"):
                call()
        assert list(store.list("")) == []
    assert [found.path for found in other.list("")] == [path]
    assert other.get(path) == b"theirs"


@pytest.mark.parametrize("below", ["", "/logs/log"])
def test_a_root_that_is_a_link_to_nothing_is_told(tmp_path, below):
    """No retry helps where the folder is missing to which the root, or one above it, leads."""
    (tmp_path / "root").symlink_to("nowhere")
    with pytest.raises(StoreRefusedError, match="root is a symbolic link to a folder that does"):
        open_store(f"{tmp_path}/root{below}").put("data/a", b"")
    (tmp_path / "nowhere").mkdir()
    open_store(f"{tmp_path}/root{below}").put("data/a", b"")


def test_a_folder_that_turns_into_a_link_between_two_calls_of_the_system(tmp_path, monkeypatch):
    """What is checked is what is used: an object is written into the folder that was opened."""
    store = open_store(f"{tmp_path}/log")
    store.put("data/a", b"")
    (tmp_path / "other").mkdir()
    link = os.link

    def turned(*names, **folders):
        (tmp_path / "log/data").rename(tmp_path / "log/old")
        (tmp_path / "log/data").symlink_to(tmp_path / "other")
        link(*names, **folders)

    monkeypatch.setattr(os, "link", turned)
    store.create("data/object", b"1")
    assert list((tmp_path / "other").iterdir()) == []
    assert sorted(path.name for path in (tmp_path / "log/old").iterdir()) == ["a", "object"]


def test_a_pipe_in_the_place_of_an_object(store, tmp_path):
    """Nothing waits for a writer that does not come: a clog error, though one may write to it
    later.
    """
    (tmp_path / "log").mkdir()
    os.mkfifo(tmp_path / "log" / "pipe")
    for read in (lambda: store.get("pipe"), lambda: store.get_ranges("pipe", [(0, 1)])):
        with pytest.raises(StoreUnavailableError, match="not a regular file"):
            read()


@pytest.mark.parametrize("advises", [True, False])
def test_a_large_read_returns_what_the_file_has(store, monkeypatch, advises):
    """A1: from 4 MiB on bytes are filled in place, by as many calls as the system needs, with large
    pages or without, also where a system has no ``preadv`` (macOS before 11); a file that ends
    early gives what it has.
    """
    readv = os.readv
    calls = []

    def some(fd, views):
        calls.append(fd)
        return readv(fd, [views[0][: 3 << 20]])

    monkeypatch.setattr(os, "readv", some)
    monkeypatch.delattr(os, "preadv", raising=False)
    if not advises:
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    data = np.random.default_rng(1).bytes((9 << 20) + 5)
    store.put("object", data)
    assert store.get("object") == data
    assert len(calls) == 5
    assert store.get("object", 1) == data[1:]
    assert store.get("object", 3, (8 << 20) + 1) == data[3 : (8 << 20) + 1]
    parts = store.get_ranges("object", [(0, 10), (7, len(data) + 10)])
    assert parts == [data[:10], data[7:]]
    assert hash(parts[1]) == hash(data[7:])
    monkeypatch.setattr(
        os, "fstat", lambda fd: SimpleNamespace(st_mode=stat.S_IFREG, st_size=1 << 25)
    )
    assert store.get("object") == data


def test_a_large_read_without_memory_raises(store, monkeypatch):
    """There is no memory for the bytes: an error that callers know, not a dead process."""
    store.put("object", b"1")
    huge = SimpleNamespace(st_mode=stat.S_IFREG, st_size=1 << 62)
    monkeypatch.setattr(os, "fstat", lambda fd: huge)
    with pytest.raises(MemoryError):
        store.get("object")
