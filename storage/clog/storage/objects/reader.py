"""Reads data objects: runs of rows, with at most two calls of the store; and checks their footers
before a Parquet reader sees them (FORMAT.md §5).

1. An object of up to 1 MiB, or one of which all values are wanted, is fetched whole, in one
   request, and its checksum is verified.
2. Of any other object the footer is fetched, then the needed columns of the needed row groups
   together: in one request, or several if each further one saves at least 1 MiB; more than four
   only if fewer would read twice the bytes (`coalesce`). They are sent at the same time.
3. Row groups are decoded one after the other: memory holds the fetched bytes and one row group.
   If the store makes calls ahead, threads decode the next two row groups in the meantime; for a
   `ConcurrentStore` one does.

Safety: the manifest's description of an object is trusted, its own bytes are not. If it was not
fetched whole, the footer's checksum is verified, and Parquet verifies that of each page. What
contradicts the manifest or itself is a `CorruptionError`; what was yielded before it is correct.

Arrow trusts any footer that it can parse: one that lacks a column's metadata, or nests its schema
deeply enough, ends the process, and anyone who can write to a log can write a footer with the right
checksum. So `read_footer` checks whatever Arrow trusts blindly, and says where columns are. The
`Reader` of Thrift's compact protocol, in which footers are, trusts no size before its bytes.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Final, TypeAlias

import pyarrow as pa
import xxhash

from clog.storage.env import dataclass, too_little_memory
from clog.storage.errors import CorruptionError, StoreUnavailableError
from clog.storage.format.chunks import FOOTER_SUM_BYTES, ObjectRef, damage
from clog.storage.format.log_info import LogSchema
from clog.storage.keys.key_index import BLOCK_ROWS
from clog.storage.numpy_arrays import nulls, parquet, to_numpy
from clog.storage.store.contract import BYTES_MAX, Decoding, HeldObject, Store, ahead, coalesce
from clog.storage.types.columns import (
    DELETE_HORIZON,
    DELETED,
    OFFSET,
    Kind,
    ObjectColumns,
    as_type,
    column_types,
    layout_of,
    projected,
)
from clog.storage.types.stored import Place, can_read, named_columns, place

BATCH_ROWS = BLOCK_ROWS
"""Default of ``batch_rows``, the most rows of a batch: one row group, which Arrow decodes in two
thirds of the time that two halves of it take.
"""
WHOLE_BYTES = 1 << 20
"""Up to this size objects are fetched whole: a second request costs more than it saves."""
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(1, 14)
"""Kinds of Thrift's values."""
DEPTH_MAX = 12
"""The nesting of structs and containers; Parquet's own need 7."""
VARINT_BYTES_MAX = 10
Struct: TypeAlias = dict[int, tuple[int, Any]]
"""Kind and value by field id."""
FOOTER_BYTES_MAX = 16 << 20
"""Room for 25,000 row groups. Part of the format."""
COLUMNS_MAX, TYPED_COLUMNS_MAX = 256, 4096
"""Elements of the schema, groups and leaves, for a log of bytes and for a typed one. Part of the
format.
"""
SCHEMA_DEPTH_MAX, TYPED_DEPTH_MAX = 8, 32
REMEMBERED_BYTES_MAX = 64 << 10
"""Longer footers are not cached, and checked each time."""
TAIL_BYTES: Final = 8
MAGIC: Final = b"PAR1"
BOOLEAN: Final = 0
BYTE_ARRAY: Final = 6
INT64 = REPEATED = 2
PHYSICAL_TYPES: Final = {
    kind: {kind.own(name): INT64 for name in ("timestamp", OFFSET, DELETE_HORIZON)} for kind in Kind
}
"""Parquet's numbers of the types of columns that are not groups. Those of typed keys and values are
compared with the schema.
"""
PHYSICAL_TYPES[Kind.BYTES] |= dict.fromkeys(("key", "value"), BYTE_ARRAY)
PHYSICAL_TYPES[Kind.TABLE] |= {DELETED: BOOLEAN}
_HEADERS_LEAVES: Final = {"key": BYTE_ARRAY, "value": BYTE_ARRAY}
_FILE_LISTS: Final = {5: STRUCT, 7: STRUCT}
_GROUP_LISTS: Final = {1: STRUCT, 4: STRUCT}
_COLUMN_LISTS: Final = {2: I32, 3: BINARY, 8: STRUCT, 13: STRUCT}
_SIZE_LISTS: Final = {2: I64, 3: I64}
_GEOMETRY_LISTS: Final = {2: I32}
"""By field: the kind of the elements, for all lists that Parquet defines."""
Choose: TypeAlias = Callable[[Any, Place, Sequence[int]], Collection[int]]
"""Returns which of some row groups are wanted, by Arrow's metadata, and where fields are."""


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
    """Yields the rows ``[first_row, first_row + rows)``, as `open_ranges` reads them."""
    batches = open_ranges(store, obj, [(first_row, rows)], columns=columns, schema=schema)
    for _, _, batch in batches(batch_rows):
        yield batch


