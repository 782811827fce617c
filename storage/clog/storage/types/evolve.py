"""The next schema of a typed log, as a user asks for it (FORMAT.md §12.4).

A change is allowed if every reader can read all earlier data with it in the same way: a new field
that may be null, a wider type of the same kind, null in place of NOT NULL, another name for a field
(its id stays), and one field less. Other changes are refused with the reason.

Fields are named by their paths in the schema before the change, and those that are added by the
path that they get. Where key columns have names, a path may be that of a column, ``minutes`` for
``value.minutes``.

Also schemas as people write them, in JSON, and the changes that a log needs to get to one.

A type is one of these::

    "string"                 a name of the format, such as "int64", "decimal(10,2)"
    {"city": type, …}        a struct, its fields in this order
    [type]                   a list
    [[type, type]]           a map: a list of pairs of key and value
    "int32 not null"         a field that is never null; for other types ["not null", type]

A schema is ``{"key": type, "value": type}``.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final

import pyarrow as pa

from clog.storage.column_kinds import kind_named, widens, word_of
from clog.storage.env import dataclass
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
from clog.storage.types.columns import (
    arrow_type,
    inner_fields,
    rows_of,
    schema_field,
    schema_of,
)
from clog.storage.types.names import name_problem
from clog.storage.types.rows import TableColumns, are_records, taken_as

_Change = Callable[[SchemaField], SchemaField]
_NUMBERED: Final = re.compile(r"-([0-9]{1,6})$")
"""The end of a column's name that has the field's id; nobody gets to ids of more digits."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a user asks of a schema, by paths of fields; ``drop`` and ``rename`` need ids."""

    add: Mapping[str, pa.DataType]
    widen: Mapping[str, pa.DataType]
    relax: Sequence[str]
    rename: Mapping[str, str]
    drop: Sequence[str]

    @classmethod
    def given(cls, add: Any, widen: Any, relax: Any, rename: Any, drop: Any) -> "Changes":
        """Returns changes as a user gives them; raises if they are no such."""
        for name, given, example in (
            ("add", add, "{'value.price': pa.float64()}"),
            ("widen", widen, "{'value.price': pa.float64()}"),
            ("rename", rename, "{'value.minutes': 'duration'}"),
        ):
            if not isinstance(given, Mapping):
                raise InvalidInputError(
                    f"{name} is a {type(given).__name__}; give it by the fields' paths, such as"
                    f" {name}={example}"
                )
        relax, drop = ([some] if isinstance(some, str) else list(some) for some in (relax, drop))
        for path in [*add, *widen, *relax, *rename, *rename.values(), *drop]:
            if not isinstance(path, str):
                raise InvalidInputError(
                    f"{path!r:.80} is not a field; give its path as text, such as value.price"
                )
        if not (add or widen or relax or rename or drop):
            raise InvalidInputError("nothing to evolve; give add, widen, relax, rename or drop")
        return cls(add, widen, relax, rename, drop)

    def need_ids(self, schema: LogSchema | None) -> bool:
        """Returns whether readers must find columns by their ids from then on: also if a field is
        added under the name that objects have for the key, which a config may call otherwise.
        """
        columns = () if schema is None or not schema.is_table else schema.columns
        stored = {field.stored_name for field in columns}
        return bool(self.rename or self.drop or stored & {p.rpartition(".")[2] for p in self.add})


def evolved(
    schema: LogSchema | None,
    key_columns: tuple[str, ...],
    changes: Changes,
    *,
    by_id: bool,
    url: str,
) -> tuple[LogSchema, tuple[str, ...]]:
    """Returns the schema after changes of fields, and the names of its key columns, if any;
    ``by_id``: fields were renamed or dropped before, or are now.
    """
    if schema is None:
        raise InvalidInputError(
            f"{url} has no schema to evolve: its keys and values are bytes; create a log with a"
            " schema, and copy the records"
        )
    last_id, made = schema.last_id, schema
    paths = _Paths(schema, rows_of(schema, key_columns))
    for given, kind in changes.widen.items():
        path = paths.of(given)
        made = _at(made, path, partial(_widened, kind=kind, path=paths.shown(path)))
    for given in changes.relax:
        path = paths.of(given)
        if path == "key" and schema.is_table:
            raise InvalidInputError(f"{given} stays NOT NULL: no row of a table is without its key")
        made = _at(made, path, lambda field: replace(field, required=False))
    made, gone, key_columns = _renamed(made, paths, changes, key_columns)
    if by_id:
        last_id = max(last_id, _reserved((*gone, made.key, made.value)))
    ids = count(max(last_id + 1, FIRST_ID))
    paths = _Paths(made, rows_of(made, key_columns))
    for given, kind in changes.add.items():
        path = paths.new(given)
        above, _, name = path.rpartition(".")
        shown = paths.shown(path)
        if path.partition(".")[0] == "key":
            raise InvalidInputError(
                f"{shown} cannot be added: a key with an additional field would be a different key"
            )
        added = schema_field(_given(name, kind, shown), lambda: next(ids), shown)
        if by_id:  # A former one may have had its name.
            added = replace(added, column=f"{name}-{added.id}")
        last_id = max(last_id, *(field.id for _, field in added.walk()))
        made = _at(made, above, partial(_with, added=added, path=shown))
    if empty := [path for path, field in made.walk() if field.kind == STRUCT and not field.fields]:
        path = paths.shown(empty[0])
        raise InvalidInputError(
            f"{path} would have no field left; keep one, add one, or drop all of it"
        )
    made = replace(made, id=schema.id + 1, last_id=last_id)
    if (problem := schema_problem(made)) is not None:
        raise InvalidInputError(f"{url} cannot have this schema: {problem}")
    return made, key_columns


