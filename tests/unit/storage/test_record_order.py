"""Which record of a key wins if it is not the last one: what is shown, refused, and changed (S56,
S57; FORMAT.md §15).
"""

import struct

import numpy as np
import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.state import StateStore, StateTable
from clog.storage import InvalidInputError, Log
from clog.storage.format.log_info import ORDER_VALUES
from clog.storage.objects.orders import decided, header_orders, suspects, with_removed

BY_LSN = {"compaction.strategy": "header", "compaction.strategy.header": "lsn"}
BY_TIME = {"compaction.strategy": "timestamp"}
QUICK = {"min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}


def lsn(order):
    return [("lsn", struct.pack(">q", order))]


def row(key, value, order):
    return {"key": key, "value": value, "headers": lsn(order)}


def shown(log, **at):
    return {r["key"]: r["value"] for r in log.table(**at).to_arrow().to_pylist()}


def test_the_highest_header_wins_whatever_came_last(make_log):
    """S56: in tables, look-ups and changes; readers get records in the order of offsets (S1)."""
    log = make_log(config=BY_LSN)
    log.append([row("a", "new", 7), row("a", "old", 3), row("b", "x", 1), row("b", None, 2)])
    assert shown(log) == {b"a": b"new"}
    assert log.table().get("a") == b"new"
    log.append([row("a", "older", 1), row("b", "y", 1), row("c", "z", 1)])
    assert shown(log) == {b"a": b"new", b"c": b"z"}
    assert [r["key"] for r in log.latest({0: 4}).to_arrow().to_pylist()] == [b"c"]
    assert log.latest({0: 4}).get("a") is None
    assert [r["value"] for b in log.read() for r in b.to_pylist()][1] == b"old"


def test_of_equal_orders_the_last_record_wins(make_log):
    """S56; so for records with one key and one order nothing is guaranteed: arrival decides."""
    log = make_log(config=BY_TIME)
    log.append([{"key": k, "value": v, "timestamp": 5} for k, v in [("a", "1"), ("a", "2")]])
    assert shown(log) == {b"a": b"2"}
    other = pa.table({"key": ["a"], "value": ["1"], "timestamp": [5]})
    log.append(other)
    assert shown(log) == {b"a": b"1"}


@pytest.mark.parametrize(
    ("value", "order"),
    [
        (struct.pack(">q", 5), 5),
        (struct.pack(">q", (1 << 62) - 1), (1 << 62) - 1),
        (struct.pack(">q", 1 << 62), -1),
        (struct.pack(">q", -1), -1),
        (b"5", -1),
        (b"", -1),
        (None, -1),
    ],
)
def test_an_order_is_8_bytes_below_2_to_62(value, order):
    """FORMAT.md §15: an invalid order loses to all valid ones, and one near 2^63 would
    win forever.
    """
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([None, [], [("lsn", value)], [("x", b"12345678")]], kind)
    assert header_orders(headers, "lsn").tolist() == [-1, -1, order, -1]
    assert header_orders(headers.slice(2, 1), "lsn").tolist() == [order]
    assert header_orders(headers.slice(0, 2), "lsn").tolist() == [-1, -1]


def test_the_last_header_of_the_name_counts():
    """FORMAT.md §15."""
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    both = [*lsn(3), ("x", b""), *lsn(4)]
    assert header_orders(pa.array([both, lsn(9), both[::-1]], kind), "lsn").tolist() == [4, 9, 3]


@pytest.mark.parametrize("value", ["v", None])
def test_a_record_without_the_header_is_refused(make_log, value):
    """FORMAT.md §15: a tombstone without an order would lose to everything that it is to delete."""
    log = make_log(config=BY_LSN)
    with pytest.raises(InvalidInputError, match="1 of 2 records have no order, the first is rec"):
        log.append([row("a", "x", 1), {"key": "a", "value": value}])
    with pytest.raises(InvalidInputError, match="no order"):
        log.append([row("a", "x", 1 << 62)])
    assert log.end_offsets() == {0: 0}


def test_objects_that_were_written_before_the_alter_are_refused(make_log, open_log):
    """FORMAT.md §15: their headers were not checked then; the next append does."""
    log, other = make_log(), open_log()
    log.alter(BY_LSN)
    with pytest.raises(
        InvalidInputError, match="changed while the records were being written; append"
    ):
        other.append([row("a", "x", 1)])
    with pytest.raises(InvalidInputError, match="no order"):
        other.append([{"key": "a", "value": "x"}])
    other.append([row("a", "x", 1)])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"compaction.strategy": "header"}, "give the name of a header"),
        ({"compaction.strategy.header": "lsn"}, "give the name of a header"),
        ({"compaction.late": "drop"}, "needs compaction.strategy=timestamp or header"),
        ({**BY_LSN, "compaction.late": "drop"}, "the first record of a new key would be dropped"),
        ({**BY_TIME, "compaction.late.scope": "log"}, "needs compaction.strategy=header"),
        ({**BY_TIME, "cleanup.policy": "compact,delete"}, "bring an older one back"),
        (
            {**BY_TIME, "message.timestamp.type": "LogAppendTime"},
            "which orders records by offset; use",
        ),
        ({**BY_TIME, "message.timestamp.after.max.ms": "2d"}, "a record from the future"),
        ({"compaction.strategy": "newest"}, "allowed: offset, timestamp, header"),
    ],
)
def test_what_contradicts_an_order_is_refused(make_log, store, config, message):
    """S43, S56: at creation and by an alter, and nothing is changed."""
    with pytest.raises(InvalidInputError, match=message):
        make_log(config=config)
    log = make_log()
    with pytest.raises(InvalidInputError, match=message):
        log.alter(config)
    assert log.version == 0


