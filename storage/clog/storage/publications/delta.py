"""The log's table as a Delta table: ``_delta_log/`` at the log's root, over the log's own objects
(protocol 3, 7).

Each version is the complete difference to the previous one, whoever wrote that: an ``add`` for each
object that shows any rows, with the hidden ones in a deletion vector. Short vectors are in the
version itself, in Z85; longer ones together in one file, of which each names its part. Tables that
are not clog's are left alone; that of another log that was here is replaced as a whole. There are
no columns for partition or offset: objects have several partitions, and dense ones no offsets.

*Reads* find the newest version by a LIST: versions that were cleaned up have no names left, and a
hint may be older than they are. Checkpoints in several parts or of the second kind, which others
may have written, are ignored: versions that need one cannot be read here.

*Who may write.* The protocol names a writer feature that nobody else knows: others refuse to
append, update, optimise and vacuum, but can read as usual. So checkpoints leave out removed files,
which only a VACUUM needs.

*Versions that expire.* A checkpoint follows each tenth version; everything before the newest one
that no pin needs is deleted. When a log start offset has risen, the version that says so gets one
immediately, and all versions before it are deleted: an old version never shows what was deleted.
Each version names the oldest one to keep, so the next publication finishes an interrupted clean-up.

A view is *withdrawn* if its newest version has no files, and is the first to stay.
"""

import io
import json
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clog.storage.column_kinds import word_for
from clog.storage.commit.committer import SKEW_MS_MAX
from clog.storage.commit.tip import StandingLog
from clog.storage.env import dataclass
from clog.storage.errors import CorruptionError, InvalidInputError
from clog.storage.format import documents
from clog.storage.format.log_info import LIST, MAP, STRUCT, SchemaField
from clog.storage.numpy_arrays import parquet
from clog.storage.publications.source import (
    OF_BYTES,
    HiddenRows,
    Seen,
    ShownObject,
    TableState,
    Withdrawal,
    create_version,
    reads_view,
    said_by,
    says,
    uuid_of,
)
from clog.storage.store.contract import Store, StoredObject
from clog.storage.view_formats import DELTA, UUID

MAPS: Final = ("partitionValues", "tags", "options", "configuration")
WRITER_FEATURE: Final = "clogView"
"""Keeps others from writing: a writer feature that only clog knows."""
CHECKPOINT_VERSIONS: Final = 10
INLINE_BYTES_MAX = 512
"""Longer vectors are in the file: readers of the table always read everything that is inline."""

_LAST_CHECKPOINT: Final = "_delta_log/_last_checkpoint"
_VECTORS, _TIMES, _MAPPING = "deletionVectors", "timestampNtz", "columnMapping"
_OF_WRITERS = re.compile(
    rf"part-\d{{5,}}-{UUID}-c\d{{3,}}(\.[a-z0-9]+)?\.parquet|deletion_vector_{UUID}\.bin"
)
"""The names of files that Delta's writers write at a table's root."""
_LOG, _DIGEST = "clog.log", "clog.hidden"

Action = dict[str, Any]
Descriptor = dict[str, Any]
"""What an ``add`` says about its deletion vector."""


def version_path(version: int) -> str:
    """Returns the path of a version."""
    return f"_delta_log/{version:020d}.json"


def checkpoint_path(version: int) -> str:
    """Returns the path of a checkpoint."""
    return f"_delta_log/{version:020d}.checkpoint.parquet"


@dataclass(frozen=True, slots=True)
class Listing:
    """The existing versions and checkpoints, ascending, and when each was written."""

    written_ms: Mapping[int, int]
    checkpoints: tuple[int, ...]

    @property
    def newest(self) -> int:
        """The newest version; -1 if there is none."""
        return max((*self.written_ms, *self.checkpoints), default=-1)

    def complete(self) -> "Listing":
        """Returns it without the remains of versions whose clean-up was interrupted: a checkpoint
        without its version's own file, or versions that no checkpoint precedes.
        """
        first = self.newest
        while first - 1 in self.written_ms:
            first -= 1
        begins = [c for c in self.checkpoints if c >= first]
        if first > 0 and not begins:
            return self  # Reading it reports what is missing.
        low = begins[0] if first > 0 else 0
        written_ms = {v: ms for v, ms in self.written_ms.items() if v >= low}
        return Listing(written_ms, tuple(begins))

    def before(self, version: int) -> list[str]:
        """Returns the paths of all files of older versions."""
        old = [version_path(v) for v in self.written_ms if v < version]
        return [*old, *(checkpoint_path(v) for v in self.checkpoints if v < version)]


