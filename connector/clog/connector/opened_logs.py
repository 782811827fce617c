"""Logs that stay open in a process: Spark reuses its Python workers from batch to batch.

A log that was deleted and recreated under its URL is another one (S47), so each time one asks which
log stands there: one request instead of up to six. So is one that was restored from an older copy;
its id is the same, so the newest commit tells, at most `tip_tracker.CONFIRM_MS` later.
"""

import logging
from typing import TYPE_CHECKING

from clog.connector.options.location import Location
from clog.storage.errors import AlreadyExistsError, LogReplacedError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from clog.connector.options.settings import WriteOptions
    from clog.storage.commit.handle import Handle
    from clog.storage.log import Log

_LOGGER = logging.getLogger("clog.connector")
_LOGS: dict[Location, "Log"] = {}
STALE_MS = 600_000
"""A newest commit older than this is looked past: objects with an old version as their stamp may be
swept.
"""


def opened(location: Location) -> "Log":
    """Returns the log at a location, as it is now or was `STALE_MS` ago.

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


def typed_schema(location: Location) -> "pa.Schema | None":
    """Returns the schema of the log there, which it opens; None where it is of bytes, or there is
    none.
    """
    from clog.storage.log import Log

    try:
        return schema_of(Log.open(location.store()))
    except NotFoundError:
        return None


def schema_of(log: "Log | None") -> "pa.Schema | None":
    """Returns the schema of a typed log; None where it is of bytes, or there is none."""
    from clog.storage.objects.arrow_types import arrow_schema

    schema = None if log is None else log.handle.tip.head.log.schema
    return None if schema is None else arrow_schema(schema)


def of_id(location: Location, log_id: str) -> "Log":
    """Returns the log with this id; no request where it is open already.

    Raises:
        LogReplacedError: the log at the location is another one by now.
    """
    log = _LOGS.get(location)
    if log is None or log.handle.standing.log_id != log_id:
        log = opened(location)
    if log.handle.standing.log_id != log_id:
        raise LogReplacedError(
            f"{log.url} was deleted and recreated while records were written to it; nothing was"
            " committed; write again"
        )
    return log


def check_meant(handle: "Handle", log_id: str | None) -> None:
    """Raises if a log is not the one that option ``logId`` names.

    Raises:
        LogReplacedError: it is another one.
    """
    there = handle.standing.log_id
    if log_id not in (None, there):
        raise LogReplacedError(
            f"the log at {handle.store.url} was deleted and recreated (its id was {log_id}, now it"
            f" is {there}); nothing was read or written; begin again with the log that is there"
        )


def opened_or_created(
    options: "WriteOptions", check: "Callable[[pa.Schema | None], None]" = lambda _: None
) -> "Log":
    """Returns the log to write to, made on the first write; concurrent makers agree on the first
    one. ``check`` is asked before one is made, with the schema of a typed log that is there.

    Raises:
        LogReplacedError, NotFoundError: it is not the one that option ``logId`` names.
    """
    from clog.storage.log import Log

    location = options.location
    try:
        log = opened(location)
    except NotFoundError:
        if options.log_id is not None:
            raise
    else:
        check_meant(log.handle, options.log_id)
        check(schema_of(log))
        return log
    check(None)
    try:
        if options.partitions is None:
            Log.create(location.store(), config=options.config)
        else:
            Log.create(location.store(), options.partitions, options.config)
    except AlreadyExistsError:
        pass  # Somebody else made it at the same time: write to theirs.
    return opened(location)


def _is_still_there(log: "Log") -> bool:
    try:
        log.handle.standing.check()
        log.handle.recent()
    except NotFoundError as e:
        _LOGGER.warning(
            "opening %s anew; what this process wrote to it before may not be in the log that"
            " stands there now: %s",
            log.url,
            e,
        )
        return False
    return True
