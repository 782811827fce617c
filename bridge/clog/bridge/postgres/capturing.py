"""Captures a PostgreSQL database into logs: all tables as of one transaction of the source.

1. *Prepare.* The home's id is claimed; the catalogue is read, checked and published. Then the slot
   is made, after the publication, because decoding uses the catalogue as of the decoded change. The
   tables' logs are created, and their ids claimed (`logs`, L1).
2. *Load.* Tables without a position, and tables whose rows may have changed without a message, are
   loaded from one exported snapshot, several at a time. In the first run it is the slot's snapshot;
   later it is that of a temporary slot, so these tables have their own position, and changes below
   it are skipped.
3. *Follow* the stream (`following`).
4. The stream's description of a table, and every few seconds the catalogue, are compared with the
   known one; before each cut the catalogue's stamp is, so that no cut lacks changes that had no
   message; and so is the stamp of a table that was loaded, while the load's lock still holds off
   any change. If anything differs, what was handed over is committed, and the run restarts at 1.

``once`` ends when everything is committed that the source had written at the start of 3. Wrong
arguments, or logs of another database, are refused before an id is claimed: a capture that is
running continues.
"""

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from clog.bridge.capturing.logs import ABOUT, FLUSH_BYTES, SEED, Home, TableLog
from clog.bridge.capturing.settings import Captured, CapturedTable, PostgresSettings
from clog.bridge.capturing.tables import (
    HASH,
    MASKED,
    TEXT,
    ChangedError,
    Choice,
    SourceTable,
    TablePlan,
    hash_key,
    quoted,
)
from clog.bridge.postgres import catalogue
from clog.bridge.postgres.catalogue import Publications
from clog.bridge.postgres.following import Followed, Following
from clog.bridge.postgres.pgoutput import OPTIONS
from clog.bridge.postgres.source import (
    RELOAD,
    DeniedError,
    Exported,
    Identity,
    LockedError,
    Queries,
    Source,
    Stream,
    load,
    lsn_text,
)
from clog.bridge.postgres.types import plan_of
from clog.storage import (
    InvalidInputError,
    SourceError,
    SourcePurgedError,
    SourceReplacedError,
    SourceUnavailableError,
)
from clog.storage.spi import Inside, hash_keys, together

LOADERS: Final = 4
"""How many tables are loaded at a time."""
_ASK_MS: Final = 200
_LOCK_MS: Final = 500
"""How long a read of the catalogue waits for the lock on a table."""
_PATIENCE_MS: Final = 10_000
"""After this long a warning names the transactions waited for, and again every `_STALLED_MS`."""
_STALLED_MS: Final = 600_000
_WARN_BYTES: Final = 1 << 30
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def capture(dsn: str, url: str, settings: PostgresSettings | None = None) -> Captured:
    """Captures tables of a PostgreSQL database, each into a typed log at ``url/schema.table``, and
    records in the log at ``url`` which of their versions show the same moment: `snapshot` of
    ``url`` contains each transaction of the source entirely or not at all. Another run continues
    where the last one stopped. Returns the progress.

    Args:
        dsn: ``postgres://USER@HOST:PORT/DATABASE``; password in ``PGPASSWORD`` or ``PGPASSFILE``.
        url: the home; the folder of the tables' logs.
        settings: which tables, how, and until when; by default all, followed.

    Raises:
        SourceError: the database is not what it was, or has data that a log cannot keep; the
            subclass says what happened.
        SourceUnavailableError: the database does not answer.
        TransactionFencedError: another capture of the logs took over.
        InvalidInputError: an argument is wrong, or a table cannot be captured.
        NotFoundError: no table matches.

    >>> once = PostgresSettings(once=True)
    >>> capture("postgres://me@localhost/shop", "shop", once).position  # doctest: +SKIP
    '0/1A2B3C8'
    """
    run = _Run(Source(dsn), url.rstrip("/"), settings or PostgresSettings())
    run.to_the_end()
    return run.progress()


class _StoppedError(Exception):
    """The run is stopped while it loads."""


