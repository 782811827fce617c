"""The command `clog ui`."""

from typing import Annotated

import typer

from clog.cli.arguments import Options, Urls, check_logs_named, integer, storage_options
from clog.cli.output import say

Discover = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PREFIX",
        help="Show every log below this folder, including logs created later.",
        show_default=False,
    ),
]
Port = Annotated[
    int,
    typer.Option(
        parser=integer(0, 65_535), metavar="PORT", help="Port on this machine; 0 takes any."
    ),
]


def ui(
    urls: Urls = None, *, discover: Discover = None, port: Port = 8470, options: Options = None
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
        from clog.cleaner.daemon.http import listening, quiet_server
        from clog.cli.ui.server import application
    except ModuleNotFoundError as e:
        if e.name not in ("starlette", "uvicorn"):
            raise
        from clog.storage.errors import InvalidInputError
        from clog.storage.installation import install_extra

        raise InvalidInputError(f"clog ui needs {e.name}: {install_extra('ui')}") from e
    from clog.cli.ui.logs import ShownLogs
    from clog.storage.clock import SystemClock

    given = storage_options(options)
    shown = ShownLogs(urls or (), discover or (), given, clock=SystemClock())
    shown.look()
    with listening(str(port)) as socket:
        say(f"http://127.0.0.1:{socket.getsockname()[1]}  (Ctrl-C stops)")
        quiet_server(application(shown)).run(sockets=[socket])
