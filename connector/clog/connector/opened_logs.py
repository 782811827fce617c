"""Logs that stay open in a process: Spark reuses its Python workers from batch to batch.

A log that was deleted and recreated under its URL is a different log (S47), so each use checks
which log is there: one request instead of up to six. So is a log that was restored from an older
copy; its id is the same, but the newest commit shows it, at most `tip.CONFIRM_MS` later.
"""

import logging
from typing import TYPE_CHECKING

from clog.connector.options import Location
from clog.connector.schema import LogTypes, needs_types, table_of_read
from clog.storage.errors import InvalidInputError, LogReplacedError, NotFoundError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from clog.connector.options import ReadOptions
    from clog.storage.commit.handle import Handle
    from clog.storage.log import Log

_LOGGER = logging.getLogger("clog.connector")
_LOGS: dict[Location, "Log"] = {}
STALE_MS = 600_000
"""A tip older than this is refreshed: objects that are stamped with an old version may be swept."""


def opened(location: Location) -> "Log":
    """Returns the log at a location, as it is now or was `STALE_MS` ago."""
    log = _LOGS.get(location)
    if log is None or not _is_unchanged(log):
        _LOGS.pop(location, None)
        log = _LOGS[location] = location.log()
    tip = log.handle.tip
    if log.handle.clock.now_ms() - tip.record.time_ms > STALE_MS:
        log.handle.refresh()
    return log


def try_open(location: Location) -> "Handle | None":
    """Opens the log there anew, as it is now; None if there is no log."""
    try:
        return location.log().handle
    except NotFoundError:
        return None


def opened_if_typed(options: "ReadOptions", schema: "StructType") -> "Handle | None":
    """Checks a user's schema; returns the log's handle, or None for a schema of plain bytes."""
    handle = options.location.log().handle if needs_types(schema) else None
    table_of_read(types_of(handle), schema, is_table=options.view == "table")
    return handle


def types_of(handle: "Handle | None") -> LogTypes | None:
    """Returns the types of a typed log; None if it has plain bytes, or there is no log."""
    from clog.storage.config.log_config import LogConfig
    from clog.storage.format.log_info import key_columns_problem
    from clog.storage.types.columns import arrow_schema

    head = None if handle is None else handle.tip.head
    if head is None or head.log.schema is None:
        return None
    names = LogConfig.from_overrides(head.config).table_key_columns
    if problem := key_columns_problem(head.log.schema, names):
        raise InvalidInputError(problem)
    return LogTypes(arrow_schema(head.log.schema), names)


def of_id(location: Location, log_id: str) -> "Log":
    """Returns the log with this id; makes no request if it is already open."""
    log = _LOGS.get(location)
    if log is None or log.handle.standing.log_id != log_id:
        log = opened(location)
    if log.handle.standing.log_id != log_id:
        raise LogReplacedError(
            f"{log.url} was deleted and recreated while records were being written to it; nothing"
            " was committed; write again"
        )
    return log


def check_log_id(handle: "Handle", log_id: str | None) -> None:
    """Raises if a log is not the one that option ``logId`` names."""
    there = handle.standing.log_id
    if log_id not in (None, there):
        raise LogReplacedError(
            f"the log at {handle.store.url} is not the intended one: it was deleted and recreated,"
            f" or another path was given (its id was {log_id}, now it is {there}); nothing was read"
            " or written; give the path of that log, or start again with the one that is there"
        )


def _is_unchanged(log: "Log") -> bool:
    try:
        log.handle.standing.check()
        log.handle.recent()
    except NotFoundError as e:
        _LOGGER.warning(
            "opening %s again; records that this process wrote to it may not be in the log that"
            " is there now: %s",
            log.url,
            e,
        )
        return False
    return True
