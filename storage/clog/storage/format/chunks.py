"""Segments and chunks, the atoms of a manifest: their definition, their JSON, and what edits do to
them (FORMAT.md §3.2, §3.3, §4, §5.4, §13).

A *chunk* is a run of rows of one data object, bound to the offsets ``[base, next)`` of one
partition. Its *identity* is (object, first row): the rows keep it when others are trimmed off or
values are set for them. A manifest describes an object well enough to read it without a prior
request to the store.

A *bitmap* has one bit for each row of a chunk, in one zlib stream. A short one is *inline*, in the
manifest; a longer one is a *bitmap file*, written once, which lives as long as its chunk refers to
it. A chunk may have up to three:

- *Dead rows*: readers no longer see them, though their bytes are still there. A later bitmap
  replaces the one before, and includes its rows.
- Its *mask*: the rows that a later record of their key superseded, and the tombstones, since no
  table shows either. A chunk with a mask is *covered*: it was compared with all records before the
  offset up to which its partition is covered. Masks save work: a reader that compares the keys
  instead gets the same table.

`Draft` is a manifest's segments while an edit is applied, and shares what did not change. It
refuses to change a segment that is in a page. Which edits make sense is up to the cleaner.
"""

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from clog.storage.env import dataclass
from clog.storage.errors import CorruptionError
from clog.storage.format.documents import (
    BESIDE,
    FLAG,
    INT,
    KEPT,
    NATURAL,
    NONE,
    PATH,
    Codec,
    Flag,
    Hex,
    Int,
    Natural,
    Path,
    Shown,
    by_partition,
    checked,
    columns,
    dead_path,
    maybe,
    pair,
    record,
    seq,
    tuple_of,
    whole,
)
from clog.storage.format.transactions import (
    ABORTED,
    Ending,
    Marker,
    TransactionName,
    ended,
    find_unended,
)
from clog.storage.store.contract import Store

if TYPE_CHECKING:
    from clog.storage.format.commits import Edit
    from clog.storage.format.erasures import ErasureEntry
    from clog.storage.format.manifest import Manifest

FOOTER_SUM_BYTES: Final = 16
"""Bytes of the footer's XXH3-128, just before an object's Parquet footer. Part of the format."""
INLINE_BYTES_MAX = 1024
"""A longer bitmap is a file, because every snapshot repeats inline ones."""
TIME_MS_MAX = (1 << 63) - 1
"""The latest possible time; any later one counts as this (FORMAT.md §5.3)."""
_OVERHEAD = 12
"""Bytes that each record counts in addition to its content (FORMAT.md §3.3)."""

Rows = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One immutable Parquet object (FORMAT.md §3.3).

    ``size_bytes`` and ``footer_bytes`` let a reader fetch exactly the ranges it needs; ``checksum``
    is the XXH3-128 of all bytes, in hex; ``stamp`` is a version that its writer had read before it
    wrote; ``dense`` means that the offsets of each chunk have no gaps, so there is no ``offset``
    column. ``index_bytes`` is the size of its key index, 0 if it has none.
    """

    path: Path
    size_bytes: Annotated[Natural, "bytes"]
    footer_bytes: Annotated[Natural, "footer"]
    checksum: Annotated[Hex, "xxh3_128"]
    rows: Natural
    stamp: Natural
    dense: Flag
    index_bytes: Annotated[Natural, "index"] = 0

    @property
    def tail(self) -> tuple[int, int]:
        """Its range of bytes from the key index on: index, checksum of the footer, footer."""
        rest = self.index_bytes + FOOTER_SUM_BYTES + self.footer_bytes
        return self.size_bytes - rest, self.size_bytes


OBJECT: Final = record(ObjectRef)
OBJECTS: Final = columns(ObjectRef)


@dataclass(frozen=True, slots=True)
class BitmapFile:
    """The file of a bitmap that is not inline; ``checksum`` is XXH3-128 of its bytes, in hex."""

    path: Path
    size_bytes: Annotated[Int, "bytes"]
    checksum: Annotated[Shown, "xxh3_128"]


def damage(data: bytes, file: ObjectRef | BitmapFile) -> str | None:
    """Returns what is wrong with the complete bytes of a file; None if nothing."""
    if len(data) != file.size_bytes:
        return f"it has {len(data)} bytes, expected {file.size_bytes}"
    found = xxhash.xxh3_128_hexdigest(data)
    return None if found == file.checksum else f"its xxh3_128 is {found}, expected {file.checksum}"


_FILE = record(BitmapFile)
_BITS = Codec(
    lambda bits: {"bits": bits.hex()} if isinstance(bits, bytes) else _FILE.write(bits),
    lambda value: bytes.fromhex(value["bits"]) if "bits" in value else _FILE.read(value),
)


@dataclass(frozen=True, slots=True)
class Bitmap:
    """``rows`` counts the set bits; ``bitmap`` is the zlib stream if it is inline, else a file."""

    rows: Annotated[int, checked(INT, lambda rows: rows >= 1, "a bitmap without rows")]
    bitmap: Annotated[bytes | BitmapFile, _BITS, BESIDE]


_BITMAP = record(Bitmap)


@dataclass(frozen=True, slots=True)
class DeadRows(Bitmap):
    """A chunk's dead rows: ``rows`` of them, the first one since ``since_ms``."""

    since_ms: Int


