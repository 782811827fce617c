"""The log's table as a Delta table: ``_delta_log/`` at the log's root, over the log's own objects.

Each version is the whole difference to the one before, whoever wrote that: an ``add`` for each
object of which rows show, with those that do not in a deletion vector. Tables that are not of clog
are left alone; one of another log that stood here is replaced as a whole.

*Who may write.* The protocol names a feature for writers that nobody knows: others refuse to
append, update, optimise and vacuum, and read as ever.

*Versions that expire.* After each tenth version comes a checkpoint; what is older than the newest
one that no pin needs is deleted. When a log start offset has risen, the version that says so gets
one at once, and all before it go: an old version never shows what was deleted. What a crash left
undone is done with the next publication, as the version itself says which are the first to stay.

*Withdrawn* is a view whose newest version has no files, and is the first to stay.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from clog.storage.commit.identity import StandingLog
from clog.storage.commit.store_clock import SKEW_MS_MAX
from clog.storage.format import paths
from clog.storage.format.schema import LogSchema
from clog.storage.publications.delta import vectors
from clog.storage.publications.delta.checkpoint import encode_checkpoint, last_checkpoint
from clog.storage.publications.delta.schema import delta_schema, has_times_without_zone
from clog.storage.publications.delta.table_log import (
    FOLDER,
    LAST_CHECKPOINT,
    Action,
    DeltaTable,
    Listing,
    checkpoint_path,
    listed,
    read_table,
    replayed,
    version_path,
)
from clog.storage.publications.table_state import (
    WITHDRAWN,
    Seen,
    ShownObject,
    Source,
    TableState,
    Withdrawal,
)
from clog.storage.publications.versions import create_version
from clog.storage.store.base import StoredObject

WRITER_FEATURE: Final = "clogView"
"""What keeps others from writing: a feature for writers that only clog knows."""
CHECKPOINT_VERSIONS: Final = 10
_VECTORS, _TIMES = "deletionVectors", "timestampNtz"
_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OF_WRITERS = re.compile(
    rf"part-\d{{5,}}-{_UUID}-c\d{{3,}}(\.[a-z0-9]+)?\.parquet|deletion_vector_{_UUID}\.bin"
)
"""What Delta's writers call the files that they write at a table's root."""
_LOG, _DIGEST = "clog.log", "clog.hidden"


@dataclass(frozen=True, slots=True)
class DeltaSeen(Seen):
    """What was found of a Delta table: its newest version, replayed, and what is there."""

    table: DeltaTable
    listing: Listing


@dataclass(frozen=True, slots=True)
class DeltaVersion:
    """A version that is ready to be created, the one after ``seen``; its files are written."""

    seen: DeltaSeen
    actions: list[Action]
    now_ms: int


class DeltaView:
    """The Delta table of one log. Holds nothing that changes: threads may share it.

    Attributes:
        format: its name in configs and pins.
        title: what it is in messages.
        folder: where its versions stand.
    """

    format: Final = "delta"
    title: Final = "a Delta table"
    folder: Final = FOLDER

    def __init__(self, standing: StandingLog) -> None:
        self._standing = standing
        self._root = standing.root

    def look(self, known: DeltaSeen | None = None) -> DeltaSeen:
        """Finds the newest version; a LIST, and a GET for each version that is not ``known``.

        Raises:
            CorruptionError: it cannot be read.
        """
        listing = listed(self._root)
        before = None if known is None or known.newest > listing.newest else known.table
        return _seen(read_table(self._root, listing, before), listing)

    def check_installed(self) -> None:
        """Raises if a package is missing that publishing needs; here none does."""

    def prepared(
        self, seen: DeltaSeen, state: TableState, *, now_ms: int, file_id: str
    ) -> DeltaVersion:
        """Returns the next version, and writes its file of vectors, which has the name ``file_id``
        (COMMIT.md, U1).
        """
        where = paths.view_folder(self.format, seen.newest + 1)
        folder = f"{paths.folder_of(self._standing.log_id)}/{where}"
        actions, file = self._actions(seen, state, now_ms=now_ms, file_id=file_id, folder=folder)
        if file:
            self._standing.store.put(where + vectors.file_name(file_id), file)
        return DeltaVersion(seen, actions, now_ms)

    def withdrawn(self, seen: DeltaSeen, said: Withdrawal) -> DeltaVersion:
        """Returns the next version as one without files, which needs no type of the log's."""
        table, mine = seen.table, said.log_id
        about = {
            "log": mine,
            "version": str(said.version),
            "commit": said.commit_id,
            "first": str(seen.newest + 1),
            WITHDRAWN: str(said.now_ms),
        }
        actions = [_info("CLOG WITHDRAW", about, said.now_ms)]
        if _configuration(table).get(_LOG) != mine:
            metadata = _metadata(None, mine, url=self._root.url, created_ms=said.now_ms)
            actions += [{"protocol": _protocol(None)}, {"metaData": metadata}]
        actions += ({"remove": _remove(add, said.now_ms)} for add in table.adds.values())
        return DeltaVersion(seen, actions, said.now_ms)

    def create(self, version: DeltaVersion, _lowest_view: int) -> DeltaSeen | None:
        """Creates a version (COMMIT.md, U3); None where another came first.

        Raises:
            LogReplacedError, NotFoundError: the log was deleted.
        """
        seen, actions = version.seen, version.actions
        number = seen.newest + 1
        body = "".join(json.dumps(a, separators=(",", ":")) + "\n" for a in actions).encode()
        self._standing.check()
        if not create_version(self._root, version_path(number), body):
            return None
        written_ms = {**seen.listing.written_ms, number: version.now_ms}
        listing = Listing(written_ms, seen.listing.checkpoints)
        return _seen(replayed(seen.table, [(number, actions)]), listing)

    def tidy(self, seen: DeltaSeen, lowest_view: int) -> DeltaSeen:
        """Writes the checkpoint that is due, and deletes versions that have expired; returns what
        is there then.

        Args:
            seen: the newest version.
            lowest_view: the lowest version that a pin is for.
        """
        table, checkpoints = seen.table, seen.listing.checkpoints
        if not seen.is_there or seen.is_foreign:
            return seen
        first = int(table.said.get("first", 0))
        last = max(checkpoints, default=0)
        if last < first or table.version - last >= CHECKPOINT_VERSIONS:
            self._write_checkpoint(table)
            checkpoints = (*checkpoints, table.version)
        may_go = [c for c in checkpoints if c <= lowest_view]
        must_go = [c for c in checkpoints if c >= first > 0]
        keep = max([*may_go[-1:], *must_go[:1]], default=0)
        for path in seen.listing.before(keep):
            self._root.delete(path)
        written_ms = {v: ms for v, ms in seen.listing.written_ms.items() if v >= keep}
        return _seen(table, Listing(written_ms, tuple(c for c in checkpoints if c >= keep)))

    def unnamed(self, seen: DeltaSeen, files: Mapping[str, int]) -> set[str]:
        """Returns which of the files in the log's folder, with the versions for which they were
        made, no version that is left names.
        """
        return files.keys() - self.named(seen)

    def named(self, _seen: DeltaSeen, first: int = 0) -> set[str]:
        """Returns the paths in the log's folder that versions from the ``first`` on name: objects
        and files of vectors; a LIST, and a GET for each version that is left.

        Raises:
            CorruptionError: a version cannot be read.
        """
        folder = f"{paths.folder_of(self._standing.log_id)}/"
        named = self._named(first)
        return {path.removeprefix(folder) for path in named if path.startswith(folder)}

    def left_by_refused(self, seen: DeltaSeen, files: Iterable[StoredObject]) -> list[StoredObject]:
        """Returns which files at the root can only be what refused writers left, as the view was
        found; requests as for `named`, where there are any.

        None while another than clog wrote the newest version, or may write one. Else those that
        Delta's writers name so, that were written since the view was first published, and that no
        version that is left names, wherever it says that they are.

        Raises:
            CorruptionError: a version cannot be read.
        """
        table, mine = seen.table, self._standing.log_id
        if seen.log_id != mine:
            return []
        if WRITER_FEATURE not in table.protocol.get("writerFeatures", ()):
            return []
        since_ms = _first_published_ms(table, mine)
        found = [f for f in files if _OF_WRITERS.fullmatch(f.path)]
        found = [
            f for f in found if since_ms is not None and f.modified_ms > since_ms + SKEW_MS_MAX
        ]
        if not found:
            return []
        names = {path.rpartition("/")[2] for path in self._named()}
        return [file for file in found if file.path not in names]

    def _named(self, first: int = 0) -> set[str]:
        """Returns the paths that versions from the ``first`` on name, as they stand there."""
        listing = listed(self._root).complete()
        found: set[str] = set()
        table: DeltaTable | None = None
        for version in (*listing.checkpoints[:1], *listing.written_ms):
            reach = {v: ms for v, ms in listing.written_ms.items() if v <= version}
            begun = tuple(c for c in listing.checkpoints[:1] if c <= version)
            table = read_table(self._root, Listing(reach, begun), table)
            if version < first:
                continue
            named = {*table.adds, *map(vectors.file_of, map(_vector, table.adds.values()))}
            found.update(path for path in named if path is not None)
        return found

    def _write_checkpoint(self, table: DeltaTable) -> None:
        said = table.said
        txn = {"appId": said.get("log", ""), "version": int(said.get("version", 0))}
        self._root.put(checkpoint_path(table.version), encode_checkpoint(table, txn))
        self._root.put(LAST_CHECKPOINT, last_checkpoint(table))

    def _actions(
        self, seen: DeltaSeen, state: TableState, *, now_ms: int, file_id: str, folder: str
    ) -> tuple[list[Action], bytes]:
        """Returns the next version's actions, and the file of vectors that they name."""
        table, source, before = seen.table, state.source, seen.source
        has_same_start = before is not None and (before.log_id, before.starts) == (
            *(source.log_id, source.starts),
        )
        first = int(table.said.get("first", 0)) if has_same_start else seen.newest + 1
        said = {
            "log": source.log_id,
            "version": str(source.version),
            "commit": source.commit_id,
            "content": source.content,
            "starts": source.starts,
            "first": str(first),
        }
        txn = {"appId": source.log_id, "version": source.version, "lastUpdated": now_ms}
        actions: list[Action] = [_info("CLOG PUBLISH", said, now_ms), {"txn": txn}]
        began_ms = _first_published_ms(table, source.log_id)
        protocol = _protocol(state.schema)
        metadata = _metadata(
            state.schema,
            source.log_id,
            url=self._root.url,
            created_ms=now_ms if began_ms is None else began_ms,
        )
        if protocol != table.protocol:
            actions.append({"protocol": protocol})
        if metadata != table.metadata:
            actions.append({"metaData": metadata})
        changed, removed = _difference(table, state)
        described, file = vectors.describe(
            [shown.hidden for _, shown in changed if shown.hidden], folder=folder, file_id=file_id
        )
        descriptors = iter(described)
        actions += ({"remove": _remove(add, now_ms)} for add in removed)
        for path, shown in changed:
            vector = next(descriptors) if shown.hidden else None
            actions.append({"add": _add(path, shown, vector, state.time_ms)})
        return actions, file


