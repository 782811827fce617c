"""Arguments and options that several commands share, and how their text is read. No command here
opens anything else.
"""

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clog.cli.output import print_note
from clog.storage.config import definitions

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.storage import Log

ENVIRONMENT = "CLOG_STORAGE_OPTIONS"
PATIENCE_S = 5.0
"""A command whose first answer takes longer says whom it waits for."""
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST")
"""Variables by which the clients of S3 and GCS find other servers."""
INTEGER_MAX = 2**63 - 1
_DIGITS_MAX = len(str(INTEGER_MAX))
_SHOWN_MAX = 40


def quoted(text: str) -> str:
    """Returns what was given, for a message; of a long text how long it is.

    >>> quoted("1.5"), quoted("9" * 5000)
    ("'1.5'", 'a text of 5000 characters')
    """
    return repr(text) if len(text) <= _SHOWN_MAX else f"a text of {len(text)} characters"


def integer(low: int = 0, high: int = INTEGER_MAX) -> Callable[[str | int], int]:
    """Returns what reads a whole number of an option.

    >>> integer(1)("12")
    12

    What it returns raises:
        typer.BadParameter: a text is none, or out of range.
    """
    allowed = f"from {low} to {high}" if high < INTEGER_MAX else f"{low} or more"

    def read(given: str | int) -> int:
        text = str(given)
        digits = text.removeprefix("-")
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX
        if not is_number or not low <= int(text) <= high:
            raise typer.BadParameter(
                f"{quoted(text)} is out of range; allowed: whole numbers, {allowed}"
            )
        return int(text)

    return read


def partition_count(given: str | int) -> int:
    """Reads a number of partitions.

    Raises:
        typer.BadParameter: no log can have so many.
    """
    from clog.storage.administration import PARTITIONS_MAX

    return integer(1, PARTITIONS_MAX)(given)


def choice(*allowed: str) -> Callable[[str], str]:
    """Returns what reads one of a few words of an option.

    >>> choice("text", "jsonl")("jsonl")
    'jsonl'

    What it returns raises:
        typer.BadParameter: a text is none of them.
    """

    def read(text: str) -> str:
        if text not in allowed:
            raise typer.BadParameter(f"{quoted(text)} is unknown; allowed: {', '.join(allowed)}")
        return text

    return read


@contextmanager
def usage_errors() -> Iterator[None]:
    """Makes a refusal one of the command line: for what is wrong whatever a log holds."""
    from clog.storage.errors import InvalidInputError

    try:
        yield
    except InvalidInputError as e:
        raise typer.BadParameter(str(e)) from None


Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="The log: a local folder, or any fsspec URL (s3://bucket/orders, gs://…, abfs://…).",
        show_default=False,
    ),
]
Urls = Annotated[
    list[str] | None,
    typer.Argument(metavar="[URL]…", help="One or more logs.", show_default=False),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "--storage-option",
        "-o",
        metavar="KEY=VALUE",
        help="An option for the filesystem. true, false, null, JSON lists and objects are parsed;"
        f" anything else is text. Keep secrets in ${ENVIRONMENT}, a JSON object. Values are never"
        " shown.",
        show_default=False,
    ),
]
SingleWriter = Annotated[
    bool,
    typer.Option(
        "--single-writer",
        help="Write to a filesystem without exclusive create; no other process may ever write"
        " to the log.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Partition = Annotated[
    int | None,
    typer.Option(
        "--partition",
        "-p",
        parser=integer(),
        metavar="N",
        help="Show only this partition.",
        show_default=False,
    ),
]
Configs = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="NAME=VALUE",
        help="A config by its Kafka name, such as cleanup.policy=compact,delete, segment.ms=12h"
        " or segment.bytes=64m.",
        show_default=False,
    ),
]


def open_log(url: str, options: list[str] | None, *, single_writer: bool = False) -> "Log":
    """Opens the log of a command."""
    from clog.storage import Log

    given = storage_options(options)
    with waiting_for(url, given):
        return Log.open(url, given, single_writer=single_writer)


@contextmanager
def waiting_for(url: str, options: Mapping[str, object]) -> "Iterator[Callable[[], None]]":
    """Says on standard error, once the block has taken `PATIENCE_S`, which store is waited for, and
    at which address, as far as that was given: clients try for minutes before they give up. Yields
    what says that there was an answer.
    """
    from clog.storage.store.opening import redact

    nested = options.get("client_kwargs")
    inner = nested.get("endpoint_url") if isinstance(nested, Mapping) else None
    given = [options.get("endpoint_url"), inner, *map(os.environ.get, _ENDPOINTS)]
    address = next((f" at {redact(str(found))}" for found in given if found), "")
    text = (
        f"still waiting for {redact(url)}{address} after {PATIENCE_S:g} s; the store's client gives"
        " up by itself, after minutes; Ctrl-C ends it now"
    )
    # As the thread that waits prints: the timer has one of its own.
    timer = threading.Timer(PATIENCE_S, copy_context().run, (print_note, text))
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def check_logs_named(urls: list[str] | None, prefixes: list[str] | None) -> None:
    """Raises if neither logs nor folders of logs are named.

    Raises:
        typer.BadParameter: neither is.
    """
    if not (urls or prefixes):
        raise typer.BadParameter("give the URL of a log, or --discover PREFIX")


