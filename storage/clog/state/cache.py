"""One file of a state table, the rows that wait in memory to be entered, and uncommitted changes.

The file holds rows, and the position in the log whose state they are. A refresh is one transaction
of rows and position: readers in this and other processes see the state before it or after it. Keys
and values are bytes everywhere here.

*Waiting* rows. Rows that are entered become a level of the file, to be merged with later ones; rows
that wait and are entered together make few levels, and of a key that changes often only the last
row is entered. They are in the log already, so a crash loses nothing: the next process to open the
file reads them from there again. To keep that little, few versions may wait, and few bytes. They
are all that the log got since the file's position when the first of them came: if another process
moves the file in the meantime, the file with them lacks nothing, and they are forgotten once the
file has reached their position.

*Uncommitted* changes: for each key its newest value, or that it is deleted; a store shows the rows
of its file with these in their place. They are a dict up to a limit of memory. Beyond that all of
them move to a database that SQLite keeps for this connection only, in its temporary folder, and
deletes with it. Changes that move there during a scan are kept beside the older ones, under a
higher number; so a scan shows the changes that existed when it was requested. If there is no room,
the change that needed some is refused, and all others remain: they can be looked up and committed.
"""

import heapq
import os
import sqlite3
import threading
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from clog.state.local_file import LocalFile, Piece, Position, Row, Rows, Shown
from clog.state.row_bytes import RowCodec
from clog.storage.env import Shared
from clog.storage.errors import CorruptionError, InvalidInputError, StateFileError
from clog.storage.numpy_arrays import to_numpy

VERSIONS_MAX = 64
"""The file may be this many versions behind the log: each is an object to read after a crash."""
ROW_BYTES = 300
"""Roughly what Python needs for a row, besides its key and value."""


