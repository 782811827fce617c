"""Named readers: the log knows how far each is, and what will overtake it (S64)."""

import json
import logging

import pytest

from clog.cleaner import Cleaner
from clog.storage import (
    InvalidInputError,
    Log,
    LogReplacedError,
    NotFoundError,
    OffsetOutOfRangeError,
    Reader,
    StateTable,
    StoreUnavailableError,
)
from clog.storage.format import documents
from clog.storage.format.documents import reader_path
from clog_testing.counting import CountingStore
from clog_testing.crash import copy_of, discard, inside
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

SOON_GONE = {"delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0"}


def rows(count, value="x"):
    return [{"key": f"k{i}", "value": value} for i in range(count)]


def clean_all(log, clock, passes=3):
    for _ in range(passes):
        log.roll()
        Cleaner(log).run_once(force=True)
        clock.advance(1)


def test_a_position_is_kept(make_log, open_log):
    """S64: the next reader with the name continues there; partitions that are not given stay."""
    log = make_log(partitions=2)
    log.append(rows(10), partition=[0, 1] * 5)
    reader = log.reader("billing")
    assert (reader.name, reader.position) == ("billing", {})
    assert reader.next_offsets() == {0: 0, 1: 0}
    assert reader.commit({0: 3})
    assert reader.position == {0: 3, 1: 0}
    again = open_log().reader("billing")
    assert again.position == again.next_offsets() == {0: 3, 1: 0}
    assert again.commit({1: 5})
    assert open_log().reader("billing").position == {0: 3, 1: 5}
    assert open_log().reader("other").position == {}


def test_what_positions_cost(make_log, open_log, store, clock):
    """S64: one PUT at the reader's choice, and none for writers, whatever the number of readers."""
    make_log()
    counting = CountingStore(store)
    log = open_log(counting)
    log.append(rows(100))
    reader = log.reader("billing", interval_ms=10_000)
    with counting.count() as requests:
        assert reader.commit({0: 1})
    assert requests == {"get": 1, "put": 1}  # the name's document, once
    with counting.count() as requests:
        told = [reader.commit({0: n}) for n in range(2, 90)]
    assert (set(told), requests) == ({False}, {})
    clock.advance(9_999)
    with counting.count() as requests:
        assert not reader.commit({0: 90})
    assert requests == {}
    clock.advance(1)
    with counting.count() as requests:
        assert reader.commit({0: 91})
    assert requests.pop("put") == 1
    assert requests.get("get", 0) <= 2  # as any handle each ten seconds: which log stands here
    assert set(requests) <= {"get"}
    with counting.count() as requests, reader:
        assert not reader.commit({0: 92})
    assert requests == {"put": 1}
    with counting.count() as requests:
        reader.flush()
        assert not reader.commit({0: 92})
    assert requests == {}
    for i in range(50):
        log.reader(f"r{i}").commit({0: i})
    with counting.count() as requests:
        log.append(rows(1))
    assert requests == {"put": 1, "create": 1, "get": 1}
    version = log.version
    log.reader("more").commit({0: 1})
    assert log.version == version  # no commit


def test_one_that_stands_still_is_not_forgotten(make_log, clock):
    """It is reported again when half of its time is over."""
    log = make_log()
    log.append(rows(1))
    reader = log.reader("idle", expires_after_ms=1000)
    assert reader.commit({0: 1})
    clock.advance(499)
    assert not reader.commit({0: 1})
    clock.advance(1)
    assert reader.commit({0: 1})
    (found,) = log.readers()
    assert (found.expires_ms, found.committed_ms) == (clock.now_ms() + 1000, clock.now_ms())


def test_readers_and_their_lag(make_log, clock):
    """S64: records, bytes and time of unread records."""
    log = make_log(partitions=2)
    log.append(rows(10), partition=0)
    clock.advance(500)
    log.append(rows(4, "y" * 100), partition=1)
    clock.advance(300)
    log.reader("all").commit({0: 10, 1: 4})
    log.reader("half").commit({0: 5, 1: 4})
    log.reader("late").commit({0: 10, 1: 0})
    found = {r.name: r for r in log.readers()}
    assert list(found) == ["all", "half", "late"]
    assert all(isinstance(r, Reader) and r.damage is None for r in found.values())
    lags = {name: (r.lag_records, r.lag_ms) for name, r in found.items()}
    assert lags == {"all": (0, 0), "half": (5, 800), "late": (4, 300)}
    assert found["all"].lag_bytes == 0
    assert 400 < found["late"].lag_bytes < 600
    assert found["half"].position == {0: 5, 1: 4}
    log.append(rows(1), partition=0)
    assert {r.name: r.lag_records for r in log.readers()} == {"all": 1, "half": 6, "late": 5}


