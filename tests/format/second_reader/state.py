"""The state of a log at a version: partitions, segments, chunks (FORMAT.md §3.4, §4)."""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from second_reader.documents import (
    HEX32,
    Json,
    UnsupportedError,
    columns,
    horizon,
    integer,
    need,
    safe_path,
)
from second_reader.types import BYTES, Schema, check_evolution, has_typed_keys, parse_schema

OBJECT_FIELDS = "path bytes footer xxh3_128 rows stamp dense"
CHUNK_FIELDS = (
    "row rows base next bytes first_ms max_ms tombstones version append_time_ms"
    " horizon_min horizon_max horizon up_to"
)
HEAD_COLUMNS = "start end base bytes chunks first_ms created_ms jitter_ms changed"
KNOWN = {
    *("dead-rows", "typed-columns", "typed-keys", "undecided-records", "given-offsets"),
    "table-columns",
    "columns-by-id",
    "order-values",
}
Name = tuple[str, str, int, int]
"""Home, id, epoch and number of a transaction (§11.2)."""


@dataclass(frozen=True)
class DataObject:
    """What the log says about a data object (§3.3)."""

    path: str
    bytes: int
    footer: int
    xxh3_128: str
    rows: int
    stamp: int
    dense: bool
    index: int


@dataclass
class Chunk:
    """A run of rows of one partition in one object; ``dead`` is its bitmap, ``mask`` its mask,
    ``undecided`` names the transaction that decides it.
    """

    object: DataObject
    row: int
    rows: int
    base: int
    next: int
    bytes: int
    first_ms: int
    max_ms: int
    tombstones: int
    version: int
    append_time_ms: int = -1
    horizon_min: int = -1
    horizon_max: int = -1
    horizon: int = -1
    up_to: int = -1
    dead: Json | None = None
    mask: Json | None = None
    undecided: Name | None = None
    aborted: bool = False

    @property
    def is_ordinary(self) -> bool:
        """Whether it is neither undecided nor aborted (§11.2)."""
        return self.undecided is None and not self.aborted

    @property
    def name(self) -> tuple[str, int]:
        """Object and first row, which name a chunk."""
        return self.object.path, self.row

    def numbers(self) -> tuple[int, ...]:
        """The entries of §4's columns, without the object."""
        return tuple(getattr(self, name) for name in CHUNK_FIELDS.split())


@dataclass
class Segment:
    """A half-open range of offsets; ``next`` of the active one follows the end offset."""

    base: int
    next: int
    created_ms: int = -1
    chunks: list[Chunk] = field(default_factory=list)


@dataclass
class Partition:
    """A partition; its last segment is active."""

    start: int = 0
    first_dirty: int = 0
    jitter_ms: int = 0
    changed: int = 0
    segments: list[Segment] = field(default_factory=lambda: [Segment(0, 0)])
    covered: int = 0

    @property
    def active(self) -> Segment:
        """The segment that appends go to."""
        return self.segments[-1]

    @property
    def end(self) -> int:
        """The next offset."""
        return self.active.next

    def chunks(self) -> list[Chunk]:
        """All chunks in the order of offsets."""
        return [chunk for segment in self.segments for chunk in segment.chunks]

    def head_row(self) -> tuple[int, ...]:
        """The partition's entries of the head's columns (§3.4)."""
        chunks = self.active.chunks
        first_ms = chunks[0].first_ms if chunks else -1
        size = sum(chunk.bytes for chunk in chunks)
        base, created = self.active.base, self.active.created_ms
        return (
            self.start,
            self.end,
            base,
            size,
            len(chunks),
            first_ms,
            created,
            self.jitter_ms,
            self.changed,
        )