def _seen(table: DeltaTable, listing: Listing) -> DeltaSeen:
    is_foreign = listing.newest >= 0 and not paths.is_log_id(_configuration(table).get(_LOG))
    source, withdrawn_ms = (None, None) if is_foreign else _said(table)
    log_id = table.said.get("log") if source or withdrawn_ms is not None else None
    return DeltaSeen(
        newest=listing.newest,
        modified_ms=listing.written_ms,
        is_there=listing.newest >= 0,
        is_foreign=is_foreign,
        log_id=log_id,
        source=source,
        withdrawn_ms=withdrawn_ms,
        table=table,
        listing=listing,
    )


def _info(operation: str, said: Mapping[str, str], now_ms: int) -> Action:
    info = {"timestamp": now_ms, "operation": operation, "operationParameters": said}
    return {"commitInfo": {**info, "engineInfo": "clog"}}


def _difference(
    table: DeltaTable, state: TableState
) -> tuple[list[tuple[str, ShownObject]], list[Action]]:
    """Returns what is to be added, and what is to be removed, of before."""
    folder = paths.folder_of(state.source.log_id)
    wanted = {f"{folder}/{shown.object.path}": shown for shown in state.objects}
    changed = [
        (path, shown) for path, shown in wanted.items() if not _shows(table.adds.get(path), shown)
    ]
    paths_changed = {path for path, _ in changed}
    removed = [
        add for path, add in table.adds.items() if path in paths_changed or path not in wanted
    ]
    return changed, removed


