"""Captures a MySQL database into logs: all tables as of one transaction of the source.

The logs, the cuts and the state after a crash are those of a PostgreSQL capture (`capturing.logs`,
L1 to L4); the difference is how the source is read (`engine`).

1. *Load.* If the home has no offset, the engine sends the existing rows, as of one moment. They are
   one group; each table's rows become visible in one commit. After a kill the load starts again.
2. *Follow.* Rows wait until the end of their transaction. When a batch ends between transactions,
   what waits is committed, the cut with the offset and the new part of the history: the next run
   starts there, and skips what tables have beyond it.
3. *Tables change.* The engine reports it in order. TRUNCATE and DROP become tombstones; a column
   that is added without a default, or dropped, evolves the log. A change of rows without a message
   stops the capture, and each later run, until all tables are reloaded: then the home forgets
   offset and history, and 1 begins, with a tombstone for each key that no longer exists.

A table's columns change with the first row that has the new ones, by that row's schema. The
position of a transaction is where it begins, which is known before its rows: a large transaction
is written before its end.

Comparing the logs with their source (`verify_capture_mysql`; V5 of `verifying`) differs in how
changes in the meantime are found: a cut is named, with its position in the binary log (E1); a
moment of the source is held, and the end of the binary log read (E2); the engine reads the log
between, whose keys are left out, and tables that were truncated or altered (E3).
"""

import dataclasses
import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clog.bridge.capturing.comparing import (
    Take,
    VerifiedCapture,
    VerifiedTable,
    Words,
    keys_of,
    verified,
)
from clog.bridge.capturing.logs import (
    ABOUT,
    FLUSH_BYTES,
    ID,
    SEED,
    Home,
    TableLog,
    no_home,
    other_database,
)
from clog.bridge.capturing.settings import Captured, CapturedTable, CaptureSettings, TableSettings
from clog.bridge.capturing.tables import (
    DROP,
    HASH,
    Binding,
    Changes,
    Choice,
    Column,
    SourceTable,
    TablePlan,
    hash_key,
    masked,
)
from clog.bridge.mysql.engine import (
    NAME,
    RELOAD,
    Event,
    Held,
    Server,
    Shape,
    end_of,
    file_of,
    kept_of,
    position_of,
    position_text,
    table_of,
    why_reload,
)
from clog.bridge.values import Fix, connect_column
from clog.storage import (
    Cut,
    InvalidInputError,
    Log,
    NotFoundError,
    SourceError,
    SourcePurgedError,
    SourceReplacedError,
)
from clog.storage.spi import Inside, dataclass, fitted, hash_keys, together

_HEARTBEAT: Final = f"__debezium-heartbeat.{NAME}"
_TRANSACTIONS: Final = f"{NAME}.transaction"
_OFFSET: Final = b"offset"
_SHAPES: Final = b"shapes"
_HISTORY: Final = b"history/"
_ROWS: Final = 8192
"""How many rows of a table become columns at a time."""
_IDLE_MS: Final = 20_000
_LOOK_MS: Final = 5000
_JSON: Final = "io.debezium.data.Json"


def capture_mysql(dsn: str, url: str, settings: CaptureSettings | None = None) -> Captured:
    """Captures tables of a MySQL database, each into a typed log at ``url/database.table`` with the
    table's primary key, and records in the log at ``url`` which of their versions show the same
    moment, like `capture`. Another run continues where the last one stopped. Returns the progress.

    Debezium's engine reads the server, in this process: extra ``capture-debezium``, and Java 17.

    Args:
        dsn: ``mysql://USER@HOST:PORT/DATABASE``; the password comes from ``MYSQL_PWD``.
        url: the home; the folder of the tables' logs.
        settings: which tables, how, and until when; by default all, followed.

    Raises:
        SourceError: the database is not what it was, or has data that a log cannot keep; the
            subclass says what happened.
        SourceUnavailableError: the database does not answer.
        TransactionFencedError: another capture of the logs took over.
        InvalidInputError: an argument is wrong, or a table cannot be captured.
        NotFoundError: no table matches.

    >>> shop = "mysql://me@localhost/shop"
    >>> settings = CaptureSettings(once=True, tables=["shop.*"])
    >>> capture_mysql(shop, "shop", settings).transactions  # doctest: +SKIP
    7
    """
    settings = settings or CaptureSettings()
    masks = dict(settings.masks)
    if wrong := [how for how in masks.values() if how not in (DROP, HASH)]:
        raise InvalidInputError(
            f"columns of MySQL can be masked by drop or hash, not by {wrong[0]!r:.40}"
        )
    if not isinstance(settings.reload, bool):
        raise InvalidInputError(
            "tables of MySQL are loaded again all together: give reload=True, not their names"
        )
    hash_key(masks.values())  # Raises now rather than after the id is claimed.
    with Server(dsn, settings.ids) as server:
        choice = replace(server.choice(settings.tables, settings.exclude), masks=masks)
        run = _Run(server, url.rstrip("/"), choice, settings)
        run.prepare(reload=settings.reload)
        run.follow(settings.should_stop, once=settings.once)
        return run.progress()


