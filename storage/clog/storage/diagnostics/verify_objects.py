"""The objects of a version against the manifest: whether each is there, its bytes, its rows, and
each chunk that lies in it.

They are fetched whole, the next ones while one is looked at (`ahead`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clog.storage.format import documents
from clog.storage.format.chunks import Chunk, ObjectRef, damage
from clog.storage.format.documents import NONE
from clog.storage.format.log_info import LogInfo, LogSchema
from clog.storage.format.manifest import Manifest
from clog.storage.keys.key_index import DamagedIndexError, decode, index_hashes
from clog.storage.numpy_arrays import to_numpy
from clog.storage.objects.reader import check_rows, read_footer
from clog.storage.objects.writer import record_sizes
from clog.storage.store.contract import Store, ahead
from clog.storage.types.columns import (
    DELETE_HORIZON,
    OFFSET,
    REWRITTEN_SCHEMA,
    can_read,
    column_types,
    has_ids,
    other_ids,
    with_ids,
)

OnProgress = Callable[[int, int], None]
"""Called with (bytes of objects verified, bytes of objects there are)."""


def by_object(manifest: Manifest) -> dict[ObjectRef, list[tuple[int, Chunk]]]:
    """Returns by object the chunks that refer to it, with their partitions. Pure."""
    chunks: dict[ObjectRef, list[tuple[int, Chunk]]] = {}
    for p, chunk in manifest.chunks():
        chunks.setdefault(chunk.object, []).append((p, chunk))
    return chunks


def object_messages(
    store: Store,
    chunks: Mapping[ObjectRef, Sequence[tuple[int, Chunk]]],
    log: LogInfo,
    *,
    quick: bool,
    on_progress: OnProgress,
) -> Iterator[tuple[bool, str, str]]:
    """Yields whether it is there, path and message for each thing that is wrong with an object;
    ``chunks`` refer to it. One LIST, and a GET for each object unless the check is ``quick``.
    """
    stored = {found.path: found.size_bytes for found in store.list(documents.DATA)}
    total = sum(ref.size_bytes for ref in chunks)
    done = 0
    on_progress(done, total)
    in_order = sorted(chunks, key=lambda ref: ref.path)
    calls = [
        (partial(_content, store, ref), ref.size_bytes)
        for ref in in_order
        if not quick and stored.get(ref.path) == ref.size_bytes
    ]
    contents = ahead(store, calls)
    for ref in in_order:
        size_bytes, referring = stored.get(ref.path), chunks[ref]
        is_read = not quick and size_bytes == ref.size_bytes
        content = next(contents) if is_read else None
        used = ", ".join(f"[{c.base}, {c.next}) of partition {p}" for p, c in referring[:3])
        used += ", …" if len(referring) > 3 else ""
        if size_bytes is None or (is_read and content is None):
            yield False, ref.path, f"is not there; it holds {used}"
        elif size_bytes != ref.size_bytes:
            message = f"has {size_bytes} bytes, the manifest says {ref.size_bytes}; it holds {used}"
            yield True, ref.path, message
        elif content is not None:
            for message in object_problems(
                content, ref, referring, key_seed=log.key_seed, schema=log.schema
            ):
                yield True, ref.path, message
        done += ref.size_bytes
        on_progress(done, total)


def _content(store: Store, ref: ObjectRef) -> bytes | None:
    """Returns the object's bytes, one more where there are; None where it is gone."""
    try:
        return store.get(ref.path, 0, ref.size_bytes + 1)
    except FileNotFoundError:
        return None


def object_problems(
    data: bytes,
    ref: ObjectRef,
    chunks: Iterable[tuple[int, Chunk]],
    *,
    key_seed: int,
    schema: LogSchema | None = None,
) -> Iterator[str]:
    """Yields what is wrong with an object of which all bytes are given; ``chunks`` are (partition,
    chunk) that refer to it, ``key_seed`` and ``schema`` are the log's.
    """
    if (why := damage(data, ref)) is not None:
        yield why
        return
    try:
        footer, typed = data[-ref.footer_bytes :], schema is not None
        read_footer(footer, rows=ref.rows, pages_end=ref.tail[0], typed=typed)
        table = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True).read()
        problem = _schema_problem(table, schema)
        for batch in [] if problem else table.to_batches():
            check_rows(batch)
    except (pa.ArrowException, OSError, ValueError) as e:
        yield f"cannot be read: {e}"
        return
    if problem is not None:
        yield problem
        return
    if ref.dense == (OFFSET in table.schema.names):
        yield f"the manifest says dense={ref.dense}, its columns are {table.schema.names}"
        return
    if ref.index_bytes:
        yield from _index_problems(data, ref, table.column("key"), key_seed)
    for p, chunk in chunks:
        rows = _with_all_columns(table.slice(chunk.first_row, chunk.rows))
        for message in _row_problems(rows, chunk):
            yield f"chunk [{chunk.base}, {chunk.next}) of partition {p}: {message}"


