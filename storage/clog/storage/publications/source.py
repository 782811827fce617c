"""What is published: the log's table at a version, as objects and the rows that they do not show.

A publisher computes it from the log's keys and masks, and passes it to a format, which writes it in
its own form and creates the version if absent. Spark's own scan uses it, too.

A row is hidden from the table if no chunk contains it, if it is dead or below the log start, a
tombstone or without a key, or if a later record of its key superseded it.

V0. If a chunk has a mask (FORMAT.md §13), and nothing is dirty, the mask is the answer: no object
    is read.
V1. For the rest of a partition take the offsets that its table shows (`table`).
V2. Find their rows: in a dense object by counting, else by its column ``offset``.
V3. All other rows of an object are hidden, after all partitions with rows in it were processed.

A read (`read_masks`) hides the rows that are in none of its pieces, that are dead, or that are
outside of the offsets that it delivers.

Sets of rows are Roaring bitmaps, as in Delta and Iceberg, in the portable format of 64 bits: the
number of 32-bit bitmaps, and each of them after its upper 32 bits. An object has fewer rows than
2^32, so there is one. It has a *container* for each 65,536 numbers, in the shortest form: the
numbers, runs of them, or bits.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import numpy as np
import xxhash

from clog.storage.commit.handle import Handle
from clog.storage.commit.versions import reading
from clog.storage.config.log_config import LogConfig
from clog.storage.env import dataclass
from clog.storage.errors import (
    ClogError,
    CorruptionError,
    InvalidInputError,
    StoreUnavailableError,
)
from clog.storage.format import documents
from clog.storage.format.chunks import ObjectRef
from clog.storage.format.columns import CHANGED, END, START
from clog.storage.format.commits import Head
from clog.storage.format.documents import NONE
from clog.storage.format.log_info import (
    BYTES,
    KEY_ID,
    LIST,
    STRUCT,
    VALUE_ID,
    LogSchema,
    SchemaField,
    schema_to_json,
)
from clog.storage.format.manifest import Manifest
from clog.storage.numpy_arrays import Mask, Offsets, to_numpy
from clog.storage.objects.reader import BATCH_ROWS, open_ranges
from clog.storage.read.scan import ReadPiece, dead_rows_of
from clog.storage.read.table import TablePlan, plan_table, table_batches
from clog.storage.store.contract import ObjectExistsError, Store, StoreRefusedError
from clog.storage.types.columns import COLUMN_IDS, layout_of

WITHDRAWN: Final = "withdrawn"
"""What a version without files says about itself, with the time."""

_CREATES_MAX = 5
_CONTAINER = 1 << 16
_ARRAY_MAX = 4096
"""The most numbers that a container may list; with more it has bits or runs."""
_COOKIE, _COOKIE_OF_RUNS = 12346, 12347
_OFFSETS_MIN = 4
"""Bitmaps with runs have the containers' offsets if they have at least this many."""