def listed(root: Store) -> Listing:
    """Returns the existing versions and checkpoints; one LIST."""
    versions, checkpoints = {}, []
    for found in root.list(DELTA.folder):
        if match := DELTA.versions.fullmatch(found.path):
            versions[int(match[1])] = found.modified_ms
        elif (match := DELTA.beside.fullmatch(found.path)) and match[1]:
            checkpoints.append(int(match[1]))
    return Listing(dict(sorted(versions.items())), tuple(sorted(checkpoints)))


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """A version of the table, replayed: its files by path, as they were added; its metadata and
    protocol; what its commit says about itself. A value: nothing in it is ever changed.
    """

    version: int = -1
    adds: Mapping[str, Action] = field(default_factory=dict)
    metadata: Action = field(default_factory=dict)
    protocol: Action = field(default_factory=dict)
    said: Mapping[str, Any] = field(default_factory=dict)


def replayed(before: DeltaTable, steps: Iterable[tuple[int, list[Action]]]) -> DeltaTable:
    """Returns the table after more versions with their actions, or from a checkpoint on."""
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
    """Returns the newest existing version; a GET for the checkpoint, and one for each version after
    it, or after the ``known`` one.
    """
    newest = listing.newest
    table = DeltaTable() if known is None else known
    behind = [v for v in listing.checkpoints if v > table.version]
    try:
        if behind and (known is None or table.version + 1 not in listing.written_ms):
            begun = read_checkpoint(root.get(checkpoint_path(behind[-1])))
            table = replayed(DeltaTable(), [(behind[-1], begun)])
            if behind[-1] == newest:  # Only its own file has what a version says about itself.
                said = replayed(DeltaTable(), [(newest, [*_actions(root, newest)])]).said
                table = replace(table, said=said)
        since = range(table.version + 1, newest + 1)
        if not since:
            return table
        return replayed(table, ((version, [*_actions(root, version)]) for version in since))
    except FileNotFoundError as e:
        raise CorruptionError(
            f"version {newest} of the Delta table at {root.url} needs {e.filename or e}, which is"
            " missing; delete _delta_log, and clog publishes it again"
        ) from e


def actions_of(data: bytes, *, where: str) -> Iterator[Action]:
    """Yields the actions of a version."""
    for line in data.splitlines():
        try:
            action = json.loads(line)
        except (RecursionError, ValueError) as e:
            raise CorruptionError(f"{where} is not a version of a Delta table: {e}") from e
        if isinstance(action, dict):
            yield action


def read_checkpoint(data: bytes) -> list[Action]:
    """Returns the actions of a checkpoint."""
    try:
        rows = parquet().ParquetFile(io.BytesIO(data)).read(use_threads=False).to_pylist()
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


def _struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct([*fields.items()])


_TEXT, _LONG, _INT, _LIST = pa.string(), pa.int64(), pa.int32(), pa.list_(pa.string())
_TEXTS = pa.map_(_TEXT, _TEXT)
_SCHEMA = pa.schema(
    {
        "txn": _struct(appId=_TEXT, version=_LONG, lastUpdated=_LONG),
        "add": _struct(
            path=_TEXT,
            partitionValues=_TEXTS,
            size=_LONG,
            modificationTime=_LONG,
            dataChange=pa.bool_(),
            stats=_TEXT,
            tags=_TEXTS,
            deletionVector=_struct(
                storageType=_TEXT,
                pathOrInlineDv=_TEXT,
                offset=_INT,
                sizeInBytes=_INT,
                cardinality=_LONG,
            ),
        ),
        "remove": _struct(path=_TEXT, deletionTimestamp=_LONG, dataChange=pa.bool_()),
        "metaData": _struct(
            id=_TEXT,
            name=_TEXT,
            description=_TEXT,
            format=_struct(provider=_TEXT, options=_TEXTS),
            schemaString=_TEXT,
            partitionColumns=_LIST,
            configuration=_TEXTS,
            createdTime=_LONG,
        ),
        "protocol": _struct(
            minReaderVersion=_INT, minWriterVersion=_INT, readerFeatures=_LIST, writerFeatures=_LIST
        ),
    }
)