def _renamed(
    schema: LogSchema, paths: "_Paths", changes: Changes, key_columns: tuple[str, ...]
) -> tuple[LogSchema, list[SchemaField], tuple[str, ...]]:
    """Returns a schema with other names and without dropped fields; these; and the key's names."""
    names = {}
    for given, name in changes.rename.items():
        path = paths.of(given)
        if path == "key" and key_columns:
            key_columns = (_name(name, given),)
        else:
            names[paths.inner(path, "renamed")] = _name(name, given)
    gone = {paths.inner(path, "dropped"): path for path in map(paths.of, changes.drop)}
    if both := gone.keys() & names.keys():
        path = paths.shown(gone[both.pop()])
        raise InvalidInputError(f"{path} is both renamed and dropped")
    key, value = (_with_names(field, names, gone) for field in (schema.key, schema.value))
    if key_columns and key.fields:
        key_columns = tuple(field.name for field in key.fields)
    dropped = [paths.fields[path] for path in gone.values()]
    return replace(schema, key=key, value=value), dropped, key_columns


class _Paths:
    """Fields of a schema as users name them: by paths, or by the columns of rows."""

    def __init__(self, schema: LogSchema, rows: TableColumns | None) -> None:
        self._rows = rows
        self.fields = dict(schema.walk())

    def of(self, given: str) -> str:
        """Returns the path of a field that exists; raises if none does."""
        column = None if self._rows is None else self._rows.path(given)
        for path in (column, given):
            if path in self.fields:
                return path
        above = given
        while "." in above and above not in self.fields:
            above = above.rpartition(".")[0]
        top = self.fields.get(above)
        if self._rows is not None and top is None:
            there = ", ".join((*self._rows.key, *self._rows.value))
            raise InvalidInputError(f"there is no column {given!r}; the columns are {there}")
        if top is None:
            raise InvalidInputError(f'{given!r} is not a field; paths begin with "value" or "key"')
        names = ", ".join(field.name for field in top.fields)
        raise InvalidInputError(
            f"{given} is not in the schema; {top.name} has the fields {names or 'none'}"
        )

    def shown(self, path: str) -> str:
        """Returns what a user calls a field: one who has rows knows no key and value."""
        top, _, rest = path.partition(".")
        if self._rows is None:
            return path
        return ".".join(name for name in (self._rows.paths[top], rest) if name) or path

    def new(self, given: str) -> str:
        """Returns the path of a field that is to be added."""
        above, _, name = given.rpartition(".")
        if above:
            return f"{self.of(above)}.{name}"
        if self._rows is None:
            raise InvalidInputError(f'{given!r} is no field of the value; write "value.{given}"')
        if (there := self._rows.path(given)) is not None:
            there = self.shown(there)
            raise InvalidInputError(f"{given} cannot be added: it already exists, as {there}")
        return f"value.{given}"

    def inner(self, path: str, what: str) -> int:
        """Returns the id of a field of a struct; raises if it cannot be renamed, or dropped."""
        above, _, _ = path.rpartition(".")
        shown = self.shown(path)
        if what == "dropped" and path.partition(".")[0] == "key":
            raise InvalidInputError(
                f"{shown} cannot be dropped: without a part of its key, a record would be another's"
            )
        if not above or self.fields[above].kind != STRUCT:
            why = f"{self.shown(above)} is no struct" if above else "key and value are not"
            raise InvalidInputError(
                f"{shown} cannot be {what}: only fields of structs can, and {why}"
            )
        return self.fields[path].id


def _name(name: str, given: str) -> str:
    """Returns the new name of a field; raises if it is a path, or no name."""
    _check_name(name, given)
    if not name or "." in name:
        raise InvalidInputError(
            f"{given} cannot become {name!r}; give the new name of the field alone, without a path"
        )
    return name


