"""Stores: keyed state that is read and written, and whose changelog is the log (S54)."""

import logging
import multiprocessing
import resource
import shutil

import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.state import cache, local_file
from clog.state import table as following
from clog.state.local_file import LocalFile
from clog.state.row_bytes import RowCodec
from clog.storage import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptionError,
    InvalidInputError,
    Log,
    LogReplacedError,
    ManualClock,
    NotFoundError,
    OffsetOutOfRangeError,
    StateFencedError,
    StateFileError,
    StateStore,
    StateTable,
)
from clog.storage.env import SeededIds
from clog_testing.counting import CountingStore
from clog_testing.crash import discard, memory_store
from clog_testing.faults import HAPPENED, NEVER_CAME, Fault, FaultKind, Faults, FaultyStore


def table_of(log):
    return {row["key"]: row["value"] for row in log.table().to_arrow().to_pylist()}


def database(folder):
    (path,) = folder.glob("*.state")
    return path


def test_put_get_delete_scan_commit(make_log, open_store):
    """S54: reads show what was put before the commit; the log shows all of it afterwards, once."""
    log = make_log(partitions=3)
    s = open_store()
    s.put("a", "1")
    s.put(b"ab", b"2")
    s.put("b", "3")
    s.delete("b")
    s.put("c", "")
    assert (s.get("a"), s.get("ab"), s.get("b"), s.get("c"), s.get("x")) == (
        *(b"1", b"2", None, b""),
        None,
    )
    assert s.get_many(["a", "b", "x"]) == {b"a": b"1"}
    assert list(s.scan()) == [(b"a", b"1"), (b"ab", b"2"), (b"c", b"")]
    assert list(s.scan("a")) == [(b"a", b"1"), (b"ab", b"2")]
    assert table_of(log) == {}
    result = s.commit()
    assert table_of(log) == {b"a": b"1", b"ab": b"2", b"c": b""}
    assert (s.version, result.version) == (log.version, log.version)
    assert sum(end - base for base, end in result.offsets.values()) == 4  # with b's tombstone
    s.delete("a")
    s.put("ab", "4")
    assert dict(s.scan()) == {b"ab": b"4", b"c": b""}
    assert s.get_many(["a", "ab", "c"]) == {b"ab": b"4", b"c": b""}
    s.commit()
    assert table_of(log) == dict(s.scan()) == {b"ab": b"4", b"c": b""}


def test_state_and_positions_are_one_commit(make_log, open_store, open_log):
    """S54: the positions of what was read are committed with the results, and merged with earlier
    ones.
    """
    log = make_log(partitions=2)
    other = memory_store()
    source = make_log(partitions=2, on=other)
    source.append([{"key": str(i), "value": "x"} for i in range(20)], partition=[0, 1] * 10)
    s = open_store()
    assert s.next_offsets(source) == {0: 0, 1: 0}
    s.put("n", "1")
    version = s.commit({source: {0: 4}}).version
    assert log.version == version
    assert s.positions == {source.id: {0: 4}} == open_log().positions("app")
    s.commit(positions={source: {1: 7}})
    assert s.positions == {source.id: {0: 4, 1: 7}} == open_log().positions("app")
    assert s.next_offsets(source) == {0: 4, 1: 7}
    assert open_store().positions == {source.id: {0: 4, 1: 7}}
    discard(other)


def test_a_store_that_is_left_has_committed_nothing(make_log, open_store, tmp_path):
    """S49: a process that is gone leaves nothing of what it put, nor of what it rolled back."""
    log = make_log()
    with open_store() as s:
        s.put("a", "1")
        s.commit()
        s.put("a", "2")
        s.put("b", "1")
        s.rollback()
        assert dict(s.scan()) == {b"a": b"1"}
        s.put("c", "1")
    again = open_store()
    assert dict(again.scan()) == table_of(log) == {b"a": b"1"}


@pytest.mark.parametrize("left", ["file", "nothing", "half a file"])
def test_the_file_comes_from_the_log(make_log, open_store, tmp_path, left):
    """A lost or damaged disk costs one read of the table, a crash only the file."""
    log = make_log(partitions=2)
    s = open_store()
    for i in range(50):
        s.put(f"k{i}", f"{i}")
    s.commit({log: {0: 0}})
    s.close()
    if left == "nothing":
        shutil.rmtree(tmp_path / "cache")
    elif left == "half a file":
        path = database(tmp_path / "cache")
        path.write_bytes(path.read_bytes()[:5000])
    again = open_store()
    assert dict(again.scan()) == table_of(log)
    assert again.positions == {log.id: {0: 0}}


