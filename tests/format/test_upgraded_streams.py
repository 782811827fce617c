"""A Spark job of release 0.1.0 goes on under this one: five queries with their
checkpoints, killed in the middle of their batches (docs/upgrading.md).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from upgrading.job import BATCH, BATCHES, KEYS

from clog.storage import Log
from clog.storage.diagnostics.verify import verify_log
from clog.storage.store import open_store

(WHEEL,) = (Path(__file__).parent / "releases").glob("*.whl")
JOB = Path(__file__).parent / "upgrading" / "job.py"
RUN = BATCHES * BATCH
LOGS = ("source", "copy", "counts", "home", "other", "typed", "follow")
pytestmark = [pytest.mark.nightly, pytest.mark.spark]


class Job:
    """Runs `job.py`, which appends to what it reads."""

    def __init__(self, root, release):
        self.root, self.release = root, release

    def run(self, how, runs=1, *, dies_at=None):
        """Returns how each query of the last run ended; None: it died there, at the Nth commit of
        a log (`sitecustomize`).
        """
        for name in ("begun", "pids"):
            (self.root / name).unlink(missing_ok=True)
        path = [JOB.parent, *([self.release] if how == "old" else [])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PYSPARK_PYTHON": sys.executable,
            "CLOG_DIES": f"{self.root} {dies_at or 'none 1'}",
        }
        command = [sys.executable, JOB, self.root, self.release, how, str(runs)]
        with (self.root / "said").open("w") as said:
            done = subprocess.run(
                command,
                env=environment,
                cwd=self.root,
                check=False,
                stdout=subprocess.PIPE,
                stderr=said,
            )
        assert done.returncode == (-signal.SIGKILL if dies_at else 0), self.said()
        return None if dies_at else json.loads(done.stdout)

    def said(self):
        return (self.root / "said").read_text()[-3000:]

    def rows(self, name):
        return [row for b in Log.open(f"{self.root}/{name}").read() for row in b.to_pylist()]

    def numbers(self, name):
        return sorted(int(row["value"]) for row in self.rows(name))

    def table(self, name, column="value"):
        table = Log.open(f"{self.root}/{name}").table().to_arrow()
        return {row["key"]: row[column] for row in table.to_pylist()}

    def check(self, appended):
        """Each record was taken once by each query."""
        numbers = list(range(appended))
        assert self.numbers("source") == self.numbers("copy") == numbers
        assert self.numbers("home") == self.numbers("other") == numbers
        found = sorted((row["key"], row["value"]["k"]) for row in self.rows("typed"))
        assert found == [(n, f"k{n % KEYS}") for n in numbers]
        counted = Counter(f"k{n % KEYS}" for n in numbers)
        assert self.table("counts", "count") == counted
        assert self.table("follow") == {k.encode(): str(n).encode() for k, n in counted.items()}
        for name in LOGS:
            assert list(verify_log(open_store(f"{self.root}/{name}")).findings) == []


@pytest.fixture
def job(release, spark_home, tmp_path):
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("no Java: put one on the path")
    return Job(tmp_path, release)


@pytest.mark.parametrize("deaths", [("copy 1", "home -3"), ("home 3", "typed 1")])
def test_a_job_goes_on_under_this_release(job, deaths):
    """Killed under 0.1.0, killed again under this release, and run to its end: exact."""
    job.run("old", 2, dies_at=deaths[0])
    job.run("new", dies_at=deaths[1])
    assert not any(job.run("new").values())
    job.check(4 * RUN)
