"""Every name under a log's root, made and parsed here (FORMAT.md §1).

Versions are 20 decimal digits, so that names sort as numbers.
"""

import re

from clog.storage.errors import CorruptionError

LATEST = "_clog/latest"
COMMITS = "_clog/commits/"
SNAPSHOTS = "_clog/snapshots/"
PAGES = "_clog/pages/"
EDITS = "_clog/edits/"
BLOCKS = "_clog/gc/"
DATA = "data/"
DEAD_SUFFIX = ".dead"

BLOCK_VERSIONS = 1024
"""Commits are deleted by blocks of so many versions. Part of the format (FORMAT.md §7)."""

_DATA_OBJECT = re.compile(r"data/(\d{20})-[0-9a-f]{32}\.(parquet|dead)")


def commit_path(version: int) -> str:
    """The commit that made a version."""
    return f"{COMMITS}{version:020d}.json"


def snapshot_path(version: int) -> str:
    """The manifest at a version."""
    return f"{SNAPSHOTS}{version:020d}.json"


def page_path(page_id: str) -> str:
    """A page of segments or of writers."""
    return f"{PAGES}{page_id}.json"


def edit_path(edit_id: str) -> str:
    """An edit that is too large for its commit."""
    return f"{EDITS}{edit_id}.json"


def block_of(version: int) -> int:
    """First version of the block that holds ``version``."""
    return version - version % BLOCK_VERSIONS


def block_path(version: int) -> str:
    """The gc file of the block that holds ``version``."""
    return f"{BLOCKS}{block_of(version):020d}.json"


def data_path(stamp: int, object_id: str) -> str:
    """A data object; ``stamp`` is a version that its writer had read (FORMAT.md §6)."""
    return f"{DATA}{stamp:020d}-{object_id}.parquet"


def dead_path(stamp: int, file_id: str) -> str:
    """A bitmap of dead rows, stamped as a data object is."""
    return f"{DATA}{stamp:020d}-{file_id}{DEAD_SUFFIX}"


def version_of(path: str) -> int | None:
    """The version in the name of a commit or snapshot; None for any other name."""
    name = path.rpartition("/")[2]
    digits = name.removesuffix(".json")
    return int(digits) if len(digits) == 20 and digits.isdigit() else None


def stamp_of(path: str) -> int | None:
    """The stamp in the name of a data object or bitmap; None for any other name."""
    match = _DATA_OBJECT.fullmatch(path)
    return int(match[1]) if match else None


def check_inside(path: object, *, where: str) -> str:
    """The path itself, if it stays under the root.

    Raises:
        CorruptionError: the path is absolute, has an empty, ``.`` or ``..`` element, or is no text.
    """
    if isinstance(path, str) and "\\" not in path and "\0" not in path:
        parts = path.split("/")
        if all(part not in ("", ".", "..") for part in parts) and ":" not in parts[0]:
            return path
    raise CorruptionError(f"{where} refers to {path!r}, which is not a path under the log's root")
