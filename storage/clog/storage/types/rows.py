"""Rows: the records of a log whose key columns have names, as plain columns.

A row has the columns of the key, named by ``table.key.columns``, and the fields of the value. If
the key is a struct its fields are columns, otherwise it is one column; the value is a struct. The
names of the given or requested columns decide whether they are of rows or of records. Rows are
tried first, so that a table may have columns ``key`` and ``value``; a given ``value`` that is a
struct, which that column cannot hold, is a record's. As in Spark, case does not matter in names
(`types.names`); the log's spelling is kept.

pyarrow is imported only where it is needed, because cold processes use this module, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError
from clog.storage.types.names import folded, spellings

if TYPE_CHECKING:
    import pyarrow as pa

KEY_COLUMNS = "table.key.columns"
RECORD_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The plain columns in key and value; turns rows into records and back. Can be pickled."""

    key: tuple[str, ...]
    value: tuple[str, ...]
    key_is_struct: bool

    @classmethod
    def named(cls, schema: "pa.Schema", key_columns: tuple[str, ...]) -> "TableColumns":
        """Returns the columns of a log with this schema and these names of its key columns."""
        import pyarrow as pa

        value = tuple(field.name for field in schema.field("value").type)
        return cls(key_columns, value, bool(pa.types.is_struct(schema.field("key").type)))

    def fields(self, schema: "pa.Schema") -> "list[pa.Field]":
        """Returns Arrow's fields of the table's columns, in order."""
        key = schema.field("key")
        own = list(key.type) if self.key_is_struct else [key.with_name(self.key[0])]
        return [*own, *schema.field("value").type]

    def own(self, name: str) -> str | None:
        """Returns the table's spelling of a column; None if it has no such column."""
        spelled = spellings((*self.key, *self.value))
        return spelled.get(name) or spelled.get(folded(name))

    def has(self, names: Iterable[str]) -> bool:
        """Returns whether all these are columns of the table."""
        return all(self.own(name) is not None for name in names)

    @property
    def paths(self) -> dict[str, str]:
        """What errors call the two columns of records: a user of rows knows only fields."""
        return {"key": "" if self.key_is_struct else self.key[0], "value": ""}

    def of_rows(self, batch: Any) -> Any:
        """Returns the records of a batch of rows: a value, never null, and a key, whose type may
        still differ from that in the log's schema (`objects.records`).
        """
        import pyarrow as pa

        given = dict(zip(map(self.own, batch.schema.names), batch.columns, strict=True))
        keys = [given[name] for name in self.key]
        fields = {name: given[name] for name in self.value if name in given}
        rows = batch.num_rows
        key = _structs(dict(zip(self.key, keys, strict=True)), rows)
        return pa.RecordBatch.from_arrays(
            [key if self.key_is_struct else keys[0], _structs(fields, rows)], ["key", "value"]
        )

    def path(self, column: str) -> str | None:
        """Returns the path of a column or field, such as ``value.price`` for ``price``, or None."""
        top, dot, rest = column.partition(".")
        name = self.own(top)
        if name is None:
            return None
        if name in self.value:
            return f"value.{name}{dot}{rest}"
        return f"key.{name}{dot}{rest}" if self.key_is_struct else f"key{dot}{rest}"

    def shown(self, schema: "pa.Schema", columns: Sequence[str] | None) -> "Shown | None":
        """Returns these columns of rows as they are shown (None: all); None unless all are such."""
        import pyarrow as pa

        from clog.storage.types.columns import projected

        if isinstance(columns, str):
            return None  # `columns_asked` refuses it.
        if dotted := [name for name in self.key if "." in name]:  # Releases before 0.3.0 took it.
            raise InvalidInputError(
                f"{KEY_COLUMNS} names {dotted[0]!r}, but a dot separates a column from its fields;"
                " give the key column another name (Log.alter, or clog alter -c"
                f" {KEY_COLUMNS}=NAME)"
            )
        if columns is None:
            columns = [*self.key, *self.value]
        tops = [column.partition(".") for column in columns]
        rows = [self.own(top) is not None for top, _, _ in tops]
        if not all(rows) or not rows:
            of_records = [are_records([top]) for top, _, _ in tops]
            if all(of_records) or (any(of_records) and not any(rows)):
                return None  # `columns_asked` refuses what records do not have.
            own_names = ", ".join(self.key + self.value)
            for (top, _, _), is_own, is_record in zip(tops, rows, of_records, strict=True):
                if not is_own and not is_record:
                    raise InvalidInputError(
                        f"there is no column {top!r}; the columns are {own_names}"
                    )
            raise InvalidInputError(
                f"columns={list(columns)} are not all of rows ({own_names})"
                f" nor all of records ({', '.join(RECORD_COLUMNS)}); the two are not mixed"
            )
        spelled = [f"{self.own(top)}{dot}{rest}" for top, dot, rest in tops]
        own = projected(pa.schema(self.fields(schema)), spelled)
        return Shown(own, tuple(str(self.path(column)) for column in spelled), self)

    def as_rows(self, batch: "pa.RecordBatch", rows: "pa.Schema") -> "pa.RecordBatch":
        """Returns records, read by the paths of these columns, as rows with these columns."""
        import pyarrow as pa

        found: dict[str, pa.Array] = {}
        for top, names, is_struct in (
            ("key", self.key, self.key_is_struct),
            ("value", self.value, True),
        ):
            if top not in batch.schema.names:
                continue
            column = batch.column(top)
            if is_struct:
                kinds = [field.name for field in column.type]
                found |= dict(zip(kinds, column.flatten(), strict=True))
            else:
                found[names[0]] = column
        arrays = [found[str(self.own(name))] for name in rows.names]
        return pa.RecordBatch.from_arrays(arrays, schema=rows)


