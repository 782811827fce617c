"""Records that follow from their number, so that what must be there is known without clog.

Record ``n`` has the key ``n * 2654435761 mod keys`` in decimal, and a value of 100 bytes that
begins with the number; each 97th is a tombstone. They are appended in the order of their numbers,
so the table is: for each key its highest number, unless that is a tombstone's.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

FACTOR = 2_654_435_761
TOMBSTONE_EVERY = 97
DIGITS = 12
PADDING = "x" * 88
SLICE = 1_000_000


def keys_of(numbers, keys):
    """The keys of records, as integers."""
    return numbers * FACTOR % keys


def records(start: int, end: int, keys: int) -> pa.Table:
    """The records ``[start, end)`` as clog takes them."""
    numbers = np.arange(start, end, dtype=np.int64)
    key = pc.cast(pa.array(keys_of(numbers, keys)), pa.string()).cast(pa.binary())
    width = DIGITS + len(PADDING)
    data = np.full((len(numbers), width), ord(PADDING[0]), np.uint8)
    rest = numbers.copy()
    for column in reversed(range(DIGITS)):
        rest, digit = np.divmod(rest, 10)
        data[:, column] = digit + ord("0")
    offsets = np.arange(0, (len(numbers) + 1) * width, width, dtype=np.int32)
    value = pa.Array.from_buffers(
        pa.binary(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    dead = pa.array(numbers % TOMBSTONE_EVERY == 0)
    value = pc.if_else(dead, pa.scalar(None, pa.binary()), value)
    return pa.table({"key": key, "value": value})


def expected_table(count: int, keys: int) -> np.ndarray:
    """By key the number of its value after ``count`` records; -1 where it has none."""
    last = np.full(keys, -1, np.int64)
    for start in range(0, count, SLICE):
        numbers = np.arange(start, min(start + SLICE, count), dtype=np.int64)
        last[keys_of(numbers, keys)] = numbers  # of equal keys the last assignment stays
    last[(last >= 0) & (last % TOMBSTONE_EVERY == 0)] = -1
    return last


def fold(into: np.ndarray, batches: Iterator[pa.RecordBatch]) -> int:
    """Applies records in their order to a table by key; returns how many there were."""
    count = 0
    for batch in batches:
        key = pc.cast(batch.column("key").cast(pa.string()), pa.int64()).to_numpy()
        digits = pc.utf8_slice_codeunits(batch.column("value").cast(pa.string()), 0, DIGITS)
        into[key] = pc.fill_null(pc.cast(digits, pa.int64()), -1).to_numpy()
        count += batch.num_rows
    return count