def _shows(add: Action | None, shown: ShownObject) -> bool:
    if add is None:
        return False
    return (
        add.get("tags", {}).get(_DIGEST, "") == shown.digest
        and ("deletionVector" in add) == (shown.hidden is not None)
        and add.get("size") == shown.object.size_bytes
    )


def _add(
    path: str, shown: ShownObject, vector: vectors.Descriptor | None, time_ms: int
) -> dict[str, Any]:
    ref = shown.object
    add: dict[str, Any] = {
        "path": path,
        "partitionValues": {},
        "size": ref.size_bytes,
        "modificationTime": time_ms,
        "dataChange": True,
        "stats": json.dumps({"numRecords": ref.rows}),
    }
    if vector is not None:
        add |= {"deletionVector": vector, "tags": {_DIGEST: shown.digest}}
    return add


def _vector(add: Action) -> vectors.Descriptor | None:
    return add.get("deletionVector")


def _remove(add: Action, now_ms: int) -> dict[str, Any]:
    names = ("path", "size", "deletionVector")
    return {
        **{name: add[name] for name in names if name in add},
        "deletionTimestamp": now_ms,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {},
    }


def _protocol(schema: LogSchema | None) -> Action:
    features = [_VECTORS, *([_TIMES] if has_times_without_zone(schema) else [])]
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": [*features, WRITER_FEATURE],
    }