@dataclass
class State:
    """The whole log at a version: the manifest, and what the head says."""

    version: int
    id: str
    time_ms: int
    log: Json
    partitions: list[Partition]
    schema: Schema
    config: dict[str, str] = field(default_factory=dict)
    config_epoch: int = 0
    orphan_floor: int = 0
    oldest_readable: int = 0
    writers: list[list[Any]] = field(default_factory=list)
    older_writers: Json | None = None
    released: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    tombstones_removed: list[tuple[int, int, int]] = field(default_factory=list)
    orders_removed: list[tuple[int, int, int]] = field(default_factory=list)
    uncleanable: dict[str, Json] = field(default_factory=dict)
    masked: int | None = None
    kept: Json = field(default_factory=dict)
    members: Json = field(default_factory=dict)
    cuts: Json = field(default_factory=dict)
    erasures: Json = field(default_factory=dict)
    gives_offsets: int | None = None
    combined: Json | None = None
    unended: list[Json] = field(default_factory=list)
    markers: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def features(self) -> list[str]:
        """The names of both lists."""
        return [*self.log["features"]["read"], *self.log["features"]["write"]]

    def stable(self, p: int) -> int:
        """The last stable offset of a partition (§11.2)."""
        partition = self.partitions[p]
        entries = [each.get(name, {}) for each in self.unended for name in ("first", "held")]
        held = [offsets[str(p)] for offsets in entries if str(p) in offsets]
        return max(min(held), partition.start) if held else partition.end

    def need_taken_offsets(self) -> None:
        """Refuses given offsets in a log that assigns them itself (§16)."""
        need("given-offsets" in self.features, "16", "given offsets without their feature")
        need(self.gives_offsets is None, "16", "given offsets in a log that gives them")

    def add_schema(self, body: Json) -> None:
        """The log's next schema (§12)."""
        need("typed-columns" in self.features, "12", "a schema in a log without typed columns")
        schema = parse_schema(body)
        check_evolution(self.schema, schema, by_id="columns-by-id" in self.features)
        self.schema = schema
        self.log["schema"] = body

    def check_object_names(self) -> None:
        """Refuses two descriptions of one object."""
        objects: dict[str, DataObject] = {}
        for partition in self.partitions:
            for chunk in partition.chunks():
                known = objects.setdefault(chunk.object.path, chunk.object)
                need(known == chunk.object, "3.3", f"two descriptions of {known.path}")

    def facts(self) -> dict[str, Any]:
        """Everything that a snapshot of the version contains, for comparison."""
        return {
            "log": self.log,
            "config": (self.config, self.config_epoch),
            "masked": self.masked,
            "cuts": (self.kept, self.members, self.cuts),
            "erasures": self.erasures,
            "gives_offsets": self.gives_offsets,
            "combined": self.combined,
            "versions": (
                self.version,
                self.id,
                self.time_ms,
                self.orphan_floor,
                self.oldest_readable,
            ),
            "writers": (self.writers, self.older_writers),
            "partitions": [(p.head_row(), p.first_dirty, p.covered) for p in self.partitions],
            "segments": [
                [(s.base, s.next, s.created_ms) for s in p.segments] for p in self.partitions
            ],
            "chunks": [
                [
                    (c.object, c.numbers(), c.dead, c.mask, c.undecided, c.aborted)
                    for c in p.chunks()
                ]
                for p in self.partitions
            ],
            "released": self.released,
            "tombstones_removed": sorted(self.tombstones_removed),
            "orders_removed": self.orders_removed,
            "uncleanable": self.uncleanable,
            "unended": self.unended,
            "markers": self.markers,
        }


def check_erasures(state: State) -> None:
    """Refuses invalid entries (§17)."""
    need("erasures" in state.features, "17", "erasures without their feature")
    for name, entry in state.erasures.items():
        need(bool(HEX32.fullmatch(name)), "17", "no id of an erasure")
        for number in ("version", "requested_ms", "keys"):
            integer(entry.get(number), "17")
        steps = ("killed", "killed_ms", "gone", "rewritten", "rewritten_ms", "swept")
        for number in steps:
            integer(entry.get(number, -1), "17", -1)
        for p, offset in [*entry.get("ends", {}).items(), *entry.get("told", {}).items()]:
            need(p.isdecimal() and p == str(int(p)), "17", f"no partition {p!r}")
            need(int(p) < len(state.partitions), "17", f"no partition {p}")
            integer(offset, "17")
        for hashed in entry.get("ids", ()):
            need(bool(re.fullmatch("[0-9a-f]{64}", hashed)), "17", f"no hash {hashed!r}")
        held = columns(entry["held"], "path p base next", "17") if "held" in entry else []
        for path, *numbers in held:
            safe_path(path)
            need(all(integer(n, "17", -1) >= -1 for n in numbers), "17", "no chunk")


