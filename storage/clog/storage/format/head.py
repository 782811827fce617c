"""The head: what each commit repeats so that the next append needs nothing else (FORMAT.md §3.4).

`advance` makes the head of version N+1 from that of N and an edit. It is pure, and every reader
runs it too: a head that differs from the one so derived is corruption, wherever the bug was.

Of its facts of all partitions, the *columns*, a commit changes few. They are *rows*, by partition,
before an array with the rest, so that a change costs what it changed. The rest may be a document of
its own, which heads name: such a head holds the rows alone, and nothing can be asked of it until
the rest is there (`with_columns`). Which document a head names is its committer's choice
(`with_rest`): a new one is due when the rows that heads carried since the last weigh as much as it.
So neither costs more than the other, whatever the number of partitions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, overload

import numpy as np
import xxhash
from numpy.typing import NDArray

from clog.storage.env import UPGRADE
from clog.storage.errors import CorruptionError, UnsupportedFormatError
from clog.storage.format import documents
from clog.storage.format.chunks import NONE, checksum_from, natural, whole
from clog.storage.format.documents import check_inside, columns_path
from clog.storage.format.edits import (
    Append,
    AppendedBy,
    Edit,
    LogInfo,
    PagedWriters,
    PageRef,
    Pins,
    RowTexts,
    WriterEntry,
    info_from_json,
    info_to_json,
    page_from_json,
    page_to_json,
    pins_after,
    pins_from_json,
    pins_to_json,
    row_texts_from_json,
    row_texts_to_json,
    texts,
    writer_from_json,
    writer_to_json,
)
from clog.storage.format.features import (
    DEAD_ROWS,
    ROW_TEXTS,
    SUPERSEDED_ROWS,
    TRANSACTIONS,
    TYPED_COLUMNS,
    TYPED_KEYS,
    UNDECIDED_RECORDS,
    unknown,
)
from clog.storage.format.schema import check_evolution, has_typed_keys
from clog.storage.format.transactions import (
    Unended,
    ended,
    find_unended,
    joined,
    unended_from_json,
    unended_to_json,
    with_started_reset,
)
from clog.storage.store.contract import Store

COLUMNS: Final = (
    *("start", "end", "base", "bytes", "chunks"),
    *("first_ms", "created_ms", "jitter_ms", "changed"),
)
"""In the order of the format."""
START, END, BASE, BYTES, CHUNKS, FIRST_MS, CREATED_MS, JITTER_MS, CHANGED = range(len(COLUMNS))
INLINE_PARTITIONS_MAX = 256
"""A head holds the columns of so many partitions whole: 4 KiB at most, and nothing else to read."""
WRITERS_MAX = 64
"""A head that would have more writers than this lets go of the oldest."""
MANY = 4
"""Where one of so many partitions changes, all columns are hardly longer than the rows."""
_ROW_BYTES = 32
"""What the row of a partition adds to a commit, about."""
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
    def start(self) -> _Column:
        """Log start offsets."""
        return _Column(self, START)

    @property
    def end(self) -> _Column:
        """End offsets."""
        return _Column(self, END)

    def end_before(self, offsets: Mapping[int, int]) -> bool:
        """Tells whether any of these offsets, by partition, is beyond the end."""
        return any(at > self.end[p] for p, at in offsets.items())

    @property
    def base(self) -> _Column:
        """Where the active segments begin."""
        return _Column(self, BASE)

    @property
    def bytes(self) -> _Column:
        """Sizes of the active segments."""
        return _Column(self, BYTES)

    @property
    def chunks(self) -> _Column:
        """Numbers of chunks of the active segments."""
        return _Column(self, CHUNKS)

    @property
    def first_ms(self) -> _Column:
        """Timestamps of the first records of the active segments, -1 while these are empty."""
        return _Column(self, FIRST_MS)

    @property
    def created_ms(self) -> _Column:
        """Times of the first commits of the active segments, -1 while these are empty."""
        return _Column(self, CREATED_MS)

    @property
    def jitter_ms(self) -> _Column:
        """What S7 takes off ``segment.ms``."""
        return _Column(self, JITTER_MS)

    @property
    def changed(self) -> _Column:
        """Versions of the last commits that changed the partitions otherwise than by appending or
        sealing.
        """
        return _Column(self, CHANGED)

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


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """The newest complete snapshot; ``size_bytes`` of its JSON is what the edits since outweigh,
    ``commit_id`` that of its version, None where nobody said it.
    """

    version: int
    size_bytes: int
    commit_id: str | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """State that appends need. ``masked`` is the version of the last commit with masks, -1 where
    there is none; ``extra`` keeps fields of newer writers that are not known here.
    """

    log: LogInfo
    config: Mapping[str, str]
    config_epoch: int
    snapshot: SnapshotRef | None
    orphan_floor: int
    oldest_readable: int
    partitions: PartitionColumns
    writers: tuple[WriterEntry, ...] = ()
    older_writers: PageRef | None = None
    unended: tuple[Unended, ...] = ()
    pins: Pins = field(default_factory=dict)
    masked: int = NONE
    row_texts: RowTexts | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def stable_offset(self, partition: int) -> int:
        """Returns the last stable offset: all below it is decided (S51)."""
        first = [entry.first[partition] for entry in self.unended if partition in entry.first]
        if not first:
            return self.partitions.end[partition]
        return max(min(first), self.partitions.start[partition])


_KNOWN_FIELDS = {f for f in Head.__dataclass_fields__ if f != "extra"}


def first_head(edit: Edit) -> Head:
    """Returns the head of version 0."""
    if edit.create is None or edit != Edit(create=edit.create, config=edit.config):
        raise CorruptionError("version 0 must create a log and do nothing else")
    zero = (0,) * edit.create.partitions
    none = (NONE,) * edit.create.partitions
    named = dict.fromkeys(COLUMNS, zero) | {"first_ms": none, "created_ms": none}
    columns = PartitionColumns.of(named)
    return Head(edit.create, dict(edit.config or {}), 0, None, 0, 0, columns)


def advance(head: Head, edit: Edit, *, version: int, time_ms: int) -> Head:
    """Returns the head after ``edit``; ``head.snapshot`` stays: it is the committer's to announce.

    Raises:
        CorruptionError: the edit contradicts the head: a chunk that does not begin at the end
            offset, a partition that does not exist.
    """
    _check_named(head, edit)
    log = _with_features(head.log, edit)
    rows = _Rows(head.partitions)
    _change_rows(rows, edit)
    for p in edit.changed_partitions():
        rows[p][CHANGED] = version
    if edit.reset_times:
        rows = _Rows(_all_changed(rows.made(), version))
    unended = _unended(rows, head.unended, edit, version=version, time_ms=time_ms)
    if edit.add is not None:
        _append(rows, edit.add, time_ms)
    return replace(
        head,
        log=log,
        config=head.config if edit.config is None else dict(edit.config),
        config_epoch=head.config_epoch if edit.config is None else version,
        orphan_floor=head.orphan_floor if edit.orphan_floor is None else edit.orphan_floor,
        oldest_readable=(
            head.oldest_readable if edit.oldest_readable is None else edit.oldest_readable
        ),
        partitions=rows.made(),
        writers=_without_paged(with_writers(head.writers, edit.writers), edit.older_writers),
        older_writers=edit.older_writers.root if edit.older_writers else head.older_writers,
        unended=with_started_reset(unended, time_ms) if edit.reset_times else unended,
        pins=pins_after(head.pins, edit.pins, log.features),
        masked=version if edit.masks or edit.covered else head.masked,
        row_texts=_row_texts(head.row_texts, edit.row_texts),
    )


def check_readable(info: LogInfo, *, where: str) -> None:
    """Raises if readers must know a feature that this clog does not.

    Raises:
        UnsupportedFormatError: there is one.
    """
    if names := unknown(info.features.read):
        raise UnsupportedFormatError(
            f"{where} has the features {names}, which this clog does not know; {UPGRADE}"
        )


def check_writable(info: LogInfo, *, where: str) -> None:
    """Raises if writers must know a feature that this clog does not; to delete is to write.

    Raises:
        UnsupportedFormatError: there is one.
    """
    if names := unknown((*info.features.read, *info.features.write)):
        raise UnsupportedFormatError(
            f"{where} has the features {names}, which this clog can read but not write; {UPGRADE}"
        )


def with_writers(
    writers: tuple[WriterEntry, ...], added: Sequence[AppendedBy]
) -> tuple[WriterEntry, ...]:
    """Returns the head's list with the entries of an edit, most recent last."""
    for by in added:
        writers = (*(w for w in writers if w.key != by.entry.key), by.entry)
    return writers


