"""Documents (FORMAT.md §1 and §2): names, checked headers, bounded bodies, strict JSON."""

import json
import re
import zlib
from pathlib import Path
from typing import Any

import xxhash

Json = dict[str, Any]

MIB = 1 << 20
LIMITS = {
    "commit": 256 * MIB,
    "edit": 256 * MIB,
    "snapshot": 1024 * MIB,
    "page": 256 * MIB,
    "columns": 64 * MIB,
    "block": 128 * 1024,
    "log": 4096,
}
HEADER_BYTES = 4096
INT64 = range(-(1 << 63), 1 << 63)
HEX32 = re.compile(r"[0-9a-f]{32}")


class FormatError(Exception):
    """What a reader must refuse; names the section of FORMAT.md that says so."""

    def __init__(self, section: str, message: str) -> None:
        super().__init__(f"§{section}: {message}")
        self.section = section


class DamagedError(FormatError):
    """Bytes that contradict the format or each other."""


class MissingError(DamagedError):
    """A file is missing: damage in the newest version, expiry in any other (§8)."""


class UnsupportedError(FormatError):
    """A format or a feature that this reader does not know (§0, §2)."""


class ExpiredError(FormatError):
    """A version that is no longer readable (§8)."""


def need(condition: bool, section: str, message: str) -> None:
    """Refuses what does not hold."""
    if not condition:
        raise DamagedError(section, message)


def integer(value: object, section: str, least: int = 0) -> int:
    """A JSON integer of at least ``least``; true and 1.0 are not integers."""
    need(
        isinstance(value, int) and not isinstance(value, bool), section, f"{value!r} is no integer"
    )
    assert isinstance(value, int)
    need(value in INT64, "2", "an integer of more than 64 bits")
    need(value >= least, section, f"{value} is below {least}")
    return value


def horizon(value: object, section: str, least: int = 0) -> int:
    """A chunk's horizon, the one integer that may be longer: it counts as 2^63 - 1 then (§5.3)."""
    return integer(min(value, INT64[-1]) if type(value) is int else value, section, least)


def safe_path(value: object) -> str:
    """A path inside the log's folder (§1)."""
    need(isinstance(value, str), "1", f"{value!r} is no path")
    assert isinstance(value, str)
    elements = value.split("/")
    need(not any(element in ("", ".", "..") for element in elements), "1", f"unsafe path {value!r}")
    unsafe = "\0" in value or "\\" in value or ":" in elements[0]
    need(not unsafe, "1", f"unsafe path {value!r}")
    return value


def columns(group: Json, names: str, section: str) -> list[tuple[Any, ...]]:
    """The rows of columns: equally long lists under one object (§2)."""
    lists = [group.get(name) for name in names.split()]
    need(all(isinstance(each, list) for each in lists), section, f"not all columns: {names}")
    lengths = {len(each) for each in lists if each is not None}
    need(len(lengths) == 1, section, f"columns of different lengths: {names}")
    return list(zip(*lists, strict=True))


def parse_json(raw: bytes) -> Any:
    """Strict JSON: UTF-8, no halves of surrogate pairs (§2)."""
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise DamagedError("2", f"no JSON: {error}") from error
    return value


def _refuse_constant(name: str) -> Any:
    raise DamagedError("2", f"{name} is no JSON")


def parse_document(raw: bytes, kind: str) -> Json:
    """The body of a document, after its header was checked (§2)."""
    line, feed, stored = raw.partition(b"\n")
    need(bool(feed) and len(line) <= HEADER_BYTES, "2", "a document without a header line")
    header = parse_json(line)
    need(isinstance(header, dict), "2", "the header is no object")
    if integer(header.get("format"), "2", 1) > 1:
        raise UnsupportedError("2", f"format {header['format']}")
    need(header.get("clog") == kind, "2", f"{header.get('clog')!r} where {kind!r} belongs")
    need(
        header.get("bytes") == len(stored),
        "2",
        f"{len(stored)} bytes instead of {header.get('bytes')}",
    )
    need(header.get("xxh3_128") == xxhash.xxh3_128_hexdigest(stored), "2", "wrong checksum")
    body = parse_json(_decode(stored, header.get("encoding"), LIMITS[kind]))
    need(isinstance(body, dict), "2", "the body is no object")
    return dict(body)


def _decode(stored: bytes, encoding: object, limit: int) -> bytes:
    limit = min(limit, max(4 * MIB, 100 * len(stored)), max(256 * MIB, 20 * len(stored)))
    if encoding == "json":
        need(len(stored) <= limit, "2", "a body longer than its kind allows")
        return stored
    need(encoding == "json+zlib", "2", f"unknown encoding {encoding!r}")
    return inflate(stored, limit, "2")


def inflate(stored: bytes, limit: int, section: str) -> bytes:
    """One zlib stream of at most ``limit`` bytes and nothing after it."""
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(stored, limit + 1)
    except zlib.error as error:
        raise DamagedError(section, f"no zlib stream: {error}") from error
    need(len(body) <= limit, section, "a body longer than allowed")
    need(stream.eof and not stream.unused_data, section, "not one whole zlib stream")
    return body


class Folder:
    """A local directory that paths of documents are relative to."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, path: str) -> bytes:
        """All bytes of a file."""
        try:
            return (self.root / safe_path(path)).read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingError("8", f"{path} is missing") from error

    def document(self, path: str, kind: str) -> Json:
        """The body of a document."""
        try:
            return parse_document(self.read(path), kind)
        except FormatError as error:
            error.add_note(f"in {path}")
            raise

    def reference(self, reference: Json, kind: str) -> Json:
        """The body of a document to which ``{path, bytes}`` refers, with its size checked (§2)."""
        need(isinstance(reference, dict), "2", f"{reference!r} is no reference")
        path = safe_path(reference.get("path"))
        size = len(self.read(path))
        need(size == reference.get("bytes"), "2", f"{path} has {size} bytes")
        return self.document(path, kind)

    def numbered(self, folder: str) -> list[int]:
        """The versions that name documents of a folder, ascending; other names are ignored (§1)."""
        names = [each.name for each in (self.root / folder).glob("*.json")]
        return sorted(int(name[:20]) for name in names if re.fullmatch(r"[0-9]{20}\.json", name))


def version_path(folder: str, version: int) -> str:
    """The name of a numbered document."""
    return f"{folder}/{version:020d}.json"