class Waiting:
    """Rows by key, each key in one partition; none if ``bytes_max`` is 0. ``base`` is the position
    of the file itself, None if nothing waits; ``position`` is that of the rows. The lock is held
    while rows are added or forgotten, and while several are read: a scan in one thread may continue
    while another thread commits.
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
        """Returns the row of a key; its value is None if the key was deleted."""
        return self._rows.get(key)

    def between(self, low: bytes, high: bytes | None) -> list[Row]:
        """Returns the rows of keys from ``low`` on and below ``high``, None: all; in order."""
        keys = (k for k in self._rows if k >= low and (high is None or k < high))
        return [self._rows[key] for key in sorted(keys)]

    def add(self, before: Position, after: Position, rows: Rows) -> Rows | None:
        """Takes rows that lead from one position to another and returns None; or returns them all
        if they must be entered now, because they are too many or one of them cannot wait.
        """
        at = self.base or before
        is_same = (at.log_id, at.schema, at.starts) == (after.log_id, after.schema, after.starts)
        if not self._bytes_max or not is_same or after.version - at.version > VERSIONS_MAX:
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
            return taken  # A key in two partitions: only the file knows which one counts.
        size += self._bytes - _bytes_of([self._rows[key] for key in again])
        if size > self._bytes_max:
            return taken
        with self._lock:
            self._rows.update(newest)
            self._bytes, self.base, self.position = size, at, after
        return None

    def forget(self) -> None:
        """Forgets all rows: they were entered, or the file was replaced."""
        with self._lock:
            self._rows, self._bytes = {}, 0
            self.base = self.position = None


def _bytes_of(rows: list[Row]) -> int:
    return ROW_BYTES * len(rows) + sum([len(row[0]) + len(row[4] or b"") for row in rows])


def merged(found: Iterable[tuple[Any, ...]], row: Row) -> list[Any]:
    """Returns all rows of a key as if ``row`` were entered; each as timestamp, partition, value."""
    _, partition, _, timestamp, value = row
    rows = [other for other in found if other[1] != partition]
    if value is not None:
        rows.append((timestamp, partition, value))
    return rows


class Cache(Shared):
    """One generation of the file, and the rows that wait for it. Threads may share it; one process
    at a time may `move` it.
    """

    def __init__(self, path: Path, generation: int) -> None:
        self.path = path
        self.generation = generation
        super().__init__()
        self._waiting = Waiting(0, self._lock)
        self._file = LocalFile(path)
        self._codec = RowCodec(self._file.shown().position.schema)

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def switch(self, newer: "Cache") -> None:
        """Continues as a newer generation, which it closes; no `get` fails in the meantime. If
        that generation is already gone, nothing changes.
        """
        file = LocalFile(newer.path)
        newer.close()
        with self._lock:
            self._file, self._codec = file, newer.codec
            self.path, self.generation = newer.path, newer.generation
            self._waiting.forget()

    def is_in_place(self) -> bool:
        """Returns whether its file is the one at its path."""
        return self._file.is_in_place()

    def is_due(self) -> bool:
        """Returns whether the file should be rebuilt from its own rows; not while others wait."""
        return not self._waiting and self._file.is_due()

    def pieces(self) -> Iterator[Piece]:
        """Yields the rows of the file, for a new one."""
        return self._file.pieces()

    def let_wait(self, bytes_max: int) -> None:
        """Allows this many bytes of rows to wait in memory; called at the start or never."""
        self._waiting = Waiting(bytes_max, self._lock)

    def position(self) -> Position:
        """Returns the position in the log that the rows have reached, including those that wait;
        these are forgotten if another process has moved the file that far.
        """
        with self._lock:  # Waiting rows are not forgotten between reading the file and them.
            self._forget_past()
            return self._waiting.position or self._file.shown().position

    def get(self, key: Any, changes: "Uncommitted | None" = None) -> Any:
        """Returns the value; of a key in several partitions, the one with the latest timestamp.
        ``changes`` take precedence.
        """
        with self._lock:
            codec = self._codec
            own = codec.stored_key(key)
            if changes is not None and (change := changes.get(own)) is not None:
                return None if change[1] is None else changes.codec.value(change[1])
            shown = self._file.shown()
            rows = self._file.rows_of(own, shown)
            if (row := self._waiting.get(own)) is not None and not self._is_past(shown):
                rows = merged(rows, row)
        return codec.value(_latest(rows)) if rows else None

    def get_many(self, keys: Sequence[Any], changes: "Uncommitted | None" = None) -> dict[Any, Any]:
        """Returns the values of the keys that exist, with these changes."""
        with self._lock:
            self._forget_past()
            codec, shown = self._codec, self._file.shown()
            asked = codec.keys(keys)
            found: dict[bytes, list[Any]] = {key: self._file.rows_of(key, shown) for key in asked}
            waiting = [row for key in asked if (row := self._waiting.get(key)) is not None]
        found |= {row[0]: merged(found.get(row[0], ()), row) for row in waiting}
        values = {codec.key(k): codec.value(_latest(rows)) for k, rows in found.items() if rows}
        if changes is not None:
            for change in filter(None, map(changes.get, changes.codec.keys(keys))):
                key, value = changes.codec.key(change[0]), change[1]
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = changes.codec.value(value)
        return values

    def _forget_past(self) -> None:
        """Forgets the waiting rows if another process has moved the file that far, or further."""
        if self._waiting and self._is_past(self._file.shown()):
            self._waiting.forget()

    @property
    def codec(self) -> RowCodec:
        """The codec of keys and values."""
        return self._codec

    def scan(self, prefix: Any, changes: "Uncommitted | None" = None) -> Iterator[tuple[Any, Any]]:
        """Returns the rows whose keys begin with the prefix, None: all, in the order of their
        bytes, as they are now, with these changes; rows entered later do not show.
        """
        with self._lock:
            codec = self._codec
            low = codec.prefix(prefix)
            high = _after_prefix(low)
            rows = self._between(low, high)
        if changes is None:
            return ((codec.key(key), codec.value(value)) for key, value in rows)
        newer = ((key, changes.codec, value) for key, value in changes.between(low, high))
        stored = ((key, codec, value) for key, value in rows)
        both = heapq.merge(newer, stored, key=_first)  # Of equal keys the change comes first.
        shown = (next(same) for _, same in groupby(both, _first))
        return ((by.key(key), by.value(value)) for key, by, value in shown if value is not None)

    def _between(self, low: bytes, high: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Returns the rows as they are now."""
        with self._lock:
            shown = self._file.shown()
            waiting = [] if self._is_past(shown) else self._waiting.between(low, high)
            return _with_waiting(self._file.rows(shown, low, high), waiting)

    def _is_past(self, shown: Shown) -> bool:
        """Returns whether another process has moved the file to the waiting rows, or beyond."""
        waiting = self._waiting.position
        return waiting is None or shown.position.version >= waiting.version

    def count(self) -> int:
        """Returns the number of rows in the file."""
        return sum(1 for _ in self._file.rows(self._file.shown()))

    def move(self, position: Position, rows: Rows) -> None:
        """Moves to the position that the rows lead to: they wait if they may, else they are
        entered, with all that waited.
        """
        left = self._waiting.add(self.position(), position, rows)
        if left is not None:
            self._apply(position, left)

    def settle(self) -> None:
        """Enters the waiting rows."""
        if self._waiting and self.position() == self._waiting.position:
            self._apply(self._waiting.position, ())

    def _apply(self, position: Position, rows: Rows) -> None:
        self._file.apply(position, self._waiting.between(b"", None), rows, self._forgetting())

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Forgets the waiting rows when committed, under one lock: a scan sees either state."""
        with self._lock:
            yield
            self._waiting.forget()


def rows_of(batch: pa.RecordBatch, codec: RowCodec) -> Iterable[Row]:
    """Returns a batch as rows, made column by column, with no Python code run for each."""
    batch = codec.columns(batch)

    def values(name: str) -> list[Any]:
        column = batch.column(name)
        numbers = not pa.types.is_binary(column.type)
        listed: list[Any] = to_numpy(column).tolist() if numbers else column.to_pylist()
        return listed

    return zip(*map(values, ("key", "partition", "offset", "timestamp", "value")), strict=True)


def _with_waiting(
    rows: Iterator[tuple[Any, ...]], waiting: list[Row]
) -> Iterator[tuple[bytes, bytes]]:
    """Yields keys and values of rows, which are in the order of keys, merged with waiting ones."""
    left = deque(waiting)
    for key, same in groupby(rows, _first):
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


def _first(row: tuple[Any, ...]) -> bytes:
    key: bytes = row[0]
    return key


def _latest(rows: list[tuple[Any, ...]]) -> bytes:
    """Returns the value of the latest of (timestamp, partition, value)."""
    value: bytes = (rows[0] if len(rows) == 1 else max(rows, key=lambda row: row[:2]))[2]
    return value


def _after_prefix(prefix: bytes) -> bytes | None:
    """Returns the first key after all those with the prefix; None if no key is."""
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
    """Changes by key, of which about ``memory_bytes`` are kept in memory. Its owner serialises
    calls; a range that was begun continues beside them, in any thread.
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
        """Changes a key; None deletes it."""
        with self._lock:
            size = _CHANGE_BYTES + len(key) + len(value or b"") - self._bytes_of(key)
            if self._recent and self._recent_bytes + size > self._memory_bytes:
                self._spill()
                size = _CHANGE_BYTES + len(key) + len(value or b"")
            self._recent[key] = value
            self._recent_bytes += size

    def put_many(self, changes: Iterable[Change]) -> None:
        """Makes changes, as `put` does, up to the first that there is no room for."""
        with self._lock:
            for key, value in changes:
                self.put(key, value)

    def get(self, key: bytes) -> Change | None:
        """Returns the change of a key, or None."""
        recent = self._recent  # No lock: a spill replaces this dict only once all is written.
        if key in recent:
            return key, recent[key]
        if self._spilled is None:
            return None
        with self._named_errors():
            found = self._spilled.execute(_GET_CHANGE, (key,)).fetchone()
        return None if found is None else (key, found[0])

    def between(self, low: bytes, high: bytes | None) -> Iterator[Change]:
        """Returns the changes of keys in ``[low, high)``, None: all, in order, as they are now."""
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
        """Yields the changes of both in order; of equal keys, the recent one."""
        statement, at = _FROM, 0
        while rows := self._rows(statement, low, number):
            low, statement = rows[-1][0], _AFTER
            end = bisect_right(recent, low, at, key=_first)
            if newer := dict(recent[at:end]):
                rows = sorted([*newer.items(), *(row for row in rows if row[0] not in newer)])
            yield from (row for row in rows if high is None or row[0] < high)
            at = end
            if high is not None and low >= high:
                break
        yield from recent[at:]

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
        """Forgets all changes, and closes the database if there is one."""
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
        with self._lock, self._named_errors():
            if self._spilled is None:
                raise InvalidInputError("the store was closed during the scan; open it again")
            found = self._spilled.execute(statement, (low, number, RANGE_ROWS))
            return [(key, value) for key, value, _ in found]

    def _spill(self) -> None:
        rows = iter(self._sorted())
        with self._named_errors():
            if self._spilled is None:
                self._spilled = _private()
            self._number += bool(self._ranges)
            while some := [(key, self._number, value) for key, value in islice(rows, RANGE_ROWS)]:
                with self._spilled:
                    self._spilled.executemany(_PUT, some)
        self._recent, self._recent_bytes = {}, 0

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Turns SQLite's errors about its temporary file into ours, in words for users."""
        try:
            yield
        except sqlite3.DatabaseError as e:
            what = f"uncommitted changes beyond memory_bytes={self._memory_bytes}"
            if _has_no_room(e):
                raise StateFileError(
                    f"no space in {_temporary_folder()}, the folder of temporary files, for"
                    f" {what}: {e}; earlier puts are kept: commit them, free space, or start the"
                    " process with SQLITE_TMPDIR set to a folder that has space"
                ) from e
            raise CorruptionError(
                f"{what} cannot be read back from {_temporary_folder()}, the folder of temporary"
                f" files: {e}; call rollback(), and put them again"
            ) from e


