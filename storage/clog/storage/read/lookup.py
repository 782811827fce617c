"""Finding the rows of few keys, by key indexes that are kept in memory.

A record's key does not tell its partition (a writer may have named another), and keys lie in no
order: so every object is asked. One with a key index says which of its rows may hold a key; of a
large one without, keys are read first, and the rest only where a wanted key is.

- `pieces_of_keys`: what to read of pieces that are read once, in a task.
- `latest_of_keys`: the latest records by indexes that stay in memory, for those who ask again. Of
  each partition the newest pieces come first; a key that is found is not looked for in older ones.
- `of_keys`: all records of few keys that are still there, in offset order.

An index is fetched with the Parquet footer behind it, in one request, so that reading rows needs no
footer any more. An object that has none has its keys read, once, and gets one in memory.

*Warm* are the indexes of all objects of a version: then finding out where a key may be costs no
request, and reading its row one, wherever it lies. (An index says "maybe" for a key that is not
there less than once in four million times.)

*Run*: pieces of small objects, of which a log has thousands where nobody coalesces. Their indexes
are joined, and asked in one step: asking each by itself takes a tenth of a millisecond. Runs begin
at the oldest piece, so a log that grew has the same ones but for the last.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clog.storage.commit.versions import reading
from clog.storage.env import Shared
from clog.storage.errors import CorruptionError, InvalidInputError
from clog.storage.format.chunks import ObjectRef
from clog.storage.format.documents import DEAD_SUFFIX, MASK_SUFFIX
from clog.storage.format.log_info import LogSchema
from clog.storage.format.manifest import Manifest
from clog.storage.keys import key_index
from clog.storage.keys.hashing import key_bytes
from clog.storage.keys.key_index import (
    BLOCK_ROWS,
    DamagedIndexError,
    IndexHashes,
    KeyIndex,
    Mask,
    index_hashes,
)
from clog.storage.numpy_arrays import of_bytes, to_arrow, to_numpy
from clog.storage.objects.reader import WHOLE_BYTES, read_rows
from clog.storage.read.scan import ReadPiece, cut, plan_range, read_pieces, read_schema
from clog.storage.store.contract import Store, WrappingStore, ahead
from clog.storage.types.columns import column_types
from clog.storage.types.conform import UnfitError, made_of_python

CACHE_BYTES = 128 << 20
"""Memory for indexes: those of about 25 million keys."""


SMALL_ROWS = 4096
"""An object of more rows is asked by itself: copying its index would cost more than it spares."""
RUN_PIECES = 256
"""Pieces of small objects that are asked in one step."""
RUNS_MAX = 1024

_Joined = tuple[KeyIndex, NDArray[np.intp]]
"""The index of some objects, and where the blocks of each begin."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Pieces that are asked in one step; one alone asks its own index."""

    pieces: tuple[ReadPiece, ...]
    joined: _Joined | None


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """A piece that may hold keys: pair by pair the number of the key and a block of the index, in
    which the rows of the object begin at ``first_row``.
    """

    piece: ReadPiece
    numbers: NDArray[np.intp]
    blocks: NDArray[np.intp]
    index: KeyIndex
    first_row: int

    def parts(self, asked: Mask) -> list[ReadPiece]:
        """Returns the parts of the piece for those pairs, in their order; they hold other keys,
        too.
        """
        ranges = self.index.rows_in(np.unique(self.blocks[asked]))
        first = self.first_row
        return list(_parts(self.piece, [(low - first, high - first) for low, high in ranges]))


@dataclass(frozen=True, slots=True)
class _Tail:
    """The bytes of an object from ``start`` to its end."""

    start: int = 0
    data: bytes = b""


_UNKNOWN: tuple[KeyIndex | None, _Tail] = (None, _Tail())


