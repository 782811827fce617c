"""Servers for the tests of this folder; each starts once, when the first test asks for it."""

import getpass
import itertools
import os
import sys
from pathlib import Path

import pytest

# The servers stand beside the tests, which are not a package.
sys.path.insert(0, str(Path(__file__).parent))

import ceph
import servers

# Before gcsfs is imported: else it asks emulators, for a minute, what kind of bucket they have.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")

AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Published by Microsoft: every emulator has it."""

MINIO_IMAGE = "minio/minio:RELEASE.2025-09-07T16-13-09Z"
"""Conditional writes came in August 2024; the default image of testcontainers is older."""

_numbers = itertools.count()


def new_name():
    """A name that no other test of this run has."""
    return f"test-{os.getpid()}-{next(_numbers)}"


def s3_options(endpoint):
    """Storage options of an S3 server."""
    return {
        "key": "test-access-key",
        "secret": "test-secret-key",
        "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"},
    }


def s3_bucket(endpoint):
    """A root in a new bucket, and the options."""
    s3fs = pytest.importorskip("s3fs")
    options, bucket = s3_options(endpoint), new_name()
    s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket=bucket)
    return f"s3://{bucket}/logs/orders", options


def s3_bucket_with_versions(endpoint):
    """A root in a new bucket that keeps versions, and the options."""
    return keeps_versions(*s3_bucket(endpoint))


def keeps_versions(url, options):
    """The same, in a bucket that keeps versions from now on."""
    s3fs = pytest.importorskip("s3fs")
    bucket = url.removeprefix("s3://").partition("/")[0]
    s3fs.S3FileSystem(**options).call_s3(
        "put_bucket_versioning", Bucket=bucket, VersioningConfiguration={"Status": "Enabled"}
    )
    return url, options


def azurite_options(endpoint):
    """Storage options of Azurite."""
    return {
        "account_name": "devstoreaccount1",
        "connection_string": "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
        f"AccountKey={AZURITE_KEY};BlobEndpoint={endpoint};",
    }


def azure_root(options):
    """A root in a new container, and the options."""
    adlfs = pytest.importorskip("adlfs", reason="adlfs is not installed")
    container = new_name()
    adlfs.AzureBlobFileSystem(**options).mkdir(container)
    return f"az://{container}/logs/orders", options


def gcs_root(endpoint):
    """A root in a new bucket, and the options of its server."""
    gcsfs = pytest.importorskip("gcsfs", reason="gcsfs is not installed")
    options = {"endpoint_url": endpoint, "token": "anon", "project": "test"}
    bucket = new_name()
    gcsfs.GCSFileSystem(**options).mkdir(bucket)
    return f"gs://{bucket}/logs/orders", options


def server(start):
    """A server that all tests share; ``start`` takes a folder of its own, and gives where it is."""

    @pytest.fixture(scope="session")
    def started(tmp_path_factory):
        with start(tmp_path_factory.mktemp("server")) as where:
            yield where

    return started


def root(of, name):
    """A root and storage options, which ``of`` makes of what the fixture of this name gives."""

    @pytest.fixture
    def made(request):
        return of(request.getfixturevalue(name))

    return made


ministack_endpoint = server(lambda _: servers.ministack())
ministack = root(s3_bucket, "ministack_endpoint")

minio_endpoint = server(servers.minio)
minio = root(s3_bucket, "minio_endpoint")
minio_versioned = root(s3_bucket_with_versions, "minio_endpoint")

versitygw_endpoint = server(servers.versitygw)
versitygw = root(s3_bucket, "versitygw_endpoint")
versitygw_versioned = root(s3_bucket_with_versions, "versitygw_endpoint")

ceph_endpoint = server(ceph.ceph)
ceph_rgw = root(s3_bucket, "ceph_endpoint")

azurite_endpoint = server(lambda _: servers.azurite())
azurite = root(lambda endpoint: azure_root(azurite_options(endpoint)), "azurite_endpoint")

fake_gcs_endpoint = server(servers.fake_gcs)
fake_gcs = root(gcs_root, "fake_gcs_endpoint")


@pytest.fixture(scope="session")
def rclone_s3_endpoint(tmp_path_factory):
    options = ("--auth-key", "test-access-key,test-secret-key", "--vfs-cache-mode", "writes")
    with servers.rclone("s3", tmp_path_factory.mktemp("rclone-s3"), *options) as port:
        yield f"http://127.0.0.1:{port}"


rclone_s3 = root(s3_bucket, "rclone_s3_endpoint")
"""On a server that answers 200 to any PUT."""


@pytest.fixture
def rclone_sftp(tmp_path):
    """A root on a server whose rename replaces."""
    pytest.importorskip("paramiko", reason="paramiko is not installed")
    login = {"username": "me", "password": "test-password", "host_key_policy": "auto_add"}
    words = ("--user", login["username"], "--pass", login["password"])
    with servers.rclone("sftp", tmp_path, *words) as port:
        yield f"sftp://127.0.0.1:{port}/logs/orders", login


@pytest.fixture(scope="session")
def openssh_server(tmp_path_factory):
    pytest.importorskip("paramiko", reason="paramiko is not installed")
    with servers.openssh(tmp_path_factory.mktemp("sshd")) as (port, key, host_key):
        login = {"username": getpass.getuser(), "key_filename": key, "look_for_keys": False}
        yield port, {**login, "host_key": host_key}


@pytest.fixture
def openssh(openssh_server, tmp_path):
    """A root on OpenSSH: a folder that does not exist yet."""
    port, options = openssh_server
    return f"sftp://127.0.0.1:{port}{tmp_path}/logs/orders", options


@pytest.fixture(scope="session")
def engine():
    """A container engine; ``REQUIRE_CONTAINERS=1`` makes its absence a failure."""
    try:
        import docker

        docker.from_env(timeout=3).ping()
    except Exception as e:
        if os.environ.get("REQUIRE_CONTAINERS") == "1":
            raise
        pytest.skip(f"no container engine: {e}")


@pytest.fixture(scope="session")
def minio_container_endpoint(engine):
    minio = pytest.importorskip("testcontainers.community.minio")
    login = {"access_key": "test-access-key", "secret_key": "test-secret-key"}
    with minio.MinioContainer(image=MINIO_IMAGE, **login) as container:
        yield f"http://{container.get_config()['endpoint']}"


minio_container = root(s3_bucket, "minio_container_endpoint")


@pytest.fixture(scope="session")
def azurite_container_options(engine):
    azurite = pytest.importorskip("testcontainers.community.azurite")
    with azurite.AzuriteContainer() as container:
        connection = container.get_connection_string()
        yield {"account_name": "devstoreaccount1", "connection_string": connection}


azurite_container = root(azure_root, "azurite_container_options")


@pytest.fixture(scope="session")
def fake_gcs_container_endpoint(engine):
    core = pytest.importorskip("testcontainers.core.container")
    port = servers.free_port()
    url = f"http://127.0.0.1:{port}"
    container = core.DockerContainer("fsouza/fake-gcs-server").with_bind_ports(4443, port)
    with container.with_command(f"-scheme http -external-url {url}"):
        servers.wait_for_port(port)
        yield url


fake_gcs_container = root(gcs_root, "fake_gcs_container_endpoint")
