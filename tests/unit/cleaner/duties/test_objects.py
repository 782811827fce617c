"""Deleting what no readable version needs, and the clock that decides it."""

import os
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties import sweep as skew_module
from clog.cleaner.duties.sweep import ORPHAN_AGE_MS, check_clock, sweep_orphans, sweep_released
from clog.storage import (
    CommitConflictError,
    Log,
    ManualClock,
    StoreUnavailableError,
    VersionExpiredError,
)
from clog.storage.administration import delete_log
from clog.storage.commit.committer import SKEW_MS_MAX, ClockSkewError
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.format.commits import Edit, Pin
from clog.storage.format.log_info import PUBLICATIONS, FeatureNames
from clog.storage.objects.records import to_records
from clog.storage.store import open_store
from clog.storage.store.contract import temporary_name
from clog_testing.clocked import ClockedStore
from clog_testing.counting import CountingStore
from clog_testing.crash import inside
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

FEATURES = FeatureNames(write=(PUBLICATIONS,))
HOUR_MS = 3_600_000
DAY_MS = 86_400_000


def data(store):
    return {found.path for found in inside(store).list("data/")}


def alive(log):
    log.handle.refresh()
    return {c.object.path for _, c in log.handle.manifest().chunks()}


@pytest.fixture
def replaced(make_log, put, clean):
    """A log whose objects a pass has replaced, the version before that, and its table."""
    log = make_log(file_delete_delay_ms=1000)
    put(log, "a=1 b=1 a=2")
    log.roll()
    version = log.version
    before = log.table(at=version).to_arrow()
    clean(log)
    return log, version, before


def test_replaced_objects_wait(replaced, store, clock):
    """S27: they stay readable for file.delete.delay.ms, then they are deleted, and old versions
    say that they expired."""
    log, version, before = replaced
    everything = data(store)
    clock.advance(1000)
    Cleaner(log).run_once()
    assert data(store) == everything
    assert log.table(at=version).to_arrow() == before
    clock.advance(1)
    Cleaner(log).run_once()
    assert data(store) == alive(log) < everything
    check_log(store, every_version=False)
    with pytest.raises(VersionExpiredError):
        log.table(at=version)
    assert log.handle.manifest().released == ()


def test_a_version_that_is_pinned_while_a_sweep_begins(replaced, store, clock):
    """W4: a publisher that took its time pins what nothing needed when the sweep looked."""
    log, version, before = replaced
    everything = data(store)
    clock.advance(1001)

    def pin():
        pins = {"delta": (Pin(0, version, clock.now_ms()),)}
        log.handle.commit(lambda *_: Edit(features=FEATURES, pins=pins), operation="publish")

    slow = FaultyStore(store)
    sweeper = Log.open(slow, clock=clock, ids=SeededIds(7))
    slow.plan = Faults(Fault(FaultKind.MEANWHILE, "create", "*/commits/*", run=pin))
    assert sweep_released(Work(sweeper.handle, clock.now_ms())).objects == ()
    assert data(store) == everything
    assert log.table(at=version).to_arrow() == before
    check_log(store, every_version=False)


def test_an_object_lives_while_any_partition_needs_it(make_log, clean, store, clock):
    """FORMAT.md §6: an object that lost a chunk stays while another one refers to it; it is deleted
    a delay after it lost the last one.
    """
    log = make_log(2, segment_bytes=1000, file_delete_delay_ms=1000)
    log.append([{"key": k, "value": "1"} for k in "aa"], partition=[0, 1])
    log.append([{"key": "a", "value": "2"}], partition=0)
    log.roll()
    (first,) = {c.object.path for c in log.handle.manifest().segments[1][0].chunks}
    clean(log)
    clock.advance(5000)
    sweep_released(Work(log.handle, clock.now_ms()))
    assert first in data(store)
    log.append([{"key": "a", "value": "2"}], partition=1)
    log.roll()
    clean(log)
    sweep_released(Work(log.handle, clock.now_ms()))
    assert first in data(store)
    clock.advance(1001)
    swept = sweep_released(Work(log.handle, clock.now_ms()))
    assert first in swept.objects
    assert first not in data(store)
    check_log(store, every_version=False)


