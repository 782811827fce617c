"""Data objects (FORMAT.md §5): checked bytes, the Parquet columns, bitmaps, and records."""

import io
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from second_reader.documents import MIB, DamagedError, Folder, Json, inflate, integer, need
from second_reader.keys import index_blocks, kept_part, key_hash
from second_reader.state import Chunk, DataObject
from second_reader.types import (
    PLAIN,
    Field,
    Schema,
    canonical,
    check_column,
    check_id,
    has_id,
    id_of,
    value_size,
    values,
)

OWN = ("headers", "timestamp", "offset", "delete_horizon")
DELETED = "_clog_deleted"
IDS = {"headers": 3, "timestamp": 7, "delete_horizon": 8, "offset": 2147483540}


@dataclass(frozen=True)
class Record:
    """A record as a reader gets it."""

    offset: int
    timestamp_us: int
    key: Any
    value: Any
    headers: list[tuple[str | None, bytes | None]] | None
    delete_horizon: int | None


@dataclass(frozen=True)
class Rows:
    """All rows of an object, column by column; ``horizons`` has no negative one."""

    keys: list[Any]
    key_bytes: list[bytes | None]
    values: list[Any]
    headers: list[list[tuple[str | None, bytes | None]] | None]
    timestamps: list[int]
    offsets: list[int] | None
    horizons: list[int | None]
    value_sizes: list[int]


def read_object(folder: Folder, described: DataObject, schema: Schema) -> Rows:
    """The rows of an object, read by a schema, after its bytes were checked."""
    raw = folder.read(described.path)
    need(len(raw) == described.bytes, "3.3", f"{described.path} has {len(raw)} bytes")
    need(
        xxhash.xxh3_128_hexdigest(raw) == described.xxh3_128,
        "3.3",
        f"{described.path} has another checksum",
    )
    footer = _check_footer(raw, described)
    try:
        parquet = pq.ParquetFile(io.BytesIO(raw), page_checksum_verification=True)
        _check_layout(parquet, described, footer, schema)
        table = parquet.read()
    except (pa.ArrowException, OSError) as error:
        raise DamagedError("5.1", f"{described.path}: {error}") from error
    return _rows(table, described, schema)


def _check_footer(raw: bytes, described: DataObject) -> int:
    """Checks the tail, the footer's checksum before it and the index; where the footer begins."""
    need(raw[:4] == raw[-4:] == b"PAR1" and len(raw) >= 12 + 16, "5.1", "no plain Parquet file")
    size = int.from_bytes(raw[-8:-4], "little") + 8
    begin = len(raw) - size
    need(size == described.footer and size <= 16 * MIB, "5.1", "a footer of another size")
    need(begin - 16 - described.index >= 4, "5.1", "no room for the footer")
    need(
        raw[begin - 16 : begin] == xxhash.xxh3_128_digest(raw[begin:]),
        "5.1",
        "wrong checksum of the footer",
    )
    return begin - 16 - described.index


def _check_layout(parquet: pq.ParquetFile, described: DataObject, end: int, schema: Schema) -> None:
    metadata = parquet.metadata
    need(metadata.num_rows == described.rows, "5.1", "another number of rows")
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    need(
        sum(group.num_rows for group in groups) == described.rows, "5.1", "row groups do not add up"
    )
    paths = [metadata.schema.column(i).path for i in range(len(metadata.schema))]
    for group in groups:
        chunks = [group.column(i) for i in range(group.num_columns)]
        need(
            [chunk.path_in_schema for chunk in chunks] == paths, "5.1", "column chunks out of order"
        )
        for chunk in chunks:
            first = min(
                filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)), default=0
            )
            need(
                first >= 4 and first + chunk.total_compressed_size <= end,
                "5.1",
                "pages out of place",
            )
    _check_names(parquet.schema_arrow, 1, 8 if schema is PLAIN else 32)


