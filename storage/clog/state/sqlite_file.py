"""The SQLite database of a state table: its tables, its pages, how it is written and read, and how
its rows prove that they are what was written, and that none is missing (decision 0004). Who asks
knows `SqliteFile`, and rows as bytes.

*Proof.* SQLite has no checksums, so a byte that changes on the disk may change a value, or lead a
search past a key. Each row has two hashes against that:

- its *checksum*, of all that a look-up answers by: what is found is what was written;
- the *tag* of the row before it. A tag is of key and partition. So two neighbours tell that no row
  between them is missing, and that a key is not there.

Before all rows stands one that is none (`START`), and has the tag of the last. Triggers keep the
tags, where rows come and go one by one.

*Identity.* Somebody may delete the file while it is open, alone or with its folder, and another may
come to stand in its place: who has it open goes on with a file without a name, which nobody else
sees or locks. So a file that is open has an *identity*: device and inode, of it and of its journal,
which are no other file's until it is closed.

*Pages.* SQLite keeps at most a quarter of a page of a row in its place. The rest goes to pages of
its own, which it shares with nobody. So four rows of mean length must fit a page with room to
spare; rows too long for any page get small ones, of which the last wastes least.
"""

import errno
import json
import os
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_digest, xxh3_64_hexdigest

from clog.storage.env import dataclass
from clog.storage.format.log_info import LogSchema, schema_from_json, schema_to_json

Row = tuple[bytes, int, int, int, bytes | None]
"""Key, partition, offset, timestamp in µs, value."""
Checked = tuple[bytes, int, int, int, bytes, bytes, bytes | None]
"""Key, partition, offset, timestamp in µs, checksum, own tag, value."""
Found = tuple[int, int, bytes, int, bytes]
"""Timestamp, partition, value, offset, checksum: of a row that was found."""
START = b"", -1
"""Key and partition of the row before all others."""
_AT_ONCE = 1_000
_pack_numbers = struct.Struct("<qqqq").pack
Inode = tuple[int, int] | None
Identity = tuple[Inode, Inode]

_JOURNAL = "-wal"
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
SCHEMA = 5
"""Of the tables below and the size of their pages; a file of another one is built anew."""
_PAGES = ((2 << 10, 16 << 10), (12 << 10, 64 << 10))
"""Up to which mean length of key and value the pages have which size."""
_LONG_ROWS_PAGE_BYTES = 4096
"""Size of the pages where rows are longer."""
_CACHE_KIB = 65_536
_BUSY_S = 60
"""How long a refresh waits for whoever else has the file locked."""
Rows = Iterable[Iterable[Row]]

_POSITION = "create table position (schema integer, body blob, checksum blob)"
_STATE = (
    "create table state (key blob, partition integer, offset integer, timestamp integer,"
    " checksum blob, tag blob, value blob, primary key (key, partition)) without rowid"
)
_TABLES = (_POSITION, _STATE)
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
_TRIGGERS = _COME, _GO
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
GET_MANY_KEYS = 500
"""Keys asked for by one statement: SQLite allows at least 999 parameters."""
_GONE = "it was deleted, or another one stands in its place"

_GET = (
    "select timestamp, partition, value, offset, checksum from state"
    " where key = ? and partition >= 0"
)
_GET_MANY = (
    "select key, timestamp, partition, value, offset, checksum from state"
    " where key in ({}) and partition >= 0 order by key"
)
_START = (
    "select key, partition, offset, timestamp, checksum, tag, value from state"
    " where key = x'' and partition = -1"
)
_AROUND = """
select * from (
  select key, partition, offset, timestamp, checksum, tag, value from state
  where key <= ? order by key desc, partition desc limit 1
) union all select * from (
  select * from (
    select key, partition, offset, timestamp, checksum, tag, value from state
    where key > ? order by key, partition limit 1
  ) union all select key, partition, offset, timestamp, checksum, tag, value from state
    where key = x'' and partition = -1 limit 1
)
"""
_SCAN = (
    "select key, partition, offset, timestamp, checksum, tag, value from state"
    " where key >= ifnull((select max(key) from state where key < ?), x'') order by key, partition"
)


class DamagedCacheError(Exception):
    """The file is not what was written; build it anew."""


@dataclass(frozen=True, slots=True)
class Position:
    """What the rows are the state of: a version of a log, made by this commit, all offsets below
    ``offsets``; log starts were ``starts``. ``schema`` is the log's at that version, and ``order``
    tells by what records of a key are compared then: empty by offset.
    """

    log_id: str
    version: int
    commit_id: str
    offsets: Mapping[int, int]
    starts: Mapping[int, int]
    schema: LogSchema | None = None
    order: str = ""


