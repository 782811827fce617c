"""The file of a state table: rows, and the position in the log that they are the state of, in one
SQLite database (decision 0004).

*Generation*: a file is built whole under a name that no generation had, and renamed when it is
complete; then the older ones are deleted. So a crash leaves the old one or the new one, and no
journal of one is ever taken for that of the other. A process that reads an older one may go on.

*Pages*: SQLite keeps at most a quarter of a page of a row in its place. The rest goes to pages of
its own, which it shares with nobody. So four rows of mean length must fit a page with room to
spare; rows too long for any page get small ones, of which the last wastes least.

Within a generation a refresh is one transaction, rows and position together. Readers in this and
other processes see the state before it or after it.

Not here: what the log says (`state_table`), locks between processes that write.
"""

import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from clog.storage import forks
from clog.storage.format.schema import LogSchema, schema_from_json, schema_to_json
from clog.storage.numpy_arrays import to_numpy
from clog.storage.state.row_codec import RowCodec

SCHEMA = 4
"""Of the tables below and the size of their pages; a file of another one is built anew."""
PAGES = ((2 << 10, 16 << 10), (12 << 10, 64 << 10))
"""Up to which mean length of key and value the pages have which size."""
LONG_ROWS_PAGE_BYTES = 4096
"""Size of the pages where rows are longer."""
READER_CACHE_KIB = 65_536
BUSY_S = 60
"""How long a refresh waits for whoever else has the file locked."""
GET_MANY_KEYS = 500
"""Keys asked for by one statement: SQLite allows at least 999 parameters."""

Row = tuple[bytes, int, int, int, bytes | None]
"""Key, partition, offset, timestamp in µs, value."""
Rows = Iterable[Iterable[Row]]

_TABLES = """
create table state (
  key blob, partition integer, offset integer, timestamp integer, value blob,
  primary key (key, partition)
) without rowid;
create table position (
  schema integer, log_id text, version integer, commit_id text, types text,
  partition integer, offset integer, start integer
);
"""
_GET = "select timestamp, partition, value from state where key = ?"
_GET_MANY = "select key, timestamp, partition, value from state where key in ({}) order by key"
_SCAN = "select key, timestamp, partition, value from state where key >= ? order by key"
_SCAN_BELOW = (
    "select key, timestamp, partition, value from state where key >= ? and key < ? order by key"
)
_STAGED = (
    "create temp table if not exists"
    " staged (key blob, partition integer, offset integer, timestamp integer, value blob)"
)
_CORRUPT = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
    }
)


class DamagedCacheError(Exception):
    """The file is not what was written; build it anew."""


@dataclass(frozen=True, slots=True)
class Position:
    """What the rows are the state of: a version of a log, made by this commit, all offsets below
    ``offsets``; log starts were ``starts``. ``schema`` is the log's at that version.
    """

    log_id: str
    version: int
    commit_id: str
    offsets: Mapping[int, int]
    starts: Mapping[int, int]
    schema: LogSchema | None = None