DEAD: Final = record(DeadRows)


@dataclass(frozen=True, slots=True)
class ChunkMask:
    """The rows of a chunk that tables leave out; None stands for no rows."""

    superseded: Annotated[Bitmap | None, _BITMAP] = None
    tombstones: Annotated[Bitmap | None, _BITMAP] = None

    @property
    def files(self) -> Mapping[str, int]:
        """Path -> bytes of the bitmaps that are files."""
        return files_of(self.superseded, self.tombstones)

    def may_follow(self, before: "ChunkMask | None", chunk_rows: int) -> bool:
        """Returns whether the counts of rows allow it to replace the mask ``before``."""
        old = before or ChunkMask()
        pairs = (old.superseded, self.superseded), (old.tombstones, self.tombstones)
        counts = ([0 if bitmap is None else bitmap.rows for bitmap in pair] for pair in pairs)
        return all(was <= now <= chunk_rows for was, now in counts)


MASK: Final = record(ChunkMask)
_HORIZON = Codec(lambda ms: ms, lambda ms: min(ms, TIME_MS_MAX) if type(ms) is int else whole(ms))
"""A horizon beyond all times is read as `TIME_MS_MAX` (FORMAT.md §5.3)."""
_KeptInt = Annotated[int, INT, KEPT]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows ``[first_row, first_row + rows)`` of ``object``, covering offsets ``[base, next)``.

    ``size_bytes`` is the sum of the record sizes; ``version`` is the newest commit that appended
    any of the rows; ``append_time_ms`` is their timestamp under LogAppendTime. ``horizon_min`` and
    ``horizon_max`` bound the delete horizons of its tombstones; ``horizon`` is that of tombstones
    below ``up_to`` that have none of their own (S23). All of these include the dead rows.
    ``outcome`` is None if its rows count; otherwise the name of their transaction, which has not
    ended, or `ABORTED`, and readers never see the rows.
    """

    object: ObjectRef
    first_row: Annotated[Int, "row"]
    rows: Int
    base: Int
    next: Int
    size_bytes: Annotated[Int, "bytes"]
    first_timestamp_ms: Annotated[Int, "first_ms"]
    max_timestamp_ms: Annotated[Int, "max_ms"]
    tombstones: Int
    version: Int
    append_time_ms: _KeptInt = NONE
    horizon_min: _KeptInt = NONE
    horizon_max: _KeptInt = NONE
    horizon: Annotated[int, _HORIZON, KEPT] = NONE
    up_to: _KeptInt = NONE
    dead: DeadRows | None = None
    outcome: TransactionName | str | None = None
    mask: ChunkMask | None = None

    @property
    def identity(self) -> tuple[str, int]:
        return (self.object.path, self.first_row)

    @property
    def undecided(self) -> TransactionName | None:
        """The transaction of its rows, if that has not ended."""
        return None if self.outcome is None or isinstance(self.outcome, str) else self.outcome

    @property
    def aborted(self) -> bool:
        """Whether its rows were aborted."""
        return self.outcome == ABORTED

    @property
    def live_rows(self) -> int:
        if self.aborted:
            return 0
        return self.rows if self.dead is None else self.rows - self.dead.rows

    @property
    def live_bytes(self) -> int:
        """Record bytes of the rows that are not dead, by their share of the rows: the size of a
        dead row is not known, since only its key was read when it was marked.
        """
        return self.size_bytes * self.live_rows // self.rows

    @property
    def tombstones_left(self) -> int:
        """The least number of tombstones among the rows that are not dead."""
        return max(0, self.tombstones - (self.rows - self.live_rows))

    @property
    def files(self) -> dict[str, int]:
        """Path -> bytes of the files that this chunk keeps alive: its object and its bitmaps."""
        files = {self.object.path: self.object.size_bytes, **files_of(self.dead)}
        return files if self.mask is None else {**files, **self.mask.files}

    def is_but_for_its_mask(self, other: "Chunk | None") -> bool:
        """Returns whether another chunk is the same apart from its mask."""
        return other is not None and replace(self, mask=other.mask) == other

    def checked(self) -> "Chunk":
        """Returns the chunk; ValueError if its rows and numbers are impossible."""
        times = (self.first_timestamp_ms, self.max_timestamp_ms, self.append_time_ms)
        least = min(*times, self.horizon_min, self.horizon_max, self.horizon, self.up_to)
        if not (
            0 <= self.first_row < self.first_row + self.rows <= self.object.rows and self.base >= 0
        ):
            raise ValueError(
                f"a chunk from offset {self.base} on has rows [{self.first_row},"
                f" {self.first_row + self.rows}) of the {self.object.rows} of {self.object.path}"
            )
        if self.rows > self.next - self.base:
            raise ValueError(f"a chunk has {self.rows} rows for offsets [{self.base}, {self.next})")
        if self.size_bytes < _OVERHEAD * self.rows or not 0 <= self.tombstones <= self.rows:
            raise ValueError(
                f"a chunk of {self.rows} rows has {self.size_bytes} bytes,"
                f" {self.tombstones} tombstones"
            )
        if least < NONE or self.version < 0:
            raise ValueError(
                f"a chunk of version {self.version} has the number {least}, below {NONE}"
            )
        return self


CHUNKS: Final = columns(Chunk, made=tuple_of)
"""Chunks without their objects, read as tuples of numbers in the order of `Chunk`'s fields."""


