"""A second reader of the format, written from storage/FORMAT.md: it imports nothing of clog.

It knows two ways to the newest state, `replay` (all commits from 0, `earlier` ignored) and
`from_snapshot` (the snapshot and what commits carry), and checks what FORMAT.md says on the way:
envelopes, sums, tiling, heads, chunk statistics. It is plain and slow on purpose.
"""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import independent_types as types
import pyarrow.parquet as pq
import xxhash

OBJECT = ("path", "bytes", "footer", "xxh3_128", "rows", "stamp", "dense")
CHUNK = (
    *("row", "rows", "base", "next", "bytes", "first_ms", "max_ms", "tombstones", "version"),
    *("append_time_ms", "horizon_min", "horizon_max", "horizon", "up_to"),
)
RELEASED = ("path", "bytes", "version", "time_ms")
COLUMNS = (
    *("start", "end", "base", "bytes", "chunks"),
    *("first_ms", "created_ms", "jitter_ms", "changed"),
)
REMOVED = ("p", "version", "offset")
State = dict[str, Any]


class DamagedError(Exception):
    """The log contradicts FORMAT.md."""


def check(fact: bool, message: object) -> None:
    if not fact:
        raise DamagedError(message)


def rows_of(columns: dict[str, list], names: tuple[str, ...]) -> list[dict]:
    check(len({len(columns[name]) for name in names}) == 1, f"ragged columns {names}")
    rows = zip(*(columns[name] for name in names), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]


def folder(root: Path) -> Path:
    """§1: the folder of the log that stands at the root."""
    log_id = read_document(root / "_clog/log", "log")["log_id"]
    check(len(log_id) == 32 and set(log_id) <= set("0123456789abcdef"), log_id)
    return root / "_clog" / log_id


def inside(root: Path, path: str) -> Path:
    """§1: no path leaves the log's folder."""
    check(all(part not in ("", ".", "..") for part in path.split("/")), path)
    return folder(root) / path


def document(root: Path, path: str, kind: str) -> dict:
    """§1: a document, by its path in the log's folder."""
    return read_document(inside(root, path), kind)


def read_document(path: Path, kind: str) -> dict:
    """§2."""
    line, _, body = path.read_bytes().partition(b"\n")
    envelope = json.loads(line)
    check(envelope["format"] == 1 and envelope["clog"] == kind, envelope)
    check(envelope["bytes"] == len(body), f"{path}: {len(body)} bytes")
    check(envelope["xxh3_128"] == xxhash.xxh3_128_hexdigest(body), f"{path}: sum")
    return json.loads(zlib.decompress(body) if envelope["encoding"] == "json+zlib" else body)


def commit(root: Path, version: int) -> dict:
    """§3.1: a commit, with its place checked."""
    body = document(root, f"commits/{version:020d}.json", "commit")
    carried = [entry["version"] for entry in body["earlier"]]
    check([*carried, body["version"]] == [*range(version - len(carried), version + 1)], carried)
    first = (body["head"]["snapshot"] or {"version": -1})["version"] + 1
    if version % 4 == 0:
        check(min([*carried, version]) == min(first, version), f"{version}: earlier {carried}")
    check(
        version % 2 == 1 or version - 1 < first or version - 1 in carried, f"{version}: {carried}"
    )
    features = set(body["head"]["log"]["features"]["read"])
    check(features <= {"dead-rows", "typed-columns"}, "unknown feature")
    check_schema(body["head"]["log"])
    check(body["head"]["log"]["log_id"] == folder(root).name, "another log's commit")
    return body


def check_schema(log: dict) -> None:
    """§12: a schema is announced, and is one."""
    typed = types.is_typed(log["schema"])
    check(typed == ("typed-columns" in log["features"]["read"]), "a schema and its feature")
    check(not typed or types.problem(log["schema"]) is None, log["schema"])


def newest(root: Path) -> int:
    return max(int(path.name[:20]) for path in (folder(root) / "commits").iterdir())


