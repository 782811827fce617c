"""Opening roots by URL, and finding logs below a folder.

A *URL* names a filesystem and a place on it: a path (``/logs/orders``, ``logs/orders``,
``~/orders``) or ``scheme://…``. Hadoop's ``s3a://`` means ``s3://``.

Every log has the folder ``_clog``, by which it is found. A subfolder that cannot be listed hides
only its own content; a store that does not answer ends the search. Folders that remain after their
files are deleted, as on file systems but not in object stores, are removed.

A log may name another one by a URL without secrets. Credentials are never stored: a root elsewhere
is opened with those of the environment. As a stranger's log may name any host, options are passed
only to the host, or account, for which they were given.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Self

from clog.storage.env import dataclass
from clog.storage.errors import InvalidInputError
from clog.storage.store.contract import Store
from clog.storage.store.failures import failed, failure_of, without_secrets
from clog.storage.store.kinds import kind_of
from clog.storage.store.kinds.kind import Location
from clog.storage.view_formats import FORMATS

LOCAL, MEMORY = "file", "memory"
DEPTH_MAX = 8
"""Folders deeper than this are not searched."""
LOG_FOLDER = "_clog"
"""The folder that every log has, and nothing else."""
RECOVERED_FOLDER = "lost+found"
"""Left on a disk by its repair; only the system may read it."""

_OF_VIEWS = {view.folder for view in FORMATS.values()}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?:::|://)|(file|local):(?=/)")
_LIKE_A_SCHEME = re.compile(r"[\s'\"<]*([A-Za-z][A-Za-z0-9+.-]+)\s*:")
_LINK = re.compile(r"::(?![^][/]*])(?=[A-Za-z][A-Za-z0-9+.-]*:|/|[^@]*$)")
"""Separates the URLs of a chain, but not within a password or an address in brackets."""


@dataclass(frozen=True, slots=True)
class LogsBelow:
    """URLs of the logs at and below a folder, sorted, and ``unlisted`` folders with the reason."""

    urls: list[str]
    unlisted: Mapping[str, Exception]


@dataclass(frozen=True, slots=True)
class Reach:
    """Opens other roots, with these options if they are of the same protocol and host; None: always
    without. ``single_writer``: as of `open_store`.
    """

    protocol: str | None = None
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    single_writer: bool = False
    host: str = ""

    @classmethod
    def of(
        cls,
        url: str | PathLike[str] | Store,
        storage_options: Mapping[str, object] | None,
        *,
        single_writer: bool = False,
    ) -> Self:
        """Returns how to open other roots from one that was opened with these options."""
        if not isinstance(url, str | PathLike):
            if storage_options is None:
                return cls()
            url = url.url
        place, options = parse(fspath(url)), _given(storage_options)
        return cls(place.protocol, options, single_writer, _host(place))

    def __call__(self, url: str) -> Store:
        """Opens the store at a URL. Makes no request."""
        place = parse(url)
        if (place.protocol, _host(place)) != (self.protocol, self.host):
            return open_store(url)
        return open_store(url, self.options, single_writer=self.single_writer)


def open_store(
    url: str,
    storage_options: Mapping[str, object] | None = None,
    *,
    single_writer: bool = False,
    probe: bool = True,
) -> Store:
    """Opens the store at a URL. Makes no request.

    Args:
        url: a path, or a URL of any filesystem that fsspec knows.
        storage_options: the options of fsspec's class: credentials, endpoints. Never shown. For a
            local folder: ``fsync``, whether writes are on disk when they return (True).
        single_writer: the caller promises that one process at a time writes, so filesystems
            without an exclusive create (COMMIT.md, K4) are accepted.
        probe: whether to test the endpoint's exclusive create once, before the first one.

    Raises:
        InvalidInputError: the URL names no place, or has credentials where none belong; the options
            are not a mapping, or ``fsync`` is not a boolean.
    """
    location = parse(url)
    options = _given(storage_options)
    if location.protocol == LOCAL:
        from clog.storage.store.local import LocalStore

        fsync = options.get("fsync", True)
        if not isinstance(fsync, bool):
            raise InvalidInputError(
                f"the storage option fsync is a {type(fsync).__name__}; allowed: true or false"
            )
        return LocalStore(location.root, url=location.shown, fsync=fsync)
    if location.protocol == MEMORY:
        from clog.storage.store.memory import MemoryStore

        return MemoryStore(location.root, url=location.shown, options=options)
    from clog.storage.store.remote import open_remote

    return open_remote(location, options, single_writer=single_writer, probe=probe)


def _given(storage_options: object) -> dict[str, object]:
    """Returns the given storage options, checked to be a mapping of names."""
    options = {} if storage_options is None else storage_options
    if isinstance(options, Mapping) and all(isinstance(name, str) for name in options):
        return dict(options)
    found = "has a name that is not text" if isinstance(options, Mapping) else "is not a mapping"
    raise InvalidInputError(
        f'storage_options ({type(options).__name__}) {found}; pass a dict, as {{"key": "…"}}'
    )


def store_at(
    url: str | PathLike[str] | Store,
    storage_options: Mapping[str, object] | None,
    *,
    single_writer: bool = False,
) -> Store:
    """Returns the store at a URL, as `open_store` does, or the given store."""
    if isinstance(url, str | PathLike):
        return open_store(fspath(url), storage_options, single_writer=single_writer)
    if not hasattr(url, "list_temporary"):
        raise InvalidInputError(
            f"{type(url).__name__} is not a URL; give a path such as /logs/orders, s3://b/orders,"
            " or the url of a log"
        )
    return url


def parse(url: str) -> Location:
    """Parses a URL. Raises `InvalidInputError` if it is empty, has no bucket, contains a NUL
    character, is not UTF-8, is malformed, or carries credentials where none belong.
    """
    if "\0" in url:
        raise InvalidInputError(f"URL {redact(url)!r} contains a NUL character; remove it")
    _check_text(url)
    match = _SCHEME.match(url)
    if match is None and (meant := _meant(url)):
        raise InvalidInputError(
            f"URL {redact(url)!r} is malformed; write {meant}://, or begin a path with ./"
        )
    scheme = (match[1] or match[2]).lower() if match is not None else LOCAL
    if match is None or scheme in (LOCAL, "local"):
        path = url if match is None else url[match.end() :]
        if not path:
            raise InvalidInputError(
                "the URL is empty; use a path such as /logs/orders or s3://b/orders"
            )
        root = absolute(path)
        _check_text(root)
        return Location(LOCAL, root, root, root if match is None else f"file://{root}")
    rest = url[match.end() :].rstrip("/")
    if scheme == MEMORY:
        root = "/" + rest.strip("/")
        return Location(scheme, url, root.rstrip("/"), f"memory:/{root}")
    if not rest:
        raise InvalidInputError(f"URL {url!r} does not name a location; use {scheme}://bucket/path")
    kind = kind_of(scheme)
    protocol = kind.protocols[0] if scheme in kind.aliases else scheme
    for part in _LINK.split(url):
        _check_authority(part)
    separator = url[match.end(1) : match.end()]
    return Location(protocol, f"{protocol}{separator}{rest}", rest, redact(url).rstrip("/"))


def absolute(path: str) -> str:
    """Returns a local path from the root on, as stores travel to workers that run in other folders;
    raises InvalidInputError if this process's folder was deleted.
    """
    try:
        return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111
    except FileNotFoundError:
        raise InvalidInputError(
            f"the relative path {path!r} leads nowhere: the folder in which this process works"
            " was deleted; use an absolute path, or change into a folder that exists"
        ) from None


def store_of(url: str) -> str:
    """Returns the name of the store of a URL: what answers, or is silent, as one. That is a bucket,
    a container or a host; of a path, the file system that is mounted there. Asks neither.

    >>> store_of("s3a://bucket/logs/orders"), store_of("sftp://me:secret@host/log")
    ('s3://bucket', 'sftp://***@host')
    """
    place = parse(url)
    if place.protocol == LOCAL:
        return _mount_of(place.root)
    scheme, _, rest = _LINK.split(place.url)[-1].partition("://")
    return redact(f"{scheme}://{_taken_apart(rest)[1]}") if place.protocol != MEMORY else MEMORY


def _mount_of(path: str) -> str:
    """Returns the folder at which the file system of a path is mounted, by the system's list."""
    try:
        lines = Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines()
    except OSError:  # Another system.
        return LOCAL
    places = {_unescaped(line.split(" ")[1]).rstrip("/") for line in lines}
    return max((p for p in places if f"{path}/".startswith(f"{p}/")), key=len, default="") or "/"


