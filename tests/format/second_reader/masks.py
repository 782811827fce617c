"""Masks: which rows of a chunk no table shows (FORMAT.md §13)."""

from typing import Any

from second_reader.documents import Folder, Json, integer, need
from second_reader.objects import Rows, chunk_offsets, dead_rows, set_bits
from second_reader.replacements import lose_mask, partition_at
from second_reader.state import Chunk, Partition, State, mask

KINDS = ("superseded", "tombstones")


def masks(state: State, value: list[list[Any]]) -> None:
    """Keeps what an edit says about chunks; whether it fits is known once ``covered`` was
    applied.
    """
    for entry in value:
        need(isinstance(entry, list) and len(entry) == 4, "13", "a mask of no chunk")
        named = entry[1], integer(entry[2], "13")
        found = [c for c in partition_at(state, entry[0]).chunks() if c.name == named]
        need(len(found) == 1, "13", "a mask of a chunk that is not there")
        new, old = mask(entry[3], found[0].rows), found[0].mask or {}
        for kind in KINDS:
            count, before = (m[kind]["rows"] if kind in m else 0 for m in (new, old))
            need(count >= before, "13", "a lesser mask")
        lose_mask(state, found[0], new)
        found[0].mask = new
    state.masked = state.version


def covered(state: State, value: Json) -> None:
    """Applies how far partitions are covered."""
    for number, offset in value.items():
        partition = partition_at(state, number)
        need(
            integer(offset, "13") == 0 or partition.covered <= offset <= partition.end, "13", "gap"
        )
        partition.covered = offset
        for chunk in partition.chunks() if offset == 0 else []:
            lose_mask(state, chunk, {})
            chunk.mask = None
    state.masked = state.version


def check_covered(state: State) -> None:
    """Refuses a mask of a chunk that is not covered."""
    for number, partition in enumerate(state.partitions):
        need(partition.covered <= state.stable(number), "13", "covered beyond what is stable")
        for chunk in partition.chunks():
            need(chunk.mask is None or chunk.next <= partition.covered, "13", "a chunk uncovered")


def hidden(folder: Folder, chunk: Chunk) -> set[int]:
    """The rows that a mask hides from every table."""
    bodies = [chunk.mask[kind] for kind in KINDS if kind in chunk.mask] if chunk.mask else []
    return {row for body in bodies for row in set_bits(folder, body, chunk.rows, "13")}


def check_table(folder: Folder, partition: Partition, rows: dict[str, Rows]) -> None:
    """Makes the table by keys alone, and by masks, which may spare comparing keys."""
    latest: dict[bytes, tuple[int, bool]] = {}
    by_mask: dict[bytes, int] = {}
    is_masked = True
    for chunk in partition.chunks():
        if not chunk.is_ordinary:
            continue
        is_masked = is_masked and chunk.mask is not None
        stored, gone = rows[chunk.object.path], dead_rows(folder, chunk)
        unseen = hidden(folder, chunk) if is_masked else set()
        for i, offset in enumerate(chunk_offsets(chunk, stored)):
            key = stored.key_bytes[chunk.row + i]
            if i in gone or offset < partition.start:
                continue
            if is_masked and i not in unseen:
                need(key is not None and key not in by_mask, "13", "a row that lacks its bit")
            if key is None:
                continue
            is_value = stored.values[chunk.row + i] is not None
            latest[key] = (offset, is_value)
            if not is_masked:
                by_mask.pop(key, None)
            if is_value if not is_masked else i not in unseen:
                by_mask[key] = offset
    shown = {offset for offset, is_value in latest.values() if is_value}
    need(set(by_mask.values()) == shown, "13", "masks hide something else than keys say")
