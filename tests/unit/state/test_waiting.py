"""What a store committed waits in memory, and is entered into its file together with later commits
(S54).
"""

from itertools import permutations

import pytest

from clog.state import cache as waiting
from clog.state import local_file
from clog.state.local_file import LocalFile
from clog.state.store import WAITING_SHARE
from clog.storage import StateFileError, StateStore, StateTable
from clog_testing.counting import CountingStore


@pytest.fixture
def open_store(store, clock, tmp_path):
    """Opens the state of the test's log; it is not closed, as if the process had been killed."""
    return lambda id="app-1", **more: StateStore(store, tmp_path / "cache", id, clock=clock, **more)


def in_file(s):
    """Returns the rows of the file itself."""
    file = LocalFile(s._file._cache.path)
    return {key: value for key, _, _, value in file.rows(file.shown())}


def commit(s, **changes):
    for key, value in changes.items():
        if value is None:
            s.delete(key)
        else:
            s.put(key, value)
    s.commit()


def test_a_commit_writes_no_page_of_the_file(make_log, open_store):
    """All look-ups show it at once; the file has it once the store is closed."""
    make_log(partitions=3)
    s = open_store()
    commit(s, a="1", b="1", c="1")
    commit(s, a="2", b=None)
    assert in_file(s) == {}
    expected = {b"a": b"2", b"c": b"1"}
    assert dict(s.scan()) == expected
    assert s.get_many([b"a", b"b", b"c", b"d"]) == expected
    assert (s.get("a"), s.get("b"), s.get("c")) == (b"2", None, b"1")
    assert list(s.scan("c")) == [(b"c", b"1")]
    s.close()
    assert in_file(s) == expected
    s.close()
    again = open_store()
    assert dict(again.scan()) == expected


def test_what_is_in_the_file_is_hidden_by_what_waits(make_log, open_store):
    """New values and deletes, also at the ends of a range."""
    make_log(partitions=2)
    s = open_store()
    commit(s, **{f"k{i}": "old" for i in range(6)})
    s._file.settle()
    commit(s, k0="new", k2=None, k5="new", k7="new", a="new")
    assert len(in_file(s)) == 6
    seen = dict(s.scan())
    assert list(seen) == [b"a", b"k0", b"k1", b"k3", b"k4", b"k5", b"k7"]
    assert [k for k, v in seen.items() if v == b"new"] == [b"a", b"k0", b"k5", b"k7"]
    s.put("k7", "newer")
    s.delete("k0")
    assert list(s.scan("k"))[-1] == (b"k7", b"newer")
    assert s.get("k0") is None
    s.rollback()
    s._file.settle()
    assert in_file(s) == seen == dict(s.scan())


def test_a_killed_process_loses_nothing(make_log, open_store, store):
    """The next process reads from the log what waited, and lets it wait again."""
    log = make_log(partitions=2)
    s = open_store()
    commit(s, a="1", b="1")
    s._file.settle()
    for i in range(5):
        commit(s, a=str(i), **{f"n{i}": "1"})
    commit(s, b=None)
    table = {row["key"]: row["value"] for row in log.table().to_arrow().to_pylist()}
    counting = CountingStore(store)
    with counting.count() as requests:
        again = StateStore(counting, s._file.folder, "app-1", clock=log.handle.clock)
    assert requests["put"] <= 1
    assert dict(again.scan()) == table
    assert in_file(again) == {b"a": b"1", b"b": b"1"}


def test_no_more_waits_than_memory_and_versions_allow(make_log, open_store, monkeypatch):
    """Otherwise a crash would leave too much to read."""
    make_log()
    s = open_store(memory_bytes=WAITING_SHARE * 3 * (waiting.ROW_BYTES + 2))
    commit(s, a="1")
    commit(s, a="2", b="1")
    commit(s, c="1")
    assert in_file(s) == {}
    commit(s, d="1")
    assert in_file(s) == dict(s.scan()) == {b"a": b"2", b"b": b"1", b"c": b"1", b"d": b"1"}
    monkeypatch.setattr(waiting, "VERSIONS_MAX", 3)
    long = open_store("app-2")
    for i in range(8):
        commit(long, e=str(i))
        assert i - int(in_file(long).get(b"e", b"0")) <= 3


