"""Plain DataFrames as a typed log's table, without Spark: how the log is created, what is written
and read, what is refused.
"""

import datetime as dt
import json
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from clog.connector import explain
from clog.connector.datasource import ClogDataSource
from clog.connector.schema import arrow_schema
from clog.connector.write import write_task
from clog.connector.write.write_task import TaskIds
from clog.storage import ClogError, InvalidInputError, NotFoundError, OptionError
from clog.storage.administration import delete_log
from clog.storage.log import Log
from clog.storage.store import open_store
from clog_testing.counting import CountingStore

PLACE = StructType([StructField("city", StringType()), StructField("zone", IntegerType())])
TRIP = StructType(
    [
        StructField("id", LongType()),
        StructField("minutes", IntegerType(), nullable=False),
        StructField("place", PLACE),
        StructField("timestamp", TimestampType()),
    ]
)
ROWS = [
    {"id": 1, "minutes": 31, "place": {"city": "Riga", "zone": 2}, "timestamp": None},
    {"id": 2, "minutes": 12, "place": None, "timestamp": None},
]


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "trips")


@pytest.fixture(autouse=True)
def task(monkeypatch):
    monkeypatch.setattr(write_task.TaskIds, "current", classmethod(lambda cls: TaskIds()))


def write(url, rows, schema=TRIP, **options):
    """What one Spark task does with rows."""
    writer = ClogDataSource({"path": url, **options}).writer(schema, overwrite=False)
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema))
    message = pickle.loads(pickle.dumps(writer)).write(iter([batch]))
    writer.commit([pickle.loads(pickle.dumps(message))])


def begun(url, *tasks, schema=TRIP, **options):
    """A writer whose tasks have run, and their messages; those of failed tasks are None."""
    writer = ClogDataSource({"path": url, **options}).writer(schema, overwrite=False)
    messages = []
    for given in tasks:
        batch = pa.RecordBatch.from_pylist(given, schema=arrow_schema(schema))
        try:
            messages.append(pickle.loads(pickle.dumps(writer)).write(iter([batch])))
        except InvalidInputError:
            messages.append(None)
    return pickle.loads(pickle.dumps(writer)), messages


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def rows(url, schema=None, **options):
    source = ClogDataSource({"path": url, "view": "table", **options})
    schema = schema or source.schema()
    reader = source.reader(schema)
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    reader = pickle.loads(pickle.dumps(reader))
    batches = [batch for p in partitions for batch in reader.read(p)]
    for batch in batches:
        assert batch.schema.equals(arrow_schema(schema))
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


def fields(*names, of=TRIP):
    return StructType([of[name] for name in names])


def declared(url):
    """A log whose schema, unlike any DataFrame's, says that ``minutes`` is NOT NULL; with ROWS."""
    types = {f.name: f for f in arrow_schema(TRIP)}
    schema = pa.schema([types.pop("id").with_name("key"), ("value", pa.struct(types.values()))])
    schema = schema.set(0, schema.field(0).with_nullable(False))
    Log.create(url, config={"table.key.columns": "id"}, schema=schema)
    write(url, ROWS)


def by_id(found):
    return sorted(found, key=lambda row: row["id"])


def test_the_same_columns_come_back(url):
    """A key of one column is that column, NOT NULL; the others are the value's fields, which may be
    null. Names of a record's columns have no special meaning among rows.
    """
    write(url, ROWS, keyColumns="id")
    log = Log.open(url)
    assert log.schema.field("key") == pa.field("key", pa.int64(), nullable=False)
    assert log.table().get(1)["place"] == {"city": "Riga", "zone": 2}
    schema = ClogDataSource({"path": url, "view": "table"}).schema()
    others = [StructField(f.name, f.dataType) for f in TRIP.fields[1:]]
    assert schema == StructType([StructField("id", LongType(), nullable=False), *others])
    assert by_id(rows(url)) == ROWS
    write(url, [ROWS[0] | {"minutes": 32}])
    assert by_id(rows(url))[0]["minutes"] == 32


