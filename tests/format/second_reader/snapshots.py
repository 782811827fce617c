"""Heads, snapshots, pages and the tree of older writers (FORMAT.md §3.4, §4)."""

import re
from typing import Any

from second_reader.documents import HEX32, Folder, Json, columns, integer, need, safe_path
from second_reader.keys import writer_hash
from second_reader.replacements import partition_at
from second_reader.state import (
    CHUNK_FIELDS,
    HEAD_COLUMNS,
    OBJECT_FIELDS,
    Chunk,
    Partition,
    Segment,
    State,
    bitmap,
    check_chunk,
    check_combined,
    check_config,
    check_cuts,
    check_erasures,
    check_known,
    check_log,
    check_writer,
    chunk_of,
    columns_digest,
    data_object,
    head_columns,
    mask,
)
from second_reader.types import parse_schema
from second_reader.undecided import read_chunks, read_markers, unended_of


def load_snapshot(folder: Folder, path: str, log_id: str) -> State:
    """The state that a snapshot holds, with the segments of its pages."""
    body = folder.document(path, "snapshot")
    version, manifest, head = integer(body.get("version"), "4"), body["manifest"], body["head"]
    need(path.endswith(f"/{version:020d}.json"), "4", "a snapshot under another version's name")
    log = head["log"]
    need(bool(HEX32.fullmatch(str(body.get("id")))), "4", "a snapshot without id")
    check_log(log)
    check_known(log)
    need(log["log_id"] == log_id, "1", "a snapshot of another log")
    state = State(
        version, body["id"], integer(body["time_ms"], "4"), log, [], parse_schema(log["schema"])
    )
    rows = head_columns(head["partitions"], log["partitions"])
    need("rest" not in head["partitions"], "4", "a snapshot's head with a rest")
    segments = _all_segments(folder, manifest, len(rows))
    first_dirty = manifest["first_dirty"]
    need(
        isinstance(first_dirty, list) and len(first_dirty) == len(rows),
        "4",
        "first_dirty is not over P",
    )
    for row, own, dirty in zip(rows, segments, first_dirty, strict=True):
        state.partitions.append(Partition(row[0], integer(dirty, "4"), row[7], row[8], own))
    _read_masks(state, manifest, head)
    _read_head(state, head)
    _read_rest(state, manifest)
    read_markers(state, manifest)
    check_head(folder, state, head)
    for partition in state.partitions:
        check_tiling(partition)
    state.check_object_names()
    return state


def _read_masks(state: State, manifest: Json, head: Json) -> None:
    covered = manifest.get("covered", [0] * len(state.partitions))
    need(len(covered) == len(state.partitions), "13", "covered is not over P")
    for partition, offset in zip(state.partitions, covered, strict=True):
        partition.covered = integer(offset, "13")
    state.masked = head.get("masked")
    state.kept, state.members, state.cuts = cuts_of(head)
    state.gives_offsets = head.get("gives_offsets")
    state.combined = head.get("combined")
    check_combined(state.combined)


def _read_head(state: State, head: Json) -> None:
    state.config, state.config_epoch = head["config"], integer(head["config_epoch"], "3.4")
    state.orphan_floor = integer(head["orphan_floor"], "3.4")
    state.oldest_readable = integer(head["oldest_readable"], "3.4")
    check_config(head["config"])
    for entry in head["writers"]:
        check_writer(entry, 1)
    if head["older_writers"] is not None:
        safe_path(head["older_writers"]["path"])
        sizes = [
            integer(head["older_writers"][name], "3.4") for name in ("bytes", "count", "level")
        ]
        need(sizes[2] <= 8, "4", "a tree of more than 8 levels")
    state.writers, state.older_writers = head["writers"], head["older_writers"]
    state.unended = unended_of(head.get("unended", []), len(state.partitions))