def test_a_dry_run_deletes_nothing(make_log, put, clean, store, clock):
    """It lists what would be deleted, and commits nothing."""
    log = make_log(file_delete_delay_ms=0)
    put(log, "a=1 b=1 a=2")
    log.roll()
    clean(log)
    inside(store).put("data/00000000000000000000-" + "0" * 32 + ".parquet", b"x")
    clock.advance(2 * DAY_MS)
    put(log, "c=1")
    clock.advance(2 * DAY_MS)
    before, version = data(store), log.version
    now = clock.now_ms()
    released = sweep_released(Work(log.handle, now), dry_run=True)
    orphans = sweep_orphans(Work(log.handle, now), dry_run=True)
    assert (len(released.objects), len(orphans.objects)) == (3, 1)
    assert (data(store), log.version) == (before, version)
    assert sweep_released(Work(log.handle, now)) == released
    assert sweep_orphans(Work(log.handle, now)) == orphans
    assert data(store) == alive(log)


def test_released_meanwhile(make_log, put, clean, store, clock, open_log):
    """S27: what is released while the sweep runs keeps its full delay."""
    log = make_log(file_delete_delay_ms=1000)
    put(log, "a=1 b=1 a=2 c=1 d=1 e=1")
    log.roll()
    clean(log)
    clock.advance(1001)
    put(log, "c=2 c=3 c=4")
    log.roll()

    def clean_again():
        clean(open_log())

    version = log.version
    before = log.table(at=version).to_arrow()
    hit = open_log(
        FaultyStore(store, Faults(Fault(FaultKind.MEANWHILE, "create", "*", run=clean_again)))
    )
    swept = sweep_released(Work(hit.handle, clock.now_ms()))
    assert len(swept.objects) == 3
    assert log.table(at=version).to_arrow() == before
    sweep_orphans(Work(log.handle, clock.now_ms()), age_ms=0)
    assert log.table(at=version).to_arrow() == before


def orphan_of(log, store, clock):
    """An object that is never committed, with the current version as its stamp."""
    writer = log.object_writer()
    records, _ = to_records([{"key": "a", "value": "1"}], now_us=clock.now_us())
    writer.add(records, np.zeros(1, np.int32))
    return writer.finish()


def test_orphans(make_log, put, store, clock, open_log):
    """COMMIT.md §5: objects of which no readable version knows are deleted once they are
    a day old.
    """
    log = make_log()
    put(log, "a=1")
    (orphan,) = orphan_of(log, store, clock)
    clock.advance(1)
    put(log, "b=1")
    assert sweep_orphans(Work(log.handle, clock.now_ms())).objects == ()
    clock.advance(ORPHAN_AGE_MS - 1)
    assert sweep_orphans(Work(log.handle, clock.now_ms())).objects == ()
    clock.advance(1)
    assert sweep_orphans(Work(open_log().handle, clock.now_ms())).objects == (orphan.ref.path,)
    assert data(store) == alive(log)
    assert log.handle.tip.head.orphan_floor == 2


def test_a_slow_job_past_the_floor(make_log, put, store, clock):
    """COMMIT.md §5: its objects may be gone, so its commit is refused."""
    log = make_log()
    put(log, "a=1")
    slow = orphan_of(log, store, clock)
    clock.advance(1)
    put(log, "b=1")
    clock.advance(ORPHAN_AGE_MS)
    sweep_orphans(Work(log.handle, clock.now_ms()))
    with pytest.raises(CommitConflictError, match="too long"):
        log.append_objects(slow)


def test_a_log_without_old_versions(make_log, put, store, clock):
    """The floor is a version that was old enough, never the oldest readable one for lack of it."""
    log = make_log(file_delete_delay_ms=0)
    for _ in range(3):
        put(log, "a=1 b=1 a=2")
        log.roll()
        Cleaner(log).run_once(force=True)
        clock.advance(1)
        Cleaner(log).run_once()
    assert log.handle.tip.head.oldest_readable > 0
    (orphan,) = orphan_of(log, store, clock)
    put(log, "b=1")
    assert sweep_orphans(Work(log.handle, clock.now_ms())).objects == ()
    assert log.handle.tip.head.orphan_floor == 0
    assert orphan.ref.path in data(store)


