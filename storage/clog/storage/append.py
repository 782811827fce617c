"""Appends: from records to fresh objects (COMMIT.md, K1), and the result of a repeated append.
`commit.appends` has what the tip's head demands of them, and the edit that gives them offsets.

`append` does everything in one process. Tasks write objects with an `object_writer` each, and their
driver commits the objects with `append_objects`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from clog.storage.commit.appends import (
    SEQUENCE_MAX,
    Appended,
    AppendRequest,
    Duplicate,
    OtherColumnsError,
    OtherRecordsError,
    Proposed,
    Writer,
    checked_offsets,
    find_duplicate,
    order_needed,
    refused,
)
from clog.storage.commit.handle import Handle
from clog.storage.commit.tip import try_read
from clog.storage.config.log_config import LogConfig
from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError, NotFoundError
from clog.storage.format.chunks import Chunk
from clog.storage.format.commits import Commit, Head, edit_of, read_commit
from clog.storage.format.log_info import LogSchema
from clog.storage.format.transactions import WriterEntry
from clog.storage.format.writers import find_writer
from clog.storage.keys.hashing import partitions_for
from clog.storage.numpy_arrays import to_arrow, to_numpy
from clog.storage.objects.orders import rows_without_order
from clog.storage.objects.records import Appendable, ContentHash, loaded, to_records
from clog.storage.objects.writer import DataObject, ObjectWriter, discard, given_back, record_sizes
from clog.storage.store.contract import Puts, Store
from clog.storage.types.columns import OFFSET, rows_of


def producer_of(producer: tuple[str, int], records: pa.Table, *, has_times: bool) -> Writer:
    """Returns the writer that ``producer`` names; ``has_times``: timestamps are content."""
    if not is_producer(producer):
        raise InvalidInputError(
            f"producer={producer!r} is not (id, sequence); give a non-empty text and an integer"
            " from 0 to 2^63 - 1"
        )
    writer_id, sequence = producer
    content = ContentHash()
    for batch in records.to_batches():
        content.update(batch if has_times else batch.drop_columns(["timestamp"]))
    return Writer(writer_id, "producer", sequence, content=content.hexdigest())


def is_producer(given: Any) -> bool:
    """Returns whether this is a producer's (id, sequence)."""
    try:
        writer_id, sequence = given
    except (TypeError, ValueError):
        return False
    is_id = isinstance(writer_id, str) and bool(writer_id) and _is_text(writer_id)
    return is_id and type(sequence) is int and 0 <= sequence <= SEQUENCE_MAX


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # Half of a surrogate pair.
        return False
    return True


_Partitions = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What an append did.

    Attributes:
        version: the version that its commit made; without records, the newest.
        offsets: by partition, the half-open range of offsets of its records; for a duplicate, those
            of the first append. Empty if nothing was appended, or if the commit that a duplicate
            repeats was swept.
        duplicate: whether the log already had the producer's sequence, so that nothing was done.
    """

    version: int
    offsets: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    duplicate: bool = False


def append(
    handle: Handle,
    data: Appendable,
    partition: int | Sequence[int] | _Partitions | None,
    producer: tuple[str, int] | None,
    offsets: Sequence[int] | _Partitions | None,
    *,
    are_records: bool = False,
) -> AppendResult:
    """Appends records in one commit; see `Log.append`. ``are_records``: as for `records_of`."""
    if offsets is not None and producer is None:
        raise InvalidInputError(
            "records with offsets need producer=(id, sequence), or a transaction: without one, a"
            " lost reply would leave it unknown whether they were appended; nothing was appended"
        )
    data = loaded(data)
    try:
        records, has_times, schema = records_of(handle, data, are_records=are_records)
    except InvalidInputError:
        if (entry := _repeated_entry(handle, data, producer, offsets)) is None:
            raise
        return _first_result(handle.store, Duplicate(entry))
    if records.num_rows == 0:
        return AppendResult(handle.tip.version)
    url = handle.store.url
    parts = partitions_of(records, partition, handle.tip.head, url=url)
    given = None if offsets is None else checked_offsets(offsets, parts, {}, url=url)
    writer = None
    if producer is not None:
        writer = producer_of(producer, _named(records, given), has_times=has_times)
    try:
        if writer is not None and (duplicate := _known_duplicate(handle, writer)) is not None:
            return _first_result(handle.store, duplicate)
        objects = put_records(handle, records, parts, schema, offsets=given)
        try:
            return append_objects(handle, objects, writer)
        except OtherColumnsError:
            discard(handle.store, objects)
    except OtherRecordsError as e:
        assert producer is not None, "only producers repeat"
        if not _repeats(handle, data, producer, given, e.entry):
            raise
        return _first_result(handle.store, Duplicate(e.entry))
    # With the tip that refused them.
    return append(handle, data, partition, producer, offsets, are_records=are_records)


def _named(records: pa.Table, given: _Partitions | None) -> pa.Table:
    """Returns what a producer's hash is of."""
    return records if given is None else records.append_column(OFFSET, to_arrow(given))


