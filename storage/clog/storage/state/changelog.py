"""A store's changes as records of its log, and these as rows of its file.

Each change is one record, in the order of the keys, in the partition of its key. The records of a
partition get offsets one after the other, so what the commit answers, a range for each partition,
tells the offset of each: nothing is read back.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import LogConfig
from clog.storage.format.head import Head
from clog.storage.format.schema import LogSchema
from clog.storage.keys.partitioner import partitions_for
from clog.storage.numpy_arrays import of_bytes, to_arrow
from clog.storage.objects.records import Appendable
from clog.storage.state.row_checks import Row
from clog.storage.state.uncommitted import Change, Uncommitted
from clog.storage.transactions.deferred import Source, TransactionResult
from clog.storage.transactions.positions import check_reachable
from clog.storage.transactions.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Given:
    """What is committed with a store's changes.

    Attributes:
        read: by log that was read, by partition the next offset.
        outputs: records for other logs.
        missed_deletes: deletes of a log that was read that were missed are no error.
    """

    read: Mapping[Source, Mapping[int, int]]
    outputs: Mapping[Source, Appendable]
    missed_deletes: bool


@dataclass(frozen=True, slots=True)
class Sent:
    """What a transaction was given of a store's changes.

    Attributes:
        partitions: by part of the changes, the partition of each.
        timestamp_us: of all records.
        schema: by which they were made.
        read: by log that was read, by partition the next offset.
    """

    partitions: list[NDArray[np.int32]]
    timestamp_us: int
    schema: LogSchema | None
    read: Mapping[Source, Mapping[int, int]]

    def fits(self, head: Head) -> bool:
        """Tells whether the records are in the log as they were sent: by its schema, and with
        their own times.
        """
        config = LogConfig.from_overrides(head.config)
        return head.log.schema == self.schema and not config.log_append_time

    def rows(self, changes: Uncommitted, result: TransactionResult) -> Iterator[Iterator[Row]]:
        """Yields the rows that they are in the file, at the offsets that they got."""
        next_offsets = np.zeros(max(result.offsets, default=0) + 1, np.int64)
        for p, (base, _) in result.offsets.items():
            next_offsets[p] = base
        for part, partitions in zip(changes.parts(), self.partitions, strict=True):
            counts = np.bincount(partitions, minlength=len(next_offsets))
            order = np.argsort(partitions, kind="stable")
            offsets = np.empty(len(partitions), np.int64)
            first = (np.cumsum(counts) - counts)[partitions[order]]
            offsets[order] = next_offsets[partitions[order]] + np.arange(len(order)) - first
            next_offsets += counts
            keys, values = zip(*part, strict=True)
            numbers = partitions.tolist(), offsets.tolist(), repeat(self.timestamp_us, len(keys))
            yield zip(keys, *numbers, values, strict=True)


def send(
    transaction: Transaction,
    changes: Uncommitted,
    handle: Handle,
    given: Given,
) -> Sent:
    """Gives a transaction all positions, all outputs and, part by part, all changes, and returns
    what was sent; where that fails the transaction is aborted.

    Raises:
        as `Transaction.append` and `Transaction.positions`; OffsetOutOfRangeError: a position
            beyond the end of its log.
    """
    try:
        for source, offsets in given.read.items():
            transaction.positions(source, offsets, missed_deletes=given.missed_deletes)
            check_reachable(source, offsets)
        for log, records in given.outputs.items():
            transaction.append(records, log=log)
        now_us = handle.clock.now_us()
        sent = [
            _append(transaction, part, changes, handle, now_us=now_us) for part in changes.parts()
        ]
    except BaseException:
        transaction.abort()
        raise
    read = {source: dict(mine) for source, mine in given.read.items()}
    return Sent(sent, now_us, changes.codec.schema, read)


def _append(
    transaction: Transaction,
    part: list[Change],
    changes: Uncommitted,
    handle: Handle,
    *,
    now_us: int,
) -> NDArray[np.int32]:
    keys, values = [key for key, _ in part], [value for _, value in part]
    log = handle.tip.head.log
    columns: dict[str, Any] = changes.codec.records(keys, values)
    hashed = columns["key"] if changes.codec.schema is None else of_bytes(keys)
    partitions = partitions_for(hashed, partitions=log.partitions, algorithm=log.partitioner)
    times = np.full(len(keys), now_us, np.int64)
    columns["timestamp"] = to_arrow(times, pa.timestamp("us", "UTC"))
    transaction.append(pa.table(columns), partitions)
    return partitions
