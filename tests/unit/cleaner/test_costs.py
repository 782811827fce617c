"""COMMIT.md §7: what maintenance costs in requests, with few commits and with many. Nothing is
timed.
"""

import math
import sys

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.commit_blocks import close_blocks
from clog.cleaner.duties.sweep import sweep_orphans, sweep_released
from clog.cleaner.log_round import CleanerSettings, LogRound
from clog.cleaner.passes.run_pass import PassProgress
from clog.cleaner.threads import CleanerThreads, Throttle
from clog.storage import Log
from clog.storage.env import SeededIds
from clog.storage.objects import reader, writer
from clog.storage.read.scan import footprints, plan_range, read_pieces
from clog.storage.store import contract
from clog_testing.counting import CountingStore
from clog_testing.crash import discard, memory_store
from clog_testing.delaying import DelayingStore

DAY_MS = 86_400_000
COMMITS = [12, 120]
ADMINISTRATION = 8
"""GETs of a round or a sweep that do not depend on the log: looks, blocks, edits not seen yet."""


@pytest.fixture(params=COMMITS)
def dirty(request, make_log, open_log, put, store):
    """A log of this many micro-batches, one object each, sealed; and a counter of
    requests to it.
    """
    log = make_log()
    put(log, "a=1 " * request.param)
    log.roll()
    counting = CountingStore(store)
    return request.param, counting, open_log(counting)


def cost(store, act):
    with store.count() as counts:
        act()
    return dict(counts)


def test_a_pass_reads_each_object_twice_and_writes_what_is_left(dirty):
    """For the map and for the rows, a GET each where an object is small; then the new objects and
    the commit. A round that finds nothing to do is one poll.
    """
    objects, store, log = dirty
    cleaner = Cleaner(log)
    found = cost(store, lambda: cleaner.run_once(force=True))
    assert 2 * objects <= found.pop("get") <= 2 * objects + ADMINISTRATION
    assert found.pop("create") <= 2
    assert found.pop("put") <= 2  # the object, a hint
    assert not found
    assert cost(store, cleaner.run_once) == {"get": 1}


@pytest.mark.parametrize("value_bytes", [40, 400])
def test_keys_of_many_row_groups_take_few_requests(
    make_log, open_log, store, monkeypatch, value_bytes
):
    """COMMIT.md §7: the footer, and four requests for the keys of an object however many row groups
    it has; if values are large, as many more as keep what is read below twice the keys.
    """
    monkeypatch.setattr(writer, "GROUP_BYTES", 4000)
    monkeypatch.setattr(writer, "GROUP_BYTES_MIN", 1000)
    monkeypatch.setattr(reader, "WHOLE_BYTES", 0)
    monkeypatch.setattr(contract, "COALESCE_GAP_BYTES", 16)
    rows = 100_000 // value_bytes
    log = make_log(2, segment_bytes=1 << 20, min_cleanable_dirty_ratio=0, compression_type="none")
    log.append(
        [{"key": f"{i:060}", "value": f"{i:0{value_bytes}}"} for i in range(rows)],
        partition=[0] * rows,
    )
    log.roll()
    counting = CountingStore(store)
    log = open_log(counting)
    log.handle.manifest()
    pieces = plan_range(log.handle.manifest(), 0, 0, rows)
    within = log.handle.store
    with counting.count() as counts:
        read = sum(b.num_rows for b in read_pieces(within, pieces, columns=("offset", "key")))
    assert read == rows
    (found,) = footprints(within, pieces, columns=("offset", "key"))
    assert found.row_groups > 20
    assert counts["get"] == 1
    if value_bytes == 40:
        assert counts["get_ranges"] == contract.REQUESTS_FEW
    else:
        assert contract.REQUESTS_FEW < counts["get_ranges"] <= found.row_groups
    assert found.fetched_bytes < 3 * rows * 60


def test_a_sweep_costs_listings_and_what_it_deletes(dirty, clock):
    """Replaced objects: two commits and the deletions. Orphans: five listings of possible ones
    and one of temporary files, one of named readers, one of requests of erasures, one of proposals,
    two of what creators left beside the log, a GET for each halving of the versions, and the
    floor's commit.
    """
    objects, store, log = dirty
    Cleaner(log).run_once(force=True)
    clock.advance(2 * DAY_MS)
    released = cost(store, lambda: sweep_released(Work(log.handle, clock.now_ms())))
    assert released.pop("delete") == objects
    assert released.pop("get") <= 1 + ADMINISTRATION  # which log stands there, after so long
    assert released.pop("create") <= 3  # with a snapshot
    assert released.pop("put", 0) <= 2
    assert not released
    orphans = cost(store, lambda: sweep_orphans(Work(log.handle, clock.now_ms())))
    assert orphans.pop("list") == 11
    assert orphans.pop("get") <= math.log2(objects) + ADMINISTRATION
    assert orphans.pop("create") == 1
    assert orphans.pop("put", 0) <= 1
    assert not orphans
    assert cost(store, lambda: sweep_released(Work(log.handle, clock.now_ms()))) == {}
    assert cost(store, lambda: close_blocks(Work(log.handle, clock.now_ms()))) == {"get": 2}


def test_duties_that_find_nothing_take_the_same_calls_in_a_large_log(clock):
    """What may be due at a version is asked once for each, not in every round."""

    def calls(objects):
        store = memory_store()
        log = Log.create(store, 1, {"object.bytes": 60}, clock=clock, ids=SeededIds(1))
        log.append([{"key": f"k{i:04}", "value": "v" * 40} for i in range(objects)])
        log.roll()
        Cleaner(log).run_once(force=True)
        assert len(log.handle.manifest().files()) == objects
        of_log = LogRound(log, clock, Throttle(None, clock), CleanerSettings())
        for _ in range(3):
            of_log.maintain()
            of_log.end()
        count = 0

        def note(_frame, event, _):
            nonlocal count
            count += event == "call"

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            of_log.maintain()
            of_log.end()
        finally:
            sys.setprofile(before)
        discard(store)
        return count

    assert calls(200) <= calls(10) + 20


def test_a_pass_over_many_objects_far_away_waits_for_few_of_them(make_log, open_log, put, store):
    """Requests for the next chunks are sent ahead in mapping, judging and rewriting: with 100 ms
    for each the pass takes a fraction of the time of one after the other.
    """
    log = make_log(segment_bytes=10_000, object_bytes=60, dead_rows_delay_ms=0)
    keys = [f"k{i:02}" for i in range(40)]
    put(log, " ".join(f"{key}=1" for key in keys))
    log.roll()
    Cleaner(log).run_once(force=True)
    put(log, " ".join(f"{key}=2" for key in keys[::4]))
    log.roll()
    chunks = [c for s in log.handle.manifest().segments[0][:-1] for c in s.chunks]
    far = DelayingStore(store)
    log = open_log(far)
    log.handle.manifest()
    plan = LogRound(log, log.handle.clock, Throttle(None, log.handle.clock), CleanerSettings())
    began_ms, requests = far.now_ms, far.requests
    result = plan.clean(0, CleanerThreads(1, 1 << 16), PassProgress(), force=True)
    assert result.stats.records_superseded == 10
    assert len(chunks) == 50
    assert far.requests - requests >= 60
    assert far.now_ms - began_ms <= 2000
