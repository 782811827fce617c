"""The log's table as an Iceberg table (format 3): ``metadata/v<N>.metadata.json`` at the log's
root, over the log's own objects; needs fastavro, the extra `iceberg`.

Each version has its own snapshot with manifests and their list, in Avro, written anew, so that
readers need not read those of earlier versions; and the deletion vectors of all its objects in one
Puffin file, a blob for each. All are in the log's folder; the metadata, created if absent, makes
them a version. It also has the snapshots of earlier versions with a pin, which time travel reads. A
mapping names the columns of objects without field ids.

Iceberg names locations in full: a log that was copied or moved is published anew. Nothing in its
format keeps writers out: ``gc.enabled=false`` forbids operations that delete files, and a metadata
file that another writer created is followed by one of ours that ignores it.

A view is *withdrawn* if its newest version has no snapshot, and is the first to stay.
"""

import io
import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from clog.storage.column_kinds import word_for
from clog.storage.commit.tip import StandingLog
from clog.storage.env import dataclass, from_extra
from clog.storage.errors import CorruptionError, InvalidInputError, StoreUnavailableError
from clog.storage.format import documents
from clog.storage.format.log_info import LIST, MAP, STRUCT, VALUE_ID, SchemaField
from clog.storage.publications.source import (
    OF_BYTES,
    WITHDRAWN,
    HiddenRows,
    Seen,
    Source,
    TableState,
    Withdrawal,
    create_version,
    reads_view,
    said_by,
    says,
    uuid_of,
)
from clog.storage.view_formats import ICEBERG

HINT: Final = "metadata/version-hint.text"
SNAPSHOTS_MAX: Final = 100
"""Snapshots in one metadata file, which every reader reads as a whole."""

_CLOG: Final = "clog."
"""How properties begin that say whose a version is, and what it shows."""
_VIEW: Final = "clog.view"
_MAGIC = b"PFA1"
_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
_ROW_POSITION = 2147483645
"""Iceberg's id of the column of a row's position."""
_ADDED: Final = 1
_DATA, _DELETES = 0, 1

Metadata = dict[str, Any]


def _field(number: int, name: str, type_: Any, *, optional: bool = False) -> dict[str, Any]:
    if optional:
        return {"name": name, "type": ["null", type_], "default": None, "field-id": number}
    return {"name": name, "type": type_, "field-id": number}


