"""`clog ui`: logs in a browser, by a small server for this machine alone (`page`)."""

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
    given: Given,
) -> None:
    r"""Show logs in a browser.

    Shows partitions with their clean, dirty and active parts, commits and passes, records by
    offset, time and key, and the table at any readable version. The server only reads, and answers
    only this machine.

    \b
    clog ui ./orders
    clog ui --discover s3://bucket/logs --port 9000
    """
    check_logs_named(urls, discover)
    try:
        from clog.cleaner.daemon.metrics import listening, quiet_server
        from clog.cli.page import ShownLogs, application
    except ModuleNotFoundError as e:
        package_of_extra(e, "ui", "clog ui", "starlette", "uvicorn")
        raise
    from clog.storage.env import SystemClock

    shown = ShownLogs(urls or (), discover or (), given.storage, clock=SystemClock())
    shown.look()
    with listening(str(port)) as socket:
        say(f"http://127.0.0.1:{socket.getsockname()[1]}  (Ctrl-C stops)")
        quiet_server(application(shown)).run(sockets=[socket])