def _check_names(fields: Any, depth: int, deepest: int) -> None:
    names = [each.name for each in fields]
    need(
        len(set(names)) == len(names) and depth <= deepest, "5.1", "names repeat, or nest too deep"
    )
    for each in fields:
        if pa.types.is_nested(each.type):
            _check_names(
                [each.type.field(i) for i in range(each.type.num_fields)], depth + 1, deepest
            )


def _nested(table: pa.Table, schema: Schema) -> pa.Table:
    """The columns of §5.1, made of a table's (§22)."""
    fields = {
        int((each.metadata or {}).get(b"PARQUET:field_id", -1)): each for each in table.schema
    }
    gone = [False] * table.num_rows
    if DELETED in table.column_names:
        check_id(table.schema.field(DELETED), 9)
        gone = table.column(DELETED).to_pylist()
        need(all(each in (True, False) for each in gone), "22", "rows that are neither")
    named: list[pa.Field] = []
    arrays: list[Any] = []

    def struct(name: str, number: int, parts: tuple[Field, ...], rows_without: list[bool]) -> None:
        there = [each for each in parts if each.id in fields]
        columns = [table.column(fields[each.id].name).combine_chunks() for each in there]
        for each, column in zip(there, columns, strict=True):
            need(
                fields[each.id].name == (each.column or each.name),
                "22",
                f"a column of another name than {each.name}",
            )
            nulls = column.is_null().to_pylist()
            need(
                not each.required or nulls == rows_without,
                "22",
                f"{each.name} is null, or not, in other rows than may be",
            )
        inner = [fields[each.id].with_nullable(not each.required) for each in there]
        if name == "value":  # What it held of fields that were dropped counts, too (§12.4).
            known = {each.id for each in (*schema.key_columns, *schema.value.fields)}
            gone_since = [one for number, one in fields.items() if 16 <= number < 2**31 - 1000]
            gone_since = [one for one in gone_since if id_of(one) not in known]
            inner += gone_since
            columns += [table.column(one.name).combine_chunks() for one in gone_since]
        mask = pa.array(rows_without, pa.bool_())
        arrays.append(pa.StructArray.from_arrays(columns, fields=inner, mask=mask))
        about = {b"PARQUET:field_id": str(number).encode()}
        named.append(pa.field(name, arrays[-1].type, metadata=about))

    if schema.key.type == "struct":
        struct("key", 1, schema.key.fields, [False] * table.num_rows)
    else:
        own = schema.key.column or "key"
        need(1 in fields and fields[1].name == own, "22", "no column of the key")
        named.append(fields[1].with_name("key"))
        arrays.append(table.column(fields[1].name))
        need(arrays[-1].null_count == 0, "22", "a row without a key")
    struct("value", 2, schema.value.fields, gone)
    for name in OWN:
        if f"_clog_{name}" in table.column_names:
            named.append(table.schema.field(f"_clog_{name}").with_name(name))
            arrays.append(table.column(f"_clog_{name}"))
    return pa.table(arrays, schema=pa.schema(named))


def _rows(table: pa.Table, described: DataObject, schema: Schema) -> Rows:
    if schema.is_table:
        table = _nested(table, schema)
    stored = {each.name: each for each in table.schema}
    arrays = {name: table.column(name).combine_chunks() for name in stored}
    arrays = {
        n: pa.concat_arrays(a.chunks) if isinstance(a, pa.ChunkedArray) else a
        for n, a in arrays.items()
    }
    need({"key", "value", "timestamp"} <= set(stored), "5.1", "a column is missing")
    with_ids = schema is not PLAIN or any(map(has_id, table.schema))
    for field in (schema.key, schema.value):
        check_column(stored[field.name], field, ids=with_ids, last=schema.last_field_id)
    if with_ids:
        check_ids(stored)
    need(stored["timestamp"].type == pa.timestamp("us", "UTC"), "5.1", "timestamps of another type")
    timestamps = arrays["timestamp"].cast(pa.int64()).to_pylist()
    need(
        all(each is not None and each >= 0 for each in timestamps),
        "5.1",
        "a timestamp before 1970, or none",
    )
    need(described.dense == ("offset" not in stored), "5.1", "offsets where the object is dense")
    keys = values(arrays["key"], schema.key)
    raw = values(arrays["key"], schema.key, raw=True)
    none: list[Any] = [None] * table.num_rows
    horizons = _integers(arrays, "delete_horizon") or none
    return Rows(
        keys,
        [None if key is None else canonical(key, schema.key) for key in raw],
        values(arrays["value"], schema.value),
        _headers(arrays["headers"]) if "headers" in arrays else none,
        timestamps,
        None
        if described.dense
        else [integer(each, "5.2") for each in _integers(arrays, "offset") or []],
        [None if each is None or each < 0 else each for each in horizons],
        [value_size(each, arrays["value"].type) for each in _plain(arrays["value"])],
    )


