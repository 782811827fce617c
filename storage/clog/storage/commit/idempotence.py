"""Appends that must happen once: who appends, and what a repeated append is told (design: exactly
once).

A writer is its kind and its id: a producer, a streaming query and a batch application of one name
are three. Each has an entry in the head, or in the page of older ones, with its last sequence.
"""

from dataclasses import dataclass

import pyarrow as pa

from clog.storage.commit.committer import NothingToCommit
from clog.storage.errors import InvalidInputError
from clog.storage.format.edits import WriterEntry
from clog.storage.format.head import Head
from clog.storage.format.producers import find_writer
from clog.storage.format.writer_json import WRITER_ID_BYTES_MAX
from clog.storage.format.writer_pages import WriterPages
from clog.storage.objects.content_hash import ContentHash

BEFORE_THE_FIRST = -1
"""The sequence of a stream that is known, but has no records in the log yet."""
SEQUENCE_MAX = (1 << 63) - 1
"""Nobody reads a longer integer (FORMAT.md §2): with one in its head a log would be lost."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Names who appends, for appends that must happen once. ``kind`` is producer, stream or txn;
    ``content`` is a hash of the records.
    """

    writer_id: str
    kind: str
    sequence: int
    query_id: str | None = None
    content: str | None = None

    def __post_init__(self) -> None:
        size = len(self.writer_id.encode(errors="surrogatepass"))
        if size > WRITER_ID_BYTES_MAX:
            raise InvalidInputError(
                f"a {self.kind} id of {size} bytes is too long: each commit repeats it; allowed: 1"
                f" to {WRITER_ID_BYTES_MAX} bytes"
            )
        if not BEFORE_THE_FIRST <= self.sequence <= SEQUENCE_MAX:
            raise InvalidInputError(
                f"sequence {self.sequence} of {self.kind} {self.writer_id!r} is out of range;"
                f" allowed: 0 to {SEQUENCE_MAX}"
            )


@dataclass(frozen=True, slots=True)
class Duplicate(NothingToCommit):
    """The writer's entry says that this sequence, or a later one, was committed already;
    ``repeats``: this one.
    """

    entry: WriterEntry
    repeats: bool = True


def find_duplicate(pages: WriterPages, head: Head, writer: Writer) -> Duplicate | None:
    """Returns what the writer's sequence repeats; None where it is new.

    Raises:
        InvalidInputError: the sequence went back, or comes from another query under this writer id.
    """
    entry = find_writer(pages, head, writer.kind, writer.writer_id)
    if entry is None:
        return None
    url = pages.store.url
    if writer.kind == "txn":
        # As in Delta, a version below the last one is skipped; what it did then is not known.
        if writer.sequence > entry.sequence:
            return None
        return Duplicate(entry, repeats=writer.sequence == entry.sequence)
    if writer.kind == "stream" and entry.query_id != writer.query_id:
        raise InvalidInputError(
            f"writer {writer.writer_id!r} of {url} belongs to query {entry.query_id},"
            f" batch {entry.sequence}, and query {writer.query_id} cannot use it; give a second"
            " query or a new checkpoint its own writerId (txnAppId)"
        )
    if writer.sequence == entry.sequence:
        same = entry.content == writer.content or None in (entry.content, writer.content)
        if not same and writer.kind == "producer":
            raise InvalidInputError(
                f"producer {writer.writer_id!r} repeats sequence {writer.sequence}, but with other"
                f" records than in version {entry.version} of {url}; use a new sequence"
            )
        return Duplicate(entry)
    if writer.sequence < entry.sequence and writer.kind == "stream":
        raise InvalidInputError(
            f"{url} has batch {entry.sequence} of {writer.writer_id!r} already, and batch"
            f" {writer.sequence} comes before it; if the checkpoint was restored or copied,"
            " continue with the newest one, or start with a new one and another writerId"
        )
    if writer.sequence < entry.sequence:
        raise InvalidInputError(
            f"{writer.kind} {writer.writer_id!r} is already at sequence {entry.sequence} in"
            f" {url}; sequence {writer.sequence} is lower; use one above {entry.sequence}"
        )
    return None


def producer_of(producer: tuple[str, int], records: pa.Table, *, has_times: bool) -> Writer:
    """Returns the writer that ``Log.append(producer=)`` names. ``has_times``: the caller gave all
    timestamps, so they belong to the content.

    Raises:
        InvalidInputError: it is not (id, sequence).
    """
    try:
        writer_id, sequence = producer
    except (TypeError, ValueError):
        writer_id, sequence = None, None
    if (
        not (isinstance(writer_id, str) and writer_id and _is_text(writer_id))
        or type(sequence) is not int
        or not 0 <= sequence <= SEQUENCE_MAX
    ):
        raise InvalidInputError(
            f"producer={producer!r} is not (id, sequence); give a non-empty text and an integer"
            " from 0 to 2^63 - 1"
        )
    content = ContentHash()
    for batch in records.to_batches():
        content.update(batch if has_times else batch.drop_columns(["timestamp"]))
    return Writer(writer_id, "producer", sequence, content=content.hexdigest())


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # Half of a surrogate pair.
        return False
    return True