def test_the_lag_is_what_a_reader_would_get(make_log, open_log):
    """From the log start on if that has moved; without aborted, cleaned or undecided records; bytes
    and times are of the remaining ones.
    """
    log = make_log(partitions=2)
    reader, idle = log.reader("r"), log.reader("idle", interval_ms=0)
    log.append(rows(10, "x" * 100), partition=0)
    reader.commit({0: 2})

    def lag(name="r"):
        (r,) = [r for r in log.readers() if r.name == name]
        return r.lag_records, r.lag_bytes > 0, r.until_retention_ms

    assert lag() == (8, True, None)
    log.delete_records({0: 7})
    assert lag() == (3, True, 0)
    with open_log().transaction("t", visible=True) as aborted:
        aborted.append(rows(5), partition=[1] * 5)
        aborted.abort()
    idle.commit({0: 10, 1: 0})
    assert lag("idle") == (0, False, None)
    assert [r.lag_ms for r in log.readers()] == [0, 0]
    open_one = open_log().transaction("t", visible=True)
    open_one.append(rows(4), partition=[1] * 4)
    log.append(rows(6), partition=1)
    assert lag("idle") == (0, False, None)
    open_one.commit()
    assert lag("idle") == (10, True, None)


def test_retention_by_size_overtakes_a_reader(make_log, clock):
    """If that much followed its segment that the next round removes it."""
    config = {"cleanup.policy": "delete", "retention.bytes": "1000", "retention.ms": "-1"}
    log = make_log(config=config)
    log.append(rows(4, "x" * 100))
    log.roll()
    log.reader("r").commit({0: 1})

    def left():
        return log.readers()[0].until_retention_ms

    log.append(rows(4, "x" * 100))
    assert left() is None
    log.append(rows(8, "x" * 100))
    assert left() == 0
    Cleaner(log).run_once()
    assert log.start_offsets() == {0: 4}
    assert left() == 0


def test_retention_comes_to_a_segment_after_those_before_it(make_log, clock):
    """S32: a late timestamp in an old segment keeps all after it."""
    config = {"cleanup.policy": "delete", "retention.ms": "1000"}
    log = make_log(config=config)
    log.append([{"key": "k", "value": "1", "timestamp": clock.now_ms() + 5000}])
    log.roll()
    log.append(rows(1))
    log.reader("r").commit({0: 1})
    assert log.readers()[0].until_retention_ms == 6000


@pytest.mark.parametrize("kind", [FaultKind.REFUSE, FaultKind.FAIL_BEFORE, FaultKind.FAIL_AFTER])
def test_a_store_that_takes_no_position(make_log, store, clock, caplog, kind):
    """S64: nothing depends on it, so its reader continues, and reports it when the next
    one is due.
    """
    make_log().append(rows(90))
    faulty = CountingStore(FaultyStore(store))
    log = Log.open(faulty, clock=clock)
    faulty.inner.plan = Faults(Fault(kind, "put", "*readers/*", times=99))
    reader = log.reader("r", interval_ms=1000)
    with faulty.count() as requests, caplog.at_level(logging.WARNING):
        for n in range(1, 50):
            assert not reader.commit({0: n})
    assert requests["put"] == 1
    assert "the position of reader r was not recorded" in caplog.text
    assert reader.position == {0: 49}
    with pytest.raises(StoreUnavailableError):
        reader.flush()
    with reader:
        pass
    faulty.inner.plan = Faults()
    clock.advance(1000)
    assert reader.commit({0: 49})
    assert [dict(r.position) for r in log.readers()] == [{0: 49}]


