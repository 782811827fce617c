"""A PostgreSQL database as a source: its position, its identity, and its replication slot.

A database is identified by its system's identifier and its own oid: a system made anew by
``initdb``, or restored from another one, has another name. Positions are *LSNs*, bytes of the
write-ahead log; a *timeline* distinguishes histories with the same LSNs (FORMAT.md §11.4): after a
failover the new primary may assign LSNs again, to other changes.

A position is the LSN up to which everything is known: it includes a transaction if its commit is
below it. Replication from a slot starts at such a position, which PostgreSQL counts the same way.

A *snapshot* comes with the creation of a slot: it shows exactly the transactions that committed
below the slot's own LSN. ``pg_current_wal_lsn()`` with a snapshot would not do: a commit may be in
the write-ahead log and not be visible yet.

The first load is by COPY: the server sends CSV, one message per row, in which an empty text is
quoted and null is not. Messages are gathered in a buffer; if the next row does not fit, Arrow reads
the buffer's rows, and they are passed on before the server sends more. So memory is that of a
batch, or of one row that is larger. Arrow's reader converts values itself if the result is the same
as that of `types`; otherwise it reads texts. If a batch has a value that it cannot read (infinity,
NaN), the columns of this batch and of all later ones are converted from texts.
"""

import codecs
import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from clog.bridge.capturing.tables import TablePlan, quoted
from clog.bridge.postgres.types import Connection, session_options
from clog.storage import (
    InvalidInputError,
    SourceError,
    SourcePurgedError,
    SourceReplacedError,
    SourceUnavailableError,
)
from clog.storage.spi import dataclass, from_extra

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SCHEMES: Final = ("postgres://", "postgresql://")
VERSION_MIN: Final = 140_000
CONNECT_S: Final = 30
PATIENCE_MS: Final = 60_000
"""How long the reader of a slot may take to end."""
PLUGIN: Final = "pgoutput"
BATCH_BYTES: Final = 8 << 20


def client_library() -> Any:
    """Returns the module of PostgreSQL's client; if it is missing, the error says how to get it."""
    with from_extra("capture", "PostgreSQL", "psycopg2"):
        import psycopg2
        import psycopg2.extras
    return psycopg2


