"""What others on the host do to the local file of a table or a store while it is open."""

import subprocess
import sys

import pytest

from clog.storage import Log, StateTable

ANOTHER = "import sys; from clog.storage import StateTable; StateTable(*sys.argv[1:]).close()"


@pytest.fixture
def on_disk(tmp_path):
    """A log that other processes reach, and the folder of their state."""
    return Log.create(str(tmp_path / "log"), partitions=2), tmp_path / "cache"


def put(log, **values):
    log.append([{"key": key, "value": value} for key, value in values.items()])


def test_another_process_closes_the_file(on_disk):
    """It is not the last that has the file open, so it leaves the journal of the others there."""
    log, folder = on_disk
    put(log, a="1", b="1")
    with StateTable(log.url, folder) as table:
        put(log, a="2")
        subprocess.run([sys.executable, "-c", ANOTHER, log.url, str(folder)], check=True)
        assert table.get("a") == b"2"
        put(log, a="3", b=None)
        table.refresh()
        assert dict(table.scan()) == {b"a": b"3"}
        assert (table.get("a"), table.get("b")) == (b"3", None)
        assert len(list(folder.glob("*-wal"))) == 1
