"""The head: what each commit repeats so that the next append needs nothing else (FORMAT.md §3.4).

`advance` makes the head of version N+1 from that of N and an edit. It is pure, and every reader
runs it too: a head that differs from the one so derived is corruption, wherever the bug was.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clog.storage.errors import CorruptionError, UnsupportedFormatError
from clog.storage.format.chunks import NONE, whole
from clog.storage.format.edit_json import (
    info_from_json,
    info_to_json,
    page_from_json,
    page_to_json,
    writer_from_json,
    writer_to_json,
)
from clog.storage.format.edits import Append, Edit, LogInfo, PageRef, WriterEntry
from clog.storage.format.features import DEAD_ROWS, unknown

WRITERS_MAX = 64
"""A head with more writers than this moves the older half to a page."""


@dataclass(frozen=True, slots=True)
class PartitionColumns:
    """Columns over the partitions: log start and end offset, then facts of the active segment.

    ``first_ms`` is the timestamp of the active segment's first record, ``created_ms`` the time of
    its first commit (both -1 while it is empty), ``jitter_ms`` what S7 takes off ``segment.ms``;
    ``changed`` the version of the last commit that changed the partition otherwise than by
    appending or sealing.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]
    base: tuple[int, ...]
    bytes: tuple[int, ...]
    chunks: tuple[int, ...]
    first_ms: tuple[int, ...]
    created_ms: tuple[int, ...]
    jitter_ms: tuple[int, ...]
    changed: tuple[int, ...]


