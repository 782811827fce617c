"""What a log is: its features and its schema (FORMAT.md §0, §12.1).

*Features* are additions to the format that a log announces before it uses them. Each name is in one
of two lists of the head. Readers and writers must know those in ``read``, and writers also those in
``write``. Both lists only grow. Each log has those that are no choice of its owner (`OF_EACH_LOG`),
so only the commit path asks which of these a log of an older release lacks.

The *schema* of a typed log has one tree of fields for the key and one for the value. Their types
have names of the format; `column_kinds` maps them to Arrow's and all other types. A field never
changes its id, and no id is given twice, so data written under an earlier schema can be read under
every later one, whatever its fields are called there (§12.4).
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

from clog.storage.column_kinds import (
    DECIMAL_DIGITS_MAX,
    KEY_DIGITS_MAX,
    kind_named,
    numbers_in,
    widens,
)
from clog.storage.env import UPGRADE, dataclass
from clog.storage.errors import CorruptionError, UnsupportedFormatError
from clog.storage.format.documents import (
    INT,
    KEPT,
    TEXT,
    Codec,
    Hex,
    Natural,
    Shown,
    checked,
    listed,
    record,
    whole,
)

DEAD_ROWS = "dead-rows"
TRANSACTIONS = "transactions"
UNDECIDED_RECORDS = "undecided-records"
TYPED_COLUMNS = "typed-columns"
SUPERSEDED_ROWS = "superseded-rows"
PUBLICATIONS = "publications"
ORDER_VALUES = "order-values"
GIVEN_OFFSETS = "given-offsets"
ERASURES = "erasures"
READER_HOLDS = "reader-holds"
TYPED_KEYS = "typed-keys"
FOREIGN_POSITIONS = "foreign-positions"
NAMED_CUTS = "named-cuts"
PROPOSALS = "proposals"
WHOLE_TRANSACTIONS = "whole-transactions"
TABLE_COLUMNS = "table-columns"
OF_SCHEMAS: Final = (TYPED_COLUMNS, TYPED_KEYS, TABLE_COLUMNS)
"""Features that a log has because of its schema, and never without it."""
COLUMNS_BY_ID = "columns-by-id"
RETIRED: Final = frozenset({"row-texts"})
"""Names that logs of older releases have, and that nothing depends on any more."""


_PARTITIONS_MAX = 1 << 16
"""The most entries of a head's columns. Part of the format; `Log.create` allows those tested."""
_SEED = re.compile("[0-9a-f]{16}")
BYTES: Final = {"key": "binary", "value": "binary"}
"""The schema of a log that was created without one."""
KEY_ID: Final = 1
VALUE_ID: Final = 2
FIRST_ID: Final = 16
"""Ids of fields inside key and value begin here; lower ones are for columns of the format."""
OWN_PREFIX: Final = "_clog"
"""No column of a table begins so: clog's own columns do, in objects with table columns."""
FIELDS_MAX: Final = 1000
"""The most fields of a schema, including those in lists and maps. Part of the format."""
DEPTH_MAX: Final = 8
"""The most levels of nested fields. Part of the format."""

_TABLE: Final = "table"
"""The layout of objects with table columns, in the JSON of a schema."""
STRUCT: Final = "struct"
LIST: Final = "list"
MAP: Final = "map"
NESTED: Final = {STRUCT: None, LIST: ("element",), MAP: ("key", "value")}
"""Types with inner fields; except in structs, the format gives the names of these."""

FIXED_BYTES_MAX: Final = 1024
"""The longest ``fixed(N)``, which takes N bytes of memory for each row read, null or not: 32 MiB
per row group. Part of the format.
"""


@dataclass(frozen=True, slots=True)
class FeatureNames:
    """The features that readers and writers must know, and those that only writers must know."""

    read: Annotated[tuple[str, ...], listed(TEXT), KEPT] = ()
    write: Annotated[tuple[str, ...], listed(TEXT), KEPT] = ()

    def __contains__(self, name: str) -> bool:
        return name in self.read or name in self.write

    def with_added(self, more: "FeatureNames") -> "FeatureNames":
        """Returns these and ``more``; names that are already there stay in their list."""
        return FeatureNames(
            (*self.read, *(name for name in more.read if name not in self)),
            (*self.write, *(name for name in more.write if name not in self)),
        )

    def without(self, others: "FeatureNames") -> "FeatureNames":
        """Returns those that are in neither list of ``others``."""
        return FeatureNames(
            tuple(name for name in self.read if name not in others),
            tuple(name for name in self.write if name not in others),
        )


