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


def s3_root(options):
    """A root in a new bucket, and the options."""
    s3fs = pytest.importorskip("s3fs")
    bucket = new_name()
    s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket=bucket)
    return f"s3://{bucket}/logs/orders", options


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


@pytest.fixture(scope="session")
def ministack_endpoint():
    with servers.ministack() as endpoint:
        yield endpoint


@pytest.fixture
def ministack(ministack_endpoint):
    """A root on MiniStack, and its storage options."""
    return s3_root(s3_options(ministack_endpoint))


@pytest.fixture(scope="session")
def minio_endpoint(tmp_path_factory):
    with servers.minio(tmp_path_factory.mktemp("minio")) as endpoint:
        yield endpoint


@pytest.fixture
def minio(minio_endpoint):
    """A root on MinIO, and its storage options."""
    return s3_root(s3_options(minio_endpoint))


@pytest.fixture
def minio_versioned(minio_endpoint):
    """A root in a bucket of MinIO that keeps versions."""
    return keeps_versions(*s3_root(s3_options(minio_endpoint)))


@pytest.fixture(scope="session")
def versitygw_endpoint(tmp_path_factory):
    with servers.versitygw(tmp_path_factory.mktemp("versitygw")) as endpoint:
        yield endpoint


@pytest.fixture
def versitygw(versitygw_endpoint):
    """A root on versitygw, and its storage options."""
    return s3_root(s3_options(versitygw_endpoint))


@pytest.fixture
def versitygw_versioned(versitygw_endpoint):
    """A root in a bucket of versitygw that keeps versions."""
    return keeps_versions(*s3_root(s3_options(versitygw_endpoint)))


@pytest.fixture(scope="session")
def ceph_endpoint(tmp_path_factory):
    with ceph.ceph(tmp_path_factory.mktemp("ceph")) as endpoint:
        yield endpoint


@pytest.fixture
def ceph_rgw(ceph_endpoint):
    """A root on Ceph's gateway, and its storage options."""
    return s3_root(s3_options(ceph_endpoint))


@pytest.fixture(scope="session")
def rclone_s3_endpoint(tmp_path_factory):
    options = ("--auth-key", "test-access-key,test-secret-key", "--vfs-cache-mode", "writes")
    with servers.rclone("s3", tmp_path_factory.mktemp("rclone-s3"), *options) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def rclone_s3(rclone_s3_endpoint):
    """A root on a server that answers 200 to any PUT."""
    return s3_root(s3_options(rclone_s3_endpoint))


@pytest.fixture
def rclone_sftp(tmp_path):
    """A root on a server whose rename replaces."""
    pytest.importorskip("paramiko", reason="paramiko is not installed")
    login = {"username": "me", "password": "test-password", "host_key_policy": "auto_add"}
    words = ("--user", login["username"], "--pass", login["password"])
    with servers.rclone("sftp", tmp_path, *words) as port:
        yield f"sftp://127.0.0.1:{port}/logs/orders", login


@pytest.fixture(scope="session")
def azurite_endpoint():
    with servers.azurite() as endpoint:
        yield endpoint


@pytest.fixture
def azurite(azurite_endpoint):
    """A root in a new container of Azurite."""
    return azure_root(azurite_options(azurite_endpoint))


@pytest.fixture(scope="session")
def fake_gcs_endpoint(tmp_path_factory):
    with servers.fake_gcs(tmp_path_factory.mktemp("gcs")) as endpoint:
        yield endpoint


@pytest.fixture
def fake_gcs(fake_gcs_endpoint):
    """A root in a new bucket of fake-gcs-server."""
    return gcs_root(fake_gcs_endpoint)


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


@pytest.fixture
def minio_container(minio_container_endpoint):
    """A root on MinIO's image, and its storage options."""
    return s3_root(s3_options(minio_container_endpoint))


@pytest.fixture(scope="session")
def azurite_container_options(engine):
    azurite = pytest.importorskip("testcontainers.community.azurite")
    with azurite.AzuriteContainer() as container:
        connection = container.get_connection_string()
        yield {"account_name": "devstoreaccount1", "connection_string": connection}


@pytest.fixture
def azurite_container(azurite_container_options):
    """A root in a new container of Microsoft's own image."""
    return azure_root(azurite_container_options)


@pytest.fixture(scope="session")
def fake_gcs_container_endpoint(engine):
    core = pytest.importorskip("testcontainers.core.container")
    port = servers.free_port()
    url = f"http://127.0.0.1:{port}"
    container = core.DockerContainer("fsouza/fake-gcs-server").with_bind_ports(4443, port)
    with container.with_command(f"-scheme http -external-url {url}"):
        servers.wait_for_port(port)
        yield url


@pytest.fixture
def fake_gcs_container(fake_gcs_container_endpoint):
    """A root in a new bucket of fake-gcs-server's image."""
    return gcs_root(fake_gcs_container_endpoint)