def test_an_idle_log_gets_one_commit(make_log, put, store, clock):
    """The floor is raised by one sweep after the last append, and by none after that."""
    log = make_log()
    put(log, "a=1")
    version = log.version
    cleaner = Cleaner(log)
    for _ in range(4):
        clock.advance(DAY_MS)
        cleaner.run_once()
    assert log.version == version + 1


def test_a_log_that_was_crowded_gets_one_commit(make_log, open_log, put, clock):
    """It drops all answers, which are old; and that is no reason for another one
    (FORMAT.md §21).
    """
    log = make_log()
    late = open_log()
    put(log, "a=1")
    put(late, "a=2")
    version = log.version
    assert len(log.handle.tip.head.combined.authors) == 1
    cleaner = Cleaner(log)
    for _ in range(6):
        clock.advance(DAY_MS)
        cleaner.run_once()
    assert log.version == version + 1
    assert log.handle.tip.head.combined.authors == ()


def test_a_cleaner_that_runs_for_days_sweeps_orphans(make_log, put, store, clock):
    """Nobody has to remember to call it."""
    log = make_log()
    put(log, "a=1")
    (orphan,) = orphan_of(log, store, clock)
    clock.advance(1)
    put(log, "b=1")
    cleaner = Cleaner(log)
    for _ in range(2):
        clock.advance(DAY_MS)
        cleaner.run_once()
    assert orphan.ref.path not in data(store)


@pytest.fixture
def old_folder(tmp_path, put):
    """A log in a local folder, all of whose files are old, and a way to write other old ones."""
    clock = ManualClock(now_ms=10**13)
    log = Log.create(open_store(str(tmp_path / "log")), 1, clock=clock, ids=SeededIds(1))
    put(log, "a=1")

    def write(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, ns=(0, (clock.now_ms() - 2 * DAY_MS) * 1_000_000))
        return path

    return log, write


def swept_by(log):
    return sweep_orphans(Work(log.handle, log.handle.clock.now_ms())).objects


FOREIGN = [".env", ".gitignore", "src/.htaccess", "data/.keep", "notes.tmp", ".a.tmp"]


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files_are_never_touched(old_folder, tmp_path, name):
    """COMMIT.md §5: however old they are, at the root and within the log's own folder."""
    log, write = old_folder
    root = tmp_path / "log"
    own = root / documents.folder_of(log.handle.standing.log_id)
    files = [write(folder / name) for folder in (root, root / "_clog", own, own / "data")]
    assert swept_by(log) == ()
    assert all(path.read_bytes() == b"x" for path in files)


OWN_FOLDERS = ("commits", "snapshots", "pages", "edits", "columns", "blocks", "data")
LIKE_OURS = [
    *("00000000000000000000.json", "c" * 32 + ".json", "c" * 32, "clock-" + "c" * 32),
    *("00000000000000000000-" + "c" * 32 + end for end in (".json", ".parquet", ".dead")),
]


@pytest.mark.parametrize("name", [".keep", "notes.txt", "notes.json", "clock-1", "kept/.keep"])
@pytest.mark.parametrize("partitions", [1, 300])
def test_what_strangers_put_among_the_logs_own_files_stays(tmp_path, put, name, partitions):
    """COMMIT.md §5: a sweep touches only names that clog makes, in full, where clog makes them."""
    clock = ManualClock(now_ms=10**13)
    log = Log.create(open_store(str(tmp_path / "log")), partitions, clock=clock, ids=SeededIds(1))
    for _ in range(9):
        put(log, "a=1")
    own = tmp_path / "log" / documents.folder_of(log.handle.standing.log_id)
    files = [own / folder / name for folder in ("", *OWN_FOLDERS)]
    files += [own / folder / "kept" / like for folder in ("", *OWN_FOLDERS) for like in LIKE_OURS]
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    for path in own.rglob("*"):
        os.utime(path, ns=(0, (clock.now_ms() - 9 * DAY_MS) * 1_000_000))
    clock.advance(9 * DAY_MS)
    put(log, "a=2")
    sweep_orphans(Work(log.handle, clock.now_ms()))
    assert all(path.read_bytes() == b"x" for path in files)


