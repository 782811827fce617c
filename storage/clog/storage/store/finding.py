"""Finding logs below a folder, by what every log has: the folder ``_clog``.

A folder below that one that cannot be listed hides what is in it and nothing else. A store that
does not answer ends the search.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clog.storage.store import failures, urls
from clog.storage.store.remote import connect

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
    location, options = urls.parse(url), dict(storage_options or {})
    try:
        # Whether local writes reach the disk is not for fsspec's class, nor for a search.
        options.pop("fsync", None)
        fs, root = connect(location, options)
        search = _Search(fs, options, is_local=location.protocol == "file", unlisted={})
        found = sorted(search.below(root, url.rstrip("/"), DEPTH_MAX))
    except Exception as e:
        raise failures.from_client_error("list", "", location.shown, e, options) from e
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
            self.unlisted[url] = self._told(urls.redact(url), e)
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
        return failures.is_denied(error) or (self.is_local and isinstance(error, OSError))

    def _told(self, url: str, error: Exception) -> Exception:
        if self.is_local and isinstance(error, OSError):
            return failures.from_os_error("list", "", url, error)
        return failures.from_client_error("list", "", url, error, self.options)


def _folders(fs: Any, folder: str) -> list[str]:
    try:
        found = fs.ls(folder or "/", detail=True)
    except FileNotFoundError as e:
        if not failures.is_absent(e):
            raise  # It is the bucket that is not there.
        return []
    return [
        entry["name"].rstrip("/").rpartition("/")[2]
        for entry in found
        if entry["type"] == "directory"
    ]
