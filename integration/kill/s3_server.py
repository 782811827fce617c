"""An S3 server for one run, in a process of its own: moto's, or one of `integration/stores`."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_S = 60
BUCKET = "kill"

MOTO, OTHERS = "moto", ("versitygw", "minio")
SERVER = Path(__file__).parents[2] / "tests/s3_server.py"
STORES = Path(__file__).parents[1] / "stores"


@contextmanager
def s3_server(work: Path, kind: str = MOTO) -> Iterator[tuple[str, dict[str, Any]]]:
    """The URL of an empty place in a bucket, and the storage options for it."""
    import s3fs

    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    with _moto(work) if kind == MOTO else _other(work, kind) as (address, key, secret):
        options = {
            "key": key,
            "secret": secret,
            "client_kwargs": {"endpoint_url": address, "region_name": "us-east-1"},
        }
        s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket=BUCKET)
        yield f"s3://{BUCKET}/logs", options


@contextmanager
def _other(work: Path, kind: str) -> Iterator[tuple[str, str, str]]:
    sys.path.insert(0, str(STORES))
    import servers

    folder = work / kind
    folder.mkdir()
    with getattr(servers, kind)(folder) as address:
        yield address, "test-access-key", "test-secret-key"


@contextmanager
def _moto(work: Path) -> Iterator[tuple[str, str, str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (work / "moto.out").open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, str(SERVER), str(port)],
            stdout=out,
            stderr=out,
        )
    try:
        _wait_for(port)
        yield f"http://127.0.0.1:{port}", "test", "test"
    finally:
        server.terminate()
        server.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"moto's server did not listen within {START_S} s")