def test_a_mirror_compares_offsets(make_log, store, clock):
    """FORMAT.md §15, §16: its start offset follows its source's, and would bring records back."""
    with pytest.raises(InvalidInputError, match="a log with given offsets"):
        Log.create(store, 1, BY_TIME, clock=clock, features=["given-offsets"])
    log = Log.create(store, 1, clock=clock, features=["given-offsets"])
    with pytest.raises(InvalidInputError, match="a log with given offsets"):
        log.alter(BY_LSN)


def test_a_log_that_compares_offsets_has_not_a_word_of_it(make_log):
    """FORMAT.md §15: releases that do not know the configs refuse a log that has them."""
    idle = {"compaction.strategy": "offset", "compaction.late": "keep"}
    log = make_log(config=idle)
    log.alter({**idle, "compaction.late.scope": "key", "segment.bytes": "99"})
    head = log.handle.tip.head
    assert dict(head.config) == {"segment.bytes": "99"}
    assert ORDER_VALUES not in head.log.features
    log.alter(BY_TIME)
    assert ORDER_VALUES in log.handle.tip.head.log.features.read
    log.alter({"compaction.strategy": "offset"})
    assert dict(log.handle.tip.head.config) == {"segment.bytes": "99"}
    assert ORDER_VALUES in log.handle.tip.head.log.features.read


def test_records_are_not_deleted_by_offset(make_log):
    """FORMAT.md §15: the removed record may be the winner, and an older one would come back."""
    log = make_log(config=BY_LSN)
    log.append([row("a", "new", 7), row("a", "old", 3)])
    with pytest.raises(InvalidInputError, match="an older one back; append tombstones"):
        log.delete_records({0: 1})
    assert log.start_offsets() == {0: 0}


def test_each_version_is_read_by_the_configs_of_its_head(make_log):
    """FORMAT.md §15: an alter changes the newest table, and no earlier one."""
    log = make_log()
    log.append([row("a", "new", 7), row("a", "old", 3)])
    before = log.version
    log.alter(BY_LSN)
    assert (shown(log), shown(log, at=before)) == ({b"a": b"new"}, {b"a": b"old"})
    log.alter(dict.fromkeys(BY_LSN))
    assert shown(log) == {b"a": b"old"}


def test_after_an_alter_all_is_dirty_and_masks_are_gone(make_log):
    """FORMAT.md §15: a record superseded by offset may win now; earlier masks would hide it."""
    log = make_log(config=QUICK)
    log.alter({"table.masks": "true"})
    log.append([row("a", "1", 7), row("b", "2", 3)])
    log.roll()
    Cleaner(log).run_once(force=True)
    log.append([row("a", "3", 5)])
    Cleaner(log).run_once()
    assert log.handle.manifest().covered == (3,)
    assert shown(log) == {b"a": b"3", b"b": b"2"}
    log.alter(BY_LSN)
    manifest = log.handle.manifest()
    assert (manifest.covered, manifest.first_dirty) == ((), (0,))
    assert shown(log) == {b"a": b"1", b"b": b"2"}
    log.roll()
    Cleaner(log).run_once(force=True)
    assert shown(log) == {b"a": b"1", b"b": b"2"}
    assert log.handle.manifest().covered == ()