def _read_rest(state: State, manifest: Json) -> None:
    for path, size, version, time_ms in columns(
        manifest["released"], "path bytes version time_ms", "4"
    ):
        need(path not in state.released, "4", f"{path} is released twice")
        state.released[safe_path(path)] = (
            integer(size, "4"),
            integer(version, "4"),
            integer(time_ms, "4"),
        )
    steps = columns(manifest["tombstones_removed"], "p version offset", "4")
    for step in steps:
        need(all(integer(number, "4") >= 0 for number in step), "4", "no step")
    state.tombstones_removed = [(p, version, offset) for p, version, offset in steps]
    if "orders_removed" in manifest:
        need("order-values" in state.features, "15", "order values without their feature")
        pairs = columns(manifest["orders_removed"], "p order end", "15")
        need(all(integer(n, "15") >= 0 for pair in pairs for n in pair), "15", "no pair")
        state.orders_removed = [tuple(pair) for pair in pairs]
        for p, _, _ in pairs:
            partition_at(state, p)
    if "erasures" in manifest:
        state.erasures = manifest["erasures"]
        check_erasures(state)
    state.uncleanable = dict(manifest["uncleanable"])
    for number in [*state.uncleanable, *(step[0] for step in state.tombstones_removed)]:
        partition_at(state, number)


def _all_segments(folder: Folder, manifest: Json, count: int) -> list[list[Segment]]:
    """The segments of each partition: those of the pages' ranges, then those of the document."""
    segments: list[list[Segment]] = [[] for _ in range(count)]
    for reference in manifest["pages"]:
        page = parse_segments(folder.reference(reference, "page"), count, in_page=True)
        for number, (base, end) in reference["ranges"].items():
            integer(base, "4")
            integer(end, "4")
            need(
                number.isdecimal() and str(int(number)) == number and int(number) < count,
                "2",
                f"no partition {number}",
            )
            inside = [s for s in page[int(number)] if base <= s.base and s.next <= end]
            need(
                bool(inside) and (inside[0].base, inside[-1].next) == (base, end),
                "4",
                "a range that cuts segments",
            )
            segments[int(number)] += inside
    for into, own in zip(segments, parse_segments(manifest, count), strict=True):
        into.extend(own)
    return segments


def parse_segments(body: Json, count: int, *, in_page: bool = False) -> list[list[Segment]]:
    """The segments of a snapshot or a page, by partition."""
    chunks = _chunks(body)
    read_chunks(body, chunks, in_page=in_page)
    segments: list[list[Segment]] = [[] for _ in range(count)]
    at = 0
    before = (-1, -1)
    for p, base, end, created_ms, held in columns(
        body["segments"], "p base next created_ms chunks", "4"
    ):
        need(integer(p, "2") < count, "2", f"no partition {p}")
        need(integer(base, "4") <= integer(end, "4"), "4", "a segment that ends before it begins")
        need((p, base) > before and 0 <= base <= end, "4", "segments out of order")
        before = (p, base)
        mine = chunks[at : at + integer(held, "4")]
        need(len(mine) == held, "4", "fewer chunks than segments say")
        at += held
        edges = [base, *(edge for c in mine for edge in (c.base, c.next)), end]
        need(edges == sorted(edges), "4", "chunks out of their segment's order")
        segments[p].append(Segment(base, end, integer(created_ms, "4", -1), mine))
    need(at == len(chunks), "4", "chunks in no segment")
    return segments


def _chunks(body: Json) -> list[Chunk]:
    described = body["objects"]
    sizes = described.get("index", [0] * len(described["path"]))
    names = [*OBJECT_FIELDS.split(), "index"]
    rows = columns({**described, "index": sizes}, " ".join(names), "4")
    objects = [data_object(dict(zip(names, row, strict=True))) for row in rows]
    chunks = []
    for number, *numbers in columns(body["chunks"], "object " + CHUNK_FIELDS, "4"):
        need(integer(number, "4") < len(objects), "4", "a chunk in no object")
        chunk = chunk_of(objects[number], numbers)
        check_chunk(chunk)
        chunks.append(chunk)
    for number, marks in body["dead"]:
        need(
            integer(number, "4") < len(chunks) and chunks[number].dead is None,
            "5.4",
            "two bitmaps of a chunk",
        )
        chunks[number].dead = bitmap(marks, chunks[number].rows)
    for number, body_of in body.get("masks", []):
        need(integer(number, "4") < len(chunks), "13", "a mask of no chunk")
        chunks[number].mask = mask(body_of, chunks[number].rows)
    return chunks


