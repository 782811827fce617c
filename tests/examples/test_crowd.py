"""The example of many processes, killed a few times: each append once."""

import subprocess
import sys
from pathlib import Path

import pytest

CROWD = Path(__file__).parents[2] / "examples" / "crowd"


@pytest.mark.nightly
def test_processes_that_are_killed_append_each_once():
    """Whichever is killed, what was acknowledged is there, and nothing is there twice."""
    command = [sys.executable, "run.py", "--processes", "4", "--appends", "40"]
    run = subprocess.run(command, cwd=CROWD, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "4 kills; " in run.stdout
    assert ": 0 of them are lost" in run.stdout
    assert ", 0 of them twice" in run.stdout