def encode_checkpoint(table: DeltaTable, txn: Action) -> bytes:
    """Returns the checkpoint file of a version; ``txn`` is what it says about the log."""
    actions = [
        {"protocol": table.protocol},
        {"metaData": _paired(table.metadata)},
        {"txn": txn},
        *({"add": _paired({**add, "dataChange": False})} for add in table.adds.values()),
    ]
    sink = io.BytesIO()
    parquet().write_table(pa.Table.from_pylist(actions, schema=_SCHEMA), sink)
    return sink.getvalue()


def _paired(action: Action) -> Action:
    """Returns an action with its maps as pairs, as Arrow takes them."""
    return {
        name: [*value.items()] if name in MAPS else _paired(value) if name == "format" else value
        for name, value in action.items()
    }


_REFUSED_IN_NAMES: Final = frozenset(" ,;{}()\n\t=")
"""Delta does not allow such names without a mapping of columns."""


def delta_schema(columns: Sequence[SchemaField], *, url: str) -> dict[str, Any]:
    """Returns the columns of a view as Delta's JSON; raises if Delta lacks a type or name."""
    _check_names(columns, "", url)
    fields = [_field(one, _type(one, one.name, url)) for one in columns]
    made = {"type": "struct", "fields": fields}
    return made if is_mapped(columns) else _unmapped(made)


def is_mapped(columns: Sequence[SchemaField]) -> bool:
    """Returns whether a field has another name in objects than in the view."""
    return any(one.stored_name != one.name for column in columns for _, one in column.walk())


def _field(field: SchemaField, type_: Any) -> dict[str, Any]:
    """Returns a field with its id and name in objects, as Delta's mapping of columns has them."""
    about = {
        "delta.columnMapping.id": field.id,
        "delta.columnMapping.physicalName": field.stored_name,
    }
    return {"name": field.name, "type": type_, "nullable": True, "metadata": about}


def _unmapped(type_: Any) -> Any:
    """Returns a type without what only a mapping of columns needs."""
    if isinstance(type_, list):
        return [_unmapped(one) for one in type_]
    if not isinstance(type_, dict):
        return type_
    return {n: {} if n == "metadata" else _unmapped(v) for n, v in type_.items()}


def _type(field: SchemaField, path: str, url: str) -> Any:
    if field.kind == STRUCT:
        _check_names(field.fields, f"{path}.", url)
        inside = [_field(f, _type(f, f"{path}.{f.name}", url)) for f in field.fields]
        return {"type": "struct", "fields": inside}
    if field.kind == LIST:
        element = _type(field.fields[0], f"{path}.element", url)
        return {"type": "array", "elementType": element, "containsNull": True}
    if field.kind == MAP:
        key, value = (_type(f, f"{path}.{f.name}", url) for f in field.fields)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if (word := word_for("delta", field.kind)) is not None:
        return word
    raise InvalidInputError(
        f"{path} of {url} is {field.kind}, for which Delta has no type; the log cannot be"
        " published as Delta; nothing was changed"
    )


def _check_names(fields: Iterable[SchemaField], path: str, url: str) -> None:
    """Raises if Delta refuses the names: with spaces or punctuation."""
    for one in fields:
        if _REFUSED_IN_NAMES & set(one.name):
            raise InvalidInputError(
                f"{path}{one.name!r} of {url} has a name that Delta refuses (a space, or one of"
                " ,;{}()=); the log cannot be published as Delta; nothing was changed"
            )


_MAGIC = 1681511377
_FILE_VERSION = b"\x01"
_ALPHABET = np.frombuffer(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    np.uint8,
)
_DIGITS = np.zeros(256, np.uint64)
_DIGITS[_ALPHABET] = np.arange(85)
_ID_CHARACTERS = 20
"""A file's id in Z85, at the end of the text that names it."""


