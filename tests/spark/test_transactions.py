"""Several DataFrames of a batch in one transaction: all or nothing, once, whatever runs again."""

import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from clog.connector import transact_batches
from clog.storage import InvalidInputError, Log, TransactionFencedError
from clog.storage.errors import LogReplacedError


@pytest.fixture
def words(url):
    return Log.create(url, partitions=2)


@pytest.fixture
def home(tmp_path):
    return str(tmp_path / "home")


def stream(spark, words, checkpoint, each_batch):
    source = spark.readStream.format("clog").option("startingOffsets", "earliest")
    frame = source.load(words.url).selectExpr("key", "value")
    writer = frame.writeStream.foreachBatch(each_batch).trigger(availableNow=True)
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()


def in_the_log(url):
    """Its records, and the commits that added any."""
    log = Log.open(url)
    rows = [row for batch in log.read() for row in batch.to_pylist()]
    return sorted((r["key"].decode(), r["value"].decode()) for r in rows), [
        c.version for c in log.history() if c.records
    ]


@pytest.mark.core
def test_two_frames_are_one_commit_and_once(spark, words, home, tmp_path):
    """A batch that dies between its two writes leaves nothing; one that Spark did not record is run
    again, and is there once (S48, S49).
    """
    checkpoint, dies, done = tmp_path / "checkpoint", [True], []

    def twice(df, t, _):
        done.append(t.is_done)
        t.write(df.selectExpr("key", "upper(cast(value as string)) as value"), home)
        if dies:
            raise ZeroDivisionError(dies.pop())
        t.write(df.selectExpr("concat('n-', cast(key as string)) as key", "value"), home)

    each_batch = transact_batches(home, twice, partitions=2)
    words.append([{"key": k, "value": k} for k in "abc"])
    with pytest.raises(StreamingQueryException, match="ZeroDivisionError"):
        stream(spark, words, checkpoint, each_batch)
    assert in_the_log(home) == ([], [])
    stream(spark, words, checkpoint, each_batch)
    first = [(k, k.upper()) for k in "abc"] + [(f"n-{k}", k) for k in "abc"]
    assert in_the_log(home) == (first, [2])
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    words.append([{"key": "d", "value": "d"}])
    stream(spark, words, checkpoint, each_batch)
    assert in_the_log(home)[0] == sorted([*first, ("d", "D"), ("n-d", "d")])
    assert done == [False, False, True, False]


def test_a_driver_that_was_replaced_is_fenced(spark, home):
    """S48: its batch fails and leaves nothing; started again, it takes the id back."""
    frame = spark.createDataFrame([("a", "1")], "key string, value string")
    replacing = [1]

    def slow(df, t, batch_id):
        t.write(df, home)
        if batch_id in replacing:
            with Log.open(home).transaction("job", sequence=batch_id) as other:
                other.append([{"key": "b", "value": "2"}])
        t.write(df.filter("false"), home)

    transact = transact_batches(home, slow, writerId="job")
    transact(frame, 0)
    with pytest.raises(TransactionFencedError):
        transact(frame, 1)
    transact(frame, 2)
    Log.open(home).transaction("job", sequence=3).abort()
    with pytest.raises(TransactionFencedError):
        transact(frame, 3)
    transact(frame, 3)
    assert in_the_log(home)[0] == [("a", "1"), ("a", "1"), ("a", "1"), ("b", "2")]
    with pytest.raises(InvalidInputError, match="is already at sequence 3; 1 is lower"):
        transact(frame, 1)
    assert len(in_the_log(home)[1]) == 4


def test_an_id_that_is_none_is_refused(home):
    """When the function is made; nothing is created."""
    with pytest.raises(InvalidInputError, match="id must be text"):
        transact_batches(home, lambda *_: None, writerId="x" * 2000)
    assert not Path(home).exists()


def objects_of(url):
    return sorted(Path(url).glob("_clog/*/data/**/*.parquet"))


def test_rows_after_the_function_are_refused(spark, home):
    """After its commit, its abort or a repetition: no commit would come, unnoticed."""
    frame = spark.createDataFrame([("a", "1")], "key string, value string")
    kept = []

    def each_batch(df, t, batch_id):
        kept.append((t, t.is_done))
        t.write(df.filter(f"{batch_id} = 0"), home)
        if batch_id:
            raise ZeroDivisionError

    transact = transact_batches(home, each_batch, writerId="job", failOnChangedBatch=False)
    transact(frame, 0)
    with pytest.raises(ZeroDivisionError):
        transact(frame, 1)
    transact(frame, 0)
    (one,) = objects_of(home)
    for ended, _ in kept:
        with pytest.raises(InvalidInputError, match=r"batch [01] of 'job' has ended"):
            ended.write(frame, home)
    assert [was_done for _, was_done in kept] == [False, False, True]
    assert objects_of(home) == [one]
    assert in_the_log(home)[0] == [("a", "1")]


