"""Positions in a log: what callers may ask for, and what it resolves to (S1, S38, S39)."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.errors import InvalidInputError, OffsetOutOfRangeError
from clog.storage.format.head import Head
from clog.storage.format.manifest import Manifest
from clog.storage.numpy_arrays import scalar, to_arrow
from clog.storage.read.scan import Isolation, end_offset, plan_range, read_pieces
from clog.storage.store.base import Store

_TRUE = to_arrow(np.array([True]))[0]

EARLIEST = -2
LATEST = -1


def isolation_named(isolation: object) -> Isolation:
    """Returns the isolation level (S40).

    Raises:
        InvalidInputError: it is none.
    """
    if isolation not in tuple(Isolation):
        raise InvalidInputError(f"isolation={isolation!r}; allowed: {', '.join(Isolation)}")
    return Isolation(str(isolation))


def partitions_named(head: Head, partition: int | None, *, url: str) -> tuple[int, ...]:
    """Returns the partition, or all for None.

    Raises:
        InvalidInputError: there is no such partition.
    """
    count = head.log.partitions
    if partition is None:
        return tuple(range(count))
    if type(partition) is not int or not 0 <= partition < count:
        raise InvalidInputError(
            f"partition {partition!r} does not exist in {url}; it has partitions 0 to {count - 1}"
        )
    return (partition,)


def by_partition(
    head: Head, value: int | Mapping[int, int], what: str, *, url: str
) -> dict[int, int]:
    """Returns a number for each partition, of one for all or one by partition."""
    if isinstance(value, Mapping):
        for p, number in value.items():
            partitions_named(head, p, url=url)
            _whole(number, what)
        return dict(value)
    _whole(value, what)
    return dict.fromkeys(range(head.log.partitions), value)


def ranges(
    head: Head,
    partition: int | None,
    start: int | Mapping[int, int] | None,
    end: int | Mapping[int, int] | None,
    *,
    url: str,
    isolation: Isolation = Isolation.COMMITTED,
) -> dict[int, tuple[int, int]]:
    """Returns the half-open ranges by partition, checked (S38); they end where the isolation does.

    Raises:
        OffsetOutOfRangeError: a start below the log start or beyond the end.
    """
    parts = partitions_named(head, partition, url=url)
    starts = {} if start is None else by_partition(head, start, "start", url=url)
    ends = {} if end is None else by_partition(head, end, "end", url=url)
    out = {}
    for p in parts:
        low = starts.get(p, head.partitions.start[p])
        check_start(head, p, low, url=url)
        high = max(low, end_offset(head, p, isolation))
        out[p] = (low, min(ends.get(p, high), high))
    return out


def check_start(head: Head, partition: int, offset: int, *, url: str) -> None:
    """Raises if reading may not begin at the offset: any in [log start, end] will do, gaps
    included.

    Raises:
        OffsetOutOfRangeError: it may not.
    """
    low, high = head.partitions.start[partition], head.partitions.end[partition]
    if not low <= offset <= high:
        side = (
            f"below the log start offset {low}" if offset < low else f"beyond the end offset {high}"
        )
        raise OffsetOutOfRangeError(
            f"offset {offset} of partition {partition} is {side} of {url};"
            f' start at "earliest" ({low}), or anywhere in [{low}, {high}]',
            partition=partition,
            offset=offset,
            start=low,
            end=high,
        )


def for_times(
    store: Store, manifest: Manifest, times_ms: Mapping[int, int]
) -> dict[int, int | None]:
    """Returns the first offset, in offset order, at or after the log start whose record is not
    earlier than the time (S39).
    """
    return {p: _first_at(store, manifest, p, time_ms) for p, time_ms in times_ms.items()}


def _first_at(store: Store, manifest: Manifest, partition: int, time_ms: int) -> int | None:
    start, end = manifest.head.partitions.start[partition], manifest.head.stable_offset(partition)
    for segment in manifest.segments[partition]:
        for chunk in segment.chunks:
            if chunk.next <= start or chunk.aborted or chunk.max_timestamp_ms < time_ms:
                continue
            # Here, where some record is as late: a later time may be no Arrow timestamp. No record
            # is before 1970.
            bound = scalar(max(0, time_ms) * 1000, pa.timestamp("us", "UTC"))
            pieces = plan_range(manifest, partition, max(start, chunk.base), min(end, chunk.next))
            for batch in read_pieces(store, pieces, columns=("offset", "timestamp")):
                late = pc.greater_equal(batch.column("timestamp"), bound)
                if (first := pc.index(late, _TRUE).as_py()) >= 0:
                    return int(batch.column("offset")[first].as_py())
    return None


def _whole(number: object, what: str) -> None:
    if type(number) is not int:
        raise InvalidInputError(f"{what} {number!r} is not an integer")
