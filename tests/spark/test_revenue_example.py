"""`examples/revenue`, as its page says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "revenue"


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_each_version_of_the_revenue_is_that_of_the_full_query(tmp_path):
    """S83: through a kill, with orders and customers that change, go and come late."""
    pytest.importorskip("matplotlib")
    command = [sys.executable, "run.py", "--kills", "1", "--folder", str(tmp_path)]
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, cwd=FOLDER, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "1 kills: each equal to the full query" in done.stdout
    assert (tmp_path / "revenue.png").read_bytes().startswith(b"\x89PNG")
