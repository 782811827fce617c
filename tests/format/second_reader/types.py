"""Typed columns (FORMAT.md §12): schemas, their evolution, values, canonical bytes and sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Context
from typing import Any

import pyarrow as pa

from second_reader.documents import Json, integer, need

BYTES = {"key": "binary", "value": "binary"}
INTEGERS = re.compile(r"(u?)int(8|16|32|64)")
DECIMAL = re.compile(r"decimal\(([1-9][0-9]?),(0|[1-9][0-9]?)\)")
TIME = re.compile(r"(time|timestamp)\((ms|us|ns)(,utc)?\)")
FIXED = re.compile(r"fixed\(([1-9][0-9]{0,2}|10[01][0-9]|102[0-4])\)")
SIMPLE: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date": pa.date32(),
    "string": pa.string(),
    "binary": pa.binary(),
} | {
    f"{sign}int{bits}": getattr(pa, f"{sign}int{bits}")()
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}


@dataclass(frozen=True)
class Field:
    """A field of a schema (§12.1)."""

    name: str
    id: int
    type: str
    required: bool
    fields: tuple[Field, ...]
    column: str | None = None

    @property
    def stored(self) -> str:
        """Its name in objects."""
        return self.column or self.name


@dataclass(frozen=True)
class Schema:
    """The types of a log's keys and values."""

    id: int
    last_field_id: int
    key: Field
    value: Field
    is_table: bool = False

    @property
    def key_columns(self) -> tuple[Field, ...]:
        """The columns of the key in objects with table columns (§22)."""
        return self.key.fields if self.key.type == "struct" else (self.key,)


PLAIN = Schema(0, 0, Field("key", 1, "binary", False, ()), Field("value", 2, "binary", False, ()))


def parse_schema(body: Json) -> Schema:
    """A schema, refused if it violates §12.1."""
    if body == BYTES:
        return PLAIN
    key, value = _field(body.get("key"), 1, in_key=True), _field(body.get("value"), 1)
    numbers = integer(body.get("id"), "12.1"), integer(body.get("last_field_id"), "12.1")
    need(body.get("layout", "table") == "table", "22", "an unknown layout")
    schema = Schema(*numbers, key, value, "layout" in body)
    need((key.name, key.id) == ("key", 1), "12.1", "the key is not field 1")
    need(
        (value.name, value.id, value.required) == ("value", 2, False),
        "12.1",
        "the value is not field 2",
    )
    fields = [*_inside(key), *_inside(value)]
    ids = [field.id for field in fields]
    need(schema.last_field_id >= 2, "12.1", "a last field id below those of key and value")
    need(len(fields) + 2 <= 1000, "12.1", "more than 1000 fields")
    need(len(set(ids)) == len(ids), "12.1", "field ids repeat")
    need(all(16 <= each <= schema.last_field_id for each in ids), "12.1", "a field id out of range")
    need(
        all(_key_type(field.type) for field in [key, *_inside(key)]),
        "12.1",
        "a type that no key has",
    )
    if schema.is_table:
        _check_table(schema)
    need(
        value.column is None and (key.column is None or (schema.is_table and key.type != "struct")),
        "22",
        "a column of its own for a field that has none",
    )
    return schema


def _check_table(schema: Schema) -> None:
    need(schema.key.required and schema.value.type == "struct", "22", "no table's key and value")
    names = [each.column or each.name for each in (*schema.key_columns, *schema.value.fields)]
    need(len(set(names)) == len(names), "22", "a column of the table twice")
    wrong = [name for name in names if name == "" or "." in name or name.startswith("_clog")]
    need(not wrong, "22", f"columns of a table cannot be named {wrong}")


def _inside(field: Field) -> list[Field]:
    return [each for child in field.fields for each in (child, *_inside(child))]


def _key_type(name: str) -> bool:
    return bool(
        name in ("string", "binary", "struct")
        or FIXED.fullmatch(name)
        or INTEGERS.fullmatch(name)
        or name.startswith("timestamp(")
        or _stand_in(name)
    )


