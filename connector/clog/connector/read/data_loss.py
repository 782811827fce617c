"""Missing offsets: fail, or skip them with a warning (S38, S41)."""

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from clog.storage.errors import NotFoundError, OffsetOutOfRangeError
from clog.storage.read.missed_deletes import missed_deletes

if TYPE_CHECKING:
    from clog.storage.format.manifest import Manifest

_LOGGER = logging.getLogger("clog.connector")


def available_start(
    partition: int, start: int, low: int, high: int, *, url: str, fail_on_data_loss: bool
) -> int:
    """Returns ``start`` where it lies in ``[low, high]``, log start and end; else, if it may be,
    the log start.

    Raises:
        OffsetOutOfRangeError: it does not, and ``fail_on_data_loss``.
    """
    if low <= start <= high:
        return start
    if start < low:
        what = f"is below the log start offset {low}: {low - start} offsets are gone"
    else:
        what = f"is beyond the end offset {high}: the log may have been deleted and recreated"
    message = f"offset {start} of partition {partition} of {url} {what}"
    if fail_on_data_loss:
        remedy = f"readable are [{low}, {high}); set failOnDataLoss=false to continue at {low}"
        raise _out_of_range(f"{message}; {remedy}", partition, start, low, high)
    _LOGGER.warning("%s; continuing at %d (failOnDataLoss=false)", message, low)
    return low


def available_end(
    partition: int, end: int, low: int, high: int, *, url: str, fail_on_data_loss: bool
) -> int:
    """Returns ``end``, exclusive, where it lies in ``[low, high]``, log start and end; else, if it
    may be, the nearer of the two.

    Raises:
        OffsetOutOfRangeError: it does not, and ``fail_on_data_loss``.
    """
    if low <= end <= high:
        return end
    nearest = low if end < low else high
    if end < low:
        what = f"is below the log start offset {low}: all records before it are deleted"
    else:
        what = f"is beyond the end offset {high}: {end - high} offsets are not there"
    message = f"ending offset {end} of partition {partition} of {url} {what}"
    if fail_on_data_loss:
        remedy = (
            f"readable are [{low}, {high}), -1 stands for its end; set failOnDataLoss=false to read"
            " what there is"
        )
        raise _out_of_range(f"{message}; {remedy}", partition, end, low, high)
    _LOGGER.warning("%s; reading up to %d (failOnDataLoss=false)", message, nearest)
    return nearest


def decided_end(
    partition: int, end: int, low: int, decided: int, *, url: str, fail_on_data_loss: bool
) -> int:
    """Returns, in place of an end among records that are not decided, if it may be, where those
    begin: who goes on at that end would never see them.

    Raises:
        OffsetOutOfRangeError: it may not: ``fail_on_data_loss``.
    """
    message = (
        f"ending offset {end} of partition {partition} of {url} is beyond what is decided: records"
        f" from offset {decided} on wait for the end of a transaction"
    )
    if fail_on_data_loss:
        remedy = (
            f'read again once it has ended ("clog transactions {url}" lists it), give -1 or at most'
            f" {decided}, or set isolation=read_uncommitted"
        )
        raise _out_of_range(f"{message}; {remedy}", partition, end, low, decided)
    _LOGGER.warning("%s; reading up to %d (failOnDataLoss=false)", message, decided)
    return decided


def _out_of_range(
    message: str, partition: int, offset: int, low: int, high: int
) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(message, partition=partition, offset=offset, start=low, end=high)


def check_partitions(
    known: Mapping[int, int], read: Collection[int], *, url: str, fail_on_data_loss: bool
) -> None:
    """Raises if a stream no longer reads every partition that it was reading, as Spark's Kafka
    source does.

    Raises:
        NotFoundError: it does not, and ``fail_on_data_loss``.
    """
    left = {p: known[p] for p in sorted(known) if p not in read}
    if not left:
        return
    message = (
        f"this stream was at {left} of partitions of {url} that it no longer reads: option"
        ' "partitions" excludes them, or the log was deleted and recreated'
    )
    if fail_on_data_loss:
        raise NotFoundError(
            f"{message}; read them again, or set failOnDataLoss=false to continue without them"
        )
    _LOGGER.warning("%s (failOnDataLoss=false)", message)


def check_tombstones(
    manifest: "Manifest",
    starts: Mapping[int, int],
    *,
    since_version: int,
    url: str,
    fail_on_data_loss: bool,
) -> None:
    """Raises if a stream that began at ``since_version`` and is at ``starts`` can have missed a
    delete (S41).

    It can when a tombstone that it has not reached yet was removed since it began: it may know a
    value of that key and will never hear that it is gone.

    Raises:
        NotFoundError: it can, and ``fail_on_data_loss``.
    """
    missed = missed_deletes(manifest.tombstones_removed, starts, since_version)
    if not missed:
        return
    message = (
        f"tombstones up to offset {max(missed.values())} of partitions {sorted(missed)} of {url}"
        f" were removed before this stream, at { ({p: starts[p] for p in sorted(missed)}) }, read"
        " them: deletes may be missing in what it made"
    )
    if fail_on_data_loss:
        raise NotFoundError(
            f"{message}; start again from the table view, or set failOnDataLoss=false to continue"
            " without them; a longer delete.retention.ms prevents it"
        )
    _LOGGER.warning("%s (failOnDataLoss=false)", message)
