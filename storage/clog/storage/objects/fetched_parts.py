"""Parts of an object in memory, as the file that Parquet's reader wants.

Not here: which parts are fetched (`reader`).
"""

from bisect import bisect_right
from collections.abc import Sequence

import pyarrow as pa


class FetchedParts:
    """The parts of an object that were fetched, by their places, as a file; others fail."""

    def __init__(
        self, places: Sequence[tuple[int, int]], parts: Sequence[bytes], size_bytes: int
    ) -> None:
        self._size_bytes = size_bytes
        in_order = sorted(zip(places, parts, strict=True), key=lambda part: part[0])
        self._starts = [start for (start, _), _ in in_order]
        self._parts = [pa.py_buffer(data) for _, data in in_order]
        self._at = 0
        self.closed = False

    def read_buffer(self, size: int) -> pa.Buffer:
        """Returns the next bytes, without copying: Arrow calls this instead of `read`."""
        i = bisect_right(self._starts, self._at) - 1
        skip = self._at - self._starts[i]
        if i < 0 or skip + size > self._parts[i].size:
            raise OSError(f"bytes {self._at} to {self._at + size} are outside the columns")
        self._at += size
        return self._parts[i].slice(skip, size)

    def read(self, size: int) -> bytes:
        return bytes(self.read_buffer(size))

    def seek(self, to: int, whence: int = 0) -> int:
        self._at = to + (0, self._at, self._size_bytes)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        self.closed = True
