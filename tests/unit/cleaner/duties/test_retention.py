"""Retention, the start offset rule, and sealing."""

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.retention import apply_retention, seal_idle
from clog.storage import Log, ManualClock
from clog.storage.config.units import moment
from clog.storage.env import SeededIds
from clog_testing.crash import memory_store
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

WEEK_MS = 7 * 86_400_000


@pytest.fixture
def retain(store, clock):
    def retain(log):
        removed = apply_retention(Work(log.handle, clock.now_ms()))
        check_log(store, every_version=False)
        return removed

    return retain


def test_by_time(make_log, put, retain, clock, bases):
    """S32: segments whose largest timestamp is more than retention.ms ago are deleted, oldest
    first, up to the first that is newer; one of exactly that age stays.
    """
    log = make_log(cleanup_policy="delete", retention_ms=1000, segment_ms=1 << 50)
    put(log, "a=1 b=1 c=1", timestamp=clock.now_ms() - 1001)
    put(log, "a=1 b=1", timestamp=0)
    put(log, "c=1", timestamp=clock.now_ms() - 1000)
    put(log, "a=1 b=1 c=1", timestamp=0)
    put(log, "a=1")
    retain(log)
    assert bases(log) == [3, 6, 9]
    assert log.start_offsets() == {0: 3}
    clock.advance(1)
    retain(log)
    assert bases(log) == [9]
    assert retain(log) == []


def test_what_holds_up_retention_is_named(make_log, put, clock, caplog):
    """S32: the segment with a timestamp in the future, which goes last and keeps what follows it;
    by `describe`, and by the cleaner, once.
    """
    future = clock.now_ms() + 30 * 86_400_000
    config = {"message_timestamp_after_max_ms": 1 << 50, "retention_ms": 1000}
    log = make_log(cleanup_policy="delete", segment_ms=1 << 50, **config)
    put(log, "a=1 b=1 c=1", timestamp=0)
    put(log, "a=1", timestamp=future)
    put(log, "a=1 b=1 c=1", timestamp=0)
    put(log, "a=1 b=1", timestamp=clock.now_ms() + 999)
    cleaner = Cleaner(log)
    for _ in range(2):
        cleaner.run_once()
    (held,) = [r.getMessage() for r in caplog.records if "held up" in r.getMessage()]
    (detail,) = log.describe()["partition_details"]
    assert held == f"retention of partition 0 of {log.url} is held up: {detail['retention_held']}"
    segment = log.segments(0)[0]
    assert segment.largest_timestamp == future
    told = f"segment of offsets [{segment.base_offset}, {segment.next_offset}) has a record"
    assert told in held
    assert moment(future) in held
    assert moment(future + 1000) in held
    log.alter({"retention.ms": "-1"})
    assert log.describe()["partition_details"][0]["retention_held"] is None


def test_retention_is_off(make_log, put, retain):
    """S32: -1 turns a rule off."""
    log = make_log(cleanup_policy="delete", retention_ms=-1, retention_bytes=-1)
    put(log, "a=1 b=1 c=1 a=1", timestamp=0)
    assert retain(log) == []


@pytest.mark.parametrize(("limit", "start"), [(98, 0), (97, 0), (57, 0), (56, 3), (14, 6), (15, 3)])
def test_by_size(make_log, put, retain, limit, start):
    """S32: an oldest segment is deleted while the rest still has retention.bytes; never less."""
    log = make_log(cleanup_policy="delete", retention_ms=-1, retention_bytes=limit)
    put(log, "a=1 b=1 c=1 a=1 b=1 c=1 a=1")  # 42 + 42 + 14
    retain(log)
    assert log.start_offsets() == {0: start}


def test_by_start_offset(make_log, put, retain, bases):
    """S32: a segment is deleted when the next one starts at or below the log start, under every
    policy; peer bug 7 (KAFKA-7400).
    """
    for policy in ("compact", "delete", "compact,delete", ""):
        log = make_log_on_its_own(policy)
        put(log, "a=1 b=1 c=1 a=1 b=1 c=1 a=1")
        log.delete_records({0: 5})
        apply_retention(Work(log.handle, 0))
        assert bases(log) == [3, 6]
        log.delete_records({0: 6})
        apply_retention(Work(log.handle, 0))
        assert bases(log) == [6]
        assert log.start_offsets() == {0: 6}


def make_log_on_its_own(policy):
    config = {"cleanup.policy": policy, "segment.bytes": 42, "retention.ms": -1}
    clock = ManualClock(now_ms=1_000_000_000)
    return Log.create(memory_store(), 1, config, clock=clock, ids=SeededIds(1))


def test_compaction_alone_is_never_cut(make_log, put, retain, clock, there):
    """S33, peer bug 7 (redpanda #31104): time and size never truncate a log that only compacts."""
    log = make_log(retention_ms=1, retention_bytes=1)
    put(log, "a=1 b=1 c=1 d=1", timestamp=5)
    clock.advance(WEEK_MS)
    assert retain(log) == []
    assert there(log) == "0:a=1 1:b=1 2:c=1 3:d=1"


