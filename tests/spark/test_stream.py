"""Structured Streaming from and to logs."""

import shutil

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import udf

from clog.cleaner import Cleaner
from clog.connector import lag
from clog.storage.log import Log


@pytest.fixture
def log(url):
    return Log.create(url, partitions=2)


@pytest.fixture
def target(tmp_path):
    return tmp_path / "copy"


@pytest.fixture
def checkpoint(tmp_path):
    return tmp_path / "checkpoint"


def forget_last_commit(checkpoint, batch):
    """What a crash between the sink's commit and Spark's leaves."""
    (checkpoint / "commits" / str(batch)).unlink()
    (checkpoint / "commits" / f".{batch}.crc").unlink()


@pytest.mark.core
def test_a_stream_goes_on_from_its_checkpoint(queries, log, target, checkpoint):
    """Restarted, it reads what was added since, once; limited batches give the same result."""
    queries.append(log, *"abcd")
    queries.append(log, *"xy", partition=1)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 3}
    sizes = queries.run(log.url, target, checkpoint, **options)
    assert sum(sizes) == 6
    assert max(sizes) == 3
    queries.append(log, "e")
    assert sum(queries.run(log.url, target, checkpoint, **options)) == 1
    assert sum(queries.run(log.url, target, checkpoint, **options)) == 0
    assert sorted(queries.values(target)) == sorted("abcdxye")


@pytest.mark.core
def test_a_batch_whose_commit_spark_did_not_note_is_there_once(queries, log, target, checkpoint):
    """Spark runs it again with fresh tasks; the log knows it (same offsets, no second copy)."""
    queries.append(log, *"ab")
    queries.run(log.url, target, checkpoint, startingOffsets="earliest")
    queries.append(log, *"cd")
    queries.run(log.url, target, checkpoint)
    before = set(queries.written(target))
    forget_last_commit(checkpoint, 1)
    queries.append(log, "e")
    queries.run(log.url, target, checkpoint)
    assert sorted(queries.values(target)) == sorted("abcde")
    assert before < set(queries.written(target))


def test_a_batch_that_runs_again_is_the_same_though_its_source_was_cleaned(
    queries, log, target, checkpoint
):
    """Its offsets say at which version it was planned: the log recognizes the rows."""
    queries.append(log, *"ab")
    queries.run(log.url, target, checkpoint, startingOffsets="earliest")
    queries.append(log, *"cac")
    queries.run(log.url, target, checkpoint)
    forget_last_commit(checkpoint, 1)
    log.roll()
    Cleaner(log).run_once(force=True)
    assert len(queries.written(log.url)) == 3
    queries.append(log, "d")
    assert sum(queries.run(log.url, target, checkpoint)) == 4
    assert sorted(queries.values(target)) == sorted("abcacd")


def test_a_checkpoint_that_was_put_back_stops_the_query(queries, log, target, checkpoint, tmp_path):
    """Its next batch has the number of one that the log has, and other rows: they would be lost.
    With an option this is accepted as a query that does not repeat itself.
    """
    queries.append(log, *"ab")
    queries.run(log.url, target, checkpoint, startingOffsets="earliest")
    shutil.copytree(checkpoint, tmp_path / "old")
    queries.append(log, "c")
    queries.run(log.url, target, checkpoint)
    queries.append(log, *"de")
    with pytest.raises(
        PySparkException, match=r"with other rows: 1 in version 2, 3 now.*failOnCha"
    ):
        queries.run(log.url, target, tmp_path / "old")
    assert sorted(queries.values(target)) == sorted("abc")
    queries.run(log.url, target, tmp_path / "old", sink={"failOnChangedBatch": False})
    queries.append(log, "f")
    queries.run(log.url, target, tmp_path / "old")
    assert sorted(queries.values(target)) == sorted("abcf")


def test_a_refused_source_says_why_on_a_checkpoint_too(queries, log, target, checkpoint):
    """Whatever the trigger, and whether Spark noted the last batch's commit or not."""
    queries.append(log, "a")
    queries.run(log.url, target, checkpoint, startingOffsets="earliest")
    queries.append(log, "b")
    queries.run(log.url, target, checkpoint)
    refused = {"view": "table"}, {"partitions": "9"}, {"logId": "f" * 32}
    told = "is for batch reads", "names \\[9\\]", "f" * 32
    for has_commit in (True, False):
        if not has_commit:
            forget_last_commit(checkpoint, 1)
        for options, words in zip(refused, told, strict=True):
            for trigger in ({"once": True}, {"availableNow": True}):
                with pytest.raises(PySparkException, match=words) as caught:
                    queries.run(log.url, target, checkpoint, trigger=trigger, **options)
                assert "NOT_IMPLEMENTED" not in str(caught.value)
    queries.run(log.url, target, checkpoint)
    assert queries.values(target) == ["a", "b"]


