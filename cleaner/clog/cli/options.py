"""The parts of commands: options declared in one row, those that several commands share, parsers of
their texts, and `command`, which adds the options that nearly all commands have.
"""

import inspect
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from enum import IntEnum
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin

import click

from clog.cli.output import print_error, print_json, print_note, say

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.storage import Log

ENVIRONMENT = "CLOG_STORAGE_OPTIONS"
PATIENCE_S = 5.0
"""If the first answer takes longer, the command says which store it is waiting for."""
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST")
"""Variables that name other servers for the clients of S3 and GCS."""
INTEGER_MAX = 2**63 - 1
_DIGITS_MAX = len(str(INTEGER_MAX))
_SHOWN_MAX = 40


LEAVE_S = 10.0
"""After a signal to stop, a process ends within this time."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIGNALLED_BASE = 128
_came: list[int] = []


def signalled() -> int:
    """Returns the exit code of a command that a signal ended: 130 for Ctrl-C, 143 for SIGTERM. The
    next command in this process knows nothing of it.
    """
    number = _came[-1] if _came else signal.SIGINT
    _came.clear()
    return 1 if number == signal.SIGALRM else _SIGNALLED_BASE + number


def note_signal(number: int) -> None:
    """Notes the signal that ends the command."""
    _came.append(number)


def end_in_order(number: int, _frame: FrameType | None) -> None:
    """Ends a command, as a signal handler, by `KeyboardInterrupt`; immediately while modules are
    being imported, as there is nothing to clean up yet.
    """
    if not hasattr(sys.modules.get("clog.storage.log"), "Log"):
        os._exit(_SIGNALLED_BASE + number)
    note_signal(number)
    raise KeyboardInterrupt


class Code(IntEnum):
    """Exit codes that a command returns if it did not succeed, or that its errors become."""

    FAILED = 1
    USAGE = 2
    INTERRUPTED = 130


def quoted(text: str) -> str:
    """Returns a given text for a message; if it is long, only its length.

    >>> quoted("1.5"), quoted("9" * 5000)
    ("'1.5'", 'a text of 5000 characters')
    """
    return repr(text) if len(text) <= _SHOWN_MAX else f"a text of {len(text)} characters"


def integer(low: int = 0, high: int = INTEGER_MAX) -> Callable[[str | int], int]:
    """Returns a parser for whole numbers.

    >>> integer(1)("12")
    12
    """
    allowed = f"from {low} to {high}" if high < INTEGER_MAX else f"{low} or more"

    def read(given: str | int) -> int:
        text = str(given)
        digits = text.removeprefix("-")
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX
        if not is_number or not low <= int(text) <= high:
            raise click.BadParameter(
                f"{quoted(text)} is out of range; allowed: whole numbers, {allowed}"
            )
        return int(text)

    return read


def partition_count(given: str | int) -> int:
    """Reads a number of partitions."""
    from clog.storage.administration import PARTITIONS_MAX

    return integer(1, PARTITIONS_MAX)(given)


def duration_given(text: str | int) -> int:
    """Reads a length of time, in milliseconds."""
    from clog.storage.config import units

    try:
        return units.duration_ms(str(text))
    except ValueError:
        raise click.BadParameter(
            f"{quoted(str(text))} is not a duration; use 90s, 15min, 8h or 7d"
        ) from None


def choice(*allowed: str) -> Callable[[str], str]:
    """Returns a parser for one of a few words.

    >>> choice("text", "jsonl")("jsonl")
    'jsonl'
    """

    def read(text: str) -> str:
        if text not in allowed:
            raise click.BadParameter(f"{quoted(text)} is unknown; allowed: {', '.join(allowed)}")
        return text

    return read


Complete = Callable[[str], list[str]]
"""Returns completions of a text on the command line: shells ask for them at TAB."""


class Argument(click.Argument):
    """An argument with a help text; click has these only since 8.5."""

    def __init__(self, names: Sequence[str], *, said: str, **more: Any) -> None:
        super().__init__(names, **more)
        self.said = f"{said}  [required]" if self.required else said


class Declared(NamedTuple):
    """A parameter of a command, used as the default of the function's parameter."""

    kind: type[click.Parameter]
    names: tuple[str, ...]
    attributes: dict[str, Any]

    def named(self, name: str, annotation: Any) -> click.Parameter:
        """Returns the parameter with its name and type in the function.

        >>> option("--max -n N", "Stop after this many.").named("maximum", list[str] | None).opts
        ['--max', '-n']
        """
        more = self.attributes
        if any(get_origin(kind) is list for kind in (annotation, *get_args(annotation))):
            empty: list[Any] | None = None if type(None) in get_args(annotation) else []
            several = {"nargs": -1} if self.kind is Argument else {"multiple": True}
            as_list = {"callback": lambda _ctx, _parameter, value: [*(value or ())] or empty}
            more = more | several | as_list
        return self.kind([name, *self.names], **more)


