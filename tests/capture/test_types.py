"""Types of PostgreSQL: each value, its text, and what it is in a log, by both ways in."""

import datetime as dt
import io
import math
import struct
import time
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.bridge.capturing.tables import Column
from clog.bridge.postgres import types as pg
from clog.bridge.postgres.pgoutput import OPTIONS, Decoder
from clog.bridge.postgres.source import _Rows, load
from clog.storage import InvalidInputError, Log, SourceError

MADE = """
create type mood as enum ('sad', 'o k');
create domain price as numeric(6, 2) check (value > 0);
create domain prices as price[];
create type point2 as (x int, y text);
create extension hstore; create extension citext;
"""
MOST, MOST_DAYS = 2**63 - 1, 2**31 - 1
US, UTC = pa.timestamp("us"), pa.timestamp("us", "UTC")
T = dt.datetime
CASES = [
    # Type, what it is kept as, and of each value: SQL, the server's text, and what is kept.
    ("bool", pa.bool_(), [("true", "t", True), ("false", "f", False)]),
    ("int2", pa.int16(), [("-32768", "-32768", -32768)]),
    ("int4", pa.int32(), [("2147483647", "2147483647", 2147483647)]),
    ("int8", pa.int64(), [("-9223372036854775808", "-9223372036854775808", -(2**63))]),
    ("oid", pa.int64(), [("4294967295", "4294967295", 4294967295)]),
    (
        "float4",
        pa.float32(),
        [
            ("0.1", "0.1", struct.unpack("f", struct.pack("f", 0.1))[0]),
            ("3.4028235e38", "3.4028235e+38", 3.4028234663852886e38),
            ("'NaN'", "NaN", math.nan),
        ],
    ),
    (
        "float8",
        pa.float64(),
        [
            ("0.1::float8 + 0.2::float8", "0.30000000000000004", 0.1 + 0.2),
            ("'-Infinity'", "-Infinity", -math.inf),
            ("5e-324", "5e-324", 5e-324),
        ],
    ),
    (
        "numeric",
        pa.string(),
        [("1.500", "1.500", "1.500"), ("'NaN'", "NaN", "NaN"), ("1e30", f"1{'0' * 30}", None)],
    ),
    ("numeric(9,2)", pa.decimal128(9, 2), [("-1.5", "-1.50", Decimal("-1.50"))]),
    (
        "numeric(38,10)",
        pa.decimal128(38, 10),
        [("9999999999999999999999999999.0000000001", None, None)],
    ),
    ("numeric(3,-2)", pa.decimal128(5, 0), [("12345", "12300", Decimal(12300))]),
    ("numeric(3,5)", pa.decimal128(5, 5), [("0.00123", "0.00123", Decimal("0.00123"))]),
    ("numeric(39,1)", pa.string(), [("1.5", "1.5", "1.5")]),
    ("text", pa.string(), [("''", "", ""), ("E'\"a\",\\n\\r\\\\.é'", '"a",\n\r\\.é', None)]),
    ("varchar(3)", pa.string(), [("'abc'", "abc", "abc")]),
    ("char(5)", pa.string(), [("'ab'", "ab   ", "ab   ")]),
    ('"char"', pa.string(), [("'x'", "x", "x")]),
    ("name", pa.string(), [("'n'", "n", "n")]),
    ("citext", pa.string(), [("'Ab'", "Ab", "Ab")]),
    ("bytea", pa.binary(), [("'\\x00ff'", "\\x00ff", b"\0\xff"), ("''", "\\x", b"")]),
    (
        "date",
        pa.date32(),
        [
            ("'2026-01-31'", "2026-01-31", dt.date(2026, 1, 31)),
            ("'infinity'", "infinity", MOST_DAYS),
            ("'-infinity'", "-infinity", -MOST_DAYS),
            ("'0044-03-15 BC'", "0044-03-15 BC", -735_160),
            ("'5874897-12-31'", "5874897-12-31", 2_145_042_905),
        ],
    ),
    (
        "timestamp",
        US,
        [
            ("'2026-01-31 12:00:00.5'", "2026-01-31 12:00:00.5", T(2026, 1, 31, 12, 0, 0, 500000)),
            ("'infinity'", "infinity", MOST),
            ("'-infinity'", "-infinity", -MOST),
            ("'12026-01-31 01:02:03.4'", "12026-01-31 01:02:03.4", 317_339_341_323_400_000),
        ],
    ),
    (
        "timestamptz",
        UTC,
        [
            (
                "'2026-07-01 12:00+02'",
                "2026-07-01 10:00:00+00",
                T(2026, 7, 1, 10, tzinfo=dt.UTC),
            ),
            ("'infinity'", "infinity", MOST),
            ("'0001-01-01 00:00+00 BC'", "0001-01-01 00:00:00+00 BC", -62_167_219_200_000_000),
        ],
    ),
    ("time", pa.string(), [("'24:00'", "24:00:00", "24:00:00")]),
    ("timetz", pa.string(), [("'12:00:01.5+02'", "12:00:01.5+02", "12:00:01.5+02")]),
    ("interval", pa.string(), [("'1 year 2 days 03:04:05.6'", "P1Y2DT3H4M5.6S", None)]),
    (
        "uuid",
        pa.string(),
        [("'550E8400E29B41D4A716446655440000'", f"550e8400-{'e29b-'}41d4-a716-446655440000", None)],
    ),
    ("json", pa.string(), [("'{\"a\":  1}'", '{"a":  1}', '{"a":  1}')]),
    ("jsonb", pa.string(), [("'{\"a\":  1}'", '{"a": 1}', '{"a": 1}')]),
    (
        "int[]",
        pa.list_(pa.int32()),
        [
            ("'{1,NULL,3}'", "{1,NULL,3}", [1, None, 3]),
            ("'{}'", "{}", []),
            ("'[0:1]={7,8}'", "[0:1]={7,8}", [7, 8]),
        ],
    ),
    (
        "text[]",
        pa.list_(pa.string()),
        [
            (
                "array['a,b', null, 'NULL', E'q\"\\\\x', '', ' x ']",
                None,
                ["a,b", None, "NULL", 'q"\\x', "", " x "],
            ),
            ("'{é}'", "{é}", ["é"]),
        ],
    ),
    (
        "int[][]",
        pa.list_(pa.list_(pa.int32())),
        [("'{{1,2},{3,NULL}}'", None, [[1, 2], [3, None]])],
    ),
    ("bytea[]", pa.list_(pa.binary()), [("array['\\x00ff'::bytea]", None, [b"\0\xff"])]),
    ("numeric(5,2)[]", pa.list_(pa.decimal128(5, 2)), [("'{1.5}'", "{1.50}", [Decimal("1.50")])]),
    ("bool[]", pa.list_(pa.bool_()), [("'{t,f,NULL}'", "{t,f,NULL}", [True, False, None])]),
    ("date[]", pa.list_(pa.date32()), [("'{2026-01-31}'", None, [dt.date(2026, 1, 31)])]),
    ("mood", pa.string(), [("'o k'", "o k", "o k")]),
    ("mood[]", pa.list_(pa.string()), [("'{sad,o k}'", '{sad,"o k"}', ["sad", "o k"])]),
    ("price", pa.decimal128(6, 2), [("1.5", "1.50", Decimal("1.50"))]),
    ("prices", pa.list_(pa.decimal128(6, 2)), [("'{1.5}'", "{1.50}", [Decimal("1.50")])]),
    ("point2", pa.string(), [("'(1,\"a b\")'", '(1,"a b")', '(1,"a b")')]),
    ("int4range", pa.string(), [("'[1,5]'", "[1,6)", "[1,6)")]),
    ("int4multirange", pa.string(), [("'{[1,3)}'", "{[1,3)}", "{[1,3)}")]),
    ("inet", pa.string(), [("'10.0.0.1/8'", "10.0.0.1/8", "10.0.0.1/8")]),
    ("cidr", pa.string(), [("'10.0.0.0/8'", "10.0.0.0/8", "10.0.0.0/8")]),
    ("macaddr", pa.string(), [("'08:00:2b:01:02:03'", "08:00:2b:01:02:03", None)]),
    ("bit(3)", pa.string(), [("B'101'", "101", "101")]),
    ("varbit", pa.string(), [("B'10'", "10", "10")]),
    ("xml", pa.string(), [("'<a/>'", "<a/>", "<a/>")]),
    ("tsvector", pa.string(), [("'a b'", "'a' 'b'", "'a' 'b'")]),
    ("money", pa.string(), [("12.5", "$12.50", "$12.50")]),
    ("hstore", pa.string(), [("'a=>1'", '"a"=>"1"', '"a"=>"1"')]),
    ("point", pa.string(), [("'(1,2)'", "(1,2)", "(1,2)")]),
    ("box[]", pa.string(), [("'{(1,1),(0,0)}'", "{(1,1),(0,0)}", "{(1,1),(0,0)}")]),
    ("int2vector", pa.string(), [("'1 2'", "1 2", "1 2")]),
    ("pg_lsn", pa.string(), [("'16/B374D848'", "16/B374D848", "16/B374D848")]),
]


