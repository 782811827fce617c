"""Appends that must happen once: who appends, and what a repeated append is told (design: exactly
once).

A writer is its kind and its id: a producer, a streaming query and a batch application of one name
are three. Each has an entry in the head, or in the page of older ones, with its last sequence.

Appends: from records to fresh objects, what the tip's head demands of these, and the edit that
binds them to offsets (COMMIT.md, K1 and K2).

`append` does it all in one process. Where tasks write the objects, each does so by an
`object_writer`, and their driver commits what they made by `append_objects`.

A fresh object carries no offsets, so a lost race rewrites nothing: `AppendRequest.prepare` is
called again with the new tip and gives other offsets.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.given import (
    Bound,
    Covered,
    bind_given,
    checked_offsets,
    refused,
)
from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import LogConfig
from clog.storage.errors import CommitConflictError, InvalidInputError, NotFoundError
from clog.storage.format.chunks import Append, Chunk
from clog.storage.format.columns import rolls_for
from clog.storage.format.commits import Commit, Edit, Head, edit_of, read_commit
from clog.storage.format.documents import NONE
from clog.storage.format.transactions import WRITER_ID_BYTES_MAX, AppendedBy, WriterEntry
from clog.storage.format.writers import WriterPages, find_writer
from clog.storage.keys.hashing import partitions_for
from clog.storage.numpy_arrays import to_arrow, to_numpy
from clog.storage.objects.orders import rows_without_order
from clog.storage.objects.records import Appendable, ContentHash, loaded, to_records
from clog.storage.objects.writer import DataObject, ObjectWriter, given_back, record_sizes
from clog.storage.store.contract import Store
from clog.storage.types.columns import OFFSET, rows_of, shaped

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
    """Returns what the writer's sequence repeats; None where it is new."""
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


_Partitions = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What an append did.

    Attributes:
        version: the version that its commit made; without records, the newest.
        offsets: by partition, the half-open range of offsets that its records got; for a duplicate,
            those of the first append. Empty for a duplicate whose commit was swept since, and if
            nothing was appended.
        duplicate: whether the log already had the producer's sequence, so that nothing was done.
    """

    version: int
    offsets: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Objects to commit, in the order of their offsets."""

    url: str
    objects: Sequence[DataObject]
    writer: Writer | None
    writer_pages: WriterPages
    uniform: Callable[[], float]
    covered: Covered | None = None

    def prepare(self, tip: Commit, time_ms: int) -> Edit | Duplicate:
        """Returns the edit, given the tip."""
        head = tip.head
        if self.writer is not None:
            duplicate = find_duplicate(self.writer_pages, head, self.writer)
            if duplicate is not None:
                return duplicate
        config, bound = LogConfig.from_overrides(head.config), self._bound(head)
        for obj in self.objects:
            _check_floor(obj, head, self.url)
            _check_schema(obj, head, self.url)
            check_facts(obj, config, now_ms=time_ms, given=bound is not None)
        append_time_ms = time_ms if config.log_append_time and bound is None else NONE
        ranges = _following(self.objects, head) if bound is None else bound.ranges
        chunks = _bind(self.objects, ranges, tip.version + 1, append_time_ms)
        rolls = rolls_for(head.partitions, chunks, config, uniform=self.uniform)
        version, objects = tip.version + 1, len(self.objects)
        by = () if self.writer is None else (_appended_by(self.writer, version, objects),)
        add = Append(tuple(chunks), rolls, is_given=bound is not None and bool(chunks))
        if bound is None:
            return Edit(add=add, writers=by)
        after = bound.reached_after
        return Edit(
            reached=bound.reached, start=bound.starts, add=add, reached_after=after, writers=by
        )

    def _bound(self, head: Head) -> Bound | None:
        """Returns how what is given binds to the head; None where the log gives the offsets."""
        if not self.objects and self.covered is None:
            return None
        given = self.covered is not None or self.objects[0].is_given
        if given != head.takes_offsets:
            raise refused(head, given=given, url=self.url)
        return bind_given(self.objects, self.covered, head, url=self.url) if given else None