def test_what_spark_says_of_literals_makes_no_column_not_null(url):
    """For ``VALUES`` it says that nothing is null, at any depth; rows with nulls follow."""
    inner = StructType([StructField("n", LongType(), nullable=False)])
    kinds = {
        "n": LongType(),
        "one": inner,
        "many": ArrayType(inner, containsNull=False),
        "named": MapType(StringType(), inner, valueContainsNull=False),
    }
    literals = StructType(
        [StructField("id", LongType())]
        + [StructField(name, kind, nullable=False) for name, kind in kinds.items()]
    )
    one = {"n": 1}
    first = {"id": 1, "n": 1, "one": one, "many": [one], "named": {"a": one}}
    write(url, [first], literals, keyColumns="id")
    write(url, [{"id": 2}], fields("id"))
    null = {"n": None}
    row = {"id": 3, "n": None, "one": null, "many": [null, None], "named": {"a": null, "b": None}}
    nullable = ClogDataSource({"path": url, "view": "table"}).schema()
    write(url, [row], nullable)
    assert by_id(rows(url))[1:] == [
        {"id": 2, "n": None, "one": None, "many": None, "named": None},
        row | {"named": [("a", null), ("b", None)]},
    ]


def test_several_key_columns_are_a_struct(url):
    """In the order of the option; they are the first in the table."""
    write(url, ROWS, keyColumns="minutes, id")
    assert Log.open(url).table().get((31, 1))["place"]["city"] == "Riga"
    assert ClogDataSource({"path": url, "view": "table"}).schema().names == [
        *("minutes", "id", "place", "timestamp")
    ]
    assert by_id(rows(url)) == ROWS


def test_a_first_write_that_fails_leaves_no_log(url, tmp_path):
    """Nor its objects: the next one may have other types. A task fails, or the new log's config
    refuses a record when all is committed.
    """
    writer, messages = begun(url, ROWS, [ROWS[0] | {"id": None}], keyColumns="id")
    assert files(tmp_path)
    writer.abort(messages)
    assert not files(tmp_path)
    small = {"keyColumns": "id", "config.max.message.bytes": "10"}
    writer, messages = begun(url, ROWS, **small)
    with pytest.raises(InvalidInputError, match=r"max\.message\.bytes=10"):
        writer.commit(messages)
    writer.abort(messages)
    with pytest.raises(NotFoundError):
        Log.open(url)
    other = StructType([StructField("id", StringType()), StructField("minutes", StringType())])
    write(url, [{"id": "a", "minutes": "1"}], other, keyColumns="id")
    assert rows(url) == [{"id": "a", "minutes": "1"}]


def test_a_first_write_without_rows_makes_the_log(url):
    """It has not failed."""
    write(url, [], keyColumns="id")
    assert rows(url) == []
    assert ClogDataSource({"path": url, "view": "table"}).schema().names == TRIP.names


def test_first_writes_at_once_make_one_log(url):
    """The second writer has its rows in the log that the first one made, if that has its types."""
    begun_first, begun_second = (begun(url, [row], keyColumns="id") for row in ROWS)
    narrow = [{"id": 3, "minutes": 1}]
    refused, of_refused = begun(url, narrow, schema=fields("id", "minutes"), keyColumns="id")
    for writer, messages in (begun_first, begun_second):
        writer.commit(messages)
    assert by_id(rows(url)) == ROWS
    with pytest.raises(InvalidInputError, match="created by another writer, with other types"):
        refused.commit(of_refused)
    assert Log.open(url).version == 2


def test_deleting_what_is_not_there_leaves_a_first_write_alone(url):
    """S47: its log may be about to be created."""
    writer, messages = begun(url, ROWS, keyColumns="id")
    with pytest.raises(NotFoundError):
        delete_log(open_store(url, {}))
    writer.commit(messages)
    assert by_id(rows(url)) == ROWS


@pytest.mark.parametrize(
    ("kind", "first", "other", "text"),
    [
        (DateType(), dt.date(2026, 1, 31), dt.date(1969, 12, 31), "1969-12-31"),
        (DecimalType(38, 2), Decimal("10.50"), Decimal("-0.01"), "-0.01"),
        (BooleanType(), True, False, "false"),
    ],
)
def test_keys_may_be_dates_decimals_and_truth_values(url, kind, first, other, text):
    """FORMAT.md §12.3, ``typed-keys``: written, replaced, looked up by text, deleted."""
    schema = StructType([StructField("k", kind), StructField("n", IntegerType())])
    given = [{"k": first, "n": 1}, {"k": other, "n": 2}]
    write(url, given, schema, keyColumns="k", partitions="3")
    write(url, [{"k": first, "n": 3}], schema)
    found = sorted(rows(url), key=lambda row: row["n"])
    assert found == [{"k": other, "n": 2}, {"k": first, "n": 3}]
    assert rows(url, keys=json.dumps([text])) == [{"k": other, "n": 2}]
    Log.open(url).append([{"key": other, "value": None}])
    assert rows(url) == [{"k": first, "n": 3}]
    with pytest.raises(OptionError, match='"keys" has a key that is not'):
        rows(url, keys='["x"]')


