"""Named readers that are waited for: tombstones and versions stay for them, for a bounded time
(S64).
"""

import numpy as np
import pytest

from clog.cleaner import Cleaner, CleanerSettings
from clog.cleaner.duties import Work
from clog.cleaner.duties.commit_blocks import close_blocks
from clog.cleaner.duties.sweep import sweep_released
from clog.cleaner.log_round import plan_round
from clog.storage import InvalidInputError, NotFoundError
from clog.storage.config.log_config import LogConfig
from clog.storage.format import documents
from clog.storage.format.documents import reader_path
from clog.storage.readers import Holds, ReaderDocument, holds_of, read_holds
from clog_testing.counting import CountingStore

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
HOLD = {
    "reader_hold_max_ms": 3 * DAY_MS,
    "delete_retention_ms": HOUR_MS,
    "file_delete_delay_ms": HOUR_MS,
    "dead_rows_delay_ms": 0,
    "segment_bytes": 14,
}


@pytest.fixture
def store(clocked_store):
    return clocked_store


def tombstones(log):
    rows = (r for batch in log.read(columns=["key", "value"]) for r in batch.to_pylist())
    return [r["key"] for r in rows if r["value"] is None]


def rounds(log, clock, *steps_ms):
    """Lets this much time pass, with a round each time."""
    for ms in steps_ms:
        clock.advance(ms)
        Cleaner(log).run_once()


def deleted(make_log, put, clock, *, hold_ms=2 * DAY_MS, **config):
    """Returns a log with a reader before the tombstone of ``a``, which has got its horizon."""
    log = make_log(**(HOLD | config))
    put(log, "a=1 b=1")
    log.reader("late", expires_after_ms=30 * DAY_MS, hold_ms=hold_ms).commit({0: 2})
    put(log, "a c=1 d=1")
    rounds(log, clock, 1, 1)
    assert tombstones(log) == [b"a"]
    return log


def test_s64_a_tombstone_waits_for_a_reader_that_holds_it(make_log, put, clock):
    """S64: as long as the reader requested after its last report, and not longer."""
    log = deleted(make_log, put, clock)
    rounds(log, clock, HOUR_MS, DAY_MS, 20 * HOUR_MS)
    assert tombstones(log) == [b"a"]
    assert log.reader("late").next_offsets() == {0: 2}
    rounds(log, clock, 3 * HOUR_MS, DAY_MS)
    assert tombstones(log) == []
    with pytest.raises(NotFoundError, match="has missed deletes"):
        log.reader("late").next_offsets()


def test_s64_it_goes_once_the_reader_has_come_to_it(make_log, put, clock):
    """S64: nobody else is waited for then."""
    log = deleted(make_log, put, clock)
    rounds(log, clock, HOUR_MS)
    log.reader("late", hold_ms=2 * DAY_MS).commit({0: 5})
    rounds(log, clock, 60_000)
    assert tombstones(log) == []
    assert log.reader("late").next_offsets() == {0: 5}


def test_s64_only_what_it_has_not_come_to_is_held(make_log, put, clock):
    """S64: a tombstone below its position is removed, in a pass that another one has to
    wait for.
    """
    log = deleted(make_log, put, clock)
    log.reader("late", hold_ms=2 * DAY_MS).commit({0: 3})
    put(log, "b e=1")
    rounds(log, clock, 1, HOUR_MS + 1)
    log.roll()
    Cleaner(log).run_once(force=True)
    assert tombstones(log) == [b"b"]


def test_s64_a_pass_leaves_what_is_held_and_cleans_the_rest(make_log, put, there, clock):
    """S64: of two tombstones past their horizons, side by side in an object, the held one stays;
    the other and what is superseded are removed, and the partition is not uncleanable.
    """
    log = make_log(**(HOLD | {"segment_bytes": 1 << 20}))
    put(log, "a=1 b=1 c=1 a b")
    log.roll()
    Cleaner(log).run_once(force=True)
    assert there(log) == "2:c=1 3:a 4:b"
    log.reader("late", expires_after_ms=30 * DAY_MS, hold_ms=2 * DAY_MS).commit({0: 4})
    clock.advance(HOUR_MS + 1)
    put(log, "c=2")
    log.roll()
    (result,) = Cleaner(log).run_once(force=True)
    assert there(log) == "4:b 5:c=2"
    assert (result.stats.records_superseded, result.stats.tombstones_expired) == (1, 1)
    assert log.describe()["partition_details"][0]["uncleanable"] is None
    log.reader("late", hold_ms=2 * DAY_MS).commit({0: 6})
    rounds(log, clock, 60_000)
    assert there(log) == "5:c=2"


