"""Few dead rows of a big chunk: a bitmap instead of a rewrite, and the rewrite in bounded time."""

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties.layout import LOOSE_OBJECTS_MIN
from clog.cleaner.log_round import plan_round
from clog.cleaner.selection import TOMBSTONE_WAIT_MS_MAX
from clog.storage.format import chunks as bitmap
from clog_testing.crash import inside
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

DAY_MS = 86_400_000
SEVEN = 7 * DAY_MS
THIRTY = " ".join(f"k{i:02}=1" for i in range(30))


@pytest.fixture
def big(make_log, clean):
    """A clean log with one chunk of the keys k00 to k29 that is not small for its config."""

    def make(text=THIRTY, **config):
        log = make_log(object_bytes="800", segment_bytes="10000", **config)
        words = [word.partition("=") for word in text.split()]
        log.append([{"key": k, "value": v if eq else None} for k, eq, v in words], partition=0)
        log.roll()
        clean(log)
        return log

    return make


@pytest.fixture
def update(put, clean):
    """Appends in a separate segment, and cleans."""

    def update(log, text):
        put(log, text)
        log.roll()
        return clean(log)

    return update


def chunks(log):
    return [c for s in log.handle.manifest().segments[0][:-1] for c in s.chunks]


def dead(log):
    return [c.dead and c.dead.rows for c in chunks(log)]


def test_a_few_dead_rows_are_marked(big, update, there, store):
    """S21: invisible at once, though no object was written: work in proportion to what died."""
    log = big()
    before = chunks(log)[0].object
    result = update(log, "k07=2")
    assert dead(log) == [1, None]
    assert chunks(log)[0].object == before
    assert "k07=1" not in there(log)
    assert there(log).endswith("29:k29=1 30:k07=2")
    assert (result.stats.records_marked, result.stats.records_written) == (1, 0)
    assert result.stats.bytes_written == 0
    assert log.table().to_arrow().num_rows == 30


def test_marks_are_planned_and_counted(big, put, clock):
    """A dry run reports where what dies may be marked and what is marked; the metrics'
    sums count.
    """
    log = big()
    cleaner = Cleaner(log)
    for before in (0, 1):
        put(log, f"k0{before}=2")
        log.roll()
        (planned,) = plan_round(log.handle, now_ms=clock.now_ms(), force=True).passes
        assert (planned.markable_records, planned.records_marked) == (30 - before, before)
        cleaner.run_once(force=True)
    assert cleaner.monitor.logs()[log.url].totals["records_marked"] == 2


def test_bitmaps_add_up(big, update, there, clock):
    """A later one has the rows of the earlier one, and their time: the deadline never moves."""
    log = big()
    update(log, "k07=2")
    since_ms = chunks(log)[0].dead.since_ms
    clock.advance(DAY_MS)
    update(log, "k03=2")
    assert dead(log)[0] == 2
    assert chunks(log)[0].dead.since_ms == since_ms
    assert "k03=1" not in there(log)
    assert "k07=1" not in there(log)


def test_enough_dead_rows_are_rewritten(big, update):
    """Those of before count: 3 rows written for one that died, and less is worth it no more."""
    log = big()
    update(log, " ".join(f"k{i:02}=2" for i in range(7)))
    assert dead(log)[0] == 7
    result = update(log, "k07=2")
    assert dead(log) == [None] * len(dead(log))
    assert result.stats.records_superseded == 1
    assert sum(c.rows for c in chunks(log)) == 30


@pytest.mark.parametrize("config", [{"dead_rows_delay_ms": "0"}, {"object_bytes": "99999"}])
def test_what_is_never_marked(make_log, put, clean, config):
    """Where no delay is allowed, and small chunks: their rewrite is cheap."""
    log = make_log(**{"object_bytes": "800", "segment_bytes": "10000", **config})
    log.append([{"key": f"k{i:02}", "value": "1"} for i in range(30)], partition=0)
    log.roll()
    put(log, "k07=2")
    log.roll()
    clean(log)
    assert not any(dead(log))
    assert sum(c.rows for c in chunks(log)) == 30


def test_a_chunk_that_shares_its_object_is_rewritten(make_log, put, clean):
    """Design: a bitmap would keep the object alive for the other partition's sake."""
    log = make_log(partitions=2, object_bytes="800", segment_bytes="10000")
    rows = [{"key": f"k{i:02}", "value": "1"} for i in range(60)]
    log.append(rows, partition=[0] * 30 + [1] * 30)
    log.roll()
    put(log, "k07=2")
    log.roll()
    clean(log)
    assert not any(dead(log))


