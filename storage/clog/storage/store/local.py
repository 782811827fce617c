"""Local files, with plain system calls.

Create (A1, A2):

F1. Write the bytes into ``.<name>.<id>.tmp`` beside the object, and fsync it. A crash leaves a
    temporary file, which no listing shows and the sweep deletes.
F2. ``link`` it to its name. This is the create: one of all callers succeeds, and the file appears
    complete. ``O_EXCL`` would be exclusive as well, but readers would see the file being written.
F3. Unlink the temporary name, and fsync the folder, so that the name survives a power failure.

Where the filesystem has no hard links (FAT, some network and FUSE mounts) ``renameat2`` with
``RENAME_NOREPLACE`` replaces F2; where it has neither, the create is refused.
A put uses ``rename`` instead of F2 and F3. Folders are made when they are needed.
"""

# System calls take text, and an append makes a dozen of them: no `Path` here.
# ruff: noqa: PTH102, PTH105, PTH108, PTH116, PTH120

import builtins
import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from clog.storage.env import SystemIds
from clog.storage.errors import UnsupportedFilesystemError
from clog.storage.store.contract import (
    ObjectExistsError,
    StoredObject,
    check_path,
    check_prefix,
    check_range,
    is_temporary,
    not_found,
    temporary_name,
)
from clog.storage.store.failures import ABSENT, failed

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # Opening a pipe would wait for a writer.
_TEMPORARY_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_READ_BYTES_MAX = 1 << 30
"""Linux reads at most 2 GiB less a page in one call."""
_LARGE_BYTES = 4 << 20
"""From this size on bytes are read into large pages, if the system has them. Faults in small ones
took two fifths of the CPU of a read: 54 MB, read and hashed, 26 ms in place of 45."""
_WRITABLE = 0x200
"""Python's ``PyBUF_WRITE``."""
_WRITE_BYTES = 1 << 15
"""In one call. Linux keeps the data of larger writes in larger pages if the file system has them,
and allocating these can take ten times as long as the copy: in virtual machines whose host takes
free memory back, 80 MB took 0.2 s of CPU in one call, and 0.03 s in pieces."""

_NO_HARD_LINKS = frozenset(
    {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
)
_NO_SUCH_RENAME = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP})
_IDS = SystemIds()


class LocalStore:
    """A folder.

    ``fsync=False`` is faster, and still atomic; but after a power failure the last commits may be
    missing, or their files empty. A killed process loses nothing.
    """

    __slots__ = ("_fsync", "_root", "url")

    def __init__(self, root: str, *, url: str, fsync: bool = True) -> None:
        self._root = root
        self._fsync = fsync
        self.url = url

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    @property
    def create_is_proven(self) -> bool:
        return True

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        first, end = check_range(start, end)
        if end is not None and end <= first:
            return b""
        return self._read(path, [(first, end)])[0]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        return self._read(path, [check_range(*bounds) for bounds in ranges])

    def begin(self, call: Callable[[], Any]) -> Callable[[], Any]:
        return call

    def put(self, path: str, data: bytes | memoryview) -> None:
        target = self._path(path)
        try:
            temporary = _write_temporary(target, data, fsync=self._fsync)
            try:
                os.replace(temporary, target)
            except OSError:
                _unlink(temporary)
                raise
        except OSError as e:
            raise failed("put", path, self.url, e, certain=True) from e
        self._synced("put", path)

    def create(self, path: str, data: bytes) -> None:
        target = self._path(path)
        try:
            create_file(target, data, fsync=self._fsync)
        except ObjectExistsError:
            raise ObjectExistsError(errno.EEXIST, f"exists in {self.url}", path) from None
        except OSError as e:
            raise failed("create", path, self.url, e, certain=True) from e
        self._synced("create", path)

    def delete(self, path: str) -> None:
        try:
            os.unlink(self._path(path))
        except OSError as e:
            if e.errno not in ABSENT:
                raise failed("delete", path, self.url, e) from e

    def list(self, prefix: str) -> Iterator[StoredObject]:
        folder, _, _ = check_prefix(prefix).rpartition("/")
        return (found for found in self._walk(folder, prefix) if not is_temporary(found.path))

    def list_temporary(self, prefix: str) -> Iterator[StoredObject]:
        folder = check_prefix(prefix).rstrip("/")
        return (found for found in self._walk(folder) if is_temporary(found.path))

    def forget_old(self, prefix: str, _begun_ms: int) -> bool:
        check_prefix(prefix)
        return True  # nothing deleted is kept under any path

    def _path(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}"

    def _read(self, path: str, ranges: Sequence[tuple[int, int | None]]) -> builtins.list[bytes]:
        try:
            fd = os.open(self._path(path), _READ_FLAGS)
            try:
                status = os.fstat(fd)
                if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                    raise OSError(errno.EINVAL, "not a regular file")
                size = status.st_size
                return [
                    _pread(fd, start, size if end is None else min(end, size))
                    for start, end in ranges
                ]
            finally:
                os.close(fd)
        except OSError as e:
            if e.errno in ABSENT:
                raise not_found(path, self.url) from e
            raise failed("get", path, self.url, e) from e

    def _synced(self, operation: str, path: str) -> None:
        """Makes the name of an object that others already see survive a power failure."""
        if self._fsync:
            try:
                _fsync_folder(os.path.dirname(self._path(path)))
            except OSError as e:
                raise failed(operation, path, self.url, e) from e

    def _walk(self, folder: str, prefix: str = "") -> Iterator[StoredObject]:
        """Yields the files below a folder whose paths begin with a prefix, by name."""
        try:
            with os.scandir(f"{self._root}/{folder}" if folder else self._root) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as e:
            if e.errno in ABSENT:
                return
            raise failed("list", folder, self.url, e) from e
        for entry in found:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if not path.startswith(prefix):
                continue
            if entry.is_symlink():
                continue  # Not ours: it may lead anywhere, or to itself.
            if entry.is_dir():
                yield from self._walk(path)
                continue
            with suppress(FileNotFoundError):  # deleted in the meantime (A4)
                status = entry.stat()
                yield StoredObject(path, status.st_size, status.st_mtime_ns // 1_000_000)


def create_file(target: str, data: bytes, *, fsync: bool) -> None:
    """Creates a complete file if there is none: F1, F2; if it raises, it has created none."""
    if os.path.lexists(target):
        raise ObjectExistsError  # The loser of a race finds out without an fsync.
    temporary = _write_temporary(target, data, fsync=fsync)
    try:
        _link(temporary, target)
    finally:
        _unlink(temporary)


def _link(temporary: str, target: str) -> None:
    try:
        os.link(temporary, target)
    except FileExistsError:
        # NFS repeats a request whose reply was lost, and then finds its own link.
        if os.stat(temporary).st_nlink != 2:
            raise ObjectExistsError from None
    except OSError as e:
        if e.errno not in _NO_HARD_LINKS:
            raise
        _rename_no_replace(temporary, target)


def _rename_no_replace(temporary: str, target: str) -> None:
    code = _rename_no_replace_code(os.fsencode(temporary), os.fsencode(target))
    if code == errno.EEXIST:
        raise ObjectExistsError
    if code in _NO_SUCH_RENAME:
        raise UnsupportedFilesystemError(
            f"the filesystem of {os.path.dirname(target)} has neither hard links nor a rename that"
            " never replaces, so concurrent writers could overwrite each other's commits;"
            " use another disk"
        )
    if code:
        raise OSError(code, os.strerror(code), target)


def _rename_no_replace_code(source: bytes, target: bytes) -> int:
    """Returns the errno of the system call, 0 for success; Python has no wrapper for the call."""
    import ctypes

    at_working_folder, no_replace = -100, 1
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return errno.ENOSYS
    if rename(at_working_folder, source, at_working_folder, target, no_replace) == 0:
        return 0
    return ctypes.get_errno()


def _write_temporary(target: str, data: bytes | memoryview, *, fsync: bool) -> str:
    """Writes a new file beside the target and returns its path."""
    folder, name = os.path.split(target)
    temporary = f"{folder}/{temporary_name(name, _IDS.new_id())}"
    try:
        fd = os.open(temporary, _TEMPORARY_FLAGS, 0o666)
    except FileNotFoundError:
        _make_folders(folder, fsync=fsync)
        fd = os.open(temporary, _TEMPORARY_FLAGS, 0o666)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest[:_WRITE_BYTES]) :]
            if fsync:
                os.fsync(fd)
        finally:
            os.close(fd)
    except OSError:
        _unlink(temporary)
        raise
    return temporary


