"""Which rows the newest records of a partition supersede, among themselves and in older chunks.

M1a. Read the keys of new chunks; of those of one key only the last is not superseded. A row without
     key counts as superseded: no table shows it.
M1b. Ask the key indexes of older chunks where these keys may be, and read the keys there.

Bytes of keys are compared, always: a hash decides only what is read.

*Older* are chunks below the new ones, so that every key that is found there is superseded. Rows
that are dead, or below the log start, count as others do: who superseded them supersedes what they
superseded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.format.chunks import Chunk
from clog.storage.format.schema import LogSchema
from clog.storage.keys.key_bytes import key_bytes
from clog.storage.keys.key_index import index_hashes
from clog.storage.numpy_arrays import Mask, to_arrow, to_numpy
from clog.storage.objects.reader import BATCH_ROWS, open_ranges
from clog.storage.read.key_index_cache import KeyIndexCache
from clog.storage.read.scan import piece_of, presence_column
from clog.storage.store.base import Store


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows of new chunks, chunk by chunk: those that are superseded, those that are tombstones;
    and the keys that they have, each once, as their canonical bytes.
    """

    superseded: Sequence[Mask]
    tombstones: Sequence[Mask]
    keys: pa.Array


def new_rows(store: Store, chunks: Sequence[Chunk], schema: LogSchema | None) -> NewRows:
    """Judges new chunks, in the order of their offsets, among themselves (M1a)."""
    keys = [_column(store, c, "key", schema) for c in chunks]
    canonical = [key_bytes(pa.concat_arrays(some)) for some in keys]
    encoded = pa.chunked_array(canonical, pa.binary()).combine_chunks().dictionary_encode()
    codes = encoded.indices
    has_key = to_numpy(codes.is_valid())
    numbers = np.where(has_key, to_numpy(codes), 0)
    rows = np.arange(len(numbers))
    last = np.zeros(len(encoded.dictionary) or 1, np.int64)
    last[numbers[has_key]] = rows[has_key]  # Of equal numbers the last one stays.
    superseded = ~has_key | (last[numbers] != rows)
    edges = np.cumsum([c.rows for c in chunks])[:-1]
    tombstones = [tombstones_of(store, c, schema) for c in chunks]
    return NewRows(np.split(superseded, edges), tombstones, encoded.dictionary)


def tombstones_of(store: Store, chunk: Chunk, schema: LogSchema | None) -> Mask:
    """Returns which rows of a chunk are tombstones; nothing is read where it has none."""
    if not chunk.tombstones:
        return np.zeros(chunk.rows, np.bool_)
    parts = _column(store, chunk, presence_column("value", schema, ()), schema)
    return np.concatenate([to_numpy(part.is_null()) for part in parts])


def superseded_in(
    indexes: KeyIndexCache,
    partition: int,
    older: Sequence[Chunk],
    keys: pa.Array,
    schema: LogSchema | None,
) -> Iterator[tuple[Chunk, Mask]]:
    """Yields older chunks that have any of the keys, and which of their rows have (M1b)."""
    if not len(keys):
        return
    hashes = index_hashes(keys, seed=indexes.seed)
    by_place = {c.identity: c for c in older}
    pieces = [piece_of(partition, c, c.base, c.next, schema) for c in older]
    indexes.load(pieces)
    for run in indexes.runs(pieces):
        for hit in indexes.hits(run, hashes):
            chunk = by_place[hit.piece.object.path, hit.piece.first_row]
            wanted = keys.take(to_arrow(np.unique(hit.numbers)))
            parts = hit.parts(np.ones(len(hit.numbers), np.bool_))
            ranges = [(part.first_row, part.rows) for part in parts]
            rows = np.zeros(chunk.rows, np.bool_)
            read = open_ranges(indexes, chunk.object, ranges, columns=("key",), schema=schema)
            at = [first - chunk.first_row for first, _ in ranges]
            for i, batch in read(BATCH_ROWS):
                found = pc.is_in(key_bytes(batch.column(0)), value_set=wanted)
                rows[at[i] : at[i] + batch.num_rows] = to_numpy(found)
                at[i] += batch.num_rows
            if rows.any():
                yield chunk, rows


def _column(store: Store, chunk: Chunk, name: str, schema: LogSchema | None) -> list[pa.Array]:
    """Returns a column of all rows of a chunk, in parts."""
    ranges = [(chunk.first_row, chunk.rows)]
    read = open_ranges(store, chunk.object, ranges, columns=(name,), schema=schema)
    return [batch.column(0) for _, batch in read(BATCH_ROWS)]
