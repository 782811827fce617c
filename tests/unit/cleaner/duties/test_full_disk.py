"""A disk without a free byte: what frees space is deleted first, and nothing has to be written for
it.
"""

import os
import shutil
import subprocess
import time
from contextlib import suppress
from random import Random

import pytest

from clog.cleaner import Cleaner, CleanerSettings
from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_orphans, with_room
from clog.storage import Log, StoreUnavailableError
from clog.storage.commit.committer import RESERVE_BYTES
from clog.storage.env import SeededIds
from clog.storage.format.commits import Edit
from clog.storage.store import open_store
from clog.storage.store.contract import StoreFullError, WrappingStore, temporary_name
from clog_testing.clocked import ClockedStore
from clog_testing.crash import inside
from clog_testing.invariants import check_log

DAY_MS = 86_400_000
MIB = 1 << 20
CONFIG = {
    "compression.type": "none",
    "cleanup.policy": "delete",
    "segment.bytes": str(MIB),
    "file.delete.delay.ms": "0",
}


def big(key="k"):
    return {"key": key, "value": os.urandom(MIB - 4096)}


@pytest.fixture(params=["8m", "24m"])
def disk(tmp_path, request):
    """A separate file system, which a test may fill."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "none", str(mounted)]
    with suppress(OSError):
        if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            yield mounted
            subprocess.run(["umount", str(mounted)], check=True)
            return
    pytest.skip("no file system can be mounted here")


def fill(disk):
    """Takes all remaining space."""
    with (disk / "others").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    with (disk / "others").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x")
    assert shutil.disk_usage(disk).free == 0


def full_log(disk, clock=None):
    """A log that a cleaner has maintained, on a disk that has no more space."""
    log = Log.create(f"{disk}/log", 1, CONFIG, clock=clock)
    for _ in range(3):
        log.append([big()])
    Cleaner(log).run_once()
    fill(disk)
    with pytest.raises(StoreUnavailableError, match=r"No space left on device; nothing was writ"):
        log.append([big()])
    return log


def test_delete_records_makes_room_on_a_full_disk(disk):
    """S36: the commit that deletes uses the space of the reserve; the cleaner then has space for
    its own, the disk is free, and the reserve is back.
    """
    log = full_log(disk)
    assert log.delete_records({0: -1}) == {0: 3}
    for _ in range(2):  # The first may have released them in this very millisecond.
        Cleaner(log).run_once()
        time.sleep(0.002)
    assert shutil.disk_usage(disk).free > 2 * MIB
    log.append([big(), big()])
    Cleaner(log).run_once()
    sizes = {found.path: found.size_bytes for found in log.handle.store.list("reserve")}
    assert sizes == {"reserve": RESERVE_BYTES}
    check_log(log.handle.standing.root, every_version=False)


def test_a_round_makes_room_on_a_full_disk(disk, clock):
    """S32: retention is a commit, which uses the space of the reserve; its objects are deleted once
    the delay is over, which is zero here.
    """
    log = full_log(disk, clock)
    clock.advance(8 * DAY_MS)
    for _ in range(2):
        Cleaner(log).run_once()
        clock.advance(1)
    assert log.start_offsets() == {0: 3}
    assert shutil.disk_usage(disk).free > MIB
    log.append([{"key": "k", "value": "1"}])
    check_log(log.handle.standing.root, every_version=False)


def test_a_disk_that_nothing_can_make_room_on(disk):
    """The error says what happened and what to do, each time, and nothing is broken."""
    log = Log.create(f"{disk}/log", 1, CONFIG)
    log.append([{"key": "k", "value": "1"}])
    fill(disk)
    for act in (lambda: log.delete_records({0: 1}), Cleaner(log).run_once):
        with pytest.raises(StoreFullError, match=r"free some MB on its disk, then .clog clean"):
            act()
    (disk / "others").unlink()
    assert log.delete_records({0: 1}) == {0: 1}


class FullStore(WrappingStore):
    """A store that accepts nothing while it is full; deleting frees no space before ``needed``."""

    def __init__(self, inner):
        super().__init__(inner)
        self.is_full, self.deleted = False, []

    def put(self, path, data):
        self._check(path)
        self.inner.put(path, data)

    def create(self, path, data):
        self._check(path)
        self.inner.create(path, data)

    def delete(self, path):
        self.inner.delete(path)
        self.deleted.append(path)
        self.is_full = False

    def _check(self, path):
        if self.is_full:
            raise StoreFullError(f"no room for {path}")


class SmallStore(WrappingStore):
    """A store that accepts only ``room`` more bytes; deleting gives them back."""

    room = 1 << 40

    def put(self, path, data):
        self._take(path, data)
        self.inner.put(path, data)

    def create(self, path, data):
        self._take(path, data)
        self.inner.create(path, data)

    def delete(self, path):
        self.room += sum(f.size_bytes for f in self.inner.list(path) if f.path == path)
        self.inner.delete(path)

    def _take(self, path, data):
        if len(data) > self.room:
            raise StoreFullError(f"no room for {path}")
        self.room -= len(data)


@pytest.mark.parametrize(("policy", "room"), [("compact", 41_000), ("delete", 60_000)])
def test_a_rewrite_that_finds_no_room_gives_back_what_it_took(policy, room, tmp_path, clock):
    """S68: what a pass, or coalescing, wrote and could not commit is deleted at once; otherwise it
    would take the space that deleteRecords needs, and stay.
    """
    small = SmallStore(open_store(f"{tmp_path}/log", {"fsync": False}))
    config = {**CONFIG, "cleanup.policy": policy, "segment.bytes": "50000"}
    log = Log.create(small, 1, config, clock=clock, ids=SeededIds(1))
    for i in range(80):
        log.append([{"key": f"{i % 70}", "value": os.urandom(1_000)}])
    log.roll()
    small.room = room
    before = {found.path for found in log.handle.store.list("data/")}
    for _ in range(3):
        with pytest.raises(StoreFullError):
            Cleaner(log).run_once(force=True)
        known = set(log.handle.manifest().files())
        left = {found.path for found in log.handle.store.list("data/")}
        assert left <= before | known
    assert log.delete_records({0: -1}) == {0: 80}


class NoMoreCommits(WrappingStore):
    """A store that no longer accepts commits of a kind."""

    operation = b"none"

    def create(self, path, data):
        if self.operation in data:
            raise StoreFullError(f"no room for {path}")
        self.inner.create(path, data)


@pytest.fixture
def masked(store, clock):
    """A log with masks that are files, and a cleaner that has written some before."""
    log = Log.create(NoMoreCommits(store), 1, clock=clock, ids=SeededIds(1))
    log.alter({"table.masks": "true"})
    cleaner, dice = Cleaner(log, settings=CleanerSettings(compaction=False)), Random(1)
    rows = [{"key": f"{n}", "value": "x"} for n in range(20_000)]
    for again in (True, False):
        log.append([*rows, *rows])
        log.roll()
        log.append(dice.sample(rows, 8_000))
        if again:
            cleaner.run_once()
    return log, cleaner


def check_nothing_left(log):
    """Each object and bitmap is in the manifest, or is due to be deleted by its date."""
    manifest = log.handle.manifest()
    known = {*manifest.files(), *(r.path for r in manifest.released)}
    assert {found.path for found in log.handle.store.list("data/")} == known


def test_masks_that_find_no_room_leave_nothing(masked):
    """S68: not only in a cleaner's first round."""
    log, cleaner = masked
    log.handle.standing.root.operation = b'"mask"'
    with pytest.raises(StoreFullError):
        cleaner.run_once()
    check_nothing_left(log)


