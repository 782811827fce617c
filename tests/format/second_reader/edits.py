"""Edits (FORMAT.md §3.2, §3.3): what each of their keys does to a state."""

from collections.abc import Callable
from dataclasses import replace as changed
from typing import Any

from second_reader.documents import Json, columns, horizon, integer, need, safe_path
from second_reader.masks import check_covered, covered, masks
from second_reader.replacements import lose, lose_bitmap, partition_at, replace
from second_reader.state import (
    Chunk,
    DataObject,
    Partition,
    Segment,
    State,
    bitmap,
    check_answer,
    check_chunk,
    check_config,
    check_cuts,
    check_erasures,
    check_features,
    check_log,
    check_writer,
    data_object,
)
from second_reader.types import parse_schema
from second_reader.undecided import (
    Joining,
    committed,
    drop_markers,
    ends,
    hold,
    joins,
    marked,
    unmarked,
)


def create(log_id: str, commit: Json, edit: Json) -> State:
    """The state after version 0."""
    body = edit.get("create")
    need(
        isinstance(body, dict) and set(edit) <= {"create", "config"},
        "3.2",
        "version 0 creates the log",
    )
    assert isinstance(body, dict)
    check_log(body)
    need(body["log_id"] == log_id, "1", "a commit of another log")
    partitions = [Partition() for _ in range(body["partitions"])]
    log = {**body, "features": {name: list(body["features"][name]) for name in ("read", "write")}}
    state = State(0, commit["id"], commit["time_ms"], log, partitions, parse_schema(body["schema"]))
    if "config" in edit:
        _config(state, edit["config"])
    return state


def apply(state: State, commit: Json, edit: Json) -> None:
    """Makes the state of the next version; ``commit`` has its version, id and time."""
    need(
        commit["version"] == state.version + 1 and "create" not in edit,
        "3.2",
        "an edit out of order",
    )
    reset = edit.get("reset_times", False) is True
    need(reset or commit["time_ms"] >= state.time_ms, "3.1", "a commit time below its parent's")
    state.version, state.id, state.time_ms = commit["version"], commit["id"], commit["time_ms"]
    objects: list[DataObject] = []
    joining: list[Joining] = []
    for key, step in STEPS.items():
        if key in edit:
            step(state, edit[key])
        if key == "ends" and "unended" in edit:
            joining = joins(state, edit["unended"])
        if key == "uncleanable" and "add" in edit:
            objects = _add(state, edit["add"])
        if key == "uncleanable" and "reached_after" in edit:
            _reached(state, edit["reached_after"])
        if key == "uncleanable":
            hold(state, joining, objects)
        if key == "uncleanable" and "writers" in edit:
            _writers(state, edit["writers"], len(objects))
            committed(state, edit["writers"], objects)
    check_covered(state)
    state.check_object_names()


def _chunk(state: State, entry: Any, size: int) -> Chunk:
    need(isinstance(entry, list) and len(entry) == size, "3.2", "an entry of another length")
    name = safe_path(entry[1]), integer(entry[2], "3.2")
    found = [chunk for chunk in partition_at(state, entry[0]).chunks() if chunk.name == name]
    need(len(found) == 1, "3.2", f"no chunk {name} in partition {entry[0]}")
    return found[0]


def _features(state: State, value: Json) -> None:
    names = check_features(value)
    for name in ("read", "write"):
        known = state.features
        state.log["features"][name] += [each for each in names[name] if each not in known]
    check_log(state.log)


def _config(state: State, value: Any) -> None:
    check_config(value)
    state.config, state.config_epoch = dict(value), state.version


def _reached(state: State, value: Json) -> None:
    state.need_taken_offsets()
    for number, offset in value.items():
        partition = partition_at(state, number)
        need(integer(offset, "16") > partition.end, "16", "an end that was reached before")
        partition.active.next = offset


def _gives_offsets(state: State, value: Any) -> None:
    need(value is True, "16", "gives_offsets is true or absent")
    state.need_taken_offsets()
    state.gives_offsets = state.version


def _start(state: State, value: Json) -> None:
    for number, offset in value.items():
        partition = partition_at(state, number)
        need(integer(offset, "3.2") <= partition.end, "3.2", "a start beyond the end")
        partition.start = max(partition.start, offset)
        partition.first_dirty = max(partition.first_dirty, partition.start)
        partition.changed = state.version
    drop_markers(state)


def _seal_active(partition: Partition, jitter_ms: int) -> None:
    need(len(partition.active.chunks) > 0, "3.2", "an empty segment is sealed")
    partition.segments.append(Segment(partition.end, partition.end))
    partition.jitter_ms = integer(jitter_ms, "3.2")


def _seal(state: State, value: list[list[int]]) -> None:
    for number, jitter_ms in value:
        _seal_active(partition_at(state, number), jitter_ms)


