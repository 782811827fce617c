"""What other processes on the host do to the local file of a table or a store while it is open."""

import fcntl
import os
import shutil
import subprocess
import sys

import pytest
import xxhash

from clog.state import local_file
from clog.state import table as generations
from clog.state.cache import Cache
from clog.state.local_file import LocalFile
from clog.storage import Log, StateFileError, StateStore, StateTable

ANOTHER = "import sys; from clog.storage import StateTable; StateTable(*sys.argv[1:]).close()"


@pytest.fixture
def on_disk(tmp_path):
    """A log that other processes can open, and the folder of their state."""
    return Log.create(str(tmp_path / "log"), partitions=2), tmp_path / "cache"


def put(log, **values):
    log.append([{"key": key, "value": value} for key, value in values.items()])


def test_another_process_closes_the_file(on_disk):
    """The other processes continue with it."""
    log, folder = on_disk
    put(log, a="1", b="1")
    with StateTable(log.url, folder) as table:
        put(log, a="2")
        subprocess.run([sys.executable, "-c", ANOTHER, log.url, str(folder)], check=True)
        assert table.get("a") == b"2"
        put(log, a="3", b=None)
        table.refresh()
        assert dict(table.scan()) == {b"a": b"3"}
        assert (table.get("a"), table.get("b")) == (b"3", None)


def delete_file(folder):
    for path in folder.glob("*.state*"):
        path.unlink()


def rename_folder(folder):
    folder.rename(folder.with_name("old"))


def build_another(folder):
    """As another process that finds nothing there does; its file has the same number."""
    shutil.rmtree(folder)
    log = Log.open(str(folder.parent / "log"))
    StateTable(log.url, folder).close()


def put_older_back(folder):
    """As when a backup is restored."""
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("copy"), folder)


GOES = [delete_file, shutil.rmtree, rename_folder, build_another, put_older_back]


@pytest.mark.parametrize("go", GOES)
def test_a_file_that_goes_under_a_store(on_disk, go):
    """What is committed is in the file that is there now, whatever waited for the removed one;
    nobody writes to a file without a name.
    """
    log, folder = on_disk
    StateTable(log.url, folder).close()
    shutil.copytree(folder, folder.with_name("copy"))
    right = {}
    with StateStore(log.url, folder, "app") as s:
        for n in range(6):
            for i in range(n, 40):
                right[f"{i:03}".encode()] = b"%d" % n
                s.put(f"{i:03}", f"{n}")
            s.commit()
            if n == 2:
                go(folder)
                assert s.get_many(right) == right
            if n == 4:
                s._file.settle()
            assert dict(s.scan()) == s.get_many(right) == right
    file = LocalFile(max(folder.glob("*.state")))
    assert {key: value for key, _, _, value in file.rows(file.shown())} == right


@pytest.mark.parametrize("go", GOES)
def test_a_file_that_goes_under_a_table(on_disk, go):
    """The next refresh or scan notices it, even if the log has nothing new."""
    log, folder = on_disk
    StateTable(log.url, folder).close()
    shutil.copytree(folder, folder.with_name("copy"))
    put(log, a="1", b="1")
    with StateTable(log.url, folder) as table:
        go(folder)
        assert table.get("a") == b"1"
        assert dict(table.scan()) == {b"a": b"1", b"b": b"1"}
        put(log, a="2", b=None)
        go(folder) if go is not rename_folder else shutil.rmtree(folder)
        table.refresh()
        assert (table.get("a"), table.get("b"), len(table)) == (b"2", None, 1)
        go(folder) if go is not rename_folder else shutil.rmtree(folder)
        table.refresh()
        assert table._file._cache.is_in_place()


def test_a_file_that_goes_while_it_is_written(on_disk, monkeypatch):
    """It is reported before anything is entered into another table's file."""
    log, folder = on_disk
    put(log, a="1")
    with StateTable(log.url, folder) as table:
        put(log, a="2")
        apply = Cache._apply

        def amid(*arguments):
            monkeypatch.setattr(Cache, "_apply", apply)
            build_another(folder)
            apply(*arguments)

        monkeypatch.setattr(Cache, "_apply", amid)
        table.refresh()
        assert dict(table.scan()) == {b"a": b"2"}
        assert table._file._cache.is_in_place()


