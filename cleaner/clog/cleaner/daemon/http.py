"""``/metrics``, ``/healthz`` and ``/readyz`` over HTTP, where they are asked for, and whatever page
comes beside them: Starlette, served by uvicorn in a thread.

*Safe*: a page that shows records is only for the machine itself, so it is there only where the
address is a loopback one. A connection that says nothing for `PATIENCE_S` is closed, else strangers
could take all files that the process may open.
"""

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from clog.storage.errors import InvalidInputError

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry
    from starlette.types import ASGIApp

PATIENCE_S = 30.0
THIS_HOST = "127.0.0.1"


class MonitorServer:
    """Serves until it is closed, in a thread of its own that ends with the process.

    Args:
        address: ``HOST:PORT`` or ``PORT`` (then this host alone); port 0 takes a free one.
        ailments: why the process makes no progress, for ``/healthz``.
        neglects: why it does not look after every log, for ``/readyz``.
        metrics: what ``/metrics`` shows; None: it is absent.
        page: what is shown at ``/``, where the address is a loopback one.
        notices: what somebody has to look at, though the process is well.

    Raises:
        InvalidInputError: no such address, or it is taken.
    """

    def __init__(
        self,
        address: str,
        ailments: Callable[[], Sequence[str]],
        neglects: Callable[[], Sequence[str]],
        metrics: "CollectorRegistry | None",
        page: "ASGIApp | None" = None,
        *,
        notices: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._socket = listening(address)
        host = str(self._socket.getsockname()[0])
        self.has_page = page is not None and ipaddress.ip_address(host).is_loopback
        routes: list[Any] = [
            _check("/healthz", ailments, "unhealthy", notices),
            _check("/readyz", neglects, "not ready", notices),
        ]
        application = _application(routes, metrics, page if self.has_page else None)
        self._server = quiet_server(application)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it listens."""
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        """Stops serving."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


def listening(address: str) -> socket.socket:
    """Returns a socket that listens at ``HOST:PORT`` or, on this host alone, at ``PORT``: who
    connects before a server runs waits for it.

    Raises:
        InvalidInputError: no such address, or it is taken.
    """
    host, _, port = address.rpartition(":")
    try:
        place = (host.strip("[]") or THIS_HOST, int(port))
        family = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(place, family=family)
    except (OSError, ValueError, OverflowError) as e:
        raise InvalidInputError(
            f"cannot listen at {address!r}: {e}; give HOST:PORT or PORT"
        ) from None


def quiet_server(application: "ASGIApp") -> uvicorn.Server:
    """Returns a server that logs what went wrong, and nothing of its requests."""
    config = uvicorn.Config(
        application,
        http=_Hurried,
        log_config=None,
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
    )
    return uvicorn.Server(config)


class _Hurried(H11Protocol):
    """Closes a connection whose other end owes a request and says nothing."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._patience is not None:
            self._patience.cancel()

    def _wait(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        answering = bool(self.cycle) and not self.cycle.response_complete
        self._patience = (
            None if answering else self.loop.call_later(PATIENCE_S, self.transport.close)
        )


def _check(
    path: str,
    found: Callable[[], Sequence[str]],
    status: str,
    notices: Callable[[], Sequence[str]],
) -> Route:
    """Returns what answers 200 where nothing is found, else 503, a status and the reasons; with
    either, the notices.
    """

    def check(_: Request) -> Response:
        reasons = list(found())
        state = status if reasons else "ok"
        answer = {"status": state, "reasons": reasons, "notices": list(notices())}
        return JSONResponse(answer, 503 if reasons else 200)

    return Route(path, check)


def _application(
    routes: list[Any], metrics: "CollectorRegistry | None", page: "ASGIApp | None"
) -> Starlette:
    def samples(_: Request) -> Response:
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        body = generate_latest(metrics)  # type: ignore[arg-type] # routed where it is there
        return Response(body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    def absent(_: Request, error: Any) -> Response:
        more = "" if page is None else ", and a page at /"
        text = f"there are /metrics, /healthz and /readyz{more}\n"
        return PlainTextResponse(text, error.status_code)

    routes += [Route("/metrics", samples)] if metrics is not None else []
    routes += [Mount("/", page)] if page is not None else []
    return Starlette(routes=routes, exception_handlers={404: absent, 405: absent})
