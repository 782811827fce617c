"""What a store was told and has not committed yet: of each key its newest value, or that it is
deleted.

It is a dict up to a limit of memory. Beyond that all of it goes to a database that SQLite keeps for
this connection alone, in its temporary folder, and that goes with the connection: nothing of it
survives a crash, and nobody else ever sees it. What goes there while a range is gone through is
kept beside what was there before, by a number that is higher; so a range shows what there was when
it was asked for. Where there is no room for it the change that asked for some is refused, and all
others are there: they can be looked up, and committed.

Keys and values are bytes, as they are in the file of a state table.
"""

import heapq
import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby, islice
from typing import Any

from clog.storage import forks
from clog.storage.errors import CorruptionError, InvalidInputError, StateFileError
from clog.storage.state.disk import is_of_disk, temporary_folder
from clog.storage.state.row_codec import RowCodec

ROW_BYTES = 200
"""About what Python needs for a row, beside its key and value."""
SPILLED_CACHE_KIB = 16_384
RANGE_ROWS = 1_000
"""Rows that one statement of a range fetches: others may be put between two."""

Change = tuple[bytes, bytes | None]
"""Key, and value; None: the key is deleted."""

_TABLE = (
    "create table changes (key blob, number integer, value blob, primary key (key, number))"
    " without rowid"
)
_PUT = "insert or replace into changes values (?, ?, ?)"
_GET = "select value from changes where key = ? order by number desc limit 1"
_RANGE = (
    "select key, value, max(number) from changes where key {} ? and number <= ?"
    " group by key order by key limit ?"
)
_FROM, _AFTER = _RANGE.format(">="), _RANGE.format(">")


class Uncommitted:
    """Changes by key, in bounded memory. Its owner serialises calls; a range that was begun goes on
    beside them, in whatever thread.

    Args:
        codec: what they are encoded by.
        memory_bytes: how many bytes of keys and values are kept in memory, about.
    """

    def __init__(self, codec: RowCodec, memory_bytes: int) -> None:
        self.codec = codec
        self._memory_bytes = memory_bytes
        self._lock = forks.lock()
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
            size = ROW_BYTES + len(key) + len(value or b"") - self._bytes_of(key)
            if self._recent and self._recent_bytes + size > self._memory_bytes:
                self._spill()
                size = ROW_BYTES + len(key) + len(value or b"")
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
            found = self._spilled.execute(_GET, (key,)).fetchone()
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
        both = heapq.merge(recent, self._spilled_between(low, high, number), key=_key)
        yield from (next(same) for _, same in groupby(both, _key))  # Of equal keys, the recent one.

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
            size += ROW_BYTES + len(key) + len(value or b"")
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
        return ROW_BYTES + len(key) + len(self._recent[key] or b"") if known else 0

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


def _key(change: Change) -> bytes:
    return change[0]


def _private() -> sqlite3.Connection:
    """Opens a database of this connection alone, without a name."""
    connection = sqlite3.connect("", check_same_thread=False)
    connection.execute(f"pragma cache_size = -{SPILLED_CACHE_KIB}")
    # A journal, so that what does not fit is taken back, and what was there before stays whole.
    connection.execute("pragma journal_mode = memory")
    connection.execute("pragma synchronous = off")
    connection.execute(_TABLE)
    return connection
