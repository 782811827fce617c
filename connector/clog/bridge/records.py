"""Messages of Kafka's client as columns of a log. Pure.

Keys, values, headers and times stay what they are, with two exceptions, which are counted:

- A time that a log cannot hold (Kafka has -1 for none, and takes any other) becomes the nearest
  one that it can, and the header `TIMESTAMP_HEADER` says in ms what it was.
- A record without a key that a log cannot take, since it is compacted, is left out, as Kafka's own
  cleaner would do with it at its first pass.
"""

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clog.storage.env import dataclass
from clog.storage.numpy_arrays import of_bytes
from clog.storage.objects.records import of_headers

TIMESTAMP_HEADER: Final = b"clog.mirror.timestamp"
_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_MS_MAX: Final = (2**63 - 1) // 1000
_SAMPLE: Final = 16
_SHORT_BYTES: Final = 400
_MESSAGE_BYTES: Final = 32
"""What a record takes beside key and value, about: offset, time, places."""


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


def columns_of(messages: Sequence[Any], *, needs_key: bool) -> Columns:
    """Returns messages as columns; ``needs_key`` leaves out those without one."""
    kind: Any = type(messages[0])  # Its methods, unbound: a step of C for each message.
    found, keys = len(messages), list(map(kind.key, messages))
    if needs_key and None in keys:
        messages = [m for m, key in zip(messages, keys, strict=True) if key is not None]
        keys = [key for key in keys if key is not None]
    count = len(messages)
    times_ms = np.fromiter(map(itemgetter(1), map(kind.timestamp, messages)), np.int64, count)
    held_ms = np.clip(times_ms, 0, _MS_MAX)
    moved = np.flatnonzero(held_ms != times_ms)
    columns = {
        "key": _octets(keys),
        "value": _octets(list(map(kind.value, messages))),
        "timestamp": pa.Array.from_buffers(_TIMESTAMP, count, [None, pa.py_buffer(held_ms * 1000)]),
    }
    headers = list(map(kind.headers, messages))
    if moved.size or any(headers):
        named = [[(name.encode(), value) for name, value in some or ()] for some in headers]
        for i in moved.tolist():
            named[i].append((TIMESTAMP_HEADER, str(times_ms[i]).encode()))
        columns["headers"] = of_headers([some or None for some in named])
    rows = pa.table(columns)
    return Columns(
        rows,
        np.fromiter(map(kind.partition, messages), np.int32, count),
        np.fromiter(map(kind.offset, messages), np.int64, count),
        rows.nbytes + _MESSAGE_BYTES * count,
        int(moved.size),
        found - count,
    )


def _octets(values: list[bytes | None]) -> pa.Array:
    """Returns bytes as a column: Arrow makes short ones in half the time, and would move long ones
    again and again.
    """
    first = values[:_SAMPLE]
    is_short = sum(len(value or b"") for value in first) < _SHORT_BYTES * len(first)
    return pa.array(values, pa.binary()) if is_short else of_bytes(values)


def joined(parts: Sequence[Columns]) -> Columns:
    """Returns the records of several, one after the other."""
    rows = pa.concat_tables([part.rows for part in parts], promote_options="default")
    return Columns(
        rows.combine_chunks(),
        np.concatenate([part.partitions for part in parts]),
        np.concatenate([part.offsets for part in parts]),
        sum(part.size_bytes for part in parts),
        sum(part.clamped for part in parts),
        sum(part.keyless for part in parts),
    )
