"""NumPy's arrays and Python's values as Arrow's and back, without pandas.

``pa.array``, ``pa.scalar``, ``Array.to_numpy``, and everything that takes Python's numbers, such as
``fill_null(0)``, check for objects of pandas, and for that import pandas if it is installed. That
wastes most of a second in each of the short-lived processes with which Spark reads and writes. So
the code of these processes passes buffers instead: no copy, no pandas.

On the way back the caller deals with nulls: the slot of a null has any number; fill it first.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from threading import Thread
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clog.storage.errors import InvalidInputError

Hashes = NDArray[np.uint64]
"""Shape (n, 2): the high and low words of each key's 128-bit hash."""
Offsets = NDArray[np.int64]
Mask = NDArray[np.bool_]

BYTES_MAX = (1 << 31) - 1
"""The most bytes of a column of type binary or string, whose offsets have 32 bits."""


def to_arrow(
    numbers: NDArray[Any], kind: pa.DataType | None = None, *, valid: Mask | None = None
) -> pa.Array:
    """Returns an array of numbers or truth values of this ``kind``, null where not ``valid``."""
    nulls = None if valid is None else bits(valid)
    if numbers.dtype == np.bool_:
        return pa.Array.from_buffers(pa.bool_(), len(numbers), [nulls, bits(numbers)])
    kind = kind or pa.from_numpy_dtype(numbers.dtype)
    assert kind.bit_width == 8 * numbers.dtype.itemsize, f"{numbers.dtype} as {kind}"
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(kind, len(numbers), [nulls, data])