_PARTITION = {"type": "record", "name": "r102", "fields": []}
_FILE = {
    "type": "record",
    "name": "r2",
    "fields": [
        _field(134, "content", "int"),
        _field(100, "file_path", "string"),
        _field(101, "file_format", "string"),
        _field(102, "partition", _PARTITION),
        _field(103, "record_count", "long"),
        _field(104, "file_size_in_bytes", "long"),
        _field(142, "first_row_id", "long", optional=True),
        _field(143, "referenced_data_file", "string", optional=True),
        _field(144, "content_offset", "long", optional=True),
        _field(145, "content_size_in_bytes", "long", optional=True),
    ],
}
_ENTRY = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        _field(0, "status", "int"),
        _field(1, "snapshot_id", "long", optional=True),
        _field(3, "sequence_number", "long", optional=True),
        _field(4, "file_sequence_number", "long", optional=True),
        _field(2, "data_file", _FILE),
    ],
}
_LISTED = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _field(500, "manifest_path", "string"),
        _field(501, "manifest_length", "long"),
        _field(502, "partition_spec_id", "int"),
        _field(517, "content", "int"),
        _field(515, "sequence_number", "long"),
        _field(516, "min_sequence_number", "long"),
        _field(503, "added_snapshot_id", "long"),
        _field(504, "added_files_count", "int"),
        _field(505, "existing_files_count", "int"),
        _field(506, "deleted_files_count", "int"),
        _field(512, "added_rows_count", "long"),
        _field(513, "existing_rows_count", "long"),
        _field(514, "deleted_rows_count", "long"),
        _field(520, "first_row_id", "long", optional=True),
    ],
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The numbers of a snapshot; its rows have ids from ``first_row`` on."""

    id: int
    sequence: int
    first_row: int


def _avro() -> Any:
    """Returns fastavro; raises if it is not installed."""
    with from_extra("iceberg", "publishing as Iceberg", "fastavro"):
        return import_module("fastavro")


def _puffin(hidden: Sequence[tuple[str, HiddenRows]]) -> tuple[bytes, list[tuple[int, int]]]:
    """Returns the file with the vectors of these objects, and where each begins, by path."""
    file, places, described = bytearray(_MAGIC), [], []
    for path, rows in hidden:
        body = _VECTOR_MAGIC + rows.roaring
        data = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
        places.append((len(file), len(data)))
        described.append(
            {
                "type": "deletion-vector-v1",
                "fields": [_ROW_POSITION],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(file),
                "length": len(data),
                "properties": {"referenced-data-file": path, "cardinality": str(rows.rows)},
            }
        )
        file += data
    footer = json.dumps({"blobs": described, "properties": {"created-by": "clog"}}).encode()
    file += _MAGIC + footer + struct.pack("<II", len(footer), 0) + _MAGIC
    return bytes(file), places


def _file(content: int, path: str, kind: str, rows: int, size_bytes: int) -> Metadata:
    return {
        "content": content,
        "file_path": path,
        "file_format": kind,
        "partition": {},
        "record_count": rows,
        "file_size_in_bytes": size_bytes,
    }


def _manifest(
    location: str, files: Sequence[Metadata], snapshot: Snapshot, schema: Any
) -> tuple[bytes, Metadata]:
    """Returns a manifest, and its entry in the list."""
    content = files[0]["content"] if files else _DATA
    entries = [
        {
            "status": _ADDED,
            "snapshot_id": snapshot.id,
            "sequence_number": snapshot.sequence,
            "file_sequence_number": snapshot.sequence,
            "data_file": file,
        }
        for file in files
    ]
    about = {
        "schema": json.dumps(schema),
        "schema-id": str(schema["schema-id"]),
        "partition-spec": "[]",
        "partition-spec-id": "0",
        "format-version": "3",
        "content": "data" if content == _DATA else "deletes",
    }
    data = _encoded(_ENTRY, entries, about)
    return data, {
        "manifest_path": location,
        "manifest_length": len(data),
        "partition_spec_id": 0,
        "content": content,
        "sequence_number": snapshot.sequence,
        "min_sequence_number": snapshot.sequence,
        "added_snapshot_id": snapshot.id,
        "added_files_count": len(files),
        "existing_files_count": 0,
        "deleted_files_count": 0,
        "added_rows_count": sum(file["record_count"] for file in files),
        "existing_rows_count": 0,
        "deleted_rows_count": 0,
        "first_row_id": snapshot.first_row if content == _DATA else None,
    }


def _encoded(schema: Any, rows: Sequence[Any], about: Mapping[str, str]) -> bytes:
    sink = io.BytesIO()
    # The same marker each time, so that writing it twice makes the same file.
    _avro().writer(
        sink, schema, rows, metadata=dict(about), codec="deflate", sync_marker=b"clog" * 4
    )
    return sink.getvalue()


_NOT_IN_THE_VIEW: Final = {"delete_horizon": 8, "offset": 2147483540}
"""Other columns that objects may have, with their ids: readers want each to have one."""


def iceberg_schema(
    columns: Sequence[SchemaField], schema_id: int = 0, *, url: str
) -> dict[str, Any]:
    """Returns the columns of a view as Iceberg's JSON, with the ids of FORMAT.md §12.2. Raises if
    Iceberg has no type for a field.
    """
    fields = [
        {"id": f.id, "name": f.name, "required": False, "type": _type(f, f.name, url)}
        for f in columns
    ]
    return {"type": "struct", "schema-id": schema_id, "fields": fields}


def _numbered(schema: Metadata, others: Sequence[Metadata]) -> Metadata:
    """Returns the schema under an id that no other one of the table has."""
    for other in others:
        if other["fields"] == schema["fields"]:
            return other
    ids = [other["schema-id"] for other in others]
    return {**schema, "schema-id": max(ids) + 1} if schema["schema-id"] in ids else schema


def _ids(mapped: list[dict[str, Any]]) -> Iterator[int]:
    for one in mapped:
        yield one["field-id"]
        yield from _ids(one.get("fields", []))


def _mapped(type_: Any) -> list[dict[str, Any]]:
    if not isinstance(type_, dict):
        return []
    if type_["type"] == "struct":
        inside = [(f["id"], f["name"], f["type"]) for f in type_["fields"]]
    elif type_["type"] == "list":
        inside = [(type_["element-id"], "element", type_["element"])]
    else:
        inside = [(type_[f"{name}-id"], name, type_[name]) for name in ("key", "value")]
    return [
        {"field-id": i, "names": [name], **({"fields": below} if (below := _mapped(t)) else {})}
        for i, name, t in inside
    ]


def _type(field: SchemaField, path: str, url: str) -> Any:
    if field.kind in (STRUCT, LIST, MAP):
        return _nested(field, path, url)
    if (word := word_for("iceberg", field.kind)) is not None:
        return word
    raise InvalidInputError(
        f"{path} of {url} is {field.kind}, for which Iceberg has no type; the log cannot be"
        " published as Iceberg; nothing was changed"
    )


def _nested(field: SchemaField, path: str, url: str) -> dict[str, Any]:
    types = [_type(inside, f"{path}.{inside.name}", url) for inside in field.fields]
    if field.kind == STRUCT:
        fields = [
            {"id": inside.id, "name": inside.name, "required": False, "type": type_}
            for inside, type_ in zip(field.fields, types, strict=True)
        ]
        return {"type": "struct", "fields": fields}
    named: dict[str, Any] = {"type": field.kind}
    for inside, type_ in zip(field.fields, types, strict=True):
        named |= {f"{inside.name}-id": inside.id, inside.name: type_}
    optional = "element" if field.kind == LIST else "value"
    return {**named, f"{optional}-required": False}


@dataclass(frozen=True, slots=True)
class IcebergSeen(Seen):
    """What was found of an Iceberg table: the metadata of its newest version."""

    metadata: Metadata


@dataclass(frozen=True, slots=True)
class _Addition:
    """The snapshot that a version adds to earlier ones, which `IcebergView.create` keeps."""

    source: Source
    schema: Metadata
    snapshot: Snapshot
    rows: int
    manifest_list: str


@dataclass(frozen=True, slots=True)
class IcebergVersion:
    """A version to create after ``seen``, with its files written: an addition or a withdrawal."""

    seen: IcebergSeen
    now_ms: int
    shows: _Addition | Withdrawal


class IcebergView:
    """The Iceberg table of one log, as its publisher sees it."""

    row: Final = ICEBERG

    def __init__(self, standing: StandingLog) -> None:
        self._standing = standing
        self.root = standing.root

    @staticmethod
    def check_columns(columns: Sequence[SchemaField], *, url: str) -> None:
        iceberg_schema(columns, url=url)

    @staticmethod
    def log_of(body: bytes) -> object:
        metadata = json.loads(body)
        properties = metadata.get("properties") if isinstance(metadata, dict) else None
        return properties.get(_CLOG + "log") if isinstance(properties, dict) else None

    @property
    def location(self) -> str:
        """The table's location, as its files name it."""
        url = self.root.url
        return url if "://" in url else f"file://{url}"

    @reads_view
    def look(self, known: IcebergSeen | None = None) -> IcebergSeen:
        """Finds the newest version; a LIST, and a GET if it is not ``known``."""
        written_ms: dict[int, int] = {}
        for found in self.root.list(ICEBERG.folder):
            if match := ICEBERG.versions.fullmatch(found.path):
                written_ms[int(match[1])] = found.modified_ms
        newest = max(written_ms, default=0)
        if not newest:
            return self._seen({}, {})
        is_known = known is not None and known.newest == newest
        metadata = known.metadata if known is not None and is_known else self._read(newest)
        return self._seen(metadata, dict(sorted(written_ms.items())))

    def check_installed(self) -> None:
        _avro()

    @reads_view
    def prepared(
        self, seen: IcebergSeen, state: TableState, *, now_ms: int, file_id: str
    ) -> IcebergVersion:
        before = seen.metadata
        name = f"{documents.view_folder(self.row.name, seen.newest + 1)}{file_id}"
        schema = iceberg_schema(state.columns, state.schema_id, url=self.root.url)
        if before and state.source.has_starts_of(seen.source):
            schema = _numbered(schema, before.get("schemas", []))
        snapshot = Snapshot(
            int(file_id[:15], 16),
            int(before.get("last-sequence-number", 0)) + 1,
            int(before.get("next-row-id", 0)),
        )
        rows = self._write_snapshot(state, snapshot, schema, name)
        listed = self._location(f"{name}-list.avro")
        added = _Addition(state.source, schema, snapshot, rows, listed)
        return IcebergVersion(seen, now_ms, added)

    def withdrawn(self, seen: IcebergSeen, said: Withdrawal) -> IcebergVersion:
        return IcebergVersion(seen, said.now_ms, said)

    @reads_view
    def create(self, version: IcebergVersion, lowest_view: int) -> IcebergSeen | None:
        seen, shows, number = version.seen, version.shows, version.seen.newest + 1
        if isinstance(shows, Withdrawal):
            metadata = self._without_snapshots(seen, shows)
        else:
            metadata = self._with_snapshot(seen, shows, lowest_view)
        last_ms = max(version.now_ms, int(seen.metadata.get("last-updated-ms", 0)) + 1)
        metadata["last-updated-ms"] = last_ms
        for entry in metadata["snapshots"][-1:]:
            entry["timestamp-ms"] = last_ms
        self._standing.check()
        body = json.dumps(metadata, separators=(",", ":")).encode()
        if not create_version(self.root, f"metadata/v{number}.metadata.json", body):
            return None
        with suppress(StoreUnavailableError):  # Nothing depends on it.
            self.root.put(HINT, str(number).encode())
        return self._seen(metadata, {**seen.modified_ms, number: version.now_ms})

    @reads_view
    def tidy(self, seen: IcebergSeen, lowest_view: int) -> IcebergSeen:
        """Deletes expired versions: those before ``lowest_view``, the lowest with a pin, and before
        the first that shows nothing deleted.
        """
        if not seen.is_there or seen.is_foreign:
            return seen
        first = int(seen.metadata["properties"].get(_CLOG + "first", 0))
        old = [v for v in seen.modified_ms if v < max(first, lowest_view)]
        for version in old:
            self.root.delete(f"metadata/v{version}.metadata.json")
        left = {v: ms for v, ms in seen.modified_ms.items() if v not in old}
        return self._seen(seen.metadata, left)

    def _seen(self, metadata: Metadata, modified_ms: Mapping[int, int]) -> IcebergSeen:
        newest, about = max(modified_ms, default=0), _about(metadata)
        is_foreign = bool(metadata) and not documents.is_log_id(about.get("log"))
        source, withdrawn_ms = None, None
        if not is_foreign and metadata.get("location") == self.location:
            # One that only alters the table keeps our snapshot, which is an earlier version's.
            snapshots = metadata.get("snapshots") or [{}]
            is_ours = metadata.get("current-snapshot-id") == snapshots[-1].get("snapshot-id")
            is_ours &= snapshots[-1].get("summary", {}).get(_VIEW) == str(newest)
            if metadata.get("snapshots"):
                about.pop(WITHDRAWN, None)
            source, withdrawn_ms = said_by(about)
            source = source if is_ours else None
        return IcebergSeen(
            newest=newest,
            modified_ms=modified_ms,
            is_there=newest > 0,
            is_foreign=is_foreign,
            log_id=about.get("log") if source or withdrawn_ms is not None else None,
            source=source,
            withdrawn_ms=withdrawn_ms,
            metadata=metadata,
        )

    @reads_view
    def unnamed(self, seen: IcebergSeen, files: Mapping[str, int]) -> set[str]:
        if not seen.modified_ms:
            return set(files)
        oldest = min(seen.modified_ms)
        snapshots = self._read(oldest)["snapshots"]
        views = (int(s["summary"].get(_VIEW, 0)) for s in snapshots)
        # A version without a snapshot is withdrawn, and names nothing itself.
        needed = min(views, default=oldest + 1)
        return {path for path, version in files.items() if version < needed}

    @reads_view
    def named(self, seen: IcebergSeen, first: int = 0) -> set[str]:
        """Returns the paths that the newest version names: objects, manifests, vectors."""
        found: set[str] = set()
        for snapshot in seen.metadata.get("snapshots", []):
            if int(snapshot["summary"].get(_VIEW, 0)) < first:
                continue
            found.add(listed := self._relative(snapshot["manifest-list"]))
            for manifest in self._records(listed):
                found.add(path := self._relative(manifest["manifest_path"]))
                files = (entry["data_file"]["file_path"] for entry in self._records(path))
                found |= {self._relative(file) for file in files}
        return found

    def _records(self, path: str) -> list[dict[str, Any]]:
        try:
            data = self._standing.store.get(path)
        except FileNotFoundError as e:
            raise CorruptionError(f"the Iceberg table names {path}, which is missing") from e
        try:
            return [*_avro().reader(io.BytesIO(data))]
        except (ValueError, EOFError, TypeError, IndexError) as e:
            raise CorruptionError(f"{path} of {self.root.url} is not an Avro file: {e}") from e

    def _read(self, version: int) -> Metadata:
        path = f"metadata/v{version}.metadata.json"
        try:
            metadata = json.loads(self.root.get(path))
        except (RecursionError, ValueError, FileNotFoundError) as e:
            raise CorruptionError(f"{path} of {self.root.url} cannot be read: {e}") from e
        if not isinstance(metadata, dict):
            raise CorruptionError(f"{path} of {self.root.url} is not Iceberg metadata")
        return metadata

    def _location(self, path: str) -> str:
        return f"{self.location}/{documents.folder_of(self._standing.log_id)}/{path}"

    def _relative(self, location: str) -> str:
        return location.removeprefix(self._location(""))

    def _write_snapshot(self, state: TableState, snapshot: Snapshot, schema: Any, name: str) -> int:
        """Writes manifests, their list and vectors; returns how many rows the objects have."""
        store = self._standing.store
        listed: list[Metadata] = []

        def write_manifest(path: str, files: Sequence[Metadata]) -> None:
            data, said = _manifest(self._location(path), files, snapshot, schema)
            store.put(path, data)
            listed.append(said)

        objects = [(self._location(shown.object.path), shown) for shown in state.objects]
        files, rows = [], 0
        for location, shown in objects:
            ref = shown.object
            file = _file(_DATA, location, "PARQUET", ref.rows, ref.size_bytes)
            files.append({**file, "first_row_id": snapshot.first_row + rows})
            rows += ref.rows
        write_manifest(f"{name}-data.avro", files)
        hidden = [(location, shown.hidden) for location, shown in objects if shown.hidden]
        if hidden:
            puffin, places = _puffin(hidden)
            store.put(f"{name}.puffin", puffin)
            where = self._location(f"{name}.puffin")
            vectors = [
                {
                    **_file(_DELETES, where, "PUFFIN", vector.rows, len(puffin)),
                    "referenced_data_file": location,
                    "content_offset": offset,
                    "content_size_in_bytes": size_bytes,
                }
                for (location, vector), (offset, size_bytes) in zip(hidden, places, strict=True)
            ]
            write_manifest(f"{name}-deletes.avro", vectors)
        about = {"snapshot-id": str(snapshot.id), "sequence-number": str(snapshot.sequence)}
        data = _encoded(_LISTED, listed, {**about, "format-version": "3"})
        store.put(f"{name}-list.avro", data)
        return rows

    def _with_snapshot(self, seen: IcebergSeen, added: _Addition, lowest_view: int) -> Metadata:
        """Returns the next version's metadata, without its time."""
        source, schema, snapshot = added.source, added.schema, added.snapshot
        version = seen.newest + 1
        old = seen.metadata if source.has_starts_of(seen.source) else {}
        snapshots = [
            s for s in old.get("snapshots", []) if int(s["summary"].get(_VIEW, 0)) >= lowest_view
        ][-SNAPSHOTS_MAX + 1 :]
        summary = {"operation": "overwrite", _VIEW: str(version), "clog.version": source.version}
        entry = {
            "snapshot-id": snapshot.id,
            "sequence-number": snapshot.sequence,
            "summary": {name: str(value) for name, value in summary.items()},
            "schema-id": schema["schema-id"],
            "first-row-id": snapshot.first_row,
            "manifest-list": added.manifest_list,
            "added-rows": added.rows,
        }
        if snapshots:
            entry["parent-snapshot-id"] = snapshots[-1]["snapshot-id"]
        schemas = {s["schema-id"]: s for s in (*old.get("schemas", []), schema)}
        first = int(_about(old).get("first", version))
        return {
            **self._table(source.log_id, [*schemas.values()], schema),
            "last-sequence-number": snapshot.sequence,
            "next-row-id": snapshot.first_row + added.rows,
            "properties": _properties(source, first, schema),
            "current-snapshot-id": snapshot.id,
            "refs": {"main": {"snapshot-id": snapshot.id, "type": "branch"}},
            "snapshots": [*snapshots, entry],
        }

    def _without_snapshots(self, seen: IcebergSeen, said: Withdrawal) -> Metadata:
        """Returns a withdrawn version's metadata, with the table's own schema, without its time."""
        before, mine = seen.metadata, _about(seen.metadata).get("log") == said.log_id
        schemas = before["schemas"] if mine else [iceberg_schema(OF_BYTES, url=self.root.url)]
        schema_id = before["current-schema-id"] if mine else 0
        schema = next(s for s in schemas if s["schema-id"] == schema_id)
        return {
            **self._table(said.log_id, schemas, schema),
            "last-sequence-number": int(before.get("last-sequence-number", 0)),
            "next-row-id": int(before.get("next-row-id", 0)),
            "properties": _properties(said, seen.newest + 1, schema),
            "refs": {},
            "snapshots": [],
        }

    def _table(self, log_id: str, schemas: list[Metadata], schema: Metadata) -> Metadata:
        """Returns the metadata that all versions of a log's table have."""
        return {
            "format-version": 3,
            "table-uuid": uuid_of(log_id),
            "location": self.location,
            "last-column-id": max(i for one in schemas for i in _ids(_mapped(one))),
            "schemas": schemas,
            "current-schema-id": schema["schema-id"],
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
        }


def _about(metadata: Metadata) -> dict[str, str]:
    """Returns what a version says about itself."""
    properties = metadata.get("properties", {}).items()
    return {name.removeprefix(_CLOG): value for name, value in properties if name.startswith(_CLOG)}


def _properties(shown: Source | Withdrawal, first: int, schema: Metadata) -> dict[str, str]:
    # The ids of columns by their names, for objects without ids: those of no table columns.
    has_values = any(field["id"] == VALUE_ID for field in schema["fields"])
    others = _NOT_IN_THE_VIEW.items() if has_values else ()
    beside = [{"field-id": i, "names": [name]} for name, i in others]
    mapping = json.dumps([*_mapped(schema), *beside], separators=(",", ":"))
    return {
        "schema.name-mapping.default": mapping,
        "gc.enabled": "false",
        **{_CLOG + name: text for name, text in says(shown, first).items()},
    }
