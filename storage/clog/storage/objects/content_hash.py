"""A hash of records as they were handed over: tells a repeated append from another one under the
same sequence.

It does not depend on how the records were cut into batches nor on Arrow's buffers (slices,
offsets): for each column one stream of lengths, one of bytes, one of nulls. Timestamps count only
where the caller gave them: those filled in from the clock differ at each attempt.

Nor does it depend on the schema's version: of key and value that have other types than bytes only
what is not null counts, by its place, and numbers count as the widest ones they can become.
"""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from clog.storage.numpy_arrays import empty, scalar, to_arrow, to_numpy
from clog.storage.objects.typed_columns import elements, is_listed, list_lengths


class ContentHash:
    """Feed it batches, then ask for the digest (32 hex digits)."""

    def __init__(self) -> None:
        self._streams: dict[str, Any] = {}
        self._places: Counter[str] = Counter()
        self._rows = 0

    def update(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            of_bytes = name not in ("key", "value") or pa.types.is_binary(column.type)
            (self._column if of_bytes else self._typed)(name, column)

    def hexdigest(self) -> str:
        total = xxhash.xxh3_128(self._rows.to_bytes(8, "little"))
        for name in sorted(self._streams):
            total.update(name.encode() + b"\0" + self._streams[name].digest())
        return total.hexdigest()

    def _column(self, name: str, column: pa.Array) -> None:
        self._feed(f"{name}.null", to_numpy(column.is_null()))
        if pa.types.is_list(column.type):
            lengths = pc.fill_null(column.value_lengths(), scalar(0, pa.int32()))
            self._feed(f"{name}.lengths", to_numpy(lengths))
            self._column(f"{name}[]", column.flatten())
        elif pa.types.is_struct(column.type):
            for i, child in enumerate(column.flatten()):
                self._column(f"{name}.{column.type.field(i).name}", child)
        elif pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            filled = pc.fill_null(column, empty(column.type)) if column.null_count else column
            offsets = np.frombuffer(filled.buffers()[1], np.int32)[
                filled.offset : filled.offset + len(filled) + 1
            ]
            self._feed(f"{name}.lengths", np.diff(offsets))
            if len(filled) and filled.buffers()[2] is not None:
                data = memoryview(filled.buffers()[2])[int(offsets[0]) : int(offsets[-1])]
                self._stream(f"{name}.bytes").update(data)
        else:
            numbers = pc.fill_null(column.cast(pa.int64()), scalar(0, pa.int64()))
            self._feed(name, to_numpy(numbers))

    def _typed(self, name: str, column: pa.Array) -> None:
        first = self._places[name]
        self._places[name] += len(column)
        there = to_numpy(column.is_valid())
        if not there.any():
            return
        self._feed(f"{name}.at", first + np.flatnonzero(there))
        column = column.filter(to_arrow(there)) if column.null_count else column
        kind = column.type
        if pa.types.is_struct(kind):
            for i, child in enumerate(column.flatten()):
                self._typed(f"{name}.{kind.field(i).name}", child)
        elif is_listed(kind):
            self._feed(f"{name}.lengths", list_lengths(column))
            self._typed(f"{name}[]", elements(column))
        elif pa.types.is_binary(kind) or pa.types.is_string(kind):
            self._column(name, column)
        else:
            self._feed(name, _widest(column))

    def _feed(self, name: str, numbers: np.ndarray[Any, Any]) -> None:
        self._stream(name).update(np.ascontiguousarray(numbers).tobytes())

    def _stream(self, name: str) -> Any:
        return self._streams.setdefault(name, xxhash.xxh3_128())


def _widest(column: pa.Array) -> np.ndarray[Any, Any]:
    """Returns the bytes of values without nulls, of numbers those of the widest type."""
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        signed = not pa.types.is_unsigned_integer(kind)
        return to_numpy(column).astype(np.int64 if signed else np.uint64)
    if pa.types.is_float32(kind):
        column = column.cast(pa.float64())
    width = column.type.byte_width
    return np.frombuffer(column.buffers()[1], np.uint8, len(column) * width, column.offset * width)