def check_log(log: Json) -> None:
    """Refuses an invalid ``create`` (§3.2)."""
    need(bool(HEX32.fullmatch(str(log.get("log_id")))), "1", "no log id")
    integer(log.get("created_ms"), "3.2")
    need(1 <= integer(log.get("partitions"), "3.2") <= 65536, "3.2", "too many partitions")
    read = check_features(log.get("features"))["read"]
    need(bool(re.fullmatch("[0-9a-f]{16}", str(log.get("seed")))), "3.2", "no seed")
    need(isinstance(log.get("seed"), str), "3.2", "no seed")
    schema = log.get("schema")
    need(isinstance(schema, dict), "4", "no schema")
    need(
        ("typed-columns" in read) == (schema != BYTES),
        "12",
        "typed-columns and the schema disagree",
    )
    need(
        ("typed-keys" in read) == has_typed_keys(parse_schema(schema)),
        "12.3",
        "typed-keys and the schema disagree",
    )
    need(
        ("table-columns" in read) == parse_schema(schema).is_table,
        "22",
        "table-columns and the schema disagree",
    )


def check_answer(author: Any, number: Any, applied: Any) -> None:
    """Refuses an answer that cannot be (§21)."""
    need(isinstance(author, str) and bool(re.fullmatch("[0-9a-f]{16}", author)), "21", "no author")
    integer(number, "21")
    need(isinstance(applied, bool), "21", "an answer is true or false")


def check_combined(value: Any) -> None:
    """Refuses invalid answers of a head (§21)."""
    if value is None:
        return
    need(isinstance(value, dict) and isinstance(value.get("authors"), list), "21", "no answers")
    integer(value.get("first"), "21")
    for answer in value["authors"]:
        need(isinstance(answer, list) and len(answer) == 5, "21", "no answer")
        author, number, version, applied, time_ms = answer
        check_answer(author, number, applied)
        for whole in (version, time_ms):
            integer(whole, "21")


def check_cuts(kept: Any, members: Any, cuts: Any) -> None:
    """Refuses invalid keeps, members or cuts (§20)."""
    for body in (kept, members, cuts):
        need(isinstance(body, dict), "20", "no object")
    for key, keep in kept.items():
        need(bool(HEX32.fullmatch(key)) and isinstance(keep, dict), "20", "no keep")
        need(bool(HEX32.fullmatch(str(keep.get("home")))), "20", "a keep without home")
        need(all(isinstance(keep.get(n), str) for n in ("name", "home_url")), "20", "no name")
        for name in ("version", "time_ms"):
            integer(keep.get(name), "20")
        integer(keep.get("until_ms"), "20", -1)
        for name, number in keep.get("views", {}).items():
            need(isinstance(name, str), "20", "no format of a view")
            integer(number, "20")
    for key, url in members.items():
        need(bool(HEX32.fullmatch(key)) and isinstance(url, str), "20", "no member")
    for cut in cuts.values():
        need(isinstance(cut, dict) and "id" in cut, "20", "no cut")
        need(cut["id"] is None or bool(HEX32.fullmatch(str(cut["id"]))), "20", "no id of a cut")
        integer(cut.get("time_ms"), "20")
        integer(cut.get("until_ms"), "20", -1)
        if "logs_at" in cut:
            safe_path(cut["logs_at"].get("path"))
            integer(cut["logs_at"].get("bytes"), "20")
        else:
            check_cut_logs(cut.get("logs"))


def check_cut_logs(logs: Any) -> None:
    """Refuses invalid logs of a cut (§20)."""
    need(isinstance(logs, list), "20", "a cut without logs")
    for log in logs:
        need(isinstance(log, list) and len(log) == 4, "20", "no log of a cut")
        need(all(HEX32.fullmatch(str(log[i])) for i in (0, 3)), "20", "no ids of a log")
        need(isinstance(log[1], str), "20", "no URL of a log")
        integer(log[2], "20")


def check_known(log: Json) -> None:
    """Refuses a log with a feature in ``read`` that this reader does not know (§0)."""
    unknown = set(log["features"]["read"]) - KNOWN
    if unknown:
        raise UnsupportedError("0", f"features {sorted(unknown)}")


def check_config(value: Any) -> None:
    """Refuses an invalid config (§3.2)."""
    need(
        isinstance(value, dict) and all(isinstance(each, str) for each in value.values()),
        "3.2",
        "no config",
    )


def check_features(body: Any) -> Json:
    """Refuses anything but two lists of names (§0)."""
    need(isinstance(body, dict), "0", "no features")
    read, write = body.get("read"), body.get("write")
    need(isinstance(read, list) and isinstance(write, list), "0", "no lists of features")
    need(all(isinstance(each, str) for each in read + write), "0", "a feature is a name")
    need(len(set(read + write)) == len(read + write), "0", "a feature is named twice")
    return dict(body)


