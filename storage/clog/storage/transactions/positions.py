"""Positions of what a transaction read (S54): what callers may give, and whether they missed
deletes on the way (S41).

Between two transactions of a job, tombstones may be removed that it had not read yet: the job has
copied values whose keys are deleted since, and nothing will ever tell it so. The version at which
each partition was read last tells.
"""

from collections.abc import Mapping

from clog.storage.errors import InvalidInputError, NotFoundError
from clog.storage.format.transactions import Position
from clog.storage.read.missed_deletes import missed_deletes
from clog.storage.transactions.deferred import Source


def checked_positions(
    source: Source, offsets: Mapping[int, int], version: int | None
) -> dict[int, Position]:
    """Returns the positions that a caller names, at the version that was read.

    Raises:
        InvalidInputError: a partition that does not exist, or an offset below 0.
    """
    handle = source.handle
    count = handle.tip.head.log.partitions
    at = handle.planned_version if version is None else version
    for p, offset in offsets.items():
        if type(p) is not int or not 0 <= p < count or type(offset) is not int or offset < 0:
            raise InvalidInputError(
                f"{p!r}: {offset!r} is no position in {handle.standing.root.url}; allowed:"
                f" partitions 0 to {count - 1}, offsets from 0"
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