def append(
    handle: Handle,
    data: Appendable,
    partition: int | Sequence[int] | _Partitions | None,
    producer: tuple[str, int] | None,
    offsets: Sequence[int] | _Partitions | None,
) -> AppendResult:
    """Appends records in one commit; see `Log.append`."""
    if offsets is not None and producer is None:
        raise InvalidInputError(
            "records with offsets need producer=(id, sequence), or a transaction: else nobody could"
            " tell, after a lost reply, whether they are there; nothing was appended"
        )
    records, has_times = records_of(handle, data)
    if records.num_rows == 0:
        return AppendResult(handle.tip.version)
    url = handle.store.url
    parts = partitions_of(records, partition, handle.tip.head, url=url)
    given = None if offsets is None else checked_offsets(offsets, parts, {}, url=url)
    writer = None
    if producer is not None:
        named = records if given is None else records.append_column(OFFSET, to_arrow(given))
        writer = producer_of(producer, named, has_times=has_times)
        duplicate = _known_duplicate(handle, writer)
        if duplicate is not None:
            return _first_result(handle.store, duplicate)
    return append_objects(handle, put_records(handle, records, parts, offsets=given), writer)


def put_records(
    handle: Handle,
    records: pa.Table,
    partition: _Partitions,
    *,
    stamp: int | None = None,
    offsets: _Partitions | None = None,
) -> list[DataObject]:
    """Puts records as fresh objects (COMMIT.md, K1), with this stamp or that of the tip;
    ``offsets``: they come with theirs.
    """
    check_takes_offsets(handle, given=offsets is not None)
    _check_records_early(handle, records)
    objects = object_writer(handle, stamp=stamp, given=offsets is not None)
    if records.schema.types != objects.columns.types:  # The tip has moved since: it evolved (S61).
        batches = [shaped(batch, objects.columns) for batch in records.to_batches()]
        records = pa.Table.from_batches(batches)
    objects.add(records, partition, offsets)
    return objects.finish()


def check_takes_offsets(handle: Handle, *, given: bool) -> None:
    """Raises, before anything is written, unless the newest version takes offsets where they are
    ``given``, and gives them where not.
    """
    if given == handle.tip.head.takes_offsets:
        return
    if given != (head := handle.refresh().head).takes_offsets:
        raise refused(head, given=given, url=handle.store.url)


def records_of(handle: Handle, data: Appendable) -> tuple[pa.Table, bool]:
    """Returns the records by the log's schema; by the newest one before any is refused (S62)."""
    now_us, head, data = handle.clock.now_us(), handle.tip.head, loaded(data)
    try:
        return to_records(data, now_us=now_us, **_columns_of(head))
    except InvalidInputError:
        newest = handle.refresh().head
        if newest.log.schema == head.log.schema and newest.config == head.config:
            raise
        return to_records(data, now_us=now_us, **_columns_of(newest))


def _columns_of(head: Head) -> dict[str, Any]:
    """Returns what columns records have, or rows, as `to_records` wants it."""
    names = LogConfig.from_overrides(head.config).table_key_columns
    return {"schema": head.log.schema, "rows": rows_of(head.log.schema, names)}


def _known_duplicate(handle: Handle, writer: Writer) -> Duplicate | None:
    """Asks the tip before anything is written; twice where it says something and was perhaps never
    committed (COMMIT.md §6).
    """

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


def object_writer(handle: Handle, *, stamp: int | None = None, given: bool = False) -> ObjectWriter:
    """Returns a writer of fresh objects (COMMIT.md, K1); see `Log.object_writer`. ``given``: of
    records with their offsets.
    """
    tip = handle.recent()
    config = LogConfig.from_overrides(tip.head.config)
    return ObjectWriter(
        handle.store,
        stamp=tip.version if stamp is None else stamp,
        new_id=handle.ids.new_id,
        partitions=tip.head.log.partitions,
        schema=tip.head.log.schema,
        compression=config.compression,
        object_bytes=config.object_bytes,
        given=given,
        order_header=config.compaction_strategy_header,
    )


