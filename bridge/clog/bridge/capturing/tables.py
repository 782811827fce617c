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
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from clog.storage import InvalidInputError, SourceError
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


_FOLDER_MAX: Final = 240


EVENTS: Final = "events"
"""The identity of a table without a usable key: only its inserts are taken."""


TEXT, DROP = "text", "drop"


MASKED: Final = "masked"
"""The reason for which a masked column is left out."""


MASKS: Final = (HASH, DROP, TEXT)


def name_of(schema: str, table: str) -> str:
    """Returns a table's name; parts with a dot are quoted.

    >>> name_of("public", "orders"), name_of("a.b", "c")
    ('public.orders', '"a.b".c')
    """
    parts = (schema, table)
    return ".".join(quoted(part) if "." in part or '"' in part else part for part in parts)


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table in the catalogue.

    Attributes:
        identity: how updates name their row: ``key``, or `EVENTS`.
        columns: the captured columns.
        defaults: the numbers of the columns that filled, or may have filled, existing rows when
            they were added.
        toasted: columns that an update may leave out: those of variable length. How they are
            stored, and which old rows are sent, may change without any effect on existing rows.
        leaves: for a partitioned table, the file of each leaf, by its oid.
        width: how many columns it has ever had.
        file: the file of its rows; 0: it has no file itself.
        stamps: by the number of each captured column, the transaction that wrote its entry.
        sent: name, type and modifier of each column that the stream sends, in their order.
        live: the numbers of all columns.
        entries: what its types and partitions are, by `_ENTRIES`; and dropped columns (d).
        published: the numbers of the entries that publish it; empty: there are none.
        rows, pages: approximate numbers.
        masks: by column: `HASH`, `TEXT`.
        left: columns that are not captured, and why.
    """

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[Column, ...]
    defaults: frozenset[int]
    toasted: frozenset[str]
    leaves: Mapping[int, int]
    width: int = 0
    file: int = 0
    stamps: Mapping[int, int] = field(default_factory=dict)
    sent: tuple[tuple[str, int, int], ...] = ()
    live: frozenset[int] = frozenset()
    entries: Mapping[str, str] = field(default_factory=dict)
    published: str = ""
    rows: int = 0
    pages: int = 0
    masks: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """The table's name for users."""
        return name_of(self.schema, self.name)

    @property
    def sql(self) -> str:
        """The table's name in SQL."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def key(self) -> list[str]:
        return [c.name for c in self.columns if c.in_key]

    @property
    def folder(self) -> str:
        """The last part of its log's URL; local disks limit it, so a long one ends with a hash."""
        parts = (quote(part, safe="").replace(".", "%2E") for part in (self.schema, self.name))
        name = ".".join(parts)
        if len(name) <= _FOLDER_MAX:
            return name
        return f"{name[: _FOLDER_MAX - 33]}~{sha256(name.encode()).hexdigest()[:32]}"

    def select(self, where: str | None = None) -> str:
        """Returns the query for all its rows, with the captured columns."""
        names = ", ".join(quoted(c.name) for c in self.columns)
        only = "" if self.leaves else "ONLY "
        condition = f" WHERE {where}" if where else ""
        return f"SELECT {names} FROM {only}{self.sql}{condition}"  # noqa: S608 - all are quoted

    def binding(self, folder: str) -> bytes:
        """Returns the table's binding; ``folder``: its log's, perhaps under a former name."""
        columns = [[c.name, c.attnum, c.type_oid, c.typmod, c.in_key] for c in self.columns]
        leaves = {str(oid): node for oid, node in self.leaves.items()}
        body = {
            "oid": self.oid,
            "schema": self.schema,
            "name": self.name,
            "folder": folder,
            "identity": self.identity,
            "columns": columns,
            "leaves": leaves,
            "width": self.width,
            "file": self.file,
            "stamps": [self.stamps[c.attnum] for c in self.columns if self.stamps],
            "labels": dict(self.entries),
            "published": self.published,
            "masks": dict(self.masks),
        }
        return json.dumps(body, sort_keys=True).encode()


