"""Update mode through foreachBatch: a changelog, each batch once."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from clog.connector import upsert_batches
from clog.storage.errors import InvalidInputError, NotFoundError, OptionError
from clog.storage.log import Log

BY_HEADER = {"compaction.strategy": "header", "compaction.strategy.header": "lsn"}


@pytest.fixture
def words(url):
    return Log.create(url, partitions=2)


@pytest.fixture
def counts(tmp_path):
    """The changelog's log."""
    return str(tmp_path / "counts")


def say(log, *words):
    log.append([{"key": w, "value": w} for w in words])


def count_words(spark, words, checkpoint, each_batch, **options):
    """A streaming groupBy().count() in update mode over all existing records."""
    source = (
        spark.readStream.format("clog").option("startingOffsets", "earliest").options(**options)
    )
    counted = source.load(words.url).selectExpr("string(value) AS word").groupBy("word").count()
    query = (
        counted.writeStream.outputMode("update")
        .foreachBatch(each_batch)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def table(spark, url):
    frame = spark.read.format("clog").option("view", "table").load(url)
    return {row[0]: row[1] for row in frame.collect()}


@pytest.mark.core
def test_a_streaming_count_is_a_ktables_changelog(spark, words, counts, tmp_path):
    """Each batch appends the counts that changed; the table is the latest of each. A batch that
    Spark did not record is run again, and appended once.
    """
    checkpoint = tmp_path / "checkpoint"
    each_batch = upsert_batches(counts, "word", partitions=1)
    say(words, "to", "be", "or", "not", "to", "be")
    count_words(spark, words, checkpoint, each_batch)
    assert table(spark, counts) == {"to": 2, "be": 2, "or": 1, "not": 1}
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    say(words, "or", "to")
    count_words(spark, words, checkpoint, each_batch)
    assert table(spark, counts) == {"to": 3, "be": 2, "or": 2, "not": 1}
    assert Log.open(counts).end_offsets() == {0: 4 + 2}


def test_rows_become_columns(spark, counts):
    """The first batch creates a typed log with the key columns of the upsert; what is deleted is a
    tombstone; case does not matter, and a batch that runs again is there once.
    """
    df = spark.sql("SELECT 'eu' AS region, 7 AS id, 'a' AS name, 1.5D AS price, false AS gone")
    df = df.unionAll(spark.sql("SELECT 'us', 8, cast(null AS string), 2.0D, false"))
    given = {"writerId": "q", "values": ["name", "price"], "deleted": "gone"}
    for _ in range(2):
        upsert_batches(counts, ["region", "id"], partitions=1, **given)(df, 0)
    gone = df.selectExpr("region AS Region", "id AS ID", "name AS Name", "price", "id = 7 AS gone")
    upsert_batches(counts, ["REGION", "iD"], **given)(gone, 1)
    found = spark.read.format("clog").option("view", "table").load(counts)
    assert found.columns[:4] == ["region", "id", "name", "price"]
    assert [tuple(row)[:4] for row in found.collect()] == [("us", 8, None, 2.0)]
    assert Log.open(counts).end_offsets() == {0: 4}


@pytest.mark.parametrize("filled", [False, True])
def test_a_log_of_bytes_is_refused(spark, counts, filled):
    """In words, and nothing is written; earlier releases wrote rows as text there."""
    log = Log.create(counts, 1)
    if filled:
        log.append([{"key": "7", "value": '{"name":"a"}'}])
    version = log.version
    df = spark.sql("SELECT 7 AS id, 'a' AS name")
    with pytest.raises(InvalidInputError, match=r"is a log of bytes, but .* nothing was upserted"):
        upsert_batches(counts, "id", writerId="q")(df, 0)
    with pytest.raises(OptionError, match="encoding"):
        upsert_batches(counts, "id", writerId="q", encoding=2)
    assert log.handle.refresh().version == version


@pytest.mark.parametrize("sql", ["map('a', 1)", "array(1)", "1.5D", "interval '1' day"])
def test_what_cannot_be_a_key_is_refused(spark, counts, sql):
    """Equal values must have equal bytes; no log is created."""
    with pytest.raises(InvalidInputError):
        upsert_batches(counts, "k", writerId="q")(spark.sql(f"SELECT {sql} AS k, 1 AS v"), 0)
    with pytest.raises(NotFoundError):
        Log.open(counts)


def test_an_upsert_into_a_log_that_compares_other_than_offsets(spark, counts):
    """S56: rows have no headers, so it is refused if one is compared; timestamps are those of the
    write, so a later batch wins, but not over the future.
    """
    schema = pa.schema([("id", pa.int32()), ("v", pa.string())])
    log = Log.create(counts, 1, {"compaction.strategy": "timestamp"}, schema=schema, key="id")
    given = {"keys": "id", "writerId": "q"}
    first = spark.sql("SELECT * FROM VALUES (1, 'a'), (2, 'b'), (3, 'c') AS t(id, v)")
    upsert_batches(counts, **given)(first, 0)
    ahead_ms = log.handle.clock.now_ms() + 3_000_000
    ahead = {"key": 3, "value": {"v": "ahead"}, "timestamp": ahead_ms}
    log.append([ahead, {"key": 1, "value": {"v": "old"}, "timestamp": 5}])
    later = spark.sql("SELECT * FROM VALUES (1, 'x', false), (2, '', true), (3, 'x', false)")
    later = later.toDF("id", "v", "gone")
    upsert_batches(counts, values=["v"], deleted="gone", **given)(later, 1)
    assert table(spark, counts) == {1: "x", 3: "ahead"}
    by_header = Log.create(f"{counts}-by-header", 1, BY_HEADER, schema=schema, key="id")
    with pytest.raises(InvalidInputError, match=r"the header 'lsn' .* no headers; nothing was app"):
        upsert_batches(by_header.url, **given)(first, 0)
    assert by_header.handle.refresh().version == 0


def test_rows_become_typed_records(spark, counts, tmp_path):
    """Columns are kept: in a table that the first batch creates, and in a log that was created for
    them; what is deleted is a tombstone.
    """
    df = spark.sql("SELECT 'eu' AS region, 7 AS id, 1.5D AS price, false AS gone")
    df = df.unionAll(spark.sql("SELECT 'us', 8, cast(null AS double), false"))
    given = {"writerId": "prices", "values": ["price"], "deleted": "gone"}
    of_table = {"keyColumns": "region,id", "partitions": 1}
    upsert_batches(counts, ["region", "id"], **of_table, **given)(df, 0)
    gone = df.selectExpr("region", "id", "price", "id = 7 AS gone")
    upsert_batches(counts, ["region", "id"], **given)(gone, 1)
    found = spark.read.format("clog").option("view", "table").load(counts)
    assert [tuple(row) for row in found.collect()] == [("us", 8, None)]
    with pytest.raises(OptionError, match="the keys of the upsert are id; name these"):
        upsert_batches(counts, "id", **of_table, **given)
    log = Log.create(
        str(tmp_path / "made"),
        partitions=1,
        schema={"key": pa.int64(), "value": pa.struct([("price", pa.float64())])},
    )
    upsert_batches(log.url, "id", **given)(df, 0)
    assert (log.table().get(7), log.table().get(8)) == ({"price": 1.5}, {"price": None})
    whole = df.selectExpr("id", "struct(price) AS v")
    upsert_batches(log.url, "id", writerId="whole")(whole, 0)
    assert log.table().get(7) == {"price": 1.5}
    with pytest.raises(
        InvalidInputError, match="key of the log is int64, which is a single column"
    ):
        upsert_batches(log.url, ["id", "region"], **given)(df, 2)


def test_a_changelog_that_was_recreated(spark, words, counts, tmp_path, caplog):
    """S47: as a sink, the query fails before it writes to another log, in this run and in a later
    one; told to continue, it warns that the earlier batches are not there.
    """
    given = {}

    def each_batch(df, batch_id):
        if batch_id == recreated_at:
            shutil.rmtree(counts)
        upsert_batches(counts, "word", **given)(df, batch_id)

    checkpoint, recreated_at = tmp_path / "checkpoint", 1
    say(words, "to", "be", "or", "not")
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="none of the batches before batch 1 of"):
            count_words(spark, words, checkpoint, each_batch, maxOffsetsPerTrigger=2)
        assert table(spark, counts) == {}
        recreated_at = None
    given["failOnChangedBatch"] = False
    caplog.clear()
    count_words(spark, words, checkpoint, each_batch, maxOffsetsPerTrigger=2)
    assert caplog.text.count("none of the batches before batch 1 of") == 1
    assert len(table(spark, counts)) == 2