def _schema_problem(table: pa.Table, schema: LogSchema | None) -> str | None:
    """Returns what is wrong with columns; those of a newer clog do not count."""
    names = table.schema.names
    missing = {"key", "value", "timestamp"} - set(names)
    if missing or len(set(names)) < len(names):
        return f"its columns are {names}"
    must_have_ids = schema is not None or any(map(has_ids, table.schema))
    for field in column_types(schema).rewritten:
        if field.name not in names:
            continue
        found = table.schema.field(field.name)
        if found.type != field.type and not (schema and can_read(found.type, field.type)):
            return f"its column {field.name} has type {found.type}, expected {field.type}"
        if must_have_ids and (wrong := other_ids(found, with_ids(field))):
            return f"its columns {wrong} have other field ids than the format gives them"
    return None


def _index_problems(
    data: bytes, ref: ObjectRef, keys: pa.ChunkedArray, key_seed: int
) -> Iterator[str]:
    """Yields the keys that an index misses, which would be taken for absent."""
    start = ref.tail[0]
    try:
        index = decode(data[start : start + ref.index_bytes])
    except DamagedIndexError as e:
        yield str(e)
        return
    if index is None:
        return  # Of a later version, which nobody here asks.
    if index.rows != ref.rows:
        yield f"its key index is of {index.rows} rows, not {ref.rows}"
    for block, (start, end) in enumerate(pairwise(index.edges.tolist())):
        rows = keys.slice(start, end - start).combine_chunks()
        if missed := index.missing(block, index_hashes(rows, seed=key_seed)):
            yield f"its key index misses {missed} keys of rows [{start}, {end})"


def _row_problems(rows: pa.Table, chunk: Chunk) -> Iterator[str]:
    if rows.num_rows != chunk.rows or not chunk.rows:
        yield f"has {rows.num_rows} rows, the manifest says {chunk.rows}"
        return
    stated = {
        "size": chunk.size_bytes,
        "first timestamp": chunk.first_timestamp_ms,
        "largest timestamp": chunk.max_timestamp_ms,
        "tombstones": chunk.tombstones,
        "least delete horizon": chunk.horizon_min,
        "greatest delete horizon": chunk.horizon_max,
    }
    for name, found in _facts(rows, chunk).items():
        if found != stated[name]:
            yield f"its {name} is {found}, the manifest says {stated[name]}"
    if chunk.object.dense:
        return  # Offsets follow from the base, and segments were checked.
    offsets = to_numpy(rows.column(OFFSET))
    if (np.diff(offsets) <= 0).any():
        yield "its offsets do not increase"
    elif offsets[0] < chunk.base or offsets[-1] >= chunk.next:
        yield f"its offsets are {offsets[0]} to {offsets[-1]}"


def _facts(rows: pa.Table, chunk: Chunk) -> dict[str, int]:
    """Returns what the manifest states of a chunk, computed from its rows."""
    if chunk.append_time_ms == NONE:
        times_ms = to_numpy(rows.column("timestamp")) // 1000
    else:
        times_ms = np.array([chunk.append_time_ms])
    horizons = to_numpy(rows.column(DELETE_HORIZON).drop_null())
    horizons = horizons[horizons >= 0]  # A sum that ran over counts as none.
    return {
        "size": int(record_sizes(rows).sum()),
        "first timestamp": int(times_ms[0]),
        "largest timestamp": int(times_ms.max()),
        "tombstones": rows.column("value").null_count,
        "least delete horizon": int(horizons.min()) if len(horizons) else NONE,
        "greatest delete horizon": int(horizons.max()) if len(horizons) else NONE,
    }


def _with_all_columns(table: pa.Table) -> pa.Table:
    """Returns the table with the columns that an object leaves out when they hold nothing."""
    for name in ("headers", DELETE_HORIZON):
        if name not in table.schema.names:
            field = REWRITTEN_SCHEMA.field(name)
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table
