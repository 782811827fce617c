"""Repairing a log that two writers wrote in a store that let both of them create a version."""

from contextlib import suppress

import pytest

from clog.storage import (
    AlreadyExistsError,
    ClogError,
    CorruptionError,
    InvalidInputError,
    Log,
    ManualClock,
    NotFoundError,
)
from clog.storage.administration import reset_times
from clog.storage.diagnostics.repair import repair_log
from clog.storage.diagnostics.verify import verify_log
from clog.storage.env import SeededIds
from clog.storage.format.documents import commit_path, decode, encode
from clog.storage.store.contract import WrappingStore
from clog_testing.crash import contents, discard, inside, memory_store
from clog_testing.model import rows_in


class Overwriting(WrappingStore):
    """Both creates of a version succeed, and the last one remains."""

    def create(self, path, data):
        self.inner.put(path, data)


@pytest.fixture
def copy():
    made = memory_store()
    yield made
    discard(made)


@pytest.fixture
def two_writers(make_log, open_log, store):
    """Two handles at one version, of which the second overwrites what the first commits next."""

    def make(commits):
        log = make_log()
        for i in range(commits):
            put(log, f"both {i}")
        return open_log(), open_log(Overwriting(store))

    return make


def put(log, value):
    return log.append([{"key": value, "value": value}]).version


def values(open_log, on):
    return [row[2].value.decode() for row in rows_in(open_log(on).read())]


def repaired(store, copy):
    """The report of a repair that leaves the log as it was and makes a sound copy."""
    before = contents(store)
    report = repair_log(store, copy)
    assert contents(store) == before
    assert report.verified.findings == ()
    return report


@pytest.mark.parametrize("commits", range(1, 9))
def test_a_log_of_many_partitions(make_log, open_log, store, copy, commits, monkeypatch):
    """What is rebuilt refers to the columns that later commits refer to: followers do not read
    them.
    """
    monkeypatch.setattr("clog.storage.format.columns.INLINE_PARTITIONS_MAX", 8)
    log = make_log(24)
    for i in range(commits):
        log.append([{"key": f"{i}", "value": f"both {i}"}], partition=i % 3)
    first, second = open_log(), open_log(Overwriting(store))
    first.append([{"key": "k", "value": "overwritten"}], partition=4)
    second.append([{"key": "k", "value": "stays"}], partition=5)
    for i in range(8):
        first.append([{"key": f"{i}", "value": f"after {i}"}], partition=i % 3)
    report = repaired(store, copy)
    assert report.rebuilt == (commits + 1,)
    assert "overwritten" in values(open_log, copy)
    assert len(values(open_log, copy)) == commits + 9


@pytest.mark.parametrize("commits", range(9))
def test_the_writer_that_went_on_is_kept(two_writers, open_log, store, copy, commits):
    """Its commit was overwritten, a later one carries the edit: nothing that was reported
    is lost.
    """
    first, second = two_writers(commits)
    at = put(first, "overwritten")
    assert put(second, "stays") == at
    for i in range(8):
        put(first, f"after {i}")
    assert verify_log(store).findings
    report = repaired(store, copy)
    assert (report.version, report.rebuilt) == (at + 8, (at,))
    assert [(out.version, out.operation) for out in report.left_out] == [(at, "append")]
    kept = [f"both {i}" for i in range(commits)] + ["overwritten"]
    assert values(open_log, copy) == kept + [f"after {i}" for i in range(8)]
    assert put(open_log(copy), "goes on") == at + 9


@pytest.mark.parametrize("commits", [1, 3, 5])
def test_without_the_edit_the_history_ends_there(two_writers, open_log, store, copy, commits):
    """An odd version carries none: what depends on the overwritten one is left out."""
    first, second = two_writers(commits)
    at = put(first, "overwritten")
    assert put(first, "after") == at + 1
    put(second, "stays")
    report = repaired(store, copy)
    assert (report.version, report.rebuilt) == (at, ())
    assert [(out.version, out.operation) for out in report.left_out] == [(at + 1, "append")]
    assert values(open_log, copy) == [*(f"both {i}" for i in range(commits)), "stays"]


@pytest.mark.parametrize("partitions", [1, 24])
@pytest.mark.parametrize("lost", [5, 7, 8])
def test_lists_with_a_gap_are_made_whole(
    make_log, open_log, store, copy, lost, partitions, monkeypatch
):
    """Release 0.1.0, interrupted as it processed a commit, left a version out of all lists that its
    handle made from then on. Everything else accepts such a log, and a copy has all of it.
    """
    monkeypatch.setattr("clog.storage.format.columns.INLINE_PARTITIONS_MAX", 8)
    log = make_log(partitions)
    for i in range(21):
        log.append([{"key": f"{i}", "value": f"{i}"}], partition=i % partitions)
    for version in range(lost + 1, 22):
        leave_out(inside(store), version, lost)
    expected = [f"{i}" for i in range(21)]
    assert sorted(values(open_log, store)) == sorted(expected)
    findings = verify_log(store).findings
    holed = [v for v in range(lost + 1, 22) if v % 4 == 0 or (v == lost + 1 and v % 2 == 0)]
    assert [f.where for f in findings] == [commit_path(v) for v in holed]
    assert all("fewer than it should" in f.message for f in findings)
    report = repaired(store, copy)
    assert (report.version, report.left_out, report.rebuilt) == (21, (), tuple(holed))
    assert sorted(values(open_log, copy)) == sorted(expected)
    goes_on = open_log(store)
    for i in range(21, 25):
        put(goes_on, f"{i}")
    assert [f.where for f in verify_log(store).findings] == [commit_path(v) for v in holed]


