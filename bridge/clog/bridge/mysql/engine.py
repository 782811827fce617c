"""Reads a MySQL server with Debezium's engine, on Java in this process (pydbzengine).

The engine loads the existing rows, then follows the binary log; it reports what it reads as
*events*, in order: rows, beginnings and ends of transactions, changes of tables, and *heartbeats*,
which show its progress. An *offset* says where to continue; only the engine interprets it. The
*history* says what tables were like at an offset, in lines that are only appended to. Both are kept
with the logs, in the commit that they belong to: each run writes them to its own files, from which
the engine starts; what the engine itself writes to the offsets file is ignored.

A *shape* is the engine's description of a table, even of one without rows. The engine also reads
rows as of a moment that is *held*, the same way as for a load. Both use classes of Debezium that
are not public, and one field of its task: those of the releases that the extra allows.

A *position* is a number that orders the binary log: the number of a file, then the bytes before the
place.
"""

import json
import os
import queue
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from clog.bridge.capturing.tables import Choice
from clog.storage import (
    Ids,
    InvalidInputError,
    SourceError,
    SourcePurgedError,
    SourceUnavailableError,
)
from clog.storage.spi import dataclass, from_extra

_DROPS: Final = r"\bdrop\s+(column\s+)?(if\s+exists\s+)?{}\b"
_COMMENTS: Final = re.compile(r"/\*.*?\*/", re.DOTALL)
_REASONS: Final = (
    (
        re.compile(
            r"\brename\s+column\b|\bchange\s+(?:column\s+)?(?!column\s)(\S+)\s+(?!\1\s)",
            re.IGNORECASE,
        ),
        "a column was renamed",
    ),
    (
        re.compile(
            r"\b(drop|truncate|exchange|discard|import)\s+(partition|tablespace)\b", re.IGNORECASE
        ),
        "rows went, or came, with a partition or a tablespace",
    ),
)
"""What only the statement says: the engine describes a renamed column as dropped and added."""
SCHEME: Final = "mysql://"
NAME: Final = "clog"
"""The name of the engine, and the prefix of its topics."""
_MYSQL: Final = "io.debezium.connector.mysql"
_SELECTS: Final = "snapshot.select.statement.overrides"
_FILE_BITS: Final = 40
_WAIT_S: Final = 0.1
_EVENTS_MAX: Final = 16_384
_FETCHED: Final = 8192
_QUEUE_BYTES: Final = 64 << 20
_HEARTBEAT_MS: Final = 100
_KEEP_ALIVE_MS: Final = 500
_AWAY: Final = (
    "Failed to establish",
    "Connection refused",
    "Communications link",
    "EOFException",
    "ended",
    "reset",
)
_PURGED: Final = ("no longer available on the server", "purged", "Could not find first log")
_NO_ADDRESS: Final = (
    "this is not the address of a database (it is not shown, because it may contain a password);"
    " give mysql://USER@HOST:PORT/DATABASE?ssl-mode=…, and the password in MYSQL_PWD"
)
_SSL_MODES: Final = ("disabled", "preferred", "required", "verify_ca", "verify_identity")
_JAVA_MIN: Final = 17
_JAVA: Final = f"Java {_JAVA_MIN} or newer, which JAVA_HOME can point to"
RELOAD: Final = "--reload all loads all tables again, into the same logs"


def _check_library() -> None:
    with from_extra("capture-debezium", "MySQL (with Java 17 or newer)", "pydbzengine", "jpype"):
        import pydbzengine.engine.jvm  # noqa: F401 - only whether it is there


def position_of(offset: Mapping[str, Any]) -> int:
    """Returns the position of an offset, or of the source of an event.

    >>> position_of({"file": "binlog.000002", "pos": 4}) - (2 << 40)
    4
    """
    return (int(str(offset["file"]).rpartition(".")[2]) << _FILE_BITS) | int(offset["pos"])


def table_of(change: Mapping[str, Any]) -> str:
    """Returns the table whose change a schema event reports."""
    what: str = change["id"]
    return what.strip('"').replace('"."', ".")


