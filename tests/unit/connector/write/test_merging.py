"""The option mergeSchema of a write: a log gets the columns of a DataFrame (S61)."""

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from clog.connector.datasource import ClogDataSource
from clog.connector.write.write_task import TaskIds, write_task
from clog.storage import InvalidInputError, Log

ROWS = [{"id": 1, "n": 2, "x": 0.5, "s": {"a": 1}, "l": [{"q": 1}]}]
TYPES = pa.schema(
    [
        *(("id", pa.int64()), ("n", pa.int32()), ("x", pa.float32())),
        *(("s", pa.struct([("a", pa.int64())])), ("l", pa.list_(pa.struct([("q", pa.int8())])))),
    ]
)
WIDER = StructType(
    [
        StructField("ID", IntegerType()),
        StructField("n", LongType()),
        StructField("x", DoubleType()),
        StructField("s", StructType([StructField("b", StringType())])),
        StructField("l", ArrayType(StructType([StructField("r", LongType(), nullable=False)]))),
        StructField("note", StructType([StructField("at", LongType())]), nullable=False),
    ]
)
ROW = {"ID": 2, "n": 1 << 40, "x": 0.1, "s": {"b": "t"}, "l": [{"r": 1}], "note": {"at": 7}}


def written(url, schema, row, **options):
    source = ClogDataSource({"path": url, **options})
    writer = source.writer(schema, overwrite=False)
    batch = pa.RecordBatch.from_pylist([row])
    writer.commit([write_task(writer._plan, iter([batch]), TaskIds("query", 0))])


@pytest.fixture
def log(tmp_path):
    log = Log.create(str(tmp_path / "log"), 1, key="id", like=TYPES)
    log.append(ROWS)
    return log


def test_columns_that_a_log_lacks_are_added_and_numbers_widened(log):
    """In one commit before the rows'; narrower ones, here the key, stay; twice changes nothing."""
    written(log.url, WIDER, ROW, mergeSchema="true")
    assert log.version == 3
    shown = {row["id"]: row for row in log.table().to_pylist()}
    assert shown[2] == {
        "id": 2,
        "n": 1 << 40,
        "x": 0.1,
        "s": {"a": None, "b": "t"},
        "l": [{"q": None, "r": 1}],
        "note": {"at": 7},
    }
    assert shown[1] == {
        **ROWS[0],
        "s": {"a": 1, "b": None},
        "l": [{"q": 1, "r": None}],
        "note": None,
    }
    assert log.schema.field("key").type == pa.int64()
    written(log.url, WIDER, ROW, mergeSchema="true")
    assert log.version == 4


def test_without_it_the_refusal_names_it(log):
    """Nothing is changed or written."""
    with pytest.raises(InvalidInputError, match=r"note is not in .*; mergeSchema=true adds it"):
        written(log.url, WIDER, ROW)
    assert log.version == 1


def test_what_would_be_another_kind_is_refused_with_it(log):
    """A column of text for numbers: the log stays as it is."""
    schema = StructType([StructField("id", LongType()), StructField("n", StringType())])
    with pytest.raises(InvalidInputError, match="n has type string"):
        written(log.url, schema, {"id": 1, "n": "a"}, mergeSchema="true")
    assert log.version == 1


def test_a_dropped_name_comes_back_empty(log):
    """A sink that still has the column gives the log a new one: it shows no old values."""
    log.evolve(drop=["n"])
    schema = StructType([StructField("id", LongType()), StructField("n", LongType())])
    written(log.url, schema, {"id": 5, "n": 6}, mergeSchema="true")
    assert {row["id"]: row["n"] for row in log.table().to_pylist()} == {1: None, 5: 6}
