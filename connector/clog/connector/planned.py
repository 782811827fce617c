"""Ranges of offsets made input partitions, at one version: what batch and stream have in common on
the driver.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from clog.connector.data_loss import available_start
from clog.connector.offsets import resolve
from clog.connector.options import ReadOptions
from clog.connector.partitions import LogPartition, TablePartition
from clog.storage.errors import OptionError

if TYPE_CHECKING:
    from clog.storage.head import Head
    from clog.storage.manifest import Manifest


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
            pieces=task,
            follow=follow,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        for task in tasks
    ]


def batch_partitions(manifest: "Manifest", options: ReadOptions, *, url: str) -> list[LogPartition]:
    """The plan of a batch read.

    Raises:
        OptionError: an option names partitions that do not exist, or not all that are read.
        OffsetOutOfRangeError: a start that is gone or not there yet, and ``failOnDataLoss``.
    """
    lows, highs = bounds(manifest.head, partitions_read(manifest.head, options.partitions, url=url))
    starting = options.starting or "earliest"
    starts = resolve(starting, lows, highs, option="startingOffsets")
    ends = resolve(options.ending, lows, highs, option="endingOffsets")
    ranges = {
        p: (
            available_start(
                *(p, starts[p], lows[p], highs[p]),
                url=url,
                fail_on_data_loss=options.fail_on_data_loss,
            ),
            min(ends[p], highs[p]),
        )
        for p in lows
    }
    return log_partitions(manifest, ranges, options, follow=False)


def table_partitions(
    manifest: "Manifest", options: ReadOptions, *, url: str
) -> list[TablePartition]:
    """The plan of a table view: one task for each partition that holds anything."""
    from clog.storage.table import plan_table

    parts = partitions_read(manifest.head, options.partitions, url=url)
    plans = [plan_table(manifest, p) for p in parts]
    return [TablePartition(options.location, plan) for plan in plans if plan.clean or plan.dirty]
