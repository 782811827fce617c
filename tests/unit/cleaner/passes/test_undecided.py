"""What passes, coalescing, merging, trimming, retention and the sweep do with undecided and aborted
records (S11, S22, S51, S53).
"""

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.layout import coalesce
from clog_testing.invariants import check_log
from clog_testing.undecided import append_undecided, end

DAY_MS = 86_400_000


@pytest.fixture
def clean(clock):
    """Rounds of a cleaner that wants every partition clean."""

    def clean(log, rounds=3):
        cleaner = Cleaner([log], clock=clock)
        for _ in range(rounds):
            cleaner.run_once(force=True)

    return clean


def rows(*pairs):
    return [{"key": key, "value": value} for key, value in (pair.split("=") for pair in pairs)]


def test_nothing_beyond_the_stable_offset_is_cleaned(make_log, put, there, clean, store):
    """S11: the bound is the base of the first segment that reaches beyond it."""
    log = make_log()
    put(log, "a=1 b=1 a=2 ")
    put(log, "a=3 b=2")
    append_undecided(log, rows("a=4"))
    put(log, "a=5 b=3 a=6 a=7")
    clean(log)
    (partition,) = log.describe()["partition_details"]
    assert (partition["first_uncleanable_offset"], partition["stable_offset"]) == (3, 5)
    assert there(log) == "1:b=1 2:a=2 3:a=3 4:b=2"
    end(log, commit=True)
    log.roll()
    clean(log)
    assert there(log) == "7:b=3 9:a=7"
    check_log(store, every_version=False)


def test_aborted_records_are_dropped_unread(make_log, put, there, clean):
    """S22, S53: by the first pass that covers them, whatever their keys; they never enter the map.
    None of them is read: their object may even be missing.
    """
    log = make_log()
    put(log, "a=1")
    append_undecided(log, rows("a=2", "z=2"))
    put(log, "b=1 c=1")
    end(log, commit=False)
    log.roll()
    (aborted,) = [c.object.path for _, c in log.handle.manifest().chunks() if c.aborted]
    log.handle.store.delete(aborted)
    clean(log, 1)
    assert there(log) == "0:a=1 3:b=1 4:c=1"
    assert log.table().get("z") is None
    assert not any(c.aborted for _, c in log.handle.manifest().chunks())
    assert log.describe()["partition_details"][0]["uncleanable"] is None


def test_nothing_but_aborted_records_is_dirty(make_log, put, there, clock, clean):
    """S22, S53: they are dropped all the same, whether a pass is requested or the dirty ratio
    requires it, and so is their marker.
    """
    log = make_log(min_cleanable_dirty_ratio=0.5, delete_retention_ms=1000)
    put(log, "a=1")
    log.roll()
    clean(log)
    append_undecided(log, rows("a=2", "z=2"))
    end(log, commit=False)
    log.roll()
    cleaner = Cleaner([log], clock=clock)
    cleaner.run_once()
    assert there(log) == "0:a=1"
    assert not any(c.aborted for _, c in log.handle.manifest().chunks())
    assert len(log.markers(0)) == 1
    clock.advance(1001)
    cleaner.run_once(force=True)
    assert log.markers(0) == []


def test_undecided_records_below_the_log_start_are_left_alone(make_log, put, clock):
    """S51: a log start beyond them raises the stable offset, and decides nothing."""
    log = make_log(segment_bytes=1 << 20)
    append_undecided(log, rows("u=1"))
    for number in range(40):
        put(log, f"a={number}")
    log.delete_records({0: 41})
    coalesce(Work(log.handle, clock.now_ms()), force=True)
    assert any(c.undecided for _, c in log.handle.manifest().chunks())
    end(log, commit=True)


def test_small_objects_stay_until_they_are_decided(make_log, put, there, clock, clean, store):
    """H-T7: coalescing stays below the stable offset, and mixes no outcomes."""
    log = make_log(segment_bytes=1 << 20)
    for number in range(20):
        put(log, f"a={number}")
    append_undecided(log, rows("u=1"), number=1)
    append_undecided(log, rows("v=1"), number=2)
    for number in range(20, 40):
        put(log, f"a={number}")
    clock.advance(2 * DAY_MS)
    clean(log, 1)
    chunks = [c for _, c in log.handle.manifest().chunks()]
    assert [c.undecided is not None for c in chunks].count(True) == 2
    assert len([c for c in chunks if c.base > 20]) == 21
    end(log, number=1, commit=True)
    end(log, number=2, commit=False)
    clock.advance(2 * DAY_MS)
    clean(log, 1)
    assert there(log).split()[20:22] == ["20:u=1", "22:a=20"]
    check_log(store, every_version=False)


