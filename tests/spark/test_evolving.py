"""A log that evolves under a running query, and under frames that were made before (S61)."""

import random

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from tests.properties.evolving import Evolving
from tests.unit.evolutions import EVOLUTIONS, x_of

from clog.connector import read_log, read_table
from clog.storage import Log

FRAMES = [e for e in EVOLUTIONS if e.name != "large"]


@pytest.mark.core
def test_a_float_widened_under_a_stream_is_told_and_then_read_unrounded(queries, tmp_path):
    """While it runs, and started again as it was loaded; loaded again, with the same checkpoint, it
    has each record once.
    """
    evolution = next(e for e in EVOLUTIONS if e.name == "rounded")
    log = evolution.create(str(tmp_path / "log"))
    schema = {"key": pa.int32(), "value": pa.struct([("x", pa.float64())])}
    target = Log.create(str(tmp_path / "target"), 1, schema=schema)

    def started(frame):
        rows = frame.select("key", "value").writeStream.format("clog")
        return rows.option("checkpointLocation", str(tmp_path / "check")).start(target.url)

    options = {"startingOffsets": "earliest", "pollInterval": "0s"}
    frame = queries.stream(log.url, **options)
    query = started(frame)
    query.processAllAvailable()
    log.evolve(**evolution.change)
    log.append([evolution.record(2, evolution.after)])
    told = "value.x of .* is double since version 2, .* load the source again: .* stays valid"
    with pytest.raises(StreamingQueryException, match=told):
        query.processAllAvailable()
    with pytest.raises(StreamingQueryException, match=told):
        started(frame).processAllAvailable()
    again = started(queries.stream(log.url, **options))
    again.processAllAvailable()
    again.stop()
    values = [row["value"]["x"] for batch in target.read() for row in batch.to_pylist()]
    assert values == [evolution.before, evolution.after]


def test_frames_of_a_version_show_it_after_the_log_evolved(spark, tmp_path):
    """Of Spark's own scan, kept from before, cached and made since."""
    for evolution in FRAMES:
        log = evolution.create(str(tmp_path / evolution.name))
        kept = [read_table(spark, log.url), read_log(spark, log.url)]
        cached = read_table(spark, log.url).cache()
        assert cached.count() == 1
        log.evolve(**evolution.change)
        log.append([evolution.record_since(3, evolution.after)])
        former, newest = read_table(spark, log.url, version=1), read_table(spark, log.url)
        for frames, before in (
            ([*kept, cached, former], evolution.before),
            ([newest], evolution.shown),
        ):
            for frame in frames:
                found = [x_of(row.value.asDict(recursive=True)) for row in frame.collect()]
                assert (before if "map" not in evolution.name else dict(before)) in found
        assert kept[0].count() == 1
        assert newest.count() == 2
        cached.unpersist()


ROWS = [{"id": n, "a": n, "b": -n, "s": {"x": n, "y": -n}, "note": f"old {n}"} for n in range(4)]


def test_columns_with_other_names_are_read_by_spark(spark, queries, tmp_path):
    """By its own scan and by tasks, with conditions: names that were swapped, and one that is used
    again; frames and a stream of the names from before are told.
    """
    log = Log.create(str(tmp_path / "log"), 1, key="id", like=ROWS)
    log.append(ROWS)
    before = spark.read.format("clog").option("view", "table").load(log.url)
    stream = queries.stream(log.url, startingOffsets="earliest", pollInterval="0s")
    rows = stream.select("key", "value").writeStream.format("memory").queryName("moved")
    query = rows.start()
    query.processAllAvailable()
    log.evolve(
        rename={"a": "b", "b": "a", "s.x": "y", "s.y": "x", "id": "nr"},
        drop=["note"],
        add={"note": pa.string()},
    )
    log.append([{"nr": 9, "a": 9, "b": 9, "s": {"x": 9, "y": 9}, "note": "new"}])
    told = "column id of .* is called nr since version 2, but is called id in this read"
    with pytest.raises(PySparkException, match=told):
        before.collect()
    told = "column value.a of .* is called value.b since version 2, but is called value.a"
    with pytest.raises(StreamingQueryException, match=told):
        query.processAllAvailable()
    wanted = {row["nr"]: row for row in log.table().to_pylist()}
    assert wanted[3] == {"nr": 3, "b": 3, "a": -3, "s": {"y": 3, "x": -3}, "note": None}
    tasks = spark.read.format("clog").option("view", "table").load(log.url)
    for frame in (read_table(spark, log.url), tasks):
        assert {row.nr: row.asDict(recursive=True) for row in frame.collect()} == wanted
        for where, numbers in (
            ("b > 2", {3, 9}),
            ("a < -1", {2, 3}),
            ("s.y > 2", {3, 9}),
            ("s.x < -1", {2, 3}),
            ("note IS NULL", {0, 1, 2, 3}),
            ("note = 'new'", {9}),
            ("nr = 2", {2}),
        ):
            assert {row.nr for row in frame.where(where).select("nr").collect()} == numbers, where
    records = read_log(spark, log.url).select("key", "value.b", "value.s.y", "value.note")
    assert {tuple(row) for row in records.collect()} == {
        (row["nr"], row["b"], row["s"]["y"], row["note"]) for row in wanted.values()
    }
    old = read_table(spark, log.url, version=1)
    assert {row.id: row.asDict(recursive=True) for row in old.collect()} == {
        row["id"]: row for row in ROWS
    }


@pytest.mark.nightly
def test_thirty_evolutions_are_read_right_at_each_version(spark, tmp_path):
    """By Spark's own scan and by tasks, with the columns of the version."""
    model = Evolving.create(str(tmp_path / "log"), random.Random(30), 1)
    while model.evolutions < 30:
        model.append()
        model.evolve()
    url = model.log.url
    for version, (names, value, _) in model.versions.items():
        tasks = spark.read.format("clog").option("view", "table").option("asOfVersion", version)
        for frame in (read_table(spark, url, version=version), tasks.load(url)):
            assert frame.columns == [*names, *(node.name for node in value.inner)]
            found = [row.asDict(recursive=True) for row in frame.collect()]
            wanted = [_as_spark(row, value) for row in model.table(version)]
            assert sorted(found, key=lambda row: row[names[0]]) == wanted, version


def _as_spark(row, value):
    """A row with maps as dicts."""
    kinds = {node.name: node for node in value.inner}
    return {name: _plain(one, kinds.get(name)) for name, one in row.items()}


def _plain(value, node):
    if node is None or value is None:
        return value
    if node.kind == "struct":
        return {inner.name: _plain(value[inner.name], inner) for inner in node.inner}
    if node.kind == "list":
        return [_plain(one, node.inner[0]) for one in value]
    if node.kind == "map":
        return {k: _plain(one, node.inner[0]) for k, one in value}
    return value