def _plain(array: pa.Array) -> list[Any]:
    """Python values as they are stored; of what has a fixed size, only whether it is null."""
    kind = array.type
    if pa.types.is_struct(kind):
        parts = [_plain(array.field(i)) for i in range(kind.num_fields)]
        names, valid = [each.name for each in kind], array.is_valid().to_pylist()
        rows = [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]
        return [row if ok else None for row, ok in zip(rows, valid, strict=True)]
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        inner = _plain(array.values) if pa.types.is_list(kind) else []
        if pa.types.is_map(kind):
            inner = list(zip(_plain(array.keys), _plain(array.items), strict=True))
        ends, valid = array.offsets.to_pylist(), array.is_valid().to_pylist()
        return [inner[ends[i] : ends[i + 1]] if valid[i] else None for i in range(len(array))]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return list(array.to_pylist())
    return [0 if ok else None for ok in array.is_valid().to_pylist()]


def check_ids(stored: dict[str, pa.Field]) -> None:
    """Refuses other columns than key and value without their ids (§5.1)."""
    for name, number in IDS.items():
        if name in stored:
            check_id(stored[name], number)
    if "headers" in stored:
        element = stored["headers"].type.value_field
        check_id(element, 4)
        check_id(element.type.field("key"), 5)
        check_id(element.type.field("value"), 6)


def _integers(arrays: dict[str, pa.Array], name: str) -> list[Any] | None:
    if name not in arrays:
        return None
    need(arrays[name].type == pa.int64(), "5.1", f"{name} is no int64")
    return list(arrays[name].to_pylist())


def _headers(array: pa.Array) -> list[list[tuple[str | None, bytes | None]] | None]:
    kind = array.type
    need(
        pa.types.is_list(kind) and pa.types.is_struct(kind.value_type),
        "5.1",
        "headers are no list of structs",
    )
    need(kind.value_type.field("key").type == pa.string(), "5.1", "a header's key is no string")
    need(kind.value_type.field("value").type == pa.binary(), "5.1", "a header's value is no binary")
    rows = array.to_pylist()
    need(
        all(each is not None and each["key"] is not None for row in rows for each in row or ()),
        "5.1",
        "a header that is null or has no key",
    )
    return [None if row is None else [(each["key"], each["value"]) for each in row] for row in rows]


def dead_rows(folder: Folder, chunk: Chunk) -> set[int]:
    """The dead rows of a chunk, counted from its first (§5.4)."""
    return set() if chunk.dead is None else set_bits(folder, chunk.dead, chunk.rows, "5.4")


