"""Crash enumeration of stores: every request of opening and committing, and every write of the
local file.

A store dies at each of its requests, or lives on with a reply that was lost. The next one, with the
file that was left or with none, shows the same: all of what was committed with its positions, or
nothing of it.
"""

import shutil
import sqlite3
from collections import Counter
from itertools import count

import pytest

from clog.state import sqlite_file
from clog.storage import CommitStateUnknownError, Log, ManualClock, StateStore
from clog.storage.env import SeededIds
from clog_testing.crash import crash_runs, discard, memory_store
from clog_testing.invariants import check_log

BEFORE = {b"a": b"0", b"gone": b"0"}
AFTER = {b"a": b"1", b"b": b"1"}
SEEDS = count(10)
AT_ONCE = {"memory_bytes": 0}
"""Nothing waits: each commit goes into the file by itself."""
ROWS = "select key, value from state where partition >= 0"


def open_store(store, folder, seed=None, **options):
    ids = SeededIds(next(SEEDS) if seed is None else seed)
    return StateStore(store, folder, "app", clock=ManualClock(5_000), ids=ids, **options)


def begin(store):
    """A log with two keys, of which the store deletes one."""
    log = Log.create(store, 2, clock=ManualClock(5_000), ids=SeededIds(1))
    log.append([{"key": k, "value": v} for k, v in BEFORE.items()])


def work(s, log):
    """What the store does when it goes on from its positions."""
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
    what is left to do, once.
    """
    seen = Counter()
    folders = (tmp_path / str(i) for i in count())
    at = {}

    def act(store):
        at["folder"] = next(folders)
        log = Log.open(store, clock=ManualClock(5_000), ids=SeededIds(2))
        work(open_store(store, at["folder"], seed=3), log)

    for crash in crash_runs(begin, act):
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


@pytest.fixture
def traced(monkeypatch, tmp_path):
    """Copies the folder before each statement that SQLite runs: what a kill there leaves."""
    copies = []
    folder = tmp_path / "cache"
    connect = sqlite_file.connect

    def copied(_):
        if folder.exists():
            copies.append(shutil.copytree(folder, tmp_path / f"copy-{len(copies)}"))

    def traced_connect(path, **options):
        connection = connect(path, **options)
        connection.set_trace_callback(copied)
        return connection

    monkeypatch.setattr(sqlite_file, "connect", traced_connect)
    return folder, copies, monkeypatch.undo


@pytest.mark.parametrize("options", [{}, AT_ONCE], ids=["what waited", "at once"])
def test_every_kill_between_two_statements_of_the_file(traced, tmp_path, options):
    """Whatever statement a kill comes before, the file that is left opens, and follows the log."""
    folder, copies, untrace = traced
    store = memory_store()
    begin(store)
    log = Log.open(store, clock=ManualClock(5_000))
    s = open_store(store, folder, **options)
    work(s, log)
    s.close()  # It enters what waited.
    copies.append(shutil.copytree(folder, tmp_path / "copy-last"))
    untrace()
    found = Counter()
    copies = list(copies)  # The connections of the store that was closed still add to it.
    assert len(copies) > 20
    for copy in copies:
        for path in copy.glob("*.sqlite3"):
            with sqlite3.connect(path) as connection:
                values = dict(
                    connection.execute("select key, value from state where partition >= 0")
                )
            assert values in (BEFORE, AFTER)
            found[values == AFTER] += 1
    assert set(found) == {True, False}
    for copy in copies:
        with open_store(store, copy) as again:
            assert dict(again.scan()) == AFTER
            assert is_done(again, log)
    discard(store)


@pytest.mark.parametrize(
    ("options", "pages"), [({}, 2), (AT_ONCE, 3)], ids=["what waited", "at once"]
)
def test_every_kill_in_the_middle_of_a_write(tmp_path, options, pages):
    """The journal cut at each of its pages, and in them: the state before or after, never half."""
    store = memory_store()
    begin(store)
    log = Log.open(store, clock=ManualClock(5_000))
    s = open_store(store, tmp_path / "cache", **options)
    connection = sqlite3.connect(s._file._cache.path)  # Keeps the journal from being emptied.
    connection.execute("select * from position").fetchall()
    work(s, log)
    s._file.settle()
    (journal,) = (tmp_path / "cache").glob("*-wal")
    (file,) = (tmp_path / "cache").glob("*.sqlite3")
    data, page = journal.read_bytes(), connection.execute("pragma page_size").fetchone()[0]
    assert len(data) > pages * page
    ends = {end + more for end in range(32, len(data) + 1, page + 24) for more in (0, 1, 24, 100)}
    found = Counter()
    for end in sorted(ends | {0, 16, len(data)}):
        copy = tmp_path / f"cut-{end}"
        copy.mkdir()
        shutil.copy(file, copy)
        (copy / journal.name).write_bytes(data[:end])
        with sqlite3.connect(copy / file.name) as cut:
            values = dict(cut.execute(ROWS))
            assert values in (BEFORE, AFTER)
            positions = cut.execute("select body from position").fetchall()
        found[values == AFTER] += 1
        with open_store(store, copy) as again:
            assert dict(again.scan()) == AFTER, f"{end} of {len(data)}, at {positions}"
    assert set(found) == {True, False}
    connection.close()
    s.close()
    discard(store)