NO_FEATURES = FeatureNames()
FEATURE_NAMES: Final = checked(
    record(FeatureNames),
    lambda names: len({*names.read, *names.write}) == len(names.read + names.write),
    "a feature is named twice",
)


@dataclass(frozen=True, slots=True)
class Feature:
    """One addition to the format.

    Attributes:
        name: its name in the head.
        section: its section of FORMAT.md, without the sign.
        of_readers: whether readers must know it, too; otherwise only writers.
        summary: its purpose, in a line.
        is_choice: whether a log has it only if its owner chose what it is for; otherwise each has.
        at_creation: whether a log has it from its first version on or never.
    """

    name: str
    section: str
    of_readers: bool
    summary: str
    is_choice: bool = False
    at_creation: bool = False


_READERS, _WRITERS = True, False
FEATURES = {
    f.name: f
    for f in (
        Feature(
            *(DEAD_ROWS, "5.4", _READERS),
            "a pass may mark dead rows in a bitmap, and rewrite them later",
        ),
        Feature(*(TRANSACTIONS, "11.1", _WRITERS), "ids under which only one holder can commit"),
        Feature(
            *(UNDECIDED_RECORDS, "11.2", _READERS),
            "records that stay undecided for a time, and markers that decide them",
        ),
        Feature(
            *(TYPED_COLUMNS, "12", _READERS),
            "keys and values as typed (Arrow) columns",
            is_choice=True,
            at_creation=True,
        ),
        Feature(
            *(SUPERSEDED_ROWS, "13", _WRITERS),
            "bitmaps of superseded rows, which let tables be read without comparing keys",
        ),
        Feature(
            *(PUBLICATIONS, "14", _WRITERS),
            "versions are kept while published views of the table need them",
        ),
        Feature(
            *(ORDER_VALUES, "15", _READERS),
            "the record with the highest timestamp or header wins; a log gets it with the first"
            " compaction.strategy other than offset",
            is_choice=True,
        ),
        Feature(
            *(GIVEN_OFFSETS, "16", _READERS),
            "appends that give their offsets, as a mirror of a topic needs",
            is_choice=True,
            at_creation=True,
        ),
        Feature(
            *(ERASURES, "17", _WRITERS),
            "removal of all bytes of some keys, with a receipt; a log gets it with the first"
            " request",
            is_choice=True,
        ),
        Feature(
            *(READER_HOLDS, "18", _WRITERS),
            "named readers that can keep tombstones and versions for a time",
        ),
        Feature(
            *(TYPED_KEYS, "12.3", _READERS),
            "keys that are dates, decimals or booleans, or have such fields",
            is_choice=True,
            at_creation=True,
        ),
        Feature(
            *(TABLE_COLUMNS, "22", _READERS),
            "objects have the columns of a table, those of its key and of its value",
            is_choice=True,
            at_creation=True,
        ),
        Feature(*(FOREIGN_POSITIONS, "11.4", _WRITERS), "positions in sources other than logs"),
        Feature(
            *(NAMED_CUTS, "20", _WRITERS),
            "named cuts: versions of several logs that belong together",
        ),
        Feature(
            *(PROPOSALS, "21", _WRITERS),
            "a committing writer includes what others propose, for any number of writers",
        ),
        Feature(
            *(WHOLE_TRANSACTIONS, "11.5", _WRITERS),
            "what undecided transactions hold back, so that readers see all of another one or"
            " nothing",
        ),
        Feature(
            *(COLUMNS_BY_ID, "12.4", _READERS),
            "columns that were renamed or dropped: readers find those of an object by field ids; a"
            " log gets it with the first such evolution",
            is_choice=True,
        ),
    )
}


