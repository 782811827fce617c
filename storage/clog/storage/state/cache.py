"""One file of a state table: rows, and the position in the log that they are the state of.

A refresh is one transaction, rows and position together. Readers in this and other processes see
the state before it or after it.

Not here: what the log says (`following`), locks between processes that write.
"""

import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from clog.storage import forks
from clog.storage.numpy_arrays import to_numpy
from clog.storage.state import disk, sqlite_file
from clog.storage.state.row_checks import (
    START,
    DamagedCacheError,
    Row,
    check,
    check_gap,
    check_rows,
)
from clog.storage.state.row_codec import RowCodec
from clog.storage.state.sqlite_file import DAMAGE, Position, Rows, connect, raise_damage
from clog.storage.state.waiting import Waiting, merged

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


class Cache:
    """One generation. Threads may share it; one process at a time may `apply`.

    Attributes:
        path: its file.
        generation: its number.
        identity: which file it is on this host.
    """

    def __init__(self, path: Path, generation: int) -> None:
        self.path = path
        self.generation = generation
        self._lock = forks.lock()
        self._waiting = Waiting(0, self._lock)
        self._inherited: list[sqlite3.Connection] = []
        with DAMAGE:
            self._reader = connect(path, read_only=True)
            sqlite_file.check_whole(self._reader, path)
            self._codec = RowCodec(sqlite_file.position(self._reader).schema)
        self.identity = disk.identity(path)
        if None in self.identity:
            raise DamagedCacheError(GONE)
        forks.register(self)

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
        return disk.identity(self.path) == self.identity

    def check_journal(self) -> None:
        """Raises if its file is in place and its journal is not, so that nobody may open it.

        Raises:
            DamagedCacheError: it is not.
        """
        file, journal = disk.identity(self.path)
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
            rows = self.between(low, after_prefix(low))
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


def after_prefix(prefix: bytes) -> bytes | None:
    """Returns the first key after all those with the prefix; None when there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