def files_of(*bitmaps: Bitmap | None) -> dict[str, int]:
    """Returns path -> bytes of those bitmaps that are files."""
    files = (b.bitmap for b in bitmaps if b is not None)
    return {f.path: f.size_bytes for f in files if isinstance(f, BitmapFile)}


@dataclass(frozen=True, slots=True)
class _Place:
    """Names a chunk."""

    partition: Int
    object_path: Path
    first_row: Int

    @property
    def place(self) -> tuple[int, tuple[str, int]]:
        """The partition and the chunk's identity."""
        return self.partition, (self.object_path, self.first_row)


@dataclass(frozen=True, slots=True)
class ChunkHorizon(_Place):
    """A delete horizon for tombstones below ``up_to`` of a chunk that was left as it is (S23)."""

    horizon_ms: Annotated[int, _HORIZON]
    up_to: Int


@dataclass(frozen=True, slots=True)
class DeadMark(_Place):
    """The dead rows of a chunk; they replace those it had before, and include them."""

    dead: Annotated[DeadRows, DEAD]


@dataclass(frozen=True, slots=True)
class MaskMark(_Place):
    """The mask of a chunk; it replaces the one it had before, and includes its rows."""

    mask: Annotated[ChunkMask, MASK]


@dataclass(frozen=True, slots=True)
class Append:
    """Fresh chunks as (partition, chunk), object by object, in offset order.

    ``rolls`` are (partition, base, jitter_ms): the active segment is sealed before that chunk.
    ``is_given``: the records came with their offsets (FORMAT.md §16).
    """

    chunks: tuple[tuple[int, Chunk], ...]
    rolls: tuple[tuple[int, int, int], ...] = ()
    is_given: bool = False

    def by_object(self) -> list[list[tuple[int, Chunk]]]:
        """Returns the chunks of each object, in the order of the objects."""
        grouped = groupby(self.chunks, lambda pair: pair[1].object)
        return [list(pairs) for _, pairs in grouped]


_FRESH = ("rows", "base", "bytes", "first_ms", "max_ms", "tombstones")
_ADDED = columns(Chunk, only=_FRESH, made=tuple_of)
_GIVEN = columns(Chunk, only=(*_FRESH, "next"), made=tuple_of)
_ROLLS = seq(pair(NATURAL, NATURAL, NATURAL))