def _stand_in(kind: str) -> str | None:
    """The `type` of a type that a key has by the feature ``typed-keys`` (§12.3)."""
    match = DECIMAL.fullmatch(kind)
    if match and int(match[1]) <= 38:
        return "fixed(16)"
    return {"date": "int32", "bool": "uint8"}.get(kind)


def has_typed_keys(schema: Schema) -> bool:
    """Whether a key has a type that ``typed-keys`` adds."""
    return any(_stand_in(field.type) for field in [schema.key, *_inside(schema.key)])


def _field(body: Any, depth: int, in_key: bool = False) -> Field:
    need(isinstance(body, dict) and depth <= 8, "12.1", "no field, or one nested too deep")
    name, kind, required = body.get("name"), body.get("type"), body.get("required", False)
    need(isinstance(name, str) and name != "" and "." not in name, "12.1", f"no name: {name!r}")
    need(isinstance(kind, str) and isinstance(required, bool), "12.1", f"no type: {kind!r}")
    if in_key and ("key_type" in body or _stand_in(kind)):
        named, kind = kind, body.get("key_type")
        need(isinstance(kind, str), "12.3", f"no type: {kind!r}")
        need(named == _stand_in(kind), "12.3", f"{named} stands in for {kind}")
    children = body.get("fields", [])
    need(isinstance(children, list), "12.1", "fields are a list")
    fields = tuple(_field(each, depth + 1, in_key) for each in children)
    names = [each.name for each in fields]
    need(len(set(names)) == len(names), "12.1", f"names repeat in {name}")
    column = body.get("column")
    need(
        column is None or (isinstance(column, str) and "." not in column),
        "12.1",
        f"no column: {column!r}",
    )
    stored = [each.stored for each in fields]
    need(len(set(stored)) == len(stored), "12.1", f"columns repeat in {name}")
    field = Field(name, integer(body.get("id"), "12.1", 1), kind, required, fields, column)
    if kind == "struct":
        need(len(fields) > 0, "12.1", "an empty struct")
    elif kind == "list":
        need(names == ["element"], "12.1", "a list has an element")
    elif kind == "map":
        need(
            names == ["key", "value"] and fields[0].required,
            "12.1",
            "a map has a required key and a value",
        )
    else:
        need(not fields, "12.1", f"{kind} has no fields")
        arrow_type(field)
    return field


def arrow_type(field: Field) -> pa.DataType:
    """The Arrow type of a field."""
    kind = field.type
    if kind in SIMPLE:
        return SIMPLE[kind]
    if kind == "struct":
        return pa.struct(
            [pa.field(each.name, arrow_type(each), not each.required) for each in field.fields]
        )
    if kind == "list":
        return pa.list_(
            pa.field("element", arrow_type(field.fields[0]), not field.fields[0].required)
        )
    if kind == "map":
        value = field.fields[1]
        return pa.map_(
            arrow_type(field.fields[0]), pa.field("value", arrow_type(value), not value.required)
        )
    return _parametric(kind)


def _parametric(kind: str) -> pa.DataType:
    if match := DECIMAL.fullmatch(kind):
        digits, scale = int(match[1]), int(match[2])
        need(digits <= 76 and scale <= digits, "12.1", f"no type: {kind}")
        return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
    if match := FIXED.fullmatch(kind):
        return pa.binary(int(match[1]))
    found = TIME.fullmatch(kind)
    need(found is not None and not (found[1] == "time" and found[3]), "12.1", f"no type: {kind}")
    assert found is not None
    if found[1] == "timestamp":
        return pa.timestamp(found[2], "UTC" if found[3] else None)
    return pa.time32("ms") if found[2] == "ms" else pa.time64(found[2])


def check_evolution(old: Schema, new: Schema, *, by_id: bool) -> None:
    """Refuses a schema that is not the next one of another (§12.4); `by_id`: with the feature
    ``columns-by-id``.
    """
    need(new.id == old.id + 1, "12.1", "schema ids are not consecutive")
    need(new.last_field_id >= old.last_field_id, "12.1", "last_field_id falls")
    need((old.is_table, old.key.column) == (new.is_table, new.key.column), "22", "another layout")
    _check_change(old.key, new.key, old.last_field_id, grows=False, by_id=by_id)
    _check_change(old.value, new.value, old.last_field_id, grows=True, by_id=by_id)