def append_objects(
    handle: Handle, objects: Sequence[DataObject], writer: Writer | None
) -> AppendResult:
    """Commits objects, in this order; see `Log.append_objects`."""
    request = AppendRequest(
        handle.store.url, objects, writer, handle.writer_pages, handle.ids.uniform
    )
    try:
        count = sum(len(obj.chunks) for obj in objects)
        with given_back(handle.store, objects):
            done = handle.append(
                request.prepare, chunks=count, alone=bool(objects) and objects[0].is_given
            )
    except NotFoundError:
        handle.withdraw(obj.ref.path for obj in objects)
        raise
    if isinstance(done, Duplicate):
        return _first_result(handle.store, done)
    chunks = done.edit.add.chunks if done.edit.add else ()
    return AppendResult(done.version, offsets_of(chunks))


def partitions_of(
    records: pa.Table, given: int | Sequence[int] | _Partitions | None, head: Head, *, url: str
) -> _Partitions:
    """Returns the partition of each record: the one given for all, or for each; None: by its key's
    hash.
    """
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
    """Raises if the config refuses a record, and names the first (S5, S6)."""
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


def check_facts(obj: DataObject, config: LogConfig, *, now_ms: int, given: bool = False) -> None:
    """Raises if the log's config as of now refuses a record of the object (S5, S6, S9); not for
    its time where it came with its offset.
    """
    facts = obj.facts
    assert facts is not None, "rewritten records are not appended"
    if config.compact and facts.null_keys:
        raise InvalidInputError(
            f"{facts.null_keys} of {obj.rows} records have no key;"
            f" cleanup.policy={config.as_dict()['cleanup.policy']} requires a key in every record"
        )
    if facts.largest_record_bytes > config.max_message_bytes:
        raise InvalidInputError(
            f"a record of {facts.largest_record_bytes} bytes is larger than"
            f" max.message.bytes={config.max_message_bytes}"
        )
    if facts.order_header != config.compaction_strategy_header and config.is_ordered:
        raise InvalidInputError(
            "compaction.strategy was altered while the records were written; append again"
        )
    if facts.without_order and config.is_ordered:
        raise InvalidInputError(
            f"{facts.without_order} of {obj.rows} records have no order:"
            f" {_order_needed(config.compaction_strategy_header)}"
        )
    if config.log_append_time or given:
        return
    ahead_ms = facts.max_timestamp_ms - now_ms
    behind_ms = now_ms - facts.min_timestamp_ms
    if ahead_ms > config.message_timestamp_after_max_ms:
        raise InvalidInputError(
            f"a timestamp is {ahead_ms} ms ahead of the clock ({now_ms}), more than"
            f" message.timestamp.after.max.ms={config.message_timestamp_after_max_ms}"
        )
    if behind_ms > config.message_timestamp_before_max_ms:
        raise InvalidInputError(
            f"a timestamp is {behind_ms} ms behind the clock ({now_ms}), more than"
            f" message.timestamp.before.max.ms={config.message_timestamp_before_max_ms}"
        )


def _check_orders(records: pa.Table, header: str) -> None:
    """Raises if a record has no order by this header, and names the first (S56)."""
    if (without := rows_without_order(records, header)).size:
        raise InvalidInputError(
            f"{without.size} of {records.num_rows} records have no order, the first is record"
            f" {int(without[0])}: {_order_needed(header)}; nothing was appended"
        )


def _order_needed(header: str) -> str:
    return (
        f"compaction.strategy=header needs the header {header!r} in each"
        " record, also where it deletes its key: 8 bytes, a big-endian integer from 0 to 2^62 - 1"
    )


def _check_records_early(handle: Handle, records: pa.Table) -> None:
    """Refuses before anything is written, and names the record (S5, S6); the commit would say it of
    the whole.
    """
    known = handle.tip.head.config
    try:
        check_records(records, LogConfig.from_overrides(known))
    except InvalidInputError:
        newest = handle.refresh().head.config
        if newest == known:
            raise
        check_records(records, LogConfig.from_overrides(newest))  # altered since (S42)


