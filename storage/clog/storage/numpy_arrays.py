"""NumPy's arrays as Arrow's and back, without pandas.

`pa.array`, `pa.scalar`, `Array.to_numpy`, and all that takes Python's numbers (``fill_null(0)``),
look whether they deal with objects of pandas, and for that import it where it is installed: most
of a second, for nothing, in each of the short-lived processes that Spark reads and writes with. So
what these processes run hands buffers over: no copy, no pandas.

Not here: nulls. A null's slot holds any number; fill it first.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def to_arrow(numbers: NDArray[Any], kind: pa.DataType | None = None) -> pa.Array:
    """An array of these numbers or truth values; ``kind``: as this type of the same width."""
    if numbers.dtype == np.bool_:
        bits = np.packbits(numbers, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(numbers), [None, pa.py_buffer(bits)])
    kind = kind or pa.from_numpy_dtype(numbers.dtype)
    assert kind.bit_width == 8 * numbers.dtype.itemsize, f"{numbers.dtype} as {kind}"
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(kind, len(numbers), [None, data])


def to_numpy(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """The integers or truth values of a column; a time as the integer it is stored as."""
    kind, rows = column.type, len(column)
    if isinstance(column, pa.ChunkedArray):
        chunks = column.chunks or [pa.nulls(0, kind)]
        column = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    if pa.types.is_boolean(kind):
        if not rows:
            return np.empty(0, np.bool_)
        octets = np.frombuffer(column.buffers()[1], np.uint8)
        bits = np.unpackbits(octets, count=column.offset + rows, bitorder="little")
        return bits[column.offset :].view(np.bool_)
    sign = "u" if pa.types.is_unsigned_integer(kind) else "i"
    dtype = np.dtype(f"{sign}{kind.bit_width // 8}")
    if not rows:
        return np.empty(0, dtype)
    return np.frombuffer(column.buffers()[1], dtype, rows, column.offset * dtype.itemsize)


def scalar(number: int, kind: pa.DataType) -> pa.Scalar:
    """A value of a type of integers or times."""
    return to_arrow(np.array([number], f"i{kind.bit_width // 8}"), kind)[0]


def null(kind: pa.DataType) -> pa.Scalar:
    """No value of this type."""
    return pa.nulls(1, kind)[0]


def empty(kind: pa.DataType) -> pa.Scalar:
    """No bytes, of type string or binary."""
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")])[0]


def repeated_text(text: str, rows: int) -> pa.Array:
    """A column of strings that are all this one."""
    data = text.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(data))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data * rows)]
    return pa.Array.from_buffers(pa.string(), rows, buffers)
