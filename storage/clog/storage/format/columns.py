"""The columns: nine numbers for each partition, in the head (FORMAT.md §3.4).

A commit changes few of them. The changed ones are *rows*, by partition, which take precedence over
an array with the rest, so a change costs only what it changed. The rest may be a separate document
that heads name: such a head holds only the rows, and cannot be used until the rest was read
(`resolved`). The committer chooses which document a head names (`with_rest`): a new one is due when
the rows in the heads since the last one weigh as much as the document. So neither costs more than
the other, whatever the number of partitions.

`Rows` are the columns while an edit is applied. `rolls_for` decides when an append rolls the active
segment (S7). Each chunk counts as one append to its partition; the active segment is sealed before
a chunk if it is not empty and

- its bytes + the chunk's would exceed ``segment.bytes``, or
- the chunk's largest timestamp − its first record's timestamp > effective ``segment.ms`` − its
  jitter, or
- it already has ``segment.chunks`` chunks (as Kafka's rolls when its index is full).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final, overload

import numpy as np
import xxhash
from numpy.typing import NDArray

from clog.storage.config.log_config import LogConfig
from clog.storage.env import dataclass
from clog.storage.errors import CorruptionError
from clog.storage.format import documents
from clog.storage.format.documents import (
    NONE,
    Int,
    Path,
    Shown,
    columns_path,
    reading,
    record,
    whole,
)
from clog.storage.store.contract import Store

if TYPE_CHECKING:
    from clog.storage.format.chunks import Append, Chunk, Replacement

COLUMNS: Final = (
    *("start", "end", "base", "bytes", "chunks"),
    *("first_ms", "created_ms", "jitter_ms", "changed"),
)
"""In the order of the format."""
START, END, BASE, BYTES, CHUNKS, FIRST_MS, CREATED_MS, JITTER_MS, CHANGED = range(len(COLUMNS))
INLINE_PARTITIONS_MAX = 256
"""Up to this many partitions a head holds all columns: at most 4 KiB, and no document to read."""
MANY = 4
"""If one in this many partitions changes, all columns are hardly longer than the rows."""
_ROW_BYTES = 32
"""About what the row of one partition adds to a commit."""
_FOLDED_ROWS = 256
"""More rows than this are folded into an array that is not a document's."""

Row = tuple[int, ...]
"""The entries of one partition, in the order of `COLUMNS`."""
_Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ColumnsRef:
    """A document with all columns at a version; ``checksum`` is of the columns."""

    version: Int
    path: Path
    size_bytes: Annotated[Int, "bytes"]
    checksum: Annotated[Shown, "xxh3_128"]


_REF = record(ColumnsRef)


class _Column(Sequence[int]):
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

    __hash__ = None  # type: ignore[assignment] # compared like a list

    def __repr__(self) -> str:
        return repr(tuple(self))

    def to_numpy(self) -> _Array:
        """Returns the column as a new array."""
        column: _Array = self._columns.array[self._index].copy()
        for p, row in self._columns.rows.items():
            column[p] = row[self._index]
        return column