class SqliteFile:
    """One file of a state table, whole and in its place when it is opened. Its owner serialises
    look-ups; a `Snapshot` may be read beside them, and one process at a time may `apply`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inherited: list[sqlite3.Connection] = []
        with _DAMAGE:
            self._reader = connect(path, read_only=True)
            _check_whole(self._reader, path)
            self.schema = position(self._reader).schema
        self._identity = _identity(path)
        if None in self._identity:
            raise DamagedCacheError(_GONE)

    @staticmethod
    def build(path: Path, position: Position, rows: Rows) -> None:
        """Writes a new file. Rows are sorted by SQLite in bounded memory and written in the order
        of their keys, without a journal: what a crash leaves is not looked at.
        """
        with closing(connect(path, journal=False)) as connection:
            mine, _ = _identity(path)
            connection.execute("begin")
            _stage(connection, rows)
            connection.execute("commit")
            # Outside a transaction and before the first table, else SQLite ignores it.
            connection.execute(f"pragma page_size = {_page_bytes(connection)}")
            connection.execute("begin")
            for statement in _TABLES:
                connection.execute(statement)
            fill(connection)
            for statement in _TRIGGERS:
                connection.execute(statement)
            move(connection, position)
            connection.execute("commit")
            connection.execute("pragma journal_mode = wal")
        if _identity(path)[0] != mine:
            raise DamagedCacheError("it was deleted while it was built")

    def reopen(self) -> None:
        """Opens it anew in a forked child, where SQLite's connections must neither be used nor
        closed.
        """
        self._inherited.append(self._reader)
        with suppress(sqlite3.Error):
            self._reader = connect(self._path, read_only=True)

    def close(self) -> None:
        self._reader.close()

    def is_in_place(self) -> bool:
        """Tells whether it is the one that stands at its path, and so with its journal."""
        return _identity(self._path) == self._identity

    def check_place(self) -> None:
        """Raises if a connection that has read may be to another file."""
        if not self.is_in_place():
            raise DamagedCacheError(_GONE)

    def check_journal(self) -> None:
        """Raises if it is in place and its journal is not, so that nobody may open it."""
        file, journal = _identity(self._path)
        if file == self._identity[0] and journal != self._identity[1]:
            raise DamagedCacheError("its journal was deleted, or another one stands in its place")

    def position(self) -> Position:
        """Returns what the rows are the state of."""
        with _DAMAGE:
            return position(self._reader)

    def rows_of(self, key: bytes, *, may_lack: bool = False) -> list[Found]:
        """Returns the rows of a key; raises where the file does not tell that there are none, but
        if it ``may_lack`` them.
        """
        try:  # In place of `_DAMAGE`: half a microsecond less.
            rows = self._reader.execute(_GET, (key,)).fetchall()
            if not rows and not may_lack:
                rows = self._just_entered(key)
        except sqlite3.DatabaseError as e:
            _raise_damage(e)
            raise
        for timestamp, partition, value, offset, checksum in rows:
            _check(key, (partition, offset, timestamp), checksum, value)
        return rows

    def _just_entered(self, key: bytes) -> list[Found]:
        """Returns the rows of a key that was not found."""
        around = self._reader.execute(_AROUND, (key, key)).fetchall()
        if not around or around[0][0] != key or around[0][:2] == START:
            _check_gap(around)
            return []
        rows = self._reader.execute(_GET, (key,)).fetchall()  # Another process was here.
        if not rows:
            raise DamagedCacheError("a search misses a row that is there")
        return rows

    def rows_of_many(self, keys: Sequence[bytes]) -> dict[bytes, list[Found]]:
        """Returns the rows of keys, by key, of those that are found."""
        found: list[tuple[Any, ...]] = []
        with _DAMAGE:
            for first in range(0, len(keys), GET_MANY_KEYS):
                some = keys[first : first + GET_MANY_KEYS]
                found += self._reader.execute(_GET_MANY.format(",".join("?" * len(some))), some)
        for key, timestamp, partition, value, offset, checksum in found:
            _check(key, (partition, offset, timestamp), checksum, value)
        return {key: [row[1:] for row in rows] for key, rows in groupby(found, lambda row: row[0])}

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Shows one state of the file to all that is asked."""
        with _DAMAGE:
            self._reader.execute("begin")
            try:
                yield
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("commit")

    def snapshot(self) -> "Snapshot":
        """Returns the file as it is when its rows are first asked for."""
        return Snapshot(self._path)

    def apply(
        self,
        position_after: Position,
        waiting: Sequence[Row],
        rows: Rows,
        committing: AbstractContextManager[None],
    ) -> None:
        """Enters what waits, in the order of its keys, then rows, deletes those whose value is null
        and those below the log start, and moves to the position; all or nothing.
        """
        with _DAMAGE, closing(connect(self._path)) as connection:
            before = position(connection)
            self.check_place()
            _stage(connection, rows)
            connection.execute("begin immediate")
            if waiting:
                enter_sorted(connection, waiting)
            _enter(connection)
            for p, start in position_after.starts.items():
                if start > before.starts.get(p, 0):
                    _delete_below(connection, p, start)
            move(connection, position_after)
            with committing:
                connection.execute("commit")


