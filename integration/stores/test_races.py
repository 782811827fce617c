"""The large race: eight processes, 500 commits each, on one log. Takes minutes.

pytest integration/stores -s
"""

import time

import pytest

from clog.storage import Log
from clog.storage.diagnostics.verify import verify_log
from clog.storage.store import open_store
from clog_testing.races import append_in_processes, check_races

PROCESSES, COMMITS = 8, 500


def race(url, storage_options=None):
    """Runs the race, checks the log as a whole, and says how long the appends took."""
    log = Log.create(url, partitions=4, storage_options=storage_options)
    begin = time.monotonic()
    append_in_processes(url, storage_options, processes=PROCESSES, commits=COMMITS)
    took_s = time.monotonic() - begin
    check_races(log, processes=PROCESSES, commits=COMMITS)
    assert verify_log(open_store(url, storage_options), quick=True).findings == ()
    print(f"\n{log.url}: {log.version} commits by {PROCESSES} processes in {took_s:.1f} s")


@pytest.mark.timeout(3600)
def test_local_files(tmp_path):
    race(str(tmp_path / "log"))


@pytest.mark.s3
@pytest.mark.timeout(3600)
def test_s3(s3_url, s3_options):
    race(s3_url, s3_options)
