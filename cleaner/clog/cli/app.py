"""The commands of `clog`, and what becomes of their errors.

Exit codes: 0 all is well; 2 the command line is wrong, whatever a log holds (an option, a value or
a config that cannot be, a file named in it that is none), which is found before any log is opened;
1 clog could not do it, or something is wrong with the log: one line on standard error says what and
what to do. A reader of standard output that leaves, as ``head`` does, is no error.
"""

import logging
import sys
from collections.abc import Callable
from importlib.metadata import version
from inspect import cleandoc
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from clog.cli import (
    clean,
    consume,
    convert,
    copy,
    cost,
    daemon,
    dump,
    export,
    get,
    logs,
    produce,
    publish,
    show,
    ui,
    verify,
)
from clog.cli.output import (
    ERRORS_AS,
    WarningFormatter,
    drop_output,
    print_error,
    reader_has_left,
)

COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Logs": (
        logs.create,
        logs.ls,
        show.describe,
        logs.alter,
        logs.upgrade,
        logs.reset_times,
        copy.copy,
        convert.convert,
        logs.delete,
    ),
    "Records": (
        produce.produce,
        consume.consume,
        get.get,
        export.export,
        show.offsets,
        logs.delete_records,
        logs.transactions,
    ),
    "Cleaning": (
        clean.roll,
        clean.clean,
        daemon.cleaner,
        clean.sweep,
        publish.publish,
    ),
    "Looking deeper": (
        show.segments,
        show.readers,
        dump.dump,
        verify.verify,
        verify.verify_store,
        cost.cost,
        ui.ui,
    ),
}
"""Functions whose names and docstrings are the commands and their help, by the headings of
``clog --help``.
"""


UsageError: Any = typer.BadParameter.__bases__[0]
"""A wrong command line. Click's class, of which Typer may have its own copy."""


class ClogGroup(TyperGroup):
    """Commands whose errors are printed in one line instead of a traceback, and whose list has
    headings.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Looks how errors shall be printed, before there are any."""
        ERRORS_AS.set("json" if _wants_json(args) else "text")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs a command."""
        if logging.lastResort is not None:  # What tells warnings where nothing else is set up.
            logging.lastResort.setFormatter(WarningFormatter())
        try:
            done = super().invoke(ctx)
            sys.stdout.flush()
            return done
        except Exception as e:
            code = _tell(e)
            if code is None:
                raise
            raise typer.Exit(code) from e
        finally:
            ERRORS_AS.set("text")

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's form
        """Writes the list of the commands by their headings."""
        width = max(map(len, self.commands))
        for heading, functions in COMMANDS.items():
            with formatter.section(heading):
                found = [self.commands[_name(f)] for f in functions]
                room = formatter.width - width - 4
                rows = [(c.name.ljust(width), c.get_short_help_str(room)) for c in found if c.name]
                formatter.write_dl(rows)


def _tell(error: Exception) -> int | None:
    """Prints an error and returns the exit code; None of one that is somebody else's."""
    # Late: `clog --help` shall not wait for Arrow.
    from clog.storage.errors import ClogError, ErrorKind

    if isinstance(error, BrokenPipeError) and reader_has_left():
        return 0
    if isinstance(error, UsageError):
        if ERRORS_AS.get() == "text":
            return None  # Click shows it, with the usage.
        print_error(error.format_message(), "usage")
        return 2
    if isinstance(error, ClogError):
        print_error(str(error), error.kind)
    elif isinstance(error, MemoryError):
        reason = f" ({error})" if str(error) else ""
        print_error(
            f"the command takes more memory than there is{reason}; run it where there is more, or"
            " for less at once",
            ErrorKind.OUT_OF_MEMORY,
        )
    elif isinstance(error, FileNotFoundError):
        print_error(f"{error.filename or error} is gone: {error.strerror}", ErrorKind.CORRUPTION)
    elif isinstance(error, OSError) and error.strerror:
        # Those of stores are errors of clog's: it is a file of the user's, or the output.
        if error.filename is None:
            drop_output()
        what = f"{error.filename or 'the output'} cannot be written or read"
        print_error(f"{what}: {error.strerror}")
    elif isinstance(error, ImportError) and not _is_ours(error):
        print_error(f"a package is missing: {error}")
    else:
        return None
    return 1


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


def _name(command: Callable[..., None]) -> str:
    return command.__name__.replace("_", "-")


def _wants_json(args: list[str]) -> bool:
    """Tells whether errors shall be JSON: those of a command line that is wrong, too."""
    return not {"--json", "--log-format=json"}.isdisjoint(args) or (
        ("--log-format", "json") in pairwise(args)
    )


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


for _section in COMMANDS.values():
    for _command in _section:
        app.command(_name(_command), help=_help(_command))(_command)