def kept_of(table: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the part of the engine's description of a table that is kept, with the columns that
    it no longer has, but its log.
    """
    columns = {
        one["name"]: [one["typeExpression"], one["length"], one["scale"], one["enumValues"]]
        for one in table["columns"]
    }
    known = before or {"columns": {}}
    gone = ({*known["columns"]} | {*known.get("gone", ())}) - columns.keys()
    return {"key": table["primaryKeyColumnNames"], "columns": columns, "gone": sorted(gone)}


def why_reload(
    before: Mapping[str, Any] | None,
    table: Mapping[str, Any] | None,
    ddl: str,
    change: Mapping[str, Any],
) -> str | None:
    """Returns why rows may have changed without a message, or the engine does not say how they will
    be described; None if neither is so.

    Args:
        before: what `kept_of` kept of the table.
        table: the engine's description of the table as it is now.
        ddl: the statement.
        change: its effect on the table, in the engine's words.
    """
    ddl = _COMMENTS.sub(" ", ddl.replace("`", ""))
    if change["type"] == "CREATE" or table is None:
        return None
    if change.get("previousId") not in (None, change["id"]):
        return "it was renamed"
    if before is None:
        return "it changed, and its earlier state is unknown"
    for pattern, why in _REASONS:
        if pattern.search(ddl):
            return why
    after = kept_of(table, before)
    if after["key"] != before["key"]:
        return "its key changed"
    reasons = (_why_of(one, before, after, ddl) for one in table["columns"])
    return next(filter(None, reasons), None)


def _why_of(
    column: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any], ddl: str
) -> str | None:
    name, known = column["name"], before["columns"]
    if name in before.get("gone", ()):
        return f"column {name} was dropped, and added again later"
    if name not in known:
        is_filled = column.get("defaultValueExpression") or not column["optional"]
        if is_filled or column["generated"]:
            return f"column {name} was added with a default, which filled existing rows"
    elif after["columns"][name] != known[name]:
        return f"column {name} has another type"
    elif re.search(_DROPS.format(re.escape(name)), ddl, re.IGNORECASE):
        return f"column {name} was dropped and added again"
    return None


def end_of(files: Mapping[int, int]) -> int:
    """Returns the end of a binary log with these files."""
    last = max(files)
    return (last << _FILE_BITS) | files[last]


def start_java() -> None:
    """Starts Java in this process if it is not running; it is quiet, and leaves signals alone."""
    _check_library()
    import jpype
    from pydbzengine.engine.jvm import ensure_jvm_started

    if jpype.isJVMStarted():
        return
    silent = Path(__file__).with_name("log4j2.properties")
    try:
        ensure_jvm_started(["-Xmx512m", "-Xrs", f"-Dlog4j2.configurationFile={silent}"])
    except (OSError, ValueError) as e:  # No Java is installed, or not for this processor.
        why = "; ".join(str(e).splitlines()[:1])
        raise InvalidInputError(f"MySQL needs {_JAVA}: {why}") from e
    if (found := jpype.getJVMVersion()[0]) < _JAVA_MIN:
        raise InvalidInputError(f"MySQL needs {_JAVA}, and Java {found} was found")
    jpype.JClass("java.util.logging.LogManager").getLogManager().reset()


def file_of(position: int) -> int:
    """Returns the number of a position's file."""
    return position >> _FILE_BITS


def position_text(position: int) -> str:
    """Returns a position in readable form: the number of its file, and the bytes."""
    return f"{file_of(position):06d}:{position & ((1 << _FILE_BITS) - 1)}"


@dataclass(frozen=True, slots=True)
class Origin:
    """The identity of a server and its database, under which positions are committed."""

    name: str
    timeline: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """An event that the engine reports.

    Attributes:
        topic: what it is about.
        value: as parsed JSON.
        offset: where to continue after it, in JSON; None: not within its transaction.
        key: for a row, the schema of its key in Kafka Connect's JSON; None: it has no key.
        row: the schema of its columns, in the same form.
    """

    topic: str
    value: Mapping[str, Any]
    offset: str | None = None
    key: Mapping[str, Any] | None = None
    row: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The description of a table.

    Attributes:
        key: see `Event`.
        row: see `Event`.
        schema: Debezium's own object.
        table: Debezium's own object.
    """

    key: Any
    row: Any
    schema: Any
    table: Any


class Held:
    """Tables as they were at one moment; for one thread.

    Args:
        connection: in a transaction of that moment.
        reading: returns the engine's reader of rows; called only after the engine has started.
    """

    def __init__(self, connection: Any, reading: Callable[[], Any]) -> None:
        self._connection = connection
        self._reading = reading

    def rows(self, shape: Shape) -> Iterator[list[Mapping[str, Any]]]:
        """Yields the rows of a table in the form that events have, some at a time."""
        import jpype

        at = shape.table.id()
        own = [
            (str(c.name()), str(c.typeName()).startswith("FLOAT")) for c in shape.table.columns()
        ]
        select = _select(str(at.catalog()), str(at.table()), own)
        to_json, reading = _converter(), self._reading()
        to_array = jpype.JClass("io.debezium.util.ColumnUtils").toArray
        with closing(self._connection.createStatement()) as ask:
            ask.setFetchSize(jpype.JClass("java.lang.Integer").MIN_VALUE)  # Row by row.
            found = ask.executeQuery(select)
            columns, rows = to_array(found, shape.table), []
            while found.next():
                row = reading.rowToArray(shape.table, found, columns)
                made = shape.schema.valueFromColumnData(row)
                text = to_json.fromConnectData(NAME, shape.schema.valueSchema(), made)
                rows.append(json.loads(bytes(text)))
                if len(rows) == _FETCHED:
                    yield rows
                    rows = []
            yield rows


class Server:
    """One database of a server, and the engine that reads it; use it in a ``with`` statement.

    Args:
        dsn: ``mysql://USER@HOST:PORT/DATABASE?ssl-mode=…``; the password comes from ``MYSQL_PWD``.
    """

    def __init__(self, dsn: str, ids: Ids) -> None:
        try:
            parts = urlsplit(dsn)
            user, host, port = parts.username, parts.hostname, parts.port or 3306
        except ValueError:  # The error's text has parts of the address.
            raise InvalidInputError(_NO_ADDRESS) from None
        options = dict(parse_qsl(parts.query))
        self.database = unquote(parts.path.removeprefix("/"))
        if (
            not (dsn.startswith(SCHEME) and user and host and self.database)
            or (options.keys() - {"ssl-mode"})
            or {"/", "?"} & set(self.database)
            or parts.password is not None
        ):
            raise InvalidInputError(_NO_ADDRESS)
        self._host, self._port = host, port
        self._user = unquote(user)
        self._ssl = options.get("ssl-mode", "preferred").lower()
        if self._ssl not in _SSL_MODES:
            raise InvalidInputError(f"ssl-mode is one of {', '.join(_SSL_MODES)}")
        self.address = f"mysql://{self._host}:{self._port}/{self.database}"
        _check_library()
        self._events: queue.Queue[list[Event]] = queue.Queue(1)
        self._schemas: dict[str, tuple[Any, Any]] = {}
        self._failure: Exception | None = None
        self._why = "the engine ended"
        self._number = 1 + ids.seed() % (2**32 - 2)
        self._thread: threading.Thread | None = None
        self._engine: Any = None
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="clog-debezium-")
        self._path = Path(self._folder.name)
        start_java()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        with self._folder:
            if self._engine is not None and self._thread is not None and self._thread.is_alive():
                self._engine.close()
                self._thread.join()

    @property
    def _password(self) -> str:
        return os.environ.get("MYSQL_PWD", "")

    def query(self, *statements: str) -> list[list[tuple[str | None, ...]]]:
        """Returns the rows of each statement as texts; raises SourceError if the server refuses."""
        import jpype

        given = {"user": self._user, "password": self._password, "sslMode": self._ssl.upper()}
        given |= {"allowPublicKeyRetrieval": "true", "connectTimeout": "30000"}
        url = f"jdbc:mysql://{self._host}:{self._port}/{self.database}"
        try:
            with closing(
                jpype.JClass("com.mysql.cj.jdbc.Driver")().connect(url, _properties(given))
            ) as connection:
                return [_rows(connection, one) for one in statements]
        except jpype.JException as e:
            raise self._error(_root(e)) from None  # Its text may have the password.

    def _error(self, why: str) -> SourceError | SourceUnavailableError:
        """Returns the error to raise for a failure's text, without the password."""
        if self._password:
            why = why.replace(self._password, "***")
        if any(word in why for word in _AWAY):
            return SourceUnavailableError(f"{self.address} does not answer: {why}")
        if any(word in why for word in _PURGED):
            return SourcePurgedError(f"{self.address}: {why}; {RELOAD}")
        return SourceError(f"{self.address}: {why}")

    def origin(self) -> Origin:
        """Returns the server's identity; InvalidInputError: its binary log lacks what is needed."""
        ((found,),) = self.query(
            "SELECT @@server_uuid, @@log_bin, @@binlog_format, @@binlog_row_image"
        )
        uuid, is_on, form, image = found
        if (is_on, form, image) != ("1", "ROW", "FULL"):
            raise InvalidInputError(
                f"{self.address} needs log_bin, binlog_format=ROW and binlog_row_image=FULL to be"
                f" captured, but has {is_on}, {form} and {image}"
            )
        return Origin(f"mysql:{uuid}/{self.database}")

    def tables(self) -> dict[str, bool]:
        """Returns the names of the database's tables, and whether they have a primary key."""
        (rows,) = self.query(
            "SELECT t.table_name, (SELECT count(*) FROM information_schema.table_constraints c"
            " WHERE c.table_schema = t.table_schema AND c.table_name = t.table_name"
            " AND c.constraint_type = 'PRIMARY KEY') FROM information_schema.tables t"
            " WHERE t.table_type = 'BASE TABLE' AND t.table_schema = DATABASE()"
        )
        return {f"{self.database}.{name}": has != "0" for name, has in rows}

    def _selects(self) -> dict[str, str]:
        """Returns the queries for tables with a FLOAT, by name: as text, it has only six digits."""
        (rows,) = self.query(
            "SELECT table_name, column_name, data_type FROM information_schema.columns"
            " WHERE table_schema = DATABASE() ORDER BY table_name, ordinal_position"
        )
        columns: dict[str, list[tuple[str, bool]]] = {}
        for table, column, kind in rows:
            columns.setdefault(str(table), []).append((str(column), str(kind).lower() == "float"))
        return {
            f"{self.database}.{table}": _select(self.database, table, own)
            for table, own in columns.items()
            if any(is_float for _, is_float in own)
        }

    def choice(self, tables: Sequence[str], exclude: Sequence[str]) -> Choice:
        """Returns the choice by these patterns; those without a dot are for this database."""
        only, without = (
            tuple(one if "." in one else f"{self.database}.{one}" for one in given)
            for given in (tables, exclude)
        )
        return Choice(only, without)

    def files(self) -> dict[int, int]:
        """Returns the size of each file of the binary log in bytes, by its number."""
        (rows,) = self.query("SHOW BINARY LOGS")
        return {int(str(row[0]).rpartition(".")[2]): int(str(row[1])) for row in rows}

    def start(
        self,
        offset: str | None,
        history: bytes,
        *,
        only: Mapping[str, str],
    ) -> None:
        """Starts the engine at an offset, with its history; without an offset, it loads."""
        import jpype

        selects = {} if offset is not None else self._selects()
        self._history = self._path / "history"
        self._history.write_bytes(history)
        offsets = self._path / "offsets"
        if offset is not None:
            made, of_bytes = jpype.JClass("java.util.HashMap")(), jpype.JArray(jpype.JByte)
            key = json.dumps([NAME, {"server": NAME}], separators=(",", ":"))
            made.put(of_bytes(key.encode()), of_bytes(offset.encode()))
            file = jpype.JClass("java.io.FileOutputStream")(str(offsets))
            with closing(jpype.JClass("java.io.ObjectOutputStream")(file)) as stream:
                stream.writeObject(made)
        settings = {
            **self._connecting(),
            "name": NAME,
            "connector.class": f"{_MYSQL}.MySqlConnector",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(offsets),
            "offset.flush.interval.ms": 60_000,
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": str(self._history),
            "database.include.list": self.database,
            "snapshot.mode": "initial",
            "provide.transaction.metadata": "true",
            "include.schema.changes": "true",
            "skipped.operations": "none",
            "tombstones.on.delete": "false",
            "bigint.unsigned.handling.mode": "precise",
            "event.converting.failure.handling.mode": "fail",
            "errors.max.retries": 0,
            "heartbeat.interval.ms": _HEARTBEAT_MS,
            "connect.keep.alive.interval.ms": _KEEP_ALIVE_MS,
            "max.batch.size": _EVENTS_MAX,
            "max.queue.size": 2 * _EVENTS_MAX,
            "max.queue.size.in.bytes": _QUEUE_BYTES,
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "false",
            **({_SELECTS: ",".join(selects)} if selects else {}),
            **{f"{_SELECTS}.{table}": select for table, select in selects.items()},
            **only,
        }
        self._engine = self._made(_properties(settings))
        self._thread = threading.Thread(target=self._engine.run, name="clog-debezium", daemon=True)
        self._thread.start()

    def _connecting(self) -> dict[str, object]:
        """Returns the settings for connecting to the server."""
        return {
            "topic.prefix": NAME,
            "database.hostname": self._host,
            "database.port": self._port,
            "database.user": self._user,
            "database.password": self._password,
            "database.ssl.mode": self._ssl,
            "database.server.id": self._number,
            "driver.allowPublicKeyRetrieval": "true",
        }

    def _made(self, settings: Any) -> Any:
        """Returns the engine; it makes its calls in its own threads."""
        import jpype

        api = "io.debezium.engine.DebeziumEngine"
        methods = {"handleBatch": self._hand_over, "supportsTombstoneEvents": lambda: False}
        consumer = jpype.JProxy(f"{api}$ChangeConsumer", dict=methods)
        ended = jpype.JProxy(f"{api}$CompletionCallback", dict={"handle": self._note_end})
        made = jpype.JClass(api).create(jpype.JClass("io.debezium.engine.format.Json"))
        return made.using(settings).using(ended).notifying(consumer).build()

    def _note_end(self, _: bool, message: Any, error: Any) -> None:  # noqa: FBT001 - Java's
        self._why = str(message if error is None else _root(error))

    def _hand_over(self, records: Sequence[Any], _: Any) -> None:
        """Takes the engine's records; in its thread."""
        try:
            batch = [self._event(record) for record in records]
        except Exception as e:
            self._failure = e
            raise
        while not self._closed.is_set():
            try:
                self._events.put(batch, timeout=_WAIT_S)
                return
            except queue.Full:
                continue

    def _event(self, record: Any) -> Event:
        topic, value = str(record.destination()), record.value()
        known = json.loads(str(value)) if value is not None else {}
        if known.get("op") in ("c", "u", "d", "r"):
            key, row = self._schema(topic, record.sourceRecord())
            is_last = known["source"]["snapshot"] == "last"
            offset = _offset(record) if is_last else None
            return Event(topic, known, offset, key, row)
        if topic == NAME:
            self._schemas.clear()  # Tables may have another shape from here on.
        return Event(topic, known, _offset(record))

    def _schema(self, topic: str, source: Any) -> tuple[Any, Any]:
        if topic not in self._schemas:
            row = source.valueSchema().field("after").schema()
            self._schemas[topic] = _schemas(source.keySchema(), row)
        return self._schemas[topic]

    def shape(self, what: str) -> "Shape | None":
        """Returns the shape of a table as of what the engine has read; None if it does not exist or
        is not chosen. Must be called only after an event.
        """
        import jpype

        known = self._inside("schema")
        at = jpype.JClass("io.debezium.relational.TableId")(
            self.database, None, what.removeprefix(f"{self.database}.")
        )
        found = known.schemaFor(at)
        if found is None:
            return None
        return Shape(*_schemas(found.keySchema(), found.valueSchema()), found, known.tableFor(at))

    @contextmanager
    def held(self) -> "Iterator[Held]":
        """Yields the tables as they are now, unaffected by later changes."""
        import jpype

        given = jpype.JClass("io.debezium.config.Configuration").from_(
            _properties(self._connecting())
        )
        connecting = jpype.JClass(f"{_MYSQL}.jdbc.MySqlConnectionConfiguration")(given)
        made = jpype.JClass(f"{_MYSQL}.jdbc.MySqlConnection")
        resolved = jpype.JClass(f"{_MYSQL}.jdbc.MySqlFieldReaderResolver").resolve

        def reading() -> Any:
            return made(connecting, resolved(self._inside("connectorConfig")))

        try:
            with closing(made(connecting, None)) as connection:
                ask = connection.connection().createStatement()
                ask.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                ask.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
                yield Held(connection.connection(), reading)
        except jpype.JException as e:
            raise self._error(_root(e)) from None

    def _inside(self, name: str) -> Any:
        """Returns a field of the engine's task."""
        tasks: list[Any] = []
        self._engine.runWithTask(tasks.append)
        found = tasks[0].getClass().getDeclaredField(name)
        found.setAccessible(True)
        return found.get(tasks[0])

    def batches(self, is_done: Callable[[], bool]) -> Iterator[list[Event]]:
        """Yields events as they arrive, [] after a short silence; SourceError: the engine ended."""
        while not is_done():
            try:
                yield self._events.get(timeout=_WAIT_S)
            except queue.Empty:
                if self._thread is not None and not self._thread.is_alive():
                    raise self._failure or self._error(self._why) from None
                yield []

    def history(self) -> bytes:
        """Returns the current history."""
        return self._history.read_bytes()


def _root(error: Any) -> str:
    """Returns the text of the root cause of a Java error."""
    while error.getCause() is not None:
        error = error.getCause()
    return " ".join(str(error).split())


def _offset(record: Any) -> str:
    import jpype

    mapper = jpype.JClass("com.fasterxml.jackson.databind.ObjectMapper")()
    return str(mapper.writeValueAsString(record.sourceRecord().sourceOffset()))


def _select(database: str, table: str, columns: Sequence[tuple[str, bool]]) -> str:
    """Returns the query for a table's rows; ``columns``: names, and whether they are FLOATs."""
    names = ", ".join(
        f"CAST({_quoted(name)} AS DOUBLE) {_quoted(name)}" if is_float else _quoted(name)
        for name, is_float in columns
    )
    return f"SELECT {names} FROM {_quoted(database)}.{_quoted(table)}"  # noqa: S608 - quoted


def _quoted(name: str) -> str:
    return "`{}`".format(name.replace("`", "``"))


def _properties(given: Mapping[str, object]) -> Any:
    import jpype

    made = jpype.JClass("java.util.Properties")()
    for name, value in given.items():
        made.setProperty(name, str(value))
    return made


def _converter() -> Any:
    """Returns a converter of Kafka Connect's values to JSON, without their schemas."""
    import jpype

    made = jpype.JClass("org.apache.kafka.connect.json.JsonConverter")()
    settings = jpype.JClass("java.util.HashMap")()
    settings.put("schemas.enable", "false")
    made.configure(settings, False)  # noqa: FBT003 - Java's
    return made


def _schemas(key: Any, row: Any) -> tuple[Any, Any]:
    """Returns the schemas of a key (None if there is none) and of columns as parsed JSON."""
    convert = _converter()
    made = (None if one is None else convert.asJsonSchema(one).toString() for one in (key, row))
    of_key, of_row = (None if one is None else json.loads(str(one)) for one in made)
    return of_key, of_row


def _rows(connection: Any, statement: str) -> list[tuple[str | None, ...]]:
    found = connection.createStatement().executeQuery(statement)
    count = found.getMetaData().getColumnCount()
    rows = []
    while found.next():
        texts = (found.getString(i + 1) for i in range(count))
        rows.append(tuple(None if text is None else str(text) for text in texts))
    return rows
