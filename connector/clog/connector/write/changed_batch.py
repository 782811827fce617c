"""A batch that the log has already: whether it has the same rows now.

Spark runs a batch again when it does not know that it was committed; the log has it then, and its
first rows stay. With other rows than now, one of two things happened, and the log cannot tell
which:

- The checkpoint was put back or copied: it is another batch under this number, and its rows would
  be lost.
- The query does not repeat itself: random numbers, the time, a source that gives other rows.

So that is an error, unless ``failOnChangedBatch`` is false.

The hashes that are compared first depend on the order of rows and on how tasks share them, which a
shuffle does not repeat. Where they differ, both sets of rows are read, and compared without order.
That costs a look at each of their objects, and happens only then.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from clog.storage.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.storage.append import AppendResult
    from clog.storage.commit.idempotence import Writer
    from clog.storage.log import Log
    from clog.storage.objects.data_object import DataObject
    from clog.storage.transactions.deferred import TransactionResult

_Place = tuple[int, Mapping[int, tuple[int, int]]]
"""A version, and by partition the range of offsets that something has there."""
LOGGER = logging.getLogger("clog.connector")
_COMPARED = ("key", "value", "headers")
"""Timestamps are filled in from the clock where the query gives none."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """How many rows, and the sum of a hash of each: equal whatever their order."""

    count: int
    total: int


def check_repeated(
    log: "Log",
    first: "AppendResult",
    writer: "Writer",
    objects: Sequence["DataObject"],
    *,
    fail: bool,
) -> None:
    """Raises if a batch that the log has already, as its append's ``first`` result says, has other
    rows now, and ``fail``; else warns.

    Raises:
        InvalidInputError: it has, or a later one is in the log, or nobody can say any more.
    """
    entry = log.handle.find_writer(writer.kind, writer.writer_id)
    number = f"{'txnVersion' if writer.kind == 'txn' else 'batch'} {writer.sequence}"
    what = f"{number} of {writer.writer_id!r} is in {log.url} already"
    if entry is not None and entry.sequence > writer.sequence:
        problem = f"or was skipped: {entry.sequence}, a later one, is there"
    elif entry is None or entry.content == writer.content:
        problem = None
    elif fail:
        problem = _difference(log, partial(_place_of, first), objects)
    else:
        problem = "with other rows, or in another order"
    if problem is None:
        LOGGER.info("%s", what)
    elif fail:
        raise InvalidInputError(
            f"{what}, {problem}; nothing was appended; if the checkpoint was restored or copied,"
            " continue with the newest one, or start with a new one and another writerId; if the"
            " query returns other rows each time a batch runs, set failOnChangedBatch=false to keep"
            " the first rows"
        )
    else:
        LOGGER.warning("%s, %s; the first rows stay, the new ones are dropped", what, problem)


def check_repeated_transaction(
    home: "Log",
    job: str,
    first: "TransactionResult",
    rows: Sequence[tuple["Log", Sequence["DataObject"]]],
    content: str,
) -> None:
    """Raises if the batch that was committed last under a job, as its ``first`` result says, has
    other rows now, in any of the logs that it writes to. Nothing is read where ``content`` is what
    the home has kept.

    Raises:
        InvalidInputError: it has, or nobody can say any more.
    """
    from clog.storage.format.chunks import TransactionName
    from clog.storage.format.transactions import TRANSACTION
    from clog.storage.transactions.several import found_part

    entry = home.handle.find_writer(TRANSACTION, job)
    assert entry is not None, "the id was taken up"
    assert entry.transaction is not None, "entries of ids have a state"
    done = entry.transaction.committed
    if done is None or entry.content in (None, content):
        return
    name = TransactionName(home.id, job, done.epoch, done.number)

    def rows_first(log: "Log") -> _Place:
        return (first.version, first.offsets) if log is home else found_part(log.handle, name)

    for log, objects in rows:
        problem = _difference(log, partial(rows_first, log), objects)
        if problem is not None:
            raise InvalidInputError(
                f"batch {entry.sequence} of job {job!r} is in {log.url} already, {problem}; nothing"
                " was written; if the checkpoint was restored or copied, continue with the newest"
                " one, or start with a new one and another job name; if the query returns other"
                " rows each time a batch runs, set failOnChangedBatch=false to keep the first rows"
            )


def _difference(
    log: "Log", first: Callable[[], _Place], objects: Sequence["DataObject"]
) -> str | None:
    """Returns how the rows of now differ from the first ones; None where they do not."""
    try:
        version, offsets = first()
    except NotFoundError as e:
        return f"perhaps with other rows: {e}"
    try:
        before = _summed(_rows_at(log, version, offsets))
    except (NotFoundError, FileNotFoundError):
        return f"perhaps with other rows: {_expired(version)}"
    now = _summed(_rows_of(log, objects))
    if before == now:
        return None
    return f"with other rows: {before.count} in version {version}, {now.count} now"


def _place_of(first: "AppendResult") -> _Place:
    if not first.offsets:
        raise NotFoundError(_expired(first.version))
    return first.version, first.offsets


def _expired(version: int) -> str:
    return f"version {version}, which has it, expired"


def _rows_at(
    log: "Log", version: int, offsets: Mapping[int, tuple[int, int]]
) -> Iterable["pa.RecordBatch"]:
    """Returns the rows that an append brought, at its version: none of them is cleaned there."""
    from clog.storage.read.scan import Isolation, plan_range, read_pieces

    manifest = log.handle.manifest_at(version)
    ranges = offsets.items()
    newest = log.handle.tip.head.log.schema  # What is compared with it is written under that.
    pieces = [
        replace(piece, schema=newest)
        for p, (start, end) in ranges
        for piece in plan_range(manifest, p, start, end, isolation=Isolation.UNCOMMITTED)
    ]
    return read_pieces(log.handle.store, pieces, columns=_COMPARED)


def _rows_of(log: "Log", objects: Iterable["DataObject"]) -> Iterable["pa.RecordBatch"]:
    """Yields the rows of objects that are not committed."""
    from clog.storage.objects.reader import read_rows

    store, schema = log.handle.store, log.handle.tip.head.log.schema
    for obj in objects:
        yield from read_rows(store, obj.ref, 0, obj.rows, columns=_COMPARED, schema=schema)


def _summed(batches: Iterable["pa.RecordBatch"]) -> _Rows:
    import xxhash

    count = total = 0
    for batch in batches:
        count += batch.num_rows
        columns = (batch.column(name).to_pylist() for name in _COMPARED)
        for row in zip(*columns, strict=True):
            total += xxhash.xxh3_128_intdigest(repr(row).encode())
    return _Rows(count, total % (1 << 128))
