"""Passes of the cleaner as Spark tasks."""

import shutil
from dataclasses import asdict

import pytest

from clog.cleaner import Cleaner
from clog.jobs import clean_with_spark
from clog.storage import Log, ManualClock
from clog.storage.testing.model import rows_in

NOW = 1_000_000_000
TIMES = ("index_ms", "clean_ms")
LARGE = 1 << 30


def make(url, once=0):
    """Three partitions with superseded records and tombstones, and so many keys in each append that
    come but once; the third is clean already.
    """
    config = {"segment.bytes": 300, "min.cleanable.dirty.ratio": 0, "delete.retention.ms": 5000}
    log = Log.create(url, 3, config, clock=ManualClock(NOW))
    for turn in range(12):
        records = [
            {"key": f"k{k}", "value": None if (k + turn) % 5 == 0 else f"{turn}-{k}"}
            for k in range(6)
        ]
        records += [{"key": f"once{turn}-{i}", "value": "x" * 20} for i in range(once)]
        for p in range(3 if turn < 4 else 2):
            log.append(records, partition=p)
    log.roll()
    return log


def state(log):
    """Records, first dirty offsets, segments with their horizons: all that a pass decides."""
    segments = {p: log.segments(p) for p in range(log.partitions)}
    return rows_in(log.read()), log.handle.manifest().first_dirty, segments


@pytest.mark.parametrize("task_bytes", [LARGE, 100])
def test_a_round_by_spark_equals_a_local_one(spark, url, tmp_path, task_bytes):
    """S20, S21, S23: contents, offsets, horizons and counts, over two passes and with maps that
    fill up; where a partition is cleaned by several tasks, too."""
    local = make(url)
    shutil.copytree(url, tmp_path / "other")
    other = Log.open(str(tmp_path / "other"), clock=ManualClock(NOW))
    # The hint names a version, the head an id: both logs are the same one so far.
    for buffer_bytes, ms in ((5 * 24, 0), (1 << 20, 0), (1 << 20, 5001)):
        for log in (local, other):
            log.handle.clock.advance(ms)
        expected = Cleaner(local, dedupe_buffer_bytes=buffer_bytes).run_once(force=True)
        given = {"dedupe_buffer_bytes": buffer_bytes, "task_bytes": task_bytes}
        results = clean_with_spark(spark, other, force=True, **given)
        assert state(other) == state(local)
        assert sorted(r.partition for r in results) == sorted(r.partition for r in expected)
        if task_bytes == LARGE:
            assert counts(results) == counts(expected)
        assert expected


def counts(results):
    return [
        {k: v for k, v in asdict(result.stats).items() if k not in TIMES}
        | {"range": (result.partition, result.first_dirty_offset, result.next_dirty_offset)}
        for result in results
    ]


def test_a_damaged_partition(spark, url):
    """S28: it is marked with the reason, and the others go on."""
    log = make(url)
    path = log.handle.manifest().segments[0][0].chunks[0].object.path
    log.handle.store.put(path, b"\0" * 100)
    # An object of one append holds one partition here.
    results = clean_with_spark(spark, url)
    assert sorted(result.partition for result in results) == [1, 2]
    log.handle.refresh()
    assert "is damaged" in log.handle.manifest().uncleanable[0].reason
