"""The columns of a head: facts of all partitions, of which a commit changes few (FORMAT.md §3.4).

They are *rows*, by partition, before an array with the rest, so that a change costs what it
changed. The rest may be a document of its own, which heads name: such a head holds the rows alone,
and nothing can be asked of it until the rest is there (`resolved`).

Which document a head names is its committer's choice (`with_rest`): a new one is due when the rows
that heads carried since the last weigh as much as it. So neither costs more than the other,
whatever the number of partitions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, overload

import numpy as np
import xxhash
from numpy.typing import NDArray

from clog.storage.errors import CorruptionError
from clog.storage.format import documents
from clog.storage.format.chunks import NONE, whole
from clog.storage.format.paths import check_inside, columns_path
from clog.storage.store.base import Store

COLUMNS: Final = (
    *("start", "end", "base", "bytes", "chunks"),
    *("first_ms", "created_ms", "jitter_ms", "changed"),
)
"""In the order of the format."""
START, END, BASE, BYTES, CHUNKS, FIRST_MS, CREATED_MS, JITTER_MS, CHANGED = range(len(COLUMNS))
INLINE_PARTITIONS_MAX = 256
"""A head holds the columns of so many partitions whole: 4 KiB at most, and nothing else to read."""
ROW_BYTES = 32
"""What the row of a partition adds to a commit, about."""
MANY = 4
"""Where one of so many partitions changes, all columns are hardly longer than the rows."""
_FOLDED_ROWS = 256
"""So many rows go into an array that is no document's."""

Row = tuple[int, ...]
"""The entries of one partition, in the order of `COLUMNS`."""
_Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ColumnsRef:
    """A document with all columns at a version; ``checksum`` is that of the columns."""

    version: int
    path: str
    size_bytes: int
    checksum: str


class Column(Sequence[int]):
    """One column; equal to any sequence of the same numbers."""

    __slots__ = ("_columns", "_index")

    def __init__(self, columns: "PartitionColumns", index: int) -> None:
        self._columns = columns
        self._index = index

    @overload
    def __getitem__(self, partition: int) -> int: ...
    @overload
    def __getitem__(self, partition: slice) -> Sequence[int]: ...
    def __getitem__(self, partition: int | slice) -> int | Sequence[int]:
        if isinstance(partition, slice):
            return tuple(self)[partition]
        return self._columns.entry(
            partition % len(self) if partition < 0 else partition, self._index
        )

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[int]:
        return iter(self.to_numpy().tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment] # it is compared as a list is

    def __repr__(self) -> str:
        return repr(tuple(self))

    def to_numpy(self) -> _Array:
        """Returns the column as an array of its own."""
        column: _Array = self._columns.array[self._index].copy()
        for p, row in self._columns.rows.items():
            column[p] = row[self._index]
        return column