def lsn_of(text: str) -> int:
    """Returns an LSN as a number.

    >>> lsn_of("16/B374D848")
    97500059720
    """
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def lsn_text(lsn: int) -> str:
    """Returns an LSN in PostgreSQL's notation."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def literal(text: str) -> str:
    """Returns a text as an SQL literal, for statements that take no parameters."""
    return "'" + text.replace("'", "''") + "'"


def _malformed() -> InvalidInputError:
    return InvalidInputError(
        "this is not the address of a database (it is not shown, because it may contain a"
        " password); give postgres://USER@HOST:PORT/DATABASE?sslmode=…, with @ / ? # % in names"
        " written as %40 and so on, and the password in PGPASSWORD or in a file that PGPASSFILE"
        " names"
    )


class DeniedError(SourceError):
    """The user lacks a right."""


class LockedError(SourceError):
    """A query was not answered in time because a table is locked."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A database's identity, and its current history."""

    system: str
    database: int
    timeline: int
    version: int
    wal_lsn: int

    @property
    def name(self) -> str:
        """The first part of the name under which positions in it are committed."""
        return f"postgresql:{self.system}/{self.database}"


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot.

    Attributes:
        confirmed_lsn: the confirmed position, up to which the source may discard changes.
        restart_lsn: the position from which it keeps its write-ahead log.
        wal_status: ``lost`` if it no longer does.
    """

    confirmed_lsn: int
    restart_lsn: int
    wal_status: str


@dataclass(frozen=True, slots=True)
class Exported:
    """A snapshot that others can use while ``holder``, a connection, runs nothing else."""

    snapshot: str
    lsn: int
    holder: Any

    def close(self) -> None:
        """Releases the snapshot."""
        self.holder.close()


class Source:
    """A database that is captured. Each of its connections is for one thread.

    Args:
        dsn: ``postgres://USER@HOST:PORT/DATABASE?sslmode=…``, in libpq's syntax; libpq takes the
            password, and whatever is left out, from the environment and its files.
    """

    def __init__(self, dsn: str) -> None:
        library = client_library()
        if not dsn.startswith(SCHEMES):
            raise _malformed()
        authority, _, path = dsn.partition("://")[2].partition("?")[0].partition("/")
        if authority.count("@") > 1 or "@" in path:  # Libpq would mistake a password for a name.
            raise _malformed()
        try:
            self._parameters: dict[str, str] = library.extensions.parse_dsn(dsn)
            parts = urlsplit(dsn)
        except (library.ProgrammingError, ValueError):  # The error's text repeats the address.
            raise _malformed() from None
        self._library = library
        host, port = self._parameters.get("host", ""), self._parameters.get("port", "5432")
        if not port.replace(",", "0").isdecimal():  # It is a password if no host follows.
            raise _malformed()
        self.address = f"postgres://{host}:{port}{parts.path}"

    def __repr__(self) -> str:
        return f"Source({self.address!r})"

    def connect(self, *, replication: bool = False) -> Any:
        """Returns a new connection, which commits each statement by itself."""
        own = self._parameters.get("options", "")
        given = {
            "connect_timeout": str(CONNECT_S),
            "application_name": "clog capture",
            "keepalives_idle": "30",
            **self._parameters,
            "options": f"{own} {session_options()}".strip(),
        }
        kind = self._library.extras.LogicalReplicationConnection if replication else None
        with self.talking():
            connection = self._library.connect(connection_factory=kind, **given)
            if not replication:  # A replication connection always does.
                connection.autocommit = True
        return connection

    def cancel(self, connection: Any) -> None:
        """Cancels what a connection is running in another thread."""
        with suppress(self._library.Error):  # It may be over by now.
            connection.cancel()

    @contextmanager
    def talking(self) -> Iterator[None]:
        """Turns the client's errors into clog's; neither contain passwords."""
        library = self._library
        try:
            yield
        except (library.OperationalError, library.InterfaceError) as e:
            why = " ".join(str(e).split()) or type(e).__name__
            if isinstance(e, library.errors.LockNotAvailable):
                raise LockedError(f"{self.address} refuses: {why}") from e
            raise SourceUnavailableError(
                f"{self.address} does not answer, or ended the connection: {why}"
            ) from e
        except library.Error as e:
            why = " ".join(str(e).split())
            if "no message from the libpq" in why:  # The connection ended during a COPY.
                raise SourceUnavailableError(f"{self.address} ended the connection") from e
            denied = isinstance(e, library.errors.InsufficientPrivilege)
            kind = DeniedError if denied else SourceError
            raise kind(f"{self.address} refuses: {why}") from e

    @contextmanager
    def connected(self) -> Iterator["Queries"]:
        """Yields `Queries` on a connection that is closed at the end."""
        connection = self.connect()
        try:
            yield Queries(self, connection)
        finally:
            connection.close()

    def identity(self) -> Identity:
        """Returns the current identity; raises if the database cannot be captured."""
        connection = self.connect(replication=True)
        try:
            with self.talking(), connection.cursor() as cursor:
                cursor.execute("IDENTIFY_SYSTEM")
                system, timeline, lsn, _ = cursor.fetchone()
        finally:
            connection.close()
        with self.connected() as ask:
            ((version, database, level, is_standby),) = ask.rows(
                "select current_setting('server_version_num')::int, oid,"
                " current_setting('wal_level'), pg_is_in_recovery()"
                " from pg_database where datname = current_database()"
            )
        if version < VERSION_MIN:
            raise InvalidInputError(
                f"{self.address} is PostgreSQL {version // 10_000}; capture needs 14 or newer"
            )
        if is_standby:
            raise InvalidInputError(f"{self.address} is a standby; capture its primary")
        if level != "logical":
            raise InvalidInputError(
                f"{self.address} has wal_level={level}: set it to logical (ALTER SYSTEM SET"
                " wal_level = logical) and restart the server"
            )
        return Identity(str(system), database, int(timeline), version, lsn_of(lsn))

    def check_timeline(self, before: int, now: Identity, position: int) -> None:
        """Raises if the current timeline does not contain the history up to a position."""
        if before == now.timeline:
            if position > now.wal_lsn:
                raise SourceReplacedError(
                    f"{self.address} ends at {lsn_text(now.wal_lsn)}, but the logs have it up to"
                    f" {lsn_text(position)}: it lost its end, as after a restore or with"
                    f" fsync=off; {RELOAD}"
                )
            return
        content = self._history(now.timeline) if before < now.timeline else ""
        for timeline, branch in re.findall(
            r"^(\d+)\s+([0-9A-F]+/[0-9A-F]+)", content, re.MULTILINE
        ):
            if int(timeline) == before and position <= lsn_of(branch):
                return
        raise SourceReplacedError(
            f"{self.address} is on timeline {now.timeline}, which lacks changes that the logs"
            f" took from timeline {before} up to {lsn_text(position)}: after a failover, their"
            f" LSNs were reused for other changes; {RELOAD}"
        )

    def _history(self, timeline: int) -> str:
        """Returns where the timelines before this one ended, in PostgreSQL's format."""
        connection = self.connect(replication=True)
        try:
            with self.talking(), connection.cursor() as cursor:
                cursor.execute(f"TIMELINE_HISTORY {timeline}")
                content = cursor.fetchone()[1]  # PostgreSQL 14 declares it as bytes.
                return content if isinstance(content, str) else bytes(content).decode()
        finally:
            connection.close()

    def make_slot(self, connection: Any, name: str, *, temporary: bool = False) -> Exported:
        """Makes a slot and exports its snapshot. A temporary slot is dropped with the connection.
        Waits until all open transactions have ended; ``connection.cancel`` ends the wait.
        """
        kind = "TEMPORARY " if temporary else ""
        try:
            with self.talking(), connection.cursor() as cursor:
                cursor.execute(
                    f"CREATE_REPLICATION_SLOT {quoted(name)} {kind}LOGICAL {PLUGIN} EXPORT_SNAPSHOT"
                )
                _, lsn, snapshot, _ = cursor.fetchone()
        except BaseException:
            connection.close()
            raise
        return Exported(snapshot, lsn_of(lsn), connection)

    def lost(self, name: str, why: str) -> SourcePurgedError:
        """Returns the error for a slot that can no longer be read."""
        return SourcePurgedError(
            f"the replication slot {name} of {self.address} {why}, so changes since the last commit"
            f" of the logs are gone; {RELOAD}"
        )