def append_to_json(add: Append) -> dict[str, Any]:
    """Returns an edit's ``add``."""
    columns_of = _GIVEN if add.is_given else _ADDED
    objects = [
        {
            **OBJECT.write(pairs[0][1].object),
            "chunks": {"p": [p for p, _ in pairs], **columns_of.write(c for _, c in pairs)},
        }
        for pairs in add.by_object()
    ]
    out: dict[str, Any] = {"objects": objects, "rolls": _ROLLS.write(add.rolls)}
    if add.is_given:
        out["given"] = True
    if add.chunks and (append_time_ms := add.chunks[0][1].append_time_ms) != NONE:
        out["append_time_ms"] = append_time_ms
    return out


def append_from_json(value: dict[str, Any], *, version: int) -> Append:
    """Returns the append in the edit of commit ``version``; raises as codecs do."""
    append_time_ms = whole(value.get("append_time_ms", NONE))
    is_given = FLAG.read(value.get("given", False))
    chunks = []
    for entry in value["objects"]:
        ref, first_row, lists = OBJECT.read(entry), 0, entry["chunks"]
        partitions = [whole(p) for p in lists["p"]]
        found = _GIVEN.read(lists) if is_given else map(_with_next, _ADDED.read(lists))
        for p, numbers in zip(partitions, found, strict=True):
            rows, base, end, size, first_ms, max_ms, tombstones = numbers
            if append_time_ms != NONE and not first_ms == max_ms == append_time_ms:
                raise ValueError(f"times {first_ms} and {max_ms} of an append at {append_time_ms}")
            sizes = (first_row, rows, base, end, size)
            times = (first_ms, max_ms, tombstones, version, append_time_ms)
            chunks.append((p, Chunk(ref, *sizes, *times).checked()))
            first_row += rows
        if first_row != ref.rows:
            raise ValueError(f"chunks of {ref.path} have {first_row} rows, the object {ref.rows}")
    return Append(tuple(chunks), _ROLLS.read(value["rolls"]), is_given)


def _with_next(numbers: tuple[int, ...]) -> tuple[int, ...]:
    rows, base, *others = numbers
    return rows, base, base + rows, *others


def _chunks_to_json(chunks: Iterable[Chunk]) -> list[dict[str, Any]]:
    grouped = groupby(chunks, lambda chunk: chunk.object)
    return [{**OBJECT.write(ref), "chunks": CHUNKS.write(some)} for ref, some in grouped]


def _chunks_from_json(value: list[dict[str, Any]]) -> tuple[Chunk, ...]:
    chunks: list[Chunk] = []
    for entry in value:
        ref = OBJECT.read(entry)
        chunks.extend(Chunk(ref, *row).checked() for row in CHUNKS.read(entry["chunks"]))
    return tuple(chunks)


_SOURCE = pair(PATH, NATURAL)
_TILE = pair(NATURAL, NATURAL, checked(INT, lambda ms: ms >= NONE, "a segment's time"))


@dataclass(frozen=True, slots=True)
class Replacement:
    """``chunks`` replace the ``sources`` (identities) in ``[base, next)`` of a partition.

    ``segments`` (base, next, created_ms), if given, divide the range anew.
    """

    partition: Annotated[Natural, "p"]
    base: Natural
    next: Natural
    sources: Annotated[tuple[tuple[str, int], ...], seq(_SOURCE)]
    chunks: Annotated[tuple[Chunk, ...], Codec(_chunks_to_json, _chunks_from_json), "objects"]
    segments: Annotated[tuple[tuple[int, int, int], ...] | None, maybe(seq(_TILE))] = None


@dataclass(frozen=True, slots=True)
class Uncleanable:
    """Why a partition is not cleaned for now (S28)."""

    reason: Shown
    time_ms: Int
    attempts: Natural


UNCLEANABLE: Final = by_partition(maybe(record(Uncleanable)), is_sorted=False)


@dataclass(frozen=True, slots=True)
class Segment:
    """Offsets ``[base, next)`` of one partition.

    ``created_ms`` is the time of the commit that added its first chunk, -1 while it is empty.
    """

    base: int
    next: int
    created_ms: int
    chunks: tuple[Chunk, ...]

    @property
    def rows(self) -> int:
        """Records that readers see, including those below the log start."""
        return sum(c.live_rows for c in self.chunks)

    @property
    def dead_rows(self) -> int:
        """Rows marked dead whose bytes are still there."""
        return sum(c.rows - c.live_rows for c in self.chunks)

    @property
    def size_bytes(self) -> int:
        """Record bytes of the rows that are not dead (decision 0006)."""
        return sum(c.live_bytes for c in self.chunks)

    @property
    def max_timestamp_ms(self) -> int:
        """Largest timestamp of its records; its commit time if it has none (S11)."""
        return max((c.max_timestamp_ms for c in self.chunks), default=self.created_ms)

    @property
    def first_timestamp_ms(self) -> int:
        return self.chunks[0].first_timestamp_ms if self.chunks else self.created_ms


