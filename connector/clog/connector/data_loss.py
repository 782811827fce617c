"""Offsets that are wanted and gone: told, or passed over with a warning (S38, S41)."""

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from clog.storage.errors import NotFoundError, OffsetOutOfRangeError
from clog.storage.tombstone_loss import missed_tombstones

if TYPE_CHECKING:
    from clog.storage.manifest import Manifest

_LOGGER = logging.getLogger("clog.connector")


def available_start(
    partition: int, start: int, low: int, high: int, *, url: str, fail_on_data_loss: bool
) -> int:
    """``start`` where it lies in ``[low, high]``, log start and end; else, if it may be, the log
    start.

    Raises:
        OffsetOutOfRangeError: it does not, and ``fail_on_data_loss``.
    """
    if low <= start <= high:
        return start
    if start < low:
        what = f"is below the log start offset {low}: {low - start} offsets are gone"
    else:
        what = f"is beyond the end offset {high}: was the log deleted and made anew?"
    message = f"offset {start} of partition {partition} of {url} {what}"
    if fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"{message}; readable is [{low}, {high}); set failOnDataLoss=false to go on from {low}",
            partition=partition,
            offset=start,
            start=low,
            end=high,
        )
    _LOGGER.warning("%s; going on from %d (failOnDataLoss=false)", message, low)
    return low


def check_partitions(
    known: Mapping[int, int], read: Collection[int], *, url: str, fail_on_data_loss: bool
) -> None:
    """Whether a stream still reads every partition that it was reading, as in Spark's Kafka source.

    Raises:
        NotFoundError: it does not, and ``fail_on_data_loss``.
    """
    left = {p: known[p] for p in sorted(known) if p not in read}
    if not left:
        return
    message = (
        f"this stream was at {left} of partitions of {url} that it does not read any more: option"
        ' "partitions" leaves them out, or the log was deleted and made anew'
    )
    if fail_on_data_loss:
        raise NotFoundError(
            f"{message}; read them again, or set failOnDataLoss=false to go on without them"
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
    """Whether a stream that began at ``since_version`` and is at ``starts`` can have missed a
    delete (S41).

    It can when a tombstone that it has not reached yet was removed since it began: it may know a
    value of that key and will never hear that it is gone.

    Raises:
        NotFoundError: it can, and ``fail_on_data_loss``.
    """
    missed = missed_tombstones(manifest.tombstones_removed, starts, since_version)
    if not missed:
        return
    message = (
        f"tombstones up to offset {max(missed.values())} of partitions {sorted(missed)} of {url}"
        f" were removed before this stream, at { ({p: starts[p] for p in sorted(missed)}) }, read"
        " them: deletes may be missing in what it made"
    )
    if fail_on_data_loss:
        raise NotFoundError(
            f"{message}; start anew from the table view, or set failOnDataLoss=false to go on"
            " without them; a longer delete.retention.ms prevents it"
        )
    _LOGGER.warning("%s (failOnDataLoss=false)", message)