def test_a_log_start_that_rises_takes_what_waits(make_log, open_store, open_log):
    """Rows below it are removed, in the file or not."""
    log = make_log()
    s = open_store()
    commit(s, a="1")
    commit(s, b="1")
    log.delete_records({0: 1})
    s.refresh()
    assert dict(s.scan()) == in_file(s) == {b"b": b"1"}


def test_a_key_in_two_partitions_does_not_wait(make_log, open_store, open_log, clock):
    """The file decides which of them counts."""
    make_log(partitions=2)
    s = open_store()
    commit(s, a="1")
    other = open_log()
    for p in range(2):
        other.append(
            [{"key": "a", "value": f"of {p}", "timestamp": clock.now_ms() + 1 + p}], partition=p
        )
    s.refresh()
    assert len(in_file(s)) == 1
    assert s.get("a") == b"of 1"
    commit(s, z="1")
    assert s.get("a") == b"of 1"


def test_a_key_that_waits_comes_in_another_partition(make_log, open_store, open_log, clock):
    """The file then has both rows: the later one does not replace the one that counts."""
    log = make_log(partitions=2)
    s = open_store()
    commit(s, a="counts")
    (free,) = (p for p, end in log.end_offsets().items() if not end)
    record = {"key": "a", "value": "of before", "timestamp": clock.now_ms() - 1}
    open_log().append([record], partition=free)
    s.refresh()
    assert dict(s.scan()) == in_file(s) == {b"a": b"counts"}
    assert s.get("a") == b"counts"


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_another_process_moves_the_file(make_log, open_store, store, clock, when):
    """What waits stays until the file has it; nothing older is shown meanwhile."""
    make_log(partitions=2)
    s = open_store()
    commit(s, a="1", b="1")
    with StateTable(store, s._file.folder, clock=clock) as table:
        if when == "before":
            table.refresh()
        commit(s, a="2")
        if when == "between":
            table.refresh()
        commit(s, a="3", b=None)
        if when == "after":
            table.refresh()
        assert s.version == s._file.position.version
        assert dict(s.scan()) == {b"a": b"3"}
        assert (s.get("a"), s.get("b")) == (b"3", None)
        commit(s, c="1")
        table.refresh()
        assert dict(table.scan()) == dict(s.scan()) == {b"a": b"3", b"c": b"1"}
    s.close()
    assert in_file(s) == {b"a": b"3", b"c": b"1"}


def test_a_scan_sees_one_state_while_what_waits_is_entered(make_log, open_store):
    """If it started before, it continues with the state of then."""
    make_log()
    s = open_store()
    commit(s, **{f"k{i:04}": "old" for i in range(2000)})
    s._file.settle()
    commit(s, k0000="new", k1999="new")
    scan = s.scan()
    assert next(scan) == (b"k0000", b"new")
    commit(s, k1000="newer", k1999=None)
    s._file.settle()
    rest = dict(scan)
    assert (rest[b"k1000"], rest[b"k1999"]) == (b"old", b"new")


ASKS = (
    lambda s, _: dict(s.scan()),
    lambda s, keys: s.get_many(keys),
    lambda s, keys: {key: s.get(key) for key in keys},
)


@pytest.mark.parametrize("asks", list(permutations(ASKS)))
def test_what_waits_is_older_than_the_file(make_log, open_store, store, clock, asks):
    """Another process has advanced it since: everything that is looked up together is of one
    version.
    """
    log = make_log(partitions=2)
    s = open_store()
    commit(s, a="1", b="1", c="1")
    log.append([{"key": key, "value": "2"} for key in "abc"])
    with StateTable(store, s._file.folder, clock=clock):
        pass
    newer = dict.fromkeys([b"a", b"b", b"c"], b"2")
    for ask in asks:
        assert ask(s, newer) == newer


def test_a_store_that_is_closed_moves_no_file_back(make_log, open_store, store, clock):
    """What waited is older than the file: there is nothing to enter."""
    log = make_log()
    s = open_store()
    commit(s, a="1")
    log.append([{"key": "a", "value": "2"}])
    with StateTable(store, s._file.folder, clock=clock) as table:
        s.close()
        assert (table.version, table.get("a")) == (log.version, b"2")