def _drop(state: State, value: Json) -> None:
    for number, base in value.items():
        partition = partition_at(state, number)
        need(integer(base, "3.2") <= partition.start, "3.2", "a drop beyond the start")
        gone = [segment for segment in partition.segments[:-1] if segment.next <= base]
        partition.segments = partition.segments[len(gone) :]
        partition.changed = state.version
        for segment in gone:
            for chunk in segment.chunks:
                lose(state, chunk)


def _horizons(state: State, value: list[list[Any]]) -> None:
    for entry in value:
        chunk = _chunk(state, entry, 5)
        need(chunk.horizon == -1, "3.2", "a horizon is given twice")
        chunk.horizon, chunk.up_to = horizon(entry[3], "3.2"), integer(entry[4], "3.2")
        partition_at(state, entry[0]).changed = state.version


def _dead(state: State, value: list[list[Any]]) -> None:
    names = [tuple(entry[:3]) for entry in value]
    need(len(set(names)) == len(names), "3.2", "a chunk gets two bitmaps")
    for entry in value:
        chunk = _chunk(state, entry, 4)
        partition = partition_at(state, entry[0])
        need(
            all(chunk is not each for each in partition.active.chunks),
            "3.2",
            "dead rows in the active segment",
        )
        need(chunk.is_ordinary, "11.2", "dead rows of no ordinary chunk")
        new = bitmap(entry[3], chunk.rows)
        if chunk.dead:
            need(
                new["since_ms"] == chunk.dead["since_ms"] and new["rows"] >= chunk.dead["rows"],
                "5.4",
                "a lesser bitmap",
            )
            lose_bitmap(state, chunk)
        chunk.dead = new
        partition.changed = state.version


def _first_dirty(state: State, value: Json) -> None:
    for number, offset in value.items():
        partition = partition_at(state, number)
        partition.first_dirty, partition.changed = integer(offset, "3.2"), state.version


def _tombstones_removed(state: State, value: Json) -> None:
    for number, offset in value.items():
        partition_at(state, number)
        p = int(number)
        integer(offset, "3.2")
        kept = [step for step in state.tombstones_removed if step[0] != p or step[2] > offset]
        state.tombstones_removed = [*kept, (p, state.version, offset)]


def _orders_removed(state: State, value: Json) -> None:
    need("order-values" in state.features, "15", "order values without their feature")
    kept = [pair for pair in state.orders_removed if str(pair[0]) not in value]
    for number, pairs in value.items():
        partition_at(state, number)
        for pair in pairs:
            order, end = (integer(each, "15") for each in pair)
            need(len(pair) == 2 and min(order, end) >= 0, "15", "no pair")
            kept.append((int(number), order, end))
    state.orders_removed = sorted(kept, key=lambda pair: (pair[0], pair[2]))


def _uncleanable(state: State, value: Json) -> None:
    for number, reason in value.items():
        partition_at(state, number)
        state.uncleanable.pop(number, None)
        if reason is not None:
            state.uncleanable[number] = dict(reason)


def _add(state: State, body: Json) -> list[DataObject]:
    time_ms = integer(body.get("append_time_ms", -1), "3.3", -1)
    given = body.get("given", False)
    need(isinstance(given, bool), "16", "given is true or absent")
    names = "p rows base bytes first_ms max_ms tombstones"
    if given:
        state.need_taken_offsets()
        need(time_ms == -1, "16", "given offsets with other times than their own")
        names += " next"
    for each in body["rolls"]:
        need(all(integer(number, "3.3") >= 0 for number in each), "3.3", "no roll")
    rolls = {(p, base): jitter for p, base, jitter in body["rolls"]}
    objects = []
    for each in body["objects"]:
        described = data_object(each)
        need(described.dense or given, "3.3", "a fresh object that is not dense")
        objects.append(described)
        row = 0
        previous = -1
        for p, rows, base, size, first, newest, tombstones, *end in columns(
            each["chunks"], names, "3.3"
        ):
            partition = partition_at(state, p)
            need(p > previous, "5.1", "partitions out of order in an object")
            previous = p
            chunk = Chunk(
                described,
                row,
                rows,
                base,
                end[0] if end else base + rows,
                size,
                first,
                newest,
                tombstones,
                state.version,
            )
            check_chunk(changed(chunk, append_time_ms=time_ms))
            need(base == partition.end, "3.3", "an append that leaves a gap")
            need(
                time_ms == -1 or first == newest == time_ms,
                "3.3",
                "times other than the append time",
            )
            if (p, base) in rolls:
                _seal_active(partition, rolls.pop((p, base)))
            _append(partition, changed(chunk, append_time_ms=time_ms), state.time_ms)
            row += rows
        need(row == described.rows, "3.3", "rows of an object in no chunk")
    need(not rolls, "3.3", "a roll before no chunk")
    return objects


def _append(partition: Partition, chunk: Chunk, time_ms: int) -> None:
    active = partition.active
    if not active.chunks:
        active.created_ms = time_ms
    active.chunks.append(chunk)
    active.next = chunk.next


