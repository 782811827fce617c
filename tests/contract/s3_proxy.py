"""A proxy before an S3 server: counts what a client sends, and answers some of it falsely."""

import http.client
import threading
from contextlib import contextmanager
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>no</Message></Error>"
PER_HOP = frozenset({"connection", "transfer-encoding", "content-length", "date", "server"})


class Proxy(ThreadingHTTPServer):
    """``faults`` come first, one a request: (method, a glob of its path, status, code, whether it
    is passed on all the same).

    Attributes:
        ignores_condition: whether If-None-Match is kept from the server, as if it knew none.
        listings: bodies that are the answers to the next listings.
        requests: (method, path) of each request.
    """

    daemon_threads = True

    def __init__(self, upstream):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urlsplit(upstream)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.faults = []
        self.listings = []
        self.ignores_condition = False
        self.requests = []

    def methods(self):
        return [method for method, _ in self.requests]


@contextmanager
def running_proxy(upstream):
    """A proxy while the block runs."""
    proxy = Proxy(upstream)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append((self.command, self.path.partition("?")[0]))
        for fault in self.server.faults:
            method, glob, status, code, passed_on = fault
            if method == self.command and fnmatchcase(self.path.partition("?")[0], glob):
                self.server.faults.remove(fault)
                if passed_on:
                    self.forward(body)
                return self.reply(status, ERROR.format(code).encode())
        if self.server.listings and "list-type=2" in self.path:
            return self.reply(200, self.server.listings.pop(0).encode())
        return self.reply(*self.forward(body))

    do_GET = do_PUT = do_DELETE = do_HEAD = do_POST = answer  # noqa: N815 - looked up by name

    def forward(self, body):
        upstream = http.client.HTTPConnection(self.server.upstream.netloc, timeout=30)
        dropped = {"expect", "if-none-match"} if self.server.ignores_condition else {"expect"}
        headers = {k: v for k, v in self.headers.items() if k.lower() not in dropped}
        upstream.request(self.command, self.path, body, headers)
        response = upstream.getresponse()
        found = response.status, response.read(), response.getheaders()
        upstream.close()
        return found

    def reply(self, status, body, headers=()):
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in PER_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
