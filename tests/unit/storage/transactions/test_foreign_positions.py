"""Positions in what is not a log, and the sequence that was committed last (S73)."""

import pytest

from clog.storage import InvalidInputError
from clog.storage.diagnostics.describe import history
from clog.storage.diagnostics.verify import verify_log
from clog.storage.errors import CorruptionError
from clog.storage.format import documents, writers
from clog.storage.format.commits import edit_from_json
from clog.storage.format.transactions import TRANSACTION, PositionsAt
from clog_testing.crash import inside
from clog_testing.invariants import check_log

TOPIC = "kafka:MkU3OEVBNTcwNTJENDM2Qg/0Zx1vP0hTQmXlTQyZ2rHdA"
AGAIN = TOPIC.replace("0Zx1", "9Yw2")
FEW = 4
ONE = [{"key": "k", "value": "v"}]


@pytest.fixture
def few_writers(monkeypatch):
    """A head soon drops the entries that were used longest ago."""
    monkeypatch.setattr(writers, "WRITERS_MAX", FEW)


def stored(log, name="job"):
    """What the head has of an id's positions."""
    (entry,) = [w for w in log.handle.refresh().head.writers if w.key == (TRANSACTION, name)]
    return entry.transaction.positions


def commit_positions(log, source, offsets, name="job"):
    with log.transaction(name) as t:
        t.positions(source, offsets)


def test_they_are_committed_beside_those_in_logs(make_log, open_log, store):
    """S73: with the records, by name and partition, with their marks; an abort leaves the earlier
    ones, and so do other partitions, names and ids.
    """
    log = make_log()
    with log.transaction("job") as t:
        t.positions(log, {0: 0})
    with log.transaction("job") as t:
        t.append(ONE)
        t.positions(TOPIC, {0: (42, "7"), 1: 17})
    t = log.transaction("job")
    t.positions(TOPIC, {0: 43})
    assert open_log().positions("job") == {log.id: {0: 0}, TOPIC: {0: 42, 1: 17}}
    t.abort()
    commit_positions(log, TOPIC, {1: (18, None)})
    commit_positions(log, AGAIN, {0: (0, "0")})
    commit_positions(log, TOPIC, {0: 1}, "other")
    expected = {
        log.id: {0: (0, None)},
        TOPIC: {0: (42, "7"), 1: (18, None)},
        AGAIN: {0: (0, "0")},
    }
    assert log.positions("job", marks=True) == open_log().positions("job", marks=True) == expected
    assert log.positions("other") == {TOPIC: {0: 1}}
    offsets = {TOPIC: {"0": 42, "1": 18}, AGAIN: {"0": 0}}
    assert log.describe()["sources"] == {"job": offsets, "other": {TOPIC: {"0": 1}}}
    assert len(list(history(log.handle, log.handle.refresh(), 0))) == log.version + 1
    check_log(store)


def test_a_takeover_keeps_them(make_log, open_log):
    """S48, S73: whoever takes over the id asks, and continues from there."""
    log, other = make_log(), open_log()
    commit_positions(log, TOPIC, {0: (42, "7")})
    other.transaction("job")
    assert other.positions("job", marks=True) == {TOPIC: {0: (42, "7")}}
    with other.transaction("job") as t:
        t.append(ONE)
    assert log.positions("job", marks=True) == {TOPIC: {0: (42, "7")}}


def test_many_are_a_document_with_those_in_logs(make_log, open_log, store, few_writers):
    """FORMAT.md §11.4: both kinds in one, once they have more than 1 KiB together; damage is found;
    when it moves to a page of older writers they are inline.
    """
    log = make_log()
    offsets = {p: (10**12 + p, "7") for p in range(30)}
    commit_positions(log, TOPIC, offsets)
    commit_positions(log, log, {0: 0})
    assert not isinstance(stored(log), PositionsAt)
    commit_positions(log, TOPIC, {p + 30: at for p, at in offsets.items()})
    document = stored(log)
    assert isinstance(document, PositionsAt)
    there = log.positions("job", marks=True)
    assert len(there[TOPIC]) == 60
    assert there[log.id] == {0: (0, None)}
    assert len(log.describe()["sources"]["job"][TOPIC]) == 60
    open_log().transaction("job")
    assert stored(log) == document
    assert verify_log(store).findings == ()
    for n in range(2 * FEW):
        log.append(ONE, producer=(f"p{n}", 1))
    inside(store).delete(document.path)  # as the sweep does after a day
    assert open_log().positions("job", marks=True) == there
    check_log(store, every_version=False)
    open_log().transaction("job")
    inside(store).delete(stored(log).path)
    assert documents.PAGES in str(verify_log(store).findings)


