"""Edits: a change of a log as a value, and its JSON (FORMAT.md §3.2, §3.3).

An edit says what changed and decides nothing: `head.advance` and `manifest.apply` apply it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

from clog.storage.chunks import (
    NONE,
    Chunk,
    columns_of,
    object_from_json,
    object_json,
    rows_of,
    whole,
)
from clog.storage.errors import CorruptionError
from clog.storage.object_ref import ObjectRef
from clog.storage.paths import check_inside

ADD_COLUMNS = ("p", "rows", "base", "bytes", "first_ms", "max_ms", "tombstones")
CHUNK_COLUMNS = (
    *("row", "rows", "base", "next", "bytes", "first_ms", "max_ms", "tombstones"),
    *("version", "append_time_ms", "horizon_min", "horizon_max", "horizon", "up_to"),
)
"""A chunk in full, in the order of the fields of `Chunk` after its object."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LogInfo:
    """What never changes about a log. ``seed`` (16 hex digits) is secret to the log's own filters (S19)."""

    log_id: str
    created_ms: int
    partitions: int
    partitioner: str
    seed: str
    read_features: tuple[str, ...] = ()
    write_features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WriterEntry:
    """The last thing a writer committed (design: exactly once). ``kind``: producer, stream or txn."""

    writer_id: str
    kind: str
    query_id: str | None
    sequence: int
    content: str | None
    version: int = NONE


@dataclass(frozen=True, slots=True)
class PageRef:
    """A page of ``count`` older writers."""

    path: str
    size_bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class Append:
    """Fresh chunks as (partition, chunk), object by object, in offset order; ``rolls`` are (partition, base, jitter_ms)."""

    chunks: tuple[tuple[int, Chunk], ...]
    rolls: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Replacement:
    """``chunks`` in place of those with the identities ``sources`` in ``[base, next)`` of a partition.

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


@dataclass(frozen=True, slots=True)
class Uncleanable:
    """Why a partition is not cleaned for now (S28)."""

    reason: str
    time_ms: int
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One change. Absent parts are None or empty; the order of application is the order of the fields (FORMAT.md §3.2)."""

    create: LogInfo | None = None
    config: Mapping[str, str] | None = None
    start: Mapping[int, int] = field(default_factory=dict)
    seal: tuple[tuple[int, int], ...] = ()
    drop: Mapping[int, int] = field(default_factory=dict)
    replace: tuple[Replacement, ...] = ()
    horizons: tuple[ChunkHorizon, ...] = ()
    first_dirty: Mapping[int, int] = field(default_factory=dict)
    tombstones_removed: Mapping[int, int] = field(default_factory=dict)
    uncleanable: Mapping[int, Uncleanable | None] = field(default_factory=dict)
    add: Append | None = None
    writer: WriterEntry | None = None
    older_writers: PageRef | None = None
    orphan_floor: int | None = None
    oldest_readable: int | None = None
    forget: tuple[str, ...] = ()

    def partitions(self) -> set[int]:
        """Every partition that the edit names."""
        named = self.changed_partitions()
        named.update(self.first_dirty, self.tombstones_removed, self.uncleanable)
        named.update(p for p, _ in self.seal)
        if self.add is not None:
            named.update(p for p, _ in self.add.chunks)
        return named

    def changed_partitions(self) -> set[int]:
        """Partitions changed otherwise than by appending or sealing: what a planned replacement must not overlook."""
        changed = {*self.start, *self.drop, *self.first_dirty}
        changed.update(r.partition for r in self.replace)
        changed.update(h.partition for h in self.horizons)
        return changed


def edit_to_json(edit: Edit) -> dict[str, Any]:
    """The edit's JSON; empty parts are left out."""
    out: dict[str, Any] = {}
    if edit.create is not None:
        out["create"] = info_to_json(edit.create)
    if edit.config is not None:
        out["config"] = dict(edit.config)
    if edit.seal:
        out["seal"] = [list(s) for s in edit.seal]
    if edit.replace:
        out["replace"] = [_replacement_to_json(r) for r in edit.replace]
    if edit.horizons:
        out["horizons"] = [
            [h.partition, h.object_path, h.first_row, h.horizon_ms, h.up_to] for h in edit.horizons
        ]
    for name in ("start", "drop", "first_dirty", "tombstones_removed"):
        if mapping := getattr(edit, name):
            out[name] = {str(p): offset for p, offset in sorted(mapping.items())}
    if edit.uncleanable:
        out["uncleanable"] = {str(p): uncleanable_json(u) for p, u in edit.uncleanable.items()}
    if edit.add is not None:
        out["add"] = _append_to_json(edit.add)
    if edit.writer is not None:
        out["writer"] = writer_to_json(edit.writer)[:-1]
    if edit.older_writers is not None:
        out["older_writers"] = page_to_json(edit.older_writers)
    for name in ("orphan_floor", "oldest_readable"):
        if (number := getattr(edit, name)) is not None:
            out[name] = number
    if edit.forget:
        out["forget"] = list(edit.forget)
    return out


