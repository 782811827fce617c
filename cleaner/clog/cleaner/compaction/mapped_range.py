"""What maps say of rows without their keys being read again.

*Mapped range*: the offsets that the map covers. A row there is superseded exactly when its offset
is not the last one of its key, and the map knows all last offsets. So fresh chunks, which are the
dirty part as a rule, are judged without being read: the keys were hashed once, for the map.

*Found dead*: what several maps of one pass found, a bit for each live row of the chunks that have
any. It is kept until the pass rewrites, once for all of its maps (S20).
"""

import numpy as np
import numpy.typing as npt

from clog.cleaner.compaction.offset_map import OffsetMap
from clog.storage.format.chunks import Chunk
from clog.storage.numpy_arrays import Mask, Offsets

WINDOW_OFFSETS = 1 << 24
"""Offsets of the mapped range that are unfolded at once, a byte each."""
FOUND_BYTES_MAX = 32 << 20
"""Bits of dead rows, in bytes, with which a pass begins no further map."""


class MappedRange:
    """The range ``[start, end)`` of a map.

    Args:
        keyless: the first and the last offset of a record without a key, which the map does not
            know; None where there is none.
        records: how many records with a key the map took of ``judged``.
        judged: the range of the segments that are judged by it; None: all of it.
    """

    def __init__(
        self,
        offset_map: OffsetMap,
        start: int,
        end: int,
        keyless: tuple[int, int] | None,
        *,
        records: int,
        judged: tuple[int, int] | None = None,
    ) -> None:
        self.start = start
        self.end = end
        self.records = records
        self._map = offset_map
        self._keyless = keyless
        self._judged = judged or (start, end)
        # One value, since several threads may look and unfold.
        self._window = (0, 0, np.zeros(0, np.bool_))

    def latest_judged(self) -> int:
        """Returns how many keys have their last offset among what is judged."""
        low, high = max(self._judged[0], self.start), min(self._judged[1], self.end)
        if (low, high) == (self.start, self.end):
            return self._map.entries
        steps = range(low, high, WINDOW_OFFSETS)
        spans = ((at, min(at + WINDOW_OFFSETS, high)) for at in steps)
        return sum(int(np.count_nonzero(self._map.is_last(*span))) for span in spans)

    def decides(self, chunk: Chunk) -> bool:
        """Tells whether the chunk's rows are judged by their offsets alone: all are in the range,
        have a key, and an offset that need not be read.
        """
        end = chunk.base + chunk.rows
        inside = self.start <= chunk.base and end <= self.end
        plain = chunk.object.dense and chunk.dead is None
        first, last = self._keyless or (end, end)
        return inside and plain and (last < chunk.base or end <= first)

    def superseded(self, chunk: Chunk) -> Mask:
        """Returns which rows of a chunk that it decides are not the last of their key."""
        return ~self._is_last_in(chunk.base, chunk.base + chunk.rows)

    def is_outdated(self, offsets: Offsets) -> Mask:
        """Returns which of some ascending offsets are in the range and not the last one of a key;
        none of those that are too far apart to be unfolded together.
        """
        outdated = np.zeros(len(offsets), np.bool_)
        first, behind = np.searchsorted(offsets, [self.start, self.end])
        inside = offsets[first:behind]
        if inside.size and inside[-1] - inside[0] < WINDOW_OFFSETS:
            base = int(inside[0])
            is_last = self._is_last_in(base, int(inside[-1]) + 1).take(inside - base)
            np.logical_not(is_last, out=outdated[first:behind])
        return outdated

    def _is_last_in(self, start: int, end: int) -> Mask:
        low, high, is_last = self._window
        if start < low or end > high:
            low, high = start, max(end, min(start + WINDOW_OFFSETS, self.end))
            is_last = self._map.is_last(low, high)
            self._window = low, high, is_last
        return is_last[start - low : end - low]


class FoundDead:
    """Superseded rows by chunk, as bits."""

    def __init__(self) -> None:
        self._bits: dict[tuple[str, int], npt.NDArray[np.uint8]] = {}
        self.size_bytes = 0

    def add(self, chunk: Chunk, superseded: Mask) -> None:
        """Adds what one map found in a chunk."""
        if not superseded.any():
            return
        bits = np.packbits(superseded)
        before = self._bits.get(chunk.identity)
        if before is None:
            self.size_bytes += bits.nbytes
        self._bits[chunk.identity] = bits if before is None else bits | before

    def of(self, chunk: Chunk) -> Mask | None:
        """Returns the rows of a chunk that are dead; None where none is."""
        bits = self._bits.get(chunk.identity)
        if bits is None:
            return None
        return np.unpackbits(bits, count=chunk.live_rows).view(np.bool_)
