"""Ranges of offsets made input partitions, at one version: what batch and stream have in common on
the driver. Views are planned in `views`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from clog.connector.data_loss import available_start
from clog.connector.offsets import check_all_named, resolve
from clog.connector.option_values import Position, Since, Times
from clog.connector.options import ReadOptions
from clog.connector.partitions import LogPartition
from clog.storage.errors import OptionError

if TYPE_CHECKING:
    from clog.storage.handle import Handle
    from clog.storage.head import Head
    from clog.storage.manifest import Manifest
    from clog.storage.store.base import Store


def partitions_read(head: "Head", wanted: Sequence[int] | None, *, url: str) -> tuple[int, ...]:
    """The partitions that are read: those wanted, or all.

    Raises:
        OptionError: one does not exist.
    """
    count = head.log.partitions
    if wanted is None:
        return tuple(range(count))
    if unknown := [p for p in wanted if p >= count]:
        raise OptionError(
            f'option "partitions" names {unknown}, but {url} has partitions 0 to {count - 1}'
        )
    return tuple(wanted)


def bounds(head: "Head", parts: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
    """Log start and end offsets of these partitions."""
    columns = head.partitions
    return {p: columns.start[p] for p in parts}, {p: columns.end[p] for p in parts}


def positions(
    store: "Store",
    manifest: "Manifest",
    parts: Sequence[int],
    position: Position | Times,
    *,
    option: str,
) -> dict[int, int]:
    """The offset that a position names in each partition. Times cost requests: chunks that may hold
    the first record that is late enough are read.

    Raises:
        OptionError: it does not name all partitions, or one that does not exist, or a time later
            than every record.
    """
    lows, highs = bounds(manifest.head, parts)
    if not isinstance(position, Times):
        return resolve(position, lows, highs, option=f"{option}Offsets")
    times = dict.fromkeys(parts, position.ms) if isinstance(position.ms, int) else position.ms
    check_all_named(times, parts, option=f"{option}OffsetsByTimestamp")
    from clog.storage.offsets import for_times

    found = for_times(store, manifest, times)
    late = [p for p in parts if found[p] is None]
    if late and not position.or_latest:
        raise OptionError(
            f"partitions {late} of {store.url} have no record at or after the {option} timestamp"
            f" ({times[late[0]]} for partition {late[0]}); give an earlier one, or set"
            f" {option}OffsetsByTimestampStrategy=latest to begin at the end there"
        )
    offsets = {p: found[p] for p in parts}
    return {p: highs[p] if offset is None else offset for p, offset in offsets.items()}


def since(handle: "Handle", position: Since, parts: Sequence[int]) -> dict[int, int]:
    """The end offset of each partition at the version; opening that version costs requests.

    Raises:
        VersionExpiredError: it is not readable any more, or not yet there.
    """
    return bounds(handle.manifest_at(position.version).head, parts)[1]


def log_partitions(
    manifest: "Manifest",
    ranges: Mapping[int, tuple[int, int]],
    options: ReadOptions,
    *,
    follow: bool,
) -> list[LogPartition]:
    """Input partitions for half-open ranges of offsets."""
    from clog.connector.planning import deal
    from clog.storage.reader import plan_range

    pieces = {p: plan_range(manifest, p, start, end) for p, (start, end) in ranges.items()}
    tasks = deal(
        pieces,
        min_tasks=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    return [
        LogPartition(
            location=options.location,
            version=manifest.version,
            seed=manifest.head.log.key_seed,
            pieces=task,
            follow=follow,
            fail_on_data_loss=options.fail_on_data_loss,
            keys=options.keys,
        )
        for task in tasks
    ]


def batch_ranges(
    store: "Store", manifest: "Manifest", options: ReadOptions
) -> dict[int, tuple[int, int]]:
    """The half-open ranges of offsets of a batch read, by partition.

    Raises:
        OptionError: as `positions`.
        OffsetOutOfRangeError: a start that is gone or not there yet, and ``failOnDataLoss``.
    """
    parts = partitions_read(manifest.head, options.partitions, url=store.url)
    lows, highs = bounds(manifest.head, parts)
    starting = options.starting or "earliest"
    assert not isinstance(starting, Since), "a batch read of the log itself refuses it"
    starts = positions(store, manifest, parts, starting, option="starting")
    ends = positions(store, manifest, parts, options.ending, option="ending")
    return {
        p: (
            available_start(
                *(p, starts[p], lows[p], highs[p]),
                url=store.url,
                fail_on_data_loss=options.fail_on_data_loss,
            ),
            min(ends[p], highs[p]),
        )
        for p in parts
    }


def batch_partitions(
    store: "Store", manifest: "Manifest", options: ReadOptions
) -> list[LogPartition]:
    """The plan of a batch read; raises as `batch_ranges`."""
    return log_partitions(manifest, batch_ranges(store, manifest, options), options, follow=False)
