"""Several drivers, and one that dies: what is committed is in the log once."""

import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from clog.storage.log import Log

DRIVER = Path(__file__).with_name("driver.py")
_spec = importlib.util.spec_from_file_location("spark_driver", DRIVER)
driver = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(driver)


@pytest.fixture
def log(url):
    """Four records."""
    log = Log.create(url, partitions=1)
    log.append([{"key": v, "value": v} for v in "abcd"])
    return log


def started(*args):
    """Another driver, of `driver.py`."""
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, DRIVER, *args]
    return subprocess.Popen(
        [*map(str, command)], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_two_drivers_commit_one_batch_at_once(spark, queries, log, tmp_path):
    """Both run batch 0 of one checkpoint, and are in its commit together: it is in the log once,
    and the commit of the slower one returns as if it had won. Spark notices only afterwards.
    """
    target, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"
    other = started(log.url, target, checkpoint, tmp_path, "meet")
    try:
        driver.waited_for(tmp_path / "first", other)
        spark.dataSource.register(driver.meeting_sink(tmp_path, "second", "first"))
        with contextlib.suppress(PySparkException):
            queries.run(
                *(log.url, target, checkpoint), sink_format="clog_second",
                startingOffsets="earliest",
            )  # fmt: skip
        _, errors = other.communicate(timeout=200)
    finally:
        other.kill()
    assert (tmp_path / "second.done").exists()
    assert (tmp_path / "first.done").exists(), errors[-3000:]
    assert queries.values(target) == list("abcd")
    queries.append(log, "e")
    queries.run(log.url, target, checkpoint)
    assert queries.values(target) == list("abcde")


@pytest.mark.slow
def test_a_driver_that_is_killed_in_its_commit_left_the_batch_once(queries, log, tmp_path):
    """SIGKILL between the log's commit and Spark's, of a batch that is not the first: a new driver
    runs it again, and the log knows it.
    """
    target, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"
    queries.run(log.url, target, checkpoint, startingOffsets="earliest")
    queries.append(log, *"ef")
    dying = started(log.url, target, checkpoint, tmp_path, "die")
    try:
        _, errors = dying.communicate(timeout=200)
    finally:
        dying.kill()
    assert dying.returncode == -9, errors[-3000:]
    before = queries.written(target)
    assert [value for *_, value in before] == list("abcdef")
    assert not (checkpoint / "commits" / "1").exists()
    queries.append(log, "g")
    queries.run(log.url, target, checkpoint)
    assert queries.written(target) == [*before, (0, 6, "g")]


def test_of_two_queries_under_one_writer_id_one_is_refused(spark, queries, log, tmp_path):
    """Both are in their first commit together; what the refused one read is not in the log."""
    target = tmp_path / "copy"
    running = []
    for me, other in (("left", "right"), ("right", "left")):
        spark.dataSource.register(driver.meeting_sink(tmp_path, me, other))
        query = queries.copy(
            *(log.url, target, tmp_path / f"checkpoint-{me}"), sink_format=f"clog_{me}",
            sink={"writerId": "copier", "partitions": 1}, startingOffsets="earliest",
        )  # fmt: skip
        running.append(query)
    errors = []
    for query in running:
        try:
            query.awaitTermination()
        except PySparkException as e:
            errors.append(str(e))
    assert len(errors) == 1
    assert "belongs to query" in errors[0]
    assert queries.values(target) == list("abcd")
