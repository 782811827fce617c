"""Turns errors of the operating system and of fsspec's clients into ours.

Messages say what happened to what, briefly why, and the remedy; never data or secrets. The values
of storage options are removed from the causes that clients and servers send, and an error that
contains one is not chained as the cause of ours. s3fs hides botocore's ``ClientError``, which has
the status and the code, in ``__cause__``, and raises less specific errors itself. adlfs does the
same with some of Azure's errors; gcsfs has its own.
"""

import errno
import re
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import unquote

from clog.storage.errors import (
    ClogError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedFilesystemError,
)
from clog.storage.store.contract import (
    Failure,
    ObjectExistsError,
    OnlyRequestError,
    StoreFullError,
    StoreRefusedError,
    not_found,
)
from clog.storage.store.kinds import FAILURES

CAUSE_CHARS_MAX = 200
"""Longer causes are cut: some servers answer with a page."""

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})

_OF_ERRNO: dict[int | None, Failure] = {
    **dict.fromkeys(ABSENT, "absent"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "denied"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "full"),
    errno.EFBIG: "too large",
}
_OF_STATUS: dict[int | None, Failure] = {
    **dict.fromkeys((401, 403), "denied"),
    **dict.fromkeys((409, 412), "exists"),
    413: "too large",
    416: "past the end",
    501: "no create",
    507: "full",
}
"""409 is the reply to one of two concurrent creates: the object may exist or not."""
_SECRET_OPTION = re.compile(r"key|secret|token|pass|cred|sas|connection|auth", re.IGNORECASE)
_SECRET_PART = re.compile(r"(?:AccountKey|SharedAccessSignature|sig)=([^;&]+)")
"""The secrets in an Azure connection string, and a signature."""
_SECRET_OF_URL = re.compile(r"://[^/?#@\s]*:([^/?#@\s]+)@|[?&][^=&\s]+=([^&#\s]+)")
_SECRET_CHARS_MIN = 4
_UNKNOWN_KEYWORD = re.compile(r"unexpected keyword argument '([^']+)'")


def failure_of(cause: BaseException) -> Failure | None:
    """Returns what an error means, by its code, class, first word, HTTP status or errno, wherever
    these are; some classes (smb) do not raise the builtin error for an errno.
    """
    if isinstance(cause, OnlyRequestError) and cause.__cause__ is not None:
        cause = cause.__cause__
    status, code = _http_status(cause)
    for word in (code, type(cause).__name__, str(cause).partition(":")[0]):
        if word in FAILURES:
            return FAILURES[word]
    if status == 416:
        return "past the end"
    number = getattr(cause, "errno", None)
    found = _OF_ERRNO.get(number if isinstance(number, int) else None)
    if isinstance(cause, FileNotFoundError) or found == "absent":
        return "absent"
    if isinstance(cause, FileExistsError):
        return "exists"
    return "denied" if isinstance(cause, PermissionError) else _OF_STATUS.get(status) or found


def failed(
    operation: str,
    path: str,
    url: str,
    cause: Exception,
    options: Mapping[str, object] | None = None,
    *,
    certain: bool = False,
) -> Exception:
    """Returns our error for one of a client with these options, or, without options, of the local
    disk. ``certain``: nothing was written. An unknown error of a client counts as unavailability,
    since the request may have been sent.
    """
    if isinstance(cause, OnlyRequestError) and isinstance(cause.__cause__, Exception):
        cause, certain = cause.__cause__, True
    if isinstance(cause, ClogError):
        return cause
    number = getattr(cause, "errno", None)
    failure = _OF_ERRNO.get(number) if options is None else failure_of(cause)
    if operation == "get" and failure == "absent":
        return not_found(path, url)
    what = f"{operation} of {path!r} in {url}"
    reason = short(cause, secrets_in(options or {}))
    if options is not None:
        if error := _of_client(operation, path, url, cause, reason):
            return error
    elif number == errno.ENOTDIR:
        return StoreRefusedError(
            f"a file has the name of a folder of {url} ({operation} of {path!r}); correct the URL",
            certain=certain,
        )
    if failure == "full" and certain:
        return StoreFullError(
            f"{what} failed: {reason}; nothing was written; {_room(options)}, then"
            ' "clog clean" and "clog clean --sweep" delete what is no longer needed'
        )
    remedy = _REMEDIES.get(failure)
    if remedy is None:
        return StoreUnavailableError(f"{what} failed: {reason}; retry later")
    return StoreRefusedError(
        f"{what} was refused: {reason}; {remedy(operation, options)}", certain=certain
    )


def _room(options: Mapping[str, object] | None) -> str:
    return "free some MB on its disk" if options is None else "free space in it, or raise its quota"


