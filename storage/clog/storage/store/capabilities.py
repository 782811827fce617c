"""Where an exclusive create (A2) can be had: one table, by concrete class.

fsspec's ``mode="create"`` is not one primitive. Object stores let the server decide; the base
class asks whether the file exists and then writes, so that two writers both succeed; some
classes ignore the mode and overwrite. Trying cannot tell a lost race from a promise, so the table
lists the classes that are known to promise it, exactly: a subclass may override anything. What is
not listed can be read, and is written by one writer at a time or not at all.

A server may ignore the condition where its client sends it: `probe` asks the endpoint itself.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clog.storage.errors import UnsupportedFilesystemError
from clog.storage.store import failures
from clog.storage.store.base import ObjectExistsError
from clog.storage.store.probe import probe_endpoint

SINGLE_PUT_BYTES_MAX = 5 << 30
"""S3's limit of one PUT. Ceph and others ignore If-None-Match where an upload has several parts."""

Create = Callable[[Any, str, bytes], None]
"""Creates an object on a filesystem, given its path there."""


@dataclass(frozen=True, slots=True)
class Capability:
    """What is known of a class.

    Attributes:
        create: its exclusive create; None where there is none, or none that is tested.
        folders: whether a file needs its folder first. Never try on an object store: there
            ``makedirs`` creates the bucket.
        hint: what to use instead.
    """

    create: Create | None = None
    folders: bool = False
    hint: str = "use local files or S3"


def create_on_s3(fs: Any, path: str, data: bytes) -> None:
    """A PUT with ``If-None-Match: *``, in one part."""
    fs.pipe_file(path, data, mode="create", chunksize=SINGLE_PUT_BYTES_MAX)


def create_after_looking(fs: Any, path: str, data: bytes) -> None:
    """For a single writer: neither exclusive nor, on some filesystems, complete."""
    try:
        fs.cat_file(path, start=0, end=1)
    except Exception as e:
        if failures.http_status(e)[0] == 416:  # empty, but there
            raise ObjectExistsError from e
        if not failures.is_absent(e):
            raise
    else:
        raise ObjectExistsError
    fs.pipe_file(path, data)


_UNTESTED = Capability(hint="its exclusive create is not tested yet; use local files or S3")
_UNTESTED_FOLDERS = Capability(folders=True, hint=_UNTESTED.hint)
_INNER = Capability(hint="pass the filesystem inside it")
_UNKNOWN = Capability(folders=True)

TABLE = {
    "s3fs.core.S3FileSystem": Capability(create_on_s3),
    # These have one, or a rename that refuses, and wait for their turn in the conformance suite.
    "gcsfs.core.GCSFileSystem": _UNTESTED,
    "gcsfs.extended_gcsfs.ExtendedGcsFileSystem": _UNTESTED,
    "adlfs.spec.AzureBlobFileSystem": _UNTESTED,
    "fsspec.implementations.sftp.SFTPFileSystem": _UNTESTED_FOLDERS,
    "hdfs_native.fsspec.HdfsFileSystem": _UNTESTED_FOLDERS,
    # These lose the mode on the way, or decide by what they remember.
    "fsspec.implementations.cached.CachingFileSystem": _INNER,
    "fsspec.implementations.cached.WholeFileCacheFileSystem": _INNER,
    "fsspec.implementations.cached.SimpleCacheFileSystem": _INNER,
    "fsspec.implementations.asyn_wrapper.AsyncFileSystemWrapper": _INNER,
}


def class_name(fs: object) -> str:
    """The full name of a filesystem's class, the key of the table."""
    return f"{type(fs).__module__}.{type(fs).__qualname__}"


def capability_of(fs: object) -> Capability:
    """What is known of the class of a filesystem."""
    return TABLE.get(class_name(fs), _UNKNOWN)


def choose_create(fs: Any, root: str, url: str, *, single_writer: bool, probe: bool) -> Create:
    """The way to create objects on this filesystem; may ask the endpoint, once in a process.

    Raises:
        UnsupportedFilesystemError: there is no exclusive one, and no promise of a single writer.
    """
    capability = capability_of(fs)
    try:
        if capability.create is None:
            raise UnsupportedFilesystemError(
                f"{type(fs).__name__} for {url} cannot create a file only if absent, so concurrent"
                f" writers could overwrite each other's commits; {capability.hint},"
                " or open with single_writer=True"
            )
        if probe:
            probe_endpoint(fs, root, url, capability.create)
    except UnsupportedFilesystemError as e:
        if not single_writer:
            raise
        warnings.warn(
            f"{url} is written without an exclusive create: a second writer would overwrite"
            f" commits, and a crash may leave half a file ({e})",
            RuntimeWarning,
            stacklevel=2,
        )
        return create_after_looking
    return capability.create