RELOAD: Final = (
    "load all tables again into the same logs with --reload all (reload=True), which also deletes"
    " rows that the source no longer has"
)


class Queries:
    """Queries to the catalogue on one connection."""

    def __init__(self, source: Source, connection: Any) -> None:
        self._source = source
        self.connection = connection

    def rows(self, statement: str, parameters: Any = None) -> list[Any]:
        """Returns the rows of a query."""
        with self._source.talking(), self.connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return list(cursor.fetchall())

    def run(self, *statements: str) -> None:
        """Runs statements in order."""
        with self._source.talking(), self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def wal_lsn(self) -> int:
        """Returns the position up to which the write-ahead log is written."""
        ((text,),) = self.rows("select pg_current_wal_lsn()::text")
        return lsn_of(text)

    def slot(self, name: str) -> Slot | None:
        """Returns a slot; None if it does not exist."""
        found = self.rows(
            "select confirmed_flush_lsn::text, restart_lsn::text, wal_status"
            " from pg_replication_slots where slot_name = %s",
            [name],
        )
        for confirmed, restart, status in found:
            return Slot(lsn_of(confirmed or "0/0"), lsn_of(restart or "0/0"), status or "lost")
        return None

    def open_transactions(self) -> list[str]:
        """Returns the processes with open transactions that have written, the oldest first."""
        found = self.rows(
            "select 'process ' || pid from pg_stat_activity where backend_xid is not null"
            " and pid <> pg_backend_pid() order by xact_start"
        )
        prepared = self.rows("select 'prepared ' || gid from pg_prepared_xacts order by prepared")
        return [name for (name,) in [*prepared, *found]]

    def free_slot(self, name: str) -> None:
        """Terminates the reader of a slot, and waits until it has ended."""
        found = self.rows(
            "select active_pid, pg_terminate_backend(active_pid, %s) from pg_replication_slots"
            " where slot_name = %s and active_pid is not null",
            [PATIENCE_MS, name],
        )
        if found and not found[0][1]:
            raise SourceError(
                f"the slot {name} of {self._source.address} is read by process {found[0][0]} of"
                " the server, which could not be ended; end it"
            )

    def drop_slot(self, name: str) -> None:
        """Drops a slot, and terminates its reader."""
        self.free_slot(name)
        self.rows(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
            " where slot_name = %s",
            [name],
        )