def test_segments_merge_below_the_stable_offset(make_log, put, clean, clock, store):
    """A log that does not compact merges segments, but none with undecided records."""
    log = make_log(cleanup_policy="delete", segment_bytes=1 << 20)

    def fill(count):
        for _ in range(count):
            put(log, "a=1")
            log.roll()

    fill(12)
    append_undecided(log, rows("u=1"))
    fill(12)
    clean(log, 1)
    assert [s.base_offset for s in log.segments(0)] == [0, 12, *range(14, 26)]
    end(log, commit=False)
    put(log, "b=1")
    clean(log, 1)
    assert [s.base_offset for s in log.segments(0)] == [0, 25]
    check_log(store, every_version=False)


def test_retention_may_pass_what_is_undecided(make_log, put, there, clock, clean, store):
    """S51: retention raises the stable offset; an end does not fail for what is gone."""
    log = make_log(cleanup_policy="delete", retention_ms=1000)
    append_undecided(log, rows("u=1", "v=1", "w=1"))
    put(log, "a=1")
    clock.advance(DAY_MS)
    log.roll()
    put(log, "b=1")
    clean(log, 1)
    assert log.start_offsets()[0] > 0
    assert log.stable_offsets() == log.start_offsets()
    end(log, commit=True)
    assert there(log) == "4:b=1"
    check_log(store, every_version=False)


def test_trimming_waits_for_the_end(make_log, put, there, clean, store):
    """S37: a segment with undecided records keeps what is below the log start."""
    log = make_log()
    put(log, "a=1")
    append_undecided(log, rows("u=1", "v=1"))
    put(log, "b=1")
    log.delete_records({0: 2})
    clean(log, 1)
    end(log, commit=True)
    assert there(log) == "2:v=1 3:b=1"
    log.roll()
    clean(log)
    assert there(log) == "2:v=1 3:b=1"
    check_log(store, every_version=False)


def test_an_undecided_object_is_no_orphan(make_log, put, there, clock, clean, store):
    """The sweep removes what no commit names; undecided records are named by one."""
    log = make_log()
    append_undecided(log, rows("u=1"))
    for _ in range(4):
        put(log, "a=1")
        clock.advance(DAY_MS)
        clean(log, 2)
    end(log, commit=True)
    assert there(log).startswith("0:u=1")
    check_log(store, every_version=False)


def test_markers_go_in_two_stages(make_log, put, there, clock, clean, store):
    """S24, S53: a pass that covers a marker sets its horizon, by its commit; a later one at or
    after that time removes it, even if there is nothing else to do.
    """
    log = make_log(delete_retention_ms=2 * DAY_MS)
    append_undecided(log, rows("a=1"))
    end(log, commit=True)
    put(log, "a=2 b=1 c=1 d=1")
    clean(log)
    horizon_ms = clock.now_ms() + 2 * DAY_MS
    assert log.markers(0) == [(1, "job", "committed", horizon_ms)]
    clock.advance(2 * DAY_MS - 1)
    clean(log)
    assert log.markers(0) == [(1, "job", "committed", horizon_ms)]
    clock.advance(1)
    clean(log)
    assert log.markers(0) == []
    assert there(log) == "2:a=2 3:b=1 4:c=1 5:d=1"
    check_log(store, every_version=False)


def test_markers_go_by_themselves(make_log, put, clock, store):
    """S16: a quiet partition keeps none forever, even if nobody requests a pass."""
    log = make_log()
    append_undecided(log, rows("a=1"))
    end(log, commit=True)
    put(log, "a=2 b=1 c=1 d=1")
    cleaner = Cleaner([log], clock=clock)
    for _ in range(5):
        cleaner.run_once()
        clock.advance(DAY_MS)
    assert log.markers(0) == []
    check_log(store, every_version=False)


def test_keys_collide_with_no_marker(make_log, clean, there, store):
    """S52: a marker has no key; whatever bytes users take, nothing is superseded by one."""
    log = make_log()
    keys = [b"", b"\x00\x00\x00\x00\x00\x01", b"job", b"\x00\x00"]
    for number, key in enumerate(keys):
        append_undecided(log, [{"key": key, "value": b"v"}], number=number)
        end(log, number=number, commit=True)
    log.roll()
    clean(log)
    found = sorted(k for b in log.read() for k in b.column("key").to_pylist())
    assert found == sorted(keys)
    check_log(store, every_version=False)


def test_a_round_ends_what_is_past_its_timeout(make_log, put, there, clock, store, caplog):
    """S50: the cleaner aborts abandoned transactions, and reports once what it cannot end."""
    log = make_log()
    append_undecided(log, rows("a=1"), timeout_ms=1000)
    cleaner = Cleaner([log], clock=clock)
    cleaner.run_once()
    assert log.stable_offsets() == {0: 0}
    clock.advance(1001)
    cleaner.run_once()
    assert log.stable_offsets() == {0: 2}
    assert "undecided" not in caplog.text
    append_undecided(log, rows("b=1"), number=1, home="f" * 32)
    for _ in range(3):
        cleaner.run_once()
    assert caplog.text.count("readers of") == 1
    assert "its outcome cannot be read from its home" in caplog.text
    (state,) = cleaner.monitor.logs().values()
    assert state.undecided == 1
    check_log(store, every_version=False)
