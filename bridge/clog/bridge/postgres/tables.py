"""The data of a captured database: columns and relations, transactions, and changes in Arrow.

A *relation* is a table as a message of the stream describes it; a *column* comes from the
catalogue. *Changes* belong to one table, in the order of the source: new rows and tombstones. An
update that changes the key is both: a tombstone of the old key, then the new row.

Columns with personal data may be hashed. An unsalted hash can be guessed: there are few names and
addresses. So the hash is an HMAC-SHA256, whose key comes from the environment and is never stored.
Equal values stay equal, so joins and counts still work, as long as the key is the same.
"""

import hashlib
import hmac
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clog.storage import InvalidInputError
from clog.storage.spi import dataclass

_Flags = np.ndarray[Any, Any]
HASH: Final = "hash"
"""The mask of a hashed column."""
KEY: Final = "CLOG_CAPTURE_HASH_KEY"
KEY_FILE: Final = "CLOG_CAPTURE_HASH_KEY_FILE"
_KEY_BYTES_MIN: Final = 16


class ChangedError(Exception):
    """A table is not what it was: the catalogue must be read again. ``doubted``: the oids of tables
    that must be loaded again, whatever the catalogue says.
    """

    def __init__(self, why: str, doubted: Collection[int] = ()) -> None:
        super().__init__(why)
        self.doubted = doubted


@dataclass(frozen=True, slots=True)
class Column:
    """A column in the catalogue. ``in_key``: whether it is in the replica identity; ``ndims``: for
    an array, the number of dimensions it was declared with.
    """

    name: str
    attnum: int
    type_oid: int
    typmod: int
    not_null: bool
    in_key: bool
    ndims: int = 0


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column in the stream."""

    name: str
    type_oid: int
    typmod: int
    in_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table in the stream. ``identity``: d(efault), n(othing), f(ull) or i(ndex)."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction of the source. ``end_lsn`` is 0 until its end is seen; ``time_us`` is the time
    of its commit, in us since 1970.
    """

    xid: int
    commit_lsn: int
    end_lsn: int
    time_us: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Consecutive changes of one table.

    Attributes:
        table: what the decoder's ``table_of`` returned for its relation.
        rows: the table's columns; in a tombstone, all columns outside the key are null.
        deleted: which rows are tombstones.
        unchanged: by column, the rows whose value was not sent because it did not change; columns
            without such rows are absent.
        moved_from: for the new row of an update that changed the key, the index of its tombstone;
            -1 for other rows. None: there is no such update.
        transactions: for each row, the index of its transaction in `Decoded`.
    """

    table: Any
    rows: pa.RecordBatch
    deleted: _Flags
    unchanged: Mapping[str, _Flags]
    moved_from: _Flags | None
    transactions: _Flags


def sliced(changes: Changes, start: int, end: int) -> Changes:
    """Returns the changes of rows ``[start, end)``, which must not split the update of a key."""
    if (start, end) == (0, len(changes.deleted)):
        return changes
    moved = changes.moved_from
    return Changes(
        *(changes.table, changes.rows.slice(start, end - start), changes.deleted[start:end]),
        {name: mask[start:end] for name, mask in changes.unchanged.items()},
        None if moved is None else np.where(moved[start:end] >= 0, moved[start:end] - start, -1),
        changes.transactions[start:end],
    )


def joined(parts: Sequence[Changes]) -> Changes:
    """Returns changes of one table and schema as one, without their transactions."""
    if len(parts) == 1:
        return parts[0]
    counts = [len(part.deleted) for part in parts]
    starts = np.cumsum([0, *counts])
    moved = [
        np.full(count, -1)
        if part.moved_from is None
        else np.where(part.moved_from >= 0, part.moved_from + start, -1)
        for part, start, count in zip(parts, starts, counts, strict=False)
    ]
    rows = pa.Table.from_batches([part.rows for part in parts]).combine_chunks().to_batches()

    def unchanged(name: str) -> _Flags:
        masks = zip(parts, counts, strict=True)
        return np.concatenate([p.unchanged.get(name, np.zeros(n, bool)) for p, n in masks])

    return Changes(
        *(parts[0].table, rows[0], np.concatenate([part.deleted for part in parts])),
        {name: unchanged(name) for name in {name: 0 for part in parts for name in part.unchanged}},
        np.concatenate(moved) if any(part.moved_from is not None for part in parts) else None,
        np.zeros(0, np.int32),
    )


@dataclass(frozen=True, slots=True)
class Truncated:
    """Tables that were truncated, and the transaction that did it."""

    tables: tuple[Any, ...]
    transaction: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """The content of some messages of the stream.

    Attributes:
        transactions: those that have any message, in the order of their commits.
        steps: for each table in the order of the source.
        in_transaction: whether the last transaction has not ended yet.
        size_bytes: the size of the messages.
    """

    transactions: tuple[Transaction, ...]
    steps: tuple[Changes | Truncated, ...]
    in_transaction: bool
    size_bytes: int


def hash_key(masks: Iterable[str]) -> bytes:
    """Returns the key of the hashes; empty if no mask is a hash."""
    if HASH not in masks:
        return b""
    key = os.environ.get(KEY, "").encode()
    if path := os.environ.get(KEY_FILE):
        try:
            key = Path(path).read_bytes().strip()
        except OSError as e:
            raise InvalidInputError(
                f"{KEY_FILE} names {path}, which cannot be read: {e.strerror}; set it to the path"
                " of the file with the key"
            ) from None
    if len(key) < _KEY_BYTES_MIN:
        raise InvalidInputError(
            f"hashing columns requires a key of {_KEY_BYTES_MIN} bytes or more: set {KEY}, or"
            f" {KEY_FILE} to the path of a file with it, to the same key in every run"
        )
    return key


def masked(batch: pa.RecordBatch, columns: Collection[str], key: bytes) -> pa.RecordBatch:
    """Returns the rows with these columns, which are texts, hashed; nulls stay null."""
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
