"""Erases many keys from a large log on an S3 server that keeps versions, and verifies the receipt.

python integration/stores/erase_many.py                       # 1,000 keys of 10 M records
python integration/stores/erase_many.py --records 200000 --keys 50

Each key has one record; those that go lie evenly among the others. Days pass on a clock that is set
forward. What it prints of requests and bytes is what each step asked of the store; CPU seconds are
those of its process, the peak that of the verifier, which is a process of its own.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time

import pyarrow as pa
import pyarrow.compute as pc
from servers import versitygw

from clog.cleaner import Cleaner
from clog.storage import Log, ManualClock
from clog.storage.diagnostics import verify_erasure
from clog.storage.store.opening import open_store
from clog_testing.counting import CountingStore

DAY_MS = 86_400_000
BATCH = 500_000
LOGIN = {"key": "test-access-key", "secret": "test-secret-key"}
BUCKET = "erased"
ROUNDS_MAX = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(".")[0])
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000)
    given = parser.parse_args()
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    with tempfile.TemporaryDirectory() as folder, versitygw(Path(folder)) as address:
        options = {
            **LOGIN,
            "client_kwargs": {"endpoint_url": address, "region_name": "us-east-1"},
        }
        keep_versions(options)
        store = CountingStore(open_store(f"s3://{BUCKET}/log", options))
        receipt, secret = erased(store, given.records, given.keys)
        return verified(Path(folder), address, receipt, secret)


def keep_versions(options) -> None:
    """Makes the bucket."""
    import s3fs

    fs = s3fs.S3FileSystem(**options)
    fs.call_s3("create_bucket", Bucket=BUCKET)
    kept = {"Bucket": BUCKET, "VersioningConfiguration": {"Status": "Enabled"}}
    fs.call_s3("put_bucket_versioning", **kept)


def erased(store: CountingStore, records: int, keys: int):
    """Makes the log, and carries an erasure out; its receipt, and the secret."""
    log = step(store, "append", lambda: filled(store, records))
    wanted = keys_of(range(0, records, records // keys)).to_pylist()[:keys]
    request = step(store, "request", lambda: log.erase(wanted))
    now_ms = log.handle.clock.now_ms()
    for day in range(ROUNDS_MAX):
        clock = ManualClock(now_ms=now_ms + day * (DAY_MS + 60_000))
        step(store, f"round {day}", lambda c=clock: Cleaner(Log.open(store, clock=c)).run_once())
        (done,) = log.erasures()
        if done.state == "done":
            return done.receipt, request.secret
    raise SystemExit(f"it waits after {ROUNDS_MAX} rounds: {done.reason}")


def filled(store: CountingStore, records: int) -> Log:
    log = Log.create(store, 4, {"delete.retention.ms": DAY_MS})
    for start in range(0, records, BATCH):
        numbers = range(start, min(start + BATCH, records))
        value = pc.binary_join_element_wise(keys_of(numbers), b"lives in Elm Street", b" ")
        log.append(pa.table({"key": keys_of(numbers), "value": value}))
    return log


def keys_of(numbers: range) -> pa.Array:
    text = pa.array(numbers, pa.int64()).cast(pa.string())
    padded = pc.utf8_lpad(text, width=9, padding="0")
    return pc.binary_join_element_wise("customer", padded, "-").cast(pa.binary())


def step(store: CountingStore, name: str, act):
    """Does something, and prints what it took."""
    store.reset()
    started_s = process_time()
    made = act()
    print(
        f"{name}: {process_time() - started_s:.1f} CPU s, {sum(store.counts.values())} requests,"
        f" {store.bytes_in / 1e6:.1f} MB read, {store.bytes_out / 1e6:.1f} MB written",
        flush=True,
    )
    return made


def verified(folder: Path, address: str, receipt, secret: str) -> int:
    """Has the script look through the bucket; its exit code."""
    path = folder / "receipt.json"
    path.write_text(json.dumps(receipt))
    login = f"{LOGIN['key']}:{LOGIN['secret']}@"
    endpoint = address.removeprefix("http://")
    url = f"s3://{login}{BUCKET}/log?scheme=http&endpoint_override={endpoint}&region=us-east-1"
    script = [sys.executable, "-I", verify_erasure.__file__, str(path), url, "--secret", secret]
    code = subprocess.run(script, check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    # The server is a child, too, but has not ended.
    print(f"verifier: {used.ru_utime + used.ru_stime:.1f} CPU s, peak {used.ru_maxrss >> 10} MiB")
    return code


if __name__ == "__main__":
    sys.exit(main())
