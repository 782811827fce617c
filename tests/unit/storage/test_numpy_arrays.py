"""NumPy's arrays as Arrow's and back."""

import numpy as np
import pyarrow as pa
import pytest

from clog.storage import numpy_arrays


@pytest.mark.parametrize("dtype", ["i4", "i8", "u8", "i2", "?"])
@pytest.mark.parametrize("rows", [0, 1, 17])
def test_there_and_back_is_what_it_was(dtype, rows):
    """Slices and strided arrays too."""
    numbers = np.random.default_rng(1).integers(0, 2, 2 * rows + 3).astype(dtype)
    for given in (numbers[3 : 3 + rows], numbers[: 2 * rows : 2]):
        column = numpy_arrays.to_arrow(given)
        column.validate(full=True)
        assert column.to_pylist() == given.tolist()
    sliced = numpy_arrays.to_arrow(numbers).slice(3, rows)
    found = numpy_arrays.to_numpy(sliced)
    assert found.dtype == np.dtype(dtype)
    assert found.tolist() == sliced.to_pylist()


def test_values_and_nulls():
    """Of the types that records have."""
    stamp = pa.timestamp("us", "UTC")
    assert numpy_arrays.scalar(5, stamp).equals(pa.scalar(5, pa.int64()).cast(stamp))
    assert numpy_arrays.to_arrow(np.array([5]), stamp).equals(pa.array([5], pa.int64()).cast(stamp))
    assert numpy_arrays.null(pa.list_(pa.string())).as_py() is None
    assert numpy_arrays.empty(pa.string()).as_py() == ""
    assert numpy_arrays.empty(pa.binary()).as_py() == b""
    texts = numpy_arrays.repeated_text("größe", 3)
    texts.validate(full=True)
    assert texts.equals(pa.array(["größe"] * 3))
    assert numpy_arrays.repeated_text("", 2).to_pylist() == ["", ""]
    assert len(numpy_arrays.repeated_text("a", 0)) == 0