def _unescaped(place: str) -> str:
    """Returns a name of the list of mounts, which has blanks as octal numbers."""
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), place)


def _as_text(url: str) -> str:
    """Returns a printable URL; it differs from the given one if that is not UTF-8."""
    return url.encode(errors="backslashreplace").decode()


def _check_text(url: str) -> None:
    if (shown := _as_text(url)) != url:
        raise _not_text(redact(shown))


def _not_text(shown: str) -> InvalidInputError:
    return InvalidInputError(f"the name of {shown} is not UTF-8; rename the folder")


def redact(url: str) -> str:
    """Returns a URL without possible secrets: passwords, tokens and the values of queries.

    >>> redact("sftp://me:secret@host/log"), redact("https://host/log?sig=abc")
    ('sftp://***@host/log', 'https://host/log?***')
    """
    parts = _LINK.split(url)
    return "::".join(_redact_one(part, is_alone=len(parts) == 1) for part in parts)


def _redact_one(url: str, *, is_alone: bool) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator:
        if meant := _meant(url):
            return f"{meant}:***"
        return url if is_alone else _without_query(url)  # A URL of its own is a path.
    slashes, authority, rest = _taken_apart(rest)
    user, at, host = authority.rpartition("@")
    names_no_user = kind_of(scheme.lower()).authority not in ("container", "user@host")
    if at and (":" in user or names_no_user):
        authority = f"***@{host}"
    elif not at and (_has_no_port(authority) or (rest[:1] == "#" and "@" in rest)):
        # A password that was cut off, or nothing but a password.
        _, is_cut, host = rest.rpartition("@")
        authority, rest = "***", f"@{host}" if is_cut else rest
    return f"{scheme}://{slashes}{authority}{_without_query(rest)}"


