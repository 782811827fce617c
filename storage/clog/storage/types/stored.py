"""Columns of an object as the log's newest schema names them (FORMAT.md §12.2, §12.4).

A field keeps its id whatever it is called, and a name that is used again gets another id. So the
fields of an object are found by their ids, level by level, and by their names where they have none.

`named_columns` pairs an object's columns with those of a schema, its own or a later one: it returns
the object's types with the schema's names, by which fields are then asked for. A field that was
dropped since has a name that nobody can ask for (`is_dropped`); so has one of a schema that
the log has not had yet, which no type can be read as.
"""

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from clog.storage.column_kinds import widens, word_of
from clog.storage.format.log_info import LogSchema
from clog.storage.types.columns import (
    column_types,
    entries_type,
    id_of,
    inner_fields,
    is_listed,
)

_DROPPED: Final = "\0"
_UNKNOWN: Final = "\0\0"
"""Beginnings of names that a later schema's reader gives to fields which that lacks: those that
were dropped, and others.
"""


def named_columns(stored: pa.Schema, schema: LogSchema) -> pa.Schema:
    """Returns the columns of an object, or of rows that were read from it, with the names of the
    log's schema, which is their own or a later one; the same if these are theirs.
    """
    newest, last_id = column_types(schema).rewritten, schema.last_id
    own = {field.name: field for field in newest}
    fields = [_named(field, own.get(field.name), last_id) for field in stored]
    same = all(a is b for a, b in zip(fields, stored, strict=True))
    return stored if same else pa.schema(fields)


def _named(stored: pa.Field, newest: pa.Field | None, last_id: int) -> pa.Field:
    """Returns a field with the names of the newest; itself if that has the same ones everywhere."""
    if newest is None or stored.equals(newest, check_metadata=True):
        return stored
    kind = _named_type(stored.type, newest.type, last_id)
    name = newest.name
    if kind is stored.type and name == stored.name:
        return stored
    return stored.with_type(kind).with_name(name)


def _named_type(stored: pa.DataType, newest: pa.DataType, last_id: int) -> pa.DataType:
    types = pa.types
    if types.is_struct(stored) and types.is_struct(newest):
        fields = [_named_inner(field, newest, last_id) for field in stored]
        same = all(a is b for a, b in zip(fields, stored, strict=True))
        return stored if same else pa.struct(fields)
    if types.is_map(stored) and types.is_map(newest):
        key = _named_type(stored.key_type, newest.key_type, last_id)
        item = _named_type(stored.item_type, newest.item_type, last_id)
        if key is stored.key_type and item is stored.item_type:
            return stored
        return pa.map_(stored.key_field.with_type(key), stored.item_field.with_type(item))
    if types.is_list(stored) and types.is_list(newest):
        inner = _named_type(stored.value_type, newest.value_type, last_id)
        return (
            stored if inner is stored.value_type else pa.list_(stored.value_field.with_type(inner))
        )
    return stored


def _named_inner(field: pa.Field, around: pa.StructType, last_id: int) -> pa.Field:
    """Returns a field of a struct as the struct of the newest schema, ``around``, calls it."""
    own = id_of(field)
    if own is None:
        at = around.get_field_index(field.name)
        return field if at < 0 else _named(field, around.field(at), last_id)
    for other in around:
        if id_of(other) == own:
            return _named(field, other, last_id)
    return field.with_name(f"{_DROPPED if int(own) <= last_id else _UNKNOWN}{int(own)}")


def other_ids(named: pa.Field, field: pa.Field, above: str = "") -> list[str]:
    """Returns the paths of a field of `named_columns`, and inner ones, that do not have the
    ids of the schema's ``field``, or of fields that were dropped.
    """
    path = f"{above}{field.name}"
    wrong = [] if id_of(named) == id_of(field) else [path]
    later = {inner.name: inner for inner in inner_fields(field.type)}
    for inner in inner_fields(named.type):
        if inner.name in later:
            wrong += other_ids(inner, later[inner.name], f"{path}.")
        elif not is_dropped(inner):
            wrong.append(path)
    return wrong


Place = Callable[[str], tuple[str, pa.DataType] | None]
"""Returns where an object has a field, and its type there; None if it lacks it."""


def place(stored: pa.Schema, named: pa.Schema, path: str) -> tuple[str, pa.DataType] | None:
    """Returns the path and type, in ``stored``, of a column or field of structs of ``named``, which
    are the same with other names; None if there is none.
    """
    parts: list[str] = []
    own, others, kind = list(stored), list(named), pa.null()
    for name in path.split("."):
        at = next((i for i, field in enumerate(others) if field.name == name), None)
        if at is None:
            return None
        parts.append(own[at].name)
        kind, other = own[at].type, others[at].type
        own, others = (list(kind), list(other)) if pa.types.is_struct(kind) else ([], [])
    return ".".join(parts), kind


def can_read(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Returns whether the stored type, by the names of a later schema, can be read as ``kind``, its
    own or that one's.
    """
    if stored == kind:
        return True
    types = pa.types
    if types.is_struct(stored) and types.is_struct(kind):
        later = {field.name: field for field in kind}
        left = [field for field in stored if not is_dropped(field)]
        missing = later.keys() - {field.name for field in left}
        return all(later[name].nullable for name in missing) and all(
            field.name in later
            and later[field.name].nullable >= field.nullable
            and can_read(field.type, later[field.name].type)
            for field in left
        )
    if is_listed(stored) and is_listed(kind) and types.is_map(stored) == types.is_map(kind):
        return can_read(entries_type(stored), entries_type(kind))
    before, after = word_of(stored), word_of(kind)
    return before is not None and after is not None and widens(before, after)


def is_dropped(field: pa.Field) -> bool:
    """Returns whether a field of `named_columns` is one that the newest schema lacks."""
    return bool(field.name.startswith(_DROPPED) and not field.name.startswith(_UNKNOWN))
