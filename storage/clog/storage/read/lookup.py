"""Finds the rows of a few keys, by the key indexes of `scan`.

A record's key does not determine its partition (a writer may have named another one), and keys are
in no order, so every object is searched. A key index says which rows of its object may have a key;
in a large object without one, keys are read first, and the rest only where a wanted key is.

- `pieces_of_keys`: what to read of pieces that are read once, in a task.
- `latest_of_keys`: the latest records, by indexes that stay in memory, for repeated look-ups. The
  newest pieces of each partition come first; a key that was found is not searched in older ones.
- `records_of_keys`: all records of a few keys that still exist, in offset order.
- `for_times`: the first records from a time on.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.storage.commit.versions import reading
from clog.storage.errors import InvalidInputError
from clog.storage.format.log_info import LogSchema
from clog.storage.format.manifest import Manifest
from clog.storage.keys.hashing import key_bytes
from clog.storage.keys.key_index import index_hashes
from clog.storage.numpy_arrays import of_bytes, scalar, to_arrow, to_numpy
from clog.storage.objects.reader import WHOLE_BYTES
from clog.storage.read.scan import (
    COLUMNS,
    KeyIndexCache,
    ReadPiece,
    Run,
    asked_bytes,
    cut,
    plan_range,
    read_pieces,
    read_schema,
)
from clog.storage.store.contract import Store, ahead
from clog.storage.types.columns import column_types
from clog.storage.types.conform import UnfitError, made_of_python

_TRUE = to_arrow(np.array([True]))[0]


def pieces_of_keys(
    store: Store, pieces: Sequence[ReadPiece], keys: Sequence[bytes], seed: int
) -> Iterator[ReadPiece]:
    """Yields the pieces that may have any of the keys (their canonical bytes), cut to where one may
    be, which includes other keys. ``seed`` is the log's. If keys are read first, requests are made
    ahead (`store.contract`).
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
    indexes: KeyIndexCache,
    runs: Sequence[Run],
    keys: Sequence[bytes],
    columns: Sequence[str] = COLUMNS,
) -> Iterator[pa.RecordBatch]:
    """Yields the latest record of each key in pieces of one partition, newest first, with these
    columns, the key among them.
    """
    wanted = of_bytes(list(set(keys)))
    hashes = index_hashes(wanted, seed=indexes.seed)
    left, last = np.ones(len(wanted), np.bool_), np.zeros(len(wanted), np.int64)
    for run in reversed(runs):
        asked = np.flatnonzero(left)
        if not len(asked):
            return
        for hit in indexes.hits(run, hashes[asked]):
            still = left[asked[hit.numbers]]
            if not still.any():
                continue  # Newer pieces had these keys.
            some = wanted.filter(to_arrow(left))
            parts = read_pieces(indexes, hit.parts(still), columns=columns)
            batches = [of_keys(batch, some) for batch in parts]
            schema = read_schema(run.pieces[0].schema, tuple(columns))
            found = pa.Table.from_batches(batches, schema).combine_chunks()
            if found.num_rows:
                found_keys = key_bytes(found.column("key").chunk(0))
                numbers = to_numpy(pc.index_in(found_keys, value_set=wanted))
                left[numbers] = False
                last[numbers] = np.arange(len(numbers))  # Of equal numbers the last row stays.
                is_last = last.take(numbers) == np.arange(len(numbers))
                yield from found.filter(to_arrow(is_last)).to_batches()


def is_searched(piece: ReadPiece) -> bool:
    """Returns whether keys are read first; a small object is fetched whole in any case."""
    return piece.object.size_bytes > WHOLE_BYTES


def of_keys(batch: pa.RecordBatch, wanted: pa.Array) -> pa.RecordBatch:
    """Returns the rows with wanted keys, which are given as canonical bytes."""
    return batch.filter(pc.is_in(key_bytes(batch.column("key")), value_set=wanted))


def _ends(offsets: pa.Array) -> list[int]:
    return [offsets[0].as_py(), offsets[-1].as_py()] if len(offsets) else []


def records_of_keys(
    store: Store, manifest: Manifest, ranges: Mapping[int, tuple[int, int]], keys: Sequence[Any]
) -> Iterator[pa.RecordBatch]:
    """Yields records of keys in ranges of offsets; reads no object whose index has none of them."""
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


def listed_keys(keys: Iterable[Any]) -> list[Any]:
    """Returns keys that are given as an iterable or an array; raises if it is one key."""
    if isinstance(keys, str | bytes | bytearray | memoryview) or not isinstance(keys, Iterable):
        raise InvalidInputError(
            f"give a list of keys; a {type(keys).__name__} is one key, so put it in brackets"
        )
    return list(keys.to_pylist() if isinstance(keys, pa.Array | pa.ChunkedArray) else keys)


