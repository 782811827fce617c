"""Finding the rows of few keys: of large objects the keys are read first, and the rest only where a
wanted key is.

A record's key does not tell its partition (a writer may have named another), and keys lie in no
order: so every key is looked at, which is a small part of the bytes.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.object_reader import WHOLE_BYTES
from clog.storage.reader import ReadPiece, cut, read_pieces
from clog.storage.store.base import Store


def pieces_of_keys(
    store: Store, pieces: Sequence[ReadPiece], keys: Sequence[bytes]
) -> Iterator[ReadPiece]:
    """The pieces without those that hold none of the keys, cut to the first and the last record
    that has one. What is left holds other keys too.

    Raises:
        FileNotFoundError: an object is gone.
    """
    wanted = pa.array(keys, pa.binary())
    for piece in pieces:
        if not is_searched(piece):
            yield piece
            continue
        found = [
            offset
            for batch in read_pieces(store, [piece], columns=("offset", "key"))
            for offset in _ends(of_keys(batch, wanted).column("offset"))
        ]
        if found:
            yield cut(piece, found[0], found[-1] + 1)


def is_searched(piece: ReadPiece) -> bool:
    """Whether keys are read first; a small object is fetched whole, in one request, in any case."""
    return piece.object.size_bytes > WHOLE_BYTES


def of_keys(batch: pa.RecordBatch, wanted: pa.Array) -> pa.RecordBatch:
    """The rows whose key is wanted."""
    return batch.filter(pc.is_in(batch.column("key"), value_set=wanted))


def _ends(offsets: pa.Array) -> list[int]:
    return [offsets[0].as_py(), offsets[-1].as_py()] if len(offsets) else []
