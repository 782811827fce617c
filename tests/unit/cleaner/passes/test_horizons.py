"""When a tombstone may be removed: from which moment its horizon counts, and the end of
all time.
"""

import numpy as np
import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.cleaner.log_round import plan_round
from clog.storage.config.log_config import DEFINITIONS
from clog.storage.format.chunks import TIME_MS_MAX, ChunkHorizon, Replacement
from clog.storage.format.commits import Edit
from clog.storage.format.documents import NONE
from clog.storage.objects.composing import write_rewritten
from clog.storage.objects.writer import rewritten_chunk
from clog.storage.read.scan import COLUMNS, DELETE_HORIZON, piece_of, read_pieces
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LEFT_ALONE, REWRITTEN = "a b c=1", "a=1 a b=1"


def sealed(log):
    log.handle.refresh()
    return [c for s in log.handle.manifest().segments[0][:-1] for c in s.chunks]


def horizons(log):
    """The delete horizon of each sealed row, by offset."""
    store, found = log.handle.store, {}
    for c in sealed(log):
        pieces = [piece_of(0, c, c.base, c.next)]
        for batch in read_pieces(store, pieces, columns=("offset", "value", DELETE_HORIZON)):
            found |= {
                row["offset"]: row[DELETE_HORIZON]
                for row in batch.to_pylist()
                if row["value"] is None
            }
    return found


@pytest.mark.parametrize("words", [LEFT_ALONE, REWRITTEN])
@pytest.mark.parametrize("lost", [0, 2])
def test_a_horizon_counts_from_the_commit(make_log, put, open_log, store, clock, words, lost):
    """S23: however long a pass takes, and however often its commit is tried, a tombstone outlives
    by delete.retention.ms the commit that removed the older values.
    """
    log = make_log(delete_retention_ms=1000, segment_bytes=1 << 20)
    put(log, words)
    log.roll()

    def rival():
        clock.advance(HOUR_MS)
        put(open_log(), "x=1")

    slow = Fault(FaultKind.MEANWHILE, "get", "*/data/*", run=lambda: clock.advance(HOUR_MS))
    races = [
        Fault(FaultKind.MEANWHILE, "create", "*/commits/*", n + 1, run=rival) for n in range(lost)
    ]
    Cleaner(open_log(FaultyStore(store, Faults(slow, *races)))).run_once(force=True)
    check_log(store, every_version=False)
    log.handle.refresh()
    (commit,) = [c for c in log.history() if c.operation == "clean"]
    assert commit.time_ms >= 1_000_000_000 + (1 + lost) * HOUR_MS
    assert set(horizons(log).values()) == {commit.time_ms + 1000}


@pytest.mark.parametrize("words", [LEFT_ALONE, REWRITTEN])
def test_a_retention_without_end(make_log, put, clean, there, clock, words):
    """S23: delete.retention.ms near 2^63 keeps tombstones to the end of all time, set once."""
    log = make_log(delete_retention_ms=TIME_MS_MAX - 5, segment_bytes=1 << 20)
    put(log, words)
    log.roll()
    assert clean(log).stats.tombstones_stamped
    assert set(horizons(log).values()) == {TIME_MS_MAX}
    for _ in range(2):
        put(log, "c=2")
        log.roll()
        clock.advance(HOUR_MS)
        assert clean(log).stats.tombstones_stamped == 0
    assert set(horizons(log).values()) == {TIME_MS_MAX}
    assert ":a" in there(log)


def test_a_chunk_with_a_horizon_beyond_all_time(make_log, put, clean, open_log):
    """FORMAT §5.3: it is read as the end of all time, by passes, too, that rewrite its rows."""
    log = make_log(segment_bytes=1 << 20)
    put(log, LEFT_ALONE)
    log.roll()
    marks = tuple(ChunkHorizon(0, *c.identity, 2**63 + 5, 3) for c in sealed(log))
    log.handle.commit(lambda *_: Edit(horizons=marks, first_dirty={0: 3}), operation="clean")
    log = open_log()
    assert set(horizons(log).values()) == {TIME_MS_MAX}
    put(log, "c=2 a=2")
    log.roll()
    assert clean(log).stats.records_superseded == 2
    assert horizons(log) == {1: TIME_MS_MAX}


