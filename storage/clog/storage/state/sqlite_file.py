"""The SQLite database of a state table: its tables, its pages, and how it is written and read
(decision 0004).

*Pages*: SQLite keeps at most a quarter of a page of a row in its place. The rest goes to pages of
its own, which it shares with nobody. So four rows of mean length must fit a page with room to
spare; rows too long for any page get small ones, of which the last wastes least.

Not here: which file it is (`generations`), what is asked of it (`cache`), how rows tell damage
(`row_checks`).
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_digest

from clog.storage.format.schema import LogSchema, schema_from_json, schema_to_json
from clog.storage.state.disk import is_of_disk
from clog.storage.state.row_checks import START, DamagedCacheError, Row, check, checked, tag

SCHEMA = 5
"""Of the tables below and the size of their pages; a file of another one is built anew."""
PAGES = ((2 << 10, 16 << 10), (12 << 10, 64 << 10))
"""Up to which mean length of key and value the pages have which size."""
LONG_ROWS_PAGE_BYTES = 4096
"""Size of the pages where rows are longer."""
READER_CACHE_KIB = 65_536
BUSY_S = 60
"""How long a refresh waits for whoever else has the file locked."""
Rows = Iterable[Iterable[Row]]

_POSITION = "create table position (schema integer, body blob, checksum blob)"
_STATE = (
    "create table state (key blob, partition integer, offset integer, timestamp integer,"
    " checksum blob, tag blob, value blob, primary key (key, partition)) without rowid"
)
TABLES = (_POSITION, _STATE)
_AFTER = """(
  select * from (
    select a.key, a.partition from state a where (a.key, a.partition) > (row.key, row.partition)
    order by a.key, a.partition limit 1
  ) union all select x'', -1 limit 1
)"""
_COME = """create trigger come after insert on state begin
  update state set tag = (select tag from state where (key, partition) = {after})
    where key = new.key and partition = new.partition;
  update state set tag = new.tag where (key, partition) = {after};
end""".replace("{after}", _AFTER.replace("row.", "new."))
_GO = """create trigger go after delete on state begin
  update state set tag = old.tag where (key, partition) = {after};
end""".replace("{after}", _AFTER.replace("row.", "old."))
TRIGGERS = _COME, _GO
"""They keep the tags, once all rows of the build are there: a row comes with its own, and changes
it for that in the row after it.
"""
_STAGED = (
    "create temp table if not exists staged (key blob, partition integer, offset integer,"
    " timestamp integer, checksum blob, tag blob, value blob)"
)
_FILL = (
    "insert or replace into state select * from staged where value is not null"
    " order by key, partition"
)
_ENTER = """
insert into state {rows} on conflict (key, partition) do update set
  offset = excluded.offset, timestamp = excluded.timestamp, checksum = excluded.checksum,
  value = excluded.value
"""
_ENTER_STAGED = _ENTER.replace(
    "{rows}", "select * from staged where value is not null order by key, partition"
)
_ENTER_ROW = _ENTER.replace("{rows}", "values (?, ?, ?, ?, ?, ?, ?)")
_CORRUPT = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_ERROR,  # A statement that does not fit the tables, which it always does.
    }
)


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
    """Turns what SQLite says of a damaged file into `DamagedCacheError`. A class, which costs less
    than a generator.
    """

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, sqlite3.DatabaseError):
            raise_damage(error)


DAMAGE = _Damage()
"""Around all that SQLite does with the file."""


def raise_damage(error: sqlite3.DatabaseError) -> None:
    """Raises if SQLite says by this that the file is damaged.

    Raises:
        DamagedCacheError: it does.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    if code & 0xFF in _CORRUPT and not is_of_disk(error):
        raise DamagedCacheError(str(error)) from error


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
    connection.execute("pragma cell_size_check = on")
    connection.execute("pragma secure_delete = on")  # Nothing may lead to a row that was replaced.
    connection.text_factory = bytes  # So that damage is no matter of what is text.
    if not journal:
        connection.execute("pragma journal_mode = off")
    if read_only:
        connection.execute("pragma query_only = on")
    return connection


def check_whole(connection: sqlite3.Connection, path: Path) -> None:
    """Raises if a file was cut in a page, which SQLite would fill with zeros; or if a damaged
    journal has less than was taken from it into the file already, so that old pages hide new ones.

    Raises:
        DamagedCacheError: it was.
    """
    entered = _entered(path)
    (size,) = connection.execute("pragma page_size").fetchone()
    (last,) = connection.execute("pragma user_version").fetchone()
    if path.stat().st_size % size:
        raise DamagedCacheError("its last page was cut")
    if connection.execute("pragma journal_mode").fetchone() != (b"wal",):
        raise DamagedCacheError("its header is not that of a file with a write-ahead log")
    if entered > last:
        raise DamagedCacheError(f"its journal ends at version {last}, and it has {entered} already")