@dataclass(frozen=True, slots=True, eq=False)
class PartitionColumns:
    """All columns. ``rows`` go before ``rest``, an array of all, which is that of the document
    ``ref`` where there is one; None: the document was not read.
    """

    rows: Mapping[int, Row] = field(default_factory=dict)
    rest: _Array | None = None
    ref: ColumnsRef | None = None

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[int]]) -> "PartitionColumns":
        """Returns the columns that have these entries."""
        return cls(rest=np.array([columns[name] for name in COLUMNS], np.int64))

    @property
    def array(self) -> _Array:
        """The rest."""
        assert self.rest is not None, f"the columns in {self.ref} were not read"
        return self.rest

    @property
    def start(self) -> Column:
        """Log start offsets."""
        return Column(self, START)

    @property
    def end(self) -> Column:
        """End offsets."""
        return Column(self, END)

    def end_before(self, offsets: Mapping[int, int]) -> bool:
        """Tells whether any of these offsets, by partition, is beyond the end."""
        return any(at > self.end[p] for p, at in offsets.items())

    @property
    def base(self) -> Column:
        """Where the active segments begin."""
        return Column(self, BASE)

    @property
    def bytes(self) -> Column:
        """Sizes of the active segments."""
        return Column(self, BYTES)

    @property
    def chunks(self) -> Column:
        """Numbers of chunks of the active segments."""
        return Column(self, CHUNKS)

    @property
    def first_ms(self) -> Column:
        """Timestamps of the first records of the active segments, -1 while these are empty."""
        return Column(self, FIRST_MS)

    @property
    def created_ms(self) -> Column:
        """Times of the first commits of the active segments, -1 while these are empty."""
        return Column(self, CREATED_MS)

    @property
    def jitter_ms(self) -> Column:
        """What S7 takes off ``segment.ms``."""
        return Column(self, JITTER_MS)

    @property
    def changed(self) -> Column:
        """Versions of the last commits that changed the partitions otherwise than by appending or
        sealing.
        """
        return Column(self, CHANGED)

    def __len__(self) -> int:
        return int(self.array.shape[1])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionColumns):
            return NotImplemented
        if self.rest is None or other.rest is None:
            return self.ref == other.ref and self.rows == other.rows
        if self.rest is other.rest or (self.ref is not None and self.ref == other.ref):
            named = self.rows.keys() | other.rows.keys()
            return all(self.row(p) == other.row(p) for p in named)
        return np.array_equal(self.folded(), other.folded())

    __hash__ = None  # type: ignore[assignment] # it is compared by its numbers

    def entry(self, partition: int, index: int) -> int:
        """Returns one entry."""
        row = self.rows.get(partition)
        return int(self.array[index, partition]) if row is None else row[index]

    def row(self, partition: int) -> Row:
        """Returns the entries of a partition."""
        row = self.rows.get(partition)
        return tuple(self.array[:, partition].tolist()) if row is None else row

    def with_rows(self, rows: Mapping[int, Row]) -> "PartitionColumns":
        """Returns the columns with other entries for some partitions."""
        after = replace(self, rows={**self.rows, **rows})
        return after.whole() if self.ref is None and len(after.rows) > _FOLDED_ROWS else after

    def folded(self) -> _Array:
        """Returns an array of all columns."""
        if not self.rows:
            return self.array
        array = self.array.copy()
        partitions = np.fromiter(self.rows.keys(), np.int64, len(self.rows))
        try:
            array[:, partitions] = np.array(list(self.rows.values()), np.int64).T
        except OverflowError as e:
            raise CorruptionError("a column of a head would need more than 64 bits") from e
        return array

    def differing(self, array: _Array) -> Sequence[int]:
        """Returns the partitions whose rows differ from an array of all columns."""
        found: list[int] = np.flatnonzero((array != self.folded()).any(axis=0)).tolist()
        return found

    def over(self, array: _Array, ref: ColumnsRef) -> "PartitionColumns":
        """Returns the same columns, as rows before the array that is in this document."""
        return PartitionColumns({p: self.row(p) for p in self.differing(array)}, array, ref)

    def whole(self) -> "PartitionColumns":
        """Returns the same columns, none of them in a document."""
        return PartitionColumns(rest=self.folded())


def resolved(
    store: Store, columns: PartitionColumns, count: int, *known: tuple[int, PartitionColumns]
) -> PartitionColumns:
    """Returns the columns of ``count`` partitions with the rest there: from what is known of some
    versions, or its document; one GET.

    Raises:
        FileNotFoundError: the document is gone, as no readable version needs it.
        CorruptionError: it violates the format.
    """
    ref = columns.ref
    if columns.rest is not None or ref is None:
        return columns
    for version, other in known:
        if other.ref == ref and other.rest is not None:
            return replace(columns, rest=other.rest)
        if version == ref.version and _checksum(array := other.folded()) == ref.checksum:
            return replace(columns, rest=array)
    return replace(columns, rest=_read(store, ref, count))