@dataclass(frozen=True, slots=True)
class Source:
    """The table that a view shows: that of ``log_id`` at ``version``, made by ``commit_id``.

    ``content`` is equal for versions between which nothing could have changed the table or its
    objects, ``starts`` for those with the same log start offsets.
    """

    log_id: str
    version: int
    commit_id: str
    content: str
    starts: str

    def has_starts_of(self, other: "Source | None") -> bool:
        """Returns whether nothing was deleted between the two, so that both may be shown."""
        return other is not None and (self.log_id, self.starts) == (other.log_id, other.starts)


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What a version without files says: when it was withdrawn, at which version and commit."""

    log_id: str
    version: int
    commit_id: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """Rows of an object that a view must not show, as a set; equal ones by ``digest``."""

    rows: int
    roaring: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class ShownObject:
    """An object of which a view shows all rows except ``hidden``."""

    object: ObjectRef
    hidden: HiddenRows | None

    @property
    def digest(self) -> str:
        """What identifies the set of hidden rows; empty if there are none."""
        return "" if self.hidden is None else self.hidden.digest


@dataclass(frozen=True, slots=True)
class TableState:
    """The table at one version."""

    source: Source
    time_ms: int
    schema_id: int
    columns: tuple[SchemaField, ...]
    objects: Sequence[ShownObject]


_BESIDE: Final = {
    "headers": SchemaField(
        *("headers", COLUMN_IDS["headers"], LIST),
        fields=(
            SchemaField(
                *("element", 4, STRUCT),
                fields=(SchemaField("key", 5, "string"), SchemaField("value", 6, "binary")),
            ),
        ),
    ),
    "timestamp": SchemaField("timestamp", COLUMN_IDS["timestamp"], "timestamp(us,utc)"),
}
"""Columns of a record that a view can show beside its key and value."""
OF_BYTES: Final = (
    SchemaField("key", KEY_ID, BYTES["key"]),
    SchemaField("value", VALUE_ID, BYTES["value"]),
    *_BESIDE.values(),
)
"""The columns of a view of a log of bytes."""


def view_columns(schema: LogSchema | None, config: LogConfig) -> tuple[SchemaField, ...]:
    """Returns the columns that a view has: those of the table, and of each record what
    ``table.publish.columns`` names; or, in a log without table columns, all of a record.
    """
    if schema is None or not schema.is_table:
        return OF_BYTES if schema is None else (schema.key, schema.value, *_BESIDE.values())
    layout = layout_of(schema)
    key, names = schema.key_columns, config.table_key_columns
    names = names or tuple(field.stored_name for field in key)
    pairs = zip(key, names, strict=True)
    table = (*(replace(f, name=n, column=f.stored_name) for f, n in pairs), *schema.value.fields)
    beside = [
        replace(field, name=layout.kind.own(name))
        for name, field in _BESIDE.items()
        if name in config.table_publish_columns
    ]
    return (*table, *beside)


def shows_times(columns: Sequence[SchemaField]) -> bool:
    """Returns whether these are of a view that shows the times of records."""
    return any(field.id == COLUMN_IDS["timestamp"] for field in columns)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at a view found: its newest version, and what that says. A value: other threads'
    looks do not change what a thread decides from it, and the version that the thread makes is the
    one after ``newest``, or none.

    Attributes:
        newest: the newest version; if there is none, the one before the format's first.
        modified_ms: when each existing version was written, by the store's clock.
        is_there: whether any version exists.
        is_foreign: whether there is a table that clog did not write.
        log_id: the log whose publisher wrote the newest version; None if none did.
        source: what that version shows; None if it shows nothing of a log.
        withdrawn_ms: when it was withdrawn, by the withdrawing process's clock; None if it was not.
    """

    newest: int
    modified_ms: Mapping[int, int]
    is_there: bool
    is_foreign: bool
    log_id: str | None
    source: Source | None
    withdrawn_ms: int | None

    def written_ms(self, view: int) -> int | None:
        """Returns when the store wrote a version; 0: it was cleaned up, None: it does not exist."""
        return None if view > self.newest else self.modified_ms.get(view, 0)


def says(shown: Source | Withdrawal, first: int) -> dict[str, str]:
    """Returns what a version says about itself, and the ``first`` version that may stay."""
    about = {"log": shown.log_id, "version": str(shown.version), "commit": shown.commit_id}
    if isinstance(shown, Source):
        return {**about, "content": shown.content, "starts": shown.starts, "first": str(first)}
    return {**about, "first": str(first), WITHDRAWN: str(shown.now_ms)}


_V = TypeVar("_V")
_T = TypeVar("_T")
_P = ParamSpec("_P")


def reads_view(read: Callable[Concatenate[_V, _P], _T]) -> Callable[Concatenate[_V, _P], _T]:
    """Makes a method of a view raise CorruptionError if it fails on the contents of the view's
    files, which others may have written.
    """

    @wraps(read)
    def reading_it(self: _V, /, *given: _P.args, **named: _P.kwargs) -> _T:
        try:
            return read(self, *given, **named)
        except (*documents.REFUSED, RecursionError) as e:
            if isinstance(e, ClogError):
                raise
            view: Any = self
            raise CorruptionError(
                f"{view.row.title} at {view.root.url} has metadata that clog did not write"
                f" ({type(e).__name__}); delete {view.row.folder[:-1]}, and clog publishes it"
                " again"
            ) from e

    return reading_it


def said_by(about: Mapping[str, Any]) -> tuple[Source | None, int | None]:
    """Returns what a version says it shows, and since when nothing; None, None if not clog's."""
    try:
        if WITHDRAWN in about:
            return None, int(about[WITHDRAWN])
        return Source(
            *(str(about["log"]), int(about["version"]), str(about["commit"])),
            *(str(about["content"]), str(about["starts"])),
        ), None
    except (KeyError, ValueError):
        return None, None


def uuid_of(digits: str) -> str:
    """Returns 32 hex digits in the form of a UUID."""
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def source_of(head: Head, *, version: int, commit_id: str) -> Source:
    """Returns the table to be published, from the head alone."""
    columns = head.partitions.folded()
    content = xxhash.xxh3_128(columns[[START, END, CHANGED]].tobytes())
    content.update(repr(schema_to_json(schema := head.log.schema)).encode())
    if schema is not None and schema.is_table:  # Configs give its view columns, and name them.
        shown = view_columns(schema, LogConfig.from_overrides(head.config))
        content.update(repr([field.name for field in shown]).encode())
    starts = xxhash.xxh3_64_hexdigest(columns[START].tobytes())
    return Source(head.log.log_id, version, commit_id, content.hexdigest(), starts)


