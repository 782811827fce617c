"""Documents: the envelope of every file under ``_clog/`` (FORMAT.md §2).

One line of JSON with kind, format, length and hash; then the body, JSON or one zlib stream of it.
Length and hash are checked before a byte of the body is believed, the format's number before that.

Not here: what the bodies mean (`edits`, `head`, `manifest`, `snapshots`).
"""

import json
import zlib
from typing import Any

import xxhash

from clog.storage.errors import CorruptionError, UnsupportedFormatError

FORMAT = 1
COMPRESS_ABOVE_BYTES = 4096
BODY_BYTES_MAX = 1 << 30
"""A body that inflates beyond this is refused: bounded memory against hostile input."""
_HEADER_BYTES_MAX = 4096


def body_json(body: dict[str, Any]) -> bytes:
    """The JSON of a body as it is measured and stored: no blanks, UTF-8."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def encode(kind: str, body: dict[str, Any]) -> bytes:
    """A document's bytes."""
    return encode_json(kind, body_json(body))


def encode_json(kind: str, stored: bytes) -> bytes:
    """A document's bytes, from a body that is JSON already."""
    encoding = "json"
    if len(stored) > COMPRESS_ABOVE_BYTES:
        stored, encoding = zlib.compress(stored, 6), "json+zlib"
    envelope = {
        "clog": kind,
        "format": FORMAT,
        "bytes": len(stored),
        "xxh3_128": xxhash.xxh3_128_hexdigest(stored),
        "encoding": encoding,
    }
    return body_json(envelope) + b"\n" + stored


def decode(kind: str, data: bytes, *, where: str) -> dict[str, Any]:
    """The body of a document.

    Raises:
        CorruptionError: truncated, damaged, of another kind, or no document at all.
        UnsupportedFormatError: written in a newer format.
    """
    line, newline, stored = data.partition(b"\n")
    if not newline or len(line) > _HEADER_BYTES_MAX:
        raise CorruptionError(f"{where} is not a clog document: no header in {len(data)} bytes")
    envelope = _json_object(line, where=f"the header of {where}")
    number = envelope.get("format")
    if type(number) is int and number > FORMAT:
        raise UnsupportedFormatError(
            f"{where} is written in format {number}, this clog reads up to {FORMAT}; upgrade clog"
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
    return _json_object(_inflate(envelope.get("encoding"), stored, where), where=where)


def _inflate(encoding: object, stored: bytes, where: str) -> bytes:
    if encoding == "json":
        return stored
    if encoding != "json+zlib":
        raise CorruptionError(f"{where} has encoding={encoding!r}; known: json, json+zlib")
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(stored, BODY_BYTES_MAX)
    except zlib.error as e:
        raise CorruptionError(f"{where} does not inflate: {e}") from e
    if not stream.eof or stream.unused_data:
        raise CorruptionError(
            f"{where} is no single zlib stream that inflates to at most {BODY_BYTES_MAX} bytes"
        )
    return body


def _json_object(text: bytes, *, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise CorruptionError(f"{where} is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise CorruptionError(f"{where} holds a {type(value).__name__}, expected an object")
    return value