class Cache:
    """One generation. Threads may share it; one process at a time may `apply`.

    Attributes:
        path: its file.
        generation: its number.
    """

    def __init__(self, path: Path, generation: int) -> None:
        self.path = path
        self.generation = generation
        self._lock = forks.Lock()
        self._inherited: list[sqlite3.Connection] = []
        with _DAMAGE:
            self._reader = _connect(path, read_only=True)
            self._codec = RowCodec(_position(self._reader).schema)
        forks.register(self)

    def after_fork(self) -> None:
        """Opens the file anew: SQLite's connections must neither be used nor closed in a child."""
        self._inherited.append(self._reader)
        with suppress(sqlite3.Error):
            self._reader = _connect(self.path, read_only=True)

    def close(self) -> None:
        with self._lock:
            self._reader.close()

    def switch(self, newer: "Cache") -> None:
        """Goes on as a newer generation, which it closes; no `get` fails meanwhile."""
        newer.close()
        with _DAMAGE, self._lock:
            self._reader.close()
            self._reader = _connect(newer.path, read_only=True)
            self._codec = RowCodec(_position(self._reader).schema)
            self.path, self.generation = newer.path, newer.generation

    def position(self) -> Position:
        """Returns the position in the log up to which the rows are.

        Raises:
            DamagedCacheError: the file does not say so.
        """
        with _DAMAGE, self._lock:
            return _position(self._reader)

    def get(self, key: Any) -> Any:
        """Returns the value; of a key that several partitions have, the one with the latest
        timestamp.
        """
        with _DAMAGE, self._lock:
            codec = self._codec
            rows = self._reader.execute(_GET, codec.keys((key,))).fetchall()
        return codec.value(_latest(rows)) if rows else None

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Returns the values of the keys that are there."""
        found: list[tuple[Any, ...]] = []
        with _DAMAGE, self._lock:
            codec = self._codec
            asked = codec.keys(keys)
            for first in range(0, len(asked), GET_MANY_KEYS):
                some = asked[first : first + GET_MANY_KEYS]
                marks = ",".join("?" * len(some))
                found += self._reader.execute(_GET_MANY.format(marks), some)
        latest = {k: _latest([row[1:] for row in rows]) for k, rows in groupby(found, _key)}
        return {codec.key(key): codec.value(value) for key, value in latest.items()}

    def scan(self, prefix: Any) -> Iterator[tuple[Any, Any]]:
        """Yields the rows whose keys begin with the prefix, None: all, in the order of their bytes;
        one state of the table, through a connection of its own.
        """
        codec = self._codec
        low = codec.prefix(prefix)
        high = after_prefix(low)
        statement, bounds = (_SCAN, (low,)) if high is None else (_SCAN_BELOW, (low, high))
        with _DAMAGE, closing(_connect(self.path, read_only=True)) as connection:
            rows = connection.execute(statement, bounds)
            for key, same in groupby(rows, _key):
                yield codec.key(key), codec.value(_latest([row[1:] for row in same]))

    def count(self) -> int:
        """Returns the number of rows."""
        with _DAMAGE, self._lock:
            (number,) = self._reader.execute("select count(*) from state").fetchone()
        return int(number)

    def apply(self, position: Position, rows: Rows) -> None:
        """Enters rows, deletes those whose value is null and those below the log start, and moves
        to the position; all or nothing.
        """
        with _DAMAGE, closing(_connect(self.path)) as connection:
            before = _position(connection)
            _stage(connection, rows)
            connection.execute("begin immediate")
            _enter(connection)
            connection.execute(
                "delete from state where (key, partition) in"
                " (select key, partition from staged where value is null)"
            )
            for p, start in position.starts.items():
                if start > before.starts.get(p, 0):
                    connection.execute(
                        "delete from state where partition = ? and offset < ?", (p, start)
                    )
            _move(connection, position)
            connection.execute("commit")


def newest(folder: Path, name: str) -> Cache | None:
    """Returns the newest generation there is.

    Raises:
        DamagedCacheError: it cannot be opened.
    """
    generation = newest_generation(folder, name)
    return None if generation == 0 else Cache(_path(folder, name, generation), generation)


def newest_generation(folder: Path, name: str) -> int:
    """Returns the number of the newest generation; 0 when there is none."""
    pattern = re.compile(rf"{re.escape(name)}\.(\d+)\.sqlite3")
    found = (pattern.fullmatch(path.name) for path in folder.iterdir())
    return max((int(match[1]) for match in found if match), default=0)


def build(folder: Path, name: str, position: Position, rows: Rows) -> Cache:
    """Builds the next generation. The caller sees to it that nobody else does.

    Rows are sorted by SQLite in bounded memory and written in the order of their keys, without a
    journal: what a crash leaves is not looked at.
    """
    building = folder / f"{name}.building"
    building.unlink(missing_ok=True)
    try:
        with closing(_connect(building, journal=False)) as connection:
            connection.execute("begin")
            _stage(connection, rows)
            connection.execute("commit")
            # Outside a transaction and before the first table, else SQLite ignores it.
            connection.execute(f"pragma page_size = {_page_bytes(connection)}")
            connection.execute("begin")
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            _enter(connection)
            _move(connection, position)
            connection.execute("commit")
            connection.execute("pragma journal_mode = wal")
    except BaseException:
        building.unlink(missing_ok=True)  # Else a disk that is full stays so.
        raise
    generation = newest_generation(folder, name) + 1
    path = _path(folder, name, generation)
    _sync(building)
    building.rename(path)
    _sync(folder)
    cache = Cache(path, generation)
    for older in folder.glob(f"{name}.*.sqlite3*"):
        if not older.name.startswith(path.name):
            with suppress(FileNotFoundError):
                older.unlink()
    return cache


def rows_of(batch: pa.RecordBatch, codec: RowCodec) -> Iterable[Row]:
    """Returns a batch as SQLite takes it: column by column, without a step of Python for each
    row.
    """
    batch = codec.columns(batch)

    def values(name: str) -> list[Any]:
        column = batch.column(name)
        numbers = not pa.types.is_binary(column.type)
        listed: list[Any] = to_numpy(column).tolist() if numbers else column.to_pylist()
        return listed

    return zip(*map(values, ("key", "partition", "offset", "timestamp", "value")), strict=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _path(folder: Path, name: str, generation: int) -> Path:
    return folder / f"{name}.{generation}.sqlite3"


def _connect(path: Path, *, read_only: bool = False, journal: bool = True) -> sqlite3.Connection:
    # A file that is gone must not come back as an empty one.
    uri = f"{path.absolute().as_uri()}?mode={'rw' if journal else 'rwc'}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )
    # No mmap: a file that lost its end would kill the process.
    connection.execute(f"pragma cache_size = -{READER_CACHE_KIB}")
    # A refresh that a power failure takes back is read again from the log.
    connection.execute(f"pragma synchronous = {'normal' if journal else 'off'}")
    connection.execute("pragma journal_size_limit = 67108864")
    if not journal:
        connection.execute("pragma journal_mode = off")
    if read_only:
        connection.execute("pragma query_only = on")
    return connection


def _stage(connection: sqlite3.Connection, rows: Rows) -> None:
    """Puts rows aside, so that they are entered in the order of keys, each page written once."""
    connection.execute(_STAGED)
    for some in rows:
        connection.executemany("insert into staged values (?, ?, ?, ?, ?)", some)


def _page_bytes(connection: sqlite3.Connection) -> int:
    """Returns the size of pages that the staged rows waste least of."""
    (mean,) = connection.execute(
        "select avg(ifnull(length(key), 0) + length(value)) from staged"
    ).fetchone()
    return next((size for up_to, size in PAGES if (mean or 0) <= up_to), LONG_ROWS_PAGE_BYTES)


def _enter(connection: sqlite3.Connection) -> None:
    connection.execute(
        "insert or replace into state select key, partition, offset, timestamp, value"
        " from staged where value is not null order by key, partition"
    )


def _move(connection: sqlite3.Connection, position: Position) -> None:
    connection.execute("delete from position")
    types = json.dumps(schema_to_json(position.schema))
    same = SCHEMA, position.log_id, position.version, position.commit_id, types
    connection.executemany(
        "insert into position values (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (*same, p, offset, start)
            for (p, offset), start in zip(
                position.offsets.items(), position.starts.values(), strict=True
            )
        ],
    )


def _position(connection: sqlite3.Connection) -> Position:
    rows = connection.execute("select * from position order by partition").fetchall()
    if not rows:
        raise DamagedCacheError("it has no position")
    if rows[0][0] != SCHEMA:
        raise DamagedCacheError(f"its schema is {rows[0][0]}, expected {SCHEMA}")
    if any(len(row) != 8 or row[:5] != rows[0][:5] for row in rows):
        raise DamagedCacheError("it has no position")
    _, log_id, version, commit_id, types = rows[0][:5]
    offsets, starts = ({row[5]: row[column] for row in rows} for column in (6, 7))
    try:
        schema = schema_from_json(json.loads(types))
    except (ValueError, KeyError, TypeError) as e:
        raise DamagedCacheError(f"it has no schema of its log: {e}") from e
    return Position(log_id, version, commit_id, offsets, starts, schema)


def _key(row: tuple[Any, ...]) -> bytes:
    key: bytes = row[0]
    return key


def _latest(rows: list[tuple[Any, ...]]) -> bytes:
    """Returns the value of (timestamp, partition, value) that is latest; nearly always there is
    one.
    """
    value: bytes = (rows[0] if len(rows) == 1 else max(rows, key=lambda row: row[:2]))[2]
    return value


class _Damage:
    """Turns what SQLite says of a damaged file into `DamagedCacheError`.

    A class and not a generator: it is around every `get`.
    """

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, sqlite3.DatabaseError):
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
            missing = code == sqlite3.SQLITE_ERROR and "no such table" in str(error)
            if code & 0xFF in _CORRUPT or missing:
                raise DamagedCacheError(str(error)) from error


_DAMAGE = _Damage()


def after_prefix(prefix: bytes) -> bytes | None:
    """Returns the first key after all those with the prefix; None when there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