def test_a_log_made_elsewhere_is_a_table_once_its_key_columns_have_names(url):
    """By its config; the records stay unchanged for every other view."""
    value = pa.struct([("n", pa.int32())])
    log = Log.create(url, schema={"key": pa.string(), "value": value})
    log.append([{"key": "a", "value": {"n": 1}}, {"key": "b", "value": None}])
    assert rows(url, columns="key") == [{"key": "a"}]
    log.alter({"table.key.columns": "word"})
    assert rows(url) == [{"word": "a", "n": 1}]
    assert rows(url, columns="key,value.n,partition")[0]["value"] == {"n": 1}
    assert (
        "headers"
        in ClogDataSource({"path": url, "view": "table", "includeheaders": "true"}).schema().names
    )
    for view in ("log", "latest"):
        assert ClogDataSource({"path": url, "view": view}).schema().names[:2] == ["key", "value"]
        assert sorted(row["key"] for row in rows(url, view=view)) == ["a", "b"]


def test_only_what_is_named_is_read(url):
    """By the option columns, including nested fields, or a schema with fewer columns, whatever its
    case and order.
    """
    write(url, ROWS, keyColumns="id")
    assert by_id(rows(url, columns="ID,place.city"))[0] == {"id": 1, "place": {"city": "Riga"}}
    given = StructType([StructField("MINUTES", IntegerType()), StructField("Id", LongType())])
    assert sorted(row["MINUTES"] for row in rows(url, given)) == [12, 31]
    part = StructType([StructField("place", fields("zone", of=PLACE))])
    assert {"place": {"zone": 2}} in rows(url, part)
    assert explain(url, view="table", columns="id").size_bytes.read
    with pytest.raises(OptionError, match="columns"):
        rows(url, columns="place.street")


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (StructField("zz", LongType()), "zz does not exist; the table has id, minutes"),
        (StructField("id", StringType()), "id has type string .* but is bigint"),
        (StructField("place", PLACE, nullable=False), "place is NOT NULL in the given schema"),
        (StructField("key", StringType()), "key does not exist"),
    ],
)
def test_a_schema_that_is_not_the_tables_is_refused(url, field, message):
    write(url, ROWS, keyColumns="id")
    with pytest.raises(InvalidInputError, match=message):
        rows(
            url,
            StructType([StructField("minutes", IntegerType()), field])
            if field.name != "key"
            else StructType([field, StructField("zz", LongType())]),
        )


