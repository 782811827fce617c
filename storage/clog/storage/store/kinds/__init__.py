"""The kinds of stores behind fsspec, a module each: a new one is a module and a line in `KINDS`.

fsspec's ``mode="create"`` is not one primitive: object stores let the server decide; the base class
checks whether the file exists and then writes, so two writers can both succeed; some classes ignore
the mode and overwrite. No experiment can prove that a create is exclusive, so `KINDS` lists the
classes that are known to guarantee it. Any other class can be read, and written by one writer at a
time or not at all.
"""

from clog.storage.store.contract import Failure
from clog.storage.store.kinds import azure, gcs, hdfs, s3, sftp
from clog.storage.store.kinds.kind import Kind

_CACHES = Kind(
    classes=(
        "fsspec.implementations.cached.CachingFileSystem",
        "fsspec.implementations.cached.WholeFileCacheFileSystem",
        "fsspec.implementations.cached.SimpleCacheFileSystem",
        "fsspec.implementations.asyn_wrapper.AsyncFileSystemWrapper",
    ),
    folders="made",
    is_cache=True,
    hint="pass the filesystem inside it",
)
"""These drop the mode, or decide by what they have cached."""
KINDS = (s3.KIND, gcs.KIND, azure.KIND, sftp.KIND, hdfs.KIND, _CACHES)
UNKNOWN = Kind()

FAILURES: dict[str, Failure] = {
    word: failure for kind in KINDS for word, failure in kind.failures.items()
}
_BY_PROTOCOL = {name: kind for kind in KINDS for name in (*kind.protocols, *kind.aliases)}
_BY_CLASS = {name: kind for kind in KINDS for name in kind.classes}


def kind_of(protocol: str) -> Kind:
    """Returns the kind that a URL's protocol names."""
    return _BY_PROTOCOL.get(protocol, UNKNOWN)


def kind_of_class(fs: object) -> Kind:
    """Returns the kind that lists the class of a filesystem."""
    return _BY_CLASS.get(f"{type(fs).__module__}.{type(fs).__qualname__}", UNKNOWN)