def lists_of(features: Sequence[Feature]) -> FeatureNames:
    """Returns the names of the features in the lists they belong to."""
    return FeatureNames(
        tuple(f.name for f in features if f.of_readers),
        tuple(f.name for f in features if not f.of_readers),
    )


OF_EACH_LOG = lists_of([f for f in FEATURES.values() if not f.is_choice])
"""The features that each log has: a new one from the beginning, one of an older release from the
first commit of this one on.
"""


@dataclass(frozen=True, slots=True)
class SchemaField:
    """One field; ``kind`` is its type, and if ``required`` it is null only where its parent is;
    ``column`` is its name in objects, if it has another one than there.
    """

    name: str
    id: int
    kind: str
    required: bool = False
    fields: tuple["SchemaField", ...] = ()
    column: str | None = None

    @property
    def stored_name(self) -> str:
        """Its name in objects, which never changes."""
        return self.name if self.column is None else self.column

    def walk(self, above: str = "") -> Iterator[tuple[str, "SchemaField"]]:
        """Yields (path, field) of this field and all inner ones, in the order of the schema."""
        path = f"{above}.{self.name}" if above else self.name
        yield path, self
        for field in self.fields:
            yield from field.walk(path)


@dataclass(frozen=True, slots=True)
class LogSchema:
    """A log's ``id``-th schema: the types of key and value; ``last_id`` is the highest field id;
    ``is_table``: whether objects have table columns (FORMAT.md §22).
    """

    id: int
    last_id: int
    key: SchemaField
    value: SchemaField
    is_table: bool = False

    @property
    def key_columns(self) -> tuple[SchemaField, ...]:
        """The fields that are the key's columns in objects with table columns."""
        return self.key.fields if self.key.kind == STRUCT else (self.key,)

    @property
    def columns(self) -> tuple[SchemaField, ...]:
        """The fields that are columns of objects with table columns."""
        return (*self.key_columns, *self.value.fields)

    def walk(self) -> Iterator[tuple[str, SchemaField]]:
        """Yields (path, field) of all fields."""
        yield from self.key.walk()
        yield from self.value.walk()


def schema_to_json(schema: LogSchema | None) -> dict[str, Any]:
    """Returns the JSON of a schema in ``create``, in edits and heads; None is a log of bytes."""
    if schema is None:
        return dict(BYTES)
    made = {
        "id": schema.id,
        "last_field_id": schema.last_id,
        "key": _field_to_json(schema.key, in_key=True),
        "value": _field_to_json(schema.value),
    }
    return {**made, "layout": _TABLE} if schema.is_table else made


def schema_from_json(value: dict[str, Any]) -> LogSchema | None:
    """Reads the JSON of `schema_to_json`; raises as codecs do."""
    if value == BYTES:
        return None
    schema = LogSchema(
        whole(value["id"]),
        whole(value["last_field_id"]),
        _field_from_json(value["key"], 1, in_key=True),
        _field_from_json(value["value"], 1),
        _is_table(value),
    )
    if (problem := schema_problem(schema)) is not None:
        raise ValueError(problem)
    return schema


def _is_table(value: dict[str, Any]) -> bool:
    if value.get("layout", _TABLE) != _TABLE:
        raise ValueError(f"an unknown layout {value['layout']!r:.80}")
    return "layout" in value


SCHEMA: Final = Codec(schema_to_json, schema_from_json)
NEXT_SCHEMA: Final = checked(
    SCHEMA, lambda schema: schema is not None, "the schema of a log of bytes"
)