def test_temporary_files_outside_of_the_log_stay(old_folder, tmp_path):
    """S47: everything of the log is in `_clog/`: another log below this one has its own sweep."""
    log, write = old_folder
    name = temporary_name("00000000000000000001.json", "a" * 32)
    files = [
        write(tmp_path / "log" / folder / name)
        for folder in ("", "data", "below", f"below/_clog/{'b' * 32}/commits")
    ]
    assert swept_by(log) == ()
    assert all(path.exists() for path in files)


@pytest.mark.parametrize("at", ["", "_clog", "own", "own/data", "own/pages"])
def test_nothing_behind_a_symbolic_link_is_touched(old_folder, tmp_path, at):
    """A link below the root may lead anywhere, even to another log; a link to a file stays."""
    log, write = old_folder
    own = documents.folder_of(log.handle.standing.log_id)
    folder = tmp_path / "log" / at.replace("own", own)
    folder.mkdir(exist_ok=True)
    names = [
        "data/00000000000000000000-" + "c" * 32 + ".parquet",
        "pages/" + "c" * 32 + ".json",
        "clock-1",
        f"data/{temporary_name('x', 'a' * 32)}",
        temporary_name("x", "a" * 32),
        documents.commit_path(0),
    ]
    away = [write(tmp_path / "away" / name) for name in names]
    links = [folder / name for name in ("linked", "d" * 32, temporary_name("x", "e" * 32))]
    for link in links:
        link.symlink_to(tmp_path / "away", target_is_directory=True)
    links.append(folder / temporary_name("file", "a" * 32))
    links[-1].symlink_to(away[0])
    assert swept_by(log) == ()
    assert all(path.read_bytes() == b"x" for path in away)
    assert all(link.is_symlink() for link in links)


def test_a_log_whose_folder_is_a_link_into_another_log(tmp_path, clock):
    """Nothing of the other log is read, written or deleted: readers and writers are refused in
    words, and so is the cleaner; the log is deleted without what the link leads to.
    """
    logs = [
        Log.create(f"{tmp_path}/{name}", partitions=1, clock=clock) for name in ("ours", "theirs")
    ]
    for log in logs:
        log.append([{"key": "k", "value": log.url}])
    ours, theirs = (Path(log.url) / documents.folder_of(log.id) / "data" for log in logs)
    shutil.rmtree(ours)
    ours.symlink_to(theirs)
    before = {path: path.read_bytes() for path in theirs.parent.rglob("*") if path.is_file()}
    log = Log.open(f"{tmp_path}/ours", clock=clock)
    clock.advance(30 * 86_400_000)
    for refused in (
        lambda: log.table().get("k"),
        lambda: list(log.read()),
        lambda: log.append([{"key": "k", "value": "v"}]),
        lambda: Cleaner(log).run_once(),
    ):
        with pytest.raises(StoreUnavailableError, match=r"data' in .* is a symbolic link"):
            refused()
    assert before == {path: path.read_bytes() for path in before}
    delete_log(open_store(f"{tmp_path}/ours"))
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize("folder", ["", "data", "commits", "snapshots", "blocks"])
def test_what_a_killed_write_left_goes_when_it_is_old(old_folder, tmp_path, folder):
    """COMMIT.md §5: a temporary file of the log's own folder, a day after it was written."""
    log, write = old_folder
    own = tmp_path / "log" / documents.folder_of(log.handle.standing.log_id)
    name = temporary_name("00000000000000000002.json", "a" * 32)
    left = write(own / folder / name)
    young = write(own / folder / temporary_name("x", "b" * 32))
    at_ms = log.handle.clock.now_ms() - ORPHAN_AGE_MS
    os.utime(young, ns=(0, at_ms * 1_000_000))
    assert sweep_orphans(Work(log.handle, log.handle.clock.now_ms()), dry_run=True).objects
    assert left.exists()
    assert swept_by(log) == (left.relative_to(own).as_posix(),)
    assert (left.exists(), young.exists()) == (False, True)