class _Run:
    """One run; a worker for the thread that starts it."""

    def __init__(self, source: Source, url: str, settings: PostgresSettings) -> None:
        self.source = source
        self._url = url
        masks = dict(settings.masks)
        self._choice = Choice(
            tuple(settings.tables), tuple(settings.exclude), masks, settings.events
        )
        hash_key(masks.values())  # Raises now rather than after the id is claimed.
        self._settings = settings
        self.clock = settings.clock
        reload = settings.reload
        self._reload = reload if isinstance(reload, bool) else tuple(reload)
        self.on_progress = settings.on_progress
        self.should_stop = settings.should_stop
        self.home: Home | None = None
        self.tables: dict[int, TableLog] = {}
        self._published = Publications(())
        self._loaded: dict[int, int] = {}
        self._loading: set[int] = set()
        self._loaders: list[Any] = []
        self._stamps: dict[int, str] = {}
        self._doubted: set[int] = set()
        self._skipped: set[int] = set()
        self.read_lsn = 0
        self.wal_lsn = self._slot_bytes = self.transactions = 0
        self._newest_us = 0

    def to_the_end(self) -> None:
        """Captures up to the current end (``once``), or until it is stopped."""
        try:
            while True:
                try:
                    slot, start = self._prepare()
                    self._follow(slot, start)
                except ChangedError as e:
                    _log.info("%s: %s; checking its tables again", self.source.address, e)
                    self._doubted.update(e.doubted)
                    continue
                except SourceUnavailableError:
                    if self.home is not None:
                        self.home.check()  # A capture that takes over also ends the stream.
                    raise
                break
        except _StoppedError:
            pass
        self.on_progress(self.progress())

    def progress(self) -> Captured:
        """Returns the progress."""
        home = self.home
        assert home is not None, "it is prepared for the first time"
        now_ms, newest_ms = self.clock.now_ms(), self._newest_us // 1000
        behind = max(0, self.wal_lsn - home.position) if home.position else 0
        return Captured(
            url=home.log.url,
            tables={one.table.what: self._table_progress(one) for one in self.tables.values()},
            position=lsn_text(home.position) if home.position else None,
            lag_bytes=behind,
            lag_ms=max(0, now_ms - newest_ms) if behind and newest_ms else 0,
            slot_bytes=self._slot_bytes,
            transactions=self.transactions,
            events=[one.table.what for one in self.tables.values() if not one.table.key],
            filters=self._published.filters,
        )

    def _table_progress(self, one: TableLog) -> CapturedTable:
        oid = one.table.oid
        return CapturedTable(
            url=one.log.url,
            version=Inside(one.log).version,
            loaded=self._loaded.get(oid, 0),
            expected=one.table.rows,
            is_loading=oid in self._loading,
            rows=one.rows,
            left=one.table.left,
            notes=one.plan.notes,
        )

    def _prepare(self) -> tuple[str, int]:
        """Does 1 and 2; returns the slot and the position from which to read it."""
        identity = self.source.identity()
        home = self.home = self.home or self._begun_home(identity)
        slot = f"clog_{home.log.id[:24]}"
        with self.source.connected() as ask:
            if self._reload is True:
                ask.drop_slot(slot)
            else:
                self._check_history(ask, home, identity, slot)
            tables = self._catalogued(ask, home, slot)
            plans = [_plan(ask, table) for table in tables]
            reasons = self._due(home, tables)
            for table in tables:
                if table.oid in reasons:
                    _log.warning("%s is loaded again: %s", table.what, reasons[table.oid])
            self._open(tables, plans, identity)
            is_new = ask.slot(slot) is None
            if is_new and not self._reload and any(t.position for t in self.tables.values()):
                raise self.source.lost(slot, "does not exist")
            exported = self._new_slot(slot) if is_new else None
            if exported is not None:  # After a full reload, positions may be lower.
                home.position = min(home.position, exported.lsn - 1)
            stale = {oid for oid, one in self.tables.items() if self._is_stale(home, one)}
            due = stale | reasons.keys()
            outdated = [one for one in self.tables.values() if one.outdated]
            reasons |= {one.table.oid: f"its log {one.outdated}" for one in outdated}
            self._check_events({oid: reasons.get(oid, "its log was left behind") for oid in due})
            for one in outdated:
                _log.warning("%s %s; it is loaded again", one.log.url, one.outdated)
                one.unload()
            if outdated or not home.position:  # Such a log is no member until it is loaded.
                home.mark_loading([one for one in self.tables.values() if not one.outdated])
            about = self._published
            home.keep(
                [table for table in tables if table.oid not in home.bindings],
                slot=slot,
                publications=about.names,
                own=self._settings.publication is None,
                filters=about.filters,
            )
            if due:
                exported = exported or self._new_slot(f"{slot}_load", temporary=True)
                self._load([self.tables[oid] for oid in due], exported)
            elif exported is not None:
                exported.close()
            for one in self.tables.values():
                one.evolve()
            home.keep([table for table in tables if table.oid in due])
            home.keep_later([table for table in tables if table.oid not in due], self.read_lsn)
            self._doubted.clear()
            found = ask.slot(slot)
            assert found is not None, "it exists or was created"
            self._reload = False
            return slot, home.position if not is_new and home.position else found.confirmed_lsn

    def _catalogued(self, ask: Queries, home: Home, slot: str) -> list[SourceTable]:
        """Returns the tables as published, and notes the catalogue's stamp."""
        tables = self._read(ask, home)
        if self._settings.publication is None:
            self._due(home, tables)
            publish = partial(catalogue.publish, ask, slot, tables)
            try:
                self._published = self._patiently(ask.connection, publish)
            except DeniedError as e:
                raise DeniedError(
                    f"{e}: to publish tables, the capturing user must own them and have CREATE on"
                    " the database; or let their owner CREATE PUBLICATION … FOR TABLE …, and give"
                    " its name (--publication)"
                ) from e
        else:
            self._published = Publications((self._settings.publication,))
        oids = {table.oid for table in tables}
        self.read_lsn = ask.wal_lsn()
        self._stamps = catalogue.stamps(ask, self._published.names, oids)
        there = [table for table in self._read(ask, home) if table.oid in oids]
        if self._settings.publication is None:
            return catalogue.numbered(ask, self._published.names, there)
        self._published, there = catalogue.published(
            ask, self.source, self._settings.publication, there
        )
        return there

    def _begun_home(self, identity: Identity) -> Home:
        """Returns the home, its id claimed only after all that could be refused was checked."""
        home = Home(self._url, identity, self._settings)
        home.read()
        about = json.loads(home.kept.get(ABOUT, b"{}"))
        before = None if about.get("own", True) else about["publications"][0]
        if about and self._reload is not True and before != self._settings.publication:
            raise InvalidInputError(
                f"{home.log.url} is captured by {_named(before)}, but"
                f" {_named(self._settings.publication)} was requested: give --publication as"
                " before, or load all tables again (--reload all)"
            )
        with self.source.connected() as ask:
            self._due(home, self._read(ask, home))
        home.begin()
        return home

    def _check_history(self, ask: Queries, home: Home, identity: Identity, slot: str) -> None:
        """Raises if the source no longer has what follows the home's position."""
        if home.timeline is not None:
            self.source.check_timeline(home.timeline, identity, home.position)
        found = ask.slot(slot)
        if found is None:
            if home.position:
                raise self.source.lost(slot, "does not exist")
            return
        if found.wal_status == "lost":
            raise self.source.lost(
                slot, "lost changes that it had to keep (max_slot_wal_keep_size)"
            )
        if home.position and found.confirmed_lsn > home.position:
            raise self.source.lost(
                slot,
                f"was confirmed up to {lsn_text(found.confirmed_lsn)}, and the logs have it up to"
                f" {lsn_text(home.position)}: another process read it, or {home.log.url} was"
                " restored from an older copy",
            )
        ask.free_slot(slot)  # Its reader is fenced by now.

    def _is_asked(self, table: SourceTable) -> bool:
        """Returns whether this table is to be loaded again by request."""
        return self._reload if isinstance(self._reload, bool) else table.what in self._reload

    def _due(self, home: Home, tables: Sequence[SourceTable]) -> dict[int, str]:
        """Returns why tables are reloaded, by oid; InvalidInputError: one cannot be captured."""
        due = {}
        names = [] if isinstance(self._reload, bool) else self._reload
        if unknown := sorted(set(names) - {table.what for table in tables}):
            raise InvalidInputError(
                f"--reload names tables that {self.source.address} does not have, or that are not"
                f" captured: {', '.join(unknown)}"
            )
        for table in tables:
            asked = self._is_asked(table)
            binding = home.bindings.get(table.oid)
            if binding is None:
                if asked:
                    due[table.oid] = "it was requested"
                continue
            if dict(binding.masks) != dict(table.masks):
                raise InvalidInputError(
                    f"{table.what} is captured with masks {dict(binding.masks)}, but"
                    f" {dict(table.masks)} was requested, so its log would have both; capture"
                    " into a new URL"
                )
            if masked := [c[0] for c in binding.columns if table.left.get(c[0]) == MASKED]:
                raise InvalidInputError(
                    f"the log of {table.what} already has {masked}, which are now to be dropped,"
                    " but its records keep them; capture into a new URL"
                )
            if column := binding.unmasked(table):
                raise InvalidInputError(
                    f"{table.what}.{column} may be one that a mask hid under another name, and"
                    f" would be captured as it is: leave it out (--mask {table.what}.{column}=drop)"
                    ", or capture into a new URL"
                )
            why = "it was requested" if asked else binding.why_reload(table)
            if why is None and table.oid in self._doubted:
                why = "the stream has rows of it in another shape"
            if why is not None:
                due[table.oid] = why
        return due

    def _check_events(self, due: Mapping[int, str]) -> None:
        """Raises if a load that nobody asked for would append events once more."""
        for oid, why in due.items():
            one = self.tables[oid]
            what = one.table.what
            if one.position and not (one.table.key or self._is_asked(one.table)):
                raise SourceError(
                    f"{what} is a table of events, of which the log may lack some: {why}; only its"
                    " rows of now could be loaded, and the log would have those twice that it has:"
                    f" accept this with --reload {what}, leave the table out (--exclude {what}), or"
                    " capture it into a new URL"
                )

    @staticmethod
    def _is_stale(home: Home, one: TableLog) -> bool:
        """Returns whether a table must be loaded: it never was, or was left out for a time, or its
        log is outdated.
        """
        left_out = one.position < home.position and one.log.id not in home.members
        return not one.position or left_out or bool(one.outdated)

    def _open(
        self, tables: Sequence[SourceTable], plans: Sequence[TablePlan], identity: Identity
    ) -> None:
        """Opens the tables' logs, and claims their ids (L1)."""
        before, home = self.tables, self.home
        assert home is not None, "it is new"
        bound = {oid: binding.folder for oid, binding in home.bindings.items()}
        folders = {table.oid: bound.get(table.oid, table.folder) for table in tables}
        owners: dict[str, SourceTable] = {}
        for table in sorted(tables, key=lambda table: table.oid not in bound):
            other = owners.setdefault(folders[table.oid], table)
            if other is not table:
                raise SourceReplacedError(
                    f"{self._url}/{table.folder} is the log of {other.what}, which had the name"
                    f" {table.what} before; leave one of them out (--exclude {other.what}, or"
                    f" --exclude {table.what}); without {other.what}, --reload {table.what} loads"
                    " the new table into that log"
                )

        if before:
            home.check()

        def opened(table: SourceTable, plan: TablePlan) -> TableLog:
            known = before.get(table.oid)
            if known is not None and known.take_on(table, plan):
                return known
            url = f"{self._url}/{folders[table.oid]}"
            made = TableLog(table, plan, url, identity, self._settings)
            if known is not None:
                made.rows = known.rows
            made.begin(home.shown, is_taken_over=self._is_asked(table))
            return made

        pairs = zip(tables, plans, strict=True)
        made = together((home.log, partial(opened, *pair)) for pair in pairs)
        self.tables = {one.table.oid: one for one in made}

    def _new_slot(self, name: str, *, temporary: bool = False) -> Exported:
        """Makes a slot; this takes until all transactions that are open have ended."""
        connection = self.source.connect(replication=True)
        make = partial(self.source.make_slot, connection, name, temporary=temporary)
        return self._patiently(connection, make)

    def _patiently(self, connection: Any, call: Callable[[], _T]) -> _T:
        """Returns the result of a call that other transactions may block for a long time."""
        warn_ms = self.clock.monotonic_ms() + _PATIENCE_MS
        with ThreadPoolExecutor(1, "clog-capture-wait") as pool:
            made = pool.submit(call)
            while not made.done():
                self.clock.sleep_ms(_ASK_MS // 10)
                self.on_progress(self.progress())
                if self.should_stop():
                    self.source.cancel(connection)
                if warn_ms < self.clock.monotonic_ms():
                    warn_ms += _STALLED_MS
                    with self.source.connected() as ask:
                        holders = ", ".join(ask.open_transactions())
                    _log.warning(
                        "%s waits for open transactions to end: %s",
                        *(self.source.address, holders or "none by now"),
                    )
        try:
            return made.result()
        except (SourceError, SourceUnavailableError):
            if self.should_stop():
                raise _StoppedError from None
            raise

    def _load(self, due: Sequence[TableLog], exported: Exported) -> None:
        """Does 2."""
        queue: SimpleQueue[TableLog] = SimpleQueue()
        for one in sorted(due, key=lambda one: -one.table.pages):
            queue.put(one)
        self._loading = {one.table.oid for one in due}
        with closing(exported), ThreadPoolExecutor(LOADERS, "clog-capture-load") as pool:
            count = min(LOADERS, len(due))
            futures = [pool.submit(self._load_some, queue, exported) for _ in range(count)]
            while not all(future.done() for future in futures):
                self.clock.sleep_ms(_ASK_MS)
                self.on_progress(self.progress())
                if self.should_stop():
                    for connection in list(self._loaders):
                        self.source.cancel(connection)
            try:
                for future in futures:
                    future.result()
            except SourceError:
                with self.source.connected() as ask:
                    self._check_stamps(ask, self.tables)  # Raises if a table was altered since.
                raise
        self._loading = set()
        if self.should_stop():
            raise _StoppedError

    def _load_some(self, queue: "SimpleQueue[TableLog]", exported: Exported) -> None:
        connection = self.source.connect()
        self._loaders.append(connection)
        try:
            self._load_by(connection, queue, exported)
        except (SourceError, SourceUnavailableError):
            if not self.should_stop():  # If so, it was cancelled.
                raise
        finally:
            self._loaders.remove(connection)
            connection.close()

    def _load_by(self, connection: Any, queue: "SimpleQueue[TableLog]", exported: Exported) -> None:
        with self.source.talking():
            connection.set_session(
                isolation_level="REPEATABLE READ", readonly=True, autocommit=False
            )
            with connection.cursor() as cursor:
                cursor.execute(f"SET TRANSACTION SNAPSHOT '{exported.snapshot}'")
            while not self.should_stop():
                try:
                    one = queue.get_nowait()
                except Empty:
                    return
                self._load_one(one, connection, exported.lsn)

    def _load_one(self, one: TableLog, connection: Any, lsn: int) -> None:
        oid, time_us = one.table.oid, self.clock.now_us()
        is_again = bool(one.table.key) and any(one.log.end_offsets().values())
        known: list[Any] = []
        one.evolve()
        self._loaded[oid] = 0

        def take(rows: Any) -> None:
            if self.should_stop():
                raise _StoppedError
            keys = one.take_rows(rows, time_us)
            if is_again:
                known.append(hash_keys(keys, seed=SEED))
            if one.pending_bytes > FLUSH_BYTES // LOADERS:
                one.flush()
            self._loaded[oid] += rows.num_rows

        load(
            connection,
            one.table.select(self._published.filters.get(one.table.what)),
            one.plan,
            take,
        )
        with self.source.connected() as ask:
            self._check_stamps(ask, [oid])
            file = one.table.file
            if file and not self._loaded[oid] and catalogue.file_of(ask, oid) != file:
                raise ChangedError(f"{one.table.what} was rewritten: older snapshots find it empty")
        if is_again:
            one.delete_others(known, time_us)
        one.commit(lsn)
        self._loading.discard(oid)

    def _follow(self, slot: str, start: int) -> None:
        """Does 3."""
        home = self.home
        assert home is not None, "it was prepared"
        options = {**OPTIONS, "publication_names": ",".join(map(quoted, self._published.names))}
        try:
            with (
                self.source.connected() as ask,
                closing(Stream(self.source, slot, start, options)) as stream,
            ):
                self.wal_lsn = ask.wal_lsn()
                ask.run(f"SET lock_timeout = {_LOCK_MS}")
                followed = Followed(
                    *(home, self.tables, self.read_lsn, self._settings.interval_ms, self.clock),
                    should_stop=self.should_stop,
                    look=partial(self._look, ask),
                    check=partial(self._check_stamps, ask, self.tables),
                    on_commit=self._on_commit,
                )
                until = self.wal_lsn if self._settings.once else None
                Following(followed, stream, start).to_the_end(until)
                if self._settings.once and not self.should_stop():
                    self._look(ask)
        except SourceError as e:
            if "publication" in str(e) and "does not exist" in str(e):
                raise SourcePurgedError(
                    f"the slot {slot} of {self.source.address} is older than the publication,"
                    " which was dropped and created again; changes are decoded with the catalogue"
                    f" of the slot's time; {RELOAD}"
                ) from e
            raise

    def _on_commit(self, ended: int, newest_us: int) -> None:
        self.transactions += ended
        self._newest_us = max(self._newest_us, newest_us)
        self.on_progress(self.progress())

    def _read(self, ask: Queries, home: Home) -> list[SourceTable]:
        return catalogue.read(
            *(ask, self._choice),
            address=self.source.address,
            skipped=self._skipped,
            known=home.bindings,
            publication=self._settings.publication,
        )

    def _check_stamps(self, ask: Queries, tables: Collection[int]) -> None:
        """Raises ChangedError if the catalogue changed: rows may have changed without a message."""
        now = catalogue.stamps(ask, self._published.names, tables)
        if now != {oid: self._stamps[oid] for oid in tables}:
            raise ChangedError("its catalogue changed")

    def _look(self, ask: Queries) -> None:
        """Does 4, and updates how far the source is; ChangedError: a table is not what it was."""
        home = self.home
        assert home is not None, "it was prepared"
        slot = f"clog_{home.log.id[:24]}"
        self.wal_lsn = ask.wal_lsn()
        try:
            tables = self._read(ask, home)
            if self._settings.publication is not None:
                _, tables = catalogue.published(
                    ask, self.source, self._settings.publication, tables
                )
            else:
                tables = catalogue.numbered(ask, self._published.names, tables)
        except LockedError:
            tables = []  # The next look decides; no cut is named before the stamp was compared.
        if tables and {table.oid for table in tables} != self.tables.keys():
            raise ChangedError("tables were added or removed")
        for table in tables:
            why = home.bindings[table.oid].why_reload(table)
            if why is not None or table.columns != self.tables[table.oid].table.columns:
                raise ChangedError(f"{table.what}: {why or 'its columns changed'}")
        found = ask.slot(slot)
        if found is not None:
            self._slot_bytes = max(0, self.wal_lsn - found.restart_lsn)
        if (
            self._settings.slot_bytes_max is not None
            and self._slot_bytes > self._settings.slot_bytes_max
        ):
            ask.drop_slot(slot)
            raise self.source.lost(
                slot, f"kept {self._slot_bytes} bytes, more than allowed, and was dropped"
            )
        if self._slot_bytes > _WARN_BYTES:
            _log.warning(
                "the slot %s makes %s keep %d bytes of its write-ahead log; they fill its disk"
                " unless the capture catches up or max_slot_wal_keep_size limits them",
                *(slot, self.source.address, self._slot_bytes),
            )
        self.on_progress(self.progress())


def _named(publication: str | None) -> str:
    return "its own publication" if publication is None else f"publication {publication}"


def _plan(ask: Queries, table: SourceTable) -> TablePlan:
    as_text = [name for name, mask in table.masks.items() if mask in (HASH, TEXT)]
    return plan_of(ask.connection, table.columns, what=table.what, text=as_text)