def plain(array):
    """Returns values as Python's; a time outside their range as its number, and no NaN."""
    if pa.types.is_temporal(array.type):
        width = pa.int32() if array.type == pa.date32() else pa.int64()
        return array.view(width).to_pylist()
    return ["NaN" if v != v else v for v in array.to_pylist()]


def number(value, kind):
    """Returns what `plain` makes of a value."""
    if value is None or isinstance(value, int) or not pa.types.is_temporal(kind):
        return "NaN" if value != value else value
    return plain(pa.array([value], kind))[0]


def columns_of(connection, table):
    with connection.cursor() as cursor:
        cursor.execute(
            "select attname, attnum, atttypid::bigint, atttypmod, attnotnull, attnotnull,"
            " attndims from pg_attribute where attrelid = %s::regclass and attnum > 0 and not"
            " attisdropped order by attnum",
            (table,),
        )
        return [Column(*row) for row in cursor.fetchall()]


@pytest.fixture
def connection(postgres):
    """A connection with the capture's settings."""
    import psycopg2

    made = psycopg2.connect(postgres.dsn, options=pg.session_options())
    made.autocommit = True
    yield made
    made.close()


def streamed(postgres, plan, table, statements):
    """Returns what statements do to a table, by the stream."""
    import psycopg2
    from psycopg2.extras import LogicalReplicationConnection

    postgres.sql(
        f"create publication p for table {table}",
        "select pg_create_logical_replication_slot('types' || current_database(), 'pgoutput')",
        *statements,
    )
    stream = psycopg2.connect(
        postgres.dsn,
        connection_factory=LogicalReplicationConnection,
        options=pg.session_options(),
    )
    try:
        cursor = stream.cursor()
        options = {**OPTIONS, "publication_names": "p"}
        slot = f"types{postgres.name}"
        cursor.start_replication(slot_name=slot, options=options, decode=False)
        messages, end = [], time.monotonic() + 30
        while sum(m[:1] == b"C" for m in messages) < len(statements):
            assert time.monotonic() < end
            if (message := cursor.read_message()) is not None:
                messages.append(message.payload)
    finally:
        stream.close()
    return Decoder(lambda found, _: (found.name, plan)).decode(messages)


