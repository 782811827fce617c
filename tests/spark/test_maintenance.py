"""Queries while the log is cleaned, coalesced, trimmed and swept."""

import pytest
from pyspark.errors import PySparkException

from clog.cleaner import Cleaner
from clog.storage.log import Log

SWEPT_AT_ONCE = {"file.delete.delay.ms": "0"}


def tidy(log):
    """Everything that a cleaner does, until nothing is left to do; what it replaced is deleted at
    once.
    """
    log.roll()
    for _ in range(2):
        Cleaner(log).run_once(force=True)


def data_objects(log):
    return {found.path for found in log.handle.store.list("data/")}


def say(log, turn):
    """Five keys in each of two partitions, every value once in the log's life."""
    for p in (0, 1):
        records = [{"key": f"k{k}", "value": f"{turn}-{p}-{k}"} for k in range(5)]
        log.append(records, partition=p)


def test_a_running_stream_loses_nothing_that_survives(queries, url, tmp_path):
    """Objects are deleted while it runs, offsets stay: each record that still exists is
    read, once.
    """
    log = Log.create(url, partitions=2, config={**SWEPT_AT_ONCE, "segment.bytes": "400"})
    query = queries.copy(
        url, tmp_path / "copy", tmp_path / "checkpoint",
        trigger={"processingTime": "0 seconds"},
        startingOffsets="earliest", pollInterval="0s", maxOffsetsPerTrigger=6,
    )  # fmt: skip
    try:
        swept = set()
        for turn in range(4):
            say(log, turn)
            before = data_objects(log)
            tidy(log)
            swept |= before - data_objects(log)
            say(log, f"{turn}b")
        query.processAllAvailable()
        log.delete_records({0: log.end_offsets()[0] - 2})
        log.alter({"cleanup.policy": "compact,delete", "retention.bytes": "1"})
        tidy(log)
        say(log, "last")
        query.processAllAvailable()
        copied = queries.values(tmp_path / "copy")
        assert len(copied) == len(set(copied))
        last = {f"last-{p}-{k}" for p in (0, 1) for k in range(5)}
        assert last | set(queries.values(url)) <= set(copied)
        assert {f"3b-{p}-{k}" for p in (0, 1) for k in range(5)} <= set(copied)
        assert len(swept) > 3
    finally:
        query.stop()


@pytest.mark.parametrize("view", ["log", "table"])
def test_a_planned_read_is_exact_until_its_version_is_swept(queries, url, view):
    """It shows what was there at its first action; afterwards it raises an error, and never mixes
    versions.
    """
    log = Log.create(url, partitions=2)
    say(log, "a")
    say(log, "b")
    log.roll()
    frame = queries.read(url, view=view)
    assert frame.rdd.getNumPartitions() >= 1  # planned, and not read
    expected = sorted(queries.collected(queries.read(url, view=view)))
    say(log, "c")
    tidy(log)
    assert sorted(queries.collected(frame)) == expected
    log.alter(SWEPT_AT_ONCE)
    tidy(log)
    with pytest.raises(PySparkException, match=r"expired.*load\(\) again"):
        frame.collect()
    assert queries.read(url, view=view).count() == 10


def test_available_now_ends_while_records_keep_coming(spark, queries, url, tmp_path):
    """Its end is fixed at its start; limits still apply, and the next run continues there."""
    log = Log.create(url, partitions=1)
    queries.append(log, *(f"{i}" for i in range(10)))
    runs = []

    def each_batch(df, batch_id):
        queries.append(log, f"more-{batch_id}")
        runs[-1].append([row.value.decode() for row in df.select("value").collect()])

    for _ in range(2):
        runs.append([])
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 4}
        source = spark.readStream.format("clog").options(**options).load(url)
        query = (
            source.writeStream.foreachBatch(each_batch)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    first, second = runs
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert second == [["more-0", "more-1", "more-2"]]


def flaky(folder):
    """A data source whose first attempt of each task fails: of a write when its objects are
    written, of a read after its first batch. Made here, so that workers get it by value.
    """
    from clog.connector import ClogDataSource
    from clog.connector.options import read_options, write_options
    from clog.connector.read.stream_reader import ClogStreamReader
    from clog.connector.write.writers import ClogStreamWriter

    def fail_once(what):
        from pyspark import TaskContext

        context = TaskContext.get()
        batch = context.getLocalProperty("streaming.sql.batchId")
        if context.attemptNumber() == 0:
            (folder / f"{what}-{batch}-{context.partitionId()}").touch()
            raise RuntimeError(f"{what} fails at its first attempt")

    class Reader(ClogStreamReader):
        def read(self, partition):
            for batch in super().read(partition):
                yield batch
                fail_once("read")

    class Writer(ClogStreamWriter):
        def write(self, iterator):
            written = super().write(iterator)
            fail_once("write")
            return written

    class Source(ClogDataSource):
        @classmethod
        def name(cls):
            return "clog_flaky"

        def streamReader(self, schema):  # noqa: N802
            return Reader(read_options(self.options), schema)

        def streamWriter(self, schema, overwrite):  # noqa: N802
            return Writer(write_options(self.options), schema, overwrite=overwrite)

    return Source


@pytest.mark.parametrize("side", ["read", pytest.param("write", marks=pytest.mark.core)])
def test_retried_tasks_append_once(spark, queries, url, tmp_path, side):
    """What a failed attempt wrote is never committed (local[2,4]: each task has four attempts)."""
    failed = tmp_path / "failed"
    failed.mkdir()
    spark.dataSource.register(flaky(failed))
    log = Log.create(url, partitions=2)
    say(log, 0)
    formats = {"read": ("clog_flaky", "clog"), "write": ("clog", "clog_flaky")}[side]
    source = spark.readStream.format(formats[0]).option("startingOffsets", "earliest")
    query = (
        source.option("minPartitions", 2).load(url).select("key", "value")
        .writeStream.format(formats[1])
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "copy"))
    )  # fmt: skip
    query.awaitTermination()
    assert len(list(failed.iterdir())) == 2
    assert sorted(queries.values(tmp_path / "copy")) == sorted(queries.values(url))