def test_a_changelog_whose_first_batch_has_no_rows(spark, words, counts, tmp_path, caplog):
    """It leaves an entry, so that for the next one the log does not look like another."""
    upsert = upsert_batches(counts, "word")

    def each_batch(df, batch_id):
        upsert(df.where("word <> 'to'"), batch_id)

    for word in ("to", "be"):
        say(words, word)
        count_words(spark, words, tmp_path / "checkpoint", each_batch)
    assert caplog.text == ""
    assert table(spark, counts) == {"be": 1}


def test_a_query_of_an_earlier_release_continues(spark, words, counts, tmp_path):
    """Which left an entry of the kind of batch writes, without a query: its last batch is not
    appended again, and the next one is not taken for one of a log that was recreated.
    """
    upsert, query = upsert_batches(counts, "word"), []

    def each_batch(df, batch_id):
        query[:] = [df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")]
        if batch_id == 0 and not Path(counts).exists():
            rows = df.selectExpr("word", "count")
            rows.write.format("clog").mode("append").options(
                keyColumns="word", txnAppId=query[0], txnVersion=0
            ).save(counts)
            raise ZeroDivisionError("before Spark noted the batch")
        upsert(df, batch_id)

    checkpoint = tmp_path / "checkpoint"
    say(words, "to", "be")
    with pytest.raises(StreamingQueryException, match="before Spark noted"):
        count_words(spark, words, checkpoint, each_batch)
    for expected in ({"to": 1, "be": 1}, {"to": 2, "be": 1}):
        count_words(spark, words, checkpoint, each_batch)
        assert table(spark, counts) == expected
        say(words, "to")
    assert sum(Log.open(counts).end_offsets().values()) == 2 + 1
    (entry,) = [Log.open(counts).handle.find_writer("txn", query[0])]
    assert entry.sequence == 1


def test_columns_that_do_not_exist_are_told(spark, counts):
    """And nothing is created."""
    df = spark.sql("SELECT 'a' AS word, 1 AS count")
    with pytest.raises(InvalidInputError, match=r"key columns \['words'\] do not exist"):
        upsert_batches(counts, "words", writerId="q")(df, 0)
    assert not Path(counts).exists()