def replay(root: Path, version: int | None = None) -> State:
    """The state after all commits from 0; each commit's parent, time and head are checked."""
    state, parent, entries, before = None, None, {}, None
    for v in range((newest(root) if version is None else version) + 1):
        body = commit(root, v)
        check(body["parent"] == parent, f"parent of {v}")
        repair = "reset_times" in body.get("edit", {})
        check(state is None or repair or body["time_ms"] >= state["time_ms"], f"time of {v}")
        other = ("parent", "earlier", "earlier_parent", "head")
        entries[v] = {k: x for k, x in body.items() if k not in other}
        check_links(body, entries)
        check(all(entries[e["version"]] == e for e in body["earlier"]), f"earlier of {v}")
        rest = body["head"]["partitions"].get("rest")
        check(rest in (None, before) or rest["version"] == v - 1, f"columns that {v} refers to")
        state, parent, before = advance(root, state, body), body["id"], rest
        check_head(root, state, body["head"])
    return state


def check_links(body: dict, entries: dict[int, dict]) -> None:
    """§3.1, §3.4: the ids by which what is carried, and the snapshot, are of this history."""
    first = body["earlier"][0]["version"] if body["earlier"] else 0
    before = entries[first - 1]["id"] if first else None
    check(body.get("earlier_parent") == before, f"earlier_parent of {body['version']}")
    snapshot = body["head"]["snapshot"]
    if snapshot is not None:
        named = entries[snapshot["version"]]["id"]
        check(snapshot["id"] == named, f"snapshot of {body['version']}")


def reset_times(state: State, time_ms: int) -> None:
    """§3.2: no time is later than this one."""
    for p, segments in enumerate(state["segments"]):
        check(not segments[-1]["chunks"], "times reset beside an active segment")
        state["changed"][p] = state["version"]
        for segment in segments:
            segment["created_ms"] = min(segment["created_ms"], time_ms)
            for chunk in segment["chunks"]:
                if chunk["append_time_ms"] > time_ms:
                    chunk.update(append_time_ms=time_ms, first_ms=time_ms, max_ms=time_ms)
                if "dead" in chunk:
                    since_ms = min(chunk["dead"]["since_ms"], time_ms)
                    chunk["dead"] = {**chunk["dead"], "since_ms": since_ms}
    state["released"] = [(*r[:3], min(r[3], time_ms)) for r in state["released"]]
    for p, mark in state["uncleanable"].items():
        state["uncleanable"][p] = {**mark, "time_ms": min(mark["time_ms"], time_ms)}


def from_snapshot(root: Path, version: int | None = None) -> State:
    """The state from the snapshot that the head names, by walking back over what commits carry."""
    tip = commit(root, newest(root) if version is None else version)
    snapshot = tip["head"]["snapshot"]
    state = None if snapshot is None else load(root, snapshot["version"])
    check(state is None or snapshot["id"] == state["id"], "another snapshot")
    first = 0 if snapshot is None else snapshot["version"] + 1
    todo = [*tip["earlier"], tip]
    while todo[0]["version"] > first:
        before = commit(root, todo[0]["version"] - 1)
        todo = [*before["earlier"], before, *todo]
    for entry in todo:
        if entry["version"] >= first:
            state = advance(root, state, entry)
    check_head(root, state, tip["head"])
    return state


def load(root: Path, version: int) -> State:
    """§4: a snapshot, its pages brought in."""
    body = document(root, f"snapshots/{version:020d}.json", "snapshot")
    head, value = body["head"], body["manifest"]
    check(body["version"] == version, "snapshot's version")
    columns, objects, count = head["partitions"], {}, head["log"]["partitions"]
    check("rest" not in columns, "a snapshot's head without all columns")
    state: State = {
        **{name: body[name] for name in ("version", "id", "time_ms")},
        **{name: head[name] for name in ("log", "config", "config_epoch")},
        **{name: head[name] for name in ("orphan_floor", "oldest_readable")},
        **{name: list(columns[name]) for name in ("start", "end", "jitter_ms", "changed")},
        "first_dirty": value["first_dirty"],
        "objects": objects,
        "segments": [[] for _ in range(count)],
        "released": [tuple(r.values()) for r in rows_of(value["released"], RELEASED)],
        "tombstones_removed": [
            tuple(r.values()) for r in rows_of(value["tombstones_removed"], REMOVED)
        ],
        "uncleanable": value["uncleanable"],
        "writers": {(w[1], w[0]): w for w in [*older_of(root, head), *head["writers"]]},
        "recent": head["writers"],
        "older": head["older_writers"],
    }
    for ref in value["pages"]:
        for p, segment in segments_of(document(root, ref["path"], "page"), objects):
            base, end = ref["ranges"].get(str(p), (0, 0))
            if base <= segment["base"] and segment["next"] <= end:
                state["segments"][p].append(segment)
    for p, segment in segments_of(value, objects):
        state["segments"][p].append(segment)
    return state


