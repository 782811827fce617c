"""Which of two records of a key wins, if it is not the later one (S56, FORMAT.md §15).

A record's *order value*, or order, is its timestamp in µs, or a header of 8 bytes; the higher one
wins, and of equals the higher offset. A record without one has -1, and loses to all that have one.

A record may be *suspect*: a tombstone with its order or a higher one was removed before it came,
and may have been its key's. `Ordering.removed` has a partition's pairs of order and end offset that
determine this, without redundant ones. A suspect counts only if another record of its key is not,
so that no deleted key comes back if late records are dropped (S57). Everything here is pure.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.config.log_config import HEADER, OFFSET, LogConfig
from clog.storage.env import dataclass
from clog.storage.numpy_arrays import Mask, Offsets, to_arrow, to_numpy

ORDER_MAX: Final = (1 << 62) - 1
"""The highest order in a header: a tombstone near 2^63 would win for ever."""
WITHOUT: Final = -1
"""The order of a record without one."""
_BYTES: Final = 8
Pairs = tuple[tuple[int, int], ...]
"""Orders of removed tombstones, with the end offsets at that time; both ascend."""


@dataclass(frozen=True, slots=True)
class Ordering:
    """How records of a key are compared, if not by offset.

    Attributes:
        header: the header whose value counts; None: the timestamp.
        drops_late: whether late records are dropped.
        removed: the pairs of a partition, if late records are dropped.
    """

    header: str | None = None
    drops_late: bool = False
    removed: Pairs = ()

    @classmethod
    def of(cls, config: LogConfig) -> "Ordering | None":
        """Returns the config's ordering; None: the last record wins."""
        if config.compaction_strategy == OFFSET:
            return None
        by_header = config.compaction_strategy == HEADER
        header = config.compaction_strategy_header if by_header else None
        return cls(header, drops_late=config.compaction_late == "drop")

    @property
    def column(self) -> str:
        """The column of records that holds the order."""
        return "timestamp" if self.header is None else "headers"

    def within(self, pairs: Pairs) -> "Ordering":
        """Returns the same ordering for a partition with these pairs."""
        return replace(self, removed=pairs if self.drops_late else ())

    def values(self, rows: pa.RecordBatch) -> Offsets:
        """Returns the order of each row, by its `column`."""
        column = rows.column(self.column)
        if self.header is not None:
            return header_orders(column, self.header)
        return to_numpy(column.cast(pa.int64()))

    def suspects(self, orders: Offsets, offsets: Offsets) -> Mask:
        """Returns which rows count only if another record of their key is no suspect."""
        return suspects(orders, offsets, self.removed)


def header_orders(headers: pa.Array, name: str) -> Offsets:
    """Returns each record's order from its last header of this name; -1: missing or invalid."""
    orders = np.full(len(headers), WITHOUT, np.int64)
    if headers.null_count == len(headers):
        return orders
    parents, each = to_numpy(pc.list_parent_indices(headers)), headers.flatten()
    named = np.flatnonzero(to_numpy(pc.equal(each.field("key"), name)))
    rows = parents[named]
    last = named[np.append(rows[1:] != rows[:-1], True)] if named.size else named
    values = each.field("value").take(to_arrow(last))
    fits = to_numpy(pc.equal(pc.fill_null(pc.binary_length(values), 0), _BYTES))
    data = b"".join(values.filter(to_arrow(fits)).to_pylist())
    found = np.frombuffer(data, ">i8").astype(np.int64)
    found[(found < 0) | (found > ORDER_MAX)] = WITHOUT
    orders[parents[last[fits]]] = found
    return orders


def suspects(orders: Offsets, offsets: Offsets, pairs: Pairs) -> Mask:
    """Returns whether a pair with the order or a higher one ends at or before the offset."""
    if not pairs:
        return np.zeros(len(orders), np.bool_)
    highest, ends = (np.array(numbers, np.int64) for numbers in zip(*pairs, strict=True))
    before = np.searchsorted(ends, offsets, side="right")
    found: Mask = (before > 0) & (highest[before - 1] >= orders)
    return found


def with_removed(pairs: Pairs, order: int, end: int) -> Pairs:
    """Returns the pairs with one for tombstones removed now, whose highest order is given."""
    return _fewest([*pairs, (order, end)]) if order >= 0 else pairs


def decided(pairs: Pairs, offset: int) -> Pairs:
    """Returns the pairs once all records below the offset are known to be late or not."""
    return _fewest([(order, max(end, offset)) for order, end in pairs])


def _fewest(pairs: Sequence[tuple[int, int]]) -> Pairs:
    """Returns the fewest equivalent pairs: in the order of their ends, those with a new maximum."""
    kept: list[tuple[int, int]] = []
    for order, end in sorted(pairs, key=lambda pair: (pair[1], -pair[0])):
        if not kept or order > kept[-1][0]:
            kept.append((order, end))
    return tuple(kept)


def rows_without_order(records: pa.Table, header: str) -> Offsets:
    """Returns which records have no order by this header."""
    orders = header_orders(records.column("headers").combine_chunks(), header)
    found: Offsets = np.flatnonzero(orders == WITHOUT)
    return found
