"""What each reply of an S3 server becomes: real s3fs, and a server that answers as it is told.

moto never answers 409 or 501, drops no reply and keeps If-None-Match; servers in the field do
otherwise.
"""

import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from clog.storage import (
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedFilesystemError,
)
from clog.storage.store import open_store, remote
from clog.storage.store.contract import ObjectExistsError, StoreFullError, StoreRefusedError

pytestmark = pytest.mark.s3

ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>"


class StubServer(ThreadingHTTPServer):
    """Keeps objects; ``replies`` are returned first, one per request, to the method that
    they name.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects = {}
        self.requests = []
        self.waited = []
        self.replies = []  # (method, status, code, message, more) or (method, "lost")
        self.honours_condition = True
        self.names_condition = True

    def requests_of(self, method):
        return [path for found, path in self.requests if found == method]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def handle_expect_100(self):
        self.server.waited.append(self.path)
        return super().handle_expect_100()

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        key = self.path.partition("?")[0]
        self.server.requests.append((self.command, key))
        for reply in self.server.replies:
            if reply[0] == self.command:
                self.server.replies.remove(reply)
                if reply[1] == "lost":
                    self.server.objects.setdefault(key, body)
                    self.close_connection = True
                    return None
                return self.error(*reply[1:])
        return getattr(self, f"on_{self.command.lower()}")(key, body)

    do_GET = do_PUT = do_DELETE = answer  # noqa: N815 - the base class looks for these

    def on_put(self, key, body):
        conditional = self.headers.get("If-None-Match") and self.server.honours_condition
        if conditional and key in self.server.objects:
            more = "<Condition>If-None-Match</Condition>" if self.server.names_condition else ""
            return self.error(412, "PreconditionFailed", "it is there", more)
        self.server.objects[key] = body
        return self.reply(200, b"", ETag='"0"')

    def on_get(self, key, body):
        if key not in self.server.objects:
            return self.error(404, "NoSuchKey", "it is not there")
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        data = self.server.objects[key]
        if int(first) >= len(data):
            return self.error(416, "InvalidRange", "past the end")
        end = int(last) + 1 if last else len(data)
        return self.reply(206, data[int(first) : end])

    def on_delete(self, key, body):
        self.server.objects.pop(key, None)
        self.reply(204, b"")

    def error(self, status, code, message="no", more=""):
        self.reply(status, ERROR.format(code=code, message=message, more=more).encode())

    def reply(self, status, body, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(remote, "_passed", set())
    stub = StubServer()
    thread = threading.Thread(target=stub.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield stub
    stub.shutdown()
    stub.server_close()
    thread.join()


def store_at(server, *, attempts=1, **kwargs):
    options = {
        "key": "access-key-of-tests",
        "secret": "secret-of-tests",
        "client_kwargs": {
            "endpoint_url": f"http://127.0.0.1:{server.server_port}",
            "region_name": "us-east-1",
        },
        "config_kwargs": {"retries": {"total_max_attempts": attempts}},
    }
    return open_store("s3://bucket/log", options, **kwargs)


@pytest.fixture
def store(server):
    return store_at(server, probe=False)


def test_costs_in_requests(server, store):
    """Whatever the operation: one request, found or not; nothing asks for a size first."""
    for operation, method in [
        (lambda: store.create("a", b"0123456789"), "PUT"),
        (lambda: store.put("b", b""), "PUT"),
        (lambda: store.get("a"), "GET"),
        (lambda: store.get("a", 2, 1 << 30), "GET"),
        (lambda: store.get("a", 50, 60), "GET"),
        (lambda: store.get("b"), "GET"),
        (lambda: store.get_ranges("a", [(0, 2), (5, 6), (9, 20)]), "GET"),
        (lambda: store.delete("a"), "DELETE"),
        (lambda: store.delete("a"), "DELETE"),
    ]:
        server.requests.clear()
        operation()
        assert [found for found, _ in server.requests] == [method]
    server.requests.clear()
    with pytest.raises(FileNotFoundError):
        store.get("a")
    assert len(server.requests) == 1


def test_far_ranges_take_a_request_each(server, store):
    """Gaps of 1 MiB and more are not read."""
    store.put("big", bytes(4 << 20))
    server.requests.clear()
    ranges = [(0, 10), (20, 30), (3 << 20, (3 << 20) + 5), (100 << 20, (100 << 20) + 1)]
    assert [len(data) for data in store.get_ranges("big", ranges)] == [10, 10, 5, 0]
    assert len(server.requests) <= 6  # 3, and again one by one since the last is past the end


@pytest.mark.parametrize("names_condition", [True, False])
def test_412_is_a_conflict(server, store, names_condition):
    """With the condition's name (AWS, moto) and without (Ceph, MinIO), for which s3fs raises
    EINVAL.
    """
    server.names_condition = names_condition
    store.create("a", b"1")
    with pytest.raises(ObjectExistsError) as raised:
        store.create("a", b"2")
    assert raised.value.filename == "a"
    assert store.get("a") == b"1"


def test_409_is_a_conflict_and_the_object_may_be_absent(server, store):
    """Two creates under way: the loser reads back, finds nothing, and creates the same again."""
    server.replies = [("PUT", 409, "ConditionalRequestConflict")]
    with pytest.raises(ObjectExistsError):
        store.create("a", b"1")
    with pytest.raises(FileNotFoundError):
        store.get("a")
    store.create("a", b"1")
    assert store.get("a") == b"1"


def test_400_is_no_conflict(server, store):
    """s3fs raises EINVAL for it too: the errno decides nothing."""
    server.replies = [("PUT", 400, "InvalidArgument")]
    with pytest.raises(StoreUnavailableError):
        store.create("a", b"1")


def test_a_lost_reply_shows_as_a_conflict_with_oneself(server):
    """The client repeats the PUT and is refused; the object holds our bytes (COMMIT.md, K4)."""
    server.replies = [("PUT", "lost")]
    store = store_at(server, probe=False, attempts=3)
    with pytest.raises(ObjectExistsError):
        store.create("a", b"ours")
    assert len(server.requests_of("PUT")) == 2
    assert store.get("a") == b"ours"


def test_a_reply_lost_every_time_is_unknown(server, store):
    """Not a conflict and not a success: `StoreUnavailableError`, and the bytes may be there."""
    server.replies = [("PUT", "lost")] * 10
    with pytest.raises(StoreUnavailableError, match="create of 'a' in s3://bucket/log failed"):
        store.create("a", b"ours")
    assert store.get("a") == b"ours"


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (500, "InternalError")])
def test_a_failing_server_is_unavailable(server, store, status, code):
    """After a bounded number of requests, whatever the operation."""
    server.replies = [("GET", status, code)] * 50 + [("PUT", status, code)] * 50
    for operation in (
        lambda: store.get("a"),
        lambda: store.get_ranges("a", [(0, 1), (9 << 20, 10 << 20)]),
        lambda: store.put("a", b"1"),
        lambda: store.create("a", b"1"),
        lambda: list(store.list("")),
    ):
        server.requests.clear()
        with pytest.raises(StoreUnavailableError) as raised:
            operation()
        assert not isinstance(raised.value, StoreRefusedError)
        assert 1 <= len(server.requests) <= 8


def test_a_server_that_recovers_is_not_noticed(server):
    """The client waits for throttling to pass."""
    server.replies = [("PUT", 503, "SlowDown"), ("GET", 503, "SlowDown")]
    store = store_at(server, probe=False, attempts=2)
    store.put("a", b"1")
    assert store.get("a") == b"1"


def test_501_refuses_the_filesystem(server, store):
    """The server does not know the condition."""
    server.replies = [("PUT", 501, "NotImplemented")]
    with pytest.raises(UnsupportedFilesystemError, match="does not implement If-None-Match"):
        store.create("a", b"1")


def test_403_is_refused_with_the_remedy(server, store):
    """S3 returns 403 for an absent object if the caller may not list."""
    server.replies = [("GET", 403, "AccessDenied"), ("PUT", 403, "AccessDenied")]
    with pytest.raises(StoreRefusedError, match="must allow listing the bucket"):
        store.get("a")
    with pytest.raises(StoreRefusedError, match="check the credentials"):
        store.create("a", b"1")


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (403, "RequestTimeTooSkewed", "clocks of this machine and of the store differ too much"),
        (507, "XMinioStorageFull", "free space in it, or raise its quota"),
        (400, "EntityTooLarge", "lower object.bytes"),
    ],
)
def test_what_no_repetition_mends_is_refused_with_its_remedy(server, store, status, code, remedy):
    """Neither the credentials nor the time of day is to blame: the remedy is the one that helps,
    and nothing is left.
    """
    server.replies = [("PUT", status, code)] * 20
    with pytest.raises((StoreRefusedError, StoreFullError), match=remedy):
        store.create("a", b"1")
    server.replies = []
    assert list(store.list("")) == []


def test_a_missing_bucket_is_not_a_missing_object(server, store):
    """An absent object may be created; an absent bucket must be."""
    server.replies = [("GET", 404, "NoSuchBucket"), ("PUT", 404, "NoSuchBucket")]
    for operation in (lambda: store.get("a"), lambda: store.create("a", b"1")):
        with pytest.raises(NotFoundError, match="the bucket of s3://bucket/log does not exist"):
            operation()


def test_secrets_in_a_reply_are_struck_out(server, store):
    """Some servers repeat what they were sent."""
    message = "key access-key-of-tests with secret-of-tests is wrong"
    server.replies = [("GET", 403, "InvalidAccessKeyId", message)]
    with pytest.raises(StoreRefusedError) as raised:
        store.get("a")
    assert "of-tests" not in str(raised.value)
    assert "key *** with *** is wrong" in str(raised.value)
    assert "of-tests" not in "".join(traceback.format_exception(raised.value))


def test_a_wrong_option_is_named(server):
    """By its name, not by its value; also nested, where only the first request shows it."""
    for options in (
        {"keyy": "the-value"},
        {"client_kwargs": {"endpont_url": "the-value"}},
        {"config_kwargs": {"retires": "the-value"}},
    ):
        store = open_store("s3://bucket/log", options)
        with pytest.raises(InvalidInputError, match=r"keyy|endpont_url|retires") as raised:
            store.get("a")
        assert "the-value" not in str(raised.value)
    store = open_store("s3://bucket/log", {"client_kwargs.region_name": "the-value"})
    with pytest.raises(InvalidInputError, match=r"nest it: .*{\"client_kwargs\": {\"region_name"):
        store.get("a")


def test_the_probe_asks_once(server):
    """Two PUTs, a GET and a DELETE before the first create of the process; nothing is
    left behind.
    """
    store_at(server).create("a", b"1")
    assert [method for method, _ in server.requests] == ["PUT", "PUT", "GET", "DELETE", "PUT"]
    store_at(server).create("b", b"1")
    assert len(server.requests) == 6
    assert sorted(server.objects) == ["/bucket/log/a", "/bucket/log/b"]


def test_reading_needs_no_probe(server):
    """Nor does putting: only a create does."""
    store = store_at(server)
    store.put("a", b"1")
    store.get("a")
    assert len(server.requests) == 2


def test_an_endpoint_that_ignores_the_condition_is_refused(server):
    """It returns 200 to a second create, as rclone's and s3rver do."""
    server.honours_condition = False
    store = store_at(server)
    with pytest.raises(UnsupportedFilesystemError) as raised:
        store.create("a", b"1")
    assert str(raised.value) == (
        f"http://127.0.0.1:{server.server_port}, the endpoint of s3://bucket/log, reported success"
        " for a second create of the same object (it ignores If-None-Match), so concurrent"
        " writers could overwrite each other's commits; use another, or open with"
        " single_writer=True"
    )
    assert server.objects == {}


