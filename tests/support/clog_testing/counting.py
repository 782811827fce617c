"""Counting requests, for the costs that COMMIT.md states.

A request counts when it is made: one that fails, or finds nothing, counts as well. What a client
repeats by itself, and the probe of an endpoint, happen below and are not seen.
"""

import builtins
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from clog.storage.store.contract import Store, StoredObject, WrappingStore, coalesce


class CountingStore(WrappingStore):
    """Passes everything on, and counts.

    Attributes:
        counts: requests by operation: ``get``, ``get_ranges`` (its coalesced requests), ``put``,
            ``create``, ``delete``, ``list``.
        bytes_in: bytes read, as asked for; those in the gaps of coalesced ranges are not counted.
        bytes_out: bytes of puts and creates, of refused ones too.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Begins again from nothing."""
        self.counts: Counter[str] = Counter()
        self.bytes_in = 0
        self.bytes_out = 0

    @contextmanager
    def count(self) -> Iterator[Counter[str]]:
        """Yields a counter that holds, at the end of the block, the requests made in it."""
        before = self.counts.copy()
        during: Counter[str] = Counter()
        try:
            yield during
        finally:
            during.update(self.counts - before)

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        self._add("get")
        data = self.inner.get(path, start, end)
        self._add("get", requests=0, bytes_in=len(data))
        return data

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        self._add("get_ranges", requests=len(coalesce(ranges)))
        data = self.inner.get_ranges(path, ranges)
        self._add("get_ranges", requests=0, bytes_in=sum(map(len, data)))
        return data

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._add("put", bytes_out=memoryview(data).nbytes)
        self.inner.put(path, data)

    def create(self, path: str, data: bytes) -> None:
        self._add("create", bytes_out=len(data))
        self.inner.create(path, data)

    def delete(self, path: str) -> None:
        self._add("delete")
        self.inner.delete(path)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self._add("list")
        return self.inner.list(prefix)

    def list_temporary(self, prefix: str) -> Iterator[StoredObject]:
        self._add("list")
        return self.inner.list_temporary(prefix)

    def _add(
        self, operation: str, *, requests: int = 1, bytes_in: int = 0, bytes_out: int = 0
    ) -> None:
        with self._lock:
            if requests:
                self.counts[operation] += requests
            self.bytes_in += bytes_in
            self.bytes_out += bytes_out
