"""Folders that are left when their files are gone: object stores have none, file systems do."""

from collections.abc import Mapping
from typing import Any

from clog.storage.store import failures, urls
from clog.storage.store.remote import connect

_WITH_FOLDERS = frozenset({"file", "sftp", "ssh", "hdfs", "memory"})


def folder_exists(url: str, storage_options: Mapping[str, object] | None = None) -> bool:
    """Tells whether there is a folder at a URL; True on stores that have none.

    Raises:
        StoreUnavailableError: the filesystem failed.
    """
    location, options = urls.parse(url), _of_fsspec(storage_options)
    if location.protocol not in _WITH_FOLDERS:
        return True
    try:
        fs, root = connect(location, options)
        return bool(fs.isdir(root))
    except Exception as e:
        raise failures.from_client_error("look at", "", location.shown, e, options) from e


def remove_empty_folders(url: str, storage_options: Mapping[str, object] | None = None) -> None:
    """Removes the folder at a URL and those below it, as far as no file is in them.

    Raises:
        StoreUnavailableError: the filesystem failed.
    """
    location, options = urls.parse(url), _of_fsspec(storage_options)
    if location.protocol not in _WITH_FOLDERS:
        return
    try:
        fs, root = connect(location, options)
        if fs.isdir(root):
            _remove(fs, root)
    except Exception as e:
        raise failures.from_client_error("remove", "", location.shown, e, options) from e


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