def test_a_sink_that_cannot_commit_says_why(spark, queries, log, target, checkpoint):
    """Not "Writing job failed": Spark makes a sink again to commit, and again to abort, and shows
    the last error. Here the log goes while tasks run.
    """
    queries.append(log, "a")
    queries.run(log.url, target, checkpoint, startingOffsets="earliest")
    meant, gone = Log.open(str(target)).id, str(target)

    def leaves(value):
        shutil.rmtree(gone)
        return value

    queries.append(log, "b")
    leaving = udf(leaves, "binary")
    writer = queries.stream(log.url).select("key", leaving("value").alias("value")).writeStream
    writer = writer.format("clog").options(checkpointLocation=str(checkpoint), logId=meant)
    query = writer.trigger(availableNow=True).start(gone)
    with pytest.raises(PySparkException, match=f"no log at {gone}|{gone} was deleted"):
        query.awaitTermination()


def test_a_sink_whose_log_was_recreated_stops_the_query(queries, log, target, checkpoint, tmp_path):
    """What was written before is not there: a new log with the rest of it would not show that. A
    query that started at the end, with an empty batch, is known too.
    """
    queries.run(log.url, target, checkpoint)
    queries.append(log, *"ab")
    queries.run(log.url, target, checkpoint)
    shutil.rmtree(target)
    queries.append(log, "c")
    with pytest.raises(PySparkException, match=r"none of the batches before batch 2.*recreated"):
        queries.run(log.url, target, checkpoint)
    assert queries.values(target) == []
    queries.run(log.url, target, tmp_path / "another", startingOffsets="earliest")
    assert sorted(queries.values(target)) == list("abc")


def test_a_query_says_that_its_source_was_recreated(queries, log, target, checkpoint, tmp_path):
    """Restarted on its checkpoint it does not silently skip the first rows of the new log; if
    configured to, it continues from that log's start, as its error says.
    """
    queries.append(log, *"ab")
    queries.run(log.url, target, checkpoint, startingOffsets="earliest")
    shutil.rmtree(log.url)
    queries.append(Log.create(log.url, partitions=2), *"cdef")
    with pytest.raises(PySparkException, match=r"deleted and recreated.*failOnDataLoss=false"):
        queries.run(log.url, target, checkpoint)
    queries.run(log.url, target, checkpoint, failOnDataLoss=False)
    assert sorted(queries.values(target)) == list("abcdef")
    assert sum(queries.run(log.url, target, checkpoint)) == 0


def failing_after_commit(flag):
    """A data source whose sink raises once after its commit; defined here, so that workers get it
    by value.
    """
    from clog.connector import ClogDataSource
    from clog.connector.options import write_options
    from clog.connector.write.writers import ClogStreamWriter

    class Writer(ClogStreamWriter):
        def commit(self, messages, batchId):  # noqa: N803
            super().commit(messages, batchId)
            if not flag.exists():
                flag.touch()
                raise RuntimeError("the reply was lost")

    class Source(ClogDataSource):
        @classmethod
        def name(cls):
            return "clog_failing"

        def streamWriter(self, schema, overwrite):  # noqa: N802
            return Writer(write_options(self.options), schema, overwrite=overwrite)

    return Source


def test_a_raise_after_the_sinks_commit_loses_and_doubles_nothing(
    spark, queries, log, target, checkpoint, tmp_path
):
    """Spark aborts with the messages of a batch that is in the log; a restart runs it again."""
    spark.dataSource.register(failing_after_commit(tmp_path / "failed"))
    queries.append(log, *"abc")
    options = {"sink_format": "clog_failing", "startingOffsets": "earliest"}
    with pytest.raises(PySparkException, match="the reply was lost"):
        queries.run(log.url, target, checkpoint, **options)
    first = queries.written(target)
    assert sorted(value for *_, value in first) == ["a", "b", "c"]
    queries.append(log, "d")
    queries.run(log.url, target, checkpoint, **options)
    assert sorted(queries.values(target)) == ["a", "b", "c", "d"]
    assert set(first) < set(queries.written(target))