def _check_named(head: Head, edit: Edit) -> None:
    count = head.log.partitions
    if unknown := sorted(p for p in edit.partitions() if not 0 <= p < count):
        raise CorruptionError(f"an edit names partitions {unknown} of a log that has {count}")
    if edit.create is not None:
        raise CorruptionError("an edit creates a log that already exists")


def _with_features(log: LogInfo, edit: Edit) -> LogInfo:
    if edit.features is not None:
        log = replace(log, features=log.features.with_added(edit.features))
    if edit.schema is not None:
        check_evolution(log.schema, edit.schema)
        log = replace(log, schema=edit.schema)
    for name, what, is_there in (
        (DEAD_ROWS, "dead rows", edit.dead),
        (SUPERSEDED_ROWS, "masks", edit.masks or edit.covered),
        (TRANSACTIONS, "a transaction", any(by.entry.transaction for by in edit.writers)),
        (UNDECIDED_RECORDS, "undecided records", edit.names_undecided()),
        (ROW_TEXTS, "rules of texts", edit.row_texts),
    ):
        if is_there and name not in log.features:
            raise CorruptionError(f"an edit has {what}, but the log lacks feature {name!r}")
    return log


def _row_texts(before: RowTexts | None, given: RowTexts | None) -> RowTexts | None:
    if before is None or given is None:
        return given or before
    rules = (before.encoding, before.time_zone)
    if (given.encoding, given.time_zone) != rules or given.keys[: len(before.keys)] != before.keys:
        raise CorruptionError(f"rules of texts change from {before} to {given}")
    return given


