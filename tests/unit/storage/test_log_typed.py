"""Typed logs: what is appended is read back as columns, whatever the type (S61, S62)."""

import datetime as dt
import decimal
import io
import re
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import xxhash

from clog.cleaner import Cleaner
from clog.storage import (
    CorruptionError,
    InvalidInputError,
    Log,
    StateTable,
    UnsupportedFormatError,
)
from clog.storage.env import SeededIds
from clog.storage.format.log_info import FEATURES, TYPED_KEYS, schema_from_json, schema_to_json
from clog.storage.keys.hashing import key_bytes, key_of_bytes
from clog.storage.objects.reader import WHOLE_BYTES, read_rows
from clog_testing.counting import CountingStore
from clog_testing.crash import inside, memory_store

D = decimal.Decimal
SCHEMA = {
    "key": pa.string(),
    "value": pa.struct(
        [
            pa.field("n", pa.int32(), nullable=False),
            ("note", pa.string()),
            ("tags", pa.list_(pa.string())),
        ]
    ),
}
ROWS = [
    {"key": "a", "value": {"n": 1, "note": "x", "tags": ["p", None]}},
    {"key": "b", "value": {"n": 2, "note": None, "tags": None}},
    {"key": "a", "value": None},
    {"key": "c", "value": {"n": 3, "note": "", "tags": []}},
]


@pytest.fixture
def make_typed(store, clock):
    """Creates a typed log."""

    def make(schema=None, partitions=1, config=None, *, on=None):
        return Log.create(
            *(on or store, partitions, config),
            schema=SCHEMA if schema is None else schema,
            clock=clock,
            ids=SeededIds(7),
        )

    return make


def names_in(store):
    return sorted(found.path for found in inside(store).list(""))


def rows_of(batches, *columns):
    return [
        row for batch in batches for row in batch.select(columns or ["key", "value"]).to_pylist()
    ]


def test_what_is_appended_comes_back(make_typed, open_log):
    """S61: from the log, as a table, by key, as changes; a null value deletes."""
    log = make_typed()
    log.append(ROWS)
    for other in (log, open_log()):
        assert other.schema == pa.schema(SCHEMA)
        assert rows_of(other.read()) == ROWS
        assert rows_of(other.table().to_batches()) == [ROWS[1], ROWS[3]]
        assert rows_of(other.latest(0).to_batches()) == ROWS[1:]
        assert other.table().get("b") == ROWS[1]["value"]
        assert other.table().get("a") is None
        assert other.table().get_many(["a", "b", "c"]) == {
            "b": ROWS[1]["value"],
            "c": ROWS[3]["value"],
        }


@pytest.mark.parametrize(
    ("package", "made"),
    [
        ("pyarrow", lambda pa: pa.Table.from_pylist(ROWS)),
        ("pyarrow", lambda pa: pa.Table.from_pylist(ROWS).to_batches()[0]),
        ("pandas", lambda pd: pd.DataFrame(ROWS)),
        ("polars", lambda pl: pl.DataFrame(ROWS)),
    ],
    ids=["table", "batch", "pandas", "polars"],
)
def test_frames_of_all_kinds_are_taken(make_typed, package, made):
    """As those of a log of bytes are."""
    log = make_typed()
    log.append(made(pytest.importorskip(package)))
    assert rows_of(log.read()) == ROWS


def test_tables_go_to_polars_and_pandas(make_typed):
    """With only the requested fields."""
    pytest.importorskip("polars")
    pytest.importorskip("pandas")
    log = make_typed()
    log.append(ROWS)
    assert log.table().to_polars(columns=["key", "value.n"]).to_dicts() == [
        {"key": "b", "value": {"n": 2}},
        {"key": "c", "value": {"n": 3}},
    ]
    assert list(log.table().to_pandas(columns=["key", "value.note"])["value"]) == [
        *({"note": None}, {"note": ""}),
    ]


def test_duckdb_queries_a_field(make_typed):
    duckdb = pytest.importorskip("duckdb")
    log = make_typed()
    log.append(ROWS)
    relation = log.table().to_duckdb(columns=["value.n"], connection=duckdb.connect())
    assert relation.aggregate("sum(value.n)").fetchall() == [(5,)]


@pytest.mark.parametrize("inside", [lambda k: k, pa.list_, lambda k: pa.map_(pa.string(), k)])
def test_types_that_an_engine_lacks_are_named(make_typed, inside):
    """At any depth, by their column, with the way on; without that column all is shown."""
    pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    kinds = {"wide": inside(pa.decimal256(39, 2)), "half": inside(pa.float16()), "n": pa.int8()}
    log = make_typed({"key": pa.string(), "value": pa.struct([*kinds.items()])})
    log.append([{"key": "a", "value": {"wide": None, "half": None, "n": 1}}])
    calls = {
        "Polars": (lambda f, **c: f.to_polars(**c), ["wide"]),
        "lazy Polars": (lambda f, **c: f.to_polars(lazy=True, **c), ["wide"]),
        "DuckDB": (lambda f, **c: f.to_duckdb(connection=duckdb.connect(), **c), ["wide", "half"]),
    }
    for name, (call, lacking) in calls.items():
        frames = [log.table()] if "lazy" in name else [log.table(), log.read()]
        for frame in frames:
            for field in lacking:
                told = rf"column value\.{field}\b.* which {name[-6:]} does not have.*columns="
                with pytest.raises(InvalidInputError, match=told):
                    call(frame, columns=["key", f"value.{field}"])
            assert call(frame, columns=["key", "value.n"]) is not None
    assert log.table().to_polars(columns=["value.half"]).height == 1


