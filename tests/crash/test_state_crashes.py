"""Crash enumeration of stores: every request of opening and committing, and every write of the
local file.

A store dies at each of its requests, or lives on with a reply that was lost. The next one, with the
file that was left or with none, shows the same: all of what was committed with its positions, or
nothing of it.
"""

import os
import shutil
from collections import Counter
from itertools import count, product

import pytest

from clog.state import local_file
from clog.state.local_file import LocalFile
from clog.storage import CommitStateUnknownError, Log, ManualClock, StateStore, StateTable
from clog.storage.env import SeededIds
from clog_testing.crash import crash_runs, discard, memory_store
from clog_testing.invariants import check_log

BEFORE = {b"a": b"0", b"gone": b"0"}
AFTER = {b"a": b"1", b"b": b"1"}
SEEDS = count(10)
AT_ONCE = {"memory_bytes": 0}
"""Nothing waits: each commit is written to the file by itself."""


def open_store(store, folder, seed=None, **options):
    ids = SeededIds(next(SEEDS) if seed is None else seed)
    return StateStore(store, folder, "app", clock=ManualClock(5_000), ids=ids, **options)


def begin(store):
    """A log with two keys, of which the store deletes one."""
    log = Log.create(store, 2, clock=ManualClock(5_000), ids=SeededIds(1))
    log.append([{"key": k, "value": v} for k, v in BEFORE.items()])


def work(s, log):
    """What the store does when it continues from its positions."""
    if s.positions.get(log.id, {}).get(0, 0) == 0:
        s.put("a", "1")
        s.put("b", "1")
        s.delete("gone")
        s.commit({log: {0: 1}}) if log.end_offsets()[0] else s.commit({log: {1: 1}})


def is_done(s, log):
    return any(s.positions.get(log.id, {}).values())


@pytest.mark.parametrize("disk", [pytest.param("kept", marks=pytest.mark.nightly), "lost"])
def test_every_crash_leaves_all_or_nothing(tmp_path, disk):
    """S48, S49, S54: state and positions agree, whatever is left of the disk; the next store does
    the remaining work, once.
    """
    seen = Counter()
    folders = (tmp_path / str(i) for i in count())
    at = {}

    def act(store):
        at["folder"] = next(folders)
        log = Log.open(store, clock=ManualClock(5_000), ids=SeededIds(2))
        work(open_store(store, at["folder"], seed=3), log)

    for crash in crash_runs(begin, act, copies=False):
        folder = at["folder"]
        if disk == "lost":
            shutil.rmtree(folder, ignore_errors=True)
        log = Log.open(crash.store, clock=ManualClock(5_000), ids=SeededIds(4))
        s = open_store(crash.store, folder)
        table = {row["key"]: row["value"] for row in log.table().to_arrow().to_pylist()}
        assert dict(s.scan()) == table, str(crash)
        done = is_done(s, log)
        assert table == (AFTER if done else BEFORE), str(crash)
        if crash.error is None and not crash.killed:
            assert done, str(crash)
        elif crash.error is not None and not isinstance(crash.error, CommitStateUnknownError):
            assert not done, f"{crash}: {crash.error}"
        seen[done] += 1
        work(s, log)
        assert dict(s.scan()) == AFTER, str(crash)
        assert len(list(log.read(columns=["key"]))) <= 4
        s.close()
        check_log(crash.store, every_version=False)
        discard(crash.store)
    assert min(seen[True], seen[False]) >= 5, seen