@pytest.mark.parametrize(
    "name",
    ["", "topic", ":x", "kafka:", "1:x", "a b:c", "kafka:a\nb", "kafka:\ud800", "k:" + 511 * "x"],
)
def test_what_is_no_name(make_log, name):
    """FORMAT.md §11.4: not a log's id, nothing that cannot be stored; nothing of it is kept."""
    log = make_log()
    t = log.transaction("job")
    with pytest.raises(InvalidInputError, match="nor the name of another source; give a Log"):
        t.positions(name, {0: 1})
    assert (t.commit().offsets, log.positions("job")) == ({}, {})


def test_a_url_is_no_name(make_log):
    """S73: it says where something is, not what it is, and may contain a password."""
    log = make_log()
    t = log.transaction("job")
    with pytest.raises(InvalidInputError, match="not a URL") as told:
        t.positions("postgresql://me:secret@host/db", {0: 1})
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    "offsets",
    [
        *({0: -1}, {0: 1.5}, {0: True}, {0: 1 << 63}, {"0": 1}, {1 << 31: 0}, [1], None),
        *({0: (1, "")}, {0: (1, 7)}, {0: (1, "x" * 129)}, {0: (1, "\ud800")}, {0: (1,)}),
        {0: (1, "7", 8)},
    ],
    ids=repr,
)
def test_what_is_no_position(make_log, offsets):
    """The bounds of FORMAT.md §11.4, with messages; nothing of it is committed."""
    log = make_log()
    t = log.transaction("job")
    with pytest.raises(InvalidInputError, match=r"is not a position in kafka:"):
        t.positions(TOPIC, offsets)
    assert (t.commit().offsets, log.positions("job")) == ({}, {})


@pytest.mark.parametrize("name", ["a" * 32, "kafka:", "x", "kafka://h/t", 7])
def test_a_log_with_another_name_is_damaged(name):
    """FORMAT.md §11.4."""
    at = {"p": [0], "offset": [1]}
    state = {"epoch": 0, "number": 0, "committed": None, "foreign": {name: at}}
    value = {"writers": [["job", "transaction", None, -1, None, 0, 0, state]]}
    with pytest.raises(CorruptionError):
        edit_from_json(value, version=2)


def test_who_was_killed_asks_for_its_sequence(make_log, open_log, few_writers):
    """S73: of a producer's or a transaction's id, even once it has left the head; None before the
    first, and for a transaction that gave no number.
    """
    log = make_log()
    assert log.sequence("billing") is None
    log.append(ONE, producer=("billing", 41))
    log.append(ONE, producer=("billing", 42))
    assert open_log().sequence("billing") == 42
    with log.transaction("job") as t:
        t.append(ONE)
    assert open_log().sequence("job") is None
    with log.transaction("job", sequence=7) as t:
        t.append(ONE)
    assert open_log().sequence("job") == 7
    for n in range(2 * FEW):
        log.append(ONE, producer=(f"p{n}", 1))
    again = open_log()
    assert (again.sequence("billing"), again.sequence("job")) == (42, 7)
    with log.transaction("billing", sequence=3) as t:
        t.append(ONE)
    with pytest.raises(InvalidInputError, match="a producer and a transaction with id 'billing'"):
        log.sequence("billing")
    assert log.sequence("billing", kind="producer") == 42
    assert log.sequence("billing", kind="transaction") == 3
    with pytest.raises(InvalidInputError, match="kind='stream' is not a kind"):
        log.sequence("billing", kind="stream")
