"""``/metrics`` and ``/healthz`` over HTTP, where they are asked for."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from clog.storage.errors import InvalidInputError

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry


PATIENCE_S = 30
"""A connection that is silent for so long is closed: each has a thread."""


class MonitorServer:
    """Serves until it is closed, in a thread of its own that ends with the process.

    Args:
        address: ``HOST:PORT`` or ``PORT`` (then this host alone); port 0 takes a free one.
        ailments: why the process is not well.
        metrics: what ``/metrics`` shows; None: it is absent.

    Raises:
        InvalidInputError: no such address, or it is taken.
    """

    def __init__(
        self,
        address: str,
        ailments: Callable[[], list[str]],
        metrics: "CollectorRegistry | None",
    ) -> None:
        host, _, port = address.rpartition(":")
        try:
            place = (host.strip("[]") or "127.0.0.1", int(port))
            self._server = ThreadingHTTPServer(place, _handler(ailments, metrics))
        except (OSError, ValueError, OverflowError) as e:
            raise InvalidInputError(
                f"cannot listen at {address!r}: {e}; give HOST:PORT or PORT"
            ) from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it listens."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(
    ailments: Callable[[], list[str]], metrics: "CollectorRegistry | None"
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/healthz":
                reasons = ailments()
                status = "unhealthy" if reasons else "ok"
                body = json.dumps({"status": status, "reasons": reasons}).encode()
                self._answer(503 if reasons else 200, "application/json", body)
            elif path == "/metrics" and metrics is not None:
                from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

                self._answer(200, CONTENT_TYPE_LATEST, generate_latest(metrics))
            else:
                self._answer(404, "text/plain", b"there are /metrics and /healthz\n")

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            """Keeps requests out of the log."""

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler
