"""Real processes, really killed: a small run of `integration/kill` (see its README.md).

The enumeration of crash points beside this file is complete, and plays them in one process; here
the operating system ends the process, so nothing of it can clean up.
"""

import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).parents[2] / "integration" / "kill" / "run.py"
POINTS = "C4 between|C6 after|between groups|in W3|in W5"


def test_nothing_is_lost_and_nothing_doubled(tmp_path):
    """Writer, cleaner and sweeper die in the middle of a commit, a pass and a sweep, and at random
    moments; every record is in the log once, the table is the fold, garbage goes (COMMIT.md §3).
    """
    options = ["--only", "writer,cleaner,sweeper", "--match", POINTS, "--rounds", "1"]
    options += ["--random", "3", "--seed", "1", "--work", str(tmp_path)]
    run = subprocess.run(
        [sys.executable, str(RUN), *options], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    lines = [line for line in run.stdout.splitlines() if line.endswith("ok     │")]
    assert len(lines) >= 5 + 3, run.stdout