TYPES = [
    (pa.bool_(), [True, False, None]),
    (pa.int8(), [-128, 127]),
    (pa.int16(), [-(2**15)]),
    (pa.int32(), [-(2**31)]),
    (pa.int64(), [2**63 - 1]),
    (pa.uint8(), [255]),
    (pa.uint16(), [2**16 - 1]),
    (pa.uint32(), [2**32 - 1]),
    (pa.uint64(), [2**64 - 1]),
    (pa.float16(), [1.5]),
    (pa.float32(), [1.5, float("-inf")]),
    (pa.float64(), [1e300]),
    (pa.date32(), [dt.date(1969, 7, 20)]),
    (pa.time32("ms"), [dt.time(1, 2, 3, 4000)]),
    (pa.time64("us"), [dt.time(1, 2, 3, 4)]),
    (pa.time64("ns"), [dt.time(1, 2, 3, 4)]),
    (pa.timestamp("ms"), [dt.datetime(1969, 1, 1)]),
    (pa.timestamp("us"), [dt.datetime(9999, 1, 1, 1, 1, 1, 1)]),
    (pa.timestamp("us", "UTC"), [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]),
    (pa.decimal128(5, 2), [D("-1.25")]),
    (pa.decimal128(38, 0), [D("9" * 38)]),
    (pa.decimal256(76, 3), [D("9" * 73 + ".125")]),
    (pa.string(), ["", "é"]),
    (pa.binary(), [b"", b"\xff\0"]),
    (pa.binary(3), [b"abc"]),
    (pa.list_(pa.list_(pa.int8())), [[[1], [], None], []]),
    (pa.map_(pa.string(), pa.struct([("x", pa.int8())])), [[("a", {"x": 1}), ("b", None)]]),
    (pa.struct([("s", pa.struct([("x", pa.int8())]))]), [{"s": None}, {"s": {"x": None}}]),
]


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=[str(kind) for kind, _ in TYPES])
def test_every_type_that_parquet_stores(make_typed, kind, values):
    """S61: as the value itself, in a struct, and in a list; by dicts and by Arrow's arrays."""
    nested = pa.struct([("x", kind), ("l", pa.list_(kind))])
    for value_type, wrap in ((kind, lambda v: v), (nested, lambda v: {"x": v, "l": [v, None]})):
        log = make_typed({"key": pa.int32(), "value": value_type}, on=f"memory://{id(wrap)}-{kind}")
        rows = [{"key": i, "value": wrap(value)} for i, value in enumerate([*values, None])]
        rows[-1]["value"] = None
        log.append(rows)
        log.append(pa.Table.from_batches(log.read()).select(["key", "value"]))
        assert rows_of(log.read()) == rows * 2
        assert log.schema.field("value").type == value_type


