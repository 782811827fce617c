"""NumPy's arrays as Arrow's and back."""

import numpy as np
import pyarrow as pa
import pytest

from clog.storage import InvalidInputError, numpy_arrays


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
    micros = pa.timestamp("us", "UTC")
    assert numpy_arrays.scalar(5, micros).equals(pa.scalar(5, pa.int64()).cast(micros))
    assert numpy_arrays.to_arrow(np.array([5]), micros).equals(
        pa.array([5], pa.int64()).cast(micros)
    )
    assert numpy_arrays.null(pa.list_(pa.string())).as_py() is None
    assert numpy_arrays.empty(pa.string()).as_py() == ""
    assert numpy_arrays.empty(pa.binary()).as_py() == b""
    texts = numpy_arrays.repeated_text("größe", 3)
    texts.validate(full=True)
    assert texts.equals(pa.array(["größe"] * 3))
    assert numpy_arrays.repeated_text("", 2).to_pylist() == ["", ""]
    assert len(numpy_arrays.repeated_text("a", 0)) == 0


def test_values_of_python():
    """Bytes, numbers and lists as `pa.array` makes them; nulls, empty ones, none at all."""
    for values in ([], [None], [b""], [b"a", None, b"", b"bcd"] * 5):
        column = numpy_arrays.of_bytes(values)
        column.validate(full=True)
        assert column.equals(pa.array(values, pa.binary()))
    assert numpy_arrays.of_bytes(["ö".encode()], pa.string()).to_pylist() == ["ö"]
    micros = pa.timestamp("us", "UTC")
    for numbers in ([], [None, 0, -5, 2**62], [7]):
        column = numpy_arrays.of_numbers(numbers, micros)
        column.validate(full=True)
        assert column.equals(pa.array(numbers, micros))
    lists = [[1, 2], None, [], [3]]
    kind = pa.list_(pa.int64())
    column = numpy_arrays.of_lists(lists, kind, numpy_arrays.of_numbers([1, 2, 3], pa.int64()))
    column.validate(full=True)
    assert column.equals(pa.array(lists, kind))
    valid = np.array([True, False, True])
    assert numpy_arrays.to_arrow(np.arange(3), valid=valid).to_pylist() == [0, None, 2]


def test_more_bytes_than_a_column_holds(monkeypatch):
    """Offsets of a binary column have 32 bits: an error of ours, not columns that wrap around."""
    monkeypatch.setattr(numpy_arrays, "BYTES_MAX", 5)
    assert len(numpy_arrays.of_bytes([b"abc", b"de"])) == 2
    with pytest.raises(InvalidInputError, match="6 bytes of keys or values are more"):
        numpy_arrays.of_bytes([b"abc", b"def"])


@pytest.mark.parametrize("rows", [1, 2, 1_000, 10_000])
def test_rows_are_picked(rows):
    """Those at the places, in order; if these are long runs, no value is copied."""
    random = np.random.default_rng(rows)
    values = [b"%0100d" % i for i in range(rows)]
    batch = pa.record_batch({"n": np.arange(rows), "value": values})
    bytes_at = batch.column("value").buffers()[2].address
    few = min(rows, 12)
    for gone in (
        *([], [0], [rows - 1], range(rows), range(rows // 3, rows // 2), range(0, rows, 2)),
        *(random.choice(rows, count, replace=False) for count in (few, rows // 2)),
    ):
        places = np.setdiff1d(np.arange(rows), np.array(gone, np.int64))
        found = list(numpy_arrays.picked(batch, places))
        table = pa.Table.from_batches(found, batch.schema)
        assert table.column("n").to_pylist() == places.tolist()
        assert table.column("value").to_pylist() == [values[i] for i in places]
        assert all(part.num_rows for part in found)
        if len(gone) <= 12 <= rows // 100 or (isinstance(gone, range) and gone.step == 1):
            where = {part.column("value").buffers()[2].address for part in found}
            assert where <= {bytes_at}
