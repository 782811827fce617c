"""Keys that the table view has read once, kept for the records that it delivers.

They are kept as long as they fit what the budget has left beside the map (`latest_keys`); beyond
that all are dropped, and read again with their records. Of what is kept, those of the last records
are gathered once: for that moment they are there twice.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from clog.storage.numpy_arrays import Offsets, to_arrow

_BYTES_MAX: Final = 1 << 30
"""One array of Arrow's holds 2 GiB."""


class KeptKeys:
    """The keys of rows, in the order in which they came."""

    __slots__ = ("_free_bytes", "_parts")

    def __init__(self, budget_bytes: int) -> None:
        self._free_bytes = min(budget_bytes, _BYTES_MAX)
        self._parts: list[pa.Array] = []

    def keep(self, keys: pa.Array) -> None:
        """Keeps the keys of more rows, if there is room."""
        self._free_bytes -= keys.nbytes
        if self._free_bytes >= 0:
            # Copied: a slice, of an object's rows those of one partition, holds all its batch.
            self._parts.append(pa.concat_arrays([keys]))
        else:
            self._parts.clear()

    def take(self, rows: Offsets) -> pa.Array | None:
        """Returns the keys of these rows, which ascend, None where not all were kept; nothing is
        kept any longer.
        """
        parts, self._parts = self._parts, []
        if not parts:
            return None
        ends = np.cumsum([len(part) for part in parts])
        found, first, low = [], 0, 0
        for part, end, high in zip(parts, ends, np.searchsorted(rows, ends), strict=True):
            found.append(part.take(to_arrow(rows[low:high] - first)))
            first, low = end, high
        return pa.concat_arrays(found)