def removed_tombstone(log, clock):
    """Removes the tombstone of ``gone``, of order 100; the end offset is 1."""
    log.append([row("gone", None, 100)])
    for _ in range(2):
        log.roll()
        Cleaner(log).run_once(force=True)
        clock.advance(1000)
    assert log.handle.manifest().orders_removed == ((0, 100, 1),)


@pytest.mark.parametrize("late", ["keep", "drop"])
def test_a_record_that_comes_after_its_tombstone_was_removed_is_late(make_log, clock, late):
    """S57: it is kept and counted, or dropped and never shown; another key's is an
    ordinary record.
    """
    scope = {"compaction.late": "drop", "compaction.late.scope": "log"} if late == "drop" else {}
    log = make_log(config={**BY_LSN, **QUICK, **scope})
    log.append([row("here", "1", 50)])
    log.append([row("gone", None, 100)])
    for _ in range(2):
        log.roll()
        Cleaner(log).run_once(force=True)
        clock.advance(1000)
    assert log.handle.manifest().orders_removed == ((0, 100, 2),)
    log.append([row("gone", "back", 99), row("here", "2", 60), row("gone", "again", 98)])
    kept = {b"gone": b"back"} if late == "keep" else {}
    assert shown(log) == {b"here": b"2"} | kept
    assert log.table().get("gone") == kept.get(b"gone")
    log.roll()
    (result,) = Cleaner(log).run_once(force=True)
    assert result.stats.records_late == 2
    assert shown(log) == {b"here": b"2"} | kept
    there = {r["value"] for b in log.read() for r in b.to_pylist()}
    assert there == {b"2"} | set(kept.values())
    assert log.handle.manifest().orders_removed == ((0, 100, 5),)


@pytest.mark.parametrize("config", [BY_LSN, BY_TIME], ids=["header", "timestamp"])
def test_ties_are_counted(make_log, clock, config):
    """S56: records with the same order as another of their key, in the covered range and against
    the clean part; none if orders differ, or lack a header.
    """
    log = make_log(config={**config, **QUICK})

    def put(*rows):
        log.append([row(k, v, order) | {"timestamp": order} for k, v, order in rows])
        log.roll()
        (result,) = Cleaner(log).run_once(force=True)
        return result.stats.records_tied

    assert put(("a", "1", 5), ("a", "2", 5), ("b", "1", 5), ("a", "3", 5), ("b", "2", 6)) == 2
    assert shown(log) == {b"a": b"3", b"b": b"2"}
    assert put(("a", "4", 5), ("c", "1", 5), ("b", "0", 5)) == 1
    assert shown(log) == {b"a": b"4", b"b": b"2", b"c": b"1"}
    assert put(("a", None, 6)) == 0


def test_late_records_that_were_kept_are_not_dropped_later(make_log, clock):
    """FORMAT.md §15: the alter settles existing records."""
    log = make_log(config={**BY_LSN, **QUICK})
    removed_tombstone(log, clock)
    log.append([row("gone", "back", 99)])
    log.alter({"compaction.late": "drop", "compaction.late.scope": "log"})
    assert shown(log) == {b"gone": b"back"}
    log.append([row("other", "late", 99)])
    assert shown(log) == {b"gone": b"back"}


def test_a_tombstone_stays_while_another_record_of_its_key_does(make_log, clock):
    """S57: one that lost to it, in the active segment, would come back."""
    log = make_log(config={**BY_LSN, **QUICK})
    log.append([row("a", None, 9)])
    log.roll()
    Cleaner(log).run_once(force=True)
    clock.advance(1000)
    log.append([row("a", "loser", 5)])
    for _ in range(3):
        Cleaner(log).run_once(force=True)
        assert shown(log) == {}
    assert log.handle.manifest().orders_removed == ()
    log.roll()
    for _ in range(3):
        Cleaner(log).run_once(force=True)
        assert shown(log) == {}
        clock.advance(1000)
    assert log.handle.manifest().orders_removed == ((0, 9, 2),)
    assert list(log.read()) == []


def test_a_state_table_is_built_anew_when_the_order_is_altered(make_log, store, tmp_path, caplog):
    """FORMAT.md §15: a copy has the winner, and the loser may win now."""
    log = make_log()
    log.append([row("a", "new", 7), row("a", "old", 3)])
    with StateTable(store, tmp_path) as table:
        assert table.get("a") == b"old"
        log.alter(BY_LSN)
        assert table.refresh().changed is None
        assert table.get("a") == b"new"
        assert "the log's compaction.strategy changed" in caplog.text
        log.append([row("a", "older", 1), row("b", "x", 1)])
        table.refresh()
        assert (table.get("a"), table.get("b")) == (b"new", b"x")