def asked_keys(keys: Iterable[Any], schema: LogSchema | None) -> list[bytes]:
    """Returns the canonical bytes of keys that are asked for."""
    if schema is None:
        return [bytes_of(key) for key in keys]
    return _bytes_of(python_keys(keys, schema), column_types(schema).key)


def python_keys(keys: Iterable[Any], schema: LogSchema | None) -> list[Any]:
    """Returns keys that are asked for in the form of appended records' keys."""
    if schema is None:
        return list(keys)
    kind = column_types(schema).key
    return [_with_names(key, kind) for key in keys]


def _bytes_of(given: list[Any], kind: pa.DataType) -> list[bytes]:
    try:
        made = key_bytes(made_of_python(given, kind, "key"))
    except UnfitError as e:
        raise InvalidInputError(f"requested key {e.at} {e.what}") from None
    if made.null_count:
        raise InvalidInputError(
            "a requested key is None; records without a key cannot be looked up"
        )
    listed: list[bytes] = made.to_pylist()
    return listed


def asked_prefix(prefix: Any, schema: LogSchema | None) -> bytes:
    """Returns the bytes with which the canonical bytes of all keys with a prefix begin: for text
    and bytes the prefix itself, for structs those of the first fields, which are given as a tuple.
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
        f"a prefix of type {type(prefix).__name__} was requested, but keys have type {kind};"
        " prefixes exist for text and bytes, and for structs, as a tuple of their first fields"
    )


def bytes_of(key: Any) -> bytes:
    """Returns the bytes of a key that is asked for, in a log of bytes."""
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    if not isinstance(key, str):
        raise InvalidInputError(
            f"a requested key has type {type(key).__name__}; it must be bytes or str"
        )
    try:
        return key.encode()
    except UnicodeEncodeError as e:
        raise InvalidInputError(
            f"a requested key is not valid text: a lone surrogate at character {e.start}; pass"
            " binary data as bytes"
        ) from None


def answered(column: pa.Array) -> list[Any]:
    """Returns keys or values as Python objects."""
    try:
        found: list[Any] = column.to_pylist()
    except OverflowError:
        raise InvalidInputError(
            "a requested time is before the year 1 or after the year 9999, which Python cannot"
            " represent; read it in Arrow form, with to_arrow()"
        ) from None
    return found


def answered_key(key: Any) -> Any:
    """Returns a key that Arrow returned in a form that a dict accepts."""
    return tuple(map(answered_key, key.values())) if isinstance(key, Mapping) else key


def _with_names(key: Any, kind: pa.DataType) -> Any:
    """Returns a key with its tuples as dicts that name the fields."""
    if not (pa.types.is_struct(kind) and isinstance(key, tuple)):
        return key
    if len(key) != kind.num_fields:
        names = [field.name for field in kind]
        raise InvalidInputError(f"a requested key has {len(key)} fields; the log's has {names}")
    return {f.name: _with_names(part, f.type) for f, part in zip(kind, key, strict=True)}


def for_times(
    store: Store, manifest: Manifest, times_ms: Mapping[int, int]
) -> dict[int, int | None]:
    """Returns the first offset, from the log start on, at or after the time (S39)."""
    with reading(store, manifest.version, why=" while it was read", remedy="read again"):
        return {p: _first_at(store, manifest, p, time_ms) for p, time_ms in times_ms.items()}


def _first_at(store: Store, manifest: Manifest, partition: int, time_ms: int) -> int | None:
    start, end = manifest.head.partitions.start[partition], manifest.head.stable_offset(partition)
    for segment in manifest.segments[partition]:
        for chunk in segment.chunks:
            if chunk.next <= start or chunk.aborted or chunk.max_timestamp_ms < time_ms:
                continue
            # Only here, where a record is that late: a later time may not fit Arrow's timestamp. No
            # record is before 1970.
            bound = scalar(max(0, time_ms) * 1000, pa.timestamp("us", "UTC"))
            pieces = plan_range(manifest, partition, max(start, chunk.base), min(end, chunk.next))
            for batch in read_pieces(store, pieces, columns=("offset", "timestamp")):
                late = pc.greater_equal(batch.column("timestamp"), bound)
                if (first := pc.index(late, _TRUE).as_py()) >= 0:
                    return int(batch.column("offset")[first].as_py())
    return None
