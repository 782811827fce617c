"""A store that passes everything on: others override what they count, meter or break."""

import builtins
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from clog.storage.store.base import Store, StoredObject


class WrappingStore:
    """All operations of ``inner``."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def create_is_proven(self) -> bool:
        return self.inner.create_is_proven

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        return self.inner.get(path, start, end)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        return self.inner.get_ranges(path, ranges)

    def begin(self, call: Callable[[], Any]) -> Callable[[], Any]:
        return self.inner.begin(call)

    def put(self, path: str, data: bytes | memoryview) -> None:
        self.inner.put(path, data)

    def create(self, path: str, data: bytes) -> None:
        self.inner.create(path, data)

    def delete(self, path: str) -> None:
        self.inner.delete(path)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self.inner.list(prefix)

    def list_temporary(self, prefix: str) -> Iterator[StoredObject]:
        return self.inner.list_temporary(prefix)
