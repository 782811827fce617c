"""What a stream refuses, at each place where Spark may ask first: a restart calls other methods
than a first start, and one that finds a batch of which Spark noted no commit others again.
"""

import inspect
import pickle
from traceback import format_exception

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StringType, StructField, StructType

from clog.connector.datasource import ClogDataSource
from clog.connector.options import DEFINITIONS
from clog.storage.errors import ClogError, InvalidInputError, OptionError
from clog.storage.log import Log

SCHEMA = StructType([StructField("key", LongType()), StructField("value", StringType())])
OF_BATCHES = {
    "asOfVersion": "1",
    "asOfTimestamp": "1",
    "asOfCut": "home#cut",
    "endingOffsets": "latest",
    "endingTimestamp": "1",
    "endingOffsetsByTimestamp": '{"0": 1}',
}


def test_each_option_of_batch_reads_is_tried_here():
    """A new one is refused by streams, too, or the list says so."""
    assert set(OF_BATCHES) == {o.name for o in DEFINITIONS if o.use == "batch"}


def column(kind, name="value"):
    return StructType([StructField(name, kind)])


REFUSED = [
    *[({name: value}, SCHEMA, "batch reads|view") for name, value in OF_BATCHES.items()],
    ({"view": "table"}, SCHEMA, "is for batch reads"),
    ({"view": "changes", "endingVersion": "3"}, SCHEMA, "a stream has no end"),
    ({"view": "changes", "failOnDataLoss": "false"}, SCHEMA, "without the rows before"),
    ({"isolation": "read_uncommitted", "view": "latest"}, SCHEMA, "only committed"),
    ({"sinceVersion": "1", "startingOffsets": "latest"}, SCHEMA, "only one of them"),
    ({"minOffsetsPerTrigger": "2", "maxOffsetsPerTrigger": "1"}, SCHEMA, "lower the first"),
    ({"pollInterval": "never"}, SCHEMA, "must be a time"),
    ({"subscribe": "orders"}, SCHEMA, "belongs to Spark's Kafka"),
    ({"endingOffset": "1"}, SCHEMA, "did you mean"),
    ({"topic": "payments"}, SCHEMA, "has one log"),
    ({"path": "/nothing/here"}, SCHEMA, "no log at /nothing/here"),
    ({"path": "nobody://here"}, SCHEMA, "nobody"),
    ({"partitions": "1,7"}, SCHEMA, r"names \[7\].* has partitions 0 to 1"),
    ({"logId": "f" * 32}, SCHEMA, "f" * 32),
    ({"keys": '["seven"]'}, SCHEMA, "not a int64"),
    ({}, column(StringType(), "price"), "price"),
    ({}, column(LongType()), "value"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A log, and the offsets of its stream's first two batches."""
    kinds = pa.schema([("key", pa.int64()), ("value", pa.string())])
    log = Log.create(str(tmp_path_factory.mktemp("logs") / "orders"), partitions=2, schema=kinds)
    log.append([{"key": 7, "value": "a"}], partition=0)
    reader = ClogDataSource({"path": log.url, "pollInterval": "0s"}).streamReader(SCHEMA)
    first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    log.append([{"key": 7, "value": "b"}], partition=1)
    return log.url, first, reader.latestOffset(first, ReadAllAvailable())


def start(found, url, first, second, options, schema, trigger=None):
    """Does what Spark does until the first tasks run, from a checkpoint with so many batches, or
    with a batch of which it noted no commit; returns how many tasks it has.
    """
    source = pickle.loads(pickle.dumps(ClogDataSource({"path": url, **options})))
    reader = source.streamReader(schema)
    try:
        assert inspect.signature(reader.latestOffset).parameters, "admission control"
        if trigger == "availableNow" and isinstance(reader, SupportsTriggerAvailableNow):
            reader.prepareForTriggerAvailableNow()
        if found == "a batch without its commit":
            return len(reader.partitions(first, second))
        limit = reader.getDefaultReadLimit() if trigger != "once" else ReadAllAvailable()
        at = reader.initialOffset() if found == "nothing" else first
        return len(reader.partitions(at, reader.latestOffset(at, limit)))
    finally:
        reader.stop()


@pytest.mark.parametrize("trigger", [None, "availableNow", "once"])
@pytest.mark.parametrize("found", ["nothing", "a batch", "a batch without its commit"])
def test_what_is_refused_is_refused_wherever_a_query_starts(checkpoint, found, trigger):
    """In the same words, which are the first error: Spark shows no other."""
    assert start(found, *checkpoint, {"startingOffsets": "earliest"}, SCHEMA, trigger) > 0
    for options, schema, told in REFUSED:
        with pytest.raises(ClogError, match=told) as caught:
            start(found, *checkpoint, options, schema, trigger)
        assert "".join(format_exception(caught.value)).count("Traceback") == 1, options


def test_all_that_spark_can_call_tells_why_there_is_no_reader():
    """Also what this release of Spark does not call yet. To stop it is no error: Spark's worker
    does that last, and would report it in place of the first one.
    """
    reader = ClogDataSource({"path": "orders", "view": "table"}).streamReader(SCHEMA)
    reader = pickle.loads(pickle.dumps(reader))  # To be called in tasks.
    interface = {*dir(DataSourceStreamReader), *dir(SupportsTriggerAvailableNow)}
    public = {name for name in interface if not name.startswith("_")} - {"stop"}
    for name in {*public, "aMethodOfALaterRelease"}:
        with pytest.raises(OptionError, match="is for batch reads"):
            getattr(reader, name)(*"ab")
    reader.stop()


def test_any_error_of_a_reader_is_told_as_itself(monkeypatch):
    """Not only ours: an error where it is made would be hidden by one of Spark's worker."""
    monkeypatch.setattr("os.path.expanduser", lambda path: 1 // 0)
    reader = ClogDataSource({"path": "orders"}).streamReader(SCHEMA)
    with pytest.raises(ZeroDivisionError):
        reader.latestOffset({}, ReadAllAvailable())


def test_offsets_of_another_source_are_refused(checkpoint):
    """Those of a checkpoint whose query read from somewhere else."""
    url, first, _ = checkpoint
    other = {"orders": {"0": 23}}
    for found in ("a batch", "a batch without its commit"):
        with pytest.raises(InvalidInputError, match="not those of a clog stream"):
            start(found, url, other, other, {}, SCHEMA)
    assert start("a batch", url, first, first, {}, SCHEMA)