def data_object(body: Json) -> DataObject:
    """An object as edits and snapshots describe it."""
    dense, digest = body.get("dense"), body.get("xxh3_128")
    need(isinstance(dense, bool), "3.3", "dense is true or false")
    need(bool(HEX32.fullmatch(str(digest))), "3.3", "no checksum of an object")
    numbers = [integer(body.get(name), "3.3") for name in ("bytes", "footer", "rows", "stamp")]
    size, footer, rows, stamp = numbers
    index = integer(body.get("index", 0), "3.3")
    return DataObject(
        safe_path(body.get("path")), size, footer, str(digest), rows, stamp, bool(dense), index
    )


def chunk_of(described: DataObject, row: Sequence[Any]) -> Chunk:
    """The chunk of a row of ``CHUNK_FIELDS``."""
    *numbers, given, up_to = row
    return Chunk(described, *numbers, horizon=horizon(given, "5.3", -1), up_to=up_to)


def check_chunk(chunk: Chunk) -> None:
    """Refuses a chunk that no rows can have."""
    for number in chunk.numbers():
        integer(number, "3.3", -1)
    need(
        chunk.rows >= 1 and chunk.row + chunk.rows <= chunk.object.rows,
        "3.3",
        "a chunk beyond its object",
    )
    need(chunk.row >= 0 and 0 <= chunk.base < chunk.next, "3.3", "a chunk without offsets")
    need(chunk.next - chunk.base >= chunk.rows, "5.2", "more rows than offsets")
    need(
        0 <= chunk.tombstones <= chunk.rows and chunk.bytes >= 12 * chunk.rows,
        "3.3",
        "impossible statistics",
    )


def bitmap(body: Any, rows: int) -> Json:
    """A bitmap of dead rows of a chunk with this many rows (§5.4)."""
    need(isinstance(body, dict), "5.4", "no bitmap")
    need(1 <= integer(body.get("rows"), "5.4") < rows, "5.4", "a bitmap of no or of all rows")
    integer(body.get("since_ms"), "5.4")
    return {"rows": body["rows"], "since_ms": body["since_ms"], **_bits(body)}


def mask(body: Any, rows: int) -> Json:
    """A mask of a chunk with this many rows (§13)."""
    need(isinstance(body, dict), "13", "no mask")
    parts = {name: body[name] for name in ("superseded", "tombstones") if name in body}
    for part in parts.values():
        need(isinstance(part, dict), "13", "no bitmap")
        need(1 <= integer(part.get("rows"), "13") <= rows, "13", "a bitmap of too many rows")
    return {name: {"rows": part["rows"], **_bits(part)} for name, part in parts.items()}


def _bits(body: Json) -> Json:
    if "bits" in body:
        need(isinstance(body["bits"], str) and "path" not in body, "5.4", "no bits")
        return {"bits": body["bits"]}
    safe_path(body.get("path"))
    integer(body.get("bytes"), "5.4")
    need(bool(HEX32.fullmatch(str(body.get("xxh3_128")))), "5.4", "no checksum of a bitmap")
    return {name: body[name] for name in ("path", "bytes", "xxh3_128")}


def check_writer(entry: Any, after: int) -> None:
    """Refuses an invalid entry (§3.4); this many elements come after ``content``."""
    need(isinstance(entry, list) and len(entry) >= 5 + after, "3.4", "a short writer entry")
    writer, kind, query, sequence, content = entry[:5]
    need(isinstance(writer, str) and 1 <= len(writer.encode()) <= 1024, "3.4", "no writer id")
    need(isinstance(kind, str), "3.4", "no kind of writer")
    need(query is None or isinstance(query, str), "3.4", "no query id")
    need(content is None or isinstance(content, str), "3.4", "no content hash")
    integer(sequence, "3.4", -(1 << 63))
    if kind in ("transaction", "participant"):
        need(
            len(entry) >= 6 + after and isinstance(entry[5 + after], dict),
            "11.1",
            "an id without state",
        )


def head_columns(partitions: Json, count: int) -> list[tuple[int, ...]]:
    """The rows of a head's partition columns, all of the expected number."""
    rows = columns(partitions, HEAD_COLUMNS, "3.4")
    need(len(rows) == count, "3.4", f"{len(rows)} partitions instead of {count}")
    for row in rows:
        for number in row:
            integer(number, "3.4", -1)
    return rows


def columns_digest(rows: list[tuple[int, ...]]) -> str:
    """The XXH3-128 of partition columns, one column after the other (§3.4)."""
    flat = [number for column in zip(*rows, strict=True) for number in column]
    return xxhash.xxh3_128_hexdigest(struct.pack(f"<{len(flat)}q", *flat))