def _repeated_entry(
    handle: Handle,
    data: Appendable,
    producer: tuple[str, int] | None,
    offsets: Sequence[int] | _Partitions | None,
) -> WriterEntry | None:
    """Returns the entry of a producer's last sequence if these are its records, though they do not
    fit the log any more, which has evolved; None if they are not.
    """
    if producer is None or not is_producer(producer):
        return None
    pages, (name, sequence) = handle.writer_pages, producer
    entry = handle.with_pages(
        handle.tip, lambda tip: find_writer(pages, tip.head, "producer", name)
    )
    if entry is None or entry.sequence != sequence:
        return None
    given = None if offsets is None else np.asarray(offsets, np.int64)
    return entry if _repeats(handle, data, producer, given, entry) else None


def _repeats(
    handle: Handle,
    data: Appendable,
    producer: tuple[str, int],
    given: _Partitions | None,
    entry: WriterEntry,
) -> bool:
    """Returns whether these are the entry's records, made for its version's schema; one GET."""
    commit = try_read(handle.store, entry.version)
    if commit is None:
        return False
    try:
        columns = _columns_of(commit.head)
        records, has_times = to_records(data, now_us=handle.clock.now_us(), **columns)
    except InvalidInputError:
        return False
    return (
        producer_of(producer, _named(records, given), has_times=has_times).content == entry.content
    )


def put_records(
    handle: Handle,
    records: pa.Table,
    partition: _Partitions,
    schema: LogSchema | None,
    *,
    stamp: int | None = None,
    offsets: _Partitions | None = None,
    puts: Puts | None = None,
) -> list[DataObject]:
    """Puts records as fresh objects (COMMIT.md, K1), with this stamp or that of the tip;
    ``schema``: that for which `records_of` made them, perhaps an earlier one; ``offsets``: those of
    the records, if given; ``puts``: the objects exist once these are settled.
    """
    check_takes_offsets(handle, given=offsets is not None)
    _check_records_early(handle, records)
    objects = _writer(handle, schema, stamp=stamp, given=offsets is not None, puts=puts)
    objects.add(records, partition, offsets)
    return objects.finish()


def check_takes_offsets(handle: Handle, *, given: bool) -> None:
    """Raises, before anything is written, unless the newest version takes offsets if they are
    ``given``, and assigns them if not.
    """
    if given == handle.tip.head.takes_offsets:
        return
    if given != (head := handle.refresh().head).takes_offsets:
        raise refused(head, given=given, url=handle.store.url)


def records_of(
    handle: Handle, data: Appendable, *, are_records: bool = False
) -> tuple[pa.Table, bool, LogSchema | None]:
    """Returns the records, whether they came with timestamps, and the log's schema, for which they
    are made; refuses them only by the newest one (S62). ``are_records``: these are no rows, though
    a table may have columns ``key`` and ``value``.
    """
    now_us, head, data = handle.clock.now_us(), handle.tip.head, loaded(data)
    columns_of = partial(_columns_of, are_records=are_records)
    try:
        return *to_records(data, now_us=now_us, **columns_of(head)), head.log.schema
    except InvalidInputError:
        newest = handle.refresh().head
        if newest.log.schema == head.log.schema and newest.config == head.config:
            raise
        return *to_records(data, now_us=now_us, **columns_of(newest)), newest.log.schema


def _columns_of(head: Head, *, are_records: bool = False) -> dict[str, Any]:
    """Returns the columns of records or rows, as `to_records` takes them."""
    names = LogConfig.from_overrides(head.config).table_key_columns
    rows = None if are_records else rows_of(head.log.schema, names)
    return {"schema": head.log.schema, "rows": rows}


def _known_duplicate(handle: Handle, writer: Writer) -> Duplicate | None:
    """Looks for the writer's sequence in the tip; again once that is surely committed (§6)."""

    def ask(tip: Commit) -> Duplicate | None:
        return find_duplicate(handle.writer_pages, tip.head, writer)

    tip = handle.recent()
    try:
        duplicate = handle.with_pages(tip, ask)
    except InvalidInputError:
        settled = handle.recent(settled=True)
        if settled is tip:
            raise
        return handle.with_pages(settled, ask)
    if duplicate is None or (settled := handle.recent(settled=True)) is tip:
        return duplicate
    return handle.with_pages(settled, ask)


def object_writer(handle: Handle, *, stamp: int | None = None) -> ObjectWriter:
    """Returns a writer of fresh objects (COMMIT.md, K1); see `Log.object_writer`."""
    return _writer(handle, handle.recent().head.log.schema, stamp=stamp)


def _writer(
    handle: Handle,
    schema: LogSchema | None,
    *,
    stamp: int | None,
    given: bool = False,
    puts: Puts | None = None,
) -> ObjectWriter:
    tip = handle.recent()
    config = LogConfig.from_overrides(tip.head.config)
    return ObjectWriter(
        handle.store,
        stamp=tip.version if stamp is None else stamp,
        new_id=handle.ids.new_id,
        partitions=tip.head.log.partitions,
        schema=schema,
        compression=config.compression,
        object_bytes=config.object_bytes,
        given=given,
        order_header=config.compaction_strategy_header,
        puts=puts,
    )


