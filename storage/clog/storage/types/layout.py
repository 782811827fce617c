"""Table columns: how records lie in the objects of a keyed log (FORMAT.md §22).

Everything above objects knows *records*: ``key``, ``value``, ``headers``, ``timestamp``, and, in
rewritten ones, ``offset`` and ``delete_horizon``. In other logs these are an object's columns, too
(`columns.Layout`). Here the columns of the key and of the value are the object's own, so that other
engines see the table; those of clog have names that no column of a table has, and `DELETED` says
where a value is null, since each column of a value may be.

Only this module knows that: a writer lets it *flatten* records, a reader *nests* what it read, and
both find columns by the paths that it gives.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import pyarrow as pa

from clog.storage.format.log_info import OWN_PREFIX, STRUCT, LogSchema
from clog.storage.numpy_arrays import bits, to_numpy
from clog.storage.types.columns import (
    COLUMN_IDS,
    DELETE_HORIZON,
    DELETED,
    FIELD_ID,
    OFFSET,
    Kind,
    Layout,
    ObjectColumns,
    id_of,
    with_ids,
    without_nulls,
)
from clog.storage.types.names import folded

_DELETED_ID: Final = 9
_OWN: Final = {
    name: Kind.TABLE.own(name) for name in ("headers", "timestamp", OFFSET, DELETE_HORIZON)
}
_RECORDS: Final = {stored: name for name, stored in _OWN.items()}


class TableLayout(Layout):
    """The columns of the objects of a log with table columns."""

    __slots__ = ()

    @property
    def kind(self) -> Kind:
        return Kind.TABLE

    @property
    def _schema(self) -> LogSchema:
        assert self.schema is not None
        return self.schema

    def path(self, leaf: str) -> str:
        top, dot, rest = leaf.partition(".")
        if top in _OWN:
            return f"{_OWN[top]}{dot}{rest}"
        return rest or self._schema.key.stored_name

    @property
    def key_columns(self) -> list[str]:
        return [field.stored_name for field in self._schema.key_columns]

    def is_content(self, column: str) -> bool:
        return not _is_own(column)

    def stored(self, records: pa.Schema, absent: Collection[str] = ()) -> pa.Schema:
        there = (with_ids(field) for field in records if field.name not in absent)
        fields = [inner for field in there for inner in self._stored(field)]
        if DELETED not in absent:
            about = {FIELD_ID: str(_DELETED_ID).encode()}
            fields.append(pa.field(DELETED, pa.bool_(), nullable=False, metadata=about))
        return pa.schema(fields)

    def _stored(self, field: pa.Field) -> list[pa.Field]:
        if field.name == "value":
            return [inner.with_nullable(nullable=True) for inner in field.type]
        if field.name == "key" and pa.types.is_struct(field.type):
            return list(field.type)
        nullable = field.name not in ("timestamp", OFFSET)
        return [field.with_name(self.path(field.name)).with_nullable(nullable)]

    def flattened(self, records: pa.Table, names: Collection[str]) -> pa.Table:
        found: dict[str, pa.ChunkedArray] = {}
        for name, column in zip(records.schema.names, records.columns, strict=True):
            if name == "value" and DELETED in names:
                found[DELETED] = column.is_null()
            if name == "value" or (name == "key" and pa.types.is_struct(column.type)):
                inner = [field.name for field in column.type]
                found |= dict(zip(inner, column.flatten(), strict=True))
            else:
                found[self.path(name)] = column
        return pa.table([found[name] for name in names], list(names))

    def keys(self, rows: pa.Table) -> pa.Array:
        arrays = [column.combine_chunks() for column in rows.select(self.key_columns).columns]
        if self._schema.key.kind != STRUCT:
            return arrays[0]
        return _structs(rows.num_rows, [rows.schema.field(n) for n in self.key_columns], arrays)

    def records(self, rows: pa.Table) -> pa.Table:
        columns = self.of(rows.schema)
        schema = columns.schema
        nested = [columns.nested(batch).select(schema.names) for batch in rows.to_batches()]
        return pa.Table.from_batches(
            [pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in nested], schema
        )

    def of(self, stored: pa.Schema) -> ObjectColumns:
        return TableColumns(self._schema, self, stored)


class TableColumns(ObjectColumns):
    """Where records are in an object's table columns, which are found by their ids."""

    def __init__(self, log: LogSchema, layout: Layout, stored: pa.Schema) -> None:
        self._layout = layout
        self._key_is_struct = log.key.kind == STRUCT
        self._has_deleted = DELETED in stored.names
        self._key: list[pa.Field] = []
        self._value: list[pa.Field] = []
        in_key = {str(field.id).encode() for field in log.key_columns}
        required = {str(field.id).encode() for field in log.value.fields if field.required}
        own = []
        for field in stored:
            if field.name in _RECORDS:
                own.append(field.with_name(_RECORDS[field.name]))
            elif (number := id_of(field)) in in_key:
                self._key.append(field)
            elif number is not None and not _is_own(field.name):
                # Rows that are deleted have a null in each column; values may not.
                self._value.append(field.with_nullable(number not in required))
        if not self._key:
            raise ValueError("it has no column of the key")
        key = pa.struct(self._key) if self._key_is_struct else self._key[0].type
        pair = _column("key", key), _column("value", pa.struct(self._value))
        super().__init__(pa.schema([*pair, *own]))

    def path(self, leaf: str) -> str:
        return str(self._key[0].name) if leaf == "key" else self._layout.path(leaf)

    def leaves(self, wanted: pa.Schema, named: pa.Schema) -> list[str]:
        is_marked = self._has_deleted and "value" in wanted.names
        return [*super().leaves(wanted, named), *([DELETED] if is_marked else [])]

    def nested(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        read = dict(zip(rows.schema.names, rows.columns, strict=True))
        found = {"value": self._values(rows.num_rows, read)}
        if any(field.name in read for field in self._key):
            found = {"key": self._keys(rows.num_rows, read), **found}
        found |= {name: read[stored] for name, stored in _OWN.items() if stored in read}
        return pa.RecordBatch.from_arrays([*found.values()], names=[*found])

    def _keys(self, rows: int, read: Mapping[str, pa.Array]) -> pa.Array:
        fields = [field for field in self._key if field.name in read]
        arrays = [read[field.name] for field in fields]
        if self._key_is_struct:
            return _structs(rows, fields, arrays)
        if arrays[0].null_count:
            raise ValueError("it has rows without a key")
        return arrays[0]

    def _values(self, rows: int, read: Mapping[str, pa.Array]) -> pa.Array:
        fields = [field for field in self._value if field.name in read]
        deleted = read.get(DELETED)
        gone = 0 if deleted is None else deleted.true_count
        arrays = []
        for field in fields:
            array = read[field.name]
            if not field.nullable and array.null_count:
                if array.null_count != gone:
                    raise ValueError(f"{field.name} is null in rows that have a value")
                array = without_nulls(array)
            arrays.append(array)
        return _structs(rows, fields, arrays, deleted if gone else None)


def _structs(
    rows: int, fields: Sequence[pa.Field], arrays: Sequence[pa.Array], null: pa.Array | None = None
) -> pa.Array:
    """Returns structs of these fields, of which perhaps only parts were read, null where ``null``
    is true.
    """
    if not arrays:
        valid = None if null is None else bits(~to_numpy(null))
        return pa.Array.from_buffers(pa.struct([]), rows, [valid], children=[])
    there = [field.with_type(array.type) for field, array in zip(fields, arrays, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=there, mask=null)


def _column(name: str, kind: pa.DataType) -> pa.Field:
    """Returns the key or the value as a column of records."""
    about = {FIELD_ID: str(COLUMN_IDS[name]).encode()}
    return pa.field(name, kind, name == "value", about)


def _is_own(name: str) -> bool:
    """Returns whether a column of an object has a name that is kept for clog's own."""
    return folded(name).startswith(OWN_PREFIX)
