"""Documents: every file under ``_clog/``, its fields, its envelope and its name (FORMAT.md §1, §2).

*Envelope.* One line of JSON with kind, format, length and hash, then the body: JSON, or JSON as one
zlib stream. The format's number is checked first, then length and hash, and only then is the body
used. An attacker who can write to a log can also write a matching hash, or put an endless file in
place of a document. So no more bytes are read than a document of its kind may have, and a body is
inflated only up to that size and a multiple of its stored size (`RATIOS`): JSON takes up to thirty
times its length in memory. Text must be UTF-8 that can be written again: no lone surrogates.

*Fields.* Each is declared once, in the class of its value. A `Codec` turns a value into JSON, and
checks JSON as it turns it into a value. The annotation of a field has its codec, and its name in
JSON if that differs: ``rows: Natural``, ``size_bytes: Annotated[Natural, "bytes"]``. `record` makes
a codec whose JSON is an object; `row` makes one for a list; `columns` makes one for many values, as
parallel lists. Fields without a codec are not in the JSON: the caller of ``read`` passes them. A
field with its default value is left out of an object, and of columns if all values have it, unless
it is `KEPT`. The fields of a `BESIDE` value are among those of the value that contains it. Codecs
raise one of `REFUSED`, which names the field; `reading` turns it into an error of the document.

*Names.* ``_clog/log`` has the id of the current log (S47). All other files of the log are in its
*folder*, ``_clog/<id>/``, and are named relative to it. Versions have 20 decimal digits, so that
names sort as numbers.
"""

import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from itertools import starmap
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, get_args

import xxhash

from clog.storage.env import UPGRADE, dataclass, enough_memory
from clog.storage.errors import CorruptionError, InvalidInputError, UnsupportedFormatError
from clog.storage.view_formats import FORMATS

if TYPE_CHECKING:
    from clog.storage.store.contract import Store

FORMAT = 1
COMPRESS_ABOVE_BYTES = 4096
BODY_BYTES_MAX = {
    "commit": 256 << 20,
    "edit": 256 << 20,
    "snapshot": 1 << 30,
    "page": 256 << 20,
    "columns": 64 << 20,
    "block": 128 << 10,
    "log": 4 << 10,
    "reader": 16 << 20,
    "proposal": 1 << 20,
    "erasure": 16 << 20,
    "receipt": 16 << 20,
}
"""The most bytes of a body before compression, by kind. Part of the format."""
RATIOS = ((4 << 20, 100), (256 << 20, 20))
"""A body longer than the first number of bytes has at most the second number times its stored size.
Part of the format.
"""
_HEADER_BYTES_MAX = 4096
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def body_json(body: dict[str, Any]) -> bytes:
    """Returns a body's JSON as measured and stored; CorruptionError if it is nested too deeply."""
    try:
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    except RecursionError as e:
        raise CorruptionError(
            "the log has fields of a later version that are nested too deeply to be written again"
        ) from e


def fetch(store: "Store", kind: str, path: str, size_bytes: int | None = None) -> bytes:
    """Returns the bytes of a document. If it is longer than its kind or ``size_bytes`` allows, it
    is not read to its end, but far enough for `decode` to refuse it. One GET.

    Raises:
        CorruptionError: it does not have ``size_bytes``.
        StoreUnavailableError: there is not enough memory for it.
    """
    longest = BODY_BYTES_MAX[kind] + _HEADER_BYTES_MAX + 1
    end = min(longest, longest if size_bytes is None else size_bytes) + 1
    with enough_memory(f"{path} of {store.url}"):
        data = store.get(path, 0, end)
    if size_bytes is not None and len(data) != size_bytes:
        has = f"is truncated: it has {len(data)} of" if len(data) < size_bytes else "has more than"
        raise CorruptionError(
            f"{path} of {store.url} {has} {size_bytes} bytes; keep the file, restore it from a copy"
        )
    return data


def get(store: "Store", kind: str, path: str, size_bytes: int | None = None) -> dict[str, Any]:
    """Returns the body of a document; one GET. Raises as `fetch` and `decode` do."""
    return decode(kind, fetch(store, kind, path, size_bytes), where=f"{path} of {store.url}")


