"""Micro-batches that the driver appends: exactly once, as with the sink, in either way."""

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from clog.connector import append_batches, batches
from clog.connector.options import Location
from clog.storage import Log
from clog.storage.errors import OptionError
from clog.storage.store import open_store
from clog_testing.counting import CountingStore


@pytest.fixture
def words(tmp_path):
    return Log.create(str(tmp_path / "words"), partitions=2)


def follow(spark, words, checkpoint, each_batch, **options):
    """Appends all existing records, a few words per batch; returns the query's id."""
    source = spark.readStream.format("clog").option("startingOffsets", "earliest")
    frame = source.options(**options).load(words.url).select("key", "value", "timestamp")
    query = (
        frame.writeStream.foreachBatch(each_batch)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return str(query.id)


@pytest.mark.core
def test_each_batch_is_there_once_by_tasks_or_by_the_driver(spark, queries, words, url, tmp_path):
    """The first batch by tasks, those after a small one by the driver, with the same rows in the
    same order and with their times; a batch that Spark runs again, then by tasks, is not appended
    again.
    """
    queries.append(words, *"abcdefgh")
    append, ways = append_batches(url, partitions=2), []

    def each(df, batch_id):
        ways.append(append._is_small)
        append(df, batch_id)

    follow(spark, words, tmp_path / "checkpoint", each, maxOffsetsPerTrigger=4)
    assert ways == [False, True]
    assert sorted(queries.values(url)) == [*"abcdefgh"]
    given, found = (
        sorted(
            str(r) for b in Log.open(u).read(columns=["key", "timestamp"]) for r in b.to_pylist()
        )
        for u in (words.url, url)
    )
    assert found == given
    last = max(
        (tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name)
    )
    for file in (last, last.parent / f".{last.name}.crc"):
        file.unlink()
    version = Log.open(url).version
    query_id = follow(
        spark, words, tmp_path / "checkpoint", append_batches(url), maxOffsetsPerTrigger=4
    )
    assert Log.open(url).version == version
    assert Log.open(url).handle.find_writer("stream", query_id).sequence == int(last.name)


def test_a_batch_too_large_for_the_driver_is_written_by_tasks(
    spark, queries, words, url, tmp_path, monkeypatch
):
    """Whether Spark reports it, or the batch before was large; other errors are Spark's."""
    queries.append(words, *"abcdef")
    append = append_batches(url)

    def refused(frame):
        raise RuntimeError("Total size … is bigger than spark.driver.maxResultSize")

    monkeypatch.setattr(DataFrame, "toArrow", refused)
    monkeypatch.setattr(type(spark.range(1)), "toArrow", refused)
    follow(spark, words, tmp_path / "checkpoint", append, maxOffsetsPerTrigger=2)
    assert sorted(queries.values(url)) == [*"abcdef"]
    monkeypatch.setattr(batches, "ROWS_MAX", 1)
    queries.append(words, *"ghij")
    follow(spark, words, tmp_path / "checkpoint", append)
    assert not append._is_small
    assert len(queries.values(url)) == 10


def test_an_empty_first_batch_makes_the_log_and_is_known(spark, words, url, tmp_path):
    """As with the sink: a later batch is then of a query that the log knows."""
    query_id = follow(spark, words, tmp_path / "checkpoint", append_batches(url, partitions=3))
    log = Log.open(url)
    assert len(log.end_offsets()) == 3
    assert log.handle.find_writer("stream", query_id) is not None


def test_a_plain_frame_makes_a_typed_log(spark, words, queries, url, tmp_path):
    """``keyColumns``, in a stream; both ways."""
    queries.append(words, *"abcd")
    append = append_batches(url, keyColumns="id")

    def each(df, batch_id):
        append(df.selectExpr("string(key) AS id", "length(value) AS n"), batch_id)

    follow(spark, words, tmp_path / "checkpoint", each, maxOffsetsPerTrigger=2)
    assert Log.open(url).table().get("d") == {"n": 1}


def test_what_it_refuses(spark, words, queries, url, tmp_path):
    """Options that do not apply to a stream; rows without a required column; and nothing is
    appended.
    """
    with pytest.raises(OptionError, match="txnVersion"):
        append_batches(url, txnVersion=1)
    with pytest.raises(OptionError, match="partition"):
        append_batches(url, partition=1)
    queries.append(words, "a")
    append = append_batches(url)
    with pytest.raises(StreamingQueryException, match="value"):
        follow(spark, words, tmp_path / "c", lambda df, n: append(df.select("key"), n))


@pytest.mark.core
def test_a_small_batch_costs_two_puts_and_no_listing(
    spark, words, queries, url, tmp_path, monkeypatch
):
    """Its object and its commit, and a check which log is there."""
    queries.append(words, *"abcdef")
    Log.create(url, partitions=2)
    counting = CountingStore(open_store(url))
    real = Location.store
    monkeypatch.setattr(Location, "store", lambda self: counting if self.url == url else real(self))
    append, costs = append_batches(url), []

    def each(df, batch_id):
        with counting.count() as requests:
            append(df, batch_id)
        costs.append(dict(requests))

    follow(spark, words, tmp_path / "checkpoint", each, maxOffsetsPerTrigger=1)
    # Now and then a hint is put, too; and a handle that was idle for long looks once more.
    assert {"get": 2, "put": 1, "create": 1} in costs[1:]
    assert not any("list" in requests for requests in costs)
