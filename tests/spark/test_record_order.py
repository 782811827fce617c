"""Logs in which the record with the highest order wins, as Spark reads and writes them (S56)."""

import struct

import pytest

from clog.cleaner import Cleaner
from clog.connector import count_table, native, read_table, snapshot_and_stream
from clog.storage import Log

CONFIG = {
    "compaction.strategy": "header",
    "compaction.strategy.header": "lsn",
    "min.cleanable.dirty.ratio": "0",
}


@pytest.fixture(autouse=True)
def not_said_before(monkeypatch):
    monkeypatch.setattr(native, "_SAID", set())


def row(key, order, value="v"):
    text = None if value is None else f"{key}-{order}"
    return {"key": key, "value": text, "headers": [("lsn", struct.pack(">q", order))]}


def of(frame):
    return {bytes(r.key): r.value and bytes(r.value) for r in frame.collect()}


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_every_read_of_a_table_shows_the_highest_order(spark, tmp_path, caplog, is_cleaned):
    """S56: Spark's own scan, Python's tasks, a look-up, and what changed since a version."""
    url = str(tmp_path / "log")
    log = Log.create(url, 2, CONFIG)
    log.append([row(f"k{i}", 10 + i) for i in range(20)])
    log.append([row(f"k{i}", 5) for i in range(0, 20, 2)] + [row("gone", 9)])
    if is_cleaned:
        log.roll()
        Cleaner(log).run_once(force=True)
    since = log.version
    log.append([row("k1", 99), row("k2", 1), row("k3", 100, None), row("gone", 8, None)])
    expected = dict(log.table().get_many([f"k{i}" for i in range(20)] + ["gone"]).items())
    assert len(expected) == 20
    assert expected[b"k1"] == b"k1-99"
    assert expected[b"k2"] == b"k2-12"
    assert expected[b"gone"] == b"gone-9"
    assert of(read_table(spark, url)) == expected
    assert not caplog.records
    assert count_table(url) == 20
    assert of(read_table(spark, url, keys=["k2"])) == {b"k2": b"k2-12"}
    table = spark.read.format("clog").option("view", "table")
    assert of(table.load(url)) == expected
    assert of(table.option("minPartitions", "4").load(url)) == expected
    latest = spark.read.format("clog").options(view="latest", sinceVersion=str(since))
    assert of(latest.load(url)) == {b"k1": b"k1-99", b"k3": None}
    assert of(snapshot_and_stream(spark, url).table.select("key", "value")) == expected
