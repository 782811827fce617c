"""Which partitions are cleaned, and in which order."""

from dataclasses import replace

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.selection import PassStats, Reason, candidates, expired_tombstones
from clog.storage.config.log_config import LogConfig
from clog.storage.read.cleanable import cleanable_bounds

DAY_MS = 86_400_000
RECORD_BYTES = 14


@pytest.fixture
def eligible(clock):
    """The candidates of a log, now."""

    def eligible(log, *, force=False, **changed):
        log.handle.refresh()
        manifest = replace(log.handle.manifest(), **changed)
        config = LogConfig.from_overrides(manifest.head.config)
        return candidates(manifest, config, now_ms=clock.now_ms(), force=force)

    return eligible


@pytest.fixture
def bounds_of(clock):
    def bounds_of(log, partition=0, **changed):
        manifest = replace(log.handle.manifest(), **changed)
        config = LogConfig.from_overrides(manifest.head.config)
        return cleanable_bounds(manifest, partition, config, now_ms=clock.now_ms())

    return bounds_of


def test_the_dirty_ratio(make_log, put, clean, eligible):
    """S13, S14: cleanable / (clean + cleanable) bytes, strictly above the limit; the active segment
    is in neither term."""
    log = make_log(min_cleanable_dirty_ratio=0.5)
    put(log, "a=1 b=1 c=1")
    log.roll()
    clean(log)
    put(log, "d=1 e=1 f=1")
    log.roll()
    put(log, "g=1")
    assert eligible(log) == []
    log.alter({"min.cleanable.dirty.ratio": 0.49})
    (found,) = eligible(log)
    assert found.reason == Reason.DIRTY
    assert found.bounds.dirty_ratio == 0.5
    assert (found.bounds.clean_bytes, found.bounds.cleanable_bytes) == (42, 42)


def test_bytes_under_the_minimum_lag_count_nowhere(make_log, put, eligible, clock):
    """S13: lagging bytes are in neither term."""
    log = make_log(min_compaction_lag_ms=1000)
    put(log, "a=1 b=1 c=1", timestamp=clock.now_ms() - 1000)
    put(log, "d=1 e=1 f=1 g=1")
    (found,) = eligible(log)
    assert (found.bounds.clean_bytes, found.bounds.cleanable_bytes) == (0, 42)
    assert found.bounds.first_uncleanable == 3


def test_nothing_cleanable(make_log, put, eligible):
    """S14: a ratio of 0 needs more than 0 cleanable bytes; nor does force clean the active."""
    log = make_log(min_cleanable_dirty_ratio=0)
    put(log, "a=1 a=2")
    assert eligible(log) == []
    assert eligible(log, force=True) == []


def test_the_maximum_lag(make_log, put, eligible, clock):
    """S14: a dirty sealed segment whose first record is older than max.compaction.lag.ms makes a
    partition eligible, whatever the ratio; exactly as old is not older."""
    log = make_log(min_cleanable_dirty_ratio=1, max_compaction_lag_ms=1000)
    put(log, "a=1", timestamp=clock.now_ms() - 1000)
    put(log, "b=1")
    log.roll()
    assert eligible(log) == []
    clock.advance(1)
    (found,) = eligible(log)
    assert (found.reason, found.late_ms) == (Reason.OVERDUE, 1)


def test_overdue_but_not_cleanable(make_log, put, eligible, clock):
    """S14: being overdue makes nothing cleanable that min.compaction.lag.ms protects."""
    log = make_log(max_compaction_lag_ms=1000, min_compaction_lag_ms=1000)
    times = (clock.now_ms() - 5000, clock.now_ms())
    log.append([{"key": "a", "value": "1", "timestamp": ms} for ms in times])
    log.roll()
    assert eligible(log) == []


def test_the_order(make_log, put, clean, eligible, clock):
    """S15: overdue ones first, the longest first, though their ratio is lower; then by ratio."""
    log = make_log(4, max_compaction_lag_ms=DAY_MS, min_cleanable_dirty_ratio=0)
    for p in range(4):
        put(log, "a=1 b=1 c=1", partition=p)
    log.roll()
    clean(log)
    now = clock.now_ms()
    put(log, "d=1", partition=0, timestamp=now)
    put(log, "d=1 e=1", partition=1, timestamp=now)
    put(log, "d=1", partition=2, timestamp=now - DAY_MS - 5)
    put(log, "d=1", partition=3, timestamp=now - DAY_MS - 9)
    log.roll()
    found = eligible(log)
    assert [c.partition for c in found] == [3, 2, 1, 0]
    assert [c.late_ms for c in found] == [9, 5, 0, 0]