def open_ranges(
    store: Store,
    obj: ObjectRef,
    ranges: Sequence[tuple[int, int]],
    *,
    columns: Sequence[str],
    schema: LogSchema | None = None,
    choose: Choose | None = None,
) -> Callable[[int], Iterator[tuple[int, int, pa.RecordBatch]]]:
    """Fetches several runs of rows, each ``(first row, rows)``; returns a function from the largest
    number of rows of a batch to an iterator of (index of the run, row in it, batch of rows from
    there on) in row order, which makes no requests. ``choose``: which row groups are wanted.

    The runs must be in the order of their rows and must not overlap. Batches have the ``columns``
    (of `ColumnTypes.rewritten` of the log's ``schema``, or fields of structs by path), in this
    order; those that the object lacks are all null.
    """
    wanted = _wanted(store, obj, ranges)
    source = _Source(store, obj, columns, schema)
    source.choose = choose
    return partial(_decoded, source, source.open(wanted) if wanted else [], wanted)


def _decoded(
    source: "_Source",
    groups: Sequence["_Group"],
    wanted: Sequence[tuple[int, int, int]],
    batch_rows: int,
) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    for group, batches in zip(groups, source.decode_all(groups, batch_rows), strict=False):
        runs = [run for run in wanted if run[1] < group.end and run[2] > group.start]
        at = group.start
        for batch in batches:
            for i, start, end in runs:
                low, high = max(start, at), min(end, at + batch.num_rows)
                if low < high:
                    yield i, low - start, batch.slice(low - at, high - low)
            at += batch.num_rows
            if at >= runs[-1][2]:
                break


def fetch_whole(store: Store, obj: ObjectRef) -> bytes:
    """Returns all bytes of an object, in one request, verified by its checksum."""
    if isinstance(store, HeldObject) and store.path == obj.path:
        return store.data
    data = store.get(obj.path, 0, obj.size_bytes)
    if (why := damage(data, obj)) is not None:
        raise _damaged(store, obj, why)
    return data


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a read of one object takes: decoded row groups, how many exist, and fetched bytes."""

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
    """Returns what `open_ranges` would take for the ranges; one request, for the footer."""
    source, wanted = _Source(store, obj, columns, schema), _wanted(store, obj, ranges)
    data = source.fetch_footer()
    found, groups, _ = source.groups(data, wanted)
    fetched = len(data) + FOOTER_SUM_BYTES + sum(e - b for b, e in coalesce(source.places(groups)))
    whole = source.is_fetched_whole(wanted)
    return Footprint(obj.path, len(groups), len(found), obj.size_bytes if whole else fetched)


def _wanted(
    store: Store, obj: ObjectRef, ranges: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """Returns the runs that have any rows, as (index, first row, end)."""
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
    """Rows ``[start, end)`` of an object, its row group ``number``, and where its columns are."""

    number: int
    start: int
    end: int
    pages: tuple[tuple[str, int, int], ...]


class FetchedParts:
    """The fetched parts of an object, by their places, as a file; reading other parts fails."""

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


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Its number of rows; and by the path of each leaf the half-open byte range of its pages."""

    rows: int
    pages: tuple[tuple[str, int, int], ...]