@pytest.mark.parametrize(
    ("config", "held"),
    [
        ({"reader_hold_max_ms": DAY_MS}, True),
        ({"reader_hold_max_ms": 0}, False),
        ({"max_compaction_lag_ms": DAY_MS}, True),
        ({"max_compaction_lag_ms": HOUR_MS}, False),
    ],
)
def test_s64_nothing_is_held_beyond_the_bound(make_log, put, clock, config, held):
    """S64: not beyond reader.hold.max.ms nor max.compaction.lag.ms after its horizon, however often
    the reader reports.
    """
    log = deleted(make_log, put, clock, **config)
    reader = log.reader("late", expires_after_ms=30 * DAY_MS, hold_ms=3 * DAY_MS)

    def wait(ms):
        reader.commit({0: 2})
        reader.flush()
        clock.advance(ms)
        reader.commit({0: 2})
        reader.flush()
        Cleaner(log).run_once()

    wait(4 * HOUR_MS)
    assert bool(tombstones(log)) == held
    for _ in range(10):
        wait(3 * HOUR_MS)
    assert tombstones(log) == []


def test_s64_a_crowd_holds_no_longer_than_one(make_log, put, clock):
    """S64: readers that take turns."""
    log = deleted(make_log, put, clock, reader_hold_max_ms=DAY_MS)
    for i in range(30):
        log.reader(f"r{i}", expires_after_ms=30 * DAY_MS, hold_ms=DAY_MS).commit({0: 0})
        rounds(log, clock, HOUR_MS)
    assert tombstones(log) == []


