"""A log is its id, not its path (S47): an old handle never touches a log that was created in its
place, and raises an error of its own.
"""

import shutil
from collections import Counter

import numpy as np
import pytest

from clog.cleaner import Cleaner
from clog.storage import (
    CommitStateUnknownError,
    CorruptionError,
    Log,
    LogReplacedError,
    ManualClock,
    NotFoundError,
    UnsupportedFormatError,
)
from clog.storage.commit.committer import CREATES_MAX
from clog.storage.commit.tip import CONFIRM_MS, read_log_file
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.objects.records import to_records
from clog.storage.store.contract import WrappingStore
from clog_testing.counting import CountingStore
from clog_testing.crash import contents, copy_of, discard, inside, memory_store
from clog_testing.faults import CrashedError, Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log
from clog_testing.model import rows_in

ONE = [{"key": "a", "value": "1"}]


def made(store, clock, seed, records=()):
    log = Log.create(store, partitions=1, clock=clock, ids=SeededIds(seed))
    for record in records:
        log.append([record])
    return log


def values(log):
    return [row[2].value for row in rows_in(log.read())]


@pytest.fixture
def recreated(store, clock):
    """A handle on a log of five records that was deleted, and the log of two created in
    its place.
    """
    old = made(store, clock, 1, [{"key": f"k{i}", "value": "old"} for i in range(5)])
    discard(store)
    new = made(store, clock, 2, [{"key": f"n{i}", "value": "new"} for i in range(2)])
    return old, new


def test_the_file_that_makes_a_log(store, clock):
    """FORMAT.md §1: `_clog/log` names the id that all commits contain, and the folder."""
    log = made(store, clock, 1)
    found = read_log_file(store)
    assert found.log_id == log.handle.tip.head.log.log_id == log.handle.standing.log_id
    beside = {f.path for f in store.list("")} - {documents.LOG_FILE}
    assert beside
    assert all(path.startswith(f"_clog/{found.log_id}/") for path in beside)


@pytest.mark.parametrize(
    "act",
    [
        lambda log: log.append(ONE),
        lambda log: log.append(ONE, producer=("p", 1)),
        lambda log: log.roll(),
        lambda log: log.alter({"retention.ms": "5"}),
        lambda log: log.delete_records({0: -1}),
    ],
)
def test_a_commit_of_an_old_handle(recreated, store, act):
    """It is refused at once, and the new log contains what its own writers put there,
    nothing else.
    """
    old, new = recreated
    before = contents(inside(store))
    with pytest.raises(LogReplacedError, match="was deleted and recreated since it was opened"):
        act(old)
    assert contents(inside(store)) == before
    assert values(new) == [b"new", b"new"]
    assert [v.version for v in (new.append(ONE), new.append(ONE))] == [3, 4]
    check_log(store)


@pytest.mark.parametrize("records", range(9))
def test_the_first_commit_of_a_handle_that_was_opened_later(store, clock, records):
    """It may need older commits to prepare one, and those are gone: the error is the same."""
    made(store, clock, 1, ONE * records)
    old = Log.open(store, clock=clock, ids=SeededIds(3))
    discard(store)
    new = made(store, clock, 2)
    with pytest.raises(LogReplacedError, match="was deleted and recreated since it was opened"):
        old.append(ONE)
    assert values(new) == []


def test_a_read_that_misses_the_documents_of_an_old_log(recreated):
    """It does not say that a version expired: looking at the same log again would not help."""
    old, _ = recreated
    with pytest.raises(LogReplacedError, match="was deleted and recreated since it was opened"):
        old.read()


def test_an_old_handle_leaves_nothing_behind(recreated, store):
    """What it wrote into the folder of the deleted log it deletes again."""
    old, new = recreated
    with pytest.raises(LogReplacedError):
        old.append(ONE)
    mine = documents.folder_of(new.handle.standing.log_id) + "/"
    others = {f.path for f in store.list("")} - {documents.LOG_FILE}
    assert all(path.startswith(mine) for path in others)


class DeletingStore(WrappingStore):
    """A store whose log is deleted before each data object is put, which takes long."""

    clock = None

    def put(self, path, data):
        if "/data/" in path and self.clock is not None:
            discard(self.inner)
            self.clock.advance(CONFIRM_MS)
        self.inner.put(path, data)


