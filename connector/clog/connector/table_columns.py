"""A typed log as a table of plain columns: those of its key, which ``table.key.columns`` names, and
the fields of its value.

A key that is a struct has its fields for columns, any other is one. DataFrames and schemas are in
one of two shapes, and what names they have tells which: *rows* have the table's columns, *records*
``key``, ``value`` and the other columns that every log has. Rows are tried first, so that a table
may have a column ``value``. Names have no case, as Spark's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    NullType,
    StructField,
    StructType,
)

from clog.connector.schema import COLUMNS, arrow_schema
from clog.connector.spark_types import arrow_type, spark_type, unreadable
from clog.storage.errors import InvalidInputError, OptionError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class LogTypes:
    """What a typed log says of its columns: its schema, and what those of its key are called; none
    where nobody named them.
    """

    schema: "pa.Schema"
    key_columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Which plain columns are in the key, and which in the value; how rows become records, and
    records rows. May travel to tasks.
    """

    key: tuple[str, ...]
    value: tuple[str, ...]
    key_is_struct: bool

    @classmethod
    def of(cls, types: LogTypes) -> "TableColumns":
        """Returns the columns of a log whose key columns have names."""
        import pyarrow as pa

        kinds = {field.name: field.type for field in types.schema}
        value = tuple(field.name for field in kinds["value"])
        return cls(types.key_columns, value, bool(pa.types.is_struct(kinds["key"])))

    def fields(self, schema: "pa.Schema") -> "list[pa.Field]":
        """Returns Arrow's fields of the table's columns, in their order."""
        key = schema.field("key")
        own = list(key.type) if self.key_is_struct else [key.with_name(self.key[0])]
        return [*own, *schema.field("value").type]

    def own(self, name: str) -> str | None:
        """Returns the table's spelling of a column; None where it has none of that name."""
        spelled = {n.lower(): n for n in (*self.key, *self.value)}
        return spelled.get(name.lower())

    def has(self, names: Sequence[str]) -> bool:
        """Tells whether all these are columns of the table."""
        return all(self.own(name) is not None for name in names)

    def of_rows(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Returns the records that rows are: a key, which the log's schema may want otherwise
        (`objects.records`), and a value, never null.
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

    def as_records(self, rows: StructType) -> StructType:
        """Returns the record columns, of structs the fields, that hold these columns of rows."""
        named = [StructField(str(self.own(f.name)), f.dataType, f.nullable) for f in rows]
        key = [f for f in named if f.name in self.key]
        value = [f for f in named if f.name in self.value]
        fields = []
        if key:
            fields.append(
                StructField("key", StructType(key) if self.key_is_struct else key[0].dataType)
            )
        if value:
            fields.append(StructField("value", StructType(value)))
        return StructType(fields)

    def rows_of(self, batch: "pa.RecordBatch", rows: StructType) -> "pa.RecordBatch":
        """Returns records, read by `as_records`, as rows of these columns."""
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
        arrays = [found[str(self.own(f.name))] for f in rows]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(rows))


def table_schema(
    types: LogTypes, columns: Sequence[str] | None, others: DataType | None = None
) -> StructType | None:
    """Returns the plain columns of a log's table; of those that are named by path only these, None
    where one is none of the table's. None, too, of a log whose key columns have no names.
    ``others`` as for `spark_type`.

    Raises:
        OptionError: a path names a field that does not exist.
    """
    if not types.key_columns:
        return None
    import pyarrow as pa

    from clog.storage.objects.typed_columns import projected

    table = TableColumns.of(types)
    schema = pa.schema(table.fields(types.schema))
    if columns is not None:
        paths = [path.partition(".") for path in columns]
        if not table.has([top for top, _, _ in paths]):
            return None
        try:
            schema = projected(schema, [f"{table.own(top)}{dot}{rest}" for top, dot, rest in paths])
        except InvalidInputError as e:
            raise OptionError(f'option "columns": {e}') from None
    kinds = {f.name: spark_type(f.type, f.name, others) for f in schema}
    return StructType([StructField(f.name, kinds[f.name], f.nullable) for f in schema])


