"""The next schema of a typed log, as a user asks for it (FORMAT.md §12.4).

What is allowed is what can be read of all that was written before, by every reader alike: a new
field that may be null, a wider type of the same kind, and null where there was NOT NULL. The rest
is refused with its reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

import pyarrow as pa

from clog.storage.errors import InvalidInputError
from clog.storage.format.schema import (
    FIRST_ID,
    FLOATS,
    SIGNED,
    STRUCT,
    UNSIGNED,
    LogSchema,
    SchemaField,
    schema_problem,
    widens,
)
from clog.storage.objects.arrow_types import schema_field

_Change = Callable[[SchemaField], SchemaField]


def evolved(
    schema: LogSchema | None,
    *,
    add: Mapping[str, pa.DataType],
    widen: Mapping[str, pa.DataType],
    relax: Sequence[str],
    url: str,
) -> LogSchema:
    """Returns the schema after the changes, which name fields by their paths from ``value`` or
    ``key`` on.

    Raises:
        InvalidInputError: a change that is not allowed; with its reason.
    """
    if schema is None:
        raise InvalidInputError(
            f"{url} has no schema that could evolve: its keys and values are bytes; create a log"
            " with a schema, and copy the records"
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
            raise InvalidInputError(f'{path!r} is no field; paths begin with "value."')
        if path.partition(".")[0] == "key":
            raise InvalidInputError(
                f"{path} cannot be added: the fields of a key are what tells keys apart, and a key"
                " with one more would be another key"
            )
        added = schema_field(_given(name, kind, path), lambda: next(ids), path)
        last_id = max(last_id, *(field.id for _, field in added.walk()))
        schema = _at(schema, above, partial(_with, added=added, path=path))
    made = replace(schema, id=schema.id + 1, last_id=last_id)
    if (problem := schema_problem(made)) is not None:
        raise InvalidInputError(f"the schema cannot become that of {url}: {problem}")
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
    try:
        return pa.field(name, kind)
    except (TypeError, ValueError) as e:
        raise InvalidInputError(
            f"{path!r}: {kind!r:.80} is not a pyarrow type for a field: {e}"
        ) from e


def _at(schema: LogSchema, path: str, change: _Change) -> LogSchema:
    """Returns the schema with the field at a path changed."""
    top, *names = path.split(".")
    if top == "key":
        return replace(schema, key=_changed(schema.key, names, path, change))
    if top == "value":
        return replace(schema, value=_changed(schema.value, names, path, change))
    raise InvalidInputError(f'{path!r} is no field; paths begin with "value" or "key"')


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
        allowed = [k for k in (*SIGNED, *UNSIGNED, *FLOATS) if widens(field.kind, k)]
        instead = f"it can become {' or '.join(allowed)}" if allowed else "it cannot be widened"
        if field.kind.startswith("decimal"):
            instead = "it can become a decimal of more digits with the same scale"
        raise InvalidInputError(f"{path} is {field.kind} and cannot become {wider}; {instead}")
    return replace(field, kind=wider)


def _with(field: SchemaField, added: SchemaField, path: str) -> SchemaField:
    if field.kind != STRUCT:
        raise InvalidInputError(f"{path} cannot be added: {field.name} is {field.kind}, no struct")
    if added.name in [inner.name for inner in field.fields]:
        raise InvalidInputError(f"{path} cannot be added: it is there already")
    return replace(field, fields=(*field.fields, added))
