"""Replacements (FORMAT.md §3.3), and what is released when chunks and bitmaps go (§6)."""

from typing import Any

from second_reader.documents import Json, columns, integer, need, safe_path
from second_reader.state import (
    CHUNK_FIELDS,
    Chunk,
    Partition,
    Segment,
    State,
    check_chunk,
    chunk_of,
    data_object,
)


def partition_at(state: State, number: Any) -> Partition:
    if isinstance(number, str):
        need(
            number.isascii() and number.isdecimal() and str(int(number)) == number,
            "2",
            f"no partition {number!r}",
        )
        number = int(number)
    place = integer(number, "2")
    need(place < len(state.partitions), "2", f"no partition {place}")
    return state.partitions[place]


def release(state: State, path: str, size: int) -> None:
    state.released.pop(path, None)
    state.released[path] = (size, state.version, state.time_ms)


def lose(state: State, chunk: Chunk) -> None:
    """The chunk leaves the manifest, and its bitmap with it (§5.4, §6)."""
    release(state, chunk.object.path, chunk.object.bytes)
    lose_bitmap(state, chunk)
    lose_mask(state, chunk, {})


def lose_bitmap(state: State, chunk: Chunk) -> None:
    if chunk.dead and "path" in chunk.dead:
        release(state, chunk.dead["path"], chunk.dead["bytes"])


def lose_mask(state: State, chunk: Chunk, new: Json) -> None:
    """The files of a chunk's mask that the new one lacks (§13)."""
    kept = {part.get("path") for part in new.values()}
    for part in (chunk.mask or {}).values():
        if "path" in part and part["path"] not in kept:
            release(state, part["path"], part["bytes"])


def replace(state: State, value: list[Json]) -> None:
    for replacement in value:
        _replace_one(state, replacement, partition_at(state, replacement.get("p")))


def _replace_one(state: State, body: Json, partition: Partition) -> None:
    base, end = integer(body.get("base"), "3.3"), integer(body.get("next"), "3.3")
    need(base < end, "3.3", "an empty range is replaced")
    for path, row in body["sources"]:
        safe_path(path)
        integer(row, "3.3")
    inside = [c for c in partition.chunks() if base <= c.base and c.next <= end]
    cut = [c for c in partition.chunks() if c.base < end and base < c.next]
    need(cut == inside, "3.3", "a replacement cuts a chunk")
    need(
        [list(c.name) for c in inside] == body.get("sources"),
        "3.3",
        "the sources are not the chunks there",
    )
    need(all(c.undecided is None for c in inside), "11.2", "an undecided chunk is replaced")
    active = partition.active
    sealed = partition.segments[:-1]
    in_active = base >= active.base
    if in_active:
        need(
            end <= partition.end and "segments" not in body,
            "3.3",
            "a replacement beyond the active segment",
        )
    else:
        need(
            end <= active.base and base >= sealed[0].base,
            "3.3",
            "a replacement beyond the sealed segments",
        )
    created = [chunk for each in body["objects"] for chunk in _replacing(each, state)]
    for segment in partition.segments:
        segment.chunks = [c for c in segment.chunks if c not in inside]
    if body.get("segments") is not None:
        _retile(partition, base, end, body["segments"])
    _keep_dead(inside, created)
    _keep_aborted(inside, created)
    _keep_masks(inside, created)
    _insert(partition, created, base, end)
    if in_active:
        rows, sizes = (sum(c.rows for c in each) for each in (inside, created)), (inside, created)
        need(len(set(rows)) == 1, "3.3", "a replacement in the active segment loses rows")
        need(
            len({sum(c.bytes for c in each) for each in sizes}) == 1,
            "3.3",
            "the active segment's bytes change",
        )
    partition.changed = state.version
    kept = {c.object.path for c in created}
    named = {c.name for c in created}
    for chunk in inside:
        if chunk.object.path not in kept:
            release(state, chunk.object.path, chunk.object.bytes)
        if chunk.name not in named:
            lose_bitmap(state, chunk)
        if (chunk.name, chunk.rows) not in {(c.name, c.rows) for c in created}:
            lose_mask(state, chunk, {})


def _replacing(body: Json, state: State) -> list[Chunk]:
    described = data_object(body)
    rows = columns(body["chunks"], CHUNK_FIELDS, "3.3")
    chunks = [chunk_of(described, row) for row in rows]
    for chunk in chunks:
        check_chunk(chunk)
        need(0 <= chunk.version <= state.version, "3.3", "rows of a later version")
    return chunks


def _retile(partition: Partition, base: int, end: int, segments: list[list[int]]) -> None:
    old = [s for s in partition.segments[:-1] if base <= s.base and s.next <= end]
    need(
        bool(old) and old[0].base == base and old[-1].next == end,
        "3.3",
        "the range does not begin and end with segments",
    )
    for numbers in segments:
        need(all(integer(each, "3.3", -1) >= -1 for each in numbers), "3.3", "no segment")
    new = [Segment(first, last, created_ms) for first, last, created_ms in segments]
    need(all(s.base < s.next for s in new), "3.3", "an empty segment")
    edges = [base, *(s.next for s in new)]
    need(
        edges[-1] == end and [s.base for s in new] == edges[:-1],
        "3.3",
        "segments that do not tile the range",
    )
    at = partition.segments.index(old[0])
    partition.segments[at : at + len(old)] = new


def _keep_dead(inside: list[Chunk], created: list[Chunk]) -> None:
    dead = {c.name: c for c in inside if c.dead}
    paths = {c.object.path for c in dead.values()}
    for chunk in created:
        source = dead.get(chunk.name)
        if source is not None:
            need(chunk.rows == source.rows, "3.3", "a chunk with dead rows is cut")
            chunk.dead = source.dead
        need(
            source is not None or chunk.object.path not in paths,
            "3.3",
            "a new chunk in an object with dead rows",
        )


def _keep_aborted(inside: list[Chunk], created: list[Chunk]) -> None:
    """What was aborted stays so, and no chunk mixes outcomes (§11.2)."""
    aborted = {c.name: c.rows for c in inside if c.aborted}
    paths = {path for path, _ in aborted}
    for chunk in created:
        chunk.aborted = chunk.name in aborted
        rows = aborted.get(chunk.name, chunk.rows)
        need(chunk.rows == rows, "11.2", "another part of an aborted chunk")
        need(
            chunk.aborted or chunk.object.path not in paths,
            "11.2",
            "a new chunk in an object with aborted rows",
        )


def _keep_masks(inside: list[Chunk], created: list[Chunk]) -> None:
    masks = {(c.name, c.rows): c.mask for c in inside}
    for chunk in created:
        chunk.mask = masks.get((chunk.name, chunk.rows))


def _insert(partition: Partition, created: list[Chunk], base: int, end: int) -> None:
    at = base
    for chunk in created:
        need(
            at <= chunk.base and chunk.next <= end, "3.3", "new chunks out of order or of the range"
        )
        at = chunk.next
        homes = [s for s in partition.segments if s.base <= chunk.base and chunk.next <= s.next]
        need(len(homes) == 1, "3.3", "a chunk in two segments")
        homes[0].chunks.append(chunk)
    for segment in partition.segments:
        segment.chunks.sort(key=lambda c: c.base)
