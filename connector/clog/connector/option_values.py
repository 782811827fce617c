"""How the text of an option becomes a value. Each parser raises ValueError with what the value must
be: the message goes on from "it must be ".
"""

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from clog.storage.config import definitions
from clog.storage.errors import OptionError

EARLIEST, LATEST = -2, -1
Position = Literal["earliest", "latest"] | Mapping[int, int]
"""Where to start or end: everywhere alike, or by partition, where -2 is earliest and -1 latest."""


@dataclass(frozen=True, slots=True)
class Times:
    """Where to start or end by time: the first record that is not earlier, everywhere alike or by
    partition. ``or_latest``: the end of the log where no record is that late; else that is an
    error.
    """

    ms: int | Mapping[int, int]
    or_latest: bool


@dataclass(frozen=True, slots=True)
class Since:
    """Where to start by version: at the end offsets it had, with what was appended after it."""

    version: int


_LONG_MAX = (1 << 63) - 1


def shown(value: str) -> str:
    """Returns a value as it may stand in an error."""
    # A value may be a secret given under the wrong name: never whole.
    return repr(value) if len(value) <= 24 else repr(value[:20] + "…")


def as_text(value: object) -> str:
    """Returns an option's value as Spark passes it on; JSON of a mapping or a list."""
    if isinstance(value, bool | Mapping | list | tuple):
        return json.dumps(value)
    return str(value)


def text(value: str) -> str:
    """Reads any text but the empty one."""
    if not value:
        raise ValueError("a text that is not empty")
    return value


def reader_name(value: str) -> str:
    """Reads the name of a reader of a log."""
    from clog.storage.errors import InvalidInputError
    from clog.storage.readers import check_name

    try:
        return check_name(value)
    except InvalidInputError:
        raise ValueError("1 to 128 characters of A-Z a-z 0-9 . _ -, not a dot first") from None


def choice(*words: Any) -> Callable[[str], Any]:
    """Reads one of these words, whatever its case."""

    def parse(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(" or ".join(words))
        return value.lower()

    return parse


def boolean(value: str) -> bool:
    """Reads Spark's words for truth."""
    if value.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.lower() == "true"


def natural(value: str) -> int:
    """Reads 0 or more, up to what a log can hold."""
    if not (value.isascii() and value.isdigit()) or len(value) > 19 or int(value) > _LONG_MAX:
        raise ValueError(f"a whole number, 0 to {_LONG_MAX}")
    return int(value)


def positive(value: str) -> int:
    """Reads 1 or more."""
    if not (value.isascii() and value.isdigit()) or int(value) == 0:
        raise ValueError("a whole number, 1 or more")
    return int(value)


def names(value: str) -> tuple[str, ...]:
    """Reads the names of columns, in their order."""
    names = tuple(name.strip() for name in value.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("names of columns, each once, separated by commas")
    return names


def partitions(value: str) -> tuple[int, ...]:
    """Reads the numbers of partitions, ascending."""
    must = 'partition numbers separated by commas, such as "0,2"'
    numbers = [part.strip() for part in value.strip("[]").split(",")]
    if not all(n.isascii() and n.isdigit() for n in numbers):
        raise ValueError(must)
    return tuple(sorted({int(n) for n in numbers}))


def json_object(value: str) -> dict[str, Any]:
    """Reads a JSON object, which may hold secrets."""
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        # The value may hold secrets: it must not get into the message through shown.
        raise OptionError('option "storage_options" is not a JSON object; its value is not shown')
    return parsed


def loose(value: str) -> Any:
    """Reads a storage option's value: text, but for booleans and JSON structures."""
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def size_bytes(value: str) -> int:
    """Reads a number of bytes, 1 or more."""
    number = definitions.size_bytes(value)
    if number == 0:
        raise ValueError(definitions.SIZES)
    return number


def keys(value: str) -> tuple[bytes, ...]:
    """Reads a JSON list of texts, as UTF-8."""
    try:
        return tuple(key.encode() for key in _texts(value, "keys"))
    except UnicodeEncodeError:
        raise OptionError(
            'option "keys" holds half of a surrogate pair, which is not text; give binary keys in'
            ' "keysBase64"'
        ) from None


def keys_base64(value: str) -> tuple[bytes, ...]:
    """Reads a JSON list of Base64, decoded."""
    texts = _texts(value, "keysBase64")
    try:
        return tuple(b64decode(key, validate=True) for key in texts)
    except ValueError:
        raise OptionError('option "keysBase64" holds a string that is not Base64') from None


def _texts(value: str, name: str) -> list[str]:
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    if isinstance(parsed, list) and parsed and all(isinstance(key, str) for key in parsed):
        return parsed
    # Keys are data: they must not get into the message through `shown`.
    raise OptionError(
        f'option "{name}" is not a JSON list of strings, such as ["a", "b"]; its value is not shown'
    )


def position(log_name: str) -> Callable[[str], Position]:
    """Reads where to start or end, by offset; also by topic first, where it is this log."""
    must = (
        'earliest, latest, or JSON by partition such as {"0": 23, "1": -2};'
        " -2 is earliest, -1 latest"
    )

    def parse(value: str) -> Position:
        word = _of_the_log(value, log_name) or value
        if word.lower() == "earliest":
            return "earliest"
        if word.lower() == "latest":
            return "latest"
        return _by_partition(value, log_name, EARLIEST, must)

    return parse


def times_ms(log_name: str) -> Callable[[str], Mapping[int, int]]:
    """Reads moments by partition, as `position` reads offsets."""
    must = (
        "JSON by partition, milliseconds since 1970 or ISO 8601,"
        ' such as {"0": 1767225600000, "1": "2026-01-01T00:00:00Z"}'
    )
    return lambda value: _by_partition(value, log_name, 0, must, number_of=definitions.time_ms)


def _of_the_log(value: str, log_name: str) -> str | None:
    """Returns the word in ``{"<log>": "<word>"}``."""
    try:
        parsed = json.loads(value)
    except ValueError:
        return None
    if not isinstance(parsed, dict) or list(parsed) != [log_name]:
        return None
    word = parsed[log_name]
    return word if isinstance(word, str) else None


def _by_partition(
    value: str,
    log_name: str,
    smallest: int,
    must: str,
    *,
    number_of: Callable[[str], int] | None = None,
) -> dict[int, int]:
    """Reads numbers by partition; ``number_of`` reads those that are given as text."""
    try:
        parsed = json.loads(value)
    except ValueError:
        raise ValueError(must) from None
    if isinstance(parsed, dict) and list(parsed) == [log_name] and type(parsed[log_name]) is dict:
        parsed = parsed[log_name]  # Kafka's form: by topic first.
    if isinstance(parsed, dict) and dict in map(type, parsed.values()):
        raise ValueError(f'of the log "{log_name}" alone, such as {{"{log_name}": {{"0": 23}}}}')
    if not isinstance(parsed, dict) or not parsed:
        raise ValueError(must)
    numbers: dict[int, int] = {}
    for p, given in parsed.items():
        number = number_of(given) if number_of and isinstance(given, str) else given
        if not (p.isascii() and p.isdigit()) or type(number) is not int or number < smallest:
            raise ValueError(must)
        numbers[int(p)] = number
    return dict(sorted(numbers.items()))