def encode(kind: str, body: dict[str, Any]) -> bytes:
    """Returns a document's bytes."""
    return encode_json(kind, body_json(body))


def encode_json(kind: str, stored: bytes) -> bytes:
    """Returns a document's bytes, given its JSON; InvalidInputError if that is too long."""
    if len(stored) > BODY_BYTES_MAX[kind]:
        raise InvalidInputError(
            f"a {kind} of {len(stored)} bytes is more than the {BODY_BYTES_MAX[kind]} allowed;"
            " commit fewer objects at once"
        )
    encoding = "json"
    if len(stored) > COMPRESS_ABOVE_BYTES:
        packed = zlib.compress(stored, 6)
        if len(stored) <= _longest(kind, packed):
            stored, encoding = packed, "json+zlib"
    envelope = {
        "clog": kind,
        "format": FORMAT,
        "bytes": len(stored),
        "xxh3_128": xxhash.xxh3_128_hexdigest(stored),
        "encoding": encoding,
    }
    return body_json(envelope) + b"\n" + stored


def decode(kind: str, data: bytes, *, where: str) -> dict[str, Any]:
    """Returns the body of a document.

    Raises:
        CorruptionError: it is truncated, damaged, of another kind, or not a document at all.
        UnsupportedFormatError: it was written in a newer format.
        StoreUnavailableError: there is not enough memory for it.
    """
    with enough_memory(where):
        return _decoded(kind, data, where)


def _decoded(kind: str, data: bytes, where: str) -> dict[str, Any]:
    line, newline, stored = data.partition(b"\n")
    if not newline or len(line) > _HEADER_BYTES_MAX:
        raise CorruptionError(f"{where} is not a clog document: no header in {len(data)} bytes")
    envelope = _json_object(line, where=f"the header of {where}")
    number = envelope.get("format")
    if type(number) is int and number > FORMAT:
        raise UnsupportedFormatError(
            f"{where} has format {number}, but this clog reads up to {FORMAT}; {UPGRADE}"
        )
    if envelope.get("clog") != kind or type(number) is not int or number != FORMAT:
        raise CorruptionError(
            f"{where} has kind={envelope.get('clog')!r} format={number!r},"
            f" expected kind={kind!r} format={FORMAT}"
        )
    if envelope.get("bytes") != len(stored):
        raise CorruptionError(
            f"{where} is truncated or damaged: body of {len(stored)} bytes,"
            f" header says {envelope.get('bytes')!r}"
        )
    found = xxhash.xxh3_128_hexdigest(stored)
    if envelope.get("xxh3_128") != found:
        raise CorruptionError(
            f"checksum mismatch in {where}: xxh3_128={found},"
            f" header says {envelope.get('xxh3_128')!r}"
        )
    return _json_object(_inflate(kind, envelope.get("encoding"), stored, where), where=where)


def _longest(kind: str, packed: bytes) -> int:
    longest = BODY_BYTES_MAX[kind]
    for free_bytes, ratio in RATIOS:
        longest = min(longest, max(free_bytes, ratio * len(packed)))
    return longest


def _inflate(kind: str, encoding: object, stored: bytes, where: str) -> bytes:
    if encoding == "json":
        if len(stored) > BODY_BYTES_MAX[kind]:
            raise CorruptionError(f"{where} has {len(stored)} bytes, more than a {kind} may have")
        return stored
    if encoding != "json+zlib":
        raise CorruptionError(f"{where} has encoding={encoding!r}; known: json, json+zlib")
    stream, longest = zlib.decompressobj(), _longest(kind, stored)
    try:
        body = stream.decompress(stored, longest)
    except zlib.error as e:
        raise CorruptionError(f"{where} does not inflate: {e}") from e
    if not stream.eof or stream.unused_data:
        raise CorruptionError(
            f"{where} is not a single zlib stream of at most {longest} bytes when inflated"
        )
    return body