@pytest.mark.parametrize("visible", [False, True], ids=["deferred", "visible"])
def test_a_transaction_leaves_nothing_in_a_deleted_log(store, clock, visible):
    """S47: like an append; what it wrote is in no log that anybody could delete."""
    made(store, clock, 1, ONE)
    deleting = DeletingStore(store)
    t = Log.open(deleting, clock=clock).transaction("t", visible=visible)

    def act():
        t.append(ONE)
        t.commit()

    deleting.clock = clock
    with pytest.raises(NotFoundError):
        act()
    assert not [found.path for found in store.list("")]


def test_an_erasure_leaves_nothing_in_a_deleted_log(store, clock):
    """S47, S59: its tombstones have the very keys that are to go."""
    made(store, clock, 1, ONE)
    deleting = DeletingStore(store)
    log = Log.open(deleting, clock=clock)
    deleting.clock = clock
    with pytest.raises(NotFoundError):
        log.erase(["a"])
    assert not [found.path for found in store.list("")]


def test_a_commit_of_a_handle_on_a_deleted_log(store, clock):
    """Nothing is there: no log is created on the way, nothing is left."""
    log = made(store, clock, 1, ONE)
    discard(store)
    with pytest.raises(NotFoundError, match="no log at") as raised:
        log.append(ONE)
    assert not isinstance(raised.value, LogReplacedError)
    assert list(store.list("")) == []


def test_a_handle_that_was_told_once_looks_no_further(recreated):
    """The next look asks which log is there, and does not wait for ten seconds."""
    old, _ = recreated
    for _ in range(2):
        with pytest.raises(LogReplacedError):
            old.append(ONE)
        with pytest.raises(LogReplacedError):
            _ = old.version


def test_a_poll_finds_out_within_ten_seconds(recreated, clock):
    """It sees nothing new until then; the window is stated in COMMIT.md §1."""
    old, _ = recreated
    assert old.end_offsets() == {0: 5}
    clock.advance(CONFIRM_MS)
    with pytest.raises(LogReplacedError):
        old.end_offsets()


def test_what_a_dead_handle_left_is_no_news(store, clock):
    """A process that dies after it created a commit in the folder of a deleted log leaves the file
    there; a follower of that log gets the error of the deletion within ten seconds all the same.
    """
    old = made(store, clock, 1, ONE)
    dying = Fault(FaultKind.CRASH_BEFORE, "get", "*/blocks/*")
    other = Log.open(FaultyStore(store, Faults(dying)), clock=clock)
    discard(store)
    made(store, clock, 2)
    with pytest.raises(CrashedError):
        other.append(ONE)
    clock.advance(CONFIRM_MS)
    with pytest.raises(LogReplacedError):
        old.end_offsets()


def test_a_retry_where_nobody_can_say_which_log_stands(store, clock):
    """The result is unknown, as the log may have been deleted after the commit, which others may
    have seen; what is left of it in the folder is not taken for its first result.
    """
    made(store, clock, 1, ONE)
    failing = Fault(FaultKind.FAIL_BEFORE, "get", documents.LOG_FILE, nth=2, times=CREATES_MAX)
    old = Log.open(FaultyStore(store, Faults(failing)), clock=clock)
    discard(store)
    new = made(store, clock, 2)
    with pytest.raises(CommitStateUnknownError, match="the outcome of commit 2 of"):
        old.append(ONE, producer=("p", 1))
    with pytest.raises(LogReplacedError):
        old.append(ONE, producer=("p", 1))
    assert values(new) == []


def test_which_log_stands_is_asked_patiently(store, clock):
    """K5: after a commit one failed request makes nothing unknown."""
    made(store, clock, 1, ONE)
    failing = Fault(FaultKind.FAIL_BEFORE, "get", documents.LOG_FILE, nth=2)
    old = Log.open(FaultyStore(store, Faults(failing)), clock=clock)
    discard(store)
    made(store, clock, 2)
    with pytest.raises(LogReplacedError):
        old.append(ONE)