def _without_query(rest: str) -> str:
    path, query, _ = rest.partition("?")
    return f"{path}?***" if query else path


def _taken_apart(rest: str) -> tuple[str, str, str]:
    """Splits what follows ``://`` into superfluous slashes, the authority, and the rest."""
    stripped = rest.lstrip("/")
    authority = re.split("[/?#]", stripped, maxsplit=1)[0]
    return rest[: -len(stripped) or None], authority, stripped[len(authority) :]


def _has_no_port(authority: str) -> bool:
    """Returns whether what follows a colon is not a port; Amazon's resource names have many."""
    _, colon, port = authority.rpartition(":")
    is_other = port.isdecimal() or not port or port.endswith("]") or authority.startswith("arn:")
    return bool(colon) and not is_other


def _check_authority(url: str) -> None:
    """Raises if a URL of a chain has credentials where none belong, or a password cut off."""
    scheme, separator, rest = url.partition("://")
    _, authority, _ = _taken_apart(rest)
    user, at, _ = authority.rpartition("@")
    is_cut = "::" in user if at else _has_no_port(authority)
    if separator and kind_of(scheme.lower()) is kind_of("s3") and (is_cut or at):
        raise InvalidInputError(
            f"URL {redact(url)} contains credentials; pass them as the storage options key and"
            " secret"
        )
    if separator and is_cut:
        raise InvalidInputError(
            f"URL {redact(url)} is malformed: what follows a colon is neither a port nor a password"
            " before a host; write /, ? and # in a password as %2F, %3F and %23, or pass it as a"
            " storage option"
        )


def _meant(url: str) -> str | None:
    """Returns the scheme of a malformed URL; None for a path."""
    if (match := _LIKE_A_SCHEME.match(url)) is None or _SCHEME.match(url):
        return None
    from fsspec.registry import known_implementations

    scheme = match[1].lower()
    return scheme if scheme in known_implementations or kind_of(scheme).protocols else None


def _host(place: Location) -> str:
    """Returns the host, or account's host, that the URL names; empty if it names none."""
    form, authority = kind_of(place.protocol).authority, place.root.partition("/")[0]
    is_local = place.protocol in (LOCAL, MEMORY)
    if is_local or form == "bucket" or (form == "container" and "@" not in authority):
        return ""
    return authority.rpartition("@")[2].lower()


