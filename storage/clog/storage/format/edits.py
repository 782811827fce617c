"""Edits: changes of a log as values, and their JSON (FORMAT.md §3.2, §3.3).

An edit says what changed and decides nothing: `head.advance` and `manifest.apply` apply it. Some of
its parts stand in heads, snapshots and pages, too, in the same JSON: what a log is, the entries of
writers and the references to pages of older ones (FORMAT.md §3.4), chunks, pins (§14), the rules of
texts (§19).

A *pin* says which version of the log a version of a published view needs, and those after it up to
the next pin. The head has the pins of each format, so whoever expires versions decides from the
head alone.

What is read is checked as far as the edit alone tells: types, columns of one length, paths under
the root, rows inside their objects. Whether it fits the log is for those who apply it. Functions
that read a part raise KeyError, TypeError, ValueError, AttributeError or IndexError; who reads the
document names these.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from clog.storage.errors import CorruptionError
from clog.storage.format.chunks import (
    NONE,
    Chunk,
    DeadRows,
    MaskMark,
    ObjectRef,
    checked,
    checksum_from,
    columns_of,
    dead_rows_from_json,
    dead_rows_to_json,
    horizon_from,
    mask_from_json,
    mask_to_json,
    natural,
    object_from_json,
    object_json,
    partition_of,
    rows_of,
    whole,
)
from clog.storage.format.documents import check_inside
from clog.storage.format.features import NO_FEATURES, PUBLICATIONS, FeatureNames
from clog.storage.format.schema import (
    LogSchema,
    next_schema_from_json,
    schema_from_json,
    schema_to_json,
)
from clog.storage.format.transactions import (
    PARTICIPANT,
    TRANSACTION,
    Ending,
    Joining,
    TransactionState,
    ending_from_json,
    ending_to_json,
    joining_from_json,
    joining_to_json,
    state_from_json,
    state_to_json,
)

_PARTITIONS_MAX = 1 << 16
"""A head has columns of so many entries. Part of the format; `Log.create` allows those tested."""
WRITER_ID_BYTES_MAX = 1024
"""The head repeats the ids of recent writers in each commit. Part of the format."""
WRITER_LEVEL_MAX = 8
"""Levels of pages of older writers, above the lowest. Part of the format."""
CHUNK_COLUMNS = (
    *("row", "rows", "base", "next", "bytes", "first_ms", "max_ms", "tombstones"),
    *("version", "append_time_ms", "horizon_min", "horizon_max", "horizon", "up_to"),
)
"""A chunk in full, in the order of the fields of `Chunk` after its object."""
_ADD_COLUMNS = ("p", "rows", "base", "bytes", "first_ms", "max_ms", "tombstones")


@dataclass(frozen=True, slots=True)
class LogInfo:
    """What a log is; of it the features grow and the schema evolves. ``seed`` (16 hex digits) is
    for the hashes that it keeps (S19); ``schema`` is None for a log of bytes.
    """

    log_id: str
    created_ms: int
    partitions: int
    partitioner: str
    seed: str
    features: FeatureNames = NO_FEATURES
    schema: LogSchema | None = None

    @property
    def key_seed(self) -> int:
        """The seed as a number."""
        return int(self.seed, 16)


@dataclass(frozen=True, slots=True)
class WriterEntry:
    """The last thing a writer committed. ``kind``: producer, stream, txn or transaction, whose
    entry has the state of its id (FORMAT.md §3.4, §11).
    """

    writer_id: str
    kind: str
    query_id: str | None
    sequence: int
    content: str | None
    version: int = NONE
    transaction: TransactionState | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The kind and the id: what tells one writer from another."""
        return self.kind, self.writer_id


@dataclass(frozen=True, slots=True)
class AppendedBy:
    """Who appended the objects ``[first, next)`` of an edit's `Append`, counted from 0: one commit
    may hold the appends of several writers.
    """

    entry: WriterEntry
    first: int = 0
    next: int = 0


@dataclass(frozen=True, slots=True)
class PageRef:
    """A page of older writers; ``count`` entries are in it, or below it where it has a level above
    0 (`writers`).
    """

    path: str
    size_bytes: int
    count: int
    level: int = 0


