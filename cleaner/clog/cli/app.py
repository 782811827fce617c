"""The commands of `clog`, and the handling of their errors.

Exit codes: 0 success; 2 the command line is wrong regardless of any log (an invalid option, value
or config, or a file named in it that is not valid), which is found before any log is opened; 1 clog
could not do it, or something is wrong with the log: one line on standard error says what, and what
to do. A reader of standard output that stops early, as ``head`` does, is not an error.
"""

import inspect
import logging
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import pairwise
from typing import Any

import click

from clog.cli.options import Argument, Code, signalled
from clog.cli.output import (
    ERRORS_AS,
    NO_ROOM,
    WarningFormatter,
    drop_output,
    print_error,
    reader_has_left,
)

COMMANDS: dict[str, dict[str, str]] = {
    "Logs": {
        "create": "logs",
        "ls": "logs",
        "describe": "describe",
        "alter": "logs",
        "upgrade": "logs",
        "reset-times": "logs",
        "copy": "copy",
        "convert": "copy",
        "mirror": "clog.bridge_cli.mirror",
        "capture": "clog.bridge_cli.capture",
        "delete": "logs",
    },
    "Records": {
        "produce": "produce",
        "consume": "consume",
        "get": "consume",
        "export": "consume",
        "offsets": "describe",
        "delete-records": "logs",
        "erase": "verify",
        "erasures": "verify",
        "transactions": "describe",
        "snapshot": "describe",
    },
    "Cleaning": {
        "roll": "clean",
        "clean": "clean",
        "cleaner": "cleaner",
        "sweep": "clean",
        "publish": "logs",
    },
    "Looking deeper": {
        "segments": "describe",
        "readers": "describe",
        "dump": "verify",
        "verify": "verify",
        "verify-erasure": "verify",
        "verify-store": "verify",
        "cost": "cost",
        "ui": "cleaner",
    },
}
"""The module of each command, by the headings of ``clog --help``: one of this package, or a guest's
by its full name. The module has a function of the command's name, whose docstring is its help.
"""
_MODULES = {name: module for rows in COMMANDS.values() for name, module in rows.items()}


def _function(name: str) -> Any:
    module = _MODULES[name]
    found = import_module(module if "." in module else f"clog.cli.{module}")
    return getattr(found, name.replace("-", "_"))


def _help(name: str) -> str:
    r"""Returns a docstring as help; ``\b`` preserves line breaks in examples."""
    return inspect.cleandoc(_function(name).__doc__ or "").replace("\\b", "\b")


class _Command(click.Command):
    """A command whose help lists its arguments, too."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the arguments, then the options."""
        arguments = [p for p in self.params if isinstance(p, Argument)]
        with formatter.section("Arguments"):
            formatter.write_dl([(p.make_metavar(ctx), p.said) for p in arguments])
        super().format_options(ctx, formatter)


class _Commands(Mapping[str, Any]):
    """The commands, each made on first access: its module may take long to import."""

    def __getitem__(self, name: str) -> Any:
        run = _function(name)
        parameters = inspect.signature(run).parameters.values()
        declared = [p.default.named(p.name, p.annotation) for p in parameters]
        return _Command(name, callback=run, params=declared, help=_help(name))

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


class ClogGroup(click.Group):
    """Commands whose errors are printed on one line, and whose list has headings."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = _Commands()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Decides how errors are printed, before any occurs."""
        ERRORS_AS.set("json" if _wants_json(args) else "text")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs a command."""
        if logging.lastResort is not None:  # It prints warnings if logging is not set up.
            logging.lastResort.setFormatter(WarningFormatter())
        try:
            done = super().invoke(ctx)
            sys.stdout.flush()
            return done
        except Exception as e:
            code = _report_error(e)
            if code is None:
                raise
            raise click.exceptions.Exit(code) from e
        except KeyboardInterrupt:
            raise click.exceptions.Exit(signalled()) from None
        finally:
            ERRORS_AS.set("text")

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's form
        """Writes the list of commands under their headings."""
        width = max(map(len, self.commands))
        room = formatter.width - width - 4
        for heading, names in COMMANDS.items():
            with formatter.section(heading):
                shown = {name: click.Command(name, help=_help(name)) for name in names}
                formatter.write_dl(
                    [(n.ljust(width), c.get_short_help_str(room)) for n, c in shown.items()]
                )


def _with_hint(error: click.UsageError) -> click.UsageError:
    """Adds how a config is given to the error about one that was given like a URL."""
    is_extra = "unexpected extra argument" in error.message and "=" in error.message
    options = error.ctx.command.params if error.ctx is not None else ()
    if not (is_extra and any("-c" in option.opts for option in options)):
        return error
    return click.UsageError(f"{error.message}; give a config as -c NAME=VALUE", error.ctx)


def _report_error(error: Exception) -> int | None:
    """Prints an error; returns the exit code, None where others do; raises what Click shows."""
    # Imported late: `clog --help` must not wait for Arrow.
    from clog.storage.errors import ClogError, ErrorKind
    from clog.storage.store.contract import StoreFullError

    if isinstance(error, BrokenPipeError) and reader_has_left():
        return 0
    if isinstance(error, click.UsageError):
        hinted = _with_hint(error)
        if ERRORS_AS.get() == "text":
            raise hinted from None  # Click shows it, with the usage.
        print_error(hinted.format_message(), "usage")
        return Code.USAGE
    if isinstance(error, ClogError):
        print_error(str(error), error.kind, NO_ROOM if isinstance(error, StoreFullError) else None)
    elif isinstance(error, MemoryError):
        reason = f" ({error})" if str(error) else ""
        print_error(
            f"the command needs more memory than is available{reason}; run it where there is"
            " more, or on less data",
            ErrorKind.OUT_OF_MEMORY,
        )
    elif isinstance(error, FileNotFoundError):
        print_error(f"{error.filename or error} is gone: {error.strerror}", ErrorKind.CORRUPTION)
    elif isinstance(error, OSError) and error.strerror:
        # Errors of stores are clog's own: this is about a user's file, or the output.
        if error.filename is None:
            drop_output()
        what = f"{error.filename or 'the output'} cannot be written or read"
        print_error(f"{what}: {error.strerror}")
    elif isinstance(error, ImportError) and not (error.name or "").startswith("clog"):
        print_error(f"a package is missing: {error}")
    else:
        return None
    return Code.FAILED


HELP = """A Kafka-style compacted log on any filesystem: no broker, just a folder.

\b
clog create ./orders --partitions 4
printf 'alice\\t1\\nbob\\t2\\nalice\\t3\\nbob\\n' | clog produce ./orders
clog consume ./orders --table       # the latest value of each key
clog describe ./orders              # clean | dirty | active, what is next
"""


def _wants_json(args: list[str]) -> bool:
    """Returns whether to print errors as JSON, including those of the command line itself."""
    return not {"--json", "--log-format=json"}.isdisjoint(args) or (
        ("--log-format", "json") in pairwise(args)
    )


def _print_version(ctx: click.Context, _parameter: Any, value: bool) -> None:  # noqa: FBT001
    if value:
        from importlib.metadata import version

        click.echo(f"clog {version('pyspark-clog')}")
        ctx.exit()


app = ClogGroup(
    name="clog",
    help=HELP,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version and exit.",
        )
    ],
)