PAIRED = pa.struct([("c", pa.bool_())])
KEYS = [
    (pa.string(), "x"),
    (pa.binary(), b"\0"),
    (pa.binary(2), b"ab"),
    (pa.int8(), -1),
    (pa.uint64(), 2**64 - 1),
    (pa.timestamp("us", "UTC"), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
    (pa.date32(), dt.date(1969, 12, 31)),
    (pa.bool_(), False),
    (pa.decimal128(38, 4), D("-1234567890123456789012345678901234.5678")),
    (pa.struct([("a", pa.int16()), ("b", pa.struct([("c", pa.string())]))]), (1, ("x",))),
    (pa.struct([("a", pa.decimal128(5, 1)), ("b", PAIRED)]), (D("0.1"), (True,))),
]


def as_field(key):
    return {"a": key[0], "b": {"c": key[1][0]}} if isinstance(key, tuple) else key


@pytest.mark.parametrize(("kind", "key"), KEYS, ids=[str(kind) for kind, _ in KEYS])
def test_every_type_of_key(make_typed, kind, key):
    """S61: looked up, and superseded, by its canonical bytes; a struct is a tuple or a dict."""
    log = make_typed({"key": kind, "value": pa.int64()}, 3)
    for number in (1, 2):
        log.append([{"key": as_field(key), "value": number}])
    table = log.table()
    assert rows_of(table.to_batches()) == [{"key": as_field(key), "value": 2}]
    assert table.get(key) == table.get(as_field(key)) == 2
    assert table.get_many([key]) == {key: 2}


def test_typed_keys_are_a_feature_that_older_readers_name(make_typed, monkeypatch, store):
    """FORMAT.md §0, §12.3: from the first version on, and only for these keys; a release that does
    not know it reads the schema, and refuses the log by the feature's name.
    """
    price = pa.struct([("d", pa.date32()), ("p", pa.decimal128(9, 2)), ("ok", pa.bool_())])
    dated = pa.struct([("d", pa.date32())])
    log = make_typed({"key": price, "value": price})
    plain = make_typed({"key": pa.int32(), "value": dated}, on="memory://dated")
    assert TYPED_KEYS in log.handle.tip.head.log.features.read
    assert TYPED_KEYS not in plain.handle.tip.head.log.features
    shown = schema_to_json(log.handle.tip.head.log.schema)
    of_0_1_0 = re.compile(r"string|binary|fixed\(\d+\)|u?int\d+|timestamp\((ms|us|ns)(,utc)?\)")
    assert all(of_0_1_0.fullmatch(field["type"]) for field in shown["key"]["fields"])
    assert [field["type"] for field in shown["value"]["fields"]] == ["date", "decimal(9,2)", "bool"]
    assert [f.state for f in log.upgrade() if f.name == TYPED_KEYS] == ["on"]
    with pytest.raises(InvalidInputError, match="typed-keys"):
        plain.upgrade([TYPED_KEYS])
    monkeypatch.delitem(FEATURES, TYPED_KEYS)
    with pytest.raises(UnsupportedFormatError, match=r"\['typed-keys'\].*upgrade clog"):
        Log.open(store)


@pytest.mark.parametrize(
    "key",
    [
        {"type": "date"},
        {"type": "int32", "key_type": "int32"},
        {"type": "int64", "key_type": "date"},
        {"type": "int32", "key_type": None},
        {"type": "fixed(16)", "key_type": "decimal(39,2)"},
    ],
    ids=str,
)
def test_a_type_of_a_key_that_none_stands_in_for_is_damage(key):
    """FORMAT.md §12.3: a date is one under both names, and so are the others."""

    def read(**types):
        own = {"name": "key", "id": 1, **types}
        value = {"name": "value", "id": 2, "type": "int8"}
        return schema_from_json({"id": 0, "last_field_id": 2, "key": own, "value": value})

    assert read(type="int32", key_type="date").key.kind == "date"
    with pytest.raises((ValueError, KeyError)):
        read(**key)


def test_a_decimal_key_gets_more_digits_and_keeps_its_scale(make_typed):
    """FORMAT.md §12.4: it is the same key; up to the 38 that fit into its bytes."""
    log = make_typed({"key": pa.decimal128(4, 2), "value": pa.int64()}, 3)
    log.append([{"key": D("12.50"), "value": 1}])
    log.evolve(widen={"key": pa.decimal128(38, 2)})
    log.append([{"key": D("12.5"), "value": 2}, {"key": D(10) ** 30, "value": 3}])
    assert log.table().get_many([D("12.5")]) == {D("12.50"): 2}
    assert log.table().to_arrow().num_rows == 2
    for other in (pa.decimal128(38, 3), pa.decimal256(39, 2)):
        with pytest.raises(InvalidInputError):
            log.evolve(widen={"key": other})
    with pytest.raises(InvalidInputError, match="a decimal of up to 38 digits"):
        make_typed({"key": pa.decimal256(39, 0), "value": pa.int8()}, on="memory://wide")


@pytest.mark.parametrize("many", [D("9" * 5_000), D("9" * 77), D("-1E+80"), D("1" * 5_000 + ".5")])
def test_a_decimal_of_too_many_digits_is_refused(make_typed, many):
    """S62: like any value that does not fit, also as a requested key."""
    log = make_typed({"key": pa.decimal128(38, 2), "value": pa.decimal256(76, 3)})
    with pytest.raises(InvalidInputError, match=r"a key that does not fit decimal128\(38, 2\)"):
        log.table().get(many)
    for record in ({"key": many, "value": None}, {"key": D(1), "value": many}):
        with pytest.raises(InvalidInputError, match=r"does not fit decimal.*nothing was"):
            log.append([record])


@pytest.mark.parametrize("key", [7, b"a", None, ("a",)])
def test_a_key_of_another_type_is_not_looked_for(make_typed, key):
    """It would be taken for absent."""
    log = make_typed()
    with pytest.raises(InvalidInputError, match="requested"):
        log.table().get(key)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (pa.duration("s"), "use int64"),
        (pa.null(), "choose another"),
        (pa.timestamp("s"), "the unit ms, us or ns"),
        (pa.timestamp("us", "Europe/Berlin"), "no time zone or UTC"),
        (pa.list_(pa.int8(), 3), "use a list"),
        (pa.date64(), "use date32"),
        (pa.time32("s"), "use time32"),
        (pa.month_day_nano_interval(), "choose another"),
        (pa.dense_union([pa.field("a", pa.int8())]), "choose another"),
    ],
    ids=str,
)
def test_a_type_that_parquet_does_not_keep_is_refused(make_typed, store, kind, field):
    """With what to use instead, and before anything is written."""
    with pytest.raises(InvalidInputError, match=rf"value\.x has type .*{field}"):
        make_typed({"key": pa.string(), "value": pa.struct([("x", kind)])})
    assert list(store.list("")) == []


