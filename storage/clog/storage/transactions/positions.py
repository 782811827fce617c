"""Positions of what a transaction read (S54): what callers may give, and whether they missed
deletes on the way (S41).

Between two transactions of a job, tombstones may be removed that it had not read yet: the job has
copied values whose keys are deleted since, and nothing will ever tell it so. The version at which
each partition was read last tells.
"""

from collections.abc import Mapping

from clog.storage.commit.handle import Handle
from clog.storage.config.definitions import LONG_MAX
from clog.storage.errors import InvalidInputError, NotFoundError, OffsetOutOfRangeError
from clog.storage.format.transactions import Position
from clog.storage.read.missed_deletes import missed_deletes
from clog.storage.read.offsets import check_start
from clog.storage.transactions.deferred import Source


def handle_of(source: object) -> Handle:
    """Returns what transactions know a log by.

    Raises:
        InvalidInputError: it is no log.
    """
    handle = getattr(source, "handle", None)
    if isinstance(handle, Handle):
        return handle
    raise InvalidInputError(f"{source!r:.80} is not a log; give a Log, as Log.open returns it")


def checked_positions(
    source: Source, offsets: Mapping[int, int], version: int | None
) -> dict[int, Position]:
    """Returns positions as they are committed, by partition; see `Transaction.positions`.

    Raises:
        InvalidInputError: what is no position, or would be no integer of the format.
    """
    handle = handle_of(source)
    url, count = handle.standing.root.url, handle.tip.head.log.partitions
    at = handle.planned_version if version is None else version
    if not _is_whole(at, LONG_MAX):
        raise InvalidInputError(f"version={at!r} is not a version of {url}; allowed: from 0 on")
    if not isinstance(offsets, Mapping):
        raise InvalidInputError(
            f"{offsets!r:.80} is not a position in {url}; give a dict of partition to the next"
            " offset"
        )
    for p, offset in offsets.items():
        if not (_is_whole(p, count - 1) and _is_whole(offset, LONG_MAX)):
            raise InvalidInputError(
                f"{p!r}: {offset!r} is not a position in {url}; allowed: partitions 0 to"
                f" {count - 1}, offsets from 0 to 2^63 - 1"
            )
    return {p: Position(offset, at) for p, offset in offsets.items()}


def check_missed(
    source: Source, before: Mapping[int, Position], now: Mapping[int, Position]
) -> None:
    """Raises if a tombstone that lies at or above a position of before was removed since, by the
    version that was read now. No request where the source was read by its own handle.

    Raises:
        NotFoundError: there was one.
    """
    known = {p: before[p] for p in now if p in before and before[p].version < now[p].version}
    if not known:
        return
    removed = source.handle.manifest().tombstones_removed
    missed: dict[int, int] = {}
    for p, position in known.items():
        by_then = [step for step in removed if step[1] <= now[p].version]
        missed |= missed_deletes(by_then, {p: position.offset}, position.version)
    if missed:
        raise NotFoundError(
            f"tombstones up to offset {max(missed.values())} of partitions {sorted(missed)} of"
            f" {source.handle.standing.root.url} were removed before this job read them, so it has"
            " missed deletes; rebuild what it wrote from the log's start, or go on with"
            " missed_deletes=True"
        )


def check_decided(source: Source, offsets: Mapping[int, int]) -> None:
    """Raises if a position is beyond a record that is undecided: reads end before it, and who goes
    on from there would never see it. One GET where it is beyond the last stable offset that the
    handle knows.

    Raises:
        OffsetOutOfRangeError: one is.
    """
    handle = source.handle
    if all(offset <= handle.tip.head.stable_offset(p) for p, offset in offsets.items()):
        return
    head, url = handle.refresh().head, handle.standing.root.url
    for p, offset in offsets.items():
        stable = head.stable_offset(p)
        if stable < min(offset, head.partitions.end[p]):
            raise OffsetOutOfRangeError(
                f"offset {offset} of partition {p} is beyond the last stable offset {stable} of"
                f" {url}: records from there on are undecided, and would be taken for read; commit"
                " positions up to stable_offsets()",
                partition=p,
                offset=offset,
                start=head.partitions.start[p],
                end=stable,
            )


def check_reachable(source: Source, offsets: Mapping[int, int]) -> None:
    """Raises if a position is beyond the end of its log: what comes there later would be taken for
    read. One GET where a position is beyond the end that the handle knows.

    Raises:
        OffsetOutOfRangeError: one is.
    """
    handle = source.handle
    ends = handle.tip.head.partitions.end
    if any(offset > ends[p] for p, offset in offsets.items()):
        head = handle.refresh().head
        for p, offset in offsets.items():
            low = head.partitions.start[p]
            check_start(head, p, max(low, offset), url=handle.standing.root.url)


def next_offsets(source: Source, known: Mapping[str, Mapping[int, int]]) -> dict[int, int]:
    """Returns where to go on reading a log, by partition: where these positions say, else at the
    log start; one GET.

    Raises:
        OffsetOutOfRangeError: a position that cannot be read.
    """
    handle = handle_of(source)
    head = handle.refresh().head
    mine = known.get(handle.standing.log_id, {})
    for p, offset in mine.items():
        check_start(head, p, offset, url=handle.standing.root.url)
    return dict(enumerate(head.partitions.start)) | dict(mine)


def _is_whole(value: object, high: int) -> bool:
    return type(value) is int and 0 <= value <= high
