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

*No link is followed below the root*: whoever may write there could lead a cleaner to the objects
of another log. Each call opens one folder after the other, each relative to the one around it, and
works relative to the last one: what is checked is what is used, whatever is renamed meanwhile. A
link in the place of a folder or an object is refused, and a listing leaves it out. The root may be
a link, and so may the folders above it. Nothing stays open between calls, as the root may be moved.
"""

# System calls take text, and an append makes a dozen of them: no `Path` here.
# ruff: noqa: PTH102

import builtins
import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any

from clog.storage.env import SystemIds
from clog.storage.errors import UnsupportedFilesystemError
from clog.storage.store.contract import (
    ObjectExistsError,
    StoredObject,
    StoreRefusedError,
    check_path,
    check_prefix,
    check_range,
    is_temporary,
    not_found,
    temporary_name,
)
from clog.storage.store.failures import ABSENT, failed

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Opening a pipe would otherwise wait for a writer."""
_ROOT_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER_FLAGS = _ROOT_FLAGS | os.O_NOFOLLOW
_LIST_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
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
        def write(folder: int, name: str) -> None:
            temporary = _write_temporary(folder, name, data, fsync=self._fsync)
            try:
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                _unlink(folder, temporary)
                raise

        self._write("put", path, write)

    def create(self, path: str, data: bytes) -> None:
        self._write("create", path, partial(_create, data=data, fsync=self._fsync))

    def delete(self, path: str) -> None:
        try:
            with self._folder_of(path) as (folder, name):
                os.unlink(name, dir_fd=folder)
        except OSError as e:
            if e.errno not in ABSENT:
                raise failed("delete", path, self.url, e) from e

    def list(self, prefix: str) -> Iterator[StoredObject]:
        folder, _, _ = check_prefix(prefix).rpartition("/")
        return (found for found in self._listed(folder, prefix) if not is_temporary(found.path))

    def list_temporary(self, prefix: str) -> Iterator[StoredObject]:
        folder = check_prefix(prefix).rstrip("/")
        return (found for found in self._listed(folder) if is_temporary(found.path))

    def forget_old(self, prefix: str, _begun_ms: int) -> bool:
        check_prefix(prefix)
        return True  # nothing deleted is kept under any path

    @contextmanager
    def _folder_of(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Opens the folder of an object; yields its descriptor and the object's name in it."""
        *folders, name = check_path(path).split("/")
        folder = self._opened(folders, make=make)
        try:
            yield folder, name
        except OSError as e:
            if e.errno == errno.ELOOP:
                raise self._is_link(path) from e
            raise
        finally:
            os.close(folder)

    def _opened(self, folders: Sequence[str], *, make: bool = False) -> int:
        """Returns a descriptor of a folder below the root, opened through no link."""
        try:
            at = os.open(self._root, _ROOT_FLAGS)
        except FileNotFoundError:
            if not make:
                raise
            _make_root(self._root, fsync=self._fsync)
            at = os.open(self._root, _ROOT_FLAGS)
        for depth, name in enumerate(folders, 1):
            try:
                below = self._entered(at, name, make=make)
            except OSError as e:
                if _is_link(at, name):
                    raise self._is_link("/".join(folders[:depth])) from e
                raise
            finally:
                os.close(at)
            at = below
        return at

    def _entered(self, folder: int, name: str, *, make: bool) -> int:
        try:
            return os.open(name, _FOLDER_FLAGS, dir_fd=folder)
        except FileNotFoundError:
            if not make:
                raise
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
        if self._fsync:
            _fsync_folder(folder)
        return os.open(name, _FOLDER_FLAGS, dir_fd=folder)

    def _is_link(self, path: str) -> StoreRefusedError:
        return StoreRefusedError(
            f"{path!r} in {self.url} is a symbolic link, and clog follows none inside a log's"
            " folder: it could lead into another log; put what it points to in its place",
            certain=True,
        )

    def _write(self, operation: str, path: str, write: Callable[[int, str], None]) -> None:
        """Writes an object, by a function of its open folder and its name: all or nothing."""
        is_certain = True
        try:
            with self._folder_of(path, make=True) as (folder, name):
                write(folder, name)
                is_certain = False  # Others see it already; its name must survive a power failure.
                if self._fsync:
                    _fsync_folder(folder)
        except ObjectExistsError:
            raise ObjectExistsError(errno.EEXIST, f"exists in {self.url}", path) from None
        except OSError as e:
            raise failed(operation, path, self.url, e, certain=is_certain) from e

    def _read(self, path: str, ranges: Sequence[tuple[int, int | None]]) -> builtins.list[bytes]:
        try:
            with self._folder_of(path) as (folder, name):
                fd = os.open(name, _READ_FLAGS, dir_fd=folder)
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

    def _listed(self, folder: str, prefix: str = "") -> Iterator[StoredObject]:
        try:
            at = self._opened(folder.split("/") if folder else [])
        except OSError as e:
            if e.errno in ABSENT:
                return
            raise failed("list", folder, self.url, e) from e
        yield from self._walk(at, folder, prefix)

    def _walk(self, at: int, folder: str, prefix: str) -> Iterator[StoredObject]:
        """Yields the files below an open folder, by name, and closes it; only those of a prefix."""
        try:
            try:
                there = os.open(".", _LIST_FLAGS, dir_fd=at)
            finally:
                os.close(at)
        except OSError as e:
            raise failed("list", folder, self.url, e) from e
        try:
            with os.scandir(there) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
            for entry in found:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if not path.startswith(prefix):
                    continue
                with suppress(FileNotFoundError, NotADirectoryError):  # deleted meanwhile (A4)
                    if entry.is_dir(follow_symlinks=False):
                        below = os.open(entry.name, _FOLDER_FLAGS, dir_fd=there)
                        yield from self._walk(below, path, prefix)
                    elif not entry.is_symlink():  # Not ours: it may lead anywhere, or to itself.
                        status = entry.stat(follow_symlinks=False)
                        yield StoredObject(path, status.st_size, status.st_mtime_ns // 1_000_000)
        finally:
            os.close(there)


def _is_link(folder: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _create(folder: int, name: str, *, data: bytes, fsync: bool) -> None:
    """Creates a complete file if there is none: F1, F2; if it raises, it has created none."""
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=folder, follow_symlinks=False)
        raise ObjectExistsError  # The loser of a race finds out without an fsync.
    temporary = _write_temporary(folder, name, data, fsync=fsync)
    try:
        _link(folder, temporary, name)
    finally:
        _unlink(folder, temporary)


def _link(folder: int, temporary: str, name: str) -> None:
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        # NFS repeats a request whose reply was lost, and then finds its own link.
        if os.stat(temporary, dir_fd=folder, follow_symlinks=False).st_nlink != 2:
            raise ObjectExistsError from None
    except OSError as e:
        if e.errno not in _NO_HARD_LINKS:
            raise
        _rename_no_replace(folder, temporary, name)


def _rename_no_replace(folder: int, temporary: str, name: str) -> None:
    code = _rename_no_replace_code(folder, os.fsencode(temporary), os.fsencode(name))
    if code == errno.EEXIST:
        raise ObjectExistsError
    if code in _NO_SUCH_RENAME:
        raise UnsupportedFilesystemError(
            "the filesystem of the log has neither hard links nor a rename that never replaces, so"
            " concurrent writers could overwrite each other's commits; use another disk"
        )
    if code:
        raise OSError(code, os.strerror(code), name)


def _rename_no_replace_code(folder: int, source: bytes, target: bytes) -> int:
    """Returns the errno of the system call, 0 for success; Python has no wrapper for the call."""
    import ctypes

    no_replace = 1
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return errno.ENOSYS
    if rename(folder, source, folder, target, no_replace) == 0:
        return 0
    return ctypes.get_errno()


def _write_temporary(folder: int, name: str, data: bytes | memoryview, *, fsync: bool) -> str:
    """Writes a new file in an open folder and returns its name."""
    temporary = temporary_name(name, _IDS.new_id())
    fd = os.open(temporary, _TEMPORARY_FLAGS, 0o666, dir_fd=folder)
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
        _unlink(folder, temporary)
        raise
    return temporary


def _make_root(folder: str, *, fsync: bool) -> None:
    parent = os.path.dirname(folder)  # noqa: PTH120
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.exists(folder):  # noqa: PTH110
            raise StoreRefusedError(
                f"{folder} is a symbolic link to a folder that does not exist; make that folder,"
                " or correct the link or the URL",
                certain=True,
            ) from None
        return
    except FileNotFoundError:
        _make_root(parent, fsync=fsync)
        with suppress(FileExistsError):
            os.mkdir(folder)
    if fsync:
        _fsync_folder(parent)


def _fsync_folder(folder: int | str) -> None:
    """Syncs a folder, given its path, or a descriptor, which may be one for looking up alone."""
    at = {"path": ".", "dir_fd": folder} if isinstance(folder, int) else {"path": folder}
    fd = os.open(**at, flags=_LIST_FLAGS)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _unlink(folder: int, name: str) -> None:
    with suppress(OSError):
        os.unlink(name, dir_fd=folder)


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
