"""What is appended: a few batches of records, made once, of few keys, so that they meet.

Where orders are compared, each record has one as its timestamp and another in a header; two of a
key have the same now and then. Where there are more keys, batches have fewer records, so that a
tombstone is the last of its key for a while.
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pyarrow as pa

from clog.storage.config.log_config import LogConfig
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.objects.records import to_records
from clog.storage.objects.writer import DataObject, ObjectWriter

PARTITIONS = 2
BATCHES = 48
TIME_MS = 1_000_000_000_000
"""The timestamp of every record."""
KEYS = 5
HEADER = "v"
"""That of a record's other order."""
_ORDERS = 40


@dataclass(frozen=True, eq=False)
class Batch:
    """Records to append.

    Attributes:
        table, partition: as `Log.append` takes them.
        rows: (key, value) by partition.
        object, data: the data object that a task makes of them.
    """

    table: pa.Table
    partition: np.ndarray
    rows: dict[int, list[tuple]]
    object: DataObject
    data: bytes

    def put(self, log, *, stamp: int) -> DataObject:
        """Puts the object under a name of its own, as a task of a log does."""
        config = LogConfig.from_overrides(log.handle.recent().head.config)
        path = documents.data_path(stamp, log.handle.ids.new_id())
        log.handle.store.put(path, self.data)
        facts = replace(self.object.facts, order_header=config.compaction_strategy_header)
        ref = replace(self.object.ref, path=path, stamp=stamp)
        return replace(self.object, ref=ref, facts=facts)


class _Kept:
    """The one object that was put."""

    url = "kept://"

    def put(self, _path, data):
        self.data = bytes(data)


@cache
def batches(*, parquet: bool, ordered: bool = False, keys: int = KEYS) -> list[Batch]:
    """The batches; made anew for each way to write objects (`limits`)."""
    del parquet
    dice, orders = SeededIds(1), SeededIds(2) if ordered else None
    made = BATCHES * (1 + (keys > KEYS))
    return [_batch(dice, i, orders, keys) for i in range(made)]


def keys_named(*numbers: int) -> list[bytes]:
    """The keys of these numbers."""
    return [f"k{number}".encode() for number in numbers]


def _batch(dice: SeededIds, number: int, orders: SeededIds | None, keys: int) -> Batch:
    rows_max, tombstones = (2, 0.45) if keys > KEYS else (4, 0.3)
    count = 1 + int(dice.uniform() * rows_max)
    partition = np.array([int(dice.uniform() * PARTITIONS) for _ in range(count)], np.int32)
    rows: dict[int, list[tuple]] = {}
    given = []
    for i, p in enumerate(partition.tolist()):
        key = f"k{int(dice.uniform() * keys)}".encode()
        value = None if dice.uniform() < tombstones else f"{number}:{i}".encode()
        rows.setdefault(p, []).append((key, value))
        given.append({"key": key, "value": value, "timestamp": TIME_MS})
        if orders is not None:
            later, order = (1 + int(orders.uniform() * _ORDERS) for _ in range(2))
            headers = [(HEADER, order.to_bytes(8, "big"))]
            given[-1] |= {"timestamp": TIME_MS + later, "headers": headers}
    table, _ = to_records(given, now_us=0)
    kept = _Kept()
    writer = ObjectWriter(kept, stamp=0, new_id=dice.new_id, partitions=PARTITIONS)
    writer.add(table, partition)
    (obj,) = writer.finish()
    return Batch(table, partition, dict(sorted(rows.items())), obj, kept.data)
