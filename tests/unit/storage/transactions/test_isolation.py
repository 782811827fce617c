"""Undecided and aborted records: who sees them, and up to which offset (S40, S51, S52, S55)."""

import pytest

from clog.state.table import StateTable
from clog.storage import InvalidInputError, Log, OffsetOutOfRangeError
from clog.storage.format.commits import head_to_json
from clog.storage.format.transactions import COMMITTED
from clog_testing.invariants import check_log
from clog_testing.undecided import append_undecided, end


def rows(*values, key="k"):
    return [{"key": key, "value": value} for value in values]


@pytest.fixture
def half_done(make_log):
    """Offset 0 is decided, 1 and 2 are not, 3 is; partition 1 has one decided record."""
    log = make_log(partitions=2)
    log.append(rows("a"), partition=0)
    append_undecided(log, rows("b", "c"))
    log.append(rows("d"), partition=0)
    log.append(rows("e", key="other"), partition=1)
    return log


def test_readers_end_at_the_first_undecided_record(half_done, values_of, open_log):
    """S51: read_committed ends there; read_uncommitted, if requested, continues to the end."""
    for log in (half_done, open_log()):
        assert log.stable_offsets() == {0: 1, 1: 1}
        assert log.end_offsets() == {0: 4, 1: 1}
        assert values_of(log) == [b"a", b"e"]
        everything = values_of(log, isolation="read_uncommitted")
        assert everything == [b"a", b"b", b"c", b"d", b"e"]
        assert log.table(0).get("k") == b"a"
        assert log.table().offsets == {0: 1, 1: 1}
        assert log.latest({0: 1}, 0).to_arrow().num_rows == 0
        assert log.offsets_for_times(0) == {0: 0, 1: 0}


def test_a_position_beyond_the_stable_offset_is_one(half_done, values_of):
    """S51: it is in range, and yields nothing yet; beyond the end offset it is not."""
    assert values_of(half_done, partition=0, start=2) == []
    assert values_of(half_done, partition=0, start=4) == []
    assert half_done.latest({0: 3}, 0).offsets == {0: 3}
    with pytest.raises(OffsetOutOfRangeError):
        values_of(half_done, partition=0, start=5)


def test_an_end_decides_all_of_it(half_done, values_of, store):
    """S52: a marker takes one offset in each partition with records of it."""
    end(half_done, commit=True)
    assert half_done.end_offsets() == half_done.stable_offsets() == {0: 5, 1: 1}
    assert values_of(half_done, partition=0) == [b"a", b"b", b"c", b"d"]
    (marker,) = half_done.handle.manifest().markers
    assert (marker.place, marker.outcome, marker.horizon_ms) == ((0, 4), COMMITTED, -1)
    half_done.append(rows("f"), partition=0)
    assert half_done.table(0).get("k") == b"f"
    check_log(store)


def test_aborted_records_are_never_seen(half_done, values_of, store):
    """S53: nobody reads them, with either isolation, in the active segment or in a sealed one."""
    end(half_done, commit=False)
    half_done.roll()
    for isolation in ("read_committed", "read_uncommitted"):
        assert values_of(half_done, partition=0, isolation=isolation) == [b"a", b"d"]
    assert half_done.table(0).get("k") == b"d"
    assert [s.records for s in half_done.segments(0)] == [2, 0]
    check_log(store)


def test_older_versions_say_what_they_said(half_done, store):
    """A version never changes its meaning: at the one before the end the records are undecided."""
    before = half_done.version
    end(half_done, commit=True)
    assert half_done.table(0, at=before).get("k") == b"a"
    assert half_done.table(0).get("k") == b"d"


def test_of_several_the_earliest_counts(make_log, values_of, store):
    """S51: the stable offset is that of the earliest transaction that has not ended, in
    any order.
    """
    log = make_log()
    append_undecided(log, rows("a"), number=0)
    append_undecided(log, rows("b"), number=1)
    append_undecided(log, rows("c"), number=0)
    end(log, number=1, commit=True)
    assert (log.stable_offsets(), values_of(log)) == ({0: 0}, [])
    end(log, number=0, commit=False)
    assert (log.stable_offsets(), values_of(log)) == ({0: 5}, [b"b"])
    check_log(store)


def test_an_end_is_of_one_transaction_alone(half_done, values_of):
    """S48: an end with another number, epoch or home decides nothing."""
    end(half_done, number=1, commit=True)
    assert values_of(half_done, partition=0) == [b"a"]
    assert half_done.handle.manifest().markers == ()


def test_log_starts_may_pass_it(half_done, values_of, store):
    """S51: deleteRecords raises the stable offset, and an end does not fail for what is gone."""
    half_done.delete_records({0: 2})
    assert half_done.stable_offsets()[0] == 2
    assert values_of(half_done, partition=0) == []
    half_done.delete_records({0: -1})
    end(half_done, commit=True)
    assert half_done.stable_offsets()[0] == 5
    half_done.append(rows("f"), partition=0)
    assert values_of(half_done, partition=0) == [b"f"]
    half_done.delete_records({0: -1})
    assert half_done.handle.manifest().markers == ()
    check_log(store)


def test_segments_roll_around_undecided_records(make_log, values_of, store):
    """Undecided records are in sealed segments too, in snapshots and not in pages."""
    log = make_log(config={"segment.bytes": 60})
    for number in range(4):
        log.append(rows(f"x{number}"), partition=0)
    append_undecided(log, rows("u"))
    for number in range(120):
        log.append(rows(f"y{number}"), partition=0)
    assert log.handle.tip.head.snapshot is not None
    assert len(values_of(Log.open(store))) == 4
    end(log, commit=True)
    assert len(values_of(Log.open(store))) == 125
    check_log(store, every_version=False)


def test_a_state_table_waits_for_the_end(half_done, store, tmp_path):
    """S55: a copy contains what is decided, and continues from there."""
    with StateTable(store, tmp_path) as table:
        assert table.get("k") == b"a"
        end(half_done, commit=True)
        table.refresh()
        assert table.get("k") == b"d"


def test_logs_without_transactions_have_nothing_of_it(make_log):
    """The head of a log without them has not a single byte for them."""
    log = make_log()
    log.append(rows("a"))
    assert "unended" not in head_to_json(log.handle.tip.head)


def test_there_are_two_levels(make_log):
    """S40: anything else is refused, by its name."""
    with pytest.raises(InvalidInputError, match="allowed: read_committed, read_uncommitted"):
        make_log().read(isolation="serializable")