def schema_problem(schema: LogSchema) -> str | None:
    """Returns what the format does not allow in a schema; None if it is valid."""
    fields = list(schema.walk())
    ids = [field.id for _, field in fields]
    if len(fields) > FIELDS_MAX:
        return f"a schema of {len(fields)} fields; allowed: {FIELDS_MAX}"
    if (schema.key.name, schema.key.id) != ("key", KEY_ID):
        return "the key's field is not 'key' with id 1"
    if (schema.value.name, schema.value.id) != ("value", VALUE_ID):
        return "the value's field is not 'value' with id 2"
    if schema.value.required:
        return "the value is NOT NULL, but deleting a key takes a null value"
    inside = sorted(set(ids) - {KEY_ID, VALUE_ID})
    if len(set(ids)) < len(ids) or (inside and not FIRST_ID <= inside[0] <= inside[-1]):
        return f"field ids that are not unique, or below {FIRST_ID}"
    if schema.id < 0 or schema.last_id < max(ids):
        return f"schema id {schema.id}, last field id {schema.last_id}"
    for path, field in schema.key.walk():
        found = kind_named(field.kind)
        if field.kind != STRUCT and (found is None or found.key is None):
            return (
                f"{path} has type {field.kind}; a key is a string, binary, an integer, a timestamp,"
                f" a date, a boolean, a decimal of up to {KEY_DIGITS_MAX} digits, or a struct of"
                " them"
            )
    problem = next(filter(None, (_field_problem(path, field) for path, field in fields)), None)
    return problem or _layout_problem(schema)


def _layout_problem(schema: LogSchema) -> str | None:
    """Returns why objects cannot have the columns that a schema gives them."""
    key, value = schema.key, schema.value
    if value.column is not None:
        return "a value with a column of its own, which only a key can have"
    if not schema.is_table:
        return None if key.column is None else "a key with a column, without table columns"
    if not key.required:
        return "a key that may be null, in a log with table columns"
    if value.kind != STRUCT:
        return f"a value of type {value.kind}, in a log with table columns"
    if key.kind == STRUCT and key.column is not None:
        return "a key of several columns with a name for one"
    names = [field.stored_name for field in schema.columns]
    if len(set(names)) < len(names):
        return f"a column of the table twice: {names}"
    if wrong := [name for name in names if not name or "." in name or name.startswith(OWN_PREFIX)]:
        return f"columns of a table named {wrong}; names have no dot, and do not begin {OWN_PREFIX}"
    return None


def as_table(schema: LogSchema, key_columns: Sequence[str]) -> LogSchema:
    """Returns the schema of a new log with these names of key columns, with table columns if its
    objects can have them.
    """
    if not key_columns:
        return schema
    is_named = schema.key.kind != STRUCT and key_columns[0] != schema.key.name
    column = key_columns[0] if is_named else None
    made = replace(schema, key=replace(schema.key, column=column), is_table=True)
    return schema if _layout_problem(made) else made


def has_typed_keys(schema: LogSchema | None) -> bool:
    """Returns whether the key or a field of it has a type that ``typed-keys`` adds."""
    return schema is not None and any(_stands_in(field.kind) for _, field in schema.key.walk())


def of_schema(schema: LogSchema | None) -> FeatureNames:
    """Returns the features, of `OF_SCHEMAS`, that a log with this schema has."""
    needed = {
        TYPED_COLUMNS: schema is not None,
        TYPED_KEYS: has_typed_keys(schema),
        TABLE_COLUMNS: schema is not None and schema.is_table,
    }
    return lists_of([FEATURES[name] for name in OF_SCHEMAS if needed[name]])


def check_evolution(old: LogSchema | None, new: LogSchema, *, by_id: bool) -> None:
    """Raises CorruptionError unless the new schema may follow the old one (§12.4); ``by_id``:
    readers find columns by their ids, so that fields may be renamed and dropped.
    """
    if old is None:
        raise CorruptionError("an edit gives a schema to a log of bytes")
    if new.id != old.id + 1 or new.last_id < old.last_id:
        raise CorruptionError(
            f"an edit gives schema {new.id} with last field id {new.last_id} to a log with"
            f" schema {old.id} and last field id {old.last_id}"
        )
    if new.is_table != old.is_table:
        raise CorruptionError("an edit changes whether objects have table columns")
    _check_field(old.key, new.key, "key", last_id=None, by_id=by_id)
    _check_field(old.value, new.value, "value", last_id=old.last_id, by_id=by_id)


