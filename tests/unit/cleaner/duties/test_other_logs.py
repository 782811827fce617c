"""What dead creators leave in ``_clog/`` is removed; other logs that are there stay (S47)."""

import logging
import os

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import ORPHAN_AGE_MS, sweep_orphans, sweep_other_logs
from clog.storage import Log, LogReplacedError, ManualClock
from clog.storage.administration import delete_log
from clog.storage.commit.tip import LogFile, create_log_file
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.store import open_store
from clog.storage.store.contract import temporary_name
from clog_testing.clocked import ClockedStore
from clog_testing.crash import copy_of, crash_runs, discard, inside
from clog_testing.faults import CrashedError, Fault, FaultKind, Faults, FaultyStore

OTHER = "0" * 32
CREATION = [documents.block_path(0), documents.commit_path(0)]


@pytest.fixture
def store(clocked_store):
    return clocked_store


def create(store, clock, seed=1):
    return Log.create(store, 1, clock=clock, ids=SeededIds(seed))


def die_creating(store, clock, path=documents.LOG_FILE):
    """A creator that is killed before it creates a file; its folder is what it left."""
    before = {found.path for found in store.list("")}
    dies = Faults(Fault(FaultKind.CRASH_BEFORE, "*", f"*{path}", nth=2))
    with pytest.raises(CrashedError):  # The first call looks whether there is a log.
        create(FaultyStore(store, dies), clock, seed=99)
    return sorted({found.path for found in store.list("")} - before)


def sweep(log, clock, **more):
    return sweep_orphans(Work(log.handle, clock.now_ms()), **more).objects


def everything(store):
    return {found.path: store.get(found.path) for found in store.list("")}


def test_a_creator_that_died_leaves_a_folder_that_goes_after_a_day(store, clock):
    """S47: a block's file and a first commit: they can never become a log."""
    left = die_creating(store, clock)
    assert [path.split("/", 2)[2] for path in left] == CREATION
    log = create(store, clock)
    clock.advance(ORPHAN_AGE_MS)
    before = everything(store)
    assert sweep(log, clock) == ()
    assert before.items() <= everything(store).items()
    clock.advance(1)
    assert sorted(sweep(log, clock)) == left
    assert everything(store).keys() & set(left) == set()
    assert Log.open(store, clock=clock).version == log.version


def test_objects_of_a_first_write_that_made_no_log_go(store, clock):
    """S47: nothing else is in the folder, not even a first commit; and they are a day old."""
    log = create(store, clock)
    path = f"{documents.folder_of(OTHER)}/{documents.data_path(0, '1' * 32)}"
    store.put(path, b"x")
    clock.advance(ORPHAN_AGE_MS)
    assert sweep(log, clock) == ()
    clock.advance(1)
    assert sweep(log, clock) == (path,)


def test_what_a_reader_of_a_deleted_log_says_goes(store, clock):
    """S47, S59: its position is not a log, and the erasures of the new one do not wait for it."""
    reader = create(store, clock).reader("billing")
    delete_log(store)
    log = create(store, clock, seed=2)
    assert reader.commit({0: 0})
    log.append([{"key": "a", "value": "1"}])
    log.erase(["a"], notify=False)
    cleaner = Cleaner(log)
    for _ in range(4):
        cleaner.run_once()
        clock.advance(ORPHAN_AGE_MS + 1)
    (erasure,) = log.erasures()
    assert erasure.state == "done", erasure.reason
    assert not any(documents.READERS in path for path in everything(store))


def test_one_that_is_young_keeps_all_its_folder(store, clock):
    """S47: it may still be at work: the folder is as old as its newest file."""
    log = create(store, clock)
    for path in CREATION:
        clock.advance(ORPHAN_AGE_MS)
        store.put(f"{documents.folder_of(OTHER)}/{path}", b"x")
    clock.advance(ORPHAN_AGE_MS)
    assert sweep(log, clock) == ()
    clock.advance(1)
    assert len(sweep(log, clock)) == 2


def test_whatever_a_creator_leaves_goes(clock):
    """S47: killed at any call, refused, or without a reply: a day after the next creator has made
    the log nothing is left of the first that does not belong to the log.
    """
    left = set()
    for run in crash_runs(lambda _: None, lambda store: create(store, clock, seed=99)):
        here = ClockedStore(copy_of(run.store), ManualClock(10 * clock.now_ms()))
        if not list(here.list(documents.LOG_FILE)):
            left.add(len(list(here.list(""))))
            create(here, clock)
        later = ManualClock(10**14)
        log = Log.open(here, clock=later, ids=SeededIds(3))
        sweep(log, later, age_ms=0)
        own = documents.folder_of(log.handle.standing.log_id)
        assert {found.path for found in here.list("")} == {
            documents.LOG_FILE,
            *(f"{own}/{found.path}" for found in inside(here).list("")),
        }, run
        discard(here.inner)
        discard(run.store)
    assert left == {0, 1, 2}


