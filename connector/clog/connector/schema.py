"""The columns: those of Spark's Kafka source, by name and type; in typed logs key and value have
the types of the schema, and ``value.price`` names a field of a struct.

A read has ``key value topic partition offset timestamp timestampType``, and ``headers`` with
``includeHeaders``. What a query asks for, by the option ``columns`` or a subset in ``.schema(…)``,
is all that is read. A write takes ``key value headers timestamp partition topic``.

Spark accepts an Arrow batch only when it equals the schema exactly, nullability included, and
checks the first batch only: each batch is built with the one Arrow schema made here.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from clog.connector.spark_types import arrow_type, paths_of, spark_type, unreadable
from clog.storage.errors import InvalidInputError, OptionError

if TYPE_CHECKING:
    import pyarrow as pa

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


def typed_columns(schema: "pa.Schema") -> dict[str, DataType]:
    """Returns the columns of a typed log, by its schema; ``NullType`` where Spark has none: a read
    of the others need not fail.
    """
    return COLUMNS | {f.name: spark_type(f.type, f.name, NullType()) for f in schema}


def read_schema(
    columns: Sequence[str] | None, *, include_headers: bool, typed: "pa.Schema | None" = None
) -> StructType:
    """Returns the schema of a read without ``.schema(…)``; ``typed`` is that of a typed log.

    Raises:
        OptionError: ``columns`` names one that does not exist.
    """
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

    from clog.storage.objects.typed_columns import projected

    # Others have no fields: any type will do for them.
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
    """Returns the same schema with our spelling of our columns: to Spark names have no case."""
    fields = [
        StructField(_BY_LOWER.get(f.name.lower(), f.name), f.dataType, f.nullable)
        for f in schema.fields
    ]
    return StructType(fields)


def with_our_names(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Returns a batch of Spark's with our spelling of our columns."""
    return batch.rename_columns([_BY_LOWER.get(n.lower(), n) for n in batch.schema.names])


def needs_types(schema: StructType) -> bool:
    """Tells whether a schema that the user gave can only be that of a typed log."""
    kinds = {f.name: f.dataType for f in canonical(schema).fields}
    if any(name not in COLUMNS for name in kinds):
        return True
    return any(name in kinds and not _same(kinds[name], COLUMNS[name]) for name in ("key", "value"))


def check_read_schema(schema: StructType, columns: Mapping[str, DataType] = COLUMNS) -> None:
    """Raises if a schema that the user gave cannot be read; ``columns``: those of a typed log.

    Raises:
        InvalidInputError: it has a column that does not exist, another type, one twice, or NOT NULL
            where a record may have null.
    """
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
                raise InvalidInputError(problem)
        elif not _same(field.dataType, expected):
            raise InvalidInputError(
                f"column {field.name} has type {field.dataType.simpleString()} in the given schema,"
                f" but is {expected.simpleString()}; read it as that, and cast"
                f" (cast({field.name} as {field.dataType.simpleString()}))"
            )
        # Spark believes it: it would count no tombstone, or fail in its own code.
        if field.name in _MAY_BE_NULL and (not field.nullable or _same_but_for_nulls(field)):
            raise InvalidInputError(
                f"column {field.name} is NOT NULL in the given schema, but it may be null, as the"
                " value of a tombstone is; omit NOT NULL"
            )


def stored_columns(schema: StructType) -> list[str]:
    """Returns what is read from storage for these columns, of structs the fields, by path."""
    kinds = {f.name: f.dataType for f in schema.fields}
    named = [name for name in STORED if name in kinds]
    # Some column must say how many rows there are; offsets cost nothing where they are dense.
    return [path for name in named for path in paths_of(name, kinds[name])] or ["offset"]


def arrow_schema(schema: StructType) -> "pa.Schema":
    """Returns the Arrow schema that Spark compares batches with."""
    import pyarrow as pa

    return pa.schema([_arrow_field(f) for f in schema.fields])


def check_write_schema(
    schema: StructType, *, key_needed: bool, where: str, typed: "pa.Schema | None" = None
) -> None:
    """Raises if rows of this schema cannot be appended, by the rules of Spark's Kafka sink.

    ``value`` is required, ``key`` too where the log is compacted; columns that a record has no
    place for are ignored, as there, but for the source's own: a job that writes back what a source
    read must not believe that offsets are kept. ``typed`` is the schema of a typed log: its types
    are those of ``key`` and ``value``; whether each row fits them is seen where it is written.

    Raises:
        InvalidInputError: a column is missing, has a wrong type, or is a position.
    """
    fields = canonical(schema).fields
    _check_once(StructType([f for f in fields if f.name in COLUMNS]), "the DataFrame")
    types = {f.name: f.dataType for f in fields}
    required = ("key", "value") if key_needed else ("value",)
    for name in required:
        if name not in types:
            raise InvalidInputError(
                f"column {name!r} is missing, {where} needs {' and '.join(required)};"
                f" the DataFrame has {', '.join(types)}"
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
                # A cast would, too: no JSON.
                remedy = f"to_json({name}) makes a text of it, a typed log takes it as it is"
            if name in ("key", "value") and isinstance(kind, TimestampType):
                # The text of a cast depends on the session's zone, and has an hour twice a year.
                remedy = f"string(unix_micros({name})) is one text in every time zone"
            raise InvalidInputError(
                f"column {name} has type {kind.simpleString()}, {where} takes {allowed}; {remedy}"
            )


def _check_typed(kind: DataType, field: "pa.Field", where: str) -> None:
    from clog.storage.objects.conforming import type_problem

    if problem := type_problem(arrow_type(kind), field.type, field.name):
        raise InvalidInputError(f"{where} is typed, and takes no such column: {problem}")


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
    # Collations, char and varchar are strings on the way.
    return StringType() if isinstance(kind, StringType) else kind


def _arrow_field(field: StructField) -> "pa.Field":
    import pyarrow as pa

    return pa.field(field.name, arrow_type(field.dataType), nullable=field.nullable)