@dataclass(frozen=True, slots=True)
class Released:
    """An object that lost a chunk in ``version`` (FORMAT.md §6)."""

    path: Path
    size_bytes: Annotated[Natural, "bytes"]
    version: Natural
    time_ms: Natural


def write_bitmap(store: Store, rows: Rows, path: Callable[[], str]) -> Bitmap:
    """Stores a bitmap with one element per row; one PUT to a new ``path`` if it is not inline."""
    data = zlib.compress(np.packbits(rows, bitorder="little").tobytes(), 9)
    count = int(np.count_nonzero(rows))
    if len(data) <= INLINE_BYTES_MAX:
        return Bitmap(count, data)
    file = BitmapFile(path(), len(data), xxhash.xxh3_128_hexdigest(data))
    store.put(file.path, data)
    return Bitmap(count, file)


def write_dead_rows(
    store: Store, dead: Rows, *, since_ms: int, stamp: int, new_id: Callable[[], str]
) -> DeadRows:
    """Stores a chunk's dead rows, one element per row; one PUT if they are not inline (§6)."""
    written = write_bitmap(store, dead, lambda: dead_path(stamp, new_id()))
    return DeadRows(written.rows, written.bitmap, since_ms)


def read_bitmap(store: Store, bitmap: Bitmap, chunk_rows: int) -> Rows:
    """Returns which of the chunk's rows have their bit set; one GET if it is not inline."""
    if isinstance(bitmap.bitmap, bytes):
        return _unpacked(bitmap.bitmap, bitmap.rows, chunk_rows, f"a bitmap of {store.url}")
    file = bitmap.bitmap
    where = f"{file.path} of {store.url}"
    data = store.get(file.path, 0, file.size_bytes + 1)
    if (why := damage(data, file)) is not None:
        raise CorruptionError(f"{where} is damaged: {why}")
    return _unpacked(data, bitmap.rows, chunk_rows, where)


def _unpacked(data: bytes, rows: int, chunk_rows: int, where: str) -> Rows:
    stream = zlib.decompressobj()
    expected = (chunk_rows + 7) // 8
    try:
        packed = stream.decompress(data, expected + 1)
    except zlib.error as e:
        raise CorruptionError(f"{where} does not inflate: {e}") from e
    if len(packed) != expected or not stream.eof or stream.unused_data:
        raise CorruptionError(f"{where} is not the bitmap of {chunk_rows} rows")
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    if bits[chunk_rows:].any() or np.count_nonzero(bits) != rows:
        raise CorruptionError(
            f"{where} marks {np.count_nonzero(bits)} of {chunk_rows} rows, expected {rows}"
        )
    return bits[:chunk_rows].view(np.bool_)


_Mark = TypeVar("_Mark", ChunkHorizon, DeadMark, MaskMark)


