"""Buckets that keep versions: what servers do with a condition there, and when that is noticed."""

import pytest

from clog.storage import Log, UnsupportedFilesystemError
from clog.storage.store import open_store, remote

pytestmark = pytest.mark.s3

ROW = [{"key": "a", "value": "1"}]


@pytest.fixture
def log(s3_bucket, proxied_options, monkeypatch):
    """A log on a bucket that keeps no versions, through the proxy."""
    monkeypatch.setattr(remote, "_passed", set())
    log = Log.create(f"s3://{s3_bucket}/log", storage_options=proxied_options)
    log.append(ROW)
    return log


def switch(log, status):
    """Switches versioning of the log's bucket on or off."""
    fs, root = log.handle.standing.root.filesystem()
    configuration = {"Status": status}
    bucket = root.partition("/")[0]
    fs.call_s3("put_bucket_versioning", Bucket=bucket, VersioningConfiguration=configuration)


def commits_put(proxy):
    return [path for method, path in proxy.requests if method == "PUT" and "/commits/" in path]


def test_versioning_that_is_switched_on_is_noticed_at_the_next_commit(log, s3_proxy):
    """Ceph ignores the condition from then on: probed again and refused, before a second one."""
    switch(log, "Enabled")
    s3_proxy.ignores_condition = True
    with pytest.raises(UnsupportedFilesystemError) as raised:
        log.append(ROW)
    message = str(raised.value)
    assert message.startswith("versioning was switched on or off for the bucket of s3://")
    assert "reported success for a second create" in message
    assert message.endswith('was written, perhaps over that of another writer: run "clog verify"')
    written = commits_put(s3_proxy)
    with pytest.raises(UnsupportedFilesystemError):
        log.append(ROW)
    assert commits_put(s3_proxy) == written


def test_versioning_that_harms_nothing_costs_one_more_probe(log, s3_proxy):
    """Other servers keep the condition: the four requests of a probe, once."""
    for status in ("Enabled", "Suspended", "Enabled"):
        switch(log, status)
        s3_proxy.requests.clear()
        log.append(ROW)
        probed = [method for method, path in s3_proxy.requests if "/.probe-" in path]
        assert probed == ["PUT", "PUT", "GET", "DELETE"]
        s3_proxy.requests.clear()
        log.append(ROW)
        assert not [path for _, path in s3_proxy.requests if "/.probe-" in path]


def test_without_a_change_nothing_is_asked(log, s3_proxy):
    """What the bucket does is read off the replies: no request more for a commit."""
    s3_proxy.requests.clear()
    log.append(ROW)
    assert s3_proxy.methods() == ["PUT", "PUT", "GET", "GET"]  # object, commit, block, read back


def test_a_folder_of_delete_markers_is_empty(s3_proxy, s3_bucket, proxied_options):
    """MinIO and versitygw list a folder in which everything was deleted: it is no object."""
    store = open_store(f"s3://{s3_bucket}/log", proxied_options)
    listing = (
        "<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated>"
        "<KeyCount>{}</KeyCount>{}</ListBucketResult>"
    )
    markers = "<CommonPrefixes><Prefix>log/a/</Prefix></CommonPrefixes>"
    s3_proxy.listings = [listing.format(0, ""), listing.format(1, markers)]
    assert list(store.list("")) == []
    assert s3_proxy.listings == []
