"""What a published view shows, read by nothing of clog's reading: Delta's log and Iceberg's
metadata by their specifications, vectors by pyroaring, files by Arrow. For stores that other
readers do not reach.
"""

import io
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from clog.storage.publications.source import ViewMask
from clog.storage.store.contract import Store

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_MAGIC = 1681511377
_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])


def delta_versions(root: Store) -> list[int]:
    """Returns the versions of a Delta table whose own file is there, ascending."""
    names = [found.path for found in root.list("_delta_log/") if found.path.endswith(".json")]
    return sorted(int(name.removeprefix("_delta_log/").removesuffix(".json")) for name in names)


def delta_adds(root: Store, version: int | None = None) -> tuple[dict[str, Any], int]:
    """Returns the files of a version of a Delta table, the newest one by default, and the version
    of the log that it names.
    """
    from pyarrow import parquet

    wanted = delta_versions(root)[-1] if version is None else version
    adds: dict[str, Any] = {}
    begun, stated = -1, -1
    for found in sorted(root.list("_delta_log/"), key=lambda found: found.path):
        name = found.path.removeprefix("_delta_log/")
        if name.endswith(".checkpoint.parquet") and int(name[:20]) <= wanted:
            begun = int(name[:20])
            table = parquet.read_table(io.BytesIO(root.get(found.path)))
            rows = [row["add"] for row in table.to_pylist() if row["add"]]
            adds = {row["path"]: row for row in rows}
            stated = next(row["txn"]["version"] for row in table.to_pylist() if row["txn"])
    for number in range(begun + 1, wanted + 1):
        actions = [
            json.loads(line) for line in root.get(f"_delta_log/{number:020d}.json").splitlines()
        ]
        for removed in (action["remove"] for action in actions if "remove" in action):
            del adds[removed["path"]]
        for added in (action["add"] for action in actions if "add" in action):
            assert added["path"] not in adds
            adds[added["path"]] = added
        stated = next(action["txn"]["version"] for action in actions if "txn" in action)
    return adds, stated


def delta_rows(root: Store, version: int | None = None) -> tuple[list[tuple[bytes, bytes]], int]:
    """Returns the sorted pairs of key and value that a version shows, and the version of the log
    that it names.
    """
    pairs, stated = delta_pairs(root, version)
    return sorted(pairs), stated


def delta_pairs(
    root: Store, version: int | None = None, key: Sequence[str] = ()
) -> tuple[list[tuple[Any, Any]], int]:
    """Returns what `delta_rows` does in no order, and for keys and values of any type; ``key``: the
    columns of the key of a log whose objects have a table's.
    """
    from pyarrow import parquet

    adds, stated = delta_adds(root, version)
    shown = []
    for path, add in adds.items():
        data = root.get(path)
        assert len(data) == add["size"]
        table = parquet.read_table(io.BytesIO(data))
        assert table.num_rows == json.loads(add["stats"])["numRecords"]
        hidden = _hidden(root, add.get("deletionVector"))
        assert max(hidden, default=0) < table.num_rows
        kept = [i for i in range(table.num_rows) if i not in hidden]
        shown.append(table.take(pa.array(kept, pa.int64())))
    names = _delta_names(root, version) if key else {}
    return [pair for table in shown for pair in _pairs(table, key, names)], stated


def _delta_names(root: Store, version: int | None) -> dict[int, str]:
    """Returns the names that a version of a Delta table gives to fields, by id, if it maps them."""
    wanted = delta_versions(root)[-1] if version is None else version
    for number in range(wanted, -1, -1):
        lines = root.get(f"_delta_log/{number:020d}.json").splitlines()
        for action in filter(None, (json.loads(line).get("metaData") for line in lines)):
            found: dict[int, str] = {}
            _name_fields(json.loads(action["schemaString"]), found)
            return found
    raise AssertionError(f"no schema up to version {wanted}")


def _name_fields(kind: Any, found: dict[int, str]) -> None:
    """Adds the names of the fields of a type, as Delta or Iceberg have it in JSON, by id."""
    for field in kind.get("fields", ()) if isinstance(kind, dict) else ():
        number = field.get("id", field.get("metadata", {}).get("delta.columnMapping.id"))
        if number is not None:
            found[number] = field["name"]
    parts = kind.values() if isinstance(kind, dict) else kind
    for part in parts if isinstance(kind, dict | list) else ():
        _name_fields(part, found)


def _pairs(table: Any, key: Sequence[str], names: Mapping[int, str]) -> list[tuple[Any, Any]]:
    """Returns keys and values; ``key``: the key's columns, of objects with a table's columns, whose
    other fields have these names, by id, or their own.
    """
    if "key" in table.column_names or not key:
        columns = (table.column(name).to_pylist() for name in _SCHEMA.names)
        return list(zip(*columns, strict=True))
    keys = table.select(list(key)).to_pylist()
    others = [n for n in table.column_names if n not in key and not n.startswith("_clog_")]
    kind = pa.struct(list(table.select(others).schema))
    values = [_as_named(row, kind, names) for row in table.select(others).to_pylist()]
    alone = [row if len(key) > 1 else row[key[0]] for row in keys]
    return list(zip(alone, values, strict=True))


