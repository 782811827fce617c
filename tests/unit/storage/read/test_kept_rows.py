"""Rows that are kept between the two reads of a table view."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from clog.storage.read.table import KeptRows

PARTS = st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=5), max_size=6)


def batch(first, keys):
    offsets = np.arange(first, first + len(keys))
    return pa.record_batch({"offset": offsets, "key": pa.array(keys, pa.binary())})


def keeping(budget_bytes):
    kept = KeptRows(budget_bytes)
    kept.columns = ["key"]
    return kept


@given(PARTS, st.data())
def test_any_batches_of_what_was_kept(parts, data):
    """In their order, by the offsets at which they begin; those before are forgotten."""
    kept = keeping(1 << 20)
    firsts = [100 * i for i in range(len(parts))]
    for first, part in zip(firsts, parts, strict=True):
        kept.keep(batch(first, part))
    bounds = data.draw(st.lists(st.integers(0, 600), unique=True, max_size=6).map(sorted))
    for start, end in pairwise(bounds):
        found = [rows.column("key").to_pylist() for rows in kept.take(start, end)]
        assert found == [p for at, p in zip(firsts, parts, strict=True) if start <= at < end]
    assert kept.are_all


def test_more_than_the_budget_is_not_kept():
    """Nor anything after it, so that memory stays bounded; the view reads these rows again."""
    rows = batch(0, [b"0123456789abcdef"] * 100)
    kept = keeping(rows.column("key").nbytes + 10)
    kept.keep(rows)
    kept.keep(batch(100, [b"k"] * 100))
    kept.keep(batch(200, [b"k"]))
    assert not kept.are_all
    assert not list(kept.take(0, 1000))


def test_a_slice_does_not_hold_its_batch():
    """The budget counts what is kept: of an object of many partitions a slice is what one has."""
    before = pa.total_allocated_bytes()
    kept = keeping(1 << 20)
    for i in range(10):
        kept.keep(batch(10_000 * i, [b"0123456789abcdef"] * 10_000).slice(5_000, 10))
    assert pa.total_allocated_bytes() - before < 20_000
