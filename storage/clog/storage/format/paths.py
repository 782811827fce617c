"""Every name under a log's root, made and parsed here (FORMAT.md §1).

``_clog/log`` names the log that stands there, by its id (S47). All else that belongs to the log
lies in its *folder*, ``_clog/<id>/``, and is named relative to it.

Versions are 20 decimal digits, so that names sort as numbers.
"""

import re

from clog.storage.errors import CorruptionError

FOLDERS = "_clog/"
LOG_FILE = "_clog/log"
LATEST = "latest"
COMMITS = "commits/"
SNAPSHOTS = "snapshots/"
PAGES = "pages/"
COLUMNS = "columns/"
EDITS = "edits/"
BLOCKS = "blocks/"
DATA = "data/"
VIEWS = "views/"
READERS = "readers/"
RESERVE = "reserve"
CLOCKS = "clock-"
"""Files that a comparison of clocks writes and deletes again."""
DEAD_SUFFIX = ".dead"
MASK_SUFFIX = ".mask"

BLOCK_VERSIONS = 1024
"""Commits are deleted by blocks of so many versions. Part of the format (FORMAT.md §7)."""

_LOG_ID = re.compile(r"[0-9a-f]{32}")
_VERSIONED = re.compile(r"(?:commits|snapshots|blocks)/([0-9]{20})\.json")
_COLUMNS = re.compile(r"columns/([0-9]{20})-[0-9a-f]{32}\.json")
_DATA_OBJECT = re.compile(r"data/([0-9]{20})-[0-9a-f]{32}\.(?:parquet|dead|mask)")
_READER = re.compile(r"readers/([A-Za-z0-9_-][A-Za-z0-9._-]{0,127})\.json")
_UNVERSIONED = re.compile(r"(?:pages|edits)/[0-9a-f]{32}\.json|clock-[0-9a-f]{32}")
_UUID = "-".join(f"[0-9a-f]{{{digits}}}" for digits in (8, 4, 4, 4, 12))
_OF_VIEW = (
    re.compile(rf"views/(delta)/([0-9]{{20}})/deletion_vector_{_UUID}\.bin"),
    re.compile(
        r"views/(iceberg)/([0-9]{20})/[0-9a-f]{32}(?:-(?:data|deletes|list)\.avro|\.puffin)"
    ),
)


def folder_of(log_id: str) -> str:
    """Returns the folder of a log, without a slash at its end."""
    return f"{FOLDERS}{log_id}"


def is_log_id(text: object) -> bool:
    """Tells whether this can be the id of a log: 32 hexadecimal digits."""
    return isinstance(text, str) and _LOG_ID.fullmatch(text) is not None


def commit_path(version: int) -> str:
    """Returns the path of the commit that made a version."""
    return f"{COMMITS}{version:020d}.json"


def snapshot_path(version: int) -> str:
    """Returns the path of the manifest at a version."""
    return f"{SNAPSHOTS}{version:020d}.json"


def page_path(page_id: str) -> str:
    """Returns the path of a page of segments or of writers."""
    return f"{PAGES}{page_id}.json"


def columns_path(version: int, columns_id: str) -> str:
    """Returns the path of the columns of all partitions at a version."""
    return f"{COLUMNS}{version:020d}-{columns_id}.json"


def edit_path(edit_id: str) -> str:
    """Returns the path of an edit that is too large for its commit."""
    return f"{EDITS}{edit_id}.json"


def block_of(version: int) -> int:
    """Returns the first version of the block that holds ``version``."""
    return version - version % BLOCK_VERSIONS


def block_path(version: int) -> str:
    """Returns the path of the file of the block that holds ``version`` (FORMAT.md §7)."""
    return f"{BLOCKS}{block_of(version):020d}.json"


def data_path(stamp: int, object_id: str) -> str:
    """Returns the path of a data object; ``stamp`` is a version that its writer had read (FORMAT.md
    §6).
    """
    return f"{DATA}{stamp:020d}-{object_id}.parquet"


def dead_path(stamp: int, file_id: str) -> str:
    """Returns the path of a bitmap of dead rows; ``stamp`` as a data object's."""
    return f"{DATA}{stamp:020d}-{file_id}{DEAD_SUFFIX}"


def view_folder(name: str, view: int) -> str:
    """Returns the folder of the files that a version of a published view has, with its slash."""
    return f"{VIEWS}{name}/{view:020d}/"


def view_of(path: str) -> tuple[str, int] | None:
    """Returns the format and the version of the view in the name of its file; None for any other
    name.
    """
    for pattern in _OF_VIEW:
        if match := pattern.fullmatch(path):
            return match[1], int(match[2])
    return None


def reader_path(name: str) -> str:
    """Returns the path of a named reader's position (FORMAT.md §18)."""
    return f"{READERS}{name}.json"


def reader_name_of(path: str) -> str | None:
    """Returns the name of the reader whose document this is; None for any other name."""
    match = _READER.fullmatch(path)
    return match[1] if match else None


def mask_path(stamp: int, file_id: str) -> str:
    """Returns the path of a bitmap of a mask; ``stamp`` as a data object's."""
    return f"{DATA}{stamp:020d}-{file_id}{MASK_SUFFIX}"


def version_of(path: str) -> int | None:
    """Returns the version in the name of a commit, snapshot or block; None for any other name."""
    match = _VERSIONED.fullmatch(path)
    return int(match[1]) if match else None


def stamp_of(path: str) -> int | None:
    """Returns the stamp in the name of a data object or bitmap; None for any other name."""
    match = _DATA_OBJECT.fullmatch(path)
    return int(match[1]) if match else None


def columns_version_of(path: str) -> int | None:
    """Returns the version in the name of a document of columns; None for any other name."""
    match = _COLUMNS.fullmatch(path)
    return int(match[1]) if match else None


def is_unversioned(path: str) -> bool:
    """Tells whether this is the name of a page, an edit or a comparison of clocks."""
    return _UNVERSIONED.fullmatch(path) is not None


def check_inside(path: object, *, where: str) -> str:
    """Returns the path itself, if it stays in the folder.

    Raises:
        CorruptionError: the path is absolute, has an empty, ``.`` or ``..`` element, or is no text.
    """
    if isinstance(path, str) and "\\" not in path and "\0" not in path:
        parts = path.split("/")
        if all(part not in ("", ".", "..") for part in parts) and ":" not in parts[0]:
            return path
    raise CorruptionError(f"{where} refers to {path!r}, which is not a path in the log's folder")
