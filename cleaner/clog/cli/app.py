"""The commands of `clog`, and the handling of their errors.

Exit codes: 0 success; 2 the command line is wrong regardless of any log (an invalid option, value
or config, or a file named in it that is not valid), which is found before any log is opened; 1 clog
could not do it, or something is wrong with the log: one line on standard error says what, and what
to do. A reader of standard output that stops early, as ``head`` does, is not an error.
"""

import inspect
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

import click

from clog.cli.options import SHARED, Argument, Code, quoted, signalled
from clog.cli.output import (
    ERRORS_AS,
    NO_ROOM,
    WarningFormatter,
    drop_output,
    print_error,
    print_note,
    reader_has_left,
)

COMMANDS: dict[str, dict[str, str]] = {
    "Logs": {
        "create": "logs",
        "ls": "logs",
        "describe": "describe",
        "alter": "logs",
        "copy": "copy",
        "delete": "logs",
    },
    "Records": {
        "produce": "produce",
        "consume": "consume",
        "diff": "diff",
        "erase": "verify",
        "snapshot": "logs",
    },
    "Other systems": {
        "mirror": "clog.bridge_cli.mirror",
        "capture": "clog.bridge_cli.capture",
        "publish": "logs",
    },
    "Upkeep": {
        "clean": "clean",
        "cleaner": "cleaner",
        "verify": "verify",
        "cost": "cost",
        "ui": "cleaner",
    },
}
"""The module of each command, by the headings of ``clog --help``: one of this package, or a guest's
by its full name. The module has a function of the command's name, whose docstring is its help. Old
names are in `renamed`.
"""
OTHER_OPTIONS = frozenset({"consume", "clean", "cleaner", "ui"})
"""Commands with old names of options."""
_MODULES = {name: module for rows in COMMANDS.values() for name, module in rows.items()}


def _function(name: str) -> Any:
    module = _MODULES[name]
    found = import_module(module if "." in module else f"clog.cli.{module}")
    return getattr(found, name)


def _help(name: str) -> str:
    r"""Returns a docstring as help; ``\b`` preserves line breaks in examples."""
    return inspect.cleandoc(_function(name).__doc__ or "").replace("\\b", "\b")


class _Formatter(click.HelpFormatter):
    """Help whose headings are bold on a terminal."""

    def write_heading(self, heading: str) -> None:
        """Writes a heading; click removes colours where the output is not a terminal."""
        if "NO_COLOR" not in os.environ:
            heading = click.style(heading, bold=True)
        super().write_heading(heading)


class _Context(click.Context):
    formatter_class = _Formatter


def _write_options(
    ctx: click.Context,
    formatter: click.HelpFormatter,
    heading: str,
    parameters: Iterable[click.Parameter],
) -> None:
    records = [p.get_help_record(ctx) for p in parameters if isinstance(p, click.Option)]
    if shown := [record for record in records if record is not None]:
        with formatter.section(heading):
            formatter.write_dl(shown)


def _write_end(formatter: click.HelpFormatter, text: str) -> None:
    formatter.write_paragraph()
    formatter.write_text(text)
    formatter.write("\n")


class _Command(click.Command):
    """A command that takes the shared options, too, and whose help lists its arguments."""

    context_class = _Context

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Returns its own parameters, those of all commands, and ``--help``."""
        own = super().get_params(ctx)
        return [*own[:-1], *SHARED, own[-1]]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the arguments, then its own options, and names the others."""
        arguments = [p for p in self.params if isinstance(p, Argument)]
        with formatter.section("Arguments"):
            formatter.write_dl([(p.make_metavar(ctx), p.said) for p in arguments])
        _write_options(ctx, formatter, "Options", self.params)
        shared = ", ".join(p.opts[0] for p in SHARED)
        _write_end(formatter, f"Options of every command, which clog --help explains: {shared}.")


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

    context_class = _Context

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = _Commands()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Decides how errors are printed, before any occurs."""
        ERRORS_AS.set("json" if "--json" in args else "text")
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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command, also by an old name or with old options, which a note says."""
        if not ctx.resilient_parsing:  # Not at TAB.
            name = args[0]
            if name not in self.commands or name in OTHER_OPTIONS:
                args = _renewed(args)
            if args[0] not in self.commands and not name.startswith("-"):
                raise click.UsageError(_unknown(name), ctx)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the commands, then the options that all of them take."""
        self.format_commands(ctx, formatter)
        _write_options(ctx, formatter, "Options of every command, after its name", SHARED)
        _write_options(ctx, formatter, "Options", self.get_params(ctx))
        with formatter.section("To complete commands and logs with TAB, add to"):
            formatter.write_dl(list(COMPLETION.items()))
        _write_end(formatter, "clog COMMAND --help explains a command, with examples.")

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


def _renewed(args: list[str]) -> list[str]:
    """Returns a command line with new names in place of old ones, and notes that."""
    from clog.cli.renamed import renewed, without_secrets

    new = renewed(args)
    if "--json" in new:
        ERRORS_AS.set("json")
    if new != args:
        import shlex

        print_note(f"clog {args[0]} … is now: clog {shlex.join(without_secrets(new))}")
    return new


_FILES = (
    "a log is its files, which any tool copies, with the log's users stopped:"
    ' docs/moving-a-log.md says how; "clog copy" makes a new log of the records'
)
ELSEWHERE = {
    **dict.fromkeys(("backup", "back-up", "move", "restore", "rollback"), _FILES),
    **dict.fromkeys(("compact", "optimize", "vacuum"), 'did you mean "clog clean"?'),
    **dict.fromkeys(("cat", "read", "select", "tail"), 'did you mean "clog consume"?'),
    **dict.fromkeys(("append", "insert", "put", "write"), 'did you mean "clog produce"?'),
    **dict.fromkeys(("info", "show", "stat", "status"), 'did you mean "clog describe"?'),
    **dict.fromkeys(("drop", "remove", "rm"), 'did you mean "clog delete"?'),
}
"""What is done otherwise, or has another name here, by the words of other systems."""


def _unknown(name: str) -> str:
    """Returns that there is no such command, and which one is nearest: also by what they list."""
    from difflib import get_close_matches

    from clog.cli.describe import WHATS

    if name in ELSEWHERE:
        return f"there is no command {quoted(name)}; {ELSEWHERE[name]}"
    known = {command: f"clog {command}" for command in _MODULES}
    known |= {what: f"clog describe URL {what}" for what in WHATS}
    near = [known[match] for match in get_close_matches(name, known, 2, 0.5)]
    hint = f"did you mean {' or '.join(near)}?" if near else "clog --help lists them"
    return f"there is no command {quoted(name)}; {hint}"


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


COMPLETION = {
    "~/.bashrc": 'eval "$(_CLOG_COMPLETE=bash_source clog)"',
    "~/.zshrc, after compinit": 'eval "$(_CLOG_COMPLETE=zsh_source clog)"',
    "~/.config/fish/config.fish": "_CLOG_COMPLETE=fish_source clog | source",
}
"""The line of each shell, as click makes the script."""

HELP = """A Kafka-style compacted log on any filesystem: no broker, just a folder.

\b
clog create ./orders --partitions 4
printf 'alice\\t1\\nbob\\t2\\nalice\\t3\\nbob\\n' | clog produce ./orders
clog consume ./orders --table       # the latest value of each key
clog describe ./orders              # clean | dirty | active, what is next
"""


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