def _json_object(text: bytes, *, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text.decode())
        if _SURROGATE.search(text):
            body_json(value)  # A surrogate pair can be written again, a lone surrogate cannot.
    except (ValueError, RecursionError) as e:
        raise CorruptionError(f"{where} is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise CorruptionError(f"{where} holds a {type(value).__name__}, expected an object")
    return value


REFUSED: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError)
NONE: Final = -1
"""Means "none" in a column of numbers that are never negative. Part of the format."""
KEPT: Final = object()
BESIDE: Final = object()
_INTEGERS = 1 << 63
_HEX = re.compile("[0-9a-f]{32}")
_AUTHOR = re.compile("[0-9a-f]{16}")
_PARTITION = re.compile("0|[1-9][0-9]{0,9}")


class Codec(NamedTuple):
    """``read_all`` reads a whole list, if there is a faster way than one by one."""

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


class reading(enough_memory):  # noqa: N801 - a context manager, as a class: it costs less
    """Turns the errors of codecs into CorruptionError, and a lack of memory into
    StoreUnavailableError.
    """

    __slots__ = ()

    def __exit__(self, kind: object, e: BaseException | None, trace: object) -> None:
        if isinstance(e, REFUSED):
            lacks = "it lacks " if isinstance(e, KeyError) else ""
            raise CorruptionError(f"{self.where} violates the format: {lacks}{e}") from e
        super().__exit__(kind, e, trace)


def record(made: type, *, without: Sequence[str] = ()) -> Codec:
    """Returns the codec of an object with the fields of a dataclass, in their order. Its ``read``
    takes fields that are already known as keyword arguments.
    """
    steps = [f for f in _fields_of(made) if f.attribute not in without]
    # Loops over tuples cost half as much, and each commit is written and read this way.
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
    """Returns the codec of a list of a dataclass's fields; ``made``, if given, replaces it."""
    steps = _fields_of(of)
    get = attrgetter(*(f.attribute for f in steps))
    to_json, from_json, all_from_json = pair(*(f.codec for f in steps))
    assert all_from_json is not None, "pairs have it"
    one = of if made is None else made
    if one is tuple_of:
        return Codec(lambda value: to_json(get(value)), from_json, all_from_json)
    return Codec(
        lambda value: to_json(get(value)),
        lambda value: one(*from_json(value)),
        lambda values: list(starmap(one, all_from_json(values))),
    )


def pair(*codecs: Codec) -> Codec:
    """Returns the codec of a tuple, which is a list in JSON."""
    writes, reads = [c.write for c in codecs], [c.read for c in codecs]

    def write(value: Iterable[Any]) -> list[Any]:
        return [w(v) for w, v in zip(writes, value, strict=True)]

    def read(value: Iterable[Any]) -> tuple[Any, ...]:
        return tuple([r(v) for r, v in zip(reads, value, strict=True)])

    def read_all(values: list[Any]) -> list[tuple[Any, ...]]:
        if any(len(value) != len(codecs) for value in values):
            list(map(read, values))  # The error says which.
        lists = zip(codecs, zip(*values, strict=True), strict=bool(values))
        return list(zip(*(all_of(codec, list(column)) for codec, column in lists), strict=True))

    return Codec(list if all(w is _same for w in writes) else write, read, read_all)