_UNWRITTEN = frozenset(
    {
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_DIR_FSYNC,
        sqlite3.SQLITE_IOERR_TRUNCATE,
        sqlite3.SQLITE_IOERR_SHMSIZE,
    }
)
"""SQLite's codes for a quota that is used up, or a file that may not grow."""


def _has_no_room(error: sqlite3.Error) -> bool:
    """Returns whether this error of SQLite means that the disk is full, or may not be written."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY) or code in _UNWRITTEN


def _temporary_folder() -> str:
    """Returns where SQLite keeps temporary files, by its documented rules: it has no API for it."""
    named = [os.environ.get(name) for name in ("SQLITE_TMPDIR", "TMPDIR")]
    folders = [*filter(None, named), "/var/tmp", "/usr/tmp", "/tmp"]  # noqa: S108 none is made here
    return next((f for f in folders if Path(f).is_dir() and os.access(f, os.W_OK | os.X_OK)), ".")


def _private() -> sqlite3.Connection:
    """Opens an unnamed database for this connection only."""
    connection = sqlite3.connect("", check_same_thread=False)
    connection.execute(f"pragma cache_size = -{_SPILLED_CACHE_KIB}")
    # A journal, so that what does not fit is rolled back, and what was there before stays whole.
    connection.execute("pragma journal_mode = memory")
    connection.execute("pragma synchronous = off")
    connection.execute(_TABLE)
    return connection