class _Rows(dict[int, list[int]]):
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


def _change_rows(rows: _Rows, edit: Edit) -> None:
    for p, offset in edit.start.items():
        if offset > rows[p][END]:
            raise CorruptionError(
                f"partition {p}: start {offset} is beyond the end offset {rows[p][END]}"
            )
        rows[p][START] = max(rows[p][START], offset)
    for p, jitter_ms in edit.seal:
        _new_segment(rows, p, rows[p][END], jitter_ms)
    for p, base in edit.drop.items():
        if base > rows[p][START]:
            raise CorruptionError(
                f"partition {p}: segments below {base} are dropped, but its log start offset is"
                f" {rows[p][START]}"
            )
    for r in edit.replace:
        active = rows[r.partition][BASE]
        if r.next > active and (r.base < active or r.segments is not None):
            raise CorruptionError(
                f"partition {r.partition}: a replacement of [{r.base}, {r.next}) changes sealed"
                f" segments and the active one, which begins at {active}"
            )
        if r.base >= active:
            rows[r.partition][CHUNKS] += len(r.chunks) - len(r.sources)


def _unended(
    rows: _Rows, unended: tuple[Unended, ...], edit: Edit, *, version: int, time_ms: int
) -> tuple[Unended, ...]:
    """Returns the transactions that have not ended after the edit; gives ends their markers."""
    for ending in edit.ends:
        entry = find_unended(unended, ending.name)
        for p in () if entry is None else entry.first:
            rows[p][END] += 1
            rows[p][CHANGED] = version
        unended = ended(unended, ending)
    for joining in edit.unended:
        first = edit.first_of(joining)
        unended = joined(unended, joining, first, version=version, time_ms=time_ms)
    return unended


def _all_changed(columns: PartitionColumns, version: int) -> PartitionColumns:
    array = columns.folded().copy()
    if array[CHUNKS].any():
        raise CorruptionError("times are reset beside an active segment that is not empty")
    array[CHANGED] = version
    return PartitionColumns(rest=array)


def _append(rows: _Rows, add: Append, time_ms: int) -> None:
    rolls = {(p, base): jitter_ms for p, base, jitter_ms in add.rolls}
    for p, chunk in add.chunks:
        row = rows[p]
        if chunk.base != row[END] or chunk.next != chunk.base + chunk.rows or chunk.rows <= 0:
            raise CorruptionError(
                f"partition {p}: a chunk of {chunk.rows} rows at [{chunk.base}, {chunk.next})"
                f" is appended at end offset {row[END]}"
            )
        if (jitter_ms := rolls.pop((p, chunk.base), None)) is not None:
            _new_segment(rows, p, chunk.base, jitter_ms)
        row[END] = chunk.next
        row[BYTES] += chunk.size_bytes
        row[CHUNKS] += 1
        if row[CREATED_MS] == NONE:
            row[FIRST_MS], row[CREATED_MS] = chunk.first_timestamp_ms, time_ms
    if rolls:
        raise CorruptionError(f"rolls name chunks that do not exist: {sorted(rolls)}")


def _new_segment(rows: _Rows, p: int, base: int, jitter_ms: int) -> None:
    row = rows[p]
    if not row[CHUNKS]:
        raise CorruptionError(f"partition {p}: an edit seals the active segment, which is empty")
    row[BASE] = base
    row[BYTES] = row[CHUNKS] = 0
    row[FIRST_MS] = row[CREATED_MS] = NONE
    row[JITTER_MS] = jitter_ms


def _without_paged(
    writers: tuple[WriterEntry, ...], paged: PagedWriters | None
) -> tuple[WriterEntry, ...]:
    if paged is None:
        return writers
    if paged.left and paged.left[-1] >= len(writers):
        raise CorruptionError(
            f"writer {paged.left[-1]} of the {len(writers)} in the head leaves it"
        )
    return tuple(w for i, w in enumerate(writers) if i not in paged.left)


