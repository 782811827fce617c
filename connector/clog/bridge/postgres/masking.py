"""Columns of personal data: a keyed hash in place of the value.

An unsalted hash can be guessed: names and addresses are few. So the hash has a key, HMAC-SHA256,
which comes from the environment and is stored nowhere. Equal values stay equal, so joins and counts
go on working, with the same key.
"""

import hashlib
import hmac
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa

from clog.storage.errors import InvalidInputError

HASH: Final = "hash"
"""The mask of such a column."""
KEY: Final = "CLOG_CAPTURE_HASH_KEY"
KEY_FILE: Final = "CLOG_CAPTURE_HASH_KEY_FILE"
_KEY_BYTES_MIN: Final = 16


def hash_key(masks: Iterable[str]) -> bytes:
    """Returns the key of hashes; nothing where none of the masks is one."""
    if HASH not in masks:
        return b""
    key = os.environ.get(KEY, "").encode()
    if path := os.environ.get(KEY_FILE):
        try:
            key = Path(path).read_bytes().strip()
        except OSError as e:
            raise InvalidInputError(
                f"{KEY_FILE} names {path}, which cannot be read: {e.strerror}; let it name the file"
                " that holds the key"
            ) from None
    if len(key) < _KEY_BYTES_MIN:
        raise InvalidInputError(
            f"columns that are hashed need a key of {_KEY_BYTES_MIN} bytes or more: set {KEY}, or"
            f" {KEY_FILE} to the path of a file that holds it, to the same key at each run"
        )
    return key


def masked(batch: pa.RecordBatch, columns: Collection[str], key: bytes) -> pa.RecordBatch:
    """Returns rows with these columns, which are texts, hashed; null stays null."""
    for name in columns:
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, batch.schema.field(at), _hashed(batch.column(at), key))
    return batch


def _hashed(texts: pa.Array, key: bytes) -> pa.Array:
    coded = texts.dictionary_encode()
    words = [
        hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        for text in coded.dictionary.to_pylist()
    ]
    return pa.array(words, pa.string()).take(coded.indices)
