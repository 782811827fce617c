"""Columns and types of records, and of a typed log's table, as Spark sees them; errors and warnings
too.

*Types.* Unsigned integers become the next wider signed ones, ``uint64`` ``decimal(20,0)``; 16-bit
floats become 32-bit ones; bytes of fixed width are bytes; timestamps have microseconds, with a zone
as Spark's ``timestamp``, without one as ``timestamp_ntz``. Spark cannot read times of day and
decimals of more than 38 digits here: ``columns`` can leave them out.

*Records* have the columns of Spark's Kafka source, by name and type; in typed logs key and value
have the types of the schema, and ``value.price`` names a field of a struct. A read has ``key value
topic partition offset timestamp timestampType``, and ``headers`` with ``includeHeaders``. Only the
columns that a query asks for, by the option ``columns`` or a subset in ``.schema(…)``, are read. A
write takes ``key value headers timestamp partition topic``.

*Rows* have the table's columns: those of the key, which ``table.key.columns`` names, and the fields
of the value. The columns of a struct key are its fields; any other key is one column. The names in
a DataFrame or a schema show whether it has rows or records. Rows are tried first, so that a table
may have a column ``value``. Names are case-insensitive, like Spark's.

Spark accepts an Arrow batch only when it equals the schema exactly, nullability included, and
checks only the first batch, so each batch is built with the one Arrow schema made here.

Spark prints the traceback of a Python error in full and drops its cause, so each method that Spark
calls raises the error anew (`shallow`); the message of a `ClogError` contains the cause.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pyspark.sql import types as spark_types
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from clog.storage.env import dataclass
from clog.storage.errors import ClogError, InvalidInputError, OptionError
from clog.storage.types import rows
from clog.storage.types.names import folded, spellings

if TYPE_CHECKING:
    import pyarrow as pa


def spark_type(kind: "pa.DataType", path: str, others: DataType | None = None) -> DataType:
    """Returns Spark's type for an Arrow type of a log's schema, or ``others`` if Spark has none."""
    import pyarrow as pa

    from clog.storage.column_kinds import word_for, word_of

    types = pa.types
    if types.is_struct(kind):
        fields = [
            StructField(f.name, spark_type(f.type, f"{path}.{f.name}", others), f.nullable)
            for f in kind
        ]
        return StructType(fields)
    if types.is_map(kind):
        key, item = (spark_type(k, path, others) for k in (kind.key_type, kind.item_type))
        return MapType(key, item, kind.item_field.nullable)
    if types.is_list(kind):
        return ArrayType(spark_type(kind.value_type, path, others), kind.value_field.nullable)
    word = word_of(kind)
    found = None if word is None else word_for("spark", word)
    if found is None and others is not None:
        return others
    if found is None:
        raise InvalidInputError(
            f"{path} has type {kind}, which Spark does not have; leave it out with the option"
            " columns"
        )
    return _named(found)


def _named(word: str) -> DataType:
    """Returns the type with this name (`column_kinds`)."""
    name, _, digits = word.partition("(")
    if digits:
        return DecimalType(*map(int, digits.rstrip(")").split(",")))
    found: DataType = getattr(spark_types, f"{name}Type")()
    return found


def arrow_type(kind: DataType) -> "pa.DataType":
    """Returns the Arrow type with which Spark compares columns of its type."""
    import pyarrow as pa

    from clog.storage.column_kinds import KINDS

    if isinstance(kind, ArrayType):
        element = pa.field("element", arrow_type(kind.elementType), nullable=kind.containsNull)
        return pa.list_(element)
    if isinstance(kind, MapType):
        item = pa.field("value", arrow_type(kind.valueType), nullable=kind.valueContainsNull)
        return pa.map_(arrow_type(kind.keyType), item)
    if isinstance(kind, StructType):
        fields = [pa.field(f.name, arrow_type(f.dataType), nullable=f.nullable) for f in kind]
        return pa.struct(fields)
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, StringType):
        return pa.string()
    # Where several kinds are one type for Spark, the first wins.
    simple = {f"{k.spark}Type": k.arrow for k in reversed(KINDS) if k.spark}
    if (found := simple.get(type(kind).__name__)) is None:
        raise InvalidInputError(f"type {kind.simpleString()} cannot be in a typed log")
    return found


def paths_of(name: str, kind: DataType) -> list[str]:
    """Returns the paths that storage reads for a column of this type: each field of a struct."""
    if isinstance(kind, ArrayType | MapType):
        inside, inner = (
            ("element", kind.elementType)
            if isinstance(kind, ArrayType)
            else ("value", kind.valueType)
        )
        found = paths_of(inside, inner)
        return [name] if found == [inside] else [f"{name}.{path}" for path in found]
    if not isinstance(kind, StructType):
        return [name]
    return [path for f in kind.fields for path in paths_of(f"{name}.{f.name}", f.dataType)]


@dataclass(frozen=True, slots=True)
class Misfit:
    """A column that cannot be read as the given schema has it: what it is there (empty: unknown to
    the log), and what it is in the log.
    """

    path: str
    given: str
    stored: str
    remedy: str = "read it as that, and cast"

    def __str__(self) -> str:
        given = f" {self.given} in the given schema, but" if self.given else ""
        return f"column {self.path}{given} {self.stored}; {self.remedy}"


class UnfitColumnError(InvalidInputError):
    """A column does not fit; `opened_logs.table_shown` says it in the user's terms."""

    def __init__(self, misfit: Misfit) -> None:
        super().__init__(str(misfit))
        self.misfit = misfit


