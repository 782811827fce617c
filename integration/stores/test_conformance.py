"""The axioms of a store (COMMIT.md §1) on real servers; where one breaks them, the refusal."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import keeps_versions

from clog.storage import Log, UnsupportedFilesystemError
from clog.storage.store import open_store
from clog.storage.store.conformance import CHECKS
from clog.storage.store.contract import ObjectExistsError
from clog_testing.conformance import StoreConformance
from clog_testing.invariants import check_log
from clog_testing.model import rows_in

SERVERS = ["ministack", "minio", "versitygw", "ceph_rgw", "fake_gcs", "azurite", "openssh"]
IMAGES = ["minio_container", "azurite_container", "fake_gcs_container"]


class OnAServer(StoreConformance):
    """Fewer rounds than on local files: a request takes milliseconds."""

    thread_rounds = 10
    process_rounds = 15


class TestMiniStack(OnAServer):
    """S3, whose conflicts s3fs does not recognise: 412 without a condition's name."""

    secrets = ("test-secret-key", "test-access-key")

    @pytest.fixture
    def store(self, ministack):
        return open_store(*ministack)


@pytest.mark.timeout(1800)  # the first test builds the server
class TestMinio(OnAServer):
    """A real server of S3; also where the bucket keeps versions."""

    secrets = ("test-secret-key", "test-access-key")

    @pytest.fixture(params=["minio", "minio_versioned"])
    def store(self, request):
        return open_store(*request.getfixturevalue(request.param))


@pytest.mark.timeout(1800)
class TestVersitygw(OnAServer):
    """A gateway of S3 before a folder."""

    secrets = ("test-secret-key", "test-access-key")

    @pytest.fixture
    def store(self, versitygw):
        return open_store(*versitygw)


class TestCeph(OnAServer):
    """Ceph's gateway, before a cluster of one disk in memory."""

    secrets = ("test-secret-key", "test-access-key")

    @pytest.fixture
    def store(self, ceph_rgw):
        return open_store(*ceph_rgw)


class TestFakeGcsServer(OnAServer):
    """GCS by gcsfs."""

    @pytest.fixture
    def store(self, fake_gcs):
        return open_store(*fake_gcs)


class TestAzurite(OnAServer):
    """Azure Blob Storage by adlfs."""

    secrets = ("Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq",)

    @pytest.fixture
    def store(self, azurite):
        return open_store(*azurite)


class TestOpenSsh(OnAServer):
    """SFTP by paramiko."""

    @pytest.fixture
    def store(self, openssh):
        return open_store(*openssh)


@pytest.mark.containers
class TestContainers(OnAServer):
    """The same on images, where there is an engine: MinIO, and the emulators' own."""

    @pytest.fixture(params=IMAGES)
    def store(self, request):
        return open_store(*request.getfixturevalue(request.param))


@pytest.mark.parametrize("server", SERVERS)
def test_a_log_lives_there(server, request):
    """Created, appended to, cleaned and reopened by URL, it is sound and holds what was written."""
    url, options = request.getfixturevalue(server)
    log = Log.create(url, partitions=2, storage_options=options)
    for i in range(9):
        log.append([{"key": f"k{i % 3}", "value": str(i)}], partition=i % 2)
    reopened = Log.open(url, storage_options=options)
    assert len(rows_in(reopened.read())) == 9
    assert reopened.version == log.version == 9
    check_log(open_store(url, options), every_version=False)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("server", "broken"),
    [
        ("minio_versioned", []),
        ("versitygw_versioned", ["presence"]),  # a deleted name cannot be created again
    ],
)
def test_verify_store_goes_through_where_versions_are_kept(server, broken, request):
    """Though a folder of delete markers is listed after each check."""
    url, options = request.getfixturevalue(server)
    texts = {name: o if isinstance(o, str) else json.dumps(o) for name, o in options.items()}
    given = [word for name, text in texts.items() for word in ("-o", f"{name}={text}")]
    command = [str(Path(sys.executable).parent / "clog"), "verify", url, "--store", "--rounds", "3"]
    command += ["--json", *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == bool(broken), done.stderr
    checks = json.loads(done.stdout)["checks"]
    assert [check["check"] for check in checks if check["problem"]] == broken
    assert len(checks) == len(CHECKS)


def test_ceph_with_versions_is_refused(ceph_rgw):
    """It ignores the condition there: at the probe, or at the commit after it was switched on."""
    url, options = ceph_rgw
    log = Log.create(url, storage_options=options)
    log.append([{"key": "a", "value": "1"}])
    keeps_versions(url, options)
    with pytest.raises(UnsupportedFilesystemError, match="versioning was switched on"):
        log.append([{"key": "b", "value": "2"}])
    with pytest.raises(UnsupportedFilesystemError, match="reported success for a second create"):
        log.append([{"key": "c", "value": "3"}])
    assert len(rows_in(Log.open(url, storage_options=options).read())) == 2


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


@pytest.mark.parametrize("server", SERVERS)
def test_a_store_survives_a_fork(server, request):
    """One used before goes on in parent and child."""
    store = open_store(*request.getfixturevalue(server))
    done = subprocess.run(
        [sys.executable, "-c", FORK],
        input=pickle.dumps(store),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert store.get("parent") == b"1"


def test_a_broken_connection_is_made_anew(openssh):
    """An SFTP server restarts, a firewall forgets: the next call connects again."""
    store = open_store(*openssh)
    store.put("a", b"1")
    store.filesystem()[0].client.close()
    assert store.get("a") == b"1"
    with pytest.raises(FileNotFoundError):
        store.get("b")


@pytest.mark.parametrize(
    ("server", "endpoint"), [("rclone_s3", "http://127.0.0.1"), ("rclone_sftp", "sftp://127.0.0.1")]
)
def test_a_server_that_overwrites_is_refused(server, endpoint, request):
    """It answers success to a second create: asked once, refused, and nothing is left."""
    url, options = request.getfixturevalue(server)
    store = open_store(url, options)
    with pytest.raises(UnsupportedFilesystemError) as raised:
        store.create("a", b"1")
    assert endpoint in str(raised.value)
    assert "reported success for a second create of the same object" in str(raised.value)
    assert "test-" not in str(raised.value).replace(url, "")
    assert list(store.list("")) == []
    assert list(store.list_temporary("")) == []


def test_a_single_writer_may_use_it(rclone_s3):
    """With a warning, and a look before each create."""
    url, options = rclone_s3
    store = open_store(url, options, single_writer=True)
    with pytest.warns(RuntimeWarning, match="without exclusive create"):
        store.create("a", b"1")
    with pytest.raises(ObjectExistsError):
        store.create("a", b"2")
    assert store.get("a") == b"1"