@lru_cache(maxsize=256)
def _projection(schema: LogSchema | None, columns: tuple[str, ...]) -> pa.Schema:
    return projected(column_types(schema).rewritten, columns)


class _Source:
    """One object being read."""

    def __init__(
        self, store: Store, obj: ObjectRef, columns: Sequence[str], schema: LogSchema | None
    ) -> None:
        self._store, self._obj = store, obj
        self.choose: Choose | None = None
        self._layout, self._typed = layout_of(schema), schema
        self._all = column_types(schema).rewritten
        self._schema = _projection(schema, tuple(columns))
        self._columns: ObjectColumns
        self._stored: list[str] = []
        self._named_by: LogSchema | None = None
        self._file: Any = None

    def open(self, wanted: Sequence[tuple[int, int, int]]) -> list[_Group]:
        """Fetches what the wanted runs need; returns the row groups they are in."""
        whole = self.is_fetched_whole(wanted)
        data = fetch_whole(self._store, self._obj) if whole else self.fetch_footer()
        _, groups, metadata = self.groups(data, wanted)
        places = [] if whole else self.places(groups)
        handle = pa.BufferReader(data) if whole else pa.PythonFile(self._fetch(places), mode="r")
        with self._decoding("its footer"):
            self._file = parquet().ParquetFile(
                handle,
                metadata=metadata,
                page_checksum_verification=not whole,
                pre_buffer=False,  # Everything is in memory; reading ahead would start threads.
            )
        return groups

    def groups(
        self, data: bytes, wanted: Sequence[tuple[int, int, int]]
    ) -> tuple[Sequence[RowGroup], list[_Group], Any]:
        """Returns all row groups, those that the wanted runs need, and Arrow's metadata."""
        obj = self._obj
        with self._decoding("its footer"):
            footer, end = data[-obj.footer_bytes :], obj.tail[0]
            found = read_footer(footer, rows=obj.rows, pages_end=end, kind=self._layout.kind)
            offset = self._layout.kind.own(OFFSET)
            has_offsets = any(path == offset for path, _, _ in found[0].pages)
            if has_offsets == obj.dense:
                raise self._damaged(
                    f"the manifest says dense={obj.dense}, its columns say otherwise"
                )
            metadata = parquet().read_metadata(pa.BufferReader(data))
            self._columns = self._layout.of(metadata.schema.to_arrow_schema())
            where = self._check_types(self._columns.schema)
        needed = []
        start = 0
        for number, group in enumerate(found):
            end = start + group.rows
            if any(first < end and until > start for _, first, until in wanted):
                needed.append(_Group(number, start, end, group.pages))
            start = end
        if self.choose is not None:
            with self._decoding("its statistics"):
                chosen = self.choose(metadata, where, [group.number for group in needed])
            needed = [group for group in needed if group.number in chosen]
        return found, needed, metadata

    def is_fetched_whole(self, wanted: Sequence[tuple[int, int, int]]) -> bool:
        rows = sum(end - start for _, start, end in wanted)
        # Also without keys: they are seldom large compared to values, and this saves a request.
        everything = rows == self._obj.rows and "value" in self._schema.names and not self.choose
        everything = everything and self._schema.field("value") == self._all.field("value")
        return everything or self._obj.size_bytes <= WHOLE_BYTES

    def decode_all(
        self, groups: Sequence[_Group], batch_rows: int
    ) -> Iterator[Iterable[pa.RecordBatch]]:
        """Yields the rows of each group; several are decoded whole, at most two of them ahead."""
        if len(groups) == 1:
            return iter([self.decode(groups[0], batch_rows)])

        def decoded(group: _Group) -> list[pa.RecordBatch]:
            return list(self.decode(group, batch_rows))

        calls = ((Decoding(decoded, group), BYTES_MAX // 2) for group in groups)
        return ahead(self._store, calls)

    def decode(self, group: _Group, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a group, from its first."""
        where = f"row group {group.number}"
        with self._decoding(where):
            batches = self._batches(group, batch_rows)
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

    def _batches(self, group: _Group, batch_rows: int) -> Iterator[pa.RecordBatch]:
        asked = {"columns": self._stored, "use_threads": False}
        if group.end - group.start > batch_rows:
            return iter(self._file.iter_batches(batch_rows, row_groups=[group.number], **asked))
        # This takes a sixth less CPU than reading by batches.
        return iter(self._file.read_row_group(group.number, **asked).to_batches())

    def _complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the batch with the requested columns, of which absent ones are null."""
        batch = self._columns.nested(batch)
        check_rows(batch)
        by = self._named_by
        read = batch.schema if by is None else named_columns(batch.schema, by)
        arrays = [
            as_type(batch.column(at), field.type, read.field(at).type)  # By `_check_types`.
            if (at := read.get_field_index(field.name)) >= 0
            else nulls(batch.num_rows, field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def fetch_footer(self) -> bytes:
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
        parts, size = self._store.get_ranges(self._obj.path, places), self._obj.size_bytes
        for (start, end), part in zip(places, parts, strict=True):
            if len(part) != end - start:
                raise self._damaged(f"it has {start + len(part)} bytes, expected {size}")
        return FetchedParts(places, parts, size)

    def places(self, groups: Sequence[_Group]) -> list[tuple[int, int]]:
        """Returns the half-open ranges of bytes of the groups' columns that are read."""
        paths = {path for group in groups[:1] for path, _, _ in group.pages}
        whole = tuple(f"{column}." for column in self._stored)
        read = {path for path in paths if path in self._stored or path.startswith(whole)}
        return [
            (start, end) for group in groups for path, start, end in group.pages if path in read
        ]

    def _check_types(self, stored: pa.Schema) -> Place:
        """Raises if a column has no type of the log's schemas; returns where fields are."""
        named = stored if self._typed is None else named_columns(stored, self._typed)
        fits = pa.DataType.equals if self._typed is None else can_read
        for field in (f for f in named if f.name in self._all.names):  # Or a newer clog's.
            if not fits(field.type, kind := self._all.field(field.name).type):
                found = f"its column {field.name} has type {field.type}"
                raise self._damaged(f"{found}, expected {kind}")
        self._named_by = None if named is stored else self._typed
        # Some column must count the rows.
        self._stored = self._columns.leaves(self._schema, named) or [
            self._layout.kind.own("timestamp")
        ]
        return partial(self._place, named)

    def _place(self, named: pa.Schema, path: str) -> tuple[str, pa.DataType] | None:
        found = place(self._columns.schema, named, path)
        return None if found is None else (self._columns.path(found[0]), found[1])

    @contextmanager
    def _decoding(self, what: str) -> Iterator[None]:
        """Reports any error of Arrow's decoding as damage: bad bytes are its only cause here."""
        try:
            yield
        except StoreUnavailableError:
            raise
        except MemoryError as e:  # Arrow's own is an ArrowException, too.
            raise too_little_memory(f"{self._obj.path} of {self._store.url}") from e
        except (pa.ArrowException, OSError, ValueError) as e:
            raise self._damaged(f"{what} does not decode: {e}") from e

    def _damaged(self, what: str) -> CorruptionError:
        return _damaged(self._store, self._obj, what)


def _damaged(store: Store, obj: ObjectRef, what: str) -> CorruptionError:
    return CorruptionError(
        f"{obj.path} of {store.url} is damaged: {what}; keep the file, restore it from a copy"
    )


def check_rows(rows: pa.RecordBatch) -> None:
    """Raises if stored rows contain what the format forbids, in any present column."""
    names = rows.schema.names
    if "timestamp" in names and rows.num_rows:
        times = rows.column("timestamp")
        if times.null_count or to_numpy(times.view(pa.int64())).min() < 0:
            raise ValueError("it has timestamps that are null or before 1970")
    if OFFSET in names and rows.column(OFFSET).null_count:
        raise ValueError("it has rows without offsets")
    if "headers" in names and rows.column("headers").null_count < rows.num_rows:
        pairs = rows.column("headers").flatten()
        if pairs.null_count or pairs.field(0).null_count:
            raise ValueError("it has headers that are null or have no key")


class ThriftError(ValueError):
    """The bytes are not a valid value."""


class Reader:
    """Reads one value after the other; ``at`` is where the next one begins.

    A value comes with its *kind*, the number of its type in the bytes, so that everything can be
    written again (`written`) as Parquet's own writers do, including unknown fields. A struct is a
    dict from field id to (kind, value), a list or set is (kind of its elements, values); a map,
    which Parquet does not use, stays bytes. Integers may have any width. Every step consumes a
    byte, and no size is trusted before its bytes were seen, so the output is in proportion to the
    input, and the reader terminates. Nesting is bounded.
    """

    __slots__ = ("_data", "at")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self.at = at

    def struct(self, depth: int = DEPTH_MAX) -> Struct:
        """Reads a struct. Raises `ThriftError` if it is invalid, or its fields do not ascend."""
        found: Struct = {}
        data, at, field = self._data, self.at, 0
        # Most of a footer's bytes are read here, so frequent kinds are read in place.
        try:
            while head := data[at]:
                kind, step = head & 15, head >> 4
                low = data[at + 1]
                if step and I16 <= kind <= I64 and low < 128:
                    at += 2
                    field += step
                    found[field] = (kind, (low >> 1) ^ -(low & 1))
                    continue
                self.at = at + 1
                field = field + step if step else self._far_field(field)
                found[field] = (kind, self.value(kind, depth))
                at = self.at
        except IndexError:
            raise ThriftError("it ends early") from None
        self.at = at + 1
        return found

    def field(self, before: int) -> tuple[int, int] | None:
        """Reads the header of the field after the one with id ``before``: its id and kind. Returns
        None at the end of the struct.
        """
        head = self._byte()
        if head == 0:
            return None
        return before + (head >> 4) if head >> 4 else self._far_field(before), head & 15

    def value(self, kind: int, depth: int = DEPTH_MAX) -> Any:
        """Reads the value of a field of this kind."""
        if I16 <= kind <= I64:
            number = self._varint()
            return (number >> 1) ^ -(number & 1)
        if kind == BINARY:
            return self.octets(self._varint())
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if depth == 0:
            raise ThriftError(f"values are nested more than {DEPTH_MAX} deep")
        if kind == STRUCT:
            return self.struct(depth - 1)
        if kind in (LIST, SET):
            count, of = self.list_header()
            return of, self._elements(of, count, depth - 1)
        if kind == MAP:
            return self._map(depth - 1)
        widths = {BYTE: 1, DOUBLE: 8, UUID: 16}
        if kind not in widths:
            raise ThriftError(f"there is no kind {kind}")
        return self.octets(widths[kind])

    def list_header(self) -> tuple[int, int]:
        """Reads how many elements follow, and of which kind."""
        head = self._byte()
        return self._count(head >> 4 if head >> 4 != 15 else self._varint()), head & 15

    def octets(self, count: int) -> bytes:
        """Reads this many bytes."""
        start, self.at = self.at, self.at + self._count(count)
        return self._data[start : self.at]

    def _far_field(self, before: int) -> int:
        """Reads the id of a field that is more than 15 above the previous one's."""
        field: int = self.value(I64)
        if field <= before:
            raise ThriftError(f"field {field} comes after field {before}")
        return field

    def _elements(self, kind: int, count: int, depth: int) -> list[Any]:
        if kind in (TRUE, FALSE):  # In a container each truth value takes a byte.
            return [octet == TRUE for octet in self.octets(count)]
        if kind == STRUCT and depth:
            return [self.struct(depth - 1) for _ in range(count)]
        return [self.value(kind, depth) for _ in range(count)]

    def _map(self, depth: int) -> bytes:
        """Skips a map: the number of pairs, both kinds, the pairs; returns its bytes."""
        start = self.at
        count = self._count(self._varint())
        kinds = self._byte() if count else 0
        for _ in range(count):
            self._elements(kinds >> 4, 1, depth)
            self._elements(kinds & 15, 1, depth)
        return self._data[start : self.at]

    def _count(self, count: int) -> int:
        """Checks a number of bytes, or of elements, each of which takes at least one byte."""
        left = len(self._data) - self.at
        if count > left:
            raise ThriftError(f"{count} bytes or elements do not fit into the {left} bytes left")
        return count

    def _byte(self) -> int:
        try:
            found = self._data[self.at]
        except IndexError:
            raise ThriftError("it ends early") from None
        self.at += 1
        return found

    def _varint(self) -> int:
        found = self._byte()
        if found < 128:
            return found
        number, shift = found & 127, 7
        for _ in range(VARINT_BYTES_MAX - 1):
            found = self._byte()
            number |= (found & 127) << shift
            if found < 128:
                if number >> 64:
                    break
                return number
            shift += 7
        raise ThriftError("a number has more than 64 bits")


class FooterError(ValueError):
    """The footer is not valid for such an object."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column in Parquet's sense: a leaf of the schema's tree."""

    path: tuple[str, ...]
    kind: int
    repeats: bool


def read_footer(
    footer: bytes, *, rows: int, pages_end: int, kind: Kind = Kind.BYTES
) -> tuple[RowGroup, ...]:
    """Returns the row groups in the footer, given with its tail, of an object with this many rows
    whose pages end before the byte ``pages_end``, and whose columns are of this kind. Raises
    `FooterError` if it contradicts the format (§5.1):

    F1. The tail says Parquet, unencrypted, and the length that the manifest has.
    F2. The footer is one struct of Thrift's compact protocol, and lists have the right element
        types, which parsers generated from Parquet's definitions do not check.
    F3. The schema is a tree of bounded depth and size. Names of columns do not repeat, and columns
        that the format knows have its physical types; the others come from a newer clog.
    F4. Each row group has one chunk for each leaf of the tree, of its type and under its path, in
        this file, with as many values as rows, unless they repeat. Its bytes are before the key
        index.
    F5. The row groups' rows add up to those of the object.

    Logical types, statistics and pages are not checked: Arrow raises an error for bad logical
    types, and decodes statistics if a filter needs them. The check takes a tenth of a millisecond
    for each row group of seven columns; its result is cached by the bytes.
    """
    remembered = len(footer) <= REMEMBERED_BYTES_MAX
    return (_read_once if remembered else _read)(footer, rows, pages_end, kind=kind)


def _read(footer: bytes, rows: int, pages_end: int, *, kind: Kind) -> tuple[RowGroup, ...]:
    try:
        return _read_parts(footer, rows, pages_end, kind=kind)
    except ThriftError as e:
        raise FooterError(f"it is not a footer: {e}") from e


_read_once = lru_cache(64)(_read)


def _read_parts(footer: bytes, rows: int, pages_end: int, *, kind: Kind) -> tuple[RowGroup, ...]:
    length = len(footer) - TAIL_BYTES
    tail = footer[-TAIL_BYTES:]
    if length < 0 or tail[4:] != MAGIC or int.from_bytes(tail[:4], "little") != length:
        raise FooterError(f"its tail is {tail.hex()}, not its length of {length} bytes and PAR1")
    if length > FOOTER_BYTES_MAX:
        raise FooterError(f"it has {length} bytes, more than {FOOTER_BYTES_MAX}")
    reader = Reader(footer[:length])
    leaves: list[_Leaf] = []
    groups: tuple[RowGroup, ...] = ()
    counted = -1
    field = 0
    while (header := reader.field(field)) is not None:
        field, of = header
        if field in (8, 9):
            raise FooterError("it is encrypted")
        if field == 4:
            groups = _row_groups(reader, of, leaves, pages_end)
            continue
        found = {field: (of, reader.value(of))}
        if field == 2:
            leaves = _leaves_of(_structs(found, 2, "schema"), kind)
        elif field == 3:
            counted = _integer(found, 3, I64, "rows")
        else:
            _check_lists(found, _FILE_LISTS)
    if reader.at != length:
        raise FooterError(f"it is followed by {length - reader.at} more bytes")
    grouped = sum(group.rows for group in groups)
    if not leaves or not counted == grouped == rows:
        raise FooterError(f"it counts {counted} rows, its row groups {grouped}, expected {rows}")
    return groups


def _leaves_of(elements: list[Struct], kind: Kind) -> list[_Leaf]:
    """Returns the leaves of the tree that a schema lists in preorder."""
    typed = kind is not Kind.BYTES
    columns_max = TYPED_COLUMNS_MAX if typed else COLUMNS_MAX
    if len(elements) > columns_max:
        raise FooterError(f"its schema has {len(elements)} elements, more than {columns_max}")
    leaves: list[_Leaf] = []
    rest = iter(elements)
    depth_max = TYPED_DEPTH_MAX if typed else SCHEMA_DEPTH_MAX
    _add_children(rest, next(rest, {}), (), leaves, repeats=False, depth_max=depth_max)
    if next(rest, None) is not None:
        raise FooterError("its schema has elements outside its tree")
    names = {leaf.path[0] for leaf in leaves}
    needed = {kind.own("timestamp"), *(("key", "value") if kind is not Kind.TABLE else ())}
    if missing := needed - names:
        raise FooterError(f"its columns are {sorted(names)}, expected {sorted(missing)} too")
    for leaf in leaves:
        _check_leaf(leaf, leaves, kind)
    return leaves


def _add_children(
    rest: Any,
    parent: Struct,
    path: tuple[str, ...],
    leaves: list[_Leaf],
    *,
    repeats: bool,
    depth_max: int,
) -> None:
    if len(path) > depth_max:
        raise FooterError(f"its schema is nested more than {depth_max} deep")
    seen: set[str] = set()
    children = _integer(parent, 5, I32, "children of a group")
    if children <= 0:
        raise FooterError(f"its schema has a group of {children} columns")
    for _ in range(children):
        element = next(rest, None)
        if element is None:
            raise FooterError("its schema ends early")
        name = _text(element.get(4, (0, b""))[1])
        if name in seen:
            raise FooterError(f"its schema has two columns {name!r}")
        seen.add(name)
        repetition = _integer(element, 3, I32, "repetition")
        if not 0 <= repetition <= REPEATED:
            raise FooterError(f"its column {name!r} has repetition {repetition}")
        again = repeats or repetition == REPEATED
        if 5 in element and _integer(element, 5, I32, "children of a group"):
            below = (*path, name)
            _add_children(rest, element, below, leaves, repeats=again, depth_max=depth_max)
        else:
            kind = _integer(element, 1, I32, "type of a column")
            leaves.append(_Leaf((*path, name), kind, again))


def _check_leaf(leaf: _Leaf, leaves: list[_Leaf], kind: Kind) -> None:
    """Checks a leaf against the format's rules for its column."""
    column = leaf.path[0]
    expected = PHYSICAL_TYPES[kind].get(column)
    if expected is not None:
        wrong = leaf.path != (column,) or leaf.kind != expected or leaf.repeats
    elif column == kind.own("headers"):
        found = {other.path[-1]: other.kind for other in leaves if other.path[0] == column}
        wrong = found != _HEADERS_LEAVES or not leaf.repeats
    else:
        wrong = not 0 <= leaf.kind <= 7
    if wrong:
        raise FooterError(f"its column {'.'.join(leaf.path)!r} has type {leaf.kind}")


def _row_groups(
    reader: Reader, kind: int, leaves: list[_Leaf], pages_end: int
) -> tuple[RowGroup, ...]:
    if kind != LIST:
        raise FooterError("its row groups are not a list")
    count, of = reader.list_header()
    if count and of != STRUCT:
        raise FooterError("its row groups are not structs")
    found = []
    for number in range(count):
        group = reader.struct()
        try:
            found.append(_row_group(group, leaves, pages_end))
        except FooterError as e:
            raise FooterError(f"row group {number}: {e}") from None
    return tuple(found)


def _row_group(group: Struct, leaves: list[_Leaf], pages_end: int) -> RowGroup:
    _check_lists(group, _GROUP_LISTS)
    chunks, rows = _structs(group, 1, "columns"), _integer(group, 3, I64, "rows")
    if len(chunks) != len(leaves) or rows < 0:
        raise FooterError(f"it has {len(chunks)} columns and {rows} rows, expected {len(leaves)}")
    pages = []
    for chunk, leaf in zip(chunks, leaves, strict=True):
        if not chunk.keys().isdisjoint((1, 8, 9)):
            raise FooterError(f"column {leaf.path} is in another file, or encrypted")
        kind, column = chunk.get(3, (0, {}))
        if kind != STRUCT:
            raise FooterError(f"column {leaf.path} has no metadata")
        _check_column(column, leaf, rows)
        pages.append((".".join(leaf.path), *_place(column, leaf, pages_end)))
    return RowGroup(rows, tuple(pages))


def _check_column(column: Struct, leaf: _Leaf, rows: int) -> None:
    _check_lists(column, _COLUMN_LISTS)
    _check_lists(_struct(column, 16), _SIZE_LISTS)
    _check_lists(_struct(column, 17), _GEOMETRY_LISTS)
    if _integer(column, 1, I32, "type") != leaf.kind:
        raise FooterError(f"column {leaf.path} is not of its type in the schema")
    path = column.get(3, (0, (0, [])))[1][1]
    if tuple(map(_text, path)) != leaf.path:
        raise FooterError(f"column {leaf.path} is under another path")
    if not 0 <= _integer(column, 4, I32, "compression") <= 7:
        raise FooterError(f"column {leaf.path} has an unknown compression")
    values = _integer(column, 5, I64, "values")
    if values < rows or (values > rows and not leaf.repeats):
        raise FooterError(f"column {leaf.path} has {values} values in {rows} rows")


def _place(column: Struct, leaf: _Leaf, pages_end: int) -> tuple[int, int]:
    start = _integer(column, 9, I64, "place of pages")
    if 11 in column and (dictionary := _integer(column, 11, I64, "place of a dictionary")) > 0:
        start = min(start, dictionary)
    length, unpacked = _integer(column, 7, I64, "length"), _integer(column, 6, I64, "true length")
    if start < len(MAGIC) or length < 0 or unpacked < 0 or start + length > pages_end:
        raise FooterError(
            f"column {leaf.path} has {length} bytes from {start} on, but pages end at {pages_end}"
        )
    return start, start + length


def _check_lists(struct: Struct, kinds: Mapping[int, int]) -> None:
    for field in struct.keys() & kinds.keys():
        kind, value = struct[field]
        if kind != LIST or (value[1] and value[0] != kinds[field]):
            raise FooterError(f"field {field} is not a list of kind {kinds[field]}")


def _structs(struct: Struct, field: int, what: str) -> list[Struct]:
    kind, value = struct.get(field, (0, None))
    if kind != LIST or (value[1] and value[0] != STRUCT):
        raise FooterError(f"its {what} is not a list of structs")
    structs: list[Struct] = value[1]
    return structs


def _struct(struct: Struct, field: int) -> Struct:
    kind, value = struct.get(field, (STRUCT, {}))
    if kind != STRUCT:
        raise FooterError(f"field {field} is not a struct")
    found: Struct = value
    return found


def _integer(struct: Struct, field: int, kind: int, what: str) -> int:
    """Returns a required integer of 32 or 64 bits."""
    found, value = struct.get(field, (0, None))
    if found != kind or (kind == I32 and not -(1 << 31) <= value < 1 << 31):
        raise FooterError(f"its {what} is missing or not such a number")
    number: int = value
    return number


def _text(name: Any) -> str:
    try:
        return str(name, "utf-8") if isinstance(name, bytes) else ""
    except UnicodeDecodeError as e:
        raise FooterError("a column's name is not UTF-8") from e
