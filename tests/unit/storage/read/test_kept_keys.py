"""Keys that are kept between the two reads of a table view."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from clog.storage.read.table import KeptKeys

PARTS = st.lists(st.lists(st.binary(max_size=20), max_size=5), max_size=6)


@given(PARTS, st.data())
def test_any_rows_of_what_was_kept(parts, data):
    """In their order, from parts that are empty, too."""
    kept = KeptKeys(1 << 20)
    for part in parts:
        kept.keep(pa.array(part, pa.binary()))
    keys = [key for part in parts for key in part]
    rows = (
        data.draw(st.lists(st.integers(0, len(keys) - 1), unique=True).map(sorted)) if keys else []
    )
    found = kept.take(pa.array(rows, pa.int64()).to_numpy())
    assert found is None if not parts else found.to_pylist() == [keys[row] for row in rows]


def test_more_than_the_budget_is_not_kept():
    """Nor anything after it, so that memory stays bounded; the view reads these keys again."""
    keys = pa.array([b"0123456789abcdef"] * 100)
    kept = KeptKeys(keys.nbytes + 10)
    kept.keep(keys)
    kept.keep(keys)
    kept.keep(keys.slice(0, 0))
    assert kept.take(pa.array([0]).to_numpy()) is None


def test_a_slice_does_not_hold_its_batch():
    """The budget counts what is kept: of an object of many partitions a slice is what one has."""
    before = pa.total_allocated_bytes()
    kept = KeptKeys(1 << 20)
    for _ in range(10):
        kept.keep(pa.array([b"0123456789abcdef"] * 10_000).slice(5_000, 10))
    assert pa.total_allocated_bytes() - before < 20_000
