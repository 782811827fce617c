"""`clog ui`: logs in a browser, by a small server for this machine alone (`page`)."""

import os
from typing import Any

import typer

from clog.cli.options import (
    URLS,
    Given,
    check_logs_named,
    command,
    integer,
    option,
    package_of_extra,
)
from clog.cli.output import say

_MASKABLE = ("key", "value", "headers")


@command(json=False)
def ui(
    urls: list[str] | None = URLS,
    *,
    discover: list[str] | None = option(
        "--discover PREFIX", "Show every log below this folder, including logs created later."
    ),
    port: int = option(
        "--port PORT", "Port on this machine; 0 takes any.", integer(0, 65_535), default=8470
    ),
    listen: str | None = option(
        "--listen HOST:PORT", "Listen here, for others, who need a token or a proxy."
    ),
    token_variable: str | None = option(
        "--token-variable NAME",
        "Environment variable with a token: the page opens with /?token=… once, programs send it as"
        " Authorization: Bearer.",
    ),
    proxy_header: str | None = option(
        "--proxy-header NAME",
        "Header that a proxy sets for who logged in, such as X-Forwarded-User; nobody but the proxy"
        " may reach the port.",
    ),
    host: list[str] | None = option(
        "--host NAME", "A name under which the page may be reached; default: any, with --listen."
    ),
    mask: list[str] | None = option(
        "--mask PATH", "Do not show this column: key, value, value.user.email, headers."
    ),
    given: Given,
) -> None:
    r"""Show logs in a browser.

    Shows partitions with their clean, dirty and active parts, commits and passes, records by
    offset, time and key, and the table at any readable version. The server only reads, and answers
    only this machine unless --listen says otherwise.

    \b
    clog ui ./orders
    clog ui --discover s3://bucket/logs --port 9000
    """
    check_logs_named(urls, discover)
    token = _token(token_variable)
    if listen is not None and not (token or proxy_header):
        raise typer.BadParameter("--listen needs --token-variable or --proxy-header")
    wrong = [path for path in mask or () if path.partition(".")[0] not in _MASKABLE]
    if wrong:
        raise typer.BadParameter(f"--mask {wrong[0]!r} is no path in key, value or headers")
    try:
        from clog.cleaner.daemon.metrics import listening, quiet_server
        from clog.cli.page import Access, ShownLogs, application
    except ModuleNotFoundError as e:
        package_of_extra(e, "ui", "clog ui", "starlette", "uvicorn")
        raise
    from clog.storage.env import SystemClock

    own: dict[str, Any] = {"clock": SystemClock(), "masks": mask or ()}
    shown = ShownLogs(urls or (), discover or (), given.storage, **own)
    shown.look()
    names = host or (["*"] if listen else Access().hosts)
    access = Access([*names, *Access().hosts], token, proxy_header or "")
    with listening(listen or str(port)) as socket:
        place = listen or f"127.0.0.1:{socket.getsockname()[1]}"
        say(f"http://{place}  (Ctrl-C stops)")
        quiet_server(application(shown, access=access)).run(sockets=[socket])


def _token(variable: str | None) -> str:
    """Returns the token in a variable of the environment, which must hold one."""
    if variable is None:
        return ""
    if not (token := os.environ.get(variable, "")):
        raise typer.BadParameter(f"--token-variable: ${variable} is not set")
    return token