@dataclass(frozen=True, slots=True)
class Reader:
    """How rows of a table become columns: types, and functions that convert values, by name."""

    schema: pa.Schema
    fixes: Mapping[str, Fix]

    @property
    def key(self) -> list[str]:
        """The columns of the key."""
        return [field.name for field in self.schema if not field.nullable]

    def batch(self, what: str, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """Returns rows as columns."""
        columns = []
        for field in self.schema:
            fix = self.fixes.get(field.name)
            values = [row.get(field.name) for row in rows]
            try:
                if fix is not None:
                    values = [None if value is None else fix(value) for value in values]
                column, unfit = fitted(values, field.with_nullable(True))  # noqa: FBT003
                if unfit:
                    raise InvalidInputError(f"one {next(iter(unfit.values()))}")
                columns.append(column)
            except (ArithmeticError, TypeError, ValueError) as e:
                why = e if isinstance(e, InvalidInputError) else type(e).__name__
                raise SourceError(
                    f"column {field.name} of {what} has a value that cannot be stored: {why};"
                    f" leave the column out (--mask {what}.{field.name}=drop)"
                ) from e
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def reader_of(what: str, key: Any, row: Any, hashed: Collection[str]) -> Reader:
    """Returns the reader for the schemas of an `Event`; ``hashed`` columns are texts."""
    if key is None or row is None:
        raise SourceError(
            f"{what} has no primary key, so its log would have no key; leave it out (--exclude)"
        )
    keys = {field["field"] for field in key["fields"]}
    fields, fixes = [], {}
    for one in row["fields"]:
        name = one["field"]
        try:
            column = connect_column(one)
        except InvalidInputError as e:
            raise SourceError(
                f"column {name} of {what} has a type that a log does not have: {e}; leave it out"
                f" (--mask {what}.{name}=drop)"
            ) from e
        kind, fix = (pa.string(), str) if name in hashed else (column.kind, column.fix)
        fields.append(pa.field(name, kind, nullable=name not in keys))
        if fix is not None:
            fixes[name] = fix
    return Reader(pa.schema(fields), fixes)


def _hashed_of(what: str, masks: Mapping[str, str]) -> list[str]:
    """Returns the hashed columns of a table."""
    return sorted(
        column.removeprefix(f"{what}.")
        for column, how in masks.items()
        if how == HASH and column.startswith(f"{what}.")
    )


def _chosen(choice: Choice) -> dict[str, str]:
    """Returns the engine's settings for the tables and columns that it sends."""

    def patterns(given: Iterable[str]) -> str:
        return ",".join(re.escape(one).replace(r"\*", ".*").replace(r"\?", ".") for one in given)

    dropped = [column for column, how in choice.masks.items() if how == DROP]
    given = {
        "table.include.list": patterns(choice.tables),
        "table.exclude.list": patterns(choice.exclude) if not choice.tables else "",
        "column.exclude.list": patterns(dropped),
    }
    return {name: value for name, value in given.items() if value}


class _Run:
    """One run; a worker for the thread that starts it."""

    def __init__(
        self,
        server: Server,
        url: str,
        choice: Choice,
        settings: CaptureSettings,
    ) -> None:
        self._server = server
        self._url = url
        self._choice = choice
        self._settings = settings
        self._clock = settings.clock
        self._on_progress = settings.on_progress
        self._origin = server.origin()
        self._home = Home(url, self._origin, settings)
        self._tables: dict[str, TableLog] = {}
        self._readers: dict[str, Reader] = {}
        self._waiting: dict[str, list[tuple[Mapping[str, Any], bool, int]]] = {}
        self._loaded: dict[str, list[Words]] = {}
        self._counts: dict[str, int] = {}
        self._shapes: dict[str, Any] = {}
        self._is_loading = self._is_open = self._is_written = False
        self._began = self._position = self._reached = 0
        self._offset: str | None = None
        self._history = b""
        self._history_bytes = 0
        self._files: dict[int, int] = {}
        self._cut_ms = self._clock.monotonic_ms()
        self._ended = self._newest_ms = 0

    def prepare(self, *, reload: bool) -> None:
        """Claims the home and the tables' logs."""
        there = self._server.tables()
        selected = {name: has_key for name, has_key in there.items() if self._choice.has(name)}
        if not selected:
            raise NotFoundError(f"{self._server.address} has no table that was selected")
        if lacks := [name for name, has_key in selected.items() if not has_key]:
            raise InvalidInputError(
                f"{', '.join(lacks)} of {self._server.address} have no primary key, so their logs"
                " would have no key; leave them out (--exclude)"
            )
        home = self._home
        home.read()
        self._check_choice(home.kept.get(ABOUT), is_again=reload)
        home.begin()
        if reload:
            home.position = 0  # After a reset, the binary log has lower positions.
        self._is_loading = reload or _OFFSET not in home.kept
        history = b""
        if not self._is_loading:
            self._offset = home.kept[_OFFSET].decode()
            self._shapes = json.loads(home.kept[_SHAPES])
            history = b"".join(home.kept[key] for key in self._chapters())
        self._history_bytes = len(history)
        self._position = self._reached = home.position
        for binding in home.bindings.values():
            if self._choice.has(binding.what):
                log = self._settings.opened(f"{self._url}/{binding.folder}")
                keys = {name for name, *_, in_key in binding.columns if in_key}
                schema = _columns_of(log, [column[0] for column in binding.columns], keys)
                self._open(binding.what, schema)
        self._history = history
        self._look()

    def _about(self) -> bytes:
        choice = self._choice
        about = {"tables": choice.tables, "exclude": choice.exclude, "masks": dict(choice.masks)}
        return json.dumps(about, sort_keys=True).encode()

    def _check_choice(self, before: bytes | None, *, is_again: bool) -> None:
        if before is None or before == self._about():
            return
        known = json.loads(before)
        if known["masks"] != self._choice.masks:
            raise InvalidInputError(
                f"{self._home.log.url} is captured with masks {known['masks']}, but"
                f" {dict(self._choice.masks)} was requested, so its logs would have both; capture"
                " into a new URL"
            )
        if not is_again:
            raise InvalidInputError(
                f"{self._home.log.url} is captured with --tables {known['tables']} and --exclude"
                f" {known['exclude']}: the earlier contents of other tables are unknown; {RELOAD}"
            )

    def _chapters(self) -> list[bytes]:
        return sorted(key for key in self._home.kept if key.startswith(_HISTORY))

    def follow(self, should_stop: Callable[[], bool], *, once: bool) -> None:
        """Takes the engine's events up to the current end (``once``), or until it is stopped."""
        until = end_of(self._files) if once else None

        def has_all() -> bool:
            lacks = self._is_loading or self._is_open
            return until is not None and not lacks and self._reached >= until

        if self._has_cut(has_all):
            return
        self._server.start(self._offset, self._history, only=_chosen(self._choice))
        looked_ms = self._clock.monotonic_ms()
        for batch in self._server.batches(lambda: should_stop() or self._has_cut(has_all)):
            for event in batch:
                self._take(event)
            if not (self._is_loading or self._is_open):
                self._commit(even_little=has_all())
            now_ms = self._clock.monotonic_ms()
            if looked_ms + _LOOK_MS <= now_ms:
                looked_ms = now_ms
                self._look()
                self._on_progress(self.progress())
        self._look()
        self._on_progress(self.progress())

    def _has_cut(self, has_all: Callable[[], bool]) -> bool:
        return has_all() and self._home.position >= self._position

    def _look(self) -> None:
        """Reads where the server's binary log ends.

        Raises:
            SourcePurgedError: the binary log no longer has what the logs lack.
        """
        self._files = self._server.files()
        at = self._home.position
        if (
            at
            and not self._is_loading
            and (file_of(at) not in self._files or at > end_of(self._files) + 1)
        ):
            raise SourcePurgedError(
                f"{self._server.address} no longer has its binary log from {position_text(at)}"
                f" on, up to which the logs have it; {RELOAD}"
            )

    def _take(self, event: Event) -> None:
        """Processes an event."""
        value = event.value
        if event.topic == _TRANSACTIONS:
            assert event.offset is not None, "only rows have none"
            if value["status"] == "BEGIN":
                self._is_open = True
                self._began = position_of(json.loads(event.offset))
                return
            self._is_open = False
            self._move(self._began + 1, event.offset)
            self._ended += 1
            self._newest_ms = max(self._newest_ms, int(value["ts_ms"]))
            if self._is_written:
                self._commit()
        elif event.topic == _HEARTBEAT:
            assert event.offset is not None, "only rows have none"
            offset = json.loads(event.offset)
            if "snapshot" not in offset and not self._is_open:
                self._reach(position_of(offset), event.offset)
        elif event.topic == NAME:
            self._take_change(event)
        elif value["op"] == "t":
            self._commit()
            self._empty(event.topic.removeprefix(f"{NAME}."), value["source"])
        else:
            self._take_row(event)

    def _move(self, position: int, offset: str | None) -> None:
        if position > self._position:
            self._position, self._offset = position, offset or self._offset

    def _reach(self, at: int, offset: str) -> None:
        """Processes an offset between transactions."""
        if self._is_loading:
            self._end_load(at, offset)
        self._reached = max(self._reached, at)
        self._move(at, offset)

    def _take_row(self, event: Event) -> None:
        what, value = event.topic.removeprefix(f"{NAME}."), event.value
        if value["op"] == "r":
            self._began = position_of(value["source"])
        if what not in self._readers:
            self._begin_table(what, event.key, event.row)
        is_deleted = value["op"] == "d"
        if self._is_loading or self._began >= self._tables[what].position:
            rows = self._waiting.setdefault(what, [])
            row = value["before" if is_deleted else "after"]
            rows.append((row, is_deleted, int(value["source"]["ts_us"])))
            if len(rows) >= _ROWS:
                self._pass_on(what)
                self._write_much()
        if event.offset is not None and self._is_loading:
            self._reach(self._began + 1, event.offset)

    def _pass_on(self, what: str) -> None:
        """Passes waiting rows to their log."""
        rows = self._waiting.pop(what, [])
        if not rows:
            return
        one, count = self._tables[what], len(rows)
        batch = self._readers[what].batch(what, [row for row, _, _ in rows])
        times_us = np.fromiter((time for _, _, time in rows), np.int64, count)
        if self._is_loading:
            keys = one.take_rows(batch, int(times_us[-1]))
            self._counts[what] = self._counts.get(what, 0) + count
            if what in self._loaded:
                self._loaded[what].append(hash_keys(keys, seed=SEED))
            return
        deleted = np.fromiter((gone for _, gone, _ in rows), bool, count)
        one.take(Changes(one, batch, deleted, {}, None, np.zeros(count, np.int32)), times_us)

    def _write_much(self) -> None:
        """Writes what waits if it is large; it becomes visible at the end of its transaction."""
        large = [one for one in self._tables.values() if one.pending_bytes]
        if sum(one.pending_bytes for one in large) > FLUSH_BYTES:
            self._is_written = True
            together((one.log, one.flush) for one in large)

    def _end_load(self, at: int, offset: str) -> None:
        """Makes the loaded rows visible, and deletes all others."""
        position = max(at, self._began + 1)
        for what in list(self._waiting):
            self._pass_on(what)
        for what, loaded in self._loaded.items():
            one = self._tables[what]
            one.delete_others(loaded, self._clock.now_us())
        self._is_loading, self._loaded = False, {}
        self._position, self._offset = position, offset
        together((one.log, partial(one.commit, position)) for one in self._tables.values())
        self._commit(even_little=True)

    def _commit(self, *, even_little: bool = False) -> None:
        """Commits what waits (L2), and names the cut (L3)."""
        for what in list(self._waiting):
            self._pass_on(what)
        home, position = self._home, self._position
        tables = list(self._tables.values())
        started = [one for one in tables if one.is_begun]
        now_ms = self._clock.monotonic_ms()
        if not (started or even_little or self._cut_ms + _IDLE_MS <= now_ms):
            return
        together((one.log, partial(one.commit, position)) for one in started)
        self._is_written, self._cut_ms = False, now_ms
        if position > home.position and all(one.position <= position for one in tables):
            home.cut(position, tables, self._records(position))
            self._on_progress(self.progress())

    def _records(self, position: int) -> dict[bytes, bytes | None]:
        """Returns the records that the home keeps with a cut."""
        assert self._offset is not None, "there is a position"
        history = self._server.history()
        new: dict[bytes, bytes | None] = {
            ABOUT: self._about(),
            _OFFSET: self._offset.encode(),
            _SHAPES: json.dumps(self._shapes, sort_keys=True).encode(),
        }
        if self._history_bytes == 0:  # A load starts a new history.
            new |= dict.fromkeys(self._chapters())
        if len(history) > self._history_bytes:
            new[b"%s%018d" % (_HISTORY, position)] = history[self._history_bytes :]
            self._history_bytes = len(history)
        for one in self._tables.values():
            new[str(one.table.oid).encode()] = one.table.binding(one.table.folder)
        kept = self._home.kept
        return {key: text for key, text in new.items() if kept.get(key) != text}

    def _take_change(self, event: Event) -> None:
        """Processes a change of tables."""
        source = event.value["source"]
        at, is_loading = position_of(source), source["snapshot"] != "false"
        if not is_loading:
            self._commit()
        for change in event.value["tableChanges"] or ():
            what = table_of(change)
            if not self._choice.has(what):
                continue
            shape, before = change["table"], self._shapes.get(what)
            if not is_loading and change["type"] == "DROP":
                self._empty(what, source)
            elif not is_loading and at >= self._home.position:
                why = why_reload(before, shape, event.value["ddl"] or "", change)
                if why is not None:
                    raise SourceError(f"{what} of {self._server.address}: {why}; {RELOAD}")
            self._readers.pop(what, None)
            self._shapes[what] = kept_of(shape, before) if shape else None
            known = self._server.shape(what) if change["type"] == "CREATE" else None
            if known is not None and known.key is not None:
                self._begin_table(what, known.key, known.row)
        if not is_loading:
            self._move(at + 1, None)

    def _empty(self, what: str, source: Mapping[str, Any]) -> None:
        """Takes a tombstone for each key of a table."""
        at = position_of(source)
        one = self._tables.get(what)
        if one is not None and at >= one.position:
            self._began = at
            one.truncate(int(source["ts_us"]))
        self._move(at + 1, None)
        self._commit()

    def _begin_table(self, what: str, key: Any, row: Any) -> None:
        """Opens the log of a table that has this shape from here on."""
        reader = reader_of(what, key, row, _hashed_of(what, self._choice.masks))
        self._open(what, reader.schema)
        self._readers[what] = reader

    def _open(self, what: str, schema: pa.Schema) -> None:
        before = self._tables.get(what)
        if before is not None and before.plan.schema == schema:
            return
        database, _, name = what.partition(".")
        table = SourceTable(
            *(int.from_bytes(sha256(what.encode()).digest()[:7], "big"), database, name, "key"),
            tuple(
                Column(one.name, i, 0, -1, not_null=not one.nullable, in_key=not one.nullable)
                for i, one in enumerate(schema, 1)
            ),
            *(frozenset(), frozenset(), {}),
            masks=dict.fromkeys(_hashed_of(what, self._choice.masks), HASH),
        )
        if before is not None and table.key != before.table.key:
            raise SourceError(
                f"the key of {what} is now {table.key}, but that of its log cannot change;"
                " capture the database into a new URL, or leave the table out (--exclude)"
            )
        url = f"{self._url}/{table.folder}"
        self._home.check()
        one = TableLog(table, TablePlan(what, schema, ()), url, self._origin, self._settings)
        one.begin(self._home.shown)
        if one.outdated and not self._is_loading:
            raise SourceReplacedError(
                f"{url} {one.outdated} that the newest cut had: load all tables again, into the"
                " same logs (--reload all)"
            )
        one.evolve()
        one.rows = 0 if before is None else before.rows
        self._tables[what] = one
        if self._is_loading and any(one.log.end_offsets().values()):
            self._loaded.setdefault(what, [])

    def progress(self) -> Captured:
        """Returns the progress."""
        at = self._home.position
        behind = sum(size for number, size in self._files.items() if number >= file_of(at))
        behind = max(0, behind - (at - position_of({"file": f".{file_of(at)}", "pos": 0})))
        lag_ms = max(0, self._clock.now_ms() - self._newest_ms)
        return Captured(
            url=self._home.log.url,
            tables={
                what: CapturedTable(
                    *(one.log.url, Inside(one.log).version, self._counts.get(what, 0)),
                    is_loading=self._is_loading,
                    rows=one.rows,
                )
                for what, one in self._tables.items()
            },
            position=position_text(at) if at else None,
            lag_bytes=behind if at else 0,
            lag_ms=lag_ms if at and behind and self._newest_ms else 0,
            transactions=self._ended,
        )


def _columns_of(log: Log, names: Sequence[str], keys: set[str]) -> pa.Schema:
    """Returns the columns of a table with their types in its log."""
    key, value = log.schema.field("key").type, log.schema.field("value").type
    there = {field.name: field.type for field in value}
    if pa.types.is_struct(key):
        there |= {field.name: field.type for field in key}
    else:
        there |= dict.fromkeys(keys, key)
    return pa.schema([pa.field(name, there[name], nullable=name not in keys) for name in names])


def verify_capture_mysql(
    dsn: str, url: str, settings: TableSettings | None = None
) -> VerifiedCapture:
    """Compares captured MySQL tables with their source, at one moment of it and one cut of the
    logs, like `verify_capture`.

    Args:
        dsn: see `capture_mysql`.
        url: the home.
        settings: which tables; by default all that are captured.

    Raises:
        InvalidInputError: there is no capture at the URL.
        SourceReplacedError: the capture is of another database.
        SourcePurgedError: the server no longer has the changes since the cut.
        SourceUnavailableError: the server does not answer.
        NotFoundError: no table matches, or the logs have no cut yet.

    >>> verify_capture_mysql("mysql://me@localhost/shop", "shop").is_equal  # doctest: +SKIP
    True
    """
    access = settings or TableSettings()
    home = access.opened(url)
    with Server(dsn, access.ids) as server:
        if not (sources := home.positions(ID)):
            raise no_home(home.url)
        if (origin := server.origin().name) not in sources:
            raise other_database(home.url, sources, origin)
        choice = server.choice(access.tables, access.exclude)
        with access.cut(home.url, f"verify-{access.ids.new_id()}") as cut:  # E1
            known = _Known.read(home, cut)
            with server.held() as held:  # E2
                until = end_of(server.files())
                server.start(known.offset, known.history, only=_chosen(known.choice))
                changed = _Changed(server, known, choice)
                changed.read(until)  # E3
                found = []
                for one in changed.compared():
                    access.on_progress(one.what)
                    log = access.opened(one.url)
                    found.append(one.verified(held, log, cut, known.hash_key))
    return VerifiedCapture(home.url, position_text(until), tuple(found), changed.skipped)


@dataclass(frozen=True, slots=True)
class _Known:
    """The home's description of the capture at a cut."""

    url: str
    choice: Choice
    offset: str
    history: bytes
    bindings: Mapping[str, Binding]
    hash_key: bytes = dataclasses.field(repr=False)

    @classmethod
    def read(cls, home: Log, cut: Cut) -> "_Known":
        rows = home.table(at=cut).to_arrow().to_pylist()
        kept = {row["key"]: row["value"] for row in rows}
        about = json.loads(kept[ABOUT])
        bindings = [Binding.read(text) for key, text in kept.items() if key.isdigit()]
        return cls(
            home.url,
            Choice(**about),
            kept[_OFFSET].decode(),
            b"".join(kept[key] for key in sorted(kept) if key.startswith(_HISTORY)),
            {binding.what: binding for binding in bindings},
            hash_key(about["masks"].values()),
        )


@dataclass(frozen=True, slots=True)
class _Compared:
    """A table to compare; ``changed``: keys that are left out."""

    what: str
    url: str
    shape: Shape
    reader: Reader
    hashed: Sequence[str]
    changed: set[bytes]

    def verified(self, held: Held, log: Log, cut: Cut, key: bytes) -> VerifiedTable:
        """Does V5."""
        json_columns = [
            one["field"] for one in self.shape.row["fields"] if one.get("name") == _JSON
        ]
        schema = self.reader.schema
        for name in {*json_columns} & {*self.hashed}:  # It is unknown which text was hashed.
            schema = schema.remove(schema.get_field_index(name))

        def source(take: Take) -> None:
            for rows in held.rows(self.shape):
                take(masked(self.reader.batch(self.what, rows), self.hashed, key))

        return verified(
            *(self.what, (log, cut), (schema, self.reader.key), source),
            changed=self.changed,
            as_compared=lambda rows: _with_one_text(rows, json_columns),
        )


class _Changed:
    """The changes since a cut.

    Attributes:
        skipped: tables that are not compared, and why.
    """

    def __init__(self, server: Server, known: _Known, choice: Choice) -> None:
        self.skipped: dict[str, str] = {}
        self._reached = 0
        self._server = server
        self._known = known
        self._selected = {
            what: binding for what, binding in known.bindings.items() if choice.has(what)
        }
        self._waiting: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        self._keys: dict[str, set[bytes]] = defaultdict(set)
        self._readers: dict[str, Reader] = {}

    def read(self, until: int) -> None:
        """Reads the binary log up to a position."""
        for batch in self._server.batches(lambda: self._reached >= until):
            for event in batch:
                if event.topic == _HEARTBEAT:
                    assert event.offset is not None, "only rows have none"
                    self._reached = max(self._reached, position_of(json.loads(event.offset)))
                elif event.topic != _TRANSACTIONS:
                    self._take(event)
        for what in list(self._waiting):
            self._pass_on(what)

    def _take(self, event: Event) -> None:
        value = event.value
        if event.topic == NAME:
            for change in value["tableChanges"] or ():
                self._leave_out(
                    table_of(change), "it was altered, dropped or created in the meantime"
                )
            return
        what = event.topic.removeprefix(f"{NAME}.")
        if value["op"] == "t":
            self._leave_out(what, "it was emptied in the meantime")
        elif what in self._selected and what not in self.skipped:
            if what not in self._readers:
                self._readers[what] = self._reader(what, event.key, event.row)
            self._waiting[what].append(value["after"] or value["before"])
            if len(self._waiting[what]) >= _ROWS:
                self._pass_on(what)

    def _leave_out(self, what: str, why: str) -> None:
        if what in self._selected:
            self.skipped[what] = why

    def _reader(self, what: str, key: Any, row: Any) -> Reader:
        return reader_of(what, key, row, _hashed_of(what, self._known.choice.masks))

    def _pass_on(self, what: str) -> None:
        reader, masks = self._readers[what], self._known.choice.masks
        fields = pa.schema([reader.schema.field(name) for name in reader.key])
        rows = Reader(fields, reader.fixes).batch(what, self._waiting.pop(what))
        hashed = [name for name in _hashed_of(what, masks) if name in reader.key]
        keys = keys_of(masked(rows, hashed, self._known.hash_key), reader.key)
        self._keys[what].update(keys.to_pylist())

    def compared(self) -> list[_Compared]:
        """Returns the tables that can be compared."""
        found, masks = [], self._known.choice.masks
        for what, binding in sorted(self._selected.items()):
            shape = self._server.shape(what)
            if shape is None:
                self.skipped.setdefault(what, "the source no longer has it")
            if shape is None or what in self.skipped:
                continue
            reader = self._reader(what, shape.key, shape.row)
            url = f"{self._known.url}/{binding.folder}"
            found.append(
                _Compared(*(what, url, shape, reader, _hashed_of(what, masks), self._keys[what]))
            )
        return found


def _with_one_text(rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Returns rows in which JSON with the same meaning has the same text."""
    for name in names:
        if (at := rows.schema.get_field_index(name)) >= 0:
            texts = [
                None if text is None else json.dumps(json.loads(text), sort_keys=True)
                for text in rows.column(at).to_pylist()
            ]
            rows = rows.set_column(at, rows.schema.field(at), pa.array(texts, pa.string()))
    return rows