def columns(of: type, *, only: Sequence[str] = (), made: Callable[..., Any] | None = None) -> Codec:
    """Returns the codec of many values of a dataclass as parallel lists, one per field, or ``only``
    of the fields with these names; ``made`` is called with the parts of a row instead.
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
        lists = [
            value[f.name] if f.absent is MISSING or f.name in value else MISSING for f in steps
        ]
        there = [column for column in lists if column is not MISSING]
        if set(map(type, there)) - {list}:
            raise TypeError(f"columns that are not lists, among {', '.join(f.name for f in steps)}")
        count = len(there[0])
        if any(len(column) != count for column in there):
            raise ValueError(f"columns of different lengths: {[*map(len, there)]}")
        parsed = []
        for f, column in zip(steps, lists, strict=True):
            try:
                given = [f.absent] * count if column is MISSING else all_of(f.codec, column)
                parsed.append(given)
            except REFUSED as e:
                raise _refused(f.name, e) from e
        rows = zip(*parsed, strict=True)
        return tuple(rows) if one is tuple_of else tuple(starmap(one, rows))

    return Codec(write, read)


def seq(codec: Codec) -> Codec:
    """Returns the codec of many values; any iterable counts as a list."""
    return Codec(
        list if codec.write is _same else lambda values: list(map(codec.write, values)),
        lambda value: tuple(all_of(codec, list(value))),
    )


def listed(codec: Codec) -> Codec:
    """Returns the codec of many values in what must be a JSON list."""
    inner = seq(codec)

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise TypeError(f"expected a list, found {value!r:.80}")
        return inner.read(value)

    return Codec(inner.write, read)


def table(key: Codec, codec: Codec, *, is_sorted: bool = True) -> Codec:
    """Returns the codec of an object whose keys are data."""

    def write(value: Mapping[Any, Any]) -> dict[str, Any]:
        pairs = sorted(value.items()) if is_sorted else value.items()
        return {str(k): codec.write(v) for k, v in pairs}

    return Codec(write, lambda value: {key.read(k): codec.read(v) for k, v in value.items()})


def by_partition(codec: Codec, *, is_sorted: bool = True) -> Codec:
    """Returns the codec of an object whose keys are partitions, without leading zeros."""
    return table(Codec(_same, _partition), codec, is_sorted=is_sorted)


def maybe(codec: Codec) -> Codec:
    """Returns the codec of a value that may be null."""
    to_json, from_json = codec.write, codec.read
    return Codec(
        _same if to_json is _same else lambda value: None if value is None else to_json(value),
        read := lambda value: None if value is None else from_json(value),
        lambda values: list(map(read, values)) if None in values else all_of(codec, values),
    )


def checked(codec: Codec, is_allowed: Callable[[Any], bool], what: str) -> Codec:
    """Returns a codec that also refuses values that are not allowed; ``what`` is for the error."""
    from_json = codec.read

    def read(value: Any) -> Any:
        if not is_allowed(found := from_json(value)):
            raise ValueError(f"{what}: {value!r:.80}")
        return found

    def read_all(values: list[Any]) -> list[Any]:
        found = all_of(codec, values)
        return found if all(map(is_allowed, found)) else list(map(read, values))  # Says which.

    return Codec(codec.write, read, read_all)


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


def all_of(codec: Codec, values: list[Any]) -> list[Any]:
    """Reads many values."""
    return list(map(codec.read, values)) if codec.read_all is None else codec.read_all(values)


def _refused(name: str, e: Exception) -> ValueError:
    return ValueError(f"{name} is missing" if isinstance(e, KeyError) else f"{name}: {e}")


def tuple_of(*parts: Any) -> tuple[Any, ...]:
    """Returns its arguments; as their ``made`` it lets `row` and `columns` make tuples."""
    return parts


def _same(value: Any) -> Any:
    return value


def whole(value: Any) -> int:
    """Returns an integer of 64 bits; refuses JSON's floats, booleans and longer integers."""
    if type(value) is not int:
        raise TypeError(f"expected an integer, found {value!r:.80}")
    if not -_INTEGERS <= value < _INTEGERS:
        raise ValueError("an integer of more than 64 bits")
    return value


def _natural(value: Any) -> int:
    if whole(value) < 0:
        raise ValueError(f"{value}, where numbers are 0 or above")
    return int(value)


def _all_whole(values: list[Any]) -> list[int]:
    if set(map(type, values)) - {int} or (values and not _are_short(values)):
        list(map(whole, values))  # The error says which.
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


def _all_text(values: list[Any]) -> list[str]:
    return list(map(_text, values)) if set(map(type, values)) - {str} else values


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, found {value!r:.80}")
    return value


def _hex(value: Any) -> str:
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise ValueError(f"a checksum or id that is not 32 hex digits: {value!r:.80}")
    return value


def _author(value: Any) -> str:
    if not isinstance(value, str) or not _AUTHOR.fullmatch(value):
        raise ValueError(f"an author that is not 16 hex digits: {value!r:.80}")
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
TEXT: Final = Codec(_same, _text, _all_text)
SHOWN: Final = Codec(_same, str)
"""Text; any other value is read as its text."""
FLAG: Final = Codec(_same, _flag)
SAID: Final = Codec(_same, lambda value: value is True)
"""True if it is true; any other value is read as false."""
HEX: Final = Codec(_same, _hex)
AUTHOR: Final = Codec(_same, _author)
PATH: Final = Codec(_same, _path)

