"""The recheck: whether each row that goes may go, found once more from the rows themselves.

Judging works with masks, offsets and chunks. A fault there could drop a row that lives while every
sum is right. So rows that are about to be left out are checked again, as they were read, and by
nothing of judging but the map. Each must

- lie below the log start (S37), or have no key, or
- be a tombstone whose delete horizon has come (S23), or
- have a key for which the map has a higher offset (S21); an earlier map of the pass may have had
  it, and that one's finding is believed.

And of the range of the last map as many rows must stay, or be such tombstones, as the map has
entries. Where one of it does not hold nothing is committed, and the partition is uncleanable (S28).

Costs: a hash and a look-up for each row that goes, and the keys of rewritten chunks of which
nothing is left.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.cleaner.compaction.build_map import KeyHasher
from clog.cleaner.compaction.mapped_range import MappedRange
from clog.cleaner.compaction.offset_map import OffsetMap
from clog.storage.errors import CorruptionError
from clog.storage.numpy_arrays import Mask, scalar, to_numpy
from clog.storage.read.scan import DELETE_HORIZON


class Recheck:
    """The recheck of one pass.

    Args:
        offset_map: the last of the pass.
        mapped: the range that it covers.
        hasher: makes the hashes of all.
        log_start: below it all is dead (S37).
        now_ms: the pass's start.
    """

    def __init__(
        self,
        offset_map: OffsetMap,
        mapped: MappedRange,
        hasher: KeyHasher,
        *,
        log_start: int,
        now_ms: int,
    ) -> None:
        self._map = offset_map
        self._mapped = mapped
        self._hasher = hasher
        self._log_start = log_start
        self._now_ms = now_ms
        self._latest = 0

    def check(self, partition: int, rows: pa.RecordBatch, found: Mask | None) -> None:
        """Checks rows that go: offset and key, value and `DELETE_HORIZON` where tombstones may go.

        Args:
            partition: theirs.
            rows: in any order.
            found: which of them an earlier map of the pass found superseded.

        Raises:
            CorruptionError: a row has no reason to go.
        """
        offsets, keys = to_numpy(rows.column("offset")), rows.column("key")
        may_go = offsets < self._log_start
        if found is not None:
            may_go |= found
        valid = to_numpy(keys.is_valid())
        may_go |= ~valid
        may_go[valid] |= self._map.get(self._hasher(keys.drop_null())) > offsets[valid]
        if DELETE_HORIZON in rows.schema.names:
            horizon = to_numpy(
                pc.fill_null(rows.column(DELETE_HORIZON), scalar(self._now_ms + 1, pa.int64()))
            )
            tombstone = to_numpy(rows.column("value").is_null())
            may_go |= tombstone & (horizon <= self._now_ms)
        if not may_go.all():
            offset = offsets[np.flatnonzero(~may_go)[0]]
            raise CorruptionError(
                f"the record at offset {offset} of partition {partition} would have been removed,"
                " but nothing shows that it is dead; nothing was changed"
            )

    def count(self, offsets: np.ndarray, latest: Mask) -> None:
        """Counts rows that the map has as the latest of their keys, those outside its range left
        out.
        """
        in_range = (self._mapped.start <= offsets) & (offsets < self._mapped.end)
        self.count_latest(int(np.count_nonzero(latest & in_range)))

    def count_latest(self, rows: int) -> None:
        """Counts such rows of a chunk that lies in the range."""
        self._latest += rows

    def check_range(self, partition: int) -> None:
        """Compares what was counted with the map, after all of its range was judged.

        Raises:
            CorruptionError: they differ.
        """
        if self._latest != self._map.entries:
            raise CorruptionError(
                f"partition {partition} has {self._map.entries} keys in"
                f" [{self._mapped.start}, {self._mapped.end}), but {self._latest} of their records"
                " would have been kept; the pass stops here"
            )