def typed_schema(log: "Log") -> "pa.Schema | None":
    """Returns the schema of a typed log; None where keys and values are bytes."""
    from clog.storage.objects.layout import arrow_schema

    schema = log.handle.tip.head.log.schema
    return None if schema is None else arrow_schema(schema)


def schema_file(path: Path) -> "pa.Schema":
    """Returns the schema in a file of JSON.

    Raises:
        typer.BadParameter: it holds none.
    """
    from clog.storage.objects.evolution import schema_from_words
    from clog.storage.objects.typed_json import parsed_json

    try:
        words = parsed_json(path.read_bytes())
    except (OSError, ValueError) as e:
        raise typer.BadParameter(f"{path} cannot be read as JSON: {_why(e)}") from None
    with usage_errors():
        return schema_from_words(words)


def storage_options(given: Iterable[str] | None) -> dict[str, object]:
    """Returns the options of the environment, and over them those of the command line.

    Raises:
        typer.BadParameter: one that cannot be read. The text is never repeated: it may be a secret.
    """
    out = environment_object(ENVIRONMENT)
    for name, value in _pairs(given, what="--option", shown=False).items():
        out[name] = _json_or_text(value)
    return out


def environment_object(variable: str) -> dict[str, object]:
    """Returns the JSON object in a variable of the environment; an empty one where it is not set.

    Raises:
        typer.BadParameter: it holds none. The text is never repeated: it may be a secret.
    """
    text = os.environ.get(variable)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise typer.BadParameter(f"${variable} is not a JSON object")
    return found


def configs(given: Iterable[str] | None) -> dict[str, str]:
    """Reads ``NAME=VALUE`` texts as a mapping of configs of a log.

    Raises:
        typer.BadParameter: one without ``=``, that is no config, or out of its range; two that
            contradict each other.
    """
    from clog.storage.config.log_config import LogConfig, parse_overrides

    found = pairs(given)
    with usage_errors():
        LogConfig.from_overrides(parse_overrides(found))
    return found


def pairs(given: Iterable[str] | None) -> dict[str, str]:
    """Reads ``NAME=VALUE`` texts as a mapping.

    Raises:
        typer.BadParameter: one without ``=``.
    """
    return _pairs(given, what="--config", shown=True)


def parse_time_ms(text: str) -> int:
    """Reads epoch milliseconds, or ISO 8601 (UTC where it names no zone), as epoch milliseconds.

    Raises:
        typer.BadParameter: it is neither.
    """
    try:
        return definitions.time_ms(text)
    except ValueError as e:
        raise typer.BadParameter(f"{quoted(text)} is not a time; give {e}") from None


def parse_offsets(given: Iterable[str]) -> dict[int, int]:
    """Reads ``PARTITION:OFFSET`` texts as a mapping; ``end`` is -1.

    >>> parse_offsets(["0:25", "1:end"])
    {0: 25, 1: -1}

    Raises:
        typer.BadParameter: one that is not of this form, or a partition named twice.
    """
    out: dict[int, int] = {}
    for text in given:
        partition, _, offset = text.partition(":")
        number = "-1" if offset == "end" else offset
        try:
            p, at = integer()(partition), integer(-1)(number)
        except typer.BadParameter:
            raise typer.BadParameter(
                f"{quoted(text)} is not PARTITION:OFFSET, such as 0:25 or 0:end"
            ) from None
        if p in out:
            raise typer.BadParameter(f"partition {p} is named twice")
        out[p] = at
    return out


def _pairs(given: Iterable[str] | None, *, what: str, shown: bool) -> dict[str, str]:
    out: dict[str, str] = {}
    for i, text in enumerate(given or ()):
        name, equals, value = text.partition("=")
        if not equals or not name:
            which = repr(text) if shown else f"number {i + 1}"
            raise typer.BadParameter(f"{what} {which} is not of the form NAME=VALUE")
        out[name] = value
    return out


def _why(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


def _json_or_text(value: str) -> object:
    if value in ("true", "false", "null") or value[:1] in ("{", "["):
        try:
            parsed: object = json.loads(value)
        except ValueError:
            return value
        return parsed
    return value
