"""Filesystems behind fsspec: all operations where the table of classes lists the class, reading
anywhere.

*Exclusive creates* (A2) are known by concrete class, in one table. fsspec's ``mode="create"`` is
not one primitive: object stores let the server decide; the base class asks whether the file exists
and then writes, so that two writers both succeed; some classes ignore the mode and overwrite.
Trying cannot tell a lost race from a promise, so the table lists the classes that are known to
promise it, exactly: a subclass may override anything. What is not listed can be read, and is
written by one writer at a time or not at all.

*Complete writes* (A1). Object stores do both in one request, if it is the right one: an upload in
several parts has its condition ignored by some servers, so whatever decides something goes in one
part (S3 has a module of its own, `s3`). On filesystems with folders the bytes go into a temporary
file beside the target, which a rename then names: one that refuses an existing target for a create,
one that replaces it for a put.

*Probing.* Some endpoints answer 200 to a second create. Each is asked once in a process and bucket,
before the first create, but for those of Amazon, Google and Microsoft themselves: two PUTs, a GET
and a DELETE of ``.probe-<id>`` under the root. That finds servers that ignore the condition (Ceph
where versioning is on; when it is switched on later, the next create finds it out), not a check
followed by a write.

*Lifetime.* The filesystem object is made when it is needed, in each process for itself: it survives
neither a fork nor pickling. A forked child never lets go of the one it inherited: that would close
its parent's connections, on an event loop that is not theirs. It is made without its listing cache,
which never expires, and would show another writer's objects late or cut short. Reads always give a
range: s3fs asks for the size first where there is none. A class that is not asynchronous belongs to
the thread that made it: fsspec makes one for each. An SFTP connection that broke is made anew at
the next call.

*Repeats.* Requests that fail in passing are repeated by the client: up to 3 times by botocore, each
of them up to twice by s3fs (and a read twice more, for its body), where their own defaults would
add up to 125. Nothing is repeated on top of that here; what `storage_options` say of it counts.
"""

import builtins
import io
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from clog.storage import env
from clog.storage.env import SystemIds
from clog.storage.errors import InvalidInputError, UnsupportedFilesystemError
from clog.storage.store import contract, s3, sftp
from clog.storage.store.contract import (
    Location,
    ObjectExistsError,
    ProbeAgainError,
    Store,
    StoredObject,
    begin_in_thread,
    check_path,
    check_prefix,
    check_range,
    coalesce,
    cut,
    is_temporary,
    temporary_name,
)

_PROMISED = (
    ".amazonaws.com",
    ".amazonaws.com.cn",
    ".googleapis.com",
    ".blob.core.windows.net",
    ".blob.core.chinacloudapi.cn",
    ".blob.core.usgovcloudapi.net",
)
_lock = env.lock()
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
        f"{contract.redact(endpoint)}, the endpoint of {url}, {fault}, so concurrent writers could"
        " overwrite each other's commits; use another, or open with single_writer=True"
    )


def _conflicts(fs: Any, path: str, url: str, create: Callable[[Any, str, bytes], None]) -> bool:
    try:
        create(fs, path, b"second")
    except Exception as e:
        error = contract.from_client_error("create", path, url, e, {})
        if not isinstance(error, ObjectExistsError):
            raise
        return True
    return False


ONE_PART = 5 << 30
"""A chunk size that no commit exceeds: some servers ignore the condition of several parts."""

Write = Callable[[Any, str, bytes], None]
"""Writes an object on a filesystem, given its path there."""

_IDS = SystemIds()


def put(fs: Any, path: str, data: bytes) -> None:
    """Writes as the class does it: one request, or several that end in one that shows the
    object.
    """
    fs.pipe_file(path, data)


def create_on_azure(fs: Any, path: str, data: bytes) -> None:
    """Creates by a Put Blob, or above 64 MiB a Put Block List, with ``If-None-Match: *``."""
    fs.pipe_file(path, data, mode="create")


