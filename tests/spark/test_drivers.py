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


def started(folder, *args):
    """Another driver, of `driver.py`; its output goes to a file."""
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with (folder / "said").open("w") as said:
        return subprocess.Popen([sys.executable, DRIVER, *args], env=env, stdout=said, stderr=said)


@pytest.mark.nightly
def test_two_drivers_commit_one_batch_at_once(spark, queries, log, tmp_path):
    """Both run batch 0 of one checkpoint, and commit at the same time: it is in the log once, and
    the commit of the slower one returns as if it had won. Spark notices only afterwards.
    """
    target, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"
    other = started(tmp_path, log.url, target, checkpoint, tmp_path, "meet")
    try:
        driver.waited_for(tmp_path / "first", other)
        spark.dataSource.register(driver.meeting_sink(tmp_path, "second", "first"))
        with contextlib.suppress(PySparkException):
            queries.run(
                *(log.url, target, checkpoint), sink_format="clog_second",
                startingOffsets="earliest",
            )  # fmt: skip
        other.wait(timeout=200)
    finally:
        other.kill()
    assert (tmp_path / "second.done").exists()
    assert (tmp_path / "first.done").exists(), (tmp_path / "said").read_text()
    assert sorted(queries.values(target)) == list("abcd")
    queries.append(log, "e")
    queries.run(log.url, target, checkpoint)
    assert sorted(queries.values(target)) == list("abcde")


@pytest.mark.nightly
def test_a_driver_that_is_killed_in_its_commit_left_the_batch_once(queries, log, tmp_path):
    """SIGKILL between the log's commit and Spark's, in a batch that is not the first: a new driver
    runs it again, and the log recognizes it.
    """
    target, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"
    queries.run(log.url, target, checkpoint, startingOffsets="earliest")
    queries.append(log, *"ef")
    dying = started(tmp_path, log.url, target, checkpoint, tmp_path, "die")
    try:
        dying.wait(timeout=200)
    finally:
        dying.kill()
    assert dying.returncode == -9, (tmp_path / "said").read_text()
    before = queries.written(target)
    assert sorted(value for *_, value in before) == list("abcdef")
    assert not (checkpoint / "commits" / "1").exists()
    queries.append(log, "g")
    queries.run(log.url, target, checkpoint)
    assert sorted(queries.values(target)) == list("abcdefg")
    assert set(before) < set(queries.written(target))


@pytest.mark.nightly
def test_drivers_that_are_killed_in_transactions_left_all_or_nothing(queries, log, tmp_path):
    """SIGKILL after the other log is prepared, then after the home decided: each time the next
    driver ends what was left, and the batch is in both logs once (S50, C14, C15).
    """
    target, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"
    shown = []
    for nth, code in ((3, -9), (6, -9), (99, 0)):
        dying = started(tmp_path, log.url, target, checkpoint, tmp_path, str(nth))
        try:
            dying.wait(timeout=200)
        finally:
            dying.kill()
        assert dying.returncode == code, (tmp_path / "said").read_text()
        shown.append((queries.values(target), queries.values(f"{target}-keys")))
    assert shown[0] == ([], [])
    assert [sorted(values) for values in shown[2]] == [list("abcd")] * 2
    assert sorted(shown[1][0]) == list("abcd")


def test_of_two_queries_under_one_writer_id_one_is_refused(spark, queries, log, tmp_path):
    """Both make their first commit at the same time; what the refused one read is not in
    the log.
    """
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
