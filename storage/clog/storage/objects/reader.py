"""Reading data objects: runs of rows, with at most two calls of the store (FORMAT.md §5).

1. An object of up to 1 MiB, or one of which all values are wanted, is fetched whole, in one
   request, and its checksum is verified.
2. Of any other the footer is fetched, then the needed columns of the needed row groups, together:
   one request, or several where each further one spares at least 1 MiB; more than four only where
   fewer would read twice the bytes (`coalesce`). They go out together.
3. Row groups are decoded one after the other: memory holds what was fetched and one row group.

Safety: what the manifest says of an object is trusted, its own bytes are not. The footer's checksum
is verified, and it is read here (`footer`), before Arrow sees it, since some damaged or forged ones
end the process; where the object was not fetched whole, Parquet verifies the checksum of each page.
What contradicts the manifest or itself is a `CorruptionError`, and what was yielded before that is
right.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
import xxhash

from clog.storage.env import enough_memory
from clog.storage.errors import CorruptionError, StoreUnavailableError
from clog.storage.format.chunks import FOOTER_SUM_BYTES, ObjectRef
from clog.storage.format.log_info import LogSchema
from clog.storage.numpy_arrays import parquet
from clog.storage.objects.footer import RowGroup, read_footer
from clog.storage.objects.layout import (
    OFFSET,
    as_type,
    can_read,
    check_rows,
    column_types,
    leaves_of,
    projected,
)
from clog.storage.store.contract import Store, coalesce


class FetchedParts:
    """The parts of an object that were fetched, by their places, as a file; others fail."""

    def __init__(
        self, places: Sequence[tuple[int, int]], parts: Sequence[bytes], size_bytes: int
    ) -> None:
        self._size_bytes = size_bytes
        in_order = sorted(zip(places, parts, strict=True), key=lambda part: part[0])
        self._starts = [start for (start, _), _ in in_order]
        self._parts = [pa.py_buffer(data) for _, data in in_order]
        self._at = 0
        self.closed = False

    def read_buffer(self, size: int) -> pa.Buffer:
        """Returns the next bytes, without copying: Arrow calls this instead of `read`."""
        i = bisect_right(self._starts, self._at) - 1
        skip = self._at - self._starts[i]
        if i < 0 or skip + size > self._parts[i].size:
            raise OSError(f"bytes {self._at} to {self._at + size} are outside the columns")
        self._at += size
        return self._parts[i].slice(skip, size)

    def read(self, size: int) -> bytes:
        return bytes(self.read_buffer(size))

    def seek(self, to: int, whence: int = 0) -> int:
        self._at = to + (0, self._at, self._size_bytes)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        self.closed = True


BATCH_ROWS = 16384
"""Default of ``batch_rows``: the most rows of a batch."""

WHOLE_BYTES = 1 << 20
"""Up to here an object is fetched whole: a second request costs more than the bytes it spares."""


def read_rows(
    store: Store,
    obj: ObjectRef,
    first_row: int,
    rows: int,
    *,
    columns: Sequence[str],
    schema: LogSchema | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yields the rows ``[first_row, first_row + rows)``, as `read_ranges` reads them."""
    ranges = [(first_row, rows)]
    for _, batch in read_ranges(
        store, obj, ranges, columns=columns, schema=schema, batch_rows=batch_rows
    ):
        yield batch


