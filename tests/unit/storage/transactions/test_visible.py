"""Visible transactions: records get their offsets at once, and the end decides (S51, S52)."""

import pytest

from clog.storage import (
    InvalidInputError,
    TransactionFencedError,
    TransactionTimeoutError,
)
from clog.storage.errors import CommitStateUnknownError
from clog.storage.transactions.several import finish_all
from clog_testing.counting import CountingStore
from clog_testing.faults import HAPPENED, Faults, FaultyStore
from clog_testing.invariants import check_log


def rows(*values, key="k"):
    return [{"key": key, "value": value} for value in values]


def both(log, values_of):
    return values_of(log), values_of(log, isolation="read_uncommitted")


def test_who_asks_sees_it_before_the_end(make_log, open_log, values_of, store):
    """S51: read_uncommitted sees records at once, read_committed after the end."""
    log, other = make_log(partitions=2), open_log()
    with log.transaction("job", visible=True) as t:
        t.append(rows("a"), partition=0)
        other.append(rows("plain"), partition=0)
        t.append(rows("b"), partition=1)
        t.append(rows("c"), partition=0)
        assert both(other, values_of) == ([], [b"a", b"plain", b"c", b"b"])
        (info,) = other.transactions()
        assert (info.id, info.state, info.first_offsets) == ("job", "open", {0: 0, 1: 0})
    assert values_of(other) == [b"a", b"plain", b"c", b"b"]
    assert (t.result.offsets, t.result.version) == ({0: (0, 3), 1: (0, 1)}, other.version)
    assert other.end_offsets() == other.stable_offsets() == {0: 4, 1: 2}
    assert log.markers(1) == [(1, "job", "committed", None)]
    check_log(store)


def test_an_abort_hides_it_from_everybody(make_log, open_log, values_of, store):
    """S53: nobody sees it any more, with either isolation."""
    log = make_log()
    t = log.transaction("job", visible=True)
    t.append(rows("a"))
    t.abort()
    assert both(open_log(), values_of) == ([], [])
    assert log.markers(0) == [(1, "job", "aborted", None)]
    with log.transaction("job", visible=True) as t:
        t.append(rows("b"))
        t.positions(log, {0: 1})
    assert (values_of(log), log.positions("job")) == ([b"b"], {log.id: {0: 1}})
    check_log(store)


def test_an_empty_one_commits_nothing(make_log):
    """KAFKA-10702: transactions without records do not fill the log."""
    log = make_log()
    log.transaction("job", visible=True).abort()
    before = log.version
    with log.transaction("job", visible=True):
        pass
    log.transaction("job", visible=True).abort()
    assert log.version == before


def test_a_takeover_aborts_what_was_open(make_log, open_log, values_of, store):
    """S48, C17: the former holder of the id is fenced; a late end does not decide the next one."""
    log, other = make_log(), open_log()
    t = log.transaction("job", visible=True)
    t.append(rows("a"))
    with other.transaction("job", visible=True) as taken:
        taken.append(rows("b"))
        with pytest.raises(TransactionFencedError):
            t.commit()
        assert both(other, values_of) == ([], [b"b"])
    assert values_of(open_log()) == [b"b"]
    with pytest.raises(TransactionFencedError):
        t.append(rows("c"))
    check_log(store)


@pytest.mark.parametrize("has_records", [False, True])
def test_one_that_is_fenced_in_an_append_is_fenced_for_good(make_log, open_log, has_records):
    """S48: its commit says so too, and not that records may be there; with or without records."""
    log = make_log()
    t = log.transaction("job", visible=True)
    if has_records:
        t.append(rows("a"))
    open_log().transaction("job", visible=True)
    for do in (lambda: t.append(rows("b")), t.commit, lambda: t.append(rows("c")), t.commit):
        with pytest.raises(TransactionFencedError, match="nothing of th"):
            do()
    assert not t.is_open
    t.abort()


