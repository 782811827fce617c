"""Logs that stay open in a process: Spark reuses its Python workers from batch to batch.

A log that was deleted and recreated under its URL is another one (S47), so each time one asks which
log stands there: one request instead of up to six. So is one that was restored from an older copy;
its id is the same, so the newest commit tells, at most `tip.CONFIRM_MS` later.
"""

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from clog.connector.options import Location
from clog.connector.schema import LogTypes, new_types
from clog.storage.errors import (
    AlreadyExistsError,
    InvalidInputError,
    LogReplacedError,
    NotFoundError,
    OptionError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.types import StructType

    from clog.connector.options import WriteOptions
    from clog.storage.administration import NewLog
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
    log = _LOGS.get(location)
    if log is None or not _is_still_there(log):
        _LOGS.pop(location, None)
        log = _LOGS[location] = location.log()
    tip = log.handle.tip
    if log.handle.clock.now_ms() - tip.record.time_ms > STALE_MS:
        log.handle.refresh()
    return log


def try_open(location: Location) -> "Handle | None":
    """Opens the log there anew, as it is now; None where there is none."""
    try:
        return location.log().handle
    except NotFoundError:
        return None


def types_of(handle: "Handle | None") -> LogTypes | None:
    """Returns the types of a typed log; None where it is of bytes, or there is none.

    Raises:
        InvalidInputError: its config names key columns that its schema has not.
    """
    from clog.storage.config.log_config import LogConfig
    from clog.storage.format.log_info import key_columns_problem
    from clog.storage.objects.layout import arrow_schema

    head = None if handle is None else handle.tip.head
    if head is None or head.log.schema is None:
        return None
    names = LogConfig.from_overrides(head.config).table_key_columns
    if problem := key_columns_problem(head.log.schema, names):
        raise InvalidInputError(problem)
    return LogTypes(arrow_schema(head.log.schema), names)


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
    options: "WriteOptions",
    check: "Callable[[LogTypes | None], object]" = lambda _: None,
    *,
    rows: "StructType | None" = None,
) -> "Log":
    """Returns the log to write to, made on the first write; concurrent makers agree on the first
    one. ``check`` is asked with the types of a typed log, that is there or is to be made for
    ``rows`` by the option ``keyColumns``.

    Raises:
        as `opened_or_new`.
    """
    from clog.storage.administration import NewLog

    there = opened_or_new(options, check, rows=rows)
    return created(options.location, there) if isinstance(there, NewLog) else there


def opened_or_new(
    options: "WriteOptions",
    check: "Callable[[LogTypes | None], object]",
    *,
    rows: "StructType | None",
) -> "Log | NewLog":
    """Returns the log to write to, or what it is to be where there is none.

    Raises:
        LogReplacedError, NotFoundError: it is not the one that option ``logId`` names.
        OptionError: the log that is there has other key columns than ``keyColumns``.
        InvalidInputError: a log like this cannot be made.
    """
    from clog.storage.administration import PARTITIONS_DEFAULT, new_log
    from clog.storage.env import SystemIds

    location = options.location
    try:
        log = opened(location)
    except NotFoundError:
        if options.log_id is not None:
            raise
    else:
        check_meant(log.handle, options.log_id)
        _check_types(log, options.key_columns, check)
        return log
    types = None
    if options.key_columns is not None:
        if rows is None:
            raise OptionError(
                f'there is no log at {location.store().url}, and option "keyColumns" makes one of'
                " the columns of a DataFrame; write one to it first, without a transaction"
            )
        types = new_types(rows, options.key_columns)
    check(types)
    config = dict(options.config)
    if types is not None:
        config["table.key.columns"] = ",".join(types.key_columns)
    schema = None if types is None else types.schema
    partitions = PARTITIONS_DEFAULT if options.partitions is None else options.partitions
    return new_log(partitions, config, schema, ids=SystemIds())


def created(location: Location, new: "NewLog") -> "Log":
    """Creates a log, and returns it, or the one that somebody else made at the same time.

    Raises:
        OptionError: that has other key columns.
    """
    from clog.storage.env import SystemClock, SystemIds

    with suppress(AlreadyExistsError):
        new.create(location.store(), clock=SystemClock(), ids=SystemIds())
    log = opened(location)
    if names := new.settings.table_key_columns:
        _check_types(log, names, lambda _: None)
    return log


def _check_types(
    log: "Log",
    key_columns: tuple[str, ...] | None,
    check: "Callable[[LogTypes | None], object]",
) -> None:
    types = types_of(log.handle)
    given = None if key_columns is None else [name.lower() for name in key_columns]
    if given is not None and (types is None or given != [n.lower() for n in types.key_columns]):
        has = "is of bytes" if types is None else "names none"
        if types is not None and types.key_columns:
            has = f"has the key columns {', '.join(types.key_columns)}"
        raise OptionError(
            f'option "keyColumns" is {", ".join(key_columns or ())}, but {log.url} {has}; leave the'
            " option out, or write to a new log"
        )
    try:
        check(types)
    except InvalidInputError:
        log.handle.refresh()  # The schema may have evolved since it was opened here.
        if (now := types_of(log.handle)) == types:
            raise
        check(now)


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