@dataclass(frozen=True, slots=True)
class Binding:
    """A table as it was at its log's position; see `SourceTable.binding`."""

    oid: int
    schema: str
    name: str
    folder: str
    identity: str
    columns: Sequence[tuple[str, int, int, int, bool]]
    leaves: Mapping[int, int]
    width: int
    file: int
    stamps: Mapping[int, int]
    entries: Mapping[str, str]
    published: str
    masks: Mapping[str, str]

    @classmethod
    def read(cls, data: bytes) -> "Binding":
        """Returns the binding that `SourceTable.binding` encoded."""
        body = json.loads(data)
        body["columns"] = [tuple(row) for row in body["columns"]]
        body["leaves"] = {int(oid): node for oid, node in body["leaves"].items()}
        body["stamps"] = dict(zip((c[1] for c in body["columns"]), body["stamps"], strict=False))
        body["entries"] = body.pop("labels")
        return cls(**body)

    @property
    def what(self) -> str:
        return name_of(self.schema, self.name)

    @property
    def _numbers(self) -> set[int]:
        return {number for _, number, *_ in self.columns}

    def has(self, relation: Relation, now: SourceTable) -> bool:
        """Returns whether rows that the stream describes like this, after this binding, have what
        the log needs: the table has had all columns that it has now, under their names, but for
        the last ones, which had not been added yet, and for others that have been dropped since
        (`why_reload` says where nothing tells the two apart).
        """
        named = {c.name for c in relation.columns if c.in_key}
        if now.key and relation.identity != "f" and named != {*now.key}:
            return False
        unsent = now.left.keys() - {name for name, *_ in now.sent}
        sent = tuple(
            (c.name, c.type_oid, c.typmod) for c in relation.columns if c.name not in unsent
        )
        if self._numbers - now.live:
            return {*now.sent} <= {*sent}
        added = sum(number > self.width for number in now.live)
        return len(now.sent) - added <= len(sent) and sent == now.sent[: len(sent)]

    def unmasked(self, now: SourceTable) -> str | None:
        """Returns a column whose values a mask hid, or may have hidden, under a former name, and
        hides no more; None: there is none.
        """
        former = {number: name for name, number, *_ in self.columns}
        drops = MASKED in now.left.values()
        for column in now.columns:
            name = former.get(column.attnum)
            was_dropped = name is None and column.attnum <= self.width and drops
            was_hashed = name is not None and self.masks.get(name) == HASH
            if was_dropped or (was_hashed and now.masks.get(column.name) != HASH):
                return column.name
        return None

    def followed_by(self, now: SourceTable) -> SourceTable:
        """Returns a table that was not loaded again with the columns that were dropped until now:
        its log still has their values.
        """
        names = {c.name for c in now.columns}
        gone = {name: entry for name, entry in self.entries.items() if name[0] == "d"}
        gone |= {f"d{name}": "" for name, *_ in self.columns if name not in names}
        return replace(now, entries={**now.entries, **gone})

    def why_reload(self, now: SourceTable) -> str | None:
        """Returns why rows may have changed without a message; None if they did not.

        Raises:
            InvalidInputError: the log cannot hold the table any more.
        """
        if now.identity != self.identity:
            raise InvalidInputError(
                f"{now.what} is captured by its {self.identity}, but now has {now.identity}: the"
                " replica identity or its key changed, but the log's key cannot; capture the"
                f" database into a new URL, or leave the table out (--exclude {now.what})"
            )
        before = {name: (attnum, *kind) for name, attnum, *kind in self.columns}
        after = {c.name: (c.attnum, c.type_oid, c.typmod, c.in_key) for c in now.columns}
        if {n for n, c in before.items() if c[3]} != {n for n, c in after.items() if c[3]}:
            raise InvalidInputError(
                f"the key of {now.what} is now {now.key}, but that of its log cannot change;"
                " capture the database into a new URL, or leave the table out (--exclude"
                f" {now.what})"
            )
        if not now.key:  # Events stay as they came.
            return self._why_uncertain(now)
        for name, column in after.items():
            known = before.get(name)
            if known is None and column[0] in now.defaults:
                return f"column {name} was added with a default, which filled existing rows"
            if known is None and f"d{name}" in self.entries:
                return f"column {name} was dropped, and added again later"
            if known is None and column[0] <= self.width:
                return f"column {name} was renamed, or has been captured only since then"
            if known is not None and known[0] != column[0]:
                return f"column {name} was dropped and added again"
            if known is not None and known[1:3] != column[1:3]:
                return f"column {name} has another type"
        if self.leaves != now.leaves:
            return "a partition was attached, detached, emptied, dropped or rewritten"
        if self.file != now.file and self.stamps != now.stamps:
            return "its columns changed, and its rows were rewritten"
        return self._why_other_rows(now) or self._why_uncertain(now)

    def _why_other_rows(self, now: SourceTable) -> str | None:
        """Returns why rows that the log has may be others now although the columns are the same."""
        for name, entry in self.entries.items():
            if now.entries.get(name, entry) != entry:
                if name[0] in "ec":
                    return "values of one of its types are, or were, written differently"
                return "a partition, or its replica identity, was another for some time"
        new = now.entries.keys() - self.entries.keys()
        if now.width > self.width and any(name[0] in "ec" for name in new):
            return "a column was added whose type has labels or columns, which may have changed"
        return None

    def _why_uncertain(self, now: SourceTable) -> str | None:
        """Returns why it is unknown what rows were like between this binding and now."""
        if self.published != now.published:
            return (
                "for some time, it was not published, or was published with other rows or columns"
            )
        added = set(range(self.width + 1, now.width + 1))
        dropped = bool(self._numbers - now.live)
        if added - now.live or (added and dropped):
            return "columns were added, and dropped"
        kept = self.stamps.keys() & now.stamps.keys()
        if dropped and any(self.stamps[number] != now.stamps[number] for number in kept):
            return "columns were dropped, and others changed"
        return None


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tables are captured, and how.

    Attributes:
        tables, exclude: shell-style patterns of ``schema.table``; no ``tables``: all.
        masks: by ``schema.table.column``, one of `MASKS`.
        events: whether tables without a usable key are captured, only their inserts.
    """

    tables: Sequence[str] = ()
    exclude: Sequence[str] = ()
    masks: Mapping[str, str] = field(default_factory=dict)
    events: bool = False

    def __post_init__(self) -> None:
        for column, mask in self.masks.items():
            if mask not in MASKS or column.count(".") < 2:
                raise InvalidInputError(
                    f"{column!r}={mask!r:.40} is not a mask; give schema.table.column and one of"
                    f" {', '.join(MASKS)}"
                )

    def has(self, what: str) -> bool:
        """Returns whether a table is chosen."""
        return _matches(what, self.tables or ["*"]) and not _matches(what, self.exclude)


def _matches(what: str, patterns: Collection[str]) -> bool:
    bare = what.removeprefix("public.")
    return any(fnmatchcase(what, p) or fnmatchcase(bare, p) for p in patterns)


def quoted(name: str) -> str:
    """Returns a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