def object_of(ref: dict) -> dict:
    """§3.3: what is said of an object; no `index` is one of 0 bytes."""
    return {**{name: ref[name] for name in OBJECT}, "index": ref.get("index", 0)}


def segments_of(value: dict, objects: dict[str, dict]) -> list[tuple[int, dict]]:
    refs = rows_of(value["objects"], OBJECT)
    for ref, size in zip(refs, value["objects"].get("index", [0] * len(refs)), strict=True):
        ref["index"] = size
    objects.update({ref["path"]: ref for ref in refs})
    chunks = rows_of(value["chunks"], ("object", *CHUNK))
    for chunk in chunks:
        chunk["object"] = refs[chunk["object"]]["path"]
    for i, dead in value["dead"]:
        chunks[i]["dead"] = dead
    found = []
    for row in rows_of(value["segments"], ("p", "base", "next", "created_ms", "chunks")):
        mine, chunks = chunks[: row["chunks"]], chunks[row["chunks"] :]
        found.append((row.pop("p"), {**row, "chunks": mine}))
    check(not chunks, "chunks beyond the segments")
    return found


def advance(root: Path, state: State | None, entry: dict) -> State:
    """§3.2: the state after one more edit, in the order of the table."""
    edit = entry["edit"] if "edit" in entry else document(root, entry["edit_at"]["path"], "edit")
    version = entry["version"]
    if state is None:
        check(version == 0 and edit.keys() <= {"create", "config"}, "version 0")
        state = first(edit["create"])
    else:
        check(version == state["version"] + 1 and "create" not in edit, f"{version} out of order")
    state.update(version=version, id=entry["id"], time_ms=entry["time_ms"])
    state["log"] = log_after(state["log"], edit)
    if "config" in edit:
        state.update(config=edit["config"], config_epoch=version)
    change_segments(state, edit)
    for p, offset in ints(edit, "first_dirty"):
        state["first_dirty"][p] = offset
    for p, offset in sorted(ints(edit, "tombstones_removed")):
        kept = [step for step in state["tombstones_removed"] if step[0] != p or step[2] > offset]
        state["tombstones_removed"] = [*kept, (p, version, offset)]
    marks = {**state["uncleanable"], **edit.get("uncleanable", {})}
    state["uncleanable"] = {p: mark for p, mark in marks.items() if mark is not None}
    if "add" in edit:
        add(state, edit["add"])
    objects = len(edit.get("add", {}).get("objects", ()))
    for given in edit.get("writers", ()):
        writer, (begin, end), more = given[:5], given[5:7], given[7:]
        check(0 <= begin <= end <= objects, "objects of a writer")
        check(len(more) == (writer[1] == "transaction"), f"writer {given}")
        if more:
            check_transaction(state, writer, more[0], version, begins=begin < end)
        state["writers"][writer[1], writer[0]] = entry_made = [*writer, version, *more]
        recent = [w for w in state["recent"] if w[:2] != writer[:2]]
        state["recent"] = [*recent, entry_made]
    if "older_writers" in edit:
        left = edit["older_writers"]["left"]
        check(left == sorted({*left}) and {*left} <= {*range(len(state["recent"]))}, f"left {left}")
        state["recent"] = [w for i, w in enumerate(state["recent"]) if i not in left]
        state["older"] = {k: v for k, v in edit["older_writers"].items() if k != "left"}
    for name in ("orphan_floor", "oldest_readable"):
        state[name] = edit.get(name, state[name])
    forgotten = edit.get("forget", ())
    state["released"] = [r for r in state["released"] if r[0] not in forgotten]
    if edit.get("reset_times"):
        reset_times(state, entry["time_ms"])
    return state


def log_after(log: dict, edit: dict) -> dict:
    """§0, §12.4: what the log is with the edit's features and schema."""
    if "features" in edit:
        names = {name for which in log["features"].values() for name in which}
        lists = {
            which: [*old, *(name for name in edit["features"][which] if name not in names)]
            for which, old in log["features"].items()
        }
        log = {**log, "features": lists}
    if "schema" in edit:
        check(types.is_typed(log["schema"]), "a schema for bytes")
        check(types.follows(log["schema"], edit["schema"]), edit["schema"])
        log = {**log, "schema": edit["schema"]}
    return log


