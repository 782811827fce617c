"""The server of the page: Starlette over `logs.ShownLogs`, for this machine alone.

*Safe*: it listens on the loopback address and answers requests for that host alone, so that no page
of elsewhere reads logs through a name that leads here; all it does is read; the page may load
nothing but what this server has (no inline script, no other host), and puts data in as text.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from clog.cli.arguments import integer
from clog.cli.ui.activity import ShownCleaner
from clog.cli.ui.logs import AskedKey, ShownLogs, exact
from clog.storage.errors import ClogError, InvalidInputError

STATIC = Path(__file__).parent / "static"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
HOSTS = ["127.0.0.1", "localhost"]


def application(shown: ShownLogs, cleaner: ShownCleaner | None = None) -> Starlette:
    """Returns the page and what it asks for; with what a cleaner in this process does."""

    def logs(_: Request) -> Response:
        doing = None if cleaner is None else cleaner.state()
        return _answer({"logs": shown.overview(), "cleaner": doing})

    def of_log(found: Callable[[int], Any]) -> Callable[[Request], Response]:
        return lambda request: _answer(found(_number(request)))

    def cost(request: Request) -> Response:
        readers = _integer(request.query_params.get("readers"), "readers") or 0
        return _answer(shown.cost(_number(request), readers))

    def records(request: Request) -> Response:
        asked = request.query_params
        partition = _integer(asked.get("partition"), "partition")
        where = asked.get("from", "latest")
        return _answer(shown.records(_number(request), partition, where, _limit(request)))

    def key(request: Request) -> Response:
        wanted = _key(request)
        if wanted is None:
            raise InvalidInputError("give a key")
        return _answer(shown.history_of_key(_number(request), wanted, _limit(request)))

    def table(request: Request) -> Response:
        at = _integer(request.query_params.get("at"), "at")
        return _answer(shown.table(_number(request), at, _key(request), _limit(request)))

    return Starlette(
        routes=[
            Route("/", _page),
            Route("/api/logs", logs),
            Route("/api/logs/{number}", of_log(shown.details)),
            Route("/api/logs/{number}/cost", cost),
            Route("/api/logs/{number}/users", of_log(shown.users)),
            Route("/api/logs/{number}/records", records),
            Route("/api/logs/{number}/key", key),
            Route("/api/logs/{number}/table", table),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS),
            Middleware(BaseHTTPMiddleware, dispatch=_with_headers),
            Middleware(GZipMiddleware),
        ],
        exception_handlers={ClogError: _refused, FileNotFoundError: _gone},
    )


def _page(_: Request) -> Response:
    return FileResponse(STATIC / "index.html")


async def _with_headers(request: Request, call_next: Callable[[Request], Any]) -> Response:
    answer: Response = await call_next(request)
    answer.headers.update(HEADERS)
    return answer


async def _refused(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)


async def _gone(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"{error} is gone"}, 400)


def _number(request: Request) -> int:
    return _integer(request.path_params["number"], "log") or 0


def _limit(request: Request) -> int:
    return _integer(request.query_params.get("limit"), "limit") or 100


def _integer(text: str | None, name: str) -> int | None:
    if not text:
        return None
    try:
        return integer()(text)
    except typer.BadParameter as e:
        raise InvalidInputError(f"{name}: {e.message}") from None


def _key(request: Request) -> AskedKey | None:
    asked = request.query_params
    if encoded := asked.get("key_b64"):
        return AskedKey(encoded, is_base64=True)
    text = asked.get("key")
    return None if text is None else AskedKey(text, is_base64=False)


def _answer(found: Any) -> Response:
    return JSONResponse(exact(found))
