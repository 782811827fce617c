"""Finding logs below a folder, by what every log has: the folder ``_clog``."""

from collections.abc import Iterator, Mapping
from typing import Any

from clog.storage.store import failures, urls
from clog.storage.store.remote import connect

DEPTH_MAX = 8
"""Folders deeper than this are not looked into."""
LOG_FOLDER = "_clog"
"""What every log has, and no other folder."""
ICEBERG_FOLDER = "metadata"
"""What a log has beside, where its table is published as Iceberg."""


def find_logs(url: str, storage_options: Mapping[str, object] | None = None) -> list[str]:
    """Returns the URLs of the logs at and below a folder, sorted.

    Costs one listing for each folder that does not belong to a log.

    Raises:
        NotFoundError: the bucket does not exist.
        StoreUnavailableError: the filesystem failed.
        InvalidInputError: the URL names no filesystem.
    """
    location, options = urls.parse(url), dict(storage_options or {})
    try:
        # Whether local writes reach the disk is not for fsspec's class, nor for a search.
        options.pop("fsync", None)
        fs, root = connect(location, options)
        return sorted(_below(fs, root, url.rstrip("/"), DEPTH_MAX))
    except Exception as e:
        raise failures.from_client_error("list", "", location.shown, e, options) from e


def _below(fs: Any, folder: str, url: str, depth: int) -> Iterator[str]:
    names = _folders(fs, folder)
    if LOG_FOLDER in names:
        yield url
        names = [name for name in names if name != ICEBERG_FOLDER]
    if depth > 0:
        for name in names:
            if not name.startswith((".", "_")):
                yield from _below(fs, f"{folder}/{name}", f"{url}/{name}", depth - 1)


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
