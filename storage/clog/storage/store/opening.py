"""Opening roots by URL, and finding logs below a folder.

Logs are found by what every log has: the folder ``_clog``. A folder below that one that cannot be
listed hides what is in it and nothing else. A store that does not answer ends the search. Folders
that are left when their files are gone are deleted: object stores have none, file systems do.

A log may name another one by its URL, in which there is no secret. Credentials are never stored: a
root elsewhere is opened with what the environment gives. A stranger's log may name any host, so
options go to no other host, or account, than they were given for.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from clog.storage.store import contract, open_store
from clog.storage.store.contract import Store
from clog.storage.store.remote import connect

_WITH_FOLDERS = frozenset({"file", "sftp", "ssh", "hdfs", "memory"})


def folder_exists(url: str, storage_options: Mapping[str, object] | None = None) -> bool:
    """Tells whether there is a folder at a URL; True on stores that have none.

    Raises:
        StoreUnavailableError: the filesystem failed.
    """
    location, options = contract.parse(url), _of_fsspec(storage_options)
    if location.protocol not in _WITH_FOLDERS:
        return True
    try:
        fs, root = connect(location, options)
        return bool(fs.isdir(root))
    except Exception as e:
        raise contract.from_client_error("look at", "", location.shown, e, options) from e


def remove_empty_folders(url: str, storage_options: Mapping[str, object] | None = None) -> None:
    """Removes the folder at a URL and those below it, as far as no file is in them.

    Raises:
        StoreUnavailableError: the filesystem failed.
    """
    location, options = contract.parse(url), _of_fsspec(storage_options)
    if location.protocol not in _WITH_FOLDERS:
        return
    try:
        fs, root = connect(location, options)
        if fs.isdir(root):
            _remove(fs, root)
    except Exception as e:
        raise contract.from_client_error("remove", "", location.shown, e, options) from e


def _remove(fs: Any, folder: str) -> bool:
    """Returns whether the folder is gone: it held nothing but folders that held nothing."""
    found = fs.ls(folder, detail=True)
    left = [e for e in found if not _is_folder(e) or not _remove(fs, e["name"])]
    if left:
        return False
    try:
        fs.rmdir(folder)
    except OSError:
        return False  # Somebody wrote into it, or removed it, meanwhile.
    return True


def _is_folder(entry: Mapping[str, Any]) -> bool:
    """Tells whether it is a folder of its own, not a link to one elsewhere."""
    return entry["type"] == "directory" and not entry.get("islink")


def _of_fsspec(storage_options: Mapping[str, object] | None) -> dict[str, object]:
    # Whether local writes reach the disk is not for fsspec's class.
    return {k: v for k, v in (storage_options or {}).items() if k != "fsync"}


DEPTH_MAX = 8
"""Folders deeper than this are not looked into."""
LOG_FOLDER = "_clog"
"""What every log has, and no other folder."""
ICEBERG_FOLDER = "metadata"
"""What a log has beside, where its table is published as Iceberg."""
RECOVERED_FOLDER = "lost+found"
"""What repairs of a disk leave on it; only the system may look into it."""


@dataclass(frozen=True, slots=True)
class LogsBelow:
    """The URLs of the logs at and below a folder, sorted; the ``unlisted`` folders below it, by
    their URLs, with what was in the way.
    """

    urls: list[str]
    unlisted: Mapping[str, Exception]


def find_logs(url: str, storage_options: Mapping[str, object] | None = None) -> LogsBelow:
    """Looks for the logs at and below a folder.

    Costs one listing for each folder that does not belong to a log.

    Raises:
        NotFoundError: the bucket does not exist.
        StoreUnavailableError: the filesystem failed, or lists not even this folder.
        InvalidInputError: the URL names no filesystem.
    """
    location, options = contract.parse(url), dict(storage_options or {})
    try:
        # Whether local writes reach the disk is not for fsspec's class, nor for a search.
        options.pop("fsync", None)
        fs, root = connect(location, options)
        search = _Search(fs, options, is_local=location.protocol == "file", unlisted={})
        found = sorted(search.below(root, url.rstrip("/"), DEPTH_MAX))
    except Exception as e:
        raise contract.from_client_error("list", "", location.shown, e, options) from e
    return LogsBelow(found, search.unlisted)


@dataclass(frozen=True, slots=True)
class _Search:
    fs: Any
    options: Mapping[str, object]
    is_local: bool
    unlisted: dict[str, Exception]

    def below(self, folder: str, url: str, depth: int) -> Iterator[str]:
        try:
            names = _folders(self.fs, folder)
        except Exception as e:
            if depth == DEPTH_MAX or not self._is_of_one_folder(e):
                raise
            self.unlisted[url] = self._told(contract.redact(url), e)
            return
        if LOG_FOLDER in names:
            yield url
            names = [name for name in names if name != ICEBERG_FOLDER]
        if depth > 0:
            for name in names:
                is_the_systems = self.is_local and name == RECOVERED_FOLDER
                if not (name.startswith((".", "_")) or is_the_systems):
                    yield from self.below(f"{folder}/{name}", f"{url}/{name}", depth - 1)

    def _is_of_one_folder(self, error: Exception) -> bool:
        """Tells whether it says nothing about other folders: a server that is away does."""
        return contract.is_denied(error) or (self.is_local and isinstance(error, OSError))

    def _told(self, url: str, error: Exception) -> Exception:
        if self.is_local and isinstance(error, OSError):
            return contract.from_os_error("list", "", url, error)
        return contract.from_client_error("list", "", url, error, self.options)


def _folders(fs: Any, folder: str) -> list[str]:
    try:
        found = fs.ls(folder or "/", detail=True)
    except FileNotFoundError as e:
        if not contract.is_absent(e):
            raise  # It is the bucket that is not there.
        return []
    return [
        entry["name"].rstrip("/").rpartition("/")[2]
        for entry in found
        if entry["type"] == "directory"
    ]


@dataclass(frozen=True, slots=True)
class Reach:
    """How other roots are opened from one of this protocol and host; None: without options.
    ``single_writer``: as of `open_store`.
    """

    protocol: str | None = None
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    single_writer: bool = False
    host: str = ""

    @classmethod
    def of(
        cls,
        url: str | Store,
        storage_options: Mapping[str, object] | None,
        *,
        single_writer: bool = False,
    ) -> Self:
        """Returns how others are opened from what was opened so; a store was, where options are
        given with it.
        """
        if not isinstance(url, str) and storage_options is None:
            return cls()
        place = contract.parse(url if isinstance(url, str) else url.url)
        return cls(place.protocol, dict(storage_options or {}), single_writer, place.host)

    def __call__(self, url: str) -> Store:
        """Opens the store at a URL. Makes no request.

        Raises:
            InvalidInputError: a URL that names no place.
        """
        place = contract.parse(url)
        if (place.protocol, place.host) != (self.protocol, self.host):
            return open_store(url)
        return open_store(url, self.options, single_writer=self.single_writer)
