"""What readers see while a transaction is open: all of each other one, or nothing (S51)."""

import pytest

from clog.cleaner.cleaner import Cleaner
from clog.storage import OffsetOutOfRangeError
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
    assert log.changes({0: 0, 1: 0}, 0).to_arrow().num_rows == 0
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
