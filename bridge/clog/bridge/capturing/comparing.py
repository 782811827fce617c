"""Compares the rows of a captured table in its source and in its log.

V5. Rows are assigned to `RANGES` by the hash of their key; for each range the number of rows and
    the sum of their hashes are kept. If these differ, the rows of the first such ranges are read
    again, and those that differ are named.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clog.bridge.capturing.logs import is_wider
from clog.storage import Cut, Log
from clog.storage.spi import dataclass, hash_keys, key_bytes, to_arrow, to_numpy

RANGES: Final = 1 << 14


SHOWN_MAX: Final = 10
"""How many differing rows of each table are named."""


_AGAIN_ROWS: Final = 100_000


_SHIFT: Final = np.uint64(50)


_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


_ONE: Final = np.uint64(1)


Words = NDArray[np.uint64]


Take = Callable[[pa.RecordBatch], None]


Rows = Callable[[Take], object]
"""Passes all rows of a table to a function, in batches; may be called again."""


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that differs.

    Attributes:
        key: as text; empty: a column differs in all rows.
        why: what is wrong, with the names of columns but without values.
    """

    key: str
    why: str


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """The result of comparing a table.

    Attributes:
        table: its name in the source.
        url: the URL of its log.
        rows: how many rows of the source were compared.
        log_rows: how many rows of the log were compared.
        changed: how many keys changed during the comparison, and were left out.
        ranges: how many of `RANGES` differ.
        differences: the first rows that differ.
    """

    table: str
    url: str
    rows: int
    log_rows: int
    changed: int
    ranges: int
    differences: tuple[RowDifference, ...]

    @property
    def is_equal(self) -> bool:
        """Whether all compared rows are equal."""
        return not (self.ranges or self.differences)


@dataclass(frozen=True, slots=True)
class VerifiedCapture:
    """The result of a comparison.

    Attributes:
        url: the home's URL.
        position: the LSN of the snapshot of the source.
        tables: the tables that were compared.
        skipped: the tables that were not, and why.
    """

    url: str
    position: str
    tables: tuple[VerifiedTable, ...]
    skipped: Mapping[str, str]

    @property
    def is_equal(self) -> bool:
        """Whether all compared tables are equal."""
        return all(table.is_equal for table in self.tables)


def verified(
    what: str,
    shown: tuple[Log, Cut],
    columns_and_key: tuple[pa.Schema, list[str]],
    source: Rows,
    *,
    changed: Collection[bytes],
    as_compared: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows,
) -> VerifiedTable:
    """Compares a table with its log at a cut (V5), except for keys that ``changed``.
    ``as_compared`` gives equivalent texts the same form, on both sides.
    """
    log, cut = shown
    table = log.table(at=cut)
    columns, others = common(columns_and_key[0], table.schema)

    def rows_of_log(take: Take) -> None:
        for batch in table.to_batches(columns=columns.names):
            take(as_compared(batch))

    rows, log_rows, ranges, differences = compared(
        columns,
        columns_and_key[1],
        lambda take: source(lambda batch: take(as_compared(batch))),
        rows_of_log,
        changed,
    )
    return VerifiedTable(
        *(what, log.url, rows, log_rows, len(changed)),
        ranges=ranges,
        differences=(*others, *differences)[:SHOWN_MAX],
    )


def common(source: pa.Schema, log: pa.Schema) -> tuple[pa.Schema, list[RowDifference]]:
    """Returns the columns that both have, with the log's types; and what is wrong with others."""
    columns, others = [], []
    for field in source:
        at = log.get_field_index(field.name)
        kind = log.field(at).type if at >= 0 else None
        if kind is None:
            others.append(RowDifference("", f"the log has no column {field.name}"))
        elif kind == field.type or is_wider(kind, field.type):
            columns.append(field.with_type(kind))
        else:
            why = f"column {field.name} is {kind} in the log, but {field.type} in the database"
            others.append(RowDifference("", why))
    return pa.schema(columns), others


def compared(
    columns: pa.Schema, key: list[str], source: Rows, log: Rows, changed: Collection[bytes]
) -> tuple[int, int, int, tuple[RowDifference, ...]]:
    """Returns each side's number of rows, how many ranges differ, and the first differing rows."""
    without = np.sort(_words([pa.array(sorted(changed), pa.binary())], len(changed)))
    sides = (_Side(columns, key, without), _Side(columns, key, without))
    for side, rows in zip(sides, (source, log), strict=True):
        rows(side.add)
    one, other = sides
    differ = np.flatnonzero((one.counts != other.counts) | (one.sums != other.sums))
    differences: tuple[RowDifference, ...] = ()
    if len(differ):
        sizes = np.cumsum(one.counts[differ] + other.counts[differ])
        first = differ[: max(1, int(np.searchsorted(sizes, _AGAIN_ROWS)))]
        for side, rows in zip(sides, (source, log), strict=True):
            side.wanted = first
            rows(side.keep)
        differences = _named(one.kept_rows(), other.kept_rows(), columns, key)
    return int(one.counts.sum()), int(other.counts.sum()), len(differ), differences