def has_xml(postgres):
    """Some servers are built without it."""
    ((flags,),) = postgres.query("select setting from pg_config where name = 'CONFIGURE'")
    return "with-libxml" in flags


@pytest.mark.nightly
def test_each_type_by_both_ways(postgres, connection, tmp_path):
    """What COPY loads and what the stream sends are equal, value by value, and a log
    accepts them.
    """
    postgres.sql(*filter(str.strip, MADE.split(";")))
    cases = [case for case in CASES if case[0] != "xml" or has_xml(postgres)]
    names = [f"c{i}" for i in range(len(cases))]
    declared = ", ".join(f"{n} {case[0]}" for n, case in zip(names, cases, strict=True))
    postgres.sql(f"create table public.t (id int primary key, {declared})")
    rows = max(len(values) for _, _, values in cases)
    inserts = []
    for i in range(rows):
        given = [values[i][0] if i < len(values) else "null" for _, _, values in cases]
        inserts.append(f"insert into public.t values ({i}, {', '.join(given)})")
    plan = pg.plan_of(connection, columns_of(connection, "public.t"), what="public.t")
    (changes,) = streamed(postgres, plan, "public.t", inserts).steps
    loaded = []
    assert load(connection, "select * from public.t order by id", plan, loaded.append) == rows
    texts = ", ".join(f"{name}::text" for name in names)
    with connection.cursor() as cursor:
        cursor.execute(f"select {texts} from public.t order by id")
        printed = list(zip(*cursor.fetchall(), strict=True))
    for column, (case, kind, values), name in zip(printed, cases, names, strict=True):
        assert plan.schema.field(name).type == kind, case
        own = (changes.rows.column(name), loaded[0].column(name))
        assert plain(own[0]) == plain(own[1]), case
        for i, (_, text, kept) in enumerate(values):
            if not case.startswith('"char"') and case not in ("bool", "char(5)"):
                assert text is None or column[i] == text, case  # A cast to text prints as COPY.
            wanted = number(text if kept is None else kept, kind)
            if wanted is not None:
                assert plain(own[0])[i] == wanted, case
    value = pa.field("value", pa.struct(list(plan.schema)[1:]))
    schema = pa.schema([plan.schema.field("id").with_name("key"), value])
    config = {"cleanup.policy": "compact", "table.key.columns": "id"}
    log = Log.create(str(tmp_path / "log"), schema=schema, config=config)
    log.append(pa.Table.from_batches([changes.rows]))
    kept = log.table().to_arrow().sort_by("id").combine_chunks()
    for name in plan.schema.names:
        column = kept.column(name).combine_chunks()
        assert plain(column.cast(plan.schema.field(name).type)) == plain(changes.rows[name]), name


