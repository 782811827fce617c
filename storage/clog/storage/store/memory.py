"""The memory of this process, through fsspec's ``memory://``: for tests and experiments.

fsspec's own create checks first and then writes, so two threads can both succeed; ``setdefault`` on
its dictionary is one step (A2). Another process, even a forked child, has its own memory: there the
store refuses, because it would show an empty or a diverging log.
"""

import builtins
import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from clog.storage.errors import UnsupportedFilesystemError
from clog.storage.store.contract import (
    ObjectExistsError,
    StoredObject,
    check_path,
    check_prefix,
    check_range,
    is_temporary,
    not_found,
)


class MemoryStore:
    """A folder of fsspec's memory filesystem. Threads of one process share it."""

    def __init__(self, root: str, *, url: str, options: Mapping[str, object]) -> None:
        self._root = root
        self._options = dict(options)
        self._pid = os.getpid()
        self._fs: Any = None
        self.url = url

    def __repr__(self) -> str:
        return f"MemoryStore({self.url!r})"

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_fs": None}

    @property
    def create_is_proven(self) -> bool:
        return True

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        first, end = check_range(start, end)
        return bytes(self._view(path)[first:end])

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        view = self._view(path)
        return [bytes(view[start:end]) for start, end in ranges]

    def begin(self, call: Callable[[], Any]) -> Callable[[], Any]:
        return call

    def put(self, path: str, data: bytes | memoryview) -> None:
        fs, name = self._filesystem(), self._path(path)
        fs.store[name] = _file(fs, name, data)

    def create(self, path: str, data: bytes) -> None:
        fs, name = self._filesystem(), self._path(path)
        file = _file(fs, name, data)
        if fs.store.setdefault(name, file) is not file:
            raise ObjectExistsError(errno.EEXIST, f"exists in {self.url}", path)

    def delete(self, path: str) -> None:
        self._filesystem().store.pop(self._path(path), None)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        check_prefix(prefix)
        skip = len(self._root) + 1
        start = f"{self._root}/{prefix}"
        everything = self._filesystem().store.copy().items()
        for name, file in sorted(item for item in everything if item[0].startswith(start)):
            path = name[skip:]
            if not is_temporary(path):
                modified_ms = int(file.modified.timestamp() * 1000)
                yield StoredObject(path, file.getbuffer().nbytes, modified_ms)

    def list_temporary(self, _prefix: str) -> Iterator[StoredObject]:
        return iter(())  # a write is one step

    def forget_old(self, _prefix: str, _begun_ms: int) -> bool:
        return True  # nothing is kept

    def _path(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}"

    def _view(self, path: str) -> memoryview:
        name = self._path(path)
        try:
            view: memoryview = self._filesystem().store[name].getbuffer()
        except KeyError:
            raise not_found(path, self.url) from None
        return view

    def _filesystem(self) -> Any:
        if self._pid != os.getpid():
            raise UnsupportedFilesystemError(
                f"{self.url} exists only in the memory of process {self._pid}, but process"
                f" {os.getpid()} tries to use it; for several processes, put the log on local"
                " files or S3"
            )
        if self._fs is None:
            import fsspec

            self._fs = fsspec.filesystem("memory", **self._options)
        return self._fs


def _file(fs: Any, name: str, data: bytes | memoryview) -> Any:
    from fsspec.implementations.memory import MemoryFile

    return MemoryFile(fs, name, data)
