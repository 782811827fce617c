"""One file of a state table, what waits in memory to be entered into it, and what is not committed.

The file holds rows, and the position in the log that they are the state of. A refresh is one
transaction, rows and position together: readers in this and other processes see the state before
it or after it. Keys and values are bytes everywhere here.

*Waiting* rows. What is entered becomes a level of the file, which later ones are merged with; of
rows that wait, and are entered together, there are few levels, and of a key that changes again and
again only the last is entered. They are in the log already, so a crash takes nothing:
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
import os
import sqlite3
import threading
import weakref
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
"""How many versions of the log the file may be behind: each is an object to read after a crash."""
ROW_BYTES = 300
"""About what Python needs for a row, beside its key and value."""


class Waiting:
    """Rows by key, each key in one partition; nothing where ``bytes_max`` is 0. ``base`` is the
    position of the file itself, None where nothing waits; ``position`` that with what waits. The
    lock is held while rows are added or forgotten, and by who looks at several: a scan may go on in
    one thread while another commits.
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
            return taken  # A key in two partitions: only the file tells which one counts.
        size += self._bytes - _bytes_of([self._rows[key] for key in again])
        if size > self._bytes_max:
            return taken
        with self._lock:
            self._rows.update(newest)
            self._bytes, self.base, self.position = size, at, after
        return None

    def forget(self) -> None:
        """Forgets all rows: they were entered, or the file is another one."""
        with self._lock:
            self._rows, self._bytes = {}, 0
            self.base = self.position = None


def _bytes_of(rows: list[Row]) -> int:
    return ROW_BYTES * len(rows) + sum([len(row[0]) + len(row[4] or b"") for row in rows])


def merged(found: Iterable[tuple[Any, ...]], row: Row) -> list[Any]:
    """Returns all rows of a key, as if ``row`` was entered; each as timestamp, partition, value."""
    _, partition, _, timestamp, value = row
    rows = [other for other in found if other[1] != partition]
    if value is not None:
        rows.append((timestamp, partition, value))
    return rows


class Cache(Shared):
    """One generation of the file, with what waits for it. Threads may share it; one process at a
    time may `move` it.
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
        """Goes on as a newer generation, which it closes; no `get` fails meanwhile. All is as it
        was where that is gone already.
        """
        file = LocalFile(newer.path)
        newer.close()
        with self._lock:
            self._file, self._codec = file, newer.codec
            self.path, self.generation = newer.path, newer.generation
            self._waiting.forget()

    def is_in_place(self) -> bool:
        """Tells whether its file is the one that stands at its path."""
        return self._file.is_in_place()

    def is_due(self) -> bool:
        """Tells whether the file is to be built anew from its own rows; not while others wait."""
        return not self._waiting and self._file.is_due()

    def pieces(self) -> Iterator[Piece]:
        """Yields the rows of the file, for a new one."""
        return self._file.pieces()

    def let_wait(self, bytes_max: int) -> None:
        """Allows so many bytes of rows to wait in memory; from the start on or never."""
        self._waiting = Waiting(bytes_max, self._lock)

    def position(self) -> Position:
        """Returns the position in the log up to which the rows are, those that wait included; these
        are forgotten where another process has moved the file as far.
        """
        with self._lock:  # Who has read the file reads what waits before it is forgotten.
            self._forget_past()
            return self._waiting.position or self._file.shown().position

    def get(self, key: Any, changes: "Uncommitted | None" = None) -> Any:
        """Returns the value; of a key that several partitions have, the one with the latest
        timestamp. What ``changes`` say comes first.
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
        """Returns the values of the keys that are there, with these changes."""
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
        """Forgets what waits where another process has moved the file as far, or beyond."""
        if self._waiting and self._is_past(self._file.shown()):
            self._waiting.forget()

    @property
    def codec(self) -> RowCodec:
        """What keys and values are encoded by."""
        return self._codec

    def scan(self, prefix: Any, changes: "Uncommitted | None" = None) -> Iterator[tuple[Any, Any]]:
        """Returns the rows whose keys begin with the prefix, None: all, in the order of their
        bytes, as they are now, with these changes; whatever is entered meanwhile.
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
        """Tells whether another process has moved the file to what waits here, or beyond."""
        waiting = self._waiting.position
        return waiting is None or shown.position.version >= waiting.version

    def count(self) -> int:
        """Returns the number of rows in the file."""
        return sum(1 for _ in self._file.rows(self._file.shown()))

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
        self._file.apply(position, self._waiting.between(b"", None), rows, self._forgetting())

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Forgets what waits when it is committed, under one lock: a scan sees either state."""
        with self._lock:
            yield
            self._waiting.forget()


def rows_of(batch: pa.RecordBatch, codec: RowCodec) -> Iterable[Row]:
    """Returns a batch as rows, column by column, without a step of Python for each."""
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
    """Yields keys and values of rows that are in the order of their keys, with what waits."""
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
    """Changes by key, of which about ``memory_bytes`` are kept in memory. Its owner serialises
    calls; a range that was begun goes on beside them, in whatever thread.
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
        both = heapq.merge(recent, self._spilled_between(low, high, number), key=_first)
        yield from (
            next(same) for _, same in groupby(both, _first)
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
            if _has_no_room(e):
                raise StateFileError(
                    f"{what} have no room in {_temporary_folder()}, where temporary files are: {e};"
                    " what was put before is there: commit it, make room, or start the process with"
                    " SQLITE_TMPDIR set to a folder that has some"
                ) from e
            raise CorruptionError(
                f"{what} cannot be read back from {_temporary_folder()}, where temporary files are:"
                f" {e}; call rollback(), and put them again"
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
"""What SQLite says where a quota is used up, or a file may not grow."""


def _has_no_room(error: sqlite3.Error) -> bool:
    """Tells whether SQLite says by this that the disk has no room, or may not be written."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY) or code in _UNWRITTEN


def _temporary_folder() -> str:
    """Returns where SQLite keeps temporary files, as far as its rules tell: it does not say so."""
    named = [os.environ.get(name) for name in ("SQLITE_TMPDIR", "TMPDIR")]
    folders = [*filter(None, named), "/var/tmp", "/usr/tmp", "/tmp"]  # noqa: S108 none is made here
    return next((f for f in folders if Path(f).is_dir() and os.access(f, os.W_OK | os.X_OK)), ".")


def _private() -> sqlite3.Connection:
    """Opens a database of this connection alone, without a name."""
    connection = sqlite3.connect("", check_same_thread=False)
    connection.execute(f"pragma cache_size = -{_SPILLED_CACHE_KIB}")
    # A journal, so that what does not fit is taken back, and what was there before stays whole.
    connection.execute("pragma journal_mode = memory")
    connection.execute("pragma synchronous = off")
    connection.execute(_TABLE)
    return connection
