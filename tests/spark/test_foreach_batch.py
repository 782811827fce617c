"""What the functions for foreachBatch have in common: whose batch it is, and that it is written
once.
"""

import pytest
from pyspark.errors import StreamingQueryException

from clog.connector import append_batches, transact_batches, upsert_batches
from clog.storage import InvalidInputError, Log


def transactions(url, **options):
    return transact_batches(url, lambda df, t, _: t.write(df, url), keyColumns="id", **options)


WAYS = {
    "append": lambda url, **options: append_batches(url, keyColumns="id", **options),
    "upsert": lambda url, **options: upsert_batches(url, "id", keyColumns="id", **options),
    "transact": transactions,
}


@pytest.fixture(params=WAYS)
def made(request, url):
    """Makes one of the functions, for a log that exists."""
    Log.create(url, 1, key="id", like=[{"id": "", "name": ""}])
    return lambda **options: WAYS[request.param](url, **options)


@pytest.fixture
def frame(spark):
    return spark.sql("SELECT 'a' AS id, 'ann' AS name")


@pytest.mark.parametrize("batch_id", [None, -1, True, "3", 3.0, 1 << 63])
def test_a_batch_without_its_number_is_refused(made, frame, url, batch_id):
    """Without one it would be written again each time it runs; the error names the argument."""
    with pytest.raises(InvalidInputError, match=r"^batch_id=.* to foreachBatch"):
        made(writerId="job")(frame, batch_id)
    assert Log.open(url).version == 0


def test_a_query_that_is_unknown_is_refused(made, frame, url):
    """Outside of foreachBatch, and with Spark Connect, unless the writer has a name; then a batch
    that runs again is there once.
    """
    with pytest.raises(InvalidInputError, match=r"cannot tell its streaming query: .*writerId="):
        made()(frame, 0)
    assert Log.open(url).version == 0
    for batch_id in (0, 0, 1):
        made(writerId="job")(frame, batch_id)
    assert Log.open(url).end_offsets() == {0: 2}


def test_two_writes_of_one_batch_are_refused(made, spark, url, tmp_path):
    """The second would be taken for a repetition of the first, and dropped; under a name of its own
    it is another one. The query is known by its id.
    """
    said, words = [], Log.create(str(tmp_path / "words"), 1)
    words.append([{"key": "a", "value": "ann"}])

    def each_batch(df, batch_id):
        rows = df.selectExpr("string(key) AS id", "string(value) AS name")
        made()(rows, batch_id)
        with pytest.raises(InvalidInputError, match=r"already written to .* in this run"):
            made()(rows, batch_id)
        made(writerId="other")(rows, batch_id)
        said.append(batch_id)

    source = spark.readStream.format("clog").option("startingOffsets", "earliest")
    writer = source.load(words.url).writeStream.foreachBatch(each_batch)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert said == [0]
    log = Log.open(url)
    assert log.end_offsets() == {0: 2}
    kinds = ("stream", "txn", "transaction")
    for name in (str(query.id), "other"):
        assert [log.handle.find_writer(kind, name) is not None for kind in kinds].count(True) == 1


def test_another_query_under_the_same_name_is_refused(spark, url, tmp_path):
    """Its batches would be dropped as known, or mixed with those of the first, of which the log of
    an upsert would be no changelog.
    """
    words = Log.create(str(tmp_path / "words"), 1)
    words.append([{"key": "a", "value": "1"}])

    def run(checkpoint):
        source = spark.readStream.format("clog").option("startingOffsets", "earliest")
        counted = source.load(words.url).selectExpr("string(key) AS id").groupBy("id").count()
        upsert = upsert_batches(url, "id", writerId="counts")
        writer = counted.writeStream.outputMode("update").foreachBatch(upsert)
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    run("first")
    words.append([{"key": "a", "value": "2"}])
    run("first")
    with pytest.raises(StreamingQueryException, match=r"'counts' of .* belongs to query"):
        run("second")
    assert sum(Log.open(url).end_offsets().values()) == 2