def test_one_that_was_aborted_is_told_so_by_append_and_commit(make_log, open_log, values_of):
    """S50: an operator aborted it; the append that finds out leaves nothing unclear."""
    log = make_log()
    t = log.transaction("job", visible=True)
    t.append(rows("a"))
    open_log().abort_transaction("job")
    for do in (lambda: t.append(rows("b")), t.commit):
        with pytest.raises(TransactionTimeoutError, match="was aborted, because"):
            do()
    assert both(log, values_of) == ([], [])


def test_an_append_that_is_refused_is_not_part_of_it(make_log, values_of):
    """S6: whether others were appended before or after it, the others are committed."""
    log = make_log(config={"max.message.bytes": "100"})
    with log.transaction("job", visible=True) as t, pytest.raises(InvalidInputError):
        t.append(rows("a" * 1000))
    with log.transaction("job", visible=True) as t:
        with pytest.raises(InvalidInputError):
            t.append(rows("a" * 1000))
        t.append(rows("b"))
    assert values_of(log) == [b"b"]


def test_anybody_aborts_past_the_timeout(make_log, open_log, values_of, clock, store):
    """S50: not before it; the holder gets the error when it continues."""
    log = make_log()
    t = log.transaction("job", visible=True, timeout_ms=1000)
    t.append(rows("a"))
    clock.advance(900)
    assert len(finish_all(open_log().handle)) == 1
    clock.advance(99)
    log2 = open_log()
    clock.advance(2)
    assert finish_all(log2.handle) == []
    with pytest.raises(TransactionTimeoutError):
        t.append(rows("b"))
    with pytest.raises(TransactionTimeoutError):
        t.commit()
    assert both(open_log(), values_of) == ([], [])
    check_log(store)


def test_an_append_in_doubt(make_log, open_log, values_of, store, clock):
    """If it is not known whether records are there, the transaction can only be aborted."""
    make_log()
    faulty = FaultyStore(store, clock=clock)
    log = open_log(faulty)
    t = log.transaction("job", visible=True)
    t.append(rows("a"))
    faulty.plan = Faults(*HAPPENED)
    with pytest.raises(CommitStateUnknownError):
        t.append(rows("b"))
    faulty.plan = Faults()
    for do in (t.commit, lambda: t.append(rows("c"))):
        with pytest.raises(InvalidInputError, match="its records may have been written"):
            do()
    t.abort()
    assert both(open_log(), values_of) == ([], [])
    check_log(store)


def test_its_commit_may_be_tried_again(make_log, open_log, values_of, store, clock):
    """A lost reply of the end: it is there once."""
    make_log()
    faulty = FaultyStore(store, clock=clock)
    log = open_log(faulty)
    t = log.transaction("job", visible=True)
    t.append(rows("a"))
    faulty.plan = Faults(*HAPPENED)
    with pytest.raises(CommitStateUnknownError):
        t.commit()
    faulty.plan = Faults()
    assert t.commit().offsets == {0: (0, 1)}
    assert (values_of(open_log()), open_log().end_offsets()) == ([b"a"], {0: 2})
    check_log(store)


def test_it_is_of_one_log(make_log, open_log):
    """Another log is refused, by name."""
    log = make_log()
    t = log.transaction("job", visible=True)
    with pytest.raises(InvalidInputError, match="is visible, and can append only to its own log"):
        t.append(rows("a"), log=open_log())


def test_costs(make_log, store):
    """Each append and the end are a commit; a plain append beside it costs nothing more."""
    counting = CountingStore(store)
    log = make_log(on=counting)
    with log.transaction("job", visible=True) as t:
        t.append(rows("a"))
    t = log.transaction("job", visible=True)
    for do in (lambda: t.append(rows("a")), t.commit, lambda: log.append(rows("plain"))):
        counting.reset()
        do()
        assert (counting.counts["create"], counting.counts["get"]) == (1, 1)
        assert not counting.counts["list"]