def change_segments(state: State, edit: dict) -> None:
    """The part of the table from `start` to `dead`, and `changed` (§3.4)."""
    segments, dirty = state["segments"], state["first_dirty"]
    for p, offset in ints(edit, "start"):
        check(offset <= state["end"][p], "start beyond end")
        state["start"][p] = max(state["start"][p], offset)
        dirty[p] = max(dirty[p], offset)
    for p, jitter in edit.get("seal", ()):
        roll(state, p, jitter)
    for p, base in ints(edit, "drop"):
        check(base <= state["start"][p], "drop beyond start")
        gone = [s for s in segments[p][:-1] if s["next"] <= base]
        segments[p] = segments[p][len(gone) :]
        release(state, {f: n for s in gone for c in s["chunks"] for f, n in files_of(c).items()})
    for r in edit.get("replace", ()):
        substitute(state, r)
    for p, path, row, horizon, up_to in edit.get("horizons", ()):
        chunk = chunk_at(state, p, path, row)
        check(chunk["horizon"] == -1, "a second horizon")
        chunk.update(horizon=horizon, up_to=up_to)
    for p, path, row, dead in edit.get("dead", ()):
        mark(state, p, chunk_at(state, p, path, row), dead)
    changed = {p for name in ("start", "drop", "first_dirty") for p, _ in ints(edit, name)}
    changed |= {r["p"] for r in edit.get("replace", ())}
    changed |= {mark[0] for name in ("horizons", "dead") for mark in edit.get(name, ())}
    for p in changed:
        state["changed"][p] = state["version"]


def mark(state: State, p: int, chunk: dict, dead: dict) -> None:
    """§5.4: dead rows in place of those that the chunk had."""
    check("dead-rows" in state["log"]["features"]["read"], "dead rows were not announced")
    check(chunk not in state["segments"][p][-1]["chunks"], "dead rows in the active segment")
    check(1 <= dead["rows"] < chunk["rows"], "dead rows")
    before = chunk.get("dead", dead)
    check(before["rows"] <= dead["rows"] and before["since_ms"] == dead["since_ms"], "dead rows")
    again = files_of({**chunk, "dead": dead})
    chunk["dead"] = dead
    release(state, {f: n for f, n in files_of({**chunk, "dead": before}).items() if f not in again})


def files_of(chunk: dict) -> dict[str, int | None]:
    """Paths of the files that live while the chunk does; the size of its object is elsewhere."""
    dead = chunk.get("dead", {})
    return {chunk["object"]: None, **({dead["path"]: dead["bytes"]} if "path" in dead else {})}


def ints(edit: dict, name: str) -> list[tuple[int, int]]:
    return [(int(p), n) for p, n in edit.get(name, {}).items()]


def first(create: dict) -> State:
    count = create["partitions"]
    return {
        "log": create,
        "config": {},
        **dict.fromkeys(("config_epoch", "orphan_floor", "oldest_readable"), 0),
        **{name: [0] * count for name in ("start", "end", "jitter_ms", "changed", "first_dirty")},
        "segments": [[empty_at(0)] for _ in range(count)],
        **{name: [] for name in ("released", "tombstones_removed", "recent")},
        "older": None,
        **{name: {} for name in ("objects", "uncleanable", "writers")},
    }


def empty_at(base: int) -> dict:
    return {"base": base, "next": base, "created_ms": -1, "chunks": []}


def roll(state: State, p: int, jitter_ms: int) -> None:
    check(bool(state["segments"][p][-1]["chunks"]), "an empty segment is sealed")
    state["segments"][p].append(empty_at(state["end"][p]))
    state["jitter_ms"][p] = jitter_ms


def release(state: State, files: dict[str, int | None]) -> None:
    """§6: one entry for each object or bitmap, the newest."""
    for path, bitmap_bytes in files.items():
        state["released"] = [r for r in state["released"] if r[0] != path]
        size = state["objects"][path]["bytes"] if bitmap_bytes is None else bitmap_bytes
        state["released"].append((path, size, state["version"], state["time_ms"]))


def chunk_at(state: State, p: int, path: str, row: int) -> dict:
    (chunk,) = [
        c
        for s in state["segments"][p]
        for c in s["chunks"]
        if (c["object"], c["row"]) == (path, row)
    ]
    return chunk