def table_state(handle: Handle, manifest: Manifest) -> TableState:
    """Returns the table at the manifest's version; reads keys where there are no masks."""
    head = manifest.head
    masks = view_masks(handle.store, manifest, handle.tip.head.partitions.start)
    shown = []
    for mask in masks:
        if not mask.shown:
            continue
        hidden = None
        if rows := int(np.count_nonzero(mask.hidden)):
            roaring = to_roaring64(mask.hidden)
            hidden = HiddenRows(rows, roaring, xxhash.xxh3_128_hexdigest(roaring))
        shown.append(ShownObject(mask.object, hidden))
    return TableState(
        source_of(head, version=manifest.version, commit_id=manifest.commit_id),
        manifest.time_ms,
        0 if head.log.schema is None else head.log.schema.id,
        view_columns(head.log.schema, LogConfig.from_overrides(head.config)),
        sorted(shown, key=lambda one: one.object.path),
    )


def check_times(manifest: Manifest, *, url: str) -> None:
    """Raises if a chunk overrides its rows' timestamps, unseen by readers (FORMAT.md §14)."""
    overridden = sum(chunk.append_time_ms != NONE for _, chunk in manifest.chunks())
    if overridden:
        raise InvalidInputError(
            f"{overridden} chunks of {url} have the time of their commit as timestamp"
            " (message.timestamp.type=LogAppendTime), and data objects do not contain it; set it"
            " to CreateTime, and let the cleaner rewrite the log before it is published; nothing"
            " was changed"
        )


def create_version(root: Store, path: str, body: bytes) -> bool:
    """Creates a version's file; returns whether it has these bytes: another may have come first."""
    cause: Exception | None = None
    for _ in range(_CREATES_MAX):
        try:
            root.create(path, body)
            return True
        except StoreRefusedError as e:
            if e.certain:
                raise
            cause = e
        except (ObjectExistsError, StoreUnavailableError) as e:
            cause = e  # Perhaps our own, repeated by a client whose reply was lost.
        try:
            return root.get(path) == body
        except FileNotFoundError:
            continue  # Another create that never ended, or ours that was never done.
    raise StoreUnavailableError(
        f"{path} of {root.url} can neither be created nor read: {cause}; publish again"
    ) from cause


def to_roaring64(mask: Mask) -> bytes:
    """Returns the indices of the true elements as a 64-bit bitmap."""
    if not mask.any():
        return struct.pack("<Q", 0)
    return struct.pack("<QI", 1, 0) + _to_roaring32(mask)


def _to_roaring32(mask: Mask) -> bytes:
    containers: list[tuple[int, int, bool, bytes]] = []  # upper bits, count, as runs, bytes
    for upper, start in enumerate(range(0, len(mask), _CONTAINER)):
        part = mask[start : start + _CONTAINER]
        if count := int(np.count_nonzero(part)):
            containers.append((upper, count, *_container(part, count)))
    size = len(containers)
    has_runs = any(as_runs for _, _, as_runs, _ in containers)
    if has_runs:
        flags = np.packbits([as_runs for _, _, as_runs, _ in containers], bitorder="little")
        head = struct.pack("<I", _COOKIE_OF_RUNS | (size - 1) << 16) + flags.tobytes()
    else:
        head = struct.pack("<II", _COOKIE, size)
    head += b"".join(struct.pack("<HH", upper, count - 1) for upper, count, _, _ in containers)
    bodies = [body for _, _, _, body in containers]
    if not has_runs or size >= _OFFSETS_MIN:
        lengths = [0, *(len(body) for body in bodies[:-1])]
        offsets = np.cumsum(lengths, dtype=np.uint32) + np.uint32(len(head) + 4 * size)
        head += offsets.astype("<u4").tobytes()
    return head + b"".join(bodies)


def _container(part: Mask, count: int) -> tuple[bool, bytes]:
    """Returns whether runs are shortest, and the container's bytes."""
    padded = np.zeros(len(part) + 2, np.int8)
    padded[1:-1] = part
    steps = np.diff(padded)
    starts, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    otherwise = 2 * count if count <= _ARRAY_MAX else _CONTAINER // 8
    if 2 + 4 * len(starts) < otherwise:
        runs = np.stack([starts, ends - starts - 1], axis=1).astype("<u2")
        return True, struct.pack("<H", len(starts)) + runs.tobytes()
    if count <= _ARRAY_MAX:
        return False, np.flatnonzero(part).astype("<u2").tobytes()
    bits = np.zeros(_CONTAINER, np.bool_)
    bits[: len(part)] = part
    return False, np.packbits(bits, bitorder="little").tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class ViewMask:
    """The rows of an object that the table hides: ``hidden`` has one element for each of them."""

    object: ObjectRef
    hidden: Mask

    @property
    def shown(self) -> int:
        """The number of rows that the table shows."""
        return self.object.rows - int(np.count_nonzero(self.hidden))


