"""From the errors of filesystems to ours: what happened to what, why in short, and the remedy.

Never the data, never a secret: the values of storage options are struck out of the causes that
clients and servers send. s3fs hides botocore's ``ClientError``, which knows the status and the
code, in ``__cause__``; what it raises itself says less, and the same for different things. adlfs
does so with some of Azure's errors; gcsfs raises errors of its own.
"""

import errno
import re
from collections.abc import Iterable, Mapping

from clog.storage.errors import (
    ClogError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedFilesystemError,
)
from clog.storage.installation import install_extra
from clog.storage.store.base import (
    ObjectExistsError,
    OnlyRequestError,
    StoreFullError,
    StoreRefusedError,
)

CAUSE_CHARS_MAX = 200
"""Causes longer than this are cut: some servers answer with a page."""

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

_SECRET_OPTION = re.compile(r"key|secret|token|pass|cred|sas|connection|auth", re.IGNORECASE)
_SECRET_PART = re.compile(r"(?:AccountKey|SharedAccessSignature)=([^;]+)")
"""What an Azure connection string has of them."""
_SECRET_CHARS_MIN = 4
_UNKNOWN_KEYWORD = re.compile(r"unexpected keyword argument '([^']+)'")
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
_CONFLICTS = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "BlobAlreadyExists"})
_NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError"})
_EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "azure"),
    **dict.fromkeys(("sftp", "ssh"), "sftp"),
    "hdfs": "hdfs",
}
"""The extra of clog that brings the client, by scheme."""


def not_found(path: str, url: str) -> FileNotFoundError:
    """Returns the builtin error that reads of an absent object raise; ``filename`` is the path."""
    return FileNotFoundError(errno.ENOENT, f"no such object in {url}", path)


def exists(path: str, url: str) -> ObjectExistsError:
    """Returns the error of a create that came second."""
    return ObjectExistsError(errno.EEXIST, f"object exists in {url}", path)


def from_os_error(
    operation: str, path: str, url: str, cause: OSError, *, certain: bool = False
) -> Exception:
    """Makes our error of one of the operating system; ``certain``: nothing was written."""
    if operation == "get" and cause.errno in ABSENT:
        return not_found(path, url)
    if certain and cause.errno in FULL:
        return StoreFullError(
            f"{operation} of {path!r} in {url} failed: {short(cause)}; nothing was written; make"
            ' some MB of room on its disk, then "clog clean" and "clog sweep" delete what is no'
            " longer needed"
        )
    remedy = None
    if cause.errno in DENIED:
        remedy = "check the owner and mode of the folder"
    elif cause.errno == errno.ENOTDIR:
        remedy = "a file is in the way; correct the URL"
    if remedy is None:
        return _unavailable(operation, path, url, short(cause))
    return _refused(operation, path, url, f"{short(cause)}; {remedy}", certain=certain)


def from_client_error(
    operation: str, path: str, url: str, cause: Exception, options: Mapping[str, object]
) -> Exception:
    """Makes our error of one of an fsspec class, by HTTP status and code where there are any.

    409 is the reply to one of two creates under way at once: the object may be there or not.
    An unknown error of a client may come after the request was sent, so it is unavailability.
    """
    certain = isinstance(cause, OnlyRequestError)
    if isinstance(cause, OnlyRequestError) and isinstance(cause.__cause__, Exception):
        cause = cause.__cause__
    status, code = http_status(cause)
    reason = short(cause, secrets_in(options))
    if isinstance(cause, ClogError):
        return cause
    if isinstance(cause, TypeError) and (option := _UNKNOWN_KEYWORD.search(str(cause))):
        outer, dot, inner = option[1].partition(".")
        nested = f', or nest it: storage_options={{"{outer}": {{"{inner}": …}}}}' if dot else ""
        return InvalidInputError(
            f"storage option {option[1]!r} of {url} is unknown; correct its name{nested}"
        )
    if type(cause).__name__ == "ParamValidationError" or code == "InvalidBucketName":
        return InvalidInputError(f"{url} is not a valid location: {reason}; correct the URL")
    if code in _NO_BUCKET or (operation in ("create", "put") and is_absent(cause)):
        return NotFoundError(f"the bucket of {url} does not exist; create it, or correct the URL")
    if operation == "create" and (conflict := _of_create(path, url, cause, status, code)):
        return conflict
    if operation == "get" and is_absent(cause):
        return not_found(path, url)
    if is_denied(cause):
        reason = f"{reason}; {_permission_remedy(operation)}"
        return _refused(operation, path, url, reason, certain=certain)
    return _unavailable(operation, path, url, reason)