def test_a_batch_to_several_logs(spark, words, home, tmp_path):
    """S50: all of a batch or nothing, in each log, once, whatever fails and runs again."""
    other, checkpoint = str(tmp_path / "other"), tmp_path / "checkpoint"
    fails = {1}

    def halves(df, t, batch_id):
        t.write(df.filter("value < 'm'"), home)
        t.write(df.filter("value >= 'm'"), other)
        if batch_id in fails:
            fails.discard(batch_id)
            raise ZeroDivisionError("on purpose")

    each_batch = transact_batches(home, halves)
    words.append([{"key": "k", "value": value} for value in "az"], partition=0)
    stream(spark, words, checkpoint, each_batch)
    words.append([{"key": "k", "value": value} for value in "by"], partition=0)
    with pytest.raises(StreamingQueryException, match="on purpose"):
        stream(spark, words, checkpoint, each_batch)
    assert in_the_log(home)[0] == [("k", "a")]
    stream(spark, words, checkpoint, each_batch)
    assert in_the_log(home)[0] == [("k", "a"), ("k", "b")]
    assert in_the_log(other)[0] == [("k", "y"), ("k", "z")]


def played_again(spark, words, checkpoint, each_batch):
    """Runs the last batch again, as if Spark had not recorded that it was done."""
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    stream(spark, words, checkpoint, each_batch)


def test_a_batch_with_other_rows_is_an_error(spark, words, home, tmp_path):
    """H-T9: what runs again under the same number with other rows, in any of the logs, would be
    dropped unnoticed; an option keeps the first rows, and then the frames are not run.
    """
    checkpoint, other = tmp_path / "checkpoint", str(tmp_path / "other")
    changed, options = [], {"writerId": "job"}

    def both(df, t, _):
        t.write(df, home)
        t.write(df.selectExpr("key", f"'{len(changed)}' as value"), other)

    def each_batch(df, batch_id):
        transact_batches(home, both, **options)(df, batch_id)

    words.append([{"key": k, "value": k} for k in "abc"])
    stream(spark, words, checkpoint, each_batch)
    played_again(spark, words, checkpoint, each_batch)
    before = in_the_log(home), in_the_log(other)
    changed.append(True)
    message = "batch 0 of 'job' .*with other rows: 3 in version .*failOnChangedBatch=false"
    with pytest.raises(StreamingQueryException, match=message):
        played_again(spark, words, checkpoint, each_batch)
    options["failOnChangedBatch"] = False
    stream(spark, words, checkpoint, each_batch)
    assert (in_the_log(home), in_the_log(other)) == before
    assert before[1][0] == [(k, "0") for k in "abc"]


def test_a_batch_in_another_order_is_the_same(spark, words, home, tmp_path):
    """A shuffle repeats neither order nor tasks: if the hashes differ rows are compared, in the
    home and in the others.
    """
    checkpoint, other = tmp_path / "checkpoint", str(tmp_path / "other")
    times = []

    def shuffled(df, t, batch_id):
        times.append(batch_id)
        frame = df.repartition(3, "value") if len(times) > 1 else df.coalesce(1)
        t.write(frame, home)
        t.write(frame, other)
        t.write(frame.filter("false"), str(tmp_path / "none"))

    each_batch = transact_batches(home, shuffled)
    words.append([{"key": f"k{i}", "value": str(i)} for i in range(30)])
    stream(spark, words, checkpoint, each_batch)
    before = in_the_log(home), in_the_log(other)
    played_again(spark, words, checkpoint, each_batch)
    assert times == [0, 0]
    assert (in_the_log(home), in_the_log(other)) == before
    assert len(before[1][0]) == 30


def recreated(url):
    shutil.rmtree(url)
    return Log.create(url, partitions=1)


@pytest.mark.parametrize("when", ["between batches", "before the commit", "deleted for good"])
def test_a_home_that_was_recreated_is_told_once(spark, home, when):
    """S47: what was written before is gone, and no handle of it stays: the next try continues in
    the log that is there.
    """
    frame = spark.createDataFrame([("a", "1")], "key string, value string")

    def batch(number, *, replaces=False):
        def each_batch(df, t, _):
            t.write(df, home)
            if replaces:
                recreated(home)

        transact_batches(home, each_batch, writerId="job")(frame, number)

    batch(0)
    if when == "between batches":
        recreated(home)
    elif when == "deleted for good":
        shutil.rmtree(home)
    with pytest.raises(LogReplacedError, match=r"deleted and recreated|is not the log that"):
        batch(1, replaces=when == "before the commit")
    assert not objects_of(home)
    batch(1)
    assert in_the_log(home)[0] == [("a", "1")]
    assert Log.open(home).transaction("job", sequence=1).result.offsets


@pytest.mark.parametrize("which", ["home", "other"])
def test_a_log_that_is_recreated_while_tasks_write_gets_nothing(spark, home, tmp_path, which):
    """S47: the objects are in the folder of the deleted log, and would be missing in the one that
    is there.
    """
    frame = spark.createDataFrame([("a", "1")], "key string, value string")
    urls = {"home": home, "other": str(tmp_path / "other")}
    target = urls[which]

    def recreate(batches):
        from clog.storage import Log

        shutil.rmtree(target)
        Log.create(target, partitions=1)
        yield from batches

    def batch(number, frames):
        def each_batch(df, t, _):
            for name, url in urls.items():
                t.write(frames.get(name, df), url)

        transact_batches(home, each_batch, writerId="job")(frame, number)

    batch(0, {})
    with pytest.raises(LogReplacedError, match="was deleted and recreated"):
        batch(1, {which: frame.mapInArrow(recreate, frame.schema)})
    assert in_the_log(target) == ([], [])
    batch(1, {})
    assert in_the_log(target)[0] == [("a", "1")]
    (other,) = set(urls.values()) - {target}
    assert in_the_log(other)[0] == [("a", "1")] * 2
