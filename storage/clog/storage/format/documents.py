"""Documents: the envelope of every file under ``_clog/``, and every name there (FORMAT.md §1, §2).

One line of JSON with kind, format, length and hash; then the body, JSON or one zlib stream of it.
Length and hash are checked before a byte of the body is believed, the format's number before that.

Who can write to a log can write the hash, too, or put a file without end in a document's place. So
no more is read than one of its kind may have, and a body inflates step by step, up to that and so
many times what is stored (`RATIOS`): JSON takes up to thirty times its length in memory. Text is
UTF-8 that can be written again: no half of a surrogate pair.

``_clog/log`` names the log that stands there, by its id (S47). All else that belongs to the log
lies in its *folder*, ``_clog/<id>/``, and is named relative to it. Versions are 20 decimal digits,
so that names sort as numbers.
"""

import json
import re
import zlib
from typing import TYPE_CHECKING, Any

import xxhash

from clog.storage.env import UPGRADE, enough_memory
from clog.storage.errors import CorruptionError, InvalidInputError, UnsupportedFormatError
from clog.storage.views import FORMATS

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
}
"""By kind the most bytes of a body before compression. Part of the format."""
RATIOS = ((4 << 20, 100), (256 << 20, 20))
"""A compressed body longer than the first number is at most so many times as long as stored. Part
of the format.
"""
_HEADER_BYTES_MAX = 4096
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def body_json(body: dict[str, Any]) -> bytes:
    """Returns the JSON of a body as it is measured and stored: no blanks, UTF-8.

    Raises:
        CorruptionError: fields of others in it are nested too deeply.
    """
    try:
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    except RecursionError as e:
        raise CorruptionError(
            "the log has fields of a later version that are nested too deeply to be written again"
        ) from e


def fetch(store: "Store", kind: str, path: str, size_bytes: int | None = None) -> bytes:
    """Returns the bytes of a document, or so many that `decode` refuses them: none that is longer
    than one of its kind may be, or than ``size_bytes``, is read to its end. One GET.

    Raises:
        CorruptionError: it has not ``size_bytes``.
        StoreUnavailableError: it takes more memory than there is.
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
    """Returns a document's bytes, from a body that is JSON already.

    Raises:
        InvalidInputError: it is longer than a document of its kind may be.
    """
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
        CorruptionError: truncated, damaged, of another kind, or no document at all.
        UnsupportedFormatError: written in a newer format.
        StoreUnavailableError: it takes more memory than there is.
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
            body_json(value)  # A whole pair can be written again, half of one cannot.
    except (ValueError, RecursionError) as e:
        raise CorruptionError(f"{where} is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise CorruptionError(f"{where} holds a {type(value).__name__}, expected an object")
    return value


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
RESERVE = "reserve"
CLOCKS = "clock-"
"""Files that a comparison of clocks writes and deletes again."""
DEAD_SUFFIX = ".dead"
MASK_SUFFIX = ".mask"

BLOCK_VERSIONS = 1024
"""Commits are deleted by blocks of so many versions. Part of the format (FORMAT.md §7)."""

_LOG_ID = re.compile(r"[0-9a-f]{32}")
_VERSIONED = re.compile(r"(?:commits|snapshots|blocks)/([0-9]{20})\.json")
_COLUMNS = re.compile(r"columns/([0-9]{20})-[0-9a-f]{32}\.json")
_DATA_OBJECT = re.compile(r"data/([0-9]{20})-[0-9a-f]{32}\.(?:parquet|dead|mask)")
_READER = re.compile(r"readers/([A-Za-z0-9_-][A-Za-z0-9._-]{0,127})\.json")
_UNVERSIONED = re.compile(r"(?:pages|edits)/[0-9a-f]{32}\.json|clock-[0-9a-f]{32}")
_OF_VIEW = re.compile(r"views/([a-z]+)/([0-9]{20})/([^/]+)")


def folder_of(log_id: str) -> str:
    """Returns the folder of a log, without a slash at its end."""
    return f"{FOLDERS}{log_id}"


def is_log_id(text: object) -> bool:
    """Tells whether this can be the id of a log: 32 hexadecimal digits."""
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
    """Returns the path of a data object; ``stamp`` is a version that its writer had read (FORMAT.md
    §6).
    """
    return f"{DATA}{stamp:020d}-{object_id}.parquet"


def dead_path(stamp: int, file_id: str) -> str:
    """Returns the path of a bitmap of dead rows; ``stamp`` as a data object's."""
    return f"{DATA}{stamp:020d}-{file_id}{DEAD_SUFFIX}"


def view_folder(name: str, view: int) -> str:
    """Returns the folder of the files that a version of a published view has, with its slash."""
    return f"{VIEWS}{name}/{view:020d}/"


def view_of(path: str) -> tuple[str, int] | None:
    """Returns the format and the version of the view in the name of its file; None for any other
    name.
    """
    match = _OF_VIEW.fullmatch(path)
    row = FORMATS.get(match[1]) if match else None
    if match is None or row is None or not row.files.fullmatch(match[3]):
        return None
    return row.name, int(match[2])


def reader_path(name: str) -> str:
    """Returns the path of a named reader's position (FORMAT.md §18)."""
    return f"{READERS}{name}.json"


def reader_name_of(path: str) -> str | None:
    """Returns the name of the reader whose document this is; None for any other name."""
    match = _READER.fullmatch(path)
    return match[1] if match else None


def mask_path(stamp: int, file_id: str) -> str:
    """Returns the path of a bitmap of a mask; ``stamp`` as a data object's."""
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
    """Tells whether this is the name of a page, an edit or a comparison of clocks."""
    return _UNVERSIONED.fullmatch(path) is not None