def _typed(
    read: Callable[[str], Any] | None, default: Any, complete: Complete | None
) -> dict[str, Any]:
    """Returns what arguments and options have alike; a default of `...` is none: it is required."""
    return {
        **({"required": True} if default is ... else {"required": False, "default": default}),
        **({"type": read} if read else {}),
        **({"shell_complete": lambda _ctx, _parameter, begun: complete(begun)} if complete else {}),
    }


def argument(
    name: str,
    said: str,
    read: Callable[[str], Any] | None = None,
    default: Any = ...,
    *,
    complete: Complete | None = None,
) -> Any:
    """Returns an argument of a command, as the default of its parameter."""
    own = {"metavar": name, "said": said}
    return Declared(Argument, (), own | _typed(read, default, complete))


def flag(names: str, said: str) -> Any:
    """Returns an option without a value, as the default of its parameter."""
    own = {"is_flag": True, "default": False, "help": said}
    return Declared(click.Option, (*names.split(),), own)


def option(
    form: str,
    said: str,
    read: Callable[[str], Any] | None = None,
    default: Any = None,
    *,
    shown: str | None = None,
    complete: Complete | None = None,
) -> Any:
    """Returns an option as the default of its parameter. ``form`` has its names, then the name of
    its value; ``shown`` is the help's text for a default of None; ``complete`` is used at TAB.

    >>> option("--max -n N", "Stop after this many.", integer()).attributes["metavar"]
    'N'
    """
    *names, value = form.split()
    own = {"metavar": value, "help": said, "show_default": shown or True}
    return Declared(click.Option, (*names,), own | _typed(read, default, complete))


def config_names(begun: str) -> list[str]:
    """Returns the configs of a log whose names begin with a text.

    >>> config_names("segment.m")
    ['segment.ms']
    """
    from clog.storage.config.log_config import LogConfig

    return [name for name in LogConfig.from_overrides({}).as_dict() if name.startswith(begun)]


def _logs(begun: str) -> list[str]:
    from clog.storage.store.around import local_logs

    return local_logs(begun)


def _settings(begun: str) -> list[str]:
    return [f"{name}=" for name in config_names(begun)]


URL = argument(
    "URL",
    "The log: a local folder, or any fsspec URL (s3://bucket/orders, gs://…, abfs://…).",
    complete=_logs,
)
URLS = argument("[URL]…", "One or more logs.", default=None, complete=_logs)
PARTITION = option("--partition -p N", "Only this partition.", integer())
CONFIGS = option(
    "--config -c NAME=VALUE",
    "A config by its Kafka name, such as cleanup.policy=compact,delete, segment.ms=12h or"
    " segment.bytes=64m.",
    complete=_settings,
)
_OPTIONS = option(
    "--option --storage-option -o KEY=VALUE",
    "An option for the filesystem. true, false, null, JSON lists and objects are parsed;"
    f" anything else is text. Keep secrets in ${ENVIRONMENT}, a JSON object. Values are never"
    " shown.",
)
_SINGLE_WRITER = flag(
    "--single-writer",
    "Allow a filesystem without exclusive create; no other process may ever write to the log.",
)
_TIMEOUT = option(
    "--timeout TIME",
    "End the command cleanly if it takes longer than this, such as 30s or 5min.",
    duration_given,
)
SHARED: tuple[click.Parameter, ...] = (
    _OPTIONS.named("options", list[str] | None),
    _TIMEOUT.named("timeout", int | None),
    _SINGLE_WRITER.named("single_writer", bool),
    flag("--json", "Print JSON, errors and notes as well.").named("json", bool),
)
"""The options that every command takes, listed by ``clog --help``; `Given` has their values."""


class Given(NamedTuple):
    """The values of the options that all commands share."""

    options: list[str] | None = None
    single_writer: bool = False
    json: bool = False

    @property
    def storage(self) -> dict[str, object]:
        """The storage options."""
        return storage_options(self.options)

    @property
    def reach(self) -> dict[str, Any]:
        """The arguments with which functions of `clog.bridge` open logs."""
        return {"storage_options": self.storage, "single_writer": self.single_writer}

    def open(self, url: str, *, to_read: bool = False) -> "Log":
        """Opens a log, and reports a long wait; ``to_read`` ignores the options for writers."""
        from clog.storage import Log

        with waiting_for(url, self.storage):
            return Log.open(url, self.storage, single_writer=self.single_writer and not to_read)

    def create(
        self,
        url: str,
        partitions: int,
        config: Mapping[str, str],
        *,
        schema: "pa.Schema | None" = None,
        features: Iterable[str] = (),
    ) -> "Log":
        """Creates a log."""
        from clog.storage import Log

        with waiting_for(url, self.storage):
            return Log.create(
                *(url, partitions, config, self.storage),
                schema=schema,
                features=features,
                single_writer=self.single_writer,
            )

    def emit(self, document: Any, people: str | Iterable[str] | Callable[[], None]) -> None:
        """Prints the JSON document, or for people lines, or what a function prints."""
        if self.json:
            print_json(document)
        elif callable(people):
            people()
        else:
            for line in [people] if isinstance(people, str) else people:
                say(line)


