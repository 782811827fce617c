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


@pytest.mark.parametrize("rows", [1, 1_024, 1_025, 10_000])
def test_rows_are_picked(rows):
    """Those at the places, in order; if few are missing, no value is copied."""
    random = np.random.default_rng(rows)
    batch = pa.record_batch({"n": np.arange(rows), "value": [b"%d" % i for i in range(rows)]})
    bytes_at = batch.column("value").buffers()[2].address
    for missing in {0, 1, 2, rows // 1_024, rows // 1_024 + 1, rows // 2, rows}:
        gone = random.choice(rows, min(missing, rows), replace=False)
        for lost in (gone, np.arange(len(gone)), rows - 1 - np.arange(len(gone))):
            places = np.setdiff1d(np.arange(rows), lost)
            found = list(numpy_arrays.picked(batch, places))
            table = pa.Table.from_batches(found, batch.schema)
            assert table.column("n").to_pylist() == places.tolist()
            assert table.column("value").to_pylist() == [b"%d" % i for i in places]
            assert all(part.num_rows for part in found)
            if missing * 1_024 <= rows:
                where = {part.column("value").buffers()[2].address for part in found}
                assert where <= {bytes_at}