def test_a_state_store_needs_a_log_that_compares_offsets(make_log, store, tmp_path):
    """S56: the last put might lose, so a get after a put would return something else."""
    log = make_log(config=BY_TIME)
    with pytest.raises(InvalidInputError, match="cannot be the changelog of a store"):
        StateStore(store, tmp_path, "s")
    log.alter({"compaction.strategy": None})
    with StateStore(store, tmp_path, "s") as state:
        state.put("a", "1")
        state.commit()
        log.alter(BY_TIME)
        state.refresh()
        with pytest.raises(InvalidInputError, match="cannot be the changelog of a store"):
            state.put("a", "2")


def test_pairs_say_as_much_with_less():
    """FORMAT.md §15: a redundant pair is removed; settled ones are one pair."""
    pairs = with_removed(with_removed((), 5, 10), 3, 20)
    assert pairs == ((5, 10),)
    pairs = with_removed(pairs, 8, 30)
    assert pairs == ((5, 10), (8, 30))
    assert decided(pairs, 20) == ((5, 20), (8, 30))
    assert decided(pairs, 40) == ((8, 40),)
    orders, offsets = np.array([5, 6, 6, 8, 9]), np.array([10, 10, 30, 30, 30])
    assert suspects(orders, offsets, pairs).tolist() == [True, False, True, True, False]
    assert suspects(orders, offsets, ()).tolist() == [False] * 5


def test_typed_logs_compare_as_well(make_log, store, clock):
    """S56: whatever the columns of key and value."""
    log = Log.create(
        store,
        1,
        {**BY_LSN, **QUICK},
        clock=clock,
        schema={"key": pa.int64(), "value": pa.struct([("n", pa.int32())])},
    )
    log.append([{"key": 1, "value": {"n": n}, "headers": lsn(o)} for n, o in [(7, 7), (3, 3)]])
    log.append([{"key": 1, "value": {"n": 1}, "headers": lsn(1)}])
    assert log.table().get(1) == {"n": 7}
    assert log.table().to_arrow(columns=["value.n"]).to_pylist() == [{"value": {"n": 7}}]
    log.roll()
    Cleaner(log).run_once(force=True)
    assert sum(b.num_rows for b in log.read()) == 1
    assert log.table().get(1) == {"n": 7}


@pytest.mark.parametrize("before", [{}, BY_LSN])
def test_a_record_from_the_future_keeps_timestamps_from_counting(make_log, clock, before):
    """FORMAT.md §15: it would win its key for a long time, whatever the limit is from then on."""
    log = make_log(partitions=2, config={**before, "message.timestamp.after.max.ms": "unlimited"})
    bound = {"message.timestamp.after.max.ms": None, "compaction.strategy.header": None}
    far_ms = clock.now_ms() + 400 * 86_400_000
    log.append([row("a", "old", 1)], 0)
    log.append([{**row("a", None, 2), "timestamp": far_ms}], 1)
    at = log.version
    with pytest.raises(
        InvalidInputError, match=rf"partition 1 has a record of {far_ms} ms .* nothing was changed"
    ):
        log.alter({**bound, **BY_TIME})
    assert (log.version, log.table(partition=1).get("a")) == (at, None)
    clock.advance(400 * 86_400_000 - 3_600_000)
    log.alter({**bound, **BY_TIME})
    log.append([{"key": "a", "value": "live", "timestamp": clock.now_ms() + 3_600_000}], 1)
    assert log.table(partition=1).get("a") == b"live"


def test_what_was_deleted_or_aborted_keeps_no_order_away(make_log, clock):
    """FORMAT.md §15: such records are never visible; undecided ones may still win."""
    log = make_log(config={"message.timestamp.after.max.ms": "unlimited"})
    change = {"message.timestamp.after.max.ms": None, **BY_TIME}
    far = {"key": "a", "value": None, "timestamp": clock.now_ms() + 400 * 86_400_000}
    log.append([far])
    log.delete_records({0: 1})
    t = log.transaction("job", visible=True)
    t.append([far])
    with pytest.raises(InvalidInputError, match=r"compaction\.strategy=timestamp is refused"):
        log.alter(change)
    t.abort()
    assert log.alter(change)["compaction.strategy"] == "timestamp"
