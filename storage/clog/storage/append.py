"""Appends: what the tip's head demands of fresh objects, and the edit that binds them to offsets
(COMMIT.md §2 step 2).

A fresh object carries no offsets, so a lost race rewrites nothing: `AppendRequest.prepare` is
called again with the new tip and gives other offsets.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from clog.storage.chunks import NONE, Chunk
from clog.storage.commit import Answer
from clog.storage.commits import Commit, edit_of, read_commit
from clog.storage.config import LogConfig
from clog.storage.content_hash import ContentHash
from clog.storage.data_object import DataObject, record_sizes
from clog.storage.edits import Append, Edit, WriterEntry
from clog.storage.errors import CommitConflictError, InvalidInputError
from clog.storage.head import Head
from clog.storage.partitioner import partitions_for
from clog.storage.rolling import rolls_for
from clog.storage.store.base import Store
from clog.storage.writers import find_writer

_Partitions = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What an append did. ``offsets`` are half-open, by partition; of a duplicate, those of the
    first time.

    A duplicate whose commit has been deleted since has no ``offsets`` any more.
    """

    version: int
    offsets: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Writer:
    """Who appends, for appends that must happen once. ``kind``: producer, stream or txn;
    ``content`` a hash of the records.
    """

    writer_id: str
    kind: str
    sequence: int
    query_id: str | None = None
    content: str | None = None


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The writer's entry says that this sequence, or a later one, was committed already."""

    entry: WriterEntry
    same_content: bool


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Objects to commit, in the order of their offsets."""

    store: Store
    objects: Sequence[DataObject]
    writer: Writer | None
    uniform: Callable[[], float]

    def prepare(self, tip: Commit, time_ms: int) -> Edit:
        """The edit, given the tip.

        Raises:
            Answer: with a `Duplicate`: nothing is to be committed.
            InvalidInputError: records that the config of the log refuses (S5, S6, S9); a sequence
                that went back.
            CommitConflictError: an object was written so long ago that the sweep may have taken it.
        """
        head = tip.head
        if self.writer is not None:
            check_writer(self.store, head, self.writer)
        config = LogConfig.from_overrides(head.config)
        for obj in self.objects:
            _check_floor(obj, head, self.store.url)
            check_facts(obj, config, now_ms=time_ms)
        append_time_ms = time_ms if config.log_append_time else NONE
        chunks = _bind(self.objects, head, tip.version + 1, append_time_ms)
        rolls = rolls_for(head.partitions, chunks, config, uniform=self.uniform)
        return Edit(add=Append(tuple(chunks), rolls), writer=_entry(self.writer, tip.version + 1))


def check_writer(store: Store, head: Head, writer: Writer) -> None:
    """Whether the writer's sequence is new.

    Raises:
        Answer: with a `Duplicate`.
        InvalidInputError: the sequence went back, or comes from another query under this writer id.
    """
    entry = find_writer(store, head, writer.writer_id)
    if entry is None:
        return
    same = entry.content == writer.content or None in (entry.content, writer.content)
    if writer.kind == "txn":
        if writer.sequence <= entry.sequence:
            raise Answer(Duplicate(entry, same or writer.sequence < entry.sequence))
        return
    if writer.kind == "stream" and entry.query_id != writer.query_id:
        raise InvalidInputError(
            f"writer {writer.writer_id!r} of {store.url} belongs to query {entry.query_id},"
            f" batch {entry.sequence}; query {writer.query_id} cannot go on with it. A recreated"
            " checkpoint or a second query needs a writerId (txnAppId) of its own"
        )
    if writer.sequence == entry.sequence:
        if not same and writer.kind == "producer":
            raise InvalidInputError(
                f"producer {writer.writer_id!r} repeats sequence {writer.sequence} with other"
                f" records than version {entry.version} of {store.url} holds; use a new sequence"
            )
        raise Answer(Duplicate(entry, same))
    if writer.sequence < entry.sequence:
        raise InvalidInputError(
            f"{writer.kind} {writer.writer_id!r} is at sequence {entry.sequence} in {store.url},"
            f" {writer.sequence} lies before it; the next one must be above {entry.sequence}"
        )


def producer_of(producer: tuple[str, int], records: pa.Table, *, stamped: bool) -> Writer:
    """The writer that ``Log.append(producer=)`` names. ``stamped``: the caller gave all timestamps,
    so they belong to the content.

    Raises:
        InvalidInputError: it is not (id, sequence).
    """
    try:
        writer_id, sequence = producer
    except (TypeError, ValueError):
        writer_id, sequence = None, None
    if (
        not (isinstance(writer_id, str) and writer_id)
        or type(sequence) is not int
        or not 0 <= sequence < 1 << 63
    ):
        raise InvalidInputError(
            f"producer={producer!r} is not (id, sequence): a text that is not empty, an"
            " integer from 0 to 2^63 - 1"
        )
    content = ContentHash()
    for batch in records.to_batches():
        content.update(batch if stamped else batch.drop_columns(["timestamp"]))
    return Writer(writer_id, "producer", sequence, content=content.hexdigest())


def partitions_of(
    records: pa.Table, given: int | Sequence[int] | _Partitions | None, head: Head, *, url: str
) -> _Partitions:
    """The partition of each record: the one given for all, or for each; None: by its key's hash.

    Raises:
        InvalidInputError: a partition that does not exist, or not one for each record.
    """
    count = head.log.partitions
    if given is None:
        keys = records.column("key").combine_chunks()
        start = sum(head.partitions.end) % count
        return partitions_for(keys, partitions=count, algorithm=head.log.partitioner, start=start)
    parts = np.asarray(given)
    if parts.ndim and parts.shape != (records.num_rows,):
        raise InvalidInputError(
            f"{parts.size} partitions are given for {records.num_rows} records; give one for"
            " all, or one for each"
        )
    parts = np.broadcast_to(parts, (records.num_rows,))
    if parts.dtype.kind not in "iu" or parts.min() < 0 or parts.max() >= count:
        raise InvalidInputError(
            f"partition {given!r} does not exist in {url}; it has partitions 0 to {count - 1}"
        )
    return parts.astype(np.int32)


def check_records(records: pa.Table, config: LogConfig) -> None:
    """Whether the config takes the records, naming the first that it does not (S5, S6)."""
    if config.compact and (nulls := records.column("key").null_count):
        first = int(np.argmax(records.column("key").is_null().to_numpy()))
        raise InvalidInputError(
            f"{nulls} of {records.num_rows} records have no key, the first is record {first};"
            f" a log with cleanup.policy={config.as_dict()['cleanup.policy']} needs one in every"
            " record; nothing was appended"
        )
    sizes = record_sizes(records)
    if (over := np.flatnonzero(sizes > config.max_message_bytes)).size:
        raise InvalidInputError(
            f"{over.size} of {records.num_rows} records are larger than"
            f" max.message.bytes={config.max_message_bytes}, the first is record"
            f" {int(over[0])} with {int(sizes[over[0]])} bytes; nothing was appended"
        )


def check_facts(obj: DataObject, config: LogConfig, *, now_ms: int) -> None:
    """Whether the log's config of now takes the records of an object (S5, S6, S9)."""
    facts = obj.facts
    if config.compact and facts.null_keys:
        raise InvalidInputError(
            f"{facts.null_keys} of {obj.rows} records have no key; a log with"
            f" cleanup.policy={config.as_dict()['cleanup.policy']} needs one in every record"
        )
    if facts.largest_record_bytes > config.max_message_bytes:
        raise InvalidInputError(
            f"a record of {facts.largest_record_bytes} bytes is larger than"
            f" max.message.bytes={config.max_message_bytes}"
        )
    if config.log_append_time:
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


