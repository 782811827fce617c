"""The commands of `clog`, and what becomes of their errors.

Exit codes: 0 all is well; 1 clog refused, or something is wrong with the log: one line on
standard error says what and what to do; 2 the command line was wrong.
"""

import logging
from collections.abc import Callable
from importlib.metadata import version
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from clog.cli import (
    clean,
    consume,
    cost,
    daemon,
    dump,
    manage,
    produce,
    show,
    verify,
    verify_store,
)
from clog.cli.output import SafeFormatter, print_error


class ClogGroup(TyperGroup):
    """Commands whose errors are printed in one line instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Runs a command."""
        if logging.lastResort is not None:  # What tells warnings where nothing else is set up.
            logging.lastResort.setFormatter(SafeFormatter(logging.Formatter()))
        try:
            return super().invoke(ctx)
        except Exception as e:
            # Late: `clog --help` shall not wait for Arrow.
            from clog.storage.errors import ClogError, ErrorKind

            if isinstance(e, ClogError):
                print_error(str(e), e.kind)
            elif isinstance(e, FileNotFoundError):
                print_error(f"{e.filename or e} is gone: {e.strerror}", ErrorKind.CORRUPTION)
            elif isinstance(e, ImportError) and not _is_ours(e):
                print_error(f"a package is missing: {e}")
            else:
                raise
            raise typer.Exit(1) from e


HELP = """A Kafka-style compacted log on any filesystem: no broker, just a folder.

\b
clog create ./orders --partitions 4
printf 'alice\\t1\\nbob\\t2\\nalice\\t3\\nbob\\n' | clog produce ./orders
clog consume ./orders --table       # the latest value of each key
clog describe ./orders              # clean | dirty | active, what is next
"""

app = typer.Typer(
    cls=ClogGroup,
    name="clog",
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,  # its panels leave no room for the words
    context_settings={"help_option_names": ["-h", "--help"]},
    # A traceback with the values of variables would show storage options.
    pretty_exceptions_enable=False,
    add_completion=True,
)


def _help(command: Callable[..., None]) -> str:
    r"""Returns a docstring as help. Its examples begin with ``\b``, which keeps their lines
    apart.
    """
    return cleandoc(command.__doc__ or "").replace("\\b", "\b")


def _is_ours(error: ImportError) -> bool:
    return (error.name or "").startswith("clog")


def _print_version(value: bool) -> None:  # noqa: FBT001 - the form of a Typer callback
    if value:
        typer.echo(f"clog {version('pyspark-clog')}")
        raise typer.Exit


@app.callback()
def _clog(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Does nothing: the commands do the work."""


for _command in (
    *(manage.create, show.describe, manage.alter),
    *(produce.produce, consume.consume, manage.delete_records),
    *(show.offsets, show.segments),
    *(clean.clean, daemon.cleaner, clean.sweep, manage.reset_times),
    *(verify.verify, dump.dump, cost.cost, verify_store.verify_store),
):
    app.command(_command.__name__.replace("_", "-"), help=_help(_command))(_command)