@dataclass(frozen=True, slots=True)
class PagedWriters:
    """Writers who left the head for pages, of which ``root`` is the new root: those at the places
    ``left`` of the head's list, the edit's own writers in it.
    """

    root: PageRef
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowTexts:
    """By which rules rows become the texts of a log of bytes (FORMAT.md §19).

    ``time_zone`` is that of encoding 1; ``keys`` are the names in the JSON of keys, in their order
    and as they were spelled first, a tuple for each set of columns that ever made a key.
    """

    encoding: int
    time_zone: str | None = None
    keys: tuple[tuple[str, ...], ...] = ()

    def spelled(self, names: Sequence[str]) -> tuple[str, ...] | None:
        """Returns the names of a key's JSON as they are kept, of those that are the same but for
        case and order; None where there are none.
        """
        wanted = sorted(map(str.lower, names))
        return next((own for own in self.keys if sorted(map(str.lower, own)) == wanted), None)


@dataclass(frozen=True, slots=True)
class Pin:
    """``version`` of the log is needed by versions of a view from ``view`` on; committed at
    ``time_ms``.
    """

    view: int
    version: int
    time_ms: int


Pins = Mapping[str, tuple[Pin, ...]]
"""By format of the view."""


@dataclass(frozen=True, slots=True)
class Append:
    """Fresh chunks as (partition, chunk), object by object, in offset order.

    ``rolls`` are (partition, base, jitter_ms): the active segment is sealed before that chunk.
    """

    chunks: tuple[tuple[int, Chunk], ...]
    rolls: tuple[tuple[int, int, int], ...] = ()

    def by_object(self) -> list[list[tuple[int, Chunk]]]:
        """Returns the chunks of each object, in the order of the objects."""
        grouped = groupby(self.chunks, lambda pair: pair[1].object)
        return [list(pairs) for _, pairs in grouped]