def test_a_first_batch_that_spark_did_not_note_starts_where_it_started(
    queries, log, target, checkpoint
):
    """latest is not resolved a second time: the first offsets have the result."""
    queries.append(log, "before")
    queries.run(log.url, target, checkpoint)
    queries.append(log, "after")
    forget_last_commit(checkpoint, 0)
    queries.run(log.url, target, checkpoint)
    assert queries.values(target) == ["after"]


@pytest.mark.parametrize(
    ("starting", "expected"), [("latest", []), ('{"0": 1, "1": -2}', ["b", "x"])]
)
def test_a_new_query_starts_where_the_option_says(
    queries, log, target, checkpoint, starting, expected
):
    """earliest is in the other tests (S39)."""
    queries.append(log, *"ab")
    queries.append(log, "x", partition=1)
    queries.run(log.url, target, checkpoint, startingOffsets=starting)
    assert sorted(queries.values(target)) == expected


def test_a_recreated_checkpoint_under_a_writer_id_is_refused(
    queries, log, target, checkpoint, tmp_path
):
    """Its batches have numbers that the log knows: without the refusal they would be dropped
    silently.
    """
    queries.append(log, "a")
    sink = {"writerId": "copier"}
    queries.run(log.url, target, checkpoint, sink=sink, startingOffsets="earliest")
    with pytest.raises(PySparkException, match=r"copier.*belongs to query"):
        queries.run(log.url, target, tmp_path / "anew", sink=sink, startingOffsets="earliest")
    sink = {"writerId": "copier-2"}
    queries.run(log.url, target, tmp_path / "anew", sink=sink, startingOffsets="earliest")
    assert queries.values(target) == ["a", "a"]


def test_two_writes_in_one_foreach_batch_are_two(spark, queries, log, target, checkpoint):
    """Batch writes do not take the identity of the streaming batch in which they run."""
    queries.append(log, *"ab")

    def twice(df, batch_id):
        for value in ("1", "2"):
            rows = df.selectExpr("key", f"'{value}' AS value")
            rows.write.format("clog").mode("append").save(str(target))

    source = spark.readStream.format("clog").option("startingOffsets", "earliest").load(log.url)
    query = (
        source.writeStream.foreachBatch(twice)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(queries.values(target)) == ["1", "1", "2", "2"]


@pytest.mark.core
def test_deleted_records_stop_a_stream_or_are_passed_over(queries, log, target, checkpoint):
    """failOnDataLoss (S38)."""
    queries.append(log, *"abc")
    queries.run(log.url, target, checkpoint, startingOffsets="earliest")
    queries.append(log, *"def")
    log.delete_records({0: 5})
    with pytest.raises(PySparkException, match="2 offsets are gone"):
        queries.run(log.url, target, checkpoint)
    queries.run(log.url, target, checkpoint, failOnDataLoss=False)
    assert sorted(queries.values(target)) == ["a", "b", "c", "f"]


def test_complete_mode_is_refused(spark, log, target, checkpoint):
    """Each batch would be the whole result."""
    counts = (
        spark.readStream.format("clog").load(log.url)
        .groupBy("key").count().selectExpr("key", "cast(count as string) AS value")
    )  # fmt: skip
    query = (
        counts.writeStream.format("clog")
        .outputMode("complete")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(target))
    )
    with pytest.raises(PySparkException, match="output mode complete is refused"):
        query.awaitTermination()


def test_a_running_query_follows_the_log(queries, log, target, checkpoint):
    """The default trigger; progress shows how far behind it is, and it stops at once."""
    queries.append(log, "a")
    query = queries.copy(
        log.url, target, checkpoint,
        trigger={"processingTime": "0 seconds"}, startingOffsets="earliest", pollInterval="100ms",
    )  # fmt: skip
    try:
        query.processAllAvailable()
        queries.append(log, *"bc", partition=1)
        while len(queries.values(target)) < 3 and query.isActive:
            query.processAllAvailable()
        assert sorted(queries.values(target)) == ["a", "b", "c"]
        (behind,) = lag(query.lastProgress)
        assert behind.max_offsets_behind_latest == 0
        assert set(behind.partitions) == {0, 1}
    finally:
        query.stop()