_Command = Callable[..., Code | None]


def command(function: _Command) -> _Command:
    """Makes a function a command, whose options are its parameters; passes it the values of those
    in `SHARED` as ``given``.
    """
    mine = inspect.signature(function).parameters.values()

    @wraps(function)
    def run(**values: Any) -> None:
        timeout_ms = values.pop("timeout")
        given = Given(**{name: values.pop(name) for name in Given._fields})
        with ending_after(timeout_ms):
            code = function(**values, given=given)
        if code:
            raise click.exceptions.Exit(signalled() if code is Code.INTERRUPTED else code)

    parameters = [p for p in mine if p.name != "given"]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


@contextmanager
def ending_after(timeout_ms: int | None) -> Iterator[None]:
    """Interrupts the block, as Ctrl-C does, if it takes longer, and says so; None: never."""
    if timeout_ms is None:
        yield
        return
    came: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        note_signal(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(timeout_ms, 1) / 1000)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if came:
            from clog.storage.config.units import duration

            took = duration(timeout_ms)
            print_error(f"the command took longer than --timeout {took} and was ended")


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turns a refusal into a usage error: for input that is wrong regardless of any log."""
    from clog.storage.errors import InvalidInputError

    try:
        yield
    except InvalidInputError as e:
        if isinstance(e.__cause__, ImportError):
            raise  # A package is missing; the command line is right.
        raise click.BadParameter(str(e)) from None


@contextmanager
def left_in_time(
    waited_for: "Callable[[], Iterable[str]]" = tuple, *, code: int | None = None
) -> "Iterator[None]":
    """Ends the process `LEAVE_S` after SIGINT, SIGTERM or SIGHUP if it has not ended by then: it
    may be waiting for a store or a client. What it was doing is as after a crash: nothing is lost.
    ``code``: the exit code; None: the signal's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, signalled = os.pipe()
    os.set_blocking(signalled, False)
    before = signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    left = threading.Event()

    def watch() -> None:
        while (came := os.read(heard, 1)) and came[0] not in STOPPING:
            pass
        if came and not left.wait(LEAVE_S):
            silent = ", ".join(waited_for())
            print_note(f"ended without waiting for {silent or 'what was under way'}")
            os._exit(_SIGNALLED_BASE + came[0] if code is None else code)
        os.close(heard)
        if not came:
            return
        threading.main_thread().join(LEAVE_S)
        if not threading.main_thread().is_alive():  # It waits for other threads, at its very end.
            threading.Event().wait(LEAVE_S)
            os._exit(128 + came[0])

    threading.Thread(target=copy_context().run, args=(watch,), daemon=True).start()
    try:
        yield
    finally:
        left.set()
        signal.set_wakeup_fd(before)
        os.close(signalled)