def table_read(types: LogTypes, schema: StructType) -> TableColumns | None:
    """Returns the table whose rows a read with this schema shows; None where it shows records.

    Raises:
        InvalidInputError: it is neither: a column does not exist, has another type, or is NOT NULL
            where the log's may be null.
    """
    if not types.key_columns:
        return None
    table, stored = TableColumns.of(types), table_schema(types, None, NullType())
    assert stored is not None
    there = {f.name: f for f in stored}
    problem = None
    for f in schema:
        name = table.own(f.name)
        if name is None:
            problem = f"column {f.name} does not exist; the table has {', '.join(there)}"
        elif there[name].nullable and not f.nullable:
            problem = f"column {f.name} is NOT NULL in the given schema, but it may be null"
        else:
            problem = unreadable(f.dataType, there[name].dataType, f.name)
        if problem is not None:
            break
    if problem is None:
        return table
    if _are_records(schema.names):
        return None
    raise InvalidInputError(problem)


def table_write(types: LogTypes, schema: StructType, where: str) -> TableColumns | None:
    """Returns the table whose rows a DataFrame with this schema has; None where it has records.
    Whether each row fits is seen where it is written.

    Raises:
        InvalidInputError: it has neither: a column of the key or one that is NOT NULL is missing,
            one is unknown, or has a type whose values do not fit.
    """
    if not types.key_columns:
        return None
    table = TableColumns.of(types)
    problem = _row_problem(table, types.schema, schema)
    if problem is None:
        return table
    if "value" in {name.lower() for name in schema.names} and _are_records(schema.names):
        return None
    raise InvalidInputError(
        f"{where} is a table with the key columns {', '.join(table.key)}: {problem}"
    )


def _row_problem(table: TableColumns, schema: "pa.Schema", given: StructType) -> str | None:
    from clog.storage.objects.conforming import type_problem

    there = {f.name: f for f in table.fields(schema)}
    names = [table.own(f.name) for f in given]
    for f, name in zip(given, names, strict=True):
        if name is None:
            return (
                f"column {f.name} is not in the log's schema; it has {', '.join(there)}"
                " (add it with evolve, or leave it out)"
            )
        if names.count(name) > 1:
            return f"column {f.name} stands twice"
        if problem := type_problem(arrow_type(f.dataType), there[name].type, f.name):
            return problem
    for name, field in there.items():
        if name not in names and (name in table.key or not field.nullable):
            return f"column {name} is missing, which is NOT NULL; give it" + (
                "" if name in table.key else ", or relax it with evolve"
            )
    return None


def new_types(schema: StructType, key_columns: Sequence[str]) -> LogTypes:
    """Returns the types of a log made for rows of a DataFrame: the key is its column, or a struct
    of its columns, which are NOT NULL then; the value a struct of the others, which may be null,
    and what is inside them: Spark says of literals and counts that they are not, and nobody can
    tell that from a declaration.

    Raises:
        OptionError: a key column does not exist, or nothing is left for the value.
        InvalidInputError: a type that a typed log has not.
    """
    import pyarrow as pa

    own = {f.name.lower(): f for f in schema}
    if missing := [name for name in key_columns if name.lower() not in own]:
        raise OptionError(
            f'option "keyColumns" names {missing[0]!r}, which the DataFrame has not; it has'
            f" {', '.join(schema.names)}"
        )
    keys = [own[name.lower()] for name in key_columns]
    others = [f for f in schema if f not in keys]
    if not others or len(own) < len(schema.names):
        what = "repeats a column" if others else "has no column beside those of the key"
        raise OptionError(f'option "keyColumns": the DataFrame {what}, and a value needs some')
    parts = [pa.field(f.name, arrow_type(_nullable(f.dataType)), nullable=False) for f in keys]
    kind = parts[0].type if len(parts) == 1 else pa.struct(parts)
    value = [pa.field(f.name, arrow_type(_nullable(f.dataType))) for f in others]
    fields = [pa.field("key", kind, nullable=False), pa.field("value", pa.struct(value))]
    return LogTypes(pa.schema(fields), tuple(f.name for f in keys))


def _nullable(kind: DataType) -> DataType:
    """Returns the type with everything inside that may be null."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, _nullable(f.dataType)) for f in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def _are_records(names: Sequence[str]) -> bool:
    ours = {name.lower() for name in COLUMNS}
    return all(name.lower() in ours for name in names)


def _structs(fields: "dict[str, pa.Array]", rows: int) -> "pa.Array":
    import pyarrow as pa

    if not fields:  # All may be null, and none is given.
        return pa.Array.from_buffers(pa.struct([]), rows, [None], children=[])
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields))
