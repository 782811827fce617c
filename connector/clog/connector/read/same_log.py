"""Whether the log at a stream's URL is the one that its offsets are of (S47).

A log is its id, not its path, and an id with two histories (a folder that was restored from a
copy) is told apart by the commit at the version that the offsets were planned at. In another log no
offset means what it did: the query fails, or goes on from that log's start.
"""

import logging
from typing import TYPE_CHECKING

from clog.connector.read.offsets import Planned
from clog.storage.errors import LogReplacedError

if TYPE_CHECKING:
    from clog.storage.commit.handle import Handle

_LOGGER = logging.getLogger("clog.connector")


def is_same_log(planned: Planned, handle: "Handle", *, fail_on_data_loss: bool) -> bool:
    """Tells whether a log is the one that offsets were planned at; warns where it is not. At most
    two GETs.

    Raises:
        LogReplacedError: it is not, and ``fail_on_data_loss``.
    """
    if not has_id(handle, planned.log_id, fail_on_data_loss=fail_on_data_loss):
        return False
    if _commit_id(handle, planned.version) in (planned.commit_id, None):
        return True
    message = (
        f"version {planned.version} of {handle.store.url} is not the one that this stream has read:"
        " the log was restored from a copy"
    )
    _tell(message, fail_on_data_loss=fail_on_data_loss)
    return False


def has_id(handle: "Handle", log_id: str, *, fail_on_data_loss: bool) -> bool:
    """Tells whether a log is the one with this id; warns where it is not.

    Raises:
        LogReplacedError: it is not, and ``fail_on_data_loss``.
    """
    there = handle.standing.log_id
    if there == log_id:
        return True
    message = (
        f"the log at {handle.store.url} that this stream has read was deleted and recreated (its"
        f" id was {log_id}, now it is {there})"
    )
    _tell(message, fail_on_data_loss=fail_on_data_loss)
    return False


def _tell(message: str, *, fail_on_data_loss: bool) -> None:
    if fail_on_data_loss:
        raise LogReplacedError(
            f"{message}; start the query with a new checkpoint, or set failOnDataLoss=false to"
            " continue at the start of the log that is there"
        )
    _LOGGER.warning("%s; going on from the start of that log (failOnDataLoss=false)", message)


def _commit_id(handle: "Handle", version: int) -> str | None:
    """Returns the id of the commit of a version, an empty one where it was never committed; None
    where nobody can say any more.
    """
    from clog.storage.commit.versions import is_closed, try_read

    tip = handle.tip
    if version >= tip.version:
        return tip.record.commit_id if version == tip.version else ""
    with handle.standing.unless_gone():
        closed = is_closed(handle.store, version)
    if closed is not None:
        return closed.get(version, "")
    commit = try_read(handle.store, version)
    return None if commit is None else commit.record.commit_id
