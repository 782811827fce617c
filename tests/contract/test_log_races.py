"""Eight processes on one log: every record once, dense offsets, each producer's order."""

import pytest

from clog.storage import Log
from clog.storage.store import open_store
from clog_testing.invariants import check_log
from clog_testing.races import TYPED, append_in_processes, check_races


def test_eight_processes_on_local_files(tmp_path):
    url = str(tmp_path / "log")
    log = Log.create(url, partitions=3)
    append_in_processes(url, processes=8, commits=40)
    check_races(log, processes=8, commits=40)
    check_log(open_store(url), every_version=False)


def test_four_processes_on_a_typed_log(tmp_path):
    """Its records are where the canonical bytes of their keys say, whoever wrote them (S61)."""
    url = str(tmp_path / "log")
    log = Log.create(url, partitions=3, schema=TYPED)
    append_in_processes(url, processes=4, commits=10)
    check_races(log, processes=4, commits=10)
    check_log(open_store(url), every_version=False)
    keys = [(row["partition"], str(row["key"])) for row in rows_of(log)]
    assert len({key for _, key in keys}) == len(set(keys)) == 4 * 7


def rows_of(log):
    return [row for batch in log.read(columns=["partition", "key"]) for row in batch.to_pylist()]


@pytest.mark.s3
@pytest.mark.nightly
def test_four_processes_on_s3(s3_url, s3_options):
    log = Log.create(s3_url, partitions=3, storage_options=s3_options)
    append_in_processes(s3_url, s3_options, processes=4, commits=10)
    check_races(log, processes=4, commits=10)