def test_masks_that_a_pass_carries_over_leave_nothing(masked):
    """S68: bits of rows that were superseded by what a pass does not reach."""
    log, cleaner = masked
    cleaner.run_once()
    log.handle.standing.root.operation = b'"clean"'
    with pytest.raises(StoreFullError):
        Cleaner(log).run_once(force=True)
    check_nothing_left(log)


@pytest.fixture
def swept_in_part(clock, tmp_path):
    """A log whose sweeps died after they had committed their bounds, and what they left there."""
    root = open_store(f"{tmp_path}/log", {"fsync": False})
    clocked = ClockedStore(root, clock)
    full = FullStore(clocked)
    log = Log.create(full, 1, {"file.delete.delay.ms": "1"}, clock=clock, ids=SeededIds(1))
    for value in ("1", "2"):
        log.append([{"key": "a", "value": value}])
    orphan = f"data/{0:020}-{'0' * 32}.parquet"
    log.handle.store.put(orphan, b"never committed")
    temporary = f"data/{temporary_name('x', 'a' * 32)}"
    path = tmp_path / "log" / "_clog" / log.id / temporary
    path.write_bytes(b"left")
    os.utime(path, (1, 1))
    log.roll()
    Cleaner(log).run_once(force=True)
    released = {r.path for r in log.handle.manifest().released}
    clock.advance(2 * DAY_MS)
    log.append([{"key": "b", "value": "1"}])
    version = log.version
    log.handle.commit(
        lambda tip, _: Edit(oldest_readable=version, orphan_floor=version), operation="sweep"
    )
    assert released
    return log, full, {*released, orphan, temporary}


def test_what_committed_bounds_allow_goes_without_a_write(swept_in_part):
    """COMMIT.md §5: objects released below the oldest readable version or never committed below the
    floor, and old temporary files; nothing that a reader needs.
    """
    log, full, allowed = swept_in_part
    full.is_full = True
    full.deleted.clear()
    with_room(
        Work(log.handle, log.handle.clock.now_ms()),
        lambda: log.append([{"key": "c", "value": "1"}]),
    )
    prefix = f"_clog/{log.id}/"
    assert allowed <= {path.removeprefix(prefix) for path in full.deleted}
    assert {row["key"] for b in log.read() for row in b.to_pylist()} == {b"a", b"b", b"c"}
    check_log(full.inner, every_version=False)


def test_a_round_on_a_full_disk_begins_with_what_may_go(swept_in_part, clock):
    """So a cleaner needs no reserve where another one died; the round is done as usual."""
    log, full, allowed = swept_in_part
    log.alter({"segment.ms": "1"})
    clock.advance(10)
    full.is_full = True
    Cleaner(log).run_once()
    assert len(log.segments(0)) == 3
    left = {found.path for found in inside(full).list("data/")}
    assert not allowed & left


def test_nothing_is_deleted_that_a_sweep_would_not(swept_in_part):
    """A sweep afterwards finds nothing of the kinds that were deleted."""
    log, full, _ = swept_in_part
    full.is_full = True
    with_room(
        Work(log.handle, log.handle.clock.now_ms()),
        lambda: log.append([{"key": "c", "value": "1"}]),
    )
    now_ms = log.handle.clock.now_ms()
    swept = sweep_orphans(Work(log.handle, now_ms), dry_run=True)
    assert not [path for path in swept.objects if path.startswith("data/")]
