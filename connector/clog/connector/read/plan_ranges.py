"""Ranges of offsets made input partitions, at one version: what batch and stream have in common on
the driver. Views are planned in `plan_views`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from clog.connector.options.parsing import Position, Since, Times
from clog.connector.options.settings import ReadOptions
from clog.connector.read.data_loss import available_end, available_start, decided_end
from clog.connector.read.input_partitions import LogPartition
from clog.connector.read.offsets import check_all_named, resolve
from clog.storage.errors import OptionError

if TYPE_CHECKING:
    from clog.storage.commit.handle import Handle
    from clog.storage.format.head import Head
    from clog.storage.format.manifest import Manifest
    from clog.storage.read.scan import Isolation
    from clog.storage.store.base import Store


def partitions_read(head: "Head", wanted: Sequence[int] | None, *, url: str) -> tuple[int, ...]:
    """Returns the partitions that are read: those wanted, or all.

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


def offset_bounds(
    head: "Head", parts: Sequence[int], *, uncommitted: bool = False
) -> tuple[dict[int, int], dict[int, int]]:
    """Returns the log start offsets of these partitions, and where their readers end: at the last
    stable offsets (S51), or with ``uncommitted`` at the end offsets.
    """
    start, end = head.partitions.start, head.partitions.end
    ends = {p: end[p] if uncommitted else head.stable_offset(p) for p in parts}
    return {p: start[p] for p in parts}, ends


def not_before(
    ends: Mapping[int, int], starts: Mapping[int, int] | None, head: "Head"
) -> dict[int, int]:
    """Returns the ends of a batch that starts there: not before its start, which may lie among
    records that are undecided (S51).
    """
    there, known = head.partitions.end, starts or {}
    return {
        p: max(end, start) if (start := known.get(p, end)) <= there[p] else end
        for p, end in ends.items()
    }


def decided(
    handle: "Handle", manifest: "Manifest", ranges: Mapping[int, tuple[int, int]]
) -> "Manifest":
    """Returns a manifest in which all records of a stream's batch are decided: the given one, or,
    where the batch was planned with ``read_uncommitted``, the newest.

    Raises:
        OptionError: some are not decided yet; they would be skipped.
    """
    if not _undecided(manifest.head, ranges):
        return manifest
    head, url = handle.refresh().head, handle.store.url
    if late := _undecided(head, ranges):
        p = late[0]
        raise OptionError(
            'option "isolation" is read_committed, but the batch that runs again was planned with'
            f" read_uncommitted: it ends at offset {ranges[p][1]} of partition {p} of {url}, whose"
            f" records are decided up to {head.stable_offset(p)}; start the query again with"
            " read_uncommitted, or once the transactions there have ended:"
            f' "clog transactions {url}" lists them'
        )
    return handle.manifest()


def _undecided(head: "Head", ranges: Mapping[int, tuple[int, int]]) -> list[int]:
    """Returns the partitions in which some of these offsets are not decided (S51)."""
    ends = head.partitions.end
    return [p for p, (_, end) in ranges.items() if min(end, ends[p]) > head.stable_offset(p)]


def positions(
    store: "Store",
    manifest: "Manifest",
    parts: Sequence[int],
    position: Position | Times,
    *,
    option: str,
    uncommitted: bool = False,
) -> dict[int, int]:
    """Returns the offset that a position names in each partition. Times cost requests: chunks that
    may hold the first record that is late enough are read.

    Raises:
        OptionError: it does not name all partitions, or one that does not exist, or a time later
            than every record.
    """
    lows, highs = offset_bounds(manifest.head, parts, uncommitted=uncommitted)
    if not isinstance(position, Times):
        return resolve(position, lows, highs, option=f"{option}Offsets")
    times = dict.fromkeys(parts, position.ms) if isinstance(position.ms, int) else position.ms
    check_all_named(times, parts, option=f"{option}OffsetsByTimestamp")
    from clog.storage.read.offsets import for_times

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
    """Returns the end offset of each partition at the version; opening that version costs requests.

    Raises:
        VersionExpiredError: it is not readable any more, or not yet there.
    """
    return offset_bounds(handle.manifest_at(position.version).head, parts)[1]


