"""Checks that each key stands at most once in the clean part of a partition, below the first dirty
offset: a pass leaves of each key that its map covers the last record, and ends where the map does
(S20, S21).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from clog.storage.format.manifest import Manifest
from clog.storage.keys.key_bytes import key_bytes
from clog.storage.keys.key_index import Hashes, index_hashes
from clog.storage.numpy_arrays import to_arrow
from clog.storage.read.scan import ReadPiece, plan_range, read_pieces
from clog.storage.store.base import Store

ROWS_MAX = 1 << 24
"""Of more rows the keys are taken in several rounds, each a share of the hashes: bounds memory."""
_LOOKED_AT = 1000
"""Keys of so many hashes that stand twice are compared: two keys may have one hash."""


def repeated_keys(store: Store, manifest: Manifest, partition: int) -> Iterator[str]:
    """Yields what is wrong with the keys of the clean part: nothing, or one message.

    Reads its keys, with at most 2 requests for each object and round.

    Raises:
        FileNotFoundError, CorruptionError: an object cannot be read.
    """
    end = manifest.first_dirty[partition]
    pieces = plan_range(manifest, partition, 0, end)
    hashes_of = partial(index_hashes, seed=manifest.head.log.key_seed)
    rounds = 1 + sum(piece.rows for piece in pieces) // ROWS_MAX
    twice: list[Hashes] = []
    for share in range(rounds):
        mine = [np.empty(0, np.uint64)]
        for batch in _batches(store, pieces):
            hashes = hashes_of(batch.column("key"))
            mine.append(hashes[hashes % rounds == share])
        ordered = np.sort(np.concatenate(mine))
        twice.append(np.unique(ordered[1:][ordered[1:] == ordered[:-1]]))
    suspects = np.concatenate(twice)
    if not len(suspects):
        return
    offsets: dict[Any, list[int]] = {}
    for batch in _batches(store, pieces):
        hit = np.isin(hashes_of(batch.column("key")), suspects[:_LOOKED_AT])
        rows = batch.filter(to_arrow(hit))
        pairs = (key_bytes(rows.column("key")), rows.column("offset"))
        for key, offset in zip(*(column.to_pylist() for column in pairs), strict=True):
            offsets.setdefault(key, []).append(offset)
    for found in offsets.values():
        if len(found) > 1:
            yield (
                f"a key stands more than once below the first dirty offset {end}, at offsets"
                f" {', '.join(map(str, found[:3]))}; such keys: {len(suspects)}"
            )
            return


def _batches(store: Store, pieces: Sequence[ReadPiece]) -> Iterator[pa.RecordBatch]:
    for batch in read_pieces(store, pieces, columns=("offset", "key")):
        yield batch.filter(batch.column("key").is_valid())