def edit_from_json(value: dict[str, Any], *, version: int) -> Edit:
    """The edit of commit ``version``.

    Raises:
        CorruptionError: the JSON contradicts the format.
    """
    where = f"the edit of version {version}"
    try:
        if "dead" in value:
            raise CorruptionError(f"{where} holds dead rows without the feature that announces them")
        return Edit(
            create=info_from_json(value["create"]) if "create" in value else None,
            config=_texts(value["config"]) if "config" in value else None,
            start=_offsets(value, "start"),
            drop=_offsets(value, "drop"),
            seal=tuple((whole(p), whole(jitter)) for p, jitter in value.get("seal", ())),
            replace=tuple(_replacement_from_json(r, where) for r in value.get("replace", ())),
            horizons=tuple(
                ChunkHorizon(whole(p), check_inside(o, where=where), whole(row), whole(ms), whole(to))
                for p, o, row, ms, to in value.get("horizons", ())
            ),
            first_dirty=_offsets(value, "first_dirty"),
            tombstones_removed=_offsets(value, "tombstones_removed"),
            uncleanable={
                int(p): uncleanable_from_json(u) for p, u in value.get("uncleanable", {}).items()
            },
            add=_append_from_json(value["add"], version, where) if "add" in value else None,
            writer=writer_from_json([*value["writer"], version]) if "writer" in value else None,
            older_writers=page_from_json(value.get("older_writers"), where),
            orphan_floor=_optional(value.get("orphan_floor")),
            oldest_readable=_optional(value.get("oldest_readable")),
            forget=tuple(check_inside(path, where=where) for path in value.get("forget", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        raise CorruptionError(f"{where} contradicts the format: {type(e).__name__}: {e}") from e


def info_to_json(info: LogInfo) -> dict[str, Any]:
    return {
        "log_id": info.log_id,
        "created_ms": info.created_ms,
        "partitions": info.partitions,
        "partitioner": info.partitioner,
        "seed": info.seed,
        "features": {"read": list(info.read_features), "write": list(info.write_features)},
        "schema": {"key": "binary", "value": "binary"},
    }


def info_from_json(value: dict[str, Any]) -> LogInfo:
    return LogInfo(
        log_id=str(value["log_id"]),
        created_ms=whole(value["created_ms"]),
        partitions=whole(value["partitions"]),
        partitioner=str(value["partitioner"]),
        seed=str(value["seed"]),
        read_features=tuple(str(f) for f in value["features"]["read"]),
        write_features=tuple(str(f) for f in value["features"]["write"]),
    )


def writer_to_json(entry: WriterEntry) -> list[Any]:
    return [
        *(entry.writer_id, entry.kind, entry.query_id),
        *(entry.sequence, entry.content, entry.version),
    ]


def writer_from_json(value: list[Any]) -> WriterEntry:
    writer_id, kind, query_id, sequence, content, version = value
    return WriterEntry(str(writer_id), str(kind), query_id, whole(sequence), content, whole(version))


def page_to_json(page: PageRef) -> dict[str, Any]:
    return {"path": page.path, "bytes": page.size_bytes, "count": page.count}


def page_from_json(value: dict[str, Any] | None, where: str) -> PageRef | None:
    if value is None:
        return None
    path = check_inside(value["path"], where=where)
    return PageRef(path, whole(value["bytes"]), whole(value["count"]))


def uncleanable_json(mark: Uncleanable | None) -> dict[str, Any] | None:
    if mark is None:
        return None
    return {"reason": mark.reason, "time_ms": mark.time_ms, "attempts": mark.attempts}


def uncleanable_from_json(value: dict[str, Any] | None) -> Uncleanable | None:
    if value is None:
        return None
    return Uncleanable(str(value["reason"]), whole(value["time_ms"]), whole(value["attempts"]))


def chunk_row(c: Chunk) -> tuple[int, ...]:
    """The chunk as a row of `CHUNK_COLUMNS`."""
    return (
        *(c.first_row, c.rows, c.base, c.next, c.size_bytes, c.first_timestamp_ms),
        *(c.max_timestamp_ms, c.tombstones, c.version, c.append_time_ms),
        *(c.horizon_min, c.horizon_max, c.horizon, c.up_to),
    )


def chunk_of(ref: ObjectRef, row: Sequence[Any]) -> Chunk:
    """The chunk of a row of `CHUNK_COLUMNS`."""
    numbers = [whole(number) for number in row]
    return Chunk(ref, *numbers)  # type: ignore[arg-type] # the rest of its fields but `dead`


def _by_object(chunks: Iterable[_T], key: Any) -> list[tuple[ObjectRef, list[_T]]]:
    return [(ref, list(group)) for ref, group in groupby(chunks, key=key)]


def _append_to_json(add: Append) -> dict[str, Any]:
    objects = []
    for ref, pairs in _by_object(add.chunks, lambda pair: pair[1].object):
        rows = [
            (p, c.rows, c.base, c.size_bytes, c.first_timestamp_ms, c.max_timestamp_ms, c.tombstones)
            for p, c in pairs
        ]
        objects.append({**object_json(ref), "chunks": columns_of(rows, ADD_COLUMNS)})
    out: dict[str, Any] = {"objects": objects, "rolls": [list(r) for r in add.rolls]}
    if add.chunks and (append_time_ms := add.chunks[0][1].append_time_ms) != NONE:
        out["append_time_ms"] = append_time_ms
    return out


def _append_from_json(value: dict[str, Any], version: int, where: str) -> Append:
    append_time_ms = whole(value.get("append_time_ms", NONE))
    chunks = []
    for entry in value["objects"]:
        ref = object_from_json(entry, where=where)
        first_row = 0
        for row in rows_of(entry["chunks"], ADD_COLUMNS):
            p, rows, base, size, first_ms, max_ms, tombstones = map(whole, row)
            sizes = (first_row, rows, base, base + rows, size)
            chunk = Chunk(ref, *sizes, first_ms, max_ms, tombstones, version, append_time_ms)
            chunks.append((p, chunk))
            first_row += rows
        _check_rows(ref, first_row, where)
    rolls = tuple((whole(p), whole(base), whole(ms)) for p, base, ms in value["rolls"])
    return Append(tuple(chunks), rolls)


def _replacement_to_json(r: Replacement) -> dict[str, Any]:
    objects = []
    for ref, chunks in _by_object(r.chunks, lambda chunk: chunk.object):
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


def _replacement_from_json(value: dict[str, Any], where: str) -> Replacement:
    chunks: list[Chunk] = []
    for entry in value["objects"]:
        ref = object_from_json(entry, where=where)
        rows = rows_of(entry["chunks"], CHUNK_COLUMNS)
        chunks.extend(_whole_chunk(ref, row, where) for row in rows)
    segments = value.get("segments")
    return Replacement(
        partition=whole(value["p"]),
        base=whole(value["base"]),
        next=whole(value["next"]),
        sources=tuple((check_inside(o, where=where), whole(row)) for o, row in value["sources"]),
        chunks=tuple(chunks),
        segments=None
        if segments is None
        else tuple((whole(base), whole(end), whole(ms)) for base, end, ms in segments),
    )


def _whole_chunk(ref: ObjectRef, row: Sequence[Any], where: str) -> Chunk:
    chunk = chunk_of(ref, row)
    last_row = chunk.first_row + chunk.rows
    if not (0 <= chunk.first_row < last_row <= ref.rows and chunk.rows <= chunk.next - chunk.base):
        raise CorruptionError(
            f"{where}: a chunk has rows [{chunk.first_row}, {last_row}) of the {ref.rows} of"
            f" {ref.path}, for offsets [{chunk.base}, {chunk.next})"
        )
    return chunk


def _check_rows(ref: ObjectRef, found: int, where: str) -> None:
    if found != ref.rows:
        raise CorruptionError(f"{where}: chunks of {ref.path} have {found} rows, the object {ref.rows}")


def _offsets(value: dict[str, Any], name: str) -> dict[int, int]:
    return {int(p): whole(offset) for p, offset in value.get(name, {}).items()}


def _texts(value: dict[str, Any]) -> dict[str, str]:
    if not all(isinstance(text, str) for text in value.values()):
        raise TypeError("config values must be text")
    return dict(value)


def _optional(value: object) -> int | None:
    return None if value is None else whole(value)
