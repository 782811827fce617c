"""The local file of a state table: rows whose content is proven, and an index that proves which
keys are missing (decision 0069). Its users know `LocalFile`, and rows as bytes.

The storage README has the format to the byte: rows, runs, levels with an index in buckets, footers,
and a header of two slots. The file is only ever appended to. Of the rows of a key and a partition
the one in the newest level counts; a row without a value means that the key is deleted.

Everything that is read is compared with a checksum known before, from the header down: a changed
byte or sector, or a missing end, raises `DamagedCacheError`. So does an intact row in the place of
another, found by the hash that led there, or by the order of its run. Nothing is mapped into
memory, where a truncated file would kill the process.

L1. Enter: everything after the current footer, left by a process that was killed, is cut off.
L2. A level is appended for the rows that waited, and one for the new ones.
L3. The newest levels are merged into one, as long as the one before them has at most twice their
    bytes; so there are few. Their old bytes stay where they are.
L4. The footer is appended, and everything is synced.
L5. A slot of the header names it: now it is current. A crash before that changes nothing.

A process that has the file open looks at its size: if that is not where its footer ended, it reads
the header. What it has read does not change in the file, so look-ups and scans need no lock: each
continues with the levels that were current when it began. Once most of the file is obsolete, a new
one is built from it, and the header of the old one says so to processes that have it open.
"""

import errno
import json
import os
import struct
import weakref
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from heapq import merge
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from clog.storage.env import dataclass
from clog.storage.format.log_info import LogSchema, schema_from_json, schema_to_json
from clog.storage.numpy_arrays import Mask, of_bytes, of_numbers, to_arrow, to_numpy

Row = tuple[bytes, int, int, int, bytes | None]
"""Key, partition, offset, timestamp in µs, value."""
Rows = Iterable[Iterable[Row]]
COLUMNS = ("key", "partition", "offset", "timestamp", "value")
"""The columns of a `Row`."""
Found = tuple[int, int, bytes]
"""Timestamp, partition and value of a row that was found."""
Place = tuple[int, int, int]
"""Where something begins, its size in bytes, and its xxh3_64."""

