"""COMMIT.md §7: what maintenance costs in requests, with few commits and with many. Nothing is
timed.
"""

import math

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.blocks import close_blocks
from clog.cleaner.sweep import sweep_orphans, sweep_released
from clog.storage.testing.counting import CountingStore

DAY_MS = 86_400_000
COMMITS = [12, 120]
ADMINISTRATION = 8
"""GETs of a round or a sweep that do not depend on the log: looks, blocks, edits not seen yet."""


@pytest.fixture(params=COMMITS)
def dirty(request, make_log, open_log, put, store):
    """A log of so many micro-batches, one object each, sealed; and a counter of requests to it."""
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


def test_a_sweep_costs_listings_and_what_it_deletes(dirty, clock):
    """Replaced objects: two commits and the deletions. Orphans: five listings of what may be one
    and one of temporary files, and a GET for each halving of the versions.
    """
    objects, store, log = dirty
    Cleaner(log).run_once(force=True)
    clock.advance(2 * DAY_MS)
    released = cost(store, lambda: sweep_released(log.handle, now_ms=clock.now_ms()))
    assert released.pop("delete") == objects
    assert released.pop("get") <= ADMINISTRATION
    assert released.pop("create") <= 3  # with a snapshot
    assert released.pop("put", 0) <= 2
    assert not released
    orphans = cost(store, lambda: sweep_orphans(log.handle, now_ms=clock.now_ms()))
    assert orphans.pop("list") == 6
    assert orphans.pop("get") <= math.log2(objects) + ADMINISTRATION
    assert not orphans
    assert cost(store, lambda: sweep_released(log.handle, now_ms=clock.now_ms())) == {}
    assert cost(store, lambda: close_blocks(log.handle, now_ms=clock.now_ms())) == {"get": 2}
