"""A hash of records as they were handed over: tells a repeated append from another one under the
same sequence.

It does not depend on how the records were cut into batches nor on Arrow's buffers (slices,
offsets): for each column one stream of lengths, one of bytes, one of nulls. Timestamps count only
where the caller gave them: those filled in from the clock differ at each attempt.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import xxhash


class ContentHash:
    """Feed it batches, then ask for the digest (32 hex digits)."""

    def __init__(self) -> None:
        self._streams: dict[str, Any] = {}
        self._rows = 0

    def update(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            self._column(name, column)

    def hexdigest(self) -> str:
        total = xxhash.xxh3_128(self._rows.to_bytes(8, "little"))
        for name in sorted(self._streams):
            total.update(name.encode() + b"\0" + self._streams[name].digest())
        return total.hexdigest()

    def _column(self, name: str, column: pa.Array) -> None:
        self._feed(f"{name}.null", np.asarray(column.is_null().to_numpy(zero_copy_only=False)))
        if pa.types.is_list(column.type):
            lengths = column.value_lengths().fill_null(0)
            self._feed(f"{name}.lengths", lengths.to_numpy(zero_copy_only=False))
            self._column(f"{name}[]", column.flatten())
        elif pa.types.is_struct(column.type):
            for i, child in enumerate(column.flatten()):
                self._column(f"{name}.{column.type.field(i).name}", child)
        elif pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            filled = column.fill_null(b"" if pa.types.is_binary(column.type) else "")
            offsets = np.frombuffer(filled.buffers()[1], np.int32)[
                filled.offset : filled.offset + len(filled) + 1
            ]
            self._feed(f"{name}.lengths", np.diff(offsets))
            if len(filled) and filled.buffers()[2] is not None:
                data = memoryview(filled.buffers()[2])[int(offsets[0]) : int(offsets[-1])]
                self._stream(f"{name}.bytes").update(data)
        else:
            numbers = column.cast(pa.int64()).fill_null(0)
            self._feed(name, numbers.to_numpy(zero_copy_only=False))

    def _feed(self, name: str, numbers: np.ndarray[Any, Any]) -> None:
        self._stream(name).update(np.ascontiguousarray(numbers).tobytes())

    def _stream(self, name: str) -> Any:
        return self._streams.setdefault(name, xxhash.xxh3_128())
