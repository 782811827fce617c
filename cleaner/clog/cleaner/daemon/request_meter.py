"""A store that meters all requests of one log, by kind, for the daemon's metrics."""

import builtins
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from clog.storage.errors import StoreUnavailableError
from clog.storage.store.base import Store, StoredObject, coalesce
from clog.storage.store.wrapping import WrappingStore

_T = TypeVar("_T")


class RequestMeter(WrappingStore):
    """Passes everything on.

    Attributes:
        requests: by operation; ranges of one object count as the requests that fetch them.
        failures: of these, those that the filesystem did not answer as it should.
        bytes_moved: by operation.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.bytes_moved: Counter[str] = Counter()

    def __reduce__(self) -> tuple[Callable[[Store], Store], tuple[Store]]:
        """Pickles as the store: nobody here sees what another process asks of it."""
        return _itself, (self.inner,)

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        data = self._metered("get", 1, lambda: self.inner.get(path, start, end))
        self._moved("get", len(data))
        return data

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        requests = len(coalesce(ranges))
        parts = self._metered("get", requests, lambda: self.inner.get_ranges(path, ranges))
        self._moved("get", sum(map(len, parts)))
        return parts

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._metered("put", 1, lambda: self.inner.put(path, data))
        self._moved("put", memoryview(data).nbytes)

    def create(self, path: str, data: bytes) -> None:
        self._metered("create", 1, lambda: self.inner.create(path, data))
        self._moved("create", len(data))

    def delete(self, path: str) -> None:
        self._metered("delete", 1, lambda: self.inner.delete(path))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self._listed(lambda: self.inner.list(prefix))

    def list_temporary(self, prefix: str) -> Iterator[StoredObject]:
        return self._listed(lambda: self.inner.list_temporary(prefix))

    def _listed(self, call: Callable[[], Iterator[StoredObject]]) -> Iterator[StoredObject]:
        with self._counted("list", 1):
            yield from call()

    def _metered(self, operation: str, requests: int, call: Callable[[], _T]) -> _T:
        with self._counted(operation, requests):
            return call()

    @contextmanager
    def _counted(self, operation: str, requests: int) -> Iterator[None]:
        with self._lock:
            self.requests[operation] += requests
        try:
            yield
        except StoreUnavailableError:
            with self._lock:
                self.failures[operation] += 1
            raise

    def _moved(self, operation: str, size_bytes: int) -> None:
        with self._lock:
            self.bytes_moved[operation] += size_bytes


def _itself(store: Store) -> Store:
    return store
