"""The stores of this release keep the axioms (COMMIT.md §1): the conformance suite on each."""

import errno
import itertools
import os
import pickle
import subprocess
import sys

import pytest

from clog.storage import UnsupportedFilesystemError
from clog.storage.store import local, open_store
from clog_testing.conformance import StoreConformance
from clog_testing.counting import CountingStore
from clog_testing.faults import FaultyStore

_roots = itertools.count()


class TestLocalFiles(StoreConformance):
    """A folder, which does not exist yet."""

    @pytest.fixture
    def store(self, tmp_path):
        return open_store(f"{tmp_path}/logs/orders")


class TestLocalFilesByUrl(StoreConformance):
    """``file://`` is the same, and without fsync nothing else changes."""

    processes = False
    thread_rounds = 5

    @pytest.fixture
    def store(self, tmp_path):
        return open_store(f"file://{tmp_path}/logs/orders", {"fsync": False})


class TestLocalFilesWithoutHardLinks(StoreConformance):
    """If links are refused a rename that never replaces is used instead."""

    processes = False  # the patch below does not reach them

    @pytest.fixture
    def store(self, tmp_path, monkeypatch):
        def no_links(*names, **folders):
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", no_links)
        return open_store(f"{tmp_path}/logs/orders")


class TestMemory(StoreConformance):
    """One process, many threads."""

    processes = False
    thread_rounds = 200

    @pytest.fixture
    def store(self):
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # threads change places between any two steps
        yield open_store(f"memory://conformance/{next(_roots)}")
        sys.setswitchinterval(interval)


@pytest.mark.s3
class TestS3(StoreConformance):
    """s3fs against a server that other processes use at the same time."""

    secrets = ("test-secret-key", "test-access-key")
    thread_rounds = 10

    @pytest.fixture
    def store(self, s3_url, s3_options):
        return open_store(s3_url, s3_options)


@pytest.mark.s3
class TestTheRootOfABucket(StoreConformance):
    """A log may be a whole bucket; ``s3a://`` is how Hadoop writes it."""

    processes = False
    thread_rounds = 3

    @pytest.fixture
    def store(self, s3_bucket, s3_options):
        return open_store(f"s3a://{s3_bucket}/", s3_options)


class TestTheKitsOwnStores(StoreConformance):
    """Counting and without a fault, a store guarantees what the inner one does."""

    processes = False
    thread_rounds = 5

    @pytest.fixture
    def store(self, tmp_path):
        return _Travelling(FaultyStore(CountingStore(open_store(f"{tmp_path}/log"))))


class _Travelling:
    """The kit's stores count under a lock and cannot be sent; their inner store can."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def __reduce__(self):
        return open_store, (self._store.url,)


FORK = """
import os, pickle, sys
store = pickle.load(sys.stdin.buffer)
store.put("before", b"1")
child = os.fork()
if child == 0:
    store.create("child", store.get("before"))
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
store.create("parent", store.get("child"))
"""


@pytest.mark.parametrize("kind", ["local", pytest.param("s3", marks=pytest.mark.s3)])
def test_a_store_survives_a_fork(kind, tmp_path, request):
    """One that was used before continues in parent and child: clients, which cannot, are created
    again.
    """
    if kind == "local":
        store = open_store(f"{tmp_path}/log")
    else:
        options = request.getfixturevalue("s3_options")
        store = open_store(request.getfixturevalue("s3_url"), options)
    done = subprocess.run(
        [sys.executable, "-c", FORK],
        input=pickle.dumps(store),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert store.get("parent") == b"1"


def test_without_links_and_renames_local_files_are_refused(tmp_path, monkeypatch):
    """Nothing is left that is exclusive and complete; reading and putting still work."""

    def no_links(*names, **folders):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(local, "_rename_no_replace_code", lambda *_: errno.EINVAL)
    store = open_store(f"{tmp_path}/log")
    store.put("object", b"1")
    with pytest.raises(UnsupportedFilesystemError, match="neither hard links nor a rename"):
        store.create("other", b"1")
    assert store.get("object") == b"1"
    assert [o.path for o in store.list("")] == ["object"]
    assert list(store.list_temporary("")) == []
