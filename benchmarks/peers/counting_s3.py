"""moto's S3 server, which counts requests and bytes. Usage: counting_s3.py PORT

`GET /counted-so-far` answers what it counted since that was last asked: requests by method, bytes
`sent` to it and `received` from it. Conditional requests wait for each other, since moto would let
two at once both succeed.
"""

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import run_simple

ASK = "/counted-so-far"


class CountingInput:
    """A request's body, which knows how many bytes were read of it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.count = 0

    def read(self, *size: int) -> bytes:
        data = self._stream.read(*size)
        self.count += len(data)
        return data

    def readline(self, *size: int) -> bytes:
        line = self._stream.readline(*size)
        self.count += len(line)
        return line


class Counting:
    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._conditions = threading.Lock()
        self._counts: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start_response: Callable) -> Iterable[bytes]:
        if environ["PATH_INFO"] == ASK:
            return self._answer(start_response)
        stream = environ["wsgi.input"] = CountingInput(environ["wsgi.input"])
        if "HTTP_IF_NONE_MATCH" in environ or "HTTP_IF_MATCH" in environ:
            with self._conditions:
                body = b"".join(self._app(environ, start_response))
        else:
            body = b"".join(self._app(environ, start_response))
        with self._lock:
            self._counts[environ["REQUEST_METHOD"]] += 1
            self._counts["sent"] += stream.count
            self._counts["received"] += len(body)
        return [body]

    def _answer(self, start_response: Callable) -> Iterable[bytes]:
        with self._lock:
            counts, self._counts = self._counts, Counter()
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(counts).encode()]


if __name__ == "__main__":
    run_simple(
        "127.0.0.1",
        int(sys.argv[1]),
        Counting(DomainDispatcherApplication(create_backend_app)),
        threaded=True,
        request_handler=MotoRequestHandler,
    )