def keys_of(rows: pa.RecordBatch, key: list[str]) -> pa.Array:
    """Returns the keys of rows as binary."""
    if len(key) == 1:
        return key_bytes(rows.column(key[0]))
    fields = [rows.schema.field(name) for name in key]
    return key_bytes(pa.StructArray.from_arrays([rows.column(n) for n in key], fields=fields))


class _Side:
    """One side's rows, by range: their number, and the sum of their hashes."""

    def __init__(self, columns: pa.Schema, key: list[str], without: Words) -> None:
        self.counts = np.zeros(RANGES, np.int64)
        self.sums = np.zeros(RANGES, np.uint64)
        self.wanted: NDArray[Any] = np.empty(0, np.int64)
        self._columns = columns
        self._key = key
        self._without = without
        self._kept: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds rows to the counts and sums."""
        rows, ranges = self._compared(batch)
        words = _words(rows.columns, rows.num_rows)
        self.counts += np.bincount(ranges, minlength=RANGES)
        np.add.at(self.sums, ranges, words)

    def keep(self, batch: pa.RecordBatch) -> None:
        """Keeps the rows of the wanted ranges."""
        rows, ranges = self._compared(batch)
        mask = np.isin(ranges, self.wanted)
        if mask.any():
            self._kept.append(rows.filter(to_arrow(mask)))

    def kept_rows(self) -> pa.RecordBatch:
        """Returns the kept rows."""
        columns = [pa.nulls(0, field.type) for field in self._columns]
        none = pa.RecordBatch.from_arrays(columns, schema=self._columns)
        return pa.concat_batches([none, *self._kept])

    def _compared(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, NDArray[Any]]:
        """Returns the rows to compare, with the columns to compare, and their ranges."""
        columns = [batch.column(f.name).cast(f.type) for f in self._columns]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._columns)
        words = _words([keys_of(rows, self._key)], rows.num_rows)
        if len(self._without):
            at = np.searchsorted(self._without, words)
            mask = self._without[np.minimum(at, len(self._without) - 1)] != words
            rows, words = rows.filter(to_arrow(mask)), words[mask]
        return rows, (words >> _SHIFT).astype(np.int64)


def _words(columns: Iterable[pa.Array], rows: int) -> Words:
    """Returns a hash of each row."""
    words = np.zeros(rows, np.uint64)
    for i, column in enumerate(columns):
        words = (words ^ _column_words(column, i)) * _ODD
        words ^= words >> np.uint64(32)
    return words


def _column_words(column: pa.Array, seed: int) -> Words:
    """Returns a hash of each value; that of null is 0."""
    words = np.zeros(len(column), np.uint64)
    valid = to_numpy(column.is_valid())
    there = column if valid.all() else column.filter(to_arrow(valid))
    kind = column.type
    if pa.types.is_list(kind):
        lengths = to_numpy(pc.list_value_length(there)).astype(np.int64)
        ends = np.cumsum(lengths)
        inner = _column_words(there.flatten(), seed)
        places = np.arange(len(inner)) - np.repeat(ends - lengths, lengths)
        sums = np.zeros(len(inner) + 1, np.uint64)
        np.cumsum((inner + _ODD) * (2 * places + 1).astype(np.uint64), out=sums[1:])
        words[valid] = (sums[ends] - sums[ends - lengths]) * _ODD + lengths.astype(np.uint64) + _ONE
        return words
    if pa.types.is_struct(kind):
        words[valid] = _words(there.flatten(), len(there)) | _ONE
        return words
    if pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        there = there.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if len(there):
        words[valid] = hash_keys(there, seed=seed)[:, 0] | _ONE
    return words


def _named(
    source: pa.RecordBatch, log: pa.RecordBatch, columns: pa.Schema, key: list[str]
) -> tuple[RowDifference, ...]:
    """Returns the first differing rows among the kept ones."""
    sides, keys = (source, log), (keys_of(source, key), keys_of(log, key))
    found = []
    for i, owner in enumerate(("source", "log")):
        alone = to_numpy(pc.invert(pc.is_in(keys[i], value_set=keys[1 - i])))
        first = np.flatnonzero(alone)[:SHOWN_MAX].tolist()
        found += [
            RowDifference(_key_text(sides[i], key, j), f"only the {owner} has it") for j in first
        ]
    at = pc.index_in(keys[0], value_set=keys[1])
    pair = source.filter(at.is_valid()), log.take(at.drop_null())
    wrong: dict[int, list[str]] = {}
    for i, name in enumerate(columns.names):
        one, other = (_column_words(side.column(i), 0) for side in pair)
        for j in np.flatnonzero(one != other)[:SHOWN_MAX].tolist():
            wrong.setdefault(j, []).append(name)
    for j, names in sorted(wrong.items()):
        why = f"{', '.join(names)} {'differs' if len(names) == 1 else 'differ'}"
        found.append(RowDifference(_key_text(pair[0], key, j), why))
    return tuple(found[:SHOWN_MAX])


def _key_text(rows: pa.RecordBatch, key: list[str], i: int) -> str:
    parts = []
    for name in key:
        (value,) = rows.column(name).slice(i, 1)
        is_binary = pa.types.is_binary(value.type)
        text = f"\\x{value.as_py().hex()}" if is_binary else str(value.cast(pa.string()))
        parts.append(f"{name}={text}")
    return ", ".join(parts)