def _make_folders(folder: str, *, fsync: bool) -> None:
    parent = os.path.dirname(folder)
    try:
        os.mkdir(folder)
    except FileExistsError:
        return
    except FileNotFoundError:
        _make_folders(parent, fsync=fsync)
        with suppress(FileExistsError):
            os.mkdir(folder)
    if fsync:
        _fsync_folder(parent)


def _fsync_folder(folder: str) -> None:
    fd = os.open(folder, _READ_FLAGS)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _pread(fd: int, start: int, end: int) -> bytes:
    if end - start < _LARGE_BYTES:
        return os.pread(fd, end - start, start) if start < end else b""
    data, view = _large_bytes(end - start)
    read = 0
    os.lseek(fd, start, os.SEEK_SET)  # Not every system has a read that takes both.
    while count := os.readv(fd, [view[read : read + _READ_BYTES_MAX]]):
        read += count
    return data if read == len(data) else data[:read]


def _large_bytes(size: int) -> tuple[bytes, memoryview]:
    """Returns new bytes, which nobody else has seen yet, and a view through which to fill them."""
    from ctypes import c_char_p, c_void_p, cast

    made, viewed, advise = _calls_for_large_bytes()
    data = made(None, size)
    at = cast(c_char_p(data), c_void_p).value or 0
    if advise is not None and (advice := getattr(mmap, "MADV_HUGEPAGE", None)) is not None:
        first = -(-at // mmap.PAGESIZE) * mmap.PAGESIZE
        advise(first, at + size - first, advice)  # If the system refuses, the pages stay small.
    return data, viewed(at, size, _WRITABLE)


@cache
def _calls_for_large_bytes() -> tuple[Callable[..., Any], Callable[..., Any], Any]:
    """Returns Python's makers of bytes and of a view of memory, and ``madvise``, None without."""
    import ctypes

    place, count = ctypes.c_void_p, ctypes.c_ssize_t
    made = ctypes.PYFUNCTYPE(ctypes.py_object, place, count)
    viewed = ctypes.PYFUNCTYPE(ctypes.py_object, place, count, ctypes.c_int)
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    if advise is not None:
        advise.argtypes = place, count, ctypes.c_int
    return (
        made(("PyBytes_FromStringAndSize", ctypes.pythonapi)),
        viewed(("PyMemoryView_FromMemory", ctypes.pythonapi)),
        advise,
    )