@pytest.mark.parametrize("options", [{}, AT_ONCE], ids=["what waited", "at once"])
def test_every_kill_in_the_middle_of_a_write(tmp_path, monkeypatch, options):
    """L1 to L5: whatever write of the file a kill precedes or interrupts, the file that is left has
    all or nothing, opens, and follows the log.
    """
    store = memory_store()
    begin(store)
    log = Log.open(store, clock=ManualClock(5_000))
    folder, copies, pwrite = tmp_path / "cache", [], os.pwrite

    def copied(number, data, at):
        for end in {0, 1, len(data) // 2, len(data) - 1}:
            pwrite(number, data[:end], at)
            copies.append(shutil.copytree(folder, tmp_path / f"copy-{len(copies)}"))
        return pwrite(number, data, at)

    monkeypatch.setattr(os, "pwrite", copied)
    s = open_store(store, folder, **options)
    work(s, log)
    s.close()  # It enters what waited.
    copies.append(shutil.copytree(folder, tmp_path / "copy-last"))
    monkeypatch.undo()
    found = Counter()
    for copy in copies:
        for path in copy.glob("*.state"):
            file = LocalFile(path)
            values = {key: value for key, _, _, value in file.rows(file.shown())}
            assert values in (BEFORE, AFTER)
            found[values == AFTER] += 1
        with open_store(store, copy) as again:
            assert dict(again.scan()) == AFTER
            assert is_done(again, log)
    assert set(found) == {True, False}
    assert len(copies) > 20
    discard(store)


class Disk:
    """A folder, and what a power failure may leave of it: contents and names that were synced, and
    any part of what came since.
    """

    def __init__(self, folder, monkeypatch):
        self.folder, self.left, self._last, self._files = folder, set(), None, {}
        self._written, self._synced, self._names = {}, {}, {}
        for call in (os.pwrite, os.ftruncate, os.fdatasync, os.fsync, os.rename, os.unlink):
            monkeypatch.setattr(os, call.__name__, self._noting(call))

    def _noting(self, call):
        def noted(*args):
            done = call(*args)
            if isinstance(args[0], int):
                number = os.fstat(args[0]).st_ino
                file = self._files.setdefault(number, object())
                self._did(call.__name__, file, *args[1:])
            if call.__name__ == "unlink":  # Its number is free.
                there = {path.stat().st_ino for path in self.folder.iterdir()}
                self._files = {n: file for n, file in self._files.items() if n in there}
            self._note()
            return done

        return noted

    def _did(self, what, file, *args):
        before = self._written.get(file, b"")
        if what == "pwrite":
            self._last = file, bytes(args[0]), args[1]
            self._written[file] = _with(before, *self._last[1:])
        elif what == "ftruncate":
            self._written[file] = before[: args[0]].ljust(args[0], b"\0")
        elif file is self._files.get(self.folder.stat().st_ino):
            self._names = self._found()
        else:
            self._synced[file] = before

    def _found(self):
        paths = self.folder.glob("*.state")
        return {path.name: self._files[path.stat().st_ino] for path in paths}

    def _note(self):
        if not self._names:
            return  # There is no file yet: all comes from the log.
        found, last = self._found(), dict(self._synced)
        file, data, at = self._last
        last[file] = _with(last.get(file, b""), data, at)
        kept = {name: file for name, file in self._names.items() if name in found}
        for names, of in product((found, self._names, kept), (self._written, self._synced, last)):
            self.left.add(frozenset((name, of.get(file, b"")) for name, file in names.items()))


def _with(before, data, at):
    return before[:at].ljust(at, b"\0") + data + before[at + len(data) :]


def test_every_power_failure_leaves_a_whole_file(tmp_path, monkeypatch):
    """L4, L5: whether unsynced data is lost or not, the newest file has all rows of a version that
    was shown, and none is rebuilt from the log.
    """
    monkeypatch.setattr(local_file, "SMALL_BYTES", 2_000)
    store, shown = memory_store(), {}
    log = Log.create(store, 2, clock=ManualClock(5_000), ids=SeededIds(1))
    folder = tmp_path / "cache"
    folder.mkdir()
    disk = Disk(folder, monkeypatch)
    with StateTable(store, folder, clock=ManualClock(5_000)) as table:
        for n in range(9):
            rows = {b"%d" % i: None if i == n else b"%d" % n * 40 for i in range(n % 3, 20, 3)}
            log.append([{"key": key, "value": value} for key, value in rows.items()])
            shown[table.version] = dict(table.scan())
            table.refresh()
        shown[table.version] = dict(table.scan())
    monkeypatch.undo()
    generations = set()
    for files in disk.left:
        name, data = max(files, key=lambda file: int(file[0].split(".")[1]))
        generations.add(name)
        path = tmp_path / name
        path.write_bytes(data)
        file = LocalFile(path)
        rows = {key: value for key, _, _, value in file.rows(file.shown())}
        assert rows == shown[file.shown().position.version]
        assert {key: found[0][2] for key in rows if (found := file.rows_of(key))} == rows
    assert len(generations) > 1
    assert len(disk.left) > 100
    discard(store)
