"""From the errors of filesystems to ours: what happened to what, why in short, and the remedy.

Never the data, never a secret: the values of storage options are struck out of the causes that
clients and servers send.
"""

import errno
from collections.abc import Iterable

from clog.storage.errors import StoreUnavailableError
from clog.storage.store.base import StoreRefusedError

CAUSE_CHARS_MAX = 200
"""Causes longer than this are cut: some servers answer with a page."""

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def not_found(path: str, url: str) -> FileNotFoundError:
    """The builtin error that reads of an absent object raise; ``filename`` is the path."""
    return FileNotFoundError(errno.ENOENT, f"no such object in {url}", path)


def unavailable(
    operation: str, path: str, url: str, cause: BaseException, *, secrets: Iterable[str] = ()
) -> StoreUnavailableError:
    """The filesystem failed; the remedy is to try again."""
    return StoreUnavailableError(
        f"{operation} of {path!r} in {url} failed: {short(cause, secrets)}; retry later"
    )


def refused(
    operation: str,
    path: str,
    url: str,
    cause: BaseException,
    *,
    remedy: str,
    secrets: Iterable[str] = (),
) -> StoreRefusedError:
    """Permission was denied; the remedy is a permission."""
    return StoreRefusedError(
        f"{operation} of {path!r} in {url} was refused: {short(cause, secrets)}; {remedy}"
    )


def from_os_error(operation: str, path: str, url: str, cause: OSError) -> Exception:
    """Our error for one of the operating system."""
    if cause.errno in ABSENT and operation.startswith("get"):
        return not_found(path, url)
    if cause.errno in DENIED:
        return refused(operation, path, url, cause, remedy="check the owner and mode of the folder")
    return unavailable(operation, path, url, cause)


def short(cause: BaseException, secrets: Iterable[str] = ()) -> str:
    """The class and the first line of an error, without the values of ``secrets``."""
    if isinstance(cause, OSError) and cause.strerror:
        text = cause.strerror  # str(cause) would name the absolute file
    else:
        text = str(cause).strip().partition("\n")[0]
    for secret in secrets:
        text = text.replace(secret, "***")
    name = type(cause).__name__
    return f"{name}: {text[:CAUSE_CHARS_MAX]}" if text else name