class Snapshot:
    """One state of a file, through a connection of its own; a worker, to be closed."""

    def __init__(self, path: Path) -> None:
        with _DAMAGE:
            self._connection = connect(path, read_only=True)

    def rows(
        self, low: bytes = b"", high: bytes | None = None
    ) -> Iterator[tuple[bytes, int, int, bytes]]:
        """Yields key, timestamp, partition and value of the rows that are now there, from ``low``
        on and below ``high``, None: all.
        """
        with _DAMAGE:
            self._connection.execute("begin")
            start = self._connection.execute(_START).fetchall()
            scan = self._connection.execute(_SCAN, (low,))
        return self._rows(chain(scan, start), low, high)

    def _rows(
        self, rows: Iterable[tuple[Any, ...]], low: bytes, high: bytes | None
    ) -> Iterator[tuple[bytes, int, int, bytes]]:
        with _DAMAGE:
            yield from (row for row in _check_rows(rows, high) if row[0] >= low)

    def position(self) -> Position:
        """Returns what its rows are the state of."""
        with _DAMAGE:
            return position(self._connection)

    def close(self) -> None:
        self._connection.close()


def _tag(key: bytes, partition: int) -> bytes:
    """Returns by what the row after this one knows it."""
    return xxh3_64_digest(key, partition)


def _checked(rows: Iterable[Row]) -> Iterator[Checked]:
    """Yields rows with their checksums and tags; the checksum of one that deletes is of no use."""
    left = iter(rows)
    while some := list(islice(left, _AT_ONCE)):
        keys, partitions, offsets, timestamps, values = zip(*some, strict=True)
        numbers = map(_pack_numbers, map(len, keys), partitions, offsets, timestamps)
        contents = [value or b"" for value in values] if None in values else values
        checksums = map(xxh3_64_digest, map(b"".join, zip(numbers, keys, contents, strict=True)))
        tags = map(xxh3_64_digest, keys, partitions)
        columns = keys, partitions, offsets, timestamps, checksums, tags, values
        yield from zip(*columns, strict=True)


def _check(key: bytes, numbers: tuple[int, int, int], checksum: bytes, value: bytes) -> None:
    """Raises if a row, of this partition, offset and timestamp, is not what was written."""
    try:
        data = _pack_numbers(len(key), *numbers) + key + value
    except (TypeError, struct.error) as e:
        raise DamagedCacheError("a row has fields of other types than were written") from e
    if xxh3_64_digest(data) != checksum:
        raise DamagedCacheError(
            f"the xxh3_64 of the row at offset {numbers[1]} of partition {numbers[0]} is"
            f" {xxh3_64_hexdigest(data)}, which is not the one written with it"
        )


def _check_gap(around: Sequence[tuple[Any, ...]]) -> None:
    """Raises if a row may be missing between two: the one before it, and the one after it, after
    the last `START`; both as `_check_rows` takes them.
    """
    if len(around) != 2:
        raise DamagedCacheError("its first row is missing")
    before, (key, partition, offset, timestamp, checksum, tag_before, value) = around
    _check(key, (partition, offset, timestamp), checksum, value)
    _check_before(before, tag_before, partition, offset)


def _check_rows(
    rows: Iterable[tuple[Any, ...]], high: bytes | None
) -> Iterator[tuple[bytes, int, int, bytes]]:
    """Yields key, timestamp, partition and value of the rows below ``high``, None: of all. They are
    taken with key, partition, offset, timestamp, checksum, tag and value, from one that comes
    before all that is asked for on, and up to one that comes after, after the last `START`.
    """
    before: tuple[Any, ...] | None = None
    for row in rows:
        key, partition, offset, timestamp, checksum, tag_before, value = row
        _check(key, (partition, offset, timestamp), checksum, value)
        if before is not None:
            _check_before(before, tag_before, partition, offset)
            if row[:2] == START or (high is not None and key >= high):
                return
        before = row
        if row[:2] != START:
            yield key, timestamp, partition, value
    raise DamagedCacheError("its first row is missing")


def _check_before(before: tuple[Any, ...], known: bytes, partition: int, offset: int) -> None:
    """Raises if a row is not the one that is known, by this tag, to come before another."""
    try:
        own = _tag(*before[:2])
    except (TypeError, OverflowError) as e:
        raise DamagedCacheError("a row has fields of other types than were written") from e
    if own != known:
        raise DamagedCacheError(
            f"the row before the one at offset {offset} of partition {partition} is not the one"
            " that was written there"
        )