def of_bytes(values: Sequence[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """Returns an array of type binary, unless ``kind`` is string; the bytes are then UTF-8."""
    there = [value for value in values if value is not None]
    lengths = map(len, there) if len(there) == len(values) else (len(v or b"") for v in values)
    made = np.fromiter(lengths, np.int64, len(values))
    return of_lengths(made, pa.py_buffer(b"".join(there)), validity(values), kind)


def of_lengths(
    lengths: NDArray[Any],
    data: pa.Buffer,
    valid: pa.Buffer | None = None,
    kind: pa.DataType | None = None,
) -> pa.Array:
    """Returns an array of type binary, unless ``kind`` is string, of the values with these lengths
    (0 for null) that follow one another in a buffer.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    if len(ends) and ends[-1] > BYTES_MAX:
        raise InvalidInputError(
            f"{ends[-1]} bytes of keys or values are more than the {BYTES_MAX} of one call; pass"
            " them in several"
        )
    offsets = np.zeros(len(lengths) + 1, np.int32)
    offsets[1:] = ends
    buffers = [valid, pa.py_buffer(offsets), data]
    return pa.Array.from_buffers(kind or pa.binary(), len(lengths), buffers)


def of_numbers(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """Returns an array of a type of integers or times, null where a value is None."""
    numbers = np.array([value or 0 for value in values], dtype_of(kind))
    return pa.Array.from_buffers(kind, len(values), [validity(values), pa.py_buffer(numbers)])


def of_lists(values: Sequence[Sequence[Any] | None], kind: pa.DataType, flat: pa.Array) -> pa.Array:
    """Returns an array of lists with the lengths of ``values`` and the elements ``flat``."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value or ()) for value in values], out=offsets[1:])
    buffers = [validity(values), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(values), buffers, children=[flat])


def to_numpy(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """Returns the numbers or truth values of a column; times as the integers that are stored."""
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
    dtype = dtype_of(kind)
    if not rows:
        return np.empty(0, dtype)
    return np.frombuffer(column.buffers()[1], dtype, rows, column.offset * dtype.itemsize)


def of_one_width(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a binary column without nulls, whose values all have one length, as a fixed-width
    type: gathering its rows takes half of the time, for keys a third. Any other column is returned
    as it is.
    """
    if column.type != pa.binary() or column.null_count or column.num_chunks != 1:
        return column
    values = column.chunk(0)
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(values) + 1, 4 * values.offset)
    first, width = int(bounds[0]), int(bounds[1] - bounds[0])
    if width == 0 or (np.diff(bounds) != width).any():
        return column
    buffers = [None, data.slice(first, width * len(values))]
    return pa.chunked_array([pa.Array.from_buffers(pa.binary(width), len(values), buffers)])


def of_any_width(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column of `of_one_width`, or rows of it, as binary again; a cast would copy it."""
    return pa.chunked_array([_binary(chunk) for chunk in column.chunks], pa.binary())


def _binary(values: pa.Array) -> pa.Array:
    rows, width = len(values), values.type.byte_width
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * np.int32(width))
    data = values.buffers()[1].slice(values.offset * width, rows * width)
    return pa.Array.from_buffers(pa.binary(), rows, [None, offsets, data])


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """Returns NumPy's type of the numbers as which a type of numbers or times is stored."""
    is_unsigned, is_float = pa.types.is_unsigned_integer(kind), pa.types.is_floating(kind)
    return np.dtype(f"{'u' if is_unsigned else 'f' if is_float else 'i'}{kind.bit_width // 8}")


@lru_cache(maxsize=32)
def repeated(number: int, rows: int, kind: pa.DataType) -> pa.Array:
    """Returns a column of one number; batches of a read share it."""
    return to_arrow(np.full(rows, number, dtype_of(kind)), kind)


@lru_cache(maxsize=32)
def nulls(rows: int, kind: pa.DataType) -> pa.Array:
    """Returns a column of nulls; batches of a read share it."""
    return pa.nulls(rows, kind)


_RUN_BYTES: Final = 64 << 10


def picked(batch: pa.RecordBatch, places: Offsets) -> Iterator[pa.RecordBatch]:
    """Yields the rows at these ascending places; as runs, without a copy, if they are long."""
    if len(places) == batch.num_rows:
        yield batch
        return
    breaks = np.flatnonzero(np.diff(places) != 1)
    if len(breaks) and len(breaks) * _RUN_BYTES > batch.nbytes:
        at = to_arrow(places)
        rows = [
            column.slice(0, len(at)) if column.null_count == len(column) else column.take(at)
            for column in batch.columns
        ]
        yield pa.RecordBatch.from_arrays(rows, schema=batch.schema)
        return
    if not len(places):
        return
    firsts, lasts = places[[0, *(breaks + 1)]], places[[*breaks, -1]]
    for first, count in zip(firsts.tolist(), (lasts - firsts + 1).tolist(), strict=True):
        yield batch.slice(first, count)


def scalar(number: int, kind: pa.DataType) -> pa.Scalar:
    """Returns a value of a type of integers or times."""
    return to_arrow(np.array([number], dtype_of(kind)), kind)[0]


def null(kind: pa.DataType) -> pa.Scalar:
    """Returns the null of this type."""
    return pa.nulls(1, kind)[0]


def empty(kind: pa.DataType) -> pa.Scalar:
    """Returns the empty value of type string or binary."""
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")])[0]


def repeated_text(text: str, rows: int) -> pa.Array:
    """Returns a column that repeats one string."""
    data = text.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(data))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data * rows)]
    return pa.Array.from_buffers(pa.string(), rows, buffers)


def validity(values: Sequence[object]) -> pa.Buffer | None:
    """Returns the bits that say which values are not None, or None if all are."""
    if None not in values:
        return None
    return bits(np.array([value is not None for value in values], np.bool_))


def validity_of(column: pa.Array) -> pa.Buffer | None:
    """Returns the bits that say which values of an array are not null, or None if all are."""
    return bits(to_numpy(column.is_valid())) if column.null_count else None


def bits(truths: Mask) -> pa.Buffer:
    """Returns truth values as Arrow stores them, for example in its validity bitmaps."""
    return pa.py_buffer(np.packbits(truths, bitorder="little"))


_PARQUET: Final[dict[str, Any]] = {}


def parquet() -> Any:
    """Returns ``pyarrow.parquet``, imported at the first call, so that a cold look-up of data
    sources does not pay for it.

    Python interrupts only its main thread, and an interrupted import may leave half a module, or
    leave the module's lock in a traceback that is kept somewhere, so that all others wait forever.
    Therefore another thread imports it.

    Whoever reads with it says ``use_threads=False``: a thread of Arrow's holds Python's bytes for a
    moment after it has answered, and a process that ends in that moment is aborted before Python
    3.14.
    """
    if not _PARQUET:

        def load() -> None:
            _PARQUET["module"] = import_module("pyarrow.parquet")

        thread = Thread(target=load, name="clog-import")
        thread.start()
        thread.join()
    return _PARQUET.get("module") or import_module("pyarrow.parquet")
