"""The log's table as an Iceberg table: ``metadata/v<N>.metadata.json`` at the log's root, over the
log's own objects.

Each version has a snapshot of its own with manifests, their list, and the vectors in one Puffin
file, all in the log's folder; the metadata, created if absent, makes them a version. It holds the
snapshots of the versions before, too, as far as a pin is for them, which is what time travel reads.

Iceberg names locations in full: a log that was copied or moved is published anew. Nothing in its
format keeps writers out: ``gc.enabled=false`` forbids what deletes files, and a metadata file that
another created is followed by one of ours that says nothing of it.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from clog.storage.commit.identity import StandingLog
from clog.storage.errors import CorruptionError, InvalidInputError, StoreUnavailableError
from clog.storage.format import paths
from clog.storage.publications.iceberg.manifests import (
    Snapshot,
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
from clog.storage.publications.table_state import NextVersion, Source, TableState
from clog.storage.publications.versions import create_version

FOLDER: Final = "metadata/"
HINT: Final = "metadata/version-hint.text"
SNAPSHOTS_MAX: Final = 100
"""Snapshots in one metadata file: it is read whole by every reader."""
VERSION: Final = re.compile(r"metadata/v(\d{1,18})\.metadata\.json")
LOG: Final = "clog.log"
"""The property of a version that says whose it is."""
_VIEW: Final = "clog.view"

Metadata = dict[str, Any]


class IcebergView:
    """The Iceberg table of one log, followed. Not safe for threads.

    Attributes:
        format: its name in configs and pins.
        newest: the newest version that `look` found; 0 where there is none.
        source: what that shows; None where clog did not write it.
    """

    format: Final = "iceberg"

    def __init__(self, standing: StandingLog) -> None:
        self._standing = standing
        self._root = standing.root
        self._written_ms: dict[int, int] = {}
        self._metadata: Metadata | None = None
        self._version = 0
        self.newest = 0
        self.source: Source | None = None

    @property
    def location(self) -> str:
        """Where the table is, as its files name it."""
        url = self._root.url
        return url if "://" in url else f"file://{url}"

    def look(self) -> None:
        """Finds the newest version; a LIST, and a GET where it is new.

        Raises:
            CorruptionError: it cannot be read.
            InvalidInputError: there is an Iceberg table that is not clog's.
        """
        written_ms: dict[int, int] = {}
        for found in self._root.list(FOLDER):
            if match := VERSION.fullmatch(found.path):
                written_ms[int(match[1])] = found.modified_ms
        self._written_ms = dict(sorted(written_ms.items()))
        self.newest = max(written_ms, default=0)
        if self.newest != self._version:
            self._metadata, self._version = None, 0
        if self.newest and self._metadata is None:
            self._metadata = self._read(self.newest)
            if not paths.is_log_id(self._metadata.get("properties", {}).get(LOG)):
                self._metadata = None
                raise InvalidInputError(
                    f"there is an Iceberg table at {self._root.url} that clog did not write;"
                    " nothing was changed; a log cannot be published where another table stands"
                )
            self._version = self.newest
        self.source = None if self._metadata is None else self._source(self._metadata)

    def written_ms(self, view: int) -> int | None:
        """Returns when a version was written, by the store's clock: 0 where it was cleaned up, None
        where it is not there yet.
        """
        return None if view > self.newest else self._written_ms.get(view, 0)

    def publish(self, state: TableState, following: NextVersion) -> bool:
        """Creates the next version (COMMIT.md, U3); False where another came first.

        Raises:
            LogReplacedError, NotFoundError: the log was deleted.
            InvalidInputError: Iceberg has no type for a field.
        """
        version, file_id, now_ms = self.newest + 1, following.file_id, following.now_ms
        schema = iceberg_schema(state.schema, url=self._root.url)
        folder = paths.view_folder(self.format, version)
        before = self._metadata or {}
        snapshot = Snapshot(
            int(file_id[:15], 16),
            int(before.get("last-sequence-number", 0)) + 1,
            int(before.get("next-row-id", 0)),
        )
        rows = self._write_snapshot(state, snapshot, schema, f"{folder}{file_id}")
        metadata = self._next(state, snapshot, schema, version, following.lowest_view)
        entry = metadata["snapshots"][-1]
        entry |= {
            "timestamp-ms": max(now_ms, int(before.get("last-updated-ms", 0)) + 1),
            "manifest-list": self._location(f"{folder}{file_id}-list.avro"),
            "added-rows": rows,
        }
        metadata["last-updated-ms"] = entry["timestamp-ms"]
        metadata["next-row-id"] = snapshot.first_row + rows
        self._standing.check()
        body = json.dumps(metadata, separators=(",", ":")).encode()
        if not create_version(self._root, f"{FOLDER}v{version}.metadata.json", body):
            return False
        self._written_ms[version] = now_ms
        self._metadata, self._version, self.newest = metadata, version, version
        self.source = self._source(metadata)
        with suppress(StoreUnavailableError):  # Nothing depends on it.
            self._root.put(HINT, str(version).encode())
        return True

    def tidy(self, lowest_view: int) -> None:
        """Deletes versions that have expired: those before the ``lowest_view`` that a pin is for,
        and before the first that shows nothing deleted.
        """
        if self._metadata is None:
            return
        first = int(self._metadata["properties"].get("clog.first", 0))
        for version in [v for v in self._written_ms if v < max(first, lowest_view)]:
            self._root.delete(f"{FOLDER}v{version}.metadata.json")
            del self._written_ms[version]

    def unnamed(self, files: Mapping[str, int]) -> set[str]:
        """Returns which of the files in the log's folder, with the versions for which they were
        made, no version that is left names.
        """
        if not self._written_ms:
            return set(files)
        oldest = self._read(min(self._written_ms))
        needed = min((int(s["summary"].get(_VIEW, 0)) for s in oldest["snapshots"]), default=0)
        return {path for path, version in files.items() if version < needed}

    def named(self, first: int = 0) -> set[str]:
        """Returns the paths in the log's folder that the newest version's snapshots name, from the
        version ``first`` on: objects, manifests, vectors.

        Raises:
            CorruptionError: they cannot be read.
        """
        found: set[str] = set()
        for snapshot in (self._metadata or {}).get("snapshots", []):
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
            raise CorruptionError(f"{path} of {self._root.url} is no metadata of Iceberg")
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

    def _next(
        self,
        state: TableState,
        snapshot: Snapshot,
        schema: dict[str, Any],
        version: int,
        lowest_view: int,
    ) -> Metadata:
        """Returns the next version's metadata, but for what its files say of themselves."""
        before, source = self._metadata or {}, state.source
        shown = self.source
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
        }
        if snapshots:
            entry["parent-snapshot-id"] = snapshots[-1]["snapshot-id"]
        schemas = {s["schema-id"]: s for s in (*old.get("schemas", []), schema)}
        first = old.get("properties", {}).get("clog.first", str(version))
        return {
            "format-version": 3,
            "table-uuid": _uuid(source.log_id),
            "location": self.location,
            "last-sequence-number": snapshot.sequence,
            "last-column-id": last_column_id(schema),
            "schemas": [*schemas.values()],
            "current-schema-id": schema["schema-id"],
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": _properties(source, schema, first),
            "current-snapshot-id": snapshot.id,
            "refs": {"main": {"snapshot-id": snapshot.id, "type": "branch"}},
            "snapshots": [*snapshots, entry],
        }

    def _source(self, metadata: Metadata) -> Source | None:
        """Returns what a version says it shows; None where another wrote it, or elsewhere.

        One that only alters the table keeps our snapshot, which is of a version before.
        """
        said, snapshots = metadata.get("properties", {}), metadata.get("snapshots") or [{}]
        is_ours = metadata.get("current-snapshot-id") == snapshots[-1].get("snapshot-id")
        is_ours &= snapshots[-1].get("summary", {}).get(_VIEW) == str(self._version)
        if metadata.get("location") != self.location or not is_ours:
            return None
        try:
            return Source(
                *(str(said[LOG]), int(said["clog.version"]), str(said["clog.commit"])),
                *(str(said["clog.content"]), str(said["clog.starts"])),
            )
        except (KeyError, ValueError):
            return None


def _properties(source: Source, schema: dict[str, Any], first: str) -> dict[str, str]:
    return {
        "schema.name-mapping.default": name_mapping(schema),
        "gc.enabled": "false",
        LOG: source.log_id,
        "clog.version": str(source.version),
        "clog.commit": source.commit_id,
        "clog.content": source.content,
        "clog.starts": source.starts,
        "clog.first": first,
    }


def _uuid(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