class Stream:
    """The messages of a slot from a position on; for one thread.

    Attributes:
        reached: the position up to which everything was received, except for messages that wait.
    """

    def __init__(
        self, source: Source, slot: str, position: int, options: Mapping[str, str]
    ) -> None:
        self._source = source
        self._connection = source.connect(replication=True)
        self._cursor = self._connection.cursor()
        # psycopg2 lets a reading cursor confirm a keepalive's position if it had confirmed all it
        # read; that would be ahead of the home. So a second cursor confirms.
        self._confirming = self._connection.cursor()
        try:
            with source.talking():
                self._cursor.start_replication(
                    slot_name=slot, decode=False, start_lsn=position, options=dict(options)
                )
        except BaseException:
            self._connection.close()
            raise

    @property
    def reached(self) -> int:
        return int(self._cursor.wal_end)

    def fileno(self) -> int:
        """Returns the file descriptor to wait on for more."""
        return int(self._connection.fileno())

    def take(self, most_bytes: int) -> list[bytes]:
        """Returns the messages received so far, up to about this many bytes."""
        read, messages, size = self._cursor.read_message, [], 0
        with self._source.talking():
            while size < most_bytes and (message := read()) is not None:
                messages.append(message.payload)
                size += len(message.payload)
        return messages

    def confirm(self, lsn: int = 0, *, ask: bool = False) -> None:
        """Tells the source what it may discard, or that we are alive; ``ask``: it should answer."""
        with self._source.talking():
            self._confirming.send_feedback(
                write_lsn=lsn, flush_lsn=lsn, apply_lsn=lsn, reply=ask, force=True
            )

    def close(self) -> None:
        """Ends the stream."""
        self._connection.close()


def load(
    connection: Connection,
    select: str,
    plan: TablePlan,
    take: Callable[[pa.RecordBatch], None],
    *,
    batch_bytes: int = BATCH_BYTES,
) -> int:
    """Passes on the rows of a query in batches of about ``batch_bytes`` of CSV, and returns their
    number. If ``take`` raises, the load ends, and the connection is still in COPY and must be
    closed.

    Args:
        connection: psycopg2's, with the settings `types.SESSION`.
        select: returns the columns of ``plan``, in its order.
        plan: how they are kept.
        take: called with each batch in turn.
        batch_bytes: the size in CSV.

    Raises:
        SourceError: a column has a value that does not fit its form.
    """
    rows = _Rows(plan, take)
    with io.BufferedWriter(rows, batch_bytes) as writer, connection.cursor() as cursor:
        cursor.copy_expert(f"COPY ({select}) TO STDOUT (FORMAT csv)", writer, size=batch_bytes)
    return rows.count


class _Rows(io.RawIOBase):
    """Takes whole rows of CSV: a buffered writer does not split the data of one call."""

    def __init__(self, plan: TablePlan, take: Callable[[pa.RecordBatch], None]) -> None:
        super().__init__()
        self.count = 0
        self._plan = plan
        self._take = take
        self._kinds = [form.arrow if form.plain else pa.string() for form in plan.forms]

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        batch = self._batch(pa.py_buffer(data))
        self.count += batch.num_rows
        self._take(batch)
        return memoryview(data).nbytes

    def _batch(self, data: pa.Buffer) -> pa.RecordBatch:
        try:
            read = _read(data, self._kinds)
        except pa.ArrowInvalid:
            self._kinds = [pa.binary()] * len(self._kinds)  # Texts that are not checked.
            try:
                read = _read(data, self._kinds)
            except pa.ArrowInvalid:  # The error's text has values.
                raise SourceError(
                    f"the server's copy of {self._plan.what} is not CSV of its {len(self._kinds)}"
                    " columns; it was damaged in transit, or the table was altered: run the"
                    " capture again"
                ) from None
        columns = []
        for i, form in enumerate(self._plan.forms):
            column = read.column(i).combine_chunks()
            if column.type != form.arrow or not form.plain:
                column = self._plan.column(i, column.view(pa.string()))
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self._plan.schema)


def _read(data: pa.Buffer, kinds: list[pa.DataType]) -> pa.Table:
    from pyarrow import csv  # Loaded only when it is needed.

    names = [str(i) for i in range(len(kinds))]
    if data[:3].to_pybytes() == codecs.BOM_UTF8:  # A value's: the reader would drop it.
        data = pa.py_buffer(codecs.BOM_UTF8 + data.to_pybytes())
    return csv.read_csv(
        pa.BufferReader(data),
        csv.ReadOptions(use_threads=False, block_size=data.size + 1, column_names=names),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types=dict(zip(names, kinds, strict=True)),
            null_values=[""],
            true_values=["t"],
            false_values=["f"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
