"""The files of a state table in its folder: a *generation* is one, built whole.

It is built under a name that no generation had, and renamed when it is complete; then the older
ones are deleted. So a crash leaves the old one or the new one, and no journal of one is ever taken
for that of the other. A process that reads an older one may go on.
"""

import os
import re
from contextlib import closing, suppress
from pathlib import Path

from clog.storage.state import disk, sqlite_file
from clog.storage.state.cache import Cache
from clog.storage.state.row_checks import DamagedCacheError
from clog.storage.state.sqlite_file import TABLES, TRIGGERS, Position, Rows, connect


def newest(folder: Path, name: str) -> Cache | None:
    """Returns the newest generation there is.

    Raises:
        DamagedCacheError: it cannot be opened.
    """
    generation = newest_generation(folder, name)
    return None if generation == 0 else Cache(_path(folder, name, generation), generation)


def newest_generation(folder: Path, name: str) -> int:
    """Returns the number of the newest generation; 0 when there is none."""
    pattern = re.compile(rf"{re.escape(name)}\.(\d+)\.sqlite3")
    try:
        found = (pattern.fullmatch(path.name) for path in folder.iterdir())
        return max((int(match[1]) for match in found if match), default=0)
    except FileNotFoundError:
        return 0  # Somebody deleted the folder.


def build(folder: Path, name: str, position: Position, rows: Rows) -> Cache:
    """Builds the next generation. The caller sees to it that nobody else does.

    Rows are sorted by SQLite in bounded memory and written in the order of their keys, without a
    journal: what a crash leaves is not looked at.

    Raises:
        DamagedCacheError: somebody deleted it meanwhile.
    """
    building = folder / f"{name}.building"
    building.unlink(missing_ok=True)
    try:
        with closing(connect(building, journal=False)) as connection:
            mine, _ = disk.identity(building)
            connection.execute("begin")
            sqlite_file.stage(connection, rows)
            connection.execute("commit")
            # Outside a transaction and before the first table, else SQLite ignores it.
            connection.execute(f"pragma page_size = {sqlite_file.page_bytes(connection)}")
            connection.execute("begin")
            for statement in TABLES:
                connection.execute(statement)
            sqlite_file.fill(connection)
            for statement in TRIGGERS:
                connection.execute(statement)
            sqlite_file.move(connection, position)
            connection.execute("commit")
            connection.execute("pragma journal_mode = wal")
        if disk.identity(building)[0] != mine:
            raise DamagedCacheError("it was deleted while it was built")
    except BaseException:
        building.unlink(missing_ok=True)  # Else a disk that is full stays so.
        raise
    generation = newest_generation(folder, name) + 1
    path = _path(folder, name, generation)
    _sync(building)
    building.rename(path)
    _sync(folder)
    cache = Cache(path, generation)
    for older in folder.glob(f"{name}.*.sqlite3*"):
        if not older.name.startswith(path.name):
            with suppress(FileNotFoundError):
                older.unlink()
    return cache


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _path(folder: Path, name: str, generation: int) -> Path:
    return folder / f"{name}.{generation}.sqlite3"