def check_tiling(partition: Partition) -> None:
    """Segments leave no gap between them, and contain the log start (the last one is active)."""
    need(bool(partition.segments), "4", "a partition without an active segment")
    for before, after in zip(partition.segments, partition.segments[1:], strict=False):
        need(before.next == after.base, "4", "a gap between segments")
    need(partition.start <= partition.end, "3.2", "the log starts behind its end")


def cuts_of(head: Json) -> tuple[Json, Json, Json]:
    """The keeps, members and cuts of a head (§20)."""
    kept, members, cuts = (head.get(name, {}) for name in ("kept", "members", "cuts"))
    check_cuts(kept, members, cuts)
    return kept, members, cuts


def check_head(folder: Folder, state: State, head: Json) -> None:
    """Refuses a head that the edits contradict (§8)."""
    log = head["log"]
    need({name: log.get(name) for name in state.log} == state.log, "8", "the head has another log")
    need(
        (head["config"], head["config_epoch"]) == (state.config, state.config_epoch),
        "8",
        "another config",
    )
    need(head.get("masked") == state.masked, "13", "another version has masks")
    need(cuts_of(head) == (state.kept, state.members, state.cuts), "20", "the head has other cuts")
    need(head.get("gives_offsets") == state.gives_offsets, "16", "offsets given since elsewhen")
    need(head.get("combined") == state.combined, "21", "the head has other answers")
    need(head["orphan_floor"] == state.orphan_floor, "8", "another orphan floor")
    need(head["oldest_readable"] == state.oldest_readable, "8", "another oldest readable version")
    need(head["writers"] == state.writers, "8", "the head has other writers")
    unended = unended_of(head.get("unended", []), len(state.partitions))
    need(unended == state.unended, "11.2", "the head has other transactions")
    older = head["older_writers"]
    need(_root(older) == _root(state.older_writers), "8", "the head has other older writers")
    rows = read_columns(folder, head["partitions"], len(state.partitions), state.version)
    for number, (row, partition) in enumerate(zip(rows, state.partitions, strict=True)):
        named = dict(zip(HEAD_COLUMNS.split(), row, strict=True))
        own = dict(zip(HEAD_COLUMNS.split(), partition.head_row(), strict=True))
        need(named == own, "8", f"partition {number} is {named} in the head and {own} by the edits")
    snapshot = head["snapshot"]
    if snapshot is not None:
        need(
            integer(snapshot.get("version"), "3.4") < state.version,
            "3.4",
            "a snapshot that is not before",
        )
        integer(snapshot.get("bytes"), "3.4")
        need(bool(HEX32.fullmatch(str(snapshot.get("id")))), "3.4", "a snapshot without id")


def _root(body: Json | None) -> Any:
    return body and [body.get(name) for name in ("path", "bytes", "count", "level")]


def read_columns(
    folder: Folder, partitions: Json, count: int, version: int
) -> list[tuple[int, ...]]:
    """The rows of a head's columns over all partitions, with those of its ``rest``."""
    rest = partitions.get("rest")
    if rest is None:
        need("p" not in partitions, "3.4", "some partitions and no rest")
        return head_columns(partitions, count)
    body = folder.reference(rest, "columns")
    need(body["version"] == rest["version"] < version, "3.4", "columns of another version")
    need(
        bool(re.fullmatch(rf"columns/{body['version']:020d}-[0-9a-f]{{32}}\.json", rest["path"])),
        "1",
        rest["path"],
    )
    need("rest" not in body["partitions"], "3.4", "a rest of a rest")
    rows = head_columns(body["partitions"], count)
    need(columns_digest(rows) == rest["xxh3_128"], "3.4", "columns with another checksum")
    numbers = partitions["p"]
    need(
        isinstance(numbers, list) and numbers == sorted(set(numbers)),
        "3.4",
        "partitions out of order",
    )
    for number, row in zip(numbers, head_columns(partitions, len(numbers)), strict=True):
        need(integer(number, "2") < count, "2", f"no partition {number}")
        rows[number] = row
    return rows