class _At:
    """A column, as an attribute."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __get__(self, columns: "PartitionColumns", _: object) -> _Column:
        return _Column(columns, self._index)


@dataclass(frozen=True, slots=True, eq=False)
class PartitionColumns:
    """All columns. ``rows`` take precedence over ``rest``, an array of all columns. That is the
    array of the document ``ref``, if there is one; None if the document was not read.
    """

    rows: Mapping[int, Row] = field(default_factory=dict)
    rest: _Array | None = None
    ref: ColumnsRef | None = None

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[int]]) -> "PartitionColumns":
        """Returns the columns with these entries."""
        return cls(rest=np.array([columns[name] for name in COLUMNS], np.int64))

    @property
    def array(self) -> _Array:
        """The rest, which must have been read."""
        assert self.rest is not None, f"the columns in {self.ref} were not read"
        return self.rest

    start = _At(START)
    """Log start offsets."""
    end = _At(END)
    """End offsets."""
    base = _At(BASE)
    """First offsets of the active segments."""
    bytes = _At(BYTES)
    """Sizes of the active segments."""
    chunks = _At(CHUNKS)
    """Numbers of chunks of the active segments."""
    first_ms = _At(FIRST_MS)
    """Timestamps of the first records of the active segments, -1 while these are empty."""
    created_ms = _At(CREATED_MS)
    """Times of the first commits of the active segments, -1 while these are empty."""
    jitter_ms = _At(JITTER_MS)
    """The jitters that S7 subtracts from ``segment.ms``."""
    changed = _At(CHANGED)
    """Versions of the last commits that changed the partitions in another way than by appending or
    sealing.
    """

    def end_before(self, offsets: Mapping[int, int]) -> bool:
        """Returns whether any of these offsets, by partition, is beyond the end."""
        return any(at > self.end[p] for p, at in offsets.items())

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

    __hash__ = None  # type: ignore[assignment] # compared by its numbers

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
        """Returns one array of all columns, the rows included."""
        if not self.rows:
            return self.array
        array = self.array.copy()
        partitions = np.fromiter(self.rows.keys(), np.int64, len(self.rows))
        try:
            array[:, partitions] = np.array(list(self.rows.values()), np.int64).T
        except OverflowError as e:
            raise CorruptionError("a column of a head would need more than 64 bits") from e
        return array

    def over(self, array: _Array, ref: ColumnsRef) -> "PartitionColumns":
        """Returns the same columns as rows over the array of this document."""
        return PartitionColumns({p: self.row(p) for p in self.differing(array)}, array, ref)

    def differing(self, array: _Array) -> list[int]:
        found: list[int] = np.flatnonzero((array != self.folded()).any(axis=0)).tolist()
        return found

    def whole(self) -> "PartitionColumns":
        """Returns the same columns without a document."""
        return PartitionColumns(rest=self.folded())


class Rows(dict[int, list[int]]):
    """The rows that an edit reads or changes, by partition."""

    def __init__(self, columns: PartitionColumns) -> None:
        super().__init__()
        self._columns = columns

    def __missing__(self, p: int) -> list[int]:
        row = self[p] = list(self._columns.row(p))
        return row

    def made(self) -> PartitionColumns:
        """Returns the columns with these rows."""
        return self._columns.with_rows({p: tuple(row) for p, row in self.items()})

    def reach(self, offsets: Mapping[int, int]) -> None:
        """Increases end offsets without records."""
        for p, offset in offsets.items():
            if offset <= self[p][END]:
                raise CorruptionError(
                    f"partition {p}: offset {offset} is reached, but the end offset is already"
                    f" {self[p][END]}"
                )
            self[p][END] = offset

    def start(self, offsets: Mapping[int, int]) -> None:
        """Increases log start offsets."""
        for p, offset in offsets.items():
            if offset > self[p][END]:
                raise CorruptionError(
                    f"partition {p}: start {offset} is beyond the end offset {self[p][END]}"
                )
            self[p][START] = max(self[p][START], offset)

    def seal(self, given: Sequence[tuple[int, int]]) -> None:
        """Begins new active segments with these jitters at the end offsets."""
        for p, jitter_ms in given:
            self._roll(p, self[p][END], jitter_ms)

    def drop(self, bases: Mapping[int, int]) -> None:
        """Raises unless segments below these offsets may be dropped."""
        for p, base in bases.items():
            if base > self[p][START]:
                raise CorruptionError(
                    f"partition {p}: segments below {base} are dropped, but its log start offset"
                    f" is {self[p][START]}"
                )

    def replace(self, given: "Sequence[Replacement]") -> None:
        """Updates the numbers of chunks of active segments."""
        for r in given:
            active = self[r.partition][BASE]
            if r.next > active and (r.base < active or r.segments is not None):
                raise CorruptionError(
                    f"partition {r.partition}: a replacement of [{r.base}, {r.next}) changes sealed"
                    f" segments and the active one, which begins at {active}"
                )
            if r.base >= active:
                self[r.partition][CHUNKS] += len(r.chunks) - len(r.sources)

    def add(self, add: "Append", time_ms: int) -> None:
        """Appends chunks; ``time_ms`` is the time of the commit."""
        rolls = {(p, base): jitter_ms for p, base, jitter_ms in add.rolls}
        for p, chunk in add.chunks:
            row = self[p]
            follows = add.is_given or chunk.next == chunk.base + chunk.rows
            if chunk.base != row[END] or not follows or chunk.rows <= 0:
                raise CorruptionError(
                    f"partition {p}: a chunk of {chunk.rows} rows at [{chunk.base}, {chunk.next})"
                    f" is appended at end offset {row[END]}"
                )
            if (jitter_ms := rolls.pop((p, chunk.base), None)) is not None:
                self._roll(p, chunk.base, jitter_ms)
            row[END] = chunk.next
            row[BYTES] += chunk.size_bytes
            row[CHUNKS] += 1
            if row[CREATED_MS] == NONE:
                row[FIRST_MS], row[CREATED_MS] = chunk.first_timestamp_ms, time_ms
        if rolls:
            raise CorruptionError(f"rolls name chunks that do not exist: {sorted(rolls)}")

    def change_all(self, version: int) -> "Rows":
        """Returns rows that this version changed, all of them; active segments must be empty."""
        array = self.made().folded().copy()
        if array[CHUNKS].any():
            raise CorruptionError("times are reset beside an active segment that is not empty")
        array[CHANGED] = version
        return Rows(PartitionColumns(rest=array))

    def _roll(self, p: int, base: int, jitter_ms: int) -> None:
        row = self[p]
        if not row[CHUNKS]:
            raise CorruptionError(
                f"partition {p}: an edit seals the active segment, which is empty"
            )
        row[BASE] = base
        row[BYTES] = row[CHUNKS] = 0
        row[FIRST_MS] = row[CREATED_MS] = NONE
        row[JITTER_MS] = jitter_ms


def resolved(
    store: Store, columns: PartitionColumns, count: int, *known: tuple[int, PartitionColumns]
) -> PartitionColumns:
    """Returns the columns of ``count`` partitions with the rest, from the ``known`` columns of some
    versions or from its document; one GET. FileNotFoundError if no readable version needs that.
    """
    ref = columns.ref
    if columns.rest is not None or ref is None:
        return columns
    for version, other in known:
        if other.ref == ref and other.rest is not None:
            return replace(columns, rest=other.rest)
        if version == ref.version and _columns_checksum(array := other.folded()) == ref.checksum:
            return replace(columns, rest=array)
    return replace(columns, rest=_read_columns(store, ref, count))


def with_rest(
    store: Store,
    before: PartitionColumns,
    after: PartitionColumns,
    *,
    version: int,
    new_id: Callable[[], str],
) -> PartitionColumns:
    """Returns the columns as the next head holds them; one PUT if a document is due (K3)."""
    if len(after) <= INLINE_PARTITIONS_MAX:
        return after
    if after.ref is not None and len(after.rows) * MANY < len(after):
        carried = _ROW_BYTES * len(after.rows) * (version + 1 - after.ref.version) // 2
        if carried < after.ref.size_bytes:
            return after
    array = before.folded()
    if len(after.differing(array)) * MANY >= len(after):
        return after.whole()
    body = {"version": version, "partitions": _columns_json(array)}
    data = documents.encode("columns", body)
    ref = ColumnsRef(version, columns_path(version, new_id()), len(data), _columns_checksum(array))
    store.put(ref.path, data)
    return after.over(array, ref)


def columns_to_json(columns: PartitionColumns) -> dict[str, Any]:
    """Returns the columns as in a head: only the rows if the rest is a document."""
    if columns.ref is None:
        return _columns_json(columns.folded())
    rows = sorted(columns.rows.items())
    entries = np.array([row for _, row in rows], np.int64).reshape(len(rows), len(COLUMNS)).T
    named = {"rest": _REF.write(columns.ref), "p": [p for p, _ in rows]}
    return {**named, **_columns_json(entries)}


def columns_from_json(value: dict[str, Any], count: int) -> PartitionColumns:
    """Returns the columns in a head of ``count`` partitions; raises as codecs do."""
    if "rest" not in value:
        return PartitionColumns(rest=_array_of(value, count))
    named = [whole(p) for p in value["p"]]
    if named != sorted(set(named)) or not all(0 <= p < count for p in named):
        raise ValueError(f"rows of partitions that are out of order, or not among {count}")
    rows = map(tuple, _array_of(value, len(named)).T.tolist())
    return PartitionColumns(dict(zip(named, rows, strict=True)), None, _REF.read(value["rest"]))


def _columns_json(array: _Array) -> dict[str, list[int]]:
    return dict(zip(COLUMNS, array.tolist(), strict=True))


def _array_of(value: dict[str, Any], count: int) -> _Array:
    columns = [value[name] for name in COLUMNS]
    if any(type(column) is not list or len(column) != count for column in columns):
        raise ValueError(f"columns that do not have {count} partitions")
    if set(map(type, chain(*columns))) - {int}:
        raise TypeError("columns that are not integers")
    try:
        array = np.array(columns, np.int64)
    except OverflowError as e:
        raise ValueError("an integer of more than 64 bits") from e
    if array.min(initial=NONE) < NONE:
        raise ValueError(f"columns with {array.min()}, below {NONE}")
    return array


def _columns_checksum(array: _Array) -> str:
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(array, "<i8").data)


def _read_columns(store: Store, ref: ColumnsRef, count: int) -> _Array:
    where = f"{ref.path} of {store.url}"
    body = documents.get(store, "columns", ref.path, ref.size_bytes)
    with reading(where):
        version, array = whole(body["version"]), _array_of(body["partitions"], count)
    if (version, _columns_checksum(array)) != (ref.version, ref.checksum):
        raise CorruptionError(
            f"{where} has the columns of version {version}, but the head refers to those of"
            f" version {ref.version}"
        )
    return array


def rolls_for(
    columns: PartitionColumns,
    chunks: "Sequence[tuple[int, Chunk]]",
    config: LogConfig,
    *,
    uniform: Callable[[], float],
) -> tuple[tuple[int, int, int], ...]:
    """Returns (partition, base, jitter_ms) of the chunks before which the active segment rolls."""
    size: dict[int, int] = {}
    count: dict[int, int] = {}
    first_ms: dict[int, int] = {}
    jitter: dict[int, int] = {}
    rolls = []
    for p, chunk in chunks:
        if p not in size:
            size[p], count[p] = columns.bytes[p], columns.chunks[p]
            first_ms[p], jitter[p] = columns.first_ms[p], columns.jitter_ms[p]
        waited_ms = chunk.max_timestamp_ms - first_ms[p]
        if count[p] and (
            size[p] + chunk.size_bytes > config.segment_bytes
            or waited_ms > config.effective_segment_ms - jitter[p]
            or count[p] >= config.segment_chunks
        ):
            size[p] = count[p] = 0
            first_ms[p] = NONE
            jitter[p] = new_jitter_ms(config, uniform=uniform)
            rolls.append((p, chunk.base, jitter[p]))
        if count[p] == 0:
            first_ms[p] = chunk.first_timestamp_ms
        size[p] += chunk.size_bytes
        count[p] += 1
    return tuple(rolls)


def new_jitter_ms(config: LogConfig, *, uniform: Callable[[], float]) -> int:
    """Returns a new segment's jitter, below min(``segment.jitter.ms``, ``segment.ms``)."""
    return int(uniform() * min(config.segment_jitter_ms, config.segment_ms))
