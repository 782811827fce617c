"""One file of a state table, what waits in memory to be entered into it, and what is not committed.

The file holds rows, and the position in the log that they are the state of. A refresh is one
transaction, rows and position together: readers in this and other processes see the state before
it or after it. Keys and values are bytes everywhere here.

*Waiting* rows. A page of the file is written for each row that is entered by itself; of rows that
wait, and are entered together in the order of their keys, many share one, and of a key that changes
again and again only the last is entered. They are in the log already, so a crash takes nothing:
whoever opens the file next reads them again from there. So that this is little, few versions wait,
and few bytes. They are all that the log got since the file's position when the first of them came:
where another process moves the file meanwhile, it lacks nothing with them, and they are forgotten
once it is as far by itself.

*Uncommitted* changes: of each key its newest value, or that it is deleted; a store shows the rows
of its file with these in their place. They are a dict up to a limit of memory. Beyond that all of
it goes to a database that SQLite keeps for this connection alone, in its temporary folder, and that
goes with the connection. What goes there while a range is gone through is kept beside what was
there before, by a number that is higher; so a range shows what there was when it was asked for.
Where there is no room for it the change that asked for some is refused, and all others are there:
they can be looked up, and committed.
"""

import heapq
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from clog.state import sqlite_file
from clog.state.sqlite_file import (
    DAMAGE,
    START,
    DamagedCacheError,
    Position,
    Row,
    RowCodec,
    Rows,
    check,
    check_gap,
    check_rows,
    connect,
    is_of_disk,
    raise_damage,
    temporary_folder,
)
from clog.storage.env import Shared, register
from clog.storage.errors import CorruptionError, InvalidInputError, StateFileError
from clog.storage.numpy_arrays import to_numpy

VERSIONS_MAX = 64
"""How many versions of the log the file may be behind: each is an object to read after a crash."""
ROW_BYTES = 300
"""About what Python needs for a row, beside its key and value."""


class Waiting:
    """Rows by key, each key in one partition; nothing where ``bytes_max`` is 0.

    Args:
        lock: held while rows are added or forgotten, and by who looks at several: a scan may go on
            in one thread while another commits.

    Attributes:
        base: the position of the file itself; None where nothing waits.
        position: the position with what waits.
    """

    def __init__(self, bytes_max: int, lock: threading.RLock) -> None:
        self._bytes_max = bytes_max
        self._lock = lock
        self._rows: dict[bytes, Row] = {}
        self._bytes = 0
        self.base: Position | None = None
        self.position: Position | None = None

    def __bool__(self) -> bool:
        return self.base is not None

    def get(self, key: bytes) -> Row | None:
        """Returns the row of a key; its value is None where it was deleted."""
        return self._rows.get(key)

    def between(self, low: bytes, high: bytes | None) -> list[Row]:
        """Returns the rows of keys from ``low`` on and below ``high``, None: all; in order."""
        keys = (k for k in self._rows if k >= low and (high is None or k < high))
        return [self._rows[key] for key in sorted(keys)]

    def add(self, before: Position, after: Position, rows: Rows) -> Rows | None:
        """Takes rows that lead from one position to another; returns None, or all of them where
        they are to be entered at once: there are too many, or there is one that cannot wait.
        """
        at = self.base or before
        if not self._bytes_max or not self._may_wait(at, after):
            return rows
        size, taken, left = 0, [], iter(rows)
        for some in left:
            taken.append(list(some))
            size += _bytes_of(taken[-1])
            if size > self._bytes_max:
                return chain(taken, left)
        newest = {row[0]: row for row in chain.from_iterable(taken)}
        again = newest.keys() & self._rows.keys()
        if len(newest) < sum(map(len, taken)) or any(
            newest[key][1] != self._rows[key][1] for key in again
        ):
            return taken  # A key in two partitions: only the file tells which one counts.
        size += self._bytes - _bytes_of([self._rows[key] for key in again])
        if size > self._bytes_max:
            return taken
        with self._lock:
            self._rows.update(newest)
            self._bytes, self.base, self.position = size, at, after
        return None

    def in_order(self) -> list[Row]:
        """Returns all rows, in the order of their keys."""
        return [self._rows[key] for key in sorted(self._rows)]

    def forget(self) -> None:
        """Forgets all rows: they were entered, or the file is another one."""
        with self._lock:
            self._rows, self._bytes = {}, 0
            self.base = self.position = None

    def _may_wait(self, at: Position, after: Position) -> bool:
        is_same = (at.log_id, at.schema, at.starts) == (after.log_id, after.schema, after.starts)
        return is_same and after.version - at.version <= VERSIONS_MAX