def first_result(store: Store, duplicate: object) -> AppendResult:
    """What a repeated append did the first time."""
    assert isinstance(duplicate, Duplicate)
    entry = duplicate.entry
    try:
        edit = edit_of(store, read_commit(store, entry.version).record)
    except FileNotFoundError:
        edit = Edit()
    # Where the commit was deleted, a file of a committer that slept may have taken its place.
    genuine = edit.writer is not None and edit.writer.writer_id == entry.writer_id
    first = result_of(entry.version, edit.add if genuine else None)
    return AppendResult(first.version, first.offsets, duplicate=True)


def result_of(commit_version: int, add: Append | None) -> AppendResult:
    """The offsets that an append's commit gave."""
    offsets: dict[int, tuple[int, int]] = {}
    for p, chunk in add.chunks if add else ():
        base = offsets.get(p, (chunk.base, 0))[0]
        offsets[p] = (base, chunk.next)
    return AppendResult(commit_version, offsets)


def _check_floor(obj: DataObject, head: Head, url: str) -> None:
    if obj.stamp < head.orphan_floor:
        raise CommitConflictError(
            f"an object of this append began at version {obj.stamp} of {url}, below the sweep's"
            f" floor {head.orphan_floor}: it took too long and may be gone; append again"
        )


def _bind(
    objects: Sequence[DataObject], head: Head, version: int, append_time_ms: int
) -> list[tuple[int, Chunk]]:
    ends = list(head.partitions.end)
    bound = []
    for obj in objects:
        ref = obj.ref
        first_row = 0
        for stats in obj.chunks:
            p, base = stats.partition, ends[stats.partition]
            ends[p] = base + stats.rows
            stamped = append_time_ms != NONE
            chunk = Chunk(
                object=ref,
                first_row=first_row,
                rows=stats.rows,
                base=base,
                next=ends[p],
                size_bytes=stats.size_bytes,
                first_timestamp_ms=append_time_ms if stamped else stats.first_timestamp_ms,
                max_timestamp_ms=append_time_ms if stamped else stats.max_timestamp_ms,
                tombstones=stats.tombstones,
                version=version,
                append_time_ms=append_time_ms,
            )
            bound.append((p, chunk))
            first_row += stats.rows
    return bound


def _entry(writer: Writer | None, version: int) -> WriterEntry | None:
    if writer is None:
        return None
    return WriterEntry(
        *(writer.writer_id, writer.kind, writer.query_id),
        *(writer.sequence, writer.content, version),
    )
