"""The local file of a state table on its host: which one it is, who may write it, and whether there
is room for it.

Somebody may delete it while it is open, alone or with its folder, and another may come to stand in
its place: who has it open goes on with a file without a name, which nobody else sees or locks. So a
file that is open has an *identity*: device and inode, of it and of its journal, which are no other
file's until it is closed.
"""

import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from clog.storage.errors import ClogError, StateFileError
from clog.storage.state.row_checks import DamagedCacheError

Inode = tuple[int, int] | None
Identity = tuple[Inode, Inode]

_JOURNAL = "-wal"
_UNWRITTEN = frozenset(
    {
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_DIR_FSYNC,
        sqlite3.SQLITE_IOERR_TRUNCATE,
        sqlite3.SQLITE_IOERR_SHMSIZE,
    }
)
"""What SQLite says where a quota is used up, or a file may not grow."""
_OF_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})


def identity(path: Path) -> Identity:
    """Returns which file stands there now, and which journal; None for what does not."""
    return _inode(path), _inode(path.with_name(path.name + _JOURNAL))


def locked(folder: Path, name: str, url: str) -> IO[str]:
    """Returns a file that lets one process at a time write the files of this name, until it is
    closed: enter it at once. C code does both, so that an interrupt leaves nothing locked.

    Raises:
        StateFileError: it cannot be made; ``url`` is that of the log.
    """
    try:
        return _locked(folder, name)
    except OSError as e:
        raise _unwritable(folder, url, e) from e


@contextmanager
def telling(folder: Path, url: str) -> Iterator[None]:
    """Says in a user's words what is wrong with the disk; ``url`` is that of the log.

    Raises:
        StateFileError: the files cannot be written.
    """
    try:
        yield
    except (sqlite3.OperationalError, DamagedCacheError, OSError) as e:
        if isinstance(e, ClogError) or (isinstance(e, OSError) and not is_of_disk(e)):
            raise
        raise _unwritable(folder, url, e) from e


def is_of_disk(error: Exception) -> bool:
    """Tells whether an error says that the disk has no room, or may not be written."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
        return code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY) or code in _UNWRITTEN
    return isinstance(error, OSError) and error.errno in _OF_DISK


def temporary_folder() -> str:
    """Returns where SQLite keeps temporary files, as far as its rules tell: it does not say so."""
    named = [os.environ.get(name) for name in ("SQLITE_TMPDIR", "TMPDIR")]
    folders = [*filter(None, named), "/var/tmp", "/usr/tmp", "/tmp"]  # noqa: S108 none is made here
    return next((f for f in folders if Path(f).is_dir() and os.access(f, os.W_OK | os.X_OK)), ".")


def _inode(path: Path) -> Inode:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _locked(folder: Path, name: str) -> IO[str]:
    path = folder / f"{name}.lock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)  # Somebody may have emptied the disk.
        lock = path.open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            held = os.fstat(lock.fileno())
            if _inode(path) == (held.st_dev, held.st_ino):
                return lock
        except BaseException:
            lock.close()  # Else it is locked as long as somebody keeps the trace of an interrupt.
            raise
        lock.close()  # It was deleted meanwhile: whoever comes next would lock another.


def _unwritable(folder: Path, url: str, error: Exception) -> StateFileError:
    remedy = (
        f"make room there, and for temporary files in {temporary_folder()}"
        if is_of_disk(error)
        else "see to it that this process may write there, and that nobody else deletes files there"
    )
    return StateFileError(
        f"the file of the state of {url} in {folder} cannot be written: {error}; {remedy}; the log"
        " is whole, and is followed again then"
    )
