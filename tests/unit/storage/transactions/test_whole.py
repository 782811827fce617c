"""What readers see while a transaction is open: all of each other one, or nothing (S51)."""

import pytest

from clog.cleaner.cleaner import Cleaner
from clog.storage import CommitConflictError, OffsetOutOfRangeError
from clog_testing.invariants import check_log


def rows(*values, key="k"):
    return [{"key": key, "value": value} for value in values]


@pytest.fixture
def crossing(make_log, open_log):
    """Of two visible transactions in partition 0 one has ended; the other began between its
    appends.
    """
    log = make_log(partitions=2)
    t = log.transaction("ended", visible=True)
    t.append(rows("1"), partition=0)
    other = open_log().transaction("open", visible=True)
    other.append(rows("x", key="other"), partition=0)
    t.append(rows("2"), partition=0)
    t.append(rows("2", key="there"), partition=1)
    t.commit()
    return log, other


def test_no_reader_sees_half_of_a_transaction(crossing, values_of, store):
    """S51: no intermediate value, in no partition, although all of it is decided."""
    log, other = crossing
    assert (values_of(log), log.table().to_pylist()) == ([], [])
    assert log.stable_offsets() == {0: 0, 1: 0}
    assert log.latest({0: 0, 1: 0}, 0).to_arrow().num_rows == 0
    other.commit()
    assert values_of(log) == [b"1", b"x", b"2", b"2"]
    assert log.table().get("k") == log.table().get("there") == b"2"
    check_log(store)


def test_a_deferred_one_is_whole_over_its_partitions(make_log, open_log, values_of):
    """S51: also where no record is undecided; plain appends are whole partition by partition."""
    log = make_log(partitions=2)
    t = open_log().transaction("open", visible=True)
    t.append(rows("x"), partition=0)
    log.append(rows("plain"), partition=1)
    with log.transaction("job") as deferred:
        deferred.append(rows("a"), partition=0)
        deferred.append(rows("a", key="there"), partition=1)
    log.append(rows("later"), partition=1)
    assert values_of(log) == [b"plain"]
    reader = open_log().transaction("reader")
    with pytest.raises(OffsetOutOfRangeError):
        reader.positions(log, {1: 2})
    t.abort()
    assert values_of(log) == [b"a", b"plain", b"a", b"later"]


def test_what_each_one_holds_back_is_listed(crossing):
    """S51: with the offsets from which on readers wait, not only those of its own records."""
    log, _ = crossing
    (info,) = log.transactions()
    assert (info.id, info.first_offsets, info.held_offsets) == ("open", {0: 1}, {0: 0, 1: 0})
    (described,) = log.describe()["transactions"]
    assert described["held_offsets"] == {"0": 0, "1": 0}


def test_one_after_the_other_waits_for_a_moment_without_any(crossing, open_log, values_of):
    """S51: if each begins between appends of the one before, none is shown before the last ended;
    log start offsets may pass them all.
    """
    log, other = crossing
    for n in range(3):
        following = open_log().transaction(f"following-{n}", visible=True)
        following.append(rows("y"), partition=0)
        other.append(rows("z"), partition=0)
        other.commit()
        other = following
    assert values_of(log) == []
    (info,) = log.transactions()
    assert info.held_offsets == {0: 0, 1: 0}
    log.delete_records({0: 3})
    assert (log.stable_offsets(), values_of(log)) == ({0: 3, 1: 0}, [])
    other.commit()
    assert log.stable_offsets() == log.end_offsets()


def test_an_erasure_waits_for_what_is_held_back(crossing, values_of):
    """S59: as for undecided records, also where there is none of them."""
    log, other = crossing
    log.erase(["there"])
    Cleaner(log).run_once(force=True)
    (erasure,) = log.erasures()
    assert "transaction 'open' is still open" in erasure.reason
    other.commit()
    Cleaner(log).run_once(force=True)
    assert "there" not in [row["key"].decode() for row in log.table().to_pylist()]
    assert b"2" not in values_of(log, partition=1)


def chained(log, open_log, clock, ids, *, step_ms=10_000):
    """Transactions each of which begins between two appends of the one before; returns the last
    one, which is open.
    """
    before = None
    for name in ids:
        t = open_log().transaction(name, visible=True)
        t.append(rows("first"), partition=0)
        if before is not None:
            before.append(rows("second"), partition=0)
            before.commit()
        before = t
        clock.advance(step_ms)
    return before


def test_overlaps_without_end_hold_back_readers_for_a_bounded_time(make_log, open_log, clock):
    """S51: once they have for longer than a timeout, no other one begins before they have ended."""
    log = make_log()
    current = log.transaction("0", visible=True)
    current.append(rows("first"))
    longest_ms, refused = 0, 0
    for n in range(1, 25):
        t = open_log().transaction(str(n), visible=True)
        may_begin = True
        try:
            t.append(rows("first"))
        except CommitConflictError:
            may_begin = False
        current.append(rows("second"))
        current.commit()
        if not may_begin:
            t.append(rows("first"))
            refused += 1
        current = t
        clock.advance(10_000)
        hidden = log.read(start=log.stable_offsets(), isolation="read_uncommitted")
        oldest_ms = next(iter(hidden)).column("timestamp")[0].cast("int64").as_py() // 1000
        longest_ms = max(longest_ms, clock.now_ms() - oldest_ms)
    assert refused > 1
    assert 60_000 < longest_ms <= 2 * 60_000


def test_what_held_back_too_long_refuses_in_words(make_log, open_log, clock):
    """S51: with the numbers; a transaction in another partition begins, and so does the refused one
    once the others have ended.
    """
    log = make_log(partitions=2)
    last = chained(log, open_log, clock, "abcdefg", step_ms=9_000)
    t = open_log().transaction("refused", visible=True)
    message = r"have waited 7\d{4} ms, since version 2, .* timeout_ms=60000 .*: 'g'; no other one"
    with pytest.raises(CommitConflictError, match=message):
        t.append(rows("x"), partition=0)
    open_log().transaction("apart", visible=True).append(rows("x"), partition=1)
    last.commit()
    t.append(rows("x"), partition=0)
    assert log.stable_offsets()[0] == log.end_offsets()[0] - 1


def test_a_dead_writer_refuses_no_other_one_for_ever(make_log, open_log, clock):
    """S51: who waits aborts what has taken longer than its timeout; no cleaner is needed."""
    log = make_log()
    chained(log, open_log, clock, "ab", step_ms=50_000)
    clock.advance(20_000)
    t = open_log().transaction("next", visible=True)
    t.append(rows("x"))
    assert [info.id for info in log.transactions()] == ["next"]


def test_the_first_append_waits_for_the_others(make_log, open_log, clock, monkeypatch):
    """S51: who is refused for a moment only need not notice."""
    log = make_log()
    last = chained(log, open_log, clock, "abcdefg", step_ms=9_000)
    monkeypatch.setattr(type(clock), "sleep_ms", lambda *_: last.commit())
    t = open_log().transaction("next", visible=True)
    t.append(rows("x"))
    assert [info.id for info in log.transactions()] == ["next"]
