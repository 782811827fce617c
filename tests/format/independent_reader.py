"""A second reader of the format, written from storage/FORMAT.md alone: it imports nothing of clog.

It knows two ways to the newest state, `replay` (all commits from 0, what they carry ignored) and
`from_snapshot` (the snapshot and what commits carry), and checks what FORMAT.md says on the way.
The reader is in `second_reader`; here it has the form in which tests compare states.
"""

from pathlib import Path
from typing import Any

from second_reader import history, keys, log, objects, state
from second_reader.documents import Folder, FormatError, safe_path

CHUNK = tuple(state.CHUNK_FIELDS.split())
FIELDS = (
    *("version", "id", "time_ms", "log", "config", "config_epoch", "orphan_floor"),
    *("oldest_readable", "tombstones_removed", "uncleanable", "unended", "markers"),
    "orders_removed",
)
COLUMNS = ("start", "end", "jitter_ms", "changed", "first_dirty", "covered")
DamagedError = FormatError
State = dict[str, Any]


def folder(root: Path) -> Path:
    """The folder of the log that is at the root."""
    return log.log_folder(root)


def inside(root: Path, path: str) -> Path:
    """A path of a document, in the log's folder."""
    return folder(root) / safe_path(path)


def commit(root: Path, version: int) -> dict:
    """A commit, checked by itself."""
    return log.Log(root).commit(version)


def check(root: Path) -> None:
    """Reads every version that is readable, with all that it refers to."""
    log.Log(root).check()


def replay(root: Path, version: int | None = None) -> State:
    """The state after all commits from 0; each commit's parent, time and head are checked."""
    opened = log.Log(root)
    last = opened.newest.version if version is None else version
    return as_compared(opened, history.replay(opened, last))


def from_snapshot(root: Path, version: int | None = None) -> State:
    """The state from the snapshot that the head names, by walking back over what commits carry."""
    opened = log.Log(root)
    return as_compared(opened, opened.newest if version is None else opened.state(version))


def as_compared(opened: log.Log, found: state.State) -> State:
    """A state as a dictionary; `state` is itself."""
    writers = [*opened.paged_writers(found), *found.writers]
    chunks = [chunk for partition in found.partitions for chunk in partition.chunks()]
    return {
        **{name: getattr(found, name) for name in FIELDS},
        **{name: [getattr(p, name) for p in found.partitions] for name in COLUMNS},
        "released": [(path, *rest) for path, rest in found.released.items()],
        "objects": {chunk.object.path: vars(chunk.object) for chunk in chunks},
        "segments": [[segment_of(s) for s in p.segments] for p in found.partitions],
        "writers": {(w[1], w[0]): w for w in writers},
        "recent": found.writers,
        "older": found.older_writers,
        "state": found,
    }


def segment_of(segment: state.Segment) -> dict:
    chunks = [
        {
            "object": chunk.object.path,
            **dict(zip(CHUNK, chunk.numbers(), strict=True)),
            **({"dead": chunk.dead} if chunk.dead else {}),
            **({} if chunk.mask is None else {"mask": chunk.mask}),
            **({"undecided": chunk.undecided} if chunk.undecided else {}),
            **({"aborted": True} if chunk.aborted else {}),
        }
        for chunk in segment.chunks
    ]
    range_ = {"base": segment.base, "next": segment.next}
    return {**range_, "created_ms": segment.created_ms, "chunks": chunks}


def manifest(found: State) -> State:
    """The state without what differs by its nature, for comparing the two ways."""
    return {name: value for name, value in found.items() if name not in ("writers", "state")}


def records(root: Path, found: State, p: int, *, committed: bool = True) -> list[tuple]:
    """§5: (offset, timestamp µs, key, value, headers, delete horizon ms) of a partition; §11.2:
    those that were committed, or undecided ones, too.
    """
    own, files = found["state"], Folder(folder(root))
    end = own.stable(p) if committed else own.partitions[p].end
    partition, rows = own.partitions[p], []
    for chunk in partition.chunks():
        if chunk.aborted:
            continue
        stored = objects.read_object(files, chunk.object, own.schema)
        objects.check_statistics(chunk, stored)
        objects.check_index(files, chunk.object, stored, own.log["seed"])
        rows += objects.records(chunk, stored, objects.dead_rows(files, chunk))
    return [
        (r.offset, r.timestamp_us, r.key, r.value, r.headers or [], r.delete_horizon)
        for r in rows
        if partition.start <= r.offset < end
    ]


def table(root: Path, found: State, p: int) -> dict[bytes, bytes]:
    """§8, §15: the table of a partition."""
    return {row[2]: row[3] for row in winners(root, found, p) if row[3] is not None}


def winners(root: Path, found: State, p: int, start: int = 0) -> list[tuple]:
    """§8, §15: the records of a partition that win their keys, tombstones too."""
    config = found["config"]
    drops = config.get("compaction.late") == "drop"
    pairs = [(order, end) for q, order, end in found["orders_removed"] if q == p and drops]
    rows = [row for row in records(root, found, p) if row[2] is not None and row[0] >= start]
    ranked = [(order_value(row, config), repr(row[2]), row) for row in rows]
    counted = {
        key
        for order, key, row in ranked
        if not any(end <= row[0] and highest >= order for highest, end in pairs)
    }
    best: dict[str, tuple[int, tuple]] = {}
    for order, key, row in ranked:
        if key in counted and (key not in best or best[key][0] <= order):
            best[key] = order, row
    return [row for _, row in best.values()]


def order_value(row: tuple, config: dict[str, str]) -> int:
    """§15: what a row is compared by before its offset."""
    strategy = config.get("compaction.strategy", "offset")
    if strategy == "timestamp":
        return int(row[1])
    if strategy == "offset":
        return 0
    named = [value for name, value in row[4] if name == config["compaction.strategy.header"]]
    value = named[-1] if named else None
    number = int.from_bytes(value, "big", signed=True) if value and len(value) == 8 else -1
    return number if 0 <= number < 1 << 62 else -1


def partition_of(key: bytes, described: dict) -> int:
    """§5.6."""
    return keys.partition_of(key, described["partitioner"], described["partitions"])
