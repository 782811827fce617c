"""Schemas as documents, and which one may follow which (FORMAT.md §12.1, §12.4)."""

from dataclasses import replace

import pyarrow as pa
import pytest

from clog.storage.errors import CorruptionError, InvalidInputError
from clog.storage.format.log_info import (
    BYTES,
    check_evolution,
    schema_from_json,
    schema_problem,
    schema_to_json,
)
from clog.storage.types.columns import arrow_schema, schema_of
from clog.storage.types.evolve import Changes, evolved

SCHEMA = schema_of(
    {
        "key": pa.struct([("a", pa.int32()), ("b", pa.string())]),
        "value": pa.struct(
            [
                pa.field("n", pa.int32(), nullable=False),
                ("f", pa.float32()),
                ("d", pa.decimal128(6, 2)),
                ("l", pa.list_(pa.struct([("q", pa.int8())]))),
                ("m", pa.map_(pa.string(), pa.int64())),
            ]
        ),
    }
)
WIDER = pa.struct(
    [("n", pa.int64()), ("f", pa.float64()), ("d", pa.decimal128(9, 2))]
)  # of what `evolve` below does


def evolve(schema=SCHEMA, **changes):
    asked = {"add": {}, "widen": {}, "relax": (), "rename": {}, "drop": ()} | changes
    given, by_id = Changes.given(**asked), schema is not SCHEMA or "drop" in changes
    by_id = by_id or "rename" in changes
    made, _ = evolved(schema, (), given, by_id=by_id, url="memory://x")
    return made


def test_a_schema_is_its_document():
    """FORMAT.md §12.1: nothing is lost, and the schema of bytes is not one of them."""
    assert schema_from_json(schema_to_json(SCHEMA)) == SCHEMA
    assert schema_from_json(dict(BYTES)) is None
    assert schema_to_json(SCHEMA)["key"]["fields"][1] == {"name": "b", "id": 17, "type": "string"}
    assert schema_to_json(SCHEMA)["value"]["fields"][0]["required"] is True


@pytest.mark.parametrize(
    "break_it",
    [
        lambda s: s["key"].update(type="float64"),
        lambda s: s["key"].update(id=2),
        lambda s: s["key"].update(name="k"),
        lambda s: s["value"].update(required=True),
        lambda s: s["value"].update(fields=[]),
        lambda s: s["value"].update(type="int32"),
        lambda s: s["value"]["fields"][0].update(id=3),
        lambda s: s["value"]["fields"][0].update(id=17),
        lambda s: s["value"]["fields"][0].update(id=99),
        lambda s: s["value"]["fields"][0].update(type="int33"),
        lambda s: s["value"]["fields"][0].update(type="decimal(3,4)"),
        lambda s: s["value"]["fields"][0].update(type="fixed(1025)"),
        lambda s: s["value"]["fields"][0].update(type="fixed(0)"),
        lambda s: s["value"]["fields"][0].update(type=7),
        lambda s: s["value"]["fields"][0].update(name="f"),
        lambda s: s["value"]["fields"][0].update(name="a.b"),
        lambda s: s["value"]["fields"][0].update(name=""),
        lambda s: s["value"]["fields"][0].update(required="yes"),
        lambda s: s["value"]["fields"][3]["fields"][0].update(name="item"),
        lambda s: s["value"]["fields"][4]["fields"][0].update(required=False),
        lambda s: s.update(id=-1),
        lambda s: s.update(last_field_id=20),
        lambda s: s.pop("key"),
    ],
)
def test_what_the_format_does_not_allow_is_refused(break_it):
    """FORMAT.md §12.1: a reader refuses each of them."""
    document = schema_to_json(SCHEMA)
    break_it(document)
    with pytest.raises((ValueError, KeyError, TypeError)):
        schema_from_json(document)


