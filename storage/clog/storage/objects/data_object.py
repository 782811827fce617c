"""Data objects as values: schemas, what a writer reports, the size of a record (FORMAT.md §5).

A *data object* is one immutable Parquet file. Its rows are ordered by partition; the rows of one
partition in it are a *chunk*. A fresh object is *dense*: it has no offsets, they are given at
commit as base of the chunk + row number. A *rewritten* one holds records that have their offsets;
it has an ``offset`` column unless they run without gap.

Not here: bytes (`objects.writer`, `objects.reader`), and where a chunk lies in its log (`chunks`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.format.chunks import NONE, Chunk
from clog.storage.format.object_ref import ObjectRef
from clog.storage.keys.key_bytes import key_bytes
from clog.storage.numpy_arrays import scalar, to_numpy
from clog.storage.objects.typed_columns import value_sizes

RECORD_OVERHEAD = 12
"""Bytes a record counts beside its content: offset 8, size 4 (Kafka's). Part of the format."""

OFFSET = "offset"
DELETE_HORIZON = "delete_horizon"

RECORD_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field(
            "headers",
            pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
        ),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
    ]
)
"""A record of a log of bytes that has no offset yet. A null value is a tombstone (S4), timestamps
are never null.
"""

REWRITTEN_SCHEMA = pa.schema(
    [
        *RECORD_SCHEMA,
        pa.field(OFFSET, pa.int64()),
        pa.field(DELETE_HORIZON, pa.int64()),
    ]
)
"""A record that has one. ``delete_horizon``: ms since 1970, null where none is set (S23)."""


@dataclass(frozen=True, slots=True)
class ChunkStats:
    """One partition's rows in one object; ``size_bytes`` is the sum of their record sizes.

    Offsets (the first and the last row's) and the bounds of delete horizons are those of rewritten
    records; -1: none.
    """

    partition: int
    rows: int
    size_bytes: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    tombstones: int
    first_offset: int = NONE
    last_offset: int = NONE
    horizon_min: int = NONE
    horizon_max: int = NONE


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What a commit checks against the config of then, not the one at writing (S5, S6, S9)."""

    null_keys: int
    largest_record_bytes: int
    min_timestamp_ms: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class DataObject:
    """An object that was written and is not committed yet: all that a commit needs of it.

    ``footer_bytes`` includes the 8-byte tail; ``index_bytes`` is the size of the key index, 0 for
    none; ``checksum`` is XXH3-128 of all bytes, in hex;
    ``stamp`` a version that was read before the first byte was written; ``chunks`` are in the order
    of their rows; ``facts`` are those of fresh records, None of rewritten ones; ``schema_id`` says
    which of its log's schemas it was written under, -1 for bytes.
    """

    path: str
    size_bytes: int
    footer_bytes: int
    checksum: str
    rows: int
    stamp: int
    chunks: tuple[ChunkStats, ...]
    facts: ObjectFacts | None
    dense: bool
    index_bytes: int = 0
    schema_id: int = NONE

    @property
    def ref(self) -> ObjectRef:
        """What a manifest keeps of it, and a reader needs."""
        return ObjectRef(
            *(self.path, self.size_bytes, self.footer_bytes, self.checksum),
            *(self.rows, self.stamp, self.dense, self.index_bytes),
        )


def rewritten_chunk(obj: DataObject, *, version: int) -> Chunk:
    """Returns the chunk that is all of a rewritten object.

    ``version``: the newest commit its rows came in by.
    """
    (stats,) = obj.chunks
    return Chunk(
        object=obj.ref,
        first_row=0,
        rows=obj.rows,
        base=stats.first_offset,
        next=stats.last_offset + 1,
        size_bytes=stats.size_bytes,
        first_timestamp_ms=stats.first_timestamp_ms,
        max_timestamp_ms=stats.max_timestamp_ms,
        tombstones=stats.tombstones,
        version=version,
        horizon_min=stats.horizon_min,
        horizon_max=stats.horizon_max,
    )


def record_sizes(records: pa.Table | pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the bytes each record counts: 12 + key + value + for each header its key and value;
    of a typed log the key's canonical bytes, and what `value_sizes` says.

    This is the size in ``segment.bytes``, ``retention.bytes`` and ``max.message.bytes``: it depends
    on the record alone, not on compression or neighbours. Needs the columns key, value, headers.
    """
    if isinstance(records, pa.Table):
        parts = [record_sizes(batch) for batch in records.to_batches()]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)
    sizes = np.full(records.num_rows, RECORD_OVERHEAD, np.int64)
    sizes += _lengths(key_bytes(records.column("key")))
    sizes += value_sizes(records.column("value"))
    headers = records.column("headers")
    if headers.null_count < len(headers):
        sizes += _header_sizes(headers)
    return sizes


def check_rows(rows: pa.RecordBatch) -> None:
    """Raises if stored rows hold what the format forbids, in those columns that are there.

    Raises:
        ValueError: they do (FORMAT.md §5.1).
    """
    names = rows.schema.names
    if "timestamp" in names and rows.num_rows:
        times = rows.column("timestamp")
        if times.null_count or to_numpy(times.view(pa.int64())).min() < 0:
            raise ValueError("it has timestamps that are null or before 1970")
    if OFFSET in names and rows.column(OFFSET).null_count:
        raise ValueError("it has rows without offsets")
    if "headers" in names and rows.column("headers").null_count < rows.num_rows:
        pairs = rows.column("headers").flatten()
        if pairs.null_count or pairs.field(0).null_count:
            raise ValueError("it has headers that are null or have no key")


def _lengths(values: pa.Array) -> np.ndarray[Any, Any]:
    """Returns the bytes of each binary or string, 0 for null."""
    lengths = pc.binary_length(values)
    return to_numpy(pc.fill_null(lengths, scalar(0, lengths.type)))


def _header_sizes(headers: pa.Array) -> np.ndarray[Any, Any]:
    counts = to_numpy(pc.fill_null(pc.list_value_length(headers), scalar(0, pa.int32())))
    # flatten() leaves out what lies under null lists and around a slice, as the counts do.
    entries = headers.flatten()
    sizes = np.zeros(len(entries) + 1, np.int64)
    np.cumsum(
        _lengths(pc.struct_field(entries, "key")) + _lengths(pc.struct_field(entries, "value")),
        out=sizes[1:],
    )
    ends = np.cumsum(counts, dtype=np.int64)
    per_record: np.ndarray[Any, Any] = sizes[ends] - sizes[ends - counts]
    return per_record
