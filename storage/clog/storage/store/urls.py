"""URLs of roots: which filesystem, where on it, and what of the URL may be shown.

A URL is a path (``/logs/orders``, ``logs/orders``, ``~/orders``) or ``scheme://…``; ``s3a://``,
as Hadoop writes it, is ``s3://``.
"""

import os
import re
from dataclasses import dataclass

from clog.storage.errors import InvalidInputError

LOCAL = frozenset({"file", "local"})
MEMORY = "memory"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?:::|://)|(file|local):(?=/)")
_ALIASES = {"s3a": "s3", "local": "file"}
_BUCKETS = frozenset({"file", MEMORY, "s3", "gs", "gcs"})
"""What comes first in these URLs is a folder or a bucket: options name the server."""
_CONTAINERS = frozenset({"abfs", "abfss", "az"})
"""And in these, unless an account's host comes behind it: ``container@account.…``."""
_USER_IS_PLACE = frozenset({"abfs", "abfss", "az", "sftp", "ssh", "hdfs"})
"""Here the part before the ``@`` is a container or a user; elsewhere it can only be a secret."""


@dataclass(frozen=True, slots=True)
class Location:
    """A root: fsspec's protocol, the URL as fsspec takes it, the path, and the URL as shown."""

    protocol: str
    url: str
    root: str
    shown: str

    @property
    def host(self) -> str:
        """Whom requests go to, as far as the URL says it: a host, or an account's; empty where the
        protocol and options alone do.
        """
        authority = self.root.partition("/")[0]
        if self.protocol in _BUCKETS or (self.protocol in _CONTAINERS and "@" not in authority):
            return ""
        return authority.rpartition("@")[2].lower()


def parse(url: str) -> Location:
    """Takes a URL apart.

    Raises:
        InvalidInputError: it is empty, has no bucket, has a NUL character, which no file system
            takes, or carries credentials where none belong.
    """
    if "\0" in url:
        raise InvalidInputError(f"URL {redact(url)!r} has a NUL character; leave it out")
    match = _SCHEME.match(url)
    if match is None:
        return _local(url, scheme="")
    scheme = (match[1] or match[2]).lower()
    protocol = _ALIASES.get(scheme, scheme)
    if protocol in LOCAL:
        return _local(url[match.end() :], scheme="file://")
    rest = url[match.end() :].rstrip("/")
    if protocol == MEMORY:
        root = "/" + rest.strip("/")
        return Location(protocol, url, root.rstrip("/"), f"memory:/{root}")
    if not rest:
        raise InvalidInputError(f"URL {url!r} names no location; use {scheme}://bucket/path")
    if protocol == "s3" and "@" in rest.partition("/")[0]:
        raise InvalidInputError(
            f"URL {redact(url)} carries credentials; pass them as storage options key and secret"
        )
    separator = url[match.end(1) : match.end()]
    return Location(protocol, f"{protocol}{separator}{rest}", rest, redact(url).rstrip("/"))


def redact(url: str) -> str:
    """Returns a URL without what may be secret: passwords, tokens and the values of queries.

    >>> redact("sftp://me:secret@host/log"), redact("https://host/log?sig=abc")
    ('sftp://***@host/log', 'https://host/log?***')
    """
    return "::".join(_redact_one(part) for part in url.split("::"))


def _redact_one(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    rest, query, _ = rest.partition("?")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if at and (":" in user or scheme.lower() not in _USER_IS_PLACE):
        authority = f"***@{host}"
    return f"{scheme}://{authority}{slash}{path}{'?***' if query else ''}"


def _local(path: str, *, scheme: str) -> Location:
    if not path:
        raise InvalidInputError(
            "the URL is empty; use a path such as /logs/orders or s3://b/orders"
        )
    # Absolute from here on: a store travels to workers that run in other folders.
    root = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111
    return Location("file", root, root, f"{scheme}{root}")
