"""Typed columns for the second reader, written from storage/FORMAT.md §12: nothing of clog."""

import datetime as dt
import re
from typing import Any

COLUMN_IDS = {"key": 1, "value": 2, "headers": 3, "timestamp": 7, "delete_horizon": 8}
UNITS = {"ms": 1000, "us": 1, "ns": None}
NUMBERS = re.compile(r"bool|u?int\d+|float\d+|date|time.*")
ORDERS = (
    ["int8", "int16", "int32", "int64"],
    ["uint8", "uint16", "uint32", "uint64"],
    ["float32", "float64"],
)


def is_typed(schema: dict) -> bool:
    return schema != {"key": "binary", "value": "binary"}


def walk(field: dict, path: str = "") -> list[tuple[str, dict]]:
    """The field and those inside, by their paths."""
    here = f"{path}.{field['name']}" if path else field["name"]
    return [(here, field), *(pair for f in field.get("fields", ()) for pair in walk(f, here))]


def problem(schema: dict) -> str | None:
    """§12.1: what is not allowed in a schema."""
    if set(schema) != {"id", "last_field_id", "key", "value"}:
        return f"schema has {sorted(schema)}"
    fields = [*walk(schema["key"]), *walk(schema["value"])]
    ids = [field["id"] for _, field in fields]
    if (schema["key"]["id"], schema["value"]["id"]) != (1, 2) or schema["value"].get("required"):
        return "ids of key and value, or a value that is required"
    if len(set(ids)) < len(ids) or max(ids) > schema["last_field_id"]:
        return f"ids {ids}"
    for path, field in fields:
        names = [inner["name"] for inner in field.get("fields", ())]
        inside = {"list": ["element"], "map": ["key", "value"]}.get(field["type"])
        if len(set(names)) < len(names) or any(not name or "." in name for name in names):
            return f"{path}: fields {names}"
        if inside != names if inside else bool(names) != (field["type"] == "struct"):
            return f"{path}: {field['type']} with fields {names}"
        if path.count(".") > 7 or (field["id"] < 16 and "." in path):
            return f"{path}: nested too deep, or id {field['id']}"
    return None


def follows(old: dict, new: dict) -> bool:
    """§12.4: whether the new schema may come after the old one."""
    if new["id"] != old["id"] + 1 or new["last_field_id"] < old["last_field_id"]:
        return False
    last = old["last_field_id"]
    pairs = ((old[name], new[name], name == "value") for name in ("key", "value"))
    return all(field_follows(*pair, last) for pair in pairs)


def field_follows(old: dict, new: dict, grows: bool, last: int) -> bool:
    before, after = old.get("fields", []), new.get("fields", [])
    added = after[len(before) :]
    wider = any(
        old["type"] in order and new["type"] in order[order.index(old["type"]) :]
        for order in ORDERS
    )
    digits = [re.fullmatch(r"decimal\((\d+),(\d+)\)", f["type"]) for f in (old, new)]
    if all(digits):
        wider = digits[0][2] == digits[1][2] and int(digits[0][1]) <= int(digits[1][1])
    return (
        (old["name"], old["id"]) == (new["name"], new["id"])
        and (old["type"] == new["type"] or wider)
        and not (new.get("required", False) and not old.get("required", False))
        and len(after) >= len(before)
        and (not added or (grows and new["type"] == "struct"))
        and not any(f.get("required") for f in added)
        and all(f["id"] > last for top in added for _, f in walk(top))
        and all(field_follows(a, b, grows, last) for a, b in zip(before, after, strict=False))
    )


def as_read(value: Any, field: dict) -> Any:
    """§12.4: a stored value by the newest schema: what is missing is null."""
    inner = field.get("fields", ())
    if value is None or not inner:
        return value
    if field["type"] == "struct":
        return {f["name"]: as_read(value.get(f["name"]), f) for f in inner}
    if field["type"] == "list":
        return [as_read(element, inner[0]) for element in value]
    return [(as_read(k, inner[0]), as_read(v, inner[1])) for k, v in value]


def size(value: Any, field: dict) -> int:
    """§12.2: what a value counts."""
    inner = field.get("fields", ())
    if value is None:
        return 0
    if field["type"] == "struct":
        return sum(size(value[f["name"]], f) for f in inner)
    if field["type"] == "list":
        return sum(size(element, inner[0]) for element in value)
    if field["type"] == "map":
        return sum(size(k, inner[0]) + size(v, inner[1]) for k, v in value)
    if field["type"] == "string":
        return len(value.encode())
    if field["type"].startswith(("binary", "fixed")):
        return len(value)
    return 16 if field["type"].startswith("decimal") else 8


def key_bytes(key: Any, field: dict) -> bytes | None:
    """§12.3: the canonical bytes of a key."""
    kind = field["type"]
    if key is None:
        return None
    if kind == "struct":
        return b"".join(in_struct(key[f["name"]], f) for f in field["fields"])
    if kind == "string":
        return key.encode()
    if kind.startswith(("binary", "fixed")):
        return key
    if kind.startswith("timestamp"):
        since = key.replace(tzinfo=dt.UTC) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        key = since // dt.timedelta(microseconds=1) // UNITS[kind[10:12]]
    return (key if kind.startswith("u") else key + 2**63).to_bytes(8, "big")


def in_struct(key: Any, field: dict) -> bytes:
    found = key_bytes(key, field)
    if found is None:
        return b"\0"
    if field["type"] in ("string", "binary"):
        found = found.replace(b"\0", b"\0\xff") + b"\0\0"
    return b"\1" + found


def ids_of(arrow_field: Any, path: str = "") -> dict[str, int]:
    """The field ids that a file has, by path; those of lists and maps by the schema's names."""
    here = f"{path}.{arrow_field.name}" if path else arrow_field.name
    found = {here: int((arrow_field.metadata or {}).get(b"PARQUET:field_id", -1))}
    kind = arrow_field.type
    if str(kind).startswith("map<"):
        inner = [kind.key_field, kind.item_field]
    elif str(kind).startswith("list<"):
        inner = [kind.value_field]
    else:
        inner = [kind.field(i) for i in range(kind.num_fields)]
    for child in inner:
        found |= ids_of(child, here)
    return found


def wrong_ids(arrow_schema: Any, schema: dict) -> set[str]:
    """§12.2: the paths of columns that have other ids than they should."""
    known = {path: f["id"] for name in ("key", "value") for path, f in walk(schema[name])}
    known |= {
        **{name: n for name, n in COLUMN_IDS.items() if n > 2},
        "headers.element": 4,
        "headers.element.key": 5,
        "headers.element.value": 6,
        "offset": 2147483540,
    }
    found: dict[str, int] = {}
    for field in arrow_schema:
        found |= ids_of(field)
    return {path for path, number in found.items() if known.get(path) != number}