def _permission(operation: str, options: Mapping[str, object] | None) -> str:
    if options is None:
        return "check the owner and mode of the folder"
    if operation == "get":
        # S3 answers 403 for an absent object if the client may not list.
        return "check the credentials, which must allow listing the bucket as well as reading it"
    return "check the credentials and their permissions"


_REMEDIES: dict[Failure | None, Callable[[str, Mapping[str, object] | None], str]] = {
    "denied": _permission,
    "no credentials": _permission,
    "wrong clock": lambda *_: (
        "the clocks of this machine and of the store differ too much; set this machine's (NTP)"
    ),
    "full": lambda _, options: _room(options),
    "too large": lambda *_: (
        "one file may not be that large here (ulimit -f, a quota or a limit of the store): raise"
        " the limit, or lower object.bytes"
    ),
}
"""What to do about errors that repeating the call does not change, by meaning."""


def _of_client(
    operation: str, path: str, url: str, cause: Exception, reason: str
) -> Exception | None:
    """Returns our error for those that only clients raise, or None."""
    failure = failure_of(cause)
    if isinstance(cause, TypeError) and (option := _UNKNOWN_KEYWORD.search(str(cause))):
        outer, dot, inner = option[1].partition(".")
        nested = f', or nest it: storage_options={{"{outer}": {{"{inner}": …}}}}' if dot else ""
        return InvalidInputError(
            f"storage option {option[1]!r} of {url} is unknown; correct its name{nested}"
        )
    if failure == "no place":
        return InvalidInputError(f"{url} is not a valid location: {reason}; correct the URL")
    if failure == "no bucket" or (operation in ("create", "put") and failure == "absent"):
        return NotFoundError(f"the bucket of {url} does not exist; create it, or correct the URL")
    if operation == "create" and failure == "exists":
        return ObjectExistsError(errno.EEXIST, f"object exists in {url}", path)
    if operation == "create" and failure == "no create":
        return UnsupportedFilesystemError(
            f"the endpoint of {url} does not implement If-None-Match, so concurrent writers could"
            " overwrite each other's commits; use another, or open with single_writer=True"
        )
    return None


def _http_status(cause: BaseException) -> tuple[int | None, str | None]:
    """Returns the HTTP status and the error code of a botocore, Azure or gcsfs error."""
    for error in (cause, cause.__cause__, cause.__context__):
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status, response.get("Error", {}).get("Code")
        for name in ("status_code", "code"):
            if isinstance(status := getattr(error, name, None), int):
                code = getattr(error, "error_code", None)
                return status, None if code is None else str(getattr(code, "value", code))
    return None, None


def short(cause: BaseException, secrets: Iterable[str] = ()) -> str:
    """Returns the class and the message of an error, without ``secrets``."""
    if isinstance(cause, OSError) and cause.strerror:
        text = cause.strerror  # str(cause) would name the absolute file
    else:
        text = " ".join(str(cause).split())
    for secret in secrets:
        text = text.replace(secret, "***")
    name = type(cause).__name__
    return f"{name}: {text[:CAUSE_CHARS_MAX]}" if text else name


def without_secrets(cause: Exception, options: Mapping[str, object]) -> Exception | None:
    """Returns a client's error as the cause of ours, or None if its message, or one in its chain,
    contains a secret of the options: logs and notebooks print them all.
    """
    secrets = secrets_in(options)
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [cause]
    while secrets and waiting:
        error = waiting.pop()
        if error is not None and error not in seen:
            if any(secret in str(error) for secret in secrets):
                return None
            seen.append(error)
            waiting += [error.__cause__, error.__context__]
    return cause


def secrets_in(options: Mapping[str, object]) -> list[str]:
    """Returns the values of storage options, nested ones too, that no message may show; for URLs
    among them, such as an endpoint or the log's own, the password and the query's values.
    """
    found: list[str] = []
    for name, value in options.items():
        if isinstance(value, Mapping):
            found += secrets_in(value)
        elif isinstance(value, str) and _SECRET_OPTION.search(str(name)):
            found.append(value)
            found += _SECRET_PART.findall(value)
        elif isinstance(value, str) and "://" in value:
            parts = [part for found_ones in _SECRET_OF_URL.findall(value) for part in found_ones]
            found += {*parts, *map(unquote, parts)}
    found = [value for value in found if len(value) >= _SECRET_CHARS_MIN]
    return sorted(found, key=len, reverse=True)


def without_secret_ones(options: Mapping[str, object]) -> dict[str, object]:
    """Returns the storage options, nested ones too, whose names do not suggest a secret."""
    return {
        name: without_secret_ones(value) if isinstance(value, Mapping) else value
        for name, value in options.items()
        if isinstance(value, Mapping) or not _SECRET_OPTION.search(str(name))
    }