def test_a_lock_that_was_deleted_is_no_lock(on_disk):
    """Whoever waited for it uses the file that others find."""
    _, folder = on_disk
    folder.mkdir()
    opened = []

    class Deleted(generations._LockFile):
        def __init__(self, path, mode, **options):
            super().__init__(path, mode, **options)
            opened.append(self)
            if len(opened) == 1:
                path.unlink()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generations, "_LockFile", Deleted)
        with generations.locked(folder, "name", "url"):
            held = (folder / "name.lock").stat()
    assert [file.closed for file in opened] == [True, True]
    assert len(opened) == 2
    assert held.st_ino == (folder / "name.lock").stat().st_ino


def test_a_child_forked_in_the_midst_of_a_refresh_locks_nobody_out(on_disk, monkeypatch):
    """However long it lives, it has no thread that would unlock the folder."""
    log, folder = on_disk
    put(log, a="1")
    footer, begun, ended = local_file._append_footer, os.pipe(), os.pipe()
    children = []

    def forked(*arguments):
        if not (child := os.fork()):
            os.close(ended[1])
            os.write(begun[1], b"1")
            os.read(ended[0], 1)  # Until its parent has closed the other end.
            os._exit(0)
        children.append(child)
        os.read(begun[0], 1)
        return footer(*arguments)

    try:
        with StateTable(log.url, folder) as table:
            put(log, a="2")
            with monkeypatch.context() as patch:
                patch.setattr(local_file, "_append_footer", forked)
                table.refresh()
            with next(folder.glob("*.lock")).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            put(log, a="3")
            table.refresh()
            assert table.get("a") == b"3"
    finally:
        os.close(ended[1])
        for child in children:
            os.waitpid(child, 0)
        for end in (*begun, ended[0]):
            os.close(end)


def test_what_a_killed_process_was_building_goes(on_disk):
    """As soon as another process opens the state or follows the log: the old file may be just as
    large.
    """
    log, folder = on_disk
    put(log, a="1")
    with StateTable(log.url, folder) as table:
        for go in (lambda: StateTable(log.url, folder).close(), table.refresh):
            left = max(folder.glob("*.state")).with_suffix("").with_suffix(".building")
            left.write_bytes(bytes(1_000))
            put(log, a="2")
            go()
            assert not left.exists()


def test_no_room_where_a_file_is_synced(on_disk, monkeypatch, no_room):
    """What was built so far does not stay on the full disk."""
    log, folder = on_disk
    put(log, a="1")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(StateFileError, match="free space there"):
            StateTable(log.url, folder)
    assert {path.suffix for path in folder.iterdir()} == {".lock"}
    with StateTable(log.url, folder) as table:
        assert table.get("a") == b"1"


@pytest.mark.parametrize("wrong", ["a file", "below a file", "no folder"])
def test_a_folder_that_cannot_be(on_disk, wrong):
    """It is reported in the user's terms."""
    log, folder = on_disk
    folder.write_text("")
    folder = {"a file": folder, "below a file": folder / "x", "no folder": "/proc/nowhere"}[wrong]
    with pytest.raises(StateFileError, match="make sure that this process may write there"):
        StateTable(log.url, folder)


def test_a_file_that_goes_while_it_is_built(on_disk, monkeypatch):
    """What another process builds in its place does not become part of this one's file."""
    log, folder = on_disk
    put(log, a="1")
    footer = local_file._append_footer

    def deleted(*arguments):
        monkeypatch.setattr(local_file, "_append_footer", footer)
        shutil.rmtree(folder)
        folder.mkdir()
        (folder / f"{name}.building").write_text("another's")
        return footer(*arguments)

    monkeypatch.setattr(local_file, "_append_footer", deleted)
    name = xxhash.xxh3_64_hexdigest(log.url.encode())
    with pytest.raises(StateFileError, match=r"deleted while it was being.*nothing else deletes"):
        StateTable(log.url, folder)
    assert list(folder.glob("*.state")) == []
    with StateTable(log.url, folder) as table:
        assert dict(table.scan()) == {b"a": b"1"}
