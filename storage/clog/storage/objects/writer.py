"""Writing data objects: one writer a task, for all partitions, in bounded memory (FORMAT.md §5).

1. `ObjectWriter.add` keeps the Arrow batches it is given. Before their records would exceed
   ``object_bytes``, what is kept becomes one object.
2. An object's rows are ordered by partition, in each partition by the order of `add`.
3. The object is put under a name nobody has seen. Crash: an orphan, swept later.

Not here: its bytes (`encoding`), which partition a record goes to, whether the log's config
takes it (`append`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from clog.storage.config.compression import ZSTD, Compression
from clog.storage.errors import InvalidInputError
from clog.storage.format.chunks import NONE
from clog.storage.format.paths import data_path
from clog.storage.format.schema import LogSchema
from clog.storage.numpy_arrays import null, scalar
from clog.storage.objects.arrow_types import column_types
from clog.storage.objects.composing import Composition, Part, Together, in_order
from clog.storage.objects.data_object import DELETE_HORIZON, DataObject, record_sizes
from clog.storage.objects.encoding import Rows, encoded
from clog.storage.objects.row_groups import CopiedGroup
from clog.storage.store.base import Store

OBJECT_BYTES = 64 << 20
"""Default of ``object_bytes``: record bytes of one object, before compression."""

_GATHER_ROWS = 1 << 14
_GATHER_BYTES = 4 << 20
_OBJECT_BYTES_MAX = 1 << 30  # Arrow's binary arrays end at 2 GiB.

_Ints = np.ndarray[Any, Any]


_Records = tuple[pa.RecordBatch, _Ints, _Ints]
"""Records, the partition of each and its size."""


class ObjectWriter:
    """Turns records into data objects of about ``object_bytes``; one task's, used once.

    It holds at most the records of one object, a row group of them in the order of partitions, and
    the encoded object.

    Args:
        store: where to.
        stamp: a version of the log that was read before (FORMAT.md §6).
        new_id: draws a name that nobody has drawn.
        partitions: how many the log has.
        compression: of the object's pages.
        object_bytes: record bytes of an object, at most 1 GiB; a larger record is alone in its own.
        schema: the log's; None: keys and values are bytes.
        rewritten: records have their offsets (`ColumnTypes.rewritten`, whose ``delete_horizon`` may
            be missing), in rising order in each partition.
        key_seed: the log's; then large objects get a key index. None: they get none.
        encoders: rewritten records are encoded in so many parts, ``together``.
    """

    def __init__(
        self,
        store: Store,
        *,
        stamp: int,
        new_id: Callable[[], str],
        partitions: int,
        schema: LogSchema | None = None,
        compression: Compression = ZSTD,
        object_bytes: int = OBJECT_BYTES,
        rewritten: bool = False,
        key_seed: int | None = None,
        encoders: int = 1,
        together: Together = in_order,
    ) -> None:
        self._encoders = encoders
        self._together = together
        self._store = store
        self._stamp = stamp
        self._new_id = new_id
        self._partitions = partitions
        self._compression = compression
        self._object_bytes = min(object_bytes, _OBJECT_BYTES_MAX)
        self._key_seed = key_seed
        types = column_types(schema)
        self._schema_id = NONE if schema is None else schema.id
        self._schema = types.rewritten if rewritten else types.records
        self._is_rewritten = rewritten
        self._kept: list[_Records | CopiedGroup] = []
        self._kept_bytes = 0
        self._objects: list[DataObject] = []

    @property
    def columns(self) -> pa.Schema:
        """What records must be that it takes."""
        return self._schema

    def add(self, records: pa.Table | pa.RecordBatch, partition: _Ints) -> None:
        """Takes records, ``partition[i]`` being that of row i; may put objects.

        Raises:
            InvalidInputError: other columns or types than the schema's, a timestamp that is null or
                negative, a partition that does not exist. Nothing of ``records`` is taken.
            StoreUnavailableError: an object could not be put.
        """
        if len(partition) != records.num_rows:
            raise InvalidInputError(
                f"got {len(partition)} partitions for {records.num_rows} records;"
                " give one for each record"
            )
        if not len(partition):
            return
        low, high = int(partition.min()), int(partition.max())
        if low < 0 or high >= self._partitions:
            raise InvalidInputError(
                f"the records name partitions {low} to {high}, but {self._store.url} has"
                f" partitions 0 to {self._partitions - 1}"
            )
        batches = _conforming(records, self._schema)
        at = 0
        for batch in batches:
            self._keep(batch, partition[at : at + batch.num_rows])
            at += batch.num_rows

    def copy(self, group: CopiedGroup) -> None:
        """Takes a row group of a rewritten object, undecoded; may put objects. Its offsets are
        higher than those before.
        """
        assert self._is_rewritten, "fresh objects hold records of several partitions"
        if self._kept and self._kept_bytes + group.stats.size_bytes > self._object_bytes:
            self._flush()
        self._kept.append(group)
        self._kept_bytes += group.stats.size_bytes

    def finish(self) -> list[DataObject]:
        """Puts what is left; returns all objects, in the order of their records."""
        self._flush()
        return self._objects

    def _keep(self, batch: pa.RecordBatch, partition: _Ints) -> None:
        sizes = record_sizes(batch)
        until = np.cumsum(sizes)
        start, before = 0, 0
        while start < batch.num_rows:
            room = self._object_bytes - self._kept_bytes
            end = int(np.searchsorted(until, before + room, side="right"))
            if end <= start and self._kept:
                self._flush()
                continue
            end = max(end, start + 1)
            piece = batch.slice(start, end - start)
            # astype copies, for the caller may use its array again, and makes it signed.
            self._kept.append((piece, partition[start:end].astype(np.int32), sizes[start:end]))
            self._kept_bytes += int(until[end - 1]) - before
            start, before = end, int(until[end - 1])

    def _flush(self) -> None:
        if not self._kept:
            return
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        parts: list[Part] = []
        while kept:
            parts.append(_next_part(kept))  # The records go as they are encoded.
        self._objects.append(self._put_one(parts))

    def _put_one(self, parts: list[Part]) -> DataObject:
        if self._encoders > 1:
            parts = [p for part in parts for p in _split(part, self._encoders)]
        first = parts[0]
        if len(parts) == 1 and isinstance(first, Rows):
            chunks = first.chunks()
            facts = None if self._is_rewritten else first.facts()
            dense = first.dense
            made: tuple[bytes | memoryview, int, int] = encoded(
                first, self._compression, self._key_seed
            )
        else:
            composition = Composition(parts, self._schema)
            chunks, facts, dense = (composition.stats,), None, composition.dense
            made = composition.encoded(self._compression, self._key_seed, self._together)
        data, footer_bytes, index_bytes = made
        path = data_path(self._stamp, self._new_id())
        self._store.put(path, data)
        return DataObject(
            path=path,
            size_bytes=len(data),
            footer_bytes=footer_bytes,
            checksum=xxhash.xxh3_128_hexdigest(data),
            rows=sum(chunk.rows for chunk in chunks),
            stamp=self._stamp,
            chunks=chunks,
            facts=facts,
            dense=dense,
            index_bytes=index_bytes,
            schema_id=self._schema_id,
        )


def _split(part: Part, count: int) -> Sequence[Part]:
    return part.split(count) if isinstance(part, Rows) else [part]


def _next_part(kept: list[_Records | CopiedGroup]) -> Part:
    """Takes what comes first: a copied group, or all records up to the next one."""
    first = kept[0]
    if isinstance(first, CopiedGroup):
        del kept[0]
        return first
    some = [*takewhile(lambda part: not isinstance(part, CopiedGroup), kept)]
    del kept[: len(some)]
    batches, partitions, sizes = zip(*some, strict=True)
    return Rows(pa.Table.from_batches(batches), np.concatenate(partitions), np.concatenate(sizes))


def write_rewritten(
    store: Store,
    parts: Iterable[pa.RecordBatch | CopiedGroup],
    *,
    partition: int,
    stamp: int,
    new_id: Callable[[], str],
    schema: LogSchema | None = None,
    key_seed: int | None = None,
    compression: Compression = ZSTD,
    object_bytes: int = OBJECT_BYTES,
    encoders: int = 1,
    together: Together = in_order,
) -> list[DataObject]:
    """Writes records of one partition that have their offsets, in rising order, and row groups as
    they are.

    Batches are of `ColumnTypes.rewritten`; ``delete_horizon`` may be missing. No records make
    no object.

    Raises:
        as `ObjectWriter.add`.
    """
    writer = ObjectWriter(
        store,
        stamp=stamp,
        new_id=new_id,
        partitions=partition + 1,
        schema=schema,
        compression=compression,
        object_bytes=object_bytes,
        rewritten=True,
        key_seed=key_seed,
        encoders=encoders,
        together=together,
    )
    for some in _gathered(parts):
        if isinstance(some, CopiedGroup):
            writer.copy(some)
        else:
            writer.add(some, np.full(some.num_rows, partition, np.int32))
    return writer.finish()


def _gathered(
    parts: Iterable[pa.RecordBatch | CopiedGroup],
) -> Iterator[pa.Table | CopiedGroup]:
    """Yields the parts, small batches joined: each `ObjectWriter.add` costs half a millisecond."""
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for part in parts:
        is_full = rows >= _GATHER_ROWS or size_bytes >= _GATHER_BYTES
        if held and (is_full or isinstance(part, CopiedGroup) or part.schema != held[0].schema):
            yield pa.Table.from_batches(held).combine_chunks()
            held.clear()
            rows = size_bytes = 0
        if isinstance(part, CopiedGroup):
            yield part
            continue
        held.append(part)
        rows, size_bytes = rows + part.num_rows, size_bytes + part.nbytes
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


def _conforming(records: pa.Table | pa.RecordBatch, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Returns the records as batches of exactly this schema.

    Raises:
        InvalidInputError: they are not.
    """
    names = list(records.schema.names)
    types = {field.name: field.type for field in records.schema}
    if DELETE_HORIZON in schema.names:
        types.setdefault(DELETE_HORIZON, schema.field(DELETE_HORIZON).type)
    if len(names) != len(set(names)) or types != {field.name: field.type for field in schema}:
        raise InvalidInputError(
            f"records have the columns {_named(records.schema)}; required: {_named(schema)}"
        )
    timestamps = records.column("timestamp")
    if timestamps.null_count:
        raise InvalidInputError(
            f"{timestamps.null_count} of {records.num_rows} records have no timestamp;"
            " give each record one, such as the time of the append"
        )
    lowest = pc.min(timestamps.cast(pa.int64())).as_py()
    if lowest < 0:
        raise InvalidInputError(
            f"timestamp {lowest} µs is before 1970; timestamps cannot be negative"
        )
    batches = records.to_batches() if isinstance(records, pa.Table) else [records]
    return [
        pa.RecordBatch.from_arrays([_column(batch, field) for field in schema], schema=schema)
        for batch in batches
    ]


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(field.name)
    if field.name == "headers":
        # No headers is null, however it was said: the column must not say more than its absence.
        empty = pc.equal(pc.list_value_length(column), scalar(0, pa.int32()))
        if pc.any(empty).as_py():
            return pc.if_else(empty, null(field.type), column)
    return column


def _named(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
