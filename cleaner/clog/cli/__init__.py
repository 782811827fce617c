"""The command line `clog`: a log in a shell, without Spark."""

import io
import os
import signal
import sys
from pathlib import Path


def main() -> None:
    """Runs the command line; the entry point of the distribution."""
    _open_closed_streams()
    # Where stdout is not UTF-8, escape other characters, as Python does in errors.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from clog.cli.app import app
    except ModuleNotFoundError as e:
        # An extra, because the library does not need them.
        if e.name not in ("click", "rich"):
            raise
        from clog.storage.env import install_extra

        raise SystemExit(f"the command line needs {e.name}: {install_extra('cli')}") from e
    from clog.cli.options import end_in_order

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # Set by `nohup` and others.
            signal.signal(number, end_in_order)
    app(prog_name="clog")


def _open_closed_streams() -> None:
    """Opens streams that the shell closed (``>&-``); else the next files get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - until the end
