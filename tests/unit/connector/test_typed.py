"""Typed logs through the connector, without Spark: schemas, pruning, checks of what is written."""

import datetime as dt
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DecimalType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from clog.connector import explain
from clog.connector.datasource import ClogDataSource
from clog.connector.schema import arrow_schema, arrow_type, spark_type
from clog.connector.write import write_task
from clog.connector.write.write_task import TaskIds
from clog.storage import InvalidInputError, OptionError
from clog.storage.log import Log
from clog.storage.read.scan import read_pieces

SCHEMA = {
    "key": pa.struct([("id", pa.int64())]),
    "value": pa.struct(
        [
            pa.field("n", pa.int32(), nullable=False),
            ("price", pa.decimal128(6, 2)),
            ("place", pa.struct([("city", pa.string()), ("zone", pa.uint8())])),
            ("tags", pa.list_(pa.struct([("t", pa.string()), ("w", pa.float32())]))),
            ("seen", pa.timestamp("ns", "UTC")),
        ]
    ),
}
ROWS = [
    {
        "key": {"id": 1},
        "value": {
            "n": 1,
            "price": Decimal("1.50"),
            "place": {"city": "Riga", "zone": 200},
            "tags": [{"t": "x", "w": 0.5}],
            "seen": dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        },
    },
    {"key": {"id": 2}, "value": {"n": 2}},
    {"key": {"id": 2}, "value": None},
]


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "trips")


@pytest.fixture
def log(url):
    log = Log.create(url, partitions=1, schema=SCHEMA)
    log.append(ROWS)
    return log


def rows(url, schema=None, **options):
    source = ClogDataSource({"path": url, **options})
    reader = source.reader(schema or source.schema())
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    reader = pickle.loads(pickle.dumps(reader))
    return [r for p in partitions for batch in reader.read(p) for r in batch.to_pylist()]


def value_with(*field):
    return StructField("value", StructType([StructField(*field)]))


def test_the_schema_is_that_of_the_log(url, log):
    """Spark's types of key and value; the other columns as usual."""
    schema = ClogDataSource({"path": url}).schema()
    assert schema.names[:4] == ["key", "value", "topic", "partition"]
    assert schema["value"].dataType.simpleString() == (
        "struct<n:int,price:decimal(6,2),place:struct<city:string,zone:smallint>,"
        "tags:array<struct<t:string,w:float>>,seen:timestamp>"
    )
    assert not schema["value"].dataType["n"].nullable


def test_values_are_native_columns(url, log):
    """A tombstone is null, as usual (S4)."""
    first, second, last = rows(url)
    assert first["value"] == ROWS[0]["value"]
    assert second["value"] == dict.fromkeys(first["value"]) | {"n": 2}
    assert (last["key"], last["value"], last["offset"]) == ({"id": 2}, None, 2)
    (latest,) = rows(url, view="table")
    assert latest["value"]["place"] == {"city": "Riga", "zone": 200}


def test_batches_have_exactly_the_schema(url, log):
    """Spark compares them, nullability included."""
    source = ClogDataSource({"path": url, "columns": "value.n,key,value.tags"})
    schema = source.schema()
    reader = source.reader(schema)
    for part in reader.partitions():
        for batch in reader.read(part):
            assert batch.schema.equals(arrow_schema(schema))
            batch.validate(full=True)


@pytest.mark.parametrize("view", ["log", "table"])
def test_only_the_fields_that_are_named_are_read(url, log, view, monkeypatch):
    """By the option columns, and by a schema that has fewer fields, in lists too."""
    asked = []

    def seen(store, pieces, *, columns, **more):
        asked.append(set(columns))
        return read_pieces(store, pieces, columns=columns, **more)

    monkeypatch.setattr("clog.connector.read.task_read.read_pieces", seen)
    monkeypatch.setattr("clog.storage.read.table.read_pieces", seen)
    found = rows(url, view=view, columns="VALUE.place.city,value.n")
    assert found[0] == {"value": {"place": {"city": "Riga"}, "n": 1}}
    tag = StructType([StructField("w", FloatType())])
    given = StructType([value_with("tags", ArrayType(tag)), StructField("offset", LongType())])
    assert rows(url, given, view=view)[0] == {"value": {"tags": [{"w": 0.5}]}, "offset": 0}
    read = set().union(*asked)
    assert "value" not in read
    assert not any(path.startswith(("value.price", "value.seen")) for path in read)
    assert {path for path in read if "tags" in path} == {"value.tags.element.w"}


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (StructField("value", IntegerType()), "column value has type int .* but is struct"),
        (value_with("zz", LongType()), "value.zz does not exist"),
        (value_with("n", LongType()), "value.n has type bigint"),
        (value_with("price", DecimalType(6, 2), False), "value.price is NOT NULL"),
        (StructField("key", BinaryType()), "column key has type binary .* but is struct"),
    ],
)
def test_a_schema_that_is_not_the_logs_is_refused(url, log, field, message):
    with pytest.raises(InvalidInputError, match=message):
        rows(url, StructType([field]))


def test_columns_that_are_none_are_refused(url, log):
    for columns in ("value.zz", "key.n", "offset.x"):
        with pytest.raises(OptionError, match=r"columns"):
            ClogDataSource({"path": url, "columns": columns}).schema()