def with_rest(
    store: Store,
    before: PartitionColumns,
    after: PartitionColumns,
    *,
    version: int,
    new_id: Callable[[], str],
) -> PartitionColumns:
    """Returns the columns ``after`` as the head of ``version`` + 1 is to hold them, where
    ``before`` are those of ``version``; a PUT where a new document is due (COMMIT.md, K3).
    """
    if len(after) <= INLINE_PARTITIONS_MAX:
        return after
    if after.ref is not None and len(after.rows) * MANY < len(after):
        carried = ROW_BYTES * len(after.rows) * (version + 1 - after.ref.version) // 2
        if carried < after.ref.size_bytes:
            return after
    array = before.folded()
    if len(after.differing(array)) * MANY >= len(after):
        return after.whole()
    body = {"version": version, "partitions": _columns_json(array)}
    data = documents.encode("columns", body)
    ref = ColumnsRef(version, columns_path(version, new_id()), len(data), _checksum(array))
    store.put(ref.path, data)
    return after.over(array, ref)


def columns_to_json(columns: PartitionColumns) -> dict[str, Any]:
    """Returns the columns as in a head: those of the rows alone where the rest is a document."""
    ref = columns.ref
    if ref is None:
        return _columns_json(columns.folded())
    rows = sorted(columns.rows.items())
    entries = np.array([row for _, row in rows], np.int64).reshape(len(rows), len(COLUMNS)).T
    return {
        "rest": {
            "version": ref.version,
            "path": ref.path,
            "bytes": ref.size_bytes,
            "xxh3_128": ref.checksum,
        },
        "p": [p for p, _ in rows],
        **_columns_json(entries),
    }


def columns_from_json(value: dict[str, Any], count: int, *, where: str) -> PartitionColumns:
    """Returns the columns in a head.

    Raises:
        KeyError, TypeError, ValueError: they violate the format.
    """
    if "rest" not in value:
        return PartitionColumns(rest=_array_of(value, count))
    rest, named = value["rest"], [whole(p) for p in value["p"]]
    if named != sorted(set(named)) or not all(0 <= p < count for p in named):
        raise ValueError(f"rows of partitions that are not in order, or not among {count}")
    ref = ColumnsRef(
        whole(rest["version"]),
        check_inside(rest["path"], where=where),
        whole(rest["bytes"]),
        str(rest["xxh3_128"]),
    )
    rows = map(tuple, _array_of(value, len(named)).T.tolist())
    return PartitionColumns(dict(zip(named, rows, strict=True)), None, ref)


def _columns_json(array: _Array) -> dict[str, list[int]]:
    return dict(zip(COLUMNS, array.tolist(), strict=True))


def _array_of(value: dict[str, Any], count: int) -> _Array:
    columns = [value[name] for name in COLUMNS]
    if any(type(column) is not list or len(column) != count for column in columns):
        raise ValueError(f"columns that do not have {count} partitions")
    if any(set(map(type, column)) - {int} for column in columns):
        raise TypeError("columns of other than integers")
    try:
        array = np.array(columns, np.int64)
    except OverflowError as e:
        raise ValueError("an integer of more than 64 bits") from e
    if (array < NONE).any():
        raise ValueError(f"columns with {array.min()}, below {NONE}")
    return array


def _checksum(array: _Array) -> str:
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(array, "<i8").data)


def _read(store: Store, ref: ColumnsRef, count: int) -> _Array:
    where = f"{ref.path} of {store.url}"
    data = documents.fetch(store, "columns", ref.path, ref.size_bytes)
    body = documents.decode("columns", data, where=where)
    try:
        version, array = whole(body["version"]), _array_of(body["partitions"], count)
    except (KeyError, TypeError, ValueError) as e:
        raise CorruptionError(f"{where} violates the format: {e}") from e
    if (version, _checksum(array)) != (ref.version, ref.checksum):
        raise CorruptionError(
            f"{where} has the columns of version {version}, and is not what the head refers to,"
            f" those of version {ref.version}"
        )
    return array