@pytest.mark.nightly
def test_row_security_hides_no_rows(postgres, connection):
    """A user who would be shown only some of the rows is refused; limits of its role do
    not apply.
    """
    import psycopg2

    postgres.sql(
        "create table t (id int primary key)",
        "insert into t values (1), (2)",
        "alter table t enable row level security",
        "create policy p on t using (id = 1)",
        f"create role reader_{postgres.name} login",
        f"grant select on t to reader_{postgres.name}",
        f"alter role reader_{postgres.name} set statement_timeout = 1",
    )
    plan = pg.plan_of(connection, columns_of(connection, "public.t"), what="public.t")
    dsn = postgres.dsn.replace("postgres@", f"reader_{postgres.name}@")
    reader = psycopg2.connect(dsn, options=pg.session_options())
    try:
        with pytest.raises(psycopg2.errors.InsufficientPrivilege, match="row-level security"):
            load(reader, "select * from public.t", plan, lambda batch: None)
    finally:
        reader.close()
    assert load(connection, "select * from public.t", plan, lambda batch: None) == 2
    postgres.sql(f"drop owned by reader_{postgres.name}", f"drop role reader_{postgres.name}")


NUMERIC = (9 << 16 | 2) + 4
BUILTIN = {
    16: "bool",
    17: "bytea",
    20: "int8",
    23: "int4",
    25: "text",
    701: "float8",
    1082: "date",
    1184: "timestamptz",
    1700: "numeric",
}


def types():
    """Returns some of pg_type, and an array of each, whose number is 10,000 higher."""
    found = {}
    for oid, name in BUILTIN.items():
        found[oid] = pg.Type(oid, name, True, "b", 0, -1, 0, 0, ",", False)
        found[10_000 + oid] = pg.Type(10_000 + oid, f"_{name}", True, "b", 0, -1, 0, oid, ",", True)
    found[20_000] = pg.Type(20_000, "m", False, "d", 1700, NUMERIC, 0, 0, ",", False)
    return found


def plan_for(*oids, text=(), key=0, ndims=0, typmod=NUMERIC):
    columns = [
        Column(f"c{i}", i + 1, oid, typmod if oid % 10_000 == 1700 else -1, False, i < key, ndims)
        for i, oid in enumerate(oids)
    ]
    return pg.plan_from(types(), columns, what="public.t", text=text)