def create_on_gcs(fs: Any, path: str, data: bytes) -> None:
    """Creates by an upload in one part with ``ifGenerationMatch=0``.

    Raises:
        UnsupportedFilesystemError: the bucket is zonal: its objects can be read while they grow.
    """
    if hasattr(fs, "_is_zonal_bucket"):
        from fsspec.asyn import sync

        bucket = path.partition("/")[0]
        if sync(fs.loop, fs._is_zonal_bucket, bucket):  # noqa: SLF001 - no public question
            raise UnsupportedFilesystemError(
                f"gs://{bucket} is a zonal bucket, whose objects are visible before they are"
                " complete; use a regional bucket, or open with single_writer=True"
            )
    fs.pipe_file(path, data, mode="create", chunksize=ONE_PART)


def create_on_sftp(fs: Any, path: str, data: bytes) -> None:
    """Creates by a temporary file, and SSH_FXP_RENAME, which OpenSSH makes of ``link`` and
    ``unlink``.

    Not ``fs.mv``, which is posix-rename@openssh.com and replaces.
    """
    with _temporary(fs, path, data, _upload) as temporary:
        try:
            fs.ftp.rename(temporary, path)
        except OSError as e:
            # The protocol knows no better word for "it is there" than "failure".
            if e.errno is None and fs.exists(path):
                raise ObjectExistsError from e
            raise


def put_on_sftp(fs: Any, path: str, data: bytes) -> None:
    """Writes a temporary file, and renames it over what is there."""
    with _temporary(fs, path, data, _upload) as temporary:
        fs.mv(temporary, path)


def create_on_hdfs(fs: Any, path: str, data: bytes) -> None:
    """Creates by a temporary file, and the name node's rename without OVERWRITE."""
    with _temporary(fs, path, data, put) as temporary:
        try:
            fs.mv(temporary, path)
        except Exception as e:
            if fs.exists(path):
                raise ObjectExistsError from e
            raise


def put_on_hdfs(fs: Any, path: str, data: bytes) -> None:
    """Writes a temporary file, and renames it with the name node's OVERWRITE."""
    with _temporary(fs, path, data, put) as temporary:
        fs.mv(temporary, path, overwrite=True)


def create_after_looking(fs: Any, path: str, data: bytes) -> None:
    """Creates for a single writer: neither exclusively nor, on some filesystems, completely."""
    try:
        fs.cat_file(path, start=0, end=1)
    except Exception as e:
        if contract.http_status(e)[0] == 416:  # empty, but there
            raise ObjectExistsError from e
        if not contract.is_absent(e):
            raise
    else:
        raise ObjectExistsError
    fs.pipe_file(path, data)


@contextmanager
def _temporary(fs: Any, path: str, data: bytes, write: Write) -> Iterator[str]:
    """Writes the bytes to a new file beside ``path`` and yields its path; removes it at the end,
    unless it was renamed.
    """
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/{temporary_name(name, _IDS.new_id())}"
    try:
        try:
            write(fs, temporary, data)
        except FileNotFoundError:
            _make_folders(fs, folder)
            write(fs, temporary, data)
        yield temporary
    except BaseException:
        with suppress(Exception):  # else the sweep removes it
            fs.rm_file(temporary)
        raise


def _upload(fs: Any, path: str, data: bytes) -> None:
    """Writes by SFTP; asks for the size at the end, as errors of single blocks are not answered."""
    fs.ftp.putfo(io.BytesIO(data), path, file_size=len(data), confirm=True)


def _make_folders(fs: Any, folder: str) -> None:
    """Makes each of them, unless somebody else makes it meanwhile."""
    missing = []
    while folder and not fs.exists(folder):
        missing.append(folder)
        folder = folder.rpartition("/")[0]
    for path in reversed(missing):
        try:
            fs.mkdir(path, create_parents=False)
        except Exception:
            if not fs.exists(path):
                raise


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
    put: Write = put
    endpoint: Callable[[Any], str] | None = None
    folders: bool = False
    finds: bool = False
    hint: str = "use local files, S3, GCS, Azure or SFTP"
    caution: str = ""