def cannot_open(url: str, cause: Exception, options: Mapping[str, object]) -> InvalidInputError:
    """Returns the error for a filesystem that cannot be made: an unknown scheme, a missing package,
    a wrong option.
    """
    extra = _EXTRAS.get(url.partition(":")[0])
    remedy = "correct the URL or the storage options, or install the package"
    if isinstance(cause, ImportError) and extra is not None:
        remedy = install_extra(extra)
    return InvalidInputError(
        f"{url} cannot be opened: {short(cause, secrets_in(options))}; {remedy}"
    )


def http_status(cause: BaseException) -> tuple[int | None, str | None]:
    """Returns the HTTP status and the error code of a botocore, Azure or gcsfs error, wherever it
    hides.
    """
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


def is_absent(cause: Exception) -> bool:
    """Tells whether the object is not there (while the bucket is)."""
    missing = isinstance(cause, FileNotFoundError) or errno_of(cause) in ABSENT
    return missing and http_status(cause)[1] not in _NO_BUCKET


def is_denied(cause: Exception) -> bool:
    """Returns whether the credentials do not allow it, or there are none."""
    if http_status(cause)[0] in (401, 403) or lacks_credentials(cause):
        return True
    forbidden = str(cause).startswith("Forbidden: ")  # gcsfs, of 403
    return isinstance(cause, PermissionError) or errno_of(cause) in DENIED or forbidden


def lacks_credentials(cause: Exception) -> bool:
    """Returns whether a client found none."""
    return type(cause).__name__ in _NO_CREDENTIALS


def errno_of(cause: BaseException) -> int | None:
    """Returns the errno; some classes (smb) do not raise the builtin error that goes with it."""
    number = getattr(cause, "errno", None)
    return number if isinstance(number, int) else None


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


def secrets_in(options: Mapping[str, object]) -> list[str]:
    """Returns the values of storage options, nested ones too, that no message may show."""
    found: list[str] = []
    for name, value in options.items():
        if isinstance(value, Mapping):
            found += secrets_in(value)
        elif isinstance(value, str) and _SECRET_OPTION.search(str(name)):
            found.append(value)
            found += _SECRET_PART.findall(value)
    found = [value for value in found if len(value) >= _SECRET_CHARS_MIN]
    return sorted(found, key=len, reverse=True)


def _of_create(
    path: str, url: str, cause: Exception, status: int | None, code: str | None
) -> Exception | None:
    if isinstance(cause, FileExistsError) or status in (409, 412) or code in _CONFLICTS:
        return exists(path, url)
    if status == 501 or code == "NotImplemented":
        return UnsupportedFilesystemError(
            f"the endpoint of {url} does not implement If-None-Match, so concurrent writers could"
            " overwrite each other's commits; use another, or open with single_writer=True"
        )
    return None


def _permission_remedy(operation: str) -> str:
    if operation == "get":
        # S3 answers 403 for an absent object to those who may not list.
        return "check the credentials, and that they may list the bucket besides reading it"
    return "check the credentials and their permissions"


def _unavailable(operation: str, path: str, url: str, reason: str) -> StoreUnavailableError:
    return StoreUnavailableError(f"{operation} of {path!r} in {url} failed: {reason}; retry later")


def _refused(
    operation: str, path: str, url: str, reason: str, *, certain: bool
) -> StoreRefusedError:
    message = f"{operation} of {path!r} in {url} was refused: {reason}"
    return StoreRefusedError(message, certain=certain)