def test_a_tombstone_pass(make_log, put, clean, eligible, clock, there):
    """S16: tombstones past their horizon make a partition eligible without new dirty data, when
    they are a tenth of its records."""
    log = make_log(segment_bytes=1000, delete_retention_ms=1000)
    put(log, "a b=1 c=1 d=1 e=1 f=1 g=1 h=1 i=1 j=1")
    log.roll()
    clean(log)
    clock.advance(999)
    assert eligible(log) == []
    clock.advance(1)
    assert [c.reason for c in eligible(log)] == [Reason.TOMBSTONES]
    assert len(Cleaner(log).run_once()) == 1
    assert "0:a" not in there(log).split()
    assert eligible(log, force=True) == []


def test_a_few_tombstones_wait_for_a_day(make_log, put, clean, eligible, clock):
    """S16: fewer are not worth a pass, but overdue by a bounded time; peer bug 10 (redpanda
    #23380)."""
    log = make_log(segment_bytes=1000, delete_retention_ms=1000)
    put(log, "a b=1 c=1 d=1 e=1 f=1 g=1 h=1 i=1 j=1 k=1")
    log.roll()
    clean(log)
    clock.advance(1000 + DAY_MS)
    assert eligible(log) == []
    clock.advance(1)
    assert [c.reason for c in eligible(log)] == [Reason.TOMBSTONES]


def test_tombstones_go_while_much_comes_in(make_log, put, clean, eligible, clock, there):
    """S16, peer bug 10 (redpanda #23380): dirty data that never reaches the ratio does not keep a
    tombstone that has expired."""
    log = make_log(segment_bytes=1000, delete_retention_ms=1000, min_cleanable_dirty_ratio=1)
    put(log, "a b=1 c=1")
    log.roll()
    clean(log)
    for n in range(3):
        put(log, f"b={n} c={n}")
        log.roll()
        clock.advance(500)
    Cleaner(log).run_once()
    assert "0:a" not in there(log).split()


def test_chunks_with_later_horizons_wait(make_log, put, clean, clock):
    """S16: a chunk counts when all of its tombstones have expired: no pass for half a chunk."""
    log = make_log(segment_bytes=1000, delete_retention_ms=1000)
    put(log, "a x=1 x=2")
    log.roll()
    clean(log)
    clock.advance(500)
    put(log, "b x=3")
    log.roll()
    clean(log)
    manifest = log.handle.manifest()
    b = cleanable_bounds(manifest, 0, LogConfig.from_overrides(manifest.head.config), now_ms=0)
    now = clock.now_ms()
    assert [expired_tombstones(manifest, b, now_ms=now + ms) for ms in (999, 1000, 1250)] == [
        (0, 0),
        (2, 0),
        (2, 250),
    ]


def test_force(make_log, put, eligible):
    """S17: a forced pass cleans regardless of the ratio, and not what S11 protects."""
    log = make_log(min_cleanable_dirty_ratio=1)
    put(log, "a=1 a=2")
    log.roll()
    assert eligible(log) == []
    assert [c.reason for c in eligible(log, force=True)] == [Reason.FORCED]
    log.alter({"min.compaction.lag.ms": 1})
    assert eligible(log, force=True) == []


@pytest.mark.parametrize("policy", ["delete", ""])
def test_policies_that_do_not_compact(make_log, put, eligible, policy):
    """S31: nothing is cleaned, forced or not."""
    log = make_log(cleanup_policy=policy)
    put(log, "a=1 a=2")
    log.roll()
    assert eligible(log, force=True) == []


def test_a_first_dirty_offset_outside_the_log(make_log, put, bounds_of):
    """S12: below the log start or beyond the end it is reset to the log start."""
    log = make_log()
    put(log, "a=1 b=1 c=1 d=1")
    log.delete_records({0: 2})
    assert not bounds_of(log).reset
    for offset in (1, 5):
        b = bounds_of(log, first_dirty=(offset,))
        assert (b.first_dirty, b.reset) == (2, True)
    assert bounds_of(log, first_dirty=(4,)).first_dirty == 4


def test_deleted_records_raise_the_first_dirty_offset(make_log, put, bounds_of, clean, there):
    """S12: into the active segment, too; what is sealed later is cleaned from there on."""
    log = make_log()
    put(log, "a=1 b=1 c=1 d=1 e=1")
    log.delete_records({0: 4})
    b = bounds_of(log)
    assert (b.first_dirty, b.first_uncleanable, b.cleanable_bytes) == (4, 4, 0)
    put(log, "e=2")
    log.roll()
    clean(log)
    assert there(log) == "5:e=2"


def test_a_pass_is_shown_without_its_zeros():
    """Of 22 counts those that are not 0 are what a reader of a round looks for."""
    assert repr(PassStats(maps=1, records_read=5)) == "PassStats(maps=1, records_read=5)"
    assert repr(PassStats(clean_ms=61_000)) == "PassStats(clean_ms=61000 (1 min 1 s))"