@contextmanager
def until_stopped() -> "Iterator[Callable[[], bool]]":
    """Yields a function that says whether SIGINT or SIGTERM came; a second one acts immediately,
    and the command ends `LEAVE_S` after the first one, whatever it waits for. That a source did not
    answer until then is no failure: nobody waits for it any more.
    """
    from clog.storage import SourceUnavailableError

    came: list[int] = []

    def note(number: int, _: object) -> None:
        came.append(number)
        note_signal(number)
        signal.signal(number, before[number])

    before = {int(s): signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        with left_in_time():
            yield lambda: bool(came)
    except SourceUnavailableError:
        if not came:
            raise
        raise click.exceptions.Exit(signalled()) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def waiting_for(url: str, options: Mapping[str, object]) -> "Iterator[Callable[[], None]]":
    """Says on standard error, once the block has taken `PATIENCE_S`, which store the command is
    waiting for, and at which address, if one was given: clients retry for minutes before they give
    up. Yields a function to call once there was an answer.
    """
    from clog.storage.store.opening import redact

    nested = options.get("client_kwargs")
    inner = nested.get("endpoint_url") if isinstance(nested, Mapping) else None
    given = [options.get("endpoint_url"), inner, *map(os.environ.get, _ENDPOINTS)]
    address = next((f" at {redact(str(found))}" for found in given if found), "")
    text = (
        f"still waiting for {redact(url)}{address} after {PATIENCE_S:g} s; the store's client"
        " gives up after some minutes; Ctrl-C ends the command now"
    )
    # In the context of the waiting thread, as the timer has its own thread.
    timer = threading.Timer(PATIENCE_S, copy_context().run, (print_note, text))
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def address(text: str) -> str:
    """Returns an address to listen at, as given; raises if it is invalid."""
    try:
        integer(0, 65_535)(text.rpartition(":")[2])
    except click.BadParameter:
        what = f"{quoted(text)} is not [HOST:]PORT, such as 9404 or 0.0.0.0:9404"
        raise click.BadParameter(what) from None
    return text


def check_logs_named(urls: list[str] | None, prefixes: list[str] | None) -> None:
    """Raises if neither logs nor folders of logs are named."""
    if not (urls or prefixes):
        raise click.BadParameter("give the URL of a log, or --discover PREFIX")


def record_count(log: "Log") -> int:
    """Returns the number of records in a log."""
    return sum(of_one["records"] for of_one in log.describe()["partition_details"])


def partitions_of(log: "Log", partition: int | None) -> Sequence[int]:
    """Returns the partition that was given, which must exist, or all."""
    from clog.storage.read.scan import partitions_named

    return partitions_named(log.handle.tip.head, partition, url=log.url)


def typed_schema(log: "Log") -> "pa.Schema | None":
    """Returns the schema of a typed log; None if keys and values are bytes."""
    from clog.storage.types.columns import arrow_schema

    schema = log.handle.tip.head.log.schema
    return None if schema is None else arrow_schema(schema)


def schema_file(path: Path | None) -> "pa.Schema | None":
    """Returns the schema in a JSON file, if one is given."""
    if path is None:
        return None
    from clog.storage.types.conform import parsed_json
    from clog.storage.types.evolve import schema_from_words

    try:
        words = parsed_json(path.read_bytes())
    except (OSError, RecursionError, ValueError) as e:
        why = getattr(e, "strerror", None) or e
        raise click.BadParameter(f"{path} cannot be read as JSON: {why}") from None
    with usage_errors():
        return schema_from_words(words)


def storage_options(given: Iterable[str] | None) -> dict[str, object]:
    """Returns the options of the environment, overridden by those of the command line. A message
    never repeats a text that is refused: it may be a secret.
    """
    own = pairs(given, what="--option", is_secret=True)
    return environment_object(ENVIRONMENT) | {k: _json_or_text(v) for k, v in own.items()}


def environment_object(variable: str) -> dict[str, object]:
    """Returns the JSON object in an environment variable; empty if it is not set."""
    text = os.environ.get(variable)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):  # Its text is not repeated: it may be a secret.
        raise click.BadParameter(f"${variable} is not a JSON object")
    return found


def configs(given: Iterable[str] | None) -> dict[str, str]:
    """Reads ``NAME=VALUE`` texts as configs of a log, which must not contradict each other."""
    from clog.storage.config.log_config import LogConfig, parse_overrides

    found = pairs(given)
    with usage_errors():
        LogConfig.from_overrides(parse_overrides(found))
    return found


def pairs(
    given: Iterable[str] | None, *, what: str = "--config", is_secret: bool = False
) -> dict[str, str]:
    """Reads ``NAME=VALUE`` texts as a mapping; messages do not repeat a secret without a name."""
    out: dict[str, str] = {}
    for i, text in enumerate(given or ()):
        name, equals, value = text.partition("=")
        if not equals or not name:
            which = f"number {i + 1}" if is_secret else repr(text)
            raise click.BadParameter(f"{what} {which} is not of the form NAME=VALUE")
        out[name] = value
    return out


def parse_time_ms(text: str) -> int:
    """Reads epoch milliseconds, or ISO 8601 (UTC if it names no zone), as epoch milliseconds."""
    from clog.storage.config import units

    try:
        return units.time_ms(text)
    except ValueError as e:
        raise click.BadParameter(f"{quoted(text)} is not a time; give {e}") from None


def parse_offsets(given: Iterable[str]) -> dict[int, int]:
    """Reads ``PARTITION:OFFSET`` texts as a mapping; ``end`` is -1.

    >>> parse_offsets(["0:25", "1:end"])
    {0: 25, 1: -1}
    """
    out: dict[int, int] = {}
    for text in given:
        partition, _, offset = text.partition(":")
        number = "-1" if offset == "end" else offset
        try:
            p, at = integer()(partition), integer(-1)(number)
        except click.BadParameter:
            raise click.BadParameter(
                f"{quoted(text)} is not PARTITION:OFFSET, such as 0:25 or 0:end"
            ) from None
        if p in out:
            raise click.BadParameter(f"partition {p} is given twice")
        out[p] = at
    return out


def _json_or_text(value: str) -> Any:
    if value in ("true", "false", "null") or value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            pass  # Text that looks like JSON.
    return value
