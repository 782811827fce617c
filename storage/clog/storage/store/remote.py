"""Filesystems behind fsspec: all operations for the classes that `kinds` lists, and reads for any.

*Complete writes* (A1). Object stores create and put in one request, if it is the right one: some
servers ignore the condition of an upload in several parts, so objects that decide anything are
written in one part. On filesystems with folders the bytes are written to a temporary file beside
the target, which is then renamed: a create refuses an existing target, a put replaces it.

*Probing.* Some endpoints answer 200 to a second create. Each is probed once per process and bucket,
before the first create, except those of Amazon, Google and Microsoft themselves: two PUTs, a GET
and a DELETE of ``.probe-<id>`` under the root. This detects servers that ignore the condition (Ceph
where versioning is on; if it is switched on later, the next create detects it), but not servers
that check first and then write.

*Lifetime.* The filesystem object is made when it is needed, by each process for itself: it survives
neither a fork nor pickling. A forked child never releases the one it inherited: that would close
its parent's connections, on an event loop that is not theirs. It is made without its listing cache,
which never expires, and would show another writer's objects late or truncated. Reads always give a
range: without one s3fs asks for the size first. A class that is not asynchronous belongs to the
thread that made it: fsspec makes one for each. A broken SFTP connection is replaced at the next
call.

*Repeats.* The client repeats requests after transient failures: botocore up to 3 times, each of
them up to twice by s3fs (and a read twice more, for its body); their own defaults would add up to
125. Nothing here repeats on top of that; settings in `storage_options` take precedence.
"""

import builtins
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from clog.storage import env
from clog.storage.env import SystemIds, install_extra
from clog.storage.errors import (
    InvalidInputError,
    MissingPackageError,
    UnsupportedFilesystemError,
)
from clog.storage.store.contract import (
    ObjectExistsError,
    ProbeAgainError,
    Store,
    StoredObject,
    begin_in_thread,
    bytes_of,
    check_path,
    check_prefix,
    check_range,
    coalesce,
    is_temporary,
    not_found,
)
from clog.storage.store.failures import failed, failure_of, secrets_in, short, without_secrets
from clog.storage.store.kinds import KINDS, kind_of, kind_of_class
from clog.storage.store.kinds.kind import Location, Write
from clog.storage.store.opening import redact

_MODIFIED = (
    *("LastModified", "last_modified", "updated", "mtime", "modification_time"),
    *("modified", "created"),
)
"""The first one present counts; HDFS's is in ms, other numbers are in s."""

