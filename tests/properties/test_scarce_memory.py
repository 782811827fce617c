"""A log decides how much memory its reader needs: if there is less, it is a clog error."""

import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clog.storage import Log, OutOfMemoryError, StoreUnavailableError
from clog.storage.format import documents
from clog_testing.crash import discard, memory_store
from clog_testing.model import rows_in

_OPEN = """
import re, resource, sys
from clog.storage import ClogError, Log

used = int(re.search(r"VmSize:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20),) * 2)
try:
    Log.open(sys.argv[1])
except ClogError as e:
    print(type(e).__name__, e)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_a_document_that_takes_more_memory_than_there_is(tmp_path):
    """8 MiB of empty lists take 180 MiB: the error names the document, and is not a raw
    MemoryError.
    """
    url = str(tmp_path / "log")
    log = Log.create(url, 1)
    stored = documents.body_json({"later": [[]] * ((8 << 20) // 3)})
    log.handle.store.put(documents.commit_path(0), documents.encode_json("commit", stored))
    done = subprocess.run(
        [sys.executable, "-c", _OPEN, url], capture_output=True, text=True, check=False
    )
    told = "OutOfMemoryError commits/00000000000000000000.json of "
    assert done.stdout.startswith(told), done
    assert "needs more memory than is available" in done.stdout


def test_an_object_that_takes_more_memory_than_there_is(monkeypatch):
    """Arrow's own error for it is neither passed on nor taken for damage."""
    store = memory_store()
    log = Log.create(store, 1)
    log.append([{"key": "k", "value": "v"}])

    def fails(*_, **__):
        raise pa.ArrowMemoryError("malloc of size 68719476736 failed")

    monkeypatch.setattr(pq, "read_metadata", fails)
    with pytest.raises(OutOfMemoryError, match=r"data/.* needs more memory than is available") as e:
        rows_in(log.read())
    assert isinstance(e.value, StoreUnavailableError)  # as which release 0.1.0 raised it
    discard(store)
