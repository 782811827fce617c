"""The next schema of a typed log, as a user asks for it (FORMAT.md §12.4).

A change is allowed if every reader can read all earlier data with it in the same way: a new field
that may be null, a wider type of the same kind, and null in place of NOT NULL. Other changes are
refused with the reason.

Also schemas as people write them, in JSON, and the changes that a log needs to get to one.

A type is one of these::

    "string"                 a name of the format, such as "int64", "decimal(10,2)"
    {"city": type, …}        a struct, its fields in this order
    [type]                   a list
    [[type, type]]           a map: a list of pairs of key and value
    "int32 not null"         a field that is never null; for other types ["not null", type]

A schema is ``{"key": type, "value": type}``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final

import pyarrow as pa

from clog.storage.column_kinds import kind_named, widens
from clog.storage.errors import InvalidInputError
from clog.storage.format.log_info import (
    FIRST_ID,
    LIST,
    MAP,
    STRUCT,
    LogSchema,
    SchemaField,
    schema_problem,
)
from clog.storage.types.columns import arrow_type, schema_field, schema_of
from clog.storage.types.names import name_problem

_Change = Callable[[SchemaField], SchemaField]


def evolved(
    schema: LogSchema | None,
    *,
    add: Mapping[str, pa.DataType],
    widen: Mapping[str, pa.DataType],
    relax: Sequence[str],
    url: str,
) -> LogSchema:
    """Returns the schema after changes of fields, whose paths begin with ``value`` or ``key``."""
    if schema is None:
        raise InvalidInputError(
            f"{url} has no schema to evolve: its keys and values are bytes; create a log with a"
            " schema, and copy the records"
        )
    _check_changes(add, widen, relax)
    if not (add or widen or relax):
        raise InvalidInputError("nothing to evolve; give add, widen or relax")
    ids = count(max(schema.last_id + 1, FIRST_ID))
    last_id = schema.last_id
    for path, kind in widen.items():
        schema = _at(schema, path, partial(_widened, kind=kind, path=path))
    for path in relax:
        schema = _at(schema, path, lambda field: replace(field, required=False))
    for path, kind in add.items():
        above, _, name = path.rpartition(".")
        if not above:
            raise InvalidInputError(f'{path!r} is no field of the value; write "value.{path}"')
        if path.partition(".")[0] == "key":
            raise InvalidInputError(
                f"{path} cannot be added: a key with an additional field would be a different key"
            )
        added = schema_field(_given(name, kind, path), lambda: next(ids), path)
        last_id = max(last_id, *(field.id for _, field in added.walk()))
        schema = _at(schema, above, partial(_with, added=added, path=path))
    made = replace(schema, id=schema.id + 1, last_id=last_id)
    if (problem := schema_problem(made)) is not None:
        raise InvalidInputError(f"{url} cannot have this schema: {problem}")
    return made


def _check_changes(
    add: Mapping[str, pa.DataType], widen: Mapping[str, pa.DataType], relax: Sequence[str]
) -> None:
    for name, given in (("add", add), ("widen", widen)):
        if not isinstance(given, Mapping):
            raise InvalidInputError(
                f"{name} is a {type(given).__name__}; give types by their fields' paths, such as"
                f" {name}={{'value.price': pa.float64()}}"
            )
    for path in [*add, *widen, *relax]:
        if not isinstance(path, str):
            raise InvalidInputError(
                f"{path!r:.80} is not a field; give its path as text, such as value.price"
            )


def _given(name: str, kind: pa.DataType, path: str) -> pa.Field:
    _check_name(name, path)
    try:
        return pa.field(name, kind)
    except (TypeError, ValueError) as e:
        raise InvalidInputError(
            f"{path!r}: {kind!r:.80} is not a pyarrow type for a field: {e}"
        ) from e


def _check_name(name: str, path: str) -> None:
    """Raises if a field cannot have a name: Arrow would make another one of it."""
    if problem := name_problem(name):
        raise InvalidInputError(f"{path!r}: {problem}")


def _at(schema: LogSchema, path: str, change: _Change) -> LogSchema:
    """Returns the schema with a change of the field at a path."""
    top, *names = path.split(".")
    if top == "key":
        return replace(schema, key=_changed(schema.key, names, path, change))
    if top == "value":
        return replace(schema, value=_changed(schema.value, names, path, change))
    raise InvalidInputError(f'{path!r} is not a field; paths begin with "value" or "key"')


def _changed(field: SchemaField, names: list[str], path: str, change: _Change) -> SchemaField:
    if not names:
        return change(field)
    name, *rest = names
    there = [inner.name for inner in field.fields]
    if name not in there:
        raise InvalidInputError(
            f"{path} is not in the schema; {field.name} has the fields {', '.join(there) or 'none'}"
        )
    fields = [
        _changed(inner, rest, path, change) if inner.name == name else inner
        for inner in field.fields
    ]
    return replace(field, fields=tuple(fields))


def _widened(field: SchemaField, kind: pa.DataType, path: str) -> SchemaField:
    wider = schema_field(_given(field.name, kind, path), lambda: field.id, path).kind
    if not widens(field.kind, wider):
        found = kind_named(field.kind)
        allowed = found.widens_to if found is not None else ()
        instead = f"it can become {' or '.join(allowed)}" if allowed else "it cannot be widened"
        if field.kind.startswith("decimal"):
            instead = "it can become a decimal with more digits and the same scale"
        raise InvalidInputError(f"{path} is {field.kind} and cannot become {wider}; {instead}")
    return replace(field, kind=wider)


def _with(field: SchemaField, added: SchemaField, path: str) -> SchemaField:
    if field.kind != STRUCT:
        raise InvalidInputError(
            f"{path} cannot be added: {field.name} is {field.kind}, not a struct"
        )
    if added.name in [inner.name for inner in field.fields]:
        raise InvalidInputError(f"{path} cannot be added: it already exists")
    return replace(field, fields=(*field.fields, added))


NOT_NULL: Final = "not null"
_SUFFIX: Final = f" {NOT_NULL}"


def schema_words(schema: LogSchema | None) -> dict[str, Any]:
    """Returns a schema in JSON; None is that of a log of bytes."""
    if schema is None:
        return {"key": "binary", "value": "binary"}
    return {"key": _words(schema.key), "value": _words(schema.value)}


def schema_from_words(words: Any) -> pa.Schema:
    """Returns the schema in a form that `Log.create` accepts."""
    if not isinstance(words, Mapping) or sorted(words) != ["key", "value"]:
        raise InvalidInputError('a schema must be a JSON object {"key": type, "value": type}')
    return fields_from_words({name: words[name] for name in ("key", "value")})


def fields_from_words(words: Mapping[str, Any]) -> pa.Schema:
    """Returns fields whose types are words, as in `schema_words`, or Arrow's types."""
    try:
        return pa.schema(
            [
                pa.field(name, word) if isinstance(word, pa.DataType) else _field(name, word, name)
                for name, word in words.items()
            ]
        )
    except RecursionError:
        raise InvalidInputError("the types of a schema are nested too deeply") from None


def evolution_to(schema: LogSchema | None, wanted: pa.Schema) -> dict[str, Any]:
    """Returns the arguments of `Log.evolve` that lead to the wanted schema; empty if none."""
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
        raise InvalidInputError(f"{path} is nullable, and cannot become NOT NULL")
    if now.kind != then.kind:
        yield "widen", path, arrow_type(then)
        return
    before = {field.name: field for field in now.fields}
    names = [field.name for field in then.fields]
    if missing := [name for name in before if name not in names]:
        raise InvalidInputError(
            f"{path} has the fields {', '.join(before)}; {', '.join(missing)} cannot be removed"
        )
    for field in then.fields:
        inner = f"{path}.{field.name}"
        if field.name in before:
            yield from _changes(before[field.name], field, inner)
        elif field.required:
            raise InvalidInputError(f"{inner} is NOT NULL, but added fields must be nullable")
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
    _check_name(name, path)
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
    if isinstance(words, str) and kind_named(words) is not None:
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
        f"{path} has an unknown type; give a name such as string, int64, float64,"
        ' timestamp(us,utc) or decimal(10,2), {"field": type}, [type], or [[key type, value'
        " type]]"
    )