def test_the_file_is_the_one_of_state_tables(make_log, open_store, store, clock, tmp_path):
    """The format is the same, and in a shared folder so is the file."""
    make_log()
    s = open_store()
    s.put("a", "1")
    s.commit()
    with StateTable(store, tmp_path / "cache", clock=clock) as table:
        assert table.get("a") == b"1"
        assert table.version == s.version
        s.put("a", "2")
        s.commit()
        assert table.refresh().changed == (b"a",)
        assert table.get("a") == b"2"
    assert len(list((tmp_path / "cache").glob("*.state"))) == 1


def test_what_a_commit_costs(make_log, store, open_store):
    """One object and one commit, whatever the size of the state; nothing of it is read back."""
    log = make_log()
    counting = CountingStore(store)
    s = open_store(on=counting)
    for i in range(1000):
        s.put(f"{i:04}", "x" * 100)
    s.commit()
    s.put("0500", "y")
    before = counting.bytes_in
    with counting.count() as requests:
        s.commit()
        assert s.get("0500") == b"y"
    assert requests == {"put": 1, "create": 1, "get": 1}
    assert counting.bytes_in - before < 500  # the file of the block
    assert len(list(log.read())) == 2
    with counting.count() as requests:
        s.get("0001"), s.put("a", "1"), s.delete("a"), list(s.scan("05"))
        s.rollback()
    assert requests == {}


def test_opening_reads_no_manifest(make_log, store, open_store):
    """The file is whole, and only the cleaner has committed since: its commits are skipped."""
    log = make_log(config={"min.cleanable.dirty.ratio": "0"})
    s = open_store()
    for i in range(30):
        s.put(f"{i}", "1")
        s.commit()
    s.close()
    log.roll()
    Cleaner(log).run_once(force=True)
    counting = CountingStore(store)
    with counting.count() as requests:
        s = open_store(on=counting)
    assert len(dict(s.scan())) == 30
    assert sum(requests.values()) <= 14, requests
    assert "list" not in requests


def test_others_append_to_the_log_too(make_log, open_store):
    """Their records are in the state from the next commit or refresh on."""
    log = make_log(partitions=2)
    s = open_store()
    s.put("a", "1")
    log.append([{"key": "b", "value": "theirs"}])
    assert s.get("b") is None
    s.commit()
    assert dict(s.scan()) == table_of(log) == {b"a": b"1", b"b": b"theirs"}
    log.append([{"key": "a", "value": "theirs"}])
    assert s.refresh().changed == (b"a",)
    assert s.get("a") == b"theirs"


def test_an_undecided_transaction_of_another_comes_before(make_log, open_store, open_log):
    """S51: what the store committed after it is not shown yet; nothing older is shown instead."""
    log = make_log()
    s = open_store()
    s.put("a", "1")
    s.commit()
    other = open_log().transaction("other", visible=True)
    other.append([{"key": "b", "value": "theirs"}])
    s.put("a", "2")
    s.commit()
    for use in (lambda: s.get("a"), lambda: s.put("a", "3"), lambda: s.get_many(["a"])):
        with pytest.raises(CommitConflictError, match="cannot show what it committed yet"):
            use()
    other.commit()
    assert (s.get("a"), s.get("b")) == (b"2", b"theirs")
    s.put("a", "3")
    s.commit()
    assert dict(s.scan()) == table_of(log) == {b"a": b"3", b"b": b"theirs"}


def test_a_store_opened_behind_an_undecided_transaction(make_log, open_store, open_log, tmp_path):
    """S51: whoever takes over the id continues from its positions, so the state shows everything
    that was committed with them, or nothing: otherwise a record would be counted twice here, or not
    at all.
    """
    log = make_log()
    other = open_log().transaction("other", visible=True)
    other.append([{"key": "b", "value": "theirs"}])
    s = open_store()
    s.put("count", "1")
    s.commit({log: {0: 0}})
    s.close()
    again = open_store(folder=tmp_path / "elsewhere")
    assert again.positions == {log.id: {0: 0}}
    for use in (lambda: again.get("count"), lambda: again.put("count", "1"), again.scan):
        with pytest.raises(CommitConflictError, match="cannot show what it committed yet"):
            use()
    other.commit()
    assert again.get("count") == b"1"


def test_a_store_opened_behind_one_that_began_later(make_log, open_store, open_log, tmp_path):
    """S51: it holds back what was committed before it began, with one that was open then."""
    log = make_log()
    one, other = (open_log().transaction(name, visible=True) for name in ("one", "other"))
    one.append([{"key": "x", "value": "1"}])
    s = open_store()
    s.put("count", "1")
    s.commit()
    s.close()
    other.append([{"key": "y", "value": "1"}])
    one.append([{"key": "x", "value": "2"}])
    one.commit()
    again = open_store(folder=tmp_path / "elsewhere")
    with pytest.raises(CommitConflictError, match="cannot show what it committed yet"):
        again.get("count")
    other.commit()
    assert again.get("count") == b"1"
    assert table_of(log)[b"x"] == b"2"


