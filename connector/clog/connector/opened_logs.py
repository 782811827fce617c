"""Logs that stay open in a process: Spark reuses its Python workers from batch to batch.

A log that was deleted and made anew under its URL must not be written with what is known of the
old one (a commit would follow on versions that are gone), so the newest commit that is known is
read again each time: one request instead of up to five.
"""

from typing import TYPE_CHECKING

from clog.connector.location import Location
from clog.storage.errors import AlreadyExistsError, NotFoundError

if TYPE_CHECKING:
    from clog.connector.options import WriteOptions
    from clog.storage.log import Log

_LOGS: dict[Location, "Log"] = {}
STALE_MS = 600_000
"""A newest commit older than this is looked past: objects stamped with an old version may be
swept.
"""


def opened(location: Location) -> "Log":
    """The log at a location, as it is now or was `STALE_MS` ago.

    Raises:
        NotFoundError: there is none.
    """
    from clog.storage.log import Log

    log = _LOGS.get(location)
    if log is None or not _is_still_there(log):
        _LOGS.pop(location, None)
        log = _LOGS[location] = Log.open(location.store())
    tip = log.handle.tip
    if log.handle.clock.now_ms() - tip.record.time_ms > STALE_MS:
        log.handle.refresh()
    return log


def of_id(location: Location, log_id: str) -> "Log":
    """The log with this id; no request where it is open already.

    Raises:
        NotFoundError: the log at the location is another one by now.
    """
    log = _LOGS.get(location)
    if log is None or log.handle.tip.head.log.log_id != log_id:
        log = opened(location)
    if log.handle.tip.head.log.log_id != log_id:
        raise NotFoundError(
            f"{log.url} was deleted and made anew while records were written to it; nothing was"
            " committed, write again"
        )
    return log


def opened_or_created(options: "WriteOptions") -> "Log":
    """The log to write to, made on the first write; concurrent makers agree on the first one."""
    from clog.storage.log import Log

    location = options.location
    try:
        return opened(location)
    except NotFoundError:
        pass
    try:
        if options.partitions is None:
            Log.create(location.store(), config=options.config)
        else:
            Log.create(location.store(), options.partitions, options.config)
    except AlreadyExistsError:
        pass  # Somebody else made it at the same time: write to theirs.
    return opened(location)


def _is_still_there(log: "Log") -> bool:
    from clog.storage.commits import read_commit

    handle = log.handle
    try:
        there = read_commit(handle.store, handle.tip.version)
    except FileNotFoundError:
        return False
    return there.record.commit_id == handle.tip.record.commit_id