def by_stream(plan, texts):
    return plan.column(0, pa.array(texts, pa.string()))


def by_load(plan, texts):
    """Returns the values of a column by COPY, as the server writes it."""
    found = []
    with io.BufferedWriter(_Rows(plan, found.append), 1 << 20) as writer:
        for text in texts:
            line = "" if text is None else '"' + text.replace('"', '""') + '"'
            writer.write(f"{line}\n".encode())
    return found[0].column(0)


RECORDED = {
    16: [("t", True), ("f", False)],
    17: [("\\x00ff", b"\0\xff"), ("\\x", b"")],
    20: [("-9223372036854775808", -(2**63)), ("0", 0)],
    25: [("", ""), ('é"\n,', 'é"\n,')],
    701: [("0.30000000000000004", 0.1 + 0.2), ("-Infinity", -math.inf), ("NaN", math.nan)],
    1082: [case[1:] for case in CASES[[c[0] for c in CASES].index("date")][2]],
    1184: [case[1:] for case in CASES[[c[0] for c in CASES].index("timestamptz")][2]],
    1700: [("-1.50", Decimal("-1.50"))],
    20_000: [("1.50", Decimal("1.50"))],
    10_025: [
        ('{"a,b",NULL,"NULL","q\\"\\\\x",""," x "}', ["a,b", None, "NULL", 'q"\\x', "", " x "])
    ],
    10_023: [("{1,NULL}", [1, None]), ("{}", []), ("[0:1]={7,8}", [7, 8])],
    11_184: [("{infinity}", None)],
}


@pytest.mark.parametrize("way", [by_stream, by_load])
@pytest.mark.parametrize("oid", RECORDED)
def test_recorded_texts(way, oid):
    """Texts of a server are the same values by both ways; null is null, not an empty text."""
    plan = plan_for(oid)
    kind = plan.schema.field(0).type
    recorded = [(text, number(kept, kind)) for text, kept in RECORDED[oid]]
    found = way(plan, [*(text for text, _ in recorded), None])
    assert found.type == kind
    found.validate(full=True)
    if oid != 11_184:
        assert plain(found) == [*(kept for _, kept in recorded), None]
    else:
        assert found.flatten().view(pa.int64()).to_pylist() == [MOST]


@pytest.mark.parametrize("way", [by_stream, by_load])
@pytest.mark.parametrize("oid", types())
def test_columns_without_a_value(way, oid):
    """A column may have only nulls, or, by the stream, no row."""
    plan = plan_for(oid)
    assert way(plan, [None, None]).to_pylist() == [None, None]
    assert len(plan.column(0, pa.nulls(0, pa.string()))) == 0
    assert plan.column(0, pa.nulls(2, pa.string())).null_count == 2


@pytest.mark.parametrize("way", [by_stream, by_load])
@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (1700, "NaN"),
        (1184, "294276-01-01 00:00:00+00"),
        (10_023, "{{1},{2}}"),
        (10_023, "1,2"),
        (10_025, '{"a'),
        (10_025, "{" * 60),
        (17, "abc"),
        (17, "\\xg0"),
        (23, "q"),
        (16, "q"),
    ],
)
def test_what_does_not_fit_is_refused(way, oid, text):
    """A value that does not fit its form stops with an error that names the column and the remedy,
    but not the value.
    """
    with pytest.raises(SourceError, match=r"^public\.t\.c0 holds .*--mask public\.t\.c0=text") as e:
        way(plan_for(oid), [None, text])
    assert text not in str(e.value)
    assert way(plan_for(oid, text={"c0"}), [None, text]).to_pylist() == [None, text]


def test_text_that_is_not_utf_8_is_refused():
    """A database in SQL_ASCII may hold any bytes; a string of a log may not."""
    odd = pa.array([b"\xff"]).view(pa.string())
    with pytest.raises(SourceError, match="is not UTF-8"):
        plan_for(25).column(0, odd)
    with pytest.raises(SourceError, match="is not UTF-8"):
        _Rows(plan_for(25), lambda batch: None).write(b"\xff\n")


