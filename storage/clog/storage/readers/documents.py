"""The document of a named reader: its position, and the version at which it had it (FORMAT.md §18).

It decides nothing. One that is damaged, of another log, of a version beyond the newest or of
another history is as if it were not there, and whoever reads it is told why.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clog.storage.commit.handle import Handle
from clog.storage.errors import CorruptionError, InvalidInputError, UnsupportedFormatError
from clog.storage.format import documents
from clog.storage.format.chunks import NONE
from clog.storage.format.paths import READERS, reader_name_of, reader_path
from clog.storage.store.base import Store

KIND = "reader"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class ReaderDocument:
    """What a reader said of itself.

    Attributes:
        name: its name.
        log_id, version, commit_id: the log, the version at which it had the position, its commit.
        offsets: by partition, the next offset that it wants.
        time_ms: when it said so.
        expires_ms: when it may be forgotten.
        hold_ms: for how long it asks to be waited for; 0: not at all.
    """

    name: str
    log_id: str
    version: int
    commit_id: str
    offsets: Mapping[int, int]
    time_ms: int
    expires_ms: int
    hold_ms: int = 0


class StrayReaderError(Exception):
    """The document is none of this log's readers, for the reason in the message."""


def check_name(name: object) -> str:
    """Returns the name, if a reader can have it.

    Raises:
        InvalidInputError: it cannot.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise InvalidInputError(
        f"{name!r:.150} is not a valid reader name; allowed: 1 to 128 characters of A-Z a-z 0-9 ."
        " _ -, not a dot first"
    )


def encode_reader(reader: ReaderDocument) -> bytes:
    """Returns the bytes of a reader's document."""
    body = {
        "name": reader.name,
        "log_id": reader.log_id,
        "version": reader.version,
        "id": reader.commit_id,
        "offsets": [reader.offsets[p] for p in range(len(reader.offsets))],
        "time_ms": reader.time_ms,
        "expires_ms": reader.expires_ms,
        "hold_ms": reader.hold_ms,
    }
    return documents.encode(KIND, body)


def read_reader(handle: Handle, name: str) -> ReaderDocument:
    """Returns what a reader said last; one GET, and one or two more where it was not at the newest
    version.

    Raises:
        FileNotFoundError: nothing.
        StrayReaderError: what is there is as if it were not.
    """
    return _checked(handle, stored_reader(handle.store, name))


def readers_of(
    handle: Handle, *, after_ms: int = NONE
) -> Iterator[tuple[str, int, ReaderDocument | StrayReaderError]]:
    """Yields each reader's name, when its file was written by the store's time, and what it said
    last, or why that counts for nothing; a LIST, and the requests of `read_reader` for each that
    was written after a time.
    """
    listed = ((reader_name_of(f.path), f.modified_ms) for f in handle.store.list(READERS))
    young = [(name, ms) for name, ms in listed if name is not None and ms > after_ms]
    for name, written_ms in sorted(young):
        try:
            yield name, written_ms, read_reader(handle, name)
        except StrayReaderError as e:
            yield name, written_ms, e
        except FileNotFoundError:
            continue  # Forgotten since.


def stored_reader(store: Store, name: str) -> ReaderDocument:
    """Returns what stands in a reader's document; one GET.

    Raises:
        FileNotFoundError: there is none.
        StrayReaderError: it is damaged.
    """
    path = reader_path(name)
    data = documents.fetch(store, KIND, path)
    try:
        reader = _parsed(documents.decode(KIND, data, where=path))
    except (CorruptionError, UnsupportedFormatError, ValueError, KeyError, TypeError) as e:
        raise StrayReaderError(f"it cannot be read: {e}") from e
    if reader.name != name:
        raise StrayReaderError(f"it is that of reader {reader.name!r:.150}")
    return reader


def _parsed(body: Mapping[str, Any]) -> ReaderDocument:
    offsets = body["offsets"]
    numbers = [body[name] for name in ("version", "time_ms", "expires_ms", "hold_ms")]
    texts = [body[name] for name in ("name", "log_id", "id")]
    if not isinstance(offsets, list) or any(type(n) is not int for n in [*offsets, *numbers]):
        raise ValueError("its numbers are none")
    if min([*offsets, *numbers], default=0) < 0 or any(not isinstance(t, str) for t in texts):
        raise ValueError("its fields are none of a reader")
    version, time_ms, expires_ms, hold_ms = numbers
    name, log_id, commit_id = texts
    at = dict(enumerate(offsets))
    return ReaderDocument(name, log_id, version, commit_id, at, time_ms, expires_ms, hold_ms)


def _checked(handle: Handle, reader: ReaderDocument) -> ReaderDocument:
    head = handle.tip.head
    if reader.log_id != head.log.log_id:
        raise StrayReaderError("it is of another log, which stood here before")
    if len(reader.offsets) != head.log.partitions:
        raise StrayReaderError(
            f"it has {len(reader.offsets)} partitions, and the log {head.log.partitions}"
        )
    if reader.version > handle.tip.version and reader.version > handle.refresh().version:
        raise StrayReaderError(f"its version {reader.version} is beyond the newest")
    if not handle.has_committed(reader.version, reader.commit_id):
        raise StrayReaderError(f"version {reader.version} is another one now: it was restored")
    is_beyond = handle.tip.head.partitions.end_before(reader.offsets)
    if is_beyond and handle.refresh().head.partitions.end_before(reader.offsets):
        raise StrayReaderError("its offsets are beyond the end: the log was restored")
    return reader