def test_a_store_opened_before_an_undecided_transaction(make_log, open_store, open_log, tmp_path):
    """S51: what follows the last commit under the id hides nothing of it."""
    make_log()
    s = open_store()
    s.put("count", "1")
    s.commit()
    s.close()
    other = open_log().transaction("other", visible=True)
    other.append([{"key": "b", "value": "theirs"}])
    again = open_store(folder=tmp_path / "elsewhere")
    assert dict(again.scan()) == {b"count": b"1"}
    other.commit()


def test_two_stores_with_one_id(make_log, open_store):
    """S48: whoever took over the id last holds it; the other one gets an error, and has committed
    nothing.
    """
    log = make_log()
    first = open_store()
    first.put("a", "1")
    first.commit()
    first.put("a", "zombie")
    second = open_store()
    assert second.get("a") == b"1"
    with pytest.raises(StateFencedError, match="has another holder now"):
        first.commit({log: {0: 0}})
    for use in (
        lambda: first.get("a"),
        lambda: first.put("a", "1"),
        lambda: list(first.scan()),
        lambda: first.get_many(["a"]),
        first.commit,
        first.rollback,
        first.take_over,
    ):
        with pytest.raises(StateFencedError):
            use()
    second.put("a", "2")
    second.commit()
    assert table_of(log) == {b"a": b"2"}
    assert second.positions == {}


