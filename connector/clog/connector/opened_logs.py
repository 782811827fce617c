"""Logs that stay open in a process: Spark reuses its Python workers from batch to batch.

A log that was deleted and recreated under its URL is a different log (S47), so each use checks
which log is there: one request instead of up to six. So is a log that was restored from an older
copy; its id is the same, but the newest commit shows it, at most `tip.CONFIRM_MS` later.
"""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from clog.connector.options import Location
from clog.connector.schema import (
    LogTypes,
    Misfit,
    TableColumns,
    UnfitColumnError,
    canonical,
    needs_types,
    paths_of,
    table_of_read,
)
from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError, LogReplacedError, NotFoundError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from clog.connector.options import ReadOptions
    from clog.storage.commit.handle import Handle
    from clog.storage.format.commits import Head
    from clog.storage.format.log_info import LogSchema
    from clog.storage.format.manifest import Manifest
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
    """Returns the handle of the log if the columns are typed, and must be checked with it; None
    for those of plain bytes, which are checked here.
    """
    if needs_types(schema):
        return options.location.log().handle
    table_of_read(None, schema, is_table=options.is_table)
    return None


def types_of(handle: "Handle | None") -> LogTypes | None:
    """Returns the types of a typed log; None if it has plain bytes, or there is no log."""
    return None if handle is None else types_at(handle.tip.head)


def types_at(head: "Head") -> LogTypes | None:
    """Returns the types of a typed log at a version; None if it has plain bytes."""
    from clog.storage.config.log_config import LogConfig
    from clog.storage.format.log_info import key_columns_problem
    from clog.storage.types.columns import arrow_schema

    if head.log.schema is None:
        return None
    names = LogConfig.from_overrides(head.config).table_key_columns
    if problem := key_columns_problem(head.log.schema, names):
        raise InvalidInputError(problem)
    return LogTypes(arrow_schema(head.log.schema), names)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the names of columns meant when a read was loaded; may be sent to tasks."""

    schema: "LogSchema"
    key_columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, head: "Head") -> "Loaded | None":
        """Returns what they mean in a version; None for a log of bytes."""
        types, schema = types_at(head), head.log.schema
        return None if types is None or schema is None else cls(schema, types.key_columns)

    def shows_rows(self, schema: "StructType") -> bool:
        """Returns whether these are columns of the table, and not of records."""
        from clog.storage.types.columns import rows_of

        rows = rows_of(self.schema, self.key_columns)
        return rows is not None and rows.has(schema.names)

    def ids(self, schema: "StructType", *, are_rows: bool) -> dict[str, tuple[int, ...]]:
        """Returns the ids on the way to each field that these columns read, by its path."""
        from clog.storage.types.columns import rows_of

        rows = rows_of(self.schema, self.key_columns) if are_rows else None
        fields = {path: field.id for path, field in self.schema.walk()}
        found = {}
        for column in (schema if rows is not None else canonical(schema)).fields:
            for path in paths_of(column.name, column.dataType):
                parts = (path if rows is None else str(rows.path(path))).split(".")
                way = [".".join(parts[: i + 1]) for i in range(len(parts))]
                if way[-1] in fields:
                    found[path] = tuple(fields[one] for one in way)
        return found

    def name_of(self, field_id: int, *, is_table: bool) -> str | None:
        """Returns the path of a field, or of a table's column; None if it is gone."""
        path = next((path for path, field in self.schema.walk() if field.id == field_id), None)
        if path is None or not (is_table and self.key_columns):
            return path
        return self.key_columns[0] if path == "key" else path.partition(".")[2]

    def moved(self, head: "Head", schema: "StructType", *, is_table: bool) -> Misfit | None:
        """Returns which of these columns is another one in a version, or has another name there."""
        if (now := Loaded.of(head)) is None:
            return None
        are_rows = is_table and self.shows_rows(schema)  # The version may lack some of them.
        there = now.ids(schema, are_rows=are_rows)
        for path, ids in self.ids(schema, are_rows=are_rows).items():
            if ids == there.get(path):
                continue
            name = now.name_of(ids[-1], is_table=is_table)
            given, stored = f"is called {path}", f"is called {name}"
            if name is None:
                given, stored = "is asked for", "is dropped"
            return Misfit(path, given, stored, "load the source again")
        return None


def _misfit(
    head: "Head", schema: "StructType", loaded: Loaded | None, *, is_table: bool
) -> "tuple[Misfit | None, TableColumns | None]":
    """Returns why these columns are not a version's, and the table that they show, if any."""
    moved = None if loaded is None else loaded.moved(head, schema, is_table=is_table)
    if moved is not None:
        return moved, None
    try:
        return None, table_of_read(types_at(head), schema, is_table=is_table)
    except UnfitColumnError as e:
        return e.misfit, None


def table_shown(
    handle: "Handle", schema: "StructType", loaded: Loaded | None = None, *, is_table: bool
) -> TableColumns | None:
    """Does `table_of_read` for the newest version. A read may have been ``loaded`` before its log
    evolved (S61): its columns may be too narrow for what was appended since, and their names those
    of others. The message names the version; finding it takes a GET per step of a search.
    """
    misfit, table = _misfit(handle.tip.head, schema, loaded, is_table=is_table)
    if misfit is None:
        return table
    since = _since(handle, schema, loaded, misfit, is_table=is_table)
    if since is None:
        raise InvalidInputError(
            f"{misfit}; or, if another log, or an older copy of it, is at {handle.store.url} since"
            " the source was loaded, load it again"
        )
    raise InvalidInputError(
        f"column {misfit.path} of {handle.store.url} {misfit.stored} since version {since}, but"
        f" {misfit.given} in this read, which was loaded before; load the source again: a stream's"
        " checkpoint stays valid"
    )


def _since(
    handle: "Handle",
    schema: "StructType",
    loaded: Loaded | None,
    misfit: Misfit,
    *,
    is_table: bool,
) -> str | None:
    """Returns the version since which a column does not fit; None if it never did."""
    from clog.storage.commit.tip import try_read

    tip = handle.tip
    if not misfit.given or tip.head.log.schema is None or tip.head.log.schema.id == 0:
        return None

    def unfit(version: int) -> Misfit | None:
        commit = tip if version == tip.version else try_read(handle.store, version)
        try:
            if commit is not None:
                found, _ = _misfit(commit.head, schema, loaded, is_table=is_table)
                return found if found is not None and found.path == misfit.path else None
        except InvalidInputError:
            pass
        return None

    low, high = tip.head.oldest_readable, tip.version
    first = unfit(low)
    if first is not None and low == 0:
        return None
    if first == misfit:
        return f"{low} or earlier"
    # So it is at ``high`` and was not at ``low``.
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if unfit(middle) == misfit else (middle, high)
    return str(high)


def readable(
    handle: "Handle",
    manifest: "Manifest",
    schema: "StructType",
    loaded: Loaded | None,
    *,
    is_table: bool = False,
) -> "tuple[Manifest, TableColumns | None]":
    """Returns a manifest for a read of these columns, and the table they show, if any. Its objects
    are read by the log's newest schema, which may have fields that the manifest's lacks; or by the
    manifest's own, if the columns are from before the newest. Raises if they fit neither.
    """
    try:
        table = table_shown(handle, schema, loaded, is_table=is_table)
    except InvalidInputError:
        misfit, table = _misfit(manifest.head, schema, loaded, is_table=is_table)
        if misfit is None:
            return manifest, table
        raise
    log = replace(manifest.head.log, schema=handle.tip.head.log.schema)
    return replace(manifest, head=replace(manifest.head, log=log)), table


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