def test_a_file_is_not_built_anew_without_what_waits(make_log, open_store, monkeypatch, no_room):
    """It has been due since there was no space; rows that wait now are not in it yet."""
    monkeypatch.setattr(local_file, "SMALL_BYTES", 5_000)
    make_log()
    s = open_store(memory_bytes=10_000)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFile, "build", no_room)
        for n in range(20):
            commit(s, **{f"k{i}": f"{n}" * 30 for i in range(20)})
    commit(s, k0="waits")
    right = {f"k{i}".encode(): b"19" * 30 for i in range(20)} | {b"k0": b"waits"}
    assert dict(s.scan()) == right
    assert in_file(s) == right | {b"k0": b"19" * 30}
    s.close()
    assert dict(open_store().scan()) == right


def test_what_waits_changes_between_look_ups(make_log, open_store, store, clock, noting):
    """Another thread's scan reads them, and a thread that has read the file reads them next: they
    are added to and dropped under their lock.
    """
    make_log()
    s = open_store()
    commit(s, a="1")
    cache, free = s._file._cache, []
    rows = cache._waiting

    class Rows(dict):
        update = noting(dict.update, cache._lock, free)

    rows._rows, rows.forget = Rows(rows._rows), noting(rows.forget, cache._lock, free)
    commit(s, b="1")
    assert free == [False]
    with StateTable(store, s._file.folder, clock=clock) as table:
        assert s.version == table.version
    assert (free, rows.position) == ([False, False], None)


def test_no_room_for_what_waits(make_log, open_store, monkeypatch, caplog, no_room):
    """It continues to wait, and the error is raised; a store that is closed leaves it to
    the log.
    """
    make_log()
    s = open_store(memory_bytes=WAITING_SHARE * 2 * (waiting.ROW_BYTES + 2))
    commit(s, a="1")

    with monkeypatch.context() as patch:
        patch.setattr(local_file, "write", no_room)
        commit(s, b="1", c="1")
        assert "is committed, but its local file is behind" in caplog.text
        with pytest.raises(StateFileError, match="free space there"):
            s.get("a")
        s.close()
        assert caplog.text.count("; the log is intact") == 2
    again = open_store()
    assert dict(again.scan()) == {b"a": b"1", b"b": b"1", b"c": b"1"}


def test_a_file_is_built_anew_from_its_own_rows(make_log, open_store, store, clock, monkeypatch):
    """When most of it is dead data; a process that has the older one open switches to the new one,
    without a refresh and without reading the log.
    """
    monkeypatch.setattr(local_file, "SMALL_BYTES", 5_000)
    make_log(partitions=2)
    s, right, paths = open_store(memory_bytes=0), {}, set()
    with StateTable(store, s._file.folder, clock=clock) as table:
        for n in range(60):
            changes = {f"k{i}": f"{n}" * 30 for i in range(n % 7, 40, 7)}
            commit(s, **{**changes, f"k{n % 40}": None})
            right |= {key.encode(): value.encode() for key, value in changes.items()}
            right.pop(f"k{n % 40}".encode(), None)
            paths.add(s._file._cache.path)
            assert {key: table.get(key) for key in right} == right
            assert table.get(f"k{n % 40}") is None
            assert table.version == s.version
        assert dict(table.scan()) == dict(s.scan()) == right
        assert [s._file._cache.path] == list(s._file.folder.glob("*.state"))
    assert 2 < len(paths) < 30


def test_no_room_for_a_smaller_file(make_log, open_store, monkeypatch, no_room, caplog):
    """The existing one continues, and the next commit tries again; a damaged one is rebuilt from
    the log.
    """
    monkeypatch.setattr(local_file, "SMALL_BYTES", 5_000)
    make_log()
    s = open_store(memory_bytes=0)
    with monkeypatch.context() as patch:
        patch.setattr(local_file.LocalFile, "build", no_room)
        for n in range(9):
            commit(s, **{f"k{i}": f"{n}" * 100 for i in range(40)})
    assert "could not be made smaller: " in caplog.text
    size, path = s._file._cache.path.stat().st_size, s._file._cache.path
    (run,) = s._file._cache._file.shown().levels[-1].runs
    with path.open("r+b") as file:
        file.seek(run.at + 500)
        file.write(b"?")
    for n in range(9):
        commit(s, **{f"k{i}": f"{n}" * 100 for i in range(40)})
    assert "its file is damaged: " in caplog.text
    assert s._file._cache.path.stat().st_size < size
    assert dict(s.scan()) == {f"k{i}".encode(): b"8" * 100 for i in range(40)}
