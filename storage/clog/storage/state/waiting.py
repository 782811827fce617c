"""Rows that wait in memory to be entered into the file of a state table, and the position that the
file has with them.

A page of the file is written for each row that is entered by itself; of rows that wait, and are
entered together in the order of their keys, many share one, and of a key that changes again and
again only the last is entered. They are in the log already, so a crash takes nothing: whoever opens
the file next reads them again from there. So that this is little, few versions wait, and few bytes.

They are all that the log got from `base` on, where the file was when the first of them came. So
where another process moves the file meanwhile, it lacks nothing with them, and they are forgotten
once it is as far by itself.
"""

import threading
from collections.abc import Iterable
from itertools import chain

from clog.storage.state.row_checks import Row
from clog.storage.state.sqlite_file import Position, Rows

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