class KeyIndexCache(WrappingStore, Shared):
    """The key indexes of a log's objects, those used least recently dropped beyond ``cache_bytes``.

    It is the store itself, but answers from memory for the ends of objects, and for bitmaps.
    Threads may share it.

    Attributes:
        cached_bytes: memory taken.
    """

    def __init__(self, inner: Store, *, seed: int, cache_bytes: int = CACHE_BYTES) -> None:
        WrappingStore.__init__(self, inner)
        Shared.__init__(self)
        self.seed = seed
        self._cache_bytes = cache_bytes
        self._known: OrderedDict[str, tuple[KeyIndex | None, _Tail]] = OrderedDict()
        self.cached_bytes = 0
        self._joined: OrderedDict[tuple[str, ...], _Joined] = OrderedDict()

    def get(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        _, tail = self._known.get(path, _UNKNOWN)
        if path.endswith((DEAD_SUFFIX, MASK_SUFFIX)) and not tail.data:
            tail = _Tail(0, self.inner.get(path, 0, end))
            self._keep(path, None, tail)
        if tail.data and start is not None and end is not None and start >= tail.start:
            return tail.data[start - tail.start : end - tail.start]
        return self.inner.get(path, start, end)

    def of(self, obj: ObjectRef, cuts: Sequence[int] = (), *, schema: LogSchema | None) -> KeyIndex:
        """Returns the object's index; one GET, or what its keys take, where it is not in memory.

        Args:
            obj: which.
            cuts: rows at which chunks begin: an index that is made here tells them apart.
            schema: the log's.

        Raises:
            FileNotFoundError: the object is gone.
            CorruptionError: its bytes are not those that the manifest describes.
        """
        with self._lock:
            index, tail = self._known.get(obj.path, (None, None))
            if index is not None:
                self._known.move_to_end(obj.path)
                return index
        if tail is None:
            tail = _Tail() if obj.size_bytes <= WHOLE_BYTES else self._fetched(obj)
            index = self._stored(obj, tail)
            tail = _Tail(tail.start + obj.index_bytes, tail.data[obj.index_bytes :])
            self._keep(obj.path, index, tail)
        if index is None:
            index = self._made(obj, cuts, schema)
            self._keep(obj.path, index, tail)
        return index

    def load(self, pieces: Sequence[ReadPiece]) -> None:
        """Makes the indexes of their objects warm; requests go ahead (`store.contract`). Those that
        are made here tell the pieces apart, so that a key of one partition costs no reading for
        another.
        """
        unknown = {
            piece.object.path: piece
            for piece in pieces
            if self._known.get(piece.object.path, _UNKNOWN)[0] is None
        }
        cuts: dict[str, list[int]] = defaultdict(list)
        for piece in pieces if unknown else ():
            if piece.object.path in unknown:
                cuts[piece.object.path] += (piece.first_row, piece.first_row + piece.rows)
        calls = (
            (
                partial(self.of, piece.object, cuts[path], schema=piece.schema),
                asked_bytes(piece.object),
            )
            for path, piece in unknown.items()
        )
        for _ in ahead(self, calls):
            pass

    def parts(self, piece: ReadPiece, hashes: IndexHashes) -> Iterator[ReadPiece]:
        """Yields the parts of a piece that may hold a key with one of the hashes, in their order;
        they hold others too.
        """
        yield from _parts(piece, self.of(piece.object, schema=piece.schema).rows_of(hashes))

    def runs(self, pieces: Sequence[ReadPiece]) -> list["Run"]:
        """Returns the pieces in runs that are asked together, in their order; those of objects that
        were known before as they were then.
        """
        made: list[Run] = []
        small: list[ReadPiece] = []
        for piece in pieces:
            is_small = piece.object.rows <= SMALL_ROWS
            if small and (not is_small or len(small) == RUN_PIECES):
                made.append(self._run(small))
                small = []
            if is_small:
                small.append(piece)
            else:
                made.append(Run((piece,), None))
        return [*made, self._run(small)] if small else made

    def hits(self, run: Run, hashes: IndexHashes) -> Iterator[Hit]:
        """Yields the pieces of a run that may hold one of the hashes, the newest first."""
        if run.joined is None:
            index = self.of(run.pieces[0].object, schema=run.pieces[0].schema)
            starts = np.zeros(1, np.intp)
        else:
            index, starts = run.joined
        numbers, blocks = index.hits(hashes)
        owners = np.searchsorted(starts, blocks, side="right") - 1
        for n in np.unique(owners)[::-1]:
            mine = owners == n
            first_row = int(index.edges[starts[n]])
            yield Hit(run.pieces[n], numbers[mine], blocks[mine], index, first_row)

    def _run(self, pieces: list[ReadPiece]) -> Run:
        key = tuple(piece.object.path for piece in pieces)
        with self._lock:
            known = self._joined.get(key)
        if known is None:
            indexes = [self.of(piece.object, schema=piece.schema) for piece in pieces]
            starts = np.cumsum([0, *(len(index.shifts) for index in indexes)])[:-1]
            known = key_index.joined(indexes), starts
        with self._lock:
            self._joined[key] = known
            self._joined.move_to_end(key)
            while len(self._joined) > RUNS_MAX:
                self._joined.popitem(last=False)
        return Run(tuple(pieces), known)

    def _fetched(self, obj: ObjectRef) -> _Tail:
        start, end = obj.tail
        data = self.inner.get(obj.path, start, end) if start >= 0 else b""
        if len(data) != end - start:
            raise _damaged(self, obj, f"it has {start + len(data)} bytes, expected {end}")
        return _Tail(start, data)

    def _stored(self, obj: ObjectRef, tail: _Tail) -> KeyIndex | None:
        if not obj.index_bytes or not tail.data:
            return None
        return _decoded(self, obj, memoryview(tail.data)[: obj.index_bytes])

    def _made(self, obj: ObjectRef, cuts: Sequence[int], schema: LogSchema | None) -> KeyIndex:
        """Makes the index of an object that has none."""
        batches = read_rows(self, obj, 0, obj.rows, columns=("key",), schema=schema)
        keys = pa.chunked_array([key_bytes(batch.column(0)) for batch in batches], pa.binary())
        edges = sorted({0, obj.rows, *cuts, *range(0, obj.rows, BLOCK_ROWS)})
        blocks = []
        for start, end in pairwise(edges):
            block = keys.slice(start, end - start).combine_chunks()
            blocks.append((end - start, index_hashes(block, seed=self.seed)))
        index = key_index.decode(key_index.encode(blocks))
        assert index is not None, "a version of our own"
        return index

    def _keep(self, path: str, index: KeyIndex | None, tail: _Tail) -> None:
        with self._lock:
            self.cached_bytes -= _size_bytes(self._known.pop(path, _UNKNOWN))
            self._known[path] = (index, tail)
            self.cached_bytes += _size_bytes((index, tail))
            while self.cached_bytes > self._cache_bytes and len(self._known) > 1:
                self.cached_bytes -= _size_bytes(self._known.popitem(last=False)[1])
            if len(self._known) == 1:
                self.cached_bytes = _size_bytes((index, tail))  # Whatever an interrupt has left.


def stored_index(store: Store, obj: ObjectRef) -> KeyIndex | None:
    """Returns the key index that an object carries, for those who ask once; one request. None where
    it is of a version that is not known.
    """
    start = max(0, obj.tail[0])
    return _decoded(store, obj, store.get(obj.path, start, start + obj.index_bytes))


def _decoded(store: Store, obj: ObjectRef, data: bytes | memoryview) -> KeyIndex | None:
    try:
        index = key_index.decode(data)
    except DamagedIndexError as e:
        raise _damaged(store, obj, str(e)) from e
    if index is not None and index.rows != obj.rows:
        raise _damaged(store, obj, f"its key index is of {index.rows} rows, expected {obj.rows}")
    return index


def _parts(piece: ReadPiece, ranges: Sequence[tuple[int, int]]) -> Iterator[ReadPiece]:
    """Yields the parts of a piece that lie in the ranges of rows."""
    end = piece.first_row + piece.rows
    for low, high in ranges:
        first, last = max(low, piece.first_row), min(high, end)
        if first >= last:
            continue
        if not piece.object.dense:
            yield replace(piece, first_row=first, rows=last - first)
            continue
        base = piece.base + first - piece.first_row
        yield cut(piece, base, base + last - first)


def asked_bytes(obj: ObjectRef) -> int:
    """Returns how many bytes are fetched for an object's index, at most."""
    start, end = obj.tail
    return end - max(0, start) if obj.index_bytes else obj.size_bytes


def _size_bytes(known: tuple[KeyIndex | None, _Tail]) -> int:
    index, tail = known
    return len(tail.data) + (0 if index is None else index.nbytes)


def _damaged(store: Store, obj: ObjectRef, what: str) -> CorruptionError:
    return CorruptionError(
        f"{obj.path} of {store.url} is damaged: {what}; keep the file, restore it from a copy"
    )


def pieces_of_keys(
    store: Store, pieces: Sequence[ReadPiece], keys: Sequence[bytes], seed: int
) -> Iterator[ReadPiece]:
    """Yields the pieces without those that hold none of the keys (their canonical bytes), cut to
    where one may be. What is left holds other keys too. ``seed``: the log's. Where keys are read
    first, the requests go ahead (`store.contract`).
    """
    wanted = of_bytes(keys)
    hashes = index_hashes(wanted, seed=seed)
    indexes = KeyIndexCache(store, seed=seed)

    def narrowed(piece: ReadPiece) -> list[ReadPiece]:
        if piece.object.index_bytes:
            return [*indexes.parts(piece, hashes)]
        found = [
            offset
            for batch in read_pieces(store, [piece], columns=("offset", "key"))
            for offset in _ends(of_keys(batch, wanted).column("offset"))
        ]
        return [cut(piece, found[0], found[-1] + 1)] if found else []

    for searched, some in groupby(pieces, is_searched):
        if not searched:
            yield from some
            continue
        for parts in ahead(store, ((partial(narrowed, p), asked_bytes(p.object)) for p in some)):
            yield from parts


def latest_of_keys(
    indexes: KeyIndexCache, runs: Sequence[Run], keys: Sequence[bytes]
) -> Iterator[pa.RecordBatch]:
    """Yields the latest record of each of the keys (their canonical bytes) in pieces of one
    partition, tombstones included, as batches of `read_schema`, newest records first.
    """
    wanted = of_bytes(list(set(keys)))
    hashes = index_hashes(wanted, seed=indexes.seed)
    left = np.ones(len(wanted), np.bool_)
    for run in reversed(runs):
        asked = np.flatnonzero(left)
        if not len(asked):
            return
        for hit in indexes.hits(run, hashes[asked]):
            still = left[asked[hit.numbers]]
            if not still.any():
                continue  # Newer pieces had these keys.
            some = wanted.filter(to_arrow(left))
            parts = read_pieces(indexes, hit.parts(still))
            batches = [of_keys(batch, some) for batch in parts]
            schema = read_schema(run.pieces[0].schema)
            found = pa.Table.from_batches(batches, schema).combine_chunks()
            if found.num_rows:
                found_keys = key_bytes(found.column("key").chunk(0))
                last = _last_of_each(found_keys)
                yield from found.take(last).to_batches()
                left[to_numpy(pc.index_in(found_keys.take(last), value_set=wanted))] = False


def _last_of_each(keys: pa.Array) -> pa.Array:
    """Returns the row in which each of the keys comes last."""
    codes = np.flip(to_numpy(keys.dictionary_encode().indices))
    _, from_the_end = np.unique(codes, return_index=True)
    return to_arrow(np.sort(len(codes) - 1 - from_the_end))


def is_searched(piece: ReadPiece) -> bool:
    """Tells whether keys are read first; a small object is fetched whole, in one request, in any
    case.
    """
    return piece.object.size_bytes > WHOLE_BYTES


def of_keys(batch: pa.RecordBatch, wanted: pa.Array) -> pa.RecordBatch:
    """Returns the rows whose key is wanted, by canonical bytes."""
    return batch.filter(pc.is_in(key_bytes(batch.column("key")), value_set=wanted))


def _ends(offsets: pa.Array) -> list[int]:
    return [offsets[0].as_py(), offsets[-1].as_py()] if len(offsets) else []


def records_of_keys(
    store: Store,
    manifest: Manifest,
    ranges: Mapping[int, tuple[int, int]],
    keys: Sequence[Any],
) -> Iterator[pa.RecordBatch]:
    """Yields the records of these keys in ranges of offsets, partition by partition, as batches of
    `read_schema`. Objects whose key index has none of the keys are not read.
    """
    log = manifest.head.log
    asked = asked_keys(keys, log.schema)
    wanted = of_bytes(asked)
    with reading(store, manifest.version, why=" while it was read", remedy="read again"):
        for p, (start, end) in ranges.items():
            pieces = plan_range(manifest, p, start, end)
            for batch in read_pieces(
                store, list(pieces_of_keys(store, pieces, asked, log.key_seed))
            ):
                if (found := of_keys(batch, wanted)).num_rows:
                    yield found


def asked_keys(keys: Iterable[Any], schema: LogSchema | None) -> list[bytes]:
    """Returns the canonical bytes of keys that are asked for."""
    if schema is None:
        return [bytes_of(key) for key in keys]
    kind = column_types(schema).key
    return _bytes_of([_with_names(key, kind) for key in keys], kind)


def _bytes_of(given: list[Any], kind: pa.DataType) -> list[bytes]:
    try:
        made = key_bytes(made_of_python(given, kind, "key"))
    except UnfitError as e:
        raise InvalidInputError(f"key {e.at} of those asked for {e.what}") from None
    if made.null_count:
        raise InvalidInputError("a key that is asked for is None; records without a key have none")
    listed: list[bytes] = made.to_pylist()
    return listed


def asked_prefix(prefix: Any, schema: LogSchema | None) -> bytes:
    """Returns what the canonical bytes of all keys with a prefix begin with: of text and bytes the
    prefix itself, of structs that of the first fields, which are given as a tuple.
    """
    kind = None if schema is None else column_types(schema).key
    is_octets = kind is None or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)
    if prefix is None:
        return b""
    if isinstance(prefix, str) and (is_octets or pa.types.is_string(kind)):
        return bytes_of(prefix)
    if isinstance(prefix, (bytes, bytearray, memoryview)) and is_octets:
        return bytes(prefix)
    if isinstance(prefix, tuple) and kind is not None and pa.types.is_struct(kind):
        first = pa.struct(list(kind)[: len(prefix)])
        (found,) = _bytes_of([_with_names(prefix, first)], first)
        return found
    raise InvalidInputError(
        f"a prefix of type {type(prefix).__name__} is asked for, but keys are of type {kind};"
        " prefixes are of text and bytes, and of structs the first fields, as a tuple"
    )


