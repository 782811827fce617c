"""Requests and bytes against an S3 server (moto): clog beside delta-rs and PyIceberg.

The server counts all requests. Each table gets `rows` keys in `commits` appends before counting
begins; then each operation is done a few times, and the average is given. PyIceberg's catalog is
SQLite on the local disk and costs no requests here; a catalog service would. Time is not measured,
because the server is a Python program.
"""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from harness import data
from harness.measure import Result
from peers.kafka import free_ports

from scenarios.table_libraries import Changes, ClogTable, DeltaTable, IcebergTable

TITLE = "Requests to an S3 server"
ENVIRONMENT = "tables"
ENGINE = "Python"
SIZES = {
    "smallest": {"rows": 500, "commits": 2, "times": 1},
    "quick": {"rows": 20_000, "commits": 20, "times": 3},
    "full": {"rows": 100_000, "commits": 100, "times": 5},
}
SERVER = Path(__file__).parent.parent / "peers" / "counting_s3.py"
SECRET = "testing"  # moto takes any


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    with server() as (address, count):
        make_bucket(address)
        tables = {
            "clog": ClogTable("s3://bucket/clog", s3fs_options(address)),
            "delta-rs": DeltaTable("s3://bucket/delta", rust_options(address)),
            "PyIceberg": IcebergTable(
                folder / "catalog",
                "s3://bucket/iceberg",
                **{
                    "s3.endpoint": address,
                    "s3.access-key-id": SECRET,
                    "s3.secret-access-key": SECRET,
                    "s3.region": "us-east-1",
                },
            ),
        }
        changes = Changes(size["rows"])
        for who, table in tables.items():
            history(table, size["rows"], size["commits"])
            for act, do in {
                "append of 20 rows": lambda table=table: appending(table)(changes.next()),
                "upsert of 20 rows": lambda table=table: table.upsert(changes.next()),
                "table read": lambda table=table: table.read(),
            }.items():
                measure(result, act, who, do, count, size["times"])


def history(table: ClogTable | DeltaTable | IcebergTable, rows: int, commits: int) -> None:
    start = pa.concat_tables(data.batches(rows, rows, 100)).combine_chunks()
    each = -(-rows // commits)
    table.fill(start.slice(0, each))
    for first in range(each, rows, each):
        appending(table)(start.slice(first, each))


def appending(table: ClogTable | DeltaTable | IcebergTable) -> Callable[[pa.Table], None]:
    return table.upsert if isinstance(table, ClogTable) else table.append


def measure(
    result: Result,
    act: str,
    who: str,
    do: Callable[[], object],
    count: Callable[[], dict[str, int]],
    times: int,
) -> None:
    do()
    count()
    for _ in range(times):
        do()
    found = count()
    kinds = ", ".join(
        f"{number / times:.3g} {name}" for name, number in sorted(found.items()) if name.isupper()
    )
    requests = sum(number for name, number in found.items() if name.isupper())
    name = f"requests, {act}"
    result.add(name, who, "each", requests / times, lower=True, note=kinds)
    sent, received = found.get("sent", 0), found.get("received", 0)
    if act != "table read":
        result.add(f"sent, {act}", who, "KB each", sent / times / 1e3, lower=True)
    result.add(f"received, {act}", who, "KB each", received / times / 1e3, lower=True)


@contextmanager
def server() -> Iterator[tuple[str, Callable[[], dict[str, int]]]]:
    """Yields its address, and what it counted since one last asked."""
    address = f"http://127.0.0.1:{free_ports(1)[0]}"
    port = address.rpartition(":")[2]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, str(SERVER), port], **silent)

    def count() -> dict[str, int]:
        with urllib.request.urlopen(f"{address}/counted-so-far") as reply:
            return json.load(reply)

    try:
        for _ in range(300):
            try:
                count()
                break
            except OSError:
                time.sleep(0.1)
        yield address, count
    finally:
        process.terminate()
        process.wait()


def make_bucket(address: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{address}/bucket", method="PUT")).close()


def s3fs_options(address: str) -> dict[str, object]:
    return {
        "key": SECRET,
        "secret": SECRET,
        "endpoint_url": address,
        "client_kwargs": {"region_name": "us-east-1"},
    }


def rust_options(address: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": SECRET,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
        "AWS_ALLOW_HTTP": "true",
        "aws_conditional_put": "etag",
    }
