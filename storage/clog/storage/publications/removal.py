"""The files of views at a root, found without the log that they are of: for its deletion.

Of which log a view is stands in its newest version. So that file goes last: what a deletion that
was cut short has left is found in the same way.

Not here: tables that clog did not write, and what others put beside versions of ours.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from clog.storage.errors import CorruptionError
from clog.storage.format.paths import is_log_id
from clog.storage.publications.delta import table_log
from clog.storage.publications.iceberg import view as iceberg
from clog.storage.store.base import Store, StoredObject


@dataclass(frozen=True, slots=True)
class ViewFiles:
    """The files of one view outside of its log's folder, in the order to delete them."""

    log_id: str
    files: tuple[StoredObject, ...]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A format: its folder, the names of versions and of what stands beside them, and who is told
    whose a version is.
    """

    folder: str
    versions: re.Pattern[str]
    beside: re.Pattern[str]
    log_of: Callable[[bytes], object]


def published_files(root: Store) -> list[ViewFiles]:
    """Returns the views at a root that are of clog, whichever their log; two LISTs, and a GET for
    each.
    """
    return [found for kind in _KINDS if (found := _found(root, kind)) is not None]


def _found(root: Store, kind: _Kind) -> ViewFiles | None:
    listed = list(root.list(kind.folder))
    matched = [(match, file) for file in listed if (match := kind.versions.fullmatch(file.path))]
    versions = [file for _, file in sorted(matched, key=lambda found: int(found[0][1]))]
    try:
        log_id = kind.log_of(root.get(versions[-1].path)) if versions else None
    except (FileNotFoundError, CorruptionError, ValueError):
        return None  # Deleted meanwhile, or nothing that clog wrote.
    if not (isinstance(log_id, str) and is_log_id(log_id)):
        return None
    beside = (file for file in listed if kind.beside.fullmatch(file.path))
    return ViewFiles(log_id, (*beside, *root.list_temporary(kind.folder), *versions))


def _of_delta(body: bytes) -> object:
    infos = [
        action.get("commitInfo") for action in table_log.actions_of(body, where="a Delta version")
    ]
    said = [info for info in infos if _at(info, "engineInfo") == "clog"]
    return _at(said[-1], "operationParameters", "log") if said else None


def _of_iceberg(body: bytes) -> object:
    return _at(json.loads(body), "properties", iceberg.LOG)


def _at(value: Any, *names: str) -> object:
    """Returns what stands in nested objects; None where there is nothing."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


_KINDS: Final = (
    _Kind(
        table_log.FOLDER,
        table_log.VERSION,
        re.compile(f"{re.escape(table_log.LAST_CHECKPOINT)}|{table_log.CHECKPOINT.pattern}"),
        _of_delta,
    ),
    _Kind(
        iceberg.FOLDER,
        iceberg.VERSION,
        re.compile(re.escape(iceberg.HINT)),
        _of_iceberg,
    ),
)
