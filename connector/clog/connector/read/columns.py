"""Whether the columns that a query asks for are those of the log, whether it asks for rows of its
table or for records, and what keys it asks for.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from clog.connector.opened_logs import try_open, types_of
from clog.connector.options.settings import ReadOptions
from clog.connector.schema import check_read_schema, needs_types, read_schema, typed_columns
from clog.connector.table_columns import LogTypes, TableColumns, table_read, table_schema
from clog.storage.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from clog.storage.commit.handle import Handle


def asked_schema(options: ReadOptions, types: LogTypes | None) -> "StructType":
    """Returns the columns of a read without ``.schema(…)`` of a log with these types.

    Raises:
        OptionError: ``columns`` names one that does not exist.
        InvalidInputError: a type that Spark has not.
    """
    headers = options.include_headers
    if types is not None and options.view == "table" and not headers:
        rows = table_schema(types, options.columns)
        if rows is not None:
            return rows
    typed = None if types is None else types.schema
    return read_schema(options.columns, include_headers=headers, typed=typed)


def check_columns(options: ReadOptions, schema: "StructType") -> "Handle | None":
    """Raises if a schema that the user gave cannot be read. Opens the log where it is no schema of
    a log of bytes, and returns its handle then.

    Raises:
        InvalidInputError: as `check_read_schema`.
    """
    if not needs_types(schema):
        check_read_schema(schema)
        return None
    handle = try_open(options.location)
    if handle is None:
        check_read_schema(schema)
    else:
        check_columns_of(handle, options, schema)
    return handle


def check_columns_of(
    handle: "Handle", options: ReadOptions, schema: "StructType"
) -> TableColumns | None:
    """Returns the table whose rows are to be shown; None where records are.

    Raises:
        InvalidInputError: the columns are not those of the log.
    """
    types = types_of(handle)
    if types is None:
        if needs_types(schema):
            check_read_schema(schema)
        return None
    table = table_read(types, schema) if options.view == "table" else None
    if table is None:
        asked = {f.name.lower() for f in schema.fields}
        check_read_schema(schema, typed_columns([f for f in types.schema if f.name in asked]))
    return table


def of_the_logs_keys(handle: "Handle", options: ReadOptions) -> ReadOptions:
    """Returns the options with keys as the log compares them: each text of ``keys`` stands for one
    of the log's type, as ``clog get`` takes it.

    Raises:
        OptionError: one stands for none.
    """
    types = types_of(handle)
    if types is None or options.keys is None:
        return options
    import pyarrow as pa

    from clog.storage.errors import InvalidInputError
    from clog.storage.objects.python_keys import asked_keys
    from clog.storage.objects.typed_json import key_from_text

    kind = types.schema.field("key").type
    if pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_fixed_size_binary(kind):
        return options
    try:
        meant = [key_from_text(text.decode(), kind) for text in options.keys]
        keys = asked_keys(meant, handle.tip.head.log.schema)
    except (InvalidInputError, UnicodeDecodeError):
        raise OptionError(
            f'option "keys" has a key that is no {kind}, the type that the log has; write each as a'
            ' JSON text, ["7"], of a struct its object, ["{\\"id\\": 7}"]'
        ) from None
    return replace(options, keys=tuple(sorted(keys)))