def _with_names(
    field: SchemaField, names: Mapping[int, str], gone: Mapping[int, str]
) -> SchemaField:
    """Returns a field without the inner ones that go, and with the names that others get."""
    left = (inner for inner in field.fields if inner.id not in gone)
    fields = tuple(_with_names(inner, names, gone) for inner in left)
    name, column = names.get(field.id, field.name), field.stored_name
    return replace(field, name=name, column=None if column == name else column, fields=fields)


def _reserved(fields: Iterable[SchemaField]) -> int:
    """Returns the highest id with which the column of a new field could be one of these."""
    columns = (found for field in fields for _, found in field.walk())
    ends = (_NUMBERED.search(field.stored_name) for field in columns)
    return max((int(end[1]) for end in ends if end is not None), default=0)


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
        return replace(schema, key=_changed(schema.key, names, change))
    return replace(schema, value=_changed(schema.value, names, change))


def _changed(field: SchemaField, names: list[str], change: _Change) -> SchemaField:
    if not names:
        return change(field)
    name, *rest = names
    fields = (
        _changed(inner, rest, change) if inner.name == name else inner for inner in field.fields
    )
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


def evolution_to(
    schema: LogSchema | None, wanted: pa.Schema, *, named: LogSchema | None = None
) -> dict[str, Any]:
    """Returns the arguments of `Log.evolve` that lead to the wanted schema; empty if none. Fields
    have the names of ``named``, if the schema is that with others.
    """
    after = schema_of(wanted)
    if schema is None or after is None:
        if schema is None and after is None:
            return {}
        raise InvalidInputError("bytes cannot become typed, nor typed columns bytes; copy the log")
    before = {field.id: path for path, field in (named or schema).walk()}
    there = {path: before[field.id] for path, field in schema.walk()}
    changes: dict[str, Any] = {"add": {}, "widen": {}, "relax": []}
    for now, then in ((schema.key, after.key), (schema.value, after.value)):
        for kind, path, value in _changes(now, then, now.name):
            if kind == "relax":
                changes[kind].append(there[path])
            else:
                changes[kind][there.get(path, path)] = value
    return {name: value for name, value in changes.items() if value}


def merging(
    schema: LogSchema, key_columns: tuple[str, ...], given: pa.Schema
) -> dict[str, dict[str, pa.DataType]]:
    """Returns what `Log.evolve` has to add and to widen so that data with these columns, rows or
    records, fit a log; empty if nothing.
    """
    rows, fields = rows_of(schema, key_columns), dict(schema.walk())
    if rows is not None and are_records(given.names) and not rows.has(given.names):
        rows = None
    add: dict[str, pa.DataType] = {}
    widen: dict[str, pa.DataType] = {}

    def compare(kind: pa.DataType, path: str) -> None:
        field = fields.get(path)
        if field is None:
            add[path] = taken_as(kind)
            return
        for inner in inner_fields(kind) if field.fields else ():
            compare(inner.type, f"{path}.{inner.name}")
        word = None if field.fields else word_of(taken_as(kind))
        if word is not None and widens(field.kind, word):
            widen[path] = kind

    for column in given:
        if rows is not None:
            compare(column.type, rows.path(column.name) or f"value.{column.name}")
        elif column.name in ("key", "value"):
            compare(column.type, column.name)
    return {name: found for name, found in (("add", add), ("widen", widen)) if found}


def side_by_side(before: LogSchema | None, after: LogSchema | None) -> list[str]:
    """Returns lines with the fields of both schemas, each with its type, the same beside it."""
    if before is None or after is None:
        return ["key: binary", "value: binary"]
    old, new = ({field.id: (path, field) for path, field in s.walk()} for s in (before, after))
    left = [(*_said(old.get(i)), *_said(new.get(i))) for i in old]
    pairs = [*left, *(("", "", *_said(new[i])) for i in new if i not in old)]
    widths = [max(map(len, column)) for column in zip(*pairs, strict=True)]
    lines = []
    for row in pairs:
        mark = " " if row[:2] == row[2:] else ("-" if not row[2] else "+" if not row[0] else "~")
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        lines.append(f"{mark} {'  '.join(cells)}".rstrip())
    return lines


def _said(found: tuple[str, SchemaField] | None) -> tuple[str, str]:
    if found is None:
        return "", ""
    path, field = found
    return path, f"{field.kind}{_SUFFIX if field.required else ''}"


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
            f"{path} has the fields {', '.join(before)}, and {', '.join(missing)} is missing here;"
            f" to drop or rename it, say so: clog alter --drop {path}.{missing[0]}, or --rename"
            f" {path}.{missing[0]}=NAME"
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