def test_the_window_costs_two_requests(store, clock):
    """Two GETs every ten seconds without news, and none in between."""
    counting = CountingStore(store)
    log = made(counting, clock, 1, ONE)
    log.end_offsets()
    for gets in (1, 1):
        with counting.count() as counts:
            log.end_offsets()
        assert dict(counts) == {"get": gets}
    clock.advance(CONFIRM_MS)
    for gets in (3, 1):
        with counting.count() as counts:
            log.end_offsets()
        assert dict(counts) == {"get": gets}


def test_the_cleaner_of_an_old_handle(recreated, store, clock):
    """It seals, cleans and sweeps nothing of the new log."""
    old, new = recreated
    new.roll()
    before = contents(inside(store))
    clock.advance(100 * 86_400_000)
    with pytest.raises(LogReplacedError):
        Cleaner(old, clock=clock).run_once(force=True)
    assert contents(inside(store)) == before


def test_creators_race(store, clock):
    """Whoever creates `_clog/log` made the log; the other's folder is empty afterwards."""
    first = made(store, clock, 1)
    with pytest.raises(FileExistsError, match="already exists"):
        made(store, clock, 2)
    assert read_log_file(store).log_id == first.handle.standing.log_id


def test_a_creator_that_is_refused_after_a_request_without_a_reply(store, clock):
    """The refusal is of the later request: nobody knows whether the first one made the log."""
    plan = Faults(
        Fault(FaultKind.FAIL_BEFORE, "create", documents.LOG_FILE),
        Fault(FaultKind.REFUSE, "create", documents.LOG_FILE, nth=2, times=99),
    )
    with pytest.raises(CommitStateUnknownError, match="a log may have been created at"):
        made(FaultyStore(store, plan), clock, 1)


def test_an_old_handle_deletes_nothing_of_what_is_restored(store, clock):
    """COMMIT.md §1: the file that was faster than its commit may belong to the log that is being
    put back into the same folder.
    """
    made(store, clock, 1, ONE)
    faulty = FaultyStore(store)
    old = Log.open(faulty, clock=clock, ids=SeededIds(2))
    Log.open(store, clock=clock, ids=SeededIds(3)).append(ONE)
    store.delete(documents.LOG_FILE)
    restored = {found.path: store.get(found.path) for found in store.list("")}
    late = Fault(FaultKind.MEANWHILE, "create", run=lambda: clock.advance(CONFIRM_MS))
    faulty.plan = Faults(late)
    with pytest.raises(NotFoundError, match="no log at"):
        old.append(ONE)
    assert {found.path: store.get(found.path) for found in store.list("")} == restored


def test_a_log_restored_from_an_older_copy(store, clock):
    """A handle that knows a version which the copy lacks does not continue with it."""
    log = made(store, clock, 1, ONE * 2)
    backup = copy_of(store)
    for _ in range(3):
        log.append(ONE)
    discard(store)
    for found in backup.list(""):
        store.put(found.path, backup.get(found.path))
    discard(backup)
    clock.advance(CONFIRM_MS)
    for call in (log.end_offsets, lambda: log.append(ONE)):
        with pytest.raises(LogReplacedError, match="restored from a copy"):
            call()
    check_log(store)


def test_two_copies_that_both_go_on(store, clock):
    """A version of one is not followed by one of the other: their commits have other parents."""
    log = made(store, clock, 1, ONE)
    other = copy_of(store)
    log.append(ONE)
    twin = Log.open(other, clock=clock, ids=SeededIds(3))
    for _ in range(3):
        twin.append(ONE)
    for found in list(store.list("")):
        store.delete(found.path)
    for found in other.list(""):
        store.put(found.path, other.get(found.path))
    discard(other)
    with pytest.raises(LogReplacedError):
        log.end_offsets()


def test_a_log_without_commits(store, clock):
    """Deleted except for `_clog/log`: neither a log nor nothing, and the error says so."""
    made(store, clock, 1)
    folder = inside(store)
    for found in list(folder.list("")):
        folder.delete(found.path)
    with pytest.raises(NotFoundError, match="has no commits"):
        Log.open(store, clock=clock)