def test_a_float_in_a_key_is_text():
    """A key has no floats or lists; their texts are exact."""
    plan = plan_for(701, 10_023, key=2)
    assert [f.type for f in plan.schema] == [pa.string(), pa.string()]
    assert "a key cannot be double" in plan.notes["c0"]


def test_declared_dimensions_are_levels():
    """An array that is declared with two dimensions is a list of lists."""
    plan = plan_for(10_023, ndims=2)
    assert by_load(plan, ["{{1,2},{3,NULL}}", "{}"]).to_pylist() == [[[1, 2], [3, None]], []]
    with pytest.raises(SourceError, match="without the 2 dimensions declared"):
        by_stream(plan, ["{1}"])


MOMENTS = st.from_regex(
    r"-?\d{1,8}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,7})?)?(\+00)?( BC)?", fullmatch=True
)
TEXTS = st.text() | st.text('0123456789{}",\\\\NULx.-+e[]=: ') | MOMENTS | st.just("NaN")


@given(st.sampled_from(sorted(types())), st.lists(st.none() | TEXTS, min_size=1), st.integers(0, 3))
def test_strange_texts_are_refused(oid, texts, ndims):
    """Whatever text represents a value, it becomes one of the type, or is refused with a clog
    error.
    """
    try:
        found = by_stream(plan_for(oid, ndims=ndims), texts)
    except SourceError:
        return
    found.validate(full=True)
    assert [v is None for v in texts] == [not v for v in found.is_valid().to_pylist()]


def printed(array):
    """An array as the server writes it."""
    parts = []
    for value in array:
        if isinstance(value, list):
            parts.append(printed(value))
        elif value is None:
            parts.append("NULL")
        elif value == "" or value.upper() == "NULL" or set(value) & set('{}",\\ \n\t'):
            parts.append('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"')
        else:
            parts.append(value)
    return "{" + ",".join(parts) + "}"


ELEMENTS = st.none() | st.text('aé"\\,{} \n', max_size=4) | st.sampled_from(["NULL", "null", ""])
ARRAYS = st.lists(ELEMENTS, max_size=4)
GRIDS = st.integers(1, 3).flatmap(
    lambda n: st.lists(st.lists(ELEMENTS, min_size=n, max_size=n), max_size=3)
)


@given(st.lists(st.none() | ARRAYS, min_size=1), st.lists(st.none() | GRIDS, min_size=1))
def test_arrays_are_read_as_they_are_written(arrays, grids):
    """Quotes, escapes, nulls, empty texts and empty arrays, in one dimension and in two."""
    for values, ndims in ((arrays, 1), (grids, 2)):
        texts = [None if one is None else printed(one) for one in values]
        for way in (by_stream, by_load):
            assert way(plan_for(10_025, ndims=ndims), texts).to_pylist() == values


def test_an_unknown_type_is_refused():
    """A type that the server does not list has no form."""
    with pytest.raises(InvalidInputError, match=r"public\.t\.c0 has a type with the oid 999"):
        plan_for(999)


def test_rows_stay_whole_and_batches_small():
    """Rows are gathered up to this many bytes, and a larger one is a batch by itself."""
    found = []
    rows = [f"{i},{'x' * size}\n" for i, size in enumerate([10, 20, 500, 0, 90, 90])]
    with io.BufferedWriter(_Rows(plan_for(23, 25), found.append), 100) as writer:
        for row in rows:
            writer.write(row.encode())
    assert [batch.num_rows for batch in found] == [2, 1, 2, 1]
    assert [i for batch in found for i in batch.column(0).to_pylist()] == list(range(6))
    assert found[2].column(1).to_pylist() == [None, "x" * 90]


def test_a_column_of_nulls_alone_has_rows():
    """A row of one null is an empty line."""
    found = []
    with io.BufferedWriter(_Rows(plan_for(25), found.append), 100) as writer:
        writer.write(b"\n")
        writer.write(b'""\n')
    assert found[0].column(0).to_pylist() == [None, ""]