@pytest.mark.parametrize("named", [{}, {"table.key.columns": "id"}], ids=["records", "table"])
def test_a_type_that_spark_has_not_is_left_out(url, named):
    """By the option columns, or a schema without it: the others are read."""
    value = pa.struct([("t", pa.time64("us")), ("n", pa.int8())])
    log = Log.create(url, 1, named, schema={"key": pa.string(), "value": value})
    log.append([{"key": "a", "value": {"t": dt.time(1), "n": 5}}])
    view, path = ("table", "n") if named else ("log", "value.n")
    source = ClogDataSource({"path": url, "view": view, "columns": path})
    reader = source.reader(source.schema())
    (batch,) = [b for part in reader.partitions() for b in reader.read(part)]
    assert batch.to_pylist() == [{"n": 5} if named else {"value": {"n": 5}}]
    asked = StructType([StructField("t", StringType()), StructField("n", StringType())])
    wrong = asked if named else StructType([StructField("value", asked)])
    with pytest.raises(InvalidInputError, match="t has a type that Spark does not have; leave it"):
        ClogDataSource({"path": url, "view": view}).reader(wrong)
    with pytest.raises(
        InvalidInputError, match=r"value.t has type .* leave it out with the option"
    ):
        ClogDataSource({"path": url}).schema()
    assert ClogDataSource({"path": url, "columns": "value.n"}).schema().names == ["value"]


def test_a_stream_reads_them(url, log):
    """Its schema is checked when the log is opened."""
    source = ClogDataSource({"path": url, "startingoffsets": "earliest", "columns": "value.n"})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    batches = [b for p in reader.partitions(start, end) for b in reader.read(p)]
    assert [r["value"] for b in batches for r in b.to_pylist()] == [{"n": 1}, {"n": 2}, None]
    plain = ClogDataSource({"path": url}).streamReader(
        StructType([StructField("key", BinaryType())])
    )
    with pytest.raises(InvalidInputError, match="but is struct"):
        plain.prepareForTriggerAvailableNow()


def test_keys_are_those_of_the_logs_type(url, log, tmp_path):
    """Each text represents a key, in every view and stream; one that represents none is refused
    instead of not being found.
    """
    one = '["{\\"id\\": 1}"]'
    assert [row["key"] for row in rows(url, keys=one)] == [{"id": 1}]
    assert [row["value"]["n"] for row in rows(url, view="table", keys=one, columns="value.n")] == [
        1
    ]
    source = ClogDataSource({"path": url, "startingoffsets": "earliest", "keys": one})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    found = [b for p in reader.partitions(start, end) for b in reader.read(p)]
    assert [row["key"]["id"] for batch in found for row in batch.to_pylist()] == [1]
    assert explain(url, keys=one).objects.read == 1
    for wrong in ('["1"]', '["x"]', '["{\\"zz\\": 1}"]'):
        with pytest.raises(OptionError, match="has a key that is not a struct"):
            rows(url, keys=wrong)
    numbers = str(tmp_path / "numbers")
    Log.create(numbers, schema={"key": pa.int64(), "value": pa.int8()}).append(
        [{"key": n, "value": n} for n in range(9)]
    )
    assert sorted(row["key"] for row in rows(numbers, keys='["7", "2"]')) == [2, 7]


def test_explain_knows_fields(url, log):
    found = explain(url, columns="value.n,key")
    assert found.version == 1
    assert str(found)


def written(url, table, schema=None, monkeypatch=None):
    """Appends an Arrow table as one Spark task does."""
    fields = [StructField(f.name, spark_type(f.type, f.name)) for f in table.schema]
    writer = ClogDataSource({"path": url}).writer(StructType(fields), overwrite=False)
    monkeypatch.setattr(write_task.TaskIds, "current", classmethod(lambda cls: TaskIds()))
    message = pickle.loads(pickle.dumps(writer)).write(iter(table.to_batches()))
    writer.commit([pickle.loads(pickle.dumps(message))])


def test_what_fits_is_written(url, log, monkeypatch):
    """Types that hold the same values, fields in another order, others missing."""
    value = pa.struct([("price", pa.decimal128(4, 1)), ("n", pa.int64())])
    table = pa.table(
        {
            "value": pa.array([{"price": Decimal("2.5"), "n": 7}, None], value),
            "key": pa.array([{"id": 3}, {"id": 1}], pa.struct([("id", pa.int32())])),
        }
    )
    written(url, table, monkeypatch=monkeypatch)
    assert log.table().get((3,))["price"] == Decimal("2.50")
    assert log.table().get((1,)) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (pa.array(["x"]), "value has type string; the log's schema says struct"),
        (pa.array([{"n": 1, "zz": 1}]), "value.zz is not in the log's schema"),
        (pa.array([{"place": {"city": "x"}}]), "value.n is missing"),
        (pa.array([{"n": 1, "price": 1.5}]), "value.price has type double"),
        (pa.array([{"n": 1}, {"n": None}]), "record 1 has no value.n, which is NOT NULL"),
        (pa.array([{"n": 2**40}]), "record 0 has a value.n that does not fit int32"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_committed(
    url, log, value, message, monkeypatch
):
    """S62: types when the write is planned, values in the task."""
    keys = pa.array([{"id": i} for i in range(len(value))])
    with pytest.raises(InvalidInputError, match=message):
        written(url, pa.table({"key": keys, "value": value}), monkeypatch=monkeypatch)
    assert log.version == 1


def test_a_struct_for_a_log_of_bytes_is_still_refused(url, monkeypatch):
    """With what to do instead."""
    Log.create(url)
    table = pa.table({"key": pa.array(["a"]), "value": pa.array([{"n": 1}])})
    with pytest.raises(InvalidInputError, match="to_json"):
        written(url, table, monkeypatch=monkeypatch)


@pytest.mark.parametrize(
    "kind",
    [f.type for f in pa.struct([*SCHEMA["value"], ("m", pa.map_(pa.string(), pa.int64()))])],
    ids=str,
)
def test_sparks_types_have_arrows(kind):
    """The one that Spark makes from the other."""
    spark = spark_type(kind, "x")
    assert spark_type(arrow_type(spark), "x") == spark


def test_strings_are_strings():
    assert spark_type(pa.string(), "x") == StringType()