def head_to_json(head: Head) -> dict[str, Any]:
    """Returns the head as in commits and snapshots."""
    unended = {"unended": [unended_to_json(entry) for entry in head.unended]}
    return {
        **head.extra,
        **(unended if head.unended else {}),
        "log": info_to_json(head.log),
        "config": dict(head.config),
        "config_epoch": head.config_epoch,
        "snapshot": head.snapshot and _snapshot_json(head.snapshot),
        "orphan_floor": head.orphan_floor,
        "oldest_readable": head.oldest_readable,
        "partitions": columns_to_json(head.partitions),
        "writers": [writer_to_json(w) for w in head.writers],
        "older_writers": head.older_writers and page_to_json(head.older_writers),
        **({"pins": pins_to_json(head.pins)} if head.pins else {}),
        **({} if head.masked == NONE else {"masked": head.masked}),
        **({"row_texts": row_texts_to_json(head.row_texts)} if head.row_texts else {}),
    }


def head_from_json(value: dict[str, Any], *, where: str) -> Head:
    """Returns the head in a commit or snapshot.

    Raises:
        CorruptionError: it violates the format.
        UnsupportedFormatError: the log uses a reader feature that this clog does not know.
    """
    try:
        info = info_from_json(value["log"])
        check_readable(info, where=where)
        if (info.schema is not None) != (TYPED_COLUMNS in info.features.read):
            raise ValueError(f"a schema without the feature {TYPED_COLUMNS!r}, or the reverse")
        if has_typed_keys(info.schema) != (TYPED_KEYS in info.features.read):
            raise ValueError(f"types of keys without the feature {TYPED_KEYS!r}, or the reverse")
        older = value["older_writers"]
        return Head(
            log=info,
            config=texts(value["config"]),
            config_epoch=natural(value["config_epoch"]),
            snapshot=_snapshot_from_json(value["snapshot"]),
            orphan_floor=natural(value["orphan_floor"]),
            oldest_readable=natural(value["oldest_readable"]),
            partitions=columns_from_json(value["partitions"], info.partitions, where=where),
            writers=tuple(writer_from_json(w) for w in value["writers"]),
            older_writers=None if older is None else page_from_json(older, where),
            unended=unended_from_json(value.get("unended", []), info.partitions),
            pins=pins_from_json(value.get("pins", {})),
            masked=whole(value.get("masked", NONE)),
            row_texts=row_texts_from_json(value.get("row_texts")),
            extra={name: v for name, v in value.items() if name not in _KNOWN_FIELDS},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise CorruptionError(f"the head in {where} violates the format: {e}") from e


def _snapshot_json(ref: SnapshotRef) -> dict[str, Any]:
    named = {} if ref.commit_id is None else {"id": ref.commit_id}
    return {"version": ref.version, "bytes": ref.size_bytes, **named}


def _snapshot_from_json(value: dict[str, Any] | None) -> SnapshotRef | None:
    if value is None:
        return None
    commit_id = value.get("id")
    named = None if commit_id is None else checksum_from(commit_id)
    return SnapshotRef(natural(value["version"]), natural(value["bytes"]), named)


def with_columns(store: Store, head: Head, *known: tuple[int, PartitionColumns]) -> Head:
    """Returns the head with all its columns (`columns.resolved`); one GET where they are not known.

    Raises:
        FileNotFoundError: their document is gone, as no readable version needs it.
        CorruptionError: it violates the format.
    """
    columns = resolved(store, head.partitions, head.log.partitions, *known)
    return head if columns is head.partitions else replace(head, partitions=columns)


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
    """Returns the columns ``after`` as the head of ``version`` + 1 is to hold them, where
    ``before`` are those of ``version``; a PUT where a new document is due (COMMIT.md, K3).
    """
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


def _columns_checksum(array: _Array) -> str:
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(array, "<i8").data)


def _read_columns(store: Store, ref: ColumnsRef, count: int) -> _Array:
    where = f"{ref.path} of {store.url}"
    data = documents.fetch(store, "columns", ref.path, ref.size_bytes)
    body = documents.decode("columns", data, where=where)
    try:
        version, array = whole(body["version"]), _array_of(body["partitions"], count)
    except (KeyError, TypeError, ValueError) as e:
        raise CorruptionError(f"{where} violates the format: {e}") from e
    if (version, _columns_checksum(array)) != (ref.version, ref.checksum):
        raise CorruptionError(
            f"{where} has the columns of version {version}, and is not what the head refers to,"
            f" those of version {ref.version}"
        )
    return array
