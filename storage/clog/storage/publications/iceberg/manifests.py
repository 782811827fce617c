"""Manifests and manifest lists of Iceberg, in Avro; needs fastavro, the extra `iceberg`.

Each publication writes all of them anew, so that no reader goes through what earlier ones wrote.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from clog.storage.errors import CorruptionError, InvalidInputError
from clog.storage.publications.iceberg.puffin import Blob
from clog.storage.publications.table_state import ShownObject

ADDED: Final = 1
DATA, DELETES = 0, 1


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


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest as it is stored; ``content`` is `DATA` or `DELETES`."""

    path: str
    data: bytes
    content: int
    files: int
    rows: int


def data_manifest(
    path: str, objects: Sequence[tuple[str, ShownObject]], snapshot: Snapshot, schema: Any
) -> Manifest:
    """Returns the manifest of the objects, by their locations."""
    entries, row = [], snapshot.first_row
    for location, shown in objects:
        ref = shown.object
        file = _file(DATA, location, "PARQUET", ref.rows, ref.size_bytes)
        entries.append(_entry({**file, "first_row_id": row}, snapshot))
        row += ref.rows
    data = _encoded(_ENTRY, entries, _about(schema, "data"))
    return Manifest(path, data, DATA, len(entries), row - snapshot.first_row)


def delete_manifest(
    path: str, puffin: tuple[str, int], blobs: Sequence[Blob], snapshot: Snapshot, schema: Any
) -> Manifest:
    """Returns the manifest of the vectors in a Puffin file, given by its location and size."""
    entries = [
        _entry(
            {
                **_file(DELETES, puffin[0], "PUFFIN", blob.rows, puffin[1]),
                "referenced_data_file": blob.path,
                "content_offset": blob.offset,
                "content_size_in_bytes": blob.size_bytes,
            },
            snapshot,
        )
        for blob in blobs
    ]
    rows = sum(blob.rows for blob in blobs)
    return Manifest(
        path, _encoded(_ENTRY, entries, _about(schema, "deletes")), DELETES, len(entries), rows
    )


def manifest_list(manifests: Sequence[Manifest], snapshot: Snapshot) -> bytes:
    """Returns the list of a snapshot's manifests."""
    rows = [
        {
            "manifest_path": manifest.path,
            "manifest_length": len(manifest.data),
            "partition_spec_id": 0,
            "content": manifest.content,
            "sequence_number": snapshot.sequence,
            "min_sequence_number": snapshot.sequence,
            "added_snapshot_id": snapshot.id,
            "added_files_count": manifest.files,
            "existing_files_count": 0,
            "deleted_files_count": 0,
            "added_rows_count": manifest.rows,
            "existing_rows_count": 0,
            "deleted_rows_count": 0,
            "first_row_id": snapshot.first_row if manifest.content == DATA else None,
        }
        for manifest in manifests
    ]
    about = {"snapshot-id": str(snapshot.id), "sequence-number": str(snapshot.sequence)}
    return _encoded(_LISTED, rows, {**about, "format-version": "3"})


def records(data: bytes, *, where: str) -> Iterator[dict[str, Any]]:
    """Yields the records of an Avro file.

    Raises:
        CorruptionError: it is none.
    """
    try:
        yield from avro().reader(io.BytesIO(data))
    except (ValueError, EOFError, TypeError, IndexError) as e:
        raise CorruptionError(f"{where} is no Avro file: {e}") from e


def avro() -> Any:
    """Returns fastavro.

    Raises:
        InvalidInputError: it is not installed.
    """
    try:
        return import_module("fastavro")
    except ModuleNotFoundError as e:
        raise InvalidInputError(
            "publishing as Iceberg needs fastavro, which is not installed; nothing was changed; run"
            ' pip install "pyspark-clog[iceberg]"'
        ) from e


def _file(content: int, path: str, kind: str, rows: int, size_bytes: int) -> dict[str, Any]:
    return {
        "content": content,
        "file_path": path,
        "file_format": kind,
        "partition": {},
        "record_count": rows,
        "file_size_in_bytes": size_bytes,
    }


def _entry(file: Mapping[str, Any], snapshot: Snapshot) -> dict[str, Any]:
    return {
        "status": ADDED,
        "snapshot_id": snapshot.id,
        "sequence_number": snapshot.sequence,
        "file_sequence_number": snapshot.sequence,
        "data_file": file,
    }


def _about(schema: Any, content: str) -> dict[str, str]:
    return {
        "schema": json.dumps(schema),
        "schema-id": str(schema["schema-id"]),
        "partition-spec": "[]",
        "partition-spec-id": "0",
        "format-version": "3",
        "content": content,
    }


def _encoded(schema: Any, rows: Sequence[Any], about: Mapping[str, str]) -> bytes:
    sink = io.BytesIO()
    # The same marker each time: what is written twice is the same file.
    avro().writer(
        sink, schema, rows, metadata=dict(about), codec="deflate", sync_marker=b"clog" * 4
    )
    return sink.getvalue()