COLUMNS = tuple(PartitionColumns.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """The newest complete snapshot; ``size_bytes`` of its JSON is what the edits since outweigh."""

    version: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Head:
    """State that appends need. ``extra`` keeps fields of newer writers that are not known here."""

    log: LogInfo
    config: Mapping[str, str]
    config_epoch: int
    snapshot: SnapshotRef | None
    orphan_floor: int
    oldest_readable: int
    partitions: PartitionColumns
    writers: tuple[WriterEntry, ...] = ()
    older_writers: PageRef | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def first_head(edit: Edit) -> Head:
    """Returns the head of version 0."""
    if edit.create is None or edit != Edit(create=edit.create, config=edit.config):
        raise CorruptionError("version 0 must create a log and do nothing else")
    zero = (0,) * edit.create.partitions
    none = (NONE,) * edit.create.partitions
    columns = PartitionColumns(zero, zero, zero, zero, zero, none, none, zero, zero)
    return Head(edit.create, dict(edit.config or {}), 0, None, 0, 0, columns)


def advance(head: Head, edit: Edit, *, version: int, time_ms: int) -> Head:
    """Returns the head after ``edit``; ``head.snapshot`` stays: it is the committer's to announce.

    Raises:
        CorruptionError: the edit contradicts the head: a chunk that does not begin at the end
            offset, a partition that does not exist.
    """
    _check_named(head, edit)
    columns = {name: list(getattr(head.partitions, name)) for name in COLUMNS}
    for p, offset in edit.start.items():
        if offset > columns["end"][p]:
            raise CorruptionError(
                f"partition {p}: start {offset} is beyond the end offset {columns['end'][p]}"
            )
        columns["start"][p] = max(columns["start"][p], offset)
    for p, jitter_ms in edit.seal:
        _new_segment(columns, p, columns["end"][p], jitter_ms)
    for p, base in edit.drop.items():
        if base > columns["start"][p]:
            raise CorruptionError(
                f"partition {p}: segments below {base} are dropped, but its log start offset is"
                f" {columns['start'][p]}"
            )
    log = _with_features(head.log, edit)
    if edit.dead and DEAD_ROWS not in log.features.read:
        raise CorruptionError(f"an edit marks dead rows, but the log lacks feature {DEAD_ROWS!r}")
    for r in edit.replace:
        active = columns["base"][r.partition]
        if r.next > active and (r.base < active or r.segments is not None):
            raise CorruptionError(
                f"partition {r.partition}: a replacement of [{r.base}, {r.next}) changes sealed"
                f" segments and the active one, which begins at {active}"
            )
        if r.base >= active:
            columns["chunks"][r.partition] += len(r.chunks) - len(r.sources)
    for p in _changed(columns, edit):
        columns["changed"][p] = version
    if edit.add is not None:
        _add(columns, edit.add, time_ms)
    return replace(
        head,
        log=log,
        config=head.config if edit.config is None else dict(edit.config),
        config_epoch=head.config_epoch if edit.config is None else version,
        orphan_floor=head.orphan_floor if edit.orphan_floor is None else edit.orphan_floor,
        oldest_readable=_or(edit.oldest_readable, head.oldest_readable),
        partitions=PartitionColumns(**{name: tuple(column) for name, column in columns.items()}),
        writers=_with_writers(head, edit),
        older_writers=edit.older_writers or head.older_writers,
    )


def check_readable(info: LogInfo, *, where: str) -> None:
    """Raises if readers must know a feature that this clog does not.

    Raises:
        UnsupportedFormatError: there is one.
    """
    if names := unknown(info.features.read):
        raise UnsupportedFormatError(
            f"{where} has the features {names}, which this clog does not know; upgrade"
            " clog: pip install --upgrade pyspark-clog"
        )


def check_writable(info: LogInfo, *, where: str) -> None:
    """Raises if writers must know a feature that this clog does not; to delete is to write.

    Raises:
        UnsupportedFormatError: there is one.
    """
    if names := unknown((*info.features.read, *info.features.write)):
        raise UnsupportedFormatError(
            f"{where} has the features {names}, which this clog can read but not write;"
            " upgrade clog: pip install --upgrade pyspark-clog"
        )


def _check_named(head: Head, edit: Edit) -> None:
    count = head.log.partitions
    if unknown := sorted(p for p in edit.partitions() if not 0 <= p < count):
        raise CorruptionError(f"an edit names partitions {unknown} of a log that has {count}")
    if edit.create is not None:
        raise CorruptionError("an edit creates a log that already exists")


def _with_features(log: LogInfo, edit: Edit) -> LogInfo:
    if edit.features is None:
        return log
    return replace(log, features=log.features.with_added(edit.features))


def _changed(columns: dict[str, list[int]], edit: Edit) -> Collection[int]:
    if not edit.reset_times:
        return edit.changed_partitions()
    if any(columns["chunks"]):
        raise CorruptionError("times are reset beside an active segment that is not empty")
    return range(len(columns["chunks"]))


def _or(number: int | None, otherwise: int) -> int:
    return otherwise if number is None else number


def _new_segment(columns: dict[str, list[int]], p: int, base: int, jitter_ms: int) -> None:
    if not columns["chunks"][p]:
        raise CorruptionError(f"partition {p}: an edit seals the active segment, which is empty")
    columns["base"][p] = base
    columns["bytes"][p] = columns["chunks"][p] = 0
    columns["first_ms"][p] = columns["created_ms"][p] = NONE
    columns["jitter_ms"][p] = jitter_ms


def _add(columns: dict[str, list[int]], add: Append, time_ms: int) -> None:
    rolls = {(p, base): jitter_ms for p, base, jitter_ms in add.rolls}
    end, size, count = columns["end"], columns["bytes"], columns["chunks"]
    first_ms, created_ms = columns["first_ms"], columns["created_ms"]
    for p, chunk in add.chunks:
        if chunk.base != end[p] or chunk.next != chunk.base + chunk.rows or chunk.rows <= 0:
            raise CorruptionError(
                f"partition {p}: a chunk of {chunk.rows} rows at [{chunk.base}, {chunk.next})"
                f" is appended at end offset {end[p]}"
            )
        if (jitter_ms := rolls.pop((p, chunk.base), None)) is not None:
            _new_segment(columns, p, chunk.base, jitter_ms)
        end[p] = chunk.next
        size[p] += chunk.size_bytes
        count[p] += 1
        if created_ms[p] == NONE:
            first_ms[p], created_ms[p] = chunk.first_timestamp_ms, time_ms
    if rolls:
        raise CorruptionError(f"rolls name chunks that do not exist: {sorted(rolls)}")


def _with_writers(head: Head, edit: Edit) -> tuple[WriterEntry, ...]:
    writers = head.writers
    if edit.older_writers is not None:
        # The page holds all that were here but the younger half (commit.page_out).
        writers = writers[len(writers) // 2 :]
    for by in edit.writers:
        kept = tuple(w for w in writers if w.key != by.entry.key)
        writers = (*kept, by.entry)
    return writers


_KNOWN = {f for f in Head.__dataclass_fields__ if f != "extra"}


def head_to_json(head: Head) -> dict[str, Any]:
    """Returns the head as in commits and snapshots."""
    snapshot = head.snapshot
    return {
        **head.extra,
        "log": info_to_json(head.log),
        "config": dict(head.config),
        "config_epoch": head.config_epoch,
        "snapshot": snapshot and {"version": snapshot.version, "bytes": snapshot.size_bytes},
        "orphan_floor": head.orphan_floor,
        "oldest_readable": head.oldest_readable,
        "partitions": {name: list(getattr(head.partitions, name)) for name in COLUMNS},
        "writers": [writer_to_json(w) for w in head.writers],
        "older_writers": head.older_writers and page_to_json(head.older_writers),
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
        columns = {name: tuple(whole(n) for n in value["partitions"][name]) for name in COLUMNS}
        if any(len(column) != info.partitions for column in columns.values()):
            raise ValueError(f"columns that do not have {info.partitions} partitions")
        snapshot = value["snapshot"]
        return Head(
            log=info,
            config={str(name): str(text) for name, text in value["config"].items()},
            config_epoch=whole(value["config_epoch"]),
            snapshot=None
            if snapshot is None
            else SnapshotRef(whole(snapshot["version"]), whole(snapshot["bytes"])),
            orphan_floor=whole(value["orphan_floor"]),
            oldest_readable=whole(value["oldest_readable"]),
            partitions=PartitionColumns(**columns),
            writers=tuple(writer_from_json(w) for w in value["writers"]),
            older_writers=page_from_json(value["older_writers"], where),
            extra={name: v for name, v in value.items() if name not in _KNOWN},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise CorruptionError(f"the head in {where} violates the format: {e}") from e
