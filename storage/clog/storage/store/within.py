"""A folder of a store, as a store: paths are relative to it, and nothing outside is reached."""

import builtins
from collections.abc import Iterator, Sequence
from dataclasses import replace

from clog.storage.store import failures
from clog.storage.store.base import Store, StoredObject, check_path, check_prefix
from clog.storage.store.wrapping import WrappingStore


class Within(WrappingStore):
    """The folder ``folder`` of ``inner``. Its URL stays that of ``inner``: what users call the log.

    Errors name the folder, so that an operator finds the file.

    Attributes:
        folder: as given.
    """

    def __init__(self, inner: Store, folder: str) -> None:
        super().__init__(inner)
        self.folder = check_path(folder)
        self._prefix = f"{folder}/"

    def __repr__(self) -> str:
        return f"Within({self.inner!r}, {self._prefix!r})"

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        try:
            return self.inner.get(self._whole(path), start, end)
        except FileNotFoundError:
            raise self._not_found(path) from None

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        try:
            return self.inner.get_ranges(self._whole(path), ranges)
        except FileNotFoundError:
            raise self._not_found(path) from None

    def put(self, path: str, data: bytes | memoryview) -> None:
        self.inner.put(self._whole(path), data)

    def create(self, path: str, data: bytes) -> None:
        self.inner.create(self._whole(path), data)

    def delete(self, path: str) -> None:
        self.inner.delete(self._whole(path))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self._relative(self.inner.list(self._prefix + check_prefix(prefix)))

    def list_temporary(self, prefix: str) -> Iterator[StoredObject]:
        return self._relative(self.inner.list_temporary(self._prefix + check_prefix(prefix)))

    def _not_found(self, path: str) -> FileNotFoundError:
        return failures.not_found(path, f"{self.url}/{self._prefix.rstrip('/')}")

    def _whole(self, path: str) -> str:
        return self._prefix + check_path(path)

    def _relative(self, found: Iterator[StoredObject]) -> Iterator[StoredObject]:
        return (replace(f, path=f.path.removeprefix(self._prefix)) for f in found)