def find_writer(folder: Folder, state: State, kind: str, writer: str) -> list[Any] | None:
    """The newest entry of a writer, from the head or its pages of older writers."""
    for entry in state.writers:
        if entry[:2] == [writer, kind]:
            return list(entry)
    if state.older_writers is None:
        return None
    hashed = writer_hash(kind, writer, state.log["seed"])
    page, level = (
        folder.reference(state.older_writers, "page"),
        integer(state.older_writers["level"], "4"),
    )
    while level > 0:
        children = [
            row
            for row in columns(page["children"], "from path bytes count", "4")
            if row[0] <= hashed
        ]
        need(bool(children), "4", "a tree that does not begin at the first hash")
        page, level = (
            folder.reference({"path": children[-1][1], "bytes": children[-1][2]}, "page"),
            level - 1,
        )
    found = [entry for entry in page["writers"] if entry[:2] == [writer, kind]]
    need(len(found) <= 1, "4", "a writer has two entries in a page")
    return list(found[0]) if found else None


def older_writers(folder: Folder, state: State) -> list[list[Any]]:
    """All entries in the pages of older writers, the whole tree checked."""
    root = state.older_writers
    if root is None:
        return []
    need(integer(root["level"], "4") <= 8, "4", "a tree of more than 8 levels")
    return _subtree(
        folder,
        ("", root["path"], root["bytes"], root["count"]),
        root["level"],
        "g",
        state.log["seed"],
    )


def _subtree(
    folder: Folder, page: tuple[str, str, int, int], level: int, end: str, seed: str
) -> list[list[Any]]:
    """The entries in a page and below it, for hashes from its own up to ``end``."""
    first, path, size, count = page
    body = folder.reference({"path": path, "bytes": size}, "page")
    if level == 0:
        entries = list(body["writers"])
        for entry in entries:
            check_writer(entry, 1)
            need(
                first <= writer_hash(entry[1], entry[0], seed) < end,
                "4",
                f"{entry[:2]} is in the wrong page",
            )
    else:
        children = columns(body["children"], "from path bytes count", "4")
        starts = [child[0] for child in children]
        need(
            bool(starts) and starts[0] == first and starts == sorted(set(starts)),
            "4",
            "children out of order",
        )
        need(
            all(re.fullmatch(r"|[0-9a-f]{0,15}[1-9a-f]", each) for each in starts),
            "4",
            "no start of a page",
        )
        ends = [*starts[1:], end]
        parts = [
            _subtree(folder, child, level - 1, until, seed)
            for child, until in zip(children, ends, strict=True)
        ]
        entries = [entry for part in parts for entry in part]
    names = {(entry[1], entry[0]) for entry in entries}
    need(len(entries) == len(names) == count, "4", "a page counts other entries than it has")
    return entries


def transaction_positions(folder: Folder, entry: list[Any]) -> dict[str, list[tuple[Any, ...]]]:
    """By log id the positions of an entry: partition, next offset, version (§11.1); by the name of
    what is not a log: partition, next offset, mark (§11.4).
    """
    status = entry[6]
    if "positions_at" in status:
        need("foreign" not in status, "11.4", "foreign positions beside a document of positions")
        status = folder.reference(status["positions_at"], "page")
        need("positions" in status, "11.1", "a document of positions without any")
    foreign = status.get("foreign", {})
    for name, group in foreign.items():
        system, colon, identity = name.partition(":")
        sound = system[:1].isalpha() and colon and identity and not identity.startswith("//")
        need(sound and len(name.encode()) <= 512, "11.4", f"{name!r} names no source")
        group.setdefault("mark", [None] * len(group["p"]))
    found = {
        log_id: columns(group, "p offset version", "11.1")
        for log_id, group in status.get("positions", {}).items()
    }
    return found | {
        name: columns(group, "p offset mark", "11.4") for name, group in foreign.items()
    }