def test_a_takeover_between_commit_and_entering(make_log, open_store, monkeypatch):
    """The next store starts with what was committed before the takeover."""
    make_log()
    first = open_store()
    first.put("a", "1")
    seen = []
    enter = following.Follower.enter

    def taken_meanwhile(self, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(following.Follower, "enter", enter)
            seen.append(open_store(folder=first._file.folder / "other").get("a"))
        enter(self, *arguments)

    monkeypatch.setattr(following.Follower, "enter", taken_meanwhile)
    first.commit()
    assert seen == [b"1"]
    assert first.get("a") == b"1"


def test_a_standby_follows_and_takes_over(make_log, open_store, tmp_path):
    """It reads what is committed, refuses to write, and has everything once it takes over."""
    log = make_log()
    active = open_store()
    standby = open_store(folder=tmp_path / "other", standby=True)
    assert (standby.is_standby, active.is_standby) == (True, False)
    active.put("a", "1")
    active.commit({log: {0: 0}})
    assert standby.get("a") is None
    assert standby.refresh().changed == (b"a",)
    assert (standby.get("a"), standby.positions) == (b"1", {log.id: {0: 0}})
    for use in (lambda: standby.put("a", "2"), lambda: standby.delete("a"), standby.commit):
        with pytest.raises(InvalidInputError, match=r"is a standby.*take_over\(\) first"):
            use()
    active.put("a", "2")
    active.commit()
    standby.take_over()
    standby.take_over()
    assert (standby.get("a"), standby.positions) == (b"2", {log.id: {0: 0}})
    standby.put("a", "3")
    standby.commit()
    with pytest.raises(StateFencedError):
        active.commit()
    assert table_of(log) == {b"a": b"3"}


def test_a_standby_follows(make_log, open_store, clock):
    make_log()
    active, standby = open_store(), open_store(standby=True)
    following_it = standby.follow(poll_ms=10)
    active.put("a", "1")
    active.commit()
    assert next(following_it).version == active.version


@pytest.fixture(params=[HAPPENED, NEVER_CAME], ids=["happened", "never came"])
def in_doubt(request, make_log, store, open_store):
    """A store whose last commit may have happened, its faulty log, and whether it happened."""
    log = make_log()
    faulty = FaultyStore(store)
    s = open_store(on=faulty)
    s.put("a", "1")
    faulty.plan = Faults(*request.param)
    with pytest.raises(CommitStateUnknownError):
        s.commit({log: {0: 0}})
    with pytest.raises(InvalidInputError, match=r"is not known, so nothing .* or rollback\(\)"):
        s.put("a", "2")
    assert s.get("a") == b"1"
    faulty.plan = Faults()
    return s, log, request.param is HAPPENED


def test_what_others_append_while_a_commit_is_in_doubt_is_shown(in_doubt):
    """V6: what follows the commit is read too, if it happened before that was known."""
    s, log, _ = in_doubt
    log.append([{"key": "b", "value": "others"}])
    s.commit()
    assert dict(s.scan()) == {b"a": b"1", b"b": b"others"}


def test_a_commit_in_doubt_is_committed_again(in_doubt):
    """H-T13: it is there once, with its positions; then the store continues."""
    s, log, _ = in_doubt
    s.commit()
    assert len(list(log.read())) == 1
    assert s.positions == {log.id: {0: 0}}
    s.put("a", "2")
    s.commit()
    assert (s.get("a"), table_of(log)) == (b"2", {b"a": b"2"})


def test_a_commit_in_doubt_of_the_first_holder_is_left_to_the_next(in_doubt, open_store, tmp_path):
    """S54: nobody can know what became of it, as the next store has committed since; but that one
    continues from the actual state, and this one is fenced.
    """
    s, _, _ = in_doubt
    newer = open_store(folder=tmp_path / "newer")
    newer.put("a", "2")
    newer.commit()
    with pytest.raises(StateFencedError, match="has another holder now"):
        s.commit()
    with pytest.raises(StateFencedError):
        s.get("a")


def test_a_commit_in_doubt_is_rolled_back(in_doubt):
    """H-T13: it never happens, or it is reported to have happened; the store shows which."""
    s, log, happened = in_doubt
    if happened:
        with pytest.raises(InvalidInputError, match=r"is committed to .* cannot be aborted"):
            s.rollback()
    else:
        s.rollback()
    assert dict(s.scan()) == table_of(log) == ({b"a": b"1"} if happened else {})
    assert s.positions == ({log.id: {0: 0}} if happened else {})
    s.put("b", "2")
    s.commit()
    assert dict(s.scan()) == table_of(log)


class NobodyTells:
    """A fault plan: from the first commit on, no commit can be read."""

    def __init__(self, kind):
        self._of_commits = Faults(Fault(kind, "create", "*commits/*", times=99))
        self._began = False

    def fault(self, call):
        self._began |= call.operation == "create"
        blind = Faults(Fault(FaultKind.FAIL_BEFORE, "get", "*commits/*"))
        return self._of_commits.fault(call) or (blind.fault(call) if self._began else None)


@pytest.mark.parametrize("kind", [FaultKind.FAIL_AFTER, FaultKind.FAIL_BEFORE])
def test_a_first_take_up_in_doubt_names_no_other_holder(make_log, store, open_store, kind):
    """The id had a holder before, and no holder is known now: opening again is safe."""
    make_log()
    open_store().close()
    faulty = FaultyStore(store, NobodyTells(kind))
    with pytest.raises(CommitStateUnknownError):
        open_store(on=faulty)
    faulty.plan = Faults()
    s = open_store(on=faulty)
    s.put("a", "1")
    s.commit()
    assert s.get("a") == b"1"


def test_a_commit_that_is_refused_changes_nothing(make_log, open_store):
    """The changes are still there, to be corrected and committed again."""
    log = make_log(config={"max.message.bytes": "100"})
    s = open_store()
    s.put("a", "1")
    s.put("big", "x" * 200)
    with pytest.raises(InvalidInputError, match=r"larger than max\.message\.bytes=100"):
        s.commit()
    assert table_of(log) == {}
    assert s.get("big") == b"x" * 200
    s.put("big", "small")
    s.commit()
    assert table_of(log) == dict(s.scan()) == {b"a": b"1", b"big": b"small"}


def test_positions_that_cannot_be(make_log, open_store):
    """S38: a position beyond the end is refused, and nothing is committed; what was put
    stays put.
    """
    log = make_log()
    other = memory_store()
    source = make_log(partitions=2, on=other)
    source.append([{"key": "k", "value": "v"}], partition=0)
    s = open_store()
    s.put("a", "1")
    with pytest.raises(OffsetOutOfRangeError, match="offset 2 of partition 0 is beyond the end"):
        s.commit({source: {0: 2}})
    with pytest.raises(InvalidInputError, match="partitions 0 to 1"):
        s.commit({source: {2: 0}})
    with pytest.raises(InvalidInputError, match="is neither a log"):
        s.commit({"source": {0: 0}})
    assert table_of(log) == {}
    reader = Log.open(other)
    source.append([{"key": "k", "value": "v"}], partition=0)
    s.commit({reader: {0: 2}})  # a handle that has not seen the end yet
    assert s.positions == {source.id: {0: 2}}
    source.append([{"key": "k", "value": "v"}] * 3, partition=0)
    source.delete_records({0: 3})
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 2 .* is below the log start offset 3"):
        s.next_offsets(source)
    discard(other)


def test_a_source_that_was_recreated_begins_anew(make_log, open_store, clock):
    """S47: positions belong to a log, not to its path."""
    make_log()
    other = memory_store()
    source = make_log(on=other)
    source.append([{"key": "k", "value": "v"}])
    s = open_store()
    s.commit({source: {0: 1}})
    discard(other)
    again = make_log(on=other)
    assert s.next_offsets(again) == {0: 0}
    assert set(s.positions) == {source.id}
    discard(other)


def test_a_source_that_removed_tombstones(make_log, open_store, clock):
    """S41, S54: a job that was away so long that it missed a delete gets an error."""
    make_log()
    other = memory_store()
    source = make_log(
        on=other, config={"delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0"}
    )
    source.append([{"key": "k", "value": "v"}])
    s = open_store()
    s.commit({source: {0: 1}})
    source.append([{"key": "k", "value": None}])
    for _ in range(3):
        source.roll()
        Cleaner(source).run_once(force=True)
        clock.advance(1)
    source.append([{"key": "z", "value": "v"}])
    list(source.read())
    end = source.end_offsets()
    with pytest.raises(NotFoundError, match="it has missed deletes"):
        s.commit({source: end})
    s.commit({source: end}, missed_deletes=True)
    assert s.positions == {source.id: end}
    discard(other)


def test_a_log_that_is_recreated_under_a_store(tmp_path, clock):
    """S47: the store gets an error, and shows nothing of the new log; opened again it
    starts there.
    """
    root = tmp_path / "log"
    Log.create(str(root), partitions=1, clock=clock)
    with StateStore(str(root), tmp_path / "cache", "app", clock=clock) as s:
        s.put("a", "1")
        s.commit()
        shutil.rmtree(root)
        log = Log.create(str(root), partitions=1, clock=clock)
        log.append([{"key": "b", "value": "1"}])
        s.put("a", "2")
        with pytest.raises(LogReplacedError):
            s.commit({})
        clock.advance(60_000)
        with pytest.raises(LogReplacedError):
            s.refresh()
        assert table_of(log) == {b"b": b"1"}
    with StateStore(str(root), tmp_path / "cache", "app", clock=clock) as s:
        assert (dict(s.scan()), s.positions) == ({b"b": b"1"}, {})


def test_a_full_disk(make_log, open_store, monkeypatch, caplog, no_room):
    """What is committed is committed; until there is space nothing old is shown."""
    log = make_log()
    s = open_store(memory_bytes=4 << 20)
    for i in range(2000):
        s.put(f"{i:05}", "x" * 1000)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(local_file, "write", no_room)
        s.commit({log: {0: 0}})
        assert "is committed, but its local file is behind" in caplog.text
        assert len(table_of(log)) == 2000
        for use in (lambda: s.get("00001"), lambda: s.put("a", "1"), lambda: list(s.scan())):
            with pytest.raises(StateFileError, match="free space there"):
                use()
        with pytest.raises(StateFileError, match="No space left"):
            open_store(folder=s._file.folder / "other")
    again = open_store()
    assert again.positions == {log.id: {0: 0}}
    assert dict(again.scan()) == table_of(log)


def test_a_full_disk_that_gets_room_again(make_log, open_store, monkeypatch, no_room):
    """The store continues where it was."""
    log = make_log()
    s = open_store(memory_bytes=0)
    s.put("a", "1")

    with monkeypatch.context() as patch:
        patch.setattr(cache.Cache, "_apply", no_room)
        s.commit()
        with pytest.raises(StateFileError):
            s.get("a")
    assert s.get("a") == b"1"
    s.put("a", "2")
    s.commit()
    assert dict(s.scan()) == table_of(log)


@pytest.mark.parametrize("bytes_max", [2_000, 20_000, 60_000])
def test_files_that_may_not_grow(make_log, open_store, bytes_max):
    """A quota, for which SQLite only says that it cannot write: treated like a full disk."""
    log = make_log(partitions=2)
    right = {f"{i:04}".encode(): b"x" * 100 for i in range(500)}
    log.append([{"key": key, "value": value} for key, value in right.items()])
    free = resource.getrlimit(resource.RLIMIT_FSIZE)
    told = 0
    for n in range(4):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, free[1]))
            s = open_store(memory_bytes=20_000)
            for i in range(300):
                s.put(f"n{n}-{i:04}", "y" * 100)
        except StateFileError:
            told += 1
            resource.setrlimit(resource.RLIMIT_FSIZE, free)
            s = open_store(memory_bytes=20_000)
            for i in range(300):
                s.put(f"n{n}-{i:04}", "y" * 100)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, free[1]))
            s.commit()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, free)
        right |= {f"n{n}-{i:04}".encode(): b"y" * 100 for i in range(300)}
        assert dict(s.scan()) == right
    assert told