SCHEMA = 6
"""The version of the format; a file with another one is rebuilt."""
_MAGIC = b"clogstat"
_SLOT = struct.Struct("<8sQQQQQ")
"""Magic, number, place of the footer, xxh3_64 of these."""
_SLOT_BYTES = 64
HEADER_BYTES = 2 * _SLOT_BYTES
_ROW = struct.Struct("<QIIiqq")
_CHECKSUM_BYTES = 8
_NUMBERS = np.dtype(
    [("key", "<u4"), ("value", "<u4"), ("partition", "<i4"), ("offset", "<i8"), ("time", "<i8")]
)
"""The lengths of a row's key and value, and where the row is from."""
_NO_NUMBERS = np.empty(0, _NUMBERS)
_GONE = 0xFFFF_FFFF
"""In place of the length of a value: the row has none."""
_LOW = 0xFFFF_FFFF
"""The bits of a key's hash in its index entry; the high ones lead to the bucket."""
_ENTRY = np.dtype([("hash", "<u4"), ("length", "<u4"), ("at", "<u8")])
_ENTRY_BYTES = _ENTRY.itemsize
_entry_of = struct.Struct("<IQ").unpack_from
_U32 = struct.Struct("<I")
_BUCKET_ROWS = 32
_PART_ROWS = 1 << 20
"""Rows of an index that are sorted together."""
_MARK_ROWS = 256
"""Of each run, the place of every 256th row is kept."""
PIECE_BYTES = 16 << 20
"""About this many bytes of rows are sorted, and become a run."""
_SCAN_BYTES = 64 << 10
"""A scan holds this much of each run; of a longer row only the key, until it is yielded."""
_SHARES = 8
"""Parts of a piece, whose ends become candidates for the bounds of pieces."""
_BASE_FACTOR = 2
_GARBAGE_FACTOR = 4
SMALL_BYTES = 4 << 20
"""A smaller file is never rebuilt to drop obsolete rows."""
_AT_ONCE = 50_000
_EMPTY = of_bytes([b""])[0]
_NOTHING = of_bytes([b""]).cast(pa.large_binary())[0]
_OF_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
_OF_FILE = frozenset({errno.EIO, errno.EINVAL})
_ODD = (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""Errors of reading a footer or a directory that another program wrote, with valid checksums."""
_DELETED = "it was deleted or replaced"
_ELSEWHERE = "a row is in the place of another"


class DamagedCacheError(Exception):
    """The file is not as it was written, or no longer current; it must be replaced."""


@dataclass(frozen=True, slots=True)
class Position:
    """The state that the rows show: a version of a log, made by this commit, up to ``offsets``,
    exclusive, with ``starts`` as the log starts. ``schema`` is the log's at that version, and
    ``order`` the order of records of a key: empty for offsets.
    """

    log_id: str
    version: int
    commit_id: str
    offsets: Mapping[int, int]
    starts: Mapping[int, int]
    schema: LogSchema | None = None
    order: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """The places of rows in the order of their keys, of their lengths, and of every 256th row."""

    at: int
    size: int
    rows: int
    lengths_at: int
    marks: Sequence[int]


@dataclass(frozen=True, slots=True)
class Level:
    """Runs and their index: ``starts`` has each bucket's first entry, ``sums`` its xxh3_64."""

    place: Place
    index_at: int
    shift: int
    starts: Sequence[int]
    sums: Sequence[int]
    runs: tuple[Run, ...]

    @property
    def size(self) -> int:
        """The bytes of its rows."""
        return sum(run.size for run in self.runs)


@dataclass(frozen=True, slots=True)
class Shown:
    """The content of a file, newest level first. The file ends at ``end`` while this is current."""

    header: bytes
    number: int
    end: int
    position: Position
    levels: tuple[Level, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Keys, rows in the form they have in the file, and their numbers, until they are sorted."""

    keys: pa.Array
    rows: pa.Array
    numbers: NDArray[Any]


class _Descriptor:
    """An open file, closed once nothing reads it."""

    def __init__(self, number: int) -> None:
        self.number = number
        weakref.finalize(self, os.close, number)


class _Closed:
    number = -1


class LocalFile:
    """One file of a state table, complete and in its place when it is opened. Threads, and forked
    children, may share it; one process at a time may `apply`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._held: _Descriptor | _Closed = _Descriptor(unlinked(path, os.O_RDONLY))
        except FileNotFoundError:
            raise DamagedCacheError(_DELETED) from None
        self._shown = self._load(self._read(0, HEADER_BYTES), {})

    @staticmethod
    def build(path: Path, position: Position, pieces: Iterable[Piece]) -> None:
        """Writes a new file without syncing it: nothing reads what a crash leaves."""
        with path.open("xb", buffering=0) as file:
            out = _Appender(file.fileno(), HEADER_BYTES)
            level = _append_level(out, pieces)
            _point(out, 0, _append_footer(out, position, [] if level is None else [level]))
            if not is_at(path, file.fileno()):
                raise DamagedCacheError("it was deleted while it was being built")

    def close(self) -> None:
        self._held = _Closed()

    def is_in_place(self) -> bool:
        """Returns whether it is the file at its path."""
        return is_at(self._path, self._held.number)

    def is_due(self) -> bool:
        """Returns whether it should be rebuilt from its own rows: they are a small part of it, or
        would be if they were merged into one level here.
        """
        levels = self.shown().levels
        size = sum(level.size for level in levels)
        is_full = self._shown.end > SMALL_BYTES + _GARBAGE_FACTOR * size
        return is_full or (size > SMALL_BYTES and len(levels) == _mergeable(levels) > 1)

    def shown(self) -> Shown:
        """Returns the current content of the file."""
        shown = self._shown
        if os.lseek(self._held.number, 0, os.SEEK_END) != shown.end:
            header = self._read(0, HEADER_BYTES)
            if header != shown.header:
                known = {level.place: level for level in shown.levels}
                shown = self._shown = self._load(header, known)
        return shown

    def rows_of(self, key: bytes, shown: Shown | None = None) -> list[Found]:
        """Returns the rows of a key."""
        shown = self.shown() if shown is None else shown
        hashed, starts = xxh3_64_intdigest(key), shown.position.starts
        low = _U32.pack(hashed & _LOW)
        newer: list[int] = []
        found: list[Found] = []
        for level in shown.levels:
            bucket, at = hashed >> level.shift, -1
            first, end = level.starts[bucket : bucket + 2]
            size = (end - first) * _ENTRY_BYTES
            entries = self._read(level.index_at + first * _ENTRY_BYTES, size)
            if xxh3_64_intdigest(entries) != level.sums[bucket]:
                raise DamagedCacheError("a part of its index is damaged")
            while (at := entries.find(low, at + 1)) >= 0:
                if at % _ENTRY_BYTES:
                    continue
                length, place = _entry_of(entries, at + 4)
                other, partition, offset, timestamp, value = _row_of(self._read(place, length))
                if other != key:
                    if xxh3_64_intdigest(other) & _LOW != hashed & _LOW:
                        raise DamagedCacheError(_ELSEWHERE)
                elif partition not in newer:
                    newer.append(partition)
                    if value is not None and offset >= _start_of(partition, starts):
                        found.append((timestamp, partition, value))
        return found

    def rows(
        self, shown: Shown, low: bytes = b"", high: bytes | None = None
    ) -> Iterator[tuple[bytes, int, int, bytes]]:
        """Yields key, timestamp, partition, value of the rows in ``[low, high)``, None: all."""
        starts = shown.position.starts
        runs = [
            self._rows_from(run, low, number)
            for number, level in enumerate(shown.levels)
            for run in level.runs
        ]
        before = None
        for key, partition, _, offset, timestamp, value, long in merge(*runs):
            if high is not None and key >= high:
                return
            is_newest, before = (key, partition) != before, (key, partition)
            if is_newest and value is not None and offset >= _start_of(partition, starts):
                whole = value if long is None else self._row_at(*long)[4] or b""
                yield key, timestamp, partition, whole

    def pieces(self) -> Iterator[Piece]:
        """Yields all current rows, in the order of their keys, for a new file."""
        shown = self.shown()
        yield from self._merged(shown.levels, shown.position.starts, is_last=True)

    def apply(
        self,
        position: Position,
        waiting: Sequence[Row],
        rows: Rows,
        committing: AbstractContextManager[None],
    ) -> None:
        """Enters the waiting rows, in the order of their keys, then ``rows``, those without a value
        as deletions; drops rows below the log start, and moves to the position; all or nothing
        (L1 to L5).
        """
        shown = self.shown()
        with open(self._path, "r+b", buffering=0, opener=unlinked) as file:
            if not os.path.samestat(os.fstat(file.fileno()), os.fstat(self._held.number)):
                raise DamagedCacheError(_DELETED)
            os.ftruncate(file.fileno(), shown.end)
            out = _Appender(file.fileno(), shown.end)
            levels = list(shown.levels)
            for entered in ((waiting,), rows):
                if level := _append_level(out, sorted_pieces(_batches(entered))):
                    levels.insert(0, level)
            count = _mergeable(levels)
            is_last = count == len(levels)
            if count > 1 and not (is_last and sum(one.size for one in levels) > SMALL_BYTES):
                merged = self._merged(levels[:count], position.starts, is_last=is_last)
                level = _append_level(out, merged)
                levels = [*([] if level is None else [level]), *levels[count:]]
            footer = _append_footer(out, position, levels)
            getattr(os, "fdatasync", os.fsync)(file.fileno())  # macOS has none.
            with committing:
                header = _point(out, shown.number + 1, footer, shown.header)
                self._shown = Shown(header, shown.number + 1, out.at, position, tuple(levels))

    def _merged(
        self, levels: Sequence[Level], starts: Mapping[int, int], *, is_last: bool
    ) -> Iterator[Piece]:
        """Yields the current rows of levels, newest first; without deletions if ``is_last``."""
        runs = [run for level in reversed(levels) for run in level.runs]
        bounds = sorted(key for run in runs for key in self._bounds(run))
        begun, low = [(0, run.at) for run in runs], b""
        for high in [*bounds[_SHARES - 1 :: _SHARES], None]:
            ended = [self._below(run, high) for run in runs]
            slices = map(self._slice, runs, begun, ended)
            if some := [piece for piece in slices if piece is not None]:
                for piece in some:
                    _check_order(piece, low, high)
                yield _sorted(some, starts, is_last=is_last)
            begun, low = ended, high or low

    def _bounds(self, run: Run) -> list[bytes]:
        """Returns the keys at which each share of a piece ends."""
        ends = self._ends(run, 0, run.rows)
        rows = np.flatnonzero(np.diff(ends // (PIECE_BYTES // _SHARES)))
        return [self._key_at(run.at + place) for place in ends[rows].tolist()]

    def _below(self, run: Run, key: bytes | None) -> tuple[int, int]:
        """Returns how many rows have a smaller key, None: all, and where they end."""
        if key is None:
            return run.rows, run.at + run.size
        mark = max(0, self._marks_below(run, key) - 1)
        first = mark * _MARK_ROWS
        ends = self._ends(run, first, min(run.rows, first + _MARK_ROWS)) + run.marks[mark]
        row = bisect_left(ends[:-1].tolist(), key, key=self._key_at)
        return first + row, int(ends[row])

    def _ends(self, run: Run, first: int, stop: int) -> NDArray[np.int64]:
        """Returns where each row begins, and the last one ends, relative to the first."""
        data = self._read(run.lengths_at + 4 * first, 4 * (stop - first))
        ends = np.zeros(stop - first + 1, np.int64)
        np.cumsum(np.frombuffer(data, "<u4"), out=ends[1:])
        return ends

    def _key_at(self, place: int) -> bytes:
        """Returns the key of a row, whose checksum is compared later."""
        (size,) = _U32.unpack(self._read(place + _CHECKSUM_BYTES, _U32.size))
        return self._read(place + _ROW.size, size)

    def _slice(self, run: Run, begin: tuple[int, int], end: tuple[int, int]) -> Piece | None:
        """Returns the rows between two positions, each a row number and where that row begins."""
        (first, at), (stop, behind) = begin, end
        if first >= stop:
            return None
        ends = self._ends(run, first, stop)
        if ends[-1] != behind - at:
            raise DamagedCacheError("the lengths of its rows are damaged")
        data = self._read(at, behind - at)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
        rows = pa.Array.from_buffers(pa.large_binary(), stop - first, buffers)
        listed = rows.to_pylist()
        sums = np.fromiter(map(xxh3_64_intdigest, [row[_CHECKSUM_BYTES:] for row in listed]), "<u8")
        heads = b"".join([row[: _ROW.size] for row in listed])
        if len(heads) != len(listed) * _ROW.size:
            raise DamagedCacheError("a row is shorter than the shortest possible one")
        table = np.frombuffer(heads, np.dtype([("sum", "<u8"), ("numbers", _NUMBERS)]))
        if (table["sum"] != sums).any():
            raise DamagedCacheError("the xxh3_64 of a row does not match the stored one")
        numbers = table["numbers"]
        keys = [
            row[_ROW.size : _ROW.size + n]
            for row, n in zip(listed, numbers["key"].tolist(), strict=True)
        ]
        return Piece(of_bytes(keys), rows, numbers)

    def _rows_from(
        self, run: Run, low: bytes, number: int
    ) -> Iterator[tuple[bytes, int, int, int, int, bytes | None, tuple[int, int] | None]]:
        """Yields the rows of a run from a key on, with the level; of a long row only the place."""
        at, behind, before = self._begin(run, low), run.at + run.size, (low, -1)
        while at < behind:
            data, begin = self._read(at, min(_SCAN_BYTES, behind - at)), 0
            while (end := begin + _length_of(data, begin)) <= len(data):
                key, partition, offset, timestamp, value = _row_of(data[begin:end])
                before = _next(before, (key, partition))
                yield key, partition, number, offset, timestamp, value, None
                begin = end
            if not begin:
                if end > behind - at:
                    raise DamagedCacheError("the length of a row is damaged")
                begin = end
                key, partition, offset, timestamp, value = self._row_at(at, end)
                before = _next(before, (key, partition))
                value, long = (None, None) if value is None else (b"", (at, end))
                yield key, partition, number, offset, timestamp, value, long
            at += begin

    def _begin(self, run: Run, low: bytes) -> int:
        """Returns the place of the first row whose key is not below ``low``."""
        if not low:
            return run.at
        row, at = self._below(run, low)
        if row:
            length = int(self._ends(run, row - 1, row)[1])
            if self._row_at(at - length, length)[0] >= low:
                raise DamagedCacheError(_ELSEWHERE)
        return at

    def _row_at(self, at: int, length: int) -> Row:
        return _row_of(self._read(at, length))

    def _marks_below(self, run: Run, key: bytes) -> int:
        """Returns how many of the marked rows have a smaller key."""
        marks = range(len(run.marks) if key else 0)
        return bisect_left(marks, key, key=lambda mark: self._marked(run, mark)[0])

    def _marked(self, run: Run, mark: int) -> Row:
        (length,) = _U32.unpack(self._read(run.lengths_at + 4 * mark * _MARK_ROWS, 4))
        return self._row_at(run.marks[mark], length)

    def _read(self, at: int, size: int) -> bytes:
        held = self._held  # Open for as long as this runs.
        try:
            data = os.pread(held.number, size, at)
        except (OSError, OverflowError, MemoryError) as e:
            if isinstance(e, OSError) and e.errno not in _OF_FILE:
                raise
            raise DamagedCacheError(f"it cannot be read: {e}") from e
        if len(data) != size:
            raise DamagedCacheError("its end is missing")
        return data

    def _load(self, header: bytes, known: Mapping[Place, Level]) -> Shown:
        number, place = _slot_of(header)
        if not place[1]:
            raise DamagedCacheError("it was replaced by a new one")
        footer = self._read_checked(place, "footer")
        try:
            schema, *rest = json.loads(footer)
            if schema != SCHEMA:
                raise DamagedCacheError(f"its schema is {schema}, expected {SCHEMA}")
            log_id, version, commit_id, partitions, types, order, levels = rest
            offsets = {int(p): int(offset) for p, offset, _ in partitions}
            starts = {int(p): int(start) for p, _, start in partitions}
            types = schema_from_json(types)
            position = Position(log_id, int(version), commit_id, offsets, starts, types, order)
            places = [tuple(place) for place in levels]
            read = tuple(
                known.get(place) or _level_of(place, self._read_checked(place, "index"))
                for place in places
            )
        except _ODD as e:
            raise DamagedCacheError(f"its footer is invalid ({type(e).__name__})") from e
        return Shown(header, number, place[0] + place[1], position, read)

    def _read_checked(self, place: Place, what: str) -> bytes:
        at, size, checksum = place
        data = self._read(at, size)
        if xxh3_64_intdigest(data) != checksum:
            raise DamagedCacheError(f"its {what} is damaged")
        return data


def leave(path: Path) -> None:
    """Marks this file as replaced, for processes that have it open, as far as possible."""
    try:
        with open(path, "r+b", buffering=0, opener=unlinked) as file:
            header = os.pread(file.fileno(), HEADER_BYTES, 0).ljust(HEADER_BYTES)
            end = os.lseek(file.fileno(), 0, os.SEEK_END)
            _point(_Appender(file.fileno(), end), _slot_of(header)[0] + 1, (0, 0, 0), header)
            os.ftruncate(file.fileno(), end + 1)  # They look at the size first.
    except (DamagedCacheError, OSError):
        return  # They find out at their next refresh.


def sorted_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[Piece]:
    """Yields rows, given in the columns of a `Row`, sorted by key as far as memory allows."""
    some: list[Piece] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            some.append(_encoded(batch))
            size += some[-1].rows.nbytes
        if size >= PIECE_BYTES:
            yield _sorted(some, {})
            some, size = [], 0
    if some:
        yield _sorted(some, {})


def _batches(rows: Rows) -> Iterator[pa.RecordBatch]:
    for some in rows:
        left = iter(some)
        while chunk := list(islice(left, _AT_ONCE)):
            keys, partitions, offsets, timestamps, values = zip(*chunk, strict=True)
            numbers = map(
                of_numbers, (partitions, offsets, timestamps), (pa.int32(), pa.int64(), pa.int64())
            )
            columns = [of_bytes(keys), *numbers, of_bytes(values)]
            yield pa.RecordBatch.from_arrays(columns, names=COLUMNS)


def _encoded(batch: pa.RecordBatch) -> Piece:
    """Returns rows in the form they have in the file, in the given order."""
    rows, value = batch.num_rows, batch.column("value")
    numbers = np.empty(rows, _NUMBERS)
    for name, column in zip(("partition", "offset", "time"), COLUMNS[1:4], strict=True):
        numbers[name] = to_numpy(batch.column(column))
    keys = batch.column("key")
    numbers["key"] = to_numpy(pc.binary_length(keys))
    filled = pc.fill_null(value, _EMPTY) if value.null_count else value
    numbers["value"] = to_numpy(pc.binary_length(filled))
    if value.null_count:
        numbers["value"][~to_numpy(value.is_valid())] = _GONE
    parts = _column(numbers), *(part.cast(pa.large_binary()) for part in (keys, filled))
    bodies = pc.binary_join_element_wise(*parts, _NOTHING)
    sums = np.fromiter(map(xxh3_64_intdigest, bodies.to_pylist()), "<u8", rows)
    joined = pc.binary_join_element_wise(_column(sums), bodies, _NOTHING)
    return Piece(keys, joined, numbers)


def _check_order(piece: Piece, low: bytes, high: bytes | None) -> None:
    """Raises unless the rows of a run are in order, with keys in ``[low, high)``."""
    keys, partitions = piece.keys, piece.numbers["partition"]
    same = to_numpy(pc.equal(keys[1:], keys[:-1])) & (partitions[1:] > partitions[:-1])
    is_in_order = (to_numpy(pc.greater(keys[1:], keys[:-1])) | same).all()
    first, last = keys[0].as_py(), keys[-1].as_py()
    if not is_in_order or first < low or (high is not None and last >= high):
        raise DamagedCacheError(_ELSEWHERE)


def _column(items: NDArray[Any]) -> pa.Array:
    kind, buffers = pa.binary(items.itemsize), [None, pa.py_buffer(items)]
    return pa.Array.from_buffers(kind, len(items), buffers).cast(pa.large_binary())


def _sorted(pieces: Sequence[Piece], starts: Mapping[int, int], *, is_last: bool = False) -> Piece:
    """Returns the rows in order, of equal ones the last; without deletions if ``is_last``."""
    keys = pa.concat_arrays([piece.keys for piece in pieces])
    columns = [[piece.numbers[name] for piece in pieces] for name in ("partition", "offset")]
    partitions, offsets = map(np.concatenate, columns)
    order = np.argsort(partitions, kind="stable")
    order = order[to_numpy(pc.sort_indices(keys.take(to_arrow(order))))]
    keys, partitions = keys.take(to_arrow(order)), partitions[order]
    kept: Mask = np.ones(len(order), np.bool_)
    same = to_numpy(pc.equal(keys[1:], keys[:-1])) & (partitions[1:] == partitions[:-1])
    kept[:-1] = ~same
    for partition, start in starts.items():
        kept &= (partitions != partition) | (offsets[order] >= start)
    if is_last:
        gone = np.concatenate([piece.numbers["value"] == _GONE for piece in pieces])
        kept &= ~gone[order]
    if not kept.all():
        order, keys = order[kept], keys.filter(to_arrow(kept))
    rows = pa.concat_arrays([piece.rows for piece in pieces]).take(to_arrow(order))
    return Piece(keys, rows, _NO_NUMBERS)


class _Appender:
    """Appends to an open file."""

    def __init__(self, number: int, at: int) -> None:
        self.number = number
        self.at = at

    def put(self, data: Any) -> int:
        """Returns where the data begins."""
        begin, self.at = self.at, write(self.number, data, self.at)
        return begin


def write(number: int, data: Any, at: int) -> int:
    """Writes all of the data at a place; returns where it ends."""
    left = memoryview(data).cast("B")
    while left:
        done = os.pwrite(number, left, at)
        left, at = left[done:], at + done
    return at


def _append_level(out: _Appender, pieces: Iterable[Piece]) -> Level | None:
    """Appends pieces as the runs of one level; returns None if there are no rows."""
    runs: list[int] = []
    hashes, lengths, places = [], [], []
    for piece in pieces:
        if not (count := len(piece.rows)):
            continue
        ends = np.frombuffer(piece.rows.buffers()[1], np.int64, count + 1, 8 * piece.rows.offset)
        at = out.put(memoryview(piece.rows.buffers()[2])[ends[0] : ends[-1]])
        places.append(at + ends[:-1] - ends[0])
        lengths.append(np.diff(ends).astype("<u4"))
        runs += [
            at,
            int(ends[-1] - ends[0]),
            count,
            out.put(lengths[-1]),
            *places[-1][::_MARK_ROWS].tolist(),
        ]
        hashes.append(np.fromiter(map(xxh3_64_intdigest, piece.keys.to_pylist()), np.uint64, count))
    if not runs:
        return None
    columns = map(np.concatenate, (hashes, lengths, places))
    index_at, bits, starts, sums = _append_index(out, *columns)
    words = array("Q", [index_at, bits, len(hashes), *runs, *starts, *sums]).tobytes()
    place = out.put(words), len(words), xxh3_64_intdigest(words)
    return _level_of(place, words)


def _append_index(
    out: _Appender, hashes: NDArray[Any], lengths: NDArray[Any], places: NDArray[Any]
) -> tuple[int, int, list[int], list[int]]:
    """Appends index entries of rows by their hashes; returns their beginning and the buckets."""
    index_at, starts, sums = out.at, [0], []
    bits = max(0, (len(hashes) // _BUCKET_ROWS).bit_length() - 1)
    part_bits = min(bits, (len(hashes) // _PART_ROWS).bit_length())
    for part in range(1 << part_bits):
        mine = np.flatnonzero(_high(hashes, part_bits) == part)
        order = mine[np.argsort(hashes[mine])]
        entries = np.empty(len(order), _ENTRY)
        entries["hash"] = hashes[order] & np.uint64(_LOW)
        entries["length"], entries["at"] = lengths[order], places[order]
        buckets = np.arange(part << (bits - part_bits), (part + 1) << (bits - part_bits)) + 1
        ends = np.searchsorted(_high(hashes[order], bits), buckets.astype(np.uint64)).tolist()
        index, before = entries.tobytes(), starts[-1]
        view = memoryview(index)
        sums += [
            xxh3_64_intdigest(view[first * _ENTRY_BYTES : end * _ENTRY_BYTES])
            for first, end in pairwise([0, *ends])
        ]
        starts += [before + end for end in ends]
        out.put(index)
    return index_at, bits, starts, sums


def _high(hashes: NDArray[Any], bits: int) -> NDArray[Any]:
    return hashes >> np.uint64(64 - bits) if bits else np.zeros(len(hashes), np.uint64)


def _level_of(place: Place, data: bytes) -> Level:
    words = array("Q", data)
    index_at, bits, count, at = *words[:3], 3
    runs = []
    for _ in range(count):
        begin, size, rows, lengths_at = words[at : at + 4]
        at += 4
        marks = words[at : at + -(-rows // _MARK_ROWS)]
        at += len(marks)
        runs.append(Run(begin, size, rows, lengths_at, marks))
    behind = at + (1 << min(bits, 64)) + 1
    if len(words) != 2 * behind - at - 1:
        raise DamagedCacheError("its directory is invalid")
    return Level(place, index_at, 64 - bits, words[at:behind], words[behind:], tuple(runs))


def _mergeable(levels: Sequence[Level]) -> int:
    """Returns how many of the newest levels to merge into one (L3)."""
    size = 0
    for count, level in enumerate(levels):
        if size and level.size > _BASE_FACTOR * size:
            return count
        size += level.size
    return len(levels)


def _append_footer(out: _Appender, position: Position, levels: Iterable[Level]) -> Place:
    partitions = [[p, at, position.starts[p]] for p, at in sorted(position.offsets.items())]
    same = position.log_id, position.version, position.commit_id, partitions
    places = [level.place for level in levels]
    footer = [SCHEMA, *same, schema_to_json(position.schema), position.order, places]
    body = json.dumps(footer).encode()
    return out.put(body), len(body), xxh3_64_intdigest(body)


def _point(
    out: _Appender, number: int, footer: Place, header: bytes = bytes(HEADER_BYTES)
) -> bytes:
    """Names the current footer in a slot (L5); returns the new header."""
    at = number % 2 * _SLOT_BYTES
    slot = _SLOT.pack(_MAGIC, number, *footer, 0)[:-_CHECKSUM_BYTES]
    slot += xxh3_64_intdigest(slot).to_bytes(_CHECKSUM_BYTES, "little")
    slot = slot.ljust(_SLOT_BYTES, b"\0")
    write(out.number, slot, at)
    return header[:at] + slot + header[at + _SLOT_BYTES :]


def _slot_of(header: bytes) -> tuple[int, Place]:
    """Returns the number of the newest slot, and the place of the footer that it names."""
    found = []
    for at in (0, _SLOT_BYTES):
        slot = header[at : at + _SLOT.size]
        magic, number, *footer, checksum = _SLOT.unpack(slot)
        if magic == _MAGIC and checksum == xxh3_64_intdigest(slot[:-_CHECKSUM_BYTES]):
            found.append((number, (footer[0], footer[1], footer[2])))
    if not found:
        raise DamagedCacheError("its header is damaged")
    return max(found)


def _row_of(data: bytes) -> Row:
    """Returns a row; raises if its bytes are not as they were written."""
    if len(data) < _ROW.size:
        raise DamagedCacheError("a row is shorter than the shortest possible one")
    checksum, key_bytes, _, partition, offset, timestamp = numbers = _ROW.unpack_from(data)
    if xxh3_64_intdigest(data[_CHECKSUM_BYTES:]) != checksum:
        raise DamagedCacheError("the xxh3_64 of a row does not match the stored one")
    end = _ROW.size + key_bytes
    value = None if numbers[2] == _GONE else data[end:]
    return data[_ROW.size : end], partition, offset, timestamp, value


def _start_of(partition: int, starts: Mapping[int, int]) -> int:
    """Returns the log start of a row's partition."""
    try:
        return starts[partition]
    except KeyError:
        raise DamagedCacheError("a row belongs to a partition that the log does not have") from None


def _next(before: tuple[bytes, int], row: tuple[bytes, int]) -> tuple[bytes, int]:
    """Returns key and partition of a row of a run; raises unless they follow those ``before``."""
    if row <= before:
        raise DamagedCacheError(_ELSEWHERE)
    return row


def _length_of(data: bytes, at: int) -> int:
    """Returns the length of the row that begins there; too long for ``data`` if it is cut off."""
    if len(data) - at < _ROW.size:
        return _ROW.size
    key_bytes: int
    _, key_bytes, value_bytes, *_ = _ROW.unpack_from(data, at)
    return _ROW.size + key_bytes + (0 if value_bytes == _GONE else value_bytes)


def unlinked(path: str | os.PathLike[str], flags: int) -> int:
    """Opens a file of the folder, but no symbolic link, as any file may be at its other end."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as e:
        if e.errno != errno.ELOOP:
            raise
        raise DamagedCacheError(f"{path} is a symbolic link, and none is followed there") from None


def is_at(path: Path, number: int) -> bool:
    """Returns whether the file with this descriptor is the one at the path."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(number))
    except OSError:
        return False


def is_of_disk(error: Exception) -> bool:
    """Returns whether an error means that the disk is full, or may not be written."""
    return isinstance(error, OSError) and error.errno in _OF_DISK
