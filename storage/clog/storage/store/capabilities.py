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
from clog.storage.store import s3, writes
from clog.storage.store.probe import probe_endpoint
from clog.storage.store.writes import Write


@dataclass(frozen=True, slots=True)
class Capability:
    """What is known of a class.

    Attributes:
        create: its exclusive create; None where there is none.
        put: how it writes a complete object.
        endpoint: where its client really sends requests; None where there is nobody to ask.
        folders: whether a file needs its folder first, and `put` does not see to it. Never try on
            an object store: there ``makedirs`` creates the bucket.
        finds: whether ``find`` takes a prefix, and asks the server; else folders are walked.
        hint: what to use instead.
        caution: what to say once to who creates here.
    """

    create: Write | None = None
    put: Write = writes.put
    endpoint: Callable[[Any], str] | None = None
    folders: bool = False
    finds: bool = False
    hint: str = "use local files, S3, GCS, Azure or SFTP"
    caution: str = ""


_INNER = Capability(hint="pass the filesystem inside it")
_UNKNOWN = Capability(folders=True)
_GCS = Capability(
    writes.create_on_gcs,
    endpoint=lambda fs: str(fs._location),  # noqa: SLF001 - the property that requests use
    finds=True,
)

TABLE = {
    "s3fs.core.S3FileSystem": Capability(
        s3.create,
        s3.put,
        endpoint=lambda fs: str(fs.s3.meta.endpoint_url),
        finds=True,
    ),
    "gcsfs.core.GCSFileSystem": _GCS,
    "gcsfs.extended_gcsfs.ExtendedGcsFileSystem": _GCS,
    "adlfs.spec.AzureBlobFileSystem": Capability(
        writes.create_on_azure, endpoint=lambda fs: str(fs.service_client.url), finds=True
    ),
    "fsspec.implementations.sftp.SFTPFileSystem": Capability(
        writes.create_on_sftp,
        writes.put_on_sftp,
        endpoint=lambda fs: f"sftp://{fs.host}:{fs.ssh_kwargs.get('port', 22)}",
    ),
    "hdfs_native.fsspec.HdfsFileSystem": Capability(
        writes.create_on_hdfs,
        writes.put_on_hdfs,
        endpoint=lambda fs: f"hdfs://{fs.host}:{fs.port}",
        caution="HDFS is experimental: no cluster has run the conformance suite;"
        ' try "clog verify-store" on yours',
    ),
    # These lose the mode on the way, or decide by what they remember.
    "fsspec.implementations.cached.CachingFileSystem": _INNER,
    "fsspec.implementations.cached.WholeFileCacheFileSystem": _INNER,
    "fsspec.implementations.cached.SimpleCacheFileSystem": _INNER,
    "fsspec.implementations.asyn_wrapper.AsyncFileSystemWrapper": _INNER,
}


def class_name(fs: object) -> str:
    """Returns the full name of a filesystem's class, the key of the table."""
    return f"{type(fs).__module__}.{type(fs).__qualname__}"


def capability_of(fs: object) -> Capability:
    """Returns what is known of the class of a filesystem."""
    return TABLE.get(class_name(fs), _UNKNOWN)


def choose_create(fs: Any, root: str, url: str, *, single_writer: bool, probe: bool) -> Write:
    """Returns the way to create objects on this filesystem; may ask the endpoint, once in a
    process.

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
        if probe and capability.endpoint is not None:
            probe_endpoint(fs, root, url, capability.endpoint(fs), capability.create)
    except UnsupportedFilesystemError as e:
        if not single_writer:
            raise
        warnings.warn(
            f"{url} is written without an exclusive create: a second writer would overwrite"
            f" commits, and a crash may leave a partial file ({e})",
            RuntimeWarning,
            stacklevel=2,
        )
        return writes.create_after_looking
    if capability.caution:
        warnings.warn(f"{url}: {capability.caution}", RuntimeWarning, stacklevel=2)
    return capability.create