def add(state: State, value: dict) -> None:
    """§3.3: an append."""
    rolls = {(p, base): jitter for p, base, jitter in value["rolls"]}
    append_ms = value.get("append_time_ms", -1)
    none = dict.fromkeys(("horizon_min", "horizon_max", "horizon", "up_to"), -1)
    names = ("p", "rows", "base", "bytes", "first_ms", "max_ms", "tombstones")
    for ref in value["objects"]:
        state["objects"][ref["path"]] = object_of(ref)
        row = 0
        for c in rows_of(ref["chunks"], names):
            p = c.pop("p")
            check(c["base"] == state["end"][p] and c["rows"] > 0, f"chunk at {c['base']}")
            check(append_ms == -1 or c["first_ms"] == c["max_ms"] == append_ms, "append time")
            if (p, c["base"]) in rolls:
                roll(state, p, rolls.pop((p, c["base"])))
            active = state["segments"][p][-1]
            if not active["chunks"]:
                active["created_ms"] = state["time_ms"]
            active["next"] = state["end"][p] = c["base"] + c["rows"]
            where = {"object": ref["path"], "row": row, "next": active["next"]}
            active["chunks"].append(
                {**c, **where, **none, "version": state["version"], "append_time_ms": append_ms}
            )
            row += c["rows"]
        check(row == ref["rows"], "rows of an object")
    check(not rolls, f"rolls {rolls}")


def substitute(state: State, r: dict) -> None:
    """§3.3: a replacement."""
    segments = state["segments"][r["p"]]
    touched = [s for s in segments if s["base"] < r["next"] and r["base"] < s["next"]]
    active = touched[-1] is segments[-1]
    check(not active or (len(touched) == 1 and "segments" not in r), "sealed and active at once")
    old = [c for s in touched for c in s["chunks"]]
    gone = [c for c in old if c["base"] < r["next"] and r["base"] < c["next"]]
    check([[c["object"], c["row"]] for c in gone] == r["sources"], "sources")
    new = []
    for ref in r["objects"]:
        state["objects"][ref["path"]] = object_of(ref)
        new += [{"object": ref["path"], **c} for c in rows_of(ref["chunks"], CHUNK)]
    check(all(r["base"] <= c["base"] and c["next"] <= r["next"] for c in new), "outside the range")
    for old_chunk in [c for c in gone if "dead" in c]:
        for c in [c for c in new if c["object"] == old_chunk["object"]]:
            check(all(c[k] == old_chunk[k] for k in ("row", "rows")), "a part of a marked chunk")
            c["dead"] = old_chunk["dead"]
    for name in ("rows", "bytes") if active else ():
        check(sum(c[name] for c in gone) == sum(c[name] for c in new), f"active {name}")
    tiles = r.get("segments") or [[s["base"], s["next"], s["created_ms"]] for s in touched]
    if "segments" in r:
        check((touched[0]["base"], touched[-1]["next"]) == (r["base"], r["next"]), "whole segments")
        check([t[0] for t in tiles] == [r["base"], *(t[1] for t in tiles[:-1])], "tiles")
        check(tiles[-1][1] == r["next"], "tiles")
    rest = sorted([*(c for c in old if c not in gone), *new], key=lambda c: c["base"])
    made = [{"base": b, "next": n, "created_ms": ms, "chunks": []} for b, n, ms in tiles]
    for chunk in rest:
        (home,) = [s for s in made if s["base"] <= chunk["base"] and chunk["next"] <= s["next"]]
        home["chunks"].append(chunk)
    at = segments.index(touched[0])
    segments[at : at + len(touched)] = made
    again = {f for c in new for f in files_of(c)}
    release(state, {f: n for c in gone for f, n in files_of(c).items() if f not in again})


