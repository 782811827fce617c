"""The schema of the view in Iceberg's types, and the names of the columns in objects without field
ids.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from clog.storage.errors import InvalidInputError
from clog.storage.format.schema import KEY_ID, LIST, MAP, STRUCT, VALUE_ID, LogSchema, SchemaField

_SIMPLE: Final = {
    "bool": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float32": "float",
    "float64": "double",
    "date": "date",
    "time(us)": "time",
    "string": "string",
    "binary": "binary",
    "timestamp(ms,utc)": "timestamptz",
    "timestamp(us,utc)": "timestamptz",
    "timestamp(ns,utc)": "timestamptz_ns",
    "timestamp(ms)": "timestamp",
    "timestamp(us)": "timestamp",
    "timestamp(ns)": "timestamp_ns",
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_DECIMAL_DIGITS_MAX: Final = 38
_FIXED: Final = re.compile(r"fixed\((\d+)\)")
_INSIDE_HEADERS: Final = [
    {"id": 5, "name": "key", "required": False, "type": "string"},
    {"id": 6, "name": "value", "required": False, "type": "binary"},
]
_HEADERS: Final = {
    "type": "list",
    "element-id": 4,
    "element-required": False,
    "element": {"type": "struct", "fields": _INSIDE_HEADERS},
}
_NOT_IN_THE_VIEW: Final = {"delete_horizon": 8, "offset": 2147483540}
"""Columns that objects may have beside, with their ids: readers want each to have one."""


def iceberg_schema(schema: LogSchema | None, *, url: str) -> dict[str, Any]:
    """Returns the view's schema, as Iceberg's JSON has it; ids are those of FORMAT.md §12.2.

    Raises:
        InvalidInputError: a field that Iceberg has no type for.
    """
    key, value = ("binary", "binary")
    if schema is not None:
        key, value = _type(schema.key, "key", url), _type(schema.value, "value", url)
    columns = [
        (KEY_ID, "key", key),
        (VALUE_ID, "value", value),
        (3, "headers", _HEADERS),
        (7, "timestamp", "timestamptz"),
    ]
    fields = [{"id": i, "name": name, "required": False, "type": t} for i, name, t in columns]
    schema_id = 0 if schema is None else schema.id
    return {"type": "struct", "schema-id": schema_id, "fields": fields}


def name_mapping(schema: dict[str, Any]) -> str:
    """Returns the ids of columns by their names, for objects that have none."""
    beside = [{"field-id": i, "names": [name]} for name, i in _NOT_IN_THE_VIEW.items()]
    return json.dumps([*_mapped(schema), *beside], separators=(",", ":"))


def last_column_id(schema: dict[str, Any]) -> int:
    """Returns the highest id of a column."""
    return max(_ids(_mapped(schema)))


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
    if field.kind in _SIMPLE:
        return _SIMPLE[field.kind]
    decimal, fixed = _DECIMAL.fullmatch(field.kind), _FIXED.fullmatch(field.kind)
    if decimal and int(decimal[1]) <= _DECIMAL_DIGITS_MAX:
        return f"decimal({decimal[1]}, {decimal[2]})"
    if fixed:
        return f"fixed[{fixed[1]}]"
    raise InvalidInputError(
        f"{path} of {url} is {field.kind}, which Iceberg has no type for; the log cannot be"
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