def _metadata(schema: LogSchema | None, log_id: str, *, url: str, created_ms: int) -> Action:
    return {
        "id": vectors.uuid_of(log_id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(delta_schema(schema, url=url), separators=(",", ":")),
        "partitionColumns": [],
        "configuration": {"delta.enableDeletionVectors": "true", _LOG: log_id},
        "createdTime": created_ms,
    }


def _configuration(table: DeltaTable) -> dict[str, str]:
    found: dict[str, str] = table.metadata.get("configuration") or {}
    return found


def _first_published_ms(table: DeltaTable, log_id: str) -> int | None:
    """Returns when the view of a log was first published, by that publisher's clock; None where it
    was not.
    """
    if _configuration(table).get(_LOG) != log_id:
        return None
    created_ms = table.metadata.get("createdTime")
    return created_ms if isinstance(created_ms, int) else None


def _said(table: DeltaTable) -> tuple[Source | None, int | None]:
    """Returns what a version says it shows, and since when it shows nothing; None and None where
    another wrote it.
    """
    said = table.said
    try:
        if WITHDRAWN in said:
            return None, int(said[WITHDRAWN])
        return Source(
            *(str(said["log"]), int(said["version"]), str(said["commit"])),
            *(str(said["content"]), str(said["starts"])),
        ), None
    except (KeyError, ValueError):
        return None, None
