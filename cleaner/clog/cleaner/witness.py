"""The witness: why each row that goes may go, found once more from the rows themselves.

Judging works with masks, offsets and chunks. A fault there could drop a row that lives while every
sum is right. So rows that are about to be left out are asked again, as they were read, and by
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

from clog.cleaner.mapping import KeyHasher
from clog.cleaner.superseded import MappedRange
from clog.storage.errors import CorruptionError
from clog.storage.offset_map import OffsetMap
from clog.storage.reader import DELETE_HORIZON
from clog.storage.survivors import Mask


class Witness:
    """The witness of one pass.

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

    def ask(self, partition: int, rows: pa.RecordBatch, found: Mask | None) -> None:
        """Asks rows that go: offset and key, value and `DELETE_HORIZON` where tombstones may go.

        Args:
            partition: theirs.
            rows: in any order.
            found: which of them an earlier map of the pass found superseded.

        Raises:
            CorruptionError: a row has no reason to go.
        """
        offsets, keys = rows.column("offset").to_numpy(), rows.column("key")
        may_go = offsets < self._log_start
        if found is not None:
            may_go |= found
        valid = keys.is_valid().to_numpy(zero_copy_only=False)
        may_go |= ~valid
        may_go[valid] |= self._map.get(self._hasher(keys.drop_null())) > offsets[valid]
        if DELETE_HORIZON in rows.schema.names:
            horizon = rows.column(DELETE_HORIZON).fill_null(self._now_ms + 1).to_numpy()
            tombstone = rows.column("value").is_null().to_numpy(zero_copy_only=False)
            may_go |= tombstone & (horizon <= self._now_ms)
        if not may_go.all():
            offset = offsets[np.flatnonzero(~may_go)[0]]
            raise CorruptionError(
                f"the record at offset {offset} of partition {partition} was to go, and nothing"
                " says that it is dead; nothing was changed"
            )

    def saw(self, offsets: np.ndarray, latest: Mask) -> None:
        """Counts rows that the map has as the latest of their keys, those outside its range left
        out.
        """
        in_range = (self._mapped.start <= offsets) & (offsets < self._mapped.end)
        self.saw_latest(int(np.count_nonzero(latest & in_range)))

    def saw_latest(self, rows: int) -> None:
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
                f" [{self._mapped.start}, {self._mapped.end}), and {self._latest} records of them"
                " were to stay; the pass ends here"
            )
