"""Errors of the operating system and of fsspec's clients, as ours.

Messages say what happened to what, why in short, and the remedy; never the data, never a secret:
the values of storage options are struck out of the causes that clients and servers send, and an
error that has one is not shown as the cause of ours. s3fs hides
botocore's ``ClientError``, which knows the status and the code, in ``__cause__``; what it raises
itself says less, and the same for different things. adlfs does so with some of Azure's errors;
gcsfs raises errors of its own.
"""

import errno
import re
from collections.abc import Iterable, Mapping
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
"""Causes longer than this are cut: some servers answer with a page."""

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})

_OF_ERRNO: dict[int | None, Failure] = {
    **dict.fromkeys(ABSENT, "absent"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "denied"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "full"),
}
_OF_STATUS: dict[int | None, Failure] = {
    **dict.fromkeys((401, 403), "denied"),
    **dict.fromkeys((409, 412), "exists"),
    416: "past the end",
    501: "no create",
}
"""409 is the reply to one of two creates under way at once: the object may be there or not."""
_SECRET_OPTION = re.compile(r"key|secret|token|pass|cred|sas|connection|auth", re.IGNORECASE)
_SECRET_PART = re.compile(r"(?:AccountKey|SharedAccessSignature|sig)=([^;&]+)")
"""What an Azure connection string has of them, and a signature."""
_SECRET_OF_URL = re.compile(r"://[^/?#@\s]*:([^/?#@\s]+)@|[?&][^=&\s]+=([^&#\s]+)")
_SECRET_CHARS_MIN = 4
_UNKNOWN_KEYWORD = re.compile(r"unexpected keyword argument '([^']+)'")


def failure_of(cause: BaseException) -> Failure | None:
    """Returns what an error says, by its code, class, first word, HTTP status or errno, wherever
    they hide; some classes (smb) do not raise the builtin error that goes with the errno.
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
    """Makes our error of one of a client that was given these options; of the local disk, where
    there are none. ``certain``: nothing was written.

    An unknown error of a client may come after the request was sent, so it is unavailability.
    """
    if isinstance(cause, OnlyRequestError) and isinstance(cause.__cause__, Exception):
        cause, certain = cause.__cause__, True
    if isinstance(cause, ClogError):
        return cause
    number = getattr(cause, "errno", None)
    failure = _OF_ERRNO.get(number) if options is None else failure_of(cause)
    if operation == "get" and failure == "absent":
        return not_found(path, url)
    told = f"{operation} of {path!r} in {url}"
    reason = short(cause, secrets_in(options or {}))
    if options is not None:
        if error := _of_client(operation, path, url, cause, reason):
            return error
        denied = failure in ("denied", "no credentials")
        remedy = "check the credentials and their permissions"
        if operation == "get":
            # S3 answers 403 for an absent object to those who may not list.
            remedy = "check the credentials, and that they may list the bucket besides reading it"
    else:
        if failure == "full" and certain:
            return StoreFullError(
                f"{told} failed: {reason}; nothing was written; make"
                ' some MB of room on its disk, then "clog clean" and "clog sweep" delete what is no'
                " longer needed"
            )
        denied = failure == "denied" or number == errno.ENOTDIR
        remedy = "check the owner and mode of the folder"
        if number == errno.ENOTDIR:
            remedy = "a file is in the way; correct the URL"
    if denied:
        return StoreRefusedError(f"{told} was refused: {reason}; {remedy}", certain=certain)
    return StoreUnavailableError(f"{told} failed: {reason}; retry later")


def _of_client(
    operation: str, path: str, url: str, cause: Exception, reason: str
) -> Exception | None:
    """Returns the error of what only a client can say, if it is that."""
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
    """Returns the class and the words of an error, without ``secrets``."""
    if isinstance(cause, OSError) and cause.strerror:
        text = cause.strerror  # str(cause) would name the absolute file
    else:
        text = " ".join(str(cause).split())
    for secret in secrets:
        text = text.replace(secret, "***")
    name = type(cause).__name__
    return f"{name}: {text[:CAUSE_CHARS_MAX]}" if text else name


def without_secrets(cause: Exception, options: Mapping[str, object]) -> Exception | None:
    """Returns an error of a client as the cause of ours; None where its words, or those of what led
    to it, have a secret of the options: logs and notebooks print them all.
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
    """Returns the values of storage options, nested ones too, that no message may show; of URLs
    among them, as an endpoint or the log's own, the password and the values of the query.
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
    """Returns the storage options, nested ones too, whose names are not those of secrets."""
    return {
        name: without_secret_ones(value) if isinstance(value, Mapping) else value
        for name, value in options.items()
        if isinstance(value, Mapping) or not _SECRET_OPTION.search(str(name))
    }
