"""A store whose changes are committed with records for other logs, and that is a named reader of
its input (S50, S54, S64).
"""

import shutil
from itertools import count

import pytest

from clog.state.cache import Waiting
from clog.storage import (
    CommitConflictError,
    CommitStateUnknownError,
    InvalidInputError,
    Log,
    StateFencedError,
    StateStore,
    StoreUnavailableError,
)
from clog.storage.env import SeededIds
from clog_testing.crash import discard, memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore


@pytest.fixture
def words(clock):
    """The log that is read."""
    made = memory_store()
    log = Log.create(made, 2, clock=clock, ids=SeededIds(21))
    log.append([{"key": str(i), "value": "x"} for i in range(20)], partition=[0, 1] * 10)
    yield log
    discard(made)


@pytest.fixture
def output_store():
    made = memory_store()
    yield made
    discard(made)


@pytest.fixture
def output(output_store, clock):
    """The log that is written beside the state."""
    return Log.create(output_store, 3, clock=clock, ids=SeededIds(22))


@pytest.fixture
def open_store(store, clock, tmp_path):
    return lambda id="app-1", **more: StateStore(store, tmp_path / "cache", id, clock=clock, **more)


def rows(log):
    return sorted(
        (r["key"], r["value"])
        for batch in log.read(columns=["key", "value"])
        for r in batch.to_pylist()
    )


def test_state_positions_and_outputs_are_one_commit(make_log, open_store, words, output):
    """S50, S54: all or nothing, in one transaction; an output alone is a transaction too."""
    log = make_log(partitions=2)
    s = open_store()
    s.put("n", "1")
    result = s.commit({words: {0: 3}}, outputs={output: [{"key": "a", "value": "1"}]})
    assert set(result.logs) == {log.url, output.url}
    assert rows(output) == [(b"a", b"1")]
    assert s.get("n") == b"1"
    assert s.positions == {words.id: {0: 3}}
    s.commit(outputs={output: [{"key": "b", "value": "1"}]})
    assert len(rows(output)) == 2
    assert [t.state for t in (*log.transactions(), *output.transactions())] == ["committed"]
    again = open_store()
    assert (again.get("n"), again.positions) == (b"1", {words.id: {0: 3}})


def test_outputs_are_entered_without_reading_back(make_log, open_store, words, output, monkeypatch):
    """V6: records for the home log are decided by the commit that contains them."""
    make_log(partitions=2)
    s = open_store()
    taken = []
    add = Waiting.add

    def seen(self, before, after, rows):
        taken.append((after.version, left := add(self, before, after, rows)))
        return left

    monkeypatch.setattr(Waiting, "add", seen)
    s.put("n", "1")
    result = s.commit({words: {0: 3}}, outputs={output: [{"key": "a", "value": "1"}]})
    assert taken[-1] == (result.version, None)


def test_an_output_that_is_refused_commits_nothing(make_log, open_store, words, output):
    """S50: neither state nor positions change; everything can be committed again."""
    make_log()
    s = open_store()
    s.put("n", "1")
    for wrong in ([{"key": None, "value": "1"}], [{"kee": "a"}]):
        with pytest.raises(InvalidInputError):
            s.commit({words: {0: 3}}, outputs={output: wrong})
        assert (rows(output), s.positions, s.get("n")) == ([], {}, b"1")
    s.commit({words: {0: 3}}, outputs={output: [{"key": "a", "value": "1"}]})
    assert rows(output) == [(b"a", b"1")]
    assert s.positions == {words.id: {0: 3}}


@pytest.mark.parametrize("kind", [FaultKind.FAIL_BEFORE, FaultKind.FAIL_AFTER])
def test_an_output_that_cannot_be_reached(make_log, open_store, output_store, output, clock, kind):
    """S50: once or not at all, whichever of its requests is lost: it is retried until it
    is there.
    """
    log = make_log()
    s = open_store()
    for nth in range(12):
        faulty = FaultyStore(output_store)
        hit = Log.open(faulty, clock=clock, ids=SeededIds(50 + nth))
        faulty.plan = Faults(Fault(kind, nth=nth + 1))
        s.put("n", str(nth))
        for _ in range(4):
            try:
                s.commit(outputs={hit: [{"key": f"r{nth}", "value": "1"}]})
            except (CommitStateUnknownError, CommitConflictError, StoreUnavailableError):
                continue
            break
        assert s.get("n") == str(nth).encode()
    assert [key for key, _ in rows(output)] == sorted(f"r{nth}".encode() for nth in range(12))
    assert dict(s.scan()) == {b"n": b"11"}
    assert {t.state for t in log.transactions()} <= {"committed"}


