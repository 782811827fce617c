"""The log of the Delta table: ``_delta_log/``, read and checked (Delta's PROTOCOL.md).

Its newest version is found by a LIST: names of versions that were cleaned up are gone, and a hint
may be older than they are. Of what others might have written, checkpoints of several parts or of
the second kind are passed over: versions that need one cannot be read here.
"""

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from clog.storage.errors import CorruptionError
from clog.storage.store.base import Store

FOLDER: Final = "_delta_log/"
LAST_CHECKPOINT: Final = "_delta_log/_last_checkpoint"
VERSION: Final = re.compile(r"_delta_log/(\d{20})\.json")
CHECKPOINT: Final = re.compile(r"_delta_log/(\d{20})\.checkpoint\.parquet")
MAPS: Final = ("partitionValues", "tags", "options", "configuration")

Action = dict[str, Any]


def version_path(version: int) -> str:
    """Returns the path of a version."""
    return f"{FOLDER}{version:020d}.json"


def checkpoint_path(version: int) -> str:
    """Returns the path of a checkpoint."""
    return f"{FOLDER}{version:020d}.checkpoint.parquet"


@dataclass(frozen=True, slots=True)
class Listing:
    """Which versions and which checkpoints are there, in ascending order, and when each version
    was written, by the store's clock.
    """

    written_ms: Mapping[int, int]
    checkpoints: tuple[int, ...]

    @property
    def newest(self) -> int:
        """The newest version; -1 where there is none."""
        return max((*self.written_ms, *self.checkpoints), default=-1)

    def complete(self) -> "Listing":
        """Returns it without what is left of versions that somebody died cleaning up: a checkpoint
        without its version's own file, or versions that no checkpoint comes before.
        """
        first = self.newest
        while first - 1 in self.written_ms:
            first -= 1
        begins = [c for c in self.checkpoints if c >= first]
        if first > 0 and not begins:
            return self  # Whoever reads it is told what is missing.
        low = begins[0] if first > 0 else 0
        written_ms = {v: ms for v, ms in self.written_ms.items() if v >= low}
        return Listing(written_ms, tuple(begins))

    def before(self, version: int) -> list[str]:
        """Returns the paths of all that is of older versions."""
        old = [version_path(v) for v in self.written_ms if v < version]
        return [*old, *(checkpoint_path(v) for v in self.checkpoints if v < version)]


def listed(root: Store) -> Listing:
    """Returns what is there; one LIST."""
    versions, checkpoints = {}, []
    for found in root.list(FOLDER):
        if match := VERSION.fullmatch(found.path):
            versions[int(match[1])] = found.modified_ms
        elif match := CHECKPOINT.fullmatch(found.path):
            checkpoints.append(int(match[1]))
    return Listing(dict(sorted(versions.items())), tuple(sorted(checkpoints)))


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """A version of the table, replayed: its files by path, as they were added; its metadata and
    protocol; what its commit says of itself. A value: nothing in it is ever changed.
    """

    version: int = -1
    adds: Mapping[str, Action] = field(default_factory=dict)
    metadata: Action = field(default_factory=dict)
    protocol: Action = field(default_factory=dict)
    said: Mapping[str, Any] = field(default_factory=dict)


def replayed(before: DeltaTable, steps: Iterable[tuple[int, list[Action]]]) -> DeltaTable:
    """Returns the table after versions, each with its actions, or from a checkpoint on."""
    adds = dict(before.adds)
    version, metadata, protocol = before.version, before.metadata, before.protocol
    said = before.said
    for number, actions in steps:
        version, said = number, {}
        for action in actions:
            if removed := action.get("remove"):
                adds.pop(removed["path"], None)
        for action in actions:
            if added := action.get("add"):
                adds[added["path"]] = added
            metadata = action.get("metaData") or metadata
            protocol = action.get("protocol") or protocol
            said = (action.get("commitInfo") or {}).get("operationParameters") or said
    return DeltaTable(version, adds, metadata, protocol, said)


def read_table(root: Store, listing: Listing, known: DeltaTable | None = None) -> DeltaTable:
    """Returns the newest version; a GET for the checkpoint, and one for each version since.

    Args:
        root: of the table.
        listing: what is there.
        known: a version that was read before, from which it goes on.

    Raises:
        CorruptionError: it cannot be read.
    """
    newest = listing.newest
    table = DeltaTable() if known is None else known
    behind = [v for v in listing.checkpoints if v > table.version]
    try:
        if behind and (known is None or table.version + 1 not in listing.written_ms):
            begun = read_checkpoint(root.get(checkpoint_path(behind[-1])))
            table = replayed(DeltaTable(), [(behind[-1], begun)])
            if behind[-1] == newest:  # What a version said of itself is in its own file alone.
                said = replayed(DeltaTable(), [(newest, [*_actions(root, newest)])]).said
                table = replace(table, said=said)
        since = range(table.version + 1, newest + 1)
        if not since:
            return table
        return replayed(table, ((version, [*_actions(root, version)]) for version in since))
    except FileNotFoundError as e:
        raise CorruptionError(
            f"version {newest} of the Delta table at {root.url} needs {e.filename or e}, which is"
            " missing; delete _delta_log to have it published anew"
        ) from e


def actions_of(data: bytes, *, where: str) -> Iterator[Action]:
    """Yields the actions of a version.

    Raises:
        CorruptionError: it is no JSON.
    """
    for line in data.splitlines():
        try:
            action = json.loads(line)
        except ValueError as e:
            raise CorruptionError(f"{where} is not a version of a Delta table: {e}") from e
        if isinstance(action, dict):
            yield action


def read_checkpoint(data: bytes) -> list[Action]:
    """Returns the actions of a checkpoint.

    Raises:
        CorruptionError: it is no Parquet file.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        rows = parquet.read_table(io.BytesIO(data)).to_pylist()
    except (pa.ArrowException, OSError) as e:
        raise CorruptionError(f"a checkpoint of a Delta table cannot be read: {e}") from e
    return [
        {kind: _without_nulls(action) for kind, action in row.items() if action} for row in rows
    ]


def _actions(root: Store, version: int) -> Iterator[Action]:
    path = version_path(version)
    return actions_of(root.get(path), where=f"{path} of {root.url}")


def _without_nulls(action: Action) -> Action:
    return {name: _plain(name, value) for name, value in action.items() if value is not None}


def _plain(name: str, value: Any) -> Any:
    if name in MAPS:
        return dict(value)
    return _without_nulls(value) if isinstance(value, dict) else value