def check_head(root: Path, state: State, head: dict) -> None:
    """§3.4, §8: the head is what the edits make; segments tile, chunks lie in them in order."""
    last = [segments[-1] for segments in state["segments"]]
    made = {name: state[name] for name in ("start", "end", "jitter_ms", "changed")}
    made["base"] = [s["base"] for s in last]
    made["bytes"] = [sum(c["bytes"] for c in s["chunks"]) for s in last]
    made["chunks"] = [len(s["chunks"]) for s in last]
    made["first_ms"] = [s["chunks"][0]["first_ms"] if s["chunks"] else -1 for s in last]
    made["created_ms"] = [s["created_ms"] for s in last]
    columns = all_columns(root, head["partitions"])
    check(made == columns, f"{made} is not {columns}")
    for name in ("log", "config", "config_epoch", "orphan_floor", "oldest_readable"):
        check(head[name] == state[name], name)
    older = head["older_writers"]
    check((head["writers"], older) == (state["recent"], state["older"]), "writers of the head")
    check(older is None or older["level"] <= 8, "level")
    known = older_of(root, head)
    writers = {(w[1], w[0]): w for w in [*known, *head["writers"]]}
    check(len({(w[1], w[0]) for w in known}) == len(known), "a writer in two pages")
    for name, entry in state["writers"].items():
        check(with_positions(root, writers[name]) == with_positions(root, entry), "writers")
    check(not any("positions_at" in w[6] for w in known if w[1] == "transaction"), "in a page")
    for p, segments in enumerate(state["segments"]):
        ends = [s["next"] for s in segments]
        check([s["base"] for s in segments[1:]] == ends[:-1], f"segments of {p} do not tile")
        check(segments[0]["base"] <= state["start"][p] <= ends[-1] == state["end"][p], "range")
        for s in segments:
            edges = [
                s["base"],
                *(x for c in s["chunks"] for x in (c["base"], c["next"])),
                s["next"],
            ]
            check(edges == sorted(edges), f"chunks of {p}: {edges}")


def all_columns(root: Path, columns: dict) -> dict:
    """§3.4: the columns over all partitions, those of the rest in a document of their own."""
    if "rest" not in columns:
        return columns
    rest, named = columns["rest"], columns["p"]
    body = document(root, rest["path"], "columns")
    check(inside(root, rest["path"]).stat().st_size == rest["bytes"], "size of columns")
    check(rest["path"].startswith(f"columns/{rest['version']:020d}-"), "name of columns")
    check(body["version"] == rest["version"], "version of columns")
    found = {name: list(body["partitions"][name]) for name in COLUMNS}
    data = b"".join(struct.pack("<q", n) for name in COLUMNS for n in found[name])
    check(xxhash.xxh3_128_hexdigest(data) == rest["xxh3_128"], "sum of columns")
    check(named == sorted(set(named)), "partitions in order")
    for name in COLUMNS:
        for p, n in zip(named, columns[name], strict=True):
            found[name][p] = n
    return found


def older_of(root: Path, head: dict) -> list[list]:
    """§4: the entries in the pages of those that left the head."""
    older, seed = head["older_writers"], int(head["log"]["seed"], 16)
    return older_writers(root, seed, older, older["level"], ("", "g")) if older else []


def older_writers(
    root: Path, seed: int, ref: dict, level: int, between: tuple[str, str]
) -> list[list]:
    """§4: the entries in a page of older writers and below it, with hashes in [start, end)."""
    (start, end), path = between, ref["path"]
    check(inside(root, path).stat().st_size == ref["bytes"], f"{path}: bytes")
    body = document(root, path, "page")
    if level == 0:
        found = body["writers"]
        for writer, kind, *_ in found:
            name = kind.encode() + b"\0" + writer.encode()
            hashed = f"{xxhash.xxh3_128_intdigest(name, seed) >> 64:016x}"
            check(start <= hashed < end, f"{path}: {hashed} is not in [{start}, {end})")
    else:
        below = rows_of(body["children"], ("from", "path", "bytes", "count"))
        starts = [child.pop("from") for child in below]
        check(starts[0] == start and starts == sorted({*starts}), f"{path}: from {starts}")
        check(not any(s.endswith("0") or len(s) > 16 for s in starts), f"{path}: zeros at the end")
        ends = [*starts[1:], end]
        found = []
        for child, *edges in zip(below, starts, ends, strict=True):
            found += older_writers(root, seed, child, level - 1, tuple(edges))
    check(len(found) == ref["count"], f"{path}: {len(found)} writers of {ref['count']}")
    return found


def check_transaction(state: State, writer: list, now: dict, version: int, *, begins: bool) -> None:
    """§11.1: an id is taken up, or its holder commits a transaction that follows the last one."""
    features = state["log"]["features"]
    check("transactions" in features["write"], "transactions were not announced")
    nothing = {"epoch": -1, "number": -1, "committed": None}
    before = state["writers"].get(("transaction", writer[0]), [nothing])[-1]
    if now["epoch"] == before["epoch"]:
        check(now["number"] > before["number"], f"number of {writer}")
        check(now["committed"] == [now["epoch"], now["number"], version], f"commit of {writer}")
    else:
        taken = (before["epoch"] + 1, -1, before["committed"])
        check((now["epoch"], now["number"], now["committed"]) == taken, f"epoch of {writer}")
        check(not begins, f"{writer} is taken up and appends")
    check(len(json.dumps(now.get("positions", {}), separators=(",", ":"))) <= 1024, "positions")