def test_a_single_writer_may_use_such_an_endpoint(server):
    """With a warning, and a look before each create."""
    server.honours_condition = False
    store = store_at(server, single_writer=True)
    with pytest.warns(RuntimeWarning, match="without exclusive create"):
        store.create("a", b"1")
    store.create("empty", b"")
    for path in ("a", "empty"):
        with pytest.raises(ObjectExistsError):
            store.create(path, b"2")
    assert store.get("a") == b"1"


def test_an_interrupted_probe_is_repeated(server):
    """Only a successful one is remembered."""
    server.replies = [("PUT", 500, "InternalError")]
    store = store_at(server)
    with pytest.raises(StoreUnavailableError):
        store.create("a", b"1")
    store.create("a", b"1")
    assert store.get("a") == b"1"


def test_a_forbidden_delete_does_not_fail_the_probe(server):
    """A writer may lack the permission; a few bytes stay, which no listing shows."""
    server.replies = [("DELETE", 403, "AccessDenied")]
    store_at(server).create("a", b"1")
    assert len(server.objects) == 2


def test_small_bodies_are_sent_at_once(server, store):
    """One round trip for each PUT: up to 1 MiB nothing waits for "100 Continue"."""
    store.put("a", b"1" * (1 << 20))
    store.create("b", b"1" * (1 << 20))
    assert server.waited == []
    store.put("c", b"1" * ((1 << 20) + 1))
    assert server.waited == ["/bucket/log/c"]
    assert server.requests_of("PUT") == [f"/bucket/log/{name}" for name in "abc"]
