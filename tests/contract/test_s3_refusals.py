"""A refusal says nothing about earlier requests: real s3fs, moto, and a proxy that lies."""

import pytest

from clog.storage import CommitStateUnknownError, Log, StoreUnavailableError
from clog.storage.store import open_store
from clog.storage.store.contract import StoreRefusedError
from clog_testing.model import rows_in

pytestmark = pytest.mark.s3

COMMIT = "*/_clog/*/commits/*"
STORED = ("PUT", COMMIT, 500, "InternalError", True)
LOST = ("PUT", COMMIT, 500, "InternalError", False)
DENIED = ("PUT", COMMIT, 403, "AccessDenied", False)
CANNOT_READ = ("GET", COMMIT, 403, "AccessDenied", False)
ROW = [{"key": "a", "value": "1"}]


@pytest.fixture
def log(s3_url, s3_options):
    return Log.create(s3_url, storage_options=s3_options)


@pytest.fixture
def proxied(log, s3_url, proxied_options):
    """The log through the proxy, warm: what follows is one append."""
    other = Log.open(s3_url, storage_options=proxied_options)
    other.append(ROW)
    return other


def test_a_commit_that_was_stored_and_then_refused_is_committed(log, proxied, s3_proxy):
    """The server stored it and returned 500, the client's own repetition got 403: read
    back, ours.
    """
    s3_proxy.faults = [STORED, DENIED]
    assert proxied.append(ROW).version == 2
    assert len(rows_in(log.read())) == 2
    assert s3_proxy.faults == []


@pytest.mark.parametrize("path", [COMMIT, "*/_clog/log"])
def test_a_log_that_was_stored_and_then_refused_is_created(
    s3_bucket, s3_proxy, proxied_options, path
):
    """Its first commit is like any other, and so is what makes it the log of its root (S47)."""
    url = f"s3://{s3_bucket}/new"
    open_store(url, proxied_options).create("probed", b"1")
    s3_proxy.faults = [(method, path, *answer) for method, _, *answer in (STORED, DENIED)]
    assert Log.create(url, storage_options=proxied_options).version == 0
    assert s3_proxy.faults == []


def test_a_refusal_of_the_only_request_is_certain(log, proxied, s3_proxy):
    """Nothing was sent before it: the error at once, one request, and nothing read back."""
    s3_proxy.faults = [DENIED]
    s3_proxy.requests.clear()
    with pytest.raises(StoreRefusedError, match="check the credentials") as raised:
        proxied.append(ROW)
    assert raised.value.certain
    assert s3_proxy.methods() == ["PUT", "PUT"]
    assert log.version == 1


def test_a_refusal_that_lasts_is_told_after_looking(log, proxied, s3_proxy):
    """The first request failed, the others are refused: bounded, absent each time, refused."""
    s3_proxy.faults = [LOST, *[DENIED] * 5]
    s3_proxy.requests.clear()
    with pytest.raises(StoreRefusedError):
        proxied.append(ROW)
    assert s3_proxy.methods() == ["PUT", "PUT", "PUT", "GET", *["PUT", "GET"] * 4]
    assert log.version == 1


def test_a_refusal_that_cannot_be_read_back_is_unknown(log, proxied, s3_proxy):
    """Neither certain nor seen: the error says to read the log before repeating it."""
    s3_proxy.faults = [STORED, *[DENIED] * 5, *[CANNOT_READ] * 5]
    with pytest.raises(CommitStateUnknownError, match=r"the outcome of commit 2 of .* is unknown"):
        proxied.append(ROW)
    assert log.version == 2


@pytest.mark.parametrize("operation", ["put", "create"])
def test_no_write_claims_more_than_it_knows(s3_bucket, s3_proxy, proxied_options, operation):
    """Stored and then refused: neither a put nor a create reports that nothing was written."""
    store = open_store(f"s3://{s3_bucket}/log", proxied_options)
    store.create("probed", b"1")
    path = "_clog/a/commits/a"
    s3_proxy.faults = [STORED, DENIED]
    with pytest.raises(StoreRefusedError) as raised:
        getattr(store, operation)(path, b"1")
    assert not raised.value.certain
    assert "nothing" not in str(raised.value)
    assert store.get(path) == b"1"


def test_a_delete_that_was_done_and_then_refused_is_repeated(s3_bucket, s3_proxy, proxied_options):
    """Deleting again succeeds (A5)."""
    store = open_store(f"s3://{s3_bucket}/log", proxied_options)
    store.put("a", b"1")
    s3_proxy.faults = [
        ("DELETE", "*", 500, "InternalError", True),
        ("DELETE", "*", 403, "AccessDenied", False),
    ]
    with pytest.raises(StoreUnavailableError):
        store.delete("a")
    store.delete("a")
    with pytest.raises(FileNotFoundError):
        store.get("a")
