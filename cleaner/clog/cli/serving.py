"""The page over HTTP: who may see it, and what answers which request (`page` has the data).

*Apart*: what is asked of one store's logs waits in threads of its own (`_Rooms`), so that a store
that is silent keeps no thread from another's.
"""

import asyncio
import hmac
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from clog.cli.page import (
    LOGS_MAX,
    PATIENCE_S,
    AskedKey,
    Page,
    ShownCleaner,
    ShownLogs,
    Sought,
    exact,
    whole_number,
)
from clog.storage import ClogError, InvalidInputError, StoreUnavailableError
from clog.storage.spi import dataclass

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_STATIC = Path(__file__).parent / "static"
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_HOSTS = ("127.0.0.1", "localhost")
_COOKIE = "clog_token"


@dataclass(frozen=True, slots=True)
class Access:
    """Who may see the page: the names of this host, and the ``token``, or the header in which a
    proxy says who logged in.
    """

    hosts: Sequence[str] = _HOSTS
    token: str = field(default="", repr=False)
    header: str = ""

    def instead(self, request: Request) -> Response | None:
        """Returns the answer for those who may not see the page, None for those who may; a token
        in its address becomes a cookie.
        """
        asked = request.query_params.get("token", "")
        if self.token and request.url.path == "/" and self._is_token(asked):
            entered = RedirectResponse("/", 303)
            entered.set_cookie(_COOKIE, asked, httponly=True, samesite="strict")
            return entered
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = bearer if scheme.lower() == "bearer" else request.cookies.get(_COOKIE, "")
        may = self._is_token(given) if self.token else True
        if may and (not self.header or request.headers.get(self.header)):
            return None
        why = "open this page once with /?token=…" if self.token else "log in at the proxy"
        return JSONResponse({"error": why}, 401, {"WWW-Authenticate": "Bearer"})

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())


class _Guarded:
    """Answers those who may see the page, with `_HEADERS`."""

    def __init__(self, app: "ASGIApp", access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        async def send_with(message: "Message") -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        instead = self._access.instead(Request(scope)) if scope["type"] == "http" else None
        await (instead or self._app)(scope, receive, send_with)


_LOOPBACK = Access()
_ROOM = 8
"""Answers about the logs of one store that are sought at the same time."""


class _Rooms:
    """Threads that seek answers: so many for each store that is asked."""

    def __init__(self) -> None:
        self._by_store: dict[str, anyio.Semaphore] = {}

    async def run(self, store: str, find: Callable[[], Any]) -> Any:
        """Returns what is found; raises if the store keeps all its threads waiting."""
        room = self._by_store.setdefault(store, anyio.Semaphore(_ROOM))
        try:
            with anyio.fail_after(PATIENCE_S):
                await room.acquire()
        except TimeoutError:
            raise StoreUnavailableError(
                f"{store or 'the page'} is busy with {_ROOM} earlier requests; try again later"
            ) from None
        loop = asyncio.get_running_loop()
        answer = loop.create_future()

        def ended(found: Any, error: Exception | None) -> None:
            room.release()
            if answer.done():
                return  # The client has left.
            if error is None:
                answer.set_result(found)
            else:
                answer.set_exception(error)

        def seek() -> None:
            found = error = None
            try:
                found = find()
            except Exception as e:  # noqa: BLE001 - raised to the caller
                error = e
            with suppress(RuntimeError):  # The server has ended.
                loop.call_soon_threadsafe(ended, found, error)

        threading.Thread(target=seek, daemon=True).start()
        return await answer


def application(
    shown: ShownLogs, cleaner: ShownCleaner | None = None, access: Access = _LOOPBACK
) -> Starlette:
    """Returns the page and its data, including what a cleaner in this process does."""
    answers: dict[str, Callable[[Request], Any]] = {
        "": lambda r: _listed(shown, r) | {"cleaner": cleaner and cleaner.state()},
        "/{number}": lambda r: shown.details(_number(r)),
        "/{number}/cost": lambda r: shown.cost(_number(r), _asked(r, "readers") or 0),
        "/{number}/users": lambda r: shown.users(_number(r)),
        "/{number}/records": lambda r: shown.records(
            *(_number(r), _asked(r, "partition"), r.query_params.get("from", "latest"), _limit(r)),
            **_page_asked(r),
        ),
        "/{number}/key": lambda r: shown.history_of_key(
            _number(r), _key_given(r), _limit(r), **_page_asked(r)
        ),
        "/{number}/table": lambda r: shown.table(
            _number(r), _asked(r, "at"), _key(r), _limit(r), **_page_asked(r)
        ),
        "/{number}/changes": lambda r: shown.changes(
            _number(r), _asked(r, "since") or 0, _limit(r), **_page_asked(r)
        ),
    }

    rooms = _Rooms()

    async def answer(find: Callable[[Request], Any], request: Request) -> Response:
        number = request.path_params.get("number", "")
        store = shown.store(_number(request)) if number else ""
        found = await rooms.run(store, partial(find, request))
        after = found.next if isinstance(found, Page) else None
        return JSONResponse(exact(found), headers={} if after is None else {"clog-next": after})

    async def refused(_: Request, error: Exception) -> Response:
        gone = " is gone" if isinstance(error, FileNotFoundError) else ""
        status = 503 if isinstance(error, StoreUnavailableError) else 400
        return JSONResponse({"error": f"{error}{gone}"}, status)

    return Starlette(
        routes=[
            Route("/", lambda _: FileResponse(_STATIC / "index.html")),
            *(Route(f"/api/logs{p}", partial(answer, found)) for p, found in answers.items()),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=list(access.hosts)),
            Middleware(_Guarded, access=access),
            Middleware(GZipMiddleware),
        ],
        exception_handlers={ClogError: refused, FileNotFoundError: refused},
    )


def _listed(shown: ShownLogs, request: Request) -> dict[str, Any]:
    contains = request.query_params.get("contains", "")
    logs = shown.overview(contains, _asked(request, "page") or 0)
    unlisted = [{"url": url, "error": why} for url, why in shown.unlisted.items()]
    found = {"found": len(shown.matching(contains)), "page_size": LOGS_MAX}
    return {"logs": logs, "unlisted": unlisted} | found


def _page_asked(request: Request) -> dict[str, Any]:
    asked = request.query_params
    contains, path = asked.get("contains", ""), asked.get("path", "")
    sought = Sought(contains, path) if contains or path else None
    return {"sought": sought, "after": asked.get("after", "")}


def _number(request: Request) -> int:
    return whole_number(request.path_params["number"], "log") or 0


def _limit(request: Request) -> int:
    return _asked(request, "limit") or 100


def _asked(request: Request, name: str) -> int | None:
    return whole_number(request.query_params.get(name), name)


def _key(request: Request) -> AskedKey | None:
    asked = request.query_params
    if encoded := asked.get("key_b64"):
        return AskedKey(encoded, is_base64=True)
    text = asked.get("key")
    return None if text is None else AskedKey(text, is_base64=False)


def _key_given(request: Request) -> AskedKey:
    key = _key(request)
    if key is None:
        raise InvalidInputError("give a key")
    return key