@dataclass(frozen=True, slots=True)
class Shown:
    """The columns shown, and the ``paths`` read for them; ``rows`` is None for those of records."""

    schema: "pa.Schema"
    paths: tuple[str, ...]
    rows: TableColumns | None = None

    def of(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Returns the columns read by the paths as they are shown."""
        return batch if self.rows is None else self.rows.as_rows(batch, self.schema)


def problem_of_names(table: TableColumns, schema: "pa.Schema", given: Sequence[str]) -> str | None:
    """Returns why columns with these names are not rows of the table; None if they are."""
    there = {f.name: f for f in table.fields(schema)}
    names = [table.own(name) for name in given]
    for spelled, name in zip(given, names, strict=True):
        if name is None:
            hint = "add it by Log.evolve or clog alter --schema, or leave it out"
            if spelled.lower() in ("key", "value"):
                hint += '; to delete a key, append [{"key": …, "value": None}]'
            return (
                f"column {spelled} is not in the log's schema; it has {', '.join(there)} ({hint})"
            )
        if names.count(name) > 1:
            same = [one for one in given if table.own(one) == name]
            return f"column {name} occurs twice, as {' and '.join(map(repr, same))}"
    for name, field in there.items():
        if name not in names and (name in table.key or not field.nullable):
            return f"column {name} is missing, which is NOT NULL; give it" + (
                "" if name in table.key else ", or relax it with evolve"
            )
    return None


def are_records(names: Iterable[str]) -> bool:
    """Returns whether all these are columns of records."""
    return {name.lower() for name in names} <= set(RECORD_COLUMNS)


def schema_of_rows(columns: "pa.Schema", key: Sequence[str]) -> "pa.Schema":
    """Returns the schema of a log of rows: key columns are NOT NULL, the others in a struct."""
    import pyarrow as pa

    own, there = {f.name: f for f in columns}, ", ".join(columns.names)
    if missing := [name for name in key if name not in own]:
        near = spellings(tuple(columns.names)).get(folded(missing[0]))
        hint = "" if near is None else f"; the key is given as it is spelled there, {near!r}"
        raise InvalidInputError(f"there is no column {missing[0]!r}; the columns are {there}{hint}")
    others = [f for f in columns if f.name not in key]
    if len(own) < len(columns) or len(set(key)) < len(key):
        raise InvalidInputError(f"a column occurs twice: {there}; key: {', '.join(key)}")
    if not key or not others:
        raise InvalidInputError(
            f"a table needs columns for its key and at least one other; its columns are {there},"
            f" its key {', '.join(key) or 'none'}"
        )
    if unknown := [f.name for f in columns if pa.types.is_null(f.type)]:
        raise InvalidInputError(
            f"column {unknown[0]} has no values from which its type follows; give the types with"
            " like= or schema=, as pa.schema([(name, type), …])"
        )
    parts = [pa.field(name, taken_as(own[name].type), nullable=False) for name in key]
    kind = parts[0].type if len(parts) == 1 else pa.struct(parts)
    value = pa.struct([f.with_type(taken_as(f.type)) for f in others])
    return pa.schema([pa.field("key", kind, nullable=False), pa.field("value", value)])


def _structs(fields: "Mapping[str, pa.Array]", rows: int) -> "pa.Array":
    import pyarrow as pa

    if not fields:  # All may be null, and none was given.
        return pa.Array.from_buffers(pa.struct([]), rows, [None], children=[])
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields))


def taken_as(kind: "pa.DataType") -> "pa.DataType":
    """Returns the type of a column for data of this type. Every value that an append of such data
    may have is one of that type: instants in UTC, seconds as milliseconds.
    """
    import pyarrow as pa

    from clog.storage.types.columns import without_layout

    types, kind = pa.types, without_layout(kind)
    if isinstance(kind, pa.BaseExtensionType):
        return taken_as(kind.storage_type)
    if types.is_struct(kind):
        return pa.struct([field.with_type(taken_as(field.type)) for field in kind])
    if types.is_map(kind):
        pair = (f.with_type(taken_as(f.type)) for f in (kind.key_field, kind.item_field))
        return pa.map_(*pair)
    if types.is_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(taken_as(kind.value_type)))
    if types.is_timestamp(kind):
        unit = "ms" if kind.unit == "s" else kind.unit
        return pa.timestamp(unit, None if kind.tz is None else "UTC")
    if types.is_time32(kind):
        return pa.time32("ms")
    return pa.date32() if types.is_date64(kind) else kind