Int = Annotated[int, INT]
Natural = Annotated[int, NATURAL]
OrNone = Annotated[int, checked(INT, lambda number: number >= NONE, "a number, or -1")]
Text = Annotated[str, TEXT]
Shown = Annotated[str, SHOWN]
Flag = Annotated[bool, FLAG]
Hex = Annotated[str, HEX]
Path = Annotated[str, PATH]
Offsets = Annotated[Mapping[int, int], by_partition(NATURAL)]


FOLDERS = "_clog/"
LOG_FILE = "_clog/log"
LATEST = "latest"
COMMITS = "commits/"
SNAPSHOTS = "snapshots/"
PAGES = "pages/"
COLUMNS = "columns/"
EDITS = "edits/"
BLOCKS = "blocks/"
DATA = "data/"
VIEWS = "views/"
READERS = "readers/"
PROPOSALS = "proposals/"
ERASURES = "erasures/"
RECEIPTS = "receipts/"
RESERVE = "reserve"
CLOCKS = "clock-"
"""Files that a comparison of clocks writes and deletes again."""
DEAD_SUFFIX = ".dead"
MASK_SUFFIX = ".mask"

BLOCK_VERSIONS = 1024
"""Commits are deleted in blocks of this many versions. Part of the format (FORMAT.md §7)."""

_LOG_ID = re.compile(r"[0-9a-f]{32}")
_VERSIONED = re.compile(r"(?:commits|snapshots|blocks)/([0-9]{20})\.json")
_COLUMNS = re.compile(r"columns/([0-9]{20})-[0-9a-f]{32}\.json")
_DATA_OBJECT = re.compile(r"data/([0-9]{20})-[0-9a-f]{32}\.(?:parquet|dead|mask)")
_READER = re.compile(r"readers/([A-Za-z0-9_-][A-Za-z0-9._-]{0,127})\.json")
_PROPOSAL = re.compile(
    r"proposals/([0-9]{20})-([0-9a-f]{16})-([1-9][0-9]{0,17})-(0|[1-9][0-9]{0,5})\.json"
)
_UNVERSIONED = re.compile(r"(?:pages|edits)/[0-9a-f]{32}\.json|clock-[0-9a-f]{32}")
_ERASURE = re.compile(r"erasures/([0-9a-f]{32})(?:\.receipt)?\.json")
_RECEIPT = re.compile(r"receipts/([0-9]{20})\.json")
_OF_VIEW = re.compile(r"views/([a-z]+)/([0-9]{20})/([^/]+)")


def folder_of(log_id: str) -> str:
    """Returns the folder of a log, without a slash at its end."""
    return f"{FOLDERS}{log_id}"


def is_log_id(text: object) -> bool:
    """Returns whether this can be the id of a log: 32 hexadecimal digits."""
    return isinstance(text, str) and _LOG_ID.fullmatch(text) is not None


def commit_path(version: int) -> str:
    """Returns the path of the commit that made a version."""
    return f"{COMMITS}{version:020d}.json"


def snapshot_path(version: int) -> str:
    """Returns the path of the manifest at a version."""
    return f"{SNAPSHOTS}{version:020d}.json"


def page_path(page_id: str) -> str:
    """Returns the path of a page of segments or of writers."""
    return f"{PAGES}{page_id}.json"


def columns_path(version: int, columns_id: str) -> str:
    """Returns the path of the columns of all partitions at a version."""
    return f"{COLUMNS}{version:020d}-{columns_id}.json"


def edit_path(edit_id: str) -> str:
    """Returns the path of an edit that is too large for its commit."""
    return f"{EDITS}{edit_id}.json"


def block_of(version: int) -> int:
    """Returns the first version of the block that holds ``version``."""
    return version - version % BLOCK_VERSIONS


def block_path(version: int) -> str:
    """Returns the path of the file of the block that holds ``version`` (FORMAT.md §7)."""
    return f"{BLOCKS}{block_of(version):020d}.json"


def data_path(stamp: int, object_id: str) -> str:
    """Returns the path of a data object; its writer had read version ``stamp`` (FORMAT.md §6)."""
    return f"{DATA}{stamp:020d}-{object_id}.parquet"