def test_the_bytes_go_in_time(big, update, clock, store):
    """S46: by themselves, in the round in which dead.rows.delay.ms is over, under any policy."""
    log = big(compression_type="none", file_delete_delay_ms="1000")
    update(log, "k07=2")
    log.alter({"cleanup.policy": "delete", "retention.ms": "-1"})
    clock.advance(SEVEN - 1)
    Cleaner(log).run_once()
    assert dead(log) == [1, None]
    assert plan_round(log.handle, now_ms=clock.now_ms()).materialised == []
    clock.advance(1)
    (planned,) = plan_round(log.handle, now_ms=clock.now_ms()).materialised
    assert (planned.chunks, planned.records) == (1, 30)
    cleaner = Cleaner(log)
    cleaner.run_once()
    assert not any(dead(log))
    assert [c.rows for c in chunks(log)] == [29, 1]
    assert cleaner.monitor.logs()[log.url].totals["records_materialised"] == 29
    clock.advance(2000)
    Cleaner(log).run_once()
    check_log(store, every_version=False)


def test_dead_rows_and_small_neighbours_go_in_one_rewrite(big, update, put, clock):
    """S46: what both reasons name in a segment is one run, which one commit replaces."""
    log = big(compression_type="none")
    update(log, "k07=2")
    log.alter({"cleanup.policy": "delete", "retention.ms": "-1"})
    for _ in range(LOOSE_OBJECTS_MIN):
        put(log, "k08=3")
    clock.advance(SEVEN)
    Cleaner(log).run_once()
    assert not any(dead(log))
    assert [commit.operation for commit in log.history()].count("coalesce") == 1


def test_a_shorter_delay_holds_at_once(big, update, clock):
    """S42: the config of now decides, also for what was marked before."""
    log = big()
    update(log, "k07=2")
    log.alter({"dead.rows.delay.ms": "1000"})
    clock.advance(1000)
    Cleaner(log).run_once()
    assert not any(dead(log))


def test_a_bitmap_goes_with_its_chunk(big, update, clock, store, monkeypatch):
    """FORMAT.md §6: its file is released with the chunk, or when another takes its place, and
    deleted when file.delete.delay.ms is over (peer bugs: dead bitmaps that stay for ever).
    """
    monkeypatch.setattr(bitmap, "INLINE_BYTES_MAX", 0)
    log = big(file_delete_delay_ms="1000")
    files = lambda: {f.path for f in inside(store).list("data/") if f.path.endswith(".dead")}  # noqa: E731
    update(log, "k07=2")
    (first,) = files()
    update(log, "k03=2")
    assert len(files()) == 2
    older = log.handle.manifest().released[-1]
    assert older.path == first
    clock.advance(1001)
    Cleaner(log).run_once()
    assert first not in files()
    assert len(files()) == 1
    update(log, " ".join(f"k{i:02}=2" for i in range(10, 20)))
    clock.advance(1001)
    Cleaner(log).run_once()
    assert files() == set()


def test_the_start_in_a_marked_chunk(big, update, there, clean):
    """S37: trimming leaves the dead rows out, too."""
    log = big()
    update(log, "k07=2 k20=2")
    log.delete_records({0: 5})
    clean(log)
    assert not any(dead(log))
    assert sum(c.rows for c in chunks(log)) == 30 - 5
    assert "k07=1" not in there(log)


def test_tombstones_take_two_passes(big, update, there, clock):
    """S23: one gets its horizon where its chunk is marked, stays, and goes by a later pass; a chunk
    whose tombstones have had their time is rewritten, so that no pass is called for in vain (S16).
    """
    log = big(delete_retention_ms="1000")
    result = update(log, "k07")
    assert result.stats.tombstones_stamped == 1
    assert dead(log) == [1, None]
    assert there(log).endswith("30:k07")
    clock.advance(1000)
    result = update(log, "other=1")
    assert "k07" not in there(log)
    assert result.stats.tombstones_expired == 1
    clock.advance(2 * DAY_MS)
    assert Cleaner(log).run_once() == []


def test_a_superseded_tombstone_calls_for_no_pass(big, update, clock):
    """S16: though the statistics of a marked chunk count it."""
    words = [f"k{i:02}=1" for i in range(29)]
    log = big(" ".join([*words, "gone"]), delete_retention_ms="1000")
    update(log, "gone=1")
    assert dead(log)[0] == 1
    clock.advance(3 * DAY_MS)
    assert Cleaner(log).run_once() == []
    assert dead(log)[0] == 1


def test_expired_tombstones_are_marked(big, there, clock):
    """S16, S23, S41: spread deletes do not have every object rewritten each day; readers are told,
    no further pass is called for, and the bytes go by dead.rows.delay.ms."""
    words = [f"k{i:02}=1" for i in range(29)]
    log = big(" ".join([*words, "gone"]), delete_retention_ms="1000")
    clock.advance(1000 + TOMBSTONE_WAIT_MS_MAX + 1)
    (result,) = Cleaner(log).run_once()
    assert (result.stats.records_marked, result.stats.records_written) == (1, 0)
    assert dead(log) == [1]
    assert "gone" not in there(log)
    manifest = log.handle.manifest()
    assert [(p, offset) for p, _, offset in manifest.tombstones_removed] == [(0, 29)]
    clock.advance(SEVEN - 1)
    assert Cleaner(log).run_once() == []
    assert dead(log) == [1]
    clock.advance(1)
    assert Cleaner(log).run_once() == []
    assert [(c.rows, c.tombstones) for c in chunks(log)] == [(29, 0)]