def unreadable(given: DataType, stored: DataType, path: str) -> Misfit | None:
    """Returns why a stored column cannot be read with the given type, None if it can: only fields
    may be missing, and NOT NULL omitted. ``NullType`` stands for a type that Spark does not have.
    """
    if isinstance(stored, NullType):
        lacks, remedy = "has a type that Spark does not have", "leave it out of the schema"
        return Misfit(path, f"has type {given.simpleString()}", lacks, remedy)
    if isinstance(given, StructType) and isinstance(stored, StructType):
        there = {f.name: f for f in stored.fields}
        for f in given.fields:
            inner = f"{path}.{f.name}"
            if f.name not in there:
                return Misfit(inner, "", "does not exist", f"{path} has {', '.join(there)}")
            if problem := _unreadable_field(f, there[f.name], inner):
                return problem
        return None
    if isinstance(given, ArrayType) and isinstance(stored, ArrayType):
        one, other = (
            StructField("element", k.elementType, k.containsNull) for k in (given, stored)
        )
        return _unreadable_field(one, other, f"{path}.element")
    if isinstance(given, MapType) and isinstance(stored, MapType):
        one, other = (
            StructField("value", k.valueType, k.valueContainsNull) for k in (given, stored)
        )
        keys = unreadable(given.keyType, stored.keyType, f"{path}.key")
        return keys or _unreadable_field(one, other, f"{path}.value")
    if given.simpleString() == stored.simpleString():
        return None
    return Misfit(path, f"has type {given.simpleString()}", f"is {stored.simpleString()}")


def _unreadable_field(given: StructField, stored: StructField, path: str) -> Misfit | None:
    if stored.nullable and not given.nullable:
        return Misfit(path, "is NOT NULL", "may be null", "omit NOT NULL")
    return unreadable(given.dataType, stored.dataType, path)


HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}
_BY_LOWER = {name.lower(): name for name in COLUMNS}
STORED = ("partition", "offset", "timestamp", "key", "value", "headers")
"""The columns that storage reads; the others are the same for many rows."""
WRITTEN = ("key", "value", "headers", "timestamp", "partition", "topic")
_POSITION_COLUMNS = ("offset", "timestampType")
_MAY_BE_NULL = ("key", "value", "headers")