class UnfitError(Exception):
    """A value does not fit the column's form; the text says why, without the value."""


@dataclass(frozen=True, slots=True)
class Form:
    """How values of a type are kept.

    Attributes:
        arrow: their Arrow type.
        made: converts an array of strings, which may be invalid UTF-8, to an array of that type.
        note: what a user should know; empty if there is nothing special.
        plain: whether Arrow's CSV reader either converts the texts the same way or refuses them.
    """

    arrow: pa.DataType
    made: Callable[[pa.Array], pa.Array]
    note: str = ""
    plain: bool = False


@dataclass(frozen=True, slots=True)
class TablePlan:
    """How the columns of a table are kept.

    Attributes:
        what: the table's name in errors.
        schema: the columns; those of the key are not nullable.
        forms: one for each column.
    """

    what: str
    schema: pa.Schema
    forms: tuple[Form, ...]

    @property
    def notes(self) -> dict[str, str]:
        """What a user should know about columns, by name."""
        named = zip(self.schema.names, self.forms, strict=True)
        return {name: form.note for name, form in named if form.note}

    def column(self, index: int, texts: pa.Array) -> pa.Array:
        """Converts a column's texts to values; SourceError: one is invalid or does not fit."""
        try:
            return self.forms[index].made(texts)
        except UnfitError as e:
            why = str(e)
        except (pa.ArrowException, UnicodeDecodeError):  # Their texts repeat the value.
            why = f"a value that does not fit into {self.forms[index].arrow}"
        raise self.unfit(self.schema.names[index], why)

    def unfit(self, column: str, why: str) -> SourceError:
        """Returns the error for a column that holds ``why``."""
        return SourceError(
            f"{self.what}.{column} holds {why}; keep the column as text"
            f" (--mask {self.what}.{column}=text), or leave it out (--mask {self.what}.{column}"
            "=drop), and load the table again"
        )
