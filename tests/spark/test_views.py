"""The views in Spark, and the stream that follows a snapshot."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from clog.cleaner import Cleaner
from clog.connector import snapshot_and_stream
from clog.storage import Log
from clog.storage.errors import OptionError

KEYS = 12


def churn(url, rounds):
    """Appends and cleans, as two other jobs would."""
    log = Log.open(url)
    for i in range(rounds):
        keys = [f"k{(i * 5 + j) % KEYS}" for j in range(7)]
        log.append(
            [
                {"key": key, "value": None if (i + j) % 4 == 0 else f"{i}"}
                for j, key in enumerate(keys)
            ]
        )
        if i % 3 == 2:
            log.roll()
            Cleaner(Log.open(url)).run_once(force=True)


def state_of(frame):
    rows = frame.selectExpr("cast(key as string) k", "cast(value as string) v").collect()
    assert len({row.k for row in rows}) == len(rows)
    return {row.k: row.v for row in rows}


@pytest.mark.core
def test_a_snapshot_and_its_stream_have_no_gap_and_no_overlap(spark, url, tmp_path):
    """Whatever is appended and cleaned before and while they are read: every record after the
    snapshot comes once, and both together equal the table at the end.
    """
    log = Log.create(url, partitions=2, config={"min.cleanable.dirty.ratio": "0"})
    churn(url, 6)
    given = snapshot_and_stream(spark, url)
    before = {
        row["key"].decode(): row["value"].decode() for row in log.table().to_arrow().to_pylist()
    }
    assert (given.version, given.offsets) == (log.version, log.end_offsets())
    seen = []

    def each_batch(frame, _):
        seen.extend(
            frame.selectExpr("partition", "offset", "string(key)", "string(value)").collect()
        )

    def run():
        writer = given.stream.writeStream.foreachBatch(each_batch).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    churn(url, 4)
    assert state_of(given.table) == before, "not planned before, and yet of its version"
    with ThreadPoolExecutor(1) as others:
        churning = others.submit(churn, url, 9)
        run()
        churning.result()
    run()
    places = [tuple(row[:2]) for row in seen]
    assert len(set(places)) == len(places)
    ends = log.end_offsets()
    for p, start in given.offsets.items():
        mine = [offset for q, offset in places if q == p]
        assert mine == sorted(mine)
        kept = {row["offset"] for b in log.read(partition=p, start=start) for row in b.to_pylist()}
        assert kept <= set(mine) <= set(range(start, ends[p]))
    state = before | {key: value for _, _, key, value in seen}
    final = {key: value for key, value in state.items() if value is not None}
    assert final == state_of(spark.read.format("clog").option("view", "table").load(url))


def test_a_snapshot_takes_options_of_both_reads(spark, url):
    """Except for those that say where they start or end."""
    Log.create(url, partitions=2).append([{"key": "a", "value": "1"}], partition=1)
    given = snapshot_and_stream(spark, url, partitions="1", columns="key,value", singleWriter=False)
    assert given.offsets == {1: 1}
    assert given.table.columns == given.stream.columns == ["key", "value"]
    assert state_of(given.table) == {"a": "1"}
    for name in ("startingOffsets", "asOfTimestamp"):
        with pytest.raises(OptionError, match=name):
            snapshot_and_stream(
                spark, url, **{name: "1" if name == "asOfTimestamp" else "earliest"}
            )


def test_small_partitions_share_a_task(queries, url):
    """A task for each partition would cost Spark more than reading them."""
    log = Log.create(url, partitions=100)
    for value in "12":
        log.append([{"key": f"k{j}", "value": value} for j in range(300)])
    table = queries.read(url, view="table")
    assert table.rdd.getNumPartitions() == 1
    assert state_of(table) == {f"k{j}": "2" for j in range(300)}


def test_views_in_several_tasks(spark, queries, url):
    """`view=table` at a version, and `view=latest` since it."""
    log = Log.create(url, partitions=1)
    for i in range(5):
        log.append([{"key": f"k{j}", "value": f"{i}"} for j in range(i, 8)])
    version = log.version
    log.append([{"key": "k7", "value": None}, {"key": "new", "value": "x"}])
    table = queries.read(url, view="table", asOfVersion=version, minPartitions=3)
    assert table.rdd.getNumPartitions() >= 3
    assert state_of(table) == {f"k{j}": str(min(j, 4)) for j in range(8)}
    changed = queries.read(url, view="latest", sinceVersion=version)
    assert state_of(changed) == {"k7": None, "new": "x"}


def test_a_log_that_is_recreated_after_the_snapshot(spark, url, tmp_path):
    """S47: neither the table nor the stream shows the log that was created in its place."""
    log = Log.create(url, partitions=1)
    log.append([{"key": "a", "value": "1"}])
    given = snapshot_and_stream(spark, url)
    shutil.rmtree(url)
    again = Log.create(url, partitions=1)
    for value in "23":
        again.append([{"key": "b", "value": value}])
    with pytest.raises(Exception, match="was deleted and recreated"):
        given.table.collect()
    writer = given.stream.writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(Exception, match="was deleted and recreated"):
        query.awaitTermination()