@pytest.mark.parametrize("nth", range(4))
def test_a_fenced_store_with_outputs(make_log, open_store, output, store, clock, tmp_path, nth):
    """S48, S50: it finds out with its next commit, whatever its successor has done; nothing of that
    commit is in any log.
    """
    make_log()
    s = open_store()
    if nth % 2:
        s.put("n", "0")
        s.commit(outputs={output: [{"key": "a", "value": "0"}]})
    after = StateStore(store, tmp_path / "other", "app-1", clock=clock)
    if nth > 1:
        after.put("n", "1")
        after.commit(outputs={output: [{"key": "b", "value": "1"}]})
    before = rows(output)
    s.put("n", "2")
    for _ in range(2):
        with pytest.raises(StateFencedError, match="another holder now"):
            s.commit(outputs={output: [{"key": "c", "value": "2"}]})
    after.put("m", "1")
    after.commit(outputs={output: [{"key": "d", "value": "1"}]})
    assert rows(output) == [*before, (b"d", b"1")]
    assert (after.get("n"), after.get("m")) == ([None, b"0", b"1", b"1"][nth], b"1")


def test_a_takeover_amid_a_commit(make_log, open_store, output_store, store, clock, tmp_path):
    """S48, S54: a host that is replaced at any moment has committed, or gets the error that it is
    fenced, and nothing else: a supervisor acts on that error.
    """
    make_log()
    Log.create(output_store, 1, clock=clock, ids=SeededIds(22))
    outcomes = []
    for nth in count(1):
        s, taken, hit = open_store(), [], FaultyStore(output_store)
        out = Log.open(hit, clock=clock, ids=SeededIds(50 + nth))

        def take_up(taken=taken):
            taken.append(StateStore(store, tmp_path / "other", "app-1", clock=clock))

        hit.plan = Faults(Fault(FaultKind.MEANWHILE, nth=nth, run=take_up))
        s.put("n", str(nth))
        try:
            s.commit(outputs={out: [{"key": str(nth), "value": "1"}]})
            outcomes.append(nth)
        except StateFencedError:
            assert taken
        for one in taken:
            one.close()
        if not taken:
            break
        with open_store() as after:
            assert (after.get("n") or b"0").decode() == str(max(outcomes, default=0))
        assert sorted(int(key) for key, _ in rows(Log.open(output_store))) == outcomes
    assert 0 < len(outcomes) < nth


def test_a_disk_that_goes_under_a_store(make_log, open_store, output, tmp_path):
    """What is committed is shown all the same: the file is rebuilt."""
    make_log()
    s = open_store()
    s.put("a", "1")
    s.commit()
    shutil.rmtree(tmp_path / "cache")
    s.put("b", "1")
    s.commit(outputs={output: [{"key": "a", "value": "1"}]})
    assert dict(s.scan()) == {b"a": b"1", b"b": b"1"}
    s.close()
    assert dict(open_store().scan()) == {b"a": b"1", b"b": b"1"}


def test_a_store_is_a_named_reader_of_its_input(make_log, open_store, words, clock, caplog):
    """S64: the input log shows how far behind the store is; failing to report it fails nothing."""
    make_log()
    s = open_store(reader="app", reader_hold_ms=1000)
    assert words.readers() == []
    s.commit({words: {0: 3}})
    (told,) = words.readers()
    assert (told.name, dict(told.position), told.hold_ms) == ("app", {0: 3, 1: 0}, 1000)
    assert told.lag_records == 17
    s.commit({words: {0: 4}})
    assert dict(words.readers()[0].position) == {0: 3, 1: 0}
    clock.advance(10_000)
    s.commit({words: {1: 5}})
    assert dict(words.readers()[0].position) == {0: 4, 1: 5}
    s.commit({words: {1: 6}})
    s.close()
    assert dict(words.readers()[0].position) == {0: 4, 1: 6}
    with pytest.raises(InvalidInputError, match="not a valid reader name"):
        open_store(reader="a/b")
    again = open_store(reader="app", reader_hold_ms=-1)
    again.commit({words: {0: 9}})
    assert "the position of reader app was not recorded: hold_ms=-1 is out of range" in caplog.text
    assert again.positions[words.id][0] == 9
