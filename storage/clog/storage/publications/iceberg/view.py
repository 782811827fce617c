"""The log's table as an Iceberg table: ``metadata/v<N>.metadata.json`` at the log's root, over the
log's own objects.

Each version has a snapshot of its own with manifests, their list, and the vectors in one Puffin
file, all in the log's folder; the metadata, created if absent, makes them a version. It holds the
snapshots of the versions before, too, as far as a pin is for them, which is what time travel reads.

Iceberg names locations in full: a log that was copied or moved is published anew. Nothing in its
format keeps writers out: ``gc.enabled=false`` forbids what deletes files, and a metadata file that
another created is followed by one of ours that says nothing of it.

*Withdrawn* is a view whose newest version has no snapshot, and is the first to stay.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from clog.storage.commit.identity import StandingLog
from clog.storage.errors import CorruptionError, StoreUnavailableError
from clog.storage.format import paths
from clog.storage.publications.iceberg.manifests import (
    Snapshot,
    avro,
    data_manifest,
    delete_manifest,
    manifest_list,
    records,
)
from clog.storage.publications.iceberg.puffin import encode_puffin
from clog.storage.publications.iceberg.schema import (
    iceberg_schema,
    last_column_id,
    name_mapping,
)
from clog.storage.publications.table_state import (
    WITHDRAWN,
    Seen,
    Source,
    TableState,
    Withdrawal,
)
from clog.storage.publications.versions import create_version

FOLDER: Final = "metadata/"
HINT: Final = "metadata/version-hint.text"
SNAPSHOTS_MAX: Final = 100
"""Snapshots in one metadata file: it is read whole by every reader."""
VERSION: Final = re.compile(r"metadata/v(\d{1,18})\.metadata\.json")
LOG: Final = "clog.log"
"""The property of a version that says whose it is."""
_VIEW: Final = "clog.view"
_FIRST: Final = "clog.first"
_WITHDRAWN: Final = f"clog.{WITHDRAWN}"

Metadata = dict[str, Any]


@dataclass(frozen=True, slots=True)
class IcebergSeen(Seen):
    """What was found of an Iceberg table: the metadata of its newest version."""

    metadata: Metadata


@dataclass(frozen=True, slots=True)
class _Addition:
    """The snapshot that a version adds to those before; `IcebergView.create` keeps these, and says
    what it shows.
    """

    source: Source
    schema: Metadata
    snapshot: Snapshot
    rows: int
    manifest_list: str


@dataclass(frozen=True, slots=True)
class IcebergVersion:
    """A version that is ready to be created, the one after ``seen``; its files are written.
    ``shows``: what it adds, or that it is withdrawn.
    """

    seen: IcebergSeen
    now_ms: int
    shows: _Addition | Withdrawal


class IcebergView:
    """The Iceberg table of one log. Holds nothing that changes: threads may share it.

    Attributes:
        format: its name in configs and pins.
        title: what it is in messages.
        folder: where its versions stand.
    """

    format: Final = "iceberg"
    title: Final = "an Iceberg table"
    folder: Final = FOLDER

    def __init__(self, standing: StandingLog) -> None:
        self._standing = standing
        self._root = standing.root

    @property
    def location(self) -> str:
        """Where the table is, as its files name it."""
        url = self._root.url
        return url if "://" in url else f"file://{url}"

    def look(self, known: IcebergSeen | None = None) -> IcebergSeen:
        """Finds the newest version; a LIST, and a GET where it is not ``known``.

        Raises:
            CorruptionError: it cannot be read.
        """
        written_ms: dict[int, int] = {}
        for found in self._root.list(FOLDER):
            if match := VERSION.fullmatch(found.path):
                written_ms[int(match[1])] = found.modified_ms
        newest = max(written_ms, default=0)
        if not newest:
            return self._seen({}, {})
        is_known = known is not None and known.newest == newest
        metadata = known.metadata if known is not None and is_known else self._read(newest)
        return self._seen(metadata, dict(sorted(written_ms.items())))

    def check_installed(self) -> None:
        """Raises if a package is missing that publishing needs.

        Raises:
            InvalidInputError: fastavro is.
        """
        avro()

    def prepared(
        self, seen: IcebergSeen, state: TableState, *, now_ms: int, file_id: str
    ) -> IcebergVersion:
        """Returns the next version, and writes its manifests and vectors, whose names begin with
        ``file_id`` (COMMIT.md, U1).
        """
        before, name = seen.metadata, f"{paths.view_folder(self.format, seen.newest + 1)}{file_id}"
        schema = iceberg_schema(state.schema, url=self._root.url)
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
        """Returns the next version as one without a snapshot, which needs no type of the log's."""
        return IcebergVersion(seen, said.now_ms, said)

    def create(self, version: IcebergVersion, lowest_view: int) -> IcebergSeen | None:
        """Creates a version (COMMIT.md, U3); None where another came first.

        Args:
            version: the version.
            lowest_view: the lowest version that a pin is for: it keeps the snapshots since.

        Raises:
            LogReplacedError, NotFoundError: the log was deleted.
        """
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
        if not create_version(self._root, f"{FOLDER}v{number}.metadata.json", body):
            return None
        with suppress(StoreUnavailableError):  # Nothing depends on it.
            self._root.put(HINT, str(number).encode())
        return self._seen(metadata, {**seen.modified_ms, number: version.now_ms})

    def tidy(self, seen: IcebergSeen, lowest_view: int) -> IcebergSeen:
        """Deletes versions that have expired: those before the ``lowest_view`` that a pin is for,
        and before the first that shows nothing deleted; returns what is there then.
        """
        if not seen.is_there or seen.is_foreign:
            return seen
        first = int(seen.metadata["properties"].get(_FIRST, 0))
        old = [v for v in seen.modified_ms if v < max(first, lowest_view)]
        for version in old:
            self._root.delete(f"{FOLDER}v{version}.metadata.json")
        left = {v: ms for v, ms in seen.modified_ms.items() if v not in old}
        return self._seen(seen.metadata, left)

    def _seen(self, metadata: Metadata, modified_ms: Mapping[int, int]) -> IcebergSeen:
        newest, said = max(modified_ms, default=0), metadata.get("properties", {})
        is_foreign = bool(metadata) and not paths.is_log_id(said.get(LOG))
        source, withdrawn_ms = (None, None) if is_foreign else self._said(metadata, newest)
        return IcebergSeen(
            newest=newest,
            modified_ms=modified_ms,
            is_there=newest > 0,
            is_foreign=is_foreign,
            log_id=said.get(LOG) if source or withdrawn_ms is not None else None,
            source=source,
            withdrawn_ms=withdrawn_ms,
            metadata=metadata,
        )

    def unnamed(self, seen: IcebergSeen, files: Mapping[str, int]) -> set[str]:
        """Returns which of the files in the log's folder, with the versions for which they were
        made, no version that is left names.
        """
        if not seen.modified_ms:
            return set(files)
        oldest = min(seen.modified_ms)
        snapshots = self._read(oldest)["snapshots"]
        views = (int(s["summary"].get(_VIEW, 0)) for s in snapshots)
        # Where there is no snapshot the version is withdrawn, and names nothing itself.
        needed = min(views, default=oldest + 1)
        return {path for path, version in files.items() if version < needed}

    def named(self, seen: IcebergSeen, first: int = 0) -> set[str]:
        """Returns the paths in the log's folder that the newest version's snapshots name, from the
        version ``first`` on: objects, manifests, vectors.

        Raises:
            CorruptionError: they cannot be read.
        """
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
        return list(records(data, where=f"{path} of {self._root.url}"))

    def _read(self, version: int) -> Metadata:
        path = f"{FOLDER}v{version}.metadata.json"
        try:
            metadata = json.loads(self._root.get(path))
        except (ValueError, FileNotFoundError) as e:
            raise CorruptionError(f"{path} of {self._root.url} cannot be read: {e}") from e
        if not isinstance(metadata, dict):
            raise CorruptionError(f"{path} of {self._root.url} is not Iceberg metadata")
        return metadata

    def _location(self, path: str) -> str:
        return f"{self.location}/{paths.folder_of(self._standing.log_id)}/{path}"

    def _relative(self, location: str) -> str:
        return location.removeprefix(self._location(""))

    def _write_snapshot(self, state: TableState, snapshot: Snapshot, schema: Any, name: str) -> int:
        """Writes manifests, their list and vectors; returns how many rows the objects have."""
        store = self._standing.store
        objects = [(self._location(shown.object.path), shown) for shown in state.objects]
        made = [data_manifest(self._location(f"{name}-data.avro"), objects, snapshot, schema)]
        store.put(f"{name}-data.avro", made[0].data)
        hidden = [(location, shown.hidden) for location, shown in objects if shown.hidden]
        if hidden:
            file, blobs = encode_puffin(hidden)
            store.put(f"{name}.puffin", file)
            puffin = self._location(f"{name}.puffin"), len(file)
            path = self._location(f"{name}-deletes.avro")
            made.append(delete_manifest(path, puffin, blobs, snapshot, schema))
            store.put(f"{name}-deletes.avro", made[1].data)
        store.put(f"{name}-list.avro", manifest_list(made, snapshot))
        return made[0].rows

    def _with_snapshot(self, seen: IcebergSeen, added: _Addition, lowest_view: int) -> Metadata:
        """Returns the next version's metadata, but for its time."""
        before, source, shown = seen.metadata, added.source, seen.source
        version, schema, snapshot = seen.newest + 1, added.schema, added.snapshot
        is_same = shown is not None and (shown.log_id, shown.starts) == (
            *(source.log_id, source.starts),
        )
        old = before if is_same else {}
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
        first = old.get("properties", {}).get(_FIRST, str(version))
        shows = {"clog.content": source.content, "clog.starts": source.starts}
        return {
            **self._table(source.log_id, [*schemas.values()], schema),
            "last-sequence-number": snapshot.sequence,
            "next-row-id": snapshot.first_row + added.rows,
            "properties": {
                **_properties(source.log_id, source.version, source.commit_id, schema),
                **shows,
                _FIRST: first,
            },
            "current-snapshot-id": snapshot.id,
            "refs": {"main": {"snapshot-id": snapshot.id, "type": "branch"}},
            "snapshots": [*snapshots, entry],
        }

    def _without_snapshots(self, seen: IcebergSeen, said: Withdrawal) -> Metadata:
        """Returns the metadata of a version that is withdrawn, but for its time: with the schema
        that the table has, as the log's may have none in Iceberg.
        """
        before, mine = seen.metadata, seen.metadata.get("properties", {}).get(LOG) == said.log_id
        schemas = before["schemas"] if mine else [iceberg_schema(None, url=self._root.url)]
        schema_id = before["current-schema-id"] if mine else 0
        schema = next(s for s in schemas if s["schema-id"] == schema_id)
        return {
            **self._table(said.log_id, schemas, schema),
            "last-sequence-number": int(before.get("last-sequence-number", 0)),
            "next-row-id": int(before.get("next-row-id", 0)),
            "properties": {
                **_properties(said.log_id, said.version, said.commit_id, schema),
                _FIRST: str(seen.newest + 1),
                _WITHDRAWN: str(said.now_ms),
            },
            "refs": {},
            "snapshots": [],
        }

    def _table(self, log_id: str, schemas: list[Metadata], schema: Metadata) -> Metadata:
        """Returns what all versions of a log's table say."""
        return {
            "format-version": 3,
            "table-uuid": _uuid(log_id),
            "location": self.location,
            "last-column-id": last_column_id(schema),
            "schemas": schemas,
            "current-schema-id": schema["schema-id"],
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
        }

    def _said(self, metadata: Metadata, version: int) -> tuple[Source | None, int | None]:
        """Returns what a version says it shows, and since when it shows nothing; None and None
        where another wrote it, or elsewhere.

        One that only alters the table keeps our snapshot, which is of a version before.
        """
        said, snapshots = metadata.get("properties", {}), metadata.get("snapshots") or [{}]
        if metadata.get("location") != self.location:
            return None, None
        is_ours = metadata.get("current-snapshot-id") == snapshots[-1].get("snapshot-id")
        is_ours &= snapshots[-1].get("summary", {}).get(_VIEW) == str(version)
        try:
            if _WITHDRAWN in said and not metadata.get("snapshots"):
                return None, int(said[_WITHDRAWN])
            return Source(
                *(str(said[LOG]), int(said["clog.version"]), str(said["clog.commit"])),
                *(str(said["clog.content"]), str(said["clog.starts"])),
            ) if is_ours else None, None
        except (KeyError, ValueError):
            return None, None


def _properties(log_id: str, version: int, commit_id: str, schema: Metadata) -> dict[str, str]:
    return {
        "schema.name-mapping.default": name_mapping(schema),
        "gc.enabled": "false",
        LOG: log_id,
        "clog.version": str(version),
        "clog.commit": commit_id,
    }


def _uuid(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