CHANGES: dict[str, DataType] = {
    "_change_type": StringType(),
    "_commit_version": LongType(),
    "_commit_timestamp": TimestampType(),
}
"""What view `changes` shows beside the table's columns, as Spark's catalogs name it."""


def with_changes(table: StructType, columns: Sequence[str] | None) -> StructType:
    """Returns columns of the table with those of a change, or those of them that are named."""
    if taken := [f.name for f in table if f.name.lower() in CHANGES]:
        raise InvalidInputError(
            f'the table has a column {taken[0]}, which view "changes" uses for its own; leave it'
            " out with the option columns"
        )
    names = CHANGES if columns is None else [n.lower() for n in columns if n.lower() in CHANGES]
    own = [StructField(name, CHANGES[name], nullable=False) for name in names]
    return StructType([*table.fields, *own])


def without_changes(schema: StructType) -> StructType:
    """Returns the table's columns in the schema of a read of changes."""
    fields = [f for f in schema.fields if f.name.lower() not in CHANGES]
    for f in schema.fields:
        kind = CHANGES.get(f.name.lower())
        if kind is not None and not _same(f.dataType, kind):
            raise InvalidInputError(
                f"column {f.name} has type {f.dataType.simpleString()} in the given schema, but is"
                f" {kind.simpleString()}; read it as that, and cast"
            )
    if not fields:
        raise InvalidInputError("no column of the table is read; name one beside those of changes")
    return StructType(fields)


def typed_columns(schema: "pa.Schema") -> dict[str, DataType]:
    """Returns the columns of a typed log, with ``NullType`` where Spark has no type."""
    return COLUMNS | {f.name: spark_type(f.type, f.name, NullType()) for f in schema}


def read_schema(
    columns: Sequence[str] | None, *, include_headers: bool, typed: "pa.Schema | None" = None
) -> StructType:
    """Returns the schema of a read without ``.schema(…)``; ``typed`` is that of a typed log."""
    if columns is None:
        columns = [name for name in COLUMNS if include_headers or name != "headers"]
    if typed is not None:
        return _typed_schema(columns, typed)
    columns = [_BY_LOWER.get(name.lower(), name) for name in columns]
    for name in columns:
        if name not in COLUMNS:
            raise OptionError(f'option "columns" names {name!r}; columns are {", ".join(COLUMNS)}')
    return StructType([StructField(name, COLUMNS[name]) for name in columns])


def _typed_schema(columns: Sequence[str], typed: "pa.Schema") -> StructType:
    import pyarrow as pa

    from clog.storage.types.columns import projected

    # The other columns have no fields, so any type will do for them.
    every = pa.schema([typed.field(n) if n in typed.names else (n, pa.int8()) for n in COLUMNS])
    named = [_with_our_top(path) for path in columns]
    try:
        fields = projected(every, named)
    except InvalidInputError as e:
        raise OptionError(f'option "columns": {e}') from None
    own = {f.name: spark_type(f.type, f.name) for f in fields if f.name in typed.names}
    return StructType([StructField(n, own.get(n) or COLUMNS[n]) for n in fields.names])


def _with_our_top(path: str) -> str:
    top, dot, rest = path.partition(".")
    return f"{_BY_LOWER.get(top.lower(), top)}{dot}{rest}"


def canonical(schema: StructType) -> StructType:
    """Returns the same schema with our spelling of our columns: Spark's names ignore case."""
    fields = [
        StructField(_BY_LOWER.get(f.name.lower(), f.name), f.dataType, f.nullable)
        for f in schema.fields
    ]
    return StructType(fields)