_INNER = Capability(hint="pass the filesystem inside it")
_UNKNOWN = Capability(folders=True)
_GCS = Capability(
    create_on_gcs,
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
        create_on_azure, endpoint=lambda fs: str(fs.service_client.url), finds=True
    ),
    "fsspec.implementations.sftp.SFTPFileSystem": Capability(
        create_on_sftp,
        put_on_sftp,
        endpoint=lambda fs: f"sftp://{fs.host}:{fs.ssh_kwargs.get('port', 22)}",
    ),
    "hdfs_native.fsspec.HdfsFileSystem": Capability(
        create_on_hdfs,
        put_on_hdfs,
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
        return create_after_looking
    if capability.caution:
        warnings.warn(f"{url}: {capability.caution}", RuntimeWarning, stacklevel=2)
    return capability.create


_WITHOUT_CACHE = frozenset({"sftp", "ssh", "hdfs", "viewfs"})
"""They keep no listings, and pass options that they do not know on to their clients."""

_MODIFIED = (
    *("LastModified", "last_modified", "updated", "mtime", "modification_time"),
    *("modified", "created"),
)
"""By class, the first one that is there; HDFS's is in ms, other numbers are s."""


_connected: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Filesystems of this process, each with an event loop and connections of its own."""
_inherited: list[Any] = []
"""Those of the process that this one was forked from."""


def _keep_inherited() -> None:
    _inherited.extend(_connected)
    _connected.clear()


os.register_at_fork(after_in_child=_keep_inherited)


def open_remote(
    location: Location,
    options: Mapping[str, object],
    *,
    single_writer: bool,
    probe: bool,
) -> Store:
    """Returns the store behind fsspec's class, or the local or memory store where a chain leads
    there.
    """
    store = RemoteStore(location, options, single_writer=single_writer, probe=probe)
    if "::" not in location.url and location.protocol != "dir":
        return store
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.implementations.memory import MemoryFileSystem

    fs, root = store.filesystem()
    if type(fs) is LocalFileSystem:
        from clog.storage.store.local import LocalStore

        return LocalStore(root, url=location.shown)
    if type(fs) is MemoryFileSystem:
        from clog.storage.store.memory import MemoryStore

        return MemoryStore(root, url=location.shown, options={})
    return store


class RemoteStore:
    """A folder of an fsspec filesystem."""

    def __init__(
        self,
        location: Location,
        options: Mapping[str, object],
        *,
        single_writer: bool,
        probe: bool,
    ) -> None:
        self.url = location.shown
        self._location = location
        self._options = dict(options)
        self._single_writer = single_writer
        self._probe = probe
        self._made: tuple[int, Any, str] | None = None
        self._create: tuple[int, Write] | None = None

    def __repr__(self) -> str:
        return f"RemoteStore({self.url!r})"

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_made": None, "_create": None}

    @property
    def create_is_proven(self) -> bool:
        fs, _ = self.filesystem()
        endpoint = capability_of(fs).endpoint
        return self._single_writer or endpoint is None or is_promised(endpoint(fs))

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        first, end = check_range(start, end)
        if end is not None and end <= first:
            return b""
        fs = name = None
        try:
            fs, name = self._locate(path)
            data: bytes = fs.cat_file(name, start=first, end=end)
        except Exception as e:
            if contract.http_status(e)[0] == 416:  # the range is past the end
                return b""
            if type(e) is OSError and name is not None and _is_folder(fs, name):
                raise contract.not_found(path, self.url) from e
            raise self._error("get", path, e) from e
        return data

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        pieces = coalesce(ranges)
        if len(pieces) <= 1:
            return cut(ranges, [(start, self.get(path, start, end)) for start, end in pieces])
        starts = [start for start, _ in pieces]
        try:
            fs, name = self._locate(path)
            ends = [end for _, end in pieces]
            # Older releases of fsspec return errors though they are asked to raise.
            data = fs.cat_ranges([name] * len(pieces), starts, ends, on_error="return")
            for part in data:
                if isinstance(part, Exception):
                    raise part
        except Exception as e:
            if contract.http_status(e)[0] != 416:
                raise self._error("get", path, e) from e
            data = [self.get(path, start, end) for start, end in pieces]
        return cut(ranges, list(zip(starts, data, strict=True)))

    def begin(self, call: Callable[[], Any]) -> Callable[[], Any]:
        return begin_in_thread(call)

    def put(self, path: str, data: bytes | memoryview) -> None:
        content = data if isinstance(data, bytes) else bytes(data)  # botocore takes no views
        try:
            fs, name = self._locate(path)
            self._make_folder(fs, name)
            capability_of(fs).put(fs, name, content)
        except Exception as e:
            raise self._error("put", path, e) from e

    def create(self, path: str, data: bytes) -> None:
        try:
            fs, name = self._locate(path)
            create = self._choose_create()
            self._make_folder(fs, name)
            try:
                create(fs, name, data)
            except ProbeAgainError:
                self._probe_again(path)
        except Exception as e:
            raise self._error("create", path, e) from e

    def delete(self, path: str) -> None:
        try:
            fs, name = self._locate(path)
            fs.rm_file(name)
        except Exception as e:
            if not contract.is_absent(e):
                raise self._error("delete", path, e) from e

    def list(self, prefix: str) -> Iterator[StoredObject]:
        check_prefix(prefix)
        return (found for found in self._find(prefix) if not is_temporary(found.path))

    def list_temporary(self, prefix: str) -> Iterator[StoredObject]:
        check_prefix(prefix)
        if capability_of(self.filesystem()[0]).finds:
            return iter(())  # An object store: a write is one request.
        return (found for found in self._find(prefix) if is_temporary(found.path))

    def filesystem(self) -> tuple[Any, str]:
        """Returns the filesystem of this process, out of any ``dir://`` around it, and the root on
        it.
        """
        if self._made is not None and self._made[0] == os.getpid():
            return self._made[1], self._made[2]
        fs, root = connect(self._location, self._options)
        if getattr(fs, "async_impl", False):  # others belong to the thread that made them
            self._made = os.getpid(), fs, root
            _connected.add(fs)
        return fs, root

    def _locate(self, path: str) -> tuple[Any, str]:
        check_path(path)
        fs, root = self.filesystem()
        return fs, f"{root}/{path}"

    def _choose_create(self) -> Write:
        if self._create is None or self._create[0] != os.getpid():
            fs, root = self.filesystem()
            create = choose_create(
                fs, root, self.url, single_writer=self._single_writer, probe=self._probe
            )
            self._create = os.getpid(), create
        return self._create[1]

    def _probe_again(self, path: str) -> None:
        """Probes after a create that succeeded on a bucket whose versioning was changed.

        Raises:
            UnsupportedFilesystemError: the condition is ignored from now on.
        """
        fs, root = self.filesystem()
        if (endpoint := capability_of(fs).endpoint) is None:
            return
        forget(root, endpoint(fs))
        self._create = None
        try:
            self._choose_create()
        except UnsupportedFilesystemError as e:
            raise UnsupportedFilesystemError(
                f"versioning was switched on or off for the bucket of {self.url}, and now {e};"
                f' {path!r} was written, maybe over another\'s: run "clog verify"'
            ) from e

    def _find(self, prefix: str) -> Iterator[StoredObject]:
        folder, _, rest = prefix.rpartition("/")
        try:
            fs, root = self.filesystem()
            found = _listed(fs, f"{root}/{folder}".rstrip("/"), rest)
        except Exception as e:
            if contract.is_absent(e):
                return
            raise self._error("list", prefix, e) from e
        for name, info in found.items():
            path = name[len(root) + 1 :]
            # Where all is deleted, versioned buckets of some servers list the folder itself.
            is_file = info.get("type") != "directory" and not path.endswith("/")
            if path.startswith(prefix) and is_file:
                yield StoredObject(path, int(info["size"]), self._modified_ms(info))

    def _modified_ms(self, info: Mapping[str, object]) -> int:
        for field in _MODIFIED:
            value = info.get(field)
            if isinstance(value, datetime):
                return int(value.timestamp() * 1000)
            if isinstance(value, int | float):
                return int(value if field == "modification_time" else value * 1000)
        raise UnsupportedFilesystemError(
            f"the filesystem of {self.url} does not say when an object was written; use another"
        )

    def _error(self, operation: str, path: str, cause: Exception) -> Exception:
        if isinstance(cause, ObjectExistsError):
            return contract.exists(path, self.url)
        if contract.lacks_credentials(cause) and self._made is not None:
            # The client would go on without; those given by now are found by a new one.
            self._made[1].clear_instance_cache()
            self._made = self._create = None
        return contract.from_client_error(operation, path, self.url, cause, self._options)

    @staticmethod
    def _make_folder(fs: Any, name: str) -> None:
        if capability_of(fs).folders:
            fs.makedirs(name.rpartition("/")[0], exist_ok=True)


def connect(location: Location, options: Mapping[str, object]) -> tuple[Any, str]:
    """Returns a filesystem without a listing cache, and the root on it.

    Raises:
        InvalidInputError: it cannot be made.
    """
    from fsspec.core import url_to_fs
    from fsspec.implementations.dirfs import DirFileSystem

    settings = sftp.with_host_check(location, options)
    if location.protocol not in _WITHOUT_CACHE:
        settings["use_listings_cache"] = False
    if location.protocol == "s3":
        given = options.get("config_kwargs") or {}
        if not isinstance(given, Mapping):
            raise InvalidInputError(
                f"storage option 'config_kwargs' of {location.shown} is not a mapping; pass a dict"
            )
        settings["config_kwargs"] = {**s3.CONFIG, **given}
    try:
        fs, root = url_to_fs(location.url, **settings)
    except InvalidInputError:
        raise  # It says already which option is wrong.
    except (ImportError, KeyError, TypeError, ValueError) as e:
        raise contract.cannot_open(location.shown, e, options) from e
    if location.protocol == "s3":
        fs.retries = s3.RETRIES
    while isinstance(fs, DirFileSystem):
        root, fs = fs._join(root), fs.fs  # noqa: SLF001 - what it does for every call
    if class_name(fs).endswith(".SFTPFileSystem") and not _is_connected(fs):
        fs._connect()  # noqa: SLF001 - as its constructor did
    return fs, str(fs._strip_protocol(root)).rstrip("/")  # noqa: SLF001


def _is_connected(fs: Any) -> bool:
    transport = fs.client.get_transport()
    return transport is not None and bool(transport.is_active())


def _is_folder(fs: Any, name: str) -> bool:
    """Tells whether the read of a folder failed: on object stores there are none."""
    return not capability_of(fs).finds and bool(fs.isdir(name))


def _listed(fs: Any, folder: str, prefix: str) -> dict[str, Any]:
    """Returns the files below a folder whose names there begin with ``prefix``, or more of them."""
    if capability_of(fs).finds:
        narrow = {"prefix": prefix} if prefix else {}
        found: dict[str, Any] = fs.find(folder, detail=True, **narrow)
        return found
    found = {}
    # Not fs.find, which leaves out what it could not list.
    for _, _, files in fs.walk(folder, detail=True, on_error=_raise_unless_absent):
        found.update({info["name"]: info for info in files.values()})
    return found


def _raise_unless_absent(error: Exception) -> None:
    if not contract.is_absent(error):
        raise error