def _writers(state: State, value: list[list[Any]], objects: int) -> None:
    for entry in value:
        check_writer(entry, 2)
        first, end = integer(entry[5], "3.2"), integer(entry[6], "3.2")
        need(first <= end <= objects, "3.2", "a writer of objects that are not there")
        state.writers = [each for each in state.writers if each[:2] != entry[:2]]
        state.writers.append([*entry[:5], state.version, *entry[7:]])


def _older_writers(state: State, value: Json) -> None:
    left: Any = value.get("left")
    need(isinstance(left, list) and left == sorted(set(left)), "3.2", "places out of order")
    need(
        all(0 <= integer(place, "3.2") < len(state.writers) for place in left),
        "3.2",
        "no such place",
    )
    state.writers = [each for place, each in enumerate(state.writers) if place not in set(left)]
    state.older_writers = {name: value[name] for name in ("path", "bytes", "count", "level")}
    safe_path(value["path"])
    for name in ("bytes", "count", "level"):
        integer(value[name], "3.2")
    need(value["level"] <= 8, "4", "a tree of more than 8 levels")


def _combined(state: State, value: Json) -> None:
    before = state.combined or {"first": 0, "authors": []}
    first = max(before["first"], integer(value.get("first", 0), "21"))
    need(first < state.version, "21", "answers of later versions are forgotten")
    answers = {each[0]: each for each in before["authors"]}
    named: Any = value.get("authors", [])
    for author, number, applied in named:
        check_answer(author, number, applied)
        was = answers.pop(author, None)
        need(was is None or was[1] < number, "21", "an operation is answered twice")
        answers[author] = [author, number, state.version, applied, state.time_ms]
    need(len({each[0] for each in named}) == len(named), "21", "an author is named twice")
    kept = [each for each in answers.values() if each[2] > first]
    state.combined = {"first": first, "authors": kept}


def _orphan_floor(state: State, value: int) -> None:
    state.orphan_floor = integer(value, "3.2")


def _oldest_readable(state: State, value: int) -> None:
    state.oldest_readable = integer(value, "3.2")


def _reset_times(state: State, value: bool) -> None:
    need(value is True, "3.2", "reset_times is true")
    now = state.time_ms
    for partition in state.partitions:
        need(not partition.active.chunks, "3.2", "an active segment holds a chunk")
        partition.changed = state.version
        for segment in partition.segments:
            segment.created_ms = min(segment.created_ms, now)
        for chunk in partition.chunks():
            if chunk.append_time_ms > now:
                chunk.append_time_ms = chunk.first_ms = chunk.max_ms = now
            if chunk.dead and chunk.dead["since_ms"] > now:
                chunk.dead = {**chunk.dead, "since_ms": now}
    if state.combined is not None:
        answers = [[*a[:4], min(a[4], now)] for a in state.combined["authors"]]
        state.combined = {**state.combined, "authors": answers}
    state.unended = [
        {**entry, "started_ms": min(entry["started_ms"], now)} for entry in state.unended
    ]
    state.released = {path: (size, v, min(t, now)) for path, (size, v, t) in state.released.items()}
    state.uncleanable = {
        p: {**why, "time_ms": min(why["time_ms"], now)} for p, why in state.uncleanable.items()
    }
    times = {"requested_ms", "killed_ms", "rewritten_ms"}
    state.erasures = {
        name: {**one, **{ms: min(one[ms], now) for ms in times & one.keys()}}
        for name, one in state.erasures.items()
    }


def _forget(state: State, value: list[str]) -> None:
    for path in value:
        state.released.pop(safe_path(path), None)


def _merged(name: str) -> Callable[[State, Any], None]:
    """The step that gives `kept`, `members` or `cuts` other entries (§20)."""

    def step(state: State, value: Any) -> None:
        need(isinstance(value, dict), "20", "no object")
        after = {**getattr(state, name), **value}
        setattr(state, name, {key: each for key, each in after.items() if each is not None})
        check_cuts(state.kept, state.members, state.cuts)

    return step


def _erasures(state: State, value: Any) -> None:
    need(isinstance(value, dict), "17", "no object")
    after = {**state.erasures, **value}
    state.erasures = {name: each for name, each in after.items() if each is not None}
    check_erasures(state)


STEPS: dict[str, Callable[[State, Any], None]] = {
    "features": _features,
    "schema": State.add_schema,
    "config": _config,
    "reached": _reached,
    "start": _start,
    "seal": _seal,
    "drop": _drop,
    "replace": replace,
    "horizons": _horizons,
    "dead": _dead,
    "marked": marked,
    "unmarked": unmarked,
    "masks": masks,
    "covered": covered,
    "ends": ends,
    "first_dirty": _first_dirty,
    "tombstones_removed": _tombstones_removed,
    "orders_removed": _orders_removed,
    "uncleanable": _uncleanable,
    "older_writers": _older_writers,
    "combined": _combined,
    "orphan_floor": _orphan_floor,
    "oldest_readable": _oldest_readable,
    "erasures": _erasures,
    "kept": _merged("kept"),
    "members": _merged("members"),
    "cuts": _merged("cuts"),
    "reset_times": _reset_times,
    "forget": _forget,
    "gives_offsets": _gives_offsets,
}
