"""The jobs of `examples/state`, killed a few times: exact to the record (S54)."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

STATE = Path(__file__).parents[2] / "examples" / "state"


@pytest.fixture
def jobs():
    spec = importlib.util.spec_from_file_location("example_state_jobs", STATE / "jobs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.nightly
@pytest.mark.parametrize("job", ["words", "flights"])
def test_a_job_that_is_killed(tmp_path, job):
    """S48, S54: whatever is killed, replaced or deleted, each record counts once."""
    command = [sys.executable, "run.py", "--kills", "1", "--job", job, "--folder", str(tmp_path)]
    run = subprocess.run(command, cwd=STATE, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{job}: 1 kills" in run.stdout
    assert ", 0 differences" in run.stdout


def test_the_oracle_tells_a_record_that_counts_twice(jobs):
    """So that no difference means something; in both jobs records change the state."""
    for job in jobs.JOBS:
        rows = jobs.records(job, 0, 600)
        right = jobs.expected(job, rows)
        assert len(right) > 10
        for i in (0, 299, 599):
            assert jobs.expected(job, [*rows[: i + 1], *rows[i:]]) != right
            assert jobs.expected(job, [*rows[:i], *rows[i + 1 :]]) != right
    assert any(key.startswith(b"session/") for key in right)