_lock = env.lock()
_passed: set[tuple[str, str]] = set()
"""Each (endpoint, bucket) that passed; without buckets, each root is probed, as another folder may
be another disk.
"""
_connected: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Filesystems of this process, each with its own event loop and connections."""
_inherited: list[Any] = []
"""Those of the process from which this one was forked."""


def _keep_inherited() -> None:
    _inherited.extend(_connected)
    _connected.clear()


os.register_at_fork(after_in_child=_keep_inherited)


def open_remote(
    location: Location, options: Mapping[str, object], *, single_writer: bool, probe: bool
) -> Store:
    """Returns the store for fsspec's class, or the local or memory store at the end of a chain."""
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
        self, location: Location, options: Mapping[str, object], *, single_writer: bool, probe: bool
    ) -> None:
        self.url = location.shown
        self._location = location
        self._options = dict(options)
        self._given = {"url": location.url, **options}  # No message may repeat parts of these.
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
        endpoint = kind_of_class(fs).endpoint
        return self._single_writer or endpoint is None or is_promised(endpoint(fs))

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        first, end = check_range(start, end)
        if end is not None and end <= first:
            return b""
        fs = name = None
        try:
            fs, name = self._locate(path)
            return _read(fs, name, first, end)
        except Exception as e:
            if failure_of(e) == "past the end":
                return b""
            if type(e) is OSError and name is not None and _is_folder(fs, name):
                raise not_found(path, self.url) from e
            raise self._error("get", path, e) from self._without_secrets(e)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        pieces = coalesce(ranges)
        if len(pieces) <= 1 or "::" in self._location.url:
            return bytes_of(ranges, [(start, self.get(path, start, end)) for start, end in pieces])
        starts = [start for start, _ in pieces]
        try:
            fs, name = self._locate(path)
            ends = [end for _, end in pieces]
            # Older releases of fsspec return errors even if told to raise them.
            data = fs.cat_ranges([name] * len(pieces), starts, ends, on_error="return")
            for part in data:
                if isinstance(part, Exception):
                    raise part
        except Exception as e:  # noqa: BLE001 - it becomes ours
            if failure_of(e) != "past the end":
                raise self._error("get", path, e) from self._without_secrets(e)
            data = [self.get(path, start, end) for start, end in pieces]
        return bytes_of(ranges, list(zip(starts, data, strict=True)))

    def begin(self, call: Callable[[], Any]) -> Callable[[], Any]:
        return begin_in_thread(call)

    def put(self, path: str, data: bytes | memoryview) -> None:
        content = data if isinstance(data, bytes) else bytes(data)  # botocore takes no views
        try:
            fs, name = self._locate(path)
            _make_folder(fs, name)
            kind_of_class(fs).put(fs, name, content)
        except Exception as e:  # noqa: BLE001 - it becomes ours
            raise self._error("put", path, e) from self._without_secrets(e)

    def create(self, path: str, data: bytes) -> None:
        try:
            fs, name = self._locate(path)
            create = self._choose_create()
            _make_folder(fs, name)
            try:
                create(fs, name, data)
            except ProbeAgainError:
                self._probe_again(path)
        except Exception as e:  # noqa: BLE001 - it becomes ours
            raise self._error("create", path, e) from self._without_secrets(e)

    def delete(self, path: str) -> None:
        try:
            fs, name = self._locate(path)
            fs.rm_file(name)
        except Exception as e:  # noqa: BLE001 - it becomes ours
            if failure_of(e) != "absent":
                raise self._error("delete", path, e) from self._without_secrets(e)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        check_prefix(prefix)
        return (found for found in self._find(prefix) if not is_temporary(found.path))

    def list_temporary(self, prefix: str) -> Iterator[StoredObject]:
        check_prefix(prefix)
        if kind_of_class(self.filesystem()[0]).folders == "none":
            return iter(())  # An object store: a write is one request.
        return (found for found in self._find(prefix) if is_temporary(found.path))

    def forget_old(self, prefix: str, begun_ms: int) -> bool:
        check_prefix(prefix)
        try:
            fs, root = self.filesystem()
            forget = kind_of_class(fs).forget_old
            if forget is not None:
                forget(fs, f"{root}/{prefix}", begun_ms)
        except Exception as e:  # noqa: BLE001 - it becomes ours
            raise self._error("forget_old", prefix, e) from self._without_secrets(e)
        return forget is not None

    def filesystem(self) -> tuple[Any, str]:
        """Returns this process's filesystem, without any ``dir://`` around it, and its root."""
        if self._made is not None and self._made[0] == os.getpid():
            return self._made[1], self._made[2]
        fs, root = connect(self._location, self._options)
        if getattr(fs, "async_impl", False):  # others belong to the thread that makes them
            self._made = os.getpid(), fs, root
            _connected.add(fs)
        return fs, root

    def _locate(self, path: str) -> tuple[Any, str]:
        check_path(path)
        fs, root = self.filesystem()
        return fs, f"{root}/{path}"

    def _choose_create(self) -> Write:
        """Returns the way to create objects here; may probe the endpoint, once per process."""
        if self._create is not None and self._create[0] == os.getpid():
            return self._create[1]
        fs, root = self.filesystem()
        kind = kind_of_class(fs)
        create, caution = kind.create, f": {kind.caution}" if kind.caution else ""
        try:
            if create is None:
                raise UnsupportedFilesystemError(
                    f"{type(fs).__name__} for {self.url} cannot create a file only if it is"
                    " absent, so concurrent writers could overwrite each other's commits;"
                    f" {kind.hint}, or open with single_writer=True"
                )
            if self._probe and kind.endpoint is not None:
                probe_endpoint(fs, root, self.url, kind.endpoint(fs), create)
        except UnsupportedFilesystemError as e:
            if not self._single_writer:
                raise
            create = _create_after_looking
            caution = (
                " is written without exclusive create: a second writer would overwrite commits,"
                f" and a crash may leave a partial file ({e})"
            )
        if caution:
            warnings.warn(f"{self.url}{caution}", RuntimeWarning, stacklevel=2)
        self._create = os.getpid(), create
        return create

    def _probe_again(self, path: str) -> None:
        """Probes after a create that succeeded on a bucket whose versioning was changed."""
        fs, root = self.filesystem()
        if (endpoint := kind_of_class(fs).endpoint) is None:
            return
        with _lock:
            _passed.discard(_place(root, endpoint(fs)))
        self._create = None
        try:
            self._choose_create()
        except UnsupportedFilesystemError as e:
            raise UnsupportedFilesystemError(
                f"versioning was switched on or off for the bucket of {self.url}, and now {e};"
                f' {path!r} was written, perhaps over that of another writer: run "clog verify"'
            ) from e

    def _find(self, prefix: str) -> Iterator[StoredObject]:
        folder, _, rest = prefix.rpartition("/")
        try:
            fs, root = self.filesystem()
            found = _listed(fs, f"{root}/{folder}".rstrip("/"), rest)
        except Exception as e:  # noqa: BLE001 - it becomes ours
            if failure_of(e) == "absent":
                return
            raise self._error("list", prefix, e) from self._without_secrets(e)
        for name, info in found.items():
            path = name[len(root) + 1 :]
            # Versioned buckets of some servers list a folder whose objects are all deleted.
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
            f"the filesystem of {self.url} does not report when an object was written; use another"
        )

    def _error(self, operation: str, path: str, cause: Exception) -> Exception:
        if failure_of(cause) == "no credentials" and self._made is not None:
            # This client would never look again; a new one finds credentials given by now.
            self._made[1].clear_instance_cache()
            self._made = self._create = None
        return failed(operation, path, self.url, cause, self._given)

    def _without_secrets(self, cause: Exception) -> Exception | None:
        return without_secrets(cause, self._given)