@pytest.mark.parametrize(
    ("name", "kind", "given", "message"),
    [
        ("minutes", StringType(), "x", "minutes has type string; the log's schema says int32"),
        ("zz", IntegerType(), 1, "zz is not in the log's schema; it has id, minutes"),
        ("minutes", LongType(), 2**40, "record 0 has a value.minutes that does not fit int32"),
        ("minutes", IntegerType(), None, "record 0 has no value.minutes, which is NOT NULL"),
        ("id", LongType(), None, "record 0 has no key, which is NOT NULL"),
        ("id", DoubleType(), 1.5, "record 0 has a key that does not fit int64"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_before_anything_is_committed(
    url, name, kind, given, message
):
    """S62: types when the write is planned, values in the task."""
    declared(url)
    schema = {f.name: f for f in TRIP} | {name: StructField(name, kind)}
    with pytest.raises(InvalidInputError, match=message):
        write(url, [ROWS[0] | {name: given}], StructType(list(schema.values())))
    assert Log.open(url).version == 1


def test_columns_that_may_be_null_may_be_missing(url):
    """Not those of the key, nor NOT NULL ones."""
    declared(url)
    write(
        url,
        [{"MINUTES": 1, "Id": 3}],
        StructType([StructField("MINUTES", IntegerType()), StructField("Id", LongType())]),
    )
    assert {"id": 3, "minutes": 1, "place": None, "timestamp": None} in rows(url)
    for missing in ("id", "minutes"):
        left = fields(*(name for name in TRIP.names if name != missing))
        with pytest.raises(InvalidInputError, match=f"column {missing} is missing, which is NOT"):
            write(url, [], left)


def test_a_table_may_consist_of_keys_alone_from_then_on(url):
    """If nothing else is NOT NULL: the value is there, and its fields are null."""
    write(url, [{"id": 1, "place": None}], fields("id", "place"), keyColumns="id")
    write(url, [{"id": 2}], fields("id"))
    assert by_id(rows(url)) == [{"id": 1, "place": None}, {"id": 2, "place": None}]


def test_records_are_written_as_ever(url):
    """A tombstone is such a row: rows have no null values. A table may have columns named as
    records'.
    """
    pair = StructType([StructField("key", StringType()), StructField("value", LongType())])
    write(url, [{"key": "a", "value": 1}, {"key": "b", "value": None}], pair, keyColumns="key")
    assert {(r["key"], r["value"]) for r in rows(url)} == {("a", 1), ("b", None)}
    record = StructType([pair["key"], StructField("value", StructType([pair["value"]]))])
    write(url, [{"key": "a", "value": None}, {"key": "c", "value": {"value": 3}}], record)
    assert {(r["key"], r["value"]) for r in rows(url)} == {("b", None), ("c", 3)}


@pytest.mark.parametrize(
    ("schema", "columns", "message"),
    [
        (TRIP, "id,zz", "there is no column 'zz'; the columns are id"),
        (fields("id"), "id", "needs columns for its key and at least one"),
        (
            StructType([*TRIP.fields, StructField("ID", LongType())]),
            "minutes",
            "'id' and 'ID'.*names must differ, ignoring case",
        ),
        (
            StructType([TRIP["minutes"], StructField("d", DoubleType())]),
            "d",
            "key has type float64",
        ),
    ],
)
def test_what_makes_no_table_is_refused(url, schema, columns, message):
    with pytest.raises(ClogError, match=message):
        write(url, [], schema, keyColumns=columns)


def test_other_key_columns_than_the_logs_are_refused(url, tmp_path):
    """The same as the option for a log that has none; its own may be given again, whatever their
    case.
    """
    write(url, ROWS, keyColumns="id")
    write(url, ROWS, keyColumns="ID")
    with pytest.raises(OptionError, match=r"minutes, but .* has the key columns id"):
        write(url, ROWS, keyColumns="minutes")
    plain = str(tmp_path / "bytes")
    Log.create(plain)
    with pytest.raises(OptionError, match="is of bytes; leave the option out"):
        write(plain, ROWS, keyColumns="id")
    records = str(tmp_path / "records")
    Log.create(records, schema={"key": pa.string(), "value": pa.struct([("n", pa.int8())])})
    with pytest.raises(OptionError, match="names none"):
        write(records, ROWS, keyColumns="id")


def test_a_column_that_was_added_meanwhile_is_taken(url):
    """Though the log was opened here before: before a refusal the newest schema is looked up."""
    write(url, ROWS, keyColumns="id")
    Log.open(url).evolve(add={"value.note": pa.string()})
    noted = StructType([TRIP["id"], TRIP["minutes"], StructField("note", StringType())])
    write(url, [{"id": 5, "minutes": 1, "note": "x"}], noted)
    assert [row["note"] for row in rows(url) if row["id"] == 5] == ["x"]


@pytest.mark.parametrize("typed", [False, True])
def test_a_read_opens_the_log_once_for_its_schema_and_once_for_its_plan(url, monkeypatch, typed):
    """Spark asks for these in two processes. The reader checks columns with what it plans with."""
    if typed:
        write(url, ROWS, keyColumns="id")
    else:
        Log.create(url).append([{"key": "a", "value": "b"}])
    store = CountingStore(open_store(url, {}))
    monkeypatch.setattr("clog.connector.options.Location.store", lambda self: store)
    source = ClogDataSource({"path": url, "view": "table"})
    with store.count() as of_schema:
        schema = source.schema()
    with store.count() as of_plan:
        source.reader(schema).partitions()
    assert of_schema == {"get": 4}
    assert of_plan == {"get": 4 + 2 + typed}
