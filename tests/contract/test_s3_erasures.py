"""Erasures in a bucket that keeps versions: old ones go, or it is told why not (S59, H-E17)."""

import pytest

from clog.cleaner import Cleaner
from clog.storage import Log, ManualClock
from clog.storage.diagnostics.verify_erasure import Verifier
from clog.storage.env import SeededIds

pytestmark = pytest.mark.s3
DAY_MS = 86_400_000
CONFIG = {"compression.type": "none"}


@pytest.fixture
def log(s3_bucket, s3_options):
    made = Log.create(f"s3://{s3_bucket}/log", 1, CONFIG, s3_options)
    fs, _ = made.handle.standing.root.filesystem()
    kept = {"Bucket": s3_bucket, "VersioningConfiguration": {"Status": "Enabled"}}
    fs.call_s3("put_bucket_versioning", **kept)
    return made


@pytest.fixture
def versions(log, s3_options):
    """Returns the bytes of all versions that the bucket keeps, and its markers of deletions."""
    boto3 = pytest.importorskip("boto3")
    client = boto3.client(
        "s3",
        aws_access_key_id=s3_options["key"],
        aws_secret_access_key=s3_options["secret"],
        **s3_options["client_kwargs"],
    )
    bucket = log.url.removeprefix("s3://").partition("/")[0]

    def versions():
        page = client.list_object_versions(Bucket=bucket)
        assert not page["IsTruncated"]
        names = [{"Key": v["Key"], "VersionId": v["VersionId"]} for v in page.get("Versions", ())]
        data = [client.get_object(Bucket=bucket, **name)["Body"].read() for name in names]
        return data, [marker["Key"] for marker in page.get("DeleteMarkers", ())]

    return versions


def erased(log, days):
    """Carries an erasure out, on a clock that is set forward; returns it."""
    request = log.erase([b"alice"], notify=False)
    for day in range(days):
        at = log.handle.clock.now_ms() + day * (DAY_MS + 1_000)
        clock = ManualClock(now_ms=at)
        Cleaner(Log.open(log.handle.standing.root, clock=clock, ids=SeededIds(day))).run_once()
    return request, log.erasures()[0]


def test_no_version_of_any_object_has_a_byte_of_it(log, versions):
    """S59: replaced objects, the request, and what was overwritten go by their version ids, with
    the markers that hid them.
    """
    log.append([{"key": b"alice", "value": b"elm street"}, {"key": b"bob", "value": b"1"}])
    assert any(b"elm street" in data for data in versions()[0])
    request, done = erased(log, 4)
    assert done.state == "done", done.reason
    left, markers = versions()
    assert not any(b"elm street" in data or b"alice" in data for data in left)
    kept = [path for path in markers if "/data/" in path or "/erasures/" in path]
    assert [path for path in kept if not path.endswith(".receipt.json")] == []  # It has no keys.
    root = log.handle.standing.root
    files = {f.path: lambda path=f.path: root.get(path) for f in root.list("")}
    assert Verifier(files, done.receipt, request.secret, [b"alice"]).run().problems == []
    assert log.table().get("bob") == b"1"


def test_versions_that_may_not_be_deleted_are_told(log, monkeypatch):
    """S59: pending, with the reason, until they may."""
    log.append([{"key": b"alice", "value": b"elm street"}])
    fs, _ = log.handle.standing.root.filesystem()
    call = fs.call_s3

    def refused(method, *args, **given):
        if method == "delete_objects":
            return {"Errors": [{"Code": "AccessDenied"}]}
        return call(method, *args, **given)

    with monkeypatch.context() as patch:
        patch.setattr(fs, "call_s3", refused)
        _, waits = erased(log, 4)
    assert waits.state == "pending"
    assert "refuses to delete them" in waits.reason
    assert "AccessDenied" in waits.reason
