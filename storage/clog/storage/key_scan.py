"""Finding the rows of few keys.

A record's key does not tell its partition (a writer may have named another), and keys lie in no
order: so every object is asked. One with a key index says which of its rows may hold a key; of a
large one without, keys are read first, and the rest only where a wanted key is.

- `pieces_of_keys`: what to read of pieces that are read once, in a task.
- `latest_of_keys`: the latest records by indexes that stay in memory, for those who ask again. Of
  each partition the newest pieces come first; a key that is found is not looked for in older ones.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.key_indexes import KeyIndexes
from clog.storage.object_reader import WHOLE_BYTES
from clog.storage.reader import READ_SCHEMA, ReadPiece, cut, read_pieces
from clog.storage.store.base import Store


def pieces_of_keys(
    store: Store, pieces: Sequence[ReadPiece], keys: Sequence[bytes], seed: int
) -> Iterator[ReadPiece]:
    """The pieces without those that hold none of the keys, cut to where one may be. What is left
    holds other keys too. ``seed``: the log's.

    Raises:
        FileNotFoundError: an object is gone.
    """
    wanted = pa.array(keys, pa.binary())
    indexes = KeyIndexes(store, seed=seed)
    for piece in pieces:
        if not is_searched(piece):
            yield piece
            continue
        if piece.object.index_bytes:
            yield from indexes.parts([piece], wanted)
            continue
        found = [
            offset
            for batch in read_pieces(store, [piece], columns=("offset", "key"))
            for offset in _ends(of_keys(batch, wanted).column("offset"))
        ]
        if found:
            yield cut(piece, found[0], found[-1] + 1)


def latest_of_keys(
    indexes: KeyIndexes, pieces: Sequence[ReadPiece], keys: Sequence[bytes]
) -> Iterator[pa.RecordBatch]:
    """The latest record of each of the keys in pieces of one partition, tombstones included, as
    batches of `READ_SCHEMA`, newest records first.

    Raises:
        FileNotFoundError: an object is gone.
    """
    left = pa.array(set(keys), pa.binary())
    for piece in reversed(pieces):
        parts = list(indexes.parts([piece], left))
        batches = [of_keys(batch, left) for batch in read_pieces(indexes, parts)]
        found = pa.Table.from_batches(batches, READ_SCHEMA).combine_chunks()
        if found.num_rows:
            found = found.take(_last_of_each(found.column("key").chunk(0)))
            yield from found.to_batches()
            left = left.filter(pc.invert(pc.is_in(left, value_set=found.column("key"))))
        if not len(left):
            return


def _last_of_each(keys: pa.Array) -> pa.Array:
    """The row in which each of the keys comes last."""
    codes = np.flip(keys.dictionary_encode().indices.to_numpy())
    _, from_the_end = np.unique(codes, return_index=True)
    return pa.array(np.sort(len(codes) - 1 - from_the_end))


def is_searched(piece: ReadPiece) -> bool:
    """Whether keys are read first; a small object is fetched whole, in one request, in any case."""
    return piece.object.size_bytes > WHOLE_BYTES


def of_keys(batch: pa.RecordBatch, wanted: pa.Array) -> pa.RecordBatch:
    """The rows whose key is wanted."""
    return batch.filter(pc.is_in(batch.column("key"), value_set=wanted))


def _ends(offsets: pa.Array) -> list[int]:
    return [offsets[0].as_py(), offsets[-1].as_py()] if len(offsets) else []