def test_s64_it_says_that_it_is_there_while_it_holds(make_log, put, clock):
    """S64: a reader at the end reports again when half of its time is over, or the next tombstone
    would find no hold.
    """
    log = make_log(**HOLD)
    put(log, "a=1")
    reader = log.reader("late", hold_ms=4 * HOUR_MS)
    assert reader.commit({0: 1})
    clock.advance(2 * HOUR_MS - 1)
    assert not reader.commit({0: 1})
    clock.advance(1)
    assert reader.commit({0: 1})
    log.alter({"reader.hold.max.ms": str(HOUR_MS)})
    clock.advance(HOUR_MS // 2)
    assert reader.commit({0: 1})


def spoil(log, changes):
    path, store = reader_path("late"), log.handle.store
    body = documents.decode("reader", store.get(path), where=path) | changes
    store.put(path, documents.encode("reader", body))


@pytest.mark.parametrize(
    "changes",
    [
        {"log_id": "0" * 32},
        {"version": 1 << 40},
        {"id": "0" * 32},
        {"hold_ms": -1},
        {"hold_ms": "1"},
        {"hold_ms": 0},
        {"offsets": [1 << 62]},
        {"offsets": [0, 0]},
    ],
)
def test_s64_a_document_that_counts_for_nothing_holds_nothing(make_log, put, clock, changes):
    """S64: of another log or history, damaged, or beyond the end."""
    log = deleted(make_log, put, clock)
    spoil(log, changes)
    rounds(log, clock, HOUR_MS + 1, 60_000)
    assert tombstones(log) == []


@pytest.mark.parametrize("ahead_ms", [-(10**9), 10**9, 10**15])
def test_s64_a_readers_clock_has_no_say(make_log, put, clock, ahead_ms):
    """S64: its times are ignored, and a very long hold counts as what the log allows: the store
    knows when its file was written.
    """
    log = deleted(make_log, put, clock)
    times = {"time_ms": max(0, clock.now_ms() + ahead_ms), "hold_ms": (1 << 63) - 1}
    spoil(log, times | {"expires_ms": (1 << 63) - 1})
    rounds(log, clock, DAY_MS, DAY_MS)
    assert tombstones(log) == [b"a"]
    rounds(log, clock, DAY_MS, 60_000)
    assert tombstones(log) == []


def test_s64_a_file_from_the_future_holds_no_longer():
    """S64: if the store's clock is ahead, or the file was touched, it holds from now on, but still
    nothing beyond the bound.
    """
    said = ReaderDocument("late", "0" * 32, 3, "1" * 32, {0: 5}, 1, 1, hold_ms=10 * DAY_MS)
    now_ms = 100 * DAY_MS
    (hold,) = holds_of([("late", 900 * DAY_MS, said)], max_ms=DAY_MS, now_ms=now_ms).holds
    assert hold.until_ms == now_ms + DAY_MS
    held = Holds((hold,), DAY_MS).of_partition(0, now_ms=now_ms)
    assert held.mask(np.array([4, 5, 5]), now_ms - np.array([0, 0, DAY_MS])).tolist() == [
        *(False, True, False)
    ]


def replaced(make_log, put, clock):
    """Returns a log in which a reader holds a version whose objects a pass replaced."""
    log = make_log(**HOLD)
    put(log, "a=1 a=2")
    log.reader("late", expires_after_ms=30 * DAY_MS, hold_ms=DAY_MS).commit({0: 0})
    put(log, "a=3 b=1")
    Cleaner(log).run_once(force=True)
    return log, log.readers()[0].version


def test_s64_a_version_waits_for_a_reader_that_holds_it(make_log, put, clock):
    """S64: it can be read until the hold is over; a dry run says the same."""
    log, version = replaced(make_log, put, clock)
    clock.advance(20 * HOUR_MS)
    assert plan_round(log.handle, now_ms=clock.now_ms()).deleted == []
    assert sweep_released(Work(log.handle, clock.now_ms())).objects == ()
    assert log.table(at=version).to_arrow().num_rows == 1
    clock.advance(4 * HOUR_MS)
    planned = plan_round(log.handle, now_ms=clock.now_ms()).deleted
    assert sweep_released(Work(log.handle, clock.now_ms())).objects == tuple(planned) != ()


def test_s64_no_version_is_held_beyond_the_bound(make_log, put, clock):
    """S64: reader.hold.max.ms after it would have gone, however often the reader comes."""
    log, _ = replaced(make_log, put, clock)
    reader = log.reader("late", expires_after_ms=30 * DAY_MS, hold_ms=30 * DAY_MS)
    for _ in range(74):
        clock.advance(HOUR_MS)
        spoil(log, {})
    assert reader.position == {0: 0}
    assert sweep_released(Work(log.handle, clock.now_ms())).objects


def test_s64_a_block_of_commits_is_not_closed_over_a_hold(make_log, put, clock, monkeypatch):
    """S64: otherwise versions would become unreadable all the same."""
    monkeypatch.setattr("clog.storage.format.documents.BLOCK_VERSIONS", 8)
    monkeypatch.setattr("clog.storage.commit.committer.SNAPSHOT_EDIT_BYTES_MIN", 10)
    log = make_log(**HOLD)
    log.reader("late", expires_after_ms=30 * DAY_MS, hold_ms=3 * DAY_MS).commit({0: 0})
    for i in range(24):
        put(log, f"a={i % 10}")
    clock.advance(2 * DAY_MS)
    assert close_blocks(Work(log.handle, clock.now_ms())).objects == ()
    assert log.handle.tip.head.oldest_readable == 0
    clock.advance(DAY_MS)
    assert len(close_blocks(Work(log.handle, clock.now_ms())).objects) == 24


def test_s64_what_holds_cost(make_log, open_log, put, store, clock):
    """S64: no request in a log that allows none, whoever asks; else a LIST, and a look at each file
    that is young enough.
    """
    plain = make_log(segment_bytes=14)
    put(plain, "a=1")
    counting = CountingStore(store)
    log = open_log(counting)
    log.reader("late", hold_ms=DAY_MS).commit({0: 0})
    config = LogConfig.from_overrides(log.handle.tip.head.config)
    with counting.count() as requests:
        assert read_holds(log.handle, config, now_ms=clock.now_ms()).holds == ()
    assert requests == {}
    log.alter({"reader.hold.max.ms": str(DAY_MS)})
    config = LogConfig.from_overrides(log.handle.tip.head.config)
    with counting.count() as requests:
        (hold,) = read_holds(log.handle, config, now_ms=clock.now_ms()).holds
    assert requests == {"list": 1, "get": 2}
    assert (hold.name, hold.until_ms) == ("late", clock.now_ms() + DAY_MS)
    with counting.count() as requests:
        assert not sweep_released(Work(log.handle, clock.now_ms())).objects
        assert not close_blocks(Work(log.handle, clock.now_ms())).objects
    assert "list" not in requests  # Nothing is due, whoever holds.
    clock.advance(DAY_MS)
    with counting.count() as requests:
        assert read_holds(log.handle, config, now_ms=clock.now_ms()).holds == ()
    assert requests == {"list": 1}


def test_s64_nobody_is_waited_for_after_being_forgotten(make_log):
    with pytest.raises(InvalidInputError, match="a forgotten reader holds nothing"):
        make_log().reader("late", expires_after_ms=1000, hold_ms=1001)


def test_s64_describe_readers_and_metrics_show_who_is_waited_for(make_log, put, clock):
    """S64: until when; and what overtakes a reader waits that long."""
    log = deleted(make_log, put, clock)
    log.reader("quick").commit({0: 5})
    until_ms = clock.now_ms() - 2 + 2 * DAY_MS
    assert log.describe()["holds"] == {"late": until_ms}
    late, quick = log.readers()
    assert (late.held_until_ms, quick.held_until_ms) == (until_ms, 0)
    assert late.until_tombstone_ms == 2 * DAY_MS - 2
    cleaner = Cleaner(log, settings=CleanerSettings(watch_readers_ms=1))
    cleaner.run_once()
    (state,) = cleaner.monitor.logs().values()
    assert [r.held_until_ms for r in state.readers] == [until_ms, 0]
    clock.advance(3 * DAY_MS)
    assert log.describe()["holds"] == {}
    late, _ = log.readers()
    assert (late.held_until_ms, late.until_tombstone_ms) == (0, 0)