def _bytes_of(rows: list[Row]) -> int:
    return ROW_BYTES * len(rows) + sum([len(row[0]) + len(row[4] or b"") for row in rows])


def merged(found: Iterable[tuple[int, int, bytes]], row: Row) -> list[tuple[int, int, bytes]]:
    """Returns (timestamp, partition, value) of all rows of a key, as if ``row`` was entered."""
    _, partition, _, timestamp, value = row
    rows = [other for other in found if other[1] != partition]
    if value is not None:
        rows.append((timestamp, partition, value))
    return rows


GET_MANY_KEYS = 500
"""Keys asked for by one statement: SQLite allows at least 999 parameters."""
GONE = "it was deleted, or another one stands in its place"

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


class Cache(Shared):
    """One generation. Threads may share it; one process at a time may `apply`.

    Attributes:
        path: its file.
        generation: its number.
        identity: which file it is on this host.
    """

    def __init__(self, path: Path, generation: int) -> None:
        self.path = path
        self.generation = generation
        super().__init__()
        self._waiting = Waiting(0, self._lock)
        self._inherited: list[sqlite3.Connection] = []
        with DAMAGE:
            self._reader = connect(path, read_only=True)
            sqlite_file.check_whole(self._reader, path)
            self._codec = RowCodec(sqlite_file.position(self._reader).schema)
        self.identity = sqlite_file.identity(path)
        if None in self.identity:
            raise DamagedCacheError(GONE)
        register(self)

    def after_fork(self) -> None:
        """Opens the file anew: SQLite's connections must neither be used nor closed in a child."""
        self._inherited.append(self._reader)
        with suppress(sqlite3.Error):
            self._reader = connect(self.path, read_only=True)

    def close(self) -> None:
        with self._lock:
            self._reader.close()

    def switch(self, newer: "Cache") -> None:
        """Goes on as a newer generation, which it closes; no `get` fails meanwhile.

        Raises:
            DamagedCacheError: that is gone already; all is as it was.
        """
        with DAMAGE:
            reader = connect(newer.path, read_only=True)
            codec, identity = RowCodec(sqlite_file.position(reader).schema), newer.identity
        newer.close()
        with self._lock:
            self._reader.close()
            self._reader, self._codec, self.identity = reader, codec, identity
            self.path, self.generation = newer.path, newer.generation
            self._waiting.forget()

    def is_in_place(self) -> bool:
        """Tells whether its file is the one that stands at its path, and so with its journal."""
        return sqlite_file.identity(self.path) == self.identity

    def check_journal(self) -> None:
        """Raises if its file is in place and its journal is not, so that nobody may open it.

        Raises:
            DamagedCacheError: it is not.
        """
        file, journal = sqlite_file.identity(self.path)
        if file == self.identity[0] and journal != self.identity[1]:
            raise DamagedCacheError("its journal was deleted, or another one stands in its place")

    def let_wait(self, bytes_max: int) -> None:
        """Allows so many bytes of rows to wait in memory; from the start on or never."""
        self._waiting = Waiting(bytes_max, self._lock)

    def position(self) -> Position:
        """Returns the position in the log up to which the rows are, those that wait included; these
        are forgotten where another process has moved the file as far.

        Raises:
            DamagedCacheError: the file does not say so.
        """
        with DAMAGE, self._lock:  # Who has read the file reads what waits before it is forgotten.
            if self._waiting and self._is_past(self._reader):
                self._waiting.forget()
            return self._waiting.position or sqlite_file.position(self._reader)

    def get(self, key: Any) -> Any:
        """Returns the value; of a key that several partitions have, the one with the latest
        timestamp.
        """
        codec = self._codec
        stored = self.stored(codec.stored_key(key))
        return None if stored is None else codec.value(stored)

    def stored(self, key: bytes) -> bytes | None:
        """Returns the bytes of a value, by those of its key; as `get`."""
        try:  # In place of `DAMAGE`: half a microsecond less.
            with self._lock:
                rows = self._reader.execute(_GET, (key,)).fetchall()
                row = self._waiting.get(key)
                if not rows and row is None:
                    rows = self._just_entered(key)
        except sqlite3.DatabaseError as e:
            raise_damage(e)
            raise
        for timestamp, partition, value, offset, checksum in rows:
            check(key, (partition, offset, timestamp), checksum, value)
        if row is not None:
            rows = merged(rows, row)
        return _latest(rows) if rows else None

    def _just_entered(self, key: bytes) -> list[tuple[Any, ...]]:
        """Returns the rows of a key that was not found; raises where the file does not tell that
        there are none.
        """
        around = self._reader.execute(_AROUND, (key, key)).fetchall()
        if not around or around[0][0] != key or around[0][:2] == START:
            check_gap(around)
            return []
        rows = self._reader.execute(_GET, (key,)).fetchall()  # Another process was here.
        if not rows:
            raise DamagedCacheError("a search misses a row that is there")
        return rows

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Returns the values of the keys that are there."""
        found: list[tuple[Any, ...]] = []
        with DAMAGE, self._lock, _transaction(self._reader):
            if self._waiting and self._is_past(self._reader):
                self._waiting.forget()
            codec = self._codec
            asked = codec.keys(keys)
            for first in range(0, len(asked), GET_MANY_KEYS):
                some = asked[first : first + GET_MANY_KEYS]
                marks = ",".join("?" * len(some))
                found += self._reader.execute(_GET_MANY.format(marks), some)
            waiting = [row for key in asked if (row := self._waiting.get(key)) is not None]
            for key in set(asked).difference(row[0] for row in chain(found, waiting)):
                self.stored(key)
        for key, timestamp, partition, value, offset, checksum in found:
            check(key, (partition, offset, timestamp), checksum, value)
        rows = {key: [row[1:4] for row in same] for key, same in groupby(found, _key)}
        rows |= {row[0]: merged(rows.get(row[0], ()), row) for row in waiting}
        return {codec.key(key): codec.value(_latest(same)) for key, same in rows.items() if same}

    @property
    def codec(self) -> RowCodec:
        """What keys and values are encoded by."""
        return self._codec

    def scan(self, prefix: Any) -> Iterator[tuple[Any, Any]]:
        """Returns the rows whose keys begin with the prefix, None: all, in the order of their
        bytes, as they are now; through a connection of its own.
        """
        with self._lock:
            codec = self._codec
            low = codec.prefix(prefix)
            rows = self.between(low, _after_prefix(low))
        return ((codec.key(key), codec.value(value)) for key, value in rows)

    def between(self, low: bytes, high: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Returns the bytes of keys from ``low`` on and below ``high``, None: all, and those of
        their values; as `scan`.
        """
        rows = self._between(low, high)
        next(rows)
        return rows

    def _between(self, low: bytes, high: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yields once when it knows what there is, then that."""
        with DAMAGE, closing(connect(self.path, read_only=True)) as connection:
            with self._lock:
                rows = _rows(connection, low, high)
                waiting = [] if self._is_past(connection) else self._waiting.between(low, high)
                self._check_place()
            yield b"", b""
            yield from _with_waiting(rows, waiting)

    def _is_past(self, connection: sqlite3.Connection) -> bool:
        """Tells whether another process has moved the file to what waits here, or beyond."""
        waiting = self._waiting.position
        return waiting is None or sqlite_file.position(connection).version >= waiting.version

    def count(self) -> int:
        """Returns the number of rows in the file."""
        with DAMAGE, closing(connect(self.path, read_only=True)) as connection:
            rows = _rows(connection, b"", None)
            self._check_place()
            return sum(1 for _ in rows)

    def move(self, position: Position, rows: Rows) -> None:
        """Moves to a position, to which the rows lead: these wait where they may, else they are
        entered, with all that waited.
        """
        left = self._waiting.add(self.position(), position, rows)
        if left is not None:
            self._apply(position, left)

    def settle(self) -> None:
        """Enters what waits."""
        if self._waiting and self.position() == self._waiting.position:
            self._apply(self._waiting.position, ())

    def _apply(self, position: Position, rows: Rows) -> None:
        """Enters what waits, then rows, deletes those whose value is null and those below the log
        start, and moves to the position; all or nothing.
        """
        with DAMAGE, closing(connect(self.path)) as connection:
            before = sqlite_file.position(connection)
            self._check_place()
            sqlite_file.stage(connection, rows)
            connection.execute("begin immediate")
            if self._waiting:
                sqlite_file.enter_sorted(connection, self._waiting.in_order())
            sqlite_file.enter(connection)
            for p, start in position.starts.items():
                if start > before.starts.get(p, 0):
                    sqlite_file.delete_below(connection, p, start)
            sqlite_file.move(connection, position)
            with self._lock:  # A scan begins before both, or after.
                connection.execute("commit")
                self._waiting.forget()

    def _check_place(self) -> None:
        """Raises if a connection that has read may be to another file.

        Raises:
            DamagedCacheError: it may.
        """
        if not self.is_in_place():
            raise DamagedCacheError(GONE)


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


@contextmanager
def _transaction(reader: sqlite3.Connection) -> Iterator[None]:
    """Shows one state of the file to all that is asked."""
    reader.execute("begin")
    try:
        yield
    finally:
        if reader.in_transaction:
            reader.execute("commit")


def _rows(
    connection: sqlite3.Connection, low: bytes, high: bytes | None
) -> Iterator[tuple[bytes, int, int, bytes]]:
    """Yields key, timestamp, partition and value of the rows in the file that are now there."""
    connection.execute("begin")
    start = connection.execute(_START).fetchall()
    rows = check_rows(chain(connection.execute(_SCAN, (low,)), start), high)
    return (row for row in rows if row[0] >= low)


def _with_waiting(
    rows: Iterator[tuple[Any, ...]], waiting: list[Row]
) -> Iterator[tuple[bytes, bytes]]:
    """Yields keys and values of rows that are in the order of their keys, with what waits."""
    left = deque(waiting)
    for key, same in groupby(rows, _key):
        while left and left[0][0] < key:
            yield from _values_of(left.popleft(), ())
        found = [row[1:] for row in same]
        if left and left[0][0] == key:
            yield from _values_of(left.popleft(), found)
        else:
            yield key, _latest(found)
    for row in left:
        yield from _values_of(row, ())


def _values_of(row: Row, found: Iterable[tuple[Any, ...]]) -> Iterator[tuple[bytes, bytes]]:
    if rows := merged(found, row):
        yield row[0], _latest(rows)


def _key(row: tuple[Any, ...]) -> bytes:
    key: bytes = row[0]
    return key


def _latest(rows: list[tuple[Any, ...]]) -> bytes:
    """Returns the value of (timestamp, partition, value) that is latest; nearly always there is
    one.
    """
    value: bytes = (rows[0] if len(rows) == 1 else max(rows, key=lambda row: row[:2]))[2]
    return value


def _after_prefix(prefix: bytes) -> bytes | None:
    """Returns the first key after all those with the prefix; None when there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


_CHANGE_BYTES = 200
"""About what Python needs for a row, beside its key and value."""
_SPILLED_CACHE_KIB = 16_384
RANGE_ROWS = 1_000
"""Rows that one statement of a range fetches: others may be put between two."""

Change = tuple[bytes, bytes | None]
"""Key, and value; None: the key is deleted."""

_TABLE = (
    "create table changes (key blob, number integer, value blob, primary key (key, number))"
    " without rowid"
)
_PUT = "insert or replace into changes values (?, ?, ?)"
_GET_CHANGE = "select value from changes where key = ? order by number desc limit 1"
_RANGE = (
    "select key, value, max(number) from changes where key {} ? and number <= ?"
    " group by key order by key limit ?"
)
_FROM, _AFTER = _RANGE.format(">="), _RANGE.format(">")


class Uncommitted(Shared):
    """Changes by key, in bounded memory. Its owner serialises calls; a range that was begun goes on
    beside them, in whatever thread.

    Args:
        codec: what they are encoded by.
        memory_bytes: how many bytes of keys and values are kept in memory, about.
    """

    def __init__(self, codec: RowCodec, memory_bytes: int) -> None:
        self.codec = codec
        self._memory_bytes = memory_bytes
        super().__init__()
        self._recent: dict[bytes, bytes | None] = {}
        self._recent_bytes = 0
        self._spilled: sqlite3.Connection | None = None
        self._number = 0
        self._ranges: weakref.WeakSet[Iterator[Change]] = weakref.WeakSet()

    def __bool__(self) -> bool:
        return bool(self._recent) or self._spilled is not None

    def put(self, key: bytes, value: bytes | None) -> None:
        """Changes a key; None deletes it.

        Raises:
            StateFileError: there is no room for it; it is as it was.
        """
        with self._lock:
            size = _CHANGE_BYTES + len(key) + len(value or b"") - self._bytes_of(key)
            if self._recent and self._recent_bytes + size > self._memory_bytes:
                self._spill()
                size = _CHANGE_BYTES + len(key) + len(value or b"")
            self._recent[key] = value
            self._recent_bytes += size

    def put_value(self, key: Any, value: Any) -> None:
        """Notes a key and a value as they are given.

        Raises:
            InvalidInputError: the log cannot hold them; and as `put`.
        """
        self.put(self.codec.stored_key(key), self.codec.stored_value(value))

    def get(self, key: bytes) -> Change | None:
        """Returns the change of a key; None where there is none."""
        recent = self._recent  # Without the lock: a range that spills lets it go when all is there.
        if key in recent:
            return key, recent[key]
        if self._spilled is None:
            return None
        with self._told():
            found = self._spilled.execute(_GET_CHANGE, (key,)).fetchone()
        return None if found is None else (key, found[0])

    def between(self, low: bytes, high: bytes | None) -> Iterator[Change]:
        """Returns the changes of keys from ``low`` on and below ``high``, None: all, in their
        order, as they are now.
        """
        with self._lock:
            keys = sorted(k for k in self._recent if k >= low and (high is None or k < high))
            recent = [(key, self._recent[key]) for key in keys]
            if self._spilled is None:
                return iter(recent)
            asked = self._with_spilled(recent, low, high, self._number)
            self._ranges.add(asked)
            return asked

    def _with_spilled(
        self, recent: list[Change], low: bytes, high: bytes | None, number: int
    ) -> Iterator[Change]:
        both = heapq.merge(recent, self._spilled_between(low, high, number), key=_changed_key)
        yield from (
            next(same) for _, same in groupby(both, _changed_key)
        )  # Of equal keys, the recent one.

    def _spilled_between(self, low: bytes, high: bytes | None, number: int) -> Iterator[Change]:
        statement = _FROM
        while rows := self._rows(statement, low, number):
            yield from (row for row in rows if high is None or row[0] < high)
            low, statement = rows[-1][0], _AFTER
            if high is not None and low >= high:
                return

    def parts(self) -> Iterator[list[Change]]:
        """Yields all changes in the order of their keys, about ``memory_bytes`` at a time."""
        if self._recent and self._spilled is None:
            yield self._sorted()
            return
        some: list[Change] = []
        size = 0
        for key, value in self.between(b"", None):
            some.append((key, value))
            size += _CHANGE_BYTES + len(key) + len(value or b"")
            if size >= self._memory_bytes:
                yield some
                some, size = [], 0
        if some:
            yield some

    def close(self) -> None:
        """Forgets all changes, and the database where there is one."""
        with self._lock:
            self._recent, self._recent_bytes = {}, 0
            if self._spilled is not None:
                self._spilled.close()
                self._spilled = None

    def _sorted(self) -> list[Change]:
        return [(key, self._recent[key]) for key in sorted(self._recent)]

    def _bytes_of(self, key: bytes) -> int:
        known = key in self._recent
        return _CHANGE_BYTES + len(key) + len(self._recent[key] or b"") if known else 0

    def _rows(self, statement: str, low: bytes, number: int) -> list[Change]:
        with self._lock, self._told():
            if self._spilled is None:
                raise InvalidInputError("the store was closed during the scan; open it again")
            found = self._spilled.execute(statement, (low, number, RANGE_ROWS))
            return [(key, value) for key, value, _ in found]

    def _spill(self) -> None:
        rows = iter(self._sorted())
        with self._told():
            if self._spilled is None:
                self._spilled = _private()
            self._number += bool(self._ranges)
            while some := [(key, self._number, value) for key, value in islice(rows, RANGE_ROWS)]:
                with self._spilled:
                    self._spilled.executemany(_PUT, some)
        self._recent, self._recent_bytes = {}, 0

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Says in a user's words what SQLite says of its temporary file."""
        try:
            yield
        except sqlite3.DatabaseError as e:
            what = f"uncommitted changes beyond memory_bytes={self._memory_bytes}"
            if is_of_disk(e):
                raise StateFileError(
                    f"{what} have no room in {temporary_folder()}, where temporary files are: {e};"
                    " what was put before is there: commit it, make room, or start the process with"
                    " SQLITE_TMPDIR set to a folder that has some"
                ) from e
            raise CorruptionError(
                f"{what} cannot be read back from {temporary_folder()}, where temporary files are:"
                f" {e}; call rollback(), and put them again"
            ) from e


def _changed_key(change: Change) -> bytes:
    return change[0]


def _private() -> sqlite3.Connection:
    """Opens a database of this connection alone, without a name."""
    connection = sqlite3.connect("", check_same_thread=False)
    connection.execute(f"pragma cache_size = -{_SPILLED_CACHE_KIB}")
    # A journal, so that what does not fit is taken back, and what was there before stays whole.
    connection.execute("pragma journal_mode = memory")
    connection.execute("pragma synchronous = off")
    connection.execute(_TABLE)
    return connection


def merged_many(cache: Cache, changes: Uncommitted, asked: Sequence[Any]) -> dict[Any, Any]:
    """Returns the values of those keys that are there."""
    found, codec = cache.get_many(asked), changes.codec
    for change in map(changes.get, codec.keys(asked)):
        if change is None:
            continue
        if change[1] is None:
            found.pop(codec.key(change[0]), None)
        else:
            found[codec.key(change[0])] = codec.value(change[1])
    return found


def merged_scan(cache: Cache, changes: Uncommitted, prefix: Any) -> Iterator[tuple[Any, Any]]:
    """Returns keys and values in the order of the keys, those that begin with the prefix, as they
    are now.
    """
    low = changes.codec.prefix(prefix)
    high = _after_prefix(low)
    codec = cache.codec
    stored = ((key, codec, value) for key, value in cache.between(low, high))
    newer = ((key, changes.codec, value) for key, value in changes.between(low, high))
    both = heapq.merge(newer, stored, key=_key_of)  # Of equal keys the change comes first.
    shown = (next(same) for _, same in groupby(both, _key_of))
    return ((by.key(key), by.value(value)) for key, by, value in shown if value is not None)


def _key_of(row: tuple[bytes, object, object]) -> bytes:
    return row[0]
