"""Whether a log is the one that a streaming query has written to (S47).

Spark's checkpoint remembers nothing of a sink, so the log must: each query leaves its writer entry
with its first batch, and where that has no rows an entry of sequence -1, in a commit of its own. So
a query that comes with a later batch and has no entry did not write to this log: the log was
deleted and recreated, or the query wrote to another path, by another format, or under another
``writerId``. What it wrote before is not here, and readers would never know.

Only the commit of a batch learns its number, and by then the tasks have written to the log: where
there was none the query has made one when it began, which is there, empty, after the refusal.
"""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from clog.storage.errors import LogReplacedError

if TYPE_CHECKING:
    from clog.storage.commit.idempotence import Writer
    from clog.storage.log import Log

_LOGGER = logging.getLogger("clog.connector")


def introduce(log: "Log", writer: "Writer") -> None:
    """Commits an entry for a query whose first batch has no rows, unless it is known."""
    from clog.storage.commit.idempotence import BEFORE_THE_FIRST

    if not is_known(log, writer):
        log.append_objects([], replace(writer, sequence=BEFORE_THE_FIRST, content=None))


def check_known(log: "Log", writer: "Writer", *, fail: bool) -> None:
    """Raises if the log has no entry of a query that is past its first batch, and ``fail``; else
    warns. Costs nothing where the entry is in the head.

    Raises:
        LogReplacedError: it has none.
    """
    if is_known(log, writer):
        return
    message = (
        f"{log.url} has none of the batches before batch {writer.sequence} of"
        f" {writer.writer_id!r}: the log was deleted and recreated, or the query wrote elsewhere"
        " before (another path, format or writerId)"
    )
    if fail:
        # Not deleted: somebody may have appended since we looked, and been told that it is there.
        empty = " to the log that is there, which is empty: a query makes one as it begins"
        raise LogReplacedError(
            f"{message}; nothing was appended{'' if log.version else empty}; start the query with a"
            " new checkpoint to write all of it, or set failOnChangedBatch=false to continue here"
            " with this batch"
        )
    _LOGGER.warning("%s; continuing with this batch (failOnChangedBatch=false)", message)


def is_known(log: "Log", writer: "Writer") -> bool:
    """Tells whether a query has an entry in the log; one request where the tip does not tell."""
    key = writer.kind, writer.writer_id
    if log.handle.find_writer(*key) is not None:
        return True
    log.handle.refresh()  # What this process knows of the log may be older than the entry.
    return log.handle.find_writer(*key) is not None