@dataclass(frozen=True, slots=True)
class Replacement:
    """``chunks`` in place of the ``sources`` (identities) in ``[base, next)`` of a partition.

    ``segments`` (base, next, created_ms), when given, tile the range anew.
    """

    partition: int
    base: int
    next: int
    sources: tuple[tuple[str, int], ...]
    chunks: tuple[Chunk, ...]
    segments: tuple[tuple[int, int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class ChunkHorizon:
    """A delete horizon for tombstones below ``up_to`` of a chunk that was left as it is (S23)."""

    partition: int
    object_path: str
    first_row: int
    horizon_ms: int
    up_to: int

    @property
    def place(self) -> tuple[int, tuple[str, int]]:
        """The partition and the chunk's identity."""
        return self.partition, (self.object_path, self.first_row)


@dataclass(frozen=True, slots=True)
class DeadMark:
    """The dead rows of a chunk, in place of those it had before, which are among them."""

    partition: int
    object_path: str
    first_row: int
    dead: DeadRows

    @property
    def place(self) -> tuple[int, tuple[str, int]]:
        """The partition and the chunk's identity."""
        return self.partition, (self.object_path, self.first_row)


@dataclass(frozen=True, slots=True)
class Uncleanable:
    """Why a partition is not cleaned for now (S28)."""

    reason: str
    time_ms: int
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One change. Absent parts are None or empty.

    They are applied in the order of the table in FORMAT.md §3.2, which is that of the fields.
    """

    create: LogInfo | None = None
    features: FeatureNames | None = None
    config: Mapping[str, str] | None = None
    schema: LogSchema | None = None
    start: Mapping[int, int] = field(default_factory=dict)
    seal: tuple[tuple[int, int], ...] = ()
    drop: Mapping[int, int] = field(default_factory=dict)
    replace: tuple[Replacement, ...] = ()
    horizons: tuple[ChunkHorizon, ...] = ()
    dead: tuple[DeadMark, ...] = ()
    marked: tuple[tuple[int, int, int], ...] = ()
    unmarked: tuple[tuple[int, int], ...] = ()
    ends: tuple[Ending, ...] = ()
    unended: tuple[Joining, ...] = ()
    masks: tuple[MaskMark, ...] = ()
    covered: Mapping[int, int] = field(default_factory=dict)
    first_dirty: Mapping[int, int] = field(default_factory=dict)
    tombstones_removed: Mapping[int, int] = field(default_factory=dict)
    uncleanable: Mapping[int, Uncleanable | None] = field(default_factory=dict)
    add: Append | None = None
    writers: tuple[AppendedBy, ...] = ()
    older_writers: PagedWriters | None = None
    orphan_floor: int | None = None
    oldest_readable: int | None = None
    forget: tuple[str, ...] = ()
    pins: Pins = field(default_factory=dict)
    row_texts: RowTexts | None = None
    reset_times: bool = False

    def partitions(self) -> set[int]:
        """Returns every partition that the edit names."""
        named = self.changed_partitions()
        named.update(self.first_dirty, self.tombstones_removed, self.uncleanable, self.covered)
        named.update(mark.partition for mark in self.masks)
        named.update(p for p, _ in self.seal)
        named.update(p for p, *_ in (*self.marked, *self.unmarked))
        if self.add is not None:
            named.update(p for p, _ in self.add.chunks)
        return named

    def names_undecided(self) -> bool:
        """Tells whether the edit is about undecided records or markers."""
        return bool(self.ends or self.unended or self.marked or self.unmarked)

    def first_of(self, joining: Joining) -> dict[int, int]:
        """Returns the first offset, by partition, of the records that a transaction appends."""
        first: dict[int, int] = {}
        for p, chunk in self.chunks_of(joining):
            first.setdefault(p, chunk.base)
        return first

    def chunks_of(self, part: AppendedBy | Joining) -> list[tuple[int, Chunk]]:
        """Returns those chunks that it appends that are a writer's, or a transaction's."""
        return [pair for pairs in self.by_object()[part.first : part.next] for pair in pairs]

    def by_object(self) -> list[list[tuple[int, Chunk]]]:
        """Returns the chunks that it appends, object by object."""
        return [] if self.add is None else self.add.by_object()

    def changed_partitions(self) -> set[int]:
        """Returns the partitions changed otherwise than by appending or sealing: what voids a
        planned clean.
        """
        return {*self.start, *self.first_dirty, *self._cleaned_partitions()}

    def rewritten_partitions(self) -> set[int]:
        """Returns the partitions whose sealed segments change: those that must not lie in pages to
        apply it.
        """
        masked = (mark.partition for mark in self.masks)
        unmasked = (p for p, offset in self.covered.items() if offset == 0)
        return self._cleaned_partitions().union(masked, unmasked)

    def _cleaned_partitions(self) -> set[int]:
        cleaned = {*self.drop}
        cleaned.update(r.partition for r in self.replace)
        cleaned.update(h.partition for h in self.horizons)
        cleaned.update(mark.partition for mark in self.dead)
        return cleaned


def edit_to_json(edit: Edit) -> dict[str, Any]:
    """Returns the edit's JSON; empty parts are left out."""
    parts = {
        "create": edit.create and info_to_json(edit.create),
        "features": edit.features and _features_to_json(edit.features),
        "config": None if edit.config is None else dict(edit.config),
        "schema": edit.schema and schema_to_json(edit.schema),
        "start": _by_partition(edit.start),
        "seal": [list(s) for s in edit.seal] or None,
        "drop": _by_partition(edit.drop),
        "replace": [_replacement_to_json(r) for r in edit.replace] or None,
        "horizons": [_horizon_to_json(h) for h in edit.horizons] or None,
        "dead": [_mark_to_json(mark) for mark in edit.dead] or None,
        "marked": [list(mark) for mark in edit.marked] or None,
        "unmarked": [list(mark) for mark in edit.unmarked] or None,
        "ends": [ending_to_json(ending) for ending in edit.ends] or None,
        "unended": [joining_to_json(joining) for joining in edit.unended] or None,
        "masks": [_mask_mark_to_json(mark) for mark in edit.masks] or None,
        "covered": _by_partition(edit.covered),
        "first_dirty": _by_partition(edit.first_dirty),
        "tombstones_removed": _by_partition(edit.tombstones_removed),
        "uncleanable": {str(p): uncleanable_json(u) for p, u in edit.uncleanable.items()} or None,
        "add": edit.add and _append_to_json(edit.add),
        "writers": [_appended_by_to_json(by) for by in edit.writers] or None,
        "older_writers": edit.older_writers and _paged_to_json(edit.older_writers),
        "orphan_floor": edit.orphan_floor,
        "oldest_readable": edit.oldest_readable,
        "forget": list(edit.forget) or None,
        "pins": pins_to_json(edit.pins) or None,
        "row_texts": edit.row_texts and row_texts_to_json(edit.row_texts),
        "reset_times": edit.reset_times or None,
    }
    return {name: part for name, part in parts.items() if part is not None}


def edit_from_json(value: dict[str, Any], *, version: int) -> Edit:
    """Returns the edit of commit ``version``.

    Raises:
        CorruptionError: the JSON violates the format.
    """
    where = f"the edit of version {version}"
    try:
        objects = len(value["add"]["objects"]) if "add" in value else 0
        return Edit(
            create=info_from_json(value["create"]) if "create" in value else None,
            features=_features_from_json(value["features"]) if "features" in value else None,
            config=texts(value["config"]) if "config" in value else None,
            schema=next_schema_from_json(value["schema"]) if "schema" in value else None,
            start=_offsets(value, "start"),
            drop=_offsets(value, "drop"),
            seal=tuple((natural(p), natural(jitter)) for p, jitter in value.get("seal", ())),
            replace=tuple(
                _replacement_from_json(r, version, where) for r in value.get("replace", ())
            ),
            horizons=tuple(_horizon_from_json(h, where) for h in value.get("horizons", ())),
            dead=tuple(_mark_from_json(mark, where) for mark in value.get("dead", ())),
            marked=tuple(
                (natural(p), natural(o), natural(ms)) for p, o, ms in value.get("marked", ())
            ),
            unmarked=tuple((natural(p), natural(o)) for p, o in value.get("unmarked", ())),
            ends=tuple(ending_from_json(ending) for ending in value.get("ends", ())),
            unended=tuple(joining_from_json(j, objects) for j in value.get("unended", ())),
            masks=tuple(_mask_mark_from_json(mark, where) for mark in value.get("masks", ())),
            covered=_offsets(value, "covered"),
            first_dirty=_offsets(value, "first_dirty"),
            tombstones_removed=_offsets(value, "tombstones_removed"),
            uncleanable={
                partition_of(p): uncleanable_from_json(u)
                for p, u in value.get("uncleanable", {}).items()
            },
            add=_append_from_json(value["add"], version, where) if "add" in value else None,
            writers=tuple(_appended_by_from_json(value, version, objects)),
            older_writers=_paged_from_json(value["older_writers"], where)
            if "older_writers" in value
            else None,
            orphan_floor=_version(value, "orphan_floor"),
            oldest_readable=_version(value, "oldest_readable"),
            forget=tuple(check_inside(path, where=where) for path in value.get("forget", ())),
            pins=pins_from_json(value.get("pins", {})),
            row_texts=row_texts_from_json(value.get("row_texts")),
            reset_times=_is_said(value, "reset_times"),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        raise CorruptionError(f"{where} violates the format: {type(e).__name__}: {e}") from e


def info_to_json(info: LogInfo) -> dict[str, Any]:
    """Returns what a log is, as in ``create`` and in each head."""
    return {
        "log_id": info.log_id,
        "created_ms": info.created_ms,
        "partitions": info.partitions,
        "partitioner": info.partitioner,
        "seed": info.seed,
        "features": _features_to_json(info.features),
        "schema": schema_to_json(info.schema),
    }


def info_from_json(value: dict[str, Any]) -> LogInfo:
    """Reads what `info_to_json` made; `edit_from_json` and `head.head_from_json` name the
    errors.
    """
    return LogInfo(
        log_id=checksum_from(value["log_id"]),
        created_ms=natural(value["created_ms"]),
        partitions=_partitions(value["partitions"]),
        partitioner=str(value["partitioner"]),
        seed=_seed(value["seed"]),
        features=_features_from_json(value["features"]),
        schema=schema_from_json(value["schema"]),
    )


def _features_to_json(names: FeatureNames) -> dict[str, list[str]]:
    return {"read": list(names.read), "write": list(names.write)}


def _features_from_json(value: dict[str, Any]) -> FeatureNames:
    read, write = (value[which] for which in ("read", "write"))
    if not all(isinstance(names, list) for names in (read, write)):
        raise TypeError("features that are no lists")
    if not all(isinstance(name, str) for name in read + write):
        raise TypeError("features are names")
    if len({*read, *write}) < len(read + write):
        raise ValueError(f"a feature is named twice: {read}, {write}")
    return FeatureNames(tuple(read), tuple(write))


def _partitions(value: Any) -> int:
    if not 1 <= whole(value) <= _PARTITIONS_MAX:
        raise ValueError(f"{value} partitions; allowed: 1 to {_PARTITIONS_MAX}")
    return int(value)


def _seed(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{16}", value):
        raise ValueError(f"a seed that is not 16 hex digits: {value!r}")
    return value


def texts(value: dict[str, Any]) -> dict[str, str]:
    """Returns configs, which are text by name."""
    if not all(isinstance(text, str) for text in value.values()):
        raise TypeError("config values must be text")
    return dict(value)


def _by_partition(offsets: Mapping[int, int]) -> dict[str, int] | None:
    return {str(p): offset for p, offset in sorted(offsets.items())} or None


def _offsets(value: dict[str, Any], name: str) -> dict[int, int]:
    return {partition_of(p): natural(offset) for p, offset in value.get(name, {}).items()}


def _version(value: dict[str, Any], name: str) -> int | None:
    return natural(value[name]) if name in value else None


def _is_said(value: dict[str, Any], name: str) -> bool:
    if name in value and value[name] is not True:
        raise ValueError(f"{name} is {value[name]!r:.80}; it is true, or absent")
    return name in value


def _replacement_to_json(r: Replacement) -> dict[str, Any]:
    objects = []
    for ref, chunks in groupby(r.chunks, lambda chunk: chunk.object):
        columns = columns_of(map(chunk_row, chunks), CHUNK_COLUMNS)
        objects.append({**object_json(ref), "chunks": columns})
    out: dict[str, Any] = {
        "p": r.partition,
        "base": r.base,
        "next": r.next,
        "sources": [list(s) for s in r.sources],
        "objects": objects,
    }
    if r.segments is not None:
        out["segments"] = [list(s) for s in r.segments]
    return out


def _replacement_from_json(value: dict[str, Any], version: int, where: str) -> Replacement:
    chunks: list[Chunk] = []
    for entry in value["objects"]:
        ref = object_from_json(entry, where=where)
        rows = rows_of(entry["chunks"], CHUNK_COLUMNS)
        chunks.extend(chunk_of(ref, row) for row in rows)
    if later := [chunk.version for chunk in chunks if chunk.version > version]:
        raise ValueError(f"rows that came in by versions {later}")
    segments = value.get("segments")
    return Replacement(
        partition=natural(value["p"]),
        base=natural(value["base"]),
        next=natural(value["next"]),
        sources=tuple((check_inside(o, where=where), natural(row)) for o, row in value["sources"]),
        chunks=tuple(chunks),
        segments=None if segments is None else tuple(_tile(*numbers) for numbers in segments),
    )


def _tile(base: object, end: object, created_ms: object) -> tuple[int, int, int]:
    if whole(created_ms) < NONE:
        raise ValueError(f"a segment that was created at {created_ms} ms")
    return natural(base), natural(end), whole(created_ms)


def chunk_row(c: Chunk) -> tuple[int, ...]:
    """Returns the chunk as a row of `CHUNK_COLUMNS`."""
    return (
        *(c.first_row, c.rows, c.base, c.next, c.size_bytes, c.first_timestamp_ms),
        *(c.max_timestamp_ms, c.tombstones, c.version, c.append_time_ms),
        *(c.horizon_min, c.horizon_max, c.horizon, c.up_to),
    )


def chunk_of(ref: ObjectRef, row: Sequence[Any]) -> Chunk:
    """Returns the chunk of a row of `CHUNK_COLUMNS`."""
    *numbers, horizon_ms, up_to = row
    made = (*map(whole, numbers), horizon_from(horizon_ms), whole(up_to))
    return checked(Chunk(ref, *made))  # type: ignore[arg-type] # the rest but `dead`


def _horizon_to_json(h: ChunkHorizon) -> list[Any]:
    return [h.partition, h.object_path, h.first_row, h.horizon_ms, h.up_to]


def _horizon_from_json(value: list[Any], where: str) -> ChunkHorizon:
    p, path, row, horizon_ms, up_to = value
    path = check_inside(path, where=where)
    return ChunkHorizon(whole(p), path, whole(row), horizon_from(horizon_ms), whole(up_to))


def _mark_to_json(mark: DeadMark) -> list[Any]:
    return [mark.partition, mark.object_path, mark.first_row, dead_rows_to_json(mark.dead)]


def _mark_from_json(value: list[Any], where: str) -> DeadMark:
    p, path, row, dead = value
    path = check_inside(path, where=where)
    return DeadMark(whole(p), path, whole(row), dead_rows_from_json(dead, where=where))


def _mask_mark_to_json(mark: MaskMark) -> list[Any]:
    return [mark.partition, mark.object_path, mark.first_row, mask_to_json(mark.mask)]


def _mask_mark_from_json(value: list[Any], where: str) -> MaskMark:
    p, path, row, mask = value
    path = check_inside(path, where=where)
    return MaskMark(whole(p), path, whole(row), mask_from_json(mask, where=where))


def uncleanable_json(given: Uncleanable | None) -> dict[str, Any] | None:
    """Returns a mark, or null where it is cleared."""
    if given is None:
        return None
    return {"reason": given.reason, "time_ms": given.time_ms, "attempts": given.attempts}


def uncleanable_from_json(value: dict[str, Any] | None) -> Uncleanable | None:
    """Reads what `uncleanable_json` made."""
    if value is None:
        return None
    return Uncleanable(str(value["reason"]), whole(value["time_ms"]), natural(value["attempts"]))


def _append_to_json(add: Append) -> dict[str, Any]:
    objects = []
    for pairs in add.by_object():
        rows = [
            (
                *(p, c.rows, c.base, c.size_bytes),
                *(c.first_timestamp_ms, c.max_timestamp_ms, c.tombstones),
            )
            for p, c in pairs
        ]
        ref = pairs[0][1].object
        objects.append({**object_json(ref), "chunks": columns_of(rows, _ADD_COLUMNS)})
    out: dict[str, Any] = {"objects": objects, "rolls": [list(roll) for roll in add.rolls]}
    if add.chunks and (append_time_ms := add.chunks[0][1].append_time_ms) != NONE:
        out["append_time_ms"] = append_time_ms
    return out


def _append_from_json(value: dict[str, Any], version: int, where: str) -> Append:
    append_time_ms = whole(value.get("append_time_ms", NONE))
    chunks = []
    for entry in value["objects"]:
        ref = object_from_json(entry, where=where)
        first_row = 0
        for row in rows_of(entry["chunks"], _ADD_COLUMNS):
            p, rows, base, size, first_ms, max_ms, tombstones = map(whole, row)
            sizes = (first_row, rows, base, base + rows, size)
            chunk = Chunk(ref, *sizes, first_ms, max_ms, tombstones, version, append_time_ms)
            if append_time_ms != NONE and not first_ms == max_ms == append_time_ms:
                raise ValueError(f"times {first_ms} and {max_ms} of an append at {append_time_ms}")
            chunks.append((p, checked(chunk)))
            first_row += rows
        if first_row != ref.rows:
            raise CorruptionError(
                f"{where}: chunks of {ref.path} have {first_row} rows, the object {ref.rows}"
            )
    rolls = tuple((natural(p), natural(base), natural(ms)) for p, base, ms in value["rolls"])
    return Append(tuple(chunks), rolls)


def writer_to_json(entry: WriterEntry) -> list[Any]:
    """Returns a writer's entry as in the head."""
    return [*_named(entry), entry.version, *_state_json(entry)]


def writer_from_json(value: list[Any]) -> WriterEntry:
    """Reads what `writer_to_json` made; what an entry of another kind has more is ignored."""
    writer_id, kind, query_id, sequence, content, version, *more = value
    if not all(isinstance(text, str) for text in (writer_id, kind)):
        raise TypeError("a writer's id and kind are text")
    if not 1 <= len(writer_id.encode()) <= WRITER_ID_BYTES_MAX:
        raise ValueError(f"a writer's id has {len(writer_id.encode())} bytes")
    if not all(text is None or isinstance(text, str) for text in (query_id, content)):
        raise TypeError("a writer's query id and content are text, or null")
    state = _state_from_json(kind, more)
    named = (writer_id, kind, query_id, whole(sequence), content)
    return WriterEntry(*named, natural(version), state)


def _appended_by_to_json(by: AppendedBy) -> list[Any]:
    return [*_named(by.entry), by.first, by.next, *_state_json(by.entry)]


def _appended_by_from_json(
    value: dict[str, Any], version: int, objects: int
) -> Iterator[AppendedBy]:
    for w in value.get("writers", ()):
        named, (first, end), state = w[:5], w[5:7], w[7:]
        if not 0 <= whole(first) <= whole(end) <= objects:
            raise ValueError(f"objects [{first}, {end}) of {objects} have a writer")
        yield AppendedBy(writer_from_json([*named, version, *state]), first, end)


def _named(entry: WriterEntry) -> list[Any]:
    return [entry.writer_id, entry.kind, entry.query_id, entry.sequence, entry.content]


def _state_json(entry: WriterEntry) -> list[Any]:
    state = entry.transaction
    if state is None:
        return []
    if entry.kind == PARTICIPANT:
        forced = {"forced": True} if state.forced else {}
        return [{"epoch": state.epoch, "number": state.number, **forced}]
    return [state_to_json(state)]


def _state_from_json(kind: str, more: list[Any]) -> TransactionState | None:
    if kind == PARTICIPANT:
        epoch, number = whole(more[0]["epoch"]), whole(more[0]["number"])
        return TransactionState(epoch, number, forced=more[0].get("forced") is True)
    return state_from_json(more[0], where="a writer's entry") if kind == TRANSACTION else None


def page_to_json(page: PageRef) -> dict[str, Any]:
    """Returns a reference to the root of the pages of older writers."""
    return {
        "path": page.path,
        "bytes": page.size_bytes,
        "count": page.count,
        "level": page.level,
    }


def page_from_json(value: dict[str, Any], where: str) -> PageRef:
    """Reads what `page_to_json` made."""
    path, level = check_inside(value["path"], where=where), whole(value["level"])
    if not 0 <= level <= WRITER_LEVEL_MAX:
        raise ValueError(f"pages of level {level}; allowed: 0 to {WRITER_LEVEL_MAX}")
    return PageRef(path, natural(value["bytes"]), natural(value["count"]), level)


def _paged_to_json(paged: PagedWriters) -> dict[str, Any]:
    return {**page_to_json(paged.root), "left": list(paged.left)}


def _paged_from_json(value: dict[str, Any], where: str) -> PagedWriters:
    root, left = page_from_json(value, where), tuple(map(natural, value["left"]))
    if not isinstance(value["left"], list) or list(left) != sorted({*left}):
        raise ValueError(f"places {list(left)}, which are not ascending")
    return PagedWriters(root, left)


def pins_to_json(pins: Pins) -> dict[str, Any]:
    """Returns the pins as in edits and heads."""
    return {
        name: [[pin.view, pin.version, pin.time_ms] for pin in some]
        for name, some in sorted(pins.items())
    }


def pins_from_json(value: Mapping[str, Sequence[Sequence[Any]]]) -> Pins:
    """Reads what `pins_to_json` made.

    Raises:
        ValueError, TypeError, AttributeError: it violates the format.
    """
    return {
        str(name): tuple(Pin(*_numbers(view, version, ms)) for view, version, ms in some)
        for name, some in value.items()
    }


def _numbers(*values: Any) -> tuple[int, ...]:
    numbers = tuple(map(whole, values))
    if min(numbers) < 0:
        raise ValueError(f"a pin of negative numbers: {list(numbers)}")
    return numbers


def pins_after(before: Pins, given: Pins, features: FeatureNames) -> Pins:
    """Returns the pins after an edit that gives these, in place of those of the same formats.

    Raises:
        CorruptionError: the log lacks the feature, or pins are not in order.
    """
    if not given:
        return before
    if PUBLICATIONS not in features:
        raise CorruptionError(f"an edit has pins, but the log lacks feature {PUBLICATIONS!r}")
    for name, pins in given.items():
        views = [pin.view for pin in pins]
        if views != sorted({*views}):
            raise CorruptionError(f"pins of {name!r} name views {views}, which do not ascend")
    return {name: pins for name, pins in {**before, **given}.items() if pins}


def lowest_pinned(pins: Pins) -> int | None:
    """Returns the lowest version that is pinned, None where none is."""
    return min((pin.version for some in pins.values() for pin in some), default=None)


def row_texts_to_json(texts: RowTexts) -> dict[str, Any]:
    """Returns the rules of texts, as in edits and heads."""
    zone = {} if texts.time_zone is None else {"time_zone": texts.time_zone}
    return {"encoding": texts.encoding, **zone, "keys": [list(names) for names in texts.keys]}


def row_texts_from_json(value: dict[str, Any] | None) -> RowTexts | None:
    """Reads what `row_texts_to_json` made; None where there is nothing.

    Raises:
        KeyError, TypeError, ValueError: it violates the format.
    """
    if value is None:
        return None
    zone = value.get("time_zone")
    keys = tuple(tuple(map(_name, _names(names))) for names in _names(value["keys"]))
    return RowTexts(natural(value["encoding"]), None if zone is None else _name(zone), keys)


def _names(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list of names")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no name")
    return value
