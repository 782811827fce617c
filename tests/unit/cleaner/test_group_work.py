"""A pass whose sources are coalesced while it works: the same rows, in other objects."""

import pytest

from clog.cleaner import Cleaner, group_work
from clog.cleaner.relayout import Run, relayout
from clog.storage.offset_map import SLOT_BYTES
from clog.storage.testing.faults import Fault, FaultKind, Faults, FaultyStore
from clog.storage.testing.invariants import check_log

DAY_MS = 86_400_000
TWO_SEGMENTS = "a=1 b=1 a=2 c=1 b=2 d=1 c=2 a=3 e=1 f=1 g=1 f=2 h=1 g=2 i=1 h=2 f=3 j=1"
LEFT = "4:b=2 5:d=1 6:c=2 7:a=3 8:e=1 13:g=2 14:i=1 15:h=2 16:f=3 17:j=1"


def coalesce_all(log):
    """Every sealed segment becomes one chunk, whatever it was before."""
    handle = log.handle
    handle.refresh()
    manifest = handle.manifest()
    runs = [Run(0, s.chunks, 0) for s in manifest.segments[0][:-1] if s.chunks]
    assert len(relayout(handle, handle.store, manifest, runs, operation="coalesce")) == len(runs)


@pytest.fixture
def clean_while_coalesced(open_log, store):
    """A pass before whose nth attempts to commit all is coalesced by somebody else."""

    def clean(*nth, **settings):
        run = lambda: coalesce_all(open_log())  # noqa: E731
        faults = [Fault(FaultKind.MEANWHILE, "create", "*commits*", n, run=run) for n in nth]
        log = open_log(FaultyStore(store, Faults(*faults)))
        (result,) = Cleaner(log, **settings).run_once(force=True)
        check_log(store, every_version=False)
        return result

    return clean


@pytest.mark.parametrize("nth", [(1,), (2,), (1, 2), (1, 2, 3, 4, 5)])
def test_the_dead_offsets_hold(make_log, put, there, clean_while_coalesced, nth):
    """Design: what is dead does not depend on where it lies: each group goes on with the same map,
    and all of it is clean in the end, however often somebody comes in between."""
    log = make_log(segment_bytes=9 * 14)
    put(log, TWO_SEGMENTS)
    log.roll()
    result = clean_while_coalesced(*nth)
    assert result.complete
    assert result.next_dirty_offset == 18
    assert (result.stats.records_superseded, result.stats.records_written) == (8, 10)
    assert there(log) == LEFT
    assert [c.operation for c in log.history()].count("coalesce") == len(nth)


def test_it_is_not_repeated_for_ever(make_log, put, there, clean_while_coalesced, monkeypatch):
    """After so many times it stops; the first dirty offset stays, and the next pass does it."""
    monkeypatch.setattr(group_work, "AGAIN_MAX", 2)
    log = make_log(segment_bytes=9 * 14)
    put(log, TWO_SEGMENTS)
    log.roll()
    before = there(log)
    assert not clean_while_coalesced(1, 2, 3).complete
    assert there(log) == before
    assert clean_while_coalesced().next_dirty_offset == 18
    assert there(log) == LEFT


def test_what_earlier_maps_found(make_log, put, there, clean_while_coalesced):
    """S20: of a pass with several maps the notes of all of them move to the new chunks."""
    log = make_log(segment_bytes=9 * 14)
    put(log, TWO_SEGMENTS)
    log.roll()
    memory = (4 * 10 // 9 + 1) * SLOT_BYTES
    result = clean_while_coalesced(1, dedupe_buffer_bytes=memory)
    assert (result.complete, result.stats.maps) == (True, 3)
    assert there(log) == LEFT


def test_horizons_of_what_was_left_alone(make_log, put, there, clean, clock, clean_while_coalesced):
    """S23: stamped by this pass all the same, with its start; a later one removes them."""
    log = make_log(segment_bytes=DAY_MS, delete_retention_ms=1000)
    put(log, "a b c")
    log.roll()
    result = clean_while_coalesced(1)
    assert (result.complete, result.stats.tombstones_stamped) == (True, 3)
    log.handle.refresh()
    assert log.segments(0)[0].delete_horizon_ms == clock.now_ms() + 1000
    clock.advance(1000)
    clean(log)
    assert there(log) == ""
