"""Finding the rows of few keys.

A record's key does not tell its partition (a writer may have named another), and keys lie in no
order: so every object is asked. One with a key index says which of its rows may hold a key; of a
large one without, keys are read first, and the rest only where a wanted key is.

- `pieces_of_keys`: what to read of pieces that are read once, in a task.
- `latest_of_keys`: the latest records by indexes that stay in memory, for those who ask again. Of
  each partition the newest pieces come first; a key that is found is not looked for in older ones.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.keys.key_bytes import key_bytes
from clog.storage.keys.key_index import index_hashes
from clog.storage.numpy_arrays import of_bytes, to_arrow, to_numpy
from clog.storage.objects.reader import WHOLE_BYTES
from clog.storage.read.key_index_cache import KeyIndexCache, Run, asked_bytes
from clog.storage.read.scan import ReadPiece, cut, read_pieces, read_schema
from clog.storage.store.ahead import ahead
from clog.storage.store.base import Store


def pieces_of_keys(
    store: Store, pieces: Sequence[ReadPiece], keys: Sequence[bytes], seed: int
) -> Iterator[ReadPiece]:
    """Yields the pieces without those that hold none of the keys (their canonical bytes), cut to
    where one may be. What is left holds other keys too. ``seed``: the log's. Where keys are read
    first, the requests go ahead (`store.ahead`).

    Raises:
        FileNotFoundError: an object is gone.
    """
    wanted = of_bytes(keys)
    hashes = index_hashes(wanted, seed=seed)
    indexes = KeyIndexCache(store, seed=seed)

    def narrowed(piece: ReadPiece) -> list[ReadPiece]:
        if piece.object.index_bytes:
            return [*indexes.parts(piece, hashes)]
        found = [
            offset
            for batch in read_pieces(store, [piece], columns=("offset", "key"))
            for offset in _ends(of_keys(batch, wanted).column("offset"))
        ]
        return [cut(piece, found[0], found[-1] + 1)] if found else []

    for searched, some in groupby(pieces, is_searched):
        if not searched:
            yield from some
            continue
        for parts in ahead(store, ((partial(narrowed, p), asked_bytes(p.object)) for p in some)):
            yield from parts


def latest_of_keys(
    indexes: KeyIndexCache, runs: Sequence[Run], keys: Sequence[bytes]
) -> Iterator[pa.RecordBatch]:
    """Yields the latest record of each of the keys (their canonical bytes) in pieces of one
    partition, tombstones included, as batches of `read_schema`, newest records first.

    Raises:
        FileNotFoundError: an object is gone.
    """
    wanted = of_bytes(list(set(keys)))
    hashes = index_hashes(wanted, seed=indexes.seed)
    left = np.ones(len(wanted), np.bool_)
    for run in reversed(runs):
        asked = np.flatnonzero(left)
        if not len(asked):
            return
        for hit in indexes.hits(run, hashes[asked]):
            still = left[asked[hit.numbers]]
            if not still.any():
                continue  # Newer pieces had these keys.
            some = wanted.filter(to_arrow(left))
            parts = read_pieces(indexes, hit.parts(still))
            batches = [of_keys(batch, some) for batch in parts]
            schema = read_schema(run.pieces[0].schema)
            found = pa.Table.from_batches(batches, schema).combine_chunks()
            if found.num_rows:
                found_keys = key_bytes(found.column("key").chunk(0))
                last = _last_of_each(found_keys)
                yield from found.take(last).to_batches()
                left[to_numpy(pc.index_in(found_keys.take(last), value_set=wanted))] = False


def _last_of_each(keys: pa.Array) -> pa.Array:
    """Returns the row in which each of the keys comes last."""
    codes = np.flip(to_numpy(keys.dictionary_encode().indices))
    _, from_the_end = np.unique(codes, return_index=True)
    return to_arrow(np.sort(len(codes) - 1 - from_the_end))


def is_searched(piece: ReadPiece) -> bool:
    """Tells whether keys are read first; a small object is fetched whole, in one request, in any
    case.
    """
    return piece.object.size_bytes > WHOLE_BYTES


def of_keys(batch: pa.RecordBatch, wanted: pa.Array) -> pa.RecordBatch:
    """Returns the rows whose key is wanted, by canonical bytes."""
    return batch.filter(pc.is_in(key_bytes(batch.column("key")), value_set=wanted))


def _ends(offsets: pa.Array) -> list[int]:
    return [offsets[0].as_py(), offsets[-1].as_py()] if len(offsets) else []