@pytest.mark.parametrize(
    "schema",
    [
        {"key": pa.string()},
        {"key": pa.float64(), "value": pa.int8()},
        {"key": pa.struct([("x", pa.list_(pa.int8()))]), "value": pa.int8()},
        {"key": pa.string(), "value": pa.struct([])},
        {"key": pa.string(), "value": pa.struct([("a", pa.int8()), ("a", pa.int8())])},
        {"key": pa.string(), "value": 8},
        "string",
        pa.schema([("key", pa.string()), pa.field("value", pa.int8(), nullable=False)]),
    ],
    ids=str,
)
def test_a_schema_that_is_none_is_refused(make_typed, schema):
    with pytest.raises(InvalidInputError, match=r"schema|key|value"):
        make_typed(schema)


def test_layouts_are_no_part_of_a_schema(make_typed):
    """Large strings, views and dictionaries hold the same values."""
    value = pa.struct(
        [
            ("s", pa.large_string()),
            ("d", pa.dictionary(pa.int8(), pa.string())),
            ("l", pa.large_list(pa.binary_view())),
        ]
    )
    log = make_typed({"key": pa.string_view(), "value": value})
    assert log.schema.field("key").type == pa.string()
    assert log.schema.field("value").type == pa.struct(
        [("s", pa.string()), ("d", pa.string()), ("l", pa.list_(pa.binary()))]
    )
    plain = make_typed({"key": pa.binary(), "value": pa.large_binary()}, on="memory://bytes")
    assert plain.schema == pa.schema([("key", pa.binary()), ("value", pa.binary())])
    assert "typed-columns" not in plain.handle.tip.head.log.features


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"key": "d", "value": {"n": "1"}}, "record 1 has a value.n of type str; .*int32"),
        ({"key": "d", "value": {}}, "record 1 has no value.n, which is NOT NULL"),
        (
            {"key": "d", "value": {"n": 1, "zz": 1}},
            "record 1 has the field value.zz.*n, note, tags",
        ),
        ({"key": 7, "value": None}, "record 1 has a key of type int; .*string"),
        ({"key": None, "value": None}, "have no key"),
        ({"key": "d", "value": {"n": 1, "note": "x" * 200}}, "larger than max.message.bytes"),
    ],
)
def test_a_record_that_does_not_fit_commits_nothing(make_typed, store, bad, message):
    """S62: nothing is written, and nothing of the others."""
    log = make_typed(config={"max.message.bytes": "100"})
    before = names_in(store)
    with pytest.raises(InvalidInputError, match=message):
        log.append([ROWS[0], bad])
    assert log.version == 0
    assert names_in(store) == before


def test_objects_have_native_columns_with_ids(make_typed, store):
    """FORMAT.md §12.2: any Parquet reader finds typed columns, ids and statistics."""
    log = make_typed()
    log.append(ROWS)
    (path,) = [name for name in names_in(store) if name.endswith(".parquet")]
    file = pq.ParquetFile(io.BytesIO(inside(store).get(path)))
    value = file.schema_arrow.field("value")
    assert value.type == SCHEMA["value"]
    ids = {f.name: f.metadata[b"PARQUET:field_id"] for f in (*file.schema_arrow, *value.type)}
    assert ids == {
        "key": b"1",
        "value": b"2",
        "timestamp": b"7",
        "n": b"16",
        "note": b"17",
        "tags": b"18",
    }
    group = file.metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert columns["value.n"].statistics.max == 3
    assert columns["key"].statistics.min == "a"


@pytest.fixture
def large(make_typed, store):
    """A log with an object that is read in parts, and its store, counted."""
    log = make_typed(
        {"key": pa.string(), "value": pa.struct([(f"f{i}", pa.string()) for i in range(8)])}
    )
    rows = 20_000
    fields = [
        pa.array([f"{i}-{j * j * 7919:x}{j**5 % 99991:x}" for j in range(rows)]) for i in range(8)
    ]
    keys = pa.array([f"k{j}" for j in range(rows)])
    value = pa.StructArray.from_arrays(fields, [f"f{i}" for i in range(8)])
    log.append(pa.table({"key": keys, "value": value}))
    return log


def bytes_of(log, store, columns):
    counting = CountingStore(store)
    read = Log.open(counting).read(columns=columns)
    rows = sum(batch.num_rows for batch in read)
    assert rows == 20_000
    return counting.bytes_in


def test_only_the_fields_that_are_named_are_fetched(large, store):
    """Nested columns are pruned to their pages: two of eight take about a quarter."""
    (ref,) = {chunk.object for s in large.handle.manifest().segments[0] for chunk in s.chunks}
    assert ref.size_bytes > WHOLE_BYTES
    whole = bytes_of(large, store, ["value"])
    assert bytes_of(large, store, ["value.f1", "value.f5"]) < 0.4 * whole
    assert bytes_of(large, store, ["offset"]) < 0.15 * whole