def test_a_store_that_cannot_be_read_when_a_reader_begins(make_log, store, clock):
    """Its previous report is neither lost nor overwritten by the new one."""
    log = make_log(partitions=2)
    log.append(rows(10), partition=[0, 1] * 5)
    log.reader("r").commit({0: 3, 1: 4})
    faulty = FaultyStore(store)
    reader = Log.open(faulty, clock=clock).reader("r")
    faulty.plan = Faults(Fault(FaultKind.FAIL_BEFORE, "*", times=99))
    assert not reader.commit({0: 4})
    faulty.plan = Faults()
    reader.flush()
    assert log.reader("r").position == {0: 4, 1: 4}


def test_the_position_of_a_table_that_cannot_be_told(make_log, store, clock, tmp_path):
    """It stops neither its refresh nor its end."""
    log = make_log()
    log.append(rows(3))
    faulty = FaultyStore(store)
    faulty.plan = Faults(Fault(FaultKind.REFUSE, "put", "*readers/*", times=99))
    with StateTable(faulty, tmp_path / "cache", clock=clock, reader="r") as table:
        log.append(rows(1, "new"))
        clock.advance(60_000)
        table.refresh()
        assert table.get("k0") == b"new"
    assert log.readers() == []


def test_a_position_of_a_version_that_was_not_read(make_log, store, clock):
    """It belongs to the version that has it, so that a copy made before does not take it for its
    own.
    """
    log = make_log()
    log.append(rows(3))
    list(log.read())
    reader = log.reader("r")
    copy = copy_of(store)
    Log.open(store, clock=clock).append(rows(5))
    reader.commit({0: 8})
    path = reader_path("r")
    inside(copy).put(path, log.handle.store.get(path))
    other = Log.open(copy, clock=clock)
    other.append(rows(50))
    assert other.reader("r").position == {}
    assert "is a different one now" in other.readers()[0].damage
    discard(copy)


def test_what_overtakes_a_reader(make_log, clock):
    """S64, S41: the time left until retention, a removed tombstone, an expired version."""
    config = {
        "cleanup.policy": "compact,delete",
        "retention.ms": "10000",
        "delete.retention.ms": "5000",
        "file.delete.delay.ms": "3000",
        "min.cleanable.dirty.ratio": "0",
    }
    log = make_log(config=config)
    log.append(rows(3))
    slow, quick = log.reader("slow"), log.reader("quick", interval_ms=0)
    slow.commit({0: 1})
    quick.commit({0: 3})
    log.append([{"key": "k0", "value": None}, {"key": "z", "value": "1"}])

    def left(name="slow"):
        (r,) = [r for r in log.readers() if r.name == name]
        return r.until_retention_ms, r.until_tombstone_ms, r.until_version_ms

    assert left() == (10_000, 5000, None)
    clock.advance(1000)
    assert left() == (9000, 5000, None)  # no pass has met the tombstone yet
    log.roll()
    Cleaner(log).run_once(force=True)
    assert left() == (9000, 5000, 3000)
    clock.advance(2000)
    assert left() == (7000, 3000, 1000)
    clock.advance(1500)
    Cleaner(log).run_once(force=True)
    assert left() == (5500, 1500, 0)
    quick.commit({0: 5})
    clock.advance(1500)
    log.append([{"key": "n", "value": "1"}])
    log.roll()
    Cleaner(log).run_once(force=True)
    assert left()[1] == 0
    assert left("quick")[1] is None
    with pytest.raises(NotFoundError, match=r"reader slow, at version .* has missed deletes"):
        log.reader("slow").next_offsets()
    assert log.reader("slow").next_offsets(missed_deletes=True) == {0: 1}
    clock.advance(11_000)
    Cleaner(log).run_once(force=True)
    assert left()[0] == 0
    with pytest.raises(OffsetOutOfRangeError, match="below the log start"):
        log.reader("slow").next_offsets()


def test_readers_that_are_forgotten(make_log):
    """By hand, immediately, whether there is one or not; the sweep has a separate test."""
    log = make_log()
    log.append(rows(3))
    log.reader("gone").commit({0: 1})
    log.reader("stays").commit({0: 1})
    log.forget_reader("gone")
    log.forget_reader("gone")
    log.forget_reader("never-was")
    assert [r.name for r in log.readers()] == ["stays"]
    with pytest.raises(InvalidInputError, match="not a valid reader name"):
        log.forget_reader("../data")


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "ü", "x" * 129, None, "a b", "..", "a\n"])
def test_names_that_are_none(make_log, name):
    with pytest.raises(InvalidInputError, match=r"is not a valid reader name; allowed: 1 to 128"):
        make_log().reader(name)