class Draft:
    """The manifest's segments while an edit is applied; each part has a method of its name."""

    def __init__(self, manifest: "Manifest", edit: "Edit", time_ms: int) -> None:
        self.manifest = manifest
        self.edit = edit
        self.version = manifest.version + 1
        self.time_ms = time_ms
        self.segments = list(manifest.segments)
        self.first_dirty = list(manifest.first_dirty)
        self.covered = list(manifest.covered or [0] * manifest.head.log.partitions)
        self.uncleanable: dict[int, Uncleanable | None] = dict(manifest.uncleanable)
        self.steps = manifest.tombstones_removed
        self.orders = manifest.orders_removed
        self.erasures: dict[str, ErasureEntry | None] = dict(manifest.erasures)
        self.released: dict[str, Released] = {}
        self.forgotten: set[str] = set()
        self.unended = manifest.head.unended
        self.markers: list[Marker] = []

    def reach(self, offsets: Mapping[int, int]) -> None:
        for p, offset in offsets.items():
            *sealed, active = self.segments[p]
            self.segments[p] = (*sealed, replace(active, next=offset))

    def start(self, offsets: Mapping[int, int]) -> None:
        for p, offset in offsets.items():
            self.first_dirty[p] = max(self.first_dirty[p], offset)

    def seal(self, given: Sequence[tuple[int, int]]) -> None:
        for p, _ in given:
            self._roll(p, self.segments[p][-1].next)

    def drop(self, bases: Mapping[int, int]) -> None:
        for p, base in bases.items():
            self._need_unpaged(p, 0)
            gone = [s for s in self.segments[p][:-1] if s.next <= base]
            self._release([c.files for s in gone for c in s.chunks])
            self.segments[p] = self.segments[p][len(gone) :]

    def replace(self, given: Sequence[Replacement]) -> None:
        for r in given:
            self._replace(r)

    def horizons(self, given: Sequence[ChunkHorizon]) -> None:
        """Sets the horizons of chunks that have none."""

        def with_horizon(c: Chunk, h: ChunkHorizon) -> Chunk | None:
            return replace(c, horizon=h.horizon_ms, up_to=h.up_to) if c.horizon == NONE else None

        self._mark(
            given,
            with_horizon,
            "delete horizons are given to a chunk that does not exist or already has one",
        )

    def dead(self, given: Sequence[DeadMark]) -> None:
        """Sets the dead rows of sealed chunks; files of older bitmaps are released."""
        active = {mark.partition: self.segments[mark.partition][-1].chunks for mark in given}

        def with_dead(c: Chunk, mark: DeadMark) -> Chunk | None:
            dead, before = mark.dead, c.dead or mark.dead
            fits = before.rows <= dead.rows < c.rows and before.since_ms == dead.since_ms
            if c in active[mark.partition] or c.outcome is not None or not fits:
                return None
            return replace(c, dead=dead)

        self._mark(
            given,
            with_dead,
            "bitmaps of dead rows are given to a chunk that does not exist or is not sealed, or"
            " do not fit its present one",
        )

    def ends(self, given: Sequence[Ending]) -> None:
        """Decides the chunks of transactions, and adds a marker to each of their partitions."""
        for ending in given:
            name, entry = ending.name, find_unended(self.unended, ending.name)
            self.unended = ended(self.unended, ending)
            for p in sorted(() if entry is None else entry.first):
                outcome = ABORTED if ending.outcome == ABORTED else None
                segments = [_decided(s, name, outcome) for s in self.segments[p]]
                offset = segments[-1].next
                marker = Marker(p, offset, name.id, name.epoch, name.number, ending.outcome)
                segments[-1] = replace(segments[-1], next=offset + 1)
                self.segments[p] = tuple(segments)
                self.markers.append(marker)

    def masks(self, given: Sequence[MaskMark]) -> None:
        """Sets the masks of chunks; the files of older masks are released."""

        def with_mask(c: Chunk, mark: MaskMark) -> Chunk | None:
            covered = self.edit.covered.get(mark.partition, self.covered[mark.partition])
            fits = c.next <= covered and mark.mask.may_follow(c.mask, c.rows)
            return replace(c, mask=mark.mask) if fits else None

        self._mark(
            given,
            with_mask,
            "masks are given to a chunk that does not exist or is not covered, or do not fit its"
            " present one",
        )

    def cover(self, offsets: Mapping[int, int]) -> None:
        """Sets the offset up to which partitions are covered; 0 removes all their masks."""
        for p, offset in offsets.items():
            before, end = self.covered[p], self.manifest.head.stable_offset(p)
            if offset and not before <= offset <= end:
                raise CorruptionError(
                    f"partition {p}: masks cover offsets up to {offset}, which is outside"
                    f" [{before}, {end}]"
                )
            self.covered[p] = offset
        uncovered = {p for p, offset in offsets.items() if offset == 0}
        self._change(uncovered, lambda _, c: None if c.mask is None else replace(c, mask=None))

    def set_first_dirty(self, offsets: Mapping[int, int]) -> None:
        for p, offset in offsets.items():
            self.first_dirty[p] = offset

    def remove_tombstones(self, highest: Mapping[int, int]) -> None:
        """Adds steps of S41; they replace those of the partition that are not higher."""
        kept = [step for step in self.steps if step[0] not in highest or step[2] > highest[step[0]]]
        fresh = ((p, self.version, offset) for p, offset in sorted(highest.items()))
        self.steps = (*kept, *fresh)

    def remove_orders(self, given: Mapping[int, Sequence[tuple[int, int]]]) -> None:
        """Sets the pairs (order of removed tombstones, end offset) of partitions."""
        kept = (pair for pair in self.orders if pair[0] not in given)
        fresh = ((p, order, end) for p, pairs in given.items() for order, end in pairs)
        self.orders = tuple(sorted((*kept, *fresh), key=itemgetter(0, 2)))

    def add(self, add: Append) -> None:
        """Appends chunks; those of a transaction that has not ended name it."""
        names = {
            chunk.object.path: joining.entry.name
            for joining in self.edit.unended
            for _, chunk in self.edit.chunks_of(joining)
        }
        rolls = {(p, base) for p, base, _ in add.rolls}
        fresh: dict[int, list[Chunk]] = {}
        for p, chunk in add.chunks:
            if (p, chunk.base) in rolls:
                self._extend(p, fresh.pop(p, []))
                self._roll(p, chunk.base)
            name = names.get(chunk.object.path)
            fresh.setdefault(p, []).append(chunk if name is None else replace(chunk, outcome=name))
        for p, chunks in fresh.items():
            self._extend(p, chunks)

    def _roll(self, p: int, base: int) -> None:
        self.segments[p] = (*self.segments[p], Segment(base, base, NONE, ()))

    def _extend(self, p: int, chunks: list[Chunk]) -> None:
        if chunks:
            active = self.segments[p][-1]
            created_ms = self.time_ms if active.created_ms == NONE else active.created_ms
            grown = (*active.chunks, *chunks)
            segment = Segment(active.base, chunks[-1].next, created_ms, grown)
            self.segments[p] = (*self.segments[p][:-1], segment)

    def _replace(self, r: Replacement) -> None:
        self._need_unpaged(r.partition, r.base)
        segments = self.segments[r.partition]
        first = _index_at(segments, r.base)
        last = _index_at(segments, max(r.base, r.next - 1))
        touched = segments[first : last + 1]
        old = [c for s in touched for c in s.chunks]
        inside = [c for c in old if r.base <= c.base and c.next <= r.next]
        reaching_in = sum(c.base < r.next and c.next > r.base for c in old)
        if tuple(c.identity for c in inside) != r.sources or reaching_in != len(inside):
            raise CorruptionError(
                f"partition {r.partition}: a replacement of [{r.base}, {r.next}) does not name"
                f" exactly the {len(inside)} chunks in it"
            )
        _check_tiling(r, touched)
        if last == len(segments) - 1:
            _check_kept(r, inside)
        tiles = r.segments or tuple((s.base, s.next, s.created_ms) for s in touched)
        before = [c for c in old if c.next <= r.base]
        after = [c for c in old if c.base >= r.next]
        new = _with_marks(r, inside)
        made = _cut([*before, *new, *after], tiles, r.partition)
        self.segments[r.partition] = (*segments[:first], *made, *segments[last + 1 :])
        kept = {path for c in new for path in c.files}
        files = [{path: n for path, n in c.files.items() if path not in kept} for c in inside]
        self._release(files)

    def _mark(
        self, given: Sequence[_Mark], change: Callable[[Chunk, _Mark], Chunk | None], wrong: str
    ) -> None:
        """Replaces each marked chunk by the result of ``change`` for it and its mark."""
        wanted = {mark.place: mark for mark in given}

        def marked(p: int, c: Chunk) -> Chunk | None:
            mark = wanted.get((p, c.identity))
            return None if mark is None else change(c, mark)

        changed = self._change({mark.partition for mark in given}, marked)
        if changed != len(given):
            raise CorruptionError(f"{len(given) - changed} of {len(given)} {wrong}")

    def _change(self, partitions: set[int], change: Callable[[int, Chunk], Chunk | None]) -> int:
        """Replaces the chunks for which ``change`` returns another one; returns their number."""
        count, files = 0, []
        for p in partitions:
            segments = list(self.segments[p])
            for i, segment in enumerate(segments):
                made = [change(p, c) for c in segment.chunks]
                if changes := sum(c is not None for c in made):
                    chunks = tuple(new or c for new, c in zip(made, segment.chunks, strict=True))
                    segments[i] = replace(segment, chunks=chunks)
                    count += changes
                for old, new in zip(segment.chunks, made, strict=True):
                    if new is not None:
                        kept = new.files
                        files.append({path: n for path, n in old.files.items() if path not in kept})
            self.segments[p] = tuple(segments)
        self._release(files)
        return count

    def _release(self, files: list[dict[str, int]]) -> None:
        objects = {path: size for some in files for path, size in some.items()}
        for path, size in objects.items():
            self.released.pop(path, None)
            self.released[path] = Released(path, size, self.version, self.time_ms)

    def _need_unpaged(self, p: int, base: int) -> None:
        if base < self.manifest.paged_below(p):
            raise AssertionError(f"partition {p} is paged at {base}; unpage it first")