def _check_change(old: Field, new: Field, last: int, grows: bool, by_id: bool) -> None:
    need(old.id == new.id, "12.4", f"another field in place of {old.name}")
    need(by_id or old.name == new.name, "12.4", f"{old.name} gets another name")
    need(old.stored == new.stored, "12.4", f"{old.name} gets another column")
    need(widens(old.type, new.type), "12.4", f"{old.type} does not become {new.type}")
    need(old.required or not new.required, "12.4", f"{new.name} becomes required")
    ids = {each.id for each in new.fields}
    left = [each for each in old.fields if each.id in ids]
    need(
        len(left) == len(old.fields) or (by_id and grows),
        "12.4",
        f"fields of {new.name} are lost",
    )
    same, added = new.fields[: len(left)], new.fields[len(left) :]
    need([each.id for each in left] == [each.id for each in same], "12.4", "another order")
    for before, after in zip(left, same, strict=True):
        _check_change(before, after, last, grows, by_id)
    need(not added or (grows and new.type == "struct"), "12.4", f"{new.name} may get no fields")
    for field in added:
        need(not field.required, "12.4", f"the new field {field.name} is required")
        need(
            all(each.id > last for each in (field, *_inside(field))),
            "12.4",
            "ids that were given before",
        )


def widens(old: str, new: str) -> bool:
    """Whether a type is another one or a narrower form of it (§12.4)."""
    if old == new:
        return True
    for pattern in (INTEGERS, re.compile(r"(float)(32|64)")):
        narrow, wide = pattern.fullmatch(old), pattern.fullmatch(new)
        if narrow and wide:
            return bool(narrow[1] == wide[1] and int(narrow[2]) < int(wide[2]))
    narrow, wide = DECIMAL.fullmatch(old), DECIMAL.fullmatch(new)
    return bool(narrow and wide and narrow[2] == wide[2] and int(narrow[1]) < int(wide[1]))