def test_a_schema_is_bounded():
    """FORMAT.md §12.1: 1000 fields, 8 deep: a reader must not be made to recurse endlessly."""
    wide = {"key": pa.string(), "value": pa.struct([(f"f{i}", pa.int8()) for i in range(999)])}
    with pytest.raises(InvalidInputError, match="1001 fields; allowed: 1000"):
        schema_of(wide)
    deep = pa.int8()
    for _ in range(7):
        deep = pa.struct([("x", deep)])
    assert schema_problem(schema_of({"key": pa.string(), "value": deep})) is None
    with pytest.raises(InvalidInputError, match="nested more than 8 deep"):
        schema_of({"key": pa.string(), "value": pa.struct([("x", deep)])})
    field = {"name": "value", "id": 2, "type": "struct", "fields": []}
    document = schema_to_json(SCHEMA) | {"value": field}
    for i in range(2000):
        field["fields"] = [{"name": "x", "id": 100 + i, "type": "struct", "fields": []}]
        field = field["fields"][0]
    with pytest.raises(ValueError, match="nested more than 8 deep"):
        schema_from_json(document)


def test_bytes_of_fixed_width_are_few():
    """They take their width in memory for each row that is read, null or not."""
    for width in (1, 1024):
        schema_of({"key": pa.string(), "value": pa.binary(width)})
    with pytest.raises(
        InvalidInputError, match=r"fixed\(1025\), which .* even for null; at most 1024"
    ):
        schema_of({"key": pa.string(), "value": pa.list_(pa.binary(1025))})


def test_what_may_follow():
    """S61: fields added, types widened, NOT NULL relaxed; ids are never used twice."""
    made = evolve(
        add={"value.note": pa.string(), "value.l.element.z": pa.list_(pa.int8())},
        widen={
            "key.a": pa.int64(),
            "value.n": pa.int64(),
            "value.f": pa.float64(),
            "value.d": pa.decimal128(9, 2),
        },
        relax=["value.n"],
    )
    check_evolution(SCHEMA, made, by_id=False)
    assert (made.id, made.last_id) == (1, SCHEMA.last_id + 3)
    value = arrow_schema(made).field("value").type
    assert [(f.name, f.type) for f in value][:3] == [(f.name, f.type) for f in WIDER]
    assert value.field("n").nullable
    assert value.field("note").type == pa.string()
    assert [f.name for f in value.field("l").type.value_type] == ["q", "z"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "nothing to evolve"),
        ({"add": {"value.n": pa.int8()}}, "value.n cannot be added: it already exists"),
        ({"add": {"key.c": pa.int8()}}, "an additional field would be a different key"),
        ({"add": {"value.l.x": pa.int8()}}, "l is list, not a struct"),
        ({"add": {"value.x.y": pa.int8()}}, "value.x is not in the schema; value has the fields n"),
        ({"add": {"note": pa.int8()}}, 'write "value.note"'),
        ({"add": {"value.x": pa.duration("s")}}, "Parquet cannot store unchanged; use int64"),
        ({"widen": {"value.n": pa.string()}}, "cannot become string; it can become int64"),
        ({"widen": {"value.n": pa.int16()}}, "value.n is int32 and cannot become int16"),
        ({"widen": {"value.n": pa.int32()}}, "value.n is int32 and cannot become int32"),
        ({"widen": {"value.n": pa.uint64()}}, "cannot become uint64"),
        ({"widen": {"value.n": pa.float64()}}, "cannot become float64"),
        ({"widen": {"value.d": pa.decimal128(9, 3)}}, "more digits and the same scale"),
        ({"widen": {"key.b": pa.binary()}}, "it cannot be widened"),
        ({"relax": ["value.x"]}, "value.x is not in the schema"),
        ({"rename": {"value.x": "y"}}, "value.x is not in the schema"),
        ({"rename": {"value.n": "f"}}, "value has a field twice"),
        ({"rename": {"value.n": "value.m"}}, "give the new name of the field alone"),
        ({"rename": {"value.l.element": "e"}}, "cannot be renamed: only fields of structs can"),
        ({"rename": {"value": "v"}}, "cannot be renamed: only fields of structs can"),
        ({"drop": ["value"]}, "cannot be dropped: only fields of structs can"),
        ({"drop": ["value.l.element"]}, "cannot be dropped: only fields of structs can"),
        ({"drop": ["value.l.element.q"]}, "value.l.element would have no field left"),
        ({"drop": ["key.a"]}, "without a part of its key"),
        ({"drop": ["value.n"], "rename": {"value.n": "m"}}, "is both renamed and dropped"),
        ({"drop": "value.x"}, "value.x is not in the schema"),
        ({"rename": ["value.n"]}, "rename is a list"),
    ],
)
def test_what_may_not_follow_is_refused_with_its_reason(changes, message):
    """S61: nothing else."""
    with pytest.raises(InvalidInputError) as refused:
        evolve(**changes)
    assert message in str(refused.value)