def test_a_table_of_some_fields_reads_keys_and_those(large):
    table = large.table()
    some = table.to_arrow(columns=["value.f3", "offset"])
    assert some.schema.names == ["value", "offset"]
    assert some.column("value").type == pa.struct([("f3", pa.string())])
    whole = table.to_arrow()
    assert pc.struct_field(some["value"], "f3") == pc.struct_field(whole["value"], "f3")
    assert table.to_arrow(columns=["offset"]).num_rows == 20_000


@pytest.mark.parametrize("columns", [[], "value", ["value.x"], ["delete_horizon"], ["nope"]])
def test_columns_that_are_none_are_refused(make_typed, columns):
    log = make_typed()
    log.append(ROWS)
    for read in (
        lambda: list(log.read(columns=columns)),
        lambda: log.table().to_arrow(columns=columns),
    ):
        with pytest.raises(InvalidInputError, match=r"columns?"):
            read()


def test_a_retried_append_is_told_from_another(make_typed, open_log):
    """By the content, as in a log of bytes, and under the next schema too."""
    log = make_typed()
    first = log.append(ROWS, producer=("p", 1))
    assert log.append(pa.Table.from_pylist(ROWS), producer=("p", 1)).duplicate
    changed = [*ROWS[:3], {"key": "c", "value": {"n": 3, "note": "", "tags": [""]}}]
    with pytest.raises(InvalidInputError, match="records other"):
        log.append(changed, producer=("p", 1))
    log.evolve(add={"value.more": pa.int8()}, widen={"value.n": pa.int64()})
    again = open_log().append(ROWS, producer=("p", 1))
    assert again.duplicate
    assert again.version == first.version


def test_schemas_evolve(make_typed, open_log):
    """S61: old objects are read by the newest schema, old versions by theirs, and an append that
    was prepared under the old one is committed afterwards.
    """
    log, old = make_typed(), open_log()
    log.append(ROWS)
    names = ["key", "value", "headers", "timestamp"]
    again = pa.Table.from_batches(log.read()).slice(3).select(names).combine_chunks()
    before = log.version
    schema = log.evolve(
        add={"value.more": pa.int8()}, widen={"value.n": pa.int64()}, relax=["value.n"]
    )
    assert schema.field("value").type.field("more").type == pa.int8()
    written = old.object_writer()  # Its newest version is still the one before.
    written.add(again, _zeros(1))
    old.append_objects(written.finish())
    log.append([{"key": "d", "value": {"n": 2**40, "more": 1}}])
    wide = {"more": None}
    assert rows_of(log.read(), "value") == [
        *({"value": row["value"] and row["value"] | wide} for row in (*ROWS, ROWS[3])),
        {"value": {"n": 2**40, "note": None, "tags": None, "more": 1}},
    ]
    assert log.table(at=before).get("b") == ROWS[1]["value"]
    assert log.table().get("b") == ROWS[1]["value"] | wide
    assert log.table().to_arrow(columns=["value.more"]).num_rows == 3
    with pytest.raises(InvalidInputError, match="cannot become"):
        log.evolve(widen={"value.n": pa.string()})
    assert log.version == open_log().version


@pytest.mark.parametrize(
    "change",
    [
        {"add": {"value.x": "no type"}},
        {"add": {"value.x": None}},
        {"add": {"value.\ud800": pa.int8()}},
        {"add": {5: pa.int8()}},
        {"widen": {"value.n": pa.field("n", pa.int64())}},
        {"widen": {5: pa.int64()}},
        {"relax": [5]},
    ],
    ids=repr,
)
def test_an_evolution_of_what_is_no_field_is_refused(make_typed, change):
    """S61: with the path, and with a clog error; nothing changes."""
    log = make_typed()
    with pytest.raises(InvalidInputError, match=r"is not a (field|pyarrow type)"):
        log.evolve(**change)
    assert log.version == 0


def test_dictionaries_are_taken_or_refused(make_typed):
    """S62: chunks of dictionary-encoded texts, including views, have separate dictionaries; Arrow
    joins none for lists.
    """
    log = make_typed({"key": pa.string(), "value": pa.list_(pa.int8())})
    coded = pa.DictionaryArray.from_arrays
    places = pa.array([0, None, 1], pa.int8())
    keys = coded(pa.array([0, 1, 1]), pa.array(["a", "b"], pa.string_view()))
    lists = coded(places, pa.array([[1], [2, 3]]))
    log.append(pa.table({"key": keys, "value": lists}))
    read = [row["value"] for batch in log.read() for row in batch.to_pylist()]
    assert read == [[1], None, [2, 3]]
    other = coded(places, pa.array([[4], [2, 3]]))
    table = pa.table({"key": list("abcdef"), "value": pa.chunked_array([lists, other])})
    with pytest.raises(InvalidInputError, match="column value has type dictionary"):
        log.append(table)