def is_promised(endpoint: str) -> bool:
    """Returns whether creates are known to be exclusive: on the makers' own endpoints, and where
    a rename or a link makes them so. Other servers may check first and then write.
    """
    return not endpoint.startswith("http") or _is_the_makers(endpoint)


def _is_the_makers(endpoint: str) -> bool:
    makers = tuple(end for kind in KINDS for end in kind.makers)
    return (urlsplit(endpoint).hostname or "").endswith(makers)


def _create_after_looking(fs: Any, path: str, data: bytes) -> None:
    """Creates for a single writer: neither exclusively nor, on some filesystems, completely."""
    try:
        fs.cat_file(path, start=0, end=1)
    except Exception as e:
        if failure_of(e) == "past the end":  # it exists, but is empty
            raise ObjectExistsError from e
        if failure_of(e) != "absent":
            raise
    else:
        raise ObjectExistsError
    fs.pipe_file(path, data)


def probe_endpoint(fs: Any, root: str, url: str, endpoint: str, create: Write) -> None:
    """Creates an object twice, unless this endpoint and bucket have passed already."""
    if _is_the_makers(endpoint):
        return
    place = _place(root, endpoint)
    with _lock:
        if place in _passed:
            return
        path = f"{root}/.probe-{SystemIds().new_id()}"
        create(fs, path, b"first")
        try:
            conflict = _conflicts(fs, path, url, create)
            kept = fs.cat_file(path, start=0, end=16) == b"first"
        finally:
            with suppress(Exception):  # without permission to delete, a few bytes remain
                fs.rm_file(path)
        if conflict and kept:
            _passed.add(place)
            return
    fault = (
        "lost the first of two creations of the same object"
        if conflict
        else "reported success for a second create of the same object (it ignores If-None-Match)"
    )
    raise UnsupportedFilesystemError(
        f"{redact(endpoint)}, the endpoint of {url}, {fault}, so concurrent writers could"
        " overwrite each other's commits; use another, or open with single_writer=True"
    )