def with_positions(root: Path, entry: list) -> list:
    """§11.1: the entry with its positions, wherever they are."""
    if entry[1] != "transaction" or "positions_at" not in entry[6]:
        return entry
    rest = {name: value for name, value in entry[6].items() if name != "positions_at"}
    at = entry[6]["positions_at"]
    check(inside(root, at["path"]).stat().st_size == at["bytes"], at)
    return [*entry[:6], rest | document(root, at["path"], "page")]


def manifest(state: State) -> dict:
    """The state without what only one of the two ways knows, for comparing them."""
    alive = {c["object"] for ss in state["segments"] for s in ss for c in s["chunks"]}
    objects = {path: ref for path, ref in state["objects"].items() if path in alive}
    return {**{k: v for k, v in state.items() if k != "writers"}, "objects": objects}


def records(root: Path, state: State, p: int) -> list[tuple]:
    """§5: (offset, timestamp µs, key, value, headers, delete horizon ms) of a partition."""
    found = []
    for chunk in [c for segment in state["segments"][p] for c in segment["chunks"]]:
        rows = chunk_rows(root, state["objects"][chunk["object"]], chunk, state["log"])
        found += [row for row in rows if state["start"][p] <= row[0] < state["end"][p]]
    return found


def partition_of(key: bytes, log: dict) -> int:
    """§5.6."""
    count = log["partitions"]
    if log["partitioner"] == "xxh3":
        return xxhash.xxh3_64_intdigest(key) % count
    check(log["partitioner"] == "murmur2", log["partitioner"])
    return (murmur2(key) & 0x7FFFFFFF) % count


def murmur2(key: bytes) -> int:
    """As in Kafka's Utils.murmur2, of unsigned numbers."""
    m, h = 0x5BD1E995, 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & 0xFFFFFFFF
        h = (h * m & 0xFFFFFFFF) ^ ((k ^ k >> 24) * m & 0xFFFFFFFF)
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & 0xFFFFFFFF
    h = (h ^ h >> 13) * m & 0xFFFFFFFF
    return h ^ h >> 15


def table(root: Path, state: State, p: int) -> dict[bytes, bytes]:
    """§8: the table of a partition."""
    latest = {row[2]: row[3] for row in records(root, state, p) if row[2] is not None}
    return {key: value for key, value in latest.items() if value is not None}


def chunk_rows(root: Path, ref: dict, chunk: dict, log: dict) -> list[tuple]:
    data = inside(root, ref["path"]).read_bytes()
    check(len(data) == ref["bytes"], f"{ref['path']}: {len(data)} bytes")
    check(xxhash.xxh3_128_hexdigest(data) == ref["xxh3_128"], f"{ref['path']}: sum")
    footer = data[-ref["footer"] :]
    check(int.from_bytes(footer[-8:-4], "little") + 8 == len(footer), f"{ref['path']}: footer")
    check(data[-len(footer) - 16 : -len(footer)] == xxhash.xxh3_128_digest(footer), "footer's sum")
    table, schema = pq.read_table(inside(root, ref["path"])), log["schema"]
    typed = types.is_typed(schema)
    if typed:
        check(not (wrong := types.wrong_ids(table.schema, schema)), f"field ids of {wrong}")
    check(("offset" not in table.column_names) == ref["dense"], "dense")
    check(len(table) == ref["rows"] >= chunk["row"] + chunk["rows"], "rows")
    if ref["index"]:
        index = data[: -ref["footer"] - 16][-ref["index"] :]
        keys = table["key"].to_pylist()
        if typed:
            keys = [types.key_bytes(key, schema["key"]) for key in keys]
        check_index(index, keys, int(log["seed"], 16))
    times = table["timestamp"].cast("int64").to_pylist()
    rows = []
    for i, row in enumerate(table.drop_columns("timestamp").to_pylist()):
        n = i - chunk["row"]
        if 0 <= n < chunk["rows"]:
            offset = chunk["base"] + n if ref["dense"] else row["offset"]
            time = times[i] if chunk["append_time_ms"] < 0 else chunk["append_time_ms"] * 1000
            headers = [(h["key"], h["value"]) for h in row.get("headers") or ()]
            horizon = row.get("delete_horizon")
            key, value = row["key"], row["value"]
            if typed:
                value = types.as_read(value, schema["value"])
            rows.append((offset, time, key, value, headers, horizon))
    check_statistics(rows, chunk, schema)
    dead = bits(root, chunk)
    return [(*row[:5], horizon_of(row, chunk)) for n, row in enumerate(rows) if not dead >> n & 1]