def _zeros(rows):
    import numpy as np

    return np.zeros(rows, np.int32)


def test_an_append_by_a_handle_that_missed_the_evolution(make_typed, open_log):
    """S62: a new field is looked up before it is refused."""
    log, old = make_typed(), open_log()
    log.evolve(add={"value.more": pa.int8()})
    old.append([{"key": "a", "value": {"n": 1, "more": 5}}])
    assert log.table().get("a")["more"] == 5


NESTED = pa.struct(
    [
        ("l", pa.list_(pa.struct([("q", pa.int32()), ("big", pa.string())]))),
        ("m", pa.map_(pa.string(), pa.struct([("q", pa.list_(pa.int32())), ("big", pa.string())]))),
    ]
)


def test_fields_inside_lists_and_maps_are_read_alone():
    """By paths through ``element`` and ``value``: the rest is not fetched; a map keeps its keys."""
    store = CountingStore(memory_store())
    log = Log.create(store, 1, schema={"key": pa.int64(), "value": NESTED}, ids=SeededIds(1))
    random = Random(1)
    big = [random.randbytes(2000).hex() for _ in range(500)]
    rows = [
        {
            "key": i,
            "value": {
                "l": None if i % 7 == 0 else [{"q": i, "big": text}, None][: i % 3],
                "m": {"k": {"q": [i, None], "big": text}, "none": None},
            },
        }
        for i, text in enumerate(big)
    ]
    log.append(rows)
    whole = log.table().to_arrow().sort_by("key").column("value").to_pylist()
    log.evolve(add={"value.l.element.later": pa.int8()})
    for columns, kept in (
        (["value.l.element.q"], lambda v: {"l": _only(v["l"], "q")}),
        (["value.m.value.q"], lambda v: {"m": [(k, x and {"q": x["q"]}) for k, x in v["m"]]}),
        (["value.l.element.later"], lambda v: {"l": _only(v["l"], "later")}),
    ):
        before = store.bytes_in
        found = log.table().to_arrow(columns=["key", *columns]).sort_by("key")
        assert found.column("value").to_pylist() == [kept(v) for v in whole], columns
        assert store.bytes_in - before < sum(map(len, big)) / 20, columns
    for wrong in ("value.l.q", "value.m.key.x", "value.m.value.q.element.x"):
        with pytest.raises(InvalidInputError, match="column"):
            log.table().to_arrow(columns=[wrong])


def _only(elements, name):
    return elements and [e and {name: e.get(name)} for e in elements]


def test_the_names_of_key_columns_are_checked_beside_the_schema():
    """At creation, when they are altered, and when the schema evolves, in either order."""
    value = pa.struct([("n", pa.int32())])
    pair = pa.struct([("a", pa.int64()), ("b", pa.string())])
    for schema, names, why in (
        (None, "id", "no schema"),
        ({"key": pa.string(), "value": pa.int32()}, "id", "only the fields of a struct become"),
        ({"key": pair, "value": value}, "b,a", "with the fields a,b"),
        ({"key": pa.string(), "value": value}, "a,b", "a single column"),
        ({"key": pa.string(), "value": value}, "N", "the value also has a field 'n'"),
    ):
        with pytest.raises(InvalidInputError, match=f"{why}.*nothing was created"):
            Log.create("memory://key-columns", schema=schema, config={"table.key.columns": names})
    log = Log.create(
        "memory://key-columns",
        schema={"key": pa.string(), "value": value},
        config={"table.key.columns": "id"},
    )
    with pytest.raises(InvalidInputError, match=r"also has a field 'ID'.*nothing was changed"):
        log.evolve(add={"value.ID": pa.int8()})
    with pytest.raises(InvalidInputError, match="a single column"):
        log.alter({"table.key.columns": "a,b"})
    log.alter({"table.key.columns": None})
    log.evolve(add={"value.ID": pa.int8()})
    with pytest.raises(InvalidInputError, match="also has a field 'ID'"):
        log.alter({"table.key.columns": "id"})


def test_two_who_evolve_at_once_do_not_lose_a_field(make_typed, open_log):
    """S61: each starts from the newest existing schema."""
    log, other = make_typed(), open_log()
    log.evolve(add={"value.one": pa.int8()})
    assert "two" in [f.name for f in other.evolve(add={"value.two": pa.int8()}).field("value").type]
    assert [f.name for f in log.schema.field("value").type][-2:] == ["one", "two"]
    with pytest.raises(InvalidInputError, match="it already exists"):
        other.evolve(add={"value.one": pa.int8()})


def test_a_pass_writes_what_an_evolution_added(make_typed):
    """S61: a NOT NULL field inside a new one, and so null in all existing records."""
    log = make_typed(config={"min.cleanable.dirty.ratio": "0"})
    log.append(ROWS)
    strict = pa.struct(
        [
            pa.field("n", pa.int8(), nullable=False),
            pa.field("l", pa.list_(pa.field("element", pa.int8(), nullable=False)), nullable=False),
        ]
    )
    log.evolve(add={"value.more": strict})
    log.append([{"key": "a", "value": {"n": 7, "more": {"n": 1, "l": [2]}}}])
    log.roll()
    Cleaner(log).run_once(force=True)
    assert log.describe()["partition_details"][0]["uncleanable"] is None
    assert log.describe()["partition_details"][0]["records"] == 3
    assert log.table().get("a")["more"] == {"n": 1, "l": [2]}
    assert log.table().get("b") == ROWS[1]["value"] | {"more": None}