def _place(root: str, endpoint: str) -> tuple[str, str]:
    return endpoint, root.partition("/")[0] or root


def _conflicts(fs: Any, path: str, url: str, create: Write) -> bool:
    try:
        create(fs, path, b"second")
    except Exception as e:
        if isinstance(failed("create", path, url, e, {}), ObjectExistsError):
            return True
        raise
    return False


def connect(location: Location, options: Mapping[str, object]) -> tuple[Any, str]:
    """Returns a filesystem without a listing cache, and the root on it."""
    from fsspec.core import url_to_fs
    from fsspec.implementations.dirfs import DirFileSystem

    kind = kind_of(location.protocol)
    settings: dict[str, Any] = dict(options)
    for each in {kind_of(part.partition("://")[0]): None for part in location.url.split("::")}:
        settings = each.config(location, settings)
    if kind.caches:
        settings["use_listings_cache"] = False
    given = {"url": location.url, **options}
    try:
        fs, root = url_to_fs(location.url, **settings)
    except InvalidInputError:
        raise  # It already says which option is wrong.
    except (ImportError, KeyError, TypeError, ValueError) as e:
        remedy = "correct the URL or the storage options, or install the package"
        wrong: type[InvalidInputError] = InvalidInputError
        if isinstance(e, ImportError) and kind.extra:
            wrong, remedy = MissingPackageError, install_extra(kind.extra)
        raise wrong(
            f"{location.shown} cannot be opened: {short(e, secrets_in(given))}; {remedy}"
        ) from without_secrets(e, given)
    while isinstance(fs, DirFileSystem):
        root, fs = fs._join(root), fs.fs  # noqa: SLF001 - as it does for every call
    kind_of_class(fs).connected(fs)
    return fs, str(fs._strip_protocol(root)).rstrip("/")  # noqa: SLF001


def _read(fs: Any, name: str, start: int, end: int | None) -> bytes:
    """Returns bytes of an object; if a cache finds none, reads from the filesystem inside it."""
    try:
        data: bytes = fs.cat_file(name, start=start, end=end)
    except FileNotFoundError:
        if kind_of_class(fs).is_cache and (inner := getattr(fs, "fs", None)) is not None:
            return _read(inner, name, start, end)
        raise
    return data


def _is_folder(fs: Any, name: str) -> bool:
    """Returns whether the failed read was of a folder: object stores have none."""
    return kind_of_class(fs).folders != "none" and bool(fs.isdir(name))


def _make_folder(fs: Any, name: str) -> None:
    if kind_of_class(fs).folders == "first":
        fs.makedirs(name.rpartition("/")[0], exist_ok=True)


def _listed(fs: Any, folder: str, prefix: str) -> dict[str, Any]:
    """Returns the files below a folder whose names begin with ``prefix``, and possibly others."""
    if kind_of_class(fs).folders == "none":
        narrow = {"prefix": prefix} if prefix else {}
        found: dict[str, Any] = fs.find(folder, detail=True, **narrow)
        return found
    found = {}
    # Not fs.find, which omits folders that it could not list.
    for _, _, files in fs.walk(folder, detail=True, on_error=_raise_unless_absent):
        found.update({info["name"]: info for info in files.values()})
    return found


def _raise_unless_absent(error: Exception) -> None:
    if failure_of(error) != "absent":
        raise error
