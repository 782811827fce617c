"""The head: what each commit repeats so that the next append needs nothing else (FORMAT.md §3.4).

`advance` makes the head of version N+1 from that of N and an edit. It is pure, and every reader
runs it too: a head that differs from the one so derived is corruption, wherever the bug was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clog.storage.errors import CorruptionError, UnsupportedFormatError
from clog.storage.format.chunks import NONE, checksum_from, natural, whole
from clog.storage.format.columns import (
    BASE,
    BYTES,
    CHANGED,
    CHUNKS,
    COLUMNS,
    CREATED_MS,
    END,
    FIRST_MS,
    JITTER_MS,
    START,
    PartitionColumns,
    columns_from_json,
    columns_to_json,
    resolved,
)
from clog.storage.format.edit_json import (
    info_from_json,
    info_to_json,
    row_texts_from_json,
    row_texts_to_json,
    texts,
)
from clog.storage.format.edits import (
    Append,
    AppendedBy,
    Edit,
    LogInfo,
    PagedWriters,
    PageRef,
    RowTexts,
    WriterEntry,
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
from clog.storage.format.undecided import (
    Unended,
    ended,
    find_unended,
    joined,
    unended_from_json,
    unended_to_json,
    with_started_reset,
)
from clog.storage.format.views.pins import Pins, pins_after, pins_from_json, pins_to_json
from clog.storage.format.writer_json import (
    page_from_json,
    page_to_json,
    writer_from_json,
    writer_to_json,
)
from clog.storage.installation import UPGRADE
from clog.storage.store.base import Store

WRITERS_MAX = 64
"""A head that would have more writers than this lets go of the oldest."""


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
    _change(rows, edit)
    for p in edit.changed_partitions():
        rows[p][CHANGED] = version
    if edit.reset_times:
        rows = _Rows(_all_changed(rows.made(), version))
    unended = _unended(rows, head.unended, edit, version=version, time_ms=time_ms)
    if edit.add is not None:
        _add(rows, edit.add, time_ms)
    return replace(
        head,
        log=log,
        config=head.config if edit.config is None else dict(edit.config),
        config_epoch=head.config_epoch if edit.config is None else version,
        orphan_floor=head.orphan_floor if edit.orphan_floor is None else edit.orphan_floor,
        oldest_readable=_or(edit.oldest_readable, head.oldest_readable),
        partitions=rows.made(),
        writers=_without(with_writers(head.writers, edit.writers), edit.older_writers),
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


def _change(rows: _Rows, edit: Edit) -> None:
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


def _or(number: int | None, otherwise: int) -> int:
    return otherwise if number is None else number


def _new_segment(rows: _Rows, p: int, base: int, jitter_ms: int) -> None:
    row = rows[p]
    if not row[CHUNKS]:
        raise CorruptionError(f"partition {p}: an edit seals the active segment, which is empty")
    row[BASE] = base
    row[BYTES] = row[CHUNKS] = 0
    row[FIRST_MS] = row[CREATED_MS] = NONE
    row[JITTER_MS] = jitter_ms


def _add(rows: _Rows, add: Append, time_ms: int) -> None:
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


def with_writers(
    writers: tuple[WriterEntry, ...], added: Sequence[AppendedBy]
) -> tuple[WriterEntry, ...]:
    """Returns the head's list with the entries of an edit, most recent last."""
    for by in added:
        writers = (*(w for w in writers if w.key != by.entry.key), by.entry)
    return writers


def _without(
    writers: tuple[WriterEntry, ...], paged: PagedWriters | None
) -> tuple[WriterEntry, ...]:
    if paged is None:
        return writers
    if paged.left and paged.left[-1] >= len(writers):
        raise CorruptionError(
            f"writer {paged.left[-1]} of the {len(writers)} in the head leaves it"
        )
    return tuple(w for i, w in enumerate(writers) if i not in paged.left)


def with_columns(store: Store, head: Head, *known: tuple[int, PartitionColumns]) -> Head:
    """Returns the head with all its columns (`columns.resolved`); one GET where they are not known.

    Raises:
        FileNotFoundError: their document is gone, as no readable version needs it.
        CorruptionError: it violates the format.
    """
    columns = resolved(store, head.partitions, head.log.partitions, *known)
    return head if columns is head.partitions else replace(head, partitions=columns)


_KNOWN = {f for f in Head.__dataclass_fields__ if f != "extra"}


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
        return Head(
            log=info,
            config=texts(value["config"]),
            config_epoch=natural(value["config_epoch"]),
            snapshot=_snapshot_from_json(value["snapshot"]),
            orphan_floor=natural(value["orphan_floor"]),
            oldest_readable=natural(value["oldest_readable"]),
            partitions=columns_from_json(value["partitions"], info.partitions, where=where),
            writers=tuple(writer_from_json(w) for w in value["writers"]),
            older_writers=page_from_json(value["older_writers"], where),
            unended=unended_from_json(value.get("unended", []), info.partitions),
            pins=pins_from_json(value.get("pins", {})),
            masked=whole(value.get("masked", NONE)),
            row_texts=row_texts_from_json(value.get("row_texts")),
            extra={name: v for name, v in value.items() if name not in _KNOWN},
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
