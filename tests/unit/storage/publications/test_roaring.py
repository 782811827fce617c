"""Roaring bitmaps as another library reads them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.storage.publications.source import to_roaring64

pyroaring = pytest.importorskip("pyroaring")


def read(data):
    return np.array(list(pyroaring.BitMap64.deserialize(data)), np.int64)


@pytest.mark.parametrize("rows", [0, 1, 2, 4096, 65_535, 65_536, 65_537, 400_000])
@pytest.mark.parametrize("share", [0, 0.0001, 0.03, 0.5, 0.9999, 1])
def test_any_set_is_read_back(rows, share):
    """FORMAT.md §14: lists, bits and runs, one container and several."""
    mask = np.random.default_rng(rows).random(rows) < share
    assert np.array_equal(read(to_roaring64(mask)), np.flatnonzero(mask))


@given(st.lists(st.integers(1, 70_000), max_size=12), st.booleans())
def test_runs_of_any_length_are_read_back(lengths, begins):
    """Also runs that end at a container's end, and continue after it."""
    values = [(i % 2 == 0) == begins for i in range(len(lengths))]
    mask = np.repeat(np.array(values, np.bool_), lengths)
    assert np.array_equal(read(to_roaring64(mask)), np.flatnonzero(mask))


def test_a_long_run_is_short():
    """A whole hidden object costs few bytes, however many rows it has."""
    assert len(to_roaring64(np.ones(1_000_000, np.bool_))) < 350
