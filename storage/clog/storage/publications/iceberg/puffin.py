"""The Puffin file of a publication: the deletion vectors of all its objects, one blob for each."""

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from clog.storage.publications.table_state import HiddenRows

_MAGIC = b"PFA1"
_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
_ROW_POSITION = 2147483645
"""Iceberg's id of the column of a row's position."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Where the vector of an object is in the file; ``rows`` is how many it hides."""

    path: str
    offset: int
    size_bytes: int
    rows: int


def encode_puffin(hidden: Sequence[tuple[str, HiddenRows]]) -> tuple[bytes, list[Blob]]:
    """Returns the file with the vectors of these objects, by path, and where they are in it."""
    file, blobs = bytearray(_MAGIC), []
    for path, rows in hidden:
        body = _VECTOR_MAGIC + rows.roaring
        data = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
        blobs.append(Blob(path, len(file), len(data), rows.rows))
        file += data
    described = [
        {
            "type": "deletion-vector-v1",
            "fields": [_ROW_POSITION],
            "snapshot-id": -1,
            "sequence-number": -1,
            "offset": blob.offset,
            "length": blob.size_bytes,
            "properties": {"referenced-data-file": blob.path, "cardinality": str(blob.rows)},
        }
        for blob in blobs
    ]
    footer = json.dumps({"blobs": described, "properties": {"created-by": "clog"}}).encode()
    file += _MAGIC + footer + struct.pack("<II", len(footer), 0) + _MAGIC
    return bytes(file), blobs