def read_ranges(
    store: Store,
    obj: ObjectRef,
    ranges: Sequence[tuple[int, int]],
    *,
    columns: Sequence[str],
    schema: LogSchema | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields several runs of rows, each ``(first row, rows)``, as `open_ranges` reads them."""
    yield from open_ranges(store, obj, ranges, columns=columns, schema=schema)(batch_rows)


def open_ranges(
    store: Store,
    obj: ObjectRef,
    ranges: Sequence[tuple[int, int]],
    *,
    columns: Sequence[str],
    schema: LogSchema | None = None,
) -> Callable[[int], Iterator[tuple[int, pa.RecordBatch]]]:
    """Fetches several runs of rows, each ``(first row, rows)``; returns what yields them, as (index
    of the run, batch of at most so many rows) in row order, and makes no request.

    The runs must be in the order of their rows and must not overlap. Batches have the ``columns``
    (of `ColumnTypes.rewritten` of the log's ``schema``; of structs, also fields by their paths), in
    this order; what the object lacks is all null.

    Raises:
        FileNotFoundError: the object is gone.
        CorruptionError: its bytes are not those that the manifest describes.
    """
    wanted = _wanted(store, obj, ranges)
    source = _Source(store, obj, columns, schema)
    return partial(_decoded, source, source.open(wanted) if wanted else [], wanted)


def _decoded(
    source: "_Source",
    groups: Sequence["_Group"],
    wanted: Sequence[tuple[int, int, int]],
    batch_rows: int,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    for group in groups:
        runs = [run for run in wanted if run[1] < group.end and run[2] > group.start]
        at = group.start
        for batch in source.decode(group, batch_rows):
            for i, start, end in runs:
                low, high = max(start, at), min(end, at + batch.num_rows)
                if low < high:
                    yield i, batch.slice(low - at, high - low)
            at += batch.num_rows
            if at >= runs[-1][2]:
                break


def fetch_whole(store: Store, obj: ObjectRef) -> bytes:
    """Returns all bytes of an object, in one request, verified by their checksum.

    Raises:
        FileNotFoundError, CorruptionError: as `read_ranges`.
    """
    data = store.get(obj.path, 0, obj.size_bytes)
    if len(data) != obj.size_bytes:
        raise _damaged(store, obj, f"it has {len(data)} bytes, expected {obj.size_bytes}")
    checksum = xxhash.xxh3_128_hexdigest(data)
    if checksum != obj.checksum:
        raise _damaged(store, obj, f"its xxh3_128 is {checksum}, expected {obj.checksum}")
    return data


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a read of one object takes: row groups that are decoded, of those there are, and bytes
    that are fetched.
    """

    path: str
    row_groups: int
    row_groups_total: int
    fetched_bytes: int


def footprint(
    store: Store,
    obj: ObjectRef,
    ranges: Sequence[tuple[int, int]],
    *,
    columns: Sequence[str],
    schema: LogSchema | None = None,
) -> Footprint:
    """Returns what `read_ranges` would take for the same; one request, for the footer."""
    return _Source(store, obj, columns, schema).footprint(_wanted(store, obj, ranges))


def _wanted(
    store: Store, obj: ObjectRef, ranges: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """Returns the runs that hold any row, as (index, first row, end)."""
    wanted = [(i, first, first + rows) for i, (first, rows) in enumerate(ranges) if rows]
    assert all(a[2] <= b[1] for a, b in pairwise(wanted)), "runs must not overlap"
    if wanted and (wanted[0][1] < 0 or wanted[-1][2] > obj.rows):
        raise CorruptionError(
            f"rows {wanted[0][1]} to {wanted[-1][2]} of {obj.path} of {store.url} do not exist;"
            f" it holds {obj.rows} rows"
        )
    return wanted


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows ``[start, end)`` of an object, which are its row group ``number``, and where its columns
    lie.
    """

    number: int
    start: int
    end: int
    pages: tuple[tuple[str, int, int], ...]


class _Source:
    """One object being read."""

    def __init__(
        self, store: Store, obj: ObjectRef, columns: Sequence[str], schema: LogSchema | None
    ) -> None:
        self._store = store
        self._obj = obj
        self._is_typed = schema is not None
        self._all = column_types(schema).rewritten
        self._schema = projected(self._all, columns)
        self._stored: list[str] = []
        self._file: Any = None

    def open(self, wanted: Sequence[tuple[int, int, int]]) -> list[_Group]:
        """Fetches what the wanted runs need; returns the row groups they lie in."""
        whole = self._is_fetched_whole(wanted)
        data = fetch_whole(self._store, self._obj) if whole else self._fetch_footer()
        with self._decoding("its footer"):
            groups = self._needed(self._row_groups(data), wanted)
            metadata = parquet().read_metadata(pa.BufferReader(data))
            self._check_types(metadata.schema.to_arrow_schema())
        places = [] if whole else self._places(groups)
        handle = pa.BufferReader(data) if whole else pa.PythonFile(self._fetch(places), mode="r")
        with self._decoding("its footer"):
            self._file = parquet().ParquetFile(
                handle,
                metadata=metadata,
                page_checksum_verification=not whole,
                pre_buffer=False,  # All is in memory; reading ahead would start threads.
            )
        return groups

    def footprint(self, wanted: Sequence[tuple[int, int, int]]) -> Footprint:
        """Returns what `open` and `decode` would take."""
        obj = self._obj
        data = self._fetch_footer()
        with self._decoding("its footer"):
            found = self._row_groups(data)
            groups = self._needed(found, wanted)
            metadata = parquet().read_metadata(pa.BufferReader(data))
            self._check_types(metadata.schema.to_arrow_schema())
        places = self._places(groups)
        fetched = len(data) + FOOTER_SUM_BYTES + sum(e - b for b, e in coalesce(places))
        if self._is_fetched_whole(wanted):
            fetched = obj.size_bytes
        return Footprint(obj.path, len(groups), len(found), fetched)

    def _is_fetched_whole(self, wanted: Sequence[tuple[int, int, int]]) -> bool:
        rows = sum(end - start for _, start, end in wanted)
        # Without keys, too: they are seldom many bytes beside the values, and a request is spared.
        everything = rows == self._obj.rows and "value" in self._schema.names
        everything = everything and self._schema.field("value") == self._all.field("value")
        return everything or self._obj.size_bytes <= WHOLE_BYTES

    def decode(self, group: _Group, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a group, from its first."""
        where = f"row group {group.number}"
        with self._decoding(where):
            batches = self._file.iter_batches(
                batch_rows, row_groups=[group.number], columns=self._stored, use_threads=False
            )
        rows = 0
        while True:
            with self._decoding(where):
                batch = next(batches, None)
                made = None if batch is None else self._complete(batch)
            if made is None:
                break
            rows += made.num_rows
            yield made
        if rows != group.end - group.start:
            raise self._damaged(f"{where} holds {rows} rows, expected {group.end - group.start}")

    def _complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the batch with the columns that were asked for, the absent ones null."""
        check_rows(batch)
        arrays = [
            as_type(batch.column(field.name), field.type)  # It can be: `_check_types`.
            if field.name in batch.schema.names
            else pa.nulls(batch.num_rows, field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _fetch_footer(self) -> bytes:
        obj = self._obj
        start = obj.size_bytes - obj.footer_bytes - FOOTER_SUM_BYTES
        data = self._store.get(obj.path, start, obj.size_bytes)
        if start + len(data) != obj.size_bytes:
            raise self._damaged(f"it has {start + len(data)} bytes, expected {obj.size_bytes}")
        expected, footer = data[:FOOTER_SUM_BYTES], data[FOOTER_SUM_BYTES:]
        found = xxhash.xxh3_128_digest(footer)
        if found != expected:
            raise self._damaged(
                f"the xxh3_128 of its footer is {found.hex()}, expected {expected.hex()}"
            )
        return footer

    def _fetch(self, places: Sequence[tuple[int, int]]) -> FetchedParts:
        parts = self._store.get_ranges(self._obj.path, places)
        for (start, end), part in zip(places, parts, strict=True):
            if len(part) != end - start:
                raise self._damaged(
                    f"it has {start + len(part)} bytes, expected {self._obj.size_bytes}"
                )
        return FetchedParts(places, parts, self._obj.size_bytes)

    def _row_groups(self, data: bytes) -> tuple[RowGroup, ...]:
        """Returns the row groups by the footer that the data end with."""
        obj = self._obj
        footer, end = data[-obj.footer_bytes :], obj.tail[0]
        groups = read_footer(footer, rows=obj.rows, pages_end=end, typed=self._is_typed)
        has_offsets = any(path == OFFSET for path, _, _ in groups[0].pages)
        if has_offsets == obj.dense:
            raise self._damaged(f"the manifest says dense={obj.dense}, its columns say otherwise")
        return groups

    def _needed(
        self, found: Sequence[RowGroup], wanted: Sequence[tuple[int, int, int]]
    ) -> list[_Group]:
        groups = []
        start = 0
        for number, group in enumerate(found):
            end = start + group.rows
            if any(first < end and until > start for _, first, until in wanted):
                groups.append(_Group(number, start, end, group.pages))
            start = end
        return groups

    def _places(self, groups: Sequence[_Group]) -> list[tuple[int, int]]:
        """Returns where the columns of the groups lie that are read, as half-open ranges of
        bytes.
        """
        paths = {path for group in groups[:1] for path, _, _ in group.pages}
        whole = tuple(f"{column}." for column in self._stored)
        read = {path for path in paths if path in self._stored or path.startswith(whole)}
        return [
            (start, end) for group in groups for path, start, end in group.pages if path in read
        ]

    def _check_types(self, stored: pa.Schema) -> None:
        for field in stored:
            if field.name not in self._all.names:
                continue  # Written by a newer clog.
            expected = self._all.field(field.name).type
            if field.type != expected and not (self._is_typed and can_read(field.type, expected)):
                raise self._damaged(
                    f"its column {field.name} has type {field.type}, expected {expected}"
                )
        self._stored = [
            leaf
            for field in self._schema
            if field.name in stored.names
            for leaf in leaves_of(stored.field(field.name), field.type)
        ]
        if not self._stored:
            self._stored = ["timestamp"]  # Something must count the rows.

    @contextmanager
    def _decoding(self, what: str) -> Iterator[None]:
        """Makes damage of everything that Arrow raises while it decodes: it is given nothing
        else.
        """
        try:
            with enough_memory(f"{self._obj.path} of {self._store.url}"):
                yield  # Arrow's own error of too little memory is an ArrowException, too.
        except StoreUnavailableError:
            raise
        except (pa.ArrowException, OSError, ValueError) as e:
            raise self._damaged(f"{what} does not decode: {e}") from e

    def _damaged(self, what: str) -> CorruptionError:
        return _damaged(self._store, self._obj, what)


def _damaged(store: Store, obj: ObjectRef, what: str) -> CorruptionError:
    return CorruptionError(
        f"{obj.path} of {store.url} is damaged: {what}; keep the file, restore it from a copy"
    )