def test_damage_that_a_get_meets(make_log, open_store, tmp_path, caplog):
    """The file is rebuilt from the log; what is not committed stays."""
    log = make_log()
    with open_store() as s:
        for i in range(20_000):
            s.put(f"{i:06}", "x" * 100)
        s.commit()
    path = database(tmp_path / "cache")
    s = open_store()
    s.put("010000", "new")
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 4)
        file.write(b"\x55" * (path.stat().st_size // 2))
    with caplog.at_level(logging.WARNING):
        assert len(s.get_many([f"{i:06}" for i in range(20_000)])) == 20_000
    assert ": its file is damaged" in caplog.text
    assert (s.get("010000"), s.get("010001")) == (b"new", b"x" * 100)
    s.commit()
    assert table_of(log)[b"010000"] == b"new"


def test_more_than_memory_holds(make_log, open_store):
    """Bounded memory: what does not fit goes to a private temporary file; all results are the same,
    and so is the commit.
    """
    log = make_log(partitions=3)
    s = open_store(memory_bytes=20_000)
    expected = {}
    for i in range(3000):
        key = f"{i * 7919 % 1500:05}"
        if i % 10 == 3:
            s.delete(key)
            expected.pop(key.encode(), None)
        else:
            s.put(key, str(i))
            expected[key.encode()] = str(i).encode()
        assert s._changes._recent_bytes <= 20_000
    assert dict(s.scan()) == expected
    assert [k for k, _ in s.scan()] == sorted(expected)
    assert list(s.scan("0012")) == sorted((k, v) for k, v in expected.items() if k[:4] == b"0012")
    assert s.get_many(expected) == expected
    assert all(s.get(key) == value for key, value in expected.items())
    s.commit()
    assert table_of(log) == dict(s.scan()) == expected
    offsets = [row["offset"] for row in log.table(partition=0).to_arrow().to_pylist()]
    ((_, stored),) = [(0, rows_of_file(s, 0))]
    assert sorted(offsets) == stored
    s.put("x", "1")
    s.commit()
    assert s.refresh().changed == ()


def test_no_room_for_what_is_not_committed(make_log, open_store, monkeypatch):
    """The change that needs space is refused with a message; all others are looked up as before,
    scanned and committed, and then there is space again.
    """
    log = make_log(partitions=2)
    private, pages = cache._private, []

    def small():
        connection = private()
        connection.execute("pragma max_page_count = 30")
        pages.append(connection)
        return connection

    monkeypatch.setattr(cache, "_private", small)
    monkeypatch.setattr(cache, "RANGE_ROWS", 7)
    s = open_store(memory_bytes=10_000)
    expected, refused = {}, []
    for round_ in range(2):
        for i in range(1500):
            key, value = f"{i * 7919 % 1500:05}".encode(), f"{round_}-{i:0100}".encode()
            try:
                s.put(key, value)
            except StateFileError as e:
                refused.append(str(e))
            else:
                expected[key] = value
        assert "commit them, free space, or start the process with SQLITE_TMPDIR" in refused[-1]
        assert s._changes._recent_bytes <= 10_000
        assert dict(s.scan()) == s.get_many(f"{i:05}" for i in range(1500)) == expected
        with pytest.raises(StateFileError):
            s.put("large", "x" * 10_000)
        assert s.get("large") is None
        s.commit()
        assert table_of(log) == dict(s.scan()) == expected


def test_changes_that_cannot_be_read_back(make_log, open_store, monkeypatch):
    """The temporary file is damaged: the file of the state is not, and is not rebuilt."""
    log = make_log()
    s = open_store(memory_bytes=1000)
    for i in range(30):
        s.put(f"{i:05}", "x" * 100)
    s._changes._spilled.execute("drop table changes")
    for use in (lambda: s.get("00000"), lambda: list(s.scan()), s.commit):
        with pytest.raises(CorruptionError, match=r"call rollback\(\), and put them again"):
            use()
    s.rollback()
    s.put("a", "1")
    s.commit()
    assert table_of(log) == dict(s.scan()) == {b"a": b"1"}


def rows_of_file(s, partition):
    file = LocalFile(s._file._cache.path)
    (run,) = file.shown().levels[0].runs
    rows = file._rows_from(run, b"", 0)
    return sorted(offset for _, p, _, offset, _, value, _ in rows if p == partition and value)


def test_ranges_of_what_is_spilled(monkeypatch):
    """Fetched some rows at a time, each range complete."""
    monkeypatch.setattr(cache, "RANGE_ROWS", 3)
    changes = cache.Uncommitted(RowCodec(None), 1000)
    keys = [bytes([i]) for i in range(50)]
    for key in reversed(keys):
        changes.put(key, key * 10)
    assert [k for k, _ in changes.between(b"", None)] == keys
    assert [k for k, _ in changes.between(b"\x05", b"\x0b")] == keys[5:11]
    assert [k for part in changes.parts() for k, _ in part] == keys
    assert max(len(part) for part in changes.parts()) < 6
    changes.close()
    assert not changes


def test_changes_beside_a_scan_of_another_thread(noting):
    """Nobody changes what a scan moves to the database and reads: otherwise a put row would be
    lost, or the scan would fail.
    """
    changes, free = cache.Uncommitted(RowCodec(None), 1000), []

    class Rows(dict):
        __iter__ = noting(dict.__iter__, changes._lock, free)

    changes._recent = Rows({b"a": b"1"})
    assert list(changes.between(b"", None)) == [(b"a", b"1")]
    for i in range(10):
        changes.put(b"%d" % i, b"1" * 100)
    changes._recent = Rows({b"b": b"1"})
    assert list(changes.between(b"b", None)) == [(b"b", b"1")]
    assert len(free) >= 3
    assert not any(free)
    changes.close()


def test_a_scan_sees_one_state(make_log, open_store):
    """A commit in the middle of the scan changes nothing for it."""
    make_log()
    s = open_store()
    for i in range(900):
        s.put(f"{i:03}", "1")
    s.commit()
    for i in range(0, 900, 2):
        s.put(f"{i:03}", "2")
    scan = s.scan()
    rows = [next(scan)]
    s.commit()
    for i in range(900):
        s.put(f"{i:03}", "3")
    s.commit()
    assert dict([*rows, *scan]) == {b"%03d" % i: b"12"[~i % 2 :][:1] for i in range(900)}


@pytest.mark.parametrize("memory_bytes", [1000, 1 << 20], ids=["spilled", "in memory"])
@pytest.mark.parametrize("begun", [0, 1], ids=["called", "begun"])
def test_a_scan_shows_the_store_as_it_was_asked_for(
    make_log, open_store, monkeypatch, memory_bytes, begun
):
    """Whatever is put, committed, rolled back and refreshed after the call: never a mixture."""
    make_log(partitions=2)
    s = open_store(memory_bytes=memory_bytes)
    monkeypatch.setattr(cache, "RANGE_ROWS", 7)
    keys, right, scans = [f"{i:03}" for i in range(60)], {}, []

    def scan():
        rows = s.scan()
        scans.append(([next(rows) for _ in range(begun)], rows, dict(right)))

    for n in range(4):
        for key in keys[n:]:
            s.put(key, f"{n}" * 20)
            right[key.encode()] = f"{n}".encode() * 20
        scan()
        for key in keys[:20:3]:
            s.delete(key)
            right.pop(key.encode(), None)
        scan()
        s.commit()
        scan()
        s.put("later", "1")
        s.rollback()
    s.refresh()
    for rows, rest, expected in scans:
        assert [*rows, *rest] == sorted(expected.items())


def test_a_spilled_scan_of_a_store_that_is_closed(make_log, open_store):
    """It does not end as if there were no more rows."""
    make_log()
    s = open_store(memory_bytes=1000)
    for i in range(50):
        s.put(f"{i:03}", "x" * 100)
    rows = s.scan()
    s.close()
    with pytest.raises(InvalidInputError, match="was closed during the scan"):
        list(rows)


def test_a_store_that_is_closed(make_log, open_store):
    """Each call is refused in the user's terms, and changes nothing."""
    log = make_log()
    s = open_store(memory_bytes=1000)
    for i in range(30):
        s.put(f"{i:03}", "x" * 100)
    s.commit()
    s.put("a", "1")
    before = log.handle.refresh().version
    s.close()
    s.close()
    for use in (
        *(lambda: s.get("a"), lambda: s.get_many(["a"]), lambda: s.get_many([]), s.scan),
        *(lambda: s.put("a", "2"), lambda: s.delete("a"), s.commit, s.rollback, s.refresh),
        *(s.take_over, lambda: next(s.follow()), lambda: s.next_offsets(log)),
        *(lambda: s.positions, lambda: s.version),
    ):
        with pytest.raises(InvalidInputError, match=r"was closed; open it again"):
            use()
    assert s.url in repr(s)
    assert log.handle.refresh().version == before
    standby = open_store(standby=True)
    standby.close()
    for use in (lambda: standby.positions, standby.take_over, standby.refresh):
        with pytest.raises(InvalidInputError, match=r"was closed; open it again"):
            use()
    assert log.handle.refresh().version == before


def test_a_store_whose_file_cannot_be_written_is_closed_once(
    make_log, open_store, monkeypatch, no_room
):
    """The second time there is nothing more to do."""
    make_log()
    s = open_store()
    s.put("a", "1")
    s.commit()

    monkeypatch.setattr(cache.Cache, "_apply", no_room)
    s.close()
    s.close()


def test_typed_logs(store, clock, open_store):
    """Keys and values are those of the schema, before the commit as after it; what does not fit is
    refused when it is put (S62).
    """
    point = pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.string()))])
    key = pa.struct([("city", pa.string()), ("n", pa.int16())])
    log = Log.create(store, partitions=2, clock=clock, schema={"key": key, "value": point})
    s = open_store()
    s.put(("Riga", 1), {"x": 5, "tags": ["a"]})
    s.put(("Riga", 2), {"x": None, "tags": None})
    s.put({"city": "Oslo", "n": None}, {"x": 7})
    with pytest.raises(InvalidInputError, match=r"value\.x"):
        s.put(("Riga", 3), {"x": "text"})
    with pytest.raises(InvalidInputError, match="is None; delete the key instead"):
        s.put(("Riga", 3), None)
    with pytest.raises(InvalidInputError):
        s.put("Riga", {"x": 5})
    expected = {
        ("Oslo", None): {"x": 7, "tags": None},
        ("Riga", 1): {"x": 5, "tags": ["a"]},
        ("Riga", 2): {"x": None, "tags": None},
    }
    assert list(s.scan()) == list(expected.items())
    assert dict(s.scan(("Riga",))) == {k: v for k, v in expected.items() if k[0] == "Riga"}
    s.commit()
    assert list(s.scan()) == list(expected.items())
    assert (
        s.get_many(expected)
        == expected
        == {
            (row["key"]["city"], row["key"]["n"]): row["value"]
            for row in log.table().to_arrow().to_pylist()
        }
    )
    s.put(("Riga", 1), {"x": 6})
    log.evolve(add={"value.note": pa.string()}, widen={"value.x": pa.int64()})
    s.refresh()
    assert s.get(("Riga", 1)) == {"x": 6, "tags": None}
    assert s.get(("Riga", 2)) == {"x": None, "tags": None, "note": None}
    s.commit()
    assert s.get(("Riga", 1)) == {"x": 6, "tags": None, "note": None}
    s.put(("Riga", 1), {"x": 1 << 40, "note": "far"})
    s.commit()
    assert s.get(("Riga", 1)) == {"x": 1 << 40, "tags": None, "note": "far"}
    assert log.table().get(("Riga", 1)) == s.get(("Riga", 1))


