"""The schema of the view: the columns of the log's objects, in Delta's types.

Not here: a column for partition or offset. Objects hold several partitions, and dense ones no
offsets.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from clog.storage.errors import InvalidInputError
from clog.storage.format.schema import LIST, MAP, STRUCT, LogSchema, SchemaField

_SIMPLE: Final = {
    "bool": "boolean",
    "int8": "byte",
    "int16": "short",
    "int32": "integer",
    "int64": "long",
    "uint8": "short",
    "uint16": "integer",
    "uint32": "long",
    "float32": "float",
    "float64": "double",
    "date": "date",
    "string": "string",
    "binary": "binary",
    "timestamp(ms,utc)": "timestamp",
    "timestamp(us,utc)": "timestamp",
    "timestamp(ms)": "timestamp_ntz",
    "timestamp(us)": "timestamp_ntz",
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_DECIMAL_DIGITS_MAX: Final = 38
_REFUSED_IN_NAMES: Final = frozenset(" ,;{}()\n\t=")
"""Delta has no such names without a mapping of columns."""

_HEADERS: Final = {
    "type": "array",
    "elementType": {
        "type": "struct",
        "fields": [
            {"name": "key", "type": "string", "nullable": True, "metadata": {}},
            {"name": "value", "type": "binary", "nullable": True, "metadata": {}},
        ],
    },
    "containsNull": True,
}


def delta_schema(schema: LogSchema | None, *, url: str) -> dict[str, Any]:
    """Returns the view's schema, as Delta's JSON has it.

    Raises:
        InvalidInputError: a field that Delta has no type or name for.
    """
    key, value = ("binary", "binary") if schema is None else _types(schema, url)
    columns = {"key": key, "value": value, "headers": _HEADERS, "timestamp": "timestamp"}
    return {"type": "struct", "fields": [_field(name, type_) for name, type_ in columns.items()]}


def has_times_without_zone(schema: LogSchema | None) -> bool:
    """Tells whether the view needs Delta's feature for timestamps without a zone."""
    fields = () if schema is None else schema.walk()
    return any(_SIMPLE.get(field.kind) == "timestamp_ntz" for _, field in fields)


def _types(schema: LogSchema, url: str) -> tuple[Any, Any]:
    return _type(schema.key, "key", url), _type(schema.value, "value", url)


def _field(name: str, type_: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "nullable": True, "metadata": {}}


def _type(field: SchemaField, path: str, url: str) -> Any:
    if field.kind == STRUCT:
        _check_names(field.fields, path, url)
        inside = [_field(f.name, _type(f, f"{path}.{f.name}", url)) for f in field.fields]
        return {"type": "struct", "fields": inside}
    if field.kind == LIST:
        element = _type(field.fields[0], f"{path}.element", url)
        return {"type": "array", "elementType": element, "containsNull": True}
    if field.kind == MAP:
        key, value = (_type(f, f"{path}.{f.name}", url) for f in field.fields)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if field.kind in _SIMPLE:
        return _SIMPLE[field.kind]
    decimal = _DECIMAL.fullmatch(field.kind)
    if decimal and int(decimal[1]) <= _DECIMAL_DIGITS_MAX:
        return field.kind
    if field.kind.startswith("fixed("):
        return "binary"
    raise InvalidInputError(
        f"{path} of {url} is {field.kind}, which Delta has no type for; the log cannot be published"
        " as Delta; nothing was changed"
    )


def _check_names(fields: Iterable[SchemaField], path: str, url: str) -> None:
    """Raises if Delta refuses the names: it has no spaces and punctuation in them, and takes
    capitals for small letters.
    """
    seen: dict[str, str] = {}
    for field in fields:
        if _REFUSED_IN_NAMES & set(field.name):
            raise InvalidInputError(
                f"{path}.{field.name!r} of {url} has a name that Delta refuses (a space, or one of"
                " ,;{}()=); the log cannot be published as Delta; nothing was changed"
            )
        other = seen.setdefault(field.name.lower(), field.name)
        if other != field.name:
            raise InvalidInputError(
                f"{path} of {url} has fields {other!r} and {field.name!r}, which are one for Delta;"
                " the log cannot be published as Delta; nothing was changed"
            )