def check_index(data: bytes, keys: list[bytes | None], seed: int) -> None:
    """§5.5: each block has the hashes of the keys in its rows, and no others."""
    check(data[:16] == xxhash.xxh3_128_digest(data[16:]), "key index: sum")
    check(data[16] == 1, "key index: version")
    at, row = 17, 0
    while at < len(data):
        rows, n = (int.from_bytes(data[i : i + 4], "little") for i in (at, at + 4))
        b = data[at + 8]
        counts, rest = data[at + 9 :][: 1 << b], data[at + 9 + (1 << b) :]
        buckets = [bucket for bucket, count in enumerate(counts) for _ in range(count)]
        high = [int.from_bytes(rest[2 * i : 2 * i + 2], "little") for i in range(n)]
        low = rest[2 * n : 3 * n]
        found = [x << 24 | y << 8 | z for x, y, z in zip(buckets, high, low, strict=True)]
        hashes = {
            xxhash.xxh3_128_intdigest(key, seed=seed) >> 128 - b - 24
            for key in keys[row : row + rows]
            if key is not None
        }
        check(found == sorted(hashes), f"key index: block at {row}")
        at, row = at + 9 + (1 << b) + 3 * n, row + rows
    check((at, row) == (len(data), len(keys)), "key index: blocks")


def check_statistics(rows: list[tuple], chunk: dict, schema: dict) -> None:
    offsets = [row[0] for row in rows]
    check(offsets == sorted(set(offsets)), "offsets rise")
    check(all(chunk["base"] <= o < chunk["next"] for o in offsets), "offsets lie in the chunk")
    size = sum(
        12
        + sum(content_sizes(key, value, schema))
        + sum(len(name.encode()) + len(b or b"") for name, b in headers)
        for _, _, key, value, headers, _ in rows
    )
    times = [row[1] // 1000 for row in rows]
    horizons = [row[5] for row in rows if row[5] is not None]
    made = {
        "bytes": size,
        "first_ms": times[0],
        "max_ms": max(times),
        "tombstones": sum(row[3] is None for row in rows),
        "horizon_min": min(horizons, default=-1),
        "horizon_max": max(horizons, default=-1),
    }
    check(made == {name: chunk[name] for name in made}, f"{made} is not {chunk}")


def content_sizes(key: Any, value: Any, schema: dict) -> tuple[int, int]:
    """§3.3, §12.2: what key and value count."""
    if not types.is_typed(schema):
        return len(key or b""), len(value or b"")
    return len(types.key_bytes(key, schema["key"]) or b""), types.size(value, schema["value"])


def horizon_of(row: tuple, chunk: dict) -> int | None:
    """§5.3."""
    own = None if row[5] is None or row[5] < 0 else row[5]
    if row[3] is not None or own is not None:
        return own
    if chunk["horizon"] < 0 or row[0] >= chunk["up_to"]:
        return None
    return min(chunk["horizon"], 2**63 - 1)


def bits(root: Path, chunk: dict) -> int:
    """§5.4: the chunk's dead rows, as a number whose bit i stands for row i."""
    if "dead" not in chunk:
        return 0
    dead = chunk["dead"]
    if "bits" in dead:
        data = bytes.fromhex(dead["bits"])
    else:
        data = inside(root, dead["path"]).read_bytes()
        check(len(data) == dead["bytes"], "bitmap")
        check(xxhash.xxh3_128_hexdigest(data) == dead["xxh3_128"], "bitmap's sum")
    packed = zlib.decompress(data)
    found = int.from_bytes(packed, "little")
    check(len(packed) == (chunk["rows"] + 7) // 8 and not found >> chunk["rows"], "bitmap's length")
    check(found.bit_count() == dead["rows"], "bitmap's rows")
    return found