def with_our_names(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Returns a batch of Spark's with our spelling of our columns."""
    return batch.rename_columns([_BY_LOWER.get(n.lower(), n) for n in batch.schema.names])


def needs_types(schema: StructType) -> bool:
    """Returns whether a schema that the user gave can only be that of a typed log."""
    kinds = {f.name: f.dataType for f in canonical(schema).fields}
    if any(name not in COLUMNS for name in kinds):
        return True
    return any(name in kinds and not _same(kinds[name], COLUMNS[name]) for name in ("key", "value"))


def check_read_schema(schema: StructType, columns: Mapping[str, DataType] = COLUMNS) -> None:
    """Raises if a schema that the user gave cannot be read; ``columns``: those of a typed log."""
    _check_once(schema, "the given schema")
    for field in canonical(schema).fields:
        if field.name not in COLUMNS:
            raise InvalidInputError(
                f"column {field.name!r} of the given schema does not exist; columns are"
                f" {', '.join(COLUMNS)}"
            )
        expected = columns[field.name]
        nested = isinstance(expected, StructType | ArrayType | MapType | NullType)
        if nested and field.name != "headers":
            if problem := unreadable(field.dataType, expected, field.name):
                raise UnfitColumnError(problem)
        elif not _same(field.dataType, expected):
            kind = field.dataType.simpleString()
            as_given = f"cast({field.name} as {kind})"
            if isinstance(expected, TimestampType) and isinstance(field.dataType, NumericType):
                as_given = f"unix_millis({field.name})"  # A cast would return seconds.
            cast = f"read it as that, and cast ({as_given})"
            stored = f"is {expected.simpleString()}"
            raise UnfitColumnError(Misfit(field.name, f"has type {kind}", stored, cast))
        # Spark would believe it, and then count no tombstones, or fail in its own code.
        if field.name in _MAY_BE_NULL and (not field.nullable or _same_but_for_nulls(field)):
            raise InvalidInputError(
                f"column {field.name} is NOT NULL in the given schema, but it may be null, as the"
                " value of a tombstone is; omit NOT NULL"
            )


def asked_schema(
    types: "LogTypes | None",
    columns: Sequence[str] | None,
    *,
    include_headers: bool,
    is_table: bool,
) -> StructType:
    """Returns the columns of a read without ``.schema(…)``: of rows if ``is_table``."""
    if types is not None and is_table and not include_headers:
        rows = table_schema(types, columns)
        if rows is not None:
            return rows
    typed = None if types is None else types.schema
    return read_schema(columns, include_headers=include_headers, typed=typed)


def table_of_read(
    types: "LogTypes | None", schema: StructType, *, is_table: bool
) -> "TableColumns | None":
    """Checks the columns of a read; returns the table it shows, or None if it shows records."""
    if types is None:
        check_read_schema(schema)
        return None
    table = table_read(types, schema) if is_table else None
    if table is None:
        asked = {f.name.lower() for f in schema.fields}
        check_read_schema(schema, typed_columns([f for f in types.schema if f.name in asked]))
    return table


def stored_columns(schema: StructType) -> list[str]:
    """Returns the paths that are read from storage for these columns: each field of a struct."""
    kinds = {f.name: f.dataType for f in schema.fields}
    named = [name for name in STORED if name in kinds]
    # Some column must give the number of rows; offsets cost nothing where they are dense.
    return [path for name in named for path in paths_of(name, kinds[name])] or ["offset"]


def arrow_schema(schema: StructType) -> "pa.Schema":
    """Returns the Arrow schema that Spark compares batches with."""
    import pyarrow as pa

    fields = [pa.field(f.name, arrow_type(f.dataType), nullable=f.nullable) for f in schema.fields]
    return pa.schema(fields)


def check_write_schema(
    schema: StructType, *, key_needed: bool, where: str, typed: "pa.Schema | None" = None
) -> None:
    """Raises if rows of this schema cannot be appended, by the rules of Spark's Kafka sink.

    ``value`` is required, and so is ``key`` if the log is compacted; columns that have no place in
    a record are ignored, as there, except the source's own: a job that writes back what a source
    read must not believe that offsets are kept. ``typed`` is the schema of a typed log, which has
    the types of ``key`` and ``value``; whether each row fits them is checked when it is written.
    """
    fields = canonical(schema).fields
    _check_once(StructType([f for f in fields if f.name in COLUMNS]), "the DataFrame")
    types = {f.name: f.dataType for f in fields}
    required = ("key", "value") if key_needed else ("value",)
    for name in required:
        if name not in types:
            raise InvalidInputError(
                f"column {name!r} is missing, {where} needs {' and '.join(required)};"
                f" the DataFrame has {', '.join(types)}; for a new log of these columns, name those"
                ' of its key by the option "keyColumns"'
            )
    if own := [name for name in _POSITION_COLUMNS if name in types]:
        kept = [name for name in WRITTEN[:4] if name in types]
        select = ", ".join(f'"{name}"' for name in kept)
        raise InvalidInputError(
            f"cannot write columns {', '.join(own)} to {where}: the commit assigns offsets;"
            f" write .select({select}); in SQL, a view with the option columns '{','.join(kept)}'"
        )
    for name, kind in types.items():
        if typed is not None and name in typed.names:
            _check_typed(kind, typed.field(name), where)
        elif name in WRITTEN and not any(_same(kind, t) for t in _accepted(name)):
            allowed = " or ".join(t.simpleString() for t in _accepted(name))
            remedy = f"cast({name} as {_accepted(name)[0].simpleString()})"
            if name in ("key", "value") and isinstance(kind, StructType | ArrayType | MapType):
                # A cast would make a text, too, but not JSON.
                remedy = f"to_json({name}) converts it to text; a typed log accepts it unchanged"
            if name in ("key", "value") and isinstance(kind, TimestampType):
                # A cast's text depends on the session's zone, in which one hour a year is repeated.
                remedy = f"string(unix_micros({name})) gives the same text in every time zone"
            if name == "timestamp" and isinstance(kind, NumericType):
                # A cast would take them for seconds.
                remedy = f"timestamp_millis({name}) if it has milliseconds, as in Kafka"
            raise InvalidInputError(
                f"column {name} has type {kind.simpleString()}, {where} takes {allowed}; {remedy}"
            )


def _check_typed(kind: DataType, field: "pa.Field", where: str) -> None:
    from clog.storage.types.conform import type_problem

    if problem := type_problem(arrow_type(kind), field.type, field.name):
        merges = "; mergeSchema=true adds it" if "is not in the log's schema" in problem else ""
        raise InvalidInputError(f"{where} is typed, and cannot take this column: {problem}{merges}")


def _check_once(schema: StructType, where: str) -> None:
    names = canonical(schema).names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInputError(f"{where} repeats {', '.join(twice)}; name each once")


def _accepted(name: str) -> tuple[DataType, ...]:
    if name in ("key", "value"):
        return (StringType(), BinaryType())
    return (COLUMNS[name],)


def _same_but_for_nulls(field: StructField) -> bool:
    return field.name == "headers" and field.dataType != HEADERS


def _same(one: DataType, other: DataType) -> bool:
    return _plain(one).simpleString() == _plain(other).simpleString()


def _plain(kind: DataType) -> DataType:
    # Collations, char and varchar are transferred as strings.
    return StringType() if isinstance(kind, StringType) else kind


@dataclass(frozen=True, slots=True)
class LogTypes:
    """A typed log's schema, and the names of its key columns, if any were given."""

    schema: "pa.Schema"
    key_columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableColumns(rows.TableColumns):
    """The plain columns of a log's table, with Spark's types. May be sent to tasks."""

    @classmethod
    def of(cls, types: LogTypes) -> "TableColumns":
        """Returns the columns of a log whose key columns have names."""
        named = rows.TableColumns.named(types.schema, types.key_columns)
        return cls(named.key, named.value, named.key_is_struct)

    def as_records(self, rows: StructType) -> StructType:
        """Returns the record columns, or fields of structs, that hold these columns of rows."""
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
        return self.as_rows(batch, arrow_schema(rows))


def table_schema(
    types: LogTypes, columns: Sequence[str] | None, others: DataType | None = None
) -> StructType | None:
    """Returns the plain columns of a log's table, or those of them that ``columns`` names by path.
    Returns None if one of these is not in the table, or if the log's key columns have no names.
    ``others`` is as for `spark_type`.
    """
    if not types.key_columns:
        return None
    import pyarrow as pa

    from clog.storage.types.columns import projected

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
    """Returns the table whose rows a read with this schema shows; None if it shows records."""
    if not types.key_columns:
        return None
    table, stored = TableColumns.of(types), table_schema(types, None, NullType())
    assert stored is not None
    there = {f.name: f for f in stored}
    problem = None
    for f in schema:
        name = table.own(f.name)
        if name is None:
            problem = Misfit(f.name, "", "does not exist", f"the table has {', '.join(there)}")
        else:
            problem = _unreadable_field(f, there[name], f.name)
        if problem is not None:
            break
    if problem is None:
        return table
    if _are_records(schema.names):
        return None
    raise UnfitColumnError(problem)


def table_write(types: LogTypes, schema: StructType, where: str) -> TableColumns | None:
    """Returns the table whose rows a DataFrame has; None if it has records."""
    if not types.key_columns:
        return None
    table = TableColumns.of(types)
    problem = _row_problem(table, types.schema, schema)
    if problem is None:
        return table
    if "value" in {name.lower() for name in schema.names} and _are_records(schema.names):
        return None
    merges = "; mergeSchema=true adds it" if "is not in the log's schema" in problem else ""
    raise InvalidInputError(
        f"{where} is a table with the key columns {', '.join(table.key)}: {problem}{merges}"
    )


def _row_problem(table: TableColumns, schema: "pa.Schema", given: StructType) -> str | None:
    from clog.storage.types.conform import type_problem

    if problem := rows.problem_of_names(table, schema, given.names):
        return problem
    there = {f.name: f for f in table.fields(schema)}
    problems = (
        type_problem(arrow_type(f.dataType), there[str(table.own(f.name))].type, f.name)
        for f in given
    )
    return next(filter(None, problems), None)


def new_types(schema: StructType, key_columns: Sequence[str]) -> LogTypes:
    """Returns the types of a log made for rows of a DataFrame. Everything inside a value may be
    null: Spark declares literals and counts as not nullable, and nobody can tell that from a
    user's declaration.
    """
    own = spellings(tuple(schema.names))  # As always in Spark, case does not matter.
    key = tuple(own.get(name) or own.get(folded(name), name) for name in key_columns)
    try:
        types = rows.schema_of_rows(nullable_schema(schema), key)
    except InvalidInputError as e:
        raise OptionError(f'option "keyColumns": {e}') from None
    return LogTypes(types, key)


def nullable_schema(schema: StructType) -> "pa.Schema":
    """Returns the columns of a DataFrame as a log may get them: each may be null."""
    import pyarrow as pa

    return pa.schema([pa.field(f.name, arrow_type(_nullable(f.dataType))) for f in schema])


def _nullable(kind: DataType) -> DataType:
    """Returns the type with everything inside it nullable."""
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


_P = ParamSpec("_P")
_R = TypeVar("_R")


def shallow(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wraps a method so that its `ClogError`s show no frames below it."""

    @wraps(method)
    def outermost(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(*args, **kwargs)
        except ClogError as e:
            raise e.with_traceback(None) from None

    return outermost


def shallow_iterator(method: Callable[_P, Iterator[_R]]) -> Callable[_P, Iterator[_R]]:
    """Wraps a generator in the same way."""

    @wraps(method)
    def outermost(*args: _P.args, **kwargs: _P.kwargs) -> Iterator[_R]:
        try:
            yield from method(*args, **kwargs)
        except ClogError as e:
            raise e.with_traceback(None) from None

    return outermost