@pytest.mark.parametrize(
    "path",
    [documents.commit_path(1), documents.data_path(0, "1" * 32), documents.LATEST, "what is this"],
)
def test_more_than_a_creation_is_named_and_stays(store, clock, caplog, path):
    """S47: it held a log, which someone may be restoring."""
    log = create(store, clock)
    other = documents.folder_of(OTHER)
    for name in (*CREATION, path):
        store.put(f"{other}/{name}", b"x")
    clock.advance(10 * ORPHAN_AGE_MS)
    before = everything(store)
    with caplog.at_level(logging.WARNING, logger="clog.cleaner"):
        assert sweep(log, clock) == ()
    assert before.items() <= everything(store).items()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"{store.url}/{other} has 3 files of another log" in warning


def test_what_is_no_folder_of_a_log_stays_unnamed(store, clock, caplog):
    """Files of others in `_clog/`, whatever their names, are left alone."""
    log = create(store, clock)
    for path in ("notes", "notes/commits/x", f"{'g' * 32}/{CREATION[0]}", ".gitignore"):
        store.put(f"_clog/{path}", b"x")
    clock.advance(10 * ORPHAN_AGE_MS)
    before = everything(store)
    with caplog.at_level(logging.WARNING, logger="clog.cleaner"):
        assert sweep(log, clock) == ()
    assert before.items() <= everything(store).items()
    assert not caplog.records


def test_a_dry_run_deletes_nothing(store, clock):
    """It lists what would be removed."""
    left = die_creating(store, clock)
    log = create(store, clock)
    clock.advance(2 * ORPHAN_AGE_MS)
    before = everything(store)
    assert sorted(sweep(log, clock, dry_run=True)) == left
    assert everything(store) == before
    assert sorted(sweep(log, clock)) == left


def test_a_log_that_was_replaced_sweeps_nothing(store, clock):
    """S47: a sweep of a deleted log would take the one in its place for a creator's leftovers."""
    log = create(store, clock)
    mine = documents.folder_of(log.handle.standing.log_id)
    for found in list(store.list("")):
        store.delete(found.path)
    new = create(store, clock, seed=2)
    clock.advance(2 * ORPHAN_AGE_MS)
    before = everything(store)
    assert not any(path.startswith(mine) for path in before)
    with pytest.raises(LogReplacedError):
        sweep_other_logs(log.handle, before_ms=clock.now_ms(), dry_run=False)
    assert everything(store) == before
    assert Log.open(store, clock=clock).handle.standing.log_id == new.handle.standing.log_id


def test_a_lost_race_leaves_no_folder(store, clock):
    """S47: the second creator deletes what it made, and the log is the first one's."""
    rival = Fault(
        FaultKind.MEANWHILE, "create", documents.LOG_FILE, run=lambda: create(store, clock)
    )
    with pytest.raises(FileExistsError):
        create(FaultyStore(store, Faults(rival)), clock, seed=99)
    log_id = Log.open(store, clock=clock).handle.standing.log_id
    folder = f"{documents.folder_of(log_id)}/"
    assert all(found.path.startswith((folder, documents.LOG_FILE)) for found in store.list(""))
    loser = create_log_file(store, LogFile(OTHER, 0), clock)
    assert loser.log_id == log_id


@pytest.mark.parametrize("folder", ["_clog", f"_clog/{OTHER}/blocks", f"_clog/{OTHER}/commits"])
def test_a_write_of_a_creator_that_was_killed(tmp_path, folder):
    """S47: temporary files of a creation are removed with it, or by themselves; none is named."""
    clock = ManualClock(now_ms=10**13)
    log = Log.create(open_store(str(tmp_path)), 1, clock=clock, ids=SeededIds(1))
    left = tmp_path / folder / temporary_name("log", "a" * 32)
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_bytes(b"half")
    os.utime(left, ns=(0, (clock.now_ms() - ORPHAN_AGE_MS) * 1_000_000))
    assert sweep(log, clock) == ()
    clock.advance(1)
    assert sweep(log, clock) == (left.relative_to(tmp_path).as_posix(),)
    assert not left.exists()