def bytes_of(key: Any) -> bytes:
    """Returns a key that is asked for, of a log of bytes."""
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    if not isinstance(key, str):
        raise InvalidInputError(
            f"a key of type {type(key).__name__} is asked for; it must be bytes or str"
        )
    try:
        return key.encode()
    except UnicodeEncodeError as e:
        raise InvalidInputError(
            "a key that is asked for is not valid text: a lone surrogate at character"
            f" {e.start}; pass binary data as bytes"
        ) from None


def answered(column: pa.Array) -> list[Any]:
    """Returns keys or values as Python's."""
    try:
        found: list[Any] = column.to_pylist()
    except OverflowError:
        raise InvalidInputError(
            "a time that is asked for is before the year 1 or after the year 9999, which Python has"
            " no value for; read it as Arrow's, with to_arrow()"
        ) from None
    return found


def answered_key(key: Any) -> Any:
    """Returns a key as Arrow lists it, as one that can stand in a dict."""
    return tuple(map(answered_key, key.values())) if isinstance(key, Mapping) else key


def _with_names(key: Any, kind: pa.DataType) -> Any:
    """Returns a key with names for the fields of tuples."""
    if not (pa.types.is_struct(kind) and isinstance(key, tuple)):
        return key
    if len(key) != kind.num_fields:
        names = [field.name for field in kind]
        raise InvalidInputError(f"a key of {len(key)} fields is asked for; the log's has {names}")
    return {f.name: _with_names(part, f.type) for f, part in zip(kind, key, strict=True)}