def test_objects_of_another_schema_are_not_committed(make_typed, make_log):
    """Nobody could read them."""
    typed, plain = make_typed(), make_log(on="memory://plain")
    plain_objects, typed_objects = plain.object_writer(), typed.object_writer()
    plain.append([{"key": "a", "value": "x"}])
    typed.append(ROWS)
    names = ["key", "value", "headers", "timestamp"]
    for log, objects in ((plain, plain_objects), (typed, typed_objects)):
        table = pa.Table.from_batches(log.read()).select(names).combine_chunks()
        objects.add(table, _zeros(table.num_rows))
    for log, objects in ((typed, plain_objects), (plain, typed_objects)):
        with pytest.raises(InvalidInputError, match="schema"):
            log.append_objects(objects.finish())


@pytest.mark.parametrize(("kind", "key"), KEYS, ids=[str(kind) for kind, _ in KEYS])
def test_a_key_comes_back_from_its_canonical_bytes(kind, key):
    """As Python's value, a struct as a tuple."""
    (found,) = key_bytes(pa.array([as_field(key)], kind)).to_pylist()
    assert key_of_bytes(found, kind) == key


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=[str(kind) for kind, _ in TYPES])
def test_rows_of_a_state_table_hold_every_type(clock, tmp_path, kind, values):
    """S61: the same as Arrow would give, from the local file."""
    nested = pa.struct([("x", kind), ("l", pa.list_(kind))])
    for name, value_type in (("plain", kind), ("nested", nested)):
        wrapped = [v if value_type is kind else {"x": v, "l": [v, None]} for v in (*values, None)]
        schema = {"key": pa.int32(), "value": value_type}
        log = Log.create(
            f"memory://{name}-{tmp_path}", schema=schema, clock=clock, ids=SeededIds(1)
        )
        log.append([{"key": i, "value": value} for i, value in enumerate(wrapped)])
        with StateTable(log.url, tmp_path / name, clock=clock) as table:
            assert [table.get(i) for i in range(len(wrapped))] == wrapped
            assert dict(table.scan()) == {i: v for i, v in enumerate(wrapped) if v is not None}


def test_a_forged_footer_is_damage_and_nothing_else(make_typed, store):
    """Its checksum is right, and so is the object's: whoever can write to a log can do that. What
    is read all the same is complete.
    """
    kinds = [(f"c{i}", kind) for i, (kind, _) in enumerate(TYPES)]
    log = make_typed({"key": pa.struct([("a", pa.int64())]), "value": pa.struct(kinds)})
    values = {f"c{i}": some[0] for i, (_, some) in enumerate(TYPES)}
    log.append([{"key": {"a": i}, "value": values if i % 3 else None} for i in range(30)])
    folder, schema = inside(store), log.handle.tip.head.log.schema
    (ref,) = {chunk.object for s in log.handle.manifest().segments[0] for chunk in s.chunks}
    data, random = folder.get(ref.path), Random(7)
    pages, footer = data[: -ref.footer_bytes - 16], data[-ref.footer_bytes :]
    damaged = 0
    for _ in range(600):
        forged = bytearray(footer)
        for _ in range(random.choice((1, 1, 2, 8))):
            at = random.randrange(len(forged) - 8)
            forged[at] = random.choice((random.randrange(256), 0, 255, forged[at] ^ 1))
        body = pages + xxhash.xxh3_128_digest(forged) + forged
        folder.put(ref.path, body)
        again = replace(ref, checksum=xxhash.xxh3_128_hexdigest(body))
        try:
            columns = random.choice((["key", "value"], ["value.c1"]))
            for batch in read_rows(folder, again, 0, ref.rows, columns=columns, schema=schema):
                batch.validate(full=True)
        except CorruptionError:
            damaged += 1
    assert damaged > 300


def test_a_writer_that_rested_while_the_schema_evolved_goes_on(make_typed, store, clock):
    """S61: before it writes it checks whether its log is still there, and finds the later schema;
    its input fits that as well.
    """
    log = make_typed()
    rested = Log.open(store, clock=clock, ids=SeededIds(77))
    rested.append(ROWS)
    log.evolve(add={"value.later": pa.string()}, widen={"value.n": pa.int64()})
    clock.advance(900_000)
    rested.append(ROWS, producer=("p", 1))
    clock.advance(900_000)
    log.evolve(add={"value.latest": pa.list_(pa.int8())})
    clock.advance(900_000)
    rested.append(ROWS)
    values = rested.table().to_arrow().column("value").to_pylist()
    assert {"later", "latest"} <= values[0].keys()


