"""Small limits, so that a few dozen versions meet what takes clog thousands; and plain objects.

The rules are those of large blocks, pages and runs. Objects are Arrow streams instead of Parquet:
what is simulated are calls of the store and their order, and a stream costs a tenth.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import pyarrow as pa

import clog.cleaner.duties.erasing
import clog.cleaner.duties.layout
import clog.cleaner.duties.sweep
import clog.cleaner.masks
import clog.cleaner.passes.run_pass
import clog.state.cache
import clog.storage.commit.combining
import clog.storage.commit.committer
import clog.storage.format.chunks
import clog.storage.format.columns
import clog.storage.format.commits
import clog.storage.format.documents
import clog.storage.format.manifest
import clog.storage.format.transactions
import clog.storage.format.writers
import clog.storage.objects.reader
import clog.storage.objects.writer
import clog.storage.read.scan
import clog.storage.read.table
from clog.storage.types.columns import REWRITTEN_SCHEMA

BLOCK_VERSIONS = 4

Patch = Callable[[object, str, object], None]


@contextmanager
def patching() -> Iterator[Patch]:
    """Yields a function that sets an attribute until the end of the block."""
    undo = []

    def patch(owner: object, name: str, value: object) -> None:
        undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    try:
        yield patch
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


@contextmanager
def small_limits(*, parquet: bool = False, answers: int = 12) -> Iterator[None]:
    """Sets them; with ``parquet`` objects stay what they are. ``answers``: as many a head holds."""
    storage, cleaner, state = clog.storage, clog.cleaner, clog.state
    with patching() as patch:
        patch(storage.format.documents, "BLOCK_VERSIONS", BLOCK_VERSIONS)
        patch(storage.commit.committer, "SNAPSHOT_EDIT_BYTES_MIN", 10)
        patch(storage.commit.combining, "ANSWERED_VERSIONS", 4)
        patch(storage.commit.combining, "ANSWERED_MS", 1_000)
        patch(storage.commit.combining, "ANSWERS_MAX", answers)
        patch(storage.commit.combining, "GROUP_CHUNKS_MAX", 2 * answers)
        patch(storage.commit.combining, "_NEAR", 3)
        patch(storage.format.commits, "INLINE_EDIT_BYTES_MAX", 1500)
        patch(storage.format.manifest, "PAGE_CHUNKS_MIN", 3)
        patch(storage.format.writers, "WRITERS_MAX", 3)
        patch(storage.format.writers, "PAGE_BYTES_MAX", 400)
        patch(storage.format.columns, "INLINE_PARTITIONS_MAX", 1)
        patch(storage.format.columns, "MANY", 1)
        patch(cleaner.duties.sweep, "INLINE_PARTITIONS_MAX", 1)
        patch(storage.format.transactions, "POSITIONS_BYTES_MAX", 10)
        patch(storage.read.table, "MAP_BYTES", 1 << 12)
        patch(state.cache, "VERSIONS_MAX", 6)
        patch(storage.format.documents, "decode", _decoded_document)
        patch(storage.format.chunks, "INLINE_BYTES_MAX", 9)
        patch(cleaner.masks, "STEP_ROWS", 12)
        patch(cleaner.passes.run_pass, "MAPS_MAX", 2)
        patch(cleaner.duties.layout, "RUN_CHUNKS_MIN", 3)
        patch(cleaner.duties.layout, "LOOSE_OBJECTS_MIN", 6)
        if not parquet:
            patch(storage.objects.writer, "encoded", _encoded)
            for reading in (storage.read.scan, cleaner.masks, cleaner.masks):
                patch(reading, "open_ranges", _open_ranges)
            for reading in (storage.read.scan, cleaner.duties.erasing):
                patch(reading, "read_rows", _read_rows)
        yield


def _encoded(rows, _compression, _key_seed):
    records = rows.records if rows.order is None else rows.records.take(pa.array(rows.order))
    (batch,) = records.combine_chunks().to_batches()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes(), 0, 0


def _open_ranges(store, obj, ranges, *, columns, schema=None, choose=None):
    assert schema is None and choose is None, "simulated logs have no schema, and no filter"
    data = store.get(obj.path, 0, obj.size_bytes)
    assert len(data) == obj.size_bytes, obj.path
    batch = _decoded(data, tuple(columns))

    def slices(_batch_rows):
        for i, (first, rows) in enumerate(ranges):
            if rows:
                yield i, 0, batch.slice(first, rows)

    return slices


def _read_rows(store, obj, first_row, rows, *, columns, schema=None):
    slices = _open_ranges(store, obj, [(first_row, rows)], columns=columns, schema=schema)
    return [batch for _, _, batch in slices(rows)]


_decode = clog.storage.format.documents.decode


@lru_cache(maxsize=4096)
def _body(kind, data):
    return _decode(kind, data, where="the simulated log")


def _decoded_document(kind, data, *, where):
    """As `documents.decode`; many read the same bytes, and nobody changes what it returns."""
    del where
    return _body(kind, bytes(data))


@lru_cache(maxsize=4096)
def _decoded(data, columns):
    with pa.ipc.open_stream(data) as reader:
        batch = reader.read_next_batch()
    fields = [REWRITTEN_SCHEMA.field(name) for name in columns]
    arrays = [
        batch.column(field.name)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in fields
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
