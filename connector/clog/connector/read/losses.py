"""What a read cannot have: offsets, deletes, partitions or a whole log that are gone, and ends that
are not there or not decided (S38, S41, S47, S51). By ``failOnDataLoss`` it fails, or it is warned
and goes on with what there is.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

from clog.storage.env import dataclass
from clog.storage.errors import (
    ClogError,
    LogReplacedError,
    NotFoundError,
    OffsetOutOfRangeError,
)
from clog.storage.read.scan import missed_deletes

if TYPE_CHECKING:
    from clog.connector.positions import Planned
    from clog.storage.commit.handle import Handle
    from clog.storage.format.manifest import Manifest

_LOGGER = logging.getLogger("clog.connector")


@dataclass(frozen=True, slots=True)
class Losses:
    """What to do about losses of the log at a URL: ``fails``, or warn."""

    url: str
    fails: bool

    def start(self, partition: int, start: int, low: int, high: int) -> int:
        """Returns ``start`` where it lies in ``[low, high]``, log start and end; else the log
        start.
        """
        if low <= start <= high:
            return start
        if start < low:
            what = f"is below the log start offset {low}: {low - start} offsets are gone"
        else:
            what = f"is beyond the end offset {high}: the log may have been deleted and recreated"
        self._lost(
            f"offset {start} of partition {partition} of {self.url} {what}",
            f"readable are [{low}, {high}); set failOnDataLoss=false to continue at {low}",
            f"; continuing at {low}",
            partial(OffsetOutOfRangeError, partition=partition, offset=start, start=low, end=high),
        )
        return low

    def end(self, partition: int, end: int, low: int, high: int) -> int:
        """Returns ``end``, exclusive, as `start` does; else the nearer of the two."""
        if low <= end <= high:
            return end
        nearest = low if end < low else high
        if end < low:
            what = f"is below the log start offset {low}: all records before it are deleted"
        else:
            what = f"is beyond the end offset {high}: {end - high} offsets are not there"
        self._lost(
            f"ending offset {end} of partition {partition} of {self.url} {what}",
            f"readable are [{low}, {high}), -1 stands for its end; set failOnDataLoss=false to"
            " read what there is",
            f"; reading up to {nearest}",
            partial(OffsetOutOfRangeError, partition=partition, offset=end, start=low, end=high),
        )
        return nearest

    def decided_end(self, partition: int, end: int, low: int, decided: int) -> int:
        """Returns where undecided records begin, in place of an end among them: who goes on at
        that end would never see them.
        """
        self._lost(
            f"ending offset {end} of partition {partition} of {self.url} is beyond what is"
            f" decided: records from offset {decided} on wait for the end of a transaction",
            f'read again once it has ended ("clog transactions {self.url}" lists it), give -1 or at'
            f" most {decided}, or set isolation=read_uncommitted",
            f"; reading up to {decided}",
            partial(OffsetOutOfRangeError, partition=partition, offset=end, start=low, end=decided),
        )
        return decided

    def check_partitions(self, known: Mapping[int, int], read: Collection[int]) -> None:
        """Tells if a stream no longer reads every partition that it was reading, as Spark's Kafka
        source does.
        """
        if left := {p: known[p] for p in sorted(known) if p not in read}:
            self._lost(
                f"this stream was at {left} of partitions of {self.url} that it no longer reads:"
                ' option "partitions" excludes them, or the log was deleted and recreated',
                "read them again, or set failOnDataLoss=false to continue without them",
            )

    def check_deletes(
        self, manifest: "Manifest", starts: Mapping[int, int], *, since_version: int
    ) -> None:
        """Tells if a stream that began at this version and is at ``starts`` can have missed a
        delete (S41): a tombstone that it has not reached yet was removed since it began, so it may
        know a value of that key, and will never hear that it is gone.
        """
        missed = missed_deletes(manifest.tombstones_removed, starts, since_version)
        if missed:
            self._lost(
                f"tombstones up to offset {max(missed.values())} of partitions {sorted(missed)} of"
                f" {self.url} were removed before this stream, at"
                f" { ({p: starts[p] for p in sorted(missed)}) }, read them: deletes may be missing"
                " in what it made",
                "start again from the table view, or set failOnDataLoss=false to continue without"
                " them; a longer delete.retention.ms prevents it",
            )

    def has_id(self, handle: "Handle", log_id: str) -> bool:
        """Tells whether a log is the one with this id."""
        there = handle.standing.log_id
        if there == log_id:
            return True
        self._lost_log(
            f"the log at {self.url} that this stream has read was deleted and recreated (its id"
            f" was {log_id}, now it is {there})"
        )
        return False

    def is_planned_log(self, handle: "Handle", planned: "Planned") -> bool:
        """Tells whether a log is the one that offsets were planned at. At most two GETs."""
        if not self.has_id(handle, planned.log_id):
            return False
        if _commit_id(handle, planned.version) in (planned.commit_id, None):
            return True
        self._lost_log(
            f"version {planned.version} of {self.url} is not the one that this stream has read: the"
            " log was restored from a copy"
        )
        return False

    def _lost_log(self, message: str) -> None:
        self._lost(
            message,
            "start the query with a new checkpoint, or set failOnDataLoss=false to continue at the"
            " start of the log that is there",
            "; going on from the start of that log",
            LogReplacedError,
        )

    def _lost(
        self,
        message: str,
        remedy: str,
        goes_on: str = "",
        error: Callable[[str], ClogError] = NotFoundError,
    ) -> None:
        if self.fails:
            raise error(f"{message}; {remedy}")
        _LOGGER.warning("%s%s (failOnDataLoss=false)", message, goes_on)


def _commit_id(handle: "Handle", version: int) -> str | None:
    """Returns the id of the commit of a version, an empty one where it was never committed; None
    where nobody can say any more.
    """
    from clog.storage.commit.tip import is_closed, try_read

    tip = handle.tip
    if version >= tip.version:
        return tip.record.commit_id if version == tip.version else ""
    with handle.standing.unless_gone():
        closed = is_closed(handle.store, version)
    if closed is not None:
        return closed.get(version, "")
    commit = try_read(handle.store, version)
    return None if commit is None else commit.record.commit_id