def z85(data: bytes) -> str:
    """Returns the bytes in Z85, padded with zeros to a multiple of four."""
    padded = data + b"\0" * (-len(data) % 4)
    numbers = np.frombuffer(padded, ">u4").astype(np.uint64)
    powers = np.array([85**4, 85**3, 85**2, 85, 1], np.uint64)
    digits = numbers[:, None] // powers % np.uint64(85)
    return _ALPHABET[digits.astype(np.int64)].tobytes().decode()


def describe(
    hidden: Sequence[HiddenRows], *, folder: str, file_id: str
) -> tuple[list[Descriptor], bytes]:
    """Returns each vector's descriptor, and the bytes of the file that some of them name."""
    made: list[Descriptor] = []
    file = bytearray(_FILE_VERSION)
    for rows in hidden:
        data = struct.pack("<I", _MAGIC) + rows.roaring
        described = {"sizeInBytes": len(data), "cardinality": rows.rows}
        if len(data) <= INLINE_BYTES_MAX:
            made.append({"storageType": "i", "pathOrInlineDv": z85(data), **described})
            continue
        name = folder.rstrip("/") + z85(bytes.fromhex(file_id))
        where = {"storageType": "u", "pathOrInlineDv": name, "offset": len(file)}
        made.append({**where, **described})
        file += struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    return made, bytes(file) if len(file) > len(_FILE_VERSION) else b""


def file_name(file_id: str) -> str:
    """Returns the name of a file of vectors, as Delta derives it from an id."""
    return f"deletion_vector_{uuid_of(file_id)}.bin"


def file_of(descriptor: Descriptor | None) -> str | None:
    """Returns the path of the file that a descriptor names, relative or full; None: no file."""
    if descriptor is None or descriptor.get("storageType") not in ("u", "p"):
        return None
    named = str(descriptor["pathOrInlineDv"])
    if descriptor["storageType"] == "p":
        return named
    folder, name = named[:-_ID_CHARACTERS], named[-_ID_CHARACTERS:]
    return folder.rstrip("/") + "/" + file_name(_unz85(name).hex())


def _unz85(text: str) -> bytes:
    digits = _DIGITS[np.frombuffer(text.encode(), np.uint8)].reshape(-1, 5)
    powers = np.array([85**4, 85**3, 85**2, 85, 1], np.uint64)
    numbers = (digits * powers).sum(axis=1, dtype=np.uint64)
    data: bytes = numbers.astype(">u4").tobytes()
    return data


@dataclass(frozen=True, slots=True)
class DeltaSeen(Seen):
    """What was found of a Delta table: its newest version, replayed, and the existing files."""

    table: DeltaTable
    listing: Listing


@dataclass(frozen=True, slots=True)
class DeltaVersion:
    """A version that is ready to be created after ``seen``, with its files written."""

    seen: DeltaSeen
    actions: list[Action]
    now_ms: int