def set_bits(folder: Folder, marks: Json, rows: int, section: str) -> set[int]:
    """The rows of a bitmap of a chunk with this many."""
    if "path" in marks:
        stream = folder.read(marks["path"])
        need(len(stream) == marks["bytes"], section, f"{marks['path']} has {len(stream)} bytes")
        need(
            xxhash.xxh3_128_hexdigest(stream) == marks["xxh3_128"],
            section,
            "a bitmap with another checksum",
        )
    else:
        try:
            stream = bytes.fromhex(marks["bits"])
        except ValueError as error:
            raise DamagedError(section, "bits that are not hex") from error
    size = (rows + 7) // 8
    bits = inflate(stream, size, section)
    need(len(bits) == size, section, "a bitmap of another length")
    dead = {i for i in range(8 * size) if bits[i // 8] >> i % 8 & 1}
    need(
        len(dead) == marks["rows"] and max(dead, default=0) < rows,
        section,
        "a bitmap of other rows",
    )
    return dead


def chunk_offsets(chunk: Chunk, rows: Rows) -> list[int]:
    """The offsets of a chunk's rows, checked (§5.2)."""
    if rows.offsets is None:
        return list(range(chunk.base, chunk.base + chunk.rows))
    offsets = rows.offsets[chunk.row : chunk.row + chunk.rows]
    need(chunk.base <= offsets[0] and offsets[-1] < chunk.next, "5.2", "offsets out of their chunk")
    need(
        all(a < b for a, b in pairwise(offsets)),
        "5.2",
        "offsets do not ascend",
    )
    return offsets


def records(chunk: Chunk, rows: Rows, dead: set[int]) -> list[Record]:
    """The records of a chunk that are not dead."""
    found = []
    for i, offset in enumerate(chunk_offsets(chunk, rows)):
        row = chunk.row + i
        if i in dead:
            continue
        horizon = None
        if rows.values[row] is None:
            horizon = rows.horizons[row]
            if horizon is None and chunk.horizon >= 0 and offset < chunk.up_to:
                horizon = chunk.horizon
        time_us = chunk.append_time_ms * 1000 if chunk.append_time_ms >= 0 else rows.timestamps[row]
        key, value, headers = rows.keys[row], rows.values[row], rows.headers[row]
        found.append(Record(offset, time_us, key, value, headers, horizon))
    return found


def check_statistics(chunk: Chunk, rows: Rows) -> None:
    """Refuses a chunk whose statistics are not those of its rows (§3.3)."""
    span = range(chunk.row, chunk.row + chunk.rows)
    size = 12 * chunk.rows
    for i in span:
        pairs = rows.headers[i] or []
        key = rows.key_bytes[i]
        size += len(key or b"") + rows.value_sizes[i]
        size += sum(len((name or "").encode()) + len(value or b"") for name, value in pairs)
    need(size == chunk.bytes, "3.3", f"a chunk has {size} bytes instead of {chunk.bytes}")
    times = [chunk.append_time_ms] * 2
    if chunk.append_time_ms < 0:
        times = [rows.timestamps[chunk.row] // 1000, max(rows.timestamps[i] for i in span) // 1000]
    need(times == [chunk.first_ms, chunk.max_ms], "3.3", "a chunk has other times")
    need(
        chunk.tombstones == sum(rows.values[i] is None for i in span),
        "3.3",
        "a chunk has other tombstones",
    )
    horizons = [each for i in span if (each := rows.horizons[i]) is not None]
    bounds = (min(horizons, default=-1), max(horizons, default=-1))
    need(bounds == (chunk.horizon_min, chunk.horizon_max), "3.3", "a chunk has other horizons")


def check_index(folder: Folder, described: DataObject, rows: Rows, seed: str) -> None:
    """Refuses a key index that is not that of the object's keys (§5.5)."""
    if described.index == 0:
        return
    raw = folder.read(described.path)
    end = len(raw) - described.footer - 16
    at = 0
    blocks = index_blocks(raw[end - described.index : end])
    if blocks is None:
        return
    for count, kept, bits in blocks:
        keys = [key for key in rows.key_bytes[at : at + count] if key is not None]
        own = {kept_part(key_hash(key, seed), bits) for key in keys}
        need(kept == own, "5.5", "a key index of other keys")
        at += count
    need(at == described.rows, "5.5", "a key index of other rows")
