"""Which types of a typed log Spark's Parquet reader has as `spark_types` says."""

from typing import TYPE_CHECKING

from clog.connector.native.reasons import CannotScanError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def check_types(schema: "pa.Schema", read: "StructType", *, evolved: bool) -> None:
    """Raises if a column that is read has a type that Spark reads otherwise, or not at all.

    Args:
        schema: the log's.
        read: what is read of it, by name.
        evolved: objects may have narrower types.

    Raises:
        CannotScanError: there is one.
    """
    for field in schema:
        if field.name in read.names and (kind := _foreign(field.type, evolved=evolved)):
            raise CannotScanError(f"its schema has the type {kind}, which Spark's reader has not")


def _foreign(kind: "pa.DataType", *, evolved: bool) -> "pa.DataType | None":
    import pyarrow as pa

    types = pa.types
    if types.is_nested(kind):
        inner = [kind.field(i).type for i in range(kind.num_fields)]
        return next((k for t in inner if (k := _foreign(t, evolved=evolved)) is not None), None)
    is_foreign = types.is_float16(kind) or (types.is_timestamp(kind) and kind.unit == "ns")
    # Narrower unsigned numbers it would read as signed ones.
    is_foreign |= evolved and (types.is_uint64(kind) or types.is_uint32(kind))
    return kind if is_foreign else None