class DeltaView:
    """The Delta table of one log, as its publisher sees it."""

    row: Final = DELTA

    def __init__(self, standing: StandingLog) -> None:
        self._standing = standing
        self.root = standing.root
        self._folder = f"{documents.folder_of(standing.log_id)}/"

    @staticmethod
    def check_columns(columns: Sequence[SchemaField], *, url: str) -> None:
        delta_schema(columns, url=url)

    @staticmethod
    def log_of(body: bytes) -> object:
        infos = [action.get("commitInfo") for action in actions_of(body, where="a Delta version")]
        said = [info for info in infos if isinstance(info, dict)]
        said = [info for info in said if info.get("engineInfo") == "clog"]
        about = said[-1].get("operationParameters") if said else None
        return about.get("log") if isinstance(about, dict) else None

    @reads_view
    def look(self, known: DeltaSeen | None = None) -> DeltaSeen:
        """Finds the newest version; a LIST, and a GET for each version not ``known``."""
        listing = listed(self.root)
        before = None if known is None or known.newest > listing.newest else known.table
        return _seen(read_table(self.root, listing, before), listing)

    def check_installed(self) -> None:
        """Raises nothing: publishing needs no package."""

    @reads_view
    def prepared(
        self, seen: DeltaSeen, state: TableState, *, now_ms: int, file_id: str
    ) -> DeltaVersion:
        table, source = seen.table, state.source
        is_same = source.has_starts_of(seen.source)
        first = int(table.said.get("first", 0)) if is_same else seen.newest + 1
        txn = {"appId": source.log_id, "version": source.version, "lastUpdated": now_ms}
        actions: list[Action] = [_info("CLOG PUBLISH", says(source, first), now_ms), {"txn": txn}]
        began_ms = _first_published_ms(table, source.log_id)
        protocol, metadata = (
            _protocol(state.columns),
            _metadata(
                state.columns,
                source.log_id,
                url=self.root.url,
                created_ms=now_ms if began_ms is None else began_ms,
            ),
        )
        if protocol != table.protocol:
            actions.append({"protocol": protocol})
        if metadata != table.metadata:
            actions.append({"metaData": metadata})
        wanted = {self._folder + shown.object.path: shown for shown in state.objects}
        changed = {p: one for p, one in wanted.items() if not _shows(table.adds.get(p), one)}
        where = documents.view_folder(self.row.name, seen.newest + 1)
        described, file = describe(
            [shown.hidden for shown in changed.values() if shown.hidden],
            folder=self._folder + where,
            file_id=file_id,
        )
        if file:
            self._standing.store.put(where + file_name(file_id), file)
        actions += (
            {"remove": _remove(add, now_ms)}
            for path, add in table.adds.items()
            if path in changed or path not in wanted
        )
        descriptors = iter(described)
        for path, shown in changed.items():
            vector = next(descriptors) if shown.hidden else None
            actions.append({"add": _add(path, shown, vector, state.time_ms)})
        return DeltaVersion(seen, actions, now_ms)

    def withdrawn(self, seen: DeltaSeen, said: Withdrawal) -> DeltaVersion:
        table, mine, first = seen.table, said.log_id, seen.newest + 1
        actions = [_info("CLOG WITHDRAW", says(said, first), said.now_ms)]
        if _configuration(table).get(_LOG) != mine:
            metadata = _metadata(OF_BYTES, mine, url=self.root.url, created_ms=said.now_ms)
            actions += [{"protocol": _protocol(OF_BYTES)}, {"metaData": metadata}]
        actions += ({"remove": _remove(add, said.now_ms)} for add in table.adds.values())
        return DeltaVersion(seen, actions, said.now_ms)

    def create(self, version: DeltaVersion, _lowest_view: int) -> DeltaSeen | None:
        seen, actions = version.seen, version.actions
        number = seen.newest + 1
        body = "".join(json.dumps(a, separators=(",", ":")) + "\n" for a in actions).encode()
        self._standing.check()
        if not create_version(self.root, version_path(number), body):
            return None
        written_ms = {**seen.listing.written_ms, number: version.now_ms}
        listing = Listing(written_ms, seen.listing.checkpoints)
        return _seen(replayed(seen.table, [(number, actions)]), listing)

    @reads_view
    def tidy(self, seen: DeltaSeen, lowest_view: int) -> DeltaSeen:
        """Writes a checkpoint if one is due, and deletes expired versions."""
        table, checkpoints = seen.table, seen.listing.checkpoints
        if not seen.is_there or seen.is_foreign:
            return seen
        first = int(table.said.get("first", 0))
        last = max(checkpoints, default=0)
        if last < first or table.version - last >= CHECKPOINT_VERSIONS:
            said = table.said
            txn = {"appId": said.get("log", ""), "version": int(said.get("version", 0))}
            self.root.put(checkpoint_path(table.version), encode_checkpoint(table, txn))
            hint = {"version": table.version, "size": len(table.adds) + 3}
            self.root.put(_LAST_CHECKPOINT, json.dumps(hint).encode())
            checkpoints = (*checkpoints, table.version)
        may_go = [c for c in checkpoints if c <= lowest_view]
        must_go = [c for c in checkpoints if c >= first > 0]
        keep = max([*may_go[-1:], *must_go[:1]], default=0)
        for path in seen.listing.before(keep):
            self.root.delete(path)
        written_ms = {v: ms for v, ms in seen.listing.written_ms.items() if v >= keep}
        return _seen(table, Listing(written_ms, tuple(c for c in checkpoints if c >= keep)))

    @reads_view
    def unnamed(self, seen: DeltaSeen, files: Mapping[str, int]) -> set[str]:
        return files.keys() - self.named(seen)

    @reads_view
    def named(self, _seen: DeltaSeen, first: int = 0) -> set[str]:
        """Returns the paths of objects and files of vectors; a LIST, and a GET for each version."""
        named = self._named(first)
        return {p.removeprefix(self._folder) for p in named if p.startswith(self._folder)}

    @reads_view
    def left_by_refused(self, seen: DeltaSeen, files: Iterable[StoredObject]) -> list[StoredObject]:
        """Returns the files at the root that can only be left by refused writers, for the view as
        found; makes the requests of `named` if there are any.

        Returns none while another writer than clog wrote the newest version, or may write one. Else
        those that have a name of Delta's writers, were written since the view was first published,
        and are named by no remaining version, in whatever form.
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
        """Returns the paths that versions from ``first`` on name, verbatim."""
        listing = listed(self.root).complete()
        found: set[str] = set()
        table: DeltaTable | None = None
        for version in (*listing.checkpoints[:1], *listing.written_ms):
            reach = {v: ms for v, ms in listing.written_ms.items() if v <= version}
            begun = tuple(c for c in listing.checkpoints[:1] if c <= version)
            table = read_table(self.root, Listing(reach, begun), table)
            if version < first:
                continue
            vectors = (add.get("deletionVector") for add in table.adds.values())
            named = {*table.adds, *map(file_of, vectors)}
            found.update(path for path in named if path is not None)
        return found


def _seen(table: DeltaTable, listing: Listing) -> DeltaSeen:
    is_foreign = listing.newest >= 0 and not documents.is_log_id(_configuration(table).get(_LOG))
    source, withdrawn_ms = (None, None) if is_foreign else said_by(table.said)
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


def _shows(add: Action | None, shown: ShownObject) -> bool:
    if add is None:
        return False
    return (
        add.get("tags", {}).get(_DIGEST, "") == shown.digest
        and ("deletionVector" in add) == (shown.hidden is not None)
        and add.get("size") == shown.object.size_bytes
    )


def _add(path: str, shown: ShownObject, vector: Descriptor | None, time_ms: int) -> dict[str, Any]:
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


def _remove(add: Action, now_ms: int) -> dict[str, Any]:
    names = ("path", "size", "deletionVector")
    return {
        **{name: add[name] for name in names if name in add},
        "deletionTimestamp": now_ms,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {},
    }


def _protocol(columns: Sequence[SchemaField]) -> Action:
    fields = (inner for column in columns for _, inner in column.walk())
    has_local_times = any(word_for("delta", field.kind) == "timestamp_ntz" for field in fields)
    features = [
        _VECTORS,
        *([_TIMES] if has_local_times else []),
        *([_MAPPING] if is_mapped(columns) else []),
    ]
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": [*features, WRITER_FEATURE],
    }


def _metadata(columns: Sequence[SchemaField], log_id: str, *, url: str, created_ms: int) -> Action:
    return {
        "id": uuid_of(log_id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(delta_schema(columns, url=url), separators=(",", ":")),
        "partitionColumns": [],
        "configuration": {
            "delta.enableDeletionVectors": "true",
            **(_mapped_by_name(columns) if is_mapped(columns) else {}),
            _LOG: log_id,
        },
        "createdTime": created_ms,
    }


def _mapped_by_name(columns: Sequence[SchemaField]) -> dict[str, str]:
    last_id = max(one.id for column in columns for _, one in column.walk())
    return {
        "delta.columnMapping.mode": "name",
        "delta.columnMapping.maxColumnId": str(last_id),
    }


def _configuration(table: DeltaTable) -> dict[str, str]:
    found: dict[str, str] = table.metadata.get("configuration") or {}
    return found


def _first_published_ms(table: DeltaTable, log_id: str) -> int | None:
    """Returns when a view was first published, by its publisher's clock; None if it was not."""
    if _configuration(table).get(_LOG) != log_id:
        return None
    created_ms = table.metadata.get("createdTime")
    return created_ms if isinstance(created_ms, int) else None