def view_masks(store: Store, manifest: Manifest, starts: Sequence[int]) -> Iterator[ViewMask]:
    """Yields what the table hides of each object, once per object, even if that is everything.
    ``starts`` are the newest log start offsets: rows below them are hidden at any version.
    """
    objects = {chunk.object.path: chunk.object for _, chunk in manifest.chunks()}
    plans = [plan_table(manifest, p, start) for p, start in enumerate(starts)]
    left = Counter(piece.object.path for plan in plans for piece in _pieces(plan))
    for path in objects.keys() - left.keys():
        yield _all_hidden(objects[path])
    masks: dict[str, ViewMask] = {}
    for plan in plans:
        by_masks = [not plan.dirty and _is_known_by_mask(piece) for piece in _pieces(plan)]
        asked = tuple(p for p, by_mask in zip(plan.clean, by_masks, strict=False) if not by_mask)
        shown = _shown_offsets(store, replace(plan, clean=asked))
        for piece, by_mask in zip(_pieces(plan), by_masks, strict=True):
            path = piece.object.path
            mask = masks.setdefault(path, _all_hidden(piece.object))
            if by_mask:
                end = piece.first_row + piece.rows
                mask.hidden[piece.first_row : end] = _hidden_by_mask(store, plan, piece)
            else:
                mask.hidden[_rows_of(store, plan, piece, shown)] = False
            left[path] -= 1
            if not left[path]:
                yield masks.pop(path)


def read_masks(store: Store, manifest: Manifest, pieces: Sequence[ReadPiece]) -> Iterator[ViewMask]:
    """Yields what a read of these pieces (`scan.plan_range`) leaves out of each of their objects.
    It only reads objects without dense offsets of which the read cuts a chunk: at most two for each
    partition.
    """
    by_object: dict[str, list[ReadPiece]] = {}
    for piece in pieces:
        by_object.setdefault(piece.object.path, []).append(piece)
    chunks = {(p, *chunk.identity): (chunk.base, chunk.next) for p, chunk in manifest.chunks()}
    for path, run in by_object.items():
        mask = _all_hidden(run[0].object)
        with reading(store, manifest.version):
            for piece, dead in zip(run, dead_rows_of(store, run), strict=True):
                left_out = np.zeros(piece.rows, np.bool_) if dead is None else dead
                place = piece.partition, path, piece.first_row
                if not piece.object.dense and (piece.start, piece.end) != chunks[place]:
                    offsets = _stored_offsets(store, piece)
                    left_out = left_out | (offsets < piece.start) | (offsets >= piece.end)
                mask.hidden[piece.first_row : piece.first_row + piece.rows] = left_out
        yield mask


def _is_known_by_mask(piece: ReadPiece) -> bool:
    """Returns whether a piece has a mask, and is known to be cut to its rows."""
    return piece.is_masked and (piece.object.dense or piece.start == piece.base)


def _hidden_by_mask(store: Store, plan: TablePlan, piece: ReadPiece) -> Mask | bool:
    """Returns the rows of a piece that its bitmaps leave out (V0)."""
    with reading(store, plan.version):
        (rows,) = dead_rows_of(store, [piece])
    return False if rows is None else rows


def _all_hidden(obj: ObjectRef) -> ViewMask:
    return ViewMask(obj, np.ones(obj.rows, np.bool_))


def _pieces(plan: TablePlan) -> tuple[ReadPiece, ...]:
    return (*plan.clean, *plan.dirty)


def _shown_offsets(store: Store, plan: TablePlan) -> Offsets:
    """Returns the offsets of a partition's table, ascending (V1)."""
    batches = table_batches(store, plan, columns=("offset",))
    parts = [to_numpy(batch.column("offset")) for batch in batches]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _rows_of(store: Store, plan: TablePlan, piece: ReadPiece, shown: Offsets) -> Offsets:
    """Returns the rows of the object that have any of the offsets within the piece (V2)."""
    low, high = np.searchsorted(shown, (piece.start, piece.end))
    wanted = shown[low:high]
    if piece.object.dense or not len(wanted):
        return wanted - piece.base + piece.first_row
    with reading(store, plan.version):
        offsets = _stored_offsets(store, piece)
    rows = np.searchsorted(offsets, wanted)
    if not np.array_equal(offsets.take(rows, mode="clip"), wanted):
        raise CorruptionError(f"{piece.object.path} of {store.url} has other offsets than before")
    return rows + piece.first_row


def _stored_offsets(store: Store, piece: ReadPiece) -> Offsets:
    """Returns the offsets of all rows of a piece, including dead ones."""
    ranges = [(piece.first_row, piece.rows)]
    read = open_ranges(store, piece.object, ranges, columns=("offset",), schema=piece.schema)
    return np.concatenate([to_numpy(batch.column(0)) for _, _, batch in read(BATCH_ROWS)])