def _index_at(segments: tuple[Segment, ...], offset: int) -> int:
    """Returns the index of the segment with the offset; the first one for any lower offset."""
    return max(0, bisect_right(segments, offset, key=lambda s: s.base) - 1)


def _check_tiling(r: Replacement, touched: tuple[Segment, ...]) -> None:
    """Raises unless the chunks are in order in the range, and segments, if given, tile it."""
    edges = [r.base, *(offset for c in r.chunks for offset in (c.base, c.next)), r.next]
    if r.base >= r.next or edges != sorted(edges):
        raise CorruptionError(
            f"partition {r.partition}: chunks of a replacement are not in order within [{r.base},"
            f" {r.next})"
        )
    if r.segments is None:
        return
    ends = [r.base, *(end for _, end, _ in r.segments)]
    bases = [*(base for base, _, _ in r.segments), r.next]
    empty = any(base >= end for base, end, _ in r.segments)
    if empty or ends != bases or (touched[0].base, touched[-1].next) != (r.base, r.next):
        raise CorruptionError(
            f"partition {r.partition}: segments {r.segments} do not tile [{r.base}, {r.next})"
        )


def _check_kept(r: Replacement, inside: list[Chunk]) -> None:
    """Raises unless a replacement in the active segment keeps every record."""
    before, after = (
        (sum(c.rows for c in chunks), sum(c.size_bytes for c in chunks))
        for chunks in (inside, r.chunks)
    )
    if before != after:
        raise CorruptionError(
            f"partition {r.partition}: a replacement in the active segment has {after[0]} records"
            f" of {after[1]} bytes, but removes {before[0]} of {before[1]}"
        )