def key_columns_problem(schema: LogSchema | None, names: Sequence[str]) -> str | None:
    """Returns why a log with this schema cannot be shown as a table of plain columns with these
    names for its key columns; None if it can, or if there are no names.
    """
    if not names:
        return None
    said = f"table.key.columns={','.join(names)} is refused:"
    if schema is None:
        return f"{said} it is only for typed logs, and this log has no schema"
    if schema.value.kind != STRUCT:
        return (
            f"{said} the value is {schema.value.kind}, and only the fields of a struct become"
            " columns"
        )
    inner = [field.name for field in schema.key.fields]
    if inner and inner != list(names):
        return f"{said} the key is a struct with the fields {','.join(inner)}; name these"
    if not inner and len(names) > 1:
        return f"{said} the key is {schema.key.kind}, which is a single column"
    return None


def publish_columns_problem(schema: LogSchema | None, names: Collection[str]) -> str | None:
    """Returns why published tables of a log cannot be given these columns beside the table's."""
    if set(names) <= {"none"} or (schema is not None and schema.is_table):
        return None
    return (
        f"table.publish.columns={','.join(sorted(names))} is refused: it is only for logs whose"
        " objects have table columns, and views of this one show headers and timestamps anyway"
    )


def _check_field(
    old: SchemaField, new: SchemaField, path: str, *, last_id: int | None, by_id: bool
) -> None:
    """Checks a field and its inner fields; ``last_id`` is None in the key, whose fields stay."""
    if old.id != new.id or (old.kind != new.kind and not widens(old.kind, new.kind)):
        raise CorruptionError(f"an edit makes {new.kind} field {new.id} of {old.kind} {path}")
    if old.name != new.name and not by_id:
        raise CorruptionError(f"an edit calls {path} {new.name!r}, without {COLUMNS_BY_ID!r}")
    if old.stored_name != new.stored_name:
        raise CorruptionError(f"an edit gives {path} another column, {new.stored_name!r}")
    if new.required and not old.required:
        raise CorruptionError(f"an edit makes {path} NOT NULL")
    there = {field.id: field for field in new.fields}
    kept = [field for field in old.fields if field.id in there]
    added = new.fields[len(kept) :]
    may_lose, may_gain = by_id and last_id is not None, last_id is not None and new.kind == STRUCT
    if (
        [field.id for field in new.fields[: len(kept)]] != [field.id for field in kept]
        or (len(kept) < len(old.fields) and not may_lose)
        or (added and not may_gain)
    ):
        raise CorruptionError(f"an edit changes which fields {path} has")
    for before in kept:
        inner = f"{path}.{before.name}"
        _check_field(before, there[before.id], inner, last_id=last_id, by_id=by_id)
    for field in added:
        if field.required or any(inner.id <= (last_id or 0) for _, inner in field.walk()):
            raise CorruptionError(f"an edit adds {field.name!r} to {path}, NOT NULL or not new")


def _field_problem(path: str, field: SchemaField) -> str | None:
    if field.kind not in NESTED and kind_named(field.kind) is None:
        return f"{path} has an unknown type {field.kind!r}"
    if path.count(".") >= DEPTH_MAX:
        return f"{path} is nested more than {DEPTH_MAX} deep"
    numbers = numbers_in(field.kind)
    if field.kind.startswith("decimal") and not numbers[1] <= numbers[0] <= DECIMAL_DIGITS_MAX:
        return f"{path} has type {field.kind}; a decimal has up to {DECIMAL_DIGITS_MAX} digits"
    if field.kind.startswith("fixed") and numbers[0] > FIXED_BYTES_MAX:
        return (
            f"{path} has type {field.kind}, which takes that many bytes per row, even for null;"
            f" at most {FIXED_BYTES_MAX} are allowed; use binary"
        )
    names = [inner.name for inner in field.fields]
    given = NESTED.get(field.kind, ())
    if given is not None and tuple(names) != given:
        return f"{path} of type {field.kind} has the fields {names}"
    if field.kind == STRUCT and not names:
        return f"{path} is a struct without fields, which Parquet cannot hold"
    if len(set(names)) < len(names):
        return f"{path} has a field twice: {names}"
    stored = [inner.stored_name for inner in field.fields]
    if len(set(stored)) < len(stored) or any(not name or "." in name for name in stored):
        return f"{path} has the columns {stored}"
    if wrong := [name for name in names if not name or "." in name]:
        return f"{path} has fields named {wrong}; names are not empty and have no dot"
    if field.kind == MAP and not field.fields[0].required:
        return f"{path} is a map with keys that may be null"
    return None


