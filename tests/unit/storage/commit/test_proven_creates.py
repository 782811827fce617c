"""Where an exclusive create is known to be exclusive, and where it is only probed
(COMMIT.md, K5).
"""

import pytest

from clog.storage.store import open_store
from clog.storage.store.contract import WrappingStore
from clog.storage.store.remote import is_promised


@pytest.mark.parametrize(
    ("endpoint", "promised"),
    [
        ("https://s3.eu-west-1.amazonaws.com", True),
        ("https://storage.googleapis.com", True),
        ("https://account.blob.core.windows.net/", True),
        ("sftp://host:22", True),
        ("http://127.0.0.1:9000", False),
        ("https://amazonaws.com.example.org", False),
        ("https://minio.example.org", False),
    ],
)
def test_endpoints(endpoint, promised):
    """The vendors' own endpoints keep A2, and so do renames; for others a probe does not prove
    enough.
    """
    assert is_promised(endpoint) is promised


class Unproven(WrappingStore):
    """A server that may check first and write afterwards."""

    create_is_proven = False


def test_each_opening_warns_where_nothing_is_proven(make_log, open_log, store, caplog):
    """One line, with what tests the server; none if the create is known to be exclusive."""
    make_log()
    open_log()
    assert caplog.messages == []
    for times in (1, 2):
        open_log(Unproven(store))
        assert len(caplog.messages) == times
    assert caplog.messages[0].startswith(f"{store.url}: a short test of this server's")
    assert '"clog verify URL --store"' in caplog.messages[0]


def test_stores(tmp_path):
    """Local files and memory do, and Amazon; not every endpoint of S3, except for a
    single writer.
    """
    pytest.importorskip("s3fs")
    assert open_store(str(tmp_path)).create_is_proven
    assert open_store("memory://proven").create_is_proven
    keys = {"key": "k", "secret": "s"}
    amazon = {**keys, "client_kwargs": {"region_name": "eu-west-1"}}
    own = {**keys, "client_kwargs": {"endpoint_url": "http://127.0.0.1:1"}}
    assert open_store("s3://bucket/log", amazon).create_is_proven
    assert not open_store("s3://bucket/log", own).create_is_proven
    assert open_store("s3://bucket/log", own, single_writer=True).create_is_proven