@pytest.mark.parametrize("value", [5, None, 1.5, "\ud800", ["x"]])
def test_values_that_are_none(make_log, open_store, value):
    make_log()
    with pytest.raises(InvalidInputError, match=r"a value to put "):
        open_store().put("a", value)


def test_retention_takes_what_is_old(make_log, open_store, clock):
    """TTL: under ``compact,delete`` what retention removed is removed from the state too."""
    log = make_log(config={"cleanup.policy": "compact,delete", "retention.ms": "1000"})
    s = open_store()
    s.put("old", "1")
    s.commit()
    log.roll()
    clock.advance(5000)
    s.put("new", "1")
    s.commit()
    Cleaner(log).run_once(force=True)
    assert s.refresh().changed is None
    assert dict(s.scan()) == table_of(log) == {b"new": b"1"}
    again = open_store()
    assert dict(again.scan()) == {b"new": b"1"}


def test_times_that_the_log_gives(make_log, open_store, clock):
    """S9: under LogAppendTime rows of the file have the time of the commit, like those of
    the log.
    """
    log = make_log(config={"message.timestamp.type": "LogAppendTime"})
    s = open_store()
    s.put("a", "1")
    s.commit()
    assert (s.get("a"), s.refresh().changed) == (b"1", ())
    assert dict(s.scan()) == table_of(log)


