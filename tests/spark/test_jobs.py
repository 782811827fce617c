"""Passes of the cleaner as Spark tasks."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from clog.cleaner import Cleaner
from clog.jobs import clean_with_spark
from clog.storage import Log, ManualClock
from clog.storage.store import open_store
from clog_testing.invariants import check_log
from clog_testing.model import rows_in

NOW = 1_000_000_000
TIMES = ("index_ms", "clean_ms")
CLUSTER = Path(__file__).with_name("cluster.py")


def make(url, once=0):
    """Three partitions with superseded records and tombstones, and many keys in each append that
    occur only once; the third is clean already.
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
    """Records, first dirty offsets, segments with their horizons: everything that a pass
    decides.
    """
    segments = {p: log.segments(p) for p in range(log.partitions)}
    return rows_in(log.read()), log.handle.manifest().first_dirty, segments


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_round_by_spark_equals_a_local_one(spark, url, tmp_path, tasks):
    """S20, S21, S23: contents, offsets, horizons and counts, over two passes and with maps that
    fill up. Several tasks at once, some of which clean one partition, commit at other times and
    make other segments: in the end contents and offsets are the same.
    """
    local = make(url)
    shutil.copytree(url, tmp_path / "other")
    other = Log.open(str(tmp_path / "other"), clock=ManualClock(NOW))
    # The hint names a version, the head an id: both logs are the same one so far.
    for buffer_bytes, ms in ((5 * 24, 0), (1 << 20, 0), (1 << 20, 60_000)):
        for log in (local, other):
            log.handle.clock.advance(ms)
        expected = Cleaner(local, dedupe_buffer_bytes=buffer_bytes).run_once(force=True)
        given = {"dedupe_buffer_bytes": buffer_bytes, "task_bytes": 1 << 30 if tasks == 1 else 100}
        results = clean_with_spark(spark, other, force=True, tasks=tasks, **given)
        assert expected
        if tasks == 1:
            assert state(other) == state(local)
            assert counts(results) == counts(expected)
    assert state(other)[:2] == state(local)[:2]


def counts(results):
    return [
        {k: v for k, v in asdict(result.stats).items() if k not in TIMES}
        | {"range": (result.partition, result.first_dirty_offset, result.next_dirty_offset)}
        for result in results
    ]


def test_a_damaged_partition(spark, url):
    """S28: it is marked with the reason, and the others continue."""
    log = make(url)
    path = log.handle.manifest().segments[0][0].chunks[0].object.path
    log.handle.store.put(path, b"\0" * 100)
    # An object of one append holds one partition here.
    results = clean_with_spark(spark, url)
    assert sorted(result.partition for result in results) == [1, 2]
    log.handle.refresh()
    assert "is damaged" in log.handle.manifest().uncleanable[0].reason


@pytest.mark.nightly
@pytest.mark.timeout(900)  # Three JVMs start.
def test_an_executor_that_is_killed(tmp_path):
    """Design, J2: on a cluster of two worker processes one is killed half way, while several tasks
    clean one partition; the log is what a local cleaner makes of it, and nothing is uncleanable.
    """
    log, twin = (make(str(tmp_path / name), once=6) for name in ("log", "twin"))
    Cleaner(twin).run_once(force=True)
    command = [sys.executable, str(CLUSTER), str(tmp_path)]
    env = os.environ | {"PYSPARK_PYTHON": sys.executable}  # Workers write into SPARK_HOME.
    ran = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == {"died": True, "complete": [0, 1, 2]}
    log.handle.refresh()
    assert state(log)[:2] == state(twin)[:2]
    assert log.handle.manifest().uncleanable == {}
    check_log(open_store(str(tmp_path / "log")), every_version=False)