def test_names_follow_by_ids():
    """S61: with the feature alone; a name that is used again has another id, and another column."""
    made = evolve(
        rename={"value.n": "f", "value.f": "n", "key.a": "b", "key.b": "a"},
        drop=["value.d"],
        add={"value.d": pa.int8()},
    )
    check_evolution(SCHEMA, made, by_id=True)
    with pytest.raises(CorruptionError):
        check_evolution(SCHEMA, made, by_id=False)
    assert [(f.name, f.stored_name) for f in made.key.fields] == [("b", "a"), ("a", "b")]
    before = {f.name: f for f in SCHEMA.value.fields}
    after = {f.name: f for f in made.value.fields}
    assert (after["f"].id, after["f"].stored_name) == (before["n"].id, "n")
    assert (after["n"].id, after["n"].stored_name) == (before["f"].id, "f")
    new = after["d"]
    assert new.id > SCHEMA.last_id
    assert new.stored_name == f"d-{new.id}"
    assert schema_from_json(schema_to_json(made)) == made
    again = evolve(made, rename={"value.f": "n", "value.n": "f"})
    assert [f.column for f in again.value.fields if f.name in ("n", "f")] == [None, None]


def test_a_dropped_column_with_a_number_is_of_no_later_field():
    """FORMAT.md §12.4: though its name looks like that of a field that is added later."""
    schema = schema_of(
        {"key": pa.string(), "value": pa.struct([("a-30", pa.int8()), ("b", pa.int8())])}
    )
    made = evolve(schema, drop=["value.a-30"])
    columns = set()
    while made.last_id < 40:
        name = f"value.a{made.last_id}"
        made = evolve(made, add={"value.a": pa.int8()} if not columns else {name: pa.int8()})
        columns |= {field.stored_name for field in made.value.fields}
    assert "a-30" not in columns
    assert made.value.fields[1].id > 30


def field(schema, i):
    return schema.value.fields[i]


def with_field(i, **changes):
    fields = list(SCHEMA.value.fields)
    fields[i] = replace(fields[i], **changes)
    value = replace(SCHEMA.value, fields=tuple(fields))
    return replace(SCHEMA, id=1, value=value)


@pytest.mark.parametrize(
    "after",
    [
        replace(SCHEMA, id=2),
        SCHEMA,
        replace(SCHEMA, id=1, last_id=SCHEMA.last_id - 1),
        with_field(0, kind="string"),
        with_field(0, kind="int16"),
        with_field(0, name="renamed"),
        with_field(0, id=SCHEMA.last_id + 1),
        with_field(1, required=True),
        replace(SCHEMA, id=1, value=replace(SCHEMA.value, fields=SCHEMA.value.fields[:-1])),
        replace(SCHEMA, id=1, key=replace(SCHEMA.key, fields=SCHEMA.key.fields[:-1])),
        replace(
            SCHEMA,
            id=1,
            value=replace(
                SCHEMA.value,
                fields=(*SCHEMA.value.fields, replace(field(SCHEMA, 1), name="used", id=18)),
            ),
        ),
        replace(
            SCHEMA,
            id=1,
            key=replace(
                SCHEMA.key, fields=(*SCHEMA.key.fields, replace(field(SCHEMA, 1), name="c", id=90))
            ),
        ),
    ],
)
def test_an_edit_with_another_schema_is_damage(after):
    """FORMAT.md §12.4: whoever made it."""
    with pytest.raises(CorruptionError):
        check_evolution(SCHEMA, after, by_id=False)


def test_bytes_get_no_schema():
    """What is stored as bytes cannot be read as anything else."""
    with pytest.raises(CorruptionError):
        check_evolution(None, SCHEMA, by_id=True)
    with pytest.raises(InvalidInputError, match="has no schema to evolve"):
        evolve(None, add={"value.x": pa.int8()})
