"""JSON of the format's values: each field is stated once, beside the value that has it.

A `Codec` makes JSON of a value, and a value of JSON, which it checks. A field has its codec in its
annotation, and its name in JSON where that is another: ``rows: Natural``, ``size_bytes:
Annotated[Natural, "bytes"]``. `record` makes a codec of such a value, an object in JSON; `row` one
of a list; `columns` one of many values, lists side by side. Fields without a codec are no part of
the JSON: who reads gives them.

A field that has its default is left out of an object, and of columns where all have it, unless it
is `KEPT`. What is `BESIDE` has its own fields among those of the value around it.

What a codec refuses it refuses with one of `REFUSED`, and says in which field; `reading` makes it
the error of the document.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, get_args

from clog.storage.env import enough_memory
from clog.storage.errors import CorruptionError

REFUSED: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError)
NONE: Final = -1
"""Stands for "none" in a column of numbers that are never negative. Part of the format."""
KEPT: Final = object()
BESIDE: Final = object()
_INTEGERS = 1 << 63
_HEX = re.compile("[0-9a-f]{32}")
_PARTITION = re.compile("0|[1-9][0-9]{0,9}")


class Codec(NamedTuple):
    """``read_all``: reads a list at once, where that is faster."""

    write: Callable[[Any], Any]
    read: Callable[..., Any]
    read_all: Callable[[list[Any]], list[Any]] | None = None


@dataclass(frozen=True, slots=True)
class _Field:
    attribute: str
    name: str
    codec: Codec
    absent: Any
    is_beside: bool


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Makes CorruptionError of what a codec refuses, and StoreUnavailableError of too little
    memory.
    """
    try:
        with enough_memory(where):
            yield
    except REFUSED as e:
        lacks = "it lacks " if isinstance(e, KeyError) else ""
        raise CorruptionError(f"{where} violates the format: {lacks}{e}") from e


def record(made: type, *, without: Sequence[str] = ()) -> Codec:
    """Returns the codec of an object with the fields of a dataclass, in their order. Its ``read``
    takes fields that are known already, by name.
    """
    steps = [f for f in _fields_of(made) if f.attribute not in without]
    # Tuples, as loops over them cost half as much: each commit is written and read so.
    writes = [(f.attribute, f.name, f.codec.write, f.absent, f.is_beside) for f in steps]
    reads = [(f.attribute, f.name, f.codec.read, f.absent, f.is_beside) for f in steps]

    def write(value: Any) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for attribute, name, to_json, absent, is_beside in writes:
            part = getattr(value, attribute)
            if is_beside:
                out.update(to_json(part))
            elif absent is MISSING or part != absent:
                out[name] = part if to_json is _same else to_json(part)
        return out

    def read(value: Mapping[str, Any], /, **known: Any) -> Any:
        name = ""
        try:
            for attribute, name, from_json, absent, is_beside in reads:
                if attribute in known:
                    continue
                if is_beside:
                    known[attribute] = from_json(value)
                elif absent is MISSING or name in value:
                    known[attribute] = from_json(value[name])
        except REFUSED as e:
            raise _refused(name, e) from e
        return made(**known)

    return Codec(write, read)


def row(of: type, *, made: Callable[..., Any] | None = None) -> Codec:
    """Returns the codec of a list with the fields of a dataclass, in their order; ``made`` makes
    something else of it, from its parts.
    """
    steps = _fields_of(of)
    get = attrgetter(*(f.attribute for f in steps))
    to_json, from_json = pair(*(f.codec for f in steps))[:2]
    one = of if made is None else made
    return Codec(
        lambda value: to_json(get(value)),
        from_json if one is tuple_of else lambda value: one(*from_json(value)),
    )


def pair(*codecs: Codec) -> Codec:
    """Returns the codec of a tuple, a list in JSON."""
    writes, reads = [c.write for c in codecs], [c.read for c in codecs]

    def write(value: Iterable[Any]) -> list[Any]:
        return [w(v) for w, v in zip(writes, value, strict=True)]

    def read(value: Iterable[Any]) -> tuple[Any, ...]:
        return tuple([r(v) for r, v in zip(reads, value, strict=True)])

    return Codec(list if all(w is _same for w in writes) else write, read)


