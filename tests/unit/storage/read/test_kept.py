"""What the first read of a table keeps for the second."""

import numpy as np
import pyarrow as pa
import pytest

from clog.storage.read.table import Kept
from clog_testing.counting import CountingStore

SMALL, LARGE = b"x" * 100, 2 << 20


def batch(first, keys):
    offsets = np.arange(first, first + len(keys))
    return pa.record_batch({"offset": offsets, "key": pa.array(keys, pa.binary())})


@pytest.fixture
def counting(store):
    store.put("small", SMALL)
    store.put("large", bytes(LARGE))
    return CountingStore(store)


def test_small_objects_are_fetched_once(counting):
    """A second read needs no request, a third one does; parts and large objects are not kept."""
    kept = Kept(counting, 4 << 20)
    for gets in (1, 1, 2):
        assert kept.get("small", 0, 100) == SMALL
        assert counting.counts["get"] == gets
    for asked in (("small", 10, 100), ("small", 0, 50), ("large", 0, LARGE)):
        assert kept.get(*asked) == counting.inner.get(*asked)
    assert kept.get("small", 10, 100) == SMALL[10:]
    assert counting.counts["get"] == 6


def test_keys_come_in_the_order_of_their_batches():
    """Those of unrequested batches are dropped."""
    kept = Kept(None, 1 << 20)
    for first in (0, 100, 200):
        kept.keep_keys(batch(first, [b"%d" % first]))
    assert kept.keys_at(0).to_pylist() == [b"0"]
    assert kept.keys_at(200).to_pylist() == [b"200"]
    assert kept.are_all


def test_more_than_the_budget_is_not_kept(counting):
    """Nor anything after it, so that memory stays bounded; the view reads it again."""
    rows = batch(0, [b"0123456789abcdef"] * 100)
    kept = Kept(counting, rows.column("key").nbytes + 110)
    kept.get("small", 0, 100)
    kept.keep_keys(rows)
    assert kept.are_all
    kept.keep_keys(batch(100, [b"k"] * 100))
    assert not kept.are_all
    kept.keep_keys(batch(200, [b"k"]))
    for _ in range(2):
        kept.get("small", 0, 100)
    assert counting.counts["get"] == 3
    with pytest.raises(IndexError):
        kept.keys_at(200)


def test_a_slice_does_not_hold_its_batch():
    """The budget counts what is kept: of an object of many partitions a slice is its own part."""
    before = pa.total_allocated_bytes()
    kept = Kept(None, 1 << 20)
    for i in range(10):
        kept.keep_keys(batch(10_000 * i, [b"0123456789abcdef"] * 10_000).slice(5_000, 10))
    assert pa.total_allocated_bytes() - before < 20_000