def has_id(stored: pa.Field) -> bool:
    """Whether a column, or a nested one, has an id: old objects have none at all (§5.1)."""
    kind = stored.type
    inner = [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return b"PARQUET:field_id" in (stored.metadata or {}) or any(map(has_id, inner))


def check_id(stored: pa.Field, number: int) -> None:
    """Refuses a column without its field's id (§5.1, §12.2)."""
    own = int((stored.metadata or {}).get(b"PARQUET:field_id", -1))
    need(own == number, "12.2", f"column {stored.name} has the field id {own}, not {number}")


def id_of(stored: pa.Field) -> int:
    """The id of a stored field; −1 if it has none."""
    return int((stored.metadata or {}).get(b"PARQUET:field_id", -1))


def check_column(stored: pa.Field, field: Field, *, ids: bool, last: int) -> None:
    """Refuses a column whose type neither this field nor an earlier form of it can have (§12.2);
    `last` is the schema's last field id.
    """
    if ids:
        check_id(stored, field.id)
    kind = stored.type
    parts: list[pa.Field] | None = []
    children = list(field.fields)
    if field.type == "map":
        parts = [kind.key_field, kind.item_field] if pa.types.is_map(kind) else None
    elif field.type == "list":
        parts = [kind.value_field] if pa.types.is_list(kind) else None
    elif field.type == "struct":
        need(pa.types.is_struct(kind), "12.2", f"column {stored.name} is no struct")
        own = {each.id: each for each in field.fields}
        need(all(id_of(each) <= last for each in kind), "12.2", "a field of no schema so far")
        parts = [each for each in kind if id_of(each) in own]
        children = [own[id_of(each)] for each in parts]
        columns = [each.stored for each in children]
        need([each.name for each in parts] == columns, "12.4", "fields under other names")
        missing = set(own) - {id_of(each) for each in kind}
        need(not any(own[each].required for each in missing), "12.2", "a required field is missing")
    elif kind not in _earlier_types(field):
        parts = None
    need(parts is not None, "12.2", f"column {stored.name} is {kind}, not {field.type}")
    for part, child in zip(parts or [], children, strict=False):
        check_column(part, child, ids=ids, last=last)


def _earlier_types(field: Field) -> list[pa.DataType]:
    kind = field.type
    if match := DECIMAL.fullmatch(kind):
        scale = int(match[2])
        names = [f"decimal({digits},{scale})" for digits in range(max(scale, 1), int(match[1]) + 1)]
    else:
        names = [name for name in [*SIMPLE, kind] if widens(name, kind)]
    return [SIMPLE[name] if name in SIMPLE else _parametric(name) for name in names]


def values(array: pa.Array, field: Field, *, raw: bool = False) -> list[Any]:
    """Python values of a column, read by a schema that may be newer than the column (§12.4).

    Structs are dicts, maps lists of pairs; nanoseconds, and with `raw` all dates and times, are
    integers.
    """
    if field.type == "struct":
        parts = {id_of(each): array.field(i) for i, each in enumerate(array.type)}
        lists = {
            each.name: values(parts[each.id], each, raw=raw)
            if each.id in parts
            else [None] * len(array)
            for each in field.fields
        }
        valid = array.is_valid().to_pylist()
        return [
            {k: v[i] for k, v in lists.items()} if valid[i] else None for i in range(len(array))
        ]
    if field.type in ("list", "map"):
        return _nested(array, field, raw=raw)
    if (field.type.startswith("time") and (raw or "(ns" in field.type)) or (
        field.type == "date" and raw
    ):
        narrow = pa.types.is_time32(array.type) or pa.types.is_date(array.type)
        array = array.cast(pa.int32() if narrow else pa.int64())
    plain = array.to_pylist()
    if field.type.startswith("float"):
        return [None if each is None else float(each) for each in plain]
    return list(plain)


def _nested(array: pa.Array, field: Field, *, raw: bool) -> list[Any]:
    if field.type == "list":
        inner = values(array.values, field.fields[0], raw=raw)
    else:
        keys = values(array.keys, field.fields[0], raw=raw)
        inner = list(zip(keys, values(array.items, field.fields[1], raw=raw), strict=True))
    offsets = array.offsets.to_pylist()
    valid = array.is_valid().to_pylist()
    return [inner[offsets[i] : offsets[i + 1]] if valid[i] else None for i in range(len(array))]


def canonical(value: Any, field: Field, *, inside: bool = False) -> bytes:
    """The canonical bytes of a key that is not null (§12.3)."""
    if field.type == "struct":
        parts = [(value[each.name], each) for each in field.fields]
        return b"".join(
            b"\0" if v is None else b"\1" + canonical(v, each, inside=True) for v, each in parts
        )
    if field.type == "bool":
        return b"\1" if value else b"\0"
    if match := DECIMAL.fullmatch(field.type):
        unscaled = int(value.scaleb(int(match[2]), Context(prec=76)))
        return (unscaled + (1 << 127)).to_bytes(16, "big")
    if INTEGERS.fullmatch(field.type) or field.type.startswith(("timestamp", "date")):
        signed = not field.type.startswith("u")
        return int(value + (1 << 63 if signed else 0)).to_bytes(8, "big")
    raw = value.encode() if isinstance(value, str) else bytes(value)
    if inside and not field.type.startswith("fixed"):
        raw = raw.replace(b"\0", b"\0\xff") + b"\0\0"
    return raw


def value_size(value: Any, kind: pa.DataType) -> int:
    """How many bytes a value counts in the size of a record, as it is stored (§12.2)."""
    if value is None:
        return 0
    if pa.types.is_struct(kind):
        return sum(value_size(value[each.name], each.type) for each in kind)
    if pa.types.is_map(kind):
        return sum(value_size(k, kind.key_type) + value_size(v, kind.item_type) for k, v in value)
    if pa.types.is_list(kind):
        return sum(value_size(each, kind.value_type) for each in value)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return len(value.encode() if isinstance(value, str) else value)
    if pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width)
    return 16 if pa.types.is_decimal(kind) else 8
