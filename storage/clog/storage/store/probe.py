"""Asking an endpoint whether it keeps its promise: some answer 200 to a second create.

Once in a process for each endpoint and bucket, before the first create: two PUTs, a GET and a
DELETE of ``.probe-<id>`` under the root. The endpoints of Amazon, Google and Microsoft themselves
are not asked. The probe finds
servers that ignore the condition (Ceph where versioning is on; when it is switched on later, the
next create finds it out); it cannot find a check followed by a write, hence the table of
classes in `capabilities`.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from clog.storage import forks
from clog.storage.errors import UnsupportedFilesystemError
from clog.storage.ids import SystemIds
from clog.storage.store import failures, urls
from clog.storage.store.base import ObjectExistsError

_PROMISED = (
    ".amazonaws.com",
    ".amazonaws.com.cn",
    ".googleapis.com",
    ".blob.core.windows.net",
    ".blob.core.chinacloudapi.cn",
    ".blob.core.usgovcloudapi.net",
)
_lock = forks.lock()
_passed: set[tuple[str, str]] = set()
"""(endpoint, bucket) that passed; where there are no buckets, each root is asked for: another
folder may be another disk.
"""


def probe_endpoint(
    fs: Any, root: str, url: str, endpoint: str, create: Callable[[Any, str, bytes], None]
) -> None:
    """Creates an object twice, unless this endpoint and bucket have passed already.

    Raises:
        UnsupportedFilesystemError: the second create succeeded, or the first bytes were lost.
    """
    place = _place(root, endpoint)
    if _is_the_makers(endpoint):
        return
    with _lock:
        if place not in _passed:
            _probe(fs, f"{root}/.probe-{SystemIds().new_id()}", url, endpoint, create)
            _passed.add(place)


def forget(root: str, endpoint: str) -> None:
    """Makes the next `probe_endpoint` ask again."""
    with _lock:
        _passed.discard(_place(root, endpoint))


def is_promised(endpoint: str) -> bool:
    """Tells whether the exclusive create is known to be one: on the makers' own endpoints, and
    where a rename or a link does it. Other servers may check first, and write then.
    """
    return not endpoint.startswith("http") or _is_the_makers(endpoint)


def _place(root: str, endpoint: str) -> tuple[str, str]:
    return endpoint, root.partition("/")[0] or root


def _is_the_makers(endpoint: str) -> bool:
    return (urlsplit(endpoint).hostname or "").endswith(_PROMISED)


def _probe(
    fs: Any, path: str, url: str, endpoint: str, create: Callable[[Any, str, bytes], None]
) -> None:
    create(fs, path, b"first")
    try:
        conflict = _conflicts(fs, path, url, create)
        kept = fs.cat_file(path, start=0, end=16) == b"first"
    finally:
        with suppress(Exception):  # who may not delete leaves a few bytes
            fs.rm_file(path)
    if conflict and kept:
        return
    fault = (
        "lost the first of two creates of the same object"
        if conflict
        else "answered success to a second create of the same object (ignores If-None-Match)"
    )
    raise UnsupportedFilesystemError(
        f"{urls.redact(endpoint)}, the endpoint of {url}, {fault}, so concurrent writers could"
        " overwrite each other's commits; use another, or open with single_writer=True"
    )


def _conflicts(fs: Any, path: str, url: str, create: Callable[[Any, str, bytes], None]) -> bool:
    try:
        create(fs, path, b"second")
    except Exception as e:
        error = failures.from_client_error("create", path, url, e, {})
        if not isinstance(error, ObjectExistsError):
            raise
        return True
    return False