def isolation_of(uncommitted: bool) -> "Isolation":  # noqa: FBT001 - it has the name
    """Returns what a read sees of transactions that have not ended."""
    from clog.storage.read.scan import Isolation

    return Isolation.UNCOMMITTED if uncommitted else Isolation.COMMITTED


def log_partitions(
    manifest: "Manifest",
    ranges: Mapping[int, tuple[int, int]],
    options: ReadOptions,
    *,
    follow: bool,
) -> list[LogPartition]:
    """Returns input partitions for half-open ranges of offsets."""
    from clog.connector.read.deal_tasks import deal
    from clog.storage.read.scan import plan_range

    pieces = {
        p: plan_range(manifest, p, start, end, isolation=isolation_of(options.uncommitted))
        for p, (start, end) in ranges.items()
    }
    tasks = deal(
        pieces,
        min_tasks=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    return [
        LogPartition(
            location=options.location,
            log_id=manifest.head.log.log_id,
            version=manifest.version,
            seed=manifest.head.log.key_seed,
            pieces=task,
            follow=follow,
            fail_on_data_loss=options.fail_on_data_loss,
            keys=options.keys,
            uncommitted=options.uncommitted,
        )
        for task in tasks
    ]


def batch_ranges(
    store: "Store", manifest: "Manifest", options: ReadOptions
) -> dict[int, tuple[int, int]]:
    """Returns the half-open ranges of offsets of a batch read, by partition.

    Raises:
        OptionError: as `positions`; a start after the end.
        OffsetOutOfRangeError: a start or an end that is gone, not there or not decided yet, and
            ``failOnDataLoss``.
    """
    parts = partitions_read(manifest.head, options.partitions, url=store.url)
    lows, highs = manifest.head.partitions.start, manifest.head.partitions.end
    starting = options.starting or "earliest"
    assert not isinstance(starting, Since), "a batch read of the log itself refuses it"
    starts = positions(store, manifest, parts, starting, option="starting")
    is_dirty = options.uncommitted
    ends = positions(
        store, manifest, parts, options.ending or "latest", option="ending", uncommitted=is_dirty
    )
    ranges = {}
    for p in parts:
        stable = highs[p] if is_dirty else manifest.head.stable_offset(p)
        if ends[p] == stable:
            # A start beyond it is a position: what lies there is not decided yet (S51).
            ends[p] = max(ends[p], min(starts[p], highs[p]))
        elif max(stable, starts[p]) < ends[p] <= highs[p]:
            ends[p] = decided_end(
                *(p, ends[p], lows[p], max(stable, starts[p])),
                url=store.url,
                fail_on_data_loss=options.fail_on_data_loss,
            )
        # A start at the log start may be the default: then the end is of records that are deleted.
        if ends[p] < starts[p] != lows[p]:
            raise OptionError(
                f"the read of partition {p} of {store.url} starts at offset {starts[p]} and ends at"
                f" {ends[p]}: nothing lies between; give a start (startingOffsets, timestamps) that"
                " is not after the end (endingOffsets, timestamps)"
            )
        low, high = lows[p], highs[p]
        start = available_start(
            *(p, starts[p], low, high), url=store.url, fail_on_data_loss=options.fail_on_data_loss
        )
        end = available_end(
            *(p, ends[p], low, high), url=store.url, fail_on_data_loss=options.fail_on_data_loss
        )
        ranges[p] = (start, end)
    return ranges


def batch_partitions(
    store: "Store", manifest: "Manifest", options: ReadOptions
) -> list[LogPartition]:
    """Returns the plan of a batch read; raises as `batch_ranges`."""
    return log_partitions(manifest, batch_ranges(store, manifest, options), options, follow=False)
