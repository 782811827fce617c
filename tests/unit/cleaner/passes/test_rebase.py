"""A pass whose sources change while it runs: the same rows in other objects, or other rows."""

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.layout import Run, relayout
from clog_testing.crash import inside
from clog_testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog_testing.invariants import check_log

DAY_MS = 86_400_000
TWO_SEGMENTS = "a=1 b=1 a=2 c=1 b=2 d=1 c=2 a=3 e=1 f=1 g=1 f=2 h=1 g=2 i=1 h=2 f=3 j=1"
LEFT = "4:b=2 5:d=1 6:c=2 7:a=3 8:e=1 13:g=2 14:i=1 15:h=2 16:f=3 17:j=1"


def coalesce_all(log):
    """Every sealed segment becomes one chunk, whatever it was before."""
    handle = log.handle
    handle.refresh()
    manifest = handle.manifest()
    runs = [Run(0, s.chunks, 0) for s in manifest.segments[0][:-1] if s.chunks]
    assert len(relayout(Work(handle, 0, planned=manifest), runs, operation="coalesce")) == len(runs)


@pytest.fixture
def clean_while(open_log, store):
    """A pass before whose nth attempts to commit something else happens."""

    def clean(act, *nth):
        run = lambda: act(open_log())  # noqa: E731
        faults = [Fault(FaultKind.MEANWHILE, "create", "*commits*", n, run=run) for n in nth]
        log = open_log(FaultyStore(store, Faults(*faults)))
        (result,) = Cleaner(log).run_once(force=True)
        check_log(store, every_version=False)
        return result

    return clean


def horizons(log):
    log.handle.refresh()
    return [s.delete_horizon_ms for s in log.segments(0)]


@pytest.mark.parametrize("nth", [(1,), (2,), (1, 2), (1, 2, 3, 4, 5)])
def test_the_dead_offsets_hold(make_log, put, there, clean_while, store, nth):
    """Design: what is dead does not depend on where it is: what was written of a group takes the
    place of the chunks that are there now, however often others commit in between. Nothing is
    written twice.
    """
    log = make_log(segment_bytes=9 * 14)
    put(log, TWO_SEGMENTS)
    log.roll()
    result = clean_while(coalesce_all, *nth)
    assert result.complete
    assert result.next_dirty_offset == 18
    assert (result.stats.records_superseded, result.stats.records_written) == (8, 10)
    assert there(log) == LEFT
    assert [c.operation for c in log.history()].count("coalesce") == len(nth)
    manifest = log.handle.manifest()
    known = {c.object.path for _, c in manifest.chunks()} | {r.path for r in manifest.released}
    assert {found.path for found in inside(store).list("data/")} == known


def test_horizons_of_what_was_left_alone(make_log, put, there, clean, clock, clean_while):
    """S23: they get horizons by this pass all the same, from its commit; a later one
    removes them.
    """
    log = make_log(segment_bytes=DAY_MS, delete_retention_ms=1000)
    put(log, "a b c d=1")
    log.roll()
    result = clean_while(coalesce_all, 1)
    assert (result.complete, result.stats.tombstones_stamped) == (True, 3)
    (commit,) = [c for c in log.history() if c.operation == "clean"]
    assert horizons(log)[0] == commit.time_ms + 1000
    clock.advance(1000)
    clean(log)
    assert there(log) == "3:d=1"


@pytest.mark.parametrize("segment_bytes", [2 * 14, DAY_MS], ids=["merged", "left alone"])
@pytest.mark.parametrize("moves", [True, False])
def test_a_horizon_of_somebody_else(make_log, put, clock, clean_while, segment_bytes, moves):
    """S23: it is never set again, though the rows are the same: the pass stops."""
    log = make_log(segment_bytes=segment_bytes, delete_retention_ms=1000)
    put(log, "a b c d")
    log.roll()
    log.alter({"segment.bytes": DAY_MS})
    began_ms = clock.now_ms()

    def later(log):
        clock.advance(500)
        assert Cleaner(log).run_once(force=True)[0].complete
        if moves:
            coalesce_all(log)

    assert not clean_while(later, 1).complete
    assert horizons(log)[0] == began_ms + 1500


def test_segments_that_merged(make_log, put, there, clean_while):
    """S25: if no segments meet the ends of a group any more, the pass stops."""
    log = make_log(segment_bytes=2 * 14, object_bytes=14)
    put(log, "a=1 b=1 c=1 d=1 e=1 f=1 g=1 h=1")
    log.roll()
    log.alter({"segment.bytes": 4 * 14})
    before = there(log)

    def merge(log):
        log.alter({"segment.bytes": DAY_MS})
        assert Cleaner(log).run_once(force=True)[0].complete

    assert not clean_while(merge, 1).complete
    assert there(log) == before


def test_rows_that_are_gone(make_log, put, there, clean_while):
    """S36: the log start was raised and what is below it trimmed: the pass stops."""
    log = make_log(segment_bytes=9 * 14)
    put(log, TWO_SEGMENTS)
    log.roll()

    def delete(log):
        log.delete_records({0: 3})
        assert Cleaner(log).run_once() == []

    log.alter({"min.cleanable.dirty.ratio": 1})
    assert not clean_while(delete, 1).complete
    assert clean_while(delete).complete
    assert there(log) == LEFT


THIRTY = [{"key": f"k{i:02}", "value": "1"} for i in range(30)]


@pytest.mark.parametrize(
    ("text", "segment_bytes"),
    [("k07=2", 470), ("k07=2", 10_000), ("a=1 a=2 b=1", 10_000)],
    ids=["marked", "marked and kept", "kept"],
)
def test_a_large_chunk_that_moved(make_log, put, clean, there, clean_while, text, segment_bytes):
    """Safety: a chunk that is marked, or that the new segment refers to, must be there: its object
    is released, and is never restored.
    """
    log = make_log(object_bytes=800, segment_bytes=segment_bytes)
    log.append(THIRTY, partition=0)
    log.roll()
    clean(log)
    put(log, text)
    log.roll()
    before = there(log)
    assert not clean_while(coalesce_all, 1).complete
    assert there(log) == before
    assert clean_while(coalesce_all).complete
    assert there(log) != before
