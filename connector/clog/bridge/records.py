"""Messages of Kafka's client as columns of a log. Pure.

Keys, values, headers and times stay what they are, with two exceptions, which are counted:

- A time that a log cannot hold (Kafka has -1 for none, and takes any other) becomes the nearest
  one that it can, and the header `TIMESTAMP_HEADER` says in ms what it was.
- A record without a key that a log cannot take, since it is compacted, is left out, as Kafka's own
  cleaner would do with it at its first pass.
"""

from collections import Counter
from collections.abc import Sequence
from io import BytesIO
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clog.storage.env import dataclass
from clog.storage.numpy_arrays import bits, of_lengths, to_arrow
from clog.storage.objects.records import of_headers

TIMESTAMP_HEADER: Final = b"clog.mirror.timestamp"
_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_MS_MAX: Final = (2**63 - 1) // 1000
_RECORD_BYTES: Final = 48
"""What a record takes beside key, value and headers, about: offset, time, places."""
_Ints = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Columns:
    """Records of one topic, in the order of their offsets in each partition.

    Attributes:
        rows: as `Log.append` takes them.
        partitions: of each row.
        offsets: of each row.
        size_bytes: of keys, values and headers, about.
        clamped: how many times were moved.
        keyless: how many records were left out for want of a key.
    """

    rows: pa.Table
    partitions: np.ndarray[Any, Any]
    offsets: np.ndarray[Any, Any]
    size_bytes: int
    clamped: int
    keyless: int

    @property
    def counts(self) -> Counter[str]:
        """Returns what `MirroredTopic` counts of them, by its names there."""
        return Counter(
            records=self.rows.num_rows,
            size_bytes=self.size_bytes,
            clamped=self.clamped,
            keyless=self.keyless,
        )


class Gathered:
    """Messages of one topic until they are committed, as columns; of one thread.

    Their bytes go to memory that `again` uses once more: to clear fresh pages for it takes the
    system several times as long as to copy them there. ``needs_key`` leaves out those without one.
    """

    def __init__(self, *, needs_key: bool) -> None:
        self._keys, self._values = _Octets(), _Octets()
        self._clear(needs_key=needs_key)

    def _clear(self, *, needs_key: bool) -> None:
        self._needs_key = needs_key
        self._numbers: list[tuple[_Ints, _Ints, _Ints]] = []
        self._headers: list[pa.Array | int] = []
        self._headers_bytes = self._clamped = self._keyless = 0

    def again(self, *, needs_key: bool) -> bool:
        """Forgets all; tells whether it may be used again: not while its columns are in use."""
        self._clear(needs_key=needs_key)
        return self._keys.again() and self._values.again()

    @property
    def size_bytes(self) -> int:
        """Of keys, values and headers, about."""
        size_bytes = self._keys.size_bytes + self._values.size_bytes + self._headers_bytes
        return size_bytes + _RECORD_BYTES * self._keys.rows

    def add(self, messages: Sequence[Any]) -> None:
        """Takes messages of Kafka's client."""
        kind: Any = type(messages[0])  # Its methods, unbound: a step of C for each message.
        keys = list(map(kind.key, messages))
        if self._needs_key and None in keys:
            self._keyless += keys.count(None)
            messages = [m for m, key in zip(messages, keys, strict=True) if key is not None]
            keys = [key for key in keys if key is not None]
        count = len(messages)
        self._keys.add(keys)
        self._values.add(list(map(kind.value, messages)))
        times_ms = np.fromiter(map(itemgetter(1), map(kind.timestamp, messages)), np.int64, count)
        held_ms = np.minimum(np.maximum(times_ms, 0), _MS_MAX)
        headers: list[Any] = list(map(kind.headers, messages))
        moved = np.flatnonzero(held_ms != times_ms)
        if moved.size or any(headers):
            named = [[(name.encode(), value) for name, value in some or ()] for some in headers]
            for i in moved.tolist():
                named[i].append((TIMESTAMP_HEADER, str(times_ms[i]).encode()))
            column = of_headers([some or None for some in named])
            self._headers.append(column)
            self._headers_bytes += column.nbytes
            self._clamped += int(moved.size)
        else:
            self._headers.append(count)
        partitions = np.fromiter(map(kind.partition, messages), np.int32, count)
        offsets = np.fromiter(map(kind.offset, messages), np.int64, count)
        self._numbers.append((partitions, offsets, held_ms))

    def columns(self) -> Columns:
        """Returns what was taken."""
        partitions, offsets, times_ms = map(np.concatenate, zip(*self._numbers, strict=True))
        columns = {
            "key": self._keys.column(),
            "value": self._values.column(),
            "timestamp": to_arrow(1000 * times_ms, _TIMESTAMP),
        }
        if kinds := [part.type for part in self._headers if isinstance(part, pa.Array)]:
            parts = (p if isinstance(p, pa.Array) else pa.nulls(p, kinds[0]) for p in self._headers)
            columns["headers"] = pa.concat_arrays(list(parts))
        rows, size_bytes = pa.table(columns), self.size_bytes
        return Columns(rows, partitions, offsets, size_bytes, self._clamped, self._keyless)


class _Octets:
    """Keys or values, one after the other."""

    def __init__(self) -> None:
        self._data = BytesIO()
        self._lengths: list[_Ints] = []
        self._absent: list[_Ints] = []
        self.rows = self.size_bytes = 0

    def again(self) -> bool:
        """Forgets them, but for the memory; tells whether nobody else uses that any more."""
        self._lengths, self._absent = [], []
        self.rows = self.size_bytes = 0
        try:
            self._data.seek(0)
            self._data.write(b"")
        except BufferError:
            return False
        return True

    def add(self, values: list[Any]) -> None:
        try:
            lengths = np.fromiter(map(len, values), np.int64, len(values))
        except TypeError:  # None has no length.
            self._absent.append(self.rows + np.flatnonzero([value is None for value in values]))
            values = [value or b"" for value in values]
            lengths = np.fromiter(map(len, values), np.int64, len(values))
        self._data.writelines(values)
        self._lengths.append(lengths)
        self.rows += len(values)
        self.size_bytes = self._data.tell()

    def column(self) -> pa.Array:
        valid = None
        if self._absent:
            there = np.ones(self.rows, np.bool_)
            there[np.concatenate(self._absent)] = False
            valid = bits(there)
        data = pa.py_buffer(self._data.getbuffer())
        return of_lengths(np.concatenate(self._lengths), data, valid)


def columns_of(messages: Sequence[Any], *, needs_key: bool) -> Columns:
    """Returns messages as columns; ``needs_key`` leaves out those without a key."""
    gathered = Gathered(needs_key=needs_key)
    gathered.add(messages)
    return gathered.columns()