def test_rows_whose_horizons_wrapped(make_log, put, clean, clock):
    """FORMAT §5.3, S23: a negative horizon counts as none; the next pass sets it again, and those
    after it leave it alone.
    """
    log = make_log(delete_retention_ms=1000, segment_bytes=1 << 20)
    put(log, LEFT_ALONE)
    log.roll()
    chunks = sealed(log)
    pieces = [piece_of(0, c, c.base, c.next) for c in chunks]
    store, columns = log.handle.store, [name for name in COLUMNS if name != "partition"]
    wrapped = [
        batch.append_column(DELETE_HORIZON, pa.array(np.full(batch.num_rows, 5 - 2**63)))
        for batch in read_pieces(store, pieces, columns=columns)
    ]
    objects = write_rewritten(
        store, wrapped, partition=0, stamp=log.version, new_id=log.handle.ids.new_id
    )
    made = tuple(rewritten_chunk(obj, version=chunks[-1].version) for obj in objects)
    whole = Replacement(0, 0, 3, tuple(c.identity for c in chunks), made)
    log.handle.commit(lambda *_: Edit(replace=(whole,), first_dirty={0: 3}), operation="clean")
    assert (made[0].horizon_min, made[0].horizon_max) == (NONE, NONE)
    assert set(horizons(log).values()) == {None}
    put(log, "x=1")
    log.roll()
    assert clean(log).stats.tombstones_stamped == 2
    expected = {0: clock.now_ms() + 1000, 1: clock.now_ms() + 1000}
    assert horizons(log) == expected
    clock.advance(500)
    put(log, "y=1")
    log.roll()
    assert clean(log).stats.tombstones_stamped == 0
    assert horizons(log) == expected


LIMITS = {name: d.kind for name, d in DEFINITIONS.items() if name.endswith(".ms")}


@pytest.mark.parametrize("bound", ["low", "high"])
@pytest.mark.parametrize("policy", ["compact", "delete", "compact,delete"])
def test_every_time_at_its_bound(make_log, put, open_log, store, clock, policy, bound):
    """S43: each config in ms is added to and subtracted from times that may be at their own bounds:
    rounds continue, whatever is allowed.
    """
    config = {name: getattr(kind, bound) for name, kind in LIMITS.items()}
    config |= {"cleanup.policy": policy, "min.compaction.lag.ms": 0}
    config |= {"message.timestamp.after.max.ms": TIME_MS_MAX}
    config |= {"message.timestamp.before.max.ms": TIME_MS_MAX}
    log = make_log(**config)
    latest_ms = TIME_MS_MAX // 1000
    for timestamp in (0, clock.now_ms(), latest_ms):
        put(log, "a=1 b=1 a b=2", timestamp=timestamp)
    log.roll()
    for _ in range(4):
        clock.advance(30 * 24 * HOUR_MS)
        Cleaner(log).run_once()
        Cleaner(open_log()).run_once(force=True)
        plan_round(log.handle, now_ms=clock.now_ms())
        assert log.describe()
        assert log.handle.manifest().uncleanable == {}
    check_log(store, every_version=False)


def test_values_of_fresh_chunks_are_not_read_to_find_their_tombstones(make_log, clean, clock):
    """S23: what is rewritten is read once, what stays is not read except for its keys; the
    tombstones get their horizons all the same.
    """
    each, rng = 30_000, np.random.default_rng(1)
    config = {"segment_bytes": 8 << 20, "object_bytes": 8 << 20, "compression_type": "none"}
    log = make_log(**config)

    def append(keys, deleted):
        rows = [{"key": f"k{i}", "value": rng.bytes(each)} for i in keys]
        log.append([*rows, {"key": deleted, "value": None}], partition=0)
        log.roll()

    append(range(80), "gone")
    kept = clean(log).stats
    assert (kept.records_written, kept.tombstones_stamped) == (0, 1)
    assert kept.bytes_read < each
    append([*range(80, 120)] * 2, "away")
    rewritten = clean(log).stats
    assert (rewritten.records_superseded, rewritten.tombstones_stamped) == (40, 1)
    assert rewritten.bytes_read < 81 * each
    horizon = clock.now_ms() + DAY_MS
    assert horizons(log) == {80: horizon, 161: horizon}
