"""Deletion vectors of Delta: the rows of a file that a table does not show.

A short one stands in the log of the Delta table, in Z85; those that are longer are together in one
file of the publication, of which each descriptor names its part.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from clog.storage.publications.table_state import HiddenRows

MAGIC = 1681511377
INLINE_BYTES_MAX = 512
"""A longer vector goes into the file: readers of the table read all that is inline, always."""
_FILE_VERSION = b"\x01"
_ALPHABET = np.frombuffer(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    np.uint8,
)
_DIGITS = np.zeros(256, np.uint64)
_DIGITS[_ALPHABET] = np.arange(85)
_ID_CHARACTERS = 20
"""A file's id in Z85, at the end of what names it."""

Descriptor = dict[str, Any]
"""What an ``add`` says of its deletion vector."""


def z85(data: bytes) -> str:
    """Returns the bytes in Z85, zeros added up to a multiple of four."""
    padded = data + b"\0" * (-len(data) % 4)
    numbers = np.frombuffer(padded, ">u4").astype(np.uint64)
    powers = np.array([85**4, 85**3, 85**2, 85, 1], np.uint64)
    digits = numbers[:, None] // powers % np.uint64(85)
    return _ALPHABET[digits.astype(np.int64)].tobytes().decode()


def describe(
    hidden: Sequence[HiddenRows], *, folder: str, file_id: str
) -> tuple[list[Descriptor], bytes]:
    """Returns the descriptor of each vector, and the bytes of the file that some of them name;
    empty where none does.

    Args:
        hidden: the rows, by object.
        folder: of the file, relative to the table.
        file_id: 32 hex digits, by which `file_name` names it.
    """
    made: list[Descriptor] = []
    file = bytearray(_FILE_VERSION)
    for rows in hidden:
        data = struct.pack("<I", MAGIC) + rows.roaring
        described = {"sizeInBytes": len(data), "cardinality": rows.rows}
        if len(data) <= INLINE_BYTES_MAX:
            made.append({"storageType": "i", "pathOrInlineDv": z85(data), **described})
            continue
        name = folder.rstrip("/") + z85(bytes.fromhex(file_id))
        where = {"storageType": "u", "pathOrInlineDv": name, "offset": len(file)}
        made.append({**where, **described})
        file += struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    return made, bytes(file) if len(file) > len(_FILE_VERSION) else b""


def file_name(file_id: str) -> str:
    """Returns the name of a file of vectors, as Delta makes it of an id."""
    return f"deletion_vector_{uuid_of(file_id)}.bin"


def uuid_of(digits: str) -> str:
    """Returns 32 hex digits as a UUID is written."""
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def file_of(descriptor: Descriptor | None) -> str | None:
    """Returns the path of the file that a descriptor names, relative to the table, or in full where
    it says so; None where it names none.
    """
    if descriptor is None or descriptor.get("storageType") not in ("u", "p"):
        return None
    named = str(descriptor["pathOrInlineDv"])
    if descriptor["storageType"] == "p":
        return named
    folder, name = named[:-_ID_CHARACTERS], named[-_ID_CHARACTERS:]
    return folder.rstrip("/") + "/" + file_name(_unz85(name).hex())


def _unz85(text: str) -> bytes:
    digits = _DIGITS[np.frombuffer(text.encode(), np.uint8)].reshape(-1, 5)
    powers = np.array([85**4, 85**3, 85**2, 85, 1], np.uint64)
    numbers = (digits * powers).sum(axis=1, dtype=np.uint64)
    data: bytes = numbers.astype(">u4").tobytes()
    return data