def test_compaction_and_deletion(make_log, put, clock, there):
    """S33: both apply, so the last value of a key can expire."""
    log = make_log(cleanup_policy="compact,delete", retention_ms=1000, min_cleanable_dirty_ratio=0)
    put(log, "a=1 b=1 c=1")
    clock.advance(600)
    put(log, "a=2 d=1 e=1")
    log.roll()
    Cleaner(log).run_once()
    assert there(log) == "1:b=1 2:c=1 3:a=2 4:d=1 5:e=1"
    clock.advance(600)
    Cleaner(log).run_once()
    assert there(log) == "3:a=2 4:d=1 5:e=1"


def test_compaction_does_not_keep_what_is_to_expire(make_log, put, clock, there):
    """S33: merged with whatever follows, a segment would always have a young record, and a key that
    is no longer written would stay forever.
    """
    times = {"retention_ms": 1000, "segment_ms": 100}
    log = make_log(cleanup_policy="compact,delete", segment_bytes=10_000, **times)
    put(log, "old=1")
    cleaner = Cleaner(log)
    for _ in range(12):
        clock.advance(101)
        put(log, "a=1 b=1")
        cleaner.run_once(force=True)
    assert "old" not in there(log)
    assert there(log).endswith("23:a=1 24:b=1")


def test_the_active_segment_expires(make_log, put, retain, clock, bases, there):
    """S34: when all of it has expired an empty segment takes its place at the end; offsets
    continue.
    """
    log = make_log(cleanup_policy="delete", retention_ms=1000)
    put(log, "a=1 b=1 c=1 d=1")
    clock.advance(1001)
    (removal,) = retain(log)
    assert removal.seal
    assert bases(log) == [4]
    assert (log.start_offsets(), log.end_offsets()) == ({0: 4}, {0: 4})
    assert retain(log) == []
    put(log, "e=1")
    assert there(log) == "4:e=1"


def test_an_active_segment_below_the_log_start(make_log, put, retain, bases):
    """S37: otherwise it would keep its dead records until it rolls."""
    log = make_log()
    put(log, "a=1 b=1 c=1 d=1")
    log.delete_records({0: -1})
    retain(log)
    assert bases(log) == [4]
    assert log.start_offsets() == {0: 4}


def test_the_start_moves_first(make_log, put, retain, clock):
    """S35: the start moves to the base of the first remaining segment, in the commit that releases
    the objects; they are deleted later.
    """
    log = make_log(cleanup_policy="delete", retention_ms=1000)
    put(log, "a=1 b=1 c=1", timestamp=0)
    put(log, "d=1")
    objects = {c.object.path for _, c in log.handle.manifest().chunks()}
    retain(log)
    manifest = log.handle.manifest()
    assert manifest.head.partitions.start == (3,)
    assert {r.path for r in manifest.released} < objects
    assert all(log.handle.store.get(path) for path in objects)


def test_an_append_meanwhile(make_log, put, clock, open_log, store, there):
    """S30, S34: records that arrive while the active segment is about to expire stay."""
    log = make_log(cleanup_policy="delete", retention_ms=1000)
    put(log, "a=1")
    clock.advance(1001)
    put_new = Fault(FaultKind.MEANWHILE, "create", "*commits*", run=lambda: put(open_log(), "b=1"))
    hit = open_log(FaultyStore(store, Faults(put_new)))
    apply_retention(Work(hit.handle, clock.now_ms()))
    check_log(store)
    assert there(log) == "0:a=1 1:b=1"


def test_idle_segments_are_sealed(make_log, put, clock, bases):
    """S8: by the wall clock since the first commit, once older than segment.ms; not if empty."""
    log = make_log(2, segment_ms=1000)
    put(log, "a=1", timestamp=0)
    clock.advance(600)
    put(log, "b=1", timestamp=0)
    clock.advance(400)
    assert seal_idle(Work(log.handle, clock.now_ms())) == []
    clock.advance(1)
    assert seal_idle(Work(log.handle, clock.now_ms())) == [0]
    assert bases(log) == [0, 2]
    assert seal_idle(Work(log.handle, clock.now_ms())) == []


def test_the_maximum_lag_seals(make_log, put, clock, there):
    """S8, S14: with compaction a quiet partition is sealed and cleaned within
    max.compaction.lag.ms.
    """
    log = make_log(max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1)
    put(log, "a=1 a=2")
    clock.advance(1001)
    Cleaner(log).run_once()
    assert there(log) == "1:a=2"


def test_a_segment_that_just_began_is_not_sealed(make_log, put, clock, open_log, store, bases):
    """S8: what is idle is decided when it is committed."""
    log = make_log(segment_ms=1000)
    put(log, "a=1")
    clock.advance(1001)

    def roll():
        put(open_log(), "b=1")

    hit = open_log(
        FaultyStore(store, Faults(Fault(FaultKind.MEANWHILE, "create", "*commits*", run=roll)))
    )
    open_log().roll()
    seal_idle(Work(hit.handle, clock.now_ms()))
    assert bases(log) == [0, 1]