def _stands_in(kind: str) -> str | None:
    """Returns the type that a key of this ``typed-keys`` type has in JSON; None for other types."""
    found = kind_named(kind)
    return None if found is None else found.stands_in


def _field_to_json(field: SchemaField, *, in_key: bool = False) -> dict[str, Any]:
    stands_in = _stands_in(field.kind) if in_key else None
    out: dict[str, Any] = {"name": field.name, "id": field.id, "type": stands_in or field.kind}
    if stands_in is not None:
        out["key_type"] = field.kind
    if field.required:
        out["required"] = True
    if field.column is not None:
        out["column"] = field.column
    if field.fields:
        out["fields"] = [_field_to_json(inner, in_key=in_key) for inner in field.fields]
    return out


def _field_from_json(value: dict[str, Any], depth: int, *, in_key: bool = False) -> SchemaField:
    if depth > DEPTH_MAX:
        raise ValueError(f"a schema that is nested more than {DEPTH_MAX} deep")
    name, kind, required = value["name"], value["type"], value.get("required", False)
    column = value.get("column")
    texts = isinstance(name, str) and isinstance(kind, str) and isinstance(column, str | None)
    if not (texts and isinstance(required, bool)):
        raise TypeError("a field's name, type and column are texts, required is a truth value")
    if in_key and ("key_type" in value or _stands_in(kind)):
        given, kind = kind, value["key_type"]
        if given != _stands_in(str(kind)):
            raise ValueError(f"a field of the key with the types {given!r} and {kind!r:.80}")
    fields = tuple(
        _field_from_json(inner, depth + 1, in_key=in_key) for inner in value.get("fields", ())
    )
    return SchemaField(name, whole(value["id"]), kind, required, fields, column)


@dataclass(frozen=True, slots=True)
class LogInfo:
    """What a log is; only its features and its schema change. ``seed`` (16 hex digits) is for the
    hashes that the log stores (S19); ``schema`` is None for a log of bytes.
    """

    log_id: Hex
    created_ms: Natural
    partitions: Annotated[
        int, checked(INT, lambda n: 1 <= n <= _PARTITIONS_MAX, f"not among 1 to {_PARTITIONS_MAX}")
    ]
    partitioner: Shown
    seed: Annotated[str, checked(TEXT, _SEED.fullmatch, "not 16 hex digits")]
    features: Annotated[FeatureNames, FEATURE_NAMES, KEPT] = NO_FEATURES
    schema: Annotated[LogSchema | None, SCHEMA, KEPT] = None

    @property
    def key_seed(self) -> int:
        """The seed as a number."""
        return int(self.seed, 16)

    def check_readable(self, *, where: str) -> None:
        """Raises UnsupportedFormatError if readers must know a feature that this clog does not."""
        if names := unknown(self.features.read):
            raise UnsupportedFormatError(
                f"{where} has the features {names}, which this clog does not know; {UPGRADE}"
            )

    def check_writable(self, *, where: str) -> None:
        """Raises UnsupportedFormatError if writers must know a feature that this clog does not;
        deleting counts as writing.
        """
        if names := unknown((*self.features.read, *self.features.write)):
            raise UnsupportedFormatError(
                f"{where} has the features {names}, which this clog can read but not write;"
                f" {UPGRADE}"
            )

    def check_schema(self) -> None:
        """Raises ValueError unless the log has exactly the features that its schema needs."""
        for name in OF_SCHEMAS:
            if (name in of_schema(self.schema)) != (name in self.features.read):
                raise ValueError(f"a schema without the feature {name!r}, or the reverse")


LOG_INFO: Final = record(LogInfo)


def unknown(names: tuple[str, ...]) -> list[str]:
    """Returns the names of features that this clog does not know."""
    return sorted(n for n in names if n not in FEATURES and n not in RETIRED)