def test_stopping_within_a_sweep(make_log, put, clean, store, clock, open_log):
    """S29: however much is to be deleted, it ends before its next request, and the next one
    continues.
    """
    log = make_log(file_delete_delay_ms=0)
    put(log, "a=1 b=1 a=2")
    log.roll()
    clean(log)
    for _ in range(2):
        orphan_of(log, store, clock)
    clock.advance(1)
    put(log, "c=1")
    left = []

    def round_until(nth):
        stop = lambda: cleaner.stop()  # noqa: E731, PLW0108 - made below
        fault = Fault(FaultKind.MEANWHILE, "delete", "*/data/*", nth, run=stop)
        cleaner = Cleaner(open_log(FaultyStore(store, Faults(fault))))
        clock.advance(2 * DAY_MS)
        cleaner.run_once()
        left.append(len(data(store) - alive(log)))

    round_until(1)  # Of three replaced objects the first is deleted;
    round_until(4)  # all of them, and an orphan;
    round_until(5)  # the rest.
    assert left == [4, 1, 0]


class WrongClock:
    """A clock whose time of day is wrong."""

    def __init__(self, right, by_ms):
        self.right, self.by_ms = right, by_ms

    def now_ms(self):
        return self.right.now_ms() + self.by_ms

    def now_us(self):
        return self.now_ms() * 1000

    def monotonic_ms(self):
        return self.right.monotonic_ms()

    def sleep_ms(self, ms):
        self.right.sleep_ms(ms)


@pytest.mark.parametrize("by_ms", [SKEW_MS_MAX + 1, -SKEW_MS_MAX - 1])
def test_a_wrong_clock_changes_nothing(make_log, put, store, clock, by_ms):
    """COMMIT.md §5: beyond five minutes of skew no horizon is set, nothing expires, nothing is
    deleted."""
    log = make_log(min_cleanable_dirty_ratio=0)
    put(log, "a=1 a")
    log.roll()
    version, before = log.version, data(store)
    wrong = WrongClock(clock, by_ms)
    hit = Log.open(ClockedStore(store, clock), clock=wrong, ids=SeededIds(9))
    with pytest.raises(ClockSkewError, match=r"differ by \d+ ms, more than 300000: .*NTP"):
        Cleaner(hit).run_once(force=True)
    with pytest.raises(ClockSkewError):
        sweep_orphans(Work(hit.handle, wrong.now_ms()))
    assert (log.version, data(store)) == (version, before)
    assert not list(inside(store).list("clock"))


def test_a_wrong_clock_deletes_nothing_released(make_log, put, clean, store, clock):
    """S27: `clog clean --sweep` calls this without a cleaner that has compared the clocks."""
    log = make_log(file_delete_delay_ms=HOUR_MS)
    put(log, "a=1 a=2 a=3 b=1")
    clean(log)
    before = data(store)
    fast = WrongClock(clock, 2 * HOUR_MS)
    hit = Log.open(ClockedStore(store, clock), clock=fast, ids=SeededIds(9))
    with pytest.raises(ClockSkewError):
        sweep_released(Work(hit.handle, fast.now_ms()))
    assert data(store) == before
    fast.by_ms = 0
    clock.advance(2 * HOUR_MS)
    put(hit, "c=1")
    assert sweep_released(Work(hit.handle, fast.now_ms())).objects


@pytest.mark.parametrize("by_ms", [SKEW_MS_MAX, -SKEW_MS_MAX, 0])
def test_a_clock_that_is_right_enough(make_log, put, store, clock, by_ms):
    """Five minutes are tolerated, and nothing is asked for ten minutes while the clock advances."""
    log = make_log(min_cleanable_dirty_ratio=0)
    put(log, "a=1 a=2")
    log.roll()
    right = WrongClock(clock, by_ms)
    counting = CountingStore(ClockedStore(store, clock))
    cleaner = Cleaner(Log.open(counting, clock=right, ids=SeededIds(9)))
    assert len(cleaner.run_once()) == 1
    looks = []
    for _ in range(3):
        clock.advance(300_000)
        with counting.count() as counts:
            cleaner.run_once()
        looks.append(counts["list"])
    assert looks == [0, 1, 0]