def buffers_of(kind, number, width):
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(number.to_bytes(width, "little"))])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (buffers_of(pa.decimal128(3, 2), 10**20, 16), "does not fit decimal128"),
        (buffers_of(pa.time64("us"), 86_400_000_000, 8), "that is not a time of day"),
        (buffers_of(pa.time32("ms"), 2**32 - 1, 4), "that is not a time of day"),
    ],
    ids=["decimal", "time", "negative"],
)
def test_what_arrow_holds_and_a_type_does_not_is_refused(make_typed, array, message):
    """S62: Parquet would store another value; also inside lists."""
    for given in (array, pa.ListArray.from_arrays([0, 1], array)):
        log = make_typed({"key": pa.string(), "value": given.type}, on=f"memory://{given.type}")
        with pytest.raises(InvalidInputError, match=f"record 0 has a value.*{message}"):
            log.append(pa.table({"key": ["a"], "value": given}))


def test_extensions_and_runs_are_taken_as_what_they_hold(make_typed):
    """Values of UUIDs are their bytes; a schema of them is refused, with what to use."""
    log = make_typed({"key": pa.string(), "value": pa.struct([("u", pa.binary(16))])})
    octets = pa.array([b"0123456789abcdef"], pa.binary(16))
    value = pa.StructArray.from_arrays([pa.ExtensionArray.from_storage(pa.uuid(), octets)], ["u"])
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["k"]))
    log.append(pa.table({"key": runs, "value": value}))
    assert log.table().get("k") == {"u": b"0123456789abcdef"}
    with pytest.raises(InvalidInputError, match=r"use fixed_size_binary\[16\]"):
        make_typed({"key": pa.string(), "value": pa.uuid()}, on="memory://uuid")


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (pa.timestamp("us"), np.datetime64("2020-01-01"), dt.datetime(2020, 1, 1)),
        (pa.timestamp("ms"), np.datetime64("2020-01-01T00", "h"), dt.datetime(2020, 1, 1)),
        (pa.date32(), np.datetime64("2020-01-01"), dt.date(2020, 1, 1)),
        (pa.time64("us"), np.timedelta64(1, "s"), dt.time(0, 0, 1)),
        (pa.decimal128(5, 2), np.int64(7), D(7)),
        (pa.float32(), 2**24, 2.0**24),
        (pa.float32(), 2**24 + 1, None),
        (pa.float16(), 2049, None),
        (pa.float32(), 10**400, None),
        (pa.timestamp("us"), np.datetime64("2020-01-01T00:00:00.1234567"), None),
        (pa.timestamp("ns"), np.datetime64("9999-01-01"), None),
        (pa.date32(), np.datetime64("2020-01-01T01"), None),
        (pa.time64("us"), np.timedelta64(2, "D"), None),
    ],
    ids=str,
)
def test_values_of_numpy_and_integers_of_floats_are_exact(make_typed, kind, value, found):
    """S62: accepted as they are, or refused; None: refused."""
    log = make_typed({"key": pa.string(), "value": kind})
    if found is None:
        with pytest.raises(InvalidInputError, match=r"record 0 has a value (that (does|is)|of) no"):
            log.append([{"key": "a", "value": value}])
        return
    log.append([{"key": "a", "value": value}])
    assert log.table().get("a") == found


def test_a_frame_of_pandas_that_arrow_refuses_is_told_by_its_record(make_typed):
    """S62: with record and field, as for dicts."""
    pd = pytest.importorskip("pandas")
    log = make_typed()
    values = [{"n": 1, "note": "x"}, {"n": "2"}]
    with pytest.raises(InvalidInputError, match=r"record 1 has a value\.n of type str"):
        log.append(pd.DataFrame({"key": ["a", "b"], "value": values}))
    with pytest.raises(InvalidInputError, match="record 1 has a key of type int"):
        log.append(pd.DataFrame({"key": ["a", 2], "value": [None, None]}))


def test_a_time_of_no_calendar_is_told(make_typed, tmp_path):
    """It is stored; Python has no value for it, Arrow has."""
    log = make_typed({"key": pa.string(), "value": pa.date32()}, on=str(tmp_path / "log"))
    log.append(pa.table({"key": ["a"], "value": pa.array([2**30], pa.int32()).view(pa.date32())}))
    with pytest.raises(InvalidInputError, match="before the year 1 or after the year 9999"):
        log.table().get("a")
    with (
        StateTable(log.url, cache_dir=tmp_path / "cache") as table,
        pytest.raises(InvalidInputError, match="before the year 1 or after the year 9999"),
    ):
        table.get("a")
    assert log.table().to_arrow()["value"].cast(pa.int32()).to_pylist() == [2**30]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"add": ["value.x"]}, "add is a list"), ({"add": {"x": pa.int8()}}, "'x' is no field")],
    ids=str,
)
def test_a_change_that_is_none_is_told(make_typed, change, message):
    with pytest.raises(InvalidInputError, match=message):
        make_typed().evolve(**change)
