"""Whether the columns that a query asks for are those of the log."""

from typing import TYPE_CHECKING

from clog.connector.opened_logs import typed_schema
from clog.connector.options.settings import ReadOptions
from clog.connector.schema import check_read_schema, needs_types, typed_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from clog.storage.commit.handle import Handle


def check_columns(options: ReadOptions, schema: "StructType") -> None:
    """Raises if a schema that the user gave cannot be read. Opens the log where keys or values are
    no bytes in it.

    Raises:
        InvalidInputError: as `check_read_schema`.
    """
    typed = typed_schema(options.location) if needs_types(schema) else None
    if typed is None:
        check_read_schema(schema)
    else:
        check_read_schema(schema, typed_columns(typed))


def check_columns_of(handle: "Handle", schema: "StructType") -> None:
    """Raises if the columns are not those of a log that is open.

    Raises:
        InvalidInputError: as `check_read_schema`.
    """
    from clog.storage.objects.arrow_types import arrow_schema

    types = handle.tip.head.log.schema
    if types is not None or needs_types(schema):
        typed = None if types is None else arrow_schema(types)
        asked = {f.name.lower() for f in schema.fields}
        named = None if typed is None else [f for f in typed if f.name in asked]
        check_read_schema(schema, *(() if named is None else (typed_columns(named),)))