def dead_path(stamp: int, file_id: str) -> str:
    """Returns the path of a bitmap of dead rows; ``stamp`` is as in `data_path`."""
    return f"{DATA}{stamp:020d}-{file_id}{DEAD_SUFFIX}"


def view_folder(name: str, view: int) -> str:
    """Returns the folder, with a final slash, of the files of a version of a published view."""
    return f"{VIEWS}{name}/{view:020d}/"


def view_of(path: str) -> tuple[str, int] | None:
    """Returns format and version of a view from the name of its file; None for any other name."""
    match = _OF_VIEW.fullmatch(path)
    row = FORMATS.get(match[1]) if match else None
    if match is None or row is None or not row.files.fullmatch(match[3]):
        return None
    return row.name, int(match[2])


def reader_path(name: str) -> str:
    """Returns the path of a named reader's position (FORMAT.md §18)."""
    return f"{READERS}{name}.json"


def reader_name_of(path: str) -> str | None:
    """Returns the name of the reader whose document this is; None for any other path."""
    match = _READER.fullmatch(path)
    return match[1] if match else None


def proposal_path(stamp: int, author: str, number: int, attempt: int) -> str:
    """Returns the path of an author's proposal; ``stamp`` is a version at which it knew that its
    operation ``number`` was not applied (FORMAT.md §21).
    """
    return f"{PROPOSALS}{stamp:020d}-{author}-{number}-{attempt}.json"


def proposal_of(path: str) -> tuple[int, str, int, int] | None:
    """Returns stamp, author, number and attempt from the name of a proposal; None for others."""
    match = _PROPOSAL.fullmatch(path)
    return (int(match[1]), match[2], int(match[3]), int(match[4])) if match else None


def erasure_path(erasure_id: str) -> str:
    """Returns the path of the request for an erasure, which has the keys (FORMAT.md §17)."""
    return f"{ERASURES}{erasure_id}.json"


def begun_receipt_path(erasure_id: str) -> str:
    """Returns the path of the facts about an erasure that has no receipt yet."""
    return f"{ERASURES}{erasure_id}.receipt.json"


def erasure_of(path: str) -> str | None:
    """Returns the id in the name of a request or begun receipt; None for any other name."""
    match = _ERASURE.fullmatch(path)
    return match[1] if match else None


def receipt_path(number: int) -> str:
    """Returns the path of a receipt."""
    return f"{RECEIPTS}{number:020d}.json"


def receipt_number_of(path: str) -> int | None:
    """Returns the number in the name of a receipt; None for any other name."""
    match = _RECEIPT.fullmatch(path)
    return int(match[1]) if match else None


def is_known(path: str) -> bool:
    """Returns whether a name in a log's folder is one that FORMAT.md defines."""
    patterns = _VERSIONED, _COLUMNS, _DATA_OBJECT, _READER, _PROPOSAL, _UNVERSIONED
    every = (*patterns, _ERASURE, _RECEIPT)
    is_plain = path in (LATEST, RESERVE) or view_of(path) is not None
    return is_plain or any(pattern.fullmatch(path) for pattern in every)


def mask_path(stamp: int, file_id: str) -> str:
    """Returns the path of a bitmap of a mask; ``stamp`` is as in `data_path`."""
    return f"{DATA}{stamp:020d}-{file_id}{MASK_SUFFIX}"


def version_of(path: str) -> int | None:
    """Returns the version in the name of a commit, snapshot or block; None for any other name."""
    match = _VERSIONED.fullmatch(path)
    return int(match[1]) if match else None


def stamp_of(path: str) -> int | None:
    """Returns the stamp in the name of a data object or bitmap; None for any other name."""
    match = _DATA_OBJECT.fullmatch(path)
    return int(match[1]) if match else None


def columns_version_of(path: str) -> int | None:
    """Returns the version in the name of a document of columns; None for any other name."""
    match = _COLUMNS.fullmatch(path)
    return int(match[1]) if match else None


def is_unversioned(path: str) -> bool:
    """Returns whether this is the name of a page, an edit or a comparison of clocks."""
    return _UNVERSIONED.fullmatch(path) is not None