def leave_out(folder, version, lost):
    """Removes a version from the list that a commit carries."""
    path = commit_path(version)
    body = decode("commit", folder.get(path), where=path)
    body["earlier"] = [entry for entry in body["earlier"] if entry["version"] != lost]
    folder.put(path, encode("commit", body))


def test_writers_that_took_turns(two_writers, open_log, store, copy):
    """Each overwrote the other: the history that reaches the highest version is kept, whole."""
    first, second = two_writers(3)[1], open_log(Overwriting(store))
    put(first, "first 4")
    for version in (4, 5, 6):
        assert put(second, f"second {version}") == version
    for version in (5, 6, 7, 8):
        assert put(first, f"first {version}") == version
    report = repaired(store, copy)
    assert (report.version, report.rebuilt) == (8, (4,))
    both = ["both 0", "both 1", "both 2"]
    assert values(open_log, copy) == both + [f"first {version}" for version in (4, 5, 6, 7, 8)]


def test_a_history_with_snapshots(two_writers, open_log, store, copy, monkeypatch):
    """A snapshot of the other history is left out, and old ones are used."""
    monkeypatch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 100)
    first, second = two_writers(30)
    for i in range(10):
        put(first, f"first {i}")
    for i in range(4):
        put(second, f"second {i}")
    report = repaired(store, copy)
    found = values(open_log, copy)
    assert report.version == len(found)
    assert found[30:] in (
        [f"first {i}" for i in range(10)],
        [f"second {i}" for i in range(4)],
    )


@pytest.mark.parametrize("seed", range(12))
def test_whatever_several_writers_left(make_log, open_log, store, copy, monkeypatch, seed):
    """In any order, with snapshots and pages: the copy is sound and continues, or nothing
    is wrong.
    """
    monkeypatch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 200)
    monkeypatch.setattr("clog.storage.format.manifest.PAGE_CHUNKS_MIN", 3)
    ids = SeededIds(seed)
    writers = [make_log(partitions=2, config={"segment.chunks": 2})]
    for i in range(40):
        if ids.uniform() < 0.1 and len(writers) < 4:
            with suppress(ClogError):
                writers.append(open_log(Overwriting(store)))
        writer = writers[int(ids.uniform() * len(writers))]
        with suppress(ClogError):
            change = int(ids.uniform() * 10)
            if change == 0:
                writer.alter({"retention.ms": str(1000 + i)})
            elif change == 1:
                writer.roll()
            else:
                put(writer, str(i))
    try:
        report = repaired(store, copy)
    except InvalidInputError:
        assert verify_log(store).findings == ()
    else:
        assert put(open_log(copy), "goes on") == report.version + 1


def test_a_damaged_commit_is_rebuilt(make_log, open_log, store, copy):
    """It counts as missing, and the one after it carries its edit."""
    log = make_log()
    for i in range(6):
        put(log, str(i))
    inside(store).put(commit_path(3), b"torn")
    report = repaired(store, copy)
    assert report.rebuilt == (3,)
    assert [(out.version, out.operation) for out in report.left_out] == [(3, None)]
    assert values(open_log, copy) == list("012345")


@pytest.mark.parametrize("torn", [5, 6])
def test_times_that_were_set_back_are_no_damage(make_log, open_log, store, copy, torn):
    """FORMAT.md §3.2: one commit may be older than its parent; it is kept, and rebuilt if it was
    lost.
    """
    log = make_log()
    clock = ManualClock(log.handle.clock.now_ms() + 10**9)
    ahead = Log.open(store, clock=clock, ids=SeededIds(7))
    for i in range(4):
        put(ahead, str(i))
    assert reset_times(log.handle) > 0
    assert log.version == 5
    for i in range(4, 9):
        put(log, str(i))
    assert verify_log(store).findings == ()
    inside(store).put(commit_path(torn), b"torn")
    assert repaired(store, copy).rebuilt == (torn,)
    assert values(open_log, copy) == list("012345678")


def test_a_sound_log_is_refused(make_log, store, copy):
    """Nothing to repair, and nothing is written."""
    put(make_log(), "1")
    with pytest.raises(InvalidInputError, match="is sound: nothing to repair"):
        repair_log(store, copy)
    assert list(copy.list("")) == []


def test_no_copy_goes_where_something_is(two_writers, store, copy):
    """Not over another log, nor over the broken one."""
    first, second = two_writers(2)
    put(first, "1")
    put(second, "2")
    put(first, "3")
    copy.put("a", b"1")
    for place in (copy, store):
        with pytest.raises(AlreadyExistsError, match="choose an empty place"):
            repair_log(store, place)


def test_without_a_commit_there_is_nothing_to_repair(make_log, store, copy):
    """An empty store, and one whose only commit cannot be read."""
    with pytest.raises(NotFoundError):
        repair_log(store, copy)
    make_log()
    inside(store).put(commit_path(0), b"torn")
    with pytest.raises((NotFoundError, CorruptionError)):
        repair_log(store, copy)


def test_an_interrupted_copy_is_no_log(two_writers, open_log, store, copy):
    """The file that makes a log comes last."""
    first, second = two_writers(5)
    put(first, "1")
    put(second, "2")
    put(first, "3")

    class Interrupted(WrappingStore):
        def put(self, path, data):
            if path.endswith(commit_path(2)):
                raise ConnectionError
            super().put(path, data)

    with pytest.raises(ConnectionError):
        repair_log(store, Interrupted(copy))
    with pytest.raises(NotFoundError):
        open_log(copy)
