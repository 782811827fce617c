"""Filesystems behind fsspec: all operations where `capabilities` lists the class, reading anywhere.

The filesystem object is made when it is needed, in each process for itself: it survives neither a
fork nor pickling. A forked child never lets go of the one it inherited: that would close its
parent's connections, on an event loop that is not theirs. It is made without its listing cache,
which never expires, and would show another writer's objects late or cut short. Reads always give a
range: s3fs asks for the size first where there is none.

A class that is not asynchronous belongs to the thread that made it: fsspec makes one for each. An
SFTP connection that broke is made anew at the next call.

Requests that fail in passing are repeated by the client: up to 3 times by botocore, each of them
up to twice by s3fs (and a read twice more, for its body), where their own defaults would add up
to 125. Nothing is repeated on top of that here; what `storage_options` say of it counts.
"""

import builtins
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from clog.storage.errors import InvalidInputError, UnsupportedFilesystemError
from clog.storage.store import capabilities, failures, probe, s3, sftp
from clog.storage.store.ahead import begin_in_thread
from clog.storage.store.base import (
    ObjectExistsError,
    ProbeAgainError,
    Store,
    StoredObject,
    check_path,
    check_prefix,
    check_range,
    coalesce,
    cut,
    is_temporary,
)
from clog.storage.store.urls import Location
from clog.storage.store.writes import Write

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
        endpoint = capabilities.capability_of(fs).endpoint
        return self._single_writer or endpoint is None or probe.is_promised(endpoint(fs))

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        first, end = check_range(start, end)
        if end is not None and end <= first:
            return b""
        fs = name = None
        try:
            fs, name = self._locate(path)
            data: bytes = fs.cat_file(name, start=first, end=end)
        except Exception as e:
            if failures.http_status(e)[0] == 416:  # the range is past the end
                return b""
            if type(e) is OSError and name is not None and _is_folder(fs, name):
                raise failures.not_found(path, self.url) from e
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
            if failures.http_status(e)[0] != 416:
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
            capabilities.capability_of(fs).put(fs, name, content)
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
            if not failures.is_absent(e):
                raise self._error("delete", path, e) from e

    def list(self, prefix: str) -> Iterator[StoredObject]:
        check_prefix(prefix)
        return (found for found in self._find(prefix) if not is_temporary(found.path))

    def list_temporary(self, prefix: str) -> Iterator[StoredObject]:
        check_prefix(prefix)
        if capabilities.capability_of(self.filesystem()[0]).finds:
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
            create = capabilities.choose_create(
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
        if (endpoint := capabilities.capability_of(fs).endpoint) is None:
            return
        probe.forget(root, endpoint(fs))
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
            if failures.is_absent(e):
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
            return failures.exists(path, self.url)
        if failures.lacks_credentials(cause) and self._made is not None:
            # The client would go on without; those given by now are found by a new one.
            self._made[1].clear_instance_cache()
            self._made = self._create = None
        return failures.from_client_error(operation, path, self.url, cause, self._options)

    @staticmethod
    def _make_folder(fs: Any, name: str) -> None:
        if capabilities.capability_of(fs).folders:
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
        raise failures.cannot_open(location.shown, e, options) from e
    if location.protocol == "s3":
        fs.retries = s3.RETRIES
    while isinstance(fs, DirFileSystem):
        root, fs = fs._join(root), fs.fs  # noqa: SLF001 - what it does for every call
    if capabilities.class_name(fs).endswith(".SFTPFileSystem") and not _is_connected(fs):
        fs._connect()  # noqa: SLF001 - as its constructor did
    return fs, str(fs._strip_protocol(root)).rstrip("/")  # noqa: SLF001


def _is_connected(fs: Any) -> bool:
    transport = fs.client.get_transport()
    return transport is not None and bool(transport.is_active())


def _is_folder(fs: Any, name: str) -> bool:
    """Tells whether the read of a folder failed: on object stores there are none."""
    return not capabilities.capability_of(fs).finds and bool(fs.isdir(name))


def _listed(fs: Any, folder: str, prefix: str) -> dict[str, Any]:
    """Returns the files below a folder whose names there begin with ``prefix``, or more of them."""
    if capabilities.capability_of(fs).finds:
        narrow = {"prefix": prefix} if prefix else {}
        found: dict[str, Any] = fs.find(folder, detail=True, **narrow)
        return found
    found = {}
    # Not fs.find, which leaves out what it could not list.
    for _, _, files in fs.walk(folder, detail=True, on_error=_raise_unless_absent):
        found.update({info["name"]: info for info in files.values()})
    return found


def _raise_unless_absent(error: Exception) -> None:
    if not failures.is_absent(error):
        raise error