def _entered(path: Path) -> int:
    """Returns the version of the log that the file shows without its journal."""
    # Through SQLite: whoever else in a process closes a file takes all locks of the process away,
    # and then the next process that closes it takes itself for the last, and deletes the journal.
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as alone:
        alone.execute("pragma writable_schema = on")  # The journal may have more pages.
        (version,) = alone.execute("pragma user_version").fetchone()
    entered: int = version
    return entered


def stage(connection: sqlite3.Connection, rows: Rows) -> None:
    """Puts rows aside, so that they are entered in the order of keys, each page written once."""
    connection.execute(_STAGED)
    for some in rows:
        connection.executemany("insert into staged values (?, ?, ?, ?, ?, ?, ?)", checked(some))


def page_bytes(connection: sqlite3.Connection) -> int:
    """Returns the size of pages that the staged rows waste least of."""
    (mean,) = connection.execute(
        "select avg(ifnull(length(key), 0) + length(value)) from staged"
    ).fetchone()
    return next((size for up_to, size in PAGES if (mean or 0) <= up_to), LONG_ROWS_PAGE_BYTES)


def fill(connection: sqlite3.Connection) -> None:
    """Enters the staged rows that have a value into a new table, in the order of their keys."""
    connection.execute(_FILL)
    before = tag(*START)

    def tag_before(own: bytes) -> bytes:
        nonlocal before
        told, before = before, own
        return told

    connection.create_function("tag_before", 1, tag_before)
    connection.execute("update state set tag = tag_before(tag)")
    (start,) = checked([(*START, 0, 0, b"")])
    connection.execute(_ENTER_ROW, (*start[:5], before, b""))


def enter(connection: sqlite3.Connection) -> None:
    """Enters the staged rows, in the order of their keys; those without a value delete."""
    connection.execute(_ENTER_STAGED)
    connection.execute(
        "delete from state where (key, partition) in"
        " (select key, partition from staged where value is null)"
    )


def enter_sorted(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Enters rows that are in the order of their keys; those without a value delete."""
    connection.executemany(_ENTER_ROW, checked(row for row in rows if row[4] is not None))
    gone = [row[:2] for row in rows if row[4] is None]
    connection.executemany("delete from state where key = ? and partition = ?", gone)


def delete_below(connection: sqlite3.Connection, partition: int, start: int) -> None:
    """Deletes the rows of a partition below an offset.

    Raises:
        DamagedCacheError: one of them is not what was written, and may not be below it.
    """
    damage: list[DamagedCacheError] = []

    def is_right(key: Any, offset: Any, timestamp: Any, checksum: Any, value: Any) -> bool:
        try:
            check(key, (partition, offset, timestamp), checksum, value)
        except DamagedCacheError as e:
            damage.append(e)
        return not damage

    connection.create_function("is_right", 5, is_right)
    connection.execute(
        "delete from state where partition = ? and offset < ?"
        " and is_right(key, offset, timestamp, checksum, value)",
        (partition, start),
    )
    if damage:
        raise damage[0]


def move(connection: sqlite3.Connection, position: Position) -> None:
    """Says what the rows are the state of."""
    partitions = [[p, at, position.starts[p]] for p, at in sorted(position.offsets.items())]
    same = position.log_id, position.version, position.commit_id
    body = json.dumps([*same, partitions, schema_to_json(position.schema)]).encode()
    connection.execute("delete from position")
    connection.execute(
        "insert into position values (?, ?, ?)", (SCHEMA, body, xxh3_64_digest(body))
    )
    connection.execute(f"pragma user_version = {position.version & 0x7FFFFFFF}")


def position(connection: sqlite3.Connection) -> Position:
    """Returns what the rows are the state of.

    Raises:
        DamagedCacheError: the file does not say so.
    """
    rows = connection.execute("select * from position").fetchall()
    if not rows:
        raise DamagedCacheError("it has no position")
    if rows[0][0] != SCHEMA:
        raise DamagedCacheError(f"its schema is {rows[0][0]}, expected {SCHEMA}")
    _, body, checksum = rows[0]
    if len(rows) > 1 or type(body) is not bytes or xxh3_64_digest(body) != checksum:
        raise DamagedCacheError("the position in it is not what was written")
    log_id, version, commit_id, partitions, types = json.loads(body)
    offsets = {p: offset for p, offset, _ in partitions}
    starts = {p: start for p, _, start in partitions}
    return Position(log_id, version, commit_id, offsets, starts, schema_from_json(types))