@pytest.mark.parametrize("path", ["_clog/commits/00000000000000000000.json", "_clog/latest"])
def test_a_log_of_before_is_refused(store, path):
    """One that was written before ids were in paths is distinguished from no log at all."""
    store.put(path, b"{}")
    for call in (lambda: Log.open(store), lambda: Log.create(store)):
        with pytest.raises(UnsupportedFormatError, match=r"a clog older than 0\.1\.0"):
            call()


def test_a_copied_folder_is_a_log(tmp_path):
    """S47: paths are relative; the copy continues on its own."""
    log = Log.create(str(tmp_path / "one"), partitions=1, clock=ManualClock(), ids=SeededIds(1))
    log.append(ONE)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    copy = Log.open(str(tmp_path / "other"), clock=ManualClock())
    copy.append(ONE)
    assert (copy.version, log.version) == (2, 1)


def test_no_log_in_memory_of_another(clock):
    """For a store without `_clog/log` the error says how to create one."""
    store = memory_store()
    with pytest.raises(NotFoundError, match="create one with"):
        Log.open(store, clock=clock)


def test_the_first_commit_of_a_block_of_a_deleted_log(store, clock, monkeypatch):
    """COMMIT.md, K5: its committer made the block's file, so the one of the block before decides;
    the committer deletes what it wrote.
    """
    monkeypatch.setattr(documents, "BLOCK_VERSIONS", 4)
    old = made(store, clock, 1, [{"key": f"k{i}", "value": "old"} for i in range(3)])
    discard(store)
    with pytest.raises(NotFoundError):
        old.append(ONE)
    assert list(store.list("")) == []


def only_log_file(store):
    """Deletes the folder of the log that is there."""
    folder = inside(store)
    for found in list(folder.list("")):
        folder.delete(found.path)


@pytest.mark.parametrize("act", [lambda log: log.append(ONE), lambda log: log.roll()])
def test_a_log_whose_folder_was_deleted(store, clock, act):
    """There is `_clog/log` and nothing else: a commit says so, and leaves nothing."""
    log = made(store, clock, 1, ONE)
    only_log_file(store)
    with pytest.raises(
        NotFoundError, match=r"has no commits: everything but _clog/log was deleted"
    ):
        act(log)
    assert [found.path for found in store.list("")] == [documents.LOG_FILE]
    clock.advance(CONFIRM_MS)
    with pytest.raises(NotFoundError, match="has no commits"):
        log.end_offsets()


def test_a_block_file_that_is_missing_is_damage(store, clock):
    """If the commits are there nobody can know what was committed, and nothing is deleted."""
    log = made(store, clock, 1, ONE)
    log.handle.store.delete(documents.block_path(0))
    with pytest.raises(CorruptionError, match="is missing, so it is unknown whether version 2"):
        log.append(ONE)
    assert log.handle.store.get(documents.commit_path(2))


class Seen(WrappingStore):
    """Remembers the names of what is written."""

    def __init__(self, inner):
        super().__init__(inner)
        self.names = []

    def put(self, path, data):
        self.names.append(path)
        self.inner.put(path, data)

    def create(self, path, data):
        self.names.append(path)
        self.inner.create(path, data)


def test_an_old_handle_leaves_no_document_behind(clock, monkeypatch):
    """An edit of its own, pages of segments and of writers, a snapshot, at any version: everything
    that it wrote is deleted, whenever it finds out.
    """
    monkeypatch.setattr("clog.storage.format.commits.INLINE_EDIT_BYTES_MAX", 10)
    monkeypatch.setattr("clog.storage.format.manifest.PAGE_CHUNKS_MIN", 1)
    monkeypatch.setattr("clog.storage.format.writers.WRITERS_MAX", 2)
    monkeypatch.setattr("clog.storage.format.columns.INLINE_PARTITIONS_MAX", 1)
    kinds = Counter()
    for before in range(3, 11):
        store = memory_store()
        seen = Seen(store)
        config = {"segment.chunks": 1}
        monkeypatch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 1 << 30)
        old = Log.create(seen, 8, config, clock=clock, ids=SeededIds(1))
        for i in range(before):
            old.append(ONE, producer=(f"p{i}", 1))
        old.append(ONE, producer=("last", 1))
        monkeypatch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 10)
        discard(store)
        new = made(store, clock, 2)
        seen.names.clear()
        with pytest.raises(LogReplacedError):
            old.append(ONE, producer=("q", 1))
        folder = documents.folder_of(new.handle.standing.log_id)
        left = [found.path for found in store.list("") if not found.path.startswith(folder)]
        assert left == [documents.LOG_FILE]
        kinds.update(name.split("/")[2] for name in seen.names)
        discard(store)
    assert kinds["data"] == 8
    assert {"edits", "pages", "snapshots", "commits"} <= set(kinds), kinds