def test_a_tombstone_that_waited_long_is_rewritten(big, clock):
    """S46: where no pass came for dead.rows.delay.ms its bytes do not wait again."""
    words = [f"k{i:02}=1" for i in range(29)]
    log = big(" ".join([*words, "gone"]), delete_retention_ms="1000")
    clock.advance(1000 + SEVEN)
    (result,) = Cleaner(log).run_once()
    assert (result.stats.records_marked, result.stats.tombstones_expired) == (0, 1)
    assert not any(dead(log))


def test_tombstones_among_more_dead_rows(big, update, there, clock):
    """S16: a live one that the dead rows of its chunk may have been is not looked for until these
    are removed; then it goes."""
    words = [f"k{i:02}=1" for i in range(29)]
    log = big(" ".join([*words, "gone"]), delete_retention_ms="1000")
    update(log, "k07=2")
    clock.advance(3 * DAY_MS)
    assert Cleaner(log).run_once() == []
    assert "gone" in there(log)
    clock.advance(SEVEN)
    Cleaner(log).run_once()
    Cleaner(log).run_once()
    assert "gone" not in there(log)
    assert not any(dead(log))


def test_a_merged_segment_keeps_its_bitmaps(big, update, put, clean, there):
    """S25: chunks are referred to again with the rows that are dead in them."""
    log = big()
    update(log, "k07=2")
    log.alter({"segment.bytes": "430"})
    put(log, "x=1")
    log.roll()
    before = there(log)
    log.alter({"segment.bytes": "10000"})
    clean(log)
    assert [s.base_offset for s in log.segments(0)] == [0, 32]
    assert dead(log)[0] == 1
    assert there(log) == before


def test_a_pass_stops_where_a_chunk_was_marked_meanwhile(big, put, open_log, store, there):
    """COMMIT.md §2: the bitmap of another pass is not overwritten by one that knows less."""
    log = big()
    put(log, "k07=2")
    log.roll()

    def other():
        log = open_log()
        put(log, "k03=2")
        log.roll()
        Cleaner(log).run_once(force=True)

    fault = Fault(FaultKind.MEANWHILE, "create", "*commits*", 1, run=other)
    (result,) = Cleaner(open_log(FaultyStore(store, Faults(fault)))).run_once(force=True)
    assert result.next_dirty_offset == result.first_dirty_offset
    log.handle.refresh()
    check_log(store, every_version=False)
    assert dead(log)[0] == 2
    assert "k03=1" not in there(log)
    assert "k07=1" not in there(log)


def test_a_stop_between_rewriting_and_marking(
    make_log, put, clean, open_log, store, clock, there, monkeypatch
):
    """S41: a group is committed with all that becomes of it, or not at all: else tombstones of it
    would go, and no reader be told.
    """
    monkeypatch.setattr(bitmap, "INLINE_BYTES_MAX", 0)
    log = make_log(object_bytes="800", segment_bytes="10000", delete_retention_ms="1000")
    log.append([{"key": "t", "value": None}, {"key": "u", "value": "1"}], partition=0)
    log.append([{"key": f"k{i:02}", "value": "1"} for i in range(30)], partition=0)
    log.roll()
    clean(log)
    before = there(log)
    clock.advance(1000)
    put(log, "k07=2")
    log.roll()
    stop = lambda: cleaner.stop()  # noqa: E731, PLW0108 - made below
    fault = Fault(FaultKind.MEANWHILE, "put", "*/data/*.parquet", run=stop)
    cleaner = Cleaner(open_log(FaultyStore(store, Faults(fault))))
    (result,) = cleaner.run_once(force=True)
    assert not result.complete
    assert there(log) == f"{before} 32:k07=2"
    clean(open_log())
    manifest = open_log().handle.manifest()
    assert [(p, offset) for p, _, offset in manifest.tombstones_removed] == [(0, 0)]


@pytest.mark.parametrize("dies", ["value", "tombstone"])
def test_tombstones_do_not_wait_behind_dead_rows_for_ever(big, update, clock, there, dies):
    """S16: where dead rows may wait for ever, and may be the expired tombstones, the chunk is
    rewritten a bounded time after the horizon: in a log to which nobody writes, and once."""
    forever = str((1 << 63) - 1)
    log = big(f"{THIRTY} t", dead_rows_delay_ms=forever, delete_retention_ms=1000)
    update(log, "k07=2" if dies == "value" else "t=1")
    assert dead(log)[0] == 1
    cleaner, passes = Cleaner(log), []
    for day in range(30):
        clock.advance(DAY_MS)
        passes += [day] * len(cleaner.run_once())
    assert len(passes) == 1
    assert passes[0] <= 10
    assert dead(log)[0] is None
    assert not there(log).endswith(":t")
    assert "30:t" not in there(log)
    check_log(log.handle.standing.root, every_version=False)
