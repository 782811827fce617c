"""`integration/capture/soak.py`, for a short time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
def test_every_cut_keeps_the_invariants(postgres_server, tmp_path):
    """S76, S77: of a busy database, while capture, cleaner and server are killed."""
    run = subprocess.run(
        [
            *(sys.executable, ROOT / "integration/capture/soak.py", "--disk", "--minutes", "1"),
            *("--tables", "5", "--spark-every", "0", "--cuts", "12"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    told = json.loads(run.stdout)
    assert told["kills"]["capture, load"]
    assert told["cuts"] >= 12
    assert told["committed"] > 100
