"""`deletion`: its two steps, and what a crash between them leaves."""

import pytest

from clog.storage import Log, NotFoundError
from clog.storage.administration import delete_log, doomed, is_creation
from clog.storage.format import documents
from clog.storage.store.opening import folder_exists, remove_empty_folders
from clog_testing.crash import crash_runs, memory_store
from clog_testing.published import delta_versions


def fill(root):
    log = Log.create(root, partitions=1)
    for i in range(5):
        log.append([{"key": f"k{i}", "value": "v"}])


def test_a_deletion_is_finished_after_any_crash():
    """D1 is first: the rest is a complete log, or files of no log, and the next run deletes them
    (COMMIT.md §1).
    """
    runs = list(crash_runs(fill, delete_log))
    assert len(runs) > 20
    for run in runs:
        names = {found.path for found in run.store.list("")}
        if documents.LOG_FILE in names:
            assert len(list(Log.open(run.store).read())) == 5, str(run)
        else:
            with pytest.raises(NotFoundError):
                Log.open(run.store)
        try:
            delete_log(run.store)
        except NotFoundError:
            assert not _held(names), str(run)
        assert not _held({found.path for found in run.store.list("")}), str(run)


def _held(names):
    """The files of logs that were more than a creation: in these runs there is one log."""
    inside = {name.removeprefix("_clog/").partition("/")[2] for name in names}
    return set() if is_creation(inside - {""}) else inside


def test_a_log_that_is_being_created_is_left_alone():
    """A first commit without `_clog/log`: its creator may be about to create it."""
    store = memory_store()
    Log.create(store, partitions=1)
    store.delete(documents.LOG_FILE)
    before = {found.path for found in store.list("")}
    with pytest.raises(NotFoundError):
        doomed(store)
    with pytest.raises(NotFoundError):
        delete_log(store)
    assert {found.path for found in store.list("")} == before


def test_a_log_beside_the_rest_of_an_older_one_is_deleted_alone():
    """The older one's files are not part of it (S47)."""
    store = memory_store()
    fill(store)
    older = doomed(store)
    store.delete(documents.LOG_FILE)
    fill(store)
    assert delete_log(store).log_id != older.log_id
    left = {found.path for found in store.list("")}
    assert left == {file.path for file in older.files}
    assert delete_log(store).log_id is None
    assert not list(store.list(""))


def test_empty_folders_go_and_others_stay(tmp_path):
    """Neither files nor the targets of links are touched."""
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/kept").mkdir()
    (tmp_path / "a/kept/file").write_text("x")
    (tmp_path / "outside/empty").mkdir(parents=True)
    (tmp_path / "a/link").symlink_to(tmp_path / "outside")
    url = str(tmp_path / "a")
    assert folder_exists(url)
    remove_empty_folders(url)
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["kept", "link"]
    assert (tmp_path / "outside/empty").is_dir()
    remove_empty_folders(f"file://{tmp_path}/outside", {"fsync": False})
    assert not folder_exists(str(tmp_path / "outside"))
    remove_empty_folders(str(tmp_path / "outside"))


def publish(root):
    pytest.importorskip("pyroaring")
    pytest.importorskip("fastavro")
    fill(root)
    log = Log.open(root)
    for name in ("delta", "iceberg"):
        log.publish(name)
        log.append([{"key": name, "value": "v"}])
        log.publish(name)


def _views(store):
    names = {found.path for found in store.list("")}
    return {name for name in names if name.startswith(("_delta_log/", "metadata/"))}


def test_published_views_go_with_the_log_after_any_crash():
    """Their rows are the log's: a table of missing objects is useless (D2)."""
    runs = list(crash_runs(publish, delete_log))
    assert len(runs) > 60
    for run in runs:
        if documents.LOG_FILE in {found.path for found in run.store.list("")}:
            assert len(delta_versions(run.store)) == 2, str(run)
        try:
            delete_log(run.store)
        except NotFoundError:
            pass
        assert not _views(run.store), str(run)


def test_views_that_a_deleted_log_has_left_are_deleted():
    """Even if nothing of the log is left, or another log is there by now."""
    for again in (False, True):
        store = memory_store()
        publish(store)
        views = {name: store.get(name) for name in _views(store)}
        delete_log(store)
        for name, body in views.items():
            store.put(name, body)
        if again:
            fill(store)
        found = delete_log(store)
        assert (found.log_id is not None) == again
        assert not list(store.list(""))


def test_tables_of_others_stay():
    """Those whose newest version is not clog's, and files that others put beside versions
    of ours.
    """
    store = memory_store()
    publish(store)
    theirs = {
        "_delta_log/00000000000000000000.crc": b"{}",
        "metadata/00001-aaaa.metadata.json": b"{}",
        "metadata/notes.txt": b"mine",
    }
    for name, body in theirs.items():
        store.put(name, body)
    delete_log(store)
    assert _views(store) == set(theirs)
    fill(store)
    others = (b"no json", b"[]", b'{"commitInfo":{"operationParameters":{"log":"x"}}}', b"{}")
    for body in others:
        store.put("_delta_log/00000000000000000007.json", body)
        store.put("metadata/v7.metadata.json", body)
        before = _views(store)
        assert not [file for file in doomed(store).files if file.path in before]


def test_a_view_of_a_log_that_is_created_meanwhile_stays():
    """A process that creates and publishes between D1 and D2 loses nothing (S47)."""
    store = memory_store()
    publish(store)

    class CreatesMeanwhile:
        def __getattr__(self, name):
            return getattr(store, name)

        def delete(self, path):
            store.delete(path)
            if path == documents.LOG_FILE:
                fill(store)
                Log.open(store).publish("delta")
                Log.open(store).publish("iceberg")

    delete_log(CreatesMeanwhile())
    log = Log.open(store)
    assert not log.publish("delta").published
    assert not log.publish("iceberg").published


@pytest.mark.parametrize("ask", [Log.describe, lambda log: [*log.history()]])
@pytest.mark.parametrize("is_opened", [False, True])
@pytest.mark.parametrize("appends", [0, 1, 3])
def test_what_a_deleted_log_is_described_as_is_gone(appends, is_opened, ask):
    """S47: even if everything to be returned is already known, as at its first versions."""
    store = memory_store()
    log = Log.create(store, partitions=1)
    for _ in range(appends):
        log.append([{"key": "k", "value": "v"}])
    if is_opened:
        log = Log.open(store)
        log.describe()
    delete_log(store)
    with pytest.raises(NotFoundError, match="no log at"):
        ask(log)
