"""Schemas as people write them, in JSON; what a log must go through to get one.

A type is one of these::

    "string"                 by the names of the format, such as "int64", "decimal(10,2)"
    {"city": type, …}        a struct, its fields in this order
    [type]                   a list
    [[type, type]]           a map: a list of pairs of key and value
    "int32 not null"         a field that is never null; of other types ["not null", type]

A schema is ``{"key": type, "value": type}``.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from clog.storage.errors import InvalidInputError
from clog.storage.format.schema import LIST, MAP, STRUCT, TYPE, LogSchema, SchemaField
from clog.storage.objects.arrow_types import arrow_type, schema_of

NOT_NULL: Final = "not null"
_SUFFIX: Final = f" {NOT_NULL}"


def schema_words(schema: LogSchema | None) -> dict[str, Any]:
    """Returns a schema in JSON; None: that of a log of bytes."""
    if schema is None:
        return {"key": "binary", "value": "binary"}
    return {"key": _words(schema.key), "value": _words(schema.value)}


def schema_from_words(words: Any) -> pa.Schema:
    """Returns what `Log.create` takes.

    Raises:
        InvalidInputError: it is no schema.
    """
    if not isinstance(words, Mapping) or sorted(words) != ["key", "value"]:
        raise InvalidInputError('a schema is a JSON object {"key": type, "value": type}')
    return pa.schema([_field(name, words[name], name) for name in ("key", "value")])


def evolution_to(schema: LogSchema | None, wanted: pa.Schema) -> dict[str, Any]:
    """Returns what `Log.evolve` takes to get from a schema to one that is wanted; empty where it is
    that already.

    Raises:
        InvalidInputError: a field is missing in it, or anything else that no evolution does.
    """
    after = schema_of(wanted)
    if schema is None or after is None:
        if schema is None and after is None:
            return {}
        raise InvalidInputError("bytes cannot become typed, nor typed columns bytes; copy the log")
    changes: dict[str, Any] = {"add": {}, "widen": {}, "relax": []}
    for now, then in ((schema.key, after.key), (schema.value, after.value)):
        for kind, path, value in _changes(now, then, now.name):
            if kind == "relax":
                changes[kind].append(path)
            else:
                changes[kind][path] = value
    return {name: value for name, value in changes.items() if value}


def _changes(now: SchemaField, then: SchemaField, path: str) -> Iterator[tuple[str, str, Any]]:
    if now.required and not then.required:
        yield "relax", path, None
    elif then.required and not now.required:
        raise InvalidInputError(f"{path} may be null, and cannot become NOT NULL")
    if now.kind != then.kind:
        yield "widen", path, arrow_type(then)
        return
    before = {field.name: field for field in now.fields}
    names = [field.name for field in then.fields]
    if missing := [name for name in before if name not in names]:
        raise InvalidInputError(
            f"{path} has the fields {', '.join(before)}; {', '.join(missing)} cannot be taken away"
        )
    for field in then.fields:
        inner = f"{path}.{field.name}"
        if field.name in before:
            yield from _changes(before[field.name], field, inner)
        elif field.required:
            raise InvalidInputError(f"{inner} is NOT NULL, which no field can be that is added")
        else:
            yield "add", inner, arrow_type(field)


def _words(field: SchemaField) -> Any:
    words: Any = field.kind
    if field.kind == STRUCT:
        words = {inner.name: _words(inner) for inner in field.fields}
    elif field.kind == LIST:
        words = [_words(field.fields[0])]
    elif field.kind == MAP:
        words = [[_words(field.fields[0]).removesuffix(_SUFFIX), _words(field.fields[1])]]
    if not field.required:
        return words
    return f"{words}{_SUFFIX}" if isinstance(words, str) else [NOT_NULL, words]


def _field(name: str, words: Any, path: str) -> pa.Field:
    required = False
    if isinstance(words, str) and words.endswith(_SUFFIX):
        words, required = words.removesuffix(_SUFFIX), True
    elif isinstance(words, list) and len(words) == 2 and words[0] == NOT_NULL:
        words, required = words[1], True
    try:
        return pa.field(name, _type(words, path), nullable=not required)
    except UnicodeEncodeError as e:
        raise InvalidInputError(
            f"{path!r} has a name that is not valid text: a lone surrogate at character {e.start}"
        ) from None


def _type(words: Any, path: str) -> pa.DataType:
    if isinstance(words, str) and TYPE.fullmatch(words) and words not in (STRUCT, LIST, MAP):
        return arrow_type(SchemaField("", 0, words))
    if isinstance(words, Mapping):
        return pa.struct([_field(name, inner, f"{path}.{name}") for name, inner in words.items()])
    if isinstance(words, list) and len(words) == 1:
        (inner,) = words
        if isinstance(inner, list) and len(inner) == 2 and inner[0] != NOT_NULL:
            key = _field("key", inner[0], f"{path}.key").with_nullable(nullable=False)
            return pa.map_(key, _field("value", inner[1], f"{path}.value"))
        return pa.list_(_field("element", inner, f"{path}.element"))
    raise InvalidInputError(
        f"{path} has no type that is known; give a name such as string, int64, float64,"
        ' timestamp(us,utc) or decimal(10,2), {"field": type}, [type], or [[key type, value type]]'
    )