def test_the_time_of_the_commit_decides_between_partitions(make_log, open_store, store, clock):
    """S9, V6: under LogAppendTime a commit is later than its predecessor, even if the clock of the
    store's machine is behind: the file has the log's times, not those at which changes were sent.
    """
    log = make_log(partitions=2, config={"message.timestamp.type": "LogAppendTime"})
    s = open_store()
    s.put("b", "1")
    s.commit()
    assert log.end_offsets() == {0: 0, 1: 1}  # Of equal times, the higher partition counts.
    ahead = Log.open(store, clock=ManualClock(clock.now_ms() + 1000), ids=SeededIds(1))
    ahead.append([{"key": "b", "value": "of another"}], partition=0)
    s.refresh()
    assert s.get("b") == b"of another"
    s.put("b", "2")
    s.commit()
    assert (s.get("b"), s.get_many(["b"]), dict(s.scan())) == (b"2", {b"b": b"2"}, {b"b": b"2"})
    assert log.table().get("b") == b"2"


def test_the_order_of_records_is_altered_before_a_commit(make_log, open_store, clock):
    """S56: what was put may lose to an earlier record, in the log and therefore in the state."""
    log = make_log()
    later = clock.now_ms() + 1000
    log.append([{"key": "a", "value": "of a later time", "timestamp": later}])
    s = open_store()
    s.put("a", "1")
    s.put("b", "1")
    log.alter({"compaction.strategy": "timestamp"})
    s.refresh()
    s.commit()
    right = {b"a": b"of a later time", b"b": b"1"}
    assert dict(s.scan()) == table_of(log) == right


def test_an_empty_commit_commits_nothing(make_log, open_store):
    log = make_log()
    s = open_store()
    version = log.version
    assert s.commit().version == version
    assert log.version == version
    with pytest.raises(InvalidInputError, match="a transaction id must be text"):
        open_store(id="")


def test_a_forked_child_holds_nothing(make_log, tmp_path):
    """Two processes under one id could not be told apart: the child is refused, the
    parent is not.
    """
    url = str(tmp_path / "log")
    Log.create(url, partitions=1)
    with StateStore(url, tmp_path / "cache", "app") as s:
        s.put("a", "1")
        context = multiprocessing.get_context("fork")
        answers = context.Queue()

        def child():
            try:
                s.commit()
                answers.put("committed")
            except StateFencedError:
                answers.put("fenced")

        process = context.Process(target=child)
        process.start()
        assert answers.get(timeout=60) == "fenced"
        process.join()
        s.commit()
        assert s.get("a") == b"1"
