"""Spark's types of typed keys and values, and Arrow's of Spark's.

Unsigned integers are the next wider signed ones, ``uint64`` is ``decimal(20,0)``; 16-bit floats are
32-bit ones; bytes of fixed width are bytes; timestamps have microseconds, with a zone as Spark's
``timestamp``, without one as ``timestamp_ntz``. Times of day and decimals of more than 38 digits
Spark cannot read here: they are left out by ``columns``.
"""

from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from clog.storage.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

_DIGITS_MAX = 38


def spark_type(kind: "pa.DataType", path: str, others: DataType | None = None) -> DataType:
    """Returns Spark's type of an Arrow type of a log's schema; ``others`` where Spark has none.

    Raises:
        InvalidInputError: Spark has none, and ``others`` is None.
    """
    import pyarrow as pa

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
    if types.is_timestamp(kind):
        return TimestampNTZType() if kind.tz is None else TimestampType()
    if types.is_decimal(kind) and kind.precision <= _DIGITS_MAX:
        return DecimalType(kind.precision, kind.scale)
    if types.is_fixed_size_binary(kind) and not types.is_decimal(kind):
        return BinaryType()
    found = {
        pa.bool_(): BooleanType(),
        pa.string(): StringType(),
        pa.binary(): BinaryType(),
        pa.int8(): ByteType(),
        pa.int16(): ShortType(),
        pa.int32(): IntegerType(),
        pa.int64(): LongType(),
        pa.uint8(): ShortType(),
        pa.uint16(): IntegerType(),
        pa.uint32(): LongType(),
        pa.uint64(): DecimalType(20, 0),
        pa.date32(): DateType(),
        pa.float16(): FloatType(),
        pa.float32(): FloatType(),
        pa.float64(): DoubleType(),
    }.get(kind)
    if found is None and others is not None:
        return others
    if found is None:
        raise InvalidInputError(
            f"{path} has type {kind}, for which Spark has none; leave it out by the option columns"
        )
    return found


def arrow_type(kind: DataType) -> "pa.DataType":
    """Returns the Arrow type that Spark compares columns of its type with."""
    import pyarrow as pa

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
    simple: dict[type[DataType], pa.DataType] = {
        BinaryType: pa.binary(),
        BooleanType: pa.bool_(),
        DateType: pa.date32(),
        ByteType: pa.int8(),
        ShortType: pa.int16(),
        IntegerType: pa.int32(),
        LongType: pa.int64(),
        FloatType: pa.float32(),
        DoubleType: pa.float64(),
        TimestampType: pa.timestamp("us", "UTC"),
        TimestampNTZType: pa.timestamp("us"),
    }
    if (found := simple.get(type(kind))) is None:
        raise InvalidInputError(f"type {kind.simpleString()} cannot be in a typed log")
    return found


def paths_of(name: str, kind: DataType) -> list[str]:
    """Returns what storage reads for a column of this type: of structs the fields, by path, also
    inside arrays and maps.
    """
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


def unreadable(given: DataType, stored: DataType, path: str) -> str | None:
    """Returns why a stored column cannot be read as one of the given type: only fields may be
    missing, and NOT NULL omitted; None where it can. ``NullType`` stands for a type that Spark has
    not.
    """
    if isinstance(stored, NullType):
        return f"column {path} has a type for which Spark has none; leave it out of the schema"
    if isinstance(given, StructType) and isinstance(stored, StructType):
        there = {f.name: f for f in stored.fields}
        for f in given.fields:
            inner = f"{path}.{f.name}"
            if f.name not in there:
                return f"column {inner} does not exist; {path} has {', '.join(there)}"
            if there[f.name].nullable and not f.nullable:
                return f"column {inner} is NOT NULL in the given schema, but it may be null"
            if problem := unreadable(f.dataType, there[f.name].dataType, inner):
                return problem
        return None
    if isinstance(given, ArrayType) and isinstance(stored, ArrayType):
        if stored.containsNull and not given.containsNull:
            return f"column {path} may hold nulls"
        return unreadable(given.elementType, stored.elementType, f"{path}.element")
    if isinstance(given, MapType) and isinstance(stored, MapType):
        if stored.valueContainsNull and not given.valueContainsNull:
            return f"column {path} may hold nulls"
        return unreadable(given.valueType, stored.valueType, f"{path}.value")
    if given.simpleString() == stored.simpleString():
        return None
    return (
        f"column {path} has type {given.simpleString()} in the given schema, but is"
        f" {stored.simpleString()}; read it as that, and cast"
    )