def _with_marks(r: Replacement, inside: list[Chunk]) -> list[Chunk]:
    """Returns the new chunks with the marks of the old; masks only if as many rows are left."""
    if any(c.undecided for c in inside):
        raise CorruptionError(
            f"partition {r.partition}: a replacement of [{r.base}, {r.next}) changes a chunk that"
            " is undecided"
        )
    marked = {c.identity: c for c in inside if c.dead is not None or c.aborted}
    before = {c.identity: c for c in inside}
    objects = {c.object.path for c in marked.values()}
    made = []
    for c in r.chunks:
        old = marked.get(c.identity)
        if (old is None and c.object.path in objects) or (old is not None and old.rows != c.rows):
            raise CorruptionError(
                f"partition {r.partition}: a replacement refers to part of {c.object.path}, which"
                " has dead rows or was aborted"
            )
        marks = (None, None) if old is None else (old.dead, old.outcome)
        same = before.get(c.identity)
        mask = same.mask if same is not None and same.rows == c.rows else None
        made.append(replace(c, dead=marks[0], outcome=marks[1], mask=mask))
    return made


def _cut(
    chunks: list[Chunk], tiles: tuple[tuple[int, int, int], ...], partition: int
) -> list[Segment]:
    """Returns the chunks, divided into the given segments; each chunk is in exactly one."""
    made, at = [], 0
    for base, end, created_ms in tiles:
        mine = []
        while at < len(chunks) and chunks[at].next <= end:
            if chunks[at].base < base:
                break
            mine.append(chunks[at])
            at += 1
        made.append(Segment(base, end, created_ms, tuple(mine)))
    if at != len(chunks):
        raise CorruptionError(f"partition {partition}: chunks do not fit the segments {tiles}")
    return made


def _decided(segment: Segment, name: TransactionName, outcome: str | None) -> Segment:
    """Returns the segment with the outcome of a transaction."""
    if all(c.outcome != name for c in segment.chunks):
        return segment
    chunks = tuple(replace(c, outcome=outcome) if c.outcome == name else c for c in segment.chunks)
    return replace(segment, chunks=chunks)