def _identity(path: Path) -> Identity:
    """Returns which file stands there now, and which journal; None for what does not."""
    return _inode(path), _inode(path.with_name(path.name + _JOURNAL))


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


def _inode(path: Path) -> Inode:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _Damage:
    """Turns what SQLite says of a damaged file into `DamagedCacheError`. A class, which costs less
    than a generator.
    """

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, sqlite3.DatabaseError):
            _raise_damage(error)


_DAMAGE = _Damage()
"""Around all that SQLite does with the file."""


def _raise_damage(error: sqlite3.DatabaseError) -> None:
    """Raises if SQLite says by this that the file is damaged."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    if code & 0xFF in _CORRUPT and not is_of_disk(error):
        raise DamagedCacheError(str(error)) from error


def connect(path: Path, *, read_only: bool = False, journal: bool = True) -> sqlite3.Connection:
    """Opens a file that is there; without ``journal`` a new one, which is only built."""
    # A file that is gone must not come back as an empty one.
    uri = f"{path.absolute().as_uri()}?mode={'rw' if journal else 'rwc'}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    # No mmap: a file that lost its end would kill the process.
    connection.execute(f"pragma cache_size = -{_CACHE_KIB}")
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


def _check_whole(connection: sqlite3.Connection, path: Path) -> None:
    """Raises if a file was cut in a page, which SQLite would fill with zeros; or if a damaged
    journal has less than was taken from it into the file already, so that old pages hide new ones.
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


def _stage(connection: sqlite3.Connection, rows: Rows) -> None:
    """Puts rows aside, so that they are entered in the order of keys, each page written once."""
    connection.execute(_STAGED)
    for some in rows:
        connection.executemany("insert into staged values (?, ?, ?, ?, ?, ?, ?)", _checked(some))


def _page_bytes(connection: sqlite3.Connection) -> int:
    """Returns the size of pages that the staged rows waste least of."""
    (mean,) = connection.execute(
        "select avg(ifnull(length(key), 0) + length(value)) from staged"
    ).fetchone()
    return next((size for up_to, size in _PAGES if (mean or 0) <= up_to), _LONG_ROWS_PAGE_BYTES)


def fill(connection: sqlite3.Connection) -> None:
    """Enters the staged rows that have a value into a new table, in the order of their keys."""
    connection.execute(_FILL)
    before = _tag(*START)

    def tag_before(own: bytes) -> bytes:
        nonlocal before
        told, before = before, own
        return told

    connection.create_function("tag_before", 1, tag_before)
    connection.execute("update state set tag = tag_before(tag)")
    (start,) = _checked([(*START, 0, 0, b"")])
    connection.execute(_ENTER_ROW, (*start[:5], before, b""))


def _enter(connection: sqlite3.Connection) -> None:
    """Enters the staged rows, in the order of their keys; those without a value delete."""
    connection.execute(_ENTER_STAGED)
    connection.execute(
        "delete from state where (key, partition) in"
        " (select key, partition from staged where value is null)"
    )


def enter_sorted(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Enters rows that are in the order of their keys; those without a value delete."""
    connection.executemany(_ENTER_ROW, _checked(row for row in rows if row[4] is not None))
    gone = [row[:2] for row in rows if row[4] is None]
    connection.executemany("delete from state where key = ? and partition = ?", gone)


def _delete_below(connection: sqlite3.Connection, partition: int, start: int) -> None:
    """Deletes the rows of a partition below an offset."""
    damage: list[DamagedCacheError] = []

    def is_right(key: Any, offset: Any, timestamp: Any, checksum: Any, value: Any) -> bool:
        try:
            _check(key, (partition, offset, timestamp), checksum, value)
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
    order = [position.order] if position.order else []
    body = json.dumps([*same, partitions, schema_to_json(position.schema), *order]).encode()
    connection.execute("delete from position")
    connection.execute(
        "insert into position values (?, ?, ?)", (SCHEMA, body, xxh3_64_digest(body))
    )
    connection.execute(f"pragma user_version = {position.version & 0x7FFFFFFF}")


def position(connection: sqlite3.Connection) -> Position:
    """Returns what the rows are the state of."""
    rows = connection.execute("select * from position").fetchall()
    if not rows:
        raise DamagedCacheError("it has no position")
    if rows[0][0] != SCHEMA:
        raise DamagedCacheError(f"its schema is {rows[0][0]}, expected {SCHEMA}")
    _, body, checksum = rows[0]
    if len(rows) > 1 or type(body) is not bytes or xxh3_64_digest(body) != checksum:
        raise DamagedCacheError("the position in it is not what was written")
    log_id, version, commit_id, partitions, types, *order = json.loads(body)
    offsets = {p: offset for p, offset, _ in partitions}
    starts = {p: start for p, _, start in partitions}
    return Position(log_id, version, commit_id, offsets, starts, schema_from_json(types), *order)