def columns(of: type, *, only: Sequence[str] = (), made: Callable[..., Any] | None = None) -> Codec:
    """Returns the codec of many values of a dataclass as lists side by side, ``only`` those with
    these names; ``made`` makes something else of a row, from its parts.
    """
    steps = [f for f in _fields_of(of) if not only or f.name in only]
    get = attrgetter(*(f.attribute for f in steps))
    one = of if made is None else made

    def write(values: Iterable[Any]) -> dict[str, list[Any]]:
        lists = list(zip(*map(get, values), strict=True)) or [()] * len(steps)
        return {
            f.name: list(column) if f.codec.write is _same else list(map(f.codec.write, column))
            for f, column in zip(steps, lists, strict=True)
            if f.absent is MISSING or any(v != f.absent for v in column)
        }

    def read(value: Mapping[str, Any]) -> tuple[Any, ...]:
        there = [f for f in steps if f.absent is MISSING or f.name in value]
        lists = [value[f.name] for f in there]
        if not all(isinstance(column, list) for column in lists):
            raise TypeError(f"columns that are no lists, among {', '.join(f.name for f in there)}")
        lengths = {f.name: len(column) for f, column in zip(there, lists, strict=True)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of different lengths: {lengths}")
        parsed = {}
        for f, column in zip(there, lists, strict=True):
            try:
                parsed[f.name] = _all(f.codec, column)
            except REFUSED as e:
                raise _refused(f.name, e) from e
        count = len(lists[0])
        rows = zip(*(parsed.get(f.name, [f.absent] * count) for f in steps), strict=True)
        return tuple(one(*parts) for parts in rows)

    return Codec(write, read)


def seq(codec: Codec) -> Codec:
    """Returns the codec of many: whatever has elements counts as a list."""
    return Codec(
        list if codec.write is _same else lambda values: list(map(codec.write, values)),
        lambda value: tuple(_all(codec, list(value))),
    )


def listed(codec: Codec) -> Codec:
    """Returns the codec of a list, which must be one."""
    inner = seq(codec)

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise TypeError(f"expected a list, found {value!r:.80}")
        return inner.read(value)

    return Codec(inner.write, read)


def table(key: Codec, codec: Codec, *, is_sorted: bool = True) -> Codec:
    """Returns the codec of an object whose names are data."""

    def write(value: Mapping[Any, Any]) -> dict[str, Any]:
        pairs = sorted(value.items()) if is_sorted else value.items()
        return {str(k): codec.write(v) for k, v in pairs}

    return Codec(write, lambda value: {key.read(k): codec.read(v) for k, v in value.items()})


def by_partition(codec: Codec, *, is_sorted: bool = True) -> Codec:
    """Returns the codec of an object by partition, whose numbers have no leading zeros."""
    return table(Codec(_same, _partition), codec, is_sorted=is_sorted)


def maybe(codec: Codec) -> Codec:
    """Returns the codec of what may be null."""
    to_json, from_json = codec.write, codec.read
    return Codec(
        _same if to_json is _same else lambda value: None if value is None else to_json(value),
        lambda value: None if value is None else from_json(value),
    )


def checked(codec: Codec, is_allowed: Callable[[Any], bool], what: str) -> Codec:
    """Returns the codec that refuses what else is not allowed, and says what it is."""
    from_json = codec.read

    def read(value: Any) -> Any:
        if not is_allowed(found := from_json(value)):
            raise ValueError(f"{what}: {value!r:.80}")
        return found

    return Codec(codec.write, read)


def _fields_of(made: Any) -> list[_Field]:
    found = []
    for f in fields(made):
        _, *said = get_args(f.type) if hasattr(f.type, "__metadata__") else (None,)
        codecs = [one for one in said if isinstance(one, Codec)]
        if codecs:
            name = next((one for one in said if isinstance(one, str)), f.name)
            absent = f.default if f.default_factory is MISSING else f.default_factory()
            if any(one is KEPT for one in said):
                absent = MISSING
            is_beside = any(one is BESIDE for one in said)
            found.append(_Field(f.name, name, codecs[-1], absent, is_beside))
    return found


def _all(codec: Codec, values: list[Any]) -> list[Any]:
    return list(map(codec.read, values)) if codec.read_all is None else codec.read_all(values)


def _refused(name: str, e: Exception) -> ValueError:
    return ValueError(f"{name} is missing" if isinstance(e, KeyError) else f"{name}: {e}")


def tuple_of(*parts: Any) -> tuple[Any, ...]:
    """Returns its arguments, for `row` and `columns` to make no value of."""
    return parts


def _same(value: Any) -> Any:
    return value


def whole(value: Any) -> int:
    """Returns an integer of 64 bits: JSON has floats, booleans and longer ones, the format not."""
    if type(value) is not int:
        raise TypeError(f"expected an integer, found {value!r:.80}")
    if not -_INTEGERS <= value < _INTEGERS:
        raise ValueError("an integer of more than 64 bits")
    return value


def _natural(value: Any) -> int:
    if whole(value) < 0:
        raise ValueError(f"{value}, where no number is below 0")
    return int(value)


def _all_whole(values: list[Any]) -> list[int]:
    if set(map(type, values)) - {int} or (values and not _are_short(values)):
        list(map(whole, values))  # Says which.
    return values


def _are_short(values: list[int]) -> bool:
    return min(values) >= -_INTEGERS and max(values) < _INTEGERS


def _all_natural(values: list[Any]) -> list[int]:
    if values and min(_all_whole(values)) < 0:
        list(map(_natural, values))
    return values


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r:.80}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, found {value!r:.80}")
    return value


def _hex(value: Any) -> str:
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise ValueError(f"a checksum or id that is not 32 hex digits: {value!r:.80}")
    return value


def _path(value: Any) -> str:
    """Returns a path that stays in the log's folder (FORMAT.md §1)."""
    if isinstance(value, str) and "\\" not in value and "\0" not in value:
        parts = value.split("/")
        if all(part not in ("", ".", "..") for part in parts) and ":" not in parts[0]:
            return value
    raise ValueError(f"{value!r:.200} is not a path in the log's folder")


def _partition(text: str) -> int:
    if not _PARTITION.fullmatch(text):
        raise ValueError(f"no partition: {text!r:.80}")
    return int(text)


INT: Final = Codec(_same, whole, _all_whole)
NATURAL: Final = Codec(_same, _natural, _all_natural)
TEXT: Final = Codec(_same, _text)
SHOWN: Final = Codec(_same, str)
"""Text; what else may stand there is read as its text."""
FLAG: Final = Codec(_same, _flag)
SAID: Final = Codec(_same, lambda value: value is True)
"""True where it is true, whatever else may stand there."""
HEX: Final = Codec(_same, _hex)
PATH: Final = Codec(_same, _path)

Int = Annotated[int, INT]
Natural = Annotated[int, NATURAL]
Text = Annotated[str, TEXT]
Shown = Annotated[str, SHOWN]
Flag = Annotated[bool, FLAG]
Hex = Annotated[str, HEX]
Path = Annotated[str, PATH]
Offsets = Annotated[Mapping[int, int], by_partition(NATURAL)]