def _as_named(value: Any, kind: pa.DataType, names: Mapping[int, str]) -> Any:
    """Returns a value with these names of its fields."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        numbers = (int((f.metadata or {}).get(b"PARQUET:field_id", -1)) for f in kind)
        shown = (names.get(number, f.name) for number, f in zip(numbers, kind, strict=True))
        inner = (_as_named(value[f.name], f.type, names) for f in kind)
        return dict(zip(shown, inner, strict=True))
    if pa.types.is_map(kind):
        return [(one, _as_named(other, kind.item_type, names)) for one, other in value]
    if pa.types.is_list(kind):
        return [_as_named(one, kind.value_type, names) for one in value]
    return value


def _hidden(root: Store, vector: dict[str, Any] | None) -> set[int]:
    if vector is None:
        return set()
    from pyroaring import BitMap64

    name = vector["pathOrInlineDv"]
    if vector["storageType"] == "i":
        data = _unz85(name)[: vector["sizeInBytes"]]
    else:
        digits = _unz85(name[-20:]).hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        file = root.get(f"{name[:-20]}/deletion_vector_{'-'.join(parts)}.bin")
        start = vector["offset"] + 4
        assert struct.unpack(">I", file[start - 4 : start])[0] == vector["sizeInBytes"]
        data = file[start : start + vector["sizeInBytes"]]
    assert struct.unpack("<I", data[:4])[0] == _MAGIC
    found = set(BitMap64.deserialize(data[4:]))
    assert len(found) == vector["cardinality"]
    return found


def _unz85(text: str) -> bytes:
    data = b""
    for start in range(0, len(text), 5):
        number = 0
        for character in text[start : start + 5]:
            number = number * 85 + _ALPHABET.index(character)
        data += struct.pack(">I", number)
    return data


def iceberg_versions(root: Store) -> list[int]:
    """Returns the versions of an Iceberg table that are there, ascending."""
    names = [f.path for f in root.list("metadata/v") if f.path.endswith(".metadata.json")]
    return sorted(int(n.removeprefix("metadata/v").removesuffix(".metadata.json")) for n in names)


def _iceberg_metadata(root: Store, version: int | None) -> Any:
    wanted = iceberg_versions(root)[-1] if version is None else version
    return json.loads(root.get(f"metadata/v{wanted}.metadata.json"))


def iceberg_files(root: Store, version: int | None = None) -> tuple[dict[str, Any], int]:
    """Returns the entries of a version's manifests by location, those of vectors under the
    locations that they are for, and the version of the log that it names.
    """
    import fastavro

    metadata = _iceberg_metadata(root, version)
    snapshot = metadata["snapshots"][-1]
    assert snapshot["snapshot-id"] == metadata["current-snapshot-id"]
    prefix = metadata["location"] + "/"

    def entries(location: str) -> list[Any]:
        return list(fastavro.reader(io.BytesIO(root.get(location.removeprefix(prefix)))))

    found: dict[str, Any] = {}
    for manifest in entries(snapshot["manifest-list"]):
        data = root.get(manifest["manifest_path"].removeprefix(prefix))
        assert len(data) == manifest["manifest_length"]
        for entry in entries(manifest["manifest_path"]):
            file = entry["data_file"]
            path = file["referenced_data_file"] or file["file_path"]
            kind = "vector" if file["content"] else "data"
            assert kind not in found.setdefault(path.removeprefix(prefix), {})
            found[path.removeprefix(prefix)][kind] = {**file, "prefix": prefix}
    return found, int(metadata["properties"]["clog.version"])


def iceberg_rows(root: Store, version: int | None = None) -> tuple[list[tuple[bytes, bytes]], int]:
    """Returns what `delta_rows` does, of an Iceberg table."""
    pairs, stated = iceberg_pairs(root, version)
    return sorted(pairs), stated


def iceberg_pairs(
    root: Store, version: int | None = None, key: Sequence[str] = ()
) -> tuple[list[tuple[Any, Any]], int]:
    """Returns what `delta_pairs` does, of an Iceberg table."""
    from pyarrow import parquet
    from pyroaring import BitMap64

    files, stated = iceberg_files(root, version)
    metadata = _iceberg_metadata(root, version)
    names: dict[int, str] = {}
    for schema in metadata["schemas"]:
        if schema["schema-id"] == metadata["current-schema-id"]:
            _name_fields(schema, names)
    rows = []
    for path, file in files.items():
        data = root.get(path)
        assert len(data) == file["data"]["file_size_in_bytes"]
        table = parquet.read_table(io.BytesIO(data))
        assert table.num_rows == file["data"]["record_count"]
        hidden: set[int] = set()
        if vector := file.get("vector"):
            puffin = root.get(vector["file_path"].removeprefix(vector["prefix"]))
            assert (puffin[:4], puffin[-4:]) == (b"PFA1", b"PFA1")
            start = vector["content_offset"]
            blob = puffin[start : start + vector["content_size_in_bytes"]]
            assert struct.unpack(">I", blob[:4])[0] == len(blob) - 8
            assert struct.unpack(">I", blob[-4:])[0] == zlib.crc32(blob[4:-4])
            hidden = set(BitMap64.deserialize(blob[8:-4]))
            assert len(hidden) == vector["record_count"]
        pairs = _pairs(table, key, names)
        rows += [pair for i, pair in enumerate(pairs) if i not in hidden]
    return rows, stated


def shown_rows(store: Store, mask: ViewMask) -> list[tuple[bytes, bytes, int]]:
    """Returns key, value and timestamp in ms of what a mask leaves of its object."""
    from pyarrow import parquet

    read = parquet.read_table(pa.BufferReader(store.get(mask.object.path)))
    rows = read.filter(pa.array(~mask.hidden)).select(["key", "value", "timestamp"]).to_pylist()
    return [(r["key"], r["value"], round(r["timestamp"].timestamp() * 1000)) for r in rows]
