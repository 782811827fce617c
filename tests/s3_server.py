"""moto's S3 server, with the exclusive create that S3 has. Usage: s3_server.py PORT

moto looks whether an object is there and writes it in two steps, so of two conditional requests at
once both may succeed. Here one such request is served at a time.
"""

import sys
import threading

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import run_simple


class OneConditionAtATime:
    """Passes requests on; conditional ones wait for each other."""

    def __init__(self, app):
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ, start_response):
        if "HTTP_IF_NONE_MATCH" not in environ:
            return self._app(environ, start_response)
        with self._lock:
            return self._app(environ, start_response)


if __name__ == "__main__":
    run_simple(
        "127.0.0.1",
        int(sys.argv[1]),
        OneConditionAtATime(DomainDispatcherApplication(create_backend_app)),
        threaded=True,
        request_handler=MotoRequestHandler,
    )
