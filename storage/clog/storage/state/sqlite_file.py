"""The SQLite database of a state table: its tables, its pages, and how it is written and read
(decision 0004).

*Pages*: SQLite keeps at most a quarter of a page of a row in its place. The rest goes to pages of
its own, which it shares with nobody. So four rows of mean length must fit a page with room to
spare; rows too long for any page get small ones, of which the last wastes least.

Not here: which file it is (`generations`), what is asked of it (`cache`).
"""

import errno
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clog.storage.format.schema import LogSchema, schema_from_json, schema_to_json

SCHEMA = 4
"""Of the tables below and the size of their pages; a file of another one is built anew."""
PAGES = ((2 << 10, 16 << 10), (12 << 10, 64 << 10))
"""Up to which mean length of key and value the pages have which size."""
LONG_ROWS_PAGE_BYTES = 4096
"""Size of the pages where rows are longer."""
READER_CACHE_KIB = 65_536
BUSY_S = 60
"""How long a refresh waits for whoever else has the file locked."""
Row = tuple[bytes, int, int, int, bytes | None]
"""Key, partition, offset, timestamp in µs, value."""
Rows = Iterable[Iterable[Row]]

TABLES = """
create table state (
  key blob, partition integer, offset integer, timestamp integer, value blob,
  primary key (key, partition)
) without rowid;
create table position (
  schema integer, log_id text, version integer, commit_id text, types text,
  partition integer, offset integer, start integer
);
"""
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


_UNWRITTEN = frozenset(
    {
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_DIR_FSYNC,
        sqlite3.SQLITE_IOERR_TRUNCATE,
        sqlite3.SQLITE_IOERR_SHMSIZE,
    }
)
"""What SQLite says where a quota is used up, or a file may not grow."""
_OF_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})


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


class _Damage:
    """Turns what SQLite says of a damaged file into `DamagedCacheError`.

    A class and not a generator: it is around every `get`.
    """

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, sqlite3.DatabaseError) and not is_of_disk(error):
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
            missing = code == sqlite3.SQLITE_ERROR and "no such table" in str(error)
            if code & 0xFF in _CORRUPT or missing:
                raise DamagedCacheError(str(error)) from error


DAMAGE = _Damage()
"""Around all that SQLite does with the file."""


def is_of_disk(error: Exception) -> bool:
    """Tells whether an error says that the disk has no room, or may not be written."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
        return code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY) or code in _UNWRITTEN
    return isinstance(error, OSError) and error.errno in _OF_DISK


def temporary_folder() -> str:
    """Returns where SQLite keeps temporary files, as far as its rules tell: it does not say so."""
    named = [os.environ.get(name) for name in ("SQLITE_TMPDIR", "TMPDIR")]
    folders = [*filter(None, named), "/var/tmp", "/usr/tmp", "/tmp"]  # noqa: S108 none is made here
    return next((f for f in folders if Path(f).is_dir() and os.access(f, os.W_OK | os.X_OK)), ".")


def connect(path: Path, *, read_only: bool = False, journal: bool = True) -> sqlite3.Connection:
    """Opens a file that is there; without ``journal`` a new one, which is only built."""
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


def check_whole(connection: sqlite3.Connection, path: Path) -> None:
    """Raises if a file was cut in a page: SQLite would take what is missing for zeros.

    Raises:
        DamagedCacheError: it was.
    """
    (size,) = connection.execute("pragma page_size").fetchone()
    if path.stat().st_size % size:
        raise DamagedCacheError("its last page was cut")


def stage(connection: sqlite3.Connection, rows: Rows) -> None:
    """Puts rows aside, so that they are entered in the order of keys, each page written once."""
    connection.execute(_STAGED)
    for some in rows:
        connection.executemany("insert into staged values (?, ?, ?, ?, ?)", some)


def page_bytes(connection: sqlite3.Connection) -> int:
    """Returns the size of pages that the staged rows waste least of."""
    (mean,) = connection.execute(
        "select avg(ifnull(length(key), 0) + length(value)) from staged"
    ).fetchone()
    return next((size for up_to, size in PAGES if (mean or 0) <= up_to), LONG_ROWS_PAGE_BYTES)


def enter(connection: sqlite3.Connection) -> None:
    """Enters the staged rows that have a value, in the order of their keys."""
    connection.execute(
        "insert or replace into state select key, partition, offset, timestamp, value"
        " from staged where value is not null order by key, partition"
    )


def enter_sorted(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Enters rows that are in the order of their keys; those without a value delete."""
    there = [row for row in rows if row[4] is not None]
    gone = [row[:2] for row in rows if row[4] is None]
    connection.executemany("insert or replace into state values (?, ?, ?, ?, ?)", there)
    connection.executemany("delete from state where key = ? and partition = ?", gone)


def move(connection: sqlite3.Connection, position: Position) -> None:
    """Says what the rows are the state of."""
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


def position(connection: sqlite3.Connection) -> Position:
    """Returns what the rows are the state of.

    Raises:
        DamagedCacheError: the file does not say so.
    """
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