@contextmanager
def committing(handle: Handle, objects: Sequence[DataObject]) -> Iterator[None]:
    """Deletes objects if the block, which commits them, fails because the disk is full or the log
    is gone.
    """
    try:
        with given_back(handle.store, objects):
            yield
    except NotFoundError:
        handle.withdraw(obj.ref.path for obj in objects)
        raise


def append_objects(
    handle: Handle,
    objects: Sequence[DataObject],
    writer: Writer | None,
) -> AppendResult:
    """Commits objects, in this order; see `Log.append_objects`."""
    ours = Proposed(tuple(objects), writer)
    request = AppendRequest(ours, handle.writer_pages, handle.ids)
    with committing(handle, objects):
        done = handle.append(request.prepare, None if ours.is_given else ours)
    if isinstance(done, Duplicate):
        return _first_result(handle.store, done)
    assert isinstance(done, Appended), "everything else is a duplicate"
    chunks = done.edit.add.chunks if done.edit.add else ()
    return AppendResult(done.version, offsets_of(chunks))


def partitions_of(
    records: pa.Table, given: int | Sequence[int] | _Partitions | None, head: Head, *, url: str
) -> _Partitions:
    """Returns the partition of each record: given for all, or for each, or by its key's hash."""
    count = head.log.partitions
    if given is None:
        keys = records.column("key").combine_chunks()
        start = int(head.partitions.end.to_numpy().sum()) % count
        return partitions_for(keys, partitions=count, algorithm=head.log.partitioner, start=start)
    parts = np.asarray(given)
    if parts.ndim and parts.shape != (records.num_rows,):
        raise InvalidInputError(
            f"got {parts.size} partitions for {records.num_rows} records; give one for all"
            " records, or one for each"
        )
    parts = np.broadcast_to(parts, (records.num_rows,))
    if parts.dtype.kind not in "iu" or parts.min() < 0 or parts.max() >= count:
        raise InvalidInputError(
            f"partition {given!r} does not exist in {url}; it has partitions 0 to {count - 1}"
        )
    return parts.astype(np.int32)


def check_records(records: pa.Table, config: LogConfig) -> None:
    """Raises if the config forbids a record, and names the first (S5, S6)."""
    if config.compact and (nulls := records.column("key").null_count):
        first = int(np.argmax(to_numpy(records.column("key").is_null())))
        raise InvalidInputError(
            f"{nulls} of {records.num_rows} records have no key, the first is record {first};"
            f" cleanup.policy={config.as_dict()['cleanup.policy']} requires a key in every record;"
            " nothing was appended"
        )
    if header := config.compaction_strategy_header:
        _check_orders(records, header)
    sizes = record_sizes(records)
    if (over := np.flatnonzero(sizes > config.max_message_bytes)).size:
        raise InvalidInputError(
            f"{over.size} of {records.num_rows} records are larger than"
            f" max.message.bytes={config.max_message_bytes}, the first is record"
            f" {int(over[0])} with {int(sizes[over[0]])} bytes; nothing was appended"
        )


def _check_orders(records: pa.Table, header: str) -> None:
    """Raises if a record has no order by this header, and names the first (S56)."""
    if (without := rows_without_order(records, header)).size:
        raise InvalidInputError(
            f"{without.size} of {records.num_rows} records have no order, the first is record"
            f" {int(without[0])}: {order_needed(header)}; nothing was appended"
        )


def _check_records_early(handle: Handle, records: pa.Table) -> None:
    """Checks records before anything is written, and names the first bad one (S5, S6)."""
    known = handle.tip.head.config
    try:
        check_records(records, LogConfig.from_overrides(known))
    except InvalidInputError:
        newest = handle.refresh().head.config
        if newest == known:
            raise
        check_records(records, LogConfig.from_overrides(newest))  # altered since (S42)


def _first_result(store: Store, duplicate: Duplicate) -> AppendResult:
    """Returns the result of the append that a duplicate repeats."""
    entry = duplicate.entry
    if not duplicate.repeats:
        return AppendResult(entry.version, duplicate=True)
    # A sleeping committer may have put its file in the place of a swept commit; that one does not
    # name the entry.
    offsets = found_offsets(store, entry.version, lambda other: other == entry)
    return AppendResult(entry.version, offsets, duplicate=True)


def found_offsets(
    store: Store, version: int, is_its: Callable[[WriterEntry], bool]
) -> dict[int, tuple[int, int]]:
    """Returns, by partition, the range of offsets that the commit of this version gave to a
    writer's records; empty if the commit was swept. One GET, or two.
    """
    try:
        edit = edit_of(store, read_commit(store, version).record)
    except FileNotFoundError:
        return {}
    return offsets_of(
        pair for by in edit.writers if is_its(by.entry) for pair in edit.chunks_of(by)
    )


def offsets_of(chunks: Iterable[tuple[int, Chunk]]) -> dict[int, tuple[int, int]]:
    """Returns, by partition, the half-open range of offsets of consecutive chunks."""
    offsets: dict[int, tuple[int, int]] = {}
    for p, chunk in chunks:
        base = offsets.get(p, (chunk.base, 0))[0]
        offsets[p] = (base, chunk.next)
    return offsets