@contextmanager
def _connected(
    operation: str, url: str, storage_options: Mapping[str, object] | None
) -> Iterator[tuple[Location, dict[str, object], Any, str]]:
    """Yields the place, its options, filesystem and root; errors in the block become ours."""
    from clog.storage.store.remote import connect

    location = parse(url)
    # The option fsync is ours: fsspec's class does not know it, and a search does not need it.
    options = {k: v for k, v in _given(storage_options).items() if k != "fsync"}
    try:
        fs, root = connect(location, options)
        yield location, options, fs, root
    except Exception as e:  # noqa: BLE001 - it becomes ours
        given = {"url": location.url, **options}
        cause = without_secrets(e, given)
        raise failed(operation, "", location.shown, e, given) from cause


def _has_folders(url: str) -> bool:
    protocol = parse(url).protocol
    return protocol in (LOCAL, MEMORY) or kind_of(protocol).folders == "made"


def folder_exists(url: str, storage_options: Mapping[str, object] | None = None) -> bool:
    """Returns whether there is a folder at a URL; True on stores without folders."""
    if not _has_folders(url):
        return True
    with _connected("look at", url, storage_options) as (_, _, fs, root):
        return bool(fs.isdir(root))


def remove_empty_folders(url: str, storage_options: Mapping[str, object] | None = None) -> None:
    """Removes the folder at a URL and those below it that contain no file."""
    if _has_folders(url):
        with _connected("remove", url, storage_options) as (_, _, fs, root):
            if fs.isdir(root):
                _remove(fs, root)


def _remove(fs: Any, folder: str) -> bool:
    """Removes a folder if it contains no file at any depth; returns whether it did."""
    found = fs.ls(folder, detail=True)
    left = [e for e in found if not _is_folder(e) or not _remove(fs, e["name"])]
    if left:
        return False
    try:
        fs.rmdir(folder)
    except OSError:
        return False  # Another process wrote into it or removed it.
    return True


def _is_folder(entry: Mapping[str, Any]) -> bool:
    """Returns whether it is a real folder, not a link to one elsewhere."""
    return entry["type"] == "directory" and not entry.get("islink")


def find_logs(url: str, storage_options: Mapping[str, object] | None = None) -> LogsBelow:
    """Finds the logs at and below a folder, with one listing for each folder that does not belong
    to a log. Raises if this folder itself, and not only one below it, cannot be listed.
    """
    with _connected("list", url, storage_options) as (location, options, fs, root):
        search = _Search(fs, options, is_local=location.protocol == LOCAL, unlisted={})
        found = sorted(search.below(root, url.rstrip("/"), DEPTH_MAX))
        odd = {shown: _not_text(shown) for at in found if (shown := _as_text(at)) != at}
        return LogsBelow([at for at in found if at == _as_text(at)], {**search.unlisted, **odd})


@dataclass(frozen=True, slots=True)
class _Search:
    fs: Any = field(repr=False)
    options: Mapping[str, object] = field(repr=False)
    is_local: bool
    unlisted: dict[str, Exception]

    def below(self, folder: str, url: str, depth: int) -> Iterator[str]:
        try:
            names = _folders(self.fs, folder)
        except Exception as e:
            if depth == DEPTH_MAX or not self._is_of_one_folder(e):
                raise
            is_of_system = self.is_local and isinstance(e, OSError)
            options = None if is_of_system else self.options
            self.unlisted[_as_text(url)] = failed("list", "", redact(url), e, options)
            return
        if LOG_FOLDER in names:
            yield url
            names = [name for name in names if f"{name}/" not in _OF_VIEWS]
        if depth > 0:
            for name in names:
                is_the_systems = self.is_local and name == RECOVERED_FOLDER
                if not (name.startswith((".", "_")) or is_the_systems):
                    yield from self.below(f"{folder}/{name}", f"{url}/{name}", depth - 1)

    def _is_of_one_folder(self, error: Exception) -> bool:
        """Returns whether the error concerns only this folder, unlike a server that is down."""
        is_denied = failure_of(error) in ("denied", "no credentials")
        return is_denied or (self.is_local and isinstance(error, OSError))


def _folders(fs: Any, folder: str) -> list[str]:
    try:
        found = fs.ls(folder or "/", detail=True)
    except FileNotFoundError as e:
        if failure_of(e) != "absent":
            raise  # The bucket does not exist.
        return []
    return [
        entry["name"].rstrip("/").rpartition("/")[2]
        for entry in found
        if entry["type"] == "directory"
    ]