def test_arguments_out_of_range(make_log):
    log = make_log()
    log.append(rows(3))
    with pytest.raises(InvalidInputError, match=r"position=3 is not a mapping; give .* \{0: 5\}"):
        log.reader("r").commit(3)
    for wrong in ({"expires_after_ms": 0}, {"interval_ms": -1}, {"hold_ms": 1.5}):
        with pytest.raises(InvalidInputError, match="is out of range; allowed"):
            log.reader("r", **wrong)
    reader = log.reader("r")
    for position in ({0: 4}, {0: -1}):
        with pytest.raises(OffsetOutOfRangeError, match=r"allowed: 0 to 3, its end"):
            reader.commit(position)
    for position in ({1: 0}, {0: "1"}, {0: True}):
        with pytest.raises(InvalidInputError):
            reader.commit(position)
    assert log.readers() == []


def spoil(log, name, changes):
    """Changes the content of a reader's document."""
    path, store = reader_path(name), log.handle.store
    body = documents.decode("reader", store.get(path), where=path) | changes
    store.put(path, documents.encode("reader", body))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"log_id": "0" * 32}, "belongs to another log"),
        ({"version": 99}, "beyond the newest"),
        ({"id": "0" * 32}, "is a different one now"),
        ({"name": "other"}, "belongs to reader 'other'"),
        ({"offsets": [1, 2]}, "2 partitions, and the log 1"),
        ({"offsets": [5]}, "beyond the end: the log was restored"),
        ({"offsets": [-1]}, "not those of a reader"),
        ({"offsets": [True]}, "numbers are not integers"),
        ({"offsets": None}, "numbers are not integers"),
        ({"version": "1"}, "numbers are not integers"),
        ({"time_ms": 1.5}, "cannot be read"),
    ],
)
def test_a_document_that_counts_for_nothing(make_log, open_log, caplog, changes, why):
    """S64: it counts as missing; the reader starts again with a warning, and so does the list; the
    log is intact.
    """
    log = make_log()
    log.append(rows(3))
    log.reader("r").commit({0: 2})
    log.append(rows(1))
    spoil(log, "r", changes)
    with caplog.at_level(logging.WARNING):
        reader = open_log().reader("r")
        assert reader.position == {}
    assert "is ignored, so the reader starts again" in caplog.text
    assert why in caplog.text
    (listed,) = log.readers()
    assert (listed.name, listed.position) == ("r", {})
    assert why in listed.damage
    assert reader.commit({0: 1})
    (listed,) = log.readers()
    assert (listed.damage, listed.position) == (None, {0: 1})


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff" * 100, b'{"clog":"reader","format":2}\n'])
def test_a_document_that_is_none(make_log, data):
    log = make_log()
    log.handle.store.put(reader_path("r"), data)
    log.handle.store.put("readers/not one.json", data)
    log.handle.store.put("readers/deeper/r.json", data)
    assert log.reader("r").position == {}
    (listed,) = log.readers()
    assert "cannot be read" in listed.damage


def test_a_log_that_is_recreated(make_log, store, clock):
    """S47: a position of the previous log is not taken for one of the present log."""
    log = make_log()
    log.append(rows(3))
    reader = log.reader("r", interval_ms=0)
    reader.commit({0: 2})
    discard(store)
    again = make_log()
    again.append(rows(3))
    clock.advance(60_000)
    with pytest.raises(LogReplacedError):
        reader.commit({0: 3})
    assert again.readers() == []
    assert again.reader("r").position == {}


def test_verify_and_copies_take_no_offence(make_log, store):
    """They belong only to their readers, and a copy has them."""
    log = make_log()
    log.append(rows(3))
    log.reader("r").commit({0: 2})
    check_log(store)
    copy = copy_of(store)
    assert any(found.path.startswith("readers/") for found in inside(copy).list("readers/"))
    assert json.dumps([r.name for r in log.readers()]) == '["r"]'
    discard(copy)