@pytest.mark.parametrize("steps_ms", [[720_000], [-720_000], [200_000] * 4])
def test_a_clock_that_is_set_between_two_looks(make_log, put, store, clock, steps_ms):
    """COMMIT.md §5: no record that is seconds old expires, though the clocks were compared a moment
    before; small steps count together. Once the clock is right everything continues.
    """
    log = make_log(cleanup_policy="delete", retention_ms=600_000)
    wrong = WrongClock(clock, 0)
    cleaner = Cleaner(Log.open(ClockedStore(store, clock), clock=wrong, ids=SeededIds(9)))
    put(log, "a=1 a=2 a=3 b=1")
    cleaner.run_once()
    clock.advance(5_000)

    def set_it():
        for by_ms in steps_ms:
            wrong.by_ms += by_ms
            cleaner.run_once()

    with pytest.raises(ClockSkewError, match="nothing was changed"):
        set_it()
    assert log.start_offsets() == {0: 0}
    wrong.by_ms = 0
    cleaner.run_once()
    assert log.start_offsets() == {0: 0}
    clock.advance(600_000)
    cleaner.run_once()
    assert log.start_offsets() == {0: 4}


def test_a_clock_that_is_set_during_a_pass(make_log, put, store, clock):
    """COMMIT.md §5, S23: the horizon counts from the commit, so the clock is looked at before it:
    nothing is committed."""
    log = make_log(min_cleanable_dirty_ratio=0)
    put(log, "a=1 a")
    log.roll()
    version, wrong = log.version, WrongClock(clock, 0)

    def set_it():
        wrong.by_ms = -720_000

    meanwhile = Fault(FaultKind.MEANWHILE, "put", "*/data/*", run=set_it)
    faulty = FaultyStore(ClockedStore(store, clock), Faults(meanwhile))
    with pytest.raises(ClockSkewError):
        Cleaner(Log.open(faulty, clock=wrong, ids=SeededIds(9))).run_once()
    assert (wrong.by_ms, log.version) == (-720_000, version)


def test_a_machine_that_slept_looks_once(make_log, put, store, clock):
    """Its monotonic clock stopped, and nothing is wrong: one look, no error, and the retention that
    is due.
    """
    log = make_log(cleanup_policy="delete", retention_ms=600_000)
    put(log, "a=1")
    slept = WrongClock(clock, 0)
    counting = CountingStore(ClockedStore(store, clock))
    cleaner = Cleaner(Log.open(counting, clock=slept, ids=SeededIds(9)))
    cleaner.run_once()
    before_ms = clock.monotonic_ms()
    clock.advance(720_000)
    slept.monotonic_ms = lambda: before_ms
    with counting.count() as counts:
        cleaner.run_once()
    assert (counts["list"], log.start_offsets()) == (1, {0: 1})
    with counting.count() as counts:
        cleaner.run_once()
    assert counts["list"] == 0


def test_a_clock_behind_the_newest_commit(make_log, put, store, clock):
    """Commit times are monotone: a process behind them has a wrong clock, or another had one."""
    log = make_log()
    put(log, "a=1")
    with pytest.raises(ClockSkewError, match="the newest commit"):
        check_clock(log.handle, now_ms=clock.now_ms() - SKEW_MS_MAX - 1)


def test_a_manual_clock_is_not_compared(make_log):
    """It has nothing to do with the store's."""
    log = make_log()
    assert not skew_module.is_comparable(log.handle.clock)
    Cleaner(log).run_once()


def test_versions_and_times_are_monotone(make_log, put, clean, store):
    """What the search for the floor relies on."""
    log = make_log()
    for n in range(5):
        put(log, f"a={n}")
        log.handle.clock.advance(10)
    times = [c.time_ms for c in log.history()]
    assert all(a <= b for a, b in pairwise(times))