def test_an_old_handle_leaves_no_positions_behind(store, clock, monkeypatch):
    """Those of a transaction, which its holder wrote before the commit."""
    monkeypatch.setattr("clog.storage.format.transactions.POSITIONS_BYTES_MAX", 1)
    log = made(store, clock, 1)
    with log.transaction("job") as t:
        t.append(ONE)
        t.positions(log, {0: 1})
    late = log.transaction("job")
    late.append(ONE)
    late.positions(log, {0: 2})
    discard(store)
    with pytest.raises(NotFoundError):
        late.commit()
    assert list(store.list("")) == []


def test_objects_that_no_try_came_to_name(store, clock):
    """The handle finds out before it prepares a commit: its objects are deleted too."""
    log = made(store, clock, 1, ONE)
    objects = objects_of(log)
    discard(store)
    new = made(store, clock, 2)
    path = objects[0].ref.path
    log.handle.store.put(path, b"late")
    clock.advance(CONFIRM_MS)
    with pytest.raises(LogReplacedError):
        log.append_objects(objects)
    assert values(new) == []
    with pytest.raises(FileNotFoundError):
        log.handle.store.get(path)


def objects_of(log):
    records, _ = to_records(ONE, now_us=0)
    writer = log.object_writer()
    writer.add(records, np.zeros(1, np.int32))
    return writer.finish()


def test_a_folder_where_the_file_that_makes_a_log_belongs(tmp_path):
    """Neither created nor read: the error says so, and does not advise creating it."""
    (tmp_path / "_clog" / "log").mkdir(parents=True)
    message = "can neither be created nor read; a folder may have"
    with pytest.raises(CommitStateUnknownError, match=message) as raised:
        Log.create(str(tmp_path), clock=ManualClock(), ids=SeededIds(1))
    assert "no log at" not in str(raised.value)


@pytest.mark.parametrize("settled", [False, True])
def test_a_twin_whose_rival_has_not_yet_learned(store, clock, settled):
    """What another handle commits to a deleted log, and is about to delete again, is not a first
    result, whether the twin has committed before or not.
    """
    log = made(store, clock, 1, ONE)
    faulty = FaultyStore(store)
    twin = Log.open(faulty, clock=clock, ids=SeededIds(2))
    if settled:
        twin.append(ONE)
        log.handle.refresh()
    dying = Fault(FaultKind.CRASH_BEFORE, "get", "*/blocks/*")
    rival = Log.open(FaultyStore(store, Faults(dying)), clock=clock, ids=SeededIds(3))

    def deleted_and_taken():
        discard(store)
        with pytest.raises(CrashedError):
            rival.append(ONE, producer=("p", 1))

    faulty.plan = Faults(Fault(FaultKind.MEANWHILE, "create", run=deleted_and_taken))
    with pytest.raises(NotFoundError, match="no log at"):
        twin.append(ONE, producer=("p", 1))


def test_what_two_dead_handles_left_is_no_damage(store, clock):
    """One continues from its own commit, which was deleted, the other made that version again:
    whoever finds both in the folder of a deleted log gets the error of the deletion.
    """
    made(store, clock, 1, ONE)
    dying = Fault(FaultKind.CRASH_BEFORE, "get", "*/blocks/*")
    first, second, log = (
        Log.open(FaultyStore(store), clock=clock, ids=SeededIds(seed)) for seed in (2, 3, 4)
    )
    log.handle.refresh()
    first.append(ONE)
    discard(store)
    for old in (second, first):
        old.handle.standing.root.plan = Faults(dying)
        with pytest.raises(CrashedError):
            old.append(ONE)
    with pytest.raises(NotFoundError, match="no log at"):
        log.handle.refresh()