def _first_result(store: Store, duplicate: Duplicate) -> AppendResult:
    """Returns what a repeated append did the first time."""
    entry = duplicate.entry
    if not duplicate.repeats:
        return AppendResult(entry.version, duplicate=True)
    # Where the commit was deleted, a file of a committer that slept may have taken its place: it
    # does not name the entry.
    offsets = found_offsets(store, entry.version, lambda other: other == entry)
    return AppendResult(entry.version, offsets, duplicate=True)


def found_offsets(
    store: Store, version: int, is_its: Callable[[WriterEntry], bool]
) -> dict[int, tuple[int, int]]:
    """Returns, by partition, the range of offsets that a writer's records got by the commit of this
    version; nothing where that was deleted. One GET, or two.
    """
    try:
        edit = edit_of(store, read_commit(store, version).record)
    except FileNotFoundError:
        return {}
    return offsets_of(
        pair for by in edit.writers if is_its(by.entry) for pair in edit.chunks_of(by)
    )


def offsets_of(chunks: Iterable[tuple[int, Chunk]]) -> dict[int, tuple[int, int]]:
    """Returns, by partition, the half-open range of offsets of chunks that follow one another."""
    offsets: dict[int, tuple[int, int]] = {}
    for p, chunk in chunks:
        base = offsets.get(p, (chunk.base, 0))[0]
        offsets[p] = (base, chunk.next)
    return offsets


def _check_floor(obj: DataObject, head: Head, url: str) -> None:
    if obj.stamp < head.orphan_floor:
        raise CommitConflictError(
            f"this append took too long: an object of it began at version {obj.stamp} of {url},"
            f" below the orphan floor {head.orphan_floor}, and may be swept by now; append again"
        )


def _check_schema(obj: DataObject, head: Head, url: str) -> None:
    """Raises unless the object was written under a schema that the log has, or had: what fits an
    earlier one fits all later ones.
    """
    newest = NONE if head.log.schema is None else head.log.schema.id
    if obj.schema_id > newest or (obj.schema_id == NONE) != (newest == NONE):
        raise InvalidInputError(
            f"an object of this append was written under schema {obj.schema_id}, but that of {url}"
            f" is {newest} (-1: keys and values are bytes); append again"
        )


def _following(objects: Sequence[DataObject], head: Head) -> Iterator[tuple[int, int]]:
    """Yields the offsets that each chunk gets: behind the one before it in its partition."""
    ends: dict[int, int] = {}
    for stats in (stats for obj in objects for stats in obj.chunks):
        base = ends.get(stats.partition, head.partitions.end[stats.partition])
        ends[stats.partition] = base + stats.rows
        yield base, ends[stats.partition]


def _bind(
    objects: Sequence[DataObject],
    ranges: Iterable[tuple[int, int]],
    version: int,
    append_time_ms: int,
) -> list[tuple[int, Chunk]]:
    given, bound = iter(ranges), []
    for obj in objects:
        ref = obj.ref
        first_row = 0
        for stats in obj.chunks:
            base, end = next(given)
            is_append_time = append_time_ms != NONE
            chunk = Chunk(
                object=ref,
                first_row=first_row,
                rows=stats.rows,
                base=base,
                next=end,
                size_bytes=stats.size_bytes,
                first_timestamp_ms=append_time_ms if is_append_time else stats.first_timestamp_ms,
                max_timestamp_ms=append_time_ms if is_append_time else stats.max_timestamp_ms,
                tombstones=stats.tombstones,
                version=version,
                append_time_ms=append_time_ms,
            )
            bound.append((stats.partition, chunk))
            first_row += stats.rows
    return bound


def _appended_by(writer: Writer, version: int, objects: int) -> AppendedBy:
    entry = WriterEntry(
        *(writer.writer_id, writer.kind, writer.query_id),
        *(writer.sequence, writer.content, version),
    )
    return AppendedBy(entry, 0, objects)
